//! The course of an upgrade on the side of the daemon that serves: from an operator's call to the end
//! of this process, or back to where it was.
//!
//! Between BEGIN and YOURS control does nothing else, for at most [`BEQUEST_TIME_MAX`]; sidecores go on.
//! Two waits are apart from that: for the launcher to start an heir, and, when it is given up though it
//! might serve, for its end ([`END_TIME_MAX`]). Not here: how queues come back (`drain`), what is sent
//! (`bequest`).

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use config::api::{ApiError, ErrorKind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tracing::{info, warn};

use super::channel::Channel;
use super::pause::PauseWords;
use super::timespec;
use super::wire::{self, FromHeir, FromPredecessor};
use crate::api::Reply;
use crate::device::Device;
use crate::manager::{Manager, now};
use crate::poll::Token;
use crate::uplinks::State;

/// From the start of an heir to its first word: it reads its configuration.
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
    pid: u32,
    /// The heir's process, whatever becomes of its number.
    process: OwnedFd,
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
}

impl Upgrade {
    /// When it is to be looked at without an event.
    pub(crate) fn due_at(&self) -> Instant {
        match self.hello {
            Some(_) => now() + BUSY_INTERVAL,
            None => self.due,
        }
    }

    /// The heir is there, and is told all as soon as nothing is under way.
    pub(crate) fn has_hello(&self) -> bool {
        self.hello.is_some()
    }

    /// Has the heir end; true when it has.
    fn end(&self) -> bool {
        // It may have ended already.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        // Only one that could serve is waited for: any other has nothing to do but to see that its
        // channel is closed.
        !self.flipped || is_readable(&self.process, END_TIME_MAX)
    }
}

impl Manager {
    /// Starts an heir.
    pub(crate) fn begin_upgrade(&mut self, reply: Reply) {
        match self.start_heir() {
            Ok((channel, pid, process)) => {
                info!(pid, "an heir was started");
                let due = now() + HELLO_TIME_MAX;
                let (hello, flipped, pause, reply) = (None, false, None, Some(reply));
                self.upgrade =
                    Some(Upgrade { channel, pid, process, reply, hello, due, flipped, pause });
            }
            Err(error) => {
                warn!("no upgrade: {}", error.error);
                reply.answer(Err(error));
            }
        }
    }

    fn start_heir(&mut self) -> Result<(Channel, u32, OwnedFd), ApiError> {
        let busy = |what: &str| ApiError::new(ErrorKind::Busy, what, "try again in a moment");
        let failed = |what: String| refused(&what);
        if self.upgrade.is_some() {
            return Err(busy("an upgrade is under way already"));
        }
        if self.is_stopping() {
            return Err(busy("the daemon is being stopped"));
        }
        self.keep().map_err(|error| {
            failed(format!("the devices that were made by commands cannot be kept: {error}"))
        })?;
        let launcher = self.options.launcher.as_ref();
        let launcher = launcher.ok_or_else(|| failed("the daemon has no launcher".to_string()))?;
        let (channel, theirs) = Channel::pair().map_err(|error| failed(error.to_string()))?;
        let pid = launcher.launch(theirs.as_fd()).map_err(failed)?;
        // Its parent has not asked how it ended, so the number is still its own.
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = process.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let Some(Ok(process)) = process else {
            return Err(failed("the new process cannot be watched".to_string()));
        };
        self.poll.add(&channel, Token::Heir).map_err(|error| failed(error.to_string()))?;
        Ok((channel, pid, process))
    }

    /// The heir said something, or has ended.
    pub(crate) fn hear_heir(&mut self) {
        let Some(upgrade) = &mut self.upgrade else { return };
        if upgrade.hello.is_some() {
            // It says nothing more before it is asked.
            return self.give_up_upgrade("the new process has ended");
        }
        match hear(&upgrade.channel, Duration::from_millis(100)) {
            Ok(FromHeir::Hello { version, formats }) => match wire::common_format(&formats) {
                Some(format) => {
                    upgrade.hello = Some(Hello { version, format });
                    upgrade.due = now() + BUSY_TIME_MAX;
                }
                None => {
                    let why = format!(
                        "version {version} reads estates of formats {formats:?}, this daemon writes \
                         {:?}: go by a version in between",
                        wire::FORMATS
                    );
                    self.give_up_upgrade(&why);
                }
            },
            Ok(other) => self.give_up_upgrade(&format!("the new process began with {other:?}")),
            Err(why) => self.give_up_upgrade(&why),
        }
    }

