//! Frames of NICs on their way out: a queue of fixed size, from which nothing is sent twice.
//!
//! Called by `client` and `iohost`.

use crate::session::Out;

/// Frames that wait at most, of one session.
const FRAMES: usize = 64;

/// The queue.
#[derive(Debug)]
pub(crate) struct NetQueue {
    bytes: Vec<u8>,
    frame_bytes: usize,
    /// Of each place: whose it is, and how long.
    frames: [(u32, usize); FRAMES],
    first: usize,
    len: usize,
    /// Frames that found it full, or were too long.
    pub(crate) dropped: u64,
}

impl NetQueue {
    /// For frames of up to `frame_bytes`.
    pub(crate) fn new(frame_bytes: usize) -> NetQueue {
        let bytes = vec![0; FRAMES * frame_bytes];
        NetQueue { bytes, frame_bytes, frames: [(0, 0); FRAMES], first: 0, len: 0, dropped: 0 }
    }

    /// Keeps a copy of `data`; false, and counted, when it cannot.
    pub(crate) fn push(&mut self, handle: u32, data: &[u8]) -> bool {
        if self.len == FRAMES || data.len() > self.frame_bytes {
            self.dropped += 1;
            return false;
        }
        let at = (self.first + self.len) % FRAMES;
        let start = at * self.frame_bytes;
        self.bytes[start..start + data.len()].copy_from_slice(data);
        self.frames[at] = (handle, data.len());
        self.len += 1;
        true
    }

    /// Puts what fits into a frame.
    pub(crate) fn fill(&mut self, out: &mut Out<'_>) {
        while self.len > 0 {
            let (handle, len) = self.frames[self.first];
            let start = self.first * self.frame_bytes;
            if !out.push_net(handle, &self.bytes[start..start + len]) {
                return;
            }
            self.first = (self.first + 1) % FRAMES;
            self.len -= 1;
        }
    }
}
