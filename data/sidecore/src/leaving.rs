//! How queues leave a sidecore, and how it ends: what is in flight is waited for, and what cannot end is parted with.
//!
//! Not host ports (`net::commands`), nor queues that go to another sidecore (`moves`, `net::relocate`). Called by
//! `commands`, and by `hear` as a pass ends.

use schedule::{Budget, Nanos};

use crate::finish::Tally;
use crate::inbox::Event;
use crate::large::SLICE_BYTES;
use crate::net::HostKey;
use crate::places::{Place, Tenant, disk_at, served_at};
use crate::served::QueueKey;
use crate::sidecore::Sidecore;

/// What a queue that leaves may still do in a pass: go on with the frame that it has begun.
const LAST_FRAME: Budget = Budget { requests: 1, bytes: 64 << 10, nanos: 25_000 };

/// And with the request that it has begun.
pub(crate) const LAST_SLICE: Budget = Budget { requests: 1, ..LAST_FRAME };

/// What is on its way to control.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// Places whose queue leaves when nothing is in flight.
    queues: Vec<u16>,
    /// Places of queues that will be asked to leave when nothing is left in their records.
    finishing: Vec<u16>,
    /// Fences that were not answered yet.
    fences: u32,
    /// [`Command::Stop`](crate::Command::Stop) came.
    is_stopping: bool,
}

impl Leaving {
    /// Room for so many queues.
    pub(crate) fn new(queues_max: usize) -> Leaving {
        let queues = Vec::with_capacity(queues_max);
        let finishing = Vec::with_capacity(queues_max);
        Leaving { queues, finishing, fences: 0, is_stopping: false }
    }

    /// Whether all that comes is to leave again.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Control is to be told when nothing that was sent before is left.
    pub(crate) fn add_fence(&mut self) {
        self.fences += 1;
    }
}

impl Sidecore {
    /// Whether [`Command::Stop`](crate::Command::Stop) came and every queue is given back.
    pub fn has_ended(&self) -> bool {
        self.leaving.is_stopping
            && self.outbox.is_empty()
            && !self.moves.awaits()
            && self.places.iter().all(Place::is_given_back)
    }

    /// Whether what leaves needs another pass, although nothing comes.
    pub(crate) fn keeps_leaving(&self) -> bool {
        let Leaving { queues, fences, .. } = &self.leaving;
        *fences > 0
            || !queues.is_empty() && self.io.in_flight() == 0
            || queues.iter().any(|queue| self.is_slicing(*queue))
    }

    /// A queue that leaves once nothing is left in its record; it stays in the schedule until then.
    pub(crate) fn finish(&mut self, key: QueueKey, now: Nanos) {
        let Some(queue) = self.find(key) else { return };
        if let Some((_, disk)) = disk_at(&mut self.places, queue) {
            disk.stalls.stop();
        }
        let left = served_at(&mut self.places, queue).map_or(0, |served| served.ring.left());
        if left == 0 {
            return self.detach(key, now);
        }
        if self.moves.at(queue).is_some() {
            self.cancel_move(queue);
            self.go_on(queue, now);
        }
        if !self.leaving.finishing.contains(&queue) {
            self.leaving.finishing.push(queue);
        }
    }

    /// Has those leave that have come to the end of what was left.
    #[cold]
    fn end_finished(&mut self, now: Nanos) {
        for at in (0..self.leaving.finishing.len()).rev() {
            let Some(&queue) = self.leaving.finishing.get(at) else { continue };
            self.end_stalled(queue, now);
            self.answer_finishing(queue, now);
            let served = served_at(&mut self.places, queue);
            if let Some(key) = served.filter(|s| s.ring.left() == 0).map(|s| s.key()) {
                self.detach(key, now);
            }
        }
    }

    /// A queue that leaves once nothing is left in its record must not wait for requests that wait.
    fn end_stalled(&mut self, queue: u16, now: Nanos) {
        let Some((ring, disk)) = disk_at(&mut self.places, queue) else { return };
        if !disk.stalls.has_some() {
            return;
        }
        if disk.stays_recorded(ring) {
            let key = ring.key;
            return self.detach(key, now);
        }
        disk.part_with_stalled(ring);
        if ring.publish_reaped(&mut self.alarm, now) {
            self.calls.wait(queue);
        }
        self.schedule.completed(queue);
    }

