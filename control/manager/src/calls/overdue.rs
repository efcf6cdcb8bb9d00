//! Calls that wait no longer, because it is known what they waited for or because they have waited for too long.
//!
//! Not here: their lives (`waiting`).

use config::api::{ApiError, ErrorKind};
use control::mode::Mode;
use tracing::warn;

use super::resizing::{self, Undone};
use super::waiting::Next;
use super::{disks, shown};
use crate::api::Reply;
use crate::defects::found;
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
            Some(Next::Overdue(device, reply)) => {
                undone.extend(answer_overdue(device, reply, rooms));
            }
            None => return undone,
        }
    }
}

/// Answers a call that waits for too long for a disk that does not answer. A removal goes on by itself; a resize is
/// given up.
fn answer_overdue(number: u32, reply: Option<Reply>, rooms: &mut Rooms) -> Option<Undone> {
    let device = rooms.devices.get(number);
    let device = found!(rooms.turn.defects, device, "device that is waited for");
    let (id, requests) = (device.facts().id.clone(), device.unanswered_requests());
    let (answer, undone) = if device.is_going() {
        (Ok(shown::device(rooms, device)), None)
    } else {
        let waits = format!("waits for {}", views::unanswered(requests));
        let undone = resizing::give_up(number, &format!("it {waits}"), rooms);
        let hint = "its size is as it was; try again when it answers";
        (Err(ApiError::new(ErrorKind::Busy, format!("disk {id:?} {waits}"), hint)), undone)
    };
    warn!(device = id, "an operator waits for {}", views::unanswered(requests));
    reply.into_iter().for_each(|reply| reply.answer(answer.clone()));
    undone
}
