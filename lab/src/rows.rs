//! What the lab found: a value, with its name, whose it is, and how far its turns lay apart.
//!
//! Used by the place, which writes rows as JSON lines, and by the report, which reads them.

use serde::{Deserialize, Serialize};

/// One number.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    /// What it was measured for: `exits`, `quota`, ...
    #[serde(default)]
    pub(crate) experiment: String,
    /// `lab.LOAD.WHAT`.
    pub(crate) name: String,
    /// The configuration.
    pub(crate) who: String,
    /// The median of its turns.
    pub(crate) value: f64,
    /// Of `value` and `spread`.
    pub(crate) unit: String,
    /// The least and the greatest turn.
    pub(crate) spread: [f64; 2],
}

impl Row {
    /// A single turn's, of no experiment yet.
    pub(crate) fn new(name: String, who: &str, value: f64, unit: &str) -> Row {
        let (who, unit) = (who.to_string(), unit.to_string());
        Row { experiment: String::new(), name, who, value, unit, spread: [value; 2] }
    }

    /// Turns of the same name and configuration, in one row each, in the order in which they came first. A
    /// value that a turn lacks was 0 in it: kinds of exits, of which there were none.
    pub(crate) fn medians(turns: Vec<Row>) -> Vec<Row> {
        let mut found: Vec<(Row, Vec<f64>)> = Vec::new();
        for row in turns {
            match found.iter_mut().find(|(one, _)| one.name == row.name && one.who == row.who) {
                Some((_, values)) => values.push(row.value),
                None => {
                    let value = row.value;
                    found.push((row, vec![value]));
                }
            }
        }
        let most = found.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
        let of = |(row, mut values): (Row, Vec<f64>)| {
            values.resize(most, 0.0);
            values.sort_by(f64::total_cmp);
            let value = values.get(most / 2).copied().unwrap_or(0.0);
            let ends = [values.first(), values.last()].map(|end| end.copied().unwrap_or(value));
            Row { value, spread: ends, ..row }
        };
        found.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_become_medians_and_a_kind_that_a_turn_lacks_was_none() {
        let row = |name: &str, value| Row::new(name.into(), "qemu", value, "1/op");
        let turns = vec![
            row("hlt", 3.0),
            row("msr", 1.0),
            row("hlt", 1.0),
            row("hlt", 2.0),
            row("msr", 3.0),
        ];
        let found = Row::medians(turns);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].value, found[0].spread), (2.0, [1.0, 3.0]));
        assert_eq!((found[1].value, found[1].spread), (1.0, [0.0, 3.0]));
    }
}
