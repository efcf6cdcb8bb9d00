//! The driver's side against the device's, and against used rings that say what cannot be.

use device::blk::{Blk, Limits, Live, Parsed, Shape};
use device::features;
use random::Random;
use remote::wire::{Op, Status};
use virtqueue::{Chain, Queue, Ticket};

use super::*;

const SLOTS: u16 = 5;
const SLOT_BYTES: u32 = 8192;
const DISK: u64 = 1 << 20;

const WRITE: Op = Op::Write { sync: false };
const STABLE: Op = Op::Write { sync: true };

fn ok(slot: u16) -> Option<(u16, Ended)> {
    Some((slot, Ended::With(Status::Ok)))
}

/// What the device saw: what to do, where, how much.
type Seen = (request::Op, u64, u64);

/// A device without a disk, which answers when it is told to.
struct Device {
    memory: AttachmentMemory,
    queue: Queue,
    blk: Blk,
    chain: Chain,
}

impl Device {
    fn take(&mut self) -> Option<(Ticket, device::blk::Reply, Option<Seen>)> {
        let map = self.memory.map();
        if !self.queue.peek(map, &mut self.chain) {
            assert_eq!(self.queue.violation(), None);
            return None;
        }
        let parsed = self.blk.parse(map, &mut self.chain).expect("a chain with a status");
        let ticket = self.queue.advance(&self.chain);
        Some(match parsed {
            Parsed::Work(work) => (ticket, work.reply, Some((work.op, work.offset, work.len))),
            Parsed::Answer(reply, status) => {
                assert_eq!(status, request::Status::Unsupported);
                (ticket, reply, None)
            }
        })
    }

    fn answer(&mut self, ticket: Ticket, reply: device::blk::Reply, status: request::Status) {
        let written = self.blk.answer(self.memory.map(), reply, status);
        self.queue.complete(ticket, written);
        assert!(!self.queue.publish(), "no call was asked for");
    }

    /// Does one thing, if there is one: what it was.
    fn serve(&mut self, status: request::Status) -> Option<Seen> {
        let (ticket, reply, seen) = self.take()?;
        let status = if seen.is_some() { status } else { request::Status::Unsupported };
        self.answer(ticket, reply, status);
        seen
    }
}

fn pair() -> (Initiator, Device) {
    let memory = AttachmentMemory::new(SLOTS, SLOT_BYTES).unwrap();
    let limits = Limits { discard_sectors_max: 1 << 20, zeroes_sectors_max: 1 << 20 };
    let shape = Shape {
        block_size: 512,
        physical_block_exp: 0,
        topology: Default::default(),
        readonly: false,
        queues: 1,
        serial: [0; 20],
        limits,
        in_order: false,
    };
    let negotiated = features::VERSION_1
        | features::BLK_FLUSH
        | features::BLK_DISCARD
        | features::BLK_WRITE_ZEROES;
    let blk = Blk::new(&shape, Live::new(DISK), negotiated);
    let queue = memory.queue(0).unwrap();
    (Initiator::new(&memory), Device { memory, queue, blk, chain: Chain::default() })
}

#[test]
fn each_operation_comes_as_it_was_asked_in_a_slot_that_is_used_again() {
    let (mut initiator, mut device) = pair();
    let zeroes = |unmap| Op::WriteZeroes { unmap, sync: false };
    let asked = [
        (Op::Read, request::Op::Read, 8192, 4096),
        (WRITE, request::Op::Write { sync: false }, 512, 8192),
        (Op::Flush, request::Op::Flush, 0, 0),
        (Op::Read, request::Op::Read, 0, 512),
        (Op::Discard, request::Op::Discard, 65536, 131_072),
        (zeroes(true), request::Op::WriteZeroes { unmap: true, sync: false }, 1024, 512),
        (zeroes(false), request::Op::WriteZeroes { unmap: false, sync: false }, 512, 1024),
        (WRITE, request::Op::Write { sync: false }, DISK - 512, 512),
    ];
    for (op, seen, offset, len) in asked {
        assert!(initiator.add(3, op, offset, len as u32), "{op:?}");
        assert!(!initiator.add(3, op, offset, len as u32), "a slot has one request");
        initiator.publish();
        assert_eq!(initiator.in_flight(), 1);
        assert_eq!(initiator.take_used(), None);
        assert_eq!(device.serve(request::Status::Ok), Some((seen, offset, len)));
        assert_eq!(initiator.take_used(), ok(3), "{op:?}");
        assert_eq!((initiator.take_used(), initiator.in_flight()), (None, 0));
    }
    assert!(initiator.add(0, Op::Discard, 0, 512));
    initiator.publish();
    device.serve(request::Status::IoError);
    let failed = Ended::With(Status::IoError);
    assert_eq!((initiator.take_used(), initiator.faults()), (Some((0, failed)), 0));
}

