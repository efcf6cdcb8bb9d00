//! A daemon that a simulation drives: its turns, and what is asked of it.

use std::time::Duration;

use config::Plan;
use config::api::{Answer, ApiError, BoundsView, Call, DefectView};
use sidecore::Sidecore;
use tokio::sync::oneshot;

use super::processes::{Alone, Around, Done, begin_process, drop_dead, end, enter, within};
use super::take_cores;
use crate::api::{self, Entrance};
use crate::begin::{self, Gone, StartError};
use crate::devices::device::Device;
use crate::manager::{End, Manager};
use crate::options::Options;
use crate::poll::Token;

/// The place for one answer.
#[derive(Debug)]
pub struct Asked(oneshot::Receiver<Result<Answer, ApiError>>);

/// What lies there.
#[derive(Debug)]
pub enum Heard {
    /// Nothing yet.
    Nothing,
    /// The answer.
    Answer(Box<Result<Answer, ApiError>>),
    /// Nobody will answer.
    Nobody,
}

impl Asked {
    /// What came of it.
    pub fn hear(&mut self) -> Heard {
        match self.0.try_recv() {
            Ok(answer) => Heard::Answer(Box::new(answer)),
            Err(oneshot::error::TryRecvError::Empty) => Heard::Nothing,
            Err(oneshot::error::TryRecvError::Closed) => Heard::Nobody,
        }
    }
}

/// Where operators ask a daemon, whatever that does meanwhile.
#[derive(Clone, Debug)]
pub struct Door(api::Door);

impl Door {
    /// Whether that is this one.
    pub fn is_same(&self, other: &Door) -> bool {
        self.0.is_same(&other.0)
    }

    /// Asks as an operator does; nothing, if nobody is answered there any more.
    pub fn ask(&self, call: Call) -> Option<Asked> {
        self.0.ask(call).map(Asked)
    }
}

/// What came of a turn.
#[derive(Debug)]
pub enum Turned {
    /// It goes on.
    On,
    /// It goes on with what another process had for a moment, which has ended.
    Back,
    /// It has stopped.
    Stopped,
    /// Its process has ended: another one serves, or nobody.
    Ended,
    /// It has ended: whoever took over from it is dead, and what that had cannot be taken back.
    Lost,
    /// It panicked.
    Broken(String),
}

/// A daemon without a thread. Its sockets are real, and so is what it keeps.
pub struct Simulated {
    pub(super) manager: Manager,
    pub(super) entrance: Entrance,
    pub(super) pid: u32,
    /// What has come, and was not chosen from yet.
    come: Vec<(Token, bool)>,
}

impl Simulated {
    /// One that serves `plan`, and its sidecores, for whoever gives them their passes.
    ///
    /// # Errors
    /// What could not be opened, as at any start; its process has ended then.
    pub fn start(plan: Plan, options: Options) -> Result<(Simulated, Vec<Sidecore>), StartError> {
        let pid = begin_process();
        let before = enter(pid);
        let started = Simulated::begin(plan, options, pid);
        enter(before);
        let cores = take_cores(pid);
        match started {
            Ok(daemon) => Ok((daemon, cores)),
            Err(error) => {
                end(pid);
                Err(error)
            }
        }
    }

    fn begin(plan: Plan, options: Options, pid: u32) -> Result<Simulated, StartError> {
        let (mut manager, entrance) = begin::begin(&plan, options, None)?;
        let mode = manager.mode();
        let opened = begin::open_all(&mut manager.rooms, &manager.calls, plan, mode);
        if let Err(error) = opened {
            manager.close_all();
            return Err(error);
        }
        manager.rooms.bonds.begin();
        Ok(Simulated::of(manager, entrance, pid))
    }

