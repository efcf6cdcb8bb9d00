//! Guest address to mapping, and the bytes of a request's buffers.
//!
//! A map is made by control from the front-end's memory table, handed to the queues in an `Arc`,
//! and replaced whole. Not for rings: those are [`Area`]s, resolved once.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::area::Area;
use crate::dirty_log::DirtyLog;
use crate::health::Health;
use crate::mapping::{MapError, Mapping};

/// Regions of one guest, as many as vhost-user slots exist in QEMU and Cloud Hypervisor.
pub const REGIONS_MAX: usize = 509;

/// One region of a guest's memory.
#[derive(Clone, Debug)]
pub struct Region {
    /// Guest physical address of the first byte.
    pub gpa: u64,
    /// The front-end's own address of it (vhost-user gives ring addresses in these).
    pub user: u64,
    /// The bytes.
    pub mapping: Arc<Mapping>,
}

impl Region {
    fn len(&self) -> u64 {
        self.mapping.len() as u64
    }
}

/// A piece of guest memory within one region, found and checked by [`GuestMap::span`].
///
/// Plain data: it does not keep the memory mapped. Access goes through a map, which checks it
/// again, so that a span used with the wrong map does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    host: usize,
    len: u32,
    region: u32,
}

impl Span {
    /// Bytes.
    #[inline]
    pub fn len(self) -> u32 {
        self.len
    }

    /// Whether there is nothing in it.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first `n` bytes (all of them when there are fewer).
    #[inline]
    pub fn first(self, n: u32) -> Span {
        Span { len: self.len.min(n), ..self }
    }

    /// What follows the first `n` bytes (nothing when there are fewer).
    #[inline]
    pub fn after(self, n: u32) -> Span {
        let n = self.len.min(n);
        Span { host: self.host + n as usize, len: self.len - n, ..self }
    }

    /// Address in this process, for handing to the kernel. Valid while the map it came from lives.
    #[inline]
    pub fn host_address(self) -> usize {
        self.host
    }
}

/// What a look-up needs of a region, without a pointer to follow.
#[derive(Clone, Copy, Debug)]
struct Entry {
    gpa: u64,
    len: u64,
    base: NonNull<u8>,
}

/// All memory of one guest.
#[derive(Clone, Debug)]
pub struct GuestMap {
    /// By guest address, ascending, without overlap. Keeps the memory mapped.
    regions: Arc<[Region]>,
    /// The same regions, for the data path.
    entries: Arc<[Entry]>,
    /// The largest region, tried first, and its place: it holds nearly every buffer.
    main: Entry,
    main_index: u32,
    log: Option<Arc<DirtyLog>>,
    /// Of the connection that lent the memory; memory of our own is always healthy.
    health: Health,
}

// SAFETY: the raw pointers of `entries` stay valid as long as `regions` (the same table, never
// changed) keeps its mappings, which are `Send + Sync`; access through them is a copy.
unsafe impl Send for GuestMap {}
// SAFETY: as above.
unsafe impl Sync for GuestMap {}

impl GuestMap {
    /// A map of `regions`, in any order, all lent by one connection: the map's health is that of its
    /// mappings.
    ///
    /// # Errors
    /// [`MapError::TooMany`], [`MapError::Overlap`] (in guest or in front-end addresses).
    pub fn new(mut regions: Vec<Region>) -> Result<GuestMap, MapError> {
        if regions.len() > REGIONS_MAX {
            return Err(MapError::TooMany(regions.len()));
        }
        check_apart(&regions, |region| region.user)?;
        check_apart(&regions, |region| region.gpa)?;
        regions.sort_by_key(|region| region.gpa);
        let entry = |region: &Region| {
            let (gpa, len, base) = (region.gpa, region.len(), region.mapping.base());
            Entry { gpa, len, base }
        };
        let entries: Arc<[Entry]> = regions.iter().map(entry).collect();
        let health = regions.iter().find_map(|region| region.mapping.health().cloned());
        let health = health.unwrap_or_default();
        let none = Entry { gpa: 0, len: 0, base: NonNull::dangling() };
        let largest = entries.iter().enumerate().max_by_key(|(_, entry)| entry.len);
        let (main_index, main) = largest.map_or((0, none), |(at, entry)| (at as u32, *entry));
        Ok(GuestMap { regions: regions.into(), entries, main, main_index, log: None, health })
    }

    /// One region of our own at guest address 0, for tests, benches and fuzzing.
    ///
    /// # Errors
    /// As [`Mapping::anonymous`].
    pub fn anonymous(len: u64) -> Result<GuestMap, MapError> {
        GuestMap::new(vec![Region { gpa: 0, user: 0, mapping: Mapping::anonymous(len)? }])
    }

