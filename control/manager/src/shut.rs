//! Devices of the plan that are not open: disks still held by requests of a process that has ended,
//! or anything in trouble. They have no socket, so that a VMM is refused and comes again instead of waiting for an
//! answer that nobody gives.
//!
//! Opening them, and trying again; here they are also found, shown and dropped. Not here: devices
//! that are open (`device`). Used by `manager`, `answers` and `reload`.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use backend::{Holder, OpenError};
use config::api::{ApiError, ErrorKind};
use config::plan::{DiskPlan, Origin, Source};
use config::spec::Mode;
use rustix::io::Errno;
use tracing::{error, info, warn};

use crate::defects::found;
use crate::device::Device;
use crate::disk::DiskParts;
use crate::images::{self, FileId};
use crate::kind::{DevicePlan, Facts, Kind};
use crate::lent::Closer;
use crate::manager::Manager;
use crate::network::nic::NicParts;
use crate::openers::{NotYet, Patience};
use crate::poll::{DEVICES_END, Token};
use crate::rights::Rights;
use crate::sockets;
use crate::upgrade::estate::DeviceEstate;

/// Before the second attempt; each further pause is twice as long, up to [`PAUSE_MAX`]. A lock of an
/// ended process goes with its last request: within milliseconds on a disk that works.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// On a disk that does not answer it may never go: then a pause is a sixteenth of what was waited
/// already, up to this. Each attempt opens a device for writing, which has udev look at it afterwards.
const LONG_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long a holder that lives is waited for: a process that was just killed still counts as one,
/// and udev locks a block device for a moment after every close.
const LIVING_TIME_MAX: Duration = Duration::from_secs(2);

/// Why an image is not even asked for.
const NO_THREAD: &str =
    "no thread is free for it, since file systems of other disks do not answer; it is tried again";

/// Devices that one line of the log names besides the first.
const ALIKE_NAMED: usize = 3;

/// Why a disk is not open. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotOpen {
    /// Requests of a process that has ended, or that cannot be seen, are still with it, or a process has a
    /// lease on it: in a moment they are not.
    Ended(String),
    /// Its file system has not answered yet, so that nothing is known.
    Late(String),
    /// Another disk of this daemon holds it.
    Ours(String),
    /// A process that lives holds it.
    Living(String),
    /// Anything else: it is missing, of a wrong kind, its socket is taken.
    Wrong(String),
}

impl fmt::Display for NotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NotOpen::Ended(text)
        | NotOpen::Late(text)
        | NotOpen::Ours(text)
        | NotOpen::Living(text)
        | NotOpen::Wrong(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for NotOpen {}

impl NotOpen {
    /// Anything else, in the words of its error.
    pub(crate) fn wrong(why: impl fmt::Display) -> NotOpen {
        NotOpen::Wrong(why.to_string())
    }

    /// Of an image of which nobody knows yet.
    pub(crate) fn not_yet(why: NotYet, path: &str) -> NotOpen {
        NotOpen::Late(match why {
            NotYet::Late => {
                format!("{path} is still being opened: its file system has not answered yet")
            }
            NotYet::NoThread => format!("{path} is not being opened yet: {NO_THREAD}"),
        })
    }

    /// Sorts what the back-end said.
    pub(crate) fn new(error: &OpenError, plan: &DiskPlan) -> NotOpen {
        let OpenError::Held { holder, .. } = error else {
            return match error {
                OpenError::Leased(_) => NotOpen::Ended(error.to_string()),
                _ => NotOpen::Wrong(format!("{error}{}", advice(error, plan))),
            };
        };
        match holder {
            Holder::Ended(_) => NotOpen::Ended(error.to_string()),
            Holder::Living(pid) if *pid == std::process::id() => NotOpen::Ours(error.to_string()),
            Holder::Living(_) => NotOpen::Living(error.to_string()),
        }
    }
}

/// Why something was not opened, as an answer to who asked for it: what the reason itself says to do, or `otherwise`.
pub(crate) fn refused_with(what: &str, why: &NotOpen, otherwise: &str) -> ApiError {
    let why = why.to_string();
    let (error, hint) = why.split_once("; ").unwrap_or((&why, otherwise));
    ApiError::new(ErrorKind::Refused, format!("{what}: {error}"), hint)
}

/// What to do about the causes that are usual.
fn advice(error: &OpenError, plan: &DiskPlan) -> &'static str {
    match error {
        OpenError::Os { source, .. } if *source == Errno::NOENT => match plan.spec.size {
            None if !plan.readonly => {
                "; correct `path`, put the image back, or for a new disk add a `size`: then an empty \
                 one is made"
            }
            _ => "; correct `path`, or make what it names",
        },
        OpenError::Os { source, .. } if *source == Errno::ACCESS => {
            "; the daemon's user must be able to read it, and to write it if it is not `readonly`"
        }
        OpenError::Os { source, .. } if *source == Errno::PERM && plan.readonly => {
            "; the kernel lets nobody open it: see who else has it, and what the daemon's rights are"
        }
        OpenError::Os { source, .. } if [Errno::ROFS, Errno::PERM].contains(source) => {
            "; make it writable, or say `readonly` if its guest shall only read it"
        }
        OpenError::Os { source, .. } if *source == Errno::MFILE => {
            "; the daemon has too few descriptors: raise `LimitNOFILE` in its unit, or `ulimit -Hn`"
        }
        _ => "",
    }
}

