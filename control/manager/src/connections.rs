//! Front-ends come, speak and go: from readable sockets to applied messages.
//!
//! A message that needs queues back is held until they are; nothing else waits for it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use control::connection::Cause;
use sidecore::nanos_of;
use tracing::{info, warn};
use vhost_user::{Frame, Refused, Reject, Scope};

use crate::bounds::MESSAGE_DESCRIPTORS;
use crate::defects::{found, late};
use crate::device::{CONNECTIONS_MAX, Connection, Device, Held};
use crate::frame_socket::Incoming;
use crate::front_end::FrontEndError;
use crate::lent::Lent;
use crate::manager::Manager;
use crate::poll::Token;
use crate::queue::{Owner, Queue};
use crate::sockets;
use crate::views;

/// Messages of one front-end in one turn of the loop.
const MESSAGES_PER_TURN: usize = 32;
/// Between two attempts to accept when descriptors ran out: most likely some are being closed.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(100);
/// How long nobody is accepted while connections before wait to be closed, and no descriptor is free.
const CLOSING_INTERVAL: Duration = Duration::from_millis(10);
const SLOW_TO_CLOSE: &str = "it sent more descriptors that take long to close than are kept";

impl Manager {
    /// Takes the connections that wait at a device's socket.
    pub(crate) fn accept(&mut self, number: u32) {
        for _ in 0..CONNECTIONS_MAX {
            let Some(device) = self.rooms.devices.get_mut(number) else { return late("device") };
            let Some(listener) = device.listener() else { return late("socket") };
            // Each one that gives way to the next holds a descriptor until it is closed.
            if device.closer.is_full() || device.is_short_while_closing(&self.rooms.bounds) {
                let until = self.rooms.turn.now() + CLOSING_INTERVAL;
                return device.pause(&self.rooms.poll, until);
            }
            match sockets::accept(listener) {
                Ok(Some(socket)) => self.add_connection(number, socket),
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
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device that accepts");
        if self.rooms.reserve.take().is_none() {
            return false;
        }
        let accepted = device.listener().map(sockets::accept);
        self.rooms.reserve = sockets::reserve();
        let Some(Ok(Some(socket))) = accepted else { return false };
        device.closer.close(socket);
        device.problem = Some(format!("a connection was refused: {error}; raise LimitNOFILE"));
        if device.may_log(self.rooms.turn.now()) {
            warn!(device = device.facts.id, %error, "refused a connection; raise LimitNOFILE");
        }
        self.rooms.reserve = self.rooms.reserve.take().or_else(sockets::reserve);
        true
    }

    /// No descriptor is left, most likely: the listener would only say so again and again, so it is
    /// left alone for a while.
    fn stop_accepting(&mut self, number: u32, error: &std::io::Error) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device that could not accept");
        self.rooms.reserve = self.rooms.reserve.take().or_else(sockets::reserve);
        if device.may_log(self.rooms.turn.now()) {
            warn!(device = device.facts.id, %error, "a connection could not be accepted");
        }
        device.problem = Some(format!("a connection could not be accepted: {error}"));
        device.pause(&self.rooms.poll, self.rooms.turn.now() + ACCEPT_INTERVAL);
    }

    /// Nobody may be connected: when the queues are back the front-end goes, and finds no socket. It
    /// comes again each second then, and its guest sees no carrier.
    pub(crate) fn keep_off(&mut self, number: u32) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device to keep off");
        if device.detach_all(&mut self.rooms.turn, &mut self.rooms.cores) {
            return;
        }
        device.turn_off();
        for connection in device.connections.keys().copied().collect::<Vec<_>>() {
            self.close_connection(number, connection, "its connection is down");
        }
    }

