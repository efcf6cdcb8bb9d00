//! Live migration between two daemons under load.

use testing::bed::Need;

use crate::suite::{Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "migrate",
    "live migration between two daemons under load: back and forth, called off, with a death at each \
     step (root)",
    &[
        Case::raw("migrate", "migrate")
            .variables(&[("MIGRATE_ROUNDS", "200", "5000"), ("MIGRATE_STOPS", "300", "1000")])
            .usually(60),
        Case::shell("moves").needs(&[Need::Root]),
        Case::shell("called-off").needs(&[Need::Root]),
        Case::shell("deaths").needs(&[Need::Root]),
        Case::shell("saved").needs(&[Need::Root]),
        Case::shell("snapshot").needs(&[Need::Root]),
        Case::shell("pause").needs(&[Need::Root]).only_all("takes minutes"),
    ],
);
