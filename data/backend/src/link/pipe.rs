//! One direction between a port of a bridge and a link: a ring of frames, and a bell for whoever takes them out.
//!
//! The two ends may be at home on different sidecores. The order on both sides is that of `sidecore`'s bell: who puts
//! a frame in writes it, then looks whether the other one waits; who waits says so, then looks once more. The bell is an
//! eventfd that is readable from the ring until the next look. Called by `nic` and `net::linked`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use remote::wire::NET_FRAME_BYTES_MAX;
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};

/// Bytes of frames that wait at most: four of 64 KiB that a guest had cut up.
const BYTES: usize = 256 << 10;
/// Before each frame: its length.
const LENGTH: usize = 2;

/// A frame, with its length before it.
pub(crate) type Room = Box<[u8; LENGTH + NET_FRAME_BYTES_MAX]>;

/// Whoever takes frames out is woken by it.
#[derive(Debug)]
struct Bell {
    fd: OwnedFd,
    /// Somebody waits.
    is_armed: AtomicBool,
    /// It was rung and not looked at.
    is_rung: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.is_armed.load(Ordering::Relaxed) && self.is_armed.swap(false, Ordering::AcqRel) {
            self.is_rung.store(true, Ordering::Release);
            // Only fails when it is readable anyway.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    fn arm(&self) {
        if !self.is_armed.load(Ordering::Relaxed) {
            self.is_armed.store(true, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Who rings says so first: where nothing can be read yet, the next look does it.
    fn hush(&self) {
        // Not after the read: who rings between the two would not be heard.
        let is_rung =
            self.is_rung.load(Ordering::Relaxed) && self.is_rung.swap(false, Ordering::AcqRel);
        if is_rung && rustix::io::read(&self.fd, &mut [0; 8]).is_err() {
            self.is_rung.store(true, Ordering::Release);
        }
    }
}

/// Where frames are put in.
#[derive(Debug)]
pub(crate) struct PipeIn {
    ring: Producer<u8>,
    bell: Arc<Bell>,
    is_fresh: bool,
}

/// Where frames are taken out.
#[derive(Debug)]
pub(crate) struct PipeOut {
    ring: Consumer<u8>,
    bell: Arc<Bell>,
}

/// Both ends.
pub(crate) fn pipe() -> io::Result<(PipeIn, PipeOut)> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let (is_armed, is_rung) = (AtomicBool::new(true), AtomicBool::new(false));
    let bell = Arc::new(Bell { fd, is_armed, is_rung });
    let (into, out) = RingBuffer::new(BYTES);
    Ok((
        PipeIn { ring: into, bell: Arc::clone(&bell), is_fresh: false },
        PipeOut { ring: out, bell },
    ))
}

/// Room for one frame.
pub(crate) fn room() -> Room {
    Box::new([0; LENGTH + NET_FRAME_BYTES_MAX])
}

/// Where in a room the frame goes.
pub(crate) fn frame_of(room: &mut Room) -> &mut [u8] {
    let (_, frame) = room.split_at_mut(LENGTH);
    frame
}

impl PipeIn {
    /// Puts in the `len` bytes of a frame that are in `room`. False when there is no place.
    pub(crate) fn put(&mut self, room: &mut Room, len: usize) -> bool {
        let Ok(coded) = u16::try_from(len) else { return false };
        let (length, _) = room.split_at_mut(LENGTH);
        length.copy_from_slice(&coded.to_ne_bytes());
        let Some(bytes) = room.get(..LENGTH + len) else { return false };
        let is_put = self.ring.push_entire_slice(bytes).is_ok();
        self.is_fresh |= is_put;
        is_put
    }

    /// What was put in is told.
    #[inline]
    pub(crate) fn tell(&mut self) {
        if std::mem::take(&mut self.is_fresh) {
            self.bell.ring();
        }
    }
}

impl Drop for PipeIn {
    fn drop(&mut self) {
        // Whoever waits there is to find out.
        self.bell.ring();
    }
}

impl PipeOut {
    /// The next frame, into `room`: its length. `None`: nothing is there, and the bell will ring.
    #[inline]
    pub(crate) fn take(&mut self, room: &mut Room) -> Option<usize> {
        self.bell.hush();
        if self.ring.is_empty() {
            self.bell.arm();
            if self.ring.is_empty() {
                return None;
            }
        }
        let (length, frame) = room.split_at_mut(LENGTH);
        self.ring.pop_entire_slice(length).ok()?;
        let len = usize::from(u16::from_ne_bytes([length[0], length[1]]));
        self.ring.pop_entire_slice(frame.get_mut(..len)?).ok()?;
        Some(len)
    }

    /// What rang is known.
    pub(crate) fn hush(&self) {
        self.bell.hush();
    }

    /// Whether nothing is there, and the bell will ring when something is.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.ring.is_empty() && self.bell.is_armed.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        !self.ring.is_empty()
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }
}
