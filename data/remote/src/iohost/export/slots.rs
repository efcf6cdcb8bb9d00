//! The slots of an attachment at the IOhost: fragments into requests, requests into answers, each turn once.
//!
//! Their bytes are in memory that the caller gives. It goes when the device is let go of; turns and how they ended
//! stay, so that whoever comes back is told. Not who has the device (`export`).

use std::collections::VecDeque;

use super::slot::{Slot, State};
use crate::iohost::{HostCounts, SlotMemory, Work};
use crate::loss::{Mark, MarkKind};
use crate::session::Out;
use crate::wire::{Checksum, Malformed, Op, Part, Piece, Record, Status};

/// Bytes that are summed up at a time.
const SUMMED: usize = 4096;

/// The slots.
#[derive(Debug)]
pub(in crate::iohost) struct Slots<M> {
    device: u64,
    /// No others have it; 0: there are none yet.
    pub(super) name: u64,
    /// Changes with each memory.
    serial: u64,
    pub(super) slot_bytes: u32,
    pub(super) slots: Vec<Slot>,
    memory: Option<M>,
    part_bytes: usize,
    /// Nothing has come for them: the client may not know yet that they began anew.
    pub(super) is_untouched: bool,
    ready: VecDeque<u16>,
    answers: VecDeque<u16>,
    executing: u32,
}

impl<M: SlotMemory> Slots<M> {
    pub(super) fn new(device: u64) -> Slots<M> {
        Slots {
            device,
            name: 0,
            serial: 0,
            slot_bytes: 0,
            slots: Vec::new(),
            memory: None,
            part_bytes: 512,
            is_untouched: false,
            ready: VecDeque::new(),
            answers: VecDeque::new(),
            executing: 0,
        }
    }

    pub(super) fn are(&self, count: u16, slot_bytes: u32) -> bool {
        self.slots.len() == usize::from(count) && self.slot_bytes == slot_bytes
    }

    /// Begins with new ones.
    pub(super) fn renew(&mut self, name: u64, count: u16, slot_bytes: u32) {
        let count = usize::from(count);
        (self.name, self.slot_bytes) = (name, slot_bytes);
        self.slots = vec![Slot::new(); count];
        self.ready = VecDeque::with_capacity(count);
        self.answers = VecDeque::with_capacity(count);
        self.is_untouched = true;
    }

    /// They are gone for good.
    pub(super) fn forget(&mut self) {
        self.renew(0, 0, 0);
    }

    pub(super) fn give(&mut self, memory: M, serial: u64) {
        (self.memory, self.serial) = (Some(memory), serial);
    }

    /// The caller's again. What was read goes with it: if its client has not heard, it is read once more.
    pub(super) fn take_memory(&mut self) -> Option<M> {
        self.answers.clear();
        for slot in &mut self.slots {
            slot.hush();
            slot.is_queued = false;
            if slot.state == State::Answered && slot.op == Op::Read && slot.status == Status::Ok {
                slot.state = State::Gone;
            }
        }
        self.memory.take()
    }

    /// They go on in another session, with fragments of another size.
    pub(super) fn rebind(&mut self, part_bytes: usize) {
        self.part_bytes = part_bytes;
        self.answers.clear();
        for slot in &mut self.slots {
            slot.hush();
            slot.is_queued = false;
            if slot.state == State::Gathering {
                slot.forget();
            }
        }
    }

