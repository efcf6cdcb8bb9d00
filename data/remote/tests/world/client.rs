//! A client of a world: the protocol's end, its handshakes, and a guest that wants things of its disks.

use random::Random;
use remote::client::{AttachSpec, Client, ClientSpec, Event, Rejected, Request, Standing};
use remote::handshake::{Initiator, Offer, PublicKey, Step};
use remote::wire::{Header, Kind, Op};

use super::judge::{Judge, contents};
use super::wire::{End, Wire};
use super::{BLOCK, Bits, DEVICE, DEVICE_BYTES, MS, NIC, Shape};

/// A disk that the guest has, or waits for.
#[derive(Default)]
struct Disk {
    attachment: Option<u16>,
    is_bound: bool,
    bound_at: u64,
    generation: u64,
    is_leaving: bool,
    returns_at: u64,
    /// What is kept of it.
    standing: Option<Standing>,
    /// Since when each of its requests waits, and how many of other disks have ended since.
    waiting: Vec<(u64, u64, u64)>,
}

pub(crate) struct ClientNode {
    at: usize,
    pub(crate) life: u64,
    client: Client,
    pub(crate) host_key: PublicKey,
    handshake: Option<(Initiator, u64)>,
    hello_due: bool,
    number: u32,
    /// Which host it greets, and which one its session is with.
    host: usize,
    session_host: usize,
    disks: Vec<Disk>,
    nic: Option<u16>,
    pub(crate) submitted: u64,
    ended: Vec<u64>,
    ticked_at: u64,
    events: Vec<Event>,
}

impl ClientNode {
    pub(crate) fn new(
        at: usize,
        shape: &Shape,
        host_key: PublicKey,
        life: u64,
        random: &mut Random,
    ) -> ClientNode {
        let fail_after_ns = shape.fail_after_ns;
        let spec = ClientSpec { instance: random.next(), ring_frames: 256, fail_after_ns };
        let mut client = Client::new(spec, 0);
        let spec = AttachSpec { device: NIC, slots: 1, slot_bytes: 512, keep_bytes: 0 };
        let nic = if shape.floods && at == 0 { client.attach(spec) } else { None };
        ClientNode {
            at,
            life,
            client,
            host_key,
            handshake: None,
            hello_due: false,
            number: random.next() as u32,
            host: random.below(shape.hosts as u64) as usize,
            session_host: 0,
            disks: (0..shape.disks).map(|_| Disk::default()).collect(),
            nic,
            submitted: 0,
            ended: vec![0; shape.disks],
            ticked_at: 0,
            events: Vec::new(),
        }
    }

    /// The guest outlives the process, and so does what was kept of its disks.
    pub(crate) fn succeed(&mut self, before: &ClientNode) {
        for (disk, before) in self.disks.iter_mut().zip(&before.disks) {
            disk.standing = before.standing;
        }
    }

    fn outstanding(&self) -> usize {
        let attachments = self.disks.iter().filter_map(|disk| disk.attachment);
        attachments.map(|one| self.client.outstanding(one)).sum()
    }

    /// All that it wanted was answered.
    pub(crate) fn is_done(&self, shape: &Shape) -> bool {
        self.submitted >= shape.requests && self.outstanding() == 0
    }

    pub(crate) fn state(&self) -> String {
        format!(
            "client {} in life {} at host {}: {} submitted, {} outstanding, bound {:?}, {:?} {:?}",
            self.at,
            self.life,
            self.host,
            self.submitted,
            self.outstanding(),
            self.disks.iter().map(|disk| disk.is_bound).collect::<Vec<_>>(),
            self.client.counts(),
            self.events.iter().rev().take(5).collect::<Vec<_>>(),
        )
    }

    pub(crate) fn due(&self, now: u64, shape: &Shape) -> u64 {
        if self.is_done(shape) {
            return self.client.due().unwrap_or(u64::MAX).max(self.ticked_at + MS);
        }
        let due = self.client.due().unwrap_or(u64::MAX).max(self.ticked_at + 1000);
        let hello = self.handshake.as_ref().map_or(u64::MAX, |(_, at)| *at);
        due.min(hello).min(now + 5 * MS)
    }

