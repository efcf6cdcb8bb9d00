//! A device that is served: who has it, who may come next, and what its storage is doing.
//!
//! Its slots outlive sessions (`slots`). Called by `iohost`.

use std::collections::VecDeque;

use super::opens::Opens;
use super::{ExportSpec, HostCounts, HostEvent, SlotMemory, Work};
use crate::handshake::PublicKey;
use crate::loss::Mark;
use crate::session::Out;
use crate::wire::{Bind, End, Intent, Malformed, News, Outcome, Part, Status, Verifier};

mod handing;
mod slot;
mod slots;

use slots::Slots;

/// A client that comes with a later generation than is known here had it from another IOhost; by more than this it
/// has it from nowhere.
const GENERATIONS_AHEAD_MAX: u64 = 1 << 32;

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
    /// Another shard of this link has it.
    Elsewhere,
    /// Nobody has it yet in this process; in the one before a client had it, who may come back for a while.
    Reserved,
}

/// A client, as a device knows it: key, and the process that says that it is the client's.
pub(super) type Owner = (PublicKey, u64);

/// A client that waits for the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) number: u32,
    pub(super) client: PublicKey,
    pub(super) bind: Bind,
}

impl Wait {
    pub(super) fn owner(&self) -> Owner {
        (self.client, self.bind.instance)
    }

    pub(super) fn bytes(&self) -> usize {
        usize::from(self.bind.slots) * self.bind.slot_bytes as usize
    }
}

/// What the caller was told to open a device with: generation, slots, and their bytes.
type Told = (u64, u16, u32);

/// The device.
#[derive(Debug)]
pub(super) struct Export<M> {
    pub(super) number: u16,
    pub(super) device: u64,
    clients: Vec<PublicKey>,
    pub(super) news: News,
    /// As it was reported.
    pub(super) verifier: Verifier,
    /// Which image that was, and which one it is now; 0: not known.
    image: u64,
    next_image: u64,
    /// Makes another boot of what the caller says, once it was let go of without a sync.
    unsynced: u64,
    pub(super) state: State,
    pub(super) waiting: Option<Wait>,
    pub(super) owes_news: bool,
    /// Of the attachment; it survives sessions, and is refused when it is not the newest.
    pub(super) generation: u64,
    told: Told,
    /// Bytes of its memory, and for whom they are.
    pub(super) booked: (usize, Owner),
    owner: Owner,
    pub(super) opens: Opens,
    binding: u64,
    /// The session that has it, and the handle there.
    session: Option<(u32, u32)>,
    /// What that session is told when the device was let go.
    end: Option<End>,
    /// How the attachment of this generation and owner was released, for a client that has not heard of it.
    released: Option<Outcome>,
    slots: Slots<M>,
}

impl<M: SlotMemory> Export<M> {
    pub(super) fn new(number: u16, spec: ExportSpec) -> Export<M> {
        Export {
            number,
            device: spec.device,
            clients: spec.clients,
            news: spec.news,
            verifier: Verifier::default(),
            image: 0,
            next_image: 0,
            unsynced: 0,
            state: State::Free,
            waiting: None,
            owes_news: false,
            generation: spec.generation,
            told: (0, 0, 0),
            booked: (0, ([0; 32], 0)),
            owner: ([0; 32], 0),
            opens: Opens::of_device(),
            binding: 0,
            session: None,
            end: None,
            released: None,
            slots: Slots::new(spec.device),
        }
    }

    pub(super) fn may(&self, client: &PublicKey) -> bool {
        !self.news.is_removed && (self.clients.is_empty() || self.clients.contains(client))
    }

    /// The session that has it, and the handle there.
    pub(super) fn bound(&self) -> Option<(u32, u32)> {
        self.session
    }

    pub(super) fn name(&self) -> u64 {
        self.slots.name
    }

    /// Whether this bind, or a later one of that client, was heard before.
    pub(super) fn has_heard(&self, wait: &Wait) -> bool {
        let waits = self.waiting.as_ref().map(|other| (other.owner(), other.bind.binding));
        [Some((self.owner, self.binding)), waits]
            .into_iter()
            .flatten()
            .any(|(owner, binding)| owner == wait.owner() && wait.bind.binding <= binding)
    }

    /// Whether somebody else has had the device since, or what it says cannot be.
    pub(super) fn is_stale(&self, wait: &Wait) -> bool {
        let said = wait.bind.generation;
        let is_others = self.owner.1 != 0 && self.owner != wait.owner();
        wait.bind.intent == Intent::Again
            && (said < self.generation
                || said == self.generation && is_others
                || said > self.generation.saturating_add(GENERATIONS_AHEAD_MAX))
    }

