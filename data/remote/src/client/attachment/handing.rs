//! An attachment that goes over to another process, with nothing of it under way but a flush of its own.
//!
//! That one binds it again, in a session of its own, as after any end of a session: the slots' turns, who has it, how it
//! stands, and copies of what was not flushed are all it needs. What is read is bounded as a stranger's word.

use super::kept::Kept;
use super::{Attachment, State};
use crate::client::AttachSpec;
use crate::client::slot::State as SlotState;
use crate::saved::{BadSaved, Reader, Writer};
use crate::wire::{Intent, News, Op, checksum};

/// Copies of one attachment: more than any operator may ask for, less than the address space.
const KEEP_BYTES_MAX: u32 = 1 << 30;

impl Attachment {
    /// Puts it behind what was written. False when it cannot go over now: something of it is under way, or what a
    /// machine lost is being sent again.
    pub(in crate::client) fn save(&self, out: &mut Writer<'_>) -> bool {
        let is_quiet = |(at, slot): (usize, &crate::client::slot::Slot)| match slot.state {
            SlotState::Free => true,
            SlotState::Waiting => self.is_own(at as u16) && slot.op == Op::Flush,
            SlotState::Ended => false,
        };
        let goes = self.replay.is_none()
            && self.intent != Intent::Look
            && self.state != State::Over
            && self.finished.is_empty()
            && self.slots.iter().enumerate().all(is_quiet);
        if !goes {
            return false;
        }
        let AttachSpec { device, slots, slot_bytes, keep_bytes } = self.spec;
        out.u64(device);
        out.u16(slots);
        out.u32(slot_bytes);
        out.u32(keep_bytes);
        out.flag(self.intent == Intent::Again);
        out.flag(self.wants_release);
        out.u64(self.generation);
        out.u64(self.name);
        out.verifier(self.verifier);
        out.flag(self.news.is_some());
        let News { revision, size, features, is_removed } = self.news.unwrap_or_default();
        out.u64(revision);
        out.u64(size);
        out.u32(features);
        out.flag(is_removed);
        for flag in [self.is_shrunk, self.is_flush_lost, self.owes_failure] {
            out.flag(flag);
        }
        for count in [self.written, self.flushed, self.number] {
            out.u64(count);
        }
        self.slots.iter().for_each(|slot| out.u64(slot.turn));
        let own = self.slots.iter().find(|slot| slot.state == SlotState::Waiting);
        out.flag(own.is_some());
        let (number, covers) = own.map_or((0, 0), |slot| (slot.number, slot.covers));
        out.u64(number);
        out.u64(covers);
        if let Some(kept) = &self.kept {
            kept.save(out);
        }
        true
    }

    /// One that [`Attachment::save`] has put there, to be bound anew.
    pub(in crate::client) fn take_over(
        index: u16,
        instance: u64,
        since: u64,
        saved: &mut Reader<'_>,
    ) -> Result<Attachment, BadSaved> {
        let (device, slots) = (saved.u64()?, saved.u16()?);
        let (slot_bytes, keep_bytes) = (saved.u32()?, saved.u32()?);
        if keep_bytes > KEEP_BYTES_MAX {
            return Err(BadSaved::Field);
        }
        let spec = AttachSpec { device, slots, slot_bytes, keep_bytes };
        let intent = if saved.flag()? { Intent::Again } else { Intent::Take };
        let made = Attachment::new(index, instance, since, spec, intent);
        let mut one = made.ok_or(BadSaved::Field)?;
        one.wants_release = saved.flag()?;
        (one.generation, one.name, one.verifier) = (saved.u64()?, saved.u64()?, saved.verifier()?);
        let has_news = saved.flag()?;
        // The IOhost's word, whatever it is.
        let (revision, size) = (saved.u64()?, saved.u64()?);
        let news = News { revision, size, features: saved.u32()?, is_removed: saved.flag()? };
        one.news = has_news.then_some(news);
        (one.is_shrunk, one.is_flush_lost) = (saved.flag()?, saved.flag()?);
        one.owes_failure = saved.flag()?;
        (one.written, one.flushed) = (saved.count()?, saved.count()?);
        one.number = saved.count()?;
        for slot in &mut one.slots {
            slot.turn = saved.count()?;
        }
        let has_own = saved.flag()?;
        let (number, covers) = (saved.count()?, saved.count()?);
        let is_one = one.flushed <= one.written && covers <= one.written && number <= one.number;
        if !is_one {
            return Err(BadSaved::Field);
        }
        if has_own {
            one.goes_on_flushing(number, covers)?;
        }
        if one.kept.is_some() {
            let longest = one.spec.slot_bytes;
            one.kept = Some(Kept::take_over(keep_bytes as usize, longest, one.written, saved)?);
        }
        Ok(one)
    }

    /// A flush of its own is under way: its IOhost is asked what became of it.
    fn goes_on_flushing(&mut self, number: u64, covers: u64) -> Result<(), BadSaved> {
        let at = self.own_slot().ok_or(BadSaved::Field)?;
        let device = self.spec.device;
        let slot = self.slots.get_mut(usize::from(at)).ok_or(BadSaved::Field)?;
        if slot.turn == 0 {
            return Err(BadSaved::Field);
        }
        // The process before has said it, and its answer may come before it is recalled.
        (slot.state, slot.is_said) = (SlotState::Waiting, true);
        (slot.op, slot.offset, slot.len, slot.tag) = (Op::Flush, 0, 0, 0);
        slot.checksum = checksum(device, Op::Flush, 0, 0, &[]);
        (slot.number, slot.covers) = (number, covers);
        Ok(())
    }
}
