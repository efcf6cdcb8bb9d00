//! An IOhost of the tests: the protocol's end over RAM, with its greeter, and a process that can die.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use backend::link::{Address, LinkSocket};
use random::Random;
use remote::Assembly;
use remote::handshake::{Gate, Greeter, Identity, Offer, Randomness, Verdict};
use remote::iohost::{ExportSpec, Host, HostEvent, HostSpec, SlotMemory, Work};
use remote::wire::{Header, Kind, News, Op, Status, Verifier};

use super::wire::Wire;
use crate::tests::bed::DISK;

pub(super) const DEVICE: u64 = 5;
/// A NIC, whose frames come back.
pub(super) const NIC: u64 = 6;
pub(super) const FRAME_BYTES: u16 = 1472;

pub(super) struct Bits(pub(super) Random);

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

/// A disk that several IOhosts can reach, and whose lock one of them has.
pub(super) struct Storage {
    pub(super) bytes: Vec<u8>,
    holder: Option<Address>,
    /// Of the last client that had it.
    pub(super) generation: u64,
    /// Another one after what was not stable is lost.
    pub(super) boot: u64,
    /// Which contents these are.
    pub(super) contents: u64,
    /// Every write that was executed: where, and its first byte.
    pub(super) writes: Vec<(u64, u8)>,
    pub(super) ops: Vec<Op>,
}

impl Storage {
    pub(super) fn new() -> Storage {
        let bytes = vec![0; DISK as usize];
        let (writes, ops) = (Vec::new(), Vec::new());
        Storage { bytes, holder: None, generation: 0, boot: 1, contents: 3, writes, ops }
    }

    fn execute(&mut self, work: &Work, (memory, slot_bytes): &(Shared, usize)) {
        let (at, len) = (work.offset as usize, work.len as usize);
        let start = usize::from(work.slot()) * slot_bytes;
        let mut memory = memory.0.borrow_mut();
        let has_bytes = work.op.has_data() || work.op == Op::Read;
        let buffer = &mut memory[start..start + if has_bytes { len } else { 0 }];
        self.ops.push(work.op);
        match work.op {
            Op::Read => buffer.copy_from_slice(&self.bytes[at..at + len]),
            Op::Write { .. } => {
                self.bytes[at..at + len].copy_from_slice(buffer);
                self.writes.push((work.offset, buffer[0]));
            }
            Op::WriteZeroes { .. } | Op::Discard => self.bytes[at..at + len].fill(0),
            Op::Flush => {}
        }
    }
}

pub(super) struct IoHost {
    pub(super) at: Address,
    socket: LinkSocket,
    /// Its process, while it lives.
    host: Option<Host<Shared>>,
    /// Of the disk's slots, and the bytes of each.
    memory: Option<(Shared, usize)>,
    gate: Gate,
    greeter: Greeter,
    paths: HashMap<u32, Address>,
    assembly: Assembly,
    /// It takes requests and executes none.
    pub(super) is_stuck: bool,
    bits: Bits,
}

impl IoHost {
    pub(super) fn new(wire: &Arc<Wire>, at: Address, lease_ms: u32) -> IoHost {
        let socket = LinkSocket::simulated(Arc::clone(wire) as _, at).expect("an end");
        let mut bits = Bits(Random::new(9, u64::from(lease_ms)));
        let greeter = Greeter::new(Identity::None, Offer::new(false, 9000, 64), lease_ms, 0);
        let greeter = greeter.expect("a greeter");
        let gate = Gate::new(greeter.public(), 0, &mut bits);
        let (host, paths) = (None, HashMap::new());
        let mut iohost = IoHost {
            at,
            socket,
            host,
            memory: None,
            gate,
            greeter,
            paths,
            assembly: Assembly::default(),
            is_stuck: false,
            bits,
        };
        iohost.start(0);
        iohost
    }

    /// Its process begins, with nothing but what is on the disk.
    pub(super) fn start(&mut self, generation: u64) {
        let mut host = Host::new(HostSpec {
            sessions_max: 8,
            ring_frames: 256,
            memory_max: 64 << 20,
            client_memory_max: 64 << 20,
            instance: self.bits.0.next(),
            shard: 0,
        });
        let news = News { revision: 1, size: DISK, features: 0, is_removed: false };
        host.export(ExportSpec { device: DEVICE, clients: Vec::new(), news, generation });
        let news = News { size: 0, ..news };
        host.export(ExportSpec { device: NIC, clients: Vec::new(), news, generation: 0 });
        self.host = Some(host);
        self.memory = None;
        self.paths.clear();
    }

