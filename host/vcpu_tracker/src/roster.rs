//! Which threads have a slot. Belongs to control, which is the only one to write the index.
//!
//! The program reads the index on every processor while it is changed here, one word at a time: an entry
//! is put behind the others of its bucket, and one that goes is replaced by the last before that one is
//! taken away, so that a look finds each thread that stays.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use runstate::layout::{GIVEN, OF_VM, SLOTS_MAX, STATE, VMS_MAX, WAYS};
use runstate::{Slot, Table, Vm, counts};

use crate::program::bucket_of;

/// How long a slot that was given back is given to nobody: what the program does with it began before and
/// is over by then, also on a processor that was taken from the host for a while. Nanoseconds.
const REST_NS: u64 = 1_000_000_000;

/// There is no slot for another thread, or its bucket is full: it is not followed. Or no line for another VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The threads that are followed.
#[derive(Debug)]
pub struct Roster {
    table: Arc<Table>,
    seed: u32,
    slots: HashMap<u32, (Slot, Option<Vm>)>,
    fresh: u16,
    /// Given back, and when, the oldest first.
    resting: VecDeque<(u64, Slot)>,
    /// Their rest is over.
    rested: Vec<Slot>,
    fresh_vms: u16,
    resting_vms: VecDeque<(u64, Vm)>,
}

impl Roster {
    /// Nobody is followed in `table`, whose program has that seed.
    pub(crate) fn new(table: Arc<Table>, seed: u32) -> Roster {
        Roster {
            table,
            seed,
            slots: HashMap::new(),
            fresh: 0,
            resting: VecDeque::new(),
            rested: Vec::new(),
            fresh_vms: 0,
            resting_vms: VecDeque::new(),
        }
    }

    /// What the slots are in.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// How many are followed.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nobody is.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// A line for a VM, none of whose vCPUs is followed yet.
    ///
    /// # Errors
    /// [`Full`]; nothing changed.
    pub fn add_vm(&mut self, now_ns: u64) -> Result<Vm, Full> {
        // What threads of the one before are still to be taken away is taken away first.
        self.settle(now_ns);
        let is_over = |(since, _): &(u64, Vm)| now_ns.saturating_sub(*since) >= REST_NS;
        let vm = match self.resting_vms.front().copied().filter(is_over) {
            Some((_, vm)) => {
                self.resting_vms.pop_front();
                vm
            }
            None if self.fresh_vms < VMS_MAX => {
                self.fresh_vms += 1;
                Vm::numbered(self.fresh_vms - 1)
            }
            None => return Err(Full),
        };
        self.table.vm(vm).into_iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(vm)
    }

    /// The VM is gone. To be called after its last thread was unbound.
    pub fn remove_vm(&mut self, vm: Vm, now_ns: u64) {
        self.resting_vms.push_back((now_ns, vm));
    }

    /// Whether the thread of that number is counted for `vm`.
    pub fn is_of(&self, tid: u32, vm: Vm) -> bool {
        self.slots.get(&tid).is_some_and(|(_, of)| *of == Some(vm))
    }

