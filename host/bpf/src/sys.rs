//! `bpf(2)` and the events that programs hang on: all that is not safe here.
//!
//! Called by `vcpu_tracker` and `exits`. Loaded by system calls alone, as the XDP program of `backend` is.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::code::Instruction;

/// From `linux/bpf.h`.
const MAP_CREATE: i32 = 0;
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const MAP_GET_NEXT_KEY: i32 = 4;
const PROG_LOAD: i32 = 5;
const RAW_TRACEPOINT_OPEN: i32 = 17;
const ENABLE_STATS: i32 = 32;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_TRACEPOINT: u32 = 5;
const PROG_TYPE_TRACING: u32 = 26;
const ATTACH_RAW_TRACEPOINT: u32 = 23;
const STATS_RUN_TIME: u32 = 0;
/// From `linux/perf_event.h`.
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
/// Of programs alone, besides the project's own: the kernel shows its structures to none that may not
/// be used under the GPL.
const LICENCE: &CStr = c"Dual MIT/GPL";
/// Bytes of what the kernel says of a program that it refuses.
const LOG_BYTES: usize = 1 << 16;
/// Bytes of a key, and of a value, at most.
const ITEM_BYTES_MAX: u32 = 4096;

/// A map of one value of so many bytes, which can be mapped.
///
/// # Errors
/// The kernel's.
pub fn make_mapped(bytes: u32) -> Result<OwnedFd, Errno> {
    let map_type = MAP_TYPE_ARRAY;
    let flags = MAP_MMAPABLE;
    made(MAP_CREATE, &MapCreate { map_type, key_size: 4, value_size: bytes, entries_max: 1, flags })
}

/// What keys of a map are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Numbers from 0, of four bytes; each value is there from the start.
    Numbers,
    /// Of so many bytes, found by their hash.
    Hashed(u32),
}

/// A key of a map, and its value.
pub type Item = (Vec<u8>, Vec<u8>);

/// A map that is looked at by system calls.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl Map {
    /// Makes one of so many values at most. Its memory is taken at once.
    ///
    /// # Errors
    /// The kernel's; INVAL for keys or values of more than 4096 bytes.
    pub fn new(keys: Keys, value_bytes: u32, entries_max: u32) -> Result<Map, Errno> {
        let (map_type, key_size) = match keys {
            Keys::Numbers => (MAP_TYPE_ARRAY, 4),
            Keys::Hashed(bytes) => (MAP_TYPE_HASH, bytes),
        };
        if key_size > ITEM_BYTES_MAX || value_bytes > ITEM_BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let create =
            MapCreate { map_type, key_size, value_size: value_bytes, entries_max, flags: 0 };
        let fd = made(MAP_CREATE, &create)?;
        Ok(Map { fd, key_bytes: key_size as usize, value_bytes: value_bytes as usize })
    }

    /// The number by which a program names it.
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Puts a value in.
    ///
    /// # Errors
    /// The kernel's; INVAL where lengths are not the map's.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        if key.len() != self.key_bytes || value.len() != self.value_bytes {
            return Err(Errno::INVAL);
        }
        let element = self.element(key.as_ptr() as u64, value.as_ptr() as u64);
        bpf(MAP_UPDATE_ELEM, &element).map(|_| ())
    }

    /// All keys with their values. To be asked for while no program writes: a look may keep programs from
    /// running on this processor.
    ///
    /// # Errors
    /// The kernel's.
    pub fn all(&self) -> Result<Vec<Item>, Errno> {
        let mut found: Vec<Item> = Vec::new();
        loop {
            let before = found.last().map_or(0, |(key, _)| key.as_ptr() as u64);
            let (mut key, mut value) = (vec![0u8; self.key_bytes], vec![0u8; self.value_bytes]);
            match bpf(MAP_GET_NEXT_KEY, &self.element(before, key.as_mut_ptr() as u64)) {
                Err(Errno::NOENT) => return Ok(found),
                answer => answer?,
            };
            let element = self.element(key.as_mut_ptr() as u64, value.as_mut_ptr() as u64);
            bpf(MAP_LOOKUP_ELEM, &element)?;
            found.push((key, value));
        }
    }

    fn element(&self, key: u64, value: u64) -> MapElement {
        MapElement { map: self.fd.as_raw_fd() as u32, pad: 0, key, value, flags: 0 }
    }
}

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tracepoint's arguments, whose type has that number in the kernel's description of itself.
    Arguments(u32),
    /// A tracepoint's record.
    Record,
}

/// Has the kernel check the program. `name` has at most 15 bytes; what is longer is cut.
///
/// # Errors
/// The kernel's.
pub fn load(instructions: &[Instruction], kind: Kind, name: &str) -> Result<OwnedFd, Errno> {
    made(PROG_LOAD, &program(instructions, kind, name))
}

