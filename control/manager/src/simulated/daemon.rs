//! A daemon that a simulation drives: its turns, and what is asked of it.

use std::time::Duration;

use config::Plan;
use config::api::{Answer, ApiError, BoundsView, Call, DefectView};
use sidecore::Sidecore;
use tokio::sync::oneshot;

use super::take_cores;
use crate::api::Entrance;
use crate::begin::{self, StartError};
use crate::manager::{End, Manager};
use crate::options::Options;

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

/// A daemon without a thread. Its sockets are real, and so is what it keeps.
pub struct Simulated {
    manager: Manager,
    entrance: Entrance,
}

impl Simulated {
    /// One that serves `plan`, and its sidecores, for whoever gives them their passes.
    ///
    /// # Errors
    /// What could not be opened, as at any start.
    pub fn start(plan: Plan, options: Options) -> Result<(Simulated, Vec<Sidecore>), StartError> {
        let (mut manager, entrance) = begin::begin(&plan, options, None)?;
        let cores = take_cores();
        let mode = manager.mode();
        begin::open_all(&mut manager.rooms, &manager.calls, plan, mode)?;
        manager.rooms.bonds.begin();
        Ok((Simulated { manager, entrance }, cores))
    }

    /// One turn, with what has come and `choose` leaves of it, in an order of its own: the rest comes again. True when it
    /// has stopped.
    pub fn turn(&mut self, choose: &mut dyn FnMut(usize) -> Vec<usize>) -> bool {
        let come = self.manager.rooms.poll.wait(Some(Duration::ZERO));
        let chosen = choose(come.len()).into_iter();
        let events: Vec<_> = chosen.filter_map(|at| come.get(at).copied()).collect();
        tracing::trace!("a turn: {events:?}");
        match self.manager.turn(events) {
            None => false,
            Some(End::Stopped | End::HandedOver(_)) => true,
        }
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

    /// How long it would wait if nothing came; for ever without.
    pub fn patience(&mut self) -> Option<Duration> {
        self.manager.rooms.turn.tick();
        self.manager.wait_time()
    }

    /// Asks as an operator does.
    pub fn ask(&self, call: Call) -> Asked {
        Asked(self.entrance.ask(call))
    }

    /// A stop begins.
    pub fn stop(&mut self) {
        self.manager.begin_stop();
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

    /// How many queues each sidecore is thought to have.
    pub fn loads(&self) -> Vec<usize> {
        self.manager.rooms.cores.queues()
    }

    /// The plan in force.
    pub fn plan(&self) -> &Plan {
        &self.manager.rooms.plan
    }
}
