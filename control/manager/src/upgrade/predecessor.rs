//! The course of an upgrade on the side of the daemon that serves: from an operator's call to the end
//! of this process, or back to where it was.
//!
//! Between BEGIN and YOURS control does nothing else, for at most [`BEQUEST_TIME_MAX`]; sidecores go on.
//! Two waits are apart from that: for the launcher to start an heir, and, when it is given up though it
//! might serve, for its end ([`END_TIME_MAX`]). Not here: how queues come back (`drain`), what is sent
//! (`bequest`).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use config::api::{ApiError, ErrorKind};
use control::mode::Mode;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sidecore::nanos_of;
use tracing::{info, warn};

use super::channel::{Channel, STEP};
use super::error::{SettleError, UpgradeError};
use super::guard;
use super::launcher::{LAUNCHERS, Said};
use super::pause::PauseWords;
use super::timespec;
use super::wire::{self, FromHeir, FromPredecessor};
use crate::api::Reply;
use crate::clock::now;
use crate::defects::{found, late};
use crate::device::Device;
use crate::manager::Manager;
use crate::network::uplink::Uplink;
use crate::poll::Token;
use crate::queue::Queue;
use crate::reload::Reloading;

/// How long a launcher may take to start an heir.
const START_TIME_MAX: Duration = Duration::from_secs(5);
/// From the start of an heir to its first word: it reads its configuration. [`UpgradeError::Silent`] names it.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);
/// How long what must end before an upgrade may take: moves, a reload, a resize.
const BUSY_TIME_MAX: Duration = Duration::from_secs(5);
/// Between two looks at that.
const BUSY_INTERVAL: Duration = Duration::from_millis(5);
/// From BEGIN to YOURS, whatever takes long: two times five seconds for slow disks are in it.
const BEQUEST_TIME_MAX: Duration = Duration::from_secs(15);
/// From all that there is to the heir's word that it could serve it.
const READY_TIME_MAX: Duration = Duration::from_secs(3);
/// From where the rings stand to the heir's word that it has them.
const TAKEN_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a process that was killed may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(10);
const SEND_TIME_MAX: Duration = Duration::from_secs(2);
/// From the word that it is all the heir's to its word that it serves.
const SERVING_TIME_MAX: Duration = Duration::from_secs(2);

/// An upgrade that has begun.
pub(crate) struct Upgrade {
    channel: Channel,
    /// The launcher that starts it.
    launcher: usize,
    /// The heir's number, and its process, whatever becomes of that. Nothing before it is started.
    heir: Option<(u32, OwnedFd)>,
    reply: Option<Reply>,
    /// What it said of itself; until then it is waited for.
    hello: Option<Hello>,
    /// When what it waits for must have come.
    due: Instant,
    /// It may serve from now on, unless it has ended.
    flipped: bool,
    /// What it told of queues that stood still.
    pause: Option<PauseWords>,
}

struct Hello {
    version: String,
    format: u32,
}

/// The estate is somebody else's.
pub(crate) struct HandedOver {
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) reply: Option<Reply>,
    pub(crate) pause: Option<PauseWords>,
    channel: Channel,
    process: OwnedFd,
    /// It says when it is settled.
    settles: bool,
}

impl HandedOver {
    /// Waits until nothing can be taken back any more.
    ///
    /// # Errors
    /// The process that took over has ended before, and how that was seen.
    pub(crate) fn await_settled(&self) -> Result<(), SettleError> {
        if self.settles { guard::watch(&self.channel, &self.process) } else { Ok(()) }
    }
}

impl Upgrade {
    /// When it is to be looked at without an event.
    pub(crate) fn due_at(&self, now: Instant) -> Instant {
        match self.hello {
            Some(_) => now + BUSY_INTERVAL,
            None => self.due,
        }
    }

    /// What is to become of this process.
    fn mode(&self) -> Mode {
        match self.hello {
            Some(_) => Mode::HeirWaits,
            None => Mode::HeirExpected,
        }
    }

