//! The XDP programs that give an interface's frames to AF_XDP sockets, all of them or those of a link: some
//! instructions, a map, and their hold on the interface.
//!
//! Called by `net::xdp` and `link::xdp`. Loaded by `bpf(2)` alone: for a program of this size, and none that a user
//! brings, a loader of object files would be more than all the rest.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use remote::wire::Kind;
use rustix::io::Errno;

use super::interface::last_errno;
use super::steer::{KIND_AT, SHARD_AT, SHARD_BITS};

/// Queues of an interface, at most, from which frames are taken.
pub(crate) const QUEUES_MAX: u32 = 1024;

/// From `linux/bpf.h`.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// Members of `xdp_md`: where a frame begins and ends, and `rx_queue_index`.
const DATA_AT: i16 = 0;
const DATA_END_AT: i16 = 4;
const RX_QUEUE_INDEX_AT: i16 = 16;
/// Where the type of an Ethernet frame is, and what follows it.
const TYPE_AT: i16 = 12;
const BODY_AT: i16 = 14;
const XDP_PASS: i32 = 2;
const HELPER_REDIRECT_MAP: i32 = 51;
/// From `linux/if_link.h`.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the driver, before there is a socket buffer.
    Native,
    /// In the network stack, with any driver.
    Generic,
}

/// What is given to sockets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// All frames of a queue, to the socket of that queue.
    All,
    /// Frames of a link, each to the socket of its shard, if it came by the queue of that number.
    Link(OfLink),
}

/// Which frames are a link's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfLink {
    /// The interface's own address: a frame for another station is not touched.
    pub(crate) station: [u8; 6],
    /// The EtherType.
    pub(crate) kind: u16,
    /// Bytes between the EtherType and the link's frame.
    pub(crate) head: u16,
    /// As many shards as there are.
    pub(crate) shards: u8,
}

/// The program, attached to an interface until this is dropped.
#[derive(Debug)]
pub(crate) struct Redirect {
    sockets: OwnedFd,
    /// Its close detaches the program.
    _link: OwnedFd,
}

impl Redirect {
    /// Loads the program and attaches it: frames of queues that have no socket go on to the host.
    ///
    /// # Errors
    /// The kernel's. EBUSY or EEXIST: the interface has another program. EINVAL: a kernel before 5.9.
    pub(crate) fn attach(index: u32, place: Place, taken: Taken) -> Result<Redirect, Errno> {
        let sockets = bpf(
            MAP_CREATE,
            &MapCreate {
                map_type: MAP_TYPE_XSKMAP,
                key_size: 4,
                value_size: 4,
                entries_max: QUEUES_MAX,
                flags: 0,
            },
        )?;
        let sockets_fd = sockets.as_raw_fd();
        let instructions = match taken {
            Taken::All => program(sockets_fd).to_vec(),
            Taken::Link(frames) => program_of_link(sockets_fd, frames).to_vec(),
        };
        let program = bpf(
            PROG_LOAD,
            &ProgLoad {
                prog_type: PROG_TYPE_XDP,
                count: instructions.len() as u32,
                instructions: instructions.as_ptr() as u64,
                licence: c"Apache-2.0".as_ptr() as u64,
                ..ProgLoad::default()
            },
        )?;
        let flags = match place {
            Place::Native => XDP_FLAGS_DRV_MODE,
            Place::Generic => XDP_FLAGS_SKB_MODE,
        };
        let link = bpf(
            LINK_CREATE,
            &LinkCreate {
                program: program.as_raw_fd() as u32,
                interface: index,
                attach_type: ATTACH_XDP,
                flags,
            },
        )?;
        Ok(Redirect { sockets, _link: link })
    }

    /// Gives frames of `queue` to `socket`, which is bound to it, until that is closed.
    pub(crate) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let value = socket.as_raw_fd() as u32;
        call(
            MAP_UPDATE_ELEM,
            &MapUpdate {
                map: self.sockets.as_raw_fd() as u32,
                pad: 0,
                key: (&raw const queue) as u64,
                value: (&raw const value) as u64,
                flags: 0,
            },
        )
        .map(|_| ())
    }
}

/// `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)`.
fn program(sockets: i32) -> [Instruction; 6] {
    [
        // r2 = *(u32 *)(r1 + 16)
        instruction(0x61, 0x12, RX_QUEUE_INDEX_AT, 0),
        // r1 = the map, by its descriptor: two instructions
        instruction(0x18, 0x11, 0, sockets),
        instruction(0x00, 0x00, 0, 0),
        // r3 = XDP_PASS
        instruction(0xb7, 0x03, 0, XDP_PASS),
        instruction(0x85, 0x00, 0, HELPER_REDIRECT_MAP),
        // return r0
        instruction(0x95, 0x00, 0, 0),
    ]
}

