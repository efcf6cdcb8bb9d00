//! One front-end's connection: what it has told, and what follows from each further message.
//!
//! The order for every message: [`Session::scope`], take back the queues it names, then
//! [`Session::apply`], then ask [`Session::ready`] for each queue again. Not here: which queues
//! run (`manager`), how bytes come (`frame`).

use std::fmt;

use crate::bits;
use crate::frame::{self, Frame};
use crate::memory_table;
use crate::message::{self, ConfigSpan, InflightArea, LogArea, MemoryRegion, Message};
use crate::queue_setup::{Place, QueueSetup, RingFacts};
use crate::refusal::{Reason, Refused, Reject};

mod apply;
mod retell;

pub use retell::Told;

/// What differs between the kinds of device that this protocol is spoken for.
#[derive(Clone, Copy, Debug)]
pub enum DeviceClass {
    /// A virtio-blk device: it offers an in-flight record, and counts its queues one by one.
    Disk {
        /// Bytes that one queue takes in an in-flight record, by ring size and whether it is packed.
        inflight_len: fn(size: u16, packed: bool) -> u64,
    },
    /// A virtio-net device: it takes `SEND_RARP` and `NET_SET_MTU`, and has no in-flight record.
    /// `GET_QUEUE_NUM` is a number of pairs to some front-ends and of rings to others.
    Nic,
}

impl DeviceClass {
    /// The protocol features that such a device offers.
    pub fn protocol_features(self) -> u64 {
        match self {
            DeviceClass::Disk { .. } => bits::OFFERED_BY_DISK,
            DeviceClass::Nic => bits::OFFERED_BY_NIC,
        }
    }

    /// What `GET_QUEUE_NUM` answers for so many rings.
    ///
    /// The specification says "queues". QEMU compares the answer with a NIC's pairs, and asks before
    /// it sends `SET_OWNER` (all of 2.1 to 10.1 do). Those that own first, as everything built on
    /// rust-vmm does (Cloud Hypervisor, crosvm), compare it with rings, and do not start a NIC
    /// when it is less. Rings for all would take QEMU's own refusal of too many pairs away.
    fn queue_number(self, rings: u16, has_owner: bool) -> u16 {
        match self {
            DeviceClass::Nic if !has_owner => rings / 2,
            DeviceClass::Disk { .. } | DeviceClass::Nic => rings,
        }
    }
}

/// What does not change while the device exists.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFacts {
    /// What kind of device it is.
    pub class: DeviceClass,
    /// Virtio features offered, without those of [`bits::TRANSPORT`].
    pub features: u64,
    /// Rings, at most 256: a disk's queues, twice a NIC's pairs.
    pub queues_max: u16,
    /// Entries of the largest ring.
    pub ring_size_max: u16,
}

/// What a session cannot do by itself. Every method leaves things as they were when it fails.
pub trait Owner<F> {
    /// Why something was not done; its words say what went wrong and what to do.
    type Error: fmt::Display;

    /// Reads the config space; false when the range is not there.
    fn read_config(&self, offset: u32, into: &mut [u8]) -> bool;
    /// Writes the config space; false when it may not be written there.
    fn write_config(&mut self, negotiated: u64, offset: u32, bytes: &[u8]) -> bool;
    /// Replaces all memory. The lengths are equal and the regions are apart.
    fn set_memory(&mut self, regions: &[MemoryRegion], fds: Vec<F>) -> Result<(), Self::Error>;
    /// One region more, apart from the others.
    fn add_region(&mut self, region: &MemoryRegion, fd: F) -> Result<(), Self::Error>;
    /// One region less; it is there.
    fn remove_region(&mut self, region: &MemoryRegion) -> Result<(), Self::Error>;
    /// Logs writes here while [`Session::is_logging`].
    fn set_log(&mut self, area: LogArea, fd: F) -> Result<(), Self::Error>;
    /// Makes a file of `len` zeroed bytes for an in-flight record.
    fn make_inflight(&mut self, len: u64) -> Result<F, Self::Error>;
    /// Uses this record from the next start of a ring on.
    fn set_inflight(&mut self, area: &InflightArea, fd: F) -> Result<(), Self::Error>;
    /// Refuses a descriptor that cannot be a kick, call or error signal.
    fn check_signal(&self, fd: &F) -> Result<(), Self::Error>;
    /// Takes the channel to the front-end.
    fn set_channel(&mut self, fd: F) -> Result<(), Self::Error>;
    /// The driver starts anew.
    fn reset(&mut self);
    /// A guest that came here from another host has this address, a unicast one: the network is to
    /// learn it. Only a NIC is asked.
    fn announce(&mut self, mac: [u8; 6]) -> Result<(), Self::Error>;
    /// The guest's packets have at most so many bytes, 68 to 65,535. Only a NIC is asked; it refuses
    /// more than its own MTU.
    fn set_mtu(&mut self, mtu: u16) -> Result<(), Self::Error>;
}

