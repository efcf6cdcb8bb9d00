//! What operators are shown: control's state as `config::api` puts it.

use std::time::{Duration, Instant};

use config::api::{
    AccessView, CountersView, DiskState, DiskView, FaultsView, HeldView, QueueView, SidecoreState,
    SidecoreView,
};
use config::plan::DiskPlan;
use schedule::Use;
use sidecore::{QueueSnapshot, SidecoreSnapshot};
use virtqueue::Format;

use crate::devices::connection::Connection;
use crate::devices::device::Device;
use crate::devices::queue::Queue;
use crate::disk::DiskParts;
use crate::disk::staging;
use crate::disk::stalls::Stall;
use crate::disk::unsynced;
use crate::opening::shut::Shut;
use crate::problems::together;
use crate::remote::availability::Requests;
use crate::sidecores::Cores;

/// How long the requests in flight may take to end before that is shown as a problem.
const PATIENCE: Duration = Duration::from_secs(1);

/// One disk; with its queues or without.
pub(crate) fn disk(device: &Device, parts: &DiskParts, (queues, now): (bool, Instant)) -> DiskView {
    let snapshots: Vec<QueueSnapshot> =
        device.queues().iter().map(|queue| queue.counters().snapshot()).collect();
    let each = || device.queues().iter().zip(&snapshots).enumerate();
    let (state, of_plan) = (state_of(device, now), of_plan(&parts.plan));
    DiskView {
        state,
        problem: problem_of(device, now),
        removed: parts.remote.as_ref().and_then(|remote| remote.availability().removed()),
        access: AccessView {
            // One that a link serves has none.
            socket: of_plan.access.socket.filter(|_| !device.is_exported()),
            ..of_plan.access
        },
        size_bytes: told(parts.disk.size_bytes()),
        image_bytes: parts.disk.image_bytes().filter(|has| *has > parts.disk.size_bytes()),
        block_size_bytes: Some(parts.shape.block_size),
        queues_attached: device.attached().len() as u16,
        queues_by_hand: device.queues().iter().filter(|queue| queue.is_by_hand()).count() as u16,
        served_as: Some(parts.disk.describe().to_string()),
        locked: parts.plan.source.path().map(|_| parts.locks.is_here()),
        faults: faults(&parts.disk),
        was_empty: parts.was_empty && parts.plan.source.path().is_some() && !was_used(device),
        refusals: parts.bond.refusals(),
        stages: staging::views(parts, device.queues()),
        counters: sum(&snapshots),
        queues: match queues {
            true => each()
                .filter(|(_, (queue, _))| queue.size() > 0)
                .map(|(index, (queue, snapshot))| queue_view(index as u16, queue, snapshot))
                .collect(),
            false => Vec::new(),
        },
        ..of_plan
    }
}

/// Whether a guest was ever served.
fn was_used(device: &Device) -> bool {
    device.queues().iter().any(Queue::was_attached)
}

fn faults(disk: &backend::Disk) -> FaultsView {
    let backend::FaultSnapshot { eio, enospc, short, other, syncs, .. } = disk.faults();
    FaultsView { eio, enospc, short, other, syncs }
}

/// A disk that is not open; one of a link has no socket either way.
pub(crate) fn shut(shut: &Shut, plan: &DiskPlan, is_exported: bool) -> DiskView {
    let state = if shut.is_waiting() { DiskState::Waiting } else { DiskState::Failed };
    let of_plan = of_plan(plan);
    let socket = of_plan.access.socket.filter(|_| !is_exported);
    let access = AccessView { socket, ..of_plan.access };
    DiskView { state, problem: Some(shut.told()), access, ..of_plan }
}

/// One sidecore.
pub(crate) fn sidecore(
    index: usize,
    counters: &SidecoreSnapshot,
    cores: &Cores,
    lost: Option<u32>,
) -> SidecoreView {
    SidecoreView {
        index: index as u16,
        cpu: cores.cpu(index),
        node: cores.node(index),
        state: match cores.state(index) {
            Use::InUse => SidecoreState::InUse,
            Use::Leaving => SidecoreState::Leaving,
            Use::Parked => SidecoreState::Parked,
        },
        busy_percent: percent(cores.load(index)),
        poll_percent: percent(cores.polled(index)),
        // Nobody looks while nothing is served.
        lost_percent: lost.filter(|_| counters.queues > 0).map(percent),
        queues: counters.queues as u16,
        passes: counters.passes,
        busy_ns: counters.busy_ns,
        idle_ns: counters.idle_ns,
        sleeps: counters.sleeps,
        interruptions: counters.interruptions,
        asleep_ns: counters.asleep_ns,
        kicks: counters.kicks,
        requests: counters.requests,
        kicks_avoided: counters.requests.saturating_sub(counters.kicks),
        moves_in: counters.moves_in,
        moves_out: counters.moves_out,
        moves_stayed: counters.moves_stayed,
        move_pause_p50_ns: told(counters.pauses.quantile_ns(0.5)),
        move_pause_p99_ns: told(counters.pauses.quantile_ns(0.99)),
        move_pause_max_ns: told(counters.pauses.quantile_ns(1.0)),
        io_errors: counters.io_errors,
    }
}

