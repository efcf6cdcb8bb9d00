//! A device side that is killed between any two of its stores, and starts again over the same memory
//! with an in-flight record: no request is lost, none ends twice, the order is kept.

use guest_memory::Area;
use proptest::prelude::*;
use random::often;

use super::rig::{Rig, ring, spec, start};
use crate::driver::{Buffer, RingSpec, Used};
use crate::inflight::{Inflight, queue_region_len};
use crate::layout::Format;
use crate::shared::life;
use crate::{Queue, SetupError, Ticket, Violation};

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u8),
    Take(u8),
    /// Which of the held ones.
    Complete(u8),
    Publish,
    TakeUsed(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1u8..4).prop_map(Step::Add),
        3 => (1u8..4).prop_map(Step::Take),
        4 => any::<u8>().prop_map(Step::Complete),
        2 => Just(Step::Publish),
        2 => (1u8..4).prop_map(Step::TakeUsed),
    ]
}

/// A guest that lives on while its device side dies.
struct World {
    rig: Rig,
    record: Area,
    held: Vec<(u64, Ticket)>,
    /// Tokens given out and not used.
    owed: std::collections::BTreeSet<u64>,
    next_token: u64,
    /// The last token taken since the last start.
    last_taken: Option<u64>,
    starts: u32,
}

impl World {
    fn new(spec: RingSpec) -> World {
        let record = Area::anonymous(queue_region_len(spec.format, spec.size)).unwrap();
        let mut world = World {
            rig: Rig::new(spec),
            record,
            held: Vec::new(),
            owed: Default::default(),
            next_token: 1,
            last_taken: None,
            starts: 0,
        };
        life::lasts(u32::MAX);
        world.start();
        world
    }

    /// Its pieces name the token, so that the device side knows which request it has.
    fn pieces(&self, token: u64) -> Vec<Buffer> {
        let spec = self.rig.ring;
        let most = if spec.indirect_entries > 0 { 3 } else { spec.size.min(3).into() };
        let piece = |place: u64| Buffer {
            gpa: token % 64 * 64 + place,
            len: token as u32 * 4 + place as u32,
            device_writes: place > 0,
        };
        (0..1 + token % most).map(piece).collect()
    }

    fn start(&mut self) {
        self.starts += 1;
        let Rig { map, places, ring, .. } = &self.rig;
        let mut queue_spec = spec(map, *places, *ring, start(ring.format));
        let record = Inflight::new(self.record.clone(), ring.format, ring.size).unwrap();
        queue_spec.inflight = Some(record);
        match Queue::new(queue_spec) {
            Ok(queue) => self.rig.queue = queue,
            // What a process whose stores no longer happen makes of the record says nothing.
            Err(error) => assert!(life::is_over(), "{error}"),
        }
        self.last_taken = None;
    }

    /// What happens when the process is gone: its memory too, and another one starts, and may die
    /// while it starts. A busy guest goes on meanwhile with what it has been shown.
    fn restart(&mut self, lives: &mut impl Iterator<Item = u32>, guest_is_busy: bool) {
        while life::is_over() {
            self.held.drain(..).for_each(|(_, ticket)| ticket.forfeit());
            if guest_is_busy {
                self.apply(Step::TakeUsed(255));
                self.apply(Step::Add(3));
            }
            life::lasts(lives.next().unwrap_or(u32::MAX));
            self.start();
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Add(count) => {
                for _ in 0..count {
                    let token = self.next_token;
                    if self.rig.driver.add(&self.pieces(token), token).is_ok() {
                        self.owed.insert(token);
                        self.next_token += 1;
                    }
                }
                self.rig.driver.publish();
            }
            Step::Take(count) => {
                for _ in 0..count {
                    self.take();
                }
            }
            Step::Complete(which) if !self.held.is_empty() => {
                let (token, ticket) = self.held.swap_remove(usize::from(which) % self.held.len());
                self.rig.queue.complete(ticket, token as u32 * 4);
            }
            Step::Complete(_) => {}
            Step::Publish => {
                self.rig.queue.publish();
            }
            Step::TakeUsed(count) => {
                for _ in 0..count {
                    let Some(Used { token, len }) = self.rig.driver.take_used() else { break };
                    assert_eq!(len, token as u32 * 4, "another request's completion");
                    assert!(self.owed.remove(&token), "{token} ended twice");
                }
                assert_eq!(self.rig.driver.fault(), None);
            }
        }
    }

    fn take(&mut self) {
        let Some((ticket, found)) = self.rig.take() else {
            assert_eq!(self.rig.queue.violation(), None);
            return;
        };
        let token = u64::from(found[0].len / 4);
        assert_eq!(found, self.pieces(token));
        assert!(self.owed.contains(&token), "{token} is not owed");
        assert!(self.last_taken < Some(token), "{token} after {:?}", self.last_taken);
        self.last_taken = Some(token);
        self.held.push((token, ticket));
    }

