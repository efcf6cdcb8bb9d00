//! `bpf(2)`: all that is not safe here.
//!
//! Called by `tracker`. Loaded by system calls alone, as the XDP program of `backend` is.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::program::Instruction;

/// From `linux/bpf.h`.
const MAP_CREATE: i32 = 0;
const PROG_LOAD: i32 = 5;
const RAW_TRACEPOINT_OPEN: i32 = 17;
const ENABLE_STATS: i32 = 32;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_TRACING: u32 = 26;
const ATTACH_RAW_TRACEPOINT: u32 = 23;
const STATS_RUN_TIME: u32 = 0;
/// Of the program alone, besides the project's own: the kernel shows its structures to none that may not
/// be used under the GPL.
const LICENCE: &CStr = c"Dual MIT/GPL";

/// A map of one value of so many bytes, which can be mapped.
pub(crate) fn make_map(bytes: u32) -> Result<OwnedFd, Errno> {
    let map_type = MAP_TYPE_ARRAY;
    let flags = MAP_MMAPABLE;
    bpf(MAP_CREATE, &MapCreate { map_type, key_size: 4, value_size: bytes, entries_max: 1, flags })
}

/// Has the kernel check the program for the tracepoint whose type has that number.
pub(crate) fn load(instructions: &[Instruction], tracepoint: u32) -> Result<OwnedFd, Errno> {
    let mut name = [0u8; 16];
    name[..8].copy_from_slice(b"runstate");
    bpf(
        PROG_LOAD,
        &ProgLoad {
            prog_type: PROG_TYPE_TRACING,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            licence: LICENCE.as_ptr() as u64,
            name,
            expected_attach: ATTACH_RAW_TRACEPOINT,
            attach_type_id: tracepoint,
            ..ProgLoad::default()
        },
    )
}

/// Attaches it, until what this returns is closed.
pub(crate) fn attach(program: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let program = program.as_raw_fd() as u32;
    bpf(RAW_TRACEPOINT_OPEN, &RawTracepoint { name: 0, program, pad: 0 })
}

/// Has the kernel measure all programs, until what this returns is closed.
pub(crate) fn measure() -> Result<OwnedFd, Errno> {
    bpf(ENABLE_STATS, &EnableStats { what: STATS_RUN_TIME })
}

/// What the kernel writes of a descriptor.
pub(crate) fn facts_of(fd: impl AsFd) -> std::io::Result<String> {
    std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()))
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
    name: [u8; 16],
    interface: u32,
    expected_attach: u32,
    types: u32,
    functions_size: u32,
    functions: u64,
    functions_count: u32,
    lines_size: u32,
    lines: u64,
    lines_count: u32,
    attach_type_id: u32,
}

#[repr(C)]
struct RawTracepoint {
    name: u64,
    program: u32,
    pad: u32,
}

#[repr(C)]
struct EnableStats {
    what: u32,
}

/// A call that answers with a descriptor.
fn bpf<T>(command: i32, attributes: &T) -> Result<OwnedFd, Errno> {
    // The kernel may write to some unions, so it gets a copy of its own, of a size that it knows.
    const SIZE: usize = 128;
    const { assert!(size_of::<T>() <= SIZE && align_of::<T>() <= align_of::<u64>()) };
    let mut copy = [MaybeUninit::<u64>::zeroed(); SIZE / 8];
    let from: *const T = attributes;
    // SAFETY: `copy` is as large as any of the structures above, and aligned for them.
    unsafe { copy.as_mut_ptr().cast::<T>().copy_from_nonoverlapping(from, 1) };
    // SAFETY: the kernel reads and writes at most so many bytes; what they point to are values of the
    // caller's, which outlive the call, and of which it only reads.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, command, copy.as_mut_ptr(), size_of::<T>()) };
    if answer < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(errno));
    }
    // SAFETY: the kernel has just made it for us, closed at `exec`.
    Ok(unsafe { OwnedFd::from_raw_fd(answer as i32) })
}
