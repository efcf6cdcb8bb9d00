//! The XDP program that gives an interface's frames to AF_XDP sockets: six instructions, a map, and
//! their hold on the interface.
//!
//! Called by `net::xdp`. Loaded by `bpf(2)` alone: for a program of this size, and none that a user
//! brings, a loader of object files would be more than all the rest.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::interface::last_errno;

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
/// `xdp_md.rx_queue_index`.
const RX_QUEUE_INDEX_AT: i16 = 16;
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
    pub(crate) fn attach(index: u32, place: Place) -> Result<Redirect, Errno> {
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
        let instructions = program(sockets.as_raw_fd());
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
    let instruction =
        |code, registers, offset, immediate| Instruction { code, registers, offset, immediate };
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

/// `struct bpf_insn`: source register in the upper half of `registers`.
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
