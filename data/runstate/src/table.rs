//! The table that the kernel's program writes, and how it is read.
//!
//! An index from thread numbers to rows (written by control, read by the program), then
//! the rows (written by the program, read here). A row has one writer at a time: the
//! processor that switches its thread out or in, under the lock of its run queue. It makes the sequence word odd,
//! writes, and makes it even; a reader that sees it odd or changed looks again, a few times.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use std::io;
use std::os::fd::AsFd;

use crate::layout::*;
use crate::mapping::Mapping;

/// Looks at a row that is being written. A writer takes some tens of nanoseconds, but for one whose own
/// processor is taken from it amidst them, and that is not waited for.
const LOOKS_MAX: u32 = 8;

/// The place of one thread in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row(u16);

impl Row {
    /// The one of that number; of one that no thread has nothing is known.
    pub fn numbered(number: u16) -> Row {
        Row(number)
    }

    /// Its number, below [`ROWS_MAX`].
    pub fn number(self) -> u16 {
        self.0
    }
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It was not switched since it was first followed.
    Unknown,
    /// It has a processor.
    Runs,
    /// It would run, and has no processor: others have their turn.
    Waits,
    /// It sleeps until something wakes it: a vCPU that its guest has halted.
    Sleeps,
}

/// What a thread does, and what is known of its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// What it does.
    pub activity: Activity,
    /// The processor that it has, or had last.
    pub cpu: u32,
    /// For how long it had one when it was last taken from it, nanoseconds, in steps of 4,096; 0: it never was.
    pub slice_ns: u64,
    /// Since when it does what it does: nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn { activity: Activity::Unknown, cpu: 0, slice_ns: 0, since_ns: 0 }
    }
}

/// All that is known of a thread, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// What it does.
    pub activity: Activity,
    /// The processor that it has, or had last.
    pub cpu: u32,
    /// Since when it does that: nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// How long it had a processor, in the times that are over, nanoseconds.
    pub on_ns: u64,
    /// How long it had none, in the times that are over, nanoseconds.
    pub off_ns: u64,
    /// How long it had none the last time, nanoseconds.
    pub last_off_ns: u64,
    /// How often it was given one.
    pub switches: u64,
    /// See [`Turn::slice_ns`].
    pub slice_ns: u64,
}

/// The memory of a table.
#[derive(Debug)]
enum Memory {
    Map(Mapping),
    #[cfg(any(test, feature = "simulated"))]
    Own(Box<[AtomicU64]>),
}

/// The table, as any thread may read it.
#[derive(Debug)]
pub struct Table(Memory);

impl Table {
    /// The table that is the value of a map of the kernel's, [`WORDS`] words long.
    ///
    /// # Errors
    /// The kernel's: it cannot be mapped.
    pub fn of_map(map: impl AsFd) -> io::Result<Table> {
        Ok(Table(Memory::Map(Mapping::new(map, WORDS)?)))
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        match &self.0 {
            Memory::Map(map) => map.words(),
            #[cfg(any(test, feature = "simulated"))]
            Memory::Own(words) => words,
        }
    }

    /// An entry of the index.
    pub fn entry(&self, bucket: usize, way: usize) -> Option<&AtomicU64> {
        if way < WAYS { self.words().get(..ROWS_AT)?.get(bucket * WAYS + way) } else { None }
    }

    /// The words of a row.
    #[inline]
    pub fn row(&self, row: Row) -> Option<&[AtomicU64; ROW_WORDS]> {
        let at = ROWS_AT + usize::from(row.0) * ROW_WORDS;
        self.words().get(at..at + ROW_WORDS)?.try_into().ok()
    }

    /// What the thread of a row does now: one load.
    #[inline]
    pub fn activity(&self, row: Row) -> Activity {
        let state = self.row(row).map_or(0, |words| words[STATE].load(Ordering::Relaxed));
        activity_of(state)
    }

    /// What the thread of a row does, since when, and how long its last slice was: that of a vCPU that others push
    /// aside. Two loads, which may be of different moments.
    #[inline]
    pub fn turn(&self, row: Row) -> Turn {
        let Some(words) = self.row(row) else { return Turn::default() };
        let state = words[STATE].load(Ordering::Relaxed);
        Turn {
            activity: activity_of(state),
            cpu: (state >> 32) as u32,
            slice_ns: slice_of(state),
            since_ns: words[SINCE].load(Ordering::Relaxed),
        }
    }

    /// How long the thread of a row has been without a processor, as a time that can be compared with that of
    /// other rows: the moment at which it lost it, and how long the last such time was, nanoseconds.
    #[inline]
    pub fn off_since(&self, row: Row) -> (u64, u64) {
        let Some(words) = self.row(row) else { return (0, 0) };
        (words[SINCE].load(Ordering::Relaxed), words[LAST_OFF].load(Ordering::Relaxed))
    }

