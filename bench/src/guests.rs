//! What the benches that start guests share: a folder, and values of rounds that become rows.
//!
//! Used by `bench tap` and `bench runstate`. Not the guests themselves (`testing::vm`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::place::Place;
use testing::report::Row;
use testing::server::Who;
use testing::traffic::iperf;
use testing::vm::build_folder;

/// Says how far a bench is.
pub(crate) fn say(words: &str) {
    eprintln!("bench: {words}");
}

/// Refuses to begin without root.
pub(crate) fn need_root(bench: &str, why: &str) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "./x bench {bench} {why}, which needs root: sudo ./x bench {bench}");
    Ok(())
}

/// A file that `./x` has downloaded or packed.
pub(crate) fn built(path: &str) -> Result<PathBuf> {
    let path = build_folder().join(path);
    ensure!(path.exists(), "there is no {}: start this by ./x bench", path.display());
    Ok(path)
}

/// Megabits a second that arrived in a run of iperf3 with these words, and what else it says of it.
pub(crate) fn megabits(from: &dyn Place, words: &str) -> Result<(f64, Value)> {
    let end = iperf(from, words)?;
    let received = end["sum_received"]["bits_per_second"].as_f64().filter(|rate| *rate > 0.0);
    // Of UDP it says in `sum` what was sent, and what of that was lost.
    let of_datagrams = || {
        let sent = end["sum"]["bits_per_second"].as_f64()?;
        Some(sent * (100.0 - end["sum"]["lost_percent"].as_f64()?) / 100.0)
    };
    let rate = received.or_else(of_datagrams);
    let rate = rate.with_context(|| format!("iperf3 {words} tells no rate: {end}"))?;
    Ok(((rate / 1e6).floor(), end))
}

/// What rounds say, of two that take turns.
#[derive(Debug, Default)]
pub(crate) struct Rounds(BTreeMap<(&'static str, Who), Vec<f64>>);

impl Rounds {
    /// A round's value.
    pub(crate) fn add(&mut self, what: &'static str, who: Who, value: f64) {
        self.0.entry((what, who)).or_default().push(value);
    }

    /// A row for each of these, of either, whose name begins with `name`.
    pub(crate) fn rows(
        &self,
        name: &str,
        both: [Who; 2],
        all: &[(&'static str, &'static str)],
    ) -> Vec<Row> {
        let mut rows = Vec::new();
        for (what, unit) in all {
            for who in both {
                let values = self.0.get(&(*what, who)).map_or(&[][..], Vec::as_slice);
                rows.push(Row::new(format!("{name}.{what}"), who, unit, values));
            }
        }
        rows
    }
}
