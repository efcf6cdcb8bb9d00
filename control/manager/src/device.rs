//! One device as control sees it, disk or NIC: its socket, its front-ends, its queues.
//!
//! Holds state and answers questions about it; who acts on the answers is `manager`. Not here: what
//! only a disk has (`disk`), or only a NIC (`nic`).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use config::spec::Mode;
use guest_memory::Seal;
use sidecore::{Command, QueueKey};
use vhost_user::{Message, Scope, Session};

use crate::address_space::AddressSpace;
use crate::bonds::vmm::Vmm;
use crate::bounds::{Bounds, Claim};
use crate::cores::Cores;
use crate::defects::{Defects, found};
use crate::disk::{Admission, DiskParts};
use crate::frame_socket::FrameSocket;
use crate::front_end::FrontEnd;
use crate::guests::follow::Follow;
use crate::idle_peers::Beginning;
use crate::kind::{Facts, Kind};
use crate::lent::{Closer, Lent};
use crate::log_rate::LogRate;
use crate::queue::{Asked, Left, Owner, Queue};
use crate::service::{Flow, Metered};
use crate::sockets;
use crate::start::{self, RingError};
use crate::turn::Turn;
use crate::whereabouts::Whereabouts;

/// Front-ends of one device at a time: one that runs it, others that only ask.
pub(crate) const CONNECTIONS_MAX: usize = 4;
/// How long a front-end may be silent before it has said that it is one (`SET_OWNER`), and before it
/// gives way to another when it has brought no memory. A QEMU whose guest stands in its firmware's
/// menu is silent for as long, so it is not ended for that alone.
pub(crate) const SILENCE_TIME_MAX: Duration = Duration::from_secs(10);

/// A message that waits until queues are back.
pub(crate) struct Held {
    /// When it came.
    pub(crate) since: Instant,
    pub(crate) message: Message,
    pub(crate) fds: Vec<Lent>,
    pub(crate) need_reply: bool,
}

impl Held {
    /// The ring that it stops, and where that stands is asked for, now or by the next message: QEMU and Cloud
    /// Hypervisor disable a ring before they ask.
    pub(crate) fn stops(&self) -> Option<u16> {
        match &self.message {
            Message::GetVringBase(state) => u16::try_from(state.queue).ok(),
            Message::SetVringEnable(state) if state.value == 0 => u16::try_from(state.queue).ok(),
            _ => None,
        }
    }
}

/// One front-end.
pub(crate) struct Connection {
    pub(crate) frames: FrameSocket,
    pub(crate) session: Session<Lent>,
    pub(crate) front_end: FrontEnd,
    pub(crate) held: Option<Held>,
    /// When it connected or spoke last.
    pub(crate) heard_at: Instant,
    /// When a message that has begun must have ended.
    pub(crate) stalls_at: Option<Instant>,
    /// What it has of the daemon beside its device's promise: it is not the first.
    pub(crate) extra: Option<Claim>,
    /// The same for a message with many descriptors.
    pub(crate) extra_of_message: Option<Claim>,
    /// What it lacks before its first request.
    pub(crate) beginning: Beginning,
}

pub(crate) struct Device {
    pub(crate) number: u32,
    /// What its plan says, whatever it is.
    pub(crate) facts: Facts,
    pub(crate) kind: Kind,
    /// What it is promised of the daemon; given back when it goes.
    pub(crate) promise: Option<Claim>,
    /// What its queues are counted on.
    pub(crate) metered: Metered,
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) connections: BTreeMap<u32, Connection>,
    /// The connection that brought memory: its queues run.
    pub(crate) runner: Option<u32>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) problem: Option<String>,
    /// Why its socket is opened by others than its plan names.
    pub(crate) ungiven: Option<String>,
    /// Why no front-end could be connected to (mode `connect`): it may not have started yet.
    pub(crate) unanswered: Option<String>,
    /// When to connect again (mode `connect`) or to accept again (mode `listen`).
    pub(crate) retry_at: Option<Instant>,
    /// Not to be connected before: a front-end that hangs up is not called in a loop.
    pub(crate) connect_after: Option<Instant>,
    /// A link serves it to other machines: it has no socket here.
    pub(crate) is_exported: bool,
    /// It goes when its queues are back.
    pub(crate) removing: bool,
    /// Queues are wanted back so that they start anew with other settings.
    pub(crate) restarting: bool,
    /// No front-end is taken before: one of them made a sidecore wait.
    pub(crate) closed_until: Option<Instant>,
    pub(crate) log: LogRate,
    pub(crate) closer: Closer,
    /// On which node its guest's memory is.
    pub(crate) whereabouts: Whereabouts,
    /// What is known of its guest's vCPUs.
    pub(crate) follow: Box<Follow>,
}

