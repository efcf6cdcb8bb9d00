//! The IOhost's end of a link: what its clients may have, and which of them are there.
//!
//! Not here: what is done for them (`host`), nor the protocol (`remote::iohost`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::link::LinkSocket;
use config::plan::{LinkEnd, LinkPlan};
use remote::handshake::{Gate, Identity, PublicKey, public_key};
use remote::iohost::HostSpec;
use sidecore::{HostLink, HostLinkCounters, HostLinkSpec, Link, SessionCounters, ToHost};

use super::clients::{Clients, Place, SESSIONS_MAX, Who};
use super::error::{Crowded, LinkKeyError};
use super::export::{Export, Had};
use super::greeter::{System, random};
use super::ports::Counted;
use super::sockets::RING_FRAMES;
use crate::clock::suspended_ns;

/// It.
pub(super) struct Serving {
    public: PublicKey,
    /// By number: devices in the order in which they were exported.
    exports: Vec<Export>,
    /// By shard.
    parts: Vec<ShardParts>,
    /// Sessions that have begun, and whose they are.
    clients: BTreeMap<u32, String>,
    /// Where clients are.
    pub(super) assigned: Clients,
    /// Ports of NICs that clients may have, by number.
    ports: BTreeMap<u32, Counted>,
    /// For what clients have outstanding, at all shards.
    memory_bytes: usize,
}

/// What is shown of one shard.
pub(super) struct ShardParts {
    pub(super) counters: Arc<HostLinkCounters>,
    /// How the ways of its sessions are, by the low half of their numbers.
    pub(super) sessions: Arc<[SessionCounters]>,
}

impl ShardParts {
    fn new() -> ShardParts {
        let sessions = (0..SESSIONS_MAX).map(|_| SessionCounters::default()).collect();
        ShardParts { counters: Arc::default(), sessions }
    }
}

impl Serving {
    /// Of a link with so many shards.
    ///
    /// # Errors
    /// Its key is of no use.
    pub(super) fn new(identity: &Identity, shards: usize) -> Result<Serving, LinkKeyError> {
        let public = match identity {
            Identity::None => [0; 32],
            Identity::Key(key) => public_key(key).map_err(LinkKeyError::Public)?,
        };
        let parts = (0..shards.max(1)).map(|_| ShardParts::new()).collect();
        Ok(Serving {
            public,
            exports: Vec::new(),
            parts,
            clients: BTreeMap::new(),
            assigned: Clients::default(),
            ports: BTreeMap::new(),
            memory_bytes: 0,
        })
    }

    /// A shard of the link, for its sidecore.
    pub(super) fn make(&mut self, plan: &LinkPlan, shard: usize, socket: LinkSocket) -> Link {
        let memory_bytes = match &plan.end {
            LinkEnd::Iohost { memory_bytes, .. } => *memory_bytes as usize,
            LinkEnd::Client { .. } => 0,
        };
        self.memory_bytes = memory_bytes;
        let parts = self.parts.get(shard);
        let counters = parts.map(|one| Arc::clone(&one.counters)).unwrap_or_default();
        let sessions = parts.map_or_else(|| Arc::new([]) as _, |one| Arc::clone(&one.sessions));
        let host = HostSpec {
            sessions_max: SESSIONS_MAX,
            ring_frames: RING_FRAMES,
            memory_max: memory_bytes,
            client_memory_max: memory_bytes,
            instance: random(),
            shard: shard as u8,
        };
        let spec = HostLinkSpec {
            socket,
            host,
            gate: Gate::new(&self.public, 0, &mut System),
            randomness: Box::new(System),
            suspended_ns,
            counters,
            sessions,
        };
        Link::Host(Box::new(HostLink::new(spec)))
    }

    /// It was opened: who had a session or a shard of it before has none any more.
    pub(super) fn begin(&mut self) {
        (self.exports, self.assigned) = (Vec::new(), Clients::default());
        self.clients.clear();
    }

    pub(super) fn parts(&self) -> &[ShardParts] {
        &self.parts
    }

    /// Sessions that have begun, and whose they are.
    pub(super) fn clients(&self) -> &BTreeMap<u32, String> {
        &self.clients
    }

    /// A session of that client has begun, or of nobody: it has ended.
    pub(super) fn note_session(&mut self, session: u32, client: Option<&str>) {
        self.assigned.note(session, client.is_some());
        match client {
            Some(name) => self.clients.insert(session, name.to_string()),
            None => self.clients.remove(&session),
        };
    }

    /// A port was opened for a NIC of its clients.
    pub(super) fn plug_in(&mut self, port: u32, counted: Counted) {
        self.ports.insert(port, counted);
    }

    /// Forgets all ports but those.
    pub(super) fn keep_ports(&mut self, are_kept: impl Fn(u32) -> bool) {
        self.ports.retain(|port, _| are_kept(*port));
    }

    /// The shard of a client that says hello, as [`Clients::assign`] has it.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn assign(
        &mut self,
        who: Who,
        places: &[Place],
        times: (Instant, Duration),
    ) -> Result<usize, Crowded> {
        let exports = &self.exports;
        self.assigned.assign(who, places, times, |who| exports.iter().any(|one| one.is_of(who)))
    }

    /// Ports of NICs, by number.
    pub(super) fn ports(&self) -> &BTreeMap<u32, Counted> {
        &self.ports
    }
}

/// Its exports.
impl Serving {
    pub(super) fn exports(&self) -> &[Export] {
        &self.exports
    }

    pub(super) fn exports_mut(&mut self) -> impl Iterator<Item = (u16, &mut Export)> {
        (0..).zip(&mut self.exports)
    }

    pub(super) fn export(&self, number: u16) -> Option<&Export> {
        self.exports.get(usize::from(number))
    }

    pub(super) fn export_mut(&mut self, number: u16) -> Option<&mut Export> {
        self.exports.get_mut(usize::from(number))
    }

    /// One more that clients may have.
    pub(super) fn add(&mut self, export: Export) {
        self.exports.push(export);
    }

    /// What clients may have by that name.
    pub(super) fn number_of(&self, name: &str) -> Option<u16> {
        let is_it = |one: &Export| one.name() == name && !one.is_removed();
        self.exports.iter().position(is_it).map(|at| at as u16)
    }

    /// The export that a device is: the latest.
    pub(super) fn number_of_device(&self, device: u32) -> Option<u16> {
        let is_it = |one: &Export| one.device() == Some(device);
        self.exports.iter().rposition(is_it).map(|at| at as u16)
    }

    /// Whether a disk is being let go of.
    pub(super) fn lets_go(&self) -> bool {
        self.exports.iter().any(|one| one.loan().is_some_and(|loan| loan.is_leaving()))
    }

    /// A shard wants to have a device opened for a client: who had it before. `Err`: what that shard is told instead.
    pub(super) fn judge(
        &mut self,
        export: u16,
        (shard, session): (usize, u32),
        bytes: usize,
    ) -> Result<Option<Had>, ToHost> {
        let sum: usize = self.exports.iter().map(Export::bytes).sum();
        let who = self.assigned.of_session(session);
        let Some(place) = self.exports.get_mut(usize::from(export)) else {
            return Ok(None);
        };
        if place.is_had() && place.shard() != Some(shard) {
            let generation = place.generation();
            return Err(ToHost::Elsewhere { export, generation, is_answer: true });
        }
        if bytes > self.memory_bytes.saturating_sub(sum) {
            return Err(ToHost::Busy { export });
        }
        Ok(place.give(shard, who, bytes))
    }
}
