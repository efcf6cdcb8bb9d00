//! One virtqueue as the walk sees it, whatever its format; latched by its first violation.

use guest_memory::{Area, GuestMap};

use crate::ahead::{Ahead, Single};
use crate::chain::Chain;
use crate::inflight::Inflight;
use crate::inflight::packed::PackedRecord;
use crate::inflight::split::SplitRecord;
use crate::layout::Format;
use crate::packed::{Packed, Place};
use crate::split::Split;
use crate::ticket::Ticket;
use crate::violation::{SetupError, Violation};
use crate::word::Word;

/// All that a queue stands on.
#[derive(Debug)]
pub struct QueueSpec {
    /// Entries: a power of two up to 32768 (split), or 1 to 32768 (packed).
    pub size: u16,
    /// Which ring.
    pub format: Format,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_index: bool,
    /// `VIRTIO_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// Descriptor table, or packed ring.
    pub descriptors: Area,
    /// Available ring, or driver event structure.
    pub driver: Area,
    /// Used ring, or device event structure.
    pub device: Area,
    /// Where to go on, as in vhost-user's `SET_VRING_BASE`. Split: the next available index.
    /// Packed: the available place and its lap in the low half, the used place and its lap in the
    /// high half; a high half of zero means that both are the same.
    pub base: u32,
    /// The record for crash recovery, when the front-end has one. It overrides `base`.
    pub inflight: Option<Inflight>,
}

/// A ring with its in-flight record, if there is one.
#[derive(Debug)]
enum Ring {
    Split(Split, Option<Box<SplitRecord>>),
    Packed(Packed, Option<Box<PackedRecord>>),
}

/// The device's side of one virtqueue.
///
/// - Take: [`Self::peek`], [`Self::advance`].
/// - Give back: [`Self::complete`], [`Self::show`], [`Self::publish`]; or [`Self::abandon`]; or, as
///   if it had not been taken, [`Self::mark`] and [`Self::rewind`].
/// - Notifications: [`Self::arm`], [`Self::disarm`].
/// - State: [`Self::base`], [`Self::in_flight`], [`Self::violation`], [`Self::take_report`].
#[derive(Debug)]
pub struct Queue {
    ring: Ring,
    size: u16,
    in_flight: Word,
    /// Empty while `violation` is not.
    ahead: Ahead,
    violation: Option<Violation>,
    reported: bool,
}

/// Where a queue stood: what [`Queue::rewind`] goes back to.
///
/// Plain data, cheap to make and to throw away. Good until the next completion.
#[derive(Debug)]
#[must_use = "a mark is for a later rewind, and does nothing by itself"]
pub struct Mark {
    next: u16,
    used: u16,
    in_flight: u16,
}

/// What was completed up to some moment, for [`Queue::is_consumed`] to be asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Behind the last completion.
    pub(crate) end: u16,
    /// What the driver's event index was then.
    pub(crate) event: u16,
}

/// Entries of a ring in which footprints can be told: twice as many, and the index's 16 bits, are further
/// apart than any two events that could be taken for one another.
pub(crate) const FOOTPRINT_SIZE_MAX: u16 = 16_384;

impl Queue {
    /// A queue over memory that was checked to be the guest's.
    ///
    /// # Errors
    /// [`SetupError`]: what does not fit, before anything in the ring is changed.
    pub fn new(spec: QueueSpec) -> Result<Queue, SetupError> {
        fit::check(&spec)?;
        let QueueSpec { size, format, event_index, indirect, inflight, base, .. } = spec;
        let parts = [spec.descriptors, spec.driver, spec.device];
        let rules = (event_index, indirect);
        let ring = match format {
            Format::Split => split_ring(Split::new(parts, size, rules, base as u16)?, inflight),
            Format::Packed => {
                let (next, used) = fit::packed_places(base, size)?;
                packed_ring(Packed::new(parts, size, rules, next, used)?, inflight)?
            }
        };
        let (in_flight, ahead) = (Word::new(0), Ahead::new());
        Ok(Queue { ring, size, in_flight, ahead, violation: None, reported: false })
    }

