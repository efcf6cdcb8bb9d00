//! The part of a reload that is about switches and NICs. Called by `reload`.

use std::collections::BTreeMap;

use config::Change;
use config::api::{ApiError, ErrorKind};
use config::plan::{HostPlan, SwitchPlan};
use tracing::warn;

use crate::device::Device;
use crate::kind::Kind;
use crate::manager::Manager;
use crate::network::host_ports::{Guest, HostPorts};
use crate::network::nic::NicParts;

/// What was opened for uplinks and wires that are about to be made, by interface.
#[derive(Default)]
pub(crate) struct Hosts(BTreeMap<String, (HostPlan, HostPorts)>);

impl Hosts {
    fn take(&mut self, host: &HostPlan) -> Option<HostPorts> {
        self.0.remove(host.interface()?).map(|(_, port)| port)
    }

    /// Gives a NIC what was opened for its wire.
    pub(crate) fn wire(&mut self, device: &mut Device) {
        if let Kind::Nic(nic) = &mut device.kind
            && let Some(host) = nic.plan.host()
        {
            nic.opened = self.take(host);
        }
    }
}

impl Manager {
    /// Closes what was opened and is not used.
    pub(crate) fn give_back(&self, hosts: Hosts) {
        for (host, port) in hosts.0.into_values() {
            port.take_away(&host, &self.rooms.taps);
        }
    }

    /// Opens the interfaces that changes ask for, but for those that others have until they are
    /// removed: these are opened when they are free.
    ///
    /// # Errors
    /// The first that cannot be opened; nothing is left open.
    pub(crate) fn open_hosts(&self, changes: &[Change]) -> Result<Hosts, ApiError> {
        let mut hosts = Hosts::default();
        for (guest, host, whose) in changes.iter().flat_map(wanted) {
            let Some(name) = host.interface() else { continue };
            // What is open on it now says that it can be, unless it is to be opened otherwise.
            let mut uplinks = self.rooms.network.uplinks.values();
            if uplinks.any(|up| up.plan.host == host) {
                continue;
            }
            match HostPorts::open(&host, guest, &self.rooms.taps) {
                Ok(port) => drop(hosts.0.insert(name.to_string(), (host, port))),
                Err(why) => {
                    self.give_back(hosts);
                    let hint = "put that right and reload again; nothing was changed";
                    return Err(ApiError::new(ErrorKind::Refused, format!("{whose}: {why}"), hint));
                }
            }
        }
        Ok(hosts)
    }

    pub(crate) fn apply_net_change(&mut self, change: &Change, hosts: &mut Hosts) {
        match change {
            Change::RemoveNic { id } => match self.rooms.devices.number_of(id) {
                Some(number) => self.begin_removal(number, None),
                None => self.drop_shut(id),
            },
            Change::RemoveUplink { switch, name } => {
                if let Some(uplink) = self.uplink_on(switch, name) {
                    self.remove_uplink(uplink);
                }
            }
            Change::RemoveSwitch { id } => self.begin_switch_removal(id, None),
            Change::SetSwitch(plan) => self.replace_switch(plan),
            Change::SetUplink { switch, uplink } => {
                if let Some(number) = self.uplink_on(switch, uplink.name()) {
                    self.change_uplink(number, (**uplink).clone());
                }
            }
            Change::SetNic(plan) => {
                if let Some(before) = self.rooms.plan.nic(&plan.id).cloned() {
                    self.set_nic_plan((**plan).clone());
                    self.apply_nic(&before, plan);
                }
            }
            Change::AddSwitch(plan) => {
                let opened = plan.uplinks.iter().map(|uplink| hosts.take(&uplink.host)).collect();
                self.rooms.plan.switches.push((**plan).clone());
                if let Err(error) = self.serve_switch((**plan).clone(), opened) {
                    warn!(switch = plan.id, "cannot be served: {error}");
                }
            }
            Change::AddUplink { switch, uplink } => {
                let opened = hosts.take(&uplink.host);
                self.add_uplink_to(switch, (**uplink).clone(), opened);
            }
            // NICs are opened before; disks are not of this part.
            _ => {}
        }
    }

    /// Gives a switch other limits: a new one takes over its ports, one by one, as their queues and
    /// descriptors come back.
    fn replace_switch(&mut self, plan: &SwitchPlan) {
        let Some(old) = self.rooms.network.switch_mut(&plan.id) else {
            // The reload that added it said so.
            return warn!(switch = plan.id, "keeps its limits: it is not served");
        };
        old.leaving = Some(None);
        let bridge = old.bridge;
        let mut limits = plan.clone();
        // Its uplinks are other changes.
        limits.uplinks.clone_from(&old.plan.uplinks);
        let made = match self.make_switch(&limits) {
            Ok(made) => made,
            Err(error) => {
                if let Some(old) =
                    self.rooms.network.switches.iter_mut().find(|s| s.bridge == bridge)
                {
                    old.leaving = None;
                }
                return warn!(switch = plan.id, "keeps its limits: {error}");
            }
        };
        for uplink in self.rooms.network.uplinks_of(bridge) {
            self.move_uplink(uplink, made);
        }
        let on_it = |device: &Device| {
            let plug = device.kind.nic().and_then(NicParts::plug);
            plug.is_some_and(|plug| plug.place.bridge == bridge)
        };
        let nics = self.rooms.devices.values().filter(|device| on_it(device) && !device.is_going());
        for number in nics.map(|device| device.number).collect::<Vec<_>>() {
            if let Some(nic) = self.rooms.devices.nic_mut(number) {
                nic.moving = true;
            }
            self.restart(number);
        }
    }
}

/// What a change needs of the host: for which guest, the interface, and in words for whom.
fn wanted(change: &Change) -> Vec<(Option<Guest>, HostPlan, String)> {
    match change {
        Change::AddNic(nic) => {
            let whose = format!("nic {:?} ({})", nic.id, nic.origin);
            let guest = Some(Guest::from(&**nic));
            nic.host().map(|host| (guest, host.clone(), whose)).into_iter().collect()
        }
        Change::AddSwitch(switch) => {
            let whose = format!("switch {:?} ({})", switch.id, switch.origin);
            let uplinks = switch.uplinks.iter();
            uplinks.map(|uplink| (None, uplink.host.clone(), whose.clone())).collect()
        }
        Change::AddUplink { switch, uplink } => {
            vec![(None, uplink.host.clone(), format!("switch {switch:?}"))]
        }
        _ => Vec::new(),
    }
}
