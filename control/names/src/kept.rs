//! The small files of one folder of the daemon's own: read whole, and replaced whole.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, accessat, flock, fstatvfs, fsync,
    open, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::file::{FILE_MODE, check_own, read_found};
use crate::walk::{Folder, Found, kind_of};
use crate::{Purpose, Refused, devices};

/// A folder of the daemon's own, which is walked to anew for each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    folder: PathBuf,
    /// Longest file that is read, bytes.
    bytes_max: u64,
}

impl Kept {
    /// The files in `folder`, none of which has more than `bytes_max` bytes.
    pub fn in_folder(folder: impl Into<PathBuf>, bytes_max: u64) -> Kept {
        Kept { folder: folder.into(), bytes_max }
    }

    /// Where file `name` is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The names of all that is in it, and when each was written last, seconds since 1970 (0: the file system does not
    /// say); nothing, if there is no such folder.
    ///
    /// # Errors
    /// What the file system said, or [`Refused`].
    pub fn names(&self) -> io::Result<Vec<(String, i64)>> {
        let folder = match Folder::find(&self.folder, Purpose::Own) {
            Err(error) if error.is_missing() => return Ok(Vec::new()),
            folder => folder?,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(&folder.fd, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            match statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => names.push((name.to_string(), stat.st_mtime)),
                // It has gone meanwhile.
                Err(Errno::NOENT) => {}
                // Whoever reads it is told why.
                Err(_) => names.push((name.to_string(), 0)),
            }
        }
        Ok(names)
    }

    /// The text of file `name`; nothing, if there is none.
    ///
    /// # Errors
    /// What the file system said, or [`Refused`]: others could have made it, it is too long, or no file.
    pub fn read(&self, name: &str) -> io::Result<Option<String>> {
        let folder = match Folder::find(&self.folder, Purpose::Own) {
            Err(error) if error.is_missing() => return Ok(None),
            folder => folder?,
        };
        let name = OsStr::new(name);
        match folder.look(name)? {
            None => Ok(None),
            Some(found) => Ok(Some(read_found(&folder, name, &found, self.bytes_max)?)),
        }
    }