    /// Looks at the next chain without taking it: true when `chain` holds one. Reads each
    /// descriptor once; bounded by the ring's size. A latched queue has none.
    #[inline(always)]
    pub fn peek(&mut self, map: &GuestMap, chain: &mut Chain) -> bool {
        match self.try_peek(map, chain) {
            Ok(found) => found,
            Err(violation) => {
                self.latch(violation);
                false
            }
        }
    }

    /// Asks the processor for what the next look at the ring reads first; a hint without effect.
    #[inline]
    pub fn prefetch(&self) {
        match &self.ring {
            Ring::Split(ring, _) => ring.prefetch(),
            Ring::Packed(ring, _) => ring.prefetch(),
        }
    }

    /// Whether a chain is there that [`Self::peek`] would look at, of an in-flight record too. Reads the driver's index when none is
    /// known.
    #[inline]
    pub fn has_new(&mut self, map: &GuestMap) -> bool {
        if self.violation.is_some() || self.in_flight.get() >= self.size {
            return false;
        }
        match &mut self.ring {
            // What is wrong is found again, and said, by a look at the chain.
            Ring::Split(ring, record) => {
                let is_left = record.as_ref().is_some_and(|record| record.next_left().is_some());
                is_left || ring.is_ready(map).unwrap_or(true)
            }
            Ring::Packed(ring, record) => {
                let is_left = record.as_ref().is_some_and(|record| record.next_left().is_some());
                is_left || ring.is_ready()
            }
        }
    }

    /// The next chain, when it is one buffer that the device reads or, as asked, writes: what [`Self::peek`]
    /// would find, in far fewer steps and without scratch space. None says nothing: ask `peek`.
    #[inline(always)]
    pub fn peek_single(&mut self, map: &GuestMap, is_writable: bool) -> Option<Single> {
        if self.in_flight.get() >= self.size {
            return None;
        }
        let next = match self.ahead.next() {
            Some(next) => next,
            None => self.find_ahead(map)?,
        };
        (next.is_writable == is_writable).then_some(next)
    }

    #[inline(never)]
    fn find_ahead(&mut self, map: &GuestMap) -> Option<Single> {
        if self.violation.is_some() {
            return None;
        }
        match &mut self.ring {
            Ring::Split(ring, None) => ring.find_ahead(map, &mut self.ahead),
            Ring::Packed(ring, None) => ring.find_ahead(map, &mut self.ahead),
            // What was left by an earlier process comes first, and is looked at one by one.
            Ring::Split(_, Some(_)) | Ring::Packed(_, Some(_)) => {}
        }
        self.ahead.next()
    }

    /// Takes the chain that the last [`Self::peek_single`] found, and gives it back with `written` bytes
    /// filled: [`Self::advance`] and [`Self::complete`] at once.
    #[inline(always)]
    pub fn end_single(&mut self, single: Single, written: u32) {
        self.ahead.took_one();
        match &mut self.ring {
            Ring::Split(ring, _) => {
                ring.advance();
                ring.complete(single.id, written);
            }
            Ring::Packed(ring, _) => {
                ring.advance(1);
                ring.complete(single.id, 1, written);
            }
        }
    }

    /// Takes the chain that the last [`Self::peek_single`] found, as [`Self::advance`].
    pub fn take_single(&mut self, single: Single) -> Ticket {
        self.ahead.took_one();
        match &mut self.ring {
            Ring::Split(ring, _) => ring.advance(),
            Ring::Packed(ring, _) => ring.advance(1),
        }
        self.in_flight.add(1);
        Ticket::new(single.id, 1, 0)
    }

