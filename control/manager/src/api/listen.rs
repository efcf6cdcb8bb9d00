//! The API's socket in the file system.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use names::{Purpose, Refused, SocketPlace};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, listen as start, socket_with, sockopt::socket_peercred,
};

use crate::rights::Rights;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening, non-blocking socket at that path; its folder is made if there is none.
pub(super) fn listen(path: &Path, rights: &Rights) -> io::Result<UnixListener> {
    let place = SocketPlace::make(path, Purpose::Own)?;
    remove_stale(&place)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rights.bind(&socket, &place)?;
    start(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Removes the socket at that path, if it is one.
pub(super) fn remove(path: &Path) {
    // One that cannot be removed is replaced by the next daemon.
    let _ = SocketPlace::find(path, Purpose::Own).and_then(|place| place.remove());
}

/// Takes away a socket that nobody listens on.
fn remove_stale(place: &SocketPlace) -> io::Result<()> {
    let in_use = |what: String| io::Error::new(io::ErrorKind::AddrInUse, what);
    let there = match place.taken() {
        Ok(Some(there)) => there,
        Ok(None) => return Ok(()),
        Err(Refused::Kind { .. }) => {
            let what = "something that is not a socket is in its place: move it away";
            return Err(in_use(what.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    match UnixStream::connect(there.address()) {
        Ok(stream) => Err(in_use(listener(&stream))),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(place.remove()?),
        Err(error) => Err(error),
    }
}

/// Who listens at the other end, and what to do. A process that was killed keeps its sockets until
/// its last request has left the disk.
fn listener(stream: &UnixStream) -> String {
    let apart = "or give this one its own `api`, `run_dir` and `state_dir` in `[daemon]`";
    let Ok(pid) = socket_peercred(stream).map(|owner| owner.pid.as_raw_nonzero()) else {
        return format!("another daemon serves it: stop that one, {apart}");
    };
    let status = names::kernel_text(format!("/proc/{pid}/status")).unwrap_or_default();
    if status.lines().any(|line| line.starts_with("State:\tZ")) {
        return format!(
            "process {pid} has ended, but requests of it are still with a disk that does not answer (or a \
             file that a front-end sent with a file system that does not, `cat /proc/{pid}/task/*/stack`), \
             and until then it keeps this socket: see to that disk or file system"
        );
    }
    format!("another daemon serves it, process {pid}: stop that one, {apart}")
}
