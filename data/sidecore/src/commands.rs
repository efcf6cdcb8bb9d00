//! What control asks for, and what it is told: queues come and go here.
//!
//! Not how commands and events travel (`inbox`), nor what is done with a queue between the two
//! (`sidecore`).

use std::os::fd::OwnedFd;

use schedule::{Budget, Clock, Nanos};

use crate::fetch::Tally;
use crate::inbox::{Command, Event, Refusal, wake};
use crate::large::SLICE_BYTES;
use crate::net::HostKey;
use crate::places::{Place, Tenant, disk_at, served_at};
use crate::served::{QueueKey, Role, Served};
use crate::sidecore::Sidecore;

/// Commands taken in one pass: an inbox cannot stall the path.
pub(crate) const COMMANDS_PER_PASS: usize = 4;

/// What a queue that leaves may still do in a pass: go on with the frame that it has begun.
const LAST_FRAME: Budget = Budget { requests: 1, bytes: 64 << 10, nanos: 25_000 };

/// And with the request that it has begun.
const LAST_SLICE: Budget = Budget { requests: 1, ..LAST_FRAME };

impl Sidecore {
    pub(crate) fn take_commands(&mut self, now: Nanos, clock: &impl Clock) -> u32 {
        let mut taken = 0;
        for _ in 0..COMMANDS_PER_PASS {
            let Ok(command) = self.commands.pop() else { break };
            taken += 1;
            // Control may know what they came to, and this sidecore not yet.
            self.go_on_relocating(now);
            match command {
                Command::Attach(served) => self.attach(served, now, clock),
                Command::Detach(key) => self.detach(key, now),
                Command::Finish(key) => self.finish(key, now),
                Command::Prepare(arrival) => self.prepare(arrival),
                Command::Move(key, departure) => self.begin_move(key, departure, now),
                Command::Relocate(relocation) => self.relocate(relocation, now),
                Command::SetCall(key, call) => self.set_call(key, call),
                Command::SetService(key, service) => self.set_service(key, service, now),
                Command::SetBridge(bridge, kind) => self.net.set_bridge(bridge, kind.as_ref()),
                Command::SetPort(bridge, port, spec) => {
                    self.net.set_port(bridge, port, spec, &self.places);
                }
                Command::AttachHost(host) => self.attach_host(host, now),
                Command::DetachHost(key) => self.detach_host(key, now),
                Command::Announce(bridge, port, mac) => self.announce(bridge, port, mac, now),
                Command::LinkTo(road) => self.net.desk.roads.add(*road),
                Command::LinkFrom(road) => self.add_road(road, now),
                Command::ShowMacs(table) => self.show_macs(table, now),
                Command::AttachLink(key, link) => self.attach_link(key, link, now),
                Command::DetachLink(key) => self.detach_link(key),
                Command::ToLink(key, told) => self.tell_link(key, *told, now),
                Command::Fence => self.fences += 1,
                Command::Stop => self.stop(now),
            }
        }
        taken
    }

    fn attach(&mut self, mut served: Box<Served>, now: Nanos, clock: &impl Clock) {
        let free = self.places.iter().position(Place::is_empty);
        let Some((queue, place)) = free.and_then(|q| Some((q as u16, self.places.get_mut(q)?)))
        else {
            return self.send(Event::Refused(served, Refusal::NoPlace));
        };
        let epoch = place.epoch.wrapping_add(1);
        // What serving needs of the kernel is taken now, so that the first request does not.
        if let Err(error) = served.role.begin(&mut self.io, queue, epoch) {
            return self.send(Event::Refused(served, Refusal::of(error)));
        }
        if let Err(refusal) = self.net.attach(&served.role, queue, served.ring.gate.is_some()) {
            served.role.end(&mut self.io);
            return self.send(Event::Refused(served, refusal));
        }
        if let Some(port) = served.role.port() {
            self.call_relocation_off(port);
        }
        // A call may have been lost between two owners of this ring; one too many is harmless.
        served.ring.call(&mut self.alarm);
        served.ring.counters.attached_ns.set(clock.now().0);
        self.put(queue, epoch, served, now);
    }

    /// Serves the queue from now on, at a place that is free.
    pub(crate) fn put(&mut self, queue: u16, epoch: u32, mut served: Box<Served>, now: Nanos) {
        let is_fed = self.links.feed(served.key());
        let Some(place) = self.places.get_mut(usize::from(queue)) else { return };
        place.epoch = epoch;
        // A receive queue is not visited, it is delivered to; it is kicked for buffers that were waited for.
        let is_visited = !matches!(served.role, Role::Receive(_));
        if let Some((ring, disk)) = served.disk() {
            disk.show_stalled(ring);
        }
        let ring = &mut served.ring;
        let watched = match &ring.kick {
            Some(kick) => self.rest.watch(kick, queue, epoch).is_ok(),
            None => false,
        };
        ring.is_watched = watched || is_fed;
        if is_visited {
            ring.line_up(&mut self.schedule, queue, now);
        }
        ring.queue.expect_writes(!is_visited);
        ring.leaving = false;
        if !ring.health.is_lost() {
            ring.queue.disarm();
        }
        place.tenant = Tenant::Queue(served);
        self.count_queues();
        self.examine(queue);
    }

