//! What a machine took along when it died is sent again, before anything else of the attachment; and flushes of the
//! attachment's own, so that this is never much.
//!
//! Not what is kept (`kept`). The last slot is used for both, and no request of anybody else's has it. What is sent again
//! goes one by one, so it is executed in the order in which it was answered.

use super::{Attachment, State};
use crate::client::slot::State as SlotState;
use crate::wire::{Op, Status, Verifier};

/// A flush of its own begins when one part in so many is used, and requests wait when one in so many is.
const FLUSH_PART: usize = 4;
const FULL_PART: usize = 2;

/// Comparisons of one write that is sent again with later ones: some milliseconds.
const STEPS_MAX: u32 = 4 << 20;

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replay {
    /// The entry that is under way; `None`: how the device stands meanwhile is not kept yet.
    next: Option<usize>,
    /// A boot that no machine ever had.
    nobodys: Verifier,
    /// Of the machine that has it when all are there.
    verifier: Verifier,
}

impl Attachment {
    pub(super) fn own_slot(&self) -> Option<u16> {
        self.kept.as_ref().and(self.spec.slots.checked_sub(1))
    }

    pub(super) fn is_own(&self, at: u16) -> bool {
        self.own_slot() == Some(at)
    }

    pub(super) fn has_own_queued(&self) -> bool {
        self.own_slot().is_some_and(|at| self.slots[usize::from(at)].is_queued)
    }

    /// Whether a request may come without what is kept growing beyond its bounds, beside writes of so many bytes; or is
    /// refused at once.
    pub(in crate::client) fn may_submit(&self, promised: u64) -> bool {
        let is_refused = self.state == State::Over || self.wants_release || self.is_shrunk;
        let kept = self.kept.as_ref().filter(|_| !is_refused);
        kept.is_none_or(|kept| !kept.is_beyond(FULL_PART, promised))
    }

    /// A request has ended well that may have to be sent again.
    pub(super) fn keep(&mut self, at: u16) {
        let slot = &self.slots[usize::from(at)];
        let (op, offset, len) = (slot.op, slot.offset, slot.len);
        let start = usize::from(at) * self.spec.slot_bytes as usize;
        let data = &self.memory[start..start + if op.has_data() { len as usize } else { 0 }];
        if let Some(kept) = &mut self.kept {
            // What is stable is never lost, but older data may be sent again, and it comes after that.
            if op.is_volatile() || op.is_stable() && !kept.is_empty() {
                kept.push((op, offset, len), data, self.written);
            }
        }
        self.flush_if_much();
    }

    fn flush_if_much(&mut self) {
        let is_much = self.kept.as_ref().is_some_and(|kept| kept.is_beyond(FLUSH_PART, 0));
        if is_much && self.replay.is_none() {
            self.flush_of_its_own();
        }
    }

    fn flush_of_its_own(&mut self) {
        if let Some(at) = self.own_slot()
            && self.slots[usize::from(at)].state == SlotState::Free
            && !self.wants_release
            && self.state != State::Over
        {
            self.begin(at, (Op::Flush, 0, 0), 0, self.part_bytes);
        }
    }

    /// A flush of whomever has ended, which covered so many writes.
    pub(super) fn flush_ended(&mut self, covers: u64, is_good: bool) {
        if is_good {
            self.flushed = self.flushed.max(covers);
        }
        if let Some(kept) = &mut self.kept {
            if is_good {
                kept.forget(self.flushed);
            } else {
                kept.forget_all(self.written);
            }
        }
        self.flush_if_much();
    }

