//! From a plan to a loop that serves: alone, or with what another daemon serves until now; and how the
//! loop's end becomes the process's.
//!
//! Not here: the loop (`manager`), and what is taken over, and how (`upgrade`).

use std::os::fd::OwnedFd;
use std::path::Path;

use config::Plan;
use config::api::ApiError;
use config::plan::{Origin, SwitchPlan};
use config::spec::SocketRights;
use confine::Kind;
use control::drain::Drain;
use tracing::{debug, error, info, warn};
use vcpu_tracker::{Tracker, Unavailable};

use crate::api::{self, Entrance, Server};
use crate::bounds::Bounds;
use crate::calls::waiting::Waiting;
use crate::clock::now;
use crate::devices::Devices;
use crate::devices::kind::DevicePlan;
use crate::disk::bonds::Bonds;
use crate::disk::looks;
use crate::disk::unsynced::Unsynced;
use crate::disk::watch::Watch;
use crate::front_ends::idle;
use crate::guests::Guests;
use crate::manager::{End, INBOX_INTERVAL, Manager};
use crate::network::Network;
use crate::opening::open::{open_shut, take_in};
use crate::opening::openers::Openers;
use crate::opening::shut::{Alike, Shut, ShutDevices, alike};
use crate::poll::{Poll, Token};
use crate::reload::Reloading;
use crate::remote::Remote;
use crate::rights::Rights;
use crate::rooms::Rooms;
use crate::service::Groups;
use crate::sidecores::moves::Moves;
use crate::sidecores::{self, Cores};
use crate::state::{self, StateFile};
use crate::turn::Turn;
use crate::upgrade::error::TakeBackError;
use crate::upgrade::estate::Estate;
use crate::upgrade::guard;
use crate::upgrade::launcher::Launcher;
use crate::upgrade::{Heir, Succession};

mod error;

use error::ShutDevice;
pub use error::StartError;

/// Reads the configuration file again, beside the plan in force.
pub(crate) type Load = dyn Fn(&Plan) -> Result<Plan, ApiError>;

/// What the program gives the control loop besides the plan.
pub struct Options {
    /// The program's version.
    pub version: &'static str,
    /// The commit that it was built from, where that is known.
    pub commit: Option<&'static str>,
    /// The configuration file's name, for messages.
    pub file: String,
    /// The same as an absolute path.
    pub path: String,
    /// How the configuration file is read again.
    pub load: Box<Load>,
    /// Called once everything is open.
    pub ready: Box<dyn Fn()>,
    /// Called when a stop begins.
    pub stopping: Box<dyn Fn()>,
    /// What starts a successor; without it there is no upgrade.
    pub launcher: Option<Launcher>,
    /// What sees which vCPUs run, or why there is none; nothing where it was not tried.
    pub run_state: Option<Result<Tracker, Unavailable>>,
    /// Another daemon serves: this one is to take over from it.
    pub heir: Option<Heir>,
    /// Called when this process, which took over, is the one that serves from now on.
    pub settled: Box<dyn Fn()>,
    /// Called when process `.0` has taken over, just before this one ends.
    pub handed_over: Box<dyn Fn(u32)>,
}

impl Options {
    /// Which program it is, for operators.
    fn told(&self) -> String {
        match self.commit {
            Some(commit) => format!("{} ({commit})", self.version),
            None => self.version.to_string(),
        }
    }
}

/// Serves `plan` until SIGTERM or SIGINT; SIGHUP reads the configuration file again.
///
/// # Errors
/// [`StartError`]: what could not be opened, and what to do. After the start there are none.
pub fn run(plan: Plan, mut options: Options) -> Result<(), StartError> {
    let Some(mut heir) = options.heir.take() else {
        let (mut manager, entrance) = begin(&plan, options, None)?;
        let opened =
            manager.open_all(plan).and_then(|()| settle_down(entrance, &manager.rooms.options));
        return match opened {
            Ok(server) => serve(manager, server),
            Err(error) => {
                manager.close_all();
                manager.rooms.cores.end_all();
                Err(error)
            }
        };
    };
    let (mut manager, server) = inherit(plan, options, &mut heir);
    manager.take_over(heir);
    serve(manager, server)
}

