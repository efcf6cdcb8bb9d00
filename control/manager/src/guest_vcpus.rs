//! The vCPUs of guests with NICs: found by control, followed by the kernel's program, told to the NICs' ports.
//!
//! A guest is the process at the other end of the runner's socket. It is looked at when it comes, soon again
//! while it starts, and then rarely: vCPUs come and go. Its vCPUs are what its VMM says (`qmp`), if a device names where
//! to ask, otherwise threads with their names. Devices of one process share its slots. Not here: what a sidecore does
//! by it (`sidecore`), how it is seen (`runstate`), what is shown of it (`vcpu_views`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Plan;
use config::spec;
use runstate::Slot;
use rustix::net::sockopt::socket_peercred;
use sidecore::{Lanes, PAIRS_MAX, Redirect};
use tracing::{info, warn};
use vcpu_tracker::vcpus::{Process, VCPUS_MAX, Vcpu};
use vcpu_tracker::{Roster, Tracker, Unavailable};

use crate::clock::machine_ns;
use crate::defects::{found, late};
use crate::device::Device;
use crate::kind::Kind;
use crate::manager::Manager;
use crate::network::nic::NicParts;
use crate::qmp::{Inquiries, Said};
use crate::rivals::Rivals;
use crate::state::StateFile;

/// How soon a guest that has come is looked at again; then twice as late each time.
const SCAN_FIRST: Duration = Duration::from_secs(1);
/// How rarely at last: a vCPU that is plugged in is seen so late.
const SCAN_LAST: Duration = Duration::from_secs(32);
/// Guests that are looked at in one turn: each is some files of `/proc`.
const SCANS_PER_TURN: usize = 8;

/// Nobody asked when it could be had.
const NOT_WANTED: &str = "which vCPUs run is not seen, since nobody asked for it when this daemon began: \
    `sidecore upgrade`, or a restart";

/// Whether a NIC of the file, or one that was made by command, goes by which vCPUs run. To be asked while
/// rights to see that are there: nothing is put into the scheduler's way for nobody.
pub fn wants_run_state(plan: &Plan) -> bool {
    let goes_by = |redirect: spec::Redirect| redirect != spec::Redirect::Off;
    let kept = || StateFile::of_a_look(&plan.daemon.state_dir).read().unwrap_or_default();
    plan.nics.iter().any(|nic| goes_by(nic.redirect))
        || kept().nics.iter().any(|nic| goes_by(nic.redirect.unwrap_or_default()))
}

/// What is known of all guests.
pub(crate) struct Guests {
    /// Detached when it is dropped.
    _tracker: Option<Tracker>,
    pub(crate) roster: Option<Roster>,
    /// Why there is none.
    pub(crate) why_not: Option<String>,
    /// VMMs that are asked for their vCPUs.
    pub(crate) inquiries: Inquiries,
    guests: BTreeMap<Process, Guest>,
    pub(crate) rivals: Rivals,
}

/// One process.
#[derive(Default)]
struct Guest {
    vcpus: BTreeMap<Vcpu, Slot>,
    /// Devices whose front-end it is, and what each took for its vCPUs last: one may go by names, another by what the
    /// VMM says, and none takes slots from under the other. Each list is in order.
    devices: BTreeMap<u32, Vec<Vcpu>>,
}

/// What a device knows of its guest.
#[derive(Default)]
pub(crate) struct Follow {
    /// The runner whose process it is.
    connection: Option<u32>,
    process: Option<Process>,
    scan_at: Option<Instant>,
    pause: Duration,
    pub(crate) problem: Option<String>,
    pub(crate) vcpus: Vec<(Vcpu, Slot)>,
}

impl Follow {
    /// It is to be told again, by another plan.
    pub(crate) fn look_again(&mut self, now: Instant) {
        if self.connection.is_some() {
            self.scan_at = Some(now);
        }
    }
}

impl Guests {
    pub(crate) fn new(tracker: Option<Result<Tracker, Unavailable>>) -> Guests {
        let (tracker, why_not) = match tracker {
            Some(Ok(tracker)) => (Some(tracker), None),
            Some(Err(why)) => (None, Some(why.to_string())),
            None => (None, Some(NOT_WANTED.to_string())),
        };
        let roster = tracker.as_ref().map(Tracker::roster);
        Guests {
            _tracker: tracker,
            roster,
            why_not,
            inquiries: Inquiries::default(),
            guests: BTreeMap::new(),
            rivals: Rivals::default(),
        }
    }