    /// The same memory with writes marked in `log`, or no longer marked.
    ///
    /// # Errors
    /// [`MapError::LogShort`] when the log has no bit for some byte of this memory.
    pub fn with_log(&self, log: Option<Arc<DirtyLog>>) -> Result<GuestMap, MapError> {
        match log {
            Some(log) if !log.covers(self.end()) => Err(MapError::LogShort { end: self.end() }),
            log => Ok(GuestMap { log, ..self.clone() }),
        }
    }

    /// Whether its memory, and what else that connection lent, can still be used.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The regions, by guest address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Whether writes are being marked.
    pub fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// One past the highest guest address; 0 without memory.
    pub fn end(&self) -> u64 {
        self.regions.last().map_or(0, |region| region.gpa + region.len())
    }

    /// The `len` bytes at guest address `gpa`, when one region holds them all.
    #[inline(always)]
    pub fn span(&self, gpa: u64, len: u32) -> Option<Span> {
        let offset = gpa.wrapping_sub(self.main.gpa);
        if offset < self.main.len && u64::from(len) <= self.main.len - offset {
            let host = self.main.base.as_ptr() as usize + offset as usize;
            return Some(Span { host, len, region: self.main_index });
        }
        self.span_elsewhere(gpa, len)
    }

    /// [`Self::span`] of a buffer that is used soon: asks the processor for its first two lines too, for reading or
    /// `for_write`, which is a hint without effect on any value.
    #[inline(always)]
    pub fn span_ahead(&self, gpa: u64, len: u32, for_write: bool) -> Option<Span> {
        const LINE: usize = 64;
        let span = self.span(gpa, len)?;
        let first = NonNull::new(std::ptr::without_provenance_mut::<u8>(span.host))?;
        let second = NonNull::new(first.as_ptr().wrapping_add(LINE))?;
        // Past the end of a mapping a hint does nothing.
        if for_write {
            prefetch_line_for_write(first);
            prefetch_line_for_write(second);
        } else {
            prefetch_line(first);
            prefetch_line(second);
        }
        Some(span)
    }

    #[inline(never)]
    fn span_elsewhere(&self, gpa: u64, len: u32) -> Option<Span> {
        let span = self.span_up_to(gpa, len)?;
        (span.len == len).then_some(span)
    }

    /// As many of the `len` bytes at `gpa` as the region there holds; `None` when there is none.
    /// A buffer over adjacent regions is taken in several steps.
    pub fn span_up_to(&self, gpa: u64, len: u32) -> Option<Span> {
        let after = self.entries.partition_point(|entry| entry.gpa <= gpa);
        self.span_in(after.checked_sub(1)?, gpa, len)
    }

    /// The area of `len` bytes at the front-end's address `user`, when one region holds it all.
    pub fn area_at_user(&self, user: u64, len: u64) -> Option<Area> {
        let region = self.regions.iter().find(|region| {
            user.checked_sub(region.user).is_some_and(|offset| offset < region.len())
        })?;
        let offset = user - region.user;
        if len > region.len() - offset {
            return None;
        }
        // SAFETY: `offset + len <= mapping.len()` by the two checks above.
        let base = unsafe { region.mapping.base().add(offset as usize) };
        let mapping = Arc::clone(&region.mapping);
        Some(Area::of_region(mapping, base, len as usize, region.gpa + offset, self.log.clone()))
    }

    /// Copies bytes `at..at + into.len()` of `span` out. False, and nothing copied, when they are
    /// not all there.
    #[inline]
    pub fn read(&self, span: Span, at: u32, into: &mut [u8]) -> bool {
        let part = span.after(at);
        let Some(from) = self.host(part) else {
            return false;
        };
        if into.len() > part.len as usize {
            return false;
        }
        // SAFETY: `host()` checked `part`, and `into` is no longer than it.
        unsafe { read_once(from, into) };
        true
    }

    /// Copies the start of `span` out, to `head` and then to `into`, each byte once: as two of [`Self::read`], with
    /// one look at the span. False, and nothing copied, when they are not all there.
    #[inline(always)]
    pub fn read_both<const HEAD: usize>(
        &self,
        span: Span,
        head: &mut [u8; HEAD],
        into: &mut [u8],
    ) -> bool {
        let Some(from) = self.host(span) else {
            return false;
        };
        if into.len() > (span.len as usize).saturating_sub(HEAD) || (span.len as usize) < HEAD {
            return false;
        }
        // SAFETY: `host()` checked `span`, and the two are no longer than it.
        unsafe {
            read_once(from, head);
            read_once(from.add(HEAD), into);
        }
        true
    }

