//! Deaths of the daemon, of the VMM and of both under load; the fence; upgrades.

mod guests;

use crate::suite::{Case, Group};

const PROGRAM: &str = "recover";

/// The group.
pub(super) const GROUP: Group = Group::new(
    PROGRAM,
    "kill -9 of the daemon, of the VMM and of both under load; the fence; upgrades",
    &[
        Case::raw(PROGRAM, "recover").variables(&[("RECOVER_KILLS", "200", "10000")]).usually(60),
        Case::raw(PROGRAM, "upgrade").variables(&[("UPGRADES", "20", "500")]),
        Case::raw(PROGRAM, "upgrade_refused"),
        Case::raw(PROGRAM, "upgrade_killed"),
        Case::raw(PROGRAM, "upgrade_kinds")
            .variables(&[("UPGRADES", "5", "500"), ("STARVED", "2", "10")])
            .usually(60),
        Case::raw(PROGRAM, "fence").variables(&[("FENCE_ROUNDS", "10", "200")]),
        Case::raw(PROGRAM, "recover_many").variables(&[
            ("VANISH_ROUNDS", "200", "500"),
            ("TENANTS", "16", "64"),
            ("TENANTS_ROUNDS", "5", "100"),
        ]),
        Case::run("daemon-killed", guests::daemon_killed).within(1200).usually(35),
        Case::run("vmm-killed", guests::vmm_killed).usually(35),
        Case::run("both-killed", guests::both_killed).within(1200).usually(35),
    ],
);
