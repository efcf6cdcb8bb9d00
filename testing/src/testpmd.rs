//! DPDK's `dpdk-testpmd` as a process: as a vhost-user server (`net_vhost`) or as a driver in front of
//! one (`net_virtio_user`), without hugepages.
//!
//! All of it runs on one core: the thread that forwards polls, the one that takes commands sleeps. It
//! dies with the caller. Debian: dpdk, librte-net-vhost23, librte-net-virtio23, librte-mempool-ring23.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::clock::now_ns;
use crate::namespace::ended_within;
use crate::unpacked::Program;

/// How long an answer, or the start, may take.
const PATIENCE_NS: u64 = 90_000_000_000;
const PROMPT: &str = "testpmd> ";
const STATS: &str = "show port stats all";

/// Which side of the socket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server: `net_vhost`, which makes the socket.
    Vhost,
    /// The driver: `net_virtio_user`, which connects.
    VirtioUser,
}

/// What it does with frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Takes and forgets.
    RxOnly,
    /// Makes and sends.
    TxOnly,
    /// Sends what it takes.
    Io,
    /// The same with both addresses swapped.
    MacSwap,
    /// Answers pings to whatever address.
    IcmpEcho,
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Mode::RxOnly => "rxonly",
            Mode::TxOnly => "txonly",
            Mode::Io => "io",
            Mode::MacSwap => "macswap",
            Mode::IcmpEcho => "icmpecho",
        }
    }
}

/// What to start.
#[derive(Clone, Debug)]
pub struct TestpmdSpec {
    /// Whose it is.
    pub program: Program,
    /// Which side.
    pub side: Side,
    /// What it does.
    pub mode: Mode,
    /// The socket.
    pub socket: PathBuf,
    /// Another port's, which frames of the first go to and come from.
    pub second: Option<PathBuf>,
    /// The core that all its threads run on.
    pub core: u16,
    /// Bytes of the frames that it makes.
    pub frame_bytes: u32,
    /// Entries of each ring.
    pub ring_size: u16,
    /// Whether rings are packed; the driver's choice.
    pub packed: bool,
    /// Whether receive buffers are merged; the driver's choice.
    pub mergeable: bool,
    /// Whether buffers are used in order; the driver's choice.
    pub in_order: bool,
    /// Pairs of queues.
    pub pairs: u16,
    /// More of what its device takes, such as `,mac=52:54:00:00:00:01`.
    pub device_options: String,
    /// More of its own options, such as `--enable-scatter`.
    pub options: String,
}

impl TestpmdSpec {
    /// A side in a mode, on one pair of split rings of 256 with mergeable buffers, in order.
    pub fn new(side: Side, mode: Mode, socket: &Path, core: u16) -> TestpmdSpec {
        TestpmdSpec {
            program: Program::installed("dpdk-testpmd"),
            side,
            mode,
            socket: socket.to_path_buf(),
            second: None,
            core,
            frame_bytes: 64,
            ring_size: 256,
            packed: false,
            mergeable: true,
            in_order: true,
            pairs: 1,
            device_options: String::new(),
            options: String::new(),
        }
    }

    fn device(&self, number: usize, socket: &Path) -> String {
        let TestpmdSpec { pairs, ring_size, .. } = self;
        let (socket, more) = (socket.display(), &self.device_options);
        match self.side {
            Side::Vhost => format!("net_vhost{number},iface={socket},queues={pairs}{more}"),
            Side::VirtioUser => format!(
                "net_virtio_user{number},path={socket},queues={pairs},queue_size={ring_size},\
                 packed_vq={},mrg_rxbuf={},in_order={}{more}",
                u8::from(self.packed),
                u8::from(self.mergeable),
                u8::from(self.in_order),
            ),
        }
    }

    fn arguments(&self) -> Vec<String> {
        let TestpmdSpec { core, pairs, ring_size, frame_bytes, .. } = self;
        let mode = self.mode.word();
        let sockets = [Some(&self.socket), self.second.as_ref()];
        let devices = sockets.into_iter().flatten().enumerate();
        let devices: Vec<String> =
            devices.map(|(at, socket)| format!("--vdev {}", self.device(at, socket))).collect();
        let devices = devices.join(" ");
        // An unpacked one does not find its drivers by itself. By name, since DPDK takes no path below a folder that
        // anybody may write to.
        let own = ["net_vhost", "net_virtio", "mempool_ring"];
        let own = own.iter().filter_map(|it| self.program.library(&format!("librte_{it}.so.")));
        let drivers: String = own.map(|library| format!("-d {library} ")).collect();
        let lcores = format!("--lcores=0@{core},1@{core}");
        let words = format!(
            "{lcores} {drivers}--no-pci --no-huge -m 256 --no-shconf --no-telemetry \
             --single-file-segments {devices} -- -i --nb-cores=1 --total-num-mbufs=4096 \
             --forward-mode={mode} --rxq={pairs} --txq={pairs} --rxd={ring_size} \
             --txd={ring_size} --txpkts={frame_bytes} {}",
            self.options
        );
        words.split_whitespace().map(String::from).collect()
    }
}

