//! Power cuts, failing disks, and the host's syncs for each write cache mode of a real guest.
//!
//! | module | what |
//! |---|---|
//! | `caches` | the write cache modes of a guest, and what is synced for each |
//! | `cuts` | images of a disk that has lost its power, and what must be in them |
//! | `file_system` | a guest's file system and databases on a disk that loses power |
//! | `mapper` | the daemon in a guest, on the kernel's own failing and logging devices |

mod caches;
mod cuts;
mod file_system;
mod mapper;

use testing::bed::Need;

use crate::suite::{Case, Group};

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
        on_fuse("power_cut").usually(60),
        on_fuse("failing_disk").usually(25),
        on_fuse("no_space"),
        on_fuse("lost_sync"),
        on_fuse("unusable_disk"),
        Case::run("caches", caches::caches).parts(&caches::NAMES).usually(20),
        Case::run("mapper", mapper::mapper).usually(25),
        Case::run("file-system", file_system::file_system).needs(&[Need::Fuse]).usually(60),
    ],
);