    /// Whether it says that it has had the device later than who has it now. That one lives, so it cannot be.
    pub(super) fn is_usurped_by(&self, wait: &Wait) -> bool {
        self.state != State::Free
            && wait.bind.intent == Intent::Again
            && wait.bind.generation > self.generation
            && self.owner != wait.owner()
    }

    /// How the attachment goes on that is here. `None`: it is another one, or has to begin anew.
    pub(super) fn goes_on(&self, wait: &Wait) -> Option<Outcome> {
        let bind = &wait.bind;
        let is_it = bind.intent == Intent::Again
            && bind.generation == self.generation
            && wait.owner() == self.owner
            && self.slots.are(bind.slots, bind.slot_bytes)
            && self.slots.name != 0;
        match is_it {
            true if bind.name == self.slots.name => Some(Outcome::Kept),
            // It has not heard of these slots yet.
            true if self.slots.is_untouched => Some(Outcome::Fresh),
            _ => None,
        }
    }

    /// The attachment goes on in this session.
    pub(super) fn rebind(&mut self, wait: &Wait, part_bytes: usize) {
        self.session = Some((wait.number, crate::handle(wait.bind.index, wait.bind.binding)));
        self.binding = wait.bind.binding;
        self.owes_news = false;
        self.slots.rebind(part_bytes);
    }

    /// Somebody wants it. Whoever has it goes on, unless it is the same client that asks anew.
    pub(super) fn wait(&mut self, wait: Wait, events: &mut VecDeque<HostEvent>) {
        self.waiting = Some(wait);
        if self.state == State::Reserved && wait.owner() == self.owner && !self.is_back(&wait) {
            self.close(events);
        }
        if self.state == State::Held && wait.owner() == self.owner {
            self.drain(events);
        }
    }

    /// Nobody waits any more by this handle of a session.
    pub(super) fn cancel(&mut self, number: u32, handle: u32) {
        let is_it = |wait: &Wait| {
            wait.number == number && crate::handle(wait.bind.index, wait.bind.binding) == handle
        };
        if self.waiting.as_ref().is_some_and(is_it) {
            self.waiting = None;
        }
    }

    /// Whoever has it asks for it anew, and somebody else waits: what it had is over.
    pub(super) fn give_up(&mut self, wait: &Wait, events: &mut VecDeque<HostEvent>) {
        if self.state == State::Held && wait.owner() == self.owner {
            self.drain(events);
        }
    }

    /// The generation that this would get. `None`: there is none left.
    fn next_generation(&self, bind: &Bind) -> Option<u64> {
        match bind.intent {
            Intent::Again => Some(bind.generation.max(self.generation)),
            _ => self.generation.checked_add(1),
        }
    }

    fn wants(&self, wait: &Wait) -> Option<Told> {
        Some((self.next_generation(&wait.bind)?, wait.bind.slots, wait.bind.slot_bytes))
    }

    /// Has it opened for who waits. False when there is no generation left.
    pub(super) fn open(&mut self, wait: &Wait, events: &mut VecDeque<HostEvent>) -> bool {
        let Some((generation, slots, slot_bytes)) = self.wants(wait) else { return false };
        self.state = State::Opening;
        self.told = (generation, slots, slot_bytes);
        self.booked = (wait.bytes(), wait.owner());
        let (export, is_new) = (self.number, wait.bind.intent != Intent::Again);
        let session = wait.number;
        let open = HostEvent::Open { export, generation, is_new, slots, slot_bytes, session };
        events.push_back(open);
        true
    }

    /// Whether who waits now would get something else than the caller was told to open.
    pub(super) fn is_outdated(&self) -> bool {
        self.waiting.is_some_and(|wait| self.wants(&wait) != Some(self.told))
    }

    /// How what this asks for was released: its slots are gone, and nothing of it may be executed again.
    pub(super) fn released_for(&self, wait: &Wait) -> Option<Outcome> {
        let is_it = wait.bind.intent == Intent::Again
            && wait.bind.generation == self.generation
            && wait.owner() == self.owner;
        self.released.filter(|_| is_it)
    }

    /// The storage was opened, with memory for the slots.
    pub(super) fn give(&mut self, memory: M, serial: u64) {
        self.slots.give(memory, serial);
    }

    /// Gives the opened device to who waited; `name` is for slots that begin anew.
    pub(super) fn grant(
        &mut self,
        wait: &Wait,
        storage: Verifier,
        name: u64,
        part_bytes: usize,
    ) -> Outcome {
        let verifier = Verifier { boot: storage.boot ^ self.unsynced, ..storage };
        // Turns are known only in the boot in which they were counted: of another one it is not known whether
        // what was executed is still there, so it is executed again.
        let is_known = self.image != 0 && self.next_image != 0;
        let is_it = verifier == self.verifier && !(is_known && self.image != self.next_image);
        let kept = self.goes_on(wait).filter(|_| is_it);
        (self.end, self.released) = (None, None);
        (self.verifier, self.image) = (verifier, self.next_image);
        let outcome = kept.unwrap_or_else(|| {
            self.generation = self.told.0;
            self.owner = wait.owner();
            self.slots.renew(name, wait.bind.slots, wait.bind.slot_bytes);
            Outcome::Fresh
        });
        self.state = State::Held;
        self.rebind(wait, part_bytes);
        outcome
    }

