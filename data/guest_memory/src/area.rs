//! A contiguous piece of shared memory at a fixed place: a ring, an in-flight record, a RAM disk.
//!
//! Not for request data (`map::Span`), which is looked up request by request. Loads and stores are
//! single machine accesses of their size; what is out of range or misaligned reads as zero and is
//! not written, and a debug build says so.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::dirty_log::DirtyLog;
use crate::map::{GuestMap, Span};
use crate::mapping::{MapError, Mapping};

/// A checked window into one mapping.
#[derive(Clone, Debug)]
pub struct Area {
    base: NonNull<u8>,
    len: usize,
    /// Where the guest sees it; 0 where it is not guest memory.
    gpa: u64,
    log: Option<Arc<DirtyLog>>,
    /// Keeps `base..base + len` mapped.
    mapping: Arc<Mapping>,
}

// SAFETY: an `Area` is an address range kept mapped by its `Arc<Mapping>`, which is `Send + Sync`.
unsafe impl Send for Area {}
// SAFETY: all access through `&Area` is volatile or atomic, on memory that is shared anyway.
unsafe impl Sync for Area {}

/// A plain load or store of one size. Volatile, so that it happens once and is not merged: the
/// guest may change the bytes between two reads.
macro_rules! access {
    ($load:ident, $store:ident, $int:ty) => {
        /// Reads the little-endian integer at byte `at`, once. 0 when out of range.
        #[inline]
        pub fn $load(&self, at: usize) -> $int {
            match self.at::<$int>(at) {
                // SAFETY: `at()` checked range and alignment; the mapping lives as long as `self`.
                Some(place) => <$int>::from_le(unsafe { place.as_ptr().read_volatile() }),
                None => 0,
            }
        }

        /// Writes the little-endian integer at byte `at`, once, and marks its page.
        #[inline]
        pub fn $store(&self, at: usize, value: $int) {
            if let Some(place) = self.at::<$int>(at) {
                // SAFETY: `at()` checked range and alignment; the mapping lives as long as `self`.
                unsafe { place.as_ptr().write_volatile(value.to_le()) };
                self.mark(at, size_of::<$int>());
            }
        }
    };
}

impl Area {
    /// `len` zeroed bytes of our own, for tests, benches and RAM disks.
    ///
    /// # Errors
    /// As [`Mapping::anonymous`].
    pub fn anonymous(len: u64) -> Result<Area, MapError> {
        Ok(Area::whole(Mapping::anonymous(len)?))
    }

    /// All of `mapping`, as memory that is not the guest's.
    pub fn whole(mapping: Arc<Mapping>) -> Area {
        Area { base: mapping.base(), len: mapping.len(), gpa: 0, log: None, mapping }
    }

    /// The `len` bytes from `at`, or `None` when they are not all within.
    pub fn window(&self, at: usize, len: usize) -> Option<Area> {
        let end = at.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: `at <= end <= self.len`, so the result stays within (or one past) the range.
        let base = unsafe { self.base.add(at) };
        let gpa = self.gpa + at as u64;
        Some(Area { base, len, gpa, log: self.log.clone(), mapping: Arc::clone(&self.mapping) })
    }

    /// A part of a guest's region. `map` has checked that the range lies within `mapping`.
    pub(crate) fn of_region(
        mapping: Arc<Mapping>,
        base: NonNull<u8>,
        len: usize,
        gpa: u64,
        log: Option<Arc<DirtyLog>>,
    ) -> Area {
        Area { base, len, gpa, log, mapping }
    }

    /// Bytes in the area.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to touch.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The mapping below, for [`Mapping::release_pages`].
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Whether the host address of the first byte is a multiple of `align` (a power of two).
    pub fn is_aligned(&self, align: usize) -> bool {
        self.base.as_ptr() as usize & (align - 1) == 0
    }

    access!(load_u8, store_u8, u8);
    access!(load_u16, store_u16, u16);
    access!(load_u32, store_u32, u32);
    access!(load_u64, store_u64, u64);

    /// Reads the two little-endian `u64` from byte `at`, each once. Zeroes when out of range.
    #[inline]
    pub fn load_u64_pair(&self, at: usize) -> (u64, u64) {
        match self.at::<[u64; 2]>(at) {
            Some(place) => {
                let first = place.as_ptr().cast::<u64>();
                // SAFETY: `at()` checked range and alignment of both; the mapping lives as long
                // as `self`.
                let pair = unsafe { (first.read_volatile(), first.add(1).read_volatile()) };
                (u64::from_le(pair.0), u64::from_le(pair.1))
            }
            None => (0, 0),
        }
    }

    /// Writes two little-endian `u32` from byte `at`, each once, and marks their page.
    #[inline]
    pub fn store_u32_pair(&self, at: usize, first: u32, second: u32) {
        if let Some(place) = self.at::<[u32; 2]>(at) {
            let place = place.as_ptr().cast::<u32>();
            // SAFETY: `at()` checked range and alignment of both; the mapping lives as long as `self`.
            unsafe {
                place.write_volatile(first.to_le());
                place.add(1).write_volatile(second.to_le());
            }
            self.mark(at, 8);
        }
    }

