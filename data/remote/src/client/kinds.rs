//! What a client is told and tells: devices that it wants, requests, and what became of them.
//!
//! Names and fields only. Used by whoever calls `client`.

use crate::wire::{News, Op, Status, Verifier};

/// What a client is.
#[derive(Clone, Copy, Debug)]
pub struct ClientSpec {
    /// Random: no other client, and no earlier one, is the same.
    pub instance: u64,
    /// Frames that its socket's ring holds.
    pub ring_frames: u32,
    /// T2: requests fail after this time without a word from the IOhost. `None`: they wait. It is never less
    /// than the lease of any session that may still live there, with the time that a request may be executed, and
    /// an eighth of both.
    pub fail_after_ns: Option<u64>,
}

/// A device that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct AttachSpec {
    /// Which one.
    pub device: u64,
    /// Outstanding requests at most, up to [`crate::SLOTS_MAX`].
    pub slots: u16,
    /// Bytes of the longest request, up to [`crate::wire::REQUEST_BYTES_MAX`].
    pub slot_bytes: u32,
    /// Bytes of writes that were not flushed of which copies are kept, to be sent again to a machine that has lost
    /// them; they take one of the slots. 0: none, and the next flush fails then. A flush is made when a quarter is
    /// used. When more is under way than has room, nothing is kept until a flush.
    pub keep_bytes: u32,
}

impl AttachSpec {
    /// Requests that may be outstanding.
    pub fn requests_max(&self) -> u16 {
        self.slots.saturating_sub(u16::from(self.keep_bytes > 0))
    }
}

/// How a client stands with a device: what is to be kept of it from one attachment to the next, until a release that
/// synced was confirmed. [`super::Client::attach_again`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// As the IOhost said last; `None`: nobody remembers.
    pub verifier: Option<Verifier>,
    /// Writes were acknowledged since the last flush that ended well; so they may be while it is bound.
    pub is_unflushed: bool,
    /// Acknowledged writes may be gone: nothing that promises stability ends well any more.
    pub is_lost: bool,
    /// The image that its guest is on, as the IOhost said; 0: nobody knows.
    pub image: u64,
}

/// What becomes of an attachment, or of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session began; an older one is over.
    SessionBegan,
    /// The session is over, and there is no other one: requests wait.
    SessionEnded,
    /// It is served (again).
    Bound {
        /// Which one.
        attachment: u16,
        /// The device as it is.
        news: News,
        /// Grows when the device goes to another client, or anew to this one.
        generation: u64,
    },
    /// What a device is that was only looked at. Its attachment is gone.
    Looked {
        /// Which one.
        attachment: u16,
        /// `None`: there is no such device for this client.
        news: Option<News>,
    },
    /// The device has changed.
    News {
        /// Which one.
        attachment: u16,
        /// As it is now.
        news: News,
    },
    /// It cannot be had now. It is asked for again by and by.
    Refused {
        /// Which one.
        attachment: u16,
        /// Why.
        why: Refusal,
    },
    /// What is to be kept of the device from now on, if anything; said before [`Event::Bound`] and [`Event::Over`].
    /// [`super::Client::stands`] says that it is.
    Stands {
        /// Which one.
        attachment: u16,
        /// It.
        standing: Option<Standing>,
    },
    /// It is over for good, and so is each request of it. [`super::Client::detach`] gives the place back.
    Over {
        /// Which one.
        attachment: u16,
        /// Why.
        why: Over,
    },
}

/// A request that ended. Its slot is used until [`super::Client::free`].
#[derive(Debug)]
pub struct Finished {
    /// Which attachment.
    pub attachment: u16,
    /// As it was submitted with.
    pub tag: u64,
    /// What was asked for.
    pub op: Op,
    /// How it ended: never [`Status::NeverSeen`].
    pub status: Status,
    pub(super) slot: u16,
}

/// A request, but for its data.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes of the device.
    pub len: u32,
    /// What [`Finished`] says.
    pub tag: u64,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// No slot is free: it is to be submitted again when one is.
    #[error("no slot is free")]
    Full,
    /// Longer than a slot, or a transfer of nothing.
    #[error("a length that does not fit")]
    Length,
    /// Whoever has its bytes did not give them.
    #[error("its bytes were not given")]
    Unfilled,
    /// There is no such attachment, or it is over, or its device has shrunk.
    #[error("the attachment is over")]
    Over,
}

/// What was dropped, and why; and what was done twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that were not for this session, not authentic, or seen before.
    pub frames_dropped: u64,
    /// Records of what is over: of an older turn or binding.
    pub records_stale: u64,
    /// What was read is not what its checksum says.
    pub mismatches: u64,
    /// Sessions that ended because the IOhost said what it must not.
    pub violations: u64,
    /// Frames of NICs that found no room.
    pub net_dropped: u64,
    /// Writes (and discards and writes of zeroes) that had been answered and not flushed, and were done once more by a
    /// machine that had lost them.
    pub writes_again: u64,
}

/// Why a device cannot be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is none for this client (now).
    NoDevice,
    /// Another client waits for it already, or the IOhost has no memory.
    Busy,
    /// The IOhost cannot open its storage.
    Failed,
    /// It has another image than the one that its guest is on, or other contents: nothing is asked of it until that one is
    /// there again, or whoever uses it accepts it ([`super::Client::accept`]).
    Changed,
}

/// Why an attachment is over for good. But for the first one, what was acknowledged since the last flush may be gone:
/// who attaches the device again says how it stood ([`Event::Stands`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The client released it, and all that was acknowledged is stable.
    Released,
    /// The client released it, and what was acknowledged since the last flush may be gone.
    Unsynced,
    /// The IOhost gave it up.
    Revoked,
    /// Another client has it.
    Taken,
    /// The device is another one, or has other contents, and was given back.
    Changed,
    /// Nothing was heard for so long that requests failed.
    Silent,
}
