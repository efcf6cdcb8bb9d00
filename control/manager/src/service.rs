//! How queues are served, changed while they are: share, policy, latency target, and what they
//! are counted on.
//!
//! Not here: what a plan says (`config`), and how a queue keeps to a limit (`schedule`). Called by
//! whoever has given a device another plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::plan::LimitPlan;
use config::{Change, Plan};
use schedule::{Gate, Limited, Meter, Meters, Rate};
use sidecore::{Command, Service};

use crate::defects::found;
use crate::device::Device;
use crate::devices::Devices;
use crate::kind::Kind;
use crate::sidecores::Cores;
use crate::start::policy_of;
use crate::turn::Turn;

/// What the chains of a queue are counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Requests of a disk.
    Disk,
    /// What a guest sends.
    Sent,
    /// What it receives.
    Received,
}

/// The meters of one limit, by what is counted. Disks and what NICs send have one meter of bytes; what
/// NICs receive is counted apart, or whoever sends to them would take from what they may do.
#[derive(Clone, Default)]
struct Set {
    disk: Option<Arc<Meters>>,
    sent: Option<Arc<Meters>>,
    received: Option<Arc<Meters>>,
}

/// Meters, and the limit that they were made for.
#[derive(Clone, Default)]
struct Made {
    limit: LimitPlan,
    set: Set,
}

/// What the queues of one device are counted on.
#[derive(Default)]
pub(crate) struct Metered {
    own: Made,
    group: Set,
}

/// The meters of groups, by name.
#[derive(Default)]
pub(crate) struct Groups(BTreeMap<String, Made>);

impl Flow {
    /// That of queue `index` of a device. Of a NIC, ring 2p receives and ring 2p + 1 transmits for pair
    /// p (VIRTIO 1.2, 5.1.2).
    pub(crate) fn of(kind: &Kind, index: u16) -> Flow {
        match kind {
            Kind::Disk(_) => Flow::Disk,
            Kind::Nic(_) if index.is_multiple_of(2) => Flow::Received,
            Kind::Nic(_) => Flow::Sent,
        }
    }
}

impl Set {
    fn new(limit: LimitPlan) -> Set {
        let burst_ns = u64::from(limit.burst_ms) * 1_000_000;
        let rate = |per_s: u64| Rate { per_s, burst_ns };
        let bytes = || limit.bytes.map(|bytes| Arc::new(Meter::new(rate(bytes))));
        let packets = limit.packets.map(|packets| rate(packets.into()));
        let shared = bytes();
        Set {
            disk: Meters::with_bytes(limit.iops.map(|iops| rate(iops.into())), shared.clone()),
            sent: Meters::with_bytes(packets, shared),
            received: Meters::with_bytes(packets, bytes()),
        }
    }

    fn of(&self, flow: Flow) -> Option<Arc<Meters>> {
        match flow {
            Flow::Disk => self.disk.clone(),
            Flow::Sent => self.sent.clone(),
            Flow::Received => self.received.clone(),
        }
    }
}

impl Made {
    /// Meters for `limit`: those that are there, unless they are for another. Others begin with a
    /// whole burst.
    fn follow(&mut self, limit: LimitPlan) -> Set {
        if self.limit != limit {
            *self = Made { limit, set: Set::new(limit) };
        }
        self.set.clone()
    }
}

impl Metered {
    /// A gate for a queue: `kept`, which it had when it was served last, if that counts on what it is
    /// counted on now. A driver that has its queue start anew again and again has no new burst by that,
    /// and takes no new place in its group's line, for which the others of the group would wait.
    pub(crate) fn gate(&self, flow: Flow, kept: Option<Box<Gate>>) -> Option<Box<Gate>> {
        let limited = Limited { device: self.own.set.of(flow), group: self.group.of(flow) };
        let new = Gate::new(limited)?;
        Some(kept.filter(|kept| kept.is_like(&new)).unwrap_or_else(|| Box::new(new)))
    }
}

