//! What tells an open image from others: learnt before it is used, and looked at again while it is served.

use rustix::fs::fstat;

use super::*;
use crate::file::image::Astray;

impl Opened {
    /// Facts by which it is told from other images.
    pub(crate) fn image(&self) -> &ImageFacts {
        &self.image
    }

    /// Puts a label on a file that has none and is written here: one that was taken over from a process that knew of no
    /// labels. Waits for as long as its file system does.
    pub(crate) fn label(&self) {
        if !self.readonly && !self.is_labelled.swap(true, Ordering::Relaxed) {
            self.image.clone().ensure_label(&self.cached);
        }
    }

    /// Bytes that it had when it was opened, or was given since.
    pub(crate) fn longest_known(&self) -> u64 {
        self.image.bytes().max(self.longest.load(Ordering::Relaxed))
    }

    /// What has become of it while `size_bytes` of it are served. `names` finds what has its name now.
    pub(crate) fn astray(&self, names: &dyn Names, size_bytes: u64) -> Option<Astray> {
        let otherwise = named_otherwise(&self.cached, &self.path, names).ok()?;
        if otherwise.is_some() {
            return otherwise;
        }
        let (bytes, usual) = (self.end().ok()?, self.longest_known().max(size_bytes));
        match bytes {
            _ if bytes < size_bytes => Some(Astray::Cut { bytes }),
            _ if bytes > usual => Some(Astray::Grown { bytes }),
            _ => None,
        }
    }
}

impl How<'_> {
    /// Facts of what was opened, which is left as it is if it is refused; and a label for a file that
    /// is to be written.
    pub(super) fn image(&self, file: &OwnedFd) -> Result<ImageFacts, OpenError> {
        let length = end_of(file).map_err(self.os("measure"))?;
        let mut image = ImageFacts::of(file, length).map_err(self.os("look at"))?;
        if self.vet != Vet::Raw && !image.is_labelled() {
            let foreign = Foreign::of_file(file);
            // A guest may have encrypted a whole device; on a new file that is a mistake more often.
            let is_usual = self.vet == Vet::Used || matches!(image, ImageFacts::Block { .. });
            if let Some(format) = foreign.filter(|one| *one != Foreign::Luks || !is_usual) {
                return Err(OpenError::Foreign { path: self.path.into(), format });
            }
        }
        if self.fenced && !self.readonly && !self.is_simulated() {
            image.ensure_label(file);
            mark::make_room(file);
        }
        Ok(image)
    }

    /// The mark of a file that is to be written; a simulation has none.
    pub(super) fn mark(&self, file: &OwnedFd) -> Mark {
        match self.fenced && !self.readonly && !self.is_simulated() {
            true => Mark::of(file),
            false => Mark::none(),
        }
    }
}

/// What has become of the name by which `file` was opened, if something: `names` finds what has it now.
///
/// # Errors
/// Nothing can be said of an open file.
pub(super) fn named_otherwise(
    file: &OwnedFd,
    path: &Path,
    names: &dyn Names,
) -> Result<Option<Astray>, Errno> {
    let stat = fstat(file)?;
    let is_it = |named: &Stat| match is_block(&stat) {
        true => is_block(named) && named.st_rdev == stat.st_rdev,
        false => is_same(named, &stat),
    };
    let named = names.open(path, OFlags::PATH | OFlags::CLOEXEC);
    Ok(match named.and_then(|named| fstat(named).map_err(Unopened::Os)) {
        Ok(named) if !is_it(&named) => Some(Astray::Replaced),
        Err(Unopened::NotADisk) => Some(Astray::Replaced),
        Err(Unopened::Os(Errno::NOENT | Errno::NOTDIR)) => Some(Astray::Removed),
        // Not to be seen by this thread: then its links say whether it has a name at all.
        Err(_) if stat.st_nlink == 0 => Some(Astray::Removed),
        _ => None,
    })
}

/// Bytes in a file or block device now.
pub(super) fn end_of(file: &OwnedFd) -> Result<u64, Errno> {
    let stat = fstat(file)?;
    if is_block(&stat) {
        return seek(file, SeekFrom::End(0));
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}
