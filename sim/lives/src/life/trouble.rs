//! What goes wrong in a life, or is wished in it.

use std::path::Path;

use config::api::Call;
use random::Random;
use schedule::Nanos;

use super::host::Host;
use super::steps::kind_of;
use super::{Course, Life, MS};
use crate::file::is_shared;
use crate::vmm;

impl Life {
    /// Something goes wrong, or is wished, anywhere.
    pub(super) fn troubles(&mut self) -> Result<(), String> {
        self.trouble()?;
        self.trouble_links()
    }

    /// Something goes wrong, or is wished.
    fn trouble(&mut self) -> Result<(), String> {
        if self.course.random.one_in(2_500) {
            return self.power_cut();
        }
        let host = self.course.any(self.hosts.len());
        self.hosts[host].trouble_moves(&mut self.course)?;
        self.hosts[host].trouble(&mut self.course)
    }
}

impl Host {
    fn trouble(&mut self, course: &mut Course) -> Result<(), String> {
        let now = course.now().0;
        match course.random.below(200) {
            0..6 => self.wish(course),
            6 => {
                let edited = self.file.borrow_mut().edit(&mut course.random);
                course.note("edit", [0; 3]);
                self.expect_ports(course);
                self.dirty.extend(edited.map(|id| (id, now)));
            }
            7 => {
                let force = !course.random.one_in(4);
                course.note("reload", [force.into(), 0, 0]);
                self.ask(Call::Reload { force }, now);
            }
            8 => self.hang_up(course)?,
            9 => {
                let until_ns = now + course.random.below(12_000) * MS;
                let mut random = Random::new(course.random.next(), 3);
                let Some(vmm) = self.any_vmm(course) else { return Ok(()) };
                if vmm.stage == vmm::Stage::There {
                    vmm.get_stuck(until_ns, &mut random);
                    course.note("stuck", [0; 3]);
                }
            }
            10 => {
                let resets = course.random.one_in(2);
                let Some(vmm) = self.any_vmm(course) else { return Ok(()) };
                if vmm.stage == vmm::Stage::There && vmm.tenant.has_said_all() {
                    vmm.halt(resets);
                    course.note("stops", [resets.into(), 0, 0]);
                }
            }
            19 => self.trouble_interfaces(course),
            20 => {
                let (times, moves) = (course.random.below(4) as u32, !course.random.one_in(4));
                let (now_ns, pause_ns) = (course.now().0, course.random.of(&[0, 20_000]));
                let Some(vmm) = self.any_vmm(course) else { return Ok(()) };
                let is_honest = !vmm.tenant.is_hostile();
                if is_honest && vmm.stage == vmm::Stage::There && vmm.tenant.has_said_all() {
                    let moves = moves && is_shared(&vmm.id);
                    vmm.begin_copying((times, pause_ns), moves, now_ns)?;
                    course.note("copies", [times.into(), 0, 0]);
                }
            }
            11 if course.random.one_in(4) => self.break_state(!self.is_broken, course)?,
            12 => {
                let time = course.random.of(&[1, 1, 10, 10, 100, 1000, 3000]) * MS;
                course.note("time", [time, 0, 0]);
                course.stage.pass_until(Nanos(now + time));
            }
            13 => self.have_killed(course),
            21..25 => self.leave_before_upgrade(course)?,
            14 | 15 if !self.is_broken => self.upgrade(course),
            16 if course.random.one_in(4) => self.stop_newcomer(course),
            17 => self.kill_heir(course),
            18 if course.random.one_in(12) => self.stop_for_a_while(course),
            _ => {}
        }
        Ok(())
    }

    /// Moves, and what comes in the midst of them: a front-end that goes, and rings that stop.
    fn trouble_moves(&mut self, course: &mut Course) -> Result<(), String> {
        if course.random.one_in(course.move_one_in) {
            let known = self.devices();
            let cores = self.daemons.first().map_or(1, |daemon| daemon.cores.len());
            let call = self.operator.wish_move(&known, cores, &mut course.random);
            if let Some(call) = call {
                course.note("moves", [kind_of(&call), 0, 0]);
                self.ask(call, course.now().0);
            }
        }
        if !course.random.one_in(course.move_one_in) {
            return Ok(());
        }
        let Some(id) = self.operator.moved(course.random.next()).map(str::to_string) else {
            return Ok(());
        };
        let (goes, until_ns) = (course.random.one_in(2), course.now().0 + course.random.below(MS));
        let resets = course.random.one_in(2);
        let vmm = self.vmms.get_mut(&id).filter(|vmm| vmm.stage == vmm::Stage::There);
        match vmm {
            Some(vmm) if goes => {
                vmm.hang_up(until_ns);
                vmm.is_excused = false;
                course.note("hangs up", [0; 3]);
            }
            Some(vmm) if vmm.tenant.has_said_all() => {
                vmm.halt(resets);
                course.note("stops", [resets.into(), 0, 0]);
            }
            _ => {}
        }
        Ok(())
    }

    /// A daemon is killed: now, in the midst of a pass, or when it has done something of which nobody has heard.
    fn have_killed(&mut self, course: &mut Course) {
        match course.random.below(20) {
            0 if !self.daemons.is_empty() => {
                let at = course.any(self.daemons.len());
                self.kill(self.daemons[at].pid, course);
            }
            1..4 => course.machinery.doom(),
            4 => self.dies_unheard = self.operator.waiting() > 0,
            _ => {}
        }
    }

    fn hang_up(&mut self, course: &mut Course) -> Result<(), String> {
        let until_ns = course.now().0 + course.random.below(50) * MS;
        let anew = course.random.one_in(3);
        let mut random = Random::new(course.random.next(), 3);
        let Some(vmm) = self.any_vmm(course) else { return Ok(()) };
        vmm.hang_up(until_ns);
        vmm.is_excused = false;
        if anew {
            vmm.begin_anew(&mut random)?;
        }
        course.note("hangs up", [anew.into(), 0, 0]);
        Ok(())
    }

    fn wish(&mut self, course: &mut Course) {
        if self.is_linked() && !course.random.one_in(3) {
            return;
        }
        let known = self.devices();
        let folder = self.folder().to_path_buf();
        let cores = self.daemons.first().map_or(1, |daemon| daemon.cores.len());
        let Some(call) = self.operator.wish(&known, &folder, cores, &mut course.random) else {
            return;
        };
        course.note("asks", [kind_of(&call), 0, 0]);
        tracing::trace!("asks: {call:?}");
        self.ask(call, course.now().0);
        self.expect_changes(course);
    }

    /// What the daemon keeps can be written no more, or again.
    pub(super) fn break_state(&mut self, broken: bool, course: &Course) -> Result<(), String> {
        if self.is_broken == broken {
            return Ok(());
        }
        let state = self.folder().join("state");
        let (kept, aside) = (state.join("disks.json"), state.join("aside"));
        let done = match broken {
            true => move_if_there(&kept, &aside).and_then(|()| std::fs::create_dir(&kept)),
            false => std::fs::remove_dir(&kept).and_then(|()| move_if_there(&aside, &kept)),
        };
        course.note("state", [broken.into(), 0, 0]);
        self.is_broken = broken;
        done.map_err(|e| e.to_string())
    }
}

fn move_if_there(from: &Path, to: &Path) -> std::io::Result<()> {
    match from.exists() {
        true => std::fs::rename(from, to),
        false => Ok(()),
    }
}
