//! What an IOhost is told and tells: what it is, its devices and their memory, what its caller is to do.
//!
//! Names and fields only. Used by whoever calls `iohost`.

use crate::handshake::PublicKey;
use crate::wire::{News, Op};

/// What an IOhost is.
#[derive(Clone, Copy, Debug)]
pub struct HostSpec {
    /// Sessions at a time, at most 65,536.
    pub sessions_max: usize,
    /// Frames that its socket's ring holds; divided among its clients.
    pub ring_frames: u32,
    /// Bytes of all attachments' memory, and of those of one client.
    pub memory_max: usize,
    /// Where security is `none`, a client is whoever says that he is.
    pub client_memory_max: usize,
    /// Random, with all 64 bits: no other IOhost, and no earlier one, has it. Numbers of sessions and names of slots
    /// come from it, so that those of another one are not met.
    pub instance: u64,
    /// Which shard of its link this is, below [`super::SHARDS_MAX`]: numbers of its sessions say so ([`super::shard_of`]). 0,
    /// where there is one.
    pub shard: u8,
}

/// A device that is served.
#[derive(Clone, Debug)]
pub struct ExportSpec {
    /// As clients name it.
    pub device: u64,
    /// Who may have it; nobody named: everybody.
    pub clients: Vec<PublicKey>,
    /// Size and features. The revision counts from here.
    pub news: News,
    /// The generation that was last told to be kept ([`HostEvent::Open`]); 0: none.
    pub generation: u64,
}

/// What the caller is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// Open the device's storage, with its locks; keep `generation` where a crash does not take it, and where every
    /// IOhost finds it that may serve the device; make memory for the slots. Then [`super::Host::opened`].
    Open {
        /// Which one.
        export: u16,
        /// Older ones are refused from now on, by all IOhosts. What was kept before, read under the lock, is told
        /// by [`super::Host::raise`] first: another IOhost may have given this one to somebody.
        generation: u64,
        /// It has changed hands: nobody had this generation before. Otherwise who had it comes back, and it may be kept
        /// already.
        is_new: bool,
        /// Requests at a time.
        slots: u16,
        /// Bytes of each of them. The memory has as many for each slot, one after the other.
        slot_bytes: u32,
        /// Whose client wants it.
        session: u32,
    },
    /// Nothing of the device is executing: sync and let go of it. Then [`super::Host::let_go`].
    LetGo {
        /// Which one.
        export: u16,
        /// Its client has given it back, or it was removed: nothing is remembered of what it did.
        is_released: bool,
    },
    /// A client has proven that it has the keys of a session.
    SessionBegan {
        /// Its number.
        session: u32,
        /// Who it is; zeroes where security is `none`.
        client: PublicKey,
    },
    /// A session that had begun is over: nothing more is to be sent in it.
    SessionEnded {
        /// Its number.
        session: u32,
    },
}

/// A request to be executed.
#[derive(Debug)]
pub struct Work {
    /// Of which device.
    pub export: u16,
    /// What to do.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes of the device: within its size.
    pub len: u32,
    pub(super) slot: u16,
    pub(super) serial: u64,
}

impl Work {
    /// Where its bytes are in the device's memory: they begin at this times the bytes of a slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Which memory of the device is meant: another one with each time that it was opened.
    pub fn serial(&self) -> u64 {
        self.serial
    }
}

/// Memory for the slots of a device that a client has, from whoever executes its requests. It is as long as
/// [`HostEvent::Open`] said; what is beyond is not asked for.
pub trait SlotMemory {
    /// Puts bytes of a write in.
    fn store(&mut self, at: usize, bytes: &[u8]);
    /// Takes bytes out, of a write or of what was read.
    fn load(&self, at: usize, into: &mut [u8]);
}

impl SlotMemory for Vec<u8> {
    fn store(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.get_mut(at..at.saturating_add(bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        if let Some(place) = self.get(at..at.saturating_add(into.len())) {
            into.copy_from_slice(place);
        }
    }
}

/// What was dropped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Frames of no session, not authentic, or seen before.
    pub frames_dropped: u64,
    /// Records of an older turn, or of an attachment that this session does not have.
    pub records_stale: u64,
    /// Fragments that say something else than the first one of their request: somebody is broken, or worse.
    pub conflicts: u64,
    /// Requests whose bytes are not what their checksum says.
    pub mismatches: u64,
    /// Sessions that ended because the client said what it must not.
    pub violations: u64,
    /// Sessions whose lease ran out.
    pub leases_over: u64,
    /// Frames of NICs that found no room.
    pub net_dropped: u64,
    /// Sessions that were looked at for what they have to send, or for the time: what the work is that sessions
    /// without anything to say do not cost.
    pub looks: u64,
}
