//! One device as control sees it, disk or NIC: its socket, its front-ends, its queues.
//!
//! Holds state and answers questions about it; who acts on the answers is `manager`. Its socket is in `door`, its
//! queues in `rings`, its front-ends' guest in `guest`. Not here: what only a disk has (`disk`), or only a NIC
//! (`nic`).

mod door;
mod guest;
mod rings;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use config::plan::{DevicePlan, DiskPlan};
use config::spec::Mode;
pub(crate) use control::device::Due;
use control::device::{Door, Existence};
use guest_memory::Seal;
use schedule::Gate;
use sidecore::instant_of;
use tracing::warn;
use vhost_user::Session;

use crate::bounds::{Bounds, Claim};
use crate::defects::{Defects, found};
use crate::devices::connection::Connection;
use crate::devices::device_plan::Facts;
use crate::devices::frame_socket::FrameSocket;
use crate::devices::front_end::FrontEnd;
use crate::devices::kind::Kind;
use crate::devices::lent::Closer;
use crate::devices::log_rate::LogRate;
use crate::devices::metered::{Flow, Metered, Set};
use crate::devices::queue::Queue;
use crate::disk::{DiskParts, staging};
use crate::guests::follow::Follow;
use crate::network::nic::NicParts;
use crate::opening::openers::Openers;
use crate::sidecores::whereabouts::Whereabouts;
use crate::turn::Turn;

pub(crate) struct Device {
    number: u32,
    /// What its plan says, whatever it is.
    facts: Facts,
    kind: Kind,
    /// What it is promised of the daemon; given back when it goes.
    promise: Option<Claim>,
    /// What its queues are counted on.
    metered: Metered,
    door: Door<OwnedFd>,
    existence: Existence,
    connections: BTreeMap<u32, Connection>,
    /// The connection that brought memory: its queues run.
    runner: Option<u32>,
    queues: Vec<Queue>,
    problem: Option<String>,
    /// Why its socket is opened by others than its plan names.
    ungiven: Option<String>,
    /// Why no front-end could be connected to (mode `connect`): it may not have started yet.
    unanswered: Option<String>,
    log: LogRate,
    closer: Closer,
    /// On which node its guest's memory is.
    whereabouts: Whereabouts,
    /// What is known of its guest's vCPUs.
    follow: Box<Follow>,
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

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// What its plan says, whatever it is.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Its plan is another from here on. Of the other kind would be another device. Whether queues are to be told of it.
    pub(crate) fn set_plan(&mut self, plan: &DevicePlan, defects: &mut Defects) -> bool {
        match (&mut self.kind, plan) {
            (Kind::Disk(disk), DevicePlan::Disk(plan)) => {
                let before = disk.plan.stages.clone();
                disk.set_plan(plan);
                self.facts = plan.into();
                return staging::follow(disk, &mut self.queues, &before);
            }
            (Kind::Nic(nic), DevicePlan::Nic(plan)) => {
                nic.set_plan(plan);
                self.facts = plan.into();
            }
            (Kind::Disk(_), DevicePlan::Nic(_)) | (Kind::Nic(_), DevicePlan::Disk(_)) => {
                defects.note("device of the kind of its plan");
            }
        }
        false
    }

    /// Its disk has the stages of that plan from here on, and all else is as it was. Whether queues are to be told.
    pub(crate) fn set_stages(&mut self, plan: &DiskPlan) -> bool {
        let Kind::Disk(disk) = &mut self.kind else { return false };
        let before = std::mem::replace(&mut disk.plan.stages, plan.stages.clone());
        disk.plan.spec.stage.clone_from(&plan.spec.stage);
        staging::follow(disk, &mut self.queues, &before)
    }

    /// What only a disk has, and its queues.
    pub(crate) fn disk_and_queues(&mut self) -> Option<(&mut DiskParts, &mut [Queue])> {
        Some((self.kind.disk_mut()?, &mut self.queues))
    }

