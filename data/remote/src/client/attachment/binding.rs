//! How an attachment is bound, what is said of that, and how it ends.

use std::collections::VecDeque;

use super::{Attachment, State};
use crate::client::slot::State as SlotState;
use crate::client::{Event, Over, Refusal};
use crate::wire::{Bind, Bound, Intent, Malformed, News, Outcome, Record, Status, Verifier};

/// After which a device is asked for again that could not be had.
const RETRY_NS: u64 = 100_000_000;

impl Attachment {
    /// Gives it back. The handle that an IOhost may yet bind, of one that never was bound.
    pub(in crate::client) fn release(&mut self, events: &mut VecDeque<Event>) -> Option<u32> {
        self.wants_release = true;
        match self.state {
            State::Bound => self.leave_if_wanted(),
            State::Other(_) => {
                let handle = self.unended_handle();
                self.end(Over::Changed, events);
                return handle;
            }
            State::Wanted { .. } | State::Asked if self.intent == Intent::Take => {
                let handle = self.unended_handle();
                self.end(Over::Released, events);
                return handle;
            }
            _ => {}
        }
        None
    }

    /// Not while it is owed something: what is let go is made stable, as it is then.
    pub(super) fn leave_if_wanted(&mut self) {
        if self.wants_release && self.replays_to().is_none() && self.state == State::Bound {
            self.state = State::Leaving { is_said: false };
        }
    }

    pub(in crate::client) fn lost_session(&mut self) {
        if self.state != State::Over {
            self.state = State::Wanted { at: 0 };
        }
    }

    /// What it is called in this session, when the IOhost has it by that, or may yet.
    pub(in crate::client) fn unended_handle(&self) -> Option<u32> {
        let is_known = matches!(
            self.state,
            State::Asked | State::Bound | State::Other(_) | State::Leaving { .. }
        );
        (is_known && self.intent != Intent::Look).then(|| self.handle())
    }

    /// When it has something to say of itself.
    pub(in crate::client) fn asks_at(&self) -> Option<u64> {
        match self.state {
            State::Wanted { at } => Some(at),
            State::Leaving { is_said: false } => Some(0),
            _ => None,
        }
    }

