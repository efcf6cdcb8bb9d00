//! A chain becomes a request, or an answer at once (VIRTIO 1.2, 5.2.6).

use guest_memory::{GuestMap, Span};
use request::{Op, Request, Status};
use virtqueue::{Chain, Violation};

use super::{Blk, SECTOR_SIZE};
use crate::features as bit;

const HEADER_SIZE: u32 = 16;
/// One range of a discard or write-zeroes command.
const RANGE_SIZE: u64 = 16;

const TYPE_IN: u32 = 0;
const TYPE_OUT: u32 = 1;
const TYPE_FLUSH: u32 = 4;
const TYPE_GET_ID: u32 = 8;
const TYPE_DISCARD: u32 = 11;
const TYPE_WRITE_ZEROES: u32 = 13;

const RANGE_UNMAP: u32 = 1;

/// Where the answer of a chain goes, and how much of it counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    status: Span,
    /// Bytes written before the status when all went well.
    data: u32,
}

/// A request for the back-end; its segments stay in the chain's scratch until it is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What to do.
    pub op: Op,
    /// First byte on the disk.
    pub offset: u64,
    /// Bytes of the disk.
    pub len: u64,
    /// Where the answer goes.
    pub reply: Reply,
    /// Spans of the chain before the first segment: a header that has its own.
    skip: u16,
    /// Spans of the chain after the last segment: a status that has its own.
    trail: u16,
}

impl Work {
    /// The request, with its segments in `chain`: the one that was parsed.
    #[inline(always)]
    pub fn request<'a>(&self, chain: &'a Chain) -> Request<'a> {
        let all = match self.op {
            Op::Read => chain.writable(),
            Op::Write { .. } => chain.readable(),
            _ => &[],
        };
        let end = all.len().saturating_sub(usize::from(self.trail));
        let segments = all.get(usize::from(self.skip)..end).unwrap_or_default();
        Request { op: self.op, offset: self.offset, len: self.len, segments }
    }
}

/// What a chain turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Something for the back-end.
    Work(Work),
    /// Nothing for the back-end: this is how it ends.
    Answer(Reply, Status),
}

impl Blk {
    /// Understands one chain. Reads the header, and a discard's range, once.
    ///
    /// # Errors
    /// [`Violation::NoRoom`] for a chain without a whole header or without a status byte: there is
    /// nowhere to answer, so the queue is latched.
    #[inline(always)]
    pub fn parse(&self, map: &GuestMap, chain: &mut Chain) -> Result<Parsed, Violation> {
        let last = chain.last_writable();
        let Some(before_status) = last.len().checked_sub(1) else {
            return Err(Violation::NoRoom { need: "status" });
        };
        let reply = Reply { status: last.after(before_status), data: 0 };
        let mut header = [0; HEADER_SIZE as usize];
        if !gather(map, chain.readable(), 0, &mut header) {
            return Err(Violation::NoRoom { need: "header" });
        }
        let header = u128::from_le_bytes(header);
        let (kind, sector) = (header as u32, (header >> 64) as u64);
        let parsed = match kind {
            TYPE_IN => self.read(chain, sector, reply),
            TYPE_OUT => self.write(chain, sector, reply),
            _ => self.other(map, chain, kind, reply),
        };
        Ok(parsed.unwrap_or_else(|status| Parsed::Answer(reply, status)))
    }

    /// Writes the status byte and says how many bytes the chain was given.
    #[inline(always)]
    pub fn answer(&self, map: &GuestMap, reply: Reply, status: Status) -> u32 {
        // The map was checked when the chain was walked, and a queue never changes its map.
        let written = map.write(reply.status, 0, &[status as u8]);
        debug_assert!(written, "the status byte left the map");
        if status == Status::Ok { reply.data + 1 } else { 1 }
    }

    #[inline(always)]
    fn read(&self, chain: &mut Chain, sector: u64, reply: Reply) -> Result<Parsed, Status> {
        let len = chain.writable_bytes() - 1;
        let offset = self.check_data(chain, sector, len)?;
        let trail = u16::from(chain.last_writable().len() == 1);
        if trail == 0 {
            chain.drop_last_writable_byte();
        }
        let reply = Reply { data: len as u32, ..reply };
        Ok(Parsed::Work(Work { op: Op::Read, offset, len, reply, skip: 0, trail }))
    }

    #[inline(always)]
    fn write(&self, chain: &mut Chain, sector: u64, reply: Reply) -> Result<Parsed, Status> {
        if self.readonly {
            return Err(Status::IoError);
        }
        let len = chain.readable_bytes() - u64::from(HEADER_SIZE);
        let offset = self.check_data(chain, sector, len)?;
        let skip = u16::from(chain.readable().first().is_some_and(|s| s.len() == HEADER_SIZE));
        if skip == 0 {
            chain.drop_readable(HEADER_SIZE);
        }
        let op = Op::Write { sync: self.syncs_writes() };
        Ok(Parsed::Work(Work { op, offset, len, reply, skip, trail: 0 }))
    }

