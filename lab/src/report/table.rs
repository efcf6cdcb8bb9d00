//! Tables: of a load, with a line for each configuration, and others; as text.
//!
//! Not as a page (`html`).

use super::columns::{COLUMNS, Column, IN_GUEST, OF_NOT_HALTED, OF_REACHABLE, Range};
use super::groups::{Line, Load};

/// Heads, and lines of as many cells.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) heads: Vec<String>,
    pub(super) lines: Vec<Vec<String>>,
    /// How many columns at the left, and how many at the right, are words; the others are numbers.
    pub(super) words: [usize; 2],
}

/// No such value.
pub(super) const NONE: &str = "-";

impl Table {
    /// A line for each configuration. Where time is emulated, times are ratios only; elsewhere both. None if nothing is
    /// known that stands in it.
    pub(super) fn of(load: &Load, emulated: bool) -> Option<Table> {
        let has = |column: &&Column| column.is_in(load);
        let values: Vec<&Column> =
            COLUMNS.iter().filter(has).filter(|column| !(emulated && column.is_time)).collect();
        let mut heads = vec!["who".to_string()];
        heads.extend(values.iter().map(|column| column.head.to_string()));
        let baseline = load.baseline();
        let mut ratios: Vec<&Column> = Vec::new();
        for column in COLUMNS.iter().filter(has) {
            if let Some(head) = baseline.and_then(|baseline| column.against(baseline)) {
                heads.push(head);
                ratios.push(column);
            }
        }
        let cells = |line: &Line| {
            let shown = |range: Option<Range>| range.map_or_else(|| NONE.to_string(), Range::shown);
            let mut cells = vec![line.who.clone()];
            cells.extend(values.iter().map(|column| shown(column.of(line).map(Range::of))));
            cells.extend(ratios.iter().map(|column| shown(ratio(column, line, baseline))));
            cells
        };
        let lines = load.lines.iter().map(cells).collect();
        (heads.len() > 1).then_some(Table { heads, lines, words: [1, 0] })
    }

    /// Where the time of each configuration's vCPUs went: in the guest, halted, or serving exits, and the cause that took
    /// most of that; then what the time in guest is set beside. None if it is not known.
    pub(super) fn of_time(load: &Load) -> Option<Table> {
        let has = |column: &&&Column| column.is_in(load);
        let beside: Vec<&Column> =
            [&OF_REACHABLE, &OF_NOT_HALTED].into_iter().filter(|column| has(&column)).collect();
        let mut heads = ["who", IN_GUEST.head, "halted %", "exits %"].map(String::from).to_vec();
        heads.extend(beside.iter().map(|column| column.head.to_string()));
        heads.push("most of exits".to_string());
        let none = || NONE.to_string();
        let cells = |line: &Line| {
            let column =
                |column: &Column| column.of(line).map_or_else(none, |row| Range::of(row).shown());
            let mut cells = vec![line.who.clone(), column(&IN_GUEST)];
            let (all, most) = line.serving().unzip();
            cells.push(line.halted().map_or_else(none, Range::shown));
            cells.push(all.map_or_else(none, |all| Range::new(all, all, all).shown()));
            cells.extend(beside.iter().map(|one| column(one)));
            let most = most.flatten().map(|(cause, value)| format!("{cause} {value:.1}"));
            cells.push(most.unwrap_or_else(none));
            cells
        };
        let known = load.lines.iter().filter(|line| IN_GUEST.of(line).is_some());
        let lines: Vec<Vec<String>> = known.map(cells).collect();
        (!lines.is_empty()).then_some(Table { heads, lines, words: [1, 1] })
    }

    /// Exits by cause of each configuration, most first. None if no exits are known.
    pub(super) fn of_causes(load: &Load) -> Option<Table> {
        let cells = |line: &Line| {
            let causes = line.causes();
            let causes: Vec<String> =
                causes.iter().map(|(cause, value)| format!("{cause} {value:.2}")).collect();
            (!causes.is_empty()).then(|| vec![line.who.clone(), causes.join(", ")])
        };
        let lines: Vec<Vec<String>> = load.lines.iter().filter_map(cells).collect();
        let heads = ["who", "exits an operation by cause"].map(String::from).to_vec();
        (!lines.is_empty()).then_some(Table { heads, lines, words: [2, 0] })
    }

