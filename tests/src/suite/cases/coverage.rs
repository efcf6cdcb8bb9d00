//! Lines that tests, the simulator and the corpora of fuzzing reach.

use crate::suite::Group;
use crate::suite::cases::alone;

/// The group.
pub(super) const GROUP: Group = Group::new(
    "coverage",
    "lines of virtqueue, device and vhost_user that tests, the simulator and the corpora of fuzzing reach \
     (only with --all)",
    &[alone("")],
)
.only_by_name();
