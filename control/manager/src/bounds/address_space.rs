//! How much of our addresses front-ends may take: each of them, and all of them together.
//!
//! Memory that is lent costs addresses only, but there are 128 TiB of them. What an attached queue
//! still holds of a front-end that has gone is not counted; it goes when the queue is back.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes that one front-end may lend us, 16 TiB: beyond it lies no machine, only an attempt to use
/// up the address space.
const FRONT_END_BYTES_MAX: u64 = 16 << 40;
/// Bytes that all together may: half of the addresses that x86-64 gives a process.
const ALL_BYTES_MAX: u64 = 64 << 40;

/// Why no more memory may be lent, or no longer log or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAddressable {
    /// One front-end alone would lend so many bytes.
    #[error("more than {} TiB of memory", FRONT_END_BYTES_MAX >> 40)]
    ByOne(u64),
    /// All together would lend so many bytes.
    #[error(
        "all front-ends together lend more than {} TiB: the daemon cannot address it",
        ALL_BYTES_MAX >> 40
    )]
    ByAll(u64),
}

/// What all front-ends share.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressSpace(Rc<Cell<u64>>);

/// One front-end's part, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    all: AddressSpace,
    bytes: u64,
}

impl AddressSpace {
    /// Nothing yet.
    pub(crate) fn claim(&self) -> Claim {
        Claim { all: self.clone(), bytes: 0 }
    }
}

impl Claim {
    /// Makes it `bytes`, whatever it was.
    ///
    /// # Errors
    /// Too much; then it is as it was.
    pub(crate) fn set(&mut self, bytes: u64) -> Result<(), NotAddressable> {
        if bytes > FRONT_END_BYTES_MAX {
            return Err(NotAddressable::ByOne(bytes));
        }
        let others = self.all.0.get() - self.bytes;
        let all = others.saturating_add(bytes);
        if all > ALL_BYTES_MAX && bytes > self.bytes {
            return Err(NotAddressable::ByAll(all));
        }
        self.all.0.set(all);
        self.bytes = bytes;
        Ok(())
    }

    /// Bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.all.0.set(self.all.0.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_takes_16_tib_and_all_take_64() {
        let all = AddressSpace::default();
        let mut claims: Vec<Claim> = (0..5).map(|_| all.claim()).collect();
        let refused = claims[0].set((16 << 40) + 1).expect_err("too much for one");
        assert_eq!(refused.to_string(), "more than 16 TiB of memory");
        for claim in &mut claims[..4] {
            assert_eq!(claim.set(16 << 40), Ok(()));
        }
        let refused = claims[4].set(1).expect_err("too much for all");
        assert_eq!(
            refused.to_string(),
            "all front-ends together lend more than 64 TiB: the daemon cannot address it"
        );
        assert_eq!(claims[0].set(15 << 40), Ok(()));
        assert_eq!(claims[4].set(1 << 40), Ok(()));
        assert!(claims[4].set(2 << 40).is_err());
        assert_eq!(claims[4].bytes(), 1 << 40);
        drop(claims);
        assert_eq!(all.0.get(), 0);
    }
}
