//! The walk: from the root to a name, one step at a time, with what was learnt of whose the way is.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    FileType, Mode, OFlags, Stat, fstat, fstatfs, getxattr, mkdirat, open, openat, readlinkat,
};
use rustix::io::Errno;

use crate::{Purpose, Refused};

/// Links that one path may lead through, as in the kernel.
pub(crate) const LINKS_MAX: u32 = 40;
/// Steps of a path, with those of its links: bounds the walk.
pub(crate) const STEPS_MAX: u32 = 4096;
/// `FUSE_SUPER_MAGIC` (linux/magic.h).
const FUSE_MAGIC: u64 = 0x6573_5546;
/// What a step is opened with: nothing but a place.
const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Of folders that the daemon makes; the umask takes away more.
const FOLDER_MODE: u32 = 0o755;
const STICKY: u32 = 0o1000;

/// Whose a folder is, and with it all that is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Root's or the daemon's user's, and so is the whole way to it.
    Ours,
    /// Another user's, from some step on.
    User(u32),
}

/// A folder on the way.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) fd: OwnedFd,
    /// Its path, without links.
    pub(crate) real: PathBuf,
    pub(crate) owner: Owner,
    /// Every user may make names in it, and change his own only (the sticky bit).
    pub(crate) is_shared: bool,
    purpose: Purpose,
}

/// What a path leads to.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) folder: Folder,
    pub(crate) name: OsString,
    /// What is there, and no link; nothing, if nothing is.
    pub(crate) found: Option<Found>,
}

/// Something that has been found, opened as a place only.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) fd: OwnedFd,
    /// Its user is whom [`owner_of`] says.
    pub(crate) stat: Stat,
}

/// `path` without links and `..` in its folders; as it is where a step of it is not there, or others could change it.
pub fn real_name(path: &Path) -> PathBuf {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return path.into() };
    let real = Walk::of(folder, Purpose::Socket).and_then(|walk| walk.folder(false));
    real.map_or_else(|_| path.into(), |folder| folder.real.join(name))
}

impl Folder {
    /// The folder at `path`.
    pub(crate) fn find(path: &Path, purpose: Purpose) -> Result<Folder, Refused> {
        Walk::of(path, purpose)?.folder(false)
    }

    /// The folder at `path`, made if it is missing.
    pub(crate) fn make(path: &Path, purpose: Purpose) -> Result<Folder, Refused> {
        Walk::of(path, purpose)?.folder(true)
    }

    fn root(purpose: Purpose) -> Result<Folder, Refused> {
        let real = PathBuf::from("/");
        let opened = open("/", STEP | OFlags::DIRECTORY, Mode::empty());
        let fd = opened.map_err(|source| Refused::Os { step: real.clone(), source })?;
        let nowhere = Folder {
            fd: fd
                .try_clone()
                .map_err(|_| Refused::Os { step: real.clone(), source: Errno::MFILE })?,
            real: PathBuf::new(),
            owner: Owner::Ours,
            is_shared: false,
            purpose,
        };
        nowhere.enter(fd, real)
    }

    /// The folder `fd` at `real`, which was opened from this one.
    fn enter(&self, fd: OwnedFd, real: PathBuf) -> Result<Folder, Refused> {
        let stat = fstat(&fd).map_err(|source| Refused::Os { step: real.clone(), source })?;
        let uid = owner_of(&fd, &stat);
        let mode = stat.st_mode & 0o7777;
        let owner = match self.owner {
            Owner::Ours if is_ours(uid) => Owner::Ours,
            Owner::Ours if !self.purpose.lets_users_in() => {
                return Err(Refused::Foreign { step: real, uid, purpose: self.purpose });
            }
            // Who came first made it.
            Owner::Ours if self.is_shared => return Err(Refused::InShared { step: real, uid }),
            Owner::Ours => Owner::User(uid),
            Owner::User(owner) if owner == uid => self.owner,
            Owner::User(owner) => return Err(Refused::NotOwners { step: real, uid, owner }),
        };
        // Where there is an access list, the group's bits are its mask: whoever it names may write then.
        let by_group = mode & 0o020 != 0 && (stat.st_gid != 0 || has_access_list(&fd));
        let is_shared = mode & 0o002 != 0 || by_group;
        if is_shared && mode & STICKY == 0 {
            return Err(Refused::Writable { step: real, mode });
        }
        Ok(Folder { fd, real, owner, is_shared, purpose: self.purpose })
    }

