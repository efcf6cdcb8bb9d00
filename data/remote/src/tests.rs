//! One client and one IOhost with a wire in between that a test holds in its hand; and a client that lies.
//!
//! Rows N1 to N20 of the list of failures have tests of that name: here, beside what they are about, and in
//! `tests/histories.rs`.

use random::Random;

use crate::client::{AttachSpec, Client, ClientSpec, Event, Over, Rejected, Request};
use crate::handshake::{Established, Greeter, Identity, Initiator, Offer, Randomness, Step};
use crate::iohost::{ExportSpec, Host, HostEvent, HostSpec};
use crate::loss::{Fate, Mark};
use crate::session::Session;
use crate::wire::{
    Bind, Header, Intent, News, Op, Part, Record, Records, Status, Verifier, checksum,
};

mod away;
mod hostile;
mod life;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const DEVICE: u64 = 5;
const SIZE: usize = 64 << 10;
const SPEC: AttachSpec = AttachSpec { device: DEVICE, slots: 8, slot_bytes: 16 << 10 };

struct Bits(Random);

impl Randomness for Bits {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.next() as u8);
    }
}

/// Both ends, and the disk.
struct Pair {
    now: u64,
    client: Client,
    host: Host,
    disk: Vec<u8>,
    verifier: Verifier,
    /// Every request that was executed: what, where, and its first byte.
    executed: Vec<(Op, u64, u8)>,
    /// Nothing goes to the host, or to the client.
    is_cut: [bool; 2],
    /// Frames are kept instead of delivered, the host's and the client's.
    keeps: [bool; 2],
    kept: [Vec<Vec<u8>>; 2],
    executes: bool,
    random: Bits,
    number: u32,
    lease_ms: u32,
    frame_bytes: u16,
    events: Vec<Event>,
    net: Vec<Vec<u8>>,
}

fn client(seed: u64, fail_after_ns: Option<u64>) -> Client {
    Client::new(ClientSpec { instance: seed, ring_frames: 64, fail_after_ns }, 0)
}

fn host(generation: u64) -> Host {
    let mut host = Host::new(HostSpec {
        sessions_max: 8,
        ring_frames: 256,
        memory_max: 1 << 20,
        number_first: 1,
    });
    let news = News { revision: 1, size: SIZE as u64, features: 3, is_removed: false };
    host.export(ExportSpec { device: DEVICE, clients: Vec::new(), news, generation });
    host
}

impl Pair {
    fn new(lease_ms: u32) -> Pair {
        Pair {
            now: 0,
            client: client(1, None),
            host: host(0),
            disk: vec![0; SIZE],
            verifier: Verifier { boot: 1, contents: 2 },
            executed: Vec::new(),
            is_cut: [false; 2],
            keeps: [false; 2],
            kept: [Vec::new(), Vec::new()],
            executes: true,
            random: Bits(Random::new(1, 1)),
            number: 0,
            lease_ms,
            frame_bytes: 1472,
            events: Vec::new(),
            net: Vec::new(),
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
        let offer = Offer::new(false, self.frame_bytes, 64);
        let bits = &mut self.random;
        let mut initiator = Initiator::new(&Identity::None, [0; 32], self.number, offer, bits)
            .expect("an initiator");
        let greeter = Greeter::new(Identity::None, Offer::new(false, 9000, 64), self.lease_ms)
            .expect("a greeter");
        let number = self.host.reserve(self.now).expect("a number");
        let share = self.host.share();
        let hello = initiator.hello().to_vec();
        let (answer, at_host) =
            greeter.answer(&hello, number, share, &|_| true, &mut self.random).expect("an answer");
        let Ok(Step::Done(at_client)) = initiator.receive(&answer) else { panic!("no session") };
        (*at_client, at_host)
    }

    fn greet(&mut self) {
        let (at_client, at_host) = self.established();
        assert!(self.host.establish(&at_host, self.now));
        assert!(self.client.establish(&at_client, self.now));
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
            self.events.push(event);
        }
    }

    fn give_host(&mut self, frame: &[u8]) {
        if self.keeps[0] {
            self.kept[0].push(frame.to_vec());
        } else if !self.is_cut[0] {
            let net = &mut self.net;
            self.host.receive(self.now, &mut frame.to_vec(), &mut |_, data| {
                net.push(data.to_vec());
            });
        }
    }

    fn give_client(&mut self, frame: &[u8]) {
        if self.keeps[1] {
            self.kept[1].push(frame.to_vec());
        } else if !self.is_cut[1] {
            let net = &mut self.net;
            self.client.receive(self.now, &mut frame.to_vec(), &mut |_, data| {
                net.push(data.to_vec());
            });
        }
    }

    fn work(&mut self) {
        while let Some(event) = self.host.next_event() {
            match event {
                HostEvent::Open { export, .. } => self.host.opened(export, Ok(self.verifier)),
                HostEvent::LetGo { export } => self.host.let_go(export, true),
            }
        }
        while self.executes {
            let Some(work) = self.host.next_work(self.now) else { return };
            let (at, len) = (work.offset as usize, work.len as usize);
            let buffer = self.host.buffer(&work);
            match work.op {
                Op::Read => buffer.copy_from_slice(&self.disk[at..at + len]),
                Op::Write { .. } => self.disk[at..at + len].copy_from_slice(buffer),
                _ => {}
            }
            self.executed.push((work.op, work.offset, buffer.first().copied().unwrap_or(0)));
            self.host.finish(work, Status::Ok);
        }
    }

    fn write(&mut self, one: u16, offset: u64, byte: u8, len: usize) {
        let op = Op::Write { sync: false };
        let request = Request { op, offset, len: len as u32, tag: u64::from(byte) };
        self.client.submit(one, request, &vec![byte; len]).expect("a slot");
    }

    fn ask(&mut self, one: u16, op: Op, offset: u64, len: u32) {
        let request = Request { op, offset, len, tag: 0 };
        self.client.submit(one, request, &[]).expect("a slot");
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
        assert!(pair.host.establish(&at_host, pair.now));
        let session = Session::new(&at_client, 64, pair.now).expect("a session");
        Rogue { session, heard: Vec::new() }
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
            if header.session != self.session.mine {
                continue;
            }
            let frame = &mut buffer[..len];
            let end = self.session.open(pair.now, &header, frame).expect("a good frame");
            for record in Records::new(&frame[16..end]) {
                match record.expect("a good record") {
                    Record::Ack { credit, blocks } => {
                        let acked = self.session.acked(credit, blocks, pair.now, &mut Nobody);
                        acked.expect("what was sent");
                    }
                    Record::Ping => {}
                    other => self.heard.push(format!("{other:?}")),
                }
            }
            self.session.take(header.counter, true, pair.now);
        }
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
