//! Switches and their ports as operators are shown them. NICs: `nic_views`.

use config::api::{
    Answer, DropView, MacView, PortCountersView, PortKind, PortView, SwitchList, SwitchView,
    VlanView,
};
use config::plan::{HostPlan, SwitchPlan};
use config::spec::Carrier;
use sidecore::{BridgeId, PortCounters};

use crate::devices::Devices;
use crate::problems::together;

use super::Network;
use super::mac_queries::Heard;
use super::switches::{Holder, Switch};
use super::uplink::Uplink;

impl Network {
    /// Those of the plan.
    pub(crate) fn list_switches(&self, plans: &[SwitchPlan], devices: &Devices) -> Answer {
        let view = |plan: &SwitchPlan| self.view(&plan.id, devices);
        Answer::Switches(SwitchList { switches: plans.iter().filter_map(view).collect() })
    }

    /// The switch of that name, without its table of addresses.
    pub(super) fn view(&self, id: &str, devices: &Devices) -> Option<SwitchView> {
        self.switch(id).map(|switch| self.switch_view(switch, devices))
    }

    pub(super) fn switch_view(&self, switch: &Switch, devices: &Devices) -> SwitchView {
        let ports = switch.holders().filter_map(|holder| self.port_view(holder, devices));
        let mut ports: Vec<PortView> = ports.collect();
        // Uplinks, then NICs, each in the order they came.
        ports.sort_by_key(|port| port.kind == PortKind::Nic);
        let problem = together(ports.iter().map(|port| {
            port.problem.as_ref().map(|problem| format!("uplink {}: {problem}", port.name))
        }));
        let plan = switch.plan();
        SwitchView {
            id: plan.id.clone(),
            declared: plan.origin.to_string(),
            problem,
            ageing_s: plan.ageing_s,
            macs_max: plan.macs_max,
            ports,
            macs: None,
        }
    }

    fn port_view(&self, holder: Holder, devices: &Devices) -> Option<PortView> {
        match holder {
            Holder::Uplink(number) => self.uplink(number).map(uplink_view),
            Holder::Nic(number) => {
                let device = devices.get(number)?;
                let nic = device.nic()?;
                Some(PortView {
                    name: device.facts().id.clone(),
                    kind: PortKind::Nic,
                    link: nic.carrier(),
                    problem: None,
                    vlans: VlanView::from(&nic.plan().vlan),
                    sidecore: nic.home().map(|home| home as u16),
                    served_as: None,
                    counters: counters(nic.counters()),
                })
            }
        }
    }

    /// The switch of that bridge, with the addresses that were heard. `None`: it is gone.
    pub(super) fn view_with_macs(
        &self,
        bridge: BridgeId,
        heard: Heard,
        devices: &Devices,
    ) -> Option<SwitchView> {
        let switch = self.switches.iter().find(|switch| switch.bridge() == bridge)?;
        let name = |port| {
            Some(match switch.holder(port)? {
                Holder::Nic(number) => devices.get(number)?.facts().id.clone(),
                Holder::Uplink(number) => self.uplink(number)?.plan().name().to_string(),
            })
        };
        let view = |((mac_, vlan), (port, age_ns))| Some(mac(mac_, vlan, name(port)?, age_ns));
        let macs = heard.into_iter().filter_map(view).collect();
        Some(SwitchView { macs: Some(macs), ..self.switch_view(switch, devices) })
    }
}

/// One address of a switch.
fn mac(mac: [u8; 6], vlan: u16, port: String, age_ns: u64) -> MacView {
    let [a, b, c, d, e, f] = mac;
    MacView {
        mac: format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
        vlan: (vlan != 0).then_some(vlan),
        port,
        age_s: age_ns / 1_000_000_000,
    }
}

fn uplink_view(uplink: &Uplink) -> PortView {
    let (served_as, silent) = (uplink.served_as(), uplink.silent_because());
    let is_up = served_as.is_some() && silent.is_none();
    PortView {
        name: uplink.plan().name().to_string(),
        kind: match uplink.plan().host {
            HostPlan::Tap { .. } => PortKind::Tap,
            HostPlan::Interface { .. } | HostPlan::Null(_) => PortKind::Interface,
            HostPlan::Lent { .. } | HostPlan::Remote { .. } => PortKind::Remote,
        },
        link: if is_up { Carrier::Up } else { Carrier::Down },
        problem: together([silent, uplink.problem()]),
        vlans: VlanView::from(&uplink.plan().vlan),
        sidecore: Some(uplink.home() as u16),
        served_as: served_as.map(str::to_string),
        counters: counters(uplink.counters()),
    }
}

pub(super) fn counters(counters: &PortCounters) -> PortCountersView {
    let snapshot = counters.snapshot();
    let drops = snapshot.drops.iter().map(|(reason, frames)| DropView {
        reason: reason.name().to_string(),
        frames,
        means: reason.sentence().to_string(),
    });
    PortCountersView {
        taken_frames: snapshot.taken_frames,
        taken_bytes: snapshot.taken_bytes,
        taken_multicast: snapshot.taken_multicast,
        delivered_frames: snapshot.delivered_frames,
        delivered_bytes: snapshot.delivered_bytes,
        delivered_multicast: snapshot.delivered_multicast,
        slow_frames: snapshot.finished,
        dropped_frames: snapshot.drops.total(),
        drops: drops.collect(),
    }
}
