//! Completions become visible: used index once, then at most one call.

use crate::served::Served;

impl Served {
    /// Shows what was completed since the last time, and calls the guest when it asked for it.
    /// One used-index store and at most one system call, however many completions.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if !std::mem::take(&mut self.unshown) {
            return;
        }
        if self.spec.queue.publish() {
            self.call();
        }
    }

    /// Calls the guest. A full eventfd means that a call is on its way; an error means that the
    /// front-end is gone, which control learns from its socket.
    pub(crate) fn call(&self) {
        if let Some(call) = &self.spec.call {
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
            self.spec.counters.calls.add(1);
        }
    }
}
