//! `bench recover`: how long guests wait for a daemon that they connect to, for one that was killed
//! and started again, and for one that was replaced, and what they lost.
//!
//! The numbers are those of `tests/recover` and its modules `attach` and `upgrade`, which this has cargo build and run.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use testing::daemon::sidecore_binary;
use testing::report::Row;
use testing::server::Who;
use testing::vm::build_folder;

use crate::guests::say;

/// Lines of a log that are shown.
const LINES: usize = 30;
/// The units of what the tests measure.
const UNITS: [&str; 2] = ["ms", "1"];

/// What to measure: 100 attaches of 16 GiB, 2,000 kills and 500 upgrades.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// 20, 200 and 60.
    #[arg(long)]
    quick: bool,
}

/// A row as the tests write it (`tests::rows`).
#[derive(Deserialize)]
struct Line {
    name: String,
    value: f64,
    unit: String,
    spread: [f64; 2],
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>> {
    let [attaches, kills, upgrades] = if options.quick { [20, 200, 60] } else { [100, 2_000, 500] };
    let rows = build_folder().join("recover.rows");
    let _ = std::fs::remove_file(&rows);
    measure(&rows, "attaches", "attach::a_guest_of_16_gib", ("ATTACHES", attaches))?;
    measure(&rows, "kills", "recover::kill_at_random_instants", ("RECOVER_KILLS", kills))?;
    measure(&rows, "upgrades", "upgrade::disks_under_load", ("UPGRADES", upgrades))?;
    let text = std::fs::read_to_string(&rows).with_context(|| format!("{}", rows.display()))?;
    text.lines().map(row).collect()
}

/// Runs one test so often.
fn measure(rows: &Path, what: &str, test: &str, (variable, often): (&str, u32)) -> Result<()> {
    say(&format!("recover: {often} {what}"));
    let log = build_folder().join(format!("recover-{what}.log"));
    let said = File::create(&log)?;
    let status = Command::new("cargo")
        .args(["test", "--quiet", "--release", "-p", "tests", "--test", "recover"])
        .args(["--", "--nocapture", test])
        .current_dir(repository())
        .env("SIDECORE_BIN", std::path::absolute(sidecore_binary()?)?)
        .env("RECOVER_ROWS", rows)
        .env(variable, often.to_string())
        .stdout(said.try_clone()?)
        .stderr(said)
        .status()
        .context("starting cargo")?;
    if !status.success() {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let end = lines[lines.len().saturating_sub(LINES)..].join("\n");
        bail!("{often} {what}: a guest noticed ({status}); {} says:\n{end}", log.display());
    }
    Ok(())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn row(line: &str) -> Result<Row> {
    let Line { name, value, unit, spread } = serde_json::from_str(line)?;
    let unit = UNITS.into_iter().find(|known| *known == unit);
    let unit = unit.with_context(|| format!("an unknown unit: {line}"))?;
    Ok(Row { name, who: Who::Sidecore.word(), value, unit, spread })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_the_tests_is_given_as_it_is() -> Result<()> {
        let line =
            r#"{"name":"recover.lost","who":"sidecore","value":0.0,"unit":"1","spread":[0.0,0.0]}"#;
        assert_eq!(row(line)?.to_json()?, line);
        assert!(row(&line.replace("\"1\"", "\"h\"")).is_err());
        Ok(())
    }
}
