//! Processes of a stage: which one's code runs, who goes on while it waits, and how one ends.
//!
//! A process that waits within its turn has the simulation go on around it. One that has ended meanwhile is unwound from
//! there, without a destructor that others would notice. Not here: what goes on (`sim/lives`).

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use schedule::Nanos;

use super::{Inner, Stage, Staged, be_on, machine, next_due, now, on_stage, pass};

/// Everything but the process that waits.
pub trait Around: Any {
    /// Somebody else does something, or time goes on, at most until then.
    fn go_on(&mut self, until: Nanos);
}

/// Nobody: time goes on, and with it what is staged.
pub(super) struct Alone;

impl Around for Alone {
    fn go_on(&mut self, until: Nanos) {
        pass_to_next(sidecore::instant_of(until));
    }
}

/// All that there are.
#[derive(Default)]
pub(super) struct Processes {
    /// Whose code runs.
    pub(super) current: u32,
    /// It is being dropped as the kernel drops a process.
    pub(super) is_dying: bool,
    count: u32,
    /// Those that live, each with what is closed by its end.
    alive: BTreeMap<u32, Vec<UnixStream>>,
    /// Those that were killed, and have ended or will.
    killed: BTreeSet<u32>,
}

impl Processes {
    fn add(&mut self) -> u32 {
        self.count += 1;
        self.alive.insert(self.count, Vec::new());
        self.count
    }

    /// What is readable when it has ended; nothing, when there is none.
    fn watch(&mut self, pid: u32) -> Option<OwnedFd> {
        let ends = self.alive.get_mut(&pid)?;
        let (near, far) = UnixStream::pair().ok()?;
        ends.push(far);
        Some(near.into())
    }
}

/// Why a turn is unwound: its process has ended.
struct Ended;

thread_local! {
    static AROUND: RefCell<Option<Box<dyn Around>>> = const { RefCell::new(None) };
}

/// A process begins: its number.
pub(super) fn begin_process() -> u32 {
    on_stage(|stage| stage.processes.add()).unwrap_or(0)
}

/// From now on that one's code runs; whose did before.
pub(super) fn enter(process: u32) -> u32 {
    on_stage(|stage| std::mem::replace(&mut stage.processes.current, process)).unwrap_or(0)
}

/// Whose turn it is.
pub fn current() -> u32 {
    on_stage(|stage| stage.processes.current).unwrap_or(0)
}

/// What came of something that a process did.
pub(super) enum Done<T> {
    This(T),
    /// The process has ended meanwhile.
    Ended,
    /// It panicked, which is a finding.
    Panicked(String),
}

/// Has process `pid` do something, which may wait for others, who go on around it.
pub(super) fn within<T, A: Around>(pid: u32, around: A, act: impl FnOnce() -> T) -> (Done<T>, A) {
    AROUND.with(|place| *place.borrow_mut() = Some(Box::new(around)));
    let before = enter(pid);
    let done = catch_unwind(AssertUnwindSafe(act));
    enter(before);
    let around = AROUND.with(|place| place.borrow_mut().take());
    let around = around.map(|around| around as Box<dyn Any>);
    let around = around.and_then(|around| around.downcast::<A>().ok());
    let around = *around.expect("what goes on around it is there again");
    let done = match done {
        Ok(done) => Done::This(done),
        Err(panic) if panic.is::<Ended>() => {
            on_stage(|stage| stage.processes.is_dying = false);
            Done::Ended
        }
        Err(panic) => Done::Panicked(said_by(&*panic)),
    };
    (done, around)
}

fn said_by(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words").to_string()
}

/// Drops what a process had, as the kernel does.
pub(super) fn drop_dead<T>(what: T) {
    on_stage(|stage| stage.processes.is_dying = true);
    drop(what);
    on_stage(|stage| stage.processes.is_dying = false);
}

/// Whether what is dropped now is a dead process's.
pub(crate) fn is_dying() -> bool {
    on_stage(|stage| stage.processes.is_dying).unwrap_or(false)
}

/// The process whose code runs ends here.
pub(crate) fn end_here() -> ! {
    end(current());
    on_stage(|stage| stage.processes.is_dying = true);
    resume_unwind(Box::new(Ended))
}

/// That process has ended, and so have its threads.
pub(super) fn end(pid: u32) {
    let threads = on_stage(|stage| {
        stage.processes.alive.remove(&pid);
        let is_its = |_: &_, staged: &mut Staged| staged.of == pid;
        stage.staged.extract_if(.., is_its).collect::<Vec<_>>()
    });
    drop_dead(threads);
}

/// What is readable when process `pid` has ended; nothing, when there is none.
pub(crate) fn process(pid: u32) -> Option<OwnedFd> {
    on_stage(|stage| stage.processes.watch(pid)).flatten()
}

/// Has process `pid` end, sooner or later.
pub(crate) fn kill(pid: u32) {
    on_stage(|stage| stage.processes.killed.insert(pid));
}

/// Whether that is ready within such a time, others going on meanwhile. True where there is no stage: whoever asks waits
/// itself.
pub(crate) fn is_ready(fd: &impl AsFd, what: PollFlags, within: Duration) -> bool {
    let Some(until) = now().map(|now| now + within) else { return true };
    loop {
        // Somebody always comes in between.
        step(until);
        if is_ready_now(fd, what) {
            return true;
        }
        if now() >= Some(until) {
            return false;
        }
    }
}

pub(super) fn is_ready_now(fd: &impl AsFd, what: PollFlags) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, what)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Something else goes on, or time does, for as long as that at most.
pub(crate) fn go_on(most: Duration) {
    if let Some(now) = now() {
        step(now + most);
    }
}

fn step(until: Instant) {
    let around = AROUND.with(|place| place.borrow_mut().take());
    let Some(mut around) = around else { return pass_to_next(until) };
    let pid = current();
    let machine = machine();
    let gone_on = catch_unwind(AssertUnwindSafe(|| around.go_on(sidecore::nanos_of(until))));
    be_on(machine);
    AROUND.with(|place| *place.borrow_mut() = Some(around));
    enter(pid);
    if let Err(panic) = gone_on {
        // It is that one's, and so is all that it had.
        resume_unwind(panic);
    }
    if on_stage(|stage| !stage.processes.alive.contains_key(&pid)) == Some(true) {
        end_here();
    }
}

/// Time goes to what is due next, and that is done.
fn pass_to_next(until: Instant) {
    let due = next_due().map_or(until, |due| due.min(until));
    pass(due.saturating_duration_since(now().unwrap_or(until)));
}

impl Stage {
    /// A process begins: its number.
    pub fn begin_process(&self) -> u32 {
        begin_process()
    }

    /// Process `pid` ends. What it had is to be dropped by whoever has it; if it waits, it is unwound.
    pub fn end_process(&self, pid: u32) {
        end(pid);
    }

    /// Whether process `pid` was killed by another one, and lives.
    pub fn is_killed(&self, pid: u32) -> bool {
        let is_killed = |stage: &mut Inner| {
            stage.processes.killed.contains(&pid) && stage.processes.alive.contains_key(&pid)
        };
        on_stage(is_killed).unwrap_or(false)
    }
}