    /// All of a row, as it was at one moment. `None` when it was being written all the while.
    pub fn read(&self, row: Row) -> Option<State> {
        let words = self.row(row)?;
        for _ in 0..LOOKS_MAX {
            let before = words[SEQUENCE].load(Ordering::Acquire);
            let [state, since_ns, on_ns, off_ns, last_off_ns, switches] =
                [STATE, SINCE, ON, OFF, LAST_OFF, SWITCHES]
                    .map(|word| words[word].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && words[SEQUENCE].load(Ordering::Relaxed) == before {
                let (activity, cpu) = (activity_of(state), (state >> 32) as u32);
                return Some(State {
                    activity,
                    cpu,
                    since_ns,
                    on_ns,
                    off_ns,
                    last_off_ns,
                    switches,
                    slice_ns: slice_of(state),
                });
            }
            std::hint::spin_loop();
        }
        None
    }
}

#[inline]
fn slice_of(state: u64) -> u64 {
    (state & SLICE_BITS) >> SLICE_AT << SLICE_SHIFT
}

#[inline]
fn activity_of(state: u64) -> Activity {
    match state & 0xff {
        RUNS => Activity::Runs,
        WAITS => Activity::Waits,
        SLEEPS => Activity::Sleeps,
        _ => Activity::Unknown,
    }
}

/// A table without a kernel, and what the program would write into it.
#[cfg(any(test, feature = "simulated"))]
impl Table {
    /// A table of its own memory, in which nothing runs.
    pub fn simulated() -> Table {
        Table(Memory::Own((0..WORDS).map(|_| AtomicU64::new(0)).collect()))
    }

    /// A row of such a table.
    pub fn simulated_row(number: u16) -> Row {
        Row(number % ROWS_MAX)
    }

    /// What the program writes when the thread of `row` begins to do that, on `cpu`, at `now_ns`.
    pub fn simulate(&self, row: Row, activity: Activity, cpu: u32, now_ns: u64) {
        let Some(words) = self.row(row) else { return };
        let load = |word: usize| words[word].load(Ordering::Relaxed);
        let store = |word: usize, value: u64| words[word].store(value, Ordering::Relaxed);
        store(SEQUENCE, load(SEQUENCE) + 1);
        fence(Ordering::Release);
        let (was, took) = (activity_of(load(STATE)), now_ns.saturating_sub(load(SINCE)));
        let kind = match activity {
            Activity::Unknown => 0,
            Activity::Runs => RUNS,
            Activity::Waits => WAITS,
            Activity::Sleeps => SLEEPS,
        };
        match (was, activity) {
            (Activity::Unknown, _) => {}
            (Activity::Runs, _) => store(ON, load(ON) + took),
            (_, Activity::Runs) => {
                store(OFF, load(OFF) + took);
                store(LAST_OFF, took);
            }
            _ => {}
        }
        if activity == Activity::Runs {
            store(SWITCHES, load(SWITCHES) + 1);
        }
        let slice = match (was, activity) {
            (Activity::Runs, Activity::Waits) => (took >> SLICE_SHIFT).min(SLICE_MAX) << SLICE_AT,
            _ => load(STATE) & SLICE_BITS,
        };
        store(STATE, u64::from(cpu) << 32 | slice | kind);
        store(SINCE, now_ns);
        words[SEQUENCE].store(load(SEQUENCE) + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_its_thread_did() {
        let (table, row) = (Table::simulated(), Row(7));
        assert_eq!(table.activity(row), Activity::Unknown);
        table.simulate(row, Activity::Runs, 3, 100);
        table.simulate(row, Activity::Waits, 3, 150);
        table.simulate(row, Activity::Runs, 5, 190);
        let state = table.read(row).expect("nobody writes");
        let expected = State {
            activity: Activity::Runs,
            cpu: 5,
            since_ns: 190,
            on_ns: 50,
            off_ns: 40,
            last_off_ns: 40,
            switches: 2,
            slice_ns: 0,
        };
        assert_eq!(state, expected);
        assert_eq!(table.activity(Row(8)), Activity::Unknown, "another row is as it was");
    }

    #[test]
    fn a_slice_is_what_others_have_ended() {
        let (table, row) = (Table::simulated(), Row(9));
        assert_eq!(table.turn(row), Turn::default());
        table.simulate(row, Activity::Runs, 1, 1_000);
        assert_eq!(table.turn(row).slice_ns, 0);
        table.simulate(row, Activity::Waits, 1, 1_000 + 4 * 4096 + 5);
        table.simulate(row, Activity::Runs, 2, 100_000);
        let turn = Turn { activity: Activity::Runs, cpu: 2, slice_ns: 4 * 4096, since_ns: 100_000 };
        assert_eq!(table.turn(row), turn);
        table.simulate(row, Activity::Sleeps, 2, 500_000);
        assert_eq!(table.turn(row).slice_ns, 4 * 4096, "it slept by itself");
        table.simulate(row, Activity::Runs, 2, 600_000);
        table.simulate(row, Activity::Waits, 2, u64::MAX);
        assert_eq!(table.turn(row).slice_ns, SLICE_MAX << SLICE_SHIFT);
        assert_eq!(table.activity(row), Activity::Waits);
    }

    #[test]
    fn a_row_that_is_being_written_is_not_believed() {
        let (table, row) = (Table::simulated(), Row(1));
        table.simulate(row, Activity::Runs, 0, 1);
        table.row(row).expect("there")[SEQUENCE].fetch_add(1, Ordering::Relaxed);
        assert_eq!(table.read(row), None);
        assert_eq!(table.activity(row), Activity::Runs, "one word is always whole");
    }

    #[test]
    fn two_threads_never_see_half_a_change() {
        let table = Table::simulated();
        let row = Row(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for now in 1..200_000u64 {
                    let activity = if now % 2 == 0 { Activity::Waits } else { Activity::Runs };
                    table.simulate(row, activity, now as u32, now);
                }
            });
            for _ in 0..100_000 {
                let Some(state) = table.read(row) else { continue };
                // Each change takes one unit of time, and the cpu's number is the time.
                assert_eq!(u64::from(state.cpu), state.since_ns);
                let times = state.on_ns + state.off_ns;
                assert_eq!(times, state.since_ns.saturating_sub(1), "{state:?}");
            }
        });
    }
}
