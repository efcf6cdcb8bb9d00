//! Which way the next chunk of a transfer goes, how many bytes it has, and what that costs whom.
//!
//! | chunk | way | at most | the kernel's chunk is done by |
//! |---|---|---|---|
//! | aligned | past the page cache | [`CHUNK_BYTES`] | the sidecore, which pins pages and copies nothing |
//! | the guest's buffers are not aligned | past it, through a buffer of ours | [`BOUNCE_BYTES`] | the sidecore, which copies |
//! | the place on the disk is not, or `cache = "page"` | through the page cache | [`SHORT_BYTES`] | the sidecore, in the call that hands it over |
//! | as above, longer | through the page cache | [`CHUNK_BYTES`] | a thread of the kernel's |
//!
//! So what a sidecore spends on one chunk has a bound, and each but the first chunk waits for a turn of its
//! queue ([`Outcome::Turn`]). Not here: what the kernel answers (`judge`), who may write at all (`writers`).

use guest_memory::GuestMap;
use request::{Op, Request, Tag};

use super::{Asks, File, Next, Progress, Sent, Step};
use crate::io::{Io, Load, Place, Wait};
use crate::segments::{fetch, store};
use crate::sys::{BOUNCE_BYTES, Command};
use crate::{Started, Turn};

/// Bytes of one chunk at most: 256 pages to pin. A multiple of every alignment, so that the next chunk is as
/// aligned as this one.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes through the page cache that a sidecore copies itself: some 10 us, which is what waking a thread
/// for it would cost.
const SHORT_BYTES: u64 = 64 << 10;
/// Starting a transfer past the page cache costs a page what copying a quarter of it would.
const PINNING: u64 = 4;

/// The way of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Past the page cache.
    Direct,
    /// Past it, through a buffer of ours.
    Bounced,
    /// Through it.
    Cached,
}

/// A buffer of ours that a request has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    at: u8,
    /// Bytes of the disk in it, that the guest has not got yet.
    read: u32,
}

/// Whose command is pushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) place: Place,
    pub(super) tag: Tag,
    /// It has waited, and those that wait still came later.
    pub(super) resumed: bool,
}

impl Way {
    /// Bytes of one chunk.
    pub(super) fn most(self) -> u64 {
        match self {
            Way::Direct | Way::Cached => CHUNK_BYTES,
            Way::Bounced => BOUNCE_BYTES,
        }
    }
}

/// Whether a request takes more than one chunk, whatever its buffers.
#[inline]
pub(super) fn is_long(request: &Request<'_>) -> bool {
    request.len > CHUNK_BYTES
}

impl File {
    /// The way of what is left of a transfer. A write past the page cache needs its turn besides.
    #[inline]
    pub(super) fn way(
        &self,
        request: &Request<'_>,
        progress: &Progress,
        asks: Option<Asks>,
    ) -> Way {
        if progress.cached_only || self.opened.direct().is_none() {
            return Way::Cached;
        }
        let (mut bits, mut addresses) = (request.offset + progress.done, 0);
        let mut skip = progress.done;
        for segment in request.segments {
            let skipped = skip.min(segment.len().into()) as u32;
            skip -= u64::from(skipped);
            let segment = segment.after(skipped);
            if !segment.is_empty() {
                bits |= u64::from(segment.len());
                addresses |= segment.host_address() as u64;
            }
        }
        if self.opened.is_aligned(bits, addresses) {
            return Way::Direct;
        }
        self.odd(request, progress, asks)
    }

    #[cold]
    fn odd(&self, request: &Request<'_>, progress: &Progress, asks: Option<Asks>) -> Way {
        let bits = (request.offset + progress.done) | (request.len - progress.done);
        let bounces = asks.is_some_and(|asks| asks.bounces) && self.opened.is_aligned(bits, 0);
        if bounces { Way::Bounced } else { Way::Cached }
    }

    /// Queues a command of its own bytes: with the load that its way means.
    #[inline]
    pub(super) fn push(
        &mut self,
        io: &mut Io,
        Who { place, tag, resumed }: Who,
        command: &Command<'_>,
        direct: bool,
    ) -> Result<Sent, Option<Wait>> {
        let bytes = match command {
            Command::Transfer { most, .. } => *most,
            Command::Zeroes { len, .. } => *len,
            Command::Sync | Command::Allocate { .. } | Command::Bounced { .. } => 0,
        };
        let load = if command.is_slow() {
            Load::Slow
        } else if direct {
            Load::Light(bytes / PINNING)
        } else {
            let is_short = bytes <= SHORT_BYTES;
            io.cached(place, bytes, is_short, resumed).ok_or(Some(Wait::Bulk))?
        };
        let file = match self.opened.direct() {
            Some(file) if direct => file,
            _ => self.opened.cached(),
        };
        if io.push(place, file, command, load, tag) { Ok(Sent::Command(load)) } else { Err(None) }
    }

