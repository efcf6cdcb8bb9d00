//! Where devices are: `/dev`, whose names the kernel and udev make, and which is empty after each boot.
//!
//! A file that is made there lies in memory, at the name that a volume would have that is not active yet. So none is:
//! neither an image nor what the daemon keeps. Sockets may lie there, as `/dev/log` does: they are made at each start.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{fstat, stat};
use rustix::io::Errno;

use crate::walk::{Folder, Place};
use crate::{Purpose, Refused};

/// What is mounted there for files in memory, by whoever wants one.
const SHARED_MEMORY: &str = "/dev/shm";

/// Whether an image that is missing at `path` is a device that is not there: its name, or the first step of it that is
/// missing, lies in `/dev`, along links.
pub fn is_among_devices(path: &Path) -> bool {
    match Place::find(path, Purpose::Image { user_folder: true }) {
        Ok(place) => lies_there(&place.folder),
        Err(Refused::Os { step, source: Errno::NOENT }) => is_below(&step),
        Err(_) => false,
    }
}

/// Why an image that is missing at `path` was not opened: with what to do, if it is a device that is not there.
pub fn as_device(path: &Path, why: Refused) -> Refused {
    let purpose = Purpose::Image { user_folder: true };
    match is_among_devices(path) {
        true => Refused::AmongDevices { step: path.to_path_buf(), purpose },
        false => why,
    }
}

/// The same words for a step of the way that is missing as for the last one.
pub(crate) fn named(refused: Refused, purpose: Purpose) -> Refused {
    match refused {
        Refused::Os { step, source: Errno::NOENT } if is_below(&step) => {
            Refused::AmongDevices { step, purpose }
        }
        refused => refused,
    }
}

/// That a file may be made at `step`, which lies in `folder` or in one that is to be made there.
pub(crate) fn refuse(folder: &Folder, step: &Path, purpose: Purpose) -> Result<(), Refused> {
    match lies_there(folder) {
        true => Err(Refused::AmongDevices { step: step.to_path_buf(), purpose }),
        false => Ok(()),
    }
}

fn lies_there(folder: &Folder) -> bool {
    is_below(&folder.real) || (!is_shared_memory(&folder.real) && is_mounted(folder.fd.as_fd()))
}

fn is_below(real: &Path) -> bool {
    real.starts_with("/dev") && !is_shared_memory(real)
}

fn is_shared_memory(real: &Path) -> bool {
    real.starts_with(SHARED_MEMORY)
}

/// Whether a folder is of the file system that is mounted at `/dev`, whatever its name: it may be bound elsewhere.
fn is_mounted(folder: BorrowedFd<'_>) -> bool {
    let of = |path: &str| stat(path).ok().map(|stat| stat.st_dev);
    let (devices, root) = (of("/dev"), of("/"));
    devices != root && fstat(folder).is_ok_and(|stat| devices == Some(stat.st_dev))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::OFlags;

    use super::*;
    use crate::refused::ACTIVATE;
    use crate::{Kept, can_make_image, make_folder, open_image, open_or_make_image};

    /// A name that no device has.
    const MISSING: &str = "sidecore-test-no-such-volume";

    fn refused(path: &Path) -> (Refused, Refused) {
        let made = open_or_make_image(path, true, OFlags::RDWR).expect_err("made");
        let could = can_make_image(path, true).expect_err("it could be made");
        assert!(std::fs::symlink_metadata(path).is_err() || path.is_symlink(), "{path:?} is there");
        assert!(is_among_devices(path), "{path:?}");
        (made, could)
    }

    #[test]
    fn no_image_is_made_in_dev_by_whatever_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().canonicalize().expect("it is there").join(name);
        let volume = Path::new("/dev").join(MISSING);
        let group = volume.join("vm1");
        let mapped = Path::new("/dev/mapper").join(MISSING);
        symlink(&volume, at("volume")).expect("a link");
        symlink(&group, at("group")).expect("a link");
        symlink("/dev", at("devices")).expect("a link");
        let through = at("devices").join(MISSING);
        let round = Path::new("/dev/shm/..").join(MISSING);
        let ways = [&volume, &group, &mapped, &at("volume"), &at("group"), &through, &round];
        for way in ways {
            let (made, could) = refused(way);
            assert_eq!(made, could, "{way:?}");
            let Refused::AmongDevices { step, .. } = &made else { panic!("{way:?}: {made}") };
            assert!(step.starts_with("/dev"), "{step:?}");
            assert!(made.to_string().ends_with(ACTIVATE), "{made}");
            // One that is only opened is missing, as ever.
            let opened = open_image(way, true, OFlags::RDWR);
            assert!(opened.is_err_and(|why| why.is_missing()), "{way:?}");
        }
        assert!(!is_among_devices(&at("other")) && can_make_image(&at("other"), true).is_ok());
    }

    #[test]
    fn files_in_memory_may_lie_where_they_are_meant_to() {
        let Ok(folder) = tempfile::tempdir_in(SHARED_MEMORY) else { return };
        let image = folder.path().join("a.raw");
        assert!(!is_among_devices(&image));
        open_or_make_image(&image, true, OFlags::RDWR).expect("made");
        assert!(image.exists());
    }

    #[test]
    fn nothing_is_kept_in_dev() {
        let folder = Path::new("/dev").join(MISSING);
        let kept = Kept::in_folder(folder.join("state"), 8);
        for refused in
            [kept.replace("a", "x"), kept.overwrite("a", "x"), kept.lock("a", "x").map(drop)]
        {
            let why = refused.expect_err("kept").to_string();
            assert!(why.contains("no file is made in /dev"), "{why}");
        }
        assert!(matches!(kept.look(), Err(Refused::AmongDevices { .. })));
        let made = make_folder(&folder);
        assert!(matches!(made, Err(Refused::AmongDevices { .. })), "{made:?}");
        assert!(!folder.exists());
    }
}
