//! The daemon served by our own front-end.

use crate::suite::{Case, Group};

const PROGRAM: &str = "frontend";

/// The group.
pub(super) const GROUP: Group = Group::new(
    PROGRAM,
    "the daemon served by our own front-end: rings, dirty log, memory, resize, idle cost, attach, NICs",
    &[
        Case::raw(PROGRAM, "front_end"),
        Case::raw(PROGRAM, "dirty_log"),
        Case::raw(PROGRAM, "dirty_log_net"),
        Case::raw(PROGRAM, "memory"),
        Case::raw(PROGRAM, "resize"),
        Case::raw(PROGRAM, "block_size"),
        Case::raw(PROGRAM, "large_requests"),
        Case::raw(PROGRAM, "run_time"),
        Case::raw(PROGRAM, "limits"),
        Case::raw(PROGRAM, "latency_target"),
        Case::raw(PROGRAM, "moves"),
        Case::raw(PROGRAM, "stages"),
        Case::raw(PROGRAM, "cores"),
        Case::raw(PROGRAM, "connect"),
        Case::raw(PROGRAM, "attach"),
        Case::raw(PROGRAM, "idle"),
        Case::raw(PROGRAM, "arrival"),
        Case::raw(PROGRAM, "nic_control"),
        Case::raw(PROGRAM, "nic_offloads"),
        Case::raw(PROGRAM, "limits_nic"),
        Case::raw(PROGRAM, "moves_nic"),
        Case::raw(PROGRAM, "confined"),
        Case::raw(PROGRAM, "access"),
        Case::raw(PROGRAM, "run_state"),
        Case::raw(PROGRAM, "run_state_qmp"),
        Case::raw(PROGRAM, "rivals"),
        Case::raw(PROGRAM, "host"),
        Case::raw(PROGRAM, "under_guests"),
        Case::raw(PROGRAM, "image_identity"),
        Case::raw(PROGRAM, "image_formats"),
        Case::raw(PROGRAM, "image_remote"),
    ],
);
