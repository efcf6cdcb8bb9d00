//! How exits look: a table with bars, and below it what is in no row.

use std::fmt::Write as _;

use exits::{Check, Report, Row};

use crate::output::screen;
use crate::table::{Align, Room, Table, duration, plain};

/// Columns of the longest bar: fewer than of text that is shortened, so that it goes whole.
const BAR: usize = 12;
/// Lines of a terminal that are not rows.
const OTHER_LINES: usize = 12;
/// Rows that are shown at least.
const ROWS_MIN: usize = 8;
/// What goes first where there is too little room.
const GO: [&str; 4] = ["TIME", "DEVICE", "", "DETAIL"];

/// All of it.
pub(crate) fn whole(report: &Report, room: Room) -> String {
    let mut text = head(report);
    let shown = match (room, screen()) {
        (Room::Columns(_), Some([lines, _])) => lines.saturating_sub(OTHER_LINES).max(ROWS_MIN),
        _ => usize::MAX,
    };
    if !report.rows.is_empty() {
        text += "\n";
        text += &table(report, shown).text(room);
    }
    let more: Vec<&Row> = report.rows.iter().skip(shown).collect();
    if !more.is_empty() {
        let exits: u64 = more.iter().map(|row| row.exits).sum();
        let _ = writeln!(text, "and {} rows more with {exits} exits: --wide", more.len());
    }
    for line in below(report) {
        text += &room.wrapped(&plain(&line), 2);
        text += "\n";
    }
    text
}

fn head(report: &Report) -> String {
    let Report { process, name, period_ns, vcpus, exits, .. } = report;
    let who = match name {
        Some(name) => format!("{} (process {process})", plain(name)),
        None => format!("process {process}"),
    };
    let rate = per_second(*exits, report);
    format!("{who}: {exits} exits of {vcpus} vCPUs in {}, {rate} a second\n", duration(*period_ns))
}

fn per_second(exits: u64, report: &Report) -> String {
    match report.period_ns {
        0 => "0".to_string(),
        ns => format!("{:.0}", exits as f64 * 1e9 / ns as f64),
    }
}

fn table(report: &Report, shown: usize) -> Table {
    let columns = [
        ("FUNCTION", Align::Left),
        ("REASON", Align::Left),
        ("DETAIL", Align::Left),
        ("DEVICE", Align::Left),
        ("EXITS/S", Align::Right),
        ("TIME", Align::Right),
        ("SHARE", Align::Right),
        ("", Align::Left),
        ("RULE", Align::Left),
    ];
    let mut table = Table::new(&columns, &GO);
    let share = |row: &Row| match report.handling_ns {
        0 => 0.0,
        all => row.handling_ns as f64 / all as f64,
    };
    let most = report.rows.first().map_or(0.0, share);
    for row in report.rows.iter().take(shown) {
        let module = row.module.as_ref().map(|module| format!(" [{module}]"));
        let of_most = if most > 0.0 { share(row) / most } else { 0.0 };
        table.row(vec![
            row.function.clone() + &module.unwrap_or_default(),
            row.reason.clone(),
            row.detail.clone(),
            row.device.unwrap_or_default().to_string(),
            per_second(row.exits, report),
            duration(row.handling_ns),
            format!("{:.1}%", 100.0 * share(row)),
            "█".repeat((of_most * BAR as f64).round() as usize),
            row.rule.unwrap_or_default().to_string(),
        ]);
    }
    table
}

/// What is in no row.
fn below(report: &Report) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!(
            "Outside the guest: {} at work, {} halted, {} displaced.",
            duration(report.handling_ns),
            duration(report.halted_ns),
            duration(report.displaced_ns)
        ),
    ];
    let edge = report.edge;
    if edge.begun_before + edge.unfinished > 0 {
        lines.push(format!(
            "[edge]: {} exits had begun before ({}), {} had not ended ({}).",
            edge.begun_before,
            duration(edge.begun_before_ns),
            edge.unfinished,
            duration(edge.unfinished_ns)
        ));
    }
    for lost in &report.lost {
        let reason = lost.reason.as_deref().unwrap_or("several reasons");
        lines.push(format!("[lost]: {} exits ({reason}): their rows had no room.", lost.exits));
    }
    if report.without_time > 0 {
        lines.push(format!("{} exits count without time.", report.without_time));
    }
    lines.push(match &report.check {
        Check::Same { least, most } => {
            format!("The kernel counted as many: {least} to {most}.")
        }
        Check::Other { least, most } => format!(
            "The kernel counted {least} to {most}, not {}: {}.",
            report.exits,
            "Linux before 6.5 does not count those that it finishes at once; or events were missed"
        ),
        Check::Entries { why, entries } => {
            format!("There were {entries} entries; the kernel's own count is not known: {why}.")
        }
    });
    lines.extend(report.notes.iter().map(|note| format!("{note}.")));
    lines
}

#[cfg(test)]
mod tests {
    use exits::{Edge, Lost};

    use super::*;

    fn row(function: &str, exits: u64, handling_ns: u64) -> Row {
        Row {
            function: function.to_string(),
            module: None,
            addresses: Vec::new(),
            reason: "port I/O".to_string(),
            detail: "0x608".to_string(),
            device: Some("ACPI timer"),
            exits,
            handling_ns,
            halted_ns: 0,
            displaced_ns: 0,
            rule: Some("clocksource"),
        }
    }

    fn report() -> Report {
        Report {
            process: 7,
            name: Some("vm1".to_string()),
            period_ns: 2_000_000_000,
            vcpus: 2,
            exits: 405,
            handling_ns: 4_000_000,
            halted_ns: 1_000_000_000,
            displaced_ns: 0,
            rows: vec![row("acpi_pm_read", 300, 3_000_000), row("other", 100, 1_000_000)],
            lost: vec![Lost { reason: Some("HLT".to_string()), exits: 4 }],
            edge: Edge {
                begun_before: 1,
                begun_before_ns: 500,
                unfinished: 1,
                unfinished_ns: 2_000_000,
            },
            without_time: 0,
            check: Check::Same { least: 403, most: 407 },
            notes: Vec::new(),
        }
    }

    #[test]
    fn rows_have_bars_and_the_rest_is_said_below() {
        assert_eq!(
            whole(&report(), Room::Whole),
            "\
vm1 (process 7): 405 exits of 2 vCPUs in 2.0 s, 202 a second

FUNCTION      REASON    DETAIL  DEVICE      EXITS/S    TIME  SHARE                RULE
acpi_pm_read  port I/O  0x608   ACPI timer      150  3.0 ms  75.0%  ████████████  clocksource
other         port I/O  0x608   ACPI timer       50  1.0 ms  25.0%  ████          clocksource

Outside the guest: 4.0 ms at work, 1.0 s halted, 0 ns displaced.
[edge]: 1 exits had begun before (500 ns), 1 had not ended (2.0 ms).
[lost]: 4 exits (HLT): their rows had no room.
The kernel counted as many: 403 to 407.
"
        );
    }

    #[test]
    fn a_guest_without_exits_has_no_table() {
        let report =
            Report { rows: Vec::new(), exits: 0, handling_ns: 0, period_ns: 0, ..report() };
        let text = whole(&report, Room::Columns(40));
        assert!(
            text.starts_with("vm1 (process 7): 0 exits of 2 vCPUs in 0 ns, 0 a second\n\nOutside"),
            "{text}"
        );
    }
}
