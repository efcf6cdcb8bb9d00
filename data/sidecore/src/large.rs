//! Requests that take longer than a piece of a visit may: done in slices, one a piece.
//!
//! Of a back-end that answers at once a queue has at most one, and serves nothing behind it meanwhile. One
//! that keeps requests says itself where they are cut: those whose next chunk is due stand in a line here
//! ([`Outcome::Turn`]), and go on before anything new is taken.

use std::collections::VecDeque;

use backend::{Io, Outcome, Started};
use device::blk::{Reply, Work};
use request::{Op, Request, Span, Status, Tag};
use schedule::{Budget, Nanos, Visited};
use virtqueue::{CHAIN_SPANS_MAX, Chain, Ticket};

use crate::done::Done;
use crate::fetch::NO_TAG;
use crate::finish::Tally;
use crate::places::disk_at;
use crate::served::{DiskRole, Ring};
use crate::sidecore::Sidecore;

/// Bytes that are copied in one go at most: 256 KiB, some 25 us. A multiple of every page and block size, so
/// that slices end where whole pages do.
pub(crate) const SLICE_BYTES: u64 = schedule::Piece::ALONE.slice_bytes;
/// A request in chunks that are copied here rests for so long after each, nanoseconds, where others ask little: a copy
/// of 64 KiB takes some tenth of that, with all that belongs to it. Without it whoever asks for one block after the
/// other waited for a copy each time.
pub(crate) const REST_NS: u64 = 400_000;
/// Bytes that are discarded or zeroed in one go: the kernel does that by whole pages.
const ZEROED_BYTES: u64 = 1 << 20;

/// The place of a queue's large requests. Memory is taken with the queue.
#[derive(Debug)]
pub(crate) struct Large {
    /// There is `owed`, or something in `turns`, or a round of requests that stalled (`stalls`).
    is_under_way: bool,
    /// Those that the back-end has, and that wait for a turn of this queue.
    turns: VecDeque<Tag>,
    /// The next of them is not before.
    rests_until: Nanos,
    owed: Option<Owed>,
    /// What is left of its segments, from `Owed::next` on.
    segments: Box<[Span]>,
}

#[derive(Debug)]
struct Owed {
    ticket: Ticket,
    work: Work,
    done_bytes: u64,
    next: usize,
    segments: usize,
}

impl Large {
    /// Room for `slots` requests that a back-end keeps; for none, when it answers at once.
    pub(crate) fn new(slots: usize) -> Large {
        let segments = if slots > 0 { 0 } else { CHAIN_SPANS_MAX };
        let segments = vec![Span::default(); segments].into_boxed_slice();
        let turns = VecDeque::with_capacity(slots);
        let rests_until = Nanos(0);
        Large { is_under_way: false, turns, rests_until, owed: None, segments }
    }

    /// Whether a request is under way that goes on when its queue is visited.
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// Whether one is under way of which a back-end has nothing.
    pub(crate) fn is_all_here(&self) -> bool {
        self.owed.is_some()
    }

    /// Ends the one that is all here, with what its answer needs.
    pub(crate) fn take(&mut self) -> Option<(Ticket, Reply)> {
        let owed = self.owed.take()?;
        self.is_under_way = !self.turns.is_empty();
        Some((owed.ticket, owed.work.reply))
    }

    /// A request that the back-end has waits for a turn.
    #[cold]
    pub(crate) fn line_up(&mut self, tag: Tag) {
        self.turns.push_back(tag);
        self.is_under_way = true;
    }

    /// Whether anything is under way, as far as it is known here or `also`.
    pub(crate) fn keep_under_way(&mut self, also: bool) {
        self.is_under_way = also || self.owed.is_some() || self.has_turns();
    }

    /// Whether one that the back-end has waits for a turn.
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whether those that the back-end has leave a visit, in pieces of `slice_bytes`, to others. For [`REST_NS`] at most.
    pub(crate) fn has_rest(&self, slice_bytes: u64, now: Nanos) -> bool {
        let is_watchful = slice_bytes < SLICE_BYTES;
        is_watchful && now < self.rests_until && self.has_turns()
    }

