//! Every order of events of a disk that clients of a link may have: one client after another takes it and leaves, its
//! sidecore refuses and is late, syncs fail, another machine has the locks meanwhile, and its queue is wanted back for
//! a while.
//!
//! Around the real [`Loan`], [`disk::DiskLocks`] and [`queue::Life`] is what their owners do
//! (`control/manager/src/{remote/lends,disk/locks}.rs`), on an image whose open descriptions are counted. States that
//! were met are not gone through again; a run is its choices, made anew from the start.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use control::Passes;
use control::disk::{self, Ask};
use control::queue::{self, Asked, Owner, Place};
use control::shard::Loan;
use schedule::Nanos;

/// Of clients, operators, and the other machine.
const WISHES: u8 = 9;
/// Steps in which all comes to its end.
const ROUNDS: u32 = 100;
const NOW: Nanos = Nanos(7);

#[derive(Debug)]
struct Tokens;

impl Passes for Tokens {
    type MoveId = ();
    type Departure = ();
    type Command = Command;
}

#[derive(Debug)]
enum Command {
    Attach,
    Detach,
}

/// An open description of the image; all of them are counted.
type Open = Rc<()>;

/// A sync under way: what it holds of the image, and what came of it. A disk whose sync failed comes back.
type Sync = Rc<RefCell<Task>>;

#[derive(Debug)]
enum Task {
    Runs(Open),
    Ended(Option<Open>),
}

/// What the protocol makes of the disk at its shard.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Free,
    Held,
    Closing,
}

#[derive(Debug)]
struct World {
    /// Counted by its clones.
    image: Open,
    /// Something was written that is not stable.
    is_dirty: bool,
    sync_failed: bool,
    /// Another machine has the locks.
    is_elsewhere: bool,
    disk: Option<Open>,
    locks: disk::DiskLocks<Sync, ()>,
    loan: Loan<bool, Sync>,
    protocol: Protocol,
    queue: queue::Life<Tokens>,
    inbox: VecDeque<Command>,
    /// Queues that are back, refused or not.
    outbox: VecDeque<bool>,
    has: bool,
    is_leaving: bool,
    syncs: Vec<Sync>,
    is_touched: bool,
    wishes: u8,
    refusals: u8,
}

/// What happens next; each is tried wherever it can be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// A client takes it; there may be no memory for it.
    Take(bool),
    Leave,
    Detach,
    MoveLocks,
    Obey(bool),
    Write,
    GiveBack,
    Hear,
    EndSync(usize, bool),
    HearSync(usize),
    Settle,
    Retry,
}

type Judged = Result<(), String>;

impl World {
    fn new(follows: bool) -> World {
        let image = Rc::new(());
        World {
            disk: Some(Rc::clone(&image)),
            image,
            is_dirty: false,
            sync_failed: false,
            is_elsewhere: false,
            locks: disk::DiskLocks::new(follows, false),
            loan: Loan::default(),
            protocol: Protocol::Free,
            queue: queue::Life::default(),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            has: false,
            is_leaving: false,
            syncs: Vec::new(),
            is_touched: true,
            wishes: 0,
            refusals: 0,
        }
    }

    fn descriptions(&self) -> usize {
        Rc::strong_count(&self.image) - 1
    }

