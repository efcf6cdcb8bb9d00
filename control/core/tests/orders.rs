//! Every order of events of one queue's life, with two sidecores that may refuse, be late, and give up: a model of
//! `data/sidecore/src/moves.rs` around the real [`Life`].
//!
//! States that were met are not gone through again; a run is its choices, made anew from the start.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use control::Passes;
use control::queue::{Asked, Life, Move, Owner, Place};
use schedule::Nanos;

/// Of operators and front-ends: moves, detaches, finishes and starts, in any order.
const WISHES: u8 = 6;

#[derive(Debug)]
struct Tokens;

impl Passes for Tokens {
    type MoveId = u8;
    type Departure = Departure;
    type Command = Command;
}

/// What lies between the two ends of a move.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Handoff {
    Open,
    Handed,
    Abandoned,
}

/// The old owner's end. Dropped unused, it calls the move off.
#[derive(Debug)]
struct Departure(u8, Rc<Cell<Handoff>>);

impl Drop for Departure {
    fn drop(&mut self) {
        if self.1.get() == Handoff::Open {
            self.1.set(Handoff::Abandoned);
        }
    }
}

#[derive(Debug)]
enum Command {
    Attach,
    Prepare(u8, Rc<Cell<Handoff>>),
    Move(Departure),
    Detach,
    Finish,
}

#[derive(Debug)]
enum Event {
    Prepared(u8),
    Moved(u8),
    Stayed(u8),
    Detached,
}

/// A sidecore as far as one queue goes.
#[derive(Debug, Default)]
struct Core {
    inbox: VecDeque<Command>,
    outbox: VecDeque<Event>,
    has: bool,
    /// It was asked for it, and gives it back when nothing is in flight.
    leaving: bool,
    /// It was asked to finish it: who asks without that may come too late.
    finishing: bool,
    going: Option<Departure>,
    arrivals: Vec<(u8, Rc<Cell<Handoff>>)>,
}

#[derive(Debug, Default)]
struct World {
    cores: [Core; 2],
    life: Life<Tokens>,
    last_move: u8,
    wishes: u8,
}

/// What happens next; each is tried wherever it can be.
#[derive(Clone, Copy, Debug)]
enum Step {
    Obey(usize),
    Refuse(usize),
    HandOver(usize),
    GiveUp(usize),
    Land(usize),
    GiveBack(usize),
    Hear(usize),
    Start(usize),
    MoveTo(usize),
    Ask(bool),
}

impl Core {
    /// # Errors
    /// It was told of a queue that it has not.
    fn obey(&mut self, refuses: bool) -> Result<(), String> {
        match self.inbox.pop_front() {
            Some(Command::Attach) if !self.has => (self.has, self.finishing) = (true, false),
            Some(Command::Prepare(id, _)) if refuses => self.outbox.push_back(Event::Stayed(id)),
            Some(Command::Prepare(id, handoff)) => {
                self.arrivals.push((id, handoff));
                self.outbox.push_back(Event::Prepared(id));
            }
            Some(Command::Move(departure)) if self.leaving || self.going.is_some() => {
                self.outbox.push_back(Event::Stayed(departure.0));
            }
            Some(Command::Move(departure)) if self.has => self.going = Some(departure),
            Some(Command::Detach) if !self.has && self.finishing => self.finishing = false,
            Some(asked @ (Command::Detach | Command::Finish)) if self.has => {
                self.finishing = matches!(asked, Command::Finish);
                // A queue that is going stays, and leaves.
                if let Some(departure) = self.going.take() {
                    self.outbox.push_back(Event::Stayed(departure.0));
                }
                self.leaving = true;
            }
            other => return Err(format!("told {other:?} of a queue that is elsewhere")),
        }
        Ok(())
    }

    fn is_due(&self) -> bool {
        self.arrivals.iter().any(|(_, handoff)| handoff.get() != Handoff::Open)
    }

    fn land(&mut self) {
        let due = self.arrivals.iter().position(|(_, handoff)| handoff.get() != Handoff::Open);
        let Some((id, handoff)) = due.map(|at| self.arrivals.remove(at)) else { return };
        if handoff.get() == Handoff::Handed {
            self.has = true;
            self.outbox.push_back(Event::Moved(id));
        }
    }
}

