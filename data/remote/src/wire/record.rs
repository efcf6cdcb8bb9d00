//! Records: one message each, of which a frame carries as many as fit.
//!
//! Values are checked for what they mean by themselves; whether they fit the state is the ends' business.

use super::{
    Malformed, NET_FRAME_BYTES_MAX, Op, PART_BYTES, PIECE_BYTES, Status, take, u16_of, u32_of,
    u64_of,
};

/// The most blocks of 64 frames that one acknowledgement names.
pub const ACK_BLOCKS_MAX: usize = 8;
const ACK_BLOCK_BYTES: usize = 16;

/// Says whether an IOhost still has what it acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verifier {
    /// Another one when writes that were not yet stable may be gone.
    pub boot: u64,
    /// Which device, and which contents. Another one: this is not what the guest was using.
    pub contents: u64,
}

/// What a client wants of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Intent {
    /// Size and features. Nothing changes.
    Look = 0,
    /// The device, from whoever has it; waits until that one has released it, or is silent.
    Take = 1,
    /// The attachment that it has had, in this session from now on.
    Again = 2,
}

/// A client asks for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The device, as both ends are configured.
    pub device: u64,
    /// What is wanted.
    pub intent: Intent,
    /// The client's place for it, below [`crate::ATTACHMENTS_MAX`].
    pub index: u16,
    /// Outstanding requests at most. 1 to [`crate::SLOTS_MAX`].
    pub slots: u16,
    /// Bytes of the longest request.
    pub slot_bytes: u32,
    /// Grows with each bind of the attachment; the highest wins.
    pub binding: u64,
    /// Of an attachment that the client has had.
    pub generation: u64,
    /// Random, of the client's process: no other one, and no earlier one, is it.
    pub instance: u64,
    /// The slots that the client knows ([`Bound::name`]); 0: none.
    pub name: u64,
}

/// How a [`Bind`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Bound; the slots and what was executed in them are still known.
    Kept = 0,
    /// Bound; every slot begins anew.
    Fresh = 1,
    /// Looked at.
    Looked = 2,
    /// There is no such device for this client.
    NoDevice = 3,
    /// Somebody took it with a later generation. This one is over for good.
    Stale = 4,
    /// Another client waits for it already; or no memory is left. To be tried again later.
    Busy = 5,
    /// Its storage cannot be opened. To be tried again later.
    Failed = 6,
    /// It was released, nothing of it will be executed, and all is stable.
    Released = 7,
    /// The same, and making it stable failed.
    Unsynced = 8,
}

/// The answer to a [`Bind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// As asked for.
    pub index: u16,
    /// How it ended.
    pub outcome: Outcome,
    /// As asked for.
    pub binding: u64,
    /// The attachment's, from now on.
    pub generation: u64,
    /// Whether what was acknowledged is still there.
    pub verifier: Verifier,
    /// The device as it is.
    pub news: News,
    /// The name of its slots, which no others have: turns that were counted elsewhere mean nothing in them.
    pub name: u64,
    /// Which image it is, of those that ever had this device's name; 0: not known, and not on the wire.
    pub image: u64,
}

/// A device as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Grows with each change; the highest wins.
    pub revision: u64,
    /// Bytes.
    pub size: u64,
    /// What it can do; the meaning is the caller's.
    pub features: u32,
    /// It is there no more.
    pub is_removed: bool,
}

/// Why an attachment is no longer bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// The client released it, and nothing of it will be executed.
    Released = 0,
    /// The IOhost gave it up: it is removed, or its storage failed, or somebody took it.
    Revoked = 1,
    /// This session does not have it (any more). Bind again.
    Unbound = 2,
    /// The client released it, nothing of it will be executed, and making it stable failed.
    Unsynced = 3,
}

/// A fragment of a request, which says all about the request: any of them may come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Which attachment, bound in this session.
    pub handle: u32,
    /// Where.
    pub slot: u16,
    /// What is asked for.
    pub op: Op,
    /// Which request of that slot.
    pub turn: u64,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes of the device concerned; of a write those of all fragments.
    pub len: u32,
    /// Where in the request `data` begins.
    pub place: u32,
    /// Of the whole request ([`super::checksum`]).
    pub checksum: u64,
    /// Of a write only.
    pub data: &'a [u8],
}

/// A fragment of what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Which attachment.
    pub handle: u32,
    /// Where.
    pub slot: u16,
    /// Which request of that slot.
    pub turn: u64,
    /// Bytes of all pieces.
    pub len: u32,
    /// Where `data` begins.
    pub place: u32,
    /// Of the request with all bytes that were read.
    pub checksum: u64,
    /// The bytes.
    pub data: &'a [u8],
}

/// Frames that arrived, in blocks of 64: block number, and a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckBlocks<'a>(&'a [u8]);

