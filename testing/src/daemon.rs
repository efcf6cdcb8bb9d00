//! A `sidecore` daemon that a test or a bench starts, asks and ends as an operator does it.
//!
//! The only place of the harness where one is started; how is in [`Config`].

mod config;
mod killed;
mod looks;
mod upgrade;

use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::clock::now_ns;
use crate::frontend::{Frontend, FrontendSpec};
use crate::net_frontend::{Nic, NicSpec};
use crate::scratch::Scratch;
use crate::timing::PATIENCE;
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

pub use self::config::Config;
use self::killed::Killer;
pub use self::upgrade::{BUSY, Pause, UpgradeCall, is_busy};

/// Between two looks at something that has no descriptor.
const LOOK: Duration = Duration::from_millis(1);
/// Between two looks, when it takes long: many are a command of the program, some 15 ms of a processor.
const LOOK_MAX: Duration = Duration::from_millis(50);
/// Between two tries to connect: how soon a guest is back is measured, too.
const TRY: Duration = Duration::from_micros(200);
/// Of what those said that were killed one after the other only the end is worth keeping.
const LOG_BYTES_MAX: u64 = 1 << 20;
const NOBODY_ID: u32 = 65534;

/// A process, also one that is not a child of the test.
#[derive(Debug)]
struct Process {
    pid: u32,
    process: OwnedFd,
}

impl Process {
    fn of(pid: u32) -> Result<Process> {
        let number = Pid::from_raw(pid as i32).context("no process has that number")?;
        let process = pidfd_open(number, PidfdFlags::empty()).context("the process is gone")?;
        Ok(Process { pid, process })
    }

    /// Whether it has ended, after waiting for at most that long.
    fn has_ended(&self, wait: Duration) -> Result<bool> {
        let time = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        Ok(poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&time))? > 0)
    }

    fn await_end(&self) -> Result<()> {
        ensure!(self.has_ended(PATIENCE)?, "process {} does not end", self.pid);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        pidfd_send_signal(&self.process, signal).context("signalling a daemon")
    }
}

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    config: Config,
    binary: PathBuf,
    notify: UnixDatagram,
    /// Whoever serves: the child, or who has taken over from it and from those between.
    process: Process,
    /// What the test has to reap.
    child: Option<Child>,
    born_ns: u64,
    killer: Option<Killer>,
    /// Last, so that the folder goes after the process.
    dir: Scratch,
}

impl Daemon {
    /// Starts one whose file declares `devices`, with one sidecore, and waits until it is ready.
    ///
    /// # Errors
    /// It did not start; what it said is in the message.
    pub fn start(name: &str, devices: &str) -> Result<Daemon> {
        Daemon::with(name, devices).start()
    }

    /// The same, to be told more before it is started.
    pub fn with(name: &str, devices: &str) -> Config {
        Config::new(name, devices)
    }

    /// Makes its folder, and starts it.
    fn begin_with(config: Config) -> Result<Daemon> {
        let dir = Scratch::new(&std::env::temp_dir(), &config.name)?;
        let notify = UnixDatagram::bind(dir.path().join("notify"))?;
        notify.set_nonblocking(true)?;
        std::fs::create_dir(dir.path().join("state"))?;
        std::fs::create_dir(dir.path().join("images"))?;
        let mut binary = config.program.clone().map_or_else(sidecore_binary, Ok)?;
        if config.is_nobody {
            // Where that user can read it, whatever folder it was built in.
            let copy = dir.path().join("sidecore");
            copy_program(&binary, &copy)?;
            binary = copy;
            for path in ["state", "images", "notify"] {
                chown(dir.path().join(path), Some(NOBODY_ID), Some(NOBODY_ID))?;
            }
            // It makes its sockets there, and cannot put anything in the place of what root writes and runs.
            chown(dir.path(), None, Some(NOBODY_ID))?;
            std::fs::set_permissions(dir.path(), Permissions::from_mode(0o1775))?;
        }
        std::fs::write(dir.path().join("sidecore.toml"), config.text())?;
        let born_ns = now_ns();
        let child = spawn(&config, &binary, dir.path())?;
        let process = Process::of(child.id())?;
        let (child, killer) = (Some(child), None);
        let daemon = Daemon { config, binary, notify, process, child, born_ns, killer, dir };
        daemon.await_ready()?;
        Ok(daemon)
    }

    /// Writes another file, for a reload or for whoever takes over: what it was started with, and other devices.
    ///
    /// # Errors
    /// The system's.
    pub fn configure(&self, devices: &str) -> Result<()> {
        self.configure_as(|config| config.devices(devices))
    }

    /// The same, with any changes.
    ///
    /// # Errors
    /// The system's.
    pub fn configure_as(&self, change: impl FnOnce(Config) -> Config) -> Result<()> {
        let text = change(self.config.clone()).text();
        Ok(std::fs::write(self.dir().join("sidecore.toml"), text)?)
    }