    /// Nothing more is executed.
    pub(super) fn drain(&mut self) {
        self.ready.clear();
        self.slots.iter_mut().for_each(Slot::forget);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.executing == 0
    }

    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// A fragment for a device of `size` bytes. An error when a client that is whole cannot have sent it.
    pub(super) fn part(
        &mut self,
        part: &Part<'_>,
        is_held: bool,
        size: u64,
        counts: &mut HostCounts,
    ) -> Result<(), Malformed> {
        let at = usize::from(part.slot);
        let slot = self.slots.get_mut(at).ok_or(Malformed::Field)?;
        let (place, len) = (part.place as usize, part.len as usize);
        let is_transfer = part.op.has_data() || part.op == Op::Read;
        let data_len =
            if part.op.has_data() { len.saturating_sub(place).min(self.part_bytes) } else { 0 };
        let fits = place.is_multiple_of(self.part_bytes)
            && part.data.len() == data_len
            && (!is_transfer || part.len <= self.slot_bytes);
        self.is_untouched = false;
        let begins = slot.begins(part.turn);
        if !fits || part.turn > slot.turn && !begins {
            return Err(Malformed::Field);
        }
        if !is_held {
            // It is being let go: who sent this hears of it.
            return Ok(());
        }
        if begins {
            slot.turn = part.turn;
            slot.state = State::Gathering;
            slot.hush();
            (slot.op, slot.offset, slot.len) = (part.op, part.offset, part.len);
            slot.checksum = part.checksum;
            slot.have = Default::default();
            let parts = if part.op.has_data() { len.div_ceil(self.part_bytes) } else { 1 };
            slot.missing = parts as u16;
        }
        if part.turn != slot.turn {
            counts.records_stale += 1;
            return Ok(());
        }
        // The first one stands.
        let said = (slot.op, slot.offset, slot.len, slot.checksum);
        if said != (part.op, part.offset, part.len, part.checksum) {
            counts.conflicts += 1;
            return Ok(());
        }
        let number = place / self.part_bytes;
        if slot.state != State::Gathering || slot.have.has(number) {
            return Ok(());
        }
        slot.have.insert(number);
        slot.missing -= 1;
        let is_whole = slot.missing == 0;
        if let Some(memory) = self.memory.as_mut().filter(|_| data_len > 0) {
            memory.store(at * self.slot_bytes as usize + place, part.data);
        }
        if is_whole {
            self.whole(part.slot, size, counts);
        }
        Ok(())
    }

    /// All of a request is here: it waits to be executed, or is answered at once.
    fn whole(&mut self, at: u16, size: u64, counts: &mut HostCounts) {
        let slot = &self.slots[usize::from(at)];
        let sum = self.sum(at, if slot.op.has_data() { slot.len as usize } else { 0 });
        if sum != slot.checksum {
            counts.mismatches += 1;
            self.answer(at, Status::Mismatch);
        } else if !slot.is_within(size) {
            self.answer(at, Status::IoError);
        } else {
            self.slots[usize::from(at)].state = State::Ready;
            self.ready.push_back(at);
        }
    }

    /// Over a request and the first `len` bytes of its slot.
    fn sum(&self, at: u16, len: usize) -> u64 {
        let slot = &self.slots[usize::from(at)];
        let mut sum = Checksum::new(self.device, slot.op, slot.offset, slot.len);
        let mut buffer = [0; SUMMED];
        let start = usize::from(at) * self.slot_bytes as usize;
        for place in (0..len).step_by(SUMMED) {
            let bytes = &mut buffer[..SUMMED.min(len - place)];
            if let Some(memory) = &self.memory {
                memory.load(start + place, bytes);
            }
            sum.update(bytes);
        }
        sum.finish()
    }

    fn answer(&mut self, at: u16, status: Status) {
        let slot = &mut self.slots[usize::from(at)];
        slot.state = State::Answered;
        slot.status = status;
        if slot.op == Op::Read && status == Status::Ok {
            let len = slot.len as usize;
            self.slots[usize::from(at)].answer_sum = self.sum(at, len);
        }
        self.say(at);
    }

    fn say(&mut self, at: u16) {
        self.slots[usize::from(at)].say(self.part_bytes);
        self.queue_answer(at);
    }

    fn queue_answer(&mut self, at: u16) {
        let slot = &mut self.slots[usize::from(at)];
        let has_more = slot.never_seen.is_some() || !slot.sending.is_empty();
        if has_more && !slot.is_queued {
            slot.is_queued = true;
            self.answers.push_back(at);
        }
    }

    /// After binding again: what became of this turn?
    pub(super) fn recall(&mut self, at: u16, turn: u64) -> Result<(), Malformed> {
        self.is_untouched = false;
        let slot = self.slots.get_mut(usize::from(at)).ok_or(Malformed::Field)?;
        if Some(turn) == slot.turn.checked_add(1) {
            slot.never_seen = Some(turn);
            self.queue_answer(at);
            return Ok(());
        }
        match slot.state {
            _ if turn > slot.turn => return Err(Malformed::Field),
            _ if turn < slot.turn => {}
            State::Answered => self.say(at),
            // What is here already was sent in this session, and stays.
            State::Gathering | State::Gone => {
                slot.never_seen = Some(turn);
                self.queue_answer(at);
            }
            State::Idle | State::Ready | State::Executing => {}
        }
        Ok(())
    }

