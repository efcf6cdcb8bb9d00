//! What is handed over: devices with their descriptors, front-ends in their own words, rings where they
//! stand.
//!
//! Only read here, and sent; nothing of this process changes. Not here: when (`predecessor`), and how it
//! is taken (`estate`, `heir`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use backend::{Anchor, Disk, Grain, Handles};
use config::diff::made_of;
use vhost_user::Message;

use super::channel::{Channel, SEND_TIME_MAX};
use super::links::{SavedShards, send_known};
use super::wire::{
    ConnectionWords, DeviceWords, DiskWords, FromPredecessor, Handle, NicWords, PACKET_BYTES_MAX,
    PlaceWords, RINGS_MAX, RingWords, WITH_GUARD, WITH_LOST,
};
use crate::clock::machine_ns;
use crate::devices::Devices;
use crate::devices::connection::{Connection, Held};
use crate::devices::device::Device;
use crate::devices::frame_socket::FrameSocket;
use crate::devices::kind::Kind;
use crate::devices::lent::Lent;
use crate::devices::queue::{Known, Queue};
use crate::disk::DiskParts;
use crate::network::Network;
use crate::remote::Remote;

/// What there is to hand over.
pub(crate) struct Bequest<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) network: &'a Network,
    pub(crate) remote: &'a Remote,
    pub(crate) now: Instant,
}

impl Bequest<'_> {
    /// Tells of everything but where rings stand.
    pub(super) fn send_estate(&self, channel: &Channel) -> io::Result<()> {
        for device in self.devices.values().filter(|device| !device.is_going()) {
            self.send_device(channel, device)?;
            for (id, connection) in device.connections() {
                send_connection(channel, connection, device.runner() == Some(*id))?;
            }
        }
        send_known(self.remote, channel)?;
        channel.send(&FromPredecessor::Estate {}, &[], SEND_TIME_MAX)
    }

    fn send_device(&self, channel: &Channel, device: &Device) -> io::Result<()> {
        let mut handles: Vec<(Handle, BorrowedFd<'_>)> = Vec::new();
        handles.extend(device.listener().into_iter().map(|fd| (Handle::Listener, fd.as_fd())));
        let disk = device.disk();
        handles.extend(disk.into_iter().flat_map(|disk| handles_of(&disk.disk)));
        let (handles, fds): (Vec<Handle>, Vec<BorrowedFd<'_>>) = handles.into_iter().unzip();
        let words = DeviceWords {
            id: device.facts().id.clone(),
            made_of: made_of(&device.plan()),
            socket: device.facts().socket.clone(),
            handles,
            closed_for_ms: device
                .shut_until(self.now)
                .map_or(0, |until| until.saturating_duration_since(self.now).as_millis() as u64),
            disk: disk.map(disk_words),
            nic: nic_words(device.kind()),
        };
        channel.send(&FromPredecessor::Device(words), &fds, SEND_TIME_MAX)
    }

    /// Tells where every ring stands, all of them being here, and gives taps away.
    pub(super) fn send_flip(
        &self,
        channel: &Channel,
        format: u32,
        shards: &SavedShards,
        drained: Instant,
    ) -> io::Result<()> {
        let devices = self.devices.values().filter(|device| !device.is_going());
        let rings: Vec<RingWords> = devices.flat_map(|device| ring_words(device, format)).collect();
        for some in in_packets(rings)? {
            channel.send(&FromPredecessor::Rings { rings: some }, &[], SEND_TIME_MAX)?;
        }
        for device in self.devices.values() {
            let Some(nic) = device.nic() else { continue };
            let (device, counters) = (device.facts().id.clone(), nic.counters().snapshot().named());
            let packet = FromPredecessor::Port { device, counters };
            channel.send(&packet, &[], SEND_TIME_MAX)?;
        }
        if format >= WITH_GUARD {
            for uplink in self.network.uplinks() {
                let (name, [frames, work]) = uplink.counted();
                let packet = FromPredecessor::Uplink { name, frames, work };
                channel.send(&packet, &[], SEND_TIME_MAX)?;
            }
        }
        shards.send(channel)?;
        for uplink in self.network.uplinks() {
            let Some(name) = uplink.tap() else { continue };
            for (queue, made, fd) in uplink.tap_queues() {
                let packet = FromPredecessor::Tap { name: name.to_string(), queue, made };
                channel.send(&packet, &[fd], SEND_TIME_MAX)?;
            }
        }
        let disks = self.devices.values().filter_map(|device| Some((device, device.disk()?)));
        let is_lost = |disk: &DiskParts| disk.lost_before && disk.locks.is_fenced();
        let failed = disks.filter(|(_, disk)| disk.disk.sync_failed() || is_lost(disk));
        let sync_failed = failed.map(|(device, _)| device.facts().id.clone()).collect();
        let flip = FromPredecessor::Flip { sync_failed, drained_ns: machine_ns(drained) };
        channel.send(&flip, &[], SEND_TIME_MAX)
    }
}

/// So many in each packet as it takes: what a ring has counted may be long.
fn in_packets(rings: Vec<RingWords>) -> io::Result<Vec<Vec<RingWords>>> {
    let (mut packets, mut some, mut bytes) = (Vec::new(), Vec::new(), 0);
    for ring in rings {
        let len = serde_json::to_vec(&ring)?.len() + 1;
        if some.len() == RINGS_MAX || bytes + len > PACKET_BYTES_MAX / 2 {
            packets.push(std::mem::take(&mut some));
            bytes = 0;
        }
        some.push(ring);
        bytes += len;
    }
    packets.push(some);
    Ok(packets.into_iter().filter(|some| !some.is_empty()).collect())
}

fn handles_of(disk: &Disk) -> Vec<(Handle, BorrowedFd<'_>)> {
    match disk.handles() {
        Handles::Null => Vec::new(),
        Handles::Away { anchor } => anchor.map(|fd| (Handle::Anchor, fd)).into_iter().collect(),
        Handles::Memory(file) => vec![(Handle::Memory, file)],
        Handles::File { cached, direct } => {
            let direct = direct.map(|fd| (Handle::Direct, fd));
            [(Handle::Cached, cached)].into_iter().chain(direct).collect()
        }
    }
}

fn disk_words(parts: &DiskParts) -> DiskWords {
    let (disk, limits) = (&parts.disk, parts.disk.limits());
    DiskWords {
        size_bytes: disk.size_bytes(),
        physical_block_size: disk.physical_block_size(),
        grain: grain_words(disk.grain()),
        discard_sectors_max: limits.discard_sectors_max,
        zeroes_sectors_max: limits.zeroes_sectors_max,
        was_empty: parts.was_empty,
        at_once: disk.answers_at_once(),
        is_away: disk.is_away(),
        is_fenced: parts.locks.is_fenced(),
        mark: disk.anchor().and_then(Anchor::mark),
        writeback: parts.live.writeback(),
    }
}

/// As [`DiskWords`] has it; nothing, where nothing is known.
fn grain_words(grain: Grain) -> Option<[u32; 4]> {
    let Grain { alignment_offset, io_min, io_best, discard } = grain;
    (grain != Grain::default()).then_some([alignment_offset, io_min, io_best, discard])
}

fn nic_words(kind: &Kind) -> Option<NicWords> {
    let nic = kind.nic()?;
    let at = nic.at()?;
    Some(NicWords {
        is_up: nic.is_up(),
        mac: nic.live().mac(),
        mtu: nic.live().mtu(),
        home: at.home,
        by_hand: at.by_hand,
    })
}

/// The session's state as messages, and what of its connection is unfinished.
fn send_connection(channel: &Channel, connection: &Connection, runs: bool) -> io::Result<()> {
    let send =
        |packet: FromPredecessor, fds: &[BorrowedFd<'_>]| channel.send(&packet, fds, SEND_TIME_MAX);
    send(
        FromPredecessor::Connection(ConnectionWords { runs }),
        &[connection.frames.socket().as_fd()],
    )?;
    let back_channel = connection.front_end.channel.as_ref();
    let back_channel =
        back_channel.map(|channel| (Message::SetBackendReqFd, vec![channel.socket()]));
    let lent = back_channel.into_iter().chain(connection.front_end.kept.retell()).collect();
    for (message, fds) in connection.session.retell(lent) {
        send(FromPredecessor::Told { message: message.emit(false) }, &borrowed(&fds))?;
    }
    if let Some(Held { message, fds, need_reply }) = connection.held() {
        let fds: Vec<&Lent> = fds.iter().collect();
        send(FromPredecessor::Unread { bytes: message.emit(*need_reply) }, &borrowed(&fds))?;
    }
    for (bytes, fds) in connection.frames.unread() {
        let fds: Vec<&Lent> = fds.iter().collect();
        send(FromPredecessor::Unread { bytes: bytes.to_vec() }, &borrowed(&fds))?;
    }
    for (bytes, fd) in connection.frames.unsent() {
        let fds: Vec<&Lent> = fd.into_iter().collect();
        send(FromPredecessor::Unsent { bytes: bytes.to_vec() }, &borrowed(&fds))?;
    }
    for (bytes, _) in connection.front_end.channel.iter().flat_map(FrameSocket::unsent) {
        send(FromPredecessor::Untold { bytes: bytes.to_vec() }, &[])?;
    }
    Ok(())
}

fn borrowed<'a>(fds: &[&'a Lent]) -> Vec<BorrowedFd<'a>> {
    let borrow = |fd: &&'a Lent| -> BorrowedFd<'a> {
        let fd: &'a Lent = fd;
        fd.as_fd()
    };
    fds.iter().map(borrow).collect()
}

