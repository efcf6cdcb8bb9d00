//! The API's socket in the file system.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use names::{Purpose, SocketPlace};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, listen as start, socket_with, sockopt::socket_peercred,
};
use rustix::process::getpid;

use crate::rights::Rights;
use crate::sockets::{Standing, open_connection, stands};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening, non-blocking socket at that path; its folder is made if there is none.
pub(super) fn listen(path: &Path, rights: &Rights) -> io::Result<UnixListener> {
    let place = SocketPlace::make(path, Purpose::Own)?;
    remove_stale(&place, path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rights.bind(&socket, &place)?;
    begin(&socket)?;
    Ok(UnixListener::from(socket))
}

/// Listens from now on, or goes on with that as this process: the kernel tells callers who said it last.
pub(super) fn begin(socket: &OwnedFd) -> io::Result<()> {
    Ok(start(socket, BACKLOG)?)
}

/// That [`listen`] could make one there; with `but`, when that process listens there no more. Nothing is changed.
///
/// # Errors
/// As [`listen`].
pub(crate) fn check(path: &Path, but: Option<u32>) -> io::Result<()> {
    let is_its = || but.is_some() && but == maker_at(path);
    match SocketPlace::find(path, Purpose::Own) {
        Ok(place) => match is_stale(&place, path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_its() => {}
            found => drop(found?),
        },
        Err(refused) if refused.is_missing() => {}
        Err(refused) => return Err(refused.into()),
    }
    Ok(names::may_make_in(path.parent().unwrap_or(path), Purpose::Own)?)
}

/// Whether that path leads to this listening socket, whose name it was. Whoever listens there is connected to: at the
/// API's sockets nobody minds.
///
/// # Errors
/// That is not known: its folder is refused, or cannot be looked at.
pub(super) fn is_at(path: &Path, listener: &OwnedFd) -> io::Result<bool> {
    let place = match SocketPlace::find(path, Purpose::Own) {
        Ok(place) => place,
        Err(refused) if refused.is_missing() => return Ok(false),
        Err(refused) => return Err(refused.into()),
    };
    if !matches!(stands(&place)?, Standing::Taken) {
        return Ok(false);
    }
    let maker = |socket: &OwnedFd| socket_peercred(socket).ok().map(|it| it.pid.as_raw_nonzero());
    let own = Some(getpid().as_raw_nonzero());
    Ok(match open_connection(path) {
        // The one that made this one, or this process itself.
        Ok(there) => maker(&there) == maker(listener) || maker(&there) == own,
        // So many wait that no more may: who they wait for is not known.
        Err(_) => true,
    })
}

/// The process that listens at that path, where one can be connected to.
fn maker_at(path: &Path) -> Option<u32> {
    let owner = socket_peercred(open_connection(path).ok()?).ok()?;
    u32::try_from(owner.pid.as_raw_nonzero().get()).ok()
}

/// Removes the socket at that path, if it is one.
pub(super) fn remove(path: &Path) {
    // One that cannot be removed is replaced by the next daemon.
    let _ = SocketPlace::find(path, Purpose::Own).and_then(|place| place.remove());
}

/// Takes away a socket that nobody listens on.
fn remove_stale(place: &SocketPlace, path: &Path) -> io::Result<()> {
    if is_stale(place, path)? { Ok(place.remove()?) } else { Ok(()) }
}

/// Whether a socket is there that nobody listens on.
fn is_stale(place: &SocketPlace, path: &Path) -> io::Result<bool> {
    let in_use = |what: String| io::Error::new(io::ErrorKind::AddrInUse, what);
    match stands(place)? {
        Standing::Nothing => Ok(false),
        Standing::Left => Ok(true),
        Standing::NoSocket => {
            let what = "something that is not a socket is in its place";
            Err(in_use(what.to_string()))
        }
        // So many may wait for it that no more may.
        Standing::Taken => Err(in_use(listener(open_connection(path).ok().as_ref()))),
    }
}

/// Who listens at the other end. A process that was killed keeps its sockets until
/// its last request has left the disk.
fn listener(connection: Option<&OwnedFd>) -> String {
    let owner = connection.and_then(|connection| socket_peercred(connection).ok());
    let Some(pid) = owner.map(|owner| owner.pid.as_raw_nonzero()) else {
        return "another daemon serves it".to_string();
    };
    let status = names::kernel_text(format!("/proc/{pid}/status")).unwrap_or_default();
    if status.lines().any(|line| line.starts_with("State:\tZ")) {
        return format!(
            "process {pid} has ended, but requests of it are still with a disk that does not answer (or a \
             file that a front-end sent with a file system that does not, `cat /proc/{pid}/task/*/stack`), \
             and until then it keeps this socket: see to that disk or file system"
        );
    }
    format!("another daemon serves it, process {pid}")
}
