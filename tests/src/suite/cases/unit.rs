//! What is checked of the sources, and the tests of the crates.

use crate::suite::{Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "unit",
    "cargo test, rustfmt, clippy, tidy, shellcheck (with --all also loom and cargo deny)",
    &[Case::shell("")],
);