impl Iterator for AckBlocks<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        Some((u64_of(&mut self.0).ok()?, u64_of(&mut self.0).ok()?))
    }
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Frames that were taken whole.
    Ack {
        /// Frames that may be under way to who says this, acknowledgements aside.
        credit: u64,
        /// The frames.
        blocks: AckBlocks<'a>,
    },
    /// Nothing, but to be acknowledged.
    Ping,
    /// The session is over.
    Close,
    /// Asks for a device.
    Bind(Bind),
    /// The answer.
    Bound(Bound),
    /// The client gives an attachment back.
    Release {
        /// Which one.
        handle: u32,
    },
    /// An attachment is not bound any more.
    Ended {
        /// Which one.
        handle: u32,
        /// Why.
        end: End,
    },
    /// A device has changed.
    News {
        /// Which attachment.
        handle: u32,
        /// How it is now.
        news: News,
    },
    /// A fragment of a request.
    Part(Part<'a>),
    /// After binding again: what became of this one?
    Recall {
        /// Which attachment.
        handle: u32,
        /// Where.
        slot: u16,
        /// Which request.
        turn: u64,
    },
    /// A request ended that has no data to return.
    Done {
        /// Which attachment.
        handle: u32,
        /// Where.
        slot: u16,
        /// Which request.
        turn: u64,
        /// How.
        status: Status,
    },
    /// A fragment of what was read.
    Piece(Piece<'a>),
    /// Nothing: it makes a frame as long as those around it.
    Pad,
    /// A frame of a NIC, which nobody repeats.
    Net(Net<'a>),
}

/// A frame of a NIC, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net<'a> {
    /// Which attachment.
    pub handle: u32,
    /// Which frame: one more with each.
    pub number: u32,
    /// Bytes of all of it, up to [`NET_FRAME_BYTES_MAX`].
    pub len: u16,
    /// Where the piece begins.
    pub place: u16,
    /// The piece: at least a byte.
    pub data: &'a [u8],
}

/// The records of an opened frame, in order; ends after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a>(&'a [u8]);

impl<'a> Records<'a> {
    /// Of the bytes between header and tag.
    pub fn new(body: &'a [u8]) -> Records<'a> {
        Records(body)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let record = split(&mut self.0).and_then(|(kind, body)| parse(kind, body));
        if record.is_err() {
            self.0 = &[];
        }
        Some(record)
    }
}

/// The next record's kind and body.
fn split<'a>(rest: &mut &'a [u8]) -> Result<(u8, &'a [u8]), Malformed> {
    let [kind, zero] = take(rest)?;
    let len = usize::from(u16_of(rest)?);
    if zero != 0 {
        return Err(Malformed::Field);
    }
    let (body, others) = rest.split_at_checked(len).ok_or(Malformed::Short)?;
    *rest = others;
    Ok((kind, body))
}

fn parse(kind: u8, body: &[u8]) -> Result<Record<'_>, Malformed> {
    let mut rest = body;
    let at = &mut rest;
    let record = match kind {
        1 => return ack(body),
        2 => Record::Ping,
        3 => Record::Close,
        4 => Record::Bind(bind(at)?),
        5 => Record::Bound(bound(at)?),
        6 => Record::Release { handle: u32_of(at)? },
        7 => Record::Ended { handle: u32_of(at)?, end: end(at)? },
        8 => Record::News { handle: u32_of(at)?, news: news(at)? },
        9 => return part(body),
        10 => {
            let (handle, slot) = (u32_of(at)?, u16_of(at)?);
            zeroes(take::<2>(at)?)?;
            Record::Recall { handle, slot, turn: u64_of(at)? }
        }
        11 => {
            let (handle, slot) = (u32_of(at)?, u16_of(at)?);
            let [status, zero] = take(at)?;
            zeroes([zero])?;
            Record::Done { handle, slot, turn: u64_of(at)?, status: Status::parse(status)? }
        }
        12 => return piece(body),
        13 => {
            let (handle, number) = (u32_of(at)?, u32_of(at)?);
            let (len, place) = (u16_of(at)?, u16_of(at)?);
            let data = std::mem::take(at);
            let is_within = usize::from(place) + data.len() <= usize::from(len);
            if data.is_empty() || !is_within || usize::from(len) > NET_FRAME_BYTES_MAX {
                return Err(Malformed::Field);
            }
            Record::Net(Net { handle, number, len, place, data })
        }
        14 => {
            *at = &[];
            Record::Pad
        }
        other => return Err(Malformed::Kind(other)),
    };
    if rest.is_empty() { Ok(record) } else { Err(Malformed::Length) }
}

fn ack(body: &[u8]) -> Result<Record<'_>, Malformed> {
    let mut rest = body;
    let credit = u64_of(&mut rest)?;
    if !rest.len().is_multiple_of(ACK_BLOCK_BYTES) || rest.len() > ACK_BLOCKS_MAX * ACK_BLOCK_BYTES
    {
        return Err(Malformed::Length);
    }
    Ok(Record::Ack { credit, blocks: AckBlocks(rest) })
}

