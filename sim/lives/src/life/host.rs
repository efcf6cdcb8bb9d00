//! A host: the daemons on it, whoever speaks with them, and what they find there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use config::api::{ApiError, Call, DiskView, LinkView, ReloadView};
use config::spec::LinkRole;
use config::{Plan, Spec};
use manager::Options;
use manager::simulated::{Door, Launchers, Simulated};
use manager::upgrade::launcher::Launcher;
use random::Random;

use super::Course;
use super::lan::Ports;
use super::limits::Limits;
use super::upgrade::{Latecomer, Newcomer};
use crate::core::Core;
use crate::file::{self, File};
use crate::operator::Operator;
use crate::rack::{self, Rack};
use crate::vmm::Vmm;

/// A process: its control, and its sidecores.
pub(super) struct Daemon {
    pub(super) pid: u32,
    /// Nothing while it has its turn, in which it may wait for others.
    pub(super) control: Option<Simulated>,
    /// Where operators ask it.
    pub(super) door: Door,
    pub(super) cores: Vec<Core>,
    /// Another process has taken over from it, and may be dead.
    pub(super) is_succeeded: bool,
    /// What starts its heirs.
    pub(super) launchers: Launchers,
}

/// One machine.
pub(super) struct Host {
    pub(super) number: u8,
    /// Who serves, and after it who has taken over from that; empty while it is dead.
    pub(super) daemons: Vec<Daemon>,
    /// Who is to take over.
    pub(super) newcomers: Vec<Newcomer>,
    /// Killed while they waited within a turn, and not unwound yet: until then they have what they had.
    pub(super) dying: Vec<u32>,
    /// When those end that were killed by other processes, or that die as soon as they have taken over.
    pub(super) dooms: BTreeMap<u32, u64>,
    /// Who is to come when an heir is expected.
    pub(super) latecomer: Option<Latecomer>,
    /// Devices whose front-ends were cut off while nobody knows whether there will be another process that has them.
    pub(super) lost: Vec<String>,
    pub(super) vmms: BTreeMap<String, Vmm>,
    pub(super) operator: Operator,
    pub(super) file: Rc<RefCell<File>>,
    /// Devices whose guests may be disturbed when the file is read, and when that was written.
    pub(super) dirty: BTreeMap<String, u64>,
    /// Devices whose guests are on other hosts.
    pub(super) away: BTreeSet<String>,
    /// Disks that are smaller than their guests have seen them.
    pub(super) shrunk: BTreeSet<String>,
    /// Those whose `accept` was refused because their file system had not answered: to be asked again.
    pub(super) unaccepted: BTreeSet<String>,
    /// Disks whose losses an operator has said to be known.
    pub(super) cleared: Vec<String>,
    /// Where the bytes of disks lie that it has of another host.
    pub(super) borrowed: BTreeMap<String, PathBuf>,
    /// Daemons that were killed.
    pub(super) deaths: u32,
    /// How many of them the other hosts know of.
    pub(super) deaths_told: u32,
    /// NICs whose cable is out: who connects before the socket is gone is sent away, too.
    pub(super) unplugged: BTreeSet<String>,
    /// When the latest that has taken over did.
    pub(super) taken_over_ns: u64,
    /// Its daemons are to end, for good.
    pub(super) is_stopping: bool,
    /// Who serves is to end, and another one starts.
    pub(super) is_restarting: bool,
    /// What became of the last upgrade.
    pub(super) upgraded: Option<Result<(), ApiError>>,
    /// State cannot be kept.
    pub(super) is_broken: bool,
    /// What became of the last reload.
    pub(super) reloaded: Option<Result<ReloadView, ApiError>>,
    /// What operators are shown is told in the log.
    pub(super) tells_views: bool,
    /// Disks as operators were last shown them.
    pub(super) shown: Vec<DiskView>,
    /// And links.
    pub(super) links: Vec<LinkView>,
    pub(super) ports: Ports,
    pub(super) limits: Limits,
    /// Requests of guests that are gone.
    pub(super) ended: u64,
    /// When the next daemon starts after one that died.
    pub(super) restart_ns: u64,
    /// Its daemon goes by keys of a link that are not in its files any more.
    pub(super) is_stale: bool,
    /// Who serves is killed when it has answered next, and before it is heard.
    pub(super) dies_unheard: bool,
    folder: tempfile::TempDir,
}

impl Daemon {
    pub(super) fn start(file: &Rc<RefCell<File>>) -> Result<Daemon, String> {
        let plan = file.borrow().load(None).map_err(|e| e.error)?;
        let (launchers, launcher) = Launchers::begin().map_err(|e| e.to_string())?;
        let started = Simulated::start(plan, options(file, launcher));
        let (control, sidecores) = started.map_err(|e| format!("it does not start: {e}"))?;
        let (pid, door) = (control.pid(), control.door());
        let cores = sidecores.into_iter().map(Core::new).collect();
        Ok(Daemon::of(pid, control, door, cores, launchers))
    }

