//! Where the turns of a load lie so far apart that they hide the difference: in words.

use super::columns::{COLUMNS, Column, EXITS, Range};
use super::groups::{Line, Load};
use super::table::ratio;

/// What must be said below the table of a load.
pub(super) fn words(load: &Load, emulated: bool) -> Vec<String> {
    // Of which `notes` says that it has no spread.
    if load.is_of_one_turn() {
        return Vec::new();
    }
    let Some(ours) = load.sidecore() else { return Vec::new() };
    let columns = COLUMNS.iter().filter(|column| **column == EXITS || column.ratio.is_some());
    columns.filter_map(|column| hidden(load, column, ours, emulated)).collect()
}

/// Whether the turns of Sidecore and of the best that is not overlap.
fn hidden(load: &Load, column: &Column, ours: &Line, emulated: bool) -> Option<String> {
    let theirs = best(load, column)?;
    let [one, other] = [column.of(ours)?, column.of(theirs)?].map(Range::of);
    if !one.overlaps(other) {
        return None;
    }
    let is_ratio = emulated && column.is_time;
    let (name, one, other) = if is_ratio {
        let baseline = load.baseline();
        let of = |line| ratio(column, line, baseline);
        (column.against(baseline?)?, of(ours)?, of(theirs)?)
    } else {
        (column.head.to_string(), one, other)
    };
    Some(format!(
        "{} and {}: their turns overlap in {name} ({}, {}): this run shows no difference",
        ours.who,
        theirs.who,
        one.ends(),
        other.ends()
    ))
}

/// Of those that are not Sidecore.
fn best<'a>(load: &'a Load, column: &Column) -> Option<&'a Line> {
    let of = |line: &&Line| column.of(line).map_or(f64::NAN, |row| row.value);
    let lines = load.lines.iter().filter(|line| !line.is_sidecore() && column.of(line).is_some());
    if column.more {
        lines.max_by(|one, other| of(one).total_cmp(&of(other)))
    } else {
        lines.min_by(|one, other| of(one).total_cmp(&of(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::groups::experiments;
    use super::*;
    use crate::rows::Row;

    fn load(rows: &[(&str, &str, [f64; 3])], turns: u32) -> Load {
        let rows: Vec<Row> = rows
            .iter()
            .map(|(who, what, [least, value, most])| {
                let row = Row::new(format!("lab.net.udp_rr.{what}"), who, *value, "");
                Row { spread: [*least, *most], turns, ..row }
            })
            .collect();
        experiments(&rows).remove(0).loads.remove(0)
    }

    const ROWS: [(&str, &str, [f64; 3]); 6] = [
        ("qemu", "exits_per_op", [5.0, 5.6, 5.7]),
        ("vhost-net", "exits_per_op", [4.9, 5.0, 5.1]),
        ("sidecore", "exits_per_op", [4.1, 4.4, 5.6]),
        ("qemu", "ops_per_s", [900.0, 1000.0, 1100.0]),
        ("vhost-net", "ops_per_s", [1400.0, 1500.0, 1600.0]),
        ("sidecore", "ops_per_s", [1550.0, 1700.0, 1750.0]),
    ];

    #[test]
    fn turns_that_overlap_with_the_best_baseline_are_told() {
        let exits = "sidecore and vhost-net: their turns overlap in exits/op (4.100-5.600, 4.900-5.100): \
                     this run shows no difference";
        let ratio = "sidecore and vhost-net: their turns overlap in rate x qemu (1.55-1.75, 1.40-1.60): \
                     this run shows no difference";
        assert_eq!(words(&load(&ROWS, 3), true), [exits, ratio]);
        let rate = "sidecore and vhost-net: their turns overlap in ops/s (1550-1750, 1400-1600): \
                    this run shows no difference";
        assert_eq!(words(&load(&ROWS, 3), false), [exits, rate]);
    }

    #[test]
    fn turns_apart_from_each_other_need_no_words() {
        let rows = [
            ("qemu", "exits_per_op", [2.3, 2.4, 2.5]),
            ("sidecore", "exits_per_op", [1.3, 1.4, 1.5]),
            ("sidecore-es2", "exits_per_op", [2.3, 2.4, 2.5]),
        ];
        assert_eq!(words(&load(&rows, 3), true), [""; 0]);
    }

    #[test]
    fn one_turn_has_no_spread_that_could_overlap() {
        assert_eq!(words(&load(&ROWS, 1), true), [""; 0]);
    }
}
