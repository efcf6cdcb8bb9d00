//! A client of a world: the protocol's end, its handshakes, and a guest that wants things.

use random::Random;
use remote::client::{AttachSpec, Client, ClientSpec, Event, Over, Rejected, Request};
use remote::handshake::{Identity, Initiator, Offer, PublicKey, Step};
use remote::wire::{Header, Kind, Op};

use super::judge::{Judge, contents};
use super::wire::{End, Wire};
use super::{BLOCK, Bits, DEVICE, DEVICE_BYTES, MS, Shape};

pub(crate) struct ClientNode {
    at: usize,
    pub(crate) life: u64,
    pub(crate) client: Client,
    pub(crate) host_key: PublicKey,
    identity: Identity,
    handshake: Option<(Initiator, u64)>,
    hello_due: bool,
    number: u32,
    attachment: Option<u16>,
    is_bound: bool,
    generation: u64,
    is_leaving: bool,
    returns_at: u64,
    pub(crate) submitted: u64,
    ticked_at: u64,
    frame_bytes: u16,
    pub(crate) overs: Vec<Over>,
    pub(crate) events: Vec<Event>,
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
        ClientNode {
            at,
            life,
            client: Client::new(spec, 0),
            host_key,
            identity: match shape.is_secret {
                true => Identity::Key([20 + at as u8; 32]),
                false => Identity::None,
            },
            handshake: None,
            hello_due: false,
            number: random.next() as u32,
            attachment: None,
            is_bound: false,
            generation: 0,
            is_leaving: false,
            returns_at: 0,
            submitted: 0,
            ticked_at: 0,
            frame_bytes: shape.frame_bytes,
            overs: Vec::new(),
            events: Vec::new(),
        }
    }

    /// All that it wanted was answered.
    pub(crate) fn is_done(&self, shape: &Shape) -> bool {
        let outstanding = self.attachment.map_or(0, |one| self.client.outstanding(one));
        self.submitted >= shape.requests && outstanding == 0
    }

    pub(crate) fn state(&self) -> String {
        format!(
            "client {} in life {}: {} submitted, {:?} outstanding, bound {}, {:?} {:?}",
            self.at,
            self.life,
            self.submitted,
            self.attachment.map(|one| self.client.outstanding(one)),
            self.is_bound,
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

    pub(crate) fn receive(&mut self, now: u64, frame: &mut [u8], random: &mut Random) {
        if Header::parse(frame).is_ok_and(|header| header.kind == Kind::Sealed) {
            self.client.receive(now, frame, &mut |_, _| {});
            return;
        }
        let Some((initiator, _)) = &mut self.handshake else { return };
        match initiator.receive(frame) {
            Ok(Step::Again) => self.hello_due = true,
            Ok(Step::Done(made)) => {
                assert!(self.client.establish(&made, now));
                self.handshake = None;
            }
            Err(_) => {}
        }
        let _ = random;
    }

    pub(crate) fn hand_over(&mut self, now: u64) {
        if let Some(one) = self.attachment.filter(|_| self.is_bound && !self.is_leaving) {
            self.client.release(one);
            self.is_leaving = true;
            self.returns_at = now + 20 * MS;
        }
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
        self.greet(now, random);
        self.hear(now, judge);
        if self.attachment.is_none() && now >= self.returns_at && self.submitted < shape.requests {
            let spec = AttachSpec {
                device: DEVICE,
                slots: shape.slots,
                slot_bytes: shape.request_bytes_max,
            };
            self.attachment = self.client.attach(spec);
            self.is_leaving = false;
        }
        if self.is_done(shape) {
            // Others may want it, too.
            self.hand_over(now);
        }
        while self.submitted < shape.requests && !self.is_leaving && !random.one_in(8) {
            if !self.submit(shape, judge, random) {
                break;
            }
        }
    }

    fn greet(&mut self, now: u64, random: &mut Random) {
        if self.handshake.is_none() && self.client.wants_session(now) {
            self.number = self.number.wrapping_add(1);
            let is_secret = !matches!(self.identity, Identity::None);
            let offer = Offer::new(is_secret, self.frame_bytes, 64);
            let made = Initiator::new(
                &self.identity,
                self.host_key,
                self.number,
                offer,
                &mut Bits(random),
            );
            self.handshake = Some((made.expect("an initiator"), now));
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
            match event {
                Event::Bound { generation, .. } => {
                    self.is_bound = true;
                    self.generation = generation;
                    judge.bound(self.at, generation);
                }
                Event::Over { why, .. } => {
                    self.overs.push(why);
                    self.answers(judge);
                    if why != Over::Released {
                        judge.knows_of_loss(self.at);
                    }
                    if let Some(one) = self.attachment.take() {
                        assert_eq!(self.client.outstanding(one), 0);
                        self.client.detach(one);
                    }
                    (self.is_bound, self.is_leaving) = (false, false);
                    self.generation = 0;
                    self.returns_at = self.returns_at.max(now + MS);
                }
                _ => {}
            }
        }
        self.answers(judge);
    }

    fn answers(&mut self, judge: &mut Judge) {
        while let Some(finished) = self.client.next_finished() {
            judge.answered(finished.tag, finished.status, self.client.data(&finished));
            self.client.free(finished);
        }
    }

    fn submit(&mut self, shape: &Shape, judge: &mut Judge, random: &mut Random) -> bool {
        let Some(attachment) = self.attachment else { return false };
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
        let data = if op.has_data() { contents(id, len) } else { Vec::new() };
        let request = Request { op, offset, len, tag: id };
        match self.client.submit(attachment, request, &data) {
            Ok(()) => {
                judge.submitted(id, self.at, self.generation, request);
                self.submitted += 1;
                true
            }
            Err(Rejected::Full | Rejected::Over) => false,
            Err(Rejected::Length) => panic!("a length that fits was rejected"),
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
            wire.send(now, End::Host, self.at, initiator.hello(), random);
        }
        self.hello_due = false;
        while let Some(len) = self.client.poll_transmit(now, buffer) {
            wire.send(now, End::Host, self.at, &buffer[..len], random);
        }
    }
}
