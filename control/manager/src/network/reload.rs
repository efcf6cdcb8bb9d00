//! The part of a reload that is about switches and NICs. Called by `reload`.

use std::collections::BTreeMap;

use config::Change;
use config::api::{ApiError, ErrorKind};
use config::plan::{HostPlan, SwitchPlan, UplinkPlan};

use crate::devices::device::Device;

use super::host_ports::{Guest, HostPorts};
use super::switch_calls::SwitchCalls;
use super::{Network, NetworkError};

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
    ///
    /// # Errors
    /// It is not done, and all is as it was.
    pub(crate) fn apply(&mut self, change: &Change, hosts: &mut Hosts) -> Result<(), NotDone> {
        let (network, around) = (&mut *self.network, &mut self.around);
        match change {
            Change::RemoveUplink { switch, name } => {
                if let Some(uplink) = network.uplink_on(switch, name) {
                    network.remove_uplink(uplink, around);
                }
            }
            Change::RemoveSwitch { id } => self.begin_removal(id, None),
            Change::SetSwitch(plan, _) => {
                let left = network
                    .replace_switch(plan, around)
                    .map_err(|why| NotDone::SetSwitch { switch: plan.id.clone(), why })?;
                self.have_nics_follow(left);
            }
            Change::SetUplink { switch, uplink, .. } => {
                let number = network.uplink_on(switch, uplink.name()).ok_or_else(|| {
                    let (switch, name) = (switch.clone(), uplink.name().to_string());
                    NotDone::SetUplink { switch, name }
                })?;
                network.change_uplink(number, (**uplink).clone(), around);
            }
            Change::AddSwitch(plan) => {
                let opened = plan.uplinks.iter().map(|uplink| hosts.take(&uplink.host)).collect();
                let served = network.serve_switch((**plan).clone(), opened, around);
                served.map_err(|why| NotDone::AddSwitch { switch: plan.id.clone(), why })?;
                self.plan.switches.push((**plan).clone());
            }
            Change::AddUplink { switch, uplink } => {
                let opened = hosts.take(&uplink.host);
                let added = network.add_uplink_to(switch, (**uplink).clone(), opened, around);
                added.map_err(|why| {
                    let (switch, name) = (switch.clone(), uplink.name().to_string());
                    NotDone::AddUplink { switch, name, why }
                })?;
            }
            // NICs are opened before; disks are not of this part.
            Change::Remove { .. }
            | Change::Set(..)
            | Change::SetRights { .. }
            | Change::SetApiRights(_)
            | Change::Listen { .. }
            | Change::AddGroup(_)
            | Change::SetGroup(..)
            | Change::RemoveGroup { .. }
            | Change::Resize { .. }
            | Change::OwnSize { .. }
            | Change::SetClients { .. }
            | Change::Add(_) => {}
        }
        Ok(())
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

/// Change that was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDone {
    /// Switch that is not made.
    #[error("switch {switch:?} cannot be served: {why}")]
    AddSwitch { switch: String, why: NetworkError },
    /// Switch that keeps its limits.
    #[error("switch {switch:?} keeps its limits: {why}")]
    SetSwitch { switch: String, why: NetworkError },
    /// Uplink that is not made.
    #[error("uplink {name} of switch {switch:?} cannot be served: {why}")]
    AddUplink { switch: String, name: String, why: NetworkError },
    /// Uplink that is served as before.
    #[error("uplink {name} of switch {switch:?} is served as before: its switch does not have it")]
    SetUplink { switch: String, name: String },
}

impl NotDone {
    /// Has the switches that are `wanted` say what is there, as those `before` did: the next reload finds the change again.
    pub(crate) fn plan_as_before(&self, before: &[SwitchPlan], wanted: &mut Vec<SwitchPlan>) {
        let (NotDone::AddSwitch { switch, .. }
        | NotDone::SetSwitch { switch, .. }
        | NotDone::AddUplink { switch, .. }
        | NotDone::SetUplink { switch, .. }) = self;
        let old = before.iter().find(|old| old.id == *switch);
        let mine = wanted.iter_mut().filter(|mine| mine.id == *switch);
        match self {
            NotDone::AddSwitch { .. } => wanted.retain(|mine| mine.id != *switch),
            NotDone::SetSwitch { .. } => {
                mine.zip(old).for_each(|(mine, old)| mine.keep_limits(old));
            }
            NotDone::AddUplink { name, .. } => {
                mine.for_each(|mine| mine.uplinks.retain(|uplink| uplink.name() != name));
            }
            NotDone::SetUplink { name, .. } => {
                let uplinks = mine.flat_map(|mine| &mut mine.uplinks);
                let its = uplinks.filter(|uplink| uplink.name() == name);
                let old = old.and_then(|old| old.uplink(name));
                its.zip(old).for_each(|(mine, old)| mine.clone_from(old));
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
        Change::Remove { .. }
        | Change::Set(..)
        | Change::SetRights { .. }
        | Change::SetApiRights(_)
        | Change::Listen { .. }
        | Change::AddGroup(_)
        | Change::SetGroup(..)
        | Change::RemoveGroup { .. }
        | Change::Resize { .. }
        | Change::OwnSize { .. }
        | Change::SetClients { .. }
        | Change::RemoveUplink { .. }
        | Change::RemoveSwitch { .. }
        | Change::SetSwitch(..)
        | Change::SetUplink { .. } => Vec::new(),
    }
}
