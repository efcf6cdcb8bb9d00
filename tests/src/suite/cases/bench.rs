//! What a request costs.

use std::process::Command;

use anyhow::Result;
use testing::bed::Bed;

use crate::suite::cases::alone;
use crate::suite::programs::Programs;
use crate::suite::tools::done;
use crate::suite::{Built, Case, Group};

const TIMES: &str = "measures times";

/// The group.
pub(super) const GROUP: Group = Group::new(
    "bench",
    "what a request costs: no allocation, instructions beside the checked-in baseline; with --all, that the \
     scheduling bench runs and the one of peers, and run state beside the kernel's accounts",
    &[
        Case::run("pass", pass).needs_built(Built::Pass).usually(100).within(1200),
        alone("schedule").needs_built(Built::Daemon).only_all(TIMES),
        alone("peers").needs_built(Built::Daemon).only_all(TIMES),
        alone("runstate").needs_built(Built::Daemon).only_all(TIMES),
    ],
);

/// No allocation, and no more instructions than the baseline has.
fn pass(bed: &Bed) -> Result<()> {
    let mut pass = Command::new(&Programs::known()?.plain("pass")?.path);
    bed.check("", done(pass.args(["--quick", "--instructions"])));
    Ok(())
}
