//! Whether what a front-end lent us can still be used.
//!
//! One per connection, shared by all its mappings and queues. Not where a loss is found: that is the
//! signal handler (`faults`) for memory, and a sidecore for calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// What a front-end did to what it had lent us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Loss {
    /// Pages under one of its mappings are gone, others are in their place; or control has closed the
    /// connection by force.
    Memory = 1,
    /// A call to its guest had to wait.
    Call = 2,
}

/// The health of one connection. Clones are the same health.
///
/// It is lost once, by the first [`Loss`], and never found again: only a new connection is healthy.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<AtomicU8>);

impl Health {
    /// Whether something was lost. When not, whatever this thread read from the memory before it
    /// asked was the front-end's own. One load of one byte.
    #[inline(always)]
    pub fn is_lost(&self) -> bool {
        // What was read before stays before, and a thread that read what another put there finds the
        // loss, which was marked first. No instruction on x86.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) != 0
    }

    /// What was lost first.
    pub fn loss(&self) -> Option<Loss> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            2 => Some(Loss::Call),
            _ => Some(Loss::Memory),
        }
    }

    /// Notes a loss. Later ones change nothing.
    pub fn lose(&self, loss: Loss) {
        lose(&self.0, loss);
    }

    /// Where the handler notes a loss; valid as long as some clone of this health.
    pub(crate) fn flag(&self) -> *const AtomicU8 {
        Arc::as_ptr(&self.0)
    }
}

/// As [`Health::lose`]; async-signal-safe.
pub(crate) fn lose(flag: &AtomicU8, loss: Loss) {
    // It only ever leaves 0, so a failed exchange is what is wanted.
    let _ = flag.compare_exchange(0, loss as u8, Ordering::SeqCst, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_loss_stays_and_every_clone_has_it() {
        let health = Health::default();
        let clone = health.clone();
        assert!(!health.is_lost());
        assert_eq!(health.loss(), None);
        clone.lose(Loss::Call);
        clone.lose(Loss::Memory);
        assert!(health.is_lost());
        assert_eq!(health.loss(), Some(Loss::Call));
        assert!(!Health::default().is_lost());
    }
}