impl Connection {
    /// When it is ended if nothing happens: in the middle of a message, or before it said anything.
    fn due_at(&self) -> Option<Instant> {
        let silent = (!self.session.has_owner()).then(|| self.heard_at + SILENCE_TIME_MAX);
        self.stalls_at.into_iter().chain(silent).min()
    }

    /// Why it is ended now.
    pub(crate) fn overdue(&self, now: Instant) -> Option<&'static str> {
        self.due_at().filter(|at| *at <= now)?;
        Some(match self.stalls_at {
            Some(at) if at <= now => "it fell silent in the middle of a message",
            _ => "it said nothing of a front-end for 10 s",
        })
    }

    /// Whether it may be ended for another that wants its place.
    pub(crate) fn gives_way(&self, now: Instant) -> bool {
        let is_silent = self.heard_at + SILENCE_TIME_MAX <= now || !self.session.has_owner();
        is_silent && !self.session.has_memory()
    }
}

impl Device {
    /// A device without a socket, of what was opened for it.
    pub(crate) fn new(number: u32, facts: Facts, kind: Kind) -> Device {
        let queues = (0..facts.rings).map(|_| Queue::new()).collect();
        Device {
            number,
            facts,
            kind,
            promise: None,
            metered: Metered::default(),
            listener: None,
            connections: BTreeMap::new(),
            runner: None,
            queues,
            problem: None,
            ungiven: None,
            unanswered: None,
            retry_at: None,
            connect_after: None,
            is_exported: false,
            removing: false,
            restarting: false,
            closed_until: None,
            log: LogRate::default(),
            closer: Closer::default(),
            whereabouts: Whereabouts::default(),
            follow: Box::default(),
        }
    }

    /// A front-end that has just connected.
    pub(crate) fn new_connection(
        &self,
        socket: OwnedFd,
        (addresses, bounds): (&AddressSpace, &Bounds),
        now: Instant,
    ) -> Connection {
        let seal = if self.facts.allow_unsealed_memory { Seal::Any } else { Seal::Required };
        let personality = self.kind.personality();
        Connection {
            frames: FrameSocket::new(socket, &self.closer),
            session: Session::new(personality.facts(self.facts.rings)),
            front_end: FrontEnd::new(personality, seal, (addresses, bounds), &self.closer),
            held: None,
            heard_at: now,
            stalls_at: None,
            extra: None,
            extra_of_message: None,
            beginning: Beginning::new(self.counted()),
        }
    }

