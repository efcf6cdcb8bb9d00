//! Disks whose lock follows their rings (`migratable`): taken before the first ring of a guest starts,
//! let go when the last one has stopped.
//!
//! Two daemons have such a disk, and one at a time its locks; a guest's rings wait here until they
//! come (docs/decisions/0010). While the locks are elsewhere nothing of the image is open here. Letting
//! go is a sync on a thread of its own, then the last close; until it is over, the message that stopped
//! the last ring is not answered. Not here: the locks themselves (`backend`), and disks that are locked
//! for as long as they are in the plan (`shut`). Called by `manager`, before it starts rings and when they are
//! back; by `connections`, before it answers that a ring has stopped; by `calls`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Instant;

use backend::Disk;
use config::Plan;
use confine::Kind;
use control::mode::Mode;
use control::retry::Retry;
use rustix::event::{EventfdFlags, eventfd};
use sidecore::{instant_of, nanos_of};
use tracing::{info, warn};
use vhost_user::Message;

use crate::bonds::Bonds;
use crate::defects::found;
use crate::device::Device;
use crate::devices::Devices;
use crate::disk::{DiskParts, follows};
use crate::image::Found;
use crate::opening::not_open::NotOpen;
use crate::opening::openers::{Openers, Patience};
use crate::poll::{Poll, Token};
use crate::queue::Queue;
use crate::threads;
use crate::turn::Turn;
use crate::unsynced::Unsynced;
use crate::watch::Watch;

/// Where the locks of such a disk are.
pub(crate) enum Stand {
    /// Not here. When they are asked for again, and why they were refused, if a ring waits.
    Away(Option<(Retry, NotOpen)>),
    /// Here.
    Here,
    /// Being let go.
    Parting(Parting),
}

/// A disk that is being let go.
pub(crate) struct Parting {
    since: Instant,
    /// Readable when it is over.
    done: OwnedFd,
    /// The disk comes back when what was written could not be made stable.
    outcome: Receiver<Option<Arc<Disk>>>,
}

impl Parting {
    /// Syncs and closes on a thread of its own, because either takes as long as the disk wants.
    ///
    /// # Errors
    /// No descriptor or no thread is left; `disk` is as it was.
    fn begin(disk: &Arc<Disk>, now: Instant) -> std::io::Result<Parting> {
        let done = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (end, disk) = (done.try_clone()?, Arc::clone(disk));
        let (tell, outcome) = sync_channel(1);
        threads::begin("parting", Kind::Parting, move || {
            let kept = if disk.sync() { None } else { Some(Arc::clone(&disk)) };
            // The last close, with which the locks go, comes before the word of it.
            drop(disk);
            let _ = tell.send(kept);
            let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
        })?;
        Ok(Parting { since: now, done, outcome })
    }
}

/// What is to be done about a lock, if it is not another guest's.
const STOP_IT: &str = "; stop that process or give another image";

impl DiskParts {
    /// Whether its rings may be served: its locks are here.
    pub(crate) fn is_here(&self) -> bool {
        !self.disk.is_away()
    }