    /// Nor for answers that are held, with whose slots it takes what is left.
    fn answer_finishing(&mut self, queue: u16, now: Nanos) {
        let Some((ring, disk)) = disk_at(&mut self.places, queue) else { return };
        if disk.backend.next_due().is_none() {
            return;
        }
        disk.answer_held(ring, Nanos(u64::MAX), now);
        if ring.publish_reaped(&mut self.alarm, now) {
            self.calls.wait(queue);
        }
        self.schedule.completed(queue);
    }

    /// The queue is visited no more, and leaves when nothing of it is in flight.
    pub(crate) fn detach(&mut self, key: QueueKey, now: Nanos) {
        let Some(queue) = self.find(key) else { return };
        let Some(served) = served_at(&mut self.places, queue) else { return };
        if std::mem::replace(&mut served.ring.leaving, true) {
            return;
        }
        self.leaving.finishing.retain(|finishing| *finishing != queue);
        if let Some(kick) = &served.ring.kick {
            self.rest.forget(kick);
        }
        served.end_wait(now);
        let port = served.role.port();
        self.net.detach(&served.role, queue);
        match port {
            Some(port) => self.call_relocation_off(port),
            None => self.cancel_move(queue),
        }
        self.net.desk.roads.forget(queue);
        self.schedule.remove(queue);
        self.leaving.queues.push(queue);
    }

    /// Everything leaves.
    pub(crate) fn stop(&mut self, now: Nanos) {
        self.leaving.is_stopping = true;
        self.say_farewell();
        self.detach_host_links();
        let keys: Vec<QueueKey> =
            self.places.iter().filter_map(|place| Some(place.served()?.key())).collect();
        for key in keys {
            self.detach(key, now);
        }
        let host = |place: &Place| match &place.tenant {
            Tenant::Host(host) => Some(host.key()),
            Tenant::Queue(_) | Tenant::Road(_) | Tenant::Empty => None,
        };
        let hosts: Vec<HostKey> = self.places.iter().filter_map(host).collect();
        hosts.into_iter().for_each(|key| self.detach_host(key, now));
    }

    /// Gives back what leaves and has nothing in flight; sends what could not be sent before.
    pub(crate) fn let_go(&mut self, now: Nanos) {
        self.outbox.send_unsent();
        // Looked at after the visits of this pass, so what is left came later or did not fit.
        while self.leaving.fences > 0 && !self.has_inbound() {
            self.leaving.fences -= 1;
            self.send(Event::Fenced);
        }
        if !self.leaving.finishing.is_empty() {
            self.end_finished(now);
        }
        if self.net.has_parting() {
            self.part_with_hosts(now);
        }
        let (mut at, mut sliced) = (0, false);
        while let Some(&queue) = self.leaving.queues.get(at) {
            if let Some((ring, disk)) = disk_at(&mut self.places, queue) {
                disk.part_with_stalled(ring);
            }
            // It is visited no more, so what it has begun goes on here: one slice a pass, since all
            // queues of a guest may leave together.
            if !sliced
                && let Some((ring, disk)) = disk_at(&mut self.places, queue)
                && disk.large.is_under_way()
            {
                sliced = true;
                let mut tally = Tally::default();
                let one = (LAST_SLICE, SLICE_BYTES);
                disk.go_on(ring, &mut self.io, one, now, &mut tally);
                tally.add_to(ring);
            }
            self.answer_leaving(queue, now);
            if served_at(&mut self.places, queue).is_some_and(|served| served.is_amid_flood()) {
                // Whoever serves it next would begin the flood again.
                self.visit_frames(queue, LAST_FRAME, now);
            }
            let place = self.places.get_mut(usize::from(queue));
            let Some(mut served) = place.and_then(Place::take_idle) else {
                at += 1;
                continue;
            };
            self.leaving.queues.swap_remove(at);
            served.ring.publish_last(&mut self.alarm);
            served.role.end(&mut self.io);
            self.send(Event::Detached(served));
            self.count_queues();
        }
    }

    /// Answers of a queue that leaves are not held, and are shown, as is what has ended here: what is with its disk still
    /// may take long, and what completes meanwhile is shown only where nothing is left unshown.
    fn answer_leaving(&mut self, queue: u16, now: Nanos) {
        let Some((ring, disk)) = disk_at(&mut self.places, queue) else { return };
        if disk.backend.next_due().is_some() {
            disk.answer_held(ring, Nanos(u64::MAX), now);
        }
        if ring.publish_reaped(&mut self.alarm, now) {
            self.calls.wait(queue);
        }
    }

    /// Whether the queue at this place has a large request under way.
    pub(crate) fn is_slicing(&self, queue: u16) -> bool {
        let served = self.places.get(usize::from(queue)).and_then(Place::served);
        served.is_some_and(|served| served.role.is_slicing())
    }
}
