//! Whether numbers of processes and times here are those that programs in the kernel see.

use std::path::Path;

/// The link that `/proc/self/ns/pid` is in the first namespace, whose numbers the kernel uses itself
/// (`PROC_PID_INIT_INO`).
const FIRST_PIDS: &str = "pid:[4026531836]";
/// The time namespace of the machine itself (`PROC_TIME_INIT_INO`).
const FIRST_TIMES: &str = "time:[4026531834]";

/// What is not the machine's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// Numbers of processes and threads.
    Pids,
    /// The clock.
    Time,
}

/// Looks whether this process is in the machine's own namespaces.
///
/// # Errors
/// The first that is another one.
pub fn namespaces() -> Result<(), Own> {
    let here = std::fs::read_link("/proc/self/ns/pid").ok();
    if here.is_none_or(|here| here != Path::new(FIRST_PIDS)) {
        return Err(Own::Pids);
    }
    // Of a kernel without such there is none.
    let here = std::fs::read_link("/proc/self/ns/time").ok();
    if here.is_some_and(|here| here != Path::new(FIRST_TIMES)) {
        return Err(Own::Time);
    }
    Ok(())
}
