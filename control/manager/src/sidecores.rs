//! The sidecores, from control's side: their handles, how loaded they are, which is next, and what waits for a full inbox.
//!
//! | file | what |
//! |---|---|
//! | `around` | what those reach who move and plug in |
//! | `loads` | how loaded each was at the last look |
//! | `balance` | what goes elsewhere for its load |
//! | `moves` | what is on its way, and who waits for it |
//! | `wishes` | what operators want to be elsewhere |
//! | `whereabouts` | on which node the memory of a device's guest is |
//!
//! Not here: which sidecore is the best (`control::placement`).

pub(crate) mod around;
pub(crate) mod balance;
mod loads;
pub(crate) mod moves;
pub(crate) mod whereabouts;
pub(crate) mod wishes;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use config::plan::SidecoresPlan;
use config::spec::Urgency;
use confine::Kind;
use control::placement::{QUEUES_MAX, Sidecores};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use schedule::{CoreLoad, Decision, QueueLoad, Use};
#[cfg(not(any(test, feature = "simulated")))]
use sidecore::launch;
use sidecore::{Command, Event, Handle, SidecoreSpec, build_road, nanos_of};
use tracing::info;

use crate::defects::{Defects, found};
use crate::devices::queue::{Found, portion};
use crate::sidecores::loads::Loads;
#[cfg(any(test, feature = "simulated"))]
use crate::simulated::launch;

/// Between two measurements of what a kick costs: a millionth of a core.
const KNOCK_INTERVAL: Duration = Duration::from_secs(1);

struct Core {
    cpu: u32,
    handle: Handle,
    /// Commands that did not fit, in order.
    backlog: VecDeque<Command>,
}

/// Leaves the processors of `sidecores` to them: this thread, and those that it makes from now on, run
/// on the others. Gives those; `None`, and nothing is changed, if there are none or none can be told.
pub(crate) fn leave(sidecores: &[u32]) -> Option<CpuSet> {
    #[cfg(any(test, feature = "simulated"))]
    if crate::simulated::now().is_some() {
        return None;
    }
    let mut others = sched_getaffinity(None).ok()?;
    for cpu in sidecores.iter().map(|cpu| *cpu as usize).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        others.unset(cpu);
    }
    (others.count() > 0 && sched_setaffinity(None, &others).is_ok()).then_some(others)
}

/// The NUMA node of each cpu; nothing where all are on one.
fn nodes_of(cpus: &[u32], topology: &host::Topology) -> Vec<u32> {
    if topology.nodes().len() < 2 {
        return Vec::new();
    }
    let node = |cpu: &u32| topology.cpus.iter().find(|c| c.cpu == *cpu).map_or(0, |c| c.node);
    cpus.iter().map(node).collect()
}

pub(crate) struct Cores {
    all: Vec<Core>,
    /// Where queues are, and where they go.
    placing: Sidecores,
    loads: Loads,
    /// Which sidecores can hand frames to which.
    roads: BTreeSet<(usize, usize)>,
    /// When they are next woken to learn what that takes.
    knock_at: Instant,
    /// Those that were asked for what is on their roads, and have not answered.
    fences: usize,
    /// What was said of sidecores that there are none of, by who said it.
    pub(crate) defects: Defects,
}

impl Cores {
    /// Those of the plan, each pinned to its cpu; `workers` as in [`SidecoreSpec`].
    ///
    /// # Errors
    /// What starting one of them said; none is left running.
    pub(crate) fn launch(
        plan: &SidecoresPlan,
        workers: Option<CpuSet>,
        now: Instant,
    ) -> io::Result<Cores> {
        let mut all: Vec<Core> = Vec::new();
        let watches = plan.urgency == Urgency::Watch;
        for (index, cpu) in plan.cpus.iter().enumerate() {
            let spec = SidecoreSpec {
                index: index as u16,
                cpu: Some(*cpu),
                workers,
                watches,
                queues_max: QUEUES_MAX,
            };
            let begin = || confine::thread(Kind::Sidecore).map_err(io::Error::other);
            match launch(spec, begin) {
                Ok(handle) => {
                    all.push(Core { cpu: *cpu, handle, backlog: VecDeque::new() });
                }
                Err(error) => {
                    all.into_iter().for_each(|core| drop(core.handle.stop()));
                    return Err(error);
                }
            }
        }
        let nodes = nodes_of(&plan.cpus, &host::Topology::of_this_host());
        let placing = Sidecores::new(all.len(), nodes, plan.min);
        let loads = Loads::from(all.len(), now);
        let (roads, defects) = (BTreeSet::new(), Defects::default());
        Ok(Cores { all, placing, loads, roads, knock_at: now, fences: 0, defects })
    }

