//! A disk's queue goes from one sidecore to another, without a detour through control.
//!
//! ```text
//! control  Prepare(arrival) -> new owner: a place, its back-end joined;  Prepared
//! control  Move(departure)  -> old owner: takes nothing more
//! old owner   drained: shows, forgets the kick, hands the queue over, rings
//! new owner   watches the kick, polls the ring, looks at it;  Moved
//! ```
//!
//! The queue passes through a ring of one that is made for this move ([`handover`]): whoever drops its end
//! unused calls the move off, and the other end sees that. So no order of detach, stop and move leaves a
//! queue behind. Not here: which queue goes where, and what is done about a refusal (`manager`); queues of
//! NICs, which go with their port (`net::relocate`).

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use backend::Backend;
use rtrb::{Consumer, Producer, RingBuffer};
use schedule::Nanos;
use switch::PortId;

use crate::bell::Bell;
use crate::finish::Tally;
use crate::inbox::{Event, Handle, Refusal};
use crate::large::SLICE_BYTES;
use crate::leaving::LAST_SLICE;
use crate::net::BridgeId;
use crate::net::relocate::Hold;
use crate::places::{Place, disk_at, served_at};
use crate::served::{QueueKey, Role, Room, Served};
use crate::sidecore::Sidecore;

/// How long a queue may take to drain, nanoseconds. What takes longer (a flush) is awaited where it is:
/// its guest is served meanwhile.
pub(crate) const DRAIN_NS_MAX: u64 = 1_000_000;

/// The number of a move, given by control; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MoveId(pub u64);

/// Why a queue is where it was. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum Stay {
    /// It is on its way to control, or there.
    #[error("it is being stopped")]
    Leaving,
    /// It moves already.
    #[error("it is being moved already")]
    Moving,
    /// It is a NIC's.
    #[error("queues of a nic go where its port goes")]
    Nic,
    /// Requests of it were with the back-end for longer than a move may take.
    #[error("requests of it did not end within 1 ms")]
    Busy,
    /// Frames that were sent to the port of a NIC, or from it, were on their way for longer than a move
    /// may take.
    #[error("frames on their way to it or from it did not arrive within 1 ms")]
    Unsettled,
    /// The new owner cannot take it.
    #[error("{0}")]
    Refused(Refusal),
}

/// A queue between its owners.
#[derive(Debug)]
struct Handed {
    served: Box<Served>,
    /// Not after its last visit at the old owner.
    since: Nanos,
}

/// The old owner's end of a move. Dropped unused, it calls the move off.
#[derive(Debug)]
pub struct Departure {
    id: MoveId,
    /// Nothing that the queue has taken may be left.
    is_empty_handed: bool,
    handoff: Option<Producer<Handed>>,
    bell: Arc<Bell>,
}

impl Departure {
    /// Hands the queue over; gives it back when nobody is there.
    fn send(mut self, handed: Handed) -> Result<(), Handed> {
        let Some(handoff) = &mut self.handoff else { return Err(handed) };
        if handoff.is_abandoned() {
            return Err(handed);
        }
        handoff.push(handed).map_err(|rtrb::PushError::Full(handed)| handed)
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        // First the end, then the bell, so that whoever is woken sees it.
        drop(self.handoff.take());
        self.bell.ring();
    }
}

/// The new owner's end of a move.
#[derive(Debug)]
pub struct Arrival {
    id: MoveId,
    handoff: Consumer<Handed>,
    backend: Backend,
    room: Option<Room>,
    place: u16,
}

impl Arrival {
    fn is_due(&self) -> bool {
        !self.handoff.is_empty() || self.handoff.is_abandoned()
    }

    /// What came, or `Err(true)` when nothing will.
    fn take(&mut self) -> Result<Handed, bool> {
        let is_last = self.handoff.is_abandoned();
        // What was sent before the other end went is seen from here on.
        fence(Ordering::Acquire);
        self.handoff.pop().map_err(|_| is_last)
    }
}

