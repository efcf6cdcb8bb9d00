//! What is kept of an open image that is given up, and how it is opened again by that.
//!
//! Called by `disk::anchor`, which says why.

use std::hash::{BuildHasher, RandomState};

use super::identity::named_otherwise;
use super::*;
use crate::Anchor;
use crate::disk::{Anchored, reopen};
use crate::file::image::Astray;

/// Marks lie above all that a file can have, and below the end of the second lock.
const MARKS_START: u64 = 1 << 62;
const MARKS_MAX: u64 = 1 << 32;

impl Opened {
    /// What it is to be opened by, when its descriptions are closed.
    pub(crate) fn anchor(&self) -> Result<Anchor, OpenError> {
        let kept = |source| OpenError::Os { what: "keep", path: self.path.clone(), source };
        let (file, unkept) = self.anchored().map_err(kept)?;
        let mut anchor = Anchor::new(&self.path, Some(file), self.mark());
        anchor.unkept = unkept;
        Ok(anchor)
    }

    /// Another description of the image, and why that keeps nobody off it.
    fn anchored(&self) -> Result<(OwnedFd, Option<Errno>), Errno> {
        let cached = self.cached();
        let mut why = None;
        if !lock::one_lock_only(cached) {
            // The last close of a device that was open for writing has udev look into it.
            let access = match self.readonly || self.is_block {
                true => OFlags::RDONLY,
                false => OFlags::RDWR,
            };
            let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            match reopen(cached, flags) {
                Ok(file) => {
                    let kept = lock::keep(file.as_fd(), cached, self.direct(), !self.readonly);
                    return Ok((file, kept.err()));
                }
                Err(error) => why = Some(error),
            }
        }
        // Nobody may open it so any more, or whoever closes it would wait for its file system.
        reopen(cached, OFlags::PATH | OFlags::CLOEXEC).map(|file| (file, why))
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
        let kept = names.anchor.file();
        let how = How { vet, kept, ..How::of(names, path, false, readonly, cache) };
        // First of all: that somebody has another lock does not say that those reads have landed.
        if let Some((fd, mark)) = kept.zip(names.anchor.mark())
            && let Some(marked) = lock::marked(fd, mark)
        {
            return Err(how.refused(fd, marked));
        }
        let opened = how.opened(asked_bytes)?;
        how.take_over(&opened.0).map(|()| opened)
    }
}

impl Anchor {
    /// Whether its image has its name no more.
    pub(crate) fn astray(&self, names: &dyn Names) -> Option<Astray> {
        named_otherwise(self.file.as_ref()?, &self.path, names).unwrap_or_default()
    }
}
