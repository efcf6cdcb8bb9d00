//! Servers that are measured, each a process of its own: this project's daemon, and others.
//!
//! A server is pinned with `taskset` and dies with the bench (`setpriv --pdeathsig`). While another
//! one is measured it is stopped by a signal, so that neither sees the other's idle work.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::{Daemon, await_that, last_words};
use crate::frontend::{Frontend, FrontendSpec};

/// Whose numbers these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// This project's daemon.
    Sidecore,
    /// QEMU itself.
    Qemu,
    /// QEMU's.
    QemuStorageDaemon,
    /// SPDK's vhost target.
    Spdk,
    /// DPDK's vhost library, as `dpdk-testpmd` uses it.
    Dpdk,
    /// The same of Debian 13.
    DpdkNewer,
    /// This project's daemon as an IOhost, all of whose frames are sealed.
    SidecoreSealed,
    /// The same without IP, by packet sockets.
    SidecorePacket,
    /// The same by AF_XDP.
    SidecoreXdp,
    /// This project's daemon on the same machine.
    SidecoreLocal,
    /// This project's daemon without what is measured.
    SidecoreWithout,
    /// nbdkit.
    Nbdkit,
    /// QEMU's NBD server.
    QemuNbd,
    /// The machine itself: what no server can be faster than.
    Machine,
}

impl Who {
    /// As it stands in reports.
    pub fn word(self) -> &'static str {
        match self {
            Who::Sidecore => "sidecore",
            Who::Qemu => "qemu",
            Who::QemuStorageDaemon => "qemu-storage-daemon",
            Who::Spdk => "spdk",
            Who::Dpdk => "dpdk",
            Who::DpdkNewer => "dpdk-24.11",
            Who::SidecoreSealed => "sidecore-sealed",
            Who::SidecoreWithout => "sidecore-without",
            Who::SidecorePacket => "sidecore-packet",
            Who::SidecoreXdp => "sidecore-xdp",
            Who::SidecoreLocal => "sidecore-local",
            Who::Nbdkit => "nbdkit",
            Who::QemuNbd => "qemu-nbd",
            Who::Machine => "machine",
        }
    }
}

/// What a disk is made of.
#[derive(Clone, Debug)]
pub enum Medium {
    /// Answers at once: `null`, `null-co`.
    Null,
    /// RAM: `memory`; for qemu-storage-daemon, which has no RAM disk, the given file on a tmpfs.
    Memory(PathBuf),
    /// A raw file through the host's page cache.
    File(PathBuf),
    /// A raw file past it.
    Direct(PathBuf),
}

/// One disk of a server.
#[derive(Clone, Debug)]
pub struct DiskSetup {
    /// Name; also of its socket.
    pub id: String,
    /// What it is made of.
    pub medium: Medium,
    /// Capacity, bytes.
    pub size_bytes: u64,
    /// Queues offered.
    pub queues: u16,
    /// Whether front-ends may share memory that is not sealed against shrinking.
    pub unsealed_memory: bool,
}

/// What the scheduler says of some threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// On a core, nanoseconds.
    pub used_ns: u64,
    /// Ready to run while another process had the core, nanoseconds.
    pub waited_ns: u64,
}

impl CpuTime {
    /// Of the calling thread.
    pub fn own() -> CpuTime {
        CpuTime::read(Path::new("/proc/thread-self/schedstat"))
    }

    /// Of all threads of a process so far; what a running thread has used since its last tick is
    /// missing.
    ///
    /// # Errors
    /// The process is gone.
    pub fn of_process(pid: u32) -> Result<CpuTime> {
        CpuTime::of_threads(pid, "")
    }

    /// As [`CpuTime::of_process`], of the threads whose name begins with `name`.
    ///
    /// # Errors
    /// The process is gone.
    pub fn of_threads(pid: u32, name: &str) -> Result<CpuTime> {
        let mut sum = CpuTime::default();
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("a process is gone")? {
            let task = task?.path();
            let own_name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            if own_name.starts_with(name) {
                let time = CpuTime::read(&task.join("schedstat"));
                sum.used_ns += time.used_ns;
                sum.waited_ns += time.waited_ns;
            }
        }
        Ok(sum)
    }

    /// From then to now.
    #[must_use]
    pub fn since(self, before: CpuTime) -> CpuTime {
        CpuTime {
            used_ns: self.used_ns.saturating_sub(before.used_ns),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
        }
    }

    fn read(schedstat: &Path) -> CpuTime {
        let text = std::fs::read_to_string(schedstat).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        CpuTime { used_ns: next(), waited_ns: next() }
    }
}

