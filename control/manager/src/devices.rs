//! The devices that are open, by number.

pub(crate) mod beginning;
pub(crate) mod connection;
pub(crate) mod device;
pub(crate) mod device_plan;
pub(crate) mod frame_socket;
pub(crate) mod front_end;
pub(crate) mod kind;
pub(crate) mod lent;
pub(crate) mod log_rate;
pub(crate) mod metered;
pub(crate) mod queue;
pub(crate) mod start;
pub(crate) mod unrecorded;

use std::collections::BTreeMap;
use std::collections::btree_map::{Iter, IterMut, Keys, Values, ValuesMut};
use std::time::Instant;

use config::Plan;
use sidecore::nanos_of;

use sidecore::Command;

use crate::defects::found;
use crate::devices::device::Device;
use crate::devices::queue::Queue;
use crate::disk::DiskParts;
use crate::disk::bonds::Bonds;
use crate::disk::image::Image;
use crate::disk::images::FileId;
use crate::network::nic::NicParts;
use crate::opening::not_open::NotOpen;
use crate::sidecores::Cores;
use crate::turn::Turn;

/// Disks and NICs that are open. A number is never used again.
#[derive(Default)]
pub(crate) struct Devices {
    all: BTreeMap<u32, Device>,
    next_number: u32,
    next_connection: u32,
}

impl Devices {
    /// The number of the device that is put in next.
    pub(crate) fn next_number(&self) -> u32 {
        self.next_number
    }

    /// A number for a connection, which no other has.
    pub(crate) fn number_connection(&mut self) -> u32 {
        let id = self.next_connection;
        self.next_connection = self.next_connection.wrapping_add(1);
        id
    }

    /// Counts [`Self::next_number`] as used.
    pub(crate) fn use_number(&mut self) {
        self.next_number += 1;
    }

