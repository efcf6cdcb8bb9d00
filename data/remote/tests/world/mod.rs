//! Two ends and more over a wire from a seed, in made-up time, with a judge of what was executed and answered.
//!
//! Only the public interface of `remote` is used, as a sidecore would. `histories.rs` makes the worlds.

pub(crate) mod client;
pub(crate) mod host;
pub(crate) mod judge;
pub(crate) mod storage;
pub(crate) mod wire;

use random::Random;
use remote::handshake::{Identity, Randomness, public_key};

use client::ClientNode;
use host::HostNode;
use judge::Judge;
use storage::Storage;
use wire::{End, Faults, Wire};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Between two moments at which something may go wrong.
pub(crate) const STEP_NS: u64 = 5 * MS;
/// The first disk; others have the numbers after it.
pub(crate) const DEVICE: u64 = 0xd15c;
pub(crate) const NIC: u64 = 0x71c;
pub(crate) const DEVICE_BYTES: usize = 64 << 10;
pub(crate) const BLOCK: usize = 512;

/// Random bits for keys, from the seed, too.
pub(crate) struct Bits<'a>(pub &'a mut Random);

impl Randomness for Bits<'_> {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.next() as u8);
    }
}

/// What a world is like.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) hosts: usize,
    pub(crate) clients: usize,
    pub(crate) disks: usize,
    /// A NIC has more to send than fits, both ways.
    pub(crate) floods: bool,
    /// Requests of each client.
    pub(crate) requests: u64,
    pub(crate) slots: u16,
    /// Of writes that were not flushed; 0: none.
    pub(crate) keep_bytes: u32,
    pub(crate) is_secret: bool,
    pub(crate) frame_bytes: u16,
    pub(crate) ring_frames: u32,
    /// Each session has one of these.
    pub(crate) leases_ms: Vec<u32>,
    /// T2 of clients, if any.
    pub(crate) fail_after_ns: Option<u64>,
    pub(crate) request_bytes_max: u32,
    pub(crate) faults: Faults,
    /// From then on nothing goes wrong, nor comes late.
    pub(crate) calm_at: u64,
    /// Each once in so many steps of 5 ms on average; 0: never.
    pub(crate) host_dies: u64,
    pub(crate) machine_dies: u64,
    pub(crate) storage_dies: u64,
    pub(crate) client_dies: u64,
    pub(crate) hands_over: u64,
    pub(crate) wanders: u64,
    /// How long the host takes for a request at most, before it goes to the disk and from then on.
    pub(crate) queue_ns: u64,
    pub(crate) work_ns: u64,
}

impl Shape {
    /// How long a request may take on a wire that works: its execution, some round trips, and a timer or two.
    pub(crate) fn bound_ns(&self) -> u64 {
        let round_trip_ns = 2 * (self.faults.delay_ns + self.faults.jitter_ns);
        let once_ns = 800 * MS + self.queue_ns + self.work_ns + 30 * round_trip_ns;
        // All that was not flushed may come before it, one by one; and a flush.
        let others = if self.keep_bytes > 0 { self.requests + 1 } else { 0 };
        once_ns + others * (self.queue_ns + self.work_ns + 3 * round_trip_ns + 20 * MS)
    }
}

pub(crate) fn client_identity(at: usize, shape: &Shape) -> Identity {
    if shape.is_secret { Identity::Key([20 + at as u8; 32]) } else { Identity::None }
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) random: Random,
    pub(crate) shape: Shape,
    pub(crate) wire: Wire,
    hosts: Vec<HostNode>,
    disks: Vec<Storage>,
    pub(crate) clients: Vec<ClientNode>,
    pub(crate) judge: Judge,
    next_step: u64,
    buffer: Vec<u8>,
}