/// When a disk is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    /// Since when.
    since: Instant,
    at: Instant,
    pause: Duration,
}

impl Retry {
    /// At once, then with growing pauses.
    pub(crate) fn from(now: Instant) -> Retry {
        Retry { since: now, at: now, pause: PAUSE_MIN }
    }

    /// What it waits for has happened.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.at = self.at.min(now);
    }

    /// When the next attempt is due.
    pub(crate) fn due_at(self) -> Instant {
        self.at
    }

    /// After an attempt that failed.
    pub(crate) fn again(self, now: Instant) -> Retry {
        let waited = now.saturating_duration_since(self.since);
        let most = (waited / 16).clamp(PAUSE_MAX, LONG_PAUSE_MAX);
        let pause = (self.pause * 2).min(most);
        Retry { since: self.since, at: now + self.pause, pause }
    }

    /// Whether `why` may still pass by itself.
    fn is_worth(self, why: &NotOpen, removing: bool, now: Instant) -> bool {
        match why {
            NotOpen::Ended(_) | NotOpen::Late(_) => true,
            // The kernel lets go of what a sidecore had a moment after it has said so.
            NotOpen::Ours(_) => removing || now < self.since + LIVING_TIME_MAX,
            NotOpen::Living(_) => now < self.since + LIVING_TIME_MAX,
            NotOpen::Wrong(_) => false,
        }
    }
}

/// A device that is in the plan and not open.
#[derive(Clone, Debug)]
pub(crate) struct Shut {
    pub(crate) plan: DevicePlan,
    /// Why it is not open and what to do.
    pub(crate) problem: String,
    /// Nothing: an operator has to act first.
    pub(crate) retry: Option<Retry>,
    /// A process that lives has it, so far as is known.
    is_living: bool,
    /// It was added, and has not been open yet.
    is_new: bool,
}

impl Shut {
    /// A disk that waits for another process's requests, or for the disk that it replaces.
    pub(crate) fn waiting(plan: DevicePlan, problem: String, now: Instant) -> Shut {
        Shut { plan, problem, retry: Some(Retry::from(now)), is_living: false, is_new: false }
    }

    /// The same, of what may pass by itself.
    pub(crate) fn waiting_for(plan: DevicePlan, why: &NotOpen, now: Instant) -> Shut {
        let is_living = matches!(why, NotOpen::Living(_));
        Shut { is_living, ..Shut::waiting(plan, why.to_string(), now) }
    }

    /// A device that an operator has to see to.
    pub(crate) fn failed(plan: DevicePlan, problem: String) -> Shut {
        Shut { plan, problem, retry: None, is_living: false, is_new: false }
    }

    /// The same device, which was added and has not been open yet: what it is made of may be missing.
    pub(crate) fn never_open(self) -> Shut {
        Shut { is_new: true, ..self }
    }

