//! Where what is in the table: for whoever writes it, the kernel's program and the one who says whom it follows.

/// Threads that are followed at most: 512 guests of 8 vCPUs.
pub const ROWS_MAX: u16 = 4096;
/// Buckets of the index, a power of two.
pub const BUCKETS: usize = 4096;
/// Entries of a bucket: one line. With as many threads as buckets, one bucket in a million is too small.
pub const WAYS: usize = 8;
/// Words of a row: one line, so that readers of one do not disturb the writer of another.
pub const ROW_WORDS: usize = 8;
/// Where rows begin, in words.
pub const ROWS_AT: usize = BUCKETS * WAYS;
/// Words of the whole table.
pub const WORDS: usize = ROWS_AT + ROWS_MAX as usize * ROW_WORDS;
/// Word of a row: odd while the row is being written.
pub const SEQUENCE: usize = 0;
/// Word of a row: what its thread does ([`RUNS`], [`WAITS`], [`SLEEPS`]; 0: nothing is known) in the low byte, the cpu in
/// the upper half. Between them for how long the thread had a processor when one was last taken from it.
pub const STATE: usize = 1;
/// Word of a row: since when its thread does that, nanoseconds of `CLOCK_MONOTONIC`.
pub const SINCE: usize = 2;
/// Word of a row: how long its thread had a processor, in the times that are over, nanoseconds.
pub const ON: usize = 3;
/// Word of a row: how long it had none, likewise.
pub const OFF: usize = 4;
/// Word of a row: how long it had none the last time, nanoseconds.
pub const LAST_OFF: usize = 5;
/// Word of a row: how often it was given a processor.
pub const SWITCHES: usize = 6;

/// Of [`STATE`]: the thread has a processor.
pub const RUNS: u64 = 1;
/// Of [`STATE`]: it would run, and has none.
pub const WAITS: u64 = 2;
/// Of [`STATE`]: it sleeps until something wakes it.
pub const SLEEPS: u64 = 3;
/// Where the last slice is in [`STATE`], as a shift.
pub const SLICE_AT: u32 = 8;
/// The unit of a slice, as a shift: 4,096 ns.
pub const SLICE_SHIFT: u32 = 12;
/// The longest slice, in units: 34 s. Its bits end below the upper bit of the lower half, so that a number of the
/// program's instructions, which are signed, can be all of them.
pub const SLICE_MAX: u64 = 0x7f_ffff;
/// The bits of a slice in [`STATE`].
pub const SLICE_BITS: u64 = SLICE_MAX << SLICE_AT;
