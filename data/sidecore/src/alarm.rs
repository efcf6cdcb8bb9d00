//! A signal every 10 ms to the thread that makes it, so that no system call of it waits for longer.
//!
//! The one that could is the call to a guest: its eventfd is shared with the front-end, which can make
//! it block and fill its counter. An `eventfd_write` that waits ends with `EINTR` at a signal with a
//! handler; one that does not wait never does. The handler does nothing. Not a clock: nothing is
//! counted or timed by it.
//!
//! Used by `publish` before a call, and by `rest`: the first tick that finds the sidecore asleep stops
//! it, so that an idle one stays asleep and a short sleep costs no system call. By control's thread that
//! tells a front-end of an error, whose eventfd is as much the front-end's.
#![expect(unsafe_code, reason = "timers and signal handlers have no safe interface here")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// How long a call may wait.
pub(crate) const TICK_NS: i64 = 10_000_000;
/// Ignored by default, so that a stray one does no harm. It interrupts nothing of other threads: the
/// timer names its thread.
const SIGNAL: i32 = libc::SIGURG;

/// The timer of one thread, made on it.
#[derive(Debug)]
pub struct Alarm {
    timer: libc::timer_t,
    runs: bool,
}

impl Alarm {
    /// A timer for this thread, not running.
    ///
    /// # Errors
    /// What the kernel said: no memory, or `RLIMIT_SIGPENDING`.
    pub fn new() -> io::Result<Alarm> {
        handle()?;
        // SAFETY: all zeroes is a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both point to whole values of the right type.
        match unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) } {
            0 => Ok(Alarm { timer, runs: false }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes it tick, if it does not.
    #[inline]
    pub fn start(&mut self) {
        if !self.runs {
            self.set(TICK_NS);
        }
    }

    /// Makes it stop, if it ticks.
    pub fn stop(&mut self) {
        if self.runs {
            self.set(0);
        }
    }

    /// Whether it ticks.
    #[cfg(test)]
    pub(crate) fn is_running(&self) -> bool {
        self.runs
    }

    #[cold]
    fn set(&mut self, interval_ns: i64) {
        let interval = libc::timespec { tv_sec: 0, tv_nsec: interval_ns };
        let times = libc::itimerspec { it_interval: interval, it_value: interval };
        // SAFETY: the timer is ours and `times` whole. It fails for neither, so the result says
        // nothing.
        unsafe { libc::timer_settime(self.timer, 0, &times, ptr::null_mut()) };
        self.runs = interval_ns > 0;
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: made by `new`, deleted once.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// Installs the handler, without `SA_RESTART`, and lets the signal through to this thread.
fn handle() -> io::Result<()> {
    extern "C" fn nothing(_signal: i32) {}
    // SAFETY: all zeroes is a valid `sigaction` and a valid `sigset_t`.
    let (mut action, mut set): (libc::sigaction, libc::sigset_t) =
        unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(i32) = nothing;
    action.sa_sigaction = handler as usize;
    // SAFETY: `action` and `set` are whole; the handler does nothing, so it is async-signal-safe.
    unsafe {
        if libc::sigaction(SIGNAL, &action, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, SIGNAL);
        match libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut()) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}
