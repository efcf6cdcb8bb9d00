//! A guest that writes anything in its rings and its memory, and a device that serves it: ring,
//! walk, request, RAM disk, in-flight record, all as shipped.
//!
//! What must hold: nothing panics; every walk ends within its bound; a chain is completed with no
//! more bytes than it has room for; and no byte of guest memory changes that neither the ring nor a
//! device-writable buffer of a served chain covers.

use std::cell::RefCell;
use std::sync::Arc;

use backend::{Backend, Disk, Io, Source, Started};
use device::blk::{Blk, Limits, Live, Parsed, SERIAL_SIZE, Shape};
use guest_memory::{Area, GuestMap, Mapping, Region};
use request::{Op, Request, Status, Tag};
use virtqueue::{
    CHAIN_SPANS_MAX, Chain, Format, Inflight, Queue, QueueSpec, Ticket, inflight, layout,
};

use crate::bytes::Bytes;

/// Bytes of each of the two regions, which touch. Small, because every byte is looked at again and
/// again.
const HALF: usize = 8 << 10;
const SIZE_MAX: u16 = 64;
const DISK_BYTES: u64 = 256 << 10;
/// Descriptors of an indirect table that are walked at most (virtqueue's bound).
const TABLE_MAX: u32 = 1024;
/// Doings of one input.
const TURNS_MAX: usize = 96;
const TAG: Tag = Tag { queue: 0, slot: 0, generation: 0 };

thread_local! {
    /// Made once: mapping memory takes longer than an input.
    static BED: RefCell<Bed> = RefCell::new(Bed::new());
}

/// What every input starts from.
struct Bed {
    disk: Arc<Disk>,
    map: GuestMap,
    halves: [Area; 2],
    /// Where each half is in this process.
    hosts: [usize; 2],
    record: Area,
    before: Vec<u8>,
}

/// The queue of one input, with what it owes.
struct Served {
    queue: Queue,
    blk: Blk,
    backend: Backend,
    io: Io,
    chain: Chain,
    owed: Vec<(Ticket, u32)>,
    size: u16,
    /// Guest addresses that the device may write at any time: the ring's device part.
    own: [(usize, usize); 2],
}

/// Makes one input happen to a ring of that format.
pub fn run(format: Format, input: &[u8]) {
    BED.with_borrow_mut(|bed| {
        bed.clear();
        run_in(bed, format, input);
    });
}

fn run_in(bed: &mut Bed, format: Format, input: &[u8]) {
    let mut bytes = Bytes(input);
    let Some(mut served) = bed.queue(format, &mut bytes, None) else { return };
    for _ in 0..TURNS_MAX {
        if bytes.is_empty() {
            break;
        }
        match bytes.u8() % 12 {
            0 => bed.write(&mut bytes),
            1 => bed.descriptor(format, &mut bytes, &served),
            2 => bed.request(format, &mut bytes, &served),
            3 => bed.available(format, &mut bytes, &served),
            4..=6 => bed.serve(&mut served, 1 + usize::from(bytes.u8() % 40), bytes.u8()),
            7 => {
                served.queue.arm();
            }
            8 => served.queue.disarm(),
            9 => bed.complete(&mut served, usize::from(bytes.u8())),
            10 => {
                let at = usize::from(bytes.u16());
                bed.record.write(at % bed.record.len(), bytes.take(8));
            }
            _ => match bed.reopen(format, &mut bytes, served) {
                Some(again) => served = again,
                None => return,
            },
        }
    }
    bed.complete(&mut served, usize::MAX);
    assert_eq!(served.queue.in_flight(), 0, "every chain that was taken came back");
}

