//! Tables: of a load, with a line for each configuration, and others; as text.
//!
//! Not as a page (`html`).

use super::columns::{COLUMNS, Column, Range};
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
    /// A line for each configuration. Where time is emulated, times are ratios only; elsewhere both.
    pub(super) fn of(load: &Load, emulated: bool) -> Table {
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
        Table { heads, lines: load.lines.iter().map(cells).collect(), words: [1, 0] }
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
    use super::super::groups::{experiments, tests::measured};
    use super::*;

    fn texts(emulated: bool) -> Vec<String> {
        let found = experiments(&measured());
        found[0].loads.iter().map(|load| Table::of(load, emulated).text("")).collect()
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
}
