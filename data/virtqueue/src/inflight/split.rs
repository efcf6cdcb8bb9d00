//! The record of a split ring.
//!
//! Header: last batch head at 12, used index at 14. Then 16 bytes for each head: in flight at 0, next
//! of its batch at 6, counter at 8.

use super::Inflight;
use crate::shared::Shared;

pub(super) const HEADER: usize = 16;
pub(super) const STATE: usize = 16;

const LAST_BATCH_HEAD: usize = 12;
const USED_INDEX: usize = 14;
const STATE_NEXT: usize = 6;
const STATE_COUNTER: usize = 8;

#[derive(Debug)]
pub(crate) struct SplitRecord {
    area: Shared,
    size: u16,
    /// Order of submission, one for each chain taken.
    counter: u64,
    /// Heads completed since the last publish.
    batch: Vec<u16>,
    /// Heads that an earlier process took and did not complete; the next one last.
    resubmit: Vec<u16>,
}

impl SplitRecord {
    /// What an earlier process left, for a ring whose used index is `used`. Finishes a batch whose
    /// publishing was cut short. A fresh record adopts `used` (reliability P31).
    pub(crate) fn recover(inflight: Inflight, used: u16) -> SplitRecord {
        let size = inflight.size;
        let area = inflight.area.clone();
        if inflight.fresh {
            inflight.clear();
            area.store_u16(USED_INDEX, used);
            inflight.begun();
        }
        let mut record = SplitRecord {
            area,
            size,
            counter: 0,
            batch: Vec::with_capacity(size.into()),
            resubmit: Vec::new(),
        };
        record.finish_batch(used);
        record.find_left();
        record
    }

    /// The used index was shown, but its batch is still marked.
    fn finish_batch(&self, used: u16) {
        let unfinished = used.wrapping_sub(self.area.load_u16(USED_INDEX));
        if unfinished <= self.size {
            let mut head = self.area.load_u16(LAST_BATCH_HEAD);
            for _ in 0..unfinished {
                if head >= self.size {
                    break;
                }
                self.area.store_u8(state(head), 0);
                head = self.area.load_u16(state(head) + STATE_NEXT);
            }
        }
        self.area.store_u16(USED_INDEX, used);
    }

    fn find_left(&mut self) {
        let mut left: Vec<(u64, u16)> = (0..self.size)
            .filter(|head| self.area.load_u8(state(*head)) == 1)
            .map(|head| (self.area.load_u64(state(head) + STATE_COUNTER), head))
            .collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        self.counter = left.first().map_or(0, |(counter, _)| counter.wrapping_add(1));
        self.resubmit = left.into_iter().map(|(_, head)| head).collect();
    }

    /// The head to submit again next.
    #[inline]
    pub(crate) fn next_left(&self) -> Option<u16> {
        self.resubmit.last().copied()
    }

    /// How many heads are left to submit again.
    #[inline]
    pub(crate) fn left(&self) -> u16 {
        self.resubmit.len() as u16
    }

    /// The head that `next_left` gave is taken; false when there was none. It is in the record
    /// already, and keeps its place in the order.
    #[inline]
    pub(crate) fn take_left(&mut self) -> bool {
        self.resubmit.pop().is_some()
    }

    /// Whether a ring's worth of completions waits to be shown: an honest guest can have no more.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.batch.len() >= usize::from(self.size)
    }

    /// A chain was taken. `head` is below the ring's size.
    #[inline]
    pub(crate) fn taken(&mut self, head: u16) {
        self.area.store_u64(state(head) + STATE_COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.area.store_u8(state(head), 1);
    }

    /// A chain's used element was written, but is not shown yet.
    #[inline]
    pub(crate) fn completed(&mut self, head: u16) {
        let before = self.area.load_u16(LAST_BATCH_HEAD);
        self.area.store_u16(state(head) + STATE_NEXT, before);
        self.area.store_u16(LAST_BATCH_HEAD, head);
        self.batch.push(head);
    }

    /// The used index was shown to the guest: the batch is no longer in flight.
    #[inline]
    pub(crate) fn published(&mut self, used: u16) {
        if self.batch.is_empty() {
            return;
        }
        for head in self.batch.drain(..) {
            self.area.store_u8(state(head), 0);
        }
        self.area.store_u16(USED_INDEX, used);
    }
}

#[inline]
fn state(head: u16) -> usize {
    HEADER + STATE * usize::from(head)
}
