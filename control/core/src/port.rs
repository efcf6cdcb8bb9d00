//! A NIC's port: where it is plugged in, which sidecore it is at, and where it is going.
//!
//! A NIC goes as a whole. While it is on its way it is not known who has its queues, and what is to be said of them
//! is kept. Not here: which sidecores have a part in that, bridges, and the lives of its queues ([`crate::queue`]).
//!
//! | | plug | depart | arrive | unplug |
//! |---|---|---|---|---|
//! | out | in | - | - | - |
//! | in | - | on its way | - | out |
//! | on its way | - | - | in, there or where it was | out, the move called off |

use crate::Passes;
use crate::held::Held;
use crate::queue::Move;

/// Where a NIC is plugged in: `W` is what only its owner knows of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<W> {
    /// Its bridge, its number there, or whatever else.
    pub way: W,
    /// The sidecore that has its queues.
    pub home: usize,
    /// An operator brought it there, and there it stays.
    pub by_hand: bool,
}

/// A NIC's port.
#[derive(Debug)]
pub struct Port<P: Passes, W>(State<P, W>);

#[derive(Debug)]
enum State<P: Passes, W> {
    Out,
    In(At<W>),
    Travelling(At<W>, Trip<P>),
}

#[derive(Debug)]
struct Trip<P: Passes> {
    to: Move<P::MoveId>,
    /// How often it is begun again when it did not come about.
    tries_left: u8,
    held: Held<u16, P::Command>,
    /// The address that its guest announced last.
    announced: Option<[u8; 6]>,
}

/// A move of a NIC that is over.
#[derive(Debug)]
pub struct Arrived<C> {
    /// The sidecore that it was at.
    pub from: usize,
    /// The one that it is at.
    pub to: usize,
    /// The one that it was to go to, and whether by hand.
    pub wish: (usize, bool),
    /// What is to be said of its queues now.
    pub held: Vec<(u16, C)>,
    /// An address that is to be announced now.
    pub announced: Option<[u8; 6]>,
    /// How often it may be begun again.
    pub tries_left: u8,
}

impl<P: Passes, W> Default for Port<P, W> {
    fn default() -> Port<P, W> {
        Port(State::Out)
    }
}

impl<P: Passes, W: Copy> Port<P, W> {
    /// Where it is plugged in; on its way, where it was.
    pub fn at(&self) -> Option<At<W>> {
        match &self.0 {
            State::Out => None,
            State::In(at) | State::Travelling(at, _) => Some(*at),
        }
    }

    fn at_mut(&mut self) -> Option<&mut At<W>> {
        match &mut self.0 {
            State::Out => None,
            State::In(at) | State::Travelling(at, _) => Some(at),
        }
    }

    /// What its owner knows of that.
    pub fn way_mut(&mut self) -> Option<&mut W> {
        self.at_mut().map(|at| &mut at.way)
    }

    /// Where it is going.
    pub fn moving(&self) -> Option<Move<P::MoveId>> {
        match &self.0 {
            State::Travelling(_, trip) => Some(trip.to),
            _ => None,
        }
    }

    /// It is plugged in. False: it is already.
    #[must_use]
    pub fn plug(&mut self, at: At<W>) -> bool {
        let is_out = matches!(self.0, State::Out);
        if is_out {
            self.0 = State::In(at);
        }
        is_out
    }

    /// A move does not come about, since its port is about to go: whichever it was.
    pub fn call_off(&mut self) -> Option<P::MoveId> {
        let State::Travelling(at, trip) = &self.0 else { return None };
        let id = trip.to.id;
        self.0 = State::In(*at);
        Some(id)
    }

    /// It is pulled out: where it was.
    pub fn unplug(&mut self) -> Option<At<W>> {
        let at = self.at();
        self.0 = State::Out;
        at
    }

    /// An operator wants it at that sidecore, or a load does. False: it is elsewhere.
    pub fn stays_at(&mut self, core: usize, by_hand: bool) -> bool {
        match self.at_mut().filter(|at| at.home == core) {
            Some(at) => {
                at.by_hand |= by_hand;
                true
            }
            None => false,
        }
    }

    /// It goes to another sidecore; if it does not get there, so often again. False: it is out, or goes already.
    #[must_use]
    pub fn depart(&mut self, to: Move<P::MoveId>, tries_left: u8) -> bool {
        let State::In(at) = self.0 else { return false };
        let trip = Trip { to, tries_left, held: Held::default(), announced: None };
        self.0 = State::Travelling(at, trip);
        true
    }

    /// The move is over: it is there, or it `stayed`. `None`: there is no such move.
    pub fn arrive(&mut self, id: P::MoveId, stayed: bool) -> Option<Arrived<P::Command>> {
        if self.moving().is_none_or(|moving| moving.id != id) {
            return None;
        }
        let State::Travelling(mut at, trip) = std::mem::replace(&mut self.0, State::Out) else {
            return None;
        };
        let Trip { to: Move { to, by_hand, .. }, tries_left, held, announced } = trip;
        let from = at.home;
        if !stayed {
            (at.home, at.by_hand) = (to, at.by_hand | by_hand);
        }
        self.0 = State::In(at);
        let (wish, held) = ((to, by_hand), held.into_vec());
        Some(Arrived { from, to: at.home, wish, held, announced, tries_left })
    }

    /// Something is to be said of one of its queues: now, or it is kept.
    pub fn tell(&mut self, queue: u16, command: P::Command) -> Option<P::Command> {
        match &mut self.0 {
            State::Travelling(_, trip) => {
                trip.held.keep(queue, command);
                None
            }
            _ => Some(command),
        }
    }

    /// Its guest is announced: from where, now. `None`: when it is known where it is, or never.
    pub fn announce(&mut self, mac: [u8; 6]) -> Option<At<W>> {
        if let State::Travelling(_, trip) = &mut self.0 {
            trip.announced = Some(mac);
            return None;
        }
        self.at()
    }

    /// No operator wants it anywhere.
    pub fn let_go(&mut self) {
        if let Some(at) = self.at_mut() {
            at.by_hand = false;
        }
        if let State::Travelling(_, trip) = &mut self.0 {
            trip.to.by_hand = false;
        }
    }
}

#[cfg(test)]
mod tests;