    /// When something is to be done without an event.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let connections = self.connections.values().filter_map(Connection::due_at);
        let connections =
            connections.chain(self.connections.keys().filter_map(|id| self.gives_up_at(*id)));
        let announced = self.kind.nic().and_then(|nic| nic.arrival.due_at());
        let others = self.retry_at.into_iter().chain(self.log.due_at()).chain(announced);
        connections.chain(others).chain(self.asks_at()).chain(self.follow.scans_at()).min()
    }

    /// When the locks of its disk are asked for again.
    pub(crate) fn asks_at(&self) -> Option<Instant> {
        self.kind.disk().filter(|_| !self.is_held_back()).and_then(DiskParts::asks_at)
    }

    /// When a message of connection `id` has waited as long as the disk's operator allows for queues that
    /// do not come back, because their disk does not answer.
    pub(crate) fn gives_up_at(&self, id: u32) -> Option<Instant> {
        let connection = self.connections.get(&id)?;
        let held = connection.held.as_ref()?;
        let scope = connection.session.scope(&held.message);
        let leaving = |index: &u16| self.queues.get(usize::from(*index))?.leaving_since();
        let parting = self.kind.disk().and_then(DiskParts::parting_since);
        let starting = self.starts_first(id).map(|_| held.since);
        let of_queues = self.attached_in(id, scope);
        let since = of_queues.iter().filter_map(leaving).chain(parting).chain(starting).min()?;
        // One wait may follow upon another.
        let since = since.min(held.since);
        Some(since + Duration::from_secs(self.facts.drain_timeout_s.into()))
    }

    /// The ring that the held message of connection `id` stops, when where it stands is hearsay: it could run and
    /// was not served yet, and an earlier process has left a record that knows better.
    pub(crate) fn stops_unserved(&self, id: u32) -> Option<u16> {
        let connection = self.connections.get(&id).filter(|_| self.runner == Some(id))?;
        let index = connection.held.as_ref()?.stops()?;
        let queue = self.queues.get(usize::from(index)).filter(|queue| !queue.is_attached());
        let facts = queue.and(connection.session.ready(index))?;
        let features = connection.session.features();
        let is_hearsay = !connection.session.was_served(index)
            && start::is_recorded(&facts, features, &connection.front_end, index);
        is_hearsay.then_some(index)
    }

    /// That ring, when it can be started: it is, and stopped afterwards.
    pub(crate) fn starts_first(&self, id: u32) -> Option<u16> {
        let index = self.stops_unserved(id)?;
        let changes = self.connections.get(&id)?.session.changes();
        let gave_up = self.queues.get(usize::from(index))?.gave_up((id, changes));
        (!gave_up).then_some(index)
    }

    /// Since when a queue has been asked for that is not back.
    pub(crate) fn leaving_since(&self) -> Option<Instant> {
        self.queues.iter().filter_map(Queue::leaving_since).min()
    }

    /// Requests that the disk has not answered, of queues that were asked for.
    pub(crate) fn unanswered_requests(&self) -> u64 {
        let leaving = |queue: &&Queue| queue.leaving_since().is_some();
        let in_flight = |queue: &Queue| queue.counters().snapshot().in_flight;
        self.queues.iter().filter(leaving).map(in_flight).sum()
    }

    /// Whether a line about it may be written; if not, it is counted.
    pub(crate) fn may_log(&mut self, now: Instant) -> bool {
        self.log.allows(now)
    }

    /// Queues of `scope` that a sidecore still has on behalf of that connection.
    pub(crate) fn attached_in(&self, connection: u32, scope: Scope) -> Vec<u16> {
        let concerned = |index: u16| match scope {
            Scope::None => false,
            Scope::Queue(queue) => queue == index,
            Scope::All => true,
        };
        let attached = |(index, queue): (usize, &Queue)| {
            let index = index as u16;
            let owner = queue.place().map(|place| place.owner);
            let theirs = owner == Some(Owner::Connection(connection));
            (theirs && concerned(index)).then_some(index)
        };
        self.queues.iter().enumerate().filter_map(attached).collect()
    }

    /// Queues that some sidecore has.
    pub(crate) fn attached(&self) -> Vec<u16> {
        let has = |(index, queue): (usize, &Queue)| queue.is_attached().then_some(index as u16);
        self.queues.iter().enumerate().filter_map(has).collect()
    }

    /// Whether something must happen before queues may start.
    pub(crate) fn is_held_back(&self) -> bool {
        self.removing || self.kind.is_resizing() || self.restarting
    }

    /// Whether it has no socket though it should: its cable was put in again.
    pub(crate) fn wants_to_listen(&self) -> bool {
        let is_closed = self.listener.is_none() && self.retry_at.is_none();
        self.facts.mode == Mode::Listen && is_closed && !self.is_exported
    }

    /// Whether its queues are where a link is, and stay there.
    pub(crate) fn is_fixed(&self) -> bool {
        self.is_exported || self.kind.disk().is_some_and(|disk| disk.remote.is_some())
    }

    /// Says something of a queue to the sidecore that has it, now or when that is known.
    pub(crate) fn tell(
        &mut self,
        index: u16,
        command: Command,
        turn: &mut Turn,
        cores: &mut Cores,
    ) {
        let command = match &mut self.kind {
            Kind::Nic(nic) => nic.port.tell(index, command),
            Kind::Disk(_) => Some(command),
        };
        let queue = self.queues.get_mut(usize::from(index));
        let queue = found!(turn.defects, queue, "queue to tell something");
        // Otherwise whoever has it in the end is told.
        if let Some((core, command)) = command.and_then(|command| queue.tell(command)) {
            cores.send(core, command);
        }
    }

    /// Asks its sidecore for a queue, once.
    pub(crate) fn detach(&mut self, index: u16, turn: &mut Turn, cores: &mut Cores) {
        self.want_back(index, false, turn, cores);
    }

    /// As [`Self::detach`], with nothing left that an earlier process had taken: its front-end asks where it
    /// stands, and may go on elsewhere, without the in-flight record.
    pub(crate) fn finish(&mut self, index: u16, turn: &mut Turn, cores: &mut Cores) {
        self.want_back(index, true, turn, cores);
    }

    /// Asks for all queues that sidecores have. Whether there are any.
    pub(crate) fn detach_all(&mut self, turn: &mut Turn, cores: &mut Cores) -> bool {
        let attached = self.attached();
        attached.iter().for_each(|index| self.detach(*index, turn, cores));
        !attached.is_empty()
    }

    fn want_back(&mut self, index: u16, finishes: bool, turn: &mut Turn, cores: &mut Cores) {
        let queue = self.queues.get_mut(usize::from(index));
        let queue = found!(turn.defects, queue, "queue to ask for");
        let Asked::Tell(called_off) = queue.ask(finishes, turn.now()) else { return };
        called_off.into_iter().for_each(|id| turn.call_off(id));
        let key = self.key(index);
        let command = if finishes { Command::Finish(key) } else { Command::Detach(key) };
        self.tell(index, command, turn, cores);
    }

    /// The name of queue `index`.
    pub(crate) fn key(&self, index: u16) -> QueueKey {
        QueueKey { device: self.number, queue: index }
    }

    /// Makes queue `index` if its front-end has told enough. `Ok(None)`: it has not.
    ///
    /// # Errors
    /// Why it cannot be served.
    pub(crate) fn make_queue(
        &mut self,
        index: u16,
        now: Instant,
        defects: &mut Defects,
    ) -> Result<Option<(u32, Box<sidecore::Served>)>, RingError> {
        let Some(number) = self.runner else { return Ok(None) };
        let ring = self.queues.get(usize::from(index));
        let Some((connection, queue)) = self.connections.get(&number).zip(ring) else {
            defects.note("queue to start, or front-end that runs it");
            return Ok(None);
        };
        let parts = start::DeviceParts {
            key: QueueKey { device: self.number, queue: index },
            kind: &self.kind,
            facts: &self.facts,
            counters: queue.counters(),
            left: queue.left(),
        };
        let may_start = connection.held.is_none() || self.starts_first(number) == Some(index);
        let Some(facts) = connection.session.ready(index).filter(|_| may_start) else {
            return Ok(None);
        };
        // What an earlier front-end left in flight must not land after what this one writes.
        let its = Owner::Connection(number);
        let others = |q: &Queue| q.place().is_some_and(|place| place.owner != its);
        if self.queues.iter().any(others) {
            return Ok(None);
        }
        let changes = connection.session.changes();
        if queue.is_attached() || queue.gave_up((number, changes)) {
            return Ok(None);
        }
        let (features, logging) = (connection.session.features(), connection.session.is_logging());
        let admission = self.kind.disk().map(|disk| disk.admits(&self.queues, number, connection));
        let is_refused = matches!(admission, Some(Admission::Lost(_) | Admission::Other(_)));
        let mut made = match &admission {
            Some(Admission::Lost(why) | Admission::Other(why)) => Err(why.clone().into()),
            _ => start::make(&facts, features, logging, &connection.front_end, &parts),
        };
        let (size, left) = (facts.size, Left::at_start(&facts));
        let is_first = !self.queues.iter().any(Queue::is_attached);
        let keeps_none = is_first && made.is_ok() && connection.front_end.inflight.is_none();
        if keeps_none && self.kind.disk().is_some() && self.log.allows(now) {
            tracing::warn!(
                device = self.facts.id,
                "its front-end keeps no in-flight record: what is under way when the daemon dies may be \
                 lost, or done twice"
            );
        }
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            let format = start::format_of(features);
            match &mut made {
                Ok(served) => {
                    let gate = queue.is_made(left, size, format);
                    served.set_gate(self.metered.gate(Flow::of(&self.kind, index), gate));
                }
                Err(error) => {
                    // One that waits for its image is no queue that failed.
                    let failed = !matches!(admission, Some(Admission::Other(_)));
                    let problem = failed.then(|| format!("cannot be served: {error}"));
                    queue.is_not_made((number, changes), problem, (size, format));
                }
            }
        }
        // Those of its rings that were set up before this one was told of.
        self.restarting |= is_refused && !self.attached().is_empty();
        self.bind(number, admission, made.is_ok());
        made.map(|served| Some((number, served)))
    }

    /// Notes what became of a ring of front-end `connection`, as far as the image goes.
    fn bind(&mut self, connection: u32, admission: Option<Admission>, is_made: bool) {
        let Some(disk) = self.kind.disk_mut() else { return };
        let vmm = || {
            self.connections
                .get(&connection)
                .and_then(|connection| Vmm::of(connection.frames.socket()))
        };
        match admission {
            Some(Admission::Served(verdict)) if is_made => {
                disk.bond.begin(connection, &verdict, vmm)
            }
            Some(Admission::Other(why)) => disk.bond.refuse_connection(connection, why.to_string()),
            _ => {}
        }
    }

    /// Removes the socket that it listens on.
    pub(crate) fn close_socket(&mut self) {
        if let Some(listener) = self.listener.take() {
            // Whoever waits to be accepted may have sent anything already.
            self.closer.close(listener);
            sockets::remove(Path::new(&self.facts.socket));
        }
    }
}
