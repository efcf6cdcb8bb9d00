//! The two sides of an upgrade: what each may do when, and what it does when the other one ends.
//!
//! Guests are served by one process or the other; by both never, and by none only while both have all at rest. Not here:
//! words and descriptors, and how long each is waited for.
//!
//! The predecessor's side, [`Giving`]; "-" is a defect, and changes nothing:
//!
//! | | started | hello | tell | flip | give | given up |
//! |---|---|---|---|---|---|---|
//! | asked | started | - | - | - | - | goes on |
//! | started | - | waiting | - | - | - | goes on |
//! | waiting | - | - | telling | - | - | goes on |
//! | telling | - | - | - | flipped | - | sends all out |
//! | flipped | - | - | - | - | given | sends all out when the heir has ended |
//! | given | - | - | - | - | - | takes back when the heir has ended |
//!
//! The heir's, [`Taking`]; whoever is left by a predecessor that gave it up is killed by that:
//!
//! | | ready | flipped | leave | predecessor ends | commit |
//! |---|---|---|---|---|---|
//! | told | able | - | - | ends, too | - |
//! | able | - | placed | - | ends, too | - |
//! | placed | - | - | serves, on probation | serves, on probation | - |
//! | on probation | - | - | - | committed | committed |
//! | committed | - | - | - | - | - |

use schedule::Nanos;

/// What a predecessor knows of its heir, and what is to come of that. `H` is the heir's process, `V` what it said of
/// itself.
#[derive(Debug)]
pub struct Giving<H, V> {
    stage: Stage<H, V>,
    due: Nanos,
}

#[derive(Debug)]
enum Stage<H, V> {
    /// That launcher was asked to start it.
    Asked(usize),
    Started(H),
    /// It is told all as soon as nothing is under way.
    Waiting(H, V),
    /// It hears what there is, which stays so.
    Telling(H, V),
    /// It may serve from now on, unless it has ended.
    Flipped(H, V),
    Given(H, V),
}

/// What somebody who gives an heir up has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Back<H> {
    /// Nothing: it was told nothing, and all is served.
    GoOn(Option<H>),
    /// It serves nothing whatever it does: all goes out again.
    SendOut(H),
    /// It may serve: all goes out again when it has ended.
    EndFirst(H),
    /// It has served: what it had in flight lands first.
    TakeBack(H),
}

impl<H, V> Giving<H, V> {
    /// A launcher was asked.
    pub fn ask(launcher: usize, due: Nanos) -> Giving<H, V> {
        Giving { stage: Stage::Asked(launcher), due }
    }

    /// The launcher that is to start it, and has not yet.
    pub fn launcher(&self) -> Option<usize> {
        match self.stage {
            Stage::Asked(launcher) => Some(launcher),
            _ => None,
        }
    }

    /// What it waits for must have come by then.
    pub fn due(&self) -> Nanos {
        self.due
    }

    /// The heir has said what it is.
    pub fn hello(&self) -> Option<&V> {
        match &self.stage {
            Stage::Asked(_) | Stage::Started(_) => None,
            Stage::Waiting(_, hello)
            | Stage::Telling(_, hello)
            | Stage::Flipped(_, hello)
            | Stage::Given(_, hello) => Some(hello),
        }
    }

    /// The launcher has started it. False: it was not asked.
    #[must_use]
    pub fn started(&mut self, heir: H, due: Nanos) -> bool {
        let is_asked = matches!(self.stage, Stage::Asked(_));
        if is_asked {
            *self = Giving { stage: Stage::Started(heir), due };
        }
        is_asked
    }

    /// The heir has said its first word. False: it says nothing before it is started, and nothing more before it is
    /// asked.
    #[must_use]
    pub fn greeted(&mut self, hello: V, due: Nanos) -> bool {
        let next = |stage| match stage {
            Stage::Started(heir) => Ok(Stage::Waiting(heir, hello)),
            other => Err(other),
        };
        let is_next = self.go_on(next);
        if is_next {
            self.due = due;
        }
        is_next
    }

