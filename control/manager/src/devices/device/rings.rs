//! A device's queues: which of them sidecores have, for whom, and one that is made.
//!
//! Not here: one queue's life (`queue`), and its ring (`start`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use control::connection::Cause;
use control::mode::Mode;
use control::moves::NotMoved;
use sidecore::{Command, QueueKey};
use tracing::warn;
use vhost_user::Scope;

use super::Device;
use crate::defects::{Defects, found};
use crate::devices::connection::{Connection, Held};
use crate::devices::kind::Kind;
use crate::devices::metered::Flow;
use crate::devices::queue::{Asked, Left, Owner, Queue, Said};
use crate::devices::start::{self, RingError};
use crate::disk::bonds::Bond;
use crate::disk::bonds::vmm::Vmm;
use crate::disk::{Admission, DiskParts, staging};
use crate::sidecores::Cores;
use crate::turn::Turn;
use crate::views;

/// What is said of a disk whose front-end keeps no record.
const NO_RECORD: &str = "its front-end keeps no in-flight record: what is under way when the daemon dies may be \
                         lost, or done twice";

impl Device {
    /// Whether some ring of a front-end, enabled or not, was served before, and not as this device: its driver
    /// counts on what it wrote.
    fn was_running(&self, connection: &Connection) -> bool {
        let queues = (0..self.facts.rings).zip(&self.queues);
        let mut others = queues.filter(|(_, queue)| !queue.was_attached());
        others.any(|(index, _)| connection.was_used(index))
    }

    /// When a message of connection `id` has waited as long as the disk's operator allows for queues that
    /// do not come back, because their disk does not answer.
    pub(crate) fn gives_up_at(&self, id: u32, mode: Mode) -> Option<Instant> {
        // What is held meanwhile is for whoever has the queues next.
        if mode.is_frozen() {
            return None;
        }
        let connection = self.connections.get(&id)?;
        let held = connection.held()?;
        let (came, cause) = connection.waits()?;
        let scope = connection.session.scope(&held.message);
        let leaving = |index: &u16| self.queues.get(usize::from(*index))?.leaving_since();
        let since = match cause {
            // It has not kept those waiting that an earlier one left.
            Cause::Queues => {
                self.attached_in(id, scope).iter().filter_map(leaving).min().unwrap_or(came)
            }
            Cause::Parting => {
                let disk = self.kind.disk()?;
                disk.parting_since().or(disk.begins_at().map(|_| came))?
            }
            Cause::Start => self.starts_first(id).map(|_| came)?,
            Cause::Image => self.is_unsettled(id, scope).then_some(came)?,
        };
        // One wait may follow upon another.
        let since = since.min(came);
        Some(since + self.longest_wait())
    }

    /// How long whoever stops a queue waits for it at most.
    pub(crate) fn longest_wait(&self) -> Duration {
        Duration::from_secs(self.facts.drain_timeout_s.into())
    }

    /// What the held message of connection `id` waits for, in words.
    pub(crate) fn awaited(&self, id: u32, now: Instant) -> String {
        let disk = self.kind.disk();
        let because = |why: Option<String>| why.map_or_else(String::new, |why| format!(": {why}"));
        let cause = self.connections.get(&id).and_then(Connection::waits).map(|(_, cause)| cause);
        match cause {
            Some(Cause::Start) => {
                let why = disk.and_then(|disk| disk.hindered(now)).map(|(_, why)| why);
                format!("a ring to start that is to stop{}", because(why))
            }
            Some(Cause::Image) => {
                let why = disk.and_then(|disk| disk.locks.why()).map(ToString::to_string);
                let what = "the image, of which a process that died had requests under way";
                format!("{what}{}", because(why))
            }
            Some(Cause::Parting) => {
                let why = disk.and_then(DiskParts::unbegun_why).map(str::to_string);
                format!("the disk to make stable what was written{}", because(why))
            }
            Some(Cause::Queues) | None => views::unanswered(self.unanswered_requests()),
        }
    }

    /// Whether a front-end waits until its disk is let go.
    pub(crate) fn is_parting_for_one(&self) -> bool {
        let cause = |connection: &Connection| connection.waits().map(|(_, cause)| cause);
        self.connections.values().any(|connection| cause(connection) == Some(Cause::Parting))
    }

