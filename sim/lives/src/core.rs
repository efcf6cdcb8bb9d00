//! A sidecore without a thread: its passes and its sleep, when a life says.

use std::cell::Cell;

use schedule::{Clock, Nanos};
use sidecore::Sidecore;

/// What a reading of the clock takes.
const TICK_NS: u64 = 300;

pub(crate) struct Core {
    sidecore: Sidecore,
    asleep: bool,
}

/// Time goes on whenever it is read within a pass.
struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + TICK_NS);
        Nanos(self.0.get())
    }
}

impl Core {
    pub(crate) fn new(sidecore: Sidecore) -> Core {
        Core { sidecore, asleep: false }
    }

    /// One pass, unless it sleeps and nothing has come: whether something was done, and when it was over.
    pub(crate) fn pass(&mut self, now: Nanos) -> (bool, Nanos) {
        if self.asleep {
            let is_due = self.sidecore.wakes_at().is_some_and(|due| due <= now);
            if !is_due && !self.sidecore.is_woken() {
                return (false, now);
            }
            self.sidecore.wake_up(now);
            self.asleep = false;
        }
        let clock = Ticking(Cell::new(now.0));
        let progress = self.sidecore.pass(now, &clock);
        if progress.is_idle() {
            self.asleep = self.sidecore.lie_down(now);
        }
        (!progress.is_idle(), Nanos(clock.0.get()))
    }

    /// When it has something to do without being asked: at once, if it does not sleep.
    pub(crate) fn due(&self, now: Nanos) -> Option<Nanos> {
        match self.asleep && !self.sidecore.is_woken() {
            true => self.sidecore.wakes_at(),
            false => Some(now),
        }
    }

    /// It does nothing any more, and nothing that it has is asked for.
    pub(crate) fn die(self) {
        self.sidecore.die();
    }
}
