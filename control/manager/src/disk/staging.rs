//! How far the stages of a disk are with its queues: which are served otherwise than the plan says, and a back-end for each.
//!
//! A queue that is served gets other stages by a move to the sidecore where it is. One whose requests do not end in time
//! stays as it is, and is told again a moment later, until it has what the plan says. Not here: moves, and what a queue
//! has (`devices::queue`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::fault::{FaultCounts, FaultPlan, Ops};
use backend::trace::Ring;
use backend::{Backend, Stages};
use config::api::StageView;
use config::plan::StagesPlan;
use config::spec::{StageKind, StageSpec};
use control::mode::Mode;
use device::features;
use schedule::Nanos;
use sidecore::Room;

use crate::devices::queue::{Queue, Through};
use crate::disk::DiskParts;

/// Before the second try of a queue whose requests do not end in time. Nobody looks at it for a millisecond of each.
const INTERVAL: Duration = Duration::from_millis(50);
/// Between two of those that follow, each after twice as long, at most.
const INTERVAL_MAX: Duration = Duration::from_secs(5);

/// Of one disk.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    /// Which trace it is, to whoever reads it; until it is another one.
    trace: Option<u64>,
    /// What the fault that is there did.
    faults: Arc<FaultCounts>,
    /// When queues that are served otherwise are told again.
    again_at: Option<Instant>,
    /// How often some were told since its stages are what they are.
    tries: u32,
}

impl Staging {
    /// Its stages are others from here on. With `trace` that is another one, too, and so it is with `fault`.
    fn change(&mut self, trace: bool, fault: bool) {
        if fault {
            self.faults = Arc::default();
        }
        self.trace = self.trace.filter(|_| !trace);
        self.are_tried_anew();
    }

    fn are_tried_anew(&mut self) {
        (self.again_at, self.tries) = (None, 0);
    }

    /// When queues are told again.
    pub(crate) fn due_at(&self, mode: Mode) -> Option<Instant> {
        self.again_at.filter(|_| mode.may_move())
    }

    /// Some of its queues are behind, and there are `any` that can be told. Whether they are told now.
    fn tells(&mut self, any: bool, now: Instant) -> bool {
        let is_due = self.again_at.is_none_or(|at| at <= now);
        if is_due {
            let interval = INTERVAL * 2_u32.saturating_pow(self.tries.min(16));
            self.again_at = Some(now + interval.min(INTERVAL_MAX));
            self.tries += u32::from(any);
        }
        is_due && any
    }
}

/// What a queue that moves is served by then.
pub(crate) struct Other {
    pub(crate) backend: Backend,
    /// Where its requests are, if they need another.
    pub(crate) room: Option<Room>,
    pub(crate) through: Through,
}

/// A disk's plan may have other stages than `before`: whether it has.
#[must_use]
pub(crate) fn follow(disk: &mut DiskParts, queues: &mut [Queue], before: &StagesPlan) -> bool {
    let stages = &disk.plan.stages;
    if stages.do_the_same(before) {
        return false;
    }
    let trace = |plan: &StagesPlan| plan.trace.as_ref().map(|stage| stage.is);
    let fault = |plan: &StagesPlan| plan.fault.as_ref().map(|stage| stage.is);
    disk.staging.change(trace(stages) != trace(before), fault(stages) != fault(before));
    queues.iter_mut().for_each(|queue| queue.staged_mut().follow(stages));
    true
}

/// What is done to requests of a queue that starts, with what its driver has negotiated. Nothing, if it is no disk's.
pub(crate) fn at_start(
    disk: Option<(&DiskParts, &mut Queue)>,
    index: u16,
    negotiated: u64,
) -> (Stages, Through) {
    let Some((disk, queue)) = disk else { return Default::default() };
    queue.staged_mut().promised(negotiated & features::IN_ORDER != 0);
    of_queue(disk, index, queue)
}

/// What is done to requests of a queue by the plan of its disk, and by what a back-end with that is known.
fn of_queue(disk: &DiskParts, index: u16, queue: &mut Queue) -> (Stages, Through) {
    let plan = &disk.plan.stages;
    let fault = plan.fault.as_ref().map(|stage| fault_of(&stage.is, index, &disk.staging.faults));
    let stages = queue.staged_mut().stages(plan, fault);
    let through = Through::of(&stages);
    (stages, through)
}

/// As a queue's back-end takes it.
fn fault_of(plan: &config::plan::FaultPlan, queue: u16, counts: &Arc<FaultCounts>) -> FaultPlan {
    let config::plan::FaultOps { read, write, flush, discard } = plan.ops;
    FaultPlan {
        delay_ns: u64::from(plan.delay_us) * 1_000,
        jitter_ns: u64::from(plan.jitter_us) * 1_000,
        errors_per_million: plan.errors_per_million,
        ops: Ops { read, write, flush, discard },
        range: plan.range.0..plan.range.1,
        seed: plan.seed.into(),
        queue,
        counts: Arc::clone(counts),
    }
}

