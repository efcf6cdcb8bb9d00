//! Front-ends come and go.
//!
//! They are accepted, called, given up and closed here; what they say is heard in `messages`. The
//! queues of one that went stay with their sidecores until they are back (`queue`). Not here: what one front-end has lent
//! (`front_end`), and what it is (`devices::connection`). Called by `manager`, and by whoever ends a front-end.

pub(crate) mod beginnings;
mod messages;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use control::mode::Mode;
use control::moves::NotMoved;
use guest_memory::Loss;
use sidecore::{QueueKey, Served, ServedSpec};
use tracing::{info, warn};
use vhost_user::Scope;

use crate::bounds::Bounds;
use crate::defects::{found, late};
use crate::devices::Devices;
use crate::devices::connection::{CONNECTIONS_MAX, Connection};
use crate::devices::lent::Lent;
use crate::devices::queue::{Back, Owner};
use crate::disk::bonds::Bonds;
use crate::poll::{Poll, Token};
use crate::sidecores::Cores;
use crate::sockets;
use crate::turn::Turn;

/// Between two attempts to accept when descriptors ran out: most likely some are being closed.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(100);
/// How long nobody is accepted while connections before wait to be closed, and no descriptor is free.
const CLOSING_INTERVAL: Duration = Duration::from_millis(10);
/// How long no front-end is taken after one that made a sidecore wait.
const SHUT_OUT_TIME: Duration = Duration::from_secs(10);

/// All front-ends, and what they reach.
pub(crate) struct FrontEnds<'a> {
    pub(crate) turn: &'a mut Turn,
    pub(crate) devices: &'a mut Devices,
    pub(crate) cores: &'a mut Cores,
    pub(crate) poll: &'a Poll,
    pub(crate) bounds: &'a Bounds,
    pub(crate) bonds: &'a mut Bonds,
    pub(crate) mode: Mode,
}

/// They come.
impl FrontEnds<'_> {
    /// Takes the connections that wait at a device's socket.
    pub(crate) fn accept(&mut self, number: u32) {
        for _ in 0..CONNECTIONS_MAX {
            let Some(device) = self.devices.get_mut(number) else { return late("device") };
            let Some(listener) = device.listener() else { return late("socket") };
            // Each one that gives way to the next holds a descriptor until it is closed.
            if device.closer().is_full() || device.is_short_while_closing(self.bounds) {
                let until = self.turn.now() + CLOSING_INTERVAL;
                return device.pause(self.poll, until);
            }
            match sockets::accept(listener) {
                Ok(Some(socket)) => self.add(number, socket),
                Ok(None) => return,
                Err(error) if self.refuse_for_want_of_descriptors(number, &error) => {}
                Err(error) => return self.stop_accepting(number, &error),
            }
        }
    }

    /// When no descriptor is left, the one in reserve is given up for a moment, so that whoever
    /// connects sees that he is refused. False when that is not possible.
    fn refuse_for_want_of_descriptors(&mut self, number: u32, error: &std::io::Error) -> bool {
        let none_left = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
        if !none_left.iter().any(|e| error.raw_os_error() == Some(e.raw_os_error())) {
            return false;
        }
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device that accepts");
        if !self.bounds.give_reserve_up() {
            return false;
        }
        let accepted = device.listener().map(sockets::accept);
        self.bounds.hold_reserve();
        let Some(Ok(Some(socket))) = accepted else { return false };
        device.closer().close(socket);
        device.say_problem(format!("a connection was refused: {error}; raise LimitNOFILE"));
        if device.may_log(self.turn.now()) {
            warn!(device = device.facts().id, %error, "refused a connection; raise LimitNOFILE");
        }
        self.bounds.hold_reserve();
        true
    }

    /// No descriptor is left, most likely: the listener would only say so again and again, so it is
    /// left alone for a while.
    fn stop_accepting(&mut self, number: u32, error: &std::io::Error) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device that could not accept");
        self.bounds.hold_reserve();
        if device.may_log(self.turn.now()) {
            warn!(device = device.facts().id, %error, "a connection could not be accepted");
        }
        device.say_problem(format!("a connection could not be accepted: {error}"));
        device.pause(self.poll, self.turn.now() + ACCEPT_INTERVAL);
    }

    /// Calls the front-end of a device (mode `connect`), if nobody is there.
    pub(crate) fn call(&mut self, number: u32) -> Option<OwnedFd> {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device to connect");
        device.has_no_front_end().then(|| device.call(self.turn.now())).flatten()
    }

    /// Takes in one that was called.
    pub(crate) fn add_called(&mut self, number: u32, socket: OwnedFd) {
        self.add(number, socket);
        // If it was not taken in.
        let device = self.devices.get_mut(number);
        found!(self.turn.defects, device, "device to connect").plan_connect(self.turn.now());
    }

    /// Takes a connection in, unless the device has too many.
    pub(crate) fn add(&mut self, number: u32, socket: OwnedFd) {
        let id = self.devices.number_connection();
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device that was connected to");
        if device.is_off() {
            return device.closer().close(socket);
        }
        let now = self.turn.now();
        if let Some(until) = device.shut_until(now) {
            device.closer().close(socket);
            let left_s = until.duration_since(now).as_secs() + 1;
            if device.may_log(self.turn.now()) {
                warn!(
                    device = device.facts().id,
                    left_s, "refused a connection: one has made a call wait"
                );
            }
            return;
        }
        // The part of one connection that its device was promised.
        let first = !device.connections().values().any(Connection::has_promised_place);
        let mut extra =
            if first { None } else { self.bounds.claim_connection(device.facts().rings) };
        if device.connections().len() >= CONNECTIONS_MAX || (!first && extra.is_none()) {
            // Whoever connected and fell silent must not keep the VMM out.
            let silent =
                device.connections().iter().filter(|(_, connection)| connection.gives_way(now));
            let Some(silent) =
                silent.min_by_key(|(_, connection)| connection.heard_at()).map(|(id, _)| *id)
            else {
                device.closer().close(socket);
                if device.may_log(self.turn.now()) {
                    let id = &device.facts().id;
                    let there = device.connections().len();
                    let why = match there < CONNECTIONS_MAX {
                        true => ", and no descriptor is promised to nobody: raise LimitNOFILE",
                        false => " already",
                    };
                    warn!(device = id, "refused a connection: {there} are there{why}");
                }
                return;
            };
            // What it had is this one's.
            let freed =
                device.connection_mut(silent).and_then(|connection| connection.give_place());
            extra = extra.or(freed);
            self.close(number, silent, "another connection takes its place");
        }
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device that was connected to");
        let mut connection = device.new_connection(socket, self.bounds, now);
        connection.take_place(extra);
        if let Err(error) = self.poll.add(connection.frames.socket(), Token::Connection(number, id))
        {
            if device.may_log(self.turn.now()) {
                warn!(device = device.facts().id, %error, "a connection cannot be watched");
            }
            return;
        }
        device.take_in(id, connection);
        if device.may_log(self.turn.now()) {
            info!(device = device.facts().id, "a front-end connected");
        }
    }
}

