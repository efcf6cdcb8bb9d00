//! A learning switch.
//!
//! Not where addresses are kept (`table`), not the rules for tags (`vlan`). Called by `bridge`.

use core::ops::Range;

use crate::bridge::Verdict;
use crate::reason::DropReason;
use crate::rules::{BadPort, Limits, PORTS_MAX, PortId, Rules, Spoof};
use crate::table::{Learned, Mac, Table};
use crate::vlan::{Egress, Vlan, VlanId};

#[derive(Debug)]
pub(crate) struct Switch {
    /// By number.
    ports: Box<[Option<Port>]>,
    /// Numbers of those that exist, ascending; never more than it was made for.
    order: Vec<PortId>,
    /// How many ports have a VLAN rule: without any, tags are bytes like others.
    ruled: usize,
    table: Table,
}

/// A port's rules, as they are asked for each frame.
#[derive(Debug)]
struct Port {
    vlan: Vlan,
    /// The port's own address; 0, from which no frame can come, for none.
    own: u64,
    macs_max: u32,
    is_up: bool,
    /// Whether it may send from other addresses.
    spoofs: bool,
}

impl Port {
    fn new(rules: Rules) -> Port {
        Port {
            vlan: rules.vlan,
            own: rules.mac.map_or(0, number_of),
            macs_max: rules.macs_max.into(),
            is_up: rules.is_up,
            spoofs: rules.spoof == Spoof::Allow,
        }
    }
}

impl Switch {
    pub(crate) fn new(limits: Limits, seed: u64) -> Switch {
        let ports = usize::from(limits.ports_max.min(PORTS_MAX));
        Switch {
            ports: (0..ports).map(|_| None).collect(),
            order: Vec::with_capacity(ports),
            ruled: 0,
            table: Table::new(&limits, ports, seed),
        }
    }

    pub(crate) fn set_port(&mut self, port: PortId, rules: Rules) -> Result<(), BadPort> {
        rules.vlan.check()?;
        let place = self.ports.get_mut(usize::from(port.0)).ok_or(BadPort::Full)?;
        let now = Port::new(rules);
        let (own, untagged) = (now.own, now.vlan.untagged());
        self.ruled += usize::from(now.vlan != Vlan::None);
        match place {
            None => {
                let at = self.order.partition_point(|one| *one < port);
                self.order.insert(at, port);
            }
            Some(before) => {
                self.ruled -= usize::from(before.vlan != Vlan::None);
                if now.vlan != before.vlan || now.own != before.own || !now.is_up {
                    self.table.forget(port);
                }
            }
        }
        let freed = place.replace(now).map_or(0, |before| before.own);
        if let Some(vlan) = untagged.filter(|_| is_station(own)) {
            self.table.pin(own, vlan, port);
        }
        self.pin_freed(freed);
        Ok(())
    }

    pub(crate) fn remove_port(&mut self, port: PortId) {
        let Some(before) = self.ports.get_mut(usize::from(port.0)).and_then(Option::take) else {
            return;
        };
        self.ruled -= usize::from(before.vlan != Vlan::None);
        self.order.retain(|one| *one != port);
        self.table.forget(port);
        self.pin_freed(before.own);
    }

    /// An address that was a port's own is now that of another one which has had it meanwhile, though that has sent
    /// nothing yet: what is for it goes nowhere else.
    fn pin_freed(&mut self, own: u64) {
        if !is_station(own) {
            return;
        }
        for port in &self.order {
            let its = self.ports.get(usize::from(port.0)).and_then(Option::as_ref);
            let its = its.filter(|its| its.own == own);
            if let Some(vlan) = its.and_then(|its| its.vlan.untagged()) {
                self.table.pin(own, vlan, *port);
            }
        }
    }

    #[inline]
    pub(crate) fn decide(&mut self, from: PortId, head: &[u8], now_ns: u64) -> Verdict {
        let (target, vlan) = match self.learn(from, head, now_ns) {
            Ok(found) => found,
            Err(reason) => return Verdict::Drop(reason),
        };
        if is_group(target) {
            return Verdict::Flood { vlan };
        }
        match self.table.find(target, vlan.number(), now_ns) {
            Some(port) if port == from => Verdict::Drop(DropReason::Same),
            Some(port) => Verdict::To { port, vlan },
            None => Verdict::Flood { vlan },
        }
    }

