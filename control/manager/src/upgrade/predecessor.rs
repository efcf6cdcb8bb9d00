//! The course of an upgrade on the side of the daemon that serves: from an operator's call to the end
//! of this process, or back to where it was.
//!
//! Between BEGIN and YOURS control does nothing else, for at most [`BEQUEST_TIME_MAX`]; sidecores go on.
//! Two waits are apart from that: for the launcher to start an heir, and, when it is given up though it
//! might serve, for its end ([`END_TIME_MAX`]). Not here: how queues come back (`drain`), what is sent
//! (`bequest`); what is done to devices meanwhile (`manager/upgrading`).

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use config::api::{Answer, ApiError, ErrorKind, TakenFileView, UpgradeView};
use control::mode::Mode;
use control::upgrade::{Back, Giving};
use rustix::event::{PollFd, PollFlags, poll};
use sidecore::{instant_of, nanos_of};
use tracing::{info, warn};

use super::channel::{Channel, SEND_TIME_MAX};
use super::error::{ProbationError, UpgradeError};
use super::guard::{self, Reach};
use super::launcher::{LAUNCHERS, Launcher};
use super::links::SavedShards;
use super::pause::PauseWords;
use super::process::Process;
use super::wire::{self, FromHeir, FromPredecessor};
use crate::api::{Listening, Reply};
use crate::devices::device::Device;
use crate::disk::DiskParts;
use crate::poll::{Poll, Token, timespec};
use crate::rooms::Rooms;

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
/// What an heir may have said before it ended at once: its first word, and why it refuses.
const LAST_WORDS_MAX: usize = 3;
/// From all that there is to the heir's word that it could serve it.
const READY_TIME_MAX: Duration = Duration::from_secs(3);
/// From where the rings stand to the heir's word that it has them.
const TAKEN_TIME_MAX: Duration = Duration::from_secs(1);
/// From the word that it is all the heir's to its word that it serves.
const SERVING_TIME_MAX: Duration = Duration::from_secs(2);

/// An upgrade that has begun.
pub(crate) struct Upgrade {
    giving: Giving<Process, Hello>,
    channel: Channel,
    reply: Option<Reply>,
    /// What the heir takes over from the file, if that is known.
    configuration: Option<Box<TakenFileView>>,
    /// Its operator wants it also where requests that wait end with an error.
    insists: bool,
    /// What the heir told of queues that stood still.
    serving: Serving,
    besides: Besides,
}

/// What else an operator is told of it.
#[derive(Clone, Copy, Default)]
struct Besides {
    /// Sessions of other machines that begin anew with it.
    sessions_anew: u32,
    /// Launchers that did not answer before one did.
    launchers_late: u32,
}

/// What the heir said when it was to say that it serves.
#[derive(Default)]
struct Serving {
    pause: Option<PauseWords>,
    /// It said what comes after that.
    has_committed: bool,
}

/// What it said of itself.
struct Hello {
    version: String,
    format: u32,
}

/// What is to be done about an upgrade.
pub(crate) enum Next {
    /// Nothing: something is waited for.
    Wait,
    /// [`Upgrade::ask_another`].
    AskAnother,
    /// [`Upgrade::tell`], if nothing is under way.
    Tell,
}

/// The estate is somebody else's.
pub(crate) struct HandedOver {
    giving: Giving<Process, Hello>,
    reply: Option<Reply>,
    configuration: Option<Box<TakenFileView>>,
    serving: Serving,
    besides: Besides,
    channel: Channel,
}

/// Who serves, and what the operator is to be told who asked for that.
pub(crate) struct Committed {
    pub(crate) pid: u32,
    answer: Option<(Reply, Answer)>,
}

/// The estate is nobody's: whoever had it has ended.
pub(crate) struct Orphaned {
    pub(crate) why: ProbationError,
    /// Which rings it may have served.
    pub(crate) reach: Reach,
    /// It had committed before it ended, and may have answered whom this process knows nothing of.
    pub(crate) has_committed: bool,
    reply: Option<Reply>,
}

