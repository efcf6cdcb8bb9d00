//! Guests' vCPUs that use a sidecore's processor: each of the two waits while the other has it.
//!
//! Seen in run state of guests that are followed, at each look at the sidecores' loads: which part of its time a
//! sidecore's processor was a vCPU's. Placement counts it as load, so that queues go elsewhere; operators are told
//! once of each guest. Not here: how vCPUs are found (`guest_vcpus`), and what is moved (`balance`).

use std::collections::{BTreeMap, BTreeSet};

use runstate::{Activity, Slot, Table};
use tracing::warn;

use crate::balance::part;
use crate::manager::Manager;
use schedule::LOAD_FULL;

/// From that part of a sidecore's time on, thousandths, a guest is told of: a thread that is only on its way to
/// another processor has less.
const SAID_FROM: u32 = 50;

/// What is known of them.
#[derive(Debug, Default)]
pub(crate) struct Rivals {
    looked_ns: u64,
    /// How long each thread had had a processor at the last look.
    had_ns: BTreeMap<Slot, u64>,
    /// What they had of each sidecore's processor at the last look, thousandths of the time.
    taken: Vec<u32>,
    /// Devices whose guest was told of, and the sidecore.
    said: BTreeSet<(u32, usize)>,
}

/// A device's vCPU on a sidecore's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rival {
    device: u32,
    vcpu: u16,
    core: usize,
}

impl Rivals {
    /// What vCPUs had of a sidecore's processor between the last two looks, thousandths of the time.
    pub(crate) fn taken(&self, core: usize) -> u32 {
        self.taken.get(core).copied().unwrap_or(0)
    }

    /// Looks at the vCPUs of all devices (device, number of the vCPU, slot) on these processors of sidecores. Gives those that
    /// were not told of yet.
    fn look(
        &mut self,
        table: &Table,
        vcpus: impl Iterator<Item = (u32, u16, Slot)>,
        cpus: &[u32],
        now_ns: u64,
    ) -> Vec<Rival> {
        let time_ns = now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns));
        let before = std::mem::take(&mut self.had_ns);
        let mut taken_ns = vec![0u64; cpus.len()];
        let (mut rivals, mut devices) = (Vec::new(), BTreeSet::new());
        for (device, vcpu, slot) in vcpus {
            devices.insert(device);
            let Some(state) = table.read(slot) else { continue };
            let runs_ns = match state.activity {
                Activity::Runs => now_ns.saturating_sub(state.since_ns),
                Activity::Unknown | Activity::Waits | Activity::Sleeps => 0,
            };
            let had_ns = state.on_ns.saturating_add(runs_ns);
            // Devices of one guest have the same vCPUs.
            let is_first = self.had_ns.insert(slot, had_ns).is_none();
            let Some(had_before) = before.get(&slot) else { continue };
            let Some(core) = cpus.iter().position(|cpu| *cpu == state.cpu) else { continue };
            let took_ns = had_ns.saturating_sub(*had_before).min(time_ns);
            if is_first && let Some(sum) = taken_ns.get_mut(core) {
                *sum += took_ns;
            }
            if part(took_ns, time_ns, LOAD_FULL) >= SAID_FROM && self.said.insert((device, core)) {
                rivals.push(Rival { device, vcpu, core });
            }
        }
        self.said.retain(|(device, _)| devices.contains(device));
        self.taken = taken_ns.iter().map(|ns| part(*ns, time_ns, LOAD_FULL)).collect();
        rivals
    }
}

impl Manager {
    /// Sees which guests take processors from sidecores, and says so once.
    pub(crate) fn see_rivals(&mut self, now_ns: u64) {
        let Some(roster) = &self.guests.roster else { return };
        let vcpus = self.devices.values().flat_map(|device| {
            let of =
                |(vcpu, slot): &(runstate::vcpus::Vcpu, Slot)| (device.number, vcpu.index, *slot);
            device.follow.vcpus.iter().map(of)
        });
        let cpus: Vec<u32> = self.cores.all.iter().map(|core| core.cpu).collect();
        for Rival { device, vcpu, core } in
            self.guests.rivals.look(roster.table(), vcpus, &cpus, now_ns)
        {
            let id = self.devices.get(&device).map_or("", |device| device.facts.id.as_str());
            let cpu = cpus.get(core).copied().unwrap_or_default();
            warn!(
                device = id,
                vcpu,
                sidecore = core,
                cpu,
                "its guest runs on a sidecore's processor, so each waits for the other: keep the guest's vCPUs off it \
                 (libvirt: <vcpupin>; a cpuset; or isolcpus)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn slot(number: u16) -> Slot {
        Table::simulated_slot(number)
    }

    /// Two sidecores on processors 4 and 5; a guest of two vCPUs with two devices, of which one vCPU is on 5.
    #[test]
    fn what_vcpus_take_of_a_sidecores_processor_is_seen_and_said_once() {
        let (table, mut rivals, cpus) = (Table::simulated(), Rivals::default(), [4, 5]);
        let vcpus =
            || [7, 8].into_iter().flat_map(|device| [(device, 0, slot(0)), (device, 1, slot(1))]);
        table.simulate(slot(0), Activity::Runs, 2, 0);
        table.simulate(slot(1), Activity::Runs, 5, 0);
        let first = rivals.look(&table, vcpus(), &cpus, SECOND);
        assert_eq!((first, rivals.taken(1)), (vec![], 0), "one look says nothing");
        table.simulate(slot(1), Activity::Waits, 5, SECOND + SECOND / 4);
        let said = rivals.look(&table, vcpus(), &cpus, 2 * SECOND);
        let rival = |device| Rival { device, vcpu: 1, core: 1 };
        assert_eq!(said, [rival(7), rival(8)]);
        assert_eq!((rivals.taken(0), rivals.taken(1), rivals.taken(9)), (0, 250, 0));
        table.simulate(slot(1), Activity::Runs, 5, 2 * SECOND);
        assert_eq!(rivals.look(&table, vcpus(), &cpus, 3 * SECOND), [], "it was said");
        assert_eq!(rivals.taken(1), 1000);
        table.simulate(slot(1), Activity::Runs, 3, 3 * SECOND);
        rivals.look(&table, vcpus(), &cpus, 4 * SECOND);
        assert_eq!(rivals.taken(1), 0, "it went elsewhere");
        // A device that goes is told of again if it comes again.
        rivals.look(&table, std::iter::empty(), &cpus, 5 * SECOND);
        assert!(rivals.said.is_empty() && rivals.had_ns.is_empty());
    }

    #[test]
    fn one_that_only_passes_by_is_not_said() {
        let (table, mut rivals) = (Table::simulated(), Rivals::default());
        let vcpus = || std::iter::once((1, 0, slot(0)));
        table.simulate(slot(0), Activity::Sleeps, 4, 0);
        rivals.look(&table, vcpus(), &[4], SECOND);
        table.simulate(slot(0), Activity::Runs, 4, SECOND);
        table.simulate(slot(0), Activity::Sleeps, 4, SECOND + SECOND / 25);
        assert_eq!(rivals.look(&table, vcpus(), &[4], 2 * SECOND), []);
        assert_eq!(rivals.taken(0), 40);
        // Two looks at one moment.
        assert_eq!(rivals.look(&table, vcpus(), &[4], 2 * SECOND), []);
    }
}
