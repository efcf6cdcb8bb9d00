//! Disks for other machines: which ones clients may have, opened and let go as the link asks.
//!
//! A disk that a link's clients may have is a device without a socket. When one of them takes it, it gets memory of
//! ours with a ring in it, and its queue is attached to the link's sidecore as any other; when it is let go, the queue
//! comes back and what was written is made stable. Not here: who has it (`remote::iohost`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use backend::Disk;
use backend::link::{LinkKey, LinkSocket};
use config::plan::{LinkClientPlan, LinkEnd, LinkPlan};
use confine::Kind as Thread;
use device::blk::Blk;
use device::features;
use remote::handshake::{Gate, Identity, PublicKey, public_key};
use remote::iohost::{ExportSpec, HostEvent, HostSpec};
use remote::wire::News;
use rustix::event::{EventfdFlags, eventfd};
use sidecore::{
    AttachmentCounters, AttachmentMemory, Command, HostLink, HostLinkSpec, Link, Opened, RoleSpec,
    Served, ServedSpec, ToHost,
};
use tracing::{info, warn};

use super::error::{ExportError, LinkKeyError};
use super::generations::Generations;
use super::greeter::System;
use super::seats::{Clients, Had, SeatParts};
use super::told::{Features, verifier_of};
use super::{Manager, OneLink, RING_FRAMES, Stage, device_of, random};
use crate::clock::suspended_ns;
use crate::defects::{found, late};
use crate::disk::DiskParts;
use crate::poll::Token;
use crate::queue::{Owner, Place};
use crate::service::Flow;
use crate::start::policy_of;

/// Sessions of one link at a time.
pub(super) const SESSIONS_MAX: usize = 1024;

/// The IOhost's end of a link.
pub(super) struct Serving {
    public: PublicKey,
    /// By number: devices in the order in which they were exported.
    pub(super) exports: Vec<Export>,
    /// By seat.
    pub(super) parts: Vec<SeatParts>,
    /// Sessions that have begun, and whose they are.
    pub(super) clients: BTreeMap<u32, String>,
    /// Where clients are.
    pub(super) seated: Clients,
    /// For what clients have outstanding, at all seats.
    pub(super) memory_bytes: usize,
}

/// A disk that clients may have, or a NIC (`nics`).
pub(super) struct Export {
    /// Its name.
    pub(super) disk: String,
    /// The device of that name.
    pub(super) device: u32,
    /// Somebody has it: its memory, for when its queue is made again.
    pub(super) held: Option<Held>,
    /// It is being let go: the sync of what was written.
    leaving: Option<Leaving>,
    /// At which seat it is, or was.
    pub(super) had: Option<Had>,
    /// The latest that it was opened with.
    pub(super) generation: u64,
    /// No client may have it any more. Its number is nobody else's.
    pub(super) is_removed: bool,
    /// Where the link's end of a NIC's port is, and whether it is on its way from there.
    pub(super) plug: Option<(usize, bool)>,
}

/// No device has this number.
const NO_DEVICE: u32 = u32::MAX;
const NO_EXPORT: ExportError = ExportError::Missing("export of that number");

/// What a disk needs while a client has it.
pub(super) struct Held {
    memory: AttachmentMemory,
    /// Where its ring goes on.
    base: u32,
    /// Its sidecore does not take its queue, and is not asked again.
    is_refused: bool,
}

/// A disk's sync, on a thread of its own.
enum Leaving {
    /// When its queue is back.
    Waits,
    /// With its locks, which follow its clients.
    Parts,
    /// Until its descriptor is readable, which is kept for that.
    Syncs { _done: OwnedFd, outcome: Receiver<bool> },
}

impl Export {
    /// One that is no device of this daemon's.
    pub(super) fn of_nic(name: String) -> Export {
        Export::of_device(name, NO_DEVICE)
    }

    fn of_device(disk: String, device: u32) -> Export {
        let (held, leaving, had, generation, plug) = (None, None, None, 0, None);
        Export { disk, device, held, leaving, had, generation, is_removed: false, plug }
    }
}

