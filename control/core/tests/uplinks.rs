//! Every order of events of one uplink's life, with a sidecore that is late and refuses, an interface that goes, a switch
//! that is full for a while, and whoever wants it changed, moved, removed, kept or stopped.
//!
//! Around the real [`Life`] is what its owner does (`control/manager/src/network/uplinks.rs`), on descriptors that are
//! counted: an interface has them once. States that were met are not gone through again; a run is its choices, made anew
//! from the start.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::rc::Rc;

use control::mode::Mode;
use control::uplink::{Back, Life, Next, Ports, Wanted};
use schedule::Nanos;

/// Of operators, and of an upgrade.
const WISHES: u8 = 4;
/// Steps in which all comes to its end.
const ROUNDS: u32 = 100;
/// Descriptors of the uplink.
const QUEUES: u16 = 2;
/// The bridge that it begins at, and the one that it may move to.
const BRIDGES: [u8; 2] = [0, 1];

/// One descriptor of the interface; all of them are counted.
type Port = Rc<()>;

#[derive(Debug)]
enum Command {
    Attach(u16, Port),
    Detach(u16),
}

#[derive(Debug)]
enum Event {
    Back(u16, Port, bool),
    /// The interface of that queue is gone.
    Gone,
}

#[derive(Debug)]
struct World {
    /// Counted by its clones.
    interface: Port,
    life: Life<Port, u8>,
    bridge: u8,
    wanted: u8,
    is_full: bool,
    mode: Mode,
    is_gone: bool,
    inbox: VecDeque<Command>,
    outbox: VecDeque<Event>,
    has: BTreeMap<u16, Port>,
    wishes: u8,
    losses: u8,
}

/// What happens next; each is tried wherever it can be.
#[derive(Clone, Copy, Debug)]
enum Step {
    Open(bool),
    Obey(bool),
    Hear,
    Lose,
    MakeRoom,
    Change,
    MoveTo(u8),
    Leave,
    Freeze,
    Thaw,
    Stop,
}

type Judged = Result<(), String>;

impl World {
    fn new() -> World {
        World {
            interface: Rc::new(()),
            life: Life::new(Nanos(0)),
            bridge: BRIDGES[0],
            wanted: BRIDGES[0],
            is_full: true,
            mode: Mode::Serving,
            is_gone: false,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            has: BTreeMap::new(),
            wishes: 0,
            losses: 0,
        }
    }

