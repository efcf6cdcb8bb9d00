//! Requests of all kinds and sizes at random places of a disk, each known to a ledger.
//!
//! Half of them meet in a small part of the disk, so that writes overlap writes and reads. Says what
//! to send and judges what came back; rings and waiting are `tenant`'s.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use guest_memory::Area;
use testing::load::Random;
use testing::slots::{STATUS_OK, STATUS_UNWRITTEN};
use virtqueue::driver::{Arena, Buffer, Used};

use crate::ledger::{Flushing, Ledger, Reading, SECTOR_SIZE, What, Writing, Wrong};

/// Pieces that the data of a request is cut into, at most.
pub const PIECES_MAX: usize = 4;
/// Descriptors of a request, at most: header, data, status.
pub const DESCRIPTORS_MAX: u16 = PIECES_MAX as u16 + 2;

const LINE_SIZE: usize = 64;
const STATUS_AT: usize = 16;
const RANGE_AT: usize = 32;
const RANGE_SIZE: u32 = 16;
/// Sectors in which every second request lies.
const HOT_SECTORS: u64 = 512;

/// Requests and what they may be.
#[derive(Clone, Copy, Debug)]
pub struct MixSpec {
    /// Requests in flight at most.
    pub depth_max: u16,
    /// Bytes of one at most, a multiple of 512.
    pub request_bytes_max: u32,
    /// Whether data is cut into pieces; some of them go through the page cache then.
    pub cuts: bool,
}

impl MixSpec {
    /// Guest memory that the requests take, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let each = u64::from(self.request_bytes_max) + LINE_SIZE as u64;
        u64::from(self.depth_max) * each + (8 << 10)
    }
}

/// What went wrong, by kind, so that it can be counted.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The disk does not hold what it must.
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// Something was completed that was not in flight.
    #[error("completed twice, or never sent: {0}")]
    Doubled(String),
    /// Something is not completed.
    #[error("hung: {0}")]
    Hung(String),
    /// A request ended badly.
    #[error("a request failed: {0}")]
    Error(String),
}

#[derive(Debug)]
enum Flight {
    Write(Writing),
    Read(Reading),
    Flush(Flushing),
}

#[derive(Debug)]
struct Slot {
    flight: Option<Flight>,
    len: u32,
}

/// Places for requests in guest memory, and what is in them.
#[derive(Debug)]
pub struct Mixed {
    spec: MixSpec,
    lines: Area,
    lines_gpa: u64,
    data: Area,
    data_gpa: u64,
    slots: Vec<Slot>,
    /// The one at the front has been idle longest.
    idle: VecDeque<u16>,
    bytes: Vec<u8>,
}

/// The kinds of request; the numbers are VIRTIO's (1.2, 5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// VIRTIO_BLK_T_IN
    Read = 0,
    /// VIRTIO_BLK_T_OUT
    Write = 1,
    /// VIRTIO_BLK_T_FLUSH
    Flush = 4,
    /// VIRTIO_BLK_T_DISCARD
    Discard = 11,
    /// VIRTIO_BLK_T_WRITE_ZEROES
    Zeroes = 13,
}

