//! A `sidecore` daemon of a test's own, started, asked and stopped as an operator does it.
//!
//! Not the daemons that are measured: those are `crate::server`'s.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::clock::now_ns;
use crate::frontend::{Frontend, FrontendSpec};
use crate::scratch::Scratch;
use crate::server::sidecore_binary;
use crate::timing;
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// The daemon says that it is ready, or ends, within this time.
const START: Duration = Duration::from_secs(90);
/// Between two looks at something that has no descriptor.
const LOOK: Duration = Duration::from_millis(1);

/// What `setpriv` takes to start a process as a user without any rights.
const NOBODY: &[&str] = &[
    "--reuid",
    "65534",
    "--regid",
    "65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
];
const NOBODY_ID: u32 = 65534;

/// How long queues stood still in an upgrade.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// How many.
    pub queues: u64,
    /// The longest, nanoseconds.
    pub longest_ns: u64,
    /// Of that: until all queues were back, until they were handed over, until they were served.
    pub parts: [u64; 3],
}

/// A process that is not a child of the test.
#[derive(Debug)]
struct Heir {
    pid: u32,
    process: OwnedFd,
}

impl Heir {
    /// Whether it has ended, after waiting for at most that long.
    fn has_ended(&self, wait: Duration) -> Result<bool> {
        let time = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        Ok(poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&time))? > 0)
    }
}

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    binary: PathBuf,
    notify: UnixDatagram,
    child: Option<Child>,
    /// The process that has taken over from the child, and from those between.
    heir: Option<Heir>,
    /// What of its command line comes before the program.
    before: Vec<String>,
    /// Last, so that the folder goes after the process.
    dir: Scratch,
}

impl Daemon {
    /// Starts one whose file declares `disks`, with one sidecore, and waits until it is ready.
    ///
    /// # Errors
    /// It did not start; what it said is in the message.
    pub fn start(name: &str, disks: &str) -> Result<Daemon> {
        Daemon::start_on(name, "0", disks)
    }

