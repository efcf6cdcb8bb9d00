//! Has every queue and host port come back from the sidecores, and sends them out again.
//!
//! Control hears nobody but sidecores meanwhile. Not here: when and what for (`predecessor`, `heir`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use sidecore::Command;

use super::error::DrainError;
use super::timespec;
use crate::defects::found;
use crate::device::Device;
use crate::manager::Manager;

/// How long all queues may stand still until the last of them is back.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(50);
/// How long the queues of disks that took longer may stand still before that, the others being served.
const SLOW_DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
const DRAINS_MAX: u32 = 3;
/// How long sidecores that have no processor at once are waited for. Receivers and ways out are there before senders, since
/// a frame that finds nobody is lost; and no disk is said to be late whose sidecore is.
const LATE_TIME_MAX: Duration = Duration::from_secs(1);

impl Manager {
    /// Has every queue and host port come back, with nothing in flight, by `until`. Disks that do not
    /// answer in time are drained beforehand, the others being served meanwhile.
    pub(super) fn bring_all_home(&mut self, until: Instant) -> Result<(), DrainError> {
        let (mut slow, mut late) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..DRAINS_MAX {
            if self.rooms.turn.tick() >= until {
                break;
            }
            slow.iter().for_each(|number| self.ask_for(*number, |_| true));
            let by = until.min(self.rooms.turn.tick() + SLOW_DRAIN_TIME_MAX);
            self.hear_cores_until(by, |this| {
                slow.iter().all(|number| this.is_home(*number, |_| true))
            });
            let by = until.min(self.rooms.turn.tick() + DRAIN_TIME_MAX);
            if self.drain_all(by) {
                return Ok(());
            }
            // Of one that has done all it was told, only disks that do not answer have queues still.
            late = match self.fence_within(LATE_TIME_MAX) {
                true => late_disks(self.rooms.devices.values()),
                false => BTreeSet::new(),
            };
            // One that came back in its five seconds would be late again without them.
            slow.extend(&late);
            self.await_late_ports();
            self.send_all_out(&slow);
        }
        let name =
            |number: &u32| self.rooms.devices.get(*number).map(|device| device.facts.id.clone());
        Err(not_home(late.iter().filter_map(name).collect()))
    }

    /// Senders first, then what they sent, then receivers, so that no frame finds nobody. Whether all
    /// is here.
    fn drain_all(&mut self, until: Instant) -> bool {
        let all: Vec<u32> = self.rooms.devices.keys().copied().collect();
        let nics: Vec<u32> = self
            .rooms
            .devices
            .values()
            .filter(|device| device.kind.nic().is_some())
            .map(|device| device.number)
            .collect();
        let sends = |index: u16| !index.is_multiple_of(2);
        nics.iter().for_each(|number| self.ask_for(*number, sends));
        let sent = |this: &Manager| nics.iter().all(|number| this.is_home(*number, sends));
        if !(self.hear_cores_until(until, sent) && self.fence(until)) {
            return false;
        }
        self.give_up_uplinks();
        let is_apart = |this: &Manager| !this.rooms.network.is_attached();
        if !(self.hear_cores_until(until, is_apart) && self.fence(until)) {
            return false;
        }
        all.iter().for_each(|number| self.ask_for(*number, |_| true));
        let are_home = |this: &Manager| all.iter().all(|n| this.is_home(*n, |_| true));
        if !self.hear_cores_until(until, are_home) {
            return false;
        }
        self.ask_for_links();
        self.hear_cores_until(until, |this| this.rooms.remote.are_home())
    }

    /// Waits until what was handed from one sidecore to another is delivered.
    fn fence(&mut self, until: Instant) -> bool {
        self.rooms.network.switches.is_empty() || self.fence_all(until)
    }

    /// Waits until every sidecore has done what it was told so far.
    pub(super) fn fence_all(&mut self, until: Instant) -> bool {
        for core in 0..self.rooms.cores.all.len() {
            self.fences_open += 1;
            self.rooms.cores.send(core, Command::Fence);
        }
        self.hear_cores_until(until, |this| this.fences_open == 0)
    }

