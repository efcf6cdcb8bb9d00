//! One device in the hands of this client: its slots, their memory, and how it is bound.
//!
//! It outlives sessions. Requests wait here while there is none.

use std::collections::VecDeque;

use super::slot::{Slot, State as SlotState};
use super::{AttachSpec, Counts, Event, Finished, Rejected, Request};
use crate::wire::{
    Bind, Bound, End, Intent, Malformed, News, Op, Outcome, Piece, Record, Status, Verifier,
    checksum,
};

mod sending;

/// After which a device is asked for again that could not be had.
const RETRY_NS: u64 = 100_000_000;

/// Why a device cannot be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is none for this client (now).
    NoDevice,
    /// Another client waits for it already, or the IOhost has no memory.
    Busy,
    /// The IOhost cannot open its storage.
    Failed,
}

/// Why an attachment is over for good. But for the first one, what was acknowledged since the last flush may be gone,
/// and whoever uses the device must hear of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The client released it, and all that was acknowledged is stable.
    Released,
    /// The client released it, and what was acknowledged since the last flush may be gone.
    Unsynced,
    /// The IOhost gave it up.
    Revoked,
    /// Another client has it.
    Taken,
    /// The device is another one, or has other contents.
    Changed,
    /// Nothing was heard for so long that requests failed.
    Silent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be asked for, not before this time.
    Wanted {
        at: u64,
    },
    Asked,
    Bound,
    /// Its end is to be said; or was.
    Leaving {
        is_said: bool,
    },
    Over,
}

/// The attachment.
#[derive(Debug)]
pub(super) struct Attachment {
    index: u16,
    instance: u64,
    spec: AttachSpec,
    intent: Intent,
    state: State,
    wants_release: bool,
    binding: u64,
    generation: u64,
    news: Option<News>,
    /// In which binding that came: news may overtake the answer to a bind.
    news_binding: u64,
    verifier: Verifier,
    is_shrunk: bool,
    slots: Vec<Slot>,
    memory: Vec<u8>,
    free: Vec<u16>,
    /// Slots with something to say.
    queue: VecDeque<u16>,
    finished: VecDeque<u16>,
    number: u64,
    /// Writes that were reported done, and how many of them a flush has made stable.
    written: u64,
    flushed: u64,
    /// Acknowledged writes may be gone: nothing that promises stability ends well any more.
    is_flush_lost: bool,
}

impl Attachment {
    pub(super) fn new(
        index: u16,
        instance: u64,
        spec: AttachSpec,
        intent: Intent,
    ) -> Option<Attachment> {
        let fits = (1..=crate::SLOTS_MAX).contains(&spec.slots)
            && (512..=crate::wire::REQUEST_BYTES_MAX as u32).contains(&spec.slot_bytes);
        let count = usize::from(spec.slots);
        fits.then(|| Attachment {
            index,
            instance,
            spec,
            intent,
            state: State::Wanted { at: 0 },
            wants_release: false,
            binding: 0,
            generation: 0,
            news: None,
            news_binding: 0,
            verifier: Verifier::default(),
            is_shrunk: false,
            slots: vec![Slot::new(); count],
            memory: vec![0; count * spec.slot_bytes as usize],
            free: (0..spec.slots).rev().collect(),
            queue: VecDeque::with_capacity(count),
            finished: VecDeque::with_capacity(count),
            number: 0,
            written: 0,
            flushed: 0,
            is_flush_lost: false,
        })
    }

    pub(super) fn index(&self) -> u16 {
        self.index
    }

    /// What records of this binding say.
    pub(super) fn handle(&self) -> u32 {
        crate::handle(self.index, self.binding)
    }

    pub(super) fn bound_handle(&self) -> Option<u32> {
        (self.state == State::Bound).then(|| self.handle())
    }

    /// Whether the IOhost may execute something of it.
    pub(super) fn is_used(&self) -> bool {
        self.state != State::Over && self.intent != Intent::Look
    }

