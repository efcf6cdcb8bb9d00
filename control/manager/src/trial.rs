//! A daemon for tests of what control promises: its own loop on this thread, in made-up time, with sidecores that are
//! stepped, operators without HTTP, and VMMs at its sockets (`vmm`).
//!
//! Real are sockets, memory files, images in a folder of its own and the epoll set; nobody waits for any of them. What
//! would be a thread's is done when [`Trial::slow`] says. Not here: lives from a seed (`sim/lives`).

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use config::Plan;
use config::api::{Answer, ApiError, Call, DiskView, EffectView, ErrorKind, NicView, ReloadView};
use config::plan::load;
use cpus::HostCpus;
use schedule::{Clock, Nanos};
use sidecore::{Sidecore, nanos_of};

use crate::begin::StartError;
use crate::manager::Manager;
use crate::options::{Options, Unread, of_an_heir};
use crate::poll::Token;
use crate::rooms::Rooms;
use crate::simulated::{self, Around, Asked, Heard, Simulated, Stage};

pub(crate) mod vmm;

/// What a reading of the clock within a pass takes.
const TICK_NS: u64 = 100;
/// What a thread takes at least.
const SOON_NS: u64 = 1_000;
/// Steps at one moment, or wake-ups in one stretch of time, before a daemon is said to go round without end.
const STEPS_MAX: u32 = 20_000;
/// How long an operator waits for an answer in made-up time: as long as the API does.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);

pub(crate) struct Trial {
    pub(crate) daemon: Simulated,
    cores: Vec<Core>,
    file: Rc<RefCell<String>>,
    slow: Rc<Cell<Duration>>,
    /// Sidecores do nothing, as when their disks do not answer.
    is_stalled: bool,
    /// Turns of the control loop so far.
    pub(crate) turns: u32,
    /// Its loop is over.
    has_ended: bool,
    /// Defects are what the test is about.
    pub(crate) expects_defects: bool,
    stage: Stage,
    folder: Rc<tempfile::TempDir>,
}

/// A sidecore, and whether it sleeps.
struct Core(Sidecore, bool);

/// Each that has something to do has a pass. Whether anything was done.
fn pass_all(cores: &mut [Core]) -> bool {
    let now = || simulated::now().map_or(Nanos(0), nanos_of);
    let mut did = false;
    for Core(sidecore, asleep) in cores {
        if *asleep {
            let is_due = sidecore.wakes_at().is_some_and(|due| due <= now());
            if !is_due && !sidecore.is_woken() {
                continue;
            }
            sidecore.wake_up(now());
            *asleep = false;
        }
        let (began, clock) = (now(), Ticking(Cell::new(now().0)));
        let progress = sidecore.pass(began, &clock);
        simulated::pass(Duration::from_nanos(clock.0.get() - began.0));
        did |= !progress.is_idle();
        if progress.is_idle() {
            *asleep = sidecore.lie_down(now());
        }
    }
    did
}

/// Sidecores while control waits.
struct Passing(Vec<Core>);

impl Around for Passing {
    fn go_on(&mut self, until: Nanos) {
        if !pass_all(&mut self.0) {
            let left = until.since(simulated::now().map_or(until, nanos_of));
            simulated::pass(Duration::from_nanos(left).min(Duration::from_micros(50)));
        }
    }
}

struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + TICK_NS);
        Nanos(self.0.get())
    }
}

/// The folder of a trial, with what a daemon needs in it.
pub(crate) fn folder() -> Rc<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("trial").tempdir_in("/dev/shm").expect("a folder");
    for name in ["run", "state"] {
        std::fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    Rc::new(folder)
}

/// A file of that text, in which `{}` is the folder. Two sidecores are in use, unless it says otherwise.
fn file_of(text: &str, folder: &tempfile::TempDir) -> String {
    let head = "[daemon]\napi = \"{}/api.sock\"\nrun_dir = \"{}/run\"\nstate_dir = \"{}/state\"\n";
    let sidecores = match text.contains("[sidecores]") {
        true => "",
        false => "[sidecores]\ncpus = \"0-1\"\nmin = 2\n",
    };
    format!("{head}{sidecores}{text}").replace("{}", &folder.path().display().to_string())
}

