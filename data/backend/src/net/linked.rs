//! A port whose frames come from a link and go there: one end of a NIC of another machine.
//!
//! Not the link, nor its end of it (`link::nic`). A frame is sent with nothing left undone (no offloads), and copied
//! once on its way to the link, which may be at home on another sidecore. While nobody has the NIC at the other end
//! frames are [`Sent::Down`].
//!
//! Called by [`super::HostPort`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use frame::Header;

use super::{Received, Rest, Sent};
use crate::link::NicCounters;
use crate::link::pipe::{PipeIn, PipeOut, Room, frame_of, room};

/// The port.
#[derive(Debug)]
pub struct Linked {
    to_link: PipeIn,
    from_link: PipeOut,
    received: Room,
    sent: Room,
    link: Arc<NicCounters>,
}

impl Linked {
    pub(crate) fn new(to_link: PipeIn, from_link: PipeOut, link: Arc<NicCounters>) -> Linked {
        Linked { to_link, from_link, received: room(), sent: room(), link }
    }

    pub(crate) fn receive(&mut self) -> Option<Received<'_>> {
        let len = self.from_link.take(&mut self.received)?;
        let bytes = frame_of(&mut self.received).get(..len)?;
        Some(Received { header: Header::default(), bytes })
    }

    pub(crate) fn send(&mut self, head: &[u8], rest: Rest<'_>) -> Sent {
        if !self.link.is_up() {
            return if self.is_gone() { Sent::Gone } else { Sent::Down };
        }
        let len = match rest.stage(&[], head, frame_of(&mut self.sent)) {
            Ok(len) => len,
            Err(sent) => return sent,
        };
        match self.to_link.put(&mut self.sent, len) {
            true => Sent::Done,
            // The link takes them out: it is to know.
            false => {
                self.to_link.tell();
                Sent::Full
            }
        }
    }

    #[inline]
    pub(crate) fn flush(&mut self) {
        self.to_link.tell();
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.from_link.poll_fd()
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.link.is_over()
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.link.end();
    }
}
