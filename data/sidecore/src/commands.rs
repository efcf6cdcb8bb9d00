//! What control asks for: queues come here.
//!
//! Not how commands and events travel (`inbox`), nor how queues leave (`leaving`).

use std::os::fd::OwnedFd;

use schedule::{Clock, Nanos};

use crate::inbox::{Command, Event, Refusal};
use crate::places::{Place, Tenant, served_at};
use crate::served::{QueueKey, Role, Served};
use crate::sidecore::Sidecore;

/// Commands taken in one pass: an inbox cannot stall the path.
pub(crate) const COMMANDS_PER_PASS: usize = 4;

impl Sidecore {
    pub(crate) fn take_commands(&mut self, now: Nanos, clock: &impl Clock) -> u32 {
        let mut taken = 0;
        for _ in 0..COMMANDS_PER_PASS {
            let Some(command) = self.inbox.take() else { break };
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
                Command::RoadTo(road) => self.net.desk.roads.add(*road),
                Command::RoadFrom(road) => self.add_road(road, now),
                Command::ShowMacs(table) => self.show_macs(table, now),
                Command::AttachLink(key, link) => self.attach_link(key, link, now),
                Command::DetachLink(key) => self.detach_link(key),
                Command::ToClient(key, told) => self.tell_client(key, *told, now),
                Command::ToHost(key, told) => self.tell_host(key, *told, now),
                Command::Fence => self.leaving.add_fence(),
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

    fn set_call(&mut self, key: QueueKey, call: Option<OwnedFd>) {
        let Some(queue) = self.find(key) else { return };
        if let Some(served) = served_at(&mut self.places, queue) {
            served.ring.call = call;
            served.ring.call(&mut self.alarm);
        }
        self.examine(queue);
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
        self.outbox.send(event);
    }

    pub(crate) fn find(&self, key: QueueKey) -> Option<u16> {
        let at = |place: &Place| place.served().is_some_and(|served| served.key() == key);
        self.places.iter().position(at).map(|queue| queue as u16)
    }

    pub(crate) fn count_queues(&self) {
        let queues = self.schedule.queues().saturating_sub(self.roads.len());
        self.counters.queues.set(queues as u64);
    }
}