impl Groups {
    /// Has a device counted on what its plan says. For its queues that are attached, see
    /// [`Manager::set_service`].
    pub(crate) fn meter(&mut self, device: &mut Device, plan: &Plan) {
        let group = device.facts.service.group.as_deref().and_then(|id| plan.group(id));
        let group = group.map(|group| {
            let made = self.0.entry(group.id.clone()).or_default();
            made.follow(group.limit)
        });
        device.metered.own.follow(device.facts.service.limit);
        device.metered.group = group.unwrap_or_default();
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
        let (share, policy) = (device.facts.service.share, policy_of(device.facts.service.policy));
        let (target_ns, moderate_ns) =
            (device.facts.service.target_ns(), device.facts.service.moderate_ns());
        for index in device.attached() {
            let gate = device.metered.gate(Flow::of(&device.kind, index), None);
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
                Change::Set(disk) => disk.id == id,
                // It was told before, when the groups were those of before.
                Change::SetNic(nic) => nic.id == id,
                Change::AddGroup(changed) | Change::SetGroup(changed) => {
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
            let facts = &device.facts;
            !device.is_going() && which(&facts.id, facts.service.group.as_deref())
        };
        let those = self.devices.values().filter(is_it).map(|device| device.number);
        those.collect::<Vec<u32>>().into_iter().for_each(|number| self.set(number));
    }
}

impl Groups {
    /// Lets the meters of groups go that are planned no more.
    pub(crate) fn forget(&mut self, plan: &Plan) {
        self.0.retain(|id, _| plan.group(id).is_some());
    }
}

#[cfg(test)]
mod tests {
    use schedule::{Admission, Budget, Nanos};

    use super::*;

    const WHOLE: Budget = Budget { requests: 1, bytes: 1500, nanos: u64::MAX };

    fn metered(limit: LimitPlan) -> Metered {
        let mut own = Made::default();
        own.follow(limit);
        Metered { own, group: Set::default() }
    }

    /// How many of 100 starts of a queue may send one each, all at once.
    fn starts(metered: &Metered, keeps: bool) -> usize {
        let (mut kept, mut sent) = (None, 0);
        for _ in 0..100 {
            let mut gate = metered.gate(Flow::Sent, kept.take()).expect("a limit");
            if matches!(gate.admit(WHOLE, Nanos(1_000_000_000)), Admission::Go(_)) {
                gate.charge(1, 1500, true, Nanos(1_000_000_000));
                sent += 1;
            }
            kept = Some(gate).filter(|_| keeps);
        }
        sent
    }

    #[test]
    fn a_queue_that_starts_anew_has_the_place_it_had() {
        let limit = LimitPlan { packets: Some(10), burst_ms: 400, ..LimitPlan::default() };
        let one = metered(limit);
        assert_eq!(starts(&one, true), 4);
        // Who comes next has its turn behind one place, not behind a hundred.
        let next = |metered: &Metered| {
            let mut gate = metered.gate(Flow::Sent, None).expect("a limit");
            match gate.admit(WHOLE, Nanos(1_000_000_000)) {
                Admission::Wait(until) => until.0 - 1_000_000_000,
                Admission::Go(_) => 0,
            }
        };
        assert_eq!(next(&one), 200_000_000);
        let other = metered(limit);
        starts(&other, false);
        assert!(next(&other) > 9_000_000_000, "or else this test shows nothing");
    }

    #[test]
    fn disks_and_what_is_sent_share_bytes_and_what_is_received_is_apart() {
        let limit = LimitPlan { bytes: Some(4096), burst_ms: 4, ..LimitPlan::default() };
        let metered = metered(limit);
        let goes = |flow| {
            let mut gate = metered.gate(flow, None).expect("a limit");
            let go = matches!(gate.admit(WHOLE, Nanos(0)), Admission::Go(_));
            gate.charge(1, 4096, false, Nanos(0));
            go
        };
        assert!(goes(Flow::Disk));
        assert!(!goes(Flow::Sent), "the disk has used the second's bytes");
        assert!(goes(Flow::Received));
        let limit = LimitPlan { iops: Some(7), burst_ms: 4, ..LimitPlan::default() };
        let gate = |flow| super::tests::metered(limit).gate(flow, None);
        assert!(gate(Flow::Disk).is_some());
        assert!(gate(Flow::Sent).is_none() && gate(Flow::Received).is_none());
    }
}