    /// Puts another program in the place of that which a [`Config::installed`] one was started from: `None`,
    /// the real one again.
    ///
    /// # Errors
    /// The system's.
    pub fn install(&self, program: Option<&Path>) -> Result<()> {
        install(program.unwrap_or(&self.binary), self.dir())
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
    /// It ended, or does not listen in time.
    pub fn connect(&self, id: &str) -> Result<UnixStream> {
        self.connect_unless_killed(id)?.context("the daemon was killed")
    }

    /// Connects to the disk of that name.
    ///
    /// # Errors
    /// As [`Daemon::connect`] and [`Frontend::over`], with the daemon's last words.
    pub fn frontend(&self, id: &str, spec: &FrontendSpec) -> Result<Frontend> {
        let connected = Frontend::over(self.connect(id)?, spec.clone());
        connected.with_context(|| format!("the daemon says:\n{}", self.last_words()))
    }

    /// Connects to the NIC of that name, and waits until its queues are served and each sidecore knows its port: until
    /// then frames for it find nobody.
    ///
    /// # Errors
    /// As [`Daemon::connect`] and [`Nic::over`], with the daemon's last words; or it is not served in time.
    pub fn nic(&self, id: &str, spec: NicSpec) -> Result<Nic> {
        let nic = Nic::over(self.connect(id)?, spec);
        let nic = nic.with_context(|| format!("{id}; the daemon says:\n{}", self.last_words()))?;
        self.await_nic(id, nic.pairs())?;
        Ok(nic)
    }

    /// Waits until so many pairs of a NIC's queues are served, and each sidecore knows its port.
    ///
    /// # Errors
    /// They are not in time.
    pub fn await_nic(&self, id: &str, pairs: u16) -> Result<()> {
        await_that("a NIC's queues to be attached", || {
            Ok(self.nic_view(id)?["queues_attached"] == 2 * pairs)
        })
    }

    /// What is said of a NIC once each sidecore has ended the visit that it was in: until then its frames may be seen
    /// at one end, and neither be counted nor be seen at the other. A NIC without a switch is not waited for.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn nic_view(&self, id: &str) -> Result<serde_json::Value> {
        let line = format!("nic show {id}");
        let shown = self.ask(&line)?;
        let Some(switch) = shown["switch"].as_str() else { return Ok(shown) };
        self.await_visits(switch)?;
        self.ask(&line)
    }

    /// Waits until each sidecore has ended the visit that it was in, and has done what it was told: they are asked for
    /// addresses of that switch, between visits.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn await_visits(&self, switch: &str) -> Result<()> {
        self.ask(&format!("switch show {switch}")).map(drop)
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

    /// Ends it as systemd does, and waits.
    ///
    /// # Errors
    /// It did not end in order, or not in time.
    pub fn stop(&mut self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        self.process.await_end()?;
        if let Some(mut child) = self.child.take() {
            let status = child.wait()?;
            ensure!(status.success(), "it ended with {status:?}");
        }
        no_defect(self.dir())
    }

