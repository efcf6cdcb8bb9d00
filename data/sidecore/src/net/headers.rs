//! Virtio-net headers of frames that are in a receiver's buffers and not shown yet: written together,
//! one after the other, before they are shown.
//!
//! A driver reads each header, so that its core has the line, and our store has to wait for it: 140 ns
//! where the cores are far apart. A processor waits for many stores at once when they follow each
//! other closely; between the headers of two frames, written as the frames come, are so many others
//! that it waited for each alone (5.6 and 9 million frames of 64 bytes a second).

use frame::HEADER_SIZE;
use guest_memory::{GuestMap, Span};

/// Frames between two times that a receive ring is shown, so that a guest that polls works on these
/// while we work on the next: as many as a visit of small ones has.
pub(crate) const HEADERS_MAX: usize = 32;

/// Headers to be written, and where.
#[derive(Debug)]
pub(crate) struct Headers {
    kept: Box<[(Span, [u8; HEADER_SIZE]); HEADERS_MAX]>,
    len: usize,
}

impl Default for Headers {
    fn default() -> Headers {
        Headers { kept: Box::new([(Span::default(), [0; HEADER_SIZE]); HEADERS_MAX]), len: 0 }
    }
}

impl Headers {
    /// Keeps the header of a frame whose first buffer is `to`, in `memory` and long enough.
    #[inline]
    pub(crate) fn keep(&mut self, memory: &GuestMap, to: Span, header: &[u8; HEADER_SIZE]) {
        if self.len == HEADERS_MAX {
            self.write(memory);
        }
        if let Some((place, bytes)) = self.kept.get_mut(self.len) {
            (*place, *bytes) = (to, *header);
            self.len += 1;
        }
    }

    /// Writes what is kept. Before the ring is shown.
    pub(crate) fn write(&mut self, memory: &GuestMap) {
        for (to, header) in self.kept.iter().take(std::mem::take(&mut self.len)) {
            // They were found in this memory by a look at the ring.
            let is_written = memory.write(*to, 0, header);
            debug_assert!(is_written, "{to:?}");
        }
    }
}
