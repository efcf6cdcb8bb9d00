//! Network namespaces of the tests' own, and frames to send through them.

use std::io::{BufRead, BufReader, Lines, Write};
use std::panic::Location;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use backend::net::{HostPort, HostSource, Received};
use frame::Header;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Tells a test that it is in its namespace already.
const INSIDE: &str = "SIDECORE_TEST_INSIDE";

/// Tells a test that a capability was taken from it.
pub(crate) const BOUNDED: &str = "SIDECORE_TEST_BOUNDED";

/// Whether a capability was taken from this process.
pub(crate) fn is_bounded() -> bool {
    std::env::var_os(BOUNDED).is_some()
}

/// The test `name` of the file that calls, as this program knows it: each file is a module.
#[track_caller]
pub(crate) fn whole(name: &str) -> String {
    let file = Path::new(Location::caller().file()).file_stem();
    format!("{}::{name}", file.expect("a file's name").display())
}

/// Runs `body` in a process of its own: the test `name` of this program once more.
#[track_caller]
pub(crate) fn alone(name: &str, body: impl FnOnce()) {
    if is_inside(name) {
        return body();
    }
    let status = again(&whole(name), &["--fork", "--kill-child"]).status().expect("unshare");
    assert!(status.success(), "{name}, alone: {status}");
}

/// Runs `body` in a network namespace that ends with it: the test `name` of this program once more.
/// Without root it is left out.
#[track_caller]
pub(crate) fn in_namespace(name: &str, body: impl FnOnce()) {
    if is_inside(name) {
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            // Fewer frames that nobody asked for; the tests bear those that come.
            let _ = std::fs::write(path, "1");
        }
        return body();
    }
    if !rustix::process::geteuid().is_root() {
        // Past the harness, in one piece; `./x test` counts it.
        let _ = std::io::stderr().write_all(b"skipped: a network namespace needs root\n");
        return;
    }
    let status =
        again(&whole(name), &["--net", "--fork", "--kill-child"]).status().expect("unshare");
    assert!(status.success(), "{name}, in its namespace: {status}");
}

/// Whether this is the test `name` in its namespace or its process.
#[track_caller]
pub(crate) fn is_inside(name: &str) -> bool {
    let whole = whole(name);
    std::env::var(INSIDE).is_ok_and(|inside| inside == whole)
}

#[track_caller]
fn again(whole: &str, options: &[&str]) -> Command {
    let mut command = run_by("unshare", options, whole);
    command.env(INSIDE, whole);
    command
}

/// The test `whole` of this program, which `program` runs. Of a name that no test has none would run, and all would
/// seem well.
#[track_caller]
pub(crate) fn run_by(program: &str, options: &[&str], whole: &str) -> Command {
    let own = std::env::current_exe().expect("the test program");
    let listed = Command::new(&own).args(["--exact", whole, "--list"]).output().expect("a list");
    let is_there = listed.stdout.starts_with(format!("{whole}: test\n").as_bytes());
    assert!(is_there, "{whole} is no test: name the test that calls");
    let mut command = Command::new(program);
    command.args(options).arg(own).args(["--exact", whole, "--nocapture"]);
    command
}

#[test]
#[should_panic(expected = "network::of_another_name is no test: name the test that calls")]
fn a_name_that_no_test_has_is_not_run() {
    alone("of_another_name", || ());
}

