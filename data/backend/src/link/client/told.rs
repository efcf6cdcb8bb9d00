//! What control hears of a client's disks, and what it says to that.
//!
//! Of each disk one word at a time, the newest: an IOhost may have news without end. The last words of an attachment, and
//! what is no disk's, are never many. Called by `client`, and by control through its sidecore.

use remote::client::{Event, Standing};

use super::{ClientLink, LinkEvent, disk_at};
use crate::link::attached_disk::{AttachedDisk, State, Words};

impl ClientLink {
    /// What was said last of a disk was heard; what [`Event::Stands`] said is kept.
    pub fn heard(&mut self, disk: u16) {
        if let Some(attached) = disk_at(&mut self.disks, disk) {
            let heard = attached.heard();
            self.telling.extend(attached.words.may_go().then_some(disk));
            if let Some(attachment) = heard {
                self.client.stands(attachment);
                self.is_stirred = true;
            }
        }
    }

    /// Whoever uses the disk knows that writes of it may be gone.
    pub fn forgive(&mut self, disk: u16) {
        let Some(device) = self.attached(disk).map(|attached| attached.spec.device) else { return };
        for attached in
            self.disks.iter_mut().flatten().filter(|attached| attached.spec.device == device)
        {
            if let Some(standing) = &mut attached.standing {
                standing.is_lost = false;
            }
            if let Some(attachment) = attached.attachment {
                self.client.forgive(attachment);
            }
        }
    }

    /// Whoever uses the disk goes on with what its IOhost has, whatever its guest was on.
    pub fn accept(&mut self, disk: u16) {
        let Some(attached) = disk_at(&mut self.disks, disk) else { return };
        if let Some(attachment) = attached.attachment.filter(|_| attached.state == State::Wanted) {
            self.client.accept(attachment);
        }
        attached.accepts = !attached.is_bound;
        self.is_stirred = true;
    }

    /// The guest of a disk that was taken over from another process is on that image, as its IOhost said.
    pub fn remember_image(&mut self, disk: u16, image: u64) {
        let Some(attached) = disk_at(&mut self.disks, disk) else { return };
        let none = Standing { verifier: None, is_unflushed: false, is_lost: false, image };
        attached.standing = Some(Standing { image, ..attached.standing.unwrap_or(none) });
        if let Some(attachment) = attached.attachment {
            self.client.remember_image(attachment, image);
        }
    }

    pub(super) fn hear(&mut self, mut event: Event, now: u64) {
        let attachment = match &mut event {
            Event::Bound { attachment, .. }
            | Event::Looked { attachment, .. }
            | Event::News { attachment, .. }
            | Event::Refused { attachment, .. }
            | Event::Stands { attachment, .. }
            | Event::Over { attachment, .. } => attachment,
            Event::SessionBegan | Event::SessionEnded => {
                let is_up = event == Event::SessionBegan;
                self.counters.is_up.set(is_up.into());
                self.counters.sessions.add(is_up.into());
                self.disks.iter_mut().flatten().for_each(|attached| attached.is_bound = false);
                return self.events.push_back(LinkEvent::Client(event));
            }
        };
        let is_it = |attached: &AttachedDisk| attached.attachment == Some(*attachment);
        let at = self.disks.iter().position(|attached| attached.as_ref().is_some_and(is_it));
        let Some(disk) = at.map(|at| at as u16) else { return };
        *attachment = disk;
        let Some(attached) = disk_at(&mut self.disks, disk) else { return };
        let mut is_over = false;
        match event {
            Event::Bound { .. } => {
                (attached.is_bound, attached.accepts) = (true, false);
                self.weigh_iohost(disk, now);
            }
            Event::Refused { .. } => {
                attached.is_bound = false;
                self.weigh_iohost(disk, now);
            }
            Event::Stands { standing, .. } => attached.standing = standing,
            Event::Over { why, .. } => {
                // Once, however often the client says it.
                let is_first = matches!(attached.state, State::Wanted | State::Leaving);
                attached.over(why);
                is_over = true;
                if is_first {
                    // The last words of it; what waited is not true any more.
                    let (attachment, standing) = (disk, attached.standing);
                    attached.words = Words::default();
                    let stands = Event::Stands { attachment, standing };
                    self.events.extend([stands, event].map(LinkEvent::Client));
                }
            }
            Event::Looked { .. } => {
                // The client has forgotten it already.
                if let Some(place) = self.disks.get_mut(usize::from(disk)) {
                    *place = None;
                }
                return self.events.push_back(LinkEvent::Client(event));
            }
            Event::News { .. } | Event::SessionBegan | Event::SessionEnded => {}
        }
        if !is_over {
            self.say(disk, event);
        } else if self.attached(disk).is_some_and(|attached| attached.state == State::Leaving) {
            self.forget(disk);
        }
    }

    /// A word of that device has come. An IOhost that refuses every disk is left for the next one. NICs do not count:
    /// that one can be had says nothing of storage.
    fn weigh_iohost(&mut self, of: u16, now: u64) {
        if self.nics.has(of) {
            return;
        }
        let disks =
            (0..).zip(&self.disks).filter_map(|(disk, attached)| Some((disk, attached.as_ref()?)));
        let has_one =
            disks.into_iter().any(|(disk, attached)| attached.is_bound && !self.nics.has(disk));
        self.greeting.refused(!has_one, now);
    }

    /// Control is to hear this of a disk, when it has heard what was said before.
    fn say(&mut self, disk: u16, event: Event) {
        let Some(attached) = disk_at(&mut self.disks, disk) else { return };
        let waited = attached.words.may_go();
        attached.words.put(event);
        if !waited && attached.words.may_go() {
            self.telling.push_back(disk);
        }
    }

    /// What is to be told to control.
    pub(crate) fn next_event(&mut self) -> Option<LinkEvent> {
        while let Some(disk) = self.telling.pop_front() {
            let word = disk_at(&mut self.disks, disk).and_then(|attached| attached.words.next());
            if let Some(word) = word {
                return Some(LinkEvent::Client(word));
            }
        }
        let event = self.events.pop_front()?;
        self.greets -= usize::from(matches!(event, LinkEvent::Greet { .. }));
        Some(event)
    }
}