/// Which queues must be back from their sidecores before a message may be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// None.
    None,
    /// One, if it is attached.
    Queue(u16),
    /// All that are attached.
    All,
}

impl Scope {
    /// Whether a queue is one of them.
    pub fn has(self, queue: u16) -> bool {
        match self {
            Scope::None => false,
            Scope::Queue(one) => one == queue,
            Scope::All => true,
        }
    }
}

/// What goes back to the front-end.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply<F> {
    /// Header and payload.
    pub bytes: Vec<u8>,
    /// A descriptor that goes with it.
    pub fd: Option<F>,
}

/// The state of one connection.
///
/// - For each message: [`Self::parse`], [`Self::scope`], [`Self::apply`].
/// - What could run: [`Self::ready`], [`Self::features`], [`Self::is_logging`].
/// - What became of a queue: [`Self::stopped_at`], [`Self::failed`], [`Self::lost`].
/// - For a process that takes over: [`Self::retell`], [`Self::base`], [`Self::has_failed`], [`Self::is_lost`].
#[derive(Debug)]
pub struct Session<F> {
    facts: DeviceFacts,
    features: Option<u64>,
    protocol_features: u64,
    regions: Vec<MemoryRegion>,
    queues: Vec<QueueSetup<F>>,
    has_owner: bool,
    has_log: bool,
    has_channel: bool,
    /// Held as long as the connection, as its sender expects.
    log_fd: Option<F>,
    changes: u64,
}

impl<F> Session<F> {
    /// A connection on which nothing was said yet.
    pub fn new(facts: DeviceFacts) -> Session<F> {
        let queues = (0..facts.queues_max).map(|_| QueueSetup::default()).collect();
        Session {
            facts,
            features: None,
            protocol_features: 0,
            regions: Vec::new(),
            queues,
            has_owner: false,
            has_log: false,
            has_channel: false,
            log_fd: None,
            changes: 0,
        }
    }

    /// The meaning of a frame whose form is right: payload and number of descriptors.
    ///
    /// # Errors
    /// [`Reject`]. An unknown message is refused, one that does not keep its form also ends the
    /// connection.
    pub fn parse(&self, frame: &Frame<F>) -> Result<Message, Reject> {
        let message = Message::parse(frame.request, &frame.payload)
            .and_then(|message| message.check_fds(frame.fds.len()).map(|()| message));
        message.map_err(|reason| match reason {
            Reason::PayloadSize { .. } => Reject { reason, nak: None },
            reason => self.reject(reason, frame.request, frame.need_reply),
        })
    }

    /// Which queues stand on what `message` changes.
    pub fn scope(&self, message: &Message) -> Scope {
        let queue = |index: u32| match self.queue_index(index) {
            Ok(index) => Scope::Queue(index as u16),
            // It will be refused, so nothing has to wait for it.
            Err(_) => Scope::None,
        };
        match message {
            _ if self.is_repeated(message) => Scope::None,
            Message::SetFeatures(features)
                if self.features == Some(*features & !bits::RING_RESET) =>
            {
                Scope::None
            }
            Message::SetFeatures(_)
            | Message::ResetOwner
            | Message::ResetDevice
            | Message::SetMemTable(_)
            | Message::AddMemReg(_)
            | Message::RemMemReg(_)
            | Message::SetLogBase(_)
            | Message::SetInflightFd(_) => Scope::All,
            Message::SetVringNum(state)
            | Message::SetVringBase(state)
            | Message::GetVringBase(state) => queue(state.queue),
            Message::SetVringEnable(state) if state.value == 0 => queue(state.queue),
            Message::SetVringAddr((index, _)) => queue(*index),
            Message::SetVringKick(ring) => queue(ring.queue),
            // A running queue takes a new call descriptor as it is.
            _ => Scope::None,
        }
    }

    /// QEMU (7.2, to name one) has a device of its own for each pair of a NIC, and each of them adds and removes
    /// the same regions by the one connection. What is there is not added again, and what is gone
    /// not removed.
    fn is_repeated(&self, message: &Message) -> bool {
        matches!(self.facts.class, DeviceClass::Nic)
            && match message {
                Message::AddMemReg(region) => self.regions.contains(region),
                Message::RemMemReg(region) => memory_table::find(region, &self.regions).is_err(),
                _ => false,
            }
    }

