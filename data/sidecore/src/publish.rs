//! Completions become visible: used index once, then at most one call.

use guest_memory::Loss;
use rustix::io::Errno;
use schedule::Nanos;

use crate::alarm::Alarm;
use crate::moderation::{Fate, Moderation};
use crate::places::served_at;
use crate::served::Ring;
use crate::sidecore::Sidecore;

impl Ring {
    /// Shows what was completed since the last time, and calls the guest when it asked for it.
    /// One used-index store and at most one system call, however many completions. Nothing when the
    /// queue's health is lost, which the call itself may find out.
    #[inline]
    pub(crate) fn publish(&mut self, alarm: &mut Alarm) {
        if !std::mem::take(&mut self.unshown) || self.health.is_lost() {
            return;
        }
        if self.queue.publish() {
            self.call(alarm);
        }
    }

    /// The same after completions of the back-end, when more may follow soon: the call may be put off. True
    /// when one is from now on; then [`Self::publish_put_off`] is to be asked in every pass.
    #[inline]
    pub(crate) fn publish_reaped(&mut self, alarm: &mut Alarm, now: Nanos) -> bool {
        if self.moderation.is_off() {
            self.publish(alarm);
            return false;
        }
        self.publish_moderated(alarm, |calls, in_flight| calls.completed(in_flight, now))
    }

    /// The same for frames that were sent. A guest that goes on sending takes its buffers back meanwhile, and
    /// moves its event index on: asked later, it often wants no call at all.
    #[inline]
    pub(crate) fn publish_sent(&mut self, alarm: &mut Alarm, now: Nanos) -> bool {
        if self.moderation.is_off() {
            self.publish(alarm);
            return false;
        }
        self.publish_moderated(alarm, |calls, _| calls.sent(now))
    }

    #[inline(never)]
    fn publish_moderated(
        &mut self,
        alarm: &mut Alarm,
        decide: impl FnOnce(&mut Moderation, u16) -> Fate,
    ) -> bool {
        if !self.unshown || self.health.is_lost() {
            return false;
        }
        let fate = decide(&mut self.moderation, self.queue.in_flight());
        if fate == Fate::Now {
            self.publish(alarm);
        } else {
            // Not asked yet: what the guest wants is looked up for all of them when the call is due.
            self.unshown = false;
            self.queue.show();
        }
        fate == Fate::Waits && self.moderation.list()
    }

    /// Makes the call that was put off if it is due; false when none waits any more.
    pub(crate) fn publish_put_off(&mut self, alarm: &mut Alarm, now: Nanos) -> bool {
        let fate = self.moderation.passed(now);
        if fate == Some(Fate::Now) {
            self.unshown = true;
            self.publish(alarm);
        }
        let waits = fate == Some(Fate::WaitsToo);
        if !waits {
            self.moderation.unlist();
        }
        waits
    }

    /// Makes the call that was put off, if one was: the queue is polled no longer, and a sidecore that waited to
    /// make it would stay awake for that.
    pub(crate) fn publish_owed(&mut self, alarm: &mut Alarm) {
        if self.moderation.take() {
            self.unshown = true;
            self.publish(alarm);
        }
    }

    /// As [`Self::publish`], with the call that was put off, if one was: the queue goes.
    pub(crate) fn publish_last(&mut self, alarm: &mut Alarm) {
        self.unshown |= self.moderation.end();
        self.publish(alarm);
    }

    /// Calls the guest, unless its health is lost: one that blocks must not be tried twice, and its
    /// other queues have calls that block as well. A full eventfd means that a call is on its way; an
    /// error means that the front-end is gone, which control learns from its socket. Interrupted is
    /// only a write that waited, because the front-end made the eventfd block and filled it.
    pub(crate) fn call(&self, alarm: &mut Alarm) {
        let Some(call) = self.call.as_ref().filter(|_| !self.health.is_lost()) else { return };
        alarm.start();
        if rustix::io::write(call, &1u64.to_ne_bytes()) == Err(Errno::INTR) {
            self.health.lose(Loss::Call);
        }
        self.counters.calls.add(1);
    }
}

/// Queues that have something to show, or to call for.
#[derive(Debug)]
pub(crate) struct Calls {
    /// Places with completions to show at the end of this step.
    unshown: Vec<u16>,
    /// Places with a call that was put off.
    delayed: Vec<u16>,
}

impl Calls {
    /// Room for so many queues.
    pub(crate) fn new(queues_max: usize) -> Calls {
        let (unshown, delayed) = (Vec::with_capacity(queues_max), Vec::with_capacity(queues_max));
        Calls { unshown, delayed }
    }

    /// The queue has completions, to be shown by [`Sidecore::show_noted`]. To be said once.
    #[inline]
    pub(crate) fn note_unshown(&mut self, queue: u16) {
        self.unshown.push(queue);
    }

    /// A call of the queue waits from now on.
    #[inline]
    pub(crate) fn wait(&mut self, queue: u16) {
        self.delayed.push(queue);
    }

    /// Those whose call waits, or waited when it was looked at last.
    #[inline]
    pub(crate) fn delayed(&self) -> &[u16] {
        &self.delayed
    }
}

impl Sidecore {
    /// Makes the calls that were put off and are due.
    #[inline(never)]
    pub(crate) fn call_put_off(&mut self, now: Nanos) {
        let (places, alarm) = (&mut self.places, &mut self.alarm);
        self.calls.delayed.retain(|queue| {
            served_at(places, *queue).is_some_and(|served| served.ring.publish_put_off(alarm, now))
        });
    }

    /// Has `publish` show what was noted; it says whether a call is put off.
    #[inline]
    pub(crate) fn show_noted(&mut self, publish: impl Fn(&mut Ring, &mut Alarm) -> bool) {
        while let Some(queue) = self.calls.unshown.pop() {
            if let Some(served) = served_at(&mut self.places, queue)
                && publish(&mut served.ring, &mut self.alarm)
            {
                self.calls.delayed.push(queue);
            }
            self.examine(queue);
        }
    }
}