impl Bed {
    fn new() -> Bed {
        // Failing to get 64 KiB is not what is asked here.
        let mapping = || Mapping::anonymous(HALF as u64).expect("memory");
        let (low, high) = (mapping(), mapping());
        let region =
            |gpa, mapping: &Arc<Mapping>| Region { gpa, user: gpa, mapping: mapping.clone() };
        let map = GuestMap::new(vec![region(0, &low), region(HALF as u64, &high)]).expect("a map");
        let host = |gpa| map.span(gpa, 1).expect("a span").host_address();
        let record_len = inflight::queue_region_len(Format::Packed, SIZE_MAX);
        let hosts = [host(0), host(HALF as u64)];
        Bed {
            disk: Disk::open(&Source::Memory { size_bytes: DISK_BYTES }).expect("a RAM disk"),
            map,
            halves: [Area::whole(low), Area::whole(high)],
            hosts,
            record: Area::anonymous(record_len).expect("memory"),
            before: vec![0; 2 * HALF],
        }
    }

    /// Memory, record and disk are zeroes, so that an input does the same wherever it is run.
    fn clear(&mut self) {
        for area in self.halves.iter().chain([&self.record]) {
            area.zero(0, area.len());
        }
        let op = Op::WriteZeroes { unmap: true, sync: false };
        let request = Request { op, offset: 0, len: DISK_BYTES, segments: &[] };
        let mut io = Io::new(32).expect("no ring is made");
        let started = self.disk.backend().submit(&mut io, &request, &self.map, TAG);
        assert_eq!(started, Started::Done(Status::Ok));
    }

