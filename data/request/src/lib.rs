//! The words of the walk: what is asked, how it ended, and which reply is owed.
//!
//! Shared by every crate of `data/`. Parsed and owned: nothing here refers to guest memory other
//! than by [`Span`], and nothing here knows a ring or a device.
#![forbid(unsafe_code)]

mod tag;

pub use guest_memory::Span;
pub use tag::Tag;

/// What is asked of a back-end. Offsets and lengths in bytes were checked against the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Disk to guest memory.
    Read,
    /// Guest memory to disk; with `sync`, stable before it ends (write-through).
    Write {
        /// Make it stable before it is reported done.
        sync: bool,
    },
    /// Everything written and reported done before is made stable.
    Flush,
    /// The range's content no longer matters.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// The space may be given back.
        unmap: bool,
        /// Make it stable before it is reported done.
        sync: bool,
    },
}

/// One request, as a back-end sees it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What to do.
    pub op: Op,
    /// First byte on the disk.
    pub offset: u64,
    /// Bytes of the disk concerned. For `Read` and `Write` the sum of the segments' lengths.
    pub len: u64,
    /// Where in guest memory, in order; empty except for `Read` and `Write`.
    pub segments: &'a [Span],
}

/// How a request ended. The values of virtio-blk (VIRTIO 1.2, 5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Failed, or asked for something impossible.
    IoError = 1,
    /// Not something this device does.
    Unsupported = 2,
}
