//! What operators are shown of disks, sidecores and the program. Not here: how (`views`).

use config::api::{Answer, DiskList, SidecoreList, VersionView};
use config::plan::DiskPlan;
use sidecore::Handle;

use super::Answered;
use crate::devices::device::Device;
use crate::devices::kind::Kind;
use crate::rooms::Rooms;
use crate::views;

/// All disks.
pub(crate) fn disks(rooms: &Rooms) -> Answer {
    let view = |plan: &DiskPlan| view(rooms, &plan.id, false);
    Answer::Disks(DiskList { disks: rooms.plan.disks.iter().filter_map(view).collect() })
}

/// A disk, with its queues or without.
///
/// # Errors
/// There is none of that name.
pub(crate) fn disk(rooms: &Rooms, id: &str, queues: bool) -> Answered {
    let view = view(rooms, id, queues).ok_or_else(|| rooms.plan.no_such_disk(id))?;
    Ok(Answer::Disk(Box::new(view)))
}

/// The device of that name, as its kind is shown.
///
/// # Errors
/// There is none.
pub(crate) fn named(rooms: &Rooms, id: &str, queues: bool) -> Answered {
    match rooms.plan.nic(id) {
        Some(_) => rooms.nic_views().show(id, queues),
        None => disk(rooms, id, queues),
    }
}

fn view(rooms: &Rooms, id: &str, queues: bool) -> Option<config::api::DiskView> {
    if let Some(device) = rooms.devices.number_of(id).and_then(|number| rooms.devices.get(number)) {
        let now = rooms.turn.now();
        return device.disk().map(|parts| views::disk(device, parts, (queues, now)));
    }
    let shut = rooms.shut.named(id)?;
    let is_exported = rooms.plan.link_of(id).is_some();
    shut.plan().disk().map(|plan| views::shut(shut, plan, is_exported))
}

/// A device as its kind is shown, without its queues.
pub(crate) fn device(rooms: &Rooms, device: &Device) -> Answer {
    match device.kind() {
        Kind::Disk(parts) => {
            Answer::Disk(Box::new(views::disk(device, parts, (false, rooms.turn.now()))))
        }
        Kind::Nic(parts) => Answer::Nic(Box::new(rooms.nic_views().view(device, parts, false))),
    }
}

/// All sidecores.
pub(crate) fn sidecores(rooms: &Rooms) -> Answer {
    let view = |(index, core): (usize, &Handle)| {
        let lost = rooms.guests.lost(index);
        views::sidecore(index, &core.counters(), &rooms.cores, lost)
    };
    Answer::Sidecores(SidecoreList {
        sidecores: rooms.cores.handles().enumerate().map(view).collect(),
    })
}

/// The program.
pub(crate) fn version(rooms: &Rooms) -> Answer {
    Answer::Version(VersionView {
        program: "sidecore".to_string(),
        version: rooms.options.version.to_string(),
        commit: rooms.options.commit.map(str::to_string),
        api: "v1".to_string(),
    })
}