    /// Has the heir end; true when it has.
    fn end(&self) -> bool {
        let Some((_, process)) = &self.heir else { return true };
        // It may have ended already.
        let _ = pidfd_send_signal(process, Signal::KILL);
        // Only one that could serve is waited for: any other has nothing to do but to see that its
        // channel is closed.
        !self.flipped || is_readable(process, END_TIME_MAX)
    }
}

impl Manager {
    /// What is to become of this process: rooms are told it with what they settle.
    pub(crate) fn mode(&self) -> Mode {
        match &self.upgrade {
            _ if self.drain.is_frozen() => Mode::Frozen,
            _ if self.stop_by.is_some() => Mode::Stopping,
            _ if self.rooms.estate.is_some() => Mode::Inheriting,
            Some(upgrade) => upgrade.mode(),
            None => Mode::Serving,
        }
    }

    /// Has an heir started.
    pub(crate) fn begin_upgrade(&mut self, reply: Reply) {
        match self.may_upgrade().and_then(|()| self.ask_launcher(0).map_err(|why| refused(&why))) {
            Ok(mut upgrade) => {
                upgrade.reply = Some(reply);
                self.upgrade = Some(upgrade);
            }
            Err(error) => {
                warn!("no upgrade: {}", error.error);
                reply.answer(Err(error));
            }
        }
    }

    fn may_upgrade(&mut self) -> Result<(), ApiError> {
        let busy = |what: &str| ApiError::new(ErrorKind::Busy, what, "try again in a moment");
        if self.upgrade.is_some() {
            return Err(busy("an upgrade is under way already"));
        }
        if self.mode().is_stopping() {
            return Err(busy("the daemon is being stopped"));
        }
        self.check_file()?;
        self.rooms.state.keep(&self.rooms.plan).map_err(|error| refused(&UpgradeError::Keep(error)))
    }

    /// Asks the first launcher from `first` on that can be asked. Each has a channel of its own: one that is late
    /// starts an heir whose predecessor is gone.
    fn ask_launcher(&mut self, first: usize) -> Result<Upgrade, UpgradeError> {
        let launcher = self.rooms.options.launcher.as_ref().ok_or(UpgradeError::NoLauncher)?;
        for at in first..LAUNCHERS {
            let (channel, theirs) = Channel::pair().map_err(UpgradeError::Channel)?;
            if launcher.ask(at, theirs.as_fd()).is_err() {
                continue;
            }
            let (hello, flipped, pause, reply, heir) = (None, false, None, None, None);
            let (launcher, due) = (at, self.rooms.turn.now() + START_TIME_MAX);
            return Ok(Upgrade { channel, launcher, heir, reply, hello, due, flipped, pause });
        }
        Err(UpgradeError::LaunchersLost)
    }

    /// The launcher that was asked starts none: the next one is asked.
    fn ask_next_launcher(&mut self) {
        let upgrade =
            found!(self.rooms.turn.defects, &mut self.upgrade, "upgrade that asked a launcher");
        let (next, reply) = (upgrade.launcher + 1, upgrade.reply.take());
        match self.ask_launcher(next) {
            Ok(upgrade) => self.upgrade = Some(Upgrade { reply, ..upgrade }),
            Err(why) => {
                self.upgrade = None;
                warn!("no upgrade: {why}");
                if let Some(reply) = reply {
                    reply.answer(Err(refused(&why)));
                }
            }
        }
    }

    /// A launcher said something, or has ended.
    pub(crate) fn hear_launcher(&mut self, at: usize) {
        let launcher = self.rooms.options.launcher.as_ref();
        let launcher = found!(self.rooms.turn.defects, launcher, "launcher that is polled");
        let said = launcher.heard(at);
        if matches!(said, Said::Ended) {
            warn!(
                "a launcher has ended: with the last one there is no upgrade, until the daemon is started again"
            );
            if let Some(end) = launcher.ends().nth(at) {
                self.rooms.poll.remove(end);
            }
        }
        let is_asked = |upgrade: &&mut Upgrade| upgrade.launcher == at && upgrade.heir.is_none();
        let upgrade = self.upgrade.as_mut().filter(is_asked);
        let Some(upgrade) = upgrade else { return late("upgrade that asked this launcher") };
        match said {
            Said::Nothing => {}
            Said::Started(pid) => {
                // Its parent has not asked how it ended, so the number is still its own.
                let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
                let process = process.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
                let Some(Ok(process)) = process else {
                    return self.give_up_upgrade(&UpgradeError::Watch);
                };
                info!(pid, "an heir was started");
                upgrade.heir = Some((pid, process));
                upgrade.due = self.rooms.turn.now() + HELLO_TIME_MAX;
                // What it has said already is heard then.
                if self.rooms.poll.add(&upgrade.channel, Token::Heir).is_err() {
                    self.give_up_upgrade(&UpgradeError::Listen);
                }
            }
            Said::Refused(why) => self.give_up_upgrade(&UpgradeError::Launcher(why)),
            Said::Ended => self.ask_next_launcher(),
        }
    }

