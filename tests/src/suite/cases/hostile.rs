//! Guests and front-ends that lie, stall, storm and vanish; docs/security.md says which row is where.

use testing::bed::Need;

use crate::suite::{Case, Group, Takes};

const PROGRAM: &str = "hostile";

/// One test at a time, since they measure.
const fn rows(name: &'static str) -> Case {
    Case::raw(PROGRAM, name).threads(1)
}

/// Of a disk that hangs: all of them wait for bounds of the daemon's, at the same time.
const fn hanging(name: &'static str) -> Case {
    rows(name).needs(&[Need::Fuse]).takes(Takes::Little).threads(8)
}

/// The group.
pub(super) const GROUP: Group = Group::new(
    PROGRAM,
    "guests and front-ends that lie, stall, storm and vanish, beside a disk that must not notice",
    &[
        rows("hostile_split"),
        rows("hostile_packed"),
        rows("hostile_blk"),
        rows("hostile_storm"),
        rows("hostile_races"),
        rows("lost_memory"),
        rows("bad_front_end"),
        rows("bad_memory"),
        rows("bad_rings"),
        rows("bad_connection"),
        rows("names"),
        rows("connections"),
        rows("bounds"),
        rows("nic_storm"),
        rows("soak").usually(30).within(1500),
        // Each of its kinds has a test of its own above.
        rows("crowd").only_all("takes minutes").within(1200),
        rows("attacks").needs(&[Need::Fuse]),
        hanging("dead_disk").usually(15),
        hanging("dead_mount").usually(20),
    ],
);
