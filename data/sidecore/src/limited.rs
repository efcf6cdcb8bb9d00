//! A piece of a visit under a limit: what it may take now, and other settings for a queue that is
//! served.
//!
//! Not the rule of a limit (`schedule`), nor who waits (`visit`).

use backend::{Io, Look};
use schedule::{Admission, Budget, Clock, Nanos, Policy};
use virtqueue::Chain;

use crate::done::Done;
use crate::places::served_at;
use crate::served::{DiskRole, QueueKey, Ring, Role, Served, Service};
use crate::sidecore::Sidecore;

impl DiskRole {
    /// [`DiskRole::fetch`] of a queue that has a gate, or something on the way to its disk, which hears what time it is
    /// when the turn began that this is a piece of, and how long what is in the ring may have waited.
    ///
    /// # Errors
    /// Until when it may take nothing.
    #[inline(never)]
    pub(crate) fn fetch_specially(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        chain: &mut Chain,
        (budget, slice_bytes): (Budget, u64),
        (now, turn, waited_ns): (Nanos, Nanos, u64),
        clock: &impl Clock,
    ) -> Result<Done, Nanos> {
        let is_staged = ring.is_staged();
        if is_staged {
            // What a limit held is held no longer, and so is what further pieces of that turn take.
            let held_ns = self.backend.held_in(turn.0);
            self.backend.begin(Look { now_ns: now.0, waited_ns, held_ns, slice_bytes });
        }
        let done = match ring.gate {
            Some(_) => self.fetch_limited(ring, io, chain, budget, slice_bytes, now)?,
            None => self.fetch(ring, io, chain, budget, slice_bytes, now),
        };
        if is_staged {
            if done.ended() > 0 {
                self.backend.end(clock.now().0);
            }
            if !done.visited().wants_more() {
                self.backend.held(0);
            }
        }
        Ok(done)
    }

    /// [`DiskRole::fetch`] of a queue with a gate: within what its limits allow, and counted on them.
    ///
    /// # Errors
    /// Until when it may take nothing.
    #[inline(never)]
    pub(crate) fn fetch_limited(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        chain: &mut Chain,
        budget: Budget,
        slice_bytes: u64,
        now: Nanos,
    ) -> Result<Done, Nanos> {
        let is_slicing = self.large.is_under_way();
        let budget = match self.admit(ring, io, budget, now) {
            Admission::Go(budget) => budget,
            Admission::Wait(until) => return Err(until),
        };
        let before = transferred(ring).wrapping_add(self.refused_bytes);
        let done = self.fetch(ring, io, chain, budget, slice_bytes, now);
        let visited = done.visited();
        let bytes = transferred(ring).wrapping_add(self.refused_bytes).wrapping_sub(before);
        // A request in slices was counted whole when it was begun.
        let requests = visited.requests.saturating_sub(is_slicing.into());
        if let Some(gate) = &mut ring.gate {
            gate.charge(requests, bytes, visited.wants_more(), now);
        }
        Ok(done)
    }

    /// Allowance is taken only for a ring that has work and a back-end that has room: others could have
    /// used it.
    fn admit(&mut self, ring: &mut Ring, io: &Io, budget: Budget, now: Nanos) -> Admission {
        // That request is counted; the next one has a piece of its own.
        if self.large.is_under_way() {
            return Admission::Go(Budget { requests: 1, ..budget });
        }
        let Some(gate) = &mut ring.gate else { return Admission::Go(budget) };
        if !gate.is_open(now) {
            let waited = gate.end_wait(now);
            if let Some(waited) = &waited {
                self.backend.held(waited.ns);
            }
            ring.counters.waited(waited);
            let at_once = self.backend.answers_at_once();
            let has_room =
                at_once || self.slots.has_room() && io.room() > 0 && self.backend.has_room(io);
            if !has_room || ring.health.is_lost() || !ring.queue.has_new(&ring.memory) {
                // What it finds nevertheless is counted afterwards.
                return Admission::Go(Budget { requests: 1, bytes: 1, ..budget });
            }
        }
        gate.admit(budget, now)
    }
}

/// Bytes that were to be read and written so far, of requests that a back-end was given.
fn transferred(ring: &Ring) -> u64 {
    ring.counters.read_bytes.get().wrapping_add(ring.counters.written_bytes.get())
}

impl Served {
    /// It waits for its limit no longer, if it did. A receive queue does not: what is too much for it is
    /// dropped.
    pub(crate) fn end_wait(&mut self, now: Nanos) {
        let Served { ring, role } = self;
        if let Some(gate) = &mut ring.gate
            && !matches!(role, Role::Receive(_))
        {
            ring.counters.waited(gate.end_wait(now));
        }
    }
}

impl Sidecore {
    /// Another share, policy and limit for a queue, which goes on where it is.
    pub(crate) fn set_service(&mut self, key: QueueKey, service: Service, now: Nanos) {
        let Some(queue) = self.find(key) else { return };
        let Some(served) = served_at(&mut self.places, queue) else { return };
        let is_another = match (&served.ring.gate, &service.gate) {
            (Some(old), Some(new)) => !old.is_like(new),
            _ => true,
        };
        if is_another {
            served.end_wait(now);
        }
        let ring = &mut served.ring;
        let Service { share, policy, target_ns, moderate_ns, gate } = service;
        let is_aimed_anew = ring.target_ns != target_ns;
        (ring.share, ring.policy, ring.target_ns) = (share, policy, target_ns);
        ring.moderation.set(moderate_ns);
        if is_another {
            served.set_gate(gate);
        }
        let ring = &mut served.ring;
        if !ring.leaving {
            self.net.set_limited(&served.role, ring.gate.is_some());
        }
        // A receive queue is not visited, and one that leaves is visited no more.
        if matches!(served.role, Role::Receive(_)) || ring.leaving {
            return;
        }
        // Without kicks to wait for, only polling finds anything.
        let policy = if ring.is_watched { policy } else { Policy::Poll };
        if self.schedule.set(queue, share, policy, now) && !ring.health.is_lost() {
            ring.queue.disarm();
        }
        // What is known of how it does holds for this target alone.
        if is_aimed_anew {
            self.schedule.set_target(queue, ring.target_here());
        }
    }
}
