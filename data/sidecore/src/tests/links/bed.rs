//! A sidecore with an IOhost's link, its clients, the wire between them, and control.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use backend::Disk;
use backend::link::{LinkNic, LinkSocket, LinkWire};
use backend::net::HostPort;
use device::blk::{Blk, Limits, Live, Shape};
use device::features;
use random::Random;
use remote::Assembly;
use remote::client::{AttachSpec, Client, ClientSpec, Event as Told, Request};
use remote::handshake::{Gate, Greeter, Identity, Initiator, Offer, Randomness, Step};
use remote::iohost::{ExportSpec, HostEvent, HostSpec};
use remote::wire::{Header, Kind, News, Op, Status, Verifier};
use schedule::Policy;

use super::super::bed::*;
use super::disk::Slow;
use crate::{
    Address, AttachmentCounters, AttachmentMemory, Command, Event, FromHost, HostLink,
    HostLinkCounters, HostLinkSpec, Link, LinkKey, Opened, QueueCounters, RoleSpec, Served,
    ServedSpec, SessionCounters, ToHost,
};

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;
pub(super) const LEASE_MS: u32 = 1_000;
pub(super) const LINK: LinkKey = LinkKey(3);
/// Requests of a client at a time, and their bytes.
pub(super) const SLOTS: u16 = 16;
pub(super) const SLOT_BYTES: u32 = 16 << 10;
/// The IOhost is here; clients are at 1 and on.
const HOME: u8 = 0;

pub(super) struct Bits(pub(super) Random);

impl Randomness for Bits {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.next() as u8);
    }
}

pub(super) fn address(of: u8) -> Address {
    Address::station([2, 0, 0, 0, 0, of])
}

/// The IOhost's socket: what came is what a test gave it, and what goes is taken from it.
#[derive(Debug, Default)]
struct Air(Mutex<Socket>);

#[derive(Debug, Default)]
struct Socket {
    came: VecDeque<(Address, Vec<u8>)>,
    went: VecDeque<(Address, Vec<u8>)>,
    some: Option<Arc<OwnedFd>>,
}

impl LinkWire for Air {
    fn joined(&self, _: Address, some: Arc<OwnedFd>) {
        self.0.lock().unwrap().some = Some(some);
    }

    fn receive(&self, _: Address, into: &mut Vec<u8>) -> Option<Address> {
        let (from, frame) = self.0.lock().unwrap().came.pop_front()?;
        into.extend_from_slice(&frame);
        Some(from)
    }

    fn send(&self, _: Address, to: Address, frame: &[u8]) {
        self.0.lock().unwrap().went.push_back((to, frame.to_vec()));
    }
}

/// What the wire does to frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// Lost, and said twice: one in so many; 0: none.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// Under way for up to so long, each frame for itself.
    pub(super) delay_ns: u64,
}

pub(super) const FAIR: Weather = Weather { lost: 0, doubled: 0, delay_ns: 0 };

/// A client, and what it has on its device.
pub(super) struct Peer {
    pub(super) client: Client,
    pub(super) attachment: Option<u16>,
    pub(super) told: Vec<Told>,
    /// Tag, how it ended, and what was read.
    pub(super) finished: Vec<(u64, Status, Vec<u8>)>,
    /// Frames of NICs that came.
    pub(super) net: Vec<Vec<u8>>,
    assembly: Assembly,
    /// Nothing of it arrives, and nothing arrives there.
    pub(super) is_cut: bool,
    /// And when it is tried anew.
    shaking: Option<(Initiator, u64)>,
    /// It has a cookie to say its hello with.
    has_cookie: bool,
    number: u32,
    random: Bits,
}

/// A device, as control has it.
pub(super) struct Device {
    disk: Arc<Disk>,
    live: Arc<Live>,
    pub(super) counters: Arc<QueueCounters>,
    pub(super) attachment: Arc<AttachmentCounters>,
    pub(super) gate: Option<schedule::Gate>,
    memory: Option<AttachmentMemory>,
    generation: u64,
    lets_go: bool,
    /// Times that it was opened.
    pub(super) opened: u32,
}

