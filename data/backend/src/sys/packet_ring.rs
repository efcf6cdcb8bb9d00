//! The receive ring of a packet socket: memory that the kernel fills with frames, each of which
//! belongs to one side at a time.
//!
//! Called by `net::packet`. The kernel is trusted to keep to `TPACKET_V2`; lengths are checked all the
//! same, so that a frame is never read beyond its place.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::interface::{result, set_option};

/// Bytes for one frame: the longest one that `frame` knows, the kernel's header, and a header of
/// virtio-net; a multiple of the page.
const PLACE_SIZE: usize = 68 << 10;
/// What the kernel allocates at a time; places do not cross it.
const BLOCK_SIZE: usize = 1 << 20;
const PLACES_OF_BLOCK: usize = BLOCK_SIZE / PLACE_SIZE;
/// 16 MiB of the kernel's memory.
const BLOCKS: usize = 16;
/// Frames that wait at most: what comes in 0.3 ms at 900,000 a second.
const PLACES: usize = PLACES_OF_BLOCK * BLOCKS;
/// `struct virtio_net_hdr` before each frame.
pub(crate) const RING_HEADER_SIZE: usize = 10;

const _: () = assert!(PLACE_SIZE > frame::FRAME_MAX as usize + 256);

/// A frame in the ring, ours until the next one is asked for.
pub(crate) struct InRing<'a> {
    /// A header of [`RING_HEADER_SIZE`], then the frame. Shorter when the kernel said nonsense.
    pub(crate) bytes: &'a mut [u8],
    /// The kernel cut it off, since it was longer than its place.
    pub(crate) is_cut: bool,
    /// The VLAN tag that the kernel (or the NIC) took out of it: type and value.
    pub(crate) tag: Option<(u16, u16)>,
}

/// The ring of one socket.
#[derive(Debug)]
pub(crate) struct PacketRing {
    base: NonNull<u8>,
    /// The place to look at next.
    place: usize,
    /// That place was shown and is still ours.
    held: bool,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// Gives the socket, which is not bound yet, a ring of frames with headers of virtio-net.
    pub(crate) fn new(socket: BorrowedFd<'_>) -> Result<PacketRing, Errno> {
        let set = |option, value: i32| set_option(socket, libc::SOL_PACKET, option, &value);
        set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
        set(libc::PACKET_VNET_HDR, 1)?;
        // Since 4.20; without it the host's own frames come too, and go round.
        set(libc::PACKET_IGNORE_OUTGOING, 1)?;
        let ring = libc::tpacket_req {
            tp_block_size: BLOCK_SIZE as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: PLACE_SIZE as u32,
            tp_frame_nr: PLACES as u32,
        };
        set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &ring)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, of the ring that was just made.
        let base = unsafe {
            mmap(std::ptr::null_mut(), BLOCK_SIZE * BLOCKS, access, flags, socket.as_fd(), 0)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(PacketRing { base, place: 0, held: false })
    }

    /// Gives the last frame back, and takes the next one. False when there is none.
    #[inline]
    pub(crate) fn next(&mut self) -> bool {
        if self.held {
            self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.place = (self.place + 1) % PLACES;
        }
        self.held = self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0;
        self.held
    }

    /// The frame that [`Self::next`] took.
    #[inline]
    pub(crate) fn held(&mut self) -> Option<InRing<'_>> {
        if !self.held {
            return None;
        }
        let start = self.start();
        // SAFETY: the place has room for the header, is aligned to 16, and is ours since `next` saw its
        // status change.
        let header = unsafe { start.cast::<libc::tpacket2_hdr>().read() };
        let at = usize::from(header.tp_mac).saturating_sub(RING_HEADER_SIZE);
        let len = header.tp_snaplen as usize + RING_HEADER_SIZE;
        if at < size_of::<libc::tpacket2_hdr>() || at + len > PLACE_SIZE {
            return None;
        }
        // SAFETY: within the place by the check above; the kernel does not touch it until `next`
        // changes the status, which takes `&mut self`, and so cannot happen while the slice lives.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.add(at).as_ptr(), len) };
        let has_type = header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let tag_type = if has_type { header.tp_vlan_tpid } else { frame::tag::TYPE };
        let has_tag = header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        let is_cut = header.tp_snaplen < header.tp_len;
        Some(InRing { bytes, is_cut, tag: has_tag.then_some((tag_type, header.tp_vlan_tci)) })
    }

    fn start(&self) -> NonNull<u8> {
        let (block, within) = (self.place / PLACES_OF_BLOCK, self.place % PLACES_OF_BLOCK);
        // SAFETY: `place < PLACES`, so that it lies within the mapping.
        unsafe { self.base.add(block * BLOCK_SIZE + within * PLACE_SIZE) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: the first word of each place, aligned, mapped as long as `self`, and changed by
        // both sides as an atomic.
        unsafe { AtomicU32::from_ptr(self.start().as_ptr().cast()) }
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; nothing borrows from it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), BLOCK_SIZE * BLOCKS) };
    }
}

/// Frames that found no place in the ring since this was asked last.
pub(crate) fn drops(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    let place = (&raw mut counts).cast();
    // SAFETY: the kernel writes at most `len` bytes to `counts`.
    result(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, place, &raw mut len) })?;
    Ok(u64::from(counts.tp_drops))
}
