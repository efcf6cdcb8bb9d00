//! Who gets a device: binds, what the caller opens and lets go of, and what clients hear of that.
//!
//! Control's pace: this may allocate.

use super::export::{Owner, State, Wait};
use super::{Host, SlotMemory};
use crate::handshake::PublicKey;
use crate::wire::{Bind, Bound, Intent, News, Outcome, Verifier};

/// What a device takes of the memory: 128 slots of the longest requests.
const DEVICE_BYTES: usize = 16 << 20;

impl<M: SlotMemory> Host<M> {
    /// A client asks for a device. The answer may come much later.
    pub(super) fn bind(&mut self, number: u32, bind: &Bind, now: u64) {
        let Some(peer) = self.peer(number) else { return };
        if !peer.about.is_new(bind) {
            return;
        }
        let (client, part_bytes) = (peer.client, peer.session.part_bytes);
        self.forget_wait(number, bind.index);
        let wait = Wait { number, client, bind: *bind };
        let found =
            self.exports.iter().position(|one| one.device == bind.device && one.may(&client));
        let Some(at) = found else { return self.no_device(&wait) };
        let export = &mut self.exports[at];
        if bind.intent == Intent::Look {
            return self.answer(at, &wait, Outcome::Looked);
        }
        if export.has_heard(&wait) {
            return;
        }
        if export.is_stale(&wait) {
            return self.answer(at, &wait, Outcome::Stale);
        }
        // Whoever has it goes on, also when another one waits.
        if export.state == State::Held
            && let Some(outcome) = export.goes_on(&wait)
        {
            let before = export.bound().map(|(session, _)| session);
            export.rebind(&wait, part_bytes);
            self.answer(at, &wait, outcome);
            self.hold(at, &wait);
            if let Some(before) = before.filter(|before| *before != number) {
                self.end_if_left(before);
            }
            return;
        }
        if export.is_back(&wait) {
            // Whoever else waits comes again.
            if let Some(other) = export.waiting.take_if(|other| other.owner() != wait.owner()) {
                self.answer(at, &other, Outcome::Busy);
            }
            return self.wait(at, wait);
        }
        if let Some(outcome) = export.released_for(&wait) {
            return self.answer(at, &wait, outcome);
        }
        if export.is_usurped_by(&wait) {
            return self.answer(at, &wait, Outcome::Busy);
        }
        if !self.may_wait(at, &wait, now) {
            self.answer(at, &wait, Outcome::Busy);
            return self.exports[at].give_up(&wait, &mut self.events);
        }
        self.wait(at, wait);
    }

    fn wait(&mut self, at: usize, wait: Wait) {
        let export = &mut self.exports[at];
        let before = export.waiting.filter(|before| before.bind.index != wait.bind.index);
        export.wait(wait, &mut self.events);
        if let Some(peer) = self.peer(wait.number) {
            peer.about.wait_for(wait.bind.index, Some(at as u16));
        }
        if let Some(before) = before {
            // The same client waited for it at another of its places.
            self.answer(at, &before, Outcome::Busy);
        }
        self.open_next(at);
    }

    /// What a session asked for at this place before, it does not want any more.
    fn forget_wait(&mut self, number: u32, index: u16) {
        let Some(peer) = self.peer(number) else { return };
        let Some(export) = peer.about.wait_for(index, None) else { return };
        if let Some(export) = self.exports.get_mut(usize::from(export))
            && export
                .waiting
                .is_some_and(|other| other.number == number && other.bind.index == index)
        {
            export.waiting = None;
        }
    }

    /// The session has it from now on; another device that it had at that place it has forgotten.
    fn hold(&mut self, at: usize, wait: &Wait) {
        let Some(peer) = self.peer(wait.number) else { return };
        if let Some(before) = peer.about.hold(&wait.bind, at as u16)
            && let Some(export) = self.exports.get_mut(usize::from(before))
        {
            export.lose_session(wait.number, &mut self.events);
        }
    }

    /// Whether this one may wait for the device: one at a time does, unless it is gone.
    fn may_wait(&self, at: usize, wait: &Wait, now: u64) -> bool {
        let Some(other) = &self.exports[at].waiting else { return true };
        other.number == wait.number || other.owner() == wait.owner() || {
            let place = self.place_of(other.number).and_then(|at| self.places.get(at)?.peer());
            place.is_none_or(|peer| peer.session.is_dead(now))
        }
    }

