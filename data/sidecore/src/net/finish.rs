//! The slow way: a frame for a receiver that lacks an offload is finished here first.
//!
//! The whole frame is copied into private memory, since sums and segments must be of the same bytes.
//! Called by `deliver`.

use backend::net::Rest;
use frame::{HEAD_MAX, Offloads};
use schedule::Nanos;
use switch::DropReason;

use crate::net::deliver::Delivered;
use crate::net::desk::Desk;
use crate::net::frames::{FRONT, Frame, ROOM};
use crate::net::host::HostServed;
use crate::net::port::Port;
use crate::served::{Receive, Ring};

impl Desk {
    #[cold]
    #[inline(never)]
    pub(crate) fn finish_for_queue(
        &mut self,
        ring: &mut Ring,
        receive: &mut Receive,
        place: u16,
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let has = receive.nic.net.guest_has();
        self.finish(port, frame, has, |desk, piece| {
            desk.put(ring, receive, place, port, piece, now)
        })
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn finish_for_host(
        &mut self,
        host: &mut HostServed,
        place: u16,
        port: &Port,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let has = host.spec.port.has();
        self.finish(port, frame, has, |desk, piece| desk.send(host, place, port, piece, now))
    }

    /// Finishes `frame` for a receiver that has `has`, and gives each piece to `each`. What became of
    /// the first piece is what became of the frame: when that has no place, the others are not tried,
    /// and nothing changed.
    fn finish(
        &mut self,
        port: &Port,
        frame: &Frame<'_>,
        has: Offloads,
        mut each: impl FnMut(&mut Desk, &mut Frame<'_>) -> Delivered,
    ) -> Delivered {
        // Pieces need nothing that the receiver lacks, so nobody comes here a second time.
        let Some(mut memory) = self.whole.take() else { return Delivered::Dropped };
        let whole = memory.get_mut(..frame.len as usize).unwrap_or_default();
        // Copied, summed, and copied again.
        self.cost.bytes += 2 * u64::from(frame.len);
        let is_whole = assemble(frame, whole);
        if frame.is_lost() {
            self.whole = Some(memory);
            return Delivered::Lost;
        }
        let mut first = None;
        let mut room = ROOM;
        let finished = frame::finish(whole, &frame.offload, has, |bytes, offload| {
            if matches!(first, Some(Delivered::Full(..))) {
                return;
            }
            let (head, rest) = bytes.split_at_checked(HEAD_MAX).unwrap_or((bytes, &[]));
            if let Some(place) = room.get_mut(FRONT..FRONT + head.len()) {
                place.copy_from_slice(head);
            }
            let mut piece = Frame {
                room: &mut room,
                head_len: head.len(),
                len: bytes.len() as u32,
                rest: Rest::Private(rest),
                offload,
                health: None,
                memory: None,
                pair: frame.pair,
            };
            let delivered = each(self, &mut piece);
            match (first, delivered) {
                (None, _) => first = Some(delivered),
                (Some(_), Delivered::Full(reason)) => port.counters.dropped(reason),
                _ => {}
            }
        });
        self.whole = Some(memory);
        if !is_whole || finished.is_err() {
            port.counters.dropped(DropReason::NotOffloadable);
            return Delivered::Dropped;
        }
        if first == Some(Delivered::Done) {
            port.counters.finished.add(1);
        }
        first.unwrap_or(Delivered::Dropped)
    }
}

/// The whole frame into `whole`, which is as long. False when some of it is not there.
fn assemble(frame: &Frame<'_>, whole: &mut [u8]) -> bool {
    let Some((head, mut left)) = whole.split_at_mut_checked(frame.head_len) else { return false };
    head.copy_from_slice(frame.head());
    match frame.rest {
        Rest::Private(bytes) => {
            let fits = left.len() == bytes.len();
            if fits {
                left.copy_from_slice(bytes);
            }
            fits
        }
        Rest::Guest(map, spans) => {
            for span in spans {
                let Some((now, later)) = left.split_at_mut_checked(span.len() as usize) else {
                    return false;
                };
                if !map.read(*span, 0, now) {
                    return false;
                }
                left = later;
            }
            left.is_empty()
        }
    }
}