impl World {
    /// What can happen now.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, core) in self.cores.iter().enumerate() {
            if let Some(first) = core.inbox.front() {
                steps.push(Step::Obey(at));
                if matches!(first, Command::Prepare(..)) {
                    steps.push(Step::Refuse(at));
                }
            }
            if core.going.is_some() {
                steps.extend([Step::HandOver(at), Step::GiveUp(at)]);
            }
            if core.is_due() {
                steps.push(Step::Land(at));
            }
            if core.has && core.leaving {
                steps.push(Step::GiveBack(at));
            }
            if !core.outbox.is_empty() {
                steps.push(Step::Hear(at));
            }
        }
        if self.wishes < WISHES {
            steps.extend([Step::Ask(false), Step::Ask(true)]);
            steps.extend([0, 1].map(Step::Start));
            steps.extend([0, 1].map(Step::MoveTo));
        }
        steps
    }

    /// # Errors
    /// What must not happen.
    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Obey(at) => self.cores[at].obey(false)?,
            Step::Refuse(at) => self.cores[at].obey(true)?,
            Step::HandOver(at) => self.hand_over(at),
            Step::GiveUp(at) => {
                if let Some(departure) = self.cores[at].going.take() {
                    self.cores[at].outbox.push_back(Event::Stayed(departure.0));
                }
            }
            Step::Land(at) => self.cores[at].land(),
            Step::GiveBack(at) => {
                (self.cores[at].has, self.cores[at].leaving) = (false, false);
                self.cores[at].outbox.push_back(Event::Detached);
            }
            Step::Hear(at) => self.hear(at)?,
            Step::Start(core) => self.start(core),
            Step::MoveTo(to) => self.move_to(to),
            Step::Ask(finishes) => self.ask(finishes),
        }
        let owners = self.cores.iter().filter(|core| core.has).count();
        if owners > 1 { Err("two sidecores have it".to_string()) } else { Ok(()) }
    }

    fn hand_over(&mut self, at: usize) {
        let core = &mut self.cores[at];
        let Some(departure) = core.going.take() else { return };
        if departure.1.get() == Handoff::Open {
            core.has = false;
            departure.1.set(Handoff::Handed);
        } else {
            core.outbox.push_back(Event::Stayed(departure.0));
        }
    }

    fn hear(&mut self, at: usize) -> Result<(), String> {
        match self.cores[at].outbox.pop_front() {
            Some(Event::Prepared(id)) => {
                if let Some((core, departure)) = self.life.prepared(id) {
                    self.cores[core].inbox.push_back(Command::Move(departure));
                }
            }
            Some(Event::Moved(id)) => self.moved(id, false),
            Some(Event::Stayed(id)) => self.moved(id, true),
            Some(Event::Detached) => {
                let back = self.life.come_back().ok_or("it came back, and nobody had it")?;
                if back.was.core != at {
                    return Err(format!("it came back from {at}, and was at {}", back.was.core));
                }
            }
            None => {}
        }
        Ok(())
    }

    fn moved(&mut self, id: u8, stayed: bool) {
        let Some(moved) = self.life.moved(id, stayed) else { return };
        for command in moved.held {
            self.say(command);
        }
    }

    fn say(&mut self, command: Command) {
        if let Some((core, command)) = self.life.tell(command) {
            self.cores[core].inbox.push_back(command);
        }
    }

    fn start(&mut self, core: usize) {
        self.wishes += 1;
        if self.life.attach(Place { core, owner: Owner::Connection(0), by_hand: false }) {
            self.cores[core].inbox.push_back(Command::Attach);
        }
    }

    fn move_to(&mut self, to: usize) {
        self.wishes += 1;
        if self.life.place().is_none_or(|place| place.core == to) {
            return;
        }
        self.last_move += 1;
        let (id, handoff) = (self.last_move, Rc::new(Cell::new(Handoff::Open)));
        let departure = Departure(id, Rc::clone(&handoff));
        if self.life.prepare(Move { id, to, by_hand: false }, departure) {
            self.cores[to].inbox.push_back(Command::Prepare(id, handoff));
        }
    }

    fn ask(&mut self, finishes: bool) {
        self.wishes += 1;
        if let Asked::Tell(_) = self.life.ask(finishes, Nanos(1)) {
            self.say(if finishes { Command::Finish } else { Command::Detach });
        }
    }

    /// Nothing is under way any more: control knows where the queue is, and nobody waits for it.
    fn judge(&self) -> Result<(), String> {
        let known = self.life.place().map(|place| place.core);
        let owner = self.cores.iter().position(|core| core.has);
        let is_underway = self.life.moving().is_some() || self.life.leaving_since().is_some();
        match (known == owner, is_underway) {
            (true, false) => Ok(()),
            (false, _) => Err(format!("it is at {owner:?}, and control says {known:?}")),
            (_, true) => Err("control waits for what never comes".to_string()),
        }
    }
}

/// The state after these choices, and what could happen then.
fn run(choices: &[u8]) -> (World, Vec<Step>, Result<(), String>) {
    let mut world = World::default();
    for choice in choices {
        let step = world.steps()[usize::from(*choice)];
        if let Err(why) = world.take(step) {
            return (world, Vec::new(), Err(format!("{step:?}: {why}")));
        }
    }
    let steps = world.steps();
    (world, steps, Ok(()))
}

#[test]
fn in_every_order_one_sidecore_has_it_and_control_knows_which() {
    let (mut met, mut waiting, mut ends) = (HashSet::new(), vec![Vec::new()], 0_u32);
    while let Some(choices) = waiting.pop() {
        let (world, steps, outcome) = run(&choices);
        let told = |why: &str| format!("{why}\nafter {choices:?}\nin {world:#?}");
        outcome.unwrap_or_else(|why| panic!("{}", told(&why)));
        if !met.insert(format!("{world:?}")) {
            continue;
        }
        if world.cores.iter().all(|core| core.inbox.is_empty() && core.outbox.is_empty())
            && steps
                .iter()
                .all(|step| matches!(step, Step::Start(_) | Step::MoveTo(_) | Step::Ask(_)))
        {
            ends += 1;
            world.judge().unwrap_or_else(|why| panic!("{}", told(&why)));
        }
        for choice in 0..steps.len() as u8 {
            let mut next = choices.clone();
            next.push(choice);
            waiting.push(next);
        }
    }
    assert!(met.len() > 10_000 && ends > 20, "{} states, {ends} ends", met.len());
}
