//! Links on their way between a daemon and the one that takes over from it: what is known of them, in words and bytes.
//!
//! Here while no sidecore has them. Keys and sessions never go: an IOhost's clients are told that theirs are over, and a
//! client's link begins one of its own. Not here: when (`upgrade`), and what a link is made of (`backend::link`,
//! `sidecore::link`). Called by `remote`, for `upgrade::links`.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use backend::link::{Address, ClientLink, LinkShards};
use remote::client::Over;
use remote::device_of;
use remote::wire::News;
use sidecore::{HostLink, Link, ToHost};

use super::client::Client;
use super::clients::Who;
use super::error::{HandingError, InheritError};
use super::host::Host;
use super::link::{End, OneLink};
use super::parts::RemoteParts;
use super::serving::Serving;
use super::using::{Asked, Using};
use super::words::{ClientWords, ExportWords, NumberWords, ShardWords, WhoWords};
use crate::defects::found;
use crate::devices::Devices;
use crate::devices::device::Device;

/// What a link begins with.
pub(super) struct Inherited {
    pub(super) sockets: LinkShards,
    pub(super) client: Option<InheritedClient>,
    /// What an IOhost's clients had, and who they are.
    pub(super) lent: Lent,
}

/// A client's end.
pub(super) struct InheritedClient {
    made: Box<ClientLink>,
    disks: Vec<NumberWords>,
    /// How its frames come and go.
    socket: &'static str,
}

/// What an IOhost goes on with.
#[derive(Default)]
pub(super) struct Lent {
    /// Devices: at which shard, their words and bytes, and whether a client has them.
    exports: Vec<(usize, ExportWords, Vec<u8>, bool)>,
    clients: Vec<(usize, WhoWords)>,
}

/// A shard of a predecessor, as it came.
pub(crate) struct InheritedShard {
    pub(crate) shard: usize,
    pub(crate) words: ShardWords,
    pub(crate) bytes: Vec<u8>,
}

impl OneLink {
    /// What is known of a shard that is here, and the bytes behind that.
    ///
    /// # Errors
    /// It cannot go over now.
    pub(super) fn save_shard(
        &self,
        shard: usize,
        made: &Link,
        devices: &Devices,
    ) -> Result<(ShardWords, Vec<u8>), HandingError> {
        match (&self.end, made) {
            (End::Client(using, _), Link::Client(made)) => {
                let repeating = || HandingError::Repeating(self.line.id().to_string());
                let bytes = made.save().ok_or_else(repeating)?;
                let disks = words_of_disks(using, devices);
                let client = Some(ClientWords { bytes: bytes.len() as u64, disks });
                Ok((ShardWords { client, ..ShardWords::default() }, bytes))
            }
            (End::Iohost(serving), Link::Host(made)) => Ok(save_exports(serving, shard, made)),
            _ => Err(HandingError::Role),
        }
    }

    /// Makes of its shards what it begins with. `None`: it begins as one that was started anew.
    ///
    /// # Errors
    /// What makes no sense.
    pub(super) fn inherit(
        &mut self,
        sockets: Vec<OwnedFd>,
        parts: Vec<InheritedShard>,
    ) -> Result<Option<Inherited>, InheritError> {
        // It is opened when that can be, and its clients begin as with one that was started anew.
        let Some(mut sockets) = self.line.inherit_sockets(sockets)? else { return Ok(None) };
        let (mut client, mut lent) = (None, Lent::default());
        for InheritedShard { shard, words, bytes } in parts {
            let mut bytes = bytes.as_slice();
            let mut take = |count: u64| {
                let (taken, rest) = bytes.split_at_checked(count as usize)?;
                bytes = rest;
                Some(taken)
            };
            match (&mut self.end, words.client) {
                (End::Client(using, _), Some(ClientWords { bytes, disks })) => {
                    let saved = take(bytes).ok_or(InheritError::Short)?;
                    let socket = sockets.sockets.pop().ok_or(InheritError::Short)?;
                    let kind = socket.describe();
                    let made = using.make_of(self.line.plan(), socket, saved)?;
                    let has = |one: &NumberWords| made.disks().any(|disk| disk == one.number);
                    let numbers: BTreeSet<u16> = disks.iter().map(|one| one.number).collect();
                    if numbers.len() < disks.len() || !disks.iter().all(has) {
                        return Err(InheritError::Number);
                    }
                    client = Some(InheritedClient { made, disks, socket: kind });
                }
                (End::Iohost(_), None) => {
                    let shard = shard % sockets.sockets.len().max(1);
                    for export in words.exports {
                        let saved = take(export.bytes).ok_or(InheritError::Short)?.to_vec();
                        let is_had = remote::iohost::check_saved(&saved)?;
                        lent.exports.push((shard, export, saved, is_had));
                    }
                    lent.clients.extend(words.clients.into_iter().map(|who| (shard, who)));
                }
                // It had the other role: nothing of that is of use.
                _ => return Ok(None),
            }
        }
        Ok(Some(Inherited { sockets, client, lent }))
    }
}

/// Disks that have a number, and are asked for by it.
fn words_of_disks(using: &Using, devices: &Devices) -> Vec<NumberWords> {
    let words = |(number, device, id, whose): (u16, u32, &str, &str)| {
        let parts = devices.disk(device)?.remote.as_ref()?;
        let (told_bytes, is_shrunk) = parts.availability().told(number)?;
        let (device, whose) = (id.to_string(), whose.to_string());
        Some(NumberWords { number, device, whose, told_bytes, is_shrunk })
    };
    using.disks().filter_map(words).collect()
}

