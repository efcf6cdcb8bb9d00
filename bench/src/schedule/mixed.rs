//! A client that waits for each answer (the *one*), alone and beside six streams that keep 128 requests
//! of 64 KiB in flight, all on one sidecore.
//!
//! One thread is the driver's side of all seven. It goes round the streams, takes at most 4 completions
//! of each, and looks at the one after each of these looks, so that the streams' completions do not
//! stand before it. "Alone" is the same loop with idle streams, "streams alone" the same with an idle
//! one. The three take turns; ratios are made round by round, so that drift hits both sides.
//!
//! `s_ns` is the sidecore's time for a request of the one alone, `c_ns` that for a request of the
//! streams alone (both by its own counters), `d_ns` what is left of the one's median round trip alone:
//! the driver's turn, and the lines on their way.

use anyhow::{Result, ensure};
use testing::clock::now_ns;
use testing::report::Row;
use testing::slots::Kind;

use super::client::{Client, Wants};
use super::daemon::{Daemon, Disk};
use super::{Options, PATIENCE_NS, row};

const STREAMS: usize = 6;
const STREAM: Wants =
    Wants { kind: Kind::Read, block_bytes: 64 << 10, depth: 128, batch: 4, think_ns: 0 };
/// Between an answer and the next request a guest does something: a guest of ELVIS's does 20,000 to 60,000
/// requests a second one by one, so 20 us of its own is not much.
const ONE: Wants =
    Wants { kind: Kind::Read, block_bytes: 512, depth: 1, batch: 1, think_ns: 20_000 };
/// And one that does nothing: whatever it asks is asked again as soon as it is answered.
const HURRIED: Wants = Wants { think_ns: 0, ..ONE };
/// All disks together are six times what the last-level cache of a small machine holds.
const DISK_BYTES: u64 = 32 << 20;
/// What a window of the one must see, so that its p99 says something.
const ONE_REQUESTS_MIN: u64 = 100;

/// What is compared: a word for the names of its rows, `[sidecores] urgency`, and the one. What the daemon
/// does by itself for a usual guest has no word.
#[derive(Clone, Copy, Debug)]
struct Way {
    word: Option<&'static str>,
    urgency: &'static str,
    one: Wants,
}

const WAYS: [Way; 3] = [
    Way { word: None, urgency: "watch", one: ONE },
    Way { word: Some("off"), urgency: "off", one: ONE },
    Way { word: Some("hurried"), urgency: "watch", one: HURRIED },
];

/// Lengths of a window, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    warm_ns: u64,
    measured_ns: u64,
    rounds: usize,
}

/// Who has requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Busy {
    one: bool,
    streams: bool,
}

const ONE_ALONE: Busy = Busy { one: true, streams: false };
const STREAMS_ALONE: Busy = Busy { one: false, streams: true };
const BOTH: Busy = Busy { one: true, streams: true };

/// What one window showed.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// The one's latencies, nanoseconds.
    p50_ns: f64,
    p99_ns: f64,
    /// Of all streams, bytes a nanosecond: GB/s.
    stream_gbps: f64,
    one_requests: u64,
    stream_requests: u64,
}

/// The three windows of one round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    one_alone: Window,
    streams_alone: Window,
    both: Window,
}

/// A daemon and its seven guests.
struct Bed {
    name: String,
    one: Client,
    streams: Vec<Client>,
    daemon: Daemon,
    rounds: Vec<Round>,
}

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let rounds = if options.quick { 8 } else { 24 };
    let measured_ns = if options.quick { 30_000_000 } else { 50_000_000 };
    let times = Times { warm_ns: 10_000_000, measured_ns, rounds };
    let mut rows = Vec::new();
    for backend in ["memory", "null"] {
        let mut beds = Vec::new();
        for way in WAYS {
            beds.push(Bed::start(options, backend, way)?);
        }
        for _ in 0..times.rounds {
            for bed in &mut beds {
                bed.round(times)?;
            }
        }
        for bed in &mut beds {
            let of_one = bed.rows(times)?;
            let ratios = of_one.iter().filter(|row| row.unit == "1");
            let told: Vec<String> =
                ratios.map(|row| format!("{} {:.2}", row.name, row.value)).collect();
            eprintln!("bench: {}", told.join(", "));
            rows.extend(of_one);
        }
    }
    Ok(rows)
}