#[test]
fn a_stable_write_ends_when_the_flush_behind_it_has() {
    let (mut initiator, mut device) = pair();
    let write = request::Op::Write { sync: false };
    assert!(initiator.add(1, STABLE, 4096, 4096));
    initiator.publish();
    assert_eq!(device.serve(request::Status::Ok), Some((write, 4096, 4096)));
    assert_eq!((initiator.take_used(), initiator.in_flight()), (None, 1));
    initiator.publish();
    assert_eq!(device.serve(request::Status::Ok), Some((request::Op::Flush, 0, 0)));
    assert_eq!(initiator.take_used(), ok(1));
    // What was not written is not made stable.
    assert!(initiator.add(1, STABLE, 4096, 4096));
    initiator.publish();
    device.serve(request::Status::IoError);
    assert_eq!(initiator.take_used(), Some((1, Ended::With(Status::IoError))));
    initiator.publish();
    assert_eq!(device.serve(request::Status::Ok), None);
    // And what was not made stable has failed.
    assert!(initiator.add(1, Op::WriteZeroes { unmap: false, sync: true }, 0, 512));
    initiator.publish();
    device.serve(request::Status::Ok);
    assert_eq!(initiator.take_used(), None);
    initiator.publish();
    assert_eq!(device.serve(request::Status::IoError), Some((request::Op::Flush, 0, 0)));
    assert_eq!(initiator.take_used(), Some((1, Ended::With(Status::IoError))));
}

#[test]
fn what_a_disk_cannot_do_does_not_come_into_the_ring() {
    let (mut initiator, mut device) = pair();
    let wrong = [
        (Op::Read, 1, 512),
        (Op::Read, 0, 0),
        (Op::Read, 0, 511),
        (WRITE, 512, SLOT_BYTES + 512),
        (Op::Discard, 0, 0),
        (Op::Discard, 513, 512),
        (Op::WriteZeroes { unmap: true, sync: true }, 0, 100),
    ];
    for (op, offset, len) in wrong {
        assert!(!initiator.add(0, op, offset, len), "{op:?} {offset} {len}");
    }
    assert!(!initiator.add(SLOTS, Op::Flush, 0, 0));
    assert!(!initiator.publish());
    assert_eq!((device.serve(request::Status::Ok), initiator.in_flight()), (None, 0));
}

#[test]
fn indices_go_round_many_times_and_every_request_ends_once() {
    let (mut initiator, mut device) = pair();
    let (mut random, mut busy) = (Random::new(1, 1), [false; SLOTS as usize]);
    let (mut added, mut ended, mut taken) = (0u32, 0u32, Vec::new());
    while ended < 200_000 {
        let slot = random.below(SLOTS.into()) as u16;
        let was_added = initiator.add(slot, Op::Read, 512, 512);
        assert_eq!(was_added, !std::mem::replace(&mut busy[usize::from(slot)], true));
        added += u32::from(was_added);
        if random.one_in(2) {
            initiator.publish();
        }
        if random.one_in(2)
            && let Some(one) = device.take()
        {
            taken.push(one);
        }
        if random.one_in(2) && !taken.is_empty() {
            let (ticket, reply, _) = taken.swap_remove(random.below(taken.len() as u64) as usize);
            device.answer(ticket, reply, request::Status::Ok);
        }
        while let Some((slot, status)) = initiator.take_used() {
            assert_eq!(status, Ended::With(Status::Ok));
            assert!(std::mem::take(&mut busy[usize::from(slot)]));
            ended += 1;
        }
        assert_eq!(u32::from(initiator.in_flight()), added - ended);
    }
    taken.into_iter().for_each(|(ticket, ..)| device.queue.abandon(ticket));
    assert_eq!(initiator.faults(), 0);
}

