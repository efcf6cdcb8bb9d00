//! One queue's way to a disk at an IOhost.
//!
//! A request of more than a slot's bytes is split: up to [`CHUNKS_MAX`] of its chunks are under way together, each in a slot
//! of its own, and the next one takes the slot of one that ended. It ends when all of them have, with the worst of
//! their statuses. So one free slot is room for any request.
//!
//! A write's bytes are copied into a slot when its chunk is submitted, and those of a read out of it when it was reaped. In
//! between nothing here, and nothing at the IOhost, refers to the guest's memory: a queue may leave while requests of it
//! are under way.

use guest_memory::GuestMap;
use remote::client::Rejected;
use request::{Op, Request, Status, Tag};

use super::LinkKey;
use crate::disk::RemoteDisk;
use crate::io::{Io, LinkPlace};
use crate::segments::{fetch, store};
use crate::{Outcome, Started};

/// Requests of a queue that wait for their ends at most; as many as a queue has slots.
const SLOTS: usize = 256;
/// Chunks of one request under way together: 1 MiB of slots of the largest size.
const CHUNKS_MAX: u16 = 8;
/// Bytes of one chunk that carries none of them, at most.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// One queue's way to a remote disk.
#[derive(Debug)]
pub struct Remote {
    link: LinkKey,
    disk: u16,
    size_bytes: u64,
    /// Bytes of one discard, and of one that writes zeroes, as its IOhost takes them.
    ranges: [u64; 2],
    is_readonly: bool,
    place: Option<LinkPlace>,
    /// By slot of the queue.
    flights: Box<[Flight]>,
    /// Bytes of writes among them.
    promised: u64,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// Bytes of it that were submitted.
    next: u64,
    chunks: u16,
    /// The worst so far.
    status: Status,
}

const NEW: Flight = Flight { next: 0, chunks: 0, status: Status::Ok };

impl Remote {
    pub(crate) fn new(remote: &RemoteDisk, size_bytes: u64) -> Remote {
        let RemoteDisk { link, disk, limits, readonly: is_readonly, .. } = *remote;
        // What it does not do at all it refuses itself.
        let bytes = |sectors: u32| match u64::from(sectors) * 512 {
            0 => RANGE_BYTES_MAX,
            bytes => bytes.min(RANGE_BYTES_MAX),
        };
        let ranges = [limits.discard_sectors_max, limits.zeroes_sectors_max].map(bytes);
        let (place, flights) = (None, vec![NEW; SLOTS].into());
        Remote { link, disk, size_bytes, ranges, is_readonly, place, flights, promised: 0 }
    }

    pub(crate) fn join(&mut self, io: &mut Io) -> std::io::Result<()> {
        if !self.place.is_some_and(|place| io.gave_link(place)) {
            self.place = Some(io.join_link(self.link, self.disk)?);
        }
        Ok(())
    }

    pub(crate) fn leave(&mut self, io: &mut Io) {
        if let Some(place) = self.place.take()
            && let Some(link) = io.link_at(place)
        {
            link.leave(self.disk, place.user);
            link.promise(self.disk, -(self.promised as i64));
        }
        self.promised = 0;
        self.flights.fill(NEW);
    }

    #[inline]
    pub(crate) fn has_room(&self, io: &Io) -> bool {
        self.place.is_none_or(|place| io.link_has_room(place, self.disk))
    }

    pub(crate) fn submit(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
    ) -> Started {
        if let Err(status) = self.check(request) {
            return Started::Done(status);
        }
        if self.join(io).is_err() {
            return Started::Done(Status::IoError);
        }
        let mut flight = NEW;
        self.promise(io, request, true);
        self.proceed(io, request, memory, tag, &mut flight);
        self.settle(io, request, tag, flight)
    }

    /// A chunk of it ended, which `io` has reaped just now.
    pub(crate) fn completed(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
    ) -> Outcome {
        let Some(mut flight) = self.flights.get(usize::from(tag.slot)).copied() else {
            return Outcome::Done(Status::IoError);
        };
        let ended = io.end_chunk(|skip, status, bytes| {
            let is_read = request.op == Op::Read && status == Status::Ok;
            // Not into memory that may be somebody else's; the sidecore says no more to that guest either.
            let fails = is_read
                && (memory.health().is_lost() || !store(memory, request.segments, skip, bytes));
            if fails { Status::IoError } else { status }
        });
        flight.status = worse(flight.status, ended.unwrap_or(Status::IoError));
        flight.chunks = flight.chunks.saturating_sub(1);
        if flight.status == Status::Ok && !memory.health().is_lost() {
            self.proceed(io, request, memory, tag, &mut flight);
        } else if flight.next < request.len {
            flight.status = worse(flight.status, Status::IoError);
        }
        self.settle(io, request, tag, flight).into()
    }

