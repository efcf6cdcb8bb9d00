//! What is compared: each scenario is a few tables and a figure.
//!
//! Not how a run is made (`world`). Called by the program and by the test of small runs.

mod consolidation;
mod idle;
mod imbalance;
mod mixed;
mod scaling;
mod stuck;

use schedule::Policy;

use crate::costs::Way;
use crate::guest::Load;
use crate::measure::{GuestMeasures, Latencies, Outcome};
use crate::plot::{Figure, Series};
use crate::table::{Cell, Table};
use crate::world::{Setup, Who, run};

/// How much time is simulated, and how many points of each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// What is checked in under `docs/scheduling`.
    Full,
    /// A fifth of the time, every point.
    Quick,
    /// A fiftieth of the time, few points: for the test.
    Small,
}

impl Effort {
    fn divisor(self) -> u64 {
        match self {
            Effort::Full => 1,
            Effort::Quick => 5,
            Effort::Small => 50,
        }
    }

    /// `all`, or with [`Effort::Small`] the first, the middle and the last.
    fn points<T: Copy>(self, all: &[T]) -> Vec<T> {
        match self {
            Effort::Full | Effort::Quick => all.to_vec(),
            Effort::Small => {
                let places = [0, all.len() / 2, all.len().saturating_sub(1)];
                places.iter().filter_map(|place| all.get(*place)).copied().collect()
            }
        }
    }
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// One word.
    pub name: &'static str,
    /// In the order in which they are read.
    pub tables: Vec<Table>,
    /// For `NAME.svg`.
    pub figures: Vec<Figure>,
}

/// A scenario's name, and what makes it.
type Made = (&'static str, fn(u64, Effort) -> Scenario);

/// Every scenario by name; each is made from a seed.
pub const ALL: [Made; 6] = [
    ("mixed", mixed::scenario),
    ("scaling", scaling::scenario),
    ("imbalance", imbalance::scenario),
    ("consolidation", consolidation::scenario),
    ("idle", idle::scenario),
    ("stuck", stuck::scenario),
];

/// Who is compared, in the order of the legends.
const COMPARED: [Who; 3] = [Who::Sidecore(Policy::Adaptive), Who::RoundRobin, Who::Threads];

const MS: u64 = 1_000_000;
/// Of a run, before anything is measured: a quarter.
const WARM_PART: u64 = 4;

fn name(who: Who) -> String {
    match who {
        Who::Sidecore(Policy::Adaptive) => "sidecore".to_owned(),
        Who::Sidecore(policy) => format!("sidecore, {policy:?}").to_lowercase(),
        Who::Stuck(_, true) => "sidecore, stuck too".to_owned(),
        Who::Stuck(_, false) => "sidecore, stuck instead".to_owned(),
        Who::InTurn(_) => "sidecore, urgency off".to_owned(),
        Who::RoundRobin => "round robin".to_owned(),
        Who::Threads => "threads".to_owned(),
    }
}

/// A run of these guests, measured for `span_ns` of a full effort.
fn measure(
    who: Who,
    cores: usize,
    guests: Vec<(Load, usize)>,
    span_ns: u64,
    how: (u64, Effort),
) -> Outcome {
    measure_by(who, (cores, Way::RING), guests, span_ns, how)
}

/// The same for guests whose requests come by `way`.
fn measure_by(
    who: Who,
    (cores, way): (usize, Way),
    guests: Vec<(Load, usize)>,
    span_ns: u64,
    (seed, effort): (u64, Effort),
) -> Outcome {
    let span_ns = span_ns / effort.divisor();
    run(&Setup { who, cores, way, guests, seed, warm_ns: span_ns / WARM_PART, span_ns })
}

/// A stream of segments as TCP with offload makes them: 64 KiB, each 60 us of its guest's processor, so
/// that seven fill nine tenths of a core, as seven of ELVIS's filled its line.
const STREAM: Load = Load::Bulk { depth: 64, bytes: 64 << 10, cpu_ns: 60_000 };

/// Netperf's request-response: 30 us for the wire, the peer, and the guest itself.
const REQUEST_RESPONSE: Load = Load::RequestResponse { bytes: 64, think_ns: 30_000 };

/// What some guests of a run came to together.
struct Sums {
    latencies: Latencies,
    requests: u64,
    bytes: u64,
    kicks: u64,
}

fn sums<'a>(guests: impl Iterator<Item = &'a GuestMeasures> + Clone) -> Sums {
    Sums {
        latencies: Latencies::merged(guests.clone().map(|guest| &guest.latencies)),
        requests: guests.clone().map(|guest| guest.requests).sum(),
        bytes: guests.clone().map(|guest| guest.bytes).sum(),
        kicks: guests.map(|guest| guest.kicks).sum(),
    }
}

impl Outcome {
    /// Of all cores, the part of the time that they were awake.
    fn awake(&self, cores: usize) -> Cell {
        let awake_ns = self.cores.iter().map(|core| core.awake_ns).sum();
        Cell::percent(awake_ns, self.span_ns * cores as u64)
    }

    /// So many a second.
    fn rate(&self, count: u64) -> u64 {
        crate::table::ratio(count, self.span_ns, 1_000_000_000).unwrap_or(0)
    }

    /// So many bytes, in Gb/s.
    fn gigabits(&self, bytes: u64) -> Cell {
        crate::table::ratio(bytes * 8, self.span_ns, 1000)
            .map_or(Cell::None, |thousandths| Cell::Number(thousandths, 2))
    }
}

/// The lines of a panel, out of a table: of the rows whose first column is the same word, `y` over `x`.
fn series(table: &Table, x: &str, y: &str) -> Vec<Series> {
    series_where(table, x, y, |_| true)
}

fn series_where(table: &Table, x: &str, y: &str, which: impl Fn(&[Cell]) -> bool) -> Vec<Series> {
    let column = |name: &str| table.columns.iter().position(|heading| *heading == name);
    let (Some(x), Some(y)) = (column(x), column(y)) else { return Vec::new() };
    let mut lines: Vec<Series> = Vec::new();
    for row in table.rows.iter().filter(|row| which(row)) {
        let (Some(Cell::Word(who)), Some(x), Some(y)) = (row.first(), row.get(x), row.get(y))
        else {
            continue;
        };
        if lines.iter().all(|line| line.name != *who) {
            lines.push(Series { name: who.clone(), points: Vec::new() });
        }
        let line = lines.iter_mut().find(|line| line.name == *who);
        if let (Some(line), Some(x), Some(y)) = (line, x.value(), y.value()) {
            line.points.push((x, y));
        }
    }
    lines
}
