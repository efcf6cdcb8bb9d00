//! The sidecores, from control's side: where a queue goes, and what waits for a full inbox.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use config::plan::SidecoresPlan;
use config::spec::Urgency;
use confine::Kind;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sidecore::{Command, Event, Handle, SidecoreSpec, launch, link};

use crate::defects::{Defects, found};

/// Queues of one sidecore at most. A place costs about 100 bytes, a queue brings the rest.
pub(crate) const QUEUES_MAX: u16 = 8192;

/// Between two measurements of what a kick costs: a millionth of a core.
const KNOCK_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Core {
    pub(crate) cpu: u32,
    pub(crate) handle: Handle,
    /// Queues it has or is about to get, and those that NICs at home there may have.
    queues: usize,
    /// Commands that did not fit, in order.
    backlog: VecDeque<Command>,
}

/// Leaves the processors of `sidecores` to them: this thread, and those that it makes from now on, run
/// on the others. Gives those; `None`, and nothing is changed, if there are none or none can be told.
pub(crate) fn leave(sidecores: &[u32]) -> Option<CpuSet> {
    let mut others = sched_getaffinity(None).ok()?;
    for cpu in sidecores.iter().map(|cpu| *cpu as usize).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        others.unset(cpu);
    }
    (others.count() > 0 && sched_setaffinity(None, &others).is_ok()).then_some(others)
}

pub(crate) struct Cores {
    pub(crate) all: Vec<Core>,
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
                    all.push(Core { cpu: *cpu, handle, queues: 0, backlog: VecDeque::new() });
                }
                Err(error) => {
                    all.into_iter().for_each(|core| drop(core.handle.stop()));
                    return Err(error);
                }
            }
        }
        let (roads, defects) = (BTreeSet::new(), Defects::default());
        Ok(Cores { all, roads, knock_at: now, fences: 0, defects })
    }

    /// Queues of that sidecore.
    pub(crate) fn queues(&self, core: usize) -> usize {
        self.all.get(core).map_or(0, |core| core.queues)
    }

    /// Whether some sidecore has queues.
    pub(crate) fn has_queues(&self) -> bool {
        self.with_queues().next().is_some()
    }

    /// The sidecore with the fewest queues, whatever they ask of it. For what cannot be moved later.
    pub(crate) fn place(&self) -> Option<usize> {
        (0..self.all.len()).min_by_key(|core| self.all.get(*core).map_or(usize::MAX, |c| c.queues))
    }

    /// So many sidecores at most, those with the fewest queues first. For what cannot be moved later.
    pub(crate) fn places(&self, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.all.len()).collect();
        all.sort_by_key(|core| self.queues(*core));
        all.truncate(count);
        all
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
            let (sends, gets) = link(&first.handle, &second.handle, to as u16);
            self.send(to, gets);
            self.send(from, sends);
        }
    }

    /// A sidecore has so many queues more, from now on.
    #[track_caller]
    pub(crate) fn take_load(&mut self, core: usize, queues: usize) {
        let core = self.all.get_mut(core);
        found!(self.defects, core, "sidecore that queues come to").queues += queues;
    }

    /// It has so many less.
    #[track_caller]
    pub(crate) fn give_load(&mut self, core: usize, queues: usize) {
        let core = self.all.get_mut(core);
        let core = found!(self.defects, core, "sidecore that queues go from");
        core.queues = core.queues.saturating_sub(queues);
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
        self.with_queues().next().map(|_| self.knock_at)
    }

    fn with_queues(&self) -> impl Iterator<Item = &Core> {
        self.all.iter().filter(|core| core.queues > 0)
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

    /// Leaves every sidecore to itself.
    pub(crate) fn leave_all(&mut self) {
        std::mem::take(&mut self.all).into_iter().for_each(std::mem::forget);
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
