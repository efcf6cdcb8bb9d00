//! A device that goes over to another process: who has it, and what its slots have done.
//!
//! Its client binds it again there, in a new session, and what was executed is answered and not executed again. What had
//! not gone to the disk goes over as never seen, and comes again. What is read is bounded as a stranger's word.

use super::slot::{Slot, State as SlotState};
use super::{Export, SlotMemory, State, Wait};
use crate::saved::{BadSaved, Reader, Writer};
use crate::wire::{Op, Outcome, REQUEST_BYTES_MAX, Status};

impl<M: SlotMemory> Export<M> {
    /// Puts it behind what was written. False when there is nothing that another process has to know. To be asked when
    /// nothing of it is with the disk: what was handed out as work and has not ended counts as not executed.
    pub(in crate::iohost) fn save(&self, out: &mut Writer<'_>) -> bool {
        let is_had = matches!(self.state, State::Held | State::Draining | State::Closing);
        let is_had = is_had || self.state == State::Reserved;
        if self.news.is_removed || self.owner.1 == 0 && !is_had {
            return false;
        }
        out.flag(is_had);
        out.u64(self.generation);
        out.bytes(&self.owner.0);
        out.u64(self.owner.1);
        out.u64(self.binding);
        out.verifier(Some(self.verifier));
        out.u64(self.unsynced);
        out.u8(match self.released {
            Some(Outcome::Released) => 1,
            Some(Outcome::Unsynced) => 2,
            _ => 0,
        });
        self.slots.save(out);
        true
    }

    /// What [`Export::save`] has put there: whether a client had it, for whom it is kept for a while.
    pub(in crate::iohost) fn take_over(
        &mut self,
        saved: &mut Reader<'_>,
    ) -> Result<bool, BadSaved> {
        let is_had = saved.flag()?;
        let (generation, key, instance) = (saved.count()?, saved.key()?, saved.u64()?);
        // The client's word, whatever it is: no client may keep this process from being replaced.
        let (binding, verifier) = (saved.u64()?, saved.verifier()?.ok_or(BadSaved::Field)?);
        let unsynced = saved.u64()?;
        let released = match saved.u8()? {
            0 => None,
            1 => Some(Outcome::Released),
            2 => Some(Outcome::Unsynced),
            _ => return Err(BadSaved::Field),
        };
        self.slots.take_over(saved)?;
        self.generation = self.generation.max(generation);
        if self.generation > generation {
            // Somebody has had it since, at another IOhost.
            self.slots.forget();
            return Ok(false);
        }
        (self.owner, self.binding, self.verifier) = ((key, instance), binding, verifier);
        (self.unsynced, self.released) = (unsynced, released);
        if is_had {
            self.state = State::Reserved;
        }
        Ok(is_had)
    }

    /// Whether it is kept for this client, who comes back as it left.
    pub(in crate::iohost) fn is_back(&self, wait: &Wait) -> bool {
        self.state == State::Reserved && self.goes_on(wait).is_some()
    }

    /// Nobody has come back for it: it is made stable and let go, as that of a client whose lease is over.
    pub(in crate::iohost) fn give_away(
        &mut self,
        events: &mut std::collections::VecDeque<super::HostEvent>,
    ) {
        if self.state == State::Reserved {
            self.close(events);
        }
    }
}

impl Slot {
    fn save(&self, out: &mut Writer<'_>) {
        let is_read = self.op == Op::Read;
        let (turn, state) = match self.state {
            SlotState::Idle => (self.turn, 0),
            // Its bytes do not go over: if its client has not heard, it is read once more.
            SlotState::Answered if is_read && self.status == Status::Ok => (self.turn, 2),
            SlotState::Answered => (self.turn, 1),
            SlotState::Gone => (self.turn, 2),
            SlotState::Gathering | SlotState::Ready | SlotState::Executing => {
                (self.turn.saturating_sub(1), 0)
            }
        };
        out.u64(turn);
        out.u8(state);
        out.u8(self.status as u8);
        out.flag(is_read);
    }

    fn take_over(saved: &mut Reader<'_>) -> Result<Slot, BadSaved> {
        let mut slot = Slot::new();
        slot.turn = saved.count()?;
        let state = saved.u8()?;
        slot.status = Status::parse(saved.u8()?).map_err(|_| BadSaved::Field)?;
        let is_read = saved.flag()?;
        slot.op = if is_read { Op::Read } else { Op::Flush };
        slot.state = match state {
            0 => SlotState::Idle,
            1 if !(is_read && slot.status == Status::Ok) && slot.turn > 0 => SlotState::Answered,
            2 if is_read && slot.turn > 0 => SlotState::Gone,
            _ => return Err(BadSaved::Field),
        };
        if slot.status == Status::NeverSeen {
            return Err(BadSaved::Field);
        }
        Ok(slot)
    }
}

impl<M: SlotMemory> super::Slots<M> {
    fn save(&self, out: &mut Writer<'_>) {
        out.u64(self.name);
        out.flag(self.is_untouched);
        out.u32(self.slot_bytes);
        out.u16(self.slots.len() as u16);
        self.slots.iter().for_each(|slot| slot.save(out));
    }

    fn take_over(&mut self, saved: &mut Reader<'_>) -> Result<(), BadSaved> {
        let (name, is_untouched) = (saved.u64()?, saved.flag()?);
        let (slot_bytes, count) = (saved.u32()?, saved.u16()?);
        if count > crate::SLOTS_MAX || slot_bytes as usize > REQUEST_BYTES_MAX {
            return Err(BadSaved::Field);
        }
        self.renew(name, count, slot_bytes);
        self.is_untouched = is_untouched;
        for slot in &mut self.slots {
            *slot = Slot::take_over(saved)?;
        }
        Ok(())
    }
}
