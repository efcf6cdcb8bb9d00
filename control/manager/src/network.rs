//! Bridges and their ports as control numbers them, and what sidecores are told of them.
//!
//! A switch is known to every sidecore; a wire, whose ends have one home, to that alone. The order is
//! always: bridge, ports, queues and descriptors; and the other way round when something goes. Not
//! here: queues of guests (`manager`), who gets a frame (the crate `switch`), which links there are (`remote`).
//!
//! | file | what |
//! |---|---|
//! | `plugs`, `travel` | NICs: given a port and taken from it; moved between sidecores |
//! | `uplinks`, `uplink`, `host_ports`, `taps` | ports that lead to the host: all; one; its descriptors; taps that are ours |
//! | `switches`, `place`, `numbers` | a switch; where a port is; numbers of both |
//! | `nic`, `arrival`, `announce` | what only a NIC has; when guests that come with their driver running are announced to their network; how |
//! | `switch_calls`, `mac_queries`, `views`, `nic_views` | operators' calls, and what they are shown |
//! | `reload` | the part of a reload that is about all this |

pub(crate) mod announce;
mod another_tap;
pub(crate) mod arrival;
pub(crate) mod host_ports;
mod mac_queries;
pub(crate) mod nic;
pub(crate) mod nic_views;
mod numbers;
pub(crate) mod place;
pub(crate) mod plugs;
pub(crate) mod reload;
pub(crate) mod switch_calls;
mod switches;
mod taps;
pub(crate) mod travel;
pub(crate) mod uplink;
mod uplinks;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use backend::link::LinkNic;
use config::plan::SwitchPlan;
use sidecore::{BRIDGES_MAX, BridgeId, Command};
use tracing::info;

use crate::api::Reply;
use crate::sidecores::Cores;
use crate::sidecores::around::Around;

use mac_queries::MacQueries;
use numbers::Numbers;
use place::Place;
use switches::{Holder, Switch};
use taps::MadeTaps;
use uplink::Uplink;

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

/// Every bridge and uplink.
pub(crate) struct Network {
    /// Those of the plan, and those that still go.
    switches: Vec<Switch>,
    bridges: Numbers,
    uplinks: BTreeMap<u32, Uplink>,
    next_uplink: u32,
    /// Links' ends of uplinks that were opened, with their numbers.
    ends: Vec<(u32, Box<LinkNic>)>,
    taps: MadeTaps,
    /// Taps that are to go with no port of theirs open, and when that is tried.
    left: BTreeMap<String, Instant>,
    /// Operators who wait for tables of addresses.
    queries: MacQueries,
    /// When another process was taken over from, if one was.
    took_over_at: Option<Instant>,
}

impl Network {
    /// Without bridges; taps that are made are noted in `state_dir`.
    pub(crate) fn new(state_dir: &str) -> Network {
        Network {
            switches: Vec::new(),
            bridges: Numbers::below(BRIDGES_MAX),
            uplinks: BTreeMap::new(),
            next_uplink: 0,
            ends: Vec::new(),
            taps: MadeTaps::in_folder(state_dir),
            left: BTreeMap::new(),
            queries: MacQueries::default(),
            took_over_at: None,
        }
    }

    /// The switch of that name, if it does not go.
    fn switch(&self, id: &str) -> Option<&Switch> {
        self.switches.iter().find(|switch| switch.plan().id == id && !switch.is_leaving())
    }

    fn switch_mut(&mut self, id: &str) -> Option<&mut Switch> {
        self.switches.iter_mut().find(|switch| switch.plan().id == id && !switch.is_leaving())
    }

    /// When something is due without an event, but opening ports.
    pub(crate) fn answers_at(&self) -> Option<Instant> {
        self.queries.due_at()
    }

    /// Operators who wait are told that this process ends.
    pub(crate) fn answer_nobody(&mut self) {
        self.queries.answer_nobody();
    }

    /// The switch of that bridge, also one that goes.
    fn switch_at(&mut self, bridge: BridgeId) -> Option<&mut Switch> {
        self.switches.iter_mut().find(|switch| switch.bridge() == bridge)
    }

    pub(crate) fn has_switches(&self) -> bool {
        !self.switches.is_empty()
    }

    /// Whether a switch goes when its ports have gone.
    pub(crate) fn is_losing_a_switch(&self) -> bool {
        self.switches.iter().any(Switch::is_leaving)
    }

