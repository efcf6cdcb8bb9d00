//! The engine: what happens next, in whole nanoseconds; of what happens at once, what was planned first.
//!
//! A core's step begins at its moment, with the rings as they are then, and lasts for what it costs;
//! what happens meanwhile is there at its next step. Called by `scenarios`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use random::Random;
use schedule::Policy;

use crate::costs::Way;
use crate::guest::{Act, Guest, Load};
use crate::measure::{CoreMeasures, GuestMeasures, Outcome};
use crate::ring::{Put, Request, Rings};
use crate::round_robin::RoundRobin;
use crate::sidecore_model::Sidecore;
use crate::threads::Threads;

/// How the cores are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Sidecores, all queues with one policy.
    Sidecore(Policy),
    /// The same without urgency: no queue is served in the middle of another's visit.
    InTurn(Policy),
    /// Visits end early for a queue that is stuck, as ELVIS has it; with urgency, or without.
    Stuck(Policy, bool),
    /// Baseline: a poll of every queue, always.
    RoundRobin,
    /// Baseline: a thread for each device.
    Threads,
}

/// A core, or several that share their work.
pub(crate) trait Core {
    /// When its next step begins; `None` when only a signal, or a request it polls for, brings one.
    fn due(&self) -> Option<u64>;
    /// That step. What it shows goes to `rings.shown`.
    fn step(&mut self, rings: &mut Rings);
    /// A request came into a ring of its own.
    fn arrived(&mut self, _now: u64) {}
    /// A guest of its own kicked.
    fn kicked(&mut self, queue: u16, now: u64);
    fn measures(&self, now: u64) -> CoreMeasures;
}

/// A run to be made.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) who: Who,
    pub(crate) cores: usize,
    /// How all guests' requests come.
    pub(crate) way: Way,
    /// Each with the core that it is placed on, where placement is static.
    pub(crate) guests: Vec<(Load, usize)>,
    pub(crate) seed: u64,
    /// Not measured.
    pub(crate) warm_ns: u64,
    /// Measured.
    pub(crate) span_ns: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Act(u16),
    Kick(u16),
    /// So many answers; the requests stand in `answers` at this number.
    Answers(u16, usize),
}

struct World<'a> {
    now: u64,
    setup: &'a Setup,
    agenda: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    planned: u64,
    guests: Vec<Guest>,
    rings: Rings,
    cores: Vec<Box<dyn Core>>,
    /// Places of answers under way, and those that are free again.
    answers: Vec<Vec<Request>>,
    free: Vec<usize>,
    outcome: Outcome,
    /// Told of every answer: queue, request, and when its guest saw it.
    observe: &'a mut dyn FnMut(u16, Request, u64),
}

/// Makes the run.
pub(crate) fn run(setup: &Setup) -> Outcome {
    run_observed(setup, &mut |_, _, _| {})
}

/// Makes the run; every answer is told to `observe`.
pub(crate) fn run_observed(setup: &Setup, observe: &mut dyn FnMut(u16, Request, u64)) -> Outcome {
    let homes: Vec<usize> = setup.guests.iter().map(|(_, core)| *core).collect();
    let guests = (0u64..)
        .zip(&setup.guests)
        .map(|(number, (load, _))| Guest::new(*load, Random::new(setup.seed, number)))
        .collect();
    let mut world = World {
        now: 0,
        setup,
        agenda: BinaryHeap::new(),
        planned: 0,
        guests,
        cores: cores(setup, &homes),
        rings: Rings::new(homes, setup.way),
        answers: Vec::new(),
        free: Vec::new(),
        outcome: Outcome {
            span_ns: setup.span_ns,
            guests: vec![GuestMeasures::default(); setup.guests.len()],
            cores: Vec::new(),
        },
        observe,
    };
    for queue in 0..setup.guests.len() as u16 {
        let first = world.guests[usize::from(queue)].first();
        world.plan_act(queue, first);
    }
    world.run_until(setup.warm_ns);
    let before: Vec<CoreMeasures> = world.core_measures();
    world.run_until(setup.warm_ns + setup.span_ns);
    let after = world.core_measures();
    world.outcome.cores = after.iter().zip(before).map(|(a, b)| a.since(b)).collect();
    world.outcome
}

