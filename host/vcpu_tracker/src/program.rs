//! The program that runs at each switch of threads, as instructions.
//!
//! Assembled here: a hundred instructions without a loop need no compiler, and no object file in the tree.
//! In words: the thread that loses the processor, then the one that gets it, is looked up in the index;
//! most have no row, and that is all. Not here: how it is loaded (`sys`, `tracker`).

use bpf::helper::{NOW_NS, THIS_CPU};
use bpf::op::*;
use bpf::{Code, Instruction};
use runstate::layout::{
    BUCKETS, LAST_OFF, OFF, ON, ROW_WORDS, ROWS_AT, ROWS_MAX, RUNS, SEQUENCE, SINCE, SLEEPS,
    SLICE_AT, SLICE_BITS, SLICE_MAX, SLICE_SHIFT, STATE, SWITCHES, WAITS, WAYS,
};

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
    let done = find(&mut code, OLD_AT, facts);
    clocks(&mut code);
    begin(&mut code);
    switch_out(&mut code);
    end(&mut code);
    code.land(done);
    let done = find(&mut code, NEW_AT, facts);
    // Both threads may have a row, and the clock is most of what this costs.
    let is_read = code.op(JUMP_UNLESS_NUMBER, 7, 0, 0, 0);
    clocks(&mut code);
    code.land(vec![is_read]);
    begin(&mut code);
    switch_in(&mut code);
    end(&mut code);
    code.land(done);
    code.end();
    code.whole()
}

/// One that ends at once.
pub(crate) fn nothing() -> Vec<Instruction> {
    let mut code = Code::default();
    code.end();
    code.whole()
}

fn load(code: &mut Code, to: u8, word: usize) {
    code.op(LOAD_U64, to, 9, 8 * word as i16, 0);
}

fn store(code: &mut Code, word: usize, from: u8) {
    code.op(STORE_U64, 9, from, 8 * word as i16, 0);
}

/// r9 = the row of the thread that this argument names. Returns the jumps of one that has none.
fn find(code: &mut Code, argument: i16, facts: Facts) -> Vec<usize> {
    let mut none = Vec::new();
    code.op(LOAD_U64, 1, 6, argument, 0);
    // r1 = its number, r2 = where its bucket is
    code.op(LOAD_U32, 1, 1, facts.pid_at, 0);
    code.op(MOVE_U32, 2, 1, 0, 0);
    code.op(MULTIPLY_U32, 2, 0, 0, (facts.seed | 1) as i32);
    code.op(SHIFT_RIGHT_U32, 2, 0, 0, 32 - BUCKETS.ilog2() as i32);
    code.op(SHIFT_LEFT, 2, 0, 0, (8 * WAYS).ilog2() as i32);
    code.address(3, MAP_VALUE, facts.map);
    code.op(MOVE, 9, 3, 0, 0);
    code.op(ADD, 3, 2, 0, 0);
    let mut found = Vec::new();
    for way in 0..WAYS {
        code.op(LOAD_U64, 4, 3, 8 * way as i16, 0);
        // A bucket has its entries first: behind an empty one there is none.
        none.push(code.op(JUMP_IF_NUMBER, 4, 0, 0, 0));
        found.push(code.op(JUMP_IF_EQUAL_U32, 4, 1, 0, 0));
    }
    none.push(code.op(JUMP, 0, 0, 0, 0));
    code.land(found);
    code.op(SHIFT_RIGHT, 4, 0, 0, 32);
    none.push(code.op(JUMP_IF_ABOVE, 4, 0, 0, i32::from(ROWS_MAX) - 1));
    code.op(SHIFT_LEFT, 4, 0, 0, (8 * ROW_WORDS).ilog2() as i32);
    code.op(ADD, 9, 4, 0, 0);
    code.op(ADD_NUMBER, 9, 0, 0, 8 * ROWS_AT as i32);
    none
}

/// r7 = now, r8 = this cpu in the upper half.
fn clocks(code: &mut Code) {
    code.op(CALL, 0, 0, 0, THIS_CPU);
    code.op(MOVE, 8, 0, 0, 0);
    code.op(SHIFT_LEFT, 8, 0, 0, 32);
    code.op(CALL, 0, 0, 0, NOW_NS);
    code.op(MOVE, 7, 0, 0, 0);
}

