//! Which sizes an image can have: by its file, its file system, and this process's own limit.

use std::sync::atomic::Ordering;

use rustix::fs::{SeekFrom, fstatfs, ftruncate, seek};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::{Opened, end_of};
use crate::{OpenError, ResizeError, SECTOR_SIZE};

impl Opened {
    /// How many bytes are served: what was asked for, or all of it.
    pub(super) fn served_bytes(&self, asked_bytes: Option<u64>) -> Result<u64, OpenError> {
        if let Some(asked) = asked_bytes {
            self.ensure_size(asked).map_err(grown)?;
            return Ok(asked);
        }
        let path = || self.path.clone();
        let os = |source| OpenError::Os { what: "measure", path: path(), source };
        let size_bytes = self.end().map_err(os)?;
        match size_bytes {
            0..SECTOR_SIZE => Err(OpenError::Empty { path: path(), size_bytes }),
            _ if !size_bytes.is_multiple_of(SECTOR_SIZE) => {
                Err(OpenError::Uneven { path: path(), size_bytes })
            }
            whole => Ok(whole),
        }
    }

    /// Bytes in it now.
    pub(crate) fn end(&self) -> Result<u64, Errno> {
        end_of(&self.cached)
    }

    /// Sees to it that `size_bytes` can be served.
    pub(crate) fn ensure_size(&self, size_bytes: u64) -> Result<(), ResizeError> {
        if self.grows_for(size_bytes)? {
            ftruncate(&self.cached, size_bytes)
                .map_err(|source| ResizeError::Os { path: self.path.clone(), source })?;
        }
        self.longest.fetch_max(size_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Whether [`Self::ensure_size`] would do that. Changes nothing.
    pub(crate) fn check_size(&self, size_bytes: u64) -> Result<(), ResizeError> {
        if !self.grows_for(size_bytes)? {
            return Ok(());
        }
        let (path, asked_bytes) = (self.path.clone(), size_bytes);
        let may = getrlimit(Resource::Fsize).current;
        if may.is_some_and(|may| may < size_bytes) {
            let why = "the daemon's limit of file sizes is lower (LimitFSIZE, `ulimit -f`)";
            return Err(ResizeError::TooLong { path, asked_bytes, why });
        }
        // No place behind the longest file that the file system can have can be sought. Transfers say
        // where they go, and do not go by the place.
        match seek(&self.cached, SeekFrom::Start(size_bytes)) {
            Err(_) => {
                let why = "its file system has no files of that length";
                Err(ResizeError::TooLong { path, asked_bytes, why })
            }
            Ok(_) => Ok(()),
        }
    }

    /// Whether its file has to become longer to serve `size_bytes`.
    fn grows_for(&self, size_bytes: u64) -> Result<bool, ResizeError> {
        let has =
            self.end().map_err(|source| ResizeError::Os { path: self.path.clone(), source })?;
        let why = match (self.is_block, self.readonly) {
            _ if has >= size_bytes => return Ok(false),
            (true, _) => "grow the device first",
            (_, true) => "it is read-only",
            // A text, a log: what is a disk is whole sectors.
            _ if !has.is_multiple_of(SECTOR_SIZE) => {
                "what ends within a sector may be no disk at all; `truncate -s %512` adds zeroes up to the next"
            }
            _ => return Ok(true),
        };
        let path = self.path.clone();
        Err(ResizeError::TooSmall { path, size_bytes: has, asked_bytes: size_bytes, why })
    }

    /// See [`crate::Disk::medium_bytes`].
    pub(crate) fn medium_bytes(&self) -> Option<u64> {
        let file_system = fstatfs(&self.cached).ok().filter(|_| !self.is_block)?;
        let block_bytes = u64::try_from(file_system.f_bsize).unwrap_or(0);
        let bytes = file_system.f_blocks.saturating_mul(block_bytes);
        (bytes > 0).then_some(bytes)
    }
}

/// Why an image cannot be opened that is to have a size which it cannot have.
pub(super) fn grown(error: ResizeError) -> OpenError {
    match error {
        ResizeError::TooSmall { path, size_bytes, asked_bytes, why } => {
            OpenError::TooSmall { path, size_bytes, asked_bytes, why }
        }
        ResizeError::TooLong { path, asked_bytes, why } => {
            OpenError::TooLong { path, asked_bytes, why }
        }
        ResizeError::Os { path, source } => OpenError::Os { what: "grow", path, source },
        ResizeError::Size(size) => OpenError::Size(size),
        ResizeError::Memory(error) => OpenError::Memory(error),
    }
}
