//! On which NUMA node the memory of a device's guest is: asked rarely, and again while little of it is
//! there. On hosts with one node nothing is asked.

use std::time::{Duration, Instant};

use crate::devices::front_end::FrontEnd;

/// Until it is asked again, while most pages are not there: a guest touches its memory as it starts.
const AGAIN: Duration = Duration::from_secs(10);

/// What was found last.
#[derive(Default)]
pub(crate) struct Whereabouts {
    /// Of which front-end.
    connection: Option<u32>,
    node: Option<u32>,
    again_at: Option<Instant>,
}

impl Whereabouts {
    /// The node of the memory of the front-end of that number, as far as that is known.
    pub(crate) fn memory_node(
        &mut self,
        runner: u32,
        front_end: &FrontEnd,
        now: Instant,
    ) -> Option<u32> {
        let is_known = self.connection == Some(runner);
        if is_known && self.again_at.is_none_or(|at| at > now) {
            return self.node;
        }
        let pages = front_end.memory(false).ok()?.sample_pages();
        let is_settled = 2 * pages.there >= pages.asked;
        let again_at = (!is_settled).then(|| now + AGAIN);
        *self = Whereabouts { connection: Some(runner), node: pages.node, again_at };
        pages.node
    }
}
