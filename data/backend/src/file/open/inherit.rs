//! An open image that another process served until now: its open file descriptions, which bring their
//! locks along (docs/decisions/0009, "What is handed over").
//!
//! Nothing is opened, and no lock asked for. What came is checked like anything from outside. Called by
//! `disk`.

use super::*;
use crate::disk::Inherited;

impl Opened {
    /// The descriptions that are handed over: through the page cache, and past it.
    pub(crate) fn descriptions(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.cached(), self.direct())
    }

    /// See [`crate::Disk::file_id`].
    pub(crate) fn file_id(&self) -> Option<(u64, u64)> {
        fstat(&self.cached).ok().map(|stat| (stat.st_dev, stat.st_ino))
    }

    /// What [`Self::descriptions`] gave, in the process that takes over. `path` is for messages.
    ///
    /// # Errors
    /// They are not what a disk is opened on.
    pub(crate) fn inherit(
        path: &Path,
        readonly: bool,
        facts: &Inherited,
        cached: OwnedFd,
        direct: Option<OwnedFd>,
    ) -> Result<Opened, OpenError> {
        let os = |what| move |source| OpenError::Os { what, path: path.into(), source };
        let stat = fstat(&cached).map_err(os("look at"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::BlockDevice | FileType::RegularFile) {
            return Err(OpenError::NotADisk(path.into()));
        }
        let access = if readonly { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = flags_of(&cached, access).map_err(os("take over"))?;
        let direct = direct.map(|fd| past_the_cache(fd, access, &stat));
        let direct = direct.transpose().map_err(os("take over"))?;
        let in_memory = !is_simulated() && is_in_memory(&cached, &stat);
        let image = end_of(&cached).and_then(|bytes| ImageFacts::of(&cached, bytes));
        let image = image.map_err(os("look at"))?;
        if !in_memory && !is_simulated() {
            Ring::new(2, None).map_err(OpenError::NoUring)?;
        }
        let mark = if readonly || is_simulated() { Mark::none() } else { Mark::of(&cached) };
        let opened = Opened {
            path: path.into(),
            is_direct_only: direct.is_none() && flags.contains(OFlags::DIRECT),
            is_block: is_block(&stat),
            cached,
            direct,
            readonly,
            in_memory,
            // Not learnt anew: its guest was told so, and trying would wait for what is in flight.
            physical_block_size: facts.physical_block_size,
            grain: facts.grain,
            limits: facts.limits,
            lacks: AtomicU8::new(0),
            was_empty: facts.was_empty,
            image,
            longest: AtomicU64::new(0),
            is_labelled: AtomicBool::new(false),
            sync_failed: AtomicBool::new(mark.is_there()),
            mark,
            sync_failure: failure_fd().map_err(os("watch"))?,
            writers: Writers::default(),
            flushes: Flushes::default(),
            faults: Faults::default(),
            waits: Patience::default(),
            sleepers: Sleepers::default(),
            #[cfg(feature = "simulated")]
            kernel: crate::simulated::here(),
        };
        #[cfg(feature = "simulated")]
        if let Some(kernel) = &opened.kernel {
            kernel.opened(path, opened.cached(), opened.direct());
        }
        if facts.limits.discard_sectors_max == 0 {
            opened.note_lack(Lack::PunchHole);
        }
        Ok(opened)
    }
}

/// The description past the page cache, if it is one of the file that `stat` tells of.
fn past_the_cache(fd: OwnedFd, access: OFlags, stat: &Stat) -> Result<Direct, Errno> {
    let flags = flags_of(&fd, access)?;
    if !is_same(&fstat(&fd)?, stat) {
        return Err(Errno::STALE);
    }
    match (is_simulated(), flags.contains(OFlags::DIRECT)) {
        (true, _) => Ok(Direct::simulated(fd)),
        (false, true) => Direct::of(fd, stat),
        (false, false) => Err(Errno::STALE),
    }
}

/// Whether a simulation answers for whatever is opened on this thread.
fn is_simulated() -> bool {
    #[cfg(feature = "simulated")]
    return crate::simulated::here().is_some();
    #[cfg(not(feature = "simulated"))]
    false
}

/// Its flags, if it can be used as is asked for.
fn flags_of(fd: &OwnedFd, access: OFlags) -> Result<OFlags, Errno> {
    let flags = fcntl_getfl(fd)?;
    // One that only has a path has the access mode of a readable one.
    match flags & OFlags::RWMODE == access && !flags.contains(OFlags::PATH) {
        true => Ok(flags),
        false => Err(Errno::BADF),
    }
}