    /// Whether it is waited for only to be sure that its holder lives.
    pub(crate) fn may_be_refused(&self) -> bool {
        self.is_living && self.retry.is_some()
    }

    /// Why it is not open, but for its own names.
    fn reason(&self) -> String {
        let image = self.plan.disk().and_then(|disk| disk.source.path());
        let socket = match &self.plan {
            DevicePlan::Disk(disk) => &disk.socket,
            DevicePlan::Nic(nic) => &nic.socket,
        };
        let names = image.into_iter().chain([socket.as_str(), self.plan.id()]);
        names.fold(self.problem.clone(), |text, name| text.replace(name, "*"))
    }

    /// When it is tried again.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.retry.map(|retry| retry.at)
    }
}

/// Where the socket of a device comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    /// It is made when the device is opened.
    Own,
    /// The device gets that of another one, which goes.
    OfAnother,
}

/// Devices that are not open for one reason.
pub(crate) struct Alike<'a> {
    pub(crate) first: &'a Shut,
    /// The others, in words.
    pub(crate) more: String,
}

/// Devices that are not open, those together that are not for the same reason: a file system that is not mounted is one
/// thing to be told, not a thousand.
pub(crate) fn alike(shut: &[Shut]) -> Vec<Alike<'_>> {
    let mut kinds: Vec<(&Shut, Vec<&str>)> = Vec::new();
    let mut places: HashMap<(String, bool), usize> = HashMap::new();
    for one in shut {
        let kind = (one.reason(), one.retry.is_some());
        let at = *places.entry(kind).or_insert(kinds.len());
        match kinds.get_mut(at) {
            Some((_, others)) => others.push(one.plan.id()),
            None => kinds.push((one, Vec::new())),
        }
    }
    kinds.into_iter().map(|(first, others)| Alike { first, more: more(&others) }).collect()
}

fn more(others: &[&str]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let named = others.get(..others.len().min(ALIKE_NAMED)).unwrap_or_default().join(", ");
    let rest = if others.len() > ALIKE_NAMED { ", ..." } else { "" };
    format!(" (the same of {} more: {named}{rest})", others.len())
}

impl Manager {
    /// Opens a device and its socket, outside of the plan and of the loop.
    ///
    /// # Errors
    /// Why not; nothing was changed.
    pub(crate) fn open_device(&mut self, plan: DevicePlan) -> Result<Device, NotOpen> {
        self.open_device_with(plan, Socket::Own)
    }

    /// The same, with a socket of its own or without.
    ///
    /// # Errors
    /// As [`Self::open_device`].
    pub(crate) fn open_device_with(
        &mut self,
        plan: DevicePlan,
        socket: Socket,
    ) -> Result<Device, NotOpen> {
        let number = self.rooms.devices.next_number();
        if number >= DEVICES_END {
            let all = "this daemon has made all the devices it can name; restart it";
            return Err(NotOpen::Wrong(all.to_string()));
        }
        let inherited = self.estate.as_mut().and_then(|estate| estate.device_of(&plan));
        let promise = match &inherited {
            Some(_) => self.rooms.bounds.promise_again(&plan),
            None => self.rooms.bounds.promise(&plan).map_err(NotOpen::wrong)?,
        };
        let runs = |device: &&mut DeviceEstate| {
            device.connections.iter().any(|connection| connection.runs)
        };
        let has_guest = inherited.as_ref().is_some_and(runs);
        let (listener, disk, is_up) = match inherited {
            Some(device) => {
                let is_up = device.words.nic.as_ref().map(|nic| nic.is_up);
                (device.listener.take(), device.take_disk(), is_up)
            }
            None => (None, None, None),
        };
        let inherited = plan.disk().filter(|_| disk.is_some());
        if let Some(why) = inherited.and_then(images::given_up) {
            return Err(NotOpen::Wrong(why));
        }
        // Of one that another machine has nothing comes but what its link knows.
        let is_remote = |plan: &DiskPlan| matches!(plan.source, Source::Remote { .. });
        let disk = disk.filter(|_| !plan.disk().is_some_and(is_remote));
        let mut device = match (plan, disk) {
            (DevicePlan::Disk(plan), Some((handles, facts))) => {
                let mut parts = DiskParts::inherit(plan, &facts, handles, &self.rooms.bonds)?;
                self.recall_unsynced(&parts);
                // Now, and not when its rings stand still.
                if has_guest && let Some(image) = parts.bond.inherit() {
                    self.keep_image(&parts.plan.id, &image);
                }
                Device::new(number, Facts::from(&parts.plan), Kind::Disk(parts))
            }
            (DevicePlan::Disk(plan), None) => self.open_disk(number, plan)?,
            (DevicePlan::Nic(plan), _) => {
                let parts = NicParts::new(plan, None);
                is_up.into_iter().for_each(|is_up| parts.live.set_up(is_up));
                Device::new(number, Facts::from(&parts.plan), Kind::Nic(parts))
            }
        };
        device.listener = listener;
        device.promise = Some(promise);
        device.closer = Closer::counted_in(self.rooms.bounds.waiting());
        device.is_exported = self.is_exported(&device.facts.id);
        if let Err(why) = self.open_socket(&mut device, socket) {
            self.close_image(device, None);
            return Err(why);
        }
        self.rooms.devices.use_number();
        Ok(device)
    }