/// They go.
impl FrontEnds<'_> {
    /// A sidecore gave a queue back, or refused it for that reason. Gives where its ring stands, if a link had it
    /// served.
    pub(crate) fn queue_is_back(
        &mut self,
        core: usize,
        served: Box<Served>,
        problem: Option<&str>,
    ) -> Option<u32> {
        let (key, base, left) = (served.key(), served.queue().base(), served.queue().left());
        let ServedSpec { memory, gate, .. } = served.into_spec();
        let made_wait = memory.health().loss() == Some(Loss::Call);
        let device = self.devices.get_mut(key.device);
        let device = found!(self.turn.defects, device, "device of a queue that came back");
        if device.nic().is_none() {
            self.cores.give_load(core, 1);
        }
        let queue = device.queue_mut(key.queue);
        let queue = found!(self.turn.defects, queue, "queue of the number that came back");
        let back = queue.come_back(base, gate, self.mode.is_frozen());
        let back = found!(self.turn.defects, back, "sidecore that had the queue which came back");
        let Back { was, called_off, .. } = back;
        called_off.into_iter().for_each(|id| self.turn.call_off(id, NotMoved::Stopped));
        self.turn.touch(key.device);
        let Owner::Connection(id) = was.owner else { return Some(base) };
        let (queue, connection) = device.queue_of(key.queue, id);
        let queue = found!(self.turn.defects, queue, "queue of the number that came back");
        if let Some(problem) = problem {
            queue.is_refused(problem, connection.map(|it| (id, it.session.changes())));
        } else if let Some(connection) = connection.filter(|_| left == 0) {
            // What is left is in the record, and whoever has that goes by it.
            connection.session.stopped_at(key.queue, base);
        }
        if let Some(problem) = problem
            && device.may_log(self.turn.now())
        {
            warn!(device = device.facts().id, queue = key.queue, "not served: {problem}");
        }
        if made_wait {
            // Whoever was gone before the sidecore could say so is not spared for that.
            self.shut_out(key.device, id);
        }
        // The next one may be there already, and is not to wait for ever because of the one before.
        self.is_back_for(key.device, id);
        None
    }

    /// Goes on with what waited for a queue of front-end `id`, which may have gone: the one that came after it.
    fn is_back_for(&mut self, number: u32, id: u32) {
        let device = self.devices.get(number);
        let device = found!(self.turn.defects, device, "device of a queue that came back");
        let is_there = device.connection(id).is_some();
        match device.runner().filter(|_| !is_there) {
            Some(runner) => self.come_back(number, runner),
            None => self.come_back(number, id),
        }
    }

    /// Nobody may be connected: when the queues are back the front-end goes, and finds no socket. It
    /// comes again each second then, and its guest sees no carrier.
    pub(crate) fn keep_off(&mut self, number: u32) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device to keep off");
        if device.detach_all(self.turn, self.cores) {
            return;
        }
        device.turn_off(self.poll);
        for connection in device.connections().keys().copied().collect::<Vec<_>>() {
            self.close(number, connection, "its connection is down");
        }
    }

    /// Ends the front-ends of a device that are silent for too long, and those that wait for too
    /// long for a disk that does not answer.
    pub(crate) fn close_overdue(&mut self, number: u32, now: Instant) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device whose front-ends are overdue");
        device.say_unsaid(now);
        // Control may have waited for an image since it last read: whoever spoke meanwhile was not silent.
        let overdue = |(id, connection): (&u32, &Connection)| {
            let why = connection.overdue(now)?;
            (!connection.has_spoken()).then_some((*id, why))
        };
        let overdue: Vec<(u32, &str)> = device.connections().iter().filter_map(overdue).collect();
        let mode = self.mode;
        let gives_up = |id: &u32| device.gives_up_at(*id, mode).is_some_and(|at| at <= now);
        let given_up: Vec<u32> = device.connections().keys().copied().filter(gives_up).collect();
        for (id, why) in overdue {
            self.close(number, id, why);
        }
        for id in given_up {
            self.give_up(number, id);
        }
    }

    /// The disk does not answer: the connection ends without the reply that would say it did. The
    /// queue stays with its sidecore until the kernel lets go, and nothing of it is shown any more.
    fn give_up(&mut self, number: u32, id: u32) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device whose front-end is given up");
        let (time_s, what) = (device.facts().drain_timeout_s, device.awaited(id, self.turn.now()));
        let connection = device.connection(id);
        let why = format!("{time_s} s waited for {what}");
        connection.into_iter().for_each(|connection| connection.front_end.abandon());
        warn!(device = device.facts().id, "{why}; its front-end's connection is closed");
        self.close(number, id, &why);
    }

    /// A queue takes nothing more, for that reason.
    pub(crate) fn queue_failed(&mut self, key: QueueKey, violation: &str) {
        // The sidecore that had it then may be heard after the one that it has moved to, and has gone home from.
        let Some(device) = self.devices.get_mut(key.device) else { return late("device") };
        let queue = device.queue(key.queue);
        let queue = found!(self.turn.defects, queue, "queue of the number that is stopped");
        let id = match queue.place().map(|place| place.owner) {
            Some(Owner::Connection(id)) => id,
            // Its ring is this daemon's own, and a link is its driver.
            Some(Owner::Link) => return self.turn.defects.note("sound ring of a link"),
            None => return late("service"),
        };
        // A front-end that has gone leaves no problem behind: the next one starts the queue anew.
        let (Some(queue), Some(connection)) = device.queue_of(key.queue, id) else {
            return late("front-end");
        };
        queue.stop(violation);
        let made_wait = connection.front_end.loss() == Some(Loss::Call);
        let err = connection.session.failed(key.queue).map(Lent::try_clone);
        // Without a descriptor left, only the counters and the log tell.
        if let Some(Ok(err)) = err {
            device.closer().signal(err);
        }
        if device.may_log(self.turn.now()) {
            warn!(device = device.facts().id, queue = key.queue, "it is stopped: {violation}");
        }
        if made_wait {
            self.shut_out(key.device, id);
        }
    }

    /// A front-end made a sidecore wait, which serves others too: it may do so once in a while.
    pub(crate) fn shut_out(&mut self, number: u32, connection: u32) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device whose front-end is shut out");
        let until = self.turn.now() + SHUT_OUT_TIME;
        device.shut_out(until);
        device.say_problem(format!(
            "its front-end made a call descriptor block, which holds up others; no front-end is \
             taken for {} s",
            SHUT_OUT_TIME.as_secs()
        ));
        self.close(number, connection, "its call descriptor was made to block");
    }

    /// Forgets a front-end. Its queues are asked for; until they are back, no other front-end's
    /// start.
    pub(crate) fn close(&mut self, number: u32, id: u32, why: &str) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device whose front-end goes");
        // Its rings were stopped one by one before.
        let is_over = device.runner() == Some(id) && !device.is_going() && !device.is_started(None);
        let Some(connection) = device.forget(id) else { return };
        // It may wait long for its last close, and would be heard all the while.
        self.poll.remove(connection.frames.socket());
        drop(connection);
        if device.may_log(self.turn.now()) {
            info!(device = device.facts().id, "a front-end is gone: {why}");
        }
        for queue in device.attached_in(id, Scope::All) {
            device.detach(queue, self.turn, self.cores);
        }
        if is_over && let Some(disk) = device.disk_mut() {
            disk.forget_parted(self.bonds);
        }
        device.plan_connect(self.turn.now());
        self.turn.touch(number);
    }
}

#[cfg(test)]
mod tests;
