//! Files that are opened by name: images, and small texts.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom, accessat,
    fcntl_lock, flock, fstat, fstatfs, fstatvfs, fsync, open, openat, renameat_with, seek, statat,
    syncfs, unlinkat,
};
use rustix::io::Errno;

use crate::kept::sync_folder;
use crate::walk::{Folder, Found, Owner, Place, is_ours, kind_of};
use crate::{Purpose, Refused, devices};

/// File systems whose files are the kernel's own words (linux/magic.h, and the sources of those that are
/// not there): to read or write one is to ask or tell the kernel something.
const PSEUDO: &[u32] = &[
    0x9fa0,      // proc
    0x9fa2,      // usbdevfs
    0x1cd1,      // devpts
    0x6265_6572, // sysfs
    0x6265_6570, // configfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0x4249_4e4d, // binfmt_misc
    0x6573_5543, // fusectl
    0x1980_0202, // mqueue
    0x0765_5821, // resctrl
    0x6c6f_6f70, // binderfs
    0x6e73_6673, // nsfs
    0xabba_1974, // xenfs
];
/// Of files that are made.
pub(crate) const FILE_MODE: u32 = 0o600;
/// Of what the kernel says of itself: lists of mounts and locks may be long.
const KERNEL_TEXT_BYTES_MAX: u64 = 16 << 20;
/// How often another file may be made or removed between two looks at a name.
const CHANGED_MAX: u32 = 8;

/// What lies at the name of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// A regular file.
    File {
        /// It is in a folder of another user than root and the daemon's.
        is_users: bool,
    },
    /// A block device.
    Block,
}

/// Opens the image at `path` with `access` (an access mode, and `O_DIRECT`, `O_EXCL` or `O_PATH`).
/// Does not wait for a FIFO or a lease: `EAGAIN` says that another process has a lease on it.
///
/// # Errors
/// [`Refused`]; `ENOENT` when it is missing.
pub fn open_image(path: &Path, user_folder: bool, access: OFlags) -> Result<OwnedFd, Refused> {
    let place = Place::find(path, Purpose::Image { user_folder })?;
    open_found(&place, access)?.ok_or_else(|| place.os()(Errno::NOENT))
}

/// The same; one that is missing is made, of mode 0600 and empty, in its folder and never through a link that others
/// made. Whether it was made is told, too.
///
/// # Errors
/// [`Refused`].
pub fn open_or_make_image(
    path: &Path,
    user_folder: bool,
    access: OFlags,
) -> Result<(OwnedFd, bool), Refused> {
    let purpose = Purpose::Image { user_folder };
    for _ in 0..CHANGED_MAX {
        let place = Place::find(path, purpose).map_err(|why| devices::named(why, purpose))?;
        if let Some(opened) = open_found(&place, access)? {
            return Ok((opened, false));
        }
        if let Owner::User(owner) = place.folder.owner {
            return Err(Refused::NotMade { step: place.real(), owner });
        }
        devices::refuse(&place.folder, &place.real(), purpose)?;
        refuse_pseudo(place.folder.fd.as_fd(), place.real())?;
        let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | QUIET;
        match openat(&place.folder.fd, &place.name, flags, Mode::from_raw_mode(FILE_MODE)) {
            Err(Errno::EXIST) => continue,
            made => return made.map(|made| (made, true)).map_err(|why| not_made(&place, why)),
        }
    }
    Err(Refused::Os { step: path.to_path_buf(), source: Errno::STALE })
}

fn open_found(place: &Place, access: OFlags) -> Result<Option<OwnedFd>, Refused> {
    let Some(found) = &place.found else { return Ok(None) };
    check_image(place, found)?;
    reopen(found.fd.as_fd(), access).map(Some).map_err(place.os())
}

/// Has the image at `path`, which [`open_or_make_image`] made, survive a power cut: what it is, and its name. Waits for
/// its file system.
///
/// # Errors
/// [`Refused`]; nobody knows what a power cut leaves.
pub fn sync_image(path: &Path, user_folder: bool) -> Result<(), Refused> {
    let place = Place::find(path, Purpose::Image { user_folder })?;
    let image = open_found(&place, OFlags::RDONLY)?.ok_or_else(|| place.os()(Errno::NOENT))?;
    fsync(&image).map_err(place.os())?;
    match sync_folder(&place.folder) {
        // A file system that knows of no such thing, as some in user space and on other machines.
        Err(refused) if refused.errno() == Some(Errno::INVAL) => Ok(()),
        // A folder that may be written and not be read is written out with all else.
        Err(refused) if refused.errno() == Some(Errno::ACCESS) => {
            syncfs(&image).map_err(place.os())
        }
        synced => synced,
    }
}

