//! How many sidecores are in use, and which queues are on which: from measured loads, now and then.
//!
//! Not how loads are measured, nor how a queue is moved: the caller's, control. Not who is next on a
//! sidecore (`schedule`). Here beside the other rules, and not in control, because it is one of them: it
//! is as pure (time is an argument), and whoever drives the crate, daemon, simulation or test, has it.
//!
//! # What is promised
//!
//! - Of `nodes.len()` sidecores never fewer than `min` are in use.
//! - A queue moves at most once in [`MOVE_PAUSE_NS`], and never when it is not allowed to.
//! - A move that is not part of parking lowers the larger load of the two sidecores concerned; or, off
//!   one that is full, it goes to one with two busy queues less, so that all have more equal parts.
//! - Queues that go on asking for the same lead to a bounded number of decisions: a move of the first kind
//!   lowers the sum of the squares of what is asked of each sidecore, those of the second kind are
//!   counted, and parking leaves all below [`REST_MAX`], where nothing is moved.

use crate::nanos::Nanos;

/// A load: thousandths of a sidecore's time.
pub const LOAD_FULL: u32 = 1000;
/// Above this for [`HOT_LOOKS`] looks, another sidecore comes into use for some of it.
pub const HOT: u32 = 850;
const HOT_LOOKS: u32 = 3;
/// Above this it has no time left, and its queues may be asking for more than they get.
const FULL: u32 = 980;
/// While some sidecore is full, at most so many queues are moved for equal parts alone: what is asked of a
/// full one is not known, so such a move may be no gain.
const EVENED_MAX: u32 = 64;
/// Below this a queue has room on its sidecore: it is not moved away, and new ones may come.
pub const ROOM: u32 = 700;
/// From there on a sidecore's processor is one that others use.
const LOST_MIN: u32 = 50;
/// When without one sidecore all others would stay below this for [`QUIET_LOOKS`] looks, it is parked.
pub const REST_MAX: u32 = 600;
const QUIET_LOOKS: u32 = 30;
/// Two sidecores whose loads differ by no more are left alone.
const DIFFERENCE_MAX: u32 = 200;
/// A move that gains less is not made: loads are measured, and moving costs a pause.
const GAIN_MIN: u32 = 50;
/// A queue that was moved, or was to be and stayed, is left alone for so long, nanoseconds.
pub const MOVE_PAUSE_NS: u64 = 1_000_000_000;
/// Queues that leave a sidecore which is to be parked, in one look: each costs its guest some ten
/// microseconds, and both sidecores as much.
const EMPTIED_PER_LOOK: usize = 32;
/// A sidecore that is not empty after so many looks has queues that do not come to rest (their disks
/// answer too slowly): it stays in use, and no other is emptied for [`EMPTY_PAUSE_LOOKS`].
const EMPTY_LOOKS_MAX: u32 = 100;
const EMPTY_PAUSE_LOOKS: u32 = 600;
/// New queues go to whichever has fewest, among sidecores whose loads differ by no more than this.
const LOAD_STEP: u32 = 100;

/// Whether a sidecore is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Use {
    /// It has no queue and gets none; its thread sleeps.
    #[default]
    Parked,
    /// It has queues, or gets the next ones.
    InUse,
    /// Its queues are being moved away, and then it is parked.
    Leaving,
}

/// A sidecore at a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreLoad {
    /// Of its time, thousandths.
    pub load: u32,
    /// When it would have run and others had its processor, of the same; not in the load.
    pub lost: u32,
    /// Something is at home there, or on its way there, that the caller does not list: it is not
    /// parked.
    pub is_needed: bool,
}

/// A queue at a look; or several that only move together, as a NIC's do: for all of this they are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLoad {
    /// Which sidecore has it.
    pub core: usize,
    /// Its part of that one's load.
    pub load: u32,
    /// Whether it may go elsewhere at all.
    pub can_move: bool,
    /// The NUMA node of its guest's memory, if that is known and matters.
    pub node: Option<u32>,
    /// When it was moved last, or was to be.
    pub moved: Option<Nanos>,
}

