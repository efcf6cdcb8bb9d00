//! NICs that are moved between sidecores: who may go, what waits meanwhile, and where they are then.
//!
//! How a NIC travels is the sidecores' affair ([`sidecore::relocation`]): all of them have a part in it,
//! and one answers, in a millisecond or so. Until then it is not known who has its queues; what is to be
//! said of them is kept, as for disks (`moves`, where operators who wait are, too). Called by `calls`
//! (operators), `balance` (loads), `moves` (the answer), and by all that concerns where a NIC is.

use config::Target;
use config::api::{ApiError, ErrorKind};
use config::spec::NicMove;
use control::port::Arrived;
use sidecore::{Command, MoveId, Stay, nanos_of, relocation};
use tracing::{debug, info};

use crate::api::Reply;
use crate::calls::Answered;
use crate::defects::found;
use crate::manager::Manager;
use crate::queue::Move;
use crate::sidecores::moves::NotMoved;
use crate::sidecores::wishes::check_sidecore;

/// An operator's move is begun again so often: each takes a millisecond or two, in which a sidecore that sleeps,
/// or frames that are on their way, may come too late.
const TRIES_MAX: u8 = 50;

impl Manager {
    /// Moves a NIC. The operator is answered when it is where it was to be, or is not going there.
    pub(crate) fn move_nic(&mut self, id: &str, wish: &NicMove, reply: Reply) {
        let to = match wish.to {
            Target::Sidecore(to) => usize::from(to),
            Target::Auto => return reply.answer(self.let_nic_go(id)),
        };
        let number = match self.nic_may_move(id, to) {
            Ok(number) => number,
            Err(error) => return reply.answer(Err(error)),
        };
        info!(nic = id, to, "moving");
        self.rooms.cores.wake(to);
        let begun = self.begin_nic_move(number, to, true);
        self.rooms.moves.wait(number, begun.into_iter().collect(), reply);
    }

    /// Has a NIC stay nowhere any more, as `moves` does with queues.
    fn let_nic_go(&mut self, id: &str) -> Answered {
        self.check_nic_moves(id)?;
        let number = self.rooms.devices.number_of(id);
        if let Some(nic) = number.and_then(|number| self.rooms.devices.nic_mut(number)) {
            nic.port.let_go();
        }
        info!(nic = id, "let go");
        self.show_nic(id, true)
    }

