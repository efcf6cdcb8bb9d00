//! Deaths of the daemon, of the VMM and of both under load; the fence; upgrades.

mod guests;

use crate::suite::{Case, Group};

const PROGRAM: &str = "recover";

/// The group.
pub(super) const GROUP: Group = Group::new(
    PROGRAM,
    "kill -9 of the daemon, of the VMM and of both under load; the fence; upgrades",
    &[
        Case::raw(PROGRAM, "recover").usually(60),
        Case::raw(PROGRAM, "upgrade"),
        Case::raw(PROGRAM, "upgrade_refused"),
        Case::raw(PROGRAM, "upgrade_killed"),
        Case::raw(PROGRAM, "upgrade_kinds").usually(60),
        Case::raw(PROGRAM, "fence"),
        Case::raw(PROGRAM, "recover_many"),
        Case::run("daemon-killed", guests::daemon_killed).within(1200).usually(35),
        Case::run("vmm-killed", guests::vmm_killed).usually(35),
        Case::run("both-killed", guests::both_killed).within(1200).usually(35),
    ],
);