/// A test of this program in another namespace, with pipes to it; it ends with this value.
pub(crate) struct Peer {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Of the test `name` of the file that calls.
    #[track_caller]
    pub(crate) fn start(name: &str) -> Peer {
        let mut command = again(&whole(name), &["--net"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let lines = BufReader::new(stdout.expect("piped")).lines();
        Peer { child, stdin: stdin.expect("piped"), lines }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has said this line.
    pub(crate) fn await_line(&mut self, wanted: &str) {
        assert!(self.lines.any(|line| line.expect("a line") == wanted), "it never said {wanted}");
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it listens");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `ip` with these words.
pub(crate) fn ip(words: &str) {
    assert!(try_ip(words), "ip {words}");
}

pub(crate) fn try_ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status().expect("ip").success()
}

/// What `ip` prints.
pub(crate) fn ip_says(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().expect("ip");
    String::from_utf8(output.stdout).expect("text")
}

/// Two interfaces, `v0` and `v1`, of which each receives what the other sends.
pub(crate) fn veth() {
    ip("link add v0 type veth peer name v1");
    ip("link set v0 up");
    ip("link set v1 up");
}

pub(crate) fn tap(name: &str) -> HostSource {
    tap_queue(name, 0)
}

pub(crate) fn tap_queue(name: &str, queue: u16) -> HostSource {
    HostSource::Tap { name: name.to_owned(), queue, mtu: None, ours: false }
}

pub(crate) fn packet(interface: &str) -> HostPort {
    open(&HostSource::Packet { interface: interface.to_owned() })
}

pub(crate) fn xdp(interface: &str) -> HostPort {
    open(&HostSource::Xdp { interface: interface.to_owned(), queue: 0 })
}

pub(crate) fn open(source: &HostSource) -> HostPort {
    when_free(|| HostPort::open(source))
}

pub(crate) fn refusal(source: &HostSource) -> String {
    HostPort::open(source).expect_err("opened").to_string()
}

/// A made-up clock, and how long is waited for a frame.
#[derive(Default)]
pub(crate) struct Turns(u64);

impl Turns {
    /// The next instant, 2 ms later.
    pub(crate) fn now_ns(&mut self) -> u64 {
        self.0 += 2_000_000;
        self.0
    }

    /// The next frame of `port` that `wanted` wants, as header and bytes; `None` when none comes
    /// within [`PATIENCE_MS`] or the port has gone.
    pub(crate) fn receive(
        &mut self,
        port: &mut HostPort,
        wanted: impl Fn(&Received<'_>) -> bool,
    ) -> Option<(Header, Vec<u8>)> {
        for _ in 0..10_000 {
            if let Some(received) = port.receive(self.now_ns()) {
                if wanted(&received) {
                    return Some((received.header, received.bytes.to_vec()));
                }
            } else if port.is_gone() || !wait(port, PATIENCE_MS) {
                return None;
            }
        }
        panic!("10,000 frames that nobody wants");
    }
}

/// What is opened. The kernel gives the queue of an AF_XDP socket that was closed back a moment later, and the port that a
/// link of several sockets was given may be another test's before all of them have it.
pub(crate) fn when_free<T, E: std::fmt::Display>(open: impl Fn() -> Result<T, E>) -> T {
    const LOOK_MS: i64 = 10;
    const TAKEN: [&str; 2] =
        ["another AF_XDP socket has its queue", "another process, or another link, has this port"];
    let is_taken = |error: &E| TAKEN.iter().any(|words| error.to_string().contains(words));
    for _ in 0..PATIENCE_MS / LOOK_MS {
        match open() {
            Err(error) if is_taken(&error) => {
                let time = Timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
                let _ = poll(&mut [], Some(&time));
            }
            opened => return opened.unwrap_or_else(|error| panic!("{error}")),
        }
    }
    panic!("it is taken for a minute");
}

/// How long what must come may take: a machine that stands still is no failure.
pub(crate) const PATIENCE_MS: i64 = 60_000;

/// Waits until `port` is readable; false when it is not within so many milliseconds.
pub(crate) fn wait(port: &HostPort, limit_ms: i64) -> bool {
    let fd = port.poll_fd().expect("a descriptor");
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let limit = Timespec { tv_sec: limit_ms / 1000, tv_nsec: limit_ms % 1000 * 1_000_000 };
    poll(&mut fds, Some(&limit)).expect("poll") > 0
}

/// Waits until one of them is readable, or a tenth of a second.
pub(crate) fn wait_either(one: &HostPort, other: &HostPort) {
    let fds = [one, other].map(|port| port.poll_fd().expect("a descriptor"));
    let mut fds = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    poll(&mut fds, Some(&limit)).expect("poll");
}

/// The EtherType of the tests' frames: IEEE's for experiments.
pub(crate) const MINE: [u8; 2] = [0x88, 0xb6];

/// Whether it is a frame of [`frame`].
pub(crate) fn is_mine(received: &Received<'_>) -> bool {
    received.bytes.get(12..14) == Some(&MINE)
}

/// A broadcast frame of `len` bytes, with `seed` in all of them.
pub(crate) fn frame(len: usize, seed: usize) -> Vec<u8> {
    let mut bytes = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &MINE].concat();
    bytes.extend((bytes.len()..len).map(|at| (at * 7 + seed * 13 + (at >> 8)) as u8));
    bytes
}

/// A frame of TCP over IPv4 with `payload` bytes whose checksum is left to be filled in, its header of
/// virtio-net, and the protocol's own checks as a receiver expects them.
pub(crate) fn tcp(payload: usize, segment: u16) -> (Header, Vec<u8>) {
    let mut bytes = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[8, 0]].concat();
    let total = (20 + 20 + payload) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 9, 8, 7, 10, 9, 8, 6]);
    let sum = !sum(&ip, 0);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = vec![0x12, 0x34, 0x56, 0x78, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff];
    tcp.extend([0; 4]);
    // What a stack leaves there: the sum of the pseudo header.
    let pseudo = self::sum(&ip[12..20], 6 + 20 + payload as u32);
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    bytes.extend(ip);
    bytes.extend(tcp);
    bytes.extend((0..payload).map(|at| (at * 31 + (at >> 8)) as u8));
    let header = Header {
        flags: Header::NEEDS_CSUM,
        gso_type: if segment > 0 { Header::GSO_TCP4 } else { Header::GSO_NONE },
        header_len: 54,
        gso_size: segment,
        csum_start: 34,
        csum_offset: 16,
        buffers: 0,
    };
    (header, bytes)
}

/// The internet checksum's sum, not inverted.
pub(crate) fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum >> 16 > 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
