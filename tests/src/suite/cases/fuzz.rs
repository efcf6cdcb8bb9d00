//! Any bytes, for everything that reads some.

use crate::suite::cases::alone;
use crate::suite::{Case, Group, Takes};

/// A search with libFuzzer in one target, for 10 s or, with `--all`, for five minutes.
const fn guided(target: &'static str) -> Case {
    alone(target)
        .takes(Takes::Lane)
        .usually(300)
        .within(1800)
        .only_all("a search by libFuzzer, a build of its own")
}

/// The group.
pub(super) const GROUP: Group = Group::new(
    "fuzz",
    "fuzzing: rings, sessions, configuration, API bodies, saved state, frames, switches, the remote protocol: \
     seeds and mutations of them; with --all, or by the name of a target, a search by libFuzzer",
    &[
        Case::of_crate("replay", "fuzz", "replay", &[]).usually(30),
        guided("ring_split"),
        guided("ring_packed"),
        guided("session"),
        guided("config"),
        guided("net_header"),
        guided("switch"),
        guided("estate"),
        guided("wire"),
    ],
);