    /// As [`Daemon::start`], with a sidecore on each of `cpus` (as in the file), all of them in use.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_on(name: &str, cpus: &str, disks: &str) -> Result<Daemon> {
        let min = count(cpus).with_context(|| format!("{cpus:?} is no list of cpus"))?;
        Daemon::start_with(name, &format!("cpus = \"{cpus}\"\nmin = {min}"), disks)
    }

    /// As [`Daemon::start`], with `sidecores` as the lines of that part of the file.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_with(name: &str, sidecores: &str, disks: &str) -> Result<Daemon> {
        Daemon::start_told(name, "", &format!("[sidecores]\n{sidecores}\n{disks}"))
    }

    /// As [`Daemon::start`], with `lines` more in the part `[daemon]` of the file, and `rest` behind it.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_told(name: &str, lines: &str, rest: &str) -> Result<Daemon> {
        Daemon::start_by(name, lines, rest, Vec::new())
    }

    /// As [`Daemon::start_told`], with so many descriptors at most.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_limited(name: &str, descriptors: u64, rest: &str) -> Result<Daemon> {
        let limit = format!("--nofile={descriptors}:{descriptors}");
        Daemon::start_by(name, "", rest, vec!["prlimit".to_string(), limit])
    }

    /// As [`Daemon::start_told`], as a user without any rights. Takes root.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_as_nobody(name: &str, lines: &str, rest: &str) -> Result<Daemon> {
        Daemon::start_by(name, lines, rest, NOBODY.iter().map(ToString::to_string).collect())
    }

    /// As [`Daemon::start_told`], as a user without any rights who may lock no memory. Takes root.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_without_locked_memory(name: &str, rest: &str) -> Result<Daemon> {
        let words = ["prlimit", "--memlock=0:0", "setpriv"].iter().chain(NOBODY);
        Daemon::start_by(name, "", rest, words.map(ToString::to_string).collect())
    }

    /// As [`Daemon::start_told`], through a program that ends by becoming what follows on its command line.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_through(name: &str, program: &[&str], rest: &str) -> Result<Daemon> {
        Daemon::start_by(name, "", rest, program.iter().map(ToString::to_string).collect())
    }

    fn start_by(name: &str, lines: &str, rest: &str, before: Vec<String>) -> Result<Daemon> {
        let mut daemon = Daemon::prepare(name, lines, rest, before)?;
        daemon.begin(&daemon.binary.clone())?;
        Ok(daemon)
    }

    /// With a folder and a file, and not started.
    fn prepare(name: &str, lines: &str, rest: &str, before: Vec<String>) -> Result<Daemon> {
        let dir = Scratch::new(&std::env::temp_dir(), name)?;
        let notify = UnixDatagram::bind(dir.path().join("notify"))?;
        notify.set_read_timeout(Some(START))?;
        std::fs::create_dir(dir.path().join("state"))?;
        std::fs::create_dir(dir.path().join("images"))?;
        let mut binary = sidecore_binary()?;
        if before.iter().any(|word| word == NOBODY[0]) {
            // Where that user can read it, whatever folder it was built in.
            let copy = dir.path().join("sidecore");
            copy_program(&binary, &copy)?;
            binary = copy;
            for path in [".", "state", "images", "notify"] {
                chown(dir.path().join(path), Some(NOBODY_ID), Some(NOBODY_ID))?;
            }
        }
        let daemon = Daemon { binary, notify, child: None, heir: None, before, dir };
        daemon.write_file(lines, rest)?;
        Ok(daemon)
    }

    /// Writes another file, for a reload or for whoever takes over: `sidecores` are the lines of that
    /// part, `rest` what is behind it.
    ///
    /// # Errors
    /// The system's.
    pub fn configure(&self, sidecores: &str, rest: &str) -> Result<()> {
        self.write_file("", &format!("[sidecores]\n{sidecores}\n{rest}"))
    }

    fn write_file(&self, lines: &str, rest: &str) -> Result<()> {
        let file = format!(
            "[daemon]\napi = \"api.sock\"\nrun_dir = \".\"\nstate_dir = \"state\"\n{lines}\n{rest}"
        );
        Ok(std::fs::write(self.dir().join("sidecore.toml"), file)?)
    }

    fn begin(&mut self, program: &Path) -> Result<()> {
        self.child = Some(spawn(program, self.dir(), &self.before)?);
        self.await_ready()
    }

    /// As [`Daemon::start`], from a copy of the program in its own folder, which [`Daemon::install`]
    /// replaces.
    ///
    /// # Errors
    /// As [`Daemon::start`], or no copy could be made.
    pub fn start_installed(name: &str, sidecores: &str, disks: &str) -> Result<Daemon> {
        let rest = format!("[sidecores]\n{sidecores}\n{disks}");
        let mut daemon = Daemon::prepare(name, "", &rest, Vec::new())?;
        let program = daemon.dir().join("sidecore");
        copy_program(&daemon.binary, &program)?;
        daemon.begin(&program)?;
        Ok(daemon)
    }

    /// Puts another program in the place of that which [`Daemon::start_installed`] started: `None`, the
    /// real one again.
    ///
    /// # Errors
    /// The system's.
    pub fn install(&self, program: Option<&Path>) -> Result<()> {
        let new = self.dir().join("sidecore.new");
        copy_program(program.unwrap_or(&self.binary), &new)?;
        std::fs::rename(&new, self.dir().join("sidecore"))?;
        Ok(())
    }

    /// Its folder: of the sockets, of the configuration file, and of relative image paths.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where the disk of that name is reached.
    pub fn socket(&self, id: &str) -> PathBuf {
        self.dir().join(format!("{id}.sock"))
    }

    /// Connects to the device of that name as soon as it listens: a daemon that follows one that was killed is
    /// ready before a disk is whose last requests the kernel still holds.
    ///
    /// # Errors
    /// It does not listen in time.
    pub fn connect(&self, id: &str) -> Result<UnixStream> {
        let socket = self.socket(id);
        let mut connected = None;
        await_that(Duration::from_secs(10), &format!("{id}.sock"), || {
            connected = UnixStream::connect(&socket).ok();
            Ok(connected.is_some())
        })
        .with_context(|| format!("the daemon says:\n{}", self.last_words()))?;
        connected.context("no connection")
    }

    /// Connects to the disk of that name.
    ///
    /// # Errors
    /// As [`Daemon::connect`] and [`Frontend::over`], with the daemon's last words.
    pub fn frontend(&self, id: &str, spec: &FrontendSpec) -> Result<Frontend> {
        let connected = Frontend::over(self.connect(id)?, spec.clone());
        connected.with_context(|| format!("the daemon says:\n{}", self.last_words()))
    }

    /// Runs a command of the program with `--json`, which must succeed.
    ///
    /// # Errors
    /// It failed, or printed something else.
    pub fn ask(&self, line: &str) -> Result<serde_json::Value> {
        let (status, out, err) = self.run(&format!("{line} --json"))?;
        ensure!(status.success(), "`sidecore {line}` gave {status}: {err}");
        serde_json::from_str(&out).with_context(|| format!("`sidecore {line}` printed {out:?}"))
    }

    /// Runs a command of the program, which must fail; gives what it said.
    ///
    /// # Errors
    /// It succeeded.
    pub fn refuses(&self, line: &str) -> Result<String> {
        let (status, out, err) = self.run(line)?;
        ensure!(!status.success(), "`sidecore {line}` was not refused: {out}");
        Ok(err)
    }

    /// Runs a command of the program, which must succeed: what it prints.
    ///
    /// # Errors
    /// It failed.
    pub fn says(&self, line: &str) -> Result<String> {
        let (status, out, err) = self.run(line)?;
        ensure!(status.success(), "`sidecore {line}` gave {status}: {err}");
        Ok(out)
    }

    fn run(&self, line: &str) -> Result<(ExitStatus, String, String)> {
        let output = Command::new(&self.binary)
            .args(line.split(' '))
            .current_dir(self.dir())
            .env("SIDECORE_API", "api.sock")
            .output()?;
        let text = |bytes| String::from_utf8(bytes).context("output that is not text");
        Ok((output.status, text(output.stdout)?, text(output.stderr)?))
    }

    /// A field of `sidecore show ID`.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn shown(&self, id: &str, field: &str) -> Result<serde_json::Value> {
        Ok(self.ask(&format!("show {id}"))?[field].clone())
    }

    /// Has another process of the program take over, which is ready when this returns. Its number.
    ///
    /// # Errors
    /// It was refused, or the process before did not end in order.
    pub fn upgrade(&mut self) -> Result<u32> {
        let done = self.ask_to_upgrade()?;
        self.follow(&done)
    }

    /// The same; how long queues stood still, as the operator is told.
    ///
    /// # Errors
    /// As [`Daemon::upgrade`], or it was not told.
    pub fn upgrade_measured(&mut self) -> Result<Pause> {
        let done = self.ask_to_upgrade()?;
        self.follow(&done)?;
        let told = |name: &str| done["pause"][name].as_u64();
        let pause = || {
            let parts = [told("drained_ns")?, told("handed_ns")?, told("started_ns")?];
            Some(Pause { queues: told("queues")?, longest_ns: told("max_ns")?, parts })
        };
        pause().with_context(|| format!("no pause is told: {done}"))
    }

    /// Asks until it is done: a daemon whose sidecores have no processor for 50 ms refuses, and goes on.
    fn ask_to_upgrade(&self) -> Result<serde_json::Value> {
        let start = now_ns();
        loop {
            let asked = self.ask("upgrade");
            let is_late =
                |error: &anyhow::Error| format!("{error:#}").contains("sidecores are late");
            match asked {
                Err(error)
                    if is_late(&error)
                        && !timing::are_judged()
                        && u128::from(now_ns() - start) < timing::PATIENCE.as_nanos() => {}
                asked => return asked.with_context(|| self.last_words()),
            }
            pause(LOOK * 100);
        }
    }

    /// Asks for an upgrade that may never be answered.
    ///
    /// # Errors
    /// The system's.
    pub fn call_upgrade(&self) -> Result<Child> {
        let mut command = Command::new(&self.binary);
        command.arg("upgrade").current_dir(self.dir()).env("SIDECORE_API", "api.sock");
        Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    /// It was killed by somebody else, and process `pid` serves in its place.
    ///
    /// # Errors
    /// There is no such process, or it has ended.
    pub fn succeed(&mut self, pid: u32) -> Result<()> {
        self.reap()?;
        self.forget_notices()?;
        let number = Pid::from_raw(pid as i32).context("no process has that number")?;
        let process = pidfd_open(number, PidfdFlags::empty()).context("the heir is gone")?;
        self.heir = Some(Heir { pid, process });
        self.is_alive()
    }

    /// It was killed by somebody else.
    ///
    /// # Errors
    /// The system's.
    pub fn reap(&mut self) -> Result<()> {
        self.child()?.wait()?;
        Ok(())
    }

    /// The same, of an answer to somebody else's call.
    ///
    /// # Errors
    /// As [`Daemon::upgrade`].
    pub fn follow(&mut self, done: &serde_json::Value) -> Result<u32> {
        let pid = done["pid"].as_u64().context("an upgrade without a pid")? as u32;
        self.forget_notices()?;
        let number = Pid::from_raw(pid as i32).context("no process has that number")?;
        let process = pidfd_open(number, PidfdFlags::empty()).context("the heir is gone")?;
        match self.heir.replace(Heir { pid, process }) {
            Some(before) => ensure!(before.has_ended(START)?, "process {} goes on", before.pid),
            None => {
                let status = self.child()?.wait()?;
                ensure!(status.success(), "it handed over and ended with {status}");
            }
        }
        Ok(pid)
    }

    /// Ends it as systemd does, and waits.
    ///
    /// # Errors
    /// It did not end in order, or not in time.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(heir) = self.heir.take() {
            pidfd_send_signal(&heir.process, Signal::TERM)?;
            ensure!(heir.has_ended(Duration::from_secs(90))?, "it does not end");
            return Ok(());
        }
        kill_process(Pid::from_child(self.child()?), Signal::TERM)?;
        let mut status = None;
        await_that(Duration::from_secs(10), "the daemon to end", || {
            status = self.child()?.try_wait()?;
            Ok(status.is_some())
        })?;
        ensure!(status.is_some_and(|status| status.success()), "it ended with {status:?}");
        Ok(())
    }

    /// Ends it at once, as a crash does.
    ///
    /// # Errors
    /// It was gone already.
    pub fn kill(&mut self) -> Result<()> {
        self.is_alive()?;
        if let Some(heir) = self.heir.take() {
            pidfd_send_signal(&heir.process, Signal::KILL)?;
            ensure!(heir.has_ended(Duration::from_secs(90))?, "it does not end");
            return Ok(());
        }
        self.child()?.kill()?;
        self.child()?.wait()?;
        Ok(())
    }

    /// Starts it again after [`Daemon::stop`] or [`Daemon::kill`], with the same file and state.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_again(&mut self) -> Result<()> {
        // What it said when it stopped.
        self.forget_notices()?;
        self.begin(&self.binary.clone())
    }

    fn child(&mut self) -> Result<&mut Child> {
        self.child.as_mut().context("it was not started")
    }

    /// A service manager reads what it is told; whoever tells waits for that.
    fn forget_notices(&self) -> Result<()> {
        self.notify.set_nonblocking(true)?;
        while self.notify.recv(&mut [0; 256]).is_ok() {}
        Ok(self.notify.set_nonblocking(false)?)
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// It does not: how it ended, and its last words.
    pub fn is_alive(&mut self) -> Result<()> {
        if let Some(heir) = &self.heir {
            let has_ended = heir.has_ended(Duration::ZERO)?;
            ensure!(!has_ended, "the daemon has ended:\n{}", self.last_words());
            return Ok(());
        }
        match self.child()?.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the daemon ended with {status}:\n{}", self.last_words()),
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        let child = self.child.as_ref().map_or(0, Child::id);
        self.heir.as_ref().map_or(child, |heir| heir.pid)
    }

    /// Descriptors that it has open.
    ///
    /// # Errors
    /// It is gone.
    pub fn descriptors(&self) -> Result<usize> {
        Ok(std::fs::read_dir(self.proc("fd"))?.count())
    }

    /// Waits until it has no more than `most` descriptors open.
    ///
    /// # Errors
    /// It still has after 5 s.
    pub fn await_descriptors(&self, most: usize) -> Result<()> {
        let waited = await_that(Duration::from_secs(5), "descriptors to be closed", || {
            Ok(self.descriptors()? <= most)
        });
        waited.with_context(|| format!("{most} are expected, open are {:?}", self.open()))
    }

    /// What it has open: how many of each kind.
    pub fn open(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        let open = std::fs::read_dir(self.proc("fd")).into_iter().flatten().flatten();
        for target in open.filter_map(|entry| std::fs::read_link(entry.path()).ok()) {
            let target = target.to_string_lossy();
            // Of a socket, without its number.
            let kind = target.split_once(":[").filter(|(kind, _)| *kind != "anon_inode");
            *kinds.entry(kind.map_or(&*target, |(kind, _)| kind).to_owned()).or_default() += 1;
        }
        kinds
    }

    /// Memory of its own that it holds, bytes: not what it shares with front-ends, nor its RAM disks.
    ///
    /// # Errors
    /// It is gone.
    pub fn own_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(self.proc("status"))?;
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: u64 = own.context("no RssAnon")?.trim().trim_end_matches(" kB").parse()?;
        Ok(kib << 10)
    }

    /// What it has mapped, as the kernel lists it.
    ///
    /// # Errors
    /// It is gone.
    pub fn mappings(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.proc("maps"))?)
    }

    /// Its threads: the name of each, and the processors it may run on as the kernel lists them.
    ///
    /// # Errors
    /// It has ended.
    pub fn threads(&self) -> Result<Vec<(String, String)>> {
        let mut threads = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let status = std::fs::read_to_string(entry?.path().join("status"))?;
            let field = |name| {
                let found = status.lines().find_map(|line| line.strip_prefix(name));
                found.map(|value| value.trim().to_owned()).context(name)
            };
            threads.push((field("Name:")?, field("Cpus_allowed_list:")?));
        }
        Ok(threads)
    }

    /// CPU time of all its threads, user and system, in clock ticks of 10 ms.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu_ticks(&self) -> Result<u64> {
        let stat = std::fs::read_to_string(self.proc("stat"))?;
        let fields = stat_fields(&stat).context("an odd /proc/PID/stat")?;
        // Fields 14 and 15 of the whole line; the name and the process number are cut off.
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        number(11).zip(number(12)).map(|(user, system)| user + system).context("no times")
    }

    /// Waits until every thread of it sleeps, so that only a kick or a message wakes it.
    ///
    /// # Errors
    /// It does not within 5 s.
    pub fn await_sleep(&self) -> Result<()> {
        let mut looks = 0;
        await_that(Duration::from_secs(5), "the daemon to sleep", || {
            looks = if self.is_asleep()? { looks + 1 } else { 0 };
            Ok(looks == 3)
        })
    }

    fn is_asleep(&self) -> Result<bool> {
        for task in std::fs::read_dir(self.proc("task"))? {
            // A thread that ends between the two is no hindrance.
            let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else { continue };
            if stat_fields(&stat).and_then(|fields| fields.first().copied()) != Some("S") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The end of what it printed.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.dir().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn await_ready(&mut self) -> Result<()> {
        let mut notice = [0; 256];
        let got = self.notify.recv(&mut notice);
        let ready = got.is_ok_and(|len| notice[..len].starts_with(b"READY=1"));
        ensure!(ready, "the daemon does not start:\n{}", self.last_words());
        Ok(())
    }

    fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid().to_string()).join(name)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(heir) = &self.heir {
            let _ = pidfd_send_signal(&heir.process, Signal::KILL);
        }
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until `holds`, looking every millisecond: for what has no descriptor to wait on.
///
/// # Errors
/// Its error, or it did not hold in time.
pub fn await_that(
    within: Duration,
    what: &str,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let (start, within) = (now_ns(), timing::patient(within));
    while !holds()? {
        let waited = Duration::from_nanos(now_ns() - start);
        ensure!(waited < within, "waited {waited:?} in vain for {what}");
        pause(LOOK);
    }
    Ok(())
}

/// Lets time pass in which nothing is expected to happen.
#[expect(clippy::disallowed_methods, reason = "nothing that could be waited for")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Copies a program that is to be run, in a process of its own: a child of another thread, made meanwhile, would have
/// the copy open for writing, and the kernel runs no such file (`ETXTBSY`).
///
/// # Errors
/// The copy failed.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("--").arg(from).arg(to).status()?;
    ensure!(status.success(), "no copy of {}: {status}", from.display());
    Ok(())
}

/// How many cpus a list names.
fn count(cpus: &str) -> Option<usize> {
    let number = |text: &str| text.parse::<usize>().ok();
    let piece = |piece: &str| match piece.split_once('-') {
        Some((first, last)) => (number(last)? + 1).checked_sub(number(first)?),
        None => number(piece).map(|_| 1),
    };
    cpus.split(',').map(piece).sum()
}

/// Dies with the thread that starts it, so that a killed test leaves none behind.
/// A system call that the daemon's lists lack ends it (`SIDECORE_CONFINE`).
fn spawn(binary: &Path, dir: &Path, before: &[String]) -> Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(dir.join("log"))?;
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .args(before)
        .arg(binary)
        .args(["serve", "--config", "sidecore.toml"])
        .current_dir(dir)
        .env("NOTIFY_SOCKET", dir.join("notify"))
        .env("SIDECORE_CONFINE", "strict")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("starting setpriv (Debian: apt-get install util-linux)")
}

/// What follows the name in a line of `/proc/PID/stat`, from the state on.
fn stat_fields(stat: &str) -> Option<Vec<&str>> {
    Some(stat.rsplit_once(") ")?.1.split(' ').collect())
}
