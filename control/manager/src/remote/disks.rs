//! Disks of other machines: when they are asked for and given back, and what their IOhosts say of them.
//!
//! A remote disk is open here once its IOhost has said what it is. It is asked for when a guest's first ring is to
//! start, and given back when the last one has stopped, so that a guest can take its disk along to another machine. How it
//! stands, and which image its guest is on, is kept before that guest can write. Not here: where that is kept (`ledger`,
//! `bonds`), nor the comparison, which the protocol's client makes before anything is asked (`remote::client`).

use config::api::Removed;
use config::plan::{DiskPlan, Source};
use remote::client::{AttachSpec, Over, Standing};
use remote::device_of;
use remote::wire::{News, REQUEST_BYTES_MAX};
use sidecore::ToClient;
use tracing::{info, warn};

use super::client::Client;
use super::parts::RemoteParts;
use super::using::{Asked, NO_DISK};
use crate::defects::{found, late};
use crate::disk::DiskParts;
use crate::opening::not_open::NotOpen;

/// Outstanding parts of requests of one disk.
const SLOTS: u16 = 128;

/// Disks that are opened, asked for, given back.
impl Client<'_, '_> {
    /// Opens a disk, if it is known what that is.
    ///
    /// # Errors
    /// It is not: its IOhost is asked.
    pub(super) fn open(&mut self, plan: DiskPlan) -> Result<DiskParts, NotOpen> {
        let Source::Remote { link: id, name } = &plan.source else {
            return Err(NotOpen::Wrong("it is no disk of another machine".to_string()));
        };
        let news = match self.using.look_up(name, self.around.turn.now()) {
            Ok(news) => news,
            Err(why) => {
                let why = NotOpen::Ended(format!("{why} (link {id:?})"));
                self.ask_again();
                return Err(why);
            }
        };
        let at = (self.line.key(), self.line.core(0).unwrap_or(0));
        let parts = RemoteParts::new(at, name, self.using.silent_since());
        let disk = parts.disk(&news, plan.readonly);
        Ok(DiskParts::of_remote(plan, disk, parts))
    }

    /// Asks IOhosts what disks are, of which that is not known.
    pub(super) fn ask_again(&mut self) {
        if !self.line.is_open() {
            return;
        }
        for (disk, device) in self.using.looks(self.around.turn.now()) {
            self.tell(ToClient::Look { disk, device });
        }
    }

    /// Asks for a disk when a ring of it is to start, and gives it back when none is there any more.
    pub(super) fn follow(&mut self, device: u32) {
        let devices = &self.around.devices;
        let its = found!(self.around.turn.defects, devices.get(device), "device that is settled");
        let Some(parts) = its.disk().and_then(|disk| disk.remote.as_ref()) else { return };
        let is_idle = its.attached().is_empty() && !its.is_started(None);
        match parts.is_asked_for() {
            false if its.wants_to_start() => self.take(device),
            true if is_idle => self.release(device),
            _ => {}
        }
    }

    fn take(&mut self, device: u32) {
        let (turn, devices) = (&mut *self.around.turn, &mut *self.around.devices);
        let its = found!(turn.defects, devices.get_mut(device), "device that is settled");
        let runner = its.runner().and_then(|runner| its.connection(runner));
        let is_running = runner.is_some_and(|one| one.is_running(its.facts().rings));
        let parts = found!(turn.defects, its.disk_mut(), "disk that is asked for");
        let whose = RemoteParts::whose(&parts.plan);
        let whose = found!(turn.defects, whose, "IOhost of a disk that is asked for");
        let image = if is_running { parts.bond.told_number() } else { 0 };
        let (id, readonly, size) =
            (parts.plan.id.clone(), parts.plan.readonly, parts.disk.size_bytes());
        let remote = parts.remote.as_mut();
        let remote = found!(turn.defects, remote, "link of a disk that is asked for");
        let is_lost = remote.is_lost();
        let none = Standing { verifier: None, is_unflushed: false, is_lost, image };
        let standing = match self.ledger.standing(&id, &whose) {
            None => Some(none).filter(|_| is_lost || image != 0),
            Some(standing) => Some(Standing { is_lost, image, ..standing }),
        };
        // One that its IOhost has no more is open still, and is asked about until that has it again.
        let Some(news) = self.using.news_of(remote.name()) else { return };
        let number = match self.using.number(Asked::Disk(device, id.clone(), whose)) {
            Ok(number) => number,
            Err(why) => return its.say_problem(why.to_string()),
        };
        remote.ask(number, turn.now());
        parts.disk = remote.disk(&News { size, ..news }, readonly);
        let spec = AttachSpec {
            device: device_of(remote.name()),
            slots: SLOTS,
            slot_bytes: REQUEST_BYTES_MAX as u32,
            keep_bytes: self.using.keep_bytes(),
        };
        self.tell(ToClient::Attach { disk: number, spec, standing });
        if !is_running {
            // A guest that begins anew is on whatever is there.
            self.is_on(device, &id, 0);
            self.tell(ToClient::Accept(number));
        }
    }

