//! A link's socket whose wire is a simulation. Only with the feature `simulated`.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{Address, FRAME_BYTES_MAX, LinkLosses};

/// A wire between links, as a simulation has it.
pub trait LinkWire: Debug + Send + Sync {
    /// A link more, at this address. `some` is to be made readable when there is a frame for it.
    fn joined(&self, at: Address, some: Arc<OwnedFd>);
    /// The next frame for the link at this address, into `into`, and who sent it.
    fn receive(&self, at: Address, into: &mut Vec<u8>) -> Option<Address>;
    /// A frame from one link to another.
    fn send(&self, from: Address, to: Address, frame: &[u8]);
}

/// A link's end of such a wire.
#[derive(Debug)]
pub(super) struct SimulatedSocket {
    wire: Arc<dyn LinkWire>,
    at: Address,
    some: Arc<OwnedFd>,
    /// Says where it is, to a process that has nothing else of it.
    name: OwnedFd,
    came: Vec<u8>,
    place: Box<[u8]>,
}

impl SimulatedSocket {
    pub(super) fn new(wire: Arc<dyn LinkWire>, at: Address) -> std::io::Result<SimulatedSocket> {
        let some = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let name = memfd_create("simulated-socket", MemfdFlags::CLOEXEC)?;
        let text = at.as_udp().map_or_else(String::new, |at| at.to_string());
        rustix::io::pwrite(&name, text.as_bytes(), 0)?;
        wire.joined(at, Arc::clone(&some));
        let (came, place) = (Vec::with_capacity(FRAME_BYTES_MAX), vec![0; FRAME_BYTES_MAX].into());
        Ok(SimulatedSocket { wire, at, some, name, came, place })
    }

    /// What another process has of it.
    pub(super) fn handed(&self) -> BorrowedFd<'_> {
        self.name.as_fd()
    }

    /// Where one is of which another process has handed that over, as `getsockname` says of a kernel's.
    pub(super) fn bound_to(handed: &OwnedFd) -> Option<Address> {
        let mut text = [0; 64];
        let read = rustix::io::pread(handed, &mut text[..], 0).ok()?;
        let text = std::str::from_utf8(text.get(..read)?).ok()?;
        text.parse().ok().map(Address::udp)
    }

    pub(super) fn frame_bytes(&self) -> usize {
        FRAME_BYTES_MAX
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.at.as_udp()
    }

    pub(super) fn receive(&mut self) -> Option<(Address, &mut [u8])> {
        self.came.clear();
        let Some(from) = self.wire.receive(self.at, &mut self.came) else {
            // Only fails when it is not readable.
            let _ = rustix::io::read(&self.some, &mut [0; 8]);
            return None;
        };
        Some((from, &mut self.came))
    }

    pub(super) fn has_some(&self) -> bool {
        false
    }

    pub(super) fn send(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Option<(usize, Address)>,
    ) -> bool {
        let Some((len, to)) = fill(&mut self.place) else { return false };
        self.wire.send(self.at, to, self.place.get(..len).unwrap_or_default());
        true
    }

    pub(super) fn flush(&mut self) {}

    pub(super) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.some.as_fd()
    }

    pub(super) fn losses(&self) -> LinkLosses {
        LinkLosses::default()
    }
}
