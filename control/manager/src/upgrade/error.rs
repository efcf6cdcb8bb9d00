//! Errors of an upgrade, by who meets them: heir, predecessor, or both.
//!
//! Their texts reach operators, by the API and the log. Not here: malformed packets (`wire::Broken`), launchers
//! (`launcher`). Used by all of `upgrade`, `begin` and `manager`.

use std::io;

use vhost_user::{BadFrame, Refused};

use super::estate::Progress;
use super::launcher::LauncherError;
use super::wire::{Broken, FORMATS, FromHeir, Handle};
use crate::devices::front_end::FrontEndError;
use crate::devices::unrecorded::Unrecorded;
use crate::remote::error::{HandingError, InheritError};

/// Error in what a predecessor sends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EstateError {
    /// Malformed packet.
    #[error("{0}")]
    Packet(#[from] Broken),
    /// Format that this program does not read.
    #[error("format {0} is not known")]
    Format(u32),
    /// Descriptors left over.
    #[error("a packet with more descriptors than it names")]
    SpareDescriptors,
    /// Descriptor that did not come.
    #[error("a packet without its descriptor")]
    NoDescriptor,
    /// Count above its bound.
    #[error("more than {most} {what}")]
    TooMany { most: usize, what: &'static str },
    /// Port of an unknown device.
    #[error("a port of {0:?}, which is no device")]
    StrayPort(String),
    /// Ring of an unknown device.
    #[error("a ring of {0:?}, which is no device")]
    StrayRing(String),
    /// Connection before any device.
    #[error("a connection of no device")]
    StrayConnection,
    /// Message before any connection.
    #[error("a message of no connection")]
    StrayMessage,
    /// Descriptor that one device has twice.
    #[error("device {id:?} has two of {handle:?}")]
    SameHandle { id: String, handle: Handle },
    /// Descriptors that no single device has together.
    #[error("device {0:?} has descriptors of several kinds")]
    MixedHandles(String),
    /// Device that came before.
    #[error("device {0:?} is told of twice")]
    SameDevice(String),
}

/// Failure of an heir to take over, which leaves its predecessor in charge.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeirError {
    /// Failure of the channel.
    #[error("{0}")]
    Channel(#[from] io::Error),
    /// Error in the estate.
    #[error("{0}")]
    Estate(#[from] EstateError),
    /// End of the predecessor, or its decision to go on.
    #[error("the daemon that serves has ended, or goes on")]
    Gone,
    /// Step out of order of this process.
    #[error("it is not told enough")]
    Early,
    /// Packet out of order.
    #[error("{came:?} instead of {awaited:?}")]
    OutOfOrder { came: Progress, awaited: Progress },
    /// Packet in the place of the last one.
    #[error("{0:?} instead of a leave")]
    NoLeave(Progress),
    /// Device that a guest runs and that would be taken from it.
    #[error(
        "a guest uses {0:?}, and the file has it no more, or as a device that would be made anew: put the file \
         back, or run `sidecore reload --force` first, which takes it from that guest; if that \
         changes nothing, `run_dir` is different: restart the daemon instead"
    )]
    InUse(String),
    /// Device that cannot be served here.
    #[error("{name}: {source}")]
    Device { name: String, source: AdoptError },
}

/// Failure to adopt one device with its front-ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdoptError {
    /// Device of another kind.
    #[error("it was handed over as a device of another kind")]
    Kind,
    /// MTU that the NIC cannot have.
    #[error("an MTU of {0} is not possible")]
    Mtu(u16),
    /// Malformed message of a front-end.
    #[error("{0}")]
    Frame(#[from] BadFrame),
    /// Bytes that are no single message.
    #[error("a message of its front-end is not whole, or more than one")]
    NotOneFrame,
    /// Message that the predecessor took and the session refuses.
    #[error("what its front-end said before is refused now: {0}")]
    Refused(#[source] Refused<FrontEndError>),
    /// Connection that `epoll` does not take.
    #[error("a connection cannot be watched: {0}")]
    Watch(#[source] io::Error),
}

/// Failure to hand over or inherit a link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShardError {
    /// Link that cannot be written down now.
    #[error("{0}")]
    Link(#[from] HandingError),
    /// Link that cannot begin with what came.
    #[error("link {link:?}: {source}")]
    Inherit { link: String, source: InheritError },
    /// Failure to save a shard.
    #[error("link {link:?} cannot be written down: {source}")]
    Save { link: String, source: io::Error },
    /// Gap in the numbers of shards.
    #[error("link {link:?} has no shard {shard}")]
    Missing { link: String, shard: usize },
    /// Failure to read a shard.
    #[error("shard {shard} of link {link:?}: {source}")]
    Read { link: String, shard: usize, source: io::Error },
    /// Malformed words of a shard.
    #[error("shard {shard} of link {link:?}: {source}")]
    Words { link: String, shard: usize, source: serde_json::Error },
}

/// Failure to bring all queues and host ports home in time.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DrainError {
    /// Sidecores that do not answer.
    #[error(
        "its queues and host ports do not all come back in time: sidecores are late; try again"
    )]
    Sidecores,
    /// Disks, by name, whose requests do not end.
    #[error(
        "requests of {} do not end: their disk does not answer; try again when it does",
        .0.join(", ")
    )]
    Disks(Vec<String>),
}

