//! A NIC's port: where it is plugged in, which sidecore it is at, and where it is going.
//!
//! A NIC goes as a whole. While it is on its way it is not known who has its queues, and what is to be said of them
//! is kept. Not here: which sidecores have a part in that, bridges, the lives of its queues ([`crate::queue`]), and who
//! waits for it ([`crate::moves`]).
//!
//! | | plug | depart | arrive | unplug |
//! |---|---|---|---|---|
//! | out | in | - | - | - |
//! | in | - | on its way, unless it is there | - | out |
//! | on its way | - | - | in, there or where it was; there, it may be to go again | out, the move called off |

use crate::Passes;
use crate::held::Held;

/// A move is begun again so often: each takes a millisecond or two, in which a sidecore that sleeps, or frames that are
/// on their way, may come too late. An operator waits for his; the loads' wishes come again by themselves, but seconds
/// later, and on a host whose processors are shared one of ten is in time.
const TRIES_MAX: u8 = 50;
const TRIES_FOR_LOAD_MAX: u8 = 10;

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

/// Where a NIC is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The sidecore.
    pub to: usize,
    /// It is an operator's: there it stays.
    pub by_hand: bool,
    /// How often it is begun again when sidecores were late.
    tries_left: u8,
}

impl Wish {
    /// One that was not tried yet.
    pub fn new(to: usize, by_hand: bool) -> Wish {
        Wish { to, by_hand, tries_left: if by_hand { TRIES_MAX } else { TRIES_FOR_LOAD_MAX } }
    }
}

/// What sidecores made of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is there.
    Moved,
    /// It stayed.
    Stayed,
    /// It stayed, since some of them were late: they may be in time when it is begun again.
    Late,
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
    id: P::MoveId,
    wish: Wish,
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
    /// What is to be said of its queues now.
    pub held: Vec<(u16, C)>,
    /// An address that is to be announced now.
    pub announced: Option<[u8; 6]>,
    /// It is to be begun again, with another number.
    pub again: Option<Wish>,
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

    /// The sidecore that it is on its way to.
    pub fn going_to(&self) -> Option<usize> {
        match &self.0 {
            State::Travelling(_, trip) => Some(trip.wish.to),
            _ => None,
        }
    }

    /// Whether it is on its way.
    pub fn travels(&self) -> bool {
        self.going_to().is_some()
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
        let State::Travelling(at, Trip { id, .. }) = &self.0 else { return None };
        let id = *id;
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

    /// It goes to another sidecore, by that move. False: it is out, there, or goes already.
    #[must_use]
    pub fn depart(&mut self, id: P::MoveId, wish: Wish) -> bool {
        let State::In(at) = self.0 else { return false };
        if at.home == wish.to {
            return false;
        }
        let trip = Trip { id, wish, held: Held::default(), announced: None };
        self.0 = State::Travelling(at, trip);
        true
    }

    /// The move is over. `None`: there is no such move.
    pub fn arrive(&mut self, id: P::MoveId, outcome: Outcome) -> Option<Arrived<P::Command>> {
        let (mut at, trip) = match std::mem::replace(&mut self.0, State::Out) {
            State::Travelling(at, trip) if trip.id == id => (at, trip),
            other => {
                self.0 = other;
                return None;
            }
        };
        let (from, wish) = (at.home, trip.wish);
        if outcome == Outcome::Moved {
            (at.home, at.by_hand) = (wish.to, at.by_hand | wish.by_hand);
        }
        self.0 = State::In(at);
        let fewer = wish.tries_left.checked_sub(1).filter(|_| outcome == Outcome::Late);
        let again = fewer.map(|tries_left| Wish { tries_left, ..wish });
        let Trip { held, announced, .. } = trip;
        Some(Arrived { from, to: at.home, held: held.into_vec(), announced, again })
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
            trip.wish.by_hand = false;
        }
    }
}

#[cfg(test)]
mod tests;
