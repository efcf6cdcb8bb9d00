//! What is compared with what: for each experiment its configurations, their guests and their loads.

use super::cells::{CELLS, Cell, Kind};
use super::configurations::{CONFIGURATIONS, Configuration, Device, QUOTAS, REDIRECTS};
use super::disks::Backing;
use super::loads::Load;
use crate::orders::Server;

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Experiment {
    /// A request at a time, of a disk and by UDP, with QEMU, vhost-net and Sidecore
    Smoke,
    /// Exits by cause of all loads with all configurations (ES2, table I and figure 5; ELVIS, 4.3)
    Exits,
    /// Exits against the quota of policy es2, for frames that are sent (ES2, figure 4)
    Quota,
    /// 1, 2 and 4 guests that read and write RAM disks with 8 threads each (ELVIS, figure 6)
    BlockGuests,
    /// 1, 2 and 4 guests that send datagrams and wait for them, or send streams (ELVIS, figures 4 and 5)
    NetGuests,
    /// A guest that sends datagrams and waits for them, beside 0 to 3 that send streams (ELVIS, figure 7)
    Mixed,
    /// The same with 1 and 2 streams, with one part of it after the other (ELVIS, figure 8)
    Ablation,
    /// Exits a request of an IDE disk, of virtio and of Sidecore (kvm-guest-io, 3.1)
    Merged,
    /// memcached and an HTTP server in a guest, asked from outside (ELVIS, figure 4; ES2, figures 8 and 9)
    Servers,
    /// A guest of several vCPUs on one CPU, asked for answers, with redirection and without (ES2, figure 7)
    Redirect,
}

/// A configuration, its guests, and what they do: started once, and ended.
#[derive(Clone, Debug)]
pub(crate) struct Stand {
    /// The experiment's name, as people give it.
    pub(crate) experiment: String,
    pub(crate) configuration: &'static Configuration,
    pub(crate) guests: usize,
    pub(crate) backing: Backing,
    pub(crate) loads: Vec<Load>,
}

impl Stand {
    /// What no other of a run has: `exits, disk, qemu`.
    pub(crate) fn id(&self) -> String {
        let device = match self.configuration.device {
            Device::Disk => "disk",
            Device::Nic => "nic",
        };
        format!("{}, {device}, {}", self.experiment, self.configuration.name)
    }
}

/// So many guests at once.
const GUESTS: [usize; 3] = [1, 2, 4];

impl Experiment {
    /// What it starts one after the other.
    pub(crate) fn stands(self, quick: bool) -> Vec<Stand> {
        match self {
            Experiment::Smoke => {
                let of = |cell: &Cell| cell.is_smoke;
                self.singles(&named(&["qemu", "vhost-net", "sidecore"]), of, quick)
            }
            Experiment::Exits => {
                let all = CONFIGURATIONS.iter().filter(|one| one.is_quick || !quick);
                self.singles(&all.collect::<Vec<_>>(), |_| true, quick)
            }
            Experiment::Quota => {
                self.singles(&QUOTAS.iter().collect::<Vec<_>>(), |cell| cell.kind.is_send(), quick)
            }
            Experiment::Merged => {
                let of = |cell: &Cell| matches!(cell.kind, Kind::Read { .. } | Kind::Write { .. });
                self.singles(&named(&["ide", "qemu", "sidecore"]), of, quick)
            }
            Experiment::BlockGuests => {
                let loads = || GUESTS.map(|guests| Load::blocks(guests, quick)).to_vec();
                self.groups(Device::Disk, &["qemu", "qemu-iothread", "sidecore"], loads)
            }
            Experiment::NetGuests => {
                let streams = || GUESTS.map(|guests| Load::streams(guests, quick));
                let loads = || {
                    let exchanges = GUESTS.map(|guests| Load::exchanges(guests, quick));
                    exchanges.into_iter().chain(streams()).collect()
                };
                self.groups(Device::Nic, &["vhost-net-unpinned", "vhost-net", "sidecore"], loads)
            }
            Experiment::Mixed => {
                let loads = || (0..=3).map(|count| Load::exchange_beside(count, quick)).collect();
                self.groups(Device::Nic, &["vhost-net", "sidecore"], loads)
            }
            Experiment::Servers => {
                let servers = [Server::Memcached, Server::Http];
                let loads = || servers.map(|server| Load::served(server, quick)).to_vec();
                self.groups(Device::Nic, &["vhost-net-unpinned", "vhost-net", "sidecore"], loads)
            }
            Experiment::Redirect => {
                let loads = || [false, true].map(|apart| Load::echoed(apart, quick)).to_vec();
                REDIRECTS.iter().map(|one| self.stand(one, loads())).collect()
            }
            Experiment::Ablation => {
                let loads = || (1..=2).map(|count| Load::exchange_beside(count, quick)).collect();
                let names = ["vhost-net-unpinned", "vhost-net", "sidecore-notify", "sidecore"];
                self.groups(Device::Nic, &names, loads)
            }
        }
    }

