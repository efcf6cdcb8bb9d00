//! Memory that the device side writes and that outlives it: rings and in-flight records.
//!
//! An [`Area`] and no more. In tests its stores can stop at any number, as those of a process that
//! is killed between two of them do.

use std::ops::Deref;

use guest_memory::{Area, Entries, Entry};

#[derive(Clone, Debug)]
pub(crate) struct Shared(Area);

impl From<Area> for Shared {
    fn from(area: Area) -> Shared {
        Shared(area)
    }
}

impl Deref for Shared {
    type Target = Area;

    #[inline(always)]
    fn deref(&self) -> &Area {
        &self.0
    }
}

/// [`Entries`] that the device side writes: as [`Shared`].
#[derive(Clone, Debug)]
pub(crate) struct SharedEntries<const SIZE: usize, const ALIGN: usize>(Entries<SIZE, ALIGN>);

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedEntry<'a, const SIZE: usize, const ALIGN: usize>(Entry<'a, SIZE, ALIGN>);

impl<const SIZE: usize, const ALIGN: usize> SharedEntries<SIZE, ALIGN> {
    pub(crate) fn new(area: &Shared, at: usize, count: u16) -> Option<Self> {
        Entries::new(area, at, count).map(SharedEntries)
    }

    #[inline(always)]
    pub(crate) fn get(&self, index: u16) -> Option<SharedEntry<'_, SIZE, ALIGN>> {
        self.0.get(index).map(SharedEntry)
    }
}

impl<'a, const SIZE: usize, const ALIGN: usize> Deref for SharedEntry<'a, SIZE, ALIGN> {
    type Target = Entry<'a, SIZE, ALIGN>;

    #[inline(always)]
    fn deref(&self) -> &Entry<'a, SIZE, ALIGN> {
        &self.0
    }
}

/// Every store method of `Area` that is used through `Shared`: these go first in method look-up.
#[cfg(test)]
macro_rules! mortal {
    ($($store:ident: $int:ty),*) => {
        impl Shared {
            $(pub(crate) fn $store(&self, at: usize, value: $int) {
                if life::spend() {
                    self.0.$store(at, value);
                }
            })*

            pub(crate) fn zero(&self, at: usize, len: usize) -> bool {
                life::spend() && self.0.zero(at, len)
            }
        }
    };
}

/// The same of an entry.
#[cfg(test)]
macro_rules! mortal_entry {
    ($($store:ident: $int:ty),*) => {
        impl<const SIZE: usize, const ALIGN: usize> SharedEntry<'_, SIZE, ALIGN> {
            $(pub(crate) fn $store<const AT: usize>(self, value: $int) {
                if life::spend() {
                    self.0.$store::<AT>(value);
                }
            })*
        }
    };
}

#[cfg(test)]
mortal_entry!(store_u16: u16, store_u32: u32, store_release_u16: u16);

#[cfg(test)]
mortal!(store_u8: u8, store_u16: u16, store_u32: u32, store_u64: u64, store_release_u16: u16);

/// How many more stores this thread's device side lives for.
#[cfg(test)]
pub(crate) mod life {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    }

    /// The next `stores` stores happen, those after them do not.
    pub(crate) fn lasts(stores: u32) {
        LEFT.set(stores);
    }

    pub(crate) fn is_over() -> bool {
        LEFT.get() == 0
    }

    pub(super) fn spend() -> bool {
        let left = LEFT.get();
        LEFT.set(left.saturating_sub(1));
        left > 0
    }
}
