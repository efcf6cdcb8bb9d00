//! Hears sidecores, and does what a drain says: asks them for queues, ports and links, and gives those back.
//!
//! Control hears nobody but sidecores during a drain. Not here: the order of that, and how long each is waited for
//! ([`control::drain`]); when and what for (`upgrading`).

use std::collections::BTreeSet;
use std::time::Duration;

use control::drain::{LATE_NS_MAX, Step, Wave};
use rustix::event::{PollFd, PollFlags, poll};
use schedule::Nanos;
use sidecore::{Event, Handle, nanos_of};

use super::Manager;
use crate::defects::found;
use crate::devices::device::Device;
use crate::poll::timespec;
use crate::rooms::Rooms;
use crate::upgrade::error::DrainError;

/// Events of one sidecore that are heard before others are: a peer can cause many.
const EVENTS_PER_TURN: u32 = 256;

impl Manager {
    pub(crate) fn hear_core(&mut self, core: usize) {
        let handle = self.rooms.cores.handle(core);
        let handle = found!(self.rooms.turn.defects, handle, "sidecore that is polled");
        // Reset before looking, so that what comes later is heard again.
        let _ = rustix::io::read(handle.event_fd(), &mut [0; 8]);
        for heard in 0.. {
            if heard == EVENTS_PER_TURN {
                // Others are heard in between.
                if let Some(handle) = self.rooms.cores.handle(core) {
                    let _ = rustix::io::write(handle.event_fd(), &1u64.to_ne_bytes());
                }
                return;
            }
            let Some(event) = self.rooms.cores.take_event(core) else { return };
            match event {
                Event::Prepared(id) => self.rooms.move_is_prepared(id),
                Event::Moved(id) => self.move_is_over(id, None),
                Event::Stayed(id, why) => self.move_is_over(id, Some(why)),
                Event::Detached(served) => {
                    let device = served.key().device;
                    self.queue_is_back(core, served, None);
                    self.rooms.say_stalls(device);
                }
                Event::Refused(served, why) => {
                    self.queue_is_back(core, served, Some(&why.to_string()));
                }
                Event::HostDetached(served) => self.uplink_is_back(served.into_spec(), None),
                Event::HostRefused(served, why) => {
                    self.uplink_is_back(served.into_spec(), Some(why.to_string()));
                }
                Event::HostGone(key) => {
                    self.rooms.network.uplink_failed(key, &mut self.rooms.cores);
                }
                Event::Macs(table) => self.rooms.switch_calls().hear_macs(core, table),
                Event::FromClient(key, said) => {
                    self.links(|remote, around| remote.hear_client(core, (key, *said), around));
                }
                Event::FromHost(key, said) => {
                    let mode = self.mode();
                    self.links(|remote, around| {
                        remote.hear_host((core, key, *said), mode, around);
                    });
                }
                Event::LinkDetached(key, link) => {
                    let mode = self.mode();
                    self.links(|remote, around| {
                        remote.link_is_home((core, key, link), mode, around);
                    });
                }
                Event::LinkRefused(key, _) => {
                    self.links(|remote, around| remote.link_is_refused(key, around))
                }
                Event::Stalls(key) => self.rooms.say_stalls(key.device),
                Event::Fenced => self.rooms.cores.is_fenced(),
                Event::Failed { key, violation } => {
                    self.front_ends().queue_failed(key, &violation.to_string())
                }
            }
        }
    }

    fn uplink_is_back(&mut self, spec: sidecore::HostSpec, problem: Option<String>) {
        let mode = self.mode();
        let (network, mut around) = self.rooms.network();
        network.uplink_is_back(spec, problem, mode, &mut around);
    }

    fn queue_is_back(&mut self, core: usize, served: Box<sidecore::Served>, problem: Option<&str>) {
        let device = served.key().device;
        if let Some(base) = self.front_ends().queue_is_back(core, served, problem) {
            self.links(|remote, around| remote.export_is_back(device, (base, problem), around));
        }
    }

    /// Has every queue and host port come back, with nothing in flight, by `until`. Disks that do not
    /// answer in time are drained beforehand, the others being served meanwhile.
    pub(crate) fn bring_all_home(&mut self, until: Nanos) -> Result<(), DrainError> {
        let now = nanos_of(self.rooms.turn.tick());
        if !self.drain.bring(until, now) {
            self.rooms.turn.defects.note("freeze before a drain");
        }
        self.drive_drain();
        if self.drain.is_home() {
            return Ok(());
        }
        let late = self.drain.failed().into_iter().flatten();
        let late = late.filter_map(|number| self.rooms.devices.get(*number));
        Err(not_home(late.map(|device| device.facts().id.clone()).collect()))
    }

