//! Where the locks of a disk are, and with them its image: here, being let go, elsewhere, or asked for.
//!
//! Of most disks they are here for as long as the device is; of some they follow whoever has the disk, a guest or a
//! client. Not here: who has it ([`crate::shard::Loan`]), and how an image is opened and closed. `P` is a parting that
//! is under way, `W` is why the locks were refused.
//!
//! | | ask | let go | parted, gone | parted, kept | came | refused | nobody asks | fence |
//! |---|---|---|---|---|---|---|---|---|
//! | here | here | parting, if they follow | - | - | - | - | - | away |
//! | parting | later | - | away | here | - | - | - | - |
//! | away | now | - | - | - | here | waits | - | - |
//! | waits | later, or now when it is due | - | - | - | here | waits, for longer | away | - |

use schedule::Nanos;

use crate::retry::Retry;

/// The locks of a disk.
#[derive(Debug)]
pub struct DiskLocks<P, W> {
    /// They go with whoever has the disk.
    follows: bool,
    /// They were given up before what was written was made stable.
    is_fenced: bool,
    state: State<P, W>,
}

#[derive(Debug)]
enum State<P, W> {
    Here,
    /// What was written is made stable, then they are let go.
    Parting(P, Nanos),
    /// Nobody asks for them.
    Away,
    /// Whoever asks for them waits.
    Waits(Retry, W),
}

/// What becomes of a wish for the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// They are here.
    Here,
    /// They are asked for later: they are still being let go, or were refused a moment ago.
    Later,
    /// They are asked for now: for the first time, or again.
    Now {
        /// They were refused before.
        again: bool,
    },
}

impl<P, W> DiskLocks<P, W> {
    /// Of a disk that was opened, here or (`is_away`) elsewhere.
    pub fn new(follows: bool, is_away: bool) -> DiskLocks<P, W> {
        let state = if is_away { State::Away } else { State::Here };
        // Those that do not follow are elsewhere only since they were given up, by the process before this one.
        DiskLocks { follows, is_fenced: is_away && !follows, state }
    }

    /// The process before this one says whether it had [given them up](Self::fence); those that are here it had not.
    pub fn were_fenced(&mut self, is_fenced: bool) {
        self.is_fenced |= is_fenced && self.is_away();
    }

    /// Whether they go with whoever has the disk.
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// Whether they are here, and stay.
    pub fn is_here(&self) -> bool {
        matches!(self.state, State::Here)
    }

    /// Whether they are elsewhere.
    pub fn is_away(&self) -> bool {
        matches!(self.state, State::Away | State::Waits(..))
    }

    /// Whether they were [given up](Self::fence) and have not come back. Nobody says of what was written that it is
    /// stable, so they are asked for though nobody waits for the disk: they belong here, or are let go in order.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// Whether they may be let go: they are here, and follow.
    pub fn may_part(&self) -> bool {
        self.follows && self.is_here()
    }

    /// They are being let go since now.
    ///
    /// # Errors
    /// They [may not](Self::may_part).
    pub fn part(&mut self, parting: P, now: Nanos) -> Result<(), P> {
        if !self.may_part() {
            return Err(parting);
        }
        self.state = State::Parting(parting, now);
        Ok(())
    }

    /// What lets them go.
    pub fn parting(&self) -> Option<&P> {
        match &self.state {
            State::Parting(parting, _) => Some(parting),
            _ => None,
        }
    }

    /// Since when they are being let go.
    pub fn parting_since(&self) -> Option<Nanos> {
        match self.state {
            State::Parting(_, since) => Some(since),
            _ => None,
        }
    }

    /// They were let go, or (`is_kept`) what was written could not be made stable. False: they were not being let go.
    #[must_use]
    pub fn parted(&mut self, is_kept: bool) -> bool {
        let parts = matches!(self.state, State::Parting(..));
        if parts {
            self.state = if is_kept { State::Here } else { State::Away };
        }
        parts
    }

    /// Somebody is to have the disk.
    pub fn ask(&self, now: Nanos) -> Ask {
        match &self.state {
            State::Here => Ask::Here,
            State::Parting(..) => Ask::Later,
            State::Away => Ask::Now { again: false },
            State::Waits(retry, _) if retry.due_at() > now => Ask::Later,
            State::Waits(..) => Ask::Now { again: true },
        }
    }

    /// They have come. False: nobody asked for them.
    #[must_use]
    pub fn come(&mut self) -> bool {
        let is_away = self.is_away();
        if is_away {
            self.state = State::Here;
            self.is_fenced = false;
        }
        is_away
    }

    /// They were asked for in vain. False: nobody asked for them.
    #[must_use]
    pub fn refused(&mut self, why: W, now: Nanos) -> bool {
        let before = match self.state {
            State::Away => Retry::from(now),
            State::Waits(retry, _) => retry,
            State::Here | State::Parting(..) => return false,
        };
        self.state = State::Waits(before.again(now), why);
        true
    }

    /// Nobody is to have the disk any more.
    pub fn forget(&mut self) {
        if let State::Waits(..) = self.state {
            self.state = State::Away;
        }
    }

    /// What they wait for has happened.
    pub fn hurry(&mut self, now: Nanos) {
        if let State::Waits(retry, _) = &mut self.state {
            retry.hurry(now);
        }
    }

    /// When they are asked for again, if somebody waits.
    pub fn due_at(&self) -> Option<Nanos> {
        match self.state {
            State::Waits(retry, _) => Some(retry.due_at()),
            _ => None,
        }
    }

    /// Why whoever asks for them waits.
    pub fn why(&self) -> Option<&W> {
        match &self.state {
            State::Waits(_, why) => Some(why),
            _ => None,
        }
    }

    /// Another process served the disk by them, and died: they are given up, to be taken anew. False: they are not here.
    #[must_use]
    pub fn fence(&mut self) -> bool {
        let is_here = self.is_here();
        if is_here {
            self.state = State::Away;
            self.is_fenced = true;
        }
        is_here
    }
}

#[cfg(test)]
mod tests;
