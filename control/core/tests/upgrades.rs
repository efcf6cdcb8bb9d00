//! Every order of words, deaths and refusals of an upgrade: two processes around the real [`Giving`] and [`Taking`], and
//! a channel between them that each may leave.
//!
//! Guests are never served by both, and at the end by one, unless both have died, or the one that had all did.

use std::collections::{HashSet, VecDeque};

use control::upgrade::{Back, Giving, Taking};
use schedule::Nanos;

/// What the predecessor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Told {
    Estate,
    Flip,
    Yours,
}

/// What the heir says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Said {
    Hello,
    Ready,
    Taken,
    Committed,
    Refused,
}

/// The process that serves.
#[derive(Debug)]
enum Predecessor {
    Serves,
    Gives(Giving<(), ()>),
    /// The same, and all is at rest here.
    Rests(Giving<(), ()>),
    /// It has killed its heir, and waits for the end of that.
    Ends(Back<()>),
    Dead,
    /// It is not needed any more.
    Over,
}

/// The process that takes over.
#[derive(Debug)]
enum Heir {
    None,
    Lives { taking: Taking, is_killed: bool, has_greeted: bool },
    Dead,
}

#[derive(Debug)]
struct World {
    predecessor: Predecessor,
    heir: Heir,
    told: VecDeque<Told>,
    said: VecDeque<Said>,
    /// The predecessor has closed its end.
    is_closed: bool,
    deaths_left: u8,
    took_back: bool,
    /// It committed, and nobody had killed it.
    was_committed: bool,
}

/// What happens next; each is tried wherever it can be.
#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    /// The predecessor hears its heir's next word, or its end, and goes on.
    Hear,
    /// It says what comes next, when its heir waits for that.
    Tell,
    /// A time is over, or a disk does not answer.
    GiveUp,
    /// The heir is dead, and the one that waited for it goes on.
    SeeItsEnd,
    Greet,
    Read,
    Settle,
    Refuse,
    /// A kill arrives.
    Fall,
    KillPredecessor,
    KillHeir,
}

const STEPS: [Step; 12] = [
    Step::Start,
    Step::Hear,
    Step::Tell,
    Step::GiveUp,
    Step::SeeItsEnd,
    Step::Greet,
    Step::Read,
    Step::Settle,
    Step::Refuse,
    Step::Fall,
    Step::KillPredecessor,
    Step::KillHeir,
];

impl World {
    fn begin() -> World {
        World {
            predecessor: Predecessor::Serves,
            heir: Heir::None,
            told: VecDeque::new(),
            said: VecDeque::new(),
            is_closed: false,
            deaths_left: 2,
            took_back: false,
            was_committed: false,
        }
    }

    /// Whether guests are served by the predecessor, and by the heir.
    fn served(&self) -> (bool, bool) {
        let by_predecessor = match &self.predecessor {
            Predecessor::Serves | Predecessor::Gives(_) => true,
            Predecessor::Rests(_)
            | Predecessor::Ends(_)
            | Predecessor::Dead
            | Predecessor::Over => false,
        };
        let by_heir = matches!(
            self.heir,
            Heir::Lives { taking: Taking::OnProbation | Taking::Committed, .. }
        );
        (by_predecessor, by_heir)
    }

    /// Takes a step, if it can be taken.
    fn take(&mut self, step: Step) -> bool {
        match step {
            Step::Start => self.start(),
            Step::Hear => self.hear(),
            Step::Tell => self.tell(),
            Step::GiveUp => match &self.predecessor {
                // Whoever has said that it has committed was heard before a time was over.
                Predecessor::Gives(_) => self.give_up(),
                Predecessor::Rests(giving) if giving.given().is_none() || self.said.is_empty() => {
                    self.give_up()
                }
                _ => false,
            },
            Step::SeeItsEnd => self.see_its_end(),
            Step::Greet => self.greet(),
            Step::Read => self.read(),
            Step::Settle => self.commit(),
            Step::Refuse => self.refuse(),
            Step::Fall => self.fall(true),
            Step::KillHeir => self.deaths_left > 0 && self.fall(false),
            Step::KillPredecessor => {
                let lives = !matches!(self.predecessor, Predecessor::Dead | Predecessor::Over);
                let dies = lives && self.deaths_left > 0;
                if dies {
                    self.deaths_left -= 1;
                    (self.predecessor, self.is_closed) = (Predecessor::Dead, true);
                }
                dies
            }
        }
    }

    fn start(&mut self) -> bool {
        let can = matches!((&self.predecessor, &self.heir), (Predecessor::Serves, Heir::None));
        if can {
            let mut giving = Giving::ask(0, Nanos(0));
            assert!(giving.started((), Nanos(0)));
            self.predecessor = Predecessor::Gives(giving);
            self.heir =
                Heir::Lives { taking: Taking::default(), is_killed: false, has_greeted: false };
        }
        can
    }

    fn hear(&mut self) -> bool {
        let (Predecessor::Gives(giving) | Predecessor::Rests(giving)) = &mut self.predecessor
        else {
            return false;
        };
        let Some(word) = self.said.pop_front() else {
            return matches!(self.heir, Heir::Dead) && self.give_up();
        };
        let is_in_order = match word {
            Said::Hello => giving.greeted((), Nanos(0)),
            // A slow disk is a GiveUp here.
            Said::Ready => {
                let is_next = giving.flip();
                self.told.push_back(Told::Flip);
                self.rest();
                is_next
            }
            Said::Taken => {
                let is_next = giving.give();
                self.told.push_back(Told::Yours);
                is_next
            }
            Said::Committed => {
                assert!(giving.given().is_some(), "committed before it was given anything");
                self.predecessor = Predecessor::Over;
                return true;
            }
            Said::Refused => return self.give_up(),
        };
        assert!(is_in_order, "{word:?} of an heir that keeps the order");
        true
    }

