//! A request to a remote disk allocates nothing: both ends in this process, with sockets of the loopback interface, and
//! a time that is made up. What was written is what is read.
//!
//! In a process of its own, since another test beside it would be counted, too.

use std::cell::RefCell;
use std::rc::Rc;

use crate::ALLOCATOR;
use crate::network::alone;
use backend::link::{Address, ClientLink, LinkEvent, LinkKey, LinkSocket, LinkSource};
use backend::{Backend, Disk, Io, Limits, Outcome, Progress, RemoteDisk};
use guest_memory::GuestMap;
use random::Random;
use remote::client::{AttachSpec, ClientSpec, Event};
use remote::handshake::{Greeter, Identity, Initiator, Offer, Randomness, Step};
use remote::iohost::{ExportSpec, Host, HostEvent, HostSpec, SlotMemory};
use remote::wire::{Header, Kind, News, Op as WireOp, Status as WireStatus, Verifier};
use request::{Op, Request, Status, Tag};

const LINK: LinkKey = LinkKey(1);
const DISK: u16 = 0;
const SIZE: u64 = 16 << 20;
const DEPTH: u16 = 16;

struct Bits(Random);

impl Randomness for Bits {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.next() as u8);
    }
}

#[derive(Clone)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl SlotMemory for Shared {
    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.0.borrow_mut().store(at, bytes);
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        self.0.borrow().load(at, into);
    }
}

fn open() -> LinkSocket {
    let bind = "127.0.0.1:0".parse().expect("an address");
    LinkSocket::open(&LinkSource::Udp { bind }).unwrap_or_else(|error| panic!("{error}"))
}

/// The other end: a RAM disk.
struct Far {
    socket: LinkSocket,
    host: Host<Shared>,
    greeter: Greeter,
    client: Option<Address>,
    memory: Option<(Shared, usize)>,
    disk: Vec<u8>,
    bits: Bits,
}

impl Far {
    fn new(identity: Identity, is_secret: bool) -> Far {
        let offer = Offer::new(is_secret, 1472, 256);
        let mut host = Host::new(HostSpec {
            sessions_max: 4,
            ring_frames: 256,
            memory_max: 64 << 20,
            client_memory_max: 64 << 20,
            instance: 7,
            shard: 0,
        });
        let news = News { revision: 1, size: SIZE, features: 0, is_removed: false };
        host.export(ExportSpec { device: 1, clients: Vec::new(), news, generation: 0 });
        Far {
            socket: open(),
            host,
            greeter: Greeter::new(identity, offer, 10_000, 0).expect("a greeter"),
            client: None,
            memory: None,
            disk: vec![0; SIZE as usize],
            bits: Bits(Random::new(1, 1)),
        }
    }

    fn step(&mut self, now: u64) {
        while let Some((from, frame)) = self.socket.receive() {
            if Header::parse(frame).is_ok_and(|header| header.kind == Kind::Sealed) {
                self.host.receive(now, frame, &mut |_, _| {});
                continue;
            }
            let greeted = self.greeter.read(frame, &|_| true, &mut self.bits).expect("a hello");
            let number = self.host.reserve(now, greeted.peer()).expect("a number");
            let (answer, made) = greeted.answer(number, self.host.share()).expect("an answer");
            assert!(self.host.establish(made));
            self.client = Some(from);
            self.socket.send(|place| {
                place[..answer.len()].copy_from_slice(&answer);
                Some((answer.len(), from))
            });
        }
        self.host.tick(now);
        while let Some(event) = self.host.next_event() {
            if let HostEvent::Open { export, slots, slot_bytes, .. } = event {
                let bytes = usize::from(slots) * slot_bytes as usize;
                let memory = Shared(Rc::new(RefCell::new(vec![0; bytes])));
                self.memory = Some((memory.clone(), slot_bytes as usize));
                self.host.opened(export, Ok((Verifier::default(), memory)));
            }
        }
        while let Some(work) = self.host.next_work(now) {
            let (memory, slot_bytes) = self.memory.as_ref().expect("opened");
            let mut memory = memory.0.borrow_mut();
            let (at, len) = (work.offset as usize, work.len as usize);
            let slot = &mut memory[usize::from(work.slot()) * slot_bytes..];
            match work.op {
                WireOp::Read => slot[..len].copy_from_slice(&self.disk[at..at + len]),
                WireOp::Write { .. } => self.disk[at..at + len].copy_from_slice(&slot[..len]),
                _ => {}
            }
            drop(memory);
            self.host.finish(work, WireStatus::Ok);
        }
        let (host, client) = (&mut self.host, self.client);
        while self.socket.send(|place| Some((host.poll_transmit(now, place)?.1, client?))) {}
        self.socket.flush();
    }
}

struct Near {
    now: u64,
    io: Io,
    backend: Backend,
    memory: GuestMap,
    far: Far,
}

impl Near {
    /// With the disk, over a session with these keys.
    fn new(is_secret: bool) -> Near {
        let key = |byte| if is_secret { Identity::Key([byte; 32]) } else { Identity::None };
        let far = Far::new(key(1), is_secret);
        let iohost = Address::udp(far.socket.local().expect("a port"));
        let spec = ClientSpec { instance: 1, ring_frames: 256, fail_after_ns: None };
        let link = ClientLink::new(open(), vec![iohost], spec);
        let mut io = Io::new(32).expect("no ring yet");
        assert!(io.attach_link(LINK, Box::new(link), 1).is_ok());
        let attach =
            AttachSpec { device: 1, slots: DEPTH + 1, slot_bytes: 128 << 10, keep_bytes: 64 << 20 };
        assert!(io.link(LINK).expect("a link").attach(DISK, attach, None));
        let disk = Disk::remote(RemoteDisk {
            link: LINK,
            disk: DISK,
            size_bytes: SIZE,
            block_size: 512,
            physical_block_size: 512,
            grain: Default::default(),
            limits: Limits::default(),
            readonly: false,
        });
        let mut backend = disk.backend();
        backend.join(&mut io).expect("a link");
        let memory = GuestMap::anonymous(8 << 20).expect("memory");
        let mut near = Near { now: 1, io, backend, memory, far };
        near.greet(key(2), is_secret);
        near
    }

