//! What a step of a life is: a turn of control, a pass of a sidecore, a word of a VMM, an act of a guest; or time goes on.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use config::api::{Answer, ApiError, Call, ErrorKind};
use config::spec::{Carrier, DiskSpec};
use manager::simulated::{Door, Simulated};
use random::Random;
use schedule::Nanos;

use super::host::{Daemon, Host};
use super::{Course, Life, MS};
use crate::core::Core;
use crate::file;
use crate::kernel::Killed;
use crate::operator::{Answered, linked, removed};
use crate::vmm::{Step, Vmm};

/// What a step takes; where hosts are linked more, so that frames arrive before much else is done.
const STEP_NS: u64 = 200;
const STEP_LINKED_NS: u64 = 1_000;
/// Steps for each host without anything done, after which time jumps to what is due.
const IDLE_STEPS: usize = 8;
/// The same while a process is to take over: whoever it waits for has its turn by then.
const IDLE_STEPS_OF_MANY: usize = 24;
/// A step that takes as long keeps the other hosts from theirs.
const STANDSTILL_NS: u64 = 100 * MS;
/// So many times longer nothing is done while a sleeping core is thought to have something to do.
const PATIENCE_WITH_CORES: usize = 4;

impl Life {
    /// Somebody does something.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        let now = self.course.now();
        let ran = self.course.machinery.run(now.0);
        let host = self.course.any(self.hosts.len());
        self.course.be_at(self.hosts[host].number);
        let did = match self.course.random.below(10) {
            0..3 => self.turn(host)?,
            what => self.hosts[host].step(what, &mut self.course)?,
        };
        let did = did || ran > 0;
        self.note_standstill(host, now.0);
        self.note_deaths();
        self.note_killed();
        self.carry_over();
        self.idle = if did { 0 } else { self.idle + 1 };
        let is_busy = self.hosts.iter().any(|host| host.daemons.len() + host.newcomers.len() > 1);
        let patience = if is_busy { IDLE_STEPS_OF_MANY } else { IDLE_STEPS } * self.hosts.len();
        if self.idle >= patience && (self.idle >= patience * PATIENCE_WITH_CORES || self.may_jump())
        {
            self.idle = 0;
            self.jump();
        } else {
            let step_ns = if self.links.is_some() { STEP_LINKED_NS } else { STEP_NS };
            let until = now.0.max(self.course.now().0) + step_ns;
            self.course.stage.pass_until(Nanos(until));
        }
        Ok(())
    }

    /// While one daemon has started, which may have waited for images, no other had a turn.
    fn note_standstill(&mut self, busy: usize, since_ns: u64) {
        let now_ns = self.course.now().0;
        if now_ns - since_ns < STANDSTILL_NS {
            return;
        }
        for (at, host) in self.hosts.iter_mut().enumerate() {
            if at != busy {
                host.operator.has_stood_still(now_ns);
            }
        }
    }

    /// No core sleeps on for a second in which something has come, so that its links end: not when all is to be well.
    fn may_jump(&self) -> bool {
        !self.course.is_calm.get() || !self.hosts.iter().any(Host::has_woken)
    }

    /// Time goes to what is due next.
    fn jump(&mut self) {
        let now = self.course.now();
        let due = self.hosts.iter_mut().flat_map(|host| host.due(now)).collect::<Vec<_>>();
        let arrives = self.course.ground.wire.due().map(Nanos);
        let media = self.course.machinery.next_due_ns().map(Nanos);
        let due = due.into_iter().chain(media).chain(self.course.stage.due()).chain(arrives);
        let due = due.chain(self.until);
        let due = due.filter(|due| *due > now).min();
        let until = due.unwrap_or(Nanos(now.0 + MS));
        self.course.note("jump", [until.0 - now.0, 0, 0]);
        self.course.stage.pass_until(until);
    }
}

impl Host {
    /// Somebody on it does something.
    fn step(&mut self, what: u64, course: &mut Course) -> Result<bool, String> {
        let may_start = self.dying.is_empty() && course.now().0 >= self.restart_ns;
        if self.is_left_alone() && may_start {
            self.restart(course)?;
        }
        match what {
            0..6 => self.pass(course),
            6..8 => self.guest_acts(course),
            _ => self.vmm_speaks(course),
        }
    }

