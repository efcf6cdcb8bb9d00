//! Which sidecore something goes to, by how many queues each has and how loaded each is.
//!
//! What is placed for good (a host port, a link) goes where the fewest queues are. What can be moved later goes by loads,
//! as long as it has room there. Not here: the rules about loads ([`schedule::Placement`]), and how they are measured.

use schedule::{CoreLoad, Decision, Nanos, QueueLoad, Use};

/// Queues of one sidecore at most. A place costs about 100 bytes, a queue brings the rest.
pub const QUEUES_MAX: u16 = 8192;

/// The sidecores, as far as placing goes by them.
#[derive(Clone, Debug)]
pub struct Sidecores {
    rule: schedule::Placement,
    /// The NUMA node of each; empty where all are on one.
    nodes: Vec<u32>,
    /// Queues that each has or is about to get, and those that NICs at home there may have.
    queues: Vec<usize>,
}

impl Sidecores {
    /// `count` of them, of which at least `min` are to be in use. `nodes` are their NUMA nodes, empty where all are
    /// on one.
    pub fn new(count: usize, nodes: Vec<u32>, min: usize) -> Sidecores {
        let rule = match nodes.len() == count {
            true => schedule::Placement::new(&nodes, min),
            false => schedule::Placement::new(&vec![0; count], min),
        };
        Sidecores { rule, nodes, queues: vec![0; count] }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.queues.len()
    }

    /// The NUMA node of one, if there are several.
    pub fn node(&self, core: usize) -> Option<u32> {
        self.nodes.get(core).copied()
    }

    /// Whether nodes are worth asking for.
    pub fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Whether it is in use.
    pub fn state(&self, core: usize) -> Use {
        self.rule.state(core)
    }

    /// Queues of that one.
    pub fn queues(&self, core: usize) -> usize {
        self.queues.get(core).copied().unwrap_or(0)
    }

    /// Whether some of them has queues.
    pub fn has_queues(&self) -> bool {
        self.queues.iter().any(|queues| *queues > 0)
    }

    /// It has so many queues more from now on. False: there is none of that number.
    #[must_use]
    pub fn take_load(&mut self, core: usize, queues: usize) -> bool {
        let its = self.queues.get_mut(core);
        its.map(|its| *its += queues).is_some()
    }

    /// It has so many less, or none where there were fewer. False: there are not so many there.
    #[must_use]
    pub fn give_load(&mut self, core: usize, queues: usize) -> bool {
        let Some(its) = self.queues.get_mut(core) else { return false };
        let left = its.checked_sub(queues);
        *its = left.unwrap_or(0);
        left.is_some()
    }

    /// Something comes to that one, whatever its load. True: it was parked.
    pub fn wake(&mut self, core: usize) -> bool {
        let was_parked = core < self.count() && self.state(core) == Use::Parked;
        self.rule.wake(core);
        was_parked
    }

    /// For what stays where it is put: the one with the fewest queues, in use or not. `None`: there is none.
    pub fn place_fixed(&self) -> Option<usize> {
        (0..self.count()).min_by_key(|core| self.queues(*core))
    }

    /// The same for several things at once: those with the fewest queues first, at most `count` of them.
    pub fn places_fixed(&self, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.count()).collect();
        all.sort_by_key(|core| self.queues(*core));
        all.truncate(count);
        all
    }

    /// For so many queues that start together, and may be moved later. `node` is that of their guest's memory, if it
    /// is known.
    pub fn place_movable(&self, node: Option<u32>, queues: usize) -> Option<usize> {
        let place = self.rule.place(node, |core| self.queues(core));
        let has_room = |core: &usize| self.queues(*core) + queues <= QUEUES_MAX.into();
        place.filter(has_room).or_else(|| self.place_fixed())
    }

    /// For a queue that starts: where it was, if it `was_at` one of these and maybe by an operator's hand, otherwise as
    /// one that can be moved. Gives whether it is there by hand, too.
    pub fn place_again(
        &self,
        was_at: Option<(usize, bool)>,
        node: Option<u32>,
    ) -> Option<(usize, bool)> {
        let before = was_at.filter(|(core, _)| *core < self.count());
        before.or_else(|| Some((self.place_movable(node, 1)?, false)))
    }

    /// Whether another look at the loads will tell more soon.
    pub fn is_restless(&self) -> bool {
        self.rule.is_restless()
    }

    /// Whether a look at the loads could lead to something: there are queues, or one more could be parked.
    pub fn is_worth_a_look(&self) -> bool {
        let is_quiet = !self.has_queues() && !self.is_restless();
        !is_quiet || self.rule.in_use() > self.rule.min()
    }

    /// Those that are not to be parked though no queue's load says so: where something is `at_home` or on its way to;
    /// all that are in use, when the others of them could not hold the queues. One that is parked is not woken for that.
    pub fn needed(&self, at_home: impl IntoIterator<Item = usize>) -> Vec<bool> {
        let queues: usize = self.queues.iter().sum();
        let rest = self.rule.in_use().saturating_sub(1);
        let is_crowded = queues > rest * usize::from(QUEUES_MAX) / 2;
        let is_in_use = |core| self.state(core) != Use::Parked;
        let cores = 0..self.count();
        let mut needed: Vec<bool> = cores.map(|core| is_crowded && is_in_use(core)).collect();
        for core in at_home {
            if let Some(needed) = needed.get_mut(core) {
                *needed = true;
            }
        }
        needed
    }

    /// A look at the loads, and what follows from it: see [`schedule::Placement::decide`].
    pub fn decide(&mut self, now: Nanos, loads: &[CoreLoad], queues: &[QueueLoad]) -> Decision {
        self.rule.decide(now, loads, queues)
    }
}

