//! What control hears of a client's disks, and what it says to that.
//!
//! Of each disk one word at a time, the newest: an IOhost may have news without end. The last words of an attachment, and
//! what is no disk's, are never many. Called by `client`, and by control through its sidecore.

use remote::client::{Event, Standing};

use super::{ClientLink, LinkEvent, seat_at};
use crate::link::seat::{Seat, State, Words};

impl ClientLink {
    /// What was said last of a disk was heard; what [`Event::Stands`] said is kept.
    pub fn heard(&mut self, disk: u16) {
        if let Some(seat) = seat_at(&mut self.seats, disk) {
            let heard = seat.heard();
            self.telling.extend(seat.words.may_go().then_some(disk));
            if let Some(attachment) = heard {
                self.client.stands(attachment);
                self.is_stirred = true;
            }
        }
    }

    /// Whoever uses the disk knows that writes of it may be gone.
    pub fn forgive(&mut self, disk: u16) {
        let Some(device) = self.seat(disk).map(|seat| seat.spec.device) else { return };
        for seat in self.seats.iter_mut().flatten().filter(|seat| seat.spec.device == device) {
            if let Some(standing) = &mut seat.standing {
                standing.is_lost = false;
            }
            if let Some(attachment) = seat.attachment {
                self.client.forgive(attachment);
            }
        }
    }

    /// Whoever uses the disk goes on with what its IOhost has, whatever its guest was on.
    pub fn accept(&mut self, disk: u16) {
        let Some(seat) = seat_at(&mut self.seats, disk) else { return };
        if let Some(attachment) = seat.attachment.filter(|_| seat.state == State::Wanted) {
            self.client.accept(attachment);
        }
        seat.accepts = !seat.is_bound;
        self.is_stirred = true;
    }

    /// The guest of a disk that was taken over from another process is on that image, as its IOhost said.
    pub fn remember_image(&mut self, disk: u16, image: u64) {
        let Some(seat) = seat_at(&mut self.seats, disk) else { return };
        let none = Standing { verifier: None, is_unflushed: false, is_lost: false, image };
        seat.standing = Some(Standing { image, ..seat.standing.unwrap_or(none) });
        if let Some(attachment) = seat.attachment {
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
                self.seats.iter_mut().flatten().for_each(|seat| seat.is_bound = false);
                return self.events.push_back(LinkEvent::Client(event));
            }
        };
        let is_it = |seat: &Seat| seat.attachment == Some(*attachment);
        let at = self.seats.iter().position(|seat| seat.as_ref().is_some_and(is_it));
        let Some(disk) = at.map(|at| at as u16) else { return };
        *attachment = disk;
        let Some(seat) = seat_at(&mut self.seats, disk) else { return };
        let mut is_over = false;
        match event {
            Event::Bound { .. } => {
                (seat.is_bound, seat.accepts) = (true, false);
                self.weigh_iohost(disk, now);
            }
            Event::Refused { .. } => {
                seat.is_bound = false;
                self.weigh_iohost(disk, now);
            }
            Event::Stands { standing, .. } => seat.standing = standing,
            Event::Over { why, .. } => {
                // Once, however often the client says it.
                let is_first = matches!(seat.state, State::Wanted | State::Leaving);
                seat.over(why);
                is_over = true;
                if is_first {
                    // The last words of it; what waited is not true any more.
                    let (attachment, standing) = (disk, seat.standing);
                    seat.words = Words::default();
                    let stands = Event::Stands { attachment, standing };
                    self.events.extend([stands, event].map(LinkEvent::Client));
                }
            }
            Event::Looked { .. } => {
                // The client has forgotten it already.
                if let Some(place) = self.seats.get_mut(usize::from(disk)) {
                    *place = None;
                }
                return self.events.push_back(LinkEvent::Client(event));
            }
            Event::News { .. } | Event::SessionBegan | Event::SessionEnded => {}
        }
        if !is_over {
            self.say(disk, event);
        } else if self.seat(disk).is_some_and(|seat| seat.state == State::Leaving) {
            self.forget(disk);
        }
    }

    /// A word of that device has come. An IOhost that refuses every disk is left for the next one. NICs do not count:
    /// that one can be had says nothing of storage.
    fn weigh_iohost(&mut self, of: u16, now: u64) {
        if self.nics.has(of) {
            return;
        }
        let seats = (0..).zip(&self.seats).filter_map(|(disk, seat)| Some((disk, seat.as_ref()?)));
        let has_one = seats.into_iter().any(|(disk, seat)| seat.is_bound && !self.nics.has(disk));
        self.greeting.refused(!has_one, now);
    }

    /// Control is to hear this of a disk, when it has heard what was said before.
    fn say(&mut self, disk: u16, event: Event) {
        let Some(seat) = seat_at(&mut self.seats, disk) else { return };
        let waited = seat.words.may_go();
        seat.words.put(event);
        if !waited && seat.words.may_go() {
            self.telling.push_back(disk);
        }
    }

    /// What is to be told to control.
    pub(crate) fn next_event(&mut self) -> Option<LinkEvent> {
        while let Some(disk) = self.telling.pop_front() {
            let word = seat_at(&mut self.seats, disk).and_then(|seat| seat.words.next());
            if let Some(word) = word {
                return Some(LinkEvent::Client(word));
            }
        }
        let event = self.events.pop_front()?;
        self.greets -= usize::from(matches!(event, LinkEvent::Greet { .. }));
        Some(event)
    }
}