    /// Whether something in it may be used that is no folder: nobody else can have put it there.
    pub(crate) fn check(&self, name: &OsStr, found: &Found) -> Result<(), Refused> {
        let (step, uid) = (self.real.join(name), found.stat.st_uid);
        let is_file = kind_of(&found.stat) == FileType::RegularFile;
        match self.owner {
            Owner::User(owner) if owner != uid => Err(Refused::NotOwners { step, uid, owner }),
            Owner::User(_) => Ok(()),
            Owner::Ours if self.is_shared && !is_ours(uid) => Err(Refused::InShared { step, uid }),
            Owner::Ours if self.is_shared && is_file && found.stat.st_nlink > 1 => {
                Err(Refused::SecondName { step })
            }
            Owner::Ours => Ok(()),
        }
    }

    /// Whether a link in it may be followed.
    fn check_link(&self, name: &OsStr, stat: &Stat) -> Result<(), Refused> {
        let uid = match self.owner {
            Owner::Ours if is_ours(stat.st_uid) => return Ok(()),
            Owner::Ours => stat.st_uid,
            Owner::User(uid) => uid,
        };
        Err(Refused::Link { step: self.real.join(name), uid })
    }

    /// What the kernel said of `name` in it.
    pub(crate) fn os(&self, name: &OsStr) -> impl Fn(Errno) -> Refused {
        let step = self.real.join(name);
        move |source| Refused::Os { step: step.clone(), source }
    }

    /// What is at `name`, which is no path; links are not followed.
    pub(crate) fn look(&self, name: &OsStr) -> Result<Option<Found>, Refused> {
        if name.as_bytes().contains(&b'/')
            || [b"".as_slice(), b".", b".."].contains(&name.as_bytes())
        {
            return Err(self.os(name)(Errno::INVAL));
        }
        let fd = match openat(&self.fd, name, STEP, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(self.os(name))?,
        };
        let mut stat = fstat(&fd).map_err(self.os(name))?;
        stat.st_uid = owner_of(&fd, &stat);
        Ok(Some(Found { fd, stat }))
    }
}

impl Place {
    /// What `path` leads to.
    pub(crate) fn find(path: &Path, purpose: Purpose) -> Result<Place, Refused> {
        Walk::of(path, purpose)?.place()
    }

    /// Its path, without links.
    pub(crate) fn real(&self) -> PathBuf {
        self.folder.real.join(&self.name)
    }

    /// What the kernel said of it.
    pub(crate) fn os(&self) -> impl Fn(Errno) -> Refused {
        self.folder.os(&self.name)
    }
}

/// Where a walk stands.
struct Walk {
    folder: Folder,
    /// What is still to be walked, the next step last.
    rest: Vec<OsString>,
    links: u32,
    steps: u32,
}

impl Walk {
    fn of(path: &Path, purpose: Purpose) -> Result<Walk, Refused> {
        let whole = std::path::absolute(path)
            .map_err(|_| Refused::Os { step: path.to_path_buf(), source: Errno::INVAL })?;
        let folder = Folder::root(purpose)?;
        Ok(Walk { folder, rest: steps_of(&whole), links: 0, steps: 0 })
    }

    /// Walks to the last step, which is a name in a folder.
    fn place(mut self) -> Result<Place, Refused> {
        loop {
            let Some(name) = self.next()? else {
                let step = self.folder.real;
                return Err(Refused::Os { step, source: Errno::ISDIR });
            };
            if !self.rest.is_empty() {
                self.step(name, false)?;
                continue;
            }
            let found = self.folder.look(&name)?;
            match found {
                Some(found) if kind_of(&found.stat) == FileType::Symlink => {
                    self.follow(&name, &found)?;
                }
                found => return Ok(Place { folder: self.folder, name, found }),
            }
        }
    }

    /// Walks all steps, which are folders.
    fn folder(mut self, make: bool) -> Result<Folder, Refused> {
        while let Some(name) = self.next()? {
            self.step(name, make)?;
        }
        Ok(self.folder)
    }

