//! Tables: aligned text for people, one JSON object a row for programs.
//!
//! Values are whole thousandths, so that both say the same on every machine.

use std::fmt::Write;

/// One field of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A name.
    Word(String),
    /// A number in thousandths, shown with so many digits (at most 3).
    Number(u64, usize),
    /// There is none, as no guest was of that kind.
    None,
}

/// Rows under headings.
#[derive(Clone, Debug)]
pub struct Table {
    /// For programs: one word.
    pub name: &'static str,
    /// What it shows, under which load.
    pub title: String,
    /// Headings with their units.
    pub columns: Vec<&'static str>,
    /// Each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
}

impl Cell {
    /// Nanoseconds shown as microseconds.
    pub(crate) fn us(ns: Option<u64>) -> Cell {
        ns.map_or(Cell::None, |ns| Cell::Number(ns, 1))
    }

    /// `part / whole` in per cent.
    pub(crate) fn percent(part: u64, whole: u64) -> Cell {
        ratio(part, whole, 100_000).map_or(Cell::None, |thousandths| Cell::Number(thousandths, 1))
    }

    /// A count.
    pub(crate) fn count(count: u64) -> Cell {
        Cell::Number(count * 1000, 0)
    }

    /// For a plot; nothing where there is no number.
    pub(crate) fn value(&self) -> Option<f64> {
        match self {
            Cell::Number(thousandths, _) => Some(*thousandths as f64 / 1000.0),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match self {
            Cell::Word(word) => word.clone(),
            Cell::None => "-".to_owned(),
            Cell::Number(thousandths, digits) => {
                let unit = [1000, 100, 10, 1][(*digits).min(3)];
                let rounded = (thousandths + unit / 2) / unit;
                let scale = 1000 / unit;
                let whole = rounded / scale;
                match digits {
                    0 => whole.to_string(),
                    digits => format!("{whole}.{:0digits$}", rounded % scale),
                }
            }
        }
    }
}

/// `part x scale / whole`, rounded; none when `whole` is 0.
pub(crate) fn ratio(part: u64, whole: u64, scale: u64) -> Option<u64> {
    let whole = u128::from(whole);
    let scaled = u128::from(part) * u128::from(scale) + whole / 2;
    scaled.checked_div(whole).map(|ratio| ratio as u64)
}

impl Table {
    /// Title, headings, rows; numbers to the right.
    pub fn text(&self) -> String {
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(column, heading)| {
                let cells = rows.iter().filter_map(|row| row.get(column)).map(String::len);
                cells.chain([heading.len()]).max().unwrap_or(0)
            })
            .collect();
        let mut text = format!("{}\n\n", self.title);
        let headings: Vec<String> = self.columns.iter().map(|&name| name.to_owned()).collect();
        for row in std::iter::once(&headings).chain(&rows) {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Names stand in the first column only.
                let _ = match column {
                    0 => write!(line, "{cell:width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// One object a line, with the table's name; units are in the names of the fields.
    pub fn json(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let mut fields = serde_json::Map::new();
            fields.insert("table".to_owned(), self.name.into());
            for (heading, cell) in self.columns.iter().zip(row) {
                let value = match cell {
                    Cell::Word(word) => word.clone().into(),
                    Cell::None => serde_json::Value::Null,
                    Cell::Number(..) => cell.value().into(),
                };
                let key = heading
                    .replace('%', "percent")
                    .replace('/', "_per_")
                    .replace(", ", "_")
                    .replace(' ', "_");
                fields.insert(key, value);
            }
            text.push_str(&serde_json::Value::Object(fields).to_string());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_headings() {
        let rows = vec![
            vec![Cell::Word("sidecore".to_owned()), Cell::us(Some(12_345)), Cell::None],
            vec![Cell::Word("x".to_owned()), Cell::us(Some(950)), Cell::percent(1, 3)],
        ];
        let table = Table {
            name: "t",
            title: "A title".to_owned(),
            columns: vec!["who", "mean us", "%"],
            rows,
        };
        assert_eq!(
            table.text(),
            "A title\n\nwho       mean us     %\nsidecore     12.3     -\nx             1.0  33.3\n"
        );
        let lines: Vec<serde_json::Value> =
            table.json().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            lines,
            [
                serde_json::json!({"mean_us": 12.345, "percent": null, "table": "t", "who": "sidecore"}),
                serde_json::json!({"mean_us": 0.95, "percent": 33.333, "table": "t", "who": "x"}),
            ]
        );
    }

    #[test]
    fn numbers_are_rounded() {
        assert_eq!(Cell::Number(1_499, 0).text(), "1");
        assert_eq!(Cell::Number(1_500, 0).text(), "2");
        assert_eq!(Cell::Number(1_045, 2).text(), "1.05");
        assert_eq!(Cell::Number(7, 3).text(), "0.007");
        assert_eq!(ratio(1, 0, 10), None);
    }
}
