//! The journal's file: appended to and synced, in a folder that one process has at a time.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fsync, ftruncate, mkdirat, openat, unlinkat,
};
use rustix::io::Errno;
use tuning::Trouble;
use tuning::system::JOURNAL_BYTES_MAX;

use crate::netlink::trouble;

/// The folder of the usual one, by its steps from the root.
const FOLDERS: [&str; 3] = ["var", "lib", "sidecore-tune"];
const NAME: &str = "journal";

/// Opens a folder below the root.
type Open<'a> = &'a dyn Fn(&str) -> Result<OwnedFd, Errno>;

/// The journal's file.
#[derive(Debug)]
pub struct JournalFile {
    /// Where it is said to be, if it is not at its usual place.
    said: Option<PathBuf>,
    /// Its folder, once it was locked.
    folder: Option<OwnedFd>,
}

impl JournalFile {
    pub(super) fn new(said: Option<PathBuf>) -> JournalFile {
        JournalFile { said, folder: None }
    }

    /// Its name in its folder.
    fn name(&self) -> Result<String, String> {
        let Some(said) = &self.said else { return Ok(NAME.to_owned()) };
        let name = said.file_name().and_then(|name| name.to_str());
        let named = |name: &str| name.to_owned();
        name.map(named).ok_or_else(|| format!("{}: name a file for the journal", said.display()))
    }

    /// Its folder, as it is; nothing is made.
    fn folder(&self, open: Open<'_>) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match &self.said {
            Some(said) => openat(CWD, folder_of(said), flags, Mode::empty()),
            None => open(&FOLDERS.join("/")),
        }
    }

    /// Makes its folder, if it is the usual one, and locks it.
    pub(super) fn lock(&mut self, open: Open<'_>) -> Result<(), String> {
        self.name()?;
        if self.said.is_none() {
            make_folders(open).map_err(|error| self.unusable(error))?;
        }
        let folder = self.folder(open).map_err(|error| self.unusable(error))?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => self.folder = Some(folder),
            Err(Errno::WOULDBLOCK) => {
                return Err("another sidecore-tune is at work: wait until it has ended".to_owned());
            }
            Err(error) => return Err(self.unusable(error)),
        }
        Ok(())
    }

    fn unusable(&self, error: Errno) -> String {
        let place = match &self.said {
            Some(said) => folder_of(said).display().to_string(),
            None => format!("/{}", FOLDERS.join("/")),
        };
        let error = std::io::Error::from(error);
        format!(
            "the journal's folder {place} cannot be used: {error}; nothing was changed. Name another one with --journal"
        )
    }

    pub(super) fn bytes(&self, open: Open<'_>) -> Result<Vec<u8>, Trouble> {
        let name = self.name().map_err(Trouble::Refused)?;
        let opened = match &self.folder {
            Some(folder) => read(folder, &name),
            None => self.folder(open).and_then(|folder| read(&folder, &name)),
        };
        let file = match opened {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            opened => opened.map_err(trouble)?,
        };
        let mut bytes = Vec::new();
        let read = File::from(file).take(JOURNAL_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| Trouble::Refused(error.to_string()))?;
        if bytes.len() > JOURNAL_BYTES_MAX { Err(Trouble::TooLong) } else { Ok(bytes) }
    }

    /// Its folder and name, for whoever has locked it.
    fn locked(&self) -> Result<(&OwnedFd, String), Trouble> {
        let name = self.name().map_err(Trouble::Refused)?;
        let folder = self.folder.as_ref();
        Ok((folder.ok_or_else(|| Trouble::Refused("is not locked".to_owned()))?, name))
    }

    pub(super) fn note(&self, line: &str) -> Result<(), Trouble> {
        let (folder, name) = self.locked()?;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let file = opened(folder, &name, flags).map_err(trouble)?;
        let mut file = File::from(file);
        file.write_all(line.as_bytes()).map_err(|error| Trouble::Refused(error.to_string()))?;
        fsync(&file).and_then(|()| fsync(folder)).map_err(trouble)
    }

    pub(super) fn cut(&self, length: usize) -> Result<(), Trouble> {
        let (folder, name) = self.locked()?;
        let file = opened(folder, &name, OFlags::WRONLY).map_err(trouble)?;
        ftruncate(&file, length as u64).and_then(|()| fsync(&file)).map_err(trouble)
    }

    pub(super) fn forget(&self) -> Result<(), Trouble> {
        let (folder, name) = self.locked()?;
        match unlinkat(folder, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => fsync(folder).map_err(trouble),
            Err(error) => Err(trouble(error)),
        }
    }
}

fn folder_of(said: &Path) -> &Path {
    said.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn read(folder: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    opened(folder, name, OFlags::RDONLY)
}

/// The file itself: no link is followed, and no pipe waited for.
fn opened(folder: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    openat(folder, name, flags, Mode::from_raw_mode(0o600))
}

fn make_folders(open: Open<'_>) -> Result<(), Errno> {
    let mut path = String::from(".");
    for name in FOLDERS {
        let above = open(&path)?;
        match mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
            // What is made must be there after a crash, as the journal must.
            Ok(()) => fsync(&above)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        path = format!("{path}/{name}");
    }
    Ok(())
}
