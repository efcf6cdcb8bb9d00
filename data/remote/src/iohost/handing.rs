//! An IOhost's end that goes over to another process: its devices, without sessions.
//!
//! Keys never go over: clients are told that their sessions are over, shake hands anew with the other process, and bind
//! again. Until they do, their devices are kept for them, for as long as a lease. Control's pace: this may allocate.

use super::export::{Export, State};
use super::{ExportSpec, Host, SlotMemory};
use crate::saved::{BadSaved, Reader, Writer};
use crate::wire::News;

/// How soon it is looked again whether a device was opened for whom it is kept.
const AGAIN_NS: u64 = 100_000_000;

/// Whether this is what [`Host::save`] puts there, and no more: for who wants to know before it is too late to refuse.
/// Whether a client had the device.
///
/// # Errors
/// It is not.
pub fn check_saved(saved: &[u8]) -> Result<bool, BadSaved> {
    let (news, clients) = (News::default(), Vec::new());
    let spec = ExportSpec { device: 0, clients, news, generation: 0 };
    let mut reader = Reader(saved);
    let is_had = Export::<Vec<u8>>::new(0, spec).take_over(&mut reader)?;
    reader.end().map(|()| is_had)
}

impl<M: SlotMemory> Host<M> {
    /// Puts a device behind what was written. False when another process needs to know nothing of it. To be asked when
    /// nothing is with the disk: requests that have not ended count as never seen, and come again.
    pub fn save(&self, export: u16, out: &mut Writer<'_>) -> bool {
        self.exports.get(usize::from(export)).is_some_and(|one| one.save(out))
    }

    /// What [`Host::save`] has put there, of a device that is exported and that nobody has asked for yet. Whether a client
    /// had it: it is kept for that one until then, and let go of by [`super::HostEvent::LetGo`] when it does not come.
    ///
    /// # Errors
    /// It is none.
    pub fn take_over(
        &mut self,
        export: u16,
        saved: &mut Reader<'_>,
        until: u64,
    ) -> Result<bool, BadSaved> {
        let one = self.exports.get_mut(usize::from(export)).ok_or(BadSaved::Field)?;
        let is_kept = one.take_over(saved)?;
        if is_kept {
            self.reserved.push((until, export));
        }
        Ok(is_kept)
    }

    /// Lets go of devices whose clients have not come back.
    #[cold]
    pub(super) fn give_away(&mut self, now: u64) {
        while let Some(at) = self.reserved.iter().position(|(until, _)| *until <= now) {
            let (_, export) = self.reserved.swap_remove(at);
            let Some(one) = self.exports.get_mut(usize::from(export)) else { continue };
            if one.state == State::Opening {
                // Its client is back at the last moment. If it cannot be opened, it is still to be let go of.
                self.reserved.push((now.saturating_add(AGAIN_NS), export));
                continue;
            }
            one.give_away(&mut self.events);
        }
    }

    /// Whether a device is kept for a client that has not come back yet.
    pub(super) fn is_reserved(&self, at: usize) -> bool {
        self.reserved.iter().any(|(_, export)| usize::from(*export) == at)
    }

    /// The client is back, or nobody waits for it any more.
    pub(super) fn forget_reserved(&mut self, at: usize) {
        self.reserved.retain(|(_, export)| usize::from(*export) != at);
    }

    /// A session that has given all that it had to another one of its client's says nothing more: it is over at once, and
    /// not when its lease is.
    pub(super) fn end_if_left(&mut self, number: u32) {
        let Some(at) = self.place_of(number) else { return };
        let Some(peer) = self.places.get(at).and_then(super::Place::peer) else { return };
        let has = |export: usize| {
            self.exports.get(export).is_some_and(|one| {
                one.bound().is_some_and(|(session, _)| session == number)
                    || one.waiting.is_some_and(|wait| wait.number == number)
                    || matches!(one.state, State::Draining | State::Closing)
            })
        };
        if !peer.about.exports().any(has) {
            self.end_session(at);
        }
    }

    /// A frame that tells the client of a session that it is over, so that it begins another one at once. The session
    /// stays as it is: should this process go on after all, its client has a new one by then.
    pub fn farewell(&mut self, session: u32, buffer: &mut [u8]) -> Option<usize> {
        self.peer(session)?.session.farewell(buffer)
    }
}