    /// Queues of a disk that are served otherwise than its plan says.
    pub(crate) fn behind(&self) -> Vec<u16> {
        self.kind.disk().map(|disk| staging::behind(disk, &self.queues)).unwrap_or_default()
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(crate) fn kind_mut(&mut self) -> &mut Kind {
        &mut self.kind
    }

    /// What only a disk has.
    pub(crate) fn disk(&self) -> Option<&DiskParts> {
        self.kind.disk()
    }

    pub(crate) fn disk_mut(&mut self) -> Option<&mut DiskParts> {
        self.kind.disk_mut()
    }

    /// What only a NIC has.
    pub(crate) fn nic(&self) -> Option<&NicParts> {
        self.kind.nic()
    }

    pub(crate) fn nic_mut(&mut self) -> Option<&mut NicParts> {
        self.kind.nic_mut()
    }

    /// What it was asked to be.
    pub(crate) fn plan(&self) -> DevicePlan {
        self.kind.plan()
    }

    /// Whether no front-end may be there: a NIC whose cable is out.
    pub(crate) fn is_off(&self) -> bool {
        self.kind.is_off()
    }

    /// Whether a new size waits for its queues.
    pub(crate) fn is_resizing(&self) -> bool {
        self.kind.is_resizing()
    }

    /// What it is promised of the daemon is given back when it goes; what it has given back is counted.
    pub(crate) fn promise(&mut self, promise: Claim, bounds: &Bounds) {
        self.promise = Some(promise);
        self.closer = Closer::counted_in(bounds.unclosed());
    }

    /// It is promised that in the place of what it was, which is given back.
    pub(crate) fn promise_instead(&mut self, promise: Claim) {
        self.promise = Some(promise);
    }

    /// What its queues are counted on from here on, beside what its plan says.
    pub(crate) fn count_on(&mut self, group: Option<Set>) {
        self.metered.follow(self.facts.service.limit, group);
    }

    /// A gate for queue `index`: see [`Metered::gate`].
    pub(crate) fn gate(&self, index: u16, kept: Option<Box<Gate>>) -> Option<Box<Gate>> {
        self.metered.gate(Flow::of(&self.kind, index), kept)
    }

    /// Says how many lines about it were not written, when that is due.
    pub(crate) fn say_unsaid(&mut self, now: Instant) {
        if let Some(unsaid) = self.log.take_unsaid(now) {
            warn!(device = self.facts.id, "{unsaid} more lines about it were not written");
        }
    }

    /// What is wrong with it, or was said of its front-end last.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    pub(crate) fn say_problem(&mut self, problem: impl Into<String>) {
        self.problem = Some(problem.into());
    }

    /// Why its socket is opened by others than its plan names.
    pub(crate) fn ungiven(&self) -> Option<&str> {
        self.ungiven.as_deref()
    }

    /// Whether its socket is opened by those of its plan, or why not.
    pub(crate) fn note_ungiven(&mut self, why: Option<String>) {
        self.ungiven = why;
    }

    /// Why no front-end could be connected to (mode `connect`): it may not have started yet.
    pub(crate) fn unanswered(&self) -> Option<&str> {
        self.unanswered.as_deref()
    }

    /// Whoever closes what front-ends lend, or have lent.
    pub(crate) fn closer(&self) -> &Closer {
        &self.closer
    }

    /// What is known of its guest's vCPUs.
    pub(crate) fn follow(&self) -> &Follow {
        &self.follow
    }

    pub(crate) fn follow_mut(&mut self) -> &mut Follow {
        &mut self.follow
    }

    /// The same, of a NIC.
    pub(crate) fn nic_and_follow(&mut self) -> Option<(&mut NicParts, &Follow)> {
        Some((self.kind.nic_mut()?, &self.follow))
    }

    /// Its front-ends, by the numbers of their connections.
    pub(crate) fn connections(&self) -> &BTreeMap<u32, Connection> {
        &self.connections
    }

    pub(crate) fn has_no_front_end(&self) -> bool {
        self.connections.is_empty()
    }

    pub(crate) fn connection(&self, id: u32) -> Option<&Connection> {
        self.connections.get(&id)
    }

    pub(crate) fn connection_mut(&mut self, id: u32) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    /// The connection that brought memory: its queues run.
    pub(crate) fn runner(&self) -> Option<u32> {
        self.runner
    }

    /// That connection and its front-end, and all queues.
    pub(crate) fn running_mut(&mut self) -> (Option<(u32, &mut Connection)>, &mut [Queue]) {
        let running = self.runner.and_then(|id| Some((id, self.connections.get_mut(&id)?)));
        (running, &mut self.queues)
    }

    /// A front-end has come.
    pub(crate) fn take_in(&mut self, id: u32, connection: Connection) {
        (self.problem, self.unanswered) = (None, None);
        if self.runner.is_none() {
            self.queues.iter_mut().for_each(Queue::forget_problem);
        }
        self.connections.insert(id, connection);
    }

