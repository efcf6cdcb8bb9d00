//! A frame on its way through this sidecore: head in private memory, rest where it was found.

use std::sync::Arc;

use backend::net::Rest;
use frame::{HEAD_MAX, HEADER_SIZE, Offload, tag};
use guest_memory::{GuestMap, Health};

/// Bytes before the head in which a receiver's virtio-net header is put, so that both are one copy.
pub(crate) const FRONT: usize = HEADER_SIZE;

/// Place for a head, for the header in front of it, and for a tag that is pushed.
pub(crate) type Room = [u8; FRONT + HEAD_MAX + tag::SIZE];

/// An empty place.
pub(crate) const ROOM: Room = [0; FRONT + HEAD_MAX + tag::SIZE];

/// A frame that was taken and is to be delivered.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    /// From [`FRONT`] on: the head.
    pub(crate) room: &'a mut Room,
    /// Bytes of the head: all of a short frame.
    pub(crate) head_len: usize,
    /// Bytes of the frame.
    pub(crate) len: u32,
    /// What follows the head.
    pub(crate) rest: Rest<'a>,
    /// What is left undone in it.
    pub(crate) offload: Offload,
    /// Of the memory that the rest is in.
    pub(crate) health: Option<&'a Health>,
    /// That memory, when it can be lent: it stays its sender's until the chain is completed.
    pub(crate) memory: Option<&'a Arc<GuestMap>>,
    /// The pair, or the host port's descriptor, that it came on.
    pub(crate) pair: u16,
}

impl Frame<'_> {
    /// The head.
    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        self.room.get(FRONT..FRONT + self.head_len).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn head_mut(&mut self) -> &mut [u8] {
        self.room.get_mut(FRONT..FRONT + self.head_len).unwrap_or_default()
    }

    /// Whether it is for more than one station.
    #[inline]
    pub(crate) fn is_multicast(&self) -> bool {
        self.head().first().is_some_and(|byte| byte & 1 != 0)
    }

    /// Whether the memory it was read from is still its sender's: what was read before is true.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.health.is_some_and(Health::is_lost)
    }

    /// Puts the header for a receiver in front of the head; the two are one piece then.
    #[inline]
    pub(crate) fn with_header(&mut self, header: &[u8; HEADER_SIZE], size: usize) -> &[u8] {
        if size == FRONT
            && let Some(place) = self.room.first_chunk_mut()
        {
            *place = *header;
            return self.room.get(..FRONT + self.head_len).unwrap_or_default();
        }
        self.with_short_header(header, size)
    }

    /// A legacy driver's.
    #[cold]
    fn with_short_header(&mut self, header: &[u8; HEADER_SIZE], size: usize) -> &[u8] {
        let start = FRONT - size.min(FRONT);
        if let (Some(place), Some(bytes)) = (self.room.get_mut(start..FRONT), header.get(..size)) {
            place.copy_from_slice(bytes);
        }
        self.room.get(start..FRONT + self.head_len).unwrap_or_default()
    }
}
