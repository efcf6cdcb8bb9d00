//! Queues of guests none of whose vCPUs has a processor: they are not polled, since nobody can put anything in.
//!
//! Nothing is late by it only in this order: the VM's word is read, then the ring is found empty, then the word is
//! read again and is the same, and no vCPU has a processor. Whatever a vCPU wrote before it lost its processor is seen by who
//! reads that it has none; whoever writes later was given one, and the word is another one.
//!
//! Not how that is known (`runstate`), nor when such a queue is looked at all the same (`schedule`). Called by
//! `sidecore`, each pass, and by `visit`.

use std::sync::Arc;

use runstate::{Pulse, Table, Vm};
use schedule::Nanos;

use crate::places::served_at;
use crate::served::{QueueKey, Served};
use crate::sidecore::Sidecore;

/// The VM that a queue belongs to, and where it is said what its vCPUs do.
#[derive(Clone, Debug)]
pub struct VmLine {
    /// The daemon's; there is one.
    pub table: Arc<Table>,
    /// All vCPUs of this VM are counted for it.
    pub vm: Vm,
}

/// What a queue knows of its VM.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    line: Option<VmLine>,
    /// The VM's word when the ring was found empty last.
    seen: Pulse,
}

impl Served {
    /// Whose it is from now on; `None`: it is polled whatever runs.
    pub fn set_vm(&mut self, line: Option<VmLine>) {
        self.ring.owner = Owner { line, seen: Pulse::default() };
    }
}

impl Sidecore {
    /// Control has found out whose that queue is.
    pub(crate) fn set_vm(&mut self, key: QueueKey, line: Option<VmLine>, now: Nanos) {
        let Some(queue) = self.find(key) else { return };
        let Some(served) = served_at(&mut self.places, queue) else { return };
        let (share, policy) = (served.ring.share, served.ring.policy_here());
        served.set_vm(line);
        if self.schedule.is_dormant(queue) {
            self.schedule.set(queue, share, policy, now);
        }
        self.follow_vm(queue);
    }

    /// A queue has come, or its VM.
    pub(crate) fn follow_vm(&mut self, queue: u16) {
        let line =
            served_at(&mut self.places, queue).and_then(|served| served.ring.owner.line.as_ref());
        if let Some(line) = line.filter(|_| self.run_state.is_none()) {
            self.run_state = Some(Arc::clone(&line.table));
        }
    }

    /// As a pass begins: those whose guests had a processor since are visited in it.
    #[inline]
    pub(crate) fn wake_dormant(&mut self) {
        let Some(table) = self.run_state.as_ref() else { return };
        let dormant = self.schedule.wake(|vm| table.pulse(Vm::numbered(vm)).word());
        self.counters.unpolled.add(dormant as u64);
    }

    /// As a pass ends.
    #[inline]
    pub(crate) fn count_dormant(&self) {
        let dormant = self.schedule.dormant() as u64;
        if self.run_state.is_some() && dormant != self.counters.dormant.get() {
            self.counters.dormant.set(dormant);
        }
    }

    /// The ring at this place was empty.
    #[inline]
    pub(crate) fn found_empty(&mut self, queue: u16) {
        let Some(table) = self.run_state.as_ref() else { return };
        let Some(served) = served_at(&mut self.places, queue) else { return };
        let owner = &mut served.ring.owner;
        let Some(line) = &owner.line else { return };
        let pulse = table.pulse(line.vm);
        let before = std::mem::replace(&mut owner.seen, pulse);
        if pulse == before && pulse.running() == 0 {
            self.schedule.sleep(queue, line.vm.number(), pulse.word());
        }
    }
}