    /// A queue that leaves once nothing is left in its record; it stays in the schedule until then.
    fn finish(&mut self, key: QueueKey, now: Nanos) {
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
        if !self.finishing.contains(&queue) {
            self.finishing.push(queue);
        }
    }

    /// Has those leave that have come to the end of what was left.
    #[cold]
    fn end_finished(&mut self, now: Nanos) {
        for at in (0..self.finishing.len()).rev() {
            let Some(&queue) = self.finishing.get(at) else { continue };
            self.end_stalled(queue, now);
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
            self.put_off.push(queue);
        }
        self.schedule.completed(queue);
    }

    pub(crate) fn detach(&mut self, key: QueueKey, now: Nanos) {
        let Some(queue) = self.find(key) else { return };
        let Some(served) = served_at(&mut self.places, queue) else { return };
        if std::mem::replace(&mut served.ring.leaving, true) {
            return;
        }
        self.finishing.retain(|finishing| *finishing != queue);
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
        self.leaving.push(queue);
    }

    fn set_call(&mut self, key: QueueKey, call: Option<OwnedFd>) {
        let Some(queue) = self.find(key) else { return };
        if let Some(served) = served_at(&mut self.places, queue) {
            served.ring.call = call;
            served.ring.call(&mut self.alarm);
        }
        self.examine(queue);
    }

    fn stop(&mut self, now: Nanos) {
        self.stopping = true;
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
        while let Some(event) = self.unsent.pop_front() {
            if let Err(rtrb::PushError::Full(event)) = self.events.push(event) {
                self.unsent.push_front(event);
                break;
            }
            wake(&self.event_fd);
        }
        // Looked at after the visits of this pass, so what is left came later or did not fit.
        while self.fences > 0 && !self.has_inbound() {
            self.fences -= 1;
            self.send(Event::Fenced);
        }
        if !self.finishing.is_empty() {
            self.end_finished(now);
        }
        if !self.parting.is_empty() {
            self.part_with_hosts(now);
        }
        let (mut at, mut sliced) = (0, false);
        while let Some(&queue) = self.leaving.get(at) {
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
            if served_at(&mut self.places, queue).is_some_and(|served| served.is_amid_flood()) {
                // Whoever serves it next would begin the flood again.
                self.visit_frames(queue, LAST_FRAME, now);
            }
            let place = self.places.get_mut(usize::from(queue));
            let Some(mut served) = place.and_then(Place::take_idle) else {
                at += 1;
                continue;
            };
            self.leaving.swap_remove(at);
            served.ring.publish_last(&mut self.alarm);
            served.role.end(&mut self.io);
            self.send(Event::Detached(served));
            self.count_queues();
        }
    }

    /// Latches a queue whose health is lost, and reports what latched it, once. A lost page may make
    /// a ring look wrong; then the loss is what is told.
    pub(crate) fn examine(&mut self, queue: u16) {
        let Some(served) = served_at(&mut self.places, queue) else { return };
        let ring = &mut served.ring;
        let lost = ring.violation_by_loss();
        if let Some(violation) = lost {
            ring.queue.latch(violation);
        }
        if let Some(violation) = ring.queue.take_report() {
            let (key, violation) = (ring.key, lost.unwrap_or(violation));
            self.send(Event::Failed { key, violation });
        }
    }

    pub(crate) fn send(&mut self, event: Event) {
        match self.events.push(event) {
            Ok(()) => wake(&self.event_fd),
            Err(rtrb::PushError::Full(event)) => self.unsent.push_back(event),
        }
    }

    pub(crate) fn find(&self, key: QueueKey) -> Option<u16> {
        let at = |place: &Place| place.served().is_some_and(|served| served.key() == key);
        self.places.iter().position(at).map(|queue| queue as u16)
    }

    /// Whether the queue at this place has a large request under way.
    pub(crate) fn is_slicing(&self, queue: u16) -> bool {
        let served = self.places.get(usize::from(queue)).and_then(Place::served);
        served.is_some_and(|served| served.role.is_slicing())
    }

    pub(crate) fn count_queues(&self) {
        let queues = self.schedule.queues().saturating_sub(self.roads.len());
        self.counters.queues.set(queues as u64);
    }
}
