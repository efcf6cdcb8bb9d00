//! 24 tenants on one sidecore, one of them hostile in turn by each kind of bad input: the other 23 see no
//! error and keep nine tenths of their throughput, and when all have gone the daemon has no descriptor, no
//! mapping and no memory more than before.
//!
//! The 23 are `tests::crowd`, the kinds `tests::misdeeds` (as data, each with a test of its own), attacks 4
//! and 10 and a flood of broadcasts. Each kind has some windows of time, beside as many in which the 24th
//! tenant is good (idle, or as busy, as in `tests::hostile_bed`), then the next has its turn, round
//! after round. `CROWD_SECONDS` says for how long; one whole round is made in any case. `CROWD_KINDS` is a part of
//! the names of the kinds that are wanted, to look for one.

#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::cell::RefCell;
use std::fmt::{self, Write};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::net_frontend::{Header, Nic, NicSpec, frames};
use testing::timing::{are_judged, judge, often};
use tests::crowd::{Crowd, TENANTS, nic};
use tests::door::{Door, Held};
use tests::hostile_bed::{KEPT_MIN, OffSidecore, act_and_mend};
use tests::misdeeds::storms::beside_programs;
use tests::misdeeds::{self, How, Misdeed, SEATS, Storm};
use tests::traffic::OTHERS;
use tests::windows::{PAUSE_MIN, Rates, then_pause};

const SEAT_NIC: &str = "nic";
const SEAT_NIC_NUMBER: u16 = 99;
/// Frames that the flooder has on their way at once.
const FLOOD_IN_FLIGHT: u16 = 24;
const SECONDS: [u64; 2] = [30, 1800];

/// A window lasts at least so long; one of a misdeed ends with the misdeed. So does the good one beside it.
const WINDOW_NS: u64 = 15_000_000;
const WINDOW_MAX_NS: u64 = 1_000_000_000;
/// Windows of each kind that a misdeed has in its turn.
const WINDOWS: usize = 2;
/// Kinds beside which too little was kept have so many turns more at the end.
const TRIES: usize = 12;
const TURN_MORE: usize = 8;
/// Between two misdeeds, as many times what the last one took of the processor time of this thread and of
/// control (`tests::windows`). Fewer than where one row is measured by itself, because this thread has the
/// lowest rank.
const PAUSES: u32 = 20;
const LOWEST_RANK: i32 = 19;
const PROGRESS_NS: u64 = 10_000_000_000;

/// What the daemon may have of its own memory more than after the first round: what an allocator keeps for
/// later is not all in use at one moment.
const GROWS_MAX: u64 = 1 << 20;
/// The same, more than before the first tenant came: what is made once and kept.
const KEEPS_MAX: u64 = 6 << 20;
/// Kinds beside which the tenants need not keep so much, and why. All else must hold beside them, too.
const UNRATED: [(&str, &str); 7] = [
    (
        "e19_address_space_for_many_devices",
        "an operator's commands, each a process beside the tenants",
    ),
    ("e33_a_front_end_that_does_not_read_its_channel", "as that"),
    ("attack_06_call_descriptor_watched_by_very_many", "not promised (docs/security.md)"),
    ("attack_09_pages_touched_for_the_first_time", "not promised"),
    ("e17_holes_in_memory_are_zeroes", "as attack 9: pages that were given back are new"),
    ("p23_split_ring_that_changes_while_it_is_read", "two vCPUs that spin beside one that is idle"),
    ("p23_packed_ring_that_changes_while_it_is_read", "as that"),
];

/// Descriptors that a sidecore makes with its first disk on a file: its io_uring, and what wakes it there.
const MADE_ONCE: usize = 2;
/// Mappings more: that io_uring's two, and two for each stack and each arena that the C library keeps for
/// later of threads that have ended.
const MAPPINGS_MORE_MAX: usize = 24;

enum Act {
    /// On a disk.
    Misdeed(How),
    /// On the switch.
    Flood,
}

/// A kind of bad input, and what the tenants had beside it.
struct Kind {
    name: &'static str,
    act: Act,
    variant: usize,
    times: u64,
    rates: Rates,
}

/// What the daemon holds.
#[derive(Debug)]
struct Footprint {
    held: Held,
    bytes: u64,
    mappings: usize,
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Footprint { held, bytes, mappings } = self;
        let descriptors = held.descriptors();
        write!(f, "{descriptors} descriptors, {mappings} mappings, {} KiB of its own", bytes >> 10)
    }
}