    /// Has a device that was opened listen, if it is to have a socket of its own that it has not.
    fn open_socket(&self, device: &mut Device, socket: Socket) -> Result<(), NotOpen> {
        let listens = device.facts.mode == Mode::Listen && !device.kind.is_off();
        let listens = listens && !device.is_exported && socket == Socket::Own;
        let path = Path::new(&device.facts.socket);
        let of_socket = |error: &dyn fmt::Display| {
            NotOpen::Wrong(format!("its socket {}: {error}", path.display()))
        };
        // Also of an heir's, which is to be found wrong before it serves.
        let rights = Rights::of(&device.facts.rights).map_err(|e| of_socket(&e))?;
        if socket == Socket::OfAnother {
            let given = rights.check_place(path).and_then(|()| rights.check_may_give(path));
            given.map_err(|e| of_socket(&e))?;
        }
        // An heir makes no socket that its predecessor has not: it listens when it serves.
        if listens && device.listener.is_none() && self.estate.is_none() {
            let listener = sockets::open_listener(path, &rights).map_err(|e| of_socket(&e))?;
            device.listener = Some(listener);
        }
        Ok(())
    }

    fn open_disk(&mut self, number: u32, plan: DiskPlan) -> Result<Device, NotOpen> {
        if matches!(plan.source, Source::Remote { .. }) {
            let facts = Facts::from(&plan);
            let mut parts = self.open_remote(plan)?.bound(&self.rooms.bonds);
            let is_lost = self.recall_unsynced(&parts);
            if let Some(remote) = &mut parts.remote {
                remote.is_lost = is_lost;
            }
            return Ok(Device::new(number, facts, Kind::Disk(parts)));
        }
        // A disk that was made once is not made again: whoever removed or unmounted its image is told.
        let shut = self.rooms.shut.iter().find(|shut| shut.plan.id() == plan.id);
        let is_new = shut.is_some_and(|shut| shut.is_new);
        let is_kept =
            plan.origin == Origin::Api && self.rooms.plan.disk(&plan.id).is_some() && !is_new;
        let is_tried_again = shut.is_some();
        let patience = if is_tried_again { Patience::Again } else { Patience::First };
        let facts = Facts::from(&plan);
        let opened =
            DiskParts::open(plan, is_kept, &self.rooms.bonds, &mut self.rooms.openers, patience);
        let parts = opened.map_err(|error| match error {
            (NotOpen::Ours(text), Some(file)) => NotOpen::Ours(self.name_holder(text, file)),
            (error, _) => error,
        })?;
        if let Some(ours) = self.shares_unlocked(&parts) {
            self.rooms.openers.let_go(&parts.plan, parts.disk, None);
            return Err(ours);
        }
        self.recall_unsynced(&parts);
        if parts.was_empty
            && let Some(path) = parts.plan.source.path()
        {
            warn!(disk = facts.id, "{path} was missing or empty; the disk is empty now");
        }
        Ok(Device::new(number, facts, Kind::Disk(parts)))
    }