/// A frame of the link for this station, that came by the queue whose number is its shard: to that shard's socket.
/// Whatever else goes on to the host, where a packet socket gives the rest of them to their shards (`steer`).
fn program_of_link(sockets: i32, frames: OfLink) -> [Instruction; PROGRAM_OF_LINK] {
    const PASS: i16 = PROGRAM_OF_LINK as i16 - 2;
    let OfLink { station: [a, b, c, d, e, f], kind, head, shards } = frames;
    let at = BODY_AT + head as i16;
    let word = |bytes: [u8; 2]| i32::from(u16::from_ne_bytes(bytes));
    let else_pass = |from: i16| PASS - from - 1;
    let shard_at = at + SHARD_AT as i16;
    [
        // r2, r3: the frame and its end; r6: the queue
        instruction(0x61, 0x12, DATA_AT, 0),
        instruction(0x61, 0x13, DATA_END_AT, 0),
        instruction(0x61, 0x16, RX_QUEUE_INDEX_AT, 0),
        // long enough for all that is looked at below
        instruction(0xbf, 0x24, 0, 0),
        instruction(0x07, 0x04, 0, i32::from(shard_at) + 1),
        instruction(0x2d, 0x34, else_pass(5), 0),
        // its type
        instruction(0x69, 0x25, TYPE_AT, 0),
        instruction(0x55, 0x05, else_pass(7), word(kind.to_be_bytes())),
        // for whom: four bytes, and two
        instruction(0x61, 0x25, 0, 0),
        instruction(0x56, 0x05, else_pass(9), i32::from_ne_bytes([a, b, c, d])),
        instruction(0x69, 0x25, 4, 0),
        instruction(0x55, 0x05, else_pass(11), word([e, f])),
        // r7: the shard, 0 if it is not sealed, or of no shard
        instruction(0xb7, 0x07, 0, 0),
        instruction(0x71, 0x25, at + KIND_AT as i16, 0),
        instruction(0x55, 0x05, 4, Kind::Sealed as i32),
        instruction(0x71, 0x27, shard_at, 0),
        instruction(0x77, 0x07, 0, SHARD_BITS as i32),
        instruction(0xa5, 0x07, 1, i32::from(shards)),
        instruction(0xb7, 0x07, 0, 0),
        instruction(0x5d, 0x76, else_pass(19), 0),
        // return bpf_redirect_map(&sockets, r7, XDP_PASS)
        instruction(0x18, 0x11, 0, sockets),
        instruction(0x00, 0x00, 0, 0),
        instruction(0xbf, 0x72, 0, 0),
        instruction(0xb7, 0x03, 0, XDP_PASS),
        instruction(0x85, 0x00, 0, HELPER_REDIRECT_MAP),
        instruction(0x95, 0x00, 0, 0),
        // return XDP_PASS
        instruction(0xb7, 0x00, 0, XDP_PASS),
        instruction(0x95, 0x00, 0, 0),
    ]
}

/// Instructions of the above.
const PROGRAM_OF_LINK: usize = 28;

fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers, offset, immediate }
}

/// `struct bpf_insn`: source register in the upper half of `registers`.
#[derive(Clone)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Members of `union bpf_attr`, each up to what is used of it; the kernel takes the rest as zeroes.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    entries_max: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// A call that answers with a descriptor.
fn bpf<T>(command: i32, attributes: &T) -> Result<OwnedFd, Errno> {
    let fd = call(command, attributes)?;
    // SAFETY: the kernel has just made it for us, closed at `exec`.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call<T>(command: i32, attributes: &T) -> Result<i32, Errno> {
    // The kernel may write to some unions, so it gets a copy of its own, of a size that it knows.
    const SIZE: usize = 128;
    const { assert!(size_of::<T>() <= SIZE) };
    let mut copy = [MaybeUninit::<u64>::zeroed(); SIZE / 8];
    let from: *const T = attributes;
    // SAFETY: `copy` is as large as any of the structures above, and aligned for them.
    unsafe { copy.as_mut_ptr().cast::<T>().copy_from_nonoverlapping(from, 1) };
    // SAFETY: the kernel reads and writes at most so many bytes; what they point to are values of the
    // caller's, which outlive the call, and of which it only reads.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, command, copy.as_mut_ptr(), size_of::<T>()) };
    if answer < 0 { Err(last_errno()) } else { Ok(answer as i32) }
}
