//! Another process that takes over from a simulated daemon, a packet at a time, and the launchers that begin it.
//!
//! Not here: when it goes on, and what becomes of it (`sim/lives`).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use config::Plan;
use rustix::event::PollFlags;
use sidecore::Sidecore;

use super::processes::{Around, Done, drop_dead, end, is_ready_now, within};
use super::{Simulated, take_cores};
use crate::api::Entrance;
use crate::begin::Inheriting;
use crate::options::Options;
use crate::upgrade::channel::Channel;
use crate::upgrade::heir::Heir;
#[cfg(test)]
use crate::upgrade::launcher::say_ended;
use crate::upgrade::launcher::{LAUNCHERS, Launcher, serve_one};

/// The other ends of a daemon's launchers; none of one that has ended.
pub struct Launchers(Vec<Option<Channel>>);

impl Launchers {
    /// All of a daemon, and what that has of them.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn begin() -> io::Result<(Launchers, Launcher)> {
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for _ in 0..LAUNCHERS {
            let (ours, theirs) = Channel::pair()?;
            near.push(ours);
            far.push(Some(Channel::of(theirs)));
        }
        Ok((Launchers(far), Launcher::of(near)))
    }

    /// One that was asked for an heir, and has not answered.
    pub fn asked(&self) -> Option<usize> {
        let is_asked = |end: &Option<Channel>| {
            end.as_ref().is_some_and(|end| is_ready_now(end, PollFlags::IN))
        };
        self.0.iter().position(is_asked)
    }

    /// Launcher `at` answers: `start` begins a process with that input, or says why not.
    pub fn answer(&mut self, at: usize, start: &mut dyn FnMut(OwnedFd) -> io::Result<u32>) {
        let end = self.0.get(at).and_then(Option::as_ref);
        let goes_on = end.map(|end| serve_one(end, Duration::ZERO, &mut |_, input| start(input)));
        if !matches!(goes_on, Some(Ok(true))) {
            self.end(at);
        }
    }

    /// The first launcher says how the heir of that request ended.
    #[cfg(test)]
    pub(crate) fn say_ended(&self, request: u64, how: &str) {
        let first = self.0.first().and_then(Option::as_ref).expect("it lives");
        say_ended(first, request, how.to_string()).expect("it is heard");
    }

    /// Launcher `at` ends.
    pub fn end(&mut self, at: usize) {
        if let Some(end) = self.0.get_mut(at) {
            *end = None;
        }
    }
}

/// A process that is to take over, and does not serve yet.
pub struct NewProcess {
    pid: u32,
    heir: Heir,
    state: State,
}

enum State {
    /// It has read the file, and said nothing.
    Begun(Box<(Plan, Options)>),
    /// It hears its predecessor.
    Hears(Box<Inheriting<Entrance>>),
}

/// What came of a step of it.
pub enum HeirStep {
    /// It waits for its predecessor.
    Waits(NewProcess),
    /// It has gone on.
    Goes(NewProcess),
    /// It serves.
    Serves(Box<Simulated>),
    /// It has ended.
    Ended,
    /// It panicked.
    Broken(String),
}

impl NewProcess {
    /// Process `pid`, which a launcher has begun with that input, and has read `plan`.
    pub fn begin(pid: u32, input: OwnedFd, plan: Plan, options: Options) -> NewProcess {
        NewProcess { pid, heir: Heir::at(input), state: State::Begun(Box::new((plan, options))) }
    }

    /// It knows where all stands: it serves, if it lives.
    pub fn has_all(&self) -> bool {
        let State::Hears(inheriting) = &self.state else { return false };
        matches!(**inheriting, Inheriting::Placed(..) | Inheriting::Given(..))
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its next word, or what it makes of its predecessor's; others go on around that. With the sidecores that it has
    /// begun.
    pub fn step<A: Around>(self, around: A) -> (HeirStep, Vec<Sidecore>, A) {
        let NewProcess { pid, heir, state } = self;
        if matches!(state, State::Hears(_)) && !is_ready_now(heir.channel(), PollFlags::IN) {
            return (HeirStep::Waits(NewProcess { pid, heir, state }), Vec::new(), around);
        }
        let (done, around) = within(pid, around, move || go_on(pid, heir, state));
        let step = match done {
            Done::This(step) => step,
            Done::Ended => HeirStep::Ended,
            Done::Panicked(said) => HeirStep::Broken(said),
        };
        (step, take_cores(pid), around)
    }

    /// It has ended: what it had is dropped as the kernel does.
    pub fn die(self) {
        end(self.pid);
        drop_dead(self);
    }
}

fn go_on(pid: u32, mut heir: Heir, state: State) -> HeirStep {
    let inheriting = match state {
        State::Begun(given) => {
            let (plan, options) = *given;
            Inheriting::begin(plan, options, &heir)
        }
        State::Hears(inheriting) => inheriting.hear(&mut heir, |entrance, _| Ok(entrance)),
    };
    match inheriting {
        Inheriting::Given(mut manager, entrance) => {
            manager.take_over(heir);
            manager.rooms.bonds.begin();
            HeirStep::Serves(Box::new(Simulated::of(manager, entrance, pid)))
        }
        waits => HeirStep::Goes(NewProcess { pid, heir, state: State::Hears(Box::new(waits)) }),
    }
}