    /// Serves a device that was opened; its plan is in the plan or about to be.
    ///
    /// # Errors
    /// The control loop takes no more sockets, or the NIC has no port; the device is closed.
    pub(crate) fn serve_device(&mut self, device: Device) -> Result<u32, NotOpen> {
        let number = device.number;
        if let Some(listener) = &device.listener
            && let Err(error) = self.rooms.poll.add(listener, Token::Listener(number))
        {
            self.discard(device);
            return Err(NotOpen::Wrong(format!("its socket: {error}")));
        }
        if let Some(failure) = device.kind.disk().and_then(|disk| disk.disk.sync_failure_fd())
            && let Err(error) = self.rooms.poll.add(failure, Token::Unsynced(number))
        {
            self.discard(device);
            return Err(NotOpen::Wrong(format!("it cannot be watched: {error}")));
        }
        self.rooms.watch.wake();
        self.rooms.devices.insert(number, device);
        self.meter(number);
        if let Err(error) = self.plug_in(number) {
            if let Some(device) = self.rooms.devices.remove(number) {
                self.discard(device);
            }
            return Err(NotOpen::wrong(error));
        }
        if self.estate.is_none() {
            // That its image was cut, which the next start would not see.
            self.keep_begun(number);
        }
        self.plan_connect(number);
        self.export_disk(number);
        Ok(number)
    }

    /// Closes a device that could not be served. The socket of one that another daemon still serves stays
    /// where it is.
    fn discard(&mut self, mut device: Device) {
        match self.estate {
            Some(_) => drop(device.listener.take()),
            None => device.close_socket(),
        }
        self.close_image(device, None);
    }

    /// Takes a device of the plan in at the start: open when that can be, otherwise shut. One image
    /// that is missing must not take every tenant down when the daemon starts again after a crash.
    pub(crate) fn take_in(&mut self, plan: DevicePlan) {
        if let Some(estate) = &mut self.estate
            && estate.device_of(&plan).is_none()
        {
            // Nothing is opened by name before the predecessor has let go.
            let why = "waits until the daemon before this one has ended".to_string();
            return self.rooms.shut.push(Shut::waiting(plan, why, self.rooms.turn.now()));
        }
        let opened = self.open_device(plan.clone()).and_then(|device| self.serve_device(device));
        if let Err(why) = opened {
            self.rooms.shut.push(match why {
                NotOpen::Ended(_) | NotOpen::Late(_) | NotOpen::Living(_) => {
                    Shut::waiting_for(plan, &why, self.rooms.turn.now())
                }
                NotOpen::Ours(_) | NotOpen::Wrong(_) => Shut::failed(plan, why.to_string()),
            });
        }
    }

    /// Writes into the log which devices are not open, and why.
    pub(crate) fn log_shut(&self) {
        for Alike { first, more } in alike(&self.rooms.shut) {
            let (device, why) = (first.plan.id(), &first.problem);
            match first.retry {
                Some(_) => warn!(device, "waits: {why}{more}"),
                None => error!(device, "cannot be served: {why}{more}"),
            }
        }
    }

    /// The device of that name that is not open.
    pub(crate) fn shut_device(&mut self, id: &str) -> Option<&mut Shut> {
        self.rooms.shut.iter_mut().find(|shut| shut.plan.id() == id)
    }

    /// Tries again what is due.
    pub(crate) fn open_shut(&mut self) {
        let now = self.rooms.turn.now();
        let is_due = |shut: &Shut| shut.due_at().is_some_and(|at| at <= now);
        let due: Vec<DevicePlan> = self
            .rooms
            .shut
            .iter()
            .filter(|shut| is_due(shut))
            .map(|shut| shut.plan.clone())
            .collect();
        for plan in due {
            self.open_again(plan, now);
        }
    }

