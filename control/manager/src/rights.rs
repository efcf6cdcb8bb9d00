//! Who may open a socket: names become numbers here, and a socket gets its owner, group and mode.
//!
//! A socket's mode is never wider than it will be: it is bound for its owner alone, then given away. Only
//! in a folder into which nobody else can put a name (docs/decisions/0022). Not here: what is written
//! (`config::spec`), and sockets themselves (`sockets`).

pub(crate) mod given;

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use config::api::{ApiError, ErrorKind};
use config::spec::SocketRights;
use names::{Purpose, Refused, Socket, SocketPlace};
use rustix::fs::{AtFlags, Gid, Mode, Uid, chmod, chownat, fstat, getxattr_query, removexattr};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};
use rustix::process::{getegid, geteuid, getgroups, umask};
use rustix::thread::{CapabilitySet, capabilities};

/// Bits of a mode that this is about.
const MODE_BITS: u32 = 0o7777;
/// Bits that a new name has before those of its kind are taken away.
const ALL_BITS: u32 = 0o777;
/// The owner's alone.
const OWNER_ONLY: u32 = 0o600;
const ISGID: u32 = 0o2000;
/// Where the kernel keeps who else is let in than owner, group and others.
const ACL: &str = "system.posix_acl_access";

/// Why nobody was let in, or out. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum RightsError {
    /// There is no such user.
    #[error(
        "there is no user {0:?} in /etc/passwd; correct the name, make the user, or write a number (which \
         also does for users of a directory service)"
    )]
    User(String),
    /// There is no such group.
    #[error(
        "there is no group {0:?} in /etc/group; correct the name, make the group, or write a number"
    )]
    Group(String),
    /// They cannot be looked up.
    #[error(
        "users and groups cannot be looked up ({0}); write numbers instead of names, or `sidecore upgrade` \
         where /etc/passwd was changed after a start with image_folders"
    )]
    Accounts(Arc<io::Error>),
    /// Whoever can change names there could have another file given away.
    #[error("it is not given to another user or group, since {0}")]
    Folder(Refused),
    /// It is not found, or something else has its name.
    #[error("{0}")]
    Name(#[from] Refused),
    /// It has another name somewhere.
    #[error("what has its name now is not the socket that was made: it has another name too")]
    Second,
    /// It takes a right that the daemon has not.
    #[error(
        "giving it to {0} takes CAP_CHOWN, which the daemon has not; let the unit keep it \
         (CapabilityBoundingSet=, with User= also AmbientCapabilities=) and restart. A daemon with image_folders \
         keeps it only if its file names a socket_owner, socket_group, api_owner or api_group when it is started: \
         write that and `sidecore upgrade`"
    )]
    Refused(String),
    /// The kernel.
    #[error("{0}")]
    Os(#[from] Errno),
}

/// Socket that was not given to those of its plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UngivenError {
    /// Socket of a device.
    #[error("its socket {socket}: {source}")]
    Device { socket: String, source: RightsError },
    /// Socket of the API.
    #[error("the API's socket {path}: {source}")]
    Api { path: String, source: RightsError },
    /// Socket of a device, with the device's name.
    #[error("{name}: {source}")]
    Named { name: String, source: Box<UngivenError> },
}

impl From<RightsError> for io::Error {
    fn from(error: RightsError) -> io::Error {
        match error {
            RightsError::Os(error) => error.into(),
            RightsError::Name(error) => error.into(),
            error => io::Error::other(error),
        }
    }
}

/// The users and groups of this host: read when the first name is looked up, and not once more for each of the
/// thousands of devices that one event may open. What was read goes with the turn ([`crate::turn::Turn`]).
#[derive(Default)]
pub(crate) struct Accounts(Option<Result<host::Accounts, Arc<io::Error>>>);

impl Accounts {
    fn read(&mut self) -> Result<&host::Accounts, RightsError> {
        let read = || {
            #[cfg(test)]
            READS.with(|reads| reads.set(reads.get() + 1));
            host::Accounts::of_this_host().map_err(Arc::new)
        };
        let read = self.0.get_or_insert_with(read).as_ref();
        read.map_err(|why| RightsError::Accounts(Arc::clone(why)))
    }
}

#[cfg(test)]
thread_local! {
    /// How often this host's users and groups were read.
    pub(crate) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Who may open a socket, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    uid: u32,
    /// Without, that which its folder gives.
    gid: Option<u32>,
    mode: u32,
    /// For messages: as it was written.
    told: String,
}

impl Rights {
    /// The daemon's own user alone.
    pub(crate) fn own() -> Rights {
        Rights { uid: geteuid().as_raw(), gid: None, mode: OWNER_ONLY, told: "itself".to_string() }
    }