    /// A queue over memory as it is now; `base` goes on from an earlier one.
    fn queue(
        &mut self,
        format: Format,
        bytes: &mut Bytes<'_>,
        base: Option<u32>,
    ) -> Option<Served> {
        let shape = bytes.u8();
        let size = match format {
            Format::Split => 1 << (bytes.u8() % 7),
            Format::Packed => 1 + u16::from(bytes.u8()) % SIZE_MAX,
        };
        let (event_index, indirect, recorded) = (shape & 1 != 0, shape & 2 != 0, shape & 4 != 0);
        // Mostly apart from each other; now and then anywhere.
        let place = |usual: u64, bytes: &mut Bytes<'_>| match shape & 8 {
            0 => usual,
            _ => (u64::from(bytes.u16()) % (HALF as u64)) & !15,
        };
        let [descriptors, driver, device] = [0u64, 0x800, 0xc00].map(|usual| place(usual, bytes));
        let driver_len = layout::driver_len(format, size, event_index);
        let device_len = layout::device_len(format, size, event_index);
        let descriptors_len = layout::descriptors_len(format, size);
        let first = match format {
            Format::Split => u32::from(bytes.u16()),
            Format::Packed if shape & 16 != 0 => bytes.u32(),
            Format::Packed => 1 << 15 | 1 << 31,
        };
        let base = base.unwrap_or(if shape & 32 != 0 { first } else { first & 0x8000_8000 });
        let record = match recorded {
            true => Some(Inflight::new(self.record.clone(), format, size).ok()?),
            false => None,
        };
        let queue = Queue::new(QueueSpec {
            size,
            format,
            event_index,
            indirect,
            descriptors: self.map.area_at_user(descriptors, descriptors_len)?,
            driver: self.map.area_at_user(driver, driver_len)?,
            device: self.map.area_at_user(device, device_len)?,
            base,
            inflight: record,
        })
        .ok()?;
        let blk = self.personality(shape & 64 != 0);
        let at = |gpa: u64, len: u64| (gpa as usize, len as usize);
        let own = match format {
            Format::Split => [at(device, device_len), (0, 0)],
            Format::Packed => [at(device, device_len), at(descriptors, descriptors_len)],
        };
        let (backend, io) = (self.disk.backend(), Io::new(32).ok()?);
        Some(Served {
            queue,
            blk,
            backend,
            io,
            chain: Chain::default(),
            owed: Vec::new(),
            size,
            own,
        })
    }

    /// The device of one queue.
    fn personality(&self, readonly: bool) -> Blk {
        let limits = self.disk.limits();
        let shape = Shape {
            block_size: 512,
            physical_block_exp: 3,
            topology: Default::default(),
            readonly,
            queues: 1,
            serial: [0x5e; SERIAL_SIZE],
            limits: Limits {
                discard_sectors_max: limits.discard_sectors_max,
                zeroes_sectors_max: limits.zeroes_sectors_max,
            },
            in_order: true,
        };
        Blk::new(&shape, Live::new(DISK_BYTES), device::blk::offered(&shape))
    }

    /// A new process finds the ring and the record as they are.
    fn reopen(&mut self, format: Format, bytes: &mut Bytes<'_>, mut old: Served) -> Option<Served> {
        let base = old.queue.base();
        for (ticket, _) in old.owed.drain(..) {
            ticket.forfeit();
        }
        let keeps_base = bytes.u8() & 1 == 0;
        self.queue(format, bytes, keeps_base.then_some(base))
    }

    /// Bytes anywhere.
    fn write(&self, bytes: &mut Bytes<'_>) {
        let at = usize::from(bytes.u16());
        let len = usize::from(bytes.u8());
        self.put(at, bytes.take(len));
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            let half = &self.halves[at / HALF % 2];
            half.write(at % HALF, std::slice::from_ref(byte));
        }
    }

    /// A descriptor whose fields are mostly possible ones.
    fn descriptor(&self, format: Format, bytes: &mut Bytes<'_>, served: &Served) {
        let index = u16::from(bytes.u8()) % served.size;
        let kind = bytes.u8();
        let gpa = match kind & 3 {
            0 => bytes.u64(),
            1 => HALF as u64 - 64 + u64::from(bytes.u8()),
            _ => u64::from(bytes.u16()),
        };
        let len = if kind & 4 != 0 { bytes.u32() } else { u32::from(bytes.u16()) % 2048 };
        let flags = if kind & 8 != 0 { bytes.u16() } else { u16::from(bytes.u8()) & 7 };
        let other = if kind & 16 != 0 { bytes.u16() } else { u16::from(bytes.u8()) % served.size };
        let table = if kind & 32 != 0 { usize::from(bytes.u16()) & !15 } else { 0 };
        self.entry(format, table + usize::from(index) * 16, gpa, len, flags, other);
    }

    fn entry(&self, format: Format, at: usize, gpa: u64, len: u32, flags: u16, other: u16) {
        let (first, second) = match format {
            Format::Split => (flags, other),
            Format::Packed => (other, flags),
        };
        let mut entry = gpa.to_le_bytes().to_vec();
        entry.extend(len.to_le_bytes());
        entry.extend(first.to_le_bytes());
        entry.extend(second.to_le_bytes());
        self.put(at, &entry);
    }

    /// A request as a driver lays it out, in three descriptors from some place on.
    fn request(&self, format: Format, bytes: &mut Bytes<'_>, served: &Served) {
        let first = u16::from(bytes.u8()) % served.size;
        let (kind, sector) = (u32::from(bytes.u8()) % 16, u64::from(bytes.u16()));
        let (data, len) = (u64::from(bytes.u16()), u32::from(bytes.u16()) % 8192);
        let lap = bytes.u16() & 0x8080;
        let header = 0x1000 + u64::from(first) * 32;
        let mut words = u64::from(kind).to_le_bytes().to_vec();
        words.extend(sector.to_le_bytes());
        self.put(header as usize, &words);
        let writes = if matches!(kind, 0 | 8) { 2 } else { 0 };
        let pieces = [(header, 16, 1), (data, len, 1 | writes), (header + 16, 1, 2)];
        for (at, (gpa, len, flags)) in (first..).zip(pieces) {
            let other = if format == Format::Split { at + 1 } else { first };
            let place = usize::from(at % served.size) * 16;
            let lap = if format == Format::Packed { lap } else { 0 };
            self.entry(format, place, gpa, len, flags | lap, other % served.size);
        }
    }

    /// Heads and the available index of a split ring; flags of a packed one's entry.
    fn available(&self, format: Format, bytes: &mut Bytes<'_>, served: &Served) {
        let slot = usize::from(bytes.u8()) % usize::from(served.size);
        match format {
            Format::Split => {
                let (head, ahead) = (bytes.u8(), bytes.u8());
                let head = u16::from(head) % (served.size + u16::from(head == 0xff));
                self.put(0x800 + 4 + 2 * slot, &head.to_le_bytes());
                let index = served.queue.base() as u16;
                let index = index.wrapping_add(u16::from(ahead) % (served.size + 2));
                self.put(0x800 + 2, &index.to_le_bytes());
            }
            Format::Packed => self.put(slot * 16 + 14, &bytes.u16().to_le_bytes()),
        }
    }

    /// Takes, runs and gives back; then looks at every byte of guest memory.
    fn serve(&mut self, served: &mut Served, most: usize, keep: u8) {
        self.snapshot();
        let mut may: Vec<(usize, usize)> = served.own.to_vec();
        for turn in 0..most {
            if !served.queue.peek(&self.map, &mut served.chain) {
                break;
            }
            let bound = TABLE_MAX.max(served.size.into()) + u32::from(served.size) + 1;
            assert!(served.chain.walked() <= bound, "{} descriptors", served.chain.walked());
            let kept = served.chain.readable().len() + served.chain.writable().len();
            assert!(kept <= CHAIN_SPANS_MAX);
            let room = served.chain.writable_bytes();
            let last = served.chain.last_writable();
            for span in served.chain.writable().iter().chain([&last]) {
                may.push((self.gpa(span.host_address()), span.len() as usize));
            }
            let written = match served.blk.parse(&self.map, &mut served.chain) {
                Err(violation) => {
                    served.queue.latch(violation);
                    break;
                }
                Ok(Parsed::Answer(reply, status)) => served.blk.answer(&self.map, reply, status),
                Ok(Parsed::Work(work)) => {
                    let request = work.request(&served.chain);
                    let started = served.backend.submit(&mut served.io, &request, &self.map, TAG);
                    let Started::Done(status) = started else { panic!("a RAM disk that waits") };
                    assert!(status != Status::Unsupported);
                    served.blk.answer(&self.map, work.reply, status)
                }
            };
            assert!(u64::from(written) <= room, "{written} bytes in room for {room}");
            let ticket = served.queue.advance(&served.chain);
            match keep >> (turn % 8) & 1 {
                0 => served.queue.complete(ticket, written),
                _ => served.owed.push((ticket, written)),
            }
        }
        served.queue.publish();
        self.check(&may);
    }

    /// Gives back some of what was kept, the last first.
    fn complete(&mut self, served: &mut Served, most: usize) {
        self.snapshot();
        let from = served.owed.len().saturating_sub(most);
        for (ticket, written) in served.owed.drain(from..).rev() {
            served.queue.complete(ticket, written);
        }
        served.queue.publish();
        self.check(&served.own);
    }

    fn snapshot(&mut self) {
        let (low, high) = self.before.split_at_mut(HALF);
        self.halves[0].read(0, low);
        self.halves[1].read(0, high);
    }

    /// Nothing changed since the snapshot but what lies in `may`.
    fn check(&self, may: &[(usize, usize)]) {
        let mut now = vec![0; 2 * HALF];
        let (low, high) = now.split_at_mut(HALF);
        self.halves[0].read(0, low);
        self.halves[1].read(0, high);
        if now == self.before {
            return;
        }
        for (at, (now, before)) in now.iter().zip(&self.before).enumerate() {
            let allowed = || may.iter().any(|(start, len)| at >= *start && at - start < *len);
            assert!(now == before || allowed(), "byte {at:#x} was written: {before} to {now}");
        }
    }

    fn gpa(&self, host: usize) -> usize {
        let [low, high] = self.hosts;
        match host.checked_sub(low) {
            Some(at) if at < HALF => at,
            _ => HALF + host.wrapping_sub(high) % (2 * HALF),
        }
    }
}