/// A back-end for a queue that moves.
pub(crate) fn other(disk: &DiskParts, index: u16, queue: &mut Queue) -> Other {
    let was_staged = queue.staged().has().is_staged();
    let (stages, through) = of_queue(disk, index, queue);
    let backend = disk.disk.backend_through(stages);
    let was_at_once = disk.disk.answers_at_once() && !was_staged;
    let needs_room = was_at_once != backend.answers_at_once();
    let room = needs_room.then(|| Room::new(&backend, queue.size()));
    Other { backend, room, through }
}

/// Queues that are served otherwise than the plan of their disk says.
pub(crate) fn behind(disk: &DiskParts, queues: &[Queue]) -> Vec<u16> {
    let (plan, faults) = (&disk.plan.stages, &disk.staging.faults);
    let is_behind = |queue: &Queue| {
        let moves = queue.moving_to().is_some();
        queue.is_attached() && queue.staged().is_behind(plan, faults, moves)
    };
    let all = (0..).zip(queues);
    all.filter(|(_, queue)| is_behind(queue)).map(|(index, _)| index).collect()
}

/// Those of them that are told now, and where each is. Nothing: none is behind.
pub(crate) fn restages(
    disk: &mut DiskParts,
    queues: &[Queue],
    mode: Mode,
    now: Instant,
) -> Option<Vec<(u16, usize)>> {
    let behind = behind(disk, queues);
    if behind.is_empty() {
        disk.staging.are_tried_anew();
        return None;
    }
    let place = |index: u16| {
        let queue = queues.get(usize::from(index)).filter(|queue| !queue.is_underway())?;
        Some((index, queue.place()?.core))
    };
    let told = behind.into_iter().filter(|_| mode.may_move());
    let told: Vec<(u16, usize)> = told.filter_map(place).collect();
    let tells = disk.staging.tells(!told.is_empty(), now);
    Some(if tells { told } else { Vec::new() })
}

/// Which trace it is, for whoever reads it, and where requests of each queue are recorded.
pub(crate) fn trace(
    disk: &mut DiskParts,
    queues: &[Queue],
    now: Nanos,
) -> Option<(u64, Vec<Option<Arc<Ring>>>)> {
    disk.plan.stages.trace.as_ref()?;
    let of = *disk.staging.trace.get_or_insert(now.0);
    Some((of, queues.iter().map(|queue| queue.staged().ring().cloned()).collect()))
}

/// What there is, and what each did.
pub(crate) fn views(disk: &DiskParts, queues: &[Queue]) -> Vec<StageView> {
    let late = behind(disk, queues);
    let is_bound = |queue: &Queue| queue.is_attached() && queue.staged().is_in_order();
    let all = (0..).zip(queues);
    let in_order: Vec<u16> = all.filter(|(_, it)| is_bound(it)).map(|(index, _)| index).collect();
    let recorded = queues.iter().filter_map(|queue| queue.staged().ring());
    let recorded = recorded.map(|ring| ring.end().number()).sum();
    let did = |view: StageView| match view.kind {
        StageKind::Trace => StageView { recorded: Some(recorded), ..view },
        StageKind::Fault => {
            let faults = &disk.staging.faults;
            StageView { delayed: Some(faults.delayed()), failed: Some(faults.failed()), ..view }
        }
    };
    let did = |view| StageView { late: late.clone(), in_order: in_order.clone(), ..did(view) };
    planned(&disk.plan.stages).into_iter().map(did).collect()
}

/// What there is of a disk that is not open, too.
pub(crate) fn planned(plan: &StagesPlan) -> Vec<StageView> {
    let view = |(declared, spec): (_, &StageSpec)| {
        let view = StageView::new(spec.kind, declared);
        match spec.kind {
            StageKind::Trace => {
                let entries = plan.trace.as_ref().map(|stage| stage.is.entries);
                StageView { entries, ..view }
            }
            StageKind::Fault => {
                let number = |of: fn(&config::plan::FaultPlan) -> u32| {
                    plan.fault.as_ref().map(|stage| of(&stage.is))
                };
                StageView {
                    delay_us: number(|it| it.delay_us),
                    jitter_us: number(|it| it.jitter_us),
                    errors_per_million: number(|it| it.errors_per_million),
                    seed: number(|it| it.seed),
                    ops: spec.ops.clone(),
                    range: spec.range.clone(),
                    ..view
                }
            }
        }
    };
    plan.all().into_iter().map(view).collect()
}
