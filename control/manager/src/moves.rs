//! Queues of disks that are moved between sidecores: who asked, where each is, and what waits for it.
//!
//! How a queue travels is the sidecores' affair ([`sidecore::handover`]). Here: one move a queue at a
//! time, from the operator's word to the answer. While a sidecore has been told to hand a queue over it
//! is not known who has it, for about a millisecond; what is to be said of the queue is kept until the
//! answer, and said to whoever has it then. NICs, which move as a whole: `network::travel`; operators wait for
//! both here. Called by `calls` (operators), `balance` (loads) and `manager` (events, and all that is
//! said of an attached queue).

use std::collections::{BTreeMap, BTreeSet};

use config::Target;
use config::api::{ApiError, ErrorKind};
use config::plan::DiskPlan;
use config::spec::DiskMove;
use sidecore::{Command, MoveId, QueueKey, Stay, handover};
use tracing::{debug, info};

use crate::api::Reply;
use crate::calls::Answered;
use crate::defects::{found, late};
use crate::manager::Manager;
use crate::queue::{Move, Moved, Queue};

/// An operator who waits.
struct Waiting {
    device: u32,
    /// Moves that are not answered.
    open: BTreeSet<MoveId>,
    problems: Vec<String>,
    reply: Reply,
}

/// All moves that are under way.
#[derive(Default)]
pub(crate) struct Moves {
    last: u64,
    /// Which queue of which device; `None` for a NIC with all of them.
    of: BTreeMap<MoveId, (u32, Option<u16>)>,
    waiting: Vec<Waiting>,
}

impl Moves {
    /// The number of a new move.
    pub(crate) fn begin(&mut self, device: u32, queue: Option<u16>) -> MoveId {
        self.last += 1;
        let id = MoveId(self.last);
        self.of.insert(id, (device, queue));
        id
    }

    /// One that was not begun after all.
    pub(crate) fn forget(&mut self, id: MoveId) {
        self.of.remove(&id);
    }

    /// Whoever waits is told that this process ends.
    pub(crate) fn answer_nobody(&mut self) {
        self.waiting.clear();
    }

    /// Who waits for `before` waits for `next` from now on.
    pub(crate) fn replace(&mut self, before: MoveId, next: MoveId) {
        self.of.remove(&before);
        for waiting in &mut self.waiting {
            if waiting.open.remove(&before) {
                waiting.open.insert(next);
            }
        }
    }
}

impl Manager {
    /// Moves queues of a disk. The operator is answered when all are where they were to be, or are not
    /// going there.
    pub(crate) fn move_queues(&mut self, id: &str, wish: &DiskMove, reply: Reply) {
        let to = match wish.to {
            Target::Sidecore(to) => usize::from(to),
            Target::Auto => return reply.answer(self.let_queues_go(id, wish.queue)),
        };
        let (number, queues) = match self.movable(id, to, wish.queue) {
            Ok(found) => found,
            Err(error) => return reply.answer(Err(error)),
        };
        self.rooms.balance.wake(to);
        let moves: Vec<MoveId> =
            queues.into_iter().filter_map(|index| self.bring(number, index, to)).collect();
        info!(disk = id, to, queues = moves.len(), "moving");
        self.await_moves(number, moves.into_iter().collect(), reply);
    }

    /// Has queues stay nowhere any more; they go when their load says so. One that nobody holds is as it
    /// was, and one that is on its way by hand arrives and does not stay.
    fn let_queues_go(&mut self, id: &str, queue: Option<u16>) -> Answered {
        let plan = self.disk_to_move(id)?;
        let count = plan.queues;
        if let Some(queue) = queue.filter(|queue| *queue >= count) {
            let error =
                format!("there is no queue {queue} of disk {id:?}: it has {count}, from 0 on");
            return Err(ApiError::new(ErrorKind::Refused, error, "`sidecore show` lists them"));
        }
        let device =
            self.rooms.devices.number_of(id).and_then(|number| self.rooms.devices.get_mut(number));
        let queues = device.map(|device| &mut device.queues).into_iter().flatten();
        for (_, state) in (0..).zip(queues).filter(|(index, _)| queue.is_none_or(|q| q == *index)) {
            state.let_go();
        }
        info!(disk = id, queue, "let go");
        self.show(id, true)
    }

    /// The plan of a disk.
    fn disk_to_move(&self, id: &str) -> Result<&DiskPlan, ApiError> {
        if self.rooms.plan.nic(id).is_some() {
            let error = format!("{id:?} is a nic; use `sidecore nic move`");
            let hint = "its queues are where its port is, and move with it";
            return Err(ApiError::new(ErrorKind::Refused, error, hint));
        }
        self.rooms.plan.disk(id).ok_or_else(|| self.rooms.plan.no_such_disk(id))
    }

    /// Answers an operator when these moves of one device are over.
    pub(crate) fn await_moves(&mut self, device: u32, open: BTreeSet<MoveId>, reply: Reply) {
        self.rooms.moves.waiting.push(Waiting { device, open, problems: Vec::new(), reply });
        self.answer_moved();
    }

    /// Has a queue stay where an operator wants it, and moves it there if it is elsewhere.
    fn bring(&mut self, number: u32, index: u16, to: usize) -> Option<MoveId> {
        let queue = self.rooms.devices.queue_mut(number, index);
        if found!(self.rooms.turn.defects, queue, "queue to bring somewhere").stays_at(to) {
            return None;
        }
        self.begin_move(number, index, to, true)
    }

