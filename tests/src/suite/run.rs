//! A whole run: builds, runs cases in lanes, tells how far it is, and sums up.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use testing::bed::{Bed, Kind, OUTCOMES, Outcome, WORD};
use testing::mounts::detach_in;
use testing::namespace::Namespace;
use testing::scratch::Scratch;
use testing::vm::{BOOTED_AGAIN, has_kvm};

use crate::suite::build::{Made, Progress, Step, build, steps, waits_for};
use crate::suite::child::{Running, Surroundings, bound_seconds, command, leave};
use crate::suite::choose::{Chosen, choose};
use crate::suite::found::{self, End};
use crate::suite::lanes::{self, Waiting};
use crate::suite::options::Options;
use crate::suite::programs::Programs;
use crate::suite::screen::{Ink, Screen};
use crate::suite::session::Sessions;
use crate::suite::shelf::{self, Shelf};
use crate::suite::stutter::{self, GROUP, Stutter};
use crate::suite::summary::{Ended, Summary};
use crate::suite::{Takes, What, cases};

/// What a case in shell records.
const SHELL_OUTCOMES: &str = "outcomes.tsv";
/// Lines of a log that are shown of a case that failed.
const LOG_LINES: usize = 40;
/// How often it is looked whether somebody wants the run to end, and whether there is something to tell.
const LOOK: Duration = Duration::from_millis(200);
/// For so long cases may tidy up when the run is interrupted.
const GRACE_LOOKS: u32 = 50;

/// Lists groups and cases.
pub fn list() -> String {
    let mut text = String::new();
    for group in cases::GROUPS {
        text += &format!("{:<10} {}\n", group.name(), group.about());
        let names: Vec<&str> =
            group.cases().iter().map(|case| case.name()).filter(|name| !name.is_empty()).collect();
        for line in names.chunks(8) {
            text += &format!("             {}\n", line.join("  "));
        }
    }
    text
}

/// Is one case: the process that [`run`] has started for it.
///
/// # Errors
/// There is no such case, or its bed cannot be made.
pub fn be_case(name: &str, folder: &Path, checks: Vec<String>) -> Result<ExitCode> {
    leave()?;
    let chosen = choose(cases::GROUPS, &[name.to_owned()], true)?;
    let [chosen] = &chosen[..] else { anyhow::bail!("{name} is not one case") };
    let What::Run(run) = chosen.case().what else { anyhow::bail!("{name} is no function") };
    let bed = Bed::new(folder, checks)?;
    match run(&bed) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            bed.failed("", format_args!("{error:#}"));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Runs what the options ask for; whether all was well. Nothing is told if it was interrupted.
///
/// # Errors
/// A word names nothing, or the run cannot be begun.
pub fn run(options: &Options, root: &Path) -> Result<Option<bool>> {
    let chosen = choose(cases::GROUPS, &options.words, options.all)?;
    ensure!(!chosen.is_empty(), "no case was chosen: ./x test --list");
    let is_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&is_interrupted))?;
    }
    stutter::sweep();
    sweep_namespaces();
    let mut run = Run::new(options, root, chosen)?;
    let (sender, receiver) = channel();
    run.begin_build(sender.clone());
    match run.go_on(&sender, &receiver, &is_interrupted) {
        Ok(true) => run.sum_up(options).map(Some),
        Ok(false) => {
            run.stop("interrupted", &receiver);
            Ok(None)
        }
        Err(error) => {
            run.stop("the run itself has failed", &receiver);
            Err(error)
        }
    }
}

/// Removes namespaces of processes that were killed.
fn sweep_namespaces() {
    if rustix::process::geteuid().is_root() {
        Namespace::sweep();
    }
}

/// What a thread tells.
enum Event {
    Built(Step, Result<Made>),
    Ended(usize, Result<End>),
}

/// What became of a chosen case.
enum State {
    Waiting,
    Running(Scratch),
    Over,
}

/// One case of the run.
struct Place {
    chosen: Chosen,
    state: State,
    was_run_again: bool,
    ended: Option<Ended>,
}

struct Run {
    of: Surroundings,
    lanes: usize,
    places: Vec<Place>,
    shelf: Shelf,
    screen: Screen,
    programs: Programs,
    /// Steps of the build that are not done.
    steps: Vec<Step>,
    build_failures: Vec<Ended>,
    build_seconds: f64,
    progress: Progress,
    sessions: Arc<Sessions>,
    stutter: Option<Stutter>,
}

