//! The program that runs at each switch of threads, as instructions.
//!
//! Assembled here: a hundred instructions without a loop need no compiler, and no object file in the tree.
//! In words: the thread that loses the processor, then the one that gets it, is looked up in the index;
//! most have no row, and that is all. Not here: how it is loaded (`sys`, `tracker`).

use runstate::layout::{
    BUCKETS, LAST_OFF, OFF, ON, ROW_WORDS, ROWS_AT, ROWS_MAX, RUNS, SEQUENCE, SINCE, SLEEPS,
    SLICE_AT, SLICE_BITS, SLICE_MAX, SLICE_SHIFT, STATE, SWITCHES, WAITS, WAYS,
};

/// `struct bpf_insn`: destination register in the lower half of `registers`, source in the upper.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Codes (`linux/bpf.h`).
const LOAD_U32: u8 = 0x61;
const LOAD_U64: u8 = 0x79;
const STORE_U64: u8 = 0x7b;
/// With the immediate [`FETCH_ADD`]: whole, and in order with all that is before and behind it.
const ATOMIC_U64: u8 = 0xdb;
const FETCH_ADD: i32 = 0x01;
const LOAD_ADDRESS: u8 = 0x18;
const MOVE: u8 = 0xbf;
const MOVE_U32: u8 = 0xbc;
const SET: u8 = 0xb7;
const ADD: u8 = 0x0f;
const ADD_NUMBER: u8 = 0x07;
const SUBTRACT: u8 = 0x1f;
const OR: u8 = 0x4f;
const AND_NUMBER: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const SHIFT_RIGHT: u8 = 0x77;
const MULTIPLY_U32: u8 = 0x24;
const SHIFT_RIGHT_U32: u8 = 0x74;
const JUMP: u8 = 0x05;
const JUMP_IF_NUMBER: u8 = 0x15;
const JUMP_UNLESS_NUMBER: u8 = 0x55;
const JUMP_IF_ABOVE: u8 = 0x25;
const JUMP_IF_EQUAL_U32: u8 = 0x1e;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The immediate's descriptor is of a map, and the address that of its first value.
const MAP_VALUE: u8 = 2;

/// Helpers of the kernel.
const NOW_NS: i32 = 5;
const THIS_CPU: i32 = 8;

/// The tracepoint's arguments, each of eight bytes: preempted, the old thread, the new one, the old one's state.
const OLD_AT: i16 = 8;
const NEW_AT: i16 = 16;
const OLD_STATE_AT: i16 = 24;

/// How a thread's number becomes its bucket: the upper bits of a product with a secret, odd number. Who makes
/// threads cannot choose which of them meet.
pub(crate) fn bucket_of(tid: u32, seed: u32) -> usize {
    (tid.wrapping_mul(seed | 1) >> (32 - BUCKETS.ilog2())) as usize
}

/// What the program is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The map's descriptor.
    pub(crate) map: i32,
    /// Where a thread has its number.
    pub(crate) pid_at: i16,
    /// See [`bucket_of`].
    pub(crate) seed: u32,
}

/// All of it.
pub(crate) fn assemble(facts: Facts) -> Vec<Instruction> {
    let mut code = Code::default();
    // r6 = the arguments, r7 = the time, once it was read
    code.op(MOVE, 6, 1, 0, 0);
    code.op(SET, 7, 0, 0, 0);
    let done = code.find(OLD_AT, facts);
    code.clocks();
    code.begin();
    code.switch_out();
    code.end();
    code.land(done);
    let done = code.find(NEW_AT, facts);
    // Both threads may have a row, and the clock is most of what this costs.
    let is_read = code.op(JUMP_UNLESS_NUMBER, 7, 0, 0, 0);
    code.clocks();
    code.land(vec![is_read]);
    code.begin();
    code.switch_in();
    code.end();
    code.land(done);
    code.op(SET, 0, 0, 0, 0);
    code.op(EXIT, 0, 0, 0, 0);
    code.0
}

