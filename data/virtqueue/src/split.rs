//! The split ring's rules (VIRTIO 1.2, 2.7).
//!
//! Available ring: flags at 0, index at 2, heads from 4, `used_event` behind them. Used ring: flags
//! at 0, index at 2, elements of 8 bytes from 4, `avail_event` behind them.

use std::sync::atomic::{Ordering, fence};

use guest_memory::{Area, Entries, GuestMap};

use crate::ahead::{Ahead, Single};
use crate::chain::Chain;
use crate::event_index::passed;
use crate::layout::{DESCRIPTOR_SIZE, INDIRECT, NEXT, WRITE};
use crate::queue::{FOOTPRINT_SIZE_MAX, Footprint};
use crate::shared::{Shared, SharedEntries};
use crate::violation::{SetupError, Violation};
use crate::walk::{Descriptor, add_buffer, indirect_split};
use crate::word::Word;

/// Chains between asking the processor for a descriptor and walking it.
const DESCRIPTOR_AHEAD: u16 = 12;
/// Chains between asking for a first buffer (the request's header) and reading it.
const BUFFER_AHEAD: u16 = 8;

/// Used elements that are written together. One by one, the line they are in goes to and fro between
/// the two cores, since the guest reads it while we go on: small frames are a tenth to a half faster so.
const KEPT_MAX: usize = 32;

const FLAGS: usize = 0;
const INDEX: usize = 2;
const RING: usize = 4;
/// Available flags: do not call. Used flags: do not kick.
const NO_NOTIFY: u16 = 1;

#[derive(Debug)]
pub(crate) struct Split {
    table: Entries<DESCRIPTOR_SIZE, 16>,
    avail: Area,
    heads: Entries<2, 2>,
    used: Shared,
    elements: SharedEntries<8, 4>,
    size: Word,
    event_index: bool,
    indirect: bool,
    /// Hints are for writing.
    writes: bool,
    /// Index of the next chain to take.
    next: Word,
    /// The available index as last read.
    seen: Word,
    /// Index of the next used element to write.
    used_next: Word,
    /// Used elements that are not written yet: those before `used_next`.
    kept: Box<[(u16, u32); KEPT_MAX]>,
    kept_len: usize,
    /// The used index as the guest sees it.
    used_shown: Word,
    /// The used index when the guest was last called, or found not to want it.
    used_called: Word,
}

impl Split {
    /// A ring whose parts and size were checked. The used index goes on from what the ring says.
    ///
    /// # Errors
    /// A part ends before its entries, or is not aligned: not if it was checked.
    pub(crate) fn new(
        parts: [Area; 3],
        size: u16,
        rules: (bool, bool),
        next: u16,
    ) -> Result<Split, SetupError> {
        let [table, avail, used] = parts;
        let used = Shared::from(used);
        let unaligned = |part, align| SetupError::Unaligned { part, align };
        let table = Entries::new(&table, 0, size).ok_or(unaligned("descriptor", 16))?;
        let heads = Entries::new(&avail, RING, size).ok_or(unaligned("driver", 2))?;
        let elements = SharedEntries::new(&used, RING, size).ok_or(unaligned("device", 4))?;
        let (event_index, indirect) = rules;
        let used_next = used.load_u16(INDEX);
        Ok(Split {
            table,
            avail,
            heads,
            used,
            elements,
            size: Word::new(size),
            event_index,
            indirect,
            writes: false,
            next: Word::new(next),
            seen: Word::new(next),
            used_next: Word::new(used_next),
            kept: Box::new([(0, 0); KEPT_MAX]),
            kept_len: 0,
            used_shown: Word::new(used_next),
            used_called: Word::new(used_next),
        })
    }

    #[inline]
    pub(crate) fn next(&self) -> u16 {
        self.next.get()
    }

    /// Goes on from `next`; what is there is asked for, and checked, anew.
    pub(crate) fn set_next(&mut self, next: u16) {
        self.next.set(next);
        self.seen.set(next);
    }

    pub(crate) fn used_shown(&self) -> u16 {
        self.used_shown.get()
    }

    #[inline]
    pub(crate) fn used_next(&self) -> u16 {
        self.used_next.get()
    }

    pub(crate) fn expect_writes(&mut self, on: bool) {
        self.writes = on;
    }

    /// Whether a chain is there; reads the guest's index only when none is known.
    #[inline]
    pub(crate) fn is_ready(&mut self, map: &GuestMap) -> Result<bool, Violation> {
        if self.next.get() != self.seen.get() {
            return Ok(true);
        }
        let new = self.look()?;
        for ahead in 0..DESCRIPTOR_AHEAD.min(new) {
            self.prefetch_descriptor(ahead);
        }
        // A receive ring that runs dry again and again would never be looked ahead in. The first is next
        // anyway.
        if self.writes {
            for ahead in 1..BUFFER_AHEAD.min(new) {
                self.prefetch_buffer(ahead, map);
            }
        }
        Ok(new > 0)
    }