    pub(super) fn outstanding(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state == SlotState::Waiting).count()
    }

    pub(super) fn has_queued(&self) -> bool {
        self.state == State::Bound && !self.queue.is_empty()
    }

    pub(super) fn retry_at(&self) -> Option<u64> {
        match self.state {
            State::Wanted { at } => Some(at),
            _ => None,
        }
    }

    pub(super) fn release(&mut self) {
        self.wants_release = true;
        if self.state == State::Bound {
            self.state = State::Leaving { is_said: false };
        }
    }

    pub(super) fn lost_session(&mut self) {
        if self.state != State::Over {
            self.state = State::Wanted { at: 0 };
        }
    }

    pub(super) fn submit(
        &mut self,
        request: Request,
        data: &[u8],
        part_bytes: usize,
    ) -> Result<(), Rejected> {
        let Request { op, offset, len, tag } = request;
        if self.state == State::Over
            || self.wants_release
            || self.is_shrunk
            || self.intent == Intent::Look
        {
            return Err(Rejected::Over);
        }
        let is_transfer = op.has_data() || op == Op::Read;
        let data_len = if op.has_data() { len as usize } else { 0 };
        let fits = !is_transfer || (1..=self.spec.slot_bytes).contains(&len);
        if !fits || data.len() != data_len {
            return Err(Rejected::Length);
        }
        let at = self.free.pop().ok_or(Rejected::Full)?;
        let start = usize::from(at) * self.spec.slot_bytes as usize;
        // The sum is taken over the copy: what was copied is what is executed, or nothing is.
        let copy = &mut self.memory[start..start + data_len];
        copy.copy_from_slice(data);
        let sum = checksum(self.spec.device, op, offset, len, copy);
        self.number += 1;
        let (number, covers) = (self.number, self.written);
        let slot = &mut self.slots[usize::from(at)];
        slot.turn += 1;
        slot.state = SlotState::Waiting;
        (slot.op, slot.offset, slot.len, slot.tag) = (op, offset, len, tag);
        (slot.checksum, slot.number, slot.covers) = (sum, number, covers);
        slot.restart(part_bytes);
        self.queue_slot(at);
        Ok(())
    }

    pub(super) fn next_finished(&mut self) -> Option<Finished> {
        let at = self.finished.pop_front()?;
        let slot = &self.slots[usize::from(at)];
        let (tag, op, status) = (slot.tag, slot.op, slot.status);
        Some(Finished { attachment: self.index, tag, op, status, slot: at })
    }

    pub(super) fn data(&self, at: u16) -> &[u8] {
        let slot = &self.slots[usize::from(at)];
        let len = if slot.op == Op::Read && slot.status == Status::Ok { slot.len } else { 0 };
        let start = usize::from(at) * self.spec.slot_bytes as usize;
        &self.memory[start..start + len as usize]
    }

    pub(super) fn free(&mut self, at: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(at))
            && slot.state == SlotState::Ended
        {
            slot.state = SlotState::Free;
            self.free.push(at);
        }
    }

    fn queue_slot(&mut self, at: u16) {
        let slot = &mut self.slots[usize::from(at)];
        if !slot.is_queued && (slot.recalls || !slot.to_send.is_empty()) {
            slot.is_queued = true;
            self.queue.push_back(at);
        }
    }

    /// What is to be said of the attachment itself; a bind with this number, which no other one of the client has.
    pub(super) fn wants_to_say(&self, now: u64, binding: u64) -> Option<Record<'static>> {
        match self.state {
            State::Wanted { at } if at <= now => Some(Record::Bind(Bind {
                device: self.spec.device,
                intent: self.intent,
                index: self.index,
                slots: self.spec.slots,
                slot_bytes: self.spec.slot_bytes,
                binding,
                generation: self.generation,
                instance: self.instance,
            })),
            State::Leaving { is_said: false } => Some(Record::Release { handle: self.handle() }),
            _ => None,
        }
    }

    /// It is on its way. True when `binding` was used.
    pub(super) fn said(&mut self, binding: u64) -> bool {
        match &mut self.state {
            State::Wanted { .. } => {
                self.binding = binding;
                self.state = State::Asked;
                return true;
            }
            State::Leaving { is_said } => *is_said = true,
            _ => {}
        }
        false
    }

    /// The answer to a bind. True when the attachment is done with.
    pub(super) fn bound(
        &mut self,
        bound: &Bound,
        part_bytes: usize,
        now: u64,
        events: &mut VecDeque<Event>,
    ) -> bool {
        let attachment = self.index;
        if bound.binding != self.binding || self.state != State::Asked {
            return false;
        }
        let is_look = self.intent == Intent::Look;
        let refused = match bound.outcome {
            Outcome::Kept | Outcome::Fresh if !is_look => {
                self.served(bound, part_bytes, events);
                return false;
            }
            Outcome::Looked if is_look => {
                events.push_back(Event::Looked { attachment, news: Some(bound.news) });
                return true;
            }
            Outcome::NoDevice if is_look => {
                events.push_back(Event::Looked { attachment, news: None });
                return true;
            }
            Outcome::Stale | Outcome::Released | Outcome::Unsynced => {
                let is_synced = bound.outcome == Outcome::Released && !self.is_flush_lost;
                let why = match bound.outcome {
                    Outcome::Stale => Over::Taken,
                    _ if is_synced => Over::Released,
                    _ => Over::Unsynced,
                };
                self.end(why, events);
                return false;
            }
            Outcome::NoDevice => Refusal::NoDevice,
            Outcome::Failed => Refusal::Failed,
            _ => Refusal::Busy,
        };
        events.push_back(Event::Refused { attachment, why: refused });
        self.state = State::Wanted { at: now + RETRY_NS };
        false
    }

    fn served(&mut self, bound: &Bound, part_bytes: usize, events: &mut VecDeque<Event>) {
        let is_first = self.intent == Intent::Take;
        if !is_first && bound.verifier.contents != self.verifier.contents {
            self.end(Over::Changed, events);
            return;
        }
        if !is_first && bound.verifier.boot != self.verifier.boot && self.written > self.flushed {
            self.is_flush_lost = true;
        }
        self.verifier = bound.verifier;
        self.generation = bound.generation;
        self.intent = Intent::Again;
        self.state = State::Bound;
        for at in 0..self.slots.len() {
            self.rebind(at, bound.outcome == Outcome::Kept, part_bytes);
        }
        let slots = &self.slots;
        self.queue.make_contiguous().sort_by_key(|at| slots[usize::from(*at)].number);
        self.note(bound.news, events, true);
        if self.wants_release {
            self.state = State::Leaving { is_said: false };
        }
    }

    /// What this slot has to do in a new binding.
    fn rebind(&mut self, at: usize, is_kept: bool, part_bytes: usize) {
        let slot = &mut self.slots[at];
        if slot.state != SlotState::Waiting {
            slot.turn = if is_kept { slot.turn } else { 0 };
            return;
        }
        slot.restart(part_bytes);
        if is_kept {
            // Only what was never seen is sent, once the IOhost has said so.
            slot.recalls = true;
            slot.to_send = Default::default();
        } else {
            slot.turn = 1;
        }
        self.queue_slot(at as u16);
    }

    fn note(&mut self, news: News, events: &mut VecDeque<Event>, is_bound: bool) {
        let before = self.news.unwrap_or_default();
        let is_first = self.news_binding != self.binding;
        if is_first || news.revision > before.revision {
            // What was beyond the new end is gone: nothing more is asked of it, whatever it says later.
            self.is_shrunk |= self.news.is_some() && news.size < before.size || news.is_removed;
            (self.news, self.news_binding) = (Some(news), self.binding);
        } else if !is_bound {
            return;
        }
        let (attachment, news) = (self.index, self.news.unwrap_or(news));
        events.push_back(if is_bound {
            Event::Bound { attachment, news, generation: self.generation }
        } else {
            Event::News { attachment, news }
        });
    }

    /// Ends the attachment, and each request of it: nothing of it can be executed any more.
    pub(super) fn end(&mut self, why: Over, events: &mut VecDeque<Event>) {
        self.state = State::Over;
        for at in 0..self.slots.len() {
            if self.slots[at].state == SlotState::Waiting {
                self.finish(at as u16, Status::IoError);
            }
        }
        events.push_back(Event::Over { attachment: self.index, why });
    }

    fn finish(&mut self, at: u16, status: Status) {
        let slot = &mut self.slots[usize::from(at)];
        slot.state = SlotState::Ended;
        slot.to_send = Default::default();
        slot.recalls = false;
        slot.status = status;
        if status == Status::Ok {
            if slot.op.is_stable() && self.is_flush_lost {
                slot.status = Status::IoError;
            } else if slot.op == Op::Flush {
                self.flushed = self.flushed.max(slot.covers);
            } else if slot.op.is_volatile() {
                self.written += 1;
            }
        }
        self.finished.push_back(at);
    }

    /// What is said of this binding.
    pub(super) fn record(
        &mut self,
        record: &Record<'_>,
        part_bytes: usize,
        counts: &mut Counts,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Malformed> {
        match record {
            Record::News { news, .. } => self.note(*news, events, false),
            Record::Ended { end, .. } => match end {
                End::Released if !self.is_flush_lost => self.end(Over::Released, events),
                End::Released | End::Unsynced => self.end(Over::Unsynced, events),
                End::Revoked => self.end(Over::Revoked, events),
                End::Unbound if self.state != State::Over => self.lost_session(),
                End::Unbound => {}
            },
            Record::Done { slot, turn, status, .. } => {
                let Some(at) = self.waiting(*slot, *turn)? else {
                    counts.records_stale += 1;
                    return Ok(());
                };
                self.done(at, *status)?;
            }
            Record::Piece(piece) => {
                let Some(at) = self.waiting(piece.slot, piece.turn)? else {
                    counts.records_stale += 1;
                    return Ok(());
                };
                self.piece(at, piece, part_bytes, counts)?;
            }
            _ => return Err(Malformed::Field),
        }
        Ok(())
    }

    /// The slot, if that turn of it waits. An error for a turn that was never asked for.
    fn waiting(&self, slot: u16, turn: u64) -> Result<Option<u16>, Malformed> {
        let one = self.slots.get(usize::from(slot)).ok_or(Malformed::Field)?;
        if turn > one.turn {
            return Err(Malformed::Field);
        }
        let waits = one.turn == turn && one.state == SlotState::Waiting;
        let is_ours = matches!(self.state, State::Bound | State::Leaving { .. });
        Ok((waits && is_ours).then_some(slot))
    }

    fn done(&mut self, at: u16, status: Status) -> Result<(), Malformed> {
        let slot = &mut self.slots[usize::from(at)];
        if status == Status::NeverSeen {
            slot.send_all();
            self.queue_slot(at);
            return Ok(());
        }
        if slot.op == Op::Read && status == Status::Ok {
            return Err(Malformed::Field);
        }
        self.finish(at, status);
        Ok(())
    }

    fn piece(
        &mut self,
        at: u16,
        piece: &Piece<'_>,
        part_bytes: usize,
        counts: &mut Counts,
    ) -> Result<(), Malformed> {
        let slot = &mut self.slots[usize::from(at)];
        let place = piece.place as usize;
        let expected = (slot.len as usize).saturating_sub(place).min(part_bytes);
        let is_first = slot.have.is_empty();
        let fits = slot.op == Op::Read
            && piece.len == slot.len
            && place.is_multiple_of(part_bytes)
            && piece.data.len() == expected
            && (is_first || slot.answer_sum == piece.checksum);
        if !fits {
            return Err(Malformed::Field);
        }
        slot.answer_sum = piece.checksum;
        let number = place / part_bytes;
        if slot.have.has(number) {
            return Ok(());
        }
        let start = usize::from(at) * self.spec.slot_bytes as usize;
        self.memory[start + place..start + place + expected].copy_from_slice(piece.data);
        slot.have.insert(number);
        slot.missing -= 1;
        if slot.missing > 0 {
            return Ok(());
        }
        let bytes = &self.memory[start..start + slot.len as usize];
        let sum = checksum(self.spec.device, slot.op, slot.offset, slot.len, bytes);
        let is_whole = sum == slot.answer_sum;
        counts.mismatches += u64::from(!is_whole);
        self.finish(at, if is_whole { Status::Ok } else { Status::Mismatch });
        Ok(())
    }
}
