//! The whole daemon simulated.

use std::process::Command;

use anyhow::Result;
use testing::bed::{Bed, tests_all};

use crate::suite::programs::Programs;
use crate::suite::tools::{command, done};
use crate::suite::{Built, Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "sim",
    "the whole daemon simulated: the seeds that once found something, then 60 (1,000 with --all)",
    &[Case::run("seeds", seeds).needs_built(Built::Crates).usually(120).within(1200)],
);

/// Lives of the whole daemon, each from a seed; the first 24 are those of `cargo test -p lives`.
fn seeds(bed: &Bed) -> Result<()> {
    let mut lives = if tests_all() {
        let words = "cargo run --quiet --profile sim -p lives --";
        command(&words.split(' ').collect::<Vec<_>>())
    } else {
        // As the tests are built: building it to run fast takes longer than it saves.
        Command::new(&Programs::known()?.plain("lives")?.path)
    };
    let seeds = bed.often(60, 1000).to_string();
    bed.check("", done(lives.args(["--from", "25", "--seeds", &seeds])));
    Ok(())
}