    /// All that concerns the sender; gives the destination and the VLAN.
    #[inline(always)]
    pub(crate) fn learn(
        &mut self,
        from: PortId,
        head: &[u8],
        now_ns: u64,
    ) -> Result<(u64, VlanId), DropReason> {
        let port = self.ports.get(usize::from(from.0)).and_then(Option::as_ref);
        let port = port.ok_or(DropReason::NoPort)?;
        if !port.is_up {
            return Err(DropReason::CarrierDown);
        }
        let Addresses { target, source } = Addresses::read(head).ok_or(DropReason::Runt)?;
        let is_own = source == port.own;
        if !is_station(source) || !is_own && !port.spoofs {
            return Err(DropReason::BadSource);
        }
        if target & !0xf == LINK_LOCAL {
            return Err(DropReason::LinkLocal);
        }
        let vlan = match self.ruled {
            0 => VlanId::NONE,
            _ => port.vlan.ingress(head)?,
        };
        let (number, macs_max) = (vlan.number(), port.macs_max);
        match self.table.learn(source, number, from, is_own, macs_max, now_ns) {
            Learned::Known | Learned::Full => Ok((target, vlan)),
            Learned::Limit => Err(DropReason::MacLimit),
            Learned::Taken => Err(DropReason::BadSource),
        }
    }

    #[inline]
    pub(crate) fn egress(&self, to: PortId, vlan: VlanId) -> Egress {
        match self.ports.get(usize::from(to.0)).and_then(Option::as_ref) {
            None => Egress::Refuse(DropReason::NoPort),
            Some(port) if !port.is_up => Egress::Refuse(DropReason::CarrierDown),
            // With a VLAN, it was decided on where the rules are known already.
            Some(_) if self.ruled == 0 && vlan == VlanId::NONE => Egress::Keep,
            Some(port) => port.vlan.egress(vlan),
        }
    }

    pub(crate) fn has_vlan_rules(&self) -> bool {
        self.ruled > 0
    }

    pub(crate) fn ports(&self) -> &[PortId] {
        &self.order
    }

    pub(crate) fn buckets(&self) -> usize {
        self.table.buckets()
    }

    pub(crate) fn macs(&self, those: Range<usize>, now_ns: u64) -> impl Iterator<Item = Mac> + '_ {
        self.table.macs(those, now_ns)
    }

    pub(crate) fn learned(&self, port: PortId) -> u32 {
        self.table.learned(port)
    }

    pub(crate) fn unlearned(&self) -> u64 {
        self.table.unlearned()
    }
}

/// 01:80:c2:00:00:00 to 0f, which no bridge forwards (IEEE 802.1Q, table 8-1).
const LINK_LOCAL: u64 = 0x0180_c200_0000;

/// Both addresses of a frame, as numbers of 48 bits.
struct Addresses {
    target: u64,
    source: u64,
}

impl Addresses {
    /// Of a head with a whole Ethernet header.
    #[inline]
    fn read(head: &[u8]) -> Option<Addresses> {
        let header: &[u8; frame::FRAME_MIN as usize] = head.first_chunk()?;
        // Eight bytes at a time: each address with two that follow.
        let eight = |bytes: Option<&[u8; 8]>| Some(u64::from_be_bytes(*bytes?) >> 16);
        Some(Addresses {
            target: eight(header.first_chunk())?,
            source: eight(header.last_chunk())?,
        })
    }
}

/// An address as a number of 48 bits.
#[inline]
fn number_of([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Whether a frame can come from that address.
#[inline]
fn is_station(address: u64) -> bool {
    address != 0 && !is_group(address)
}

/// Whether an address is of a group: multicast or broadcast.
#[inline]
fn is_group(address: u64) -> bool {
    address >> 40 & 1 != 0
}
