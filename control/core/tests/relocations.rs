//! Every order of events of a NIC that goes from one sidecore to another, with a third one that has a part in that:
//! operators and loads who want it elsewhere, sidecores that are late or have no place, a front-end that stops and
//! starts its queue, and a switch that is made anew.
//!
//! Around the real [`Port`], [`Moves`] and [`queue::Life`] is what their owners do
//! (`control/manager/src/network/{travel,plugs}.rs`), and a model of `data/sidecore/src/net/relocate.rs`: one word that
//! all sidecores look at decides. States that were met are not gone through again; a run is its choices, made anew
//! from the start.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::rc::Rc;

use control::Passes;
use control::moves::{Mover, Moves, NotMoved};
use control::port::{Arrived, At, Outcome, Port, Wish};
use control::queue::{self, Asked, Owner, Place};
use schedule::Nanos;

/// Of operators, loads and front-ends.
const WISHES: u8 = 3;
/// Moves that are called off because a sidecore is late or has no place.
const FAULTS: u8 = 1;
/// Steps in which all comes to its end.
const ROUNDS: u32 = 1_000;
const CORES: usize = 3;
const DEVICE: u32 = 0;

#[derive(Debug)]
struct Tokens;

impl Passes for Tokens {
    type MoveId = u64;
    type Departure = ();
    type Command = Command;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Word {
    Deciding,
    Committed,
    Done,
    Off(Outcome),
}

/// What all sidecores that have a part in a move look at.
#[derive(Debug)]
struct Accord {
    word: Cell<Word>,
    ready: Cell<usize>,
    /// On its way: the last call descriptor that its queue was given, if it has one.
    handed: Cell<Option<u8>>,
}

impl Accord {
    /// Whether it was not decided before.
    fn decide(&self, word: Word) -> bool {
        let is_open = self.word.get() == Word::Deciding;
        if is_open {
            self.word.set(word);
        }
        is_open
    }
}

/// A sidecore's part in a move.
#[derive(Clone, Debug)]
struct Hold {
    id: u64,
    port: u8,
    to: usize,
    is_old_home: bool,
    accord: Rc<Accord>,
}

impl Hold {
    /// Whether its queues may go.
    fn is_agreed(&self) -> bool {
        let is_open = self.accord.word.get() == Word::Deciding;
        is_open && self.is_old_home && self.accord.ready.get() == CORES
    }
}

#[derive(Debug)]
enum Command {
    SetPort(u8, Option<usize>),
    Relocate(Hold),
    Attach(u8, u8),
    SetCall(u8),
    Detach,
}

#[derive(Debug)]
enum Event {
    Moved(u64),
    Stayed(u64, Outcome),
    Back,
}

/// A queue as its sidecore has it.
#[derive(Debug)]
struct Served {
    port: u8,
    call: u8,
    is_leaving: bool,
}

#[derive(Debug, Default)]
struct Core {
    inbox: VecDeque<Command>,
    outbox: VecDeque<Event>,
    /// Where it knows ports to be at home.
    homes: BTreeMap<u8, usize>,
    holds: Vec<Hold>,
    served: Option<Served>,
}

#[derive(Debug)]
struct World {
    cores: [Core; CORES],
    port: Port<Tokens, u8>,
    /// Who waits for one is an operator's number, and where he wants it.
    moves: Moves<(u32, usize), Outcome>,
    queue: queue::Life<Tokens>,
    /// It is to be plugged in anew when its queue is back.
    is_held_back: bool,
    /// Its front-end wants its queue served.
    is_wanted: bool,
    /// The call descriptor that its front-end has given last.
    call: u8,
    next_port: u8,
    asked: u32,
    answered: Vec<u32>,
    /// What an operator was told that is not so.
    lie: Option<String>,
    wishes: u8,
    faults: u8,
}

/// What happens next; each is tried wherever it can be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Move { to: usize, by_hand: bool },
    LetGo,
    Stop,
    Start,
    SetCall,
    Replug,
    Obey(usize),
    HasNoPlace(usize),
    Commit(usize),
    Late(usize),
    Look(usize),
    GiveBack(usize),
    Hear(usize),
}