/// The two ends of move `id` to the sidecore of `to`: the first for [`Command::Prepare`] there, the second
/// for [`Command::Move`] at the owner, once that was answered. `backend` is a fresh one of the queue's disk. Where it
/// answers at once and the one before does not, or the other way round, it needs another `room`; to have another back-end
/// where it is, a queue goes to its own sidecore.
///
/// [`Command::Prepare`]: crate::Command::Prepare
/// [`Command::Move`]: crate::Command::Move
pub fn handover(
    id: MoveId,
    to: &Handle,
    backend: Backend,
    room: Option<Room>,
) -> (Box<Arrival>, Box<Departure>) {
    let (sends, handoff) = RingBuffer::new(1);
    let (is_empty_handed, bell) = (room.is_some(), Arc::clone(&to.bell));
    let departure = Departure { id, is_empty_handed, handoff: Some(sends), bell };
    (Box::new(Arrival { id, handoff, backend, room, place: 0 }), Box::new(departure))
}

/// A queue that is to go when it is drained.
#[derive(Debug)]
struct Going {
    queue: u16,
    departure: Box<Departure>,
    since: Nanos,
    until: Nanos,
}

/// The moves that a sidecore has a part in.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "they come from control as pointers")]
pub(crate) struct Moves {
    going: Vec<Going>,
    arrivals: Vec<Box<Arrival>>,
    /// Moves whose queues came in the last pass, since when these were not visited, and how many came.
    pub(crate) landed: Vec<(MoveId, Nanos, u64)>,
    /// Moves of NICs that it has a part in.
    pub(crate) holds: Vec<Hold>,
    /// Announcements that wait for the end of these.
    pub(crate) unsaid: Vec<(BridgeId, PortId, [u8; 6])>,
    /// The starts of this pass and the one before, if there was no sleep between them.
    passes: [Option<Nanos>; 2],
    /// A slice was done of what departs, when this was last asked.
    has_sliced: bool,
}

#[cfg(feature = "simulated")]
impl Moves {
    /// Queues that were handed over and not taken yet, of a process that was killed.
    pub(crate) fn take_handed(&mut self) -> impl Iterator<Item = Box<Served>> {
        let handed = self.arrivals.iter_mut().filter_map(|arrival| arrival.handoff.pop().ok());
        handed.map(|handed| handed.served)
    }
}

impl Moves {
    /// Whether the sidecore must not sleep for them.
    pub(crate) fn keep_awake(&self) -> bool {
        !self.going.is_empty() || !self.landed.is_empty() || !self.holds.is_empty()
    }

    /// Whether something came. To be asked after the bell was told of the sleep.
    pub(crate) fn has_some(&self) -> bool {
        self.arrivals.iter().any(|arrival| arrival.is_due())
    }

    /// Whether a queue may still come, or go.
    pub(crate) fn awaits(&self) -> bool {
        !self.arrivals.is_empty() || !self.holds.is_empty()
    }

    /// It slept: what was visited before the sleep says nothing of pauses.
    pub(crate) fn slept(&mut self) {
        self.passes = [None; 2];
    }

    /// When the pass before this one began, if there was no sleep between them.
    pub(crate) fn before_last(&self) -> Option<Nanos> {
        self.passes.last().copied().flatten()
    }

    pub(crate) fn at(&self, queue: u16) -> Option<usize> {
        self.going.iter().position(|going| going.queue == queue)
    }
}

impl Sidecore {
    /// A pass begins: queues that came in the last one have been looked at by now, and others may have
    /// come. How many came.
    pub(crate) fn take_arrivals(&mut self, now: Nanos) -> u32 {
        self.moves.passes = [Some(now), self.moves.passes.first().copied().flatten()];
        while let Some((id, since, queues)) = self.moves.landed.pop() {
            self.counters.pauses.add(now.since(since), queues);
            self.send(Event::Moved(id));
        }
        let (mut at, mut came) = (0, 0);
        while let Some(arrival) = self.moves.arrivals.get_mut(at) {
            match arrival.take() {
                Err(false) => at += 1,
                Err(true) => {
                    let arrival = self.moves.arrivals.swap_remove(at);
                    self.release(*arrival);
                }
                Ok(handed) => {
                    let arrival = self.moves.arrivals.swap_remove(at);
                    self.land(*arrival, handed, now);
                    came += 1;
                }
            }
        }
        came
    }

