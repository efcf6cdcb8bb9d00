//! NICs and switches as operators are shown them. Disks and sidecores: `views`.

use config::api::{
    AccessView, DropView, HeldView, MacView, NicQueueView, NicState, NicView, PortCountersView,
    PortKind, PortView, SwitchView, VlanView,
};
use config::plan::{HostPlan, NicPlan};
use config::spec::{LinkState, Via};
use sidecore::{PortCounters, QueueSnapshot};

use crate::device::Device;
use crate::manager::Manager;
use crate::network::nic::NicParts;
use crate::network::uplinks::{State, Uplink};
use crate::network::{Holder, Switch};
use crate::opening::shut::Shut;
use crate::queue::Queue;
use crate::views;

impl Manager {
    /// One NIC; with its queues or without.
    pub(crate) fn nic_view(&self, device: &Device, parts: &NicParts, queues: bool) -> NicView {
        let port = parts.plug().and_then(|plug| plug.uplink);
        let uplink = port.and_then(|port| self.rooms.network.uplinks.get(&port));
        let problem = views::problem_of(device, self.rooms.turn.now())
            .or_else(|| self.rooms.remote.nic_waits_for(port?, self.rooms.turn.now()))
            .or_else(|| uplink.and_then(|uplink| Some(uplink.problem()?.to_string())));
        let is_bad = |queue: &Queue| queue.violation().is_some() || queue.problem().is_some();
        let is_cut = uplink.is_some_and(|uplink| !uplink.is_attached());
        let runs = !device.attached().is_empty();
        let state = match device.connections.is_empty() {
            _ if device.queues.iter().any(is_bad) || is_cut => NicState::Failed,
            _ if runs => NicState::Running,
            _ if device.problem.is_some() => NicState::Failed,
            false => NicState::Connected,
            true => NicState::Waiting,
        };
        NicView {
            state,
            problem: problem.filter(|text| !text.is_empty()),
            link: parts.link(),
            queues_attached: device.attached().len() as u16,
            sidecore: parts.plug().map(|plug| plug.place.home as u16),
            by_hand: parts.plug().is_some_and(|plug| plug.by_hand),
            held: held(device),
            run_state: self.rooms.guests.run_state_view(
                device,
                parts,
                queues.then(|| self.rooms.turn.now()),
            ),
            counters: counters(&parts.counters),
            host: uplink.map(|uplink| counters(&uplink.counters)),
            queues: match queues {
                true => queue_views(device),
                false => Vec::new(),
            },
            ..of_plan(&parts.plan)
        }
    }

    /// One switch, without its table of addresses.
    pub(crate) fn switch_view(&self, switch: &Switch) -> SwitchView {
        let ports = switch.ports.values().map(|holder| self.port_view(holder));
        let mut ports: Vec<PortView> = ports.flatten().collect();
        // Uplinks, then NICs, each in the order they came.
        ports.sort_by_key(|port| port.kind == PortKind::Nic);
        let problem = ports.iter().find_map(|port| {
            port.problem.as_ref().map(|problem| format!("uplink {}: {problem}", port.name))
        });
        SwitchView {
            id: switch.plan.id.clone(),
            declared: switch.plan.origin.to_string(),
            problem,
            ageing_s: switch.plan.ageing_s,
            macs_max: switch.plan.macs_max,
            ports,
            macs: None,
        }
    }

    fn port_view(&self, holder: &Holder) -> Option<PortView> {
        match holder {
            Holder::Uplink(number) => self.rooms.network.uplinks.get(number).map(uplink_view),
            Holder::Nic(number) => {
                let device = self.rooms.devices.get(*number)?;
                let nic = device.kind.nic()?;
                Some(PortView {
                    name: device.facts.id.clone(),
                    kind: PortKind::Nic,
                    link: nic.link(),
                    problem: None,
                    vlans: VlanView::from(&nic.plan.vlan),
                    sidecore: nic.plug().map(|plug| plug.place.home as u16),
                    served_as: None,
                    counters: counters(&nic.counters),
                })
            }
        }
    }

    /// The name of what is at a port of a switch.
    pub(crate) fn port_name(&self, switch: &Switch, port: u16) -> Option<String> {
        Some(match switch.ports.get(&port)? {
            Holder::Nic(number) => self.rooms.devices.get(*number)?.facts.id.clone(),
            Holder::Uplink(number) => {
                self.rooms.network.uplinks.get(number)?.plan.name().to_string()
            }
        })
    }
}

