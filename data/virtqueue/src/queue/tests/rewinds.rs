//! Chains that are put back are as if they had never been taken, and otherwise nothing is put back.

use proptest::prelude::*;

use super::rig::{Rig, ring, spec, start};
use crate::driver::{Buffer, RingSpec, Used};
use crate::inflight::{Inflight, queue_region_len};
use crate::layout::{self, Format};
use crate::{Queue, Ticket};
use guest_memory::Area;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Chains of one to three buffers.
    Add(u8),
    Take,
    /// Take so many and put them back.
    Try(u8),
    /// Take and complete, so many bytes written; as a single buffer where it is one.
    Fill(u8),
    /// Which of the held ones.
    Complete(u8),
    Publish,
    Arm,
    TakeUsed,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u8..4).prop_map(Step::Add),
        3 => Just(Step::Take),
        4 => (0u8..6).prop_map(Step::Try),
        3 => any::<u8>().prop_map(Step::Fill),
        3 => any::<u8>().prop_map(Step::Complete),
        2 => Just(Step::Publish),
        1 => Just(Step::Arm),
        2 => Just(Step::TakeUsed),
    ]
}

/// One side of the comparison: a ring and the chains that were taken from it.
struct Side {
    rig: Rig,
    held: Vec<Ticket>,
    puts_back: bool,
    next_token: u64,
}

/// What a step did, as its driver or its caller sees it.
#[derive(Debug, PartialEq)]
enum Did {
    Added(bool),
    Took(Option<Vec<Buffer>>),
    Published(bool, bool),
    Armed(bool),
    Used(Option<Used>),
    Nothing,
}

impl Side {
    fn new(ring: RingSpec, puts_back: bool) -> Side {
        Side { rig: Rig::new(ring), held: Vec::new(), puts_back, next_token: 1 }
    }

    fn step(&mut self, step: Step) -> Did {
        match step {
            Step::Add(pieces) => {
                let piece = |n: u8| Buffer {
                    gpa: u64::from(n) * 4096 + self.next_token % 64,
                    len: 1 + self.next_token as u32 % 100,
                    device_writes: !self.next_token.is_multiple_of(5),
                };
                let pieces: Vec<_> = (0..pieces).map(piece).collect();
                let added = self.rig.driver.add(&pieces, self.next_token).is_ok();
                self.next_token += 1;
                self.rig.driver.publish();
                Did::Added(added)
            }
            Step::Take => Did::Took(self.rig.take().map(|(ticket, found)| {
                self.held.push(ticket);
                found
            })),
            Step::Try(count) => {
                if self.puts_back {
                    self.try_and_put_back(count);
                }
                Did::Nothing
            }
            Step::Fill(written) => {
                // Either way of the data, and none when it goes the other.
                let mut single = None;
                for is_writable in [true, false].into_iter().filter(|_| self.puts_back) {
                    single = single.or(self.rig.queue.peek_single(&self.rig.map, is_writable));
                }
                let found = self.rig.peek();
                if let Some(single) = single {
                    let chain = &self.rig.chain;
                    let both = [chain.writable(), chain.readable()].concat();
                    assert_eq!((both, chain.id), (vec![single.span], single.id));
                    assert_eq!(chain.readable().is_empty(), single.is_writable);
                    if written.is_multiple_of(2) {
                        self.rig.queue.end_single(single, written.into());
                    } else {
                        let ticket = self.rig.queue.take_single(single);
                        self.rig.queue.complete(ticket, written.into());
                    }
                } else if found.is_some() {
                    let ticket = self.rig.queue.advance(&self.rig.chain);
                    self.rig.queue.complete(ticket, written.into());
                }
                Did::Took(found)
            }
            Step::Complete(which) if !self.held.is_empty() => {
                let at = usize::from(which) % self.held.len();
                self.rig.queue.complete(self.held.remove(at), which.into());
                Did::Nothing
            }
            Step::Complete(_) => Did::Nothing,
            Step::Publish => {
                let call = self.rig.queue.publish();
                Did::Published(call, self.rig.driver.arm_calls())
            }
            Step::Arm => Did::Armed(self.rig.queue.arm()),
            Step::TakeUsed => Did::Used(self.rig.driver.take_used()),
        }
    }

