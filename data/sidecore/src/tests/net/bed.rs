//! Guests with a NIC each, the ports and bridges they are at, and a sidecore.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use backend::net::{HostPort, HostSource, NullMode};
use device::features;
use device::net::Net;
use frame::Header;
use guest_memory::{Area, GuestMap, Health, Mapping, Region, Seal};
use rustix::fs::MemfdFlags;
use schedule::Policy;
use switch::{DropReason, Limits, PortId, Rules};
use virtqueue::driver::{Arena, Buffer, Driver, Places, RingSpec, first_base};
use virtqueue::{Format, Queue};

use super::super::bed::{Core, count};
use crate::rest::eventfd;
use crate::{
    BridgeId, BridgeKind, Command, Event, HostKey, HostServed, HostSpec, Lanes, NicQueue,
    PortCounters, PortSnapshot, PortSpec, QueueCounters, QueueKey, RoleSpec, Served, ServedSpec,
};

/// Guest memory: rings, then frames to send, then buffers.
const RINGS: u64 = 4 << 20;
pub(super) const SEND_AT: u64 = RINGS;
const SEND: u64 = 8 << 20;
pub(super) const RECEIVE_AT: u64 = SEND_AT + SEND;
const RECEIVE: u64 = 16 << 20;
pub(super) const MEMORY: u64 = RECEIVE_AT + RECEIVE;

/// The one bridge of most tests.
pub(super) const BRIDGE: BridgeId = BridgeId(0);

/// What a usual driver negotiates: all offloads, buffers that are merged.
pub(super) const USUAL: u64 = PLAIN | OFFLOADS | features::NET_MRG_RXBUF;
/// Neither.
pub(super) const PLAIN: u64 = features::VERSION_1;
pub(super) const OFFLOADS: u64 = features::NET_CSUM
    | features::NET_GUEST_CSUM
    | features::NET_GUEST_TSO4
    | features::NET_GUEST_TSO6
    | features::NET_GUEST_ECN
    | features::NET_GUEST_USO4
    | features::NET_GUEST_USO6
    | features::NET_HOST_TSO4
    | features::NET_HOST_TSO6
    | features::NET_HOST_ECN
    | features::NET_HOST_USO;

pub(super) fn ring(format: Format, size: u16) -> RingSpec {
    RingSpec { size, format, event_index: true, indirect_entries: 0 }
}

/// Half of a NIC: one ring and its descriptors.
pub(super) struct Half {
    pub(super) driver: Driver,
    places: Places,
    pub(super) kick: OwnedFd,
    call: OwnedFd,
}

/// A guest with one pair of queues.
pub(super) struct Nic {
    pub(super) map: Arc<GuestMap>,
    pub(super) area: Area,
    pub(super) receive: Half,
    pub(super) transmit: Half,
    pub(super) features: u64,
    ring: RingSpec,
    next_send: u64,
    next_buffer: u64,
    /// The buffers that were posted, by token.
    posted: Vec<Vec<Buffer>>,
}

impl Nic {
    pub(super) fn new(ring: RingSpec, features: u64) -> Nic {
        Nic::over(GuestMap::anonymous(MEMORY).unwrap(), ring, features)
    }

    /// A split ring of 256, everything negotiated.
    pub(super) fn usual() -> Nic {
        Nic::new(self::ring(Format::Split, 256), USUAL)
    }

    /// A guest whose memory its front-end can take away: the file of it, too.
    pub(super) fn lent() -> (Nic, OwnedFd) {
        guest_memory::recover_from_sigbus().unwrap();
        let fd = rustix::fs::memfd_create("lent", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, MEMORY).unwrap();
        let mapping = Mapping::shared(&fd, 0, MEMORY, Seal::Any, &Health::default());
        let region = Region { gpa: 0, user: 0, mapping: mapping.unwrap() };
        let map = GuestMap::new(vec![region]).unwrap();
        (Nic::over(map, self::ring(Format::Split, 256), USUAL), fd)
    }

