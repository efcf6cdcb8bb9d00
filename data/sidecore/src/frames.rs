//! Visits of transmit queues and host ports, and what they leave to be shown.
//!
//! Not what is done with a frame (`net`). Called by `sidecore`.

use schedule::{Budget, Nanos, Visited};

use crate::inbox::Event;
use crate::places::{Place, Tenant, host_at, served_at};
use crate::served::Role;
use crate::sidecore::Sidecore;

impl Sidecore {
    /// A visit, or a piece of one, of whatever is at a place that is no disk's queue.
    #[inline(never)]
    pub(crate) fn visit_frames(&mut self, queue: u16, budget: Budget, now: Nanos) -> Visited {
        let Some(place) = self.places.get_mut(usize::from(queue)) else {
            return Visited::default();
        };
        // Out of its place, so that frames can be delivered to all others.
        let mut tenant = std::mem::take(&mut place.tenant);
        let mut is_bad = false;
        self.net.desk.roads.visit(queue);
        let visited = match &mut tenant {
            Tenant::Queue(served) => match &mut served.role {
                Role::Transmit(role) => {
                    let ring = &mut served.ring;
                    let (places, chain) = (&mut self.places, &mut self.chain);
                    let visited = if ring.gate.is_none() {
                        self.net.transmit(places, ring, role, chain, budget, now)
                    } else {
                        self.net
                            .transmit_limited(places, ring, role, chain, budget, now)
                            .unwrap_or_else(|until| {
                                self.visiting.limit(until);
                                // No parcel is kept for who can take none.
                                self.net.desk.roads.forget(queue);
                                Visited::default()
                            })
                    };
                    if visited.requests > 0 {
                        ring.counters.visits.add(1);
                    }
                    is_bad = ring.queue.violation().is_some() || ring.health.is_lost();
                    visited
                }
                Role::Disk(_) | Role::Receive(_) => Visited::default(),
            },
            Tenant::Host(host) => match self.net.rests_until(host, now) {
                None => self.net.receive(&mut self.places, host, budget, now),
                Some(until) => {
                    self.visiting.limit(until);
                    Visited::default()
                }
            },
            Tenant::Road(road) => self.net.unpack(&mut self.places, road, budget, now),
            Tenant::Empty => Visited::default(),
        };
        if let Some(place) = self.places.get_mut(usize::from(queue)) {
            place.tenant = tenant;
        }
        if visited.requests > 0 {
            self.net.desk.roads.visited();
        }
        if is_bad {
            self.net.desk.roads.forget(queue);
        }
        self.settle_frames();
        if let Some(served) = served_at(&mut self.places, queue) {
            if served.ring.publish_sent(&mut self.alarm, now) {
                self.calls.wait(queue);
            }
        } else {
            self.mute_host(queue, visited.held);
            self.look_after_host(queue);
        }
        if is_bad {
            self.examine(queue);
        }
        visited
    }

    /// What was delivered is shown: receive rings with at most one call each, host ports flushed.
    pub(crate) fn settle_frames(&mut self) {
        while let Some(place) = self.net.desk.touched.pop() {
            let Some(served) = served_at(&mut self.places, place) else { continue };
            if let Role::Receive(receive) = &mut served.role {
                served.ring.counters.requests.add(std::mem::take(&mut receive.fresh).into());
                served.ring.counters.visits.add(1);
            }
            served.ring.publish(&mut self.alarm);
            if served.ring.health.is_lost() {
                self.examine(place);
            }
        }
        while let Some(place) = self.net.desk.unflushed.pop() {
            if let Some(host) = host_at(&mut self.places, place) {
                host.is_unflushed = false;
                host.spec.port.flush();
            }
            self.look_after_host(place);
        }
        while let Some(place) = self.net.desk.examined.pop() {
            self.examine(place);
        }
        self.net.desk.roads.ring();
    }

    /// While a frame of a host port waits for a guest's kick, more frames wake nobody.
    #[inline]
    fn mute_host(&mut self, queue: u16, muted: bool) {
        let Some(Place { epoch, tenant: Tenant::Host(host), .. }) =
            self.places.get_mut(usize::from(queue))
        else {
            return;
        };
        if std::mem::replace(&mut host.is_muted, muted) != muted
            && let Some(fd) = host.spec.port.poll_fd()
        {
            self.rest.mute_host(fd, queue, *epoch, muted);
        }
    }

    /// A host port whose interface is gone is told once, and watched no longer: its descriptor would
    /// wake for ever.
    fn look_after_host(&mut self, place: u16) {
        let Some(host) = host_at(&mut self.places, place) else { return };
        if !host.spec.port.is_gone() || std::mem::replace(&mut host.is_reported, true) {
            return;
        }
        if let Some(fd) = host.spec.port.poll_fd() {
            self.rest.forget(fd);
        }
        let key = host.key();
        self.schedule.remove(place);
        self.net.desk.roads.forget(place);
        self.send(Event::HostGone(key));
    }
}