    fn try_and_put_back(&mut self, count: u8) {
        let mark = self.rig.queue.mark();
        let mut taken = Vec::new();
        for _ in 0..count {
            taken.extend(self.rig.take().map(|(ticket, _)| ticket));
        }
        assert!(self.rig.queue.rewind(mark, &mut taken));
        assert!(taken.is_empty(), "tickets are spent");
    }

    /// Everything that the device side wrote, and what it says of itself.
    fn state(&mut self) -> (Vec<u8>, Vec<u8>, u32, u16) {
        let RingSpec { size, format, event_index, .. } = self.rig.ring;
        let bytes = |gpa, len| {
            let mut bytes = vec![0; len as usize];
            assert!(self.rig.area(gpa, len).read(0, &mut bytes));
            bytes
        };
        let places = self.rig.places;
        let descriptors = bytes(places.descriptors, layout::descriptors_len(format, size));
        let device = bytes(places.device, layout::device_len(format, size, event_index));
        (descriptors, device, self.rig.queue.base(), self.rig.queue.in_flight())
    }
}

fn rings() -> impl Strategy<Value = RingSpec> {
    let kind = prop_oneof![
        prop_oneof![Just(1u16), Just(2), Just(8)].prop_map(|size| (Format::Split, size)),
        prop_oneof![Just(1u16), Just(3), Just(8), Just(13)].prop_map(|size| (Format::Packed, size)),
    ];
    (kind, any::<bool>(), prop_oneof![Just(0u16), Just(4)])
        .prop_map(|((format, size), event_index, tables)| ring(format, size, event_index, tables))
}

proptest! {
    /// A queue that puts chains back, and fills single buffers at once, beside one that never took
    /// them, and takes all alike: the same memory, the same answers, at every step.
    #[test]
    fn chains_put_back_were_never_taken(
        ring in rings(),
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let mut tries = Side::new(ring, true);
        let mut never = Side::new(ring, false);
        for step in steps {
            prop_assert_eq!(tries.step(step), never.step(step), "{:?}", step);
            prop_assert_eq!(tries.state(), never.state(), "{:?}", step);
        }
        prop_assert_eq!(tries.rig.queue.violation(), None);
        for side in [tries, never] {
            side.held.into_iter().for_each(Ticket::forfeit);
        }
    }
}

fn filled(format: Format) -> Rig {
    let mut rig = Rig::new(ring(format, 8, false, 0));
    for token in 0..8 {
        rig.driver.add(&[Buffer { gpa: token * 64, len: 64, device_writes: true }], token).unwrap();
    }
    rig.driver.publish();
    rig
}

#[test]
fn what_is_not_all_of_it_is_not_put_back() {
    for format in [Format::Split, Format::Packed] {
        let mut rig = filled(format);
        let mark = rig.queue.mark();
        let mut tickets: Vec<_> = (0..3).filter_map(|_| rig.take()).map(|(one, _)| one).collect();
        let base = rig.queue.base();
        let last = tickets.pop().unwrap();
        assert!(!rig.queue.rewind(mark, &mut tickets), "{format:?}: one is missing");
        assert_eq!((tickets.len(), rig.queue.in_flight(), rig.queue.base()), (2, 3, base));

        let mark = rig.queue.mark();
        assert!(!rig.queue.rewind(mark, &mut tickets), "{format:?}: taken before the mark");
        let mark = rig.queue.mark();
        let (next, _) = rig.take().unwrap();
        rig.queue.complete(last, 1);
        assert!(!rig.queue.rewind(mark, &mut vec![]), "{format:?}: one was completed since");

        let mark = rig.queue.mark();
        let (other, _) = rig.take().unwrap();
        let (another, _) = rig.take().unwrap();
        rig.queue.abandon(other);
        let mut one = vec![another];
        assert!(!rig.queue.rewind(mark, &mut one), "{format:?}: one was given up since");
        assert_eq!((one.len(), rig.queue.in_flight()), (1, 4));
        tickets
            .into_iter()
            .chain(one)
            .chain([next])
            .for_each(|ticket| rig.queue.complete(ticket, 1));
        assert_eq!(rig.queue.in_flight(), 0);
    }
}

