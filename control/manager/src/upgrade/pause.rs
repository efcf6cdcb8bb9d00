//! How long queues stood still when another process took over: from the word to the sidecore that had a
//! queue, to the pass in which another one has it and looks at it.
//!
//! The predecessor says when it asked for each, on the clock that all processes of a machine share; the
//! heir knows when it served them, and tells the predecessor, whose operator waits. Not here: the course
//! of an upgrade (`predecessor`, `heir`).

use config::api::PauseView;
use schedule::Nanos;
use serde::{Deserialize, Serialize};
use tracing::info;

use crate::clock::machine_ns;
use crate::devices::Devices;

/// What queues went through, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseWords {
    pub(crate) queues: u32,
    /// From the word to its sidecore to the end: half of the queues, and all.
    pub(crate) p50_ns: u64,
    pub(crate) max_ns: u64,
    /// Of the longest: until all queues were back.
    pub(crate) drained_ns: u64,
    /// From there until the heir was told to serve.
    pub(crate) handed_ns: u64,
    /// From there until it was served.
    pub(crate) started_ns: u64,
}

/// The moments of an upgrade, on the machine's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moments {
    /// When each queue that ran was asked for: device, queue, moment.
    pub(crate) asked: Vec<(u32, u16, u64)>,
    /// When all were back.
    pub(crate) drained_ns: u64,
    /// When the predecessor had let go.
    pub(crate) left_ns: u64,
}

impl Moments {
    /// What they come to, for the queues that are served, each since `served_ns` of it.
    fn words(&self, served_ns: impl Fn(u32, u16) -> Option<u64>) -> Option<PauseWords> {
        let pause = |(device, queue, asked): &(u32, u16, u64)| {
            let served = served_ns(*device, *queue)?;
            Some((served.saturating_sub(*asked), served))
        };
        let mut pauses: Vec<(u64, u64)> = self.asked.iter().filter_map(pause).collect();
        pauses.sort_unstable();
        let (p50_ns, _) = *pauses.get((pauses.len().saturating_sub(1)) / 2)?;
        let (max_ns, served_ns) = *pauses.last()?;
        let asked_ns = served_ns.saturating_sub(max_ns);
        Some(PauseWords {
            queues: pauses.len() as u32,
            p50_ns,
            max_ns,
            drained_ns: self.drained_ns.saturating_sub(asked_ns),
            handed_ns: self.left_ns.saturating_sub(self.drained_ns),
            started_ns: served_ns.saturating_sub(self.left_ns),
        })
    }
}

impl Moments {
    /// How long queues stood still that sidecores have now, all of them; nothing when there are none.
    pub(crate) fn measured(&self, devices: &Devices) -> Option<PauseWords> {
        let served_ns = |device: u32, queue: u16| {
            let queue = devices.get(device)?.queue(queue)?;
            let at = Nanos(queue.place().map(|_| queue.counters().snapshot().attached_ns)?);
            Some(machine_ns(sidecore::instant_of(at)))
        };
        let words = self.words(served_ns)?;
        let PauseWords { queues, p50_ns, max_ns, drained_ns, handed_ns, started_ns } = words;
        info!(queues, p50_ns, max_ns, drained_ns, handed_ns, started_ns, "queues stood still");
        Some(words)
    }
}

impl PauseWords {
    /// For an operator.
    pub(crate) fn view(self) -> PauseView {
        let PauseWords { queues, p50_ns, max_ns, drained_ns, handed_ns, started_ns } = self;
        PauseView { queues, p50_ns, max_ns, drained_ns, handed_ns, started_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_longest_pause_are_all_of_it() {
        let asked = vec![(1, 0, 1_000), (1, 1, 1_200), (2, 0, 5), (3, 0, 1_100)];
        let moments = Moments { asked, drained_ns: 1_500, left_ns: 1_900 };
        // Device 2 is not served any more, and its queue was asked for long before.
        let served = |device, _| (device != 2).then_some(2_000);
        let words = moments.words(served).expect("queues are served");
        let PauseWords { queues, p50_ns, max_ns, drained_ns, handed_ns, started_ns } = words;
        assert_eq!((queues, p50_ns, max_ns), (3, 900, 1_000));
        assert_eq!((drained_ns, handed_ns, started_ns), (500, 400, 100));
        assert_eq!(moments.words(|_, _| None), None);
    }

    #[test]
    fn moments_that_make_no_sense_do_no_harm() {
        let moments = Moments { asked: vec![(1, 0, u64::MAX)], drained_ns: u64::MAX, left_ns: 0 };
        let words = moments.words(|_, _| Some(7)).expect("a queue is served");
        assert_eq!((words.max_ns, words.handed_ns, words.started_ns), (0, 0, 7));
    }
}
