//! The NICs of a client's link, each with its attachment.
//!
//! Not a NIC itself (`nic`), nor who asks for it (`client`, which calls this).

use std::os::fd::BorrowedFd;

use remote::client::Client;
use remote::wire::Net;

use super::nic::{FRAMES_PER_PASS, LinkNic, Way};

/// In no order that matters. A look at all of them is part of each pass.
#[derive(Debug, Default)]
pub(super) struct Nics {
    all: Vec<Plugged>,
    /// Which is taken from first.
    first: usize,
}

#[derive(Debug)]
struct Plugged {
    /// The link's number.
    disk: u16,
    /// None while its device waits for its own former attachment to end.
    attachment: Option<u16>,
    nic: LinkNic,
}

impl Nics {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether that number is a NIC's.
    pub(super) fn has(&self, disk: u16) -> bool {
        self.all.iter().any(|one| one.disk == disk)
    }

    pub(super) fn plug_in(&mut self, disk: u16, attachment: Option<u16>, nic: LinkNic) {
        self.all.push(Plugged { disk, attachment, nic });
    }

    pub(super) fn unplug(&mut self, disk: u16) -> Option<LinkNic> {
        let at = self.all.iter().position(|one| one.disk == disk)?;
        Some(self.all.swap_remove(at).nic)
    }

    /// What is readable when their ports have frames.
    pub(super) fn bells(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone {
        self.all.iter().map(|one| one.nic.poll_fd())
    }

    /// That device has another attachment, if it is a NIC.
    pub(super) fn renew(&mut self, disk: u16, attachment: Option<u16>) {
        let its = self.all.iter_mut().find(|one| one.disk == disk);
        its.into_iter().for_each(|one| one.attachment = attachment);
    }

    /// A piece of a frame came.
    #[inline]
    pub(super) fn hear(&mut self, attachment: u16, net: &Net<'_>) {
        if let Some(one) = self.all.iter_mut().find(|one| one.attachment == Some(attachment)) {
            one.nic.hear(net);
        }
    }

    /// All that came did.
    #[inline]
    pub(super) fn tell(&mut self) {
        self.all.iter_mut().for_each(|one| one.nic.tell());
    }

    /// Gives the client what ports have for it, of each in turn. Whether there was something.
    pub(super) fn take(&mut self, client: &mut Client) -> bool {
        self.first = (self.first + 1) % self.all.len().max(1);
        let (later, sooner) = self.all.split_at_mut(self.first);
        let mut has_taken = false;
        for Plugged { attachment, nic, .. } in sooner.iter_mut().chain(later) {
            let bound = attachment.filter(|attachment| client.is_bound(*attachment));
            let way = |client: &Client| match bound {
                None => Way::Nowhere,
                Some(_) if client.has_net_room() => Way::Open,
                Some(_) => Way::Full,
            };
            nic.set_up(bound.is_some());
            if nic.is_quiet() {
                continue;
            }
            for _ in 0..FRAMES_PER_PASS {
                let Some(frame) = nic.next(way(client)) else { break };
                if let Some(attachment) = bound {
                    client.send_net(attachment, frame);
                }
                has_taken = true;
            }
        }
        has_taken
    }

    /// One whose port is no more, which is forgotten.
    pub(super) fn abandoned(&mut self) -> Option<u16> {
        let at = self.all.iter().position(|one| one.nic.is_abandoned())?;
        Some(self.all.swap_remove(at).disk)
    }

    /// Whether frames wait that can be taken now.
    pub(super) fn have_some(&self) -> bool {
        self.all.iter().any(|one| one.nic.has_some())
    }
}