fn save_exports(serving: &Serving, shard: usize, made: &HostLink) -> (ShardWords, Vec<u8>) {
    let (mut words, mut bytes) = (ShardWords::default(), Vec::new());
    for (number, export) in (0..).zip(serving.exports()) {
        let is_here = export.shard() == Some(shard);
        let Some(saved) = is_here.then(|| made.save(number)).flatten() else { continue };
        bytes.extend_from_slice(&saved);
        words.exports.push(ExportWords {
            name: export.name().to_string(),
            bytes: saved.len() as u64,
            generation: export.generation(),
            who: export.last().map(words_of),
        });
    }
    words.clients = serving.assigned.at(shard).map(words_of).collect();
    (words, bytes)
}

impl Client<'_, '_> {
    /// Begins with what was inherited, now that nobody else has it.
    pub(super) fn go_on(&mut self, inherited: InheritedClient) {
        let InheritedClient { mut made, disks, socket } = inherited;
        let devices = &self.around.devices;
        let number_of = |words: &NumberWords| {
            let its = devices.number_of(&words.device)?;
            let parts = devices.disk(its)?.remote.as_ref()?;
            let is_it = made.device(words.number) == Some(device_of(parts.name()));
            (parts.link() == self.line.key() && is_it).then_some(its)
        };
        let known: Vec<(NumberWords, Option<u32>, Option<Over>)> = disks
            .into_iter()
            .map(|words| (words.clone(), number_of(&words), made.over(words.number)))
            .collect();
        for (words, its, _) in &known {
            let parts = its.and_then(|its| devices.disk(its));
            made.remember_image(words.number, parts.map_or(0, |parts| parts.bond.told_number()));
        }
        // What this process has not is given back. Its number is nobody's before its link says so.
        let has = |disk: u16| known.iter().any(|(one, its, _)| one.number == disk && its.is_some());
        let gone: Vec<u16> = made.disks().filter(|disk| !has(*disk)).collect();
        for disk in gone {
            let asked = made.device(disk).and_then(|name| self.called(name));
            self.using.go_on_as(disk, asked.unwrap_or(Asked::GivenBack));
            made.release(disk);
        }
        for (words, its, _) in &known {
            let (device, whose) = (words.device.clone(), words.whose.clone());
            let asked = Asked::Disk(its.unwrap_or(u32::MAX), device, whose);
            self.using.go_on_as(words.number, asked);
        }
        let (defects, cores) = (&mut self.around.turn.defects, &mut *self.around.cores);
        self.line.go_on(Link::Client(made), socket, defects, cores);
        for (words, its, over) in known {
            if let Some(its) = its {
                self.goes_on_as(its, &words, over);
            }
        }
        self.look_at_free();
        self.ask_again();
    }

    /// The disk that is called so at its IOhost, as what a number is for.
    fn called(&self, name: u64) -> Option<Asked> {
        let disk = |device: &Device| {
            let parts = device.disk()?;
            let remote = parts.remote.as_ref()?;
            let is_it = remote.link() == self.line.key() && device_of(remote.name()) == name;
            let whose = RemoteParts::whose(&parts.plan).filter(|_| is_it)?;
            Some(Asked::Disk(device.number(), parts.plan.id.clone(), whose))
        };
        self.around.devices.values().find_map(disk)
    }

    /// A device has that number of its link, since a process before this one asked for it.
    fn goes_on_as(&mut self, device: u32, words: &NumberWords, over: Option<Over>) {
        let defects = &mut self.around.turn.defects;
        let parts = self.around.devices.disk_mut(device);
        let parts = found!(defects, parts, "disk that goes on by its link");
        let (size, readonly) = (parts.disk.size_bytes(), parts.plan.readonly);
        let remote = found!(defects, &mut parts.remote, "link of a disk that goes on by it");
        let Some(news) = self.using.news_of(remote.name()) else {
            return defects.note("word of what a disk is that is open");
        };
        let told = (words.told_bytes, words.is_shrunk);
        remote.availability_mut().go_on_as(words.number, told, over);
        parts.disk = remote.disk(&News { size, ..news }, readonly);
    }
}

impl Host<'_, '_> {
    /// The same.
    pub(super) fn go_on(&mut self, lent: Lent) {
        let Lent { exports, clients } = lent;
        let lease = Duration::from_secs(self.line.lease_s().into());
        for (shard, words) in clients {
            self.serving.assigned.comes_back(who_of(&words), shard, self.around.turn.now());
        }
        for (shard, words, saved, is_here) in exports {
            let found = self.serving.exports_mut().find(|(_, one)| one.name() == words.name);
            // Clients may have it no more.
            let Some((export, one)) = found else { continue };
            one.go_on_at(shard, words.who.as_ref().map(who_of), is_here);
            let generation = one.raise(words.generation);
            let for_ns = lease.as_nanos() as u64;
            self.tell_shard(shard, ToHost::TakeOver { export, saved, for_ns });
            if is_here {
                let told = || ToHost::Elsewhere { export, generation, is_answer: false };
                self.tell_shards(Some(shard), told);
            }
        }
    }
}

fn words_of((key, at): &Who) -> WhoWords {
    let (udp, station) = (at.and_then(|at| at.as_udp()), at.and_then(|at| at.as_station()));
    WhoWords { key: *key, udp, station }
}

fn who_of(words: &WhoWords) -> Who {
    let at = words.udp.map(Address::udp).or(words.station.map(Address::station));
    (words.key, at)
}