/// A manager of nothing yet, and the API's socket, which is not answered yet.
pub(crate) fn begin(
    plan: &Plan,
    mut options: Options,
    mut estate: Option<Estate>,
) -> Result<(Manager, Entrance), StartError> {
    let poll = Poll::new().map_err(StartError::Loop)?;
    let openers = Openers::new().map_err(StartError::Loop)?;
    let workers = sidecores::leave(&plan.sidecores.cpus);
    let (entrance, calls) = open_api(plan, estate.as_mut())?;
    let (state, entrance) = open_state(plan, estate.as_mut(), entrance)?;
    let listening = entrance.listening().map_err(StartError::ApiSockets)?;
    let now = now();
    let cores = Cores::launch(&plan.sidecores, workers, now).map_err(StartError::Sidecore)?;
    take_short_turns();
    let uplinks = plan.switches.iter().map(|switch| switch.uplinks.len()).sum();
    let inherited = estate.as_ref().map_or(0, Estate::descriptors);
    let bounds = Bounds::of_this_process(cores.count(), uplinks, inherited);
    bounds.hold_reserve();
    let rooms = Rooms {
        estate,
        turn: Turn::begin(now),
        guests: Guests::new(options.run_state.take(), plan.sidecores.cpus.clone()),
        poll,
        options,
        state,
        unsynced: Unsynced::in_folder(&plan.daemon.state_dir),
        bonds: Bonds::in_folder(&plan.daemon.state_dir),
        watch: Watch::from(now),
        cores,
        devices: Devices::default(),
        network: Network::new(&plan.daemon.state_dir),
        remote: Remote::new(&plan.daemon.state_dir),
        groups: Groups::default(),
        shut: ShutDevices::default(),
        openers,
        waiting: Waiting::default(),
        moves: Moves::default(),
        bounds,
        idle_peers: idle::Looks::from(now),
        failures: looks::Looks::from(now),
        plan: Plan { disks: Vec::new(), switches: Vec::new(), nics: Vec::new(), ..plan.clone() },
    };
    let manager = Manager {
        rooms,
        reloading: Reloading::default(),
        succession: Succession::default(),
        drain: Drain::default(),
        listening,
        calls,
        stop_by: None,
    };
    Ok((manager, entrance))
}

/// Where state is kept, which is this daemon's alone. The API's sockets go if it is another's.
fn open_state(
    plan: &Plan,
    estate: Option<&mut Estate>,
    entrance: Entrance,
) -> Result<(StateFile, Entrance), StartError> {
    let folder = &plan.daemon.state_dir;
    let state = match estate {
        Some(estate) => Ok(StateFile::of_an_heir(folder, estate.state_lock.take(), now())),
        None => StateFile::of_a_start(folder, &plan.daemon.api),
    };
    match state {
        Ok(state) => Ok((state, entrance)),
        Err(why) => {
            entrance.remove();
            Err(why.into())
        }
    }
}

