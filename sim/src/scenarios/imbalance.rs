//! Two cores with unequal load: eight disks that fill most of two cores, more and more of them on the
//! first, beside one request-response guest on each.
//!
//! Placement is static for sidecores and for round robin; threads go where there is room.

use super::{
    COMPARED, Cell, Effort, Figure, Load, MS, REQUEST_RESPONSE, Scenario, Table, Who, measure,
    name, series, sums,
};
use crate::plot::Panel;

const DISKS: usize = 8;
/// How many of them stand on the first core.
const FIRST: [usize; 5] = [4, 5, 6, 7, 8];

/// 4 KiB, 8 in flight, at most 370,000 a second: eight are 80% of two cores.
const DISK: Load = Load::Bulk { depth: 8, bytes: 4 << 10, cpu_ns: 2_700 };

pub(super) fn scenario(seed: u64, effort: Effort) -> Scenario {
    let mut rows = Vec::new();
    for who in COMPARED {
        for first in effort.points(&FIRST) {
            rows.push(row(who, first, (seed, effort)));
        }
    }
    let columns = vec![
        "who",
        "disks on first core",
        "requests/s sum",
        "slowest disk %",
        "fastest disk %",
        "rr mean us, first",
        "rr mean us, second",
        "rr p99 us, first",
        "core awake %",
    ];
    let title = "Two cores with unequal load: eight disks and two request-response guests; placement \
                 is static (queues do not move between sidecores yet)";
    let table = Table { name: "imbalance", title: title.to_owned(), columns, rows };
    let figures = vec![figure(&table)];
    Scenario { name: "imbalance", tables: vec![table], figures }
}

fn row(who: Who, first: usize, how: (u64, Effort)) -> Vec<Cell> {
    let disks = (0..DISKS).map(|disk| (DISK, usize::from(disk >= first)));
    let guests = disks.chain([(REQUEST_RESPONSE, 0), (REQUEST_RESPONSE, 1)]).collect();
    let outcome = measure(who, 2, guests, 100 * MS, how);
    let (disks, waiting) = outcome.guests.split_at(DISKS);
    let all = sums(disks.iter());
    let of_even_share =
        |requests: Option<u64>| Cell::percent(requests.unwrap_or(0) * DISKS as u64, all.requests);
    let waiting: Vec<_> = waiting.iter().map(|guest| sums(std::iter::once(guest))).collect();
    let mean = |guest: usize| Cell::us(waiting.get(guest).and_then(|w| w.latencies.mean_ns()));
    vec![
        Cell::Word(name(who)),
        Cell::count(first as u64),
        Cell::count(outcome.rate(all.requests)),
        of_even_share(disks.iter().map(|disk| disk.requests).min()),
        of_even_share(disks.iter().map(|disk| disk.requests).max()),
        mean(0),
        mean(1),
        Cell::us(waiting.first().and_then(|waiting| waiting.latencies.within_ns(990))),
        outcome.awake(2),
    ]
}

fn figure(table: &Table) -> Figure {
    let panel = |title: &str, y: &str, label: &str, log: bool| Panel {
        title: title.to_owned(),
        x: "disks on the first core (of 8)".to_owned(),
        y: label.to_owned(),
        log: (false, log),
        series: series(table, "disks on first core", y),
    };
    Figure {
        name: "imbalance",
        title: "Two cores with unequal load, static placement".to_owned(),
        panels: vec![
            panel("eight disks", "requests/s sum", "requests/s, all disks", false),
            panel("slowest disk", "slowest disk %", "% of an even share", false),
            panel("request-response on the first", "rr mean us, first", "us, mean", true),
        ],
    }
}
