//! The part of a reload that is about switches and NICs. Called by `reload`.

use std::collections::BTreeMap;

use config::Change;
use config::api::{ApiError, ErrorKind};
use config::plan::{HostPlan, UplinkPlan};
use tracing::warn;

use crate::devices::device::Device;

use super::Network;
use super::host_ports::{Guest, HostPorts};
use super::switch_calls::SwitchCalls;

/// What was opened for uplinks and wires that are about to be made, by interface.
#[derive(Default)]
pub(crate) struct Hosts(BTreeMap<String, (HostPlan, HostPorts)>);

impl Hosts {
    /// Opens the interfaces that changes ask for, but for those that others have until they are
    /// removed: these are opened when they are free.
    ///
    /// # Errors
    /// The first that cannot be opened; nothing is left open.
    pub(crate) fn open(changes: &[Change], network: &Network) -> Result<Hosts, ApiError> {
        let mut hosts = Hosts::default();
        for Wanted { guest, host, whose } in changes.iter().flat_map(wanted) {
            let Some(name) = host.interface() else { continue };
            // What is open on it now says that it can be, unless it is to be opened otherwise.
            if network.uplinks().any(|uplink| uplink.plan().host == host) {
                continue;
            }
            match network.open_host(&host, guest) {
                Ok(port) => drop(hosts.0.insert(name.to_string(), (host, port))),
                Err(why) => {
                    hosts.give_back(network);
                    let hint = "put that right and reload again; nothing was changed";
                    return Err(ApiError::new(ErrorKind::Refused, format!("{whose}: {why}"), hint));
                }
            }
        }
        Ok(hosts)
    }

    fn take(&mut self, host: &HostPlan) -> Option<HostPorts> {
        self.0.remove(host.interface()?).map(|(_, port)| port)
    }

    /// Gives a NIC what was opened for its wire.
    pub(crate) fn wire(&mut self, device: &mut Device) {
        if let Some(nic) = device.nic_mut()
            && let Some(host) = nic.plan().host()
        {
            let opened = self.take(host);
            nic.bring(opened);
        }
    }

    /// Closes what was opened and is not used.
    pub(crate) fn give_back(self, network: &Network) {
        for (host, port) in self.0.into_values() {
            network.take_away(&host, port);
        }
    }
}

impl SwitchCalls<'_> {
    /// Does what a change says of switches and their uplinks, with what was opened for that; nothing, if it is about
    /// something else.
    pub(crate) fn apply(&mut self, change: &Change, hosts: &mut Hosts) {
        let (network, around) = (&mut *self.network, &mut self.around);
        match change {
            Change::RemoveUplink { switch, name } => {
                if let Some(uplink) = network.uplink_on(switch, name) {
                    network.remove_uplink(uplink, around);
                }
            }
            Change::RemoveSwitch { id } => self.begin_removal(id, None),
            Change::SetSwitch(plan) => {
                if let Some(left) = network.replace_switch(plan, around) {
                    self.have_nics_follow(left);
                }
            }
            Change::SetUplink { switch, uplink } => {
                if let Some(number) = network.uplink_on(switch, uplink.name()) {
                    network.change_uplink(number, (**uplink).clone(), around);
                }
            }
            Change::AddSwitch(plan) => {
                let opened = plan.uplinks.iter().map(|uplink| hosts.take(&uplink.host)).collect();
                self.plan.switches.push((**plan).clone());
                if let Err(error) = network.serve_switch((**plan).clone(), opened, around) {
                    warn!(switch = plan.id, "cannot be served: {error}");
                }
            }
            Change::AddUplink { switch, uplink } => {
                let opened = hosts.take(&uplink.host);
                network.add_uplink_to(switch, (**uplink).clone(), opened, around);
            }
            // NICs are opened before; disks are not of this part.
            _ => {}
        }
    }

    /// Has the NICs of a bridge go to the switch that has its switch's name now, when their queues are back.
    fn have_nics_follow(&mut self, left: sidecore::BridgeId) {
        for device in self.around.devices.values_mut().filter(|device| !device.is_going()) {
            let Some(nic) = device.nic_mut() else { continue };
            if nic.at().is_some_and(|at| at.way.place.bridge == left) {
                nic.follow_switch();
                device.restart();
                self.around.turn.touch(device.number());
            }
        }
    }
}

/// What a change needs of the host.
pub(crate) struct Wanted {
    /// At the other end of a wire.
    guest: Option<Guest>,
    pub(crate) host: HostPlan,
    /// For whom, in words.
    pub(crate) whose: String,
}

/// All that a change needs of the host.
pub(crate) fn wanted(change: &Change) -> Vec<Wanted> {
    match change {
        Change::Add(device) => {
            let nic = device.nic().and_then(|nic| Some((nic, nic.host()?.clone())));
            let wanted = nic.map(|(nic, host)| {
                let whose = format!("{} ({})", device.name(), device.origin());
                Wanted { guest: Some(Guest::from(nic)), host, whose }
            });
            wanted.into_iter().collect()
        }
        Change::AddSwitch(switch) => {
            let whose = format!("switch {:?} ({})", switch.id, switch.origin);
            let host = |uplink: &UplinkPlan| uplink.host.clone();
            let hosts = switch.uplinks.iter().map(host);
            hosts.map(|host| Wanted { guest: None, host, whose: whose.clone() }).collect()
        }
        Change::AddUplink { switch, uplink } => {
            let (host, whose) = (uplink.host.clone(), format!("switch {switch:?}"));
            vec![Wanted { guest: None, host, whose }]
        }
        _ => Vec::new(),
    }
}
