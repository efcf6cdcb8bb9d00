//! How queues are served, changed while they are: share, policy, latency target, and what they
//! are counted on.
//!
//! Not here: what a plan says (`config`), and how a queue keeps to a limit (`schedule`). Called by
//! whoever has given a device another plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::Change;
use config::plan::LimitPlan;
use schedule::{Gate, Limited, Meters, Rate};
use sidecore::{Command, QueueKey, Service};

use crate::manager::Manager;
use crate::start::policy_of;

/// Meters, and the limit that they were made for.
#[derive(Clone, Default)]
struct Made {
    limit: LimitPlan,
    meters: Option<Arc<Meters>>,
}

/// What the queues of one device are counted on.
#[derive(Default)]
pub(crate) struct Metered {
    own: Made,
    pub(crate) limited: Limited,
}

/// The meters of groups, by name.
#[derive(Default)]
pub(crate) struct Groups(BTreeMap<String, Made>);

impl Made {
    /// Meters for `limit`: those that are there, unless they are for another. Others begin with a
    /// whole burst.
    fn follow(&mut self, limit: LimitPlan) -> Option<Arc<Meters>> {
        if self.limit != limit {
            let burst_ns = u64::from(limit.burst_ms) * 1_000_000;
            let rate = |per_s: u64| Rate { per_s, burst_ns };
            let (requests, bytes) =
                (limit.iops.map(|iops| rate(iops.into())), limit.bytes.map(rate));
            *self = Made { limit, meters: Meters::new(requests, bytes) };
        }
        self.meters.clone()
    }
}

impl Manager {
    /// Has a device counted on what its plan says. For its queues that are attached, see
    /// [`Self::set_service`].
    pub(crate) fn meter(&mut self, number: u32) {
        let Some(device) = self.devices.get_mut(&number) else { return };
        let of_plan = |id: &str| self.plan.groups.iter().find(|group| group.id == id);
        let group = device.facts.group.as_deref().and_then(of_plan);
        let group = group.and_then(|group| {
            let made = self.groups.0.entry(group.id.clone()).or_default();
            made.follow(group.limit)
        });
        let own = device.metered.own.follow(device.facts.limit);
        device.metered.limited = Limited { device: own, group };
    }

    /// Has the queues of a device served as its plan says from now on, without detaching them.
    pub(crate) fn set_service(&mut self, number: u32) {
        self.meter(number);
        let Some(device) = self.devices.get(&number) else { return };
        let (share, policy) = (device.facts.share, policy_of(device.facts.policy));
        let (target_ns, moderate_ns) = (device.facts.target_ns(), device.facts.moderate_ns());
        let limited = device.metered.limited.clone();
        let queues: Vec<(u16, QueueKey)> =
            device.attached().into_iter().map(|index| (index, device.key(index))).collect();
        for (index, key) in queues {
            let gate = Gate::new(limited.clone()).map(Box::new);
            let service = Service { share, policy, target_ns, moderate_ns, gate };
            self.tell(number, index, Command::SetService(key, service));
        }
    }

    /// The same for all disks that a reload has changed, or whose group it has changed. All plans are in
    /// force.
    pub(crate) fn set_services(&mut self, changes: &[Change]) {
        let is_there = |id: &String| self.plan.groups.iter().any(|group| group.id == *id);
        self.groups.0.retain(|id, _| is_there(id));
        let is_changed = |id: &str, group: Option<&str>| {
            changes.iter().any(|change| match change {
                Change::Set { id: disk, .. } => disk == id,
                Change::SetGroup(changed) => group == Some(changed.id.as_str()),
                _ => false,
            })
        };
        let devices = self.devices.values().filter(|device| {
            let facts = &device.facts;
            !device.removing && is_changed(&facts.id, facts.group.as_deref())
        });
        let numbers: Vec<u32> = devices.map(|device| device.number).collect();
        numbers.into_iter().for_each(|number| self.set_service(number));
    }
}
