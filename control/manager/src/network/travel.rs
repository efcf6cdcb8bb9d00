//! NICs that are moved between sidecores: who may go, what waits meanwhile, and where they are then.
//!
//! How a NIC travels is the sidecores' affair ([`sidecore::relocation`]): all of them have a part in it,
//! and one answers, in a millisecond or so. Until then it is not known who has its queues; what is to be
//! said of them is kept, as for disks (`moves`, where operators who wait are, too). Called for operators, for loads
//! (`balance`), and with the sidecores' answer.

use config::api::{ApiError, ErrorKind};
use config::spec::NicMove;
use config::{Plan, Target};
use control::port::{Arrived, Outcome, Wish};
use sidecore::{Command, MoveId, Stay, nanos_of, relocation};
use tracing::{debug, info};

use crate::defects::found;
use crate::sidecores::moves::{Moves, NotMoved};
use crate::sidecores::wishes::check_sidecore;

use super::{Around, Network};

/// NICs on their way, and what that concerns.
pub(crate) struct Travel<'a> {
    pub(crate) network: &'a Network,
    pub(crate) moves: &'a mut Moves,
    pub(crate) plan: &'a Plan,
    pub(crate) around: Around<'a>,
}

/// What came of an operator's wish.
#[derive(Debug)]
pub(crate) enum Begun {
    /// The NIC stays nowhere any more.
    LetGo,
    /// That device is to be where it was to go when this move is over, or is there.
    Goes(u32, Option<MoveId>),
}