/// Removes the image at `path` that [`open_or_make_image`] made, whose device and number are `file`, unless somebody
/// else has it by now: it is another one, has another name, is locked as a whole or in part, or may hold something.
/// Whether it is gone. Its locks are held meanwhile, so that nobody who takes them loses what he writes.
///
/// # Errors
/// [`Refused`]; it is still there.
pub fn unmake_image(path: &Path, user_folder: bool, file: (u64, u64)) -> Result<bool, Refused> {
    let place = Place::find(path, Purpose::Image { user_folder })?;
    let Some(image) = open_found(&place, OFlags::RDWR)? else { return Ok(false) };
    // Of both kinds: QEMU and others lock bytes.
    for lock in [flock, fcntl_lock] {
        match lock(image.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN | Errno::ACCESS) => return Ok(false),
            // A file system without such locks has nobody who holds one.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => {}
            locked => locked.map_err(place.os())?,
        }
    }
    let stat = fstat(&image).map_err(place.os())?;
    let is_it = (stat.st_dev, stat.st_ino) == file && stat.st_nlink == 1;
    // A file system that cannot tell says that all of it is data.
    let is_blank = seek(&image, SeekFrom::Data(0)) == Err(Errno::NXIO);
    if !(is_it && is_blank) {
        return Ok(false);
    }
    unlink_if(&place, file)
}

/// Unlinks what has a name, if it is `file`. What was put there a moment ago is put back: it is looked at under a name
/// that nobody else uses.
fn unlink_if(place: &Place, file: (u64, u64)) -> Result<bool, Refused> {
    let (folder, name) = (&place.folder.fd, &place.name);
    let mut aside = OsString::from(".");
    aside.push(name);
    aside.push(".unmade");
    let swap =
        |from: &OsStr, to: &OsStr| renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE);
    match swap(name, &aside) {
        // It is gone, or is not to be told from what may come: it stays.
        Err(Errno::NOENT | Errno::EXIST | Errno::INVAL | Errno::NAMETOOLONG) => return Ok(false),
        moved => moved.map_err(place.os())?,
    }
    let stat = statat(folder, &aside, AtFlags::SYMLINK_NOFOLLOW).map_err(place.os())?;
    if (stat.st_dev, stat.st_ino) != file {
        return swap(&aside, name).map(|()| false).map_err(place.os());
    }
    unlinkat(folder, &aside, AtFlags::empty()).map(|()| true).map_err(place.os())
}

/// How many bytes the file system has, used or free, in which [`open_or_make_image`] could make an image at a name where
/// nothing is; nothing, where it does not say. Nothing is made.
///
/// # Errors
/// As [`open_or_make_image`].
pub fn can_make_image(path: &Path, user_folder: bool) -> Result<Option<u64>, Refused> {
    let purpose = Purpose::Image { user_folder };
    let place = Place::find(path, purpose).map_err(|why| devices::named(why, purpose))?;
    if let Owner::User(owner) = place.folder.owner {
        return Err(Refused::NotMade { step: place.real(), owner });
    }
    devices::refuse(&place.folder, &place.real(), purpose)?;
    refuse_pseudo(place.folder.fd.as_fd(), place.real())?;
    let no_new = |source| Refused::NoNew { step: place.real(), source };
    let folder = place.folder.fd.as_fd();
    // It knows of a file system that is only read, and of a folder that nobody may change (`chattr +i`).
    let access = Access::WRITE_OK | Access::EXEC_OK;
    accessat(folder, ".", access, AtFlags::EACCESS).map_err(no_new)?;
    let room = fstatvfs(folder).map_err(place.os())?;
    // An image is sparse: it takes a file, and blocks when they are written.
    if room.f_files > 0 && room.f_favail == 0 {
        return Err(no_new(Errno::NOSPC));
    }
    Ok(Some(room.f_blocks.saturating_mul(room.f_frsize)).filter(|bytes| *bytes > 0))
}

/// Why an image was not made, where its folder is the reason.
fn not_made(place: &Place, source: Errno) -> Refused {
    match source {
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NOSPC | Errno::DQUOT => {
            Refused::NoNew { step: place.real(), source }
        }
        source => place.os()(source),
    }
}

/// What lies at the name of an image; nothing, if nothing does. Opens nothing.
///
/// # Errors
/// [`Refused`], as [`open_image`] says it.
pub fn kind_of_image(path: &Path, user_folder: bool) -> Result<Option<ImageKind>, Refused> {
    let place = match Place::find(path, Purpose::Image { user_folder }) {
        Err(error) if error.is_missing() => return Ok(None),
        place => place?,
    };
    let Some(found) = &place.found else { return Ok(None) };
    check_image(&place, found)?;
    let is_users = place.folder.owner != Owner::Ours;
    Ok(Some(match kind_of(&found.stat) {
        FileType::BlockDevice => ImageKind::Block,
        _ => ImageKind::File { is_users },
    }))
}

/// A small file of the daemon's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnText {
    /// What is in it.
    pub text: String,
    /// Its permissions.
    pub mode: u32,
    /// Its user.
    pub uid: u32,
}

