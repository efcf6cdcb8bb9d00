//! Real guests, a stock Debian kernel in QEMU, on disks of the daemon.

use crate::suite::{Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "guest",
    "real guests (stock Debian kernel in QEMU) on disks of the daemon",
    &[
        Case::shell("fio"),
        Case::shell("fio-memory"),
        Case::shell("ext4"),
        Case::shell("dd"),
        Case::shell("resize"),
        Case::shell("hotplug"),
        Case::shell("readonly"),
        Case::shell("queues-64"),
        Case::shell("packed"),
        Case::shell("discard"),
        Case::shell("identity"),
        Case::shell("block-size"),
        Case::shell("two-guests"),
        Case::shell("pasted"),
        Case::shell("platform"),
        Case::shell("kernel-6-12"),
    ],
);
