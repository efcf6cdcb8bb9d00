//! Moves that are under way between sidecores: of what each is, how far it has come, and who waits for it.
//!
//! Whoever begins a move gets its number, which sidecores name in each word of it. Not here: which sidecore has a queue
//! meanwhile ([`crate::queue`], [`crate::port`]), and how it travels.
//!
//! | | prepared | moved | stayed | ended |
//! |---|---|---|---|---|
//! | none: it has ended, or was called off | - | - | - | - |
//! | a queue's, asked | handed | - | asked | none |
//! | a queue's, handed | - | handed | handed | none |
//! | a NIC's, on its way | - | on its way | on its way | none |
//!
//! "-" is a late word. After `moved` and `stayed` its queue is told, and then it is [ended](Moves::end).

use std::collections::{BTreeMap, BTreeSet};

/// What moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// A queue of that device.
    Queue(u32, u16),
    /// A NIC, with all of its queues.
    Nic(u32),
}

/// Why something is not where it was to go. `S` is what its sidecores say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMoved<S> {
    /// It was asked for before it was handed over.
    #[error("it is being stopped")]
    Stopped,
    /// Its NIC loses its port.
    #[error("it is being removed")]
    Removed,
    /// Its queue came back meanwhile.
    #[error("it is not served any more")]
    NotServed,
    /// Its NIC was unplugged meanwhile.
    #[error("it is not there any more")]
    NotThere,
    /// Its sidecores left it where it was.
    #[error("{0}")]
    Stayed(S),
}

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// The new sidecore prepares itself.
    Asked { device: u32, queue: u16 },
    /// The old one was told to let the queue go.
    Handed { device: u32, queue: u16 },
    /// All sidecores have a part in it.
    OnItsWay { device: u32 },
}

impl Life {
    fn mover(self) -> Mover {
        match self {
            Life::Asked { device, queue } | Life::Handed { device, queue } => {
                Mover::Queue(device, queue)
            }
            Life::OnItsWay { device } => Mover::Nic(device),
        }
    }
}

/// Why queues did not move: which (`None` for a NIC as a whole), and why.
pub type Problems<S> = Vec<(Option<u16>, NotMoved<S>)>;

/// Who waits for moves of one device.
#[derive(Debug)]
struct Wait<W, S> {
    device: u32,
    open: BTreeSet<u64>,
    problems: Problems<S>,
    who: W,
}

/// Who has waited for moves which are all over.
#[derive(Debug, PartialEq, Eq)]
pub struct Waited<W, S> {
    /// Whose moves they were.
    pub device: u32,
    /// What did not move.
    pub problems: Problems<S>,
    /// Whom to answer.
    pub who: W,
}

/// All moves that are under way. `W` is who waits, `S` is why sidecores leave something where it was.
#[derive(Debug)]
pub struct Moves<W, S> {
    last: u64,
    lives: BTreeMap<u64, Life>,
    waits: Vec<Wait<W, S>>,
}

impl<W, S> Default for Moves<W, S> {
    fn default() -> Moves<W, S> {
        Moves { last: 0, lives: BTreeMap::new(), waits: Vec::new() }
    }
}

impl<W, S> Moves<W, S> {
    /// The number of a new move; none is given again.
    pub fn begin(&mut self, mover: Mover) -> u64 {
        self.last += 1;
        let life = match mover {
            Mover::Queue(device, queue) => Life::Asked { device, queue },
            Mover::Nic(device) => Life::OnItsWay { device },
        };
        self.lives.insert(self.last, life);
        self.last
    }

    /// The new sidecore is ready: of which queue of which device. `None`: it was called off.
    pub fn prepared(&mut self, id: u64) -> Option<(u32, u16)> {
        let life = self.lives.get_mut(&id)?;
        let Life::Asked { device, queue } = *life else { return None };
        *life = Life::Handed { device, queue };
        Some((device, queue))
    }

    /// Its sidecores say that it moved, or `stayed`: what. `None`: it was called off, or could not have moved yet.
    pub fn heard(&self, id: u64, stayed: bool) -> Option<Mover> {
        let life = *self.lives.get(&id)?;
        let is_early = !stayed && matches!(life, Life::Asked { .. });
        (!is_early).then(|| life.mover())
    }

    /// It is over: what moved is where it was to go, or it is not. False: it had ended before.
    pub fn end(&mut self, id: u64, outcome: Result<(), NotMoved<S>>) -> bool {
        let Some(life) = self.lives.remove(&id) else { return false };
        let queue = match life.mover() {
            Mover::Queue(_, queue) => Some(queue),
            Mover::Nic(_) => None,
        };
        // At most one waits for it.
        let wait = self.waits.iter_mut().find_map(|wait| wait.open.remove(&id).then_some(wait));
        if let (Some(wait), Err(why)) = (wait, outcome) {
            wait.problems.push((queue, why));
        }
        true
    }

    /// It was begun again: who waits for `before` waits for `next` from now on.
    pub fn replace(&mut self, before: u64, next: u64) {
        self.lives.remove(&before);
        for wait in &mut self.waits {
            if wait.open.remove(&before) {
                wait.open.insert(next);
            }
        }
    }

    /// Somebody is to be answered when these moves of one device are over. Nobody else waits for any of them.
    pub fn wait(&mut self, device: u32, moves: impl IntoIterator<Item = u64>, who: W) {
        let open = moves.into_iter().filter(|id| self.lives.contains_key(id)).collect();
        self.waits.push(Wait { device, open, problems: Vec::new(), who });
    }

    /// The next whose moves are all over.
    pub fn take_answerable(&mut self) -> Option<Waited<W, S>> {
        let at = self.waits.iter().position(|wait| wait.open.is_empty())?;
        let Wait { device, problems, who, .. } = self.waits.remove(at);
        Some(Waited { device, problems, who })
    }

    /// Forgets all who wait.
    pub fn answer_nobody(&mut self) {
        self.waits.clear();
    }
}

#[cfg(test)]
mod tests;
