//! The dirty log of a front-end, and guest memory to compare it with: which pages are marked, which have
//! changed.
//!
//! Not here: who works meanwhile, and what may be written (the tests).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use anyhow::Result;
use guest_memory::{Area, Health, Mapping, Seal};
use testing::frontend::{F_LOG_ALL, Frontend, MEMORY_BASE};

use crate::raw_front_end::sealed_memory;

/// What a bit of the log stands for, bytes.
pub const PAGE: u64 = 4096;

/// A log as the front-end sees it.
#[derive(Debug)]
pub struct Log {
    _fd: OwnedFd,
    area: Area,
}

impl Log {
    /// One that the daemon uses from now on, if it logs at all: with a bit for every page up to the end of
    /// guest memory, and some that belong to none.
    ///
    /// # Errors
    /// The session's, or the system's.
    pub fn set(frontend: &mut Frontend) -> Result<Log> {
        let memory: u64 = frontend.map().regions().iter().map(|r| r.mapping.len() as u64).sum();
        let bytes = (MEMORY_BASE + memory) / PAGE / 8 + 64;
        let fd = sealed_memory(bytes)?;
        let area = Area::whole(Mapping::shared(&fd, 0, bytes, Seal::Required, &Health::default())?);
        frontend.set_log(fd.as_fd(), bytes)?;
        Ok(Log { _fd: fd, area })
    }

    /// The same, and it is used.
    ///
    /// # Errors
    /// As [`Log::set`].
    pub fn start(frontend: &mut Frontend) -> Result<Log> {
        let log = Log::set(frontend)?;
        frontend.set_features(frontend.features() | F_LOG_ALL)?;
        Ok(log)
    }

    /// Pages that are marked; and marks them no longer.
    pub fn take(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.area.len()];
        self.area.read(0, &mut bytes);
        self.area.zero(0, self.area.len());
        let bits = |(at, byte): (u64, u8)| {
            (0..8).filter(move |b| byte >> b & 1 == 1).map(move |b| at * 8 + b)
        };
        (0..).zip(bytes).filter(|(_, byte)| *byte != 0).flat_map(bits).collect()
    }

    /// Whether any page is marked.
    pub fn is_marked(&self) -> bool {
        let mut bytes = vec![0; self.area.len()];
        self.area.read(0, &mut bytes);
        bytes.iter().any(|byte| *byte != 0)
    }
}

/// What is in guest memory now.
pub fn contents(frontend: &Frontend) -> Vec<u8> {
    let memory = Area::whole(Arc::clone(&frontend.map().regions()[0].mapping));
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

/// The pages of guest memory in which two contents differ.
pub fn changed(before: &[u8], after: &[u8]) -> Vec<u64> {
    let page = PAGE as usize;
    let both = (MEMORY_BASE / PAGE..).zip(before.chunks(page).zip(after.chunks(page)));
    both.filter(|(_, (before, after))| before != after).map(|(page, _)| page).collect()
}

/// Of `pages` those that are not among `others`.
pub fn without(pages: &[u64], others: &[u64]) -> Vec<u64> {
    pages.iter().copied().filter(|page| !others.contains(page)).collect()
}

/// The pages of `len` bytes, of one at least.
pub fn pages(gpa: u64, len: u64) -> std::ops::RangeInclusive<u64> {
    gpa / PAGE..=(gpa + len.max(1) - 1) / PAGE
}
