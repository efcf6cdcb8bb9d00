//! A NIC at a link: the link's end of it, of either role. The other end is a port of a bridge ([`HostPort::Linked`]).
//!
//! Frames of the port wait here until the link sends them; pieces that come make frames for the port. When one end is
//! dropped the other one finds out: a port is gone then, and a link gives its device back. Not the wire (`remote`), nor
//! who gets a frame (`switch`). Called by `client`, and by `sidecore` for an IOhost's link.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use remote::Assembly;
use remote::wire::Net;

use super::pipe::{PipeIn, PipeOut, Room, frame_of, pipe, room};
use crate::net::{HostPort, Linked};

/// Frames of one NIC taken in one pass: half of what a link sends in one.
pub const FRAMES_PER_PASS: u32 = 32;

/// What a NIC of a link counts: written by the link alone.
#[derive(Debug, Default)]
pub struct NicCounters {
    is_up: AtomicU64,
    /// One of the two ends is no more.
    is_over: AtomicBool,
    sent: AtomicU64,
    came: AtomicU64,
    dropped: AtomicU64,
}

/// What [`NicCounters`] showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicSnapshot {
    /// It is bound at the other end, in a session.
    pub is_up: bool,
    /// Frames that were given to the link.
    pub sent: u64,
    /// Frames that came whole.
    pub came: u64,
    /// Frames that were dropped here: nobody has the NIC, the port does not take them, pieces are missing.
    pub dropped: u64,
}

impl NicCounters {
    /// What they show now.
    pub fn snapshot(&self) -> NicSnapshot {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        NicSnapshot {
            is_up: self.is_up(),
            sent: of(&self.sent),
            came: of(&self.came),
            dropped: of(&self.dropped),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed) != 0
    }
}

impl NicCounters {
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// An end goes. Said before its bells are rung.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.is_up.store(0, Ordering::Relaxed);
    }
}

/// There is one writer.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// What becomes of a frame of the port's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is sent.
    Open,
    /// The link has no room now: frames wait where they are.
    Full,
    /// Nobody has the NIC: it is dropped.
    Nowhere,
}

/// The link's end.
#[derive(Debug)]
pub struct LinkNic {
    from_port: PipeOut,
    to_port: PipeIn,
    assembly: Assembly,
    lost: u64,
    room: Room,
    counters: Arc<NicCounters>,
    is_full: bool,
}

impl LinkNic {
    /// One, and its port. Takes the memory for both.
    ///
    /// # Errors
    /// The kernel has no descriptor left.
    pub fn new() -> io::Result<(LinkNic, HostPort)> {
        let (to_link, from_port) = pipe()?;
        let (to_port, from_link) = pipe()?;
        let counters = Arc::new(NicCounters::default());
        let port = Linked::new(to_link, from_link, Arc::clone(&counters));
        let nic = LinkNic {
            from_port,
            to_port,
            assembly: Assembly::default(),
            lost: 0,
            room: room(),
            counters,
            is_full: false,
        };
        Ok((nic, HostPort::Linked(Box::new(port))))
    }

    /// What it counts, from now on and wherever it is.
    pub fn counters(&self) -> Arc<NicCounters> {
        Arc::clone(&self.counters)
    }

    /// Another client, or another process of the same one, has it: what came in part is nobody's.
    pub fn forget(&mut self) {
        self.assembly.forget();
    }

    /// A piece came. [`LinkNic::tell`] follows when all have.
    pub fn hear(&mut self, net: &Net<'_>) {
        let (room, counters) = (&mut self.room, &self.counters);
        if let Some(frame) = self.assembly.take(net) {
            let into = frame_of(room).get_mut(..frame.len());
            let is_copied = into.map(|into| into.copy_from_slice(frame)).is_some();
            let fits = is_copied && self.to_port.put(room, frame.len());
            add(if fits { &counters.came } else { &counters.dropped }, 1);
        }
        let lost = self.assembly.lost();
        add(&counters.dropped, lost - self.lost);
        self.lost = lost;
    }

    /// What came is told to the port.
    #[inline]
    pub fn tell(&mut self) {
        self.to_port.tell();
    }

    /// Whether nothing waits, and the bell will ring when something does.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        !self.is_full && self.from_port.is_quiet()
    }

    /// Whether somebody has it at the other end.
    #[inline]
    pub fn set_up(&self, is_up: bool) {
        if self.counters.is_up() != is_up {
            self.counters.is_up.store(is_up.into(), Ordering::Relaxed);
        }
    }

    /// The port's next frame, which is to be sent. `None`: there is none, or none may go.
    pub fn next(&mut self, way: Way) -> Option<&[u8]> {
        self.set_up(way != Way::Nowhere);
        self.is_full = way == Way::Full;
        if self.is_full {
            // What the link waits for wakes its sidecore, not this.
            self.from_port.hush();
            return None;
        }
        if way == Way::Nowhere {
            let gone =
                (0..FRAMES_PER_PASS).take_while(|_| self.from_port.take(&mut self.room).is_some());
            add(&self.counters.dropped, gone.count() as u64);
            return None;
        }
        let len = self.from_port.take(&mut self.room)?;
        add(&self.counters.sent, 1);
        frame_of(&mut self.room).get(..len)
    }

    /// Whether frames wait that the link has room for, as far as it was known last.
    pub fn has_some(&self) -> bool {
        !self.is_full && self.from_port.has_some()
    }

    /// Whether its port is no more.
    pub fn is_abandoned(&self) -> bool {
        self.counters.is_over()
    }

    /// Readable when the port has frames, or is no more.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.from_port.poll_fd()
    }
}

impl Drop for LinkNic {
    fn drop(&mut self) {
        self.counters.end();
    }
}

#[cfg(test)]
mod tests;
