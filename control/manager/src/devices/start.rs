//! From the facts of a ring to a queue that a sidecore can serve.
//!
//! Pure translation; the only system calls are duplicates of the kick and call descriptors.

use std::io;
use std::sync::Arc;

use backend::Stages;
use config::plan::PolicyPlan;
use device::blk::Blk;
use device::features;
use device::net::Net;
use guest_memory::{Area, GuestMap};
use schedule::Policy;
use sidecore::{NicQueue, QueueCounters, QueueKey, RoleSpec, Served, ServedSpec};
use vhost_user::RingFacts;
use virtqueue::{Format, Inflight, Queue, QueueSpec, SetupError, inflight, layout};

use crate::devices::device_plan::Facts;
use crate::devices::front_end::{FrontEnd, InflightRecord, MemoryMissing};
use crate::devices::kind::Kind;
use crate::devices::lent::Lent;
use crate::devices::queue::Left;
use crate::disk::image::ImageRefused;

/// Lap bits of a packed descriptor, and the base of a packed ring that was never used: both places at
/// 0 in the first lap (VIRTIO 1.2, 2.8.1; vhost-user, `SET_VRING_BASE`).
const PACKED_AVAIL: u16 = 1 << 7;
const PACKED_USED: u16 = 1 << 15;
const PACKED_FRESH: u32 = 0x8000_8000;

/// What a queue takes from its device.
pub(crate) struct DeviceParts<'a> {
    pub(crate) key: QueueKey,
    pub(crate) kind: &'a Kind,
    pub(crate) facts: &'a Facts,
    pub(crate) counters: &'a Arc<QueueCounters>,
    pub(crate) left: Option<Left>,
    /// What is done to requests on their way to a disk.
    pub(crate) stages: Stages,
}

