//! Slots and their tags, with the tickets of a real ring.

use backend::Progress;
use guest_memory::Span;
use schedule::Nanos;
use virtqueue::{Chain, Queue};

use super::bed::*;
use crate::slots::{BLOCKS_MAX, INLINE, Owed, SLOTS_MAX, Slots};

/// Where tickets come from.
struct Source {
    guest: Guest,
    served: crate::ServedSpec,
    chain: Chain,
}

impl Source {
    fn new() -> Source {
        let guest = Guest::new(ring(1024));
        let served = guest.spec(1, &null());
        Source { guest, served, chain: Chain::default() }
    }

    /// A request that was taken from the ring.
    fn owed(&mut self) -> Owed {
        self.guest.add(0, READ, 0, 1);
        self.guest.driver.publish();
        assert!(self.served.queue.peek(&self.guest.map, &mut self.chain));
        let crate::RoleSpec::Disk { blk, .. } = &self.served.role else { panic!("a disk") };
        let parsed = blk.parse(&self.guest.map, &mut self.chain);
        let Ok(device::blk::Parsed::Work(work)) = parsed else { panic!("{parsed:?}") };
        let ticket = self.served.queue.advance(&self.chain);
        Owed { ticket, work, progress: Progress::default(), taken: Nanos(0) }
    }

    fn spans(&self, count: usize) -> Vec<Span> {
        (0..count).map(|at| self.guest.map.span(at as u64 * 512, 512).unwrap()).collect()
    }
}

fn end(queue: &mut Queue, owed: Option<Owed>) {
    queue.complete(owed.expect("a request").ticket, 0);
}

#[test]
fn a_tag_names_its_request_until_that_ends_and_then_nothing() {
    let mut source = Source::new();
    let mut slots = Slots::new(8, false);
    let spans = source.spans(3);
    let tag = slots.next_tag(5).expect("a tag");
    assert_eq!(tag.queue, 5);
    slots.keep(source.owed(), &spans).expect("kept");
    let (request, _) = slots.find(tag).expect("found");
    assert_eq!((request.segments, request.len), (&spans[..], BLOCK as u64));
    end(&mut source.served.queue, slots.take(tag));
    assert!(slots.find(tag).is_none() && slots.take(tag).is_none(), "it ended");
    // The same slot again, under another name.
    let again = slots.next_tag(5).expect("a tag");
    assert_eq!(again.slot, tag.slot);
    slots.keep(source.owed(), &spans).expect("kept");
    assert!(slots.find(tag).is_none() && slots.take(tag).is_none(), "a late completion");
    end(&mut source.served.queue, slots.take(again));
}

#[test]
fn a_tag_of_an_earlier_queue_at_the_same_place_names_nothing() {
    let mut source = Source::new();
    let mut slots = Slots::new(8, false);
    slots.begin(1);
    let old = slots.next_tag(0).expect("a tag");
    slots.begin(2);
    let new = slots.next_tag(0).expect("a tag");
    slots.keep(source.owed(), &[]).expect("kept");
    assert!(slots.find(old).is_none());
    assert!(slots.find(request::Tag { slot: 8, ..new }).is_none(), "there is no such slot");
    end(&mut source.served.queue, slots.take(new));
}

#[test]
fn slots_are_bounded_and_so_are_the_long_ones() {
    let mut source = Source::new();
    let mut slots = Slots::new(1024, false);
    let (short, long) = (source.spans(INLINE), source.spans(INLINE + 1));
    let mut tags = Vec::new();
    for kept in 0..SLOTS_MAX {
        let segments = if kept < BLOCKS_MAX { &long } else { &short };
        assert!(slots.fits(segments.len()));
        tags.push(slots.next_tag(0).expect("a tag"));
        slots.keep(source.owed(), segments).expect("kept");
        assert_eq!(slots.fits(long.len()), kept + 1 < BLOCKS_MAX);
    }
    assert!(!slots.has_room() && !slots.fits(1) && slots.next_tag(0).is_none());
    let refused = slots.keep(source.owed(), &short).expect_err("full");
    end(&mut source.served.queue, Some(refused));
    for tag in tags {
        end(&mut source.served.queue, slots.take(tag));
    }
    assert!(slots.fits(long.len()));
}

#[test]
fn a_ring_has_no_more_slots_than_entries_and_none_that_are_not_used() {
    let mut source = Source::new();
    let mut slots = Slots::new(1, false);
    let tag = slots.next_tag(0).expect("a tag");
    slots.keep(source.owed(), &[]).expect("kept");
    assert!(!slots.has_room());
    end(&mut source.served.queue, slots.take(tag));
    assert!(!Slots::new(1024, true).has_room());
}
