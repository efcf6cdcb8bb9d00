//! The fence: locks that the kernel drops only with the last request in flight.
//!
//! A request outlives its process: it lands when the device gets to it, perhaps after a newer one of
//! a successor (docs/decisions/0005, "The fence"). So a file is used only while locks of its *open
//! file descriptions* are held, which the requests in flight keep alive.
//!
//! Two kinds, because a file may have two descriptions and two exclusive `flock` refuse each other:
//! `flock` on the one through the page cache; the byte lock (`F_OFD_SETLK`) on the one past it, or on
//! the same one where there is no other. Each kind keeps out another sidecore; the byte lock also
//! QEMU and others that lock bytes.
//!
//! Not here: who holds a lock that was refused (`holder`). Called by `open`.

use std::os::fd::BorrowedFd;

use rustix::fs::{FlockOperation, flock, fstatfs};
use rustix::io::Errno;

use super::holder::{Kind, has_flock_against, holder_of, is_seen_with_bytes, marker_of};
use crate::Holder;
use crate::sys;

/// File systems that ask another for their locks (linux/magic.h, fs/smb/client/cifsglob.h): NFS, SMB,
/// CIFS, SMB 2 and 9P make `flock` of byte locks, so that the two kinds collide; FUSE and Ceph may not
/// give a byte lock back with its description.
const ASKING_MAGIC: [u32; 7] =
    [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x6573_5546, 0x00c3_6400];

/// Last byte of the second lock. All that a file can have but one, so that `/proc/locks` tells this
/// lock (`0 9223372036854775806`) from the whole-file lock of another program (`0 EOF`).
pub(super) const LAST_BYTE: i64 = i64::MAX - 1;
const ALL: (i64, i64) = (0, LAST_BYTE + 1);
/// The byte that is left: locked by whoever has the image, and has given up the two locks until what a process that died
/// had in flight has landed. No request is made by its description.
pub(super) const OWNERS_BYTE: i64 = i64::MAX;
const OWNERS: (i64, i64) = (OWNERS_BYTE, 1);
/// What the description through the page cache has of the second lock while the image is given up: requests by that one
/// are waited for by it, too.
pub(super) const CACHED_BYTE: i64 = LAST_BYTE;
const CACHED: (i64, i64) = (CACHED_BYTE, 1);

/// Why a lock was not taken.
#[derive(Debug)]
pub(super) enum Refused {
    /// Somebody holds it.
    Held {
        holder: Holder,
        /// As of [`crate::OpenError::Held`].
        may_land: bool,
    },
    /// The file system has no locks, or the like.
    Os(Errno),
}

/// Whether a file on this file system has one description and one lock.
pub(super) fn one_lock_only(fd: BorrowedFd<'_>) -> bool {
    fstatfs(fd).is_ok_and(|fs| asks_another(fs.f_type as u32))
}

fn asks_another(magic: u32) -> bool {
    ASKING_MAGIC.contains(&magic)
}

/// The first lock, to be asked for before anything of the file is changed.
pub(super) fn lock_file(fd: BorrowedFd<'_>, exclusive: bool) -> Result<(), Refused> {
    let operation = if exclusive {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    taken(flock(fd, operation), fd, Kind::Flock)
}

/// The second. A file system that has only the first kind is content with it.
pub(super) fn lock_bytes(fd: BorrowedFd<'_>, exclusive: bool) -> Result<(), Refused> {
    match sys::lock_bytes(fd, exclusive, ALL) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => Ok(()),
        result => taken(result, fd, Kind::Bytes),
    }
}

/// Has `anchor`, by which nobody asks for anything, keep a file whose descriptions are about to be closed: no sidecore takes
/// it meanwhile, and nobody who sleeps for the first lock gets that. `direct` is the other description of one that is
/// written, if it has another.
///
/// # Errors
/// Somebody may have it before it is opened again: the file system has no such locks, or somebody has that very byte.
pub(super) fn keep(
    anchor: BorrowedFd<'_>,
    cached: BorrowedFd<'_>,
    direct: Option<BorrowedFd<'_>>,
    exclusive: bool,
) -> Result<(), Errno> {
    if exclusive {
        // One that is open to be read has no exclusive lock of bytes; a shared one does, since nobody else may have that.
        let owned = sys::lock_bytes(anchor, true, OWNERS);
        owned.or_else(|_| sys::lock_bytes(anchor, false, OWNERS))?;
        if let Some(direct) = direct {
            sys::unlock_bytes(direct, CACHED)?;
            sys::lock_bytes(cached, true, CACHED)?;
        }
        // In one step, as the kernel does it: who sleeps for it sleeps on. What is under way is told by the second from here.
        flock(cached, FlockOperation::NonBlockingLockShared)?;
    }
    flock(anchor, FlockOperation::NonBlockingLockShared)
}

