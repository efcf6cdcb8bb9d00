//! Queues that nobody can have put anything into: no vCPU of their guest has had a processor since their ring was
//! last seen empty.
//!
//! Not how that is known (`runstate`): here a VM is a number, and what its vCPUs did a word that differs when one
//! of them was given a processor since. One dormant queue is looked at in each pass all the same, in turn, so that
//! a word that is wrong makes a request late by as many passes as there are dormant queues, and no more. Called by
//! `sidecore`.

use crate::policy::Policy;
use crate::schedule::{Schedule, State};

/// A queue that is not visited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dormant {
    queue: u16,
    vm: u16,
    /// What its VM's word was before its ring was last looked at.
    seen: u64,
}

impl Schedule {
    /// After [`Schedule::visited`]: its ring was empty after the VM's word was `seen`, and none of the VM's vCPUs had
    /// a processor then. It is not visited before the word differs, as long as another queue is polled: what is to
    /// be done with a queue that would be polled alone is its policy's to say. False where nothing changed.
    pub fn sleep(&mut self, queue: u16, vm: u16, seen: u64) -> bool {
        let is_alone = self.polled.saturating_sub(self.waiting) <= 1;
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return false;
        };
        if is_alone || entry.state != State::Polled || entry.waits {
            return false;
        }
        entry.state = State::Dormant;
        entry.hungry = false;
        self.polled -= 1;
        self.urgency.forget(queue, &mut self.entries);
        self.lines.leave(queue);
        self.idle.leave(queue);
        self.dormant.push_back(Dormant { queue, vm, seen });
        true
    }

    /// After [`Schedule::begin`]: those whose VM's word is another one are visited in this pass, and of the others
    /// one. How many are not.
    #[inline]
    pub fn wake(&mut self, word_of: impl Fn(u16) -> u64) -> usize {
        if self.dormant.iter().any(|one| word_of(one.vm) != one.seen) {
            for _ in 0..self.dormant.len() {
                let Some(one) = self.dormant.pop_front() else { break };
                if word_of(one.vm) == one.seen {
                    self.dormant.push_back(one);
                } else {
                    self.rouse(one.queue);
                }
            }
        }
        if let Some(one) = self.dormant.pop_front() {
            self.rouse(one.queue);
        }
        self.dormant.len()
    }

    /// Queues that are dormant.
    #[inline]
    pub fn dormant(&self) -> usize {
        self.dormant.len()
    }

    /// Whether that queue is.
    pub fn is_dormant(&self, queue: u16) -> bool {
        self.entries.get(usize::from(queue)).is_some_and(|entry| entry.state == State::Dormant)
    }

    /// It was dormant, and is polled again. That it was not was no idleness.
    pub(crate) fn rouse(&mut self, queue: u16) {
        let since = self.entries.get(usize::from(queue)).map(|entry| entry.last_work);
        self.poll_again(queue, self.now);
        if let (Some(entry), Some(since)) = (self.entries.get_mut(usize::from(queue)), since) {
            entry.last_work = since;
        }
    }

    /// Nothing else is polled: a dormant queue that its policy would have armed by now is polled, for being armed
    /// at once. The others are polled, as if they had never been dormant.
    #[cold]
    pub(crate) fn arm_dormant(&mut self) -> Option<u16> {
        while let Some(Dormant { queue, .. }) = self.dormant.pop_front() {
            self.rouse(queue);
            let entry = self.entries.get(usize::from(queue))?;
            let is_due = self.now.since(entry.last_work) >= u64::from(self.prices.kick);
            if is_due && entry.polling.policy != Policy::Poll {
                return Some(queue);
            }
        }
        None
    }

    /// It is dormant no longer, and in no line: it goes, or changes.
    pub(crate) fn forget_dormant(&mut self, queue: u16) {
        if let Some(at) = self.dormant.iter().position(|dormant| dormant.queue == queue) {
            self.dormant.remove(at);
        }
    }
}

#[cfg(test)]
mod tests;
