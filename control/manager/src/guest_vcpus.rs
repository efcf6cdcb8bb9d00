//! The vCPUs of guests: found by control, followed by the kernel's program, told to the ports of their NICs and to
//! their queues.
//!
//! A guest is the process at the other end of the runner's socket. It is looked at when it comes, soon again
//! while it starts, and then rarely: vCPUs come and go. Devices of one process share its slots. Not here: what a
//! sidecore does by it (`sidecore`), how it is seen (`runstate`), what is shown of it (`vcpu_views`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::Plan;
use config::spec;
use runstate::vcpus::{Process, VCPUS_MAX, Vcpu};
use runstate::{Roster, Slot, Table, Tracker, Unavailable, Vm};
use rustix::net::sockopt::socket_peercred;
use sidecore::{Command, Lanes, PAIRS_MAX, QueueKey, Redirect, VmLine};
use tracing::info;

use crate::device::Device;
use crate::kind::Kind;
use crate::manager::{Manager, machine_ns, now};
use crate::nic::NicParts;
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

/// Whether sidecores, a NIC of the file, or one that was made by command, go by which vCPUs run. To be asked while
/// rights to see that are there: nothing is put into the scheduler's way for nobody.
pub fn wants_run_state(plan: &Plan) -> bool {
    let goes_by = |redirect: spec::Redirect| redirect != spec::Redirect::Off;
    let kept = || StateFile::in_folder(&plan.daemon.state_dir).read().unwrap_or_default();
    plan.sidecores.skip_sleeping
        || plan.nics.iter().any(|nic| goes_by(nic.redirect))
        || kept().nics.iter().any(|nic| goes_by(nic.redirect.unwrap_or_default()))
}

/// What is known of all guests.
pub(crate) struct Guests {
    /// Detached when it is dropped.
    _tracker: Option<Tracker>,
    pub(crate) roster: Option<Roster>,
    /// Why there is none.
    pub(crate) why_not: Option<String>,
    guests: BTreeMap<Process, Guest>,
    pub(crate) rivals: Rivals,
}

/// One process.
#[derive(Default)]
struct Guest {
    vcpus: BTreeMap<Vcpu, Slot>,
    /// Where they are counted.
    vm: Option<Vm>,
    /// Devices whose front-end it is.
    devices: BTreeSet<u32>,
}

/// What a device knows of its guest.
#[derive(Default)]
pub(crate) struct Follow {
    /// The runner whose process it is.
    link: Option<u32>,
    process: Option<Process>,
    scan_at: Option<Instant>,
    pause: Duration,
    pub(crate) problem: Option<String>,
    pub(crate) vcpus: Vec<(Vcpu, Slot)>,
    /// All of them are counted there.
    vm: Option<Vm>,
    table: Option<Arc<Table>>,
}

/// The vCPUs of a process, as they were found.
#[derive(Default)]
struct Found {
    vcpus: Vec<(Vcpu, Slot)>,
    vm: Option<Vm>,
}

impl Follow {
    /// It is to be told again, by another plan.
    pub(crate) fn look_again(&mut self) {
        if self.link.is_some() {
            self.scan_at = Some(now());
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
            guests: BTreeMap::new(),
            rivals: Rivals::default(),
        }
    }

