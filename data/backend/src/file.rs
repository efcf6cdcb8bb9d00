//! A raw file or a block device.
//!
//! Each request is a small state machine: [`File::next`] says which command comes next, the kernel
//! runs it, `judge` says what the result means. Files in memory (tmpfs) run it to the end in `submit`,
//! since nothing there waits for a device; all others run each command through the sidecore's
//! io_uring, long transfers in chunks (`way`). Measured in docs/decisions/0003-file-backend.md.
//!
//! Not here: opening (`open`), what keeps the two kinds of writes apart (`writers`), and flushes in
//! single file (`flushes`).

mod device;
mod faults;
mod flushes;
mod format;
mod holder;
mod image;
mod judge;
mod lock;
mod mark;
mod open;
mod way;
mod writers;

pub use faults::FaultSnapshot;
pub use format::{Foreign, Vet};
pub use holder::{Holder, LET_IT_MOVE, STOP_IT, lock_holder};
pub use image::{Astray, ImageFacts};
pub(crate) use open::{Facts, Opened};
pub(crate) use way::CHUNK_BYTES;

use std::sync::Arc;

use guest_memory::GuestMap;
use request::{Op, Request, Status, Tag};
use rustix::io::Errno;

use crate::io::{Io, Load, Place, Wait};
use crate::sys::{Allocate, Command, ZEROES_MAX, run_now};
use crate::{Outcome, Started};
use open::Lack;
use way::{Held, Way, Who};
use writers::Pass;

/// Slots whose state is kept without asking for memory; as many as a queue has in flight.
const SLOTS: usize = 256;

/// How far a request has come. Kept in the request's slot between completions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes transferred or zeroed.
    done: u64,
    /// Of the command under way.
    asked: u32,
    step: Step,
    /// Repetitions since the last byte.
    tries: u8,
    /// The direct way refused it.
    cached_only: bool,
    /// A part of what must be stable was written otherwise.
    unstable: bool,
}

/// What the request does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// Transfer, flush, discard; or write-zeroes before its way is chosen.
    #[default]
    Start,
    /// Write-zeroes by a hole.
    Punch,
    /// Write-zeroes by the file system's own zeroing.
    ZeroRange,
    /// Space for the range, after a hole that was not asked for.
    Reserve,
    /// Write-zeroes by writing.
    Fill,
    /// The end of a write that must be stable.
    Sync,
}

/// One queue's way to a file.
#[derive(Debug)]
pub struct File {
    opened: Arc<Opened>,
    size_bytes: u64,
    /// The disk's place in the current sidecore's `Io`.
    place: Option<Place>,
    /// By slot, so that `submit` can leave something for the first completion.
    flights: Vec<Flight>,
}

/// What is known of a request in flight besides its [`Progress`].
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    turn: Turn,
    /// Of its `Progress`.
    step: Step,
    asked: u32,
    unstable: bool,
    command: Sent,
    /// A buffer of ours.
    held: Option<Held>,
}

/// What its next completion is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sent {
    /// Nothing: it waits.
    #[default]
    Nothing,
    /// A command, and what of the disk's share it has.
    Command(Load),
}

/// A request's turn among those of all queues of its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    /// It needs none.
    #[default]
    None,
    /// A write's.
    Write(Pass),
    /// A flush that waits until one of at least this number has ended well, or it may go itself.
    FlushWaits(u64),
    /// The flush of this number.
    Flushes(u64),
}

/// What comes next.
enum Next<'a> {
    Run {
        command: Command<'a>,
        direct: bool,
    },
    /// The next chunk of a transfer, through a buffer of ours.
    Bounce {
        stable: bool,
    },
    Wait(Wait),
    Done(Status),
}

/// Who asks for what comes next.
#[derive(Clone, Copy)]
struct Asks {
    tag: Tag,
    /// Another slow command may be sent.
    room_for_slow: bool,
    /// There are buffers of ours.
    bounces: bool,
}

impl File {
    pub(crate) fn new(opened: Arc<Opened>, size_bytes: u64) -> File {
        let slots = if opened.in_memory() { 0 } else { SLOTS };
        File { opened, size_bytes, place: None, flights: vec![Flight::default(); slots] }
    }

    #[inline]
    pub(crate) fn answers_at_once(&self) -> bool {
        self.opened.in_memory()
    }

    pub(crate) fn join(&mut self, io: &mut Io) -> std::io::Result<()> {
        if !self.opened.in_memory() && !self.place.is_some_and(|place| io.gave(place)) {
            self.place = Some(io.join(&self.opened, SLOTS)?);
        }
        Ok(())
    }