    pub(super) fn over(map: GuestMap, ring: RingSpec, features: u64) -> Nic {
        let map = Arc::new(map);
        let mut arena = Arena::new(map.area_at_user(0, RINGS).unwrap(), 0);
        let mut half = || {
            let (driver, places) = arena.driver(ring).unwrap();
            Half { driver, places, kick: eventfd().unwrap(), call: eventfd().unwrap() }
        };
        let (receive, transmit) = (half(), half());
        let area = map.area_at_user(0, MEMORY).unwrap();
        let (next_send, next_buffer) = (SEND_AT, RECEIVE_AT);
        let posted = Vec::new();
        Nic { map, area, receive, transmit, features, ring, next_send, next_buffer, posted }
    }

    pub(super) fn header_size(&self) -> usize {
        Net::new(self.features).header_size()
    }

    /// What a sidecore needs to serve one of its queues; that of queue 0 is receive.
    pub(super) fn spec(&self, port: u16, is_receive: bool, base: Option<u32>) -> ServedSpec {
        let half = if is_receive { &self.receive } else { &self.transmit };
        let base = base.unwrap_or(first_base(self.ring.format));
        let queue =
            Queue::new(self.ring.queue_spec(&self.map, half.places, base).unwrap()).unwrap();
        let net = Net::new(self.features);
        let nic = NicQueue { net, bridge: BRIDGE, port: PortId(port), pair: 0 };
        ServedSpec {
            key: key(port, is_receive),
            queue,
            memory: Arc::clone(&self.map),
            role: if is_receive { RoleSpec::Receive(nic) } else { RoleSpec::Transmit(nic) },
            kick: Some(half.kick.try_clone().unwrap()),
            call: Some(half.call.try_clone().unwrap()),
            share: schedule::SHARE_USUAL,
            policy: Policy::Adaptive,
            target_ns: None,
            moderate_ns: 0,
            gate: None,
            counters: Arc::new(QueueCounters::default()),
        }
    }

    /// Posts `count` receive buffers of `len` bytes, in one piece each.
    pub(super) fn post(&mut self, count: usize, len: u32) {
        for _ in 0..count {
            self.post_pieces(&[len]);
        }
        self.publish_buffers();
    }

    /// Posts one chain of pieces of these lengths, each of them bytes apart. Not published.
    pub(super) fn post_pieces(&mut self, lens: &[u32]) {
        let pieces = lens.iter().map(|len| {
            let size = u64::from(*len) + 1;
            if self.next_buffer + size > RECEIVE_AT + RECEIVE {
                self.next_buffer = RECEIVE_AT;
            }
            let gpa = self.next_buffer;
            self.next_buffer += size;
            Buffer { gpa, len: *len, device_writes: true }
        });
        let pieces: Vec<Buffer> = pieces.collect();
        self.receive.driver.add(&pieces, self.posted.len() as u64).unwrap();
        self.posted.push(pieces);
    }

    pub(super) fn publish_buffers(&mut self) {
        if self.receive.driver.publish() {
            crate::inbox::wake(&self.receive.kick);
        }
    }

    /// Sends `frame` with `header`, in one piece.
    pub(super) fn send_with(&mut self, header: Header, frame: &[u8]) {
        self.send_pieces(header, frame, &[usize::MAX]);
    }

    pub(super) fn send(&mut self, frame: &[u8]) {
        self.send_with(Header::default(), frame);
    }

    /// Sends header and frame in pieces of these lengths, the last one with all that is left.
    pub(super) fn send_pieces(&mut self, header: Header, frame: &[u8], lens: &[usize]) {
        let bytes = [&header.encode()[..self.header_size()], frame].concat();
        self.send_bytes(&bytes, lens);
        self.publish_frames();
    }