    /// A queue is to come: what it needs besides itself is taken now.
    pub(crate) fn prepare(&mut self, mut arrival: Box<Arrival>) {
        let id = arrival.id;
        let free = self.places.iter().position(Place::is_empty);
        let Some((queue, place)) = free.and_then(|q| Some((q as u16, self.places.get_mut(q)?)))
        else {
            return self.send(Event::Stayed(id, Stay::Refused(Refusal::NoPlace)));
        };
        if let Err(error) = arrival.backend.join(&mut self.io) {
            return self.send(Event::Stayed(id, Stay::Refused(Refusal::of(error))));
        }
        place.reserved = true;
        arrival.place = queue;
        self.moves.arrivals.push(arrival);
        self.send(Event::Prepared(id));
    }

    /// Nothing comes.
    fn release(&mut self, mut arrival: Arrival) {
        arrival.backend.leave(&mut self.io);
        if let Some(place) = self.places.get_mut(usize::from(arrival.place)) {
            place.reserved = false;
        }
    }

    /// It came, and is polled from now on: this pass looks at its ring.
    fn land(&mut self, arrival: Arrival, handed: Handed, now: Nanos) {
        let Arrival { id, backend, room, place: queue, .. } = arrival;
        let Handed { mut served, since } = handed;
        let key = served.key();
        let Some(place) = self.places.get_mut(usize::from(queue)) else { return };
        place.reserved = false;
        let epoch = place.epoch.wrapping_add(1);
        served.come_to(&mut self.io, (queue, epoch), backend, room);
        self.put(queue, epoch, served, now);
        self.counters.moves_in.add(1);
        self.moves.landed.push((id, since, 1));
        if self.leaving.is_stopping() {
            self.detach(key, now);
        }
    }

    /// The queue is to go: from now on it takes nothing.
    pub(crate) fn begin_move(&mut self, key: QueueKey, departure: Box<Departure>, now: Nanos) {
        let id = departure.id;
        let found = self.find(key).and_then(|queue| {
            let served = self.places.get(usize::from(queue))?.served()?;
            Some((queue, matches!(served.role, Role::Disk(_)), served.ring.leaving))
        });
        let why = match found {
            None | Some((_, _, true)) => Some(Stay::Leaving),
            Some((_, false, _)) => Some(Stay::Nic),
            Some((queue, _, _)) => self.moves.at(queue).map(|_| Stay::Moving),
        };
        let queue = match (why, found) {
            (None, Some((queue, _, _))) => queue,
            (why, _) => return self.stay(departure, id, why.unwrap_or(Stay::Leaving)),
        };
        self.schedule.remove(queue);
        let since = self.moves.before_last().unwrap_or(now);
        let until = now.after(DRAIN_NS_MAX);
        self.moves.going.push(Going { queue, departure, since, until });
    }

    /// Hands over what is drained; what was not in time stays.
    #[inline]
    pub(crate) fn depart_drained(&mut self, now: Nanos) {
        if !self.moves.going.is_empty() {
            self.depart(now);
        }
    }

