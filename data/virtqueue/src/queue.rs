//! One virtqueue as the walk sees it, whatever its format; latched by its first violation.

use guest_memory::{Area, GuestMap};

use crate::chain::Chain;
use crate::inflight::Inflight;
use crate::layout::{self, Format};
use crate::packed::{Packed, Place};
use crate::split::Split;
use crate::ticket::Ticket;
use crate::violation::{SetupError, Violation};

/// All that a queue stands on.
#[derive(Debug)]
pub struct QueueSpec {
    /// Entries: a power of two up to 32768 (split), or 1 to 32768 (packed).
    pub size: u16,
    /// Which ring.
    pub format: Format,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_index: bool,
    /// `VIRTIO_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// Descriptor table, or packed ring.
    pub descriptors: Area,
    /// Available ring, or driver event structure.
    pub driver: Area,
    /// Used ring, or device event structure.
    pub device: Area,
    /// Where to go on, as in vhost-user's `SET_VRING_BASE`. Split: the next available index.
    /// Packed: the available place and its lap in the low half, the used place and its lap in the
    /// high half; a high half of zero means that both are the same.
    pub base: u32,
    /// The record for crash recovery, when the front-end has one. It overrides `base`.
    pub inflight: Option<Inflight>,
}

#[derive(Debug)]
enum Ring {
    Split(Split),
    Packed(Packed),
}

/// The device's side of one virtqueue.
///
/// - Take: [`Self::peek`], [`Self::advance`].
/// - Give back: [`Self::complete`], [`Self::publish`].
/// - Notifications: [`Self::arm`], [`Self::disarm`].
/// - State: [`Self::base`], [`Self::in_flight`], [`Self::violation`], [`Self::take_report`].
#[derive(Debug)]
pub struct Queue {
    ring: Ring,
    size: u16,
    inflight: Option<Inflight>,
    /// Heads that an earlier process took and did not complete; the next one last.
    resubmit: Vec<u16>,
    in_flight: u16,
    violation: Option<Violation>,
    reported: bool,
}

impl Queue {
    /// A queue over memory that was checked to be the guest's.
    ///
    /// # Errors
    /// [`SetupError`]: what does not fit, before anything in the ring is changed.
    pub fn new(spec: QueueSpec) -> Result<Queue, SetupError> {
        check(&spec)?;
        let QueueSpec { size, format, event_index, indirect, mut inflight, base, .. } = spec;
        let parts = [spec.descriptors, spec.driver, spec.device];
        let rules = (event_index, indirect);
        let mut resubmit = Vec::new();
        let ring = match format {
            Format::Split => {
                let mut ring = Split::new(parts, size, rules, base as u16);
                if let Some(record) = &mut inflight {
                    let used = ring.used_shown();
                    resubmit = record.recover_split(used);
                    ring.set_next(used.wrapping_add(resubmit.len() as u16));
                }
                Ring::Split(ring)
            }
            Format::Packed => {
                let (next, used) = packed_places(base, size)?;
                Ring::Packed(Packed::new(parts, size, rules, next, used))
            }
        };
        let (in_flight, violation, reported) = (0, None, false);
        Ok(Queue { ring, size, inflight, resubmit, in_flight, violation, reported })
    }

    /// Looks at the next chain without taking it: true when `chain` holds one. Reads each
    /// descriptor once; bounded by the ring's size. A latched queue has none.
    #[inline]
    pub fn peek(&mut self, map: &GuestMap, chain: &mut Chain) -> bool {
        match self.try_peek(map, chain) {
            Ok(found) => found,
            Err(violation) => {
                self.latch(violation);
                false
            }
        }
    }

    #[inline]
    fn try_peek(&mut self, map: &GuestMap, chain: &mut Chain) -> Result<bool, Violation> {
        if self.violation.is_some() || self.in_flight >= self.size {
            return Ok(false);
        }
        match &mut self.ring {
            Ring::Split(ring) => {
                if let Some(head) = self.resubmit.last() {
                    ring.walk(*head, map, chain)?;
                    return Ok(true);
                }
                if !ring.is_ready()? {
                    return Ok(false);
                }
                ring.peek(map, chain)?;
            }
            Ring::Packed(ring) => {
                if !ring.is_ready() {
                    return Ok(false);
                }
                ring.peek(map, chain)?;
            }
        }
        Ok(true)
    }