type Judged = Result<(), String>;

impl Core {
    /// Does what was decided of the moves that it has a part in.
    fn look(&mut self, here: usize) {
        for hold in std::mem::take(&mut self.holds) {
            match hold.accord.word.get() {
                Word::Deciding => self.holds.push(hold),
                Word::Committed if hold.to != here => self.holds.push(hold),
                Word::Committed => {
                    self.set_home(&hold);
                    let (port, is_leaving) = (hold.port, false);
                    if let Some(call) = hold.accord.handed.take() {
                        self.served = Some(Served { port, call, is_leaving });
                    }
                    hold.accord.word.set(Word::Done);
                    self.outbox.push_back(Event::Moved(hold.id));
                }
                Word::Done => self.set_home(&hold),
                Word::Off(why) if hold.is_old_home => {
                    self.outbox.push_back(Event::Stayed(hold.id, why));
                }
                Word::Off(_) => {}
            }
        }
    }

    fn set_home(&mut self, hold: &Hold) {
        self.homes.entry(hold.port).and_modify(|home| *home = hold.to);
    }

    fn call_off(&self, port: u8) {
        for hold in self.holds.iter().filter(|hold| hold.is_old_home && hold.port == port) {
            hold.accord.decide(Word::Off(Outcome::Stayed));
        }
    }

    /// # Errors
    /// It was asked for a queue that it has not, or given one whose port is elsewhere.
    fn obey(&mut self, here: usize, has_place: bool) -> Judged {
        self.look(here);
        match self.inbox.pop_front() {
            Some(Command::SetPort(port, Some(home))) => drop(self.homes.insert(port, home)),
            Some(Command::SetPort(port, None)) => drop(self.homes.remove(&port)),
            Some(Command::Relocate(mut hold)) => {
                let is_leaving = self.served.as_ref().is_some_and(|served| served.is_leaving);
                let is_here = self.homes.get(&hold.port) == Some(&here);
                hold.is_old_home &= hold.to != here;
                if hold.is_old_home && (is_leaving || !is_here) || !has_place {
                    hold.accord.decide(Word::Off(Outcome::Stayed));
                }
                // What it has sent before is delivered, or it will be late.
                hold.accord.ready.set(hold.accord.ready.get() + 1);
                self.holds.push(hold);
            }
            Some(Command::Attach(port, call)) => {
                if self.served.is_some() || self.homes.get(&port) != Some(&here) {
                    return Err("its queue is started where it is not at home".to_string());
                }
                self.call_off(port);
                self.served = Some(Served { port, call, is_leaving: false });
            }
            // One that is on its way back has no use for it.
            Some(Command::SetCall(call)) => {
                self.served.iter_mut().for_each(|served| served.call = call);
            }
            Some(Command::Detach) => {
                let Some(served) = &mut self.served else {
                    return Err("it is asked for a queue that is elsewhere".to_string());
                };
                served.is_leaving = true;
                let port = served.port;
                self.call_off(port);
            }
            None => {}
        }
        Ok(())
    }

    /// Its queue goes, if nobody has called that off.
    fn commit(&mut self) {
        let Some(hold) = self.holds.iter().find(|hold| hold.is_agreed()).cloned() else { return };
        if hold.accord.decide(Word::Committed) {
            let its = self.served.take_if(|served| served.port == hold.port);
            hold.accord.handed.set(its.map(|served| served.call));
            self.set_home(&hold);
        }
    }
}

impl World {
    fn new() -> World {
        let mut world = World {
            cores: Default::default(),
            port: Port::default(),
            moves: Moves::default(),
            queue: queue::Life::default(),
            is_held_back: false,
            is_wanted: true,
            call: 0,
            next_port: 0,
            asked: 0,
            answered: Vec::new(),
            lie: None,
            wishes: 0,
            faults: 0,
        };
        world.plug();
        world
    }

