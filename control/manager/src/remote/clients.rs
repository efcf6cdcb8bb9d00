//! A reload gives a link of an IOhost other clients, or some of them other disks and NICs, while all others go on.
//!
//! A disk that no client may have any more is taken from who has it: drained, made stable, let go, and only then removed or
//! opened anew. Not here: what is different (`config::diff`).

use backend::link::LinkKey;
use remote::handshake::PublicKey;
use sidecore::ToHost;

use super::Manager;
use super::greeter::Task;
use crate::defects::found;

impl Manager {
    /// A disk is to go that clients may have, or might: true when one of them has it, and it goes when that one has it no
    /// more.
    pub(crate) fn take_from_clients(&mut self, device: u32) -> bool {
        let export = self.export_of(device);
        export.is_some_and(|(key, export)| self.remove_export(key, export))
    }

    /// No client may have it any more. Whether one has it.
    fn remove_export(&mut self, key: LinkKey, export: u16) -> bool {
        let one =
            found!(self.rooms.turn.defects, self.export(key, export), "export of that number");
        one.is_removed = true;
        let is_had = one.had.as_ref().is_some_and(|had| had.is_here);
        self.tell_seats(key, None, || ToHost::Remove { export });
        is_had
    }

    /// The plan in force has other clients of that link.
    pub(crate) fn set_link_clients(&mut self, id: &str) {
        let plan = self.rooms.plan.links.iter().find(|link| link.id == id).cloned();
        let found = self.rooms.remote.key_of(id).zip(plan);
        let (key, plan) = found!(self.rooms.turn.defects, found, "link that has other clients");
        let keys: Vec<PublicKey> = plan.clients().iter().filter_map(|client| client.key).collect();
        let greeter = self.rooms.remote.greeter.as_ref();
        let greeter = found!(self.rooms.turn.defects, greeter, "thread for handshakes of links");
        greeter.tell(Task::Clients(key, keys));
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        link.plan = plan.clone();
        let serving = found!(self.rooms.turn.defects, link.serving(), "IOhost's end of that link");
        let exports = (0..).zip(&serving.exports).filter(|(_, one)| !one.is_removed);
        let exports: Vec<(u16, String)> =
            exports.map(|(number, one)| (number, one.disk.clone())).collect();
        for (export, name) in exports {
            let nic = name.strip_prefix("nic:").map(str::to_string);
            let clients = plan.clients().iter();
            let its: Vec<_> = clients
                .filter(|one| match &nic {
                    Some(nic) => one.nics.contains(nic),
                    None => one.disks.contains(&name),
                })
                .collect();
            // Nobody named would be everybody.
            let is_lent = !its.is_empty();
            let keys: Vec<PublicKey> = its.iter().filter_map(|one| one.key).collect();
            if is_lent {
                let told = || ToHost::SetClients { export, clients: keys.clone() };
                self.tell_seats(key, None, told);
            } else {
                self.remove_export(key, export);
            }
        }
        self.export_nics(key);
        // Ports that waited for the right to have them.
        self.retry_uplinks_now();
    }
}