impl Serving {
    /// Whether a disk is being let go of.
    pub(super) fn lets_go(&self) -> bool {
        self.exports.iter().any(|export| export.leaving.is_some())
    }

    pub(super) fn new(identity: &Identity, seats: usize) -> Result<Serving, LinkKeyError> {
        let public = match identity {
            Identity::None => [0; 32],
            Identity::Key(key) => public_key(key).map_err(LinkKeyError::Public)?,
        };
        let parts = (0..seats.max(1)).map(|_| SeatParts::new()).collect();
        let (clients, seated) = (BTreeMap::new(), Clients::default());
        Ok(Serving { public, exports: Vec::new(), parts, clients, seated, memory_bytes: 0 })
    }

    /// A seat of the link, for its sidecore.
    pub(super) fn make(&mut self, plan: &LinkPlan, seat: usize, socket: LinkSocket) -> Link {
        let memory_bytes = match &plan.end {
            LinkEnd::Iohost { memory_bytes, .. } => *memory_bytes as usize,
            LinkEnd::Client { .. } => 0,
        };
        self.memory_bytes = memory_bytes;
        let parts = self.parts.get(seat);
        let counters = parts.map(|one| Arc::clone(&one.counters)).unwrap_or_default();
        let sessions = parts.map_or_else(|| Arc::new([]) as _, |one| Arc::clone(&one.sessions));
        let host = HostSpec {
            sessions_max: SESSIONS_MAX,
            ring_frames: RING_FRAMES,
            memory_max: memory_bytes,
            client_memory_max: memory_bytes,
            instance: random(),
            seat: seat as u8,
        };
        let spec = HostLinkSpec {
            socket,
            host,
            gate: Gate::new(&self.public, 0, &mut System),
            randomness: Box::new(System),
            suspended_ns,
            counters,
            sessions,
        };
        Link::Host(Box::new(HostLink::new(spec)))
    }

    fn export(&mut self, number: u16) -> Option<&mut Export> {
        self.exports.get_mut(usize::from(number))
    }
}

/// Who may have a disk: keys; nobody named means everybody, where security is `none`.
pub(super) fn clients_of(plan: &LinkPlan, disk: &str) -> Vec<PublicKey> {
    let has = |client: &&LinkClientPlan| client.disks.iter().any(|id| id == disk);
    plan.clients().iter().filter(has).filter_map(|client| client.key).collect()
}

