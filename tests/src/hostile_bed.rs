//! A hostile guest and a well-behaved one on the same sidecore: what the misdeed comes to, and what
//! the neighbour loses by it.
//!
//! What is fair on one core: the neighbour must keep nine tenths of the rate that it has beside a
//! guest that behaves. For a misdeed that is over at once ([`row`]) that guest is idle, and the misdeed
//! is done again and again, each time on a ring set up anew. For one that lasts ([`storm`]) it is as
//! busy as the hostile one may be. Both rates are measured in the same run, in short windows that
//! take turns, because a machine is fast in one second and slow in the next.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testing::clock::now_ns;
use testing::frontend::{Frontend, FrontendSpec};

use crate::hostile_guest::{D, DATA, End, Guest, HEADER, Layout, STATUS, WRITE};
use crate::misdeeds::{RingRow, Storm};
use crate::windows::{self, PAUSE_MIN, Rates};
use testing::daemon::{Daemon, await_that, pause};
use testing::timing::{PATIENCE, are_judged, judge};
use testing::verified::Load;

/// The disk of the hostile guest.
pub const BAD: &str = "bad";
const VICTIM: &str = "victim";
const VICTIM_DISK: &str = "backend = \"memory\"\nsize = \"4M\"";
const SIDECORE_CPU: usize = 0;

/// One window; both kinds have [`windows_each`] of them in each try. Short and many, because a machine that
/// does something else besides is fast and slow in turns, and both kinds must have of either.
const WINDOW_NS: u64 = 15_000_000;
const WINDOWS: usize = 16;
/// The same where rates are not judged: the misdeed is done again and again all the same.
const WINDOWS_UNJUDGED: usize = 4;
/// Where too little is kept, as many windows are added, so often.
const TRIES: usize = 12;
/// Between two misdeeds of a row, as many times what the last one took of the processor time of this
/// thread and of the daemon's control ([`windows::then_pause`]): both together are at work for a 50th of
/// the time, and what they leave behind (cold caches, files to close) takes as much again. On the few cores
/// of a test machine they take turns with the neighbour's guest, and that is not what is asked.
const PAUSES: u32 = 50;
/// What the neighbour must keep.
pub const KEPT_MIN: f64 = 0.9;

/// How a misdeed must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The queue is stopped, its front-end is told, and the operator with these words; a new set-up
    /// revives it.
    Broken(&'static str),
    /// It comes back with this status and this length.
    Status(u8, u32),
    /// The row has looked for itself, and the ring is as new.
    Checked,
    /// The row has looked for itself, and the ring must be set up anew.
    Spoiled,
}

/// A request that was done, of so many bytes written, the status among them.
pub fn done(len: u32) -> Expect {
    Expect::Status(0, len)
}

/// A request that ended with an I/O error.
pub const IO_ERROR: Expect = Expect::Status(1, 1);
/// A request that the device does not know.
pub const UNSUPPORTED: Expect = Expect::Status(2, 1);

/// What a row showed.
#[derive(Clone, Debug)]
pub struct Shown {
    misdeeds: u64,
    rates: Rates,
    tries: usize,
}

impl Shown {
    /// The neighbour's rate beside the good guest, requests a second.
    pub fn beside_good(&self) -> f64 {
        self.rates.both()[0]
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { misdeeds, rates, tries } = self;
        write!(f, "{misdeeds} times; the neighbour had {rates}")?;
        if *tries > 1 { write!(f, " ({tries} times as many windows)") } else { Ok(()) }
    }
}

/// The daemon, the neighbour at work, and the socket of the hostile guest.
#[derive(Debug)]
pub struct Bed {
    /// The daemon.
    pub daemon: Daemon,
    load: Load,
    /// Held, so that it stays connected.
    _victim: Frontend,
    _off: Option<OffSidecore>,
    _alone: MutexGuard<'static, ()>,
}

/// Rows measure, so no two of them run at once.
static ALONE: Mutex<()> = Mutex::new(());