    /// Reads the guest's index, when no chain is known: how many there are.
    fn look(&mut self) -> Result<u16, Violation> {
        let (from, to) = (self.next.get(), self.avail.load_acquire_u16(INDEX));
        let new = to.wrapping_sub(from);
        if new > self.size.get() {
            return Err(Violation::AvailableIndex { from, to, size: self.size.get() });
        }
        self.seen.set(to);
        Ok(new)
    }

    /// Walks the next chain. Only after `is_ready` said yes.
    #[inline]
    pub(crate) fn peek(&self, map: &GuestMap, chain: &mut Chain) -> Result<(), Violation> {
        self.look_ahead(map);
        let head = self.head(self.next.get());
        let first = self.descriptor(head)?;
        // Most frames are one buffer.
        if first.flags & (INDIRECT | NEXT) == 0
            && first.len > 0
            && let Some(span) = map.span(first.gpa, first.len)
        {
            chain.set_single(span, first.flags & WRITE != 0, head);
            return Ok(());
        }
        self.walk_from(head, first, map, chain)
    }

    /// Finds the next chains that are single buffers. What is wrong is found again, and said, by a full look.
    pub(crate) fn find_ahead(&mut self, map: &GuestMap, ahead: &mut Ahead) {
        if self.next.get() == self.seen.get() && self.look().unwrap_or(0) == 0 {
            return;
        }
        let (next, known) = (self.next.get(), self.seen.get().wrapping_sub(self.next.get()));
        let Split { table, heads, size, .. } = self;
        ahead.fill(|number| {
            if number >= known {
                return None;
            }
            let id = heads.get(next.wrapping_add(number) & (size.get() - 1))?.load_u16::<0>();
            let Descriptor { gpa, len, flags, .. } = Descriptor::split(table.get(id)?);
            if flags & (INDIRECT | NEXT) != 0 || len == 0 {
                return None;
            }
            let is_writable = flags & WRITE != 0;
            let span = map.span_ahead(gpa, len, is_writable)?;
            Some(Single { span, id, is_writable })
        });
    }

    /// Walks the chain that starts at `head`. Bounded by the ring's size.
    pub(crate) fn walk(
        &self,
        head: u16,
        map: &GuestMap,
        chain: &mut Chain,
    ) -> Result<(), Violation> {
        self.walk_from(head, self.descriptor(head)?, map, chain)
    }

    #[inline]
    fn descriptor(&self, index: u16) -> Result<Descriptor, Violation> {
        let entry = self.table.get(index);
        let none = Violation::DescriptorIndex { index, size: self.size.get().into() };
        entry.map(Descriptor::split).ok_or(none)
    }

    fn walk_from(
        &self,
        head: u16,
        first: Descriptor,
        map: &GuestMap,
        chain: &mut Chain,
    ) -> Result<(), Violation> {
        chain.clear();
        chain.id = head;
        chain.descriptors = 1;
        let mut descriptor = first;
        for before in 0..u32::from(self.size.get()) {
            if descriptor.flags & INDIRECT != 0 {
                if !self.indirect || descriptor.flags & NEXT != 0 {
                    return Err(Violation::IndirectPlace);
                }
                return indirect_split(chain, map, descriptor, self.size.get(), before + 1);
            }
            let writable = descriptor.flags & WRITE != 0;
            add_buffer(chain, map, descriptor.gpa, descriptor.len, writable)?;
            if descriptor.flags & NEXT == 0 {
                return chain.end(before + 1);
            }
            if before + 1 < u32::from(self.size.get()) {
                descriptor = self.descriptor(descriptor.next)?;
            }
        }
        Err(Violation::ChainLoop { limit: self.size.get().into() })
    }

    #[inline]
    pub(crate) fn advance(&mut self) {
        self.next.add(1);
    }

    /// Completes a chain; its element is written when it is shown, or before.
    #[inline]
    pub(crate) fn complete(&mut self, id: u16, written: u32) {
        if let Some(place) = self.kept.get_mut(self.kept_len) {
            *place = (id, written);
            self.kept_len += 1;
        }
        self.used_next.add(1);
        if self.kept_len == KEPT_MAX {
            self.write_kept();
        }
    }

    /// As [`Self::complete`], with the element written now: for queues whose record of what is in
    /// flight says, from here on, that it is.
    #[inline]
    pub(crate) fn complete_now(&mut self, id: u16, written: u32) {
        self.complete(id, written);
        self.write_kept();
    }

    #[inline]
    fn write_kept(&mut self) {
        let kept = self.kept.get(..self.kept_len).unwrap_or_default();
        let first = self.used_next.get().wrapping_sub(kept.len() as u16);
        for (number, (id, written)) in (0..).zip(kept) {
            let at = first.wrapping_add(number) & (self.size.get() - 1);
            if let Some(element) = self.elements.get(at) {
                element.store_u32::<0>((*id).into());
                element.store_u32::<4>(*written);
            }
        }
        self.kept_len = 0;
    }

