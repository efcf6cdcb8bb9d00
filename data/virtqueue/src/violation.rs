//! What a driver or front-end can do wrong with a ring.

/// The first thing a guest did that VIRTIO forbids, or its front-end. It latches the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More chains made available than the ring holds, or the index went back (2.7.13.3.1).
    #[error("the available index moved from {from} to {to} in a ring of {size}")]
    AvailableIndex {
        /// Next index expected.
        from: u16,
        /// Index read.
        to: u16,
        /// Ring size.
        size: u16,
    },
    /// The head of a chain is not in the table.
    #[error("descriptor {index} is outside a table of {size}")]
    DescriptorIndex {
        /// Index read.
        index: u16,
        /// Entries in the table.
        size: u32,
    },
    /// A chain longer than the ring: a loop (2.7.5.2).
    #[error("a descriptor chain does not end within {limit} descriptors")]
    ChainLoop {
        /// Descriptors walked.
        limit: u32,
    },
    /// An indirect table that is empty, not of whole entries, or not in guest memory.
    #[error("an indirect table of {len} bytes at {gpa:#x} cannot be read")]
    IndirectTable {
        /// Guest address.
        gpa: u64,
        /// Bytes.
        len: u32,
    },
    /// An indirect descriptor where none may be (2.7.5.3.1, 2.8.8).
    #[error("an indirect descriptor where none may be")]
    IndirectPlace,
    /// A buffer that is not in guest memory.
    #[error("a buffer of {len} bytes at {gpa:#x} is not in guest memory")]
    BufferAddress {
        /// Guest address.
        gpa: u64,
        /// Bytes.
        len: u32,
    },
    /// A buffer cut into pieces by memory regions, in a chain that has too many pieces already.
    #[error(
        "a buffer of {len} bytes at {gpa:#x} crosses memory regions in a chain of more than {max} \
         pieces",
        max = crate::CHAIN_SPANS_MAX
    )]
    BufferPieces {
        /// Guest address.
        gpa: u64,
        /// Bytes.
        len: u32,
    },
    /// A device-readable buffer after a device-writable one (2.7.4.2).
    #[error("a device-readable buffer follows a device-writable one")]
    BufferOrder,
    /// Buffers of 4 GiB or more in one chain (2.7.5.2).
    #[error("the buffers of one chain add up to 4 GiB or more")]
    ChainBytes,
    /// A packed buffer id that is not below the ring size.
    #[error("buffer id {id} in a ring of {size}")]
    BufferId {
        /// Id read.
        id: u16,
        /// Ring size.
        size: u16,
    },
    /// A chain of entries that are still in flight (2.8.21); only seen with an in-flight record.
    #[error("a chain of {entries} ring entries was made available, {free} are free")]
    EntriesInFlight {
        /// Entries of the chain.
        entries: u16,
        /// Entries of the ring that are not in flight.
        free: u16,
    },
    /// A chain without a place for its answer.
    #[error("a request without room for its {need}")]
    NoRoom {
        /// What is missing: `header` or `status`.
        need: &'static str,
    },
    /// Pages of the guest's memory, the dirty log or the in-flight record are gone.
    #[error(
        "its front-end took away memory that it had lent, or a page of it broke: nothing is served \
         before the VMM connects anew"
    )]
    MemoryLost,
    /// A call had to wait: the eventfd was full and blocking.
    #[error(
        "its call descriptor was full and made to block: nothing is served before the VMM connects \
         anew"
    )]
    CallBlocked,
}

/// Why a ring cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// Zero, above 32768, or (split) not a power of two.
    #[error("a ring of {0} entries: a split ring has a power of two, a packed ring 1 to 32768")]
    Size(u16),
    /// One of the three parts is shorter than the size asks for.
    #[error("the {part} part of the ring has {have} bytes, {need} are needed")]
    Short {
        /// Which of the three.
        part: &'static str,
        /// Bytes given.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// One of the parts is not aligned as VIRTIO asks (2.7, 2.8).
    #[error("the {part} part of the ring is not aligned to {align} bytes")]
    Unaligned {
        /// Which of the three.
        part: &'static str,
        /// Bytes.
        align: usize,
    },
    /// A ring base outside the ring.
    #[error("ring base {0:#x} is outside the ring")]
    Base(u32),
    /// An in-flight record that does not fit the ring.
    #[error("the in-flight record is for {have} descriptors, the ring has {need}")]
    Inflight {
        /// Descriptors in the record.
        have: u16,
        /// Ring size.
        need: u16,
    },
    /// An in-flight record in a form that we do not know.
    #[error("the in-flight record has version {0}; 1 is known, and 0 for a fresh one")]
    InflightVersion(u16),
    /// An in-flight record that no process can have left.
    #[error(
        "the in-flight record contradicts itself in {0}: give the device a fresh one, \
         requests that were in flight are lost"
    )]
    InflightContradiction(&'static str),
}
