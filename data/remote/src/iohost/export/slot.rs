//! One slot of an attachment, as the IOhost has it: its last turn, what was asked, and the answer until the next.

use crate::bits::{Bits, Sending};
use crate::wire::{Op, Status};

/// How far the turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Answered long ago, or never used: the next turn may come.
    Idle,
    /// Some of its fragments are here.
    Gathering,
    /// Whole, and waits to be executed.
    Ready,
    Executing,
    Answered,
    /// A read that was answered, and whose bytes are here no more: its turn may come again.
    Gone,
}

/// The slot. Its bytes are in the attachment's memory.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) turn: u64,
    pub(super) state: State,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) checksum: u64,
    /// Fragments that are here, and how many are not.
    pub(super) have: Bits,
    pub(super) missing: u16,
    pub(super) status: Status,
    pub(super) answer_sum: u64,
    /// Parts of the answer.
    pub(super) sending: Sending,
    /// The client asked for this turn, which was never seen: it is to be told.
    pub(super) never_seen: Option<u64>,
    pub(super) is_queued: bool,
}

impl Slot {
    pub(super) fn new() -> Slot {
        Slot {
            turn: 0,
            state: State::Idle,
            op: Op::Flush,
            offset: 0,
            len: 0,
            checksum: 0,
            have: Bits::default(),
            missing: 0,
            status: Status::Ok,
            answer_sum: 0,
            sending: Sending::default(),
            never_seen: None,
            is_queued: false,
        }
    }

    /// Whether it may be asked of a device of `size` bytes.
    pub(super) fn is_within(&self, size: u64) -> bool {
        let end = self.offset.checked_add(u64::from(self.len));
        self.op == Op::Flush || end.is_some_and(|end| end <= size)
    }

    /// Forgets a request that has not been executed: its turn is the next one again.
    pub(super) fn forget(&mut self) {
        if matches!(self.state, State::Gathering | State::Ready) {
            self.turn -= 1;
            self.state = State::Idle;
        }
    }

    /// Whether a turn may begin: the next one, or the last one of which nothing is left.
    pub(super) fn begins(&self, turn: u64) -> bool {
        let is_next = Some(turn) == self.turn.checked_add(1);
        match self.state {
            State::Idle | State::Answered => is_next,
            State::Gone => is_next || turn == self.turn,
            State::Gathering | State::Ready | State::Executing => false,
        }
    }

    /// Nothing is to be said (any more), until somebody asks.
    pub(super) fn hush(&mut self) {
        self.sending = Sending::default();
        self.never_seen = None;
    }

    /// All of the answer is to be sent.
    pub(super) fn say(&mut self, part_bytes: usize) {
        let has_data = self.op == Op::Read && self.status == Status::Ok;
        let parts = if has_data { (self.len as usize).div_ceil(part_bytes) } else { 1 };
        self.sending = Sending::first(parts);
    }
}
