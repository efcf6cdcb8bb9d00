//! A life: who is in it, how it goes, and what became of it.
//!
//! `host` is a machine with its daemons and guests, `steps` what happens next, `trouble` what goes wrong or is wished,
//! `deaths` how daemons and hosts end, `upgrade` how one takes over from another, `calm` how all comes to an end, `judgement` whether it was right.

mod calm;
mod deaths;
mod host;
mod judgement;
mod lan;
mod limits;
mod links;
mod shared;
mod steps;
mod trouble;
mod upgrade;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use guests::{Lan, Trace};
use manager::simulated::{Stage, be_on, current};
use random::Random;
use schedule::Nanos;

use host::Host;
use links::Links;

use crate::file;
use crate::kernel::Machinery;
use crate::wire::{Ground, Wire};

/// Troubles of a life: of most a few, for many short lives find more than some long ones, and of one in ten many.
const TROUBLES: u64 = 400;
const TROUBLES_LONG: u64 = 4_000;
/// Steps of each host between two troubles, and of all where they are linked.
const STEPS: u64 = 2;
const STEPS_LINKED: u64 = 5;
const MS: u64 = 1_000_000;

/// What became of one seed.
#[derive(Debug)]
pub struct Outcome {
    /// Stands for everything that happened, in its order.
    pub hash: u64,
    /// Events of the trace.
    pub events: u64,
    /// Requests that ended.
    pub requests: u64,
    /// Steps that it had.
    pub steps: u64,
    /// Who is in it: a host of its own, two that share disks, or some that are linked.
    pub kind: &'static str,
    /// What was wrong, if anything was.
    pub finding: Option<String>,
    /// The last events, a line each.
    pub last: Vec<String>,
}

/// Whether hosts are linked in the life of `seed`.
pub fn is_linked(seed: u64) -> bool {
    links::are_there(&mut Random::new(seed, 0))
}

/// Lives the life of `seed` to its end. With `counts` nobody else opens or closes anything in this process meanwhile,
/// and what is open after it is compared with what was open before.
pub fn run(seed: u64, keep_all: bool, counts: bool) -> Outcome {
    let trace = Trace::default();
    if keep_all {
        trace.keep_all();
    }
    let (mut requests, mut steps, mut kind) = (0, 0, "none");
    backend::stand_in(None);
    let before = open();
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut life = Life::new(seed, &trace)?;
        let lived = life.live();
        requests = life.hosts.iter().map(Host::requests).sum();
        (steps, kind) = (life.steps, life.kind());
        life.end(lived)
    }));
    let finding = match lived {
        Ok(Ok(())) if counts && open().len() != before.len() => {
            let mut left = open();
            left.retain(|one| !before.contains(one));
            Some(format!("{} descriptors were open before, and now {left:?} too", before.len()))
        }
        Ok(Ok(())) => None,
        Ok(Err(finding)) => Some(finding),
        Err(panic) => Some(format!("a panic: {}", said_by(&*panic))),
    };
    let (hash, events, last) = (trace.hash(), trace.events(), trace.last());
    Outcome { hash, events, requests, steps, kind, finding, last }
}

/// What is open in this process, but for what it is looked at with.
fn open() -> Vec<String> {
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let what = all.map(|one| (one.file_name(), std::fs::read_link(one.path())));
    let what = what.filter_map(|(number, what)| Some(format!("{number:?} {:?}", what.ok()?)));
    what.filter(|one| !one.contains("/proc/")).collect()
}

fn said_by(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words").to_string()
}

/// What everything in a life goes by: its seed, its time, its trace, and what images lie on.
pub(crate) struct Course {
    pub(crate) random: Random,
    trace: Trace,
    /// Nothing goes wrong any more.
    is_calm: Rc<Cell<bool>>,
    /// But all send frames.
    is_proving: Rc<Cell<bool>>,
    pub(crate) machinery: Arc<Machinery>,
    ground: Rc<Ground>,
    /// The stations of all switches, wires and networks.
    pub(crate) lan: Rc<RefCell<Lan>>,
    stage: Rc<Stage>,
    /// One in so many steps a queue or a NIC is to move, and what has one is disturbed the more; 0: none.
    move_one_in: u64,
}

struct Life {
    course: Course,
    /// Clients of links before their IOhost.
    hosts: Vec<Host>,
    links: Option<Links>,
    /// Steps so far.
    steps: u64,
    /// Steps since something was done.
    idle: usize,
    /// Somebody waits until then at most.
    until: Option<Nanos>,
    /// What went wrong around somebody who waits.
    finding: Option<String>,
}

