//! Entries of one size in a row, at a fixed place in shared memory: the table and the rings of a virtqueue.
//!
//! Range and alignment are checked once, when they are made; an access checks the entry's number and no more.
//! For what is looked up request by request there is [`crate::Pairs`].

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::area::Area;

/// Entries of `SIZE` bytes, each at an address that is a multiple of `ALIGN`.
#[derive(Clone, Debug)]
pub struct Entries<const SIZE: usize, const ALIGN: usize> {
    first: NonNull<u8>,
    count: u32,
    /// Byte of the area at which they begin.
    at: usize,
    /// Keeps them mapped, and has the log.
    area: Area,
}

// SAFETY: as `Area`, which keeps the entries mapped.
unsafe impl<const SIZE: usize, const ALIGN: usize> Send for Entries<SIZE, ALIGN> {}
// SAFETY: as `Area`: all access is volatile or atomic, on memory that is shared anyway.
unsafe impl<const SIZE: usize, const ALIGN: usize> Sync for Entries<SIZE, ALIGN> {}

/// One entry, known to be there.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a, const SIZE: usize, const ALIGN: usize> {
    first: NonNull<u8>,
    all: &'a Entries<SIZE, ALIGN>,
    is_mapped: PhantomData<&'a Area>,
}

impl<const SIZE: usize, const ALIGN: usize> Entries<SIZE, ALIGN> {
    const IS_EVEN: () = assert!(ALIGN.is_power_of_two() && SIZE.is_multiple_of(ALIGN) && SIZE > 0);

    /// The `count` entries from byte `at` of `area`. `None` when they are not all within, or not aligned.
    pub fn new(area: &Area, at: usize, count: u16) -> Option<Self> {
        const { Self::IS_EVEN };
        let window = area.window(at, SIZE * usize::from(count))?;
        let first = window.first().filter(|first| first.as_ptr().addr().is_multiple_of(ALIGN))?;
        Some(Entries { first, count: count.into(), at, area: area.clone() })
    }

    /// Entry `index`; `None` beyond the last.
    #[inline(always)]
    pub fn get(&self, index: u16) -> Option<Entry<'_, SIZE, ALIGN>> {
        if u32::from(index) >= self.count {
            return None;
        }
        // SAFETY: `new()` checked `count` entries from `first`.
        let first = unsafe { self.first.add(usize::from(index) * SIZE) };
        Some(Entry { first, all: self, is_mapped: PhantomData })
    }
}

/// A load or store of one size. Volatile, so that it happens once and is not merged.
macro_rules! field {
    ($load:ident, $store:ident, $int:ty) => {
        /// Reads the little-endian integer at byte `AT` of the entry, once.
        #[inline(always)]
        pub fn $load<const AT: usize>(self) -> $int {
            let place = self.place::<$int, AT>();
            // SAFETY: `place()` is within the entry, and aligned.
            <$int>::from_le(unsafe { place.as_ptr().read_volatile() })
        }

        /// Writes the little-endian integer at byte `AT` of the entry, once, and marks its page.
        #[inline(always)]
        pub fn $store<const AT: usize>(self, value: $int) {
            let place = self.place::<$int, AT>();
            // SAFETY: as above.
            unsafe { place.as_ptr().write_volatile(value.to_le()) };
            self.mark();
        }
    };
}