    /// Applies a message, given that no queue in its scope is attached.
    ///
    /// # Errors
    /// [`Reject`]: nothing was changed. Its `nak` is to be sent, or the connection closed.
    pub fn apply<O: Owner<F>>(
        &mut self,
        message: Message,
        fds: Vec<F>,
        need_reply: bool,
        owner: &mut O,
    ) -> Result<Option<Reply<F>>, Reject<Refused<O::Error>>> {
        let id = message.id();
        match self.change(message, fds, owner) {
            Ok(Some(reply)) => Ok(Some(reply)),
            Ok(None) if need_reply && self.has(bits::REPLY_ACK) => {
                Ok(Some(Reply { bytes: frame::reply(id, &message::payload(&0u64)), fd: None }))
            }
            Ok(None) => Ok(None),
            Err(reason) => Err(self.reject(reason, id, need_reply)),
        }
    }

    /// What queue `index` needs, when nothing is missing: it may be attached. Whether its addresses
    /// are in memory is not known here.
    pub fn ready(&self, index: u16) -> Option<RingFacts<'_, F>> {
        let features = self.features?;
        if self.regions.is_empty() {
            return None;
        }
        let enabled_at_start = features & bits::PROTOCOL_FEATURES == 0;
        self.queues.get(usize::from(index))?.ready(enabled_at_start)
    }

    /// What was told of queue `index`, when it could run but for being enabled.
    pub fn set_up(&self, index: u16) -> Option<RingFacts<'_, F>> {
        self.queues.get(usize::from(index))?.facts()
    }

    /// Counts what was changed; a start that failed is worth trying again when it moved.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The virtio features negotiated, without those of [`bits::TRANSPORT`].
    pub fn features(&self) -> u64 {
        self.features.unwrap_or(0) & !bits::TRANSPORT
    }

    /// Whether writes to guest memory are to be logged.
    pub fn is_logging(&self) -> bool {
        self.has_log && self.features.unwrap_or(0) & bits::LOG_ALL != 0
    }

    /// Whether the front-end has said where its memory is: from then on it means to run.
    pub fn has_memory(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Whether the front-end has said that it is one (`SET_OWNER`).
    pub fn has_owner(&self) -> bool {
        self.has_owner
    }

    /// Where a queue was when its sidecore gave it back.
    pub fn stopped_at(&mut self, index: u16, base: u32) {
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            (queue.base, queue.place) = (base, Place::Served);
        }
    }

    /// Another back-end has served a queue, and died: where it stands is hearsay again.
    pub fn served_elsewhere(&mut self, index: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            queue.place = Place::Hearsay;
        }
    }

    /// Whether queue `index` was served since its front-end said where it stands. Until then that is
    /// hearsay: what an earlier back-end had in flight is in the in-flight record alone, and a base that
    /// is to be told to another back-end has none of it.
    pub fn was_served(&self, index: u16) -> bool {
        self.queues.get(usize::from(index)).is_some_and(|queue| queue.place == Place::Served)
    }

    /// Another back-end has served a queue, and died, and nothing says how far it came: it is not ready until its
    /// front-end says where it stands, or resets it.
    pub fn lost(&mut self, index: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            queue.place = Place::Lost;
        }
    }

    /// A queue broke a rule: it is not ready until the front-end stops or resets it. The
    /// descriptor on which the front-end wants to be told, if there is one.
    pub fn failed(&mut self, index: u16) -> Option<&F> {
        let queue = self.queues.get_mut(usize::from(index))?;
        queue.failed = true;
        queue.err.as_ref()
    }

    /// The bytes that announce a changed config space on the back-end channel, when the front-end
    /// can understand them.
    pub fn config_changed(&self) -> Option<Vec<u8>> {
        let can = self.has_channel && self.has(bits::BACKEND_REQ) && self.has(bits::CONFIG);
        can.then(message::config_change)
    }

    fn has(&self, protocol_feature: u64) -> bool {
        self.protocol_features & protocol_feature != 0
    }

    fn queue_index(&self, index: u32) -> Result<usize, Reason> {
        let queues = self.facts.queues_max;
        match usize::try_from(index) {
            Ok(place) if index < u32::from(queues) => Ok(place),
            _ => Err(Reason::Queue { index, queues }),
        }
    }

    fn queue_mut(&mut self, index: u32) -> Result<&mut QueueSetup<F>, Reason> {
        let place = self.queue_index(index)?;
        let queues = self.facts.queues_max;
        self.queues.get_mut(place).ok_or(Reason::Queue { index, queues })
    }

    fn reject<R>(&self, reason: R, id: u32, need_reply: bool) -> Reject<R> {
        let can = need_reply && self.has(bits::REPLY_ACK);
        Reject { reason, nak: can.then(|| frame::reply(id, &message::payload(&1u64))) }
    }
}

/// A reply that is a number.
fn number<F>(message: &Message, value: u64) -> Option<Reply<F>> {
    wire(message, &value)
}

fn wire<F>(message: &Message, wire: &impl message::Wire) -> Option<Reply<F>> {
    Some(Reply { bytes: frame::reply(message.id(), &message::payload(wire)), fd: None })
}

#[cfg(test)]
mod tests;
