//! A simulated daemon: some sidecores, and a control that is in one place at a time.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use backend::net::{HostPort, Simulated};
use control::port::{Arrived, At, Outcome, Wish};
use control::queue::{Asked, Move, Moved, Owner, Place};
use random::Random;
use schedule::{Nanos, Policy};
use sidecore::{
    BridgeKind, Command, Event, HostKey, HostServed, HostSpec, MoveId, PortSpec, QueueKey,
    build_road, handover, relocation,
};
use switch::{Limits, PortId, Rules, Spoof, Vlan};

use crate::core::Core;
use crate::device::{BRIDGE, Device, Kind};
use crate::lan::mac;
use crate::trace::Trace;
use crate::uplink::{ELSEWHERE, Uplink};

/// What a daemon has to say to the world.
#[derive(Debug)]
pub(crate) enum Said {
    /// An answer to the front-end of this device.
    Answer(u32, Vec<u8>, Option<OwnedFd>),
    /// A queue of this device was latched.
    Failed(u32, String),
    /// A message was refused, or a ring cannot be started.
    Refused(u32, String),
    /// A queue of this device is back.
    Back(u32),
    /// The device has another size, in sectors.
    Resized(u32, u64),
}

pub(crate) struct Daemon {
    pub(crate) cores: Vec<Core>,
    pub(crate) devices: BTreeMap<u32, Device>,
    /// All queues are to come back, to go on with other sidecores.
    upgrading: bool,
    moves: u64,
    random: Random,
    trace: Trace,
    number: u64,
    /// Where its switch leads to.
    uplink: Option<Uplink>,
}

impl Daemon {
    pub(crate) fn new(
        number: u64,
        uplink: Option<Uplink>,
        mut random: Random,
        trace: &Trace,
    ) -> Result<Daemon, String> {
        let cores = cores(&mut random)?;
        let (devices, trace) = (BTreeMap::new(), trace.clone());
        let mut daemon =
            Daemon { cores, devices, upgrading: false, moves: 0, random, trace, number, uplink };
        daemon.plug_uplink()?;
        Ok(daemon)
    }

    /// Killed: nothing is finished and nothing is said.
    pub(crate) fn die(self) {
        self.cores.into_iter().for_each(Core::die);
    }

    /// Another version takes over as soon as all queues are back.
    pub(crate) fn upgrade(&mut self) {
        self.upgrading = true;
    }

    /// One queue of this device is to go to another core, if it can.
    pub(crate) fn shift(&mut self, number: u32) -> Result<(), String> {
        let cores = self.cores.len();
        let Some(device) = self.devices.get_mut(&number) else { return Ok(()) };
        let index = self.random.below(device.queues.len() as u64) as usize;
        let to = self.random.below(cores as u64) as usize;
        let queue = &device.queues[index];
        let is_underway = queue.moving().is_some() || queue.leaving_since().is_some();
        if is_underway || queue.place().is_none_or(|place| place.core == to) {
            return Ok(());
        }
        let Kind::Disk { disk, .. } = &device.kind else { return self.relocate(number, to) };
        self.moves += 1;
        let id = MoveId(self.moves);
        let (arrival, departure) = handover(id, &self.cores[to].handle, disk.backend());
        self.cores[to].send(Command::Prepare(arrival))?;
        match device.queues[index].prepare(Move { id, to, by_hand: false }, departure) {
            true => Ok(()),
            false => Err("a queue that is served in peace cannot be moved".to_string()),
        }
    }

