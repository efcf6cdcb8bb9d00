//! A switch the slow and obvious way, and sequences of steps that it and the real one go through
//! together: whatever they do differently is an assertion that fails.
//!
//! Behind a feature: nothing of it is shipped. Called by this crate's properties and by fuzzing.

use std::collections::{BTreeMap, BTreeSet};

use frame::tag::{self, Tag};

use crate::{Bridge, DropReason, Egress, Limits, PortId, Rules, Spoof, Verdict, Vlan};

/// A tag as its type and its value.
pub type RawTag = (u16, u16);

/// What happens to a switch.
#[derive(Clone, Debug)]
pub enum Step {
    /// A port is made, or changes its rules.
    Set(u16, Rules),
    /// A port goes, if it is there.
    Remove(u16),
    /// A frame comes in.
    Send {
        /// Where.
        port: u16,
        /// The number of its sender.
        from: u8,
        /// The number of its receiver.
        to: u8,
        /// From the outside in.
        tags: Vec<RawTag>,
    },
    /// So many units of 2^20 ns pass.
    Wait(u64),
}

/// A station's address.
pub fn station(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// A frame with these tags, and a few bytes behind them.
pub fn frame(to: [u8; 6], from: [u8; 6], tags: &[RawTag]) -> Vec<u8> {
    let mut bytes = [to, from].concat();
    for (kind, value) in tags {
        bytes.extend(kind.to_be_bytes());
        bytes.extend(value.to_be_bytes());
    }
    bytes.extend([0x08, 0x00, 1, 2, 3, 4]);
    bytes
}

/// The frame as it leaves a port, if it does.
pub fn left(egress: Egress, head: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = head.to_vec();
    let len = bytes.len();
    bytes.resize(len + tag::SIZE, 0);
    let after = match egress {
        Egress::Refuse(_) => return None,
        Egress::Keep => Some(len),
        Egress::Push(vlan) => tag::push(&mut bytes, len, Tag(vlan)),
        Egress::Pop => tag::pop(&mut bytes, len),
        Egress::Retag(vlan) => {
            assert_eq!(tag::read(&bytes).map(Tag::vlan), Some(0), "only a priority tag is changed");
            tag::set_vlan(&mut bytes, vlan);
            Some(len)
        }
    };
    assert_eq!(after.map(|after| after as i64 - len as i64), Some(i64::from(egress.shift())));
    bytes.truncate(after.unwrap_or(0));
    Some(bytes)
}

/// Takes a new switch, and the model, through `steps`. Port numbers must be below `limits.ports_max`.
pub fn run(limits: Limits, steps: impl IntoIterator<Item = Step>) {
    let mut bridge = Bridge::switch(limits, 1);
    let mut model = Model {
        ports: BTreeMap::new(),
        stations: BTreeMap::new(),
        limits,
        ageing: limits.ageing_ns / TICK,
        now: 0,
    };
    for step in steps {
        model.step(&mut bridge, step);
        model.check(&bridge);
    }
}

const TICK: u64 = 1 << 20;

type Key = ([u8; 6], u16);

/// Where a station is, since when, and whether it is there for good.
#[derive(Clone, Copy)]
struct Known {
    port: u16,
    seen: u64,
    is_pinned: bool,
}

/// Ports and stations as they should be. Stations that have aged stay in the map, since the bridge
/// may count them until it has found them.
struct Model {
    ports: BTreeMap<u16, Rules>,
    stations: BTreeMap<Key, Known>,
    limits: Limits,
    ageing: u64,
    now: u64,
}

impl Model {
    fn step(&mut self, bridge: &mut Bridge, step: Step) {
        match step {
            Step::Wait(ticks) => self.now += ticks,
            Step::Set(port, rules) => {
                assert_eq!(bridge.set_port(PortId(port), rules.clone()), Ok(()));
                let before = self.ports.insert(port, rules.clone());
                let freed = before.as_ref().and_then(|before| before.mac);
                let is_same = |before: Rules| before.vlan == rules.vlan && before.mac == rules.mac;
                if !before.is_some_and(is_same) || !rules.is_up {
                    self.stations.retain(|_, known| known.port != port);
                }
                self.pin(port, rules.mac);
                self.pin_freed(freed);
            }
            Step::Remove(port) => {
                bridge.remove_port(PortId(port));
                let freed = self.ports.remove(&port).and_then(|before| before.mac);
                self.stations.retain(|_, known| known.port != port);
                self.pin_freed(freed);
            }
            Step::Send { port, from, to, tags } => self.send(bridge, port, from, to, &tags),
        }
    }

    /// Has a port have that address, if it is its own and no other port's.
    fn pin(&mut self, port: u16, mac: Option<[u8; 6]>) {
        let its = self.ports.get(&port).filter(|rules| rules.mac == mac);
        let vlan = its.and_then(|rules| untagged(&rules.vlan));
        let Some(key) = mac.zip(vlan) else { return };
        let known = self.stations.entry(key);
        let known = known.or_insert(Known { port, seen: 0, is_pinned: false });
        if !known.is_pinned {
            *known = Known { port, seen: self.now, is_pinned: true };
        }
    }

    /// An address is no port's own any more, or another one's.
    fn pin_freed(&mut self, mac: Option<[u8; 6]>) {
        let ports: Vec<u16> = self.ports.keys().copied().collect();
        ports.into_iter().for_each(|port| self.pin(port, mac));
    }

    /// What is known is the same, and counts are between those of the young ones and of all.
    fn check(&self, bridge: &Bridge) {
        let known = bridge.macs(self.now * TICK).map(|mac| (mac.address, mac.vlan, mac.port.0));
        assert_eq!(known.collect::<BTreeSet<_>>(), self.young());
        assert!(bridge.ports().map(|port| port.0).eq(self.ports.keys().copied()));
        for port in 0..self.limits.ports_max {
            let kept = bridge.learned(PortId(port)) as usize;
            let all = self.stations.values().filter(|known| known.port == port).count();
            let young = self.young_at(port);
            assert!((young..=all).contains(&kept), "port {port}: {young} <= {kept} <= {all}");
        }
    }

    fn send(&mut self, bridge: &mut Bridge, port: u16, from: u8, to: u8, tags: &[RawTag]) {
        let (source, target) = (station(from), station(to));
        let head = frame(target, source, tags);
        let before = Kept::of(bridge, port, self.limits.ports_max);
        let verdict = bridge.decide(PortId(port), &head, self.now * TICK);
        let vlan = match self.ingress(port, from, tags) {
            Ok(vlan) => vlan,
            Err(reason) => return assert_eq!(verdict, Verdict::Drop(reason)),
        };
        let holder = self.stations.get(&(source, vlan)).filter(|known| known.is_pinned);
        if holder.is_some_and(|holder| holder.port != port) {
            return assert_eq!(verdict, Verdict::Drop(DropReason::BadSource));
        }
        let is_limited = verdict == Verdict::Drop(DropReason::MacLimit);
        let is_full = bridge.unlearned() > before.unlearned;
        self.learn((source, vlan), port, &before, is_limited, is_full);
        if is_limited {
            return;
        }
        let found = self.known((target, vlan));
        let id = match verdict {
            Verdict::To { port: to, vlan } => {
                assert_eq!(found, Some(to.0));
                assert_ne!(to.0, port);
                vlan
            }
            Verdict::Flood { vlan } => {
                assert_eq!(found, None);
                vlan
            }
            Verdict::Drop(reason) => {
                return assert_eq!((reason, found), (DropReason::Same, Some(port)));
            }
        };
        assert_eq!(id.number(), vlan);
        let receivers = found.map_or(0..self.limits.ports_max, |to| to..to + 1);
        for receiver in receivers {
            let tags = self.egress(receiver, vlan, tags);
            let expected = tags.map(|tags| frame(target, source, &tags));
            assert_eq!(left(bridge.egress(PortId(receiver), id), &head), expected, "{receiver}");
        }
    }

    /// What the real one did with a source address is one of what it may do.
    fn learn(&mut self, key: Key, port: u16, before: &Kept, is_limited: bool, is_full: bool) {
        let known = self.known(key);
        let is_own = self.ports.get(&port).is_some_and(|rules| rules.mac == Some(key.0));
        if known == Some(port) || is_own {
            assert!(!is_limited && !is_full, "a known station is never refused");
        } else {
            let macs_max = self.ports.get(&port).map_or(0, |rules| usize::from(rules.macs_max));
            let table_max = self.limits.macs_max as usize;
            assert!(is_limited || self.young_at(port) < macs_max, "more than the limit");
            assert!(!is_limited || before.at_port >= macs_max, "a place was free");
            assert!(is_limited || is_full || known.is_some() || self.young().len() < table_max);
            assert!(!is_full || before.at_all >= table_max, "the table had room");
        }
        if !is_limited && !is_full {
            self.stations.insert(key, Known { port, seen: self.now, is_pinned: is_own });
        }
    }

    /// The VLAN of a frame that comes in, by what the port's rule says of its sender and its tags.
    fn ingress(&self, port: u16, from: u8, tags: &[RawTag]) -> Result<u16, DropReason> {
        let rules = self.ports.get(&port).ok_or(DropReason::NoPort)?;
        if !rules.is_up {
            return Err(DropReason::CarrierDown);
        }
        if rules.spoof == Spoof::Deny && rules.mac != Some(station(from)) {
            return Err(DropReason::BadSource);
        }
        let untagged = untagged(&rules.vlan);
        let vlan = match tags {
            _ if !self.is_ruled() => Some(0),
            [] => untagged,
            [(0x8100, value)] if value & 0xfff == 0 => untagged,
            [(0x8100, value), ..] => match &rules.vlan {
                Vlan::Trunk { native, allowed } => Some(value & 0xfff)
                    .filter(|vlan| allowed.contains(*vlan) || *native == Some(*vlan)),
                _ => None,
            },
            _ => None,
        };
        vlan.ok_or(DropReason::Vlan)
    }

    /// The tags that a receiver gets; None when it gets nothing.
    fn egress(&self, port: u16, vlan: u16, tags: &[RawTag]) -> Option<Vec<RawTag>> {
        let rules = self.ports.get(&port).filter(|rules| rules.is_up)?;
        if !self.is_ruled() {
            return Some(tags.to_vec());
        }
        let (outer, inner) = match tags {
            [] => (0, &[][..]),
            [(_, value), inner @ ..] => (*value, inner),
        };
        let (is_member, is_tagged) = match &rules.vlan {
            Vlan::None => (vlan == 0, false),
            Vlan::Access(one) => (vlan == *one, false),
            Vlan::Trunk { native, allowed } => {
                (*native == Some(vlan) || allowed.contains(vlan), *native != Some(vlan))
            }
        };
        match (is_member, is_tagged) {
            (false, _) => None,
            // The priority stays as it was.
            (true, true) => Some([&[(0x8100, outer & 0xf000 | vlan)], inner].concat()),
            // A tag is never uncovered.
            (true, false) => inner.is_empty().then(Vec::new),
        }
    }

    fn is_ruled(&self) -> bool {
        self.ports.values().any(|rules| rules.vlan != Vlan::None)
    }

    fn is_young(&self, known: &Known) -> bool {
        known.is_pinned || self.now - known.seen <= self.ageing
    }

    fn known(&self, key: Key) -> Option<u16> {
        let known = self.stations.get(&key).filter(|known| self.is_young(known));
        known.map(|known| known.port)
    }

    fn young(&self) -> BTreeSet<([u8; 6], u16, u16)> {
        let young = self.stations.iter().filter(|(_, known)| self.is_young(known));
        young.map(|((address, vlan), known)| (*address, *vlan, known.port)).collect()
    }

    fn young_at(&self, port: u16) -> usize {
        self.young().iter().filter(|(_, _, at)| *at == port).count()
    }
}

/// The VLAN of frames without a tag.
fn untagged(vlan: &Vlan) -> Option<u16> {
    match vlan {
        Vlan::None => Some(0),
        Vlan::Access(vlan) => Some(*vlan),
        Vlan::Trunk { native, .. } => *native,
    }
}

/// What the real one kept before a frame came.
struct Kept {
    at_port: usize,
    at_all: usize,
    unlearned: u64,
}

impl Kept {
    fn of(bridge: &Bridge, port: u16, ports: u16) -> Kept {
        let learned = |port| bridge.learned(PortId(port)) as usize;
        Kept {
            at_port: learned(port),
            at_all: (0..ports).map(learned).sum(),
            unlearned: bridge.unlearned(),
        }
    }
}