    /// Shows all completions.
    #[inline]
    pub(crate) fn show(&mut self) {
        if self.used_shown.get() != self.used_next.get() {
            self.write_kept();
            self.used.store_release_u16(INDEX, self.used_next.get());
            self.used_shown.set(self.used_next.get());
        }
    }

    /// Whether the guest asked to be called for one of the completions shown since the last time.
    #[inline]
    pub(crate) fn wants_call(&mut self) -> bool {
        let (old, new) = (self.used_called.get(), self.used_shown.get());
        if old == new {
            return false;
        }
        self.used_called.set(new);
        // The guest writes its wish, then reads the index; we the other way round (2.7.7.2).
        fence(Ordering::SeqCst);
        if self.event_index {
            passed(self.avail.load_u16(self.used_event()), new, old)
        } else {
            self.avail.load_u16(FLAGS) & NO_NOTIFY == 0
        }
    }

    /// See [`crate::Queue::footprint`].
    #[inline]
    pub(crate) fn footprint(&self) -> Option<Footprint> {
        let tells = self.event_index && self.size.get() <= FOOTPRINT_SIZE_MAX;
        let event = || self.avail.load_u16(self.used_event());
        tells.then(|| Footprint { end: self.used_next.get(), event: event() })
    }

    /// See [`crate::Queue::is_consumed`].
    #[inline]
    pub(crate) fn is_consumed(&self, footprint: Footprint) -> bool {
        let event = self.avail.load_u16(self.used_event());
        // Linux writes 0 there to say that it wants no call.
        if event == 0 || event == footprint.event {
            return false;
        }
        let (shown, used) = (self.used_shown.get(), self.used_next.get());
        let is_shown = used.wrapping_sub(footprint.end) >= used.wrapping_sub(shown);
        let (behind, left) = (shown.wrapping_sub(footprint.end), shown.wrapping_sub(event));
        is_shown && left <= self.size.get() && left <= behind
    }

    /// Asks for a kick at the next chain, then looks again. True when one is already there.
    pub(crate) fn arm(&mut self) -> Result<bool, Violation> {
        if self.event_index {
            self.used.store_u16(self.avail_event(), self.next.get());
        } else {
            self.used.store_u16(FLAGS, 0);
        }
        fence(Ordering::SeqCst);
        Ok(self.next.get() != self.seen.get() || self.look()? > 0)
    }

    /// Asks for a kick at the first chain behind those that are there now, then looks again: how many
    /// there are.
    pub(crate) fn arm_behind(&mut self) -> Result<u16, Violation> {
        let known = self.look()?;
        if self.event_index {
            self.used.store_u16(self.avail_event(), self.next.get().wrapping_add(known));
        } else {
            self.used.store_u16(FLAGS, 0);
        }
        fence(Ordering::SeqCst);
        self.look()
    }

    /// Asks for no kicks. With event indices nothing needs doing: the place asked for is passed.
    pub(crate) fn disarm(&mut self) {
        if !self.event_index {
            self.used.store_u16(FLAGS, NO_NOTIFY);
        }
    }

    #[inline]
    fn head(&self, index: u16) -> u16 {
        self.heads.get(index & (self.size.get() - 1)).map_or(0, |head| head.load_u16::<0>())
    }

    fn used_event(&self) -> usize {
        RING + 2 * usize::from(self.size.get())
    }

    fn avail_event(&self) -> usize {
        RING + 8 * usize::from(self.size.get())
    }

    /// Hints only: what is read here is read again, and checked, when its turn comes.
    #[inline]
    fn look_ahead(&self, map: &GuestMap) {
        let known = self.seen.get().wrapping_sub(self.next.get());
        if known > DESCRIPTOR_AHEAD {
            self.prefetch_descriptor(DESCRIPTOR_AHEAD);
        }
        if known > BUFFER_AHEAD {
            self.prefetch_buffer(BUFFER_AHEAD, map);
        }
    }

    /// See [`crate::Queue::prefetch`].
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.avail.prefetch(INDEX);
        self.avail.prefetch(RING + 2 * usize::from(self.next.get() & (self.size.get() - 1)));
    }

    #[inline]
    fn prefetch_buffer(&self, ahead: u16, map: &GuestMap) {
        let head = self.head(self.next.get().wrapping_add(ahead));
        if let Some(descriptor) = self.table.get(head) {
            map.prefetch(descriptor.load_u64::<0>(), self.writes);
        }
    }

    #[inline]
    fn prefetch_descriptor(&self, ahead: u16) {
        let head = self.head(self.next.get().wrapping_add(ahead));
        if let Some(descriptor) = self.table.get(head) {
            descriptor.prefetch();
        }
    }
}