/// The dotted beginning of the names of rows: the memory disk and the daemon's own way have no word.
fn name_of(backend: &str, way: Option<&str>) -> String {
    let mut name = "mixed.".to_string();
    for word in [(backend != "memory").then_some(backend), way].into_iter().flatten() {
        name += word;
        name += ".";
    }
    name
}

impl Bed {
    fn start(options: &Options, backend: &'static str, way: Way) -> Result<Bed> {
        let name = name_of(backend, way.word);
        eprintln!("bench: schedule.{name}*: starting a daemon with {} disks", STREAMS + 1);
        let ids: Vec<String> = (0..=STREAMS).map(|number| format!("disk{number}")).collect();
        let disk =
            |id: &String| Disk { backend, size_bytes: DISK_BYTES, ..Disk::null(id.clone(), 1) };
        let disks: Vec<Disk> = ids.iter().map(disk).collect();
        let lines = format!("urgency = \"{}\"\n", way.urgency);
        let folder = name.trim_end_matches('.').replace('.', "-") + "-" + backend;
        let mut daemon = Daemon::start(options, &folder, &lines, &disks)?;
        let keeps = backend != "null";
        let mut clients = Vec::new();
        for (number, id) in ids.iter().enumerate() {
            let wants = match number {
                0 => way.one,
                // Half of them write.
                odd if odd % 2 == 1 => Wants { kind: Kind::Write, ..STREAM },
                _ => STREAM,
            };
            clients.push(Client::connect(&mut daemon, id, wants, keeps)?);
        }
        let one = clients.remove(0);
        daemon.stop()?;
        Ok(Bed { name, one, streams: clients, daemon, rounds: Vec::new() })
    }

    fn round(&mut self, times: Times) -> Result<()> {
        self.daemon.go_on()?;
        let one_alone = self.window(ONE_ALONE, times)?;
        let streams_alone = self.window(STREAMS_ALONE, times)?;
        let both = self.window(BOTH, times)?;
        self.daemon.stop()?;
        self.rounds.push(Round { one_alone, streams_alone, both });
        Ok(())
    }

    /// Starts those that are busy, measures, and lets everything end.
    fn window(&mut self, busy: Busy, times: Times) -> Result<Window> {
        if busy.one {
            self.one.start()?;
        }
        if busy.streams {
            self.streams.iter_mut().try_for_each(Client::start)?;
        }
        self.spin(busy, times.warm_ns, 0)?;
        self.one.forget_latencies();
        let start_ns = now_ns();
        let needed = if busy.one { ONE_REQUESTS_MIN } else { 0 };
        let [one_requests, stream_requests] = self.spin(busy, times.measured_ns, needed)?;
        let elapsed_ns = now_ns() - start_ns;
        let latencies = self.one.latencies();
        let window = Window {
            p50_ns: latencies.quantile(0.5) as f64,
            p99_ns: latencies.quantile(0.99) as f64,
            stream_gbps: (stream_requests * u64::from(STREAM.block_bytes)) as f64
                / elapsed_ns as f64,
            one_requests,
            stream_requests,
        };
        self.one.stop()?;
        for stream in &mut self.streams {
            stream.stop()?;
        }
        Ok(window)
    }