/// A successor may have read the record by now.
#[test]
fn a_queue_with_a_record_puts_nothing_back() {
    for format in [Format::Split, Format::Packed] {
        let mut rig = filled(format);
        let area = Area::anonymous(queue_region_len(format, 8)).unwrap();
        let mut with_record = spec(&rig.map, rig.places, rig.ring, start(format));
        with_record.inflight = Some(Inflight::new(area, format, 8).unwrap());
        rig.queue = Queue::new(with_record).unwrap();
        let mark = rig.queue.mark();
        let mut tickets: Vec<_> = rig.take().into_iter().map(|(ticket, _)| ticket).collect();
        assert_eq!(tickets.len(), 1);
        assert!(!rig.queue.rewind(mark, &mut tickets), "{format:?}");
        assert_eq!((tickets.len(), rig.queue.in_flight()), (1, 1));
        tickets.drain(..).for_each(|ticket| rig.queue.complete(ticket, 1));
        let mark = rig.queue.mark();
        assert!(!rig.queue.rewind(mark, &mut tickets), "{format:?}: not even nothing");
    }
}

#[test]
fn only_a_chain_of_one_writable_buffer_is_single() {
    for format in [Format::Split, Format::Packed] {
        for indirect in [0, 4] {
            let mut rig = Rig::new(ring(format, 8, false, indirect));
            let piece = |len, device_writes| Buffer { gpa: 64, len, device_writes };
            let mut single = |pieces: &[Buffer]| {
                rig.driver.add(pieces, 1).unwrap();
                rig.driver.publish();
                let found = rig.queue.peek_single(&rig.map, true);
                let (ticket, _) = rig.take().unwrap();
                rig.queue.complete(ticket, 0);
                found.map(|single| single.span.len())
            };
            assert_eq!(single(&[piece(9, true)]), if indirect == 0 { Some(9) } else { None });
            assert_eq!(single(&[piece(9, false)]), None);
            assert_eq!(single(&[piece(9, true), piece(8, true)]), None);
            assert_eq!(single(&[piece(0, true)]), None);
            assert_eq!(rig.queue.peek_single(&rig.map, true), None, "{format:?}: nothing there");
        }
        let mut rig = filled(format);
        let Buffer { len, .. } = rig.peek().unwrap()[0];
        rig.queue.latch(crate::Violation::BufferOrder);
        assert_eq!((rig.queue.peek_single(&rig.map, true), len), (None, 64), "{format:?}: latched");
    }
}

/// A guest that says more than its ring holds is found out again after chains were put back.
#[test]
fn what_comes_after_is_checked_anew() {
    let mut rig = filled(Format::Split);
    let mark = rig.queue.mark();
    let mut tickets: Vec<_> = (0..8).filter_map(|_| rig.take()).map(|(one, _)| one).collect();
    rig.driver.raw().set_avail_index(9);
    assert!(rig.queue.rewind(mark, &mut tickets));
    assert_eq!(rig.peek(), None);
    assert!(rig.queue.violation().is_some(), "nine chains in a ring of eight");
}

#[test]
fn the_front_of_a_chain_is_copied_out_once_and_dropped() {
    for split_at in [1u32, 7, 12, 19, 20] {
        let mut rig = Rig::new(ring(Format::Split, 8, false, 0));
        let bytes: Vec<u8> = (1..=20).collect();
        assert!(rig.map.write(rig.map.span(100, 20).unwrap(), 0, &bytes));
        let first = Buffer { gpa: 100, len: split_at, device_writes: false };
        let second =
            Buffer { gpa: 100 + u64::from(split_at), len: 20 - split_at, device_writes: false };
        let last = Buffer { gpa: 500, len: 9, device_writes: true };
        rig.driver.add(&[first, second, last], 1).unwrap();
        rig.driver.publish();
        for want in [0usize, 1, 12, 20, 30] {
            assert!(rig.peek().is_some());
            let mut into = vec![0xee; want];
            let got = rig.chain.take_readable(&rig.map, &mut into);
            assert_eq!(got, want.min(20), "{split_at}");
            assert_eq!(into[..got], bytes[..got]);
            assert!(into[got..].iter().all(|byte| *byte == 0xee));
            let left: u32 = rig.chain.readable().iter().map(|span| span.len()).sum();
            assert_eq!(left as usize, 20 - got);
            let mut rest = vec![0; 20 - got];
            assert_eq!(rig.chain.take_readable(&rig.map, &mut rest), rest.len());
            assert_eq!(rest, bytes[got..]);
            assert_eq!(rig.chain.writable().len(), 1);
            assert_eq!(rig.chain.readable_bytes(), 20, "what the chain had");
        }
    }
}