pub(super) struct World {
    pub(super) core: Core,
    pub(super) clients: Vec<Peer>,
    pub(super) devices: Vec<Device>,
    pub(super) weather: Weather,
    pub(super) counters: Arc<HostLinkCounters>,
    /// What the sidecore said and control does nothing about.
    pub(super) events: Vec<Event>,
    /// What its disk waits for, if that is made up too.
    pub(super) slow: Option<Arc<Slow>>,
    /// Hellos are kept, not answered.
    pub(super) keeps_greetings: bool,
    /// Memory that control was given to drop.
    pub(super) spent: Vec<AttachmentMemory>,
    pub(super) greetings: Vec<crate::Greeting>,
    /// Hellos are given other numbers before they are answered: how many were.
    pub(super) reserved: Option<u32>,
    /// Ends of ports that were to go to another shard.
    pub(super) pulled: Vec<(u16, Box<LinkNic>)>,
    /// The export that is a NIC.
    nic: Option<u16>,
    greeter: Greeter,
    random: Bits,
    air: Arc<Air>,
    /// By time of arrival: who gets it, who sent it, and what it is.
    under_way: BTreeMap<(u64, u64), (u8, u8, Vec<u8>)>,
    number: u64,
}

impl World {
    /// Devices `0..`, one for each disk, and so many clients without sessions.
    pub(super) fn new(seed: u64, disks: Vec<Arc<Disk>>, clients: u8) -> World {
        let mut core = Core::new(16);
        let air = Arc::new(Air::default());
        let mut random = Bits(Random::new(seed, 0));
        let counters = Arc::new(HostLinkCounters::default());
        let link = HostLink::new(HostLinkSpec {
            socket: LinkSocket::simulated(Arc::clone(&air) as Arc<dyn LinkWire>, address(HOME))
                .unwrap(),
            host: HostSpec {
                sessions_max: 32,
                ring_frames: 1024,
                memory_max: 64 << 20,
                client_memory_max: 64 << 20,
                instance: seed << 8,
                shard: 0,
            },
            gate: Gate::new(&[0; 32], core.now.0, &mut random),
            randomness: Box::new(Bits(Random::new(seed, 1))),
            suspended_ns: || 0,
            counters: Arc::clone(&counters),
            sessions: (0..32).map(|_| SessionCounters::default()).collect(),
        });
        core.send(Command::AttachLink(LINK, Link::Host(Box::new(link))));
        let peer = |number: u8| {
            let instance = (seed << 8) + u64::from(number) + 1;
            let spec = ClientSpec { instance, ring_frames: 256, fail_after_ns: None };
            Peer {
                client: Client::new(spec, core.now.0),
                attachment: None,
                told: Vec::new(),
                finished: Vec::new(),
                net: Vec::new(),
                assembly: Assembly::default(),
                is_cut: false,
                shaking: None,
                has_cookie: false,
                number: u32::from(number) << 16,
                random: Bits(Random::new(seed, 10 + u64::from(number))),
            }
        };
        let clients = (0..clients).map(peer).collect();
        let offer = Offer::new(false, 9000, 1024);
        let mut world = World {
            core,
            clients,
            devices: Vec::new(),
            weather: FAIR,
            counters,
            events: Vec::new(),
            slow: None,
            keeps_greetings: false,
            spent: Vec::new(),
            greetings: Vec::new(),
            reserved: None,
            pulled: Vec::new(),
            nic: None,
            greeter: Greeter::new(Identity::None, offer, LEASE_MS, 100).unwrap(),
            random,
            air,
            under_way: BTreeMap::new(),
            number: 0,
        };
        disks.into_iter().for_each(|disk| world.export(disk));
        world
    }

    fn export(&mut self, disk: Arc<Disk>) {
        let size = disk.size_bytes();
        let device = self.devices.len() as u64;
        let news = News { revision: 1, size, features: 0, is_removed: false };
        let spec = ExportSpec { device, clients: Vec::new(), news, generation: 0 };
        self.tell(ToHost::Export(spec));
        self.devices.push(Device {
            disk,
            live: Live::new(size),
            counters: Arc::default(),
            attachment: Arc::default(),
            gate: None,
            memory: None,
            generation: 0,
            lets_go: false,
            opened: 0,
        });
    }

    /// One device more, which is a NIC, and client 0 has it: its port.
    pub(super) fn nic(&mut self) -> HostPort {
        let export = self.devices.len() as u16;
        self.nic = Some(export);
        let news = News { revision: 1, size: 0, features: 0, is_removed: false };
        let device = export.into();
        self.tell(ToHost::Export(ExportSpec { device, clients: Vec::new(), news, generation: 0 }));
        let (nic, port) = LinkNic::new().unwrap();
        self.tell(ToHost::PlugIn { export, nic: Box::new(nic) });
        let spec = AttachSpec { device, slots: 1, slot_bytes: 512, keep_bytes: 0 };
        let peer = &mut self.clients[0];
        peer.attachment = Some(peer.client.attach(spec).unwrap());
        self.run_until(SECOND, |world| world.is_bound(0));
        // The next frame of the client's, or a time that is due, has its port told.
        self.run(SECOND);
        port
    }

