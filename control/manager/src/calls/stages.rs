//! What operators ask about stages of disks: to show, add, change and remove them, and to read a trace.
//!
//! A change is kept and in force at once; queues that are served get it one after the other, and its caller is answered
//! when all have it. Not here: how they get it (`sidecores::moves`), and what is read of a trace (`traced`).

use config::Size;
use config::api::{Answer, ApiError, ErrorKind, StageList, StagedBy, TraceFrom, TraceReader};
use config::plan::{DevicePlan, DiskPlan};
use config::spec::{StageChange, StageKind};
use sidecore::nanos_of;
use tracing::{info, warn};

use super::{Answered, UNDONE, check_origin, not_kept, traced};
use crate::api::Reply;
use crate::defects::found;
use crate::devices::device::Device;
use crate::devices::queue::Queue;
use crate::disk::staging;
use crate::rooms::Rooms;
use crate::views;

/// All of a disk.
pub(crate) fn list(id: &str, rooms: &Rooms) -> Answered {
    let plan = rooms.plan.disk(id).ok_or_else(|| rooms.plan.no_such_disk(id))?;
    Ok(match rooms.devices.number_of(id).and_then(|number| rooms.devices.get(number)) {
        Some(device) => list_of(device),
        None => {
            let (disk, stages) = (id.to_string(), staging::planned(&plan.stages));
            Answer::Stages(StageList { disk, stages, late: Vec::new() })
        }
    })
}

fn list_of(device: &Device) -> Answer {
    let stages = device.disk().map(|disk| staging::views(disk, device.queues()));
    let (disk, stages) = (device.facts().id.clone(), stages.unwrap_or_default());
    Answer::Stages(StageList { disk, stages, late: device.behind() })
}

/// Adds one, or changes it.
pub(crate) fn set(
    (id, kind): (&str, StageKind),
    change: &StageChange,
    reply: Reply,
    rooms: &mut Rooms,
) {
    let after = before(id, kind, rooms).and_then(|_| rooms.plan.disk_staged(id, kind, change));
    let after = after.and_then(|after| match change.range.is_some() {
        true => check_range(after, rooms),
        false => Ok(after),
    });
    put(id, after, reply, rooms);
}

/// That the bytes which a command names begin on the disk, where its size is known: behind its end nothing is asked for.
/// Not of those that the file names or that were kept, which a start must not refuse.
fn check_range(after: DiskPlan, rooms: &Rooms) -> Result<DiskPlan, ApiError> {
    let id = &after.id;
    let device = rooms.devices.number_of(id).and_then(|number| rooms.devices.get(number));
    let has = device.and_then(Device::disk).map(|disk| disk.disk.size_bytes());
    let size = has.or(after.source.size_bytes()).filter(|size| *size > 0);
    let from = after.stages.fault.as_ref().map_or(0, |stage| stage.is.range.0);
    match size {
        Some(size) if from >= size => {
            let (from, size) = (Size(from), Size(size));
            let error = format!("range: it begins at {from}, and disk {id:?} ends at {size}");
            let hint = "write a first byte that the disk has, or resize it first";
            Err(ApiError::new(ErrorKind::Refused, error, hint))
        }
        _ => Ok(after),
    }
}

/// Removes one.
pub(crate) fn remove((id, kind): (&str, StageKind), reply: Reply, rooms: &mut Rooms) {
    let after = before(id, kind, rooms).and_then(|before| match before.stages.by(kind) {
        Some(_) => rooms.plan.disk_unstaged(id, kind),
        None => {
            let error = format!("disk {id:?} has no stage {:?}", kind.word());
            let hint = format!("`sidecore disk stage ls {id}` lists those it has");
            Err(ApiError::new(ErrorKind::NotFound, error, hint))
        }
    });
    put(id, after, reply, rooms);
}

/// The plan of a disk whose stage of that kind commands may change.
fn before(id: &str, kind: StageKind, rooms: &Rooms) -> Result<DiskPlan, ApiError> {
    let plan = rooms.plan.disk(id).ok_or_else(|| rooms.plan.no_such_disk(id))?;
    if plan.stages.by(kind) == Some(StagedBy::File) {
        check_origin(&format!("the stage {:?} of disk {id:?}", kind.word()), &plan.origin)?;
    }
    Ok(plan.clone())
}

/// Has a disk be served as planned, and answers when it is.
fn put(id: &str, after: Result<DiskPlan, ApiError>, reply: Reply, rooms: &mut Rooms) {
    if let Err(error) = after.and_then(|after| keep(after, rooms)) {
        return reply.answer(Err(error));
    }
    let number = rooms.devices.number_of(id);
    let device = number.and_then(|number| rooms.devices.get(number));
    match device.filter(|device| !device.behind().is_empty()) {
        Some(device) => rooms.waiting.stage(device.number(), reply, &mut rooms.turn),
        None => reply.answer(list(id, rooms)),
    }
}