fn of_plan(plan: &DiskPlan) -> DiskView {
    DiskView {
        id: plan.id.clone(),
        declared: plan.origin.to_string(),
        state: DiskState::Waiting,
        problem: None,
        was_empty: false,
        removed: None,
        access: AccessView::new(&plan.socket, plan.mode, &plan.rights),
        backend: plan.source.kind(),
        path: plan.source.path().map(str::to_string),
        link: plan.source.remote().map(|(link, _)| link.to_string()),
        remote: plan.source.remote().map(|(_, name)| name.to_string()),
        cache: match &plan.source {
            config::Source::File { cache, .. } => Some(*cache),
            _ => None,
        },
        format: plan.format,
        size_bytes: plan.source.size_bytes(),
        image_bytes: None,
        block_size_bytes: plan.block_size,
        readonly: plan.readonly,
        serial: plan.serial.clone(),
        queues_max: plan.queues,
        queues_attached: 0,
        queues_by_hand: 0,
        service: (&plan.service).into(),
        allow_user_folder: plan.spec.allow_user_folder,
        allow_unsealed_memory: plan.allow_unsealed_memory,
        migratable: plan.migratable,
        locked: None,
        drain_timeout: plan.drain_timeout_s,
        on_full: plan.source.path().map(|_| plan.on_full),
        on_error: plan.source.path().map(|_| plan.on_error),
        served_as: None,
        faults: FaultsView::default(),
        refusals: 0,
        stages: staging::planned(&plan.stages),
        counters: CountersView::default(),
        queues: Vec::new(),
    }
}

fn state_of(device: &Device, now: Instant) -> DiskState {
    let hindered = device.disk().and_then(|disk| disk.hindered(now));
    if device.queues().iter().any(Queue::is_bad) {
        DiskState::Failed
    } else if let Some((requests, _)) = hindered {
        match requests {
            Requests::Fail => DiskState::Failed,
            Requests::Wait => DiskState::Waiting,
        }
    } else if let Some(stall) = Stall::of(device.queues()) {
        match stall {
            Stall::Full(_) => DiskState::NoSpace,
            Stall::Failed(_) => DiskState::Failing,
        }
    } else if !device.attached().is_empty() {
        // A second front-end's mistake is shown as a problem, and this one runs on.
        DiskState::Running
    } else if device.problem().is_some() {
        DiskState::Failed
    } else if !device.has_no_front_end() {
        DiskState::Connected
    } else {
        DiskState::Waiting
    }
}

/// What is wrong with a device, if something is: what its state says comes first.
pub(crate) fn problem_of(device: &Device, now: Instant) -> Option<String> {
    let broken = device.queues().iter().enumerate().find_map(|(index, queue)| {
        let violation = queue.violation()?;
        let is_lost = |connection: &Connection| connection.front_end.loss().is_some();
        let remedy = match device
            .runner()
            .and_then(|connection| device.connection(connection))
            .is_some_and(is_lost)
        {
            true => "its VMM connects anew",
            false => "its guest resets it",
        };
        Some(format!("queue {index} is stopped: {violation}; it serves again after {remedy}"))
    });
    let unsynced = device.disk().filter(|disk| disk.sync_failed()).map(unsynced::words);
    let unserved = device
        .queues()
        .iter()
        .enumerate()
        .find_map(|(index, queue)| Some(format!("queue {index} {}", queue.problem()?)));
    let hindered = device.disk().and_then(|disk| disk.hindered(now));
    let (fails, waits) = match hindered {
        Some((Requests::Fail, why)) => (Some(why), None),
        Some((Requests::Wait, why)) => (None, Some(why)),
        None => (None, None),
    };
    // Why the disk does not answer says more than that it does not; that it is being removed says more than that.
    let stands = match (leaving(device, now), waits) {
        (Some(leaving), Some(why)) if device.is_going() => Some(format!("{leaving}: {why}")),
        (leaving, waits) => waits.or(leaving),
    };
    // Of what its guest meets the first is the reason; the rest is so, whatever that is.
    let met = broken.or(fails).or(stands).or(unserved);
    together([met, unsynced].into_iter().chain(besides(device)))
}