impl HandedOver {
    /// Waits until nothing can be taken back any more.
    ///
    /// # Errors
    /// The process that took over has ended before, and how that was seen.
    pub(crate) fn await_commit(self) -> Result<Committed, Box<Orphaned>> {
        let HandedOver { giving, reply, configuration, serving, besides, channel } = self;
        let Besides { sessions_anew, launchers_late } = besides;
        let Serving { pause, has_committed } = serving;
        let format = giving.hello().map_or(0, |hello| hello.format);
        let is_watched = format >= wire::WITH_GUARD && !has_committed;
        if let Err(why) = if is_watched { guard::watch(&channel) } else { Ok(()) } {
            // It may be gone; and one that is not must not serve beside this process.
            end(giving.give_up());
            // One that slept may have done so while it was given up.
            let has_committed = guard::has_committed(&channel);
            return Err(Box::new(Orphaned { why, reach: Reach::of(format), has_committed, reply }));
        }
        let (pid, version) = giving
            .into_given()
            .map_or_else(Default::default, |(heir, hello)| (heir.pid, hello.version));
        let pause = pause.map(PauseWords::view);
        let configuration = configuration.map(|taken| *taken);
        let view =
            UpgradeView { pid, version, pause, sessions_anew, launchers_late, configuration };
        let answer = Answer::Upgraded(view);
        Ok(Committed { pid, answer: reply.map(|reply| (reply, answer)) })
    }
}

impl Committed {
    /// The operator is told that it has come about.
    pub(crate) fn tell(self) {
        if let Some((reply, answer)) = self.answer {
            reply.answer(Ok(answer));
        }
    }
}

impl Orphaned {
    /// The operator is told that it has not come about.
    pub(crate) fn tell(self, error: ApiError) {
        if let Some(reply) = self.reply {
            reply.answer(Err(error));
        }
    }
}

impl Upgrade {
    /// Asks the first launcher from `first` on that can be asked. Each has a channel of its own: one that is late
    /// starts an heir whose predecessor is gone.
    ///
    /// # Errors
    /// There is none.
    fn ask_from(
        first: usize,
        launcher: Option<&Launcher>,
        now: Instant,
    ) -> Result<Upgrade, UpgradeError> {
        let launcher = launcher.ok_or(UpgradeError::NoLauncher)?;
        for at in first..LAUNCHERS {
            let (channel, theirs) = Channel::pair().map_err(UpgradeError::Channel)?;
            if launcher.ask(at, theirs.as_fd()).is_err() {
                continue;
            }
            let giving = Giving::ask(at, nanos_of(now + START_TIME_MAX));
            let (reply, configuration, insists, serving, besides) = Default::default();
            let upgrade =
                Upgrade { giving, channel, reply, configuration, insists, serving, besides };
            return Ok(upgrade);
        }
        Err(UpgradeError::LaunchersLost)
    }

    /// Has a launcher start an heir.
    ///
    /// # Errors
    /// There is none that can be asked.
    pub(crate) fn ask(launcher: Option<&Launcher>, now: Instant) -> Result<Upgrade, UpgradeError> {
        Upgrade::ask_from(0, launcher, now)
    }

    /// The same of the next launcher, when the one that was asked starts none.
    ///
    /// # Errors
    /// There is none that can be asked, and the operator was told so.
    pub(crate) fn ask_another(
        self,
        launcher: Option<&Launcher>,
        now: Instant,
    ) -> Result<Upgrade, UpgradeError> {
        let next = self.giving.launcher().map_or(LAUNCHERS, |at| at + 1);
        match Upgrade::ask_from(next, launcher, now) {
            Ok(upgrade) => {
                let Upgrade { reply, configuration, insists, besides, .. } = self;
                Ok(Upgrade { reply, configuration, insists, besides, ..upgrade })
            }
            Err(why) => {
                if let Some(reply) = self.reply {
                    reply.answer(Err(refused(&why)));
                }
                Err(why)
            }
        }
    }

    /// It is this operator's, who is told what it takes over from the file, and may insist on it.
    pub(crate) fn of(self, reply: Reply, configuration: TakenFileView, insists: bool) -> Upgrade {
        let configuration = Some(Box::new(configuration));
        Upgrade { reply: Some(reply), configuration, insists, ..self }
    }

    /// Whether requests that wait may end with an error.
    pub(crate) fn insists(&self) -> bool {
        self.insists
    }

    /// What is to become of this process, until all stays as it is.
    pub(crate) fn mode(&self) -> Mode {
        match self.giving.hello() {
            Some(_) => Mode::HeirWaits,
            None => Mode::HeirExpected,
        }
    }

    /// When it is to be looked at without an event.
    pub(crate) fn due_at(&self, now: Instant) -> Instant {
        match self.giving.hello() {
            Some(_) => now + BUSY_INTERVAL,
            None => instant_of(self.giving.due()),
        }
    }