    pub(crate) fn leave(&mut self, io: &mut Io) {
        if let Some(place) = self.place.take()
            && io.gave(place)
        {
            self.let_buffers_go(io, place);
            io.leave(place);
        }
    }

    #[inline]
    pub(crate) fn has_room(&self, io: &Io) -> bool {
        self.place.is_none_or(|place| !io.gave(place) || io.has_room(place))
    }

    #[inline]
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
        if self.opened.in_memory() {
            return self.run(request, memory);
        }
        if let Err(error) = self.join(io) {
            self.opened.faults.count(errno(&error));
            return Started::Done(Status::IoError);
        }
        let started = self.proceed(io, request, memory, tag, &mut Progress::default(), false);
        self.settle(started, tag)
    }

    /// Goes on with a request that stalled, where it was. Also how many bytes of it that takes.
    #[cold]
    pub(crate) fn resume(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        progress: &mut Progress,
    ) -> (u64, Started) {
        progress.tries = 0;
        let left = request.len - progress.done.min(request.len);
        let bytes = match request.op {
            Op::Read | Op::Write { .. } => left.min(CHUNK_BYTES),
            Op::Flush | Op::Discard | Op::WriteZeroes { .. } => left,
        };
        // Of the disk more may have become known, and its way may be new.
        if let Err(status) = self.check(request) {
            return (0, Started::Done(status));
        }
        if let Err(error) = self.join(io) {
            self.opened.faults.count(errno(&error));
            return (0, Started::Done(Status::IoError));
        }
        let started = self.proceed(io, request, memory, tag, progress, false);
        (bytes, self.settle(started, tag))
    }

    pub(crate) fn completed(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        result: i32,
        progress: &mut Progress,
    ) -> Outcome {
        let Flight { command, held, .. } = *self.flight(tag);
        self.recall(tag, progress);
        let Sent::Command(load) = command else {
            // Who waits is only told that it may go on.
            let started = self.proceed(io, request, memory, tag, progress, true);
            return self.settle(started, tag).into();
        };
        if let Some(place) = self.place {
            io.ended(place, load);
        }
        if self.was_bounced(io, request.op, tag, result) {
            return Outcome::Turn;
        }
        let started = match self.after(result, request, progress) {
            Some(ended) => ended,
            None if held.is_some() || Self::waits_for_turn(request, progress) => {
                self.note(tag, progress, Sent::Nothing);
                return Outcome::Turn;
            }
            None => self.proceed(io, request, memory, tag, progress, false),
        };
        self.settle(started, tag).into()
    }

    /// Refuses what no later step needs to think of.
    #[inline]
    fn check(&self, request: &Request<'_>) -> Result<(), Status> {
        let end = request.offset.checked_add(request.len);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(Status::IoError);
        }
        let (writes, stable) = match request.op {
            Op::Read => (false, false),
            Op::Write { sync } | Op::WriteZeroes { sync, .. } => (true, sync),
            Op::Discard => (true, false),
            Op::Flush => (false, true),
        };
        if writes && self.opened.is_readonly() || stable && self.opened.sync_failed() {
            return Err(Status::IoError);
        }
        match request.op {
            Op::Flush => Ok(()),
            _ if request.len == 0 => Err(Status::Ok),
            Op::Read | Op::Write { .. } => {
                let sum: u64 = request.segments.iter().map(|s| u64::from(s.len())).sum();
                if sum == request.len { Ok(()) } else { Err(Status::IoError) }
            }
            Op::Discard if self.opened.lacks(Lack::PunchHole) => Err(Status::Unsupported),
            Op::Discard | Op::WriteZeroes { .. } => Ok(()),
        }
    }

    /// Runs a request to its end. Bounded: each command makes progress or counts as a try.
    #[inline]
    fn run(&mut self, request: &Request<'_>, memory: &GuestMap) -> Started {
        let mut progress = Progress::default();
        let ended = loop {
            let result = match self.next(request, memory, &mut progress, None) {
                Next::Run { command, .. } => run_now(self.opened.cached(), &command),
                Next::Done(status) => break Started::Done(status),
                // Only who asks with a tag is told to wait.
                Next::Wait(_) | Next::Bounce { .. } => break Started::Done(Status::IoError),
            };
            if let Some(ended) = self.after(result, request, &mut progress) {
                break ended;
            }
        };
        if request.op == Op::Read {
            // Also after an error: a part may have been written.
            for segment in request.segments {
                memory.mark_written(*segment);
            }
        }
        ended
    }

    /// Queues the next command, or has the request wait. `resumed`: it has waited.
    #[inline]
    fn proceed(
        &mut self,
        io: &mut Io,
        request: &Request<'_>,
        memory: &GuestMap,
        tag: Tag,
        progress: &mut Progress,
        resumed: bool,
    ) -> Started {
        let Some(place) = self.place else { return Started::Done(Status::IoError) };
        let (room_for_slow, bounces) = (io.has_room_for_slow(place), io.bounces(place));
        let asks = Asks { tag, room_for_slow, bounces };
        let who = Who { place, tag, resumed };
        let pushed = match self.next(request, memory, progress, Some(asks)) {
            Next::Done(status) => return Started::Done(status),
            Next::Wait(wait) => Err(Some(wait)),
            Next::Run { command, direct } => self.push(io, who, &command, direct),
            Next::Bounce { stable } => {
                self.push_bounced(io, who, (request, memory), (progress, stable))
            }
        };
        let sent = match pushed {
            Err(Some(wait)) if io.wait(place, tag, wait, resumed) => Some(Sent::Nothing),
            Err(_) => None,
            Ok(sent) => Some(sent),
        };
        if let Some(sent) = sent {
            self.note(tag, progress, sent);
            return Started::Pending;
        }
        // No room although it was asked for, or a segment of another map.
        self.opened.faults.count(Errno::NOBUFS);
        Started::Done(Status::IoError)
    }

    /// What its next completion finds.
    #[inline]
    fn note(&mut self, tag: Tag, progress: &Progress, sent: Sent) {
        let flight = self.flight(tag);
        flight.step = progress.step;
        flight.asked = progress.asked;
        flight.unstable = progress.unstable;
        flight.command = sent;
    }

    #[inline]
    fn recall(&mut self, tag: Tag, progress: &mut Progress) {
        let Flight { step, asked, unstable, .. } = *self.flight(tag);
        (progress.step, progress.asked, progress.unstable) = (step, asked, unstable);
    }

    /// Gives the turn back when a request ends, or stalls: others must not wait for one that does.
    #[inline]
    fn settle(&mut self, started: Started, tag: Tag) -> Started {
        if started != Started::Pending {
            let flight = std::mem::take(self.flight(tag));
            self.give_back(flight.turn, started == Started::Done(Status::Ok));
        }
        started
    }

    fn give_back(&self, turn: Turn, ok: bool) {
        match turn {
            Turn::None | Turn::FlushWaits(_) => {}
            Turn::Write(pass) => {
                if self.opened.writers.leave(pass) {
                    self.opened.sleepers.wake();
                }
            }
            Turn::Flushes(number) => {
                self.opened.flushes.end(number, ok);
                self.opened.sleepers.wake();
            }
        }
    }

    #[inline]
    fn next<'a>(
        &mut self,
        request: &'a Request<'a>,
        memory: &'a GuestMap,
        progress: &mut Progress,
        asks: Option<Asks>,
    ) -> Next<'a> {
        // Before each command: what it would write may no longer be the guest's bytes.
        if memory.health().is_lost() {
            return Next::Done(Status::IoError);
        }
        let Request { op, offset, len, .. } = *request;
        let (at, left) = (offset + progress.done, len - progress.done.min(len));
        let whole = |mode| {
            if asks.is_some_and(|asks| !asks.room_for_slow) {
                return Next::Wait(Wait::Slow);
            }
            // Through the description that has claimed a device: the kernel refuses others (EBUSY).
            let direct = self.opened.is_block();
            Next::Run { command: Command::Allocate { mode, offset, len }, direct }
        };
        match (op, progress.step) {
            (Op::Flush, _) | (_, Step::Sync) => self.flush(asks),
            (Op::Read, _) => {
                let way = self.way(request, progress, asks);
                // See `writers`, "Reads".
                let as_write = way == Way::Cached && self.opened.is_block();
                if as_write && self.write_pass(false, asks) == Pass::Waiting {
                    return Next::Wait(Wait::Write);
                }
                way::next(way, (false, false), request, memory, progress)
            }
            (Op::Write { .. }, _) => self.write(request, memory, progress, asks),
            (Op::Discard, _) => whole(Allocate::PunchHole),
            (Op::WriteZeroes { unmap, .. }, step) => {
                if step == Step::Start {
                    progress.step = self.zeroing(unmap);
                }
                match progress.step {
                    Step::Punch => whole(Allocate::PunchHole),
                    Step::ZeroRange => whole(Allocate::ZeroRange),
                    Step::Reserve => whole(Allocate::Reserve),
                    Step::Start | Step::Fill | Step::Sync => {
                        let now = left.min(ZEROES_MAX);
                        let command = Command::Zeroes { offset: at, len: now };
                        let direct = !progress.cached_only && self.opened.is_aligned(at | now, 0);
                        match self.write_pass(direct, asks) {
                            Pass::Waiting => Next::Wait(Wait::Write),
                            pass => Next::Run { command, direct: pass == Pass::Direct },
                        }
                    }
                }
            }
        }
    }

    #[inline]
    fn write<'a>(
        &mut self,
        request: &'a Request<'a>,
        memory: &'a GuestMap,
        progress: &mut Progress,
        asks: Option<Asks>,
    ) -> Next<'a> {
        let way = self.way(request, progress, asks);
        let direct = match self.write_pass(way != Way::Cached, asks) {
            Pass::Waiting => return Next::Wait(Wait::Write),
            pass => pass == Pass::Direct,
        };
        let sync = request.op == Op::Write { sync: true };
        // Through the page cache the kernel tells of a lost page to whoever asks first, this write or
        // a flush beside it; so there is one who asks: the flush that follows. In memory no later
        // moment is more stable. Of one in chunks each would wait for the device.
        let way = if direct { way } else { Way::Cached };
        let is_one_chunk = request.len <= way.most();
        let stable = sync && direct && is_one_chunk && !self.opened.lacks(Lack::StableWrite);
        progress.unstable |= sync && !stable && asks.is_some();
        way::next(way, (true, stable), request, memory, progress)
    }

    /// The best way to make zeroes that has not failed yet.
    fn zeroing(&self, unmap: bool) -> Step {
        let punches = !self.opened.lacks(Lack::PunchHole);
        if unmap && punches {
            Step::Punch
        } else if !self.opened.lacks(Lack::ZeroRange) {
            Step::ZeroRange
        } else if punches && !self.opened.is_block() {
            Step::Punch
        } else {
            Step::Fill
        }
    }

    /// A write's turn: see `writers`.
    #[inline]
    fn write_pass(&mut self, direct: bool, asks: Option<Asks>) -> Pass {
        let Some(Asks { tag, .. }) = asks.filter(|_| self.opened.direct().is_some()) else {
            return Pass::Cached;
        };
        let turn = self.flight(tag).turn;
        let writers = &self.opened.writers;
        let pass = match turn {
            Turn::Write(Pass::Direct) if !direct => {
                // What is left after a short write is not aligned any more.
                self.give_back(turn, true);
                writers.enter(false)
            }
            Turn::Write(Pass::Waiting) if writers.may_start() => Pass::Cached,
            Turn::Write(held) => held,
            _ => writers.enter(direct),
        };
        self.flight(tag).turn = Turn::Write(pass);
        pass
    }

    /// A flush, in its turn: see `flushes`.
    fn flush<'a>(&mut self, asks: Option<Asks>) -> Next<'a> {
        let run = Next::Run { command: Command::Sync, direct: false };
        let Some(Asks { tag, room_for_slow, .. }) = asks else { return run };
        let needed = match self.flight(tag).turn {
            // Told to come again.
            Turn::Flushes(_) => return run,
            Turn::FlushWaits(needed) => needed,
            written => {
                let needed = self.opened.flushes.needed();
                self.give_back(written, true);
                needed
            }
        };
        if self.opened.sync_failed() {
            self.flight(tag).turn = Turn::None;
            return Next::Done(Status::IoError);
        }
        let flushes = &self.opened.flushes;
        if flushes.ended_well(needed) {
            self.flight(tag).turn = Turn::None;
            return Next::Done(Status::Ok);
        }
        let begun = if room_for_slow { flushes.begin() } else { None };
        self.flight(tag).turn = begun.map_or(Turn::FlushWaits(needed), Turn::Flushes);
        if begun.is_some() { run } else { Next::Wait(Wait::Flush(needed)) }
    }

    #[inline]
    fn flight(&mut self, tag: Tag) -> &mut Flight {
        let slot = usize::from(tag.slot);
        if slot >= self.flights.len() {
            // Queues keep to SLOTS; a longer table costs one allocation, not correctness.
            self.flights.resize(slot + 1, Flight::default());
        }
        &mut self.flights[slot]
    }
}

impl Drop for File {
    /// A queue that is dropped with requests in flight must not hold up the others of its disk.
    fn drop(&mut self) {
        for flight in std::mem::take(&mut self.flights) {
            self.give_back(flight.turn, false);
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests;
