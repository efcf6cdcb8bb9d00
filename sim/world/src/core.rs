//! A sidecore without a thread: its passes and its sleep, when the world says.

use std::cell::{Cell, RefCell};

use schedule::{Clock, Nanos};
use sidecore::{Command, Event, Handle, Sidecore, SidecoreSpec};

/// Queues that one core holds.
const QUEUES_MAX: u16 = 32;

pub(crate) struct Core {
    sidecore: Sidecore,
    pub(crate) handle: Handle,
    pub(crate) asleep: bool,
}

/// What a reading of the clock takes.
const TICK_NS: u64 = 300;

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
    pub(crate) fn new(index: u16) -> Result<Core, String> {
        let spec =
            SidecoreSpec { index, cpu: None, workers: None, watches: true, queues_max: QUEUES_MAX };
        let (sidecore, handle) = Sidecore::new(spec).map_err(|e| e.to_string())?;
        Ok(Core { sidecore, handle, asleep: false })
    }

    pub(crate) fn send(&mut self, command: Command) -> Result<(), String> {
        self.handle.send(command).map_err(|command| format!("an inbox is full: {command:?}"))
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.handle.take_event()
    }

    /// One pass, unless it sleeps and nothing has come; in its midst `meanwhile` is called with the time. True
    /// when something was done.
    pub(crate) fn turn(&mut self, now_ns: u64, meanwhile: &mut dyn FnMut(u64)) -> bool {
        let now = Nanos(now_ns);
        if self.asleep {
            let is_due = self.sidecore.wakes_at().is_some_and(|due| due <= now);
            if !is_due && !self.sidecore.is_woken() {
                return false;
            }
            self.sidecore.wake_up(now);
            self.asleep = false;
        }
        let clock = Ticking { now_ns: Cell::new(now_ns), meanwhile: RefCell::new(meanwhile) };
        let progress = self.sidecore.pass(now, &clock);
        if progress.is_idle() {
            self.asleep = self.sidecore.lie_down(now);
        }
        !progress.is_idle()
    }

    /// When its sleep ends by itself.
    pub(crate) fn wakes_at_ns(&self) -> Option<u64> {
        self.sidecore.wakes_at().map(|at| at.0)
    }

    /// Whether it sleeps and nothing has come.
    pub(crate) fn sleeps(&self) -> bool {
        self.asleep && !self.sidecore.is_woken()
    }

    pub(crate) fn die(self) {
        self.sidecore.die();
    }
}
