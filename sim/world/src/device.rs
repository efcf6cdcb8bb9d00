//! One disk of a simulated daemon: its front-end's session, and where its queues are.
//!
//! Control in small: the same order for every message as in the manager (scope, take back, apply, attach),
//! without sockets and threads.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use backend::Disk;
use control::Passes;
use control::port::{At, Port};
use control::queue::Life;
use device::blk::{self, Blk};
use device::features;
use device::net::{self, Net};
use guest_memory::GuestMap;
use schedule::{Gate, Limited, Meters, Policy, Rate};
use sidecore::{
    BridgeId, Command, Departure, MoveId, NicQueue, PortCounters, QueueCounters, QueueKey,
    RoleSpec, Served, ServedSpec,
};
use switch::PortId;
use vhost_user::{DeviceClass, DeviceFacts, Framer, Message, RingFacts, Scope, Session};
use virtqueue::{Format, Inflight, Queue, QueueSpec, inflight, layout};

use crate::lan::mac;
use crate::lent::{Lent, Personality, Record};

/// The one switch of a daemon.
pub(crate) const BRIDGE: BridgeId = BridgeId(0);

/// What passes through control here.
#[derive(Debug)]
pub(crate) struct Daemon;

impl Passes for Daemon {
    type MoveId = MoveId;
    type Departure = Box<Departure>;
    type Command = Command;
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) session: Session<OwnedFd>,
    framer: Framer<OwnedFd>,
    pub(crate) lent: Lent,
    /// The message that waits for queues to be back.
    pub(crate) pending: Option<(Message, Vec<OwnedFd>, bool)>,
    pub(crate) ending: bool,
    /// So many changes had been made when a ring could not be started.
    pub(crate) failed_at: Option<u64>,
}

/// What a device is made of.
#[derive(Debug)]
pub(crate) enum Kind {
    Disk { disk: Arc<Disk>, shape: blk::Shape, live: Arc<blk::Live> },
    Nic(Nic),
}

/// A NIC, and where its port is at home.
#[derive(Debug)]
pub(crate) struct Nic {
    shape: net::Shape,
    live: Arc<net::Live>,
    pub(crate) counters: Arc<PortCounters>,
    pub(crate) vlan: u16,
    /// Where its port is at home, and where it is going.
    pub(crate) port: Port<Daemon, ()>,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    pub(crate) link: Option<Link>,
    pub(crate) queues: Vec<Life<Daemon>>,
    pub(crate) resizing: Option<u64>,
    policy: Policy,
    /// For so long its calls may wait.
    moderate_ns: u32,
    pub(crate) limit: Option<Limit>,
    /// What each queue holds of it, when it is back.
    pub(crate) gates: Vec<Option<Box<Gate>>>,
}

/// So many requests a second and no more, of all its queues.
#[derive(Debug)]
pub(crate) struct Limit {
    rate: Rate,
    meters: Arc<Meters>,
    since_ns: u64,
    /// Of all queues that were ever attached.
    counters: Vec<Arc<QueueCounters>>,
}

impl Limit {
    pub(crate) fn new(per_s: u64, now_ns: u64) -> Option<Limit> {
        let rate = Rate { per_s, burst_ns: 1_000_000 };
        let meters = Meters::new(Some(rate), None)?;
        Some(Limit { rate, meters, since_ns: now_ns, counters: Vec::new() })
    }

    /// More were served than it allows?
    pub(crate) fn check(&self, now_ns: u64) -> Result<(), String> {
        let of = |counters: &Arc<QueueCounters>| counters.snapshot().requests;
        let served: u64 = self.counters.iter().map(of).sum();
        let Rate { per_s, burst_ns } = self.rate;
        let time_ns = u128::from(now_ns - self.since_ns + burst_ns);
        // One more at the moment at which it is earned, of each queue.
        let most = (time_ns * u128::from(per_s) / 1_000_000_000) as u64 + 4;
        match served <= most {
            true => Ok(()),
            false => Err(format!("{served} requests were served, and {most} are allowed")),
        }
    }
}

impl Device {
    /// A NIC at the port of its own number.
    pub(crate) fn nic(
        number: u32,
        vlan: u16,
        home: usize,
        policy: Policy,
        moderate_ns: u32,
    ) -> Device {
        let shape =
            net::Shape { mac: mac(number.into()), mtu: 9000, pairs: 1, guest_offloads: true };
        let live = net::Live::new(&shape);
        let counters = Arc::default();
        let mut port = Port::default();
        let _ = port.plug(At { way: (), home, by_hand: false });
        let kind = Kind::Nic(Nic { shape, live, counters, vlan, port });
        Device::new(number, kind, 2, policy, moderate_ns)
    }

    /// Where the queues of a NIC are at home, and that it is not on its way.
    pub(crate) fn home(&self) -> Option<usize> {
        match &self.kind {
            Kind::Disk { .. } => None,
            Kind::Nic(nic) => nic.port.at().map(|at| at.home),
        }
    }

    /// Whether it is a NIC that is on its way to another core.
    pub(crate) fn travels(&self) -> bool {
        matches!(&self.kind, Kind::Nic(nic) if nic.port.travels())
    }

