//! What the control loop waits for, and the signals that end it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::Timespec;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

/// Events taken by one wait; the rest come with the next.
const EVENTS: usize = 128;

/// Who has something for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A connection waits at the socket of this device.
    Listener(u32),
    /// A front-end of this device.
    Connection(u32, u32),
    /// This device could not make data stable.
    Unsynced(u32),
    /// This disk was let go.
    Parted(u32),
    /// A sidecore.
    Core(u32),
    /// The API's thread.
    Calls,
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
    /// The process that is to take over.
    Heir,
    /// The thread that shakes hands.
    Greeter,
    /// What a client wrote on this disk was made stable.
    Synced(u32),
    /// A VMM's QMP.
    Qmp(u32),
    /// The process that was taken over from, and could take its devices back.
    Guard,
    /// A process that starts heirs.
    Launcher(u32),
    /// Threads that open and close images.
    Openers,
    /// The thread that looks at the folder of state.
    Folder,
}

impl Token {
    fn pack(self) -> u64 {
        let (kind, device, connection) = match self {
            Token::Listener(device) => (0, device, 0),
            Token::Connection(device, connection) => (1, device, connection),
            Token::Core(core) => (2, core, 0),
            Token::Calls => (3, 0, 0),
            Token::Stop => (4, 0, 0),
            Token::Reload => (5, 0, 0),
            Token::Unsynced(device) => (6, device, 0),
            Token::Heir => (7, 0, 0),
            Token::Parted(device) => (8, device, 0),
            Token::Greeter => (9, 0, 0),
            Token::Synced(device) => (10, device, 0),
            Token::Qmp(id) => (11, 0, id),
            Token::Guard => (12, 0, 0),
            Token::Launcher(at) => (13, 0, at),
            Token::Openers => (14, 0, 0),
            Token::Folder => (15, 0, 0),
        };
        kind << 56 | u64::from(device & 0xff_ffff) << 32 | u64::from(connection)
    }

    fn unpack(bits: u64) -> Token {
        let (device, connection) = ((bits >> 32) as u32 & 0xff_ffff, bits as u32);
        match bits >> 56 {
            0 => Token::Listener(device),
            1 => Token::Connection(device, connection),
            2 => Token::Core(device),
            3 => Token::Calls,
            4 => Token::Stop,
            6 => Token::Unsynced(device),
            7 => Token::Heir,
            8 => Token::Parted(device),
            9 => Token::Greeter,
            10 => Token::Synced(device),
            11 => Token::Qmp(connection),
            12 => Token::Guard,
            13 => Token::Launcher(connection),
            14 => Token::Openers,
            15 => Token::Folder,
            _ => Token::Reload,
        }
    }
}

/// Numbers of devices are below this, so that a token holds one.
pub(crate) const DEVICES_END: u32 = 1 << 24;

pub(crate) struct Poll {
    set: OwnedFd,
    /// Readable after SIGTERM or SIGINT, and after SIGHUP.
    signals: [UnixStream; 2],
}

impl Poll {
    /// An empty set that also hears the signals.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn new() -> io::Result<Poll> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let (stop, stop_end) = UnixStream::pair()?;
        let (reload, reload_end) = UnixStream::pair()?;
        let poll = Poll { set, signals: [stop, reload] };
        for (end, token) in poll.signals.iter().zip([Token::Stop, Token::Reload]) {
            end.set_nonblocking(true)?;
            poll.add(end, token)?;
        }
        #[cfg(any(test, feature = "simulated"))]
        if crate::simulated::now().is_some() {
            // Signals are the process's, and it has other lives in it.
            crate::simulated::hold([stop_end, reload_end]);
            return Ok(poll);
        }
        for (signal, end) in
            [(SIGTERM, stop_end.try_clone()?), (SIGINT, stop_end), (SIGHUP, reload_end)]
        {
            signal_hook::low_level::pipe::register(signal, end)?;
        }
        // A file beyond the limit on file sizes is an error to its guest, not the end of all.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        Ok(poll)
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.set, fd, EventData::new_u64(token.pack()), EventFlags::IN)?)
    }

    /// Waits for it no more, though it may stay open.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.set, fd);
    }

    /// Changes what is waited for: something to read, room to write. Neither: only its end.
    pub(crate) fn want(&self, fd: impl AsFd, token: Token, read: bool, write: bool) {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, read);
        flags.set(EventFlags::OUT, write);
        // Only fails for a descriptor that is not in the set, which then says nothing either.
        let _ = epoll::modify(&self.set, fd, EventData::new_u64(token.pack()), flags);
    }

    /// Waits, at most so long. Each token with whether its other side has gone.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Vec<(Token, bool)> {
        let mut events =
            [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let timeout = timeout.map(timespec);
        // Interrupted by a signal: the loop looks again.
        let found = epoll::wait(&self.set, &mut events[..], timeout.as_ref()).unwrap_or(0);
        let token = |event: &Event| {
            let flags = event.flags;
            let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            (Token::unpack(event.data.u64()), gone)
        };
        events.iter().take(found).map(token).collect()
    }

    /// Waits so long, for nothing.
    pub(crate) fn pause(&self, time: Duration) {
        #[cfg(any(test, feature = "simulated"))]
        if crate::simulated::now().is_some() {
            return crate::simulated::pass(time);
        }
        let _ = rustix::event::poll(&mut [], Some(&timespec(time)));
    }

    /// Takes the signals of `token` that came, so that they are not heard again.
    pub(crate) fn clear_signals(&self, token: Token) {
        let [stop, reload] = &self.signals;
        let signal = if token == Token::Stop { stop } else { reload };
        while rustix::io::read(signal, &mut [0; 16]).is_ok_and(|read| read > 0) {}
    }
}

