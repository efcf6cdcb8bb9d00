//! From readable sockets to applied messages.
//!
//! A message that needs queues back is held until they are; nothing else waits for it. Not here: what it means
//! (`vhost_user`), and what it waits for as a life (`control::connection`).

use control::connection::Cause;
use tracing::warn;
use vhost_user::{Frame, Refused, Reject, Scope};

use super::FrontEnds;
use crate::defects::{found, late};
use crate::devices::connection::{Applied, Connection, Held};
use crate::devices::device::Device;
use crate::devices::frame_socket::Incoming;
use crate::devices::front_end::FrontEndError;
use crate::devices::lent::{Lent, MESSAGE_DESCRIPTORS};
use crate::devices::queue::{Owner, Queue};
use crate::network::announce::announce;
use crate::poll::Token;

/// Messages of one front-end in one turn of the loop.
const MESSAGES_PER_TURN: usize = 32;
const SLOW_TO_CLOSE: &str = "it sent more descriptors that take long to close than are kept";

impl FrontEnds<'_> {
    /// Reads what a front-end sent and does it, up to a bound; the rest comes in the next turn.
    pub(crate) fn serve(&mut self, number: u32, id: u32, gone: bool) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(device) = self.devices.get_mut(number) else { return late("device") };
            if device.closer().is_full() {
                return self.close(number, id, SLOW_TO_CLOSE);
            }
            // Before, or by its last message.
            let Some(connection) = device.connection_mut(id) else {
                return late("front-end");
            };
            if let Err(error) = connection.frames.flush() {
                return self.close(number, id, &error.to_string());
            }
            if !connection.is_read() {
                if gone {
                    self.close(number, id, "it closed the connection");
                }
                break;
            }
            let came = connection.frames.receive();
            let of_frame = match &came {
                Ok(Incoming::Frame(frame)) => frame.fds.len(),
                _ => connection.frames.descriptors(),
            };
            connection.claim_for_message(None);
            let kept = connection.front_end.kept.regions();
            if of_frame > 0
                && self.devices.get(number).is_some_and(|d| d.is_short_while_closing(self.bounds))
            {
                return self.close(number, id, SLOW_TO_CLOSE);
            }
            if of_frame > MESSAGE_DESCRIPTORS as usize {
                let Some(extra) = self.bounds.claim_message(of_frame, kept) else {
                    let why = "a message of it brings more descriptors than are left for all";
                    return self.close(number, id, why);
                };
                let connection = self.connection(number, id);
                found!(self.turn.defects, connection, "front-end that speaks")
                    .claim_for_message(Some(extra));
            }
            match came {
                Ok(Incoming::Frame(frame)) => self.take_frame(number, id, frame),
                Ok(Incoming::Nothing) => break,
                Ok(Incoming::End) => {
                    return self.close(number, id, "it closed the connection");
                }
                Err(error) => return self.close(number, id, &error.to_string()),
            }
        }
        self.watch(number, id);
    }

    /// Waits for more of a connection: not while it is held, and for room when replies wait.
    pub(crate) fn watch(&mut self, number: u32, id: u32) {
        let connection = self.devices.get_mut(number).and_then(|device| device.connection_mut(id));
        // By what was last done of it.
        let Some(connection) = connection else { return late("front-end") };
        let (read, write) = (connection.is_read(), connection.frames.is_backed_up());
        self.poll.want(connection.frames.socket(), Token::Connection(number, id), read, write);
        connection.note_rest(self.turn.now());
    }

    fn take_frame(&mut self, number: u32, id: u32, frame: Frame<Lent>) {
        let now = self.turn.now();
        let connection =
            found!(self.turn.defects, self.connection(number, id), "front-end that speaks");
        let message = match connection.session.parse(&frame) {
            Ok(message) => message,
            Err(reject) => return self.reject(number, id, reject.into()),
        };
        let scope = connection.session.scope(&message);
        let held = Held { message, fds: frame.fds, need_reply: frame.need_reply };
        if !connection.hear(held, now) {
            return self.turn.defects.note("front-end whose last message is done");
        }
        self.release(number, id, scope);
    }

    /// Asks for the queues of `scope`, or applies the held message when none is away.
    fn release(&mut self, number: u32, id: u32, scope: Scope) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device whose front-end waits for queues");
        let attached = device.attached_in(id, scope);
        let left = device.left_to(id, scope);
        let starts = device.starts_first(id).is_some();
        let unserved = device.stops_unserved(id);
        let lost = device.asks_for_lost(id);
        let is_unsettled = device.is_unsettled(id, scope);
        let connection = device.connection_mut(id);
        let connection = found!(self.turn.defects, connection, "front-end that waits");
        if !attached.is_empty() || !left.is_empty() {
            // Those that were left have been asked for.
            connection.wait(Cause::Queues);
            let is_finish = connection.held().is_some_and(|held| held.stops().is_some());
            for queue in attached {
                match is_finish {
                    true => device.finish(queue, self.turn, self.cores),
                    false => device.detach(queue, self.turn, self.cores),
                }
            }
        } else if is_unsettled {
            connection.wait(Cause::Image);
            self.turn.touch(number);
        } else if starts {
            connection.wait(Cause::Start);
            // `settle` starts it, and asks for it then.
            self.turn.touch(number);
        } else if let Some(index) = unserved {
            let why = format!(
                "ring {index} could not be served, and only its in-flight record says where it stands"
            );
            self.close(number, id, &why);
        } else if let Some(index) = lost {
            // Whoever was told where it stood once would go on from there.
            let why = format!("nobody knows where ring {index} stands, and it asks for that");
            self.close(number, id, &why);
        } else if device.parts_first(id, self.mode, self.turn.now(), self.poll) {
            let connection = self.connection(number, id);
            connection.into_iter().for_each(|it| it.wait(Cause::Parting));
        } else {
            self.apply_held(number, id);
        }
    }

    /// After a queue came back: goes on with what waited for it.
    pub(crate) fn come_back(&mut self, number: u32, id: u32) {
        if self.mode.is_frozen() {
            // What is held is for whoever has the queue next.
            return;
        }
        let Some(connection) = self.connection(number, id) else { return late("front-end") };
        if let Some(held) = connection.held() {
            let scope = connection.session.scope(&held.message);
            self.release(number, id, scope);
            self.watch(number, id);
        }
    }

    /// Goes on with every message of a device that waits for nothing any more, however that came about.
    pub(crate) fn release_ready(&mut self, number: u32) {
        let device = self.devices.get(number);
        let device = found!(self.turn.defects, device, "device whose front-ends may wait");
        for id in device.waits_no_more(self.turn.now()) {
            self.come_back(number, id);
        }
    }

    /// Goes on with every message that was held while nothing was to change.
    pub(crate) fn release_all(&mut self) {
        let held = |device: &Device| {
            let held =
                device.connections().iter().filter(|(_, connection)| connection.held().is_some());
            held.map(|(id, _)| (device.number(), *id)).collect::<Vec<_>>()
        };
        let held: Vec<(u32, u32)> = self.devices.values().flat_map(held).collect();
        held.into_iter().for_each(|(number, id)| self.come_back(number, id));
    }

    fn apply_held(&mut self, number: u32, id: u32) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device whose front-end spoke");
        let may_run = device.runner().is_none_or(|runner| runner == id);
        let connection =
            found!(self.turn.defects, device.connection_mut(id), "front-end that spoke");
        let applied = connection.apply(may_run);
        let applied = found!(self.turn.defects, applied, "message to apply");
        let Applied { call, announced, reply } = applied;
        if may_run && connection.session.has_memory() {
            device.run_by(id);
        }
        self.turn.touch(number);
        if let Some(mac) = announced {
            announce(device, mac, self.turn, self.cores);
        }
        match reply {
            Ok(reply) => {
                if let Some(queue) = call {
                    self.pass_call_on(number, id, queue);
                }
                let connection = self.connection(number, id);
                let sent =
                    reply.zip(connection).map(|(reply, connection)| connection.frames.send(reply));
                if let Some(Err(error)) = sent {
                    self.close(number, id, &error.to_string());
                }
            }
            Err(reject) => self.reject(number, id, reject),
        }
    }

    /// A running queue is given its new call descriptor.
    fn pass_call_on(&mut self, number: u32, id: u32, queue: u16) {
        let device = self.devices.get_mut(number);
        let device = found!(self.turn.defects, device, "device with a new call descriptor");
        let ring = device.queue(queue).filter(|it| it.leaving_since().is_none());
        let owner = ring.and_then(Queue::place).map(|place| place.owner);
        if owner != Some(Owner::Connection(id)) {
            return;
        }
        let facts = device.connection(id).and_then(|connection| connection.session.ready(queue));
        let call = facts.and_then(|facts| facts.call).map(Lent::try_clone).transpose();
        match call {
            Ok(call) => {
                let command = sidecore::Command::SetCall(device.key(queue), call);
                device.tell(queue, command, self.turn, self.cores);
            }
            // Without it the guest would never be called again; a new connection starts afresh.
            Err(error) => self.close(number, id, &format!("no descriptor is left: {error}")),
        }
    }

    fn reject(&mut self, number: u32, id: u32, reject: Reject<Refused<FrontEndError>>) {
        let device = self.devices.get_mut(number);
        let device =
            found!(self.turn.defects, device, "device whose front-end is refused a message");
        let reason = reject.reason.to_string();
        if device.may_log(self.turn.now()) {
            warn!(device = device.facts().id, "refused a message of its front-end: {reason}");
        }
        device.say_problem(format!("a message of its front-end was refused: {reason}"));
        let Some(bytes) = reject.nak else {
            return self.close(number, id, &reason);
        };
        let reply = vhost_user::Reply { bytes, fd: None };
        let sent = self.connection(number, id).map(|connection| connection.frames.send(reply));
        if let Some(Err(error)) = sent {
            self.close(number, id, &error.to_string());
        }
    }

    fn connection(&mut self, number: u32, id: u32) -> Option<&mut Connection> {
        self.devices.get_mut(number)?.connection_mut(id)
    }
}
