//! L2, the guest that is measured: a QEMU on KVM, its vCPU on a CPU of its own, and the line on which it
//! takes orders.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::children::Children;
use super::{SERVER_CPU, VCPU_CPU, waiting};
use crate::orders::{Answer, Order};

/// From its start to its first word.
const BOOTS_WITHIN: Duration = Duration::from_secs(90);
/// A load's time at most.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);

/// What a guest is started with.
#[derive(Debug)]
pub(crate) struct VmSpec<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) dir: &'a Path,
    /// QEMU's options for its devices.
    pub(crate) options: &'a [String],
    pub(crate) machine: &'a str,
}

/// A guest that takes orders.
#[derive(Debug)]
pub(crate) struct Vm {
    line: BufReader<UnixStream>,
    /// Of its QEMU.
    pub(crate) pid: u32,
}

impl Vm {
    /// Starts it, puts its threads where they belong, and waits until it takes orders.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(spec: &VmSpec<'_>, children: &mut Children) -> Result<Vm> {
        let socket = spec.dir.join("orders");
        let said = |file: &str| spec.dir.join(file).display().to_string();
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-name", "l2,debug-threads=on", "-accel", "kvm", "-cpu", "host", "-smp", "1"])
            .args(["-m", "384", "-object", "memory-backend-memfd,id=memory,size=384M,share=on"])
            .args(["-machine", &format!("{},memory-backend=memory", spec.machine)])
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(["-kernel", &spec.kernel.display().to_string()])
            .args(["-initrd", &spec.initramfs.display().to_string()])
            .args(["-append", "console=ttyS0 quiet mitigations=off panic=-1 arg.address=10.77.0.2"])
            .args(["-serial", &format!("file:{}", said("console.log"))])
            .args(["-serial", &format!("unix:{},server=on,wait=off", socket.display())])
            .args(spec.options);
        let pid = children.start("QEMU", &spec.dir.join("qemu.log"), &mut command)?;
        let line = waiting::until("QEMU's socket", BOOTS_WITHIN, || {
            children.are_alive()?;
            Ok(UnixStream::connect(&socket).ok())
        })?;
        line.set_read_timeout(Some(BOOTS_WITHIN))?;
        let mut vm = Vm { line: BufReader::new(line), pid };
        waiting::until("a thread of QEMU's for the vCPU", BOOTS_WITHIN, || {
            children.are_alive()?;
            Ok(vm.pin()?.then_some(()))
        })?;
        let mut words = String::new();
        vm.line.read_line(&mut words).context("the guest says nothing")?;
        ensure!(words.contains("ready"), "the guest says {words:?}");
        vm.line.get_ref().set_read_timeout(Some(ANSWERS_WITHIN))?;
        Ok(vm)
    }

    /// Does a load.
    ///
    /// # Errors
    /// The guest could not do it, or does not answer.
    pub(crate) fn order(&mut self, order: &Order) -> Result<Answer> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        self.line.get_mut().write_all(line.as_bytes())?;
        let mut words = String::new();
        self.line.read_line(&mut words).context("the guest does not answer")?;
        match serde_json::from_str(&words).with_context(|| format!("the guest says {words:?}"))? {
            Answer::Failed { error } => bail!("the guest could not: {error}"),
            done => Ok(done),
        }
    }

    /// Its vCPU alone on one CPU, all else of QEMU on the other. False when the vCPU has no thread yet.
    fn pin(&self) -> Result<bool> {
        let mut seen = false;
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let entry = entry?;
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let is_vcpu = name.starts_with("CPU ");
            seen |= is_vcpu;
            let tid = entry.file_name().to_string_lossy().parse().context("no thread's number")?;
            let mut cpus = CpuSet::new();
            cpus.set(if is_vcpu { VCPU_CPU } else { SERVER_CPU });
            sched_setaffinity(rustix::process::Pid::from_raw(tid), &cpus)?;
        }
        Ok(seen)
    }

    /// It is no longer needed. Its QEMU ends with the other programs.
    pub(crate) fn end(self) {}
}