    /// A write begins or ends. Its chunks come as slots are free, and copies of all of them are to have room.
    fn promise(&mut self, io: &mut Io, request: &Request<'_>, begins: bool) {
        let Op::Write { .. } = request.op else { return };
        let bytes = if begins { request.len as i64 } else { -(request.len as i64) };
        self.promised = self.promised.saturating_add_signed(bytes);
        if let Some(link) = self.place.and_then(|place| io.link_at(place)) {
            link.promise(self.disk, bytes);
        }
    }

    fn settle(&mut self, io: &mut Io, request: &Request<'_>, tag: Tag, flight: Flight) -> Started {
        if flight.chunks == 0 {
            self.promise(io, request, false);
        }
        if let Some(place) = self.flights.get_mut(usize::from(tag.slot)) {
            *place = flight;
        }
        if flight.chunks == 0 { Started::Done(flight.status) } else { Started::Pending }
    }

    /// Submits what is left of it, as far as there are slots.
    fn proceed(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        flight: &mut Flight,
    ) {
        let found = self.place.and_then(|place| Some((place, io.link_at(place)?)));
        let Some((place, link)) = found else {
            flight.status = Status::IoError;
            return;
        };
        let most = match request.op {
            Op::Read | Op::Write { .. } => link.slot_bytes(self.disk).into(),
            Op::Flush => RANGE_BYTES_MAX,
            Op::Discard => self.ranges[0],
            Op::WriteZeroes { .. } => self.ranges[1],
        };
        let is_flush = request.op == Op::Flush && flight.next == 0 && flight.chunks == 0;
        while flight.chunks < CHUNKS_MAX && (flight.next < request.len || is_flush) {
            let skip = flight.next;
            let len = (request.len - skip).min(most) as u32;
            let chunk = (request.op, request.offset + skip, len);
            let who = (self.disk, place.user);
            match link.submit(who, tag, chunk, skip, |into| {
                fetch(memory, request.segments, skip, into) && !memory.health().is_lost()
            }) {
                Ok(()) => {
                    flight.chunks += 1;
                    // A flush has no bytes, and is submitted once.
                    flight.next += u64::from(len).max(1);
                }
                // One of it is under way, whose slot is the next chunk's.
                Err(Rejected::Full) if flight.chunks > 0 => return,
                Err(_) => {
                    flight.status = Status::IoError;
                    return;
                }
            }
            if is_flush {
                return;
            }
        }
    }

    /// Refuses what no later step needs to think of.
    fn check(&self, request: &Request<'_>) -> Result<(), Status> {
        let end = request.offset.checked_add(request.len);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(Status::IoError);
        }
        match request.op {
            Op::Flush => Ok(()),
            _ if request.op != Op::Read && self.is_readonly => Err(Status::IoError),
            _ if request.len == 0 => Err(Status::Ok),
            Op::Read | Op::Write { .. } => {
                let sum: u64 = request.segments.iter().map(|span| u64::from(span.len())).sum();
                if sum == request.len { Ok(()) } else { Err(Status::IoError) }
            }
            Op::Discard | Op::WriteZeroes { .. } => Ok(()),
        }
    }
}

fn worse(one: Status, other: Status) -> Status {
    match (one, other) {
        (Status::IoError, _) | (_, Status::IoError) => Status::IoError,
        (Status::Unsupported, _) | (_, Status::Unsupported) => Status::Unsupported,
        (Status::Ok, Status::Ok) => Status::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_status_wins() {
        let all = [Status::Ok, Status::Unsupported, Status::IoError];
        for (at, one) in all.into_iter().enumerate() {
            for (other_at, other) in all.into_iter().enumerate() {
                assert_eq!(worse(one, other), all[at.max(other_at)]);
            }
        }
    }
}