    /// What it waits for has not come in time.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.giving.due() <= nanos_of(now)
    }

    /// That launcher is to start its heir.
    pub(crate) fn asks(&self, launcher: usize) -> bool {
        self.giving.launcher() == Some(launcher)
    }

    /// Its launcher has started process `pid`.
    ///
    /// # Errors
    /// It has ended already, which is what it said last if that was a refusal, or it cannot be heard.
    pub(crate) fn start(
        &mut self,
        pid: u32,
        poll: &Poll,
        now: Instant,
    ) -> Result<(), UpgradeError> {
        let process = Process::watch(pid).ok_or_else(|| last_word(&self.channel))?;
        info!(pid, "an heir was started");
        let due = nanos_of(now + HELLO_TIME_MAX);
        if !self.giving.started(process, due) {
            return Err(UpgradeError::NotBegun);
        }
        // What it has said already is heard then.
        poll.add(&self.channel, Token::Heir).map_err(|_| UpgradeError::Listen)
    }

    /// The heir said something, or has ended.
    ///
    /// # Errors
    /// It was not its first word, or no common format is in that.
    pub(crate) fn hear(&mut self, now: Instant) -> Result<(), UpgradeError> {
        if self.giving.hello().is_some() {
            // It says nothing more before it is asked.
            return Err(UpgradeError::Ended);
        }
        match hear(&self.channel, Duration::from_millis(100))? {
            FromHeir::Hello { version, formats } => {
                let format = common_format(&version, &formats)?;
                let due = nanos_of(now + BUSY_TIME_MAX);
                match self.giving.greeted(Hello { version, format }, due) {
                    true => Ok(()),
                    false => Err(UpgradeError::NotBegun),
                }
            }
            other => Err(UpgradeError::Began(other)),
        }
    }

    /// What is to be done next.
    ///
    /// # Errors
    /// The heir says nothing.
    pub(crate) fn next(&mut self, now: Instant) -> Result<Next, UpgradeError> {
        if self.giving.hello().is_some() {
            return Ok(Next::Tell);
        }
        if !self.is_due(now) {
            return Ok(Next::Wait);
        }
        if self.giving.launcher().is_some() {
            warn!("a launcher does not answer: was it stopped?");
            self.besides.launchers_late += 1;
            return Ok(Next::AskAnother);
        }
        // This process may be the one that was late.
        match self.has_heir_spoken() {
            true => self.hear(now).map(|()| Next::Wait),
            false => Err(UpgradeError::Silent),
        }
    }

    /// Whether the heir's first word waits to be read, or it has ended.
    fn has_heir_spoken(&self) -> bool {
        let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(Duration::ZERO))).is_ok_and(|ready| ready > 0)
    }

    /// Tells the heir what there is, which stays so, and waits until it could serve that.
    ///
    /// # Errors
    /// It could not, or does not say so.
    pub(crate) fn tell(
        &mut self,
        rooms: &Rooms,
        listening: &Listening,
        began: Instant,
    ) -> Result<(), UpgradeError> {
        if !self.giving.tell() {
            return Err(UpgradeError::NotBegun);
        }
        let hello = self.giving.hello().ok_or(UpgradeError::NotBegun)?;
        let (channel, format) = (&self.channel, hello.format);
        if format < wire::WITH_LINKS && !rooms.remote.is_empty() {
            return Err(UpgradeError::NoLinks(hello.version.clone()));
        }
        let is_given_up = |device: &&Device| device.disk().is_some_and(|d| d.locks.is_fenced());
        let given_up = rooms.devices.values().find(is_given_up);
        if let Some(device) = given_up.filter(|_| format < wire::WITH_LOST) {
            let (version, disk) = (hello.version.clone(), device.facts().id.clone());
            return Err(UpgradeError::NoAnchor { version, disk });
        }
        channel.end_by(Some(began + BEQUEST_TIME_MAX));
        let read = listening.read.as_ref();
        let lock = rooms.state.lock_held().filter(|_| format >= wire::WITH_FOLDER);
        let daemon = &rooms.plan.daemon;
        let begin = FromPredecessor::Begin {
            format,
            api: daemon.api.clone(),
            api_read: read.and(daemon.api_read.clone()),
            state_dir: (format >= wire::WITH_FOLDER).then(|| daemon.state_dir.clone()),
            has_lock: lock.is_some(),
        };
        let sockets = [Some(&listening.api), read].into_iter().flatten().map(AsFd::as_fd);
        let fds: Vec<_> = sockets.chain(lock).collect();
        let sent = channel.send(&begin, &fds, SEND_TIME_MAX);
        sent.and_then(|()| rooms.bequest().send_estate(channel))
            .map_err(|error| not_taken(channel, error))?;
        expect(channel, READY_TIME_MAX, FromHeir::Ready {})
    }

    /// The moment by which all is to be here.
    pub(crate) fn drained_by(&self, ready: Instant) -> Instant {
        self.channel.ends_at().unwrap_or(ready) - TAKEN_TIME_MAX
    }

    /// Tells the heir where all stands, which is here since `drained`, and waits until it has that.
    ///
    /// # Errors
    /// It does not take it.
    pub(crate) fn flip(
        &mut self,
        rooms: &Rooms,
        shards: &SavedShards,
        drained: Instant,
    ) -> Result<(), UpgradeError> {
        let hello = self.giving.hello().ok_or(UpgradeError::NotBegun)?;
        let format = hello.format;
        if !self.giving.flip() {
            return Err(UpgradeError::NotBegun);
        }
        let sent = rooms.bequest().send_flip(&self.channel, format, shards, drained);
        sent.map_err(|error| not_taken(&self.channel, error))?;
        expect(&self.channel, TAKEN_TIME_MAX, FromHeir::Taken {})
    }

    /// Tells the heir that all is let go, and hears how long queues stood still. From here on the way back is
    /// [`HandedOver`]'s.
    ///
    /// # Errors
    /// It cannot be told.
    pub(crate) fn give(&mut self, sessions_anew: usize) -> Result<(), UpgradeError> {
        self.besides.sessions_anew = u32::try_from(sessions_anew).unwrap_or(u32::MAX);
        let sent = self.channel.send(&FromPredecessor::Yours {}, &[], SEND_TIME_MAX);
        sent.map_err(UpgradeError::Send)?;
        if !self.giving.give() {
            return Err(UpgradeError::NotBegun);
        }
        self.channel.end_by(None);
        self.serving = hear_serving(&self.channel);
        Ok(())
    }

    /// Has the heir end: who is to be told when all is served here again.
    pub(crate) fn give_up(self, poll: &Poll) -> Option<Reply> {
        let Upgrade { giving, channel, reply, .. } = self;
        poll.remove(&channel);
        end(giving.give_up());
        reply
    }

    /// Who is to be told, and by whom all is served now; nobody, where it was not given.
    pub(crate) fn handed_over(self, poll: &Poll) -> Option<HandedOver> {
        let Upgrade { giving, channel, reply, configuration, serving, besides, insists: _ } = self;
        poll.remove(&channel);
        let is_given = giving.given().is_some();
        is_given.then_some(HandedOver { giving, reply, configuration, serving, besides, channel })
    }
}

