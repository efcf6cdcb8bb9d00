//! What only a disk of another machine has: its link, its number there while it is asked for, and what its IOhost said.
//!
//! Not here: the asking (`disks`), nor how requests get there (`backend::link`).

use std::sync::Arc;
use std::time::Instant;

use backend::link::LinkKey;
use backend::{Disk, Grain, Limits, RemoteDisk};
use config::api::Removed;
use config::plan::{DiskPlan, Source};
use remote::wire::News;

use super::features::Features;
use super::waits::Waits;

/// A disk's part of its link.
pub(crate) struct RemoteParts {
    link: LinkKey,
    /// Its sidecore: that of the link.
    core: usize,
    /// Its name there.
    name: String,
    asked: Option<AskedFor>,
    /// Its IOhost has removed it, or lets this machine have it no more. It is asked what it is until there is one again.
    removed: Option<Removed>,
    /// Writes that were said to be done are gone: no flush succeeds, until an operator knows.
    is_lost: bool,
    waits: Waits,
}

/// What it has while it is asked for.
struct AskedFor {
    /// Its number on the link.
    number: u16,
    /// How large it was when its IOhost said so last.
    told_bytes: Option<u64>,
    /// Since then it has become smaller, and no request of it is done any more.
    is_shrunk: bool,
}

impl RemoteParts {
    /// Of a disk that is not asked for, whose link may be silent.
    pub(super) fn new(
        (link, core): (LinkKey, usize),
        name: &str,
        silent_since: Option<Instant>,
    ) -> RemoteParts {
        let (name, waits) = (name.to_string(), Waits::since(silent_since));
        RemoteParts { link, core, name, asked: None, removed: None, is_lost: false, waits }
    }

    /// Which disk it is, as marks say it.
    pub(crate) fn whose(plan: &DiskPlan) -> Option<String> {
        match &plan.source {
            Source::Remote { link, name } => Some(format!("{link}/{name}")),
            _ => None,
        }
    }

    pub(crate) fn link(&self) -> LinkKey {
        self.link
    }

    pub(crate) fn core(&self) -> usize {
        self.core
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its number on its link, while it is asked for.
    pub(super) fn number(&self) -> Option<u16> {
        self.asked.as_ref().map(|asked| asked.number)
    }

    /// Whether its link knows it, so that queues of it can be served.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.asked.is_some()
    }

    pub(crate) fn removed(&self) -> Option<Removed> {
        self.removed
    }

