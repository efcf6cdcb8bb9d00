//! The API's socket in the file system.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, listen as start, socket_with,
    sockopt::socket_peercred,
};

use crate::sockets::bind_for_group;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening, non-blocking socket of mode 0660 at that path; its folder is made if there is none.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    remove_stale(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind_for_group(&socket, &SocketAddrUnix::new(path)?)?;
    start(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Takes away a socket that nobody listens on.
fn remove_stale(path: &Path) -> io::Result<()> {
    let kind = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let in_use = |what: String| io::Error::new(io::ErrorKind::AddrInUse, what);
    if !kind.is_socket() {
        let what = "something that is not a socket is in its place: move it away";
        return Err(in_use(what.to_string()));
    }
    match UnixStream::connect(path) {
        Ok(stream) => Err(in_use(listener(&stream))),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
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
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if status.lines().any(|line| line.starts_with("State:\tZ")) {
        return format!(
            "process {pid} has ended, but requests of it are still with a disk that does not answer (or a \
             file that a front-end sent with a file system that does not, `cat /proc/{pid}/task/*/stack`), \
             and until then it keeps this socket: see to that disk or file system"
        );
    }
    format!("another daemon serves it, process {pid}: stop that one, {apart}")
}
