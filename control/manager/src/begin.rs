//! From a plan to a loop that serves: alone, or with what another daemon serves until now; and how the
//! loop's end becomes the process's.
//!
//! Not here: the loop (`manager`), and what is taken over, and how (`upgrade`).

use std::path::Path;

use config::Plan;
use config::spec::SocketRights;
use confine::Kind;
use control::drain::Drain;
use tracing::{debug, error, info, warn};

use crate::api::{self, Entrance, Server};
use crate::bounds::Bounds;
use crate::calls::waiting::WaitingCalls;
use crate::clock::now;
use crate::devices::Devices;
use crate::disk::bonds::Bonds;
use crate::disk::unsynced::Unsynced;
use crate::disk::watch::Watch;
use crate::ending;
use crate::guests::Guests;
use crate::manager::{End, INBOX_INTERVAL, Manager};
use crate::network::Network;
use crate::opening::openers::Openers;
use crate::opening::shut::ShutDevices;
use crate::options::Options;
use crate::poll::Poll;
use crate::reload::Reloading;
use crate::remote::Remote;
use crate::rights::{Accounts, Rights};
use crate::rooms::Rooms;
use crate::service::Groups;
use crate::sidecores::moves::Moves;
use crate::sidecores::{self, Cores};
use crate::state::{FolderLooks, StateFile, check_folder};
use crate::turn::{EverySecond, Turn};
use crate::upgrade::error::TakeBackError;
use crate::upgrade::estate::Estate;
use crate::upgrade::guard;
use crate::upgrade::predecessor::HandedOver;
use crate::upgrade::succession::Succession;

mod error;
mod inherit;
mod open;

pub use error::{STOP_THAT_ONE, StartError};
pub(crate) use inherit::Inheriting;
pub(crate) use open::open_all;