    /// As [`Self::fence_all`], from now on.
    pub(super) fn fence_within(&mut self, limit: Duration) -> bool {
        let until = self.rooms.turn.tick() + limit;
        self.fence_all(until)
    }

    fn is_home(&self, number: u32, which: impl Fn(u16) -> bool) -> bool {
        let attached = self.rooms.devices.get(number).map(Device::attached).unwrap_or_default();
        !attached.into_iter().any(which)
    }

    fn ask_for(&mut self, number: u32, which: impl Fn(u16) -> bool) {
        let device = found!(
            self.rooms.turn.defects,
            self.rooms.devices.get_mut(number),
            "device to bring home"
        );
        let asked = device.attached().into_iter().filter(|index| which(*index));
        asked.for_each(|index| device.detach(index, &mut self.rooms.turn, &mut self.rooms.cores));
    }

    /// Waits for receivers and ways out that were asked for when the time of a drain was over: one that came back
    /// after the others were sent out would have frames lost that it was to take.
    pub(super) fn await_late_ports(&mut self) {
        let are_back = |this: &Manager| {
            let mut nics = this.rooms.devices.values().filter(|device| device.kind.nic().is_some());
            nics.all(|nic| nic.leaving_since().is_none()) && !this.rooms.network.is_asked_back()
        };
        // See `LATE_TIME_MAX`: whoever is later than that loses frames.
        let by = self.rooms.turn.tick() + LATE_TIME_MAX;
        let _ = self.hear_cores_until(by, are_back);
    }

    /// Attaches what is here, but queues of `but`: receivers first, then ways out, then senders, so that no frame
    /// finds nobody.
    pub(super) fn send_all_out(&mut self, but: &BTreeSet<u32>) {
        // A remote disk's queue finds its link where it goes.
        self.send_links_out();
        let goes = |device: &&Device| !but.contains(&device.number);
        let devices: Vec<u32> =
            self.rooms.devices.values().filter(goes).map(|device| device.number).collect();
        let nics =
            self.rooms.devices.values().filter(goes).filter(|device| device.kind.nic().is_some());
        let nics: Vec<(u32, u16)> = nics.map(|nic| (nic.number, nic.facts.rings)).collect();
        for (number, rings) in &nics {
            for index in (0..*rings).step_by(2) {
                self.attach_if_ready(*number, index);
            }
        }
        if !nics.is_empty() {
            // A sidecore that does not answer in time has other troubles than a frame that is dropped.
            let by = self.rooms.turn.tick() + LATE_TIME_MAX;
            let _ = self.fence(by);
        }
        // What a guest sends finds its way out, and what comes from there its receiver.
        if self.send_uplinks_out() {
            let _ = self.fence_within(LATE_TIME_MAX);
        }
        devices.into_iter().for_each(|number| self.settle_device(number));
        self.rooms.cores.flush();
    }

    /// Hears the sidecores, and nobody else, until it is done or that moment. Whether it is done.
    pub(super) fn hear_cores_until(
        &mut self,
        until: Instant,
        is_done: impl Fn(&Manager) -> bool,
    ) -> bool {
        loop {
            self.rooms.turn.tick();
            (0..self.rooms.cores.all.len()).for_each(|core| self.hear_core(core));
            self.rooms.cores.flush();
            if is_done(self) {
                return true;
            }
            let left = until.saturating_duration_since(self.rooms.turn.tick());
            if left.is_zero() {
                return false;
            }
            let most =
                if self.rooms.cores.is_backed_up() { Duration::from_millis(1) } else { left };
            let events = self.rooms.cores.all.iter().map(|core| core.handle.event_fd());
            let mut fds: Vec<PollFd<'_>> =
                events.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let _ = poll(&mut fds, Some(&timespec(left.min(most))));
        }
    }
}

