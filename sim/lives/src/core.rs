//! A sidecore without a thread: its passes and its sleep, when a life says.

use std::cell::{Cell, RefCell};

use schedule::{Clock, Nanos};
use sidecore::Sidecore;

/// What a reading of the clock takes.
const TICK_NS: u64 = 300;

pub(crate) struct Core {
    sidecore: Sidecore,
    asleep: bool,
    /// Passes that it had, or had no need of.
    passes: u64,
}

/// Time goes on whenever it is read within a pass; and so do the guests, who do not wait for its end.
struct Ticking<'a> {
    now_ns: Cell<u64>,
    meanwhile: RefCell<&'a mut dyn FnMut(u64)>,
}

impl Clock for Ticking<'_> {
    fn now(&self) -> Nanos {
        self.now_ns.set(self.now_ns.get() + TICK_NS);
        (self.meanwhile.borrow_mut())(self.now_ns.get());
        Nanos(self.now_ns.get())
    }
}

impl Core {
    pub(crate) fn new(sidecore: Sidecore) -> Core {
        Core { sidecore, asleep: false, passes: 0 }
    }

    /// One pass, unless it sleeps and nothing has come; in its midst `meanwhile` is called with the time. Whether
    /// something was done, and when it was over.
    pub(crate) fn pass(&mut self, now: Nanos, meanwhile: &mut dyn FnMut(u64)) -> (bool, Nanos) {
        self.passes += 1;
        if self.asleep {
            let is_due = self.sidecore.wakes_at().is_some_and(|due| due <= now);
            if !is_due && !self.sidecore.is_woken() {
                return (false, now);
            }
            self.sidecore.wake_up(now);
            self.asleep = false;
        }
        let clock = Ticking { now_ns: Cell::new(now.0), meanwhile: RefCell::new(meanwhile) };
        let progress = self.sidecore.pass(now, &clock);
        if progress.is_idle() {
            self.asleep = self.sidecore.lie_down(now);
        }
        (!progress.is_idle(), Nanos(clock.now_ns.get()))
    }

    /// Whether it has a queue, or a port.
    pub(crate) fn serves(&self) -> bool {
        self.sidecore.serves()
    }

    pub(crate) fn passes(&self) -> u64 {
        self.passes
    }

    /// Whether it sleeps, and something has come.
    pub(crate) fn is_woken(&self) -> bool {
        self.asleep && self.sidecore.is_woken()
    }

    /// When it has something to do without being asked: at once, if it does not sleep.
    pub(crate) fn due(&self, now: Nanos) -> Option<Nanos> {
        match self.asleep && !self.is_woken() {
            true => self.sidecore.wakes_at(),
            false => Some(now),
        }
    }

    /// It does nothing any more, and nothing that it has is asked for.
    pub(crate) fn die(self) {
        self.sidecore.die();
    }
}