    /// Ends the front-ends of a device that are silent for too long, and those that wait for too
    /// long for a disk that does not answer.
    pub(crate) fn close_overdue(&mut self, number: u32, now: Instant) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose front-ends are overdue");
        if let Some(unsaid) = device.log.take_unsaid(now) {
            warn!(device = device.facts.id, "{unsaid} more lines about it were not written");
        }
        let overdue = |(id, connection): (&u32, &Connection)| Some((*id, connection.overdue(now)?));
        let overdue: Vec<(u32, &str)> = device.connections.iter().filter_map(overdue).collect();
        let gives_up = |id: &u32| device.gives_up_at(*id).is_some_and(|at| at <= now);
        let given_up: Vec<u32> = device.connections.keys().copied().filter(gives_up).collect();
        for (id, why) in overdue {
            self.close_connection(number, id, why);
        }
        for id in given_up {
            self.give_up(number, id);
        }
    }

    /// The disk does not answer: the connection ends without the reply that would say it did. The
    /// queue stays with its sidecore until the kernel lets go, and nothing of it is shown any more.
    fn give_up(&mut self, number: u32, id: u32) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose front-end is given up");
        let requests = device.unanswered_requests();
        let time_s = device.facts.drain_timeout_s;
        let connection = device.connections.get(&id);
        let what = match connection.and_then(|it| it.life.waits()).map(|(_, cause)| cause) {
            Some(Cause::Start) => "a ring to start that is to stop".to_string(),
            Some(Cause::Parting) => "the disk to make stable what was written".to_string(),
            Some(Cause::Queues) | None => views::unanswered(requests),
        };
        let why = format!("{time_s} s waited for {what}");
        connection.into_iter().for_each(|connection| connection.front_end.abandon());
        warn!(device = device.facts.id, "{why}; its front-end's connection is closed");
        self.close_connection(number, id, &why);
    }

    /// Takes a connection in, unless the device has too many.
    pub(crate) fn add_connection(&mut self, number: u32, socket: OwnedFd) {
        // Nobody else would know of it.
        self.settle_for_good();
        let id = self.rooms.devices.number_connection();
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device that was connected to");
        if device.kind.is_off() {
            return device.closer.close(socket);
        }
        let now = self.rooms.turn.now();
        if let Some(until) = device.shut_until(now) {
            device.closer.close(socket);
            let left_s = until.duration_since(now).as_secs() + 1;
            if device.may_log(self.rooms.turn.now()) {
                warn!(
                    device = device.facts.id,
                    left_s, "refused a connection: one has made a call wait"
                );
            }
            return;
        }
        // The part of one connection that its device was promised.
        let first = device.connections.values().all(|connection| connection.extra.is_some());
        let mut extra =
            if first { None } else { self.rooms.bounds.claim_connection(device.facts.rings) };
        if device.connections.len() >= CONNECTIONS_MAX || (!first && extra.is_none()) {
            // Whoever connected and fell silent must not keep the VMM out.
            let silent =
                device.connections.iter().filter(|(_, connection)| connection.gives_way(now));
            let Some(silent) =
                silent.min_by_key(|(_, connection)| connection.life.heard_at()).map(|(id, _)| *id)
            else {
                device.closer.close(socket);
                if device.may_log(self.rooms.turn.now()) {
                    let id = &device.facts.id;
                    let there = device.connections.len();
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
                device.connections.get_mut(&silent).and_then(|connection| connection.extra.take());
            extra = extra.or(freed);
            self.close_connection(number, silent, "another connection takes its place");
        }
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device that was connected to");
        let mut connection =
            device.new_connection(socket, (&self.rooms.addresses, &self.rooms.bounds), now);
        connection.extra = extra;
        if let Err(error) =
            self.rooms.poll.add(connection.frames.socket(), Token::Connection(number, id))
        {
            if device.may_log(self.rooms.turn.now()) {
                warn!(device = device.facts.id, %error, "a connection cannot be watched");
            }
            return;
        }
        (device.problem, device.unanswered) = (None, None);
        if device.runner.is_none() {
            device.queues.iter_mut().for_each(Queue::forget_problem);
        }
        device.connections.insert(id, connection);
        if device.may_log(self.rooms.turn.now()) {
            info!(device = device.facts.id, "a front-end connected");
        }
    }

    /// Reads what a front-end sent and does it, up to a bound; the rest comes in the next turn.
    pub(crate) fn serve_connection(&mut self, number: u32, id: u32, gone: bool) {
        // What it says is known to no other process.
        self.settle_for_good();
        for _ in 0..MESSAGES_PER_TURN {
            let Some(device) = self.rooms.devices.get_mut(number) else { return late("device") };
            if device.closer.is_full() {
                return self.close_connection(number, id, SLOW_TO_CLOSE);
            }
            // Before, or by its last message.
            let Some(connection) = device.connections.get_mut(&id) else {
                return late("front-end");
            };
            if let Err(error) = connection.frames.flush() {
                return self.close_connection(number, id, &error.to_string());
            }
            if !connection.life.is_read() {
                if gone {
                    self.close_connection(number, id, "it closed the connection");
                }
                break;
            }
            let came = connection.frames.receive();
            let of_frame = match &came {
                Ok(Incoming::Frame(frame)) => frame.fds.len(),
                _ => connection.frames.descriptors(),
            };
            connection.extra_of_message = None;
            let kept = connection.front_end.kept.regions();
            if of_frame > 0
                && self
                    .rooms
                    .devices
                    .get(number)
                    .is_some_and(|d| d.is_short_while_closing(&self.rooms.bounds))
            {
                return self.close_connection(number, id, SLOW_TO_CLOSE);
            }
            if of_frame > MESSAGE_DESCRIPTORS as usize {
                let Some(extra) = self.rooms.bounds.claim_message(of_frame, kept) else {
                    let why = "a message of it brings more descriptors than are left for all";
                    return self.close_connection(number, id, why);
                };
                let connection = self.connection(number, id);
                found!(self.rooms.turn.defects, connection, "front-end that speaks")
                    .extra_of_message = Some(extra);
            }
            match came {
                Ok(Incoming::Frame(frame)) => self.take_frame(number, id, frame),
                Ok(Incoming::Nothing) => break,
                Ok(Incoming::End) => {
                    return self.close_connection(number, id, "it closed the connection");
                }
                Err(error) => return self.close_connection(number, id, &error.to_string()),
            }
        }
        self.watch_connection(number, id);
    }

    /// Waits for more of a connection: not while it is held, and for room when replies wait.
    pub(crate) fn watch_connection(&mut self, number: u32, id: u32) {
        let connection =
            self.rooms.devices.get_mut(number).and_then(|device| device.connections.get_mut(&id));
        // By what was last done of it.
        let Some(connection) = connection else { return late("front-end") };
        let (read, write) = (connection.life.is_read(), connection.frames.is_backed_up());
        self.rooms.poll.want(
            connection.frames.socket(),
            Token::Connection(number, id),
            read,
            write,
        );
        let is_within = connection.frames.is_within();
        connection.life.note_rest(is_within, nanos_of(self.rooms.turn.now()));
    }

    fn take_frame(&mut self, number: u32, id: u32, frame: Frame<Lent>) {
        let now = self.rooms.turn.now();
        let connection =
            found!(self.rooms.turn.defects, self.connection(number, id), "front-end that speaks");
        let message = match connection.session.parse(&frame) {
            Ok(message) => message,
            Err(reject) => return self.reject(number, id, reject.into()),
        };
        let scope = connection.session.scope(&message);
        let held = Held { message, fds: frame.fds, need_reply: frame.need_reply };
        if !connection.life.hear(held, nanos_of(now)) {
            return self.rooms.turn.defects.note("front-end whose last message is done");
        }
        self.release(number, id, scope);
    }

    /// Asks for the queues of `scope`, or applies the held message when none is away.
    fn release(&mut self, number: u32, id: u32, scope: Scope) {
        let device = self.rooms.devices.get_mut(number);
        let device =
            found!(self.rooms.turn.defects, device, "device whose front-end waits for queues");
        let attached = device.attached_in(id, scope);
        let starts = device.starts_first(id).is_some();
        let unserved = device.stops_unserved(id);
        let connection = device.connections.get_mut(&id);
        let connection = found!(self.rooms.turn.defects, connection, "front-end that waits");
        if !attached.is_empty() {
            connection.life.wait(Cause::Queues);
            let is_finish = connection.life.held().is_some_and(|held| held.stops().is_some());
            for queue in attached {
                match is_finish {
                    true => device.finish(queue, &mut self.rooms.turn, &mut self.rooms.cores),
                    false => device.detach(queue, &mut self.rooms.turn, &mut self.rooms.cores),
                }
            }
        } else if starts {
            connection.life.wait(Cause::Start);
            // `settle` starts it, and asks for it then.
            self.rooms.turn.touch(number);
        } else if let Some(index) = unserved {
            let why = format!(
                "ring {index} could not be served, and only its in-flight record says where it stands"
            );
            self.close_connection(number, id, &why);
        } else if self.parts_first(number, id) {
            let connection = self.connection(number, id);
            connection.into_iter().for_each(|it| it.life.wait(Cause::Parting));
        } else {
            self.apply_held(number, id);
        }
    }

    /// After a queue came back: goes on with what waited for it.
    pub(crate) fn queue_came_back(&mut self, number: u32, id: u32) {
        if self.mode().is_frozen() {
            // What is held is for whoever has the queue next.
            return;
        }
        let Some(connection) = self.connection(number, id) else { return late("front-end") };
        if let Some(held) = connection.life.held() {
            let scope = connection.session.scope(&held.message);
            self.release(number, id, scope);
            self.watch_connection(number, id);
        }
    }

    /// A ring that had to start before it may stop, or cannot: goes on with the message that stops it.
    pub(crate) fn stop_started(&mut self, number: u32) {
        let device = self.rooms.devices.get(number);
        let device =
            found!(self.rooms.turn.defects, device, "device with a ring that was to start first");
        let Some(id) = device.runner.filter(|id| device.starts_first(*id).is_none()) else {
            return;
        };
        let held = device.connections.get(&id).and_then(|connection| connection.life.held());
        if held.is_some_and(|held| held.stops().is_some()) {
            self.queue_came_back(number, id);
        }
    }

    /// Goes on with every message that was held while nothing was to change.
    pub(crate) fn release_held_connections(&mut self) {
        let held = |device: &Device| {
            let held = device
                .connections
                .iter()
                .filter(|(_, connection)| connection.life.held().is_some());
            held.map(|(id, _)| (device.number, *id)).collect::<Vec<_>>()
        };
        let held: Vec<(u32, u32)> = self.rooms.devices.values().flat_map(held).collect();
        held.into_iter().for_each(|(number, id)| self.queue_came_back(number, id));
    }

    fn apply_held(&mut self, number: u32, id: u32) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose front-end spoke");
        let may_run = device.runner.is_none_or(|runner| runner == id);
        let connection = found!(
            self.rooms.turn.defects,
            device.connections.get_mut(&id),
            "front-end that spoke"
        );
        let held = found!(self.rooms.turn.defects, connection.life.take(), "message to apply");
        let Held { message, fds, need_reply } = held;
        connection.front_end.may_run = may_run;
        let call = match &message {
            vhost_user::Message::SetVringCall(ring) => Some(ring.queue),
            _ => None,
        };
        let applied = connection.session.apply(message, fds, need_reply, &mut connection.front_end);
        connection.life.applied(connection.session.has_owner());
        let announced = connection.front_end.announced.take();
        if may_run && connection.session.has_memory() {
            device.runner = Some(id);
        }
        self.rooms.turn.touch(number);
        if let Some(mac) = announced {
            self.announce(number, mac);
        }
        match applied {
            Ok(reply) => {
                if let Some(queue) = call.and_then(|queue| u16::try_from(queue).ok()) {
                    self.pass_call_on(number, id, queue);
                }
                let connection = self.connection(number, id);
                let sent =
                    reply.zip(connection).map(|(reply, connection)| connection.frames.send(reply));
                if let Some(Err(error)) = sent {
                    self.close_connection(number, id, &error.to_string());
                }
            }
            Err(reject) => self.reject(number, id, reject),
        }
    }

    /// A running queue is given its new call descriptor.
    fn pass_call_on(&mut self, number: u32, id: u32, queue: u16) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device with a new call descriptor");
        let ring = device.queues.get(usize::from(queue)).filter(|it| it.leaving_since().is_none());
        let owner = ring.and_then(Queue::place).map(|place| place.owner);
        if owner != Some(Owner::Connection(id)) {
            return;
        }
        let facts =
            device.connections.get(&id).and_then(|connection| connection.session.ready(queue));
        let call = facts.and_then(|facts| facts.call).map(Lent::try_clone).transpose();
        match call {
            Ok(call) => {
                let command = sidecore::Command::SetCall(device.key(queue), call);
                device.tell(queue, command, &mut self.rooms.turn, &mut self.rooms.cores);
            }
            // Without it the guest would never be called again; a new connection starts afresh.
            Err(error) => {
                self.close_connection(number, id, &format!("no descriptor is left: {error}"))
            }
        }
    }

    fn reject(&mut self, number: u32, id: u32, reject: Reject<Refused<FrontEndError>>) {
        let device = self.rooms.devices.get_mut(number);
        let device =
            found!(self.rooms.turn.defects, device, "device whose front-end is refused a message");
        let reason = reject.reason.to_string();
        if device.may_log(self.rooms.turn.now()) {
            warn!(device = device.facts.id, "refused a message of its front-end: {reason}");
        }
        device.problem = Some(format!("a message of its front-end was refused: {reason}"));
        let Some(bytes) = reject.nak else {
            return self.close_connection(number, id, &reason);
        };
        let reply = vhost_user::Reply { bytes, fd: None };
        let sent = self.connection(number, id).map(|connection| connection.frames.send(reply));
        if let Some(Err(error)) = sent {
            self.close_connection(number, id, &error.to_string());
        }
    }

    /// Forgets a front-end. Its queues are asked for; until they are back, no other front-end's
    /// start.
    pub(crate) fn close_connection(&mut self, number: u32, id: u32, why: &str) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose front-end goes");
        // Its rings were stopped one by one before.
        let is_over = device.runner == Some(id) && !device.is_going() && !device.is_started(None);
        if device.connections.remove(&id).is_none() {
            return;
        }
        if device.may_log(self.rooms.turn.now()) {
            info!(device = device.facts.id, "a front-end is gone: {why}");
        }
        if device.runner == Some(id) {
            device.runner = None;
            device.kind.reset();
            device.queues.iter_mut().for_each(Queue::forget_violation);
        }
        for queue in device.attached_in(id, Scope::All) {
            device.detach(queue, &mut self.rooms.turn, &mut self.rooms.cores);
        }
        if is_over {
            self.forget_parted(number);
        }
        self.plan_connect(number);
        self.rooms.turn.touch(number);
    }

    fn connection(&mut self, number: u32, id: u32) -> Option<&mut Connection> {
        self.rooms.devices.get_mut(number)?.connections.get_mut(&id)
    }
}
