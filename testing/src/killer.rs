//! A daemon that is started, killed with `kill -9` at some instant, and started again, thousands of
//! times. Quicker than [`crate::daemon::Daemon`]: it waits for a socket, not for readiness.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::now_ns;
use crate::scratch::Scratch;
use crate::server::sidecore_binary;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::pause;

/// A daemon that does not listen after so long is a failure.
const START_NS: u64 = 90_000_000_000;
/// Between two tries to connect.
const LOOK: Duration = Duration::from_micros(200);

/// Where daemons run, one after the other.
#[derive(Debug)]
pub struct Host {
    binary: PathBuf,
    dir: Scratch,
    /// A cgroup that the daemons of now on are put into.
    pub cgroup: Option<PathBuf>,
}

/// One daemon.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Before it was started, monotonic nanoseconds.
    pub born_ns: u64,
    killed: Arc<AtomicBool>,
    killer: Option<JoinHandle<()>>,
    log: PathBuf,
}

impl Host {
    /// With a configuration file that declares `disks`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(name: &str, disks: &str) -> Result<Host> {
        let dir = Scratch::new(&std::env::temp_dir(), name)?;
        let text = format!(
            "[daemon]\napi = \"api.sock\"\nrun_dir = \".\"\nstate_dir = \"state\"\n\
             [sidecores]\ncpus = \"0\"\n{disks}"
        );
        std::fs::create_dir(dir.path().join("state"))?;
        std::fs::write(dir.path().join("sidecore.toml"), text)?;
        Ok(Host { binary: sidecore_binary()?, dir, cgroup: None })
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where the disk of that name is reached.
    pub fn socket(&self, id: &str) -> PathBuf {
        self.dir().join(format!("{id}.sock"))
    }

    /// Starts a daemon.
    ///
    /// # Errors
    /// The system's.
    pub fn start(&self) -> Result<Running> {
        let log = self.dir().join("log");
        // Only the last daemons' words are worth keeping.
        if std::fs::metadata(&log).is_ok_and(|file| file.len() > 1 << 20) {
            std::fs::remove_file(&log)?;
        }
        let out = std::fs::File::options().create(true).append(true).open(&log)?;
        let born_ns = now_ns();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&self.binary)
            .args(["serve", "--config", "sidecore.toml"])
            .current_dir(self.dir())
            .env("SIDECORE_CONFINE", "strict")
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .context("starting setpriv (Debian: apt-get install util-linux)")?;
        let killed = Arc::new(AtomicBool::new(false));
        let running = Running { child, born_ns, killed, killer: None, log };
        if let Some(cgroup) = &self.cgroup {
            let joined = std::fs::write(cgroup.join("cgroup.procs"), running.pid().to_string());
            if let Err(error) = joined {
                running.kill_now()?;
                return Err(error).context("moving the daemon into its cgroup");
            }
        }
        Ok(running)
    }

    /// What the program says to a command, as JSON.
    ///
    /// # Errors
    /// It failed.
    pub fn ask(&self, line: &str) -> Result<serde_json::Value> {
        let output = Command::new(&self.binary)
            .args(line.split(' '))
            .arg("--json")
            .current_dir(self.dir())
            .env("SIDECORE_API", "api.sock")
            .output()?;
        if !output.status.success() {
            bail!("`sidecore {line}`: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

impl Running {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Descriptors that it has open, and mappings of memory that front-ends have lent.
    ///
    /// # Errors
    /// It is gone.
    pub fn holds(&self) -> Result<(usize, usize)> {
        let proc = PathBuf::from(format!("/proc/{}", self.pid()));
        let maps = std::fs::read_to_string(proc.join("maps"))?;
        let lent = maps.lines().filter(|line| line.contains("memfd:")).count();
        Ok((std::fs::read_dir(proc.join("fd"))?.count(), lent))
    }

    /// What its descriptors are, for a message.
    pub fn descriptors(&self) -> Vec<String> {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid()));
        let links = open.into_iter().flatten().flatten().map(|entry| entry.path());
        let mut names: Vec<String> = links
            .filter_map(|link| Some(std::fs::read_link(link).ok()?.display().to_string()))
            .collect();
        names.sort();
        names
    }

    /// Has it killed in so many nanoseconds, by a thread of its own: at any instant.
    pub fn kill_in(&mut self, wait_ns: u64) {
        let killed = Arc::clone(&self.killed);
        let pid = Pid::from_child(&self.child);
        self.killer = Some(std::thread::spawn(move || {
            pause(Duration::from_nanos(wait_ns));
            // It is not reaped before this thread was joined, so the number is its own.
            let _ = kill_process(pid, Signal::KILL);
            killed.store(true, Ordering::Release);
        }));
    }

    /// Whether it was killed.
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Waits until the killer has killed it; false when there is none, or not in time.
    pub fn await_kill(&self, within_ns: u64) -> bool {
        let start = now_ns();
        while self.killer.is_some() && now_ns() - start < within_ns {
            if self.is_killed() {
                return true;
            }
            pause(LOOK);
        }
        self.is_killed()
    }

    /// Waits until it was killed and is gone.
    ///
    /// # Errors
    /// It ended otherwise.
    pub fn reap(mut self) -> Result<()> {
        self.reap_killed()
    }

    /// Kills it at once.
    ///
    /// # Errors
    /// It ended otherwise.
    pub fn kill_now(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::KILL)?;
        self.reap_killed()
    }

    fn reap_killed(&mut self) -> Result<()> {
        use std::os::unix::process::ExitStatusExt;
        if let Some(killer) = self.killer.take() {
            let _ = killer.join();
        }
        let status = self.child.wait()?;
        if status.signal() != Some(Signal::KILL.as_raw()) {
            bail!("the daemon ended by itself with {status}:\n{}", self.last_words());
        }
        Ok(())
    }

    /// Connects as soon as it listens; `None` when it was killed before.
    ///
    /// # Errors
    /// It ended by itself, or does not listen.
    pub fn connect(&mut self, socket: &Path) -> Result<Option<UnixStream>> {
        loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                return Ok(Some(stream));
            }
            if self.is_killed() {
                return Ok(None);
            }
            // Without a killer, an end is its own.
            if self.killer.is_none()
                && let Some(status) = self.child.try_wait()?
            {
                bail!("the daemon ended with {status}:\n{}", self.last_words());
            }
            let waited_ns = now_ns() - self.born_ns;
            if waited_ns > START_NS {
                bail!("no {} after {waited_ns} ns:\n{}", socket.display(), self.last_words());
            }
            pause(LOOK);
        }
    }

    /// The end of what it and those before it printed.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(killer) = self.killer.take() {
            let _ = killer.join();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