impl Footprint {
    fn now(daemon: &Daemon) -> Result<Footprint> {
        let mappings = daemon.mappings()?.lines().count();
        Ok(Footprint { held: Held::now(daemon)?, bytes: daemon.own_bytes()?, mappings })
    }
}

struct Round<'a> {
    daemon: &'a Daemon,
    crowd: &'a Crowd,
    /// With the 23 at work and nobody at the 24th place.
    held: Held,
    /// Of each tenant by itself, over all kinds.
    tenants: RefCell<Vec<Rates>>,
    turn: RefCell<Turn>,
}

/// What each tenant had in the windows of one turn: short ones see few requests of one tenant, and are
/// summed up.
#[derive(Default)]
struct Turn {
    bad_ns: u64,
    ns: [u64; 2],
    done: [[u64; TENANTS]; 2],
}

impl Round<'_> {
    fn door(&self, disk: &str) -> Result<Door<'_>> {
        // It is at one of them at a time, or at its NIC.
        let seat = SEATS.iter().find(|(_, seat)| *seat == disk);
        let (id, _) = seat.with_context(|| format!("no seat at {disk}"))?;
        let Round { daemon, crowd, held, .. } = self;
        Ok(Door { daemon, disk: id, load: crowd.load()?, held, is_long: false })
    }

    /// The rate of all tenants together in one window.
    fn window(&self, is_bad: bool, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut turn = self.turn.borrow_mut();
        let least = if is_bad { WINDOW_NS } else { turn.bad_ns.clamp(WINDOW_NS, WINDOW_MAX_NS) };
        let (start, before) = (now_ns(), self.crowd.counts());
        while now_ns() - start < least {
            work()?;
        }
        let (took, after) = (now_ns() - start, self.crowd.counts());
        if is_bad {
            turn.bad_ns = took;
        }
        let kind = usize::from(is_bad);
        turn.ns[kind] += took;
        let mut all = 0;
        for (sum, (before, after)) in turn.done[kind].iter_mut().zip(before.iter().zip(after)) {
            *sum += after - before;
            all += after - before;
        }
        Ok(all as f64 * 1e9 / took as f64)
    }

    /// So many windows of each kind, which count for each tenant.
    fn turn(&self, kind: &mut Kind, windows: usize) -> Result<()> {
        *self.turn.borrow_mut() = Turn::default();
        self.windows(kind, windows)?;
        let Turn { ns, done, .. } = *self.turn.borrow();
        if kind.unrated().is_some() {
            return Ok(());
        }
        for (tenant, rates) in self.tenants.borrow_mut().iter_mut().enumerate() {
            for is_bad in [false, true] {
                let at = usize::from(is_bad);
                rates.add(is_bad, done[at][tenant] as f64 * 1e9 / ns[at] as f64);
            }
        }
        Ok(())
    }

    /// So many windows of each kind; then nothing is left of that tenant.
    fn windows(&self, kind: &mut Kind, windows: usize) -> Result<()> {
        let Kind { act, variant, times, rates, .. } = kind;
        let how = match act {
            Act::Flood => return self.flood(windows, times, rates),
            Act::Misdeed(how) => how,
        };
        let door = self.door(how.disk())?;
        // One that did what costs others time is kept out for 10 s.
        await_that("the next front-end", || Ok(door.raw().is_ok()))?;
        self.held.awaited(self.daemon)?;
        match how {
            How::Ring(row) => {
                let mut guest = door.guest(row.layout)?;
                rates.take(windows, |is_bad| {
                    self.window(is_bad, || {
                        if !is_bad {
                            pause(PAUSE_MIN);
                            return Ok(());
                        }
                        *times += 1;
                        *variant = (*variant + 1) % row.variants;
                        then_pause(self.daemon, PAUSES, || {
                            act_and_mend(&mut guest, *variant, &mut row.act)
                        })
                    })
                })?;
            }
            How::Storm(Storm { layout, good, bad, .. }) => {
                let mut guest = door.guest(*layout)?;
                rates.take(windows, |is_bad| {
                    *times += u64::from(is_bad);
                    let work = if is_bad { &mut *bad } else { &mut *good };
                    self.window(is_bad, || work(&mut guest))
                })?;
            }
            How::FrontEnd(_, act) => {
                rates.add(
                    true,
                    self.window(true, || {
                        *times += 1;
                        then_pause(self.daemon, PAUSES, || act(&door))
                    })?,
                );
                // Second, since it is then known how long the other was.
                rates.add(
                    false,
                    self.window(false, || {
                        pause(PAUSE_MIN);
                        Ok(())
                    })?,
                );
            }
        }
        door.is_unharmed()?;
        self.crowd.goes_on()
    }

    /// As [`Round::windows`], of the tenant's NIC: frames for all on the switch, beside as many for nobody.
    fn flood(&self, windows: usize, sent: &mut u64, rates: &mut Rates) -> Result<()> {
        let spec = NicSpec { send_slots: FLOOD_IN_FLIGHT, ..NicSpec::default() };
        let mut nic = Nic::connect(&self.daemon.socket(SEAT_NIC), spec)?;
        let own = frames::mac(SEAT_NIC_NUMBER);
        let frame = |to: [u8; 6]| [&to[..], &own, &OTHERS, &[0x55; 50]].concat();
        let (broadcast, unicast) = (frame([0xff; 6]), frame(own));
        rates.take(windows, |is_bad| {
            let frame = if is_bad { &broadcast } else { &unicast };
            self.window(is_bad, || {
                while nic.pair(0).add(&Header::default(), frame, &[])? {
                    *sent += u64::from(is_bad);
                }
                nic.pair(0).flush()
            })
        })?;
        nic.pair(0).drain(10_000)?;
        drop(nic);
        self.held.awaited(self.daemon)?;
        self.crowd.goes_on()
    }
}

