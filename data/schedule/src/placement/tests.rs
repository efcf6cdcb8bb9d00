//! A world of guests that ask so much of a core, and what is decided for it.

use proptest::prelude::*;
use random::often;

use super::*;

const LOOK_NS: u64 = 100_000_000;

/// Queues that ask for a constant part of a core each, thousandths; together for more than there is,
/// perhaps: then they have equal parts, but for those that ask for less.
#[derive(Clone, Debug)]
struct World {
    placement: Placement,
    now: Nanos,
    min: usize,
    asked: Vec<u32>,
    queues: Vec<QueueLoad>,
    needed: Vec<bool>,
    lost: Vec<u32>,
}

impl World {
    fn new(nodes: &[u32], min: usize, asked: &[u32]) -> World {
        let placement = Placement::new(nodes, min);
        let queue =
            |_: &u32| QueueLoad { core: 0, load: 0, can_move: true, node: None, moved: None };
        let (queues, asked) = (asked.iter().map(queue).collect(), asked.to_vec());
        let needed = vec![false; nodes.len()];
        let lost = vec![0; nodes.len()];
        World { placement, now: Nanos(1 << 40), min, asked, queues, needed, lost }
    }

    fn sum(&self, core: usize) -> u32 {
        let its = self.queues.iter().zip(&self.asked).filter(|(queue, _)| queue.core == core);
        its.map(|(_, asked)| asked).sum()
    }

    /// What a queue of that core has at most.
    fn most(&self, core: usize) -> u32 {
        let its = self.queues.iter().zip(&self.asked).filter(|(queue, _)| queue.core == core);
        let mut asked: Vec<u32> = its.map(|(_, asked)| *asked).collect();
        asked.sort_unstable();
        let (mut left, mut count) = (LOAD_FULL, asked.len() as u32);
        for asked in asked {
            if asked > left / count {
                return left / count;
            }
            (left, count) = (left - asked, count - 1);
        }
        LOAD_FULL
    }

    fn busy(&self, core: usize) -> usize {
        self.queues.iter().filter(|queue| queue.core == core && queue.load >= GAIN_MIN).count()
    }

    fn squares(&self) -> u64 {
        let whole = |core: usize| u64::from(self.sum(core) + self.lost[core]);
        (0..self.needed.len()).map(|core| whole(core).pow(2)).sum()
    }

    /// A look, carried out at once. What it breaks of the promises is an error.
    fn look(&mut self) -> Result<Decision, TestCaseError> {
        self.now = self.now.after(LOOK_NS);
        let cores = self.needed.len();
        let sums: Vec<u32> = (0..cores).map(|core| self.sum(core)).collect();
        let most: Vec<u32> = (0..cores).map(|core| self.most(core)).collect();
        for (queue, asked) in self.queues.iter_mut().zip(&self.asked) {
            queue.load = (*asked).min(most[queue.core]);
        }
        let load = |core: usize| CoreLoad {
            load: sums[core].min(LOAD_FULL),
            lost: self.lost[core],
            is_needed: self.needed[core],
        };
        let loads: Vec<CoreLoad> = (0..cores).map(load).collect();
        let squares = self.squares();
        let decision = self.placement.decide(self.now, &loads, &self.queues);
        match &decision {
            Decision::Stay => {}
            Decision::Move { queue, to } => {
                let from = self.queues[*queue].core;
                let part = self.queues[*queue].load;
                let whole = |core: usize| loads[core].load + loads[core].lost;
                let is_lower = whole(*to) + part < whole(from);
                let is_evener = whole(from) >= FULL && self.busy(from) >= self.busy(*to) + 2;
                prop_assert!(is_lower || is_evener, "{decision:?} of {loads:?}");
                self.follow(*queue, *to)?;
                let is_better = is_evener || self.squares() < squares;
                prop_assert!(is_better, "{decision:?}: {:?}", self.queues);
            }
            Decision::Empty { core, moves } => {
                prop_assert_eq!(self.placement.state(*core), Use::Leaving);
                for (queue, to) in moves {
                    prop_assert_eq!(self.queues[*queue].core, *core);
                    self.follow(*queue, *to)?;
                }
            }
            Decision::Park { core } => {
                prop_assert!(!self.needed[*core] && self.queues.iter().all(|q| q.core != *core));
                prop_assert_eq!(self.placement.state(*core), Use::Parked);
            }
        }
        let in_use = self.placement.in_use();
        prop_assert!((self.min..=cores).contains(&in_use), "{in_use} of {cores}");
        for (at, needed) in self.needed.iter().enumerate() {
            let has = *needed || self.queues.iter().any(|queue| queue.core == at);
            prop_assert!(!has || self.placement.state(at) != Use::Parked, "{at} is parked");
        }
        Ok(decision)
    }

