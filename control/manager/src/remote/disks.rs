//! Disks of other machines: when they are asked for and given back, and what their IOhosts say of them.
//!
//! A remote disk is open here once its IOhost has said what it is. It is asked for when a guest's first ring is to
//! start, and given back when the last one has stopped, so that a guest can take its disk along to another machine. How it
//! stands, and which image its guest is on, is kept before that guest can write. Not here: where that is kept (`ledger`,
//! `bonds`), nor the comparison, which the protocol's client makes before anything is asked (`remote::client`).

use config::plan::{DiskPlan, Source};
use remote::client::{AttachSpec, Over, Refusal, Standing};
use remote::device_of;
use remote::wire::{News, REQUEST_BYTES_MAX};
use sidecore::ToClient;
use tracing::{info, warn};

use super::availability::{Availability, BUSY, FAILED, NO_DISK, words_of};
use super::client::Client;
use super::error::{LINK_FULL, LinkFull};
use super::parts::RemoteParts;
use super::using::Asked;
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

    /// Asks what disks are at which no guest is: what another process was told of them may not be so any more.
    pub(super) fn look_at_free(&mut self) {
        let mut names = Vec::new();
        for device in self.around.devices.values() {
            let remote = device.disk().and_then(|disk| disk.remote.as_ref());
            let is_free = |it: &&RemoteParts| it.link() == self.line.key() && !it.is_asked_for();
            names.extend(remote.filter(is_free).map(|remote| remote.name().to_string()));
        }
        for name in names {
            let device = device_of(&name);
            // Each has one, unless the link is full: then its guest asks.
            if let Ok(disk) = self.using.number(Asked::Look(name)) {
                self.tell(ToClient::Look { disk, device });
            }
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
        // One that its IOhost has no more is open still, says so, and is asked about until that has it again.
        let Some(news) = self.using.news_of(remote.name()) else { return };
        let number = match self.using.number(Asked::Disk(device, id.clone(), whose)) {
            Ok(number) => number,
            Err(LinkFull) => {
                remote.availability_mut().cannot_ask(LINK_FULL);
                return self.say(device);
            }
        };
        remote.availability_mut().ask(number, turn.now());
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
        let Some(number) = parts.availability_mut().release() else { return };
        if let Some(parts) = self.around.devices.disk_mut(device) {
            parts.bond.forget_refusal();
        }
        self.say(device);
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
                self.is_there(&name, news);
                self.around.retry_shut();
            }
            None => self.is_missing(&name),
        }
    }

    /// Its IOhost has no such disk for this machine: it is asked again and again.
    fn is_missing(&mut self, name: &str) {
        self.using.miss(name, self.around.turn.now());
        self.each_named(name, true);
    }

    /// Its IOhost has a disk, which is so.
    fn is_there(&mut self, name: &str, news: News) {
        self.using.know(name, news);
        self.each_named(name, false);
    }

    /// All disks of that name there are missing, or not.
    fn each_named(&mut self, name: &str, is_missing: bool) {
        self.set_named(name, is_missing).into_iter().for_each(|device| self.say(device));
    }

    /// The same, which the log is yet to be told: of these devices.
    fn set_named(&mut self, name: &str, is_missing: bool) -> Vec<u32> {
        let mut its = Vec::new();
        for (number, device) in self.around.devices.iter_mut() {
            let parts = device.disk_mut().and_then(|disk| disk.remote.as_mut());
            let is_it =
                |parts: &&mut RemoteParts| parts.link() == self.line.key() && parts.name() == name;
            let Some(parts) = parts.filter(is_it) else { continue };
            parts.availability_mut().set_missing(is_missing);
            its.push(*number);
        }
        its.iter().for_each(|device| self.around.turn.touch(*device));
        its
    }

    /// A disk that is asked for is so, or is so now; with `is_bound` its IOhost serves it from here on.
    pub(super) fn is_known(&mut self, number: u16, news: News, is_bound: bool) {
        let Some(device) = self.disk_of(number) else { return };
        if news.is_removed {
            // Its requests fail from here on, whatever is said of it next.
            return self.is_over(number, Over::Revoked);
        }
        let Some(parts) = self.parts_mut(device) else { return late("disk of a link") };
        let name = parts.name().to_string();
        self.is_there(&name, news);
        self.change(number, |availability| {
            if is_bound {
                availability.is_served();
            }
            availability.has_size(news.size);
        });
        let turn = &mut *self.around.turn;
        let parts = found!(turn.defects, self.around.devices.disk_mut(device), "disk of a link");
        if news.size != parts.disk.size_bytes() {
            info!(disk = parts.plan.id, size = news.size, "its IOhost has given it another size");
            parts.resizing = Some(news.size);
            turn.touch(device);
        }
    }

    /// Its IOhost has said no to a disk that is asked for.
    pub(super) fn is_refused(&mut self, number: u16, why: Refusal) {
        let why = match why {
            Refusal::NoDevice => {
                let name = self.asked_for(number).and_then(|parts| parts.remote.as_ref());
                if let Some(name) = name.map(|remote| remote.name().to_string()) {
                    self.is_missing(&name);
                }
                Some(NO_DISK)
            }
            Refusal::Busy => Some(BUSY),
            Refusal::Failed => Some(FAILED),
            Refusal::Changed => {
                self.is_other(number);
                None
            }
        };
        self.change(number, |availability| availability.is_refused(why));
    }

    /// Something has become of a disk that is asked for by that number; the log says what its guest's requests do then.
    /// False: it has another number since, or none.
    fn change(&mut self, number: u16, act: impl FnOnce(&mut Availability)) -> bool {
        let Some(device) = self.disk_of(number) else { return false };
        let Some(disk) = self.around.devices.disk_mut(device) else {
            late("disk of a link");
            return false;
        };
        let turn = &mut *self.around.turn;
        let Some(parts) = &mut disk.remote else {
            turn.defects.note("link of a disk that it has a number for");
            return false;
        };
        if parts.number() != Some(number) {
            return false;
        }
        act(parts.availability_mut());
        self.say(device);
        true
    }

    /// Says in the log what requests of a disk do, if that is news.
    fn say(&mut self, device: u32) {
        let now = self.around.turn.now();
        let its = self.around.devices.get_mut(device);
        found!(self.around.turn.defects, its, "disk of a link").say_remote(now);
    }

    /// Nothing of a disk is executed any more.
    pub(super) fn is_over(&mut self, number: u16, why: Over) {
        let name = self.asked_for(number).and_then(|parts| parts.remote.as_ref());
        let mut missing = Vec::new();
        if why == Over::Revoked
            && let Some(name) = name.map(|remote| remote.name().to_string())
        {
            self.using.miss(&name, self.around.turn.now());
            missing = self.set_named(&name, true);
        }
        let had_guest = self.change(number, |availability| availability.is_over(why));
        // Only now: until it is over, the log would say that requests wait, which are about to fail.
        missing.into_iter().for_each(|device| self.say(device));
        // What was given back in order has nothing more to say.
        if !had_guest
            && why != Over::Released
            && let Some(Asked::Disk(_, disk, _)) = self.using.asked(number)
        {
            warn!(link = self.line.id(), disk, "it was given back: {}", words_of(why));
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
            self.around.keep_image(device, &image);
        }
    }

    /// Its IOhost has another image than the one that the guest of a disk is on: nothing is asked of it.
    fn is_other(&mut self, number: u16) {
        let Some(parts) = self.asked_for(number) else { return late("disk of a link") };
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
            Asked::Look(_) | Asked::Nic(_) | Asked::GivenBack => None,
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
