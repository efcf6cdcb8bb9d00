//! Why something that a front-end lends, or says of its guest, is not taken. The texts are for its operator.
//!
//! Made by `front_end`, which is a session's owner; shown by `front_ends` and, where a ring is to start, by `start`.

use std::io;

use guest_memory::MapError;
use rustix::io::Errno;

use crate::bounds::TooManyRegions;
use crate::bounds::address_space::NotAddressable;
use crate::devices::kind::MtuRefused;

/// Why a front-end is refused something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrontEndError {
    /// Memory, or what is mapped besides.
    #[error(transparent)]
    Memory(#[from] MemoryRefused),
    /// The kernel makes no in-flight record.
    #[error("cannot make an in-flight record: {0}")]
    MakeInflight(#[source] Errno),
    /// A kick, call or error signal.
    #[error(transparent)]
    Signal(#[from] SignalRefused),
    /// Its channel.
    #[error(transparent)]
    Channel(#[from] ChannelRefused),
    /// Its guest's MTU, of a NIC that another front-end runs.
    #[error("another front-end runs this nic")]
    MtuOfAnother,
    /// Its guest's MTU.
    #[error(transparent)]
    Mtu(#[from] MtuRefused),
}

/// Why memory, a dirty log or an in-flight record is not mapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryRefused {
    /// Another front-end runs the device.
    #[error("another front-end runs this device; one at a time")]
    RunByAnother,
    /// More regions than are left.
    #[error(transparent)]
    Regions(#[from] TooManyRegions),
    /// More bytes than may be lent.
    #[error(transparent)]
    Addresses(#[from] NotAddressable),
    /// One region cannot be mapped.
    #[error("the region at {gpa:#x}: {source}")]
    Region {
        /// Guest address.
        gpa: u64,
        /// Why.
        source: MapError,
    },
    /// Regions are not apart, a log is too short for them, or a log or record cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A dirty log of so many bytes.
    #[error("a dirty log of {0} bytes is too large")]
    LogSize(u64),
    /// An in-flight record of so many bytes.
    #[error("an in-flight record of {0} bytes is too large")]
    InflightSize(u64),
}

/// Why there is no guest memory for a ring.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryMissing {
    /// The front-end has announced none.
    #[error("no memory was announced")]
    NotAnnounced,
    /// The dirty log is too short for it.
    #[error(transparent)]
    Log(#[from] MapError),
}

/// Why a descriptor cannot be a kick, call or error signal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignalRefused {
    /// It is something else, of which this is the kernel's name.
    #[error("not an eventfd that can be used: {0}")]
    Kind(String),
    /// The kernel does not tell what it is.
    #[error("not an eventfd that can be used: {0}")]
    Unknown(#[source] io::Error),
    /// Writes to it may wait, and that cannot be changed.
    #[error("not an eventfd that can be used: {0}")]
    Flags(#[source] Errno),
}

/// Why a descriptor cannot be the channel to a front-end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelRefused {
    /// It has no domain.
    #[error("the channel is not a socket: {0}")]
    NotASocket(#[source] Errno),
    /// It has no type.
    #[error(transparent)]
    NoType(Errno),
    /// It is a socket of another domain or type.
    #[error("the channel is not a Unix stream socket")]
    NotAUnixStream,
    /// One end of it has a name: it may be a link to this process.
    #[error("the channel is a connection to a socket with a name, not one of a pair")]
    Named,
    /// It cannot be shut for reading.
    #[error("the channel: {0}")]
    Shutdown(#[source] Errno),
    /// Something is in it, which may be a descriptor of its own end.
    #[error("something lies in the channel, which is for our words alone")]
    NotEmpty,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_says_what_was_wrong() {
        let all: [(FrontEndError, &str); 11] = [
            (
                MemoryRefused::RunByAnother.into(),
                "another front-end runs this device; one at a time",
            ),
            (
                MemoryRefused::from(NotAddressable::ByOne(1 << 50)).into(),
                "more than 16 TiB of memory",
            ),
            (
                MemoryRefused::Region {
                    gpa: 0x1000,
                    source: MapError::Length { offset: 0, len: 0 },
                }
                .into(),
                "the region at 0x1000: a length of 0 bytes at offset 0 cannot be mapped",
            ),
            (
                MemoryRefused::LogSize(1 << 31).into(),
                "a dirty log of 2147483648 bytes is too large",
            ),
            (MemoryRefused::InflightSize(7).into(), "an in-flight record of 7 bytes is too large"),
            (
                FrontEndError::MakeInflight(Errno::MFILE),
                "cannot make an in-flight record: Too many open files (os error 24)",
            ),
            (
                SignalRefused::Kind("socket:[1]".to_string()).into(),
                "not an eventfd that can be used: socket:[1]",
            ),
            (
                ChannelRefused::NotASocket(Errno::NOTSOCK).into(),
                "the channel is not a socket: Socket operation on non-socket (os error 88)",
            ),
            (
                ChannelRefused::NoType(Errno::NOTSOCK).into(),
                "Socket operation on non-socket (os error 88)",
            ),
            (FrontEndError::MtuOfAnother, "another front-end runs this nic"),
            (MtuRefused::Nic { own: 1500 }.into(), "the nic's MTU is 1500: give it a larger one"),
        ];
        for (error, text) in all {
            assert_eq!(error.to_string(), text);
        }
    }
}