    /// Of what is written: the one place at which names become numbers.
    ///
    /// # Errors
    /// There is no such user or group.
    pub(crate) fn of(
        written: &SocketRights,
        accounts: &mut Accounts,
    ) -> Result<Rights, RightsError> {
        let own = Rights { mode: written.bits(), ..Rights::own() };
        if !written.names_somebody() {
            return Ok(own);
        }
        let numbers = [&written.owner, &written.group].into_iter().flatten();
        let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
        let nobody = host::Accounts::default();
        let accounts = match numbers.clone().all(is_number) {
            // Nothing is to be looked up.
            true => &nobody,
            false => accounts.read()?,
        };
        let user = |name: &String| {
            accounts.user(name).ok_or_else(|| RightsError::User(name.clone())).map(|it| it.uid)
        };
        let group =
            |name: &String| accounts.group(name).ok_or_else(|| RightsError::Group(name.clone()));
        let uid = written.owner.as_ref().map(user).transpose()?.unwrap_or(own.uid);
        let gid = written.group.as_ref().map(group).transpose()?;
        let told = [("user", &written.owner), ("group", &written.group)];
        let told =
            told.into_iter().filter_map(|(what, name)| Some(format!("{what} {}", name.as_ref()?)));
        Ok(Rights { uid, gid, told: told.collect::<Vec<_>>().join(" and "), ..own })
    }

    /// Gives a socket its name, with these rights from the start or fewer until it has them. The
    /// mask is all threads' meanwhile: the openers' too, which make images and ask for 0600, of which no mode here
    /// takes anything away.
    ///
    /// # Errors
    /// As [`Rights::put`]; nothing of that name is left then.
    pub(crate) fn bind(&self, socket: impl AsFd, place: &SocketPlace) -> Result<(), RightsError> {
        let address = SocketAddrUnix::new(place.address())?;
        if !self.names_somebody() {
            return Ok(bind_as(self.mode, socket, &address)?);
        }
        // What is in it before is known not to be of others, so what has the name afterwards is the socket.
        place.check_ours().map_err(RightsError::Folder)?;
        bind_as(OWNER_ONLY, socket, &address)?;
        let given = self.give(place);
        if given.is_err() {
            let _ = place.remove();
        }
        given
    }

    /// Has the socket at `path`, which this daemon made, be opened by these from now on. Whoever is
    /// connected stays.
    ///
    /// # Errors
    /// Its folder is one that others may write, another thing has the name, or a right is missing; then the
    /// daemon's user alone may open it, or those who might before.
    pub(crate) fn put(&self, path: &Path) -> Result<(), RightsError> {
        let place = SocketPlace::find(path, Purpose::Socket)?;
        if self.is_in_force(&place, &found(&place)?)? {
            return Ok(());
        }
        place.check_ours().map_err(RightsError::Folder)?;
        // Or it would be half done.
        self.check_may_give(path)?;
        self.give(&place)
    }

    /// The same, of one that another process made: who was let in beside its owner and group stays.
    ///
    /// # Errors
    /// As [`Rights::put`].
    fn keep(&self, path: &Path) -> Result<(), RightsError> {
        let place = SocketPlace::find(path, Purpose::Socket)?;
        let there = found(&place)?;
        let stat = fstat(&there)?;
        // Its mode has the most of them in the place of the group's.
        let is_told = (stat.st_uid, stat.st_gid) == (self.uid, self.gid_in(&place)?);
        if is_told && has_acl(&there) { Ok(()) } else { self.put(path) }
    }

    /// That a socket at that path could be given away, as far as its folder is there.
    ///
    /// # Errors
    /// Others can change names in the folder, or on the way to it.
    pub(crate) fn check_place(&self, path: &Path) -> Result<(), RightsError> {
        if !self.names_somebody() {
            return Ok(());
        }
        let found = SocketPlace::find(path, Purpose::Socket).and_then(|place| place.check_ours());
        match found {
            Err(refused) if refused.errno().is_none() => Err(RightsError::Folder(refused)),
            // Whoever makes the folder, or may not look, is told when the socket is made.
            _ => Ok(()),
        }
    }

