//! Images of another format than raw, told by how they begin.
//!
//! A raw disk over one of them shows its guest the container instead of the disk in it, and the guest's
//! first write destroys that. Nothing here interprets such an image. Called by `open`, for an image that
//! no disk has served yet.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::pread;

/// Bytes that are looked at; every format below shows itself in them.
const HEAD_BYTES: usize = 4096;

/// Whether an image is known to be raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vet {
    /// It is: an operator has said so, or a guest has used it as a disk. What it begins with is the guest's.
    Raw,
    /// A disk was on it before, so far as is known. One that begins as LUKS is then taken for a guest's that encrypts its
    /// whole disk; any other format is refused.
    Used,
    /// Nobody knows. One that begins as another format is refused ([`crate::OpenError::Foreign`]).
    Unknown,
}

/// A format that is not raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// QEMU's, version 1 to 3.
    Qcow,
    /// QEMU's enhanced disk.
    Qed,
    /// VMware's: a sparse extent, or a descriptor.
    Vmdk,
    /// Hyper-V's.
    Vhdx,
    /// Virtual PC's and Azure's dynamic or differencing disk.
    Vhd,
    /// VirtualBox's.
    Vdi,
    /// Parallels'.
    Parallels,
    /// Bochs' growing disk.
    Bochs,
    /// A compressed loop.
    Cloop,
    /// Encrypted, version 1 or 2.
    Luks,
}

/// Where each format has which bytes.
const MAGICS: &[(usize, &[u8], Foreign)] = &[
    (0, b"QFI\xfb\0\0\0\x01", Foreign::Qcow),
    (0, b"QFI\xfb\0\0\0\x02", Foreign::Qcow),
    (0, b"QFI\xfb\0\0\0\x03", Foreign::Qcow),
    (0, b"QED\0", Foreign::Qed),
    (0, b"KDMV", Foreign::Vmdk),
    (0, b"COWD", Foreign::Vmdk),
    (0, b"# Disk DescriptorFile", Foreign::Vmdk),
    (0, b"vhdxfile", Foreign::Vhdx),
    (0, b"conectix", Foreign::Vhd),
    (64, b"\x7f\x10\xda\xbe", Foreign::Vdi),
    (0, b"WithoutFreeSpace", Foreign::Parallels),
    (0, b"WithouFreSpacExt", Foreign::Parallels),
    (0, b"Bochs Virtual HD Image", Foreign::Bochs),
    (0, b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop", Foreign::Cloop),
    (0, b"LUKS\xba\xbe", Foreign::Luks),
];

impl Foreign {
    /// The format of an image that begins with `head`; nothing if it may be raw.
    pub fn of(head: &[u8]) -> Option<Foreign> {
        let begins = |(at, magic, _): &&(usize, &[u8], Foreign)| {
            head.get(*at..).is_some_and(|rest| rest.starts_with(magic))
        };
        MAGICS.iter().find(begins).map(|(.., format)| *format)
    }

    /// The same of an open file. A disk that fails is taken as raw. Waits for as long as the disk does.
    pub(super) fn of_file(file: &OwnedFd) -> Option<Foreign> {
        Foreign::of(&read_head(file)?)
    }

    /// What to do about an image of that format.
    pub(crate) fn advice(self, path: &Path) -> String {
        let path = path.display();
        let otherwise = "or, if it is the content of a raw disk, say `format = \"raw\"`";
        match self {
            Foreign::Luks => format!(
                "if the host is to decrypt it, open it with `cryptsetup open` and serve what that makes, or \
                 convert it with `qemu-img convert --image-opts`; {otherwise}, as where its guest has \
                 encrypted it"
            ),
            _ => {
                format!("convert it with `qemu-img convert -O raw {path} {path}.raw`; {otherwise}")
            }
        }
    }
}

fn read_head(file: &OwnedFd) -> Option<Vec<u8>> {
    // The description may be one that passes the page cache, which wants aligned memory.
    let mut bytes = vec![0; 2 * HEAD_BYTES];
    let at = bytes.as_ptr().align_offset(HEAD_BYTES);
    let head = bytes.get_mut(at..at.checked_add(HEAD_BYTES)?)?;
    let length = pread(file, &mut *head, 0).ok()?;
    head.get(..length).map(<[u8]>::to_vec)
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Foreign::Qcow => "qcow2",
            Foreign::Qed => "QED",
            Foreign::Vmdk => "VMDK",
            Foreign::Vhdx => "VHDX",
            Foreign::Vhd => "VHD",
            Foreign::Vdi => "VDI",
            Foreign::Parallels => "Parallels",
            Foreign::Bochs => "Bochs",
            Foreign::Cloop => "cloop",
            Foreign::Luks => "LUKS",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_told_by_its_magic() {
        for (at, magic, format) in MAGICS {
            let mut head = vec![0; HEAD_BYTES];
            head[*at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(Foreign::of(&head), Some(*format), "{format}");
            // One byte less, as a file that ends there.
            assert_eq!(Foreign::of(&head[..at + magic.len() - 1]), None, "{format}");
            head[*at] ^= 1;
            assert_eq!(Foreign::of(&head), None, "{format}");
        }
    }

    #[test]
    fn a_raw_disk_is_none_of_them() {
        let mut boot = vec![0; HEAD_BYTES];
        (boot[510], boot[511]) = (0x55, 0xaa);
        for head in [&[][..], &[0; HEAD_BYTES], &boot, b"QFI\xfb\0\0\0\x09", b"LUKS"] {
            assert_eq!(Foreign::of(head), None);
        }
    }
}
