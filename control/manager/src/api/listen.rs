//! The API's socket in the file system.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, chmodat};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen as start, socket_with,
};

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
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Before `listen`, nobody can connect, whatever the umask left open.
    chmodat(CWD, path, Mode::from_raw_mode(0o660), AtFlags::empty())?;
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
    let in_use = |what: &str| io::Error::new(io::ErrorKind::AddrInUse, what.to_string());
    if !kind.is_socket() {
        return Err(in_use("something that is not a socket is in its place: move it away"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(in_use(
            "another daemon serves it: stop that one, or give this one its own `api`, `run_dir` \
             and `state_dir` in `[daemon]`",
        )),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}
