//! The personality against chains that a driver made: see `requests` for what must work, `hostile`
//! for the rows C of the reliability list, `config` for the config space and the feature bits.

mod config;
mod hostile;
mod requests;

use std::sync::Arc;

use guest_memory::{GuestMap, Span};
use request::{Op, Status};
use virtqueue::driver::{Arena, Buffer, Driver, RingSpec};
use virtqueue::{Chain, Format, Queue, Violation};

use super::*;

/// Guest memory below is for buffers.
const RINGS: u64 = 24 << 20;
const MEMORY: u64 = 26 << 20;
/// Sectors of the disk: more than one request can move.
const SECTORS: u64 = 1 << 16;
const SERIAL: [u8; SERIAL_SIZE] = *b"sidecore-disk-000042";

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

fn shape() -> Shape {
    Shape {
        block_size: 512,
        physical_block_exp: 3,
        topology: Topology::default(),
        readonly: false,
        queues: 4,
        serial: SERIAL,
        limits: Limits { discard_sectors_max: 2048, zeroes_sectors_max: 1024 },
        in_order: false,
    }
}

/// A guest with one queue of a disk.
struct Rig {
    map: GuestMap,
    driver: Driver,
    queue: Queue,
    chain: Chain,
    live: Arc<Live>,
    blk: Blk,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(&shape(), offered(&shape()))
    }

    fn with(shape: &Shape, negotiated: u64) -> Rig {
        let map = GuestMap::anonymous(MEMORY).unwrap();
        let ring =
            RingSpec { size: 512, format: Format::Split, event_index: false, indirect_entries: 0 };
        let area = map.area_at_user(RINGS, MEMORY - RINGS).unwrap();
        let (driver, places) = Arena::new(area, RINGS).driver(ring).unwrap();
        let queue = Queue::new(ring.queue_spec(&map, places, 0).unwrap()).unwrap();
        let live = Live::new(SECTORS * SECTOR_SIZE);
        let blk = Blk::new(shape, Arc::clone(&live), negotiated);
        Rig { map, driver, queue, chain: Chain::default(), live, blk }
    }

    fn put(&self, gpa: u64, bytes: &[u8]) {
        assert!(self.map.write(self.map.span(gpa, bytes.len() as u32).unwrap(), 0, bytes));
    }

    fn get(&self, gpa: u64, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        assert!(self.map.read(self.map.span(gpa, len).unwrap(), 0, &mut bytes));
        bytes
    }

    /// Sends a chain of these pieces and understands it; it is given back at once.
    fn parse(&mut self, pieces: &[Buffer]) -> Result<Parsed, Violation> {
        self.driver.add(pieces, 0).unwrap();
        self.driver.publish();
        assert!(self.queue.peek(&self.map, &mut self.chain), "{:?}", self.queue.violation());
        let ticket = self.queue.advance(&self.chain);
        let parsed = self.blk.parse(&self.map, &mut self.chain);
        self.queue.complete(ticket, 0);
        self.queue.publish();
        assert!(self.driver.take_used().is_some());
        parsed
    }

    /// Sends a request in the plain layout: header at 0, data at 4096, status at 64.
    fn ask(&mut self, kind: u32, sector: u64, data: Option<Buffer>) -> Parsed {
        self.put(0, &header(kind, sector));
        self.put(64, &[0xee]);
        let mut pieces = vec![reads(0, 16)];
        pieces.extend(data);
        pieces.push(writes(64, 1));
        self.parse(&pieces).unwrap()
    }

    /// The status that a chain is answered with at once.
    fn refusal(&mut self, kind: u32, sector: u64, data: Option<Buffer>) -> Status {
        match self.ask(kind, sector, data) {
            Parsed::Answer(_, status) => status,
            Parsed::Work(work) => panic!("accepted: {work:?}"),
        }
    }

    fn work(&mut self, kind: u32, sector: u64, data: Option<Buffer>) -> Work {
        match self.ask(kind, sector, data) {
            Parsed::Work(work) => work,
            Parsed::Answer(_, status) => panic!("answered with {status:?}"),
        }
    }

    /// Sends a discard or write-zeroes with these ranges.
    fn ranges(&mut self, kind: u32, ranges: &[(u64, u32, u32)]) -> Parsed {
        let mut bytes = Vec::new();
        for (sector, sectors, flags) in ranges {
            bytes.extend(sector.to_le_bytes());
            bytes.extend(sectors.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
        }
        self.put(4096, &bytes);
        self.ask(kind, 0, Some(reads(4096, bytes.len() as u32)))
    }

    /// A request's segments as guest address and length.
    fn segments(&self, work: &Work) -> Vec<(u64, u32)> {
        let origin = self.map.span(0, 1).unwrap().host_address();
        let place = |span: &Span| ((span.host_address() - origin) as u64, span.len());
        work.request(&self.chain).segments.iter().map(place).collect()
    }
}

fn header(kind: u32, sector: u64) -> [u8; 16] {
    let mut bytes = [0x5a; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

fn reads(gpa: u64, len: u32) -> Buffer {
    Buffer { gpa, len, device_writes: false }
}

fn writes(gpa: u64, len: u32) -> Buffer {
    Buffer { gpa, len, device_writes: true }
}
