//! Bridges and their ports as control numbers them, and what sidecores are told of them.
//!
//! A switch is known to every sidecore; a wire, whose ends have one home, to that alone. The order is
//! always: bridge, ports, queues and descriptors; and the other way round when something goes. Not
//! here: descriptors of the host (`uplinks`), queues of guests (`manager`), who gets a frame
//! (`switch`).

pub(crate) mod arrival;
pub(crate) mod host_ports;
pub(crate) mod nic;
pub(crate) mod nic_calls;
pub(crate) mod reload;
pub(crate) mod switch_calls;
pub(crate) mod taps;
pub(crate) mod travel;
pub(crate) mod uplinks;
pub(crate) mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};

use config::api::ApiError;
use config::plan::{NicPeer, SwitchPlan, VlanPlan};
use sidecore::{BRIDGES_MAX, BridgeId, BridgeKind, Command, PortSpec};
use switch::{Limits, PORTS_MAX, PortId, Vlan, Vlans};
use tracing::info;

use crate::api::Reply;
use crate::defects::found;
use crate::manager::Manager;
use crate::network::nic::{NicParts, Plug};
use crate::network::uplinks::Uplink;

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;
/// The ends of a wire.
const GUEST_END: PortId = PortId(0);
const HOST_END: PortId = PortId(1);

/// Bridge or port that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Bridges, of which there are as many as there can be.
    #[error("there are {BRIDGES_MAX} switches and wires already, the most one daemon has")]
    Bridges,
    /// Switch that is not there, or goes.
    #[error("there is no switch {0:?}")]
    NoSwitch(String),
    /// Switch without a free port.
    #[error("switch {0:?} has no port left")]
    Ports(String),
}

/// Where a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) bridge: BridgeId,
    pub(crate) port: PortId,
    /// The sidecore that has all its queues and descriptors.
    pub(crate) home: usize,
    /// Only its home knows a wire.
    pub(crate) is_wire: bool,
}

/// What is at a port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The device of that number.
    Nic(u32),
    /// The uplink of that number.
    Uplink(u32),
}

/// A switch that sidecores know.
pub(crate) struct Switch {
    pub(crate) plan: SwitchPlan,
    pub(crate) bridge: BridgeId,
    pub(crate) ports: BTreeMap<u16, Holder>,
    /// The number that was given last: none is given again soon, for frames on their way to another
    /// sidecore may name it.
    last_port: u16,
    /// It goes when its ports have gone; who is to be told.
    pub(crate) leaving: Option<Option<Reply>>,
}

/// Every bridge and uplink.
#[derive(Default)]
pub(crate) struct Network {
    /// Those of the plan, and those that still go.
    pub(crate) switches: Vec<Switch>,
    pub(crate) uplinks: BTreeMap<u32, Uplink>,
    pub(crate) next_uplink: u32,
    bridges: BTreeSet<u16>,
    last_bridge: u16,
}

impl Network {
    /// The switch of that name, if it does not go.
    pub(crate) fn switch(&self, id: &str) -> Option<&Switch> {
        self.switches.iter().find(|switch| switch.plan.id == id && switch.leaving.is_none())
    }

    pub(crate) fn switch_mut(&mut self, id: &str) -> Option<&mut Switch> {
        self.switches.iter_mut().find(|switch| switch.plan.id == id && switch.leaving.is_none())
    }

    /// Whether some sidecore has an uplink.
    pub(crate) fn is_attached(&self) -> bool {
        self.uplinks.values().any(Uplink::is_attached)
    }

    /// Whether a sidecore still has a host port that was asked for.
    pub(crate) fn is_asked_back(&self) -> bool {
        self.uplinks.values().any(Uplink::is_asked_back)
    }

    /// The uplinks of a switch, and those that come to it when their descriptors are back.
    pub(crate) fn uplinks_of(&self, bridge: BridgeId) -> Vec<u32> {
        let its = self.uplinks.iter().filter(|(_, uplink)| uplink.bridge() == bridge);
        its.map(|(number, _)| *number).collect()
    }

