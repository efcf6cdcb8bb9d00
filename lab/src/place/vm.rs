//! L2, a guest that is measured: a QEMU on KVM, where its threads run, and the line on which it takes orders.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::network::Seat;
use crate::children::Children;
use crate::orders::{Answer, Order};
use crate::waiting;

/// A load's time at most.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);
/// Bytes of a line of its.
const LINE_MAX: u64 = 64 << 10;
/// A file of its QEMU, in MiB: one whose console says more is ended, and fills no disk. Its memory is a file, too.
pub(crate) const FILE_MAX_MIB: u32 = 512;

/// What a guest is started with.
#[derive(Debug)]
pub(crate) struct VmSpec<'a> {
    pub(crate) seat: Seat,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) vcpus: usize,
    pub(crate) memory_mib: u32,
    /// For its sockets and logs.
    pub(crate) dir: &'a Path,
    /// QEMU's options for its devices.
    pub(crate) options: &'a [String],
    pub(crate) machine: &'a str,
}

/// CPUs for a guest's threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pins {
    /// Alone, unless there are more guests than CPUs; all vCPUs of a guest.
    pub(crate) vcpu: usize,
    /// All other threads of QEMU.
    pub(crate) rest: usize,
}

/// A guest that was started.
#[derive(Debug)]
pub(crate) struct Vm {
    seat: Seat,
    /// Of its QEMU.
    pid: u32,
    vcpus: usize,
    socket: PathBuf,
    pins: Option<Pins>,
}

/// A guest that takes orders.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) seat: Seat,
    line: BufReader<UnixStream>,
    /// The threads of its vCPUs.
    pub(crate) vcpus: Vec<u32>,
}

impl Vm {
    /// Starts it; without `pins` the kernel decides where its threads run.
    ///
    /// # Errors
    /// QEMU does not start.
    pub(crate) fn start(
        spec: &VmSpec<'_>,
        pins: Option<Pins>,
        children: &mut Children,
    ) -> Result<Vm> {
        let number = spec.seat.0;
        let (socket, memory) = (spec.dir.join(format!("orders{number}")), spec.memory_mib);
        let console = spec.dir.join(format!("console{number}.log"));
        let backend = format!("memory-backend-memfd,id=memory,size={memory}M,share=on");
        let words = format!(
            "console=ttyS0 quiet mitigations=off panic=-1 arg.address={}",
            spec.seat.guest()
        );
        // It becomes QEMU, under its own pid.
        let mut command = Command::new("prlimit");
        command
            .arg(format!("--fsize={}", u64::from(FILE_MAX_MIB) << 20))
            .arg("qemu-system-x86_64")
            .args(["-name", &format!("l2-{number},debug-threads=on")])
            .args(["-accel", "kvm", "-cpu", "host", "-smp", &spec.vcpus.to_string()])
            .args(["-m", &memory.to_string()])
            .args(["-object", &backend])
            .args(["-machine", &format!("{},memory-backend=memory", spec.machine)])
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(["-kernel", &spec.kernel.display().to_string()])
            .args(["-initrd", &spec.initramfs.display().to_string(), "-append", &words])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-serial", &format!("unix:{},server=on,wait=off", socket.display())])
            .args(spec.options);
        let log = spec.dir.join(format!("qemu{number}.log"));
        let pid = children.start(&format!("QEMU of guest {number}"), &log, &command)?;
        Ok(Vm { seat: spec.seat, pid, vcpus: spec.vcpus, socket, pins })
    }

    /// Puts its threads where they belong, as soon as it has them.
    ///
    /// # Errors
    /// It ends, or takes longer.
    pub(crate) fn begin(self, within: Duration, children: &mut Children) -> Result<Guest> {
        let line = waiting::until("QEMU's socket", within, || {
            children.are_alive()?;
            Ok(UnixStream::connect(&self.socket).ok())
        })?;
        line.set_read_timeout(Some(within))?;
        let vcpus = waiting::until("threads of QEMU's for the vCPUs", within, || {
            children.are_alive()?;
            self.place_threads()
        })?;
        Ok(Guest { seat: self.seat, line: BufReader::new(line), vcpus })
    }

    /// Gives the threads of the vCPUs, if all are there already.
    fn place_threads(&self) -> Result<Option<Vec<u32>>> {
        let mut vcpus = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let entry = entry?;
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let thread: i32 =
                entry.file_name().to_string_lossy().parse().context("no thread's number")?;
            let is_vcpu = name.starts_with("CPU ");
            if is_vcpu {
                vcpus.push(thread.cast_unsigned());
            }
            if let Some(pins) = self.pins {
                pin(thread.cast_unsigned(), if is_vcpu { pins.vcpu } else { pins.rest })?;
            }
        }
        Ok((vcpus.len() == self.vcpus).then_some(vcpus))
    }
}

/// Lets a thread run on one CPU only.
///
/// # Errors
/// There is no such thread any more, or no such CPU.
pub(crate) fn pin(thread: u32, cpu: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    let thread_id = Pid::from_raw(thread.cast_signed());
    sched_setaffinity(thread_id, &cpus).with_context(|| format!("thread {thread} to CPU {cpu}"))
}

impl Guest {
    /// Waits until it takes orders.
    ///
    /// # Errors
    /// It says something else, or nothing.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let words = self.hear().context("while it starts")?;
        let ready: serde_json::Value = serde_json::from_str(&words).unwrap_or_default();
        let is_ready = ready.get("ready").is_some_and(|ready| *ready == true);
        ensure!(is_ready, "the guest says {words:?}, not that it is ready");
        let clock = ready.get("clocksource").and_then(|clock| clock.as_str()).unwrap_or_default();
        if !["", "tsc", "kvm-clock"].contains(&clock) {
            eprintln!("guest {} has the clock {clock}: a look at it is an exit", self.seat.0);
        }
        self.line.get_ref().set_read_timeout(Some(ANSWERS_WITHIN))?;
        Ok(())
    }

    /// Tells it what to do.
    ///
    /// # Errors
    /// Its line is closed.
    pub(crate) fn tell(&mut self, order: &Order) -> Result<()> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        self.line.get_mut().write_all(line.as_bytes()).context("the guest's line is closed")
    }

    /// What it says it did.
    ///
    /// # Errors
    /// It could not do it, or does not answer.
    pub(crate) fn answer(&mut self) -> Result<Answer> {
        let words = self.hear()?;
        match serde_json::from_str(&words).with_context(|| format!("the guest says {words:?}"))? {
            Answer::Failed { error } => bail!("the guest could not: {error}"),
            done => Ok(done),
        }
    }

    /// Its next line.
    fn hear(&mut self) -> Result<String> {
        let mut words = String::new();
        // An answer is a hundred bytes.
        let read = (&mut self.line)
            .take(LINE_MAX)
            .read_line(&mut words)
            .context("the guest does not answer")?;
        ensure!(read > 0, "the guest's line was closed: its QEMU has ended");
        Ok(words)
    }
}
