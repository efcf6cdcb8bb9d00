//! All attachments of a client, and all that marks and records of its session can lead to.
//!
//! Who has something to say, and who has something that ended, stands in a round: others cost nothing.

use std::collections::VecDeque;

use super::attachment::Attachment;
use super::{Counts, Event, Finished, Over};
use crate::loss::{Fate, Mark, MarkKind};
use crate::outbox::Outbox;
use crate::round::Round;
use crate::saved::Writer;
use crate::session::{Hears, Out};
use crate::times::Times;
use crate::wire::{Bound, Malformed, Net, Outcome, Record};

/// The attachments.
#[derive(Debug)]
pub(super) struct Held {
    attachments: Vec<Option<Attachment>>,
    pub(super) outbox: Outbox,
    pub(super) events: VecDeque<Event>,
    /// Those with requests to send, those with requests that ended, and when those with something to say of
    /// themselves may.
    queued: Round,
    finished: Round,
    asking: Times,
    /// Those of which an IOhost may execute something.
    used: usize,
    /// Binds of all attachments: no two have one number, so what is said of one never means another.
    bindings: u64,
}

impl Held {
    pub(super) fn new() -> Held {
        Held {
            attachments: Vec::new(),
            outbox: Outbox::new(),
            events: VecDeque::with_capacity(64),
            queued: Round::default(),
            finished: Round::default(),
            asking: Times::default(),
            used: 0,
            bindings: 0,
        }
    }

    pub(super) fn add(&mut self, make: impl FnOnce(u16) -> Option<Attachment>) -> Option<u16> {
        let free = self.attachments.iter().position(Option::is_none);
        let at = free.unwrap_or(self.attachments.len());
        let index = u16::try_from(at).ok().filter(|index| *index < crate::ATTACHMENTS_MAX)?;
        let made = make(index)?;
        match self.attachments.get_mut(at) {
            Some(place) => *place = Some(made),
            None => self.attachments.push(Some(made)),
        }
        let count = self.attachments.len();
        self.queued.fit(count);
        self.finished.fit(count);
        self.asking.fit(count);
        self.touch(index);
        Some(index)
    }

    /// Puts an attachment behind what was written, see [`Attachment::save`].
    pub(super) fn save(&self, index: u16, out: &mut Writer<'_>) -> bool {
        self.get(index).is_some_and(|one| one.save(out))
    }

    /// The number that the last bind had; those that follow go on from there.
    pub(super) fn bindings(&self) -> u64 {
        self.bindings
    }

    pub(super) fn go_on_binding(&mut self, bindings: u64) {
        self.bindings = bindings;
    }

    pub(super) fn get(&self, index: u16) -> Option<&Attachment> {
        self.attachments.get(usize::from(index))?.as_ref()
    }

    /// Whoever changes it calls [`Held::touch`].
    pub(super) fn attachment(&mut self, index: u16) -> Option<&mut Attachment> {
        self.attachments.get_mut(usize::from(index))?.as_mut()
    }

    fn by_handle(&mut self, handle: u32) -> Option<&mut Attachment> {
        self.attachment(crate::index_of(handle)).filter(|one| one.handle() == handle)
    }

