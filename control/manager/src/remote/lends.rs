//! Disks for other machines: which ones clients may have, opened and let go as the link asks.
//!
//! A disk that a link's clients may have is a device without a socket. When one of them takes it, it gets memory of
//! ours with a ring in it, and its queue is attached to the link's sidecore as any other; when it is let go, the queue
//! comes back and what was written is made stable. Not here: who has it (`remote::iohost`).

use std::sync::Arc;

use config::plan::LinkClientPlan;
use device::blk::Blk;
use device::features;
use remote::device_of;
use remote::handshake::PublicKey;
use remote::iohost::ExportSpec;
use remote::wire::News;
use sidecore::{
    AttachmentCounters, AttachmentMemory, Command, Opened, QueueKey, RoleSpec, Served, ServedSpec,
    ToHost,
};
use tracing::{info, warn};

use super::around::{Around, Next, Opening};
use super::error::ExportError;
use super::export::{Export, Had, Held};
use super::features::Features;
use super::host::Host;
use crate::defects::{found, late};
use crate::devices::device::Device;
use crate::devices::queue::{Owner, Place};
use crate::devices::start::policy_of;
use crate::disk::{DiskParts, staging};
use crate::poll::Token;

const NO_EXPORT: ExportError = ExportError::Missing("export of that number");

/// What clients are told of a disk besides its size.
fn features_of(parts: &DiskParts) -> u32 {
    Features::of(&parts.disk, parts.shape.block_size, parts.plan.readonly).bits()
}

/// Disks that clients may have.
impl Host<'_, '_> {
    /// Tells its shards of all disks that are open.
    pub(super) fn export_disks(&mut self) {
        self.serving.begin();
        let numbers: Vec<u32> = self.around.devices.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.export_disk(number));
    }

    /// A disk was opened: if clients may have it, shards are told.
    pub(super) fn export_disk(&mut self, number: u32) {
        let devices = &self.around.devices;
        let device = found!(self.around.turn.defects, devices.get(number), "device that is open");
        let id = device.facts().id.clone();
        let its = |client: &&LinkClientPlan| client.disks.contains(&id);
        let clients: Vec<&LinkClientPlan> = self.line.plan().clients().iter().filter(its).collect();
        if !self.line.is_open() || clients.is_empty() {
            return;
        }
        // Nobody named means everybody, where security is `none`.
        let clients: Vec<PublicKey> = clients.into_iter().filter_map(|one| one.key).collect();
        let parts = self.around.devices.disk_mut(number);
        let parts = found!(self.around.turn.defects, parts, "disk that clients may have");
        // Their guests are on its image from here on.
        let image = parts.bond.export();
        let (revision, size, features) = (1, parts.disk.size_bytes(), features_of(parts));
        let news = News { revision, size, features, is_removed: false };
        let kept = self.ledger.generation(parts);
        if let Some(image) = image {
            self.around.keep_image(number, &image);
        }
        let generation = match kept {
            Ok(generation) => generation,
            Err(error) => return warn!(disk = id, "no client gets it: {error}"),
        };
        let before = self.serving.number_of(&id);
        match before.and_then(|before| self.serving.export_mut(before)) {
            Some(export) => export.is_device(number),
            None => {
                let device = device_of(&id);
                self.serving.add(Export::of_disk(id, number, generation));
                let spec = ExportSpec { device, clients, news, generation };
                self.tell_shards(None, || ToHost::Export(spec.clone()));
            }
        }
    }

    /// A disk has another size: clients are told.
    pub(super) fn tell_clients(&mut self, export: u16) {
        let device = self.device_of(export);
        let parts = device.and_then(|device| self.around.devices.disk(device));
        let parts = found!(self.around.turn.defects, parts, "disk that clients may have");
        let (size, features) = (parts.disk.size_bytes(), features_of(parts));
        self.tell_shards(None, || ToHost::Update { export, size, features });
    }

    fn device_of(&self, export: u16) -> Option<u32> {
        self.serving.export(export)?.device()
    }

    fn is_attached(&self, device: u32) -> bool {
        self.around.devices.get(device).is_some_and(|device| !device.attached().is_empty())
    }
}

