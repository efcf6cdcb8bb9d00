//! Disks and NICs of other machines.

use testing::bed::Need;

use crate::suite::{Case, Group};

const PROGRAM: &str = "remote";

/// The group.
pub(super) const GROUP: Group = Group::new(
    PROGRAM,
    "disks and NICs of other machines: either daemon killed, a second IOhost, a bad wire; with root a \
     real guest, one that moves, and a machine without guests",
    &[
        Case::raw(PROGRAM, "driver")
            .module("remote")
            .variables(&[("REMOTE_SECONDS", "6", "600"), ("REMOTE_LOSS", "0", "1")]),
        Case::raw(PROGRAM, "nics").module("remote_nic"),
        Case::raw(PROGRAM, "seats").module("remote_seats").variables(&[(
            "REMOTE_SECONDS",
            "6",
            "300",
        )]),
        Case::raw(PROGRAM, "upgrade").module("remote_upgrade").threads(2).variables(&[(
            "REMOTE_UPGRADES",
            "4",
            "100",
        )]),
        Case::shell("ethernet").needs(&[Need::Root]),
        Case::shell("xdp").needs(&[Need::Root]),
        Case::shell("guest").needs(&[Need::Root]),
        Case::shell("client").needs(&[Need::Root]),
        Case::shell("moves").needs(&[Need::Root]),
    ],
);
