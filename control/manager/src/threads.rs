//! Threads that do what would hold control up, and how control waits for them.
//!
//! With the feature `simulated`, and where a simulation runs, none is begun: the simulation does their work, when it
//! says so. Called by all who have work for a thread; sidecores and the API have their own.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use confine::Kind;

#[cfg(any(test, feature = "simulated"))]
use crate::simulated;

/// A thread that goes on by itself.
#[derive(Debug)]
pub(crate) enum Thread {
    Begun(JoinHandle<()>),
    /// A simulation's.
    #[cfg(any(test, feature = "simulated"))]
    Staged(simulated::Work),
}

impl Thread {
    /// Whether its work is done.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Thread::Begun(thread) => thread.is_finished(),
            #[cfg(any(test, feature = "simulated"))]
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
    #[cfg(any(test, feature = "simulated"))]
    if simulated::now().is_some() {
        if simulated::lacks_threads() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        return Ok(Thread::Staged(simulated::stage(name, Box::new(|| true), Box::new(run))));
    }
    let thread = std::thread::Builder::new().name(name.to_string()).spawn(move || {
        // What it has of control's list is what it keeps when this fails.
        let _ = confine::thread(kind);
        run();
    });
    Ok(Thread::Begun(thread?))
}

/// A thread that does what it is asked for, in order, for as long as anybody can ask.
pub(crate) struct Worker<T> {
    tasks: SyncSender<T>,
    #[cfg(any(test, feature = "simulated"))]
    staged: Option<simulated::Step>,
}

impl<T: Send + 'static> Worker<T> {
    /// Begins one that is confined as its kind is, for which so many tasks can wait.
    ///
    /// # Errors
    /// There is none to be had.
    pub(crate) fn begin(
        (name, kind): (&'static str, Kind),
        most: usize,
        work: impl FnMut(T) + Send + 'static,
    ) -> io::Result<Worker<T>> {
        let (tasks, asked) = sync_channel::<T>(most);
        #[cfg(any(test, feature = "simulated"))]
        if simulated::now().is_some() {
            let mut work = work;
            let step = move || asked.try_recv().into_iter().for_each(&mut work);
            return Ok(Worker { tasks, staged: Some(simulated::Step::new(name, step)) });
        }
        begin(name, kind, move || asked.iter().for_each(work))?;
        Ok(Worker {
            tasks,
            #[cfg(any(test, feature = "simulated"))]
            staged: None,
        })
    }

    /// Asks for something, which is given back when too much waits.
    pub(crate) fn ask(&self, task: T) -> Result<(), T> {
        self.tasks.try_send(task).map_err(|refused| match refused {
            TrySendError::Full(task) | TrySendError::Disconnected(task) => task,
        })?;
        #[cfg(any(test, feature = "simulated"))]
        self.staged.iter().for_each(simulated::Step::stage);
        Ok(())
    }

    /// Asks for something that must be done, and waits until there is room for it.
    pub(crate) fn insist(&self, task: T) {
        #[cfg(any(test, feature = "simulated"))]
        if self.staged.is_some() {
            let mut task = Some(task);
            while let Some(left) = task.take().and_then(|task| self.ask(task).err()) {
                simulated::work_on();
                task = Some(left);
            }
            return;
        }
        let _ = self.tasks.send(task);
    }
}

/// What work on a thread of its own has to wait for.
pub(crate) trait Before: Send + 'static {
    /// Whether it has come. A thread need not ask.
    #[cfg(any(test, feature = "simulated"))]
    fn is_over(&self) -> bool;
    /// Waits for it, as long as it takes.
    fn wait(&self);
}

/// Begins a thread as [`begin`] does, which waits for something first.
///
/// # Errors
/// As [`begin`].
pub(crate) fn begin_after(
    name: &'static str,
    kind: Kind,
    before: impl Before,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    // One that waits there keeps nobody else from going on.
    #[cfg(any(test, feature = "simulated"))]
    if simulated::now().is_some() {
        if simulated::lacks_threads() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let may_run = Box::new(move || before.is_over());
        return Ok(Thread::Staged(simulated::stage(name, may_run, Box::new(run))));
    }
    begin(name, kind, move || {
        before.wait();
        run();
    })
}

/// For one outcome, in which nothing lies: the thread has it until it is taken, and drops what nobody waits for.
pub(crate) fn outcome<T>() -> (SyncSender<T>, Receiver<T>) {
    // One thread alone cannot be at both ends.
    #[cfg(any(test, feature = "simulated"))]
    if simulated::now().is_some() {
        return sync_channel(1);
    }
    sync_channel(0)
}

/// Waits for that outcome, at most so long.
pub(crate) fn wait<T>(outcome: &Receiver<T>, most: Duration) -> Result<T, RecvTimeoutError> {
    #[cfg(any(test, feature = "simulated"))]
    if simulated::now().is_some() {
        return simulated::wait(outcome, most);
    }
    outcome.recv_timeout(most)
}

/// What a thread is to do next, for which it waits as long as anybody could ask. In a simulation it ends when nobody
/// does.
pub(crate) fn task<T>(asked: &Receiver<T>) -> Option<T> {
    #[cfg(any(test, feature = "simulated"))]
    if simulated::now().is_some() {
        return asked.try_recv().ok();
    }
    asked.recv().ok()
}
