//! Folders for sockets, files and logs that go away, also after a crash.
//!
//! A folder carries the number of the process that made it; [`Scratch::new`] first removes those of this user whose
//! process is gone. A folder of that name that is another's is neither used nor removed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::mounts;

const PREFIX: &str = "sidecore-test-";
/// How many names are tried: anybody can take some.
const NAMES: u32 = 16;

/// A folder that is removed with this value.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new empty folder in `parent`; `name` tells several of one process apart.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(parent: &Path, name: &str) -> Result<Scratch> {
        sweep(parent);
        let plain = format!("{PREFIX}{}-{name}", std::process::id());
        let mut path = parent.join(&plain);
        for _ in 0..NAMES {
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    let mut bytes = [0; 2];
                    getrandom(&mut bytes, GetRandomFlags::empty())?;
                    path = parent.join(format!("{plain}-{:04x}", u16::from_ne_bytes(bytes)));
                }
                made => {
                    made.with_context(|| format!("making {}", path.display()))?;
                    return Ok(Scratch { path });
                }
            }
        }
        anyhow::bail!("{} and names like it are taken", parent.join(plain).display())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of processes that are gone. What cannot be removed stays.
fn sweep(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .and_then(|rest| rest.split('-').next())
            .and_then(|pid| pid.parse::<u32>().ok());
        let is_gone = owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if is_gone && is_own(&entry.path()) {
            mounts::detach_in(&entry.path());
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether it is a folder of this user.
fn is_own(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own)
}

/// Whether a place is in a folder of this kind, of this user, that no link leads to: what is in it nobody else has made.
pub fn is_in_one(place: &Path) -> bool {
    let is_named_so = |path: &&Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(PREFIX))
    };
    place.ancestors().filter(is_named_so).last().is_some_and(is_own_without_links)
}

fn is_own_without_links(folder: &Path) -> bool {
    is_own(folder) && folder.canonicalize().is_ok_and(|real| real == folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_is_left_to_whoever_has_it() {
        let parent = Scratch::new(&std::env::temp_dir(), "scratch").unwrap();
        let taken = parent.path().join(format!("{PREFIX}{}-a", std::process::id()));
        std::fs::write(&taken, "another's").unwrap();
        let made = Scratch::new(parent.path(), "a").unwrap();
        assert!(made.path() != taken && made.path().is_dir());
        assert_eq!(std::fs::read_to_string(&taken).unwrap(), "another's");
    }

    #[test]
    fn folders_of_the_dead_are_removed_and_links_are_not_followed() {
        let parent = Scratch::new(&std::env::temp_dir(), "scratch-sweep").unwrap();
        let [dead, link] =
            ["4194305-a", "4194305-b"].map(|name| parent.path().join(format!("{PREFIX}{name}")));
        let kept = parent.path().join("kept");
        std::fs::create_dir_all(dead.join("within")).unwrap();
        std::fs::create_dir(&kept).unwrap();
        std::os::unix::fs::symlink(&kept, &link).unwrap();
        drop(Scratch::new(parent.path(), "a").unwrap());
        assert!(!dead.exists() && kept.is_dir() && link.is_symlink());
    }

    #[test]
    fn what_is_within_one_is_told_from_what_only_seems_to_be() {
        let own = Scratch::new(&std::env::temp_dir(), "scratch-own").unwrap();
        assert!(is_in_one(&own.path().join("a/b")));
        assert!(!is_in_one(Path::new("/srv/sidecore-test-4194305-none/b")));
        assert!(!is_in_one(Path::new("/proc/self")));
        // Another folder, by a way that others may have made.
        let folder = own.path().canonicalize().unwrap();
        let (real, link) = (folder.join("real"), folder.join("link"));
        std::fs::create_dir_all(real.join("within")).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(is_own_without_links(&real.join("within")));
        assert!(!is_own_without_links(&link) && !is_own_without_links(&link.join("within")));
    }
}
