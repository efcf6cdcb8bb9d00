//! Ring to requests, within a visit's budget; what a back-end answers at once is completed here.

use backend::{Io, Progress, Started};
use device::blk::{Parsed, Work};
use request::{Op, Status, Tag};
use schedule::{Budget, Nanos, Piece, Visited};
use virtqueue::{Chain, Ticket};

use crate::done::Done;
use crate::finish::Tally;
use crate::served::{DiskRole, Ring};
use crate::slots::Owed;

/// How the next chain was received.
enum Taken {
    /// Nothing there.
    Empty,
    /// It stays in the ring: no slot or no room.
    Held,
    /// It stays in the ring: with it the piece would be too long.
    Later,
    /// It is under way, and goes on with the next piece.
    Begun,
    /// A first part of so many bytes; it goes on with the next piece.
    Cut(u64),
    /// A request of so many bytes.
    Bytes(u64),
}

impl DiskRole {
    /// Takes requests until the ring is empty, the budget is used, or the back-end is full; how many ended.
    /// Bounded by the budget; reads no clock. Completions are written but not shown. A request of more than
    /// `slice_bytes` to a back-end that answers at once is done in slices, one a call.
    pub(crate) fn fetch(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        chain: &mut Chain,
        budget: Budget,
        slice_bytes: u64,
        now: Nanos,
    ) -> Done {
        let mut tally = Tally::default();
        let mut visited = Visited { more: true, ..Visited::default() };
        let slice_bytes = self.backend.slice_bytes(slice_bytes);
        if self.large.is_under_way() {
            if !self.stalls.has_large() {
                let how_far = (budget, slice_bytes);
                (visited.requests, visited.bytes) = self.go_on(ring, io, how_far, now, &mut tally);
            }
            if self.stalls.is_trying() && !self.large.has_turns() {
                return self.fetch_beside(ring, io, chain, (budget, slice_bytes, visited), now);
            }
            if self.large.is_under_way() {
                tally.add_to(ring);
                if self.large.has_rest(slice_bytes, now) {
                    let so_far = (budget, slice_bytes, visited);
                    return self.fetch_resting(ring, io, chain, so_far, now);
                }
                // It stalled, or there was no room: a visit that does nothing must not go on.
                visited.held = visited.requests == 0;
                return Done::new(visited, tally.ended());
            }
        }
        while visited.requests < budget.requests && visited.bytes < budget.bytes {
            let part = (visited.bytes, slice_bytes);
            match self.take_one(ring, io, chain, now, part, &mut tally) {
                Taken::Empty => {
                    visited.more = false;
                    break;
                }
                Taken::Held => {
                    visited.held = true;
                    break;
                }
                Taken::Later => break,
                Taken::Begun => {
                    visited.requests += 1;
                    if !self.stalls.has_large() {
                        let how_far = (budget, slice_bytes);
                        visited.bytes += self.go_on(ring, io, how_far, now, &mut tally).1;
                    }
                    break;
                }
                Taken::Cut(bytes) => {
                    visited.requests += 1;
                    visited.bytes += bytes;
                    break;
                }
                Taken::Bytes(bytes) => {
                    visited.requests += 1;
                    visited.bytes += bytes;
                    if visited.requests.is_multiple_of(Piece::SHOW_EVERY) && !ring.health.is_lost()
                    {
                        ring.queue.show();
                    }
                }
            }
        }
        tally.add_to(ring);
        Done::new(visited, tally.ended())
    }

    #[inline(always)]
    fn take_one(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        chain: &mut Chain,
        now: Nanos,
        (done_bytes, slice_bytes): (u64, u64),
        tally: &mut Tally,
    ) -> Taken {
        let at_once = self.backend.answers_at_once();
        let has_room =
            at_once || self.slots.has_room() && io.room() > 0 && self.backend.has_room(io);
        if !has_room {
            return Taken::Held;
        }
        if !ring.queue.peek(&ring.memory, chain) {
            return Taken::Empty;
        }
        let work = match self.blk.parse(&ring.memory, chain) {
            Ok(Parsed::Work(work)) => work,
            Ok(Parsed::Answer(reply, status)) => {
                if status != Status::Ok {
                    self.refused_bytes = self.refused_bytes.wrapping_add(asked_bytes(chain));
                }
                let ticket = ring.queue.advance(chain);
                self.finish(ring, ticket, reply, status, tally);
                return Taken::Bytes(walk_bytes(chain));
            }
            Err(violation) => {
                ring.queue.latch(violation);
                return Taken::Empty;
            }
        };
        // After the last read of what the request is, and before anything is done for it: a header
        // on a page that was lost says "sector 0".
        if ring.health.is_lost() {
            return Taken::Empty;
        }
        if at_once {
            if work.len > Piece::SMALL_BYTES && work.len > slice_bytes.saturating_sub(done_bytes) {
                return self.take_large(ring, chain, &work, done_bytes, tally);
            }
            let request = work.request(chain);
            tally.count(&request);
            let ticket = ring.queue.advance(chain);
            let started = self.backend.submit(io, &request, &ring.memory, NO_TAG);
            let Started::Done(status) = started else {
                return self.put_off(ring, io, chain, (&work, ticket), started, now);
            };
            self.finish(ring, ticket, work.reply, status, tally);
            return Taken::Bytes(work.len + walk_bytes(chain));
        }
        self.start(ring, io, chain, &work, now, tally)
    }