/// Has the heir end.
fn end(back: Back<Process>) {
    match back {
        Back::GoOn(None) => {}
        // It has nothing to do but to see that its channel is closed.
        Back::GoOn(Some(heir)) | Back::SendOut(heir) => heir.kill(),
        Back::EndFirst(heir) | Back::TakeBack(heir) => heir.end(),
    }
}

/// What is under way that an heir could not go on with, by name.
pub(crate) fn what_must_end(rooms: &Rooms) -> Option<String> {
    let Rooms { devices, network, remote, .. } = rooms;
    let is_moving = |device: &Device| {
        device.queues().iter().any(|queue| queue.moving_to().is_some())
            || device.nic().is_some_and(|nic| nic.travels() || nic.goes_to_new_switch())
    };
    let is_parting = |device: &Device| device.disk().is_some_and(|d| d.parting_since().is_some());
    let is_kept_open = |device: &Device| device.disk().is_some_and(DiskParts::is_kept_open);
    let named = |is_it: &dyn Fn(&Device) -> bool| {
        let device = devices.values().find(|device| is_it(device))?;
        Some(device.kind().plan().name())
    };
    if network.is_losing_a_switch() {
        return Some("a switch that is being removed".to_string());
    }
    if let Some(name) = named(&Device::is_held_back) {
        return Some(format!("{name}, which is being removed, resized or started anew"));
    }
    if let Some(name) = named(&is_parting) {
        return Some(format!("{name}, whose image is being let go"));
    }
    if let Some(name) = named(&is_kept_open) {
        return Some(format!("{name}, whose image is to be closed and opened again"));
    }
    if let Some(id) = remote.lets_go() {
        return Some(format!("disk {id:?}, which its client gives back"));
    }
    named(&is_moving).map(|name| format!("a move of {name}"))
}

