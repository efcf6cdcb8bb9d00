//! Frames through a sidecore on one thread: from a guest to nowhere, from nowhere to a guest, and from
//! one guest to another on a switch.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use backend::net::{HostPort, HostSource, NullMode};
use device::net::Net;
use guest_memory::GuestMap;
use schedule::{Nanos, Policy};
use sidecore::{
    BridgeId, BridgeKind, Command, Handle, HostKey, HostServed, HostSpec, NicQueue, PortSpec,
    QueueKey, RoleSpec, Served, ServedSpec, Sidecore, SidecoreSpec,
};
use switch::{Limits, PortId, Rules};
use testing::net_frontend::{Header, NicSpec, Pair, Stream, frames};
use virtqueue::driver::RingSpec;
use virtqueue::{Format, Queue, QueueSpec};

use crate::disk::WARM_TURNS;
use crate::{TURN_NS, counted_pass};

const BRIDGE: BridgeId = BridgeId(0);
const MTU: u32 = 9000;

/// What frames do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trip {
    /// Made by the host, taken by the guest.
    Receive,
    /// Sent by the guest, dropped.
    Transmit,
    /// Sent and echoed.
    Echo,
    /// Sent by one guest to the other.
    Switch,
}

/// A trip of frames in one kind of ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    trip: Trip,
    format: Format,
    is_segment: bool,
}

pub(crate) const CASES: [Case; 8] = [
    case("net.rx.64.split", Trip::Receive, Format::Split, false),
    case("net.rx.64.packed", Trip::Receive, Format::Packed, false),
    case("net.tx.64.split", Trip::Transmit, Format::Split, false),
    case("net.tx.64.packed", Trip::Transmit, Format::Packed, false),
    case("net.loop.64.split", Trip::Echo, Format::Split, false),
    case("net.switch.64.split", Trip::Switch, Format::Split, false),
    case("net.switch.64.packed", Trip::Switch, Format::Packed, false),
    case("net.switch.64k.split", Trip::Switch, Format::Split, true),
];

const fn case(name: &'static str, trip: Trip, format: Format, is_segment: bool) -> Case {
    Case { name, trip, format, is_segment }
}

/// A sidecore with one or two NICs, and their drivers.
pub(crate) struct Bed {
    sidecore: Sidecore,
    handle: Handle,
    pairs: Vec<(Pair, Stream)>,
    trip: Trip,
    /// Sent, where nothing arrives.
    sent: u64,
    now: Nanos,
}

impl Bed {
    pub(crate) fn new(case: Case) -> Result<Bed> {
        let (sidecore, handle) = Sidecore::new(SidecoreSpec {
            index: 0,
            cpu: None,
            workers: None,
            watches: true,
            queues_max: 16,
        })?;
        let trip = case.trip;
        let mut bed = Bed { sidecore, handle, pairs: Vec::new(), trip, sent: 0, now: Nanos(1) };
        let kind = match trip {
            Trip::Switch => BridgeKind::Switch { limits: Limits::default(), seed: 1 },
            _ => BridgeKind::Wire,
        };
        bed.order(Command::SetBridge(BRIDGE, Some(kind)))?;
        bed.plug(case, 0)?;
        match trip {
            Trip::Switch => bed.plug(case, 1)?,
            Trip::Echo => bed.plug_null(NullMode::Echo)?,
            Trip::Transmit => bed.plug_null(NullMode::Drop)?,
            Trip::Receive => {
                let destination = frames::mac(0);
                bed.plug_null(NullMode::Generate { size: 64, rate: 0, destination })?;
            }
        }
        bed.warm()?;
        Ok(bed)
    }

    fn order(&mut self, command: Command) -> Result<()> {
        ensure!(self.handle.send(command).is_ok(), "the sidecore takes no command");
        self.pass();
        Ok(())
    }

    fn set_port(&mut self, port: u16) -> Result<()> {
        let (rules, counters) = (Rules::default(), Arc::default());
        let spec = PortSpec { rules, home: 0, mtu: MTU, counters, lanes: None };
        self.order(Command::SetPort(BRIDGE, PortId(port), Some(Box::new(spec))))
    }