    /// A name for a bridge that no other has, the one that was free for longest.
    fn name_bridge(&mut self) -> Option<BridgeId> {
        let free = next_free(self.last_bridge, BRIDGES_MAX, |n| self.bridges.contains(&n))?;
        self.last_bridge = free;
        self.bridges.insert(free);
        Some(BridgeId(free))
    }
}

impl Switch {
    /// A number for a port, if one is left.
    pub(crate) fn take_port(&mut self, holder: Holder) -> Option<PortId> {
        let free = next_free(self.last_port, PORTS_MAX, |n| self.ports.contains_key(&n))?;
        self.last_port = free;
        self.ports.insert(free, holder);
        Some(PortId(free))
    }
}

/// The first number behind `last` that is not taken, counting round below `end`.
fn next_free(last: u16, end: u16, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
    let round = (last.saturating_add(1)..end).chain(0..end.min(last.saturating_add(1)));
    round.into_iter().find(|number| !is_taken(*number))
}

/// The rule about VLANs, as a switch takes it.
pub(crate) fn vlan_of(plan: &VlanPlan) -> Vlan {
    match plan {
        VlanPlan::None => Vlan::None,
        VlanPlan::Access(vlan) => Vlan::Access(*vlan),
        VlanPlan::Trunk { native, allowed } => match Vlans::new(allowed) {
            Ok(allowed) => Vlan::Trunk { native: *native, allowed },
            // The plan has only VLANs that can be used.
            Err(_) => Vlan::None,
        },
    }
}

impl Manager {
    /// Makes a switch without ports, on every sidecore.
    ///
    /// # Errors
    /// There are as many bridges as there can be.
    pub(crate) fn make_switch(&mut self, plan: &SwitchPlan) -> Result<BridgeId, NetworkError> {
        let bridge = self.rooms.network.name_bridge().ok_or(NetworkError::Bridges)?;
        let limits = Limits {
            ports_max: PORTS_MAX,
            macs_max: plan.macs_max.into(),
            ageing_ns: u64::from(plan.ageing_s) * SECOND_NS,
        };
        // Of the keys of a hash map, which the kernel's random numbers make.
        let seed = RandomState::new().hash_one(bridge.0);
        let kind = BridgeKind::Switch { limits, seed };
        self.tell_all(|| Command::SetBridge(bridge, Some(kind)));
        self.rooms.network.switches.push(Switch {
            plan: plan.clone(),
            bridge,
            ports: BTreeMap::new(),
            last_port: PORTS_MAX - 1,
            leaving: None,
        });
        Ok(bridge)
    }

    /// Gives a NIC its port, and the host's end of its wire.
    ///
    /// # Errors
    /// No number is left, or its switch is gone.
    pub(crate) fn plug_in(&mut self, number: u32) -> Result<(), NetworkError> {
        let Some(device) = self.rooms.devices.get(number) else {
            self.rooms.turn.defects.note("device to plug in");
            return Ok(());
        };
        let Some(nic) = device.kind.nic() else { return Ok(()) };
        let rings = usize::from(device.facts.rings);
        let (peer, id) = (nic.plan.peer.clone(), nic.plan.id.clone());
        let home = match &peer {
            NicPeer::Switch(_) => self.rooms.place_movable(number, rings),
            NicPeer::Host(_) => self.rooms.cores.place_fixed(),
        };
        let was_at = self.home_before(number);
        let home = was_at.map(|(home, _)| home).or(home).unwrap_or_default();
        if let NicPeer::Switch(switch) = &peer {
            self.connect_homes(self.rooms.network.switch(switch).map(|switch| switch.bridge), home);
        }
        let (bridge, port) = match &peer {
            NicPeer::Switch(switch) => {
                let gone = || NetworkError::NoSwitch(switch.clone());
                let switch = self.rooms.network.switch_mut(switch).ok_or_else(gone)?;
                let full = NetworkError::Ports(switch.plan.id.clone());
                (switch.bridge, switch.take_port(Holder::Nic(number)).ok_or(full)?)
            }
            NicPeer::Host(_) => {
                let bridge = self.rooms.network.name_bridge().ok_or(NetworkError::Bridges)?;
                self.rooms.cores.send(home, Command::SetBridge(bridge, Some(BridgeKind::Wire)));
                (bridge, GUEST_END)
            }
        };
        let place = Place { bridge, port, home, is_wire: matches!(peer, NicPeer::Host(_)) };
        self.rooms.cores.take_load(home, rings);
        if let Some(nic) = self.rooms.devices.nic_mut(number) {
            let by_hand = was_at.is_some_and(|(_, by_hand)| by_hand);
            if !nic.port.plug(Plug::at(place, by_hand)) {
                self.rooms.turn.defects.note("port of a NIC that is plugged in");
            }
        }
        self.say_port(number);
        if let NicPeer::Host(host) = peer {
            let uplink = self.wire_up(number, &id, host, Place { port: HOST_END, ..place });
            if let Some(way) = self.rooms.devices.nic_mut(number).and_then(|nic| nic.port.way_mut())
            {
                way.uplink = Some(uplink);
            }
        }
        Ok(())
    }

