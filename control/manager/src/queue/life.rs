//! A queue's life: which sidecore has it, for whom, and where it is going.
//!
//! Pure: what is to be said to sidecores is given back. Not here: what a queue is besides (`queue`).
//!
//! | | attach | ask, finish | prepare | prepared | moved | back |
//! |---|---|---|---|---|---|---|
//! | idle | served | - | - | - | - | - |
//! | served | - | leaving | preparing | - | - | idle |
//! | preparing | - | leaving, the move called off | - | handing | served where it was | idle |
//! | handing | - | handing, and then leaving | - | - | served, or leaving | idle |
//! | leaving | - | leaving; `ask` after `finish` is said too | - | - | - | idle |

use std::time::Instant;

use sidecore::{Command, MoveId};

/// Who had a queue served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A front-end, by the number of its connection.
    Connection(u32),
    /// A link, which serves the disk to another machine.
    Link,
}

/// Where a queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) core: usize,
    pub(crate) owner: Owner,
    /// An operator brought it there, and there it stays.
    pub(crate) by_hand: bool,
}

/// A move to another sidecore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) id: MoveId,
    pub(crate) to: usize,
    /// An operator's wish: there it stays.
    pub(crate) by_hand: bool,
}

/// Its sidecore was asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leave {
    since: Instant,
    /// What was left in its record is taken first; until it is asked for without that.
    finishes: bool,
}

/// What a queue is to its sidecores. `D` is what the old one is given to let it go.
pub(crate) enum Life<D> {
    /// No sidecore has it.
    Idle,
    Served(Place),
    /// The new sidecore prepares itself; the old one was told nothing, so it can be called off.
    Preparing(Place, Move, D),
    /// The old sidecore was told. Who has it is not known until the answer, and what is to be said of the
    /// queue is kept: at most one command of a kind.
    Handing(Place, Move, Option<Leave>, Vec<Command>),
    Leaving(Place, Leave),
}

/// What is to be done about a queue that was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is asked for already, or nobody has it.
    Nothing,
    /// Its sidecore is told; and a move is called off.
    Tell(Option<MoveId>),
}

/// A queue that came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Back {
    pub(crate) was: Place,
    /// When it was asked for.
    pub(crate) asked_at: Option<Instant>,
    /// A move that does not come about.
    pub(crate) called_off: Option<MoveId>,
}

/// A move that is over.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// What is to be said now.
    pub(crate) held: Vec<Command>,
}

