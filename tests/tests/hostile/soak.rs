//! A daemon over a long time, with eight guests that stay, and everything that happens to a daemon in random
//! order: front-ends that misbehave by each row, upgrades, kills, restarts, guests that vanish, disks that
//! come and go, NICs at work (reliability T1). Nothing is lost, and neither memory nor descriptors grow: in the
//! second half of the time no process ends, so that what each event leaves behind adds up.
//!
//! `SOAK_SECONDS` says for how long (20; with `--all` 600; the row asks for 86,400), `SOAK_SEED` repeats the
//! choices. An emulated guest is not among them: those are in `guest`, `recover` and `migrate`.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, is_busy, pause};
use testing::frontend::{Frontend, FrontendSpec};
use testing::load::Random;
use testing::net_frontend::NicSpec;
use testing::timing;
use testing::timing::{often, told};
use testing::verified::Load;
use tests::crowd::nic;
use tests::door::{Door, Held};
use tests::hostile_bed::act_and_mend;
use tests::hostile_guest::{Guest, Layout};
use tests::misdeeds::{self, How, Misdeed, READ_ONLY, SEATS};
use tests::soak::{self, TENANTS, Tenants};
use tests::traffic::{self, LONGEST};

const SECONDS: [u64; 2] = [20, 600];
const PROGRESS_NS: u64 = 10_000_000_000;
/// Of the last process: with fewer nothing can be said of growth, and after some misdeeds the next front-end is kept out
/// for ten seconds.
const EVENTS_MIN: usize = 16;
/// However long those take.
const OVERTIME_S: u64 = 1200;
/// Between two events.
const WORK: Duration = Duration::from_millis(50);
/// Variants of a misdeed that are done in a row.
const VARIANTS: usize = 4;
/// A misdeed that lasts, for so long.
const STORM_NS: u64 = 50_000_000;
/// Frames that each NIC must see.
const FRAMES: u64 = 200;
/// Where somebody sits who must not notice misdeeds.
const BESIDE: &str = "beside";

/// What the row allows the daemon's memory to grow by, bytes an hour.
const GROWS_AN_HOUR: f64 = (1 << 20) as f64;
/// What an allocator keeps for later is not all in use at one moment: so much is no growth.
const GROWS_MAX: f64 = (1 << 20) as f64;
/// Descriptors that a sidecore makes when it first needs them, and keeps.
const MADE_ONCE: usize = 3;

/// What happens to the daemon, and how often of [`ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Misdeed,
    Upgrade,
    Kill,
    Restart,
    Vanish,
    StopAndGoOn,
    Compare,
    Frames,
    Disk,
}

const ALL: u64 = 100;
const OFTEN: [(Event, u64); 9] = [
    (Event::Misdeed, 58),
    (Event::Upgrade, 8),
    (Event::Kill, 6),
    (Event::Restart, 3),
    (Event::Vanish, 9),
    (Event::StopAndGoOn, 5),
    (Event::Compare, 2),
    (Event::Frames, 5),
    (Event::Disk, 4),
];

/// What the daemon had after an event.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ns: u64,
    bytes: u64,
    descriptors: usize,
}

struct Soak {
    daemon: Daemon,
    tenants: Tenants,
    /// Somebody at work on a disk in memory, who goes with the process.
    beside: Option<(Load, Frontend)>,
    /// What it has with nobody at the seats of misdeeds.
    held: Held,
    /// Mappings of guests' memory in that.
    mappings: Option<usize>,
    misdeeds: Vec<Misdeed>,
    random: Random,
    samples: Vec<Sample>,
    counts: Vec<(Event, u64)>,
    /// Requests in flight when a process ended.
    in_flight: u64,
    /// Upgrades that were asked for, and those that did not take place.
    upgrades: [u64; 2],
    /// No process ends any more.
    stays: bool,
}

fn config() -> String {
    let mut config = soak::config();
    let _ = write!(config, "[[disk]]\nid = \"{BESIDE}\"\nbackend = \"memory\"\nsize = \"4M\"\n");
    for (id, disk) in SEATS {
        let _ = write!(config, "[[disk]]\nid = \"{id}\"\n{disk}\n");
    }
    let _ = write!(config, "[[switch]]\nid = \"{}\"\n", tests::crowd::SWITCH);
    config + &nic("n0", 0) + &nic("n1", 1)
}

