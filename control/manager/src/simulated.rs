//! The control loop on one thread with everything around it, in made-up time: what a simulation needs to drive it.
//!
//! Only with the feature `simulated`, and only on threads with a [`Stage`]; elsewhere all is as it is shipped. Not
//! here: what happens, and what is right (`sim/lives`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use schedule::Nanos;
use sidecore::{Handle, Sidecore, SidecoreSpec};

use processes::Processes;

mod daemon;
mod heir;
mod machine;
mod processes;

pub use daemon::{Asked, Door, Heard, Simulated, Turned};
pub use heir::{HeirStep, Launchers, NewProcess};
pub(crate) use machine::machine;
pub use machine::{Machine, be_on};
pub use processes::{Around, current};
pub(crate) use processes::{end_here, go_on, is_dying, is_ready, kill, process};

/// When made-up time begins, on the machine's clock.
const BEGIN: Nanos = Nanos(1_000_000_000_000);

/// Queues that a sidecore can hold: nobody has more of them here, and to make room for all takes longer than most lives.
const QUEUES_MAX: u16 = 512;

/// How long what would be a thread takes, by its name.
type Delay = Box<dyn FnMut(&'static str) -> Duration>;

/// What a thread would do, and when.
struct Staged {
    name: &'static str,
    may_run: Box<dyn Fn() -> bool + Send>,
    run: Box<dyn FnOnce() + Send>,
    work: Work,
    /// Whose thread it would be.
    of: u32,
}

/// Word of such work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work(Arc<AtomicBool>);

impl Work {
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct Inner {
    now: Instant,
    delay: Delay,
    /// None is to be had, as where others have all.
    lacks_threads: bool,
    /// In the order in which it is done.
    staged: BTreeMap<(Instant, u64), Staged>,
    count: u64,
    /// Sidecores that nobody has taken, and whose they are.
    cores: Vec<(u32, Sidecore)>,
    /// Open for as long as the stage is.
    held: Vec<UnixStream>,
    /// Daemons' processes.
    processes: Processes,
}

thread_local! {
    static STAGE: RefCell<Option<Inner>> = const { RefCell::new(None) };
}

fn on_stage<T>(with: impl FnOnce(&mut Inner) -> T) -> Option<T> {
    STAGE.with(|stage| stage.borrow_mut().as_mut().map(with))
}

/// The time of the simulation on this thread, if there is one.
pub(crate) fn now() -> Option<Instant> {
    on_stage(|stage| stage.now)
}

/// Time goes on, and what is done meanwhile by others is done.
pub(crate) fn pass(time: Duration) {
    let Some(until) = now().map(|now| now + time) else { return };
    while next_due().is_some_and(|due| due <= until) {
        work_on();
    }
    on_stage(|stage| stage.now = stage.now.max(until));
}

/// Keeps what is to stay open.
pub(crate) fn hold(ends: [UnixStream; 2]) {
    on_stage(|stage| stage.held.extend(ends));
}

/// Whether no thread is to be had now.
pub(crate) fn lacks_threads() -> bool {
    on_stage(|stage| stage.lacks_threads).unwrap_or(false)
}

/// Has something done by and by, when it may run.
pub(crate) fn stage(
    name: &'static str,
    may_run: Box<dyn Fn() -> bool + Send>,
    run: Box<dyn FnOnce() + Send>,
) -> Work {
    let work = Work::default();
    let word = work.clone();
    // The threads of a process that has ended have ended with it.
    if !is_dying() {
        on_stage(|stage| {
            let of = stage.processes.current;
            stage.put(Staged { name, may_run, run, work, of });
        });
    }
    word
}

/// What a thread does each time that it is asked.
pub(crate) struct Step {
    name: &'static str,
    run: Arc<Mutex<dyn FnMut() + Send>>,
}

impl Step {
    pub(crate) fn new(name: &'static str, run: impl FnMut() + Send + 'static) -> Step {
        Step { name, run: Arc::new(Mutex::new(run)) }
    }

    /// Has it done once, by and by.
    pub(crate) fn stage(&self) {
        let run = Arc::clone(&self.run);
        stage(
            self.name,
            Box::new(|| true),
            Box::new(move || run.lock().unwrap_or_else(PoisonError::into_inner)()),
        );
    }
}

impl Inner {
    /// Has it done as late as the simulation says.
    fn put(&mut self, staged: Staged) {
        let at = self.now + (self.delay)(staged.name).max(Duration::from_micros(1));
        self.count += 1;
        self.staged.insert((at, self.count), staged);
    }
}

fn next_due() -> Option<Instant> {
    on_stage(|stage| stage.staged.keys().next().map(|(at, _)| *at)).flatten()
}

/// Does the next thing that is staged, or puts it off; it is that late then.
pub(crate) fn work_on() {
    let next = on_stage(|stage| {
        let ((at, _), next) = stage.staged.pop_first()?;
        stage.now = stage.now.max(at);
        Some(next)
    });
    match next.flatten() {
        Some(next) if (next.may_run)() => {
            let before = processes::enter(next.of);
            (next.run)();
            processes::enter(before);
            next.work.0.store(true, Ordering::Relaxed);
        }
        next => drop(on_stage(|stage| next.into_iter().for_each(|next| stage.put(next)))),
    }
}

/// Waits for the outcome of what is staged, as long as that: others do their work meanwhile.
pub(crate) fn wait<T>(outcome: &Receiver<T>, most: Duration) -> Result<T, RecvTimeoutError> {
    let until = now().map(|now| now + most);
    loop {
        match outcome.try_recv() {
            Ok(outcome) => return Ok(outcome),
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) => {}
        }
        if next_due() > until || next_due().is_none() {
            on_stage(|stage| stage.now = until.map_or(stage.now, |until| stage.now.max(until)));
            return Err(RecvTimeoutError::Timeout);
        }
        work_on();
    }
}

/// A sidecore that the simulation gives its passes; a thread's, where there is none.
pub(crate) fn launch(
    spec: SidecoreSpec,
    begin: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<Handle> {
    if now().is_none() {
        return sidecore::launch(spec, begin);
    }
    let queues_max = spec.queues_max.min(QUEUES_MAX);
    let (sidecore, handle) = Sidecore::new(SidecoreSpec { cpu: None, queues_max, ..spec })?;
    on_stage(|stage| stage.cores.push((stage.processes.current, sidecore)));
    Ok(handle)
}

/// The sidecores of process `pid` that nobody has taken. Another one may wait within its start.
pub(crate) fn take_cores(pid: u32) -> Vec<Sidecore> {
    let taken = on_stage(|stage| {
        let taken = stage.cores.extract_if(.., |(of, _)| *of == pid);
        taken.map(|(_, core)| core).collect()
    });
    taken.unwrap_or_default()
}

/// The time of one thread, and what others than control do in it.
pub struct Stage(());

impl Stage {
    /// From now on this thread has a time of its own, which stands still but for what is said here. What would be a
    /// thread's takes as long as `delay` says of its name.
    pub fn set(delay: impl FnMut(&'static str) -> Duration + 'static) -> Stage {
        let inner = Inner {
            now: sidecore::instant_of(BEGIN),
            delay: Box::new(delay),
            lacks_threads: false,
            staged: BTreeMap::new(),
            count: 0,
            cores: Vec::new(),
            held: Vec::new(),
            processes: Processes::default(),
        };
        STAGE.with(|stage| *stage.borrow_mut() = Some(inner));
        Stage(())
    }

    /// The time, as sidecores tell it.
    pub fn now(&self) -> Nanos {
        now().map_or(BEGIN, sidecore::nanos_of)
    }

    /// Nobody has a thread from now on, or whoever wants one has.
    pub fn spend_threads(&self, are_spent: bool) {
        on_stage(|stage| stage.lacks_threads = are_spent);
    }

    /// Time goes on until then; what is due by then is done.
    pub fn pass_until(&self, at: Nanos) {
        pass(Duration::from_nanos(at.since(self.now())));
    }

    /// When something is due that is neither control's nor a sidecore's.
    pub fn due(&self) -> Option<Nanos> {
        next_due().map(sidecore::nanos_of)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Whatever is dropped here may ask for the time.
        drop(STAGE.with(|stage| stage.borrow_mut().take()));
    }
}
