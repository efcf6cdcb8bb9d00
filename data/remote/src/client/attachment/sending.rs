//! What slots have to say, into frames; and what became of it.

use super::Attachment;
use crate::client::slot::{Slot, State as SlotState};
use crate::loss::{Mark, MarkKind};
use crate::session::Out;
use crate::wire::{Part, Record};

impl Attachment {
    /// Puts what slots have to say into a frame.
    pub(in crate::client) fn fill(&mut self, out: &mut Out<'_>, part_bytes: usize) {
        if !self.has_queued() {
            return;
        }
        let handle = self.handle();
        let own = self.spec.requests_max();
        if self.has_own_queued() {
            if !self.fill_slot(own, handle, out, part_bytes) {
                return;
            }
            self.slots[usize::from(own)].is_queued = false;
        }
        if self.replays_to().is_some() {
            return;
        }
        while let Some(at) = self.queue.front().copied() {
            if !self.fill_slot(at, handle, out, part_bytes) {
                return;
            }
            self.slots[usize::from(at)].is_queued = false;
            self.queue.pop_front();
        }
    }

    /// False when not all of it fitted.
    fn fill_slot(&mut self, at: u16, handle: u32, out: &mut Out<'_>, part_bytes: usize) -> bool {
        let start = usize::from(at) * self.spec.slot_bytes as usize;
        let slot = &mut self.slots[usize::from(at)];
        let mut mark = Mark { kind: MarkKind::Recall, part: 0, slot: at, handle, turn: slot.turn };
        if slot.recalls {
            let record = Record::Recall { handle, slot: at, turn: slot.turn };
            if !out.push(&record, Some(mark)) {
                return false;
            }
            slot.is_said = true;
            // Not all: a recall that was thought lost may be said again when parts wait already (seed 68468).
            slot.recalls = false;
        }
        while let Some(part) = slot.sending.next() {
            let place = part * part_bytes;
            let len = if slot.op.has_data() { slot.len as usize } else { 0 };
            let end = (place + part_bytes).min(len);
            let record = Record::Part(Part {
                handle,
                slot: at,
                op: slot.op,
                turn: slot.turn,
                offset: slot.offset,
                len: slot.len,
                place: place as u32,
                checksum: slot.checksum,
                data: &self.memory[start + place.min(len)..start + end],
            });
            (mark.kind, mark.part) = (MarkKind::Part, part as u8);
            if !out.push(&record, Some(mark)) {
                return false;
            }
            slot.is_said = true;
            slot.sending.sent(part);
        }
        true
    }

    pub(in crate::client) fn mark_taken(&mut self, mark: Mark) {
        if let Some(slot) = self.marked(mark)
            && mark.kind == MarkKind::Part
        {
            slot.sending.taken(usize::from(mark.part));
        }
    }

    pub(in crate::client) fn mark_lost(&mut self, mark: Mark) {
        let Some(slot) = self.marked(mark) else { return };
        match mark.kind {
            MarkKind::Recall => slot.recalls = true,
            _ => slot.sending.lost(usize::from(mark.part)),
        }
        self.queue_slot(mark.slot);
    }

    /// The slot that a mark of this binding means, while that still matters.
    fn marked(&mut self, mark: Mark) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(mark.slot))?;
        (slot.turn == mark.turn && slot.state == SlotState::Waiting).then_some(slot)
    }
}
