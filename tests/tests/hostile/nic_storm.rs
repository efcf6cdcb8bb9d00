//! 64 guests on one switch and one sidecore: while one floods broadcasts as fast as it can, the pairs of
//! the others keep nine tenths of what they exchange beside the same guest when it is as busy with frames
//! for one port, which drops them.
//!
//! Both rates are measured in one run, in short windows that take turns. The nine tenths are for the long
//! form (`./x test --all`); the short one runs on machines whose other work nobody knows.
#![expect(clippy::disallowed_macros, reason = "what was measured is for the record")]

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::bed::tests_all;
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that};
use testing::net_frontend::{Header, Nic, NicSpec, Received, Stream, frames};
use testing::timing;
use tests::crowd::lost_to_full_rings;
use tests::windows::Rates;

/// Guests 1 to 62 are 31 pairs, 63 takes no frame, 64 floods.
const NEIGHBOURS: u16 = 62;
const DEAF: u16 = 63;
const FLOODER: u16 = 64;
/// Frames that each neighbour has on their way out at once: two visits of its sidecore.
const IN_FLIGHT: u16 = 64;
/// The same of the flooder. Each broadcast is 62 copies and more: all of them in one visit, without turns,
/// would leave the neighbours 72%, which the long form tells from nine tenths. More would too, but where
/// guests and sidecore share a core, all that was sent is served before the guests go on, in turns or
/// not; with these, that does not fail the short form.
const FLOOD_IN_FLIGHT: u16 = 24;
/// More than a guest may be sent between two times that it takes what has come: its peer's 64 and the flooder's 48 (a
/// slot may come back while it fills the others) of a visit that is not shown yet, the same of the next one, the same
/// that follow them, and its peer's 64 of the round that begins: 400.
const RING: u16 = 512;
const WINDOW_NS: u64 = 30_000_000;
/// Windows of each kind in each try.
const WINDOWS: usize = 16;
const TRIES: usize = 8;
const KEPT_MIN: f64 = 0.9;
const SHORT_FORM: f64 = 0.75;
/// One frame in so many rounds is read and compared.
const SAMPLE: u64 = 16;
const CROSSING_MS: u64 = 90_000;

/// Rows measure, so no two of them run at once.
static ALONE: Mutex<()> = Mutex::new(());

/// A guest of a pair.
struct Neighbour {
    nic: Nic,
    stream: Stream,
    /// What its peer sends it.
    expected: Vec<u8>,
    sent: u64,
    sampled: u64,
}

struct Storm {
    daemon: Daemon,
    neighbours: Vec<Neighbour>,
    flooder: Nic,
    _deaf: Nic,
    broadcast: Vec<u8>,
    unicast: Vec<u8>,
    /// What the flooder sent: broadcasts, and frames for the deaf one.
    flooded: u64,
    fair: u64,
    rounds: u64,
}

fn frame_of(from: u16, to: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = frames::small(frames::mac(from), to);
    // The IP packet stays short; what follows it is padding that has to arrive as well.
    frame.extend((frame.len()..len).map(|at| (at + usize::from(from) * 7) as u8));
    frame
}

/// The guest that a neighbour exchanges frames with.
fn peer(number: u16) -> u16 {
    if number % 2 == 1 { number + 1 } else { number - 1 }
}