    /// When its queue is visited next, where those that ask little are watched: once in the middle of the rest, for new
    /// requests, and when it is over.
    pub(crate) fn next_look(&self, now: Nanos) -> Option<Nanos> {
        let rests_ns = self.rests_until.since(now);
        let until = if rests_ns > REST_NS / 2 { rests_ns - REST_NS / 2 } else { rests_ns };
        (rests_ns > 0 && self.has_turns()).then(|| now.after(until))
    }

    /// Gives up the one under way.
    pub(crate) fn forfeit(&mut self) {
        if let Some(owed) = self.owed.take() {
            owed.ticket.forfeit();
        }
        self.turns.clear();
        self.is_under_way = false;
    }
}

impl DiskRole {
    /// Keeps the request in `chain`, which was taken, to be worked on by [`Self::slice`].
    #[cold]
    pub(crate) fn begin_large(&mut self, chain: &Chain, work: &Work, ticket: Ticket) {
        let request = work.request(chain);
        // A chain has no more spans than the place.
        let segments = request.segments.len().min(self.large.segments.len());
        for (kept, segment) in self.large.segments.iter_mut().zip(request.segments) {
            *kept = *segment;
        }
        self.large.owed = Some(Owed { ticket, work: *work, done_bytes: 0, next: 0, segments });
        self.large.is_under_way = true;
    }

    /// Goes on with what is under way, within `budget`: how many requests that were, and how many bytes.
    #[cold]
    pub(crate) fn go_on(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        (budget, slice_bytes): (Budget, u64),
        now: Nanos,
        tally: &mut Tally,
    ) -> (u32, u64) {
        if self.large.owed.is_some() {
            return (1, self.slice(ring, io, slice_bytes, now, tally));
        }
        self.backend.goes_on_by(slice_bytes);
        let (mut requests, mut bytes) = (0, 0);
        while requests < budget.requests
            && bytes < budget.bytes
            && io.room() > 0
            && !self.large.has_rest(slice_bytes, now)
            && let Some(tag) = self.large.turns.pop_front()
        {
            requests += 1;
            bytes += self.take_turn(ring, io, tag, now);
        }
        self.large.keep_under_way(self.stalls.is_trying());
        (requests, bytes)
    }

    /// The rest of a piece in which `visited` was done so far, and in which copies rest: new requests are taken, within
    /// `budget`. Those of a queue with a limit are not, which is not asked meanwhile.
    #[cold]
    #[inline(never)]
    pub(crate) fn fetch_resting(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        chain: &mut Chain,
        (budget, slice_bytes, visited): (Budget, u64, Visited),
        now: Nanos,
    ) -> Done {
        let requests = budget.requests.saturating_sub(visited.requests);
        let bytes = budget.bytes.saturating_sub(visited.bytes);
        let rests = Visited { more: true, later: true, ..visited };
        if ring.gate.is_some() || requests == 0 || bytes == 0 {
            return Done::new(rests, 0);
        }
        self.large.is_under_way = false;
        let left = Budget { requests, bytes, ..budget };
        let done = self.fetch(ring, io, chain, left, slice_bytes, now);
        self.large.is_under_way = true;
        let beside = done.visited();
        let (requests, bytes) = (visited.requests + beside.requests, visited.bytes + beside.bytes);
        Done::new(Visited { requests, bytes, ..rests }, done.ended())
    }

    /// The next chunk of a request that the back-end has; how many bytes that was.
    fn take_turn(&mut self, ring: &mut Ring, io: &mut Io, tag: Tag, now: Nanos) -> u64 {
        let Some((request, owed)) = self.slots.find(tag) else { return 0 };
        let progress = &mut owed.progress;
        let turn = self.backend.go_on(io, &request, &ring.memory, tag, progress, now.0);
        if turn.copies {
            self.large.rests_until = now.after(REST_NS);
        }
        match turn.outcome {
            Outcome::Pending => {}
            Outcome::Turn => self.large.turns.push_back(tag),
            Outcome::Stalled(stall) => self.stall(ring, io, tag.slot, stall, now),
            // Who goes on with one hears of its end at once.
            Outcome::Done(status) | Outcome::Passed(status) => {
                let took = self.end(ring, tag, status, now);
                ring.counters.latency.add(took, 1);
            }
        }
        if io.is_laden() {
            // What it costs is this queue's. An error comes again at the pass's own `enter`.
            let _ = io.hand_over();
        }
        turn.bytes
    }

