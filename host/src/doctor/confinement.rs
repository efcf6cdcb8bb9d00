//! What the daemon can give up on this host, and with which rights it would start. Called by `examine`.
//!
//! Not here: what a daemon that runs has given up; that it says itself.

use std::io;

use io_uring::IoUring;
use io_uring::register::Restriction;

use super::{Check, Probes, State, check, net};
use crate::files::Files;

/// Makes a ring that takes one operation only.
pub(super) fn restrict_a_ring() -> io::Result<()> {
    let ring: IoUring = IoUring::builder().setup_r_disabled().build(8)?;
    let nothing = Restriction::sqe_op(io_uring::opcode::Nop::CODE);
    ring.submitter().register_restrictions(&mut [nothing])?;
    ring.submitter().register_enable_rings()
}

/// System calls.
pub(super) fn filters(files: &Files) -> Check {
    let name = "seccomp";
    match files.text("proc/sys/kernel/seccomp/actions_avail") {
        Some(actions) if actions.contains("kill_process") => check(
            name,
            State::Ok,
            "filters",
            "each thread of the daemon makes only the system calls that it needs",
            "",
        ),
        _ => check(
            name,
            State::Missing,
            "no filters of system calls",
            "the daemon does not start, unless with SIDECORE_CONFINE=off in its environment",
            "use a kernel of 4.14 or newer with CONFIG_SECCOMP_FILTER",
        ),
    }
}

/// What passes by the filters.
pub(super) fn rings(probes: &Probes) -> Check {
    let name = "io_uring restrictions";
    match &probes.ring_restrictions {
        Ok(()) => check(
            name,
            State::Ok,
            "work",
            "an io_uring takes only the operations that the daemon uses",
            "",
        ),
        Err(error) => check(
            name,
            State::Warn,
            error,
            "what the daemon does through an io_uring is not filtered",
            "use a kernel of 5.10 or newer",
        ),
    }
}

/// Files.
pub(super) fn landlock(probes: &Probes) -> Check {
    let name = "landlock";
    match probes.landlock {
        Some(abi) => check(
            name,
            State::Ok,
            format!("version {abi}"),
            "with `image_folders` in [daemon] the daemon opens no other files; without, any",
            "",
        ),
        None => check(
            name,
            State::Warn,
            "this kernel has none, or it is not among its security modules",
            "`image_folders` in [daemon] is kept by the daemon's own checks alone",
            "use a kernel of 5.13 or newer with CONFIG_SECURITY_LANDLOCK, and landlock in the list of \
             `lsm=` at boot",
        ),
    }
}

/// With which rights a daemon of this user would start.
pub(super) fn rights(files: &Files) -> Check {
    let status = files.text("proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next());
    let found = match (uid, net::capabilities(files)) {
        (Some("0"), _) => "root",
        (_, 0) => "a user without capabilities",
        _ => "a user with capabilities",
    };
    let means = match found {
        "root" => "the daemon keeps what images and networks take, and gives up the rest",
        _ => "disks whose images this user may write, and switches; the rest as below",
    };
    check("rights", State::Ok, found, means, "")
}
