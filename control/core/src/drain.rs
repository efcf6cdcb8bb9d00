//! How all queues and host ports come back from the sidecores, and go out again: in which order, how long each is
//! waited for, and whom it is tried without.
//!
//! Whoever drives a drain does its [`Step`] and says how that went, until there is none. One type for both sides of
//! an upgrade, for giving it up and for taking back. Not here: sidecores, and what a wave is made of.
//!
//! | in | out |
//! |---|---|
//! | disks that were late before, the others being served | links |
//! | senders, fence | receivers, fence |
//! | ways out, fence | ways out, fence |
//! | the rest, links | the rest |
//!
//! Senders come back first and go out last: no frame finds nobody. A fence is left out where nothing was sent.
//!
//! | | freeze | bring | its steps are done | thaw |
//! |---|---|---|---|---|
//! | out | frozen | - | | going out |
//! | frozen | - | coming | | late ports, going out |
//! | coming | - | - | home, or failed | late ports, going out |
//! | failed | - | - | | late ports, going out |
//! | home | - | - | | going out |
//! | going out | - | - | out | going out, from the start |
//!
//! A freeze lasts until the thaw: what goes out in between, for another try, is frozen like all else.

use std::collections::BTreeSet;

use schedule::Nanos;

const MS: u64 = 1_000_000;
/// How long all queues may stand still until the last of them is back.
pub const DRAIN_NS_MAX: u64 = 50 * MS;
/// How long the queues of disks that took longer may stand still before that, the others being served.
pub const SLOW_NS_MAX: u64 = 5_000 * MS;
/// How long sidecores that have no processor at once are waited for. Receivers and ways out are there before senders,
/// since a frame that finds nobody is lost; and no disk is said to be late whose sidecore is.
pub const LATE_NS_MAX: u64 = 1_000 * MS;
/// Tries.
const ROUNDS_MAX: u8 = 3;

/// What comes and goes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wave {
    /// Queues by which guests send frames.
    Senders,
    /// Those by which they receive them.
    Receivers,
    /// Ports that lead to the host.
    Ways,
    /// All queues that are elsewhere than they are to be.
    Rest,
    /// Links to other machines.
    Links,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask for the queues of these disks, and wait until they are back, or that moment.
    FetchSlow(BTreeSet<u32>, Nanos),
    /// The same of all that a wave is.
    Fetch(Wave, Nanos),
    /// Wait until what one sidecore handed to another is delivered, or that moment.
    Fence(Nanos),
    /// Wait until every sidecore has done what it was told so far, or that moment.
    CatchUp(Nanos),
    /// See which disks were asked for queues and have not given them back: [`Drain::are_late`].
    Look,
    /// Wait for receivers and ways out that were asked for, or that moment: one that came back after the others were
    /// sent out would have frames lost that it was to take.
    AwaitPorts(Nanos),
    /// Send out what is here of a wave, but what is of [`Drain::withheld`]. Done: there was something.
    Send(Wave),
}

/// Where queues and ports are, as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Drain {
    state: State,
    is_frozen: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Out,
    Frozen,
    Coming(Coming, In),
    Home,
    Failed(BTreeSet<u32>),
    LatePorts(Nanos),
    Going(Out),
}

/// A drain that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Coming {
    until: Nanos,
    /// The end of the wait that it is in.
    by: Nanos,
    round: u8,
    /// Disks that were late before: they are asked before the others.
    slow: BTreeSet<u32>,
    /// Those that were late the last time.
    late: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum In {
    Slow,
    Fetch(Wave),
    Fence(Wave),
    CatchUp,
    Look,
    LatePorts,
    /// For another try.
    Again(Out),
}

/// A wave that goes out, or the fence behind it with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Out {
    Send(Wave),
    Fence(Wave, Nanos),
}

const FIRST_OUT: Out = Out::Send(Wave::Links);

impl Out {
    fn step(self) -> Step {
        match self {
            Out::Send(wave) => Step::Send(wave),
            Out::Fence(_, by) => Step::Fence(by),
        }
    }

    /// What follows, if something does.
    fn next(self, is_done: bool, now: Nanos) -> Option<Out> {
        let behind = |wave| match wave {
            Wave::Links => Some(Wave::Receivers),
            Wave::Receivers => Some(Wave::Ways),
            Wave::Ways => Some(Wave::Rest),
            Wave::Senders | Wave::Rest => None,
        };
        match self {
            Out::Send(wave @ (Wave::Receivers | Wave::Ways)) if is_done => {
                Some(Out::Fence(wave, now.after(LATE_NS_MAX)))
            }
            // A sidecore that does not answer in time has other troubles than a frame that is dropped.
            Out::Send(wave) | Out::Fence(wave, _) => behind(wave).map(Out::Send),
        }
    }
}

impl Default for Drain {
    /// All is served.
    fn default() -> Drain {
        Drain { state: State::Out, is_frozen: false }
    }
}

impl Drain {
    /// Another process is told what there is: nothing starts, and nothing that comes back goes on. False: it is not out.
    #[must_use]
    pub fn freeze(&mut self) -> bool {
        let is_out = self.state == State::Out;
        if is_out {
            *self = Drain { state: State::Frozen, is_frozen: true };
        }
        is_out
    }

    /// All comes back by `until`. False: it is not frozen, or comes already.
    #[must_use]
    pub fn bring(&mut self, until: Nanos, now: Nanos) -> bool {
        let is_frozen = self.state == State::Frozen;
        if is_frozen {
            let (slow, late) = (BTreeSet::new(), BTreeSet::new());
            let coming = Coming { until, by: now, round: 0, slow, late };
            self.state = coming.begin(now);
        }
        is_frozen
    }