/// Why a ring cannot be served. The texts are for the operator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RingError {
    /// Its guest's image is gone, or another one.
    #[error(transparent)]
    Image(#[from] ImageRefused),
    /// There is no memory, or its log is too short.
    #[error(transparent)]
    Memory(#[from] MemoryMissing),
    /// A part of the ring has no memory.
    #[error("the {part} of the ring at {user:#x} is not in memory")]
    NotInMemory {
        /// Which of the three.
        part: &'static str,
        /// Front-end address.
        user: u64,
    },
    /// The in-flight record is for fewer queues, or for smaller ones.
    #[error(
        "the in-flight record is for {queues} queues of {queue_size}, this is queue {index} of {size} entries"
    )]
    RecordFor {
        /// Queues that the record is for.
        queues: u16,
        /// Entries of each.
        queue_size: u16,
        /// This queue.
        index: u16,
        /// Its entries.
        size: u16,
    },
    /// The in-flight record has no part for the queue.
    #[error("the in-flight record ends before queue {index}")]
    RecordEnds {
        /// This queue.
        index: u16,
    },
    /// A packed ring of which nobody knows where it stands.
    #[error(
        "its packed ring was used before the daemon was started, and its front-end does not know where it \
         stands: reset the device in the guest (unbind and bind its driver, or restart the guest); with \
         packed=off a NIC outlives a kill of the daemon"
    )]
    PackedLost,
    /// A packed ring that a process served which has died, and whose front-end knows no more than before.
    #[error(
        "another process served its packed ring and died, and its front-end keeps no in-flight record: nobody \
         knows where the ring stands; restart the guest, or, where its VMM connects again after a cut, reset the \
         device in the guest (unbind and bind its driver)"
    )]
    PlaceLost,
    /// The ring, or its part of the record, cannot be as it was told.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The disk's locks are elsewhere.
    #[error("its image is not open")]
    NotOpen,
    /// The NIC is not plugged in.
    #[error("the nic has no port")]
    NoPort,
    /// No descriptor is left for kicks.
    #[error("the kick descriptor: {0}")]
    Kick(#[source] io::Error),
    /// No descriptor is left for calls.
    #[error("the call descriptor: {0}")]
    Call(#[source] io::Error),
}

/// Begins what is said of such a ring, in each version.
pub(crate) const PLACE_LOST: &str = "another process served its packed ring and died";

impl RingError {
    /// Whether it is mended by another start of the guest, and by that alone.
    pub(crate) fn is_guests(&self) -> bool {
        matches!(self, RingError::Image(_) | RingError::PackedLost | RingError::PlaceLost)
    }
}

/// The ring format of a driver with these features.
pub(crate) fn format_of(negotiated: u64) -> Format {
    if negotiated & features::RING_PACKED != 0 { Format::Packed } else { Format::Split }
}

/// Makes the queue.
///
/// # Errors
/// What does not fit, for the operator: a ring outside of memory, a record that is too short.
pub(crate) fn make(
    facts: &RingFacts<'_, Lent>,
    negotiated: u64,
    logging: bool,
    front_end: &FrontEnd,
    device: &DeviceParts<'_>,
) -> Result<Box<Served>, RingError> {
    let memory = front_end.memory(logging)?;
    let format = format_of(negotiated);
    let record = match &front_end.inflight {
        Some(record) => Some(inflight_of(record, device.key.queue, format, facts.size)?),
        None => None,
    };
    let base = base_of(facts, negotiated, front_end, device)?;
    let queue = queue(facts, base, negotiated, &memory, record)?;
    let duplicate = |fd: Option<&Lent>| fd.map(Lent::try_clone).transpose();
    let spec = ServedSpec {
        key: device.key,
        queue,
        memory,
        role: role_of(device, negotiated)?,
        kick: duplicate(facts.kick).map_err(RingError::Kick)?,
        call: duplicate(facts.call).map_err(RingError::Call)?,
        share: device.facts.service.share,
        policy: policy_of(device.facts.service.policy),
        target_ns: device.facts.service.target_ns(),
        moderate_ns: device.facts.service.moderate_ns(),
        // Whoever keeps what it had gives it.
        gate: None,
        counters: Arc::clone(device.counters),
    };
    Ok(Served::new(spec))
}

/// What is done with the chains of a queue. Of a NIC, ring 2p receives and ring 2p + 1 transmits for
/// pair p (VIRTIO 1.2, 5.1.2).
///
/// # Errors
/// The NIC is not plugged in, or the disk's locks are elsewhere.
fn role_of(device: &DeviceParts<'_>, negotiated: u64) -> Result<RoleSpec, RingError> {
    let index = device.key.queue;
    match device.kind {
        Kind::Disk(disk) if !disk.locks.is_here() => Err(RingError::NotOpen),
        Kind::Disk(disk) => Ok(RoleSpec::Disk {
            blk: Blk::new(&disk.shape, Arc::clone(&disk.live), negotiated),
            backend: disk.disk.backend_through(device.stages.clone()),
        }),
        Kind::Nic(nic) => {
            let place = nic.at().ok_or(RingError::NoPort)?.way.place;
            let (bridge, port, pair) = (place.bridge, place.port, index / 2);
            let queue = NicQueue { net: Net::new(negotiated), bridge, port, pair };
            Ok(if index.is_multiple_of(2) {
                RoleSpec::Receive(queue)
            } else {
                RoleSpec::Transmit(queue)
            })
        }
    }
}

/// Where the queue of a device goes on. A NIC completes in order and has nothing in flight that its
/// used index does not tell, so a split ring of it goes on from there, whatever the front-end says:
/// after a reconnect Cloud Hypervisor sends the available index, with which every buffer that waits
/// would be lost. A packed ring does not show where it stands; a front-end that was cut off says what
/// it said before, and then it is remembered here, for as long as this process lives.
fn base_of(
    facts: &RingFacts<'_, Lent>,
    negotiated: u64,
    front_end: &FrontEnd,
    device: &DeviceParts<'_>,
) -> Result<u32, RingError> {
    if is_lost(facts, negotiated, front_end, device.left) {
        return Err(RingError::PlaceLost);
    }
    if device.kind.nic().is_none() {
        return Ok(facts.base);
    }
    Ok(match format_of(negotiated) {
        Format::Split => used_index(facts, front_end).map_or(facts.base, u32::from),
        // A guest that has started anew meanwhile has an unused ring in the same place.
        Format::Packed => match device.left.filter(|left| left.is_news_to(facts)) {
            Some(left) if was_used(facts, negotiated, front_end) => {
                left.base().unwrap_or(facts.base)
            }
            None if device.left.is_none() && was_used_before(facts, negotiated, front_end) => {
                return Err(RingError::PackedLost);
            }
            _ => facts.base,
        },
    })
}

/// Whether nobody knows where a ring stands, which was `left` so: before its front-end says more, unless its guest has
/// started anew in the same place.
pub(crate) fn is_lost(
    facts: &RingFacts<'_, Lent>,
    negotiated: u64,
    front_end: &FrontEnd,
    left: Option<Left>,
) -> bool {
    left.is_some_and(|left| left.base().is_none() && left.is_news_to(facts))
        && was_used(facts, negotiated, front_end)
}

/// Whether a packed ring is said to be new, and is not: an earlier process served its driver.
fn was_used_before(facts: &RingFacts<'_, Lent>, negotiated: u64, front_end: &FrontEnd) -> bool {
    facts.base as u16 == PACKED_FRESH as u16 && was_used(facts, negotiated, front_end)
}

fn queue(
    facts: &RingFacts<'_, Lent>,
    base: u32,
    negotiated: u64,
    memory: &GuestMap,
    inflight: Option<Inflight>,
) -> Result<Queue, RingError> {
    let format = format_of(negotiated);
    let (size, event_index) = (facts.size, negotiated & features::EVENT_IDX != 0);
    let area = |part: &'static str, user: u64, len: u64| -> Result<Area, RingError> {
        let found = memory.area_at_user(user, len);
        found.ok_or(RingError::NotInMemory { part, user })
    };
    let ring = &facts.addresses;
    let spec = QueueSpec {
        size,
        format,
        event_index,
        indirect: negotiated & features::INDIRECT_DESC != 0,
        descriptors: area("descriptors", ring.descriptors, layout::descriptors_len(format, size))?,
        driver: area("driver part", ring.driver, layout::driver_len(format, size, event_index))?,
        device: area("device part", ring.device, layout::device_len(format, size, event_index))?,
        base,
        inflight,
    };
    Ok(Queue::new(spec)?)
}

