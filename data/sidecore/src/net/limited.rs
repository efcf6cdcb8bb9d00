//! Frames under a limit: what a guest sends stays in its ring until it is allowed; what is delivered
//! to it beyond the limit is dropped at its port.
//!
//! Nothing can wait on the way to a receiver: a switch would make all who send to it wait, and with them
//! whoever they send to. Not the rule of a limit (`schedule`), nor who waits (`visit`). Called by
//! `frames` and `deliver`, only where there is a limit.

use schedule::{Admission, Budget, Nanos, Visited};
use switch::DropReason;
use virtqueue::Chain;

use crate::net::Net;
use crate::net::deliver::Delivered;
use crate::net::desk::Desk;
use crate::net::frames::Frame;
use crate::net::port::{Choice, Port, Sink};
use crate::places::{Place, receive_at};
use crate::served::{Ring, Transmit};

/// For what has no other bound.
const UNBOUNDED: Budget = Budget { requests: u32::MAX, bytes: u64::MAX, nanos: u64::MAX };
/// A look at a ring that is thought to be empty; what it finds nevertheless is counted afterwards.
const ONE: Budget = Budget { requests: 1, bytes: 1, nanos: u64::MAX };

impl Net {
    /// [`Net::transmit`] of a queue with a gate: within what its limits allow, and counted on them.
    ///
    /// # Errors
    /// Until when it may take nothing.
    #[inline(never)]
    pub(crate) fn transmit_limited(
        &mut self,
        places: &mut [Place],
        ring: &mut Ring,
        role: &mut Transmit,
        chain: &mut Chain,
        budget: Budget,
        now: Nanos,
    ) -> Result<Visited, Nanos> {
        let most = match admit_sent(ring, role, now) {
            Admission::Go(most) => most,
            Admission::Wait(until) => return Err(until),
        };
        let (visited, (packets, bytes)) =
            self.take_frames(places, ring, role, chain, budget, Some(most), now);
        if let Some(gate) = &mut ring.gate {
            gate.charge(packets, bytes, visited.wants_more(), now);
        }
        Ok(visited)
    }
}

/// Allowance is taken only for a frame that is there and may be tried: others could have used it.
fn admit_sent(ring: &mut Ring, role: &Transmit, now: Nanos) -> Admission {
    let Some(gate) = &mut ring.gate else { return Admission::Go(UNBOUNDED) };
    if !gate.is_open(now) {
        ring.counters.waited(gate.end_wait(now));
        let waits = now < role.retry_at || role.in_flight.is_full();
        if waits || ring.health.is_lost() || !ring.queue.has_new(&ring.memory) {
            return Admission::Go(ONE);
        }
    }
    gate.admit(UNBOUNDED, now)
}

impl Desk {
    /// Delivers a frame to a port of which some queue has a limit, if it allows any now, and counts what
    /// was put into its ring: a frame that was cut into segments as many.
    #[inline(never)]
    pub(crate) fn deliver_limited(
        &mut self,
        places: &mut [Place],
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        if port.sink != Sink::Steered {
            return self.deliver_limited_to(places, port, None, frame, now);
        }
        // Chosen once: what is asked and charged is the limit of the queue that gets it.
        let choice = port.steer(frame.head(), places, now);
        let delivered = self.deliver_limited_to(places, port, Some(&choice), frame, now);
        match (delivered, choice.back_home()) {
            (Delivered::Full(_), Some(home)) => {
                self.deliver_limited_to(places, port, Some(&home), frame, now)
            }
            _ => delivered,
        }
    }

    fn deliver_limited_to(
        &mut self,
        places: &mut [Place],
        port: &Port,
        choice: Option<&Choice>,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let place = match choice {
            Some(choice) => Some(choice.place),
            None => port.queue_of(frame.head(), places, now),
        };
        if let Some(ring) = ring_at(places, place)
            && !may_receive(ring, now)
        {
            port.counters.dropped(DropReason::OverLimit);
            return Delivered::Dropped;
        }
        let before = port.counters.delivered_so_far();
        let delivered = match choice {
            Some(choice) => self.give_chosen(places, port, choice, frame, now),
            None => self.give(places, port, frame, now),
        };
        let after = port.counters.delivered_so_far();
        let (packets, bytes) = (after.0.wrapping_sub(before.0), after.1.wrapping_sub(before.1));
        if packets > 0
            && let Some(gate) = ring_at(places, place).and_then(|ring| ring.gate.as_mut())
        {
            gate.charge(u32::try_from(packets).unwrap_or(u32::MAX), bytes, true, now);
        }
        delivered
    }
}

fn ring_at(places: &mut [Place], place: Option<u16>) -> Option<&mut Ring> {
    receive_at(places, place?).map(|(ring, _)| ring)
}

/// Whether a receive queue may have a frame now. One that may not keeps its place among those who wait
/// for the limit: what comes at its moment is delivered.
fn may_receive(ring: &mut Ring, now: Nanos) -> bool {
    let Some(gate) = &mut ring.gate else { return true };
    if gate.is_open(now) {
        return true;
    }
    // Without a buffer nothing is delivered, and nothing taken for it.
    if ring.health.is_lost() || !ring.queue.has_new(&ring.memory) {
        return true;
    }
    matches!(gate.admit(UNBOUNDED, now), Admission::Go(_))
}
