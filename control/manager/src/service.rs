//! How queues are served, changed while they are: share, policy, latency target, and what they
//! are counted on.
//!
//! Not here: what a plan says (`config`), and how a queue keeps to a limit (`schedule`). Called by
//! whoever has given a device another plan.

use std::collections::BTreeMap;

use config::{Change, Plan};
use sidecore::{Command, Service};

use crate::defects::found;
use crate::devices::Devices;
use crate::devices::device::Device;
use crate::devices::metered::Made;
use crate::devices::start::policy_of;
use crate::sidecores::Cores;
use crate::turn::Turn;

/// The meters of groups, by name.
#[derive(Default)]
pub(crate) struct Groups(BTreeMap<String, Made>);

impl Groups {
    /// Has a device counted on what its plan says. For its queues that are attached, see
    /// [`Services::set`].
    pub(crate) fn meter(&mut self, device: &mut Device, plan: &Plan) {
        let group = device.facts().service.group.as_deref().and_then(|id| plan.group(id));
        let group = group.map(|group| {
            let made = self.0.entry(group.id.clone()).or_default();
            made.follow(group.limit)
        });
        device.count_on(group);
    }
}

/// The meters of groups, and all who are counted on them.
pub(crate) struct Services<'a> {
    pub(crate) groups: &'a mut Groups,
    pub(crate) plan: &'a Plan,
    pub(crate) devices: &'a mut Devices,
    pub(crate) turn: &'a mut Turn,
    pub(crate) cores: &'a mut Cores,
}

impl Services<'_> {
    /// Has the queues of a device served as its plan says from now on, without detaching them.
    pub(crate) fn set(&mut self, number: u32) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device to serve otherwise");
        self.groups.meter(device, self.plan);
        let (share, policy) =
            (device.facts().service.share, policy_of(device.facts().service.policy));
        let (target_ns, moderate_ns) =
            (device.facts().service.target_ns(), device.facts().service.moderate_ns());
        for index in device.attached() {
            let gate = device.gate(index, None);
            let service = Service { share, policy, target_ns, moderate_ns, gate };
            let command = Command::SetService(device.key(index), service);
            device.tell(index, command, self.turn, self.cores);
        }
    }

    /// The same for all devices that a reload has changed, or whose group it has changed. All plans are
    /// in force.
    pub(crate) fn set_changed(&mut self, changes: &[Change]) {
        self.groups.forget(self.plan);
        self.set_those(|id, group| {
            changes.iter().any(|change| match change {
                // A NIC was told before, when the groups were those of before.
                Change::Set(device, _) => device.id() == id,
                Change::AddGroup(changed) | Change::SetGroup(changed, _) => {
                    group == Some(changed.id.as_str())
                }
                _ => false,
            })
        });
    }

    /// The same for all members of a group.
    pub(crate) fn set_members(&mut self, group: &str) {
        self.set_those(|_, of| of == Some(group));
    }

    fn set_those(&mut self, which: impl Fn(&str, Option<&str>) -> bool) {
        let is_it = |device: &&Device| {
            let facts = device.facts();
            !device.is_going() && which(&facts.id, facts.service.group.as_deref())
        };
        let those = self.devices.values().filter(is_it).map(|device| device.number());
        those.collect::<Vec<u32>>().into_iter().for_each(|number| self.set(number));
    }
}

impl Groups {
    /// Lets the meters of groups go that are planned no more.
    pub(crate) fn forget(&mut self, plan: &Plan) {
        self.0.retain(|id, _| plan.group(id).is_some());
    }
}
