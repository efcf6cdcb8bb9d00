//! The vCPUs of guests with NICs: found by control, followed by the kernel's program, told to the NICs' ports.
//!
//! A guest is the process at the other end of the runner's socket. It is looked at when it comes, soon again
//! while it starts, and then rarely: vCPUs come and go. Its vCPUs are what its VMM says (`inquiries`), if a device names
//! where to ask, otherwise threads with their names. Devices of one process share its rows. Not here: what a sidecore
//! does by it (`sidecore`), how it is seen (`runstate`).
//!
//! | file | what |
//! |---|---|
//! | `follow` | what a device knows of its guest |
//! | `inquiries`, `dialogue` | VMMs that are asked, and what is said there |
//! | `rivals` | guests on sidecores' processors |
//! | `views` | what the API shows |

pub(crate) mod dialogue;
pub(crate) mod follow;
mod inquiries;
mod rivals;
mod views;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use config::Plan;
use config::spec;
use runstate::Row;
use rustix::net::sockopt::socket_peercred;
use sidecore::{Lanes, PAIRS_MAX, Redirect};
use tracing::{info, warn};
use vcpu_tracker::vcpus::{Missing, Process, VCPUS_MAX, Vcpu};
use vcpu_tracker::{Roster, Tracker, Unavailable};

use crate::bounds::Bounds;
use crate::clock::machine_ns;
use crate::defects::late;
use crate::devices::Devices;
use crate::devices::connection::Connection;
use crate::devices::device::Device;
use crate::guests::inquiries::{Inquiries, Said};
use crate::guests::rivals::{Rival, Rivals};
use crate::network::nic::NicParts;
use crate::poll::Poll;
use crate::state::StateFile;
use crate::turn::Turn;

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
    roster: Option<Roster>,
    /// Why there is none.
    why_not: Option<String>,
    /// The sidecores' processors.
    cpus: Vec<u32>,
    /// VMMs that are asked for their vCPUs.
    inquiries: Inquiries,
    guests: BTreeMap<Process, Guest>,
    rivals: Rivals,
}

/// What is reached beside them when guests are looked at.
pub(crate) struct Around<'a> {
    pub(crate) turn: &'a mut Turn,
    pub(crate) devices: &'a mut Devices,
    pub(crate) poll: &'a Poll,
    pub(crate) bounds: &'a Bounds,
}

/// One process.
#[derive(Default)]
struct Guest {
    vcpus: BTreeMap<Vcpu, Row>,
    /// Devices whose front-end it is, and what each took for its vCPUs last: one may go by names, another by what the
    /// VMM says, and none takes rows from under the other. Each list is in order.
    devices: BTreeMap<u32, Vec<Vcpu>>,
}