/// What an operator is told whose upgrade is not.
pub(crate) fn refused(why: &UpgradeError) -> ApiError {
    if let UpgradeError::Unrecorded(waiting) = why {
        return waiting.refusal("the daemon was not replaced", "upgrade", "it goes on as it is");
    }
    let error = format!("the daemon was not replaced: {why}");
    let has_run = matches!(
        why,
        UpgradeError::Ended | UpgradeError::EndedSo(_) | UpgradeError::Silent | UpgradeError::Late
    );
    let hint = match has_run {
        true => "it goes on as it is; what the new process said is in the daemon's log",
        false => "it goes on as it is",
    };
    ApiError::new(ErrorKind::Refused, error, hint)
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

/// Why an heir takes nothing: what it said before it ended is better than that it has.
fn not_taken(channel: &Channel, error: std::io::Error) -> UpgradeError {
    hear(channel, Duration::ZERO).err().unwrap_or(UpgradeError::Send(error))
}

/// The format in which both speak.
fn common_format(version: &str, formats: &[u32]) -> Result<u32, UpgradeError> {
    let foreign = || UpgradeError::Formats { version: version.into(), formats: formats.into() };
    wire::common_format(formats).ok_or_else(foreign)
}

/// Why an heir has ended that cannot be watched any more: its launcher has asked how it ended before this process heard
/// that it was started.
fn last_word(channel: &Channel) -> UpgradeError {
    let said = std::iter::repeat_with(|| match hear(channel, Duration::ZERO)? {
        FromHeir::Hello { version, formats } => common_format(&version, &formats).map(drop),
        _ => Ok(()),
    });
    match said.take(LAST_WORDS_MAX).filter_map(Result::err).next() {
        Some(why @ (UpgradeError::Refused(_) | UpgradeError::Formats { .. })) => why,
        _ => UpgradeError::Ended,
    }
}

fn expect(channel: &Channel, limit: Duration, awaited: FromHeir) -> Result<(), UpgradeError> {
    match hear(channel, limit)? {
        said if said == awaited => Ok(()),
        said => Err(UpgradeError::OutOfOrder { said, awaited }),
    }
}

/// How long queues stood still, if the heir says so in time. Whether it serves is seen by who waits until it has committed.
fn hear_serving(channel: &Channel) -> Serving {
    let said = hear(channel, SERVING_TIME_MAX);
    let has_committed = matches!(said, Ok(FromHeir::Committed {}));
    let pause = match said {
        Ok(FromHeir::Serving { pause }) => pause,
        Ok(word) => {
            warn!("the new process says {word:?} instead of how long queues stood still");
            None
        }
        Err(why) => {
            warn!("how long queues stood still is not known: {why}");
            None
        }
    };
    Serving { pause, has_committed }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{FromHeir, UpgradeError, hear_serving, last_word};
    use crate::upgrade::channel::Channel;
    use crate::upgrade::wire::FORMATS;

    /// Nothing is waited for after that word, and nothing can be taken back.
    #[test]
    fn an_heir_that_commits_without_a_word_of_its_pause_is_heard() {
        for (word, is_heard) in
            [(FromHeir::Committed {}, true), (FromHeir::Serving { pause: None }, false)]
        {
            let (ours, theirs) = Channel::pair().expect("a channel");
            Channel::of(theirs).send(&word, &[], Duration::from_secs(60)).expect("there is room");
            assert_eq!(hear_serving(&ours).has_committed, is_heard, "{word:?}");
        }
    }

    /// An heir that ends before its launcher has said that it was started.
    #[test]
    fn what_an_heir_said_before_it_ended_is_why() {
        let said = |words: &[FromHeir]| {
            let (ours, theirs) = Channel::pair().expect("a channel");
            let theirs = Channel::of(theirs);
            for word in words {
                theirs.send(word, &[], Duration::from_secs(60)).expect("there is room");
            }
            drop(theirs);
            last_word(&ours)
        };
        let hello =
            |formats: &[u32]| FromHeir::Hello { version: "1".into(), formats: formats.into() };
        let refused = || FromHeir::Refused { why: "no".into() };
        let is_foreign = |why: UpgradeError| matches!(why, UpgradeError::Formats { .. });
        assert!(is_foreign(said(&[hello(&[98, 99])])));
        assert!(matches!(said(&[hello(&FORMATS), refused()]), UpgradeError::Refused(_)));
        assert!(matches!(said(&[hello(&FORMATS)]), UpgradeError::Ended));
        assert!(matches!(said(&[]), UpgradeError::Ended));
    }
}
