//! NICs as operators are shown them. Switches: `network::views`; disks and sidecores: `views`.

use std::time::Instant;

use config::Plan;
use config::api::{
    AccessView, Answer, HeldView, NicList, NicQueueView, NicState, NicView, PortCountersView,
    VlanView,
};
use config::plan::{HostPlan, NicPlan};
use config::spec::{Carrier, Via};
use sidecore::QueueSnapshot;

use crate::calls::Answered;
use crate::devices::Devices;
use crate::devices::device::Device;
use crate::devices::queue::Queue;
use crate::guests::Guests;
use crate::opening::shut::{Shut, ShutDevices};
use crate::problems::together;
use crate::remote::Remote;
use crate::views;

use super::Network;
use super::nic::NicParts;
use super::uplink::Uplink;
use super::views::counters;

/// What is looked at to show a NIC.
pub(crate) struct NicViews<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) devices: &'a Devices,
    pub(crate) shut: &'a ShutDevices,
    pub(crate) network: &'a Network,
    pub(crate) guests: &'a Guests,
    pub(crate) remote: &'a Remote,
    pub(crate) now: Instant,
}

impl NicViews<'_> {
    /// Those of the plan.
    pub(crate) fn list(&self) -> Answer {
        let view = |plan: &NicPlan| self.view_of(&plan.id, false);
        Answer::Nics(NicList { nics: self.plan.nics.iter().filter_map(view).collect() })
    }

    /// The one of that name; with its queues or without.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn show(&self, id: &str, queues: bool) -> Answered {
        let view = self.view_of(id, queues).ok_or_else(|| self.plan.no_such_nic(id))?;
        Ok(Answer::Nic(Box::new(view)))
    }

    fn view_of(&self, id: &str, queues: bool) -> Option<NicView> {
        if let Some(device) = self.devices.number_of(id).and_then(|number| self.devices.get(number))
        {
            return device.nic().map(|parts| self.view(device, parts, queues));
        }
        let shut = self.shut.named(id)?;
        shut.plan().nic().map(|plan| shut_nic(shut, plan))
    }

    /// One that is open.
    pub(crate) fn view(&self, device: &Device, parts: &NicParts, queues: bool) -> NicView {
        let port = parts.uplink();
        let uplink = port.and_then(|port| self.network.uplink(port));
        let hindered = port.and_then(|port| self.remote.nic_hindered(port, self.now));
        let is_lost = hindered.is_some() && !device.attached().is_empty();
        let silent = uplink.and_then(Uplink::silent_because);
        let is_cut = uplink.is_some_and(|uplink| !uplink.is_attached());
        let is_silent = silent.is_some() || is_cut;
        let carrier = if is_silent { Carrier::Down } else { parts.carrier() };
        let problem = together([
            hindered,
            views::problem_of(device, self.now),
            silent.map(|why| format!("{why}; its guest sees a carrier all the same")),
            uplink.and_then(Uplink::problem),
        ]);
        let runs = !device.attached().is_empty();
        let state = match device.has_no_front_end() {
            _ if device.queues().iter().any(Queue::is_bad) || is_cut || is_lost => NicState::Failed,
            _ if runs => NicState::Running,
            _ if device.problem().is_some() => NicState::Failed,
            false => NicState::Connected,
            true => NicState::Waiting,
        };
        NicView {
            state,
            problem,
            link: carrier,
            queues_attached: device.attached().len() as u16,
            sidecore: parts.home().map(|home| home as u16),
            by_hand: parts.at().is_some_and(|at| at.by_hand),
            held: held(device),
            run_state: self.guests.run_state_view(device, parts, queues.then_some(self.now)),
            counters: counters(parts.counters()),
            host: uplink.map(|uplink| counters(uplink.counters())),
            queues: match queues {
                true => queue_views(device),
                false => Vec::new(),
            },
            ..of_plan(parts.plan())
        }
    }
}

/// A NIC that is not open.
fn shut_nic(shut: &Shut, plan: &NicPlan) -> NicView {
    let state = if shut.is_waiting() { NicState::Waiting } else { NicState::Failed };
    NicView { state, problem: Some(shut.told()), link: Carrier::Down, ..of_plan(plan) }
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
        link: plan.carrier,
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
        queue_pairs_max: plan.queues,
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
        device.queues().iter().map(|queue| queue.counters().snapshot()).collect();
    views::held(&snapshots)
}

fn queue_views(device: &Device) -> Vec<NicQueueView> {
    let known = device.queues().iter().enumerate().filter(|(_, queue)| queue.size() > 0);
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
