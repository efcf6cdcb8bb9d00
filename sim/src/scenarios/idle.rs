//! A thousand guests that hardly do anything, on one core; ten thousand; and some that are busy in bursts.

use schedule::Policy;

use super::{Cell, Effort, Figure, Load, MS, Scenario, Table, Who, measure, name, series, sums};
use crate::plot::Panel;

/// Requests a second of each guest; 0: none.
const RATES: [u64; 7] = [0, 1, 3, 10, 30, 100, 300];

const COMPARED: [Who; 5] = [
    Who::Sidecore(Policy::Adaptive),
    Who::RoundRobin,
    Who::Threads,
    Who::Sidecore(Policy::Notify),
    Who::Sidecore(Policy::Poll),
];

pub(super) fn scenario(seed: u64, effort: Effort) -> Scenario {
    let mut rows = Vec::new();
    let mut many = Vec::new();
    let mut bursts = Vec::new();
    for who in COMPARED {
        for rate in effort.points(&RATES) {
            rows.push(row(who, (1000, poisson(rate)), rate, 600 * MS, (seed, effort)));
        }
        // A sidecore's places are numbered by 16 bits; this is the size that is asked for.
        for rate in effort.points(&[0, 1, 10]) {
            many.push(row(who, (10_000, poisson(rate)), rate, 200 * MS, (seed, effort)));
        }
        for rate in effort.points(&[1, 10, 30]) {
            bursts.push(row(who, (20, in_bursts(rate)), rate, 600 * MS, (seed, effort)));
        }
    }
    let each = "requests/s of each";
    let title = "A thousand mostly idle guests on one core, 4 KiB at random times";
    let thousand = table("idle", title, each, rows);
    let ten = table("idle-10000", "Ten thousand of them", each, many);
    let title = "Twenty guests that are busy in bursts: 4 KiB each 20 us for 1 ms, then silence";
    let bursts = table("bursts", title, "bursts/s of each", bursts);
    let figures = vec![figure(&thousand)];
    Scenario { name: "idle", tables: vec![thousand, ten, bursts], figures }
}

fn table(name: &'static str, title: &str, each: &'static str, rows: Vec<Vec<Cell>>) -> Table {
    let columns = vec![
        "who",
        each,
        "served/s",
        "core awake %",
        "mean us",
        "p99 us",
        "kicks/request",
        "refused",
    ];
    Table { name, title: title.to_owned(), columns, rows }
}

fn poisson(rate: u64) -> Load {
    1_000_000_000u64
        .checked_div(rate)
        .map_or(Load::Idle, |gap_ns| Load::Poisson { bytes: 4 << 10, gap_ns })
}

fn in_bursts(rate: u64) -> Load {
    let off_ns = 1_000_000_000 / rate - MS;
    Load::OnOff { bytes: 4 << 10, gap_ns: 20_000, on_ns: MS, off_ns }
}

fn row(
    who: Who,
    (guests, load): (usize, Load),
    rate: u64,
    span_ns: u64,
    how: (u64, Effort),
) -> Vec<Cell> {
    let outcome = measure(who, 1, vec![(load, 0); guests], span_ns, how);
    let all = sums(outcome.guests.iter());
    let refused = outcome.guests.iter().map(|guest| guest.refused).sum();
    let kicks = crate::table::ratio(all.kicks, all.requests, 1000);
    vec![
        Cell::Word(name(who)),
        Cell::count(rate),
        Cell::count(outcome.rate(all.requests)),
        outcome.awake(1),
        Cell::us(all.latencies.mean_ns()),
        Cell::us(all.latencies.within_ns(990)),
        kicks.map_or(Cell::None, |thousandths| Cell::Number(thousandths, 3)),
        Cell::count(refused),
    ]
}

fn figure(table: &Table) -> Figure {
    let panel = |title: &str, y: &str, label: &str, log: (bool, bool)| Panel {
        title: title.to_owned(),
        x: "requests a second of each guest".to_owned(),
        y: label.to_owned(),
        log,
        series: series(table, "requests/s of each", y),
    };
    Figure {
        name: "idle",
        title: "A thousand mostly idle guests on one core".to_owned(),
        panels: vec![
            panel("processor", "core awake %", "% of the core", (true, false)),
            panel("latency, mean", "mean us", "us from request to answer", (true, true)),
            panel("latency, 99th percentile", "p99 us", "us from request to answer", (true, true)),
        ],
    }
}