    /// A process that serves.
    pub(super) fn of(
        pid: u32,
        control: Simulated,
        door: Door,
        cores: Vec<Core>,
        launchers: Launchers,
    ) -> Daemon {
        Daemon { pid, control: Some(control), door, cores, is_succeeded: false, launchers }
    }

    /// Its process has ended. One that waits within its turn is unwound from there.
    pub(super) fn die(self, course: &Course) {
        self.cores.into_iter().for_each(Core::die);
        match self.control {
            Some(control) => control.die(),
            None => course.stage.end_process(self.pid),
        }
    }
}

impl Host {
    /// One of that number, which is linked with others or not.
    pub(super) fn new(
        number: u8,
        rack: Option<&Rack>,
        course: &mut Course,
        write: impl FnOnce(&mut Spec, &Path, &mut Random) -> Result<(), String>,
    ) -> Result<Host, String> {
        course.be_at(number);
        let folder = tempfile::Builder::new().prefix("lives").tempdir_in("/dev/shm");
        let folder = folder.map_err(|e| e.to_string())?;
        for name in ["run", "state"] {
            std::fs::create_dir(folder.path().join(name)).map_err(|e| e.to_string())?;
        }
        let cpus = course.random.between(1, 3) as u32;
        // What hosts lend one another is slower than what they have.
        let disks =
            if rack.is_some() { course.random.below(2) } else { course.random.between(1, 3) };
        let mut file = File::new(folder.path(), number, cpus, disks, &mut course.random);
        if let Some(rack) = rack {
            rack.write(number, &mut file.spec, folder.path(), &mut course.random)?;
        }
        course.ground.interfaces.boot(number);
        write(&mut file.spec, folder.path(), &mut course.random)?;
        let file = Rc::new(RefCell::new(file));
        let daemons = vec![Daemon::start(&file)?];
        Ok(Host {
            number,
            daemons,
            newcomers: Vec::new(),
            dying: Vec::new(),
            dooms: BTreeMap::new(),
            latecomer: None,
            lost: Vec::new(),
            vmms: BTreeMap::new(),
            operator: Operator::of(number),
            file,
            dirty: BTreeMap::new(),
            away: BTreeSet::new(),
            shrunk: BTreeSet::new(),
            unaccepted: BTreeSet::new(),
            cleared: Vec::new(),
            borrowed: BTreeMap::new(),
            deaths: 0,
            deaths_told: 0,
            unplugged: BTreeSet::new(),
            taken_over_ns: 0,
            is_stopping: false,
            is_restarting: false,
            upgraded: None,
            is_broken: false,
            reloaded: None,
            tells_views: false,
            shown: Vec::new(),
            links: Vec::new(),
            ports: Ports::new(),
            limits: Limits::new(),
            ended: 0,
            restart_ns: 0,
            is_stale: false,
            dies_unheard: false,
            folder,
        })
    }

