//! The packaged unit under systemd, in an emulated machine with this one's root, of which it changes nothing.

use testing::bed::Need;

use crate::suite::{Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "service",
    "the packaged unit under systemd: start, upgrade, reload, clock set back, death, wrong file, a \
     link, another user, stop (root)",
    &[Case::shell("").needs(&[Need::Root]).within(1000).usually(73)],
);
