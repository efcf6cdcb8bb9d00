//! What a predecessor hands over, as it came: complete, bounded, and nothing done with it yet.
//!
//! Everything is a plain descriptor here, so that an heir which refuses and ends disturbs nobody: what
//! becomes of it is `heir`'s. Fuzzed (`fuzz/src/estate.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use backend::Handles;
use remote::iohost::SHARDS_MAX;

use super::error::EstateError;
use super::pause::Moments;
use super::wire::{self, DeviceWords, FromPredecessor, Handle, RingWords};
use crate::devices::connection::{CONNECTIONS_MAX, Connection};
use crate::network::host_ports::TapQueue;
use crate::network::uplink::Counted;
use crate::poll::DEVICES_END;
use crate::remote::words::KnownWords;
use crate::sockets;

/// Messages that retell one front-end: of 509 regions, and of 256 rings seven each.
const TOLD_MAX: usize = 4096;
/// Unread messages of a link: one that is held, and the beginning of another.
const UNREAD_MAX: usize = 2;
/// Replies that a connection has not read.
const UNSENT_MAX: usize = 64;
/// Queues of all taps: 1,024 wires of 16.
const TAPS_MAX: usize = 16_384;

/// Links of a daemon.
const LINKS_ALL_MAX: usize = 64;

/// Bytes and the descriptors that belong to them.
pub(crate) type Parcel = (Vec<u8>, Vec<OwnedFd>);

/// A connection of a front-end.
#[derive(Debug)]
pub(crate) struct ConnectionEstate {
    pub(crate) runs: bool,
    pub(crate) socket: OwnedFd,
    pub(crate) told: Vec<Parcel>,
    pub(crate) unread: VecDeque<Parcel>,
    pub(crate) unsent: Vec<Parcel>,
    /// The same of its back-end channel.
    pub(crate) untold: Vec<Parcel>,
}

/// A device.
#[derive(Debug)]
pub(crate) struct DeviceEstate {
    pub(crate) words: DeviceWords,
    pub(crate) listener: Option<OwnedFd>,
    /// Until the disk is made of them.
    pub(crate) handles: Option<Handles<OwnedFd>>,
    pub(crate) connections: Vec<ConnectionEstate>,
    /// Of a NIC's port.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// A shard of a link.
#[derive(Debug)]
pub(crate) struct ShardEstate {
    pub(crate) link: String,
    pub(crate) shard: usize,
    pub(crate) socket: OwnedFd,
    /// With so many bytes of words, and so many more.
    pub(crate) file: OwnedFd,
    pub(crate) words: u64,
    pub(crate) bytes: u64,
}

/// All of it.
#[derive(Default)]
pub(crate) struct Estate {
    /// The API's socket, and where it is.
    pub(crate) api: Option<(String, OwnedFd)>,
    /// The same of the one that only shows.
    pub(crate) api_read: Option<(String, OwnedFd)>,
    /// Where the predecessor keeps its state; an older one does not say.
    pub(crate) state_dir: Option<String>,
    /// What keeps other daemons out of it.
    pub(crate) state_lock: Option<OwnedFd>,
    pub(crate) devices: BTreeMap<String, DeviceEstate>,
    pub(crate) rings: Vec<RingWords>,
    pub(crate) taps: BTreeMap<(String, u16), TapQueue>,
    /// There are links: the run of the daemon that clients were told of.
    pub(crate) run: Option<u64>,
    /// What IOhosts have told of disks, by link.
    pub(crate) known: BTreeMap<String, Vec<KnownWords>>,
    /// Shards of links.
    pub(crate) shards: Vec<ShardEstate>,
    /// Disks that lost data, as they were found last.
    pub(crate) sync_failed: Vec<String>,
    /// Connections that could not be taken over, to be closed when nobody else has them.
    pub(crate) doomed: Vec<Connection>,
    /// Devices whose front-end the predecessor has closed since it told of it.
    pub(crate) gone: BTreeSet<u32>,
    /// When queues were asked for and came back.
    pub(crate) moments: Moments,
    /// The format that it is told in.
    pub(crate) format: u32,
    /// What uplinks have counted.
    pub(crate) uplinks: BTreeMap<String, Counted>,
    /// The device that is being told of.
    last: Option<String>,
}

/// What a packet led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    /// All devices are there.
    Devices,
    /// All rings are there.
    Flipped,
    Yours,
}

