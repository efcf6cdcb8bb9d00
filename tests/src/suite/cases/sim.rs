//! The whole system simulated.

use anyhow::Result;
use testing::bed::Bed;

use crate::suite::tools::{command, done};
use crate::suite::{Built, Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "sim",
    "the whole system simulated: the seeds that once found something, then 1,000 (100,000 with --all)",
    &[Case::run("seeds", seeds).needs_built(Built::Nothing).usually(120).within(1200)],
);

/// Lives of the whole system, each from a seed.
fn seeds(bed: &Bed) -> Result<()> {
    let words = "cargo run --quiet --profile sim -p world -- --seeds";
    let mut world = command(&words.split(' ').collect::<Vec<_>>());
    bed.check("", done(world.arg(bed.often(1000, 100_000).to_string())));
    Ok(())
}