    /// A request that does not fit what is left of this piece: has the next one for itself, or, when
    /// it has this one, is begun.
    #[cold]
    fn take_large(
        &mut self,
        ring: &mut Ring,
        chain: &Chain,
        work: &Work,
        done_bytes: u64,
        tally: &mut Tally,
    ) -> Taken {
        if done_bytes > 0 {
            return Taken::Later;
        }
        tally.count(&work.request(chain));
        let ticket = ring.queue.advance(chain);
        self.begin_large(chain, work, ticket);
        Taken::Begun
    }

    /// A back-end that answers at once did not: the request is tried again later, as the large one.
    #[cold]
    #[inline(never)]
    fn put_off(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        chain: &Chain,
        (work, ticket): (&Work, Ticket),
        started: Started,
        now: Nanos,
    ) -> Taken {
        self.begin_large(chain, work, ticket);
        if let Started::Stalled(stall) = started {
            self.stall_large(ring, io, stall, now);
        }
        Taken::Begun
    }

    /// Hands a request to a back-end that may keep it.
    #[inline(never)]
    fn start(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        chain: &Chain,
        work: &Work,
        now: Nanos,
        tally: &mut Tally,
    ) -> Taken {
        let request = work.request(chain);
        tally.count(&request);
        let tag = self.slots.next_tag(self.place).filter(|_| self.slots.admits(&request));
        let Some(tag) = tag else {
            tally.uncount(&request);
            return Taken::Held;
        };
        let ticket = ring.queue.advance(chain);
        let started = self.backend.submit(io, &request, &ring.memory, tag);
        match started {
            Started::Done(status) => self.finish(ring, ticket, work.reply, status, tally),
            Started::Pending | Started::Turn | Started::Stalled(_) => {
                let progress = Progress::default();
                let owed = Owed { ticket, work: *work, progress, taken: now };
                if let Err(owed) = self.slots.keep(owed, request.segments) {
                    // `fits` was asked above, so this is not reached; the guest is answered anyway.
                    self.finish(ring, owed.ticket, owed.work.reply, Status::IoError, tally);
                } else if let Started::Stalled(stall) = started {
                    self.stall(ring, io, tag.slot, stall, now);
                } else if started == Started::Turn {
                    return self.cut(tag, chain, work);
                }
            }
        }
        if io.is_laden() {
            // What it costs is this queue's. An error comes again at the pass's own `enter`.
            let _ = io.hand_over();
        }
        let bytes = match work.op {
            Op::Read | Op::Write { .. } => self.backend.first_bytes(work.len),
            Op::Flush | Op::Discard | Op::WriteZeroes { .. } => work.len,
        };
        Taken::Bytes(bytes + walk_bytes(chain))
    }
}

impl DiskRole {
    /// A first part of a request is done, and the rest waits for its turns.
    #[cold]
    #[inline(never)]
    fn cut(&mut self, tag: Tag, chain: &Chain, work: &Work) -> Taken {
        self.large.line_up(tag);
        Taken::Cut(self.backend.begun_bytes(tag, work.len) + walk_bytes(chain))
    }
}

/// What walking the chain cost, in bytes of a visit's budget: finding and checking a descriptor, and
/// beginning a copy of it, takes as long as copying 256 to 400 bytes, as the caches happen to lie (A31:
/// beside chains of one-byte buffers a neighbour had a quarter of its rate when they were charged 32 bytes
/// each, and between 78 and 104% of it with 256). The charge is above all of that.
#[inline]
fn walk_bytes(chain: &Chain) -> u64 {
    u64::from(chain.walked()) * WALK_BYTES
}

/// What a refused request asked for, for its limit: a guest that asks for what cannot be is no cheaper than one
/// that asks for what can.
#[cold]
fn asked_bytes(chain: &Chain) -> u64 {
    chain.readable_bytes().saturating_add(chain.writable_bytes()).min(REFUSED_BYTES_MAX)
}

/// A group's others must not wait for what no disk could have done.
const REFUSED_BYTES_MAX: u64 = 64 << 20;

/// Bytes that a descriptor counts as.
const WALK_BYTES: u64 = 512;

/// The tag of a request that no completion will ever name.
pub(crate) const NO_TAG: request::Tag =
    request::Tag { queue: u16::MAX, slot: u16::MAX, generation: u32::MAX };