    fn follow(&mut self, queue: usize, to: usize) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.placement.state(to), Use::InUse);
        let queue = &mut self.queues[queue];
        prop_assert!(queue.can_move);
        if let Some(moved) = queue.moved {
            prop_assert!(self.now.since(moved) >= MOVE_PAUSE_NS, "twice in a second");
        }
        (queue.core, queue.moved) = (to, Some(self.now));
        Ok(())
    }

    fn looks(&mut self, count: usize) -> Vec<Decision> {
        (0..count).map(|_| self.look().unwrap()).collect()
    }

    fn used(&self) -> Vec<Use> {
        (0..self.needed.len()).map(|core| self.placement.state(core)).collect()
    }
}

fn moves(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| **decision != Decision::Stay).count()
}

fn asked() -> impl Strategy<Value = Vec<u32>> {
    let one = prop_oneof![Just(0), 0..60u32, 60..400u32, 400..1000u32, 1000..3000u32];
    proptest::collection::vec(one, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: often(60, 400), ..ProptestConfig::default() })]

    /// Constant loads: whatever is decided, it ends.
    #[test]
    fn loads_that_stay_as_they_are_come_to_rest(
        asked in asked(),
        cores in 1..6usize,
        min in 1..6usize,
        places in proptest::collection::vec(0..6usize, 40),
        pinned in proptest::collection::vec(proptest::bool::weighted(0.1), 40),
    ) {
        let mut world = World::new(&vec![0; cores], min.min(cores), &asked);
        world.min = min.min(cores);
        for (at, queue) in world.queues.iter_mut().enumerate() {
            (queue.core, queue.can_move) = (places[at] % cores, !pinned[at]);
        }
        let mut last = 0;
        for look in 0..1500 {
            if world.look()? != Decision::Stay {
                last = look;
            }
        }
        // Six sidecores and 40 queues: at most a few hundred moves, and five parkings of 3 s each.
        prop_assert!(last < 1000, "still deciding at look {last}");
    }

    /// Loads that change all the time, queues that are pinned and freed, cores that are needed.
    #[test]
    fn promises_hold_while_everything_changes(
        asked in asked(),
        nodes in proptest::collection::vec(0..2u32, 1..6),
        min in 1..4usize,
        changes in proptest::collection::vec((0..5u8, any::<usize>(), 0..1500u32), 0..400),
    ) {
        let (cores, min) = (nodes.len(), min.min(nodes.len()));
        let mut world = World::new(&nodes, min, &asked);
        for (kind, which, value) in changes {
            let at = which % world.queues.len().max(1);
            match (kind, world.queues.get_mut(at)) {
                (0, Some(_)) => world.asked[at] = value,
                (1, Some(queue)) => queue.can_move = value % 4 != 0,
                (2, Some(queue)) => queue.node = (value % 3 < 2).then_some(value % 3),
                // By hand, and not again within the second.
                (3, Some(queue)) => {
                    (queue.core, queue.moved) = (value as usize % cores, Some(world.now));
                    world.placement.wake(value as usize % cores);
                }
                (4, _) => world.needed[which % cores] = value % 4 == 0,
                _ => {}
            }
            world.look()?;
        }
    }
}

