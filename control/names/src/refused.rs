//! Why a name is not opened, in words that say which step of it and what to do.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::Purpose;

/// What to do about an image whose name lies where devices are.
pub const ACTIVATE: &str = "activate its volume (such as with `vgchange -ay`, `cryptsetup open` or `iscsiadm`), or correct `path`";

/// Why a name is not opened. Each text names the step of the path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The kernel's word.
    #[error("{}: {source}", step.display())]
    Os {
        /// The step.
        step: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// A folder of another user, where none is allowed.
    #[error(
        "{} belongs to user {uid}, who could put anything there: {}",
        step.display(), remedy(*purpose, *uid)
    )]
    Foreign {
        /// The folder.
        step: PathBuf,
        /// Its owner.
        uid: u32,
        /// What the name is for.
        purpose: Purpose,
    },
    /// Something of another user in a folder such as `/tmp`, in which every user may make names.
    #[error(
        "{} belongs to user {uid} and lies where every user may make names: move it to a folder that \
         only one user may write to",
        step.display()
    )]
    InShared {
        /// The name.
        step: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// A folder that more than one user may write to.
    #[error(
        "{} has mode {:04o}, so others than its owner can change what is in it: `chmod g-w,o-w` it",
        step.display(), mode
    )]
    Writable {
        /// The folder.
        step: PathBuf,
        /// Its mode, without its type.
        mode: u32,
    },
    /// A link that somebody else than root and the daemon's user made.
    #[error(
        "{} is a link of user {uid}, or in a folder of that user, and is not followed: name what it \
         leads to",
        step.display()
    )]
    Link {
        /// The link.
        step: PathBuf,
        /// Who made it, or has its folder.
        uid: u32,
    },
    /// In a folder of one user, something of another.
    #[error(
        "{} belongs to user {uid}, but lies in a folder of user {owner}: in there only what is user \
         {owner}'s own is used; `chown` it, or move it",
        step.display()
    )]
    NotOwners {
        /// The name.
        step: PathBuf,
        /// Its owner.
        uid: u32,
        /// Whose folder it is in.
        owner: u32,
    },
    /// A file with a second name, where every user may give one.
    #[error(
        "{} has more than one name and lies where every user may make names: move it to a folder that \
         only one user may write to",
        step.display()
    )]
    SecondName {
        /// The file.
        step: PathBuf,
    },
    /// It is of another kind.
    #[error("{} is {is}, not {wanted}", step.display())]
    Kind {
        /// The name.
        step: PathBuf,
        /// What it is.
        is: &'static str,
        /// What is wanted.
        wanted: &'static str,
    },
    /// A file that the kernel makes up, such as those in `/proc`.
    #[error("{} is in a file system of the kernel's own: name a file or block device", step.display())]
    Pseudo {
        /// The file.
        step: PathBuf,
    },
    /// Nothing is there, and the daemon makes nothing in a folder of another user.
    #[error(
        "{} is missing, and nothing is made in a folder of user {owner}: have that user make it, with \
         `truncate -s SIZE`",
        step.display()
    )]
    NotMade {
        /// The name.
        step: PathBuf,
        /// Whose folder it is.
        owner: u32,
    },
    /// Nothing is there, and it is where devices are.
    #[error(
        "{} is missing, and no file is made in /dev, where it would lie in memory until the next boot; {}",
        step.display(), among_devices(*purpose)
    )]
    AmongDevices {
        /// The name, or the first step of the way that is missing.
        step: PathBuf,
        /// What the name is for.
        purpose: Purpose,
    },
    /// Nothing is there, and its folder takes no new file.
    #[error(
        "{} is missing, and its folder takes no new file: {source}; {}",
        step.display(), advice(*source)
    )]
    NoNew {
        /// The name.
        step: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// More was there than can be meant.
    #[error("{} has more than {bytes_max} bytes: it is not what it should be", step.display())]
    TooLong {
        /// The file.
        step: PathBuf,
        /// The most that is read.
        bytes_max: u64,
    },
    /// No text.
    #[error("{} is not UTF-8", step.display())]
    NoText {
        /// The file.
        step: PathBuf,
    },
}

impl Refused {
    /// What the kernel said, if it was the kernel.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Refused::Os { source, .. } => Some(*source),
            _ => None,
        }
    }

    /// Whether nothing is there.
    pub fn is_missing(&self) -> bool {
        self.errno() == Some(Errno::NOENT)
    }
}

impl From<Refused> for io::Error {
    /// Of the same kind as what the kernel said; `PermissionDenied` for a refusal of ours.
    fn from(refused: Refused) -> io::Error {
        let kind = match &refused {
            Refused::Os { source, .. } => io::Error::from(*source).kind(),
            Refused::TooLong { .. } | Refused::NoText { .. } | Refused::Kind { .. } => {
                io::ErrorKind::InvalidData
            }
            _ => io::ErrorKind::PermissionDenied,
        };
        io::Error::new(kind, refused.to_string())
    }
}

/// What to do about a folder that takes no new file.
fn advice(source: Errno) -> &'static str {
    match source {
        Errno::NOSPC | Errno::DQUOT => "make room there, or name another folder",
        Errno::ROFS => "have its file system be writable, or name another folder",
        _ => {
            "let the daemon's user write to that folder (`ls -ld`, `lsattr -d`), or name another one"
        }
    }
}

fn among_devices(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Image { .. } => ACTIVATE,
        Purpose::Own | Purpose::Socket => "name another folder",
    }
}

fn remedy(purpose: Purpose, uid: u32) -> String {
    match purpose {
        Purpose::Image { .. } => format!(
            "if the image is user {uid}'s own, say `allow_user_folder` for this disk; otherwise move it, \
             or `chown root` the folder"
        ),
        Purpose::Own | Purpose::Socket => "`chown root` it, or name another folder".to_string(),
    }
}

#[cfg(test)]
mod tests;
