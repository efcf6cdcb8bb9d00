//! What is in flight of one queue: a fixed table of tickets and what their completion needs.
//!
//! Allocated when the queue is made. A slot is named by a [`Tag`]; its generation moves on at every
//! use, so a completion that comes late finds nothing. Requests of more than [`INLINE`] segments
//! also take a block of a small pool.

use backend::Progress;
use device::blk::Work;
use request::{Op, Request, Span, Tag};
use schedule::Nanos;
use virtqueue::{CHAIN_SPANS_MAX, Ticket};

/// Segments kept in the slot itself; most requests have no more.
pub(crate) const INLINE: usize = 4;
/// Slots of one queue at most.
pub(crate) const SLOTS_MAX: usize = 256;
/// Requests of one queue with more than [`INLINE`] segments in flight at most.
pub(crate) const BLOCKS_MAX: usize = 32;

// What one queue takes, slots being most of it (ARCHITECTURE.md, bounds).
const _: () = assert!(
    SLOTS_MAX * size_of::<Slot>() + BLOCKS_MAX * CHAIN_SPANS_MAX * size_of::<Span>() < 190 << 10
);

/// Of a queue, one transfer of more bytes is under way at a time: what a queue that leaves has to wait for, and
/// the memory that is pinned for it, then have a bound. More than a driver sends that keeps to what is offered.
/// One that stalled is not under way: nobody waits for it, and nothing of it is pinned.
pub(crate) const HUGE_BYTES: u64 = 16 << 20;

/// Distance between the first generations of two queues at one place; odd, so that all are used.
const GENERATIONS: u32 = 0x0010_0001;

/// A request that the back-end keeps.
#[derive(Debug)]
pub(crate) struct Owed {
    pub(crate) ticket: Ticket,
    pub(crate) work: Work,
    pub(crate) progress: Progress,
    pub(crate) taken: Nanos,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    owed: Option<Owed>,
    inline: [Span; INLINE],
    segments: u16,
    block: Option<u16>,
}

#[derive(Debug)]
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    free: Vec<u16>,
    blocks: Box<[[Span; CHAIN_SPANS_MAX]]>,
    free_blocks: Vec<u16>,
    /// Where the transfer of more than [`HUGE_BYTES`] is that is under way.
    huge: Option<u16>,
    /// One that stalled is to go on when that has ended, before another begins.
    owes_huge: bool,
}

impl Slots {
    /// Room for a ring of `size`. `none` for a back-end that answers at once: it never needs any.
    pub(crate) fn new(size: u16, none: bool) -> Slots {
        let slots = if none { 0 } else { SLOTS_MAX.min(size.into()) };
        let blocks = BLOCKS_MAX.min(slots);
        Slots {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            free: (0..slots as u16).rev().collect(),
            blocks: vec![[Span::default(); CHAIN_SPANS_MAX]; blocks].into_boxed_slice(),
            free_blocks: (0..blocks as u16).rev().collect(),
            huge: None,
            owes_huge: false,
        }
    }

    /// Starts the generations anew for the queue that is attached at a place as number `epoch`, so
    /// that a completion meant for an earlier queue there finds nothing.
    pub(crate) fn begin(&mut self, epoch: u32) {
        for slot in &mut self.slots {
            slot.generation = epoch.wrapping_mul(GENERATIONS);
        }
    }

    /// Whether there is a slot at all.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether a request of `segments` segments can be kept.
    #[inline]
    pub(crate) fn fits(&self, segments: usize) -> bool {
        self.has_room() && (segments <= INLINE || !self.free_blocks.is_empty())
    }

    /// Whether this one may be begun now.
    #[inline]
    pub(crate) fn admits(&self, request: &Request<'_>) -> bool {
        let is_one_too_many =
            is_huge(request.op, request.len) && (self.huge.is_some() || self.owes_huge);
        self.fits(request.segments.len()) && !is_one_too_many
    }