    /// Takes the chain that the last [`Self::peek`] found.
    #[inline]
    pub fn advance(&mut self, chain: &Chain) -> Ticket {
        let resubmitted = self.resubmit.pop().is_some();
        match &mut self.ring {
            Ring::Split(ring) => {
                if !resubmitted {
                    ring.advance();
                }
                if let Some(record) = &mut self.inflight {
                    record.taken(chain.id);
                }
            }
            Ring::Packed(ring) => ring.advance(chain.descriptors),
        }
        self.in_flight += 1;
        Ticket::new(chain.id, chain.descriptors)
    }

    /// Gives a chain back, `written` bytes of its writable part filled. Seen by the guest at the
    /// next [`Self::publish`].
    #[inline]
    pub fn complete(&mut self, ticket: Ticket, written: u32) {
        let (id, descriptors) = ticket.spend();
        match &mut self.ring {
            Ring::Split(ring) => {
                ring.complete(id, written);
                if let Some(record) = &mut self.inflight {
                    record.completed(id);
                }
            }
            Ring::Packed(ring) => ring.complete(id, descriptors, written),
        }
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Shows all completions since the last call. True when the guest wants to be called.
    #[inline]
    pub fn publish(&mut self) -> bool {
        match &mut self.ring {
            Ring::Split(ring) => {
                let call = ring.publish();
                if let Some(record) = &mut self.inflight {
                    record.published(ring.used_shown());
                }
                call
            }
            Ring::Packed(ring) => ring.publish(),
        }
    }

    /// Asks for a kick, then looks again: true when there is something to take already. The one
    /// order in which no kick is lost (VIRTIO 2.7.10).
    pub fn arm(&mut self) -> bool {
        if self.violation.is_some() {
            return false;
        }
        let found = match &mut self.ring {
            Ring::Split(ring) => ring.arm(),
            Ring::Packed(ring) => Ok(ring.arm()),
        };
        match found {
            Ok(found) => found || !self.resubmit.is_empty(),
            Err(violation) => {
                self.latch(violation);
                false
            }
        }
    }

    /// Asks for no kicks. The guest may still send some.
    pub fn disarm(&mut self) {
        match &mut self.ring {
            Ring::Split(ring) => ring.disarm(),
            Ring::Packed(ring) => ring.disarm(),
        }
    }

    /// Where the next process or sidecore goes on: the value for `GET_VRING_BASE`. Exact only when
    /// nothing is in flight and everything is published.
    pub fn base(&self) -> u32 {
        match &self.ring {
            Ring::Split(ring) => u32::from(ring.next().wrapping_sub(self.resubmit.len() as u16)),
            Ring::Packed(ring) => {
                let (next, used) = ring.places();
                u32::from(next.bits()) | u32::from(used.bits()) << 16
            }
        }
    }

    /// Chains taken and not completed.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Entries of the ring.
    #[inline]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// What latched the queue.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// The violation, once.
    pub fn take_report(&mut self) -> Option<Violation> {
        if self.violation.is_none() || std::mem::replace(&mut self.reported, true) {
            return None;
        }
        self.violation
    }

    /// Latches the queue: for what only the device can see (no room for a status).
    #[cold]
    pub fn latch(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }
}

fn packed_places(base: u32, size: u16) -> Result<(Place, Place), SetupError> {
    let next = Place::of_bits(base as u16);
    let high = (base >> 16) as u16;
    let used = if high == 0 { next } else { Place::of_bits(high) };
    if next.index >= size || used.index >= size {
        return Err(SetupError::Base(base));
    }
    Ok((next, used))
}

fn check(spec: &QueueSpec) -> Result<(), SetupError> {
    if !layout::is_size(spec.format, spec.size) {
        return Err(SetupError::Size(spec.size));
    }
    let (format, size) = (spec.format, spec.size);
    if format == Format::Split && spec.base > u32::from(u16::MAX) {
        return Err(SetupError::Base(spec.base));
    }
    let aligns = if format == Format::Split { (2, 4) } else { (4, 4) };
    let parts = [
        ("descriptor", &spec.descriptors, layout::descriptors_len(format, size), 16),
        ("driver", &spec.driver, layout::driver_len(format, size, spec.event_index), aligns.0),
        ("device", &spec.device, layout::device_len(format, size, spec.event_index), aligns.1),
    ];
    for (part, area, need, align) in parts {
        let have = area.len() as u64;
        if have < need {
            return Err(SetupError::Short { part, have, need });
        }
        if !area.is_aligned(align) {
            return Err(SetupError::Unaligned { part, align });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
