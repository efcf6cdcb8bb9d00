//! A switch as control knows it: its plan, its bridge, and what is at each of its ports.
//!
//! Not here: who gets a frame (the crate `switch`), and what sidecores are told of ports (`place`).

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use config::plan::SwitchPlan;
use sidecore::{BridgeId, BridgeKind, Command};
use switch::{Limits, PORTS_MAX, PortId};

use crate::api::Reply;
use crate::sidecores::Cores;

use super::numbers::Numbers;
use super::place::Place;

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Addresses that a table may hold beyond those that are learned: of the NICs themselves.
const MACS_OF_PORTS: usize = PORTS_MAX as usize;

/// What is at a port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The device of that number.
    Nic(u32),
    /// The uplink of that number.
    Uplink(u32),
}

/// Whether a switch stays.
#[derive(Debug)]
enum Presence {
    Stays,
    /// It goes when its ports have gone; who is to be told.
    Goes(Option<Reply>),
}

/// A switch that sidecores know.
#[derive(Debug)]
pub(crate) struct Switch {
    plan: SwitchPlan,
    bridge: BridgeId,
    ports: BTreeMap<u16, Holder>,
    numbers: Numbers,
    presence: Presence,
}

impl Switch {
    /// One without ports, made known to every sidecore.
    pub(crate) fn make(plan: SwitchPlan, bridge: BridgeId, cores: &mut Cores) -> Switch {
        let limits = Limits {
            ports_max: PORTS_MAX,
            macs_max: plan.macs_max.into(),
            ageing_ns: u64::from(plan.ageing_s) * SECOND_NS,
        };
        // Of the keys of a hash map, which the kernel's random numbers make.
        let seed = RandomState::new().hash_one(bridge.0);
        let kind = BridgeKind::Switch { limits, seed };
        cores.send_all(|| Command::SetBridge(bridge, Some(kind)));
        let (ports, numbers) = (BTreeMap::new(), Numbers::below(PORTS_MAX));
        Switch { plan, bridge, ports, numbers, presence: Presence::Stays }
    }

    pub(crate) fn plan(&self) -> &SwitchPlan {
        &self.plan
    }

    pub(crate) fn set_plan(&mut self, plan: &SwitchPlan) {
        self.plan.clone_from(plan);
    }

    /// Addresses that a sidecore may know of it at most.
    pub(crate) fn table_max(&self) -> usize {
        usize::from(self.plan.macs_max) + MACS_OF_PORTS
    }

    pub(crate) fn bridge(&self) -> BridgeId {
        self.bridge
    }

    /// Whether it goes when its ports have gone.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.presence, Presence::Goes(_))
    }

    /// It goes when its ports have gone, and `reply` is told.
    pub(crate) fn leave(&mut self, reply: Option<Reply>) {
        self.presence = Presence::Goes(reply);
    }

    /// It stays after all.
    pub(crate) fn stay(&mut self) {
        self.presence = Presence::Stays;
    }

    /// Whether nothing keeps it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_leaving() && self.ports.is_empty()
    }

    /// Who waits for its end.
    pub(crate) fn into_reply(self) -> Option<Reply> {
        match self.presence {
            Presence::Goes(reply) => reply,
            Presence::Stays => None,
        }
    }

    /// A port of it, if one is left.
    pub(crate) fn take_port(&mut self, holder: Holder) -> Option<Place> {
        let free = self.numbers.take()?;
        self.ports.insert(free, holder);
        Some(Place { bridge: self.bridge, port: PortId(free), is_wire: false })
    }

    pub(crate) fn give_port(&mut self, port: PortId) {
        if self.ports.remove(&port.0).is_some() {
            self.numbers.give_back(port.0);
        }
    }

    /// What is at that port.
    pub(crate) fn holder(&self, port: u16) -> Option<Holder> {
        self.ports.get(&port).copied()
    }

    /// What is at its ports, in their order.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        self.ports.values().copied()
    }
}