    /// Of each guest: the first of its devices, and its vCPUs that are followed.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u32, &BTreeMap<Vcpu, Slot>)> {
        let first = |guest: &Guest| guest.devices.keys().next().copied();
        self.guests.values().filter_map(move |guest| Some((first(guest)?, &guest.vcpus)))
    }

    /// A device's guest is that process, whose vCPUs now are `looked`. Gives those that have slots, with them.
    fn follow(
        &mut self,
        process: Process,
        number: u32,
        looked: &[Vcpu],
        now_ns: u64,
    ) -> Vec<(Vcpu, Slot)> {
        let Some(roster) = &mut self.roster else { return Vec::new() };
        let guest = self.guests.entry(process).or_default();
        guest.devices.insert(number, looked.to_vec());
        let gone = guest.take_gone();
        unbind(roster, &self.guests, &gone, now_ns);
        let guest = self.guests.entry(process).or_default();
        for vcpu in looked {
            // Devices that go by different words of one VMM have no more slots together than one.
            let has_room = guest.vcpus.len() < VCPUS_MAX || guest.vcpus.contains_key(vcpu);
            if has_room && let Ok(slot) = roster.bind(vcpu.tid, now_ns) {
                guest.vcpus.insert(*vcpu, slot);
            }
        }
        let slot = |vcpu: &Vcpu| Some((*vcpu, *guest.vcpus.get(vcpu)?));
        looked.iter().filter_map(slot).collect()
    }

    /// A device has that process's guest no more.
    fn leave(&mut self, process: Process, number: u32, now_ns: u64) {
        let Guests { guests, roster: Some(roster), .. } = self else { return };
        // Nothing was followed yet of one whose VMM has not said.
        let Some(guest) = guests.get_mut(&process) else { return };
        guest.devices.remove(&number);
        let gone = guest.take_gone();
        let is_over = guest.devices.is_empty();
        unbind(roster, guests, &gone, now_ns);
        if is_over {
            guests.remove(&process);
        }
    }
}

impl Guest {
    /// Takes those out that no device takes for its vCPUs any more.
    fn take_gone(&mut self) -> Vec<Vcpu> {
        let Guest { vcpus, devices, .. } = self;
        let is_there = |vcpu: &Vcpu| devices.values().any(|its| its.binary_search(vcpu).is_ok());
        vcpus.extract_if(.., |vcpu, _| !is_there(vcpu)).map(|(vcpu, _)| vcpu).collect()
    }
}

/// The vCPUs of a process as they are now: those that its VMM has said, if it was asked and they are its own, otherwise
/// threads with their names. And what is wrong, though some may be known.
fn look(root: &Path, process: Process, qmp: Option<(&str, &Said)>) -> (Vec<Vcpu>, Option<String>) {
    let by_names = || process.vcpus(root).map_err(|missing| missing.to_string());
    let Some((path, said)) = qmp else {
        return by_names().map_or_else(|why| (Vec::new(), Some(why)), |found| (found, None));
    };
    let believed = match said {
        Ok(said) => process.among(root, said).map_err(|missing| missing.to_string()),
        Err(why) => Err(why.to_string()),
    };
    let why = match believed {
        Ok(found) => {
            let all = said.as_ref().map_or(0, Vec::len);
            let some = || {
                format!("of {all} vCPUs that QMP at {path} names {} are its process's", found.len())
            };
            let why = (found.len() < all).then(some);
            return (found, why);
        }
        Err(why) => format!("QMP at {path} does not say which threads are vCPUs: {why}"),
    };
    match by_names() {
        Ok(found) => (found, Some(format!("{why}; until it does, names of threads say it"))),
        Err(names) => (Vec::new(), Some(format!("{why}; and {names}"))),
    }
}

/// These threads are followed no longer, but for those whose numbers are another guest's vCPUs by now.
fn unbind(roster: &mut Roster, guests: &BTreeMap<Process, Guest>, gone: &[Vcpu], now_ns: u64) {
    for Vcpu { tid, .. } in gone {
        let has = |guest: &Guest| guest.vcpus.keys().any(|vcpu| vcpu.tid == *tid);
        if !guests.values().any(has) {
            roster.unbind(*tid, now_ns);
        }
    }
}

impl Device {
    /// Where its VMM says which threads are vCPUs.
    pub(crate) fn qmp(&self) -> Option<&str> {
        self.kind.nic()?.plan.qmp.as_deref()
    }

    /// When the vCPUs of its guest are looked at again.
    pub(crate) fn scans_at(&self) -> Option<Instant> {
        self.follow.scan_at
    }
}