    /// Of each guest: its devices, and its vCPUs that are followed.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&BTreeSet<u32>, &BTreeMap<Vcpu, Slot>)> {
        self.guests.values().map(|guest| (&guest.devices, &guest.vcpus))
    }

    /// The vCPUs of a process as they are now, each with its slot if there is one.
    fn look(&mut self, process: Process, number: u32, now_ns: u64) -> Result<Found, String> {
        let looked = process.vcpus(Path::new("/")).map_err(|missing| missing.to_string());
        let Some(roster) = &mut self.roster else { return looked.map(|_| Found::default()) };
        let guest = self.guests.entry(process).or_default();
        guest.devices.insert(number);
        // Of a process that is gone nobody is followed any more, though its descriptor may live on.
        let found = looked.as_ref().map_or(&[][..], Vec::as_slice);
        let is_gone = |(vcpu, _): &(&Vcpu, &Slot)| !found.contains(vcpu);
        let gone = guest.vcpus.iter().filter(is_gone).map(|(vcpu, slot)| (*vcpu, *slot));
        let gone: Vec<(Vcpu, Slot)> = gone.collect();
        guest.vcpus.retain(|vcpu, _| found.contains(vcpu));
        unbind(roster, &self.guests, &gone, now_ns);
        let found = looked?;
        let guest = self.guests.entry(process).or_default();
        roster.settle(now_ns);
        guest.vm = guest.vm.or_else(|| roster.add_vm(now_ns).ok());
        for vcpu in &found {
            if let Ok(slot) = roster.bind(vcpu.tid, guest.vm, now_ns) {
                guest.vcpus.insert(*vcpu, slot);
            }
        }
        // One that is not counted could run unseen.
        let has_all = |vm: &Vm| found.iter().all(|vcpu| roster.is_of(vcpu.tid, *vm));
        let are_all = (1..VCPUS_MAX).contains(&found.len());
        let vm = guest.vm.filter(|vm| are_all && has_all(vm));
        Ok(Found { vcpus: guest.vcpus.iter().map(|(vcpu, slot)| (*vcpu, *slot)).collect(), vm })
    }

    /// A device has that process's guest no more.
    fn leave(&mut self, process: Process, number: u32, now_ns: u64) {
        let Some(guest) = self.guests.get_mut(&process) else { return };
        guest.devices.remove(&number);
        if !guest.devices.is_empty() {
            return;
        }
        if let (Some(guest), Some(roster)) = (self.guests.remove(&process), &mut self.roster) {
            let gone: Vec<(Vcpu, Slot)> = guest.vcpus.into_iter().collect();
            unbind(roster, &self.guests, &gone, now_ns);
            guest.vm.into_iter().for_each(|vm| roster.remove_vm(vm, now_ns));
        }
    }
}

/// These threads are followed no longer, but for those whose slots another guest has: where no VM has a line, a number that
/// is its vCPU's by now keeps its slot.
fn unbind(
    roster: &mut Roster,
    guests: &BTreeMap<Process, Guest>,
    gone: &[(Vcpu, Slot)],
    now_ns: u64,
) {
    for (Vcpu { tid, .. }, slot) in gone {
        let has =
            |guest: &Guest| guest.vcpus.iter().any(|(vcpu, its)| (vcpu.tid, its) == (*tid, slot));
        if !guests.values().any(has) {
            roster.unbind(*tid, *slot, now_ns);
        }
    }
}

impl Device {
    /// When the vCPUs of its guest are looked at again.
    pub(crate) fn scans_at(&self) -> Option<Instant> {
        self.follow.scan_at
    }

    /// Where the vCPUs of its guest are counted, all of them, if its queues go by it.
    pub(crate) fn vm_line(&self) -> Option<VmLine> {
        let Follow { link, vm, table, .. } = &*self.follow;
        let (vm, table) = ((*vm)?, table.clone()?);
        (*link == self.runner).then_some(VmLine { table, vm })
    }
}

impl Manager {
    /// Looks at the guests that came, went, or were not looked at for long.
    pub(crate) fn follow_guests(&mut self, now: Instant) {
        if self.guests.roster.is_none() {
            return;
        }
        let skips = self.plan.sidecores.skip_sleeping;
        let is_due = |device: &&Device| {
            let follow = &device.follow;
            let is_followed = skips || device.kind.nic().is_some();
            is_followed
                && (follow.link != device.runner || follow.scan_at.is_some_and(|at| at <= now))
        };
        let due = self.devices.values().filter(is_due);
        // Who was never looked at comes first.
        let mut due: Vec<(bool, u32)> =
            due.map(|device| (device.follow.link == device.runner, device.number)).collect();
        due.sort_unstable();
        for (at, (_, number)) in due.into_iter().enumerate() {
            if at < SCANS_PER_TURN {
                self.scan_guest(number, now);
            } else if let Some(device) = self.devices.get_mut(&number) {
                // In the next turn, which comes at once.
                device.follow.scan_at = Some(now);
            }
        }
    }

