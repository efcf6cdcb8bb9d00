//! A bridge: a switch or a wire, for callers that need not know which.
//!
//! Called by `sidecore`.

use core::ops::Range;

use crate::reason::DropReason;
use crate::rules::{BadPort, Limits, PortId, Rules};
use crate::switch::Switch;
use crate::table::Mac;
use crate::vlan::{Egress, VlanId};
use crate::wire::Wire;

/// Who gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// One port.
    To {
        /// It is not the sender's. Its link may be down: [`Bridge::egress`] says so.
        port: PortId,
        /// For [`Bridge::egress`].
        vlan: VlanId,
    },
    /// All ports but the sender's.
    Flood {
        /// For [`Bridge::egress`].
        vlan: VlanId,
    },
    /// Nobody.
    Drop(DropReason),
}

/// One bridge, or one sidecore's replica of it.
#[derive(Debug)]
pub struct Bridge(Kind);

#[derive(Debug)]
enum Kind {
    Switch(Switch),
    Wire(Wire),
}

impl Bridge {
    /// A switch without ports. `seed` keys the hash of addresses; whoever knows it can aim collisions,
    /// so guests must not. Limits beyond their bounds are brought within.
    ///
    /// Takes all memory: 64 bytes for each address up to 128 (rounded to a power of two), 34 for each port.
    pub fn switch(limits: Limits, seed: u64) -> Bridge {
        Bridge(Kind::Switch(Switch::new(limits, seed)))
    }

    /// A wire without ends: port numbers are any two.
    pub fn wire() -> Bridge {
        Bridge(Kind::Wire(Wire::new()))
    }

    /// Whether it is a wire.
    pub fn is_wire(&self) -> bool {
        matches!(self.0, Kind::Wire(_))
    }

    /// Makes a port, or changes its rules. A port that gets other VLANs or another address, or whose
    /// link goes down, loses what was learned of it; one that may have fewer addresses keeps those it has.
    ///
    /// # Errors
    /// When there is no room, or a VLAN cannot be used; nothing has changed then.
    pub fn set_port(&mut self, port: PortId, rules: Rules) -> Result<(), BadPort> {
        match &mut self.0 {
            Kind::Switch(switch) => switch.set_port(port, rules),
            Kind::Wire(wire) => wire.set_port(port, rules.is_up),
        }
    }

    /// Takes a port away, and all that was learned of it: a walk over the table, when there is
    /// something. Nothing when there is no such port.
    pub fn remove_port(&mut self, port: PortId) {
        match &mut self.0 {
            Kind::Switch(switch) => switch.remove_port(port),
            Kind::Wire(wire) => wire.remove_port(port),
        }
    }

    /// Learns where the sender of a frame is, and finds who gets it. `head` is the frame, or its first
    /// 18 bytes or more (`frame::HEAD_MAX` are always enough).
    ///
    /// Costs two look-ups of eight entries each. In the first call after each 1.05 ms of `now_ns`, a
    /// part of the table is looked through besides, for addresses that have aged: 512 entries, or
    /// up to 4,096 when more time has passed. Until then an aged address counts against
    /// limits, but is not found.
    #[inline]
    pub fn decide(&mut self, from: PortId, head: &[u8], now_ns: u64) -> Verdict {
        match &mut self.0 {
            Kind::Switch(switch) => switch.decide(from, head, now_ns),
            Kind::Wire(wire) => wire.decide(from, head),
        }
    }

    /// Learns where the sender of a frame is, and nothing else: for the replica of a receiver, to which
    /// the frame was handed over after another replica had decided. Costs one look-up, and ages as
    /// [`decide`](Self::decide) does.
    ///
    /// # Errors
    /// Why this replica would have dropped it.
    #[inline]
    pub fn learn(&mut self, from: PortId, head: &[u8], now_ns: u64) -> Result<(), DropReason> {
        match &mut self.0 {
            Kind::Switch(switch) => switch.learn(from, head, now_ns).map(|_| ()),
            Kind::Wire(_) => Ok(()),
        }
    }

    /// Whether some port has a VLAN rule: without any, who gets a frame is a matter of its addresses.
    #[inline]
    pub fn has_vlan_rules(&self) -> bool {
        match &self.0 {
            Kind::Switch(switch) => switch.has_vlan_rules(),
            Kind::Wire(_) => false,
        }
    }

    /// What becomes of the frame's tag at port `to`, and whether the frame goes there at all.
    #[inline]
    pub fn egress(&self, to: PortId, vlan: VlanId) -> Egress {
        match &self.0 {
            Kind::Switch(switch) => switch.egress(to, vlan),
            Kind::Wire(wire) => wire.egress(to),
        }
    }

    /// All ports, ascending. For a flood the caller leaves the sender out and asks
    /// [`egress`](Self::egress) of each.
    #[inline]
    pub fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        let order = match &self.0 {
            Kind::Switch(switch) => switch.ports(),
            Kind::Wire(wire) => wire.ports(),
        };
        order.iter().copied()
    }

    /// What is known at `now_ns`, in no order; nothing of a wire. A walk over the whole table.
    pub fn macs(&self, now_ns: u64) -> impl Iterator<Item = Mac> + '_ {
        self.macs_in(0..self.buckets(), now_ns)
    }

    /// Of how many buckets the table is; a wire has none. It is what a walk can be made of, piece by piece.
    pub fn buckets(&self) -> usize {
        match &self.0 {
            Kind::Switch(switch) => switch.buckets(),
            Kind::Wire(_) => 0,
        }
    }

    /// As [`Self::macs`], of these buckets alone; nothing of those that are not there.
    pub fn macs_in(&self, those: Range<usize>, now_ns: u64) -> impl Iterator<Item = Mac> + '_ {
        let switch = match &self.0 {
            Kind::Switch(switch) => Some(switch),
            Kind::Wire(_) => None,
        };
        switch.into_iter().flat_map(move |switch| switch.macs(those.clone(), now_ns))
    }

    /// Addresses that are kept of that port, aged ones that were not yet taken out among them.
    pub fn learned(&self, port: PortId) -> u32 {
        match &self.0 {
            Kind::Switch(switch) => switch.learned(port),
            Kind::Wire(_) => 0,
        }
    }

    /// How often a frame was forwarded without its source being learned, because the table, or the
    /// eight places for that address, were full of young ones.
    pub fn unlearned(&self) -> u64 {
        match &self.0 {
            Kind::Switch(switch) => switch.unlearned(),
            Kind::Wire(_) => 0,
        }
    }
}