/// Frames that it has seen, and when it was asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Frames that it took.
    pub received: u64,
    /// Frames that it sent, those that did not fit the ring left out.
    pub sent: u64,
    /// Bytes that it took, without virtio-net headers.
    pub received_bytes: u64,
    /// When, nanoseconds, to within what the answer took.
    pub at_ns: u64,
}

/// A running `dpdk-testpmd`, killed when dropped.
#[derive(Debug)]
pub struct Testpmd {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    log: PathBuf,
    /// What it printed and nobody has looked at.
    heard: String,
}

impl Testpmd {
    /// Starts it and waits until it takes commands. It does not forward before [`Testpmd::command`]
    /// says `start`. Its log is `NAME.log` in `dir`.
    ///
    /// # Errors
    /// It is not installed, or did not come up; its last words are in the message.
    pub fn start(dir: &Path, name: &str, spec: &TestpmdSpec) -> Result<Testpmd> {
        let log = dir.join(format!("{name}.log"));
        // Its output is a pipe, and would otherwise come when 4 KiB of it are there.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "stdbuf", "-oL"])
            .args(spec.program.words())
            .args(spec.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("starting setpriv (Debian: apt-get install util-linux)")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.context("a process without pipes")?;
        let mut testpmd = Testpmd { child, stdin, stdout, log, heard: String::new() };
        testpmd.wait_for(PROMPT).context(
            "starting dpdk-testpmd (Debian: apt-get install dpdk librte-net-vhost23 \
             librte-net-virtio23 librte-mempool-ring23)",
        )?;
        Ok(testpmd)
    }

    /// Gives it a command line, such as `start` or `start tx_first 4`, and waits until it takes the
    /// next one.
    ///
    /// # Errors
    /// It ended, or does not answer in time.
    pub fn command(&mut self, line: &str) -> Result<String> {
        self.heard.clear();
        writeln!(self.stdin, "{line}").with_context(|| self.ended())?;
        self.wait_for(PROMPT)
    }

    /// What it has counted since it started.
    ///
    /// # Errors
    /// As [`Testpmd::command`]; an answer without numbers.
    pub fn counts(&mut self) -> Result<Counts> {
        let before = now_ns();
        let answer = self.command(STATS)?;
        let at_ns = before.midpoint(now_ns());
        let number = |name: &str| {
            let found = answer.split_once(name).map(|(_, rest)| rest.split_whitespace().next());
            let number = found.flatten().and_then(|word| word.parse::<u64>().ok());
            number.with_context(|| format!("no {name} in what dpdk-testpmd answered: {answer}"))
        };
        Ok(Counts {
            received: number("RX-packets:")?,
            sent: number("TX-packets:")?,
            received_bytes: number("RX-bytes:")?,
            at_ns,
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// It does not end in order, or in time.
    pub fn quit(mut self) -> Result<()> {
        writeln!(self.stdin, "quit").with_context(|| self.ended())?;
        let status = ended_within(&mut self.child, Duration::from_nanos(PATIENCE_NS))?;
        let status = status.context("dpdk-testpmd does not end")?;
        ensure!(status.success(), "dpdk-testpmd ended with {status}:\n{}", self.last_words());
        Ok(())
    }

    /// The process, for looking at it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Keeps it from running until [`Testpmd::resume`].
    ///
    /// # Errors
    /// The process is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it run again.
    ///
    /// # Errors
    /// The process is gone.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// The end of what it printed.
    pub fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().chain(self.heard.lines()).collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Reads until `text` comes, and gives all up to it.
    fn wait_for(&mut self, text: &str) -> Result<String> {
        let until = now_ns() + PATIENCE_NS;
        loop {
            if let Some(at) = self.heard.find(text) {
                let rest = self.heard.split_off(at + text.len());
                return Ok(std::mem::replace(&mut self.heard, rest));
            }
            let left = until.saturating_sub(now_ns());
            if left == 0 {
                bail!("dpdk-testpmd does not answer:\n{}", self.last_words());
            }
            let wait = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: 1 };
            if poll(&mut [PollFd::new(&self.stdout, PollFlags::IN)], Some(&wait))? == 0 {
                continue;
            }
            let mut bytes = [0; 4096];
            let got = self.stdout.read(&mut bytes)?;
            ensure!(got > 0, self.ended());
            self.heard.push_str(&String::from_utf8_lossy(&bytes[..got]));
        }
    }

    fn ended(&self) -> String {
        format!("dpdk-testpmd ended:\n{}", self.last_words())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process")?, signal).context("signalling dpdk-testpmd")
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
