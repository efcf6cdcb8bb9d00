//! The machine that has its turn, as far as daemons on it can tell: the sockets of its links, its random bits, its boot.

use std::cell::RefCell;
use std::rc::Rc;

use backend::link::{LinkOpenError, LinkShards, LinkSource};

/// One of them. With none, a daemon finds the machine that the simulation runs on.
pub trait Machine {
    /// Opens the sockets of a link, so many at most. Those that another process on the machine has, too, are found open
    /// with `is_inherited`.
    ///
    /// # Errors
    /// As the kernel's.
    fn open_link(
        &self,
        source: &LinkSource,
        shards: usize,
        is_inherited: bool,
    ) -> Result<LinkShards, LinkOpenError>;
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
