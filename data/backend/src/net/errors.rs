//! Why a host port could not be opened: the interface, what failed, and what helps.
//!
//! Made by `net`'s ports, shown by `manager` to the operator.

use rustix::io::Errno;

/// Why a host port could not be opened. The text is for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot open {kind} {interface}: {why}")]
pub struct HostOpenError {
    /// What was to be opened: `tap`, `interface`.
    pub kind: &'static str,
    /// Its name, as it was given.
    pub interface: String,
    /// The cause and the remedy.
    pub why: Why,
}

/// The cause of a [`HostOpenError`], with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// No interface can have this name.
    #[error(
        "no interface can have this name: it must have 1 to 15 bytes, without `/`, `:`, `%` and \
         white space, and not be `.` or `..`"
    )]
    Name,
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
    /// `/dev/net/tun` is missing.
    #[error(
        "/dev/net/tun cannot be opened ({0}): load the module `tun`, or give the daemon the device \
         (systemd: DeviceAllow=/dev/net/tun rw)"
    )]
    NoTun(Errno),
    /// There is an interface of this name, and it is no tap.
    #[error("the interface of this name is not a tap: use `interface`, or another name")]
    NotATap,
    /// A tap for one queue, and another one was asked for.
    #[error(
        "it was made for one queue: make it with `ip tuntap add NAME mode tap multi_queue`, remove \
         it so that the daemon makes it, or use queues = 1"
    )]
    OneQueue,
    /// A tap that somebody else has opened.
    #[error("another process has it open (a VMM, or another daemon): end that, or use another tap")]
    TapInUse,
    /// An MTU that no tap can have.
    #[error("an MTU of {0} is not possible: a tap's is 68 to 65521")]
    Mtu(u16),
    /// Another XDP program is attached.
    #[error(
        "another XDP program is attached to it: detach that (`ip link set dev NAME xdp off`), or \
         use via = \"packet\""
    )]
    ProgramInUse,
    /// Another AF_XDP socket has the queue.
    #[error("another AF_XDP socket has its queue {0}: end that, or use another queue")]
    QueueInUse(u32),
    /// The interface does not have this queue.
    #[error("it has no queue {0}: see `ethtool -l`")]
    NoQueue(u32),
    /// The memory for the rings was refused.
    #[error(
        "no memory may be locked for its rings ({0}): raise the daemon's limit (systemd: \
         LimitMEMLOCK=infinity) or give it CAP_IPC_LOCK"
    )]
    Memory(Errno),
    /// The kernel lacks something.
    #[error("this kernel cannot {what}: use via = \"packet\", or a kernel that can ({since})")]
    Kernel {
        /// The step, as a verb.
        what: &'static str,
        /// What has it.
        since: &'static str,
    },
    /// A NIC of another machine: its link is not there, or has no place for it.
    #[error("{0}")]
    Link(String),
    /// Anything else that the kernel said.
    #[error("cannot {what}: {source}")]
    Os {
        /// The step, as a verb.
        what: &'static str,
        /// The kernel's reason.
        source: Errno,
    },
}

impl Why {
    /// The same for the interface `name` of this `kind`.
    pub(crate) fn of(self, kind: &'static str, name: &str) -> HostOpenError {
        HostOpenError { kind, interface: name.to_owned(), why: self }
    }

    /// What the kernel said to `what`, which needs the capability `needs`.
    pub(crate) fn os(what: &'static str, needs: &'static str, source: Errno) -> Why {
        match source {
            Errno::PERM | Errno::ACCESS => Why::NotAllowed { what, needs },
            Errno::NODEV | Errno::NXIO => Why::Missing,
            source => Why::Os { what, source },
        }
    }
}

/// Whether an interface can have this name (`dev_valid_name` of the kernel; it would also fill in a
/// number for `%d`).
pub(crate) fn is_name(name: &str) -> bool {
    let bad = |byte: u8| byte == b'/' || byte == b':' || byte == b'%' || byte.is_ascii_whitespace();
    // 0x0b is white space to the kernel, and 0 ends a name.
    let bad = |byte: u8| bad(byte) || byte == 0x0b || byte == 0;
    (1..=15).contains(&name.len()) && name != "." && name != ".." && !name.bytes().any(bad)
}
