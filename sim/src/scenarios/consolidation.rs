//! Sidecores of two machines put together at an IOhost (vRIO, figures 15 and 16): one for both machines
//! instead of one each, and two for whichever machine is busy while the other one is idle.
//!
//! Each machine has up to eight guests with vRIO's web server: four threads that read whole files of
//! 28 KiB. Where a link is between, its client works on the guest's processor, as vRIO's does.

use schedule::Policy;

use super::{
    Cell, Effort, Figure, Load, MS, Scenario, Table, Who, measure_by, series, series_where, sums,
};
use crate::costs::{AES_CBC_KIB_NS, AES_XTS_KIB_NS, Way};
use crate::plot::Panel;

const WHO: Who = Who::Sidecore(Policy::Adaptive);
const GUESTS: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
const FILE_BYTES: u64 = 28 << 10;

/// What a file takes of its guest's processor, so that five guests fill a quarter of a sidecore, as
/// vRIO's five did (figure 15).
const FILE_NS: u64 = 65_000;

fn web_server(way: Way) -> Load {
    let client_ns = if way == Way::RING { 0 } else { way.client_ns(FILE_BYTES) };
    Load::Bulk { depth: 4, bytes: FILE_BYTES, cpu_ns: FILE_NS + client_ns }
}

/// A way to give sidecores to the guests.
struct Placed {
    name: &'static str,
    cores: usize,
    way: Way,
}

pub(super) fn scenario(seed: u64, effort: Effort) -> Scenario {
    let tables = vec![both_busy((seed, effort)), one_busy((seed, effort))];
    let figures = vec![figure(&tables)];
    Scenario { name: "consolidation", tables, figures }
}

/// Two machines with as many guests each.
fn both_busy(how: (u64, Effort)) -> Table {
    let ways = [
        Placed { name: "one each", cores: 2, way: Way::RING },
        Placed { name: "one for both", cores: 1, way: Way::LINK },
    ];
    let mut rows = Vec::new();
    for guests in how.1.points(&GUESTS) {
        let mut alone = 0;
        for placed in &ways {
            let (answered, mut row) = run(placed, web_server(placed.way), 2 * guests, how);
            alone = if alone == 0 { answered } else { alone };
            row.insert(1, Cell::count(guests as u64));
            row.push(Cell::percent(answered, alone));
            rows.push(row);
        }
    }
    let columns =
        vec!["sidecores", "guests each", "files/s", "mean us", "cores awake %", "of one each %"];
    let title =
        "Two machines, a web server in each guest: a sidecore each, or one at an IOhost for both";
    Table { name: "both_busy", title: title.to_owned(), columns, rows }
}

/// One of two machines has guests, and what they read is decrypted.
fn one_busy(how: (u64, Effort)) -> Table {
    let mut rows = Vec::new();
    for (cipher, kib_ns) in [("AES-256-XTS", AES_XTS_KIB_NS), ("AES-256-CBC", AES_CBC_KIB_NS)] {
        let ways = [
            Placed { name: "its own", cores: 1, way: Way::RING.interposed(kib_ns) },
            Placed { name: "both at an IOhost", cores: 2, way: Way::LINK.interposed(kib_ns) },
        ];
        // The client does not encrypt.
        let loads = [web_server(Way::RING), web_server(Way::LINK)];
        for guests in how.1.points(&GUESTS) {
            let mut alone = 0;
            for (placed, load) in ways.iter().zip(loads) {
                let (answered, mut row) = run(placed, load, guests, how);
                alone = if alone == 0 { answered } else { alone };
                row.insert(1, Cell::Word(cipher.to_owned()));
                row.insert(2, Cell::count(guests as u64));
                row.push(Cell::percent(answered, alone));
                rows.push(row);
            }
        }
    }
    let columns = vec![
        "sidecores",
        "cipher",
        "guests",
        "files/s",
        "mean us",
        "cores awake %",
        "of its own %",
    ];
    let title = "One of two machines is busy, and its disks are encrypted: its own sidecore, or both \
                 machines' at an IOhost";
    Table { name: "one_busy", title: title.to_owned(), columns, rows }
}

/// Files read, and the row but for its axis and its ratio.
fn run(placed: &Placed, load: Load, guests: usize, how: (u64, Effort)) -> (u64, Vec<Cell>) {
    let all = (0..guests).map(|guest| (load, guest % placed.cores)).collect();
    let outcome = measure_by(WHO, (placed.cores, placed.way), all, 100 * MS, how);
    let sums = sums(outcome.guests.iter());
    let row = vec![
        Cell::Word(placed.name.to_owned()),
        Cell::count(outcome.rate(sums.requests)),
        Cell::us(sums.latencies.mean_ns()),
        outcome.awake(placed.cores),
    ];
    (sums.requests, row)
}

fn figure(tables: &[Table]) -> Figure {
    let mut panels = Vec::new();
    if let [both, one] = tables {
        panels.push(panel(
            "both busy",
            "guests of each machine",
            series(both, "guests each", "files/s"),
        ));
        for cipher in ["AES-256-XTS", "AES-256-CBC"] {
            let of = |row: &[Cell]| row.get(1) == Some(&Cell::Word(cipher.to_owned()));
            let lines = series_where(one, "guests", "files/s", of);
            panels.push(panel(&format!("one busy, {cipher}"), "guests", lines));
        }
    }
    let title = "Sidecores of two machines, apart and together".to_owned();
    Figure { name: "consolidation", title, panels }
}

fn panel(title: &str, x: &str, series: Vec<crate::plot::Series>) -> Panel {
    Panel {
        title: title.to_owned(),
        x: x.to_owned(),
        y: "files/s".to_owned(),
        log: (false, false),
        series,
    }
}