    /// Starts it again after [`Daemon::stop`] or [`Daemon::kill`], with the same file and state.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_again(&mut self) -> Result<()> {
        // What it said when it stopped.
        self.forget_notices();
        self.born_ns = now_ns();
        let child = spawn(&self.config, &self.binary, self.dir.path())?;
        self.process = Process::of(child.id())?;
        self.child = Some(child);
        self.await_ready()
    }

    /// The same, started in another way: its file stays.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_again_as(&mut self, change: impl FnOnce(Config) -> Config) -> Result<()> {
        self.config = change(self.config.clone());
        self.start_again()
    }

    /// Keeps it from running until [`Daemon::resume`].
    ///
    /// # Errors
    /// It is gone.
    pub fn halt(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Lets it run again.
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// It does not: how it ended, and its last words.
    pub fn is_alive(&mut self) -> Result<()> {
        if !self.process.has_ended(Duration::ZERO)? {
            return Ok(());
        }
        let status = match &mut self.child {
            Some(child) => child.wait()?.to_string(),
            None => "a status that only its parent knows".to_owned(),
        };
        bail!("the daemon ended with {status}:\n{}", self.last_words())
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// When it was last started, monotonic nanoseconds.
    pub fn born_ns(&self) -> u64 {
        self.born_ns
    }

    /// The end of what it printed.
    pub fn last_words(&self) -> String {
        last_words(self.dir())
    }

    /// Whether it waited for what was in flight, when it was stopped last, for as long as it ever does. On a machine
    /// that has too much to do its sidecores may not have run meanwhile.
    pub fn gave_up(&self) -> bool {
        let words = self.last_words();
        let since = words.rsplit("INFO stopping").next();
        since.is_some_and(|since| since.contains("what is in flight does not end"))
    }

    /// A service manager reads what it is told; whoever tells waits for that.
    fn forget_notices(&self) {
        while self.notify.recv(&mut [0; 256]).is_ok() {}
    }

    fn await_ready(&self) -> Result<()> {
        if self.config.is_quick {
            return Ok(());
        }
        let (said, end) = (&self.notify, &self.process.process);
        let mut either = [PollFd::new(said, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        poll(&mut either, Some(&patience))?;
        let mut notice = [0; 256];
        // Who has ended may have said it before.
        let got = self.notify.recv(&mut notice);
        let ready = got.is_ok_and(|len| notice[..len].starts_with(b"READY=1"));
        ensure!(ready, "the daemon does not start:\n{}", self.last_words());
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.killer = None;
        let _ = self.process.signal(Signal::KILL);
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if !std::thread::panicking()
            && let Err(defect) = no_defect(self.dir())
        {
            panic!("{defect}");
        }
    }
}

/// Waits until `holds`, for what has no descriptor to wait on, and must come. It looks each millisecond, and less often the
/// longer it takes: a look is often a process.
///
/// # Errors
/// Its error, or it did not hold in [`PATIENCE`].
pub fn await_that(what: &str, holds: impl FnMut() -> Result<bool>) -> Result<()> {
    await_within(PATIENCE, what, holds)
}

/// The same, of what may take longer.
///
/// # Errors
/// Its error, or it did not hold in time.
pub fn await_within(
    within: Duration,
    what: &str,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = now_ns();
    while !holds()? {
        let waited = Duration::from_nanos(now_ns() - start);
        ensure!(waited < within, "waited {waited:?} in vain for {what}");
        pause((waited / 4).clamp(LOOK, LOOK_MAX));
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

/// Where the `sidecore` program is, unless told: `SIDECORE_BIN`, or beside the running program
/// (a test runs one folder below it).
///
/// # Errors
/// It is not there.
pub fn sidecore_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SIDECORE_BIN") {
        return Ok(PathBuf::from(path));
    }
    let own = std::env::current_exe()?;
    let found = own.ancestors().skip(1).take(2).map(|dir| dir.join("sidecore"));
    let found = found.into_iter().find(|path| path.is_file());
    found.context(
        "the sidecore program is not beside this one: build it (cargo build -p sidecore-bin, with \
         --release for benches) or name it in SIDECORE_BIN",
    )
}

/// Puts `program` into the place of a daemon's own copy, at once.
fn install(program: &Path, dir: &Path) -> Result<()> {
    let new = dir.join("sidecore.new");
    copy_program(program, &new)?;
    Ok(std::fs::rename(&new, dir.join("sidecore"))?)
}

/// Fails with what a daemon in `dir` said of a fault of its own, which no test may cause. A panic is one: of a process
/// that took over only its log tells how it ended.
fn no_defect(dir: &Path) -> Result<()> {
    const FAULTS: [&str; 2] = ["a fault of the daemon's own", " panicked at "];
    let Ok(text) = std::fs::read(dir.join("log")) else { return Ok(()) };
    let text = String::from_utf8_lossy(&text);
    let found = text.lines().find(|line| FAULTS.iter().any(|fault| line.contains(fault)));
    found.map_or(Ok(()), |line| bail!("the daemon says of itself: {line}"))
}

/// The end of the log in `dir`.
pub(crate) fn last_words(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Starts one in `dir`. A system call that the daemon's lists lack ends it (`SIDECORE_CONFINE`).
fn spawn(config: &Config, binary: &Path, dir: &Path) -> Result<Child> {
    let log = dir.join("log");
    if config.is_quick && std::fs::metadata(&log).is_ok_and(|file| file.len() > LOG_BYTES_MAX) {
        // What it says would be gone before the end, where it is asked for.
        no_defect(dir)?;
        std::fs::remove_file(&log)?;
    }
    let log = std::fs::File::options().create(true).append(true).open(log)?;
    let mut command = Command::new("setpriv");
    command.args(config.words());
    if config.is_installed {
        install(binary, dir)?;
        command.arg(dir.join("sidecore"));
    } else {
        command.arg(binary);
    }
    if !config.is_quick {
        command.env("NOTIFY_SOCKET", dir.join("notify"));
    }
    command
        .args(["serve", "--config", "sidecore.toml"])
        .current_dir(dir)
        .env("SIDECORE_CONFINE", "strict")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("starting setpriv (Debian: apt-get install util-linux)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_in_a_log_is_found_before_the_log_goes() -> Result<()> {
        let dir = Scratch::new(&std::env::temp_dir(), "faults")?;
        let log = dir.path().join("log");
        no_defect(dir.path())?;
        let config = Config::new("faults", "").quick();
        let long = "INFO ready\n".repeat(LOG_BYTES_MAX as usize / 8);
        for fault in ["ERROR a fault of the daemon's own: x", "thread 'a' panicked at a.rs:1:2:"] {
            std::fs::write(&log, format!("{long}{fault}\n{long}"))?;
            let said = spawn(&config, Path::new("/bin/false"), dir.path()).map(drop);
            let said = said.map_err(|error| error.to_string());
            assert_eq!(said, Err(format!("the daemon says of itself: {fault}")));
            assert!(log.exists());
        }
        Ok(())
    }
}