    /// The next step that is a name; goes up where it is none.
    fn next(&mut self) -> Result<Option<OsString>, Refused> {
        while let Some(name) = self.rest.pop() {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(self.folder.os(&name)(Errno::NAMETOOLONG));
            }
            if name != ".." {
                return Ok(Some(name));
            }
            let up = openat(&self.folder.fd, "..", STEP | OFlags::DIRECTORY, Mode::empty());
            let up = up.map_err(self.folder.os(&name))?;
            let real = self.folder.real.parent().unwrap_or(Path::new("/")).to_path_buf();
            self.folder = self.folder.enter(up, real)?;
        }
        Ok(None)
    }

    /// Into the folder `name`, or along the link of that name.
    fn step(&mut self, name: OsString, make: bool) -> Result<(), Refused> {
        // As a folder first: only so is one mounted that an automounter has.
        let flags = STEP | OFlags::DIRECTORY;
        let mut opened = openat(&self.folder.fd, &name, flags, Mode::empty());
        if opened.as_ref().err() == Some(&Errno::NOENT) && make && self.folder.owner == Owner::Ours
        {
            match mkdirat(&self.folder.fd, &name, Mode::from_raw_mode(FOLDER_MODE)) {
                Err(Errno::EXIST) => {}
                made => made.map_err(self.folder.os(&name))?,
            }
            opened = openat(&self.folder.fd, &name, flags, Mode::empty());
        }
        match opened {
            Ok(fd) => {
                let real = self.folder.real.join(&name);
                self.folder = self.folder.enter(fd, real)?;
                Ok(())
            }
            Err(Errno::NOTDIR | Errno::LOOP) => match self.folder.look(&name)? {
                Some(found) if kind_of(&found.stat) == FileType::Symlink => {
                    self.follow(&name, &found)
                }
                _ => Err(self.folder.os(&name)(Errno::NOTDIR)),
            },
            Err(error) => Err(self.folder.os(&name)(error)),
        }
    }

    /// Along a link that was found in the folder.
    fn follow(&mut self, name: &OsStr, link: &Found) -> Result<(), Refused> {
        self.folder.check_link(name, &link.stat)?;
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(self.folder.os(name)(Errno::LOOP));
        }
        let target = readlinkat(&link.fd, c"", Vec::new()).map_err(self.folder.os(name))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.folder = Folder::root(self.folder.purpose)?;
        }
        self.rest.extend(steps_of(&target));
        Ok(())
    }
}

/// The steps of a path, the first last.
pub(crate) fn steps_of(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

pub(crate) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether it is root or the daemon's own user.
pub(crate) fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Whether a folder has a list of users and groups that may use it besides those that its mode speaks of. One that
/// cannot be asked has.
fn has_access_list(fd: &OwnedFd) -> bool {
    // What was opened as a place has no attributes; its name in /proc does.
    let name = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let list = getxattr(name, c"system.posix_acl_access", &mut [0_u8; 0][..]);
    !matches!(list, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// The owner of what nobody knows the owner of: no user of a host.
const NOBODY_KNOWN: u32 = u32::MAX;

/// Whose a file or folder is. A FUSE file system says of its files what its server wants, so what is in one belongs
/// to who mounted it, also where it is mounted over a single file.
fn owner_of(fd: &OwnedFd, stat: &Stat) -> u32 {
    // Such a server may also refuse to say what it is.
    let is_other = fstatfs(fd).is_ok_and(|fs| fs.f_type as u64 & u64::from(u32::MAX) != FUSE_MAGIC);
    if is_other {
        return stat.st_uid;
    }
    match options_of_mount(fd) {
        None => NOBODY_KNOWN,
        Some(options) => mounted_by(&options).filter(|uid| !is_ours(*uid)).unwrap_or(stat.st_uid),
    }
}

/// The `user_id` of a FUSE mount; one in the kernel alone (virtiofs) has none.
fn mounted_by(options: &[u8]) -> Option<u32> {
    let mut options = options.split(|byte| *byte == b',');
    let uid = options.find_map(|option| option.strip_prefix(b"user_id="))?;
    Some(std::str::from_utf8(uid).ok().and_then(|uid| uid.parse().ok()).unwrap_or(NOBODY_KNOWN))
}

/// Options of the file system that a file is in, as the table of mounts has them. Nothing where that does not have it: it
/// was detached meanwhile.
fn options_of_mount(fd: &OwnedFd) -> Option<Vec<u8>> {
    let info = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    let info = std::fs::read_to_string(info).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().to_string();
    // Any user's mount may have a name of any bytes.
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let mut lines = mounts.split(|byte| *byte == b'\n');
    let words = |line: &[u8]| line.split(|byte| *byte == b' ').next() == Some(id.as_bytes());
    let mount = lines.find(|line| words(line))?;
    Some(mount.rsplit(|byte| *byte == b' ').next()?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_belongs_to_whom_its_options_name() {
        let rows: [(&[u8], Option<u32>); 5] = [
            (b"rw,user_id=1001,group_id=1001,allow_other", Some(1001)),
            (b"rw,user_id=0,group_id=0", Some(0)),
            (b"rw", None),
            (b"rw,user_id=\xff", Some(NOBODY_KNOWN)),
            (b"user_id=99999999999", Some(NOBODY_KNOWN)),
        ];
        for (options, uid) in rows {
            assert_eq!(mounted_by(options), uid);
        }
    }

    #[test]
    fn the_table_of_mounts_has_what_is_mounted() {
        let root =
            rustix::fs::open("/", OFlags::PATH, rustix::fs::Mode::empty()).expect("a folder");
        assert!(options_of_mount(&root).is_some_and(|options| !options.is_empty()));
        let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
        assert_eq!(options_of_mount(&pipe), None, "it is in no table");
    }
}
