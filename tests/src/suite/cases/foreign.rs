//! Drivers and clients that are not Linux's.

use testing::bed::Need;

use crate::suite::{Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "foreign",
    "drivers and clients that are not Linux's: SeaBIOS and OVMF boot from a disk, iPXE from a NIC, \
     libblkio uses a disk",
    &[
        Case::shell("seabios"),
        Case::shell("seabios-kvm").needs(&[Need::Kvm]),
        Case::shell("ovmf"),
        Case::shell("ipxe").needs(&[Need::Root]),
        Case::raw("foreign", "libblkio"),
    ],
);
