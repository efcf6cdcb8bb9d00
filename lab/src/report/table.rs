//! One table for each load: a line for each configuration.

use crate::rows::Row;

/// A load, and what each configuration came to.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) name: String,
    pub(super) lines: Vec<Line>,
}

/// A configuration's.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) who: String,
    values: Vec<Row>,
}

/// What is shown, and what it is called; those of time only where time is time.
const COLUMNS: [(&str, &str, bool); 10] = [
    ("doorbell_exits_per_op", "doorbells/op", false),
    ("exits_per_op", "exits/op", false),
    ("injections_per_op", "injections/op", false),
    ("user_exits_per_op", "to user/op", false),
    ("tig_percent", "in guest %", false),
    ("server_cpu_percent", "servers' cpu %", false),
    ("iops", "iops", true),
    ("ops_per_s", "ops/s", true),
    ("p50_us", "p50 us", true),
    ("p99_us", "p99 us", true),
];
const CAUSES: &str = "exits_per_op.";

/// Rows by load and configuration, in the order in which they come.
pub(super) fn loads(rows: &[Row]) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for row in rows {
        let Some((name, what)) = split(&row.name) else { continue };
        let at = loads.iter().position(|load| load.name == name).unwrap_or_else(|| {
            loads.push(Load { name: name.to_string(), lines: Vec::new() });
            loads.len() - 1
        });
        let lines = &mut loads[at].lines;
        let at = lines.iter().position(|line| line.who == row.who).unwrap_or_else(|| {
            lines.push(Line { who: row.who.clone(), values: Vec::new() });
            lines.len() - 1
        });
        lines[at].values.push(Row { name: what.to_string(), ..row.clone() });
    }
    loads
}

/// `lab.blk.randread.qd1.exits_per_op.hlt` is load `blk.randread.qd1`, value `exits_per_op.hlt`.
fn split(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix("lab.")?;
    let cause = rest.find(&format!(".{CAUSES}"));
    let at = cause.or_else(|| rest.rfind('.'))?;
    Some((rest.get(..at)?, rest.get(at + 1..)?))
}

impl Line {
    pub(super) fn value(&self, what: &str) -> Option<&Row> {
        self.values.iter().find(|row| row.name == what)
    }

    /// Exits by cause, most first; those of less than a hundredth are left out.
    pub(super) fn causes(&self) -> Vec<(&str, f64)> {
        let mut causes: Vec<(&str, f64)> = self
            .values
            .iter()
            .filter_map(|row| Some((row.name.strip_prefix(CAUSES)?, row.value)))
            .filter(|(_, value)| *value >= 0.005)
            .collect();
        causes.sort_by(|one, other| other.1.total_cmp(&one.1));
        causes
    }

    /// The cells of a table: who, the columns, the causes.
    pub(super) fn cells(&self, emulated: bool) -> Vec<String> {
        let mut cells = vec![self.who.clone()];
        for (what, _, is_time) in COLUMNS {
            if is_time && emulated {
                continue;
            }
            cells.push(self.value(what).map_or_else(|| "-".to_string(), shown));
        }
        let causes = self.causes();
        let causes: Vec<String> =
            causes.iter().map(|(cause, value)| format!("{cause} {value:.2}")).collect();
        cells.push(causes.join(", "));
        cells
    }
}

/// A value; with its ends where they hide the second digit.
fn shown(row: &Row) -> String {
    let [least, most] = row.spread;
    let digits = if row.value < 10.0 { 3 } else { 0 };
    let value = format!("{:.*}", digits, row.value);
    if most - least > row.value / 10.0 && most - least > 0.001 {
        format!("{value} ({least:.digits$}-{most:.digits$})")
    } else {
        value
    }
}

impl Load {
    pub(super) fn heads(emulated: bool) -> Vec<&'static str> {
        let mut heads = vec!["who"];
        heads.extend(
            COLUMNS.iter().filter(|(.., time)| !(emulated && *time)).map(|(_, head, _)| *head),
        );
        heads.push("exits by cause, an operation");
        heads
    }

    /// As text, aligned.
    pub(super) fn text(&self, emulated: bool) -> String {
        let mut lines = vec![Load::heads(emulated).iter().map(ToString::to_string).collect()];
        lines.extend(self.lines.iter().map(|line| line.cells(emulated)));
        let columns = lines.first().map_or(0, Vec::len);
        let widths: Vec<usize> = (0..columns)
            .map(|at| {
                lines.iter().filter_map(|line| line.get(at)).map(String::len).max().unwrap_or(0)
            })
            .collect();
        let mut text = format!("{}\n", self.name);
        for line in &lines {
            let mut shown = String::from(" ");
            for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let is_text = at == 0 || at + 1 == columns;
                shown +=
                    &if is_text { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") };
            }
            text += shown.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, who: &str, value: f64) -> Row {
        Row::new(name.into(), who, value, "1/op")
    }

    #[test]
    fn a_table_has_a_line_for_each_configuration_and_its_causes() {
        let rows = [
            row("lab.blk.randread.qd1.exits_per_op", "qemu", 2.43),
            row("lab.blk.randread.qd1.exits_per_op.hlt", "qemu", 0.95),
            row("lab.blk.randread.qd1.exits_per_op.npf", "qemu", 1.0),
            row("lab.blk.randread.qd1.p50_us", "qemu", 460.0),
            row("lab.blk.randread.qd1.exits_per_op", "sidecore", 1.4),
        ];
        let loads = loads(&rows);
        assert_eq!(loads.len(), 1);
        let text = loads[0].text(true);
        assert!(text.starts_with("blk.randread.qd1\n"), "{text}");
        assert!(text.contains("npf 1.00, hlt 0.95"), "{text}");
        assert!(!text.contains("p50"), "no time where time is emulated: {text}");
        assert!(loads[0].text(false).contains("460"));
        let mut widths =
            text.lines().skip(1).map(|line| line.find("exits by").or(line.find("npf")));
        assert_eq!(widths.next(), widths.next(), "{text}");
    }
}
