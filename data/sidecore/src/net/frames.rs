//! A frame on its way through this sidecore: head in private memory, rest where it was found.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use backend::net::Rest;
use frame::{HEAD_MAX, HEADER_SIZE, Offload, tag};
use guest_memory::{GuestMap, Health};

/// Bytes before the head: a receiver's virtio-net header is put at their end, so that both can be one
/// copy, and the head begins a cache line.
pub(crate) const FRONT: usize = 64;

/// Place for a head, for the header in front of it, and for a tag that is pushed.
///
/// A head that begins a cache line is stored in whole lines. What is loaded from it right after is
/// handed on by the processor; across a line's end it would have to wait until the store, and all
/// before it, are in the cache.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Room([u8; FRONT + HEAD_MAX + tag::SIZE]);

/// An empty place.
pub(crate) const ROOM: Room = Room([0; FRONT + HEAD_MAX + tag::SIZE]);

const _: () = assert!(FRONT >= HEADER_SIZE && FRONT.is_multiple_of(align_of::<Room>()));

impl Deref for Room {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Room {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

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

    /// Whether all of it is in the head, and nothing is left undone.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.offload == Offload::NONE && self.head_len == self.len as usize
    }

    /// Whether it is for more than one station.
    #[inline]
    pub(crate) fn is_multicast(&self) -> bool {
        self.head().first().is_some_and(|byte| byte & 1 != 0)
    }

    /// Whether it came from the host: it is in no guest's memory.
    #[inline]
    pub(crate) fn is_of_host(&self) -> bool {
        self.health.is_none()
    }

    /// Whether the memory it was read from is still its sender's: what was read before is true.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.health.is_some_and(Health::is_lost)
    }

    /// Puts the header for a receiver in front of the head; the two are one piece then.
    #[inline]
    pub(crate) fn with_header(&mut self, header: &[u8; HEADER_SIZE], size: usize) -> &[u8] {
        let start = FRONT - size.min(FRONT);
        if let (Some(place), Some(bytes)) = (self.room.get_mut(start..FRONT), header.get(..size)) {
            place.copy_from_slice(bytes);
        }
        self.room.get(start..FRONT + self.head_len).unwrap_or_default()
    }
}
