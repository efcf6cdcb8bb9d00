//! Others on a sidecore's processor: what the sidecore loses by them, and which guest is there.
//!
//! What it loses is what the kernel counts of its thread, time in which that would have run and waited: no guest can add to
//! it, or hide it. Placement goes by it, so that queues go where nobody takes the processor. Which guest has it is seen in run
//! state, and only said, once of each guest: a guest can seem to be anywhere. Looked at with the sidecores' loads.
//! Not here: how vCPUs are found (`guests`), and what is moved (`sidecores`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use runstate::{Activity, Row, Table};
use schedule::LOAD_FULL;

use crate::devices::queue::portion;

/// From that part of the time on, thousandths, a guest is told of: of what the sidecore lost, and of what the guest had.
const SAID_FROM: u32 = 50;

/// What is known of them.
#[derive(Debug, Default)]
pub(crate) struct Rivals {
    looked_ns: u64,
    /// The sidecores' threads.
    threads: Vec<Option<u32>>,
    /// How long each of them has waited for its processor, at the last look, where the kernel counts that.
    waited_ns: Vec<Option<u64>>,
    /// What each sidecore lost between the last two looks, thousandths of the time, where that is known.
    lost: Vec<Option<u32>>,
    /// Of each vCPU at the last look: how long it had had a processor, and which one then.
    had: BTreeMap<Row, (u64, u32)>,
    /// Guests that were told of, by the first of their devices.
    said: BTreeSet<u32>,
}

/// A guest on a sidecore's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    /// The first of its devices.
    pub(crate) device: u32,
    /// The first of its vCPUs there.
    pub(crate) vcpu: u16,
    pub(crate) core: usize,
}

impl Rivals {
    /// When a sidecore would have run and others had its processor, between the last two looks, thousandths of the time.
    /// Nothing: the kernel does not count it, or there were no two looks.
    pub(crate) fn lost(&self, core: usize) -> Option<u32> {
        self.lost.get(core).copied().flatten()
    }

    /// Sees how long the thread of each of `count` sidecores has waited for its processor so far. Gives the time since
    /// the last look.
    pub(crate) fn weigh_threads(&mut self, count: usize, now_ns: u64) -> u64 {
        if self.threads.is_empty() {
            self.threads = threads_of(count);
        }
        let waited = |thread: &Option<u32>| thread.and_then(waited_ns);
        let waited = self.threads.iter().map(waited).collect();
        self.weigh(waited, now_ns)
    }

    /// Guests that are gone may be told of again, by the first of their devices.
    pub(crate) fn forget_gone(&mut self, is_there: impl Fn(u32) -> bool) {
        self.said.retain(|device| is_there(*device));
    }

    /// Takes in how long each sidecore's thread has waited for its processor so far. Gives the time since the last look.
    fn weigh(&mut self, waited_ns: Vec<Option<u64>>, now_ns: u64) -> u64 {
        let time_ns = now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns));
        let before = std::mem::replace(&mut self.waited_ns, waited_ns);
        // At the first look nothing is known of the time before.
        let since = |(now, before): (&Option<u64>, &Option<u64>)| {
            let lost_ns = (*now)?.saturating_sub((*before)?);
            Some(portion(lost_ns.min(time_ns), time_ns, LOAD_FULL))
        };
        self.lost = self.waited_ns.iter().zip(&before).map(since).collect();
        time_ns
    }

    /// Looks at the vCPUs (of a guest by its first device, the vCPU's number, its row) on these processors of sidecores.
    /// Only who was there at both looks counts: where else it was between them is not known. Gives guests that were not
    /// told of yet, where the sidecore loses something.
    pub(crate) fn look(
        &mut self,
        table: &Table,
        vcpus: impl Iterator<Item = (u32, u16, Row)>,
        cpus: &[u32],
        (now_ns, time_ns): (u64, u64),
    ) -> Vec<Rival> {
        let before = std::mem::take(&mut self.had);
        let mut guests: BTreeMap<(u32, usize), (u16, u64)> = BTreeMap::new();
        for (device, vcpu, row) in vcpus {
            let Some(state) = table.read(row) else { continue };
            let runs_ns = match state.activity {
                Activity::Runs => now_ns.saturating_sub(state.since_ns),
                Activity::Unknown | Activity::Waits | Activity::Sleeps => 0,
            };
            let had_ns = state.on_ns.saturating_add(runs_ns);
            self.had.insert(row, (had_ns, state.cpu));
            let same = before.get(&row).filter(|(_, cpu)| *cpu == state.cpu);
            if let (Some((before_ns, _)), Some(core)) =
                (same, cpus.iter().position(|cpu| *cpu == state.cpu))
            {
                let took_ns = had_ns.saturating_sub(*before_ns);
                guests.entry((device, core)).or_insert((vcpu, 0)).1 += took_ns.min(time_ns);
            }
        }
        let mut rivals = Vec::new();
        for ((device, core), (vcpu, took_ns)) in guests {
            let is_much = self.lost(core) >= Some(SAID_FROM)
                && portion(took_ns.min(time_ns), time_ns, LOAD_FULL) >= SAID_FROM;
            if is_much && self.said.insert(device) {
                rivals.push(Rival { device, vcpu, core });
            }
        }
        rivals
    }
}