    /// The heir said something, or has ended.
    pub(crate) fn hear_heir(&mut self) {
        let Some(upgrade) = self.upgrade.as_mut() else { return late("upgrade") };
        if upgrade.hello.is_some() {
            // It says nothing more before it is asked.
            return self.give_up_upgrade(&UpgradeError::Ended);
        }
        match hear(&upgrade.channel, Duration::from_millis(100)) {
            Ok(FromHeir::Hello { version, formats }) => match wire::common_format(&formats) {
                Some(format) => {
                    upgrade.hello = Some(Hello { version, format });
                    upgrade.due = self.rooms.turn.now() + BUSY_TIME_MAX;
                }
                None => self.give_up_upgrade(&UpgradeError::Formats { version, formats }),
            },
            Ok(other) => self.give_up_upgrade(&UpgradeError::Began(other)),
            Err(why) => self.give_up_upgrade(&why),
        }
    }

    /// Goes on when nothing else is under way. True: the estate is the heir's, and this process is to
    /// end without touching anything.
    pub(crate) fn go_on_upgrading(&mut self) -> bool {
        let Some(upgrade) = &self.upgrade else { return false };
        let (is_due, has_hello) = (upgrade.due <= self.rooms.turn.now(), upgrade.hello.is_some());
        if !has_hello {
            if is_due && upgrade.heir.is_none() {
                warn!("a launcher does not answer: was it stopped?");
                self.ask_next_launcher();
            } else if is_due {
                // This process may be the one that was late.
                match self.has_heir_spoken() {
                    true => self.hear_heir(),
                    false => self.give_up_upgrade(&UpgradeError::Silent),
                }
            }
            return false;
        }
        if let Some(what) = self.what_must_end() {
            if is_due {
                self.give_up_upgrade(&UpgradeError::Busy(what));
            }
            return false;
        }
        match self.bequeath() {
            Ok(()) => true,
            Err(why) => {
                self.give_up_upgrade(&why);
                false
            }
        }
    }

    /// Whether the heir's first word waits to be read, or it has ended.
    fn has_heir_spoken(&mut self) -> bool {
        let upgrade =
            found!(self.rooms.turn.defects, &self.upgrade, "upgrade that waits for its heir");
        let mut fds = [PollFd::new(&upgrade.channel, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|ready| ready > 0)
    }

    /// What is under way that an heir could not go on with.
    fn what_must_end(&self) -> Option<&'static str> {
        let is_moving = |device: &Device| {
            device.queues.iter().any(|queue| queue.moving_to().is_some())
                || device.kind.nic().is_some_and(|nic| nic.travels() || nic.goes_to_new_switch())
        };
        let is_leaving = self.rooms.network.is_losing_a_switch();
        let mut devices = self.rooms.devices.values();
        if self.reloading.as_ref().is_some_and(Reloading::is_asked) {
            return Some("a reload");
        }
        if is_leaving || devices.any(|device| device.is_held_back()) {
            return Some("a device or switch that is being removed, resized or started anew");
        }
        let is_parting =
            |device: &Device| device.kind.disk().is_some_and(|d| d.parting_since().is_some());
        if self.rooms.devices.values().any(is_parting) {
            return Some("an image that is being let go");
        }
        if self.rooms.remote.lets_go() {
            return Some("a disk that its client gives back");
        }
        self.rooms.devices.values().any(is_moving).then_some("a move")
    }