    /// A NIC goes as a whole: every core is told.
    fn relocate(&mut self, number: u32, to: usize) -> Result<(), String> {
        let cores = self.cores.len() as u16;
        let Some(device) = self.devices.get_mut(&number) else { return Ok(()) };
        if device.queues.iter().any(|queue| queue.leaving_since().is_some()) {
            return Ok(());
        }
        let queues = device.queues.iter().filter(|queue| queue.place().is_some()).count();
        self.moves += 1;
        let id = MoveId(self.moves);
        let Some(nic) = device.as_nic() else { return Ok(()) };
        let Some(home) = nic.port.at().map(|at| at.home).filter(|home| *home != to) else {
            return Ok(());
        };
        if !nic.port.depart(id, Wish::new(to, false)) {
            return Ok(());
        }
        let (port, way) = ((BRIDGE, PortId(number as u16)), (home as u16, to as u16));
        let parts = relocation(id, port, queues, way, cores);
        self.cores
            .iter_mut()
            .zip(parts)
            .try_for_each(|(core, part)| core.send(Command::Relocate(part)))
    }

    /// A device more. Of a NIC every core hears of its port.
    pub(crate) fn add(&mut self, device: Device) -> Result<(), String> {
        let number = device.number;
        self.devices.insert(number, device);
        self.plug(number)
    }

    /// The switch leads to the host, too, once it knows its NICs.
    fn plug_uplink(&mut self) -> Result<(), String> {
        let Some(uplink) = self.uplink.clone() else { return Ok(()) };
        let home = self.random.below(self.cores.len() as u64) as usize;
        let port = PortId(ELSEWHERE as u16);
        for core in &mut self.cores {
            let (rules, counters) = (Rules::default(), Arc::default());
            let spec = PortSpec { rules, home: home as u16, mtu: 9000, counters, lanes: None };
            core.send(Command::SetPort(BRIDGE, port, Some(Box::new(spec))))?;
        }
        let spec = HostSpec {
            key: HostKey { bridge: BRIDGE, port, queue: 0 },
            port: HostPort::Simulated(Box::new(Simulated::new(Box::new(uplink)))),
            share: schedule::SHARE_USUAL,
            policy: Policy::Adaptive,
            counters: Arc::default(),
        };
        self.cores[home].send(Command::AttachHost(HostServed::new(spec)))
    }

    fn plug(&mut self, number: u32) -> Result<(), String> {
        let cores = self.cores.len() as u64;
        let Some(nic) = self.devices.get_mut(&number).and_then(Device::as_nic) else {
            return Ok(());
        };
        let home = self.random.below(cores) as usize;
        nic.port.unplug();
        let _ = nic.port.plug(At { way: (), home, by_hand: false });
        for core in &mut self.cores {
            let rules = Rules {
                vlan: if nic.vlan == 0 { Vlan::None } else { Vlan::Access(nic.vlan) },
                mac: Some(mac(number.into())),
                spoof: Spoof::Deny,
                ..Rules::default()
            };
            let counters = Arc::clone(&nic.counters);
            let spec = PortSpec { rules, home: home as u16, mtu: 9000, counters, lanes: None };
            let port = PortId(number as u16);
            core.send(Command::SetPort(BRIDGE, port, Some(Box::new(spec))))?;
        }
        Ok(())
    }

    /// Looks at everything once.
    ///
    /// # Errors
    /// What cannot be.
    pub(crate) fn tend(&mut self, now_ns: u64) -> Result<Vec<Said>, String> {
        let mut said = Vec::new();
        for core in 0..self.cores.len() {
            while let Some(event) = self.cores[core].event() {
                self.heard(core, event, now_ns, &mut said)?;
            }
        }
        let numbers: Vec<u32> = self.devices.keys().copied().collect();
        for number in numbers {
            self.tend_device(number, now_ns, &mut said)?;
        }
        let is_back = |device: &Device| (0..device.queues.len()).all(|at| device.is_back(at));
        if self.upgrading && self.devices.values().all(is_back) {
            self.trace.note(now_ns, "upgraded", [self.number, 0, 0]);
            std::mem::take(&mut self.cores).into_iter().for_each(Core::die);
            self.cores = cores(&mut self.random)?;
            self.upgrading = false;
            let numbers: Vec<u32> = self.devices.keys().copied().collect();
            numbers.into_iter().try_for_each(|number| self.plug(number))?;
            self.plug_uplink()?;
        }
        Ok(said)
    }