    /// The end of everything on it.
    pub(super) fn end(self, course: &Course) {
        let Host { daemons, newcomers, vmms, folder, .. } = self;
        drop(vmms);
        daemons.into_iter().for_each(|daemon| daemon.die(course));
        newcomers.into_iter().for_each(|newcomer| newcomer.die(course));
        drop(folder);
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Requests of its guests that ended.
    pub(super) fn requests(&self) -> u64 {
        self.ended + self.vmms.values().map(|vmm| vmm.tenant.ended()).sum::<u64>()
    }

    /// The control that serves, if one lives.
    pub(super) fn control(&self) -> Option<&Simulated> {
        self.daemons.first()?.control.as_ref()
    }

    /// The plan in force; none while nobody serves.
    pub(super) fn plan(&self) -> Option<&Plan> {
        self.control().map(Simulated::plan)
    }

    /// Asks the one that serves.
    pub(super) fn ask(&mut self, call: Call, now_ns: u64) {
        // Who gives its devices away closes its door, and the next one has another.
        let mut doors = self.daemons.iter().map(|daemon| &daemon.door);
        let _ = doors.any(|door| self.operator.ask(door, &call, now_ns));
    }

    /// All disks and NICs of the plan.
    pub(super) fn devices(&self) -> Vec<String> {
        let disks = self.disks().into_iter();
        disks.chain(self.nics()).collect()
    }

    pub(super) fn disks(&self) -> Vec<String> {
        let disks = self.plan().into_iter().flat_map(|plan| &plan.disks);
        disks.map(|disk| disk.id.clone()).collect()
    }

    pub(super) fn nics(&self) -> Vec<String> {
        let nics = self.plan().into_iter().flat_map(|plan| &plan.nics);
        nics.map(|nic| nic.id.clone()).collect()
    }

    /// Whether an operator has asked to have it removed, or it is gone.
    pub(super) fn is_going(&self, id: &str) -> bool {
        let is_gone =
            self.plan().is_some_and(|plan| plan.disk(id).is_none() && plan.nic(id).is_none());
        is_gone || self.operator.is_asked_to_go(id)
    }

    /// Whether one process serves all, and all calls are answered.
    pub(super) fn is_content(&self) -> bool {
        let is_alone = self.daemons.len() == 1 && self.newcomers.is_empty();
        is_alone && self.operator.waiting() == 0 && self.is_each(Vmm::is_content)
    }

    /// Whether somebody serves, and it is so of the VMM of each device.
    pub(super) fn is_each(&self, is_so: impl Fn(&Vmm) -> bool) -> bool {
        !self.daemons.is_empty() && self.served().all(|id| self.vmms.get(id).is_some_and(&is_so))
    }

    /// Whether the guest of a device of that name is here, if there is one.
    pub(super) fn has_guest(&self, id: &str) -> bool {
        !rack::is_lent(id) && !self.away.contains(id)
    }

    /// Devices with guests here.
    fn served(&self) -> impl Iterator<Item = &str> {
        let plans = || self.plan().into_iter();
        let disks = plans().flat_map(|plan| &plan.disks).map(|disk| disk.id.as_str());
        let nics = plans().flat_map(|plan| &plan.nics).map(|nic| nic.id.as_str());
        disks.chain(nics).filter(|id| self.has_guest(id))
    }

    /// Whether it lends other hosts something, or has something of another one.
    pub(super) fn is_linked(&self) -> bool {
        self.role().is_some()
    }

    /// Which end it has of its link.
    pub(super) fn role(&self) -> Option<LinkRole> {
        self.file.borrow().spec.link.first().map(|link| link.role)
    }

    /// Where front-ends of a device connect.
    pub(super) fn socket_of(&self, id: &str) -> PathBuf {
        self.folder().join("run").join(format!("{id}.sock"))
    }

    /// Each device has a guest.
    pub(super) fn seat_guests(&mut self, course: &mut Course) -> Result<(), String> {
        let Some(plan) = self.plan() else { return Ok(()) };
        let disks = plan.disks.iter().map(|disk| (&disk.id, disk.spec.queues));
        let all = disks.chain(plan.nics.iter().map(|nic| (&nic.id, 1)));
        let is_without = |id: &String| self.has_guest(id) && !self.vmms.contains_key(id);
        let without = all.filter(|(id, _)| is_without(id));
        let without: Vec<_> = without.map(|(id, queues)| (id.clone(), queues)).collect();
        for (id, queues) in without {
            let image = self.borrowed.get(&id).cloned();
            let image = image.or_else(|| plan_image(self.plan(), &id));
            let number = id.bytes().fold(0, |all, byte| all * 31 % 9973 + u32::from(byte));
            let path = self.socket_of(&id);
            let shape = (file::SECTORS_MAX, queues);
            let (random, trace) = (&mut course.random, &course.trace);
            let mut vmm = Vmm::new(number, &id, (path, image), shape, random, trace)?;
            course.note("guest", [number.into(), vmm.tenant.queues().into(), 0]);
            vmm.tenant.set_quiet(course.is_quiet(&id));
            // Whom nobody keeps from taking others' names is believed.
            let may_be_hostile = !self.is_linked() && !file::is_wired(&id) && !course.is_calm.get();
            if may_be_hostile && !self.vmms.is_empty() && course.random.one_in(8) {
                course.note("hostile", [number.into(), 0, 0]);
                vmm.tenant.be_hostile();
            }
            if file::is_nic(&id) {
                self.begin_station(&id, vmm.tenant.is_hostile(), course);
            }
            self.vmms.insert(id, vmm);
        }
        Ok(())
    }
}

/// Where the bytes of a disk lie, if they outlive its daemon.
fn plan_image(plan: Option<&Plan>, id: &str) -> Option<PathBuf> {
    plan?.disk(id)?.source.path().map(PathBuf::from)
}

/// Of a process that finds that file.
pub(super) fn options(file: &Rc<RefCell<File>>, launcher: Launcher) -> Options {
    let file = Rc::clone(file);
    let load = move |running: &Plan| Ok(file.borrow().load(Some(running))?);
    Options {
        version: "0",
        commit: None,
        file: "lives.toml".into(),
        path: "/lives.toml".into(),
        load: Box::new(load),
        ready: Box::new(|| {}),
        stopping: Box::new(|| {}),
        launcher: Some(launcher),
        run_state: None,
        heir: None,
        committed: Box::new(|| {}),
        handed_over: Box::new(|_| {}),
    }
}
