//! One device as control sees it, disk or NIC: its socket, its front-ends, its queues.
//!
//! Holds state and answers questions about it; who acts on the answers is `manager`. Not here: what
//! only a disk has (`disk`), or only a NIC (`nic`).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::spec::Mode;
use control::connection::{Cause, Life, Overdue};
pub(crate) use control::device::Due;
use control::device::{Door, Existence};
use control::moves::NotMoved;
use guest_memory::Seal;
use sidecore::{Command, QueueKey, instant_of, nanos_of};
use tracing::warn;
use vhost_user::{Message, Scope, Session};

use crate::bonds::vmm::Vmm;
use crate::bounds::{Bounds, Claim};
use crate::defects::{Defects, found};
use crate::disk::{Admission, DiskParts};
use crate::frame_socket::FrameSocket;
use crate::front_end::FrontEnd;
use crate::guests::follow::Follow;
use crate::idle_peers::Beginning;
use crate::kind::{Facts, Kind};
use crate::lent::{Closer, Lent};
use crate::log_rate::LogRate;
use crate::opening::openers::Openers;
use crate::poll::{Poll, Token};
use crate::queue::{Asked, Left, Owner, Queue};
use crate::rights::Rights;
use crate::service::{Flow, Metered};
use crate::sidecores::Cores;
use crate::sidecores::whereabouts::Whereabouts;
use crate::sockets;
use crate::start::{self, RingError};
use crate::turn::Turn;

/// Between two attempts to connect to a front-end, or to make a socket.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Front-ends of one device at a time: one that runs it, others that only ask.
pub(crate) const CONNECTIONS_MAX: usize = 4;