    /// When anybody on it does something without being asked.
    fn due(&mut self, now: Nanos) -> Vec<Nanos> {
        let mut due: Vec<_> = self.vmms.values().filter_map(Vmm::due_ns).map(Nanos).collect();
        if self.is_left_alone() {
            due.push(Nanos(self.restart_ns));
        }
        due.extend(self.newcomers_due());
        for daemon in &mut self.daemons {
            let control = daemon.control.as_mut().and_then(Simulated::patience);
            due.extend(control.map(|time| Nanos(now.0 + time.as_nanos() as u64)));
            due.extend(daemon.cores.iter().filter_map(|core| core.due(now)));
        }
        due.extend(self.newcomers.iter().flat_map(|it| &it.cores).filter_map(|it| it.due(now)));
        due
    }

    /// Whether something has come for one of its sidecores that sleeps.
    fn has_woken(&self) -> bool {
        let cores = self.daemons.iter().flat_map(|daemon| &daemon.cores);
        cores.chain(self.newcomers.iter().flat_map(|it| &it.cores)).any(Core::is_woken)
    }

    /// Hears what operators are answered.
    pub(super) fn hear_answers(&mut self, course: &Course) -> Result<(), String> {
        self.follow_ports(course);
        let (daemons, is_stopping) = (&self.daemons, self.is_restarting);
        let is_closed = |door: &Door| match daemons.iter().position(|it| it.door.is_same(door)) {
            // It gives its devices away, if another one serves already.
            Some(at) => {
                let gives_away = daemons[at].control.is_none() && at + 1 < daemons.len();
                gives_away || is_stopping
            }
            None => true,
        };
        for Answered { call, at_ns, answer } in self.operator.hear(course.now().0, is_closed)? {
            self.note_answer(&call, at_ns, &answer, course);
        }
        Ok(())
    }

    /// Guests are served by one process at a time.
    fn judge_alone(&self) -> Result<(), String> {
        if self.daemons.len() + self.newcomers.len() < 2 {
            return Ok(());
        }
        let daemons = self.daemons.iter().map(|daemon| &daemon.cores);
        let all = daemons.chain(self.newcomers.iter().map(|it| &it.cores));
        match all.filter(|cores| cores.iter().any(Core::serves)).count() {
            0 | 1 => Ok(()),
            _ => Err("two processes serve".into()),
        }
    }

    fn note_answer(
        &mut self,
        call: &Call,
        at_ns: u64,
        answer: &Result<Answer, ApiError>,
        course: &Course,
    ) {
        if matches!(call, Call::Reload { .. }) && answer.is_ok() {
            // What was written since may not have been read.
            for (id, _) in self.dirty.extract_if(.., |_, edited_ns| *edited_ns < at_ns) {
                self.vmms.get_mut(&id).into_iter().for_each(|vmm| vmm.is_excused = true);
            }
        }
        if matches!(call, Call::Upgrade { .. }) {
            self.upgraded = Some(answer.as_ref().map(drop).map_err(ApiError::clone));
        }
        match answer {
            Ok(Answer::Reloaded(view)) => self.reloaded = Some(Ok(view.clone())),
            Err(refused) if matches!(call, Call::Reload { .. }) => {
                self.reloaded = Some(Err(refused.clone()));
            }
            _ => {}
        }
        if let (Call::SetCarrier { id, carrier }, Ok(_)) = (call, answer) {
            self.unplugged.remove(id);
            self.unplugged.extend((*carrier == Carrier::Down).then(|| id.clone()));
        }
        // Another one of that name may be there before its VMM has seen the end of this one.
        let goes = match call {
            Call::SetCarrier { carrier, .. } => answer.is_ok() && *carrier == Carrier::Down,
            _ => answer.is_ok(),
        };
        let gone = linked(call).or_else(|| removed(call)).filter(|_| goes);
        if let Some(vmm) = gone.and_then(|id| self.vmms.get_mut(id)) {
            vmm.is_excused = true;
        }
        self.note_disk(call, answer);
        if let (Call::ListLinks, Ok(Answer::Links(list))) = (call, answer) {
            self.links.clone_from(&list.links);
        }
        if let (Call::ListDisks, Ok(Answer::Disks(list))) = (call, answer) {
            self.shown.clone_from(&list.disks);
        }
        let mut hasher = DefaultHasher::new();
        let place = self.folder().display().to_string();
        if let Err(error) = answer {
            error.error.replace(&place, "").hash(&mut hasher);
        }
        let what = if answer.is_ok() { "answered" } else { "refused" };
        course.note(what, [kind_of(call), hasher.finish(), 0]);
        tracing::trace!("{what}: {call:?}: {:?}", answer.as_ref().err());
        if let (true, Ok(view)) = (self.tells_views, answer) {
            tracing::trace!("host {}: {view:?}", self.number);
        }
    }