    fn bequeath(&mut self) -> Result<(), UpgradeError> {
        self.close_ill_connections();
        let began = self.rooms.turn.tick();
        if !self.drain.freeze() {
            self.rooms.turn.defects.note("queues that are out, before an upgrade");
        }
        // Of an upgrade that was given up.
        let queues = self.rooms.devices.values_mut().flat_map(|device| &mut device.queues);
        queues.for_each(Queue::forget_asked);
        let Some(upgrade) = &mut self.upgrade else { return Err(UpgradeError::NotBegun) };
        let Some(hello) = &upgrade.hello else { return Err(UpgradeError::NoHello) };
        let format = hello.format;
        if format < wire::WITH_LINKS && !self.rooms.remote.is_empty() {
            return Err(UpgradeError::NoLinks(hello.version.clone()));
        }
        upgrade.channel.end_by(Some(began + BEQUEST_TIME_MAX));
        let read = self.listening.read.as_ref();
        let lock = self.rooms.state.lock_held().filter(|_| format >= wire::WITH_FOLDER);
        let begin = FromPredecessor::Begin {
            format,
            api: self.rooms.plan.daemon.api.clone(),
            api_read: read.and(self.rooms.plan.daemon.api_read.clone()),
            state_dir: (format >= wire::WITH_FOLDER)
                .then(|| self.rooms.plan.daemon.state_dir.clone()),
            has_lock: lock.is_some(),
        };
        let sockets = [Some(&self.listening.api), read].into_iter().flatten().map(AsFd::as_fd);
        let fds: Vec<_> = sockets.chain(lock).collect();
        let Some(upgrade) = &self.upgrade else { return Err(UpgradeError::NotBegun) };
        let channel = &upgrade.channel;
        let sent = channel.send(&begin, &fds, SEND_TIME_MAX);
        sent.and_then(|()| self.send_estate(channel)).map_err(|error| {
            // What it said before it ended is better than that it has.
            let last = hear(channel, Duration::ZERO);
            last.err().unwrap_or(UpgradeError::Send(error))
        })?;
        expect(channel, READY_TIME_MAX, FromHeir::Ready {})?;
        let ends_at = channel.ends_at();
        let ready = self.rooms.turn.tick();
        let until = ends_at.unwrap_or(ready) - TAKEN_TIME_MAX;
        self.bring_all_home(nanos_of(until))?;
        self.prepare_seats()?;
        let drained = self.rooms.turn.tick();
        let Some(upgrade) = &mut self.upgrade else { return Err(UpgradeError::NotBegun) };
        upgrade.flipped = true;
        let Some(upgrade) = &self.upgrade else { return Err(UpgradeError::NotBegun) };
        self.send_flip(&upgrade.channel, format, drained).map_err(UpgradeError::Send)?;
        expect(&upgrade.channel, TAKEN_TIME_MAX, FromHeir::Taken {})?;
        // Of some interfaces there can be only one socket.
        self.rooms.network.uplinks_mut().for_each(Uplink::close_all_but_taps);
        self.rooms.remote.say_farewell();
        let Some(upgrade) = &mut self.upgrade else { return Err(UpgradeError::NotBegun) };
        let sent = upgrade.channel.send(&FromPredecessor::Yours {}, &[], SEND_TIME_MAX);
        sent.map_err(UpgradeError::Send)?;
        // From here on the way back is `guard`'s.
        upgrade.channel.end_by(None);
        upgrade.pause = hear_serving(&upgrade.channel);
        let (ready, drained) = (ready - began, drained - ready);
        info!(?ready, ?drained, after = ?began.elapsed(), "handed over");
        Ok(())
    }

    /// A front-end that took back what it had lent would only keep the new process from mapping it.
    fn close_ill_connections(&mut self) {
        let ill = |device: &Device| {
            let ill = device.connections.iter().filter(|(_, connection)| {
                connection.front_end.loss().is_some() || !connection.front_end.kept.is_whole()
            });
            ill.map(|(id, _)| (device.number, *id)).collect::<Vec<_>>()
        };
        let ill: Vec<(u32, u32)> = self.rooms.devices.values().flat_map(ill).collect();
        for (number, id) in ill {
            self.front_ends().close(number, id, "it took away memory that it had lent");
        }
    }

