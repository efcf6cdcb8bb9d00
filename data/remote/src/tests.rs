//! One client and one IOhost with a wire in between that a test holds in its hand; and a client that lies.
//!
//! Rows N1 to N20 of `docs/security.md` have tests of that name: here, beside what they are about, and in
//! `tests/histories.rs`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use random::Random;

use crate::Assembly;
use crate::client::{
    AttachSpec, Client, ClientSpec, Event, Over, Refusal, Rejected, Request, Standing,
};
use crate::handshake::{Established, Greeter, Identity, Initiator, Offer, Randomness, Step};
use crate::iohost::{ExportSpec, Host, HostEvent, HostSpec, SlotMemory, Work};
use crate::loss::{Fate, Mark};
use crate::seal::Seal;
use crate::session::Session;
use crate::wire::{
    Bind, Header, Intent, News, Op, Part, Record, Records, Status, Verifier, checksum,
};

mod away;
mod greedy;
mod handed;
mod hostile;
mod images;
mod kept;
mod life;
mod line;
mod lost;
mod shards;
mod stands;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const DEVICE: u64 = 5;
const SIZE: usize = 64 << 10;
const SPEC: AttachSpec =
    AttachSpec { device: DEVICE, slots: 8, slot_bytes: 16 << 10, keep_bytes: 0 };

struct Bits(Random);

impl Randomness for Bits {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.next() as u8);
    }
}

/// Memory of slots, which whoever executes requests has, too.
#[derive(Clone, Debug)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl SlotMemory for Shared {
    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.0.borrow_mut().store(at, bytes);
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        self.0.borrow().load(at, into);
    }
}

impl Shared {
    fn new(slots: u16, slot_bytes: u32) -> Shared {
        Shared(Rc::new(RefCell::new(vec![0; usize::from(slots) * slot_bytes as usize])))
    }
}

/// Both ends, and the disk.
struct Pair {
    now: u64,
    client: Client,
    host: Host<Shared>,
    /// Of each device: the memory of its slots, and the bytes of each.
    memory: HashMap<u16, (Shared, usize)>,
    /// What is kept of the generation, where others keep it, too.
    kept_generation: u64,
    /// Whether a sync before a device is let go ends well.
    syncs: bool,
    disk: Vec<u8>,
    verifier: Verifier,
    /// Which image that is, as its IOhost says.
    image: u64,
    /// Whether each end knows of images: the client, and the IOhost.
    know_images: [bool; 2],
    /// Every request that was executed: what, where, and its first byte.
    executed: Vec<(Op, u64, u8)>,
    /// Nothing goes to the host, or to the client.
    is_cut: [bool; 2],
    /// Frames are kept instead of delivered, the host's and the client's.
    keeps: [bool; 2],
    kept: [Vec<Vec<u8>>; 2],
    executes: bool,
    /// Devices may be let go of that nobody had here.
    is_heir: bool,
    random: Bits,
    number: u32,
    /// The client's, if there are keys.
    key: Option<[u8; 32]>,
    lease_ms: u32,
    work_ms: u32,
    frame_bytes: u16,
    events: Vec<Event>,
    /// What the client is to keep of its devices, as it was told last.
    stands: HashMap<u16, Option<Standing>>,
    /// Sessions that began and ended at the client, and at the host.
    sessions: [Vec<bool>; 2],
    net: Vec<Vec<u8>>,
    assemblies: [Assembly; 2],
}

fn client(seed: u64, fail_after_ns: Option<u64>) -> Client {
    Client::new(ClientSpec { instance: seed, ring_frames: 64, fail_after_ns }, 0)
}

const HOST: HostSpec = HostSpec {
    sessions_max: 8,
    ring_frames: 256,
    memory_max: 1 << 20,
    client_memory_max: 1 << 20,
    instance: 1,
    shard: 0,
};

fn export(device: u64, generation: u64) -> ExportSpec {
    let news = News { revision: 1, size: SIZE as u64, features: 3, is_removed: false };
    ExportSpec { device, clients: Vec::new(), news, generation }
}

