//! Upgrades in a life: launchers that begin processes, what those do until they serve, and the turns in which a daemon
//! waits while all else goes on.
//!
//! Not here: how a process ends by a kill (`deaths`), and what is asked of daemons (`trouble`).

use config::api::Call;
use config::spec::LinkRole;
use manager::simulated::{Around, HeirStep, Launchers, NewProcess, Simulated, Turned};
use random::Random;
use schedule::Nanos;

use super::host::{Daemon, Host};
use super::steps::chosen;
use super::{Course, Life, MS};
use crate::core::Core;
use crate::file::is_shared;
use crate::vmm::{Stage, Vmm};

/// How often it is looked whether a launcher was asked, while no operator waits for an upgrade.
const LATE_ONE_IN: u64 = 16;

/// From the end of a connection until its disk is being let go, mostly.
const LET_GO_NS: u64 = 20_000;
/// When somebody comes at the latest who has left.
const AWAY_NS_MAX: u64 = 2_000 * MS;

/// A guest that has left a disk which is let go then, and comes back when an heir is expected: that one is handed a ring
/// that nobody serves, and dies soon after it has taken over.
pub(super) struct Latecomer {
    id: String,
    /// When another process is asked for.
    upgrade_ns: u64,
}

/// A process that was begun, and does not serve yet.
pub(super) struct Newcomer {
    pub(super) pid: u32,
    /// Nothing while it does something.
    process: Option<NewProcess>,
    pub(super) cores: Vec<Core>,
    /// Of its own, for when it serves.
    launchers: Launchers,
    /// It is stopped until then.
    stands_until_ns: u64,
}

impl Newcomer {
    /// Whether it does something, or waits within that.
    pub(super) fn is_amid(&self) -> bool {
        self.process.is_none()
    }

    /// It ends as a process does that is killed.
    pub(super) fn die(self, course: &Course) {
        self.cores.into_iter().for_each(Core::die);
        match self.process {
            Some(process) => process.die(),
            None => course.stage.end_process(self.pid),
        }
    }
}

impl Around for Life {
    fn go_on(&mut self, until: Nanos) {
        if self.finding.is_some() {
            // It is over, and whoever waits has waited.
            return self.course.stage.pass_until(until);
        }
        // Whoever waits goes on where it is.
        let (before, host) = (self.until, self.course.ground.host());
        self.until = Some(before.map_or(until, |before| before.min(until)));
        // Waits are short, and time that passes ends them.
        let is_calm = self.course.is_calm.get() || !self.course.random.one_in(3);
        let gone_on = match is_calm {
            true => self.step(),
            false => self.step().and_then(|()| self.troubles()),
        };
        self.until = before;
        self.course.be_at(host);
        self.finding = gone_on.err();
    }
}

impl Life {
    /// Has something done that may wait for the rest of this life, which goes on meanwhile.
    fn amid<T>(&mut self, act: impl FnOnce(Life) -> (T, Life)) -> T {
        let aside = self.course.aside();
        let here = Life {
            course: std::mem::replace(&mut self.course, aside),
            hosts: std::mem::take(&mut self.hosts),
            links: self.links.take(),
            steps: self.steps,
            idle: self.idle,
            until: self.until,
            finding: self.finding.take(),
        };
        let (done, back) = act(here);
        *self = back;
        done
    }

    /// What went wrong around something that waited.
    fn found(&mut self) -> Result<(), String> {
        self.finding.take().map_or(Ok(()), Err)
    }