fn bind(at: &mut &[u8]) -> Result<Bind, Malformed> {
    let device = u64_of(at)?;
    let [intent, zero] = take(at)?;
    zeroes([zero])?;
    let intent = match intent {
        0 => Intent::Look,
        1 => Intent::Take,
        2 => Intent::Again,
        _ => return Err(Malformed::Field),
    };
    let bind = Bind {
        device,
        intent,
        index: u16_of(at)?,
        slots: u16_of(at)?,
        slot_bytes: {
            zeroes(take::<2>(at)?)?;
            u32_of(at)?
        },
        binding: u64_of(at)?,
        generation: u64_of(at)?,
        instance: u64_of(at)?,
        name: u64_of(at)?,
    };
    let slots = 1..=crate::SLOTS_MAX;
    let bytes = 512..=super::REQUEST_BYTES_MAX as u32;
    let fits = slots.contains(&bind.slots) && bytes.contains(&bind.slot_bytes);
    let is_known = bind.index < crate::ATTACHMENTS_MAX;
    if fits && is_known { Ok(bind) } else { Err(Malformed::Field) }
}

fn bound(at: &mut &[u8]) -> Result<Bound, Malformed> {
    let index = u16_of(at)?;
    let [outcome, zero] = take(at)?;
    zeroes([zero])?;
    let outcome = match outcome {
        0 => Outcome::Kept,
        1 => Outcome::Fresh,
        2 => Outcome::Looked,
        3 => Outcome::NoDevice,
        4 => Outcome::Stale,
        5 => Outcome::Busy,
        6 => Outcome::Failed,
        7 => Outcome::Released,
        8 => Outcome::Unsynced,
        _ => return Err(Malformed::Field),
    };
    zeroes(take::<4>(at)?)?;
    let (binding, generation) = (u64_of(at)?, u64_of(at)?);
    let verifier = Verifier { boot: u64_of(at)?, contents: u64_of(at)? };
    let (news, name) = (news(at)?, u64_of(at)?);
    let image = match at.is_empty() {
        true => 0,
        false => Some(u64_of(at)?).filter(|image| *image != 0).ok_or(Malformed::Field)?,
    };
    Ok(Bound { index, outcome, binding, generation, verifier, news, name, image })
}

fn news(at: &mut &[u8]) -> Result<News, Malformed> {
    let (revision, size, features) = (u64_of(at)?, u64_of(at)?, u32_of(at)?);
    let is_removed = match take(at)? {
        [0, 0, 0, 0] => false,
        [1, 0, 0, 0] => true,
        _ => return Err(Malformed::Field),
    };
    Ok(News { revision, size, features, is_removed })
}

fn end(at: &mut &[u8]) -> Result<End, Malformed> {
    match take(at)? {
        [0, 0, 0, 0] => Ok(End::Released),
        [1, 0, 0, 0] => Ok(End::Revoked),
        [2, 0, 0, 0] => Ok(End::Unbound),
        [3, 0, 0, 0] => Ok(End::Unsynced),
        _ => Err(Malformed::Field),
    }
}

fn part(body: &[u8]) -> Result<Record<'_>, Malformed> {
    let (mut head, data) = body.split_at_checked(PART_BYTES).ok_or(Malformed::Short)?;
    let at = &mut head;
    let (handle, slot) = (u32_of(at)?, u16_of(at)?);
    let op = Op::parse(take(at)?)?;
    let (turn, offset) = (u64_of(at)?, u64_of(at)?);
    let (len, place, checksum) = (u32_of(at)?, u32_of(at)?, u64_of(at)?);
    let end = u64::from(place) + data.len() as u64;
    let fits = if op.has_data() {
        !data.is_empty() && end <= u64::from(len) && len as usize <= super::REQUEST_BYTES_MAX
    } else {
        end == 0 && (op != Op::Read || len > 0 && len as usize <= super::REQUEST_BYTES_MAX)
    };
    if !fits {
        return Err(Malformed::Field);
    }
    Ok(Record::Part(Part { handle, slot, op, turn, offset, len, place, checksum, data }))
}

fn piece(body: &[u8]) -> Result<Record<'_>, Malformed> {
    let (mut head, data) = body.split_at_checked(PIECE_BYTES).ok_or(Malformed::Short)?;
    let at = &mut head;
    let (handle, slot) = (u32_of(at)?, u16_of(at)?);
    zeroes(take::<2>(at)?)?;
    let (turn, len, place, checksum) = (u64_of(at)?, u32_of(at)?, u32_of(at)?, u64_of(at)?);
    let end = u64::from(place) + data.len() as u64;
    if data.is_empty() || end > u64::from(len) || len as usize > super::REQUEST_BYTES_MAX {
        return Err(Malformed::Field);
    }
    Ok(Record::Piece(Piece { handle, slot, turn, len, place, checksum, data }))
}

fn zeroes<const N: usize>(bytes: [u8; N]) -> Result<(), Malformed> {
    if bytes == [0; N] { Ok(()) } else { Err(Malformed::Field) }
}
