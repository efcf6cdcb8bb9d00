//! The sources with one rule removed.

use crate::suite::Group;
use crate::suite::cases::alone;

/// The group.
pub(super) const GROUP: Group = Group::new(
    "mutants",
    "the sources with one rule removed, each of which a named test must catch (only with --all)",
    &[alone("").within(3600)],
)
.only_by_name();
