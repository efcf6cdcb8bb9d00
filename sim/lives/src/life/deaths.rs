//! Daemons that are killed, hosts that lose their power, and who serves afterwards.

use config::Size;
use random::Random;

use super::host::{Daemon, Host};
use super::{Course, Life, MS};
use crate::core::Core;
use crate::file;
use crate::operator::Found;
use crate::vmm::{Stage, Vmm};

impl Life {
    /// The power fails on all hosts: daemons, guests and caches are gone, and disks hold what they may.
    pub(super) fn power_cut(&mut self) -> Result<(), String> {
        self.course.note("power cut", [0; 3]);
        for host in &mut self.hosts {
            for pid in host.pids() {
                host.kill(pid, &mut self.course);
            }
        }
        self.course.machinery.cut();
        self.lose_power_of_links();
        for host in &mut self.hosts {
            host.lose_power(|_| true, &mut self.course)?;
        }
        Ok(())
    }
}

impl Host {
    /// `kill -9` of a daemon: what was submitted to disks goes on, and what it held in memory is gone.
    pub(super) fn kill(&mut self, pid: u32, course: &mut Course) {
        course.note("killed", [pid.into(), 0, 0]);
        self.dies_unheard = false;
        if let Some(at) = self.daemons.iter().position(|daemon| daemon.pid == pid) {
            let daemon = self.daemons.remove(at);
            // Whoever was not answered before it took over came to nobody else, who goes on without it.
            let came = self.vmms.values_mut().filter(|vmm| vmm.known_ns >= self.taken_over_ns);
            came.filter(|_| at > 0).for_each(|vmm| vmm.is_excused = true);
            if at > 0 {
                self.forget_places(course);
            }
            self.dying.extend(daemon.control.is_none().then_some(pid));
            daemon.die(course);
        }
        if let Some(at) = self.newcomers.iter().position(|newcomer| newcomer.pid == pid) {
            let newcomer = self.newcomers.remove(at);
            self.dying.extend(newcomer.is_amid().then_some(pid));
            if newcomer.cores.iter().any(Core::serves) {
                self.forget_places(course);
            }
            newcomer.die(course);
        }
        self.see_who_is_left(course);
    }

    /// Where a packed ring without a record stands knew only one that has died (0009): whoever takes it back stops it, and
    /// its guest begins anew. Of all rings what they had sent may be sent again.
    pub(super) fn forget_places(&mut self, course: &Course) {
        self.lose_ports(course);
        let vmms = self.vmms.values_mut().filter(|vmm| vmm.tenant.loses_its_place());
        vmms.for_each(|vmm| vmm.hang_up(course.now().0));
    }

    /// The same when all is taken back: who does that cannot know that the dead one had not served any ring yet.
    pub(super) fn has_taken_back(&mut self, course: &Course) {
        // Whoever has hung up when that one died was not answered since.
        let vmms = self.vmms.values_mut().filter(|vmm| vmm.is_answered());
        let vmms = vmms.filter(|vmm| vmm.tenant.loses_its_place());
        vmms.for_each(|vmm| vmm.hang_up(course.now().0));
    }

    /// Who serves is stopped as a service is, and started again.
    pub(super) fn stop_for_a_while(&mut self, course: &mut Course) {
        let [daemon] = &mut self.daemons[..] else { return };
        let Some(control) = &mut daemon.control else { return };
        course.note("stop", [daemon.pid.into(), 0, 0]);
        control.stop();
        self.is_restarting = true;
        self.vmms.values_mut().for_each(|vmm| vmm.is_excused = true);
    }

    /// The processes of all daemons.
    pub(super) fn pids(&self) -> Vec<u32> {
        let daemons = self.daemons.iter().map(|daemon| daemon.pid);
        daemons.chain(self.newcomers.iter().map(|newcomer| newcomer.pid)).collect()
    }

    /// Whether no process is there that serves, or will, and one is to.
    pub(super) fn is_left_alone(&self) -> bool {
        self.daemons.is_empty() && self.newcomers.is_empty() && !self.is_stopping
    }