#[cfg(test)]
mod tests {
    use schedule::LOAD_FULL;

    use super::*;

    /// Sidecores with so many queues, one of them in use.
    fn with(queues: &[usize]) -> Sidecores {
        let mut all = Sidecores::new(queues.len(), Vec::new(), 1);
        for (core, queues) in queues.iter().enumerate() {
            assert!(all.take_load(core, *queues));
        }
        all
    }

    #[test]
    fn what_stays_goes_where_the_fewest_queues_are_parked_or_not() {
        assert_eq!(with(&[3, 1, 2]).place_fixed(), Some(1));
        assert_eq!(with(&[1, 1]).place_fixed(), Some(0));
        assert_eq!(with(&[]).place_fixed(), None);
        assert_eq!(with(&[3, 1, 2]).places_fixed(2), [1, 2]);
        assert_eq!(with(&[3]).places_fixed(2), [0]);
    }

    #[test]
    fn what_can_be_moved_goes_to_one_in_use_while_there_is_room() {
        let max = usize::from(QUEUES_MAX);
        assert_eq!(with(&[5, 0]).place_movable(None, 1), Some(0), "the other one is parked");
        assert_eq!(with(&[max - 2, 0]).place_movable(None, 2), Some(0));
        assert_eq!(with(&[max - 2, 0]).place_movable(None, 3), Some(1), "there is no room");
        assert_eq!(with(&[]).place_movable(None, 1), None);
        let mut both = with(&[5, 0]);
        assert!(both.wake(1) && !both.wake(1));
        assert_eq!(both.place_movable(None, 1), Some(1));
    }

    #[test]
    fn what_can_be_moved_goes_to_its_guests_node_unless_that_is_loaded() {
        let mut all = Sidecores::new(2, vec![0, 1], 2);
        assert_eq!(
            (all.place_movable(Some(1), 1), all.place_movable(Some(0), 1)),
            (Some(1), Some(0))
        );
        let loads = [CoreLoad::default(), CoreLoad { load: LOAD_FULL, ..CoreLoad::default() }];
        assert_eq!(all.decide(Nanos(1), &loads, &[]), Decision::Stay);
        assert_eq!(all.place_movable(Some(1), 1), Some(0));
        assert_eq!((all.node(1), all.has_nodes()), (Some(1), true));
        assert_eq!((with(&[0]).node(0), with(&[0]).has_nodes()), (None, false));
    }

    #[test]
    fn a_queue_that_was_asked_for_goes_back_where_it_was_if_that_is_there() {
        let all = with(&[5, 9]);
        assert_eq!(all.place_again(Some((1, true)), None), Some((1, true)), "though it is parked");
        assert_eq!(all.place_again(Some((2, true)), None), Some((0, false)), "there are fewer now");
        assert_eq!(all.place_again(None, None), Some((0, false)));
    }

    #[test]
    fn queues_are_counted_where_there_is_a_sidecore() {
        let mut all = with(&[2, 0]);
        assert!(!all.take_load(2, 1) && !all.give_load(2, 1));
        assert!(all.give_load(0, 1) && all.has_queues());
        assert!(!all.give_load(0, 9));
        assert_eq!((all.queues(0), all.queues(2), all.has_queues()), (0, 0, false));
    }

    #[test]
    fn it_is_looked_at_while_there_is_a_queue_or_one_more_in_use_than_needed() {
        assert!(with(&[1, 0]).is_worth_a_look());
        let mut all = with(&[0, 0]);
        assert!(!all.is_worth_a_look());
        assert!(all.wake(1) && all.is_worth_a_look());
    }

    #[test]
    fn those_are_needed_where_something_is_at_home_and_all_in_use_when_there_are_too_many_queues() {
        let half = usize::from(QUEUES_MAX) / 2;
        let mut all = with(&[half, 0, 0]);
        assert_eq!(
            all.needed([]),
            [true, false, false],
            "no other is in use that could take its queues"
        );
        let _ = all.wake(1);
        assert_eq!(all.needed([2, 9]), [false, false, true]);
        assert!(all.take_load(1, 1));
        assert_eq!(all.needed([]), [true, true, false]);
    }
}
