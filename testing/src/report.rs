//! What a bench says: a table for people, or one JSON object a line for programs.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::server::Who;

/// Fewest rounds that a reported number stands on.
pub const ROUNDS_MIN: usize = 5;

/// One number with where it comes from.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Dotted name of what was measured.
    pub name: String,
    /// Whose it is.
    pub who: &'static str,
    /// Median of the rounds.
    pub value: f64,
    /// Unit of `value` and `spread`.
    pub unit: &'static str,
    /// Least and greatest of the rounds.
    pub spread: [f64; 2],
}

impl Row {
    /// From one value a round. No rounds give zeroes.
    pub fn new(name: String, who: Who, unit: &'static str, rounds: &[f64]) -> Row {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        let value = if sorted.len() % 2 == 1 {
            at(middle)
        } else {
            (at(middle.saturating_sub(1)) + at(middle)) / 2.0
        };
        let spread = [at(0), at(sorted.len().saturating_sub(1))];
        Row { name, who: who.word(), value, unit, spread }
    }

    /// As one JSON object.
    ///
    /// # Errors
    /// A value that JSON has no word for (not a number).
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// Writes the rows: as a table, or with `json` one object a line. Nothing without rows: a guest has none, nor who has had
/// others measure.
///
/// # Errors
/// As [`Row::to_json`]; they cannot be written.
pub fn write(rows: &[Row], json: bool, out: &mut impl Write) -> Result<()> {
    if json {
        for row in rows {
            writeln!(out, "{}", row.to_json()?)?;
        }
    } else if !rows.is_empty() {
        out.write_all(table(rows).as_bytes())?;
    }
    Ok(())
}

/// The rows as aligned text. A row of sidecore's that has a counterpart of somebody else's says how
/// many times as large it is.
pub fn table(rows: &[Row]) -> String {
    let header = ["name", "who", "value", "unit", "min", "max", "ratio"].map(String::from);
    let mut lines = vec![header];
    for row in rows {
        lines.push([
            row.name.clone(),
            row.who.to_string(),
            number(row.value),
            row.unit.to_string(),
            number(row.spread[0]),
            number(row.spread[1]),
            ratio(rows, row),
        ]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            let is_word = matches!(column, 0 | 1 | 3);
            let cell = if is_word { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            text += &cell;
            text += "  ";
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn ratio(rows: &[Row], row: &Row) -> String {
    let own = Who::Sidecore.word();
    if row.who != own {
        return String::new();
    }
    // Of several the first that is not this project's.
    let is_other = |found: &&Row| found.name == row.name && !found.who.starts_with(own);
    let other = rows.iter().find(is_other);
    other.map_or_else(String::new, |found| format!("{:.2}x", row.value / found.value))
}

/// Grouped thousands; two digits after the point where the number is small.
fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 && digit.is_ascii_digit() {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_the_median_and_the_spread_is_all_of_it() {
        let row = Row::new("a.b".into(), Who::Sidecore, "ns", &[5.0, 1.0, 9.0, 2.0, 3.0]);
        assert_eq!((row.value, row.spread), (3.0, [1.0, 9.0]));
        let row = Row::new("a.b".into(), Who::Sidecore, "ns", &[4.0, 2.0]);
        assert_eq!((row.value, row.spread), (3.0, [2.0, 4.0]));
    }

    #[test]
    fn a_table_compares_with_the_peer() {
        let mine = Row::new("x.iops".into(), Who::Sidecore, "1/s", &[7_500_000.0]);
        let theirs = Row::new("x.iops".into(), Who::QemuStorageDaemon, "1/s", &[1_500_000.0]);
        let text = table(&[mine, theirs]);
        assert!(text.contains("7,500,000"), "{text}");
        assert!(text.contains("5.00x"), "{text}");
        assert_eq!(text.lines().count(), 3);
    }
}
