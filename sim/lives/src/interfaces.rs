//! Interfaces of hosts, which daemons open as taps or beside the host's own stack: there or gone, free or not; and whoever
//! is behind each, one station of the `Lan`.
//!
//! A descriptor is the end of a pipe, so that whoever has it, in whatever process or on its way to one, holds its
//! interface. Not here: when what goes wrong (`life::trouble`), and what may arrive (`guests::Lan`).

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backend::net::{HostOpenError, HostPort, HostSource, Simulated, Why, Wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// Interfaces that a host has from its start: two of hardware, and two taps that an operator made.
const FOUND: [&str; 4] = ["e0", "e1", "t0", "t4"];
/// The first of the stations behind interfaces.
const STATION: u64 = 5_000;
/// Frames that wait on the wire at most, in each direction.
const ROOM: usize = 4;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Interfaces(Mutex<BTreeMap<Place, Interface>>);

/// A host, and a name on it.
type Place = (u8, String);

#[derive(Debug, Default)]
struct Interface {
    station: u64,
    /// How often there was one of that name.
    count: u32,
    is_there: bool,
    /// A daemon made it.
    is_made: bool,
    /// A daemon took it away that had not made it.
    is_robbed: bool,
    /// It cannot be opened.
    refuses: bool,
    ends: Vec<End>,
    coming: VecDeque<Vec<u8>>,
    going: VecDeque<Vec<u8>>,
}

/// The other end of a descriptor.
#[derive(Debug)]
struct End {
    fd: OwnedFd,
    /// Which descriptor that is.
    number: u64,
    /// With it an XDP program is at the interface.
    has_program: bool,
}

/// A daemon's end.
#[derive(Debug)]
struct Port {
    all: Arc<Interfaces>,
    at: Place,
    /// Which of that name it is.
    count: u32,
    is_tap: bool,
    was_made: bool,
    some: OwnedFd,
}

impl Interface {
    fn set_there(&mut self, is_there: bool) {
        self.count += u32::from(is_there);
        (self.is_there, self.is_made) = (is_there, false);
        (self.coming, self.going) = (VecDeque::new(), VecDeque::new());
        self.wake();
    }

    /// Whether somebody has a descriptor of it.
    fn is_held(&mut self) -> bool {
        self.ends.retain(|end| !is_alone(&end.fd));
        !self.ends.is_empty()
    }

    /// Whether an XDP program is at it. A packet socket keeps none away.
    fn has_program(&mut self) -> bool {
        self.is_held() && self.ends.iter().any(|end| end.has_program)
    }

    fn wake(&self) {
        for end in &self.ends {
            // Only fails when it is readable as it can be, or nobody is there to read.
            let _ = rustix::io::write(&end.fd, &[1]);
        }
    }
}

/// Whether nobody has the other end of a pipe.
fn is_alone(end: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(end, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = poll(&mut polled, Some(&at_once));
    polled[0].revents().contains(PollFlags::ERR)
}

impl Interfaces {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Place, Interface>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on<T>(&self, host: u8, name: &str, with: impl FnOnce(&mut Interface) -> T) -> T {
        let mut all = self.all();
        let station = STATION + all.len() as u64;
        let made = || Interface { station, ..Interface::default() };
        with(all.entry((host, name.to_string())).or_insert_with(made))
    }

    /// A host begins, or its power comes back: what daemons had made is gone.
    pub(crate) fn boot(&self, host: u8) {
        for name in self.names(host) {
            self.on(host, &name, |it| it.set_there(false));
        }
        self.restore(host);
    }

    /// All is there that was, and can be opened.
    pub(crate) fn restore(&self, host: u8) {
        for name in FOUND.into_iter().map(String::from).chain(self.names(host)) {
            self.on(host, &name, |it| {
                it.refuses = false;
                if FOUND.contains(&name.as_str()) && !it.is_there {
                    it.set_there(true);
                }
            });
        }
    }

    /// Those that there are or were on a host.
    pub(crate) fn names(&self, host: u8) -> Vec<String> {
        let all = self.all();
        all.keys().filter(|(of, _)| *of == host).map(|(_, name)| name.clone()).collect()
    }

    /// The station behind one.
    pub(crate) fn station(&self, host: u8, name: &str) -> u64 {
        self.on(host, name, |it| it.station)
    }

    /// Its number among all, if it is there. No such number is in this machine's `/sys`.
    pub(crate) fn index(&self, host: u8, name: &str) -> Option<u32> {
        self.on(host, name, |it| it.is_there.then_some(it.station as u32))
    }

    /// Somebody deletes it.
    pub(crate) fn delete(&self, host: u8, name: &str) {
        self.on(host, name, |it| it.set_there(false));
    }

    /// It can be opened by nobody any more, or by anybody again.
    pub(crate) fn refuse(&self, host: u8, name: &str, refuses: bool) {
        self.on(host, name, |it| it.refuses = refuses);
    }

    /// A tap that a daemon made, and that is there, if there is one.
    pub(crate) fn made(&self, host: u8) -> Option<String> {
        let all = self.all();
        let mut made = all.iter().filter(|((of, _), it)| *of == host && it.is_made);
        made.next().map(|((_, name), _)| name.clone())
    }

    /// A tap of somebody else's that a daemon took away.
    pub(crate) fn robbed(&self, host: u8) -> Option<String> {
        let all = self.all();
        let mut robbed = all.iter().filter(|((of, _), it)| *of == host && it.is_robbed);
        robbed.next().map(|((_, name), _)| name.clone())
    }

    /// A frame that has gone there.
    pub(crate) fn take(&self, host: u8, name: &str) -> Option<Vec<u8>> {
        self.on(host, name, |it| it.going.pop_front())
    }

    /// Whether a frame may come from there.
    pub(crate) fn has_room(&self, host: u8, name: &str) -> bool {
        self.on(host, name, |it| it.is_there && it.is_held() && it.coming.len() < ROOM)
    }

    /// A frame comes from there.
    pub(crate) fn bring(&self, host: u8, name: &str, frame: Vec<u8>) {
        self.on(host, name, |it| {
            it.coming.push_back(frame);
            it.wake();
        });
    }

    /// As the kernel does it.
    pub(crate) fn open(
        self: &Arc<Interfaces>,
        host: u8,
        source: &HostSource,
    ) -> Result<HostPort, HostOpenError> {
        let (kind, name) = match source {
            HostSource::Tap { name, .. } => ("tap", name),
            HostSource::Packet { interface } | HostSource::Xdp { interface, .. } => {
                ("interface", interface)
            }
            HostSource::Null { .. } => return HostPort::open(source),
        };
        let failed = |why| HostOpenError { kind, interface: name.clone(), why };
        let is_tap = kind == "tap";
        let mut was_made = matches!(source, HostSource::Tap { ours: true, .. });
        let opened = self.on(host, name, |it| {
            if it.refuses {
                return Err(Why::Os { what: "open it", source: Errno::NOMEM });
            }
            match source {
                HostSource::Tap { .. } if it.is_held() => return Err(Why::TapInUse),
                HostSource::Xdp { .. } if it.has_program() => return Err(Why::ProgramInUse),
                HostSource::Tap { .. } if !it.is_there => {
                    it.set_there(true);
                    (it.is_made, was_made) = (true, true);
                }
                _ if !it.is_there => return Err(Why::Missing),
                _ => {}
            }
            let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
            let (some, fd) = pipe.map_err(|source| Why::Os { what: "open it", source })?;
            let has_program = matches!(source, HostSource::Xdp { .. });
            it.ends.push(End { fd, number: number(&some), has_program });
            it.wake();
            Ok((some, it.count))
        });
        let (some, count) = opened.map_err(failed)?;
        Ok(self.port((host, name.clone()), count, (is_tap, was_made), some))
    }

    /// A tap of another process, if the descriptor is of that.
    pub(crate) fn inherit(
        self: &Arc<Interfaces>,
        host: u8,
        name: &str,
        some: OwnedFd,
        was_made: bool,
    ) -> Result<HostPort, HostOpenError> {
        let count = self.on(host, name, |it| {
            let of = number(&some);
            it.ends.iter().any(|end| end.number == of).then_some(it.count)
        });
        let other = HostOpenError { kind: "tap", interface: name.into(), why: Why::NotATap };
        Ok(self.port((host, name.into()), count.ok_or(other)?, (true, was_made), some))
    }

    fn port(
        self: &Arc<Interfaces>,
        at: Place,
        count: u32,
        (is_tap, was_made): (bool, bool),
        some: OwnedFd,
    ) -> HostPort {
        let all = Arc::clone(self);
        let port = Port { all, at, count, is_tap, was_made, some };
        HostPort::Simulated(Box::new(Simulated::new(Box::new(port))))
    }
}

/// The same for all descriptors of an end of a pipe.
fn number(fd: &OwnedFd) -> u64 {
    fstat(fd).map_or(0, |stat| stat.st_ino)
}

impl Port {
    fn on<T>(&self, with: impl FnOnce(Option<&mut Interface>) -> T) -> T {
        self.all.on(self.at.0, &self.at.1, |it| {
            let is_this = it.is_there && it.count == self.count;
            with(Some(it).filter(|_| is_this))
        })
    }
}

impl Wire for Port {
    fn receive(&mut self) -> Option<Vec<u8>> {
        let frame = self.on(|it| it?.coming.pop_front());
        if frame.is_none() && !self.is_gone() {
            let _ = rustix::io::read(&self.some, &mut [0; 64]);
        }
        frame
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        self.on(|it| {
            let room = it.filter(|it| it.going.len() < ROOM);
            room.map(|it| it.going.push_back(frame.to_vec())).is_some()
        })
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.some.as_fd()
    }

    fn is_gone(&self) -> bool {
        self.on(|it| it.is_none())
    }

    fn made(&self) -> Option<bool> {
        self.is_tap.then_some(self.was_made)
    }

    fn remove(&mut self) {
        if self.was_made {
            self.on(|it| {
                let Some(it) = it else { return };
                // Of a later one of that name nobody knows whose it is: a mark holds for one boot.
                it.is_robbed |= !it.is_made && it.count == 1;
                it.set_there(false);
            });
        }
    }
}

#[cfg(test)]
mod tests;
