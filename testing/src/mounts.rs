//! What is mounted in folders of tests, and how it is let go of.
//!
//! Names of mounts may be anybody's: they are decoded, and no link is followed.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};

/// One mount, as the kernel tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted: of FUSE any words.
    pub source: String,
    /// Where.
    pub place: PathBuf,
}

impl Mount {
    /// All that this process sees, the oldest first.
    ///
    /// # Errors
    /// `/proc` does not tell.
    pub fn all() -> Result<Vec<Mount>> {
        let text = std::fs::read("/proc/self/mounts").context("/proc/self/mounts")?;
        Ok(text.split(|byte| *byte == b'\n').filter_map(Mount::of_line).collect())
    }

    fn of_line(line: &[u8]) -> Option<Mount> {
        let mut words = line.split(|byte| *byte == b' ').map(decoded);
        let source = String::from_utf8_lossy(&words.next()?).into_owned();
        let place = PathBuf::from(OsString::from_vec(words.next()?));
        place.is_absolute().then_some(Mount { source, place })
    }
}

/// Takes it out of the tree, also when files of it are open.
///
/// # Errors
/// The kernel's.
pub fn detach(place: &Path) -> Result<()> {
    unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .with_context(|| format!("unmounting {}", place.display()))
}

/// Lets go of all that is mounted in a folder, the newest first. What cannot be unmounted stays.
pub fn detach_in(folder: &Path) {
    for mount in Mount::all().unwrap_or_default().iter().rev() {
        if mount.place.starts_with(folder) && mount.place != folder {
            let _ = detach(&mount.place);
        }
    }
}

/// The bytes of a word in which the kernel writes some as `\` and three octal digits.
fn decoded(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        (bytes, rest) = match octal.filter(|_| *first == b'\\') {
            Some(digits) => {
                let value =
                    digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                bytes.push(value as u8);
                (bytes, &after[3..])
            }
            None => {
                bytes.push(*first);
                (bytes, after)
            }
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_the_name_that_it_was_mounted_at() {
        let line = br"sidecore-test-disk-42 /srv/u/x\040y\134z fuse rw 0 0";
        let place = r"/srv/u/x y\z".into();
        let wanted = Mount { source: "sidecore-test-disk-42".into(), place };
        assert_eq!(Mount::of_line(line), Some(wanted));
        assert_eq!(Mount::of_line(b""), None);
        assert_eq!(Mount::of_line(b"none"), None);
        assert_eq!(decoded(br"\04"), br"\04");
        assert_eq!(decoded(br"\\040"), br"\ ");
    }

    #[test]
    fn what_this_process_sees_is_told() {
        let all = Mount::all().unwrap();
        assert!(all.iter().any(|mount| mount.place == Path::new("/")), "{all:?}");
    }

    #[test]
    fn no_link_is_followed() {
        let folder = crate::scratch::Scratch::new(&std::env::temp_dir(), "mounts").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert!(detach(&link).is_err());
        assert!(Path::new("/proc/self").exists());
    }
}
