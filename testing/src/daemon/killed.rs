//! `kill -9` of a daemon, at once or at some instant, by whomever.

use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rustix::process::{Signal, pidfd_send_signal};

use super::{Daemon, TRY, pause};
use crate::clock::now_ns;
use crate::timing::PATIENCE;

/// Whoever kills a daemon in a while. Dropped, it has.
#[derive(Debug)]
pub(super) struct Killer {
    has_killed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Killer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Daemon {
    /// Ends it at once, as a crash does.
    ///
    /// # Errors
    /// It was gone already.
    pub fn kill(&mut self) -> Result<()> {
        self.is_alive()?;
        self.process.signal(Signal::KILL)?;
        self.reap()
    }

    /// Has it killed in so many nanoseconds, by a thread of its own: at any instant.
    ///
    /// # Errors
    /// The system's.
    pub fn kill_in(&mut self, wait_ns: u64) -> Result<()> {
        let has_killed = Arc::new(AtomicBool::new(false));
        let (process, done) = (self.process.process.try_clone()?, Arc::clone(&has_killed));
        let thread = std::thread::spawn(move || {
            pause(Duration::from_nanos(wait_ns));
            let _ = pidfd_send_signal(&process, Signal::KILL);
            done.store(true, Ordering::Release);
        });
        self.killer = Some(Killer { has_killed, thread: Some(thread) });
        Ok(())
    }

    /// Whether [`Daemon::kill_in`] has killed it.
    pub fn is_killed(&self) -> bool {
        self.killer.as_ref().is_some_and(|killer| killer.has_killed.load(Ordering::Acquire))
    }

    /// Waits until [`Daemon::kill_in`] has killed it; false when nobody is to.
    pub fn await_kill(&self) -> bool {
        let start = now_ns();
        while self.killer.is_some() && u128::from(now_ns() - start) < PATIENCE.as_nanos() {
            if self.is_killed() {
                return true;
            }
            pause(TRY);
        }
        self.is_killed()
    }

    /// Waits until it has been killed, by [`Daemon::kill_in`] or by somebody else, and is gone.
    ///
    /// # Errors
    /// It ended otherwise, or not in time.
    pub fn reap(&mut self) -> Result<()> {
        self.killer = None;
        self.process.await_end()?;
        if let Some(mut child) = self.child.take() {
            let status = child.wait()?;
            let is_killed = status.signal() == Some(Signal::KILL.as_raw());
            ensure!(is_killed, "the daemon ended by itself with {status}:\n{}", self.last_words());
        }
        Ok(())
    }

    /// Connects to the device of that name as soon as it listens; `None` when it was killed before.
    ///
    /// # Errors
    /// It ended by itself, or does not listen in time.
    pub fn connect_unless_killed(&self, id: &str) -> Result<Option<UnixStream>> {
        let (socket, start) = (self.socket(id), now_ns());
        loop {
            if let Ok(stream) = UnixStream::connect(&socket) {
                return Ok(Some(stream));
            }
            if self.is_killed() {
                return Ok(None);
            }
            // Without a killer, an end is its own.
            if self.killer.is_none() && self.process.has_ended(Duration::ZERO)? {
                bail!("the daemon has ended:\n{}", self.last_words());
            }
            let waited = Duration::from_nanos(now_ns() - start);
            ensure!(
                waited < PATIENCE,
                "waited {waited:?} in vain for {}:\n{}",
                socket.display(),
                self.last_words()
            );
            pause(TRY);
        }
    }
}