/// Disks that were asked for queues and have not given them back. Not those that nobody has asked because
/// others took all of the time; and no NIC, which is never drained beforehand: its receivers are asked for
/// when all senders are back.
fn late_disks<'a>(devices: impl IntoIterator<Item = &'a Device>) -> BTreeSet<u32> {
    let is_late =
        |device: &&Device| device.kind.disk().is_some() && device.leaving_since().is_some();
    devices.into_iter().filter(is_late).map(|device| device.number).collect()
}

/// Why an upgrade is refused, the last time these disks having been late.
fn not_home(disks: Vec<String>) -> DrainError {
    if disks.is_empty() { DrainError::Sidecores } else { DrainError::Disks(disks) }
}

#[cfg(test)]
mod tests {
    use config::plan::load;
    use cpus::HostCpus;

    use super::*;
    use crate::bonds::Bonds;
    use crate::clock::now;
    use crate::disk::DiskParts;
    use crate::kind::{Facts, Kind};
    use crate::network::nic::NicParts;
    use crate::opening::openers::{Openers, Patience};
    use crate::queue::{Owner, Place};

    /// Three disks and a NIC, each with two queues that a sidecore has.
    fn devices() -> Vec<Device> {
        let disk = |id| {
            format!("[[disk]]\nid = \"{id}\"\nbackend = \"null\"\nsize = \"1M\"\nqueues = 2\n")
        };
        let text = format!(
            "[daemon]\nrun_dir = \"/run\"\n[sidecores]\ncpus = \"0\"\n[[switch]]\nid = \"lan\"\n\
             [[nic]]\nid = \"n\"\nswitch = \"lan\"\n{}{}{}",
            disk("a"),
            disk("b"),
            disk("c")
        );
        let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
        let plan = load(&text, "file", "/", &host, None).expect("a plan");
        let of_disk = |(number, plan): (u32, &config::plan::DiskPlan)| {
            let (bonds, mut openers) = (Bonds::in_folder("/nowhere"), Openers::default());
            let parts = DiskParts::open(plan.clone(), false, &bonds, &mut openers, Patience::First);
            let parts = parts.expect("a disk of nothing");
            Device::new(number, Facts::from(plan), Kind::Disk(parts))
        };
        let of_nic = |plan: &config::plan::NicPlan| {
            Device::new(9, Facts::from(plan), Kind::Nic(NicParts::new(plan.clone(), None)))
        };
        let disks = (0..).zip(&plan.disks).map(of_disk);
        let mut devices: Vec<Device> = disks.chain(plan.nics.iter().map(of_nic)).collect();
        for queue in devices.iter_mut().flat_map(|device| &mut device.queues[..2]) {
            let owner = Owner::Connection(0);
            assert!(queue.attach(Place { core: 0, owner, by_hand: false }));
        }
        devices
    }

    fn ask(device: &mut Device, queue: usize) {
        let _ = device.queues[queue].ask(false, now());
    }

    #[test]
    fn only_a_disk_that_was_asked_and_has_not_answered_is_late() {
        let mut devices = devices();
        assert_eq!(devices.len(), 4);
        // The NIC's sender took all of the time, and nobody else was asked.
        ask(&mut devices[3], 1);
        assert_eq!(late_disks(&devices), BTreeSet::new());
        // One queue of a disk is back, the other is not; of the next both are; the third was not asked.
        let _ = devices[0].queues[0].come_back(0, None, false);
        ask(&mut devices[0], 1);
        for queue in &mut devices[1].queues {
            let _ = queue.come_back(0, None, false);
        }
        assert_eq!(late_disks(&devices), BTreeSet::from([0]));
        ask(&mut devices[2], 0);
        assert_eq!(late_disks(&devices), BTreeSet::from([0, 2]));
    }

    #[test]
    fn a_refusal_names_late_disks_and_no_disk_without_one() {
        assert_eq!(
            not_home(vec!["a".to_string(), "c".to_string()]).to_string(),
            "requests of a, c do not end: their disk does not answer; try again when it does"
        );
        assert!(!not_home(Vec::new()).to_string().contains("disk"));
    }
}