impl Guests {
    /// None yet, beside sidecores on those processors.
    pub(crate) fn new(tracker: Option<Result<Tracker, Unavailable>>, cpus: Vec<u32>) -> Guests {
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
            cpus,
            inquiries: Inquiries::default(),
            guests: BTreeMap::new(),
            rivals: Rivals::default(),
        }
    }

    /// When a VMM is to be asked, or has been asked for too long.
    pub(crate) fn due_at(&self, now: Instant) -> Option<Instant> {
        self.inquiries.due_at(now)
    }

    /// What a sidecore lost to others on its processor, thousandths of the time; nothing, where that is not known.
    pub(crate) fn lost(&self, core: usize) -> Option<u32> {
        self.rivals.lost(core)
    }

    /// Looks at the guests that came, went, or were not looked at for long. Gives the NICs whose ports are to be told.
    pub(crate) fn look(&mut self, turn: &mut Turn, devices: &mut Devices) -> Vec<u32> {
        if self.roster.is_none() {
            return Vec::new();
        }
        let now = turn.now();
        let is_due = |device: &&Device| {
            device.nic().is_some() && device.follow().is_due(device.runner(), now)
        };
        let due = devices.values().filter(is_due);
        // Who was never looked at comes first.
        let mut due: Vec<(bool, u32)> =
            due.map(|device| (device.follow().is_of(device.runner()), device.number())).collect();
        due.sort_unstable();
        let mut told = Vec::new();
        for (at, (_, number)) in due.into_iter().enumerate() {
            let Some(device) = devices.get_mut(number) else {
                turn.defects.note("device whose guest is looked at");
                continue;
            };
            if at >= SCANS_PER_TURN {
                device.follow_mut().put_off(now);
            } else if self.scan(device, now) {
                told.push(number);
            }
        }
        told
    }

    /// Asks VMMs, and hears of those that were asked before: the NICs whose ports are to be told.
    pub(crate) fn inquire(&mut self, around: &mut Around<'_>) -> Vec<u32> {
        let now = around.turn.now();
        self.inquiries.end_late(around);
        let mut told = Vec::new();
        for _ in 0..inquiries::TOLD_PER_TURN {
            let Some((number, said)) = self.inquiries.take_said() else { break };
            let Some(device) = around.devices.get_mut(number) else {
                late("device");
                continue;
            };
            if self.vmm_has_said(device, &said, now) {
                told.push(number);
            }
        }
        self.inquiries.begin(around);
        told
    }

    /// A VMM has something to say.
    pub(crate) fn hear(&mut self, inquiry: u32, around: &mut Around<'_>) {
        self.inquiries.hear(inquiry, around);
    }

    /// A device goes, or its front-end: nobody is followed for it.
    pub(crate) fn forget(&mut self, device: &mut Device, now: Instant) {
        let process = std::mem::take(device.follow_mut()).process();
        if let Some(process) = process {
            self.leave(process, device.number(), machine_ns(now));
        }
    }

    /// Sees what sidecores lose to others on their processors, and says once of each guest that it is there.
    pub(crate) fn see_rivals(&mut self, turn: &mut Turn, devices: &mut Devices) {
        let now_ns = machine_ns(turn.now());
        let time_ns = self.rivals.weigh_threads(self.cpus.len(), now_ns);
        let vcpus = self.all_vcpus();
        let Some(roster) = &self.roster else { return };
        let times = (now_ns, time_ns);
        let rivals = self.rivals.look(roster.table(), vcpus.into_iter(), &self.cpus, times);
        for Rival { device, vcpu, core } in rivals {
            let Some(device) = devices.get_mut(device) else {
                turn.defects.note("device of a guest that is followed");
                continue;
            };
            if !device.may_log(turn.now()) {
                continue;
            }
            warn!(
                device = device.facts().id,
                vcpu,
                sidecore = core,
                cpu = self.cpus.get(core).copied(),
                "its guest runs on a sidecore's processor, so each waits for the other: keep the guest's vCPUs off it \
                 (libvirt: <vcpupin>; a cpuset; or isolcpus)"
            );
        }
        self.rivals.forget_gone(|device| devices.get(device).is_some());
    }

    /// The vCPUs of all guests, once each, by the first of their devices.
    fn all_vcpus(&self) -> Vec<(u32, u16, Row)> {
        let of = |guest: &Guest| {
            let first = guest.devices.keys().next().copied();
            let of = |device| guest.vcpus.iter().map(move |(vcpu, row)| (device, vcpu.index, *row));
            first.map(of).into_iter().flatten().collect::<Vec<_>>()
        };
        self.guests.values().flat_map(of).collect()
    }

    /// Looks at the guest of a NIC. Gives whether frames to it go by something else now.
    fn scan(&mut self, device: &mut Device, now: Instant) -> bool {
        let is_new = !device.follow().is_of(device.runner());
        if is_new {
            self.forget(device, now);
        }
        let runner = device.runner().and_then(|id| Some((id, device.connection(id)?)));
        let Some((id, connection)) = runner else {
            *device.follow_mut() = follow::Follow::default();
            return self.set_lanes(device);
        };
        let process = device.follow().process().map_or_else(|| process_of(connection), Ok);
        device.follow_mut().looked(now);
        match process {
            Ok(process) => {
                device.follow_mut().is_guest(id, process);
                if qmp_of(device).is_none() {
                    return self.follow_process(device, process, None, now);
                }
                self.inquiries.ask(device.number());
                // What frames went by was another front-end's; otherwise, until its VMM has answered, it is as it was.
                is_new && self.set_lanes(device)
            }
            Err(problem) => {
                device.follow_mut().is_lost(id, problem.to_string());
                self.set_lanes(device)
            }
        }
    }

    /// What the VMM of a device that was to be asked has said, and at which socket. Gives whether frames to it go by
    /// something else now.
    fn vmm_has_said(
        &mut self,
        device: &mut Device,
        (path, said): &(String, Said),
        now: Instant,
    ) -> bool {
        // Another front-end is there by now: that one is looked at next, and its VMM asked.
        let Some(process) =
            device.follow().process().filter(|_| device.follow().is_of(device.runner()))
        else {
            return false;
        };
        if qmp_of(device) != Some(path) {
            device.follow_mut().look_again(now);
            return false;
        }
        let was_wrong = device.follow().problem().is_some();
        let has_changed = self.follow_process(device, process, Some((path, said)), now);
        if let Some(problem) = device.follow().problem().map(str::to_string)
            && !was_wrong
            && device.may_log(now)
        {
            warn!(device = device.facts().id, "{problem}");
        }
        has_changed
    }

    /// Has the vCPUs of a device's guest followed. Of a process that is gone nobody is any more, though its descriptor
    /// may live on.
    fn follow_process(
        &mut self,
        device: &mut Device,
        process: Process,
        qmp: Option<(&str, &Said)>,
        now: Instant,
    ) -> bool {
        let (looked, problem) = look(Path::new("/"), process, qmp);
        let vcpus = self.follow(process, device.number(), &looked, machine_ns(now));
        let count = vcpus.len();
        if device.follow_mut().follow(vcpus, problem) && device.may_log(now) {
            info!(device = device.facts().id, vcpus = count, "its guest's vCPUs are followed");
        }
        self.set_lanes(device)
    }

    /// Has frames to a NIC go by what its guest's vCPUs do, if they are to. Gives whether that is news.
    fn set_lanes(&self, device: &mut Device) -> bool {
        let Some((nic, follow)) = device.nic_and_follow() else { return false };
        let roster = self.roster.as_ref();
        let lanes = roster.and_then(|roster| lanes_of(nic, follow.vcpus(), roster));
        nic.set_lanes(lanes)
    }

    /// A device's guest is that process, whose vCPUs now are `looked`. Gives those that have rows, with them.
    fn follow(
        &mut self,
        process: Process,
        number: u32,
        looked: &[Vcpu],
        now_ns: u64,
    ) -> Vec<(Vcpu, Row)> {
        let Some(roster) = &mut self.roster else { return Vec::new() };
        let guest = self.guests.entry(process).or_default();
        guest.devices.insert(number, looked.to_vec());
        let gone = guest.take_gone();
        unbind(roster, &self.guests, &gone, now_ns);
        let guest = self.guests.entry(process).or_default();
        for vcpu in looked {
            // Devices that go by different words of one VMM have no more rows together than one.
            let has_room = guest.vcpus.len() < VCPUS_MAX || guest.vcpus.contains_key(vcpu);
            if has_room && let Ok(row) = roster.bind(vcpu.tid, now_ns) {
                guest.vcpus.insert(*vcpu, row);
            }
        }
        let row = |vcpu: &Vcpu| Some((*vcpu, *guest.vcpus.get(vcpu)?));
        looked.iter().filter_map(row).collect()
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

/// Where the VMM of a NIC says which threads are vCPUs.
fn qmp_of(device: &Device) -> Option<&str> {
    device.nic()?.plan().qmp.as_deref()
}

/// Why the process of a front-end is not found.
#[derive(Debug, thiserror::Error)]
enum NoProcess {
    /// Its socket does not say.
    #[error(transparent)]
    Peer(#[from] rustix::io::Errno),
    /// There is none.
    #[error("{0}")]
    Missing(Missing),
}

/// The process at the other end of a front-end's socket.
fn process_of(connection: &Connection) -> Result<Process, NoProcess> {
    let peer = socket_peercred(connection.frames.socket())?;
    let (pid, uid) = (peer.pid.as_raw_nonzero().get() as u32, peer.uid.as_raw());
    Process::of(Path::new("/"), pid, uid).map_err(NoProcess::Missing)
}

/// The vCPUs that the NIC's queues call, if frames go by what these do.
fn lanes_of(nic: &NicParts, vcpus: &[(Vcpu, Row)], roster: &Roster) -> Option<Arc<Lanes>> {
    let redirect = match nic.plan().redirect {
        spec::Redirect::Auto => Redirect::Waiting,
        spec::Redirect::Always => Redirect::Always,
        spec::Redirect::Off => return None,
    };
    if vcpus.is_empty() || nic.plan().queues < 2 {
        return None;
    }
    let rows: [Option<Row>; PAIRS_MAX] = std::array::from_fn(|pair| {
        let index = nic.plan().vcpus.get(pair).copied().unwrap_or(pair as u16);
        vcpus.iter().find(|(vcpu, _)| vcpu.index == index).map(|(_, row)| *row)
    });
    Some(Arc::new(Lanes { table: Arc::clone(roster.table()), rows, redirect }))
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
        let row = roster.bind(vcpu.tid, 0).expect("room");
        let (old, new) = (process(root.path(), 1), process(root.path(), 2));
        let guest = |device| Guest {
            vcpus: BTreeMap::from([(vcpu, row)]),
            devices: BTreeMap::from([(device, vec![vcpu])]),
        };
        let guests = BTreeMap::from([(old, guest(1)), (new, guest(2))]);
        let mut guests = Guests { guests, roster: Some(roster), ..Guests::new(None, Vec::new()) };
        let followed = |guests: &Guests| guests.roster.as_ref().map(Roster::len);
        guests.leave(old, 1, 0);
        assert_eq!(followed(&guests), Some(1));
        guests.leave(new, 2, 0);
        assert_eq!(followed(&guests), Some(0));
    }

    /// One goes by names and finds none, another by what the VMM says; and a VMM says something else each time.
    #[test]
    fn devices_of_one_guest_take_no_rows_from_each_other_and_have_those_of_one() {
        let root = tempfile::tempdir().expect("a folder");
        let roster = Some(Roster::simulated(Arc::new(Table::simulated())));
        let mut guests = Guests { roster, ..Guests::new(None, Vec::new()) };
        let vmm = process(root.path(), 1);
        let said = |first: u16| -> Vec<Vcpu> {
            let vcpu = |index| Vcpu { index, tid: 1000 + u32::from(first + index) };
            (0..200).map(vcpu).collect()
        };
        let found = guests.follow(vmm, 1, &said(0), 0);
        assert!(guests.follow(vmm, 2, &[], 0).is_empty());
        assert_eq!(guests.follow(vmm, 1, &said(0), 0), found, "each has its row still");
        guests.follow(vmm, 2, &said(200), 0);
        let followed = |guests: &Guests| guests.roster.as_ref().map(Roster::len);
        assert!(followed(&guests) <= Some(VCPUS_MAX), "{:?}", followed(&guests));
        guests.leave(vmm, 1, 0);
        assert!(guests.follow(vmm, 2, &said(200), 0).iter().all(|(vcpu, _)| vcpu.tid >= 1200));
        guests.leave(vmm, 2, 0);
        assert_eq!(followed(&guests), Some(0));
    }
}