    /// All goes out, wherever it is, and is served from now on.
    pub fn thaw(&mut self, now: Nanos) {
        self.state = match self.state {
            // Who gives up is late with some ports; where they are still asked for, the freeze holds until they are back.
            State::Frozen | State::Coming(..) | State::Failed(_) | State::LatePorts(_) => {
                State::LatePorts(now.after(LATE_NS_MAX))
            }
            State::Out | State::Home | State::Going(_) => {
                self.is_frozen = false;
                State::Going(FIRST_OUT)
            }
        };
    }

    /// Nothing starts, and nothing that comes back goes on.
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// All is here.
    pub fn is_home(&self) -> bool {
        self.state == State::Home
    }

    /// All is not back in time, and these disks were late the last time.
    pub fn failed(&self) -> Option<&BTreeSet<u32>> {
        match &self.state {
            State::Failed(late) => Some(late),
            _ => None,
        }
    }

    /// Disks that stay here while the others go out for another try.
    pub fn withheld(&self) -> Option<&BTreeSet<u32>> {
        match &self.state {
            State::Coming(coming, In::Again(_)) => Some(&coming.slow),
            _ => None,
        }
    }

    /// What is to be done now; nothing, where it rests.
    pub fn step(&self) -> Option<Step> {
        match &self.state {
            State::Out | State::Frozen | State::Home | State::Failed(_) => None,
            State::Coming(coming, at) => Some(coming.step(*at)),
            State::LatePorts(by) => Some(Step::AwaitPorts(*by)),
            State::Going(out) => Some(out.step()),
        }
    }

    /// That step was taken, and has done what it was to do, or not.
    pub fn done(&mut self, is_done: bool, now: Nanos) {
        match std::mem::replace(&mut self.state, State::Out) {
            State::Coming(coming, at) => self.state = coming.done(at, is_done, now),
            State::LatePorts(_) => {
                self.is_frozen = false;
                self.state = State::Going(FIRST_OUT);
            }
            State::Going(out) => {
                self.state = out.next(is_done, now).map_or(State::Out, State::Going);
            }
            rests => self.state = rests,
        }
    }

    /// What [`Step::Look`] has found. No disk is named that nobody has asked because others took all of the time.
    pub fn are_late(&mut self, disks: BTreeSet<u32>, now: Nanos) {
        if let State::Coming(coming, In::Look) = &mut self.state {
            coming.late = disks;
            self.done(true, now);
        }
    }
}

impl Coming {
    fn step(&self, at: In) -> Step {
        match at {
            In::Slow => Step::FetchSlow(self.slow.clone(), self.by),
            In::Fetch(wave) => Step::Fetch(wave, self.by),
            In::Fence(_) => Step::Fence(self.by),
            In::CatchUp => Step::CatchUp(self.by),
            In::Look => Step::Look,
            In::LatePorts => Step::AwaitPorts(self.by),
            In::Again(out) => out.step(),
        }
    }

    /// A round begins, if there is one left and time for it.
    fn begin(self, now: Nanos) -> State {
        if self.round == ROUNDS_MAX || now >= self.until {
            return State::Failed(self.late);
        }
        match self.slow.is_empty() {
            true => self.fetch(now),
            false => self.until(SLOW_NS_MAX, In::Slow, now),
        }
    }

    fn fetch(self, now: Nanos) -> State {
        self.until(DRAIN_NS_MAX, In::Fetch(Wave::Senders), now)
    }

    /// Goes on with a wait that has its own end.
    fn until(self, limit_ns: u64, at: In, now: Nanos) -> State {
        let by = self.until.min(now.after(limit_ns));
        State::Coming(Coming { by, ..self }, at)
    }

    /// Goes on with one for late sidecores, whatever the time is.
    fn late(self, at: In, now: Nanos) -> State {
        State::Coming(Coming { by: now.after(LATE_NS_MAX), ..self }, at)
    }

    fn done(mut self, at: In, is_done: bool, now: Nanos) -> State {
        match at {
            In::Slow => self.fetch(now),
            In::Fetch(_) | In::Fence(_) if !is_done => self.late(In::CatchUp, now),
            In::Fetch(wave @ (Wave::Senders | Wave::Ways)) => State::Coming(self, In::Fence(wave)),
            In::Fence(Wave::Senders) => State::Coming(self, In::Fetch(Wave::Ways)),
            In::Fence(_) => State::Coming(self, In::Fetch(Wave::Rest)),
            In::Fetch(Wave::Links) => State::Home,
            In::Fetch(_) => State::Coming(self, In::Fetch(Wave::Links)),
            // Of one that has done all it was told, only disks that do not answer have queues still.
            In::CatchUp if is_done => State::Coming(self, In::Look),
            In::CatchUp => {
                self.late.clear();
                self.late(In::LatePorts, now)
            }
            In::Look => {
                // One that came back in its five seconds would be late again without them.
                self.slow.extend(&self.late);
                self.late(In::LatePorts, now)
            }
            In::LatePorts => State::Coming(self, In::Again(FIRST_OUT)),
            In::Again(out) => match out.next(is_done, now) {
                Some(out) => State::Coming(self, In::Again(out)),
                None => Coming { round: self.round + 1, ..self }.begin(now),
            },
        }
    }
}

#[cfg(test)]
mod tests;
