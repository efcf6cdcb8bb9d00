//! What answers for a path, found without asking it: the mounted file system, or the block device.
//!
//! Whoever asks many images at once uses this to hold few threads for each of their file systems, since
//! one that is dead keeps each thread that asks it. So no file system is touched here but those whose end
//! is the host's: links are followed on the root's and in the kernel's memory, and elsewhere the path is
//! taken by its words. A wrong guess shares threads out badly, and does nothing else.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::readlink;

use crate::walk::{LINKS_MAX, STEPS_MAX, steps_of};

/// File systems in the kernel's memory: they always answer, but for the devices in them.
const IN_MEMORY: &[&str] = &["devtmpfs", "tmpfs", "ramfs"];

/// What answers for paths: one that is dead holds up all that have it in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Medium(PathBuf);

impl std::fmt::Display for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Where file systems are mounted.
#[derive(Debug, Default)]
pub struct Mounts {
    /// The kernel's table, which says that it has changed.
    table: Option<File>,
    /// Each place, and whether it lies in the kernel's memory.
    places: HashMap<PathBuf, bool>,
}

impl Mounts {
    /// Those that this process sees. Without the table all is taken for one.
    pub fn read() -> Mounts {
        let mut mounts =
            Mounts { table: File::open("/proc/self/mountinfo").ok(), places: HashMap::new() };
        mounts.read_again();
        mounts
    }

    /// Reads the table again if something was mounted or unmounted since; whether it was.
    pub fn follow(&mut self) -> bool {
        let Some(table) = &self.table else { return false };
        let mut asked = [PollFd::new(table, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let has_changed = poll(&mut asked, Some(&now)).is_ok_and(|changed| changed > 0);
        if has_changed {
            self.read_again();
        }
        has_changed
    }

    fn read_again(&mut self) {
        let Some(table) = &mut self.table else { return };
        let mut text = Vec::new();
        let read = table.rewind().and_then(|()| table.read_to_end(&mut text));
        if read.is_ok() {
            self.places = places_of(&text);
        }
    }

    /// What answers for a path, whether or not there is anything.
    pub fn medium_of(&self, path: &Path) -> Medium {
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let (mut at, mut rest) = (PathBuf::from("/"), steps_of(&whole));
        let (mut links, mut steps) = (0, 0);
        while let Some(name) = rest.pop() {
            steps += 1;
            if steps > STEPS_MAX {
                break;
            }
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let is_place = self.places.contains_key(&next);
            if !is_place
                && self.always_answers(&at)
                && links < LINKS_MAX
                && let Ok(target) = readlink(&next, Vec::new())
            {
                links += 1;
                let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                rest.extend(steps_of(&target));
                continue;
            }
            at = next;
        }
        match self.mount_of(&at) {
            // A device answers for itself.
            (_, true) => Medium(at),
            (place, false) => Medium(place.to_path_buf()),
        }
    }

    /// Where the file system of a path is mounted, and whether it is in the kernel's memory.
    fn mount_of<'a>(&self, path: &'a Path) -> (&'a Path, bool) {
        let found = path.ancestors().find_map(|it| Some((it, *self.places.get(it)?)));
        found.unwrap_or((Path::new("/"), false))
    }

    /// Whether its end is the host's.
    fn always_answers(&self, folder: &Path) -> bool {
        let (place, in_memory) = self.mount_of(folder);
        in_memory || place == Path::new("/")
    }
}

/// Each place of the table.
fn places_of(text: &[u8]) -> HashMap<PathBuf, bool> {
    let place = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ');
        let place = PathBuf::from(OsString::from_vec(unescaped(words.nth(4)?)));
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        Some((place, IN_MEMORY.iter().any(|known| known.as_bytes() == kind)))
    };
    // Of several at one place the last is on top.
    text.split(|byte| *byte == b'\n').filter_map(place).collect()
}

/// A word of the table: spaces and their like are three octal digits behind a backslash.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(word.len()), word);
    while let [first, more @ ..] = rest {
        let digits = more.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        (rest, _) = match byte.filter(|_| *first == b'\\') {
            Some(byte) => (more.get(3..).unwrap_or_default(), bytes.push(byte)),
            None => (more, bytes.push(*first)),
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
         23 22 0:5 / /dev rw - devtmpfs devtmpfs rw\n\
         40 22 0:50 / /srv/nfs rw shared:1 - nfs4 dead:/ rw\n\
         41 40 0:51 / /srv/nfs/inner rw - ext4 /dev/vdb rw\n\
         42 22 0:52 / /srv/with\\040space rw - fuse.x x rw,user_id=0\n";

    fn mounts(text: &str) -> Mounts {
        Mounts { table: None, places: places_of(text.as_bytes()) }
    }

    fn medium(path: &str) -> String {
        mounts(TABLE).medium_of(Path::new(path)).to_string()
    }

    #[test]
    fn the_table_of_this_machine_is_read_once() {
        let mut mounts = Mounts::read();
        assert!(mounts.places.contains_key(Path::new("/")), "{mounts:?}");
        // Other tests may mount something meanwhile.
        while mounts.follow() {}
        assert!(mounts.places.contains_key(Path::new("/")), "{mounts:?}");
    }

    #[test]
    fn a_path_is_answered_for_by_the_mount_that_is_nearest() {
        for (path, expected) in [
            ("/nowhere/a.raw", "/"),
            ("/srv/nfs", "/srv/nfs"),
            ("/srv/nfs/vm1/a.raw", "/srv/nfs"),
            ("/srv/nfsx/a.raw", "/"),
            ("/srv/nfs/inner/a.raw", "/srv/nfs/inner"),
            ("/srv/nfs/vm1/../../a.raw", "/"),
            ("/srv/with space/a.raw", "/srv/with space"),
            ("/dev/no-such-device", "/dev/no-such-device"),
        ] {
            assert_eq!(medium(path), expected, "{path}");
        }
    }

    #[test]
    fn links_are_followed_where_that_waits_for_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("images");
        std::os::unix::fs::symlink("/srv/nfs", &link).unwrap();
        let round = folder.path().join("round");
        std::os::unix::fs::symlink(&round, &round).unwrap();
        let at = |path: &Path| path.display().to_string();
        assert_eq!(medium(&at(&link.join("a.raw"))), "/srv/nfs");
        assert_eq!(medium(&at(&round)), "/");
        // In a file system that may be dead nothing is asked.
        let table = format!("{TABLE}50 22 0:60 / {} rw - fuse x rw\n", at(folder.path()));
        assert_eq!(mounts(&table).medium_of(&link.join("a.raw")).to_string(), at(folder.path()));
    }
}