/// What it has once nothing changes any more, with that much mapped: what a guest that vanished has lent is kept
/// until what it had in flight has ended, and a flush of a busy file system takes its time.
fn settled(daemon: &Daemon, mappings: Option<usize>) -> Result<Held> {
    let (mut last, mut same) = (Held::now(daemon)?, 0);
    let waited = await_that("the daemon to come to rest", || {
        let now = Held::now(daemon)?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        Ok(same > 20 && mappings.is_none_or(|mappings| last.mappings == mappings))
    });
    waited.with_context(|| format!("{} mappings, not {mappings:?}", last.mappings))?;
    Ok(last)
}

impl Soak {
    fn start(seed: u64) -> Result<Soak> {
        let daemon = Daemon::start("soak", &config())?;
        let tenants = Tenants::start(&daemon, seed)?;
        let held = Held::now(&daemon)?;
        let mut soak = Soak {
            daemon,
            tenants,
            beside: None,
            held,
            mappings: None,
            misdeeds: misdeeds::all(),
            random: Random(seed),
            samples: Vec::new(),
            counts: OFTEN.iter().map(|(event, _)| (*event, 0)).collect(),
            in_flight: 0,
            upgrades: [0; 2],
            stays: false,
        };
        soak.settle()?;
        Ok(soak)
    }

    /// After a process came up: somebody sits beside the misdeeds, and it is known what the daemon has.
    fn settle(&mut self) -> Result<()> {
        if self.beside.is_none() {
            let spec = FrontendSpec::linux();
            let mut frontend = self.daemon.frontend(BESIDE, &spec)?;
            let (load, _) = Load::start(&mut frontend)?;
            self.beside = Some((load, frontend));
            // A guest that was somewhere with another RAM disk is refused by one that nobody has used. Nobody can have
            // written to one that may only be read.
            for (id, _) in SEATS.iter().filter(|(_, disk)| *disk != READ_ONLY) {
                let mut guest = Guest::start(&self.daemon.socket(id), Layout::default())?;
                guest.honest(0, 8, 512)?;
            }
        }
        let (load, _) = self.beside.as_ref().context("nobody")?;
        load.await_requests(20)?;
        self.held = settled(&self.daemon, self.mappings)?;
        // Of the same guests it is always as much.
        self.mappings = Some(self.held.mappings);
        Ok(())
    }

    fn draw(&mut self) -> Event {
        let mut at = self.random.below(ALL);
        for (event, often) in OFTEN {
            if at < often {
                let ends = matches!(event, Event::Upgrade | Event::Kill | Event::Restart);
                return if ends && self.stays { Event::Misdeed } else { event };
            }
            at -= often;
        }
        Event::Misdeed
    }

    /// After an event of the same process: it has no more than before.
    fn is_as_before(&mut self) -> Result<()> {
        let now = settled(&self.daemon, self.mappings)?;
        let most = self.held.descriptors() + MADE_ONCE;
        ensure!(now.descriptors() <= most, "{now:?} is left, before it was {:?}", self.held);
        Ok(())
    }

    /// One event, and what the daemon has afterwards.
    fn turn(&mut self) -> Result<()> {
        let event = self.draw();
        let which = self.random.below(TENANTS as u64) as usize;
        match event {
            Event::Misdeed => self.misdeed()?,
            Event::Upgrade => {
                self.upgrade()?;
                self.settle()?;
            }
            Event::Kill | Event::Restart => self.end(event)?,
            Event::Vanish => {
                self.tenants.hold().replace_one(&self.daemon, which)?;
                self.is_as_before()?;
            }
            Event::StopAndGoOn => self.tenants.hold().stop_one_and_go_on(which)?,
            Event::Compare => self.tenants.hold().compare()?,
            Event::Frames => self.frames()?,
            Event::Disk => self.disk()?,
        }
        if let Some((_, count)) = self.counts.iter_mut().find(|(of, _)| *of == event) {
            *count += 1;
        }
        pause(WORK);
        self.tenants.hold().is_well()?;
        self.daemon.is_alive()?;
        let (at_ns, bytes) = (now_ns(), self.daemon.own_bytes()?);
        let descriptors = self.daemon.descriptors()?;
        self.samples.push(Sample { at_ns, bytes, descriptors });
        Ok(())
    }