    pub(super) fn of(manager: Manager, entrance: Entrance, pid: u32) -> Simulated {
        Simulated { manager, entrance, pid, come: Vec::new() }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether something has come.
    pub fn has_events(&self) -> bool {
        !self.manager.rooms.poll.wait(Some(Duration::ZERO)).is_empty()
    }

    /// Its control loop, for tests of what is in its rooms.
    #[cfg(test)]
    pub(crate) fn manager(&mut self) -> &mut Manager {
        &mut self.manager
    }

    /// Has its control loop do something within which it waits: others go on around it meanwhile.
    #[cfg(test)]
    pub(crate) fn amid<T, A: Around>(
        &mut self,
        around: A,
        act: impl FnOnce(&mut Manager) -> T,
    ) -> (T, A) {
        match within(self.pid, around, || act(&mut self.manager)) {
            (Done::This(done), around) => (done, around),
            (Done::Ended, _) => panic!("it has ended"),
            (Done::Panicked(said), _) => panic!("{said}"),
        }
    }

    /// One turn, with what has come and `choose` leaves of it, in an order of its own: the rest comes again. Nobody goes on
    /// while it waits. True when it has stopped.
    pub fn turn(&mut self, choose: &mut dyn FnMut(usize) -> Vec<usize>) -> bool {
        let chosen = choose(self.hear());
        match self.turn_amid(&chosen, Alone).0 {
            Turned::On | Turned::Back => false,
            Turned::Stopped | Turned::Ended | Turned::Lost => true,
            Turned::Broken(said) => std::panic::panic_any(said),
        }
    }

    /// How much has come.
    pub fn hear(&mut self) -> usize {
        self.come = self.manager.rooms.poll.wait(Some(Duration::ZERO));
        self.come.len()
    }

    /// One turn, with so much of what has come as `chosen` says, in that order: the rest comes again. Others go on around
    /// it while it waits within.
    pub fn turn_amid<A: Around>(&mut self, chosen: &[usize], around: A) -> (Turned, A) {
        let come = std::mem::take(&mut self.come);
        let events: Vec<_> = chosen.iter().filter_map(|at| come.get(*at).copied()).collect();
        tracing::trace!("a turn of {}: {events:?}", self.pid);
        let (done, around) = within(self.pid, around, || self.take_turn(events));
        let turned = match done {
            Done::This(turned) => turned,
            Done::Ended => Turned::Ended,
            Done::Panicked(said) => Turned::Broken(said),
        };
        (turned, around)
    }

    fn take_turn(&mut self, events: Vec<(Token, bool)>) -> Turned {
        match self.manager.turn(events) {
            None => Turned::On,
            Some(End::Stopped) => Turned::Stopped,
            Some(End::HandedOver(handed_over)) => {
                match begin::let_go(&mut self.manager, *handed_over, Ok) {
                    Gone::ForGood(_) => Turned::Ended,
                    Gone::Lost => Turned::Lost,
                    Gone::Back(entrance) => {
                        self.entrance = entrance;
                        Turned::Back
                    }
                }
            }
        }
    }

    /// Its process has ended: what it had is dropped as the kernel does.
    pub fn die(self) {
        end(self.pid);
        drop_dead(self);
    }

    /// How long it would wait if nothing came; for ever without.
    pub fn patience(&mut self) -> Option<Duration> {
        self.manager.rooms.turn.tick();
        self.manager.wait_time()
    }

    /// Where operators ask it.
    pub fn door(&self) -> Door {
        Door(self.entrance.door().clone())
    }

    /// Asks as an operator does.
    pub fn ask(&self, call: Call) -> Asked {
        self.door().ask(call).unwrap_or_else(|| Asked(oneshot::channel().1))
    }

    /// A stop begins.
    pub fn stop(&mut self) {
        let _ = within(self.pid, Alone, || self.manager.begin_stop());
    }

    /// What control counted on and did not find.
    pub fn defects(&self) -> Vec<DefectView> {
        let rooms = &self.manager.rooms;
        rooms.turn.defects.views().into_iter().chain(rooms.cores.defects.views()).collect()
    }

    /// How much devices are promised of what the process may have.
    pub fn bounds(&self) -> BoundsView {
        self.manager.rooms.bounds.view()
    }

    /// How many devices are open.
    pub fn devices(&self) -> usize {
        self.manager.rooms.devices.len()
    }

    /// Requests that a device has ended in this process, if it is open.
    pub fn served(&self, id: &str) -> Option<u64> {
        let devices = &self.manager.rooms.devices;
        let device = devices.get(devices.number_of(id)?)?;
        Some(device.queues().iter().map(|queue| queue.counters().snapshot().requests).sum())
    }

    /// Where the port of a NIC is, or of an uplink on an interface: its bridge, and its number there. Nothing while it is
    /// about to be elsewhere.
    pub fn port_of(&self, name: &str) -> Option<(u16, u16)> {
        let rooms = &self.manager.rooms;
        let nic = rooms.devices.number_of(name).and_then(|number| rooms.devices.get(number));
        let place = match nic.and_then(Device::nic) {
            Some(nic) => nic.at().filter(|_| !nic.goes_to_new_switch())?.way.place,
            None => {
                let mut uplinks = rooms.network.uplinks();
                let uplink = uplinks.find(|it| it.name() == name && it.is_attached())?;
                Some(uplink.place()).filter(|place| place.bridge == uplink.bridge())?
            }
        };
        Some((place.bridge.0, place.port.0))
    }

    /// How many queues each sidecore is thought to have.
    pub fn loads(&self) -> Vec<usize> {
        self.manager.rooms.cores.queues()
    }

    /// The plan in force.
    pub fn plan(&self) -> &Plan {
        &self.manager.rooms.plan
    }
}