    /// A device goes: nobody follows for it.
    pub(crate) fn forget_guest(&mut self, number: u32) {
        let Some(device) = self.devices.get_mut(&number) else { return };
        let process = std::mem::take(&mut *device.follow).process;
        if let Some(process) = process {
            self.guests.leave(process, number, machine_ns(now()));
        }
    }

    fn scan_guest(&mut self, number: u32, now: Instant) {
        let now_ns = machine_ns(now);
        let Some(device) = self.devices.get(&number) else { return };
        let runner = device.runner;
        if device.follow.link != runner {
            self.forget_guest(number);
        }
        let Some(device) = self.devices.get_mut(&number) else { return };
        let link = runner.and_then(|id| device.links.get(&id));
        let mut follow = Follow { link: runner, ..Follow::default() };
        if let Some(link) = link {
            let pause = (device.follow.pause * 2).clamp(SCAN_FIRST, SCAN_LAST);
            (follow.pause, follow.scan_at) = (pause, Some(now + pause));
            let peer = || {
                let peer = socket_peercred(link.connection.socket()).map_err(|e| e.to_string())?;
                let (pid, uid) = (peer.pid.as_raw_nonzero().get() as u32, peer.uid.as_raw());
                Process::of(Path::new("/"), pid, uid).map_err(|missing| missing.to_string())
            };
            let process = device.follow.process.map_or_else(peer, Ok);
            let looked = process.and_then(|process| {
                follow.process = Some(process);
                self.guests.look(process, number, now_ns)
            });
            match looked {
                Ok(found) => (follow.vcpus, follow.vm) = (found.vcpus, found.vm),
                Err(problem) => follow.problem = Some(problem),
            }
        }
        if self.plan.sidecores.skip_sleeping {
            follow.table = self.guests.roster.as_ref().map(|roster| Arc::clone(roster.table()));
        }
        let count = follow.vcpus.len();
        if follow.vcpus != device.follow.vcpus && count > 0 {
            info!(device = device.facts.id, vcpus = count, "its guest's vCPUs are followed");
        }
        let before = device.vm_line().map(|line| line.vm);
        *device.follow = follow;
        let line = device.vm_line();
        if line.as_ref().map(|line| line.vm) != before {
            let queues: Vec<(u16, QueueKey)> =
                device.attached().into_iter().map(|index| (index, device.key(index))).collect();
            for (index, key) in queues {
                self.tell(number, index, Command::SetVm(key, line.clone()));
            }
        }
        self.set_lanes(number);
    }

    /// Has frames to a NIC go by what its guest's vCPUs do, if they are to.
    fn set_lanes(&mut self, number: u32) {
        let Some(Device { kind: Kind::Nic(nic), follow, .. }) = self.devices.get_mut(&number)
        else {
            return;
        };
        let roster = self.guests.roster.as_ref();
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
        let slot = roster.bind(vcpu.tid, None, 0).expect("room");
        let (old, new) = (process(root.path(), 1), process(root.path(), 2));
        let guest = |device| Guest {
            vcpus: BTreeMap::from([(vcpu, slot)]),
            vm: None,
            devices: BTreeSet::from([device]),
        };
        let guests = BTreeMap::from([(old, guest(1)), (new, guest(2))]);
        let mut guests = Guests {
            _tracker: None,
            roster: Some(roster),
            why_not: None,
            guests,
            rivals: Rivals::default(),
        };
        let followed = |guests: &Guests| guests.roster.as_ref().map(Roster::len);
        guests.leave(old, 1, 0);
        assert_eq!(followed(&guests), Some(1));
        guests.leave(new, 2, 0);
        assert_eq!(followed(&guests), Some(0));
    }
}