/// Keeps other stages of a disk, and has them be in force.
fn keep(after: DiskPlan, rooms: &mut Rooms) -> Result<(), ApiError> {
    let id = after.id.clone();
    let before = rooms.plan.disk(&id).cloned().ok_or_else(|| rooms.plan.no_such_disk(&id))?;
    if after.stages == before.stages {
        return Ok(());
    }
    let plans = [&before, &after].map(|plan| DevicePlan::Disk(plan.clone()));
    let promise = rooms.bounds.promise_instead(&plans[0], &plans[1]).map_err(|why| {
        let error = format!("disk {id:?}: {why}");
        ApiError::new(ErrorKind::Refused, error, "give it fewer `entries`; the disk is as it was")
    })?;
    let [_, planned] = plans;
    rooms.plan.replace(planned);
    if let Err(error) = rooms.keep() {
        rooms.plan.replace(DevicePlan::Disk(before));
        return Err(not_kept(&error, UNDONE));
    }
    let kinds: Vec<&str> = after.stages.all().into_iter().map(|(_, it)| it.kind.word()).collect();
    info!(disk = id, stages = kinds.join(","), "set");
    rooms.set_stages(after);
    if let Some(device) = rooms.devices.named_mut(&id) {
        device.promise_instead(promise);
    }
    Ok(())
}

/// All queues of a device have the stages of its plan: whoever waits for that is answered.
pub(crate) fn are_there(number: u32, rooms: &mut Rooms) {
    if !rooms.waiting.stages(number) {
        return;
    }
    let device = found!(rooms.turn.defects, rooms.devices.get(number), "disk with other stages");
    let answer = Ok(list_of(device));
    rooms.waiting.staged(number, &answer);
}

/// Some have not for long: whoever waits is told.
pub(crate) fn are_late(number: u32, reply: Option<Reply>, rooms: &mut Rooms) {
    let device = found!(rooms.turn.defects, rooms.devices.get(number), "disk with other stages");
    let (id, late) = (&device.facts().id, device.behind());
    if late.is_empty() {
        let answer = list_of(device);
        return reply.into_iter().for_each(|reply| reply.answer(Ok(answer.clone())));
    }
    let names: Vec<String> = late.iter().map(u16::to_string).collect();
    let plural = if late.len() == 1 { "" } else { "s" };
    let why = why_late(device, &late);
    let error = format!("queue{plural} {} of disk {id:?}: {why}", names.join(", "));
    warn!(disk = id, "an operator waits for other stages of {error}");
    let hint = format!(
        "it is kept, and each queue gets it when its requests end within a millisecond; `sidecore disk stage ls {id}` \
         says which have not"
    );
    let answer = ApiError::new(ErrorKind::Busy, error, hint);
    reply.into_iter().for_each(|reply| reply.answer(Err(answer.clone())));
}

/// Why queues of a device have other stages than they are to have.
fn why_late(device: &Device, late: &[u16]) -> String {
    let queues = late.iter().filter_map(|index| Some((index, device.queue(*index)?)));
    let (stayed, busy): (Vec<_>, Vec<_>) =
        queues.partition(|(_, queue)| queue.staged().stayed().is_some());
    let mut reasons: Vec<String> = Vec::new();
    if !busy.is_empty() || stayed.is_empty() {
        let in_flight = |(_, queue): &(_, &Queue)| queue.counters().snapshot().in_flight;
        reasons.push(views::unanswered(busy.iter().map(in_flight).sum()));
    }
    let why = |(index, queue): &(&u16, &Queue)| {
        Some(format!("queue {index} stays as it is: {}", queue.staged().stayed()?))
    };
    reasons.extend(stayed.iter().filter_map(why));
    reasons.join("; ")
}

/// What was recorded, which whoever answers reads.
pub(crate) fn trace(id: &str, from: TraceFrom, rooms: &mut Rooms) -> Answered {
    let number = rooms.open_disk(id)?;
    let at = nanos_of(rooms.turn.now());
    let device = rooms.devices.get_mut(number);
    let disk = device.and_then(Device::disk_and_queues);
    let trace = disk.and_then(|(disk, queues)| staging::trace(disk, queues, at));
    let Some((of, rings)) = trace else {
        let error = format!("disk {id:?} has no stage \"trace\"");
        let hint = format!("`sidecore disk stage add {id} trace` adds one");
        return Err(ApiError::new(ErrorKind::Conflict, error, hint));
    };
    Ok(Answer::Trace(TraceReader::new(move || traced::read(of, &rings, &from))))
}

#[cfg(test)]
mod tests;
