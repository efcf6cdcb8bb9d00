//! A life: who does what next, what goes wrong, and the last judgement.

mod judgement;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use config::api::{Answer, ApiError, Call, DiskView, ErrorKind};
use config::spec::Carrier;
use manager::Options;
use manager::simulated::{Simulated, Stage};
use random::Random;
use schedule::Nanos;
use world::Trace;

use crate::core::Core;
use crate::file::{self, File};
use crate::operator::{Answered, Operator, linked, removed};
use crate::vmm::{self, Step, Vmm};

/// Steps in which things go wrong.
const STEPS: u64 = 4_000;
/// Steps after those, in which all must come to an end.
const STEPS_AFTER_MAX: u64 = 60_000;
/// Steps without anything done, after which time jumps to what is due.
const IDLE_STEPS: u32 = 16;
/// How often a file is read that a slow file system keeps from being read.
const RELOADS_MAX: u32 = 20;
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
    /// What was wrong, if anything was.
    pub finding: Option<String>,
    /// The last events, a line each.
    pub last: Vec<String>,
}

/// Lives the life of `seed` to its end. With `counts` nobody else opens or closes anything in this process meanwhile,
/// and what is open after it is compared with what was open before.
pub fn run(seed: u64, keep_all: bool, counts: bool) -> Outcome {
    let trace = Trace::default();
    if keep_all {
        trace.keep_all();
    }
    let mut requests = 0;
    let open = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let before = open();
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut life = Life::new(seed, &trace)?;
        let lived = life.live();
        requests = life.ended + life.vmms.values().map(|vmm| vmm.tenant.ended()).sum::<u64>();
        life.end(lived)
    }));
    let finding = match lived {
        Ok(Ok(())) if counts && open() != before => {
            Some(format!("{} descriptors were open before, and {} are left", before, open()))
        }
        Ok(Ok(())) => None,
        Ok(Err(finding)) => Some(finding),
        Err(panic) => Some(format!("a panic: {}", said_by(&*panic))),
    };
    let (hash, events, last) = (trace.hash(), trace.events(), trace.last());
    Outcome { hash, events, requests, finding, last }
}

fn said_by(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words").to_string()
}

struct Life {
    random: Random,
    trace: Trace,
    daemon: Simulated,
    cores: Vec<Core>,
    vmms: BTreeMap<String, Vmm>,
    operator: Operator,
    file: Rc<RefCell<File>>,
    /// Disks whose guests may be disturbed when the file is read.
    dirty: BTreeMap<String, u64>,
    /// Nothing goes wrong any more.
    is_calm: Rc<Cell<bool>>,
    /// State cannot be kept.
    is_broken: bool,
    /// Why the file was not read.
    refused: Option<ApiError>,
    /// Disks as operators were last shown them.
    shown: Vec<DiskView>,
    /// Requests of guests that are gone.
    ended: u64,
    idle: u32,
    stage: Stage,
    folder: tempfile::TempDir,
}

impl Life {
    fn new(seed: u64, trace: &Trace) -> Result<Life, String> {
        let mut random = Random::new(seed, 0);
        let folder = tempfile::Builder::new().prefix("lives").tempdir_in("/dev/shm");
        let folder = folder.map_err(|e| e.to_string())?;
        for name in ["run", "state"] {
            std::fs::create_dir(folder.path().join(name)).map_err(|e| e.to_string())?;
        }
        let is_calm = Rc::new(Cell::new(false));
        let mut delays = Random::new(seed, 1);
        let calm = Rc::clone(&is_calm);
        let stage = Stage::set(move |_| Duration::from_nanos(delay_ns(&mut delays, calm.get())));
        let cpus = random.between(1, 3) as u32;
        let file = Rc::new(RefCell::new(File::new(folder.path(), cpus, &mut random)));
        let plan = file.borrow().load(None).map_err(|e| e.error)?;
        let loaded = Rc::clone(&file);
        let load = move |running: &config::Plan| loaded.borrow().load(Some(running));
        let started = Simulated::start(plan, options(load));
        let (daemon, sidecores) = started.map_err(|e| format!("it does not start: {e}"))?;
        Ok(Life {
            random,
            trace: trace.clone(),
            daemon,
            cores: sidecores.into_iter().map(Core::new).collect(),
            vmms: BTreeMap::new(),
            operator: Operator::default(),
            file,
            dirty: BTreeMap::new(),
            is_calm,
            is_broken: false,
            refused: None,
            shown: Vec::new(),
            ended: 0,
            idle: 0,
            stage,
            folder,
        })
    }

