//! Which threads have a row. Belongs to control, which is the only one to write the index.
//!
//! The program reads the index on every processor while it is changed here, one word at a time: an entry
//! is put behind the others of its bucket, and one that goes is replaced by the last before that one is
//! taken away, so that a look finds each thread that stays.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use runstate::layout::{ROWS_MAX, WAYS};
use runstate::{Row, Table};

use crate::program::bucket_of;

/// How long a row that was given back is given to nobody: what the program does with it began before and
/// is over by then, also on a processor that was taken from the host for a while. Nanoseconds.
const REST_NS: u64 = 1_000_000_000;

/// There is no row for another thread, or its bucket is full: it is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The threads that are followed.
#[derive(Debug)]
pub struct Roster {
    table: Arc<Table>,
    seed: u32,
    rows: HashMap<u32, Row>,
    fresh: u16,
    /// Given back, and when, the oldest first.
    resting: VecDeque<(u64, Row)>,
}

impl Roster {
    /// Nobody is followed in `table`, whose program has that seed.
    pub(crate) fn new(table: Arc<Table>, seed: u32) -> Roster {
        Roster { table, seed, rows: HashMap::new(), fresh: 0, resting: VecDeque::new() }
    }

    /// What the rows are in.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// How many are followed.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nobody is.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Follows the thread of that number from now on; one that is followed keeps its row.
    ///
    /// # Errors
    /// [`Full`]; nothing changed.
    pub fn bind(&mut self, tid: u32, now_ns: u64) -> Result<Row, Full> {
        if let Some(row) = self.rows.get(&tid) {
            return Ok(*row);
        }
        let bucket = bucket_of(tid, self.seed);
        let entries = (0..WAYS).filter_map(|way| self.table.entry(bucket, way));
        let free = entries.into_iter().find(|entry| entry.load(Ordering::Relaxed) == 0);
        // No thread has the number 0, and an entry of it would be an empty one.
        if tid == 0 || free.is_none() {
            return Err(Full);
        }
        let row = match self.resting.front().copied() {
            Some((since, row)) if now_ns.saturating_sub(since) >= REST_NS => {
                self.resting.pop_front();
                row
            }
            _ if self.fresh < ROWS_MAX => {
                self.fresh += 1;
                Row::numbered(self.fresh - 1)
            }
            _ => return Err(Full),
        };
        // Nobody writes or believes it yet.
        self.table.row(row).into_iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
        if let Some(free) = free {
            free.store(u64::from(row.number()) << 32 | u64::from(tid), Ordering::Release);
        }
        self.rows.insert(tid, row);
        Ok(row)
    }

    /// The thread of that number is followed no longer.
    pub fn unbind(&mut self, tid: u32, now_ns: u64) {
        let Some(row) = self.rows.remove(&tid) else { return };
        let bucket = bucket_of(tid, self.seed);
        let entries: Vec<_> = (0..WAYS).filter_map(|way| self.table.entry(bucket, way)).collect();
        let used = entries.iter().take_while(|entry| entry.load(Ordering::Relaxed) != 0).count();
        let its = entries.iter().find(|entry| entry.load(Ordering::Relaxed) as u32 == tid);
        if let (Some(its), Some(last)) = (its, used.checked_sub(1).and_then(|at| entries.get(at))) {
            its.store(last.load(Ordering::Relaxed), Ordering::Release);
            last.store(0, Ordering::Release);
        }
        self.resting.push_back((now_ns, row));
    }
}

/// A roster of a table without a kernel.
#[cfg(any(test, feature = "simulated"))]
impl Roster {
    /// Nobody is followed in it.
    pub fn simulated(table: Arc<Table>) -> Roster {
        Roster::new(table, 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// What the program does to find a thread.
    fn find(table: &Table, tid: u32, seed: u32) -> Option<u16> {
        for way in 0..WAYS {
            let entry = table.entry(bucket_of(tid, seed), way)?.load(Ordering::Acquire);
            if entry == 0 {
                return None;
            }
            if entry as u32 == tid {
                return Some((entry >> 32) as u16);
            }
        }
        None
    }

    proptest! {
        #[test]
        fn who_is_bound_is_found_and_nobody_else(
            steps in proptest::collection::vec((1u32..60, any::<bool>()), 1..200),
        ) {
            let table = Arc::new(Table::simulated());
            // This seed spreads nothing: all these numbers meet in one bucket, which is full at times.
            let mut roster = Roster::new(Arc::clone(&table), 1);
            let (mut bound, mut now) = (HashSet::new(), 0);
            for (tid, is_bind) in steps {
                now += REST_NS / 3;
                if is_bind {
                    let has_room = bound.len() < WAYS || bound.contains(&tid);
                    prop_assert_eq!(roster.bind(tid, now).is_ok(), has_room);
                    if has_room {
                        bound.insert(tid);
                    }
                } else {
                    roster.unbind(tid, now);
                    bound.remove(&tid);
                }
                let mut seen = HashSet::new();
                for tid in 1..60 {
                    let found = find(&table, tid, 1);
                    prop_assert_eq!(found.is_some(), bound.contains(&tid));
                    prop_assert!(found.is_none_or(|row| seen.insert(row)), "a row for each");
                }
            }
        }
    }

    #[test]
    fn a_row_rests_before_it_is_given_again() {
        let mut roster = Roster::simulated(Arc::new(Table::simulated()));
        let first = roster.bind(10, 0).expect("room");
        roster.unbind(10, 0);
        assert_ne!(roster.bind(11, REST_NS - 1), Ok(first));
        assert_eq!(roster.bind(12, REST_NS), Ok(first));
    }

    #[test]
    fn there_is_an_end_of_rows() {
        let mut roster = Roster::new(Arc::new(Table::simulated()), 0x9e37_79b9);
        assert_eq!(roster.bind(0, 0), Err(Full), "no thread has this number");
        // Neighbours are spread, so no bucket is full before rows are.
        let rows = u32::from(ROWS_MAX);
        assert!((1..=rows).all(|tid| roster.bind(tid, 0).is_ok()));
        assert_eq!(roster.bind(rows + 1, REST_NS), Err(Full));
        roster.unbind(1, 0);
        assert_eq!(roster.bind(rows + 1, REST_NS - 1), Err(Full), "the one there is rests");
        assert!(roster.bind(rows + 1, REST_NS).is_ok());
    }
}
