//! The mark of lost data on a file itself: whoever opens it later finds it, also another daemon.
//!
//! An extended attribute, one byte: whether a daemon could not make stable what was written. It is made with the file's
//! label, so that a full file system has a place for the other byte. Whoever may write to the file may change it, and
//! causes a refusal at most: what a daemon knows itself it keeps elsewhere (`manager`). Block devices have none, nor has
//! every file system.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, fsync};
use rustix::io::Errno;

const MARK: &str = "user.sidecore.unsynced";
const LOST: &[u8] = b"1";
const STABLE: &[u8] = b"0";

/// What is known of the mark of an open file.
#[derive(Debug)]
pub(super) struct Mark(AtomicI32);

/// It is not there, so far as is known.
const ABSENT: i32 = 0;
/// It is there.
const THERE: i32 = 1;
/// It is there, and may not survive a power cut.
const UNSTABLE: i32 = 2;
// Otherwise why it could not be put there, as a negated errno.

impl Mark {
    /// That of a file, as it is found: whoever put it there may not have come to make it stable.
    pub(super) fn of(file: &OwnedFd) -> Mark {
        Mark(AtomicI32::new(if is_on(file) { UNSTABLE } else { ABSENT }))
    }

    /// Nobody looks for one.
    pub(super) fn none() -> Mark {
        Mark(AtomicI32::new(ABSENT))
    }

    pub(super) fn is_there(&self) -> bool {
        matches!(self.0.load(Ordering::SeqCst), THERE | UNSTABLE)
    }

    /// Whether it is there for good.
    pub(super) fn is_stable(&self) -> bool {
        self.0.load(Ordering::SeqCst) == THERE
    }

    /// Why it could not be put there.
    pub(super) fn refused(&self) -> Option<Errno> {
        let code = self.0.load(Ordering::SeqCst);
        (code < ABSENT).then(|| Errno::from_raw_os_error(-code))
    }

    /// Puts it on the file for good, as long as `is_lost` says so. Waits for the file system. False: it, and the file's
    /// last writes, could not be made stable; it is to be put there again.
    pub(super) fn put(&self, file: &OwnedFd, is_lost: impl Fn() -> bool) -> bool {
        self.put_by(|file| fsync(file).is_ok(), file, is_lost)
    }

    fn put_by(
        &self,
        make_stable: impl Fn(&OwnedFd) -> bool,
        file: &OwnedFd,
        is_lost: impl Fn() -> bool,
    ) -> bool {
        if let Err(error) = fsetxattr(file, MARK, LOST, XattrFlags::empty()) {
            self.0.store(-error.raw_os_error(), Ordering::SeqCst);
            return true;
        }
        self.0.store(UNSTABLE, Ordering::SeqCst);
        let is_stable = make_stable(file);
        if is_stable {
            self.0.store(THERE, Ordering::SeqCst);
        }
        match is_lost() {
            // Whoever took it off a moment ago, before data was lost anew, may have noted that before this was noted.
            true if !is_on(file) => self.0.store(ABSENT, Ordering::SeqCst),
            true => {}
            // An operator was faster.
            false => drop(self.take_off(file)),
        }
        is_stable
    }

    /// Takes it off. Waits for the file system.
    pub(super) fn take_off(&self, file: &OwnedFd) -> Result<(), Errno> {
        if is_on(file) {
            fsetxattr(file, MARK, STABLE, XattrFlags::empty())?;
        }
        self.0.store(ABSENT, Ordering::SeqCst);
        Ok(())
    }
}

/// Whether a file has it. One that is not as it should be counts; one that cannot be read does not.
pub(super) fn is_on(file: impl AsFd) -> bool {
    let mut byte = [0; 1];
    match fgetxattr(file, MARK, &mut byte) {
        Ok(len) => byte.get(..len) != Some(STABLE),
        Err(Errno::RANGE) => true,
        Err(_) => false,
    }
}

/// Makes room for it on a file that has none, if its file system takes one.
pub(super) fn make_room(file: &OwnedFd) {
    let _ = fsetxattr(file, MARK, STABLE, XattrFlags::CREATE);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::lacking::leave_out;

    #[test]
    fn a_mark_is_found_by_whoever_opens_the_file_until_it_is_taken_off() {
        let name = "a_mark_is_found_by_whoever_opens_the_file_until_it_is_taken_off";
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a folder");
        let path = folder.path().join("a.raw");
        fs::write(&path, [0; 512]).expect("written");
        let open =
            || OwnedFd::from(fs::File::options().read(true).write(true).open(&path).expect("it"));
        let file = open();
        make_room(&file);
        if fgetxattr(&file, MARK, &mut [0; 8]).is_err() {
            return leave_out(name, "this file system has no such attributes", folder.path());
        }
        let mark = Mark::of(&file);
        assert!(!mark.is_there() && mark.refused().is_none());
        assert!(mark.put(&file, || true));
        make_room(&file);
        assert!(mark.is_there() && is_on(open()), "room for it is made once");
        mark.take_off(&file).expect("it can be written");
        assert!(!mark.is_there() && !is_on(open()));
        // Cleared while it was put there.
        assert!(mark.put(&file, || false));
        assert!(!mark.is_there() && !is_on(open()));
        for (text, counts) in [(&b""[..], true), (b"0", false), (b"1", true), (b"00", true)] {
            fsetxattr(&file, MARK, text, XattrFlags::empty()).expect("written");
            assert_eq!(is_on(&file), counts, "{text:?}");
        }
    }

    #[test]
    fn a_mark_that_is_not_stable_is_put_there_until_it_is() {
        let name = "a_mark_that_is_not_stable_is_put_there_until_it_is";
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a folder");
        let file = OwnedFd::from(fs::File::create(folder.path().join("a.raw")).expect("a file"));
        make_room(&file);
        if fgetxattr(&file, MARK, &mut [0; 8]).is_err() {
            return leave_out(name, "this file system has no such attributes", folder.path());
        }
        let mark = Mark::of(&file);
        assert!(!mark.put_by(|_| false, &file, || true), "a power cut takes it along");
        assert!(mark.is_there() && !mark.is_stable());
        // Nor is it known whether that of another daemon is.
        assert!(Mark::of(&file).is_there() && !Mark::of(&file).is_stable());
        assert!(mark.put(&file, || true) && mark.is_stable());
        // Taken off while it was put there, and lost anew before that was noted.
        let cleared = |file: &OwnedFd| mark.take_off(file).is_ok();
        assert!(mark.put_by(cleared, &file, || true));
        assert!(!is_on(&file) && !mark.is_there(), "it is never put there again");
        assert!(mark.put(&file, || true) && is_on(&file));
    }

    #[test]
    fn what_takes_no_mark_says_why() {
        let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
        let mark = Mark::of(&pipe);
        assert!(mark.put(&pipe, || true), "nothing was to be made stable");
        assert!(!mark.is_there() && mark.refused().is_some());
        mark.take_off(&pipe).expect("there is none");
    }
}