/// Has the kernel say why it refuses a program: the last lines of that.
pub fn verdict(instructions: &[Instruction], kind: Kind) -> String {
    let mut log = vec![0u8; LOG_BYTES];
    let (log_level, log_size) = (1, LOG_BYTES as u32);
    let program = program(instructions, kind, "verdict");
    let asked =
        made(PROG_LOAD, &ProgLoad { log_level, log_size, log: log.as_mut_ptr() as u64, ..program });
    drop(asked);
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = text.trim_matches(['\0', '\n']).lines().collect();
    lines.get(lines.len().saturating_sub(6)..).unwrap_or_default().join("; ")
}

fn program(instructions: &[Instruction], kind: Kind, told: &str) -> ProgLoad {
    let mut name = [0u8; 16];
    name.iter_mut().zip(told.bytes().take(15)).for_each(|(to, from)| *to = from);
    let (prog_type, expected_attach, attach_type_id) = match kind {
        Kind::Arguments(tracepoint) => (PROG_TYPE_TRACING, ATTACH_RAW_TRACEPOINT, tracepoint),
        Kind::Record => (PROG_TYPE_TRACEPOINT, 0, 0),
    };
    ProgLoad {
        prog_type,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        licence: LICENCE.as_ptr() as u64,
        name,
        expected_attach,
        attach_type_id,
        ..ProgLoad::default()
    }
}

/// Attaches one of [`Kind::Arguments`], until what this returns is closed.
///
/// # Errors
/// The kernel's.
pub fn attach(program: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let program = program.as_raw_fd() as u32;
    made(RAW_TRACEPOINT_OPEN, &RawTracepoint { name: 0, program, pad: 0 })
}

/// Attaches one of [`Kind::Record`] to the event of that number, on all processors, until what this returns is closed.
///
/// # Errors
/// The kernel's.
pub fn attach_to_event(program: BorrowedFd<'_>, event: u64) -> Result<OwnedFd, Errno> {
    let size = size_of::<PerfEvent>() as u32;
    let about = PerfEvent { kind: PERF_TYPE_TRACEPOINT, size, event, ..PerfEvent::default() };
    // A program hangs on the event and not on a processor, so any one does.
    // SAFETY: the kernel reads `size` bytes of a structure that outlives the call.
    let answer = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const about, -1, 0, -1, PERF_FLAG_FD_CLOEXEC)
    };
    let event = descriptor(answer)?;
    // SAFETY: both are descriptors, and the call touches no memory of ours.
    let answer =
        unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF as _, program.as_raw_fd()) };
    checked(answer.into()).map(|_| event)
}

/// Has the kernel measure all programs, until what this returns is closed.
///
/// # Errors
/// The kernel's.
pub fn measure() -> Result<OwnedFd, Errno> {
    made(ENABLE_STATS, &EnableStats { what: STATS_RUN_TIME })
}

/// What the kernel writes of a descriptor.
///
/// # Errors
/// It cannot be read.
pub fn facts_of(fd: impl AsFd) -> std::io::Result<String> {
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
struct MapElement {
    map: u32,
    pad: u32,
    key: u64,
    /// Or the next key.
    value: u64,
    flags: u64,
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

/// `struct perf_event_attr` as it was first, which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct PerfEvent {
    kind: u32,
    size: u32,
    event: u64,
    unused: [u64; 6],
}

/// A call that answers with a descriptor.
fn made<T>(command: i32, attributes: &T) -> Result<OwnedFd, Errno> {
    descriptor(bpf(command, attributes)?)
}

fn bpf<T>(command: i32, attributes: &T) -> Result<libc::c_long, Errno> {
    // The kernel may write to some unions, so it gets a copy of its own, of a size that it knows.
    const SIZE: usize = 128;
    const { assert!(size_of::<T>() <= SIZE && align_of::<T>() <= align_of::<u64>()) };
    let mut copy = [MaybeUninit::<u64>::zeroed(); SIZE / 8];
    let from: *const T = attributes;
    // SAFETY: `copy` is as large as any of the structures above, and aligned for them.
    unsafe { copy.as_mut_ptr().cast::<T>().copy_from_nonoverlapping(from, 1) };
    // SAFETY: the kernel reads and writes at most so many bytes; what they point to are values of the
    // callers' above, which outlive the call. It writes to keys, values and logs alone, which are as long
    // as it was told: the map's own lengths, or `log_size`.
    checked(unsafe { libc::syscall(libc::SYS_bpf, command, copy.as_mut_ptr(), size_of::<T>()) })
}

fn checked(answer: libc::c_long) -> Result<libc::c_long, Errno> {
    if answer < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(errno));
    }
    Ok(answer)
}

fn descriptor(answer: libc::c_long) -> Result<OwnedFd, Errno> {
    let answer = checked(answer)?;
    // SAFETY: the kernel has just made it for us, closed at `exec`.
    Ok(unsafe { OwnedFd::from_raw_fd(answer as i32) })
}