/// The API's sockets, not answered yet; those that a predecessor hands over where there is one.
fn open_api(
    plan: &Plan,
    estate: Option<&mut Estate>,
) -> Result<(Entrance, api::Calls), StartError> {
    let daemon = &plan.daemon;
    let told =
        estate.map(|estate| (estate.api.take(), estate.api_read.take(), estate.state_dir.take()));
    let (told, told_read, state_dir) = told.unwrap_or_default();
    let other = |field: &'static str, file: &str, told: &str| {
        Err(StartError::Moved { field, file: file.to_string(), told: told.to_string() })
    };
    if let Some((told, _)) = &told
        && *told != daemon.api
    {
        return other("api", &daemon.api, told);
    }
    if let Some((told, _)) = &told_read
        && Some(told) != daemon.api_read.as_ref()
    {
        return other("api_read", daemon.api_read.as_deref().unwrap_or("none"), told);
    }
    if let Some(told) = &state_dir
        && *told != daemon.state_dir
    {
        return other("state_dir", &daemon.state_dir, told);
    }
    // A user that was removed since must not keep every guest from its disks: nobody but the daemon's user is
    // let in then.
    let rights = |written: SocketRights, field: &str| {
        Rights::of(&written).unwrap_or_else(|error| {
            error!(
                "{field} in [daemon]: {error}; until then root and the daemon's user alone may ask"
            );
            Rights::own()
        })
    };
    let of_api = rights(daemon.api_rights(), "api_owner or api_group");
    let of_read = rights(daemon.api_read_rights(), "api_read_owner or api_read_group");
    let inherited = told.map(|(_, socket)| socket);
    let place = api::Place { path: Path::new(&daemon.api), rights: &of_api, inherited };
    let inherited = told_read.map(|(_, socket)| socket);
    let path = daemon.api_read.as_deref().map(Path::new);
    let read = path.map(|path| api::Place { path, rights: &of_read, inherited });
    api::open(place, read).map_err(|(path, source)| StartError::ApiSocket { path, source })
}

/// For this thread, and those that it makes from here on: when it is woken it runs, or else an upgrade waits
/// for others at each step. Sidecores have their processors.
fn take_short_turns() {
    #[cfg(feature = "simulated")]
    if crate::simulated::now().is_some() {
        return;
    }
    if let Err(error) = backend::take_short_turns() {
        debug!("control takes turns like any thread: {error}");
    }
}

/// A manager that could serve all that another daemon serves, and waits for nothing any more. What it holds is
/// shared, and dropping it would cut off front-ends: so whatever fails ends the process where it fails.
fn inherit(plan: Plan, options: Options, heir: &mut Heir) -> (Manager, Server) {
    let estate = granted(heir.receive_estate(&options.told()), heir);
    let (mut manager, entrance) = granted(begin(&plan, options, Some(estate)), heir);
    granted(manager.open_all(plan), heir);
    granted(manager.adopt(), heir);
    // All that can fail does so before the predecessor is told to let go.
    let server = granted(settle_down(entrance, &manager.rooms.options), heir);
    granted(manager.receive_rings(heir), heir);
    granted(manager.inherit_uplinks(), heir);
    granted(manager.inherit_links(), heir);
    granted(manager.receive_leave(heir), heir);
    (manager, server)
}

/// What was to be had, or the end of this process.
fn granted<T, E: std::fmt::Display>(what: Result<T, E>, heir: &Heir) -> T {
    what.unwrap_or_else(|why| heir.refuse(&why.to_string()))
}

/// The last thread, and then this one's own limits: nothing that follows fails.
fn settle_down(entrance: Entrance, options: &Options) -> Result<Server, StartError> {
    let server = entrance.prepare(options.version).map_err(StartError::ApiThread)?;
    // After the threads that are made once: they do more than control in some ways, and less in others.
    confine::thread(Kind::Control).map_err(StartError::Confine)?;
    Ok(server)
}

/// How often it is looked whether sidecores without queues have ended, [`INBOX_INTERVAL`] apart: some 10 s.
const LAST_LOOKS: u32 = 10_000;