    /// A disk is given back, if it was asked for.
    pub(super) fn release(&mut self, device: u32) {
        let Some(parts) = self.parts_mut(device) else { return late("disk of a link") };
        let Some(number) = parts.release() else { return };
        let its = self.around.devices.get_mut(device);
        let its = found!(self.around.turn.defects, its, "disk of a link");
        // What its IOhost said of it is over.
        its.forget_problem();
        if let Some(parts) = its.disk_mut() {
            parts.bond.forget_refusal();
        }
        // Its link says when nothing of it is executed any more, and when its number is free.
        self.tell(ToClient::Release(number));
    }

    /// An operator knows what a disk has lost.
    pub(super) fn forgive(&mut self, device: u32) {
        let Some(parts) = self.parts_mut(device) else { return late("disk of a link") };
        parts.set_lost(false);
        if let Some(number) = parts.number() {
            self.tell(ToClient::Forgive(number));
        }
    }

    /// An operator has a guest go on with what its IOhost has.
    pub(super) fn accept(&mut self, device: u32) {
        let number = self.parts_mut(device).and_then(|parts| parts.number());
        if let Some(number) = number {
            self.tell(ToClient::Accept(number));
        }
    }

    fn parts_mut(&mut self, device: u32) -> Option<&mut RemoteParts> {
        self.around.devices.disk_mut(device)?.remote.as_mut()
    }
}

/// What an IOhost says of disks.
impl Client<'_, '_> {
    /// What a disk is.
    pub(super) fn looked(&mut self, number: u16, news: Option<News>) {
        let Some(Asked::Look(name)) = self.using.free(number) else {
            return self.around.turn.defects.note("name of a disk that was looked at");
        };
        match news.filter(|news| !news.is_removed) {
            Some(news) => {
                self.using.know(&name, news);
                self.is_there_again(&name);
                self.around.retry_shut();
            }
            None => self.using.miss(&name, NO_DISK, self.around.turn.now()),
        }
    }

    /// Its IOhost has a disk no more.
    pub(super) fn is_removed_there(&mut self, number: u16, removed: Removed) {
        // What is only looked at is told of otherwise.
        let Some(device) = self.disk_of(number) else { return };
        let Some(parts) = self.parts_mut(device) else { return late("disk of a link") };
        parts.set_removed(Some(removed));
        let name = parts.name().to_string();
        self.using.miss(&name, "its IOhost has removed it", self.around.turn.now());
    }

    /// Its IOhost has a disk that it had removed.
    fn is_there_again(&mut self, name: &str) {
        for (number, device) in self.around.devices.iter_mut() {
            let parts = device.disk_mut().and_then(|disk| disk.remote.as_mut());
            let is_it =
                |parts: &&mut RemoteParts| parts.link() == self.line.key() && parts.name() == name;
            let Some(parts) = parts.filter(is_it) else { continue };
            parts.set_removed(None);
            self.around.turn.touch(*number);
        }
    }

    /// A disk that is asked for is so, or is so now.
    pub(super) fn is_known(&mut self, number: u16, news: News) {
        let Some(device) = self.disk_of(number) else { return };
        let Some(parts) = self.parts_mut(device) else { return late("disk of a link") };
        let name = parts.name().to_string();
        if news.is_removed {
            return;
        }
        self.using.know(&name, news);
        self.is_there_again(&name);
        let turn = &mut *self.around.turn;
        let parts = found!(turn.defects, self.around.devices.disk_mut(device), "disk of a link");
        if let Some(remote) = &mut parts.remote {
            remote.note_size(number, news.size);
        }
        if news.size != parts.disk.size_bytes() {
            info!(disk = parts.plan.id, size = news.size, "its IOhost has given it another size");
            parts.resizing = Some(news.size);
            turn.touch(device);
        }
    }