    fn note(&self, what: &'static str, numbers: [u64; 3]) {
        self.trace.note(self.now().0, what, numbers);
    }

    fn now(&self) -> Nanos {
        self.stage.now()
    }

    fn live(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.step()?;
            self.trouble()?;
        }
        self.calm_down()?;
        self.until("guests are served, and operators are answered", Life::is_content)?;
        self.operator.ask(&self.daemon, Call::ListDisks, self.now().0);
        self.until("disks are shown", |life| life.operator.waiting() == 0)?;
        self.judge_plan()?;
        self.judge_shown()?;
        self.remove_all()
    }

    /// All is dropped; what a violation has left behind is not asked for its tickets.
    fn end(self, lived: Result<(), String>) -> Result<(), String> {
        let Life { daemon, cores, vmms, stage, folder, .. } = self;
        drop(vmms);
        cores.into_iter().for_each(Core::die);
        drop(daemon);
        drop(stage);
        drop(folder);
        lived
    }

    /// Somebody does something.
    fn step(&mut self) -> Result<(), String> {
        let now = self.now();
        let did = match self.random.below(10) {
            0..3 => self.turn()?,
            3..6 => self.pass(),
            6..8 => self.guest_acts()?,
            _ => self.vmm_speaks()?,
        };
        self.idle = if did { 0 } else { self.idle + 1 };
        if self.idle >= IDLE_STEPS {
            self.idle = 0;
            self.jump();
        } else {
            self.stage.pass_until(Nanos(now.0.max(self.now().0) + 200));
        }
        Ok(())
    }

    /// A turn of control, with some of what has come.
    fn turn(&mut self) -> Result<bool, String> {
        let is_due = self.daemon.patience().is_some_and(|time| time.is_zero());
        if !is_due && !self.daemon.has_events() {
            return Ok(false);
        }
        let random = &mut self.random;
        let mut came = 0;
        let stopped = self.daemon.turn(&mut |count| {
            came = count;
            chosen(count, random)
        });
        self.note("turn", [came as u64, 0, 0]);
        if stopped {
            return Err("it has stopped by itself".into());
        }
        if let Some(defect) = self.daemon.defects().first() {
            return Err(format!("a defect at {}: there is no {}", defect.at, defect.expected));
        }
        for Answered { call, at_ns, answer } in self.operator.hear(self.now().0)? {
            self.note_answer(&call, at_ns, &answer);
        }
        Ok(true)
    }

    fn note_answer(&mut self, call: &Call, at_ns: u64, answer: &Result<Answer, ApiError>) {
        if matches!(call, Call::Reload { .. }) && answer.is_ok() {
            // What was written since may not have been read.
            for (id, _) in self.dirty.extract_if(.., |_, edited_ns| *edited_ns < at_ns) {
                self.vmms.get_mut(&id).into_iter().for_each(|vmm| vmm.is_excused = true);
            }
        }
        if let (Call::Reload { .. }, Err(refused)) = (call, answer) {
            self.refused = Some(refused.clone());
        }
        // Another one of that name may be there before its VMM has seen the end of this one.
        let gone = linked(call).or_else(|| removed(call));
        if let Some(vmm) = gone.and_then(|id| self.vmms.get_mut(id)) {
            vmm.is_excused = true;
        }
        if let (Call::ListDisks, Ok(Answer::Disks(list))) = (call, answer) {
            self.shown.clone_from(&list.disks);
        }
        let mut hasher = DefaultHasher::new();
        let place = self.folder.path().display().to_string();
        if let Err(error) = answer {
            error.error.replace(&place, "").hash(&mut hasher);
        }
        let what = if answer.is_ok() { "answered" } else { "refused" };
        self.note(what, [kind_of(call), hasher.finish(), 0]);
        tracing::trace!("{what}: {call:?}: {:?}", answer.as_ref().err());
    }

    fn pass(&mut self) -> bool {
        let at = self.random.below(self.cores.len() as u64) as usize;
        let now = self.now();
        let (did, until) = self.cores[at].pass(now);
        self.stage.pass_until(until);
        if did {
            self.note("pass", [at as u64, 0, 0]);
        }
        did
    }

    fn any_vmm(&mut self) -> Option<&mut Vmm> {
        let at = self.random.below(self.vmms.len().max(1) as u64) as usize;
        self.vmms.values_mut().nth(at)
    }

    fn guest_acts(&mut self) -> Result<bool, String> {
        let now = self.now().0;
        match self.any_vmm() {
            Some(vmm) if vmm.runs() => vmm.tenant.act(now),
            _ => Ok(false),
        }
    }

    fn vmm_speaks(&mut self) -> Result<bool, String> {
        self.seat_guests()?;
        let now = self.now().0;
        let Some(vmm) = self.any_vmm() else { return Ok(false) };
        let id = vmm.id.clone();
        let step = vmm.step(now).map_err(|why| format!("disk {id}: {why}"))?;
        let number = u64::from(vmm.number);
        if step == Step::CutOff {
            let is_excused = vmm.is_excused || self.dirty.contains_key(&id) || self.is_going(&id);
            self.note("cut off", [number, is_excused.into(), 0]);
            if !is_excused {
                return Err(format!("disk {id}: its front-end was cut off without a reason"));
            }
            self.after_cut_off(&id)?;
        }
        Ok(step != Step::Nothing)
    }

    /// Whether an operator has asked to have it removed, or it is gone.
    fn is_going(&self, id: &str) -> bool {
        let plan = self.daemon.plan();
        plan.disk(id).is_none() && plan.nic(id).is_none() || self.operator.is_asked_to_go(id)
    }

    fn after_cut_off(&mut self, id: &str) -> Result<(), String> {
        let until_ns = self.now().0 + self.random.below(20) * MS;
        let is_gone = self.is_going(id);
        let Some(vmm) = self.vmms.get_mut(id) else { return Ok(()) };
        vmm.hang_up(until_ns);
        vmm.is_excused = false;
        if is_gone && file::is_in_memory(id) {
            let gone = self.vmms.remove(id);
            self.ended += gone.map_or(0, |vmm| vmm.tenant.ended());
        }
        Ok(())
    }

    /// Each disk has a guest.
    fn seat_guests(&mut self) -> Result<(), String> {
        let plan = self.daemon.plan();
        let disks = plan.disks.iter().map(|disk| (disk.id.clone(), disk.spec.queues));
        let all = disks.chain(plan.nics.iter().map(|nic| (nic.id.clone(), 1)));
        let without: Vec<_> = all.filter(|(id, _)| !self.vmms.contains_key(id)).collect();
        for (id, queues) in without {
            let number = id.bytes().fold(0, |all, byte| all * 31 % 9973 + u32::from(byte));
            let path = self.folder.path().join("run").join(format!("{id}.sock"));
            let shape = (file::SECTORS, queues);
            let mut vmm = Vmm::new(number, &id, path, shape, &mut self.random, &self.trace)?;
            self.note("guest", [number.into(), vmm.tenant.queues().into(), 0]);
            vmm.tenant.set_quiet(self.is_calm.get());
            self.vmms.insert(id, vmm);
        }
        Ok(())
    }

    /// Time goes to what is due next.
    fn jump(&mut self) {
        let now = self.now();
        let control = self.daemon.patience().map(|time| Nanos(now.0 + time.as_nanos() as u64));
        let cores = self.cores.iter().filter_map(|core| core.due(now));
        let vmms = self.vmms.values().filter_map(Vmm::due_ns).map(Nanos);
        let due = control.into_iter().chain(cores).chain(vmms).chain(self.stage.due());
        let due = due.filter(|due| *due > now).min();
        let until = due.unwrap_or(Nanos(now.0 + MS));
        self.note("jump", [until.0 - now.0, 0, 0]);
        self.stage.pass_until(until);
    }

    /// Something goes wrong, or is wished.
    fn trouble(&mut self) -> Result<(), String> {
        let now = self.now().0;
        match self.random.below(200) {
            0..6 => self.wish(),
            6 => {
                let edited = self.file.borrow_mut().edit(&mut self.random);
                self.note("edit", [0; 3]);
                self.dirty.extend(edited.map(|id| (id, now)));
            }
            7 => {
                let force = !self.random.one_in(4);
                self.note("reload", [force.into(), 0, 0]);
                self.operator.ask(&self.daemon, Call::Reload { force }, now);
            }
            8 => {
                let until_ns = now + self.random.below(50) * MS;
                let anew = self.random.one_in(3);
                let mut random = Random::new(self.random.next(), 3);
                let Some(vmm) = self.any_vmm() else { return Ok(()) };
                vmm.hang_up(until_ns);
                vmm.is_excused = false;
                if anew {
                    vmm.begin_anew(&mut random)?;
                }
                self.note("hangs up", [anew.into(), 0, 0]);
            }
            9 => {
                let until_ns = now + self.random.below(12_000) * MS;
                let mut random = Random::new(self.random.next(), 3);
                let Some(vmm) = self.any_vmm() else { return Ok(()) };
                if vmm.stage == vmm::Stage::There {
                    vmm.get_stuck(until_ns, &mut random);
                    self.note("stuck", [0; 3]);
                }
            }
            10 => {
                let resets = self.random.one_in(2);
                let Some(vmm) = self.any_vmm() else { return Ok(()) };
                if vmm.stage == vmm::Stage::There && vmm.tenant.has_said_all() {
                    vmm.tenant.stop();
                    vmm.stage = if resets { vmm::Stage::Resetting } else { vmm::Stage::Stopping };
                    self.note("stops", [resets.into(), 0, 0]);
                }
            }
            11 if self.random.one_in(4) => self.break_state(!self.is_broken)?,
            12 => {
                let time = self.random.of(&[1, 1, 10, 10, 100, 1000, 3000]) * MS;
                self.note("time", [time, 0, 0]);
                self.stage.pass_until(Nanos(now + time));
            }
            _ => {}
        }
        Ok(())
    }

    fn wish(&mut self) {
        let plan = self.daemon.plan();
        let disks = plan.disks.iter().map(|disk| disk.id.clone());
        let known: Vec<String> = disks.chain(plan.nics.iter().map(|nic| nic.id.clone())).collect();
        let (folder, cores) = (self.folder.path().to_path_buf(), self.cores.len());
        let Some(call) = self.operator.wish(&known, &folder, cores, &mut self.random) else {
            return;
        };
        self.note("asks", [kind_of(&call), 0, 0]);
        tracing::trace!("asks: {call:?}");
        self.operator.ask(&self.daemon, call, self.now().0);
    }

    /// What the daemon keeps can be written no more, or again.
    fn break_state(&mut self, broken: bool) -> Result<(), String> {
        if self.is_broken == broken {
            return Ok(());
        }
        let state = self.folder.path().join("state");
        let (kept, aside) = (state.join("disks.json"), state.join("aside"));
        let done = match broken {
            true => move_if_there(&kept, &aside).and_then(|()| std::fs::create_dir(&kept)),
            false => std::fs::remove_dir(&kept).and_then(|()| move_if_there(&aside, &kept)),
        };
        self.note("state", [broken.into(), 0, 0]);
        self.is_broken = broken;
        done.map_err(|e| e.to_string())
    }

    /// From here on all goes well.
    fn calm_down(&mut self) -> Result<(), String> {
        self.note("calm", [0; 3]);
        self.is_calm.set(true);
        self.break_state(false)?;
        for vmm in self.vmms.values_mut() {
            vmm.tenant.set_quiet(true);
        }
        self.until("operators are answered", |life| life.operator.waiting() == 0)?;
        self.reload_for_good()?;
        let nics: Vec<String> = self.daemon.plan().nics.iter().map(|nic| nic.id.clone()).collect();
        for id in nics {
            let carrier = Carrier::Up;
            self.operator.ask(&self.daemon, Call::SetCarrier { id, carrier }, self.now().0);
        }
        self.until("front-ends have said all", |life| life.is_each(Vmm::has_said_all))?;
        // A disk may be smaller than it was for its guest, which waits for somebody to say that it is to go on so.
        let disks: Vec<String> =
            self.daemon.plan().disks.iter().map(|disk| disk.id.clone()).collect();
        for id in disks {
            self.operator.ask(&self.daemon, Call::AcceptDisk { id }, self.now().0);
        }
        Ok(())
    }

    /// Reads the file until that is done: a file system may be slow.
    fn reload_for_good(&mut self) -> Result<(), String> {
        for _ in 0..RELOADS_MAX {
            self.refused = None;
            self.operator.ask(&self.daemon, Call::Reload { force: true }, self.now().0);
            self.until("the reload is answered", |life| life.operator.waiting() == 0)?;
            match &self.refused {
                Some(why) if why.kind == ErrorKind::Busy => {
                    self.stage.pass_until(Nanos(self.now().0 + 500 * MS));
                }
                Some(why) => return Err(format!("the file is not read: {}", why.error)),
                None => return Ok(()),
            }
        }
        Err(format!("the file is not read: {:?}", self.refused))
    }

    fn is_content(&self) -> bool {
        self.operator.waiting() == 0 && self.is_each(Vmm::is_content)
    }

    /// Whether it is so of the VMM of each disk.
    fn is_each(&self, is_so: impl Fn(&Vmm) -> bool) -> bool {
        let plan = self.daemon.plan();
        let disks = plan.disks.iter().map(|disk| &disk.id);
        let mut all = disks.chain(plan.nics.iter().map(|nic| &nic.id));
        all.all(|id| self.vmms.get(id).is_some_and(&is_so))
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Life) -> bool) -> Result<(), String> {
        for _ in 0..STEPS_AFTER_MAX {
            if is_so(self) {
                return Ok(());
            }
            self.step()?;
        }
        let lacks = |vmm: &Vmm| {
            (!vmm.is_content())
                .then(|| format!("{} {:?} waits for {}", vmm.id, vmm.stage, vmm.tenant.waiting()))
        };
        let lacks: Vec<String> = self.vmms.values().filter_map(lacks).collect();
        Err(format!("it never comes that {what}: {lacks:?}, {} calls", self.operator.waiting()))
    }
}

