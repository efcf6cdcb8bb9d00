//! A device that is served, and the attachment of the client that has it: slots, turns, and who may come next.
//!
//! Each turn of a slot is executed once. That belongs to the attachment: sessions come and go.

use std::collections::VecDeque;

use super::slot::{Slot, State as SlotState};
use super::{ExportSpec, HostCounts, HostEvent, Work};
use crate::handshake::PublicKey;
use crate::loss::{Mark, MarkKind};
use crate::session::Out;
use crate::wire::{
    Bind, End, Intent, Malformed, News, Op, Outcome, Part, Piece, Record, Status, Verifier,
    checksum,
};

/// Who has the device's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody here.
    Free,
    /// The caller opens it.
    Opening,
    Held,
    /// Nothing more is executed; what is executing ends.
    Draining,
    /// The caller lets go of it.
    Closing,
}

/// A client that waits for the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) number: u32,
    pub(super) bind: Bind,
}

/// The device.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) number: u16,
    pub(super) device: u64,
    clients: Vec<PublicKey>,
    pub(super) news: News,
    pub(super) verifier: Verifier,
    pub(super) state: State,
    pub(super) waiting: Option<Wait>,
    pub(super) owes_news: bool,
    /// Of the attachment; it survives sessions, and is refused when it is not the newest.
    pub(super) generation: u64,
    /// The generation that the caller keeps.
    told: u64,
    instance: u64,
    binding: u64,
    /// The session that has it, and the handle there.
    session: Option<(u32, u32)>,
    /// What that session is told when the device was let go.
    end: Option<End>,
    /// How the attachment of this generation and instance was released, for a client that has not heard of it.
    released: Option<Outcome>,
    /// Nothing has come for these slots: the client may not know yet that they began anew.
    is_untouched: bool,
    /// Changes with each new set of slots.
    serial: u64,
    slot_bytes: u32,
    slots: Vec<Slot>,
    memory: Vec<u8>,
    part_bytes: usize,
    ready: VecDeque<u16>,
    answers: VecDeque<u16>,
    executing: u32,
}

impl Export {
    pub(super) fn new(number: u16, spec: ExportSpec) -> Export {
        Export {
            number,
            device: spec.device,
            clients: spec.clients,
            news: spec.news,
            verifier: Verifier::default(),
            state: State::Free,
            waiting: None,
            owes_news: false,
            generation: spec.generation,
            told: spec.generation,
            instance: 0,
            binding: 0,
            session: None,
            end: None,
            released: None,
            is_untouched: false,
            serial: 0,
            slot_bytes: 0,
            slots: Vec::new(),
            memory: Vec::new(),
            part_bytes: 512,
            ready: VecDeque::new(),
            answers: VecDeque::new(),
            executing: 0,
        }
    }

    pub(super) fn may(&self, client: &PublicKey) -> bool {
        !self.news.is_removed && (self.clients.is_empty() || self.clients.contains(client))
    }

    /// Whether this bind, or a later one of that client, was heard before.
    pub(super) fn has_heard(&self, bind: &Bind) -> bool {
        let waits = self.waiting.as_ref().map(|wait| (wait.bind.instance, wait.bind.binding));
        [Some((self.instance, self.binding)), waits]
            .into_iter()
            .flatten()
            .any(|(instance, binding)| instance == bind.instance && bind.binding <= binding)
    }

    /// Whether somebody else has had the device since.
    pub(super) fn is_stale(&self, bind: &Bind) -> bool {
        let is_others = self.instance != 0 && self.instance != bind.instance;
        bind.generation < self.generation || bind.generation == self.generation && is_others
    }

    /// Whether it asks for the attachment that is here.
    pub(super) fn is_same_attachment(&self, bind: &Bind) -> bool {
        bind.intent == Intent::Again
            && bind.generation == self.generation
            && bind.instance == self.instance
            && usize::from(bind.slots) == self.slots.len()
            && bind.slot_bytes == self.slot_bytes
    }

    /// The attachment goes on in another session: whether the client knows its slots.
    pub(super) fn rebind(&mut self, wait: &Wait, part_bytes: usize) -> Outcome {
        self.session = Some((wait.number, crate::handle(wait.bind.index, wait.bind.binding)));
        self.binding = wait.bind.binding;
        self.part_bytes = part_bytes;
        self.owes_news = false;
        self.answers.clear();
        for slot in &mut self.slots {
            slot.hush();
            slot.is_queued = false;
            if slot.state == SlotState::Gathering {
                slot.forget();
            }
        }
        if self.is_untouched { Outcome::Fresh } else { Outcome::Kept }
    }

