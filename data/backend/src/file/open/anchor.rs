//! What is kept of an open image that is given up, and how it is opened again by that.
//!
//! Called by `disk::anchor`, which says why.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::*;
use crate::Anchor;
use crate::disk::{Anchored, reopen};

/// Marks lie above all that a file can have, and below the end of the second lock.
const MARKS_START: u64 = 1 << 62;
const MARKS_MAX: u64 = 1 << 32;

impl Opened {
    /// What it is to be opened by, when its descriptions are closed.
    pub(crate) fn anchor(&self) -> Result<Anchor, OpenError> {
        let kept = |source| OpenError::Os { what: "keep", path: self.path.clone(), source };
        // Of a device nothing is lost, and its node may be made anew.
        let file = (!self.is_block).then(|| self.anchored()).transpose().map_err(kept)?;
        Ok(Anchor { file: file.map(Arc::new), mark: self.mark() })
    }

    /// Another description of the file.
    fn anchored(&self) -> Result<OwnedFd, Errno> {
        let cached = self.cached();
        if !self.readonly && !lock::one_lock_only(cached) {
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            if let Ok(file) = reopen(cached, flags) {
                // Where there are no such locks nobody is kept out.
                let _ = lock::own(file.as_fd());
                return Ok(file);
            }
        }
        // Nobody may open it so any more, or whoever closes it would wait for its file system.
        reopen(cached, OFlags::PATH | OFlags::CLOEXEC)
    }

    /// Marks the descriptions of an image that is only read. Where locks of bytes are those of files, none is to be had.
    fn mark(&self) -> Option<u64> {
        if !self.readonly || lock::one_lock_only(self.cached()) {
            return None;
        }
        let mark = MARKS_START + RandomState::new().hash_one(std::process::id()) % MARKS_MAX;
        let mut descriptions = [Some(self.cached()), self.direct()].into_iter().flatten();
        descriptions.all(|fd| lock::mark(fd, mark).is_ok()).then_some(mark)
    }

    /// Opens what was given up.
    pub(crate) fn open_by_anchor(
        names: &Anchored<'_>,
        (path, asked_bytes, readonly, cache, vet): (&Path, Option<u64>, bool, Cache, Vet),
    ) -> Result<(Opened, u64), OpenError> {
        let is_owner = names.anchor.is_of_file();
        let how = How { vet, is_owner, ..How::of(names, path, false, readonly, cache) };
        let opened = how.opened(asked_bytes)?;
        let is_marked = |mark| lock::is_marked(opened.0.cached(), mark);
        match names.anchor.mark().is_some_and(is_marked) {
            true => Err(how.refused(opened.0.cached(), Refused::under_way())),
            false => Ok(opened),
        }
    }
}