    /// Refuses what is no NIC, and one that goes nowhere.
    fn check_nic_moves(&self, id: &str) -> Result<(), ApiError> {
        let refused = |error: String, hint: &str| ApiError::new(ErrorKind::Refused, error, hint);
        if self.rooms.plan.disk(id).is_some() {
            let error = format!("{id:?} is a disk; use `sidecore disk move`");
            return Err(refused(error, "it moves the queues of a disk"));
        }
        let plan = self.rooms.plan.nic(id).ok_or_else(|| self.rooms.plan.no_such_nic(id))?;
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
    pub(crate) fn nic_may_move(&self, id: &str, to: usize) -> Result<u32, ApiError> {
        let refused = |error: String, hint: &str| ApiError::new(ErrorKind::Refused, error, hint);
        self.check_nic_moves(id)?;
        check_sidecore(to, self.rooms.cores.count())?;
        let device =
            self.rooms.devices.number_of(id).and_then(|number| self.rooms.devices.get(number));
        let nic = device.and_then(|device| Some((device, device.kind.nic()?)));
        let Some((device, nic, _)) = nic.and_then(|(device, nic)| Some((device, nic, nic.plug()?)))
        else {
            let error = format!("nic {id:?} is not at its switch now");
            return Err(refused(error, "`sidecore nic show` says why"));
        };
        let is_leaving = device.leaving_since().is_some();
        if nic.travels() || is_leaving || device.is_held_back() {
            let error = format!("nic {id:?} is being moved, stopped or started");
            return Err(ApiError::new(ErrorKind::Busy, error, "try again in a moment"));
        }
        Ok(device.number)
    }

    /// A NIC goes to where there is more room. One that cannot just now, or stays, is looked at again after a pause.
    pub(crate) fn relieve_of_nic(&mut self, number: u32, to: usize) {
        let at = nanos_of(self.rooms.turn.now());
        let from = self.rooms.devices.nic_mut(number).and_then(|nic| {
            nic.port.way_mut()?.moved = Some(at);
            Some(nic.plug()?.place.home)
        });
        let device = self.rooms.devices.get(number);
        let id =
            found!(self.rooms.turn.defects, device, "NIC to move for its load").facts.id.clone();
        let may = self.nic_may_move(&id, to).is_ok_and(|found| found == number);
        let moved = if may { self.begin_nic_move(number, to, false) } else { None };
        debug!(device = number, from, to, begun = moved.is_some(), "balance");
    }

    /// Has a NIC that [may](Self::nic_may_move) go to sidecore `to`. `None`: it is there.
    pub(crate) fn begin_nic_move(
        &mut self,
        number: u32,
        to: usize,
        by_hand: bool,
    ) -> Option<MoveId> {
        // The loads' wishes come again by themselves.
        self.begin_trip(number, (to, by_hand), if by_hand { TRIES_MAX } else { 0 })
    }

    fn begin_trip(
        &mut self,
        number: u32,
        (to, by_hand): (usize, bool),
        tries_left: u8,
    ) -> Option<MoveId> {
        let nic =
            found!(self.rooms.turn.defects, self.rooms.devices.nic_mut(number), "NIC that moves");
        if nic.port.stays_at(to, by_hand) {
            return None;
        }
        let plug = nic.plug();
        let place = found!(self.rooms.turn.defects, plug, "port of a NIC that moves").place;
        let device = found!(self.rooms.turn.defects, self.rooms.devices.get(number), "NIC to move");
        let queues = device.attached().len();
        // Frames can go from there to wherever its switch has ports before it is there.
        self.connect_homes(Some(place.bridge), to);
        let id = self.rooms.moves.begin_nic(number);
        let nic =
            found!(self.rooms.turn.defects, self.rooms.devices.nic_mut(number), "NIC to move");
        if !nic.port.depart(Move { id, to, by_hand }, tries_left) {
            self.rooms.turn.defects.note("NIC that is at rest");
            self.rooms.moves.end(id, Ok(()));
            return None;
        }
        let (port, ends) = ((place.bridge, place.port), (place.home as u16, to as u16));
        let parts = relocation(id, port, queues, ends, self.rooms.cores.count() as u16);
        for (core, part) in parts.into_iter().enumerate() {
            self.rooms.cores.send(core, Command::Relocate(part));
        }
        Some(id)
    }

    /// A NIC is at its new home, or (with a reason) still at the old one.
    pub(crate) fn nic_move_is_over(&mut self, id: MoveId, number: u32, why: Option<Stay>) {
        let rings = self.rooms.devices.get(number).map_or(0, |device| device.facts.rings);
        let stayed = why.is_some();
        let arrived =
            self.rooms.devices.nic_mut(number).and_then(|nic| nic.port.arrive(id, stayed));
        let Some(Arrived { from, to, wish, held, announced, tries_left }) = arrived else {
            return self.rooms.moves.end(id, Err(NotMoved::NotThere));
        };
        if !stayed {
            self.rooms.cores.give_load(from, rings.into());
            self.rooms.cores.take_load(to, rings.into());
            debug!(device = number, from, to, "moved");
            let queues = self.rooms.devices.get_mut(number).map(|device| &mut device.queues);
            queues.into_iter().flatten().for_each(|queue| queue.rehome(to));
        }
        for (index, command) in held {
            self.rooms.devices.tell(
                number,
                index,
                command,
                &mut self.rooms.turn,
                &mut self.rooms.cores,
            );
        }
        // Not of a guest that is on its way out: it may already run elsewhere.
        let device = self.rooms.devices.get_mut(number).filter(|device| device.surely_runs());
        let nic = device.and_then(|device| device.kind.nic_mut());
        if let Some((mac, nic)) = announced.zip(nic) {
            nic.say_announcement(mac, &mut self.rooms.cores);
        }
        // What was not started meanwhile starts now.
        self.rooms.turn.touch(number);
        let is_late = matches!(why, Some(Stay::Unsettled));
        if is_late && tries_left > 0 && self.try_again(id, number, wish, tries_left - 1) {
            return;
        }
        self.rooms.moves.end(id, why.map_or(Ok(()), |why| Err(NotMoved::Stayed(why))));
    }

    /// Begins an operator's move again, in place of `before`. False: it cannot go now.
    fn try_again(
        &mut self,
        before: MoveId,
        number: u32,
        (to, by_hand): (usize, bool),
        tries_left: u8,
    ) -> bool {
        let id = self.rooms.devices.get(number).map(|device| device.facts.id.clone());
        if id.is_none_or(|id| self.nic_may_move(&id, to).is_err()) {
            return false;
        }
        let Some(next) = self.begin_trip(number, (to, by_hand), tries_left) else { return false };
        self.rooms.moves.replace(before, next);
        true
    }

    /// Its port goes: whatever its sidecores come to, it is not there any more.
    pub(crate) fn forget_travel(&mut self, number: u32) {
        if let Some(id) = self.rooms.devices.nic_mut(number).and_then(|nic| nic.port.call_off()) {
            self.rooms.moves.end(id, Err(NotMoved::Removed));
        }
    }
}
