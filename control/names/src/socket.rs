//! Unix sockets by name: where one is made, what is there already, and what is connected to.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, fstat, unlinkat};
use rustix::io::Errno;

use crate::file::describe;
use crate::walk::{Folder, Found, Owner, Place, kind_of};
use crate::{Purpose, Refused};

/// A name at which a socket of the daemon's is, or is to be. Its folder stays the same one, whatever is
/// renamed meanwhile.
#[derive(Debug)]
pub struct SocketPlace {
    folder: Folder,
    name: OsString,
    path: PathBuf,
}

/// A socket that was found. It stays the same one, whatever has its name by now.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

impl SocketPlace {
    /// The place at `path`. Makes its folder, if that is missing and to be in none of another user.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn make(path: &Path, purpose: Purpose) -> Result<SocketPlace, Refused> {
        SocketPlace::of(path, |folder| Folder::make(folder, purpose))
    }

    /// The same, if its folder is there.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn find(path: &Path, purpose: Purpose) -> Result<SocketPlace, Refused> {
        SocketPlace::of(path, |folder| Folder::find(folder, purpose))
    }

    fn of(
        path: &Path,
        folder: impl FnOnce(&Path) -> Result<Folder, Refused>,
    ) -> Result<SocketPlace, Refused> {
        let (above, name) = path
            .parent()
            .zip(path.file_name())
            .ok_or_else(|| Refused::Os { step: path.to_path_buf(), source: Errno::INVAL })?;
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let (folder, name) = (folder(above)?, name.to_os_string());
        Ok(SocketPlace { folder, name, path: path.to_path_buf() })
    }

    /// The address to bind to: the path, as long as nobody else can make it lead elsewhere.
    pub fn address(&self) -> PathBuf {
        match self.folder.owner {
            Owner::Ours => self.path.clone(),
            Owner::User(_) => {
                let folder = format!("/proc/self/fd/{}", self.folder.fd.as_fd().as_raw_fd());
                Path::new(&folder).join(&self.name)
            }
        }
    }

    /// Its folder, open as a place only.
    pub fn folder(&self) -> BorrowedFd<'_> {
        self.folder.fd.as_fd()
    }

    /// The path of its folder, without links.
    pub fn real_folder(&self) -> &Path {
        &self.folder.real
    }

    /// That nobody but root and the daemon's user can put a name there, or lead the way elsewhere: so what has
    /// the name is what the daemon has put there.
    ///
    /// # Errors
    /// [`Refused::Foreign`] and [`Refused::Writable`].
    pub fn check_ours(&self) -> Result<(), Refused> {
        let Folder { fd, real, owner, is_shared, .. } = &self.folder;
        if let Owner::User(uid) = *owner {
            return Err(Refused::Foreign { step: real.clone(), uid, purpose: Purpose::Socket });
        }
        if *is_shared {
            let stat = fstat(fd).map_err(self.folder.os(&self.name))?;
            return Err(Refused::Writable { step: real.clone(), mode: stat.st_mode & 0o7777 });
        }
        Ok(())
    }

    /// The socket that is there already; nothing, if nothing is.
    ///
    /// # Errors
    /// [`Refused::Kind`] when something else is there, links too.
    pub fn taken(&self) -> Result<Option<Socket>, Refused> {
        let Some(found) = self.folder.look(&self.name)? else { return Ok(None) };
        let step = self.folder.real.join(&self.name);
        only_socket(&found, step).map(|()| Some(Socket { fd: found.fd }))
    }

    /// Removes the socket that is there, if one is. Nothing else is removed, unless the folder's own user puts it
    /// there at this moment: then it is that user's.
    ///
    /// # Errors
    /// As [`Self::taken`], and the kernel's word.
    pub fn remove(&self) -> Result<(), Refused> {
        if self.taken()?.is_none() {
            return Ok(());
        }
        match unlinkat(&self.folder.fd, &self.name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.map_err(self.folder.os(&self.name)),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// The socket at `path`, on which somebody else listens: of a VMM. In a folder of another user it is that
    /// user's own; links of users are not followed.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn find(path: &Path) -> Result<Socket, Refused> {
        let place = Place::find(path, Purpose::Socket)?;
        let Some(found) = &place.found else { return Err(place.os()(Errno::NOENT)) };
        only_socket(found, place.real())?;
        place.folder.check(&place.name, found)?;
        Ok(Socket { fd: found.fd.try_clone().map_err(|_| place.os()(Errno::MFILE))? })
    }

    /// The address to connect to: of this very socket. To be used while `self` lives.
    pub fn address(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_fd().as_raw_fd()))
    }
}

fn only_socket(found: &Found, step: PathBuf) -> Result<(), Refused> {
    match kind_of(&found.stat) {
        FileType::Socket => Ok(()),
        kind => Err(Refused::Kind { step, is: describe(kind), wanted: "a socket" }),
    }
}