    pub(crate) fn receive(&mut self, now: u64, frame: &mut [u8]) {
        if Header::parse(frame).is_ok_and(|header| header.kind == Kind::Sealed) {
            self.client.receive(now, frame, &mut |_, _| {});
            return;
        }
        let Some((initiator, _)) = &mut self.handshake else { return };
        match initiator.receive(frame) {
            Ok(Step::Again) => self.hello_due = true,
            Ok(Step::Done(made)) => {
                assert!(self.client.establish(*made, now));
                (self.handshake, self.session_host) = (None, self.host);
                self.disks.iter_mut().for_each(|disk| disk.is_bound = false);
            }
            Err(_) => {}
        }
    }

    pub(crate) fn hand_over(&mut self, now: u64) {
        for disk in &mut self.disks {
            if let Some(one) = disk.attachment.filter(|_| disk.is_bound && !disk.is_leaving) {
                self.client.release(one);
                disk.is_leaving = true;
                disk.returns_at = now + 20 * MS;
            }
        }
    }

    /// Begins a session with whichever host it likes, though it has one.
    pub(crate) fn wander(&mut self, now: u64, shape: &Shape, random: &mut Random) {
        if self.handshake.is_none() {
            self.begin(now, shape, random);
        }
    }

    fn begin(&mut self, now: u64, shape: &Shape, random: &mut Random) {
        self.host = random.below(shape.hosts as u64) as usize;
        self.number = self.number.wrapping_add(1);
        let offer = Offer::new(shape.is_secret, shape.frame_bytes, 64);
        let identity = super::client_identity(self.at, shape);
        let bits = &mut Bits(random);
        let made = Initiator::new(&identity, self.host_key, self.number, offer, bits);
        self.handshake = Some((made.expect("an initiator"), now));
    }

    pub(crate) fn go_on(
        &mut self,
        now: u64,
        shape: &Shape,
        judge: &mut Judge,
        random: &mut Random,
    ) {
        self.client.tick(now);
        self.ticked_at = now;
        self.greet(now, shape, random);
        self.hear(now, judge);
        for (number, disk) in self.disks.iter_mut().enumerate() {
            let is_wanted = now >= disk.returns_at && self.submitted < shape.requests;
            if disk.attachment.is_none() && is_wanted {
                let (slots, slot_bytes) = (shape.slots, shape.request_bytes_max);
                let device = DEVICE + number as u64;
                let spec = AttachSpec { device, slots, slot_bytes, keep_bytes: shape.keep_bytes };
                disk.attachment = self.client.attach_again(spec, disk.standing);
                disk.is_leaving = false;
            }
        }
        if self.is_done(shape) {
            // Others may want it, too.
            self.hand_over(now);
        }
        for disk in 0..self.disks.len() {
            while self.submitted < shape.requests
                && !self.disks[disk].is_leaving
                && !random.one_in(8)
            {
                if !self.submit(now, disk, shape, judge, random) {
                    break;
                }
            }
        }
        if let Some(nic) = self.nic {
            while self.client.send_net(nic, &[1; 500]) {}
        }
        self.is_in_time(now, shape);
    }

    /// On a wire that works a request ends soon, and others do not overtake it without end.
    fn is_in_time(&self, now: u64, shape: &Shape) {
        for (number, disk) in self.disks.iter().enumerate().filter(|(_, disk)| disk.is_bound) {
            for (tag, since, overtaken) in &disk.waiting {
                let since = (*since).max(disk.bound_at).max(shape.calm_at);
                let waits_ns = now.saturating_sub(since);
                let told = || format!("{tag} waits for {waits_ns} ns at {now}: {}", self.state());
                assert!(waits_ns < shape.bound_ns(), "{}", told());
                let others: u64 = self.ended.iter().sum::<u64>() - self.ended[number] - overtaken;
                let is_fair = !shape.floods || others < 30;
                assert!(is_fair || now < shape.calm_at, "{tag} was overtaken by {others}");
            }
        }
    }

    fn greet(&mut self, now: u64, shape: &Shape, random: &mut Random) {
        let is_stuck = random.one_in(200) && shape.hosts > 1;
        if self.client.wants_session(now) && (self.handshake.is_none() || is_stuck) {
            self.begin(now, shape, random);
        }
        if let Some((_, at)) = &mut self.handshake
            && *at <= now
        {
            *at = now + 100 * MS;
            self.hello_due = true;
        }
    }