    /// Goes round all clients for so long, and until the one had `needed` completions and busy streams
    /// one; gives those of the one and of the streams.
    fn spin(&mut self, busy: Busy, for_ns: u64, needed: u64) -> Result<[u64; 2]> {
        let start_ns = now_ns();
        let [mut one, mut streams] = [0, 0];
        loop {
            for stream in &mut self.streams {
                streams += stream.look()? as u64;
                one += self.one.look()? as u64;
            }
            let spent_ns = now_ns() - start_ns;
            let saw_enough = one >= needed && (streams > 0 || !busy.streams);
            if spent_ns >= for_ns && saw_enough {
                return Ok([one, streams]);
            }
            let told = || format!("only {one} and {streams} answers in {spent_ns} ns");
            ensure!(spent_ns < PATIENCE_NS, told());
        }
    }

    /// The sidecore's time for a request with only some clients busy, by its counters.
    fn cost_ns(&mut self, busy: Busy, times: Times) -> Result<f64> {
        let before = self.daemon.counters()?;
        let mut requests = 0;
        if busy.one {
            self.one.start()?;
            requests += u64::from(self.one.depth());
        }
        if busy.streams {
            for stream in &mut self.streams {
                stream.start()?;
                requests += u64::from(stream.depth());
            }
        }
        // Each look that took something sent as much again.
        requests += self.spin(busy, times.measured_ns, 0)?.iter().sum::<u64>();
        self.one.stop()?;
        for stream in &mut self.streams {
            stream.stop()?;
        }
        let after = self.daemon.counters()?;
        Ok(after.busy_ns.saturating_sub(before.busy_ns) as f64 / requests as f64)
    }

    fn rows(&mut self, times: Times) -> Result<Vec<Row>> {
        self.daemon.go_on()?;
        let (mut one_costs, mut stream_costs) = (Vec::new(), Vec::new());
        for _ in 0..testing::report::ROUNDS_MIN {
            one_costs.push(self.cost_ns(ONE_ALONE, times)?);
            stream_costs.push(self.cost_ns(STREAMS_ALONE, times)?);
        }
        self.daemon.stop()?;
        let told = |what: &str, unit, value: &dyn Fn(&Round) -> f64| {
            let values: Vec<f64> = self.rounds.iter().map(value).collect();
            row(format!("{}{what}", self.name), unit, &values)
        };
        let alone = told("rr.alone.p50_ns", "ns", &|r| r.one_alone.p50_ns);
        let turns: Vec<f64> = one_costs.iter().map(|cost| alone.value - cost).collect();
        let mut rows = vec![
            told("rr.p50_ratio", "1", &|r| r.both.p50_ns / r.one_alone.p50_ns),
            told("rr.p99_ratio", "1", &|r| r.both.p99_ns / r.one_alone.p99_ns),
            told("stream.sum_ratio", "1", &|r| r.both.stream_gbps / r.streams_alone.stream_gbps),
            alone,
            told("rr.alone.p99_ns", "ns", &|r| r.one_alone.p99_ns),
            told("rr.mixed.p50_ns", "ns", &|r| r.both.p50_ns),
            told("rr.mixed.p99_ns", "ns", &|r| r.both.p99_ns),
            told("rr.mixed.requests", "1/window", &|r| r.both.one_requests as f64),
            told("stream.alone.gbps", "GB/s", &|r| r.streams_alone.stream_gbps),
            told("stream.mixed.gbps", "GB/s", &|r| r.both.stream_gbps),
            told("stream.mixed.requests", "1/window", &|r| r.both.stream_requests as f64),
        ];
        for (what, values) in [("s_ns", one_costs), ("d_ns", turns), ("c_ns", stream_costs)] {
            rows.push(row(format!("{}{what}", self.name), "ns", &values));
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_unusual_has_a_word() {
        assert_eq!(name_of("memory", None), "mixed.");
        assert_eq!(name_of("null", None), "mixed.null.");
        assert_eq!(name_of("memory", Some("off")), "mixed.off.");
        assert_eq!(name_of("null", Some("watch")), "mixed.null.watch.");
    }
}