    /// Copies `from` to byte `at` of `span` and marks it. False, and nothing copied, when it does
    /// not fit.
    #[inline]
    pub fn write(&self, span: Span, at: u32, from: &[u8]) -> bool {
        let part = span.after(at);
        let Some(to) = self.host(part) else {
            return false;
        };
        if from.len() > part.len as usize {
            return false;
        }
        // SAFETY: `host()` checked `part`, and `from` is no longer than it; ours and theirs are
        // different mappings. The guest may read or write the same bytes meanwhile: what it then
        // sees is its own affair, and nothing here reads them again.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        self.mark_written(part.first(from.len() as u32));
        true
    }

    /// Copies `head` and then `from` to the start of `span` and marks them: as two of [`Self::write`], with
    /// one look at the span. False, and nothing copied, when they do not fit.
    #[inline(always)]
    pub fn write_both<const HEAD: usize>(
        &self,
        span: Span,
        head: &[u8; HEAD],
        from: &[u8],
    ) -> bool {
        let Some(to) = self.host(span) else {
            return false;
        };
        if from.len() > (span.len as usize).saturating_sub(HEAD) || (span.len as usize) < HEAD {
            return false;
        }
        let to = to.as_ptr();
        // SAFETY: `host()` checked `span`, and the two are no longer than it; ours and theirs are
        // different mappings. What the guest does with the bytes meanwhile is as in `write`.
        unsafe {
            to.copy_from_nonoverlapping(head.as_ptr(), HEAD);
            to.add(HEAD).copy_from_nonoverlapping(from.as_ptr(), from.len());
        }
        self.mark_written(span.first((HEAD + from.len()) as u32));
        true
    }

    /// Copies all bytes of `from`, of `from_map`, to `to`, of this map, and marks `to`. False, and
    /// nothing copied, when their lengths differ or either is not in its map.
    ///
    /// The two may be the same memory, in part or whole: a guest may name its bytes twice, and two
    /// guests may be lent the same file. What then ends up there is theirs.
    #[inline]
    pub fn copy_from(&self, to: Span, from_map: &GuestMap, from: Span) -> bool {
        if to.len != from.len {
            return false;
        }
        let (Some(into), Some(out)) = (self.host(to), from_map.host(from)) else {
            return false;
        };
        // SAFETY: `host()` checked both, and they have the same length. Either guest may change its
        // bytes meanwhile: they are only moved, nothing here looks at them.
        unsafe { move_bytes(into, out, from.len as usize) };
        self.mark_written(to);
        true
    }

    /// Sets every byte of `span` to zero and marks it. False when it is not in this map.
    pub fn zero(&self, span: Span) -> bool {
        let Some(to) = self.host(span) else {
            return false;
        };
        // SAFETY: `host()` checked the span.
        unsafe { to.as_ptr().write_bytes(0, span.len as usize) };
        self.mark_written(span);
        true
    }

    /// Marks `span` in the dirty log: for bytes that the kernel wrote on our behalf.
    #[inline]
    pub fn mark_written(&self, span: Span) {
        if let Some(log) = &self.log {
            self.mark_in(log, span);
        }
    }

    /// Asks the processor for the two lines from guest address `gpa` on, for reading or `for_write`
    /// (then so that no other core keeps them): a hint without effect on any value. Only in the
    /// largest region, which holds nearly every buffer.
    #[inline(always)]
    pub fn prefetch(&self, gpa: u64, for_write: bool) {
        const LINE: u64 = 64;
        let offset = gpa.wrapping_sub(self.main.gpa);
        if offset < self.main.len.saturating_sub(LINE) {
            // SAFETY: both lie within the mapping that `base` starts: `offset + LINE < len`.
            let (first, second) = unsafe {
                let first = self.main.base.add(offset as usize);
                (first, first.add(LINE as usize))
            };
            if for_write {
                prefetch_line_for_write(first);
                prefetch_line_for_write(second);
            } else {
                prefetch_line(first);
                prefetch_line(second);
            }
        }
    }

    /// The host address of `span` after checking that it lies within its region of this map; for
    /// handing to the kernel. Valid while this map lives.
    #[inline]
    pub fn host(&self, span: Span) -> Option<NonNull<u8>> {
        let entry = match span.region == self.main_index {
            true => &self.main,
            false => self.entries.get(span.region as usize)?,
        };
        let offset = span.host.wrapping_sub(entry.base.as_ptr() as usize) as u64;
        let fits = offset <= entry.len && u64::from(span.len) <= entry.len - offset;
        // SAFETY: `offset <= len` of the mapping that `base` starts.
        fits.then(|| unsafe { entry.base.add(offset as usize) })
    }

    fn span_in(&self, index: usize, gpa: u64, len: u32) -> Option<Span> {
        let entry = self.entries.get(index)?;
        let offset = gpa.checked_sub(entry.gpa)?;
        let left = entry.len.checked_sub(offset).filter(|left| *left > 0)?;
        let len = u64::from(len).min(left) as u32;
        let host = entry.base.as_ptr() as usize + offset as usize;
        Some(Span { host, len, region: index as u32 })
    }

