//! Several sockets with one address, each of which gets the frames of its own sessions: the classic BPF program that
//! says which, and the two ways to have the kernel run it.
//!
//! Not what is in a frame (`remote`), nor the sockets (`link::socket`, which calls it).

use std::os::fd::{AsRawFd, BorrowedFd};

use remote::iohost::SHARDS_MAX;
use remote::wire::Kind;
use rustix::io::Errno;

use super::interface::{result, set_option};

/// From `linux/if_packet.h`.
const FANOUT_CBPF: u32 = 6;
const FANOUT_UNIQUE_ID: u32 = 0x2000;
const FANOUT_ID_BITS: u32 = 0xffff;

/// Instructions of the program.
const STEPS: usize = 7;
/// Where they are in a frame: its kind, and the byte of its session's number whose upper half is the shard.
pub(super) const KIND_AT: u32 = 1;
pub(super) const SHARD_AT: u32 = 7;
pub(super) const SHARD_BITS: u32 = 4;

const _: () = assert!(SHARDS_MAX == 1 << SHARD_BITS);

/// Says to which of so many sockets a frame goes that begins at byte `start` of what the program sees: the shard of its
/// session, and the first one if it has none. Whatever is too short goes there, too, as the kernel has it.
fn program(start: u32, shards: u32) -> [libc::sock_filter; STEPS] {
    let load = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let jump = libc::BPF_JMP | libc::BPF_K;
    let answer = libc::BPF_RET;
    let step = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    [
        step(load, start + KIND_AT),
        libc::sock_filter { jf: 3, ..step(jump | libc::BPF_JEQ, Kind::Sealed as u32) },
        step(load, start + SHARD_AT),
        step(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, SHARD_BITS),
        libc::sock_filter { jf: 1, ..step(jump | libc::BPF_JGE, shards) },
        step(answer | libc::BPF_K, 0),
        step(answer | libc::BPF_A, 0),
    ]
}

/// Steers the datagrams of all sockets that share this one's address (`SO_REUSEPORT`), in the order in which they were
/// bound. So many there are, and no more until the last was closed.
pub(crate) fn steer_datagrams(socket: BorrowedFd<'_>, shards: u32) -> Result<(), Errno> {
    attach(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &mut program(0, shards))
}

/// Begins a fan-out group of packet sockets: its number. A frame is behind `head` bytes.
pub(crate) fn begin_fan_out(socket: BorrowedFd<'_>, head: u32, shards: u32) -> Result<u32, Errno> {
    let kind = (FANOUT_CBPF | FANOUT_UNIQUE_ID) << 16;
    set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &kind)?;
    attach(socket, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &mut program(head, shards))?;
    let (mut group, mut len) = (0_u32, size_of::<u32>() as libc::socklen_t);
    let place = (&raw mut group).cast();
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_FANOUT);
    // SAFETY: the kernel writes at most `len` bytes to `group`.
    result(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, place, &raw mut len) })?;
    Ok(group & FANOUT_ID_BITS)
}

/// Joins a group: the sockets of one are counted in the order in which they join.
pub(crate) fn join_fan_out(socket: BorrowedFd<'_>, group: u32) -> Result<(), Errno> {
    set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &(group | FANOUT_CBPF << 16))
}

fn attach(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    program: &mut [libc::sock_filter],
) -> Result<(), Errno> {
    let (len, filter) = (program.len() as u16, program.as_mut_ptr());
    // The kernel copies the program, which outlives the call.
    set_option(socket, level, option, &libc::sock_fprog { len, filter })
}