    /// The disk has another size.
    pub(super) fn resize(&mut self, size: u64) {
        if let Some(host) = &mut self.host {
            host.update(0, size, 0);
        }
    }

    /// Its process is killed: the kernel lets its locks go.
    pub(super) fn die(&mut self, storage: &mut Storage) {
        self.host = None;
        storage.holder.take_if(|holder| *holder == self.at);
    }

    pub(super) fn step(&mut self, now: u64, storage: &mut Storage) {
        while let Some((from, frame)) = self.socket.receive() {
            let Some(host) = &mut self.host else { continue };
            if Header::parse(frame).is_ok_and(|header| header.kind == Kind::Sealed) {
                echo(host, &mut self.assembly, now, frame);
                continue;
            }
            let answer = match self.gate.look(frame, from.as_bytes()) {
                Verdict::Drop => continue,
                Verdict::Cookie(cookie) => cookie.to_vec(),
                Verdict::Pass => {
                    let greeted = self.greeter.read(frame, &|_| true, &mut self.bits);
                    let Ok(greeted) = greeted else { continue };
                    let Some(number) = host.reserve(now, greeted.peer()) else { continue };
                    let (answer, made) = greeted.answer(number, host.share()).expect("an answer");
                    assert!(host.establish(made));
                    self.paths.insert(number, from);
                    answer
                }
            };
            self.socket.send(|place| {
                place[..answer.len()].copy_from_slice(&answer);
                Some((answer.len(), from))
            });
        }
        let Some(host) = &mut self.host else { return };
        host.tick(now);
        while let Some(event) = host.next_event() {
            match event {
                HostEvent::Open { export: 1, slots, slot_bytes, .. } => {
                    open_nic(host, usize::from(slots) * slot_bytes as usize);
                }
                HostEvent::LetGo { export: 1, .. } => drop(host.let_go(1, true)),
                HostEvent::Open { export, generation, slots, slot_bytes, .. } => {
                    if storage.generation > generation {
                        host.raise(export, storage.generation);
                    }
                    let is_free = storage.holder.is_none_or(|holder| holder == self.at);
                    if !is_free || storage.generation > generation {
                        host.opened(export, Err(()));
                        continue;
                    }
                    (storage.holder, storage.generation) = (Some(self.at), generation);
                    let bytes = usize::from(slots) * slot_bytes as usize;
                    let memory = Shared(Rc::new(RefCell::new(vec![0; bytes])));
                    self.memory = Some((memory.clone(), slot_bytes as usize));
                    let verifier = Verifier { boot: storage.boot, contents: storage.contents };
                    host.opened(export, Ok((verifier, memory)));
                }
                HostEvent::SessionBegan { .. } => {}
                HostEvent::SessionEnded { session } => drop(self.paths.remove(&session)),
                HostEvent::LetGo { export, .. } => {
                    storage.holder = None;
                    host.let_go(export, true);
                }
            }
        }
        let is_stuck = self.is_stuck;
        while let Some(work) = (!is_stuck).then(|| host.next_work(now)).flatten() {
            if let Some(memory) = &self.memory {
                storage.execute(&work, memory);
            }
            host.finish(work, Status::Ok);
        }
        let paths = &self.paths;
        while self.socket.send(|place| {
            let (session, len) = host.poll_transmit(now, place)?;
            Some((len, paths.get(&session).copied().unwrap_or(self.at)))
        }) {}
    }

    pub(super) fn due(&self) -> Option<u64> {
        self.host.as_ref()?.due()
    }
}

/// What came is heard, and frames of the NIC go back.
fn echo(host: &mut Host<Shared>, assembly: &mut Assembly, now: u64, frame: &mut [u8]) {
    let mut whole = Vec::new();
    host.receive(now, frame, &mut |_, net| {
        whole.extend(assembly.take(net).map(<[u8]>::to_vec));
    });
    whole.iter().for_each(|frame| assert!(host.send_net(1, frame)));
}

fn open_nic(host: &mut Host<Shared>, bytes: usize) {
    let memory = Shared(Rc::new(RefCell::new(vec![0; bytes])));
    host.opened(1, Ok((Verifier::default(), memory)));
}