    /// When its locks are asked for again, if a ring waits for them.
    pub(crate) fn asks_at(&self) -> Option<Instant> {
        match self.stand.as_ref()? {
            Stand::Away(Some((retry, _))) => Some(instant_of(retry.due_at())),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn asks(&mut self) -> Option<&mut Retry> {
        match self.stand.as_mut()? {
            Stand::Away(Some((retry, _))) => Some(retry),
            _ => None,
        }
    }

    /// Since when it is being let go.
    pub(crate) fn parting_since(&self) -> Option<Instant> {
        match self.stand.as_ref()? {
            Stand::Parting(parting) => Some(parting.since),
            _ => None,
        }
    }

    /// A front-end has gone in order, and the image with it: on what its guest is when it comes back, from
    /// another daemon, is not known here.
    pub(crate) fn forget_parted(&mut self, bonds: &mut Bonds) {
        let has_left = follows(&self.plan) && matches!(self.stand, Some(Stand::Away(_)));
        if has_left && self.bond.part() {
            let (id, socket) = (&self.plan.id, &self.plan.socket);
            if let Err(error) = bonds.forget(id, socket) {
                warn!(disk = id, %error, "which image its guest was on could not be forgotten");
            }
        }
    }

    /// Begins to let it go, as the disk of that device, none of whose rings is with a sidecore. False: it stays,
    /// because it has lost data and only an operator knows what to do, or there is nobody to do it.
    pub(crate) fn let_go(&mut self, number: u32, now: Instant, poll: &Poll) -> bool {
        if self.disk.sync_failed() {
            return false;
        }
        let begun = Parting::begin(&self.disk, now).and_then(|parting| {
            poll.add(parting.done.as_fd(), Token::Parted(number)).map(|()| parting)
        });
        match begun {
            Ok(parting) => {
                self.disk = self.disk.away();
                self.stand = Some(Stand::Parting(parting));
                true
            }
            Err(error) => {
                warn!(disk = self.plan.id, %error, "its image cannot be let go");
                false
            }
        }
    }

    /// Why a ring waits for its locks.
    pub(crate) fn waits_for(&self, now: Instant) -> Option<String> {
        if let Some(remote) = &self.remote {
            return remote.waits_for(now);
        }
        match self.stand.as_ref()? {
            Stand::Away(Some((_, why))) => {
                let why = why.to_string();
                // Whoever stopped that process would stop the guest there.
                let why = match why.strip_suffix(STOP_IT) {
                    Some(why) => {
                        format!("{why}; it goes on when the guest there has stopped or moved")
                    }
                    None => why,
                };
                Some(format!("its guest waits for the image: {why}"))
            }
            _ => None,
        }
    }
}

impl Device {
    /// Whether a guest's driver is at a ring of it, enabled or not, other than ring `but`.
    pub(crate) fn is_started(&self, but: Option<u32>) -> bool {
        let connection = self.runner.and_then(|id| self.connections.get(&id));
        let other = |index: &u16| but != Some(u32::from(*index));
        let mut rings = (0..self.facts.rings).filter(other);
        connection
            .is_some_and(|connection| rings.any(|index| connection.session.set_up(index).is_some()))
    }

    /// Whether the answer to a message of connection `id` waits until the disk has been let go: the message stops
    /// its last ring, and whoever reads the answer may start it elsewhere.
    pub(crate) fn parts_first(&mut self, id: u32, mode: Mode, now: Instant, poll: &Poll) -> bool {
        let connection = self.connections.get(&id).filter(|_| self.runner == Some(id));
        let held = connection.and_then(|connection| connection.life.held());
        let Some(Message::GetVringBase(state)) = held.map(|held| &held.message) else {
            return false;
        };
        let is_last = self.attached().is_empty() && !self.is_started(Some(state.queue));
        let Some(disk) = self.kind.disk_mut() else { return false };
        match &disk.stand {
            Some(Stand::Parting(_)) => true,
            // Another process may be about to take over: it is that one's to let go.
            Some(Stand::Here) if is_last && mode.has_heir() => true,
            Some(Stand::Here) if is_last => disk.let_go(self.number, now, poll),
            _ => false,
        }
    }

    /// The locks of its disk are here. Whether it has another size.
    fn has_come(&mut self, disk: Arc<Disk>, bonds: &Bonds) -> bool {
        let Some(parts) = self.kind.disk_mut() else { return false };
        let grew = disk.size_bytes() != parts.disk.size_bytes();
        parts.was_empty |= disk.was_empty();
        disk.count_on_from(&parts.disk);
        parts.disk = disk;
        parts.stand = follows(&parts.plan).then_some(Stand::Here);
        let found = Found::of(&parts.disk, &parts.plan, bonds.boot());
        parts.astray = None;
        if parts.bond.find(found) {
            // What its rings were served from is not what they would be served from now.
            self.queues.iter_mut().for_each(Queue::forget_guest);
        }
        grew
    }

    /// Its disk was let go, or could not be. Whether it is gone; nothing: it is not over yet.
    pub(crate) fn has_parted(&mut self) -> Option<bool> {
        let was_served = self.queues.iter().any(Queue::was_attached);
        let parts = self.kind.disk_mut()?;
        let Some(Stand::Parting(parting)) = &parts.stand else { return None };
        let kept = match parting.outcome.try_recv() {
            Err(TryRecvError::Empty) => return None,
            outcome => outcome.ok().flatten(),
        };
        let is_gone = kept.is_none();
        parts.stand = Some(if is_gone { Stand::Away(None) } else { Stand::Here });
        match kept {
            Some(disk) => parts.disk = disk,
            // From here on it is no new disk, wherever its guest goes.
            None => parts.was_empty &= !was_served,
        }
        Some(is_gone)
    }

    /// Whether a ring could start but for the locks of its disk.
    pub(crate) fn wants_to_start(&self) -> bool {
        let Some(id) = self.runner else { return false };
        let connection =
            self.connections.get(&id).filter(|connection| connection.life.held().is_none());
        let mut rings = 0..self.facts.rings;
        connection
            .is_some_and(|connection| rings.any(|index| connection.session.ready(index).is_some()))
            || self.starts_first(id).is_some()
    }
}

/// Disks whose locks follow their rings, and what they reach.
pub(crate) struct Locks<'a> {
    pub(crate) turn: &'a mut Turn,
    pub(crate) devices: &'a mut Devices,
    pub(crate) poll: &'a Poll,
    pub(crate) plan: &'a Plan,
    pub(crate) bonds: &'a mut Bonds,
    pub(crate) openers: &'a mut Openers,
    pub(crate) unsynced: &'a Unsynced,
    pub(crate) watch: &'a mut Watch,
}

/// What became of a wish for the locks of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// They are elsewhere.
    Not,
    /// They are here.
    Here,
    /// They are, and the disk is larger or smaller than it was. Its front-ends were told.
    Resized,
}

