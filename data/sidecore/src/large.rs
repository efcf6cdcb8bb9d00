//! Requests that take longer than a piece of a visit may: done in slices, one a piece.
//!
//! Only for back-ends that answer at once; the others hand a request of any size to the kernel in one
//! go. A queue has at most one, and serves nothing behind it meanwhile.

use backend::{Io, Outcome};
use device::blk::Work;
use request::{Op, Request, Span, Status};
use virtqueue::{CHAIN_SPANS_MAX, Chain, Ticket};

use crate::fetch::{NO_TAG, Tally};
use crate::served::{DiskRole, Ring};

/// Bytes that are copied in one go at most: 256 KiB, some 25 us. A multiple of every page and block size, so
/// that slices end where whole pages do.
pub(crate) const SLICE_BYTES: u64 = schedule::Piece::ALONE.slice_bytes;
/// Bytes that are discarded or zeroed in one go: the kernel does that by whole pages.
const ZEROED_BYTES: u64 = 1 << 20;

/// The place of a queue's large request. Memory is taken with the queue.
#[derive(Debug)]
pub(crate) struct Large {
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
    /// `none` for a back-end that keeps requests: it never needs the place.
    pub(crate) fn new(none: bool) -> Large {
        let segments = if none { 0 } else { CHAIN_SPANS_MAX };
        Large { owed: None, segments: vec![Span::default(); segments].into_boxed_slice() }
    }

    /// Whether a request is under way.
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.owed.is_some()
    }

    /// Gives up the one under way.
    pub(crate) fn forfeit(&mut self) {
        if let Some(owed) = self.owed.take() {
            owed.ticket.forfeit();
        }
    }
}

impl DiskRole {
    /// Takes the request in `chain`, to be worked on by [`Self::slice`].
    #[cold]
    pub(crate) fn begin_large(&mut self, ring: &mut Ring, chain: &Chain, work: &Work) {
        let request = work.request(chain);
        // A chain has no more spans than the place.
        let segments = request.segments.len().min(self.large.segments.len());
        for (kept, segment) in self.large.segments.iter_mut().zip(request.segments) {
            *kept = *segment;
        }
        let ticket = ring.queue.advance(chain);
        self.large.owed = Some(Owed { ticket, work: *work, done_bytes: 0, next: 0, segments });
    }

    /// Does the next slice of the large request; how many bytes that was. Ends it when it was the
    /// last one, or failed. Of what is copied a slice has `slice_bytes`, which divide what pages have or are
    /// a multiple of that.
    pub(crate) fn slice(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        slice_bytes: u64,
        tally: &mut Tally,
    ) -> u64 {
        let Large { owed: Some(owed), segments } = &mut self.large else { return 0 };
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
        let outcome = match ring.health.is_lost() {
            true => Outcome::Done(Status::IoError),
            false => self.backend.submit(io, &request, &ring.memory, NO_TAG),
        };
        if let (Some(whole), Some((index, bytes))) = (whole, cut) {
            owed.next += index;
            if let Some(last) = segments.get_mut(owed.next) {
                *last = whole.after(bytes);
            }
        }
        owed.done_bytes += slice;
        let status = match outcome {
            Outcome::Done(Status::Ok) if owed.done_bytes < len => return slice,
            Outcome::Done(status) => status,
            // A back-end that answers at once has no "later"; silence is a failure.
            Outcome::Pending => Status::IoError,
        };
        if let Some(Owed { ticket, .. }) = self.large.owed.take() {
            self.finish(ring, ticket, reply, status, tally);
        }
        slice
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