/// A text of `bytes_max` bytes at most in the file at `path`, of the daemon's own.
///
/// # Errors
/// [`Refused`]: a step that others could change, a file that is not root's or the daemon's user's, another kind,
/// or a longer one.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<OwnText, Refused> {
    let place = Place::find(path, Purpose::Own)?;
    let Some(found) = &place.found else { return Err(place.os()(Errno::NOENT)) };
    let text = read_found(&place.folder, &place.name, found, bytes_max)?;
    Ok(OwnText { text, mode: found.stat.st_mode & 0o7777, uid: found.stat.st_uid })
}

/// That nobody but root and this process's user can change the file at `path`, or put another one there.
///
/// # Errors
/// [`Refused`]: who else could, or what is there instead of a file.
pub fn look_at_own(path: &Path) -> Result<(), Refused> {
    let place = Place::find(path, Purpose::Own)?;
    let Some(found) = &place.found else { return Err(place.os()(Errno::NOENT)) };
    check_own(&place.folder, &place.name, found)?;
    match found.stat.st_mode & 0o7777 {
        mode if mode & 0o022 != 0 => Err(Refused::Writable { step: place.real(), mode }),
        _ => Ok(()),
    }
}

/// A text of the kernel's own: the file at a path in `/proc` or `/sys`, of 16 MiB at most. What follows is lost.
///
/// # Errors
/// The kernel's word; `InvalidInput`: the path is no such one, or goes up.
pub fn kernel_text(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref();
    let is_kernels = path.starts_with("/proc") || path.starts_with("/sys");
    if !is_kernels || path.components().any(|part| part == Component::ParentDir) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    File::open(path)?.take(KERNEL_TEXT_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

pub(crate) fn read_found(
    folder: &Folder,
    name: &OsStr,
    found: &Found,
    bytes_max: u64,
) -> Result<String, Refused> {
    let step = || folder.real.join(name);
    check_own(folder, name, found)?;
    refuse_pseudo(found.fd.as_fd(), step())?;
    let file = reopen(found.fd.as_fd(), OFlags::RDONLY).map_err(folder.os(name))?;
    let mut bytes = Vec::new();
    let read = File::from(file).take(bytes_max.saturating_add(1)).read_to_end(&mut bytes);
    let read =
        read.map_err(|error| folder.os(name)(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    if read as u64 > bytes_max {
        return Err(Refused::TooLong { step: step(), bytes_max });
    }
    String::from_utf8(bytes).map_err(|_| Refused::NoText { step: step() })
}

/// That a file is the daemon's own: a regular one, which root or the daemon's user has.
pub(crate) fn check_own(folder: &Folder, name: &OsStr, found: &Found) -> Result<(), Refused> {
    let step = || folder.real.join(name);
    if kind_of(&found.stat) != FileType::RegularFile {
        let is = describe(kind_of(&found.stat));
        return Err(Refused::Kind { step: step(), is, wanted: "a file" });
    }
    folder.check(name, found)?;
    match found.stat.st_uid {
        uid if is_ours(uid) => Ok(()),
        uid => Err(Refused::Foreign { step: step(), uid, purpose: Purpose::Own }),
    }
}

fn check_image(place: &Place, found: &Found) -> Result<(), Refused> {
    let wanted = match place.folder.owner {
        Owner::Ours => "a file or block device",
        // Whoever may make a device there is root.
        Owner::User(_) => "a file",
    };
    let kind = kind_of(&found.stat);
    let is_block = kind == FileType::BlockDevice && place.folder.owner == Owner::Ours;
    if !(is_block || kind == FileType::RegularFile) {
        return Err(Refused::Kind { step: place.real(), is: describe(kind), wanted });
    }
    place.folder.check(&place.name, found)?;
    if kind == FileType::RegularFile {
        refuse_pseudo(found.fd.as_fd(), place.real())?;
    }
    Ok(())
}

fn refuse_pseudo(fd: BorrowedFd<'_>, step: PathBuf) -> Result<(), Refused> {
    match fstatfs(fd) {
        Ok(fs) if PSEUDO.contains(&(fs.f_type as u64 as u32)) => Err(Refused::Pseudo { step }),
        Ok(_) => Ok(()),
        Err(source) => Err(Refused::Os { step, source }),
    }
}

/// What keeps an open from waiting, and a terminal from becoming ours.
const QUIET: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// What was found, opened: the same file, whatever has its name now.
fn reopen(found: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, Errno> {
    if access.contains(OFlags::PATH) {
        return rustix::io::fcntl_dupfd_cloexec(found, 0);
    }
    let place = format!("/proc/self/fd/{}", found.as_raw_fd());
    open(place, access | QUIET, Mode::empty())
}

pub(crate) fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a folder",
        FileType::Symlink => "a link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        _ => "of unknown kind",
    }
}
