//! Starts the servers that are measured, each as a process of its own, and ends them again.
//!
//! A server is pinned with `taskset` and dies with the bench (`setpriv --pdeathsig`). While another
//! one is measured it is stopped by a signal, so that neither sees the other's idle work.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::clock::now_ns;
use crate::frontend::{Frontend, FrontendSpec};

/// How long a server may take until its sockets answer.
const START_NS: u64 = 90_000_000_000;
/// Between two looks for a socket.
const LOOK: std::time::Duration = std::time::Duration::from_millis(20);

/// Whose numbers these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// This project's daemon.
    Sidecore,
    /// QEMU's.
    QemuStorageDaemon,
    /// DPDK's vhost library, as `dpdk-testpmd` uses it.
    Dpdk,
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
            Who::QemuStorageDaemon => "qemu-storage-daemon",
            Who::Dpdk => "dpdk",
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

/// A running server.
#[derive(Debug)]
pub struct Server {
    who: Who,
    child: Child,
    dir: PathBuf,
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
            .context("starting qemu-storage-daemon (Debian: apt-get install qemu-utils)")
    }

    /// `sidecore serve` with these disks and one sidecore on `core`.
    ///
    /// # Errors
    /// The system's errors.
    pub fn sidecore(binary: &Path, dir: &Path, core: u16, disks: &[DiskSetup]) -> Result<Server> {
        let devices = disks.iter().map(|disk| disk_config(dir, disk)).collect::<String>();
        Server::sidecore_with(binary, dir, core, &devices)
    }

    /// `sidecore serve` with one sidecore on `core` and these devices, as they stand in its
    /// configuration file; lines before the first of them are options of `[sidecores]`. A device
    /// that is waited for has its socket at `ID.sock` in `dir`.
    ///
    /// # Errors
    /// The system's errors.
    pub fn sidecore_with(binary: &Path, dir: &Path, core: u16, devices: &str) -> Result<Server> {
        let config = dir.join("sidecore.toml");
        std::fs::write(&config, daemon_config(dir, &core.to_string()) + devices)?;
        let config = config.display().to_string();
        Server::start(
            Who::Sidecore,
            dir,
            &core.to_string(),
            binary,
            &["serve", "--config", &config],
        )
        .with_context(|| format!("starting {}", binary.display()))
    }

    /// The same with a sidecore on each of `cores`, each at real-time priority if `ahead`: then what else
    /// runs on its core waits while it has something to do, as if the core were its own.
    ///
    /// # Errors
    /// The system's errors.
    pub fn sidecores_with(
        binary: &Path,
        dir: &Path,
        cores: &str,
        ahead: bool,
        devices: &str,
    ) -> Result<Server> {
        let config = dir.join("sidecore.toml");
        std::fs::write(&config, daemon_config(dir, cores) + devices)?;
        let config = config.display().to_string();
        let program = binary.display().to_string();
        let (wrapper, arguments): (&Path, Vec<&str>) = match ahead {
            true => (Path::new("chrt"), vec!["-f", "20", &program, "serve", "--config", &config]),
            false => (binary, vec!["serve", "--config", &config]),
        };
        Server::start(Who::Sidecore, dir, cores, wrapper, &arguments)
            .with_context(|| format!("starting {}", binary.display()))
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
        let socket = socket_path(&self.dir, id);
        let start = now_ns();
        while !is_listening(&socket) {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status}:\n{}", self.who.word(), self.last_words());
            }
            if now_ns() - start > START_NS {
                let words = self.last_words();
                bail!("{} does not listen on {}:\n{words}", self.who.word(), socket.display());
            }
            #[expect(clippy::disallowed_methods, reason = "a socket has no descriptor yet")]
            std::thread::sleep(LOOK);
        }
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
        CpuTime::of_process(self.child.id())
    }

    /// The process, for looking at it.
    pub fn pid(&self) -> u32 {
        self.child.id()
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

    fn start(
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
        Ok(Server { who, child, dir: dir.to_path_buf() })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process")?, signal).context("signalling a server")
    }

    /// The end of what it printed.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the `sidecore` program is, unless told: `SIDECORE_BIN`, or beside the running program
/// (a test runs one folder below it).
pub fn sidecore_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SIDECORE_BIN") {
        return Ok(PathBuf::from(path));
    }
    let own = std::env::current_exe()?;
    let found = own.ancestors().skip(1).take(2).map(|dir| dir.join("sidecore"));
    let found = found.into_iter().find(|path| path.is_file());
    found.context(
        "the sidecore program is not beside this one: build it (cargo build --release \
         -p sidecore-bin) or name it in SIDECORE_BIN",
    )
}

fn daemon_config(dir: &Path, cores: &str) -> String {
    let place = dir.display();
    format!(
        "[daemon]\napi = \"{place}/api.sock\"\nrun_dir = \"{place}\"\n\
         state_dir = \"{place}/state\"\n\n[sidecores]\ncpus = \"{cores}\"\n"
    )
}

fn disk_config(dir: &Path, disk: &DiskSetup) -> String {
    let DiskSetup { id, medium, size_bytes, queues, .. } = disk;
    let what = match medium {
        Medium::Null => format!("backend = \"null\"\nsize = \"{size_bytes}\""),
        Medium::Memory(_) => format!("backend = \"memory\"\nsize = \"{size_bytes}\""),
        Medium::File(path) => {
            format!("backend = \"file\"\npath = \"{}\"\ncache = \"page\"", path.display())
        }
    };
    let socket = socket_path(dir, id);
    format!(
        "\n[[disk]]\nid = \"{id}\"\nsocket = \"{}\"\nqueues = {queues}\n\
         allow_unsealed_memory = {}\n{what}\n",
        socket.display(),
        disk.unsealed_memory,
    )
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
