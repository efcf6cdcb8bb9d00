//! The thread of a sidecore: pinned, named, and the one place that reads its clock.

use std::io;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use schedule::{Clock, Nanos};

use crate::inbox::Handle;
use crate::sidecore::{Sidecore, SidecoreSpec};

/// When time begins, for all sidecores: what one of them notes means the same on another.
static START: OnceLock<Instant> = OnceLock::new();

/// Starts a sidecore on a thread of its own.
///
/// # Errors
/// No thread, a processor that it may not run on, or what [`Sidecore::new`] said.
pub fn launch(spec: SidecoreSpec) -> io::Result<Handle> {
    let (made, make) = mpsc::channel();
    let name = format!("sidecore-{}", spec.index);
    let thread = thread::Builder::new().name(name).spawn(move || {
        let sidecore = pin(spec).and_then(|()| Sidecore::new(spec));
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
    let start = *START.get_or_init(instant);
    let clock = Since(start);
    sidecore.knock.begin(start);
    let mut last = clock.now();
    while !sidecore.has_ended() {
        let progress = sidecore.pass(last, &clock);
        let slept = progress.is_idle() && sidecore.rest(last);
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
        last = next;
    }
}

/// The time since the first sidecore's start.
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
