//! Tables whose columns align.

use config::api::HeldView;
use config::spec::{Mode, SocketRights};

/// What a device has after a change; or, if the change named it, that it has it no longer.
pub(crate) fn said(value: Option<String>, is_named: bool, none: &str) -> Option<String> {
    value.or_else(|| is_named.then(|| none.to_string())).map(|text| format!(", {text}"))
}

/// For whom a device's socket is, if that is asked for.
pub(crate) fn for_whom(rights: &SocketRights, is_asked: bool) -> Option<String> {
    let words = || rights.in_words().unwrap_or_else(|| "the daemon's user alone".to_string());
    is_asked.then(|| format!("its socket for {}", words()))
}

/// A device's socket: who opens it, and who may.
pub(crate) fn socket(path: &str, mode: Mode, rights: &SocketRights) -> String {
    let rights = rights.in_words().map(|words| format!(", for {words}"));
    format!("{path} ({mode}{})", rights.unwrap_or_default())
}

/// Rows below a header. Numbers are aligned to the right, when the column says so.
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Where a column's text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

impl Table {
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// One row more; its cells in the order of the columns.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.into_iter().map(|cell| plain(&cell)).collect());
    }

    /// The whole table, with a newline at the end of each line and no blanks before it.
    pub(crate) fn text(&self) -> String {
        let header: Vec<String> = self.columns.iter().map(|(name, _)| name.to_string()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&header).chain(&self.rows).collect();
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|c| c.chars().count()).max()
        };
        let widths: Vec<usize> =
            (0..self.columns.len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for line in lines {
            let cells: Vec<String> = line
                .iter()
                .zip(&self.columns)
                .zip(&widths)
                .map(|((cell, (_, align)), width)| match align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                })
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// Names and what they stand for, a line each, aligned.
pub(crate) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(10);
    facts.iter().map(|(name, fact)| format!("{name:<width$}  {}\n", plain(fact))).collect()
}

/// A cell without what would break the table or steer a terminal.
pub(crate) fn plain(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Nanoseconds in the unit that fits, such as `12.3 us`.
pub(crate) fn duration(ns: u64) -> String {
    for (unit, scale) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns >= scale {
            return format!("{:.1} {unit}", ns as f64 / scale as f64);
        }
    }
    format!("{ns} ns")
}

/// A latency; `-` while nothing was measured.
pub(crate) fn latency(ns: u64) -> String {
    match ns {
        0 => "-".to_string(),
        ns => duration(ns),
    }
}

/// Two columns for the groups and limits of devices, in a list of which some has one or the other.
pub(crate) struct Limits(bool);

impl Limits {
    /// `is_limited` is about each device of the list.
    pub(crate) fn of(mut is_limited: impl Iterator<Item = bool>) -> Limits {
        Limits(is_limited.any(|is_limited| is_limited))
    }

    pub(crate) fn columns(&self) -> impl Iterator<Item = (&'static str, Align)> {
        self.0.then_some([("GROUP", Align::Left), ("LIMIT", Align::Left)]).into_iter().flatten()
    }

    pub(crate) fn cells(
        &self,
        group: Option<&String>,
        limit: Option<String>,
    ) -> impl Iterator<Item = String> {
        let none = || "-".to_string();
        let cells = [group.cloned().unwrap_or_else(none), limit.unwrap_or_else(none)];
        self.0.then_some(cells).into_iter().flatten()
    }
}

/// What was waited for limits, in words, where there is a limit or was one.
pub(crate) fn held(held: &HeldView, is_limited: bool) -> Option<String> {
    let HeldView { held: times, held_ns, group_held, group_held_ns } = *held;
    let group = match group_held {
        0 => String::new(),
        _ => format!("; {group_held} of them by its group's, {}", duration(group_held_ns)),
    };
    let is_shown = is_limited || times > 0;
    is_shown.then(|| format!("{times} times by its limits, {} in all{group}", duration(held_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_end_without_blanks() {
        let mut table = Table::new(&[("ID", Align::Left), ("SIZE", Align::Right)]);
        table.row(vec!["a-long-name".into(), "1G".into()]);
        table.row(vec!["b\x1b[31m".into(), "1024G".into()]);
        assert_eq!(table.text(), "ID            SIZE\na-long-name     1G\nb?[31m       1024G\n");
    }

    #[test]
    fn waits_are_shown_where_there_is_a_limit_or_was_one() {
        let mut view = HeldView::default();
        assert_eq!(held(&view, false), None);
        assert_eq!(held(&view, true).unwrap(), "0 times by its limits, 0 ns in all");
        (view.held, view.held_ns) = (3, 2_500_000);
        assert_eq!(held(&view, false).unwrap(), "3 times by its limits, 2.5 ms in all");
        (view.group_held, view.group_held_ns) = (1, 1_000_000);
        assert!(held(&view, true).unwrap().ends_with("; 1 of them by its group's, 1.0 ms"));
    }

    #[test]
    fn durations_read_well() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.5 us"),
            (2_000_000, "2.0 ms"),
            (u64::MAX, "18446744073.7 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }
}
