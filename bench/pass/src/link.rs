//! Reads of a client on another machine, over the loopback: what the IOhost's side of a request costs, in
//! instructions outside of the kernel. Once by the ring that a sidecore's link drives, and once by the back-end called
//! directly, without rings, limits, shares and counters, so that the price of these is known.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use backend::link::{Address, LinkSocket, LinkSource};
use backend::{Backend, Disk, Io, Source, Started};
use device::blk::{Blk, Live, Shape};
use device::features;
use guest_memory::{Area, GuestMap};
use remote::client::{AttachSpec, Client, ClientSpec, Event as Told, Request};
use remote::handshake::{Gate, Greeter, Identity, Initiator, Offer, Randomness, Step};
use remote::iohost::{ExportSpec, Host, HostEvent, HostSpec, SlotMemory};
use remote::wire::{Header, Kind, News, Op, Status, Verifier};
use schedule::{Nanos, Policy};
use sidecore::{AttachmentCounters, AttachmentMemory, Command, Event, FromHost, Handle, HostLink};
use sidecore::{HostLinkCounters, HostLinkSpec, Link, LinkKey, Opened, QueueCounters, QueueKey};
use sidecore::{RoleSpec, Served, ServedSpec, Sidecore, SidecoreSpec, ToHost};
use testing::load::Random;

use crate::{BLOCK_BYTES, DEPTH, DISK_BYTES, TURN_NS, counted_pass};

const LINK: LinkKey = LinkKey(0);
const KEY: QueueKey = QueueKey { device: 0, queue: 0 };
const DEVICE: u64 = 7;
const WARM_TURNS: u64 = 256;
const RING_FRAMES: u32 = 4096;
const SPEC: HostSpec = HostSpec {
    sessions_max: 16,
    ring_frames: RING_FRAMES,
    memory_max: 64 << 20,
    client_memory_max: 64 << 20,
    instance: 0x5eed,
    shard: 0,
};
const NEWS: News = News { revision: 1, size: DISK_BYTES, features: 0, is_removed: false };

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    frame_bytes: u16,
    is_direct: bool,
}

pub(crate) const CASES: [Case; 3] = [
    Case { name: "link.memory.randread.9000", frame_bytes: 8972, is_direct: false },
    Case { name: "link.memory.randread.9000.direct", frame_bytes: 8972, is_direct: true },
    Case { name: "link.memory.randread.1500", frame_bytes: 1472, is_direct: false },
];

struct Bits(Random);

impl Randomness for Bits {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.below(256) as u8);
    }
}

fn bits() -> Bits {
    Bits(Random(0x5eed))
}

/// The client, and one of the two.
pub(crate) struct Bed {
    far: Far,
    near: Near,
    now: Nanos,
    /// What the IOhost's side does is counted.
    is_counted: bool,
}

enum Near {
    Link(Box<Linked>),
    Direct(Box<Direct>),
}

struct Far {
    client: Client,
    socket: LinkSocket,
    iohost: Address,
    attachment: u16,
    random: Random,
    in_flight: u16,
}

struct Linked {
    sidecore: Sidecore,
    handle: Handle,
    greeter: Greeter,
    disk: Arc<Disk>,
}

/// The protocol and a back-end, and nothing between them.
struct Direct {
    host: Host<Slots>,
    socket: LinkSocket,
    client: Address,
    backend: Backend,
    io: Io,
    map: GuestMap,
}

struct Slots(Area);

impl SlotMemory for Slots {
    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.0.write(at, bytes);
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        self.0.read(at, into);
    }
}

fn socket() -> Result<(LinkSocket, Address)> {
    let bind: SocketAddr = "127.0.0.1:0".parse()?;
    let socket = LinkSocket::open(&LinkSource::Udp { bind })?;
    let at = Address::udp(socket.local().context("a port")?);
    Ok((socket, at))
}

