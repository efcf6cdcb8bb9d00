//! The process of an heir: watched, and killed when it is given up.
//!
//! Not here: when (`predecessor`, `guard`), and what it has to say (`channel`).

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tracing::error;

use super::channel::is_readable;
use crate::ending;

/// How long a process that was killed may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// It, whatever becomes of it.
pub(super) struct Process {
    pub(super) pid: u32,
    /// Readable when it has ended.
    end: OwnedFd,
}

impl Process {
    /// The child of a launcher that has not asked how it ended, so that the number is still its own. Nothing: it cannot be
    /// watched.
    pub(super) fn watch(pid: u32) -> Option<Process> {
        #[cfg(any(test, feature = "simulated"))]
        if crate::simulated::now().is_some() {
            return Some(Process { pid, end: crate::simulated::process(pid)? });
        }
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        Some(Process { pid, end: pidfd_open(number, PidfdFlags::empty()).ok()? })
    }

    /// Has it end, and does not wait for that.
    pub(super) fn kill(&self) {
        #[cfg(any(test, feature = "simulated"))]
        if crate::simulated::now().is_some() {
            return crate::simulated::kill(self.pid);
        }
        // It may have ended already.
        let _ = pidfd_send_signal(&self.end, Signal::KILL);
    }

    /// Has it end, and waits for that: two that serve would be worse than none.
    pub(super) fn end(&self) {
        self.kill();
        if !is_readable(&self.end, END_TIME_MAX) {
            // It may serve as soon as it runs again.
            error!("the new process does not end: this one gives way to it");
            ending::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_given_up_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("a process");
        let process = Process::watch(child.id()).expect("a child of this process");
        assert!(child.try_wait().expect("known").is_none());
        process.end();
        assert!(!child.wait().expect("it has ended").success());
        // What ended long ago is known by its descriptor, and nobody else is killed.
        process.end();
    }
}
