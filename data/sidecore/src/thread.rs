//! The thread of a sidecore: pinned, named, and the one place that reads its clock.

use std::io;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use schedule::{Clock, Nanos};

use crate::inbox::Handle;
use crate::sidecore::{Sidecore, SidecoreSpec};

/// When time begins, for all sidecores: what one of them notes means the same on another. It is the zero of the machine's
/// monotonic clock, by which the kernel says since when a vCPU runs.
static START: OnceLock<Instant> = OnceLock::new();

/// When that was, for whoever has another clock.
pub fn instant_of(at: Nanos) -> Instant {
    *START.get_or_init(zero) + Duration::from_nanos(at.0)
}

/// The same of a moment; that of a moment before the beginning is 0.
pub fn nanos_of(at: Instant) -> Nanos {
    Nanos(at.saturating_duration_since(*START.get_or_init(zero)).as_nanos() as u64)
}

/// Starts a sidecore on a thread of its own, which calls `begin` before all else.
///
/// # Errors
/// No thread, a processor that it may not run on, or what `begin` and [`Sidecore::new`] said.
pub fn launch(
    spec: SidecoreSpec,
    begin: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<Handle> {
    // Here, where it may: to read the machine's clock, a file is opened first on kernels before 6.4.
    START.get_or_init(zero);
    let (made, make) = mpsc::channel();
    let name = format!("sidecore-{}", spec.index);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let sidecore = begin().and_then(|()| pin(spec)).and_then(|()| Sidecore::new(spec));
        match sidecore {
            Ok((mut sidecore, handle)) => {
                if made.send(Ok(handle)).is_ok() {
                    run(&mut sidecore);
                }
            }
            // The launcher waits for this answer, so it is there to take it.
            Err(error) => drop(made.send(Err(error))),
        }
    })?;
    let answer = make.recv().map_err(|_| io::Error::other("the sidecore ended at its start"))?;
    let mut handle = answer?;
    handle.thread = Some(thread);
    Ok(handle)
}

fn pin(spec: SidecoreSpec) -> io::Result<()> {
    let Some(cpu) = spec.cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(io::Error::other(format!("there is no cpu {cpu}")));
    }
    set.set(cpu as usize);
    sched_setaffinity(None, &set)
        .map_err(|error| io::Error::other(format!("cannot run on cpu {cpu}: {error}")))
}

/// Passes until told to stop. The clock is read once for each, about once in 5 us within a
/// long one, and once more after a sleep.
fn run(sidecore: &mut Sidecore) {
    let start = *START.get_or_init(zero);
    let clock = Since(start);
    sidecore.kick_cost.begin(start);
    let mut last = clock.now();
    while !sidecore.has_ended() {
        last = turn(sidecore, last, &clock);
    }
}

/// One pass, begun at `last`, and what follows when it found nothing. Gives the time at its end; all of it is
/// counted as busy, idle or asleep.
#[inline]
pub(crate) fn turn(sidecore: &mut Sidecore, last: Nanos, clock: &impl Clock) -> Nanos {
    let progress = sidecore.pass(last, clock);
    let slept = progress.is_idle() && sidecore.rest(last, clock);
    let next = clock.now();
    if slept {
        sidecore.woke(next);
    }
    let took = next.since(last);
    let counters = sidecore.counters();
    counters.passes.add(1);
    match (slept, progress.is_idle()) {
        (true, _) => counters.asleep_ns.add(took),
        (false, true) => counters.idle_ns.add(took),
        (false, false) => counters.busy_ns.add(took),
    }
    next
}

/// When the machine's monotonic clock was at its zero, within two microseconds if this thread is left its processor.
fn zero() -> Instant {
    let machine = || {
        let time = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
    };
    let mut zero = None;
    for _ in 0..ZERO_TRIES {
        let (before, now, after) = (machine(), instant(), machine());
        let took = after.saturating_sub(before);
        let found = now.checked_sub(before).unwrap_or(now);
        if zero.is_none_or(|(least, _)| took < least) {
            zero = Some((took, found));
        }
        if took < ZERO_WITHIN {
            break;
        }
    }
    zero.map_or_else(instant, |(_, zero)| zero)
}

/// How often the two clocks are read until they are read together.
const ZERO_TRIES: u32 = 64;
const ZERO_WITHIN: Duration = Duration::from_micros(2);

/// The time since the machine's start.
struct Since(Instant);

impl Clock for Since {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos(instant().duration_since(self.0).as_nanos() as u64)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one reader of the clock in the data path")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}
