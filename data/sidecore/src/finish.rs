//! The end of a request: status to the guest, chain back to its ring, counted.
//!
//! Not what it shows in the ring (`publish`). Called by whoever learns of an end: `fetch`, `large`, `reap`, `stalls`.

use device::blk::Reply;
use request::{Op, Request, Status, Tag};
use schedule::Nanos;
use virtqueue::Ticket;

use crate::served::{DiskRole, Ring};

/// What was done with requests, counted in registers and added to the shared counters once.
#[derive(Default)]
pub(crate) struct Tally {
    ended: u64,
    reads: u64,
    writes: u64,
    flushes: u64,
    discards: u64,
    read_bytes: u64,
    written_bytes: u64,
    errors: u64,
}

impl DiskRole {
    /// Status to the guest, chain back to the ring. A queue whose health is lost gives the chain up
    /// and says nothing: what was copied may have been another page, and the guest's memory may be
    /// somebody else's.
    #[inline(always)]
    pub(crate) fn finish(
        &mut self,
        ring: &mut Ring,
        ticket: Ticket,
        reply: Reply,
        status: Status,
        tally: &mut Tally,
    ) {
        if ring.health.is_lost() {
            return give_up(ring, ticket, tally);
        }
        let written = self.blk.answer(&ring.memory, reply, status);
        ring.queue.complete(ticket, written);
        ring.unshown = true;
        tally.ended += 1;
        tally.errors += u64::from(status != Status::Ok);
    }

    /// A request that the back-end had has ended: how long it took, nanoseconds.
    pub(crate) fn end(&mut self, ring: &mut Ring, tag: Tag, status: Status, now: Nanos) -> u64 {
        let Some((request, _)) = self.slots.find(tag) else { return 0 };
        mark_read(ring, &request);
        let Some(owed) = self.slots.take(tag) else { return 0 };
        let mut tally = Tally::default();
        self.finish(ring, owed.ticket, owed.work.reply, status, &mut tally);
        tally.add_to(ring);
        now.since(owed.taken)
    }
}

impl Tally {
    #[inline(always)]
    pub(crate) fn count(&mut self, request: &Request<'_>) {
        match request.op {
            Op::Read => {
                self.reads += 1;
                self.read_bytes += request.len;
            }
            Op::Write { .. } => {
                self.writes += 1;
                self.written_bytes += request.len;
            }
            Op::Flush => self.flushes += 1,
            Op::Discard | Op::WriteZeroes { .. } => self.discards += 1,
        }
    }

    /// Takes a `count` back: the request stays in the ring and will be counted when it is taken.
    #[cold]
    pub(crate) fn uncount(&mut self, request: &Request<'_>) {
        match request.op {
            Op::Read => {
                self.reads -= 1;
                self.read_bytes -= request.len;
            }
            Op::Write { .. } => {
                self.writes -= 1;
                self.written_bytes -= request.len;
            }
            Op::Flush => self.flushes -= 1,
            Op::Discard | Op::WriteZeroes { .. } => self.discards -= 1,
        }
    }

    /// How many ended with an answer.
    #[inline(always)]
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    pub(crate) fn add_to(&self, ring: &Ring) {
        let counters = &ring.counters;
        counters.requests.add(self.ended);
        counters.reads.add(self.reads);
        counters.writes.add(self.writes);
        counters.flushes.add(self.flushes);
        counters.discards.add(self.discards);
        counters.read_bytes.add(self.read_bytes);
        counters.written_bytes.add(self.written_bytes);
        counters.errors.add(self.errors);
        counters.in_flight.set(ring.queue.in_flight().into());
    }
}

#[cold]
#[inline(never)]
fn give_up(ring: &mut Ring, ticket: Ticket, tally: &mut Tally) {
    ring.queue.abandon(ticket);
    tally.errors += 1;
}

/// What a read has brought is in the dirty log, also after an error: the kernel may have written a part.
#[inline]
pub(crate) fn mark_read(ring: &Ring, request: &Request<'_>) {
    if request.op == Op::Read && !ring.health.is_lost() {
        for segment in request.segments {
            ring.memory.mark_written(*segment);
        }
    }
}
