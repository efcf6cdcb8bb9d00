//! What is on its way between sidecores: queues of disks, told to go and heard of, and who waits for them.
//!
//! How a queue travels is the sidecores' affair ([`sidecore::handover`]), how far each has come is control's
//! ([`control::moves`]). While a sidecore has been told to hand a queue over it is not known who has it, for about a
//! millisecond; what is to be said of the queue is kept until the answer, and said to whoever has it then. NICs, which
//! move as a whole, are the network's (`network::travel`); their moves have numbers here, and operators wait for both.
//! Called by `manager` (events, loads) and for operators (`wishes`).

use control::moves::{Mover, Waited};
use sidecore::{Command, MoveId, QueueKey, Stay, handover, nanos_of};
use tracing::debug;

use crate::api::Reply;
use crate::defects::{found, late};
use crate::devices::device::Device;
use crate::devices::queue::{Move, Moved};
use crate::disk::staging::{self, Other};
use crate::sidecores::around::Around;
use crate::turn::Turn;

/// Why something is not where it was to go.
pub(crate) type NotMoved = control::moves::NotMoved<Stay>;

/// All moves that are under way.
#[derive(Default)]
pub(crate) struct Moves(control::moves::Moves<Reply, Stay>);

impl Moves {
    /// The number of a move of a NIC.
    pub(crate) fn begin_nic(&mut self, device: u32) -> MoveId {
        MoveId(self.0.begin(Mover::Nic(device)))
    }

    /// Has the sidecore that a queue is to go to prepare itself. `None`: it is not served in peace.
    pub(crate) fn begin(
        &mut self,
        QueueKey { device, queue: index }: QueueKey,
        (to, by_hand): (usize, bool),
        around: &mut Around<'_>,
    ) -> Option<MoveId> {
        let Around { turn, devices, cores } = around;
        let disk = devices.get_mut(device).and_then(Device::disk_and_queues);
        let other = disk.and_then(|(disk, queues)| {
            Some(staging::other(disk, index, queues.get_mut(usize::from(index))?))
        });
        let Other { backend, room, through } =
            found!(turn.defects, other, "disk whose queue moves");
        let new = found!(turn.defects, cores.handle(to), "sidecore to move a queue to");
        let queue = found!(turn.defects, devices.queue_mut(device, index), "queue to move");
        let id = MoveId(self.0.begin(Mover::Queue(device, index)));
        let (arrival, departure) = handover(id, new, backend, room);
        if !queue.prepare(Move { id, to, by_hand }, departure) {
            self.end(id, Ok(()));
            return None;
        }
        queue.staged_mut().prepares(through);
        cores.send(to, Command::Prepare(arrival));
        Some(id)
    }

    /// Has queues of a disk that are served through other stages than its plan says go to where they are.
    pub(crate) fn restage(
        &mut self,
        device: u32,
        queues: &[(u16, usize)],
        around: &mut Around<'_>,
    ) {
        for (queue, core) in queues {
            let begun = self.begin(QueueKey { device, queue: *queue }, (*core, false), around);
            debug!(device, queue, core, begun = begun.is_some(), "other stages");
        }
    }

    /// Moves a queue to where there is more room for it.
    pub(crate) fn relieve(&mut self, key: QueueKey, to: usize, around: &mut Around<'_>) {
        let at = nanos_of(around.turn.now());
        let queue = around.devices.queue_mut(key.device, key.queue);
        let queue = found!(around.turn.defects, queue, "queue to move for its load");
        queue.weighed_mut().moved = Some(at);
        let (from, load) = (queue.place().map(|place| place.core), queue.weighed().load);
        let begun = self.begin(key, (to, false), around).is_some();
        debug!(device = key.device, queue = key.queue, from, to, load, begun, "balance");
    }

    /// The new owner is ready: the old one may hand the queue over.
    pub(crate) fn prepared(&mut self, id: MoveId, around: &mut Around<'_>) {
        self.end_called_off(around.turn);
        // Called off meanwhile: the new owner sees that by itself.
        let Some((device, index)) = self.0.prepared(id.0) else { return late("move") };
        let queue = around.devices.queue_mut(device, index);
        let told = queue.and_then(|queue| queue.prepared(id));
        let (core, departure) = found!(around.turn.defects, told, "queue that was to move");
        around.cores.send(core, Command::Move(QueueKey { device, queue: index }, departure));
    }

    /// What moved is at its new owner, or (with a reason) still at the old one. A NIC is given back, of which the
    /// network knows what is to be done.
    pub(crate) fn is_over(
        &mut self,
        id: MoveId,
        why: Option<Stay>,
        around: &mut Around<'_>,
    ) -> Option<(u32, Option<Stay>)> {
        self.end_called_off(around.turn);
        let (device, index) = match self.0.heard(id.0, why.is_some()) {
            Some(Mover::Queue(device, index)) => (device, index),
            Some(Mover::Nic(device)) => return Some((device, why)),
            // It was called off: the queue was asked for, or the NIC's port goes.
            None => {
                late("move");
                return None;
            }
        };
        let Around { turn, devices, cores } = around;
        let queue =
            found!(turn.defects, devices.queue_mut(device, index), "queue that was to move");
        let Some(Moved { from, to, held }) = queue.moved(id, why.is_some()) else {
            self.end(id, Err(NotMoved::NotServed));
            return None;
        };
        queue.staged_mut().stays(why.as_ref());
        // It may have other stages, for which somebody waits.
        turn.touch(device);
        if why.is_none() {
            cores.give_load(from, 1);
            cores.take_load(to, 1);
            debug!(device, queue = index, from, to, "moved");
        }
        for command in held {
            devices.tell(device, index, command, turn, cores);
        }
        self.end(id, why.map_or(Ok(()), |why| Err(NotMoved::Stayed(why))));
        None
    }

    /// A move is over, or was not begun after all.
    pub(crate) fn end(&mut self, id: MoveId, outcome: Result<(), NotMoved>) {
        if !self.0.end(id.0, outcome) {
            late("move");
        }
    }

    /// Those that were called off in this turn are over.
    pub(crate) fn end_called_off(&mut self, turn: &mut Turn) {
        for (id, why) in turn.take_called_off() {
            self.end(id, Err(why));
        }
    }

    /// Who waits for `before` waits for `next` from now on.
    pub(crate) fn replace(&mut self, before: MoveId, next: MoveId) {
        self.0.replace(before.0, next.0);
    }

    /// An operator is answered when these moves of one device are over.
    pub(crate) fn wait(&mut self, device: u32, moves: Vec<MoveId>, reply: Reply) {
        self.0.wait(device, moves.into_iter().map(|id| id.0), reply);
    }

    /// The next who is to be answered.
    pub(crate) fn take_answerable(&mut self) -> Option<Waited<Reply, Stay>> {
        self.0.take_answerable()
    }

    /// Whoever waits is told that this process ends.
    pub(crate) fn answer_nobody(&mut self) {
        self.0.answer_nobody();
    }
}
