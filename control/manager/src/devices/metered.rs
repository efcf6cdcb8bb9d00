//! What the queues of one device are counted on: its own limit and its group's.
//!
//! Not here: how a queue keeps to a limit (`schedule`), and who is counted on what (`service`).

use std::sync::Arc;

use config::plan::LimitPlan;
use schedule::{Gate, Limited, Meter, Meters, Rate};

use crate::devices::kind::Kind;

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
pub(crate) struct Set {
    disk: Option<Arc<Meters>>,
    sent: Option<Arc<Meters>>,
    received: Option<Arc<Meters>>,
}

/// Meters, and the limit that they were made for.
#[derive(Clone, Default)]
pub(crate) struct Made {
    limit: LimitPlan,
    set: Set,
}

/// What the queues of one device are counted on.
#[derive(Default)]
pub(crate) struct Metered {
    own: Made,
    group: Set,
}

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
    pub(crate) fn follow(&mut self, limit: LimitPlan) -> Set {
        if self.limit != limit {
            *self = Made { limit, set: Set::new(limit) };
        }
        self.set.clone()
    }
}

impl Metered {
    /// Its device is counted on that limit from now on, and on that group's.
    pub(crate) fn follow(&mut self, limit: LimitPlan, group: Option<Set>) {
        self.own.follow(limit);
        self.group = group.unwrap_or_default();
    }

    /// A gate for a queue: `kept`, which it had when it was served last, if that counts on what it is
    /// counted on now. A driver that has its queue start anew again and again has no new burst by that,
    /// and takes no new place in its group's line, for which the others of the group would wait.
    pub(crate) fn gate(&self, flow: Flow, kept: Option<Box<Gate>>) -> Option<Box<Gate>> {
        let limited = Limited { device: self.own.set.of(flow), group: self.group.of(flow) };
        let new = Gate::new(limited)?;
        Some(kept.filter(|kept| kept.is_like(&new)).unwrap_or_else(|| Box::new(new)))
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
