//! The buffers of one chain, found and checked, as [`crate::Queue::peek`] leaves them.

use guest_memory::{GuestMap, Span};

use crate::violation::Violation;

/// Spans kept of one chain: 126 data segments (what we offer as SEG_MAX), a header in up to 16
/// pieces, a status, and room for buffers that cross regions. What is beyond is counted and walked
/// but not kept.
pub const CHAIN_SPANS_MAX: usize = 256;

/// Scratch for one chain; one per sidecore, used again for every request.
#[derive(Debug)]
pub struct Chain {
    spans: Box<[Span; CHAIN_SPANS_MAX]>,
    /// How many spans are kept, from the start.
    kept: usize,
    /// Where the readable ones begin: those before are dropped.
    first: usize,
    /// Where they end, and the writable ones begin.
    readable: usize,
    readable_bytes: u64,
    writable_bytes: u64,
    /// The last writable buffer, when it was not kept.
    beyond: Span,
    overflowed: bool,
    walked: u32,
    pub(crate) id: u16,
    pub(crate) descriptors: u16,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain {
            spans: Box::new([Span::default(); CHAIN_SPANS_MAX]),
            kept: 0,
            first: 0,
            readable: 0,
            readable_bytes: 0,
            writable_bytes: 0,
            beyond: Span::default(),
            overflowed: false,
            walked: 0,
            id: 0,
            descriptors: 0,
        }
    }
}

impl Chain {
    /// What the device may read, in order.
    #[inline]
    pub fn readable(&self) -> &[Span] {
        self.spans.get(self.first..self.readable).unwrap_or_default()
    }

    /// What the device may write, in order.
    #[inline]
    pub fn writable(&self) -> &[Span] {
        self.spans.get(self.readable..self.kept).unwrap_or_default()
    }

    /// Sum of the readable buffers, bytes; also of those that were not kept.
    #[inline]
    pub fn readable_bytes(&self) -> u64 {
        self.readable_bytes
    }

    /// Sum of the writable buffers, bytes; also of those that were not kept.
    #[inline]
    pub fn writable_bytes(&self) -> u64 {
        self.writable_bytes
    }

    /// The last writable buffer of the chain, kept or not; empty when there is none.
    #[inline]
    pub fn last_writable(&self) -> Span {
        match self.writable().last() {
            Some(last) if self.beyond.is_empty() => *last,
            _ => self.beyond,
        }
    }

    /// Descriptors read to find the buffers: what the walk cost.
    #[inline]
    pub fn walked(&self) -> u32 {
        self.walked
    }

    /// Whether the chain has more than [`CHAIN_SPANS_MAX`] buffers, so that not all were kept.
    #[inline]
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Copies the first readable bytes out, each once, as many as there are and fit, and drops them
    /// in place. `map` is the one that the chain was found in. Gives how many: fewer than `into` has
    /// room for only when the chain (or what was kept of it) ends before.
    #[inline]
    pub fn take_readable(&mut self, map: &GuestMap, into: &mut [u8]) -> usize {
        let mut taken = 0;
        let Some(spans) = self.spans.get_mut(self.first..self.readable) else { return 0 };
        for span in spans {
            let Some(left) = into.get_mut(taken..) else { break };
            let here = left.len().min(span.len() as usize);
            let Some(left) = left.get_mut(..here) else { break };
            if !map.read(*span, 0, left) {
                break;
            }
            taken += here;
            *span = span.after(here as u32);
            if !span.is_empty() {
                break;
            }
            self.first += 1;
        }
        taken
    }

    /// Drops the first `bytes` of the readable buffers, in place (a header that was read).
    pub fn drop_readable(&mut self, mut bytes: u32) {
        let Some(spans) = self.spans.get_mut(self.first..self.readable) else { return };
        for span in spans {
            let here = span.len().min(bytes);
            *span = span.after(here);
            bytes -= here;
            if !span.is_empty() {
                break;
            }
            self.first += 1;
        }
    }

    /// Drops the last byte of the writable buffers, in place (a status byte that has its span).
    pub fn drop_last_writable_byte(&mut self) {
        let Some(last) = self.kept.checked_sub(1).filter(|last| *last >= self.readable) else {
            return;
        };
        if let Some(span) = self.spans.get_mut(last) {
            *span = span.first(span.len().saturating_sub(1));
            if span.is_empty() {
                self.kept = last;
            }
        }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.kept = 0;
        self.first = 0;
        self.readable = 0;
        self.readable_bytes = 0;
        self.writable_bytes = 0;
        self.beyond = Span::default();
        self.overflowed = false;
        self.walked = 0;
    }

    /// The whole chain is the one buffer `span`, which is not empty, behind descriptor `id`.
    #[inline(always)]
    pub(crate) fn set_single(&mut self, span: Span, writable: bool, id: u16) {
        self.clear();
        let len = u64::from(span.len());
        (self.readable_bytes, self.writable_bytes) = if writable { (0, len) } else { (len, 0) };
        let [place, ..] = &mut *self.spans;
        *place = span;
        self.kept = 1;
        self.readable = usize::from(!writable);
        self.walked = 1;
        (self.id, self.descriptors) = (id, 1);
    }

    /// Adds a buffer that was found in guest memory. A sum of lengths cannot wrap: a walk has at
    /// most 32768 descriptors of less than 4 GiB.
    #[inline(always)]
    pub(crate) fn push(&mut self, span: Span, writable: bool) -> Result<(), Violation> {
        if writable {
            self.writable_bytes += u64::from(span.len());
        } else if self.writable_bytes > 0 {
            return Err(Violation::BufferOrder);
        } else {
            self.readable_bytes += u64::from(span.len());
        }
        match self.spans.get_mut(self.kept) {
            Some(place) => {
                *place = span;
                self.kept += 1;
                self.readable += usize::from(!writable);
            }
            None => self.keep_last(span, writable),
        }
        Ok(())
    }

    /// The table is full: of what follows only the last writable buffer matters, for the status.
    #[cold]
    fn keep_last(&mut self, span: Span, writable: bool) {
        self.overflowed = true;
        if writable {
            self.beyond = span;
        }
    }

    /// The walk ended after `walked` descriptors.
    #[inline(always)]
    pub(crate) fn end(&mut self, walked: u32) -> Result<(), Violation> {
        self.walked = walked;
        if self.readable_bytes + self.writable_bytes > u64::from(u32::MAX) {
            return Err(Violation::ChainBytes);
        }
        Ok(())
    }
}
