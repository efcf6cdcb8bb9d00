//! The one switch of a host, as its guests may see it: since when all its sidecores know where a NIC is.

use std::collections::BTreeMap;

use config::api::Call;
use config::spec::NicSpec;

use super::host::{Daemon, Host};
use crate::core::Core;
use crate::file;

/// So many passes after something was said to it a sidecore has heard that.
pub(super) const HEARD_AFTER: u64 = 64;

/// A port that was planned so, and was not touched since each sidecore had so many passes.
#[derive(Debug)]
pub(super) struct Port {
    spec: NicSpec,
    passes: Vec<u64>,
    is_known: bool,
}

/// By NIC.
pub(super) type Ports = BTreeMap<String, Port>;

impl Host {
    /// Ports are as they were, or have been touched since.
    pub(super) fn follow_ports(&mut self) {
        if !self.newcomers.is_empty() || self.daemons.len() > 1 {
            // All queues may be taken back and given to others.
            return self.lose_ports();
        }
        let Some(lan) = &mut self.lan else { return };
        let Some(Daemon { control: Some(control), cores, .. }) = self.daemons.first() else {
            return;
        };
        let passes: Vec<u64> = cores.iter().map(|core| core.passes() + HEARD_AFTER).collect();
        let plan = control.plan();
        self.ports.retain(|id, _| plan.nic(id).is_some() || lan.disturb(file::station(id).into()));
        for nic in &plan.nics {
            let touches = |call: &Call| is_touched(call, &nic.id);
            let known = self.ports.get(&nic.id).is_some_and(|port| port.spec == nic.spec);
            if !known || self.operator.is_asked(touches) {
                lan.disturb(file::station(&nic.id).into());
                let (spec, passes) = (nic.spec.clone(), passes.clone());
                self.ports.insert(nic.id.clone(), Port { spec, passes, is_known: false });
            }
        }
    }

    /// Whatever each sidecore has heard of is known from now on.
    pub(super) fn know_ports(&mut self, now_ns: u64) {
        let Some(lan) = &mut self.lan else { return };
        let Some(Daemon { control: Some(_), cores, .. }) = self.daemons.first() else { return };
        for (id, port) in self.ports.iter_mut().filter(|(_, port)| !port.is_known) {
            let has_heard = |(core, passes): (&Core, &u64)| core.passes() >= *passes;
            if cores.iter().zip(&port.passes).all(has_heard) {
                port.is_known = true;
                lan.know(file::station(id).into(), now_ns);
            }
        }
    }

    /// Nobody knows any port, and what was on its way may come again.
    pub(super) fn lose_ports(&mut self) {
        let Some(lan) = &mut self.lan else { return };
        self.ports.clear();
        for (id, vmm) in self.vmms.iter().filter(|(id, _)| file::is_nic(id)) {
            let station = file::station(id).into();
            lan.disturb(station);
            lan.interrupted(station, vmm.tenant.oldest_frame());
        }
    }
}

/// Whether a call that is not answered may have the port of that NIC changed.
fn is_touched(call: &Call, nic: &str) -> bool {
    match call {
        Call::Reload { .. } => true,
        Call::AddNic(spec) => spec.id == nic,
        Call::RemoveNic { id, .. } | Call::ChangeNic { id, .. } | Call::SetCarrier { id, .. } => {
            id == nic
        }
        _ => false,
    }
}