    /// The next request for a device of `size` bytes: it may have shrunk since the request came.
    pub(super) fn next_work(&mut self, export: u16, size: u64) -> Option<Work> {
        while let Some(at) = self.ready.pop_front() {
            let slot = self.slots.get_mut(usize::from(at))?;
            if !slot.is_within(size) {
                self.answer(at, Status::IoError);
                continue;
            }
            slot.state = State::Executing;
            self.executing += 1;
            let (op, offset, len, serial) = (slot.op, slot.offset, slot.len, self.serial);
            return Some(Work { export, op, offset, len, slot: at, serial });
        }
        None
    }

    pub(super) fn is_executing(&self, work: &Work) -> bool {
        let slot = self.slots.get(usize::from(work.slot));
        let is_executing = slot.is_some_and(|slot| slot.state == State::Executing);
        work.serial == self.serial && is_executing
    }

    /// Only what [`Slots::is_executing`].
    pub(super) fn finish(&mut self, work: &Work, status: Status) {
        self.executing -= 1;
        self.answer(work.slot, status);
    }

    /// It was not executed: it waits again, or was never seen. Only what [`Slots::is_executing`].
    pub(super) fn withdraw(&mut self, work: &Work, is_held: bool) {
        self.executing -= 1;
        let slot = &mut self.slots[usize::from(work.slot)];
        slot.state = State::Ready;
        if is_held {
            self.ready.push_back(work.slot);
        } else {
            slot.forget();
        }
    }

    /// Puts answers into a frame.
    pub(super) fn fill(&mut self, handle: u32, out: &mut Out<'_>) {
        while let Some(at) = self.answers.front().copied() {
            if !self.fill_slot(at, handle, out) {
                return;
            }
            self.slots[usize::from(at)].is_queued = false;
            self.answers.pop_front();
        }
    }

    /// False when not all of it fitted.
    fn fill_slot(&mut self, at: u16, handle: u32, out: &mut Out<'_>) -> bool {
        let start = usize::from(at) * self.slot_bytes as usize;
        let slot = &mut self.slots[usize::from(at)];
        let mut mark = Mark { kind: MarkKind::Recall, part: 0, slot: at, handle, turn: slot.turn };
        if let Some(turn) = slot.never_seen {
            mark.turn = turn;
            let status = Status::NeverSeen;
            if !out.push(&Record::Done { handle, slot: at, turn, status }, Some(mark)) {
                return false;
            }
            slot.never_seen = None;
        }
        (mark.kind, mark.turn) = (MarkKind::Part, slot.turn);
        let (turn, len, checksum) = (slot.turn, slot.len, slot.answer_sum);
        while let Some(part) = slot.sending.next() {
            mark.part = part as u8;
            let is_put = if slot.op == Op::Read && slot.status == Status::Ok {
                let place = part * self.part_bytes;
                let bytes = self.part_bytes.min((len as usize).saturating_sub(place));
                let data = &[];
                let place32 = place as u32;
                let piece = Piece { handle, slot: at, turn, len, place: place32, checksum, data };
                let memory = &self.memory;
                out.push_piece(&piece, bytes, mark, |into| {
                    if let Some(memory) = memory {
                        memory.load(start + place, into);
                    }
                })
            } else {
                let status = slot.status;
                out.push(&Record::Done { handle, slot: at, turn, status }, Some(mark))
            };
            if !is_put {
                return false;
            }
            slot.sending.sent(part);
        }
        true
    }

    pub(super) fn mark_taken(&mut self, mark: Mark) {
        if let Some(slot) = self.slots.get_mut(usize::from(mark.slot))
            && mark.kind == MarkKind::Part
            && slot.turn == mark.turn
            && slot.state == State::Answered
        {
            slot.sending.taken(usize::from(mark.part));
        }
    }

    pub(super) fn mark_lost(&mut self, mark: Mark) {
        let Some(slot) = self.slots.get_mut(usize::from(mark.slot)) else { return };
        match mark.kind {
            MarkKind::Part if slot.turn == mark.turn && slot.state == State::Answered => {
                slot.sending.lost(usize::from(mark.part));
            }
            MarkKind::Recall if slot.begins(mark.turn) => slot.never_seen = Some(mark.turn),
            _ => return,
        }
        self.queue_answer(mark.slot);
    }
}
