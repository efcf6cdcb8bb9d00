//! Chains of one buffer each that were found together, ahead of the one that is next.
//!
//! Frames are such chains, and come in bursts. Found together, their descriptors and buffers are waited for
//! together too, and what a look at a ring costs is paid once.

use guest_memory::Span;

/// Chains that are found together at most. Twice as many are further ahead than buffers stay in the first cache.
pub(crate) const AHEAD_MAX: usize = 16;

/// A chain that is one buffer, as [`crate::Queue::peek_single`] found it. Good until a chain is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Single {
    /// The buffer, not empty.
    pub span: Span,
    pub(crate) id: u16,
    /// Whether the device writes it.
    pub(crate) is_writable: bool,
}

/// What was found, in the ring's order.
#[derive(Debug)]
pub(crate) struct Ahead {
    found: Box<[Single; AHEAD_MAX]>,
    /// The next of them.
    at: usize,
    len: usize,
}

impl Ahead {
    pub(crate) fn new() -> Ahead {
        Ahead { found: Box::new([Single::default(); AHEAD_MAX]), at: 0, len: 0 }
    }

    /// The chain that is next, if it was found.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<Single> {
        if self.at >= self.len { None } else { self.found.get(self.at).copied() }
    }

    /// Keeps what `find` finds for each number from 0 on, up to the first `None`.
    #[inline(always)]
    pub(crate) fn fill(&mut self, mut find: impl FnMut(u16) -> Option<Single>) {
        (self.at, self.len) = (0, 0);
        for (number, place) in (0..).zip(self.found.iter_mut()) {
            let Some(single) = find(number) else { break };
            *place = single;
            self.len += 1;
        }
    }

    /// The next chain was taken, which has one entry of the ring.
    #[inline(always)]
    pub(crate) fn took_one(&mut self) {
        self.at += 1;
    }

    /// The ring goes on elsewhere, or not at all.
    #[inline]
    pub(crate) fn forget(&mut self) {
        self.len = 0;
    }
}
