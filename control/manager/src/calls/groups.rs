//! What operators ask of groups: add, change, remove, and what their members use.
//!
//! Not how a group's limit is counted (`service`).

use config::api::{Answer, ApiError, Call, ErrorKind, GroupList, GroupUseView, GroupView};
use config::plan::GroupPlan;
use config::spec::{GroupChange, GroupSpec};
use switch::DropReason;
use tracing::info;

use crate::calls::{Answered, UNDONE, check_origin, not_kept};
use crate::device::Device;
use crate::kind::Kind;
use crate::manager::Manager;

impl Manager {
    /// Answers a call about groups.
    pub(crate) fn answer_group(&mut self, call: Call) -> Answered {
        match call {
            Call::ListGroups => {
                let groups = self.rooms.plan.groups.iter().map(|group| self.group_view(group));
                Ok(Answer::Groups(GroupList { groups: groups.collect() }))
            }
            Call::ShowGroup { id } => self.show_group(&id),
            Call::AddGroup(spec) => self.add_group(&spec),
            Call::ChangeGroup { id, change } => self.change_group(&id, &change),
            Call::RemoveGroup { id } => self.remove_group(&id),
            _ => Err(ApiError::new(ErrorKind::Internal, "no answer to that", "")),
        }
    }

    fn show_group(&self, id: &str) -> Answered {
        let group = self.rooms.plan.group(id).ok_or_else(|| ApiError::no_such_group(id))?;
        Ok(Answer::Group(Box::new(self.group_view(group))))
    }

    fn add_group(&mut self, spec: &GroupSpec) -> Answered {
        let plan = self.rooms.plan.group_from_api(spec)?;
        let (id, limit) = (plan.id.clone(), plan.limit);
        self.rooms.plan.groups.push(plan);
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            self.rooms.plan.groups.pop();
            return Err(not_kept(&error, UNDONE));
        }
        info!(group = id, %limit, "added");
        self.show_group(&id)
    }

    fn change_group(&mut self, id: &str, change: &GroupChange) -> Answered {
        self.check_group_made_by_api(id)?;
        let after = self.rooms.plan.group_changed(id, change)?;
        let limit = after.limit;
        let before = self.rooms.plan.groups.iter_mut().find(|group| group.id == id);
        let before = before.map(|group| std::mem::replace(group, after));
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            let mine = self.rooms.plan.groups.iter_mut().find(|group| group.id == id);
            if let (Some(mine), Some(before)) = (mine, before) {
                *mine = before;
            }
            return Err(not_kept(&error, UNDONE));
        }
        self.rooms.services().set_members(id);
        info!(group = id, %limit, "set");
        self.show_group(id)
    }

    fn remove_group(&mut self, id: &str) -> Answered {
        self.check_group_made_by_api(id)?;
        self.rooms.plan.check_group_is_free(id)?;
        let view = self.show_group(id)?;
        let at = self.rooms.plan.groups.iter().position(|group| group.id == id);
        let gone = at.map(|at| (at, self.rooms.plan.groups.remove(at)));
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            if let Some((at, group)) = gone {
                self.rooms.plan.groups.insert(at, group);
            }
            return Err(not_kept(&error, UNDONE));
        }
        self.rooms.groups.forget(&self.rooms.plan);
        info!(group = id, "removed");
        Ok(view)
    }

    fn check_group_made_by_api(&self, id: &str) -> Result<(), ApiError> {
        let plan = self.rooms.plan.group(id).ok_or_else(|| ApiError::no_such_group(id))?;
        check_origin(&format!("group {id:?}"), &plan.origin)
    }

    fn group_view(&self, group: &GroupPlan) -> GroupView {
        let GroupPlan { id, origin, limit, .. } = group;
        let (disks, nics) = self.rooms.plan.members(id);
        let names = |members: Vec<&str>| members.into_iter().map(str::to_string).collect();
        let is_in = |device: &&Device| device.facts.service.group.as_deref() == Some(id.as_str());
        let mut used = GroupUseView::default();
        self.rooms.devices.values().filter(is_in).for_each(|device| add_use(&mut used, device));
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
}

fn add_use(used: &mut GroupUseView, device: &Device) {
    let add = |sum: &mut u64, part: u64| *sum = sum.saturating_add(part);
    match &device.kind {
        Kind::Disk(_) => {
            for queue in &device.queues {
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
            for queue in &device.queues {
                let done = queue.counters().snapshot();
                add(&mut used.held, done.group_held);
                add(&mut used.held_ns, done.group_held_ns);
            }
        }
    }
}
