//! What one session has: which attachments, and what it is yet to be told.

use super::export::Export;
use crate::outbox::Outbox;
use crate::session::Out;
use crate::wire::{Bind, End, Record};

/// Ends of attachments that are remembered, so that each is said once.
const ENDED: usize = 16;

/// What a session's marks and records lead to, besides exports.
#[derive(Debug)]
pub(super) struct About {
    pub(super) number: u32,
    pub(super) outbox: Outbox,
    /// By the client's place: which export, and the handle.
    held: Vec<Option<(u16, u32)>>,
    /// By the client's place: the last bind that was answered. One that comes again was answered.
    heard: Vec<u64>,
    /// Handles that this session was told it does not have, the last ones.
    ended: [u32; ENDED],
    ended_next: usize,
    /// Which attachment is first in the next frame.
    turn: usize,
}

impl About {
    pub(super) fn new(number: u32) -> About {
        let ended = [u32::MAX; ENDED];
        let (held, heard) = (Vec::new(), Vec::new());
        About { number, outbox: Outbox::new(), held, heard, ended, ended_next: 0, turn: 0 }
    }

    /// The export that this session has by that handle.
    pub(super) fn export<'a>(
        &self,
        exports: &'a mut [Export],
        handle: u32,
    ) -> Option<&'a mut Export> {
        let (number, _) = (*self.held.get(usize::from(crate::index_of(handle)))?)?;
        let export = exports.get_mut(usize::from(number))?;
        (export.bound() == Some((self.number, handle))).then_some(export)
    }

    /// It has this one from now on.
    pub(super) fn hold(&mut self, bind: &Bind, export: u16) {
        let at = usize::from(bind.index);
        if self.held.len() <= at {
            self.held.resize(at + 1, None);
        }
        self.held[at] = Some((export, crate::handle(bind.index, bind.binding)));
    }

    pub(super) fn has_heard(&self, bind: &Bind) -> bool {
        self.heard.get(usize::from(bind.index)).is_some_and(|heard| bind.binding <= *heard)
    }

    pub(super) fn note_heard(&mut self, bind: &Bind) {
        let at = usize::from(bind.index);
        if self.heard.len() <= at {
            self.heard.resize(at + 1, 0);
        }
        self.heard[at] = self.heard[at].max(bind.binding);
    }

    /// Says that it has this one no more, once. False when there is no place for that.
    pub(super) fn tell_end(&mut self, handle: u32, end: End) -> bool {
        let at = usize::from(crate::index_of(handle));
        let current = self.held.get(at).copied().flatten();
        let is_newer = current.is_some_and(|(_, current)| current != handle);
        if is_newer || self.ended.contains(&handle) {
            return true;
        }
        if !self.outbox.put(Record::Ended { handle, end }) {
            return false;
        }
        self.ended[self.ended_next % ENDED] = handle;
        self.ended_next += 1;
        if let Some(place) = self.held.get_mut(at) {
            *place = None;
        }
        true
    }

    /// Puts what has changed of devices into the outbox, while there is room.
    pub(super) fn tell_news(&mut self, exports: &mut [Export]) {
        for (number, handle) in self.held.iter().flatten() {
            let Some(export) = exports.get_mut(usize::from(*number)) else { continue };
            if export.owes_news
                && export.bound() == Some((self.number, *handle))
                && self.outbox.put(Record::News { handle: *handle, news: export.news })
            {
                export.owes_news = false;
            }
        }
    }

    pub(super) fn has_answers(&self, exports: &[Export]) -> bool {
        self.held.iter().flatten().any(|(number, handle)| {
            exports.get(usize::from(*number)).is_some_and(|export| {
                export.has_answers() && export.bound() == Some((self.number, *handle))
            })
        })
    }

    /// Puts answers into a frame, of each attachment in turn.
    pub(super) fn fill(&mut self, exports: &mut [Export], out: &mut Out<'_>) {
        let count = self.held.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            let Some((number, handle)) = self.held[at] else { continue };
            if let Some(export) = exports.get_mut(usize::from(number))
                && export.bound() == Some((self.number, handle))
            {
                export.fill(handle, out);
            }
            if out.is_full() {
                self.turn = (at + 1) % count;
                return;
            }
        }
    }
}
