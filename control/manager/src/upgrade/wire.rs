//! What predecessor and heir say to each other, in the order of docs/decisions/0009, "The course".
//!
//! A packet is one JSON object; its descriptors go beside it, in the order that the packet's text
//! names. Everything that comes is checked here for its form and its bounds, and by whoever takes it
//! for its sense. Not here: sockets (`channel`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pause::PauseWords;
use crate::devices::queue::Left;
use crate::remote::words::KnownWords;

/// The formats that this program speaks, the best last. The first knows no links.
pub(crate) const FORMATS: [u32; 5] = [1, WITH_LINKS, WITH_GUARD, WITH_FOLDER, WITH_LOST];
/// The first format with links.
pub(crate) const WITH_LINKS: u32 = 2;
/// The first format whose heir says when it has committed, and takes counters of uplinks.
pub(crate) const WITH_GUARD: u32 = 3;
/// That is told where the predecessor keeps its state.
pub(crate) const WITH_FOLDER: u32 = 4;
/// That is told which rings are lost. From this one on an heir starts, before it has committed, only what was served.
pub(crate) const WITH_LOST: u32 = 5;
/// Longest packet, bytes.
pub(crate) const PACKET_BYTES_MAX: usize = 64 * 1024;
/// Descriptors with one packet: a table of memory has 32.
pub(crate) const PACKET_FDS_MAX: usize = 64;
/// Disks in one packet that IOhosts have told of: a hundred bytes each.
pub(crate) const KNOWN_MAX: usize = 128;
/// Bytes of what one shard of a link hands over: copies of what was not flushed are in it.
pub(crate) const SHARD_BYTES_MAX: u64 = 1 << 32;
/// Rings in one packet: some hundred bytes each, without their counters.
pub(crate) const RINGS_MAX: usize = 32;

/// What the heir says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromHeir {
    /// It has read its configuration.
    Hello { version: String, formats: Vec<u32> },
    /// It cannot take over; it ends.
    Refused { why: String },
    /// It could serve all of the estate.
    Ready {},
    /// It has all that it needs, and begins when it is told or left alone.
    Taken {},
    /// It serves; how long queues stood still, if there were some.
    Serving { pause: Option<PauseWords> },
    /// It serves so well, or has done so much, that nobody can take anything back.
    #[serde(rename = "settled")]
    Committed {},
}

/// What the predecessor says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromPredecessor {
    /// The format of all that follows. With the API's listening socket, and the one that only shows if there is
    /// one: a program that knows of none is told nothing of it.
    Begin {
        format: u32,
        api: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        api_read: Option<String>,
        /// Where it keeps its state; told from [`WITH_FOLDER`] on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state_dir: Option<String>,
        /// Whether the lock of that folder comes last: whoever has it open keeps other daemons out.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        has_lock: bool,
    },
    /// A device; what follows is about it. With the descriptors that `handles` names, in its order.
    Device(DeviceWords),
    /// A connection of it; what follows is about that. With its socket.
    #[serde(rename = "link")]
    Connection(ConnectionWords),
    /// A message that its front-end has sent, for its session. With the message's descriptors.
    Told { message: Vec<u8> },
    /// What its front-end has sent and nobody has answered yet: whole messages, or the beginning of one.
    Unread { bytes: Vec<u8> },
    /// A reply to it that was not sent, or not all of it. With a descriptor, or none.
    Unsent { bytes: Vec<u8> },
    /// A message on its back-end channel that was not sent, or not all of it.
    Untold { bytes: Vec<u8> },
    /// There are links: which run of the daemon RAM disks are of, as clients were told.
    Remote { run: u64 },
    /// What the IOhosts of a link have told of disks.
    Known { link: String, disks: Vec<KnownWords> },
    /// All devices have been told of.
    Estate {},
    /// Where rings stand. Nothing is in flight.
    Rings { rings: Vec<RingWords> },
    /// A queue of a tap. With its descriptor.
    Tap { name: String, queue: u16, made: bool },
    /// A shard of a link, which no sidecore has any more. With its socket, and a memory file: [`crate::remote::words::ShardWords`] as so many
    /// bytes of JSON, then the bytes that those tell of.
    #[serde(rename = "seat")]
    Shard {
        link: String,
        #[serde(rename = "seat")]
        shard: usize,
        words: u64,
        bytes: u64,
    },
    /// What the port of a NIC has counted.
    Port { device: String, counters: BTreeMap<String, u64> },
    /// What an uplink has counted: its port, and whoever serves its descriptors.
    Uplink { name: String, frames: BTreeMap<String, u64>, work: BTreeMap<String, u64> },
    /// All rings and taps have been told of: whoever hears this and nothing more may serve. With the
    /// disks that have lost data, since that may just have happened, and the moment, on the machine's
    /// clock, at which all were back.
    Flip { sync_failed: Vec<String>, drained_ns: u64 },
    /// Serve.
    Yours {},
}

