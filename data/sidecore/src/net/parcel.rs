//! Parcels: frames on their way to the sidecore that is home to their receiver, and back.
//!
//! For each pair of sidecores and direction there is a [`Road`]: 64 parcels, made beforehand, that go
//! out full and come back empty. A short frame is copied into its parcel, and its chain is over. Of a
//! long one the parcel holds where it is in its sender's memory, which is lent until the parcel is
//! back: the copy is the receiving sidecore's, one as between queues of one sidecore.
//!
//! Not when parcels are made (`route`), nor how they are unpacked (`inbound`). Made by control with
//! [`link`](crate::link).

use std::collections::VecDeque;
use std::sync::Arc;

use frame::{FRAME_MAX, Offload};
use guest_memory::{GuestMap, Span};
use rtrb::{Consumer, Producer, RingBuffer};
use switch::{PortId, VlanId};

use crate::bell::Bell;
use crate::net::frames::{ROOM, Room};
use crate::net::port::BridgeId;

/// Parcels of one road.
pub(crate) const PARCELS: usize = 64;
/// Of these, so many have place for a frame of any length.
const LARGE: usize = 8;
/// Bytes behind the head that a parcel has place for: those of an Ethernet frame, and some tags.
const SHORT: usize = 1_536;
/// Pieces of a sender's memory that a parcel can name: Linux sends 64 KiB in at most 19.
pub(crate) const SPANS: usize = 64;

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// One port.
    Port(PortId),
    /// All ports that are at home there.
    All,
}

/// Whose chain is lent, for the way back: place, epoch of the place, number of the chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lender {
    pub(crate) place: u16,
    pub(crate) epoch: u32,
    pub(crate) chain: u32,
}

/// One frame under way.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) bridge: BridgeId,
    pub(crate) from: PortId,
    pub(crate) to: To,
    pub(crate) vlan: VlanId,
    /// As in `Frame`.
    pub(crate) room: Room,
    pub(crate) head_len: usize,
    pub(crate) len: u32,
    pub(crate) offload: Offload,
    pub(crate) pair: u16,
    /// The rest of the frame, when it was copied.
    bytes: Box<[u8]>,
    copied: usize,
    /// Where the rest is, when it is lent, and in whose memory.
    spans: Box<[Span]>,
    lent: usize,
    pub(crate) memory: Option<Arc<GuestMap>>,
    /// Whose chain waits for it; `None` when nothing is lent.
    pub(crate) lender: Option<Lender>,
    is_large: bool,
}

impl Parcel {
    fn new(is_large: bool) -> Box<Parcel> {
        let room = if is_large { FRAME_MAX as usize } else { SHORT };
        Box::new(Parcel {
            bridge: BridgeId(0),
            from: PortId(0),
            to: To::All,
            vlan: VlanId::NONE,
            room: ROOM,
            head_len: 0,
            len: 0,
            offload: Offload::NONE,
            pair: 0,
            bytes: vec![0; room].into_boxed_slice(),
            copied: 0,
            spans: vec![Span::default(); SPANS].into_boxed_slice(),
            lent: 0,
            memory: None,
            lender: None,
            is_large,
        })
    }

    /// Copies the rest of a frame in. False when it is too long.
    pub(crate) fn copy(&mut self, rest: &[u8]) -> bool {
        let Some(place) = self.bytes.get_mut(..rest.len()) else { return false };
        place.copy_from_slice(rest);
        (self.copied, self.lent, self.memory) = (rest.len(), 0, None);
        true
    }

    /// The same from a guest's memory.
    pub(crate) fn copy_from(&mut self, memory: &GuestMap, rest: &[Span]) -> bool {
        let mut at = 0;
        for span in rest {
            let end = at + span.len() as usize;
            let Some(place) = self.bytes.get_mut(at..end) else { return false };
            if !memory.read(*span, 0, place) {
                return false;
            }
            at = end;
        }
        (self.copied, self.lent, self.memory) = (at, 0, None);
        true
    }

    /// Names the rest of a frame in its sender's memory. False when it is in too many pieces.
    pub(crate) fn lend(&mut self, memory: &Arc<GuestMap>, rest: &[Span]) -> bool {
        let Some(place) = self.spans.get_mut(..rest.len()) else { return false };
        place.copy_from_slice(rest);
        (self.copied, self.lent) = (0, rest.len());
        self.memory = Some(Arc::clone(memory));
        true
    }

    /// Place for the head, the rest as bytes or as pieces, and the memory that these are in.
    pub(crate) fn parts(&mut self) -> (&mut Room, &[u8], &[Span], &Option<Arc<GuestMap>>) {
        let bytes = self.bytes.get(..self.copied).unwrap_or_default();
        let spans = self.spans.get(..self.lent).unwrap_or_default();
        (&mut self.room, bytes, spans, &self.memory)
    }
}

/// The sending end of a road.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "they go to another thread as pointers")]
pub struct Outbound {
    /// The sidecore at the other end.
    pub(crate) to: u16,
    out: Producer<Box<Parcel>>,
    back: Consumer<Box<Parcel>>,
    short: Vec<Box<Parcel>>,
    large: Vec<Box<Parcel>>,
    bell: Arc<Bell>,
    /// Something was sent since the bell was rung.
    unrung: bool,
    /// Parcels that came back. They come in the order in which they were sent.
    returned: u64,
    /// Places that found no parcel, the one that waits for longest first.
    line: VecDeque<u16>,
    /// Whose visit it is, how many parcels it may still take, and whether it asked for one.
    visitor: (u16, usize, bool),
}