#[test]
fn another_comes_into_use_after_three_hot_looks_and_goes_after_thirty_quiet_ones() {
    let mut world = World::new(&[0, 0], 1, &[300, 300, 300]);
    assert_eq!(world.used(), [Use::InUse, Use::Parked]);
    assert_eq!(moves(&world.looks(2)), 0);
    assert_eq!(world.look().unwrap(), Decision::Move { queue: 0, to: 1 });
    assert_eq!(world.used(), [Use::InUse, Use::InUse]);
    assert_eq!(moves(&world.looks(200)), 0, "600 and 300: no room on one, nothing to gain");
    world.asked = vec![190, 190, 190];
    let decisions = world.looks(30);
    assert_eq!(moves(&decisions[..29]), 0);
    assert_eq!(decisions[29], Decision::Empty { core: 1, moves: vec![(0, 0)] });
    assert_eq!(world.used(), [Use::InUse, Use::Leaving]);
    assert_eq!(world.look().unwrap(), Decision::Park { core: 1 });
    assert!(world.placement.is_restless(), "it still has 57%");
    world.asked = vec![0; 3];
    assert_eq!(moves(&world.looks(100)), 0);
    assert!(!world.placement.is_restless());
}

#[test]
fn guests_that_want_all_there_is_have_equal_parts() {
    let mut world = World::new(&[0, 0], 1, &[1000; 6]);
    world.looks(100);
    let on = |core| world.queues.iter().filter(|queue| queue.core == core).count();
    assert_eq!((on(0), on(1)), (3, 3));
}

#[test]
fn one_busy_queue_wakes_nobody_and_neither_do_two_hot_looks() {
    let mut world = World::new(&[0, 0], 1, &[1000, 20]);
    assert_eq!(moves(&world.looks(100)), 0);
    for _ in 0..20 {
        world.asked = vec![400, 400];
        assert_eq!(moves(&world.looks(1)), 0);
        world.asked = vec![500, 500];
        assert_eq!(moves(&world.looks(2)), 0);
    }
    assert_eq!(world.used(), [Use::InUse, Use::Parked]);
}

#[test]
fn what_has_room_is_not_spread_and_what_has_none_is() {
    let mut world = World::new(&[0, 0], 2, &[300, 200, 150]);
    assert_eq!(moves(&world.looks(100)), 0, "65% on one, nothing on the other");
    world.asked = vec![300, 200, 250];
    // Half of the difference is 375: the nearest are 300 and then nothing any more.
    assert_eq!(world.look().unwrap(), Decision::Move { queue: 0, to: 1 });
    assert_eq!(moves(&world.looks(100)), 0);
}

#[test]
fn what_is_needed_or_held_by_hand_is_not_parked() {
    let mut world = World::new(&[0, 0, 0], 1, &[0, 0]);
    world.placement.wake(1);
    world.placement.wake(2);
    (world.queues[0].core, world.queues[0].can_move) = (1, false);
    world.needed[2] = true;
    // The only one that can be emptied is the first, whose queue goes to another.
    world.looks(100);
    assert_eq!(world.used(), [Use::Parked, Use::InUse, Use::InUse]);
    assert!(!world.placement.is_restless());
    // Something is brought to a parked one.
    (world.queues[1].core, world.queues[1].can_move) = (0, false);
    world.look().unwrap();
    assert_eq!(world.used(), [Use::InUse; 3]);
}

