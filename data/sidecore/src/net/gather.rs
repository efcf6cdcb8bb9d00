//! Buffers of a receiver for one frame, when its first one does not hold it: found first, then
//! filled, so that nothing is written for a frame that does not fit.
//!
//! Called by `deliver`.

use backend::net::Rest;
use guest_memory::{GuestMap, Span};
use virtqueue::{CHAIN_SPANS_MAX, Chain, Mark, Ticket, Violation};

use crate::served::Ring;

/// Chains for one frame at most: 64 KiB in buffers of 1 KiB are 65.
pub(crate) const CHAINS_MAX: usize = 80;
/// Descriptors of a receiver that are walked for one frame at most, the last chain's more or less:
/// what a guest with many small buffers costs whoever sends to it.
pub(crate) const WALKED_MAX: u32 = 128;

/// Why a frame has no buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// There are no more now.
    NoBuffer,
    /// What is there does not do, and time alone will not change that.
    SmallBuffers,
}

/// What was found. Its memory is taken once.
#[derive(Debug)]
pub(crate) struct Gather {
    spans: Vec<Span>,
    tickets: Vec<Ticket>,
    /// Bytes of the frame, with header, in each chain.
    lens: [u32; CHAINS_MAX],
    walked: u32,
    /// Where the ring was before.
    mark: Option<Mark>,
}

impl Default for Gather {
    fn default() -> Gather {
        Gather {
            spans: Vec::with_capacity(CHAIN_SPANS_MAX),
            tickets: Vec::with_capacity(CHAINS_MAX),
            lens: [0; CHAINS_MAX],
            walked: 0,
            mark: None,
        }
    }
}

impl Gather {
    /// Descriptors that the last [`Self::find`] walked.
    pub(crate) fn walked(&self) -> u32 {
        self.walked
    }

    /// Chains that it found.
    pub(crate) fn chains(&self) -> u16 {
        self.tickets.len() as u16
    }

    /// Takes chains for `total` bytes from `ring`, the first one being in `chain`; one, or several
    /// when the driver `merges`. When they do not suffice the ring is as before.
    pub(crate) fn find(
        &mut self,
        ring: &mut Ring,
        chain: &mut Chain,
        total: u32,
        merges: bool,
    ) -> Result<(), Short> {
        self.spans.clear();
        self.walked = 0;
        self.mark = Some(ring.queue.mark());
        let found = self.walk(ring, chain, total, merges);
        if found.is_err() {
            self.put_back(ring);
        }
        found
    }

    fn walk(
        &mut self,
        ring: &mut Ring,
        chain: &mut Chain,
        total: u32,
        merges: bool,
    ) -> Result<(), Short> {
        let mut left = total;
        loop {
            self.walked += chain.walked();
            if chain.walked() > WALKED_MAX {
                // As in `put`: whoever sends pays for a walk.
                ring.queue.latch(Violation::ChainLoop { limit: WALKED_MAX });
                return Err(Short::NoBuffer);
            }
            let before = left;
            for span in chain.writable() {
                if left == 0 || self.spans.len() == self.spans.capacity() {
                    break;
                }
                self.spans.push(span.first(left));
                left -= span.len().min(left);
            }
            let Some(len) = self.lens.get_mut(self.tickets.len()) else {
                return Err(Short::SmallBuffers);
            };
            *len = before - left;
            self.tickets.push(ring.queue.advance(chain));
            if left == 0 {
                return Ok(());
            }
            let is_much = self.walked > WALKED_MAX || self.spans.len() == self.spans.capacity();
            if !merges || is_much || self.tickets.len() == CHAINS_MAX {
                return Err(Short::SmallBuffers);
            }
            if !ring.queue.peek(&ring.memory, chain) {
                return Err(Short::NoBuffer);
            }
        }
    }

    /// Copies `front` and `rest`, together as long as was asked for, into what was found. False when
    /// some piece is not in its map.
    pub(crate) fn fill(&self, memory: &GuestMap, front: &[u8], rest: &Rest<'_>) -> bool {
        let mut to = Pieces { memory, spans: self.spans.iter(), open: Span::default() };
        if !to.write(front) {
            return false;
        }
        match *rest {
            Rest::Private(bytes) => to.write(bytes),
            Rest::Guest(map, spans) => spans.iter().all(|span| to.copy(map, *span)),
        }
    }

    /// Gives the chains back, filled.
    pub(crate) fn complete(&mut self, ring: &mut Ring) {
        for (ticket, len) in self.tickets.drain(..).zip(&self.lens) {
            ring.queue.complete(ticket, *len);
        }
    }

    /// Puts them back as if they had never been taken.
    #[cold]
    pub(crate) fn put_back(&mut self, ring: &mut Ring) {
        if self.mark.take().is_some_and(|mark| ring.queue.rewind(mark, &mut self.tickets)) {
            return;
        }
        // Only a queue with a record of what is in flight cannot go back, and NICs have none.
        for ticket in self.tickets.drain(..) {
            ring.queue.abandon(ticket);
        }
    }
}

/// Buffers that are filled one after the other.
struct Pieces<'a> {
    memory: &'a GuestMap,
    spans: std::slice::Iter<'a, Span>,
    /// What is left of the one that is being filled.
    open: Span,
}

impl Pieces<'_> {
    /// The place for at most `len` bytes more.
    #[inline]
    fn next(&mut self, len: u32) -> Option<Span> {
        while self.open.is_empty() {
            self.open = *self.spans.next()?;
        }
        let place = self.open.first(len);
        self.open = self.open.after(place.len());
        Some(place)
    }

    fn write(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            // A frame is far shorter than 4 GiB.
            let Some(place) = self.next(bytes.len() as u32) else { return false };
            let Some((now, later)) = bytes.split_at_checked(place.len() as usize) else {
                return false;
            };
            if !self.memory.write(place, 0, now) {
                return false;
            }
            bytes = later;
        }
        true
    }

    fn copy(&mut self, map: &GuestMap, mut from: Span) -> bool {
        while !from.is_empty() {
            let Some(place) = self.next(from.len()) else { return false };
            if !self.memory.copy_from(place, map, from.first(place.len())) {
                return false;
            }
            from = from.after(place.len());
        }
        true
    }
}
