//! Why a frame went nowhere: one list for every place that drops.
//!
//! Only some of these are found in this crate; the others are `sidecore`'s. Called by whoever counts
//! and shows.

/// Why a frame was dropped. Counted on one port: that of the sender, or, where it says so, of the
/// receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// No whole virtio-net header.
    ShortHeader,
    /// `frame::BadOffload`.
    BadOffload,
    /// Shorter than an Ethernet header with its tag.
    Runt,
    /// Longer than `frame::FRAME_MAX`.
    TooLong,
    /// A source address that is a group's or zero, another port's own, or not the sender's where it
    /// must be.
    BadSource,
    /// A tag, or no tag, that the port's rule does not allow; of the receiver: its rule.
    Vlan,
    /// One address more than the port may have.
    MacLimit,
    /// The destination is on the port that it came from.
    Same,
    /// The link of the sender, or of the receiver, is down.
    CarrierDown,
    /// There is no such port, or none at the other end of the wire.
    NoPort,
    /// For the next switch alone (01:80:c2:00:00:0x).
    LinkLocal,
    /// The receiver has no buffers.
    NoBuffer,
    /// The receiver's buffers are too small or too many for one frame.
    SmallBuffers,
    /// Longer than the receiver's MTU.
    OverMtu,
    /// What the receiver lacks cannot be done for it (`frame::Unfinished`).
    NotOffloadable,
    /// No room on the way to another sidecore.
    HandoverFull,
    /// The host port has no room.
    HostFull,
    /// The host port refused or failed.
    HostError,
    /// It came to the host port's interface, and the kernel had no place to keep it.
    HostMissed,
    /// The receiver's limit, or that of its group, allows no more now.
    OverLimit,
}

impl DropReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [DropReason; 20] = [
        DropReason::ShortHeader,
        DropReason::BadOffload,
        DropReason::Runt,
        DropReason::TooLong,
        DropReason::BadSource,
        DropReason::Vlan,
        DropReason::MacLimit,
        DropReason::Same,
        DropReason::CarrierDown,
        DropReason::NoPort,
        DropReason::LinkLocal,
        DropReason::NoBuffer,
        DropReason::SmallBuffers,
        DropReason::OverMtu,
        DropReason::NotOffloadable,
        DropReason::HandoverFull,
        DropReason::HostFull,
        DropReason::HostError,
        DropReason::HostMissed,
        DropReason::OverLimit,
    ];

    /// How many there are: the size of a table of counters.
    pub const COUNT: usize = DropReason::ALL.len();

    /// Its place in such a table, below [`COUNT`](Self::COUNT).
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in the API, which does not change.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::ShortHeader => "short_header",
            DropReason::BadOffload => "bad_offload",
            DropReason::Runt => "runt",
            DropReason::TooLong => "too_long",
            DropReason::BadSource => "bad_source",
            DropReason::Vlan => "vlan",
            DropReason::MacLimit => "mac_limit",
            DropReason::Same => "same",
            DropReason::CarrierDown => "link_down",
            DropReason::NoPort => "no_port",
            DropReason::LinkLocal => "link_local",
            DropReason::NoBuffer => "no_buffer",
            DropReason::SmallBuffers => "small_buffers",
            DropReason::OverMtu => "over_mtu",
            DropReason::NotOffloadable => "not_offloadable",
            DropReason::HandoverFull => "handover_full",
            DropReason::HostFull => "host_full",
            DropReason::HostError => "host_error",
            DropReason::HostMissed => "host_missed",
            DropReason::OverLimit => "over_limit",
        }
    }

    /// What it means, for an operator.
    pub const fn sentence(self) -> &'static str {
        match self {
            DropReason::ShortHeader => "the guest sent less than a virtio-net header",
            DropReason::BadOffload => {
                "the header asked for an offload that is impossible or was not negotiated"
            }
            DropReason::Runt => "the frame was shorter than an Ethernet header",
            DropReason::TooLong => "the frame was longer than 65,557 bytes",
            DropReason::BadSource => {
                "the source address was not the port's own, another port's, a group's, or zero"
            }
            DropReason::Vlan => "the port does not carry the frame's VLAN",
            DropReason::MacLimit => "the port has as many MAC addresses as it may have",
            DropReason::Same => "the destination is behind the port that the frame came from",
            DropReason::CarrierDown => "the link was down",
            DropReason::NoPort => "there was no port for the frame to go to",
            DropReason::LinkLocal => {
                "the frame was for the next switch alone, and is not forwarded"
            }
            DropReason::NoBuffer => {
                "the receiver had no buffers: no guest is connected, or it is slower than the traffic"
            }
            DropReason::SmallBuffers => "the receiver's buffers were too small for the frame",
            DropReason::OverMtu => "the packet was longer than the receiver's MTU",
            DropReason::NotOffloadable => {
                "the receiver lacks an offload, and the frame could not be finished for it"
            }
            DropReason::HandoverFull => "the sidecore of the receiver did not keep up",
            DropReason::HostFull => "the host's interface did not take frames fast enough",
            DropReason::HostError => {
                "the host's interface refused the frame, or lost it when it sent"
            }
            DropReason::HostMissed => {
                "frames came from the host's interface faster than they were taken"
            }
            DropReason::OverLimit => "the receiver's limit, or its group's, was used up",
        }
    }
}
