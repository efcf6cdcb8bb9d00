//! An AF_XDP socket with its four rings and their memory (the `xdp` crate), as one value.
//!
//! Called by `net::xdp` and `link::xdp`. The crate leaves to its caller that packets do not outlive the memory they
//! lie in; here none leaves this value but as a borrowed slice.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use xdp::error::SocketError;
use xdp::nic::NicIndex;
use xdp::slab::{Slab, StackSlab};
use xdp::socket::{XdpSocket, XdpSocketBuilder};
use xdp::umem::{FrameSize, UmemCfgBuilder};
use xdp::{Packet, RingConfigBuilder, Rings, Umem};

use super::interface::result;

/// Frames for receiving, as many for sending: 2 x 8 MiB.
const FRAMES: u32 = 2048;
/// Frames taken or given at a time: as many as the kernel sends in one call.
pub(crate) const BATCH: usize = 32;

/// How the kernel moves frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The NIC writes to and reads from our memory.
    ZeroCopy,
    /// The kernel copies.
    Copy,
}

/// Why there is no socket: the step, as a verb, and what the kernel said.
pub(crate) type Refused = (&'static str, Errno);

/// A bound socket. The rings go first and the memory last: the kernel uses it until the socket and
/// the mappings of its rings are gone.
pub(crate) struct Xsk {
    rings: Rings,
    socket: XdpSocket,
    /// Received, and not looked at.
    received: StackSlab<BATCH>,
    /// Was shown last.
    shown: Option<Packet>,
    /// Frames that the fill ring is owed.
    owed: usize,
    /// Written, and not in the kernel's ring.
    staged: StackSlab<BATCH>,
    /// In the kernel's ring for sending, or with it.
    sending: usize,
    umem: Umem,
}

// SAFETY: the packets are pointers into `umem`, which is the same value's, and nobody else has any.
unsafe impl Send for Xsk {}

impl Xsk {
    /// A socket on a queue of the interface.
    pub(crate) fn open(index: u32, queue: u32, way: Way) -> Result<Xsk, Refused> {
        let bad = |what| move |_| (what, Errno::INVAL);
        let frames = UmemCfgBuilder {
            frame_size: FrameSize::FourK,
            frame_count: 2 * FRAMES,
            ..UmemCfgBuilder::default()
        };
        let frames = frames.build().map_err(bad("size its memory"))?;
        let mut umem = Umem::map(frames).map_err(|error| ("map its memory", os(&error)))?;
        let mut builder = XdpSocketBuilder::new().map_err(refused)?;
        let sizes = RingConfigBuilder {
            rx_count: FRAMES,
            tx_count: FRAMES,
            fill_count: FRAMES,
            completion_count: FRAMES,
        };
        let sizes = sizes.build().map_err(bad("size its rings"))?;
        // Without "need wakeup": the crate does not show whether the kernel needs it.
        let (mut rings, mut flags) = builder.build_rings(&umem, sizes).map_err(refused)?;
        match way {
            Way::ZeroCopy => flags.force_zerocopy(),
            Way::Copy => flags.force_copy(),
        }
        // SAFETY: `umem` is dropped after the socket, here as in `Xsk`.
        unsafe { rings.fill_ring.enqueue(&mut umem, FRAMES as usize) };
        let socket = builder.bind(NicIndex::new(index), queue, flags).map_err(refused)?;
        Ok(Xsk {
            rings,
            socket,
            received: StackSlab::new(),
            shown: None,
            owed: 0,
            staged: StackSlab::new(),
            sending: 0,
            umem,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }

    /// Gives the last frame back, and takes the next one. False when there is none.
    #[inline]
    pub(crate) fn next(&mut self) -> bool {
        if let Some(last) = self.shown.take() {
            self.umem.free_packet(last);
            self.owed += 1;
        }
        if self.received.is_empty() {
            self.fetch();
        }
        self.shown = self.received.pop_back();
        self.shown.is_some()
    }

    /// The frame that [`Self::next`] took; nothing when it goes on in the next one (which the program
    /// does not ask for), or the kernel said nonsense.
    #[inline]
    pub(crate) fn shown(&self) -> Option<&[u8]> {
        let packet = self.shown.as_ref()?;
        let is_whole = !packet.is_continued() && packet.len() <= packet.capacity();
        is_whole.then(|| &packet[..])
    }

    /// The same, to be changed in place.
    #[inline]
    pub(crate) fn shown_mut(&mut self) -> Option<&mut [u8]> {
        let packet = self.shown.as_mut()?;
        let is_whole = !packet.is_continued() && packet.len() <= packet.capacity();
        is_whole.then(|| &mut packet[..])
    }

    /// Whether frames were taken from the kernel's ring that [`Self::next`] has not given yet.
    pub(crate) fn has_some(&self) -> bool {
        !self.received.is_empty()
    }

    fn fetch(&mut self) {
        if self.owed > 0 {
            // SAFETY: `umem` outlives the socket.
            self.owed -= unsafe { self.rings.fill_ring.enqueue(&mut self.umem, self.owed) };
        }
        if let Some(ring) = &mut self.rings.rx_ring {
            // SAFETY: the packets stay in `self`, beside `umem`.
            unsafe { ring.recv(&self.umem, &mut self.received) };
        }
    }

    /// Bytes of the longest frame that can be sent.
    pub(crate) fn longest(&self) -> usize {
        4096 - xdp::libc::xdp::XDP_PACKET_HEADROOM as usize
    }

    /// Has `write` fill a frame of `len` bytes, which goes out with the next [`Self::push`] unless
    /// it says false. `None`: no room, or too long.
    #[inline]
    pub(crate) fn stage(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<bool> {
        self.stage_up_to(len, |frame| write(frame).then_some(len))
    }

    /// The same of at most `longest` bytes: `write` says how many it has filled, or nothing.
    #[inline]
    pub(crate) fn stage_up_to(
        &mut self,
        longest: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<bool> {
        let fits = i32::try_from(longest).ok()?;
        if !self.has_place() {
            return None;
        }
        // SAFETY: the packet stays in `self`, beside `umem`.
        let mut packet = unsafe { self.umem.alloc()? };
        if packet.adjust_tail(fits).is_err() {
            self.umem.free_packet(packet);
            return None;
        }
        let left = write(&mut packet).and_then(|len| i32::try_from(longest.checked_sub(len)?).ok());
        if left.is_none_or(|left| packet.adjust_tail(-left).is_err()) {
            self.umem.free_packet(packet);
            return Some(false);
        }
        self.staged.push_front(packet);
        Some(true)
    }

    /// Whether a frame more may be staged. Takes back what was sent, if that is what it takes.
    #[inline]
    pub(crate) fn has_place(&mut self) -> bool {
        if self.sending + self.staged.len() >= FRAMES as usize {
            self.collect();
        }
        self.staged.available() > 0 && self.sending + self.staged.len() < FRAMES as usize
    }

    /// How many frames are staged.
    #[inline]
    pub(crate) fn staged(&self) -> usize {
        self.staged.len()
    }

    /// Puts what is staged into the kernel's ring; has it sent by [`Self::kick`].
    #[inline]
    pub(crate) fn push(&mut self) {
        self.collect();
        if let Some(ring) = &mut self.rings.tx_ring {
            // SAFETY: `umem` outlives the socket. As many places as frames for sending.
            self.sending += unsafe { ring.send(&mut self.staged) };
        }
    }

    /// Takes back the frames that were sent.
    fn collect(&mut self) {
        let sent = self.rings.completion_ring.dequeue(&mut self.umem, self.sending);
        self.sending = self.sending.saturating_sub(sent);
    }

    /// Has the kernel send what is in its ring.
    #[inline]
    pub(crate) fn kick(&self) -> Result<(), Errno> {
        let (none, flags) = (std::ptr::null(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: no memory is involved.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), none, 0, flags) };
        result(sent as i32).map(|_| ())
    }

    /// Frames of the queue that found no place, since the socket was made.
    pub(crate) fn drops(&self) -> u64 {
        self.socket.statistics().map_or(0, |counts| counts.rx_dropped + counts.rx_ring_full)
    }
}

impl std::fmt::Debug for Xsk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Xsk { owed, sending, .. } = self;
        write!(f, "Xsk {{ owed: {owed}, sending: {sending} }}")
    }
}

fn refused(error: SocketError) -> Refused {
    match error {
        SocketError::SocketCreation(error) => ("make an AF_XDP socket", os(&error)),
        SocketError::SetSockOpt { inner, .. } => ("set up the AF_XDP socket", os(&inner)),
        SocketError::GetSockOpt { inner, .. } => ("ask the AF_XDP socket", os(&inner)),
        SocketError::RingMap { inner, .. } => ("map the AF_XDP socket's rings", os(&inner)),
        SocketError::Bind(error) => ("bind an AF_XDP socket to it", os(&error)),
    }
}

fn os(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