impl Storm {
    fn start(name: &str, len: usize) -> Result<Storm> {
        let mut config = String::from("[[switch]]\nid = \"lan\"\n");
        for number in 1..=FLOODER {
            let mac = frames::mac(number).map(|byte| format!("{byte:02x}")).join(":");
            write!(config, "[[nic]]\nid = \"n{number}\"\nswitch = \"lan\"\nmac = \"{mac}\"\n")?;
        }
        let daemon = Daemon::start(name, &config)?;
        let connect = |number: u16| {
            let send_slots = if number == FLOODER { FLOOD_IN_FLIGHT } else { IN_FLIGHT };
            let mut spec = NicSpec { send_slots, ..NicSpec::default() };
            spec.ring.size = RING;
            Nic::connect(&daemon.socket(&format!("n{number}")), spec)
                .with_context(|| format!("the daemon says:\n{}", daemon.last_words()))
        };
        let mut neighbours = Vec::new();
        for number in 1..=NEIGHBOURS {
            let mut nic = connect(number)?;
            let frame = frame_of(number, frames::mac(peer(number)), len);
            let stream = Stream::new(nic.pair(0), &Header::default(), &frame)?;
            let expected = frame_of(peer(number), frames::mac(number), len);
            neighbours.push(Neighbour { nic, stream, expected, sent: 0, sampled: 0 });
        }
        let (deaf, flooder) = (connect(DEAF)?, connect(FLOODER)?);
        await_that("all queues to be attached", || {
            let lan = daemon.ask("ls")?;
            let nics = lan["nics"].as_array().context("no NICs")?;
            Ok(nics.iter().all(|nic| nic["queues_attached"] == 2))
        })?;
        Ok(Storm {
            daemon,
            neighbours,
            flooder,
            _deaf: deaf,
            broadcast: frame_of(FLOODER, [0xff; 6], len),
            unicast: frame_of(FLOODER, frames::mac(DEAF), len),
            flooded: 0,
            fair: 0,
            rounds: 0,
        })
    }

    /// Each guest sends what it may and takes what has come.
    fn round(&mut self, floods: bool) -> Result<()> {
        self.rounds += 1;
        for neighbour in &mut self.neighbours {
            neighbour.round(self.rounds.is_multiple_of(SAMPLE), &self.broadcast)?;
        }
        let (frame, count) = match floods {
            true => (&self.broadcast, &mut self.flooded),
            false => (&self.unicast, &mut self.fair),
        };
        while self.flooder.pair(0).add(&Header::default(), frame, &[])? {
            *count += 1;
        }
        self.flooder.pair(0).flush()
    }

    /// Frames a second that the neighbours sent in one window. Each of them must get on in it, however
    /// long that takes.
    fn window(&mut self, floods: bool) -> Result<f64> {
        // What is still on its way of the other kind is not of this window.
        for _ in 0..4 {
            self.round(floods)?;
        }
        let before: Vec<u64> = self.neighbours.iter().map(|neighbour| neighbour.sent).collect();
        let start = now_ns();
        loop {
            self.round(floods)?;
            let took = now_ns() - start;
            let mut sent = self.neighbours.iter().map(|neighbour| neighbour.sent).zip(&before);
            // The slots are filled again with what came back: a whole set and one more did.
            if took >= WINDOW_NS && sent.all(|(now, before)| now > before + u64::from(IN_FLIGHT)) {
                let all: u64 = self.neighbours.iter().map(|neighbour| neighbour.sent).sum();
                let done = all - before.iter().sum::<u64>();
                return Ok(done as f64 * 1e9 / took as f64);
            }
            ensure!(took < CROSSING_MS * 1_000_000, "a neighbour does not get on");
        }
    }

    /// Sends until the one who takes nothing has lost some, however slow this machine is.
    fn fill_the_deaf(&mut self) -> Result<()> {
        let start = now_ns();
        while self.fair + self.flooded <= 2 * u64::from(RING) {
            self.round(false)?;
            ensure!(now_ns() - start < CROSSING_MS * 1_000_000, "the flooder does not get on");
        }
        Ok(())
    }

    /// Ends all sending, and takes what is still to come. Gives what each neighbour got.
    fn settle(&mut self) -> Result<Vec<u64>> {
        self.flooder.pair(0).drain(CROSSING_MS)?;
        let mut got = Vec::new();
        for neighbour in &mut self.neighbours {
            neighbour.nic.pair(0).drain(CROSSING_MS)?;
        }
        // What was sent is shown to whom it is for at the end of a visit.
        self.daemon.await_visits("lan")?;
        for neighbour in &mut self.neighbours {
            while neighbour.stream.sink(neighbour.nic.pair(0))? > 0 {}
            got.push(neighbour.stream.sunk().frames + neighbour.sampled);
        }
        Ok(got)
    }