    /// Has a free device opened for whoever waits, if that one may have it and there is memory.
    fn open_next(&mut self, at: usize) {
        let Some(export) = self.exports.get_mut(at) else { return };
        let Some(wait) = export.waiting else { return };
        if export.state != State::Free && !export.is_back(&wait) {
            return;
        }
        let refusal = if export.is_stale(&wait) {
            Some(Outcome::Stale)
        } else if let Some(outcome) = export.released_for(&wait) {
            Some(outcome)
        } else if !self.has_memory(wait.owner(), wait.bytes()) {
            // Nothing is forgotten for it: who had the device last may come back.
            Some(Outcome::Busy)
        } else if !self.may_open(at, &wait.client) {
            Some(Outcome::Busy)
        } else if !self.exports[at].open(&wait, &mut self.events) {
            Some(Outcome::Failed)
        } else {
            self.memory_used += wait.bytes();
            None
        };
        if let Some(outcome) = refusal {
            self.exports[at].waiting = None;
            self.answer(at, &wait, outcome);
        }
    }

    /// Whether a client may have a device opened once more, which is noted then.
    fn may_open(&mut self, at: usize, client: &PublicKey) -> bool {
        let (now, devices) = (self.told_at, self.exports.len());
        self.opens.are(devices);
        let Some(export) = self.exports.get_mut(at) else { return false };
        let may = export.opens.has_one(client, now) && self.opens.has_one(client, now);
        if may {
            export.opens.note(client, now);
            self.opens.note(client, now);
        }
        may
    }

    /// Whether there are so many bytes, in all and for this client. It leaves others theirs for devices that it may not
    /// have: as much as their part of all devices, and no more than these take.
    fn has_memory(&self, owner: Owner, bytes: usize) -> bool {
        let of_client = self.exports.iter().filter(|one| {
            let (_, booker) = one.booked;
            // Without keys a client is whoever says that he is.
            booker.0 == owner.0 && (owner.0 != [0; 32] || booker.1 == owner.1)
        });
        let used: usize = of_client.map(|one| one.booked.0).sum();
        let devices = self.exports.iter().filter(|one| !one.news.is_removed);
        let (all, others) = devices
            .fold((0, 0), |(all, others), one| (all + 1, others + usize::from(!one.may(&owner.0))));
        let part = (self.spec.memory_max / all.max(1)).saturating_mul(others);
        let reserved = part.min(others.saturating_mul(DEVICE_BYTES));
        let for_client = self.spec.client_memory_max.min(self.spec.memory_max - reserved);
        bytes <= self.spec.memory_max.saturating_sub(self.memory_used)
            && bytes <= for_client.saturating_sub(used)
    }

    fn unbook(&mut self, at: usize) {
        let (bytes, _) = std::mem::take(&mut self.exports[at].booked);
        self.memory_used -= bytes;
    }

    /// The caller has opened a device's storage, and gives memory for its slots; or could not.
    pub fn opened(&mut self, export: u16, result: Result<(Verifier, M), ()>) {
        let at = usize::from(export);
        if self.exports.get(at).is_none_or(|one| one.state != State::Opening) {
            return;
        }
        let Ok((verifier, memory)) = result else { return self.not_opened(at, Outcome::Failed) };
        let serial = self.next_name();
        let one = &mut self.exports[at];
        one.give(memory, serial);
        let is_outdated = one.is_outdated();
        let wait = one.waiting.filter(|_| !is_outdated);
        let part_bytes = wait.and_then(|wait| Some(self.peer(wait.number)?.session.part_bytes));
        let one = &mut self.exports[at];
        let (Some(wait), Some(part_bytes)) = (wait, part_bytes) else {
            // Nobody wants it any more, or somebody who wants it otherwise.
            return one.close(&mut self.events);
        };
        one.waiting = None;
        if one.is_stale(&wait) {
            one.close(&mut self.events);
            return self.answer(at, &wait, Outcome::Stale);
        }
        let outcome = one.grant(&wait, verifier, serial, part_bytes);
        self.forget_reserved(at);
        self.answer(at, &wait, outcome);
        self.hold(at, &wait);
    }

    /// A device is not opened, and why.
    fn not_opened(&mut self, at: usize, why: Outcome) {
        let is_reserved = self.is_reserved(at);
        let one = &mut self.exports[at];
        one.state = if is_reserved { State::Reserved } else { State::Free };
        // Who wants it otherwise has it opened once more.
        let is_outdated = one.is_outdated();
        let wait = one.waiting.take_if(|_| !is_outdated);
        self.unbook(at);
        if let Some(wait) = wait {
            self.answer(at, &wait, why);
        }
        self.open_next(at);
    }

    /// Which image a device is, of those that ever had its name, and at whatever IOhost; 0: not known. Told before
    /// [`Host::opened`].
    pub fn identify(&mut self, export: u16, image: u64) {
        if let Some(one) = self.exports.get_mut(usize::from(export)) {
            one.identify(image);
        }
    }