    /// A bridge that no other is, the one that was free for longest.
    fn name_bridge(&mut self) -> Result<BridgeId, NetworkError> {
        self.bridges.take().map(BridgeId).ok_or(NetworkError::Bridges)
    }

    /// Makes a switch without ports, on every sidecore.
    fn make_switch(
        &mut self,
        plan: SwitchPlan,
        cores: &mut Cores,
    ) -> Result<BridgeId, NetworkError> {
        let bridge = self.name_bridge()?;
        self.switches.push(Switch::make(plan, bridge, cores));
        Ok(bridge)
    }

    /// Puts another plan in the place of the switch's of that name.
    fn set_switch_plan(&mut self, plan: &SwitchPlan) {
        if let Some(switch) = self.switch_mut(&plan.id) {
            switch.set_plan(plan);
        }
    }

    /// Before a switch has a port at home on `home`: frames can be handed over between that sidecore
    /// and those of its other ports.
    pub(crate) fn connect_homes(&self, bridge: BridgeId, home: usize, around: &mut Around<'_>) {
        let switch = self.switches.iter().find(|switch| switch.bridge() == bridge);
        let home_of = |holder: Holder| match holder {
            Holder::Nic(number) => {
                let nic = around.devices.get(number)?.nic()?;
                // One that moves may be at either.
                Some((nic.home()?, nic.going_to()))
            }
            Holder::Uplink(number) => Some((self.uplinks.get(&number)?.home(), None)),
        };
        let homes = switch.into_iter().flat_map(Switch::holders).filter_map(home_of);
        let homes = homes.flat_map(|(home, next)| [Some(home), next]).flatten();
        for other in homes.collect::<BTreeSet<usize>>() {
            around.cores.connect(home, other);
        }
    }

    /// Has a switch go when its ports have gone; its uplinks go now.
    ///
    /// # Errors
    /// There is none of that name, and whom that is to be told.
    pub(crate) fn begin_switch_removal(
        &mut self,
        id: &str,
        reply: Option<Reply>,
        around: &mut Around<'_>,
    ) -> Result<(), Option<Reply>> {
        let Some(switch) = self.switch_mut(id) else { return Err(reply) };
        switch.leave(reply);
        let bridge = switch.bridge();
        for uplink in self.uplinks_of(bridge) {
            self.remove_uplink(uplink, around);
        }
        self.drop_empty_switches(around);
        Ok(())
    }

    /// Gives a switch other limits: a new one takes over its ports, one by one, as their queues and
    /// descriptors come back. Gives the bridge that its NICs are to leave.
    ///
    /// # Errors
    /// It is not there, or there are as many bridges as there can be: it keeps its limits.
    pub(crate) fn replace_switch(
        &mut self,
        plan: &SwitchPlan,
        around: &mut Around<'_>,
    ) -> Result<BridgeId, NetworkError> {
        let gone = || NetworkError::NoSwitch(plan.id.clone());
        let old = self.switch_mut(&plan.id).ok_or_else(gone)?;
        old.leave(None);
        let bridge = old.bridge();
        // Its uplinks are other changes.
        let limits = SwitchPlan { uplinks: old.plan().uplinks.clone(), ..plan.clone() };
        match self.make_switch(limits, around.cores) {
            Ok(made) => {
                for uplink in self.uplinks_of(bridge) {
                    self.move_uplink(uplink, made, around);
                }
                // It may have had nothing that goes.
                self.drop_empty_switches(around);
                Ok(bridge)
            }
            Err(error) => {
                match self.switch_at(bridge) {
                    Some(switch) => switch.stay(),
                    None => around.turn.defects.note("switch that stays"),
                }
                Err(error)
            }
        }
    }

    /// A port has gone; its switch may have waited for that.
    fn leave_switch(&mut self, place: Place, around: &mut Around<'_>) {
        if let Some(switch) = self.switch_at(place.bridge) {
            switch.give_port(place.port);
        }
        self.drop_empty_switches(around);
    }

    fn drop_empty_switches(&mut self, around: &mut Around<'_>) {
        while let Some(at) = self.switches.iter().position(Switch::is_gone) {
            let switch = self.switches.remove(at);
            around.cores.send_all(|| Command::SetBridge(switch.bridge(), None));
            self.bridges.give_back(switch.bridge().0);
            info!(switch = switch.plan().id, "removed");
            let view = self.switch_view(&switch, around.devices);
            if let Some(reply) = switch.into_reply() {
                reply.answer(Ok(config::api::Answer::Switch(Box::new(view))));
            }
        }
    }
}

#[cfg(test)]
mod tests;