    fn tell(&mut self) -> bool {
        let Predecessor::Gives(giving) = &mut self.predecessor else { return false };
        let tells = giving.tell();
        if tells {
            self.told.push_back(Told::Estate);
        }
        tells
    }

    /// All is at rest, before the heir is told where.
    fn rest(&mut self) {
        self.predecessor = match std::mem::replace(&mut self.predecessor, Predecessor::Dead) {
            Predecessor::Gives(giving) => Predecessor::Rests(giving),
            other => other,
        };
    }

    fn give_up(&mut self) -> bool {
        let before = std::mem::replace(&mut self.predecessor, Predecessor::Serves);
        let (Predecessor::Gives(giving) | Predecessor::Rests(giving)) = before else {
            return false;
        };
        if let Heir::Lives { is_killed, .. } = &mut self.heir {
            *is_killed = true;
        }
        match giving.give_up() {
            Back::GoOn(_) | Back::SendOut(()) => self.is_closed = true,
            back @ (Back::EndFirst(()) | Back::TakeBack(())) => {
                self.predecessor = Predecessor::Ends(back);
            }
        }
        true
    }

    fn see_its_end(&mut self) -> bool {
        let (Predecessor::Ends(back), Heir::Dead) = (&self.predecessor, &self.heir) else {
            return false;
        };
        self.took_back = matches!(back, Back::TakeBack(()));
        (self.predecessor, self.is_closed) = (Predecessor::Serves, true);
        true
    }

    fn greet(&mut self) -> bool {
        let Heir::Lives { has_greeted, .. } = &mut self.heir else { return false };
        let greets = !std::mem::replace(has_greeted, true);
        if greets {
            self.said.push_back(Said::Hello);
        }
        greets
    }

    fn read(&mut self) -> bool {
        let Heir::Lives { taking, .. } = &mut self.heir else { return false };
        match self.told.pop_front() {
            Some(Told::Estate) => {
                assert!(taking.ready());
                self.said.push_back(Said::Ready);
            }
            Some(Told::Flip) => {
                assert!(taking.flipped());
                self.said.push_back(Said::Taken);
            }
            Some(Told::Yours) => assert!(taking.leave()),
            None if self.is_closed && *taking != Taking::Committed => {
                let knows_all = *taking == Taking::Placed;
                if !taking.left_alone() {
                    assert!(!knows_all, "whoever could serve has ended with the other");
                    self.heir = Heir::Dead;
                }
            }
            None => return false,
        }
        true
    }

    fn commit(&mut self) -> bool {
        let Heir::Lives { taking, is_killed, .. } = &mut self.heir else { return false };
        let commits = taking.commit();
        if commits {
            self.was_committed |= !*is_killed;
            self.said.push_back(Said::Committed);
        }
        commits
    }

    /// It cannot have what it was told of.
    fn refuse(&mut self) -> bool {
        let can = matches!(self.heir, Heir::Lives { taking: Taking::Told | Taking::Able, .. });
        if can {
            self.said.push_back(Said::Refused);
            self.heir = Heir::Dead;
        }
        can
    }

    fn fall(&mut self, by_predecessor: bool) -> bool {
        let Heir::Lives { is_killed, .. } = self.heir else { return false };
        if is_killed != by_predecessor {
            return false;
        }
        self.deaths_left -= u8::from(!by_predecessor);
        self.heir = Heir::Dead;
        true
    }
}

fn run(choices: &[u8]) -> Option<World> {
    let mut world = World::begin();
    for choice in choices {
        if !world.take(STEPS[usize::from(*choice)]) {
            return None;
        }
        assert_ne!(world.served(), (true, true), "two serve: {world:?}");
        // Its heir may have told a front-end what nobody here knows.
        assert!(!world.took_back || !world.was_committed, "taken back: {world:?}");
    }
    Some(world)
}

#[test]
fn guests_are_served_by_one_and_by_one_at_the_end() {
    let mut met = HashSet::new();
    let mut todo: VecDeque<Vec<u8>> = VecDeque::from([Vec::new()]);
    let (mut upgraded, mut taken_back, mut given_up) = (0, 0, 0);
    while let Some(choices) = todo.pop_front() {
        let Some(world) = run(&choices) else { continue };
        if !met.insert(format!("{world:?}")) {
            continue;
        }
        let ways: Vec<Vec<u8>> = (0..STEPS.len() as u8)
            .map(|choice| choices.iter().copied().chain([choice]).collect())
            .collect();
        // Nothing happens any more but deaths, or what a committed pair may begin.
        let goes_on = ways.iter().any(|way: &Vec<u8>| {
            let last = STEPS[usize::from(way[way.len() - 1])];
            !matches!(last, Step::KillHeir | Step::KillPredecessor | Step::Start | Step::GiveUp)
                && run(way).is_some()
        });
        todo.extend(ways);
        if goes_on {
            continue;
        }
        let heir_lives = matches!(world.heir, Heir::Lives { .. });
        let predecessor_lives = !matches!(world.predecessor, Predecessor::Dead | Predecessor::Over);
        let served = world.served();
        if predecessor_lives || heir_lives {
            assert!(served.0 != served.1, "nobody serves: {world:?} after {choices:?}");
        }
        upgraded += u32::from(served.1);
        taken_back += u32::from(world.took_back);
        given_up += u32::from(served.0 && !world.took_back && !matches!(world.heir, Heir::None));
    }
    assert!(met.len() > 100, "{} states", met.len());
    assert!(upgraded > 0 && taken_back > 0 && given_up > 0, "{upgraded} {taken_back} {given_up}");
}
