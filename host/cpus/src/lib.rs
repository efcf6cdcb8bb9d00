//! Numbers of cpus: their lists as the kernel and people write them, and what a plan must know of a host's.
//!
//! Text and numbers alone; who asks the host is `host`, who plans is `config`.
#![forbid(unsafe_code)]

mod list;

pub use list::{CPU_MAX, CpusError, format, parse};

/// The cpus of the host, as far as a plan depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCpus {
    /// The cpus that run.
    pub online: Vec<u32>,
    /// What `cpus = "auto"` may use, best first.
    pub auto: Vec<u32>,
    /// How many of them suit this machine when the operator sets no `max`.
    pub auto_count: u16,
}