    fn open_again(&mut self, plan: DevicePlan, now: Instant) {
        let id = plan.id().to_string();
        let opened = self.open_device(plan).and_then(|device| self.serve_device(device));
        let removing = self.rooms.devices.values().any(|device| device.removing)
            || self.rooms.openers.is_closing()
            || self.is_taking();
        let why = match opened {
            Ok(_) => {
                self.rooms.shut.retain(|shut| shut.plan.id() != id);
                return info!(device = id, "open now");
            }
            Err(why) => why,
        };
        let shut =
            found!(self.rooms.turn.defects, self.shut_device(&id), "device that is not open");
        // Of what nobody knows yet holds what was known.
        if !matches!(why, NotOpen::Late(_)) || shut.problem.ends_with(NO_THREAD) {
            shut.problem = why.to_string();
            shut.is_living = matches!(why, NotOpen::Living(_));
        }
        shut.retry = match shut.retry.filter(|retry| retry.is_worth(&why, removing, now)) {
            Some(retry) => Some(retry.again(now)),
            None => {
                error!(device = id, "cannot be served: {why}");
                None
            }
        };
    }

    /// A disk is gone: what waited for its image or socket is tried at once.
    pub(crate) fn retry_shut(&mut self) {
        let now = self.rooms.turn.now();
        for retry in self.rooms.shut.iter_mut().filter_map(|shut| shut.retry.as_mut()) {
            (retry.since, retry.at, retry.pause) = (now, now, PAUSE_MIN);
        }
    }

    /// Which disk of ours holds what `path` names, in words; the file may have several names.
    pub(crate) fn name_holder(&self, text: String, file: FileId) -> String {
        let path_of = |device: &'_ Device| {
            let parts = device.kind.disk().filter(|parts| parts.file == Some(file))?;
            parts.plan.source.path().map(str::to_string)
        };
        let holder =
            self.rooms.devices.values().find_map(|device| Some((device, path_of(device)?)));
        match holder {
            Some((device, path)) => {
                let (id, leaving) = (
                    &device.facts.id,
                    if device.removing { ", which is being removed" } else { "" },
                );
                format!("{text}: it is disk {id:?} ({path}) of this daemon{leaving}")
            }
            None => text,
        }
    }
}

/// Whether two disks are made of one image, as far as names tell, or of one disk at an IOhost.
pub(crate) fn is_same_image(a: &Source, b: &Source) -> bool {
    if let (Source::Remote { link: a, name: c }, Source::Remote { link: b, name: d }) = (a, b) {
        return a == b && c == d;
    }
    let (Some(a), Some(b)) = (a.path(), b.path()) else { return false };
    a == b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    #[test]
    fn a_thousand_devices_without_their_file_system_are_one_line() {
        let host = cpus::HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
        let text: String = (0..1000)
            .map(|n| format!("[[disk]]\nid = \"vm{n}\"\npath = \"/srv/image{n}\"\n"))
            .collect();
        let plan = config::plan::load(&text, "f", "/etc", &host, None).unwrap();
        let mut shut: Vec<Shut> = plan
            .disks
            .into_iter()
            .map(|disk| {
                let why = format!("cannot open {}: No such file", disk.source.path().unwrap());
                Shut::failed(DevicePlan::Disk(disk), why)
            })
            .collect();
        shut[7].problem = "something else".to_string();
        let told: Vec<String> =
            alike(&shut).iter().map(|it| format!("{}{}", it.first.problem, it.more)).collect();
        let expected =
            "cannot open /srv/image0: No such file (the same of 998 more: vm1, vm2, vm3, ...)";
        assert_eq!(told, [expected, "something else"]);
    }

    #[test]
    fn a_disk_that_answers_soon_is_found_soon_and_one_that_does_not_costs_little() {
        let start = now();
        let (mut retry, mut attempts_in) = (Retry::from(start), [0, 0]);
        while retry.at < start + Duration::from_secs(120) {
            let waited = retry.at - start;
            attempts_in[usize::from(waited >= Duration::from_secs(60))] += 1;
            let next = retry.again(retry.at);
            assert!(next.at - retry.at <= PAUSE_MAX.max(waited / 16), "{waited:?}");
            retry = next;
        }
        assert!(attempts_in[0] > 60, "{attempts_in:?}");
        assert_eq!(attempts_in[1], 60);
    }
}
