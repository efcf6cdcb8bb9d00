//! Links as the API shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{LinkRole, LinkSecurity};

/// Every link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkList {
    /// The links, in the order they were declared.
    pub links: Vec<LinkView>,
}

/// One link as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkView {
    /// Its name.
    pub id: String,
    /// Where it was declared: the file and line.
    pub declared: String,
    /// Which end this is.
    pub role: LinkRole,
    /// What keeps strangers out.
    pub security: LinkSecurity,
    /// Where this end listens, or the IOhosts that it asks.
    pub addresses: Vec<String>,
    /// Number of the sidecore that has it, or of the first of several; its disks' queues are there, too. Null while none
    /// has it.
    #[serde(default)]
    pub sidecore: Option<u16>,
    /// `iohost`: the sidecores that serve it, by shard. The first hears hellos.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sidecores: Vec<u16>,
    /// How frames come and go, in words, once it is open: `udp`, `packet`, or such as `xdp, native, copy`; of several
    /// shards that of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<String>,
    /// What is wrong with it now; absent when nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// `client`: the IOhost of its session; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Sessions that there are now.
    pub sessions: u64,
    /// `client`: nanoseconds of a round trip, smoothed; null before the first.
    #[serde(default)]
    pub round_trip_ns: Option<u64>,
    /// Frames that came.
    pub frames_in: u64,
    /// Frames that were sent.
    pub frames_out: u64,
    /// Frames that came and were dropped: of strangers, not authentic, seen before, refused hellos, or without room in
    /// the socket.
    pub frames_dropped: u64,
    /// Frames that the kernel refused to send, for lack of memory, room or a route; they are sent again, or count as
    /// lost.
    #[serde(default)]
    pub frames_unsent: u64,
    /// Handshakes that this end began, or hellos that came.
    pub handshakes: u64,
    /// `iohost`: hellos that were refused: made with another `security` or for another IOhost's key, of a client that
    /// the file does not name, or too many at once. `problem` has the latest, for a minute, if it could be read: the
    /// address of another is not proven.
    #[serde(default)]
    pub hellos_refused: u64,
    /// `iohost`: the same by reason, with the last that is known of each.
    #[serde(default)]
    pub refusals: Vec<LinkRefusalView>,
    /// Frames and answers whose bytes were not what their checksum says.
    pub mismatches: u64,
    /// `iohost`: frames that came to another sidecore than that of their session, and were dropped.
    #[serde(default)]
    pub frames_misplaced: u64,
    /// Sessions that ended because the other end said what it must not.
    pub violations: u64,
    /// `client`: writes that were answered and not flushed, and sent again to a machine that had lost them.
    #[serde(default)]
    pub writes_again: u64,
    /// `iohost`: sessions whose client was silent for too long.
    pub leases_over: u64,
    /// How the way to each machine is that it has a session with now. Looked at ten times a second, while frames go.
    #[serde(default)]
    pub ways: Vec<LinkWayView>,
    /// The disks of other machines that come by it, or those of this one that clients may have.
    pub disks: Vec<LinkDiskView>,
    /// The NICs of guests here that come by it, or those of this machine's switches that clients may have.
    #[serde(default)]
    pub nics: Vec<LinkNicView>,
}

/// Hellos that an IOhost's link refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkRefusalView {
    /// Why, in words.
    pub reason: String,
    /// How many since the daemon started.
    pub count: u64,
    /// Where the last of them came from; absent where none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// How many seconds ago that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ago_s: Option<u64>,
}

/// A NIC that goes by a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkNicView {
    /// Its name: that of the guest's NIC, or that of the switch's uplink.
    pub id: String,
    /// The other end has it now.
    pub in_use: bool,
    /// Frames that were sent on the link.
    pub frames_out: u64,
    /// Frames that came whole.
    pub frames_in: u64,
    /// Frames that were dropped at this end of the link: nobody had the NIC, its port took no more, a part was lost.
    pub frames_dropped: u64,
}

/// How the way to another machine is, as one session finds it. What was sent, from here to there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkWayView {
    /// The other machine: the IOhost's address, or the client's name.
    pub peer: String,
    /// Number of the sidecore that has the session; null while none has.
    #[serde(default)]
    pub sidecore: Option<u16>,
    /// Nanoseconds of a round trip, smoothed; null before the first.
    #[serde(default)]
    pub round_trip_ns: Option<u64>,
    /// Frames sent that are acknowledged: all but mere acknowledgements.
    pub frames_sent: u64,
    /// Of them: taken for lost.
    pub frames_lost: u64,
    /// Parts of requests, answers and messages that were sent again for that, or because no acknowledgement came in
    /// time, if they still mattered.
    pub records_again: u64,
    /// Frames under way now.
    pub frames_under_way: u64,
    /// Frames that may be under way, as far as losses tell.
    pub window_frames: u64,
    /// Frames that may be under way, as far as the other end has memory for them: its credit.
    pub credit_frames: u64,
}

/// A disk that goes by a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkDiskView {
    /// Its name here.
    pub id: String,
    /// A guest here, or a client, has it now.
    pub in_use: bool,
    /// `iohost`: the client that has it, by its name in the file; absent while none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Requests that ended.
    pub requests: u64,
    /// Of them: with an error.
    pub errors: u64,
    /// Requests under way.
    pub in_flight: u64,
    /// What is wrong with it, if something is, as it is shown of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
