//! Waking a sidecore whose requests wait for another one's: a flush of the same disk, or a write.
//!
//! A sidecore that is awake looks at the disk itself, once a pass. Before it sleeps it puts its number
//! among the disk's [`Sleepers`] and looks once more; whoever ends what others may wait for takes the
//! numbers out and writes to the eventfd of each. Nobody waits and nobody locks: numbers are bits, and
//! an eventfd is made once for each number and never closed.
//!
//! Called by `io` (numbers, sleeping) and `file` (waking).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Sidecores of a process that can be woken so; those beyond do not sleep while something waits.
const NUMBERS: usize = 256;
const WORDS: usize = NUMBERS / 64;

/// Numbers that are taken.
static TAKEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// By number.
static EVENTS: [OnceLock<OwnedFd>; NUMBERS] = [const { OnceLock::new() }; NUMBERS];

/// A number with its eventfd; free again when dropped.
#[derive(Debug)]
pub(crate) struct Waker {
    number: usize,
    event: &'static OwnedFd,
}

impl Waker {
    /// `None` when all are taken, or the kernel gives no eventfd.
    pub(crate) fn new() -> Option<Waker> {
        let number = TAKEN.iter().enumerate().find_map(|(word, taken)| {
            let free = |bits: u64| (bits != u64::MAX).then(|| bits | (bits + 1));
            let before = taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).ok()?;
            Some(word * 64 + before.trailing_ones() as usize)
        })?;
        let place = EVENTS.get(number)?;
        let event = match place.get() {
            Some(event) => event,
            None => match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
                Ok(made) => place.get_or_init(|| made),
                Err(_) => {
                    give_back(number);
                    return None;
                }
            },
        };
        Some(Waker { number, event })
    }

    /// Readable after a wake, until [`Self::reset`].
    pub(crate) fn event(&self) -> BorrowedFd<'static> {
        self.event.as_fd()
    }

    pub(crate) fn reset(&self) {
        // Only fails when there is nothing to read.
        let _ = rustix::io::read(self.event, &mut [0; 8]);
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        give_back(self.number);
    }
}

fn give_back(number: usize) {
    if let Some(word) = TAKEN.get(number / 64) {
        word.fetch_and(!(1 << (number % 64)), Ordering::SeqCst);
    }
}

/// The sidecores that sleep, or are about to, while requests of theirs wait for a disk.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    words: [AtomicU64; WORDS],
}

impl Sleepers {
    /// To be followed by another look at what is waited for, and only then by sleep.
    pub(crate) fn add(&self, waker: &Waker) {
        if let Some(word) = self.words.get(waker.number / 64) {
            word.fetch_or(1 << (waker.number % 64), Ordering::SeqCst);
        }
    }

    /// To be called after what may have been waited for has happened. Without sleepers it is four
    /// loads.
    pub(crate) fn wake(&self) {
        for (word, bits) in self.words.iter().enumerate() {
            if bits.load(Ordering::SeqCst) == 0 {
                continue;
            }
            let mut bits = bits.swap(0, Ordering::SeqCst);
            while bits != 0 {
                let number = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(event) = EVENTS.get(number).and_then(OnceLock::get) {
                    // Only fails when it is readable already.
                    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::{Sleepers, Waker};

    fn is_woken(waker: &Waker) -> bool {
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        let event = waker.event();
        poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&no_time)) == Ok(1)
    }

    #[test]
    fn who_sleeps_is_woken_once() {
        let (sleepers, wakers) = (Sleepers::default(), [Waker::new(), Waker::new()]);
        let [one, other] = wakers.map(|waker| waker.expect("a number"));
        assert_ne!(one.number, other.number);
        sleepers.add(&one);
        sleepers.wake();
        assert!(is_woken(&one) && !is_woken(&other));
        one.reset();
        sleepers.wake();
        assert!(!is_woken(&one));
        sleepers.add(&one);
        sleepers.add(&other);
        sleepers.wake();
        assert!(is_woken(&one) && is_woken(&other));
        other.reset();
        one.reset();
    }
}
