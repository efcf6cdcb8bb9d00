//! What a reload opens when other devices are gone, and what is served again if that fails.
//!
//! What goes for another is in no plan until it is served again, nor is its group. Both are put back first: whoever
//! opens and serves asks the plan in force. Not here: when it is given up (`control::reload`).

use std::fmt;

use config::Plan;
use config::plan::{DevicePlan, GroupPlan};
use control::mode::Mode;
use control::reload::Stands;
use tracing::{error, info, warn};

use crate::opening::not_open::NotOpen;
use crate::opening::open::{self, Socket};
use crate::opening::shut::{Shut, ShutDevices};
use crate::rooms::Rooms;

/// A device that is opened when another one is gone.
pub(crate) struct Late {
    pub(crate) plan: DevicePlan,
    /// What it waits for.
    pub(crate) why: NotOpen,
    /// The device of that name that went for it.
    pub(super) before: Option<Before>,
}

/// A device that was served, and of which the plan in force says nothing any more.
#[derive(Clone)]
pub(super) struct Before {
    plan: DevicePlan,
    /// What it was counted on.
    group: Option<GroupPlan>,
}

impl Late {
    /// It is opened instead of `others`, which were not open yet: what they came for, it does.
    pub(super) fn come_for(&mut self, others: &[Late]) {
        let other = others.iter().find(|other| other.plan.id() == self.plan.id());
        let before = other.and_then(|other| other.before.clone());
        self.before = self.before.take().or(before);
    }

    /// How it stands.
    pub(super) fn stands(&self, shut: &ShutDevices) -> Stands {
        match shut.named(self.plan.id()).map(Shut::is_waiting) {
            Some(true) => Stands::Late,
            Some(false) => Stands::Failed,
            None => Stands::Open,
        }
    }
}

impl Before {
    /// A device of the plan in force.
    pub(super) fn of(plan: &DevicePlan, in_force: &Plan) -> Before {
        let group = plan.service().group.as_deref().and_then(|id| in_force.group(id));
        Before { plan: plan.clone(), group: group.cloned() }
    }

    /// What was planned, with the stages that commands have made since of the one that `failed`.
    fn after(&self, failed: &DevicePlan) -> DevicePlan {
        let mut plan = self.plan.clone();
        if let (DevicePlan::Disk(plan), DevicePlan::Disk(failed)) = (&mut plan, failed) {
            plan.follow_stages(failed);
        }
        plan
    }

    /// It is planned again as `plan`, and its group with it, unless there is one of that name.
    fn plan_again(&self, plan: &DevicePlan, rooms: &mut Rooms) {
        let group = self.group.iter().filter(|group| rooms.plan.group(&group.id).is_none());
        let group: Vec<GroupPlan> = group.cloned().collect();
        rooms.plan.groups.extend(group);
        rooms.set_plan(plan.clone());
        if let Some(disk) = plan.disk() {
            rooms.state.seen.add(disk);
        }
        rooms.state.seen.look_again(rooms.turn.now());
    }
}

/// What was planned is again: that of the device which could not be opened, and all groups.
fn plan_as_wanted(failed: Shut, groups: Vec<GroupPlan>, rooms: &mut Rooms) {
    rooms.plan.groups = groups;
    rooms.groups.forget(&rooms.plan);
    rooms.set_plan(failed.plan().clone());
    rooms.shut.insert(failed);
}

/// Serves what went for devices that could not be opened after all, at once or as soon as it can be opened.
pub(super) fn restore(late: &[Late], rooms: &mut Rooms, mode: Mode) -> Restored {
    let mut restored = Restored::default();
    for Late { plan, before, .. } in late {
        let Some(again) = before else { continue };
        if rooms.shut.named(plan.id()).is_none_or(Shut::is_waiting) {
            continue;
        }
        // What stands among those that are not open is tried again, with the patience for that.
        let Some(failed) = rooms.shut.remove(plan.id()) else { continue };
        let (before, groups) = (again.after(failed.plan()), rooms.plan.groups.clone());
        again.plan_again(&before, rooms);
        let opened = open::open(before.clone(), Socket::Own, rooms, mode);
        let why = match opened.and_then(|device| open::serve(device, rooms, mode)) {
            Ok(number) => {
                rooms.turn.touch(number);
                info!(device = plan.id(), "served as before");
                restored.served.push(before.title());
                continue;
            }
            Err(why) => why,
        };
        match why {
            NotOpen::Unfit(_) | NotOpen::Wrong(_) => {
                error!(device = plan.id(), "cannot be served as before either: {why}");
                plan_as_wanted(failed, groups, rooms);
            }
            // Who has its image may be about to let go of it.
            NotOpen::Ended(_)
            | NotOpen::Hidden(_)
            | NotOpen::Late(_)
            | NotOpen::Ours(_)
            | NotOpen::Living(_)
            | NotOpen::Landing(_) => {
                warn!(device = plan.id(), "waits to be served as before: {why}");
                restored.waiting.push(format!("{} ({why})", before.title()));
                rooms.shut.insert(Shut::waiting_for(before, &why, rooms.turn.now()));
            }
        }
    }
    restored
}

/// Devices that went for others which could not be opened, in words.
#[derive(Default)]
pub(crate) struct Restored {
    /// Are served again.
    served: Vec<String>,
    /// Are as soon as they can be opened.
    waiting: Vec<String>,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.served.is_empty() {
            write!(f, ", and served again as before: {}", self.served.join(", "))?;
        }
        if !self.waiting.is_empty() {
            let names = self.waiting.join(", ");
            write!(f, ", and served again as before as soon as it can be opened: {names}")?;
        }
        Ok(())
    }
}
