//! The image of a disk whose locks follow its rings: how it is let go, and what is told of one that is not here.
//!
//! Letting go is a sync on a thread of its own, then the last close. Not here: when that is done (`locks`), and where
//! locks are meanwhile (`control::disk`).

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use backend::{Anchor, Disk};
use control::retry::{Obstacle, Retry};
use sidecore::{instant_of, nanos_of};
use tracing::warn;

use crate::disk::DiskParts;
use crate::disk::bonds::{Bonds, Vetting};
use crate::disk::image::Found;
use crate::disk::sync::DiskSync;
use crate::opening::not_open::NotOpen;
use crate::opening::openers::{Openers, Outcome, Patience};
use crate::poll::{Poll, Token};
use crate::problems::together;
use crate::remote::availability::Requests;

/// Between two tries to begin it.
const BEGIN_INTERVAL: Duration = Duration::from_secs(1);

/// What was written cannot begin to be made stable, since no thread or descriptor is left for that.
#[derive(Debug)]
pub(crate) struct Unbegun {
    why: String,
    retry_at: Instant,
}

impl DiskParts {
    /// When its locks are asked for again, if a ring waits for them.
    pub(crate) fn asks_at(&self) -> Option<Instant> {
        self.locks.due_at().map(instant_of)
    }

    /// When it is tried again to begin to make stable what was written.
    pub(crate) fn begins_at(&self) -> Option<Instant> {
        self.unbegun.as_ref().map(|unbegun| unbegun.retry_at)
    }

    /// Why that cannot begin.
    pub(crate) fn unbegun_why(&self) -> Option<&str> {
        self.unbegun.as_ref().map(|unbegun| unbegun.why.as_str())
    }

    /// Begins to make stable what was written; `token` tells the loop that it is over. Nothing: that cannot be now, and
    /// whoever wants it is to ask again when it is due.
    pub(crate) fn begin_sync(
        &mut self,
        token: Token,
        now: Instant,
        poll: &Poll,
    ) -> Option<DiskSync> {
        let begun = DiskSync::begin(&self.disk)
            .and_then(|sync| poll.add(sync.as_fd(), token).map(|()| sync));
        match begun {
            Ok(sync) => {
                self.unbegun = None;
                Some(sync)
            }
            Err(error) => {
                let why = format!(
                    "what was written cannot be made stable now: {error}; it is tried again every second"
                );
                if self.unbegun_why() != Some(&why) {
                    warn!(disk = self.plan.id, "{why}");
                }
                self.unbegun = Some(Box::new(Unbegun { why, retry_at: now + BEGIN_INTERVAL }));
                None
            }
        }
    }

    /// Nobody wants that any more.
    pub(crate) fn forget_unbegun(&mut self) {
        self.unbegun = None;
    }

    /// Closes what is open here of an image whose locks were [given up](control::disk::DiskLocks::fence), if it still
    /// is: it is opened again by what is kept.
    ///
    /// # Errors
    /// Nothing can be kept now, or its file system has not answered: it stays open, so that it is not lost, and is given
    /// up later.
    pub(crate) fn give_up(
        &mut self,
        bonds: &Bonds,
        openers: &mut Openers,
        patience: Patience,
    ) -> Result<(), NotOpen> {
        if !self.locks.is_fenced() || self.disk.is_away() {
            return Ok(());
        }
        let vetting = Vetting::of(&self.plan, bonds, true);
        let away = match openers.give_up(&self.disk, &self.plan, vetting, patience) {
            Outcome::Over(kept, _) => kept.map_err(|why| {
                let may_land = "what another process did with it may be under way";
                NotOpen::Ended(format!("{why}; {may_land}"))
            }),
            Outcome::NotYet(why) => {
                Err(NotOpen::not_yet(why, self.plan.source.path().unwrap_or_default()))
            }
            Outcome::Missing { .. } | Outcome::GivenUp(_) | Outcome::Unfit(_) => {
                Err(NotOpen::Late("it is to be given up".to_string()))
            }
        }?;
        if let Some(error) = away.disk.anchor().and_then(Anchor::unkept) {
            warn!(
                disk = self.plan.id,
                "until its image is opened again anybody may take it: {error}"
            );
        }
        // With what is open goes what is known of it alone.
        self.lost_before |= self.disk.sync_failed();
        let held = std::mem::replace(&mut self.disk, away.disk);
        // A last close waits for as long as the file system does.
        openers.let_go(&self.plan, held, None);
        Ok(())
    }

    /// Whether it was given up for a process that died, and its image is to be closed here and opened again.
    pub(crate) fn is_kept_open(&self) -> bool {
        self.locks.is_fenced() && !self.disk.is_away()
    }

