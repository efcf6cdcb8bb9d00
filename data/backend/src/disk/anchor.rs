//! What is kept of an image that another process had, which has died: it is given up here, to be opened anew when what that
//! one had in flight has landed (docs/decisions/0005, "The fence").
//!
//! Its requests hold the descriptions that are open here too, so these are closed. What has the image's name meanwhile
//! may be another file or none, and the descriptors here may be the last that lead to it. So another one is kept, through
//! which nobody asks for anything, and the image is opened by that. Not here: when that is tried (`control/manager`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;

use super::{Disk, Kind, OpenError, Source};
use crate::Vet;
use crate::file::Opened;
use crate::names::{Names, Unopened};

/// What an image that was given up is opened by.
#[derive(Clone, Debug)]
pub struct Anchor {
    /// A descriptor that leads to it, whatever has its name. It keeps other processes' hands off it, where its file system
    /// can (`file::lock`), and a device there that goes with its last user.
    pub(crate) file: Option<Arc<OwnedFd>>,
    /// That is a device's, which is found by its name.
    is_device: bool,
    /// Its name.
    pub(crate) path: PathBuf,
    /// Of an image that is only read, whose locks keep no reader out: a byte that the descriptions which were closed here
    /// have locked, as long as requests have these.
    pub(crate) mark: Option<u64>,
    /// Why it keeps nobody off, where it should.
    pub(crate) unkept: Option<Errno>,
}

impl PartialEq for Anchor {
    fn eq(&self, other: &Anchor) -> bool {
        let file = |anchor: &Anchor| anchor.file.as_ref().map(Arc::as_ptr);
        file(self) == file(other) && self.mark == other.mark
    }
}

impl Eq for Anchor {}

impl Anchor {
    /// Of an image that another process has given up, from what that one says; nothing, if it says nothing.
    pub(super) fn of(path: &Path, file: Option<OwnedFd>, mark: Option<u64>) -> Option<Anchor> {
        let is_any = file.is_some() || mark.is_some();
        is_any.then(|| Anchor::new(path, file, mark))
    }

    pub(crate) fn new(path: &Path, file: Option<OwnedFd>, mark: Option<u64>) -> Anchor {
        let kind = |file| fstat(file).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_device = file.as_ref().is_some_and(|file| kind(file) == Ok(FileType::BlockDevice));
        Anchor { file: file.map(Arc::new), is_device, path: path.into(), mark, unkept: None }
    }

    /// Whether what is opened by it is the same image for certain.
    pub fn is_of_file(&self) -> bool {
        self.file.is_some() && !self.is_device
    }

    /// Why somebody else may have the image before it is opened again, where its file system could keep him off.
    pub fn unkept(&self) -> Option<Errno> {
        self.unkept
    }

    /// What another process must know besides its descriptor ([`super::Inherited::mark`]).
    pub fn mark(&self) -> Option<u64> {
        self.mark
    }

    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.as_fd())
    }
}

/// The file of an anchor, whatever name it is asked by; where it has none, what `names` finds.
pub(crate) struct Anchored<'a> {
    pub(crate) anchor: &'a Anchor,
    pub(crate) names: &'a dyn Names,
}

impl Names for Anchored<'_> {
    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Unopened> {
        match self.anchor.file().filter(|_| self.anchor.is_of_file()) {
            Some(file) => reopen(file, flags - OFlags::CREATE).map_err(Unopened::Os),
            None => self.names.open(path, flags),
        }
    }
}

/// Another description of an open file.
pub(crate) fn reopen(file: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    open(format!("/proc/self/fd/{}", file.as_raw_fd()), flags, Mode::empty())
}

impl Disk {
    /// What stays known of it when it is closed, as of [`Self::away`], with what it is to be opened by again
    /// ([`Self::open_by_anchor`]). Changes the locks of an image that is only read: nobody may serve it by its
    /// descriptions any more.
    ///
    /// # Errors
    /// Nothing could be kept, such as when no descriptor is left; it is as it was.
    pub fn give_up(&self) -> Result<Arc<Disk>, OpenError> {
        let Kind::File(opened) = &self.kind else { return Ok(self.away()) };
        let mut facts = opened.facts();
        facts.anchor = Some(opened.anchor()?);
        Ok(Arc::new(Disk { kind: Kind::Away(facts), size_bytes: self.size_bytes }))
    }

    /// What it is to be opened by, if it was [given up](Self::give_up).
    pub fn anchor(&self) -> Option<&Anchor> {
        match &self.kind {
            Kind::Away(facts) => facts.anchor.as_ref(),
            _ => None,
        }
    }

    /// Opens an image that was given up, once what was in flight then has landed. Nothing of it is vetted: it is known. One
    /// that is no file is found by `names`.
    ///
    /// # Errors
    /// As [`Self::open_by`]; [`OpenError::Held`] as long as something may still land.
    pub fn open_by_anchor(
        source: &Source,
        names: &dyn Names,
        anchor: &Anchor,
    ) -> Result<Arc<Disk>, OpenError> {
        let names = Anchored { anchor, names };
        Self::made_of(source, |path, asked, readonly, cache| {
            let what = (path, asked, readonly, cache, Vet::Raw);
            let (opened, size_bytes) = Opened::open_by_anchor(&names, what)?;
            Ok((Kind::File(Arc::new(opened)), size_bytes))
        })
    }
}