    /// Reads a `u16` that publishes what was written before it (acquire). 0 when out of range.
    #[inline]
    pub fn load_acquire_u16(&self, at: usize) -> u16 {
        self.atomic_u16(at).map_or(0, |cell| u16::from_le(cell.load(Ordering::Acquire)))
    }

    /// Writes a `u16` that publishes everything written before it (release).
    ///
    /// The page is marked after the store: a mark that came first could be cleared, and the page
    /// copied, before the value is there.
    #[inline]
    pub fn store_release_u16(&self, at: usize, value: u16) {
        if let Some(cell) = self.atomic_u16(at) {
            cell.store(value.to_le(), Ordering::Release);
            self.mark(at, 2);
        }
    }

    /// Copies `into.len()` bytes out, from byte `at`. False, and nothing copied, when out of range.
    pub fn read(&self, at: usize, into: &mut [u8]) -> bool {
        let Some(place) = self.range(at, into.len()) else {
            return false;
        };
        // SAFETY: `range()` checked that the source has `into.len()` bytes.
        unsafe { crate::map::read_once(place, into) };
        true
    }

    /// Copies `from` in, at byte `at`, and marks. False, and nothing copied, when out of range.
    pub fn write(&self, at: usize, from: &[u8]) -> bool {
        let Some(place) = self.range(at, from.len()) else {
            return false;
        };
        // SAFETY: `range()` checked the target; the source is ours and cannot overlap a mapping.
        unsafe { place.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        self.mark(at, from.len());
        true
    }

    /// Sets `len` bytes from `at` to zero, and marks. False when out of range.
    pub fn zero(&self, at: usize, len: usize) -> bool {
        let Some(place) = self.range(at, len) else {
            return false;
        };
        // SAFETY: `range()` checked the target.
        unsafe { place.as_ptr().write_bytes(0, len) };
        self.mark(at, len);
        true
    }

    /// Copies `span.len()` bytes of guest memory to byte `at` of this area. False, and nothing
    /// copied, when either side is out of range.
    #[inline]
    pub fn copy_from_guest(&self, at: usize, map: &GuestMap, span: Span) -> bool {
        let (Some(to), Some(from)) = (self.range(at, span.len() as usize), map.host(span)) else {
            return false;
        };
        // SAFETY: both ranges were checked. They may be the same memory only if a front-end gave
        // us our own area, so `copy` (which allows overlap) is used.
        unsafe { to.as_ptr().copy_from(from.as_ptr(), span.len() as usize) };
        self.mark(at, span.len() as usize);
        true
    }

    /// Copies `span.len()` bytes from byte `at` of this area to guest memory and marks them there.
    /// False, and nothing copied, when either side is out of range.
    #[inline]
    pub fn copy_to_guest(&self, at: usize, map: &GuestMap, span: Span) -> bool {
        let (Some(from), Some(to)) = (self.range(at, span.len() as usize), map.host(span)) else {
            return false;
        };
        // SAFETY: as in `copy_from_guest`.
        unsafe { to.as_ptr().copy_from(from.as_ptr(), span.len() as usize) };
        map.mark_written(span);
        true
    }

    /// Asks the processor for the line at byte `at`; a hint without effect on any value.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        if at < self.len {
            // SAFETY: `at` is within the mapping.
            crate::map::prefetch_line(unsafe { self.base.add(at) });
        }
    }

    #[inline]
    fn at<T>(&self, at: usize) -> Option<NonNull<T>> {
        let fits = at.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len);
        debug_assert!(fits, "offset {at} of an area of {} bytes", self.len);
        if !fits {
            return None;
        }
        // SAFETY: `at + size <= len`.
        let place = unsafe { self.base.add(at) }.cast::<T>();
        debug_assert!(place.is_aligned(), "offset {at} is not aligned");
        place.is_aligned().then_some(place)
    }

    #[inline]
    fn atomic_u16(&self, at: usize) -> Option<&AtomicU16> {
        // SAFETY: `at()` checked range and alignment, and the mapping lives as long as `&self`.
        self.at::<u16>(at).map(|place| unsafe { AtomicU16::from_ptr(place.as_ptr()) })
    }

    /// The `len` bytes from `at`, if they are all within.
    #[inline]
    fn range(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: `at <= self.len` by the check.
        fits.then(|| unsafe { self.base.add(at) })
    }

    /// The first byte; `None` when there is none.
    pub(crate) fn first(&self) -> Option<NonNull<u8>> {
        (self.len > 0).then_some(self.base)
    }

    #[inline(always)]
    pub(crate) fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    #[inline]
    pub(crate) fn mark(&self, at: usize, len: usize) {
        if let Some(log) = &self.log {
            log.mark(self.gpa + at as u64, len as u64);
        }
    }
}
