//! A queue's life: which sidecore has it, for whom, and where it is going.
//!
//! What is to be said to sidecores is given back. Not here: how a queue is made, and what its ring is.
//!
//! | | attach | ask, finish | prepare | prepared | moved | back |
//! |---|---|---|---|---|---|---|
//! | idle | served | - | - | - | - | - |
//! | served | - | leaving | preparing | - | - | idle |
//! | preparing | - | leaving, the move called off | - | handing | served where it was | idle |
//! | handing | - | handing, and then leaving | - | - | served, or leaving | idle |
//! | leaving | - | leaving; `ask` after `finish` is said too | - | - | - | idle |

use schedule::Nanos;

use crate::Passes;
use crate::held::Held;

/// Who had a queue served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A front-end, by the number of its connection.
    Connection(u32),
    /// A link, which serves the disk to another machine.
    Link,
}

/// Where a queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The sidecore that has it.
    pub core: usize,
    /// For whom.
    pub owner: Owner,
    /// An operator brought it there, and there it stays.
    pub by_hand: bool,
}

/// A move to another sidecore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move<I> {
    /// Which one.
    pub id: I,
    /// The sidecore that it goes to.
    pub to: usize,
    /// An operator's wish: there it stays.
    pub by_hand: bool,
}

/// Its sidecore was asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leave {
    since: Nanos,
    /// What was left in its record is taken first; until it is asked for without that.
    finishes: bool,
}

/// What a queue is to its sidecores.
#[derive(Debug)]
pub struct Life<P: Passes>(State<P>);

#[derive(Debug)]
enum State<P: Passes> {
    /// No sidecore has it.
    Idle,
    Served(Place),
    /// The new sidecore prepares itself; the old one was told nothing, so it can be called off.
    Preparing(Place, Move<P::MoveId>, P::Departure),
    /// The old sidecore was told. Who has it is not known until the answer, and what is to be said of the
    /// queue is kept: at most one command of a kind.
    Handing(Place, Move<P::MoveId>, Option<Leave>, Held<(), P::Command>),
    Leaving(Place, Leave),
}

/// What is to be done about a queue that was asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<I> {
    /// It is asked for already, or nobody has it.
    Nothing,
    /// Its sidecore is told; and a move is called off.
    Tell(Option<I>),
}

/// A queue that came back.
#[derive(Debug, PartialEq, Eq)]
pub struct Back<I> {
    /// Where it was served.
    pub was: Place,
    /// When it was asked for.
    pub asked_at: Option<Nanos>,
    /// A move that does not come about.
    pub called_off: Option<I>,
}

/// A move that is over.
#[derive(Debug)]
pub struct Moved<C> {
    /// The sidecore that had it.
    pub from: usize,
    /// The one that has it.
    pub to: usize,
    /// What is to be said now.
    pub held: Vec<C>,
}

impl<P: Passes> Default for Life<P> {
    fn default() -> Life<P> {
        Life(State::Idle)
    }
}

impl<P: Passes> Life<P> {
    /// Where it is served, as far as is known.
    pub fn place(&self) -> Option<Place> {
        match &self.0 {
            State::Idle => None,
            State::Served(at)
            | State::Preparing(at, ..)
            | State::Handing(at, ..)
            | State::Leaving(at, _) => Some(*at),
        }
    }

    fn place_mut(&mut self) -> Option<&mut Place> {
        match &mut self.0 {
            State::Idle => None,
            State::Served(at)
            | State::Preparing(at, ..)
            | State::Handing(at, ..)
            | State::Leaving(at, _) => Some(at),
        }
    }

    /// Where it is going.
    pub fn moving(&self) -> Option<Move<P::MoveId>> {
        match &self.0 {
            State::Preparing(_, it, _) | State::Handing(_, it, ..) => Some(*it),
            _ => None,
        }
    }

    /// Since when it is asked for.
    pub fn leaving_since(&self) -> Option<Nanos> {
        match &self.0 {
            State::Leaving(_, leave) | State::Handing(_, _, Some(leave), _) => Some(leave.since),
            _ => None,
        }
    }

    /// A sidecore is given it. False: one has it.
    #[must_use]
    pub fn attach(&mut self, place: Place) -> bool {
        let is_idle = matches!(self.0, State::Idle);
        if is_idle {
            self.0 = State::Served(place);
        }
        is_idle
    }