impl Manager {
    /// Tells a link that has just come of all disks that are open.
    pub(super) fn export_disks(&mut self, key: LinkKey) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        // A client's has none.
        let Some(serving) = link.serving() else { return };
        // Who had a session or a seat of it before it was opened has none any more.
        (serving.exports, serving.seated) = (Vec::new(), Clients::default());
        serving.clients.clear();
        let numbers: Vec<u32> = self.rooms.devices.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.export_by(key, number));
    }

    /// A disk was opened: if clients may have it, its link is told.
    pub(crate) fn export_disk(&mut self, number: u32) {
        let device = found!(
            self.rooms.turn.defects,
            self.rooms.devices.get(number),
            "device that was opened"
        );
        let key = self
            .rooms
            .plan
            .link_of(&device.facts.id)
            .and_then(|link| self.rooms.remote.key_of(&link.id));
        if let Some(key) = key {
            self.export_by(key, number);
        }
    }

    fn export_by(&mut self, key: LinkKey, number: u32) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let device =
            found!(self.rooms.turn.defects, self.rooms.devices.get(number), "device that is open");
        let is_its = |client: &LinkClientPlan| client.disks.contains(&device.facts.id);
        let is_open = matches!(link.stage, Stage::Open);
        if !is_open || !link.plan.clients().iter().any(is_its) {
            return;
        }
        self.note_exported(number);
        let device =
            found!(self.rooms.turn.defects, self.rooms.devices.get(number), "device that is open");
        let parts =
            found!(self.rooms.turn.defects, device.kind.disk(), "disk that clients may have");
        let id = device.facts.id.clone();
        let news = News {
            revision: 1,
            size: parts.disk.size_bytes(),
            features: Features::of(parts).bits(),
            is_removed: false,
        };
        let generation =
            match self.rooms.remote.generations.of(&id, Generations::beside(&parts.plan)) {
                Ok(generation) => generation,
                Err(error) => return warn!(disk = id, "no client gets it: {error}"),
            };
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let clients = clients_of(&link.plan, &id);
        let serving = found!(self.rooms.turn.defects, link.serving(), "IOhost's end of that link");
        let is_it = |export: &&mut Export| export.disk == id && !export.is_removed;
        match serving.exports.iter_mut().find(is_it) {
            Some(export) => export.device = number,
            None => {
                let mut export = Export::of_device(id.clone(), number);
                export.generation = generation;
                serving.exports.push(export);
                let spec = ExportSpec { device: device_of(&id), clients, news, generation };
                self.tell_seats(key, None, || ToHost::Export(spec.clone()));
            }
        }
    }

    /// What a seat of a link says of its clients.
    pub(super) fn hear_clients(&mut self, key: LinkKey, seat: usize, event: HostEvent) {
        let mut before = match event {
            HostEvent::Open { export, slots, slot_bytes, session, .. } => {
                let bytes = usize::from(slots) * slot_bytes as usize;
                let serving = self.rooms.remote.serving(key);
                let serving = found!(self.rooms.turn.defects, serving, "IOhost's end of that link");
                match serving.judge(export, (seat, session), bytes) {
                    Ok(before) => before,
                    Err(told) => return self.tell_seat(key, seat, told),
                }
            }
            HostEvent::LetGo { export, is_released } => {
                if let Some(had) = self.export(key, export).and_then(|one| one.had.as_mut()) {
                    had.is_released = is_released;
                }
                None
            }
            HostEvent::SessionBegan { .. } | HostEvent::SessionEnded { .. } => None,
        };
        if self.hear_of_lent(key, seat, event, &mut before) {
            return;
        }
        match event {
            HostEvent::Open { export, generation, is_new, slots, slot_bytes, .. } => {
                let wanted = (generation, is_new);
                let opened = self.open_for_client(key, export, wanted, (slots, slot_bytes));
                if opened.is_err()
                    && let Some(one) = self.export(key, export)
                {
                    one.had = before;
                }
                let is_open = opened.is_ok();
                let (kept, opened) = match opened {
                    Ok(opened) => (generation, Some(Box::new(opened))),
                    Err((kept, why)) => {
                        why.note_in(&mut self.rooms.turn.defects);
                        let disk = self.export(key, export).map(|export| export.disk.clone());
                        self.log_of_link(key, |link| {
                            warn!(link = link.plan.id, disk, "no client gets it: {why}");
                        });
                        (kept, None)
                    }
                };
                self.tell_seat(key, seat, ToHost::Opened { export, generation: kept, opened });
                if is_open {
                    self.is_at(key, seat, (export, generation));
                }
            }
            HostEvent::LetGo { export, .. } => self.let_go_of(key, export),
            HostEvent::SessionBegan { session, client } => {
                self.note_client(key, session, Some(client))
            }
            HostEvent::SessionEnded { session } => self.note_client(key, session, None),
        }
    }

    /// A line about a link, unless there were many: peers can cause them.
    pub(super) fn log_of_link(&mut self, key: LinkKey, line: impl FnOnce(&OneLink)) {
        if let Some(link) = self.rooms.remote.link(key)
            && link.log.allows(self.rooms.turn.now())
        {
            line(link);
        }
    }

    pub(super) fn export(&mut self, key: LinkKey, number: u16) -> Option<&mut Export> {
        self.rooms.remote.link(key)?.serving()?.export(number)
    }

    /// A client is to have a disk, of the generation that is wanted, new or not. If it cannot: the one that is kept, if
    /// that is why, and why.
    fn open_for_client(
        &mut self,
        key: LinkKey,
        number: u16,
        wanted: (u64, bool),
        size: (u16, u32),
    ) -> Result<Opened, (u64, ExportError)> {
        let export = self.export(key, number).filter(|export| !export.is_removed);
        let device = export.map(|export| export.device).ok_or((0, ExportError::Removed))?;
        let is_here = self.rooms.devices.disk(device).is_some_and(DiskParts::is_here);
        if !is_here && !self.take_locks(device) {
            let why = self
                .rooms
                .devices
                .disk(device)
                .and_then(|disk| disk.waits_for(self.rooms.turn.now()));
            return Err((0, why.map_or(ExportError::Away, ExportError::Waits)));
        }
        let made = self.give_memory(key, number, size).map_err(|why| (0, why));
        // Last, since nothing takes it back.
        let opened = made.and_then(|opened| self.keep_generation(device, wanted).map(|()| opened));
        let opened = opened.and_then(|opened| {
            self.attach_export(key, number).map(|()| opened).map_err(|why| (0, why))
        });
        if opened.is_err() {
            if let Some(export) = self.export(key, number) {
                export.held = None;
            }
            // The locks of a disk that follow its clients go again.
            self.rooms.turn.touch(device);
        }
        opened
    }

    /// Has it survive this daemon that a disk has changed hands. Under its lock: of several IOhosts with one image
    /// one says the next number.
    fn keep_generation(
        &mut self,
        device: u32,
        (generation, is_new): (u64, bool),
    ) -> Result<(), (u64, ExportError)> {
        let parts = self.rooms.devices.disk(device).ok_or((0, ExportError::NotOpen))?;
        let (id, image) = (&parts.plan.id, Generations::beside(&parts.plan));
        let generations = &self.rooms.remote.generations;
        let cannot = |error| (0, ExportError::Keep(error));
        let kept = generations.of(id, image).map_err(cannot)?;
        if kept == generation && !is_new {
            return Ok(());
        }
        if kept >= generation {
            return Err((kept, ExportError::Had));
        }
        generations.keep(id, image, generation).map_err(cannot)
    }

    /// What a client needs of a disk: memory, and a queue.
    fn give_memory(
        &mut self,
        key: LinkKey,
        number: u16,
        (slots, slot_bytes): (u16, u32),
    ) -> Result<Opened, ExportError> {
        let export = self.export(key, number).ok_or(NO_EXPORT)?;
        let (device, disk) = (export.device, export.disk.clone());
        let parts = self.rooms.devices.disk(device).ok_or(ExportError::NotOpen)?;
        let (verifier, image) = (verifier_of(&self.rooms.remote, parts), parts.bond.number());
        let memory = AttachmentMemory::new(slots, slot_bytes).map_err(ExportError::Memory)?;
        let counters = Arc::new(AttachmentCounters::default());
        let held = Held { memory: memory.clone(), base: 0, is_refused: false };
        let export = self.export(key, number).ok_or(NO_EXPORT)?;
        (export.held, export.leaving) = (Some(held), None);
        self.log_of_link(key, |link| info!(link = link.plan.id, disk, "a client has it"));
        let key = sidecore::QueueKey { device, queue: 0 };
        Ok(Opened { verifier, image, memory, key, counters })
    }

    /// Makes the queue of a disk that a client has, and gives it to the link's sidecore.
    pub(super) fn attach_export(&mut self, key: LinkKey, number: u16) -> Result<(), ExportError> {
        let missing = ExportError::Missing;
        let link = self.rooms.remote.link(key).ok_or(missing("link of that number"))?;
        let export = link.serving().and_then(|serving| serving.export(number));
        let export = export.ok_or(NO_EXPORT)?;
        let (number, seat) = (export.device, export.had.as_ref().map_or(0, |had| had.seat));
        let held = export.held.as_ref().ok_or(missing("memory of what a client has"))?;
        let queue = held.memory.queue(held.base).map_err(ExportError::Queue)?;
        let memory = Arc::clone(held.memory.map());
        let core = link.seats.get(seat).copied().ok_or(missing("sidecore of a seat"))?;
        let device = self.rooms.devices.get_mut(number).ok_or(ExportError::NotOpen)?;
        let parts = device.kind.disk().ok_or(missing("disk that clients may have"))?;
        let negotiated = features::VERSION_1
            | features::BLK_FLUSH
            | features::BLK_DISCARD
            | features::BLK_WRITE_ZEROES;
        let role = RoleSpec::Disk {
            blk: Blk::new(&parts.shape, Arc::clone(&parts.live), negotiated),
            backend: parts.disk.backend(),
        };
        let (share, policy) = (device.facts.service.share, policy_of(device.facts.service.policy));
        let (target_ns, moderate_ns) = (device.facts.service.target_ns(), 0);
        let flow = Flow::of(&device.kind, 0);
        let key = device.key(0);
        let state = device.queues.first_mut().ok_or(missing("queue of a disk"))?;
        if state.is_attached() {
            return Ok(());
        }
        let gate = device.metered.gate(flow, state.is_exported(queue.size()));
        let (kick, call) = (None, None);
        let counters = Arc::clone(state.counters());
        let spec = ServedSpec {
            key,
            queue,
            memory,
            role,
            kick,
            call,
            share,
            policy,
            target_ns,
            moderate_ns,
            gate,
            counters,
        };
        if !state.attach(Place { core, owner: Owner::Link, by_hand: false }) {
            return Err(missing("idle queue of a disk"));
        }
        self.rooms.cores.wake(core);
        self.rooms.cores.take_load(core, 1);
        self.rooms.cores.send(core, Command::Attach(Served::new(spec)));
        Ok(())
    }

    /// The export that a device is.
    pub(super) fn export_of(&mut self, device: u32) -> Option<(LinkKey, u16)> {
        self.rooms.remote.links.iter_mut().enumerate().find_map(|(at, link)| {
            let exports = &link.serving()?.exports;
            let number = exports.iter().rposition(|export| export.device == device)?;
            Some((LinkKey(at as u16), number as u16))
        })
    }

    /// The queue of a disk that a link serves is back, at `base` of its ring.
    pub(crate) fn export_is_back(&mut self, device: u32, base: u32, problem: Option<&str>) {
        let export = self.export_of(device);
        let (key, number) =
            found!(self.rooms.turn.defects, export, "export of a queue that a link had");
        if let Some(problem) = problem {
            self.log_of_link(key, |link| {
                warn!(link = link.plan.id, device, "what a client has is not served: {problem}");
            });
        }
        let export =
            found!(self.rooms.turn.defects, self.export(key, number), "export of that number");
        // None: its link was opened anew meanwhile.
        if let Some(held) = &mut export.held {
            (held.base, held.is_refused) = (base, problem.is_some());
        }
        if matches!(export.leaving, Some(Leaving::Waits)) {
            self.sync_export(key, number);
        }
    }

    /// The queues of a device may start: that of a disk which a client has does.
    pub(crate) fn settle_export(&mut self, device: u32) {
        // Of all devices: it may be no link's.
        let Some((key, number)) = self.export_of(device) else { return };
        let has_size = self
            .rooms
            .devices
            .disk(device)
            .map(|parts| (parts.disk.size_bytes(), Features::of(parts).bits()));
        let export =
            found!(self.rooms.turn.defects, self.export(key, number), "export of that number");
        if export.held.as_ref().is_none_or(|held| held.is_refused) || export.leaving.is_some() {
            return;
        }
        let is_attached =
            self.rooms.devices.get(device).is_some_and(|device| !device.attached().is_empty());
        if is_attached {
            return;
        }
        if let Err(why) = self.attach_export(key, number) {
            warn!(device, "what a client has is not served: {why}");
            why.note_in(&mut self.rooms.turn.defects);
        }
        if let Some((size, features)) = has_size {
            let told = || ToHost::Update { export: number, size, features };
            self.tell_seats(key, None, told);
        }
    }

    /// A disk has another size: clients are told.
    pub(crate) fn tell_clients(&mut self, device: u32) {
        // Its link is not open: it is told then.
        let Some((key, export)) = self.export_of(device) else { return };
        let parts = self.rooms.devices.get(device).and_then(|device| device.kind.disk());
        let parts = found!(self.rooms.turn.defects, parts, "disk that clients may have");
        let size = parts.disk.size_bytes();
        let features = Features::of(parts).bits();
        self.tell_seats(key, None, || ToHost::Update { export, size, features });
    }

    /// Nobody has a disk any more: its queue is asked for, then it is made stable.
    fn let_go_of(&mut self, key: LinkKey, number: u16) {
        let export =
            found!(self.rooms.turn.defects, self.export(key, number), "export of that number");
        export.leaving = Some(Leaving::Waits);
        let device = export.device;
        let is_attached =
            self.rooms.devices.get(device).is_some_and(|device| !device.attached().is_empty());
        match is_attached {
            true => {
                self.rooms.devices.detach(device, 0, &mut self.rooms.turn, &mut self.rooms.cores)
            }
            false => self.sync_export(key, number),
        }
    }

    fn sync_export(&mut self, key: LinkKey, number: u16) {
        let export = self.rooms.remote.serving(key).and_then(|serving| serving.export(number));
        let export = found!(self.rooms.turn.defects, export, "export of that number");
        export.held = None;
        let device = export.device;
        let now = self.rooms.turn.now();
        let parts = self.rooms.devices.disk_mut(device);
        if let Some(parts) = parts.filter(|parts| parts.stand.is_some()) {
            export.leaving = Some(Leaving::Parts);
            // One that has lost data stays, and says so.
            if !parts.let_go(device, now, &self.rooms.poll) {
                self.is_let_go(key, number, false);
            }
            return;
        }
        let Some(disk) = self.rooms.devices.disk(device).map(|parts| Arc::clone(&parts.disk))
        else {
            return self.is_let_go(key, number, false);
        };
        let begun = begin_sync(disk);
        let begun = begun.and_then(|(done, outcome)| {
            let token = Token::Synced(device);
            self.rooms
                .poll
                .add(done.as_fd(), token)
                .map(|()| Leaving::Syncs { _done: done, outcome })
        });
        match begun {
            Ok(leaving) => {
                let export = self.export(key, number);
                found!(self.rooms.turn.defects, export, "export of that number").leaving =
                    Some(leaving);
            }
            Err(error) => {
                warn!(device, %error, "what a client wrote cannot be made stable now");
                self.is_let_go(key, number, false);
            }
        }
    }

    /// The image of a disk whose locks follow its clients was made stable and let go, or could not be.
    pub(crate) fn export_has_parted(&mut self, device: u32, is_gone: bool) {
        // Of all disks: it may be no link's.
        let Some((key, number)) = self.export_of(device) else { return };
        let export = self.export(key, number);
        if export.is_some_and(|export| matches!(export.leaving, Some(Leaving::Parts))) {
            self.is_let_go(key, number, is_gone);
        }
    }

    /// What a client wrote is stable, or is not.
    pub(crate) fn has_synced(&mut self, device: u32) {
        let Some((key, number)) = self.export_of(device) else { return late("sync of a disk") };
        let export =
            found!(self.rooms.turn.defects, self.export(key, number), "export of that number");
        let Some(Leaving::Syncs { outcome, .. }) = &export.leaving else {
            return late("sync of a disk");
        };
        if let Ok(is_synced) = outcome.try_recv() {
            self.is_let_go(key, number, is_synced);
        }
    }

    fn is_let_go(&mut self, key: LinkKey, number: u16, is_synced: bool) {
        let export =
            found!(self.rooms.turn.defects, self.export(key, number), "export of that number");
        export.leaving = None;
        let (device, is_removed) = (export.device, export.is_removed);
        let disk = export.disk.clone();
        self.log_of_link(key, |link| {
            info!(link = link.plan.id, disk, is_synced, "no client has it any more");
        });
        self.is_nowhere(key, number, is_synced);
        if is_removed {
            self.remove_device(device, None);
        }
    }
}

/// Makes a disk stable on a thread of its own, because that takes as long as the disk wants.
fn begin_sync(disk: Arc<Disk>) -> std::io::Result<(OwnedFd, Receiver<bool>)> {
    let done = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let end = done.try_clone()?;
    let (tell, outcome) = sync_channel(1);
    std::thread::Builder::new().name("parting".to_string()).spawn(move || {
        let _ = confine::thread(Thread::Parting);
        let is_synced = disk.sync();
        drop(disk);
        let _ = tell.send(is_synced);
        let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
    })?;
    Ok((done, outcome))
}
