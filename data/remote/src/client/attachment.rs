//! One device in the hands of this client: its slots, their memory, and how it is bound.
//!
//! It outlives sessions. Requests wait here while there is none.

use std::collections::VecDeque;

use super::slot::{Slot, State as SlotState};
use super::{AttachSpec, Counts, Event, Finished, Over, Rejected, Request, Standing};
use crate::wire::{
    Bound, End, Intent, Malformed, News, Op, Piece, Record, Status, Verifier, checksum,
};

mod binding;
mod handing;
mod kept;
mod replay;
mod sending;

use kept::Kept;
use replay::Replay;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be asked for, not before this time.
    Wanted {
        at: u64,
    },
    Asked,
    Bound,
    /// The IOhost has given it, and it is not what its guest was using: nothing is asked of it.
    Other(Bound),
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
    /// When it was made.
    pub(super) since: u64,
    /// Among those that are used, as who holds it counts.
    pub(super) is_counted: bool,
    spec: AttachSpec,
    intent: Intent,
    state: State,
    wants_release: bool,
    binding: u64,
    generation: u64,
    /// Of the slots at the IOhost, whose turns these are; 0: none.
    name: u64,
    news: Option<News>,
    /// In which binding that came: news may overtake the answer to a bind.
    news_binding: u64,
    /// As it was last, of this attachment or of one before.
    verifier: Option<Verifier>,
    /// The image that its guest is on; 0: not known.
    image: u64,
    /// Whatever is there when it is bound next is what its guest is on.
    accepts: bool,
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
    /// The IOhost has said that all is stable, and that it has let go.
    is_settled: bool,
    /// Copies of what was not flushed, if any are to be made.
    kept: Option<Kept>,
    /// They are being sent again.
    replay: Option<Replay>,
    /// Those of them that have ended, and were not counted yet.
    replayed_count: u64,
    /// How it stands is to be said.
    stands_anew: bool,
    /// A flush of its own has failed, and nobody was told.
    owes_failure: bool,
    /// Of a fragment, in the last binding.
    part_bytes: usize,
}

impl Attachment {
    pub(super) fn new(
        index: u16,
        instance: u64,
        since: u64,
        spec: AttachSpec,
        intent: Intent,
    ) -> Option<Attachment> {
        let fits = (1..=crate::SLOTS_MAX).contains(&spec.slots)
            && (512..=crate::wire::REQUEST_BYTES_MAX as u32).contains(&spec.slot_bytes)
            && (spec.keep_bytes == 0 || spec.slots > 1);
        let count = usize::from(spec.slots);
        fits.then(|| Attachment {
            index,
            instance,
            since,
            is_counted: false,
            spec,
            intent,
            state: State::Wanted { at: 0 },
            wants_release: false,
            binding: 0,
            generation: 0,
            name: 0,
            news: None,
            news_binding: 0,
            verifier: None,
            image: 0,
            accepts: false,
            is_shrunk: false,
            slots: vec![Slot::new(); count],
            memory: vec![0; count * spec.slot_bytes as usize],
            free: (0..spec.requests_max()).rev().collect(),
            queue: VecDeque::with_capacity(count),
            finished: VecDeque::with_capacity(count),
            number: 0,
            written: 0,
            flushed: 0,
            is_flush_lost: false,
            is_settled: false,
            kept: (spec.keep_bytes > 0).then(|| Kept::new(spec.keep_bytes as usize, 0)),
            replay: None,
            replayed_count: 0,
            stands_anew: false,
            owes_failure: false,
            part_bytes: 512,
        })
    }

    /// The device was had before, and stood so.
    pub(super) fn after(mut self, standing: Option<Standing>) -> Attachment {
        if let Some(Standing { verifier, is_unflushed, is_lost, image }) = standing {
            (self.verifier, self.image) = (verifier, image);
            // One of those that the next flush covers.
            self.written = u64::from(is_unflushed);
            if let Some(kept) = &mut self.kept {
                kept.forget_all(self.written);
            }
            self.is_flush_lost = is_lost;
        }
        self
    }