    /// What is known of disks after such an answer.
    fn note_disk(&mut self, call: &Call, answer: &Result<Answer, ApiError>) {
        match (call, answer) {
            (Call::AddDisk { spec, .. }, Ok(_)) => self.note_added(spec),
            (Call::AcceptDisk { id }, Ok(_)) => _ = self.shrunk.remove(id),
            (Call::AcceptDisk { id }, Err(why)) if why.kind == ErrorKind::Busy => {
                self.unaccepted.insert(id.clone());
            }
            (Call::ResizeDisk { id, resize, .. }, Ok(_)) => self.lose_behind(id, resize.size),
            (Call::ClearDisk { id }, Ok(_)) => self.cleared.push(id.clone()),
            _ => {}
        }
    }

    /// A disk may be on an image of which its guest had more, whether or not that has read so. Its rings are not served
    /// until that is accepted.
    pub(super) fn note_added(&mut self, spec: &DiskSpec) {
        let before = self.operator.bytes_before(&spec.id);
        let had = self.vmms.get(&spec.id).map_or(0, |vmm| vmm.tenant.told_bytes().max(before));
        if spec.size.is_some_and(|size| size.0 < had) {
            self.shrunk.insert(spec.id.clone());
        }
    }

    /// A pass of a sidecore, of the first that does something, from any on.
    fn pass(&mut self, course: &mut Course) -> Result<bool, String> {
        let daemons = self.daemons.iter().map(|daemon| daemon.cores.len());
        let newcomers = self.newcomers.iter().map(|newcomer| newcomer.cores.len());
        for at in course.all_from_any(daemons.chain(newcomers).sum()) {
            if self.pass_of(at, course)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A pass of that sidecore of all, in the midst of which guests may act, or its process be killed: whether it did
    /// something.
    ///
    /// # Errors
    /// A device was wrong.
    fn pass_of(&mut self, at: usize, course: &mut Course) -> Result<bool, String> {
        let daemons = self.daemons.iter_mut().map(|daemon| (daemon.pid, &mut daemon.cores));
        let newcomers = self.newcomers.iter_mut().map(|it| (it.pid, &mut it.cores));
        let mut all = daemons.chain(newcomers).flat_map(|(pid, cores)| {
            cores.iter_mut().enumerate().map(move |(core, it)| (pid, core, it))
        });
        let Some((pid, core, core_of_it)) = all.nth(at) else { return Ok(false) };
        if course.stage.is_killed(pid) {
            return Ok(false);
        }
        let (vmms, now) = (&mut self.vmms, course.now());
        let mut met = Ok(false);
        let mut meanwhile = |now_ns: u64| {
            let index = course.any(vmms.len());
            let vmm = vmms.values_mut().nth(index).filter(|vmm| vmm.runs());
            if let (Some(vmm), true) = (vmm, met.is_ok() && course.random.one_in(2)) {
                met = vmm.act(now_ns, course);
            }
        };
        let passed = catch_unwind(AssertUnwindSafe(|| core_of_it.pass(now, &mut meanwhile)));
        let met = met?;
        match passed {
            Ok((did, until)) => {
                course.stage.pass_until(until);
                if did {
                    course.note("pass", [core as u64, pid.into(), 0]);
                    self.judge_limits(course.now().0)?;
                    self.judge_alone()?;
                }
                Ok(did || met)
            }
            Err(why) if why.is::<Killed>() => {
                self.kill(pid, course);
                Ok(true)
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    pub(super) fn any_vmm(&mut self, course: &mut Course) -> Option<&mut Vmm> {
        let at = course.any(self.vmms.len());
        self.vmms.values_mut().nth(at)
    }

    fn guest_acts(&mut self, course: &mut Course) -> Result<bool, String> {
        let now_ns = course.now().0;
        if course.random.one_in(3) {
            return self.go_elsewhere(course);
        }
        for at in course.all_from_any(self.vmms.len()) {
            let Some(vmm) = self.vmms.values_mut().nth(at).filter(|vmm| vmm.runs()) else {
                continue;
            };
            // Who clears a lost sync is answered after the next flush has ended well.
            if self
                .operator
                .is_asked(|call| matches!(call, Call::ClearDisk { id } if *id == vmm.id))
            {
                vmm.tenant.give_up();
            }
            if vmm.act(now_ns, course)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn vmm_speaks(&mut self, course: &mut Course) -> Result<bool, String> {
        if self.is_left_alone() && !self.dying.is_empty() {
            // Sockets are there at which nobody hears.
            return Ok(false);
        }
        self.seat_guests(course)?;
        self.know_ports(course);
        if course.random.one_in(40)
            && let Some(vmm) = self.any_vmm(course)
        {
            let mut random = Random::new(course.random.next(), 4);
            vmm.babble(&mut random);
        }
        for at in course.all_from_any(self.vmms.len()) {
            if self.speak(at, course)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What a VMM says and hears next, if there is anything.
    fn speak(&mut self, at: usize, course: &mut Course) -> Result<bool, String> {
        let Some(vmm) = self.vmms.values_mut().nth(at) else { return Ok(false) };
        let step = vmm.step(course.now().0).map_err(|why| format!("{}: {why}", vmm.id))?;
        if step == Step::Nothing {
            return Ok(false);
        }
        let id = vmm.id.clone();
        let number = u64::from(vmm.number);
        if file::is_nic(&id) {
            let station = file::station(&id).into();
            course.lan.borrow_mut().interrupted(station, vmm.tenant.oldest_frame());
        }
        if step == Step::CutOff {
            // The one that has taken over has died, and the one before is about to take all back, or to end. Whoever came since
            // is heard by neither.
            let is_between =
                matches!(&self.daemons[..], [Daemon { control: None, is_succeeded: true, .. }]);
            let is_excused = is_between && vmm.known_ns >= self.taken_over_ns
                || vmm.is_excused
                || vmm.waits_for_image(&course.machinery, course.now().0)
                || vmm.is_unheard
                || vmm.tenant.is_hostile()
                || self.dirty.contains_key(&id)
                || self.shrunk.contains(&id)
                || self.unplugged.contains(&id)
                || self.is_restarting
                || self.is_going(&id);
            course.note("cut off", [number, is_excused.into(), 0]);
            if !is_excused && (is_between || self.daemons.is_empty()) {
                // Another process may be about to have it.
                self.lost.push(id.clone());
                self.after_cut_off(&id, course);
                return Ok(true);
            }
            if !is_excused {
                return Err(format!("{id}: its front-end was cut off without a reason"));
            }
            self.after_cut_off(&id, course);
        }
        Ok(true)
    }

    fn after_cut_off(&mut self, id: &str, course: &mut Course) {
        let until_ns = course.now().0 + course.random.below(20) * MS;
        let is_gone = self.is_going(id);
        let Some(vmm) = self.vmms.get_mut(id) else { return };
        vmm.hang_up(until_ns);
        vmm.is_excused = false;
        if is_gone && file::is_in_memory(id) {
            let gone = self.vmms.remove(id);
            self.ended += gone.map_or(0, |vmm| vmm.tenant.ended());
        }
    }
}

/// Some of what has come, in any order, and at least one.
pub(super) fn chosen(count: usize, random: &mut Random) -> Vec<usize> {
    let mut all: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
    let most = if random.one_in(4) { random.below(count as u64 + 1) } else { count as u64 };
    all.truncate(most as usize);
    all
}

pub(super) fn kind_of(call: &Call) -> u64 {
    let mut hasher = DefaultHasher::new();
    std::mem::discriminant(call).hash(&mut hasher);
    hasher.finish() % 1000
}