    fn counters(&self, number: u16) -> Result<Value> {
        Ok(self.daemon.ask(&format!("nic show n{number}"))?["counters"].clone())
    }

    /// Every frame is accounted for, at the port that it was for, with its reason.
    fn check_counts(&mut self) -> Result<()> {
        let got = self.settle()?;
        for number in 1..=NEIGHBOURS {
            let counters = self.counters(number)?;
            let at = usize::from(number) - 1;
            let sent = self.neighbours[at].sent;
            let to_it = self.neighbours[usize::from(peer(number)) - 1].sent + self.flooded;
            ensure!(counters["taken_frames"] == sent, "{number} sent {sent}: {counters}");
            ensure!(
                counters["delivered_frames"] == got[at],
                "{number} got {}: {counters}",
                got[at]
            );
            // It has more buffers than what may come in between, so that nothing is lost.
            ensure!(
                lost_to_full_rings(&counters)? == 0 && got[at] == to_it,
                "{to_it} to {number}: {counters}"
            );
        }
        let (deaf, flooder) = (self.counters(DEAF)?, self.counters(FLOODER)?);
        ensure!(deaf["delivered_frames"] == RING, "the deaf one has {RING} buffers: {deaf}");
        let lost = self.fair + self.flooded - u64::from(RING);
        ensure!(lost_to_full_rings(&deaf)? == lost, "{lost} frames found no buffer: {deaf}");
        let all = self.fair + self.flooded;
        ensure!(flooder["taken_frames"] == all, "the flooder sent {all}: {flooder}");
        ensure!(
            lost_to_full_rings(&flooder)? == 0 && flooder["delivered_frames"] == 0,
            "{flooder}"
        );
        Ok(())
    }
}

impl Neighbour {
    fn round(&mut self, samples: bool, broadcast: &[u8]) -> Result<()> {
        let pair = self.nic.pair(0);
        self.sent += self.stream.pump(pair)? as u64;
        if samples {
            let mut got = Received::default();
            if pair.receive_into(&mut got)? {
                self.sampled += 1;
                let is_known = got.bytes == self.expected || got.bytes == broadcast;
                ensure!(is_known, "a frame that nobody sent: {:02x?}", got.bytes);
            }
        }
        while self.stream.sink(pair)? > 0 {}
        Ok(())
    }
}

fn storm(name: &str, len: usize) -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut storm = Storm::start(name, len)?;
    let kept_min = if tests_all() { KEPT_MIN } else { KEPT_MIN * SHORT_FORM };
    let mut rates = Rates::default();
    let tries = rates.take_until(kept_min, TRIES, WINDOWS, |floods| storm.window(floods))?;
    println!(
        "{name}: {} broadcasts, {} fair frames; the neighbours had {rates} ({tries} times the windows)",
        storm.flooded, storm.fair
    );
    let sampled: u64 = storm.neighbours.iter().map(|neighbour| neighbour.sampled).sum();
    println!("{name}: {sampled} frames compared in {} rounds", storm.rounds);
    storm.fill_the_deaf()?;
    ensure!(storm.flooded > 0 && storm.fair > 0 && sampled > 0, "nothing was sent");
    storm.check_counts()?;
    storm.daemon.is_alive()?;
    // Each of them got on in each window, or it would not have ended.
    timing::judge(rates.kept() >= kept_min, || format!("the neighbours had {rates}"))?;
    storm.daemon.stop()
}

#[test]
fn broadcast_storm_of_small_frames() -> Result<()> {
    storm("storm-64", 64)
}

#[test]
fn broadcast_storm_of_long_frames() -> Result<()> {
    storm("storm-1514", 1514)
}