/// Serves what is open until it is told to stop, or another process has taken over.
fn serve(mut manager: Manager, mut server: Server) -> Result<(), StartError> {
    manager.rooms.bonds.begin();
    server.begin();
    if !backend::rings_are_restricted() {
        info!("this kernel lets no io_uring be restricted: what one does is not filtered");
    }
    (manager.rooms.options.ready)();
    let (devices, shut) = (manager.rooms.devices.len(), manager.rooms.shut.len());
    info!(devices, shut, sidecores = manager.rooms.cores.count(), "serving");
    manager.rooms.shut.log();
    let (pid, answered) = loop {
        let handed_over = match manager.turn_until_stopped() {
            End::Stopped => {
                drop(manager);
                drop(server);
                return Ok(());
            }
            End::HandedOver(handed_over) => handed_over,
        };
        // Whoever comes from now on is the other process's.
        server.take_nobody_in();
        manager.answer_all_busy();
        let Err(why) = handed_over.await_settled() else { break handed_over.settled() };
        let back = manager.take_back(&why).and_then(|()| manager.open_door_again());
        handed_over.failed(match &back {
            Ok(_) => guard::taken_back(&why),
            Err(more) => guard::lost(&why, more),
        });
        match back {
            Ok(new) => std::mem::replace(&mut server, new).give_sockets_away(),
            Err(more) => {
                error!("the new process took over, and {why}; {more}: this process ends");
                server.give_sockets_away();
                // As after a crash: whoever starts the daemon again does so now.
                std::process::exit(70);
            }
        }
    };
    manager.rooms.state.let_lock_go();
    if let Some((reply, answer)) = answered {
        reply.answer(Ok(answer));
    }
    (manager.rooms.options.handed_over)(pid);
    // They have no queues, and must not be what takes this process's memory apart.
    let (poll, cores) = (&manager.rooms.poll, &mut manager.rooms.cores);
    let late = cores.end_empty(LAST_LOOKS, || poll.pause(INBOX_INTERVAL));
    if !late.is_empty() {
        warn!("sidecores on cpus {late:?} do not end: they end with this process");
    }
    server.give_sockets_away();
    info!(pid, "another process serves now");
    // Destructors would shut down connections and remove sockets that are that process's.
    std::process::exit(0)
}

impl Manager {
    /// Operators are heard again after another process has had the API's socket.
    fn open_door_again(&mut self) -> Result<Server, TakeBackError> {
        let api = self.listening.api.try_clone().map_err(TakeBackError::Api)?;
        let read = self.listening.read.as_ref().map(OwnedFd::try_clone).transpose();
        let read = read.map_err(TakeBackError::Api)?;
        let daemon = &self.rooms.plan.daemon;
        // They listen already: nobody's rights are asked for.
        let rights = Rights::own();
        let place = |path, socket| api::Place { path, rights: &rights, inherited: Some(socket) };
        let read = daemon.api_read.as_deref().map(Path::new).zip(read);
        let read = read.map(|(path, socket)| place(path, socket));
        let opened = api::open(place(Path::new(&daemon.api), api), read);
        let (entrance, calls) = opened.map_err(|(_, error)| TakeBackError::Api(error))?;
        let server = entrance.prepare(self.rooms.options.version);
        let mut server = server.map_err(TakeBackError::Api)?;
        self.rooms.poll.remove(self.calls.wake_fd());
        self.rooms.poll.add(calls.wake_fd(), Token::Calls).map_err(TakeBackError::Api)?;
        self.calls = calls;
        server.begin();
        Ok(server)
    }

