//! The whole system simulated.

use std::process::Command;

use anyhow::Result;
use testing::bed::{Bed, tests_all};

use crate::suite::programs::Programs;
use crate::suite::tools::{command, done};
use crate::suite::{Built, Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "sim",
    "the whole system simulated: the seeds that once found something, then 300 (100,000 with --all)",
    &[Case::run("seeds", seeds).needs_built(Built::Crates).usually(120).within(1200)],
);

/// Lives of the whole system, each from a seed.
fn seeds(bed: &Bed) -> Result<()> {
    let mut world = if tests_all() {
        let words = "cargo run --quiet --profile sim -p world --";
        command(&words.split(' ').collect::<Vec<_>>())
    } else {
        // As the tests are built: building it to run fast takes longer than it saves.
        Command::new(&Programs::known()?.plain("world")?.path)
    };
    bed.check("", done(world.args(["--seeds", &bed.often(300, 100_000).to_string()])));
    Ok(())
}