impl<D> Life<D> {
    /// Where it is served, as far as is known.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Life::Idle => None,
            Life::Served(at)
            | Life::Preparing(at, ..)
            | Life::Handing(at, ..)
            | Life::Leaving(at, _) => Some(*at),
        }
    }

    fn place_mut(&mut self) -> Option<&mut Place> {
        match self {
            Life::Idle => None,
            Life::Served(at)
            | Life::Preparing(at, ..)
            | Life::Handing(at, ..)
            | Life::Leaving(at, _) => Some(at),
        }
    }

    /// Where it is going.
    pub(crate) fn moving(&self) -> Option<Move> {
        match self {
            Life::Preparing(_, it, _) | Life::Handing(_, it, ..) => Some(*it),
            _ => None,
        }
    }

    /// Since when it is asked for.
    pub(crate) fn leaving_since(&self) -> Option<Instant> {
        match self {
            Life::Leaving(_, leave) | Life::Handing(_, _, Some(leave), _) => Some(leave.since),
            _ => None,
        }
    }

    /// A sidecore is given it. False: one has it.
    #[must_use]
    pub(crate) fn attach(&mut self, place: Place) -> bool {
        let is_idle = matches!(self, Life::Idle);
        if is_idle {
            *self = Life::Served(place);
        }
        is_idle
    }

    /// It is wanted back; `finishes`, with nothing left that an earlier process had taken. Whoever waits for that
    /// may go on to ask without it.
    pub(crate) fn ask(&mut self, finishes: bool, now: Instant) -> Asked {
        let leave = Leave { since: now, finishes };
        match self {
            Life::Leaving(_, begun) | Life::Handing(_, _, Some(begun), _) => {
                if !begun.finishes || finishes {
                    return Asked::Nothing;
                }
                begun.finishes = false;
                Asked::Tell(None)
            }
            Life::Handing(_, _, none, _) => {
                *none = Some(leave);
                Asked::Tell(None)
            }
            Life::Idle => Asked::Nothing,
            Life::Served(at) => {
                *self = Life::Leaving(*at, leave);
                Asked::Tell(None)
            }
            Life::Preparing(at, Move { id, .. }, _) => {
                let id = *id;
                *self = Life::Leaving(*at, leave);
                Asked::Tell(Some(id))
            }
        }
    }

    /// Its sidecore gave it back, asked or not.
    pub(crate) fn come_back(&mut self) -> Option<Back> {
        let (was, asked_at) = (self.place()?, self.leaving_since());
        let called_off = self.moving().map(|moving| moving.id);
        *self = Life::Idle;
        Some(Back { was, asked_at, called_off })
    }

    /// Its new sidecore is to prepare itself. False: it is not served in peace.
    #[must_use]
    pub(crate) fn prepare(&mut self, to: Move, departure: D) -> bool {
        let Life::Served(at) = *self else { return false };
        *self = Life::Preparing(at, to, departure);
        true
    }

    /// The new sidecore is ready: who has it, and what that one is given. `None`: it was called off.
    pub(crate) fn prepared(&mut self, id: MoveId) -> Option<(usize, D)> {
        let Life::Preparing(at, to, _) = *self else { return None };
        if to.id != id {
            return None;
        }
        match std::mem::replace(self, Life::Handing(at, to, None, Vec::new())) {
            Life::Preparing(_, _, departure) => Some((at.core, departure)),
            _ => None,
        }
    }

    /// The move is over: it is at its new sidecore, or it `stayed`. `None`: there is no such move.
    pub(crate) fn moved(&mut self, id: MoveId, stayed: bool) -> Option<Moved> {
        let is_it = self.moving().is_some_and(|moving| moving.id == id);
        if !is_it || matches!(self, Life::Preparing(..)) && !stayed {
            return None;
        }
        let (mut at, to, leave, held) = match std::mem::replace(self, Life::Idle) {
            Life::Preparing(at, to, _) => (at, to, None, Vec::new()),
            Life::Handing(at, to, leave, held) => (at, to, leave, held),
            other => {
                *self = other;
                return None;
            }
        };
        let from = at.core;
        if !stayed {
            at = Place { core: to.to, by_hand: at.by_hand | to.by_hand, ..at };
        }
        *self = match leave {
            Some(leave) => Life::Leaving(at, leave),
            None => Life::Served(at),
        };
        Some(Moved { from, to: at.core, held })
    }

    /// Something is to be said of it: to whom, now; or it is kept. A newer command takes the place of one of its
    /// kind that waits, so that front-ends cannot use up our descriptors.
    pub(crate) fn tell(&mut self, command: Command) -> Option<(usize, Command)> {
        match self {
            Life::Idle => None,
            Life::Handing(.., held) => {
                let kind = std::mem::discriminant(&command);
                held.retain(|held| std::mem::discriminant(held) != kind);
                held.push(command);
                None
            }
            Life::Served(at) | Life::Preparing(at, ..) | Life::Leaving(at, _) => {
                Some((at.core, command))
            }
        }
    }

    /// It has moved with all others of its NIC.
    pub(crate) fn rehome(&mut self, core: usize) {
        if let Some(place) = self.place_mut() {
            place.core = core;
        }
    }

    /// An operator wants it where it is. False: it is elsewhere.
    pub(crate) fn stays_at(&mut self, core: usize) -> bool {
        match self.place_mut().filter(|place| place.core == core) {
            Some(place) => {
                place.by_hand = true;
                true
            }
            None => false,
        }
    }

    /// No operator wants it anywhere.
    pub(crate) fn let_go(&mut self) {
        if let Some(place) = self.place_mut() {
            place.by_hand = false;
        }
        if let Life::Preparing(_, to, _) | Life::Handing(_, to, ..) = self {
            to.by_hand = false;
        }
    }
}

#[cfg(test)]
mod tests;
