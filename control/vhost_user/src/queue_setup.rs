//! The facts of one ring, message by message, until it could run.

use crate::message::RingAddresses;

/// How a ring learns that there is work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kick<F> {
    /// The descriptor is readable.
    Fd(F),
    /// It does not: the ring is to be polled.
    Poll,
}

/// What is known of where a ring stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// As its front-end has said, or where a new one begins: what an earlier back-end did is in its record alone.
    #[default]
    Hearsay,
    /// It was served since, and stood there.
    Served,
    /// Another back-end has served it, and died: nobody knows, until its front-end says so or begins anew.
    Lost,
}

/// One ring as far as the front-end has told.
#[derive(Debug)]
pub(crate) struct QueueSetup<F> {
    pub(crate) size: Option<u16>,
    pub(crate) addresses: Option<RingAddresses>,
    pub(crate) base: u32,
    /// What its front-end knows of that: what it said, or was told.
    pub(crate) told: u32,
    /// What is known of that here.
    pub(crate) place: Place,
    pub(crate) kick: Option<Kick<F>>,
    pub(crate) call: Option<F>,
    pub(crate) err: Option<F>,
    /// What the front-end said; until then it depends on the negotiated features.
    pub(crate) enabled: Option<bool>,
    /// It broke a rule; cleared when the front-end stops or resets it.
    pub(crate) failed: bool,
}

impl<F> Default for QueueSetup<F> {
    fn default() -> QueueSetup<F> {
        QueueSetup {
            size: None,
            addresses: None,
            base: 0,
            told: 0,
            place: Place::Hearsay,
            kick: None,
            call: None,
            err: None,
            enabled: None,
            failed: false,
        }
    }
}

impl<F> QueueSetup<F> {
    /// Its front-end says where it stands.
    pub(crate) fn stand_at(&mut self, base: u32) {
        (self.base, self.told, self.place) = (base, base, Place::Hearsay);
    }

    /// Stopped by `GET_VRING_BASE`: the next start brings new descriptors.
    pub(crate) fn stop(&mut self) {
        self.kick = None;
        self.call = None;
        self.failed = false;
        self.told = self.base;
    }

    /// Stopped by a reset; the front-end's descriptors for calls and errors remain, since it does
    /// not send them again.
    pub(crate) fn reset(&mut self) {
        let (call, err) = (self.call.take(), self.err.take());
        *self = QueueSetup { call, err, ..QueueSetup::default() };
    }

    /// What a queue needs, when nothing is missing but memory and features.
    pub(crate) fn ready(&self, enabled_at_start: bool) -> Option<RingFacts<'_, F>> {
        if self.failed || self.place == Place::Lost || !self.enabled.unwrap_or(enabled_at_start) {
            return None;
        }
        self.facts()
    }

    /// The same, whether it is enabled, failed or lost, or not.
    pub(crate) fn facts(&self) -> Option<RingFacts<'_, F>> {
        let kick = match self.kick.as_ref()? {
            Kick::Fd(fd) => Some(fd),
            Kick::Poll => None,
        };
        Some(RingFacts {
            size: self.size?,
            addresses: self.addresses?,
            base: self.base,
            told: self.told,
            kick,
            call: self.call.as_ref(),
        })
    }
}

/// All that a ring needs to run.
#[derive(Debug, PartialEq, Eq)]
pub struct RingFacts<'a, F> {
    /// Entries, not 0.
    pub size: u16,
    /// Where it is; not yet looked up in memory.
    pub addresses: RingAddresses,
    /// Where it goes on, as in `SET_VRING_BASE`.
    pub base: u32,
    /// What its front-end knows of that.
    pub told: u32,
    /// Readable when there is work; `None` when the ring is to be polled.
    pub kick: Option<&'a F>,
    /// Where calls go; `None` for no calls.
    pub call: Option<&'a F>,
}
