//! What the lab found: a value, with its name, whose it is, and how far its turns lay apart.
//!
//! Used by the place, which writes rows as JSON lines, and by the report, which reads them.

use anyhow::{Context, Result};
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
    /// How many turns there were; with one, `spread` says nothing.
    #[serde(default = "one")]
    pub(crate) turns: u32,
}

/// A stand has ended, with or without all of its rows; they are in the lines before.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Done {
    /// Which.
    pub(crate) stand_done: String,
    /// Some of its loads could not be done.
    pub(crate) failed: bool,
}

/// A line of the file that a place writes.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Row(Row),
    Done(Done),
}

/// The rows of such a file, without the end of a line at which a place died.
///
/// # Errors
/// A whole line is none.
pub(crate) fn read(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in text.split_inclusive('\n') {
        match serde_json::from_str(line) {
            Ok(Line::Row(row)) => rows.push(row),
            Ok(Line::Done(_)) => {}
            Err(_) if !line.ends_with('\n') => {}
            Err(error) => return Err(error).with_context(|| line.trim_end().to_string()),
        }
    }
    Ok(rows)
}

/// What a load's rows by cause begin with, `exits_per_op.hlt`, and the row that each turn has which has such.
const KINDS: [(&str, &str); 2] =
    [(".exits_per_op.", ".exits_per_op"), (".outside_percent.", ".tig_percent")];

/// The guest has nothing to do and waits, in the words of AMD's processors and of Intel's.
pub(crate) fn is_halt(cause: &str) -> bool {
    cause.eq_ignore_ascii_case("hlt")
}

fn one() -> u32 {
    1
}

impl Row {
    /// A single turn's, of no experiment yet.
    pub(crate) fn new(name: String, who: &str, value: f64, unit: &str) -> Row {
        let (who, unit) = (who.to_string(), unit.to_string());
        Row { experiment: String::new(), name, who, value, unit, spread: [value; 2], turns: 1 }
    }

    /// Turns of the same experiment, name and configuration, in one row each, in the order in which they came first.
    /// A kind of exit that a turn lacks had none in it, and took no time.
    pub(crate) fn medians(turns: Vec<Row>) -> Vec<Row> {
        let mut found: Vec<(Row, Vec<f64>)> = Vec::new();
        for row in turns {
            match found.iter_mut().find(|(one, _)| one.is_of(&row) && one.name == row.name) {
                Some((_, values)) => values.push(row.value),
                None => {
                    let value = row.value;
                    found.push((row, vec![value]));
                }
            }
        }
        let turns: Vec<usize> = found
            .iter()
            .map(|(row, values)| {
                let total = KINDS.iter().find_map(|(kind, total)| {
                    let load = row.name.get(..row.name.find(kind)?)?;
                    Some(format!("{load}{total}"))
                });
                let is = |one: &Row| one.is_of(row) && Some(&one.name) == total.as_ref();
                let total = found.iter().find(|(one, _)| is(one));
                total.map_or(0, |(_, totals)| totals.len()).max(values.len())
            })
            .collect();
        found.into_iter().zip(turns).map(|((row, values), turns)| row.of(values, turns)).collect()
    }

    fn is_of(&self, other: &Row) -> bool {
        self.experiment == other.experiment && self.who == other.who
    }

    fn of(self, mut values: Vec<f64>, turns: usize) -> Row {
        values.resize(turns, 0.0);
        values.sort_by(f64::total_cmp);
        let value = values.get(turns / 2).copied().unwrap_or(self.value);
        let ends = [values.first(), values.last()].map(|end| end.copied().unwrap_or(value));
        Row { value, spread: ends, turns: turns.try_into().unwrap_or(u32::MAX), ..self }
    }

    /// Its value is a time or a rate, which is none where time is emulated. Shares of a time (`%`) are not.
    pub(crate) fn is_time(&self) -> bool {
        let mut words = self.unit.split(|letter: char| !letter.is_ascii_alphabetic());
        words.any(|word| matches!(word, "s" | "ms" | "us" | "ns"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_become_medians_and_a_kind_that_a_turn_lacks_was_none() {
        let row = |what: &str, value| Row::new(format!("lab.blk.{what}"), "qemu", value, "1/op");
        let turns = vec![
            row("exits_per_op", 3.0),
            row("exits_per_op.msr", 1.0),
            row("exits_per_op", 1.0),
            row("exits_per_op", 2.0),
            row("exits_per_op.msr", 3.0),
            // Of two turns more, which counted nothing.
            row("iops", 7.0),
            row("iops", 5.0),
            row("tig_percent", 60.0),
            row("outside_percent.hlt", 40.0),
            row("tig_percent", 100.0),
        ];
        let found = Row::medians(turns);
        assert_eq!(found.len(), 5);
        assert_eq!((found[0].value, found[0].spread, found[0].turns), (2.0, [1.0, 3.0], 3));
        assert_eq!((found[1].value, found[1].spread, found[1].turns), (1.0, [0.0, 3.0], 3));
        assert_eq!((found[2].value, found[2].spread, found[2].turns), (7.0, [5.0, 7.0], 2));
        assert_eq!((found[4].value, found[4].spread, found[4].turns), (40.0, [0.0, 40.0], 2));
    }

    #[test]
    fn the_same_of_another_experiment_or_configuration_is_another_row() {
        let of = |experiment: &str, who: &str, value| Row {
            experiment: experiment.into(),
            ..Row::new("lab.blk.iops".into(), who, value, "1/s")
        };
        let turns =
            vec![of("exits", "qemu", 1.0), of("smoke", "qemu", 2.0), of("exits", "ide", 3.0)];
        assert_eq!(Row::medians(turns.clone()), turns);
    }

    #[test]
    fn a_row_is_written_with_its_experiment_first_and_read_without_what_is_new() {
        let row =
            Row { experiment: "exits".into(), ..Row::new("lab.a.b".into(), "qemu", 1.5, "%") };
        let line = serde_json::to_string(&row).unwrap_or_default();
        assert!(line.starts_with("{\"experiment\":\"exits\",\"name\":\"lab.a.b\""), "{line}");
        let old = r#"{"name":"lab.a.b","who":"qemu","value":1.5,"unit":"%","spread":[1.5,1.5]}"#;
        let read: Row = serde_json::from_str(old).expect("a row");
        assert_eq!(read, Row { experiment: String::new(), ..row });
    }

    #[test]
    fn a_time_is_known_by_its_unit() {
        let is_time = |unit| Row::new(String::new(), "", 1.0, unit).is_time();
        assert_eq!(["us", "1/s", "us/op", "Gb/s", "ns"].map(is_time), [true; 5]);
        assert_eq!(["1/op", "%", ""].map(is_time), [false; 3]);
    }

    #[test]
    fn the_rows_of_a_place_that_died_are_read() {
        let row = Row::new("lab.a.b".into(), "qemu", 1.5, "%");
        let line = serde_json::to_string(&row).unwrap_or_default();
        let done = r#"{"stand_done":"smoke, disk, qemu","failed":false}"#;
        let of = |text: &str| read(text).map_err(|error| format!("{error}"));
        assert_eq!(of(&format!("{line}\n{done}\n{line}")), Ok(vec![row.clone(), row.clone()]));
        assert_eq!(of(&format!("{line}\n{}", &line[..30])), Ok(vec![row]));
        assert_eq!(of(&format!("{{}}\n{line}")), Err("{}".to_string()));
    }
}