    /// Serves all that is here.
    pub(crate) fn send_all_out(&mut self) {
        let now = nanos_of(self.rooms.turn.tick());
        self.drain.thaw(now);
        self.drive_drain();
        self.rooms.cores.flush();
    }

    /// Waits until every sidecore has done what it was told so far.
    pub(crate) fn catch_up(&mut self) -> bool {
        let by = nanos_of(self.rooms.turn.tick()).after(LATE_NS_MAX);
        self.fence_until(by)
    }

    fn drive_drain(&mut self) {
        while let Some(step) = self.drain.step() {
            let is_done = match step {
                Step::FetchSlow(disks, by) => {
                    disks.iter().for_each(|number| self.rooms.ask_for(*number));
                    self.hear_cores_until(by, |rooms| {
                        disks.iter().all(|number| rooms.is_home(*number))
                    })
                }
                Step::Fetch(wave, by) => {
                    self.fetch(wave);
                    self.hear_cores_until(by, |rooms| rooms.has_back(wave))
                }
                // Nobody sends frames.
                Step::Fence(_) if !self.rooms.network.has_switches() => true,
                Step::Fence(by) | Step::CatchUp(by) => self.fence_until(by),
                Step::Look => {
                    let late = late_disks(self.rooms.devices.values());
                    self.drain.are_late(late, nanos_of(self.rooms.turn.tick()));
                    continue;
                }
                Step::AwaitPorts(by) => self.hear_cores_until(by, Rooms::has_late_ports_back),
                Step::Send(wave) => self.send_out(wave),
            };
            self.drain.done(is_done, nanos_of(self.rooms.turn.tick()));
        }
    }

    fn fence_until(&mut self, by: Nanos) -> bool {
        self.rooms.cores.fence();
        self.hear_cores_until(by, |rooms| rooms.cores.are_fenced())
    }

    fn fetch(&mut self, wave: Wave) {
        match wave {
            Wave::Senders => self.rooms.ask_all_for(sends),
            Wave::Receivers => self.rooms.ask_all_for(receives),
            Wave::Ways => self.rooms.network.give_up_uplinks(&mut self.rooms.cores),
            Wave::Rest => self.rooms.ask_all_for(|_, _| true),
            Wave::Links => self.rooms.remote.ask_for_links(&mut self.rooms.cores),
        }
    }

    /// Attaches what is here of a wave; whether there was something.
    fn send_out(&mut self, wave: Wave) -> bool {
        let withheld = self.drain.withheld().cloned().unwrap_or_default();
        let devices = self.rooms.devices.values();
        let devices = devices.filter(|device| !withheld.contains(&device.number()));
        match wave {
            // A remote disk's queue finds its link where it goes.
            Wave::Links => {
                self.rooms.remote.send_links_out(&mut self.rooms.cores);
                true
            }
            Wave::Ways => {
                let (network, mut around) = self.rooms.network();
                network.send_uplinks_out(&mut around)
            }
            Wave::Rest => {
                let devices: Vec<u32> = devices.map(|device| device.number()).collect();
                devices.into_iter().for_each(|number| self.settle_device(number));
                true
            }
            Wave::Senders | Wave::Receivers => {
                let goes = if wave == Wave::Senders { sends } else { receives };
                let queues = devices.flat_map(|device| {
                    let all = (0..device.facts().rings).filter(move |index| goes(device, *index));
                    all.map(|index| (device.number(), index))
                });
                let queues: Vec<(u32, u16)> = queues.collect();
                for (number, index) in &queues {
                    self.attach_if_ready(*number, *index);
                }
                !queues.is_empty()
            }
        }
    }

    /// Hears the sidecores, and nobody else, until it is done or that moment. Whether it is done.
    fn hear_cores_until(&mut self, until: Nanos, is_done: impl Fn(&Rooms) -> bool) -> bool {
        loop {
            self.rooms.turn.tick();
            (0..self.rooms.cores.count()).for_each(|core| self.hear_core(core));
            self.rooms.cores.flush();
            if is_done(&self.rooms) {
                return true;
            }
            let left = until.since(nanos_of(self.rooms.turn.tick()));
            if left == 0 {
                return false;
            }
            let left = Duration::from_nanos(left);
            let most =
                if self.rooms.cores.is_backed_up() { Duration::from_millis(1) } else { left };
            let events = self.rooms.cores.handles().map(Handle::event_fd);
            #[cfg(any(test, feature = "simulated"))]
            if crate::simulated::now().is_some() {
                crate::simulated::go_on(left.min(most));
                continue;
            }
            let mut fds: Vec<PollFd<'_>> =
                events.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let _ = poll(&mut fds, Some(&timespec(left.min(most))));
        }
    }
}

