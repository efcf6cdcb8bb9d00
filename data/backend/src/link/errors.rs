//! Why a link's socket could not be opened: where, what failed, and what helps.
//!
//! Made by `socket`, shown by `manager` to the operator.

use rustix::io::Errno;

use crate::net::Why;

/// Why a link's socket could not be opened. The text is for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot open a link at {at}: {why}")]
pub struct LinkOpenError {
    /// `udp 10.0.0.1:7447`, `interface eth1`.
    pub at: String,
    /// The cause and the remedy.
    pub why: LinkWhy,
}

/// The cause of a [`LinkOpenError`], with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkWhy {
    /// Somebody has the port.
    #[error("another process, or another link, has this port: end that, or use another port")]
    InUse,
    /// No interface has the address.
    #[error(
        "no interface has this address in the daemon's network namespace: see `ip address`, or use \
         0.0.0.0 or [::]"
    )]
    NoAddress,
    /// No interface can have this name.
    #[error(
        "no interface can have this name: it must have 1 to 15 bytes, without `/`, `:`, `%` and \
         white space, and not be `.` or `..`"
    )]
    Name,
    /// A socket that was handed over is another one than is wanted.
    #[error("its address or interface is another one than before")]
    Elsewhere,
    /// There is no such interface.
    #[error("there is no interface of this name in the daemon's network namespace (see `ip link`)")]
    Missing,
    /// A capability is missing.
    #[error("the daemon may not {what}: it needs {needs}")]
    NotAllowed {
        /// The step, as a verb.
        what: &'static str,
        /// The capability.
        needs: &'static str,
    },
    /// Frames of the interface are too short.
    #[error(
        "its MTU of {0} is too small: a link needs 642 at least (`ip link set dev NAME mtu 1500`)"
    )]
    Mtu(u32),
    /// There are no stations on it.
    #[error("it is no Ethernet: use `udp`, or another interface")]
    NoEthernet,
    /// What ails an AF_XDP socket.
    #[error(transparent)]
    Xdp(#[from] Why),
    /// The kernel lacks something.
    #[error("this kernel cannot {what}: use `udp`, or a kernel that can ({since})")]
    Kernel {
        /// The step, as a verb.
        what: &'static str,
        /// What has it.
        since: &'static str,
    },
    /// Anything else that the kernel said.
    #[error("cannot {what}: {source}")]
    Os {
        /// The step, as a verb.
        what: &'static str,
        /// The kernel's reason.
        source: Errno,
    },
}

impl LinkWhy {
    /// Whether the one who has what it needs may let go of that: another process that is being taken over from.
    pub fn may_pass(&self) -> bool {
        match self {
            LinkWhy::InUse | LinkWhy::Xdp(_) | LinkWhy::Os { .. } => true,
            LinkWhy::NoAddress
            | LinkWhy::Name
            | LinkWhy::Elsewhere
            | LinkWhy::Missing
            | LinkWhy::NotAllowed { .. }
            | LinkWhy::Mtu(_)
            | LinkWhy::NoEthernet
            | LinkWhy::Kernel { .. } => false,
        }
    }

    /// What the kernel said to `what`, which needs the capability `needs`.
    pub(super) fn os(what: &'static str, needs: &'static str, source: Errno) -> LinkWhy {
        match source {
            Errno::PERM | Errno::ACCESS => LinkWhy::NotAllowed { what, needs },
            Errno::ADDRINUSE => LinkWhy::InUse,
            Errno::ADDRNOTAVAIL => LinkWhy::NoAddress,
            Errno::NODEV | Errno::NXIO => LinkWhy::Missing,
            source => LinkWhy::Os { what, source },
        }
    }
}