    /// Nobody dies any more: everything must end.
    fn finish(&mut self) {
        for _ in 0..4 * usize::from(self.rig.ring.size) + 4 {
            self.apply(Step::Take(255));
            while !self.held.is_empty() {
                self.apply(Step::Complete(0));
            }
            self.apply(Step::Publish);
            self.apply(Step::TakeUsed(255));
        }
        assert_eq!(self.owed, Default::default(), "lost");
        assert_eq!(self.rig.driver.in_flight(), 0);
        assert_eq!(self.rig.queue.in_flight(), 0);
    }
}

/// Runs the steps; the device side lives for as many stores as `lives` say, one life after another.
fn run(spec: RingSpec, steps: &[Step], lives: &[u32], guest_is_busy: bool) -> u32 {
    let mut world = World::new(spec);
    let mut lives = lives.iter().copied();
    life::lasts(lives.next().unwrap_or(u32::MAX));
    world.restart(&mut lives, guest_is_busy);
    for step in steps {
        world.apply(*step);
        world.restart(&mut lives, guest_is_busy);
    }
    life::lasts(u32::MAX);
    world.finish();
    world.starts
}

fn shapes() -> Vec<RingSpec> {
    let split = [1, 2, 8].map(|size| (Format::Split, size));
    let packed = [1, 2, 3, 5, 8].map(|size| (Format::Packed, size));
    let mut shapes = Vec::new();
    for (format, size) in split.into_iter().chain(packed) {
        shapes.push(ring(format, size, false, 0));
        shapes.push(ring(format, size, true, 4));
    }
    shapes
}

/// Takes, completes out of order, shows in batches, leaves some over; twice round the ring.
fn schedule() -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..6 {
        steps.extend([Step::Add(3), Step::Take(2), Step::Complete(1), Step::Take(2)]);
        steps.extend([Step::Complete(round), Step::Complete(1), Step::Publish]);
        steps.extend([Step::TakeUsed(2), Step::Add(2), Step::Take(1), Step::Complete(0)]);
        steps.extend([Step::Publish, Step::TakeUsed(9)]);
    }
    steps
}

#[test]
fn killed_once_at_every_store() {
    for spec in shapes() {
        for guest_is_busy in [false, true] {
            let lived_through =
                |stores: &u32| run(spec, &schedule(), &[*stores], guest_is_busy) == 1;
            let stores = (0..).find(lived_through);
            assert!(stores > Some(30), "{spec:?} lived through it with {stores:?} stores");
        }
    }
}

