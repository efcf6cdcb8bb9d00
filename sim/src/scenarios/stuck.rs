//! What ELVIS's rule of stuck queues would add to pieces and urgency: the mixes of figure 7 with and without
//! it, and one in which more guests wait than are watched.

use schedule::Policy;

use super::{
    Cell, Effort, Load, MS, REQUEST_RESPONSE, STREAM, Scenario, Table, Who, measure, name, sums,
};

const WHO: [Who; 4] = [
    Who::Sidecore(Policy::Adaptive),
    Who::Stuck(Policy::Adaptive, true),
    Who::InTurn(Policy::Adaptive),
    Who::Stuck(Policy::Adaptive, false),
];

/// Always something in its ring.
const FULL: Load = Load::Bulk { depth: 128, bytes: 64 << 10, cpu_ns: 500 };
const SMALL: Load = Load::Bulk { depth: 128, bytes: 4 << 10, cpu_ns: 500 };
/// Eight reads of 4 KiB are too much to be watched for; one that waits for its answer, all the same.
const EIGHT: Load = Load::Bulk { depth: 8, bytes: 4 << 10, cpu_ns: 5_000 };

/// A mix: its name, and so many of each load.
const MIXES: [(&str, &[(usize, Load)]); 6] = [
    ("7 paced, 3 of them stream", &[(3, STREAM), (4, REQUEST_RESPONSE)]),
    ("1 stream, 6 wait", &[(1, FULL), (6, REQUEST_RESPONSE)]),
    ("6 streams, 1 waits", &[(6, FULL), (1, REQUEST_RESPONSE)]),
    ("4 streams, 24 wait", &[(4, FULL), (24, REQUEST_RESPONSE)]),
    ("4 streams, 2 of 4 KiB, 4 wait", &[(4, FULL), (2, SMALL), (4, REQUEST_RESPONSE)]),
    ("4 streams, 2 at depth 8", &[(4, FULL), (2, EIGHT)]),
];

pub(super) fn scenario(seed: u64, effort: Effort) -> Scenario {
    let mut rows = Vec::new();
    for (mix, loads) in effort.points(&MIXES) {
        rows.extend(WHO.map(|who| row(who, mix, loads, (seed, effort))));
    }
    let columns = vec![
        "who",
        "mix",
        "streams Gb/s",
        "least of most",
        "others /s",
        "others mean us",
        "others p50 us",
        "others p99 us",
    ];
    let title =
        "Visits that also end for a stuck queue: with urgency (too) and in its stead (instead); \
                 the least of the large streams' part of what the most got"
            .to_owned();
    let table = Table { name: "stuck", title, columns, rows };
    Scenario { name: "stuck", tables: vec![table], figures: Vec::new() }
}

fn row(who: Who, mix: &str, loads: &[(usize, Load)], how: (u64, Effort)) -> Vec<Cell> {
    let guests = loads.iter().flat_map(|(count, load)| vec![(*load, 0); *count]).collect();
    let outcome = measure(who, 1, guests, 400 * MS, how);
    let streams = loads.first().map_or(0, |(count, _)| *count);
    let (streaming, others) = outcome.guests.split_at(streams);
    let bytes = streaming.iter().map(|guest| guest.bytes);
    let (least, most) = (bytes.clone().min().unwrap_or(0), bytes.max().unwrap_or(0));
    let (streaming, others) = (sums(streaming.iter()), sums(others.iter()));
    vec![
        Cell::Word(name(who)),
        Cell::Word(mix.to_owned()),
        outcome.gigabits(streaming.bytes),
        crate::table::ratio(least, most, 1000).map_or(Cell::None, |of| Cell::Number(of, 3)),
        Cell::count(outcome.rate(others.requests)),
        Cell::us(others.latencies.mean_ns()),
        Cell::us(others.latencies.within_ns(500)),
        Cell::us(others.latencies.within_ns(990)),
    ]
}