    /// The name that the next [`Self::keep`] will use; `None` when it cannot.
    #[inline]
    pub(crate) fn next_tag(&self, queue: u16) -> Option<Tag> {
        let slot = *self.free.last()?;
        let generation = self.slots.get(usize::from(slot))?.generation;
        Some(Tag { queue, slot, generation })
    }

    /// Keeps a request under the tag that [`Self::next_tag`] gave. Gives it back when it does not
    /// fit, which [`Self::fits`] rules out.
    pub(crate) fn keep(&mut self, owed: Owed, segments: &[Span]) -> Result<(), Owed> {
        if !self.fits(segments.len()) {
            return Err(owed);
        }
        let Some(index) = self.free.pop() else { return Err(owed) };
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return Err(owed) };
        let place = if segments.len() <= INLINE {
            slot.inline.get_mut(..segments.len())
        } else {
            slot.block = self.free_blocks.pop();
            slot.block
                .and_then(|block| self.blocks.get_mut(usize::from(block)))
                .and_then(|block| block.get_mut(..segments.len()))
        };
        if let Some(place) = place {
            place.copy_from_slice(segments);
        }
        slot.segments = segments.len() as u16;
        if is_huge(owed.work.op, owed.work.len) {
            self.huge = Some(index);
        }
        slot.owed = Some(owed);
        Ok(())
    }

    /// The name of the request in `slot`.
    pub(crate) fn tag(&self, queue: u16, slot: u16) -> Option<Tag> {
        let generation = self.slots.get(usize::from(slot))?.generation;
        Some(Tag { queue, slot, generation })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The request named by `tag`, with what a back-end needs to go on with it.
    pub(crate) fn find(&mut self, tag: Tag) -> Option<(Request<'_>, &mut Owed)> {
        let slot = self.slots.get_mut(usize::from(tag.slot))?;
        if slot.generation != tag.generation {
            return None;
        }
        let all: &[Span] = match slot.block {
            Some(block) => self.blocks.get(usize::from(block))?,
            None => &slot.inline,
        };
        let segments = all.get(..usize::from(slot.segments))?;
        let owed = slot.owed.as_mut()?;
        let Work { op, offset, len, .. } = owed.work;
        Some((Request { op, offset, len, segments }, owed))
    }

    /// Ends the request named by `tag`; the name will not be used again.
    pub(crate) fn take(&mut self, tag: Tag) -> Option<Owed> {
        let slot = self.slots.get_mut(usize::from(tag.slot))?;
        if slot.generation != tag.generation {
            return None;
        }
        let owed = slot.owed.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free_blocks.extend(slot.block.take());
        self.free.push(tag.slot);
        if is_huge(owed.work.op, owed.work.len) {
            // One that stalled, or that is over.
            self.owes_huge &= self.huge == Some(tag.slot);
            self.rests(tag.slot);
        }
        Some(owed)
    }

    /// Whether the request of that name lives.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        let slot = self.slots.get(usize::from(tag.slot));
        slot.is_some_and(|slot| slot.generation == tag.generation && slot.owed.is_some())
    }

    /// The request in `slot` is not under way: it stalled, or has ended.
    #[cold]
    pub(crate) fn rests(&mut self, slot: u16) {
        self.huge.take_if(|huge| *huge == slot);
    }

    /// Whether the request in `slot`, which stalled, may go on now; it is under way then.
    pub(crate) fn may_go_on(&mut self, slot: u16) -> bool {
        let owed = self.slots.get(usize::from(slot)).and_then(|slot| slot.owed.as_ref());
        if !owed.is_some_and(|owed| is_huge(owed.work.op, owed.work.len)) {
            return true;
        }
        self.owes_huge = self.huge.is_some();
        if !self.owes_huge {
            self.huge = Some(slot);
        }
        !self.owes_huge
    }

    /// Every request left, for a queue that is dropped with its guest.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Owed> {
        self.slots.iter_mut().filter_map(|slot| slot.owed.take())
    }
}

#[inline]
fn is_huge(op: Op, len: u64) -> bool {
    len > HUGE_BYTES && matches!(op, Op::Read | Op::Write { .. })
}