impl World {
    pub(crate) fn new(seed: u64, shape: Shape) -> World {
        let judge = Judge::new(shape.keep_bytes > 0);
        let mut random = Random::new(seed, 0);
        let hosts = (0..shape.hosts).map(|at| HostNode::new(at, &shape, &mut random)).collect();
        let key = match host::identity(&shape) {
            Identity::None => [0; 32],
            Identity::Key(key) => public_key(&key).expect("a key"),
        };
        let clients =
            (0..shape.clients).map(|at| ClientNode::new(at, &shape, key, 0, &mut random)).collect();
        let shape_disks = shape.disks;
        let wire = Wire::new(shape.faults.clone());
        World {
            now: 0,
            random,
            shape,
            wire,
            hosts,
            disks: (0..shape_disks).map(|_| Storage::new()).collect(),
            clients,
            judge,
            next_step: STEP_NS,
            buffer: vec![0; 16 << 10],
        }
    }

    /// Runs until all requests were answered; panics when that does not happen by `until`.
    pub(crate) fn run(&mut self, until: u64) {
        let mut steps = 0u64;
        while !self.is_done() {
            steps += 1;
            assert!(
                self.now < until && steps < 3_000_000,
                "no end at {}: {:#?}",
                self.now,
                self.state()
            );
            let next = self.next_at();
            self.now = self.now.max(next);
            if self.now >= self.next_step {
                self.next_step = self.now + STEP_NS;
                self.misfortunes();
            }
            self.step();
        }
    }

    fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.is_done(&self.shape))
    }

    fn state(&self) -> Vec<String> {
        self.clients.iter().map(ClientNode::state).collect()
    }

    fn next_at(&self) -> u64 {
        let clients = self.clients.iter().map(|client| client.due(self.now, &self.shape)).min();
        let wire = self.wire.due();
        let hosts = self.hosts.iter().filter_map(HostNode::due).min();
        [clients, wire, hosts, Some(self.next_step)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.now)
            .max(self.now)
    }

    fn step(&mut self) {
        while let Some((to, from, mut frame)) = self.wire.arrived(self.now) {
            match to {
                End::Host(at) => {
                    let (wire, random) = (&mut self.wire, &mut self.random);
                    self.hosts[at].receive(self.now, from, &mut frame, wire, random);
                }
                End::Client(at) => self.clients[at].receive(self.now, &mut frame),
            }
        }
        for host in &mut self.hosts {
            host.work(self.now, &mut self.disks, &mut self.judge, &mut self.random);
        }
        for client in &mut self.clients {
            client.go_on(self.now, &self.shape, &mut self.judge, &mut self.random);
        }
        self.transmit();
    }

    fn transmit(&mut self) {
        for client in &mut self.clients {
            client.transmit(self.now, &mut self.buffer, &mut self.wire, &mut self.random);
        }
        for host in &mut self.hosts {
            host.transmit(self.now, &mut self.buffer, &mut self.wire, &mut self.random);
        }
    }

    /// What may go wrong in each step.
    fn misfortunes(&mut self) {
        let shape = self.shape.clone();
        self.wire.misfortunes(self.now, &mut self.random);
        if self.wire.is_healed(self.now) {
            return;
        }
        for host in &mut self.hosts {
            let is_crash = self.random.one_in(shape.machine_dies);
            if is_crash || self.random.one_in(shape.host_dies) {
                let (judge, random) = (&mut self.judge, &mut self.random);
                host.die(self.now, is_crash, &mut self.disks, judge, random);
            }
        }
        // Hosts do not notice when nobody has it: it comes again in another boot.
        for disk in self.disks.iter_mut().filter(|disk| disk.lock.is_none()) {
            if self.random.one_in(shape.storage_dies) {
                disk.crash(&mut self.judge, &mut self.random);
            }
        }
        for at in 0..self.clients.len() {
            if self.random.one_in(shape.client_dies) {
                self.judge.client_died(at);
                let life = self.clients[at].life + 1;
                let key = self.clients[at].host_key;
                let sent = self.clients[at].submitted;
                let mut next = ClientNode::new(at, &shape, key, life, &mut self.random);
                next.succeed(&self.clients[at]);
                next.submitted = sent;
                self.clients[at] = next;
            }
            if self.random.one_in(shape.hands_over) {
                self.clients[at].hand_over(self.now);
            }
            if self.random.one_in(shape.wanders) {
                self.clients[at].wander(self.now, &shape, &mut self.random);
            }
        }
    }
}