fn host_of(spec: HostSpec) -> Host<Shared> {
    let mut host = Host::new(spec);
    host.export(export(DEVICE, 0));
    host
}

/// Another IOhost than all before.
fn host(generation: u64) -> Host<Shared> {
    static LIVES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let life = LIVES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut host = Host::new(HostSpec { instance: life << 32 | 1, ..HOST });
    host.export(export(DEVICE, generation));
    host
}

impl Pair {
    fn new(lease_ms: u32) -> Pair {
        Pair {
            now: 0,
            client: client(1, None),
            host: host(0),
            memory: HashMap::new(),
            kept_generation: 0,
            syncs: true,
            disk: vec![0; SIZE],
            verifier: Verifier { boot: 1, contents: 2 },
            image: 0,
            know_images: [true; 2],
            executed: Vec::new(),
            is_cut: [false; 2],
            keeps: [false; 2],
            kept: [Vec::new(), Vec::new()],
            executes: true,
            is_heir: false,
            random: Bits(Random::new(1, 1)),
            number: 0,
            key: None,
            lease_ms,
            work_ms: 0,
            frame_bytes: 1472,
            events: Vec::new(),
            stands: HashMap::new(),
            sessions: [Vec::new(), Vec::new()],
            net: Vec::new(),
            assemblies: Default::default(),
        }
    }

    /// With a session, and the device bound.
    fn bound(lease_ms: u32) -> (Pair, u16) {
        let mut pair = Pair::new(lease_ms);
        let one = pair.client.attach(SPEC).expect("a place");
        pair.greet();
        pair.run(10 * MS);
        assert!(matches!(pair.events[..], [Event::Bound { .. }]), "{:?}", pair.events);
        (pair, one)
    }

    /// What a handshake leaves at both ends.
    fn established(&mut self) -> (Established, Established) {
        self.number += 1;
        let is_secret = self.key.is_some();
        let (mine, theirs) = match self.key {
            Some(key) => (Identity::Key(key), Identity::Key([1; 32])),
            None => (Identity::None, Identity::None),
        };
        let features =
            self.know_images.map(|knows| if knows { crate::handshake::IMAGES } else { 0 });
        let mut offer = Offer::new(is_secret, 9000, 64);
        offer.features = features[1];
        let greeter = Greeter::new(theirs, offer, self.lease_ms, self.work_ms);
        let greeter = greeter.expect("a greeter");
        let mut offer = Offer::new(is_secret, self.frame_bytes, 64);
        offer.features = features[0];
        let (public, bits) = (*greeter.public(), &mut self.random);
        let mut initiator =
            Initiator::new(&mine, public, self.number, offer, bits).expect("an initiator");
        let greeted =
            greeter.read(initiator.hello(), &|_| true, &mut self.random).expect("a hello");
        let number = self.host.reserve(self.now, greeted.peer()).expect("a number");
        let (answer, at_host) = greeted.answer(number, self.host.share()).expect("an answer");
        let Ok(Step::Done(at_client)) = initiator.receive(&answer) else { panic!("no session") };
        (*at_client, at_host)
    }

    fn greet(&mut self) {
        let (at_client, at_host) = self.established();
        assert!(self.host.establish(at_host));
        assert!(self.client.establish(at_client, self.now));
    }

    /// Time passes, and frames go at once.
    fn run(&mut self, ns: u64) {
        let until = self.now + ns;
        while self.now < until {
            let due = [self.client.due(), self.host.due()].into_iter().flatten().min();
            let due = due.unwrap_or(u64::MAX);
            self.now = due.clamp(self.now + 10_000, self.now + MS).min(until);
            self.step();
        }
    }

