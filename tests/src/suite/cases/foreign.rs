//! Drivers and clients that are not Linux's.
//!
//! | module | what |
//! |---|---|
//! | `loaded` | kernels that firmware loads: by OVMF from a disk, by iPXE from a NIC |
//! | `seabios` | a boot sector that proves a disk by SeaBIOS's own driver |

mod loaded;
mod seabios;

use testing::bed::Need;

use crate::suite::{Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "foreign",
    "drivers and clients that are not Linux's: SeaBIOS and OVMF boot from a disk, iPXE from a NIC, \
     libblkio uses a disk",
    &[
        Case::run("seabios", seabios::emulated),
        Case::run("seabios-kvm", seabios::on_kvm).needs(&[Need::Kvm]),
        Case::run("ovmf", loaded::ovmf).within(1200).usually(30),
        Case::run("ipxe", loaded::ipxe).needs(&[Need::Root]).within(1200).usually(25),
        Case::raw("foreign", "libblkio"),
    ],
);