impl Travel<'_> {
    /// Moves a NIC, or has it stay nowhere any more, as `moves` does with queues.
    ///
    /// # Errors
    /// Why it cannot go there, or not now.
    pub(crate) fn ask(&mut self, id: &str, wish: &NicMove) -> Result<Begun, ApiError> {
        let Target::Sidecore(to) = wish.to else {
            self.check_moves(id)?;
            let devices = &mut self.around.devices;
            if let Some(nic) = devices.number_of(id).and_then(|number| devices.nic_mut(number)) {
                nic.let_go();
            }
            info!(nic = id, "let go");
            return Ok(Begun::LetGo);
        };
        let number = self.may_go(id, to.into())?;
        info!(nic = id, to, "moving");
        self.around.cores.wake(to.into());
        Ok(Begun::Goes(number, self.begin(number, Wish::new(to.into(), true))))
    }

    /// Refuses what is no NIC, and one that goes nowhere.
    fn check_moves(&self, id: &str) -> Result<(), ApiError> {
        let refused = |error: String, hint: &str| ApiError::new(ErrorKind::Refused, error, hint);
        if self.plan.disk(id).is_some() {
            let error = format!("{id:?} is a disk; use `sidecore disk move`");
            return Err(refused(error, "it moves the queues of a disk"));
        }
        let plan = self.plan.nic(id).ok_or_else(|| self.plan.no_such_nic(id))?;
        if plan.host().is_some() {
            let error =
                format!("nic {id:?} is wired to the host, and a host port stays where it is");
            return Err(refused(error, "only nics of a switch are moved"));
        }
        Ok(())
    }

    /// Whether a NIC can go to sidecore `to` now: its number, or why not.
    ///
    /// # Errors
    /// `Busy` when it can in a moment; anything else when it cannot as it is.
    fn may_go(&self, id: &str, to: usize) -> Result<u32, ApiError> {
        let refused = |error: String, hint: &str| ApiError::new(ErrorKind::Refused, error, hint);
        self.check_moves(id)?;
        check_sidecore(to, self.around.cores.count())?;
        let devices = &self.around.devices;
        let device = devices.number_of(id).and_then(|number| devices.get(number));
        let nic = device.and_then(|device| Some((device, device.nic()?)));
        let Some((device, nic)) = nic.filter(|(_, nic)| nic.at().is_some()) else {
            let error = format!("nic {id:?} is not at its switch now");
            return Err(refused(error, "`sidecore nic show` says why"));
        };
        let is_leaving = device.leaving_since().is_some();
        if nic.travels() || is_leaving || device.is_held_back() {
            let error = format!("nic {id:?} is being moved, stopped or started");
            return Err(ApiError::new(ErrorKind::Busy, error, "try again in a moment"));
        }
        Ok(device.number())
    }

    /// Has a NIC that [may](Self::may_go) go to its new sidecore. `None`: it is there.
    fn begin(&mut self, number: u32, wish: Wish) -> Option<MoveId> {
        let Wish { to, by_hand, .. } = wish;
        let Around { turn, devices, .. } = &mut self.around;
        let device = found!(turn.defects, devices.get_mut(number), "NIC that moves");
        let queues = device.attached().len();
        let nic = found!(turn.defects, device.nic_mut(), "NIC to move");
        if nic.stays_at(to, by_hand) {
            return None;
        }
        let at = found!(turn.defects, nic.at(), "port of a NIC that moves");
        let (place, from) = (at.way.place, at.home);
        // Frames can go from there to wherever its switch has ports before it is there.
        self.network.connect_homes(place.bridge, to, &mut self.around);
        let id = self.moves.begin_nic(number);
        let Around { turn, devices, cores, .. } = &mut self.around;
        let nic = found!(turn.defects, devices.nic_mut(number), "NIC to move");
        if !nic.depart(id, wish) {
            turn.defects.note("NIC that is at rest");
            self.moves.end(id, Ok(()));
            return None;
        }
        let (port, ends) = ((place.bridge, place.port), (from as u16, to as u16));
        let parts = relocation(id, port, queues, ends, cores.count() as u16);
        for (core, part) in parts.into_iter().enumerate() {
            cores.send(core, Command::Relocate(part));
        }
        Some(id)
    }

    /// A NIC goes to where there is more room. One that cannot just now, or stays, is looked at again after a pause.
    pub(crate) fn relieve(&mut self, number: u32, to: usize) {
        let Around { turn, devices, .. } = &mut self.around;
        let device = found!(turn.defects, devices.get_mut(number), "NIC to move for its load");
        let id = device.facts().id.clone();
        let nic = found!(turn.defects, device.nic_mut(), "NIC to move for its load");
        nic.note_moved(nanos_of(turn.now()));
        let from = nic.home();
        let may = self.may_go(&id, to).is_ok_and(|found| found == number);
        let begun = may && self.begin(number, Wish::new(to, false)).is_some();
        debug!(device = number, from, to, begun, "balance");
    }

    /// A NIC is at its new home, or (with a reason) still at the old one.
    pub(crate) fn end(&mut self, id: MoveId, number: u32, why: Option<Stay>) {
        let outcome = match why {
            None => Outcome::Moved,
            Some(Stay::Unsettled) => Outcome::Late,
            Some(_) => Outcome::Stayed,
        };
        let Around { turn, devices, cores, .. } = &mut self.around;
        let arrived = devices.nic_mut(number).and_then(|nic| nic.arrive(id, outcome));
        let Some(Arrived { from, to, held, announced, again }) = arrived else {
            return self.moves.end(id, Err(NotMoved::NotThere));
        };
        let device = found!(turn.defects, devices.get_mut(number), "NIC that has moved");
        if outcome == Outcome::Moved {
            let rings = usize::from(device.facts().rings);
            cores.give_load(from, rings);
            cores.take_load(to, rings);
            debug!(device = number, from, to, "moved");
            device.queues_mut().iter_mut().for_each(|queue| queue.rehome(to));
        }
        for (index, command) in held {
            device.tell(index, command, turn, cores);
        }
        // Not of a guest that is on its way out: it may already run elsewhere.
        if let Some(mac) = announced.filter(|_| device.surely_runs())
            && let Some(nic) = device.nic_mut()
        {
            nic.say_announcement(mac, cores);
        }
        // What was not started meanwhile starts now.
        turn.touch(number);
        match again.and_then(|wish| self.begin_again(number, wish)) {
            Some(next) => self.moves.replace(id, next),
            None => self.moves.end(id, why.map_or(Ok(()), |why| Err(NotMoved::Stayed(why)))),
        }
    }

    /// Begins a move again. `None`: it cannot go now.
    fn begin_again(&mut self, number: u32, wish: Wish) -> Option<MoveId> {
        let id = self.around.devices.get(number)?.facts().id.clone();
        self.may_go(&id, wish.to).ok()?;
        self.begin(number, wish)
    }
}
