//! The IOhost's end of a link: what its clients may have, and which of them are there.
//!
//! Not here: what is done for them (`host`), nor the protocol (`remote::iohost`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::link::{Address, LinkSocket};
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
use super::strangers::{Strangers, Unread};
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
    /// Whose hellos were refused.
    pub(super) strangers: Box<Strangers>,
    /// When it is looked whether a client is two machines.
    look_at: Option<Instant>,
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
            strangers: Box::default(),
            look_at: None,
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

    /// A session of that client has begun, or of nobody: it has ended. How long one may go on that is forgotten.
    pub(super) fn note_session(
        &mut self,
        session: u32,
        client: Option<&str>,
        (now, patience): (Instant, Duration),
    ) {
        self.assigned.note(session, client.map(|_| now));
        if client.is_some() && self.assigned.has_another(session) {
            self.look_at = Some(now + patience + Duration::from_millis(1));
        }
        match client {
            Some(name) => self.clients.insert(session, name.to_string()),
            None => self.clients.remove(&session),
        };
    }

    /// When it is looked whether a client is two machines.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Whether it is to be looked now, once.
    pub(super) fn takes_look(&mut self, now: Instant) -> bool {
        self.look_at.take_if(|at| *at <= now).is_some()
    }

    /// Which clients are two machines, in words.
    pub(super) fn twins(&self, (now, patience): (Instant, Duration)) -> Vec<String> {
        let words = |(session, [first, second]): (u32, [Address; 2])| {
            let client = self.clients.get(&session).map_or("", String::as_str);
            format!(
                "the key of client {client:?} is used by two machines or daemons, at {first} and {second}: make each \
                 one of its own (`sidecore link key FILE`), and a [[link.client]] for it here; until then each may \
                 wait for what the other has"
            )
        };
        self.assigned.twins(now, patience).map(words).collect()
    }

    /// Hellos that its sidecores refused themselves.
    pub(super) fn unread(&self) -> Unread {
        let seen = self.parts.iter().map(|part| part.counters.snapshot());
        seen.fold(Unread::default(), |unread, seen| Unread {
            unreadable: unread.unreadable + seen.hellos_strange,
            no_room: unread.no_room + seen.greets_dropped,
        })
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

    /// A disk that is being let go of: its name.
    pub(super) fn lets_go(&self) -> Option<&str> {
        let is_leaving = |one: &&Export| one.loan().is_some_and(|loan| loan.is_leaving());
        self.exports.iter().find(is_leaving).map(Export::name)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    const PATIENCE: Duration = Duration::from_secs(21);
    const MIB: usize = 1 << 20;

    /// A link with two shards and two disks, of which clients have 4 MiB.
    fn serving() -> Serving {
        let mut serving = Serving::new(&Identity::None, 2).expect("no key");
        serving.memory_bytes = 4 * MIB;
        for (device, name) in [(7, "d"), (8, "e")] {
            serving.add(Export::of_disk(name.to_string(), device, 0));
        }
        serving
    }

    /// A client with a session at the shard that it gets.
    fn comes(serving: &mut Serving, key: u8, session: u32) -> usize {
        let who = ([key; 32], None);
        let shard = serving.assign(who, &[Place::default(); 2], (now(), PATIENCE)).expect("room");
        let from = Address::udp(([10, 0, 0, key], 7447).into());
        serving.assigned.answered(who, session, from);
        serving.note_session(session, Some("vmhost"), (now(), PATIENCE));
        shard
    }

    fn is_elsewhere(told: &ToHost, of: u16) -> bool {
        matches!(told, ToHost::Elsewhere { export, is_answer: true, .. } if *export == of)
    }

    #[test]
    fn a_disk_is_at_one_shard_and_whoever_asks_at_another_one_is_told_so() {
        let mut serving = serving();
        let shards = (comes(&mut serving, 1, 10), comes(&mut serving, 2, 20));
        assert_eq!(shards, (0, 1));
        assert!(matches!(serving.judge(0, (0, 10), MIB), Ok(None)), "nobody had it before");
        serving.export_mut(0).expect("an export").raise(5);
        let told = serving.judge(0, (1, 20), MIB).expect_err("another client has it");
        assert!(is_elsewhere(&told, 0), "{told:?}");
        // At its own shard it is the shard's to say: a client that comes again has it again.
        let before = serving.judge(0, (0, 10), MIB).expect("it may").expect("who had it");
        serving.export_mut(0).expect("an export").take_back(Some(before));
        assert!(serving.export(0).is_some_and(Export::is_had));
        // The other disk is free for the other client.
        assert!(matches!(serving.judge(1, (1, 20), MIB), Ok(None)));
        assert_eq!(serving.number_of_device(8), Some(1));
    }

    #[test]
    fn what_clients_have_outstanding_together_is_bounded_and_comes_free() {
        let mut serving = serving();
        comes(&mut serving, 1, 10);
        assert!(matches!(serving.judge(1, (0, 10), 4 * MIB + 1), Err(ToHost::Busy { export: 1 })));
        assert!(!serving.export(1).is_some_and(Export::is_had), "a refusal changes nothing");
        assert!(serving.judge(0, (0, 10), 3 * MIB).is_ok());
        assert!(matches!(serving.judge(1, (0, 10), 2 * MIB), Err(ToHost::Busy { export: 1 })));
        assert!(serving.judge(1, (0, 10), MIB).is_ok());
        // Of one that is given up all is free again.
        let one = serving.export_mut(0).expect("an export");
        one.leave(true, sidecore::instant_of(schedule::Nanos(1)));
        assert_eq!((one.is_nowhere(), one.bytes()), (Some(0), 0));
        serving.export_mut(1).expect("an export").take_back(None);
        assert!(serving.judge(1, (0, 10), 4 * MIB).is_ok());
        // An export that there is none of is no reason to refuse others; it says so itself.
        assert!(matches!(serving.judge(9, (0, 10), MIB), Ok(None)));
    }

    #[test]
    fn what_may_be_had_is_found_by_name_and_what_was_removed_is_not() {
        let mut serving = serving();
        assert_eq!((serving.number_of("d"), serving.number_of("x")), (Some(0), None));
        assert!(!serving.export_mut(0).expect("an export").remove(), "nobody has it");
        assert_eq!(serving.number_of("d"), None);
        // One of its name that comes again has a number of its own.
        serving.add(Export::of_disk("d".to_string(), 9, 0));
        assert_eq!((serving.number_of("d"), serving.number_of_device(9)), (Some(2), Some(2)));
        // And one that was opened anew, of which an older number is known, is the latest.
        serving.add(Export::of_disk("f".to_string(), 9, 0));
        assert_eq!(serving.number_of_device(9), Some(3));
    }

    #[test]
    fn a_client_that_is_two_machines_is_looked_for_when_the_first_should_be_gone() {
        let (mut serving, start) = (serving(), now());
        comes(&mut serving, 1, 10);
        assert_eq!(serving.due_at(), None);
        comes(&mut serving, 1, 11);
        let at = serving.due_at().expect("a look");
        assert!(!serving.takes_look(start) && serving.takes_look(at) && !serving.takes_look(at));
        let told = serving.twins((at, PATIENCE)).concat();
        let expected =
            "the key of client \"vmhost\" is used by two machines or daemons, at 10.0.0.1:7447 and";
        assert!(told.starts_with(expected), "{told}");
    }

    #[test]
    fn sessions_come_and_go_and_all_are_over_when_a_link_begins_anew() {
        let mut serving = serving();
        comes(&mut serving, 1, 10);
        comes(&mut serving, 2, 20);
        assert_eq!(serving.clients().len(), 2);
        serving.note_session(10, None, (now(), PATIENCE));
        // A late word of one that is over.
        serving.note_session(10, None, (now(), PATIENCE));
        assert_eq!(serving.clients().keys().copied().collect::<Vec<_>>(), [20]);
        serving.begin();
        assert!(serving.clients().is_empty() && serving.exports().is_empty());
        assert_eq!(serving.assigned.of_session(20), None);
    }
}