impl Manager {
    /// Looks at the guests that came, went, or were not looked at for long.
    pub(crate) fn follow_guests(&mut self, now: Instant) {
        if self.rooms.guests.roster.is_none() {
            return;
        }
        let is_due = |device: &&Device| {
            let follow = &device.follow;
            device.kind.nic().is_some()
                && (follow.connection != device.runner
                    || follow.scan_at.is_some_and(|at| at <= now))
        };
        let due = self.rooms.devices.values().filter(is_due);
        // Who was never looked at comes first.
        let mut due: Vec<(bool, u32)> =
            due.map(|device| (device.follow.connection == device.runner, device.number)).collect();
        due.sort_unstable();
        for (at, (_, number)) in due.into_iter().enumerate() {
            if at < SCANS_PER_TURN {
                self.scan_guest(number, now);
            } else if let Some(device) = self.rooms.devices.get_mut(number) {
                // In the next turn, which comes at once.
                device.follow.scan_at = Some(now);
            }
        }
    }

    /// A device goes: nobody follows for it.
    pub(crate) fn forget_guest(&mut self, number: u32) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device that has its guest no more");
        let process = std::mem::take(&mut *device.follow).process;
        if let Some(process) = process {
            self.rooms.guests.leave(process, number, machine_ns(self.rooms.turn.now()));
        }
    }

    fn scan_guest(&mut self, number: u32, now: Instant) {
        let device = self.rooms.devices.get(number);
        let device = found!(self.rooms.turn.defects, device, "device whose guest is looked at");
        let runner = device.runner;
        let is_new = device.follow.connection != runner;
        if is_new {
            self.forget_guest(number);
        }
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose guest is looked at");
        let Some(connection) = runner.and_then(|id| device.connections.get(&id)) else {
            return self.followed(number, Follow { connection: runner, ..Follow::default() });
        };
        let pause = (device.follow.pause * 2).clamp(SCAN_FIRST, SCAN_LAST);
        let peer = || {
            let peer = socket_peercred(connection.frames.socket()).map_err(|e| e.to_string())?;
            let (pid, uid) = (peer.pid.as_raw_nonzero().get() as u32, peer.uid.as_raw());
            Process::of(Path::new("/"), pid, uid).map_err(|missing| missing.to_string())
        };
        let process = device.follow.process.map_or_else(peer, Ok);
        let follow =
            Follow { connection: runner, scan_at: Some(now + pause), pause, ..Follow::default() };
        match process {
            Ok(process) if device.qmp().is_some() && is_new => {
                // What frames went by was another front-end's.
                self.followed(number, Follow { process: Some(process), ..follow });
                self.ask_vmm(number);
            }
            Ok(process) if device.qmp().is_some() => {
                // Until its VMM has answered, it is as it was.
                let process = Some(process);
                let before = &mut *device.follow;
                (before.connection, before.process) = (follow.connection, process);
                (before.scan_at, before.pause) = (follow.scan_at, follow.pause);
                self.ask_vmm(number);
            }
            Ok(process) => {
                let follow = Follow { process: Some(process), ..follow };
                self.follow_process(number, follow, None);
            }
            Err(problem) => {
                self.followed(number, Follow { problem: Some(problem), ..follow });
            }
        }
    }

    /// What the VMM of a device that was to be asked has said.
    pub(crate) fn vmm_has_said(&mut self, number: u32, path: &str, said: &Said, now: Instant) {
        let Some(device) = self.rooms.devices.get_mut(number) else { return late("device") };
        let before = &device.follow;
        // Another front-end is there by now: that one is looked at next, and its VMM asked.
        if before.process.is_none() || before.connection != device.runner {
            return;
        }
        if device.qmp() != Some(path) {
            return device.follow.look_again(self.rooms.turn.now());
        }
        let Follow { connection, process, scan_at, pause, .. } = **before;
        let was_wrong = before.problem.is_some();
        let follow = Follow { connection, process, scan_at, pause, ..Follow::default() };
        self.follow_process(number, follow, Some((path, said)));
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose VMM has said");
        if let Some(problem) = &device.follow.problem
            && !was_wrong
            && device.log.allows(now)
        {
            warn!(device = device.facts.id, "{problem}");
        }
    }

    fn follow_process(&mut self, number: u32, mut follow: Follow, qmp: Option<(&str, &Said)>) {
        if let Some(process) = follow.process {
            // Of a process that is gone nobody is followed any more, though its descriptor may live on.
            let (looked, problem) = look(Path::new("/"), process, qmp);
            follow.vcpus = self.rooms.guests.follow(
                process,
                number,
                &looked,
                machine_ns(self.rooms.turn.now()),
            );
            follow.problem = problem;
        }
        self.followed(number, follow);
    }

    /// That is what a device knows of its guest from now on: its port is told.
    fn followed(&mut self, number: u32, follow: Follow) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose guest is followed");
        let count = follow.vcpus.len();
        if follow.vcpus != device.follow.vcpus && count > 0 && device.may_log(self.rooms.turn.now())
        {
            info!(device = device.facts.id, vcpus = count, "its guest's vCPUs are followed");
        }
        *device.follow = follow;
        self.set_lanes(number);
    }

    /// Has frames to a NIC go by what its guest's vCPUs do, if they are to.
    fn set_lanes(&mut self, number: u32) {
        let Some(Device { kind: Kind::Nic(nic), follow, .. }) = self.rooms.devices.get_mut(number)
        else {
            return;
        };
        let roster = self.rooms.guests.roster.as_ref();
        let lanes = roster.and_then(|roster| lanes_of(nic, &follow.vcpus, roster));
        let slots =
            |lanes: &Option<Arc<Lanes>>| lanes.as_ref().map(|lanes| (lanes.slots, lanes.redirect));
        let has_changed = slots(&lanes) != slots(&nic.lanes);
        nic.lanes = lanes;
        if has_changed {
            self.say_port(number);
        }
    }
}