/// The second life ends while it recovers from the first one's end, at every store of the recovery
/// and of what follows.
#[test]
fn killed_again_while_recovering() {
    for spec in shapes() {
        for first in (0..120).step_by(often(23, 7) as usize) {
            for second in 0..40 {
                run(spec, &schedule(), &[first, second, 11], second % 2 == 0);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(often(600, 3000)))]

    #[test]
    fn killed_anywhere_in_any_schedule(
        which in 0usize..16,
        steps in prop::collection::vec(step(), 1..80),
        lives in prop::collection::vec(prop_oneof![0u32..20, 0u32..150], 0..8),
        guest_is_busy in any::<bool>(),
    ) {
        run(shapes()[which % shapes().len()], &steps, &lives, guest_is_busy);
    }
}

#[test]
fn a_fresh_record_adopts_where_the_ring_is() {
    for format in [Format::Split, Format::Packed] {
        let mut world = World::new(ring(format, 8, true, 0));
        world.rig.reopen(start(format));
        for _ in 0..5 {
            for step in [Step::Add(3), Step::Take(3), Step::Complete(0), Step::Complete(0)] {
                world.apply(step);
            }
            for step in [Step::Complete(0), Step::Publish, Step::TakeUsed(3)] {
                world.apply(step);
            }
        }
        let base = world.rig.queue.base();
        world.record.zero(0, world.record.len());
        let Rig { map, places, ring, .. } = &world.rig;
        let mut queue_spec = spec(map, *places, *ring, base);
        let record = Inflight::new(world.record.clone(), format, 8).unwrap();
        queue_spec.inflight = Some(record);
        world.rig.queue = Queue::new(queue_spec).unwrap();
        assert_eq!(world.rig.queue.base(), base);
        world.apply(Step::Add(2));
        world.apply(Step::Take(1));
        world.held.drain(..).for_each(|(_, ticket)| ticket.forfeit());
        world.start();
        world.finish();
    }
}

#[test]
fn a_record_of_another_ring_or_version_is_refused() {
    for format in [Format::Split, Format::Packed] {
        let len = queue_region_len(format, 8);
        let area = Area::anonymous(2 * len).unwrap();
        let open = |size| Inflight::new(area.clone(), format, size).map(|_| ());
        area.store_u16(8, 1);
        area.store_u16(10, 8);
        assert_eq!(open(8), Ok(()));
        assert_eq!(open(4), Err(SetupError::Inflight { have: 8, need: 4 }));
        area.store_u16(8, 2);
        assert_eq!(open(8), Err(SetupError::InflightVersion(2)));
        let short = area.window(0, len as usize - 1).unwrap();
        assert!(matches!(Inflight::new(short, format, 8), Err(SetupError::Short { .. })));
        let odd = area.window(4, len as usize).unwrap();
        assert!(matches!(Inflight::new(odd, format, 8), Err(SetupError::Unaligned { .. })));
        // A record for one ring given to another.
        area.store_u16(8, 0);
        let mut queue_spec = {
            let rig = Rig::new(ring(format, 4, false, 0));
            spec(&rig.map, rig.places, rig.ring, start(format))
        };
        queue_spec.inflight = Some(Inflight::new(area.clone(), format, 8).unwrap());
        let refused = Queue::new(queue_spec).unwrap_err();
        assert_eq!(refused, SetupError::Inflight { have: 8, need: 4 });
    }
}

#[test]
fn a_packed_record_that_contradicts_itself_is_refused() {
    let taken = || {
        let mut world = World::new(ring(Format::Packed, 8, false, 0));
        world.apply(Step::Add(3));
        world.apply(Step::Take(2));
        world.held.drain(..).for_each(|(_, ticket)| ticket.forfeit());
        world
    };
    let refused = |at, value| {
        let world = taken();
        world.record.store_u16(at, value);
        let Rig { map, places, ring, .. } = &world.rig;
        let mut queue_spec = spec(map, *places, *ring, start(ring.format));
        queue_spec.inflight =
            Some(Inflight::new(world.record.clone(), ring.format, ring.size).unwrap());
        Queue::new(queue_spec).map(|_| ()).unwrap_err()
    };
    let state = |entry: usize| 32 + 32 * entry;
    // Where, what is written there, and what the next process says to it.
    let cases = [
        (16, 8, "a used index"),
        (18, 0xffff, "a used index"),
        (state(0) + 6, 0, "a chain's length"),
        (state(0) + 6, 9, "a chain's length"),
        (state(0) + 2, 0, "a chain's entries"),
        (state(0) + 2, 8, "a chain's entries"),
    ];
    for (at, value, what) in cases {
        assert_eq!(refused(at, value), SetupError::InflightContradiction(what));
    }
}

/// Row B3: with a record, entries that are in flight are not taken again.
#[test]
fn b3_entries_in_flight_made_available_again() {
    let mut world = World::new(ring(Format::Packed, 4, false, 0));
    let raw = world.rig.driver.raw().clone();
    let mut held = Vec::new();
    for lap in 0..2 {
        let flags = 2 | if lap == 0 { 1 << 7 } else { 1 << 15 };
        for place in 0..4 {
            let found = crate::driver::RawDescriptor { gpa: 0, len: 1, flags, next_or_id: 3 };
            // Three chains: of two entries, one, and one.
            let flags = if place == 0 { flags | 1 } else { flags };
            raw.write_descriptor(place, crate::driver::RawDescriptor { flags, ..found });
        }
        held.extend(std::iter::from_fn(|| world.rig.take()).map(|(ticket, _)| ticket));
    }
    assert_eq!(held.len(), 3);
    let violation = Violation::EntriesInFlight { entries: 2, free: 0 };
    assert_eq!(world.rig.queue.violation(), Some(violation));
    for ticket in held {
        world.rig.queue.complete(ticket, 1);
    }
    world.rig.queue.publish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(often(400, 1500)))]

    /// Row P31: a record of random bytes, at the start and while it is used: refused or served,
    /// without a panic, and never more than the ring holds.
    #[test]
    fn a_record_of_garbage_is_harmless(
        which in 0usize..16,
        steps in prop::collection::vec(step(), 1..30),
        words in prop::collection::vec(any::<u64>(), 64),
        mild in any::<bool>(),
        fresh in any::<bool>(),
    ) {
        let spec_of = shapes()[which % shapes().len()];
        let mut world = World::new(spec_of);
        let mut noise = words.iter().copied().cycle();
        let mut spoil = |record: &Area, from: usize| {
            for at in (from..record.len()).step_by(8) {
                let word = noise.next().unwrap();
                record.store_u64(at, if mild { word & 0x0007_0007_0007_0001 } else { word });
            }
        };
        world.apply(Step::Add(5));
        spoil(&world.record, 0);
        world.record.store_u16(8, u16::from(!fresh));
        world.record.store_u16(10, spec_of.size);
        let Rig { map, places, ring, .. } = &world.rig;
        let mut queue_spec = spec(map, *places, *ring, start(ring.format));
        queue_spec.inflight =
            Some(Inflight::new(world.record.clone(), ring.format, ring.size).unwrap());
        let Ok(queue) = Queue::new(queue_spec) else {
            prop_assert!(!fresh);
            return Ok(());
        };
        world.rig.queue = queue;
        let mut held = Vec::new();
        for step in steps {
            match step {
                Step::Take(count) => {
                    for _ in 0..count {
                        held.extend(world.rig.take().map(|(ticket, _)| ticket));
                    }
                    prop_assert!(held.len() <= usize::from(spec_of.size));
                }
                Step::Complete(which) if !held.is_empty() => {
                    let which = usize::from(which) % held.len();
                    world.rig.queue.complete(held.swap_remove(which), 1);
                }
                Step::Publish => {
                    world.rig.queue.publish();
                }
                _ => spoil(&world.record, 16),
            }
        }
        held.into_iter().for_each(Ticket::forfeit);
    }
}