    #[cold]
    #[inline(never)]
    fn depart(&mut self, now: Nanos) {
        // This is asked twice in a pass: one slice of one of them a pass, each in turn.
        let mut may_slice = !std::mem::take(&mut self.moves.has_sliced);
        let mut at = 0;
        while let Some(Going { queue, until, departure, .. }) = self.moves.going.get(at) {
            let (queue, until, with_all) = (*queue, *until, departure.is_empty_handed);
            if self.go_on_departing(queue, (with_all, may_slice), now) {
                (may_slice, self.moves.has_sliced) = (false, true);
                // It is asked last the next time; those before it had nothing to go on with.
                if let Some(going) = self.moves.going.get_mut(at..) {
                    going.rotate_left(1);
                }
                continue;
            }
            let drained = disk_at(&mut self.places, queue)
                .is_some_and(|(ring, disk)| disk.is_drained_but_for(ring, with_all, 0));
            if !drained && now < until {
                at += 1;
                continue;
            }
            let going = self.moves.going.swap_remove(at);
            match drained {
                true => self.hand_over(going, now),
                false => {
                    let id = going.departure.id;
                    self.go_on(queue, now);
                    self.stay(going.departure, id, Stay::Busy);
                }
            }
        }
    }

    /// A queue that departs is visited no more, so what it has begun goes on here, a slice where that may be. Whether it
    /// did one.
    fn go_on_departing(
        &mut self,
        queue: u16,
        (with_all, may_slice): (bool, bool),
        now: Nanos,
    ) -> bool {
        let Some((ring, disk)) = disk_at(&mut self.places, queue) else { return false };
        // Where all else has ended, and not before: one that stays has answered nothing before its time.
        if disk.is_drained_but_for(ring, with_all, disk.backend.held_answers()) {
            disk.answer_held(ring, Nanos(u64::MAX), now);
        }
        let goes_on = disk.large.has_turns() || with_all && disk.large.is_all_here();
        if !goes_on || !may_slice || disk.stalls.has_large() {
            return false;
        }
        let mut tally = Tally::default();
        disk.go_on(ring, &mut self.io, (LAST_SLICE, SLICE_BYTES), now, &mut tally);
        tally.add_to(ring);
        true
    }

    fn hand_over(&mut self, going: Going, now: Nanos) {
        let Going { queue, departure, since, .. } = going;
        let id = departure.id;
        let Some(place) = self.places.get_mut(usize::from(queue)) else { return };
        let Some(mut served) = place.take_queue() else { return };
        served.ring.publish_last(&mut self.alarm);
        if let Some((ring, disk)) = served.disk() {
            disk.answered.clock(&ring.counters.latency, now);
        }
        if let Some(kick) = &served.ring.kick {
            self.rest.forget(kick);
        }
        served.role.end(&mut self.io);
        match departure.send(Handed { served, since }) {
            Ok(()) => self.counters.moves_out.add(1),
            Err(Handed { mut served, .. }) => {
                // The other one has ended: as if it had never gone.
                let epoch = place.epoch.wrapping_add(1);
                // It was here just now, so what it needs of the kernel is there.
                let _ = served.role.begin(&mut self.io, queue, epoch);
                self.put(queue, epoch, served, now);
                self.counters.moves_stayed.add(1);
                self.send(Event::Stayed(id, Stay::Leaving));
            }
        }
        self.count_queues();
    }

    /// Its move is called off, if it was to move.
    pub(crate) fn cancel_move(&mut self, queue: u16) {
        let Some(at) = self.moves.at(queue) else { return };
        let Going { departure, .. } = self.moves.going.swap_remove(at);
        let id = departure.id;
        self.stay(departure, id, Stay::Leaving);
    }

    fn stay(&mut self, departure: Box<Departure>, id: MoveId, why: Stay) {
        // The other end learns of it before control does.
        drop(departure);
        self.counters.moves_stayed.add(1);
        self.send(Event::Stayed(id, why));
    }

    /// A queue that takes nothing is served again.
    pub(crate) fn go_on(&mut self, queue: u16, now: Nanos) {
        let Some(served) = served_at(&mut self.places, queue) else { return };
        let ring = &mut served.ring;
        if !ring.health.is_lost() {
            ring.queue.disarm();
        }
        ring.line_up_again(&mut self.schedule, queue, now);
    }
}
