//! Threads that do what would hold control up, and how control waits for them.
//!
//! With the feature `simulated`, and where a simulation runs, none is begun: the simulation does their work, when it
//! says so. Called by all who have work for a thread that ends; sidecores, the API and the greeter have their own.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use confine::Kind;

#[cfg(feature = "simulated")]
use crate::simulated;

/// A thread that goes on by itself.
#[derive(Debug)]
pub(crate) enum Thread {
    Begun(JoinHandle<()>),
    /// A simulation's.
    #[cfg(feature = "simulated")]
    Staged(simulated::Work),
}

impl Thread {
    /// Whether its work is done.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Thread::Begun(thread) => thread.is_finished(),
            #[cfg(feature = "simulated")]
            Thread::Staged(work) => work.is_over(),
        }
    }
}

/// Begins a thread that is confined as its kind is.
///
/// # Errors
/// There is none to be had; what was to be done is dropped here.
pub(crate) fn begin(
    name: &'static str,
    kind: Kind,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    #[cfg(feature = "simulated")]
    if simulated::now().is_some() {
        return Ok(Thread::Staged(simulated::stage(name, Box::new(run))));
    }
    let thread = std::thread::Builder::new().name(name.to_string()).spawn(move || {
        // What it has of control's list is what it keeps when this fails.
        let _ = confine::thread(kind);
        run();
    });
    Ok(Thread::Begun(thread?))
}

/// For one outcome, in which nothing lies: the thread has it until it is taken, and drops what nobody waits for.
pub(crate) fn outcome<T>() -> (SyncSender<T>, Receiver<T>) {
    // One thread alone cannot be at both ends.
    #[cfg(feature = "simulated")]
    if simulated::now().is_some() {
        return sync_channel(1);
    }
    sync_channel(0)
}

/// Waits for that outcome, at most so long.
pub(crate) fn wait<T>(outcome: &Receiver<T>, most: Duration) -> Result<T, RecvTimeoutError> {
    #[cfg(feature = "simulated")]
    if simulated::now().is_some() {
        return simulated::wait(outcome, most);
    }
    outcome.recv_timeout(most)
}

/// What a thread is to do next, for which it waits as long as anybody could ask. In a simulation it ends when nobody
/// does.
pub(crate) fn task<T>(asked: &Receiver<T>) -> Option<T> {
    #[cfg(feature = "simulated")]
    if simulated::now().is_some() {
        return asked.try_recv().ok();
    }
    asked.recv().ok()
}
