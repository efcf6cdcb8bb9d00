//! Disks whose lock follows their rings (`migratable`): taken before the first ring of a guest starts,
//! let go when the last one has stopped.
//!
//! Two daemons have such a disk, and one at a time its locks; a guest's rings wait here until they
//! come (docs/decisions/0010). While the locks are elsewhere nothing of the image is open here. Letting
//! go is a sync on a thread of its own, then the last close; until it is over, the message that stopped
//! the last ring is not answered. Not here: the locks themselves (`backend`), and disks that are locked
//! for as long as they are in the plan (`opening`). Called by `manager`, before it starts rings and when they are
//! back. Where locks are: `control::disk`; how
//! they are let go: `parting`.

use std::sync::Arc;

use backend::Disk;
use config::Plan;
use control::disk::Ask;
use control::mode::Mode;
use sidecore::nanos_of;
use tracing::{info, warn};

use crate::defects::found;
use crate::devices::Devices;
use crate::devices::device::Device;
use crate::disk::DiskParts;
use crate::disk::bonds::Bonds;
use crate::disk::unsynced::Unsynced;
use crate::disk::watch::Watch;
use crate::opening::not_open::NotOpen;
use crate::opening::openers::{Openers, Patience};
use crate::poll::{Poll, Token};
use crate::turn::Turn;

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
        let rings = device.facts().rings;
        let remote = device.disk().and_then(|disk| disk.remote.as_ref());
        if remote.is_some_and(|remote| !remote.is_asked_for()) {
            // Its IOhost has none for this machine now: requests wait in their rings until it has one again.
            return 0;
        }
        let is_given_up = device.disk().is_some_and(|disk| disk.locks.is_fenced());
        // What an heir is told nothing of before it is here: an upgrade waits for it.
        let is_kept_open = device.disk().is_some_and(DiskParts::is_kept_open);
        let is_anothers = mode.has_heir() && !is_kept_open;
        if is_anothers || mode.may_be_taken_back() && !is_given_up {
            // It stays where another process is told, or is about to be told, or has told, that it is.
            let is_here = device.disk().is_none_or(|disk| disk.locks.is_here());
            return if is_here { rings } else { 0 };
        }
        let wants = device.wants_to_start();
        let is_idle = device.attached().is_empty() && !device.is_started(None) && !is_clients;
        let is_awaited = device.is_parting_for_one();
        let Some(disk) = device.disk_mut() else { return rings };
        let now = self.turn.now();
        if !is_idle && !is_clients && !is_awaited {
            disk.forget_unbegun();
        }
        let may_start = if disk.locks.is_here() {
            !is_idle || !disk.let_go(number, now, self.poll)
        } else if wants || is_clients || disk.locks.is_fenced() {
            let is_here = self.take(number) != Taken::Not;
            if is_here && is_idle {
                // One that was given up and that nobody has is let go.
                self.turn.touch(number);
            }
            is_here
        } else {
            // With the wish goes what was being opened (`drop_unwanted`).
            disk.locks.forget();
            false
        };
        if may_start { rings } else { 0 }
    }

    /// Asks for the locks of a disk, unless they are here, are being let go, or were asked for a moment ago.
    pub(crate) fn take(&mut self, number: u32) -> Taken {
        let now = self.turn.now();
        let is_lent = self.devices.get(number).is_some_and(Device::is_exported);
        let parts = self.devices.disk_mut(number);
        // A client that asks for one that is gone is told so.
        let Some(parts) = parts else { return Taken::Not };
        let again = match parts.locks.ask(nanos_of(now)) {
            Ask::Here => return Taken::Here,
            Ask::Later => return Taken::Not,
            Ask::Now { again } => again,
        };
        let patience = if again { Patience::Again } else { Patience::Soon };
        let taken = parts
            .give_up(self.bonds, self.openers, patience)
            .and_then(|()| {
                let plan = parts.plan_as_given_up();
                parts.open_again(&plan, self.bonds, self.openers, patience)
            })
            .and_then(|disk| {
                if let Some(why) = parts.is_another(&disk, is_lent, self.bonds) {
                    self.openers.let_go(&parts.plan, disk, None);
                    return Err(why);
                }
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
                if again {
                    info!(disk = id, "its image is free now");
                }
                self.has_come(number, disk)
            }
            Err(why) => {
                // Of what nobody knows yet holds what was found.
                let known = parts.locks.why().filter(|known| known.is_found());
                let why = if why.is_found() { why } else { known.cloned().unwrap_or(why) };
                let parts = self.devices.disk_mut(number);
                let words = parts.and_then(|parts| {
                    parts.locks.refused(why, nanos_of(now)).then(|| parts.waits_for())
                });
                match words {
                    Some(Some(words)) if !again => warn!(disk = id, "{words}"),
                    Some(_) => {}
                    None => self.turn.defects.note("disk whose locks do not come"),
                }
                Taken::Not
            }
        }
    }

    /// The locks of a disk are here: what was written elsewhere meanwhile is found.
    fn has_come(&mut self, number: u32, disk: Arc<Disk>) -> Taken {
        let device = self.devices.get_mut(number);
        let Some(grew) = device.and_then(|device| device.has_come(disk, self.bonds)) else {
            self.turn.defects.note("disk whose locks have come");
            return Taken::Here;
        };
        self.devices.keep_begun(number, self.bonds, self.plan);
        self.watch.wake();
        match self.devices.disk_mut(number) {
            Some(parts) => {
                self.unsynced.recall(parts);
            }
            None => self.turn.defects.note("disk whose locks have come"),
        }
        if let Some(device) = self.devices.get_mut(number).filter(|_| grew) {
            device.tell_capacity(self.turn);
        }
        if grew { Taken::Resized } else { Taken::Here }
    }

    /// Has locks asked for whose time has come.
    pub(crate) fn touch_due(&mut self) {
        let now = self.turn.now();
        let due = |device: &&Device| device.asks_at().is_some_and(|at| at <= now);
        self.turn.touch_all(self.devices.values().filter(due).map(|device| device.number()));
    }
}

#[cfg(test)]
mod tests;