    fn step(&mut self) {
        self.client.tick(self.now);
        self.host.tick(self.now);
        let mut buffer = [0; 9000];
        while let Some(len) = self.client.poll_transmit(self.now, &mut buffer) {
            self.give_host(&buffer[..len]);
        }
        self.work();
        while let Some((_, len)) = self.host.poll_transmit(self.now, &mut buffer) {
            self.give_client(&buffer[..len]);
        }
        while let Some(event) = self.client.next_event() {
            match event {
                Event::SessionBegan | Event::SessionEnded => {
                    self.sessions[0].push(event == Event::SessionBegan);
                }
                Event::Stands { attachment, standing } => {
                    self.stands.insert(attachment, standing);
                    self.client.stands(attachment);
                }
                other => self.events.push(other),
            }
        }
    }

    fn give_host(&mut self, frame: &[u8]) {
        if self.keeps[0] {
            self.kept[0].push(frame.to_vec());
        } else if !self.is_cut[0] {
            let (net, assembly) = (&mut self.net, &mut self.assemblies[0]);
            self.host.receive(self.now, &mut frame.to_vec(), &mut |_, piece| {
                net.extend(assembly.take(piece).map(<[u8]>::to_vec));
            });
        }
    }

    fn give_client(&mut self, frame: &[u8]) {
        if self.keeps[1] {
            self.kept[1].push(frame.to_vec());
        } else if !self.is_cut[1] {
            let (net, assembly) = (&mut self.net, &mut self.assemblies[1]);
            self.client.receive(self.now, &mut frame.to_vec(), &mut |_, piece| {
                net.extend(assembly.take(piece).map(<[u8]>::to_vec));
            });
        }
    }

    fn work(&mut self) {
        while let Some(event) = self.host.next_event() {
            match event {
                HostEvent::Open { export, generation, slots, slot_bytes, .. } => {
                    self.host.raise(export, self.kept_generation);
                    if export == 0 {
                        self.kept_generation = self.kept_generation.max(generation);
                    }
                    let memory = Shared::new(slots, slot_bytes);
                    self.memory.insert(export, (memory.clone(), slot_bytes as usize));
                    self.host.identify(export, self.image);
                    self.host.opened(export, Ok((self.verifier, memory)));
                }
                HostEvent::LetGo { export, .. } => {
                    let memory = self.host.let_go(export, self.syncs);
                    assert!(memory.is_some() || self.is_heir, "its memory");
                }
                HostEvent::SessionBegan { .. } => self.sessions[1].push(true),
                HostEvent::SessionEnded { .. } => self.sessions[1].push(false),
            }
        }
        while self.executes {
            let Some(work) = self.host.next_work(self.now) else { return };
            self.execute(work);
        }
    }

    fn execute(&mut self, work: Work) {
        let (at, len) = (work.offset as usize, work.len as usize);
        let (memory, slot_bytes) = &self.memory[&work.export];
        let start = usize::from(work.slot()) * slot_bytes;
        let mut memory = memory.0.borrow_mut();
        let first = match work.op {
            Op::Read => {
                memory[start..start + len].copy_from_slice(&self.disk[at..at + len]);
                memory[start]
            }
            Op::Write { .. } => {
                self.disk[at..at + len].copy_from_slice(&memory[start..start + len]);
                memory[start]
            }
            _ => 0,
        };
        drop(memory);
        self.executed.push((work.op, work.offset, first));
        self.host.finish(work, Status::Ok);
    }

    fn write(&mut self, one: u16, offset: u64, byte: u8, len: usize) {
        let op = Op::Write { sync: false };
        let request = Request { op, offset, len: len as u32, tag: u64::from(byte) };
        let filled = |into: &mut [u8]| {
            into.fill(byte);
            true
        };
        self.client.submit(one, request, filled).expect("a slot");
    }

    fn ask(&mut self, one: u16, op: Op, offset: u64, len: u32) {
        let request = Request { op, offset, len, tag: 0 };
        self.client.submit(one, request, |_| false).expect("a slot");
    }

    /// Tag, status, and first byte of what was read, of all that ended.
    fn finished(&mut self) -> Vec<(u64, Status, u8)> {
        let mut all = Vec::new();
        while let Some(finished) = self.client.next_finished() {
            let first = self.client.data(&finished).first().copied().unwrap_or(0);
            all.push((finished.tag, finished.status, first));
            self.client.free(finished);
        }
        all
    }

