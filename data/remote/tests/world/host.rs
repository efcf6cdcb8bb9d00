//! The IOhost of a world: the protocol's end, a greeter, a device, and what happens when its process dies.

use std::collections::HashMap;

use random::Random;
use remote::handshake::{Gate, Greeter, Identity, Offer, Verdict};
use remote::iohost::{ExportSpec, Host, HostEvent, HostSpec, Work};
use remote::wire::{Header, Kind, News, Op, Status, Verifier};

use super::judge::{Judge, Storage};
use super::wire::{End, Wire};
use super::{Bits, DEVICE, DEVICE_BYTES, MS, Shape};

pub(crate) struct HostNode {
    pub(crate) host: Option<Host>,
    pub(crate) storage: Storage,
    identity: Identity,
    lease_ms: u32,
    frame_bytes: u16,
    work_ns: u64,
    gate: Gate,
    greeter: Greeter,
    /// Which client a session's frames go to.
    paths: HashMap<u32, usize>,
    /// Until when, and whether its effect is there already.
    working: Vec<(u64, bool, Work)>,
    opening: Vec<(u64, HostEvent)>,
    generation: u64,
    pub(crate) life: u64,
    starts_at: u64,
    ticked_at: u64,
}

impl HostNode {
    pub(crate) fn new(shape: &Shape, random: &mut Random) -> HostNode {
        let identity = match shape.is_secret {
            true => Identity::Key([7; 32]),
            false => Identity::None,
        };
        let offer = Offer::new(shape.is_secret, shape.frame_bytes, 64);
        let greeter = Greeter::new(identity.clone(), offer, shape.lease_ms).expect("a greeter");
        let gate = Gate::new(greeter.public(), 0, &mut Bits(random));
        let mut node = HostNode {
            host: None,
            storage: Storage::new(),
            identity,
            lease_ms: shape.lease_ms,
            frame_bytes: shape.frame_bytes,
            work_ns: shape.work_ns,
            gate,
            greeter,
            paths: HashMap::new(),
            working: Vec::new(),
            opening: Vec::new(),
            generation: 0,
            life: 0,
            starts_at: 0,
            ticked_at: 0,
        };
        node.start(0, random);
        node
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn start(&mut self, now: u64, random: &mut Random) {
        self.life += 1;
        let mut host = Host::new(HostSpec {
            sessions_max: 16,
            ring_frames: 256,
            memory_max: 8 << 20,
            number_first: random.next() as u16,
        });
        let news = News { revision: 1, size: DEVICE_BYTES as u64, features: 0, is_removed: false };
        let clients = Vec::new();
        let generation = self.generation;
        host.export(ExportSpec { device: DEVICE, clients, news, generation });
        let offer = Offer::new(!matches!(self.identity, Identity::None), self.frame_bytes, 64);
        self.greeter =
            Greeter::new(self.identity.clone(), offer, self.lease_ms).expect("a greeter");
        self.gate = Gate::new(self.greeter.public(), now, &mut Bits(random));
        self.paths.clear();
        self.host = Some(host);
    }

    /// The process ends. What the kernel has in hand happens, or does not, before a successor may open the device.
    pub(crate) fn die(&mut self, now: u64, is_crash: bool, judge: &mut Judge, random: &mut Random) {
        if self.host.is_none() {
            return;
        }
        for (_, is_applied, work) in std::mem::take(&mut self.working) {
            if !is_applied && random.one_in(2) {
                self.apply(&work, judge);
            }
        }
        if is_crash {
            self.storage.crash(judge, random);
        }
        self.host = None;
        self.opening.clear();
        self.starts_at = now + random.below(500 * MS);
    }

    fn apply(&mut self, work: &Work, judge: &mut Judge) {
        let Some(host) = &mut self.host else { return };
        let buffer = host.buffer(work);
        self.storage.apply(work.op, work.offset, buffer, work.len);
        judge.applied(self.life, work.op, work.offset, work.len, buffer);
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
            Verdict::Cookie(cookie) => wire.send(now, End::Client(from), 0, &cookie, random),
            Verdict::Pass => {
                let Some(number) = host.reserve(now) else { return };
                let share = host.share();
                let answer =
                    self.greeter.answer(frame, number, share, &|_| true, &mut Bits(random));
                let Ok((answer, made)) = answer else { return };
                assert!(answer.len() <= frame.len(), "an answer longer than the hello");
                assert!(host.establish(&made, now));
                self.paths.insert(number, from);
                wire.send(now, End::Client(from), 0, &answer, random);
            }
        }
    }

    pub(crate) fn work(&mut self, now: u64, judge: &mut Judge, random: &mut Random) {
        if self.host.is_none() {
            if now < self.starts_at {
                return;
            }
            self.start(now, random);
        }
        let Some(host) = &mut self.host else { return };
        host.tick(now);
        self.ticked_at = now;
        while let Some(work) = host.next_work(now) {
            let until = now + random.below(self.work_ns + 1);
            self.working.push((until, false, work));
        }
        while let Some(event) = host.next_event() {
            self.opening.push((now + random.below(5 * MS), event));
        }
        self.open_and_let_go(now, random);
        for at in (0..self.working.len()).rev() {
            let is_over = self.working[at].0 <= now;
            if !self.working[at].1 && (is_over || random.one_in(4)) {
                let (until, _, work) = self.working.swap_remove(at);
                self.apply(&work, judge);
                self.working.push((until, true, work));
                let last = self.working.len() - 1;
                self.working.swap(at, last);
            }
            if is_over {
                let (_, _, work) = self.working.swap_remove(at);
                if let Some(host) = &mut self.host {
                    host.finish(work, Status::Ok);
                }
            }
        }
    }

    fn open_and_let_go(&mut self, now: u64, random: &mut Random) {
        let Some(host) = &mut self.host else { return };
        for at in (0..self.opening.len()).rev() {
            if self.opening[at].0 > now {
                continue;
            }
            match self.opening.swap_remove(at).1 {
                HostEvent::Open { export, generation } => {
                    self.generation = generation.max(self.generation);
                    let verifier = Verifier { boot: self.storage.boot, contents: 3 };
                    let result = if random.one_in(8) { Err(()) } else { Ok(verifier) };
                    host.opened(export, result);
                }
                HostEvent::LetGo { export } => {
                    assert!(self.working.is_empty(), "let go while something is executing");
                    let is_synced = !random.one_in(8);
                    if is_synced {
                        self.storage.apply(Op::Flush, 0, &mut [], 0);
                    }
                    host.let_go(export, is_synced);
                }
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
                wire.send(now, End::Client(*client), 0, &buffer[..len], random);
            }
        }
    }

    pub(crate) fn due(&self) -> Option<u64> {
        let Some(host) = &self.host else { return Some(self.starts_at) };
        let working = self.working.iter().map(|(at, ..)| *at).min();
        let opening = self.opening.iter().map(|(at, _)| *at).min();
        [host.due().map(|at| at.max(self.ticked_at + 1000)), working, opening]
            .into_iter()
            .flatten()
            .min()
    }
}
