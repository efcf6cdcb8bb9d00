//! Any bytes, for everything that reads some.

use crate::suite::cases::alone;
use crate::suite::{Group, Takes};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "fuzz",
    "fuzzing: rings, sessions, configuration, API bodies, saved state, frames, switches, the remote protocol",
    &[alone("").takes(Takes::Lane).usually(300).within(1800)],
);