    pub(crate) fn as_nic(&mut self) -> Option<&mut Nic> {
        match &mut self.kind {
            Kind::Disk { .. } => None,
            Kind::Nic(nic) => Some(nic),
        }
    }

    pub(crate) fn disk(
        number: u32,
        disk: Arc<Disk>,
        queues: u16,
        policy: Policy,
        moderate_ns: u32,
    ) -> Device {
        let limits = disk.limits();
        let shape = blk::Shape {
            block_size: disk.block_size(),
            physical_block_exp: 3,
            topology: Default::default(),
            readonly: false,
            queues,
            serial: *b"a simulated disk....",
            limits: blk::Limits {
                discard_sectors_max: limits.discard_sectors_max,
                zeroes_sectors_max: limits.zeroes_sectors_max,
            },
            in_order: false,
        };
        let live = blk::Live::new(disk.size_bytes());
        let kind = Kind::Disk { disk, shape, live };
        Device::new(number, kind, queues, policy, moderate_ns)
    }

    /// With so many queues, none of them with a sidecore, and no front-end.
    fn new(number: u32, kind: Kind, queues: u16, policy: Policy, moderate_ns: u32) -> Device {
        let queues = (0..queues).map(|_| Life::default()).collect();
        Device {
            number,
            kind,
            link: None,
            queues,
            resizing: None,
            policy,
            moderate_ns,
            limit: None,
            gates: Vec::new(),
        }
    }

    /// A front-end has connected.
    pub(crate) fn connect(&mut self) {
        let (class, features, personality) = match &self.kind {
            Kind::Disk { shape, live, .. } => (
                DeviceClass::Disk { inflight_len },
                blk::offered(shape),
                Personality::Disk(shape.clone(), Arc::clone(live)),
            ),
            Kind::Nic(nic) => (
                DeviceClass::Nic,
                net::offered(&nic.shape),
                Personality::Nic(nic.shape.clone(), Arc::clone(&nic.live)),
            ),
        };
        let queues_max = self.queues.len() as u16;
        let facts = DeviceFacts { class, features, queues_max, ring_size_max: 256 };
        self.link = Some(Link {
            session: Session::new(facts),
            framer: Framer::default(),
            lent: Lent::new(personality),
            pending: None,
            ending: false,
            failed_at: None,
        });
    }

