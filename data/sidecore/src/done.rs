//! What a piece of a disk's visit came to, small enough for two registers.
//!
//! Not what that means (`schedule`). As a structure it went through memory, stored in parts and loaded as a
//! whole; such a load waits until all stores before it are done, those of a copy of 16 KiB too: 250 ns a
//! piece, a tenth of what streams had. Made by `fetch`, read by `visit`.

use schedule::Visited;

const ENDED_SHIFT: u32 = 32;
const MORE: u64 = 1 << 61;
const HELD: u64 = 1 << 62;
const LATER: u64 = 1 << 63;
/// Requests that end in one piece are far fewer.
const ENDED_MAX: u64 = (1 << 29) - 1;

/// See the file's page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    bytes: u64,
    /// Requests taken, from bit 32 on those that ended, and the three flags of [`Visited`].
    counts: u64,
}

impl Done {
    /// Of a piece in which so many requests `ended`; without its time.
    #[inline(always)]
    pub(crate) fn new(visited: Visited, ended: u64) -> Done {
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let flags =
            flag(visited.more, MORE) | flag(visited.held, HELD) | flag(visited.later, LATER);
        let ended = ended.min(ENDED_MAX) << ENDED_SHIFT;
        Done { bytes: visited.bytes, counts: u64::from(visited.requests) | ended | flags }
    }

    /// Requests that ended.
    #[inline(always)]
    pub(crate) fn ended(self) -> u64 {
        self.counts >> ENDED_SHIFT & ENDED_MAX
    }

    /// The rest.
    #[inline(always)]
    pub(crate) fn visited(self) -> Visited {
        Visited {
            requests: self.counts as u32,
            bytes: self.bytes,
            nanos: 0,
            more: self.counts & MORE != 0,
            held: self.counts & HELD != 0,
            later: self.counts & LATER != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_in_comes_out() {
        for number in 0..1u64 << 9 {
            let bit = |at: u64| number >> at & 1 != 0;
            // Bits of the number at the ends of each field.
            let ends = |at: u64, last: u32| u64::from(bit(at)) | u64::from(bit(at + 1)) << last;
            let (requests, bytes, ended) = (ends(0, 31) as u32, ends(2, 63), ends(4, 28));
            let (more, held, later) = (bit(6), bit(7), bit(8));
            let visited = Visited { requests, bytes, nanos: 0, more, held, later };
            let done = Done::new(visited, ended);
            assert_eq!((done.visited(), done.ended()), (visited, ended));
        }
        let most = Done::new(Visited::default(), u64::MAX);
        assert_eq!((most.visited(), most.ended()), (Visited::default(), ENDED_MAX));
    }
}
