//! What a step of a life is: a turn of control, a pass of a sidecore, a word of a VMM, an act of a guest; or time goes on.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use config::api::{Answer, ApiError, Call};
use manager::simulated::{Around, Stage, Turned};
use random::Random;
use schedule::Nanos;
use world::Killed;

use super::host::Host;
use super::{Course, Life, MS};
use crate::file;
use crate::operator::{Answered, linked, removed};
use crate::vmm::{Step, Vmm};

/// What a step takes; where hosts are linked more, so that frames arrive before much else is done.
const STEP_NS: u64 = 200;
const STEP_LINKED_NS: u64 = 1_000;
/// Steps without anything done, after which time jumps to what is due.
const IDLE_STEPS: u32 = 16;

/// Nothing goes on while a daemon waits, but time.
pub(super) struct Nobody(pub(super) Rc<Stage>);

impl Around for Nobody {
    fn go_on(&mut self, until: Nanos) {
        self.0.pass_until(until);
    }
}

impl Course {
    /// For what does not wait for anybody.
    pub(super) fn nobody(&self) -> Nobody {
        Nobody(Rc::clone(&self.stage))
    }
}

impl Life {
    /// Somebody does something.
    pub(super) fn step(&mut self) -> Result<(), String> {
        let now = self.course.now();
        let ran = self.course.machinery.run(now.0);
        let host = self.course.any(self.hosts.len());
        self.course.be_at(self.hosts[host].number);
        let did = self.hosts[host].step(&mut self.course)? || ran > 0;
        self.note_deaths();
        self.idle = if did { 0 } else { self.idle + 1 };
        if self.idle >= IDLE_STEPS {
            self.idle = 0;
            self.jump();
        } else {
            let step_ns = if self.links.is_some() { STEP_LINKED_NS } else { STEP_NS };
            let until = now.0.max(self.course.now().0) + step_ns;
            self.course.stage.pass_until(Nanos(until));
        }
        Ok(())
    }

    /// Time goes to what is due next.
    fn jump(&mut self) {
        let now = self.course.now();
        let due = self.hosts.iter_mut().flat_map(|host| host.due(now)).collect::<Vec<_>>();
        let arrives = self.course.ground.wire.due().map(Nanos);
        let media = self.course.machinery.next_due_ns().map(Nanos);
        let due = due.into_iter().chain(media).chain(self.course.stage.due()).chain(arrives);
        let due = due.filter(|due| *due > now).min();
        let until = due.unwrap_or(Nanos(now.0 + MS));
        self.course.note("jump", [until.0 - now.0, 0, 0]);
        self.course.stage.pass_until(until);
    }
}

impl Host {
    /// Somebody on it does something.
    fn step(&mut self, course: &mut Course) -> Result<bool, String> {
        let is_dead = self.daemons.is_empty() && !self.is_stopping;
        if is_dead && course.now().0 >= self.restart_ns {
            self.restart(course)?;
        }
        match course.random.below(10) {
            0..3 => self.turn(course),
            3..6 => self.pass(course),
            6..8 => self.guest_acts(course),
            _ => self.vmm_speaks(course),
        }
    }

    /// When anybody on it does something without being asked.
    fn due(&mut self, now: Nanos) -> Vec<Nanos> {
        let mut due: Vec<_> = self.vmms.values().filter_map(Vmm::due_ns).map(Nanos).collect();
        if self.daemons.is_empty() && !self.is_stopping {
            due.push(Nanos(self.restart_ns));
        }
        for daemon in &mut self.daemons {
            let control = daemon.control.patience();
            due.extend(control.map(|time| Nanos(now.0 + time.as_nanos() as u64)));
            due.extend(daemon.cores.iter().filter_map(|core| core.due(now)));
        }
        due
    }

