//! The usual frame: whole in private memory, nothing left undone in it, into one buffer that holds it.
//!
//! What `deliver` would do, with a fifth of its stores. Stores are done in their order, and the header of
//! each frame goes to a line that the guest's core has: all that is stored meanwhile waits behind it, and
//! a processor has room for about half of what a frame takes on the general way. What is not usual is
//! left to that, with nothing changed.

use frame::{HEADER_SIZE, HEADER_SIZE_LEGACY};
use guest_memory::Health;

use crate::net::deliver::PLAIN;
use crate::net::desk::{Desk, WALK_BYTES};
use crate::net::port::Port;
use crate::served::{Receive, Ring};

impl Desk {
    /// Puts `bytes`, a frame of at most 64 KiB, into the receiver's next buffer, and counts it. `sender`
    /// is the health of the memory that they were read from, if they were. False, and nothing changed
    /// but bytes that the guest was not shown, when that needs another look.
    #[inline(always)]
    pub(crate) fn put_plain(
        &mut self,
        ring: &mut Ring,
        receive: &mut Receive,
        place: u16,
        port: &Port,
        bytes: &[u8],
        sender: Option<&Health>,
    ) -> bool {
        let Some(single) = ring.queue.peek_single(&ring.memory, true) else { return false };
        let size = receive.nic.net.header_size();
        let total = (size + bytes.len()) as u32;
        if single.span.len() < total || total >= receive.unfit_from {
            return false;
        }
        // Of fixed size, the header is one store or two.
        let is_whole = match size {
            HEADER_SIZE => ring.memory.write_both(single.span, &PLAIN, bytes),
            _ => ring.memory.write_both(single.span, &[0; HEADER_SIZE_LEGACY], bytes),
        };
        if !is_whole || ring.health.is_lost() || sender.is_some_and(Health::is_lost) {
            return false;
        }
        ring.queue.end_single(single, total);
        self.cost.bytes += WALK_BYTES;
        let is_multicast = bytes.first().is_some_and(|first| first & 1 != 0);
        self.has_put(ring, receive, place, port, bytes.len() as u32, is_multicast);
        true
    }
}