/// One that ends at once.
pub(crate) fn nothing() -> Vec<Instruction> {
    let mut code = Code::default();
    code.op(SET, 0, 0, 0, 0);
    code.op(EXIT, 0, 0, 0, 0);
    code.0
}

#[derive(Default)]
struct Code(Vec<Instruction>);

impl Code {
    fn op(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> usize {
        self.0.push(Instruction { code, registers: from << 4 | to, offset, immediate });
        self.0.len() - 1
    }

    /// Jumps at these places go to what comes next.
    fn land(&mut self, places: Vec<usize>) {
        let here = self.0.len();
        for place in places {
            if let Some(jump) = self.0.get_mut(place) {
                jump.offset = (here - place - 1) as i16;
            }
        }
    }

    fn load(&mut self, to: u8, word: usize) {
        self.op(LOAD_U64, to, 9, 8 * word as i16, 0);
    }

    fn store(&mut self, word: usize, from: u8) {
        self.op(STORE_U64, 9, from, 8 * word as i16, 0);
    }

    /// r9 = the row of the thread that this argument names. Returns the jumps of one that has none.
    fn find(&mut self, argument: i16, facts: Facts) -> Vec<usize> {
        let mut none = Vec::new();
        self.op(LOAD_U64, 1, 6, argument, 0);
        // r1 = its number, r2 = where its bucket is
        self.op(LOAD_U32, 1, 1, facts.pid_at, 0);
        self.op(MOVE_U32, 2, 1, 0, 0);
        self.op(MULTIPLY_U32, 2, 0, 0, (facts.seed | 1) as i32);
        self.op(SHIFT_RIGHT_U32, 2, 0, 0, 32 - BUCKETS.ilog2() as i32);
        self.op(SHIFT_LEFT, 2, 0, 0, (8 * WAYS).ilog2() as i32);
        self.address(3, facts.map);
        self.op(MOVE, 9, 3, 0, 0);
        self.op(ADD, 3, 2, 0, 0);
        let mut found = Vec::new();
        for way in 0..WAYS {
            self.op(LOAD_U64, 4, 3, 8 * way as i16, 0);
            // A bucket has its entries first: behind an empty one there is none.
            none.push(self.op(JUMP_IF_NUMBER, 4, 0, 0, 0));
            found.push(self.op(JUMP_IF_EQUAL_U32, 4, 1, 0, 0));
        }
        none.push(self.op(JUMP, 0, 0, 0, 0));
        self.land(found);
        self.op(SHIFT_RIGHT, 4, 0, 0, 32);
        none.push(self.op(JUMP_IF_ABOVE, 4, 0, 0, i32::from(ROWS_MAX) - 1));
        self.op(SHIFT_LEFT, 4, 0, 0, (8 * ROW_WORDS).ilog2() as i32);
        self.op(ADD, 9, 4, 0, 0);
        self.op(ADD_NUMBER, 9, 0, 0, 8 * ROWS_AT as i32);
        none
    }

    /// A register gets the address of the table: two instructions.
    fn address(&mut self, to: u8, map: i32) {
        self.op(LOAD_ADDRESS, to, MAP_VALUE, 0, map);
        self.op(0, 0, 0, 0, 0);
    }

    /// r7 = now, r8 = this cpu in the upper half.
    fn clocks(&mut self) {
        self.op(CALL, 0, 0, 0, THIS_CPU);
        self.op(MOVE, 8, 0, 0, 0);
        self.op(SHIFT_LEFT, 8, 0, 0, 32);
        self.op(CALL, 0, 0, 0, NOW_NS);
        self.op(MOVE, 7, 0, 0, 0);
    }

    /// The row is being written; r2 = its state, r3 = the time since that began, r2's kind in r4.
    fn begin(&mut self) {
        self.op(SET, 1, 0, 0, 1);
        self.op(ATOMIC_U64, 9, 1, 8 * SEQUENCE as i16, FETCH_ADD);
        self.load(2, STATE);
        self.load(5, SINCE);
        self.op(MOVE, 3, 7, 0, 0);
        self.op(SUBTRACT, 3, 5, 0, 0);
        self.op(MOVE, 4, 2, 0, 0);
        self.op(AND_NUMBER, 4, 0, 0, 0xff);
    }

    /// `to += r3`, by r1.
    fn count(&mut self, to: usize) {
        self.load(1, to);
        self.op(ADD, 1, 3, 0, 0);
        self.store(to, 1);
    }

    /// r8 and r2, cpu and the rest, are the state, since now; the row is whole again.
    fn end(&mut self) {
        self.op(OR, 2, 8, 0, 0);
        self.store(STATE, 2);
        self.store(SINCE, 7);
        self.op(SET, 1, 0, 0, 1);
        self.op(ATOMIC_U64, 9, 1, 8 * SEQUENCE as i16, FETCH_ADD);
    }

    fn switch_out(&mut self) {
        let other = self.op(JUMP_UNLESS_NUMBER, 4, 0, 0, RUNS as i32);
        self.count(ON);
        self.land(vec![other]);
        // What it was when it was switched out: 0 would run on.
        self.op(LOAD_U64, 1, 6, OLD_STATE_AT, 0);
        self.op(MOVE_U32, 1, 1, 0, 0);
        self.op(SET, 5, 0, 0, WAITS as i32);
        let waits = self.op(JUMP_IF_NUMBER, 1, 0, 0, 0);
        self.op(SET, 5, 0, 0, SLEEPS as i32);
        self.land(vec![waits]);
        // The processor was taken from it: what it had was a slice. Otherwise the last one stays.
        let mut other = vec![self.op(JUMP_UNLESS_NUMBER, 1, 0, 0, 0)];
        other.push(self.op(JUMP_UNLESS_NUMBER, 4, 0, 0, RUNS as i32));
        self.op(MOVE, 2, 3, 0, 0);
        self.op(SHIFT_RIGHT, 2, 0, 0, SLICE_SHIFT as i32);
        let long = self.op(JUMP_IF_ABOVE, 2, 0, 0, SLICE_MAX as i32);
        let short = self.op(JUMP, 0, 0, 0, 0);
        self.land(vec![long]);
        self.op(SET, 2, 0, 0, SLICE_MAX as i32);
        self.land(vec![short]);
        self.op(SHIFT_LEFT, 2, 0, 0, SLICE_AT as i32);
        self.land(other);
        self.op(AND_NUMBER, 2, 0, 0, SLICE_BITS as i32);
        self.op(OR, 2, 5, 0, 0);
    }

    fn switch_in(&mut self) {
        let unknown = self.op(JUMP_IF_NUMBER, 4, 0, 0, 0);
        let running = self.op(JUMP_IF_NUMBER, 4, 0, 0, RUNS as i32);
        self.count(OFF);
        self.store(LAST_OFF, 3);
        self.land(vec![unknown, running]);
        self.load(1, SWITCHES);
        self.op(ADD_NUMBER, 1, 0, 0, 1);
        self.store(SWITCHES, 1);
        self.op(AND_NUMBER, 2, 0, 0, SLICE_BITS as i32);
        self.op(ADD_NUMBER, 2, 0, 0, RUNS as i32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_lands_inside() {
        let code = assemble(Facts { map: 3, pid_at: 100, seed: 12_345 });
        assert!(code.len() < 160, "{} instructions", code.len());
        for (at, one) in code.iter().enumerate() {
            let is_jump = matches!(
                one.code,
                JUMP | JUMP_IF_NUMBER | JUMP_UNLESS_NUMBER | JUMP_IF_ABOVE | JUMP_IF_EQUAL_U32
            );
            if is_jump {
                let to = at as i64 + 1 + i64::from(one.offset);
                assert!(one.offset > 0 && to < code.len() as i64, "the jump at {at}");
            }
        }
    }

    #[test]
    fn neighbours_are_spread() {
        let mut counts = vec![0u32; BUCKETS];
        (1000..5000).for_each(|tid| counts[bucket_of(tid, 0x9e37_79b9)] += 1);
        assert!(counts.iter().all(|count| *count <= WAYS as u32));
    }
}