    #[inline(never)]
    fn other(
        &self,
        map: &GuestMap,
        chain: &Chain,
        kind: u32,
        reply: Reply,
    ) -> Result<Parsed, Status> {
        match kind {
            TYPE_FLUSH if self.has(bit::BLK_FLUSH) => Ok(work(Op::Flush, 0, 0, reply)),
            TYPE_GET_ID => {
                let data = scatter(map, chain.writable(), chain.writable_bytes() - 1, &self.serial);
                Ok(Parsed::Answer(Reply { data, ..reply }, Status::Ok))
            }
            TYPE_DISCARD if self.has(bit::BLK_DISCARD) => {
                let (offset, len, flags) =
                    self.range(map, chain, self.limits.discard_sectors_max)?;
                if flags != 0 {
                    return Err(Status::Unsupported);
                }
                Ok(work(Op::Discard, offset, len, reply))
            }
            TYPE_WRITE_ZEROES if self.has(bit::BLK_WRITE_ZEROES) => {
                let (offset, len, flags) =
                    self.range(map, chain, self.limits.zeroes_sectors_max)?;
                if flags & !RANGE_UNMAP != 0 {
                    return Err(Status::Unsupported);
                }
                let op = Op::WriteZeroes { unmap: flags != 0, sync: self.syncs_writes() };
                Ok(work(op, offset, len, reply))
            }
            _ => Err(Status::Unsupported),
        }
    }

    /// The offset of a transfer of `len` bytes at `sector`, when it is one we can do. Its length has no bound
    /// but the chain's, below 4 GiB (2.7.5.2), which the walk has checked: firmware sends one descriptor for
    /// all, and never asks for `size_max`.
    #[inline(always)]
    fn check_data(&self, chain: &Chain, sector: u64, len: u64) -> Result<u64, Status> {
        let whole = len > 0 && len.is_multiple_of(SECTOR_SIZE);
        let sectors = len / SECTOR_SIZE;
        if !whole || chain.overflowed() || !self.holds(sector, sectors) {
            return Err(Status::IoError);
        }
        Ok(sector * SECTOR_SIZE)
    }

    #[inline]
    fn holds(&self, sector: u64, sectors: u64) -> bool {
        let capacity = self.live.capacity_sectors();
        sector <= capacity && sectors <= capacity - sector
    }

    /// Offset, length and flags of the one range of a discard or write-zeroes command. We offer
    /// one range a command, so another number of bytes is an error.
    fn range(&self, map: &GuestMap, chain: &Chain, most: u32) -> Result<(u64, u64, u32), Status> {
        if self.readonly || chain.readable_bytes() != u64::from(HEADER_SIZE) + RANGE_SIZE {
            return Err(Status::IoError);
        }
        let mut range = [0; RANGE_SIZE as usize];
        if !gather(map, chain.readable(), HEADER_SIZE, &mut range) {
            return Err(Status::IoError);
        }
        let range = u128::from_le_bytes(range);
        let (sector, sectors, flags) = (range as u64, (range >> 64) as u32, (range >> 96) as u32);
        if sectors == 0 || sectors > most || !self.holds(sector, sectors.into()) {
            return Err(Status::IoError);
        }
        Ok((sector * SECTOR_SIZE, u64::from(sectors) * SECTOR_SIZE, flags))
    }
}

fn work(op: Op, offset: u64, len: u64, reply: Reply) -> Parsed {
    Parsed::Work(Work { op, offset, len, reply, skip: 0, trail: 0 })
}

/// Copies `into.len()` bytes from byte `skip` of `spans`, however they are cut. False when there
/// are fewer.
#[inline(always)]
fn gather(map: &GuestMap, spans: &[Span], skip: u32, into: &mut [u8]) -> bool {
    match spans.first() {
        Some(first) if u64::from(first.len()) >= u64::from(skip) + into.len() as u64 => {
            map.read(*first, skip, into)
        }
        _ => gather_pieces(map, spans, skip, into),
    }
}

#[cold]
fn gather_pieces(map: &GuestMap, spans: &[Span], mut skip: u32, into: &mut [u8]) -> bool {
    let mut rest = into;
    for span in spans {
        let part = span.after(skip);
        skip -= span.len().min(skip);
        let here = rest.len().min(part.len() as usize);
        let Some((now, later)) = rest.split_at_mut_checked(here) else {
            return false;
        };
        if !now.is_empty() && !map.read(part, 0, now) {
            return false;
        }
        rest = later;
        if rest.is_empty() {
            return true;
        }
    }
    rest.is_empty()
}

/// Copies as much of `from` as the first `room` bytes of `spans` take; says how much that was.
fn scatter(map: &GuestMap, spans: &[Span], room: u64, from: &[u8]) -> u32 {
    let most = usize::try_from(room).unwrap_or(usize::MAX).min(from.len());
    let mut rest = from.get(..most).unwrap_or_default();
    for span in spans {
        let here = rest.len().min(span.len() as usize);
        let Some((now, later)) = rest.split_at_checked(here) else {
            break;
        };
        if !map.write(*span, 0, now) {
            break;
        }
        rest = later;
    }
    (most - rest.len()) as u32
}
