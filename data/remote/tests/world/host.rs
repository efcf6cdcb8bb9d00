//! An IOhost of a world: the protocol's end, a greeter, work on devices, and what happens when its process dies.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use random::Random;
use remote::handshake::{Gate, Greeter, Identity, Offer, Verdict};
use remote::iohost::{ExportSpec, Host, HostEvent, HostSpec, SlotMemory, Work};
use remote::wire::{Header, Kind, News, Op, Status, Verifier};

use super::judge::Judge;
use super::storage::{Opened, Storage};
use super::wire::{End, Wire};
use super::{Bits, DEVICE, DEVICE_BYTES, MS, NIC, Shape};

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

/// A request that was handed out.
struct Working {
    /// When it goes to the disk, and when it ends.
    goes_at: u64,
    ends_at: u64,
    is_gone: bool,
    /// Its effect is there.
    is_applied: bool,
    work: Work,
}

pub(crate) struct HostNode {
    at: usize,
    host: Option<Host<Shared>>,
    /// Of each device's slots, and the bytes of each.
    memory: HashMap<u16, (Shared, usize)>,
    shape: Shape,
    gate: Gate,
    greeter: Greeter,
    /// Which client a session's frames go to.
    paths: HashMap<u32, usize>,
    working: Vec<Working>,
    opening: Vec<(u64, HostEvent)>,
    life: u64,
    starts_at: u64,
    ticked_at: u64,
}

pub(crate) fn identity(shape: &Shape) -> Identity {
    if shape.is_secret { Identity::Key([7; 32]) } else { Identity::None }
}

/// One of its leases, and the longest that a request is executed.
fn greeter(shape: &Shape, random: &mut Random) -> Greeter {
    let offer = Offer::new(shape.is_secret, shape.frame_bytes, 64);
    let work_ms = u32::try_from(shape.work_ns.div_ceil(MS)).expect("a time");
    let lease_ms = random.of(&shape.leases_ms);
    Greeter::new(identity(shape), offer, lease_ms, work_ms).expect("a greeter")
}

impl HostNode {
    pub(crate) fn new(at: usize, shape: &Shape, random: &mut Random) -> HostNode {
        let greeter = greeter(shape, random);
        let gate = Gate::new(greeter.public(), 0, &mut Bits(random));
        let mut node = HostNode {
            at,
            host: None,
            memory: HashMap::new(),
            shape: shape.clone(),
            gate,
            greeter,
            paths: HashMap::new(),
            working: Vec::new(),
            opening: Vec::new(),
            life: 0,
            starts_at: 0,
            ticked_at: 0,
        };
        node.start(0, &[], random);
        node
    }

    fn start(&mut self, now: u64, disks: &[Storage], random: &mut Random) {
        self.life += 1;
        let mut host = Host::new(HostSpec {
            sessions_max: 16,
            ring_frames: self.shape.ring_frames,
            memory_max: 16 << 20,
            client_memory_max: 16 << 20,
            instance: random.next(),
            shard: 0,
        });
        let news = News { revision: 1, size: DEVICE_BYTES as u64, features: 0, is_removed: false };
        for disk in 0..=self.shape.disks {
            let generation = disks.get(disk).map_or(0, |disk| disk.generation);
            let device = if disk == self.shape.disks { NIC } else { DEVICE + disk as u64 };
            host.export(ExportSpec { device, clients: Vec::new(), news, generation });
        }
        self.greeter = greeter(&self.shape, random);
        self.gate = Gate::new(self.greeter.public(), now, &mut Bits(random));
        self.paths.clear();
        self.host = Some(host);
    }

    fn life(&self) -> (usize, u64) {
        (self.at, self.life)
    }

    /// The process ends. What the kernel has in hand happens, or does not, before a successor may open the device.
    pub(crate) fn die(
        &mut self,
        now: u64,
        is_crash: bool,
        disks: &mut [Storage],
        judge: &mut Judge,
        random: &mut Random,
    ) {
        if self.host.is_none() {
            return;
        }
        for one in std::mem::take(&mut self.working) {
            if one.is_gone && !one.is_applied && random.one_in(2) {
                self.apply(&one.work, disks, judge);
            }
        }
        let life = self.life();
        for disk in disks {
            if disk.lock == Some(life) {
                disk.lock = None;
            }
            // What another host has is not on this machine.
            if is_crash && disk.lock.is_none() {
                disk.crash(judge, random);
            }
        }
        self.host = None;
        self.opening.clear();
        self.starts_at = now + random.below(500 * MS);
    }

    fn apply(&self, work: &Work, disks: &mut [Storage], judge: &mut Judge) {
        let Some(disk) = disks.get_mut(usize::from(work.export)) else { return };
        assert_eq!(disk.lock, Some(self.life()), "executed by who does not have the lock");
        let (memory, slot_bytes) = &self.memory[&work.export];
        let mut memory = memory.0.borrow_mut();
        let start = usize::from(work.slot()) * slot_bytes;
        let has_bytes = work.op.has_data() || work.op == Op::Read;
        let len = if has_bytes { work.len as usize } else { 0 };
        let buffer = &mut memory[start..start + len];
        disk.apply(work.op, work.offset, buffer, work.len);
        judge.applied((usize::from(work.export), disk.era), work, buffer);
    }

