//! NICs: guests on switches, VLANs, host ports in namespaces, DPDK's driver.

use testing::bed::Need;

use crate::suite::{Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "net",
    "NICs: guests on switches, VLANs, host ports in namespaces, DPDK's driver (root)",
    &[
        Case::shell("guests").needs(&[Need::Root]),
        Case::shell("host-ports").needs(&[Need::Root]),
        Case::shell("killed").needs(&[Need::Root]),
        Case::shell("drivers").needs(&[Need::Root]),
        Case::shell("pasted-nic").needs(&[Need::Root]),
        Case::shell("tunnels").needs(&[Need::Root]),
        Case::shell("testpmd").needs(&[Need::Root]),
        Case::shell("testpmd-pair").needs(&[Need::Root]),
    ],
);
