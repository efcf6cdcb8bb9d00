//! Why run state cannot be had: each reason with what to do about it.

use std::fmt;

use rustix::io::Errno;

/// Why the program does not run. Everything else works without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// This process may not load it.
    NotPermitted,
    /// The kernel does not describe itself.
    NoTypes(String),
    /// The kernel's own tracepoint is not as it has been since 5.18.
    OldKernel(&'static str),
    /// Thread numbers here are not the kernel's own.
    OwnPids,
    /// The clock here is not the kernel's own.
    OwnTime,
    /// The kernel refused a step for another reason.
    Refused(&'static str, Errno),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::NotPermitted => f.write_str(
                "no right to load an eBPF program: run as root, or with \
                 AmbientCapabilities=CAP_BPF CAP_PERFMON",
            ),
            Unavailable::NoTypes(why) => write!(
                f,
                "the kernel's types cannot be read (/sys/kernel/btf/vmlinux: {why}): use a kernel built \
                 with CONFIG_DEBUG_INFO_BTF"
            ),
            Unavailable::OldKernel(lacks) => {
                write!(f, "the kernel has no {lacks}: use Linux 5.18 or newer")
            }
            Unavailable::OwnPids => f.write_str(
                "this process is in a pid namespace of its own, where threads have other numbers: run it \
                 in the host's",
            ),
            Unavailable::OwnTime => f.write_str(
                "this process is in a time namespace of its own, where the clock is another one: run it in \
                 the host's",
            ),
            Unavailable::Refused(step, errno) => {
                write!(f, "the kernel refused {step}: {errno}")
            }
        }
    }
}

impl std::error::Error for Unavailable {}