    fn tend_device(
        &mut self,
        number: u32,
        now_ns: u64,
        said: &mut Vec<Said>,
    ) -> Result<(), String> {
        let Some(device) = self.devices.get_mut(&number) else { return Ok(()) };
        let wanted = match self.upgrading {
            true => (0..device.queues.len()).collect(),
            false => device.wanted(),
        };
        if let Some(limit) = &device.limit {
            limit.check(now_ns).map_err(|e| format!("disk {number}: {e}"))?;
        }
        let finishes = !self.upgrading && device.resizing.is_none() && device.stops().is_some();
        for index in &wanted {
            if let Some((core, command)) = call_back(device, *index, (finishes, now_ns)) {
                self.cores[core].send(command)?;
            }
        }
        if !wanted.iter().all(|index| device.is_back(*index)) {
            return Ok(());
        }
        if let Some(bytes) = device.resizing.take() {
            if let Kind::Disk { disk, live, .. } = &mut device.kind {
                backend::Disk::resize(disk, bytes).map_err(|e| e.to_string())?;
                live.set_capacity(bytes);
            }
            said.push(Said::Resized(number, bytes / 512));
        }
        if device.link.as_ref().is_some_and(|link| link.ending) {
            device.link = None;
            return Ok(());
        }
        let starts_first = device.starts_first().is_some();
        match if starts_first { Ok(None) } else { device.apply() } {
            Ok(Some(reply)) => said.push(Said::Answer(number, reply.bytes, reply.fd)),
            Ok(None) => {}
            Err(why) => said.push(Said::Refused(number, why)),
        }
        // Where the queues of a NIC start is known when it is there.
        let starts = !self.upgrading && !device.travels();
        if starts { self.start_queues(number, now_ns, said) } else { Ok(()) }
    }

    /// Gives the sidecores what is to be served and is not.
    fn start_queues(
        &mut self,
        number: u32,
        now_ns: u64,
        said: &mut Vec<Said>,
    ) -> Result<(), String> {
        let Some(device) = self.devices.get_mut(&number) else { return Ok(()) };
        for index in 0..device.queues.len() {
            match device.make(index) {
                Ok(None) => {}
                Ok(Some(served)) => {
                    let any = self.random.below(self.cores.len() as u64) as usize;
                    let core = device.home().unwrap_or(any);
                    let place = u64::from(number) << 8 | index as u64;
                    let base = served.queue().base();
                    self.trace.note(now_ns, "attach", [place, core as u64, base.into()]);
                    self.cores[core].send(Command::Attach(served))?;
                    let place = Place { core, owner: Owner::Connection(0), by_hand: false };
                    if !device.queues[index].attach(place) {
                        return Err(format!("queue {index} of device {number} is attached twice"));
                    }
                }
                Err(why) => {
                    if let Some(link) = &mut device.link {
                        link.failed_at = Some(link.session.changes());
                    }
                    said.push(Said::Refused(number, why));
                }
            }
        }
        Ok(())
    }

    fn heard(
        &mut self,
        core: usize,
        event: Event,
        now_ns: u64,
        said: &mut Vec<Said>,
    ) -> Result<(), String> {
        match event {
            Event::Detached(served) => {
                let (QueueKey { device, queue }, base) = (served.key(), served.queue().base());
                let left = served.queue().left();
                self.trace.note(
                    now_ns,
                    "detached",
                    [u64::from(device) << 8 | u64::from(queue), base.into(), 0],
                );
                let gate = served.into_spec().gate;
                said.push(Said::Back(device));
                if let Some(device) = self.devices.get_mut(&device) {
                    device.gates.resize_with(device.queues.len(), || None);
                    device.gates[usize::from(queue)] = gate;
                    if device.queues[usize::from(queue)].come_back().is_none() {
                        return Err(format!("queue {queue} came back, and nobody had it"));
                    }
                    if let Some(link) = device.link.as_mut().filter(|_| left == 0) {
                        link.session.stopped_at(queue, base);
                    }
                }
            }
            Event::Failed { key, violation } => {
                said.push(Said::Failed(key.device, violation.to_string()));
                if let Some(link) = self.devices.get_mut(&key.device).and_then(|d| d.link.as_mut())
                {
                    link.session.failed(key.queue);
                }
            }
            Event::Prepared(id) => self.prepared(id)?,
            Event::Moved(id) => self.settled(id, true, now_ns)?,
            Event::Stayed(id, _) => self.settled(id, false, now_ns)?,
            Event::Refused(served, refusal) => {
                drop(served.into_spec());
                return Err(format!("core {core} refuses a queue: {refusal}"));
            }
            other => return Err(format!("an event that nothing asked for: {other:?}")),
        }
        Ok(())
    }

