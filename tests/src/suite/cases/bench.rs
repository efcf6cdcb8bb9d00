//! What a request costs.

use crate::suite::cases::alone;
use crate::suite::{Built, Group, Takes};

const TIMES: &str = "measures times";

/// The group.
pub(super) const GROUP: Group = Group::new(
    "bench",
    "what a request costs: no allocation, instructions beside the checked-in baseline; with --all, that the \
     scheduling bench runs, and run state beside the kernel's accounts",
    &[
        alone("pass").needs_built(Built::Pass).takes(Takes::Lane).usually(200).within(1200),
        alone("schedule").needs_built(Built::Daemon).only_all(TIMES),
        alone("runstate").needs_built(Built::Daemon).only_all(TIMES),
    ],
);
