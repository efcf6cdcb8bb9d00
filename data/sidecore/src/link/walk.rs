//! An IOhost's links within a pass, before a sleep, and between control and a sidecore.
//!
//! They receive first, before queues are visited, and harvest and send last, after completions were reaped: a
//! request that came is served in the same pass, and one that ended is answered in it. Not what a link does with a
//! frame (`host`). Called by `link`, `commands`.

use schedule::Nanos;

use super::host::{HostLink, Told};
use super::{FromHost, Link, LinkKey, ToHost};
use crate::inbox::Event;
use crate::places::served_at;
use crate::served::QueueKey;
use crate::sidecore::Sidecore;

/// Links of an IOhost at one sidecore.
pub(crate) const LINKS_MAX: usize = 64;

/// The links that are at home here.
#[derive(Default)]
pub(crate) struct HostLinks {
    hosts: Vec<(LinkKey, Box<HostLink>)>,
}

impl HostLinks {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Whether one of them wakes that queue when it puts something into its ring.
    pub(crate) fn feed(&self, key: QueueKey) -> bool {
        self.hosts.iter().any(|(_, link)| link.feeds(key))
    }

    /// When one has something to do although nothing comes.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.hosts.iter().filter_map(|(_, link)| link.due()).min()
    }

    /// Whether one has something to do now that nothing will wake it for.
    pub(crate) fn have_some(&self) -> bool {
        self.hosts.iter().any(|(_, link)| link.has_some())
    }
}

impl Sidecore {
    /// What came on links goes into rings, before these are visited. How much there was.
    pub(super) fn feed_links(&mut self, now: Nanos) -> u32 {
        self.each_link(now, HostLink::feed)
    }

    /// What ended goes out, after all that could end in this pass has. How much there was.
    pub(super) fn harvest_links(&mut self, now: Nanos) -> u32 {
        self.each_link(now, HostLink::harvest)
    }

    fn each_link(
        &mut self,
        now: Nanos,
        act: fn(&mut HostLink, Nanos, &mut dyn FnMut(FromHost)) -> u32,
    ) -> u32 {
        let mut hosts = std::mem::take(&mut self.links.hosts);
        let mut did = 0;
        for (key, link) in &mut hosts {
            did += act(link, now, &mut |told| self.send(Event::FromHost(*key, Box::new(told))));
            while let Some(queue) = link.to_wake.pop() {
                self.wake_fed(queue, now);
            }
        }
        self.links.hosts = hosts;
        did
    }

    /// Something is in the ring of a queue that asked for kicks.
    fn wake_fed(&mut self, key: QueueKey, now: Nanos) {
        let Some(queue) = self.find(key) else { return };
        let epoch = self.places.get(usize::from(queue)).map_or(0, |place| place.epoch);
        self.kicked(queue, epoch, now);
    }

    pub(super) fn attach_host_link(&mut self, key: LinkKey, link: Box<HostLink>) {
        let has_place = self.links.hosts.len() < LINKS_MAX;
        let is_new = self.links.hosts.iter().all(|(known, _)| *known != key);
        if has_place && is_new && self.rest.watch_all(link.bells()) {
            self.links.hosts.push((key, link));
        } else {
            self.send(Event::LinkRefused(key, Link::Host(link)));
        }
    }

    pub(crate) fn detach_link(&mut self, key: LinkKey) {
        match self.links.hosts.iter().position(|(known, _)| *known == key) {
            Some(at) => {
                let (_, link) = self.links.hosts.swap_remove(at);
                link.bells().for_each(|bell| self.rest.forget(bell));
                self.send(Event::LinkDetached(key, Link::Host(link)));
            }
            None => self.io.detach_link(key),
        }
    }

    /// This is a stop: the other ends of links hear that their sessions are over.
    pub(crate) fn say_farewell(&mut self) {
        self.io.say_farewell();
        self.links.hosts.iter_mut().for_each(|(_, link)| link.farewell());
    }

    pub(crate) fn detach_host_links(&mut self) {
        while let Some(key) = self.links.hosts.last().map(|(key, _)| *key) {
            self.detach_link(key);
        }
    }

    /// Says something to an IOhost's link, if there is one of that name.
    pub(crate) fn tell_host(&mut self, key: LinkKey, told: ToHost, now: Nanos) {
        if let ToHost::PlugIn { nic, .. } = &told
            && self.rest.watch_link(nic.poll_fd()).is_err()
        {
            // Dropped with what was told: its port is gone, and is opened anew.
            return;
        }
        let at = self.links.hosts.iter_mut().find(|(known, _)| *known == key);
        let Some((_, link)) = at else { return };
        if let ToHost::PlugIn { export, .. } | ToHost::Unplug { export } = &told {
            // One that was there before goes with that, and its port may live on.
            link.bell(*export).into_iter().for_each(|bell| self.rest.forget(bell));
        }
        let said = match link.told(told, now) {
            Told::Feeds(queue) => return self.feed_from_now_on(queue, now),
            Told::Reserved(Some((before, greeting))) => FromHost::Reserved { before, greeting },
            Told::PulledOut { export, nic: Some(nic) } => {
                self.rest.forget(nic.poll_fd());
                FromHost::PulledOut { export, nic }
            }
            Told::Done | Told::Reserved(None) | Told::PulledOut { nic: None, .. } => return,
        };
        self.send(Event::FromHost(key, Box::new(said)));
    }

    /// The queue may be attached already: it is woken by a link from now on.
    fn feed_from_now_on(&mut self, key: QueueKey, now: Nanos) {
        let Some(queue) = self.find(key) else { return };
        let Some(served) = served_at(&mut self.places, queue) else { return };
        let ring = &mut served.ring;
        ring.is_watched = true;
        if !ring.leaving {
            self.schedule.set(queue, ring.share, ring.policy, now);
        }
    }
}