impl Outbound {
    /// A visit of what is at `place` begins.
    pub(crate) fn visit(&mut self, place: u16) {
        let others = self.line.iter().filter(|one| **one != place).count();
        self.visitor = (place, (self.short.len() / (others + 1)).max(1), false);
    }

    /// That visit is over, and brought frames somewhere: who needed no parcel for that waits for none.
    pub(crate) fn visited(&mut self) {
        let (place, _, asked) = self.visitor;
        if !asked {
            self.forget(place);
        }
    }

    /// What is at `place` wants nothing any more.
    pub(crate) fn forget(&mut self, place: u16) {
        self.line.retain(|one| *one != place);
    }

    /// An empty parcel for a frame with so many bytes to copy, in turn: whoever found none before has one first, and what is there is
    /// divided among all who wait. `None`: none is free for this one.
    pub(crate) fn take(&mut self, copied: usize) -> Option<Box<Parcel>> {
        let (place, left, _) = self.visitor;
        self.visitor.2 = true;
        let at = self.line.iter().position(|one| *one == place);
        let ahead = at.unwrap_or(self.line.len());
        let free = if copied <= SHORT { self.short.len() } else { self.large.len() };
        if left == 0 || free <= ahead {
            if at.is_none() && self.line.len() < PARCELS {
                self.line.push_back(place);
            }
            return None;
        }
        let parcel = self.take_free(copied)?;
        self.visitor.1 = left - 1;
        if let Some(at) = at {
            self.line.remove(at);
        }
        Some(parcel)
    }

    fn take_free(&mut self, copied: usize) -> Option<Box<Parcel>> {
        if copied <= SHORT
            && let Some(parcel) = self.short.pop()
        {
            return Some(parcel);
        }
        // Kept for whoever has no other way: short frames wait for short parcels.
        if copied > SHORT { self.large.pop() } else { None }
    }

    /// Gives one back that was not used.
    pub(crate) fn put_back(&mut self, mut parcel: Box<Parcel>) {
        parcel.memory = None;
        // Neither list grows: there is a place for each parcel of the road.
        if parcel.is_large { self.large.push(parcel) } else { self.short.push(parcel) }
    }

    /// Sends one. The ring has a place for each parcel of the road.
    pub(crate) fn send(&mut self, parcel: Box<Parcel>) -> bool {
        match self.out.push(parcel) {
            Ok(()) => {
                self.unrung = true;
                true
            }
            Err(rtrb::PushError::Full(parcel)) => {
                self.put_back(parcel);
                false
            }
        }
    }

    /// Wakes the other end, once for all that was sent.
    pub(crate) fn ring(&mut self) {
        if std::mem::take(&mut self.unrung) {
            self.bell.ring();
        }
    }

    /// Whether some parcel came back.
    pub(crate) fn has_back(&self) -> bool {
        !self.back.is_empty()
    }

    /// The next chain whose parcel came back. The parcel is empty, as all that came back before it are,
    /// and may be used again.
    pub(crate) fn take_back(&mut self) -> Option<Lender> {
        while let Ok(parcel) = self.back.pop() {
            let lender = parcel.lender;
            self.returned += 1;
            self.put_back(parcel);
            if lender.is_some() {
                return lender;
            }
        }
        None
    }

    /// As many have come back when all that was sent until now is unpacked.
    pub(crate) fn mark(&self) -> u64 {
        self.returned + (PARCELS - self.short.len() - self.large.len()) as u64
    }

    /// Whether all that was sent before that mark is unpacked, or never will be.
    pub(crate) fn has_passed(&self, mark: u64) -> bool {
        self.returned >= mark || self.is_dead()
    }

    /// Whether the other end has gone, or never had a place for it.
    pub(crate) fn is_dead(&self) -> bool {
        self.out.is_abandoned()
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Inbound {
    out: Consumer<Box<Parcel>>,
    back: Producer<Box<Parcel>>,
    bell: Arc<Bell>,
    /// The parcel that is being unpacked, when that takes several visits, and where its flood is.
    pub(crate) kept: Option<(Box<Parcel>, u16)>,
}

impl Inbound {
    /// Whether a visit has something to do.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.kept.is_some() || !self.out.is_empty()
    }

    /// The next parcel, and the port number from which its flood goes on.
    pub(crate) fn take(&mut self) -> Option<(Box<Parcel>, u16)> {
        self.kept.take().or_else(|| Some((self.out.pop().ok()?, 0)))
    }

    /// Gives an unpacked parcel back. There is always room: the ring has a place for each.
    pub(crate) fn give_back(&mut self, parcel: Box<Parcel>) {
        let _ = self.back.push(parcel);
    }

    /// Wakes the sender, once a visit.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }
}

/// A road from one sidecore to another: `from_bell` wakes the first, `to_bell` the second, which is
/// number `to`.
pub(crate) fn road(from_bell: &Arc<Bell>, to: u16, to_bell: &Arc<Bell>) -> (Outbound, Inbound) {
    let (out_in, out) = RingBuffer::new(PARCELS);
    let (back_in, back) = RingBuffer::new(PARCELS);
    let short = (LARGE..PARCELS).map(|_| Parcel::new(false)).collect();
    let large = (0..LARGE).map(|_| Parcel::new(true)).collect();
    let bell = Arc::clone(to_bell);
    let (line, visitor) = (VecDeque::with_capacity(PARCELS), (u16::MAX, 0, false));
    let (unrung, returned) = (false, 0);
    let outbound =
        Outbound { to, out: out_in, back, short, large, bell, unrung, returned, line, visitor };
    (outbound, Inbound { out, back: back_in, bell: Arc::clone(from_bell), kept: None })
}