/// A device as the predecessor serves it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceWords {
    pub(crate) id: String,
    /// What it is made of, in words that both sides make of their plans alike.
    pub(crate) made_of: BTreeMap<String, String>,
    /// Where its front-ends connect.
    pub(crate) socket: String,
    pub(crate) handles: Vec<Handle>,
    /// For so many milliseconds it takes no front-end: one of them made a sidecore wait.
    pub(crate) closed_for_ms: u64,
    pub(crate) disk: Option<DiskWords>,
    pub(crate) nic: Option<NicWords>,
}

/// What only a disk has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskWords {
    pub(crate) size_bytes: u64,
    /// What its guest was told it can do; it must not change under it.
    pub(crate) physical_block_size: u32,
    /// The same of alignment offset, least and best request, and what discards free; bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) grain: Option<[u32; 4]>,
    pub(crate) discard_sectors_max: u32,
    pub(crate) zeroes_sectors_max: u32,
    /// It held nothing when it was opened.
    pub(crate) was_empty: bool,
    /// Its image lives in memory.
    pub(crate) at_once: bool,
    /// Its image is not open: its guest, if it has one, is elsewhere.
    pub(crate) is_away: bool,
    /// It was given up when a process that had it died, and what that has written may not be stable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_fenced: bool,
    /// Of one that is only read: what it is known by that nothing is in flight any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mark: Option<u64>,
    /// Its cache, as its driver chose.
    pub(crate) writeback: bool,
}

/// What a descriptor of a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Handle {
    Listener,
    Memory,
    Cached,
    Direct,
    /// What leads to an image that was given up.
    Anchor,
}

/// What only a NIC has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NicWords {
    pub(crate) is_up: bool,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u16,
    pub(crate) home: usize,
    pub(crate) by_hand: bool,
}

/// A connection of a front-end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConnectionWords {
    /// It runs the device.
    pub(crate) runs: bool,
}

/// A ring as it stands.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RingWords {
    pub(crate) device: String,
    pub(crate) queue: u16,
    /// As in `SET_VRING_BASE`; nothing when no front-end runs the device.
    pub(crate) base: Option<u32>,
    /// Nobody knows where it stands, until its front-end says so; told from [`WITH_LOST`] on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_lost: bool,
    /// It stood at `base` before another process served it and died: only its record knows how far that came. Told as
    /// [`Self::is_lost`] is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_hearsay: bool,
    /// It broke a rule, and why.
    pub(crate) failed: bool,
    pub(crate) violation: Option<String>,
    /// A sidecore has had it.
    pub(crate) was_attached: bool,
    pub(crate) problem: Option<String>,
    /// Where it stood when it was served last, and what its front-end knew.
    pub(crate) left: Option<Left>,
    /// Where it was served until now.
    pub(crate) place: Option<PlaceWords>,
    /// When it was asked for there, on the machine's clock.
    pub(crate) asked_ns: Option<u64>,
    pub(crate) counters: BTreeMap<String, u64>,
}

/// A sidecore that had a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlaceWords {
    pub(crate) sidecore: usize,
    /// An operator brought it there.
    pub(crate) by_hand: bool,
}

/// Why a packet is no packet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("a packet of {0} bytes, more than {PACKET_BYTES_MAX}")]
    TooLong(usize),
    #[error("{0} descriptors with one packet, more than {PACKET_FDS_MAX}")]
    TooManyFds(usize),
    #[error("a packet that makes no sense: {0}")]
    Form(#[from] serde_json::Error),
    #[error("{0} rings in one packet, more than {RINGS_MAX}")]
    TooManyRings(usize),
    #[error("{0} disks of a link in one packet, more than {KNOWN_MAX}")]
    TooManyDisks(usize),
    #[error("{0} bytes of a shard, more than {SHARD_BYTES_MAX}")]
    LongShard(u64),
}

/// What the predecessor sent, with so many descriptors.
///
/// # Errors
/// [`Broken`].
pub(crate) fn read(bytes: &[u8], fds: usize) -> Result<FromPredecessor, Broken> {
    if bytes.len() > PACKET_BYTES_MAX {
        return Err(Broken::TooLong(bytes.len()));
    }
    if fds > PACKET_FDS_MAX {
        return Err(Broken::TooManyFds(fds));
    }
    match serde_json::from_slice(bytes)? {
        FromPredecessor::Rings { rings } if rings.len() > RINGS_MAX => {
            Err(Broken::TooManyRings(rings.len()))
        }
        FromPredecessor::Known { disks, .. } if disks.len() > KNOWN_MAX => {
            Err(Broken::TooManyDisks(disks.len()))
        }
        FromPredecessor::Shard { words, bytes, .. }
            if words.saturating_add(bytes) > SHARD_BYTES_MAX =>
        {
            Err(Broken::LongShard(words.saturating_add(bytes)))
        }
        packet => Ok(packet),
    }
}

/// The best format that both sides speak.
pub(crate) fn common_format(theirs: &[u32]) -> Option<u32> {
    FORMATS.iter().rev().find(|format| theirs.contains(format)).copied()
}
