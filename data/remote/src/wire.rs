//! What frames look like: header and records, parsed to typed errors and built.
//!
//! Not what is done with them, and not their seal. `docs/remote-protocol.md` has the tables. All numbers are
//! little-endian. Called by `session`, `client`, `iohost`, `handshake`.

use thiserror::Error;

mod build;
mod record;

pub use build::Builder;
pub use record::{
    ACK_BLOCKS_MAX, AckBlocks, Bind, Bound, End, Intent, Net, News, Outcome, Part, Piece, Record,
    Records, Verifier,
};

/// The version of everything on this page. A frame of another one is dropped, hellos among them.
pub const VERSION: u8 = 1;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a record's head.
pub const RECORD_HEAD_BYTES: usize = 4;
/// Bytes of a [`Part`] without its data: the largest record that carries some.
pub const PART_BYTES: usize = 40;
/// Bytes of a [`Piece`] without its data.
pub const PIECE_BYTES: usize = 32;
/// Bytes of a [`Net`] without its data.
pub const NET_BYTES: usize = 12;
/// The longest frame of a NIC: an IP packet of 9,000 bytes with Ethernet header and two tags, rounded up.
pub const NET_FRAME_BYTES_MAX: usize = 9_024;
/// The longest data of one request: the client splits what is longer.
pub const REQUEST_BYTES_MAX: usize = 128 << 10;

/// Why bytes are no frame, or no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// It ends within its header, or within a record.
    #[error("it ends too early")]
    Short,
    /// A version that is not spoken here.
    #[error("version {0}")]
    Version(u8),
    /// A kind of frame or record that there is not.
    #[error("kind {0}")]
    Kind(u8),
    /// A field has a value that means nothing, or padding is not zero.
    #[error("a field has a value that means nothing")]
    Field,
    /// A record is longer or shorter than its kind.
    #[error("a record of the wrong length")]
    Length,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first message of a handshake.
    Hello = 1,
    /// The answer to a hello without a cookie: the cookie.
    Cookie = 2,
    /// The answer to a hello with one.
    Answer = 3,
    /// Sealed records of a session.
    Sealed = 4,
}

/// The first bytes of each frame. They are sealed together with the records, and are not secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// The receiver's number for the session; 0 in a hello.
    pub session: u32,
    /// Nonce, number of the frame, and place in the replay window. 0 in a handshake.
    pub counter: u64,
}

impl Header {
    /// Reads the header of `frame`.
    pub fn parse(frame: &[u8]) -> Result<Header, Malformed> {
        let mut rest = frame;
        let [version, kind, zero0, zero1] = take(&mut rest)?;
        let kind = match (version, kind) {
            (VERSION, 1) => Kind::Hello,
            (VERSION, 2) => Kind::Cookie,
            (VERSION, 3) => Kind::Answer,
            (VERSION, 4) => Kind::Sealed,
            (VERSION, other) => return Err(Malformed::Kind(other)),
            (other, _) => return Err(Malformed::Version(other)),
        };
        if (zero0, zero1) != (0, 0) {
            return Err(Malformed::Field);
        }
        Ok(Header { kind, session: u32_of(&mut rest)?, counter: u64_of(&mut rest)? })
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = VERSION;
        bytes[1] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..].copy_from_slice(&self.counter.to_le_bytes());
        bytes
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Bytes of the device, which come back in [`Piece`]s.
    Read,
    /// Bytes to the device; with `sync`, stable before it ends.
    Write {
        /// Make it stable before it is reported done.
        sync: bool,
    },
    /// All that was reported done before is made stable.
    Flush,
    /// The content of the range no longer matters.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// The space may be given back.
        unmap: bool,
        /// Make it stable before it is reported done.
        sync: bool,
    },
}

impl Op {
    /// Whether data goes to the IOhost.
    pub fn has_data(self) -> bool {
        matches!(self, Op::Write { .. })
    }

    /// Whether the device changes, and not stably: a flush must follow.
    pub fn is_volatile(self) -> bool {
        match self {
            Op::Write { sync } | Op::WriteZeroes { sync, .. } => !sync,
            Op::Discard => true,
            Op::Read | Op::Flush => false,
        }
    }

    /// Whether its end promises that something is stable.
    pub fn is_stable(self) -> bool {
        match self {
            Op::Write { sync } | Op::WriteZeroes { sync, .. } => sync,
            Op::Flush => true,
            Op::Discard | Op::Read => false,
        }
    }

    /// Operation and flags, as on the wire.
    pub fn code(self) -> [u8; 2] {
        match self {
            Op::Read => [0, 0],
            Op::Write { sync } => [1, u8::from(sync)],
            Op::Flush => [2, 0],
            Op::Discard => [3, 0],
            Op::WriteZeroes { unmap, sync } => [4, u8::from(sync) | u8::from(unmap) << 1],
        }
    }

    pub(crate) fn parse(code: [u8; 2]) -> Result<Op, Malformed> {
        match code {
            [0, 0] => Ok(Op::Read),
            [1, flags @ 0..=1] => Ok(Op::Write { sync: flags & 1 != 0 }),
            [2, 0] => Ok(Op::Flush),
            [3, 0] => Ok(Op::Discard),
            [4, flags @ 0..=3] => {
                Ok(Op::WriteZeroes { unmap: flags & 2 != 0, sync: flags & 1 != 0 })
            }
            _ => Err(Malformed::Field),
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Failed, or asked for something impossible.
    IoError = 1,
    /// Not something this device does.
    Unsupported = 2,
    /// What came is not what its checksum says. Nothing was executed.
    Mismatch = 3,
    /// On the wire only, and only as the answer to a recall: this turn has not been executed.
    NeverSeen = 255,
}

impl Status {
    pub(crate) fn parse(byte: u8) -> Result<Status, Malformed> {
        match byte {
            0 => Ok(Status::Ok),
            1 => Ok(Status::IoError),
            2 => Ok(Status::Unsupported),
            3 => Ok(Status::Mismatch),
            255 => Ok(Status::NeverSeen),
            _ => Err(Malformed::Field),
        }
    }
}

/// The checksum from end to end: over the device that is meant, the request, and its bytes.
pub fn checksum(device: u64, op: Op, offset: u64, len: u32, data: &[u8]) -> u64 {
    let mut sum = Checksum::new(device, op, offset, len);
    sum.update(data);
    sum.finish()
}

/// The same, of bytes that come one after the other.
pub(crate) struct Checksum(crc_fast::Digest);

impl Checksum {
    pub(crate) fn new(device: u64, op: Op, offset: u64, len: u32) -> Checksum {
        let mut head = [0; 24];
        head[..8].copy_from_slice(&device.to_le_bytes());
        head[8..10].copy_from_slice(&op.code());
        head[12..16].copy_from_slice(&len.to_le_bytes());
        head[16..].copy_from_slice(&offset.to_le_bytes());
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
        digest.update(&head);
        Checksum(digest)
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    pub(crate) fn finish(self) -> u64 {
        self.0.finalize()
    }
}

/// The first bytes of `rest`, which is shortened by them.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (first, others) = rest.split_first_chunk::<N>().ok_or(Malformed::Short)?;
    *rest = others;
    Ok(*first)
}

fn u16_of(rest: &mut &[u8]) -> Result<u16, Malformed> {
    take(rest).map(u16::from_le_bytes)
}

fn u32_of(rest: &mut &[u8]) -> Result<u32, Malformed> {
    take(rest).map(u32::from_le_bytes)
}

fn u64_of(rest: &mut &[u8]) -> Result<u64, Malformed> {
    take(rest).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