    /// Somebody wants it. Whoever has it goes on, unless it is the same client that asks anew, or one that has
    /// had it later, of which an IOhost that began anew may not know.
    pub(super) fn wait(&mut self, wait: Wait, events: &mut VecDeque<HostEvent>) {
        let is_same = wait.bind.instance == self.instance;
        let is_later = wait.bind.intent == Intent::Again && wait.bind.generation > self.generation;
        self.waiting = Some(wait);
        match self.state {
            State::Free => self.open(events),
            State::Held if is_same => self.drain(events),
            State::Held if is_later => {
                self.end = Some(End::Revoked);
                self.drain(events);
            }
            _ => {}
        }
    }

    /// Whoever has it asks for it anew, and somebody else waits: what it had is over.
    pub(super) fn give_up(&mut self, bind: &Bind, events: &mut VecDeque<HostEvent>) {
        if self.state == State::Held && bind.instance == self.instance {
            self.drain(events);
        }
    }

    fn open(&mut self, events: &mut VecDeque<HostEvent>) {
        let Some(wait) = &self.waiting else { return };
        let generation = self.next_generation(&wait.bind);
        self.state = State::Opening;
        self.told = generation;
        events.push_back(HostEvent::Open { export: self.number, generation });
    }

    /// Whether who waits now would get another generation than the one that the caller was told to keep.
    pub(super) fn is_outdated(&self) -> bool {
        self.waiting.is_some_and(|wait| self.next_generation(&wait.bind) != self.told)
    }

    fn next_generation(&self, bind: &Bind) -> u64 {
        match bind.intent {
            Intent::Again => bind.generation.max(self.generation),
            _ => self.generation + 1,
        }
    }

    /// How what this asks for was released: its slots are gone, and nothing of it may be executed again.
    pub(super) fn released_for(&self, bind: &Bind) -> Option<Outcome> {
        let is_it = bind.intent == Intent::Again
            && bind.generation == self.generation
            && bind.instance == self.instance;
        self.released.filter(|_| is_it)
    }

    /// Gives the opened device to who waited: how, and by how many bytes memory has grown.
    pub(super) fn grant(
        &mut self,
        wait: &Wait,
        part_bytes: usize,
        memory_free: usize,
    ) -> (Outcome, isize) {
        if wait.bind.intent == Intent::Again && self.is_stale(&wait.bind) {
            return (Outcome::Stale, 0);
        }
        if let Some(outcome) = self.released_for(&wait.bind) {
            return (outcome, 0);
        }
        (self.end, self.released) = (None, None);
        if self.is_same_attachment(&wait.bind) {
            self.state = State::Held;
            return (self.rebind(wait, part_bytes), 0);
        }
        let count = usize::from(wait.bind.slots);
        let bytes = count * wait.bind.slot_bytes as usize;
        let before = self.forget();
        if bytes > memory_free + before {
            return (Outcome::Busy, -(before as isize));
        }
        self.generation = self.next_generation(&wait.bind);
        self.instance = wait.bind.instance;
        self.serial += 1;
        self.slot_bytes = wait.bind.slot_bytes;
        self.slots = vec![Slot::new(); count];
        self.memory = vec![0; bytes];
        self.ready = VecDeque::with_capacity(count);
        self.answers = VecDeque::with_capacity(count);
        self.state = State::Held;
        self.is_untouched = true;
        let outcome = self.rebind(wait, part_bytes);
        (outcome, bytes as isize - before as isize)
    }

    /// Gives the attachment's memory back: how much it was.
    pub(super) fn forget(&mut self) -> usize {
        let bytes = self.memory.len();
        self.slots = Vec::new();
        self.memory = Vec::new();
        self.ready = VecDeque::new();
        self.answers = VecDeque::new();
        bytes
    }

    /// The session that has it, and the handle there.
    pub(super) fn bound(&self) -> Option<(u32, u32)> {
        self.session
    }

