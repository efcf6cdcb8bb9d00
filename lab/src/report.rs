//! Rows as tables for people: on the terminal, and as one HTML page with plots; beside what the papers found.
//!
//! Not what was measured (`place`). Called by `host`, when the place has ended.

mod bars;
mod beside;
mod causes;
mod columns;
mod groups;
mod html;
mod notes;
mod papers;
mod plot;
mod series;
mod spread;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::rows::{self, Row};
use groups::Experiment;
use table::Table;

/// Sentences on the terminal.
const WIDTH: usize = 110;

/// What to show, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArguments {
    /// The rows, a JSON object a line, as `lab run` writes them
    pub(crate) rows: PathBuf,
    /// Writes a page there
    #[arg(long)]
    pub(crate) html: PathBuf,
    /// Prints the rows instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) conditions: Conditions,
}

/// What the place was like.
#[derive(Debug, clap::Args)]
pub(crate) struct Conditions {
    /// The rows come from a machine whose time is emulated
    #[arg(long)]
    pub(crate) emulated: bool,
    /// How much of their time that machine's CPUs waited for a CPU of the host
    #[arg(long, value_name = "PERCENT")]
    pub(crate) waited: Option<f64>,
    /// How often a machine or a configuration was started once more
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    pub(crate) retried: u32,
}

/// Shows them.
///
/// # Errors
/// A file cannot be read or written, or there are no rows.
pub(crate) fn show(arguments: &ReportArguments) -> Result<()> {
    let path = arguments.rows.display();
    let text = std::fs::read_to_string(&arguments.rows).with_context(|| format!("{path}"))?;
    let rows = rows::read(&text).with_context(|| format!("{path}"))?;
    ensure!(
        !rows.is_empty(),
        "{path} has no rows: does `--only` name a configuration of these experiments?"
    );
    let conditions = &arguments.conditions;
    let experiments = groups::experiments(&rows);
    let page = html::page(&experiments, conditions);
    std::fs::write(&arguments.html, page)
        .with_context(|| format!("{}", arguments.html.display()))?;
    if arguments.json {
        for row in &rows {
            println!("{}", json(row, conditions.emulated)?);
        }
        notes::disturbed(conditions).iter().for_each(|note| eprintln!("{note}"));
    } else {
        print!("{}", terminal(&experiments, conditions));
    }
    eprintln!("report: {}", arguments.html.display());
    Ok(())
}

/// A row; one that is a time, but none outside the emulated machine, says so in its unit.
fn json(row: &Row, emulated: bool) -> Result<String> {
    let is_none = emulated && row.is_time();
    let unit = if is_none { format!("emulated {}", row.unit) } else { row.unit.clone() };
    Ok(serde_json::to_string(&Row { unit, ..row.clone() })?)
}

/// What the terminal shows.
fn terminal(experiments: &[Experiment], conditions: &Conditions) -> String {
    let mut text = String::new();
    for note in notes::notes(conditions, experiments) {
        text += &wrapped(&note);
    }
    for experiment in experiments {
        text += &format!("\n== {}\n", title(experiment));
        if let Some(mirror) = papers::mirror(&experiment.name) {
            text += &format!("{}\n", wrapped(mirror.sees));
            text += &beside::table(mirror, experiment).text("  ");
        }
        for load in &experiment.loads {
            text += &format!("\n{}\n", load.name);
            let tables = [
                Table::of(load, conditions.emulated),
                Table::of_time(load),
                Table::of_causes(load),
            ];
            for table in tables.iter().flatten() {
                text += &table.text("  ");
            }
            for words in spread::words(load, conditions.emulated) {
                text += &format!("  {words}\n");
            }
        }
    }
    if let Some(legend) = causes::legend(experiments) {
        text += &format!("\ncauses of exits\n{}", legend.text("  "));
    }
    text
}

/// Lines of no more than [`WIDTH`] letters, if the words allow it.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut wide = 0;
    for word in text.split(' ') {
        let word_wide = word.chars().count();
        if wide > 0 && wide + 1 + word_wide > WIDTH {
            lines.push('\n');
            wide = 0;
        }
        if wide > 0 {
            lines.push(' ');
            wide += 1;
        }
        lines += word;
        wide += word_wide;
    }
    lines + "\n"
}

/// Its name, what it is, and the figures it mirrors.
fn title(experiment: &Experiment) -> String {
    match papers::mirror(&experiment.name) {
        Some(mirror) => format!("{}: {} ({})", mirror.name, mirror.title, mirror.of),
        None if experiment.name.is_empty() => "Loads".to_string(),
        None => experiment.name.clone(),
    }
}

#[cfg(test)]
mod tests;
