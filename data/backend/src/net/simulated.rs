//! A host port whose other end is a simulation. Only with the feature `simulated`.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use frame::{FRAME_MAX, Header};

use super::{Received, Rest, Sent};

/// The host's end of a wire, as a simulation has it.
pub trait Wire: Debug + Send {
    /// The next frame for the port.
    fn receive(&mut self) -> Option<Vec<u8>>;
    /// A frame from the port. False when there is no room for it now.
    fn send(&mut self, frame: &[u8]) -> bool;
    /// Readable while there are frames for the port, or when it has gone.
    fn poll_fd(&self) -> BorrowedFd<'_>;
    /// Whether its interface was deleted.
    fn is_gone(&self) -> bool {
        false
    }
    /// Of a tap: whether a daemon made it.
    fn made(&self) -> Option<bool> {
        None
    }
    /// A tap that a daemon made is to go.
    fn remove(&mut self) {}
}

/// A port on such a wire.
#[derive(Debug)]
pub struct Simulated {
    wire: Box<dyn Wire>,
    received: Vec<u8>,
    sent: Box<[u8]>,
}

impl Simulated {
    /// A port on this wire.
    pub fn new(wire: Box<dyn Wire>) -> Simulated {
        let sent = vec![0; FRAME_MAX as usize].into_boxed_slice();
        Simulated { wire, received: Vec::new(), sent }
    }

    pub(crate) fn receive(&mut self) -> Option<Received<'_>> {
        self.received = self.wire.receive()?;
        Some(Received { header: Header::default(), bytes: &self.received })
    }

    pub(crate) fn send(&mut self, head: &[u8], rest: Rest<'_>) -> Sent {
        match rest.stage(&[], head, &mut self.sent) {
            Ok(len) if self.wire.send(&self.sent[..len]) => Sent::Done,
            Ok(_) if self.wire.is_gone() => Sent::Gone,
            Ok(_) => Sent::Full,
            Err(sent) => sent,
        }
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.wire.poll_fd()
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.wire.is_gone()
    }

    pub(crate) fn tap(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.wire.made().map(|made| (self.wire.poll_fd(), made))
    }

    pub(crate) fn remove(mut self) {
        self.wire.remove();
    }
}