/// The vCPUs that the NIC's queues call, if frames go by what these do.
fn lanes_of(nic: &NicParts, vcpus: &[(Vcpu, Slot)], roster: &Roster) -> Option<Arc<Lanes>> {
    let redirect = match nic.plan.redirect {
        spec::Redirect::Auto => Redirect::Waiting,
        spec::Redirect::Always => Redirect::Always,
        spec::Redirect::Off => return None,
    };
    if vcpus.is_empty() || nic.plan.queues < 2 {
        return None;
    }
    let slots: [Option<Slot>; PAIRS_MAX] = std::array::from_fn(|pair| {
        let index = nic.plan.vcpus.get(pair).copied().unwrap_or(pair as u16);
        vcpus.iter().find(|(vcpu, _)| vcpu.index == index).map(|(_, slot)| *slot)
    });
    Some(Arc::new(Lanes { table: Arc::clone(roster.table()), slots, redirect }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use runstate::Table;

    use super::*;

    fn process(root: &Path, pid: u32) -> Process {
        let folder = root.join("proc").join(pid.to_string());
        fs::create_dir_all(&folder).expect("a folder");
        let stat = format!("{pid} (vmm) S {}7 0\n", "0 ".repeat(18));
        fs::write(folder.join("stat"), stat).expect("a file");
        let uid = fs::metadata(&folder).expect("it is there").uid();
        Process::of(root, pid, uid).expect("it is there")
    }

    /// A guest ends, and before that is heard one of its threads' numbers is another guest's vCPU.
    #[test]
    fn a_number_that_is_another_guests_by_now_stays_followed() {
        let root = tempfile::tempdir().expect("a folder");
        let mut roster = Roster::simulated(Arc::new(Table::simulated()));
        let vcpu = Vcpu { index: 0, tid: 50 };
        let slot = roster.bind(vcpu.tid, 0).expect("room");
        let (old, new) = (process(root.path(), 1), process(root.path(), 2));
        let guest = |device| Guest {
            vcpus: BTreeMap::from([(vcpu, slot)]),
            devices: BTreeMap::from([(device, vec![vcpu])]),
        };
        let guests = BTreeMap::from([(old, guest(1)), (new, guest(2))]);
        let mut guests = Guests { guests, roster: Some(roster), ..Guests::new(None) };
        let followed = |guests: &Guests| guests.roster.as_ref().map(Roster::len);
        guests.leave(old, 1, 0);
        assert_eq!(followed(&guests), Some(1));
        guests.leave(new, 2, 0);
        assert_eq!(followed(&guests), Some(0));
    }

    /// One goes by names and finds none, another by what the VMM says; and a VMM says something else each time.
    #[test]
    fn devices_of_one_guest_take_no_slots_from_each_other_and_have_those_of_one() {
        let root = tempfile::tempdir().expect("a folder");
        let roster = Some(Roster::simulated(Arc::new(Table::simulated())));
        let mut guests = Guests { roster, ..Guests::new(None) };
        let vmm = process(root.path(), 1);
        let said = |first: u16| -> Vec<Vcpu> {
            let vcpu = |index| Vcpu { index, tid: 1000 + u32::from(first + index) };
            (0..200).map(vcpu).collect()
        };
        let found = guests.follow(vmm, 1, &said(0), 0);
        assert!(guests.follow(vmm, 2, &[], 0).is_empty());
        assert_eq!(guests.follow(vmm, 1, &said(0), 0), found, "each has its slot still");
        guests.follow(vmm, 2, &said(200), 0);
        let followed = |guests: &Guests| guests.roster.as_ref().map(Roster::len);
        assert!(followed(&guests) <= Some(VCPUS_MAX), "{:?}", followed(&guests));
        guests.leave(vmm, 1, 0);
        assert!(guests.follow(vmm, 2, &said(200), 0).iter().all(|(vcpu, _)| vcpu.tid >= 1200));
        guests.leave(vmm, 2, 0);
        assert_eq!(followed(&guests), Some(0));
    }
}
