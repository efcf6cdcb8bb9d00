//! How long a thread runs when others want its processor: the shortest time that the kernel gives.

use std::io;

/// The least that the kernel takes.
const TURN_NS: u64 = 100_000;

/// `struct sched_attr` as of its first version (sched_setattr(2)).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of a usual thread: its slice, nanoseconds, from Linux 6.12 on.
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Gives the calling thread, and those that it makes from now on, short turns: then what wakes such a
/// thread has it run at once and not when the turn of another ends, which is up to a tick of 4 ms later.
/// Its share of the processor stays what it was. Nothing changes before Linux 6.12, or for a thread of a
/// real-time class.
///
/// # Errors
/// What the kernel, or a filter before it, said.
pub fn take_short_turns() -> io::Result<()> {
    let size = size_of::<Attributes>() as u32;
    let mut own = Attributes::default();
    // SAFETY: the kernel writes at most `size` bytes to `own`, which has as many and any bytes may be.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut own, size, 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    if own.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    (own.size, own.runtime_ns) = (size, TURN_NS);
    // SAFETY: the kernel reads `size` bytes of `own`, which are there.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const own, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_takes_short_turns_and_keeps_what_else_it_was() {
        let own = || {
            let mut own = Attributes::default();
            let size = size_of::<Attributes>() as u32;
            // SAFETY: as above.
            let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut own, size, 0) };
            assert_eq!(got, 0);
            own
        };
        let turned = std::thread::spawn(move || {
            let before = own();
            take_short_turns().unwrap();
            let after = own();
            assert_eq!((before.policy, before.nice), (after.policy, after.nice));
            let made = std::thread::spawn(move || own().runtime_ns).join().unwrap();
            assert_eq!(made, after.runtime_ns);
            (before.runtime_ns, after.runtime_ns)
        });
        // A kernel before 6.12 tells of no slice and takes none.
        let (before, after) = turned.join().unwrap();
        assert!(before == 0 || after == TURN_NS, "{before} {after}");
    }
}