    /// Does the next slice of the large request; how many bytes that was. Ends it when it was the
    /// last one, or failed. Of what is copied a slice has `slice_bytes`, which divide what pages have or are
    /// a multiple of that.
    fn slice(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        slice_bytes: u64,
        now: Nanos,
        tally: &mut Tally,
    ) -> u64 {
        let Large { owed: Some(owed), segments, .. } = &mut self.large else { return 0 };
        let Work { op, offset, len, reply, .. } = owed.work;
        let offset = offset + owed.done_bytes;
        let slice_bytes = match op {
            Op::Discard | Op::WriteZeroes { .. } => ZEROED_BYTES,
            Op::Read | Op::Write { .. } | Op::Flush => slice_bytes,
        };
        let slice = (slice_bytes - offset % slice_bytes).min(len - owed.done_bytes);
        let segments = segments.get_mut(..owed.segments).unwrap_or_default();
        let cut = cut(segments.get_mut(owed.next..).unwrap_or_default(), slice);
        let whole = cut.and_then(|(index, bytes)| {
            let last = segments.get_mut(owed.next + index)?;
            let whole = *last;
            *last = whole.first(bytes);
            Some(whole)
        });
        let end = cut.map_or(owed.next, |(index, _)| owed.next + index + 1);
        let part = segments.get(owed.next..end).unwrap_or_default();
        let request = Request { op, offset, len: slice, segments: part };
        let started = match ring.health.is_lost() {
            true => Started::Done(Status::IoError),
            false => self.backend.submit(io, &request, &ring.memory, NO_TAG),
        };
        if let (Some(whole), Some((index, bytes))) = (whole, cut) {
            let stalls = matches!(started, Started::Stalled(_));
            if let Some(last) = segments.get_mut(owed.next + index) {
                *last = if stalls { whole } else { whole.after(bytes) };
            }
            owed.next += if stalls { 0 } else { index };
        }
        if let Started::Stalled(stall) = started {
            self.stall_large(ring, io, stall, now);
            return 0;
        }
        owed.done_bytes += slice;
        let status = match started {
            Started::Done(Status::Ok) if owed.done_bytes < len => return slice,
            Started::Done(status) => status,
            // A back-end that answers at once has no "later"; silence is a failure.
            Started::Pending | Started::Turn | Started::Stalled(_) => Status::IoError,
        };
        self.large.is_under_way = false;
        self.stalls.large_ended();
        if let Some(Owed { ticket, .. }) = self.large.owed.take() {
            self.finish(ring, ticket, reply, status, tally);
        }
        slice
    }
}

impl Sidecore {
    /// The next chunk of a request waits for a turn of this queue, or one that stalled does.
    #[cold]
    pub(crate) fn poll_begun(&mut self, queue: u16, now: Nanos) {
        if self.schedule.has_begun(queue, now)
            && let Some((ring, _)) = disk_at(&mut self.places, queue)
            && !ring.health.is_lost()
        {
            ring.queue.disarm();
        }
        if self.schedule.watches_others(queue) {
            self.rest_from_copies(queue, now);
        }
    }

    /// A queue whose next copy is not due is visited when it is. Those that ask little do not wait for looks at it.
    #[cold]
    pub(crate) fn rest_from_copies(&mut self, queue: u16, now: Nanos) {
        let Some((_, disk)) = disk_at(&mut self.places, queue) else { return };
        if let Some(until) = disk.large.next_look(now) {
            self.schedule.wait_until(queue, until);
        }
    }
}

/// Which of `segments` holds the last of the first `bytes` bytes, and how many of them it holds.
/// `None` when there are not so many, as for requests without data.
fn cut(segments: &[Span], bytes: u64) -> Option<(usize, u32)> {
    let mut left = bytes;
    for (index, segment) in segments.iter().enumerate() {
        match left.checked_sub(segment.len().into()) {
            Some(rest) if rest > 0 => left = rest,
            _ => return Some((index, left as u32)),
        }
    }
    None
}
