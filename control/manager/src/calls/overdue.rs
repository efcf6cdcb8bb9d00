//! Calls that wait no longer, because it is known what they waited for or because they have waited for too long.
//!
//! Not here: their lives (`waiting`).

use config::api::{ApiError, ErrorKind};
use control::mode::Mode;
use tracing::warn;

use super::resizing::{self, Undone};
use super::waiting::Next;
use super::{disks, shown, stages};
use crate::api::Reply;
use crate::defects::found;
use crate::devices::device::Device;
use crate::rooms::Rooms;
use crate::views;

/// Goes on with calls that wait no longer: of whose disks' images it is known what became of them, or whose time is
/// up. Gives what is undone.
pub(crate) fn go_on(rooms: &mut Rooms, mode: Mode) -> Vec<Undone> {
    let mut undone = Vec::new();
    loop {
        let Rooms { waiting, openers, turn, .. } = &mut *rooms;
        match waiting.next(turn.now(), |id| openers.has_answered(id)) {
            Some(Next::Add(spec, reply)) => disks::add_now(&spec, reply, rooms, mode),
            Some(Next::Sizing(device, reply)) => undone.extend(give_up(device, reply, rooms)),
            Some(Next::Staging(device, reply)) => stages::are_late(device, reply, rooms),
            Some(Next::Removing(device, reply)) => answer_removal(device, reply, rooms),
            None => return undone,
        }
    }
}

/// Answers a resize that waits for too long for a disk that does not answer: it is given up.
fn give_up(number: u32, reply: Option<Reply>, rooms: &mut Rooms) -> Option<Undone> {
    let device = rooms.devices.get(number);
    let device = found!(rooms.turn.defects, device, "disk that is to be resized");
    let (id, is_going) = (device.facts().id.clone(), device.is_going());
    let waits = say_waits(device);
    let (why, undone) = if is_going {
        // Somebody else removes it meanwhile.
        (ApiError::no_such_disk(&id), None)
    } else {
        let undone = resizing::give_up(number, &format!("it {waits}"), rooms);
        let hint = "its size is as it was; try again when it answers";
        (ApiError::new(ErrorKind::Busy, format!("disk {id:?} {waits}"), hint), undone)
    };
    reply.into_iter().for_each(|reply| reply.answer(Err(why.clone())));
    undone
}

/// Answers a removal that waits for too long for a disk that does not answer: it goes on by itself.
fn answer_removal(number: u32, reply: Option<Reply>, rooms: &mut Rooms) {
    let device = rooms.devices.get(number);
    let device = found!(rooms.turn.defects, device, "device that is removed");
    say_waits(device);
    let view = shown::device(rooms, device);
    reply.into_iter().for_each(|reply| reply.answer(Ok(view.clone())));
}

/// Says in the log what an operator waits for: the same in words.
fn say_waits(device: &Device) -> String {
    let waits = format!("waits for {}", views::unanswered(device.unanswered_requests()));
    warn!(device = device.facts().id, "an operator {waits}");
    waits
}