    fn hear(&mut self, now: u64, judge: &mut Judge) {
        while let Some(event) = self.client.next_event() {
            self.events.push(event);
            let disk_of = |disks: &mut [Disk], attachment| {
                disks.iter().position(|disk| disk.attachment == Some(attachment))
            };
            match event {
                Event::Bound { generation, attachment, .. } => {
                    let Some(number) = disk_of(&mut self.disks, attachment) else { continue };
                    let disk = &mut self.disks[number];
                    (disk.is_bound, disk.bound_at, disk.generation) = (true, now, generation);
                    judge.bound(self.at, number, generation);
                }
                Event::Stands { attachment, standing } => {
                    if let Some(number) = disk_of(&mut self.disks, attachment) {
                        self.disks[number].standing = standing;
                    }
                    self.client.stands(attachment);
                }
                Event::Over { attachment, .. } => {
                    self.answers(judge);
                    let Some(number) = disk_of(&mut self.disks, attachment) else {
                        self.client.detach(attachment);
                        let spec =
                            AttachSpec { device: NIC, slots: 1, slot_bytes: 512, keep_bytes: 0 };
                        self.nic = self.client.attach(spec);
                        continue;
                    };
                    assert_eq!(self.client.outstanding(attachment), 0);
                    self.client.detach(attachment);
                    let Disk { returns_at, standing, .. } = self.disks[number];
                    let returns_at = returns_at.max(now + MS);
                    self.disks[number] = Disk { returns_at, standing, ..Disk::default() };
                }
                Event::SessionEnded => {
                    self.disks.iter_mut().for_each(|disk| disk.is_bound = false);
                }
                _ => {}
            }
        }
        self.answers(judge);
    }

    fn answers(&mut self, judge: &mut Judge) {
        while let Some(finished) = self.client.next_finished() {
            judge.answered(finished.tag, finished.status, self.client.data(&finished));
            let number = self.disks.iter().position(|disk| {
                let is_it = |one: &(u64, u64, u64)| one.0 == finished.tag;
                disk.waiting.iter().any(is_it)
            });
            let number = number.expect("what was asked");
            self.disks[number].waiting.retain(|one| one.0 != finished.tag);
            self.ended[number] += 1;
            self.client.free(finished);
        }
    }

    fn submit(
        &mut self,
        now: u64,
        disk: usize,
        shape: &Shape,
        judge: &mut Judge,
        random: &mut Random,
    ) -> bool {
        let Some(attachment) = self.disks[disk].attachment else { return false };
        if self.client.outstanding(attachment) >= usize::from(shape.slots) {
            return false;
        }
        let id = 1 + self.submitted + ((self.at as u64 + 1) << 32);
        let op = match random.below(20) {
            0..=8 => Op::Write { sync: random.one_in(5) },
            9..=15 => Op::Read,
            16..=17 => Op::Flush,
            18 => Op::Discard,
            _ => Op::WriteZeroes { unmap: random.one_in(2), sync: random.one_in(2) },
        };
        let blocks = 1 + random.below(u64::from(shape.request_bytes_max) / BLOCK as u64);
        let blocks = if random.one_in(3) { blocks } else { 1 + random.below(blocks.min(8)) };
        let len = blocks as u32 * BLOCK as u32;
        let places = (DEVICE_BYTES as u64 - u64::from(len)) / BLOCK as u64 + 1;
        let offset = random.below(places) * BLOCK as u64;
        // The place of a flush means nothing: here it says which one it is.
        let (offset, len) = if op == Op::Flush { (id, 0) } else { (offset, len) };
        let request = Request { op, offset, len, tag: id };
        let filled = |into: &mut [u8]| {
            into.copy_from_slice(&contents(id, len));
            true
        };
        match self.client.submit(attachment, request, filled) {
            Ok(()) => {
                judge.submitted(self.at, disk, self.disks[disk].generation, request);
                let others = self.ended.iter().sum::<u64>() - self.ended[disk];
                self.disks[disk].waiting.push((id, now, others));
                self.submitted += 1;
                true
            }
            Err(Rejected::Full | Rejected::Over) => false,
            Err(other) => panic!("{other}"),
        }
    }

    pub(crate) fn transmit(
        &mut self,
        now: u64,
        buffer: &mut [u8],
        wire: &mut Wire,
        random: &mut Random,
    ) {
        if let (true, Some((initiator, _))) = (self.hello_due, &self.handshake) {
            wire.send(now, End::Host(self.host), self.at, initiator.hello(), random);
        }
        self.hello_due = false;
        while let Some(len) = self.client.poll_transmit(now, buffer) {
            wire.send(now, End::Host(self.session_host), self.at, &buffer[..len], random);
        }
    }
}
