//! Unix sockets that carry descriptors: open, accept, connect, receive, send. Nothing else.
//!
//! Every socket is non-blocking and closed on exec. Not here: what the bytes mean (`vhost_user`) or
//! when to read (`manager`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use names::{Purpose, Refused, Socket, SocketPlace};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};
use rustix::process::{Resource, getrlimit};

use crate::rights::Rights;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 8;
/// Bytes of replies that the kernel keeps for a front-end that does not read them (it doubles this).
/// It counts some 800 for each, so that few descriptors of ours can lie there.
const UNREAD_BYTES_MAX: usize = 8192;
/// Descriptors that the kernel gives with one message (`SCM_MAX_FD`): with room for all of them it
/// closes none itself, which could take long.
const SCM_FDS_MAX: usize = 253;
/// The lowest number of a descriptor that listens for front-ends, where the process may have so many. The kernel's table
/// has 8 bytes for each below the highest.
const LISTENERS_FROM: u64 = 32 << 10;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Opens a listening socket at `path` for those who may open it, replacing one that nobody listens on any
/// more.
///
/// # Errors
/// `AddrInUse` when a living process listens there, `AlreadyExists` when something else has that
/// name; otherwise what the kernel said, or why it is not given to whom it should be.
pub(crate) fn open_listener(path: &Path, rights: &Rights) -> io::Result<OwnedFd> {
    let place = SocketPlace::make(path, Purpose::Socket)?;
    clear(&place)?;
    let socket = behind_others(socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?);
    rights.bind(&socket, &place)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Whether there is something to read now, or the other side has gone.
pub(crate) fn is_readable(socket: impl AsFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&at_once)).is_ok_and(|some| some > 0)
}

/// The same socket with a number that is higher than those of connections. A process that is killed loses its
/// descriptors from the highest on (Linux, `task_work_run`): a front-end that has lost its connection and comes again
/// at once finds nobody that listens, and not one who takes it in and dies. Cloud Hypervisor comes again after
/// a refusal, and not after that.
pub(crate) fn behind_others(listener: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let floor = (limit - limit / 4).min(LISTENERS_FROM);
    // None that high may be had; any will do then.
    fcntl_dupfd_cloexec(&listener, floor as i32).unwrap_or(listener)
}

/// That one can be made there, and is nobody else's: it is made, and taken away again.
///
/// # Errors
/// As [`open_listener`].
pub(crate) fn check_listener(path: &Path, rights: &Rights) -> io::Result<()> {
    let socket = open_listener(path, rights)?;
    remove(path);
    drop(socket);
    Ok(())
}

/// Removes a socket of the daemon's, if one is there. One that cannot be removed is replaced by whoever
/// listens there next.
pub(crate) fn remove(path: &Path) {
    let _ = SocketPlace::find(path, Purpose::Socket).and_then(|place| place.remove());
}

/// That nothing is at that name but what [`open_listener`] would replace, and that it may be made. Nothing is changed.
///
/// # Errors
/// As [`open_listener`].
pub(crate) fn check_name(path: &Path) -> io::Result<()> {
    match SocketPlace::find(path, Purpose::Socket) {
        Ok(place) => is_left(&place).map(drop)?,
        // Its folder is made with it.
        Err(refused) if refused.is_missing() => {}
        Err(refused) => return Err(refused.into()),
    }
    Ok(names::may_make_in(path.parent().unwrap_or(path), Purpose::Socket)?)
}

/// Whether a socket that is listened at has its name no more: nobody can come to it. What nobody listens at is another
/// one, which was left there.
pub(crate) fn is_gone(path: &Path) -> bool {
    match SocketPlace::find(path, Purpose::Socket) {
        Ok(place) => matches!(stands(&place), Ok(Standing::Nothing | Standing::Left)),
        Err(refused) => refused.is_missing(),
    }
}

/// Removes what a dead daemon left there.
fn clear(place: &SocketPlace) -> io::Result<()> {
    match is_left(place)? {
        true => Ok(place.remove()?),
        false => Ok(()),
    }
}

/// Whether a dead daemon left something there.
fn is_left(place: &SocketPlace) -> io::Result<bool> {
    match stands(place)? {
        Standing::Nothing => Ok(false),
        Standing::Left => Ok(true),
        Standing::NoSocket => {
            let what = "what is there is not a socket: move it away";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
        }
        Standing::Taken => {
            Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"))
        }
    }
}

/// What has the name that a socket is to get.
#[derive(Debug)]
pub(crate) enum Standing {
    Nothing,
    /// A socket on which nobody listens any more: it may be replaced.
    Left,
    /// Something else, which nobody replaces.
    NoSocket,
    /// A socket that somebody has, or may have.
    Taken,
}