    /// One guest with each configuration, which does those cells that are its device's.
    fn singles(
        self,
        configurations: &[&'static Configuration],
        has: impl Fn(&Cell) -> bool,
        quick: bool,
    ) -> Vec<Stand> {
        let mut stands = Vec::new();
        for configuration in configurations {
            let cells =
                CELLS.iter().filter(|cell| cell.device == configuration.device && has(cell));
            let mut loads: Vec<Load> = cells.map(|cell| cell.load(configuration, quick)).collect();
            if self == Experiment::Exits && configuration.device == Device::Nic {
                loads.insert(0, Load::spin());
            }
            if !loads.is_empty() {
                stands.push(self.stand(configuration, loads));
            }
        }
        stands
    }

    /// As many guests at once as a load has at most; the others have nothing to do meanwhile.
    fn groups(self, device: Device, names: &[&str], loads: impl Fn() -> Vec<Load>) -> Vec<Stand> {
        let found = named(names).into_iter().filter(|one| one.device == device);
        let of =
            |configuration| Stand { backing: Backing::Ram, ..self.stand(configuration, loads()) };
        found.map(of).collect()
    }

    fn stand(self, configuration: &'static Configuration, loads: Vec<Load>) -> Stand {
        let guests = loads.iter().map(Load::guests).max().unwrap_or(1);
        let backing = Backing::Null;
        Stand { experiment: self.name(), configuration, guests, backing, loads }
    }

    /// As people give it.
    pub(crate) fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_string())
    }
}

/// Configurations of these names, of disks and of NICs, in the order in which they are known.
fn named(names: &[&str]) -> Vec<&'static Configuration> {
    CONFIGURATIONS.iter().filter(|one| names.contains(&one.name)).collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn names_of_rows_are_one_of_each_in_a_stand_and_a_guest_has_one_part() {
        for experiment in Experiment::value_variants() {
            let stands = experiment.stands(false);
            assert!(!stands.is_empty(), "{experiment:?}");
            for stand in stands {
                let mut names: Vec<&str> = stand
                    .loads
                    .iter()
                    .flat_map(|load| load.parts.iter().map(|part| part.name.as_str()))
                    .collect();
                let all = names.len();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), all, "{stand:?}");
                for load in &stand.loads {
                    let mut guests: Vec<usize> =
                        load.parts.iter().flat_map(|part| part.guests.clone()).collect();
                    guests.sort_unstable();
                    assert_eq!(guests, (0..load.guests()).collect::<Vec<_>>(), "{load:?}");
                    assert!(load.guests() <= stand.guests, "{stand:?}");
                }
            }
        }
    }

    #[test]
    fn no_two_stands_of_a_run_are_taken_for_each_other() {
        let all = Experiment::value_variants().iter().flat_map(|one| one.stands(false));
        let mut ids: Vec<String> = all.map(|stand| stand.id()).collect();
        assert_eq!(ids.first().map(String::as_str), Some("smoke, disk, qemu"));
        let before = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), before);
    }

    #[test]
    fn experiments_have_the_configurations_they_name() {
        let of = |experiment: Experiment, quick| {
            let stands = experiment.stands(quick);
            stands.iter().map(|stand| stand.configuration.name).collect::<Vec<_>>()
        };
        assert_eq!(of(Experiment::Exits, false).len(), CONFIGURATIONS.len());
        let quick = of(Experiment::Exits, true);
        let disks = ["qemu", "qemu-storage-daemon", "ide", "sidecore"];
        let nics = ["vhost-net", "qemu", "sidecore", "sidecore-unmoderated"];
        assert_eq!(quick, [disks, nics].concat());
        assert_eq!(of(Experiment::BlockGuests, false), ["qemu", "qemu-iothread", "sidecore"]);
        assert_eq!(of(Experiment::Mixed, false), ["vhost-net", "sidecore"]);
        assert_eq!(of(Experiment::Ablation, false).len(), 4);
        assert_eq!(of(Experiment::Merged, false), ["qemu", "ide", "sidecore"]);
        assert_eq!(
            of(Experiment::Smoke, true),
            ["qemu", "sidecore", "vhost-net", "qemu", "sidecore"]
        );
        assert_eq!(of(Experiment::Redirect, true), ["sidecore-stay", "sidecore-redirect"]);
        assert_eq!(Experiment::NetGuests.name(), "net-guests");
        assert_eq!(Experiment::Mixed.stands(false).first().map(|stand| stand.guests), Some(4));
    }

    #[test]
    fn a_quick_run_has_half_the_operations_and_slow_devices_fewer() {
        let operations = |name: &str, quick| {
            let stands = Experiment::Exits.stands(quick);
            let stand = stands.into_iter().find(|stand| stand.configuration.name == name);
            stand.map(|stand| stand.loads[1].parts[0].operations)
        };
        assert_eq!(operations("sidecore", false), Some(20_000));
        assert_eq!(operations("sidecore", true), Some(10_000));
        assert_eq!(operations("ide", true), Some(500));
    }
}
