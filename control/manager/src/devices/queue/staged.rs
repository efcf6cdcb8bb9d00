//! Of a disk's queue, what is done to its requests: which stages it is served through, and where they are recorded.
//!
//! A record stays for as long as the stage is there, whoever serves the queue. Not here: what the plan says, and when a
//! queue gets other stages (`disk::staging`).

use std::sync::{Arc, Weak};

use backend::Stages;
use backend::fault::{FaultCounts, FaultPlan};
use backend::trace::Ring;
use config::plan::StagesPlan;
use sidecore::Stay;

/// What a back-end was made with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Through {
    /// Where it records requests.
    trace: Option<Weak<Ring>>,
    /// Where its fault counts what it does, which is another place for each.
    fault: Option<Weak<FaultCounts>>,
}

impl Through {
    /// Of one that is made with that.
    pub(crate) fn of(stages: &Stages) -> Through {
        let fault = stages.fault.as_ref();
        Through {
            trace: stages.trace.as_ref().map(Arc::downgrade),
            fault: fault.map(|fault| Arc::downgrade(&fault.counts)),
        }
    }

    /// Whether there were any stages.
    pub(crate) fn is_staged(&self) -> bool {
        self.trace.is_some() || self.fault.is_some()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// Where requests are recorded, once a back-end was made that does so.
    ring: Option<Arc<Ring>>,
    /// What it is served through, or was last.
    has: Through,
    /// What it is served through when it has moved.
    comes: Through,
    /// Why it stayed last as it was, if that was not for requests that take their time.
    stayed: Option<String>,
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
    pub(crate) fn has(&self) -> &Through {
        &self.has
    }

    /// Whether it is served otherwise than that plan says, of which the fault counts in `faults`, or will be when it
    /// `moves`. One that was served as the plan has it again is not.
    pub(crate) fn is_behind(
        &self,
        plan: &StagesPlan,
        faults: &Arc<FaultCounts>,
        moves: bool,
    ) -> bool {
        let wants = !self.is_in_order;
        let trace = plan.trace.as_ref().filter(|_| wants).map(|_| self.ring.as_ref());
        let fault = plan.fault.as_ref().filter(|_| wants).map(|_| Some(faults));
        let is_as_planned =
            |has: &Through| is_that(&has.trace, trace) && is_that(&has.fault, fault);
        !is_as_planned(&self.has) || moves && !is_as_planned(&self.comes)
    }

    /// It starts, or goes on, through that.
    pub(crate) fn begins(&mut self, through: Through) {
        (self.has, self.stayed) = (through, None);
    }

    /// Why it stayed last as it was, if that was not for requests that take their time.
    pub(crate) fn stayed(&self) -> Option<&str> {
        self.stayed.as_deref()
    }

    /// It has moved, or stayed for that reason.
    pub(crate) fn stays(&mut self, why: Option<&Stay>) {
        let why = why.filter(|why| !matches!(why, Stay::Busy));
        self.stayed = why.map(Stay::to_string);
    }

    /// It is to move, and is served through that then.
    pub(crate) fn prepares(&mut self, through: Through) {
        self.comes = through;
    }

    /// It has moved, or stayed.
    pub(crate) fn is_moved(&mut self, stayed: bool) {
        if !stayed {
            self.has = std::mem::take(&mut self.comes);
        }
    }
}

/// Whether that is what is wanted; it is not, if that is not made yet.
fn is_that<T>(has: &Option<Weak<T>>, wanted: Option<Option<&Arc<T>>>) -> bool {
    match (has, wanted) {
        (None, None) => true,
        (Some(has), Some(Some(wanted))) => std::ptr::eq(has.as_ptr(), Arc::as_ptr(wanted)),
        (None, Some(_)) | (Some(_), None | Some(None)) => false,
    }
}
