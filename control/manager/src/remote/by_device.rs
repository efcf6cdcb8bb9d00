//! Links, by the devices that go by them.
//!
//! Most devices go by none: nothing is done then. Not here: what is done (`disks`, `nics`, `lends`, `lent_nics`). Called
//! by `by_links`.

use backend::link::{LinkKey, LinkNic};
use backend::net::{HostOpenError, Why};
use config::Plan;
use config::plan::{DiskPlan, HostPlan, LinkPlan, Source};
use remote::device_of;
use tracing::warn;

use super::Remote;
use super::around::{Around, Opening};
use super::client::Client;
use super::error::LinkPortError;
use super::export::{Export, on_the_wire};
use super::host::Host;
use super::link::OneLink;
use super::parts::RemoteParts;
use crate::defects::{found, late};
use crate::disk::DiskParts;
use crate::network::nic::NicParts;
use crate::opening::not_open::NotOpen;

/// Disks of other machines.
impl Remote {
    /// Opens a disk of another machine, if it is known what that is.
    ///
    /// # Errors
    /// It is not, or there is no such link.
    pub(crate) fn open_remote(
        &mut self,
        plan: DiskPlan,
        around: &mut Around<'_>,
    ) -> Result<DiskParts, NotOpen> {
        let Source::Remote { link: id, .. } = &plan.source else {
            return Err(NotOpen::Wrong("it is no disk of another machine".to_string()));
        };
        let id = id.clone();
        let Some(key) = self.key_of(&id) else {
            return Err(NotOpen::Wrong(format!(
                "link {id:?} is made at the daemon's start: restart it"
            )));
        };
        match self.client(key, around) {
            Some(mut client) => client.open(plan),
            None => Err(NotOpen::Wrong(format!("link {id:?} is of the other role"))),
        }
    }

    /// The link of a disk of another machine.
    fn client_of<'s, 'b>(
        &'s mut self,
        device: u32,
        around: &'s mut Around<'b>,
    ) -> Option<Client<'s, 'b>> {
        let key = around.devices.disk(device)?.remote.as_ref().map(RemoteParts::link)?;
        self.client(key, around)
    }

    /// Asks for a disk when a ring of it is to start, and gives it back when none is there any more.
    pub(crate) fn follow_remote(&mut self, device: u32, around: &mut Around<'_>) {
        if let Some(mut client) = self.client_of(device, around) {
            client.follow(device);
        }
    }

    /// What a device has of a link is given back.
    pub(crate) fn release_remote(&mut self, device: u32, around: &mut Around<'_>) {
        if let Some(mut client) = self.client_of(device, around) {
            client.release(device);
        }
    }

    /// An operator knows what a disk has lost.
    pub(crate) fn forgive_remote(&mut self, device: u32, around: &mut Around<'_>) {
        if let Some(mut client) = self.client_of(device, around) {
            client.forgive(device);
        }
    }

    /// An operator has a guest go on with what its IOhost has.
    pub(crate) fn accept_remote(&mut self, device: u32, around: &mut Around<'_>) {
        if let Some(mut client) = self.client_of(device, around) {
            client.accept(device);
        }
    }
}

/// Disks for other machines.
impl Remote {
    /// The link, and the number there, of a disk that clients may have.
    fn export_of(&self, device: u32) -> Option<(LinkKey, u16)> {
        self.links.iter().find_map(|link| {
            let number = link.serving()?.number_of_device(device)?;
            Some((link.line.key(), number))
        })
    }

    fn host_of<'s, 'b>(
        &'s mut self,
        device: u32,
        around: &'s mut Around<'b>,
    ) -> Option<(Host<'s, 'b>, u16)> {
        let (key, export) = self.export_of(device)?;
        Some((self.host(key, around)?, export))
    }

    /// A disk was opened: if clients may have it, its link is told.
    pub(crate) fn export_disk(&mut self, device: u32, around: &mut Around<'_>) {
        let its = around.devices.get(device);
        let id = &found!(around.turn.defects, its, "device that was opened").facts().id;
        let key = around.plan.link_of(id).and_then(|link| self.key_of(&link.id));
        if let Some(mut host) = key.and_then(|key| self.host(key, around)) {
            host.export_disk(device);
        }
    }

