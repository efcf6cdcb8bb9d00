//! Facts by which an open image is told from any other, and the label that a disk leaves on its file.
//!
//! Control compares them (`manager::image`). Nothing here reads the data of an image. Called by `open`.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Stat, StatxFlags, XattrFlags, fgetxattr, fsetxattr, fstat, major, minor,
    statx,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Attribute of a file that holds its label.
const LABEL: &str = "user.sidecore.image";
/// Digits of a label: 128 bits.
const LABEL_DIGITS: usize = 32;
/// Longest fact of sysfs that is kept, bytes.
const NAME_BYTES_MAX: usize = 512;

/// Facts of one image: a file or a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageFacts {
    /// A regular file.
    File {
        /// Major and minor number of its file system's device.
        device: (u32, u32),
        /// Number in that file system.
        inode: u64,
        /// Time at which the file was made, nanoseconds since 1970, where the file system tells it.
        birth_ns: Option<i64>,
        /// Label in the extended attribute `user.sidecore.image`: 32 hexadecimal digits.
        label: Option<String>,
        /// Length when it was opened, before it was made longer, bytes.
        bytes: u64,
    },
    /// A block device.
    Block {
        /// Major and minor number.
        device: (u32, u32),
        /// What sysfs calls it, such as `("dm", UUID)` or `("wwid", ID)`.
        names: Vec<(String, String)>,
        /// Number that the kernel gave its medium, unique within one boot (Linux 5.15).
        sequence: Option<u64>,
        /// Length when it was opened, bytes.
        bytes: u64,
    },
}

/// What others have done to an image that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Astray {
    /// Its path names nothing.
    Removed,
    /// Its path names another file or device.
    Replaced,
    /// It ends before what is served.
    Cut {
        /// Its length, bytes.
        bytes: u64,
    },
    /// It goes on behind what is served, and did not when it was opened.
    Grown {
        /// Its length, bytes.
        bytes: u64,
    },
}

impl ImageFacts {
    /// Length when it was opened, bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            ImageFacts::File { bytes, .. } | ImageFacts::Block { bytes, .. } => *bytes,
        }
    }

    /// Facts of an open file, whose length is `bytes`.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn of(file: &OwnedFd, bytes: u64) -> Result<ImageFacts, Errno> {
        let stat = fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
            let folder = folder(&stat);
            return Ok(ImageFacts::Block {
                device: (major(stat.st_rdev), minor(stat.st_rdev)),
                names: names(&folder),
                sequence: sequence(&folder),
                bytes,
            });
        }
        Ok(ImageFacts::File {
            device: (major(stat.st_dev), minor(stat.st_dev)),
            inode: stat.st_ino,
            birth_ns: birth_ns(file),
            label: label(file),
            bytes,
        })
    }

    /// Puts a label on a file that has none, if its file system takes one. A device keeps its names.
    pub(super) fn ensure_label(&mut self, file: &OwnedFd) {
        let ImageFacts::File { label: known @ None, .. } = self else { return };
        let mut bits = [0; LABEL_DIGITS / 2];
        if getrandom(&mut bits, GetRandomFlags::NONBLOCK) != Ok(bits.len()) {
            return;
        }
        let text: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        // Refused where there are no such attributes: such a file is told by its inode alone.
        if fsetxattr(file, LABEL, text.as_bytes(), XattrFlags::CREATE).is_ok() {
            *known = Some(text);
        }
    }

    /// Whether a daemon has served the file before, writable.
    pub(super) fn is_labelled(&self) -> bool {
        matches!(self, ImageFacts::File { label: Some(_), .. })
    }
}

fn birth_ns(file: &OwnedFd) -> Option<i64> {
    let facts = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let is_told = facts.stx_mask & StatxFlags::BTIME.bits() != 0;
    let birth = facts.stx_btime;
    let ns = i64::from(birth.tv_nsec);
    is_told.then(|| birth.tv_sec.saturating_mul(1_000_000_000).saturating_add(ns))
}

/// The label, if it is one of ours. The owner of the file can write anything there.
fn label(file: &OwnedFd) -> Option<String> {
    let mut bytes = [0u8; LABEL_DIGITS + 1];
    let length = fgetxattr(file, LABEL, &mut bytes).ok()?;
    let text = std::str::from_utf8(bytes.get(..length)?).ok()?;
    let is_ours = text.len() == LABEL_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_ours.then(|| text.to_string())
}

fn folder(stat: &Stat) -> PathBuf {
    let number = format!("{}:{}", major(stat.st_rdev), minor(stat.st_rdev));
    PathBuf::from("/sys/dev/block").join(number)
}

/// Names of a device, strongest first. A partition has those of its disk, and where it begins.
fn names(folder: &Path) -> Vec<(String, String)> {
    let part = fact(&folder.join("partition")).and_then(|_| fact(&folder.join("start")));
    let disk = if part.is_some() { folder.join("..") } else { folder.to_path_buf() };
    let places = [
        ("dm", "dm/uuid"),
        ("md", "md/uuid"),
        ("wwid", "wwid"),
        ("wwid", "device/wwid"),
        ("serial", "serial"),
        ("serial", "device/serial"),
        ("loop", "loop/backing_file"),
    ];
    let mut names: Vec<(String, String)> = Vec::new();
    for (name, place) in places {
        let is_new = names.iter().all(|(known, _)| known != name);
        if let Some(text) = fact(&disk.join(place)).filter(|_| is_new) {
            names.push((name.to_string(), text));
        }
    }
    names.extend(part.map(|start| ("start".to_string(), start)));
    names
}

fn sequence(folder: &Path) -> Option<u64> {
    let found = fact(&folder.join("diskseq")).or_else(|| fact(&folder.join("../diskseq")));
    found?.parse().ok()
}

/// One fact of sysfs; nothing where it is empty.
fn fact(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty() && text.len() <= NAME_BYTES_MAX).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lacking::leave_out;

    fn facts(path: &Path) -> (OwnedFd, ImageFacts) {
        let file =
            OwnedFd::from(fs::File::options().read(true).write(true).open(path).expect("a file"));
        let facts = ImageFacts::of(&file, 512).expect("facts");
        (file, facts)
    }

    #[test]
    fn a_label_is_given_once_and_found_again() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a folder");
        let path = folder.path().join("a.raw");
        fs::write(&path, [0; 512]).expect("written");
        let (file, mut first) = facts(&path);
        assert!(!first.is_labelled());
        first.ensure_label(&file);
        if !first.is_labelled() {
            let name = "a_label_is_given_once_and_found_again";
            let why = "this file system has no such attributes";
            return leave_out(name, why, folder.path());
        }
        let (file, mut again) = facts(&path);
        assert_eq!(first, again);
        again.ensure_label(&file);
        assert_eq!(first, again);
    }

    #[test]
    fn what_is_no_label_is_none() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a folder");
        let path = folder.path().join("a.raw");
        fs::write(&path, [0; 512]).expect("written");
        let (file, _) = facts(&path);
        for text in ["", "x", &"g".repeat(LABEL_DIGITS), &"0".repeat(4000)] {
            let _ = fsetxattr(&file, LABEL, text.as_bytes(), XattrFlags::empty());
            assert_eq!(label(&file), None, "{text}");
        }
    }
}