    /// After a change: puts it where it has something to do.
    pub(super) fn touch(&mut self, index: u16) {
        let at = usize::from(index);
        let Some(one) = self.attachments.get_mut(at).and_then(Option::as_mut) else {
            return self.asking.remove(at);
        };
        if one.has_queued() {
            self.queued.add(at);
        }
        if one.has_finished() {
            self.finished.add(at);
        }
        match one.asks_at() {
            Some(time) => self.asking.set(at, time),
            None => self.asking.remove(at),
        }
        let is_used = one.is_used();
        let was = std::mem::replace(&mut one.is_counted, is_used);
        self.used = self.used + usize::from(is_used) - usize::from(was);
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn has_queued(&self) -> bool {
        self.queued.first().is_some()
    }

    /// When somebody has something to say of itself.
    pub(super) fn asks_at(&self) -> Option<u64> {
        self.asking.first().map(|(at, _)| at)
    }

    pub(super) fn release(&mut self, index: u16) {
        let mut events = std::mem::take(&mut self.events);
        let unwanted = self.attachment(index).and_then(|one| one.release(&mut events));
        self.events = events;
        self.touch(index);
        self.give_back(unwanted);
    }

    pub(super) fn accept(&mut self, index: u16) {
        let mut events = std::mem::take(&mut self.events);
        if let Some(one) = self.attachment(index) {
            one.accept(&mut events);
        }
        self.events = events;
        self.touch(index);
    }

    pub(super) fn detach(&mut self, index: u16) {
        let Some(place) = self.attachments.get_mut(usize::from(index)) else { return };
        let Some(one) = place.take() else { return };
        self.used -= usize::from(one.is_counted);
        self.touch(index);
        self.give_back(one.unended_handle());
    }

    /// An IOhost that gives us this is told that we do not want it. Where there is no place to say so, it is
    /// told when it does.
    fn give_back(&mut self, handle: Option<u32>) {
        if let Some(handle) = handle {
            self.outbox.put(Record::Release { handle });
        }
    }

    pub(super) fn lost_session(&mut self) {
        self.outbox = Outbox::new();
        for index in 0..self.attachments.len() as u16 {
            if let Some(one) = self.attachment(index) {
                one.lost_session();
                self.touch(index);
            }
        }
    }

    /// Ends those that have heard nothing since `quiet_at`, when something was last heard at `heard_at`: since
    /// when the others have not.
    pub(super) fn fail_silent(&mut self, heard_at: u64, quiet_at: u64) -> Option<u64> {
        let mut events = std::mem::take(&mut self.events);
        let mut quiet = None;
        for index in 0..self.attachments.len() as u16 {
            let Some(one) = self.attachment(index).filter(|one| one.is_used()) else { continue };
            let since = one.since.max(heard_at);
            if since <= quiet_at {
                one.end(Over::Silent, &mut events);
                self.touch(index);
            } else {
                quiet = Some(quiet.map_or(since, |before: u64| before.min(since)));
            }
        }
        self.events = events;
        quiet
    }

    pub(super) fn next_finished(&mut self) -> Option<Finished> {
        while let Some(at) = self.finished.first() {
            let one = self.attachments.get_mut(at).and_then(Option::as_mut);
            if let Some(finished) = one.and_then(Attachment::next_finished) {
                return Some(finished);
            }
            self.finished.remove_first();
        }
        None
    }

    /// Puts what attachments want to say into the outbox.
    pub(super) fn ask(&mut self, now: u64) {
        while let Some((_, at)) = self.asking.first().filter(|(at, _)| *at <= now) {
            let binding = self.bindings + 1;
            let one = self.attachments.get_mut(at).and_then(Option::as_mut);
            let record = one.and_then(|one| one.wants_to_say(now, binding));
            if let Some(record) = record {
                if !self.outbox.put(record) {
                    return;
                }
                let one = self.attachments.get_mut(at).and_then(Option::as_mut);
                self.bindings += u64::from(one.is_some_and(|one| one.said(binding)));
                self.touch(at as u16);
            } else {
                self.asking.remove(at);
            }
        }
    }

    /// Puts requests into a frame, each attachment in turn.
    pub(super) fn fill(&mut self, out: &mut Out<'_>, part_bytes: usize) {
        let attachments = &mut self.attachments;
        self.queued.serve(out, |at, out| {
            let one = attachments.get_mut(at).and_then(Option::as_mut);
            one.is_some_and(|one| {
                one.fill(out, part_bytes);
                one.has_queued()
            })
        });
    }

    /// The answer to a bind.
    fn bound(&mut self, bound: &Bound, part_bytes: usize, now: u64) -> Result<bool, Malformed> {
        let handle = crate::handle(bound.index, bound.binding);
        let mut events = std::mem::take(&mut self.events);
        let one = self.by_handle(handle);
        let done = one.map_or(Ok(false), |one| one.bound(bound, part_bytes, now, &mut events));
        self.events = events;
        if done? {
            self.detach(bound.index);
        }
        self.touch(bound.index);
        let is_wanted = self.by_handle(handle).is_some_and(|one| one.unended_handle().is_some());
        if matches!(bound.outcome, Outcome::Kept | Outcome::Fresh) && !is_wanted {
            return Ok(self.outbox.put(Record::Release { handle }));
        }
        Ok(true)
    }
}

impl Fate for Held {
    fn taken(&mut self, mark: Mark) {
        match mark.kind {
            MarkKind::Control => self.outbox.taken(mark),
            _ => {
                if let Some(one) = self.by_handle(mark.handle) {
                    one.mark_taken(mark);
                }
            }
        }
    }

    fn lost(&mut self, mark: Mark) {
        match mark.kind {
            MarkKind::Control => self.outbox.lost(mark),
            _ => {
                if let Some(one) = self.by_handle(mark.handle) {
                    one.mark_lost(mark);
                    self.touch(crate::index_of(mark.handle));
                }
            }
        }
    }
}

/// A frame that is being heard.
pub(super) struct Hearing<'a> {
    pub(super) held: &'a mut Held,
    pub(super) counts: &'a mut Counts,
    pub(super) part_bytes: usize,
    pub(super) now: u64,
    pub(super) net: &'a mut dyn FnMut(u16, &Net<'_>),
}

impl Fate for Hearing<'_> {
    fn taken(&mut self, mark: Mark) {
        self.held.taken(mark);
    }

    fn lost(&mut self, mark: Mark) {
        self.held.lost(mark);
    }
}

impl Hears for Hearing<'_> {
    fn record(&mut self, record: &Record<'_>) -> Result<bool, Malformed> {
        let handle = match record {
            Record::Bound(bound) => return self.held.bound(bound, self.part_bytes, self.now),
            Record::Net(net) => {
                if let Some(one) = self.held.by_handle(net.handle) {
                    (self.net)(one.index(), net);
                }
                return Ok(true);
            }
            Record::Ended { handle, .. }
            | Record::News { handle, .. }
            | Record::Done { handle, .. } => *handle,
            Record::Piece(piece) => piece.handle,
            _ => return Err(Malformed::Field),
        };
        let mut events = std::mem::take(&mut self.held.events);
        let done = match self.held.by_handle(handle) {
            Some(one) => {
                let done = one.record(record, self.part_bytes, self.counts, &mut events);
                self.counts.writes_again += one.take_replayed();
                done
            }
            None => {
                self.counts.records_stale += 1;
                Ok(())
            }
        };
        self.held.events = events;
        self.held.touch(crate::index_of(handle));
        done.map(|()| true)
    }
}