fn options(load: impl Fn(&config::Plan) -> Result<config::Plan, ApiError> + 'static) -> Options {
    Options {
        version: "0",
        commit: None,
        file: "lives.toml".into(),
        path: "/lives.toml".into(),
        load: Box::new(load),
        ready: Box::new(|| {}),
        stopping: Box::new(|| {}),
        launcher: None,
        run_state: None,
        heir: None,
        settled: Box::new(|| {}),
        handed_over: Box::new(|_| {}),
    }
}

/// How long what a thread does takes: mostly no time, and sometimes very long.
fn delay_ns(random: &mut Random, is_calm: bool) -> u64 {
    match random.below(20) {
        0..12 => random.below(1_000_000),
        12..16 => random.below(40) * MS,
        16..19 => random.below(2_000) * MS,
        _ if is_calm => 0,
        _ => random.below(15_000) * MS,
    }
}

/// Some of what has come, in any order, and at least one.
fn chosen(count: usize, random: &mut Random) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
    let most = if random.one_in(4) { random.below(count as u64 + 1) } else { count as u64 };
    all.truncate(most as usize);
    all
}

fn kind_of(call: &Call) -> u64 {
    let mut hasher = DefaultHasher::new();
    std::mem::discriminant(call).hash(&mut hasher);
    hasher.finish() % 1000
}

fn move_if_there(from: &Path, to: &Path) -> std::io::Result<()> {
    match from.exists() {
        true => std::fs::rename(from, to),
        false => Ok(()),
    }
}
