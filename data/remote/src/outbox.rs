//! Messages that are said until the peer has them: binding, and what happens to a device. Of fixed size.
//!
//! Not requests and answers, which have their slots. Called by `client` and `iohost`.

use std::collections::VecDeque;

use crate::loss::{Mark, MarkKind};
use crate::session::Out;
use crate::wire::Record;

/// Messages at a time.
pub(crate) const MESSAGES: usize = 64;

#[derive(Debug)]
struct Place {
    number: u64,
    record: Record<'static>,
    is_queued: bool,
}

/// The messages. Those that wait go out in order; what is lost goes behind them.
#[derive(Debug)]
pub(crate) struct Outbox {
    places: [Option<Place>; MESSAGES],
    queue: VecDeque<usize>,
    number: u64,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        let places = [const { None }; MESSAGES];
        Outbox { places, queue: VecDeque::with_capacity(2 * MESSAGES), number: 0 }
    }

    /// How many more there may be.
    pub(crate) fn room(&self) -> usize {
        self.places.iter().filter(|place| place.is_none()).count()
    }

    /// Says `record` until it is taken; false when there is no place.
    pub(crate) fn put(&mut self, record: Record<'static>) -> bool {
        let Some(at) = self.places.iter().position(Option::is_none) else { return false };
        self.number += 1;
        self.places[at] = Some(Place { number: self.number, record, is_queued: true });
        self.queue.push_back(at);
        true
    }

    /// Puts what waits into a frame, as far as it fits.
    pub(crate) fn fill(&mut self, out: &mut Out<'_>) {
        while let Some(at) = self.queue.front().copied() {
            if let Some(place) = self.places.get_mut(at).and_then(Option::as_mut) {
                let slot = at as u16;
                let mark =
                    Mark { kind: MarkKind::Control, part: 0, slot, handle: 0, turn: place.number };
                if !out.push(&place.record, Some(mark)) {
                    return;
                }
                place.is_queued = false;
            }
            self.queue.pop_front();
        }
    }

    pub(crate) fn taken(&mut self, mark: Mark) {
        let at = usize::from(mark.slot);
        if self.at(mark).is_some_and(|place| !place.is_queued) {
            self.places[at] = None;
        } else if self.at(mark).is_some() {
            // It waits to be said again, and need not.
            self.queue.retain(|one| *one != at);
            self.places[at] = None;
        }
    }

    pub(crate) fn lost(&mut self, mark: Mark) {
        if let Some(place) = self.at(mark)
            && !place.is_queued
        {
            place.is_queued = true;
            self.queue.push_back(usize::from(mark.slot));
        }
    }

    fn at(&mut self, mark: Mark) -> Option<&mut Place> {
        let place = self.places.get_mut(usize::from(mark.slot))?.as_mut()?;
        (place.number == mark.turn).then_some(place)
    }
}