    fn writes(&self) -> Vec<u8> {
        let writes = self.executed.iter().filter(|(op, ..)| op.has_data());
        writes.map(|(.., byte)| *byte).collect()
    }
}

/// A client that says whatever a test wants, in good frames.
struct Rogue {
    session: Session,
    heard: Vec<String>,
}

struct Nobody;

impl Fate for Nobody {
    fn taken(&mut self, _: Mark) {}
    fn lost(&mut self, _: Mark) {}
}

impl Rogue {
    fn new(pair: &mut Pair) -> Rogue {
        let (at_client, at_host) = pair.established();
        assert!(pair.host.establish(at_host));
        Rogue { session: session_of(at_client, pair.now), heard: Vec::new() }
    }

    fn frame(&mut self, now: u64, records: &[Record<'_>]) -> Vec<u8> {
        let mut buffer = vec![0; 9000];
        let mut out = self.session.begin(now, &mut buffer).expect("room");
        assert!(records.iter().all(|record| out.push(record, None)));
        let len = self.session.commit(now, out).expect("a frame");
        buffer.truncate(len);
        buffer
    }

    /// Says it: whether the host took the frame.
    fn say(&mut self, pair: &mut Pair, records: &[Record<'_>]) -> bool {
        pair.now += MS;
        let mut frame = self.frame(pair.now, records);
        let is_taken = pair.host.receive(pair.now, &mut frame, &mut |_, _| {});
        pair.work();
        self.hear(pair);
        is_taken
    }

    fn hear(&mut self, pair: &mut Pair) {
        let mut buffer = [0; 9000];
        while let Some((_, len)) = pair.host.poll_transmit(pair.now, &mut buffer) {
            let header = Header::parse(&buffer).expect("a header");
            if header.session == self.session.mine {
                self.hear_frame(pair.now, &header, &mut buffer[..len]);
            }
        }
    }

    fn hear_frame(&mut self, now: u64, header: &Header, frame: &mut [u8]) {
        let end = self.session.open(now, header, frame).expect("a good frame");
        for record in Records::new(&frame[16..end]) {
            match record.expect("a good record") {
                Record::Ack { credit, blocks } => {
                    let acked = self.session.acked(credit, blocks, now, &mut Nobody);
                    acked.expect("what was sent");
                }
                Record::Ping => {}
                other => self.heard.push(format!("{other:?}")),
            }
        }
        self.session.take(header.counter, crate::session::ACK_REQUESTS, now);
    }

    /// Has the device as its place 0, by handle 4096.
    fn bound(pair: &mut Pair) -> Rogue {
        let mut rogue = Rogue::new(pair);
        assert!(rogue.say(pair, &[Record::Bind(bind(1))]));
        assert!(rogue.say(pair, &[Record::Ping]));
        assert!(rogue.heard[0].contains("Fresh"), "{:?}", rogue.heard);
        rogue
    }
}

fn session_of(made: Established, now: u64) -> Session {
    let (keys, agreed) = made.split();
    let seal = Seal::new(keys).expect("keys");
    Session::new(seal, &agreed, 64, now).expect("a session")
}

const HANDLE: u32 = 4096;

fn bind(binding: u64) -> Bind {
    Bind {
        device: DEVICE,
        intent: Intent::Take,
        index: 0,
        slots: 4,
        slot_bytes: 16 << 10,
        binding,
        generation: 0,
        instance: 99,
        name: 0,
    }
}

/// A fragment of a write to the start of the device.
fn part(turn: u64, len: u32, place: u32, data: &[u8], whole: &[u8]) -> Part<'static> {
    let op = Op::Write { sync: false };
    Part {
        handle: HANDLE,
        slot: 0,
        op,
        turn,
        offset: 0,
        len,
        place,
        checksum: checksum(DEVICE, op, 0, len, whole),
        data: data.to_vec().leak(),
    }
}