    /// Something has become of a disk that is asked for: `act` says what is wrong with it now, if anything is.
    pub(super) fn note_disk(
        &mut self,
        number: u16,
        act: impl FnOnce(&mut RemoteParts) -> Option<&'static str>,
    ) {
        let Some(device) = self.disk_of(number) else { return };
        let Some(device) = self.around.devices.get_mut(device) else {
            return late("disk of a link");
        };
        let turn = &mut *self.around.turn;
        let parts = device.disk_mut().and_then(|disk| disk.remote.as_mut());
        let parts = found!(turn.defects, parts, "link of a disk that it has a number for");
        // It has another number since, or none.
        if parts.number() != Some(number) {
            return;
        }
        let problem = act(parts);
        if device.note_problem(problem) {
            match problem {
                Some(problem) if device.may_log(turn.now()) => {
                    warn!(disk = device.facts().id, "{problem}")
                }
                None => info!(disk = device.facts().id, "its IOhost serves it"),
                Some(_) => {}
            }
        }
    }

    /// Nothing of a disk is executed any more.
    pub(super) fn is_over(&mut self, number: u16, why: Over) {
        let text = match why {
            Over::Released => None,
            Over::Unsynced => {
                Some("its IOhost could not make stable what was written last; check its data")
            }
            Over::Revoked => {
                Some("its IOhost has given it up; restart its guest when it is there again")
            }
            Over::Taken => Some("another machine has taken it; restart its guest to have it back"),
            Over::Changed => {
                Some("it was given back: its IOhost has another image than its guest was on")
            }
            Over::Silent => {
                Some("its IOhost fell silent, and requests failed; it is asked for anew")
            }
        };
        // Nothing is wrong.
        let Some(text) = text else { return };
        let mut has_guest = false;
        self.note_disk(number, |parts| {
            has_guest = true;
            parts.is_over();
            Some(text)
        });
        if !has_guest && let Some(Asked::Disk(_, disk, _)) = self.using.asked(number) {
            warn!(link = self.line.id(), disk, "{text}");
        }
    }

    /// How a disk stands is kept before its guest can write, and a loss beyond a power cut.
    pub(super) fn stands(&mut self, number: u16, standing: Option<Standing>) {
        // Nothing is kept of a NIC.
        let Some(Asked::Disk(device, id, whose)) = self.asked(number) else { return };
        self.ledger.keep_standing(&id, &whose, standing);
        let is_lost = standing.is_some_and(|standing| standing.is_lost);
        self.is_on(device, &id, standing.map_or(0, |standing| standing.image));
        if !is_lost {
            return;
        }
        let Some(parts) = self.parts_mut(device) else { return late("disk of a link") };
        if parts.set_lost(true) {
            self.around.mark_unsynced(device);
        }
    }

    /// The guest of a disk is on that image of its IOhost's; 0: on whatever it has.
    fn is_on(&mut self, device: u32, id: &str, image: u64) {
        let parts = self.around.devices.disk_mut(device).filter(|parts| parts.plan.id == id);
        if let Some(image) = parts.and_then(|parts| parts.bond.tell(image)) {
            self.around.keep_image(id, &image);
        }
    }

    /// Its IOhost has another image than the one that the guest of a disk is on: nothing is asked of it.
    pub(super) fn is_other(&mut self, number: u16) {
        let Some(parts) = self.asked_for(number) else { return late("disk of a link") };
        if let Some(remote) = &mut parts.remote {
            remote.end_asking();
        }
        let (id, name) = (parts.plan.id.clone(), parts.bond.name());
        parts.bond.refuse_there(format!(
            "its guest was on another image of {name}, or other contents, than its IOhost has now: its requests \
             wait; put that image back there, or start the guest anew; `sidecore disk accept {id}` has it go on \
             with what is there, which destroys data unless both hold the same"
        ));
        if !parts.bond.is_refused_again()
            && let Some(why) = parts.bond.refused()
        {
            warn!(disk = id, "{why}");
        }
    }

    /// The device whose disk has that number of its link, or had it before it was given back: it may be gone. `None`: it
    /// is no disk's that is asked for.
    fn disk_of(&mut self, number: u16) -> Option<u32> {
        match self.asked(number)? {
            Asked::Disk(device, ..) => Some(device),
            Asked::Look(_) | Asked::Nic(_) => None,
        }
    }

    /// The disk that is asked for by that number.
    pub(super) fn asked_for(&mut self, number: u16) -> Option<&mut DiskParts> {
        let device = self.disk_of(number)?;
        let is_it = |parts: &&mut DiskParts| {
            parts.remote.as_ref().is_some_and(|remote| remote.number() == Some(number))
        };
        self.around.devices.disk_mut(device).filter(is_it)
    }
}