impl Bed {
    pub(crate) fn new(case: Case) -> Result<Bed> {
        let (near_socket, iohost) = socket()?;
        let (far_socket, client_at) = socket()?;
        let spec = ClientSpec { instance: 1, ring_frames: RING_FRAMES, fail_after_ns: None };
        let now = Nanos(1);
        let mut client = Client::new(spec, now.0);
        let spec =
            AttachSpec { device: DEVICE, slots: DEPTH, slot_bytes: BLOCK_BYTES, keep_bytes: 0 };
        let attachment = client.attach(spec).context("a place")?;
        let random = Random(0x5eed);
        let mut far = Far { client, socket: far_socket, iohost, attachment, random, in_flight: 0 };
        let disk = Disk::open(&Source::Memory { size_bytes: DISK_BYTES })?;
        fill(&disk)?;
        let offer = Offer::new(false, 9000, RING_FRAMES);
        let greeter = Greeter::new(Identity::None, offer, 10_000, 1_000)?;
        let offer = Offer::new(false, case.frame_bytes, RING_FRAMES);
        let hello = Initiator::new(&Identity::None, [0; 32], 1, offer, &mut bits())?;
        let near = if case.is_direct {
            Near::Direct(Box::new(Direct::new(
                near_socket,
                client_at,
                &disk,
                &greeter,
                hello,
                &mut far,
            )?))
        } else {
            Near::Link(Box::new(Linked::new(near_socket, disk, greeter)?.greeted(hello, &mut far)?))
        };
        let mut bed = Bed { far, near, now, is_counted: false };
        bed.bind()?;
        for _ in 0..WARM_TURNS {
            bed.turn()?;
        }
        bed.is_counted = true;
        Ok(bed)
    }

    /// Until the client has the device.
    fn bind(&mut self) -> Result<()> {
        for _ in 0..1000 {
            self.exchange()?;
            while let Some(told) = self.far.client.next_event() {
                if let Told::Bound { .. } = told {
                    return Ok(());
                }
            }
        }
        bail!("the client does not get its device")
    }

    /// At least `requests` requests; gives how many there were.
    pub(crate) fn run(&mut self, requests: u64) -> Result<u64> {
        let (mut done, mut idle) = (0, 0);
        while done < requests {
            let ended = self.turn()?;
            idle = if ended == 0 { idle + 1 } else { 0 };
            done += ended;
            ensure!(idle < 10_000, "nothing ends any more");
        }
        Ok(done)
    }

    fn turn(&mut self) -> Result<u64> {
        self.far.ask()?;
        self.exchange()?;
        self.far.take()
    }

    /// Frames of the client, a pass, and frames to it.
    fn exchange(&mut self) -> Result<()> {
        self.now = Nanos(self.now.0 + TURN_NS);
        self.far.send(self.now.0);
        match &mut self.near {
            Near::Link(link) => {
                match self.is_counted {
                    true => counted_pass(&mut link.sidecore, self.now),
                    false => {
                        link.sidecore.pass(self.now, &self.now);
                    }
                }
                link.control()?;
            }
            Near::Direct(direct) => {
                match self.is_counted {
                    true => counted_pass_direct(direct, self.now.0),
                    false => direct.pass(self.now.0),
                }
                direct.control()?;
            }
        }
        self.far.receive(self.now.0);
        Ok(())
    }
}

/// Gives every block of a RAM disk a page of its own, which a read would not.
fn fill(disk: &Arc<Disk>) -> Result<()> {
    const STEP: u32 = 1 << 20;
    let map = GuestMap::anonymous(STEP.into())?;
    let area = map.area_at_user(0, STEP.into()).context("memory")?;
    ensure!(area.write(0, &vec![0xa5; STEP as usize]), "memory");
    let segments = [map.span(0, STEP).context("memory")?];
    let (mut backend, mut io) = (disk.backend(), Io::new(32)?);
    for offset in (0..DISK_BYTES).step_by(STEP as usize) {
        let op = request::Op::Write { sync: false };
        let one = request::Request { op, offset, len: STEP.into(), segments: &segments };
        let started = backend.submit(&mut io, &one, &map, NO_TAG);
        ensure!(started == Started::Done(request::Status::Ok), "the RAM disk said {started:?}");
    }
    Ok(())
}

/// Of a back-end that answers at once.
const NO_TAG: request::Tag = request::Tag { queue: 0, slot: 0, generation: 0 };

impl Far {
    /// As many reads as there are slots.
    fn ask(&mut self) -> Result<()> {
        while self.in_flight < DEPTH {
            let offset = self.random.below(DISK_BYTES / u64::from(BLOCK_BYTES)) * 4096;
            let one = Request { op: Op::Read, offset, len: BLOCK_BYTES, tag: 0 };
            self.client.submit(self.attachment, one, |_| true)?;
            self.in_flight += 1;
        }
        Ok(())
    }

