//! Completions become visible: used index once, then at most one call.

use guest_memory::Loss;
use rustix::io::Errno;

use crate::alarm::Alarm;
use crate::served::Ring;

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
