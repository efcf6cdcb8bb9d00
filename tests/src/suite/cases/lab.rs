//! Guests on real KVM, and their exits.

use testing::bed::Need;

use crate::suite::cases::alone;
use crate::suite::{Built, Group};

const EMULATED: &str = "counts depend on the speed of an emulated machine";

/// The group.
pub(super) const GROUP: Group = Group::new(
    "lab",
    "the lab: guests on real KVM, and how many exits a request costs with QEMU, vhost-net and Sidecore",
    &[
        alone("smoke").needs_built(Built::Daemon).needs(&[Need::Root]).only_all(EMULATED),
        alone("quick").needs_built(Built::Daemon).only_all(EMULATED),
    ],
);
