//! Everything together, from one seed: who does what next, what goes wrong when, and the last judgement.

mod faults;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use backend::{Disk, Kernel, OpenError};
use random::Random;
use schedule::Policy;

use crate::daemon::{Daemon, Said};
use crate::device::{Device, Limit};
use crate::kernel::{Killed, Machinery};
use crate::lan::Lan;
use crate::machine::{Copy, Machine, SECTORS_GROWN, Stage, temper};
use crate::trace::Trace;
use crate::uplink::{ELSEWHERE, Uplink};

/// Steps in which things go wrong.
const STEPS: u64 = 5_000;
/// Steps after those, in which all must come to an end.
const STEPS_AFTER_MAX: u64 = 150_000;
/// Steps without anything done, after which time jumps to what is due.
const IDLE_STEPS: u32 = 24;

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

/// Lives the world of `seed` to its end.
pub fn run(seed: u64, keep_all: bool) -> Outcome {
    let trace = Trace::default();
    if keep_all {
        trace.keep_all();
    }
    let mut requests = 0;
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, &trace)?;
        let lived = world.live();
        requests = world.machines.iter().map(|machine| machine.guest.ended).sum();
        // What a violation has left behind is not to be asked for its tickets.
        world.daemons.drain(..).flatten().for_each(Daemon::die);
        lived
    }));
    let finding = match lived {
        Ok(Ok(())) => None,
        Ok(Err(finding)) => Some(finding),
        Err(panic) => Some(format!("a panic: {}", said_by(&*panic))),
    };
    Outcome { hash: trace.hash(), events: trace.events(), requests, finding, last: trace.last() }
}

fn said_by(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// What may go wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Crash,
    PowerCut,
    Reset,
    HangUp,
    GuestDies,
    Upgrade,
    Migrate,
    Resize,
}

/// The guests, and what they act on.
struct Players<'a> {
    machines: &'a mut Vec<Machine>,
    lan: &'a mut Lan,
    machinery: &'a Machinery,
    random: &'a mut Random,
}

impl Players<'_> {
    /// The guest of one machine does something, if it runs.
    fn act(&mut self, at: usize, now_ns: u64) -> Result<bool, String> {
        let machine = &mut self.machines[at];
        if machine.stands() {
            return Ok(false);
        }
        if machine.is_hostile {
            crate::hostile::act(&mut machine.guest, self.random);
            return Ok(false);
        }
        if machine.guest.spec.vlan.is_some() {
            return machine.guest.act_on_lan(now_ns, self.lan);
        }
        machine.guest.may_fail = self.machinery.failures(machine.disk) > 0;
        machine.guest.act(now_ns, &mut machine.ledger)
    }
}

struct World {
    now_ns: u64,
    random: Random,
    trace: Trace,
    machinery: Arc<Machinery>,
    daemons: Vec<Option<Daemon>>,
    restart_ns: Vec<u64>,
    machines: Vec<Machine>,
    lan: Lan,
    /// Where the switch of daemon 0 leads to.
    uplink: Option<Uplink>,
    faults: Vec<Fault>,
    fault_one_in: u64,
    /// Moves between cores disturb nobody, so they may be many.
    move_one_in: u64,
    quiet: bool,
}

impl World {
    fn new(seed: u64, trace: &Trace) -> Result<World, String> {
        let mut random = Random::new(seed, 0);
        let machinery = Machinery::new(Random::new(seed, 1), trace.clone());
        let daemons = random.between(1, 2) as usize;
        let mut machines = Vec::new();
        let mut lan = Lan::default();
        let (disks, nics) =
            random.of(&[(1, 0), (2, 0), (3, 0), (4, 0), (1, 2), (1, 3), (0, 3), (2, 4)]);
        for number in 0..disks + nics {
            let is_nic = number >= disks;
            let mut machine = Machine::new(number, is_nic, &mut random, trace)?;
            let temper = temper(&mut random);
            machine.disk = machinery.add(&machine.path, SECTORS_GROWN as usize, temper);
            // Their switch is one daemon's.
            machine.daemon = if is_nic { 0 } else { random.below(daemons as u64) as usize };
            if let Some(vlan) = machine.guest.spec.vlan {
                lan.join(number.into(), vlan.into(), machine.is_hostile);
            }
            machines.push(machine);
        }
        let uplink = if nics > 0 && random.one_in(2) { Some(Uplink::new()?) } else { None };
        if uplink.is_some() {
            lan.join(ELSEWHERE, 0, false);
        }
        let all = [
            (Fault::Crash, 2),
            (Fault::PowerCut, 4),
            (Fault::Reset, 3),
            (Fault::HangUp, 3),
            (Fault::GuestDies, 4),
            (Fault::Upgrade, 3),
            (Fault::Migrate, 2),
            (Fault::Resize, 4),
        ];
        let mut faults = Vec::new();
        for (fault, one_in) in all {
            let is_possible = fault != Fault::Migrate || daemons > 1;
            if is_possible && random.one_in(one_in) {
                faults.push(fault);
            }
        }
        let fault_one_in = random.of(&[150, 400, 1000]);
        let move_one_in = random.of(&[0, 0, 10, 40, 200]);
        let restart_ns = vec![0; daemons];
        let daemons = (0..daemons).map(|_| None).collect();
        let (now_ns, quiet, trace) = (1_000, false, trace.clone());
        Ok(World {
            now_ns,
            random,
            trace,
            machinery,
            daemons,
            restart_ns,
            machines,
            lan,
            uplink,
            faults,
            fault_one_in,
            move_one_in,
            quiet,
        })
    }