fn read(text: &str, running: Option<&Plan>) -> Result<Plan, ApiError> {
    let host = HostCpus { online: (0..8).collect(), auto: Vec::new(), auto_count: 1 };
    load(text, "sidecore.toml", "/etc", &host, running).map_err(|refused| {
        ApiError::new(ErrorKind::Refused, refused.to_string(), "correct the file")
    })
}

impl Trial {
    /// One that serves what `text` says; in it, `{}` is the folder of this trial.
    pub(crate) fn of(text: &str) -> Trial {
        Trial::start(text, folder()).unwrap_or_else(|why| panic!("it does not start: {why}"))
    }

    /// The same in a folder in which something is already.
    ///
    /// # Errors
    /// What the daemon's start says.
    pub(crate) fn start(text: &str, folder: Rc<tempfile::TempDir>) -> Result<Trial, StartError> {
        Trial::begin(text, folder, Duration::ZERO)
    }

    /// The same, where what is a thread's takes so long from the beginning.
    pub(crate) fn start_slowly(text: &str, folder: Rc<tempfile::TempDir>, slow: Duration) -> Trial {
        let begun = Trial::begin(text, folder, slow);
        begun.unwrap_or_else(|why| panic!("it does not start: {why}"))
    }

    fn begin(
        text: &str,
        folder: Rc<tempfile::TempDir>,
        slow: Duration,
    ) -> Result<Trial, StartError> {
        let slow = Rc::new(Cell::new(slow));
        let delay = Rc::clone(&slow);
        let stage = Stage::set(move |_| delay.get());
        let file = Rc::new(RefCell::new(file_of(text, &folder)));
        let plan = read(&file.borrow(), None).unwrap_or_else(|why| panic!("{}", why.error));
        let loaded = Rc::clone(&file);
        let load = move |running: &Plan| {
            let text = loaded.borrow();
            read(&text, Some(running)).map_err(|refused| {
                let of_an_heir = of_an_heir(running, |beside| read(&text, beside).ok());
                Unread { refused, of_an_heir }
            })
        };
        let (daemon, cores) = Simulated::start(plan, options(load))?;
        let cores = cores.into_iter().map(|core| Core(core, false)).collect();
        let (is_stalled, turns, has_ended, expects_defects) = (false, 0, false, false);
        let mut trial = Trial {
            daemon,
            cores,
            file,
            slow,
            is_stalled,
            turns,
            has_ended,
            expects_defects,
            stage,
            folder,
        };
        trial.rest();
        Ok(trial)
    }

    /// The same folder, for a daemon after this one.
    pub(crate) fn keep_folder(&self) -> Rc<tempfile::TempDir> {
        Rc::clone(&self.folder)
    }

    /// A process that does nothing.
    pub(crate) fn begin_process(&self) -> u32 {
        self.stage.begin_process()
    }

    pub(crate) fn manager(&mut self) -> &mut Manager {
        self.daemon.manager()
    }

    pub(crate) fn rooms(&mut self) -> &mut Rooms {
        &mut self.manager().rooms
    }

    /// A path in the trial's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The socket of a device whose file names none.
    pub(crate) fn socket(&self, id: &str) -> PathBuf {
        self.path("run").join(format!("{id}.sock"))
    }

    /// What is a thread's takes so long from now on.
    pub(crate) fn slow(&self, time: Duration) {
        self.slow.set(time);
    }

    /// No thread is to be had from now on, or one is.
    pub(crate) fn spend_threads(&self, are_spent: bool) {
        self.stage.spend_threads(are_spent);
    }