    pub(crate) fn receive(
        &mut self,
        now: u64,
        from: usize,
        frame: &mut [u8],
        wire: &mut Wire,
        random: &mut Random,
    ) {
        let Some(host) = &mut self.host else { return };
        if Header::parse(frame).is_ok_and(|header| header.kind == Kind::Sealed) {
            host.receive(now, frame, &mut |_, _| {});
            return;
        }
        match self.gate.look(frame, &from.to_le_bytes()) {
            Verdict::Drop => {}
            Verdict::Cookie(cookie) => wire.send(now, End::Client(from), self.at, &cookie, random),
            Verdict::Pass => {
                if self.shape.leases_ms.len() > 1 {
                    self.greeter = greeter(&self.shape, random);
                }
                let greeted = self.greeter.read(frame, &|_| true, &mut Bits(random));
                let Ok(greeted) = greeted else { return };
                let Some(number) = host.reserve(now, greeted.peer()) else { return };
                let (answer, made) = greeted.answer(number, host.share()).expect("an answer");
                assert!(answer.len() <= frame.len(), "an answer longer than the hello");
                assert!(host.establish(made));
                self.paths.insert(number, from);
                wire.send(now, End::Client(from), self.at, &answer, random);
            }
        }
    }

    pub(crate) fn work(
        &mut self,
        now: u64,
        disks: &mut [Storage],
        judge: &mut Judge,
        random: &mut Random,
    ) {
        if self.host.is_none() {
            if now < self.starts_at {
                return;
            }
            self.start(now, disks, random);
        }
        let Some(host) = &mut self.host else { return };
        host.tick(now);
        self.ticked_at = now;
        while let Some(work) = host.next_work(now) {
            let goes_at = now + random.below(self.shape.queue_ns + 1);
            let ends_at = goes_at + random.below(self.shape.work_ns + 1);
            let (is_gone, is_applied) = (false, false);
            self.working.push(Working { goes_at, ends_at, is_gone, is_applied, work });
        }
        while let Some(event) = host.next_event() {
            match event {
                HostEvent::SessionBegan { .. } => {}
                HostEvent::SessionEnded { session } => {
                    assert!(self.paths.remove(&session).is_some(), "a session that had begun");
                }
                other => self.opening.push((now + random.below(5 * MS), other)),
            }
        }
        self.open_and_let_go(now, disks, judge, random);
        self.execute(now, disks, judge, random);
        if let Some(host) = self.host.as_mut().filter(|_| self.shape.floods) {
            let nic = self.shape.disks as u16;
            while host.send_net(nic, &[2; 500]) {}
        }
    }

    fn execute(&mut self, now: u64, disks: &mut [Storage], judge: &mut Judge, random: &mut Random) {
        for mut one in std::mem::take(&mut self.working) {
            let Some(host) = &mut self.host else { return };
            if !one.is_gone && one.goes_at <= now {
                if !host.may_go(&one.work, now) {
                    host.withdraw(one.work);
                    continue;
                }
                one.is_gone = true;
                // From here on it takes as long as was promised, however late the host was.
                one.ends_at = now + one.ends_at.saturating_sub(one.goes_at);
            }
            let is_over = one.is_gone && one.ends_at <= now;
            // The worst that may be: at the end.
            if one.is_gone && !one.is_applied && (is_over || random.one_in(64)) {
                self.apply(&one.work, disks, judge);
                one.is_applied = true;
            }
            match &mut self.host {
                Some(host) if is_over => host.finish(one.work, Status::Ok),
                _ => self.working.push(one),
            }
        }
    }

    fn open_and_let_go(
        &mut self,
        now: u64,
        disks: &mut [Storage],
        judge: &mut Judge,
        random: &mut Random,
    ) {
        let life = self.life();
        let Some(host) = &mut self.host else { return };
        for at in (0..self.opening.len()).rev() {
            if self.opening[at].0 > now {
                continue;
            }
            match self.opening.swap_remove(at).1 {
                HostEvent::Open { export, generation, slots, slot_bytes, .. } => {
                    let bytes = usize::from(slots) * slot_bytes as usize;
                    let memory = Shared(Rc::new(RefCell::new(vec![0; bytes])));
                    let opened = match disks.get_mut(usize::from(export)) {
                        _ if random.one_in(8) => Opened::Locked,
                        Some(disk) => disk.open(life, generation),
                        None => Opened::Open(0, 1),
                    };
                    let opened = match opened {
                        Opened::Locked => Err(()),
                        Opened::Open(kept, boot) => {
                            host.raise(export, kept);
                            Ok((Verifier { boot, contents: 3 }, memory.clone()))
                        }
                    };
                    self.memory.insert(export, (memory, slot_bytes as usize));
                    host.opened(export, opened);
                }
                HostEvent::LetGo { export, .. } => {
                    let mut working = self.working.iter();
                    let is_working = working.any(|one| one.work.export == export);
                    assert!(!is_working, "let go while something is executing");
                    let is_synced = !random.one_in(8);
                    if let Some(disk) = disks.get_mut(usize::from(export)) {
                        disk.let_go(life, is_synced, judge, random);
                    }
                    assert!(host.let_go(export, is_synced).is_some(), "its memory");
                }
                _ => {}
            }
        }
    }

    pub(crate) fn transmit(
        &mut self,
        now: u64,
        buffer: &mut [u8],
        wire: &mut Wire,
        random: &mut Random,
    ) {
        let Some(host) = &mut self.host else { return };
        while let Some((session, len)) = host.poll_transmit(now, buffer) {
            if let Some(client) = self.paths.get(&session) {
                wire.send(now, End::Client(*client), self.at, &buffer[..len], random);
            }
        }
    }

    pub(crate) fn due(&self) -> Option<u64> {
        let Some(host) = &self.host else { return Some(self.starts_at) };
        let working = self.working.iter();
        let working = working.map(|one| if one.is_gone { one.ends_at } else { one.goes_at });
        let opening = self.opening.iter().map(|(at, _)| *at);
        let own = host.due().map(|at| at.max(self.ticked_at + 1000));
        working.chain(opening).chain(own).min()
    }
}
