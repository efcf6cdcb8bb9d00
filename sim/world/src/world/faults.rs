//! What goes wrong: crashes, power cuts, front-ends that go, guests that start anew; and what an operator
//! does meanwhile.

use super::{Fault, World};
use crate::daemon::Daemon;
use crate::machine::{SECTORS_GROWN, Stage};
use crate::uplink::ELSEWHERE;

impl World {
    pub(super) fn go_wrong(&mut self, fault: Fault) -> Result<(), String> {
        let daemon = self.random.below(self.daemons.len() as u64) as usize;
        let machine = self.random.below(self.machines.len() as u64) as usize;
        match fault {
            Fault::Crash if self.random.one_in(2) => {
                self.machinery.doom();
                Ok(())
            }
            Fault::Crash => self.crash(daemon),
            Fault::PowerCut => self.power_cut(),
            Fault::Reset => self.reset(machine),
            Fault::HangUp => self.hang_up(machine, true),
            Fault::GuestDies => self.hang_up(machine, false),
            Fault::Upgrade => self.upgrade(daemon),
            Fault::Migrate => self.migrate(machine),
            Fault::Resize => self.resize(machine),
        }
    }

    /// `kill -9`: what was submitted to disks goes on.
    pub(super) fn crash(&mut self, at: usize) -> Result<(), String> {
        let Some(daemon) = self.daemons[at].take() else { return Ok(()) };
        self.trace.note(self.now_ns, "crash", [at as u64, 0, 0]);
        daemon.die();
        self.lan.stranded(ELSEWHERE, 16);
        self.restart_ns[at] = self.now_ns + self.random.below(200_000);
        for machine in self.machines.iter_mut().filter(|machine| machine.daemon == at) {
            let until_ns = self.now_ns + self.random.below(300_000);
            self.lan.plugged(machine.number.into(), u64::MAX);
            self.lan.interrupted(machine.number.into(), machine.guest.oldest_frame());
            machine.front_end.hang_up();
            machine.retry_ns = 0;
            machine.stage = match std::mem::replace(&mut machine.stage, Stage::Running) {
                // A guest that is gone does not come back because its daemon is gone, too.
                Stage::Leaving { guest_goes_on: false } => Stage::Leaving { guest_goes_on: false },
                Stage::Resetting => Stage::Away { until_ns, starts_anew: true },
                away @ Stage::Away { .. } => away,
                _ => {
                    machine.front_end.end_logging();
                    Stage::Away { until_ns, starts_anew: machine.loses_its_place() }
                }
            };
        }
        Ok(())
    }

    /// The host loses power: daemons, guests and caches are gone.
    fn power_cut(&mut self) -> Result<(), String> {
        self.trace.note(self.now_ns, "power cut", [0, 0, 0]);
        self.daemons.iter_mut().filter_map(Option::take).for_each(Daemon::die);
        self.restart_ns.fill(self.now_ns);
        self.machinery.cut();
        self.lan.stranded(ELSEWHERE, 16);
        for machine in &mut self.machines {
            let image = self.machinery.image(machine.disk, SECTORS_GROWN as usize);
            let sector = |sector: u64| &image[sector as usize * 512..(sector as usize + 1) * 512];
            let judged = machine.ledger.cut(sector);
            let judged = if machine.is_hostile { Ok(()) } else { judged };
            judged.map_err(|e| format!("disk {} after a power cut: {e}", machine.number))?;
            self.lan.plugged(machine.number.into(), u64::MAX);
            self.lan.interrupted(machine.number.into(), Some(0));
            let mut random = random::Random::new(self.random.next(), 5);
            machine.begin_anew(&mut random, &self.trace)?;
            machine.retry_ns = 0;
            let until_ns = self.now_ns + self.random.below(50_000);
            machine.stage = Stage::Away { until_ns, starts_anew: false };
        }
        Ok(())
    }

    /// Whether a machine is served and nothing special is going on.
    fn is_at_rest(&self, at: usize) -> bool {
        let machine = &self.machines[at];
        matches!(machine.stage, Stage::Running) && machine.front_end.is_done()
    }

    pub(super) fn reset(&mut self, at: usize) -> Result<(), String> {
        if self.is_at_rest(at) {
            self.trace.note(self.now_ns, "resets", [at as u64, 0, 0]);
            let machine = &mut self.machines[at];
            machine.front_end.stop();
            machine.stage = Stage::Resetting;
        }
        Ok(())
    }