    #[inline(always)]
    fn try_peek(&mut self, map: &GuestMap, chain: &mut Chain) -> Result<bool, Violation> {
        if self.violation.is_some() || self.in_flight.get() >= self.size {
            return Ok(false);
        }
        match &mut self.ring {
            Ring::Split(ring, record) => {
                if let Some(record) = record {
                    if let Some(head) = record.next_left() {
                        ring.walk(head, map, chain)?;
                        return Ok(true);
                    }
                    if record.is_full() {
                        return Ok(false);
                    }
                }
                if !ring.is_ready(map)? {
                    return Ok(false);
                }
                ring.peek(map, chain)?;
            }
            Ring::Packed(ring, record) => {
                if let Some(first) = record.as_ref().and_then(|record| record.next_left()) {
                    let Some(record) = record else { return Ok(false) };
                    ring.peek_recorded(record, first, map, chain)?;
                    return Ok(true);
                }
                if !ring.is_ready() {
                    return Ok(false);
                }
                ring.peek(map, chain)?;
                if let Some(record) = record
                    && chain.descriptors > record.free()
                {
                    let (entries, free) = (chain.descriptors, record.free());
                    return Err(Violation::EntriesInFlight { entries, free });
                }
            }
        }
        Ok(true)
    }

    /// Takes the chain that the last [`Self::peek`] found.
    #[inline(always)]
    pub fn advance(&mut self, chain: &Chain) -> Ticket {
        // A guest may have made more of a chain that was one buffer when it was found ahead.
        match chain.descriptors {
            1 => self.ahead.took_one(),
            _ => self.ahead.forget(),
        }
        let mut entry = 0;
        match &mut self.ring {
            Ring::Split(ring, None) => ring.advance(),
            Ring::Split(ring, Some(record)) => {
                if !record.take_left() {
                    ring.advance();
                    record.taken(chain.id);
                }
            }
            Ring::Packed(ring, None) => ring.advance(chain.descriptors),
            Ring::Packed(ring, Some(record)) => {
                entry = record.take_left().unwrap_or_else(|| {
                    let place = ring.places().0;
                    ring.advance(chain.descriptors);
                    record.taken(ring.ring(), place, chain.id, chain.descriptors)
                });
            }
        }
        self.in_flight.add(1);
        Ticket::new(chain.id, chain.descriptors, entry)
    }

    /// Gives a chain back, `written` bytes of its writable part filled. Seen by the guest at the
    /// next [`Self::publish`].
    #[inline(always)]
    pub fn complete(&mut self, ticket: Ticket, written: u32) {
        let (id, descriptors, entry) = ticket.spend();
        match &mut self.ring {
            Ring::Split(ring, None) => ring.complete(id, written),
            Ring::Split(ring, Some(record)) => {
                ring.complete_now(id, written);
                record.completed(id);
            }
            Ring::Packed(ring, record) => {
                ring.complete(id, descriptors, written);
                if let Some(record) = record {
                    record.completed(entry, descriptors);
                }
            }
        }
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
    }

    /// Gives a chain up without a word to the guest: its memory is not to be touched any more. A
    /// record of what is in flight still has it, for whoever serves the ring next.
    #[cold]
    pub fn abandon(&mut self, ticket: Ticket) {
        ticket.forfeit();
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
    }

    /// Where the queue stands, for [`Self::rewind`]. Changes nothing.
    #[inline]
    pub fn mark(&self) -> Mark {
        let (next, used) = self.places();
        Mark { next, used, in_flight: self.in_flight.get() }
    }

