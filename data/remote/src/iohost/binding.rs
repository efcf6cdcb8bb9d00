//! Who gets a device: binds, what the caller opens and lets go of, and what clients hear of that.
//!
//! Control's pace: this may allocate.

use super::about::About;
use super::export::{State, Wait};
use super::{Host, MESSAGES_SPARE, Peer};
use crate::wire::{Bind, Bound, Intent, News, Outcome, Record, Verifier};

impl Host {
    /// A client asks for a device: whether that was taken. The answer may come much later.
    pub(super) fn bind(&mut self, peer: &mut Peer, bind: &Bind, now: u64) -> bool {
        if peer.about.has_heard(bind) {
            return true;
        }
        if peer.about.outbox.room() <= MESSAGES_SPARE {
            return false;
        }
        let client = peer.client;
        let found =
            self.exports.iter().position(|one| one.device == bind.device && one.may(&client));
        let wait = Wait { number: peer.about.number, bind: *bind };
        let Some(at) = found else {
            let news = News::default();
            return answer(&mut peer.about, &wait, Outcome::NoDevice, 0, Verifier::default(), news);
        };
        let export = &self.exports[at];
        let (generation, verifier, news) = (export.generation, export.verifier, export.news);
        let mut say = |outcome| answer(&mut peer.about, &wait, outcome, generation, verifier, news);
        if bind.intent == Intent::Look {
            return say(Outcome::Looked);
        }
        if export.has_heard(bind) {
            return true;
        }
        if bind.intent == Intent::Again && export.is_stale(bind) {
            return say(Outcome::Stale);
        }
        // Whoever has it goes on, also when another one waits.
        if export.state == State::Held && export.is_same_attachment(bind) {
            let outcome = self.exports[at].rebind(&wait, peer.session.part_bytes);
            let is_said = say(outcome);
            peer.about.hold(bind, at as u16);
            return is_said;
        }
        if let Some(outcome) = export.released_for(bind) {
            return say(outcome);
        }
        if !self.may_wait(at, bind, wait.number, now) {
            let is_said = say(Outcome::Busy);
            self.exports[at].give_up(bind, &mut self.events);
            return is_said;
        }
        let export = &mut self.exports[at];
        export.wait(wait, &mut self.events);
        true
    }

    /// Whether this bind may wait for the device: one at a time does, unless it is gone.
    fn may_wait(&self, at: usize, bind: &Bind, number: u32, now: u64) -> bool {
        let Some(other) = &self.exports[at].waiting else { return true };
        other.number == number || other.bind.instance == bind.instance || {
            let place = self.place_of(other.number).and_then(|at| self.places.get(at));
            place.and_then(|place| place.peer.as_ref()).is_none_or(|peer| peer.session.is_dead(now))
        }
    }

    /// The caller has opened a device's storage, or could not.
    pub fn opened(&mut self, export: u16, result: Result<Verifier, ()>) {
        let Some(one) = self.exports.get_mut(usize::from(export)) else { return };
        if one.state != State::Opening {
            return;
        }
        if result.is_ok() && one.is_outdated() {
            return one.close(&mut self.events);
        }
        let wait = one.waiting.take();
        let place = wait.and_then(|wait| self.places.get_mut((wait.number & 0xffff) as usize));
        let peer = place.and_then(|place| place.peer.as_mut());
        let (Some(wait), Some(peer)) = (wait, peer) else {
            return one.unwanted(result.is_ok(), &mut self.events);
        };
        if peer.about.number != wait.number {
            return one.unwanted(result.is_ok(), &mut self.events);
        }
        let outcome = match result {
            Err(()) => {
                one.state = State::Free;
                Outcome::Failed
            }
            Ok(verifier) => {
                one.verifier = verifier;
                let free = self.spec.memory_max.saturating_sub(self.memory_used);
                let (outcome, used) = one.grant(&wait, peer.session.part_bytes, free);
                self.memory_used = self.memory_used.saturating_add_signed(used);
                outcome
            }
        };
        if matches!(outcome, Outcome::Kept | Outcome::Fresh) {
            peer.about.hold(&wait.bind, export);
        }
        let (generation, verifier, news) = (one.generation, one.verifier, one.news);
        if !answer(&mut peer.about, &wait, outcome, generation, verifier, news) {
            peer.session.is_over = true;
        }
        if one.state == State::Opening {
            // Opened, and not granted.
            one.close(&mut self.events);
        }
    }

    /// The caller has let go of a device, and had synced it before, or could not.
    pub fn let_go(&mut self, export: u16, is_synced: bool) {
        let Some(one) = self.exports.get_mut(usize::from(export)) else { return };
        let (end, session) = one.closed(is_synced, &mut self.events);
        let Some(end) = end else { return };
        self.memory_used = self.memory_used.saturating_sub(one.forget());
        let Some((number, handle)) = session else { return };
        if let Some(peer) = self.peer(number)
            && !peer.about.tell_end(handle, end)
        {
            peer.session.is_over = true;
        }
    }
}

/// Says how a bind ended, until it is taken. False when there is no place for it.
fn answer(
    about: &mut About,
    wait: &Wait,
    outcome: Outcome,
    generation: u64,
    verifier: Verifier,
    news: News,
) -> bool {
    let Bind { index, binding, .. } = wait.bind;
    about.note_heard(&wait.bind);
    about.outbox.put(Record::Bound(Bound { index, outcome, binding, generation, verifier, news }))
}
