//! What one turn of the control loop has: its time, whom it touched, and what it did not find.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use control::moves::NotMoved;
use sidecore::{MoveId, Stay};

use crate::clock;
use crate::defects::Defects;
use crate::rights::Accounts;

pub(crate) struct Turn {
    now: Instant,
    /// Devices to compare with what they should be, at the end of this turn.
    touched: BTreeSet<u32>,
    /// Moves that do not come about, since their queues were asked for.
    called_off: Vec<(MoveId, NotMoved<Stay>)>,
    /// What control counted on and did not find.
    pub(crate) defects: Defects,
    /// Of this host, as they are in this turn.
    pub(crate) accounts: Accounts,
}

impl Turn {
    /// The first one.
    pub(crate) fn begin(now: Instant) -> Turn {
        let (touched, called_off) = (BTreeSet::new(), Vec::new());
        let (defects, accounts) = (Defects::default(), Accounts::default());
        Turn { now, touched, called_off, defects, accounts }
    }

    /// The time of this turn: all of it goes by one.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Reads the clock: a turn begins, another event of it is heard, or a nested wait is over.
    pub(crate) fn tick(&mut self) -> Instant {
        self.now = clock::now();
        self.accounts = Accounts::default();
        self.now
    }

    /// A device is to be settled at the end of this turn.
    pub(crate) fn touch(&mut self, device: u32) {
        self.touched.insert(device);
    }

    pub(crate) fn touch_all(&mut self, devices: impl IntoIterator<Item = u32>) {
        self.touched.extend(devices);
    }

    /// Whether some device is to be settled.
    pub(crate) fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The next device to settle, which is touched no longer.
    pub(crate) fn next_touched(&mut self) -> Option<u32> {
        self.touched.pop_first()
    }

    /// What was to move does not: whoever waits for that is told at the end of this turn.
    pub(crate) fn call_off(&mut self, id: MoveId, why: NotMoved<Stay>) {
        self.called_off.push((id, why));
    }

    /// Those, which are forgotten.
    pub(crate) fn take_called_off(&mut self) -> Vec<(MoveId, NotMoved<Stay>)> {
        std::mem::take(&mut self.called_off)
    }
}

/// When something is looked at that is looked at once a second.
#[derive(Debug)]
pub(crate) struct EverySecond(Instant);

impl EverySecond {
    /// The first time is then.
    pub(crate) fn from(now: Instant) -> EverySecond {
        EverySecond(now)
    }

    /// When the next is due, if there is something to look at.
    pub(crate) fn due_at(&self, is_any: bool) -> Option<Instant> {
        is_any.then_some(self.0)
    }

    /// Whether it is due: then the next is a second later.
    #[must_use]
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let is_due = self.0 <= now;
        if is_due {
            self.0 = now + Duration::from_secs(1);
        }
        is_due
    }
}