    /// Replaces file `name` by one with `text`. Whoever reads it finds the one or the other, whole.
    ///
    /// # Errors
    /// What the file system said, or [`Refused`]; the file is as it was.
    pub fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        self.put(name, text, false)
    }

    /// The same; when it returns, the text survives a power cut.
    ///
    /// # Errors
    /// As [`Self::replace`]; after an error the new one may be there.
    pub fn replace_for_good(&self, name: &str, text: &str) -> io::Result<()> {
        self.put(name, text, true)
    }

    fn put(&self, name: &str, text: &str, for_good: bool) -> io::Result<()> {
        let folder = to_keep_in(&self.folder)?;
        let (next, name) = (OsString::from(format!(".{name}.new")), OsStr::new(name));
        // One that an earlier process did not finish; and that it is a name.
        if folder.look(&next)?.is_some() {
            unlinkat(&folder.fd, &next, AtFlags::empty()).map_err(folder.os(&next))?;
        }
        let made = make(&folder, &next).map_err(folder.os(&next))?;
        let mut file = File::from(made);
        let put = file
            .write_all(text.as_bytes())
            .and_then(|()| if for_good { file.sync_all() } else { Ok(()) })
            .and_then(|()| Ok(renameat(&folder.fd, &next, &folder.fd, name)?));
        if let Err(error) = put {
            let _ = unlinkat(&folder.fd, &next, AtFlags::empty());
            return Err(error);
        }
        if !for_good {
            return Ok(());
        }
        sync_folder(&folder)?;
        // It may be new as well. What is above need not be readable: a daemon with `image_folders` has given it up.
        let above = self.folder.parent().map(|above| Folder::find(above, Purpose::Own));
        match above.map(|above| sync_folder(&above?)) {
            Some(Err(refused)) if refused.errno() != Some(Errno::ACCESS) => Err(refused.into()),
            _ => Ok(()),
        }
    }

    /// That this process can keep files there, as far as a look tells: nothing is written, and a folder that is missing can
    /// be made.
    ///
    /// # Errors
    /// [`Refused`]: others could change what is there, this process may not write, or there is no room.
    pub fn look(&self) -> Result<(), Refused> {
        let folder = nearest(&self.folder, Purpose::Own)?;
        devices::refuse(&folder, &self.folder, Purpose::Own)?;
        let os = |source| Refused::Os { step: folder.real.clone(), source };
        let room = fstatvfs(&folder.fd).map_err(os)?;
        // Where the file system counts neither blocks nor files there is no bound.
        let is_full = room.f_blocks > 0 && room.f_bavail == 0;
        let has_no_files = room.f_files > 0 && room.f_favail == 0;
        if is_full || has_no_files { Err(os(Errno::NOSPC)) } else { Ok(()) }
    }

    /// Whether this process can keep nothing there: it may not write to the folder, or not even find it.
    pub fn is_closed(&self) -> bool {
        let may_write =
            |folder: Folder| accessat(&folder.fd, ".", Access::WRITE_OK, AtFlags::EACCESS).is_ok();
        !Folder::find(&self.folder, Purpose::Own).is_ok_and(may_write)
    }

    /// Takes the lock of file `name`, which is made if it is missing, and writes `text` into it: who has it. It is
    /// another's as long as the descriptor is open anywhere. Does not wait.
    ///
    /// # Errors
    /// What the file system said, or [`Refused`]: nothing is known of the lock then.
    pub fn lock(&self, name: &str, text: &str) -> io::Result<Locking> {
        let folder = to_keep_in(&self.folder)?;
        let name = OsStr::new(name);
        let mut found = folder.look(name)?;
        if found.is_none() {
            // Whoever makes it meanwhile makes the same.
            match make(&folder, name) {
                Ok(_) | Err(Errno::EXIST) => {}
                Err(error) => return Err(folder.os(name)(error).into()),
            }
            found = folder.look(name)?;
        }
        let found = found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let file = File::from(open_own(&folder, name, &found, OFlags::RDWR)?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(Locking::Held(first_line(&file))),
            Err(error) => return Err(folder.os(name)(error).into()),
        }
        // That it is held is what counts. A full file system keeps what the one before wrote.
        let _ = file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
        Ok(Locking::Taken(file.into()))
    }

    /// Device and number of file `name`, which are those of no other while it is open; nothing, if there is none.
    ///
    /// # Errors
    /// What the file system said, or [`Refused`].
    pub fn file_id(&self, name: &str) -> io::Result<Option<(u64, u64)>> {
        let folder = match Folder::find(&self.folder, Purpose::Own) {
            Err(error) if error.is_missing() => return Ok(None),
            folder => folder?,
        };
        Ok(folder.look(OsStr::new(name))?.map(|found| (found.stat.st_dev, found.stat.st_ino)))
    }

    /// The file of a lock, to be looked at, and what its holder has written, or the one before; nothing, if there is none.
    /// No lock is taken.
    ///
    /// # Errors
    /// What the file system said, or [`Refused`].
    pub fn look_at_lock(&self, name: &str) -> io::Result<Option<(OwnedFd, String)>> {
        let folder = match Folder::find(&self.folder, Purpose::Own) {
            Err(error) if error.is_missing() => return Ok(None),
            folder => folder?,
        };
        let name = OsStr::new(name);
        let Some(found) = folder.look(name)? else { return Ok(None) };
        let file = File::from(open_own(&folder, name, &found, OFlags::RDONLY)?);
        let words = first_line(&file);
        Ok(Some((file.into(), words)))
    }

    /// Writes `text` over the first bytes of file `name`, which is made if it is missing, and syncs both: for a
    /// folder in which nothing may be renamed. What follows in the file stays.
    ///
    /// # Errors
    /// What the file system said, or [`Refused`]; what was there may still be.
    pub fn overwrite(&self, name: &str, text: &str) -> io::Result<()> {
        let folder = to_keep_in(&self.folder)?;
        let name = OsStr::new(name);
        let (file, is_new) = match folder.look(name)? {
            Some(found) => (open_own(&folder, name, &found, OFlags::WRONLY)?, false),
            None => (make(&folder, name).map_err(folder.os(name))?, true),
        };
        let file = File::from(file);
        file.write_all_at(text.as_bytes(), 0)?;
        file.sync_all()?;
        if is_new { Ok(sync_folder(&folder)?) } else { Ok(()) }
    }

    /// Removes file `name`, if there is one.
    ///
    /// # Errors
    /// What the file system said, or [`Refused`]; it is still there.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let folder = match Folder::find(&self.folder, Purpose::Own) {
            Err(error) if error.is_missing() => return Ok(()),
            folder => folder?,
        };
        let name = OsStr::new(name);
        let Some(found) = folder.look(name)? else { return Ok(()) };
        if kind_of(&found.stat) == FileType::Directory {
            return Err(folder.os(name)(Errno::ISDIR).into());
        }
        match unlinkat(&folder.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed.map_err(folder.os(name))?),
        }
    }
}