    /// Instead of [`Host::opened`]: not now. Its client asks again.
    pub fn busy(&mut self, export: u16) {
        let at = usize::from(export);
        if self.exports.get(at).is_some_and(|one| one.state == State::Opening) {
            self.not_opened(at, Outcome::Busy);
        }
    }

    /// Another shard of this link has the device, with this generation: who asks for it here waits until
    /// [`Host::comes_free`]. What this shard has asked the caller to open is answered nevertheless.
    pub fn elsewhere(&mut self, export: u16, generation: u64) {
        let Some(one) = self.exports.get_mut(usize::from(export)) else { return };
        one.was_elsewhere(generation);
        if one.state == State::Free {
            one.state = State::Elsewhere;
        }
    }

    /// Instead of [`Host::opened`]: as [`Host::elsewhere`]. Whoever waits goes on waiting.
    pub fn refer(&mut self, export: u16, generation: u64) {
        let at = usize::from(export);
        let Some(one) = self.exports.get_mut(at).filter(|one| one.state == State::Opening) else {
            return;
        };
        one.was_elsewhere(generation);
        one.state = State::Elsewhere;
        self.unbook(at);
    }

    /// No shard has the device any more: the client that waits here may have it.
    pub fn comes_free(&mut self, export: u16) {
        let at = usize::from(export);
        if let Some(one) = self.exports.get_mut(at).filter(|one| one.state == State::Elsewhere) {
            one.state = State::Free;
            self.open_next(at);
        }
    }

    /// The caller has let go of a device, and had synced it before, or could not: a caller that could not reports
    /// another boot from then on, also in its next life. The memory that it gave is its own again.
    pub fn let_go(&mut self, export: u16, is_synced: bool) -> Option<M> {
        let at = usize::from(export);
        self.exports.get(at).filter(|one| one.state == State::Closing)?;
        let unsynced = self.next_name();
        self.forget_reserved(at);
        self.unbook(at);
        let (memory, end, session) = self.exports[at].closed(is_synced, unsynced);
        if let (Some(end), Some((number, handle))) = (end, session)
            && let Some(peer) = self.peer(number)
        {
            peer.session.is_over |= !peer.about.tell_end(handle, end);
            self.wake_peer(number);
        }
        self.open_next(at);
        memory
    }

    /// The generation of a device that was found where all IOhosts keep it: whoever has an older one is refused, and
    /// who takes the device gets a later one. Told before [`Host::opened`], if it was opened.
    pub fn raise(&mut self, export: u16, generation: u64) {
        if let Some(one) = self.exports.get_mut(usize::from(export)) {
            one.generation = one.generation.max(generation);
        }
    }

    /// A device is served no more: what is executing ends, and its client and who waits for it hear of it.
    pub fn remove(&mut self, export: u16) {
        let Some(one) = self.exports.get_mut(usize::from(export)) else { return };
        one.remove(&mut self.events);
        if let Some(wait) = one.waiting.take() {
            self.no_device(&wait);
        }
    }

    /// Others may have a device from now on; nobody named: everybody. Who has it, or waits for it, and may not hears
    /// that it has it no more.
    pub fn set_clients(&mut self, export: u16, clients: Vec<PublicKey>) {
        let Some(one) = self.exports.get_mut(usize::from(export)) else { return };
        one.set_clients(clients, &mut self.events);
        let waiting = one.waiting.filter(|wait| !one.may(&wait.client));
        if let Some(wait) = waiting {
            one.waiting = None;
            self.no_device(&wait);
        }
    }

    fn no_device(&mut self, wait: &Wait) {
        let Bind { index, binding, .. } = wait.bind;
        let (outcome, generation, name) = (Outcome::NoDevice, 0, 0);
        let (verifier, news, image) = (Verifier::default(), News::default(), 0);
        let bound = Bound { index, outcome, binding, generation, verifier, news, name, image };
        self.say(wait, bound);
    }

    /// Says how a bind of a device ended.
    fn answer(&mut self, at: usize, wait: &Wait, outcome: Outcome) {
        let one = &self.exports[at];
        let Bind { index, binding, .. } = wait.bind;
        let (generation, name) = (one.generation, one.name());
        let (verifier, news, image) = (one.verifier, one.news, one.image_for(outcome));
        let bound = Bound { index, outcome, binding, generation, verifier, news, name, image };
        self.say(wait, bound);
    }

    /// Says it until it is taken.
    fn say(&mut self, wait: &Wait, bound: Bound) {
        let Some(peer) = self.peer(wait.number) else { return };
        peer.session.is_over |= !peer.about.say(bound);
        self.wake_peer(wait.number);
    }
}
