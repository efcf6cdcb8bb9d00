//! Who answers which call: each is answered at once, or when what it concerns is ready.
//!
//! Not here: calls that concern the loop itself (a reload, an upgrade).

use config::api::{ApiError, Call, ErrorKind};
use config::spec::DiskMove;
use control::mode::Mode;
use control::moves::{Problems, Waited};
use sidecore::Stay;

use super::{check_disk_made_by_api, disks, groups, nics, removal, resizing, shown, stages};
use crate::api::Reply;
use crate::daemon_view;
use crate::in_use::InUse;
use crate::rooms::Rooms;
use crate::sidecores::moves::NotMoved;

/// Answers an operator.
pub(crate) fn answer(call: Call, reply: Reply, rooms: &mut Rooms, mode: Mode) {
    let answer = match call {
        Call::ListDisks => Ok(shown::disks(rooms)),
        Call::ShowDisk { id } => shown::disk(rooms, &id, true),
        Call::ListSidecores => Ok(shown::sidecores(rooms)),
        Call::ShowDaemon => return daemon_view::ask(rooms, reply),
        Call::Version => Ok(shown::version(rooms)),
        Call::AddDisk { spec, force } => {
            return disks::add_when_open((spec, force), reply, rooms, mode);
        }
        Call::ChangeDisk { id, change } => disks::change(&id, &change, rooms),
        Call::ResizeDisk { id, resize, force } => {
            return resizing::ask(&id, &resize, force, reply, rooms);
        }
        Call::RemoveDisk { id, force } => {
            let may = check_disk_made_by_api(&id, &rooms.plan);
            match may.and_then(|()| in_use(rooms).check_unused("disk", &id, force)) {
                Ok(()) => return removal::remove(&id, reply, rooms, mode),
                Err(error) => Err(error),
            }
        }
        Call::ClearDisk { id } => disks::clear(&id, rooms, mode),
        Call::MoveDisk { id, wish } => return move_disk(&id, &wish, reply, rooms),
        Call::ListStages { id } => stages::list(&id, rooms),
        Call::SetStage { id, kind, change } => {
            return stages::set((&id, kind), &change, reply, rooms);
        }
        Call::RemoveStage { id, kind } => return stages::remove((&id, kind), reply, rooms),
        Call::ReadTrace { id, from } => stages::trace(&id, from, rooms),
        Call::ListGroups
        | Call::ShowGroup { .. }
        | Call::AddGroup(_)
        | Call::ChangeGroup { .. }
        | Call::RemoveGroup { .. } => groups::answer(call, rooms),
        Call::ListLinks => Ok(rooms.show_links()),
        call => return answer_net(call, reply, rooms, mode),
    };
    reply.answer(answer);
}

/// The same for NICs and switches.
fn answer_net(call: Call, reply: Reply, rooms: &mut Rooms, mode: Mode) {
    let answer = match call {
        Call::ListNics => Ok(rooms.nic_views().list()),
        Call::ShowNic { id } => rooms.nic_views().show(&id, true),
        Call::AddNic(spec) => return nics::add_now(&spec, reply, rooms, mode),
        Call::ChangeNic { id, change } => nics::change(&id, &change, rooms),
        Call::MoveNic { id, wish } => return nics::go(&id, &wish, reply, rooms),
        Call::SetCarrier { id, carrier } => nics::set_carrier(&id, carrier, rooms),
        Call::ListSwitches => Ok(rooms.switch_calls().list()),
        Call::AddSwitch(spec) => return rooms.switch_calls().add(&spec, reply),
        Call::RemoveNic { id, force } => {
            let may = nics::check_made_by_api(&id, &rooms.plan);
            match may.and_then(|()| in_use(rooms).check_unused("nic", &id, force)) {
                Ok(()) => return removal::remove(&id, reply, rooms, mode),
                Err(error) => Err(error),
            }
        }
        Call::ShowSwitch { id } => return rooms.switch_calls().show(&id, reply),
        Call::RemoveSwitch { id } => return rooms.switch_calls().remove(&id, reply),
        // Answered before.
        _ => Err(ApiError::unanswerable()),
    };
    reply.answer(answer);
}

/// Has queues of a disk go elsewhere, or stay nowhere any more.
fn move_disk(id: &str, wish: &DiskMove, reply: Reply, rooms: &mut Rooms) {
    match rooms.move_queues(id, wish) {
        Ok(Some((device, moves))) => rooms.moves.wait(device, moves, reply),
        Ok(None) => reply.answer(shown::disk(rooms, id, true)),
        Err(error) => reply.answer(Err(error)),
    }
}

/// Answers those whose moves are all over.
pub(crate) fn answer_moved(rooms: &mut Rooms) {
    while let Some(Waited { device, problems, who: reply }) = rooms.moves.take_answerable() {
        let Some(device) = rooms.devices.get(device) else {
            reply.answer(Err(ApiError::gone("device")));
            continue;
        };
        let (id, is_nic) = (&device.facts().id, device.nic().is_some());
        let answer = match not_moved(&problems) {
            None => shown::named(rooms, id, true),
            Some(why) => {
                let kind = if is_nic { "nic" } else { "disk" };
                let error = format!("{kind} {id:?} was not moved: {why}");
                let hint = "what stayed is served where it was; try again in a moment";
                Err(ApiError::new(ErrorKind::Busy, error, hint))
            }
        };
        reply.answer(answer);
    }
}

/// What did not move, and why; `None` when all did.
fn not_moved(problems: &Problems<Stay>) -> Option<String> {
    let text = |(queue, why): &(Option<u16>, NotMoved)| match queue {
        Some(queue) => format!("queue {queue}: {why}"),
        None => why.to_string(),
    };
    let texts: Vec<String> = problems.iter().map(text).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn in_use(rooms: &Rooms) -> InUse<'_> {
    InUse { devices: &rooms.devices, remote: &rooms.remote }
}