impl Mixed {
    /// Takes the memory.
    ///
    /// # Errors
    /// There is not so much.
    pub fn new(arena: &mut Arena, spec: MixSpec) -> Result<Mixed> {
        let full = "guest memory is too small for these requests";
        let count = usize::from(spec.depth_max);
        let (lines, lines_gpa) = arena.take(count * LINE_SIZE, LINE_SIZE).context(full)?;
        let data_len = count * spec.request_bytes_max as usize;
        let (data, data_gpa) = arena.take(data_len, 4096).context(full)?;
        let slots = (0..count).map(|_| Slot { flight: None, len: 0 }).collect();
        let idle = (0..spec.depth_max).collect();
        let bytes = vec![0; spec.request_bytes_max as usize];
        Ok(Mixed { spec, lines, lines_gpa, data, data_gpa, slots, idle, bytes })
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u16 {
        self.spec.depth_max - self.idle.len() as u16
    }

    /// Prepares a random request, if a place is left: its number and its pieces.
    pub fn next(&mut self, ledger: &mut Ledger, random: &mut Random) -> Option<(u16, Vec<Buffer>)> {
        let kind = match random.below(100) {
            0..42 => Kind::Write,
            42..80 => Kind::Read,
            80..88 => Kind::Flush,
            88..95 => Kind::Zeroes,
            _ => Kind::Discard,
        };
        let place = self.place(ledger.sectors(), random);
        // A buffer that was in use a moment ago finds late reads of it, one that has kept its bytes
        // finds late writes.
        if random.below(2) == 0 && !self.idle.is_empty() {
            self.idle.rotate_right(1);
        }
        self.prepare(ledger, random, kind, place)
    }

    /// Prepares a request of that kind and place, in the buffer that has been idle longest; how it is
    /// cut into pieces is random. A flush has no place.
    pub fn prepare(
        &mut self,
        ledger: &mut Ledger,
        random: &mut Random,
        kind: Kind,
        [first, sectors]: [u64; 2],
    ) -> Option<(u16, Vec<Buffer>)> {
        let number = self.idle.pop_front()?;
        let len = sectors as u32 * SECTOR_SIZE as u32;
        let data_at = usize::from(number) * self.spec.request_bytes_max as usize;
        let flight = match kind {
            Kind::Read => {
                // What stays of this was never read.
                self.bytes[..len as usize].fill(0xa5);
                self.data.write(data_at, &self.bytes[..len as usize]);
                Flight::Read(ledger.read(first, sectors))
            }
            Kind::Write => {
                let writing = ledger.write(What::Data, first, sectors);
                ledger.fill(&writing, &mut self.bytes[..len as usize]);
                self.data.write(data_at, &self.bytes[..len as usize]);
                Flight::Write(writing)
            }
            Kind::Zeroes => Flight::Write(ledger.write(What::Zeroes, first, sectors)),
            Kind::Discard => Flight::Write(ledger.write(What::Discard, first, sectors)),
            Kind::Flush => Flight::Flush(ledger.flush()),
        };
        let line = usize::from(number) * LINE_SIZE;
        let has_place = matches!(kind, Kind::Read | Kind::Write);
        self.lines.store_u64(line, kind as u64);
        self.lines.store_u64(line + 8, if has_place { first } else { 0 });
        self.lines.store_u8(line + STATUS_AT, STATUS_UNWRITTEN);
        self.lines.store_u64(line + RANGE_AT, first);
        self.lines.store_u64(line + RANGE_AT + 8, sectors);
        self.slots[usize::from(number)] = Slot { flight: Some(flight), len };
        Some((number, self.buffers(number, kind, len, random)))
    }

    /// A request came back.
    ///
    /// # Errors
    /// How it, or what it brought, is wrong.
    pub fn ended(&mut self, ledger: &mut Ledger, used: Used) -> Result<(), Failure> {
        let number = used.token as u16;
        let slot = self.slots.get_mut(usize::from(number));
        let taken = slot.and_then(|slot| Some((slot.flight.take()?, slot.len)));
        let Some((flight, len)) = taken else {
            return Err(Failure::Doubled(format!("request {number}")));
        };
        self.idle.push_back(number);
        let status = self.lines.load_u8(usize::from(number) * LINE_SIZE + STATUS_AT);
        let wrote = if matches!(flight, Flight::Read(_)) { len + 1 } else { 1 };
        if status != STATUS_OK || used.len != wrote {
            let what = format!("{flight:?}: status {status}, {} bytes written", used.len);
            return Err(Failure::Error(what));
        }
        match flight {
            Flight::Write(writing) => ledger.wrote(writing),
            Flight::Flush(flushing) => ledger.flushed(flushing),
            Flight::Read(reading) => {
                let at = usize::from(number) * self.spec.request_bytes_max as usize;
                let bytes = &mut self.bytes[..len as usize];
                self.data.read(at, bytes);
                ledger.found(reading, bytes)?;
            }
        }
        Ok(())
    }

    /// The front-end goes: what was in flight ends somehow and is never seen.
    pub fn abandon(mut self, ledger: &mut Ledger) {
        for flight in self.slots.iter_mut().filter_map(|slot| slot.flight.take()) {
            match flight {
                Flight::Write(writing) => ledger.failed(writing),
                Flight::Read(reading) => ledger.unread(reading),
                Flight::Flush(_) => {}
            }
        }
    }

    /// First sector and number of sectors of a request.
    fn place(&self, disk: u64, random: &mut Random) -> [u64; 2] {
        let most = (u64::from(self.spec.request_bytes_max) / SECTOR_SIZE as u64).min(disk);
        let sectors = match random.below(10) {
            0..2 => 1,
            2..5 => 8,
            5..7 => 1 + random.below(16),
            7..9 => 8 * (1 + random.below(8)),
            _ => 1 + random.below(most),
        }
        .min(most);
        let among = if random.below(2) == 0 { HOT_SECTORS.min(disk) } else { disk };
        let first = random.below(among.saturating_sub(sectors) + 1);
        // Half of them where a file system would put them.
        [if random.below(2) == 0 { first & !7 } else { first }, sectors]
    }

    fn buffers(&self, number: u16, kind: Kind, len: u32, random: &mut Random) -> Vec<Buffer> {
        let line = self.lines_gpa + u64::from(number) * LINE_SIZE as u64;
        let mut buffers = vec![Buffer { gpa: line, len: 16, device_writes: false }];
        match kind {
            Kind::Flush => {}
            Kind::Discard | Kind::Zeroes => {
                let gpa = line + RANGE_AT as u64;
                buffers.push(Buffer { gpa, len: RANGE_SIZE, device_writes: false });
            }
            Kind::Read | Kind::Write => {
                let device_writes = kind == Kind::Read;
                let data = u64::from(number) * u64::from(self.spec.request_bytes_max);
                let mut gpa = self.data_gpa + data;
                let mut left = len;
                // Cut mostly at sectors, as guests do; sometimes anywhere.
                let unit = if random.below(8) == 0 { 1 } else { SECTOR_SIZE as u32 };
                for _ in 1..PIECES_MAX {
                    if !self.spec.cuts || left <= unit || random.below(2) == 0 {
                        break;
                    }
                    let piece = unit * (1 + random.below(u64::from(left / unit - 1).max(1)) as u32);
                    let piece = piece.min(left - 1);
                    buffers.push(Buffer { gpa, len: piece, device_writes });
                    (gpa, left) = (gpa + u64::from(piece), left - piece);
                }
                buffers.push(Buffer { gpa, len: left, device_writes });
            }
        }
        buffers.push(Buffer { gpa: line + STATUS_AT as u64, len: 1, device_writes: true });
        buffers
    }
}
