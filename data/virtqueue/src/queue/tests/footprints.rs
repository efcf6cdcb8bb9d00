//! A footprint is consumed only when the driver has taken all before it, and soon after it has.

use proptest::prelude::*;

use super::rig::{Rig, ring};
use crate::driver::Buffer;
use crate::layout::Format;
use crate::queue::Footprint;

/// A completion's footprint, and how many completions there were by then.
type Left = (Footprint, u64);

/// What one side does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The device completes so many.
    Complete(u8),
    Show,
    /// The driver takes so many, then asks for calls, or for none.
    Take(u8, bool),
    /// A footprint is left.
    Mark,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u8..6).prop_map(Step::Complete),
        Just(Step::Show),
        (0u8..8, any::<bool>()).prop_map(|(count, asks)| Step::Take(count, asks)),
        Just(Step::Mark),
    ]
}

struct World {
    rig: Rig,
    completed: u64,
    taken: u64,
    marks: Vec<Left>,
}

impl World {
    fn new(format: Format, size: u16) -> World {
        let rig = Rig::new(ring(format, size, true, 0));
        World { rig, completed: 0, taken: 0, marks: Vec::new() }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Complete(count) => {
                for _ in 0..count {
                    let piece = [Buffer { gpa: 0, len: 64, device_writes: true }];
                    let _full = self.rig.driver.add(&piece, 0).is_err();
                    self.rig.driver.publish();
                    let Some((ticket, _)) = self.rig.take() else { break };
                    self.rig.queue.complete(ticket, 1);
                    self.completed += 1;
                }
            }
            Step::Show => {
                self.rig.queue.publish();
            }
            Step::Take(count, asks) => {
                let taken = (0..count).map_while(|_| self.rig.driver.take_used()).count();
                self.taken += taken as u64;
                match asks {
                    true => drop(self.rig.driver.arm_calls()),
                    false => self.rig.driver.disarm_calls(),
                }
            }
            Step::Mark => {
                let footprint = self.rig.queue.footprint().expect("with event indices");
                self.marks.push((footprint, self.completed));
            }
        }
    }

    /// Nothing is called consumed that is not.
    fn check(&self) -> Result<(), TestCaseError> {
        for (footprint, completed) in self.marks.iter().rev().take(50) {
            let is_consumed = self.rig.queue.is_consumed(*footprint);
            prop_assert!(!is_consumed || *completed <= self.taken, "{footprint:?}");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn nothing_is_consumed_before_it_is_taken(
        steps in proptest::collection::vec(step(), 1..400),
        size in prop_oneof![Just(2u16), Just(8), Just(64)],
        is_packed in any::<bool>(),
    ) {
        let format = if is_packed { Format::Packed } else { Format::Split };
        let mut world = World::new(format, size);
        for step in steps {
            world.apply(step);
            world.check()?;
        }
    }
}

#[test]
fn what_was_taken_is_soon_known() {
    for format in [Format::Split, Format::Packed] {
        let mut world = World::new(format, 8);
        let mut unknown = 0;
        // More than once round the index of 16 bits.
        for round in 0..140_000 {
            world.marks.clear();
            [Step::Complete(1), Step::Mark, Step::Show]
                .into_iter()
                .for_each(|step| world.apply(step));
            world.check().expect("not taken yet");
            world.apply(Step::Take(8, true));
            let footprint = world.marks[0].0;
            if !world.rig.queue.is_consumed(footprint) {
                unknown += 1;
                assert!(format == Format::Split, "round {round}");
            }
        }
        assert!(unknown <= 3, "only where the index is 0: {unknown}");
    }
}

#[test]
fn a_ring_that_says_nothing_is_not_asked() {
    for format in [Format::Split, Format::Packed] {
        let rig = Rig::new(ring(format, 8, false, 0));
        assert_eq!(rig.queue.footprint(), None);
    }
    assert_eq!(Rig::new(ring(Format::Split, 32768, true, 0)).queue.footprint(), None);
}