impl Locks<'_> {
    /// Of the rings of a device, how many may start as far as the locks of its disk go: all or none. Takes
    /// the locks when one wants to start, and lets them go when none is there any more.
    ///
    /// `is_clients`: a client has it, be it one that has not come back yet since another process took over.
    pub(crate) fn follow(&mut self, number: u32, is_clients: bool, mode: Mode) -> u16 {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device whose rings may start");
        let rings = device.facts.rings;
        let remote = device.kind.disk().and_then(|disk| disk.remote.as_ref());
        if remote.is_some_and(|remote| !remote.is_asked_for()) {
            // Its IOhost has none for this machine now: requests wait in their rings until it has one again.
            return 0;
        }
        if mode.has_heir() {
            // It stays where another process is told, or is about to be told, that it is.
            let is_here = device.kind.disk().is_none_or(DiskParts::is_here);
            return if is_here { rings } else { 0 };
        }
        let wants = device.wants_to_start();
        let is_idle = device.attached().is_empty() && !device.is_started(None) && !is_clients;
        let Some(disk) = device.kind.disk_mut() else { return rings };
        let now = self.turn.now();
        let may_start = match &mut disk.stand {
            None => true,
            Some(Stand::Here) => !is_idle || !disk.let_go(number, now, self.poll),
            Some(Stand::Parting(_)) => false,
            Some(Stand::Away(_)) if wants => self.take(number) != Taken::Not,
            Some(Stand::Away(asked)) => {
                // With it goes what was being opened (`drop_unwanted`).
                *asked = None;
                false
            }
        };
        if may_start { rings } else { 0 }
    }

    /// Asks for the locks of a disk, unless that was done a moment ago.
    pub(crate) fn take(&mut self, number: u32) -> Taken {
        let now = self.turn.now();
        let parts = self.devices.get(number).and_then(|device| device.kind.disk());
        // A client that asks for one that is gone is told so.
        let Some(parts) = parts else { return Taken::Not };
        if parts.asks_at().is_some_and(|at| at > now) {
            return Taken::Not;
        }
        let asked = match &parts.stand {
            Some(Stand::Away(Some((retry, _)))) => Some(*retry),
            _ => None,
        };
        let patience = if asked.is_some() { Patience::Again } else { Patience::Soon };
        let taken =
            parts.open_again(&parts.plan, self.bonds, self.openers, patience).and_then(|disk| {
                let failure =
                    disk.sync_failure_fd().map(|fd| self.poll.add(fd, Token::Unsynced(number)));
                let watched = failure.transpose().map(|_| Arc::clone(&disk));
                watched.map_err(|e| {
                    self.openers.let_go(&parts.plan, disk, None);
                    NotOpen::Wrong(format!("it cannot be watched: {e}"))
                })
            });
        let id = parts.plan.id.clone();
        match taken {
            Ok(disk) => {
                if asked.is_some() {
                    info!(disk = id, "its image is free now");
                }
                self.has_come(number, disk)
            }
            Err(why) => {
                if asked.is_none() {
                    warn!(disk = id, "its guest waits for the image: {why}");
                }
                let retry = asked.unwrap_or_else(|| Retry::from(nanos_of(now)));
                let asked = Some((retry.again(nanos_of(now)), why));
                match self.devices.disk_mut(number) {
                    Some(parts) => parts.stand = Some(Stand::Away(asked)),
                    None => self.turn.defects.note("disk whose locks do not come"),
                }
                Taken::Not
            }
        }
    }

    /// The locks of a disk are here: what was written elsewhere meanwhile is found.
    fn has_come(&mut self, number: u32, disk: Arc<Disk>) -> Taken {
        let Some(device) = self.devices.get_mut(number) else {
            self.turn.defects.note("disk whose locks have come");
            return Taken::Here;
        };
        let grew = device.has_come(disk, self.bonds);
        self.devices.keep_begun(number, self.bonds, self.plan);
        self.watch.wake();
        if let Some(device) = self.devices.get_mut(number) {
            if let Some(parts) = device.kind.disk() {
                self.unsynced.recall(parts);
            }
            if grew {
                device.tell_capacity(self.turn);
            }
        }
        if grew { Taken::Resized } else { Taken::Here }
    }

    /// Has locks asked for whose time has come.
    pub(crate) fn touch_due(&mut self) {
        let now = self.turn.now();
        let due = |device: &&Device| device.asks_at().is_some_and(|at| at <= now);
        self.turn.touch_all(self.devices.values().filter(due).map(|device| device.number));
    }
}
