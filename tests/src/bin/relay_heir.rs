//! A program that a daemon takes for its new version: it starts a real one, passes on what the two say to
//! each other with the descriptors, and kills the daemon with SIGKILL when a packet of the name that the
//! file `relay` in its folder gives has gone by. What became of the heir is in the file `relayed`. Or, told
//! to `swap-listener`, it kills nobody, and gives the heir something else for the first device's socket; told to
//! `spoil-rings`, what the daemon says of where rings stand. Told to be `older`, it kills nobody, and the heir is one that
//! reads only the first format. Told `heir-` and a packet's name, it kills the heir behind that packet, and ends.
//!
//! Run by a daemon of `tests/upgrade_killed.rs`, by the name of `sidecore`.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use testing::daemon::await_that;

/// For each wait of it: it must not outlive its test.
const PATIENCE: Duration = Duration::from_secs(90);

/// The tasks that are no packet's name.
const SWAP: &str = "swap-listener";
const SPOIL: &str = "spoil-rings";
const OLDER: &str = "older";
/// What begins the name of the packet behind which the heir dies.
const HEIR: &str = "heir-";

struct Packet {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Packet {
    fn is(&self, name: &str) -> bool {
        self.bytes.starts_with(format!("{{\"{name}\"").as_bytes())
    }
}

/// The next packet; `None` at the end.
fn hear(from: BorrowedFd<'_>) -> Result<Option<Packet>> {
    let mut bytes = vec![0; 128 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let got = match recvmsg(from, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
        Err(rustix::io::Errno::CONNRESET) => 0,
        got => got?.bytes,
    };
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    bytes.truncate(got);
    Ok((got > 0).then_some(Packet { bytes, fds }))
}

fn say(to: BorrowedFd<'_>, packet: &Packet) -> Result<()> {
    let fds: Vec<BorrowedFd<'_>> = packet.fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ensure!(control.push(SendAncillaryMessage::ScmRights(&fds)), "too many descriptors");
    }
    sendmsg(to, &[IoSlice::new(&packet.bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn is_readable(fd: &impl AsFd, wait: Duration) -> Result<bool> {
    let time = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    Ok(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&time))? > 0)
}

/// Kills that process, and waits until nothing of it runs.
fn kill(pid: i32) -> Result<()> {
    let pid = Pid::from_raw(pid).context("no process")?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&process, Signal::KILL)?;
    ensure!(is_readable(&process, PATIENCE)?, "the daemon does not end");
    Ok(())
}

/// Passes packets on until the one after which the daemon is to be killed.
fn relay(daemon: BorrowedFd<'_>, heir: BorrowedFd<'_>, last: &str, pid: i32) -> Result<()> {
    let mut swaps = last == SWAP;
    let of_own_child = std::fs::read_to_string("relay")?.starts_with(HEIR);
    loop {
        let mut fds = [PollFd::new(&daemon, PollFlags::IN), PollFd::new(&heir, PollFlags::IN)];
        let time = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        ensure!(poll(&mut fds, Some(&time))? > 0, "nobody says anything");
        let of_heir = !fds[1].revents().is_empty();
        let (from, to) = if of_heir { (heir, daemon) } else { (daemon, heir) };
        let who = if of_heir { "heir" } else { "daemon" };
        let mut packet = hear(from)?.with_context(|| format!("the {who} ended before {last:?}"))?;
        if swaps && packet.is("device") {
            // The first descriptor is the listener; nobody can wait for a file.
            *packet.fds.first_mut().context("no listener")? = std::fs::File::open("relay")?.into();
            swaps = false;
        }
        if last == SPOIL && packet.is("rings") {
            packet.bytes = b"{\"rings\":7}".to_vec();
        }
        if last == OLDER {
            as_older(&mut packet)?;
            say(to, &packet)?;
            // The last word there is.
            if packet.is("serving") {
                return Ok(());
            }
            continue;
        }
        let is_last = packet.is(last);
        // What the daemon said is known to nobody before it is dead; what the heir said it may hear. An heir
        // that is to die hears it.
        if is_last && !of_heir && !of_own_child {
            kill(pid)?;
        }
        say(to, &packet)?;
        if is_last && of_own_child {
            return kill(pid);
        }
        if is_last {
            return if of_heir { kill(pid) } else { Ok(()) };
        }
    }
}

/// What the two say, as if the heir were of a version that reads only the first format.
fn as_older(packet: &mut Packet) -> Result<()> {
    if packet.is("hello") {
        let mut words: serde_json::Value = serde_json::from_slice(&packet.bytes)?;
        ensure!(words["hello"]["formats"].as_array().is_some_and(|all| all.len() > 1), "{words}");
        words["hello"]["formats"] = serde_json::json!([1]);
        packet.bytes = serde_json::to_vec(&words)?;
    }
    if packet.is("begin") {
        let words: serde_json::Value = serde_json::from_slice(&packet.bytes)?;
        ensure!(words["begin"]["format"] == 1, "the heir does not read that: {words}");
    }
    Ok(())
}

/// What became of the heir: it ended, or the API says that it is the daemon.
fn outcome(heir: &mut Child) -> Result<String> {
    let mut became = None;
    await_that("the heir to end or to serve", || {
        became = match heir.try_wait()? {
            Some(_) => Some("ended".to_string()),
            None if is_daemon(heir.id()) => Some(format!("serves {}", heir.id())),
            None => None,
        };
        Ok(became.is_some())
    })?;
    became.context("it neither ended nor serves")
}

/// Whether that process answers at the API's socket, which is in this folder.
fn is_daemon(pid: u32) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut api = UnixStream::connect("api.sock")?;
        api.set_read_timeout(Some(Duration::from_secs(1)))?;
        api.write_all(b"GET /v1/daemon HTTP/1.1\r\nHost: sidecore\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        api.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains(&format!("\"pid\":{pid},")))
}

fn main() -> Result<()> {
    let told = std::fs::read_to_string("relay")?;
    let words: Vec<&str> = told.trim().splitn(3, ' ').collect();
    let [last, pid, program] = words[..] else { bail!("{told:?} is no task") };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut heir = Command::new(program)
        .args(std::env::args_os().skip(1))
        .stdin(Stdio::from(theirs))
        .spawn()
        .context("no heir")?;
    if let Some(last) = last.strip_prefix(HEIR) {
        let own = heir.id() as i32;
        relay(rustix::stdio::stdin(), ours.as_fd(), last, own)?;
        heir.wait()?;
        return Ok(std::fs::write("relayed", "ended")?);
    }
    let done = relay(rustix::stdio::stdin(), ours.as_fd(), last, pid.parse()?);
    // The heir sees the end, and what the daemon said last is nobody's: descriptors of sockets and images
    // came with it.
    drop(ours);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let became = match done {
        Ok(()) => outcome(&mut heir)?,
        Err(error) => {
            heir.kill()?;
            format!("failed: {error:#}")
        }
    };
    std::fs::write("relayed.new", became)?;
    std::fs::rename("relayed.new", "relayed")?;
    Ok(())
}