    pub(super) fn tell(&mut self, told: ToHost) {
        self.core.send(Command::ToHost(LINK, Box::new(told)));
    }

    /// Has client `one` want device `device`.
    pub(super) fn attach(&mut self, one: usize, device: u64) {
        let spec = AttachSpec { device, slots: SLOTS, slot_bytes: SLOT_BYTES, keep_bytes: 0 };
        let peer = &mut self.clients[one];
        peer.attachment = Some(peer.client.attach(spec).unwrap());
    }

    /// With one device on `disk` and one client that has it.
    pub(super) fn bound(seed: u64, disk: Arc<Disk>) -> World {
        let mut world = World::new(seed, vec![disk], 1);
        world.attach(0, 0);
        world.run_until(SECOND, |world| world.is_bound(0));
        world
    }

    pub(super) fn is_bound(&self, one: usize) -> bool {
        self.clients[one].told.iter().any(|told| matches!(told, Told::Bound { .. }))
    }

    /// A request of client `one` for its device; a write's bytes are all `byte`.
    pub(super) fn ask(&mut self, one: usize, op: Op, offset: u64, len: u32, tag: u64, byte: u8) {
        let peer = &mut self.clients[one];
        let request = Request { op, offset, len, tag };
        let fill = |place: &mut [u8]| {
            place.fill(byte);
            true
        };
        peer.client.submit(peer.attachment.unwrap(), request, fill).unwrap();
    }

    pub(super) fn now(&self) -> u64 {
        self.core.now.0
    }

    /// Passes until that is so; at most `ns` of made-up time.
    pub(super) fn run_until(&mut self, ns: u64, is_so: impl Fn(&World) -> bool) {
        let until = self.now() + ns;
        while !is_so(self) {
            assert!(
                self.now() < until,
                "not within {ns} ns: {:?} {:?} {:?}",
                self.counters.snapshot(),
                self.clients[0].told,
                self.events
            );
            self.step();
        }
    }

    pub(super) fn run(&mut self, ns: u64) {
        let until = self.now() + ns;
        while self.now() < until {
            self.step();
        }
    }

    /// Until client `one` has so many answers, which are taken.
    pub(super) fn finish(&mut self, one: usize, count: usize) -> Vec<(u64, Status, Vec<u8>)> {
        self.run_until(20 * SECOND, |world| world.clients[one].finished.len() >= count);
        std::mem::take(&mut self.clients[one].finished)
    }

    /// One pass; then, when nothing happens, time goes on to when something does. A kernel that has something
    /// to do is waited for.
    pub(super) fn step(&mut self) -> crate::Progress {
        self.deliver();
        for one in 0..self.clients.len() {
            self.step_client(one);
        }
        self.deliver();
        let progress = self.core.pass();
        if let Some(slow) = &self.slow {
            slow.run();
        }
        while let Some((to, frame)) = self.gone() {
            self.send(HOME, to.as_station().unwrap()[5], frame);
        }
        for event in self.core.events() {
            self.hear(event);
        }
        if progress.is_idle() && self.core.sidecore.falls_asleep(self.core.now) {
            self.sleep();
        }
        self.core.sidecore.rest.bell().awake();
        progress
    }

    /// As the thread does, in made-up time.
    fn sleep(&mut self) {
        if self.core.sidecore.io.in_flight() > 0 && self.slow.is_none() {
            self.core.rest();
            return;
        }
        if self.slow.as_ref().is_some_and(|slow| slow.is_busy()) {
            self.core.sidecore.look(self.core.now);
            return;
        }
        let arrival = self.under_way.first_key_value().map(|((at, _), _)| *at);
        let clients = self.clients.iter().filter_map(|peer| peer.client.due());
        let shakes = self.clients.iter().filter_map(|peer| Some(peer.shaking.as_ref()?.1));
        let due = self.core.sidecore.next_due().map(|due| due.0);
        let next = clients.chain(shakes).chain(arrival).chain(due).min();
        let at_most = self.now() + 50 * MS;
        let next = next.unwrap_or(at_most).clamp(self.now(), at_most);
        self.core.now = schedule::Nanos(next);
        self.core.sidecore.look(self.core.now);
    }