    fn greet(&mut self, identity: Identity, is_secret: bool) {
        let mut bits = Bits(Random::new(2, 2));
        let mut handshake = None;
        for _ in 0..1000 {
            self.pass(&mut |_, _| Outcome::Pending);
            while let Some((key, event)) = self.io.next_link_event() {
                let link = self.io.link(key).expect("it");
                match event {
                    LinkEvent::WantsSession(_) => {
                        let offer = Offer::new(is_secret, 1472, 256);
                        let public = *self.far.greeter.public();
                        let made = Initiator::new(&identity, public, 1, offer, &mut bits);
                        let made = made.expect("an initiator");
                        link.hello(made.hello().to_vec(), self.now);
                        handshake = Some(made);
                    }
                    LinkEvent::Greet { frame, from } => {
                        let step = handshake.as_mut().expect("one").receive(&frame);
                        let Ok(Step::Done(made)) = step else { panic!("no session") };
                        assert!(link.establish(*made, from, self.now));
                    }
                    LinkEvent::Client(Event::Bound { .. }) => return,
                    LinkEvent::Client(Event::Stands { .. }) => link.heard(DISK),
                    LinkEvent::Client(_) | LinkEvent::Freed(_) => {}
                }
            }
        }
        panic!("no disk");
    }

    /// What a sidecore does in a pass, and the other end; each completion is given to `completed`.
    fn pass(&mut self, completed: &mut dyn FnMut(Tag, &mut Near) -> Outcome) {
        self.now += 10_000;
        self.io.receive(self.now);
        self.io.enter().expect("no ring");
        while let Some((tag, _)) = self.io.reap_one() {
            completed(tag, self);
        }
        self.io.send(self.now);
        self.far.step(self.now);
    }

    /// So many requests of `len` bytes, at most [`DEPTH`] at a time, written and read in turn.
    fn requests(&mut self, count: u32, len: u32) {
        let (mut submitted, mut ended) = (0, 0);
        let mut is_free = [true; 8];
        while ended < count {
            while submitted < count
                && self.backend.has_room(&self.io)
                && let Some(slot) = is_free.iter().position(|is_free| *is_free)
            {
                let tag = Tag { queue: 0, slot: slot as u16, generation: submitted };
                is_free[slot] = false;
                submitted += 1;
                let outcome = self.of(tag, len, &mut |near, request| {
                    near.backend.submit(&mut near.io, request, &near.memory, tag).into()
                });
                assert_eq!(outcome, Outcome::Pending);
            }
            self.pass(&mut |tag, near| {
                let outcome = near.of(tag, len, &mut |near, request| {
                    let mut progress = Progress::default();
                    let (io, memory) = (&mut near.io, &near.memory);
                    near.backend.completed(io, request, memory, tag, 0, &mut progress)
                });
                match outcome {
                    Outcome::Done(status) => {
                        assert_eq!(status, Status::Ok);
                        is_free[usize::from(tag.slot)] = true;
                        ended += 1;
                    }
                    Outcome::Passed(_) => panic!("it has no stages"),
                    Outcome::Pending | Outcome::Turn | Outcome::Stalled(_) => {}
                }
                outcome
            });
        }
    }

    fn of(
        &mut self,
        tag: Tag,
        len: u32,
        act: &mut dyn FnMut(&mut Near, &Request<'_>) -> Outcome,
    ) -> Outcome {
        let span = self.memory.span(u64::from(tag.slot) << 20, len).expect("within");
        let is_write = (tag.generation / 8).is_multiple_of(2);
        let op = if is_write { Op::Write { sync: false } } else { Op::Read };
        let offset = u64::from(tag.slot) << 20;
        act(self, &Request { op, offset, len: len.into(), segments: &[span] })
    }

    /// Whether the slots' bytes are those of the disk: of eight requests the last was written or read.
    fn is_same(&self, len: usize) -> bool {
        let mut bytes = vec![0; len];
        (0..8_usize).all(|slot| {
            let span = self.memory.span((slot as u64) << 20, len as u32).expect("within");
            self.memory.read(span, 0, &mut bytes) && bytes == self.far.disk[slot << 20..][..len]
        })
    }

    fn fill(&self, seed: u8) {
        let bytes: Vec<u8> = (0..8_u32 << 20).map(|at| (at / 7) as u8 ^ seed).collect();
        assert!(self.memory.write(self.memory.span(0, 8 << 20).expect("within"), 0, &bytes));
    }
}

#[test]
fn a_request_allocates_nothing() {
    alone("a_request_allocates_nothing", || {
        for is_secret in [false, true] {
            let mut near = Near::new(is_secret);
            near.requests(400, 4096);
            near.requests(40, 300 << 10);
            let before = ALLOCATOR.stats();
            near.requests(2000, 4096);
            near.requests(100, 300 << 10);
            let after = ALLOCATOR.stats();
            assert_eq!(after.allocations, before.allocations, "secret: {is_secret}");
            assert_eq!(after.reallocations, before.reallocations, "secret: {is_secret}");
            near.fill(1);
            near.requests(8, 300 << 10);
            assert!(near.is_same(300 << 10));
            assert!(near.far.disk[5] == 1 && near.far.disk[300 << 10] == 0, "as much, and no more");
        }
    });
}
