//! Files below a root, and the journal. Whatever a tree has, nothing is opened outside of it, and only regular files are
//! read: no link leads out, no pipe is waited for, no loop is walked.

mod journal;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, fsync, openat, openat2,
    readlinkat, renameat, unlinkat,
};
use rustix::io::Errno;
use tuning::system::NAMES_MAX;
use tuning::value::shown;
use tuning::{Place, System, Trouble};

use crate::netlink::{Netlink, trouble};
pub use journal::JournalFile;

/// File systems of the kernel's own settings (linux/magic.h).
const KERNELS: [u32; 2] = [0x6265_6572, 0x9fa0];
/// Times that a path is walked while somebody moves what it leads through.
const WALKS: usize = 8;
/// A file that is to take another one's place.
const PART: &str = ".sidecore-tune";

/// What a root has.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    /// Whether it is this process's own.
    is_here: bool,
    journal: JournalFile,
    /// Opened when it is first needed.
    netlink: Option<Result<Netlink, Trouble>>,
}

impl Tree {
    /// Opens a root; the journal is at its usual place in it, or where it is said.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn open(root: &Path, journal: Option<&Path>) -> Result<Tree, String> {
        let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = |path: &Path| openat(CWD, path, folder, Mode::empty());
        let said = |error: Errno| {
            let error = std::io::Error::from(error);
            format!("{} cannot be opened: {error}; name a folder", root.display())
        };
        let found = opened(root).map_err(said)?;
        let (this, own) =
            (fstat(&found).map_err(said)?, fstat(opened(Path::new("/")).map_err(said)?));
        let is_own = |own: rustix::fs::Stat| (own.st_dev, own.st_ino) == (this.st_dev, this.st_ino);
        let is_here = own.is_ok_and(is_own);
        let journal = JournalFile::new(journal.map(Path::to_owned));
        Ok(Tree { root: found, is_here, journal, netlink: None })
    }

    /// Whether the root is this process's own.
    pub fn is_here(&self) -> bool {
        self.is_here
    }

    /// Has the journal to itself, until this is dropped: whoever changes something asks first.
    ///
    /// # Errors
    /// Another process has it, or it cannot be made.
    pub fn lock(&mut self) -> Result<(), String> {
        let (root, is_here) = (&self.root, self.is_here);
        self.journal.lock(&|path| walked(root, is_here, path, FOLDER))
    }

    fn opened(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Trouble> {
        walked(&self.root, self.is_here, path, flags).map_err(trouble)
    }

    /// A regular file. What it is is looked at before it is opened, since to open a device may do something; and after.
    fn file(&self, path: &str, flags: OFlags) -> Result<File, Trouble> {
        regular(self.opened(path, OFlags::PATH)?)?;
        Ok(File::from(regular(self.opened(path, flags)?)?))
    }

    fn netlink(&mut self) -> Result<&Netlink, Trouble> {
        // NICs are this process's network's: a tree has none.
        if !self.is_here {
            return Err(Trouble::Absent);
        }
        self.netlink.get_or_insert_with(Netlink::open).as_ref().map_err(Clone::clone)
    }

    fn write_file(&self, path: &str, value: &str) -> Result<(), Trouble> {
        let mut file = self.file(path, OFlags::WRONLY)?;
        let kind = u32::try_from(fstatfs(&file).map_err(trouble)?.f_type);
        if kind.is_ok_and(|kind| KERNELS.contains(&kind)) {
            // One call: the kernel takes it whole, or refuses.
            return match file.write(value.as_bytes()).map_err(refused)? {
                length if length == value.len() => Ok(()),
                length => Err(Trouble::Refused(format!("the kernel took {length} bytes of it"))),
            };
        }
        if self.is_here {
            return Err(Trouble::Refused(
                "is no file of the kernel's: who put it there?".to_owned(),
            ));
        }
        self.replace(path, value)
    }

    /// Puts a file in another one's place at once, as a kernel changes a setting at once.
    fn replace(&self, path: &str, value: &str) -> Result<(), Trouble> {
        let (folder, name) = path.rsplit_once('/').unwrap_or((".", path));
        let folder = self.opened(folder, FOLDER)?;
        let mut before = String::new();
        let read = self.file(path, OFlags::RDONLY)?.take(4096).read_to_string(&mut before);
        read.map_err(refused)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // One that a crash has left is nobody's.
        let _ = unlinkat(&folder, PART, rustix::fs::AtFlags::empty());
        let part = openat(&folder, PART, flags, Mode::from_raw_mode(0o644)).map_err(trouble)?;
        let mut part = File::from(part);
        part.write_all(shown(&before, value).as_bytes()).map_err(refused)?;
        fsync(&part).map_err(trouble)?;
        renameat(&folder, PART, &folder, name).map_err(trouble)
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Opens what a path leads to below a root. Links are followed within it.
fn walked(root: &OwnedFd, is_here: bool, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    // What only names a link waits for nothing, and may not say so.
    let waits = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
    let flags = flags | OFlags::CLOEXEC | waits;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for _ in 1..WALKS {
        match openat2(root, path, flags, Mode::empty(), within) {
            // A path with `..` of a link cannot be told to be within while somebody moves a folder.
            Err(Errno::AGAIN) => {}
            // Linux before 5.6, or a filter. Below this process's own root there is no outside.
            Err(Errno::NOSYS | Errno::PERM) if is_here => {
                return openat(root, path, flags, Mode::empty());
            }
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn regular(file: OwnedFd) -> Result<OwnedFd, Trouble> {
    match FileType::from_raw_mode(fstat(&file).map_err(trouble)?.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(Trouble::Refused("is no regular file".to_owned())),
    }
}

fn refused(error: std::io::Error) -> Trouble {
    Trouble::Refused(error.to_string())
}

impl System for Tree {
    fn bytes(&mut self, path: &str, most: usize) -> Result<Vec<u8>, Trouble> {
        let mut bytes = Vec::new();
        let file = self.file(path, OFlags::RDONLY)?;
        file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(refused)?;
        if bytes.len() > most { Err(Trouble::TooLong) } else { Ok(bytes) }
    }

    fn names(&mut self, folder: &str) -> Result<Vec<String>, Trouble> {
        let folder = self.opened(folder, FOLDER)?;
        let mut names = Vec::new();
        for entry in Dir::new(folder).map_err(trouble)? {
            let name = entry.map_err(trouble)?.file_name().to_str().map(str::to_owned);
            names.extend(name.ok().filter(|name| !matches!(name.as_str(), "." | "..")));
            if names.len() > NAMES_MAX {
                return Err(Trouble::TooLong);
            }
        }
        names.sort();
        Ok(names)
    }

    fn link(&mut self, path: &str) -> Result<String, Trouble> {
        let link = self.opened(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let text = match readlinkat(&link, "", Vec::new()) {
            // Something else than a link.
            Err(Errno::INVAL | Errno::NOENT) => return Err(Trouble::Absent),
            text => text.map_err(trouble)?,
        };
        text.into_string().map_err(|_| Trouble::Refused("is no text".to_owned()))
    }

    fn parameter(&mut self, nic: &str, parameter: &str) -> Result<String, Trouble> {
        self.netlink()?.get(nic, parameter)
    }

    fn write(&mut self, place: &Place, value: &str) -> Result<(), Trouble> {
        match place {
            Place::File(path) => self.write_file(path, value),
            Place::Nic { nic, parameter } => self.netlink()?.set(nic, parameter, value),
        }
    }

    fn journal(&mut self) -> Result<Vec<u8>, Trouble> {
        let (root, is_here) = (&self.root, self.is_here);
        self.journal.bytes(&|path| walked(root, is_here, path, FOLDER))
    }

    fn note(&mut self, line: &str) -> Result<(), Trouble> {
        self.journal.note(line)
    }

    fn cut(&mut self, length: usize) -> Result<(), Trouble> {
        self.journal.cut(length)
    }

    fn forget(&mut self) -> Result<(), Trouble> {
        self.journal.forget()
    }
}
