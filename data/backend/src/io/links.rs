//! The clients' links of one sidecore, as its `Io` has them.
//!
//! Not what a link does (`link`). Called by `Io`'s users and by the back-end of a remote disk.

use std::io;

use remote::client::Finished;
use request::{Status, Tag};

use super::Io;
use crate::link::{ClientLink, LinkEvent, LinkKey};

/// The links, each at its place.
#[derive(Debug, Default)]
pub(super) struct Links {
    all: Vec<Option<Linked>>,
    /// What was reaped last, until its back-end has taken it.
    reaped: Option<(usize, u16, Finished)>,
}

#[derive(Debug)]
struct Linked {
    key: LinkKey,
    link: Box<ClientLink>,
    /// It is given back when no queue of it is here.
    is_leaving: bool,
}

/// One queue's place at a link of one `Io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkPlace {
    identity: u32,
    at: usize,
    pub(crate) user: u32,
}

impl Links {
    fn living(&self) -> impl Iterator<Item = &ClientLink> {
        self.all.iter().flatten().map(|linked| &*linked.link)
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.living().map(ClientLink::in_flight).sum()
    }

    pub(super) fn may_rest(&self) -> bool {
        self.living().all(ClientLink::may_rest)
    }

    /// The next chunk that ended. What was reaped before, and not taken, is nobody's: its slot is given back.
    #[inline]
    pub(super) fn reap_one(&mut self) -> Option<(Tag, i32)> {
        if self.all.is_empty() {
            return None;
        }
        if let Some((at, disk, finished)) = self.reaped.take()
            && let Some(Some(linked)) = self.all.get_mut(at)
        {
            linked.link.free(disk, finished);
        }
        for (at, linked) in self.all.iter_mut().enumerate() {
            if let Some(linked) = linked
                && let Some((tag, disk, finished)) = linked.link.reap_one()
            {
                self.reaped = Some((at, disk, finished));
                return Some((tag, 0));
            }
        }
        None
    }
}

impl Io {
    /// Has a link from now on. It comes back when there is one of that key already.
    ///
    /// # Errors
    /// The link itself.
    pub fn attach_link(
        &mut self,
        key: LinkKey,
        mut link: Box<ClientLink>,
        now: u64,
    ) -> Result<(), Box<ClientLink>> {
        if self.link(key).is_some() {
            return Err(link);
        }
        link.begin(now);
        let linked = Linked { key, link, is_leaving: false };
        match self.links.all.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(linked),
            None => self.links.all.push(Some(linked)),
        }
        Ok(())
    }

    /// The link is to be given back, when no queue of its disks is here any more.
    pub fn detach_link(&mut self, key: LinkKey) {
        let mut all = self.links.all.iter_mut().flatten();
        if let Some(linked) = all.find(|linked| linked.key == key) {
            linked.is_leaving = true;
        }
    }

    /// A link that is given back. To be asked until there is none.
    pub fn take_link(&mut self) -> Option<(LinkKey, Box<ClientLink>)> {
        let is_free = |linked: &Linked| linked.is_leaving && !linked.link.is_joined();
        let place = self.links.all.iter_mut().find(|place| place.as_ref().is_some_and(is_free))?;
        place.take().map(|linked| (linked.key, linked.link))
    }

    /// Tells the IOhosts of links without queues that their sessions are over.
    pub fn say_farewell(&mut self) {
        let idle = |linked: &&mut Linked| !linked.link.is_joined();
        let links = self.links.all.iter_mut().flatten().filter(idle);
        links.for_each(|linked| linked.link.farewell());
    }

    /// The link of that key.
    pub fn link(&mut self, key: LinkKey) -> Option<&mut ClientLink> {
        let mut all = self.links.all.iter_mut().flatten();
        all.find(|linked| linked.key == key).map(|linked| &mut *linked.link)
    }

    /// Takes what came for links, and does what is due: how many frames. First in a pass.
    #[inline]
    pub fn receive(&mut self, now: u64) -> usize {
        let links = self.links.all.iter_mut().flatten();
        links.map(|linked| linked.link.receive(now)).sum()
    }

    /// Sends what links have to say. Last in a pass.
    #[inline]
    pub fn send(&mut self, now: u64) {
        self.links.all.iter_mut().flatten().for_each(|linked| linked.link.send(now));
    }

    /// Whether there are links here, whose frames are in no ring.
    pub fn has_links(&self) -> bool {
        self.links.all.iter().any(Option::is_some)
    }

    /// When links have something to do, if nothing comes before.
    pub fn due(&self) -> Option<u64> {
        self.links.living().map(ClientLink::due).min()
    }

    /// What links tell control.
    pub fn next_link_event(&mut self) -> Option<(LinkKey, LinkEvent)> {
        let mut all = self.links.all.iter_mut().flatten();
        all.find_map(|linked| Some((linked.key, linked.link.next_event()?)))
    }

    pub(crate) fn gave_link(&self, place: LinkPlace) -> bool {
        place.identity == self.identity
    }

    /// A queue of `disk` is here from now on.
    pub(crate) fn join_link(&mut self, key: LinkKey, disk: u16) -> io::Result<LinkPlace> {
        let identity = self.identity;
        let mut all = self.links.all.iter_mut().enumerate();
        let found = all.find_map(|(at, linked)| {
            let linked =
                linked.as_mut().filter(|linked| linked.key == key && !linked.is_leaving)?;
            linked.link.has(disk).then(|| (at, linked.link.join()))
        });
        let (at, user) = found.ok_or(io::ErrorKind::NotConnected)?;
        Ok(LinkPlace { identity, at, user })
    }

    #[inline]
    pub(crate) fn link_at(&mut self, place: LinkPlace) -> Option<&mut ClientLink> {
        let linked =
            self.links.all.get_mut(place.at).filter(|_| place.identity == self.identity)?;
        linked.as_mut().map(|linked| &mut *linked.link)
    }

    /// See [`crate::Backend::has_room`]; of a link that is not here nothing waits.
    #[inline]
    pub(crate) fn link_has_room(&self, place: LinkPlace, disk: u16) -> bool {
        let linked = self.links.all.get(place.at).filter(|_| place.identity == self.identity);
        linked.and_then(Option::as_ref).is_none_or(|linked| linked.link.has_room(disk))
    }

    /// Ends the chunk that was reaped last: `act` is told where it begins in its request, how it ended, and what was read.
    pub(crate) fn end_chunk(
        &mut self,
        act: impl FnOnce(u64, Status, &[u8]) -> Status,
    ) -> Option<Status> {
        let (at, disk, finished) = self.links.reaped.take()?;
        let link = &mut self.links.all.get_mut(at)?.as_mut()?.link;
        let (skip, status, bytes) = link.ended(disk, &finished);
        let status = act(skip, status, bytes);
        link.free(disk, finished);
        Some(status)
    }
}