    /// See [`super::Host::identify`].
    pub(super) fn identify(&mut self, image: u64) {
        self.next_image = image;
    }

    /// Which image a client is told of that is answered so.
    pub(super) fn image_for(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Kept | Outcome::Fresh => self.image,
            _ => 0,
        }
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
        match self.state {
            State::Held => {
                self.end = Some(End::Revoked);
                self.drain(events);
            }
            State::Reserved => self.close(events),
            State::Free => self.slots.forget(),
            _ => {}
        }
    }

    /// Others may have it from now on. Who has it and may not loses it.
    pub(super) fn set_clients(
        &mut self,
        clients: Vec<PublicKey>,
        events: &mut VecDeque<HostEvent>,
    ) {
        self.clients = clients;
        // Its key alone: a client says of itself what its instance is, and may say none.
        if self.may(&self.owner.0) {
            return;
        }
        match self.state {
            State::Held => {
                self.end = Some(End::Revoked);
                self.drain(events);
            }
            State::Reserved => self.close(events),
            State::Free => self.slots.forget(),
            _ => {}
        }
    }

    /// A client has had it at another shard, with this generation: what is known of one before is over.
    pub(super) fn was_elsewhere(&mut self, generation: u64) {
        if generation > self.generation {
            self.generation = generation;
            (self.owner, self.binding, self.released) = (([0; 32], 0), 0, None);
            self.slots.forget();
        }
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
        self.slots.drain();
        if self.slots.is_idle() {
            self.close(events);
        }
    }

    pub(super) fn close(&mut self, events: &mut VecDeque<HostEvent>) {
        self.state = State::Closing;
        let is_released = self.end.is_some() || self.news.is_removed;
        events.push_back(HostEvent::LetGo { export: self.number, is_released });
    }

    /// It was let go: its memory, and which end is to be told to which session and handle.
    pub(super) fn closed(
        &mut self,
        is_synced: bool,
        unsynced: u64,
    ) -> (Option<M>, Option<End>, Option<(u32, u32)>) {
        self.state = State::Free;
        if !is_synced {
            self.unsynced = unsynced;
        }
        let memory = self.slots.take_memory();
        let end = match self.end.take() {
            Some(End::Released) if !is_synced => Some(End::Unsynced),
            other => other,
        };
        match end {
            Some(End::Released) => self.released = Some(Outcome::Released),
            Some(End::Unsynced) => self.released = Some(Outcome::Unsynced),
            _ => {}
        }
        if end.is_some() || self.news.is_removed {
            self.slots.forget();
        }
        (memory, end, self.session.take())
    }

    /// A fragment. An error when a client that is whole cannot have sent it.
    pub(super) fn part(
        &mut self,
        part: &Part<'_>,
        counts: &mut HostCounts,
    ) -> Result<(), Malformed> {
        self.slots.part(part, self.state == State::Held, self.news.size, counts)
    }

    pub(super) fn recall(&mut self, at: u16, turn: u64) -> Result<(), Malformed> {
        self.slots.recall(at, turn)
    }

    pub(super) fn has_work(&self) -> bool {
        self.state == State::Held && self.slots.has_work()
    }

    pub(super) fn next_work(&mut self) -> Option<Work> {
        self.slots.next_work(self.number, self.news.size)
    }

    /// Whether a request that was handed out may still go to the disk, its session aside.
    pub(super) fn may_go(&self, work: &Work) -> bool {
        self.state == State::Held && self.slots.is_executing(work)
    }

    /// A request has ended; `None`: it was not executed.
    pub(super) fn finish(
        &mut self,
        work: &Work,
        status: Option<Status>,
        events: &mut VecDeque<HostEvent>,
    ) {
        if !self.slots.is_executing(work) {
            return;
        }
        match status {
            Some(status) => self.slots.finish(work, status),
            None => self.slots.withdraw(work, self.state == State::Held),
        }
        if self.state == State::Draining && self.slots.is_idle() {
            self.close(events);
        }
    }

    pub(super) fn has_answers(&self) -> bool {
        self.slots.has_answers()
    }

    pub(super) fn fill(&mut self, handle: u32, out: &mut Out<'_>) {
        self.slots.fill(handle, out);
    }

    pub(super) fn mark_taken(&mut self, mark: Mark) {
        self.slots.mark_taken(mark);
    }

    pub(super) fn mark_lost(&mut self, mark: Mark) {
        self.slots.mark_lost(mark);
    }
}