/// The thread of each sidecore, by its name.
fn threads_of(count: usize) -> Vec<Option<u32>> {
    let mut threads = vec![None; count];
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let name = names::kernel_text(task.path().join("comm")).unwrap_or_default();
        let index = name.trim_end().strip_prefix("sidecore-").and_then(|text| text.parse().ok());
        let thread = index.and_then(|index: usize| threads.get_mut(index));
        if let (Some(thread), Ok(number)) = (thread, task.file_name().to_string_lossy().parse()) {
            *thread = Some(number);
        }
    }
    threads
}

/// How long a thread of this process has waited for a processor, nanoseconds; of a kernel that does not count it nothing.
fn waited_ns(thread: u32) -> Option<u64> {
    let text = names::kernel_text(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn row(number: u16) -> Row {
        Table::simulated_row(number)
    }

    #[test]
    fn what_is_lost_is_what_its_thread_waited() {
        let mut rivals = Rivals::default();
        let mut lost = |waited: [Option<u64>; 3], now| {
            rivals.weigh(waited.to_vec(), now);
            [0, 1, 2, 3].map(|core| rivals.lost(core))
        };
        let waited = |first, second| [Some(first), Some(second), None];
        assert_eq!(lost(waited(9 * SECOND, 0), SECOND), [None; 4], "one look says nothing");
        let second = lost(waited(9 * SECOND, SECOND / 4), 2 * SECOND);
        assert_eq!(second, [Some(0), Some(250), None, None], "what is not counted is not known");
        let third = lost(waited(99 * SECOND, SECOND / 4), 3 * SECOND);
        assert_eq!(third[..2], [Some(1000), Some(0)], "no more than all");
        let fourth = lost(waited(99 * SECOND, SECOND / 4), 3 * SECOND);
        assert_eq!(fourth[0], Some(0), "two looks at one moment");
    }

    #[test]
    fn this_test_is_found_by_its_name_and_waits() {
        std::thread::Builder::new()
            .name("sidecore-1".to_string())
            .spawn(|| {
                let threads = threads_of(2);
                assert!(threads[0].is_none() && threads[1].is_some(), "{threads:?}");
                assert!(threads[1].and_then(waited_ns).is_some());
            })
            .expect("a thread")
            .join()
            .expect("it found itself");
    }

    /// Sidecores on processors 4 and 5, of which the second loses a quarter; a guest of two vCPUs, one of them on 5.
    #[test]
    fn a_guest_on_a_sidecores_processor_is_said_once() {
        let (table, mut rivals, cpus) = (Table::simulated(), Rivals::default(), [4, 5]);
        let mut at = 0;
        let mut look = |lost: u64| {
            at += SECOND;
            let waited = rivals.waited_ns.get(1).copied().flatten().unwrap_or(0) + lost;
            let time_ns = rivals.weigh(vec![Some(0), Some(waited)], at);
            let vcpus = [(7, 0, row(0)), (7, 1, row(1))];
            rivals.look(&table, vcpus.into_iter(), &cpus, (at, time_ns))
        };
        table.simulate(row(0), Activity::Runs, 6, 0);
        table.simulate(row(1), Activity::Runs, 5, 0);
        assert_eq!(look(SECOND / 4), [], "one look says nothing");
        assert_eq!(look(0), [], "it loses nothing by it");
        // It was somewhere else, and comes by at the moment of a look.
        table.simulate(row(1), Activity::Runs, 3, 2 * SECOND);
        assert_eq!(look(SECOND / 4), []);
        table.simulate(row(1), Activity::Waits, 3, 4 * SECOND - 1);
        table.simulate(row(1), Activity::Runs, 5, 4 * SECOND - 1);
        assert_eq!(look(SECOND / 4), []);
        assert_eq!(look(SECOND / 4), [Rival { device: 7, vcpu: 1, core: 1 }]);
        assert_eq!(look(SECOND / 4), [], "it was said");
    }

    #[test]
    fn many_vcpus_of_a_guest_count_together_and_a_little_is_not_said() {
        let (table, mut rivals) = (Table::simulated(), Rivals::default());
        let mut said = |count: u16, from: u64| {
            let vcpus = || (0..count).map(|vcpu| (1, vcpu, row(vcpu)));
            (0..count).for_each(|at| table.simulate(row(at), Activity::Sleeps, 4, from));
            rivals.weigh(vec![Some(from)], from);
            rivals.look(&table, vcpus(), &[4], (from, SECOND));
            for at in 0..count {
                table.simulate(row(at), Activity::Runs, 4, from);
                table.simulate(row(at), Activity::Sleeps, 4, from + SECOND / 25);
            }
            rivals.weigh(vec![Some(from + SECOND / 2)], from + SECOND);
            rivals.look(&table, vcpus(), &[4], (from + SECOND, SECOND))
        };
        assert_eq!(said(1, SECOND), []);
        assert_eq!(said(3, 3 * SECOND), [Rival { device: 1, vcpu: 0, core: 0 }]);
    }
}