fn sends(device: &Device, index: u16) -> bool {
    device.nic().is_some() && !index.is_multiple_of(2)
}

fn receives(device: &Device, index: u16) -> bool {
    device.nic().is_some() && index.is_multiple_of(2)
}

impl Rooms {
    fn ask_for(&mut self, number: u32) {
        if let Some(device) = self.devices.get_mut(number) {
            device.detach_all(&mut self.turn, &mut self.cores);
        }
    }

    fn ask_all_for(&mut self, which: impl Fn(&Device, u16) -> bool) {
        for device in self.devices.values_mut() {
            for index in device.attached() {
                if which(device, index) {
                    device.detach(index, &mut self.turn, &mut self.cores);
                }
            }
        }
    }

    fn is_home(&self, number: u32) -> bool {
        self.devices.get(number).is_none_or(|device| device.attached().is_empty())
    }

    fn has_back(&self, wave: Wave) -> bool {
        let are_home = |which: fn(&Device, u16) -> bool| {
            let mut devices = self.devices.values();
            devices.all(|device| !device.attached().into_iter().any(|index| which(device, index)))
        };
        match wave {
            Wave::Senders => are_home(sends),
            Wave::Receivers => are_home(receives),
            Wave::Ways => !self.network.is_attached(),
            Wave::Rest => are_home(|_, _| true),
            Wave::Links => self.remote.are_home(),
        }
    }

    fn has_late_ports_back(&self) -> bool {
        let mut nics = self.devices.values().filter(|device| device.nic().is_some());
        nics.all(|nic| nic.leaving_since().is_none()) && !self.network.is_asked_back()
    }
}

/// Disks that were asked for queues and have not given them back. Not those that nobody has asked because
/// others took all of the time; and no NIC, which is never drained beforehand: its receivers are asked for
/// when all senders are back.
fn late_disks<'a>(devices: impl IntoIterator<Item = &'a Device>) -> BTreeSet<u32> {
    let is_late = |device: &&Device| device.disk().is_some() && device.leaving_since().is_some();
    devices.into_iter().filter(is_late).map(|device| device.number()).collect()
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
    use crate::clock::now;
    use crate::devices::device_plan::Facts;
    use crate::devices::kind::Kind;
    use crate::devices::queue::{Owner, Place};
    use crate::disk::DiskParts;
    use crate::disk::bonds::Bonds;
    use crate::network::nic::NicParts;
    use crate::opening::openers::{Openers, Patience};

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
            let parts = DiskParts::open(
                plan.clone(),
                (false, false),
                &bonds,
                &mut openers,
                Patience::First,
            );
            let parts = parts.expect("a disk of nothing");
            Device::new(number, Facts::from(plan), Kind::Disk(parts))
        };
        let of_nic = |plan: &config::plan::NicPlan| {
            Device::new(9, Facts::from(plan), Kind::Nic(NicParts::new(plan.clone(), None)))
        };
        let disks = (0..).zip(&plan.disks).map(of_disk);
        let mut devices: Vec<Device> = disks.chain(plan.nics.iter().map(of_nic)).collect();
        for queue in devices.iter_mut().flat_map(|device| &mut device.queues_mut()[..2]) {
            let owner = Owner::Connection(0);
            assert!(queue.attach(Place { core: 0, owner, by_hand: false }));
        }
        devices
    }

    fn ask(device: &mut Device, queue: usize) {
        let _ = device.queues_mut()[queue].ask(false, now());
    }

    #[test]
    fn only_a_disk_that_was_asked_and_has_not_answered_is_late() {
        let mut devices = devices();
        assert_eq!(devices.len(), 4);
        // The NIC's sender took all of the time, and nobody else was asked.
        ask(&mut devices[3], 1);
        assert_eq!(late_disks(&devices), BTreeSet::new());
        // One queue of a disk is back, the other is not; of the next both are; the third was not asked.
        let _ = devices[0].queues_mut()[0].come_back(0, None, false);
        ask(&mut devices[0], 1);
        for queue in devices[1].queues_mut() {
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