/// Makes the folder at `path`, in which files are to be kept, and what is missing on the way, and says where it is without
/// links. Nothing is made in a folder of another user than root and the daemon's.
///
/// # Errors
/// [`Refused`]: a step that others could change, or the kernel's word.
pub fn make_folder(path: &Path) -> Result<PathBuf, Refused> {
    to_keep_in(path).map(|folder| folder.real)
}

/// That this process may make names in `folder`, as far as a look tells: nothing is changed, and a folder that is missing
/// can be made.
///
/// # Errors
/// [`Refused`]: others could change what is there, or this process may not write.
pub fn may_make_in(folder: &Path, purpose: Purpose) -> Result<(), Refused> {
    nearest(folder, purpose).map(drop)
}

/// That folder, or the first one above it that is there, in which this process may make names.
fn nearest(folder: &Path, purpose: Purpose) -> Result<Folder, Refused> {
    let folder = there(folder, purpose)?;
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let allowed = accessat(&folder.fd, ".", access, AtFlags::EACCESS);
    allowed.map_err(|source| Refused::Os { step: folder.real.clone(), source })?;
    Ok(folder)
}

/// The same, whoever may make names in it.
fn there(folder: &Path, purpose: Purpose) -> Result<Folder, Refused> {
    let mut path = folder;
    loop {
        match (Folder::find(path, purpose), path.parent()) {
            (Err(refused), Some(above)) if refused.is_missing() => path = above,
            (folder, _) => return folder,
        }
    }
}

/// The folder at `path`, made if it is missing, if files may be made there.
fn to_keep_in(path: &Path) -> Result<Folder, Refused> {
    devices::refuse(&there(path, Purpose::Own)?, path, Purpose::Own)?;
    Folder::make(path, Purpose::Own)
}

/// What became of [`Kept::lock`].
#[derive(Debug)]
pub enum Locking {
    /// It is ours until this is closed.
    Taken(OwnedFd),
    /// It is another's, who has written this.
    Held(String),
}

/// Longest line that is read of a lock's holder, bytes.
const HOLDER_BYTES_MAX: usize = 200;

/// What the holder of a lock has written; what is no text of one line is left out.
fn first_line(file: &File) -> String {
    let mut bytes = [0; HOLDER_BYTES_MAX];
    let len = file.read_at(&mut bytes, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..len]);
    text.lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect()
}

/// The file that was found, whatever has its name now.
fn open_own(
    folder: &Folder,
    name: &OsStr,
    found: &Found,
    access: OFlags,
) -> Result<OwnedFd, Refused> {
    check_own(folder, name, found)?;
    let place = format!("/proc/self/fd/{}", found.fd.as_fd().as_raw_fd());
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
    open(place, flags, Mode::empty()).map_err(folder.os(name))
}

fn make(folder: &Folder, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(&folder.fd, name, flags, Mode::from_raw_mode(FILE_MODE))
}

/// Has the names in a folder survive a power cut.
pub(crate) fn sync_folder(folder: &Folder) -> Result<(), Refused> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(&folder.fd, ".", flags, Mode::empty());
    opened.and_then(fsync).map_err(|source| Refused::Os { step: folder.real.clone(), source })
}

#[cfg(test)]
mod tests;