/// What is wrong with a device, whether its guest meets it or not.
fn besides(device: &Device) -> [Option<String>; 8] {
    let disk = device.disk();
    let unkept = |disk: &DiskParts| {
        let why = disk.bond.unkept_why()?;
        Some(format!("that its guest is on this image {}", crate::disk::bonds::unkept(why)))
    };
    [
        disk.and_then(|disk| Some(Stall::of(device.queues())?.problem(&disk.plan))),
        disk.and_then(DiskParts::astray_text),
        disk.and_then(unkept),
        device.problem().map(str::to_string),
        device.ungiven().map(str::to_string),
        disk.and_then(|disk| disk.unresized.clone()),
        disk.and_then(|disk| disk.unbegun_why().map(str::to_string)),
        device.unanswered().map(str::to_string).or_else(|| device.beginning()),
    ]
}

/// Since when it waits for a disk that does not answer, if that is longer than usual.
fn leaving(device: &Device, now: Instant) -> Option<String> {
    let time = now.saturating_duration_since(device.leaving_since()?);
    if time < PATIENCE && !device.is_going() {
        return None;
    }
    let goes = if device.is_going() { "; it is removed as soon as they end" } else { "" };
    let (requests, time_s) = (device.unanswered_requests(), time.as_secs());
    Some(format!("waits for {} for {time_s} s{goes}", unanswered(requests)))
}

/// Requests in flight, in words.
pub(crate) fn unanswered(requests: u64) -> String {
    let plural = if requests == 1 { "" } else { "s" };
    format!("{requests} request{plural} that the disk has not answered")
}

fn queue_view(index: u16, queue: &Queue, snapshot: &QueueSnapshot) -> QueueView {
    QueueView {
        index,
        sidecore: queue.place().map(|place| place.core as u16),
        by_hand: queue.is_by_hand(),
        busy_percent: busy_percent(queue),
        size: queue.size(),
        format: format(queue.format()).to_string(),
        violation: queue.violation().map(str::to_string),
        counters: sum(std::slice::from_ref(snapshot)),
    }
}

/// What a queue took of its sidecore's time at the last look.
pub(crate) fn busy_percent(queue: &Queue) -> u32 {
    queue.place().map_or(0, |_| percent(queue.weighed().load))
}

/// What is known: sizes and times are 0 before they are.
pub(crate) fn told(what: u64) -> Option<u64> {
    (what > 0).then_some(what)
}

/// Of thousandths.
fn percent(load: u32) -> u32 {
    (load + 5) / 10
}

/// The name of a ring's format.
pub(crate) fn format(format: Format) -> &'static str {
    match format {
        Format::Split => "split",
        Format::Packed => "packed",
    }
}

fn sum(snapshots: &[QueueSnapshot]) -> CountersView {
    let total = |of: fn(&QueueSnapshot) -> u64| snapshots.iter().map(of).sum();
    let mut latency = sidecore::LatencySnapshot::default();
    for snapshot in snapshots {
        latency.add(&snapshot.latency);
    }
    CountersView {
        requests: total(|s| s.requests),
        reads: total(|s| s.reads),
        writes: total(|s| s.writes),
        flushes: total(|s| s.flushes),
        discards: total(|s| s.discards),
        read_bytes: total(|s| s.read_bytes),
        written_bytes: total(|s| s.written_bytes),
        errors: total(|s| s.errors),
        kicks: total(|s| s.kicks),
        calls: total(|s| s.calls),
        visits: total(|s| s.visits),
        missed: total(|s| s.missed),
        held: held(snapshots),
        in_flight: u32::try_from(total(|s| s.in_flight)).unwrap_or(u32::MAX),
        waiting_full: u32::try_from(total(|s| s.waiting_full)).unwrap_or(u32::MAX),
        waiting_failed: u32::try_from(total(|s| s.waiting_failed)).unwrap_or(u32::MAX),
        stalls: total(|s| s.stalls),
        latency_p50_ns: told(latency.quantile_ns(0.5)),
        latency_p99_ns: told(latency.quantile_ns(0.99)),
    }
}

/// What queues waited for limits, together.
pub(crate) fn held(snapshots: &[QueueSnapshot]) -> HeldView {
    let total = |of: fn(&QueueSnapshot) -> u64| snapshots.iter().map(of).sum();
    HeldView {
        held: total(|s| s.held),
        held_ns: total(|s| s.held_ns),
        group_held: total(|s| s.group_held),
        group_held_ns: total(|s| s.group_held_ns),
    }
}
