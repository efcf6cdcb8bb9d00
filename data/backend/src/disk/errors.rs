//! Why a disk is not opened, and why it keeps its size: for operators.
//!
//! Not here: what failed (`file`), and which of these is tried again (`manager`).

use std::path::PathBuf;

use guest_memory::MapError;
use rustix::io::Errno;

use crate::bytes::Bytes;
use crate::file::{Foreign, Holder};

/// Why a disk could not be opened. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel refused.
    #[error("cannot {what} {path}: {source}")]
    Os {
        /// The step, as a verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: Errno,
    },
    /// Its lock is held (docs/decisions/0005, "The fence").
    #[error("{path} is in use: {}", in_use(*holder, *is_marked))]
    Held {
        /// The file.
        path: PathBuf,
        /// Who. [`Holder::Living`]: refuse the disk; [`Holder::Ended`]: try again.
        holder: Holder,
        /// Somebody else has the lock that direct requests keep: those of a process that has ended may still be under way.
        may_land: bool,
        /// It says itself that a daemon could not make stable what was written: that one keeps it until it is cleared.
        is_marked: bool,
    },
    /// A block device that the host itself uses.
    #[error(
        "{0} is in use by the host: it or a partition of it is mounted, swapped to, or part of a \
         RAID, volume group or mapped device; unmount or stop that first"
    )]
    UsedByHost(PathBuf),
    /// Its name may lead elsewhere than it should, or to no image ([`crate::Unopened::Refused`]).
    #[error("cannot open {path}: {why}")]
    Refused {
        /// The file, as it was named.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// A process has a lease on it, which was asked for back and not waited for.
    #[error(
        "cannot open {0}: another process has a lease on it (fcntl F_SETLEASE) and was asked to let go; \
         it is tried again"
    )]
    Leased(PathBuf),
    /// A directory, a socket, a terminal.
    #[error("{0} is neither a regular file nor a block device")]
    NotADisk(PathBuf),
    /// Nothing to serve.
    #[error("{path} has {}; a disk needs at least 512: give a size", Bytes(*.size_bytes))]
    Empty {
        /// The file.
        path: PathBuf,
        /// Its size, bytes.
        size_bytes: u64,
    },
    /// Its last sector is not whole, and would not be served.
    #[error(
        "{path} has {size_bytes} bytes, which is no multiple of 512: make it longer with `truncate -s %512 \
         {path}`, which adds zeroes, or give the `size` of the whole sectors that are to be served"
    )]
    Uneven {
        /// The file.
        path: PathBuf,
        /// Its size, bytes.
        size_bytes: u64,
    },
    /// It begins as an image of another format.
    #[error("{path} is a {format} image, and a disk is raw: {}", format.advice(path))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// As what it begins.
        format: Foreign,
    },
    /// Smaller than asked, and not to be grown.
    #[error(
        "{path} has {}, but a size of {} was given; {why}",
        Bytes(*.size_bytes),
        Bytes(*.asked_bytes)
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// What it has, bytes.
        size_bytes: u64,
        /// What was asked for, bytes.
        asked_bytes: u64,
        /// Why it is not grown.
        why: &'static str,
    },
    /// Its file system, or the daemon's own limit, has no file of that length.
    #[error("{path} cannot have {}: {why}", Bytes(*.asked_bytes))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What was asked for, bytes.
        asked_bytes: u64,
        /// Why.
        why: &'static str,
    },
    /// A size that no disk can have.
    #[error("a size of {0} bytes is not possible: it must be a multiple of 512, from 512 to 2^63")]
    Size(u64),
    /// `cache = "direct"` on a file system without it.
    #[error(
        "{0} cannot be opened with O_DIRECT on its file system: use cache = \"auto\" or \"page\""
    )]
    NoDirect(PathBuf),
    /// io_uring is missing.
    #[error(
        "cannot make an io_uring, which a disk on a file needs: {0} \
         (is sysctl kernel.io_uring_disabled 0, the kernel 5.6 or later, and LimitMEMLOCK large enough?)"
    )]
    NoUring(std::io::Error),
    /// No memory for a RAM disk.
    #[error("cannot make a RAM disk: {0}")]
    Memory(#[from] MapError),
    /// Another process handed over something else than the disk that was asked for.
    #[error("what was handed over is not {0}")]
    NotIt(&'static str),
}

/// Why a disk keeps its size. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// A size that no disk can have.
    #[error("a size of {0} bytes is not possible: it must be a multiple of 512, from 512 to 2^63")]
    Size(u64),
    /// Only a file can be made longer.
    #[error(
        "{path} has {} and cannot be grown to {}: {why}",
        Bytes(*.size_bytes),
        Bytes(*.asked_bytes)
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// What it has, bytes.
        size_bytes: u64,
        /// What was asked for, bytes.
        asked_bytes: u64,
        /// Why.
        why: &'static str,
    },
    /// The kernel refused.
    #[error("cannot grow {path}: {source}")]
    Os {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: Errno,
    },
    /// No memory for a larger RAM disk.
    #[error("cannot grow a RAM disk: {0}")]
    Memory(#[from] MapError),
    /// Files there are no longer than that, or this process may make none so long.
    #[error("{path} cannot have {}: {why}", Bytes(*.asked_bytes))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What was asked for, bytes.
        asked_bytes: u64,
        /// Why.
        why: &'static str,
    },
}

/// Who has it, and what to do about it.
fn in_use(holder: Holder, is_marked: bool) -> String {
    match holder {
        Holder::Living(pid) if is_marked && !holder.is_this_process() => format!(
            "process {pid} holds it; data was lost in it that could not be made stable, so a daemon keeps it until \
             somebody has checked its data and says `sidecore disk clear` at that one"
        ),
        holder if is_marked && !holder.is_this_process() => format!(
            "{holder}; data was lost in it that could not be made stable, and a daemon that has it keeps it until \
             somebody has checked its data and says `sidecore disk clear` at that one"
        ),
        holder => holder.to_string(),
    }
}
