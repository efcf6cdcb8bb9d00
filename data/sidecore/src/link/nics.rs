//! The NICs of an IOhost's link: by export, each the link's end of a port.
//!
//! Not a NIC itself (`backend::link::LinkNic`), nor who has it (`remote::iohost`). Called by `host`.

use std::os::fd::BorrowedFd;

use backend::link::{LinkNic, NIC_FRAMES_PER_PASS, Way};
use remote::iohost::Host;
use remote::wire::Net;

use super::memory::AttachmentMemory;

/// A quiet one costs a pass two loads, and a pass with frames a look whether somebody has it.
#[derive(Debug, Default)]
pub(super) struct HostNics {
    /// In no order that matters.
    all: Vec<(u16, Box<LinkNic>)>,
    /// Which is taken from first.
    first: usize,
    /// By export: where it is among them.
    places: Vec<Option<u16>>,
}

impl HostNics {
    /// That export is this NIC from now on. One that was there before is gone.
    pub(super) fn plug_in(&mut self, export: u16, nic: Box<LinkNic>) {
        self.unplug(export);
        self.all.push((export, nic));
        self.find_places();
    }

    /// It is to go to another shard of the link.
    pub(super) fn pull_out(&mut self, export: u16) -> Option<Box<LinkNic>> {
        let at = self.all.iter().position(|(known, _)| *known == export)?;
        let (_, mut nic) = self.all.swap_remove(at);
        // Whoever has it there begins with nothing.
        nic.forget();
        self.find_places();
        Some(nic)
    }

    pub(super) fn unplug(&mut self, export: u16) {
        self.all.retain(|(known, _)| *known != export);
        self.find_places();
    }

    /// What is readable when their ports have frames.
    pub(super) fn bells(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone {
        self.all.iter().map(|(_, nic)| nic.poll_fd())
    }

    /// The same of one of them.
    pub(super) fn bell(&self, export: u16) -> Option<BorrowedFd<'_>> {
        let its = self.all.iter().find(|(known, _)| *known == export);
        its.map(|(_, nic)| nic.poll_fd())
    }

    /// Somebody has it anew.
    pub(super) fn opened(&mut self, export: u16) {
        let its = self.all.iter_mut().find(|(known, _)| *known == export);
        its.into_iter().for_each(|(_, nic)| nic.forget());
    }

    fn find_places(&mut self) {
        self.places.clear();
        for (at, (export, _)) in (0..).zip(&self.all) {
            let export = usize::from(*export);
            if self.places.len() <= export {
                self.places.resize(export + 1, None);
            }
            self.places[export] = Some(at);
        }
    }

    /// A piece of a frame came from the client that has it.
    #[inline]
    pub(super) fn hear(&mut self, export: u16, net: &Net<'_>) {
        let at = self.places.get(usize::from(export)).copied().flatten();
        if let Some((_, nic)) = at.and_then(|at| self.all.get_mut(usize::from(at))) {
            nic.hear(net);
        }
    }

    /// All that came in this pass did: ports are told, and whether somebody has them.
    pub(super) fn tell(&mut self, host: &Host<AttachmentMemory>) {
        for (export, nic) in &mut self.all {
            nic.tell();
            nic.set_up(host.net_room(*export).is_some());
        }
    }

    /// Gives the protocol what ports have for clients, of each in turn: how many frames.
    pub(super) fn take(&mut self, host: &mut Host<AttachmentMemory>) -> u32 {
        if self.all.iter().all(|(_, nic)| nic.is_quiet()) {
            return 0;
        }
        if self.all.iter().any(|(_, nic)| nic.is_abandoned()) {
            self.all.retain(|(_, nic)| !nic.is_abandoned());
            self.find_places();
        }
        self.first = (self.first + 1) % self.all.len().max(1);
        let (later, sooner) = self.all.split_at_mut(self.first);
        let mut taken = 0;
        for (export, nic) in sooner.iter_mut().chain(later).filter(|(_, nic)| !nic.is_quiet()) {
            for _ in 0..NIC_FRAMES_PER_PASS {
                let way = match host.net_room(*export) {
                    Some(true) => Way::Open,
                    Some(false) => Way::Full,
                    None => Way::Nowhere,
                };
                let Some(frame) = nic.next(way) else { break };
                host.send_net(*export, frame);
                taken += 1;
            }
        }
        taken
    }

    /// Whether frames wait that can be taken now.
    pub(super) fn have_some(&self) -> bool {
        self.all.iter().any(|(_, nic)| nic.has_some())
    }
}
