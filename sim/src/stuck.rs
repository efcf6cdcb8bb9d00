//! The rule of the ELVIS paper (3.2): after a minimum of work a visit also ends when another queue that is
//! not empty is *stuck*, because nothing new has come into it for some time: its guest waits.
//!
//! For comparison; the daemon does not have it (0007, "Pieces and urgency", says why). The minimum is one
//! piece, and the other queue is the one whose turn is next: looking at all of them would cost more than
//! the visit. Called by `sidecore_model`.

/// Nothing new for so long: the paper names no time. Between two pieces of a stream pass 2 us.
const STUCK_NS: u64 = 4_000;

/// What was seen of the queue that is next in line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stuck {
    queue: u16,
    offered: u64,
    since: u64,
}

impl Stuck {
    /// A look at a queue that is not empty and was offered so many requests so far: whether it is stuck.
    pub(crate) fn look(&mut self, queue: u16, offered: u64, now: u64) -> bool {
        if (self.queue, self.offered) != (queue, offered) {
            *self = Stuck { queue, offered, since: now };
        }
        now - self.since >= STUCK_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_into_which_nothing_comes_is_stuck() {
        let mut stuck = Stuck::default();
        assert!(!stuck.look(3, 7, 100) && !stuck.look(3, 7, 100 + STUCK_NS - 1));
        assert!(stuck.look(3, 7, 100 + STUCK_NS));
        assert!(!stuck.look(3, 8, 100 + STUCK_NS), "something came");
        assert!(!stuck.look(4, 8, 200 + STUCK_NS), "another queue");
    }
}