    /// How many queues each is thought to have.
    #[cfg(any(test, feature = "simulated"))]
    pub(crate) fn queues(&self) -> Vec<usize> {
        (0..self.all.len()).map(|core| self.placing.queues(core)).collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The processor that one is pinned to.
    pub(crate) fn cpu(&self, core: usize) -> Option<u32> {
        self.all.get(core).map(|core| core.cpu)
    }

    /// The other end of one.
    pub(crate) fn handle(&self, core: usize) -> Option<&Handle> {
        self.all.get(core).map(|core| &core.handle)
    }

    /// Those of all, in order.
    pub(crate) fn handles(&self) -> impl Iterator<Item = &Handle> {
        self.all.iter().map(|core| &core.handle)
    }

    /// Its NUMA node, if there are several.
    pub(crate) fn node(&self, core: usize) -> Option<u32> {
        self.placing.node(core)
    }

    fn has_nodes(&self) -> bool {
        self.placing.has_nodes()
    }

    /// Whether it is in use.
    pub(crate) fn state(&self, core: usize) -> Use {
        self.placing.state(core)
    }

    /// What it worked at the last look, thousandths of its time.
    pub(crate) fn load(&self, core: usize) -> u32 {
        self.loads.load(core)
    }

    /// What it was awake for without work at the last look, thousandths of its time.
    pub(crate) fn polled(&self, core: usize) -> u32 {
        self.loads.polled(core)
    }

    /// Something comes to that sidecore, whatever its load.
    pub(crate) fn wake(&mut self, core: usize) {
        if self.placing.wake(core) {
            info!(sidecore = core, "it is in use");
        }
    }

    /// The sidecore for what stays there: that with the fewest queues, in use or not. It is in use then.
    #[track_caller]
    pub(crate) fn place_fixed(&mut self) -> Option<usize> {
        let core = found!(self.defects, self.placing.place_fixed(), "sidecore");
        self.wake(core);
        Some(core)
    }

    /// So many sidecores at most, those with the fewest queues first. For what cannot be moved later.
    pub(crate) fn places_fixed(&self, count: usize) -> Vec<usize> {
        self.placing.places_fixed(count)
    }

    /// The sidecore for so many queues of a device that start now, together. They may be moved later. `node` is
    /// that of its guest's memory, asked where there are several.
    #[track_caller]
    pub(crate) fn place_movable(
        &mut self,
        queues: usize,
        node: impl FnOnce() -> Option<u32>,
    ) -> Option<usize> {
        let node = if self.placing.has_nodes() { node() } else { None };
        let core = found!(self.defects, self.placing.place_movable(node, queues), "sidecore");
        self.wake(core);
        Some(core)
    }

    /// The same for one queue, which goes where it `was_at`, if that is one of these. Gives whether it is there by an
    /// operator's hand, too.
    #[track_caller]
    pub(crate) fn place_again(
        &mut self,
        was_at: Option<(usize, bool)>,
        node: impl FnOnce() -> Option<u32>,
    ) -> Option<(usize, bool)> {
        let is_new = was_at.is_none_or(|(core, _)| core >= self.count());
        let node = if is_new && self.placing.has_nodes() { node() } else { None };
        let place = found!(self.defects, self.placing.place_again(was_at, node), "sidecore");
        self.wake(place.0);
        Some(place)
    }

    /// When the next look at the loads is due; never, when nothing is attached and nothing can be parked.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        self.placing.is_worth_a_look().then_some(self.loads.next())
    }

    /// What each did since the last look.
    fn measure(&mut self, now: Instant) -> Vec<Found> {
        let counters = self.all.iter().map(|core| core.handle.counters());
        self.loads.measure(counters, now)
    }

    /// What follows from a look, with what each has `lost` to others on its processor, and where something is
    /// `at_home` that is not among `queues`.
    fn decide(
        &mut self,
        found: &[Found],
        queues: &[QueueLoad],
        (lost, at_home): (impl Fn(usize) -> u32, Vec<usize>),
        now: Instant,
    ) -> Decision {
        let needed = self.placing.needed(at_home);
        let load = |(core, (found, is_needed)): (usize, (&Found, bool))| {
            let lost = lost(core);
            // Passes are counted by the clock: what was lost within those that worked is in their time.
            let worked = found.load.saturating_add(self.polled(core));
            let load = found.load.saturating_sub(portion(found.load.into(), worked.into(), lost));
            CoreLoad { load, lost, is_needed }
        };
        let loads: Vec<CoreLoad> = found.iter().zip(needed).enumerate().map(load).collect();
        let decision = self.placing.decide(nanos_of(now), &loads, queues);
        self.loads.looked(self.placing.is_restless(), now);
        decision
    }

