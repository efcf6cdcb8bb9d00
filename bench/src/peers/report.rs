//! What a run came to, as it is kept in `docs/performance/peers.json`.

use std::fs::read_to_string;

use serde::{Deserialize, Serialize};
use testing::report::Row;
use testing::server::Who;

use super::entries::Entry;
use super::share::Share;

/// All of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) rounds: usize,
    pub(super) rows: Vec<Compared>,
    /// Who could not be measured.
    pub(super) lacking: Vec<Lacking>,
}

/// What it was measured on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) processors: usize,
    pub(super) kernel: String,
}

/// Who could not be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Lacking {
    pub(super) who: String,
    pub(super) why: String,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Compared {
    pub(super) name: String,
    pub(super) what: String,
    pub(super) unit: String,
    /// How many times the best other one is wanted.
    pub(super) wanted: Option<f64>,
    pub(super) of: Vec<One>,
    pub(super) share: Option<Share>,
    pub(super) outcome: Outcome,
    /// Why it was not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

/// Somebody's number in a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct One {
    pub(super) who: String,
    /// Median of the rounds.
    pub(super) value: f64,
    /// Least and greatest.
    pub(super) spread: [f64; 2],
}

/// Whether its numbers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Kept,
    /// Others worked meanwhile, and it was asked for nevertheless.
    Marked,
    /// Others worked meanwhile: its numbers are thrown away.
    Disturbed,
    NotRun,
}

impl Compared {
    /// From what the benches said of one cell: of each server the rate.
    pub(super) fn new(entry: &Entry, rows: &[Row], share: Share, even_disturbed: bool) -> Compared {
        let is_rate =
            |row: &&Row| [".iops", ".mpps", ".gbps"].iter().any(|end| row.name.ends_with(end));
        let one = |row: &Row| One { who: row.who.to_owned(), value: row.value, spread: row.spread };
        let outcome = match (share.is_disturbed(), even_disturbed) {
            (false, _) => Outcome::Kept,
            (true, true) => Outcome::Marked,
            (true, false) => Outcome::Disturbed,
        };
        let of = match outcome {
            Outcome::Disturbed => Vec::new(),
            _ => rows.iter().filter(is_rate).map(one).collect(),
        };
        let unit = rows.iter().find(is_rate).map_or("", |row| row.unit).to_owned();
        Compared { unit, of, share: Some(share), outcome, ..Compared::not_run(entry, "") }
            .without_why()
    }

    pub(super) fn not_run(entry: &Entry, why: &str) -> Compared {
        Compared {
            name: entry.name.to_owned(),
            what: entry.what.to_owned(),
            unit: String::new(),
            wanted: entry.wanted,
            of: Vec::new(),
            share: None,
            outcome: Outcome::NotRun,
            why: Some(why.to_owned()),
        }
    }

    fn without_why(self) -> Compared {
        Compared { why: None, ..self }
    }

    /// Sidecore's number.
    pub(super) fn ours(&self) -> Option<&One> {
        self.of.iter().find(|one| one.who == Who::Sidecore.word())
    }

    /// The others', the best first.
    pub(super) fn others(&self) -> Vec<&One> {
        let mut others: Vec<&One> =
            self.of.iter().filter(|one| one.who != Who::Sidecore.word()).collect();
        others.sort_by(|one, other| other.value.total_cmp(&one.value));
        others
    }

    /// How many times the best other one's number ours is.
    pub(super) fn ratio(&self) -> Option<f64> {
        let best = self.others().first().map(|best| best.value).filter(|value| *value > 0.0)?;
        Some(self.ours()?.value / best)
    }

    /// Whether the ratio, as it is printed, is what is wanted.
    pub(super) fn is_met(&self) -> Option<bool> {
        let ratio = (self.ratio()? * 100.0).round() / 100.0;
        Some(ratio >= self.wanted?)
    }
}

impl Machine {
    /// This one.
    pub(super) fn this() -> Machine {
        let processors = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine::of(&processors, &kernel)
    }

    fn of(cpuinfo: &str, kernel: &str) -> Machine {
        let names = || cpuinfo.lines().filter(|line| line.starts_with("model name"));
        let name = names().next().and_then(|line| line.split_once(':'));
        let processor = name.map_or("unknown", |(_, name)| name.trim()).to_owned();
        Machine { processor, processors: names().count(), kernel: kernel.trim().to_owned() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::peers::entries::ENTRIES;

    pub(in crate::peers) fn row(values: &[(&str, f64)]) -> Compared {
        let one = |(who, value): &(&str, f64)| One {
            who: (*who).to_owned(),
            value: *value,
            spread: [*value, *value],
        };
        let share = Share { before: [1.0, 0.99], after: [0.98, 1.0] };
        Compared {
            unit: "1/s".to_owned(),
            of: values.iter().map(one).collect(),
            share: Some(share),
            outcome: Outcome::Kept,
            why: None,
            ..Compared::not_run(&ENTRIES[0], "")
        }
    }

    #[test]
    fn the_best_other_one_is_what_counts() {
        let row = row(&[("sidecore", 15.0), ("qemu-storage-daemon", 4.0), ("spdk", 10.02)]);
        assert_eq!(row.others()[0].who, "spdk");
        // 1.497 is printed as 1.50.
        assert_eq!(row.is_met(), Some(true));
        let alone = Compared { of: row.of[..1].to_vec(), ..row };
        assert_eq!((alone.ratio(), alone.is_met()), (None, None));
    }

    #[test]
    fn numbers_of_a_busy_machine_are_thrown_away_unless_they_are_asked_for() {
        let rows = [
            Row::new(
                "blk.null.randread.qd32.iops".to_owned(),
                Who::Sidecore,
                "1/s",
                &[3.0, 1.0, 2.0],
            ),
            Row::new("blk.null.randread.qd32.p50_ns".to_owned(), Who::Sidecore, "ns", &[9.0]),
        ];
        let busy = Share { before: [1.0, 1.0], after: [0.4, 1.0] };
        let thrown = Compared::new(&ENTRIES[0], &rows, busy, false);
        assert_eq!((thrown.outcome, thrown.of.len()), (Outcome::Disturbed, 0));
        let marked = Compared::new(&ENTRIES[0], &rows, busy, true);
        assert_eq!((marked.outcome, marked.of.len()), (Outcome::Marked, 1));
        let one = marked.ours().unwrap();
        assert_eq!((one.value, one.spread, marked.unit.as_str()), (2.0, [1.0, 3.0], "1/s"));
        let quiet = Share { after: [0.99, 1.0], ..busy };
        assert_eq!(Compared::new(&ENTRIES[0], &rows, quiet, false).outcome, Outcome::Kept);
    }

    #[test]
    fn a_machine_is_told_by_its_processors() {
        let cpuinfo =
            "processor: 0\nmodel name\t: AMD EPYC\nprocessor: 1\nmodel name\t: AMD EPYC\n";
        let machine = Machine::of(cpuinfo, "6.1.0\n");
        assert_eq!((machine.processor.as_str(), machine.processors), ("AMD EPYC", 2));
        assert_eq!(machine.kernel, "6.1.0");
    }
}