    /// Bytes came.
    ///
    /// # Errors
    /// They are no message, or one that makes no sense.
    pub(crate) fn receive(&mut self, bytes: &[u8], mut fds: Vec<OwnedFd>) -> Result<(), String> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let mut bytes = bytes;
        let frame = link.framer.push(&mut bytes, &mut fds).map_err(|e| e.to_string())?;
        let Some(frame) = frame else { return Ok(()) };
        let message = link.session.parse(&frame).map_err(|e| e.reason.to_string())?;
        link.pending = Some((message, frame.fds, frame.need_reply));
        Ok(())
    }

    /// The queues that must be back now.
    pub(crate) fn wanted(&self) -> Vec<usize> {
        let all = || (0..self.queues.len()).collect();
        match &self.link {
            None => Vec::new(),
            Some(link) if link.ending || self.resizing.is_some() => all(),
            Some(Link { pending: Some((message, ..)), session, .. }) => {
                match session.scope(message) {
                    Scope::None => Vec::new(),
                    Scope::Queue(index) => vec![index.into()],
                    Scope::All => all(),
                }
            }
            Some(_) => Vec::new(),
        }
    }

    pub(crate) fn is_back(&self, index: usize) -> bool {
        self.queues[index].place().is_none()
    }

    /// The ring that has to start before the message that waits may stop it (`manager::device`, the same).
    pub(crate) fn starts_first(&self) -> Option<usize> {
        let link = self.link.as_ref().filter(|link| !link.ending)?;
        let index = self.stops()?;
        let facts = link.session.ready(index).filter(|_| self.is_back(index.into()))?;
        let format = format_of(link.session.features());
        let is_recorded = link.lent.record.as_ref().is_some_and(|record| {
            record_of(record, index, format, facts.size).map_or(true, |part| !part.is_fresh())
        });
        let waits = is_recorded && link.failed_at != Some(link.session.changes());
        (waits && !link.session.was_served(index)).then_some(index.into())
    }

    /// The ring that the message that waits stops, so that nothing may be left of it.
    pub(crate) fn stops(&self) -> Option<u16> {
        let link = self.link.as_ref().filter(|link| !link.ending)?;
        let index = match &link.pending.as_ref()?.0 {
            Message::GetVringBase(state) => state.queue,
            Message::SetVringEnable(state) if state.value == 0 => state.queue,
            _ => return None,
        };
        u16::try_from(index).ok().filter(|index| usize::from(*index) < self.queues.len())
    }

    /// Applies the message that waits: its answer.
    ///
    /// # Errors
    /// It is refused.
    pub(crate) fn apply(&mut self) -> Result<Option<vhost_user::Reply<OwnedFd>>, String> {
        let Some(link) = &mut self.link else { return Ok(None) };
        let Some((message, fds, need_reply)) = link.pending.take() else { return Ok(None) };
        let applied = link.session.apply(message, fds, need_reply, &mut link.lent);
        applied.map_err(|e| e.reason.to_string())
    }

    /// The queue of `index`, when it is to be served and is not.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn make(&mut self, index: usize) -> Result<Option<Box<Served>>, String> {
        let Some(link) = &self.link else { return Ok(None) };
        let is_hopeless = link.failed_at == Some(link.session.changes());
        let may_start = link.pending.is_none() || self.starts_first() == Some(index);
        if !self.is_back(index) || !may_start || link.ending || is_hopeless {
            return Ok(None);
        }
        let Some(facts) = link.session.ready(index as u16) else { return Ok(None) };
        let negotiated = link.session.features();
        let memory = link.lent.memory(link.session.is_logging())?;
        let format = format_of(negotiated);
        let record = link.lent.record.as_ref();
        let record = record.map(|record| record_of(record, index as u16, format, facts.size));
        let base = self.base(&facts, format, &memory);
        let queue = ring(&facts, base, negotiated, format, &memory, record.transpose()?)?;
        let counters: Arc<QueueCounters> = Arc::default();
        let gate = self.limit.as_mut().and_then(|limit| {
            limit.counters.push(Arc::clone(&counters));
            let (device, group) = (Some(Arc::clone(&limit.meters)), None);
            Gate::new(Limited { device, group }).map(Box::new)
        });
        // What it held it holds again.
        let kept = self.gates.get_mut(index).and_then(Option::take);
        let gate = kept.or(gate);
        let copy = |fd: Option<&OwnedFd>| {
            fd.map(OwnedFd::try_clone).transpose().map_err(|e| e.to_string())
        };
        Ok(Some(Served::new(ServedSpec {
            key: QueueKey { device: self.number, queue: index as u16 },
            queue,
            memory,
            role: self.role(index, negotiated),
            kick: copy(facts.kick)?,
            call: copy(facts.call)?,
            share: schedule::SHARE_USUAL,
            policy: self.policy,
            target_ns: None,
            moderate_ns: self.moderate_ns,
            gate,
            counters,
        })))
    }

    /// Where a queue goes on. A split ring of a NIC says so itself (`manager::start`, `base_of`).
    fn base(&self, facts: &RingFacts<'_, OwnedFd>, format: Format, memory: &GuestMap) -> u32 {
        match (&self.kind, format) {
            (Kind::Nic(_), Format::Split) => {
                let used = memory.area_at_user(facts.addresses.device, 4);
                used.map_or(facts.base, |area| area.load_acquire_u16(2).into())
            }
            _ => facts.base,
        }
    }

    fn role(&self, index: usize, negotiated: u64) -> RoleSpec {
        match &self.kind {
            Kind::Disk { disk, shape, live } => RoleSpec::Disk {
                blk: Blk::new(shape, Arc::clone(live), negotiated),
                backend: disk.backend(),
            },
            Kind::Nic(_) => {
                let (net, port) = (Net::new(negotiated), PortId(self.number as u16));
                let queue = NicQueue { net, bridge: BRIDGE, port, pair: 0 };
                match index {
                    0 => RoleSpec::Receive(queue),
                    _ => RoleSpec::Transmit(queue),
                }
            }
        }
    }
}

fn format_of(negotiated: u64) -> Format {
    if negotiated & features::RING_PACKED == 0 { Format::Split } else { Format::Packed }
}

fn ring(
    facts: &RingFacts<'_, OwnedFd>,
    base: u32,
    negotiated: u64,
    format: Format,
    memory: &GuestMap,
    inflight: Option<Inflight>,
) -> Result<Queue, String> {
    let (size, event_index) = (facts.size, negotiated & features::EVENT_IDX != 0);
    let area = |user: u64, len: u64| {
        memory.area_at_user(user, len).ok_or(format!("{user:#x} is not in memory"))
    };
    let at = &facts.addresses;
    let spec = QueueSpec {
        size,
        format,
        event_index,
        indirect: negotiated & features::INDIRECT_DESC != 0,
        descriptors: area(at.descriptors, layout::descriptors_len(format, size))?,
        driver: area(at.driver, layout::driver_len(format, size, event_index))?,
        device: area(at.device, layout::device_len(format, size, event_index))?,
        base,
        inflight,
    };
    Queue::new(spec).map_err(|e| e.to_string())
}

fn record_of(record: &Record, index: u16, format: Format, size: u16) -> Result<Inflight, String> {
    if index >= record.queues || size > record.queue_size {
        return Err(format!("the in-flight record has no queue {index} of {size}"));
    }
    let len = inflight::queue_region_len(format, record.queue_size) as usize;
    let area = record.area.window(len * usize::from(index), len).ok_or("the record is short")?;
    Inflight::new(area, format, size).map_err(|e| e.to_string())
}

fn inflight_len(size: u16, packed: bool) -> u64 {
    let format = if packed { Format::Packed } else { Format::Split };
    inflight::queue_region_len(format, size)
}
