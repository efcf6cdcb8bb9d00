//! A VMM at a socket of the daemon's, with a guest that is honest; the VMM is not always.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use crate::file;
use crate::kernel::{Look, Machinery};
use crate::life::Course;
use crate::rack;
use guests::{Sent, Tenant, Trace};
use random::Random;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};

/// Bytes of a message's header; the last four are the length of what follows.
const HEADER: usize = 12;

/// How long a front-end may be silent that has not said that it is one.
const SILENCE_NS_MAX: u64 = 10_000_000_000;
/// How long an answer may wait for a disk that does not answer: `drain_timeout`, as it is by itself.
const DRAIN_NS_MAX: u64 = 60_000_000_000;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn unix_socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
}

/// What a VMM is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It connects then.
    Away { until_ns: u64 },
    /// It is connected.
    There,
    /// It has sent a part of a message, and sends nothing any more before it hangs up.
    Stuck { until_ns: u64 },
    /// It has its rings stopped.
    Stopping,
    /// They are.
    Stopped { until_ns: u64 },
    /// The same, and then its guest begins anew.
    Resetting,
    /// Its guest's memory is copied, so many times more, the next of them then.
    Copying { left: u32, until_ns: u64 },
    /// It has its rings stopped for the last copy.
    Closing,
    /// Its guest goes on at another host.
    Left,
}

/// What a step of one came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    Something,
    /// The daemon has hung up.
    CutOff,
}

#[derive(Debug)]
pub(crate) struct Vmm {
    pub(crate) id: String,
    pub(crate) number: u32,
    socket_path: PathBuf,
    /// Where its disk's bytes lie, if they outlive a daemon.
    image: Option<PathBuf>,
    /// Its syncs that failed when nobody was left to be told.
    failed_unheard: u64,
    pub(crate) tenant: Tenant,
    socket: Option<OwnedFd>,
    /// Where its daemon comes, if it does.
    listener: Option<OwnedFd>,
    /// Its daemon has come, and not said anything: it may have waited for longer than a front-end may be silent, or died.
    pub(crate) is_unheard: bool,
    pub(crate) stage: Stage,
    got: Vec<u8>,
    got_fd: Option<OwnedFd>,
    /// It has done what a daemon hangs up for, or its device was to go.
    pub(crate) is_excused: bool,
    /// Its guest's driver does not know where its rings stand, and begins anew when it connects.
    is_lost: bool,
    /// Its guest is to go on at another host when it is copied.
    moves: bool,
    /// Between two copies.
    pause_ns: u64,
    /// The connection of the VMM that it came from, which is there still.
    behind: Option<OwnedFd>,
    /// When it said something last.
    spoke_ns: u64,
    /// And when it was answered first since it connected: never, if it was not.
    pub(crate) known_ns: u64,
    trace: Trace,
}

impl Vmm {
    pub(crate) fn new(
        number: u32,
        id: &str,
        (socket_path, image): (PathBuf, Option<PathBuf>),
        (sectors, queues): (u64, u16),
        random: &mut Random,
        trace: &Trace,
    ) -> Result<Vmm, String> {
        let tenant = match file::is_nic(id) {
            true => Tenant::with_nic(file::station(id), 0, random, trace)?,
            false => Tenant::new(number, (sectors, queues), image.is_some(), random, trace)?,
        };
        let stage = Stage::Away { until_ns: 0 };
        let (id, got) = (id.to_string(), Vec::new());
        let (socket, got_fd, is_excused) = (None, None, false);
        let (spoke_ns, trace) = (0, trace.clone());
        Ok(Vmm {
            id,
            number,
            socket_path,
            image,
            failed_unheard: 0,
            tenant,
            socket,
            listener: None,
            is_unheard: false,
            stage,
            got,
            got_fd,
            is_excused,
            is_lost: false,
            moves: false,
            pause_ns: 0,
            behind: None,
            spoke_ns,
            known_ns: 0,
            trace,
        })
    }

    /// Whether its guest's processors run.
    pub(crate) fn runs(&self) -> bool {
        let stands =
            [Stage::Stopping, Stage::Resetting, Stage::Closing, Stage::Left].contains(&self.stage);
        !stands && !matches!(self.stage, Stage::Stopped { .. })
    }