/// What is to be done after a look. Queues are named by their places in the list given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Stay,
    /// Move a queue; if `to` was parked, it is in use from now on.
    Move {
        /// Which.
        queue: usize,
        /// Where to.
        to: usize,
    },
    /// Move queues away from a sidecore that is to be parked.
    Empty {
        /// Which sidecore.
        core: usize,
        /// Its queues, and where each is to go.
        moves: Vec<(usize, usize)>,
    },
    /// It is empty and was parked.
    Park {
        /// Which sidecore.
        core: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Core {
    node: u32,
    is: Use,
    /// What it works, and what it loses to others on its processor.
    load: u32,
    /// The latter.
    lost: u32,
    /// Looks in a row that found it hot.
    hot: u32,
}

/// The sidecores, and how many of them are in use.
#[derive(Clone, Debug)]
pub struct Placement {
    cores: Vec<Core>,
    min: usize,
    /// Looks in a row after which one fewer would have done.
    quiet: u32,
    /// Looks since one is being emptied.
    emptying: u32,
    /// Looks until one may be emptied again.
    pause: u32,
    /// Queues that were moved for equal parts, since some sidecore is full.
    evened: u32,
}

impl Placement {
    /// A sidecore for each of `nodes`, its NUMA node; the first `min` of them (at least one) are in use.
    pub fn new(nodes: &[u32], min: usize) -> Placement {
        let core = |node: &u32| Core { node: *node, is: Use::Parked, load: 0, lost: 0, hot: 0 };
        let cores = nodes.iter().map(core).collect();
        let (quiet, emptying, pause, evened) = (0, 0, 0, 0);
        let mut placement = Placement { cores, min: min.max(1), quiet, emptying, pause, evened };
        placement.fill();
        placement
    }

    /// What that sidecore is.
    pub fn state(&self, core: usize) -> Use {
        self.cores.get(core).map_or(Use::Parked, |core| core.is)
    }

    /// Its load at the last look.
    fn load(&self, core: usize) -> u32 {
        self.cores.get(core).map_or(0, |core| core.load)
    }

    /// How many are in use at least.
    pub fn min(&self) -> usize {
        self.min
    }

    /// How many are in use.
    pub fn in_use(&self) -> usize {
        self.cores.iter().filter(|core| core.is != Use::Parked).count()
    }

    /// Whether another look will tell more soon: some load, or one that could be parked.
    pub fn is_restless(&self) -> bool {
        let is_loaded = |core: &Core| core.load >= GAIN_MIN;
        self.quiet > 0 || self.cores.iter().any(|core| is_loaded(core) || core.is == Use::Leaving)
    }

    /// Something comes to that sidecore, whatever its load: it is in use from now on.
    pub fn wake(&mut self, core: usize) {
        if let Some(core) = self.cores.get_mut(core).filter(|core| core.is != Use::InUse) {
            core.is = Use::InUse;
            self.quiet = 0;
        }
    }

    /// Where a new queue goes: of the sidecores in use one of its guest's node that has room, else any
    /// that has, else the least loaded. Of those about equally loaded the one with the fewest queues,
    /// which `queues` tells.
    pub fn place(&self, node: Option<u32>, queues: impl Fn(usize) -> usize) -> Option<usize> {
        let used = self.cores.iter().enumerate().filter(|(_, core)| core.is == Use::InUse);
        let key = |(at, core): &(usize, &Core)| {
            let (is_full, step) = (core.load >= ROOM, core.load / LOAD_STEP);
            (is_full, node.is_some_and(|node| node != core.node), step, queues(*at))
        };
        used.min_by_key(key).map(|(at, _)| at)
    }

    /// A look: what was measured since the last one, and what follows. At most one decision; it is taken
    /// to be carried out.
    pub fn decide(&mut self, now: Nanos, loads: &[CoreLoad], queues: &[QueueLoad]) -> Decision {
        self.note(loads, queues);
        if let Some(core) = self.leaving() {
            return self.empty(core, now, queues);
        }
        let is_used = |core: &Core| core.is == Use::InUse;
        if let Some((queue, to)) = self.best_move(now, queues, |core| core.load > ROOM, is_used) {
            self.quiet = 0;
            return Decision::Move { queue, to };
        }
        if let Some((queue, to)) = self.evener_move(now, queues) {
            self.evened += 1;
            return Decision::Move { queue, to };
        }
        let is_hot = |core: &Core| core.hot >= HOT_LOOKS;
        let is_parked = |core: &Core| core.is == Use::Parked;
        if let Some((queue, to)) = self.best_move(now, queues, is_hot, is_parked) {
            self.wake(to);
            return Decision::Move { queue, to };
        }
        self.pause = self.pause.saturating_sub(1);
        match self.spare(loads, queues).filter(|_| self.pause == 0) {
            Some(core) if self.quiet + 1 >= QUIET_LOOKS => {
                (self.quiet, self.emptying) = (0, 0);
                if let Some(core) = self.cores.get_mut(core) {
                    core.is = Use::Leaving;
                }
                self.empty(core, now, queues)
            }
            Some(_) => {
                self.quiet += 1;
                Decision::Stay
            }
            None => {
                self.quiet = 0;
                Decision::Stay
            }
        }
    }

    /// Takes the loads in. What has queues is in use, whoever brought them there.
    fn note(&mut self, loads: &[CoreLoad], queues: &[QueueLoad]) {
        for (at, core) in self.cores.iter_mut().enumerate() {
            let CoreLoad { load, lost, is_needed } = loads.get(at).copied().unwrap_or_default();
            core.load = load.saturating_add(lost).min(LOAD_FULL);
            core.lost = core.load.saturating_sub(load);
            core.hot = if core.load > HOT { core.hot.saturating_add(1) } else { 0 };
            let mut its = queues.iter().filter(|queue| queue.core == at);
            let is_needed = is_needed
                || match core.is {
                    Use::Parked => its.next().is_some(),
                    Use::Leaving => its.any(|queue| !queue.can_move),
                    Use::InUse => false,
                };
            if is_needed && core.is != Use::InUse {
                (core.is, self.quiet) = (Use::InUse, 0);
            }
        }
        if self.cores.iter().all(|core| core.load < FULL) {
            self.evened = 0;
        }
        self.fill();
    }

    /// The first ones come into use until there are enough.
    fn fill(&mut self) {
        let missing = self.min.saturating_sub(self.in_use());
        let parked = self.cores.iter_mut().filter(|core| core.is == Use::Parked);
        parked.take(missing).for_each(|core| core.is = Use::InUse);
    }

    fn leaving(&self) -> Option<usize> {
        self.cores.iter().position(|core| core.is == Use::Leaving)
    }

    /// The move from a sidecore for which `is_from` holds, the most loaded first, to one of `is_to` that
    /// brings the two nearest to each other; to the node of the guest's memory, if there is a choice.
    fn best_move(
        &self,
        now: Nanos,
        queues: &[QueueLoad],
        is_from: impl Fn(&Core) -> bool,
        is_to: impl Fn(&Core) -> bool,
    ) -> Option<(usize, usize)> {
        let mut from: Vec<usize> =
            self.all(|core| core.is == Use::InUse && is_from(core)).collect();
        from.sort_by_key(|core| std::cmp::Reverse(self.load(*core)));
        if from.is_empty() {
            return None;
        }
        // Of each node the least loaded.
        let mut to: Vec<(usize, Core)> = Vec::new();
        for (at, core) in self.cores.iter().enumerate().filter(|(_, core)| is_to(core)) {
            match to.iter_mut().find(|(_, other)| other.node == core.node) {
                Some(other) if other.1.load <= core.load => {}
                Some(other) => *other = (at, *core),
                None => to.push((at, *core)),
            }
        }
        from.into_iter().find_map(|from| {
            let movable = |queue: &&QueueLoad| queue.core == from && queue.may_move(now);
            let each = queues.iter().enumerate().filter(|(_, queue)| movable(queue));
            let pairs = each.flat_map(|(at, queue)| to.iter().map(move |to| (at, queue, to)));
            let scored = pairs.filter_map(|(at, queue, (to, core))| {
                let difference = self.load(from).saturating_sub(core.load);
                let is_worth = difference > DIFFERENCE_MAX
                    && queue.load >= GAIN_MIN
                    && queue.load + GAIN_MIN <= difference;
                let is_away = queue.node.is_some_and(|node| node != core.node);
                let key = (is_away, (2 * queue.load).abs_diff(difference));
                is_worth.then_some((key, (at, *to)))
            });
            scored.min_by_key(|(key, _)| *key).map(|(_, found)| found)
        })
    }

    /// When all there are are in use and full: the move from one of them to one on which two busy queues
    /// less have to share, since loads do not tell how much is asked. Of its queues the one that has most.
    fn evener_move(&self, now: Nanos, queues: &[QueueLoad]) -> Option<(usize, usize)> {
        let is_full = |core: &Core| core.is == Use::InUse && core.load >= FULL;
        if self.evened >= EVENED_MAX || !self.cores.iter().all(is_full) {
            return None;
        }
        let is_busy = |queue: &&QueueLoad| queue.load >= GAIN_MIN;
        let busy = |core: usize| queues.iter().filter(is_busy).filter(|q| q.core == core).count();
        let (most, from) = self.all(is_full).map(|core| (busy(core), core)).max()?;
        let each = queues.iter().enumerate();
        let movable = each.filter(|(_, q)| q.core == from && is_busy(q) && q.may_move(now));
        let (queue, largest) = movable.max_by_key(|(_, queue)| queue.load)?;
        let key = |core: &usize| {
            let is_away = largest.node.is_some_and(|node| Some(node) != self.node(*core));
            (is_away, busy(*core))
        };
        let others = self.all(|core| core.is == Use::InUse);
        let to = others.filter(|core| busy(*core) + 2 <= most).min_by_key(key)?;
        Some((queue, to))
    }

    fn works(&self, core: usize) -> u32 {
        self.load(core).saturating_sub(self.lost(core))
    }

    fn lost(&self, core: usize) -> u32 {
        self.cores.get(core).map_or(0, |core| core.lost)
    }

    fn node(&self, core: usize) -> Option<u32> {
        self.cores.get(core).map(|core| core.node)
    }

    /// The sidecore in use without which the others would do: of those that can be emptied one whose processor others
    /// use, otherwise that which works least.
    fn spare(&self, loads: &[CoreLoad], queues: &[QueueLoad]) -> Option<usize> {
        if self.in_use() <= self.min {
            return None;
        }
        let is_needed = |core: usize| loads.get(core).is_some_and(|core| core.is_needed);
        let is_fixed = |core: usize| queues.iter().any(|q| q.core == core && !q.can_move);
        // The last of equals, so that the first ones stay in use.
        let used = self.all(|core| core.is == Use::InUse).filter(|core| !is_needed(*core));
        let mut order: Vec<usize> = used.collect();
        let is_own = |core: usize| self.lost(core) < LOST_MIN;
        order.sort_by_key(|core| (is_own(*core), self.works(*core), std::cmp::Reverse(*core)));
        let core = order.into_iter().find(|core| !is_fixed(*core))?;
        let mut rest = self.rest_of(core);
        for queue in largest_first(queues, |queue| queue.core == core && queue.load > 0) {
            let queue = queues.get(queue)?;
            let to = least_of(&rest, queue.node)?;
            let to = rest.get_mut(to)?;
            (to.load, to.queues) = (to.load + queue.load, to.queues + 1);
        }
        // What one that gets nothing loses is as it was.
        let load = |core: &Rest| core.load - if core.queues > 0 { 0 } else { self.lost(core.at) };
        rest.iter().all(|core| load(core) < REST_MAX).then_some(core)
    }

    /// A step of emptying a sidecore; or it goes on, when the others turn out to be busy, or when its
    /// queues do not leave.
    fn empty(&mut self, core: usize, now: Nanos, queues: &[QueueLoad]) -> Decision {
        self.emptying += 1;
        // That others use its processor is a reason to go on.
        let is_worked = |at: usize| at != core || self.works(at) > HOT;
        let is_hot = self.all(|core| core.hot >= HOT_LOOKS).any(is_worked);
        let is_stuck = self.emptying > EMPTY_LOOKS_MAX;
        if is_hot || is_stuck {
            self.pause = if is_stuck { EMPTY_PAUSE_LOOKS } else { 0 };
            self.wake(core);
            return Decision::Stay;
        }
        if !queues.iter().any(|queue| queue.core == core) {
            if let Some(core) = self.cores.get_mut(core) {
                core.is = Use::Parked;
            }
            return Decision::Park { core };
        }
        let mut rest = self.rest_of(core);
        let mut moves = Vec::new();
        for at in largest_first(queues, |queue| queue.core == core && queue.may_move(now)) {
            let Some(queue) = queues.get(at).filter(|_| moves.len() < EMPTIED_PER_LOOK) else {
                break;
            };
            let Some(to) = least_of(&rest, queue.node).and_then(|to| rest.get_mut(to)) else {
                break;
            };
            to.load += queue.load;
            to.queues += 1;
            moves.push((at, to.at));
        }
        match moves.is_empty() {
            true => Decision::Stay,
            false => Decision::Empty { core, moves },
        }
    }

    fn all(&self, is_one: impl Fn(&Core) -> bool) -> impl Iterator<Item = usize> {
        let found = self.cores.iter().enumerate().filter(move |(_, core)| is_one(core));
        found.map(|(at, _)| at)
    }

    /// Those in use but for one.
    fn rest_of(&self, core: usize) -> Vec<Rest> {
        let rest = self.all(|core| core.is == Use::InUse).filter(|other| *other != core);
        let rest = rest.filter_map(|at| {
            let Core { node, load, .. } = self.cores.get(at)?;
            Some(Rest { at, node: *node, load: *load, queues: 0 })
        });
        rest.collect()
    }
}

impl QueueLoad {
    fn may_move(&self, now: Nanos) -> bool {
        let rests = self.moved.is_some_and(|moved| now.since(moved) < MOVE_PAUSE_NS);
        self.can_move && !rests
    }
}

/// A sidecore that takes over queues of another.
#[derive(Clone, Copy, Debug)]
struct Rest {
    at: usize,
    node: u32,
    load: u32,
    /// That it takes over.
    queues: u32,
}

/// The least loaded, of `node` if there is a choice within the bound.
fn least_of(rest: &[Rest], node: Option<u32>) -> Option<usize> {
    let key = |rest: &&Rest| {
        let is_away = node.is_some_and(|node| node != rest.node);
        (rest.load >= ROOM, is_away, rest.load, rest.queues)
    };
    let least = rest.iter().min_by_key(key)?;
    rest.iter().position(|rest| rest.at == least.at)
}

fn largest_first(queues: &[QueueLoad], is_one: impl Fn(&QueueLoad) -> bool) -> Vec<usize> {
    let mut found: Vec<usize> =
        queues.iter().enumerate().filter(|(_, q)| is_one(q)).map(|(at, _)| at).collect();
    found.sort_by_key(|at| std::cmp::Reverse(queues.get(*at).map_or(0, |queue| queue.load)));
    found
}

#[cfg(test)]
mod tests;