    /// Lets two sidecores hand frames to each other, if they cannot yet.
    #[track_caller]
    pub(crate) fn connect(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            if from == to || !self.roads.insert((from, to)) {
                continue;
            }
            let ends = self.all.get(from).zip(self.all.get(to));
            let (first, second) = found!(self.defects, ends, "sidecore at an end of a road");
            let (sends, gets) = build_road(&first.handle, &second.handle, to as u16);
            self.send(to, gets);
            self.send(from, sends);
        }
    }

    /// A sidecore has so many queues more, from now on.
    #[track_caller]
    pub(crate) fn take_load(&mut self, core: usize, queues: usize) {
        if !self.placing.take_load(core, queues) {
            self.defects.note("sidecore that queues come to");
        }
    }

    /// It has so many less.
    #[track_caller]
    pub(crate) fn give_load(&mut self, core: usize, queues: usize) {
        if !self.placing.give_load(core, queues) {
            self.defects.note("queues that go from a sidecore");
        }
    }

    /// Sends a command, now or when there is room; commands to one sidecore keep their order.
    #[track_caller]
    pub(crate) fn send(&mut self, core: usize, command: Command) {
        let core = found!(self.defects, self.all.get_mut(core), "sidecore that a command is for");
        core.replace_call(&command);
        core.backlog.push_back(command);
        core.flush();
    }

    /// Asks every sidecore to say when it has done what it was told so far.
    pub(crate) fn fence(&mut self) {
        self.fences += self.all.len();
        (0..self.all.len()).for_each(|core| self.send(core, Command::Fence));
    }

    /// One of them says so.
    pub(crate) fn is_fenced(&mut self) {
        self.fences = self.fences.saturating_sub(1);
    }

    /// All of them have.
    pub(crate) fn are_fenced(&self) -> bool {
        self.fences == 0
    }

    /// Sends a command to each.
    pub(crate) fn send_all(&mut self, command: impl Fn() -> Command) {
        for core in 0..self.all.len() {
            self.send(core, command());
        }
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self) {
        self.all.iter_mut().for_each(Core::flush);
    }

    /// Wakes the sidecores that sleep, once in [`KNOCK_INTERVAL`], so that they know what a kick costs.
    pub(crate) fn knock(&mut self, now: Instant) {
        if now >= self.knock_at {
            self.knock_at = now + KNOCK_INTERVAL;
            self.with_queues().for_each(|core| core.handle.knock(now));
        }
    }

    /// When the next is due; never, without queues.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.placing.has_queues().then_some(self.knock_at)
    }

    fn with_queues(&self) -> impl Iterator<Item = &Core> {
        let its = self.all.iter().enumerate();
        its.filter(|(core, _)| self.placing.queues(*core) > 0).map(|(_, core)| core)
    }

    /// Whether some command waits for room.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.all.iter().any(|core| !core.backlog.is_empty())
    }

    /// The next event of a sidecore.
    pub(crate) fn take_event(&mut self, core: usize) -> Option<Event> {
        self.all.get_mut(core)?.handle.take_event()
    }

    /// Ends every sidecore; what was in flight is completed first.
    pub(crate) fn end_all(&mut self) {
        for core in std::mem::take(&mut self.all) {
            drop(core.handle.stop());
        }
    }

    /// Ends every sidecore, which have nothing to complete any more; which of them, by their cpus, have not after so
    /// many looks. Those are left to themselves.
    pub(crate) fn end_empty(&mut self, looks: u32, mut pause: impl FnMut()) -> Vec<u32> {
        let all = std::mem::take(&mut self.all).into_iter();
        let mut left: Vec<(Core, bool)> = all.map(|core| (core, false)).collect();
        for _ in 0..looks {
            for (core, is_asked) in &mut left {
                *is_asked = *is_asked || core.handle.ask_to_end();
            }
            left.retain_mut(|(core, is_asked)| !(*is_asked && core.handle.has_ended()));
            if left.is_empty() {
                break;
            }
            pause();
        }
        let cpus = left.iter().map(|(core, _)| core.cpu).collect();
        left.into_iter().for_each(std::mem::forget);
        cpus
    }
}

impl Core {
    /// Forgets a call descriptor that waits and would be replaced at once: a front-end that sends
    /// one after the other must not use up our descriptors.
    fn replace_call(&mut self, command: &Command) {
        if let Command::SetCall(key, _) = command {
            self.backlog
                .retain(|waiting| !matches!(waiting, Command::SetCall(other, _) if other == key));
        }
    }

    fn flush(&mut self) {
        while let Some(command) = self.backlog.pop_front() {
            if let Err(command) = self.handle.send(command) {
                self.backlog.push_front(command);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