    /// A NIC at a new port. On a switch the first one sends to the second.
    fn plug(&mut self, case: Case, port: u16) -> Result<()> {
        let ring =
            RingSpec { size: 256, format: case.format, event_index: true, indirect_entries: 0 };
        let spec = match case.is_segment {
            true => NicSpec { ring, ..NicSpec::with_offloads() },
            false => NicSpec { ring, ..NicSpec::default() },
        };
        let (mut pair, map, queues) = Pair::alone(&spec)?;
        self.set_port(port)?;
        for (queue, index) in queues.into_iter().zip(0..) {
            let nic = NicQueue {
                net: Net::new(spec.features | device::features::VERSION_1),
                bridge: BRIDGE,
                port: PortId(port),
                pair: 0,
            };
            let role = if index == 0 { RoleSpec::Receive(nic) } else { RoleSpec::Transmit(nic) };
            self.order(Command::Attach(served(port, index, queue, &map, role)?))?;
        }
        let to = if self.trip == Trip::Switch { 1 - port } else { port };
        let (header, frame) = match case.is_segment {
            true => (frames::segment_header(), frames::segment(frames::mac(port), frames::mac(to))),
            false => (Header::default(), frames::small(frames::mac(port), frames::mac(to))),
        };
        let stream = Stream::new(&mut pair, &header, &frame)?;
        self.pairs.push((pair, stream));
        Ok(())
    }

    fn plug_null(&mut self, mode: NullMode) -> Result<()> {
        self.set_port(1)?;
        let host = HostSpec {
            key: HostKey { bridge: BRIDGE, port: PortId(1), queue: 0 },
            port: HostPort::open(&HostSource::Null { mode })?,
            share: 100,
            policy: Policy::Poll,
            counters: Arc::default(),
        };
        self.order(Command::AttachHost(HostServed::new(host)))
    }

    /// Turns that are not counted: the switch learns where both guests are.
    fn warm(&mut self) -> Result<()> {
        if self.trip == Trip::Switch {
            let (pair, stream) = &mut self.pairs[1];
            stream.pump(pair)?;
        }
        for _ in 0..WARM_TURNS {
            self.turn(|sidecore, now| {
                sidecore.pass(now, &now);
            })?;
        }
        Ok(())
    }

    /// A burst of frames on its way, a pass, and what arrived.
    fn turn(&mut self, pass: impl Fn(&mut Sidecore, Nanos)) -> Result<()> {
        if self.trip != Trip::Receive {
            let (pair, stream) = &mut self.pairs[0];
            self.sent += stream.pump(pair)? as u64;
        }
        self.now = Nanos(self.now.0 + TURN_NS);
        pass(&mut self.sidecore, self.now);
        for (pair, stream) in &mut self.pairs {
            while stream.sink(pair)? > 0 {}
        }
        Ok(())
    }

    fn pass(&mut self) {
        self.now = Nanos(self.now.0 + TURN_NS);
        self.sidecore.pass(self.now, &self.now);
    }

    /// Frames that made their trip since the bed was made.
    fn done(&self) -> u64 {
        match self.trip {
            Trip::Transmit => self.sent,
            _ => self.pairs.last().map_or(0, |(_, stream)| stream.sunk().frames),
        }
    }

    /// At least `frames` frames; gives how many there were.
    pub(crate) fn run(&mut self, frames: u64) -> Result<u64> {
        let before = self.done();
        let mut idle = 0;
        while self.done() - before < frames {
            let last = self.done();
            self.turn(counted_pass)?;
            idle = if self.done() == last { idle + 1 } else { 0 };
            ensure!(idle < 1000, "the sidecore does nothing any more");
        }
        Ok(self.done() - before)
    }
}

fn served(
    port: u16,
    index: u16,
    queue: QueueSpec,
    map: &Arc<GuestMap>,
    role: RoleSpec,
) -> Result<Box<Served>> {
    Ok(Served::new(ServedSpec {
        key: QueueKey { device: port.into(), queue: index },
        queue: Queue::new(queue).context("a ring of our own")?,
        memory: Arc::clone(map),
        role,
        kick: None,
        call: None,
        share: 100,
        policy: Policy::Poll,
        target_ns: None,
        moderate_ns: 0,
        gate: None,
        counters: Arc::default(),
    }))
}