impl Course {
    fn new(seed: u64, trace: &Trace) -> Course {
        let is_calm = Rc::new(Cell::new(false));
        let mut delays = Random::new(seed, 1);
        let calm = Rc::clone(&is_calm);
        let stage = Stage::set(move |_| Duration::from_nanos(delay_ns(&mut delays, calm.get())));
        let stage = Rc::new(stage);
        let wire = Wire::new(Random::new(seed, 5), trace);
        let ground = Rc::new(Ground::new(wire, Random::new(seed, 6)));
        be_on(Some(Rc::clone(&ground) as _));
        let machinery = Machinery::new(Random::new(seed, 2), trace.clone(), current);
        backend::stand_in(Some(Arc::clone(&machinery) as Arc<dyn backend::Kernel>));
        let (random, trace) = (Random::new(seed, 0), trace.clone());
        let move_one_in = Random::new(seed, 7).of(&[0, 0, 20, 60]);
        let lan = Rc::new(RefCell::new(Lan::default()));
        let is_proving = Rc::default();
        Course { random, trace, is_calm, is_proving, machinery, ground, lan, stage, move_one_in }
    }

    /// The same, with nothing to draw from.
    fn aside(&self) -> Course {
        Course {
            random: Random::new(0, 0),
            trace: self.trace.clone(),
            is_calm: Rc::clone(&self.is_calm),
            is_proving: Rc::clone(&self.is_proving),
            machinery: Arc::clone(&self.machinery),
            ground: Rc::clone(&self.ground),
            lan: Rc::clone(&self.lan),
            stage: Rc::clone(&self.stage),
            move_one_in: 0,
        }
    }

    fn note(&self, what: &'static str, numbers: [u64; 3]) {
        self.trace.note(self.now().0, what, numbers);
    }

    /// Whether nobody sends frames any more.
    fn is_silent(&self) -> bool {
        self.is_calm.get() && !self.is_proving.get()
    }

    /// Whether the guest of that device asks for nothing by itself: one that comes amid a proof takes part in it.
    fn is_quiet(&self, id: &str) -> bool {
        if file::is_nic(id) { self.is_silent() } else { self.is_calm.get() }
    }

    fn now(&self) -> Nanos {
        self.stage.now()
    }

    /// All of so many, from any on: who has nothing to do is passed over.
    fn all_from_any(&mut self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.any(count);
        (first..count).chain(0..first)
    }

    /// One of so many; the first of none.
    fn any(&mut self, count: usize) -> usize {
        self.random.below(count.max(1) as u64) as usize
    }
}

impl Life {
    fn new(seed: u64, trace: &Trace) -> Result<Life, String> {
        let mut course = Course::new(seed, trace);
        let links = Links::of(&mut course);
        let hosts = match &links {
            Some(links) => links.hosts(&mut course)?,
            None if course.random.one_in(3) => shared::hosts(&mut course)?,
            None => vec![Host::new(0, None, &mut course, |_, _, _| Ok(()))?],
        };
        Ok(Life { course, hosts, links, steps: 0, idle: 0, until: None, finding: None })
    }

    fn kind(&self) -> &'static str {
        match (&self.links, self.hosts.len()) {
            (Some(_), _) => "linked",
            (None, 1) => "lone",
            _ => "shared",
        }
    }

    fn live(&mut self) -> Result<(), String> {
        let hosts = self.hosts.len() as u64;
        let steps = if self.links.is_some() { STEPS_LINKED } else { STEPS * hosts };
        let is_long = self.course.random.one_in(10);
        for _ in 0..if is_long { TROUBLES_LONG } else { TROUBLES } {
            for _ in 0..steps {
                self.step()?;
            }
            self.troubles()?;
        }
        self.calm_down()?;
        for host in &mut self.hosts {
            host.judge_plan()?;
            host.judge_shown()?;
            host.judge_images(&self.course)?;
        }
        self.judge_links()?;
        self.remove_all()?;
        self.judge_unlinked()?;
        self.power_cut()
    }

    /// All is dropped, and its time at last.
    fn end(self, lived: Result<(), String>) -> Result<(), String> {
        self.hosts.into_iter().for_each(|host| host.end(&self.course));
        be_on(None);
        backend::stand_in(None);
        drop(self.course);
        lived
    }
}

/// How long what a thread does takes: mostly no time, and sometimes very long.
fn delay_ns(random: &mut Random, is_calm: bool) -> u64 {
    match random.below(20) {
        // An image that is opened at once meets what a dead process has submitted.
        0..5 => random.below(3_000),
        5..12 => random.below(1_000_000),
        12..16 => random.below(40) * MS,
        16..19 => random.below(2_000) * MS,
        _ if is_calm => 0,
        _ => random.below(15_000) * MS,
    }
}