    fn send(&mut self, from: u8, to: u8, frame: Vec<u8>) {
        let Weather { lost, doubled, delay_ns } = self.weather;
        let is_cut = [from, to]
            .into_iter()
            .any(|end| end.checked_sub(1).is_some_and(|one| self.clients[usize::from(one)].is_cut));
        let copies = 1 + u64::from(self.random.0.one_in(doubled));
        for _ in 0..copies {
            if is_cut || self.random.0.one_in(lost) {
                continue;
            }
            let at = self.now() + self.random.0.below(delay_ns + 1);
            self.number += 1;
            self.under_way.insert((at, self.number), (to, from, frame.clone()));
        }
    }

    /// Frames whose time has come, to the IOhost's socket or to a client.
    fn deliver(&mut self) {
        let now = self.now();
        while let Some(first) = self.under_way.first_entry().filter(|one| one.key().0 <= now) {
            let (to, from, frame) = first.remove();
            match to {
                HOME => self.give(address(from), frame),
                _ => self.clients[usize::from(to) - 1].hear(now, frame),
            }
        }
    }

    /// To the IOhost's socket, now.
    pub(super) fn give(&self, from: Address, frame: Vec<u8>) {
        let mut socket = self.air.0.lock().unwrap();
        socket.came.push_back((from, frame));
        crate::inbox::wake(socket.some.as_ref().unwrap());
    }

    fn gone(&self) -> Option<(Address, Vec<u8>)> {
        self.air.0.lock().unwrap().went.pop_front()
    }

    fn step_client(&mut self, one: usize) {
        let now = self.now();
        let (address, peer) = (one as u8 + 1, &mut self.clients[one]);
        let mut frames = Vec::new();
        peer.client.tick(now);
        let is_time = peer.shaking.as_ref().is_none_or(|(_, again)| *again <= now);
        if peer.client.wants_session(now) && is_time {
            peer.number += 1;
            let offer = Offer::new(false, 1472, 256);
            let made =
                Initiator::new(&Identity::None, [0; 32], peer.number, offer, &mut peer.random);
            let initiator = made.unwrap();
            frames.push(initiator.hello().to_vec());
            (peer.shaking, peer.has_cookie) = (Some((initiator, now + 50 * MS)), false);
        }
        if let Some((initiator, _)) = peer.shaking.as_ref().filter(|_| peer.has_cookie) {
            peer.has_cookie = false;
            frames.push(initiator.hello().to_vec());
        }
        let mut buffer = [0; 9000];
        while let Some(len) = peer.client.poll_transmit(now, &mut buffer) {
            frames.push(buffer[..len].to_vec());
        }
        while let Some(told) = peer.client.next_event() {
            peer.told.push(told);
        }
        while let Some(finished) = peer.client.next_finished() {
            let data = peer.client.data(&finished).to_vec();
            peer.finished.push((finished.tag, finished.status, data));
            peer.client.free(finished);
        }
        frames.into_iter().for_each(|frame| self.send(address, HOME, frame));
    }

    /// What control does.
    fn hear(&mut self, event: Event) {
        match event {
            Event::FromHost(LINK, told) => match *told {
                FromHost::Hello(greeting) if self.keeps_greetings => self.greetings.push(greeting),
                FromHost::Hello(greeting) if self.reserved.is_some() => {
                    self.tell(ToHost::Reserve { greeting, client: [0; 32] });
                }
                FromHost::Hello(greeting) => self.answer(greeting),
                FromHost::Reserved { before, greeting } => {
                    assert_ne!(before, greeting.number, "it has another one");
                    self.reserved = self.reserved.map(|count| count + 1);
                    self.answer(greeting);
                }
                FromHost::PulledOut { export, nic } => self.pulled.push((export, nic)),
                FromHost::Clients(HostEvent::Open {
                    export,
                    generation,
                    slots,
                    slot_bytes,
                    ..
                }) if self.nic == Some(export) => {
                    assert!(generation > 0);
                    let memory = AttachmentMemory::new(slots, slot_bytes).unwrap();
                    self.tell(ToHost::NicOpened { export, memory });
                }
                FromHost::Clients(HostEvent::LetGo { export, .. }) if self.nic == Some(export) => {
                    self.tell(ToHost::LetGo { export, is_synced: true });
                }
                FromHost::Clients(HostEvent::Open {
                    export,
                    generation,
                    slots,
                    slot_bytes,
                    ..
                }) => {
                    self.open(export, generation, slots, slot_bytes);
                }
                FromHost::Clients(HostEvent::LetGo { export, .. }) => {
                    self.devices[usize::from(export)].lets_go = true;
                    let is_here = self.devices[usize::from(export)].memory.is_some();
                    match is_here {
                        true => self.core.send(Command::Detach(key(export.into()))),
                        false => self.let_go(export),
                    }
                }
                FromHost::Spent(memory) => self.spent.push(memory),
                told => self.events.push(Event::FromHost(LINK, Box::new(told))),
            },
            Event::Detached(served) => {
                let export = served.key().device as u16;
                let base = served.queue().base();
                if self.devices[usize::from(export)].lets_go {
                    self.let_go(export);
                } else {
                    self.serve(export, base);
                }
            }
            other => self.events.push(other),
        }
    }