#[test]
fn a_processor_that_others_use_is_left_and_parked_first() {
    // The first has nothing, and guests use its processor.
    let mut world = World::new(&[0, 0], 1, &[200]);
    world.placement.wake(1);
    world.queues[0].core = 1;
    world.lost[0] = 300;
    world.looks(100);
    assert_eq!(world.used(), [Use::Parked, Use::InUse]);
    assert_eq!(world.queues[0].core, 1, "what works where nobody takes it stays");
    // They come to where it works: it goes to the other one.
    world.lost = vec![0, 700];
    world.looks(100);
    assert_eq!(world.used(), [Use::InUse, Use::Parked]);
    assert_eq!(world.queues[0].core, 0);
    // One that guests have nearly whole, and that gets nothing, keeps none of the others in use.
    let mut world = World::new(&[0, 0, 0], 1, &[200, 100]);
    (world.needed[0], world.lost[0]) = (true, 800);
    (1..3).for_each(|core| world.placement.wake(core));
    (world.queues[0].core, world.queues[1].core) = (1, 2);
    world.looks(100);
    assert_eq!(world.used(), [Use::InUse, Use::InUse, Use::Parked]);
    assert_eq!(world.queues[1].core, 1);
}

#[test]
fn a_sidecore_whose_queues_do_not_leave_stays_in_use() {
    let mut world = World::new(&[0, 0], 1, &[100]);
    (world.queues[0].core, world.min) = (1, 1);
    world.placement.wake(1);
    // Nothing but the first is emptied, and that has nothing: so it is parked, and the other stays.
    world.looks(40);
    assert_eq!(world.used(), [Use::Parked, Use::InUse]);
    let mut world = World::new(&[0, 0], 2, &[100, 300]);
    (world.queues[0].core, world.min) = (1, 1);
    world.placement.min = 1;
    let (mut asked, mut tries) = (Vec::new(), 0);
    for look in 0..1000 {
        let decision = world.look().unwrap();
        if let Decision::Empty { core: 1, .. } = decision {
            // The move did not happen.
            world.queues[0].core = 1;
            tries += 1;
            asked.push(look);
        }
        assert_ne!(decision, Decision::Park { core: 1 });
    }
    assert!((10..=25).contains(&tries), "once a second, for 10 s, twice: {asked:?}");
    assert_ne!(world.used()[1], Use::Parked);
}

#[test]
fn thousands_of_idle_queues_leave_in_portions() {
    let mut world = World::new(&[0, 0, 0], 1, &[0; 100]);
    world.placement.wake(1);
    world.placement.wake(2);
    world.queues.iter_mut().for_each(|queue| queue.core = 2);
    let decisions = world.looks(200);
    let sizes: Vec<usize> = decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Empty { moves, .. } => Some(moves.len()),
            _ => None,
        })
        .collect();
    assert!(sizes.iter().all(|size| *size <= 32) && sizes.iter().sum::<usize>() >= 100);
    assert_eq!(world.placement.in_use(), 1);
}

#[test]
fn memory_decides_where_a_queue_goes_if_there_is_room() {
    let mut placement = Placement::new(&[0, 0, 1, 1], 3);
    let looked = |loads: [u32; 4]| loads.map(|load| CoreLoad { load, ..CoreLoad::default() });
    placement.decide(Nanos(0), &looked([100, 150, 400, 0]), &[]);
    let fewest = |core: usize| [5, 2, 0, 0][core];
    assert_eq!(placement.place(None, fewest), Some(1), "about as loaded as the first");
    assert_eq!(placement.place(Some(1), fewest), Some(2), "the other of that node is parked");
    placement.decide(Nanos(1), &looked([100, 300, 720, 0]), &[]);
    assert_eq!(placement.place(Some(1), fewest), Some(0), "no room there");
    placement.decide(Nanos(1), &looked([990, 980, 720, 0]), &[]);
    assert_eq!(placement.place(None, fewest), Some(2), "no room anywhere");
    // What leaves a hot one goes to its memory: there are two that could come into use.
    let mut world = World::new(&[0, 0, 1], 1, &[450, 450]);
    world.queues.iter_mut().for_each(|queue| queue.node = Some(1));
    world.looks(2);
    assert_eq!(world.look().unwrap(), Decision::Move { queue: 0, to: 2 });
}