impl<const SIZE: usize, const ALIGN: usize> Entry<'_, SIZE, ALIGN> {
    field!(load_u16, store_u16, u16);
    field!(load_u32, store_u32, u32);
    field!(load_u64, store_u64, u64);

    /// Reads a `u16` that publishes what was written before it (acquire).
    #[inline(always)]
    pub fn load_acquire_u16<const AT: usize>(self) -> u16 {
        // SAFETY: `place()` is within the entry, and aligned; the mapping lives as long as the entry.
        let cell = unsafe { AtomicU16::from_ptr(self.place::<u16, AT>().as_ptr()) };
        u16::from_le(cell.load(Ordering::Acquire))
    }

    /// Writes a `u16` that publishes everything written before it (release); its page is marked after it, as
    /// by [`Area::store_release_u16`].
    #[inline(always)]
    pub fn store_release_u16<const AT: usize>(self, value: u16) {
        // SAFETY: as in `load_acquire_u16`.
        let cell = unsafe { AtomicU16::from_ptr(self.place::<u16, AT>().as_ptr()) };
        cell.store(value.to_le(), Ordering::Release);
        self.mark();
    }

    /// Asks the processor for the line that the entry begins in; a hint without effect on any value.
    #[inline(always)]
    pub fn prefetch(self) {
        crate::map::prefetch_line(self.first);
    }

    #[inline(always)]
    fn place<T, const AT: usize>(&self) -> NonNull<T> {
        const {
            assert!(AT + size_of::<T>() <= SIZE);
            assert!(AT.is_multiple_of(align_of::<T>()) && ALIGN.is_multiple_of(align_of::<T>()));
        };
        // SAFETY: `AT` is within the entry.
        unsafe { self.first.add(AT) }.cast()
    }

    #[inline(always)]
    fn mark(&self) {
        if self.all.area.is_logged() {
            self.all.mark(self.first);
        }
    }
}

impl<const SIZE: usize, const ALIGN: usize> Entries<SIZE, ALIGN> {
    #[cold]
    fn mark(&self, entry: NonNull<u8>) {
        let offset = entry.as_ptr().addr() - self.first.as_ptr().addr();
        self.area.mark(self.at + offset, SIZE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DirtyLog, GuestMap, Health, LOG_PAGE_SIZE, Mapping, Seal};

    type Found = Result<(), Box<dyn std::error::Error>>;

    #[test]
    fn entries_are_read_and_written_where_they_are_and_none_beyond() -> Found {
        let area = Area::anonymous(4096)?;
        let entries: Entries<16, 16> = Entries::new(&area, 32, 4).ok_or("they are there")?;
        let last = entries.get(3).ok_or("it is there")?;
        last.store_u64::<0>(0x0102_0304_0506_0708);
        last.store_u32::<8>(9);
        last.store_u16::<12>(10);
        last.store_release_u16::<14>(11);
        assert_eq!(area.load_u64(32 + 48), 0x0102_0304_0506_0708);
        assert_eq!((area.load_u32(88), area.load_u16(92), area.load_u16(94)), (9, 10, 11));
        assert_eq!((last.load_u64::<0>(), last.load_u32::<8>()), (0x0102_0304_0506_0708, 9));
        assert_eq!((last.load_u16::<12>(), last.load_acquire_u16::<14>()), (10, 11));
        assert!(entries.get(4).is_none());
        assert!(entries.get(u16::MAX).is_none());
        Ok(())
    }

    #[test]
    fn what_is_not_within_or_not_aligned_is_not_made() -> Found {
        let area = Area::anonymous(4096)?;
        assert!(Entries::<16, 16>::new(&area, 0, 256).is_some());
        assert!(Entries::<16, 16>::new(&area, 0, 257).is_none());
        assert!(Entries::<16, 16>::new(&area, 16, 256).is_none());
        assert!(Entries::<16, 16>::new(&area, usize::MAX, 1).is_none());
        assert!(Entries::<16, 16>::new(&area, 8, 1).is_none());
        assert!(Entries::<8, 4>::new(&area, 4, 1).is_some());
        Ok(())
    }

    #[test]
    fn a_store_marks_its_page() -> Found {
        let page = LOG_PAGE_SIZE;
        let (map, file) = (
            GuestMap::anonymous(4 * page)?,
            rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC)?,
        );
        rustix::fs::ftruncate(&file, page)?;
        let log = DirtyLog::map(&file, 0, page, Seal::Any, &Health::default())?;
        let marks = Area::whole(Mapping::shared(&file, 0, page, Seal::Any, &Health::default())?);
        let logged = map.with_log(Some(log))?;
        let area = logged.area_at_user(0, 4 * page).ok_or("in the map")?;
        let entries: Entries<2, 2> = Entries::new(&area, 2 * page as usize, 4).ok_or("there")?;
        entries.get(1).ok_or("it is there")?.store_u16::<0>(1);
        assert_eq!(marks.load_u8(0), 1 << 2);
        Ok(())
    }
}