    pub(super) fn answer(&mut self, greeting: crate::Greeting) {
        let read = self.greeter.read(greeting.hello(), &|_| true, &mut self.random).unwrap();
        let (answer, made) = read.answer(greeting.number, greeting.credit).unwrap();
        self.tell(ToHost::Answer { greeting, made: Box::new(made), answer });
    }

    fn open(&mut self, export: u16, generation: u64, slots: u16, slot_bytes: u32) {
        let device = &mut self.devices[usize::from(export)];
        assert!(generation >= device.generation, "{generation} of {}", device.generation);
        (device.generation, device.opened) = (generation, device.opened + 1);
        let memory = AttachmentMemory::new(slots, slot_bytes).unwrap();
        device.memory = Some(memory.clone());
        let opened = Opened {
            verifier: Verifier { boot: 1, contents: 1 },
            image: 0,
            memory,
            key: key(export.into()),
            counters: Arc::clone(&device.attachment),
        };
        // In either order.
        let is_first = generation.is_multiple_of(2);
        if is_first {
            self.serve(export, 0);
        }
        self.tell(ToHost::Opened { export, generation, opened: Some(Box::new(opened)) });
        if !is_first {
            self.serve(export, 0);
        }
    }

    fn serve(&mut self, export: u16, base: u32) {
        let device = &mut self.devices[usize::from(export)];
        let memory = device.memory.as_ref().unwrap();
        let shape = Shape {
            block_size: device.disk.block_size(),
            physical_block_exp: 0,
            topology: Default::default(),
            readonly: false,
            queues: 1,
            serial: [0; 20],
            limits: Limits { discard_sectors_max: 1 << 16, zeroes_sectors_max: 1 << 16 },
            in_order: false,
        };
        let negotiated = features::VERSION_1
            | features::BLK_FLUSH
            | features::BLK_DISCARD
            | features::BLK_WRITE_ZEROES;
        let served = Served::new(ServedSpec {
            key: key(export.into()),
            queue: memory.queue(base).unwrap(),
            memory: Arc::clone(memory.map()),
            role: RoleSpec::Disk {
                blk: Blk::new(&shape, Arc::clone(&device.live), negotiated),
                backend: device.disk.backend(),
            },
            kick: None,
            call: None,
            share: schedule::SHARE_USUAL,
            policy: Policy::Adaptive,
            target_ns: None,
            moderate_ns: 0,
            gate: device.gate.take().map(Box::new),
            counters: Arc::clone(&device.counters),
        });
        self.core.send(Command::Attach(served));
    }

    fn let_go(&mut self, export: u16) {
        let device = &mut self.devices[usize::from(export)];
        (device.memory, device.lets_go) = (None, false);
        self.tell(ToHost::LetGo { export, is_synced: true });
    }

    /// Another size of a device, as control tells it.
    pub(super) fn resize(&mut self, export: u16, size: u64) {
        self.devices[usize::from(export)].live.set_capacity(size);
        self.tell(ToHost::Update { export, size, features: 0 });
    }
}

impl Peer {
    fn hear(&mut self, now: u64, mut frame: Vec<u8>) {
        let Ok(header) = Header::parse(&frame) else { panic!("a frame that is none") };
        if header.kind == Kind::Sealed {
            let (net, assembly) = (&mut self.net, &mut self.assembly);
            self.client.receive(now, &mut frame, &mut |_, piece| {
                net.extend(assembly.take(piece).map(<[u8]>::to_vec));
            });
            return;
        }
        let Some((initiator, _)) = &mut self.shaking else { return };
        match initiator.receive(&frame) {
            Ok(Step::Again) => self.has_cookie = true,
            Ok(Step::Done(made)) => {
                self.shaking = None;
                assert!(self.client.establish(*made, now));
            }
            Err(_) => {}
        }
    }
}
