//! Which process a front-end is: what its guest cannot write says whether it comes back.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::net::sockopt::socket_peercred;
use vcpu_tracker::vcpus::Process;

/// A front-end's process, by what the kernel says of its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vmm {
    pid: u32,
    uid: u32,
    /// When it began; not known where `/proc` does not show it.
    process: Option<Process>,
}

impl Vmm {
    /// Who is at the other end; nothing if the kernel does not say.
    pub(crate) fn of(socket: impl AsFd) -> Option<Vmm> {
        let peer = socket_peercred(socket).ok()?;
        let (pid, uid) = (peer.pid.as_raw_nonzero().get() as u32, peer.uid.as_raw());
        Some(Vmm { pid, uid, process: Process::of(Path::new("/"), pid, uid).ok() })
    }
}