/// Has `fd` have the first lock alone, which it and `anchor` have shared, when it has the second.
pub(super) fn take_over(anchor: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<(), Refused> {
    let _ = flock(anchor, FlockOperation::Unlock);
    let locked = lock_file(fd, true);
    if locked.is_err() {
        // Who was refused has lost what it had.
        let _ = flock(anchor, FlockOperation::NonBlockingLockShared);
    }
    locked
}

/// Who has the image that `fd` is to be locked on, though the two locks may be free at the moment.
pub(super) fn owned_by(fd: BorrowedFd<'_>) -> Option<Refused> {
    // Who locks the whole file keeps everybody from the second lock, too. That of a device is a shared one.
    let is_owned = sys::lock_against(fd, true, OWNERS).is_ok_and(|at| at == Some(OWNERS_BYTE));
    is_owned.then(|| Refused::Held { holder: keeper_of(fd, Kind::Owner), may_land: true })
}

/// Has `fd`, which has shared locks alone, keep one byte of the second lock and no more: as long as some description has
/// that, requests by this one may be under way.
pub(super) fn mark(fd: BorrowedFd<'_>, byte: u64) -> Result<(), Errno> {
    let byte = i64::try_from(byte).map_err(|_| Errno::OVERFLOW)?;
    sys::lock_bytes(fd, false, (byte, 1))?;
    // Who would write to it is kept out by that byte, too.
    sys::unlock_bytes(fd, (0, byte))?;
    sys::unlock_bytes(fd, (byte + 1, 0))
}

/// Whether a description of the file of `fd` is [marked](mark) so: then what a process that has died had in flight has not
/// landed, or somebody who may read the file keeps that byte.
pub(super) fn marked(fd: BorrowedFd<'_>, byte: u64) -> Option<Refused> {
    marker_of(fd, byte).map(|holder| Refused::Held { holder, may_land: true })
}

/// Who would keep `fd` from its locks if they were asked for now, in the order in which that is done; none is. Of a file
/// system that has one kind only, or does not tell, what it tells.
pub(super) fn kept_by(fd: BorrowedFd<'_>, exclusive: bool) -> Option<Holder> {
    if let Some(Refused::Held { holder, .. }) = owned_by(fd) {
        return Some(holder);
    }
    if has_flock_against(fd, exclusive) {
        return Some(holder_of(fd, Kind::Flock));
    }
    let is_held = sys::lock_against(fd, exclusive, ALL).is_ok_and(|at| at.is_some());
    is_held.then(|| holder_of(fd, Kind::Bytes))
}

fn taken(result: Result<(), Errno>, fd: BorrowedFd<'_>, kind: Kind) -> Result<(), Refused> {
    match result {
        Ok(()) => Ok(()),
        // The same number as EWOULDBLOCK.
        Err(Errno::AGAIN | Errno::ACCESS) => {
            #[cfg(feature = "simulated")]
            if let Some((holder, may_land)) = simulated(fd) {
                return Err(Refused::Held { holder, may_land });
            }
            let holder = holder_of(fd, kind);
            Err(Refused::Held { holder, may_land: kind == Kind::Flock && may_land(fd, holder) })
        }
        Err(error) => Err(Refused::Os(error)),
    }
}

/// Who keeps `fd` from a lock of `kind`, of the machine or of a simulation.
fn keeper_of(fd: BorrowedFd<'_>, kind: Kind) -> Holder {
    #[cfg(feature = "simulated")]
    if let Some((holder, _)) = simulated(fd) {
        return holder;
    }
    holder_of(fd, kind)
}

/// Who keeps it as a simulation has it, in which all are one process.
#[cfg(feature = "simulated")]
fn simulated(fd: BorrowedFd<'_>) -> Option<(Holder, bool)> {
    crate::simulated::here().and_then(|kernel| kernel.holder(fd))
}

/// Whether direct requests of a process that has ended may be under way though somebody who lives has the first lock.
/// Whoever may read the file can have that, between two tries. These keep the second, which no living process can have
/// beside them: the one that is seen to have it is past them.
fn may_land(fd: BorrowedFd<'_>, first: Holder) -> bool {
    let Holder::Living(first) = first else { return true };
    // Where both are of one kind, the first says it all. A shared lock meets an exclusive one alone, such as ours.
    !one_lock_only(fd)
        && sys::lock_against(fd, false, ALL).is_ok_and(|at| at.is_some())
        && !is_seen_with_bytes(fd, first)
}

#[cfg(test)]
mod tests;