/// A message that is not done yet.
pub(crate) struct Held {
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
    pub(crate) life: Life<Held>,
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
    door: Door<OwnedFd>,
    existence: Existence,
    pub(crate) connections: BTreeMap<u32, Connection>,
    /// The connection that brought memory: its queues run.
    pub(crate) runner: Option<u32>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) problem: Option<String>,
    /// Why its socket is opened by others than its plan names.
    pub(crate) ungiven: Option<String>,
    /// Why no front-end could be connected to (mode `connect`): it may not have started yet.
    pub(crate) unanswered: Option<String>,
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
        self.life.due().map(instant_of)
    }

    /// Why it is ended now.
    pub(crate) fn overdue(&self, now: Instant) -> Option<&'static str> {
        Some(match self.life.overdue(nanos_of(now))? {
            Overdue::Stalled => "it fell silent in the middle of a message",
            Overdue::Silent => "it said nothing of a front-end for 10 s",
        })
    }

    /// Whether it has said something that nobody has read, and that is read next.
    pub(crate) fn has_spoken(&self) -> bool {
        self.life.is_read() && sockets::is_readable(self.frames.socket())
    }

    /// Whether it may be ended for another that wants its place.
    pub(crate) fn gives_way(&self, now: Instant) -> bool {
        self.life.is_silent(nanos_of(now)) && !self.session.has_memory()
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
            door: Door::default(),
            existence: Existence::default(),
            connections: BTreeMap::new(),
            runner: None,
            queues,
            problem: None,
            ungiven: None,
            unanswered: None,
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
        bounds: &Bounds,
        now: Instant,
    ) -> Connection {
        let seal = if self.facts.allow_unsealed_memory { Seal::Any } else { Seal::Required };
        let personality = self.kind.personality();
        Connection {
            frames: FrameSocket::new(socket, &self.closer),
            session: Session::new(personality.facts(self.facts.rings)),
            front_end: FrontEnd::new(personality, seal, bounds, &self.closer),
            life: Life::begin(nanos_of(now)),
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
        let announced = self.kind.nic().and_then(|nic| nic.arrival().due_at());
        let door = self.door.due().map(instant_of);
        let others = door.into_iter().chain(self.log.due_at()).chain(announced);
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
        let held = connection.life.held()?;
        let (came, cause) = connection.life.waits()?;
        let came = instant_of(came);
        let scope = connection.session.scope(&held.message);
        let leaving = |index: &u16| self.queues.get(usize::from(*index))?.leaving_since();
        let since = match cause {
            Cause::Queues => self.attached_in(id, scope).iter().filter_map(leaving).min()?,
            Cause::Parting => self.kind.disk().and_then(DiskParts::parting_since)?,
            Cause::Start => self.starts_first(id).map(|_| came)?,
        };
        // One wait may follow upon another.
        let since = since.min(came);
        Some(since + Duration::from_secs(self.facts.drain_timeout_s.into()))
    }

    /// The ring that the held message of connection `id` stops, when where it stands is hearsay: it could run and
    /// was not served yet, and an earlier process has left a record that knows better.
    pub(crate) fn stops_unserved(&self, id: u32) -> Option<u16> {
        let connection = self.connections.get(&id).filter(|_| self.runner == Some(id))?;
        let index = connection.life.held()?.stops()?;
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
        self.existence != Existence::Open || self.kind.is_resizing()
    }

    /// Whether its guest runs here for sure: a ring is served, and none was asked back.
    pub(crate) fn surely_runs(&self) -> bool {
        self.queues.iter().any(Queue::is_attached) && self.leaving_since().is_none()
    }

    /// Whether it has no socket though it should: its cable was put in again.
    pub(crate) fn wants_to_listen(&self) -> bool {
        self.facts.mode == Mode::Listen && self.door.is_closed()
    }

    /// The NUMA node of its guest's memory, as far as that is known.
    pub(crate) fn memory_node(&mut self, now: Instant) -> Option<u32> {
        let runner = self.runner?;
        let front_end = &self.connections.get(&runner)?.front_end;
        self.whereabouts.memory_node(runner, front_end, now)
    }

    /// Whether its queues are where a link is, and stay there.
    pub(crate) fn is_fixed(&self) -> bool {
        self.door.is_exported() || self.kind.disk().is_some_and(|disk| disk.remote.is_some())
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
            Kind::Nic(nic) => nic.tell(index, command),
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
        called_off.into_iter().for_each(|id| turn.call_off(id, NotMoved::Stopped));
        let key = self.key(index);
        let command = if finishes { Command::Finish(key) } else { Command::Detach(key) };
        self.tell(index, command, turn, cores);
    }

    /// Whether descriptors of it wait to be closed while none is promised to nobody.
    pub(crate) fn is_short_while_closing(&self, bounds: &Bounds) -> bool {
        self.closer.is_behind() && bounds.is_used_up()
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
        let may_start =
            connection.life.held().is_none() || self.starts_first(number) == Some(index);
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
            warn!(
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
        if is_refused && !self.attached().is_empty() {
            self.existence.restart();
        }
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

    /// Whether it goes when its queues are back.
    pub(crate) fn is_going(&self) -> bool {
        self.existence == Existence::Going
    }

    /// It is removed.
    pub(crate) fn go(&mut self) {
        self.existence.go();
    }

    /// Its queues are to start anew, with what its plan says now.
    pub(crate) fn restart(&mut self) {
        self.existence.restart();
    }

    /// All of its queues are back. Whether it is gone by that.
    pub(crate) fn are_back(&mut self) -> bool {
        self.existence.back()
    }

    /// Its rings are judged once more.
    pub(crate) fn judge_again(&mut self, turn: &mut Turn) {
        self.queues.iter_mut().for_each(Queue::try_again);
        turn.touch(self.number);
    }

    /// The capacity of its disk is another now: its front-ends are told.
    pub(crate) fn tell_capacity(&mut self, turn: &mut Turn) {
        let disk = found!(turn.defects, self.kind.disk(), "disk with another capacity");
        disk.live.set_capacity(disk.disk.size_bytes());
        for connection in self.connections.values_mut() {
            let told =
                connection.session.config_changed().map(|bytes| connection.front_end.tell(bytes));
            if let Some(Err(error)) = told {
                let id = &self.facts.id;
                warn!(disk = id, %error, "its front-end could not be told of the new size");
            }
        }
    }
}

/// Its socket.
impl Device {
    /// A link serves it to other machines: it has no socket here.
    pub(crate) fn export(&mut self) {
        self.door = Door::exported();
    }

    /// Whether a link serves it to other machines.
    pub(crate) fn is_exported(&self) -> bool {
        self.door.is_exported()
    }

    /// What it listens at.
    pub(crate) fn listener(&self) -> Option<&OwnedFd> {
        self.door.listener()
    }

    /// It listens there from now on. What it has no use for stays as it is.
    pub(crate) fn listen_at(&mut self, listener: OwnedFd) {
        drop(self.door.open(listener));
    }

    /// It listens there no more, and another one does.
    pub(crate) fn take_listener(&mut self) -> Option<OwnedFd> {
        self.door.close()
    }

    /// Listens again at once, after [`Self::pause`] or [`Self::turn_off`]; or tries that later.
    pub(crate) fn listen_again(&mut self, poll: &Poll, now: Instant) {
        if let Some(listener) = self.door.resume() {
            return poll.want(listener, Token::Listener(self.number), true, false);
        }
        if let Err(error) = self.listen(poll) {
            self.problem = Some(format!("its socket {}: {error}", self.facts.socket));
            self.door.retry(Due::Listen, nanos_of(now + RETRY_INTERVAL));
        }
    }

    /// Listens at its socket, which it had not yet or not any more.
    ///
    /// # Errors
    /// Why not.
    fn listen(&mut self, poll: &Poll) -> std::io::Result<()> {
        let rights = Rights::of(&self.facts.rights)?;
        let listener = sockets::open_listener(Path::new(&self.facts.socket), &rights)?;
        poll.add(&listener, Token::Listener(self.number))?;
        self.listen_at(listener);
        Ok(())
    }

    /// Accepts nobody until then; whoever connects waits.
    pub(crate) fn pause(&mut self, poll: &Poll, until: Instant) {
        if let Some(listener) = self.door.pause(nanos_of(until)) {
            poll.want(listener, Token::Listener(self.number), false, false);
        }
    }

    /// Has a front-end called (mode `connect`), if nobody is there any more.
    pub(crate) fn plan_connect(&mut self, now: Instant) {
        let is_alone = self.connections.is_empty() && !self.is_going() && !self.kind.is_off();
        if self.facts.mode == Mode::Connect && is_alone {
            self.door.connect(nanos_of(now));
        }
    }

    /// Calls its front-end. Nothing: nobody answers yet, and it is tried again.
    pub(crate) fn call(&mut self, now: Instant) -> Option<OwnedFd> {
        let again = nanos_of(now + RETRY_INTERVAL);
        match sockets::open_connection(Path::new(&self.facts.socket)) {
            Ok(socket) => {
                self.door.called(again);
                Some(socket)
            }
            Err(error) => {
                self.door.retry(Due::Connect, again);
                let socket = &self.facts.socket;
                self.unanswered = Some(format!("nobody answers at {socket} yet: {error}"));
                None
            }
        }
    }

    /// Its front-end has come, from another process: none is called.
    pub(crate) fn call_nobody(&mut self) {
        self.door.stay();
    }

    /// Takes no front-end until then.
    pub(crate) fn shut_out(&mut self, until: Instant) {
        self.door.shut_out(nanos_of(until));
    }

    /// Until when it takes no front-end, if that is so.
    pub(crate) fn shut_until(&self, now: Instant) -> Option<Instant> {
        self.door.shut_until(nanos_of(now)).map(instant_of)
    }

    /// What is to be done about its socket now; once.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Due> {
        self.door.take_due(nanos_of(now))
    }

    /// Removes the socket that it listens on.
    pub(crate) fn close_socket(&mut self) {
        let listener = self.door.close();
        self.remove_socket(listener);
    }

    /// The same, since its cable is out.
    pub(crate) fn turn_off(&mut self) {
        let listener = self.door.turn_off();
        self.remove_socket(listener);
    }

    fn remove_socket(&self, listener: Option<OwnedFd>) {
        if let Some(listener) = listener {
            // Whoever waits to be accepted may have sent anything already.
            self.closer.close(listener);
            sockets::remove(Path::new(&self.facts.socket));
        }
    }

    /// Closes the image of a device that is gone, or was never served, which may take as long as its file system
    /// wants: whether that goes on elsewhere. A number is told of when it is over.
    pub(crate) fn close_image(mut self, openers: &mut Openers, number: Option<u32>) -> bool {
        let Some(disk) = self.kind.disk_mut() else { return false };
        let (plan, held) = (disk.plan.clone(), Arc::clone(&disk.disk));
        drop(self);
        openers.let_go(&plan, held, number)
    }

    /// Whether a VMM has it: it may be about to start its guest, too.
    pub(crate) fn is_driven(&self) -> bool {
        let is_owned = self.connections.values().any(|connection| connection.session.has_owner());
        !self.is_going() && (self.runner.is_some() || is_owned)
    }
}
