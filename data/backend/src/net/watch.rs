//! Whether an interface is still there.
//!
//! Called by the ports that are sockets; a tap's queue says it in each answer.

use std::os::fd::BorrowedFd;

use crate::sys::Interfaces;
use crate::sys::interface::take_error;

/// How often an idle port asks.
const WATCH_NS: u64 = 1_000_000;

/// Finds out when an interface is deleted: the kernel then puts an error on each socket that is bound
/// to it, as it does when the interface is merely set down. The error wakes who waits, again and again,
/// until it is taken.
#[derive(Debug)]
pub(crate) struct Watch {
    interfaces: Interfaces,
    index: u32,
    looked_ns: Option<u64>,
    pub(crate) is_gone: bool,
}

impl Watch {
    pub(crate) fn new(interfaces: Interfaces, index: u32) -> Watch {
        Watch { interfaces, index, looked_ns: None, is_gone: false }
    }

    /// To be called when nothing was received. Asks the kernel once in a millisecond.
    #[inline]
    pub(crate) fn look(&mut self, socket: BorrowedFd<'_>, now_ns: u64) {
        let is_due = |looked_ns| now_ns.wrapping_sub(looked_ns) >= WATCH_NS;
        if self.looked_ns.is_none_or(is_due) {
            self.looked_ns = Some(now_ns);
            if take_error(socket).is_some() {
                self.check();
            }
        }
    }

    /// Asks whether the interface is there.
    #[cold]
    pub(crate) fn check(&mut self) {
        self.is_gone |= !self.interfaces.exists(self.index);
    }
}