/// Every kind, in the order of `docs/security.md`.
fn kinds(daemon: &Daemon) -> Vec<Kind> {
    let new = |name, act| Kind { name, act, variant: 0, times: 0, rates: Rates::default() };
    let mut kinds: Vec<Kind> = misdeeds::all()
        .into_iter()
        .map(|Misdeed { name, how }| new(name, Act::Misdeed(how)))
        .collect();
    for (name, discards) in [("attack_04_flush_storm", false), ("attack_10_discards", true)] {
        let storm = beside_programs(daemon.dir(), discards, &Arc::default());
        kinds.push(new(name, Act::Misdeed(How::Storm(storm))));
    }
    kinds.push(new("broadcast_storm", Act::Flood));
    let wanted = std::env::var("CROWD_KINDS").unwrap_or_default();
    kinds.retain(|kind| kind.name.contains(&wanted));
    kinds
}

/// Says now and then how far it is.
struct Progress {
    start_ns: u64,
    said_ns: u64,
    seconds: u64,
}

impl Progress {
    fn elapsed_s(&self) -> u64 {
        (now_ns() - self.start_ns) / 1_000_000_000
    }

    fn say(&mut self, daemon: &Daemon, rounds: u64, kind: &str) -> Result<()> {
        let now = now_ns();
        if now - self.said_ns >= PROGRESS_NS {
            self.said_ns = now;
            let (elapsed_s, seconds) = (self.elapsed_s(), self.seconds);
            let now = Footprint::now(daemon)?;
            eprintln!("crowd: {elapsed_s} s of {seconds}, round {rounds}, at {kind}; {now}");
        }
        Ok(())
    }
}

fn config() -> String {
    let mut config = Crowd::config();
    for (id, disk) in SEATS {
        let _ = write!(config, "[[disk]]\nid = \"{id}\"\n{disk}\n");
    }
    config + &nic(SEAT_NIC, SEAT_NIC_NUMBER)
}

/// Every kind in turn until the time is over, and those beside which too little was kept again. Gives the
/// rounds, and what the daemon held after the first one.
fn rounds(round: &Round<'_>, kinds: &mut [Kind]) -> Result<(u64, Footprint)> {
    let seconds = often("CROWD_SECONDS", SECONDS)?;
    let mut progress = Progress { start_ns: now_ns(), said_ns: now_ns(), seconds };
    let (mut rounds, mut first) = (0, None);
    while rounds == 0 || progress.elapsed_s() < seconds {
        rounds += 1;
        for kind in kinds.iter_mut() {
            progress.say(round.daemon, rounds, kind.name)?;
            let done = round.turn(kind, WINDOWS);
            done.with_context(|| format!("{}, round {rounds}", kind.name))?;
            if first.is_some() && progress.elapsed_s() >= seconds {
                break;
            }
        }
        if first.is_none() {
            first = Some(Footprint::now(round.daemon)?);
        }
    }
    for kind in kinds.iter_mut() {
        for _ in 1..TRIES {
            // Where rates are not judged, more turns would tell nobody anything.
            if kind.rates.kept() >= kind.kept_min() || !are_judged() {
                break;
            }
            progress.say(round.daemon, rounds, kind.name)?;
            round.turn(kind, TURN_MORE).with_context(|| kind.name)?;
        }
    }
    Ok((rounds, first.context("no round")?))
}