    /// Slots whose rest is over are free, and what their threads were counted as ends.
    pub fn settle(&mut self, now_ns: u64) {
        while let Some((since, slot)) = self.resting.front().copied() {
            if now_ns.saturating_sub(since) < REST_NS {
                return;
            }
            self.resting.pop_front();
            self.rested.push(slot);
            let Some(words) = self.table.slot(slot) else { continue };
            let vm = words[OF_VM]
                .load(Ordering::Relaxed)
                .checked_sub(1)
                .map(|vm| Vm::numbered(vm as u16));
            if counts(words[STATE].load(Ordering::Relaxed))
                && let Some(word) = vm.and_then(|vm| self.table.vm(vm))
            {
                word.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Follows the thread of that number from now on. One that is followed for that VM keeps its slot; of another VM's it
    /// is not: that number was another thread's. Until it is switched first it counts as running.
    ///
    /// # Errors
    /// [`Full`]; nothing changed.
    pub fn bind(&mut self, tid: u32, vm: Option<Vm>, now_ns: u64) -> Result<Slot, Full> {
        match self.slots.get(&tid).copied() {
            Some((slot, of)) if of == vm => return Ok(slot),
            Some((slot, _)) => self.unbind(tid, slot, now_ns),
            None => {}
        }
        self.settle(now_ns);
        let bucket = bucket_of(tid, self.seed);
        let entries = (0..WAYS).filter_map(|way| self.table.entry(bucket, way));
        let free = entries.into_iter().find(|entry| entry.load(Ordering::Relaxed) == 0);
        // No thread has the number 0, and an entry of it would be an empty one.
        if tid == 0 || free.is_none() {
            return Err(Full);
        }
        let slot = match self.rested.pop() {
            Some(slot) => slot,
            None if self.fresh < SLOTS_MAX => {
                self.fresh += 1;
                Slot::numbered(self.fresh - 1)
            }
            None => return Err(Full),
        };
        // Nobody writes or believes it yet.
        self.table
            .slot(slot)
            .into_iter()
            .flatten()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        if let (Some(vm), Some(words)) = (vm, self.table.slot(slot)) {
            words[OF_VM].store(u64::from(vm.number()) + 1, Ordering::Relaxed);
            // It is counted before the program can say that it lost its processor.
            if let Some(word) = self.table.vm(vm) {
                word.fetch_add(GIVEN, Ordering::AcqRel);
            }
        }
        if let Some(free) = free {
            free.store(u64::from(slot.number()) << 32 | u64::from(tid), Ordering::Release);
        }
        self.slots.insert(tid, (slot, vm));
        Ok(slot)
    }

    /// The thread of that number is followed no longer, if that slot is its.
    pub fn unbind(&mut self, tid: u32, slot: Slot, now_ns: u64) {
        if self.slots.get(&tid).is_none_or(|(its, _)| *its != slot) {
            return;
        }
        self.slots.remove(&tid);
        let bucket = bucket_of(tid, self.seed);
        let entries: Vec<_> = (0..WAYS).filter_map(|way| self.table.entry(bucket, way)).collect();
        let used = entries.iter().take_while(|entry| entry.load(Ordering::Relaxed) != 0).count();
        let its = entries.iter().find(|entry| entry.load(Ordering::Relaxed) as u32 == tid);
        if let (Some(its), Some(last)) = (its, used.checked_sub(1).and_then(|at| entries.get(at))) {
            its.store(last.load(Ordering::Relaxed), Ordering::Release);
            last.store(0, Ordering::Release);
        }
        self.resting.push_back((now_ns, slot));
    }
}

/// A roster of a table without a kernel.
#[cfg(any(test, feature = "simulated"))]
impl Roster {
    /// Nobody is followed in it.
    pub fn simulated(table: Arc<Table>) -> Roster {
        Roster::new(table, 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use runstate::Activity;

    /// What the program does to find a thread.
    fn find(table: &Table, tid: u32, seed: u32) -> Option<u16> {
        for way in 0..WAYS {
            let entry = table.entry(bucket_of(tid, seed), way)?.load(Ordering::Acquire);
            if entry == 0 {
                return None;
            }
            if entry as u32 == tid {
                return Some((entry >> 32) as u16);
            }
        }
        None
    }

    proptest! {
        #[test]
        fn who_is_bound_is_found_and_nobody_else(
            steps in proptest::collection::vec((1u32..60, any::<bool>()), 1..200),
        ) {
            let table = Arc::new(Table::simulated());
            // This seed spreads nothing: all these numbers meet in one bucket, which is full at times.
            let mut roster = Roster::new(Arc::clone(&table), 1);
            let (mut bound, mut now) = (HashSet::new(), 0);
            for (tid, is_bind) in steps {
                now += REST_NS / 3;
                if is_bind {
                    let has_room = bound.len() < WAYS || bound.contains(&tid);
                    prop_assert_eq!(roster.bind(tid, None, now).is_ok(), has_room);
                    if has_room {
                        bound.insert(tid);
                    }
                } else {
                    if let Some((slot, _)) = roster.slots.get(&tid).copied() {
                        roster.unbind(tid, slot, now);
                    }
                    bound.remove(&tid);
                }
                let mut seen = HashSet::new();
                for tid in 1..60 {
                    let found = find(&table, tid, 1);
                    prop_assert_eq!(found.is_some(), bound.contains(&tid));
                    prop_assert!(found.is_none_or(|slot| seen.insert(slot)), "a slot for each");
                }
            }
        }
    }

    /// Of threads whose slots are followed, those that have a processor.
    fn running(roster: &Roster, vm: Vm) -> u32 {
        let its = roster.slots.values().filter(|(_, of)| *of == Some(vm));
        its.filter(|(slot, _)| {
            matches!(roster.table.activity(*slot), Activity::Runs | Activity::Unknown)
        })
        .count() as u32
    }

    proptest! {
        /// Threads come, go, are switched and change hands; VMs come and go. When those that went have rested, each VM's
        /// word says how many of its threads have a processor.
        #[test]
        fn a_vm_counts_its_threads_that_have_a_processor(
            steps in proptest::collection::vec((0u8..8, 1u32..12, 0usize..3, 0u64..3), 1..300),
        ) {
            let table = Arc::new(Table::simulated());
            let mut roster = Roster::new(Arc::clone(&table), 0x9e37_79b9);
            let (mut vms, mut now) = ([None; 3], 0);
            for (what, tid, which, waits) in steps {
                now += waits * REST_NS / 2;
                match (what, vms[which]) {
                    (0, None) => vms[which] = roster.add_vm(now).ok(),
                    (0, Some(vm)) => {
                        let its = roster.slots.iter().filter(|(_, (_, of))| *of == Some(vm));
                        let its: Vec<_> = its.map(|(tid, (slot, _))| (*tid, *slot)).collect();
                        its.into_iter().for_each(|(tid, slot)| roster.unbind(tid, slot, now));
                        roster.remove_vm(vm, now);
                        vms[which] = None;
                    }
                    (1 | 2, vm) => {
                        prop_assert!(roster.bind(tid, vm, now).is_ok());
                        prop_assert!(vm.is_none_or(|vm| roster.is_of(tid, vm)));
                    }
                    (3, _) => {
                        if let Some((slot, _)) = roster.slots.get(&tid).copied() {
                            roster.unbind(tid, slot, now);
                        }
                    }
                    _ => {
                        let what = [Activity::Runs, Activity::Waits, Activity::Sleeps][which];
                        if let Some((slot, _)) = roster.slots.get(&tid) {
                            table.simulate(*slot, what, 0, now);
                        }
                    }
                }
                // Whoever went counts until it has rested, and never less than those that are there.
                for vm in vms.into_iter().flatten() {
                    prop_assert!(table.pulse(vm).running() >= running(&roster, vm));
                }
            }
            roster.settle(now + REST_NS);
            for vm in vms.into_iter().flatten() {
                prop_assert_eq!(table.pulse(vm).running(), running(&roster, vm));
            }
        }
    }

    #[test]
    fn a_slot_rests_before_it_is_given_again() {
        let mut roster = Roster::simulated(Arc::new(Table::simulated()));
        let first = roster.bind(10, None, 0).expect("room");
        roster.unbind(10, first, 0);
        assert_ne!(roster.bind(11, None, REST_NS - 1), Ok(first));
        assert_eq!(roster.bind(12, None, REST_NS), Ok(first));
    }

    #[test]
    fn there_is_an_end_of_slots() {
        let mut roster = Roster::new(Arc::new(Table::simulated()), 0x9e37_79b9);
        assert_eq!(roster.bind(0, None, 0), Err(Full), "no thread has this number");
        // Neighbours are spread, so no bucket is full before slots are.
        let slots = u32::from(SLOTS_MAX);
        assert!((1..=slots).all(|tid| roster.bind(tid, None, 0).is_ok()));
        assert_eq!(roster.bind(slots + 1, None, REST_NS), Err(Full));
        roster.unbind(1, Slot::numbered(0), 0);
        assert_eq!(roster.bind(slots + 1, None, REST_NS - 1), Err(Full), "the one there is rests");
        assert!(roster.bind(slots + 1, None, REST_NS).is_ok());
    }
}