    /// Goes on when nothing else is under way. True: the estate is the heir's, and this process is to
    /// end without touching anything.
    pub(crate) fn go_on_upgrading(&mut self) -> bool {
        let Some(upgrade) = &self.upgrade else { return false };
        let (is_due, has_hello) = (upgrade.due <= now(), upgrade.hello.is_some());
        if !has_hello {
            if is_due {
                self.give_up_upgrade("the new process said nothing in time");
            }
            return false;
        }
        if let Some(what) = self.what_must_end() {
            if is_due {
                self.give_up_upgrade(&format!("it waited for {what}"));
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

    /// What is under way that an heir could not go on with.
    fn what_must_end(&self) -> Option<&'static str> {
        let is_moving = |device: &Device| {
            device.queues.iter().any(|queue| queue.moving.is_some())
                || device.kind.nic().is_some_and(|nic| nic.travel.is_some() || nic.moving)
        };
        let is_leaving = self.network.switches.iter().any(|switch| switch.leaving.is_some());
        let mut devices = self.devices.values();
        if self.reloading.is_some() {
            return Some("a reload");
        }
        if is_leaving || devices.any(|device| device.is_held_back()) {
            return Some("a device or switch that is being removed, resized or started anew");
        }
        let is_parting =
            |device: &Device| device.kind.disk().is_some_and(|d| d.parting_since().is_some());
        if self.devices.values().any(is_parting) {
            return Some("an image that is being let go");
        }
        if self.remote.lets_go() {
            return Some("a disk that its client gives back");
        }
        self.devices.values().any(is_moving).then_some("a move")
    }

    fn bequeath(&mut self) -> Result<(), String> {
        self.close_ill_links();
        self.frozen = true;
        // Of an upgrade that was given up.
        let queues = self.devices.values_mut().flat_map(|device| &mut device.queues);
        queues.for_each(|queue| queue.asked_at = None);
        let Some(upgrade) = &mut self.upgrade else { return Err("there is none".to_string()) };
        let Some(hello) = &upgrade.hello else {
            return Err("the new process said nothing".to_string());
        };
        if hello.format < wire::WITH_LINKS && !self.remote.is_empty() {
            let why = format!("version {} knows no links that are handed over", hello.version);
            return Err(format!("{why}: restart the daemon"));
        }
        let began = now();
        let until = began + BEQUEST_TIME_MAX;
        upgrade.channel.end_by(Some(until));
        let read = self.listening.read.as_ref();
        let begin = FromPredecessor::Begin {
            format: hello.format,
            api: self.plan.daemon.api.clone(),
            api_read: read.and(self.plan.daemon.api_read.clone()),
        };
        let sockets: Vec<_> = [Some(&self.listening.api), read].into_iter().flatten().collect();
        let sockets: Vec<_> = sockets.into_iter().map(AsFd::as_fd).collect();
        let Some(upgrade) = &self.upgrade else { return Err("there is none".to_string()) };
        let channel = &upgrade.channel;
        let sent = channel.send(&begin, &sockets, SEND_TIME_MAX);
        sent.and_then(|()| self.send_estate(channel)).map_err(|error| {
            // What it said before it ended is better than that it has.
            let last = hear(channel, Duration::ZERO);
            last.err().unwrap_or_else(|| format!("the new process takes nothing: {error}"))
        })?;
        expect(channel, READY_TIME_MAX, &FromHeir::Ready {})?;
        let ready = now();
        self.bring_all_home(until - TAKEN_TIME_MAX)?;
        self.prepare_seats()?;
        let drained = now();
        let Some(upgrade) = &mut self.upgrade else { return Err("there is none".to_string()) };
        upgrade.flipped = true;
        let Some(upgrade) = &self.upgrade else { return Err("there is none".to_string()) };
        let broken = |error: std::io::Error| format!("the new process takes nothing: {error}");
        self.send_flip(&upgrade.channel, drained).map_err(broken)?;
        expect(&upgrade.channel, TAKEN_TIME_MAX, &FromHeir::Taken {})?;
        for uplink in self.network.uplinks.values_mut() {
            // Of some interfaces there can be only one socket.
            if let State::Kept(ports) = &mut uplink.state {
                ports.close_all_but_taps();
            }
        }
        self.say_farewell();
        let Some(upgrade) = &mut self.upgrade else { return Err("there is none".to_string()) };
        upgrade.channel.send(&FromPredecessor::Yours {}, &[], SEND_TIME_MAX).map_err(broken)?;
        // From here on there is no way back, and nothing left to do.
        upgrade.channel.end_by(None);
        upgrade.pause = hear_serving(&upgrade.channel);
        let (ready, drained) = (ready - began, drained - ready);
        info!(?ready, ?drained, after = ?began.elapsed(), "handed over");
        Ok(())
    }

    /// A front-end that took back what it had lent would only keep the new process from mapping it.
    fn close_ill_links(&mut self) {
        let ill = |device: &Device| {
            let ill = device.links.iter().filter(|(_, link)| {
                link.front_end.loss().is_some() || !link.front_end.kept.is_whole()
            });
            ill.map(|(id, _)| (device.number, *id)).collect::<Vec<_>>()
        };
        let ill: Vec<(u32, u32)> = self.devices.values().flat_map(ill).collect();
        for (number, id) in ill {
            self.close_link(number, id, "it took away memory that it had lent");
        }
    }

    /// Ends the new process and goes on serving.
    pub(crate) fn give_up_upgrade(&mut self, why: &str) {
        let Some(mut upgrade) = self.upgrade.take() else { return };
        self.poll.remove(&upgrade.channel);
        if !upgrade.end() {
            // It may serve as soon as it runs again; two that serve would be worse than none.
            tracing::error!("the heir does not end: this process gives way to it");
            std::process::abort();
        }
        warn!("the upgrade is given up: {why}");
        self.saved_seats.clear();
        if std::mem::take(&mut self.frozen) {
            self.send_all_out(&BTreeSet::new());
        }
        self.hear_links_later();
        self.release_held_links();
        self.touched.extend(self.devices.keys());
        if let Some(reply) = upgrade.reply.take() {
            reply.answer(Err(refused(why)));
        }
    }

    /// After [`Self::go_on_upgrading`]: who is to be told, and by whom it is served now.
    pub(crate) fn handed_over(&mut self) -> Option<HandedOver> {
        let Upgrade { pid, reply, hello, pause, .. } = self.upgrade.take()?;
        let version = hello.map(|hello| hello.version).unwrap_or_default();
        Some(HandedOver { pid, reply, version, pause })
    }
}

fn refused(why: &str) -> ApiError {
    let error = format!("the daemon was not replaced: {why}");
    ApiError::new(
        ErrorKind::Refused,
        error,
        "it goes on as it is; what the new process said is in the daemon's log",
    )
}

/// The heir's next word.
fn hear(channel: &Channel, limit: Duration) -> Result<FromHeir, String> {
    let packet = channel.receive(limit).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => "the new process did not answer in time".to_string(),
        _ => format!("the new process cannot be heard: {error}"),
    })?;
    let packet = packet.ok_or("the new process has ended")?;
    match serde_json::from_slice(&packet.bytes) {
        Ok(FromHeir::Refused { why }) => Err(why),
        Ok(word) => Ok(word),
        Err(error) => Err(format!("the new process makes no sense: {error}")),
    }
}

fn expect(channel: &Channel, limit: Duration, expected: &FromHeir) -> Result<(), String> {
    match hear(channel, limit)? {
        word if word == *expected => Ok(()),
        word => Err(format!("the new process said {word:?} instead of {expected:?}")),
    }
}

/// How long queues stood still, if the heir says so in time. Whatever it says, it serves.
fn hear_serving(channel: &Channel) -> Option<PauseWords> {
    match hear(channel, SERVING_TIME_MAX) {
        Ok(FromHeir::Serving { pause }) => pause,
        Ok(word) => {
            warn!("the new process serves, and says {word:?}");
            None
        }
        Err(why) => {
            warn!("how long queues stood still is not known: {why}");
            None
        }
    }
}

fn is_readable(fd: &OwnedFd, limit: Duration) -> bool {
    let until = now() + limit;
    loop {
        let left = until.saturating_duration_since(now());
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) if left.is_zero() => return false,
            Ok(0) | Err(_) => {}
            Ok(_) => return true,
        }
    }
}