    #[cold]
    fn mark_in(&self, log: &DirtyLog, span: Span) {
        if let (Some(region), Some(host)) =
            (self.regions.get(span.region as usize), self.host(span))
        {
            let offset = host.as_ptr() as usize - region.mapping.base().as_ptr() as usize;
            log.mark(region.gpa + offset as u64, u64::from(span.len));
        }
    }
}

/// Refuses regions that overlap or wrap in the address space that `start` names.
fn check_apart(regions: &[Region], start: impl Fn(&Region) -> u64) -> Result<(), MapError> {
    let mut order: Vec<usize> = (0..regions.len()).collect();
    order.sort_by_key(|i| start(&regions[*i]));
    let mut end_before = 0;
    for (place, index) in order.into_iter().enumerate() {
        let first = start(&regions[index]);
        let end = first.checked_add(regions[index].len()).ok_or(MapError::Overlap { index })?;
        if place > 0 && first < end_before {
            return Err(MapError::Overlap { index });
        }
        end_before = end;
    }
    Ok(())
}

/// Copies each byte out, once for all: whatever is made of the copy is made of these very bytes, however
/// the guest changes its own meanwhile (reliability P23).
///
/// # Safety
/// `from` must have `into.len()` readable bytes.
#[inline]
pub(crate) unsafe fn read_once(from: NonNull<u8>, into: &mut [u8]) {
    // SAFETY: the caller's promise; ours and theirs are different mappings.
    unsafe { into.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr(), into.len()) };
    forget_memory(into);
}

/// After this the compiler believes that all memory may have been changed and `copy` been looked at: a
/// use of the copy cannot become another read of what it was copied from. Not an instruction.
#[inline(always)]
fn forget_memory(copy: &mut [u8]) {
    // SAFETY: no instruction; what it might do, as far as the compiler knows, is allowed to any
    // function that has the slice.
    unsafe {
        core::arch::asm!("/* {} */", in(reg) copy.as_mut_ptr(), options(nostack, preserves_flags));
    }
}

/// From so many bytes on the C library copies with `rep movsb`, which takes a while to get going: a page
/// takes a fifth longer than with plain loads and stores, and twice as much is as fast either way.
const LOOP_MIN: usize = 1024;
const LOOP_MAX: usize = 32 << 10;

/// Moves `len` bytes, as `memmove` does: the two may overlap.
///
/// # Safety
/// `from` must have `len` readable bytes and `to` as many writable ones.
#[inline]
unsafe fn move_bytes(to: NonNull<u8>, from: NonNull<u8>, len: usize) {
    let apart = to.as_ptr().addr().abs_diff(from.as_ptr().addr());
    if (LOOP_MIN..=LOOP_MAX).contains(&len) && apart >= len {
        // SAFETY: the caller's promise, and they do not overlap.
        unsafe { copy_lines(to, from, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { to.as_ptr().copy_from(from.as_ptr(), len) };
    }
}

/// Copies `len` bytes by two cache lines at a time, with instructions that every x86-64 has.
///
/// # Safety
/// As [`move_bytes`], and the two do not overlap.
#[inline(never)]
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(to: NonNull<u8>, from: NonNull<u8>, len: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};
    const STEP: usize = 128;
    let mut at = 0;
    while at + STEP <= len {
        // SAFETY: `at + STEP <= len`, and neither load nor store asks for alignment.
        unsafe {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let loaded: [__m128i; STEP / 16] =
                std::array::from_fn(|n| _mm_loadu_si128(from.add(n).as_ptr()));
            for (n, word) in loaded.into_iter().enumerate() {
                _mm_storeu_si128(to.add(n).as_ptr(), word);
            }
        }
        at += STEP;
    }
    // SAFETY: `at <= len`: the rest of both.
    unsafe { to.add(at).as_ptr().copy_from_nonoverlapping(from.add(at).as_ptr(), len - at) };
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_lines(to: NonNull<u8>, from: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), len) };
}

/// Asks the processor for all lines of a value, for reading: a hint without effect on any.
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    const LINE: usize = 64;
    let first = NonNull::from(value).cast::<u8>();
    for at in (0..size_of::<T>()).step_by(LINE) {
        // SAFETY: `at` is within the value.
        prefetch_line(unsafe { first.add(at) });
    }
}

#[inline]
pub(crate) fn prefetch_line(place: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching any address is allowed and changes no architectural state.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
            place.as_ptr().cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[inline]
fn prefetch_line_for_write(place: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `prefetchw` changes no architectural state, whatever the address; a processor without
    // it does nothing. As an instruction, since the intrinsic becomes a prefetch for reading unless
    // the whole build is for processors that surely have it.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) place.as_ptr().expose_provenance(),
            options(nostack, preserves_flags, nomem));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
mod tests;
