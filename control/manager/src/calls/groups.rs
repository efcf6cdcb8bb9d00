//! What operators ask of groups: add, change, remove, and what their members use.
//!
//! Not how a group's limit is counted (`service`).

use config::api::{Answer, ApiError, Call, GroupList, GroupUseView, GroupView};
use config::plan::GroupPlan;
use config::spec::{GroupChange, GroupSpec};
use switch::DropReason;
use tracing::info;

use crate::calls::{Answered, UNDONE, check_origin, not_kept};
use crate::devices::device::Device;
use crate::devices::kind::Kind;
use crate::rooms::Rooms;

/// Answers a call about groups.
pub(crate) fn answer(call: Call, rooms: &mut Rooms) -> Answered {
    match call {
        Call::ListGroups => {
            let groups = rooms.plan.groups.iter().map(|group| group_view(group, rooms));
            Ok(Answer::Groups(GroupList { groups: groups.collect() }))
        }
        Call::ShowGroup { id } => show_group(&id, rooms),
        Call::AddGroup(spec) => add_group(&spec, rooms),
        Call::ChangeGroup { id, change } => change_group(&id, &change, rooms),
        Call::RemoveGroup { id } => remove_group(&id, rooms),
        _ => Err(ApiError::unanswerable()),
    }
}

fn show_group(id: &str, rooms: &Rooms) -> Answered {
    let group = rooms.plan.group(id).ok_or_else(|| ApiError::no_such_group(id))?;
    Ok(Answer::Group(Box::new(group_view(group, rooms))))
}

fn add_group(spec: &GroupSpec, rooms: &mut Rooms) -> Answered {
    let plan = rooms.plan.group_from_api(spec)?;
    let (id, limit) = (plan.id.clone(), plan.limit);
    rooms.plan.groups.push(plan);
    if let Err(error) = rooms.keep() {
        rooms.plan.groups.pop();
        return Err(not_kept(&error, UNDONE));
    }
    info!(group = id, %limit, "added");
    show_group(&id, rooms)
}

fn change_group(id: &str, change: &GroupChange, rooms: &mut Rooms) -> Answered {
    check_group_made_by_api(id, rooms)?;
    let after = rooms.plan.group_changed(id, change)?;
    let limit = after.limit;
    let before = rooms.plan.groups.iter_mut().find(|group| group.id == id);
    let before = before.map(|group| std::mem::replace(group, after));
    if let Err(error) = rooms.keep() {
        let mine = rooms.plan.groups.iter_mut().find(|group| group.id == id);
        if let (Some(mine), Some(before)) = (mine, before) {
            *mine = before;
        }
        return Err(not_kept(&error, UNDONE));
    }
    rooms.services().set_members(id);
    info!(group = id, %limit, "set");
    show_group(id, rooms)
}

fn remove_group(id: &str, rooms: &mut Rooms) -> Answered {
    check_group_made_by_api(id, rooms)?;
    rooms.plan.check_group_is_free(id)?;
    let view = show_group(id, rooms)?;
    let at = rooms.plan.groups.iter().position(|group| group.id == id);
    let gone = at.map(|at| (at, rooms.plan.groups.remove(at)));
    if let Err(error) = rooms.keep() {
        if let Some((at, group)) = gone {
            rooms.plan.groups.insert(at, group);
        }
        return Err(not_kept(&error, UNDONE));
    }
    rooms.groups.forget(&rooms.plan);
    info!(group = id, "removed");
    Ok(view)
}

fn check_group_made_by_api(id: &str, rooms: &Rooms) -> Result<(), ApiError> {
    let plan = rooms.plan.group(id).ok_or_else(|| ApiError::no_such_group(id))?;
    check_origin(&format!("group {id:?}"), &plan.origin)
}

fn group_view(group: &GroupPlan, rooms: &Rooms) -> GroupView {
    let GroupPlan { id, origin, limit, .. } = group;
    let (disks, nics) = rooms.plan.members(id);
    let names = |members: Vec<&str>| members.into_iter().map(str::to_string).collect();
    let is_in = |device: &&Device| device.facts().service.group.as_deref() == Some(id.as_str());
    let mut used = GroupUseView::default();
    rooms.devices.values().filter(is_in).for_each(|device| add_use(&mut used, device));
    GroupView {
        id: id.clone(),
        declared: origin.to_string(),
        limit_iops: limit.iops,
        limit_packets: limit.packets,
        limit_bytes: limit.bytes,
        limit_burst_ms: limit.is_some().then_some(limit.burst_ms),
        disks: names(disks),
        nics: names(nics),
        used,
    }
}

fn add_use(used: &mut GroupUseView, device: &Device) {
    let add = |sum: &mut u64, part: u64| *sum = sum.saturating_add(part);
    match device.kind() {
        Kind::Disk(_) => {
            for queue in device.queues() {
                let done = queue.counters().snapshot();
                add(&mut used.held, done.group_held);
                add(&mut used.held_ns, done.group_held_ns);
                add(&mut used.requests, done.requests);
                add(&mut used.disk_bytes, done.read_bytes.saturating_add(done.written_bytes));
            }
        }
        Kind::Nic(nic) => {
            let done = nic.counters().snapshot();
            add(&mut used.sent_packets, done.taken_frames);
            add(&mut used.sent_bytes, done.taken_bytes);
            add(&mut used.received_packets, done.delivered_frames);
            add(&mut used.received_bytes, done.delivered_bytes);
            add(&mut used.over_limit_packets, done.drops.of(DropReason::OverLimit));
            for queue in device.queues() {
                let done = queue.counters().snapshot();
                add(&mut used.held, done.group_held);
                add(&mut used.held_ns, done.group_held_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests;