impl Run {
    fn new(options: &Options, root: &Path, chosen: Vec<Chosen>) -> Result<Run> {
        let build = std::env::var_os("BUILD").map_or_else(|| root.join("build"), PathBuf::from);
        let given = std::env::var_os("SIDECORE").filter(|given| !given.is_empty());
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let is_shipped = given.is_none() && options.is_shipped();
        let profile = if is_shipped { "release" } else { "debug" };
        let daemon = given.as_ref().map(|given| root.join(given));
        let of = Surroundings {
            root: root.to_owned(),
            build: build.clone(),
            daemon: daemon.unwrap_or_else(|| root.join(target).join(profile).join("sidecore")),
            all: options.all,
        };
        let is_run = |chosen: &&Chosen| chosen.left_out().is_none();
        let needs = chosen.iter().filter(is_run).map(|chosen| chosen.case().built);
        let steps = steps(needs, is_shipped);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let place = |chosen: Chosen| {
            let skip = chosen.left_out().map(|why| Outcome::new(Kind::Skip, "", why));
            let state = if skip.is_some() { State::Over } else { State::Waiting };
            let (group, case) = (chosen.group().name(), chosen.case().name());
            let ended = skip.map(|skip| Ended::new(group, case, vec![skip]));
            Place { chosen, state, was_run_again: false, ended }
        };
        let run = Run {
            of,
            lanes: options.lanes.unwrap_or_else(|| lanes::lanes_of(processors)),
            places: chosen.into_iter().map(place).collect(),
            shelf: Shelf::new(&build.join("test"))?,
            screen: Screen::new(),
            programs: Programs::default(),
            steps,
            build_failures: Vec::new(),
            build_seconds: 0.0,
            progress: Progress::default(),
            sessions: Arc::default(),
            stutter: options.stutter.then(Stutter::start).transpose()?,
        };
        run.write_programs()?;
        Ok(run)
    }

    fn write_programs(&self) -> Result<()> {
        self.programs.write(&self.shelf.folder().join("programs"))
    }

    fn begin_build(&mut self, sender: Sender<Event>) {
        let (steps, root) = (self.steps.clone(), self.of.root.clone());
        let (progress, sessions) = (self.progress.clone(), Arc::clone(&self.sessions));
        let folder = self.shelf.folder().to_owned();
        std::thread::spawn(move || {
            let mut native = Vec::new();
            for step in steps {
                let log = folder.join(format!("build-{}.log", step.name()));
                let built = build(step, &native, &root, &log, &sessions, &progress);
                let made = built.iter().map(|made| &made.native).find(|of| !of.is_empty());
                native = made.cloned().unwrap_or(native);
                // Nobody listens once the run was interrupted.
                let _ = sender.send(Event::Built(step, built));
            }
        });
    }

    /// Until all is over; false if it was interrupted.
    fn go_on(
        &mut self,
        sender: &Sender<Event>,
        receiver: &Receiver<Event>,
        is_interrupted: &AtomicBool,
    ) -> Result<bool> {
        while self.begin_cases(sender)? {
            if is_interrupted.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.hear(receiver)?;
            self.tell_progress();
        }
        Ok(true)
    }

    /// Begins as many cases as there is room for; whether something is still to come.
    fn begin_cases(&mut self, sender: &Sender<Event>) -> Result<bool> {
        loop {
            let waiting: Vec<usize> = (0..self.places.len())
                .filter(|at| matches!(self.places[*at].state, State::Waiting))
                .collect();
            let of: Vec<Waiting> = waiting.iter().map(|at| self.waiting(*at)).collect();
            let Some(next) = lanes::next(&of, &self.running(), self.lanes) else { break };
            self.begin(waiting[next], sender)?;
        }
        let is_over = |place: &Place| matches!(place.state, State::Over);
        Ok(!self.steps.is_empty() || !self.places.iter().all(is_over))
    }

    fn waiting(&self, at: usize) -> Waiting {
        let chosen = &self.places[at].chosen;
        let case = chosen.case();
        Waiting {
            takes: case.takes,
            seconds: self.shelf.seconds(&chosen.name(), case.usual_seconds),
            is_ready: !self.steps.iter().any(|step| waits_for(case.built, *step)),
        }
    }

    /// What runs takes; a build takes a lane.
    fn running(&self) -> Vec<Takes> {
        let running = self.places.iter().filter(|place| matches!(place.state, State::Running(_)));
        let mut takes: Vec<Takes> = running.map(|place| place.chosen.case().takes).collect();
        takes.extend((!self.steps.is_empty()).then_some(Takes::Lane));
        takes
    }

    fn begin(&mut self, at: usize, sender: &Sender<Event>) -> Result<()> {
        let chosen = self.places[at].chosen.clone();
        let scratch = Scratch::new(&std::env::temp_dir(), &at.to_string())?;
        let log = self.shelf.log(&chosen.name())?;
        let command = command(&chosen, &self.of, &self.programs, scratch.path());
        let running = command.and_then(|mut command| {
            command.envs(self.stutter.iter().map(|stutter| (GROUP, stutter.group())));
            Running::start(command, &log, &self.sessions)
        });
        self.places[at].state = State::Running(scratch);
        let running = match running {
            Ok(running) => running,
            Err(error) => {
                let _ = sender.send(Event::Ended(at, Err(error)));
                return Ok(());
            }
        };
        let (sender, sessions) = (sender.clone(), Arc::clone(&self.sessions));
        let bound = bound_seconds(&chosen, self.of.all);
        std::thread::spawn(move || {
            let _ = sender.send(Event::Ended(at, running.end(bound, &sessions)));
        });
        Ok(())
    }