    /// It is bound to a machine that may have lost what was not flushed. False when that is not to be had again.
    pub(super) fn may_replay(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.is_whole(self.flushed))
    }

    /// What is under way in the attachment's own slot no longer matters, in a binding with new slots.
    pub(super) fn begin_replay(&mut self, before: Verifier, verifier: Verifier) {
        if self.own_slot().is_some() {
            self.free_own();
            // Neither the machine that is gone and may come back, nor the one that has a part of it.
            let mut boot = before.boot ^ verifier.boot.rotate_left(21) ^ 0x9e37_79b9_7f4a_7c15;
            while boot == before.boot || boot == verifier.boot {
                boot = boot.wrapping_add(1);
            }
            let nobodys = Verifier { boot, ..verifier };
            self.replay = Some(Replay { next: None, nobodys, verifier });
        }
    }

    /// What is under way in the attachment's own slot does not matter any more: that turn was not had in this binding.
    fn free_own(&mut self) {
        let Some(at) = self.own_slot() else { return };
        let slot = &mut self.slots[usize::from(at)];
        slot.turn -= u64::from(slot.state == SlotState::Waiting);
        (slot.state, slot.is_queued, slot.recalls) = (SlotState::Free, false, false);
        slot.sending = Default::default();
    }

    /// Nothing that was written before is ever sent again.
    pub(super) fn forget_kept(&mut self) {
        self.replay = None;
        self.free_own();
        if let Some(kept) = &mut self.kept {
            kept.forget_all(self.written);
        }
    }

    /// How the device stands is kept: what is to be sent again may go.
    pub(in crate::client) fn stands(&mut self) {
        if let Some(replay) = self.replay.as_mut().filter(|replay| replay.next.is_none()) {
            replay.next = Some(0);
            self.send_next();
        }
    }

    /// What is to be kept of the verifier.
    pub(super) fn verifier_to_keep(&self) -> Option<Verifier> {
        self.replay.map(|replay| replay.nobodys).or(self.verifier)
    }

    /// The machine to which all is being sent again.
    pub(super) fn replays_to(&self) -> Option<Verifier> {
        self.replay.map(|replay| replay.verifier)
    }

    fn send_next(&mut self) {
        let (Some(replay), Some(kept), Some(at)) = (self.replay, &self.kept, self.own_slot())
        else {
            return;
        };
        let Some(mut next) = replay.next else { return };
        let mut steps = STEPS_MAX;
        while kept.is_covered(next, &mut steps) == Some(true) {
            next += 1;
        }
        if steps == 0 {
            // A guest and its IOhost have made it so. What is not written again is lost, and that is told.
            return self.replayed(true);
        }
        let entry = kept.entry(next);
        let is_whole = kept.is_whole(self.flushed);
        if let Some(replay) = &mut self.replay {
            replay.next = Some(next);
        }
        let Some(entry) = entry else {
            return self.replayed(!is_whole);
        };
        let start = usize::from(at) * self.spec.slot_bytes as usize;
        let len = if entry.op.has_data() { entry.len as usize } else { 0 };
        kept.read(&entry, &mut self.memory[start..start + len]);
        self.begin(at, (entry.op, entry.offset, entry.len), 0, self.part_bytes);
    }

    /// How many writes have been done once more since it was asked last.
    pub(in crate::client) fn take_replayed(&mut self) -> u64 {
        std::mem::take(&mut self.replayed_count)
    }

    /// It is over; what could not be written again is lost.
    pub(super) fn replayed(&mut self, is_lost: bool) {
        let Some(replay) = self.replay.take() else { return };
        self.verifier = Some(replay.verifier);
        self.stands_anew = true;
        if is_lost {
            self.is_flush_lost = true;
            if let Some(kept) = &mut self.kept {
                kept.forget_all(self.written);
            }
        } else {
            self.flush_of_its_own();
        }
        self.leave_if_wanted();
    }

    /// What was under way in the attachment's own slot has ended.
    pub(super) fn own_ended(&mut self, at: u16, status: Status) {
        let slot = &mut self.slots[usize::from(at)];
        slot.state = SlotState::Free;
        let (op, covers) = (slot.op, slot.covers);
        let is_over = self.state == State::Over;
        let is_to_be_repeated = status == Status::Mismatch && !is_over;
        match &mut self.replay {
            // It was not executed.
            None if is_to_be_repeated => self.flush_of_its_own(),
            Some(_) if is_to_be_repeated => self.send_next(),
            None => {
                // Whoever flushes next hears of it.
                self.owes_failure |= status != Status::Ok && !is_over;
                self.flush_ended(covers, status == Status::Ok);
            }
            // What was discarded may read as anything.
            Some(replay) if status == Status::Ok || op == Op::Discard && !is_over => {
                replay.next = replay.next.map(|next| next + 1);
                self.replayed_count += 1;
                self.send_next();
            }
            Some(_) => self.replayed(true),
        }
    }
}