    /// The queues that a wish is about.
    fn movable(
        &self,
        id: &str,
        to: usize,
        queue: Option<u16>,
    ) -> Result<(u32, Vec<u16>), ApiError> {
        let refused = |error: String, hint: &str| ApiError::new(ErrorKind::Refused, error, hint);
        self.disk_to_move(id)?;
        let count = self.rooms.cores.all.len();
        if to >= count {
            let error = format!("there is no sidecore {to}: there are {count}, from 0 on");
            return Err(refused(error, "`sidecore sidecores` lists them"));
        }
        if self
            .rooms
            .devices
            .number_of(id)
            .and_then(|number| self.rooms.devices.get(number))
            .is_some_and(|device| device.is_fixed())
        {
            let error = format!("the queues of disk {id:?} are where its link is");
            return Err(refused(error, "they stay there"));
        }
        let placed =
            "a queue has a sidecore while its front-end runs it; `sidecore show` says which";
        let device =
            self.rooms.devices.number_of(id).and_then(|number| self.rooms.devices.get(number));
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
            let queue = device.queues.get(usize::from(**queue));
            queue.is_some_and(Queue::is_underway)
        };
        if let Some(queue) = queues.iter().find(busy) {
            let error = format!("queue {queue} of disk {id:?} is being moved or stopped");
            return Err(ApiError::new(ErrorKind::Busy, error, "try again in a moment"));
        }
        Ok((device.number, queues))
    }

    /// Has the new owner prepare itself.
    pub(crate) fn begin_move(
        &mut self,
        number: u32,
        index: u16,
        to: usize,
        by_hand: bool,
    ) -> Option<MoveId> {
        let parts = self.rooms.devices.disk(number);
        let backend =
            found!(self.rooms.turn.defects, parts, "disk whose queue moves").disk.backend();
        let new = found!(
            self.rooms.turn.defects,
            self.rooms.cores.all.get(to),
            "sidecore to move a queue to"
        );
        let id = self.rooms.moves.begin(number, Some(index));
        let (arrival, departure) = handover(id, &new.handle, backend);
        let queue = found!(
            self.rooms.turn.defects,
            self.rooms.devices.queue_mut(number, index),
            "queue to move"
        );
        if !queue.prepare(Move { id, to, by_hand }, departure) {
            self.rooms.moves.forget(id);
            return None;
        }
        self.rooms.cores.send(to, Command::Prepare(arrival));
        Some(id)
    }

    /// The new owner is ready: the old one may hand the queue over.
    pub(crate) fn move_is_prepared(&mut self, id: MoveId) {
        // Called off meanwhile, if it is not found: the new owner sees that by itself.
        let Some(&(number, Some(index))) = self.rooms.moves.of.get(&id) else {
            return late("move");
        };
        let key = QueueKey { device: number, queue: index };
        let queue = self.rooms.devices.queue_mut(number, index);
        if let Some((core, departure)) = queue.and_then(|queue| queue.prepared(id)) {
            self.rooms.cores.send(core, Command::Move(key, departure));
        }
    }

    /// A queue is at its new owner, or (with a reason) still at the old one.
    pub(crate) fn move_is_over(&mut self, id: MoveId, why: Option<&Stay>) {
        // It was called off: the queue was asked for, or the NIC's port goes.
        let Some(&(number, index)) = self.rooms.moves.of.get(&id) else { return late("move") };
        let Some(index) = index else { return self.nic_move_is_over(id, number, why) };
        let queue = found!(
            self.rooms.turn.defects,
            self.rooms.devices.queue_mut(number, index),
            "queue that was to move"
        );
        let Some(Moved { from, to, held }) = queue.moved(id, why.is_some()) else {
            return self.move_ended(id, Some("it is not served any more"));
        };
        if why.is_none() {
            self.rooms.cores.give_load(from, 1);
            self.rooms.cores.take_load(to, 1);
            debug!(device = number, queue = index, from, to, "moved");
        }
        for command in held {
            self.rooms.devices.tell(
                number,
                index,
                command,
                &mut self.rooms.turn,
                &mut self.rooms.cores,
            );
        }
        let why = why.map(ToString::to_string);
        self.move_ended(id, why.as_deref());
    }

    pub(crate) fn move_ended(&mut self, id: MoveId, problem: Option<&str>) {
        // It may have been called off and have ended in one turn.
        let Some((_, index)) = self.rooms.moves.of.remove(&id) else { return late("move") };
        for waiting in &mut self.rooms.moves.waiting {
            if let (true, Some(problem)) = (waiting.open.remove(&id), problem) {
                let queue = index.map(|index| format!("queue {index}: ")).unwrap_or_default();
                waiting.problems.push(format!("{queue}{problem}"));
            }
        }
        self.answer_moved();
    }

    /// Answers those whose moves are all over.
    fn answer_moved(&mut self) {
        while let Some(at) =
            self.rooms.moves.waiting.iter().position(|waiting| waiting.open.is_empty())
        {
            let Waiting { device, problems, reply, .. } = self.rooms.moves.waiting.swap_remove(at);
            let Some(device) = self.rooms.devices.get(device) else {
                reply.answer(Err(ApiError::new(ErrorKind::NotFound, "the device is gone", "")));
                continue;
            };
            let (id, is_nic) = (&device.facts.id, device.kind.nic().is_some());
            let answer = if problems.is_empty() {
                if is_nic { self.show_nic(id, true) } else { self.show(id, true) }
            } else {
                let kind = if is_nic { "nic" } else { "disk" };
                let error = format!("{kind} {id:?} was not moved: {}", problems.join("; "));
                let hint = "what stayed is served where it was; try again in a moment";
                Err(ApiError::new(ErrorKind::Busy, error, hint))
            };
            reply.answer(answer);
        }
    }
}