impl Bed {
    /// Starts both; `disk` is the rest of the hostile guest's `[[disk]]`.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(name: &str, disk: &str) -> Result<Bed> {
        Bed::start_beside(name, VICTIM_DISK, disk)
    }

    /// As [`Bed::start`], with this thread and the neighbour's off the sidecore's processor: for a guest
    /// that is busy for a small part of the time ([`Bed::then_pause`]).
    ///
    /// # Errors
    /// One of them does not start, or the machine has one processor.
    pub fn start_apart(name: &str, disk: &str) -> Result<Bed> {
        Bed::start_as(name, VICTIM_DISK, disk, true)
    }

    /// As [`Bed::start`], with a neighbour on a disk of that description.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start_beside(name: &str, victim: &str, disk: &str) -> Result<Bed> {
        Bed::start_as(name, victim, disk, false)
    }

    /// As [`Bed::start_beside`], apart as with [`Bed::start_apart`].
    ///
    /// # Errors
    /// As [`Bed::start_apart`].
    pub fn start_beside_apart(name: &str, victim: &str, disk: &str) -> Result<Bed> {
        Bed::start_as(name, victim, disk, true)
    }

    fn start_as(name: &str, victim: &str, disk: &str, apart: bool) -> Result<Bed> {
        let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let daemon = Daemon::with(
            name,
            &format!("[[disk]]\nid = \"{VICTIM}\"\n{victim}\n[[disk]]\nid = \"{BAD}\"\n{disk}\n"),
        )
        .cpus(&SIDECORE_CPU.to_string())
        .start()?;
        let off = if apart { Some(OffSidecore::new()?) } else { None };
        let mut victim = daemon.frontend(VICTIM, &FrontendSpec::default())?;
        let load = Load::witness(&mut victim)?;
        load.await_requests(50)?;
        Ok(Bed { daemon, load, _victim: victim, _off: off, _alone: alone })
    }

    /// A hostile guest.
    ///
    /// # Errors
    /// As [`Guest::start`].
    pub fn guest(&self, layout: Layout) -> Result<Guest> {
        Guest::start(&self.daemon.socket(BAD), layout)
            .with_context(|| format!("the daemon says:\n{}", self.daemon.last_words()))
    }

    /// The neighbour's rate while `work` is done again and again for one window. It gets on in it, however long that takes:
    /// a machine may give it no processor for a while, and nobody else may keep it from all.
    fn window(&self, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        let (start, before) = (now_ns(), self.load.done());
        loop {
            work()?;
            let (took, done) = (now_ns() - start, self.load.done() - before);
            if took >= WINDOW_NS && done > 0 {
                return Ok(done as f64 * 1e9 / took as f64);
            }
            ensure!(u128::from(took) < PATIENCE.as_nanos(), "the neighbour does not get on");
        }
    }

    /// Compares the neighbour's rates beside `good` and beside `bad`.
    ///
    /// # Errors
    /// It keeps too little, again and again, or one of the two failed.
    pub fn compare(
        &self,
        good: impl FnMut() -> Result<()>,
        bad: impl FnMut() -> Result<()>,
    ) -> Result<Shown> {
        self.compare_keeping(KEPT_MIN, good, bad)
    }

    /// As [`Bed::compare`], where another part of the rate must be kept.
    ///
    /// # Errors
    /// As [`Bed::compare`].
    pub fn compare_keeping(
        &self,
        kept_min: f64,
        mut good: impl FnMut() -> Result<()>,
        mut bad: impl FnMut() -> Result<()>,
    ) -> Result<Shown> {
        let (mut misdeeds, mut rates) = (0, Rates::default());
        let tries = rates.take_until(kept_min, TRIES, windows_each(), |is_bad| {
            if !is_bad {
                return self.window(&mut good);
            }
            self.window(|| {
                misdeeds += 1;
                bad()
            })
        })?;
        let shown = Shown { misdeeds, rates, tries };
        judge(shown.rates.kept() >= kept_min, || shown.to_string())?;
        Ok(shown)
    }

    /// Does `misdeed` and pauses so long after it that the processor time of this thread and of control
    /// does not count: [`PAUSES`].
    ///
    /// # Errors
    /// The misdeed's.
    pub fn then_pause(&self, misdeed: impl FnOnce() -> Result<()>) -> Result<()> {
        windows::then_pause(&self.daemon, PAUSES, misdeed)
    }

    /// The neighbour goes on, and the daemon lives.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn is_unharmed(&mut self) -> Result<()> {
        self.daemon.is_alive()?;
        self.load.await_requests(50)
    }

    /// Ends all: the daemon lives, the neighbour saw nothing wrong, the next front-end is served.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn finish(mut self) -> Result<()> {
        self.daemon.is_alive()?;
        let plain = Layout { features: 0, ..Layout::default() };
        // One whose front-end did what costs others time is kept out for 10 s.
        let mut next = None;
        let waited = await_that("the next front-end", || {
            next = Guest::start(&self.daemon.socket(BAD), plain).ok();
            Ok(next.is_some())
        });
        waited.with_context(|| format!("the daemon says:\n{}", self.daemon.last_words()))?;
        let mut next = next.context("no front-end")?;
        next.honest(0, 0, 512)?;
        drop(next);
        self.load.await_requests(20)?;
        self.load.finish().context("the neighbour")?;
        let errors = self.daemon.shown(VICTIM, "counters")?["errors"].clone();
        ensure!(errors == 0, "the neighbour has {errors} errors");
        Ok(())
    }
}