    /// It is wanted back; `finishes`, with nothing left that an earlier process had taken. Whoever waits for that
    /// may go on to ask without it.
    pub fn ask(&mut self, finishes: bool, now: Nanos) -> Asked<P::MoveId> {
        let leave = Leave { since: now, finishes };
        match &mut self.0 {
            State::Leaving(_, begun) | State::Handing(_, _, Some(begun), _) => {
                if !begun.finishes || finishes {
                    return Asked::Nothing;
                }
                begun.finishes = false;
                Asked::Tell(None)
            }
            State::Handing(_, _, none, _) => {
                *none = Some(leave);
                Asked::Tell(None)
            }
            State::Idle => Asked::Nothing,
            State::Served(at) => {
                self.0 = State::Leaving(*at, leave);
                Asked::Tell(None)
            }
            State::Preparing(at, Move { id, .. }, _) => {
                let id = *id;
                self.0 = State::Leaving(*at, leave);
                Asked::Tell(Some(id))
            }
        }
    }

    /// Its sidecore gave it back, asked or not.
    pub fn come_back(&mut self) -> Option<Back<P::MoveId>> {
        let (was, asked_at) = (self.place()?, self.leaving_since());
        let called_off = self.moving().map(|moving| moving.id);
        self.0 = State::Idle;
        Some(Back { was, asked_at, called_off })
    }

    /// Its new sidecore is to prepare itself. False: it is not served in peace.
    #[must_use]
    pub fn prepare(&mut self, to: Move<P::MoveId>, departure: P::Departure) -> bool {
        let State::Served(at) = self.0 else { return false };
        self.0 = State::Preparing(at, to, departure);
        true
    }

    /// The new sidecore is ready: who has it, and what that one is given. `None`: it was called off.
    pub fn prepared(&mut self, id: P::MoveId) -> Option<(usize, P::Departure)> {
        let State::Preparing(at, to, _) = self.0 else { return None };
        if to.id != id {
            return None;
        }
        match std::mem::replace(&mut self.0, State::Handing(at, to, None, Held::default())) {
            State::Preparing(_, _, departure) => Some((at.core, departure)),
            _ => None,
        }
    }

    /// The move is over: it is at its new sidecore, or it `stayed`. `None`: there is no such move.
    pub fn moved(&mut self, id: P::MoveId, stayed: bool) -> Option<Moved<P::Command>> {
        let is_it = self.moving().is_some_and(|moving| moving.id == id);
        if !is_it || matches!(self.0, State::Preparing(..)) && !stayed {
            return None;
        }
        let (mut at, to, leave, held) = match std::mem::replace(&mut self.0, State::Idle) {
            State::Preparing(at, to, _) => (at, to, None, Held::default()),
            State::Handing(at, to, leave, held) => (at, to, leave, held),
            other => {
                self.0 = other;
                return None;
            }
        };
        let from = at.core;
        if !stayed {
            at = Place { core: to.to, by_hand: at.by_hand | to.by_hand, ..at };
        }
        self.0 = match leave {
            Some(leave) => State::Leaving(at, leave),
            None => State::Served(at),
        };
        let held = held.into_vec().into_iter().map(|(_, command)| command).collect();
        Some(Moved { from, to: at.core, held })
    }

    /// Something is to be said of it: to whom, now; or it is kept.
    pub fn tell(&mut self, command: P::Command) -> Option<(usize, P::Command)> {
        match &mut self.0 {
            State::Idle => None,
            State::Handing(.., held) => {
                held.keep((), command);
                None
            }
            State::Served(at) | State::Preparing(at, ..) | State::Leaving(at, _) => {
                Some((at.core, command))
            }
        }
    }

    /// It has moved with all others of its NIC.
    pub fn rehome(&mut self, core: usize) {
        if let Some(place) = self.place_mut() {
            place.core = core;
        }
    }

    /// An operator wants it where it is. False: it is elsewhere.
    pub fn stays_at(&mut self, core: usize) -> bool {
        match self.place_mut().filter(|place| place.core == core) {
            Some(place) => {
                place.by_hand = true;
                true
            }
            None => false,
        }
    }

    /// No operator wants it anywhere.
    pub fn let_go(&mut self) {
        if let Some(place) = self.place_mut() {
            place.by_hand = false;
        }
        if let State::Preparing(_, to, _) | State::Handing(_, to, ..) = &mut self.0 {
            to.by_hand = false;
        }
    }
}

#[cfg(test)]
mod tests;
