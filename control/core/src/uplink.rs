//! An uplink's life: who has its descriptors, whether it is open, and what becomes of it when they are here.
//!
//! A sidecore has all descriptors of one that is open. They are asked for together, and come back one by one. Not
//! here: how they are opened and closed, which port of which bridge it is, and who serves it.
//!
//! | | here | closes | ask | back, not the last | back, the last | go on |
//! |---|---|---|---|---|---|---|
//! | closed | kept | closed | - | - | - | - |
//! | open | - | - | partly | partly, the others asked for | kept | - |
//! | partly | - | - | - | partly | kept | - |
//! | kept | - | closed | - | - | - | open, closed or leaving; kept while it may be another process's |
//!
//! What is to become of it is wished for at any time: to stay, to go to another bridge, to leave. Leaving is for
//! good.

use std::fmt::Debug;

use schedule::Nanos;

use crate::mode::Mode;

/// Descriptors with their numbers.
pub type Ports<P> = Vec<(u16, P)>;

/// An uplink: `P` is a descriptor of it, `B` names a bridge.
#[derive(Debug)]
pub struct Life<P, B> {
    state: State<P>,
    wish: Wish<B>,
}

#[derive(Debug)]
enum State<P> {
    /// It has none: why, and when it is tried again.
    Closed { problem: String, retry_at: Nanos },
    /// Its sidecore has so many.
    Open(u16),
    /// All were asked for: how many there are, those that are back, and why the first came unasked.
    Partly(u16, Ports<P>, Option<String>),
    /// All are here, and why they came unasked.
    Kept(Ports<P>, Option<String>),
}

/// What becomes of it when its descriptors are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish<B> {
    Stay,
    Move(B),
    Leave,
}

/// A descriptor that came back.
#[derive(Debug, PartialEq, Eq)]
pub enum Back<P> {
    /// No sidecore had it.
    Stray(P),
    /// Others are out; so many queues are to be asked for now.
    Partly(Option<u16>),
    /// It was the last one.
    Whole,
}

/// What a wish leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Its sidecore is to give so many queues back first.
    Ask(u16),
    /// It is asked for already.
    Wait,
    /// Nothing is out: it can be done now.
    Now,
}

/// What is to be done with descriptors that are here.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<P> {
    /// Nothing.
    Rest,
    /// Its sidecore gets them.
    Serve(Ports<P>),
    /// They are closed, for a problem if there is one; what they were made of stays.
    Close(Ports<P>, Option<String>),
    /// It is gone. What was made for it goes too, unless all ends.
    Leave(Ports<P>, Option<String>),
}

impl<P, B: Copy + Eq + Debug> Life<P, B> {
    /// One that is to be opened now.
    pub fn new(now: Nanos) -> Life<P, B> {
        let state = State::Closed { problem: String::new(), retry_at: now };
        Life { state, wish: Wish::Stay }
    }