    /// Gives back every chain taken since `mark`, as if it had never been taken: the next
    /// [`Self::peek`] finds the first of them. For a receiver that took buffers, found that they do
    /// not suffice, and wrote nothing into them that matters.
    ///
    /// `tickets` are those of all chains taken since the mark, in any order; they are spent.
    /// Bounded by their number.
    ///
    /// False, and nothing changed and no ticket spent, when that cannot be: a chain was completed
    /// or abandoned since the mark, `tickets` are not as many as were taken since, or the queue
    /// keeps a record of what is in flight (which a successor may have read by now).
    pub fn rewind(&mut self, mark: Mark, tickets: &mut Vec<Ticket>) -> bool {
        let taken = usize::from(self.in_flight.get()).checked_sub(usize::from(mark.in_flight));
        let back = tickets.iter().fold(mark.next, |next, ticket| self.after(next, ticket));
        if self.places() != (back, mark.used) || taken != Some(tickets.len()) {
            return false;
        }
        match &mut self.ring {
            Ring::Split(ring, None) => ring.set_next(mark.next),
            Ring::Packed(ring, None) => {
                let (_, used) = ring.places();
                ring.set_places(Place::of_bits(mark.next), used);
            }
            Ring::Split(_, Some(_)) | Ring::Packed(_, Some(_)) => return false,
        }
        tickets.drain(..).for_each(Ticket::forfeit);
        self.ahead.forget();
        self.in_flight.set(mark.in_flight);
        true
    }

    /// Whether [`Self::peek`] hints that the coming buffers will be written rather than read: for
    /// queues of which the device only ever writes the buffers. Not at first.
    pub fn expect_writes(&mut self, on: bool) {
        match &mut self.ring {
            Ring::Split(ring, _) => ring.expect_writes(on),
            Ring::Packed(ring, _) => ring.expect_writes(on),
        }
    }

    /// Shows all completions so far, without asking whether the guest wants to be called: that is
    /// for [`Self::publish`], which must follow. Lets a guest that polls go on meanwhile.
    #[inline]
    pub fn show(&mut self) {
        match &mut self.ring {
            Ring::Split(ring, None) => ring.show(),
            Ring::Split(ring, Some(record)) => {
                ring.show();
                record.published(ring.used_shown());
            }
            Ring::Packed(ring, None) => ring.show(),
            Ring::Packed(ring, Some(record)) => {
                record.before_publish(ring.places().1);
                ring.show();
                record.published();
            }
        }
    }