/// The used index of a split ring, which its driver reads.
pub(crate) fn used_index(facts: &RingFacts<'_, Lent>, front_end: &FrontEnd) -> Option<u16> {
    let memory = front_end.memory(false).ok()?;
    Some(memory.area_at_user(facts.addresses.device, 4)?.load_acquire_u16(2))
}

/// Whether some request of this ring was completed before, by an earlier process. The ring itself is
/// asked: a front-end that lost its back-end may not know where a packed ring stands.
pub(crate) fn was_used(facts: &RingFacts<'_, Lent>, negotiated: u64, front_end: &FrontEnd) -> bool {
    let Ok(memory) = front_end.memory(false) else { return false };
    let last = u64::from(facts.size).saturating_sub(1);
    let bytes = |user: Option<u64>| -> Option<[u8; 16]> {
        let mut bytes = [0; 16];
        let place = memory.area_at_user(user?, 16)?;
        place.read(0, &mut bytes).then_some(bytes)
    };
    match format_of(negotiated) {
        // Flags, index, elements of 8 bytes (VIRTIO 1.2, 2.7.8). After 65,536 requests the index is
        // 0 again, but the last element is not.
        Format::Split => {
            let used = facts.addresses.device;
            let index = memory.area_at_user(used, 4).map_or(0, |area| area.load_acquire_u16(2));
            let end = used.checked_add(4 + 8 * last);
            let area = end.and_then(|user| memory.area_at_user(user, 8));
            let element = area.map_or((0, 0), |area| (area.load_u32(0), area.load_u32(4)));
            facts.base != 0 || index != 0 || element != (0, 0)
        }
        // The first request is completed at place 0, whose bits then are equal; in the second lap
        // the driver makes places available without the first lap's bit, the last one of them too
        // (2.8.1). A fresh place is available in the first lap or has no address; DPDK has numbered it.
        Format::Packed => {
            let table = facts.addresses.descriptors;
            let was_used = |place: u64| {
                let Some(bytes) = bytes(table.checked_add(16 * place)) else { return false };
                let flags = u16::from_le_bytes([bytes[14], bytes[15]]);
                bytes[..8] != [0; 8] && flags & (PACKED_AVAIL | PACKED_USED) != PACKED_AVAIL
            };
            // DPDK says only where the driver's side stands, in the lower half.
            facts.base as u16 != PACKED_FRESH as u16 || was_used(0) || was_used(last)
        }
    }
}

/// Whether an earlier process has used the in-flight record of ring `index`: then it alone says where the
/// ring stands. One that does not fit says nothing that can be understood, which is no reason to ignore it.
pub(crate) fn is_recorded(
    facts: &RingFacts<'_, Lent>,
    negotiated: u64,
    front_end: &FrontEnd,
    index: u16,
) -> bool {
    front_end.inflight.as_ref().is_some_and(|record| {
        let part = inflight_of(record, index, format_of(negotiated), facts.size);
        part.map_or(true, |part| !part.is_fresh())
    })
}

/// The part of a record that belongs to queue `index`.
fn inflight_of(
    record: &InflightRecord,
    index: u16,
    format: Format,
    size: u16,
) -> Result<Inflight, RingError> {
    // A driver may use a smaller ring than the front-end offered; its place stays the same.
    if index >= record.queues || size > record.queue_size {
        let (queues, queue_size) = (record.queues, record.queue_size);
        return Err(RingError::RecordFor { queues, queue_size, index, size });
    }
    let len = inflight::queue_region_len(format, record.queue_size);
    let at = len.checked_mul(index.into()).and_then(|at| usize::try_from(at).ok());
    let area = at.and_then(|at| record.area.window(at, len as usize));
    let area = area.ok_or(RingError::RecordEnds { index })?;
    Ok(Inflight::new(area, format, size)?)
}

/// As a sidecore's schedule takes it.
pub(crate) fn policy_of(policy: PolicyPlan) -> Policy {
    match policy {
        PolicyPlan::Es2 { quota } => Policy::Es2 { quota },
        PolicyPlan::Elvis { rate_in, rate_out } => Policy::Elvis { rate_in, rate_out },
        PolicyPlan::Adaptive => Policy::Adaptive,
        PolicyPlan::Poll => Policy::Poll,
        PolicyPlan::Notify => Policy::Notify,
    }
}

#[cfg(test)]
mod tests;
