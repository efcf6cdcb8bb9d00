//! Rows as tables for people: on the terminal, and as one HTML page with bars.
//!
//! Not what was measured (`place`). Called by `./x lab` on the host, when the place has ended.

mod html;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::rows::Row;

/// What to show, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArguments {
    /// The rows, a JSON object a line
    rows: PathBuf,
    /// Writes a page there
    #[arg(long)]
    html: PathBuf,
    /// Prints the rows as they are instead of tables
    #[arg(long)]
    json: bool,
    /// The rows come from a machine whose time is emulated
    #[arg(long)]
    emulated: bool,
}

/// Shows them.
///
/// # Errors
/// A file cannot be read or written, or there are no rows.
pub(crate) fn show(arguments: &ReportArguments) -> Result<()> {
    let path = arguments.rows.display();
    let text = std::fs::read_to_string(&arguments.rows).with_context(|| format!("{path}"))?;
    let rows: Vec<Row> = text
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("{path}: {line}")))
        .collect::<Result<_>>()?;
    ensure!(!rows.is_empty(), "{path} has no rows");
    let loads = table::loads(&rows);
    if arguments.json {
        text.lines().for_each(|line| println!("{line}"));
    } else {
        loads.iter().for_each(|load| println!("{}", load.text(arguments.emulated)));
    }
    let page = html::page(&loads, arguments.emulated);
    std::fs::write(&arguments.html, page)
        .with_context(|| format!("{}", arguments.html.display()))?;
    eprintln!("report: {}", arguments.html.display());
    Ok(())
}