    /// Shows all completions. True when the guest wants to be called for one that was shown since
    /// the last time.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.show();
        match &mut self.ring {
            Ring::Split(ring, _) => ring.wants_call(),
            Ring::Packed(ring, _) => ring.wants_call(),
        }
    }

    /// Where completions stand now. `None` when the driver of this ring does not say how far it is: without
    /// `VIRTIO_F_EVENT_IDX`, or in a very large ring.
    #[inline]
    pub fn footprint(&self) -> Option<Footprint> {
        match &self.ring {
            Ring::Split(ring, _) => ring.footprint(),
            Ring::Packed(ring, _) => ring.footprint(),
        }
    }

    /// Whether the driver has taken all that was completed up to `footprint`: it has asked since then for a
    /// call behind that (VIRTIO 2.7.10, 2.8.21). A driver that asks for a call further on than it has
    /// read would be believed; those of receive queues do not.
    ///
    /// False says nothing: it may have, and not said so yet.
    #[inline]
    pub fn is_consumed(&self, footprint: Footprint) -> bool {
        match &self.ring {
            Ring::Split(ring, _) => ring.is_consumed(footprint),
            Ring::Packed(ring, _) => ring.is_consumed(footprint),
        }
    }

    /// Asks for a kick when there are more chains than there are now, which do not suffice: how many that
    /// is, looked at after asking. `None`, and no kick is asked for, where that cannot be: some are there
    /// in a packed ring, or the queue keeps a record, or is latched.
    pub fn arm_behind(&mut self) -> Option<u16> {
        if self.violation.is_some() {
            return None;
        }
        let found = match &mut self.ring {
            Ring::Split(ring, None) => ring.arm_behind().map(Some),
            Ring::Packed(ring, None) => match ring.arm() {
                true => {
                    ring.disarm();
                    Ok(None)
                }
                false => Ok(Some(0)),
            },
            Ring::Split(_, Some(_)) | Ring::Packed(_, Some(_)) => Ok(None),
        };
        found.unwrap_or_else(|violation| {
            self.latch(violation);
            None
        })
    }

    /// Asks for a kick, then looks again: true when there is something to take already. The one
    /// order in which no kick is lost (VIRTIO 2.7.10).
    pub fn arm(&mut self) -> bool {
        if self.violation.is_some() {
            return false;
        }
        let (found, left) = match &mut self.ring {
            Ring::Split(ring, record) => {
                (ring.arm(), record.as_ref().and_then(|record| record.next_left()))
            }
            Ring::Packed(ring, record) => {
                (Ok(ring.arm()), record.as_ref().and_then(|record| record.next_left()))
            }
        };
        match found {
            Ok(found) => found || left.is_some(),
            Err(violation) => {
                self.latch(violation);
                false
            }
        }
    }

    /// Asks for no kicks. The guest may still send some.
    pub fn disarm(&mut self) {
        match &mut self.ring {
            Ring::Split(ring, _) => ring.disarm(),
            Ring::Packed(ring, _) => ring.disarm(),
        }
    }

    /// Where the next process or sidecore goes on: the value for `GET_VRING_BASE`. Exact only when
    /// nothing is in flight or [left](Self::left), and everything is published.
    pub fn base(&self) -> u32 {
        match &self.ring {
            Ring::Split(ring, _) => ring.next().wrapping_sub(self.left()).into(),
            Ring::Packed(ring, _) => {
                let (next, used) = ring.places();
                u32::from(next.bits()) | u32::from(used.bits()) << 16
            }
        }
    }

    /// The next place to take from and the next used place, each as its ring counts them.
    #[inline]
    fn places(&self) -> (u16, u16) {
        match &self.ring {
            Ring::Split(ring, _) => (ring.next(), ring.used_next()),
            Ring::Packed(ring, _) => {
                let (next, used) = ring.places();
                (next.bits(), used.bits())
            }
        }
    }

    /// Where taking goes on after the chain of `ticket`, when it was at `next`.
    fn after(&self, next: u16, ticket: &Ticket) -> u16 {
        match &self.ring {
            Ring::Split(..) => next.wrapping_add(1),
            Ring::Packed(..) => Place::of_bits(next).after(ticket.descriptors(), self.size).bits(),
        }
    }

    /// Whether it keeps a record of what is in flight, from which a successor goes on.
    pub fn is_recorded(&self) -> bool {
        matches!(&self.ring, Ring::Split(_, Some(_)) | Ring::Packed(_, Some(_)))
    }

    /// Chains taken and not completed.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.in_flight.get()
    }

    /// Chains that an earlier process took and did not complete, and that were not taken here yet.
    pub fn left(&self) -> u16 {
        match &self.ring {
            Ring::Split(_, record) => record.as_ref().map_or(0, |record| record.left()),
            Ring::Packed(_, record) => record.as_ref().map_or(0, |record| record.left()),
        }
    }

    /// Entries of the ring.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// What latched the queue.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// The violation, once.
    pub fn take_report(&mut self) -> Option<Violation> {
        if self.violation.is_none() || std::mem::replace(&mut self.reported, true) {
            return None;
        }
        self.violation
    }

    /// Latches the queue: for what only the device can see (no room for a status).
    #[cold]
    pub fn latch(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
        self.ahead.forget();
    }
}

fn split_ring(mut ring: Split, inflight: Option<Inflight>) -> Ring {
    let record = inflight.map(|inflight| {
        let used = ring.used_shown();
        let record = SplitRecord::recover(inflight, used);
        ring.set_next(used.wrapping_add(record.left()));
        Box::new(record)
    });
    Ring::Split(ring, record)
}

fn packed_ring(mut ring: Packed, inflight: Option<Inflight>) -> Result<Ring, SetupError> {
    let Some(inflight) = inflight else { return Ok(Ring::Packed(ring, None)) };
    let (next, used) = ring.places();
    let (record, next) = PackedRecord::recover(inflight, ring.ring(), next, used)?;
    ring.set_places(next, record.used());
    Ok(Ring::Packed(ring, Some(Box::new(record))))
}

mod fit;

#[cfg(test)]
mod tests;