    /// It is told all. False: it has not said what it is, or is told already.
    #[must_use]
    pub fn tell(&mut self) -> bool {
        self.go_on(|stage| match stage {
            Stage::Waiting(heir, hello) => Ok(Stage::Telling(heir, hello)),
            other => Err(other),
        })
    }

    /// All is at rest here, and it is about to be told where. False: it was not told what there is.
    #[must_use]
    pub fn flip(&mut self) -> bool {
        self.go_on(|stage| match stage {
            Stage::Telling(heir, hello) => Ok(Stage::Flipped(heir, hello)),
            other => Err(other),
        })
    }

    /// All is let go, and it is told so. False: it does not know where all stands.
    #[must_use]
    pub fn give(&mut self) -> bool {
        self.go_on(|stage| match stage {
            Stage::Flipped(heir, hello) => Ok(Stage::Given(heir, hello)),
            other => Err(other),
        })
    }

    fn go_on(
        &mut self,
        next: impl FnOnce(Stage<H, V>) -> Result<Stage<H, V>, Stage<H, V>>,
    ) -> bool {
        let stage = std::mem::replace(&mut self.stage, Stage::Asked(0));
        let next = next(stage);
        let is_next = next.is_ok();
        self.stage = next.unwrap_or_else(|same| same);
        is_next
    }

    /// What an heir that is killed leaves to do.
    pub fn give_up(self) -> Back<H> {
        match self.stage {
            Stage::Asked(_) => Back::GoOn(None),
            Stage::Started(heir) | Stage::Waiting(heir, _) => Back::GoOn(Some(heir)),
            Stage::Telling(heir, _) => Back::SendOut(heir),
            Stage::Flipped(heir, _) => Back::EndFirst(heir),
            Stage::Given(heir, _) => Back::TakeBack(heir),
        }
    }

    /// The same as [`Self::given`], when nothing is to be done any more.
    pub fn into_given(self) -> Option<(H, V)> {
        match self.stage {
            Stage::Given(heir, hello) => Some((heir, hello)),
            _ => None,
        }
    }

    /// Who has it now, and what it said of itself; nobody, where it is not given.
    pub fn given(&self) -> Option<(&H, &V)> {
        match &self.stage {
            Stage::Given(heir, hello) => Some((heir, hello)),
            _ => None,
        }
    }
}

/// What an heir has, and may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Taking {
    /// It is being told what there is.
    #[default]
    Told,
    /// It could serve that.
    Able,
    /// It knows where all stands.
    Placed,
    /// It serves, and its predecessor can take back what it has given.
    OnProbation,
    /// It serves, and nobody else could.
    Committed,
}

impl Taking {
    /// It could serve all that it was told of.
    #[must_use]
    pub fn ready(&mut self) -> bool {
        self.go_on(Taking::Told, Taking::Able)
    }

    /// It was told where all stands.
    #[must_use]
    pub fn flipped(&mut self) -> bool {
        self.go_on(Taking::Able, Taking::Placed)
    }

    /// Its predecessor has let go.
    #[must_use]
    pub fn leave(&mut self) -> bool {
        self.go_on(Taking::Placed, Taking::OnProbation)
    }

    /// Its predecessor has ended. False: so must it, for nobody knows where all stands.
    #[must_use]
    pub fn left_alone(&mut self) -> bool {
        match self {
            Taking::Told | Taking::Able => false,
            Taking::Placed => self.leave(),
            Taking::OnProbation | Taking::Committed => {
                *self = Taking::Committed;
                true
            }
        }
    }

    /// It is about to do what its predecessor could not take back. True: that one is to be told first.
    #[must_use]
    pub fn commit(&mut self) -> bool {
        self.go_on(Taking::OnProbation, Taking::Committed)
    }

    fn go_on(&mut self, from: Taking, to: Taking) -> bool {
        let is_next = *self == from;
        if is_next {
            *self = to;
        }
        is_next
    }
}

#[cfg(test)]
mod tests;