    /// Puts one chain into the ring, of whatever bytes. Not published.
    pub(super) fn send_bytes(&mut self, bytes: &[u8], lens: &[usize]) {
        let (mut pieces, mut left) = (Vec::new(), bytes);
        for len in lens {
            let (now, later) = left.split_at((*len).min(left.len()));
            if self.next_send + now.len() as u64 > SEND_AT + SEND {
                self.next_send = SEND_AT;
            }
            self.area.write(self.next_send as usize, now);
            let (gpa, len) = (self.next_send, now.len() as u32);
            pieces.push(Buffer { gpa, len, device_writes: false });
            self.next_send += u64::from(len) + 1;
            left = later;
        }
        assert!(left.is_empty(), "{} bytes are in no piece", left.len());
        self.transmit.driver.add(&pieces, 0).unwrap();
    }

    pub(super) fn publish_frames(&mut self) {
        if self.transmit.driver.publish() {
            crate::inbox::wake(&self.transmit.kick);
        }
    }

    /// Frames that were sent and whose chains came back since the last time.
    pub(super) fn sent(&mut self) -> usize {
        let taken = std::iter::from_fn(|| self.transmit.driver.take_used()).count();
        assert_eq!(self.transmit.driver.fault(), None);
        taken
    }

    /// Frames that came since the last time, each from as many buffers as its header says.
    pub(super) fn take(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut frames = Vec::new();
        while let Some(mut bytes) = self.take_buffer() {
            let size = self.header_size();
            let mut header = Header::decode(bytes.first_chunk().unwrap());
            header.buffers =
                if size == 12 { u16::from_le_bytes([bytes[10], bytes[11]]) } else { 1 };
            for _ in 1..header.buffers {
                bytes
                    .extend(self.take_buffer().expect("all buffers of a frame are shown together"));
            }
            frames.push((header, bytes.split_off(size)));
        }
        frames
    }

    /// The next frame, of one buffer.
    pub(super) fn take_one(&mut self) -> Option<Vec<u8>> {
        let mut bytes = self.take_buffer()?;
        Some(bytes.split_off(self.header_size()))
    }

    /// The frames alone.
    pub(super) fn take_frames(&mut self) -> Vec<Vec<u8>> {
        self.take().into_iter().map(|(_, frame)| frame).collect()
    }

    fn take_buffer(&mut self) -> Option<Vec<u8>> {
        let used = self.receive.driver.take_used()?;
        assert_eq!(self.receive.driver.fault(), None);
        let mut bytes = Vec::new();
        for piece in &self.posted[used.token as usize] {
            let mut part = vec![0; (used.len as usize - bytes.len()).min(piece.len as usize)];
            assert!(self.area.read(piece.gpa as usize, &mut part));
            bytes.extend(part);
        }
        assert_eq!(bytes.len(), used.len as usize, "more than the buffer holds");
        Some(bytes)
    }

    /// Calls of the receive queue, and of the transmit queue, since the last time.
    pub(super) fn calls(&self) -> (u64, u64) {
        (count(&self.receive.call), count(&self.transmit.call))
    }
}

/// The name of a queue of the NIC at `port`.
pub(super) fn key(port: u16, is_receive: bool) -> QueueKey {
    QueueKey { device: port.into(), queue: u16::from(!is_receive) }
}

pub(super) fn host_key(port: u16) -> HostKey {
    HostKey { bridge: BRIDGE, port: PortId(port), queue: 0 }
}

pub(super) fn null(mode: NullMode) -> HostPort {
    HostPort::open(&HostSource::Null { mode }).unwrap()
}

/// A sidecore with one bridge.
pub(super) struct Lan {
    pub(super) core: Core,
    counters: Vec<Arc<PortCounters>>,
    pub(super) rules: Vec<Rules>,
    pub(super) mtus: Vec<u32>,
    pub(super) lanes: Vec<Option<Arc<Lanes>>>,
}

impl Lan {
    pub(super) fn switch() -> Lan {
        Lan::new(BridgeKind::Switch { limits: Limits::default(), seed: 1 })
    }

    pub(super) fn wire() -> Lan {
        Lan::new(BridgeKind::Wire)
    }