/// A time as the kernel takes it.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_packing() {
        for token in [
            Token::Listener(DEVICES_END - 1),
            Token::Connection(7, u32::MAX),
            Token::Core(3),
            Token::Unsynced(9),
            Token::Parted(10),
            Token::Greeter,
            Token::Synced(10),
            Token::Qmp(u32::MAX),
            Token::Calls,
            Token::Stop,
            Token::Reload,
            Token::Heir,
            Token::Guard,
            Token::Launcher(3),
            Token::Openers,
            Token::Folder,
        ] {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }

    fn ready(poll: &Poll) -> Vec<(Token, bool)> {
        poll.wait(Some(Duration::ZERO))
    }

    #[test]
    fn what_is_waited_for_is_told_until_it_is_not() {
        let stage = crate::simulated::Stage::set(|_| Duration::ZERO);
        let poll = Poll::new().expect("a set");
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set");
        let token = Token::Connection(3, 9);
        poll.add(&ours, token).expect("added");
        assert!(poll.add(&ours, token).is_err(), "once");
        assert_eq!(ready(&poll), []);
        rustix::io::write(&theirs, b"x").expect("written");
        assert_eq!(ready(&poll), [(token, false)]);
        assert_eq!(ready(&poll), [(token, false)], "until it was read");
        // A front-end that is not to be heard may be waited for to take what it is told, or for its end alone.
        poll.want(&ours, token, false, false);
        assert_eq!(ready(&poll), []);
        poll.want(&ours, token, false, true);
        assert_eq!(ready(&poll), [(token, false)]);
        poll.want(&ours, token, false, false);
        drop(theirs);
        assert_eq!(ready(&poll), [(token, true)], "its other side has gone");
        poll.remove(&ours);
        assert_eq!(ready(&poll), []);
        // One that is not there any more is neither changed nor removed.
        poll.want(&ours, token, true, true);
        poll.remove(&ours);
        assert_eq!(ready(&poll), []);
        drop(stage);
    }

    #[test]
    fn more_than_one_wait_tells_come_with_the_next() {
        let stage = crate::simulated::Stage::set(|_| Duration::ZERO);
        let poll = Poll::new().expect("a set");
        let pairs: Vec<_> = (0..EVENTS as u32 + 50)
            .map(|at| {
                let (ours, theirs) = UnixStream::pair().expect("a pair");
                poll.add(&ours, Token::Listener(at)).expect("added");
                rustix::io::write(&theirs, b"x").expect("written");
                (ours, theirs)
            })
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..4 {
            let told = ready(&poll);
            assert!(told.len() <= EVENTS);
            for (token, _) in told {
                let Token::Listener(at) = token else { panic!("{token:?}") };
                // Heard, as by the loop: nothing more is there.
                let _ = rustix::io::read(&pairs[at as usize].0, &mut [0; 8]);
                seen.insert(at);
            }
        }
        assert_eq!(seen.len(), pairs.len(), "nobody is forgotten");
        drop(stage);
    }

    #[test]
    fn a_pause_lets_time_pass_and_an_endless_wait_is_ended_by_what_comes() {
        let stage = crate::simulated::Stage::set(|_| Duration::ZERO);
        let poll = Poll::new().expect("a set");
        let before = stage.now();
        poll.pause(Duration::from_millis(7));
        assert_eq!(stage.now().0 - before.0, 7_000_000);
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        poll.add(&ours, Token::Heir).expect("added");
        drop(theirs);
        assert_eq!(poll.wait(None), [(Token::Heir, true)]);
        assert_eq!(poll.wait(Some(Duration::MAX)), [(Token::Heir, true)], "as long as can be said");
        poll.clear_signals(Token::Stop);
        poll.clear_signals(Token::Reload);
    }
}