    /// Front-ends whose held message waits for nothing any more.
    pub(crate) fn waits_no_more(&self, now: Instant) -> Vec<u32> {
        let is_over = |(id, connection): (&u32, &Connection)| {
            let (held, (_, cause)) = (connection.held()?, connection.waits()?);
            let scope = connection.session.scope(&held.message);
            let waits = match cause {
                Cause::Queues => {
                    !self.attached_in(*id, scope).is_empty() || !self.left_to(*id, scope).is_empty()
                }
                Cause::Start => self.starts_first(*id).is_some(),
                Cause::Parting => self.kind.disk().is_some_and(|disk| {
                    disk.parting_since().is_some() || disk.begins_at().is_some_and(|at| at > now)
                }),
                Cause::Image => self.is_unsettled(*id, scope),
            };
            (!waits).then_some(*id)
        };
        self.connections.iter().filter_map(is_over).collect()
    }

    /// The ring that the held message of connection `id` stops, when where it stands is hearsay: it could run and
    /// was not served yet, and an earlier process has left a record that knows better.
    pub(crate) fn stops_unserved(&self, id: u32) -> Option<u16> {
        let connection = self.connections.get(&id).filter(|_| self.runner == Some(id))?;
        let index = connection.held()?.stops()?;
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

    /// The ring whose place the held message of connection `id` asks for, when nobody knows that.
    pub(crate) fn asks_for_lost(&self, id: u32) -> Option<u16> {
        let connection = self.connections.get(&id)?;
        let index = connection.held()?.asks_where()?;
        let (session, front_end) = (&connection.session, &connection.front_end);
        // One that has connected again may ask before any ring of it was to start.
        let left = self.queues.get(usize::from(index)).and_then(Queue::left);
        let is_lost = |facts| start::is_lost(&facts, session.features(), front_end, left);
        let is_lost = session.is_lost(index) || session.set_up(index).is_some_and(is_lost);
        is_lost.then_some(index)
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

    /// Requests that wait for space or for a medium that fails, and are in no in-flight record: they end with an error when
    /// their queue stops.
    pub(crate) fn waiting_unrecorded(&self) -> u64 {
        let keeps_none = |queue: &&Queue| match queue.place().map(|place| place.owner) {
            Some(Owner::Connection(id)) => {
                self.connections.get(&id).is_none_or(|it| it.front_end.inflight.is_none())
            }
            // Clients' requests are in no record.
            Some(Owner::Link) => true,
            None => false,
        };
        let waits = |queue: &Queue| {
            let counters = queue.counters().snapshot();
            counters.waiting_full + counters.waiting_failed
        };
        let attached = self.queues.iter().filter(|queue| queue.is_attached());
        attached.filter(keeps_none).map(waits).sum()
    }

    /// Queues of `scope` that a sidecore still has on behalf of that connection.
    pub(crate) fn attached_in(&self, connection: u32, scope: Scope) -> Vec<u16> {
        let theirs = self.attached_to(|owner| owner == Owner::Connection(connection));
        theirs.into_iter().filter(|index| scope.has(*index)).collect()
    }

    fn attached_to(&self, is_its: impl Fn(Owner) -> bool) -> Vec<u16> {
        let its = |(index, queue): (usize, &Queue)| {
            queue.place().is_some_and(|place| is_its(place.owner)).then_some(index as u16)
        };
        self.queues.iter().enumerate().filter_map(its).collect()
    }

    /// Queues of `scope` that earlier front-ends left, and whose end the held message of connection `id` waits for: when
    /// it is answered the guest may use its memory otherwise or have it no more, or all writes are thought to be logged.
    /// What is in flight of these would still land there, and none of it is in a log that came later. The first memory
    /// that a front-end brings takes none away, and is not waited for: nobody runs the device then.
    pub(crate) fn left_to(&self, id: u32, scope: Scope) -> Vec<u16> {
        let runs = self.connections.get(&id).filter(|_| self.runner == Some(id));
        if !runs.and_then(Connection::held).is_some_and(Held::concerns_left) {
            return Vec::new();
        }
        let gone = self.attached_to(|owner| match owner {
            Owner::Connection(owner) => !self.connections.contains_key(&owner),
            Owner::Link => false,
        });
        gone.into_iter().filter(|index| scope.has(*index)).collect()
    }

    /// Whether the held message of connection `id` waits for what a process that died had in flight: it may still land in
    /// the guest's memory and in the image, until the image that was given up is open again (0005, "The fence").
    pub(crate) fn is_unsettled(&self, id: u32, scope: Scope) -> bool {
        let is_runners = self.runner == Some(id) && scope != Scope::None;
        is_runners && self.kind.disk().is_some_and(DiskParts::is_unsettled)
    }

    /// Queues that some sidecore has.
    pub(crate) fn attached(&self) -> Vec<u16> {
        let has = |(index, queue): (usize, &Queue)| queue.is_attached().then_some(index as u16);
        self.queues.iter().enumerate().filter_map(has).collect()
    }

    /// Whether its guest runs here for sure: a ring is served, and none was asked back.
    pub(crate) fn surely_runs(&self) -> bool {
        self.queues.iter().any(Queue::is_attached) && self.leaving_since().is_none()
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
        let may_start = connection.held().is_none() || self.starts_first(number) == Some(index);
        let Some(facts) = connection.session.ready(index).filter(|_| may_start) else {
            return Ok(None);
        };
        // What an earlier front-end left in flight must not land after what this one writes.
        let its = Owner::Connection(number);
        if self.queues.iter().any(|q| q.place().is_some_and(|place| place.owner != its)) {
            return Ok(None);
        }
        let changes = connection.session.changes();
        if queue.is_attached() || queue.gave_up((number, changes)) {
            return Ok(None);
        }
        let (counters, left) = (Arc::clone(queue.counters()), queue.left());
        let disk = self.kind.disk().zip(self.queues.get_mut(usize::from(index)));
        let negotiated = connection.session.features();
        let (stages, through) = staging::at_start(disk, index, negotiated);
        let parts = start::DeviceParts {
            key: QueueKey { device: self.number, queue: index },
            kind: &self.kind,
            facts: &self.facts,
            counters: &counters,
            left,
            stages,
        };
        let (features, logging) = (connection.session.features(), connection.session.is_logging());
        let admission = self.admission(number, connection);
        let is_first = !self.queues.iter().any(Queue::is_attached);
        self.kind.begin(is_first);
        let mut made = match &admission {
            Some(Admission::Lost(why) | Admission::Other(why)) => Err(why.clone().into()),
            _ => start::make(&facts, features, logging, &connection.front_end, &parts),
        };
        let (size, left) = (facts.size, Left::at_start(&facts));
        let keeps_none = is_first && made.is_ok() && connection.front_end.inflight.is_none();
        if keeps_none && self.kind.disk().is_some() && self.log.allows(now) {
            warn!(device = self.facts.id, "{NO_RECORD}");
        }
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            let format = start::format_of(features);
            match &mut made {
                Ok(served) => {
                    let gate = queue.is_made(left, size, format);
                    queue.staged_mut().begins(through);
                    served.set_gate(self.metered.gate(Flow::of(&self.kind, index), gate));
                }
                Err(error) => {
                    // One that waits for its image is no queue that failed.
                    let failed = !matches!(admission, Some(Admission::Other(_)));
                    refuse(queue, error, failed, (number, changes), (size, format));
                }
            }
        }
        self.note_not_made(number, index, made.as_ref().err());
        self.bind(number, admission, made.is_ok());
        made.map(|served| Some((number, served)))
    }

    /// A front-end that has said of a lost ring what it had said before is not told where that stands, either.
    fn note_not_made(&mut self, id: u32, index: u16, why: Option<&RingError>) {
        let connection = self.connections.get_mut(&id);
        if let (Some(RingError::PlaceLost), Some(connection)) = (why, connection) {
            connection.session.lost(index);
        }
        // Those of its rings that were set up before this one was told of.
        if matches!(why, Some(RingError::Image(_))) && !self.attached().is_empty() {
            self.existence.restart();
        }
    }

    /// Whether rings of front-end `id` may be served, as far as the image goes.
    fn admission(&self, id: u32, connection: &Connection) -> Option<Admission> {
        let vmm = || Vmm::of(connection.frames.socket());
        let comes_back =
            |bond: &Bond| connection.is_running(self.facts.rings) && bond.has_served_to(vmm);
        let disk = self.kind.disk()?;
        Some(disk.admits(id, self.was_running(connection), comes_back))
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

    /// Its rings are judged once more.
    pub(crate) fn judge_again(&mut self, turn: &mut Turn) {
        self.queues.iter_mut().for_each(Queue::try_again);
        turn.touch(self.number);
    }
}

/// A queue was to start, and could not be made.
fn refuse(
    queue: &mut Queue,
    error: &RingError,
    failed: bool,
    said: Said,
    shape: (u16, virtqueue::Format),
) {
    let problem = failed.then(|| format!("cannot be served: {error}"));
    queue.is_not_made(said, problem, shape);
    queue.waits_for_another_guest(error.is_guests());
}
