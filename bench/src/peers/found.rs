//! Who can be measured on this machine, and why others cannot.

use anyhow::Result;
use testing::client::fio;
use testing::spdk::Spdk;
use testing::unpacked::Program;

use super::report::Lacking;
use crate::blk::{self, Load, RAM_DISK_BYTES};
use crate::net;

/// What was found before anything is measured.
pub(super) struct Found {
    /// Why SPDK and its client are not, if so.
    no_spdk: Option<String>,
    has_newer_dpdk: bool,
    /// Who is missing, and what to do.
    pub(super) lacking: Vec<Lacking>,
}

impl Found {
    /// # Errors
    /// Something is named, and is not there.
    pub(super) fn look() -> Result<Found> {
        Spdk::if_named()?;
        let spdk = Spdk::named().and_then(|_| Spdk::may_be_measured(RAM_DISK_BYTES));
        let dpdk = Program::of_debian_13("dpdk-testpmd");
        let fio = fio::program();
        let mut lacking = vec![Lacking {
            who: "cloud-hypervisor's vhost_user_block".to_owned(),
            why: "no Debian has it, and no way to name one is built".to_owned(),
        }];
        let mut lacks = |who: &str, error: Option<String>| {
            let why = error.into_iter().map(|why| Lacking { who: who.to_owned(), why });
            lacking.extend(why);
        };
        let no_spdk = spdk.err().map(|error| error.to_string());
        lacks("spdk and bdevperf", no_spdk.clone());
        lacks("fio with libblkio", fio.as_ref().err().map(ToString::to_string));
        lacks("dpdk-24.11", dpdk.as_ref().err().map(ToString::to_string));
        Ok(Found { no_spdk, has_newer_dpdk: dpdk.is_ok(), lacking })
    }

    /// Whether that client is here; if not, why.
    pub(super) fn client(&self, load: Load) -> std::result::Result<(), String> {
        match (load, &self.no_spdk) {
            (Load::Own, _) => Ok(()),
            (Load::Bdevperf, Some(why)) => Err(why.clone()),
            _ => blk::client(load).map(|_| ()).map_err(|error| error.to_string()),
        }
    }

    pub(super) fn disk_servers(&self) -> Vec<blk::Peer> {
        let spdk = self.no_spdk.is_none().then_some(blk::Peer::Spdk);
        [blk::Peer::Sidecore, blk::Peer::Qemu].into_iter().chain(spdk).collect()
    }

    pub(super) fn net_servers(&self) -> Vec<net::Peer> {
        let newer = self.has_newer_dpdk.then_some(net::Peer::DpdkNewer);
        [net::Peer::Sidecore, net::Peer::Dpdk].into_iter().chain(newer).collect()
    }

    /// The newest that there is, the same before all servers.
    pub(super) fn driver(&self) -> net::Driver {
        if self.has_newer_dpdk { net::Driver::TestpmdNewer } else { net::Driver::Testpmd }
    }
}
