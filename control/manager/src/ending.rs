//! The end of this process at once: no destructor runs, since what is open is another process's as well.
//!
//! Not here: a stop (`manager`). Called by either side of an upgrade.

/// Ends it, with that status.
pub(crate) fn exit(status: i32) -> ! {
    #[cfg(any(test, feature = "simulated"))]
    if crate::simulated::now().is_some() {
        crate::simulated::end_here();
    }
    std::process::exit(status)
}

/// Gives way to another process, which may serve as soon as it runs.
pub(crate) fn abort() -> ! {
    #[cfg(any(test, feature = "simulated"))]
    if crate::simulated::now().is_some() {
        crate::simulated::end_here();
    }
    std::process::abort()
}