    /// When it does something by itself.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        match self.stage {
            Stage::Away { until_ns: u64::MAX } => None,
            Stage::Away { until_ns } | Stage::Stuck { until_ns } | Stage::Stopped { until_ns } => {
                Some(until_ns)
            }
            Stage::Copying { until_ns, .. } => Some(until_ns),
            _ => None,
        }
    }

    /// Whether it was answered since it connected.
    pub(crate) fn is_answered(&self) -> bool {
        ![0, u64::MAX].contains(&self.known_ns)
    }

    /// Whether it is connected, and has said all.
    pub(crate) fn has_said_all(&self) -> bool {
        self.tenant.is_hostile() || self.stage == Stage::There && self.tenant.has_said_all()
    }

    /// The same, and its guest waits for nothing.
    pub(crate) fn is_content(&self) -> bool {
        self.has_said_all() && (self.tenant.is_hostile() || self.tenant.waiting() == 0)
    }

    /// Its guest does something.
    ///
    /// # Errors
    /// What its device did wrong.
    pub(crate) fn act(&mut self, now_ns: u64, course: &mut Course) -> Result<bool, String> {
        if let Some(image) = &self.image {
            let Look { failures, failed_unheard, .. } = course.machinery.look(image);
            if failures > 0 {
                self.tenant.set_may_fail(true);
            }
            // Linux tells of a sync that failed once, and told the dead: who opens the image next has to believe that all
            // is well, as does its guest.
            if failed_unheard > std::mem::replace(&mut self.failed_unheard, failed_unheard) {
                self.tenant.give_up();
            }
        }
        let mut lan = course.lan.borrow_mut();
        self.tenant.act(now_ns, Some(&mut lan), &mut course.random)
    }

    /// Its daemon was killed: it connects to the next one then. Whether a sync has failed, that one may not know.
    pub(crate) fn lose_daemon(&mut self, machinery: &Machinery, until_ns: u64) {
        if self.image.as_ref().is_some_and(|image| machinery.look(image).sync_failed) {
            self.tenant.give_up();
        }
        self.hang_up(until_ns);
        self.is_excused = false;
    }

    /// The daemon of the host that its disk is on was killed.
    pub(crate) fn lose_iohost(&mut self, machinery: &Machinery) {
        if self.image.as_ref().is_some_and(|image| machinery.look(image).sync_failed) {
            self.tenant.give_up();
        }
    }

    /// The power of its host has failed: its disk holds what the cut has left, and another guest begins.
    ///
    /// # Errors
    /// It may not hold that.
    pub(crate) fn lose_power(
        &mut self,
        machinery: &Machinery,
        random: &mut Random,
        until_ns: u64,
    ) -> Result<(), String> {
        if let Some(image) = &self.image {
            let bytes = machinery.read(image, self.tenant.sectors() as usize);
            self.tenant.cut(&bytes)?;
        }
        self.hang_up(until_ns);
        self.begin_anew(random)
    }

    /// Its image holds what its guest may find there, when nothing is under way.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn judge(&mut self, machinery: &Machinery) -> Result<(), String> {
        let Some(image) = &self.image else { return Ok(()) };
        let bytes = machinery.read(image, self.tenant.sectors() as usize);
        self.tenant.judge(&bytes)
    }

    /// Its process is another one, with another guest on the same disk.
    pub(crate) fn begin_anew(&mut self, random: &mut Random) -> Result<(), String> {
        self.listener = None;
        self.tenant.begin_anew(random, &self.trace)
    }

    /// It goes, and another one that keeps no record of what is in flight comes at that time, with another guest.
    pub(crate) fn make_room(&mut self, random: &mut Random, until_ns: u64) -> Result<(), String> {
        self.hang_up(until_ns);
        self.listener = None;
        self.is_lost = false;
        self.tenant.begin_unrecorded(random, &self.trace)
    }

    /// It comes now, if it is away.
    pub(crate) fn hurry(&mut self, now_ns: u64) {
        if let Stage::Away { until_ns } = &mut self.stage {
            *until_ns = now_ns.min(*until_ns);
        }
    }

    /// It connects there from now on.
    pub(crate) fn go_to(&mut self, socket_path: PathBuf) {
        self.socket_path = socket_path;
    }

    /// Hangs up, and comes again at that time.
    pub(crate) fn hang_up(&mut self, until_ns: u64) {
        self.is_lost |= self.socket.take().is_some() && self.tenant.must_begin_anew();
        self.got.clear();
        (self.got_fd, self.known_ns) = (None, 0);
        self.tenant.hang_up();
        self.stage = Stage::Away { until_ns };
        tracing::trace!("{}: hangs up", self.id);
    }

    /// What it says and hears next.
    ///
    /// # Errors
    /// The daemon was wrong.
    pub(crate) fn step(&mut self, now_ns: u64) -> Result<Step, String> {
        match self.stage {
            Stage::Away { until_ns } if until_ns > now_ns => return Ok(Step::Nothing),
            Stage::Away { .. } => return self.connect(now_ns),
            Stage::Stuck { until_ns } if until_ns <= now_ns => {
                self.hang_up(now_ns);
                return Ok(Step::Something);
            }
            Stage::Stopping if self.tenant.has_said_all() => {
                self.stage = Stage::Stopped { until_ns: now_ns };
            }
            Stage::Stopped { until_ns } if until_ns <= now_ns => {
                self.tenant.start();
                self.stage = Stage::There;
            }
            Stage::Resetting if self.tenant.has_said_all() => {
                tracing::trace!("{}: its guest resets", self.id);
                self.tenant.restart()?;
                self.stage = Stage::There;
            }
            Stage::Copying { left, until_ns }
                if until_ns <= now_ns && self.tenant.has_said_all() =>
            {
                self.go_on_copying(left, now_ns);
            }
            Stage::Closing if self.tenant.has_said_all() => {
                self.tenant.end_copying(self.moves)?;
                self.stage = if self.moves { Stage::Left } else { Stage::There };
            }
            Stage::Left => return Ok(Step::Something),
            _ => {}
        }
        if !self.hear()? {
            // It was answered, and did not go on for long.
            self.is_excused |= self.got.len() >= HEADER && now_ns >= self.spoke_ns + SILENCE_NS_MAX;
            // Only an IOhost is silent for so long.
            let is_unanswered = rack::is_borrowed(&self.id) && !self.tenant.has_said_all();
            self.is_excused |= is_unanswered && now_ns >= self.spoke_ns + DRAIN_NS_MAX;
            return Ok(Step::CutOff);
        }
        let said = self.whole()?;
        if said {
            self.known_ns = self.known_ns.min(now_ns);
            tracing::trace!("{}: is answered", self.id);
        }
        if matches!(self.stage, Stage::Stuck { .. }) {
            return Ok(if said { Step::Something } else { Step::Nothing });
        }
        let Some(Sent { bytes, fds }) = self.tenant.say() else {
            return Ok(if said { Step::Something } else { Step::Nothing });
        };
        self.spoke_ns = now_ns;
        tracing::trace!("{}: says {}", self.id, bytes[0]);
        Ok(if self.send(&bytes, &fds) { Step::Something } else { Step::CutOff })
    }

    /// Whether it was not answered for so long since its image is another process's, which keeps it until somebody has
    /// looked at the data that was lost there.
    pub(crate) fn waits_for_image(&self, machinery: &Machinery, now_ns: u64) -> bool {
        let is_late = !self.tenant.has_said_all() && now_ns >= self.spoke_ns + DRAIN_NS_MAX;
        is_late && self.image.as_ref().is_some_and(|image| machinery.is_kept(image))
    }

    /// It is another VMM's guest from here on, at another host. That of the first one `lingers`, or is gone.
    pub(crate) fn arrive(&mut self, lingers: bool, until_ns: u64) {
        self.behind = self.socket.take().filter(|_| lingers);
        self.is_excused = false;
        self.hang_up(until_ns);
    }

    /// Has its rings stopped, for a while or to begin anew.
    pub(crate) fn halt(&mut self, resets: bool) {
        self.tenant.stop();
        tracing::trace!("{}: stops", self.id);
        self.stage = if resets { Stage::Resetting } else { Stage::Stopping };
    }

    /// Its guest's memory is to be copied so often while it runs, with a pause between, and then once more; it goes on here,
    /// or `moves`.
    pub(crate) fn begin_copying(
        &mut self,
        (times, pause_ns): (u32, u64),
        moves: bool,
        now_ns: u64,
    ) -> Result<(), String> {
        (self.moves, self.pause_ns) = (moves, pause_ns);
        self.stage = Stage::Copying { left: times, until_ns: now_ns };
        self.tenant.begin_copying()
    }

    fn go_on_copying(&mut self, left: u32, now_ns: u64) {
        match left.checked_sub(1) {
            Some(left) => {
                self.tenant.copy();
                self.stage = Stage::Copying { left, until_ns: now_ns + self.pause_ns };
            }
            None => {
                self.tenant.stop();
                self.stage = Stage::Closing;
            }
        }
    }

    /// Says what no VMM would, if it is one that does.
    pub(crate) fn babble(&mut self, random: &mut Random) {
        if self.tenant.is_hostile() {
            let bytes = self.tenant.babble(random);
            self.send(&bytes, &[]);
        }
    }

    /// Sends a part of the next message, and no more until that time.
    pub(crate) fn get_stuck(&mut self, until_ns: u64, random: &mut Random) {
        let Some(Sent { bytes, fds }) = self.tenant.say() else { return };
        let part = random.between(1, bytes.len() as u64 - 1) as usize;
        self.send(&bytes[..part], &fds);
        self.is_excused = true;
        self.stage = Stage::Stuck { until_ns };
    }

    fn connect(&mut self, now_ns: u64) -> Result<Step, String> {
        let met = if file::is_called(&self.id) { self.accept() } else { self.dial() };
        let Some(socket) = met.map_err(|e| e.to_string())? else {
            self.stage = Stage::Away { until_ns: now_ns + 50_000_000 };
            return Ok(Step::Nothing);
        };
        if std::mem::take(&mut self.is_lost) {
            self.begin_anew(&mut Random::new(now_ns ^ u64::from(self.number), 7))?;
        }
        self.socket = Some(socket);
        self.is_unheard = file::is_called(&self.id);
        self.stage = Stage::There;
        self.tenant.connect();
        (self.spoke_ns, self.known_ns) = (now_ns, u64::MAX);
        let Some(Sent { bytes, fds }) = self.tenant.say() else { return Ok(Step::Something) };
        Ok(if self.send(&bytes, &fds) { Step::Something } else { Step::CutOff })
    }

    /// A connection to its daemon, if that listens.
    fn dial(&self) -> Result<Option<OwnedFd>, Errno> {
        let socket = unix_socket()?;
        let address = SocketAddrUnix::new(&self.socket_path)?;
        Ok(connect(&socket, &address).is_ok().then_some(socket))
    }

    /// One from its daemon, if that has come.
    fn accept(&mut self) -> Result<Option<OwnedFd>, Errno> {
        if self.listener.is_none() {
            // Of a VMM before this one.
            let _ = std::fs::remove_file(&self.socket_path);
            let socket = unix_socket()?;
            bind(&socket, &SocketAddrUnix::new(&self.socket_path)?)?;
            listen(&socket, 1)?;
            self.listener = Some(socket);
        }
        let Some(listener) = &self.listener else { return Ok(None) };
        match accept_with(listener, FLAGS) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// False: the other side is gone.
    fn send(&self, bytes: &[u8], fds: &[OwnedFd]) -> bool {
        let Some(socket) = &self.socket else { return false };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let iov = [IoSlice::new(bytes)];
        // Messages are short: what is not taken whole is not taken.
        sendmsg(socket, &iov, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            .is_ok_and(|sent| sent == bytes.len())
    }

    /// False: the other side is gone.
    fn hear(&mut self) -> Result<bool, String> {
        let Some(socket) = &self.socket else { return Ok(true) };
        loop {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut iov = [std::io::IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let read = match recvmsg(socket, &mut iov, &mut control, flags) {
                Ok(read) => read.bytes,
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error.to_string()),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.got_fd = fds.last().or(self.got_fd.take());
                }
            }
            if read == 0 {
                return Ok(false);
            }
            self.is_unheard = false;
            self.got.extend_from_slice(&bytes[..read]);
        }
    }

    /// Takes an answer that is whole. True when there was one.
    fn whole(&mut self) -> Result<bool, String> {
        let Some(len) = self.got.get(8..HEADER).and_then(|len| len.try_into().ok()) else {
            return Ok(false);
        };
        let end = HEADER + u32::from_ne_bytes(len) as usize;
        if self.got.len() < end {
            return Ok(false);
        }
        let message: Vec<u8> = self.got.drain(..end).collect();
        self.tenant.hear(&message, self.got_fd.take())?;
        Ok(true)
    }
}