    /// Where a NIC that is being taken over is at home, and whether an operator brought it there.
    fn home_before(&mut self, number: u32) -> Option<(usize, bool)> {
        let plan = self.rooms.devices.get(number)?.kind.plan();
        let device = self.rooms.estate.as_mut()?.device_of(&plan)?;
        let nic = device.words.nic.as_ref().filter(|nic| nic.home < self.rooms.cores.count())?;
        let before = (nic.home, nic.by_hand);
        self.rooms.cores.wake(before.0);
        Some(before)
    }

    /// Moves a NIC whose queues are all here to the switch that has its switch's name now.
    pub(crate) fn plug_in_anew(&mut self, number: u32) {
        self.unplug(number);
        if let Err(error) = self.plug_in(number)
            && let Some(device) = self.rooms.devices.get_mut(number)
        {
            device.problem = Some(error.to_string());
        }
    }

    /// Takes a NIC's port away. False: the host's end of its wire is still with its sidecore, and the
    /// device is settled again when it is back.
    pub(crate) fn unplug(&mut self, number: u32) -> bool {
        let Some(device) = self.rooms.devices.get(number) else {
            self.rooms.turn.defects.note("device to unplug");
            return true;
        };
        let Some(Plug { place, uplink, .. }) = device.kind.nic().and_then(NicParts::plug) else {
            return true;
        };
        let rings = usize::from(device.facts.rings);
        self.forget_travel(number);
        if let Some(uplink) = uplink {
            self.remove_uplink(uplink);
            if self.rooms.network.uplinks.contains_key(&uplink) {
                return false;
            }
        }
        self.set_port(place, None);
        if place.is_wire {
            self.rooms.cores.send(place.home, Command::SetBridge(place.bridge, None));
            self.rooms.network.bridges.remove(&place.bridge.0);
        }
        self.rooms.cores.give_load(place.home, rings);
        if let Some(nic) = self.rooms.devices.nic_mut(number) {
            nic.port.unplug();
        }
        self.leave_switch(place);
        true
    }

    /// Tells sidecores what a NIC's port is now.
    pub(crate) fn say_port(&mut self, number: u32) {
        let nic = found!(
            self.rooms.turn.defects,
            self.rooms.devices.nic_mut(number),
            "NIC whose port is told"
        );
        if let Some(Plug { place, .. }) = nic.plug() {
            let spec = nic.port_spec(place.home);
            self.set_port(place, Some(spec));
        }
    }

    pub(crate) fn set_port(&mut self, place: Place, spec: Option<PortSpec>) {
        let command = || Command::SetPort(place.bridge, place.port, spec.clone().map(Box::new));
        match place.is_wire {
            true => self.rooms.cores.send(place.home, command()),
            false => self.tell_all(command),
        }
    }

    fn tell_all(&mut self, command: impl Fn() -> Command) {
        for core in 0..self.rooms.cores.count() {
            self.rooms.cores.send(core, command());
        }
    }