    /// Ends the new process and goes on serving.
    pub(crate) fn give_up_upgrade(&mut self, why: &UpgradeError) {
        // A stop gives up whatever there may be.
        let Some(mut upgrade) = self.upgrade.take() else { return };
        self.rooms.poll.remove(&upgrade.channel);
        if !upgrade.end() {
            // It may serve as soon as it runs again; two that serve would be worse than none.
            tracing::error!("the heir does not end: this process gives way to it");
            std::process::abort();
        }
        warn!("the upgrade is given up: {why}");
        self.saved_seats.clear();
        if self.drain.is_frozen() {
            self.send_all_out();
        }
        let mode = self.mode();
        self.links(|remote, around| remote.hear_links_later(mode, around));
        self.front_ends().release_all();
        self.rooms.turn.touch_all(self.rooms.devices.keys().copied());
        if let Some(reply) = upgrade.reply.take() {
            reply.answer(Err(refused(why)));
        }
    }

    /// After [`Self::go_on_upgrading`]: who is to be told, and by whom it is served now.
    pub(crate) fn handed_over(&mut self) -> Option<HandedOver> {
        let upgrade =
            found!(self.rooms.turn.defects, self.upgrade.take(), "upgrade that has come about");
        let Upgrade { reply, hello, pause, channel, heir, .. } = upgrade;
        let (pid, process) = found!(self.rooms.turn.defects, heir, "process that took over");
        self.rooms.poll.remove(&channel);
        let settles = hello.as_ref().is_some_and(|hello| hello.format >= wire::WITH_GUARD);
        let version = hello.map(|hello| hello.version).unwrap_or_default();
        Some(HandedOver { pid, reply, version, pause, channel, process, settles })
    }
}

fn refused(why: &UpgradeError) -> ApiError {
    let error = format!("the daemon was not replaced: {why}");
    ApiError::new(
        ErrorKind::Refused,
        error,
        "it goes on as it is; what the new process said is in the daemon's log",
    )
}

/// The heir's next word.
fn hear(channel: &Channel, limit: Duration) -> Result<FromHeir, UpgradeError> {
    let packet = channel.receive(limit).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => UpgradeError::Late,
        _ => UpgradeError::Receive(error),
    })?;
    let packet = packet.ok_or(UpgradeError::Ended)?;
    match serde_json::from_slice(&packet.bytes) {
        Ok(FromHeir::Refused { why }) => Err(UpgradeError::Refused(why)),
        Ok(word) => Ok(word),
        Err(error) => Err(UpgradeError::Nonsense(error)),
    }
}

fn expect(channel: &Channel, limit: Duration, awaited: FromHeir) -> Result<(), UpgradeError> {
    match hear(channel, limit)? {
        said if said == awaited => Ok(()),
        said => Err(UpgradeError::OutOfOrder { said, awaited }),
    }
}

/// How long queues stood still, if the heir says so in time. Whether it serves is seen by who waits until it is settled.
fn hear_serving(channel: &Channel) -> Option<PauseWords> {
    match hear(channel, SERVING_TIME_MAX) {
        Ok(FromHeir::Serving { pause }) => pause,
        Ok(word) => {
            warn!("the new process says {word:?} instead of how long queues stood still");
            None
        }
        Err(why) => {
            warn!("how long queues stood still is not known: {why}");
            None
        }
    }
}

pub(super) fn is_readable(fd: &OwnedFd, limit: Duration) -> bool {
    let mut left = limit;
    loop {
        // While the machine stands still one step passes, and then there is another look.
        let step = left.min(STEP);
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        let began = now();
        let counted = match poll(&mut fds, Some(&timespec(step))) {
            Ok(1..) => return true,
            Err(Errno::INTR) => now().saturating_duration_since(began).min(step),
            Ok(0) | Err(_) => step,
        };
        left -= counted;
        if left.is_zero() {
            return false;
        }
    }
}
