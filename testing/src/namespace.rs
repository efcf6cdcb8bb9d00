//! Network namespaces by name, as `ip netns` has them: the host of a daemon, or what is outside of it.
//!
//! Not the one that a raw test runs in itself (`own_network`). What runs in one is killed as it goes.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::place::{Place, end_of};
use crate::scratch::Scratch;

const PREFIX: &str = "sidecore-test-";
/// The longest that a command in one may take.
const ANSWER: Duration = Duration::from_secs(150);
/// How often a neighbour is asked for its address, each second, before who waits for it is told that there is no route:
/// a machine that is late answers later than the 3 s of Linux. Guests have the same (`tests/guest/init`).
const NEIGHBOUR_PROBES: u32 = 60;

/// Namespaces and commands of this process, so that no two have one name.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A network namespace with `lo` up and a folder for what runs there; it goes with this value.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    netns: String,
    folder: Scratch,
}

impl Namespace {
    /// Makes one. `name` is its name in reports, and no other process's.
    ///
    /// # Errors
    /// The caller is not root, or has no `ip`.
    pub fn new(name: &str) -> Result<Namespace> {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let netns = format!("{PREFIX}{}-{number}-{name}", std::process::id());
        let folder = Scratch::new(&std::env::temp_dir(), &format!("{number}-{name}"))?;
        ip(&format!("netns add {netns}"))?;
        let namespace = Namespace { name: name.to_owned(), netns, folder };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Removes namespaces of processes that are gone, and what runs there.
    pub fn sweep() {
        for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let owner = name.strip_prefix(PREFIX).and_then(owner_of);
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                remove(&name);
            }
        }
    }

    /// Its name for `ip -n`.
    pub fn netns(&self) -> &str {
        &self.netns
    }

    /// The folder that its commands run in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What comes before a command that is to run inside, for `Config::through`.
    pub fn through(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.netns]
    }

    /// A program inside, in the folder of its commands. It dies with the thread that starts it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(self.through()).arg(program);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Calls `work` on a thread that is inside: a socket that it makes belongs there for good.
    ///
    /// # Errors
    /// The system's, or `work` panicked.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let there = File::open(Path::new("/run/netns").join(&self.netns))?;
        let there = there.as_fd();
        let enter = || move_into_link_name_space(there, Some(LinkNameSpaceType::Network));
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| enter().map(|()| work()));
            let done = worker.join().map_err(|_| anyhow!("it panicked in a namespace"))?;
            done.context("entering a network namespace")
        })
    }

    /// Runs `ip` on its interfaces and addresses with these words.
    ///
    /// # Errors
    /// It failed; what it said.
    pub fn ip(&self, words: &str) -> Result<()> {
        ip(&format!("-n {} {words}", self.netns))
    }

    /// Joins it to another namespace by a veth pair, both ends up: `own` is here, `end` there.
    ///
    /// # Errors
    /// As [`Namespace::ip`].
    pub fn pair(&self, own: &str, other: &Namespace, end: &str) -> Result<()> {
        let there = &other.netns;
        self.ip(&format!("link add name {own} type veth peer name {end} netns {there}"))?;
        self.ip(&format!("link set dev {own} up"))?;
        other.ip(&format!("link set dev {end} up"))
    }

    /// Makes a Linux bridge of interfaces that are there, all up.
    ///
    /// # Errors
    /// As [`Namespace::ip`].
    pub fn bridge(&self, name: &str, ports: &[&str]) -> Result<()> {
        self.ip(&format!("link add {name} type bridge mcast_snooping 0"))?;
        for port in ports {
            self.ip(&format!("link set {port} up master {name}"))?;
        }
        self.ip(&format!("link set {name} up"))
    }

    /// Gives an interface the addresses `10.9.NETWORK.HOST` and `fd09:NETWORK::HOST`, and sets it up.
    ///
    /// # Errors
    /// As [`Namespace::ip`].
    pub fn address(&self, interface: &str, network: u8, host: u8) -> Result<()> {
        self.ip(&format!("link set {interface} up"))?;
        self.add_address(&format!("10.9.{network}.{host}/24"), interface)?;
        self.add_address(&format!("fd09:{network}::{host}/64"), interface)
    }

    /// Gives an interface an address, which is not asked for by others first. Neighbours are asked for
    /// [`NEIGHBOUR_PROBES`] seconds.
    ///
    /// # Errors
    /// As [`Namespace::ip`].
    pub fn add_address(&self, address: &str, interface: &str) -> Result<()> {
        let (table, more) =
            if address.contains(':') { ("ndisc_cache", " nodad") } else { ("arp_cache", "") };
        self.ip(&format!("addr add {address} dev {interface}{more}"))?;
        let probes = NEIGHBOUR_PROBES;
        self.ip(&format!(
            "ntable change name {table} dev {interface} mcast_probes {probes} ucast_probes {probes}"
        ))
    }
}

impl Place for Namespace {
    fn name(&self) -> &str {
        &self.name
    }

    fn does(&self, command: &str) -> Result<(i32, String)> {
        // To a file: what a command leaves running in the background must not hold the answer.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.path().join(format!("said-{number}"));
        let said = File::create(&path)?;
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.netns, "sh", "-c", command])
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .spawn()
            .context("starting ip (Debian: apt-get install iproute2)")?;
        let ended = ended_within(&mut child, ANSWER);
        let said = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        std::fs::remove_file(&path)?;
        let status = ended?.with_context(|| {
            let name = &self.name;
            format!("`{command}` in {name} does not end; it said: {}", end_of(&said))
        })?;
        Ok((status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)), said))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.netns);
    }
}

/// The process in `PID-NUMBER-NAME`.
fn owner_of(rest: &str) -> Option<u32> {
    let (pid, rest) = rest.split_once('-')?;
    let (number, _) = rest.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Waits for a process to end, and kills it when time is up: then there is no status.
///
/// # Errors
/// The system's.
pub fn ended_within(child: &mut Child, time: Duration) -> Result<Option<ExitStatus>> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let wait = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    if poll(&mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)], Some(&wait))? == 0 {
        child.kill()?;
        child.wait()?;
        return Ok(None);
    }
    Ok(Some(child.wait()?))
}

/// Kills what runs in a namespace, since it was started for it, and removes it.
fn remove(netns: &str) {
    let inside = Command::new("ip").args(["netns", "pids", netns]).output();
    let inside = inside.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    for pid in inside.unwrap_or_default().lines() {
        if let Some(pid) = pid.trim().parse().ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let _ = ip(&format!("netns del {netns}"));
}

fn ip(words: &str) -> Result<()> {
    let output = Command::new("ip").args(words.split_whitespace()).output();
    let output = output.context("starting ip (Debian: apt-get install iproute2)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {words}` failed: {}", end_of(&said));
    Ok(())
}

#[cfg(test)]
mod tests;
