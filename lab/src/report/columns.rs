//! What is told of a configuration, and whether as it is or as a ratio: where time is emulated, what takes time is
//! told only as a ratio against the baseline of the same load in the same run.
//!
//! Used by `table`, `spread`, `series` and `papers`.

use super::groups::{Line, Load};
use crate::rows::Row;

/// A value that configurations have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Column {
    /// In the names of rows; the first that is there is taken.
    pub(super) names: &'static [&'static str],
    /// What it is called.
    pub(super) head: &'static str,
    /// What it is called as a ratio.
    pub(super) ratio: Option<&'static str>,
    /// It is a time or a rate.
    pub(super) is_time: bool,
    /// More of it is better.
    pub(super) more: bool,
}

const fn count(names: &'static [&'static str], head: &'static str, more: bool) -> Column {
    Column { names, head, ratio: None, is_time: false, more }
}

const fn time(
    names: &'static [&'static str],
    head: &'static str,
    ratio: &'static str,
    more: bool,
) -> Column {
    Column { names, head, ratio: Some(ratio), is_time: true, more }
}

pub(super) const DOORBELLS: Column = count(&["doorbell_exits_per_op"], "doorbells/op", false);
pub(super) const EXITS: Column = count(&["exits_per_op"], "exits/op", false);
pub(super) const TO_USER: Column = count(&["user_exits_per_op"], "to user/op", false);
pub(super) const IN_GUEST: Column = count(&["tig_percent"], "in guest %", true);
/// Of what the guest has while it only computes.
pub(super) const OF_REACHABLE: Column =
    count(&["tig_of_reachable_percent"], "of reachable %", true);
/// Of the time in which the guest did not wait for something to do.
pub(super) const OF_NOT_HALTED: Column =
    count(&["tig_of_not_halted_percent"], "of not halted %", true);
pub(super) const RATE: Column = time(&["iops", "ops_per_s"], "ops/s", "rate", true);
pub(super) const P50: Column = time(&["p50_us"], "p50 us", "p50", false);
pub(super) const P99: Column = time(&["p99_us"], "p99 us", "p99", false);

/// Those of a load's table, as they are shown; what is of the time of vCPUs stands in one of its own.
pub(super) const COLUMNS: [Column; 11] = [
    DOORBELLS,
    EXITS,
    count(&["injections_per_op"], "injections/op", false),
    TO_USER,
    count(&["redirected_per_op"], "redirected/op", false),
    count(&["server_cpu_percent"], "servers' cpu %", false),
    Column { ratio: None, ..time(&["exits_per_s"], "exits/s", "", false) },
    RATE,
    P50,
    P99,
    time(&["server_cpu_us_per_op"], "servers' us/op", "servers' cpu/op", false),
];

impl Column {
    /// What a configuration has of it.
    pub(super) fn of<'a>(&self, line: &'a Line) -> Option<&'a Row> {
        line.value(self.names)
    }

    /// Some configuration of the load has it.
    pub(super) fn is_in(&self, load: &Load) -> bool {
        load.lines.iter().any(|line| self.of(line).is_some())
    }

    /// The head of its ratios: `rate x qemu`.
    pub(super) fn against(&self, baseline: &Line) -> Option<String> {
        Some(format!("{} x {}", self.ratio?, baseline.who))
    }
}

/// A median and its ends, as they are or divided by something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    /// Digits after the point, of what is less than 10.
    digits: usize,
}

/// Of values, and of ratios.
const DIGITS: [usize; 2] = [3, 2];

impl Range {
    /// Of a row.
    pub(super) fn of(row: &Row) -> Range {
        let [least, most] = row.spread;
        Range::new(row.value, least, most)
    }

    /// Of values as they are.
    pub(super) fn new(median: f64, least: f64, most: f64) -> Range {
        Range { median, least, most, digits: DIGITS[0] }
    }

    /// Its values in parts of another's median. None where that is nothing.
    pub(super) fn against(self, base: &Row) -> Option<Range> {
        let by = base.value;
        (by > 0.0).then(|| Range {
            median: self.median / by,
            least: self.least / by,
            most: self.most / by,
            digits: DIGITS[1],
        })
    }

    /// Some of one's turns may have been the other's.
    pub(super) fn overlaps(self, other: Range) -> bool {
        self.least.max(other.least) <= self.most.min(other.most)
    }

    /// For people; with its ends where they hide the second digit.
    pub(super) fn shown(self) -> String {
        let apart = self.most - self.least;
        let digits = self.digits();
        let value = format!("{:.digits$}", self.median);
        if apart > self.median / 10.0 && apart > 0.001 {
            format!("{value} ({})", self.ends())
        } else {
            value
        }
    }

    /// `4.100-5.600`
    pub(super) fn ends(self) -> String {
        let digits = self.digits();
        format!("{:.digits$}-{:.digits$}", self.least, self.most)
    }

    fn digits(self) -> usize {
        match self.median {
            median if median < 10.0 => self.digits,
            median if median < 100.0 => 1,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_where_they_hide_the_second_digit() {
        let of = |median, least, most| Range::new(median, least, most).shown();
        assert_eq!(of(2.43, 2.4, 2.45), "2.430");
        assert_eq!(of(2.43, 2.1, 3.28), "2.430 (2.100-3.280)");
        assert_eq!(of(97.5, 97.4, 99.0), "97.5");
        assert_eq!(of(1880.0, 1200.0, 1900.0), "1880 (1200-1900)");
        assert_eq!(of(0.0, 0.0, 0.0005), "0.000");
    }

    #[test]
    fn what_is_a_time_by_its_column_is_one_by_its_unit() {
        let units = [
            ("doorbell_exits_per_op", "1/op"),
            ("server_cpu_percent", "%"),
            ("exits_per_s", "1/s"),
            ("ops_per_s", "1/s"),
            ("p99_us", "us"),
            ("server_cpu_us_per_op", "us/op"),
        ];
        for (name, unit) in units {
            let column = COLUMNS.iter().find(|column| column.names.contains(&name));
            let is_time = Row::new(name.into(), "qemu", 1.0, unit).is_time();
            assert_eq!(column.map(|column| column.is_time), Some(is_time), "{name}");
        }
    }
}