    /// What can happen now.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, core) in self.cores.iter().enumerate() {
            let can_fail = self.faults < FAULTS;
            if let Some(first) = core.inbox.front() {
                steps.push(Step::Obey(at));
                if matches!(first, Command::Relocate(hold) if hold.to == at) && can_fail {
                    steps.push(Step::HasNoPlace(at));
                }
            }
            let is_open = |hold: &Hold| hold.accord.word.get() == Word::Deciding;
            if core.holds.iter().any(Hold::is_agreed) {
                steps.push(Step::Commit(at));
            }
            if core.holds.iter().any(is_open) && can_fail {
                steps.push(Step::Late(at));
            }
            // Others look before the next command, or in the end.
            let is_due = |hold: &Hold| match hold.accord.word.get() {
                Word::Deciding | Word::Done => false,
                Word::Committed => hold.to == at,
                Word::Off(_) => hold.is_old_home,
            };
            if core.holds.iter().any(is_due) {
                steps.push(Step::Look(at));
            }
            if core.served.as_ref().is_some_and(|served| served.is_leaving) {
                steps.push(Step::GiveBack(at));
            }
            steps.extend(core.outbox.front().map(|_| Step::Hear(at)));
        }
        if self.wishes < WISHES {
            steps.extend((0..2).map(|to| Step::Move { to, by_hand: true }));
            steps.extend([Step::Move { to: 1, by_hand: false }, Step::LetGo, Step::Replug]);
            steps.push(if self.is_wanted { Step::Stop } else { Step::Start });
            steps.extend(self.queue.place().map(|_| Step::SetCall));
        }
        steps
    }

    /// # Errors
    /// What must not happen.
    fn take(&mut self, step: Step) -> Judged {
        match step {
            Step::Move { to, by_hand } => self.want_at(to, by_hand),
            Step::LetGo => self.wish(|world| world.port.let_go()),
            Step::Stop => self.wish(|world| {
                world.is_wanted = false;
                world.ask();
            }),
            Step::Start => self.wish(|world| world.is_wanted = true),
            Step::SetCall => self.wish(|world| {
                world.call += 1;
                world.say(Command::SetCall(world.call));
            }),
            Step::Replug => self.wish(|world| {
                world.is_held_back = true;
                world.ask();
            }),
            Step::Obey(at) => self.cores[at].obey(at, true)?,
            Step::HasNoPlace(at) => {
                self.faults += 1;
                self.cores[at].obey(at, false)?;
            }
            Step::Commit(at) => self.cores[at].commit(),
            Step::Late(at) => {
                self.faults += 1;
                for hold in &self.cores[at].holds {
                    hold.accord.decide(Word::Off(Outcome::Late));
                }
                self.cores[at].look(at);
            }
            Step::Look(at) => self.cores[at].look(at),
            Step::GiveBack(at) => {
                self.cores[at].served = None;
                self.cores[at].outbox.push_back(Event::Back);
            }
            Step::Hear(at) => self.hear(at)?,
        }
        self.settle();
        self.judge()
    }

    fn wish(&mut self, act: impl FnOnce(&mut World)) {
        self.wishes += 1;
        act(self);
    }

    fn judge(&self) -> Judged {
        let handed = |core: &Core| {
            let is_handed = |hold: &&Hold| hold.is_old_home && hold.accord.handed.get().is_some();
            core.holds.iter().filter(is_handed).count()
        };
        let served = self.cores.iter().filter(|core| core.served.is_some()).count();
        if served + self.cores.iter().map(handed).sum::<usize>() > 1 {
            return Err("two sidecores have its queue".to_string());
        }
        if let Some(lie) = &self.lie {
            return Err(lie.clone());
        }
        match self.answered.iter().collect::<HashSet<_>>().len() == self.answered.len() {
            true => Ok(()),
            false => Err("an operator is answered twice".to_string()),
        }
    }

    fn plug(&mut self) {
        self.next_port += 1;
        let home = At { way: self.next_port, home: 0, by_hand: false };
        assert!(self.port.plug(home), "it is in already");
        self.send_all(|| Command::SetPort(home.way, Some(home.home)));
    }

    fn send_all(&mut self, command: impl Fn() -> Command) {
        self.cores.iter_mut().for_each(|core| core.inbox.push_back(command()));
    }

    /// As `Device::tell`: to its port, which may be on its way, and then to its queue.
    fn say(&mut self, command: Command) {
        let told = self.port.tell(0, command).and_then(|command| self.queue.tell(command));
        if let Some((core, command)) = told {
            self.cores[core].inbox.push_back(command);
        }
    }

    fn ask(&mut self) {
        if let Asked::Tell(_) = self.queue.ask(false, Nanos(1)) {
            self.say(Command::Detach);
        }
    }

    /// As `Travel::ask` and `Travel::relieve`.
    fn want_at(&mut self, to: usize, by_hand: bool) {
        self.wishes += 1;
        self.asked += u32::from(by_hand);
        if !self.may_go() {
            if by_hand {
                self.answered.push(self.asked);
            }
            return;
        }
        let begun = self.begin(Wish::new(to, by_hand));
        if by_hand {
            self.moves.wait(DEVICE, begun, (self.asked, to));
        }
    }

    fn may_go(&self) -> bool {
        let is_at_rest = !self.port.travels() && self.queue.leaving_since().is_none();
        self.port.at().is_some() && is_at_rest && !self.is_held_back
    }

    fn begin(&mut self, wish: Wish) -> Option<u64> {
        if self.port.stays_at(wish.to, wish.by_hand) {
            return None;
        }
        let At { way: port, home, .. } = self.port.at()?;
        let id = self.moves.begin(Mover::Nic(DEVICE));
        assert!(self.port.depart(id, wish), "it is at rest, and elsewhere");
        let (word, ready) = (Cell::new(Word::Deciding), Cell::new(0));
        let accord = Rc::new(Accord { word, ready, handed: Cell::new(None) });
        for (at, core) in self.cores.iter_mut().enumerate() {
            let (is_old_home, accord) = (at == home, Rc::clone(&accord));
            let hold = Hold { id, port, to: wish.to, is_old_home, accord };
            core.inbox.push_back(Command::Relocate(hold));
        }
        Some(id)
    }

    fn hear(&mut self, at: usize) -> Judged {
        match self.cores[at].outbox.pop_front() {
            Some(Event::Moved(id)) => self.is_over(id, Outcome::Moved),
            Some(Event::Stayed(id, outcome)) => self.is_over(id, outcome),
            Some(Event::Back) => {
                let back = self.queue.come_back().ok_or("it came back, and nobody had it")?;
                if back.was.core != at {
                    return Err(format!("it came back from {at}, and was at {}", back.was.core));
                }
            }
            None => {}
        }
        Ok(())
    }

    /// As `Moves::is_over` and `Travel::end`.
    fn is_over(&mut self, id: u64, outcome: Outcome) {
        if self.moves.heard(id, outcome != Outcome::Moved).is_none() {
            return;
        }
        let Some(Arrived { to, held, again, .. }) = self.port.arrive(id, outcome) else {
            self.moves.end(id, Err(NotMoved::NotThere));
            return;
        };
        if outcome == Outcome::Moved {
            self.queue.rehome(to);
        }
        for (_, command) in held {
            self.say(command);
        }
        let next = again.filter(|_| self.may_go()).and_then(|wish| self.begin(wish));
        match next {
            Some(next) => self.moves.replace(id, next),
            None => {
                let is_there = outcome == Outcome::Moved;
                let ended = if is_there { Ok(()) } else { Err(NotMoved::Stayed(outcome)) };
                self.moves.end(id, ended);
            }
        }
    }

    /// As the loop does at the end of each turn.
    fn settle(&mut self) {
        if self.is_held_back && self.queue.place().is_none() {
            self.is_held_back = false;
            if let Some(id) = self.port.call_off() {
                self.moves.end(id, Err(NotMoved::Removed));
            }
            if let Some(At { way, .. }) = self.port.unplug() {
                self.send_all(|| Command::SetPort(way, None));
            }
            self.plug();
        }
        let is_at_rest = !self.port.travels() && self.queue.place().is_none();
        if let Some(At { way, home, .. }) = self.port.at()
            && self.is_wanted
            && is_at_rest
        {
            let place = Place { core: home, owner: Owner::Connection(0), by_hand: false };
            assert!(self.queue.attach(place), "it is idle");
            self.cores[home].inbox.push_back(Command::Attach(way, self.call));
        }
        while let Some(waited) = self.moves.take_answerable() {
            let (who, to) = waited.who;
            let is_there = self.port.at().is_some_and(|at| at.home == to) && !self.port.travels();
            if waited.problems.is_empty() && !is_there {
                self.lie = Some(format!("operator {who} is told that it is at {to}"));
            }
            self.answered.push(who);
        }
    }

    /// All that is under way comes to its end: everybody agrees where it is, and nobody waits.
    fn come_to_rest(&mut self) -> Judged {
        (self.wishes, self.faults) = (WISHES, FAULTS);
        for round in 0.. {
            let Some(step) = self.steps().into_iter().next() else { break };
            if round > ROUNDS {
                return Err("it does not come to an end".to_string());
            }
            self.take(step)?;
        }
        self.cores.iter_mut().enumerate().for_each(|(at, core)| core.look(at));
        let at = self.port.at().ok_or("it is not plugged in")?;
        if self.port.travels() || self.queue.leaving_since().is_some() || self.is_held_back {
            return Err("control waits for what never comes".to_string());
        }
        if let Some(id) =
            (1..=u64::from(WISHES + FAULTS)).find(|id| self.moves.heard(*id, true).is_some())
        {
            return Err(format!("move {id} is over, and not forgotten"));
        }
        if self.answered.len() != self.asked as usize {
            return Err(format!("{} of {} are answered", self.answered.len(), self.asked));
        }
        let homes = BTreeMap::from([(at.way, at.home)]);
        if let Some(core) = self.cores.iter().find(|core| core.homes != homes) {
            return Err(format!("a sidecore says {:?}, and control {homes:?}", core.homes));
        }
        let served = |core: &Core| core.served.as_ref().map(|served| (served.port, served.call));
        for (here, core) in self.cores.iter().enumerate() {
            let wanted = (self.is_wanted && here == at.home).then_some((at.way, self.call));
            if served(core) != wanted {
                return Err(format!("{here} has {:?}, which is to be {wanted:?}", core.served));
            }
        }
        Ok(())
    }
}

/// The world after these choices, and what could happen then.
fn run(choices: &[u8]) -> (World, Vec<Step>, Judged) {
    let mut world = World::new();
    world.settle();
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
fn in_every_order_all_sidecores_agree_where_it_is_and_control_knows() {
    let (mut met, mut waiting) = (HashSet::new(), vec![Vec::new()]);
    while let Some(choices) = waiting.pop() {
        let (mut world, steps, outcome) = run(&choices);
        let state = format!("{world:?}");
        let judged = outcome.and_then(|()| {
            if met.insert(state.clone()) { world.come_to_rest().map(|()| true) } else { Ok(false) }
        });
        let is_new = judged
            .unwrap_or_else(|why| panic!("{why}\nafter {choices:?}\nin {state}\nthen {world:#?}"));
        for choice in (0..steps.len() as u8).filter(|_| is_new) {
            let mut next = choices.clone();
            next.push(choice);
            waiting.push(next);
        }
    }
    assert!(met.len() > 30_000, "{} states", met.len());
}