/// The row is being written; r2 = its state, r3 = the time since that began, r2's kind in r4.
fn begin(code: &mut Code) {
    code.op(SET, 1, 0, 0, 1);
    code.op(ATOMIC_U64, 9, 1, 8 * SEQUENCE as i16, FETCH_ADD);
    load(code, 2, STATE);
    load(code, 5, SINCE);
    code.op(MOVE, 3, 7, 0, 0);
    code.op(SUBTRACT, 3, 5, 0, 0);
    code.op(MOVE, 4, 2, 0, 0);
    code.op(AND_NUMBER, 4, 0, 0, 0xff);
}

/// `to += r3`, by r1.
fn count(code: &mut Code, to: usize) {
    load(code, 1, to);
    code.op(ADD, 1, 3, 0, 0);
    store(code, to, 1);
}

/// r8 and r2, cpu and the rest, are the state, since now; the row is whole again.
fn end(code: &mut Code) {
    code.op(OR, 2, 8, 0, 0);
    store(code, STATE, 2);
    store(code, SINCE, 7);
    code.op(SET, 1, 0, 0, 1);
    code.op(ATOMIC_U64, 9, 1, 8 * SEQUENCE as i16, FETCH_ADD);
}

fn switch_out(code: &mut Code) {
    let other = code.op(JUMP_UNLESS_NUMBER, 4, 0, 0, RUNS as i32);
    count(code, ON);
    code.land(vec![other]);
    // What it was when it was switched out: 0 would run on.
    code.op(LOAD_U64, 1, 6, OLD_STATE_AT, 0);
    code.op(MOVE_U32, 1, 1, 0, 0);
    code.op(SET, 5, 0, 0, WAITS as i32);
    let waits = code.op(JUMP_IF_NUMBER, 1, 0, 0, 0);
    code.op(SET, 5, 0, 0, SLEEPS as i32);
    code.land(vec![waits]);
    // The processor was taken from it: what it had was a slice. Otherwise the last one stays.
    let mut other = vec![code.op(JUMP_UNLESS_NUMBER, 1, 0, 0, 0)];
    other.push(code.op(JUMP_UNLESS_NUMBER, 4, 0, 0, RUNS as i32));
    code.op(MOVE, 2, 3, 0, 0);
    code.op(SHIFT_RIGHT, 2, 0, 0, SLICE_SHIFT as i32);
    let long = code.op(JUMP_IF_ABOVE, 2, 0, 0, SLICE_MAX as i32);
    let short = code.op(JUMP, 0, 0, 0, 0);
    code.land(vec![long]);
    code.op(SET, 2, 0, 0, SLICE_MAX as i32);
    code.land(vec![short]);
    code.op(SHIFT_LEFT, 2, 0, 0, SLICE_AT as i32);
    code.land(other);
    code.op(AND_NUMBER, 2, 0, 0, SLICE_BITS as i32);
    code.op(OR, 2, 5, 0, 0);
}

fn switch_in(code: &mut Code) {
    let unknown = code.op(JUMP_IF_NUMBER, 4, 0, 0, 0);
    let running = code.op(JUMP_IF_NUMBER, 4, 0, 0, RUNS as i32);
    count(code, OFF);
    store(code, LAST_OFF, 3);
    code.land(vec![unknown, running]);
    load(code, 1, SWITCHES);
    code.op(ADD_NUMBER, 1, 0, 0, 1);
    store(code, SWITCHES, 1);
    code.op(AND_NUMBER, 2, 0, 0, SLICE_BITS as i32);
    code.op(ADD_NUMBER, 2, 0, 0, RUNS as i32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_lands_inside() {
        let code = assemble(Facts { map: 3, pid_at: 100, seed: 12_345 });
        assert!(code.len() < 160, "{} instructions", code.len());
        for (at, one) in code.iter().enumerate() {
            let is_jump = is_jump(one.code);
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