    fn new(kind: BridgeKind) -> Lan {
        let mut core = Core::new(256);
        core.send(Command::SetBridge(BRIDGE, Some(kind)));
        core.pass();
        Lan { core, counters: Vec::new(), rules: Vec::new(), mtus: Vec::new(), lanes: Vec::new() }
    }

    /// Another port, numbered from 0.
    pub(super) fn port(&mut self) -> u16 {
        self.port_with(Rules::default())
    }

    pub(super) fn port_with(&mut self, rules: Rules) -> u16 {
        let port = self.counters.len() as u16;
        self.counters.push(Arc::default());
        self.rules.push(rules);
        self.mtus.push(100_000);
        self.lanes.push(None);
        self.set(port);
        port
    }

    /// Says again what port it is.
    pub(super) fn set(&mut self, port: u16) {
        let at = usize::from(port);
        let spec = PortSpec {
            rules: self.rules[at].clone(),
            home: 0,
            mtu: self.mtus[at],
            counters: Arc::clone(&self.counters[at]),
            lanes: self.lanes[at].clone(),
        };
        self.core.send(Command::SetPort(BRIDGE, PortId(port), Some(Box::new(spec))));
        self.core.pass();
    }

    /// A NIC at a new port, both queues attached.
    pub(super) fn plug(&mut self, nic: &Nic) -> u16 {
        let port = self.port();
        self.attach(nic, port);
        port
    }

    pub(super) fn plug_with(&mut self, nic: &Nic, rules: Rules) -> u16 {
        let port = self.port_with(rules);
        self.attach(nic, port);
        port
    }

    pub(super) fn attach(&mut self, nic: &Nic, port: u16) {
        self.attach_one(nic, port, true, None);
        self.attach_one(nic, port, false, None);
    }

    pub(super) fn attach_one(&mut self, nic: &Nic, port: u16, is_receive: bool, base: Option<u32>) {
        self.core.send(Command::Attach(Served::new(nic.spec(port, is_receive, base))));
        self.core.pass();
        nic.calls();
    }

    /// A host port at a new port.
    pub(super) fn plug_host(&mut self, host: HostPort) -> u16 {
        let port = self.port();
        self.attach_host(host, port);
        port
    }

    pub(super) fn attach_host(&mut self, port: HostPort, number: u16) {
        let spec = HostSpec {
            key: host_key(number),
            port,
            share: schedule::SHARE_USUAL,
            policy: Policy::Adaptive,
            counters: Arc::default(),
        };
        self.core.send(Command::AttachHost(HostServed::new(spec)));
        self.core.pass();
    }

    /// Gives a queue back; it is the only event.
    pub(super) fn detach(&mut self, port: u16, is_receive: bool) -> Box<Served> {
        self.core.send(Command::Detach(key(port, is_receive)));
        self.core.pass();
        let mut events = self.core.events();
        assert_eq!(events.len(), 1, "{events:?}");
        match events.pop() {
            Some(Event::Detached(served)) if served.key() == key(port, is_receive) => served,
            other => panic!("not that queue: {other:?}"),
        }
    }

    pub(super) fn passes(&mut self, passes: u32) -> u32 {
        self.core.passes(passes)
    }

    pub(super) fn counters(&self, port: u16) -> PortSnapshot {
        self.counters[usize::from(port)].snapshot()
    }

    /// Frames dropped at `port` for `reason`; for no other reason was one.
    pub(super) fn only_dropped(&self, port: u16, reason: DropReason) -> u64 {
        let drops = self.counters(port).drops;
        assert_eq!(drops.total(), drops.of(reason), "{drops:?}");
        drops.of(reason)
    }
}

/// The address of guest `number`.
pub(super) fn mac(number: u8) -> [u8; 6] {
    [0x02, 0, 0, 0, 0, number]
}

pub(super) const ALL: [u8; 6] = [0xff; 6];

/// A frame of `len` bytes whose bytes differ from place to place.
pub(super) fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.extend((14..len).map(|at| (at * 7 + at / 256) as u8));
    frame
}