    /// Sidecores do nothing from now on, or go on.
    pub(crate) fn stall(&mut self, is_stalled: bool) {
        self.is_stalled = is_stalled;
    }

    /// Whether its loop is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(crate) fn now(&self) -> Nanos {
        self.stage.now()
    }

    /// What has come is heard, what is due is done, and so is what follows, until there is nothing more to do now.
    pub(crate) fn rest(&mut self) {
        for _ in 0..STEPS_MAX {
            let (turned, passed) = (self.turn(), self.pass_cores());
            // What takes a thread no time is done by it now.
            let staged = self.stage.due().filter(|due| due.0 <= self.now().0 + SOON_NS);
            staged.into_iter().for_each(|due| self.stage.pass_until(due));
            let is_staged = staged.is_some();
            if !(turned || passed || is_staged) {
                return;
            }
        }
        panic!("it goes round without end");
    }

    /// One turn, if there is a reason for one.
    fn turn(&mut self) -> bool {
        let is_due = self.daemon.patience().is_some_and(|time| time.is_zero());
        if self.has_ended || !is_due && !self.daemon.has_events() {
            return false;
        }
        self.turns += 1;
        self.has_ended = self.daemon.turn(&mut |count| (0..count).collect());
        true
    }

    /// Each sidecore that has something to do has a pass, and control has no turn. Whether anything was done.
    pub(crate) fn pass_cores(&mut self) -> bool {
        !self.is_stalled && pass_all(&mut self.cores)
    }

    /// Has control do something within which it waits for sidecores.
    pub(crate) fn amid<T>(&mut self, act: impl FnOnce(&mut Manager) -> T) -> T {
        let cores = Passing(std::mem::take(&mut self.cores));
        let (done, cores) = self.daemon.amid(cores, act);
        self.cores = cores.0;
        done
    }

    /// Time goes on, and everybody does what is due in it.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now().0 + time.as_nanos() as u64;
        for _ in 0..STEPS_MAX {
            self.rest();
            let now = self.now();
            if now.0 >= until {
                return;
            }
            let control = self.daemon.patience().map(|time| now.0 + time.as_nanos() as u64);
            let asleep = self.cores.iter().filter(|core| core.1 && !self.is_stalled);
            let cores = asleep.filter_map(|core| core.0.wakes_at()).map(|at| at.0);
            let staged = self.stage.due().map(|at| at.0);
            // One that is awake looks again by and by.
            let is_awake = !self.is_stalled && self.cores.iter().any(|core| !core.1);
            let awake = is_awake.then_some(now.0 + 50_000);
            let next = control.into_iter().chain(cores).chain(staged).chain(awake);
            let next = next.min().unwrap_or(until).clamp(now.0 + 1, until);
            self.stage.pass_until(Nanos(next));
        }
        panic!("it wakes without end");
    }

    /// Time goes on, and nobody is given a turn in it.
    pub(crate) fn skip(&mut self, time: Duration) {
        self.stage.pass_until(Nanos(self.now().0 + time.as_nanos() as u64));
    }

    /// Asks, and waits for nothing.
    pub(crate) fn asks(&mut self, call: Call) -> Asked {
        self.daemon.ask(call)
    }

    /// What an operator is answered in the end, who waits as long as the API lets him.
    pub(crate) fn ask(&mut self, call: Call) -> Result<Answer, ApiError> {
        let asked = self.asks(call);
        self.answer(asked)
    }

    /// The answer to what was asked.
    pub(crate) fn answer(&mut self, mut asked: Asked) -> Result<Answer, ApiError> {
        let until = self.now().0 + ANSWER_TIME_MAX.as_nanos() as u64;
        loop {
            self.rest();
            match asked.hear() {
                Heard::Answer(answer) => return *answer,
                Heard::Nobody => panic!("nobody answers"),
                Heard::Nothing if self.now().0 >= until => panic!("no answer within 20 s"),
                Heard::Nothing => self.pass(Duration::from_millis(10)),
            }
        }
    }

    /// The disk of that name, as `sidecore show` has it.
    pub(crate) fn disk(&mut self, id: &str) -> DiskView {
        let shown = self.ask(Call::ShowDisk { id: id.to_string() });
        disk_in(shown.unwrap_or_else(|why| panic!("{why}")))
    }

    /// The NIC of that name.
    pub(crate) fn nic(&mut self, id: &str) -> NicView {
        match self.ask(Call::ShowNic { id: id.to_string() }) {
            Ok(Answer::Nic(nic)) => *nic,
            other => panic!("{other:?}"),
        }
    }

    /// Puts another text into the file; `{}` is the folder.
    pub(crate) fn write(&mut self, text: &str) {
        *self.file.borrow_mut() = file_of(text, &self.folder);
    }

    /// The file as it is.
    pub(crate) fn file(&self) -> String {
        self.file.borrow().clone()
    }

    /// Puts that into its place, whatever a trial needs.
    pub(crate) fn write_whole(&mut self, text: String) {
        *self.file.borrow_mut() = text;
    }

    /// As if a signal had come.
    pub(crate) fn signal(&mut self, token: Token) {
        let is_over = self.manager().turn(vec![(token, false)]);
        self.has_ended |= is_over.is_some();
        self.rest();
    }

    /// Reads the file again.
    pub(crate) fn reload(&mut self, text: &str, force: bool) -> Result<ReloadView, ApiError> {
        self.write(text);
        self.ask(Call::Reload { force }).map(reloaded)
    }

    /// What that would do, a line for each thing.
    pub(crate) fn dry(&mut self, text: &str) -> Result<Vec<EffectView>, ApiError> {
        self.write(text);
        self.ask(Call::ShowReload).map(|answer| reloaded(answer).effects)
    }

    /// Nothing that was made through the API can be kept from now on, or it can again.
    pub(crate) fn break_state(&self, broken: bool) {
        let (kept, aside) = (self.path("state/disks.json"), self.path("state/aside"));
        if broken {
            let _ = std::fs::rename(&kept, &aside);
            std::fs::create_dir(&kept).expect("a folder in its place");
        } else {
            std::fs::remove_dir(&kept).expect("the folder in its place");
            let _ = std::fs::rename(&aside, &kept);
        }
    }

    /// Ends as after `kill -9`: nobody says a word.
    pub(crate) fn die(mut self) -> Rc<tempfile::TempDir> {
        self.cores.drain(..).for_each(|core| core.0.die());
        self.keep_folder()
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What a failure has left behind is not asked for its tickets.
            return self.cores.drain(..).for_each(|core| core.0.die());
        }
        let defects = self.daemon.defects();
        self.cores.drain(..).for_each(|core| core.0.die());
        assert!(self.expects_defects || defects.is_empty(), "{defects:?}");
    }
}

/// The disk of an answer.
pub(crate) fn disk_in(answer: Answer) -> DiskView {
    match answer {
        Answer::Disk(disk) => *disk,
        other => panic!("{other:?} is no disk"),
    }
}

fn reloaded(answer: Answer) -> ReloadView {
    match answer {
        Answer::Reloaded(view) => view,
        other => panic!("{other:?} is no reload"),
    }
}

/// Kind, error and hint of a refusal.
pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, ApiError>) -> (ErrorKind, String) {
    let why = answer.expect_err("it is refused");
    (why.kind, format!("{}; {}", why.error, why.hint))
}

fn options(load: impl Fn(&Plan) -> Result<Plan, Unread> + 'static) -> Options {
    Options {
        version: "0",
        commit: None,
        file: "sidecore.toml".to_string(),
        path: "/etc/sidecore.toml".to_string(),
        load: Box::new(load),
        ready: Box::new(|| {}),
        stopping: Box::new(|| {}),
        launcher: None,
        run_state: None,
        heir: None,
        committed: Box::new(|| {}),
        handed_over: Box::new(|_| {}),
    }
}
