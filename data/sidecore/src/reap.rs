//! Completions of back-ends, each by its tag: status to the guest, chain back to its ring.

use backend::{Io, Outcome};
use request::{Op, Request, Status, Tag};
use schedule::Nanos;

use crate::fetch::Tally;
use crate::served::{DiskRole, Ring};

impl DiskRole {
    /// One completion of the kernel with its result. A stale tag does nothing. True when the
    /// request ended; otherwise the back-end went on with it.
    pub(crate) fn reap(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        tag: Tag,
        result: i32,
        now: Nanos,
    ) -> bool {
        let Some((request, owed)) = self.slots.find(tag) else { return false };
        let progress = &mut owed.progress;
        let outcome = self.backend.completed(io, &request, &ring.memory, tag, result, progress);
        let status = match outcome {
            Outcome::Done(status) => status,
            Outcome::Pending => return false,
            Outcome::Turn => {
                self.large.line_up(tag);
                return false;
            }
            Outcome::Stalled(stall) => {
                mark_read(ring, &request);
                self.stall(ring, io, tag.slot, stall, now);
                return false;
            }
        };
        match self.end(ring, tag, status, now) {
            // The kernel had it at once: how long it took is known at the next pass.
            0 => self.unclocked += 1,
            took => ring.counters.latency.add(took, 1),
        }
        true
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

/// What a read has brought is in the dirty log, also after an error: the kernel may have written a part.
#[inline]
fn mark_read(ring: &Ring, request: &Request<'_>) {
    if request.op == Op::Read && !ring.health.is_lost() {
        for segment in request.segments {
            ring.memory.mark_written(*segment);
        }
    }
}
