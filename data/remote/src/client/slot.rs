//! One outstanding request of an attachment, as the client has it. Its bytes are in the attachment's memory.

use crate::bits::{Bits, Sending};
use crate::wire::{Op, Status};

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// No answer yet.
    Waiting,
    /// Ended, and not given back yet.
    Ended,
}

/// The slot. `turn` grows by one with each request, and only when the one before has been answered.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) turn: u64,
    pub(super) state: State,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) checksum: u64,
    pub(super) tag: u64,
    /// Which request of the attachment it is.
    pub(super) number: u64,
    /// Of a flush: how many writes had been reported done before it.
    pub(super) covers: u64,
    /// Fragments.
    pub(super) sending: Sending,
    /// After binding again: the IOhost is to be asked first.
    pub(super) recalls: bool,
    pub(super) is_queued: bool,
    /// Something of this turn was said: before, nobody can know how it ended.
    pub(super) is_said: bool,
    /// Fragments of its data, in this session.
    parts: usize,
    /// Pieces of what was read, and how many are missing.
    pub(super) have: Bits,
    pub(super) missing: u16,
    pub(super) answer_sum: u64,
    pub(super) status: Status,
}

impl Slot {
    pub(super) fn new() -> Slot {
        Slot {
            turn: 0,
            state: State::Free,
            op: Op::Flush,
            offset: 0,
            len: 0,
            checksum: 0,
            tag: 0,
            number: 0,
            covers: 0,
            sending: Sending::default(),
            recalls: false,
            is_queued: false,
            is_said: false,
            parts: 0,
            have: Bits::default(),
            missing: 0,
            answer_sum: 0,
            status: Status::Ok,
        }
    }

    /// Begins with nothing sent and nothing received, in a session with fragments of `part_bytes`.
    pub(super) fn restart(&mut self, part_bytes: usize) {
        let parts = (self.len as usize).div_ceil(part_bytes);
        self.parts = if self.op.has_data() { parts } else { 1 };
        self.sending = Sending::first(self.parts);
        self.recalls = false;
        self.have = Bits::default();
        self.missing = match self.op {
            Op::Read => (self.len as usize).div_ceil(part_bytes) as u16,
            _ => 0,
        };
    }

    /// The IOhost has never seen it: all that it has not taken since is to be sent.
    pub(super) fn send_all(&mut self) {
        self.recalls = false;
        (0..self.parts).for_each(|part| self.sending.lost(part));
    }
}