impl Kind {
    /// Why it is not rated.
    fn unrated(&self) -> Option<&'static str> {
        UNRATED.iter().find(|(name, _)| *name == self.name).map(|(_, why)| *why)
    }

    fn kept_min(&self) -> f64 {
        match &self.act {
            Act::Misdeed(How::Storm(storm)) => storm.kept_min,
            _ if self.unrated().is_none() => KEPT_MIN,
            _ => 0.0,
        }
    }
}

/// What is left when all have gone, against what there was before the first came.
fn is_as_before(daemon: &Daemon, start: &Footprint) -> Result<Footprint> {
    let may = start.held.descriptors() + MADE_ONCE;
    daemon.await_descriptors(may).context("after the last tenant has gone")?;
    let end = Footprint::now(daemon)?;
    let grown = end.bytes.saturating_sub(start.bytes);
    ensure!(grown <= KEEPS_MAX, "{grown} bytes of its own are left");
    ensure!(end.held.mappings == start.held.mappings, "guests' memory is left mapped");
    let mapped = end.mappings.saturating_sub(start.mappings);
    ensure!(mapped <= MAPPINGS_MORE_MAX, "{mapped} mappings are left:\n{}", daemon.mappings()?);
    Ok(end)
}

#[test]
fn the_others_notice_nothing() -> Result<()> {
    let mut daemon = Daemon::start("crowd", &config())?;
    daemon.await_sleep()?;
    let start = Footprint::now(&daemon)?;
    // As a host keeps its guests off the sidecore's processor.
    let off = OffSidecore::new()?;
    let crowd = Crowd::start(&daemon)?;
    // The tenants' threads keep their rank. What is asked is what the daemon does for the hostile tenant,
    // not what its own vCPU takes from those of others.
    rustix::process::setpriority_process(None, LOWEST_RANK)?;
    let tenants = RefCell::new(vec![Rates::default(); TENANTS]);
    let held = Held::now(&daemon)?;
    let round = Round { daemon: &daemon, crowd: &crowd, held, tenants, turn: RefCell::default() };
    let mut kinds = kinds(&daemon);
    ensure!(!kinds.is_empty(), "CROWD_KINDS is a part of no kind's name");
    let (rounds, first) = rounds(&round, &mut kinds)?;
    let Round { tenants, .. } = round;
    let last = Footprint::now(&daemon)?;
    daemon.is_alive()?;
    let done = crowd.finish(&daemon)?;
    drop(off);
    let kept = report(&kinds, &tenants.into_inner());
    let end = is_as_before(&daemon, &start)?;
    println!(
        "crowd: {} kinds of bad input in {rounds} rounds beside {TENANTS} tenants: {} requests and {} \
         frames, all right ({} frames found full rings), the slowest request {} ms; {start} before the \
         first tenant, {first} after the first round, {last} after the last, {end} after the last \
         tenant",
        kinds.len(),
        done.requests,
        done.frames,
        done.lost,
        done.request_max_ns / 1_000_000,
    );
    let grown = last.bytes.saturating_sub(first.bytes);
    ensure!(grown <= GROWS_MAX, "{grown} bytes of its own more than after the first round");
    ensure!(last.held == first.held, "{first:?}, {last:?}");
    kept?;
    daemon.stop()
}

/// Whether so much was kept; no number is none.
fn is_kept(rates: &Rates, min: f64) -> bool {
    rates.kept() >= min
}

/// What was kept beside each kind, and by each tenant.
fn report(kinds: &[Kind], tenants: &[Rates]) -> Result<()> {
    let mut kept_too_little = Vec::new();
    for kind in kinds {
        let Kind { name, times, rates, .. } = kind;
        match kind.unrated() {
            None => println!("crowd_{name}: {times} times; the neighbours had {rates}"),
            Some(why) => println!("{name}, not rated ({why}): {times} times; {rates}"),
        }
        // Nothing measured is not enough either.
        if !is_kept(rates, kind.kept_min()) {
            kept_too_little.push(name.to_string());
        }
    }
    for (number, rates) in tenants.iter().enumerate() {
        println!("crowd_tenant_{number}: all kinds; the neighbours had {rates}");
        if !is_kept(rates, KEPT_MIN) {
            kept_too_little.push(format!("tenant {number}"));
        }
    }
    judge(kept_too_little.is_empty(), || format!("too little is kept: {kept_too_little:?}"))
}