/// Failure of an upgrade, after which this daemon goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    /// Daemon that was started without launchers.
    #[error("the daemon has no launcher")]
    NoLauncher,
    /// Launchers that cannot be asked.
    #[error(
        "its `sidecore launcher` processes have ended or do not answer, so nothing can be started: continue them \
         if they were stopped (`kill -CONT`), or restart the daemon when its guests can wait"
    )]
    LaunchersLost,
    /// Failure to make a channel.
    #[error("{0}")]
    Channel(#[source] io::Error),
    /// Failure to keep devices that were made by command.
    #[error("the devices that were made by commands cannot be kept: {0}")]
    Keep(#[source] io::Error),
    /// Launcher that starts no heir.
    #[error("{0}")]
    Launcher(#[source] LauncherError),
    /// Channel that `epoll` does not take.
    #[error("the new process cannot be heard")]
    Listen,
    /// Silence in the place of the first word.
    #[error(
        "the new process said nothing in time (5 s): it does not start, or this machine is too busy for one now, \
         and it can be tried again"
    )]
    Silent,
    /// Other word in the place of the first.
    #[error("the new process began with {0:?}")]
    Began(FromHeir),
    /// Formats of which this program has none.
    #[error(
        "version {version} reads estates of formats {formats:?}, this daemon writes {FORMATS:?}: go by a version \
         in between"
    )]
    Formats { version: String, formats: Vec<u32> },
    /// Heir that reads no links, while there are some.
    #[error("version {0} knows no links that are handed over: restart the daemon")]
    NoLinks(String),
    /// Heir that would open an image by its name.
    #[error(
        "disk {disk:?} waits for what a process that died did with its image, and version {version} cannot: wait until \
         it is served again"
    )]
    NoAnchor { version: String, disk: String },
    /// Requests that would end with an error.
    #[error("{0}")]
    Unrecorded(#[from] Unrecorded),
    /// Work that did not end in time.
    #[error("it waited for {0}")]
    Busy(String),
    /// Stop of this daemon.
    #[error("this daemon is being stopped")]
    Stopping,
    /// Absence of an upgrade.
    #[error("there is none")]
    NotBegun,
    /// Answer that did not come in time.
    #[error("the new process did not answer in time")]
    Late,
    /// Failure to receive.
    #[error("the new process cannot be heard: {0}")]
    Receive(#[source] io::Error),
    /// Failure to send.
    #[error("the new process takes nothing: {0}")]
    Send(#[source] io::Error),
    /// End of the heir.
    #[error("the new process has ended")]
    Ended,
    /// The same, and how, as its launcher knows.
    #[error("the new process has ended ({0})")]
    EndedSo(String),
    /// Refusal of the heir, in its words.
    #[error("{0}")]
    Refused(String),
    /// Malformed word.
    #[error("the new process makes no sense: {0}")]
    Nonsense(#[source] serde_json::Error),
    /// Word out of order.
    #[error("the new process said {said:?} instead of {awaited:?}")]
    OutOfOrder { said: FromHeir, awaited: FromHeir },
    /// Queues that do not come home.
    #[error("{0}")]
    Drain(#[from] DrainError),
    /// Link that cannot be handed over.
    #[error("{0}")]
    Shard(#[from] ShardError),
}

/// Failure of an heir that took over, on probation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbationError {
    /// End of its process.
    #[error("it ended")]
    Ended,
    /// Silence.
    #[error("it fell silent")]
    Silent,
    /// Failure to receive.
    #[error("it cannot be heard: {0}")]
    Receive(#[source] io::Error),
    /// Word out of order.
    #[error("it said {0:?}")]
    OutOfOrder(FromHeir),
    /// Malformed word.
    #[error("it makes no sense: {0}")]
    Nonsense(#[source] serde_json::Error),
}

/// Failure to serve again what a dead heir had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeBackError {
    /// Failure to answer operators again.
    #[error("its API cannot be opened again: {0}")]
    Api(#[source] io::Error),
    /// Heir that was not heard to commit.
    #[error("it had committed by then, and may have answered whom this process knows nothing of")]
    Committed,
}
