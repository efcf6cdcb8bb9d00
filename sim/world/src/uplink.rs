//! The host's end of a switch: frames that come from elsewhere, and those that go there.
//!
//! Who is elsewhere is one station more of the `lan`. The wire has little room, so that a port finds it full.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backend::net::Wire;
use rustix::event::{EventfdFlags, eventfd};

/// Its number as a station, and its port.
pub(crate) const ELSEWHERE: u64 = 60;
/// Frames that wait on the wire at most, in each direction.
const ROOM: usize = 4;

#[derive(Debug, Default)]
struct Inner {
    coming: VecDeque<Vec<u8>>,
    going: VecDeque<Vec<u8>>,
}

/// Both ends of a wire.
#[derive(Clone, Debug)]
pub(crate) struct Uplink {
    inner: Arc<Mutex<Inner>>,
    some: Arc<OwnedFd>,
}

impl Uplink {
    pub(crate) fn new() -> Result<Uplink, String> {
        let some = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let some = Arc::new(some.map_err(|e| e.to_string())?);
        Ok(Uplink { inner: Arc::default(), some })
    }

    /// Whether a frame may come.
    pub(crate) fn has_room(&self) -> bool {
        self.inner().coming.len() < ROOM
    }

    /// A frame comes.
    pub(crate) fn bring(&self, frame: Vec<u8>) {
        self.inner().coming.push_back(frame);
        crate::signal::raise(&self.some);
    }

    /// A frame that went.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        self.inner().going.pop_front()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire for Uplink {
    fn receive(&mut self) -> Option<Vec<u8>> {
        let frame = self.inner().coming.pop_front();
        if frame.is_none() {
            crate::signal::take(&self.some);
        }
        frame
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        let mut inner = self.inner();
        let fits = inner.going.len() < ROOM;
        if fits {
            inner.going.push_back(frame.to_vec());
        }
        fits
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.some.as_fd()
    }
}