    /// Before a switch has a port at home on `home`: frames can be handed over between that sidecore
    /// and those of its other ports.
    pub(crate) fn connect_homes(&mut self, bridge: Option<BridgeId>, home: usize) {
        let switch =
            self.rooms.network.switches.iter().find(|switch| Some(switch.bridge) == bridge);
        let ports = switch.into_iter().flat_map(|switch| switch.ports.values());
        let home_of = |holder: &Holder| match holder {
            Holder::Nic(number) => {
                let nic = self.rooms.devices.get(*number)?.kind.nic()?;
                // One that moves may be at either.
                Some((nic.plug()?.place.home, nic.port.moving().map(|moving| moving.to)))
            }
            Holder::Uplink(number) => {
                Some((self.rooms.network.uplinks.get(number)?.place.home, None))
            }
        };
        let homes = ports.filter_map(home_of).flat_map(|(home, next)| [Some(home), next]);
        for other in homes.flatten().collect::<BTreeSet<usize>>() {
            self.rooms.cores.connect(home, other);
        }
    }

    /// A place for an uplink of that switch.
    pub(crate) fn place_of_uplink(&mut self, bridge: BridgeId, uplink: u32) -> Option<Place> {
        let home = self.rooms.cores.place_fixed().unwrap_or_default();
        self.connect_homes(Some(bridge), home);
        let switch =
            self.rooms.network.switches.iter_mut().find(|switch| switch.bridge == bridge)?;
        let port = switch.take_port(Holder::Uplink(uplink))?;
        Some(Place { bridge, port, home, is_wire: false })
    }

    /// Has a switch go when its ports have gone; its uplinks go now.
    pub(crate) fn begin_switch_removal(&mut self, id: &str, reply: Option<Reply>) {
        self.rooms.plan.switches.retain(|plan| plan.id != id);
        let Some(switch) = self.rooms.network.switch_mut(id) else {
            // The reload that added it could not have it served, and said so.
            let gone = || Err(ApiError::no_such_switch(id));
            return reply.into_iter().for_each(|reply| reply.answer(gone()));
        };
        switch.leaving = Some(reply);
        let bridge = switch.bridge;
        for uplink in self.rooms.network.uplinks_of(bridge) {
            self.remove_uplink(uplink);
        }
        self.drop_empty_switches();
    }

    /// A port has gone; its switch may have waited for that.
    pub(crate) fn leave_switch(&mut self, place: Place) {
        let its = |switch: &&mut Switch| switch.bridge == place.bridge;
        if let Some(switch) = self.rooms.network.switches.iter_mut().find(its) {
            switch.ports.remove(&place.port.0);
        }
        self.drop_empty_switches();
    }

    fn drop_empty_switches(&mut self) {
        let is_gone = |switch: &Switch| switch.leaving.is_some() && switch.ports.is_empty();
        while let Some(at) = self.rooms.network.switches.iter().position(is_gone) {
            let mut switch = self.rooms.network.switches.remove(at);
            self.tell_all(|| Command::SetBridge(switch.bridge, None));
            self.rooms.network.bridges.remove(&switch.bridge.0);
            info!(switch = switch.plan.id, "removed");
            let view = self.switch_view(&switch);
            if let Some(reply) = switch.leaving.take().flatten() {
                reply.answer(Ok(config::api::Answer::Switch(Box::new(view))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_back_is_the_last_to_be_given_again() {
        let mut taken = BTreeSet::new();
        let mut last = 3;
        for expected in [0, 1, 2, 3] {
            last = next_free(last, 4, |n| taken.contains(&n)).expect("one is free");
            assert_eq!(last, expected);
            taken.insert(last);
        }
        assert_eq!(next_free(last, 4, |n| taken.contains(&n)), None);
        taken.remove(&1);
        taken.remove(&2);
        assert_eq!(next_free(1, 4, |n| taken.contains(&n)), Some(2));
        assert_eq!(next_free(2, 4, |n| taken.contains(&n)), Some(1));
    }
}