    /// Whether it was given up for a process that died, of whose requests nobody knows yet that they are over. Of one
    /// that somebody else could lock that is known; of one that is not there, or cannot be opened, it is not.
    pub(crate) fn is_unsettled(&self) -> bool {
        let may_land = match self.locks.why() {
            // What has its name may be another one.
            Some(NotOpen::Ours(_) | NotOpen::Living(_)) => {
                !self.disk.anchor().is_some_and(Anchor::is_of_file)
            }
            None
            | Some(
                NotOpen::Ended(_)
                | NotOpen::Hidden(_)
                | NotOpen::Late(_)
                | NotOpen::Landing(_)
                | NotOpen::Unfit(_)
                | NotOpen::Wrong(_),
            ) => true,
        };
        self.locks.is_fenced() && may_land
    }

    /// Why it is not had, though it could be: what was given up was another one. Nothing of what is there is read, by
    /// whoever had that.
    pub(crate) fn is_another(&self, disk: &Disk, is_lent: bool, bonds: &Bonds) -> Option<NotOpen> {
        let found = Found::of(disk, &self.plan, bonds.boot())?;
        let is_another = self.locks.is_fenced() && self.bond.is_another(&found, is_lent);
        is_another.then(|| {
            let path = self.plan.source.path().unwrap_or_default();
            NotOpen::Wrong(format!(
                "{path} is another image than the one that was served: put that one back, or restart the daemon"
            ))
        })
    }

    /// Whether it, given up for a process that died, is waited for by whoever has let it go since then: its locks come by
    /// themselves, as far as is known. For `longest` at most, as any front-end waits.
    pub(crate) fn comes_back(&self, since: Instant, longest: Duration, now: Instant) -> bool {
        let met = self.locks.why().map_or(Obstacle::Passing, NotOpen::obstacle);
        let retry = Retry::from(nanos_of(since)).unless_given_up(met, false, nanos_of(now));
        retry.is_some() && now < since + longest
    }

    /// Since when it is being let go.
    pub(crate) fn parting_since(&self) -> Option<Instant> {
        self.locks.parting_since().map(instant_of)
    }

    /// A front-end has gone in order, and the image with it: on what its guest is when it comes back, from
    /// another daemon, is not known here.
    pub(crate) fn forget_parted(&mut self, bonds: &mut Bonds) {
        let has_left = self.locks.follows() && self.locks.is_away();
        if has_left && self.bond.part() {
            let (id, socket) = (&self.plan.id, &self.plan.socket);
            if let Err(error) = bonds.forget(id, socket) {
                warn!(disk = id, %error, "which image its guest was on could not be forgotten");
            }
        }
    }

    /// Begins to let it go, as the disk of that device, none of whose rings is with a sidecore. False: it stays,
    /// because it has lost data and only an operator knows what to do, or there is nobody to do it now.
    pub(crate) fn let_go(&mut self, number: u32, now: Instant, poll: &Poll) -> bool {
        if self.disk.sync_failed() || !self.locks.may_part() {
            self.forget_unbegun();
            return false;
        }
        let Some(parting) = self.begin_sync(Token::Parted(number), now, poll) else { return false };
        self.disk = self.disk.away();
        self.locks.part(parting, nanos_of(now)).is_ok()
    }

    /// What is in the way of its guest's requests: what they do, and why. That they fail comes first.
    pub(crate) fn hindered(&self, now: Instant) -> Option<(Requests, String)> {
        let at_iohost = self.remote.as_ref().and_then(|it| it.availability().verdict(now));
        let wait = |why: String| (Requests::Wait, why);
        match at_iohost {
            Some((Requests::Fail, _)) => at_iohost,
            _ => {
                let refused = self.bond.refused().map(ToString::to_string);
                together([refused, at_iohost.map(|(_, why)| why), self.waits_for()]).map(wait)
            }
        }
    }

    /// Why a ring waits for its locks.
    pub(crate) fn waits_for(&self) -> Option<String> {
        let why = self.locks.why()?.to_string();
        // Whoever stopped that process would stop the guest there.
        let todo = [backend::LET_IT_MOVE, backend::STOP_IT];
        let why = match todo.iter().find_map(|todo| why.strip_suffix(todo)) {
            Some(why) => format!(
                "{why}; it goes on when the guest there has stopped or moved (and where data was lost there, when somebody \
                 has said `sidecore disk clear` there)"
            ),
            None => why,
        };
        Some(format!("it waits for its image: {why}"))
    }
}

#[cfg(test)]
mod tests;