/// One address of a switch.
pub(crate) fn mac(mac: [u8; 6], vlan: u16, port: String, age_ns: u64) -> MacView {
    let [a, b, c, d, e, f] = mac;
    MacView {
        mac: format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
        vlan: (vlan != 0).then_some(vlan),
        port,
        age_s: age_ns / 1_000_000_000,
    }
}

/// A NIC that is not open.
pub(crate) fn shut_nic(shut: &Shut, plan: &NicPlan) -> NicView {
    let (state, problem) = match shut.is_waiting() {
        true => (NicState::Waiting, shut.problem().to_string()),
        false => {
            let text = format!("{}; when that is right, `sidecore reload`", shut.problem());
            (NicState::Failed, text)
        }
    };
    NicView { state, problem: Some(problem), ..of_plan(plan) }
}

fn uplink_view(uplink: &Uplink) -> PortView {
    let (link, served_as) = match &uplink.state {
        State::Open(lent) => (LinkState::Up, Some(lent.served_as.to_string())),
        State::Shut { .. } | State::Kept(_) => (LinkState::Down, None),
    };
    PortView {
        name: uplink.plan.name().to_string(),
        kind: match uplink.plan.host {
            HostPlan::Tap { .. } => PortKind::Tap,
            HostPlan::Interface { .. } | HostPlan::Null(_) => PortKind::Interface,
            HostPlan::Lent { .. } | HostPlan::Remote { .. } => PortKind::Remote,
        },
        link,
        problem: uplink.problem().filter(|text| !text.is_empty()).map(str::to_string),
        vlans: VlanView::from(&uplink.plan.vlan),
        sidecore: Some(uplink.place.home as u16),
        served_as,
        counters: counters(&uplink.counters),
    }
}

fn of_plan(plan: &NicPlan) -> NicView {
    let (mut tap, mut interface, mut via, mut null) = (None, None, None::<Via>, None);
    let (mut by_link, mut remote) = (None, None);
    match plan.host() {
        Some(HostPlan::Tap { name }) => tap = Some(name.clone()),
        Some(HostPlan::Interface { name, via: how }) => {
            (interface, via) = (Some(name.clone()), Some(*how));
        }
        Some(HostPlan::Null(kind)) => null = Some(kind.kind()),
        Some(HostPlan::Remote { link, name }) => {
            (by_link, remote) = (Some(link.clone()), Some(name.clone()));
        }
        Some(HostPlan::Lent { .. }) | None => {}
    }
    NicView {
        id: plan.id.clone(),
        declared: plan.origin.to_string(),
        state: NicState::Waiting,
        problem: None,
        link: plan.link,
        mac: plan.mac,
        switch: plan.switch().map(str::to_string),
        tap,
        interface,
        via,
        by_link,
        remote,
        null,
        vlans: VlanView::from(&plan.vlan),
        macs_max: plan.macs_max,
        spoof: plan.spoof,
        mtu: plan.mtu,
        access: AccessView::new(&plan.socket, plan.mode, &plan.rights),
        guest_offloads: plan.guest_offloads,
        queues_max: plan.queues,
        queues_attached: 0,
        service: (&plan.service).into(),
        allow_unsealed_memory: plan.allow_unsealed_memory,
        sidecore: None,
        by_hand: false,
        held: HeldView::default(),
        run_state: None,
        counters: PortCountersView::default(),
        host: None,
        queues: Vec::new(),
    }
}

/// What its transmit queues waited for limits.
fn held(device: &Device) -> HeldView {
    let snapshots: Vec<QueueSnapshot> =
        device.queues.iter().map(|queue| queue.counters().snapshot()).collect();
    views::held(&snapshots)
}

fn queue_views(device: &Device) -> Vec<NicQueueView> {
    let known = device.queues.iter().enumerate().filter(|(_, queue)| queue.size() > 0);
    let view = |(index, queue): (usize, &Queue)| {
        let snapshot = queue.counters().snapshot();
        NicQueueView {
            index: index as u16,
            sidecore: queue.place().map(|place| place.core as u16),
            busy_percent: views::busy_percent(queue),
            size: queue.size(),
            format: views::format(queue.format()).to_string(),
            violation: queue.violation().map(str::to_string),
            kicks: snapshot.kicks,
            calls: snapshot.calls,
            visits: snapshot.visits,
            missed: snapshot.missed,
            held: views::held(std::slice::from_ref(&snapshot)),
        }
    };
    known.map(view).collect()
}

fn counters(counters: &PortCounters) -> PortCountersView {
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