    /// Another process takes over, unless this machine is too busy for it just now: then nothing has changed.
    fn upgrade(&mut self) -> Result<()> {
        self.upgrades[0] += 1;
        match self.daemon.upgrade() {
            Err(error) if is_busy(&error) => self.upgrades[1] += 1,
            upgraded => drop(upgraded?),
        }
        Ok(())
    }

    /// Somebody misbehaves and goes; nothing is left of it.
    fn misdeed(&mut self) -> Result<()> {
        let Soak { daemon, beside, held, misdeeds, random, .. } = self;
        let at = random.below(misdeeds.len() as u64) as usize;
        let Misdeed { name, how } = misdeeds.get_mut(at).context("no misdeeds")?;
        let seat = SEATS.iter().find(|(_, disk)| *disk == how.disk()).context("no seat")?;
        let (load, _) = beside.as_ref().context("nobody is beside it")?;
        let door = Door { daemon, disk: seat.0, load, held, is_long: false };
        // One that did what costs others time is kept out for 10 s.
        await_that("the next front-end", || Ok(door.raw().is_ok()))?;
        held.awaited(daemon)?;
        let done = match how {
            How::Ring(row) => door.guest(row.layout).and_then(|mut guest| {
                let first = random.below(row.variants as u64) as usize;
                let variants = (first..row.variants).take(VARIANTS);
                variants
                    .into_iter()
                    .try_for_each(|variant| act_and_mend(&mut guest, variant, &mut row.act))
            }),
            How::Storm(storm) => door.guest(storm.layout).and_then(|mut guest| {
                let start = now_ns();
                while now_ns() - start < STORM_NS {
                    (storm.bad)(&mut guest)?;
                }
                Ok(())
            }),
            How::FrontEnd(_, act) => act(&door),
        };
        done.and_then(|()| door.is_unharmed()).with_context(|| (*name).to_string())
    }

    /// The process ends, at once or in order, and another one comes up.
    fn end(&mut self, event: Event) -> Result<()> {
        if let Some((load, frontend)) = self.beside.take() {
            load.finish()?;
            drop(frontend);
        }
        let mut tenants = self.tenants.hold();
        tenants.is_well()?;
        if event == Event::Kill {
            self.daemon.kill()?
        } else {
            self.daemon.stop()?
        }
        self.in_flight += tenants.in_flight();
        self.daemon.start_again()?;
        tenants.reconnect(&self.daemon)?;
        drop(tenants);
        self.settle()
    }

    /// Two guests come and send to each other; half of the time another process takes over meanwhile.
    fn frames(&mut self) -> Result<()> {
        let connect = |id| self.daemon.nic(id, NicSpec::sending(LONGEST));
        let nics = [(connect("n0")?, 0), (connect("n1")?, 1)];
        let guests = traffic::start(nics)?;
        let awaited = guests.iter().try_for_each(|guest| guest.await_frames(FRAMES));
        let taken_over = awaited.is_ok() && !self.stays && self.random.below(2) == 0;
        if taken_over {
            self.upgrade()?;
        }
        // Whoever has ended says why.
        traffic::finish(guests)?;
        awaited?;
        if taken_over { self.settle() } else { self.is_as_before() }
    }

    /// An operator makes a disk, a guest uses it, and it is removed.
    fn disk(&mut self) -> Result<()> {
        self.daemon.ask("disk add passing --backend memory --size 4M --limit-iops 1000")?;
        let mut frontend = self.daemon.frontend("passing", &FrontendSpec::default())?;
        let (load, _) = Load::start(&mut frontend)?;
        load.await_requests(20)?;
        load.finish()?;
        drop(frontend);
        self.daemon.ask("disk rm passing --force")?;
        self.held.awaited(&self.daemon)
    }
}