impl DiskSetup {
    /// As it stands in the file of this project's daemon.
    pub fn declared(&self) -> String {
        let DiskSetup { id, medium, size_bytes, queues, .. } = self;
        let what = match medium {
            Medium::Null => "backend = \"null\"".to_string(),
            Medium::Memory(_) => "backend = \"memory\"".to_string(),
            Medium::File(path) => format!("path = \"{}\"\ncache = \"page\"", path.display()),
            Medium::Direct(path) => format!("path = \"{}\"\ncache = \"direct\"", path.display()),
        };
        let unsealed = self.unsealed_memory;
        format!(
            "[[disk]]\nid = \"{id}\"\nsize = \"{size_bytes}\"\nqueues = {queues}\n\
             allow_unsealed_memory = {unsealed}\n{what}\n"
        )
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    who: Who,
    process: Process,
}

#[derive(Debug)]
enum Process {
    Ours(Box<Daemon>),
    /// In this folder it has its log and its sockets.
    Theirs(Child, PathBuf),
}

impl Server {
    /// `qemu-storage-daemon` with one disk, its IOThread and all else on `core`.
    ///
    /// # Errors
    /// It is not installed, or the system's errors.
    pub fn qemu_storage_daemon(dir: &Path, core: u16, disk: &DiskSetup) -> Result<Server> {
        let DiskSetup { id, medium, size_bytes, queues, .. } = disk;
        let socket = socket_path(dir, id);
        let blockdev = match medium {
            Medium::Null => format!("driver=null-co,node-name=disk,size={size_bytes}"),
            Medium::Memory(path) | Medium::File(path) => format!(
                "driver=file,node-name=disk,filename={},cache.direct=off,aio={}",
                path.display(),
                qemu_aio(),
            ),
            Medium::Direct(path) => format!(
                "driver=file,node-name=disk,filename={},cache.direct=on,aio=native",
                path.display(),
            ),
        };
        let export = format!(
            "type=vhost-user-blk,id=export,addr.type=unix,addr.path={},node-name=disk,\
             iothread=io,writable=on,num-queues={queues}",
            socket.display()
        );
        let arguments =
            ["--object", "iothread,id=io", "--blockdev", &blockdev, "--export", &export];
        let program = Path::new("qemu-storage-daemon");
        Server::start(Who::QemuStorageDaemon, dir, &core.to_string(), program, &arguments)
            .context("starting qemu-storage-daemon (Debian: apt-get install qemu-system-common)")
    }

    /// This project's daemon, to be measured as the others are.
    pub fn ours(who: Who, daemon: Daemon) -> Server {
        Server { who, process: Process::Ours(Box::new(daemon)) }
    }

    /// Any program, in the network namespace of that name, on `cores`.
    ///
    /// # Errors
    /// The system's errors.
    pub fn inside(
        who: Who,
        dir: &Path,
        cores: &str,
        namespace: &str,
        program: &str,
        arguments: &[&str],
    ) -> Result<Server> {
        let words = [&["netns", "exec", namespace, program], arguments].concat();
        Server::start(who, dir, cores, Path::new("ip"), &words)
    }

    /// Whose.
    pub fn who(&self) -> Who {
        self.who
    }

    /// Waits until the device of that name listens, and gives its socket.
    ///
    /// # Errors
    /// The server ended or does not listen in time; its last words are in the message.
    pub fn wait_for(&mut self, id: &str) -> Result<PathBuf> {
        let (child, dir) = match &mut self.process {
            // It was ready when it had been started.
            Process::Ours(daemon) => return Ok(daemon.socket(id)),
            Process::Theirs(child, dir) => (child, dir),
        };
        let socket = socket_path(dir, id);
        await_that(&socket.display().to_string(), || {
            let status = child.try_wait()?;
            ensure!(status.is_none(), "it ended with {status:?}");
            Ok(is_listening(&socket))
        })
        .with_context(|| format!("{} says:\n{}", self.who.word(), self.last_words()))?;
        Ok(socket)
    }

    /// Connects to the disk of that name as soon as it listens.
    ///
    /// # Errors
    /// As [`Server::wait_for`] and [`Frontend::connect`].
    pub fn frontend(&mut self, id: &str, spec: &FrontendSpec) -> Result<Frontend> {
        let socket = self.wait_for(id)?;
        Frontend::connect(&socket, spec.clone()).with_context(|| {
            format!("as front-end of {}, which says:\n{}", self.who.word(), self.last_words())
        })
    }

    /// CPU time so far of all its threads; what a running thread has used since its last tick is
    /// missing.
    ///
    /// # Errors
    /// The process is gone.
    pub fn cpu(&self) -> Result<CpuTime> {
        CpuTime::of_process(self.pid())
    }

    /// The process, for looking at it.
    pub fn pid(&self) -> u32 {
        match &self.process {
            Process::Ours(daemon) => daemon.pid(),
            Process::Theirs(child, _) => child.id(),
        }
    }

    /// Keeps it from running until [`Server::resume`].
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

    pub(crate) fn start(
        who: Who,
        dir: &Path,
        cores: &str,
        program: &Path,
        arguments: &[&str],
    ) -> Result<Server> {
        let log = File::create(dir.join("log"))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "taskset", "-c", cores])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting setpriv (Debian: apt-get install util-linux)")?;
        Ok(Server { who, process: Process::Theirs(child, dir.to_path_buf()) })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process")?, signal).context("signalling a server")
    }

    /// The end of what it printed.
    pub fn last_words(&self) -> String {
        match &self.process {
            Process::Ours(daemon) => daemon.last_words(),
            Process::Theirs(_, dir) => last_words(dir),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Process::Theirs(child, _) = &mut self.process {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn socket_path(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.sock"))
}

/// Whether the kernel knows a listening socket of that name. Asked without connecting: some
/// back-ends take one front-end only.
fn is_listening(socket: &Path) -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/net/unix") else { return false };
    let name = socket.display().to_string();
    // Columns: address, references, protocol, flags, type, state, inode, path. The flag 0x10000 is
    // __SO_ACCEPTCON.
    table.lines().any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.get(7) == Some(&name.as_str()) && columns.get(3) == Some(&"00010000")
    })
}

/// The engine that qemu-storage-daemon reads and writes files with. `BENCH_QEMU_AIO` chooses
/// another: `threads` or `io_uring`.
fn qemu_aio() -> String {
    std::env::var("BENCH_QEMU_AIO").unwrap_or_else(|_| "io_uring".to_string())
}