    /// The client gives it back.
    pub(super) fn leave(&mut self, events: &mut VecDeque<HostEvent>) {
        if self.state == State::Held {
            self.end = Some(End::Released);
            self.drain(events);
        }
    }

    /// It is served no more.
    pub(super) fn remove(&mut self, events: &mut VecDeque<HostEvent>) {
        self.news.is_removed = true;
        self.waiting = None;
        if self.state == State::Held {
            self.end = Some(End::Revoked);
            self.drain(events);
        }
    }

    pub(super) fn update(&mut self, news: News) {
        self.news = news;
        self.owes_news = self.session.is_some();
    }

    /// A session is over.
    pub(super) fn lose_session(&mut self, number: u32, events: &mut VecDeque<HostEvent>) {
        if self.session.is_none_or(|(session, _)| session != number) {
            return;
        }
        self.session = None;
        if self.state == State::Held {
            self.drain(events);
        }
    }

    /// Executes nothing more.
    fn drain(&mut self, events: &mut VecDeque<HostEvent>) {
        self.state = State::Draining;
        self.ready.clear();
        self.slots.iter_mut().for_each(Slot::forget);
        if self.executing == 0 {
            self.close(events);
        }
    }

    /// It was opened, or not, and whoever wanted it is gone.
    pub(super) fn unwanted(&mut self, is_open: bool, events: &mut VecDeque<HostEvent>) {
        if is_open {
            self.close(events);
        } else {
            self.state = State::Free;
        }
    }

    pub(super) fn close(&mut self, events: &mut VecDeque<HostEvent>) {
        self.state = State::Closing;
        events.push_back(HostEvent::LetGo { export: self.number });
    }

    /// It was let go, and is opened for whoever waits: which end is to be told, and to which session and handle.
    pub(super) fn closed(
        &mut self,
        is_synced: bool,
        events: &mut VecDeque<HostEvent>,
    ) -> (Option<End>, Option<(u32, u32)>) {
        if self.state != State::Closing {
            return (None, None);
        }
        self.state = State::Free;
        self.open(events);
        let end = match self.end.take() {
            Some(End::Released) if !is_synced => Some(End::Unsynced),
            other => other,
        };
        match end {
            Some(End::Released) => self.released = Some(Outcome::Released),
            Some(End::Unsynced) => self.released = Some(Outcome::Unsynced),
            _ => {}
        }
        (end, self.session.take())
    }

    /// A fragment. An error when a client that is whole cannot have sent it.
    pub(super) fn part(
        &mut self,
        part: &Part<'_>,
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
        let is_next = Some(part.turn) == slot.turn.checked_add(1);
        let is_settled = matches!(slot.state, SlotState::Idle | SlotState::Answered);
        if !fits || part.turn > slot.turn && !(is_next && is_settled) {
            return Err(Malformed::Field);
        }
        if self.state != State::Held {
            // It is being let go: who sent this hears of it.
            return Ok(());
        }
        if is_next {
            slot.turn = part.turn;
            slot.state = SlotState::Gathering;
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
        if slot.state != SlotState::Gathering || slot.have.has(number) {
            return Ok(());
        }
        slot.have.insert(number);
        slot.missing -= 1;
        let is_whole = slot.missing == 0;
        let start = at * self.slot_bytes as usize + place;
        self.memory[start..start + data_len].copy_from_slice(part.data);
        if is_whole {
            self.whole(part.slot, counts);
        }
        Ok(())
    }

    /// All of a request is here: it waits to be executed, or is answered at once.
    fn whole(&mut self, at: u16, counts: &mut HostCounts) {
        let slot = &mut self.slots[usize::from(at)];
        let start = usize::from(at) * self.slot_bytes as usize;
        let data_len = if slot.op.has_data() { slot.len as usize } else { 0 };
        let data = &self.memory[start..start + data_len];
        let sum = checksum(self.device, slot.op, slot.offset, slot.len, data);
        let end = slot.offset.checked_add(u64::from(slot.len));
        if sum != slot.checksum {
            counts.mismatches += 1;
            self.answer(at, Status::Mismatch);
        } else if slot.op != Op::Flush && end.is_none_or(|end| end > self.news.size) {
            self.answer(at, Status::IoError);
        } else {
            slot.state = SlotState::Ready;
            self.ready.push_back(at);
        }
    }

    fn answer(&mut self, at: u16, status: Status) {
        let slot = &mut self.slots[usize::from(at)];
        slot.state = SlotState::Answered;
        slot.status = status;
        if slot.op == Op::Read && status == Status::Ok {
            let start = usize::from(at) * self.slot_bytes as usize;
            let data = &self.memory[start..start + slot.len as usize];
            slot.answer_sum = checksum(self.device, slot.op, slot.offset, slot.len, data);
        }
        if self.session.is_some() {
            self.say(at);
        }
    }

    fn say(&mut self, at: u16) {
        self.slots[usize::from(at)].say(self.part_bytes);
        self.queue_answer(at);
    }

    fn queue_answer(&mut self, at: u16) {
        let slot = &mut self.slots[usize::from(at)];
        let has_more = slot.never_seen.is_some() || !slot.to_send.is_empty();
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
            SlotState::Answered => self.say(at),
            // What is here already was sent in this session, and stays.
            SlotState::Gathering => {
                slot.never_seen = Some(turn);
                self.queue_answer(at);
            }
            SlotState::Idle | SlotState::Ready | SlotState::Executing => {}
        }
        Ok(())
    }