    pub(crate) fn open_all(&mut self, plan: Plan) -> Result<(), StartError> {
        let mut all = plan.clone();
        // Before anything is opened.
        let kept = state::plan_kept(&self.rooms.state, &mut all)?;
        for (index, core) in self.rooms.cores.handles().enumerate() {
            self.rooms
                .poll
                .add(core.event_fd(), Token::Core(index as u32))
                .map_err(StartError::Loop)?;
        }
        self.rooms.poll.add(self.calls.wake_fd(), Token::Calls).map_err(StartError::Loop)?;
        if let Some(fd) = self.rooms.openers.wake_fd() {
            self.rooms.poll.add(fd, Token::Openers).map_err(StartError::Loop)?;
        }
        let launchers = self.rooms.options.launcher.iter().flat_map(Launcher::ends);
        for (at, end) in launchers.enumerate() {
            self.rooms.poll.add(end, Token::Launcher(at as u32)).map_err(StartError::Loop)?;
        }
        self.links(|remote, around| remote.begin_links(&plan.links, around))?;
        match &mut self.rooms.estate {
            // Another process has them until this one serves.
            Some(estate) => {
                let known = std::mem::take(&mut estate.known);
                self.rooms.remote.know_as_before(estate.run, &known);
            }
            None => self.links(Remote::open_links),
        }
        let mode = self.mode();
        for disk in plan.disks {
            self.rooms.plan.disks.push(disk.clone());
            take_in(DevicePlan::Disk(disk), &mut self.rooms, mode);
        }
        for switch in plan.switches {
            self.take_in_switch(switch)?;
        }
        for nic in plan.nics {
            self.rooms.plan.nics.push(nic.clone());
            take_in(DevicePlan::Nic(nic), &mut self.rooms, mode);
        }
        self.rooms.plan.groups = all.groups;
        for disk in kept.disks {
            self.rooms.plan.disks.push(disk.clone());
            take_in(DevicePlan::Disk(disk), &mut self.rooms, mode);
        }
        for switch in kept.switches {
            self.take_in_switch(switch)?;
        }
        for nic in kept.nics {
            self.rooms.plan.nics.push(nic.clone());
            take_in(DevicePlan::Nic(nic), &mut self.rooms, mode);
        }
        match self.rooms.estate {
            // What it serves is open, and the rest is opened later.
            Some(_) => self.refuse_if_served_is_shut(),
            None => {
                self.refuse_if_all_are_shut()?;
                self.open_ports();
                Ok(())
            }
        }
    }

    /// A device that a predecessor serves must not end by being taken over.
    fn refuse_if_served_is_shut(&mut self) -> Result<(), StartError> {
        let Some(estate) = &mut self.rooms.estate else { return Ok(()) };
        let is_served = |shut: &&Shut| estate.device_of(shut.plan()).is_some();
        match self.rooms.shut.iter().find(is_served) {
            Some(shut) => {
                let (name, problem) = (shut.plan().name(), shut.problem().to_string());
                Err(StartError::NotTakenOver { name, problem })
            }
            None => Ok(()),
        }
    }

    /// What was made through the API before.
    fn take_in_switch(&mut self, switch: SwitchPlan) -> Result<(), StartError> {
        let id = switch.id.clone();
        self.rooms.plan.switches.push(switch.clone());
        let (network, mut around) = self.rooms.network();
        let served = network.serve_switch(switch, Vec::new(), &mut around);
        served.map_err(|source| StartError::Switch { id, source })
    }

    /// A daemon that can serve none of its file's devices does not start, so that a mistake in the
    /// file, or a second daemon on the same images, is seen at once.
    fn refuse_if_all_are_shut(&mut self) -> Result<(), StartError> {
        while self.rooms.devices.is_empty()
            && self.rooms.shut.iter().any(|shut| shut.may_be_refused())
        {
            let pause = self.rooms.shut.due_at();
            let now = self.rooms.turn.tick();
            self.rooms
                .poll
                .pause(pause.map_or(INBOX_INTERVAL, |at| at.saturating_duration_since(now)));
            self.rooms.turn.tick();
            let mode = self.mode();
            open_shut(&mut self.rooms, mode);
        }
        let of_file = |shut: &&Shut| *shut.plan().origin() != Origin::Api;
        if !self.rooms.devices.is_empty() || self.rooms.shut.iter().any(Shut::is_waiting) {
            return Ok(());
        }
        let refused = alike(self.rooms.shut.iter().filter(of_file)).into_iter().map(
            |Alike { first, more }| {
                let (name, origin) = (first.plan().name(), first.plan().origin().clone());
                ShutDevice { name, origin, problem: first.problem().to_string(), more }
            },
        );
        match refused.collect::<Vec<_>>() {
            all if all.is_empty() => Ok(()),
            all => Err(StartError::AllShut(all)),
        }
    }
}
