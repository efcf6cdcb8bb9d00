//! A shard of a link, which a sidecore has, or which is on its way from one process to another.
//!
//! While no sidecore has it, what is to be said to it is kept. Not here: which sidecore that is, and what a link is made
//! of: `L` is one, `C` what it is told.
//!
//! | | open | ask for | come home | tell | send out | shut |
//! |---|---|---|---|---|---|---|
//! | shut | served | - | - | nobody | - | - |
//! | served | - | asked for | late | now | - | shut |
//! | asked for | - | - | home | later | - | shut |
//! | home | - | - | late | later | served, and told | shut |

mod loan;

pub use loan::Loan;

/// A shard of a link.
#[derive(Debug)]
pub struct Shard<L, C>(State<L, C>);

#[derive(Debug)]
enum State<L, C> {
    Shut,
    Served,
    Asked(Vec<C>),
    Home(L, Vec<C>),
}

impl<L, C> Default for Shard<L, C> {
    fn default() -> Shard<L, C> {
        Shard(State::Shut)
    }
}

impl<L, C> Shard<L, C> {
    /// A sidecore is given it. False: one has it, or had it last.
    #[must_use]
    pub fn open(&mut self) -> bool {
        let is_shut = matches!(self.0, State::Shut);
        if is_shut {
            self.0 = State::Served;
        }
        is_shut
    }

    /// No sidecore is to have it any more; what waits for one is forgotten.
    pub fn shut(&mut self) {
        self.0 = State::Shut;
    }

    /// It is wanted back. False: it is already, or there is none.
    #[must_use]
    pub fn ask(&mut self) -> bool {
        let is_served = matches!(self.0, State::Served);
        if is_served {
            self.0 = State::Asked(Vec::new());
        }
        is_served
    }

    /// Its sidecore gave it back.
    ///
    /// # Errors
    /// It was not asked for.
    pub fn come_home(&mut self, link: L) -> Result<(), L> {
        let State::Asked(untold) = &mut self.0 else { return Err(link) };
        self.0 = State::Home(link, std::mem::take(untold));
        Ok(())
    }

    /// What is to be said to its sidecore now; what is said to one that is shut is forgotten.
    #[must_use]
    pub fn tell(&mut self, told: C) -> Option<C> {
        match &mut self.0 {
            State::Served => Some(told),
            State::Asked(untold) | State::Home(_, untold) => {
                untold.push(told);
                None
            }
            State::Shut => None,
        }
    }

    /// A sidecore is to have it again, if it is here: with what that is told then.
    #[must_use]
    pub fn send_out(&mut self) -> Option<(L, Vec<C>)> {
        match std::mem::replace(&mut self.0, State::Served) {
            State::Home(link, untold) => Some((link, untold)),
            other => {
                self.0 = other;
                None
            }
        }
    }

    /// Whether it was asked for: it is here, or on its way.
    pub fn is_away(&self) -> bool {
        matches!(self.0, State::Asked(_) | State::Home(..))
    }

    /// Whether it was asked for, and has not come.
    pub fn is_awaited(&self) -> bool {
        matches!(self.0, State::Asked(_))
    }

    /// It, while it is here.
    pub fn home(&self) -> Option<&L> {
        match &self.0 {
            State::Home(link, _) => Some(link),
            _ => None,
        }
    }

    /// The same.
    pub fn home_mut(&mut self) -> Option<&mut L> {
        match &mut self.0 {
            State::Home(link, _) => Some(link),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