    /// The connection is gone, wherever it was; so is the guest, or it goes on.
    pub(super) fn hang_up(&mut self, at: usize, guest_goes_on: bool) -> Result<(), String> {
        let machine = &mut self.machines[at];
        if matches!(machine.stage, Stage::Away { .. } | Stage::Leaving { .. } | Stage::Resetting) {
            return Ok(());
        }
        let Some(daemon) = &mut self.daemons[machine.daemon] else { return Ok(()) };
        let Some(device) = daemon.devices.get_mut(&machine.number) else { return Ok(()) };
        self.trace.note(self.now_ns, "hangs up", [at as u64, guest_goes_on.into(), 0]);
        if let Some(link) = &mut device.link {
            link.ending = true;
            link.pending = None;
        }
        machine.front_end.hang_up();
        machine.front_end.end_logging();
        machine.stage = Stage::Leaving { guest_goes_on };
        Ok(())
    }

    pub(super) fn shift(&mut self, at: usize) -> Result<(), String> {
        let machine = &self.machines[at];
        match &mut self.daemons[machine.daemon] {
            Some(daemon) => daemon.shift(machine.number),
            None => Ok(()),
        }
    }

    fn upgrade(&mut self, at: usize) -> Result<(), String> {
        if let Some(daemon) = &mut self.daemons[at] {
            self.trace.note(self.now_ns, "upgrade", [at as u64, 0, 0]);
            daemon.upgrade();
        }
        Ok(())
    }

    fn migrate(&mut self, at: usize) -> Result<(), String> {
        if self.is_at_rest(at) {
            self.trace.note(self.now_ns, "migrates", [at as u64, 0, 0]);
            let rounds = self.random.below(4);
            self.machines[at].begin_copying(rounds)?;
        }
        Ok(())
    }

    fn resize(&mut self, at: usize) -> Result<(), String> {
        let machine = &self.machines[at];
        let Some(daemon) = &mut self.daemons[machine.daemon] else { return Ok(()) };
        if let Some(device) = daemon.devices.get_mut(&machine.number) {
            let bytes = SECTORS_GROWN * 512;
            let can_grow = machine.guest.spec.vlan.is_none() && machine.bytes < bytes;
            device.resizing = can_grow.then_some(bytes);
        }
        Ok(())
    }

    /// Nothing goes wrong any more, and everything that was asked comes to an end.
    pub(super) fn calm_down(&mut self) -> Result<(), String> {
        self.quiet = true;
        self.trace.note(self.now_ns, "quiet", [0, 0, 0]);
        for machine in &mut self.machines {
            machine.guest.quiet = true;
            self.machinery.calm(machine.disk);
        }
        let mut idle = 0;
        for step in 0..super::STEPS_AFTER_MAX {
            // One that never rests keeps nobody from the end.
            if step % 512 == 0 && self.is_over() {
                return Ok(());
            }
            match self.step()? {
                true => idle = 0,
                false => idle += 1,
            }
            if idle > super::IDLE_STEPS {
                idle = 0;
                if self.is_over() {
                    return Ok(());
                }
                self.skip();
            }
        }
        Err(self.hung())
    }

    /// Whether nobody waits for anything.
    fn is_over(&self) -> bool {
        self.machines.iter().filter(|machine| !machine.is_hostile).all(|machine| {
            machine.guest.waiting() == 0
                && matches!(machine.stage, Stage::Running)
                && machine.front_end.is_done()
        })
    }

    /// Time goes on to what is due.
    fn skip(&mut self) {
        let wakes = self.daemons.iter().flatten().flat_map(|daemon| &daemon.cores);
        let wakes = wakes.filter_map(|core| core.wakes_at_ns());
        let next = self.machinery.next_due_ns().into_iter().chain(wakes).min();
        let now_ns = self.now_ns;
        self.now_ns = next.filter(|next| *next > now_ns).unwrap_or(now_ns + 20_000);
    }

    fn hung(&self) -> String {
        let mut text = "it does not come to an end:".to_string();
        for machine in &self.machines {
            let waiting = machine.guest.waiting();
            let left = self.machinery.in_flight(machine.disk);
            text.push_str(&format!(
                " guest {} waits for {waiting} requests, of which {left} are with the disk, {:?};",
                machine.number, machine.stage
            ));
        }
        for daemon in self.daemons.iter().flatten() {
            let asleep = daemon.cores.iter().filter(|core| core.sleeps()).count();
            let moving = daemon.devices.values().flat_map(|device| &device.queues);
            let moving = moving
                .filter(|queue| queue.moving().is_some() || queue.leaving_since().is_some())
                .count();
            text.push_str(&format!(
                " {asleep} of {} cores sleep, {moving} queues are on their way;",
                daemon.cores.len()
            ));
        }
        text
    }

    /// The end: the disks hold what they may, now and after a last power cut.
    pub(super) fn judge(&mut self) -> Result<(), String> {
        for machine in &mut self.machines {
            let image = self.machinery.image(machine.disk, SECTORS_GROWN as usize);
            let reading = machine.ledger.read(0, SECTORS_GROWN);
            let judged = machine.ledger.found(reading, &image);
            let judged = if machine.is_hostile { Ok(()) } else { judged };
            judged.map_err(|e| format!("disk {} at the end: {e}", machine.number))?;
        }
        self.power_cut()
    }
}