/// What stands at that place. Nobody who listens there notices: a VMM may take one connection only, and a device takes
/// whoever comes for a front-end.
///
/// # Errors
/// It cannot be looked at.
pub(crate) fn stands(place: &SocketPlace) -> io::Result<Standing> {
    let there = match place.taken() {
        Ok(Some(there)) => there,
        Ok(None) => return Ok(Standing::Nothing),
        Err(Refused::Kind { .. }) => return Ok(Standing::NoSocket),
        Err(error) => return Err(error.into()),
    };
    // The kernel looks for a socket of that file, and only then at its type: one that takes streams takes no datagrams,
    // and is told of nothing.
    let kind = SocketType::DGRAM;
    let asks = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    Ok(match connect(&asks, &SocketAddrUnix::new(there.address())?) {
        Err(Errno::CONNREFUSED) => Standing::Left,
        Err(Errno::NOENT) => Standing::Nothing,
        _ => Standing::Taken,
    })
}

/// A descriptor that is given up to accept and refuse a connection when none is left.
pub(crate) fn reserve() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

/// The next connection, or `None` when no more are waiting.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match accept_with(listener, FLAGS) {
        Ok(connection) => {
            sockopt::set_socket_send_buffer_size(&connection, UNREAD_BYTES_MAX)?;
            Ok(Some(connection))
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Ends the connections that wait to be accepted.
///
/// # Errors
/// What the kernel said: somebody may still wait there.
pub(crate) fn send_away(listener: &OwnedFd) -> Result<(), Errno> {
    // One more than the backlog may wait.
    for _ in 0..=BACKLOG {
        match accept_with(listener, FLAGS) {
            Ok(waiting) => drop(waiting),
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connects to a VMM that listens at `path`.
///
/// # Errors
/// The name is refused, or what the kernel said.
pub(crate) fn open_connection(path: &Path) -> io::Result<OwnedFd> {
    connect_to(&Socket::find(path)?)
}

/// Connects to a socket that was found. A Unix socket connects at once or not at all.
pub(crate) fn connect_to(socket: &Socket) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(socket.address())?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_send_buffer_size(&socket, UNREAD_BYTES_MAX)?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// What one read brought.
pub(crate) enum Received {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The other side has closed.
    End,
}

/// Reads at most `into.len()` bytes and the descriptors that came with them.
///
/// # Errors
/// What the kernel said, or descriptors that it could not give: the connection is to be closed,
/// since it is unknown which message lost them. Those that came were lent all the same.
pub(crate) fn receive(
    socket: impl AsFd,
    into: &mut [u8],
    mut lend: impl FnMut(OwnedFd),
) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(into)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match recvmsg(socket, &mut bytes, &mut control, flags) {
        Ok(message) => message,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(error) => return Err(error.into()),
    };
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            rights.for_each(&mut lend);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("descriptors were lost: too many, or none left to give"));
    }
    Ok(if message.bytes == 0 { Received::End } else { Received::Bytes(message.bytes) })
}

/// Sends what fits now: the number of bytes taken, 0 when none. The descriptor goes with the first.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: &[BorrowedFd<'_>] = fd.as_slice();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut control, flags) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    /// A VMM that serves one connection would take the look for it.
    #[test]
    fn whoever_listens_does_not_notice_that_his_name_is_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let looked = || {
            let place = SocketPlace::find(&path, Purpose::Socket).expect("a folder of ours");
            stands(&place).expect("a look")
        };
        assert!(matches!(looked(), Standing::Nothing));
        let listener = UnixListener::bind(&path).expect("a socket");
        listener.set_nonblocking(true).expect("no waiting");
        assert!(matches!(looked(), Standing::Taken));
        let nobody = listener.accept().expect_err("nobody came");
        assert_eq!(nobody.kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        assert!(matches!(looked(), Standing::Left));
        let datagrams = folder.path().join("d");
        let _has = UnixDatagram::bind(&datagrams).expect("a socket");
        std::fs::rename(&datagrams, &path).expect("renamed");
        assert!(matches!(looked(), Standing::Taken));
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, "mine").expect("written");
        assert!(matches!(looked(), Standing::NoSocket));
    }

    #[test]
    fn whoever_waits_is_sent_away_or_it_is_told_that_he_may_still_wait() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let listener = open_listener(&path, &Rights::own()).expect("a socket");
        let waiting: Vec<_> = (0..3).map(|_| UnixStream::connect(&path).expect("room")).collect();
        send_away(&listener).expect("they go");
        assert!(waiting.iter().all(is_readable), "each hears of its end");
        send_away(&listener).expect("nobody is left");
        // One that cannot be accepted from, as when no descriptor is left for whoever waits.
        let none = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None);
        assert_eq!(send_away(&none.expect("a socket")), Err(Errno::INVAL));
    }

    #[test]
    fn what_nobody_has_read_is_seen_and_so_is_the_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert!(!is_readable(&ours));
        theirs.write_all(&[1]).unwrap();
        assert!(is_readable(&ours));
        rustix::io::read(&ours, &mut [0; 8]).unwrap();
        assert!(!is_readable(&ours));
        drop(theirs);
        assert!(is_readable(&ours));
    }
}