    /// One that another process had is here: none is to be called. With `runs` it has brought memory there.
    pub(crate) fn adopt(&mut self, id: u32, connection: Connection, runs: bool) {
        self.door.stay();
        self.runner = if runs { Some(id) } else { self.runner };
        self.connections.insert(id, connection);
    }

    /// A front-end has brought memory: it runs the device from here on.
    pub(crate) fn run_by(&mut self, id: u32) {
        self.runner = Some(id);
    }

    /// A front-end is gone; if it ran the device, the next driver starts anew. `None`: it was gone before.
    pub(crate) fn forget(&mut self, id: u32) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        if self.runner == Some(id) {
            self.runner = None;
            self.kind.reset();
            self.queues.iter_mut().for_each(Queue::lose_guest);
        }
        Some(connection)
    }

    pub(crate) fn queues(&self) -> &[Queue] {
        &self.queues
    }

    pub(crate) fn queues_mut(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    pub(crate) fn queue(&self, index: u16) -> Option<&Queue> {
        self.queues.get(usize::from(index))
    }

    pub(crate) fn queue_mut(&mut self, index: u16) -> Option<&mut Queue> {
        self.queues.get_mut(usize::from(index))
    }

    /// A queue, and the front-end of that connection.
    pub(crate) fn queue_of(
        &mut self,
        index: u16,
        id: u32,
    ) -> (Option<&mut Queue>, Option<&mut Connection>) {
        (self.queues.get_mut(usize::from(index)), self.connections.get_mut(&id))
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
        let parts = (
            FrameSocket::new(socket, &self.closer),
            Session::new(personality.facts(self.facts.rings)),
            FrontEnd::new(personality, seal, bounds, &self.closer),
        );
        Connection::begin(parts, self.counted(), now)
    }

    /// When something is to be done without an event.
    pub(crate) fn due_at(&self, mode: control::mode::Mode) -> Option<Instant> {
        let connections = self.connections.values().filter_map(Connection::due_at);
        let connections =
            connections.chain(self.connections.keys().filter_map(|id| self.gives_up_at(*id, mode)));
        let announced = self.kind.nic().and_then(|nic| nic.arrival().due_at());
        let door = self.door.due().map(instant_of);
        let others = door.into_iter().chain(self.log.due_at()).chain(announced);
        // While another process is to take over nobody asks.
        let asks = self.asks_at().filter(|_| !mode.has_heir());
        let staged = self.kind.disk().filter(|_| !self.is_held_back());
        let restages = staged.and_then(|disk| disk.staging.due_at(mode));
        connections.chain(others).chain(asks).chain(restages).chain(self.follow.scans_at()).min()
    }

    /// When the locks of its disk are asked for again, or are to be let go again.
    pub(crate) fn asks_at(&self) -> Option<Instant> {
        let disk = self.kind.disk().filter(|_| !self.is_held_back())?;
        // What is not here cannot begin to be made stable.
        let begins_at = disk.begins_at().filter(|_| disk.locks.is_here());
        [disk.asks_at(), begins_at].into_iter().flatten().min()
    }

    /// Whether a line about it may be written; if not, it is counted.
    pub(crate) fn may_log(&mut self, now: Instant) -> bool {
        self.log.allows(now)
    }

    /// Whether something must happen before queues may start.
    pub(crate) fn is_held_back(&self) -> bool {
        self.existence != Existence::Open || self.kind.is_resizing()
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

    /// Whether descriptors of it wait to be closed while none is promised to nobody.
    pub(crate) fn is_short_while_closing(&self, bounds: &Bounds) -> bool {
        self.closer.is_behind() && bounds.is_used_up()
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

    /// Closes the image of a device that is gone, or was never served, which may take as long as its file system
    /// wants: whether that goes on elsewhere. A number is told of when it is over.
    pub(crate) fn close_image(mut self, openers: &mut Openers, number: Option<u32>) -> bool {
        // What a guest has written stays, also if nobody was told yet that its image was made.
        let was_used = self.queues().iter().any(Queue::was_attached);
        let Some(disk) = self.kind.disk_mut() else { return false };
        let (plan, held) = (disk.plan.clone(), Arc::clone(&disk.disk));
        let made = disk.made.filter(|_| !was_used);
        drop(self);
        openers.undo(&plan, held, made, number)
    }

    /// Whether a VMM has it: it may be about to start its guest, too.
    pub(crate) fn is_driven(&self) -> bool {
        let is_owned = self.connections.values().any(|connection| connection.session.has_owner());
        !self.is_going() && (self.runner.is_some() || is_owned)
    }
}
