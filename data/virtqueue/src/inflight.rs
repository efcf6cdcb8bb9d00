//! The record of what is in flight, in memory that outlives this process (vhost-user, "Inflight I/O
//! tracking"): after a crash the next process resubmits what it names.
//!
//! The memory belongs to the front-end and is hostile, stale or torn: every value read from it is
//! checked. Not here: where the memory comes from (`vhost_user`, `manager`).
//!
//! Split record: a header (version at 8, descriptors at 10, last batch head at 12, used index at
//! 14), then 16 bytes for each head (in flight at 0, next of its batch at 6, counter at 8).
//!
//! Bounded by the ring's size in every loop; allocates when made, not after.

use guest_memory::Area;

use crate::layout::Format;
use crate::violation::SetupError;

const VERSION: usize = 8;
const DESCRIPTORS: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_INDEX: usize = 14;
const VERSION_NOW: u16 = 1;

const SPLIT_HEADER: usize = 16;
const SPLIT_STATE: usize = 16;
const STATE_NEXT: usize = 6;
const STATE_COUNTER: usize = 8;

const PACKED_HEADER: u64 = 32;
const PACKED_STATE: u64 = 32;
/// Records of several queues lie one behind the other at this alignment, bytes.
const ALIGN: u64 = 64;

/// Bytes of the record of one queue of `size`, with the padding to the next queue's.
pub fn queue_region_len(format: Format, size: u16) -> u64 {
    let len = match format {
        Format::Split => SPLIT_HEADER as u64 + SPLIT_STATE as u64 * u64::from(size),
        Format::Packed => PACKED_HEADER + PACKED_STATE * u64::from(size),
    };
    len.next_multiple_of(ALIGN)
}

/// The record of one queue.
#[derive(Debug)]
pub struct Inflight {
    area: Area,
    size: u16,
    /// Order of submission, one for each chain taken.
    counter: u64,
    /// Heads completed since the last publish.
    batch: Vec<u16>,
}

impl Inflight {
    /// The record in `area`, begun when it is fresh.
    ///
    /// # Errors
    /// [`SetupError::Short`] and [`SetupError::Inflight`] when the area or what it says does not
    /// fit a ring of `size`.
    pub fn new(area: Area, format: Format, size: u16) -> Result<Inflight, SetupError> {
        let need = queue_region_len(format, size);
        let have = area.len() as u64;
        if have < need {
            return Err(SetupError::Short { part: "in-flight", have, need });
        }
        if area.load_u16(VERSION) == 0 {
            area.store_u16(DESCRIPTORS, size);
            area.store_u16(VERSION, VERSION_NOW);
        }
        let have = area.load_u16(DESCRIPTORS);
        if have != size {
            return Err(SetupError::Inflight { have, need: size });
        }
        Ok(Inflight { area, size, counter: 0, batch: Vec::with_capacity(size.into()) })
    }

    /// What an earlier process left, for a split ring whose used index is `used`: heads to submit
    /// again, the first at the end. Finishes a batch whose publishing was cut short.
    ///
    /// A fresh record adopts `used` (reliability P31).
    pub(crate) fn recover_split(&mut self, used: u16) -> Vec<u16> {
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
        let mut left: Vec<(u64, u16)> = (0..self.size)
            .filter(|head| self.area.load_u8(state(*head)) == 1)
            .map(|head| (self.area.load_u64(state(head) + STATE_COUNTER), head))
            .collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        self.counter = left.first().map_or(0, |(counter, _)| counter.wrapping_add(1));
        left.into_iter().map(|(_, head)| head).collect()
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
        for head in self.batch.drain(..) {
            self.area.store_u8(state(head), 0);
        }
        self.area.store_u16(USED_INDEX, used);
    }
}

#[inline]
fn state(head: u16) -> usize {
    SPLIT_HEADER + SPLIT_STATE * usize::from(head)
}