/// The middle one of what `of` gives.
fn median(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> f64 {
    let mut all: Vec<u64> = samples.iter().map(of).collect();
    all.sort_unstable();
    all.get(all.len() / 2).map_or(0.0, |middle| *middle as f64)
}

/// Whether one process has no more at the end of its life than when it was warmed up: `samples` are of that one.
fn is_flat(samples: &[Sample]) -> Result<String> {
    let quarter = samples.len() / 4;
    ensure!(
        samples.len() >= EVENTS_MIN,
        "only {} events: nothing can be said of growth",
        samples.len()
    );
    let (early, late) = (&samples[quarter..2 * quarter], &samples[samples.len() - quarter..]);
    let hours = (median(late, |at| at.at_ns) - median(early, |at| at.at_ns)) / 3.6e12;
    let grown = median(late, |at| at.bytes) - median(early, |at| at.bytes);
    let most = (GROWS_AN_HOUR * hours).max(GROWS_MAX);
    let descriptors = |some: &[Sample]| some.iter().map(|at| at.descriptors).max().unwrap_or(0);
    let (before, after) = (descriptors(&samples[..samples.len() / 2]), descriptors(late));
    let said = format!(
        "own memory {:.0} KiB, {:+.0} KiB in {hours:.2} h; at most {before} descriptors, later {after}",
        median(late, |at| at.bytes) / 1024.0,
        grown / 1024.0
    );
    ensure!(grown <= most, "memory grows: {said}");
    ensure!(after <= before + MADE_ONCE, "descriptors grow: {said}");
    Ok(said)
}

#[test]
fn nothing_is_lost_and_nothing_grows() -> Result<()> {
    let seconds = often("SOAK_SECONDS", SECONDS)?;
    let seed = told("SOAK_SEED", now_ns())?.max(1);
    let start_ns = now_ns();
    let mut said_ns = start_ns;
    let mut soak = Soak::start(seed)?;
    let mut of_others = 0;
    loop {
        let elapsed_s = (now_ns() - start_ns) / 1_000_000_000;
        let has_enough = soak.stays && soak.samples.len() - of_others >= EVENTS_MIN;
        if elapsed_s >= seconds && (has_enough || elapsed_s >= seconds + OVERTIME_S) {
            break;
        }
        if !soak.stays && elapsed_s * 2 >= seconds {
            (soak.stays, of_others) = (true, soak.samples.len());
        }
        let turn = soak.turn();
        turn.with_context(|| {
            let words = soak.daemon.last_words();
            format!("event {} of seed {seed}; the daemon says:\n{words}", soak.samples.len())
        })?;
        if now_ns() - said_ns >= PROGRESS_NS {
            said_ns = now_ns();
            let last = soak.samples.last().context("no sample")?;
            eprintln!(
                "soak: {} s of {seconds}, {} events, {} KiB of its own, {} descriptors",
                (said_ns - start_ns) / 1_000_000_000,
                soak.samples.len(),
                last.bytes >> 10,
                last.descriptors
            );
        }
    }
    let Soak { mut daemon, tenants, beside, samples, counts, in_flight, upgrades, .. } = soak;
    if let Some((load, frontend)) = beside {
        load.finish()?;
        drop(frontend);
    }
    let requests =
        tenants.finish().with_context(|| format!("seed {seed}: {}", daemon.last_words()))?;
    let flat = is_flat(&samples[of_others..]).with_context(|| format!("seed {seed}"))?;
    let [asked, late] = upgrades;
    // A machine that is too busy for one is not so for all of them.
    timing::judge(asked < 4 || late * 2 <= asked, || {
        format!("seed {seed}: {late} of {asked} upgrades were given up")
    })?;
    println!(
        "soak: seed {seed}: {} events {counts:?} in {seconds} s beside {TENANTS} tenants: {requests} requests, \
         {in_flight} in flight when a process ended, {late} of {asked} upgrades given up; lost 0, corrupt 0, doubled 0; {flat}",
        samples.len()
    );
    daemon.stop()
}