impl ConnectionEstate {
    /// Of which nothing more is told yet.
    pub(super) fn new(runs: bool, socket: OwnedFd) -> ConnectionEstate {
        let (told, unread) = (Vec::new(), VecDeque::new());
        ConnectionEstate { runs, socket, told, unread, unsent: Vec::new(), untold: Vec::new() }
    }
}

impl Estate {
    /// Takes one packet in.
    ///
    /// # Errors
    /// What is wrong with it; the estate is of no use then.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Progress, EstateError> {
        let packet = wire::read(bytes, fds.len())?;
        let mut fds = VecDeque::from(fds);
        let progress = self.take_packet(packet, &mut fds)?;
        match fds.is_empty() {
            true => Ok(progress),
            false => Err(EstateError::SpareDescriptors),
        }
    }

    fn take_packet(
        &mut self,
        packet: FromPredecessor,
        fds: &mut VecDeque<OwnedFd>,
    ) -> Result<Progress, EstateError> {
        match packet {
            FromPredecessor::Begin { format, api, api_read, state_dir, has_lock } => {
                if !wire::FORMATS.contains(&format) {
                    return Err(EstateError::Format(format));
                }
                (self.format, self.state_dir) = (format, state_dir);
                self.api = Some((api, one(fds)?));
                if let Some(path) = api_read {
                    self.api_read = Some((path, one(fds)?));
                }
                if has_lock {
                    self.state_lock = Some(one(fds)?);
                }
            }
            FromPredecessor::Device(words) => self.add_device(words, fds)?,
            FromPredecessor::Connection(words) => {
                let socket = one(fds)?;
                let connections = &mut self.device()?.connections;
                bounded(connections.len(), CONNECTIONS_MAX, "connections of one device")?;
                connections.push(ConnectionEstate::new(words.runs, socket));
            }
            FromPredecessor::Told { message } => {
                let told = &mut self.connection()?.told;
                bounded(told.len(), TOLD_MAX, "messages of one front-end")?;
                told.push((message, fds.drain(..).collect()));
            }
            FromPredecessor::Unread { bytes } => {
                let unread = &mut self.connection()?.unread;
                bounded(unread.len(), UNREAD_MAX, "unread messages of one front-end")?;
                unread.push_back((bytes, fds.drain(..).collect()));
            }
            FromPredecessor::Unsent { bytes } => {
                let unsent = &mut self.connection()?.unsent;
                bounded(unsent.len(), UNSENT_MAX, "replies to one front-end")?;
                unsent.push((bytes, fds.drain(..).collect()));
            }
            FromPredecessor::Untold { bytes } => {
                let untold = &mut self.connection()?.untold;
                bounded(untold.len(), UNSENT_MAX, "messages to one front-end")?;
                untold.push((bytes, Vec::new()));
            }
            packet @ (FromPredecessor::Remote { .. }
            | FromPredecessor::Known { .. }
            | FromPredecessor::Shard { .. }) => self.add_of_links(packet, fds)?,
            FromPredecessor::Estate {} => return Ok(Progress::Devices),
            FromPredecessor::Rings { rings } => self.add_rings(rings)?,
            packet @ (FromPredecessor::Tap { .. }
            | FromPredecessor::Port { .. }
            | FromPredecessor::Uplink { .. }) => self.add_of_ports(packet, fds)?,
            FromPredecessor::Flip { sync_failed, drained_ns } => {
                self.sync_failed = sync_failed;
                self.moments.drained_ns = drained_ns;
                return Ok(Progress::Flipped);
            }
            FromPredecessor::Yours {} => return Ok(Progress::Yours),
        }
        Ok(Progress::More)
    }

    /// What is told of ports of switches and of NICs, besides their devices.
    fn add_of_ports(
        &mut self,
        packet: FromPredecessor,
        fds: &mut VecDeque<OwnedFd>,
    ) -> Result<(), EstateError> {
        match packet {
            FromPredecessor::Tap { name, queue, made } => {
                bounded(self.taps.len(), TAPS_MAX, "queues of taps")?;
                self.taps.insert((name, queue), (one(fds)?, made));
            }
            FromPredecessor::Port { device, counters } => {
                let told = self.devices.get_mut(&device);
                told.ok_or(EstateError::StrayPort(device))?.counters = counters;
            }
            FromPredecessor::Uplink { name, frames, work } => {
                bounded(self.uplinks.len(), TAPS_MAX, "uplinks")?;
                self.uplinks.insert(name, [frames, work]);
            }
            _ => {}
        }
        Ok(())
    }

    /// Descriptors of devices that it holds.
    pub(crate) fn descriptors(&self) -> usize {
        let of_link = |connection: &ConnectionEstate| {
            let parcels =
                connection.told.iter().chain(&connection.unread).chain(&connection.unsent);
            1 + parcels.map(|(_, fds)| fds.len()).sum::<usize>()
        };
        let of_device = |device: &DeviceEstate| {
            device.words.handles.len() + device.connections.iter().map(of_link).sum::<usize>()
        };
        self.taps.len() + self.devices.values().map(of_device).sum::<usize>()
    }

    fn add_device(
        &mut self,
        words: DeviceWords,
        fds: &mut VecDeque<OwnedFd>,
    ) -> Result<(), EstateError> {
        bounded(self.devices.len(), DEVICES_END as usize, "devices")?;
        let (mut listener, mut memory, mut cached, mut direct) = (None, None, None, None);
        let mut anchor = None;
        for handle in &words.handles {
            let place = match handle {
                Handle::Listener => &mut listener,
                Handle::Memory => &mut memory,
                Handle::Cached => &mut cached,
                Handle::Direct => &mut direct,
                Handle::Anchor => &mut anchor,
            };
            if place.replace(one(fds)?).is_some() {
                let (id, handle) = (words.id.clone(), *handle);
                return Err(EstateError::SameHandle { id, handle });
            }
        }
        let handles = match (&words.disk, memory, cached, direct) {
            (Some(disk), None, None, None) if disk.is_away => {
                Some(Handles::Away { anchor: anchor.take() })
            }
            (Some(_), None, None, None) => Some(Handles::Null),
            (Some(_), Some(file), None, None) => Some(Handles::Memory(file)),
            (Some(_), None, Some(cached), direct) => Some(Handles::File { cached, direct }),
            (None, None, None, None) => None,
            _ => return Err(EstateError::MixedHandles(words.id)),
        };
        if anchor.is_some() {
            return Err(EstateError::MixedHandles(words.id));
        }
        let id = words.id.clone();
        let (connections, counters) = (Vec::new(), BTreeMap::new());
        let listener = listener.map(sockets::behind_others);
        let device = DeviceEstate { words, listener, handles, connections, counters };
        if self.devices.insert(id.clone(), device).is_some() {
            return Err(EstateError::SameDevice(id));
        }
        self.last = Some(id);
        Ok(())
    }

    /// What is told of links.
    fn add_of_links(
        &mut self,
        packet: FromPredecessor,
        fds: &mut VecDeque<OwnedFd>,
    ) -> Result<(), EstateError> {
        match packet {
            FromPredecessor::Remote { run } => self.run = Some(run),
            FromPredecessor::Known { link, disks } => {
                let links = self.known.len();
                bounded(links, LINKS_ALL_MAX + 1, "links")?;
                let known = self.known.entry(link).or_default();
                bounded(known.len(), DEVICES_END as usize, "disks of a link")?;
                known.extend(disks);
            }
            FromPredecessor::Shard { link, shard, words, bytes } => {
                bounded(self.shards.len(), LINKS_ALL_MAX * SHARDS_MAX, "shards of links")?;
                bounded(shard, SHARDS_MAX, "shards of one link")?;
                let (socket, file) = (one(fds)?, one(fds)?);
                self.shards.push(ShardEstate { link, shard, socket, file, words, bytes });
            }
            _ => {}
        }
        Ok(())
    }

    /// Rings of devices that were told of, each at most as often as there can be rings.
    fn add_rings(&mut self, rings: Vec<RingWords>) -> Result<(), EstateError> {
        bounded(self.rings.len(), 256 * self.devices.len(), "rings")?;
        if let Some(ring) = rings.iter().find(|ring| !self.devices.contains_key(&ring.device)) {
            return Err(EstateError::StrayRing(ring.device.clone()));
        }
        self.rings.extend(rings);
        Ok(())
    }

    fn device(&mut self) -> Result<&mut DeviceEstate, EstateError> {
        let last = self.last.as_ref().and_then(|id| self.devices.get_mut(id));
        last.ok_or(EstateError::StrayConnection)
    }

    fn connection(&mut self) -> Result<&mut ConnectionEstate, EstateError> {
        self.device()?.connections.last_mut().ok_or(EstateError::StrayMessage)
    }
}

fn one(fds: &mut VecDeque<OwnedFd>) -> Result<OwnedFd, EstateError> {
    fds.pop_front().ok_or(EstateError::NoDescriptor)
}

fn bounded(count: usize, most: usize, what: &'static str) -> Result<(), EstateError> {
    if count < most { Ok(()) } else { Err(EstateError::TooMany { most, what }) }
}

#[cfg(test)]
mod tests;