    /// Waits a moment for what threads tell.
    fn hear(&mut self, receiver: &Receiver<Event>) -> Result<()> {
        match receiver.recv_timeout(LOOK) {
            Ok(Event::Built(step, built)) => self.built(step, built),
            Ok(Event::Ended(at, end)) => self.ended(at, end),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(()),
        }
    }

    fn built(&mut self, step: Step, built: Result<Made>) -> Result<()> {
        self.steps.retain(|of| *of != step);
        self.build_seconds = self.screen.seconds();
        match built {
            Ok(made) => {
                self.programs.extend(made.programs);
                self.write_programs()?;
                self.shelf.add_warnings(&made.warnings)?;
                self.screen.say(Ink::Plain, &format!("built: {}", step.name()));
            }
            Err(error) => {
                let log = self.shelf.folder().join(format!("build-{}.log", step.name()));
                self.failed(&format!("build/{}", step.name()), &log);
                let outcome = Outcome::new(Kind::Fail, "", format_args!("{error:#}"));
                self.build_failures.push(Ended::new("build", step.name(), vec![outcome]));
                for place in &mut self.places {
                    let is_over = !matches!(place.state, State::Waiting)
                        || !waits_for(place.chosen.case().built, step);
                    if !is_over {
                        place.state = State::Over;
                        let why = format!("build/{} failed", step.name());
                        let skip = Outcome::new(Kind::Skip, "", why);
                        let (group, case) = (place.chosen.group(), place.chosen.case());
                        place.ended = Some(Ended::new(group.name(), case.name(), vec![skip]));
                    }
                }
            }
        }
        Ok(())
    }

    fn ended(&mut self, at: usize, end: Result<End>) -> Result<()> {
        let state = std::mem::replace(&mut self.places[at].state, State::Over);
        let State::Running(scratch) = state else { return Ok(()) };
        detach_in(scratch.path());
        let place = &mut self.places[at];
        let name = place.chosen.name();
        let log = self.shelf.log(&name)?;
        let mut ended = what_it_found(&place.chosen, scratch.path(), &log, end);
        let may_run_again = found::may_be_tried_again(&ended.outcomes) && !place.was_run_again;
        if may_run_again && stood_still(scratch.path()) {
            place.was_run_again = true;
            place.state = State::Waiting;
            let why =
                "once more, since an emulated machine stood still (docs/decisions/0008-lab.md)";
            self.screen.say(Ink::Yellow, &format!("{name}: {why}"));
            return Ok(());
        }
        ended.was_run_again = place.was_run_again;
        let (seconds, has_failed) = (ended.seconds, ended.count(Kind::Fail) > 0);
        let said = format!("{seconds:.1} s, processors {:.1} s", ended.worked_seconds);
        if has_failed {
            for outcome in ended.outcomes.iter().filter(|of| of.kind() == Kind::Fail) {
                let check = outcome.check();
                let words = format!("  {name}{}{check}: {}", slash(check), outcome.detail());
                self.screen.say(Ink::Red, &words);
            }
            self.failed(&name, &log);
            self.shelf.keep(&name, scratch.path())?;
        } else if ended.count(Kind::Pass) == 0 {
            self.screen.say(Ink::Yellow, &format!("{name} skipped"));
        } else {
            let words = format!("{name} {} ({said})", self.screen.inked(Ink::Green, "ok"));
            self.screen.say(Ink::Plain, &words);
        }
        self.shelf.note_time(&name, seconds);
        self.places[at].ended = Some(ended);
        Ok(())
    }

    /// Shows the end of what failed.
    fn failed(&mut self, name: &str, log: &Path) {
        self.screen.say(Ink::Red, &format!("{name} FAILED; the end of {}:", log.display()));
        let lines = shelf::tail(log, LOG_LINES);
        let text: String = lines.iter().map(|line| format!("       | {line}\n")).collect();
        self.screen.show(&text);
    }

    fn tell_progress(&mut self) {
        let all = self.places.len();
        let over = self.places.iter().filter(|place| matches!(place.state, State::Over)).count();
        let (places, shelf, progress) = (&self.places, &self.shelf, &self.progress);
        self.screen.progress(|| {
            let mut words = format!("{over} of {all} cases");
            let build = progress.words();
            if !build.is_empty() {
                words += &format!(" | {build}");
            }
            for place in places {
                let State::Running(scratch) = &place.state else { continue };
                let name = place.chosen.name();
                words += &format!(" | {name}{}", last_word(scratch.path(), shelf, &name));
            }
            words
        });
    }