    /// What is to be said of the attachment itself; a bind with this number, which no other one of the client has.
    pub(in crate::client) fn wants_to_say(
        &self,
        now: u64,
        binding: u64,
    ) -> Option<Record<'static>> {
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
                name: self.name,
            })),
            State::Leaving { is_said: false } => Some(Record::Release { handle: self.handle() }),
            _ => None,
        }
    }

    /// It is on its way. True when `binding` was used.
    pub(in crate::client) fn said(&mut self, binding: u64) -> bool {
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

    /// The answer to a bind. True when the attachment is done with; an error when it cannot be meant.
    pub(in crate::client) fn bound(
        &mut self,
        bound: &Bound,
        part_bytes: usize,
        now: u64,
        events: &mut VecDeque<Event>,
    ) -> Result<bool, Malformed> {
        let attachment = self.index;
        if bound.binding != self.binding || self.state != State::Asked {
            return Ok(false);
        }
        if bound.outcome == Outcome::Kept && bound.name != self.name {
            return Err(Malformed::Field);
        }
        let is_look = self.intent == Intent::Look;
        let refused = match bound.outcome {
            Outcome::Kept | Outcome::Fresh if !is_look => {
                self.served(bound, part_bytes, events)?;
                return Ok(false);
            }
            Outcome::Looked if is_look => {
                events.push_back(Event::Looked { attachment, news: Some(bound.news) });
                return Ok(true);
            }
            Outcome::NoDevice if is_look => {
                events.push_back(Event::Looked { attachment, news: None });
                return Ok(true);
            }
            Outcome::Stale => {
                self.end(Over::Taken, events);
                return Ok(false);
            }
            Outcome::Released | Outcome::Unsynced => {
                self.released(bound.outcome == Outcome::Released, events);
                return Ok(false);
            }
            Outcome::NoDevice => Refusal::NoDevice,
            Outcome::Failed => Refusal::Failed,
            _ => Refusal::Busy,
        };
        events.push_back(Event::Refused { attachment, why: refused });
        self.state = State::Wanted { at: now + RETRY_NS };
        Ok(false)
    }

    fn served(
        &mut self,
        bound: &Bound,
        part_bytes: usize,
        events: &mut VecDeque<Event>,
    ) -> Result<(), Malformed> {
        let (new, is_kept) = (bound.verifier, bound.outcome == Outcome::Kept);
        let before = self.before(new);
        let is_other_image = self.image != 0 && bound.image != 0 && self.image != bound.image;
        let is_other = before.contents != new.contents || is_other_image;
        if is_kept && !is_other && before.boot != new.boot {
            return Err(Malformed::Field);
        }
        if is_other && self.wants_release {
            // Nothing of its guest's is asked of it, and what is kept of the one before stays so.
            self.end(Over::Changed, events);
            return Ok(());
        }
        self.part_bytes = part_bytes;
        (self.generation, self.name) = (bound.generation, bound.name);
        self.intent = Intent::Again;
        for at in 0..self.slots.len() {
            self.rebind(at, is_kept, part_bytes);
        }
        match (is_other, self.accepts) {
            (true, false) => {
                self.state = State::Other(*bound);
                let (attachment, why) = (self.index, Refusal::Changed);
                events.push_back(Event::Refused { attachment, why });
            }
            (true, true) => {
                self.forget_before(new);
                self.begin_serving(bound, events);
            }
            (false, _) => self.begin_serving(bound, events),
        }
        Ok(())
    }

    /// What the machine that has the device said last, or the one that has it now.
    fn before(&self, new: Verifier) -> Verifier {
        self.replays_to().or(self.verifier).unwrap_or(new)
    }

    /// Its guest's requests go there from here on.
    fn begin_serving(&mut self, bound: &Bound, events: &mut VecDeque<Event>) {
        let new = bound.verifier;
        let before = self.before(new);
        // What is still being sent again to a machine that has not changed goes on.
        let may_be_gone = before.boot != new.boot && self.written > self.flushed;
        let replays = may_be_gone && self.may_replay();
        self.is_flush_lost |= may_be_gone && !replays;
        if !replays && self.replays_to().is_none() {
            self.verifier = Some(new);
        }
        if bound.image != 0 {
            self.image = bound.image;
        }
        (self.state, self.accepts) = (State::Bound, false);
        if replays {
            self.begin_replay(before, new);
        }
        let slots = &self.slots;
        self.queue.make_contiguous().sort_by_key(|at| slots[usize::from(*at)].number);
        events.push_back(Event::Stands { attachment: self.index, standing: self.standing() });
        self.note(bound.news, events, true);
        self.leave_if_wanted();
    }

    /// Whoever uses it goes on with what is there, and counts on nothing that it wrote before.
    fn forget_before(&mut self, new: Verifier) {
        (self.flushed, self.verifier, self.owes_failure) = (self.written, Some(new), false);
        self.image = 0;
        self.forget_kept();
    }

    /// See [`crate::client::Client::accept`].
    pub(in crate::client) fn accept(&mut self, events: &mut VecDeque<Event>) {
        // Once it is served there is nothing to accept.
        self.accepts = matches!(self.state, State::Wanted { .. } | State::Asked);
        if let State::Other(bound) = self.state {
            self.forget_before(bound.verifier);
            self.begin_serving(&bound, events);
        }
    }

    /// See [`crate::client::Client::remember_image`].
    pub(in crate::client) fn remember_image(&mut self, image: u64) {
        self.image = image;
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
            slot.sending = Default::default();
        } else {
            slot.turn = 1;
        }
        self.queue_slot(at as u16);
    }

    pub(in crate::client) fn note(
        &mut self,
        news: News,
        events: &mut VecDeque<Event>,
        is_bound: bool,
    ) {
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

    /// The IOhost has let go, having made all that was reported done stable, or not.
    pub(in crate::client) fn released(&mut self, is_synced: bool, events: &mut VecDeque<Event>) {
        // What was not sent again is not among what is stable.
        self.replayed(true);
        self.is_settled = is_synced;
        let is_whole = is_synced && !self.is_flush_lost;
        self.end(if is_whole { Over::Released } else { Over::Unsynced }, events);
    }

    /// Ends the attachment, and each request of it: nothing of it can be executed any more.
    pub(in crate::client) fn end(&mut self, why: Over, events: &mut VecDeque<Event>) {
        if self.state == State::Over {
            return;
        }
        self.state = State::Over;
        for at in 0..self.slots.len() {
            if self.slots[at].state == SlotState::Waiting {
                self.finish(at as u16, Status::IoError);
            }
        }
        let attachment = self.index;
        if self.intent != Intent::Look {
            events.push_back(Event::Stands { attachment, standing: self.standing() });
        }
        events.push_back(Event::Over { attachment, why });
    }
}