    pub(crate) fn insert(&mut self, number: u32, device: Device) -> Option<Device> {
        self.all.insert(number, device)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Device> {
        self.all.remove(&number)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Device> {
        self.all.get(&number)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Device> {
        self.all.get_mut(&number)
    }

    /// The images of the disks that are open, by their paths.
    pub(crate) fn images(&self) -> Vec<&str> {
        self.values().filter_map(|device| device.disk()?.plan.source.path()).collect()
    }

    /// Whoever asked for these disks is told that they are there: no image is taken back that was made for one.
    pub(crate) fn are_told(&mut self) {
        let there = self.values_mut().filter(|device| !device.is_going());
        there.filter_map(Device::disk_mut).for_each(|disk| disk.made = None);
    }

    /// The same of one.
    pub(crate) fn is_told(&mut self, id: &str) {
        let disk = self.named_mut(id).and_then(Device::disk_mut);
        disk.into_iter().for_each(|disk| disk.made = None);
    }

    /// What only a disk has, of one.
    pub(crate) fn disk(&self, number: u32) -> Option<&DiskParts> {
        self.get(number)?.disk()
    }

    pub(crate) fn disk_mut(&mut self, number: u32) -> Option<&mut DiskParts> {
        self.get_mut(number)?.disk_mut()
    }

    /// What only a NIC has, of one.
    pub(crate) fn nic_mut(&mut self, number: u32) -> Option<&mut NicParts> {
        self.get_mut(number)?.nic_mut()
    }

    pub(crate) fn queue_mut(&mut self, number: u32, index: u16) -> Option<&mut Queue> {
        self.get_mut(number)?.queue_mut(index)
    }

    /// As [`Device::tell`].
    pub(crate) fn tell(
        &mut self,
        number: u32,
        index: u16,
        command: Command,
        turn: &mut Turn,
        cores: &mut Cores,
    ) {
        let device = found!(turn.defects, self.get_mut(number), "device to tell something");
        device.tell(index, command, turn, cores);
    }

    /// As [`Device::detach`].
    pub(crate) fn detach(&mut self, number: u32, index: u16, turn: &mut Turn, cores: &mut Cores) {
        let device = found!(turn.defects, self.get_mut(number), "device whose queue is asked for");
        device.detach(index, turn, cores);
    }

    /// The device of that name, unless it is being removed.
    pub(crate) fn number_of(&self, id: &str) -> Option<u32> {
        let named = |device: &&Device| device.facts().id == id && !device.is_going();
        self.values().find(named).map(|device| device.number())
    }

    /// As [`Self::number_of`].
    pub(crate) fn named_mut(&mut self, id: &str) -> Option<&mut Device> {
        self.number_of(id).and_then(|number| self.get_mut(number))
    }

    /// Of the images of these disks it is known what became of them: whoever waits for one asks now.
    pub(crate) fn hurry(&mut self, ids: &[String], now: Instant) {
        for device in self.values_mut().filter(|device| ids.contains(&device.facts().id)) {
            if let Some(disk) = device.disk_mut() {
                disk.locks.hurry(nanos_of(now));
            }
        }
    }

    /// Whether the disk of that name waits for its image.
    pub(crate) fn asks_for_image(&self, id: &str) -> bool {
        let device = self.number_of(id).and_then(|number| self.get(number));
        let disk = device.and_then(|device| device.disk());
        disk.is_some_and(|disk| disk.asks_at().is_some())
    }

    /// Which disk of ours holds what `path` names, in words; the file may have several names.
    pub(crate) fn name_holder(&self, text: String, file: FileId) -> String {
        let path_of = |device: &'_ Device| {
            let parts = device.disk().filter(|parts| parts.file == Some(file))?;
            parts.plan.source.path().map(str::to_string)
        };
        let holder = self.values().find_map(|device| Some((device, path_of(device)?)));
        match holder {
            Some((device, path)) => {
                let (id, leaving) = (
                    &device.facts().id,
                    if device.is_going() { ", which is being removed" } else { "" },
                );
                format!("{text}: it is disk {id:?} ({path}) of this daemon{leaving}")
            }
            None => text,
        }
    }

    /// The disk of this daemon whose image was opened for another one too, under whatever name, when one of both has no
    /// lock to show for it now.
    pub(crate) fn shares_unlocked(&self, parts: &DiskParts) -> Option<NotOpen> {
        let plan = &parts.plan;
        let path = plan.source.path()?;
        let file = parts.file?;
        let is_it = |device: &&Device| {
            let Some(disk) = device.disk() else { return false };
            let theirs = &disk.plan;
            let may_be_unlocked = plan.migratable || theirs.migratable;
            let both_read = plan.readonly && theirs.readonly;
            let is_same = disk.file == Some(file);
            may_be_unlocked && !both_read && theirs.id != plan.id && is_same
        };
        self.values().find(is_it)?;
        Some(NotOpen::Ours(self.name_holder(format!("{path} is in use"), file)))
    }

    /// Keeps which image the guest of a device is on, which is about to be served, if that is another one.
    pub(crate) fn keep_begun(&mut self, number: u32, bonds: &mut Bonds, plan: &Plan) {
        if let Some(device) = self.get_mut(number)
            && let Some(image) = device.disk_mut().and_then(|parts| parts.bond.take_unkept())
        {
            device.keep_image(&image, bonds, plan);
        }
    }

    /// As [`Device::keep_image`].
    pub(crate) fn keep_image(
        &mut self,
        number: u32,
        image: &Image,
        bonds: &mut Bonds,
        plan: &Plan,
    ) {
        if let Some(device) = self.get_mut(number) {
            device.keep_image(image, bonds, plan);
        }
    }

    pub(crate) fn values(&self) -> Values<'_, u32, Device> {
        self.all.values()
    }

    pub(crate) fn values_mut(&mut self) -> ValuesMut<'_, u32, Device> {
        self.all.values_mut()
    }

    pub(crate) fn keys(&self) -> Keys<'_, u32, Device> {
        self.all.keys()
    }

    pub(crate) fn iter(&self) -> Iter<'_, u32, Device> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> IterMut<'_, u32, Device> {
        self.all.iter_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests;