    /// The column is of words, not numbers.
    pub(super) fn is_of_words(&self, column: usize) -> bool {
        let [left, right] = self.words;
        column < left || column + right >= self.heads.len()
    }

    /// Aligned, each line after `indent`.
    pub(super) fn text(&self, indent: &str) -> String {
        let lines = || std::iter::once(&self.heads).chain(&self.lines);
        let wide = |at: usize| {
            let cells = lines().filter_map(|line| line.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(wide).collect();
        let mut text = String::new();
        for line in lines() {
            let mut shown = String::from(indent);
            for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let between = if at == 0 { "" } else { "  " };
                shown += between;
                shown += &if self.is_of_words(at) {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                };
            }
            text += shown.trim_end();
            text.push('\n');
        }
        text
    }
}

/// What a configuration has of it, in parts of what the baseline has.
pub(super) fn ratio(column: &Column, line: &Line, baseline: Option<&Line>) -> Option<Range> {
    Range::of(column.of(line)?).against(column.of(baseline?)?)
}

#[cfg(test)]
mod tests {
    use super::super::groups::{experiments, tests::measured, tests::timed};
    use super::*;

    fn texts(emulated: bool) -> Vec<String> {
        let found = experiments(&measured());
        let tables = found[0].loads.iter().filter_map(|load| Table::of(load, emulated));
        tables.map(|table| table.text("")).collect()
    }

    #[test]
    fn where_time_is_emulated_only_ratios_of_it_are_shown() {
        let text = &texts(true)[0];
        let heads: Vec<&str> = text.lines().next().unwrap_or_default().split("  ").collect();
        let heads: Vec<&str> =
            heads.into_iter().map(str::trim).filter(|head| !head.is_empty()).collect();
        assert_eq!(heads, ["who", "doorbells/op", "exits/op", "rate x qemu", "p50 x qemu"]);
        for hidden in ["ops/s", "exits/s", "us", "1880", "2820", "460", "345", "4321"] {
            assert!(!text.contains(hidden), "{hidden} in {text}");
        }
        assert!(text.contains("1.50 (1.35-1.65)"), "2820 of 1880: {text}");
        assert!(text.contains("0.75 (0.68-0.83)"), "345 of 460: {text}");
    }

    #[test]
    fn where_time_is_time_both_are_shown() {
        let text = &texts(false)[0];
        for shown in ["ops/s", "exits/s", "p50 us", "1880", "4321", "rate x qemu", "1.50 ("] {
            assert!(text.contains(shown), "{shown} not in {text}");
        }
    }

    #[test]
    fn numbers_end_below_each_other_and_what_nobody_has_is_no_column() {
        let text = &texts(true)[1];
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("who                   exits/op"));
        assert_eq!(lines.next(), Some("vhost-net  4.860 (4.374-5.346)"));
        assert_eq!(lines.next(), Some("sidecore   4.400 (3.960-4.840)"));
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn causes_stand_in_a_table_of_their_own() {
        let found = experiments(&measured());
        let of = |at: usize| Table::of_causes(&found[0].loads[at]).map(|table| table.text("  "));
        let text = of(0).unwrap_or_default();
        assert_eq!(text, "  who   exits an operation by cause\n  qemu  npf 1.00, hlt 0.95\n");
        assert_eq!(of(1), None);
    }

    #[test]
    fn time_of_vcpus_stands_in_a_table_of_its_own() {
        let found = experiments(&timed());
        let load = &found[0].loads[0];
        let text = Table::of_time(load).map(|table| table.text("")).unwrap_or_default();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(
            lines[0],
            ["who", "in guest %", "halted %", "exits %", "of not halted %", "most of exits"]
        );
        assert_eq!(lines[1][3..], ["24.0", "73.3 (66.0-80.6)", "npf 19.0"], "{text}");
        assert_eq!(lines[2][2..], ["81.7 (73.5-89.9)", "0.300", "-", "-"], "{text}");
        assert_eq!(lines[3], ["qemu", "30.0 (27.0-33.0)", "-", "-", "-", "-"]);
        assert!(Table::of(load, true).is_none(), "all of it is shown once");
        let found = experiments(&measured());
        assert!(Table::of_time(&found[0].loads[0]).is_none());
    }
}
