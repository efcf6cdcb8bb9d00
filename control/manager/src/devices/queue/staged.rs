//! Of a disk's queue, what is done to its requests: which stages it is served through, and where they are recorded.
//!
//! A record stays for as long as the stage is there, whoever serves the queue. Not here: what the plan says, and when a
//! queue gets other stages (`disk::staging`).

use std::sync::Arc;

use backend::Stages;
use backend::fault::FaultPlan;
use backend::trace::Ring;
use config::plan::StagesPlan;

/// What a back-end was made with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Through {
    /// How often the stages of its disk had changed by then.
    pub(crate) number: u32,
    /// Whether there were any.
    pub(crate) is_staged: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// Where requests are recorded, once a back-end was made that does so.
    ring: Option<Arc<Ring>>,
    /// What it is served through, or was last.
    has: Through,
    /// What it is served through when it has moved.
    comes: Through,
    /// Its driver was promised that requests end in order (`VIRTIO_F_IN_ORDER`), which stages do not keep.
    is_in_order: bool,
}

impl Staged {
    /// Whether nothing may be done to its requests.
    pub(crate) fn is_in_order(&self) -> bool {
        self.is_in_order
    }

    /// What its driver was promised.
    pub(crate) fn promised(&mut self, is_in_order: bool) {
        self.is_in_order = is_in_order;
    }

    /// Its stages by that plan, for a back-end that is made of them. `fault` has its number and counts.
    pub(crate) fn stages(&mut self, plan: &StagesPlan, fault: Option<FaultPlan>) -> Stages {
        self.follow(plan);
        if self.is_in_order {
            return Stages::default();
        }
        let trace = plan.trace.as_ref().map(|stage| {
            let ring = self.ring.get_or_insert_with(|| Ring::new(stage.is.entries));
            Arc::clone(ring)
        });
        Stages { trace, fault }
    }

    /// Forgets what is no more by that plan, or is otherwise.
    pub(crate) fn follow(&mut self, plan: &StagesPlan) {
        let entries = plan.trace.as_ref().map(|stage| u64::from(stage.is.entries));
        self.ring.take_if(|ring| entries != Some(ring.len()));
    }

    /// Where its requests are recorded.
    pub(crate) fn ring(&self) -> Option<&Arc<Ring>> {
        self.ring.as_ref()
    }

    /// What it is served through, or was last.
    pub(crate) fn has(&self) -> Through {
        self.has
    }

    /// It starts, or goes on, through that.
    pub(crate) fn begins(&mut self, through: Through) {
        self.has = through;
    }

    /// It is to move, and is served through that then.
    pub(crate) fn prepares(&mut self, through: Through) {
        self.comes = through;
    }

    /// It has moved, or stayed.
    pub(crate) fn is_moved(&mut self, stayed: bool) {
        if !stayed {
            self.has = self.comes;
        }
    }
}
