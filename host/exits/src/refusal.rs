//! Why exits cannot be counted: each reason with what to do about it.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why nothing was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This process may not load programs.
    NotPermitted,
    /// Numbers of processes here are not the kernel's own.
    OwnPids,
    /// The clock here is not the kernel's own.
    OwnTime,
    /// The kernel's events are not shown anywhere.
    NoEvents,
    /// They are there, and cannot be read.
    Events(PathBuf, String),
    /// No KVM.
    NoKvm,
    /// An event without which nothing can be counted is of no use.
    Needed(&'static str, String),
    /// The kernel refused a step, and says so.
    Kernel {
        /// Which.
        step: &'static str,
        /// Its answer.
        errno: Errno,
        /// The last lines of what it says of the program, if it was one.
        says: String,
    },
    /// No process of that number, or one that cannot be seen.
    NoProcess(u32),
    /// What processes have open cannot be seen.
    Unseen(u32),
    /// The process has no VM of KVM.
    NoVm(u32),
    /// The process has several VMs.
    SeveralVms(u32, usize),
    /// No process with a VM has that name.
    NoName(String),
    /// Only processes without a VM have.
    NamesNoVm(String, Vec<u32>),
    /// Several have.
    SeveralNames(String, Vec<u32>),
    /// No process with a VM names that socket.
    NoFrontEnd(String),
    /// Several do.
    SeveralFrontEnds(String, Vec<u32>),
}

impl Refusal {
    /// What to do.
    pub fn hint(&self) -> &'static str {
        match self {
            Refusal::NotPermitted => "run it as root, or with CAP_BPF and CAP_PERFMON",
            Refusal::OwnPids | Refusal::OwnTime => "run it in the host's own namespaces",
            Refusal::NoEvents => "mount -t tracefs tracefs /sys/kernel/tracing",
            Refusal::Events(..) => {
                "run it as root; under lockdown (/sys/kernel/security/lockdown) the kernel shows none"
            }
            Refusal::NoKvm => "load kvm_intel or kvm_amd; only x86 is known",
            Refusal::Needed(..) | Refusal::Kernel { .. } => "report it, with `uname -r`",
            Refusal::NoProcess(_) => "give the number of the VMM's process",
            Refusal::Unseen(_) => "run it as root",
            Refusal::NoVm(_) | Refusal::NamesNoVm(..) => {
                "a guest under TCG has no exits; the process is the one that has the VM, not a wrapper"
            }
            Refusal::SeveralVms(..) => "its events cannot be told apart: give each VM a process",
            Refusal::NoName(_) => {
                "give the process's number, QEMU's `-name`, or a disk or NIC of the daemon"
            }
            Refusal::SeveralNames(..) | Refusal::SeveralFrontEnds(..) => {
                "give the number of one of them"
            }
            Refusal::NoFrontEnd(_) => {
                "start its guest; of a guest of another machine or VDUSE there are no exits here; or \
                 give the process's number"
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotPermitted => f.write_str("no right to load an eBPF program"),
            Refusal::OwnPids => f.write_str(
                "this process is in a pid namespace of its own, where processes have other numbers",
            ),
            Refusal::OwnTime => f.write_str(
                "this process is in a time namespace of its own, where the clock is another one",
            ),
            Refusal::NoEvents => {
                f.write_str("the kernel's events are not shown: no tracefs is mounted")
            }
            Refusal::Events(folder, error) => {
                write!(f, "the kernel's events cannot be read: {}: {error}", folder.display())
            }
            Refusal::NoKvm => f.write_str("the kernel has no events of KVM for exits"),
            Refusal::Needed(event, why) => write!(f, "{event} is not as it is known: {why}"),
            Refusal::Kernel { step, errno, says } if says.is_empty() => {
                write!(f, "the kernel refused {step}: {errno}")
            }
            Refusal::Kernel { step, errno, says } => {
                write!(f, "the kernel refused the program for {step}: {errno}: {says}")
            }
            Refusal::NoProcess(pid) => write!(f, "there is no process {pid} that can be seen"),
            Refusal::Unseen(pid) => write!(f, "what process {pid} has open cannot be seen"),
            Refusal::NoVm(pid) => write!(f, "process {pid} has no VM of KVM"),
            Refusal::SeveralVms(pid, count) => write!(f, "process {pid} has {count} VMs"),
            Refusal::NoName(name) => write!(f, "no VM is named {name:?}"),
            Refusal::NamesNoVm(name, pids) => {
                let pids = list(pids);
                write!(f, "no VM of KVM is named {name:?}, but processes without one are: {pids}")
            }
            Refusal::SeveralNames(name, pids) => {
                write!(f, "several VMs are named {name:?}: processes {}", list(pids))
            }
            Refusal::NoFrontEnd(socket) => {
                write!(f, "no process with a VM names the socket {socket} on its command line")
            }
            Refusal::SeveralFrontEnds(socket, pids) => {
                write!(f, "several processes name the socket {socket}: {}", list(pids))
            }
        }
    }
}

impl std::error::Error for Refusal {}

fn list(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