    /// What is to be kept of the device.
    fn standing(&self) -> Option<Standing> {
        let (verifier, is_lost) = (self.verifier_to_keep(), self.is_flush_lost);
        // While it is bound, somebody may write at any time.
        let is_unflushed = self.state != State::Over || self.written > self.flushed;
        let is_unflushed = is_unflushed && !self.is_settled;
        let is_owed = verifier.is_some() && !self.is_settled;
        let verifier = verifier.filter(|_| is_lost || is_owed);
        let image = self.image;
        let is_known = is_lost || is_owed || image != 0;
        is_known.then_some(Standing { verifier, is_unflushed, is_lost, image })
    }

    pub(super) fn forgive(&mut self) {
        self.is_flush_lost = false;
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
        let slots = self.slots.iter().take(usize::from(self.spec.requests_max()));
        slots.filter(|slot| slot.state == SlotState::Waiting).count()
    }

    pub(super) fn has_queued(&self) -> bool {
        matches!(self.state, State::Bound | State::Leaving { .. })
            && (self.has_own_queued() || self.replay.is_none() && !self.queue.is_empty())
    }

    pub(super) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    pub(super) fn submit(
        &mut self,
        request: Request,
        fill: impl FnOnce(&mut [u8]) -> bool,
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
        if !fits {
            return Err(Rejected::Length);
        }
        let at = self.free.last().copied().ok_or(Rejected::Full)?;
        let start = usize::from(at) * self.spec.slot_bytes as usize;
        let copy = &mut self.memory[start..start + data_len];
        if op.has_data() && !fill(copy) {
            return Err(Rejected::Unfilled);
        }
        self.free.pop();
        self.begin(at, (op, offset, len), tag, part_bytes);
        Ok(())
    }

    /// The slot's next turn, with the bytes that stand in its memory.
    fn begin(&mut self, at: u16, (op, offset, len): (Op, u64, u32), tag: u64, part_bytes: usize) {
        let start = usize::from(at) * self.spec.slot_bytes as usize;
        let copy = &self.memory[start..start + if op.has_data() { len as usize } else { 0 }];
        // The sum is taken over the copy: what was copied is what is executed, or nothing is.
        let sum = checksum(self.spec.device, op, offset, len, copy);
        self.number += 1;
        let (number, covers) = (self.number, self.written);
        let slot = &mut self.slots[usize::from(at)];
        slot.turn += 1;
        (slot.state, slot.is_said) = (SlotState::Waiting, false);
        (slot.op, slot.offset, slot.len, slot.tag) = (op, offset, len, tag);
        (slot.checksum, slot.number, slot.covers) = (sum, number, covers);
        slot.restart(part_bytes);
        self.queue_slot(at);
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
        if !slot.is_queued && (slot.recalls || !slot.sending.is_empty()) {
            slot.is_queued = true;
            if !self.is_own(at) {
                self.queue.push_back(at);
            }
        }
    }

    fn finish(&mut self, at: u16, status: Status) {
        let slot = &mut self.slots[usize::from(at)];
        slot.state = SlotState::Ended;
        slot.sending = Default::default();
        slot.recalls = false;
        slot.status = status;
        let (op, covers) = (slot.op, slot.covers);
        if self.is_own(at) {
            return self.own_ended(at, status);
        }
        self.finished.push_back(at);
        let is_good = status == Status::Ok;
        let is_owed = is_good && op.is_stable() && std::mem::take(&mut self.owes_failure);
        if is_good && op.is_stable() && self.is_flush_lost || is_owed {
            self.slots[usize::from(at)].status = Status::IoError;
        } else if op == Op::Flush {
            self.flush_ended(covers, is_good);
        } else if is_good {
            self.written += u64::from(op.is_volatile());
            self.keep(at);
        }
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
            Record::News { news, .. } => match &mut self.state {
                // Of something else than what its guest is on.
                State::Other(bound) => {
                    if news.revision > bound.news.revision {
                        bound.news = *news;
                    }
                }
                _ => self.note(*news, events, false),
            },
            Record::Ended { end, .. } => match end {
                End::Released => self.released(true, events),
                End::Unsynced => self.released(false, events),
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
        if std::mem::take(&mut self.stands_anew) && self.state != State::Over {
            events.push_back(Event::Stands { attachment: self.index, standing: self.standing() });
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
        if waits && !one.is_said {
            return Err(Malformed::Field);
        }
        // Nothing else is asked before all is there again.
        let may_be = self.replays_to().is_none() || self.is_own(slot);
        let is_ours = may_be && matches!(self.state, State::Bound | State::Leaving { .. });
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