    /// Why no frames pass, if none do.
    pub fn problem(&self) -> Option<&str> {
        match &self.state {
            State::Closed { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// When it is tried again.
    pub fn due_at(&self) -> Option<Nanos> {
        match &self.state {
            State::Closed { retry_at, .. } => Some(*retry_at),
            _ => None,
        }
    }

    /// Whether its sidecore has some of it.
    pub fn is_out(&self) -> bool {
        matches!(self.state, State::Open(_) | State::Partly(..))
    }

    /// Whether its sidecore was asked for it, and has some of it still.
    pub fn is_asked(&self) -> bool {
        matches!(self.state, State::Partly(..))
    }

    /// Whether it goes for good.
    pub fn is_leaving(&self) -> bool {
        self.wish == Wish::Leave
    }

    /// The bridge that it is to be plugged in at.
    pub fn moving_to(&self) -> Option<B> {
        match self.wish {
            Wish::Move(to) => Some(to),
            _ => None,
        }
    }

    /// Its descriptors, all being here.
    pub fn kept(&self) -> Option<&[(u16, P)]> {
        match &self.state {
            State::Kept(ports, _) => Some(ports),
            _ => None,
        }
    }

    /// It is tried again at once, if it is closed.
    pub fn hasten(&mut self, now: Nanos) {
        if let State::Closed { retry_at, .. } = &mut self.state {
            *retry_at = now;
        }
    }

    /// Its descriptors are here: opened, or from another process. Gives them back if it has some.
    ///
    /// # Errors
    /// What it does not need.
    pub fn come(&mut self, ports: Ports<P>) -> Result<(), Ports<P>> {
        match self.state {
            State::Closed { .. } => {
                self.state = State::Kept(ports, None);
                Ok(())
            }
            _ => Err(ports),
        }
    }

    /// It stays closed or is closed, and is tried again then: whether that was not known, and what it had. Nothing,
    /// while its sidecore has it.
    pub fn close(&mut self, problem: &str, retry_at: Nanos) -> (bool, Ports<P>) {
        if self.is_out() {
            return (false, Vec::new());
        }
        let is_new = self.problem() != Some(problem);
        let closed = State::Closed { problem: problem.to_owned(), retry_at };
        match std::mem::replace(&mut self.state, closed) {
            State::Kept(ports, _) => (is_new, ports),
            _ => (is_new, Vec::new()),
        }
    }

    /// Its descriptors are wanted back: so many queues are to be asked for, once.
    pub fn ask(&mut self) -> Option<u16> {
        let State::Open(queues) = self.state else { return None };
        self.state = State::Partly(queues, Vec::new(), None);
        Some(queues)
    }

    /// A descriptor came back, asked or not; for `problem` if there was one.
    pub fn come_back(&mut self, queue: u16, port: P, problem: Option<String>) -> Back<P> {
        let asked = self.ask();
        let State::Partly(queues, back, first) = &mut self.state else { return Back::Stray(port) };
        back.push((queue, port));
        back.sort_unstable_by_key(|(queue, _)| *queue);
        *first = first.take().or(problem);
        if back.len() < usize::from(*queues) {
            return Back::Partly(asked);
        }
        self.state = State::Kept(std::mem::take(back), first.take());
        Back::Whole
    }

    /// Goes on with descriptors that are here, but for one that is to move: that is plugged in first. One that is
    /// closed is tried again at `retry_at`.
    pub fn go_on(&mut self, mode: Mode, now: Nanos, retry_at: Nanos) -> Next<P> {
        let State::Kept(ports, problem) = &mut self.state else { return Next::Rest };
        let stays = mode.is_frozen() && problem.is_none() && self.wish == Wish::Stay;
        if stays || matches!(self.wish, Wish::Move(_)) {
            return Next::Rest;
        }
        let (ports, problem) = (std::mem::take(ports), problem.take());
        let is_served = !mode.is_stopping() && problem.is_none() && self.wish == Wish::Stay;
        if is_served && !ports.is_empty() {
            self.state = State::Open(ports.len() as u16);
            return Next::Serve(ports);
        }
        // Of one that another process was to have nothing may be left: it is opened anew.
        let retry_at = if is_served { now } else { retry_at };
        self.state = State::Closed { problem: problem.clone().unwrap_or_default(), retry_at };
        match self.wish {
            Wish::Leave => Next::Leave(ports, problem),
            _ => Next::Close(ports, problem),
        }
    }

    /// It is to go for good.
    pub fn leave(&mut self) -> Wanted {
        self.wish = Wish::Leave;
        self.want()
    }

    /// It is to go to another bridge.
    pub fn move_to(&mut self, bridge: B) -> Wanted {
        if self.is_leaving() {
            return Wanted::Wait;
        }
        self.wish = Wish::Move(bridge);
        self.want()
    }

    fn want(&mut self) -> Wanted {
        match self.ask() {
            Some(queues) => Wanted::Ask(queues),
            None if self.is_asked() => Wanted::Wait,
            None => Wanted::Now,
        }
    }

    /// It is plugged in where it was to go.
    pub fn moved(&mut self) {
        if !self.is_leaving() {
            self.wish = Wish::Stay;
        }
    }

    /// Parts with those descriptors that are here of which another process has none.
    pub fn part_with(&mut self, which: impl Fn(&P) -> bool) -> Ports<P> {
        let State::Kept(ports, _) = &mut self.state else { return Vec::new() };
        let (gone, left) = std::mem::take(ports).into_iter().partition(|(_, port)| which(port));
        *ports = left;
        gone
    }
}

#[cfg(test)]
mod tests;