    /// What can happen now.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.wishes < WISHES {
            match self.protocol {
                Protocol::Free => steps.extend([true, false].map(Step::Take)),
                Protocol::Held => steps.extend([Step::Leave, Step::Detach]),
                Protocol::Closing => {}
            }
            if self.locks.follows() && (self.is_elsewhere || self.descriptions() == 0) {
                steps.push(Step::MoveLocks);
            }
        }
        match self.inbox.front() {
            Some(Command::Attach) if self.refusals < 1 => {
                steps.extend([true, false].map(Step::Obey));
            }
            Some(_) => steps.push(Step::Obey(true)),
            None => {}
        }
        if self.has && !self.is_dirty {
            steps.push(Step::Write);
        }
        if self.has && self.is_leaving {
            steps.push(Step::GiveBack);
        }
        steps.extend(self.outbox.front().map(|_| Step::Hear));
        for (at, sync) in self.syncs.iter().enumerate() {
            match *sync.borrow() {
                Task::Runs(_) if self.sync_failed => steps.push(Step::EndSync(at, false)),
                Task::Runs(_) => steps.extend([true, false].map(|ok| Step::EndSync(at, ok))),
                Task::Ended(_) => steps.push(Step::HearSync(at)),
            }
        }
        if self.is_touched {
            steps.push(Step::Settle);
        }
        steps.extend(self.locks.due_at().map(|_| Step::Retry));
        steps
    }

    /// # Errors
    /// What must not happen.
    fn take(&mut self, step: Step) -> Judged {
        match step {
            Step::Take(has_memory) => self.lend(has_memory)?,
            Step::Leave => self.leave()?,
            Step::Detach => {
                self.wishes += 1;
                self.ask();
            }
            Step::MoveLocks => {
                self.wishes += 1;
                self.is_elsewhere = !self.is_elsewhere;
            }
            Step::Obey(obeys) => self.obey(obeys)?,
            Step::Write => self.is_dirty = true,
            Step::GiveBack => {
                (self.has, self.is_leaving) = (false, false);
                self.outbox.push_back(false);
            }
            Step::Hear => self.hear()?,
            Step::EndSync(at, is_stable) => self.end_sync(at, is_stable),
            Step::HearSync(at) => self.hear_sync(at)?,
            Step::Settle => self.settle()?,
            Step::Retry => {
                self.locks.hurry(NOW);
                self.is_touched = true;
            }
        }
        self.judge()
    }

    fn judge(&self) -> Judged {
        let (open, holds) = (self.descriptions(), self.loan.held().is_some());
        if open == 0 && self.is_dirty {
            return Err("what was written was given up".to_string());
        }
        if open > 0 && self.is_elsewhere || open > 1 && self.syncs.is_empty() {
            return Err(format!("its image is open {open} times"));
        }
        if self.has && (!self.locks.is_here() || self.disk.is_none()) {
            return Err("it is served without its locks".to_string());
        }
        if holds && self.protocol != Protocol::Held {
            return Err("nobody has it, and somebody has".to_string());
        }
        Ok(())
    }

    /// Nothing is open of one that another has, nor of one that is still open here.
    fn ask_for_locks(&mut self) -> bool {
        match self.locks.ask(NOW) {
            Ask::Here => return true,
            Ask::Later => return false,
            Ask::Now { .. } => {}
        }
        if self.is_elsewhere || self.descriptions() > 0 {
            return !self.locks.refused((), NOW);
        }
        self.disk = Some(Rc::clone(&self.image));
        self.locks.come()
    }

    fn lend(&mut self, has_memory: bool) -> Judged {
        self.wishes += 1;
        if !self.locks.is_here() && !self.ask_for_locks() {
            // The client is told so, and comes again.
            self.is_touched = true;
            return Ok(());
        }
        if !has_memory {
            self.loan.give(false);
            self.loan.take_back();
            self.is_touched = true;
            return Ok(());
        }
        self.protocol = Protocol::Held;
        self.loan.give(false);
        self.attach()
    }

    fn attach(&mut self) -> Judged {
        if self.queue.place().is_some() {
            return Ok(());
        }
        let place = Place { core: 0, owner: Owner::Link, by_hand: false };
        if !self.queue.attach(place) {
            return Err("its queue is not idle".to_string());
        }
        self.inbox.push_back(Command::Attach);
        Ok(())
    }

    fn ask(&mut self) {
        if let Asked::Tell(_) = self.queue.ask(false, NOW)
            && let Some((_, command)) = self.queue.tell(Command::Detach)
        {
            self.inbox.push_back(command);
        }
    }

    fn leave(&mut self) -> Judged {
        self.wishes += 1;
        self.protocol = Protocol::Closing;
        self.loan.leave();
        match self.queue.place() {
            Some(_) => self.ask(),
            None => self.sync()?,
        }
        Ok(())
    }

    fn obey(&mut self, obeys: bool) -> Judged {
        match self.inbox.pop_front() {
            Some(Command::Attach) if self.has => return Err("it is given twice".to_string()),
            Some(Command::Attach) if !obeys => {
                self.refusals += 1;
                self.outbox.push_back(true);
            }
            Some(Command::Attach) => self.has = true,
            // One that is back already is not known there any more.
            Some(Command::Detach) => self.is_leaving = self.has,
            None => {}
        }
        Ok(())
    }

    fn hear(&mut self) -> Judged {
        let Some(is_refused) = self.outbox.pop_front() else { return Ok(()) };
        self.queue.come_back().ok_or("it came back, and nobody had it")?;
        self.is_touched = true;
        if let Some(held) = self.loan.last_held() {
            *held = is_refused;
        }
        if self.loan.waits() { self.sync() } else { Ok(()) }
    }

    /// As `lends`: its queue is back, or it never had one.
    fn sync(&mut self) -> Judged {
        if self.locks.is_away() {
            return self.end_loan(true);
        }
        if self.locks.follows() {
            if !self.loan.part() {
                return Err("it did not wait for its queue".to_string());
            }
            let parts = self.locks.parting().is_some() || self.let_go();
            return if parts { Ok(()) } else { self.end_loan(false) };
        }
        let disk = self.disk.clone().ok_or("it is not open")?;
        let sync = Rc::new(RefCell::new(Task::Runs(disk)));
        self.syncs.push(Rc::clone(&sync));
        if self.loan.sync(sync) { Ok(()) } else { Err("it is synced too early".to_string()) }
    }

    fn let_go(&mut self) -> bool {
        if self.sync_failed || !self.locks.may_part() {
            return false;
        }
        let Some(disk) = self.disk.take() else { return false };
        let sync = Rc::new(RefCell::new(Task::Runs(disk)));
        self.syncs.push(Rc::clone(&sync));
        self.locks.part(sync, NOW).is_ok()
    }

    fn end_sync(&mut self, at: usize, is_stable: bool) {
        let sync = Rc::clone(&self.syncs[at]);
        let before = sync.replace(Task::Ended(None));
        if is_stable {
            self.is_dirty = false;
        } else if let Task::Runs(disk) = before {
            self.sync_failed = true;
            sync.replace(Task::Ended(Some(disk)));
        }
    }

    fn hear_sync(&mut self, at: usize) -> Judged {
        let sync = self.syncs.remove(at);
        let Task::Ended(kept) = sync.replace(Task::Ended(None)) else { return Ok(()) };
        let is_stable = kept.is_none();
        if self.locks.parting().is_some_and(|parting| Rc::ptr_eq(parting, &sync)) {
            if let Some(disk) = kept {
                self.disk = Some(disk);
            }
            if !self.locks.parted(!is_stable) {
                return Err("it was not being let go".to_string());
            }
            self.is_touched = true;
            return if self.loan.parts() { self.end_loan(is_stable) } else { Ok(()) };
        }
        match self.loan.syncs().is_some_and(|one| Rc::ptr_eq(one, &sync)) {
            true => self.end_loan(is_stable),
            false => Err("nobody waits for that sync".to_string()),
        }
    }

    /// The client is told that nobody has it any more, and whether what it wrote is stable.
    fn end_loan(&mut self, is_stable: bool) -> Judged {
        self.loan.end();
        self.protocol = Protocol::Free;
        self.is_touched = true;
        if self.has || self.queue.place().is_some() {
            return Err("it is let go of while it is served".to_string());
        }
        let is_said = if is_stable { "stable" } else { "lost" };
        match self.is_dirty && is_stable || !self.is_dirty && !self.sync_failed && !is_stable {
            true => Err(format!("what was written is said to be {is_said}")),
            false => Ok(()),
        }
    }

    fn settle(&mut self) -> Judged {
        self.is_touched = false;
        if self.loan.held().is_some_and(|is_refused| !is_refused) {
            self.attach()?;
        }
        let is_idle = self.queue.place().is_none() && self.protocol == Protocol::Free;
        if self.locks.is_here() && is_idle {
            self.let_go();
        } else if !self.locks.is_here() {
            // Nobody's ring waits for it.
            self.locks.forget();
        }
        Ok(())
    }

    /// All that is under way comes to its end.
    fn end_all(&mut self) -> Judged {
        for round in 0.. {
            let next = self.steps().into_iter().find(|step| {
                matches!(step, Step::Obey(true) | Step::GiveBack | Step::Hear | Step::Settle)
                    || matches!(step, Step::EndSync(..) | Step::HearSync(_))
            });
            let Some(step) = next else { break };
            if round > ROUNDS {
                return Err("it does not come to an end".to_string());
            }
            self.take(step)?;
        }
        Ok(())
    }

    /// Whoever has it leaves: it is where it was in the beginning, and the next client gets it.
    fn come_to_rest(&mut self) -> Judged {
        self.end_all()?;
        let holds = self.loan.held().copied();
        if (self.protocol == Protocol::Held) != holds.is_some() {
            return Err("a client waits for what never comes".to_string());
        }
        if holds.is_some_and(|is_refused| is_refused == self.has) {
            return Err("what a client has is not served".to_string());
        }
        if self.protocol == Protocol::Held {
            self.take(Step::Leave)?;
            self.end_all()?;
        }
        self.is_elsewhere = false;
        let goes = self.locks.follows() && !self.sync_failed;
        let (open, is_free) = (self.descriptions(), !self.loan.is_leaving());
        let is_where = if goes { self.locks.is_away() } else { self.locks.is_here() };
        let is_idle = self.protocol == Protocol::Free && self.queue.place().is_none() && is_free;
        if open != usize::from(!goes) || !is_where || !is_idle {
            return Err("nobody has it, and it is not where it was".to_string());
        }
        self.refusals = 1;
        self.take(Step::Take(true))?;
        self.end_all()?;
        if self.has { Ok(()) } else { Err("the next client does not get it".to_string()) }
    }
}

/// The world after these choices, and what could happen then.
fn run(follows: bool, choices: &[u8]) -> (World, Vec<Step>, Judged) {
    let mut world = World::new(follows);
    for choice in choices {
        let step = world.steps()[usize::from(*choice)];
        if let Err(why) = world.take(step) {
            return (world, Vec::new(), Err(format!("{step:?}: {why}")));
        }
    }
    let steps = world.steps();
    (world, steps, Ok(()))
}

/// Every order of events; how many states there are.
fn in_every_order(follows: bool) -> usize {
    let (mut met, mut waiting) = (HashSet::new(), vec![Vec::new()]);
    while let Some(choices) = waiting.pop() {
        let (mut world, steps, outcome) = run(follows, &choices);
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
    met.len()
}

#[test]
fn in_every_order_one_client_has_it_and_what_it_wrote_is_stable_or_said_to_be_lost() {
    let states = in_every_order(false);
    assert!(states > 1_500, "{states} states");
}

#[test]
fn in_every_order_locks_that_follow_clients_are_here_for_them_and_go_with_the_last() {
    let states = in_every_order(true);
    assert!(states > 2_000, "{states} states");
}
