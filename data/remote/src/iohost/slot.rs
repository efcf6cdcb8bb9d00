//! One slot of an attachment, as the IOhost has it: its last turn, what was asked, and the answer until the next.

use crate::bits::Bits;
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
    /// Parts of the answer to be sent, and those that the client has.
    pub(super) to_send: Bits,
    pub(super) taken: Bits,
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
            to_send: Bits::default(),
            taken: Bits::default(),
            never_seen: None,
            is_queued: false,
        }
    }

    /// Forgets a request that has not been executed: its turn is the next one again.
    pub(super) fn forget(&mut self) {
        if matches!(self.state, State::Gathering | State::Ready) {
            self.turn -= 1;
            self.state = State::Idle;
        }
    }

    /// Nothing is to be said (any more), until somebody asks.
    pub(super) fn hush(&mut self) {
        self.to_send = Bits::default();
        self.taken = Bits::default();
        self.never_seen = None;
    }

    /// All of the answer is to be sent.
    pub(super) fn say(&mut self, part_bytes: usize) {
        let has_data = self.op == Op::Read && self.status == Status::Ok;
        let parts = if has_data { (self.len as usize).div_ceil(part_bytes) } else { 1 };
        self.to_send = Bits::first(parts);
        self.taken = Bits::default();
    }
}
