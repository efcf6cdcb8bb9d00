//! Marks of the guest pages that we wrote, for live migration (vhost-user, "Migration").
//!
//! One bit a page of 4 KiB of guest physical address space, least significant bit first, set with
//! an atomic OR because the front-end clears bits at the same time. The memory belongs to the
//! front-end and is as hostile as the guest's: only its size is trusted, checked once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::health::Health;
use crate::mapping::{MapError, Mapping, Seal};

/// What one bit stands for, bytes. Fixed by the protocol, whatever the host's page size.
pub const LOG_PAGE_SIZE: u64 = 4096;

/// The log area of one front-end.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Arc<Mapping>,
}

impl DirtyLog {
    /// Maps the log that `SET_LOG_BASE` announced.
    ///
    /// # Errors
    /// As [`Mapping::shared`].
    pub fn map(
        fd: impl std::os::fd::AsFd,
        offset: u64,
        len: u64,
        seal: Seal,
        health: &Health,
    ) -> Result<Arc<DirtyLog>, MapError> {
        let mapping = Mapping::shared(fd, offset, len, seal, health)?;
        Ok(Arc::new(DirtyLog { mapping }))
    }

    /// Whether the log has a bit for every byte below `end` (a guest physical address).
    pub fn covers(&self, end: u64) -> bool {
        end.div_ceil(LOG_PAGE_SIZE).div_ceil(8) <= self.mapping.len() as u64
    }

    /// Marks every page of `gpa..gpa + len`. Pages beyond the log are left out: [`Self::covers`]
    /// was asked when the log was set. Bounded by `len / 4096 + 2` atomic operations.
    pub fn mark(&self, gpa: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = gpa.saturating_add(len - 1) / LOG_PAGE_SIZE;
        for page in gpa / LOG_PAGE_SIZE..=last {
            let byte = (page / 8) as usize;
            if byte >= self.mapping.len() {
                return;
            }
            // SAFETY: `byte` is within the mapping, which lives as long as `self`; a byte has no
            // alignment, and other processes touch it atomically too.
            let cell = unsafe { AtomicU8::from_ptr(self.mapping.base().add(byte).as_ptr()) };
            // Unconditional: looking first could see a bit that the front-end is about to clear
            // while our write is still on its way to memory.
            cell.fetch_or(1u8 << (page % 8), Ordering::SeqCst);
        }
    }
}
