//! Cpus, cores and NUMA nodes, and which of them `cpus = "auto"` takes.
//!
//! From sysfs (Documentation/ABI/stable/sysfs-devices-system-cpu and -node).

use std::path::Path;

use cpus::HostCpus;
use serde::Serialize;

use crate::files::Files;

/// One sidecore for so many cores, when the operator leaves it open.
const CORES_A_SIDECORE: usize = 8;
/// Most sidecores that `auto` takes of a host without isolated cores.
const AUTO_MAX: usize = 8;

/// The cpus of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// Those that run and that this process may use, by number. Never empty: a host that shows none
    /// has cpu 0.
    pub cpus: Vec<Cpu>,
}

/// One cpu: a hardware thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Its number.
    pub cpu: u32,
    /// The lowest number among the threads of its core, which names the core.
    pub core: u32,
    /// Its NUMA node; 0 where the host shows none.
    pub node: u32,
    /// Kept free of other threads (`isolcpus=`).
    pub isolated: bool,
}

impl Topology {
    /// Reads the host below `root` (`/` for this one). `allowed` is what this process may run on.
    pub fn read(root: &Path, allowed: &[u32]) -> Topology {
        let files = Files::below(root);
        let isolated = files.cpus("sys/devices/system/cpu/isolated");
        let nodes: Vec<(u32, Vec<u32>)> = files
            .numbered("sys/devices/system/node", "node")
            .into_iter()
            .map(|node| (node, files.cpus(&format!("sys/devices/system/node/node{node}/cpulist"))))
            .collect();
        let mut online = files.cpus("sys/devices/system/cpu/online");
        // Nothing is placed on isolated cpus by itself, so no affinity names them; they can still
        // be pinned to.
        online.retain(|cpu| allowed.contains(cpu) || isolated.contains(cpu));
        if online.is_empty() {
            online.push(allowed.iter().copied().min().unwrap_or(0));
        }
        online.sort_unstable();
        let describe = |cpu: u32| {
            let siblings = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            Cpu {
                cpu,
                core: files.cpus(&siblings).into_iter().chain([cpu]).min().unwrap_or(cpu),
                node: nodes
                    .iter()
                    .find(|(_, cpus)| cpus.contains(&cpu))
                    .map_or(0, |(node, _)| *node),
                isolated: isolated.contains(&cpu),
            }
        };
        Topology { cpus: online.into_iter().map(describe).collect() }
    }

    /// This host, as this process may use it.
    pub fn of_this_host() -> Topology {
        Topology::read(Path::new("/"), &allowed_cpus())
    }

    /// The numbers of the cores.
    pub fn cores(&self) -> Vec<u32> {
        distinct(self.cpus.iter().map(|cpu| cpu.core))
    }

    /// The numbers of the NUMA nodes.
    pub fn nodes(&self) -> Vec<u32> {
        distinct(self.cpus.iter().map(|cpu| cpu.node))
    }

    /// What the configuration needs to know.
    ///
    /// `auto` is the isolated cpus, all of them, if there are any: somebody set them aside for such
    /// work. Otherwise everything but the first core, on which the kernel's own work gathers, from
    /// the last core down and one thread of each core before any second one; of these, one for each
    /// eight cores suits, at least one and at most eight. A host of one core shares it.
    pub fn host_cpus(&self) -> HostCpus {
        let online: Vec<u32> = self.cpus.iter().map(|cpu| cpu.cpu).collect();
        let isolated: Vec<u32> =
            self.cpus.iter().filter(|cpu| cpu.isolated).map(|cpu| cpu.cpu).collect();
        if !isolated.is_empty() {
            let auto_count = u16::try_from(isolated.len()).unwrap_or(u16::MAX);
            return HostCpus { online, auto: isolated, auto_count };
        }
        let first = self.cores().first().copied();
        let mut candidates: Vec<Cpu> =
            self.cpus.iter().copied().filter(|cpu| Some(cpu.core) != first).collect();
        if candidates.is_empty() {
            // One core: its last thread.
            candidates = self.cpus.clone();
        }
        candidates.sort_by_key(|cpu| (cpu.cpu != cpu.core, std::cmp::Reverse(cpu.cpu)));
        let suits = (self.cores().len() / CORES_A_SIDECORE).clamp(1, AUTO_MAX);
        HostCpus {
            online,
            auto: candidates.into_iter().map(|cpu| cpu.cpu).collect(),
            auto_count: u16::try_from(suits).unwrap_or(1),
        }
    }
}