    /// Queues the next chunk of a transfer through a buffer of ours.
    #[cold]
    pub(super) fn push_bounced(
        &mut self,
        io: &mut Io,
        Who { place, tag, resumed }: Who,
        (request, memory): (&Request<'_>, &GuestMap),
        (progress, stable): (&mut Progress, bool),
    ) -> Result<Sent, Option<Wait>> {
        if !resumed && io.has_waiting(place, Wait::Buffer) {
            return Err(Some(Wait::Buffer));
        }
        let bounce = io.bounce(place).ok_or(None)?;
        let Some(at) = bounce.take() else { return Err(Some(Wait::Buffer)) };
        let len = (request.len - progress.done).min(BOUNCE_BYTES);
        let write = request.op != Op::Read;
        // Looked at after the copy: what was copied may not have been the guest's any more.
        let is_filled = !write
            || bounce.bytes(at).and_then(|bytes| bytes.get_mut(..len as usize)).is_some_and(
                |into| {
                    fetch(memory, request.segments, progress.done, into)
                        && !memory.health().is_lost()
                },
            );
        let piece = if is_filled { bounce.lent(at, len) } else { None };
        let load = Load::Light(len / PINNING);
        let pushed = piece.is_some_and(|piece| {
            let offset = request.offset + progress.done;
            let command = Command::Bounced { write, stable, offset, piece };
            let file = self.opened.direct();
            file.is_some_and(|file| io.push(place, file, &command, load, tag))
        });
        if !pushed {
            was_ended(io, place, at);
            give_back(io, place, at);
            return Err(None);
        }
        progress.asked = len as u32;
        self.flight(tag).held = Some(Held { at, read: 0 });
        Ok(Sent::Command(load))
    }

    /// The kernel has done with the buffer of a request, if it has one. True: what was read is there, and is
    /// copied at the request's turn.
    #[inline]
    pub(super) fn was_bounced(&mut self, io: &mut Io, op: Op, tag: Tag, result: i32) -> bool {
        let place = self.place;
        let flight = self.flight(tag);
        let (Some(held), Some(place)) = (&mut flight.held, place) else { return false };
        was_ended(io, place, held.at);
        if op == Op::Read && result > 0 {
            held.read = result as u32;
            return true;
        }
        give_back(io, place, held.at);
        flight.held = None;
        false
    }

    /// See [`crate::Backend::go_on`].
    #[cold]
    pub(crate) fn go_on(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        progress: &mut Progress,
    ) -> Turn {
        self.recall(tag, progress);
        let copies = self.copies_in_turns(io, request, tag, progress);
        let held = self.flight(tag).held.take();
        let mut bytes = (request.len - progress.done.min(request.len)).min(CHUNK_BYTES);
        let ended = match (held, self.place) {
            (Some(held), Some(place)) => {
                bytes = held.read.into();
                let copied =
                    io.bounce(place).and_then(|bounce| bounce.bytes(held.at)).is_some_and(|from| {
                        let from = from.get(..held.read as usize).unwrap_or_default();
                        !memory.health().is_lost()
                            && store(memory, request.segments, progress.done, from)
                    });
                give_back(io, place, held.at);
                match copied {
                    true => self.after(held.read as i32, request, progress),
                    false => Some(Started::Done(request::Status::IoError)),
                }
            }
            _ => None,
        };
        let started = match ended {
            Some(ended) => ended,
            None => self.proceed(io, request, memory, tag, progress, false),
        };
        Turn { bytes, copies, outcome: self.settle(started, tag).into() }
    }

    /// Whether the next chunk of a request in chunks is copied, by way of a buffer of ours.
    fn copies_in_turns(
        &mut self,
        io: &Io,
        request: &Request<'_>,
        tag: Tag,
        progress: &Progress,
    ) -> bool {
        if request.len <= BOUNCE_BYTES || self.flight(tag).held.is_some() {
            return request.len > BOUNCE_BYTES;
        }
        let bounces = self.place.is_some_and(|place| io.bounces(place));
        let asks = Asks { tag, room_for_slow: true, bounces };
        request.op != Op::Read
            && progress.step == Step::Start
            && self.way(request, progress, Some(asks)) == Way::Bounced
    }

    /// Whether a transfer that was not ended by its last command is to wait for a turn before the next.
    #[inline]
    pub(super) fn waits_for_turn(request: &Request<'_>, progress: &Progress) -> bool {
        is_long(request) && progress.step == Step::Start
    }

    /// Requests that end without a completion need their buffers no longer. One that the kernel has stays the
    /// kernel's: nobody else is given it.
    #[cold]
    pub(super) fn let_buffers_go(&mut self, io: &mut Io, place: Place) {
        for flight in &mut self.flights {
            if let Some(held) = flight.held.take() {
                give_back(io, place, held.at);
            }
        }
    }
}

/// The command with a buffer has completed, or was never handed over.
#[cold]
fn was_ended(io: &mut Io, place: Place, at: u8) {
    if let Some(bounce) = io.bounce(place) {
        bounce.was_ended(at);
    }
}

/// A request needs its buffer no longer.
#[cold]
fn give_back(io: &mut Io, place: Place, at: u8) {
    if let Some(bounce) = io.bounce(place) {
        bounce.give_back(at);
    }
}

/// What comes next of a transfer on its way.
pub(super) fn next<'a>(
    way: Way,
    (write, stable): (bool, bool),
    request: &Request<'a>,
    memory: &'a GuestMap,
    progress: &mut Progress,
) -> Next<'a> {
    if way == Way::Bounced {
        return Next::Bounce { stable };
    }
    let Request { offset, len, segments, .. } = *request;
    let (offset, skip) = (offset + progress.done, progress.done);
    let most = (len - skip.min(len)).min(way.most());
    progress.asked = most as u32;
    let command = Command::Transfer { write, stable, offset, skip, most, segments, memory };
    Next::Run { command, direct: way == Way::Direct }
}

#[cfg(test)]
mod tests;