    pub(super) fn set_removed(&mut self, removed: Option<Removed>) {
        self.removed = removed;
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Writes are gone, or an operator knows of that. Whether it was otherwise.
    pub(crate) fn set_lost(&mut self, is_lost: bool) -> bool {
        std::mem::replace(&mut self.is_lost, is_lost) != is_lost
    }

    /// It is asked for by that number.
    pub(super) fn ask(&mut self, number: u16, now: Instant) {
        self.asked = Some(AskedFor { number, told_bytes: None, is_shrunk: false });
        self.waits.ask(now);
    }

    /// A process before this one has asked for it.
    pub(super) fn go_on_as(&mut self, number: u16, (told_bytes, is_shrunk): (Option<u64>, bool)) {
        self.asked = Some(AskedFor { number, told_bytes, is_shrunk });
    }

    /// How large its IOhost said that it is, and whether it was larger; while it is asked for by that number.
    pub(super) fn told(&self, number: u16) -> Option<(Option<u64>, bool)> {
        let asked = self.asked.as_ref().filter(|asked| asked.number == number)?;
        Some((asked.told_bytes, asked.is_shrunk))
    }

    /// It is asked for no more: by which number it was.
    pub(super) fn release(&mut self) -> Option<u16> {
        self.waits.end_asking();
        self.asked.take().map(|asked| asked.number)
    }

    /// Its IOhost has said yes or no.
    pub(super) fn end_asking(&mut self) {
        self.waits.end_asking();
    }

    /// Its IOhost says how large it is.
    pub(super) fn note_size(&mut self, number: u16, size: u64) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.number == number) {
            let before = asked.told_bytes.replace(size);
            asked.is_shrunk |= before.is_some_and(|before| size < before);
        }
    }

    /// What its guest has, if it became smaller under it.
    pub(super) fn shrunk(&self) -> Option<&'static str> {
        let is_shrunk = self.asked.as_ref().is_some_and(|asked| asked.is_shrunk);
        is_shrunk.then_some(
            "its IOhost has made it smaller while its guest used it, so that every request fails; restart its guest",
        )
    }

    /// Nothing of it is executed any more. One that fell silent is asked for anew by its link, with whatever size it has
    /// then.
    pub(super) fn is_over(&mut self) {
        if let Some(asked) = &mut self.asked {
            (asked.told_bytes, asked.is_shrunk) = (None, false);
        }
        // What has become of it says more.
        self.waits = Waits::default();
    }

    /// What it waits for, if that is another machine.
    pub(crate) fn waits_for(&self, now: Instant) -> Option<String> {
        self.waits.text(now, "its guest's requests wait")
    }

    pub(super) fn note_session(&mut self, is_there: bool, now: Instant) {
        self.waits.note_session(is_there, self.asked.is_some(), now);
    }

    pub(super) fn note_silence(&mut self, now: Instant) {
        self.waits.note_silence(now);
    }

    pub(super) fn note_heard(&mut self) {
        self.waits.note_heard();
    }

    /// The disk as its queues reach it, by its number, or none that anybody goes by.
    pub(super) fn disk(&self, news: &News, readonly: bool) -> Arc<Disk> {
        let features = Features::of_bits(news.features);
        Disk::remote(RemoteDisk {
            link: self.link,
            disk: self.number().unwrap_or(0),
            size_bytes: news.size,
            block_size: features.block_size,
            physical_block_size: features.physical_block_size,
            grain: Grain { discard: features.discard_bytes, ..Grain::default() },
            limits: Limits {
                discard_sectors_max: features.discard_sectors_max,
                zeroes_sectors_max: features.zeroes_sectors_max,
            },
            readonly: readonly || features.readonly,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    fn parts() -> RemoteParts {
        RemoteParts::new((LinkKey(0), 0), "db", None)
    }

    #[test]
    fn a_disk_has_shrunk_when_it_became_smaller_while_it_was_asked_for() {
        let (mut parts, at) = (parts(), now());
        parts.note_size(7, 8192);
        assert_eq!((parts.told(7), parts.shrunk()), (None, None), "nobody asked for it");
        parts.ask(7, at);
        parts.note_size(7, 8192);
        parts.note_size(6, 512);
        assert_eq!((parts.told(7), parts.told(6)), (Some((Some(8192), false)), None));
        parts.note_size(7, 4096);
        assert!(parts.shrunk().is_some());
        // It stays so for its guest, whatever size it has then.
        parts.note_size(7, 8192);
        assert_eq!(parts.told(7), Some((Some(8192), true)));
        assert_eq!((parts.release(), parts.release()), (Some(7), None));
        parts.ask(8, at);
        assert_eq!((parts.told(8), parts.shrunk()), (Some((None, false)), None));
        parts.note_size(8, 8192);
        parts.is_over();
        assert_eq!((parts.number(), parts.told(8)), (Some(8), Some((None, false))));
        parts.go_on_as(9, (Some(512), true));
        assert!(parts.is_asked_for() && parts.shrunk().is_some());
    }

    #[test]
    fn it_waits_for_an_answer_from_when_it_is_asked_for_until_it_has_one() {
        let (mut parts, begin) = (parts(), now());
        let at = |s| begin + std::time::Duration::from_secs(s);
        parts.note_session(true, at(0));
        assert_eq!(parts.waits_for(at(9)), None, "nobody asked for it");
        parts.ask(7, at(9));
        assert!(parts.waits_for(at(10)).is_some());
        parts.end_asking();
        assert_eq!(parts.waits_for(at(20)), None);
        parts.note_silence(at(20));
        assert!(parts.waits_for(at(21)).is_some());
        parts.note_heard();
        assert_eq!(parts.waits_for(at(30)), None);
        assert!(parts.set_lost(true) && !parts.set_lost(true) && parts.set_lost(false));
    }
}