/// Disks that clients take.
impl Host<'_, '_> {
    /// A client at that shard is to have a disk, of the generation that is wanted, new or not. Its locks may have to come
    /// first.
    pub(super) fn lend_disk(
        &mut self,
        shard: usize,
        export: u16,
        (generation, is_new): (u64, bool),
        (slots, slot_bytes): (u16, u32),
        before: Option<Had>,
    ) {
        let one = self.serving.export(export).filter(|one| !one.is_removed());
        let device = one.and_then(Export::device);
        let key = self.line.key();
        let opening = |device| Opening {
            device,
            key,
            export,
            shard,
            generation,
            is_new,
            slots,
            slot_bytes,
            before,
        };
        match device {
            None => self.answer(opening(0), Err((0, ExportError::Removed))),
            Some(device)
                if self.around.devices.disk(device).is_some_and(|disk| disk.locks.is_here()) =>
            {
                self.open(opening(device), true);
            }
            Some(device) => self.around.next.push(Next::Open(opening(device))),
        }
    }

    /// The locks of a disk that a client is to have are here, or are not to be had.
    pub(super) fn open(&mut self, opening: Opening, is_here: bool) {
        let device = opening.device;
        if !is_here {
            let why = self.around.devices.disk(device).and_then(DiskParts::waits_for);
            let why = why.map_or(ExportError::Away, ExportError::Waits);
            return self.answer(opening, Err((0, why)));
        }
        let opened = self.give(&opening);
        if opened.is_err() {
            let export = self.serving.export_mut(opening.export);
            if let Some(loan) = export.and_then(Export::loan_mut) {
                loan.take_back();
            }
            // The locks of a disk that follow its clients go again.
            self.around.turn.touch(device);
        }
        self.answer(opening, opened);
    }

    /// If it cannot: the generation that is kept, if that is why, and why.
    fn give(&mut self, opening: &Opening) -> Result<Opened, (u64, ExportError)> {
        let opened = self.give_memory(opening).map_err(|why| (0, why))?;
        let parts = self.around.devices.disk(opening.device).ok_or((0, ExportError::NotOpen))?;
        // Last, since nothing takes it back.
        self.ledger.keep_generation(parts, (opening.generation, opening.is_new))?;
        self.attach(opening.export).map_err(|why| (0, why))?;
        Ok(opened)
    }

    fn answer(&mut self, opening: Opening, opened: Result<Opened, (u64, ExportError)>) {
        let Opening { export, shard, generation, before, .. } = opening;
        match opened {
            Ok(opened) => {
                let opened = Some(Box::new(opened));
                self.tell_shard(shard, ToHost::Opened { export, generation, opened });
                self.is_at(shard, (export, generation));
            }
            Err((kept, why)) => {
                why.note_in(&mut self.around.turn.defects);
                let may_log = self.may_log();
                let one = self.serving.export_mut(export);
                if may_log {
                    let disk = one.as_ref().map(|one| one.name());
                    warn!(link = self.line.id(), disk, "no client gets it: {why}");
                }
                one.into_iter().for_each(|one| one.take_back(before.clone()));
                self.tell_shard(shard, ToHost::Opened { export, generation: kept, opened: None });
            }
        }
    }

    /// What a client needs of a disk: memory, and a queue.
    fn give_memory(&mut self, opening: &Opening) -> Result<Opened, ExportError> {
        let device = opening.device;
        let parts = self.around.devices.disk(device).ok_or(ExportError::NotOpen)?;
        let (verifier, image) = (self.ledger.verifier_of(parts), parts.bond.number());
        let memory = AttachmentMemory::new(opening.slots, opening.slot_bytes);
        let memory = memory.map_err(ExportError::Memory)?;
        let held = Held { memory: memory.clone(), base: 0, is_refused: false };
        let may_log = self.may_log();
        let export = self.serving.export_mut(opening.export).ok_or(NO_EXPORT)?;
        export.loan_mut().ok_or(NO_EXPORT)?.give(held);
        if may_log {
            info!(link = self.line.id(), disk = export.name(), "a client has it");
        }
        let (key, counters) = (QueueKey { device, queue: 0 }, Arc::default());
        let counters: Arc<AttachmentCounters> = counters;
        Ok(Opened { verifier, image, memory, key, counters })
    }

