//! Where the locks of a disk are that follow its rings, and how they are let go.
//!
//! Letting go is a sync on a thread of its own, then the last close. Not here: when that is done (`locks`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Instant;

use backend::Disk;
use confine::Kind;
use control::retry::Retry;
use rustix::event::{EventfdFlags, eventfd};
use sidecore::instant_of;
use tracing::warn;

use crate::disk::bonds::Bonds;
use crate::disk::{DiskParts, follows};
use crate::opening::not_open::NotOpen;
use crate::poll::{Poll, Token};
use crate::threads;

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

    /// The disk, if what was written could not be made stable; nothing: it is not over yet.
    pub(crate) fn outcome(&self) -> Option<Option<Arc<Disk>>> {
        match self.outcome.try_recv() {
            Err(TryRecvError::Empty) => None,
            outcome => Some(outcome.ok().flatten()),
        }
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
