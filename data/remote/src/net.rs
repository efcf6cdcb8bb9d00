//! Frames of NICs: those on their way out, from which nothing is sent twice, and those that come in pieces.
//!
//! A frame that is longer than what is left of a datagram goes on in the next one. Whatever of it is lost, all of it
//! is. Called by `client` and `iohost`; an [`Assembly`] is whoever's who hears the pieces.

use std::collections::VecDeque;

use crate::session::Out;
use crate::wire::{NET_FRAME_BYTES_MAX, Net};

/// Frames that wait at most, of one session, and their bytes: four frames of 64 KiB that a guest had cut up.
const FRAMES: usize = 256;
const BYTES: usize = 256 << 10;
/// No piece is shorter, but the last one: else the rest of a datagram stays empty.
const PIECE_MIN: usize = 256;
/// Pieces of one frame: the longest one in the shortest datagrams are 17, after one that begins late.
const PIECES_MAX: usize = 20;
/// Frames of which some pieces have come: a wire puts few things out of order.
const PLACES: usize = 8;

/// A frame that waits, or has begun to be sent.
#[derive(Clone, Copy, Debug)]
struct QueuedFrame {
    handle: u32,
    number: u32,
    len: usize,
}

/// The queue. It has no memory before the first frame: most sessions have disks alone.
#[derive(Debug, Default)]
pub(crate) struct NetQueue {
    /// A ring.
    bytes: Vec<u8>,
    head: usize,
    used: usize,
    frames: VecDeque<QueuedFrame>,
    /// Of the first one.
    sent: usize,
    next_number: u32,
    /// Frames that found it full, or were too long.
    pub(crate) dropped: u64,
}

impl NetQueue {
    /// Whether a frame would surely be kept.
    pub(crate) fn has_room(&self) -> bool {
        self.frames.len() < FRAMES && self.used + NET_FRAME_BYTES_MAX <= BYTES
    }

    /// Keeps a copy of `data`; false, and counted, when it cannot.
    pub(crate) fn push(&mut self, handle: u32, data: &[u8]) -> bool {
        let len = data.len();
        if len == 0
            || len > NET_FRAME_BYTES_MAX
            || self.frames.len() == FRAMES
            || self.used + len > BYTES
        {
            self.dropped += 1;
            return false;
        }
        if self.bytes.is_empty() {
            self.bytes = vec![0; BYTES];
            self.frames.reserve_exact(FRAMES);
        }
        let at = (self.head + self.used) % BYTES;
        let (first, second) = data.split_at(len.min(BYTES - at));
        self.bytes[at..at + first.len()].copy_from_slice(first);
        self.bytes[..second.len()].copy_from_slice(second);
        self.used += len;
        self.frames.push_back(QueuedFrame { handle, number: self.next_number, len });
        self.next_number = self.next_number.wrapping_add(1);
        true
    }

    /// Puts what fits into a frame of the link.
    pub(crate) fn fill(&mut self, out: &mut Out<'_>) {
        while let Some(first) = self.frames.front().copied() {
            let left = first.len - self.sent;
            let fits = left.min(out.net_room());
            if fits < left.min(PIECE_MIN) {
                return out.is_full();
            }
            let (head, bytes) = (self.head, &self.bytes);
            let net = Net {
                handle: first.handle,
                number: first.number,
                len: first.len as u16,
                place: self.sent as u16,
                data: &[],
            };
            let is_put = out.push_net(&net, fits, |into| {
                let (front, back) = into.split_at_mut(into.len().min(BYTES - head));
                front.copy_from_slice(&bytes[head..head + front.len()]);
                back.copy_from_slice(&bytes[..back.len()]);
            });
            if !is_put {
                return;
            }
            self.head = (self.head + fits) % BYTES;
            self.used -= fits;
            self.sent += fits;
            if self.sent == first.len {
                self.frames.pop_front();
                self.sent = 0;
            }
        }
    }
}

/// The frames of one NIC that come in pieces: a few at a time, in memory of fixed size. What a peer says of pieces is
/// not believed: a frame is whole when pieces that do not overlap cover all of it, so that no byte of an earlier one
/// is ever taken for one of it.
#[derive(Debug)]
pub struct Assembly {
    bytes: Box<[u8]>,
    places: [Partial; PLACES],
    /// The binding that they came by: numbers begin anew with it.
    handle: u32,
    lost: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Partial {
    number: u32,
    /// 0: none.
    len: u16,
    covered: u16,
    pieces: [(u16, u16); PIECES_MAX],
    count: usize,
}

const NONE: Partial =
    Partial { number: 0, len: 0, covered: 0, pieces: [(0, 0); PIECES_MAX], count: 0 };

impl Default for Assembly {
    fn default() -> Assembly {
        let bytes = vec![0; PLACES * NET_FRAME_BYTES_MAX].into();
        Assembly { bytes, places: [NONE; PLACES], handle: 0, lost: 0 }
    }
}

impl Assembly {
    /// Takes a piece: the frame, when it is whole now.
    pub fn take<'a>(&'a mut self, net: &Net<'a>) -> Option<&'a [u8]> {
        let (start, len) = (usize::from(net.place), usize::from(net.len));
        if start == 0 && net.data.len() == len {
            return Some(net.data);
        }
        if self.handle != net.handle {
            // Those of another session: the rest of them does not come any more.
            self.forget();
            self.handle = net.handle;
        }
        let at = net.number as usize % PLACES;
        let partial = self.places.get_mut(at)?;
        if partial.len == 0 || partial.number != net.number || partial.len != net.len {
            let is_late = (net.number.wrapping_sub(partial.number) as i32) < 0;
            if partial.len != 0 && is_late {
                return None;
            }
            self.lost += u64::from(partial.len != 0);
            *partial = Partial { number: net.number, len: net.len, ..NONE };
        }
        let end = start + net.data.len();
        let place = self.bytes.get_mut(at * NET_FRAME_BYTES_MAX..(at + 1) * NET_FRAME_BYTES_MAX)?;
        let into = place.get_mut(start..end).filter(|_| end <= len)?;
        let known = partial.pieces.get(..partial.count).unwrap_or_default();
        let overlaps = known.iter().any(|(from, to)| start < (*to).into() && end > (*from).into());
        let Some(piece) = partial.pieces.get_mut(partial.count).filter(|_| !overlaps) else {
            // Nobody honest sends that.
            self.lost += 1;
            *partial = NONE;
            return None;
        };
        into.copy_from_slice(net.data);
        *piece = (start as u16, end as u16);
        partial.count += 1;
        partial.covered += net.data.len() as u16;
        if partial.covered < partial.len {
            return None;
        }
        *partial = NONE;
        place.get(..len)
    }

    /// Forgets what is not whole.
    pub fn forget(&mut self) {
        let partial = self.places.iter().filter(|partial| partial.len != 0);
        self.lost += partial.count() as u64;
        self.places = [NONE; PLACES];
    }

    /// Frames of which a part came and not all.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests;
