//! The guests of `consolidation`, and the threads that are their clients: a thread sleeps when none has anything to do.
//!
//! Not where their IOhosts are, nor what the numbers say.

use std::array::from_fn;

use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use testing::clock::now_ns;
use testing::load::Random;
use testing::server::CpuTime;
use testing::slots::Kind;

use super::{BUSY, DISK_BYTES, GUESTS};
use crate::blk::pin;
use crate::remote::iohost::Iohost;
use crate::remote::{BLOCK_BYTES, Far, PATIENCE_NS, turn};

/// Requests in flight of a guest of the busy host; one of the idle host has one, and then waits so long on average.
pub(super) const DEPTH: u16 = 8;
const PAUSE_NS: u64 = 10_000_000;
const BLOCKS: u64 = DISK_BYTES / BLOCK_BYTES as u64;

/// A client of its own, with a disk.
pub(super) struct Guest {
    far: Iohost,
    host: usize,
    free: Vec<u16>,
    asked_at: [u64; DEPTH as usize],
    /// When the next request of an idle one goes.
    next_at: u64,
    is_readable: bool,
    random: Random,
}

/// When a round begins, is measured, and ends; and the blocks of its requests.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) count: u32,
}

/// What ended while it was measured, and the CPU time that took.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) busy: u64,
    pub(super) idle_ns: Vec<u64>,
    /// Frames to IOhosts, in all of the round.
    pub(super) sent: u64,
    pub(super) lost: u64,
    pub(super) cpu_ns: u64,
}

impl Guest {
    /// With a disk that is full of marked blocks.
    pub(super) fn new(mut far: Iohost, host: usize, seed: u64) -> Result<Guest> {
        let mut blocks = 0..BLOCKS;
        turn(&mut far, Kind::Write, DEPTH, u64::MAX / 2_000_000, &mut || blocks.next())?;
        Ok(Guest {
            far,
            host,
            free: (0..if host == BUSY { DEPTH } else { 1 }).collect(),
            asked_at: [0; DEPTH as usize],
            next_at: 0,
            is_readable: true,
            random: Random(0x5eed + seed),
        })
    }

    /// Takes what has come, and asks for what is due. Whether nothing is under way any more.
    fn turn(&mut self, times: Times, ended: &mut Ended) -> Result<bool> {
        let now = now_ns();
        let Guest { far, host, free, asked_at, next_at, random, .. } = self;
        if self.is_readable {
            far.take(&mut |tag| {
                let now = now_ns();
                let is_measured = (times.from..times.to).contains(&now);
                if *host == BUSY {
                    ended.busy += u64::from(is_measured);
                } else {
                    *next_at = now + PAUSE_NS / 2 + random.below(PAUSE_NS);
                    let took_ns = is_measured.then(|| now - asked_at[usize::from(tag)]);
                    ended.idle_ns.extend(took_ns);
                }
                free.push(tag);
            })?;
        }
        while now < times.to
            && *next_at <= now
            && let Some(tag) = free.pop()
        {
            let kind = if random.below(2) == 0 { Kind::Read } else { Kind::Write };
            let count = times.count;
            let block = random.below(BLOCKS / u64::from(count)) * u64::from(count);
            far.ask_some(kind, (block, count), tag)?;
            asked_at[usize::from(tag)] = now;
        }
        far.send()?;
        let all = if *host == BUSY { DEPTH } else { 1 };
        Ok(free.len() == usize::from(all))
    }

    /// When it has something to do, if nothing comes.
    fn due(&self, until: u64, is_over: bool) -> u64 {
        let asks_at = if is_over || self.free.is_empty() { until } else { self.next_at };
        self.far.due().map_or(asks_at, |due| due.min(asks_at))
    }
}

/// A thread of clients.
pub(super) fn work(guests: &mut [Guest], core: u16, times: Times) -> Result<Ended> {
    pin(core)?;
    let frames = |guests: &[Guest]| {
        let both = guests.iter().map(|guest| guest.far.frames());
        both.fold([0; 2], |sum, one| [0, 1].map(|at: usize| sum[at] + one[at]))
    };
    let frames_before = frames(guests);
    let mut ended = Ended::default();
    let (mut before, mut is_measured) = (None, false);
    loop {
        let now = now_ns();
        if before.is_none() && now >= times.from {
            before = Some(CpuTime::own());
        }
        if let Some(cpu) = before
            && !is_measured
            && now >= times.to
        {
            is_measured = true;
            ended.cpu_ns = CpuTime::own().since(cpu).used_ns;
        }
        let mut is_over = is_measured;
        for guest in guests.iter_mut() {
            is_over &= guest.turn(times, &mut ended)?;
        }
        if is_over {
            let after = frames(guests);
            [ended.sent, ended.lost] =
                [0, 1].map(|at: usize| after[at].saturating_sub(frames_before[at]));
            return Ok(ended);
        }
        ensure!(now < times.to + PATIENCE_NS, "nothing ends any more");
        let next = [times.from, times.to].into_iter().find(|at| *at > now);
        wait(guests, next.unwrap_or(now + PATIENCE_NS), is_measured)?;
    }
}

/// Sleeps until a frame is here for one of them, or one has something to do, or until then.
fn wait(guests: &mut [Guest], until: u64, is_over: bool) -> Result<()> {
    let due = guests.iter().map(|guest| guest.due(until, is_over)).fold(until, u64::min);
    let has_some = guests.iter().any(|guest| guest.far.waits_on().1);
    let time = if has_some { time_to(0) } else { time_to(due) };
    let mut fds: [PollFd<'_>; GUESTS] =
        from_fn(|at| PollFd::from_borrowed_fd(guests[at].far.waits_on().0, PollFlags::IN));
    poll(&mut fds, Some(&time))?;
    let found = fds.map(|fd| !fd.revents().is_empty());
    for (guest, found) in guests.iter_mut().zip(found) {
        guest.is_readable = found || guest.far.waits_on().1;
    }
    Ok(())
}

/// From now to then, a second at most.
pub(super) fn time_to(then: u64) -> Timespec {
    let left_ns = then.saturating_sub(now_ns());
    Timespec { tv_sec: 0, tv_nsec: left_ns.min(999_999_999) as _ }
}