    /// A turn of a process of that host.
    pub(super) fn turn(&mut self, at: usize) -> Result<bool, String> {
        let Life { course, hosts, .. } = self;
        let host = &mut hosts[at];
        host.bury(course);
        host.ask_for_latecomer(course);
        if host.begin_heir(course)? {
            return Ok(true);
        }
        let daemons = host.daemons.len();
        for which in course.all_from_any(daemons + host.newcomers.len()) {
            let did = match which.checked_sub(daemons) {
                None => self.turn_of_control(at, which)?,
                Some(which) => self.step_of_newcomer(at, which)?,
            };
            if did {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A turn of control, with some of what has come.
    fn turn_of_control(&mut self, at: usize, which: usize) -> Result<bool, String> {
        let Life { course, hosts, .. } = self;
        let Some(daemon) = hosts[at].daemons.get_mut(which) else { return Ok(false) };
        if course.stage.is_killed(daemon.pid) {
            return Ok(false);
        }
        // One that waits within its turn has none.
        let Some(control) = &mut daemon.control else { return Ok(false) };
        let is_due = control.patience().is_some_and(|time| time.is_zero());
        let came = control.hear();
        if !is_due && came == 0 {
            return Ok(false);
        }
        let chosen = chosen(came, &mut course.random);
        course.note("turn", [came as u64, daemon.pid.into(), 0]);
        let Some(mut control) = daemon.control.take() else { return Ok(false) };
        let (turned, control) = self.amid(|life| {
            let (turned, life) = control.turn_amid(&chosen, life);
            ((turned, control), life)
        });
        let went = self.hosts[at].has_turned(control, turned, came > 0, &mut self.course);
        self.found()?;
        went?;
        Ok(true)
    }

    /// The next that a new process does.
    fn step_of_newcomer(&mut self, at: usize, which: usize) -> Result<bool, String> {
        let Life { course, hosts, .. } = self;
        let Some(newcomer) = hosts[at].newcomers.get_mut(which) else { return Ok(false) };
        let stands = newcomer.stands_until_ns > course.now().0;
        if stands || course.stage.is_killed(newcomer.pid) {
            return Ok(false);
        }
        let Some(process) = newcomer.process.take() else { return Ok(false) };
        let pid = process.pid();
        let (step, cores) = self.amid(|life| {
            let (step, cores, life) = process.step(life);
            ((step, cores), life)
        });
        let cores = cores.into_iter().map(Core::new).collect();
        let went = self.hosts[at].has_stepped(pid, step, cores, &mut self.course);
        self.found()?;
        went
    }
}

impl Host {
    /// What came of a turn.
    fn has_turned(
        &mut self,
        control: Simulated,
        turned: Turned,
        heard: bool,
        course: &mut Course,
    ) -> Result<(), String> {
        let pid = control.pid();
        let at = self.daemons.iter().position(|daemon| daemon.pid == pid);
        let Some(at) = at else {
            // It was killed meanwhile.
            self.dying.retain(|dying| *dying != pid);
            control.die();
            return Ok(());
        };
        let defect = control.defects().first().cloned();
        match turned {
            Turned::Broken(said) => {
                self.daemons[at].control = Some(control);
                return Err(format!("a panic: {said}"));
            }
            Turned::Ended | Turned::Stopped | Turned::Lost => {
                self.daemons[at].control = Some(control);
                self.has_ended(at, turned, course)?;
            }
            Turned::On | Turned::Back => {
                if matches!(turned, Turned::Back) {
                    self.has_taken_back(course);
                }
                self.daemons[at].door = control.door();
                self.daemons[at].is_succeeded = false;
                self.daemons[at].control = Some(control);
            }
        }
        if let Some(defect) = defect {
            return Err(format!("a defect at {}: there is no {}", defect.at, defect.expected));
        }
        if self.dies_unheard && heard {
            self.kill(pid, course);
            return Ok(());
        }
        self.hear_answers(course)
    }

    /// A daemon has ended by itself.
    fn has_ended(&mut self, at: usize, how: Turned, course: &mut Course) -> Result<(), String> {
        let daemon = self.daemons.remove(at);
        let has_stopped = matches!(how, Turned::Stopped);
        course.note("ended", [daemon.pid.into(), has_stopped.into(), 0]);
        // Another one serves, or has died of something else; or it will, since this one has waited too long for its end.
        let has_another = daemon.is_succeeded || !self.newcomers.is_empty();
        let is_restarting = self.is_restarting;
        daemon.die(course);
        self.see_who_is_left(course);
        match how {
            Turned::Stopped if self.is_stopping || is_restarting => Ok(()),
            Turned::Ended if has_another => Ok(()),
            how => Err(format!("it has stopped by itself: {how:?}")),
        }
    }

    /// What came of a step of a new process.
    fn has_stepped(
        &mut self,
        pid: u32,
        step: HeirStep,
        cores: Vec<Core>,
        course: &mut Course,
    ) -> Result<bool, String> {
        let at = self.newcomers.iter().position(|newcomer| newcomer.pid == pid);
        let Some(at) = at else {
            // It was killed meanwhile.
            self.dying.retain(|dying| *dying != pid);
            cores.into_iter().for_each(Core::die);
            match step {
                HeirStep::Waits(process) | HeirStep::Goes(process) => process.die(),
                HeirStep::Serves(control) => control.die(),
                HeirStep::Ended | HeirStep::Broken(_) => {}
            }
            return Ok(true);
        };
        self.newcomers[at].cores.extend(cores);
        match step {
            HeirStep::Waits(process) => {
                self.newcomers[at].process = Some(process);
                Ok(false)
            }
            HeirStep::Goes(process) => {
                course.note("heir", [pid.into(), process.has_all().into(), 0]);
                self.newcomers[at].process = Some(process);
                Ok(true)
            }
            HeirStep::Serves(control) => {
                let what = match self.role() {
                    None => "serves",
                    Some(LinkRole::Iohost) => "serves as an IOhost",
                    Some(LinkRole::Client) => "serves as a client",
                };
                course.note(what, [pid.into(), 0, 0]);
                let Newcomer { cores, launchers, .. } = self.newcomers.remove(at);
                let door = control.door();
                self.daemons.iter_mut().for_each(|daemon| daemon.is_succeeded = true);
                self.daemons.push(Daemon::of(pid, *control, door, cores, launchers));
                if self.latecomer.take().is_some() {
                    let time = course.random.of(&[4_000, 20_000, 200_000]);
                    self.dooms.insert(pid, course.now().0 + course.random.below(time));
                }
                self.has_heir(course)?;
                Ok(true)
            }
            HeirStep::Ended => {
                course.note("heir ended", [pid.into(), 0, 0]);
                let newcomer = self.newcomers.remove(at);
                if newcomer.cores.iter().any(Core::serves) {
                    self.forget_places(course);
                }
                newcomer.die(course);
                self.see_who_is_left(course);
                Ok(true)
            }
            HeirStep::Broken(said) => Err(format!("a panic of an heir: {said}")),
        }
    }

    /// Another process serves what there was.
    fn has_heir(&mut self, course: &mut Course) -> Result<(), String> {
        self.taken_over_ns = course.now().0;
        if let Some(id) = self.lost.first() {
            return Err(format!(
                "disk {id}: its front-end was cut off, though another process serves"
            ));
        }
        self.hear_answers(course)?;
        let plan = self.daemons.last().and_then(|daemon| daemon.control.as_ref());
        let Some(plan) = plan.map(Simulated::plan) else { return Ok(()) };
        let found = self.operator.find_all(plan)?;
        self.begin_shrunk_anew(found, course)
    }

    /// A launcher that was asked begins a process, or does not.
    fn begin_heir(&mut self, course: &mut Course) -> Result<bool, String> {
        // One that was asked for an upgrade of which nobody knows any more is heard late.
        let is_asked = self.is_upgrade_asked();
        if is_asked && self.awaits_latecomer(course.now().0) {
            return Ok(false);
        }
        if !is_asked && !course.random.one_in(LATE_ONE_IN) {
            return Ok(false);
        }
        let asked = self.daemons.iter().enumerate();
        let mut asked = asked.filter_map(|(at, daemon)| Some((at, daemon.launchers.asked()?)));
        let Some((at, launcher)) = asked.next() else { return Ok(false) };
        let pid = self.daemons[at].pid;
        if course.stage.is_killed(pid) {
            return Ok(false);
        }
        let fate = if course.is_calm.get() { 99 } else { course.random.below(100) };
        course.note("launcher", [pid.into(), launcher as u64, fate]);
        match fate {
            // It says nothing for now.
            0..60 => return Ok(false),
            60 => self.daemons[at].launchers.end(launcher),
            61 => self.daemons[at]
                .launchers
                .answer(launcher, &mut |_| Err(std::io::Error::other("nothing is started"))),
            _ => {
                let plan = self.file.borrow().load(None).map_err(|e| e.error)?;
                self.expect_ports(course);
                let (own, launcher_of_it) = Launchers::begin().map_err(|e| e.to_string())?;
                let options = super::host::options(&self.file, launcher_of_it);
                let pid = course.stage.begin_process();
                let stands_until_ns = course.now().0 + delay_ns(course);
                let mut given = Some((plan, options, own));
                let newcomers = &mut self.newcomers;
                self.daemons[at].launchers.answer(launcher, &mut |input| {
                    if let Some((plan, options, launchers)) = given.take() {
                        let process = Some(NewProcess::begin(pid, input, plan, options));
                        let cores = Vec::new();
                        newcomers.push(Newcomer {
                            pid,
                            process,
                            cores,
                            launchers,
                            stands_until_ns,
                        });
                    }
                    Ok(pid)
                });
            }
        }
        Ok(true)
    }

    fn is_upgrade_asked(&self) -> bool {
        self.operator.is_asked(|call| matches!(call, Call::Upgrade { .. }))
    }

    /// Whoever has a disk that two hosts have leaves it, and comes back before the next process does.
    pub(super) fn leave_before_upgrade(&mut self, course: &mut Course) -> Result<(), String> {
        let is_busy = self.latecomer.is_some() || self.is_upgrade_asked() || self.is_broken;
        let now_ns = course.now().0;
        let is_there = |vmm: &Vmm| is_shared(&vmm.id) && vmm.stage == Stage::There;
        let goes = |vmm: &Vmm| is_there(vmm) && vmm.has_said_all() && !vmm.tenant.is_hostile();
        let some = self.vmms.values_mut().find(|vmm| goes(vmm));
        let Some(vmm) = some.filter(|_| !is_busy) else { return Ok(()) };
        course.note("leaves", [vmm.number.into(), 0, 0]);
        let mut random = Random::new(course.random.next(), 3);
        vmm.make_room(&mut random, now_ns + AWAY_NS_MAX)?;
        let (id, upgrade_ns) = (vmm.id.clone(), now_ns + LET_GO_NS);
        self.latecomer = Some(Latecomer { id, upgrade_ns });
        Ok(())
    }

    /// Another process is asked for when the disk was let go.
    fn ask_for_latecomer(&mut self, course: &Course) {
        let is_due = |it: &Latecomer| it.upgrade_ns <= course.now().0;
        if self.latecomer.as_ref().is_some_and(is_due) && !self.is_upgrade_asked() {
            self.latecomer.iter_mut().for_each(|it| it.upgrade_ns = u64::MAX);
            self.upgrade(course);
        }
    }

    /// Whether somebody is to come, and to have said all, before an heir does: it comes now.
    fn awaits_latecomer(&mut self, now_ns: u64) -> bool {
        let vmm = self.latecomer.as_ref().and_then(|it| self.vmms.get_mut(&it.id));
        let Some(vmm) = vmm else { return false };
        vmm.hurry(now_ns);
        !vmm.has_said_all()
    }

    /// Those who were killed by another process end, sooner or later; and who is to die at once, unless nobody is left then.
    fn bury(&mut self, course: &mut Course) {
        let mut killed = self.pids();
        if let [alone] = killed[..] {
            self.dooms.retain(|pid, _| *pid != alone || course.stage.is_killed(alone));
        }
        killed.retain(|pid| course.stage.is_killed(*pid) || self.dooms.contains_key(pid));
        for pid in killed {
            let now = course.now().0;
            let at = match self.dooms.get(&pid) {
                Some(at) => *at,
                None => now + doom_ns(course),
            };
            self.dooms.insert(pid, at);
            if now >= at {
                self.dooms.remove(&pid);
                self.kill(pid, course);
            }
        }
    }

    /// A new process is stopped for a while.
    pub(super) fn stop_newcomer(&mut self, course: &mut Course) {
        let at = course.any(self.newcomers.len());
        let time = course.random.of(&[1, 10, 100, 1000, 4000, 16_000]) * MS;
        if let Some(newcomer) = self.newcomers.get_mut(at) {
            course.note("stands", [newcomer.pid.into(), time, 0]);
            newcomer.stands_until_ns = course.now().0 + time;
        }
    }

    /// A process dies that is to take over, or has just done so.
    pub(super) fn kill_heir(&mut self, course: &mut Course) {
        let serves = self.daemons.iter().skip(1).map(|daemon| daemon.pid).next_back();
        let comes = self.newcomers.last().map(|newcomer| newcomer.pid);
        let comes = comes.filter(|_| course.random.one_in(3));
        if let Some(pid) = serves.or(comes) {
            self.kill(pid, course);
        }
    }

    /// An operator wants another process.
    pub(super) fn upgrade(&mut self, course: &Course) {
        course.note("upgrade", [0; 3]);
        self.ask(Call::Upgrade { force: true }, course.now().0);
    }

    /// When one of its new processes does something.
    pub(super) fn newcomers_due(&self) -> impl Iterator<Item = Nanos> {
        let stands = self.newcomers.iter().map(|it| it.stands_until_ns);
        let asks = self.latecomer.iter().map(|it| it.upgrade_ns).filter(|at| *at < u64::MAX);
        stands.chain(self.dooms.values().copied()).chain(asks).map(Nanos)
    }
}

/// How long it takes until a process that was begun does something.
fn delay_ns(course: &mut Course) -> u64 {
    match course.random.below(20) {
        _ if course.is_calm.get() => 0,
        0 => course.random.below(8_000) * MS,
        1..5 => course.random.below(100) * MS,
        _ => course.random.below(MS),
    }
}

/// How long one that was killed takes to end: most die at once, and some wait for a disk.
fn doom_ns(course: &mut Course) -> u64 {
    match course.random.below(20) {
        _ if course.is_calm.get() => 0,
        0 => course.random.below(14_000) * MS,
        1..5 => course.random.below(1_000) * MS,
        _ => course.random.below(MS),
    }
}