    /// What can happen now.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.is_gone && self.inbox.is_empty() && self.outbox.is_empty() {
            return steps;
        }
        let opens = self.mode == Mode::Serving && !self.is_gone && self.life.due_at().is_some();
        steps.extend([Step::Open(true), Step::Open(false)].into_iter().filter(|_| opens));
        steps.extend(self.inbox.front().map(|_| Step::Obey(true)));
        if matches!(self.inbox.front(), Some(Command::Attach(..))) && self.losses < 1 {
            steps.push(Step::Obey(false));
        }
        steps.extend(self.outbox.front().map(|_| Step::Hear));
        if !self.has.is_empty() && self.losses < 1 {
            steps.push(Step::Lose);
        }
        if self.is_full {
            steps.push(Step::MakeRoom);
        }
        if self.wishes < WISHES && !self.is_gone && self.mode != Mode::Stopping {
            steps.extend([Step::Change, Step::Leave, Step::Stop]);
            steps.extend(BRIDGES.map(Step::MoveTo));
            steps.push(if self.mode == Mode::Frozen { Step::Thaw } else { Step::Freeze });
        }
        steps
    }

    /// # Errors
    /// What must not happen.
    fn take(&mut self, step: Step) -> Judged {
        let is_wish = !matches!(
            step,
            Step::Open(_) | Step::Obey(_) | Step::Hear | Step::Lose | Step::MakeRoom
        );
        self.wishes += u8::from(is_wish);
        match step {
            Step::Open(is_there) => self.open(is_there),
            Step::Obey(obeys) => self.obey(obeys),
            Step::Hear => self.hear(),
            Step::Lose => {
                self.losses += 1;
                self.outbox.push_back(Event::Gone);
                Ok(())
            }
            Step::MakeRoom => {
                self.is_full = false;
                Ok(())
            }
            Step::Change => {
                let asked = self.life.ask();
                self.ask_for(asked.unwrap_or(0));
                Ok(())
            }
            Step::MoveTo(bridge) => {
                if !self.life.is_leaving() {
                    self.wanted = bridge;
                }
                let wanted = self.life.move_to(bridge);
                self.do_when(wanted, |world| {
                    world.plug_in_anew();
                });
                Ok(())
            }
            Step::Leave => {
                let wanted = self.life.leave();
                self.do_when(wanted, World::be_gone);
                Ok(())
            }
            Step::Freeze => {
                self.mode = Mode::Frozen;
                let asked = self.life.ask();
                self.ask_for(asked.unwrap_or(0));
                Ok(())
            }
            Step::Thaw => {
                self.mode = Mode::Serving;
                self.go_on()
            }
            Step::Stop => {
                self.mode = Mode::Stopping;
                let asked = self.life.ask();
                self.ask_for(asked.unwrap_or(0));
                Ok(())
            }
        }
    }

    fn do_when(&mut self, wanted: Wanted, act: impl FnOnce(&mut World)) {
        match wanted {
            Wanted::Ask(queues) => self.ask_for(queues),
            Wanted::Wait => {}
            Wanted::Now => act(self),
        }
    }

    fn ask_for(&mut self, queues: u16) {
        self.inbox.extend((0..queues).map(Command::Detach));
    }

    fn be_gone(&mut self) {
        self.is_gone = true;
        self.life = Life::new(Nanos(0));
    }

    /// False: its switch has no port left.
    fn plug_in_anew(&mut self) -> bool {
        let Some(to) = self.life.moving_to() else { return true };
        if self.is_full && to != self.bridge {
            drop(self.life.close("full", Nanos(1)));
            return false;
        }
        self.bridge = to;
        self.life.moved();
        true
    }

    fn open(&mut self, is_there: bool) -> Judged {
        if !self.plug_in_anew() {
            return Ok(());
        }
        if !is_there {
            drop(self.life.close("not there", Nanos(1)));
            return Ok(());
        }
        if Rc::strong_count(&self.interface) > 1 {
            return Err("it is opened while descriptors of it are open".to_string());
        }
        let ports = (0..QUEUES).map(|queue| (queue, Rc::clone(&self.interface))).collect();
        self.life.come(ports).map_err(|_| "it has descriptors, and was due to be opened")?;
        self.go_on()
    }

    fn go_on(&mut self) -> Judged {
        match self.life.go_on(self.mode, Nanos(1), Nanos(2)) {
            Next::Rest => {}
            Next::Serve(ports) => self.serve(ports)?,
            Next::Close(ports, _) => drop(ports),
            Next::Leave(ports, _) => {
                drop(ports);
                self.be_gone();
            }
        }
        Ok(())
    }

    fn serve(&mut self, ports: Ports<Port>) -> Judged {
        if self.mode != Mode::Serving || self.bridge != self.wanted {
            return Err(format!("it is served at {}, {:?}", self.bridge, self.mode));
        }
        self.inbox.extend(ports.into_iter().map(|(queue, port)| Command::Attach(queue, port)));
        Ok(())
    }

    fn obey(&mut self, obeys: bool) -> Judged {
        match self.inbox.pop_front() {
            Some(Command::Attach(queue, port)) if !obeys => {
                self.losses += 1;
                self.outbox.push_back(Event::Back(queue, port, true));
            }
            Some(Command::Attach(queue, _)) if self.has.contains_key(&queue) => {
                return Err(format!("it is given queue {queue} twice"));
            }
            Some(Command::Attach(queue, port)) => drop(self.has.insert(queue, port)),
            Some(Command::Detach(queue)) => {
                // One that is back already is not known there any more.
                let port = self.has.remove(&queue);
                self.outbox.extend(port.map(|port| Event::Back(queue, port, false)));
            }
            None => {}
        }
        Ok(())
    }

    fn hear(&mut self) -> Judged {
        match self.outbox.pop_front() {
            Some(Event::Back(queue, port, is_refused)) => {
                let problem = is_refused.then(|| "refused".to_string());
                match self.life.come_back(queue, port, problem) {
                    Back::Stray(_) => Err("it came back, and nobody had it".to_string()),
                    Back::Partly(asked) => {
                        self.ask_for(asked.unwrap_or(0));
                        Ok(())
                    }
                    Back::Whole if self.plug_in_anew() => self.go_on(),
                    Back::Whole => Ok(()),
                }
            }
            Some(Event::Gone) => {
                let asked = self.life.ask();
                self.ask_for(asked.unwrap_or(0));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// All that is under way comes to its end, and nothing goes wrong any more: it is where it is wanted.
    fn come_to_rest(&mut self) -> Judged {
        self.is_full = false;
        if self.mode == Mode::Frozen {
            self.take(Step::Thaw)?;
        }
        for round in 0.. {
            let next = self.steps().into_iter().find(|step| {
                matches!(step, Step::Obey(true) | Step::Hear)
                    || matches!(step, Step::Open(true)) && self.inbox.is_empty()
            });
            let Some(step) = next else { break };
            if round > ROUNDS {
                return Err("it does not come to an end".to_string());
            }
            self.take(step)?;
        }
        let (out, open) = (self.life.is_out(), Rc::strong_count(&self.interface) - 1);
        let all = usize::from(QUEUES);
        let is_right = match self.mode {
            _ if self.is_gone => open == 0,
            // What is kept for an heir may still be here.
            Mode::Stopping => !out && (open == 0 || self.life.kept().is_some()),
            _ => out && open == all && self.has.len() == all && self.bridge == self.wanted,
        };
        let is_left = self.life.is_leaving() && !self.is_gone && self.mode != Mode::Stopping;
        if is_right && !is_left {
            Ok(())
        } else {
            Err(format!("in the end it is {self:#?}, with {open} descriptors"))
        }
    }
}

/// The world after these choices, and what could happen then.
fn run(choices: &[u8]) -> (World, Vec<Step>, Judged) {
    let mut world = World::new();
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
fn in_every_order_its_descriptors_are_in_one_place_and_it_ends_where_it_is_wanted() {
    let (mut met, mut waiting) = (HashSet::new(), vec![Vec::new()]);
    while let Some(choices) = waiting.pop() {
        let (mut world, steps, outcome) = run(&choices);
        let state = format!("{world:?}");
        let judged = outcome.and_then(|()| {
            if met.insert(state.clone()) { world.come_to_rest().map(|()| true) } else { Ok(false) }
        });
        let is_new = judged.unwrap_or_else(|why| panic!("{why}\nafter {choices:?}\nin {state}"));
        for choice in (0..steps.len() as u8).filter(|_| is_new) {
            let mut next = choices.clone();
            next.push(choice);
            waiting.push(next);
        }
    }
    assert!(met.len() > 5_000, "{} states", met.len());
}
