//! The machine that has its turn, as far as daemons on it can tell: the sockets of its links, its interfaces, its random
//! bits, its boot.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use backend::link::{LinkOpenError, LinkShards, LinkSource};
use backend::net::{HostOpenError, HostPort, HostSource, Silence};
use rustix::io::Errno;

/// One of them. With none, a daemon finds the machine that the simulation runs on.
pub trait Machine {
    /// Opens the sockets of a link, so many at most.
    ///
    /// # Errors
    /// As the kernel's.
    fn open_link(&self, source: &LinkSource, shards: usize) -> Result<LinkShards, LinkOpenError>;
    /// Takes over those that another process on the machine has, too.
    ///
    /// # Errors
    /// They are elsewhere, or as the kernel's.
    fn inherit_link(
        &self,
        source: &LinkSource,
        sockets: Vec<OwnedFd>,
    ) -> Result<LinkShards, LinkOpenError> {
        self.open_link(source, sockets.len())
    }
    /// Opens a port on one of its interfaces.
    ///
    /// # Errors
    /// As the kernel's.
    fn open_port(&self, source: &HostSource) -> Result<HostPort, HostOpenError> {
        HostPort::open(source)
    }
    /// The number of one of its interfaces, if there is one of that name.
    ///
    /// # Errors
    /// As the kernel's.
    fn index_of(&self, interface: &str) -> Result<Option<u32>, HostOpenError> {
        backend::net::index_of(interface)
    }
    /// Why no frame passes one of its interfaces, if so.
    fn silence_of(&self, _interface: &str) -> Option<Silence> {
        None
    }
    /// Takes over a queue of a tap from another process.
    ///
    /// # Errors
    /// The descriptor is of something else.
    fn inherit_tap(&self, name: &str, fd: OwnedFd, made: bool) -> Result<HostPort, HostOpenError> {
        HostPort::inherit_tap(name, fd, made)
    }
    /// What becomes of a sync of an image that was made.
    ///
    /// # Errors
    /// As the kernel's.
    fn sync_made(&self, _path: &Path) -> Result<(), Errno> {
        Ok(())
    }
    /// Random bits.
    fn fill(&self, bytes: &mut [u8]);
    /// Another number for each boot of each machine.
    fn boot(&self) -> u64;
}

thread_local! {
    static MACHINE: RefCell<Option<Rc<dyn Machine>>> = const { RefCell::new(None) };
}

/// From now on this thread is on that machine, or on its own again.
pub fn be_on(machine: Option<Rc<dyn Machine>>) {
    MACHINE.with(|place| drop(place.replace(machine)));
}

/// It, if there is one.
pub(crate) fn machine() -> Option<Rc<dyn Machine>> {
    MACHINE.with(|place| place.borrow().clone())
}