    pub(super) fn has_work(&self) -> bool {
        self.state == State::Held && !self.ready.is_empty()
    }

    pub(super) fn next_work(&mut self) -> Option<Work> {
        let at = self.ready.pop_front()?;
        let slot = self.slots.get_mut(usize::from(at))?;
        slot.state = SlotState::Executing;
        self.executing += 1;
        let (op, offset, len) = (slot.op, slot.offset, slot.len);
        Some(Work { export: self.number, op, offset, len, slot: at, serial: self.serial })
    }

    pub(super) fn buffer(&mut self, work: &Work) -> &mut [u8] {
        let is_transfer = work.op.has_data() || work.op == Op::Read;
        if !is_transfer || work.serial != self.serial {
            return &mut [];
        }
        let start = usize::from(work.slot) * self.slot_bytes as usize;
        self.memory.get_mut(start..start + work.len as usize).unwrap_or_default()
    }

    pub(super) fn finish(&mut self, work: &Work, status: Status, events: &mut VecDeque<HostEvent>) {
        let slot = self.slots.get(usize::from(work.slot));
        let is_ours = slot.is_some_and(|slot| slot.state == SlotState::Executing);
        if work.serial != self.serial || !is_ours {
            return;
        }
        self.executing -= 1;
        self.answer(work.slot, status);
        if self.state == State::Draining && self.executing == 0 {
            self.close(events);
        }
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
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
        while let Some(part) = slot.to_send.lowest() {
            mark.part = part as u8;
            let place = part * self.part_bytes;
            let end = (place + self.part_bytes).min(slot.len as usize);
            let record = if slot.op == Op::Read && slot.status == Status::Ok {
                Record::Piece(Piece {
                    handle,
                    slot: at,
                    turn: slot.turn,
                    len: slot.len,
                    place: place as u32,
                    checksum: slot.answer_sum,
                    data: &self.memory[start + place..start + end],
                })
            } else {
                Record::Done { handle, slot: at, turn: slot.turn, status: slot.status }
            };
            if !out.push(&record, Some(mark)) {
                return false;
            }
            slot.to_send.remove(part);
        }
        true
    }

    pub(super) fn mark_taken(&mut self, mark: Mark) {
        if let Some(slot) = self.slots.get_mut(usize::from(mark.slot))
            && mark.kind == MarkKind::Part
            && slot.turn == mark.turn
            && slot.state == SlotState::Answered
        {
            slot.taken.insert(usize::from(mark.part));
            slot.to_send.remove(usize::from(mark.part));
        }
    }

    pub(super) fn mark_lost(&mut self, mark: Mark) {
        let Some(slot) = self.slots.get_mut(usize::from(mark.slot)) else { return };
        match mark.kind {
            MarkKind::Part if slot.turn == mark.turn && slot.state == SlotState::Answered => {
                if slot.taken.has(usize::from(mark.part)) {
                    return;
                }
                slot.to_send.insert(usize::from(mark.part));
            }
            MarkKind::Recall if Some(mark.turn) == slot.turn.checked_add(1) => {
                slot.never_seen = Some(mark.turn);
            }
            _ => return,
        }
        self.queue_answer(mark.slot);
    }
}
