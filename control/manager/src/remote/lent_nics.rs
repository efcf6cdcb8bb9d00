//! NICs for other machines: ports of a switch whose other end is a client.
//!
//! The link's end of a port is at one shard, and follows the client that has its NIC. Not here: what a port may (`switch`),
//! frames (`backend::link`).

use backend::link::LinkNic;
use config::plan::LinkClientPlan;
use remote::device_of;
use remote::handshake::PublicKey;
use remote::iohost::ExportSpec;
use remote::wire::News;
use sidecore::{AttachmentMemory, ToHost};
use tracing::info;

use super::export::{Export, Had, on_the_wire};
use super::host::Host;
use super::nics::{SLOT_BYTES, SLOTS};
use super::ports::Counted;
use crate::defects::{found, late};

impl Host<'_, '_> {
    /// Tells shards of all NICs that clients may have. Ports are plugged in when they are there.
    pub(super) fn export_nics(&mut self) {
        let clients = self.line.plan().clients().to_vec();
        let mut names: Vec<&String> = clients.iter().flat_map(|client| &client.nics).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            if self.serving.number_of(&on_the_wire(name)).is_some() {
                continue;
            }
            let its = |client: &&LinkClientPlan| client.nics.contains(name);
            let keys: Vec<PublicKey> =
                clients.iter().filter(its).filter_map(|client| client.key).collect();
            self.serving.add(Export::of_nic(name));
            let device = device_of(&on_the_wire(name));
            let news = News { revision: 1, size: 0, features: 0, is_removed: false };
            let spec = ExportSpec { device, clients: keys, news, generation: 0 };
            self.tell_shards(None, || ToHost::Export(spec.clone()));
        }
    }

    /// A port was opened: its link has the other end from now on.
    pub(super) fn plug_in(&mut self, port: u32, name: &str, id: String, nic: Box<LinkNic>) {
        self.serving.plug_in(port, Counted { id, counters: nic.counters() });
        // None: it has not heard of it yet.
        let Some(export) = self.serving.number_of(&on_the_wire(name)) else { return };
        let one = self.serving.export_mut(export);
        let one = found!(self.around.turn.defects, one, "export of that number");
        // Where the client is that has it; the next one may be elsewhere, and has it brought there.
        let shard = one.shard().unwrap_or(0);
        one.plug_in(shard);
        self.tell_shard(shard, ToHost::PlugIn { export, nic });
    }

    /// A client at that shard is to have a NIC. One that asks for it as for something else does not get it.
    pub(super) fn lend_nic(
        &mut self,
        shard: usize,
        (export, generation): (u16, u64),
        (slots, slot_bytes): (u16, u32),
        before: Option<Had>,
    ) {
        let is_least = (slots, slot_bytes) == (SLOTS, SLOT_BYTES);
        let memory = is_least.then(|| AttachmentMemory::new(slots, slot_bytes).ok()).flatten();
        let is_had = memory.is_some();
        let Some(memory) = memory else {
            let one = self.serving.export_mut(export);
            one.into_iter().for_each(|one| one.take_back(before.clone()));
            self.tell_shard(shard, ToHost::Opened { export, generation, opened: None });
            return self.log_nic(export, is_had);
        };
        self.tell_shard(shard, ToHost::NicOpened { export, memory });
        self.is_at(shard, (export, generation));
        if let Some(from) = self.serving.export_mut(export).and_then(|one| one.pull_out(shard)) {
            self.tell_shard(from, ToHost::PullOut { export });
        }
        self.log_nic(export, is_had);
    }

    /// Nobody has a NIC any more, of which nothing is remembered.
    pub(super) fn let_go_of_nic(&mut self, export: u16) {
        let now = self.around.turn.now();
        self.serving.export_mut(export).into_iter().for_each(|one| one.leave(true, now));
        self.is_nowhere(export, true);
        self.log_nic(export, false);
    }

    fn log_nic(&mut self, export: u16, is_had: bool) {
        if self.may_log() {
            let nic = self.serving.export(export).and_then(Export::nic);
            info!(link = self.line.id(), nic, is_had, "a nic");
        }
    }

    /// The link's end of a NIC's port is to go where its client is.
    pub(super) fn is_pulled_out(&mut self, export: u16, nic: Box<LinkNic>) {
        let one = self.serving.export_mut(export);
        let one = found!(self.around.turn.defects, one, "export of that number");
        let Some(shard) = one.is_pulled_out() else { return late("port of a NIC") };
        self.tell_shard(shard, ToHost::PlugIn { export, nic });
    }
}
