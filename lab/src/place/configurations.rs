//! Who serves the guests' devices: the ways that are compared, as data.
//!
//! Not how they are started (`disks`, `nics`), nor who is compared with whom (`experiments`).

use std::path::Path;

use anyhow::Result;

use super::cpus::Cpus;
use super::disks::{self, Backing};
use super::nics;
use super::steering::Steering;
use crate::children::Children;

/// What a load needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Disk,
    Nic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Qemu {
        iothread: bool,
    },
    Ide,
    StorageDaemon,
    /// QEMU's own model of a card, without virtio.
    E1000,
    Vhost {
        busy_us: u32,
    },
    Sidecore {
        policy: &'static str,
    },
    /// Polls, and asks the guest after each visit whether it wants a call for what it sent (`moderate_us = 0`).
    Unmoderated,
    /// `es2` with this quota of frames, instead of 8.
    Quota {
        frames: u32,
    },
    /// Polls; a guest of several vCPUs, a pair of queues for each, and the NIC's `redirect`.
    Pairs {
        redirect: &'static str,
    },
}

/// One way to serve a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// As in rows.
    pub(crate) name: &'static str,
    pub(crate) device: Device,
    pub(crate) server: Server,
    /// Each vCPU, and what serves, has its CPU; otherwise the kernel decides.
    pub(crate) is_pinned: bool,
    /// One of so many operations is enough: dozens of exits each take their time.
    pub(crate) slower: u64,
    /// In the quick run of `exits`, too.
    pub(crate) is_quick: bool,
}

impl Configuration {
    const fn new(name: &'static str, device: Device, server: Server) -> Configuration {
        Configuration { name, device, server, is_pinned: true, slower: 1, is_quick: false }
    }

    const fn quick(self) -> Configuration {
        Configuration { is_quick: true, ..self }
    }

    const fn unpinned(self) -> Configuration {
        Configuration { is_pinned: false, ..self }
    }

    const fn slower(self, slower: u64) -> Configuration {
        Configuration { slower, ..self }
    }
}

const fn disk(name: &'static str, server: Server) -> Configuration {
    Configuration::new(name, Device::Disk, server)
}

const fn nic(name: &'static str, server: Server) -> Configuration {
    Configuration::new(name, Device::Nic, server)
}

const QEMU: Server = Server::Qemu { iothread: false };
const VHOST: Server = Server::Vhost { busy_us: 0 };
const POLL: Server = Server::Sidecore { policy: "poll" };

/// `sidecore` is the one of the papers: a core of its own that polls. The other policies decide by time,
/// which is not time where the place is emulated. Those that are unpinned are the baseline of ELVIS, those that
/// are pinned its baseline with affinity.
pub(crate) const CONFIGURATIONS: &[Configuration] = &[
    disk("qemu", QEMU).quick(),
    disk("qemu-unpinned", QEMU).unpinned(),
    disk("qemu-iothread", Server::Qemu { iothread: true }),
    disk("qemu-storage-daemon", Server::StorageDaemon).quick(),
    disk("ide", Server::Ide).slower(20).quick(),
    disk("sidecore", POLL).quick(),
    disk("sidecore-adaptive", Server::Sidecore { policy: "adaptive" }),
    disk("sidecore-es2", Server::Sidecore { policy: "es2" }),
    disk("sidecore-notify", Server::Sidecore { policy: "notify" }),
    nic("vhost-net", VHOST).quick(),
    nic("vhost-net-unpinned", VHOST).unpinned(),
    nic("vhost-net-busy", Server::Vhost { busy_us: 50 }),
    nic("qemu", QEMU).quick(),
    nic("qemu-unpinned", QEMU).unpinned(),
    nic("e1000", Server::E1000).slower(5),
    nic("sidecore", POLL).quick(),
    nic("sidecore-unmoderated", Server::Unmoderated).quick(),
    nic("sidecore-adaptive", Server::Sidecore { policy: "adaptive" }),
    nic("sidecore-es2", Server::Sidecore { policy: "es2" }),
    nic("sidecore-notify", Server::Sidecore { policy: "notify" }),
];

/// For the choice of a quota (ES2, figure 4).
pub(crate) const QUOTAS: &[Configuration] = &[
    nic("es2-quota-2", Server::Quota { frames: 2 }),
    nic("es2-quota-4", Server::Quota { frames: 4 }),
    nic("es2-quota-8", Server::Quota { frames: 8 }),
    nic("es2-quota-16", Server::Quota { frames: 16 }),
    nic("es2-quota-32", Server::Quota { frames: 32 }),
];

/// With frames for a vCPU that has no CPU redirected to one that has, and without (ES2, figure 7).
pub(crate) const REDIRECTS: &[Configuration] = &[
    nic("sidecore-stay", Server::Pairs { redirect: "off" }),
    nic("sidecore-redirect", Server::Pairs { redirect: "always" }),
];
/// vCPUs of a guest that has several, and pairs of queues of its NIC.
pub(super) const PAIRS: usize = 4;

/// The names of all configurations, each once.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for one in CONFIGURATIONS.iter().chain(QUOTAS).chain(REDIRECTS) {
        if !names.contains(&one.name) {
            names.push(one.name);
        }
    }
    names
}

/// The beginning of a configuration's name, as an option.
///
/// # Errors
/// There is none whose name begins so.
pub(crate) fn known(only: &str) -> Result<String, String> {
    let names = names();
    match names.iter().any(|name| name.starts_with(only)) {
        true => Ok(only.to_string()),
        false => Err(format!("there is none whose name begins so; choose of {}", names.join(" "))),
    }
}

/// What serving needs to know.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    /// The sidecore program.
    pub(crate) sidecore: &'a Path,
    /// For sockets and logs of this configuration.
    pub(crate) dir: &'a Path,
    pub(crate) cpus: &'a Cpus,
    /// So many are served, at least one.
    pub(crate) guests: usize,
    /// What is below their disks.
    pub(crate) backing: Backing,
}

impl Configuration {
    pub(crate) fn machine(&self) -> &'static str {
        if self.server == Server::Ide { "pc" } else { "q35" }
    }

    /// Of each guest.
    pub(crate) fn vcpus(&self) -> usize {
        if let Server::Pairs { .. } = self.server { PAIRS } else { 1 }
    }

    /// Who is asked where frames went, if that is what is measured.
    pub(crate) fn steering(&self, site: &Site<'_>) -> Option<Steering> {
        let Server::Pairs { redirect } = self.server else { return None };
        let (sidecore, api) = (site.sidecore.to_path_buf(), site.dir.join("api.sock"));
        Some(Steering { sidecore, api, redirects: redirect != "off" })
    }

    /// The disk as the guest names it.
    pub(crate) fn disk(&self) -> &'static str {
        if self.server == Server::Ide { "/dev/sda" } else { "/dev/vda" }
    }

    /// Starts the serving side; gives QEMU's options for the device of each guest.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn serve(
        &self,
        site: &Site<'_>,
        children: &mut Children,
    ) -> Result<Vec<Vec<String>>> {
        match self.device {
            Device::Disk => disks::serve(self, site, children),
            Device::Nic => nics::serve(self, site, children),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_name_is_taken_and_others_are_refused_with_all_names() {
        assert_eq!(known("sidecore-").as_deref(), Ok("sidecore-"));
        assert_eq!(known("").as_deref(), Ok(""));
        assert!(known("vhost-blk").is_err_and(|said| said.contains("qemu qemu-unpinned")));
    }
}
