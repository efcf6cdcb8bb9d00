//! What a file is locked by before it is used: the first lock, the owner's byte, and the claim of a block device.
//!
//! Not here: the second lock, which is the last thing that is asked for (`open`), and how each is taken (`file::lock`).

use super::*;

impl How<'_> {
    pub(super) fn lock(&self, file: &OwnedFd) -> Result<(), OpenError> {
        if !self.fenced {
            return Ok(());
        }
        if !lock::one_lock_only(file.as_fd()) {
            self.ask_owner(file)?;
        }
        // What is kept has it as well, shared, until the second is here (`take_over`).
        let exclusive = !self.readonly && !self.is_kept(file);
        let locked = lock::lock_file(file.as_fd(), exclusive);
        locked.map_err(|error| self.refused(file, error))
    }

    /// That nobody else has given it up, who is about to have it again.
    pub(super) fn ask_owner(&self, file: &OwnedFd) -> Result<(), OpenError> {
        match self.is_kept(file) {
            true => Ok(()),
            false => lock::owned_by(file.as_fd())
                .map_or(Ok(()), |refused| Err(self.refused(file, refused))),
        }
    }

    /// Whether it is what was kept, and not another that has its name.
    fn is_kept(&self, file: &OwnedFd) -> bool {
        let stats = self.kept.and_then(|kept| fstat(kept).ok()).zip(fstat(file).ok());
        stats.is_some_and(|(kept, stat)| is_same(&kept, &stat))
    }

    /// Has a file that is open with its second lock have the first alone, which what was kept of it has as well.
    pub(super) fn take_over(&self, opened: &Opened) -> Result<(), OpenError> {
        let Some(kept) = self.kept.filter(|_| !self.readonly && self.is_kept(&opened.cached))
        else {
            return Ok(());
        };
        lock::take_over(kept, opened.cached()).map_err(|error| self.refused(&opened.cached, error))
    }

    /// Whether the kernel's own claim is asked for (`O_EXCL`): a block device may have other names,
    /// each with locks of its own, and file systems. Only one description can have it; the direct one
    /// where there is one, because most requests go through it.
    pub(super) fn claims(&self, stat: &Stat) -> bool {
        self.fenced && is_block(stat) && !self.readonly
    }

    /// `cached` again, as the only description, with the claim.
    pub(super) fn claim_cached(&self, cached: OwnedFd, stat: &Stat) -> Result<OwnedFd, OpenError> {
        let claimed = match self.open(OFlags::EXCL) {
            Err(Unopened::Os(Errno::BUSY)) => return Err(self.claimed(cached.as_fd(), stat)),
            opened => opened.map_err(|why| self.unopened(why))?,
        };
        let flags = fcntl_getfl(&claimed).map_err(self.os("look at"))? - OFlags::NONBLOCK;
        fcntl_setfl(&claimed, flags).map_err(self.os("set up"))?;
        // Between the two locks the claim keeps others out; who locks without it is found here.
        drop(cached);
        self.lock(&claimed)?;
        Ok(claimed)
    }

    /// Why a device was busy although its lock was free.
    pub(super) fn claimed(&self, locked: BorrowedFd<'_>, stat: &Stat) -> OpenError {
        if device::is_used_by_host(stat) {
            return OpenError::UsedByHost(self.path.into());
        }
        // It is locked under another name, or the claim goes a moment later than the lock.
        let holder = holder::holder_of_device(locked, stat.st_rdev);
        self.held(locked, holder, false)
    }
}
