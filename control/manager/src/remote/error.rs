//! Errors of links, by what is not done then.
//!
//! Their texts reach operators, by a start, the log, or what is shown of a device. Not here: sockets (`backend::link`), and
//! shards as files (`upgrade::error`). Made by all of `remote`.

use std::io;

use backend::link::{LinkOpenError, LinkWhy};
use guest_memory::MapError;
use remote::handshake::Refused;
use remote::saved::BadSaved;
use virtqueue::SetupError;

use crate::defects::Defects;

/// Failure to take the links of a plan in, at a start.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Key that is not there or of no use.
    #[error("link {id:?}: {source}")]
    Key {
        /// Name of its link.
        id: String,
        /// Reason.
        source: LinkKeyError,
    },
    /// Failure to start the thread of handshakes.
    #[error("links: no thread: {0}")]
    Thread(#[source] io::Error),
    /// Thread that `epoll` does not take.
    #[error("links: {0}")]
    Watch(#[source] io::Error),
}

/// Error in what the handshakes of a link are made with.
#[derive(Debug, thiserror::Error)]
pub enum LinkKeyError {
    /// File that cannot be read, or has no key.
    #[error("its key file {0}")]
    File(#[source] io::Error),
    /// Key without a public half.
    #[error("its key: {0}")]
    Public(#[source] Refused),
    /// Key of this machine in the place of its IOhost's: the likeliest mistake.
    #[error(
        "its `iohost_key` is this machine's own: it is to be what `sidecore link key FILE` prints at the IOhost"
    )]
    Own,
    /// Key that nobody can be answered with.
    #[error("{0}")]
    Responder(#[source] Refused),
}

/// Failure to open the sockets of a link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// The system's.
    #[error("{0}")]
    Open(#[from] LinkOpenError),
    /// Frames that do not fit.
    #[error(
        "its interface carries packets of {carries} bytes, and its `mtu` is {mtu}: make them equal"
    )]
    Mtu {
        /// Longest packet.
        carries: usize,
        /// What the plan says.
        mtu: u16,
    },
}

impl SocketError {
    /// Whether somebody else has the address.
    pub(crate) fn is_of_others(&self) -> bool {
        matches!(self, SocketError::Open(LinkOpenError { why: LinkWhy::InUse, .. }))
    }
}

/// Absence of the link that a port goes by.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkPortError {
    /// Link that the daemon was started without.
    #[error("link {0:?} is made at the daemon's start: restart it")]
    NotMade(String),
    /// NIC that no client is named for.
    #[error("no client of a link may have it (`nics` of a [[link.client]])")]
    NotLent,
    /// Port of another kind.
    #[error("it is no port of a link")]
    OtherKind,
    /// Link that is not open.
    #[error("link {id:?}: {problem}")]
    Shut { id: String, problem: String },
}

/// Link of which each number is used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{LINK_FULL}")]
pub(super) struct LinkFull;

/// Its text: there are as many as [`remote::ATTACHMENTS_MAX`].
pub(super) const LINK_FULL: &str =
    "its link has 4096 disks and NICs, and takes no more: give another [[link]] some of them";

/// Client that gets no shard, since there are too many.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Crowded {
    /// Clients that are known.
    #[error("there are {0} clients already, with a session or in a handshake")]
    Clients(usize),
    /// Sessions of them.
    #[error("its clients have {0} sessions already")]
    Sessions(usize),
}

/// Failure to give a client a disk.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    /// Disk that no client may have any more.
    #[error("there is no such disk")]
    Removed,
    /// Disk that is gone, or shut.
    #[error("it is not open")]
    NotOpen,
    /// Image without its locks.
    #[error("its image is not open")]
    Away,
    /// Image that another process has, in words of `disk::locks`.
    #[error("{0}")]
    Waits(String),
    /// Generation that cannot be read or kept.
    #[error("who has it cannot be kept: {0}")]
    Keep(#[source] io::Error),
    /// Generation that another machine has had.
    #[error("another machine has had it since; it is asked for anew")]
    Had,
    /// Failure to make its slots.
    #[error("{0}")]
    Memory(#[source] MapError),
    /// Failure to make its queue.
    #[error("{0}")]
    Queue(#[source] SetupError),
    /// What control counted on: a defect, which whoever meets this notes.
    #[error("there is no {0}")]
    Missing(&'static str),
}

impl ExportError {
    /// What no client, file or operator can have caused is a defect.
    #[track_caller]
    pub(super) fn note_in(&self, defects: &mut Defects) {
        if let ExportError::Missing(expected) = self {
            defects.note(expected);
        }
    }
}

/// Failure to write a shard down for another process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandingError {
    /// Shard of no link.
    #[error("there is no such link")]
    NoLink,
    /// Requests that go to an IOhost once more.
    #[error("requests by link {0:?} are being repeated: try again when they have ended")]
    Repeating(String),
    /// End of the other role.
    #[error("a link has changed its role")]
    Role,
}

/// Failure to begin with what another process had of a link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InheritError {
    /// Bytes or sockets that are missing.
    #[error("a shard is cut short")]
    Short,
    /// Number of a disk that is not the link's, or is another disk's as well.
    #[error("a disk has a number that its link does not have, or another disk has")]
    Number,
    /// Malformed bytes.
    #[error("{0}")]
    Saved(#[from] BadSaved),
    /// Socket that can be neither kept nor made anew.
    #[error("{0}")]
    Socket(#[from] LinkOpenError),
    /// Frames that do not fit.
    #[error("its interface's packets are shorter than its `mtu`: make them equal")]
    Mtu,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_else_can_have_caused_is_a_defect() {
        let mut defects = Defects::default();
        for why in [ExportError::Removed, ExportError::NotOpen, ExportError::Had] {
            why.note_in(&mut defects);
        }
        assert_eq!(defects.views(), []);
        ExportError::Missing("queue of a disk").note_in(&mut defects);
        let views = defects.views();
        assert_eq!(views[0].expected, "queue of a disk");
        assert!(views[0].at.starts_with("remote/error.rs:"), "{}", views[0].at);
    }
}