    fn send(&mut self, now: u64) {
        let Far { client, socket, iohost, .. } = self;
        client.tick(now);
        while socket.send(|place| Some((client.poll_transmit(now, place)?, *iohost))) {}
        socket.flush();
    }

    fn receive(&mut self, now: u64) {
        while let Some((_, frame)) = self.socket.receive() {
            self.client.receive(now, frame, &mut |_, _| {});
        }
    }

    /// Reads that ended.
    fn take(&mut self) -> Result<u64> {
        let mut done = 0;
        while let Some(finished) = self.client.next_finished() {
            let first = self.client.data(&finished).first().copied();
            ensure!(
                (finished.status, first) == (Status::Ok, Some(0xa5)),
                "{finished:?}: {first:?}"
            );
            self.client.free(finished);
            self.in_flight -= 1;
            done += 1;
        }
        Ok(done)
    }

    fn hello(&mut self, hello: &Initiator) {
        let iohost = self.iohost;
        self.socket.send(|place| {
            place.get_mut(..hello.hello().len())?.copy_from_slice(hello.hello());
            Some((hello.hello().len(), iohost))
        });
        self.socket.flush();
    }

    /// What comes of a handshake: true when its session is there.
    fn greeted(&mut self, hello: &mut Initiator) -> Result<bool> {
        while let Some((_, frame)) = self.socket.receive() {
            if Header::parse(frame)?.kind == Kind::Sealed {
                continue;
            }
            match hello.receive(frame)? {
                Step::Again => {}
                Step::Done(made) => {
                    ensure!(self.client.establish(*made, 1), "keys that are none");
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Linked {
    fn new(socket: LinkSocket, disk: Arc<Disk>, greeter: Greeter) -> Result<Linked> {
        let spec =
            SidecoreSpec { index: 0, cpu: None, workers: None, watches: true, queues_max: 16 };
        let (sidecore, mut handle) = Sidecore::new(spec)?;
        let link = HostLink::new(HostLinkSpec {
            socket,
            host: SPEC,
            gate: Gate::new(&[0; 32], 0, &mut bits()),
            randomness: Box::new(bits()),
            suspended_ns: || 0,
            counters: Arc::new(HostLinkCounters::default()),
            sessions: Arc::default(),
        });
        let spec = ExportSpec { device: DEVICE, clients: Vec::new(), news: NEWS, generation: 0 };
        let export = Command::ToHost(LINK, Box::new(ToHost::Export(spec)));
        for command in [Command::AttachLink(LINK, Link::Host(Box::new(link))), export] {
            ensure!(handle.send(command).is_ok(), "the sidecore takes no link");
        }
        Ok(Linked { sidecore, handle, greeter, disk })
    }

    /// With a session.
    fn greeted(mut self, mut hello: Initiator, far: &mut Far) -> Result<Linked> {
        for _ in 0..100 {
            far.hello(&hello);
            self.sidecore.pass(Nanos(1), &Nanos(1));
            self.control()?;
            self.sidecore.pass(Nanos(1), &Nanos(1));
            if far.greeted(&mut hello)? {
                return Ok(self);
            }
        }
        bail!("no session")
    }

    /// What control does.
    fn control(&mut self) -> Result<()> {
        while let Some(event) = self.handle.take_event() {
            let told = match event {
                Event::FromHost(_, told) => *told,
                other => bail!("{other:?}"),
            };
            match told {
                FromHost::Hello(greeting) => {
                    let read = self.greeter.read(greeting.hello(), &|_| true, &mut bits())?;
                    let (answer, made) = read.answer(greeting.number, greeting.credit)?;
                    self.tell(ToHost::Answer { greeting, made: Box::new(made), answer })?;
                }
                FromHost::Clients(HostEvent::Open {
                    export,
                    generation,
                    slots,
                    slot_bytes,
                    ..
                }) => {
                    let opened = Some(Box::new(self.open(slots, slot_bytes)?));
                    self.tell(ToHost::Opened { export, generation, opened })?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn tell(&mut self, told: ToHost) -> Result<()> {
        let sent = self.handle.send(Command::ToHost(LINK, Box::new(told)));
        ensure!(sent.is_ok(), "the inbox is full");
        Ok(())
    }

    fn open(&mut self, slots: u16, slot_bytes: u32) -> Result<Opened> {
        let memory = AttachmentMemory::new(slots, slot_bytes)?;
        let shape = Shape {
            block_size: self.disk.block_size(),
            physical_block_exp: 0,
            topology: Default::default(),
            readonly: false,
            queues: 1,
            serial: [0; 20],
            limits: device::blk::Limits::default(),
            in_order: false,
        };
        let negotiated = features::VERSION_1 | features::BLK_FLUSH;
        let served = Served::new(ServedSpec {
            key: KEY,
            queue: memory.queue(0)?,
            memory: Arc::clone(memory.map()),
            role: RoleSpec::Disk {
                blk: Blk::new(&shape, Live::new(DISK_BYTES), negotiated),
                backend: self.disk.backend(),
            },
            kick: None,
            call: None,
            share: 100,
            policy: Policy::Poll,
            target_ns: None,
            moderate_ns: 0,
            gate: None,
            counters: Arc::new(QueueCounters::default()),
        });
        let sent = self.handle.send(Command::Attach(served));
        ensure!(sent.is_ok(), "the inbox is full");
        let verifier = Verifier { boot: 1, contents: 1 };
        let counters = Arc::new(AttachmentCounters::default());
        Ok(Opened { verifier, image: 0, memory, key: KEY, counters })
    }
}

impl Direct {
    fn new(
        socket: LinkSocket,
        client: Address,
        disk: &Arc<Disk>,
        greeter: &Greeter,
        mut hello: Initiator,
        far: &mut Far,
    ) -> Result<Direct> {
        let mut host = Host::new(SPEC);
        let spec = ExportSpec { device: DEVICE, clients: Vec::new(), news: NEWS, generation: 0 };
        host.export(spec).context("a number")?;
        let read = greeter.read(hello.hello(), &|_| true, &mut bits())?;
        let number = host.reserve(1, &[0; 32]).context("a session")?;
        let (answer, made) = read.answer(number, host.share())?;
        ensure!(host.establish(made), "keys that are none");
        let Step::Done(made) = hello.receive(&answer)? else { bail!("no session") };
        ensure!(far.client.establish(*made, 1), "keys that are none");
        let map = GuestMap::anonymous(u64::from(DEPTH) * u64::from(BLOCK_BYTES))?;
        let (backend, io) = (disk.backend(), Io::new(32)?);
        Ok(Direct { host, socket, client, backend, io, map })
    }

    fn control(&mut self) -> Result<()> {
        while let Some(event) = self.host.next_event() {
            if let HostEvent::Open { export, slots, slot_bytes, .. } = event {
                let len = u64::from(slots) * u64::from(slot_bytes);
                let area = self.map.area_at_user(0, len).context("the slots' memory")?;
                let verifier = Verifier { boot: 1, contents: 1 };
                self.host.opened(export, Ok((verifier, Slots(area))));
            }
        }
        Ok(())
    }

    fn pass(&mut self, now: u64) {
        let Direct { host, socket, client, backend, io, map } = self;
        for _ in 0..64 {
            let Some((_, frame)) = socket.receive() else { break };
            host.receive(now, frame, &mut |_, _| {});
        }
        while let Some(work) = host.next_work(now) {
            let gpa = u64::from(work.slot()) * u64::from(BLOCK_BYTES);
            let segments = [map.span(gpa, work.len).unwrap_or_default()];
            let op = request::Op::Read;
            let (offset, len) = (work.offset, work.len.into());
            let one = request::Request { op, offset, len, segments: &segments };
            let status = match backend.submit(io, &one, map, NO_TAG) {
                Started::Done(request::Status::Ok) => Status::Ok,
                _ => Status::IoError,
            };
            host.finish(work, status);
        }
        let mut sent = 0;
        while sent < 64 && socket.send(|place| Some((host.poll_transmit(now, place)?.1, *client))) {
            sent += 1;
        }
        socket.flush();
    }
}

/// What valgrind counts.
#[inline(never)]
fn counted_pass_direct(direct: &mut Direct, now: u64) {
    direct.pass(std::hint::black_box(now));
}
