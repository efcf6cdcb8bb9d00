//! Where operators want the queues of a disk to be: what may move, and what is begun.
//!
//! Not here: NICs, which go as a whole (`network::travel`), and how a move goes on (`moves`).

use config::api::{ApiError, ErrorKind};
use config::plan::DiskPlan;
use config::spec::DiskMove;
use config::{Plan, Target};
use sidecore::{MoveId, QueueKey};
use tracing::info;

use crate::defects::found;
use crate::devices::Devices;
use crate::devices::queue::Queue;
use crate::sidecores::around::Around;
use crate::sidecores::moves::Moves;

impl Moves {
    /// Moves queues of a disk: its number, and the moves to wait for. `None`: they stay nowhere any more, which is done.
    ///
    /// # Errors
    /// They do not go there.
    pub(crate) fn bring(
        &mut self,
        id: &str,
        wish: &DiskMove,
        plan: &Plan,
        around: &mut Around<'_>,
    ) -> Result<Option<(u32, Vec<MoveId>)>, ApiError> {
        let disk = disk_to_move(plan, id)?;
        let to = match wish.to {
            Target::Sidecore(to) => usize::from(to),
            Target::Auto => {
                let_go(disk, wish.queue, around.devices)?;
                return Ok(None);
            }
        };
        check_sidecore(to, around.cores.count())?;
        let (device, queues) = movable(id, wish.queue, around.devices)?;
        around.cores.wake(to);
        let bring = |queue| self.bring_one(QueueKey { device, queue }, to, around);
        let moves: Vec<MoveId> = queues.into_iter().filter_map(bring).collect();
        info!(disk = id, to, queues = moves.len(), "moving");
        Ok(Some((device, moves)))
    }

    /// Has a queue stay where an operator wants it, and moves it there if it is elsewhere.
    fn bring_one(&mut self, key: QueueKey, to: usize, around: &mut Around<'_>) -> Option<MoveId> {
        let queue = around.devices.queue_mut(key.device, key.queue);
        if found!(around.turn.defects, queue, "queue to bring somewhere").stays_at(to) {
            return None;
        }
        self.begin(key, (to, true), around)
    }
}

/// Refuses a sidecore that is not there, of `count`.
pub(crate) fn check_sidecore(to: usize, count: usize) -> Result<(), ApiError> {
    if to < count {
        return Ok(());
    }
    let error = match count {
        1 => format!("there is no sidecore {to}: the only one is 0"),
        _ => format!("there is no sidecore {to}: there are {count}, from 0 on"),
    };
    Err(refused(error, "`sidecore sidecores` lists them"))
}

/// The plan of a disk.
fn disk_to_move<'a>(plan: &'a Plan, id: &str) -> Result<&'a DiskPlan, ApiError> {
    if plan.nic(id).is_some() {
        let error = format!("{id:?} is a nic; use `sidecore nic move`");
        return Err(refused(error, "its queues are where its port is, and move with it"));
    }
    plan.disk(id).ok_or_else(|| plan.no_such_disk(id))
}

/// Has queues stay nowhere any more; they go when their load says so. One that nobody holds is as it
/// was, and one that is on its way by hand arrives and does not stay.
fn let_go(plan: &DiskPlan, queue: Option<u16>, devices: &mut Devices) -> Result<(), ApiError> {
    let DiskPlan { id, queues: count, .. } = plan;
    if let Some(queue) = queue.filter(|queue| queue >= count) {
        let error = format!("there is no queue {queue} of disk {id:?}: it has {count}, from 0 on");
        return Err(refused(error, "`sidecore show` lists them"));
    }
    let device = devices.number_of(id).and_then(|number| devices.get_mut(number));
    let queues = device.map(|device| device.queues_mut()).into_iter().flatten();
    for (_, state) in (0..).zip(queues).filter(|(index, _)| queue.is_none_or(|q| q == *index)) {
        state.let_go();
    }
    info!(disk = id, queue, "let go");
    Ok(())
}

/// The queues of a disk that a wish is about, all of them unless it names one; and its number.
fn movable(id: &str, queue: Option<u16>, devices: &Devices) -> Result<(u32, Vec<u16>), ApiError> {
    let device = devices.number_of(id).and_then(|number| devices.get(number));
    if device.is_some_and(|device| device.is_fixed()) {
        let error = format!("the queues of disk {id:?} are where its link is");
        return Err(refused(error, "they stay there"));
    }
    let placed = "a queue has a sidecore while its front-end runs it; `sidecore show` says which";
    let attached = device.map(|device| device.attached()).unwrap_or_default();
    let Some(device) = device.filter(|_| !attached.is_empty()) else {
        let error = format!("no guest runs disk {id:?}; there is nothing to move");
        return Err(refused(error, placed));
    };
    let queues = match queue {
        Some(queue) if attached.contains(&queue) => vec![queue],
        Some(queue) => {
            let error = format!("queue {queue} of disk {id:?} is not served now");
            return Err(refused(error, placed));
        }
        None => attached,
    };
    let busy = |queue: &&u16| {
        let queue = device.queue(**queue);
        queue.is_some_and(Queue::is_underway)
    };
    if let Some(queue) = queues.iter().find(busy) {
        let error = format!("queue {queue} of disk {id:?} is being moved or stopped");
        return Err(ApiError::new(ErrorKind::Busy, error, "try again in a moment"));
    }
    Ok((device.number(), queues))
}

fn refused(error: String, hint: &str) -> ApiError {
    ApiError::new(ErrorKind::Refused, error, hint)
}