fn cores(setup: &Setup, homes: &[usize]) -> Vec<Box<dyn Core>> {
    let of = |core: usize| {
        (0u16..).zip(homes).filter(|(_, home)| **home == core).map(|(queue, _)| queue).collect()
    };
    match setup.who {
        Who::Sidecore(policy) | Who::InTurn(policy) | Who::Stuck(policy, _) => (0..setup.cores)
            .map(|core| {
                let watch = matches!(setup.who, Who::Sidecore(_) | Who::Stuck(_, true));
                let mut sidecore = Sidecore::new(of(core), homes.len(), policy, watch);
                if matches!(setup.who, Who::Stuck(..)) {
                    sidecore.end_early_for_stuck();
                }
                Box::new(sidecore) as Box<dyn Core>
            })
            .collect(),
        Who::RoundRobin => (0..setup.cores)
            .map(|core| Box::new(RoundRobin::new(core, of(core))) as Box<dyn Core>)
            .collect(),
        // The kernel moves threads as it likes: one set of threads for all cores.
        Who::Threads => vec![Box::new(Threads::new(homes.len(), setup.cores))],
    }
}

impl World<'_> {
    fn run_until(&mut self, end: u64) {
        loop {
            let event = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let core = (0..self.cores.len())
                .filter_map(|core| self.cores[core].due().map(|due| (due, core)))
                .min();
            let core_first = match (core, event) {
                (Some((due, _)), Some(at)) => due < at,
                (due, _) => due.is_some(),
            };
            let next = if core_first { core.map(|(due, _)| due) } else { event };
            let Some(next) = next.filter(|next| *next < end) else { break };
            assert!(self.now <= next, "time went back from {} to {next}", self.now);
            self.now = next;
            match core.filter(|_| core_first) {
                Some((_, core)) => self.step(core),
                None => self.happen(),
            }
        }
        self.now = end;
    }

    fn core_measures(&self) -> Vec<CoreMeasures> {
        self.cores.iter().map(|core| core.measures(self.now)).collect()
    }

    fn plan(&mut self, at: u64, happening: Happening) {
        self.agenda.push(Reverse((at, self.planned, happening)));
        self.planned += 1;
    }

    fn plan_act(&mut self, queue: u16, at: Option<u64>) {
        if let Some(at) = at {
            self.plan(at, Happening::Act(queue));
        }
    }

    fn step(&mut self, core: usize) {
        self.cores[core].step(&mut self.rings);
        while let Some(shown) = self.rings.shown.pop() {
            let place = self.free.pop().unwrap_or_else(|| {
                self.answers.push(Vec::new());
                self.answers.len() - 1
            });
            self.answers[place] = shown.requests;
            self.plan(shown.at, Happening::Answers(shown.queue, place));
        }
    }

    fn happen(&mut self) {
        match self.agenda.pop() {
            Some(Reverse((_, _, Happening::Act(queue)))) => self.act(queue),
            Some(Reverse((_, _, Happening::Kick(queue)))) => {
                let now = self.now;
                self.home(queue).kicked(queue, now);
            }
            Some(Reverse((_, _, Happening::Answers(queue, place)))) => self.answer(queue, place),
            None => {}
        }
    }

    fn act(&mut self, queue: u16) {
        let (now, number) = (self.now, usize::from(queue));
        let Act::Send { bytes } = self.guests[number].act() else { return };
        let put = self.rings.put(queue, bytes, now);
        let measures = &mut self.outcome.guests[number];
        let measured = now >= self.setup.warm_ns;
        let kick_ns = self.setup.way.kick_ns;
        match put {
            Put::Full => measures.refused += u64::from(measured),
            Put::Quiet => self.home(queue).arrived(now),
            Put::Kick => {
                measures.kicks += u64::from(measured);
                self.home(queue).arrived(now);
                self.plan(now + kick_ns, Happening::Kick(queue));
            }
        }
        let held_ns = if put == Put::Kick { kick_ns } else { 0 };
        let next = self.guests[number].sent(now, held_ns, put != Put::Full);
        self.plan_act(queue, next);
    }

    fn answer(&mut self, queue: u16, place: usize) {
        let (now, number) = (self.now, usize::from(queue));
        let requests = std::mem::take(&mut self.answers[place]);
        self.free.push(place);
        let measures = &mut self.outcome.guests[number];
        for request in &requests {
            (self.observe)(queue, *request, now);
            if now >= self.setup.warm_ns {
                measures.latencies.add(now - request.put);
                measures.requests += 1;
                measures.bytes += request.bytes;
            }
        }
        let next = self.guests[number].answered(now, requests.len() as u32);
        self.plan_act(queue, next);
    }

    fn home(&mut self, queue: u16) -> &mut dyn Core {
        let placed = self.setup.guests[usize::from(queue)].1;
        let core = if self.cores.len() == 1 { 0 } else { placed };
        self.cores[core].as_mut()
    }
}