    /// That this process may give the socket that is or will be at that path to them: without CAP_CHOWN it may give
    /// its own ones to groups that it is in.
    ///
    /// # Errors
    /// [`RightsError::Refused`].
    pub(crate) fn check_may_give(&self, path: &Path) -> Result<(), RightsError> {
        let may = capabilities(None).map(|sets| sets.effective.contains(CapabilitySet::CHOWN));
        // The kernel says so, if it is so.
        let Ok(false) = may else { return Ok(()) };
        let Ok(place) = SocketPlace::find(path, Purpose::Socket) else { return Ok(()) };
        let there = found(&place).ok();
        if let Some(there) = &there
            && self.is_in_force(&place, there)?
        {
            return Ok(());
        }
        let own = geteuid().as_raw();
        let (uid, gid) = match &there {
            Some(there) => fstat(there).map(|stat| (stat.st_uid, stat.st_gid))?,
            None => (own, Rights::own().gid_in(&place)?),
        };
        let wanted = self.gid_in(&place)?;
        let mut groups = getgroups().unwrap_or_default();
        groups.push(getegid());
        let is_of = wanted == gid || groups.contains(&Gid::from_raw(wanted));
        match uid == own && self.uid == own && is_of {
            true => Ok(()),
            false if self.names_somebody() => Err(RightsError::Refused(self.told.clone())),
            false => Err(RightsError::Refused("its own user".to_string())),
        }
    }

    /// Then nobody else is let in.
    fn names_somebody(&self) -> bool {
        self.gid.is_some() || self.uid != geteuid().as_raw()
    }

    /// The group of a socket there.
    fn gid_in(&self, place: &SocketPlace) -> Result<u32, RightsError> {
        let folder = fstat(place.folder())?;
        let usual = if folder.st_mode & ISGID != 0 { folder.st_gid } else { getegid().as_raw() };
        Ok(self.gid.unwrap_or(usual))
    }

    fn is_in_force(&self, place: &SocketPlace, there: &Socket) -> Result<bool, RightsError> {
        let (stat, gid) = (fstat(there)?, self.gid_in(place)?);
        let is_that = (stat.st_uid, stat.st_gid, stat.st_mode & MODE_BITS);
        let has_more = self.names_somebody() && has_acl(there);
        Ok(is_that == (self.uid, gid, self.mode) && !has_more)
    }

    /// Step by step, so that nobody has more at any time than before or afterwards. The owner goes last:
    /// changing the mode of another user's file would take a capability more.
    fn give(&self, place: &SocketPlace) -> Result<(), RightsError> {
        let file = found(place)?;
        if self.is_in_force(place, &file)? {
            return Ok(());
        }
        let (stat, own, gid) = (fstat(&file)?, geteuid().as_raw(), self.gid_in(place)?);
        if stat.st_nlink != 1 {
            return Err(RightsError::Second);
        }
        let chown = |uid: Option<u32>, gid: Option<u32>| {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH).map_err(|error| match error {
                Errno::PERM => RightsError::Refused(self.told.clone()),
                error => RightsError::Os(error),
            })
        };
        // By its descriptor: a name could lead elsewhere by then.
        let itself = file.address();
        let chmod = |mode| chmod(&*itself, Mode::from_raw_mode(mode));
        if stat.st_uid != own {
            chown(Some(own), None)?;
        }
        if self.names_somebody() && has_acl(&file) {
            removexattr(&*itself, ACL)?;
        }
        if stat.st_mode & MODE_BITS != OWNER_ONLY {
            chmod(OWNER_ONLY)?;
        }
        if stat.st_gid != gid {
            chown(None, Some(gid))?;
        }
        if self.mode != OWNER_ONLY {
            chmod(self.mode)?;
        }
        if self.uid != own {
            chown(Some(self.uid), None)?;
        }
        Ok(())
    }
}

/// That its users and groups are there, and that its socket could be given to them.
///
/// # Errors
/// [`RightsError`].
pub(crate) fn check_at(
    written: &SocketRights,
    path: Option<&String>,
    accounts: &mut Accounts,
) -> Result<(), RightsError> {
    let rights = Rights::of(written, accounts)?;
    path.map_or(Ok(()), |path| rights.check_place(Path::new(path)))
}

/// What an operator is told who asks for rights that cannot be given.
pub(crate) fn refused_rights(error: impl fmt::Display) -> ApiError {
    let hint = "put that right and ask again; nothing was changed";
    ApiError::new(ErrorKind::Refused, error.to_string(), hint)
}

/// Binds with that mode from the start: not by its path afterwards, since whoever may write to the folder
/// could have put a link to any file in its place by then (CVE-2026-1386).
fn bind_as(mode: u32, socket: impl AsFd, address: &SocketAddrUnix) -> Result<(), Errno> {
    // The mask is the process's: two threads that bind would have each other's.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = umask(Mode::from_raw_mode(ALL_BITS & !mode));
    let bound = bind(socket, address);
    umask(before);
    bound
}

/// The socket that is there.
fn found(place: &SocketPlace) -> Result<Socket, RightsError> {
    place.taken()?.ok_or(RightsError::Os(Errno::NOENT))
}

/// Whether more are let in than owner, group and others: by `setfacl`, or by the default of its folder.
fn has_acl(socket: &Socket) -> bool {
    getxattr_query(socket.address(), ACL).is_ok()
}

#[cfg(test)]
mod tests;