    /// A turn of control, with some of what has come.
    fn turn(&mut self, course: &mut Course) -> Result<bool, String> {
        let at = course.any(self.daemons.len());
        let Some(daemon) = self.daemons.get_mut(at) else { return Ok(false) };
        let control = &mut daemon.control;
        let is_due = control.patience().is_some_and(|time| time.is_zero());
        let came = control.hear();
        if !is_due && came == 0 {
            return Ok(false);
        }
        let (turned, _) = control.turn_amid(&chosen(came, &mut course.random), course.nobody());
        course.note("turn", [came as u64, 0, 0]);
        match turned {
            Turned::On => {}
            Turned::Stopped if self.is_stopping => {
                self.daemons.remove(at).die();
                return Ok(true);
            }
            Turned::Stopped | Turned::Ended => return Err("it has stopped by itself".into()),
            Turned::Broken(said) => return Err(format!("a panic: {said}")),
        }
        if let Some(defect) = control.defects().first() {
            return Err(format!("a defect at {}: there is no {}", defect.at, defect.expected));
        }
        if self.dies_unheard && came > 0 {
            self.kill(at, course);
            return Ok(true);
        }
        for Answered { call, at_ns, answer } in self.operator.hear(course.now().0)? {
            self.note_answer(&call, at_ns, &answer, course);
        }
        Ok(true)
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
        if let (Call::Reload { .. }, Err(refused)) = (call, answer) {
            self.refused = Some(refused.clone());
        }
        // Another one of that name may be there before its VMM has seen the end of this one.
        let gone = linked(call).or_else(|| removed(call));
        if let Some(vmm) = gone.and_then(|id| self.vmms.get_mut(id)) {
            vmm.is_excused = true;
        }
        if let (Call::ClearDisk { id }, Ok(_)) = (call, answer)
            && let Some(vmm) = self.vmms.get_mut(id)
        {
            vmm.tenant.give_up();
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
    }

    /// A pass of a sidecore, in the midst of which guests may act, or its process be killed: whether it did something.
    ///
    /// # Errors
    /// A device was wrong.
    pub(super) fn pass(&mut self, course: &mut Course) -> Result<bool, String> {
        let at = course.any(self.daemons.len());
        let Some(daemon) = self.daemons.get_mut(at) else { return Ok(false) };
        let core = course.any(daemon.cores.len());
        let (vmms, now) = (&mut self.vmms, course.now());
        let mut met = Ok(false);
        let mut meanwhile = |now_ns: u64| {
            let index = course.any(vmms.len());
            let vmm = vmms.values_mut().nth(index).filter(|vmm| vmm.runs());
            if let (Some(vmm), true) = (vmm, met.is_ok() && course.random.one_in(2)) {
                met = vmm.act(now_ns, course);
            }
        };
        let core_of_it = &mut daemon.cores[core];
        let passed = catch_unwind(AssertUnwindSafe(|| core_of_it.pass(now, &mut meanwhile)));
        let met = met?;
        match passed {
            Ok((did, until)) => {
                course.stage.pass_until(until);
                if did {
                    course.note("pass", [core as u64, 0, 0]);
                }
                Ok(did || met)
            }
            Err(why) if why.is::<Killed>() => {
                self.kill(at, course);
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
        let at = course.any(self.vmms.len());
        match self.vmms.values_mut().nth(at) {
            Some(vmm) if vmm.runs() => vmm.act(now_ns, course),
            _ => Ok(false),
        }
    }

    fn vmm_speaks(&mut self, course: &mut Course) -> Result<bool, String> {
        self.seat_guests(course)?;
        let Some(vmm) = self.any_vmm(course) else { return Ok(false) };
        let id = vmm.id.clone();
        let step = vmm.step(course.now().0).map_err(|why| format!("disk {id}: {why}"))?;
        let number = u64::from(vmm.number);
        if step == Step::CutOff {
            let is_excused = vmm.is_excused || self.dirty.contains_key(&id) || self.is_going(&id);
            course.note("cut off", [number, is_excused.into(), 0]);
            if !is_excused {
                return Err(format!("disk {id}: its front-end was cut off without a reason"));
            }
            self.after_cut_off(&id, course);
        }
        Ok(step != Step::Nothing)
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
fn chosen(count: usize, random: &mut Random) -> Vec<usize> {
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