    fn prepared(&mut self, wanted: MoveId) -> Result<(), String> {
        for device in self.devices.values_mut() {
            for (index, queue) in device.queues.iter_mut().enumerate() {
                if let Some((core, departure)) = queue.prepared(wanted) {
                    let key = QueueKey { device: device.number, queue: index as u16 };
                    return self.cores[core].send(Command::Move(key, departure));
                }
            }
        }
        Ok(())
    }

    fn settled(&mut self, wanted: MoveId, moved: bool, now_ns: u64) -> Result<(), String> {
        for device in self.devices.values_mut() {
            let Some(nic) = device.as_nic() else { continue };
            let outcome = if moved { Outcome::Moved } else { Outcome::Stayed };
            let Some(arrived) = nic.port.arrive(wanted, outcome) else { continue };
            let Arrived { to, held, .. } = arrived;
            let number = device.number.into();
            self.trace.note(now_ns, "nic moved", [number, moved.into(), to as u64]);
            if moved {
                device.queues.iter_mut().for_each(|queue| queue.rehome(to));
            }
            for (index, command) in held {
                if let Some((core, command)) = device.queues[usize::from(index)].tell(command) {
                    self.cores[core].send(command)?;
                }
            }
        }
        for queue in self.devices.values_mut().flat_map(|device| device.queues.iter_mut()) {
            let Some(Moved { to, held, .. }) = queue.moved(wanted, !moved) else { continue };
            self.trace.note(now_ns, "moved", [wanted.0, moved.into(), to as u64]);
            for command in held {
                self.cores[to].send(command)?;
            }
        }
        Ok(())
    }
}

/// Asks for a queue, wherever it is; `finishes` with nothing left in its record. Whom to tell what, now.
fn call_back(
    device: &mut Device,
    index: usize,
    (finishes, now_ns): (bool, u64),
) -> Option<(usize, Command)> {
    let key = QueueKey { device: device.number, queue: index as u16 };
    let Asked::Tell(_) = device.queues[index].ask(finishes, Nanos(now_ns)) else { return None };
    let command = if finishes { Command::Finish(key) } else { Command::Detach(key) };
    let command = match device.as_nic() {
        Some(nic) => nic.port.tell(key.queue, command)?,
        None => command,
    };
    device.queues[index].tell(command)
}

/// Sidecores that know the switch and each other.
fn cores(random: &mut Random) -> Result<Vec<Core>, String> {
    let cores: Result<Vec<Core>, String> =
        (0..random.between(1, 3)).map(|index| Core::new(index as u16)).collect();
    let mut cores = cores?;
    for core in &mut cores {
        let kind = BridgeKind::Switch { limits: Limits::default(), seed: 1 };
        core.send(Command::SetBridge(BRIDGE, Some(kind)))?;
    }
    for from in 0..cores.len() {
        for to in (0..cores.len()).filter(|to| *to != from) {
            let (out, back) = build_road(&cores[from].handle, &cores[to].handle, to as u16);
            cores[from].send(out)?;
            cores[to].send(back)?;
        }
    }
    Ok(cores)
}
