//! What one session has: which attachments, and what it is yet to be told.

use std::collections::VecDeque;

use super::SlotMemory;
use super::export::Export;
use crate::loss::{Fate, Mark, MarkKind};
use crate::outbox::Outbox;
use crate::round::Round;
use crate::session::Out;
use crate::wire::{Bind, Bound, End, Record};

/// Ends of attachments that are remembered, so that each is said once.
const ENDED: usize = 16;

/// What stands at one of the client's places.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Which export, and the handle.
    held: Option<(u16, u32)>,
    /// Which export it waits for.
    waits_for: Option<u16>,
    /// The last bind that came. It was answered, or waits; one that was before it is not wanted any more.
    heard: u64,
}

/// What a session's marks and records lead to, besides exports.
#[derive(Debug)]
pub(super) struct About {
    pub(super) number: u32,
    /// It is told which image a device is.
    has_images: bool,
    pub(super) outbox: Outbox,
    places: Vec<Place>,
    /// Handles that this session was told it does not have, the last ones.
    ended: [u32; ENDED],
    ended_next: usize,
    /// Places with answers to be sent.
    pub(super) answering: Round,
    /// Some device has changed.
    pub(super) owes_news: bool,
    /// Answers to binds that the outbox has no room for yet: one for each place at most.
    unsaid: VecDeque<Bound>,
}

impl About {
    pub(super) fn new(number: u32, has_images: bool) -> About {
        About {
            number,
            has_images,
            outbox: Outbox::new(),
            places: Vec::new(),
            ended: [u32::MAX; ENDED],
            ended_next: 0,
            answering: Round::default(),
            owes_news: false,
            unsaid: VecDeque::new(),
        }
    }

    /// Has that said. False when there are more than the client has places: it does not hear.
    pub(super) fn say(&mut self, mut bound: Bound) -> bool {
        if !self.has_images {
            bound.image = 0;
        }
        let has_place = self.unsaid.len() < usize::from(crate::ATTACHMENTS_MAX);
        if has_place {
            self.unsaid.push_back(bound);
            self.say_waiting();
        }
        has_place
    }

    /// What waited goes into the outbox, as far as there is room.
    pub(super) fn say_waiting(&mut self) {
        while self.outbox.room() > 0
            && let Some(bound) = self.unsaid.pop_front()
        {
            self.outbox.put(Record::Bound(bound));
        }
    }

    fn place(&mut self, index: u16) -> &mut Place {
        let at = usize::from(index);
        if self.places.len() <= at {
            self.places.resize(at + 1, Place::default());
            self.answering.fit(at + 1);
        }
        &mut self.places[at]
    }

    /// The export that this session has by that handle.
    pub(super) fn export<'a, M: SlotMemory>(
        &self,
        exports: &'a mut [Export<M>],
        handle: u32,
    ) -> Option<&'a mut Export<M>> {
        let (number, _) = self.places.get(usize::from(crate::index_of(handle)))?.held?;
        let export = exports.get_mut(usize::from(number))?;
        (export.bound() == Some((self.number, handle))).then_some(export)
    }

    /// It has this one from now on. Another export that it had there is returned: it wants that no more.
    pub(super) fn hold(&mut self, bind: &Bind, export: u16) -> Option<u16> {
        let place = self.place(bind.index);
        place.waits_for = None;
        let before = place.held.replace((export, crate::handle(bind.index, bind.binding)));
        before.map(|(before, _)| before).filter(|before| *before != export)
    }

    /// It waits for this one at that place. Another one that it waited for there is returned.
    pub(super) fn wait_for(&mut self, index: u16, export: Option<u16>) -> Option<u16> {
        std::mem::replace(&mut self.place(index).waits_for, export)
    }

    pub(super) fn waits_for(&self, index: u16) -> Option<u16> {
        self.places.get(usize::from(index))?.waits_for
    }

    /// Every export that it has or waits for.
    pub(super) fn exports(&self) -> impl Iterator<Item = usize> + '_ {
        let held = self.places.iter().filter_map(|place| Some(place.held?.0));
        held.chain(self.places.iter().filter_map(|place| place.waits_for)).map(usize::from)
    }

    /// Whether this bind is a new one of that place: each is done once, and none after a later one.
    pub(super) fn is_new(&mut self, bind: &Bind) -> bool {
        let place = self.place(bind.index);
        let is_new = bind.binding > place.heard;
        place.heard = place.heard.max(bind.binding);
        is_new
    }

    /// Says that it has this one no more, once. False when there is no place for that.
    pub(super) fn tell_end(&mut self, handle: u32, end: End) -> bool {
        let at = usize::from(crate::index_of(handle));
        let current = self.places.get(at).and_then(|place| place.held);
        let is_newer = current.is_some_and(|(_, current)| current != handle);
        if is_newer || self.ended.contains(&handle) {
            return true;
        }
        if !self.outbox.put(Record::Ended { handle, end }) {
            return false;
        }
        self.ended[self.ended_next % ENDED] = handle;
        self.ended_next += 1;
        if let Some(place) = self.places.get_mut(at) {
            place.held = None;
        }
        true
    }

    /// Puts what has changed of devices into the outbox, while there is room.
    pub(super) fn tell_news<M: SlotMemory>(&mut self, exports: &mut [Export<M>]) {
        if !self.owes_news {
            return;
        }
        for (number, handle) in self.places.iter().filter_map(|place| place.held) {
            let Some(export) = exports.get_mut(usize::from(number)) else { continue };
            if !export.owes_news || export.bound() != Some((self.number, handle)) {
                continue;
            }
            if !self.outbox.put(Record::News { handle, news: export.news }) {
                return;
            }
            export.owes_news = false;
        }
        self.owes_news = false;
    }

    /// Puts answers into a frame, of each attachment in turn.
    pub(super) fn fill<M: SlotMemory>(&mut self, exports: &mut [Export<M>], out: &mut Out<'_>) {
        let (places, number) = (&self.places, self.number);
        self.answering.serve(out, |at, out| {
            let Some((export, handle)) = places.get(at).and_then(|place| place.held) else {
                return false;
            };
            let export = exports.get_mut(usize::from(export));
            export.filter(|one| one.bound() == Some((number, handle))).is_some_and(|one| {
                one.fill(handle, out);
                one.has_answers()
            })
        });
    }
}

/// All that marks of one session can lead to.
pub(super) struct Fates<'a, M> {
    pub(super) about: &'a mut About,
    pub(super) exports: &'a mut [Export<M>],
}

impl<M: SlotMemory> Fate for Fates<'_, M> {
    fn taken(&mut self, mark: Mark) {
        if mark.kind == MarkKind::Control {
            self.about.outbox.taken(mark);
        } else if let Some(export) = self.about.export(self.exports, mark.handle) {
            export.mark_taken(mark);
        }
    }

    fn lost(&mut self, mark: Mark) {
        if mark.kind == MarkKind::Control {
            self.about.outbox.lost(mark);
        } else if let Some(export) = self.about.export(self.exports, mark.handle) {
            export.mark_lost(mark);
            if export.has_answers() {
                self.about.answering.add(usize::from(crate::index_of(mark.handle)));
            }
        }
    }
}
