//! From descriptors to buffers: one descriptor, one indirect table, one buffer at a time.

use guest_memory::{Entry, GuestMap, Pairs};

use crate::chain::Chain;
use crate::layout::{DESCRIPTOR_SIZE, INDIRECT, NEXT, WRITE};
use crate::violation::Violation;

/// Descriptors of one indirect table that are walked at most, when the ring is smaller: drivers
/// with indirect descriptors may exceed the ring's size (Linux does, up to SEG_MAX + 2).
const INDIRECT_MAX: u32 = 1024;

/// A copy of one descriptor: `next` is the buffer id in a packed ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) gpa: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

impl Descriptor {
    /// Reads an entry of a split table.
    #[inline(always)]
    pub(crate) fn split(entry: Entry<'_, DESCRIPTOR_SIZE, 16>) -> Descriptor {
        Descriptor::of_split_words(entry.load_u64::<0>(), entry.load_u64::<8>())
    }

    #[inline]
    fn of_split_words(gpa: u64, rest: u64) -> Descriptor {
        let (flags, next) = ((rest >> 32) as u16, (rest >> 48) as u16);
        Descriptor { gpa, len: rest as u32, flags, next }
    }
}

/// Adds the buffer of a plain descriptor, in as many spans as regions it crosses.
#[inline(always)]
pub(crate) fn add_buffer(
    chain: &mut Chain,
    map: &GuestMap,
    gpa: u64,
    len: u32,
    writable: bool,
) -> Result<(), Violation> {
    if let Some(span) = map.span(gpa, len) {
        // An empty buffer is harmless and says nothing: it is not kept (A16).
        return if len == 0 { Ok(()) } else { chain.push(span, writable) };
    }
    if len == 0 {
        return Ok(());
    }
    add_crossing_buffer(chain, map, gpa, len, writable)
}

/// A buffer over adjacent regions. Each step takes at least a byte and ends at a region's end, so
/// there are at most as many as regions.
///
/// A front-end may have 509 regions of a byte each, so that one descriptor costs as much as 509. A
/// chain that has more buffers than are kept is therefore not cut into pieces any further: without
/// that bound, one chain of a ring of 32768 took more than a second (reliability A31).
#[cold]
fn add_crossing_buffer(
    chain: &mut Chain,
    map: &GuestMap,
    gpa: u64,
    len: u32,
    writable: bool,
) -> Result<(), Violation> {
    let bad = Violation::BufferAddress { gpa, len };
    let (mut at, mut left) = (gpa, len);
    while left > 0 {
        if chain.overflowed() {
            return Err(Violation::BufferPieces { gpa, len });
        }
        let span = map.span_up_to(at, left).ok_or(bad)?;
        chain.push(span, writable)?;
        left -= span.len();
        at = at.checked_add(u64::from(span.len())).ok_or(bad)?;
    }
    Ok(())
}

/// The indirect table of `descriptor`, checked to be whole entries in one region.
fn table(map: &GuestMap, descriptor: Descriptor) -> Result<Pairs<'_>, Violation> {
    let Descriptor { gpa, len, .. } = descriptor;
    let bad = Violation::IndirectTable { gpa, len };
    if len == 0 || !(len as usize).is_multiple_of(DESCRIPTOR_SIZE) {
        return Err(bad);
    }
    map.span(gpa, len).and_then(|span| map.pairs(span)).ok_or(bad)
}

#[inline(always)]
fn entry(table: Pairs<'_>, index: u32) -> Option<Descriptor> {
    // An indirect table's entry has the split form: len, flags, next.
    table.get(index).map(|(gpa, rest)| Descriptor::of_split_words(gpa, rest))
}

/// Walks an indirect table by its `next` links (2.7.5.3). Bounded by the table's entries and by
/// the larger of the ring's size and [`INDIRECT_MAX`]. `before`: descriptors walked to get here.
pub(crate) fn indirect_split(
    chain: &mut Chain,
    map: &GuestMap,
    descriptor: Descriptor,
    ring_size: u16,
    before: u32,
) -> Result<(), Violation> {
    let table = table(map, descriptor)?;
    let entries = table.count();
    let limit = entries.min(INDIRECT_MAX.max(u32::from(ring_size)));
    let mut index = 0;
    for already in 0..limit {
        let Some(inner) = entry(table, index) else {
            return Err(Violation::DescriptorIndex { index: index as u16, size: entries });
        };
        if inner.flags & INDIRECT != 0 {
            return Err(Violation::IndirectPlace);
        }
        add_buffer(chain, map, inner.gpa, inner.len, inner.flags & WRITE != 0)?;
        if inner.flags & NEXT == 0 {
            return chain.end(before + already + 1);
        }
        // Nearly always the next one; so the processor need not wait for the link to go on.
        index += 1;
        if index != u32::from(inner.next) {
            index = elsewhere(inner.next);
        }
    }
    Err(Violation::ChainLoop { limit })
}

/// A link that goes on somewhere else than behind its entry.
#[cold]
fn elsewhere(next: u16) -> u32 {
    u32::from(next)
}

/// Takes every entry of an indirect table in order (2.8.7). Bounded as [`indirect_split`].
pub(crate) fn indirect_packed(
    chain: &mut Chain,
    map: &GuestMap,
    descriptor: Descriptor,
    ring_size: u16,
) -> Result<(), Violation> {
    let table = table(map, descriptor)?;
    let entries = table.count();
    let limit = INDIRECT_MAX.max(u32::from(ring_size));
    if entries > limit {
        return Err(Violation::ChainLoop { limit });
    }
    for index in 0..entries {
        let bad = Violation::DescriptorIndex { index: index as u16, size: entries };
        let inner = entry(table, index).ok_or(bad)?;
        // The packed form has the id before the flags; only WRITE counts here.
        if inner.next & INDIRECT != 0 {
            return Err(Violation::IndirectPlace);
        }
        add_buffer(chain, map, inner.gpa, inner.len, inner.next & WRITE != 0)?;
    }
    chain.end(entries + 1)
}
