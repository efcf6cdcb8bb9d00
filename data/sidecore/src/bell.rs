//! How a sidecore is woken by another one, or by control: rung only when it sleeps.
//!
//! The order on both sides is that of `arm`: whoever sends writes, then looks whether the other one sleeps;
//! whoever goes to sleep says so, then looks. All interleavings of that are tried with loom
//! (`./x test unit/loom`). Not what is sent: that has a ring of its own. Used by `net::parcel`, `inbox` and `knock`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, Ordering, fence};

use crate::inbox::wake;

/// A sidecore's: its eventfd, and whether it sleeps.
#[derive(Debug)]
pub(crate) struct Bell {
    asleep: AtomicBool,
    fd: Arc<OwnedFd>,
}

impl Bell {
    pub(crate) fn new(fd: &Arc<OwnedFd>) -> Arc<Bell> {
        Arc::new(Bell { asleep: AtomicBool::new(false), fd: Arc::clone(fd) })
    }

    /// After something was sent.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            wake(&self.fd);
        }
    }

    /// Before the last look.
    pub(crate) fn sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::thread;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::rest::eventfd;

    fn is_readable(fd: &OwnedFd) -> bool {
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&no_time)) == Ok(1)
    }

    /// Whether a sleeper that looks once more when it has said that it sleeps either sees what is sent or is
    /// woken, for each order of things.
    #[test]
    fn loom_whoever_sleeps_saw_nothing_or_is_woken() {
        loom::model(|| {
            let fd = Arc::new(eventfd().unwrap());
            let bell = Bell::new(&fd);
            let sent = loom::sync::Arc::new(AtomicBool::new(false));
            let (its_bell, its_sent) = (Arc::clone(&bell), loom::sync::Arc::clone(&sent));
            let sender = thread::spawn(move || {
                its_sent.store(true, Ordering::Release);
                its_bell.ring();
            });
            bell.sleep();
            let saw = sent.load(Ordering::Acquire);
            if saw {
                bell.awake();
            }
            sender.join().unwrap();
            assert!(saw || is_readable(&fd), "it sleeps, and nobody wakes it");
        });
    }
}