    /// Ends everything.
    fn stop(&mut self, why: &str, receiver: &Receiver<Event>) {
        self.screen.say(Ink::Red, &format!("{why}: ending what runs"));
        // What is frozen hears no signal.
        drop(self.stutter.take());
        self.sessions.signal(Signal::TERM);
        for look in 0.. {
            let is_running = |place: &Place| matches!(place.state, State::Running(_));
            if !self.places.iter().any(is_running) || look > 2 * GRACE_LOOKS {
                break;
            }
            if look == GRACE_LOOKS {
                self.sessions.signal(Signal::KILL);
            }
            if let Ok(Event::Ended(at, _)) = receiver.recv_timeout(LOOK) {
                let state = std::mem::replace(&mut self.places[at].state, State::Over);
                if let State::Running(scratch) = state {
                    detach_in(scratch.path());
                }
            }
        }
        self.sessions.signal(Signal::KILL);
        sweep_namespaces();
    }

    fn sum_up(mut self, options: &Options) -> Result<bool> {
        self.shelf.write_times()?;
        sweep_namespaces();
        if let Some(stutter) = self.stutter.take() {
            let stood = stutter.finish();
            let (count, seconds) = (stood.len(), stood.iter().sum::<u64>());
            self.screen.show(&format!("\nall stood still {count} times, {seconds} s altogether\n"));
        }
        let mut ended = self.build_failures;
        ended.extend(self.places.into_iter().filter_map(|place| place.ended));
        let (build_seconds, seconds) = (self.build_seconds, self.screen.seconds());
        let summary = Summary { ended, build_seconds, seconds };
        self.screen.show(&format!("\n{}", summary.text()));
        let is_good = summary.is_good();
        let words = match summary.count(Kind::Fail) {
            0 if is_good => self.screen.inked(Ink::Green, "all passed"),
            0 => self.screen.inked(Ink::Red, "nothing passed"),
            count => self.screen.inked(Ink::Red, &format!("{count} failed")),
        };
        self.screen.show(&format!("{words}; logs are in {}\n", self.shelf.folder().display()));
        if options.json {
            use std::io::Write;
            std::io::stdout().write_all(summary.json().as_bytes()).context("writing JSON")?;
        }
        Ok(is_good)
    }
}

/// What a case has found, from its folder, its log and its end.
fn what_it_found(chosen: &Chosen, scratch: &Path, log: &Path, end: Result<End>) -> Ended {
    let (group, case) = (chosen.group().name(), chosen.case().name());
    let end = match end {
        Ok(end) => end,
        Err(error) => {
            let outcome = Outcome::new(Kind::Fail, "", format_args!("{error:#}"));
            return Ended::new(group, case, vec![outcome]);
        }
    };
    let said = shelf::text_of(log);
    let outcomes = match chosen.case().what {
        What::Run(_) => {
            let recorded = found::recorded(&shelf::text_of(&scratch.join(OUTCOMES)));
            found::with_its_end(recorded, &end)
        }
        What::Shell => {
            let text = shelf::text_of(&scratch.join(SHELL_OUTCOMES));
            found::with_its_end(found::recorded_by_shell(case, &text), &end)
        }
        What::Raw(_) => found::of_tests(&said, &end),
        What::Command(_) => found::of_command(&said, &end),
    };
    let booted_again = shelf::text_of(&scratch.join(BOOTED_AGAIN)).lines().count();
    let not_judged = found::not_judged(&said);
    let (seconds, worked_seconds) = (end.seconds, end.worked_seconds);
    Ended { seconds, worked_seconds, not_judged, booted_again, ..Ended::new(group, case, outcomes) }
}

/// Whether an emulated machine of a case stood still.
fn stood_still(scratch: &Path) -> bool {
    let says_so = |path: &Path| {
        let is_console = path.extension().is_some_and(|ending| ending == "console");
        is_console && found::stood_still(&shelf::text_of(path))
    };
    !has_kvm() && shelf::files_in(scratch).iter().any(|path| says_so(path))
}

/// What a case is at: its own word, or the last line that it printed.
fn last_word(scratch: &Path, shelf: &Shelf, name: &str) -> String {
    let word = std::fs::read_to_string(scratch.join(WORD)).ok();
    let word = word.or_else(|| shelf::tail(&shelf.folder().join(name).join("log"), 1).pop());
    let word: String = word.unwrap_or_default().trim().chars().take(40).collect();
    if word.is_empty() { word } else { format!(": {word}") }
}

fn slash(check: &str) -> &'static str {
    if check.is_empty() { "" } else { "/" }
}
