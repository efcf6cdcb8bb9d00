//! ELVIS, figures 4 to 6: 1 to 14 guests on one core and on two; streams, request-response, a disk.

use super::{
    COMPARED, Cell, Effort, Figure, Load, MS, REQUEST_RESPONSE, STREAM, Scenario, Table, Who,
    measure, name, series_where, sums,
};
use crate::plot::Panel;

const GUESTS: [usize; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

/// Eight threads of 4 KiB, each request 4 us of the guest's processor: ten times what a guest of the
/// paper did, so that a core's limit is in the picture as it was there.
const DISK: Load = Load::Bulk { depth: 8, bytes: 4 << 10, cpu_ns: 4_000 };

const LOADS: [(&str, &str, Load); 3] = [
    (
        "scaling-stream",
        "Streams (64 KiB, 60 us of the guest's processor each), 1 to 14 guests (ELVIS, figure 4)",
        STREAM,
    ),
    ("scaling-rr", "Request-response, 1 to 14 guests (ELVIS, figure 5)", REQUEST_RESPONSE),
    (
        "scaling-disk",
        "A memory disk, 4 KiB, 8 in flight, 4 us of the guest's processor each, 1 to 14 guests \
         (ELVIS, figure 6)",
        DISK,
    ),
];

pub(super) fn scenario(seed: u64, effort: Effort) -> Scenario {
    let tables: Vec<Table> =
        LOADS.iter().map(|(name, title, load)| table(name, title, *load, (seed, effort))).collect();
    let figures = [1, 2]
        .into_iter()
        .zip(["scaling-one-core", "scaling-two-cores"])
        .map(|(cores, name)| figure(name, cores, &tables))
        .collect();
    Scenario { name: "scaling", tables, figures }
}

fn table(name: &'static str, title: &str, load: Load, how: (u64, Effort)) -> Table {
    let mut rows = Vec::new();
    for cores in [1, 2] {
        for who in COMPARED {
            for guests in how.1.points(&GUESTS) {
                rows.push(row(who, cores, guests, load, how));
            }
        }
    }
    let columns = vec![
        "who",
        "cores",
        "guests",
        "requests/s sum",
        "Gb/s sum",
        "slowest guest %",
        "mean us",
        "p99 us",
        "kicks/s",
        "cores awake %",
    ];
    Table { name, title: title.to_owned(), columns, rows }
}

fn row(who: Who, cores: usize, guests: usize, load: Load, how: (u64, Effort)) -> Vec<Cell> {
    let placed = (0..guests).map(|guest| (load, guest % cores)).collect();
    let outcome = measure(who, cores, placed, 100 * MS, how);
    let all = sums(outcome.guests.iter());
    let slowest = outcome.guests.iter().map(|guest| guest.requests).min().unwrap_or(0);
    vec![
        Cell::Word(name(who)),
        Cell::count(cores as u64),
        Cell::count(guests as u64),
        Cell::count(outcome.rate(all.requests)),
        outcome.gigabits(all.bytes),
        Cell::percent(slowest * guests as u64, all.requests),
        Cell::us(all.latencies.mean_ns()),
        Cell::us(all.latencies.within_ns(990)),
        Cell::count(outcome.rate(all.kicks)),
        outcome.awake(cores),
    ]
}

fn figure(name: &'static str, cores: u64, tables: &[Table]) -> Figure {
    let what = [
        ("streams", "Gb/s sum", "Gb/s, all guests", false),
        ("request-response, mean", "mean us", "us from request to answer", true),
        ("memory disk, 4 KiB", "requests/s sum", "requests/s, all guests", false),
    ];
    let panels = tables.iter().zip(what).map(|(table, (title, y, label, log))| Panel {
        title: title.to_owned(),
        x: "guests".to_owned(),
        y: label.to_owned(),
        log: (false, log),
        series: series_where(table, "guests", y, |row| {
            row.get(1).is_some_and(|cell| *cell == Cell::count(cores))
        }),
    });
    let title =
        if cores == 1 { "1 to 14 guests on one core" } else { "1 to 14 guests on two cores" };
    Figure { name, title: title.to_owned(), panels: panels.collect() }
}