/// How many windows each kind has in a try.
fn windows_each() -> usize {
    if are_judged() { WINDOWS } else { WINDOWS_UNJUDGED }
}

/// Keeps this thread, and those that it starts, off the sidecore's processor until it is dropped, as a
/// host keeps its guests: one put there would share it for some milliseconds with what serves it.
#[derive(Debug)]
pub struct OffSidecore {
    before: CpuSet,
}

impl OffSidecore {
    /// From now on.
    ///
    /// # Errors
    /// The machine has one processor.
    pub fn new() -> Result<OffSidecore> {
        let before = sched_getaffinity(None)?;
        let mut others = before;
        others.unset(SIDECORE_CPU);
        ensure!(others.count() > 0, "a machine with one processor");
        sched_setaffinity(None, &others)?;
        Ok(OffSidecore { before })
    }
}

impl Drop for OffSidecore {
    fn drop(&mut self) {
        // Of the next test; it would say so itself.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// A misdeed that is over at once, in each of its variants: it must end as it says, and the neighbour
/// must not notice when it is done again and again.
///
/// # Errors
/// What was not as it must be.
pub fn row(name: &str, row: RingRow) -> Result<Shown> {
    let RingRow { disk, layout, variants, mut act } = row;
    let bed = Bed::start_apart(name, disk)?;
    // A RAM disk that nobody has used yet is not given to a ring that says it was used.
    bed.guest(Layout { features: 0, ..Layout::default() })?.honest(0, 0, 512)?;
    let mut guest = bed.guest(layout)?;
    for variant in 0..variants {
        let looked = (|| {
            let expect = act(&mut guest, variant)?;
            meets(&mut guest, expect)?;
            if let Expect::Broken(words) = expect {
                stays_broken(&bed, &mut guest, words)?;
            }
            again(&mut guest, expect)
        })();
        looked.with_context(|| format!("variant {variant}"))?;
    }
    let mut variant = 0;
    let shown = bed.compare(
        || {
            pause(PAUSE_MIN);
            Ok(())
        },
        || {
            variant = (variant + 1) % variants;
            bed.then_pause(|| act_and_mend(&mut guest, variant, &mut act))
        },
    )?;
    drop(guest);
    bed.finish()?;
    Ok(shown)
}

/// One variant of a misdeed, which ends as it must, on a ring that is fit for the next one after it.
///
/// # Errors
/// What was not as it must be.
pub fn act_and_mend(
    guest: &mut Guest,
    variant: usize,
    act: &mut dyn FnMut(&mut Guest, usize) -> Result<Expect>,
) -> Result<()> {
    let expect = act(guest, variant)?;
    meets(guest, expect)?;
    again(guest, expect)
}

fn meets(guest: &mut Guest, expect: Expect) -> Result<()> {
    match expect {
        Expect::Broken(_) => {
            let end = guest.end()?;
            ensure!(end == End::Broken, "it must break the queue, and was {end:?}");
        }
        Expect::Status(status, len) => {
            let end = guest.end()?;
            let found = guest.status();
            ensure!(
                matches!(end, End::Used(_, used) if used == len) && found == status,
                "it must end with status {status} and length {len}, and was {end:?}, status {found}"
            );
        }
        Expect::Checked | Expect::Spoiled => {}
    }
    Ok(())
}

/// Makes the ring fit for the next misdeed.
fn again(guest: &mut Guest, expect: Expect) -> Result<()> {
    match expect {
        Expect::Broken(_) | Expect::Spoiled => guest.revive(),
        Expect::Status(..) | Expect::Checked => Ok(()),
    }
}

/// A queue that broke takes nothing more, and the operator is told why; set up anew, it works.
fn stays_broken(bed: &Bed, guest: &mut Guest, words: &str) -> Result<()> {
    let shown = bed.daemon.ask(&format!("show {BAD}"))?;
    let told = shown["queues"][guest.at]["violation"].as_str().unwrap_or_default();
    ensure!(told.contains(words), "the operator is told {told:?}, and not of {words:?}");
    let places = guest.places();
    guest.zero(places[0], 16 * 4);
    guest.header(0, 0);
    let used = guest.get_u16(places[2] + 2);
    guest.offer(&[D(HEADER, 16, 1, 1), D(DATA, 512, 1 | WRITE, 2), D(STATUS, 1, WRITE, 0)])?;
    pause(Duration::from_millis(3));
    ensure!(guest.get_u16(places[2] + 2) == used, "a broken queue was served");
    ensure!(guest.status() == 0xff, "a broken queue was served");
    guest.revive()?;
    guest.honest(0, 8, 512).context("after it was set up anew")
}

/// A misdeed that lasts, beside which the neighbour must do as well as beside a guest that is as
/// busy with what is right. Both are done for as long as a window; each leaves nothing in flight.
///
/// # Errors
/// What was not as it must be.
pub fn storm(name: &str, storm: Storm) -> Result<Shown> {
    let Storm { disk, layout, kept_min, mut good, mut bad } = storm;
    let bed = Bed::start(name, disk)?;
    let guest = RefCell::new(bed.guest(layout)?);
    let shown = bed.compare_keeping(
        kept_min,
        || good(&mut guest.borrow_mut()),
        || bad(&mut guest.borrow_mut()),
    )?;
    guest.borrow_mut().revive()?;
    guest.borrow_mut().honest(0, 8, 512)?;
    drop(guest);
    bed.finish()?;
    Ok(shown)
}

/// How a guest learns that something came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// It looks without a pause.
    Spinning,
    /// It sleeps until it is called, so that the processor is left to others.
    Asleep,
}

/// Keeps chains in flight for `for_ns`: each is offered again as soon as it came back. `heads` are
/// descriptors of a split ring at which prepared chains start. Gives how many came back.
///
/// # Errors
/// The queue broke, or something did not come back.
pub fn pump(guest: &mut Guest, heads: &[u16], for_ns: u64, waits: Waits) -> Result<u64> {
    let start = now_ns();
    let (mut ended, mut in_flight) = (0, heads.len());
    guest.offer_heads(heads);
    guest.kick()?;
    let mut last = start;
    while in_flight > 0 {
        let Some((id, _)) = guest.take_used() else {
            let now = now_ns();
            ensure!(now - last < 90_000_000_000, "{in_flight} requests do not come back");
            match waits {
                Waits::Spinning => std::hint::spin_loop(),
                Waits::Asleep => guest.await_call(100)?,
            }
            continue;
        };
        (ended, in_flight, last) = (ended + 1, in_flight - 1, now_ns());
        if last - start < for_ns {
            guest.offer_heads(&[id as u16]);
            in_flight += 1;
            guest.kick()?;
        }
    }
    ensure!(!guest.was_broken()?, "the queue broke");
    Ok(ended)
}