/// An heir that knows of no lost rings starts none that has failed, until its front-end stops it.
pub(super) fn ring_words(device: &Device, format: u32) -> Vec<RingWords> {
    let runner = device.runner().and_then(|id| device.connection(id));
    let words = |(index, queue): (usize, &Queue)| {
        let index = index as u16;
        let Known { was_attached, again, left, violation, problem } = queue.known();
        let is_lost = runner.is_some_and(|connection| connection.session.is_lost(index));
        let (knows, failed) =
            (format >= WITH_LOST, runner.is_some_and(|it| it.session.has_failed(index)));
        // An older program believes any other base than its front-end has said.
        let is_hearsay = runner.is_some_and(|connection| {
            let session = &connection.session;
            !is_lost && !session.was_served(index) && session.base(index) != session.told(index)
        });
        RingWords {
            device: device.facts().id.clone(),
            queue: index,
            base: runner.and_then(|connection| match is_hearsay && !knows {
                true => connection.session.told(index),
                false => connection.session.base(index),
            }),
            is_lost: is_lost && knows,
            is_hearsay: is_hearsay && knows,
            failed: failed || is_lost && !knows,
            violation,
            problem,
            left: left.filter(|left| knows || left.base().is_some()),
            was_attached,
            place: again.map(|(sidecore, by_hand)| PlaceWords { sidecore, by_hand }),
            asked_ns: queue.asked_at().map(machine_ns),
            counters: queue.counters().snapshot().named(),
        }
    };
    device.queues().iter().enumerate().map(words).collect()
}