    /// Makes the queue of a disk that a client has, and gives it to the link's sidecore.
    fn attach(&mut self, number: u16) -> Result<(), ExportError> {
        let missing = ExportError::Missing;
        let export = self.serving.export(number).ok_or(NO_EXPORT)?;
        let held = export.loan().and_then(|loan| loan.held());
        let held = held.ok_or(missing("memory of what a client has"))?;
        let core = self.line.core(export.shard().unwrap_or(0));
        let core = core.ok_or(missing("sidecore of a shard"))?;
        let device = export.device().and_then(|device| self.around.devices.get_mut(device));
        let device = device.ok_or(ExportError::NotOpen)?;
        let Some(served) = make_queue(device, held)? else { return Ok(()) };
        let state = device.queue_mut(0).ok_or(missing("queue of a disk"))?;
        if !state.attach(Place { core, owner: Owner::Link, by_hand: false }) {
            return Err(missing("idle queue of a disk"));
        }
        self.around.cores.wake(core);
        self.around.cores.take_load(core, 1);
        self.around.cores.send(core, Command::Attach(served));
        Ok(())
    }

    /// The queues of a disk may start: that of one which a client has does.
    pub(super) fn settle(&mut self, number: u16) {
        let Some(device) = self.device_of(number).filter(|device| !self.is_attached(*device))
        else {
            return;
        };
        let loan = self.serving.export(number).and_then(Export::loan);
        // After a process that died the disk is taken anew, and requests wait for it.
        if let Some(disk) = self.around.devices.disk(device).filter(|disk| !disk.locks.is_here()) {
            if disk.locks.is_fenced() && loan.is_some_and(|loan| loan.waits()) {
                self.sync(number);
            }
            return;
        }
        if loan.is_some_and(|loan| loan.waits()) {
            return self.sync(number);
        }
        let is_refused = loan.and_then(|loan| loan.held()).is_none_or(|held| held.is_refused);
        if let Some(disk) = self.around.devices.disk_mut(device) {
            disk.forget_unbegun();
        }
        if is_refused {
            return;
        }
        if let Err(why) = self.attach(number) {
            warn!(device, "what a client has is not served: {why}");
            why.note_in(&mut self.around.turn.defects);
        }
        if self.around.devices.disk(device).is_some() {
            self.tell_clients(number);
        }
    }
}

/// The queue of a disk that a client has. `None`: it has it already.
fn make_queue(device: &mut Device, held: &Held) -> Result<Option<Box<Served>>, ExportError> {
    let queue = held.memory.queue(held.base).map_err(ExportError::Queue)?;
    let memory = Arc::clone(held.memory.map());
    let disk = device.disk_and_queues();
    let disk = disk.and_then(|(disk, queues)| Some((&*disk, queues.first_mut()?)));
    let disk = disk.ok_or(ExportError::Missing("queue of a disk"))?;
    // The queue is ours: nothing was promised to anybody.
    let (stages, through) = staging::at_start(Some(disk), 0, 0);
    let parts = device.disk();
    let parts = parts.ok_or(ExportError::Missing("disk that clients may have"))?;
    let negotiated = features::VERSION_1
        | features::BLK_FLUSH
        | features::BLK_DISCARD
        | features::BLK_WRITE_ZEROES;
    let backend = parts.disk.backend_through(stages);
    let blk = Blk::new(&parts.shape, Arc::clone(&parts.live), negotiated);
    let role = RoleSpec::Disk { blk, backend };
    let (share, policy) = (device.facts().service.share, policy_of(device.facts().service.policy));
    let (target_ns, moderate_ns) = (device.facts().service.target_ns(), 0);
    let key = device.key(0);
    let state = device.queue_mut(0).ok_or(ExportError::Missing("queue of a disk"))?;
    if state.is_attached() {
        return Ok(None);
    }
    let (kept, counters) = (state.is_exported(queue.size()), Arc::clone(state.counters()));
    state.staged_mut().begins(through);
    let gate = device.gate(0, kept);
    let (kick, call) = (None, None);
    Ok(Some(Served::new(ServedSpec {
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
    })))
}

