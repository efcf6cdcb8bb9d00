//! NICs: guests on switches, VLANs, host ports in namespaces, DPDK's driver.
//!
//! | module | what |
//! |---|---|
//! | `drivers` | what drivers do to a NIC while it works |
//! | `guests` | the networks of two guests |
//! | `killed` | connections outlive the daemon's death |
//! | `outside` | a guest that reaches the host's network, each way there is |
//! | `pair` | two guests that are booted once for all that takes two |
//! | `testpmd` | DPDK's driver in front of a switch |
//! | `tunnels` | what kernels wrap goes through a switch |

mod drivers;
mod guests;
mod killed;
mod outside;
mod pair;
mod testpmd;
mod tunnels;

use anyhow::Result;
use testing::bed::{Bed, Need};
use testing::daemon::Daemon;
use testing::namespace::Namespace;
use testing::vm::{Boot, NicOptions};

use crate::suite::{Case, Group};

const fn root(name: &'static str, run: fn(&Bed) -> Result<()>) -> Case {
    Case::run(name, run).needs(&[Need::Root])
}

/// The group.
pub(super) const GROUP: Group = Group::new(
    "net",
    "NICs: guests on switches, VLANs, host ports in namespaces, DPDK's driver (root)",
    &[
        root("pair", pair::pair).parts(&["guests", "drivers", "killed"]).usually(60),
        root("outside", outside::outside).parts(&["host-ports", "pasted-nic"]).usually(30),
        root("tunnels", tunnels::tunnels),
        root("testpmd", testpmd::rings),
        root("testpmd-pair", testpmd::pair),
    ],
);

/// A NIC as the daemon's file has it, and as QEMU does.
#[derive(Clone, Copy)]
struct Nic {
    id: &'static str,
    /// The last byte of its address.
    number: u8,
    /// Lines of the file.
    lines: &'static str,
    queues: u16,
    mtu: u32,
    properties: &'static str,
}

impl Nic {
    /// One pair of queues, 1,500 bytes; `lines` are of the file.
    const fn new(number: u8, id: &'static str, lines: &'static str) -> Nic {
        Nic { id, number, lines, queues: 1, mtu: 1500, properties: "" }
    }

    const fn queues(mut self, queues: u16) -> Nic {
        self.queues = queues;
        self
    }

    const fn mtu(mut self, mtu: u32) -> Nic {
        self.mtu = mtu;
        self
    }

    /// Properties of virtio-net-pci.
    const fn properties(mut self, properties: &'static str) -> Nic {
        self.properties = properties;
        self
    }

    fn mac(&self) -> String {
        format!("52:54:00:51:00:{:02x}", self.number)
    }

    /// Its part of the daemon's file.
    fn declared(&self) -> String {
        let Nic { id, lines, queues, mtu, .. } = self;
        let mac = self.mac();
        format!(
            "[[nic]]\nid = \"{id}\"\nmac = \"{mac}\"\nqueues = {queues}\nmtu = {mtu}\n{lines}\n"
        )
    }

    /// A boot with it, as its next `ethN`.
    fn plugged(&self, boot: Boot, daemon: &Daemon) -> Boot {
        let Nic { queues, mtu, properties, .. } = *self;
        let properties = properties.to_owned();
        let options = NicOptions { mac: self.mac(), queues, mtu, properties };
        boot.nic(daemon.socket(self.id), &options)
    }
}

/// A daemon in a namespace, with a sidecore on each cpu as it needs them.
fn daemon(name: &str, host: &Namespace, devices: &str) -> Result<Daemon> {
    Daemon::with(name, devices).cpus("auto").through(&host.through()).start()
}

/// Switches of these names in the daemon's file.
fn switches(names: &[&str]) -> String {
    names.iter().map(|name| format!("[[switch]]\nid = \"{name}\"\n")).collect()
}

/// NICs in the daemon's file.
fn nics(nics: &[Nic]) -> String {
    nics.iter().map(Nic::declared).collect()
}

/// Runs a part of a case if it is wanted. Its error is its own failure, and the parts behind it go on.
fn part(bed: &Bed, name: &str, run: impl FnOnce(&Bed) -> Result<()>) -> Result<()> {
    if bed.wants(name) {
        let bed = bed.part(name)?;
        if let Err(error) = run(&bed) {
            bed.failed("", format_args!("{error:#}"));
        }
        if !bed.has_recorded() {
            bed.failed("", "it checked nothing");
        }
    }
    Ok(())
}