/// The cpus that this process may run on.
pub fn allowed_cpus() -> Vec<u32> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .filter_map(|cpu| u32::try_from(cpu).ok())
            .collect(),
        // More cpus than a `CpuSet` holds: then all are taken to be allowed.
        Err(_) => (0..=cpus::CPU_MAX).collect(),
    }
}

fn distinct(numbers: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::Tree;

    fn auto(tree: &Tree) -> HostCpus {
        Topology::read(tree.root(), &(0..64).collect::<Vec<_>>()).host_cpus()
    }

    #[test]
    fn small_machines_get_one_sidecore_off_the_first_core() {
        let tree = Tree::of(&[("sys/devices/system/cpu/online", "0\n")]);
        assert_eq!(auto(&tree), HostCpus { online: vec![0], auto: vec![0], auto_count: 1 });
        let tree = Tree::of(&[("sys/devices/system/cpu/online", "0-1\n")]);
        assert_eq!(auto(&tree), HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 });
    }

    #[test]
    fn second_threads_come_last_and_the_first_core_not_at_all() {
        let tree = Tree::of(&[
            ("sys/devices/system/cpu/online", "0-5"),
            ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,3"),
            ("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "0,3"),
            ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,4"),
            ("sys/devices/system/cpu/cpu4/topology/thread_siblings_list", "1,4"),
            ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2,5"),
            ("sys/devices/system/cpu/cpu5/topology/thread_siblings_list", "2,5"),
        ]);
        assert_eq!(auto(&tree).auto, [2, 1, 5, 4]);
    }

    #[test]
    fn isolated_cpus_are_taken_all() {
        let tree = Tree::of(&[
            ("sys/devices/system/cpu/online", "0-15"),
            ("sys/devices/system/cpu/isolated", "4-6,20"),
        ]);
        let not_isolated: Vec<u32> = [0, 1, 2, 3].into_iter().chain(7..16).collect();
        for allowed in [not_isolated, (0..16).collect()] {
            let cpus = Topology::read(tree.root(), &allowed).host_cpus();
            assert_eq!((cpus.auto, cpus.auto_count), (vec![4, 5, 6], 3));
        }
    }

    #[test]
    fn a_large_machine_gets_one_for_eight_cores() {
        let tree = Tree::of(&[("sys/devices/system/cpu/online", "0-31")]);
        assert_eq!(auto(&tree).auto_count, 4);
    }

    #[test]
    fn nodes_are_read_and_cpus_outside_the_affinity_are_not_seen() {
        let tree = Tree::of(&[
            ("sys/devices/system/cpu/online", "0-3"),
            ("sys/devices/system/node/node0/cpulist", "0-1"),
            ("sys/devices/system/node/node1/cpulist", "2-3"),
        ]);
        let topology = Topology::read(tree.root(), &[1, 2]);
        let seen: Vec<(u32, u32)> = topology.cpus.iter().map(|cpu| (cpu.cpu, cpu.node)).collect();
        assert_eq!(seen, [(1, 0), (2, 1)]);
        assert_eq!(topology.nodes(), [0, 1]);
    }

    #[test]
    fn odd_files_read_as_absent() {
        for odd in ["", "x", "9999999999", "3-1", "0-4294967295", "\u{fffd}\0"] {
            let tree = Tree::of(&[
                ("sys/devices/system/cpu/online", odd),
                ("sys/devices/system/cpu/isolated", odd),
                ("sys/devices/system/node/node0/cpulist", odd),
                ("sys/devices/system/node/nodeX/cpulist", odd),
            ]);
            assert_eq!(auto(&tree), HostCpus { online: vec![0], auto: vec![0], auto_count: 1 });
        }
    }

    #[test]
    fn this_host_has_a_cpu() {
        assert!(!Topology::of_this_host().host_cpus().auto.is_empty());
    }
}
