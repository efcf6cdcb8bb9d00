//! Power cuts, failing disks, and the host's syncs for each write cache mode of a real guest.

use testing::bed::Need;

use crate::suite::{Case, Group, Takes};

const PROGRAM: &str = "durable";

/// On a FUSE disk.
const fn on_fuse(name: &'static str) -> Case {
    Case::raw(PROGRAM, name).needs(&[Need::Fuse])
}

/// The group.
pub(super) const GROUP: Group = Group::new(
    PROGRAM,
    "power cuts, failing disks, and the host's syncs for each write cache mode of a real guest",
    &[
        on_fuse("power_cut").variables(&[("POWER_CUTS", "400", "2000")]).usually(60),
        on_fuse("failing_disk").takes(Takes::Little).usually(62),
        on_fuse("no_space"),
        on_fuse("lost_sync"),
        on_fuse("unusable_disk"),
        Case::shell("write-back"),
        Case::shell("write-through"),
        Case::shell("no-choice"),
        Case::shell("mapper"),
        Case::shell("file-system").needs(&[Need::Fuse]),
    ],
);