#[test]
fn a_used_ring_of_nonsense_ends_nothing_twice_and_loses_no_slot() {
    let (mut initiator, mut device) = pair();
    let mut random = Random::new(7, 7);
    let Layout { used, size, .. } = initiator.layout;
    let element = |at: u16| used + RING + 8 * usize::from(at & (size - 1));
    let (area, mut at, mut faults) = (device.memory.area.clone(), 0u16, 0);
    for _ in 0..20_000 {
        let slot = random.below(SLOTS.into()) as u16;
        assert!(initiator.add(slot, Op::Flush, 0, 0));
        initiator.publish();
        device.serve(request::Status::Ok).expect("the flush");
        // What the device wrote is its own place and index from here on; it gets others.
        let id = u32::from(slot * CHAIN);
        let many = random.below(3) as u16;
        for step in 0..many {
            let idle = (slot + 1) % SLOTS * CHAIN;
            let nonsense = [slot * CHAIN + 1, SLOTS * CHAIN, idle].map(u32::from);
            let id = random.of(&[nonsense[0], nonsense[1], nonsense[2], u32::MAX - 3]);
            area.store_u32(element(at.wrapping_add(step)), id);
        }
        // More than is in flight: not even looked at.
        area.store_u16(used + INDEX, at.wrapping_add(2 + random.below(60_000) as u16));
        let before = initiator.faults();
        assert_eq!(initiator.take_used(), None);
        assert_eq!(initiator.faults(), before + 1);
        // One at a time, since one is in flight.
        for step in 0..many {
            area.store_u16(used + INDEX, at.wrapping_add(step + 1));
            assert_eq!(initiator.take_used(), None);
            faults += 1;
        }
        at = at.wrapping_add(many);
        area.store_u32(element(at), id);
        at = at.wrapping_add(1);
        area.store_u16(used + INDEX, at);
        assert_eq!(initiator.take_used(), ok(slot));
        // The same once more ends nothing.
        assert_eq!((initiator.take_used(), initiator.in_flight()), (None, 0));
    }
    assert_eq!(initiator.faults(), 20_000 + faults);
}

#[test]
fn what_the_device_has_not_taken_is_withdrawn_and_ends_untouched() {
    let (mut initiator, mut device) = pair();
    for (slot, op) in [(0, STABLE), (1, WRITE), (2, STABLE), (3, Op::Flush)] {
        assert!(initiator.add(slot, op, 0, if op == Op::Flush { 0 } else { 4096 }));
    }
    initiator.publish();
    let (ticket, reply, seen) = device.take().expect("the first");
    initiator.withdraw();
    assert!(seen.is_some());
    device.answer(ticket, reply, request::Status::Ok);
    // It had been taken: it ends as it would have, with its flush.
    assert_eq!(initiator.take_used(), None);
    initiator.publish();
    let (mut ended, mut served) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        served.extend(device.serve(request::Status::Ok));
        ended.extend(initiator.take_used());
    }
    ended.sort_by_key(|(slot, _)| *slot);
    let untouched = Ended::Untouched;
    let expected = [(0, Ended::With(Status::Ok)), (1, untouched), (2, untouched), (3, untouched)];
    assert_eq!(ended, expected);
    assert_eq!(served, [(request::Op::Flush, 0, 0)]);
    // The slots are as good as new.
    assert!(initiator.add(1, WRITE, 0, 512));
    initiator.publish();
    assert!(device.serve(request::Status::Ok).is_some());
    assert_eq!(initiator.take_used(), ok(1));
}

#[test]
fn a_queue_that_waits_for_a_kick_is_told_of_what_comes() {
    let (mut initiator, mut device) = pair();
    device.queue.disarm();
    assert!(initiator.add(0, Op::Flush, 0, 0));
    assert!(!initiator.publish());
    device.serve(request::Status::Ok);
    assert_eq!(initiator.take_used(), ok(0));
    assert!(!device.queue.arm(), "nothing is there");
    assert!(!initiator.publish(), "nothing was added");
    assert!(initiator.add(0, Op::Flush, 0, 0));
    assert!(initiator.publish());
}

#[test]
fn data_of_two_slots_does_not_meet_and_bytes_are_those_of_the_layout() {
    for (slots, slot_bytes) in [(1, 512), (7, 4096), (256, 131_072), (3, 5000)] {
        let memory = AttachmentMemory::new(slots, slot_bytes).unwrap();
        let layout = memory.layout;
        assert_eq!(AttachmentMemory::bytes(slots, slot_bytes), layout.end as u64);
        let places = (0..slots).map(|slot| layout.data_at(slot));
        let mut end = layout.line_at(slots - 1) + super::super::memory::LINE_BYTES;
        for place in places {
            assert!(place >= end);
            assert!(place.is_multiple_of(4096) || !slot_bytes.is_multiple_of(4096));
            end = place + slot_bytes as usize;
        }
        assert!(end <= layout.end && memory.queue(0).is_ok());
    }
}