    /// The locks of a disk that a client is to have are here, or are not to be had.
    pub(crate) fn open_for_client(
        &mut self,
        opening: Opening,
        is_here: bool,
        around: &mut Around<'_>,
    ) {
        if let Some(mut host) = self.host(opening.key, around) {
            host.open(opening, is_here);
        }
    }

    /// The queue of a disk that a link serves is back, at `base` of its ring.
    pub(crate) fn export_is_back(
        &mut self,
        device: u32,
        (base, problem): (u32, Option<&str>),
        around: &mut Around<'_>,
    ) {
        let Some((mut host, export)) = self.host_of(device, around) else {
            return around.turn.defects.note("export of a queue that a link had");
        };
        host.is_back(export, base, problem);
    }

    /// The queues of a device may start: that of a disk which a client has does.
    pub(crate) fn settle_export(&mut self, device: u32, around: &mut Around<'_>) {
        if let Some((mut host, export)) = self.host_of(device, around) {
            host.settle(export);
        }
    }

    /// A disk has another size: clients are told. Where its link is not open they are told then.
    pub(crate) fn tell_clients(&mut self, device: u32, around: &mut Around<'_>) {
        if let Some((mut host, export)) = self.host_of(device, around) {
            host.tell_clients(export);
        }
    }

    /// The image of a disk whose locks follow its clients was made stable and let go, or could not be.
    pub(crate) fn export_has_parted(
        &mut self,
        device: u32,
        is_gone: bool,
        around: &mut Around<'_>,
    ) {
        if let Some((mut host, export)) = self.host_of(device, around) {
            host.has_parted(export, is_gone);
        }
    }

    /// What a client wrote is stable, or is not.
    pub(crate) fn has_synced(&mut self, device: u32, around: &mut Around<'_>) {
        let Some((mut host, export)) = self.host_of(device, around) else {
            return late("sync of a disk");
        };
        host.has_synced(export);
    }

    /// A disk could not be made stable: that is counted, if clients may have it.
    pub(crate) fn count_loss(&self, id: &str) {
        self.ledger.count_loss(id);
    }

    /// A disk is to go that clients may have, or might: true when one of them has it, and it goes when that one has it no
    /// more.
    pub(crate) fn take_from_clients(&mut self, device: u32, around: &mut Around<'_>) -> bool {
        let its = self.host_of(device, around);
        its.is_some_and(|(mut host, export)| host.remove(export))
    }

    /// Whether a client has a disk, or it is kept for one.
    pub(crate) fn is_clients(&self, device: u32) -> bool {
        self.exports().any(|one| one.device() == Some(device) && one.is_had())
    }

    /// Whether a client has that NIC.
    pub(crate) fn is_nic_clients(&self, name: &str) -> bool {
        self.exports().any(|one| one.nic() == Some(name) && one.is_had())
    }

    /// Whether a disk is on its way back from a client that may have it no more.
    pub(crate) fn is_taking(&self) -> bool {
        self.exports().any(|one| one.is_removed() && one.is_had())
    }

    fn exports(&self) -> impl Iterator<Item = &Export> {
        self.links.iter().filter_map(OneLink::serving).flat_map(|serving| serving.exports())
    }

    /// The plan in force has other clients of that link. Ports that waited for the right to have them can be opened.
    pub(crate) fn set_link_clients(&mut self, id: &str, around: &mut Around<'_>) {
        let plan = around.plan.links.iter().find(|link| link.id == id).cloned();
        let found = self.key_of(id).zip(plan);
        let (key, plan) = found!(around.turn.defects, found, "link that has other clients");
        if let Some(mut host) = self.host(key, around) {
            host.set_clients(plan);
        }
    }
}