/// Serves `plan` until SIGTERM or SIGINT; SIGHUP reads the configuration file again.
///
/// # Errors
/// [`StartError`]: what could not be opened, and what to do. After the start there are none.
pub fn run(plan: Plan, mut options: Options) -> Result<(), StartError> {
    let Some(mut heir) = options.heir.take() else {
        let (mut manager, entrance) = begin(&plan, options, None)?;
        let mode = manager.mode();
        let opened = match open_all(&mut manager.rooms, &manager.calls, plan, mode) {
            Ok(()) => take_place(entrance, &manager.rooms.options),
            Err(error) => {
                entrance.remove();
                Err(error)
            }
        };
        return match opened {
            Ok(server) => serve(manager, server),
            Err(error) => {
                manager.close_all();
                manager.rooms.cores.end_all();
                Err(error)
            }
        };
    };
    let mut inheriting = Inheriting::begin(plan, options, &heir);
    let (mut manager, server) = loop {
        match inheriting {
            // All that can fail does so before the predecessor is told to let go.
            Inheriting::Given(manager, server) => break (manager, server),
            waits => inheriting = waits.hear(&mut heir, take_place),
        }
    };
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
    let folder = FolderLooks::of(&plan.daemon.state_dir, &poll).map_err(StartError::Loop)?;
    let workers = sidecores::leave(&plan.sidecores.cpus);
    let (entrance, calls) = open_api(plan, estate.as_mut())?;
    let (state, entrance) = open_state(plan, estate.as_mut(), entrance)?;
    if let Err(why) = check_folder(&plan.daemon.state_dir, state.lock_id()) {
        error!(
            "nothing can be kept in `state_dir`: {why}: devices made by command are refused, and after a restart a \
             guest could be served from another image than its own; `sidecore doctor` says whom"
        );
    }
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
        folder,
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
        waiting: WaitingCalls::default(),
        moves: Moves::default(),
        bounds,
        beginnings: EverySecond::from(now),
        failures: EverySecond::from(now),
        plan: plan.clone(),
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
    let mut accounts = Accounts::default();
    let mut rights = |written: SocketRights, field: &str| {
        Rights::of(&written, &mut accounts).unwrap_or_else(|error| {
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
    #[cfg(any(test, feature = "simulated"))]
    if crate::simulated::now().is_some() {
        return;
    }
    if let Err(error) = backend::take_short_turns() {
        debug!("control takes turns like any thread: {error}");
    }
}

/// The last thread, and then this one's own limits: nothing that follows fails.
fn take_place(entrance: Entrance, options: &Options) -> Result<Server, StartError> {
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
    manager.listening.claim();
    server.begin();
    if !backend::rings_are_restricted() {
        info!("this kernel lets no io_uring be restricted: what one does is not filtered");
    }
    (manager.rooms.options.ready)();
    let (devices, shut) = (manager.rooms.devices.len(), manager.rooms.shut.len());
    info!(devices, shut, sidecores = manager.rooms.cores.count(), "serving");
    manager.rooms.shut.log();
    let pid = loop {
        let handed_over = match manager.turn_until_stopped() {
            End::Stopped => {
                drop(manager);
                drop(server);
                return Ok(());
            }
            End::HandedOver(handed_over) => *handed_over,
        };
        // Whoever comes from now on is the other process's.
        server.take_nobody_in();
        let version = manager.rooms.options.version;
        let prepare = |entrance: Entrance| {
            let mut server = entrance.prepare(version)?;
            server.begin();
            Ok(server)
        };
        match let_go(&mut manager, handed_over, prepare) {
            Gone::ForGood(pid) => break pid,
            Gone::Back(new) => std::mem::replace(&mut server, new).give_sockets_away(),
            Gone::Lost => {
                server.give_sockets_away();
                // As after a crash: whoever starts the daemon again does so now.
                ending::exit(70);
            }
        }
    };
    // They have no queues, and must not be what takes this process's memory apart.
    let (poll, cores) = (&manager.rooms.poll, &mut manager.rooms.cores);
    let late = cores.end_empty(LAST_LOOKS, || poll.pause(INBOX_INTERVAL));
    if !late.is_empty() {
        warn!("sidecores on cpus {late:?} do not end: they end with this process");
    }
    server.give_sockets_away();
    info!(pid, "another process serves now");
    // Destructors would shut down connections and remove sockets that are that process's.
    ending::exit(0)
}

/// What became of what was handed over.
pub(crate) enum Gone<D> {
    /// Process `.0` serves, and nothing can be taken back any more.
    ForGood(u32),
    /// All is served here again, and operators come by this door.
    Back(D),
    /// By nobody; this process is of no use.
    Lost,
}

/// Waits until what was handed over is another process's for good, or takes it back. `open` opens the door for operators
/// again.
pub(crate) fn let_go<D>(
    manager: &mut Manager,
    handed_over: HandedOver,
    open: impl FnOnce(Entrance) -> std::io::Result<D>,
) -> Gone<D> {
    manager.answer_all_busy();
    let orphaned = match handed_over.await_commit() {
        Ok(committed) => {
            let pid = committed.pid;
            manager.rooms.state.let_lock_go();
            committed.tell();
            (manager.rooms.options.handed_over)(pid);
            return Gone::ForGood(pid);
        }
        Err(orphaned) => orphaned,
    };
    let why = &orphaned.why;
    let back = match orphaned.has_committed {
        true => Err(TakeBackError::Committed),
        false => {
            manager.take_back(why, orphaned.reach);
            let entrance = manager.open_door_again();
            entrance.and_then(|entrance| open(entrance).map_err(TakeBackError::Api))
        }
    };
    match back {
        Ok(door) => {
            let error = guard::taken_back(why);
            orphaned.tell(error);
            Gone::Back(door)
        }
        Err(more) => {
            error!("the new process took over, and {why}; {more}: this process ends");
            let error = guard::lost(why, &more);
            orphaned.tell(error);
            Gone::Lost
        }
    }
}

#[cfg(test)]
mod tests;