    fn live(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            if !self.faults.is_empty() && self.random.one_in(self.fault_one_in) {
                let fault = self.random.of(&self.faults.clone());
                self.go_wrong(fault)?;
            }
            if self.random.one_in(self.move_one_in) {
                let at = self.random.below(self.machines.len() as u64) as usize;
                self.shift(at)?;
            }
            self.step()?;
        }
        self.calm_down()?;
        self.judge()
    }

    /// One thing more happens.
    fn step(&mut self) -> Result<bool, String> {
        self.now_ns += self.random.between(100, 1_500);
        let mut acted = self.machinery.run(self.now_ns) > 0;
        acted |= self.go_elsewhere()?;
        let daemon = self.random.below(self.daemons.len() as u64) as usize;
        match self.random.below(10) {
            0..5 => acted |= self.turn(daemon)?,
            5..8 => {
                let at = self.random.below(self.machines.len() as u64) as usize;
                let now_ns = self.now_ns;
                acted |= self.players().act(at, now_ns)?;
            }
            _ => {
                self.tend_daemon(daemon)?;
                for at in 0..self.machines.len() {
                    acted |= self.tend_machine(at)?;
                }
            }
        }
        Ok(acted)
    }

    /// What happens at the other end of the uplink.
    fn go_elsewhere(&mut self) -> Result<bool, String> {
        let Some(uplink) = &self.uplink else { return Ok(false) };
        if self.random.one_in(8)
            && let Some(frame) = uplink.take()
        {
            self.trace.note(self.now_ns, "frame", [ELSEWHERE, frame.len() as u64, 0]);
            self.lan.arrived(ELSEWHERE, &frame)?;
            return Ok(true);
        }
        if !self.quiet && self.random.one_in(16) && uplink.has_room() {
            let (number, frame) = self.lan.compose(ELSEWHERE, self.now_ns, &mut self.random);
            self.trace.note(self.now_ns, "send", [ELSEWHERE, number, frame.len() as u64]);
            // What the wire loses was sent all the same.
            if !self.random.one_in(10) {
                uplink.bring(frame);
            }
        }
        Ok(false)
    }

    /// One of a daemon's cores has a pass, in the midst of which a guest may act.
    fn turn(&mut self, daemon: usize) -> Result<bool, String> {
        let now_ns = self.now_ns;
        let Some(cores) = self.daemons[daemon].as_ref().map(|daemon| daemon.cores.len()) else {
            return Ok(false);
        };
        let core = self.random.below(cores as u64) as usize;
        let World { daemons, machines, lan, machinery, random, .. } = self;
        let mut players = Players { machines, lan, machinery, random };
        let mut met = Ok(false);
        let mut meanwhile = |now_ns: u64| {
            let at = players.random.below(players.machines.len() as u64) as usize;
            if met.is_ok() && players.random.one_in(2) {
                met = players.act(at, now_ns);
            }
        };
        let turned = catch_unwind(AssertUnwindSafe(|| match &mut daemons[daemon] {
            Some(daemon) => daemon.cores[core].turn(now_ns, &mut meanwhile),
            None => false,
        }));
        let met = met?;
        match turned {
            Ok(turned) => Ok(met || turned),
            Err(panic) if panic.is::<Killed>() => self.crash(daemon).map(|()| true),
            Err(panic) => Err(format!("a panic: {}", said_by(&*panic))),
        }
    }

    fn players(&mut self) -> Players<'_> {
        let World { machines, lan, machinery, random, .. } = self;
        Players { machines, lan, machinery, random }
    }

    fn tend_daemon(&mut self, at: usize) -> Result<(), String> {
        if self.daemons[at].is_none() && self.now_ns >= self.restart_ns[at] {
            let random = Random::new(self.random.next(), 3);
            let uplink = self.uplink.clone().filter(|_| at == 0);
            self.daemons[at] = Some(Daemon::new(at as u64, uplink, random, &self.trace)?);
            self.trace.note(self.now_ns, "daemon starts", [at as u64, 0, 0]);
        }
        let Some(daemon) = &mut self.daemons[at] else { return Ok(()) };
        let mut offended = Vec::new();
        for said in daemon.tend(self.now_ns)? {
            match said {
                Said::Answer(device, bytes, fd) => {
                    let machine = &mut self.machines[device as usize];
                    let heard = machine.front_end.hear(&bytes, fd);
                    // What it babbled is answered, too.
                    if !machine.is_hostile {
                        heard?;
                    }
                }
                Said::Failed(device, _) | Said::Refused(device, _)
                    if self.machines[device as usize].is_hostile =>
                {
                    self.trace.note(self.now_ns, "caught", [device.into(), 0, 0]);
                    offended.push(device as usize);
                }
                Said::Refused(device, why) => {
                    return Err(format!("guest {device} is refused: {why}"));
                }
                Said::Failed(device, violation) => {
                    return Err(format!(
                        "guest {device} kept the rules, and was latched: {violation}"
                    ));
                }
                Said::Back(device) => {
                    let oldest = self.machines[device as usize].guest.oldest_frame();
                    self.lan.interrupted(device.into(), oldest);
                }
                Said::Resized(device, sectors) => {
                    let machine = &mut self.machines[device as usize];
                    machine.bytes = sectors * 512;
                    machine.guest.sectors = sectors;
                    self.trace.note(self.now_ns, "resized", [device.into(), sectors, 0]);
                }
            }
        }
        offended.into_iter().try_for_each(|at| self.punish(at))
    }

    /// Who broke a rule is cut off, or left as it is for a while.
    fn punish(&mut self, at: usize) -> Result<(), String> {
        match self.random.below(3) {
            0 => self.hang_up(at, true),
            1 => self.hang_up(at, false),
            _ => self.reset(at),
        }
    }

    /// The VMM of a machine, and its daemon's side of the disk.
    fn tend_machine(&mut self, at: usize) -> Result<bool, String> {
        let machine = &mut self.machines[at];
        let number = machine.number;
        let Some(daemon) = &mut self.daemons[machine.daemon] else { return Ok(false) };
        let Some(device) = daemon.devices.get_mut(&number) else {
            if self.now_ns >= machine.retry_ns {
                self.open(at)?;
            }
            return Ok(false);
        };
        match std::mem::replace(&mut machine.stage, Stage::Running) {
            away @ Stage::Away { until_ns, .. }
                if self.now_ns < until_ns || device.link.is_some() =>
            {
                machine.stage = away;
                return Ok(false);
            }
            Stage::Away { starts_anew, .. } => {
                if starts_anew {
                    machine.guest.reset(&mut machine.ledger)?;
                    machine.front_end.forget();
                }
                self.trace.note(self.now_ns, "connects", [number.into(), machine.daemon as u64, 0]);
                device.connect();
                machine.front_end.connect();
            }
            Stage::Leaving { guest_goes_on } if device.link.is_some() => {
                machine.stage = Stage::Leaving { guest_goes_on };
                return Ok(false);
            }
            Stage::Leaving { guest_goes_on } => {
                let until_ns = self.now_ns + self.random.below(100_000);
                let starts_anew = machine.loses_its_place();
                machine.stage = Stage::Away { until_ns, starts_anew };
                if !guest_goes_on {
                    let mut random = Random::new(self.random.next(), 4);
                    machine.begin_anew(&mut random, &self.trace)?;
                    machine.guest.quiet = self.quiet;
                }
                return Ok(true);
            }
            Stage::Resetting if machine.front_end.is_done() => {
                self.trace.note(self.now_ns, "reset", [number.into(), 0, 0]);
                machine.guest.reset(&mut machine.ledger)?;
                machine.front_end.restart();
            }
            Stage::Copying { copy, left } if machine.front_end.is_done() => {
                self.copy(at, copy, left)?;
            }
            Stage::Stopping { copy } if machine.front_end.is_done() => {
                return self.arrive(at, copy).map(|()| true);
            }
            stage => machine.stage = stage,
        }
        let machine = &mut self.machines[at];
        if machine.is_hostile && self.random.one_in(100) {
            return self.babble(at).map(|()| false);
        }
        let Some(sent) = machine.front_end.say(&machine.guest) else { return Ok(false) };
        let daemon = self.daemons[machine.daemon].as_mut();
        if let Some(device) = daemon.and_then(|daemon| daemon.devices.get_mut(&number)) {
            let received = device.receive(&sent.bytes, sent.fds);
            if machine.is_hostile && received.is_err() {
                return self.hang_up(at, true).map(|()| true);
            }
            received?;
        }
        Ok(true)
    }

    /// A VMM says what none should.
    fn babble(&mut self, at: usize) -> Result<(), String> {
        let machine = &mut self.machines[at];
        machine.front_end.forge(&mut self.random);
        let bytes = crate::hostile::babble(machine.guest.spec.queues, &mut self.random);
        let daemon = self.daemons[machine.daemon].as_mut();
        let device = daemon.and_then(|daemon| daemon.devices.get_mut(&machine.number));
        let Some(device) = device.filter(|device| {
            device.link.as_ref().is_some_and(|link| link.pending.is_none() && !link.ending)
        }) else {
            return Ok(());
        };
        if device.receive(&bytes, Vec::new()).is_err() {
            return self.hang_up(at, true);
        }
        Ok(())
    }

    /// Its daemon opens the disk of a machine, if its locks are free.
    fn open(&mut self, at: usize) -> Result<(), String> {
        let machine = &mut self.machines[at];
        if let (Some(vlan), Some(daemon)) =
            (machine.guest.spec.vlan, &mut self.daemons[machine.daemon])
        {
            let moderate_ns = self.random.of(&[0, 64_000]);
            self.lan.plugged(machine.number.into(), self.now_ns);
            return daemon.add(Device::nic(machine.number, vlan, 0, Policy::Adaptive, moderate_ns));
        }
        let kernel: Arc<dyn Kernel> = Arc::clone(&self.machinery) as Arc<dyn Kernel>;
        match Disk::open_simulated(&machine.path, machine.bytes, machine.cache, &kernel) {
            Ok(disk) => {
                if self.machinery.sync_failed(machine.disk) {
                    disk.assume_sync_failed();
                }
                let policies = [
                    Policy::Adaptive,
                    Policy::Adaptive,
                    Policy::Notify,
                    Policy::Poll,
                    Policy::Es2 { quota: 2 },
                ];
                let policy = self.random.of(&policies);
                let queues = machine.guest.spec.queues;
                let moderate_ns = self.random.of(&[0, 0, 30_000, 400_000]);
                let mut device = Device::disk(machine.number, disk, queues, policy, moderate_ns);
                if machine.is_limited {
                    device.limit = Limit::new(self.random.between(20_000, 100_000), self.now_ns);
                }
                if let Some(daemon) = &mut self.daemons[machine.daemon] {
                    daemon.add(device)?;
                }
                self.trace.note(self.now_ns, "opened", [machine.number.into(), 0, 0]);
            }
            Err(OpenError::Held { .. }) => {
                machine.retry_ns = self.now_ns + self.random.between(5_000, 100_000);
                let left = self.machinery.in_flight(machine.disk) as u64;
                self.trace.note(self.now_ns, "held", [machine.number.into(), left, 0]);
            }
            Err(error) => return Err(format!("disk {at} does not open: {error}")),
        }
        Ok(())
    }

    /// A look at the log, or the last.
    fn copy(&mut self, at: usize, mut copy: Copy, left: u64) -> Result<(), String> {
        let machine = &mut self.machines[at];
        let is_more = left > 0;
        if is_more && !self.random.one_in(4) {
            machine.stage = Stage::Copying { copy, left };
            return Ok(());
        }
        machine.copy(&mut copy);
        self.trace.note(self.now_ns, "copied", [at as u64, left, 0]);
        if is_more {
            machine.stage = Stage::Copying { copy, left: left - 1 };
        } else {
            machine.front_end.stop();
            machine.stage = Stage::Stopping { copy };
        }
        Ok(())
    }

    /// All rings of a machine that is migrated have stopped: it goes on at the other daemon, or here.
    fn arrive(&mut self, at: usize, mut copy: Copy) -> Result<(), String> {
        let machine = &mut self.machines[at];
        machine.copy(&mut copy);
        // Nobody marks what a hostile guest writes.
        if !machine.is_hostile {
            machine.compare(&copy)?;
        }
        if machine.guest.spec.vlan.is_some() || self.random.one_in(4) {
            self.trace.note(self.now_ns, "migration called off", [at as u64, 0, 0]);
            machine.front_end.set_logging(false)?;
            machine.front_end.start();
            machine.stage = Stage::Running;
            return Ok(());
        }
        self.trace.note(self.now_ns, "migrated", [at as u64, 0, 0]);
        if let Some(daemon) = &mut self.daemons[machine.daemon] {
            daemon.devices.remove(&machine.number);
        }
        machine.daemon = (machine.daemon + 1) % self.daemons.len();
        machine.front_end.hang_up();
        machine.front_end.leave_record();
        machine.front_end.end_logging();
        let until_ns = self.now_ns + self.random.below(50_000);
        machine.stage = Stage::Away { until_ns, starts_anew: false };
        Ok(())
    }
}