/// Disks that are let go of.
impl Host<'_, '_> {
    /// Nobody has a disk any more: its queue is asked for, then it is made stable.
    pub(super) fn let_go_of(&mut self, number: u16, is_released: bool) {
        let export = self.serving.export_mut(number);
        let export = found!(self.around.turn.defects, export, "export of that number");
        export.leave(is_released, self.around.turn.now());
        let loan = export.loan_mut();
        found!(self.around.turn.defects, loan, "disk that is let go of").leave();
        let device = self.device_of(number);
        match device.filter(|device| self.is_attached(*device)) {
            Some(device) => {
                let Around { devices, turn, cores, .. } = &mut *self.around;
                devices.detach(device, 0, turn, cores);
            }
            None => self.sync(number),
        }
    }

    /// The queue of a disk is back, at `base` of its ring.
    pub(super) fn is_back(&mut self, number: u16, base: u32, problem: Option<&str>) {
        if let Some(problem) = problem
            && self.may_log()
        {
            let (link, device) = (self.line.id(), self.device_of(number));
            warn!(link, device, "what a client has is not served: {problem}");
        }
        let loan = self.serving.export_mut(number).and_then(Export::loan_mut);
        let loan = found!(self.around.turn.defects, loan, "export of that number");
        // None: its link was opened anew meanwhile.
        if let Some(held) = loan.last_held() {
            (held.base, held.is_refused) = (base, problem.is_some());
        }
        if loan.waits() {
            self.sync(number);
        }
    }

    fn sync(&mut self, number: u16) {
        let turn = &mut *self.around.turn;
        let export = self.serving.export(number);
        let (device, left_at) = (export.and_then(Export::device), export.and_then(Export::left_at));
        let loan = self.serving.export_mut(number).and_then(Export::loan_mut);
        let (device, loan) = found!(turn.defects, device.zip(loan), "disk that is let go of");
        let longest = self.around.devices.get(device).map(Device::longest_wait);
        let Some((parts, longest)) = self.around.devices.disk_mut(device).zip(longest) else {
            return self.is_let_go(number, false);
        };
        if parts.locks.is_fenced() {
            // Whoever had it is told when it is here again, and stable (`settle`); or that it is not, where nobody knows
            // whether it ever comes.
            if left_at.is_none_or(|since| !parts.comes_back(since, longest, turn.now())) {
                self.is_let_go(number, false);
            }
            return;
        }
        if parts.locks.is_away() {
            // With them went what was written, made stable.
            return self.is_let_go(number, true);
        }
        let now = turn.now();
        // For as long as any front-end waits.
        let may_wait = left_at.is_some_and(|since| now < since + longest);
        let is_begun = if parts.locks.follows() {
            let parts_now =
                parts.locks.parting().is_some() || parts.let_go(device, now, self.around.poll);
            parts_now.then(|| loan.part())
        } else {
            let sync = parts.begin_sync(Token::Synced(device), now, self.around.poll);
            sync.map(|sync| loan.sync(sync))
        };
        match is_begun {
            Some(true) => {}
            Some(false) => turn.defects.note("disk that waited for its queue"),
            None if parts.unbegun_why().is_some() && may_wait => {}
            // One that has lost data stays, and says so.
            None => {
                parts.forget_unbegun();
                self.is_let_go(number, false);
            }
        }
    }

    /// The image of a disk whose locks follow its clients was made stable and let go, or could not be.
    pub(super) fn has_parted(&mut self, number: u16, is_gone: bool) {
        let loan = self.serving.export(number).and_then(Export::loan);
        if loan.is_some_and(|loan| loan.parts()) {
            self.is_let_go(number, is_gone);
        }
    }

    /// What a client wrote is stable, or is not.
    pub(super) fn has_synced(&mut self, number: u16) {
        let sync = self.serving.export(number).and_then(|export| export.loan()?.syncs());
        let Some(sync) = sync else { return late("sync of a disk") };
        if let Some(kept) = sync.outcome() {
            self.is_let_go(number, kept.is_none());
        }
    }

    fn is_let_go(&mut self, number: u16, is_synced: bool) {
        let may_log = self.may_log();
        let export = self.serving.export_mut(number);
        let export = found!(self.around.turn.defects, export, "export of that number");
        export.loan_mut().into_iter().for_each(|loan| loan.end());
        let (link, disk) = (self.line.id(), export.name());
        if may_log {
            info!(link, disk, is_synced, "no client has it any more");
        }
        let removed = export.device().filter(|_| export.is_removed());
        self.is_nowhere(number, is_synced);
        self.around.next.extend(removed.map(Next::Remove));
    }
}
