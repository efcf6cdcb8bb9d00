//! ELVIS, figure 7: seven guests on one core, of which M stream and the others wait for each answer.
//!
//! Once with streams that their guests' processors limit, as in the paper, and once with streams that
//! have always 128 requests in their rings, so that the core is never free.

use schedule::Policy;

use super::{
    Cell, Effort, Figure, Load, MS, REQUEST_RESPONSE, STREAM, Scenario, Table, Who, measure, name,
    series, sums,
};
use crate::plot::Panel;

const GUESTS: usize = 7;
const STREAMS: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

const WHO: [Who; 4] =
    [Who::Sidecore(Policy::Adaptive), Who::RoundRobin, Who::Threads, Who::InTurn(Policy::Adaptive)];

/// Always something in its ring.
const FULL_STREAM: Load = Load::Bulk { depth: 128, bytes: 64 << 10, cpu_ns: 500 };

pub(super) fn scenario(seed: u64, effort: Effort) -> Scenario {
    let paced = table(
        "mixed",
        "Seven guests on one core, M of them stream (64 KiB, 60 us of the guest's processor each), \
         the others request and wait (ELVIS, figure 7)",
        STREAM,
        (seed, effort),
    );
    let full = table(
        "mixed-full",
        "The same, with streams that always have 128 requests of 64 KiB in their rings",
        FULL_STREAM,
        (seed, effort),
    );
    let figures = vec![
        figure("mixed", "Seven guests, M of them streaming at their guests' pace", &paced),
        figure("mixed-full", "Seven guests, M of them streaming without end", &full),
    ];
    Scenario { name: "mixed", tables: vec![paced, full], figures }
}

fn table(name: &'static str, title: &str, stream: Load, how: (u64, Effort)) -> Table {
    let mut rows = Vec::new();
    for who in WHO {
        for streams in how.1.points(&STREAMS) {
            rows.push(row(who, streams, stream, how));
        }
    }
    let columns = vec![
        "who",
        "M",
        "stream Gb/s each",
        "stream Gb/s sum",
        "rr mean us",
        "rr p50 us",
        "rr p99 us",
        "kicks/request",
        "core awake %",
    ];
    Table { name, title: title.to_owned(), columns, rows }
}

fn row(who: Who, streams: usize, stream: Load, how: (u64, Effort)) -> Vec<Cell> {
    let guests = (0..GUESTS)
        .map(|guest| (if guest < streams { stream } else { REQUEST_RESPONSE }, 0))
        .collect();
    let outcome = measure(who, 1, guests, 600 * MS, how);
    let all = sums(outcome.guests.iter());
    let (streaming, waiting) = outcome.guests.split_at(streams);
    let (streaming, waiting) = (sums(streaming.iter()), sums(waiting.iter()));
    let each = streaming.bytes.checked_div(streams as u64);
    let kicks = crate::table::ratio(all.kicks, all.requests, 1000);
    vec![
        Cell::Word(name(who)),
        Cell::count(streams as u64),
        each.map_or(Cell::None, |bytes| outcome.gigabits(bytes)),
        each.map_or(Cell::None, |_| outcome.gigabits(streaming.bytes)),
        Cell::us(waiting.latencies.mean_ns()),
        Cell::us(waiting.latencies.within_ns(500)),
        Cell::us(waiting.latencies.within_ns(990)),
        kicks.map_or(Cell::None, |thousandths| Cell::Number(thousandths, 3)),
        outcome.awake(1),
    ]
}

fn figure(name: &'static str, title: &str, table: &Table) -> Figure {
    let panel = |title: &str, y: &str, label: &str, log: bool| Panel {
        title: title.to_owned(),
        x: "M, guests that stream (of 7)".to_owned(),
        y: label.to_owned(),
        log: (false, log),
        series: series(table, "M", y),
    };
    Figure {
        name,
        title: title.to_owned(),
        panels: vec![
            panel("a stream's throughput", "stream Gb/s each", "Gb/s for each guest", false),
            panel("request-response, mean", "rr mean us", "us from request to answer", true),
            panel(
                "request-response, 99th percentile",
                "rr p99 us",
                "us from request to answer",
                true,
            ),
        ],
    }
}