    /// With the last process all is gone that it had in memory.
    pub(super) fn see_who_is_left(&mut self, course: &mut Course) {
        if !self.is_left_alone() {
            return;
        }
        self.deaths += 1;
        self.is_restarting = false;
        self.lost.clear();
        self.dooms.clear();
        self.latecomer = None;
        self.operator.lose_all();
        self.lose_ports(course);
        let until_ns = course.now().0;
        // Soon enough that another process meets what this one has left with disks; or not.
        self.restart_ns = until_ns + course.random.of(&[0, 0, 1, 100]) * course.random.below(MS);
        let away_ns = course.random.of(&[1_000, 100_000, 2 * MS]);
        let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.vmms)
            .into_iter()
            .partition(|(id, _)| file::is_in_memory(id) && !file::is_nic(id));
        self.ended += gone.iter().map(|(_, vmm)| vmm.tenant.ended()).sum::<u64>();
        self.vmms = left.into_iter().collect();
        for vmm in self.vmms.values_mut() {
            let until_ns = until_ns + course.random.below(away_ns);
            let is_over = vmm.tenant.is_hostile() && course.is_calm.get();
            vmm.lose_daemon(&course.machinery, if is_over { u64::MAX } else { until_ns });
        }
    }

    /// Another daemon serves what is in the file and what is kept.
    pub(super) fn restart(&mut self, course: &mut Course) -> Result<(), String> {
        course.be_at(self.number);
        self.break_state(false, course)?;
        let daemon = Daemon::start(&self.file)?;
        self.daemons.push(daemon);
        self.dirty.clear();
        self.is_stale = false;
        course.note("started", [0; 3]);
        self.follow_ports(course);
        let Some(plan) = self.daemons.first().and_then(|it| it.control.as_ref()) else {
            return Ok(());
        };
        let found = self.operator.find_all(plan.plan())?;
        self.begin_shrunk_anew(found, course)
    }

    /// What was not kept is not there any more, and a guest that was told of it begins anew. That a disk was added, nobody may
    /// have heard.
    pub(super) fn begin_shrunk_anew(
        &mut self,
        Found { smaller, added }: Found,
        course: &mut Course,
    ) -> Result<(), String> {
        added.iter().for_each(|spec| self.note_added(spec));
        for (id, size) in smaller {
            self.lose_behind(&id, size);
            let mut random = Random::new(course.random.next(), 3);
            let Some(vmm) = self.vmms.get_mut(&id) else { continue };
            // Its process is another one: what the daemon answers on the connection of this one is for nobody.
            if !matches!(vmm.stage, Stage::Away { .. }) {
                vmm.hang_up(course.now().0);
            }
            vmm.begin_anew(&mut random)?;
        }
        Ok(())
    }

    /// A disk has another size: one in memory keeps nothing behind its end, and an image all of it.
    pub(super) fn lose_behind(&mut self, id: &str, size: Size) {
        let vmm = self.vmms.get_mut(id).filter(|_| file::is_in_memory(id));
        vmm.into_iter().for_each(|vmm| vmm.tenant.lose_behind(size.0 / 512));
    }

    /// Guests are gone, and their disks hold what the cut has left, those of which that is so.
    pub(super) fn lose_power(
        &mut self,
        is_cut: impl Fn(&Vmm) -> bool,
        course: &mut Course,
    ) -> Result<(), String> {
        course.ground.lose_power(self.number);
        for vmm in self.vmms.values_mut() {
            let until_ns = course.now().0 + course.random.below(MS);
            if !is_cut(vmm) {
                vmm.hang_up(until_ns);
                vmm.begin_anew(&mut course.random)?;
                continue;
            }
            vmm.lose_power(&course.machinery, &mut course.random, until_ns)
                .map_err(|e| format!("disk {} after a power cut: {e}", vmm.id))?;
        }
        Ok(())
    }

    /// Each image holds what its guest may find there.
    pub(super) fn judge_images(&mut self, course: &Course) -> Result<(), String> {
        let judge = |vmm: &mut Vmm| {
            vmm.judge(&course.machinery).map_err(|e| format!("disk {} at the end: {e}", vmm.id))
        };
        self.vmms.values_mut().try_for_each(judge)
    }
}