/// Ports of NICs, at both ends: at a client the end of a NIC's wire, at an IOhost a port of a switch.
impl Remote {
    /// The link of a port.
    fn link_of_port(&self, host: &HostPlan, plan: &Plan) -> Result<LinkKey, LinkPortError> {
        let key = match host {
            HostPlan::Remote { link, .. } => {
                self.key_of(link).ok_or_else(|| LinkPortError::NotMade(link.clone()))?
            }
            HostPlan::Lent { name } => {
                // A reload opens ports before links hear of them.
                let lends = |link: &&LinkPlan| {
                    link.clients().iter().any(|client| client.nics.contains(name))
                };
                let link = plan.links.iter().find(lends);
                link.and_then(|link| self.key_of(&link.id)).ok_or(LinkPortError::NotLent)?
            }
            _ => return Err(LinkPortError::OtherKind),
        };
        let line = self.links.get(usize::from(key.0)).map(|link| &link.line);
        match line.and_then(|line| Some((line.id(), line.problem()?))) {
            Some((id, problem)) => {
                Err(LinkPortError::Shut { id: id.to_string(), problem: problem.to_string() })
            }
            None => Ok(key),
        }
    }

    /// Whether a port that goes by a link can be opened; all others can, as far as that goes.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn link_is_there(&self, host: &HostPlan, plan: &Plan) -> Result<(), HostOpenError> {
        let (HostPlan::Remote { name, .. } | HostPlan::Lent { name }) = host else { return Ok(()) };
        let found = self.link_of_port(host, plan).map(drop);
        let (kind, interface) = ("remote nic", name.clone());
        found.map_err(|why| HostOpenError { kind, interface, why: Why::Link(why.to_string()) })
    }

    /// A port was opened: its link has the other end from now on. Where that cannot be, the port is gone, and is tried
    /// again.
    pub(crate) fn plug_into_link(&mut self, port: u32, nic: Box<LinkNic>, around: &mut Around<'_>) {
        let uplink = around.network.uplink(port);
        let uplink = found!(around.turn.defects, uplink, "port that was opened");
        let host = uplink.plan().host.clone();
        let id = uplink.id().to_string();
        let key = match self.link_of_port(&host, around.plan) {
            Ok(key) => key,
            Err(why) => return warn!(port, "has no link: {why}"),
        };
        self.forget_ports(port, around);
        match (&host, self.side(key, around)) {
            (HostPlan::Remote { name, .. }, Some(super::Side::Client(mut client))) => {
                client.plug_in(port, device_of(&on_the_wire(name)), id, nic);
            }
            (HostPlan::Lent { name }, Some(super::Side::Host(mut host))) => {
                host.plug_in(port, name, id, nic);
            }
            _ => around.turn.defects.note("end of the link that a port goes by"),
        }
    }

    /// Ports that have gone, and that one's former self: their numbers are nobody's.
    fn forget_ports(&mut self, port: u32, around: &mut Around<'_>) {
        for key in self.keys() {
            match self.side(key, around) {
                Some(super::Side::Client(mut client)) => {
                    let gone = client.ports.gone(|one| one != port && client.around.has_port(one));
                    gone.into_iter().for_each(|one| client.forget_port(one));
                }
                Some(super::Side::Host(host)) => {
                    let Host { serving, around, .. } = host;
                    serving.keep_ports(|one| one != port && around.has_port(one));
                }
                None => {}
            }
        }
    }

    /// Asks for a NIC when its guest's first ring is to start, and gives it back when the last one has stopped.
    pub(crate) fn follow_nic(&mut self, device: u32, around: &mut Around<'_>) {
        let nic = around.devices.get(device).and_then(|device| device.nic());
        let port = nic.and_then(NicParts::uplink);
        // A port that goes by no link; or is an IOhost's, which asks for nothing.
        let is_its = |link: &&OneLink| port.is_some_and(|port| link.has_port(port));
        let key = self.links.iter().find(is_its).map(|link| link.line.key());
        let Some((port, key)) = port.zip(key) else { return };
        if let Some(mut client) = self.client(key, around) {
            client.follow_port(port);
        }
    }

    /// Why frames of the NIC at that port are lost, as far as another machine goes.
    pub(crate) fn nic_hindered(&self, port: u32, now: std::time::Instant) -> Option<String> {
        self.links.iter().find_map(|link| link.nic_hindered(port, now))
    }
}
