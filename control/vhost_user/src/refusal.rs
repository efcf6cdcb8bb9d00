//! Why a message was not obeyed. The texts are for the operator's log and for `show`.

/// What makes a stream unreadable from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// Not version 1.
    #[error("the front-end speaks version {0} of the protocol, only version 1 exists")]
    Version(u32),
    /// A request that says it is a reply.
    #[error("a request has its reply bit set")]
    ReplyBit,
    /// Flags without a meaning.
    #[error("a message has unknown flags ({0:#x})")]
    Flags(u32),
    /// A payload above the bound.
    #[error("a message announces {0} bytes, at most {max} are taken", max = crate::PAYLOAD_SIZE_MAX)]
    TooLong(usize),
    /// More descriptors than any message has.
    #[error("{0} descriptors came with one message, at most {max} are taken", max = crate::FDS_MAX)]
    Descriptors(usize),
}

/// What was wrong with one message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Not a message that this back-end knows.
    #[error("message {0} is not supported")]
    Unknown(u32),
    /// A payload that is not as long as its message says.
    #[error("{message} with a payload of {size} bytes")]
    PayloadSize {
        /// Which message.
        message: &'static str,
        /// Bytes that came.
        size: usize,
    },
    /// Too many or too few descriptors.
    #[error("{message} with {count} descriptors")]
    Descriptors {
        /// Which message.
        message: &'static str,
        /// Descriptors that came.
        count: usize,
    },
    /// A queue that the device does not have.
    #[error("queue {index} of a device that has {queues}")]
    Queue {
        /// Number that came.
        index: u32,
        /// Queues there are.
        queues: u16,
    },
    /// A ring size that VIRTIO does not allow.
    #[error("a ring of {0} entries")]
    RingSize(u32),
    /// A ring base that a split ring cannot have.
    #[error("ring base {0:#x} of a split ring")]
    RingBase(u32),
    /// A ring address that is not aligned (VIRTIO 1.2, 2.7 and 2.8).
    #[error("ring address {0:#x} is not aligned")]
    RingAddress(u64),
    /// Neither 0 nor 1 where a switch was expected, or another bit set where none has a meaning.
    #[error("{message} with value {value:#x}")]
    Value {
        /// Which message.
        message: &'static str,
        /// What came.
        value: u64,
    },
    /// Features that were not offered.
    #[error("features {0:#x} were accepted but not offered")]
    Features(u64),
    /// Protocol features that were not offered.
    #[error("protocol features {0:#x} were accepted but not offered")]
    ProtocolFeatures(u64),
    /// A message that needs a protocol feature that was not negotiated.
    #[error("{message} without its protocol feature")]
    NotNegotiated {
        /// Which message.
        message: &'static str,
    },
    /// No region, or more than fit.
    #[error("{0} memory regions")]
    Regions(usize),
    /// An empty region, or one whose end is no address.
    #[error("a memory region of {size:#x} bytes at {gpa:#x} wraps around or is empty")]
    RegionSize {
        /// Guest address.
        gpa: u64,
        /// Bytes.
        size: u64,
    },
    /// A region that shares addresses with another, in the guest or in the front-end.
    #[error("the memory region at {gpa:#x} overlaps another")]
    RegionOverlap {
        /// Guest address.
        gpa: u64,
    },
    /// A region to remove that is not there.
    #[error("there is no memory region at {gpa:#x} of that size")]
    NoRegion {
        /// Guest address.
        gpa: u64,
    },
    /// A dirty log that is empty or wraps.
    #[error("a dirty log of {size:#x} bytes at offset {offset:#x}")]
    Log {
        /// Bytes.
        size: u64,
        /// Offset in the file.
        offset: u64,
    },
    /// An in-flight record that is too short, or for queues that do not exist.
    #[error("an in-flight record of {size} bytes for {queues} queues of {queue_size}")]
    Inflight {
        /// Bytes.
        size: u64,
        /// Queues.
        queues: u16,
        /// Entries of each.
        queue_size: u16,
    },
    /// A part of the config space that is not there or not writable.
    #[error("config space bytes {offset}..{offset}+{size} cannot be written")]
    Config {
        /// First byte.
        offset: u32,
        /// Bytes.
        size: usize,
    },
}

/// Why a message that has its form was not applied: by itself, or by what its owner said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused<E> {
    /// The message is wrong, or comes at the wrong time.
    #[error(transparent)]
    Message(#[from] Reason),
    /// The owner could not do what the message needs: map memory, take a descriptor.
    #[error("{message}: {source}")]
    Owner {
        /// Which message.
        message: &'static str,
        /// What failed and what to do ([`crate::Owner::Error`]).
        source: E,
    },
}

/// A message that was refused; the session is as it was before. `R` is a [`Reason`] where no owner was
/// asked, and a [`Refused`] where one may have been.
#[derive(Debug, PartialEq, Eq)]
pub struct Reject<R = Reason> {
    /// What was wrong.
    pub reason: R,
    /// What to tell the front-end; nothing when it cannot be told, and the connection is to be
    /// closed.
    pub nak: Option<Vec<u8>>,
}

impl<R> Reject<R> {
    /// Whether the connection is to be closed.
    pub fn is_fatal(&self) -> bool {
        self.nak.is_none()
    }
}

impl<E> From<Reject> for Reject<Refused<E>> {
    fn from(reject: Reject) -> Reject<Refused<E>> {
        Reject { reason: reject.reason.into(), nak: reject.nak }
    }
}
