//! One link of an IOhost: its socket, the sessions of its clients, and the rings through which it has their
//! requests served.
//!
//! Not the protocol (`remote`), nor who opens devices and shakes hands (control). A request goes into the ring of
//! its attachment before queues are visited, and its answer leaves after completions were reaped: in one pass,
//! when the back-end answers at once. Called by `walk`.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend::link::{Address, LinkNic, LinkSocket};
use remote::handshake::{Gate, Randomness, Verdict};
use remote::iohost::{Host, HostEvent, HostSpec, Work, shard_of};
use remote::saved::{Reader, Writer};
use remote::wire::{Header, Kind, Status, Verifier};
use schedule::Nanos;

use super::clock::Clock;
use super::greets::Greets;
use super::initiator::{Ended, Initiator};
use super::memory::AttachmentMemory;
use super::nics::HostNics;
use super::{FromHost, ToHost};
use crate::counters::{AttachmentCounters, HostLinkCounters, SessionCounters};
use crate::served::QueueKey;

/// Between two words of hellos that cannot be read: anybody can send any number.
const UNREADABLE_INTERVAL_NS: u64 = 100_000_000;
/// Frames received in one pass, and sent in one.
const FRAMES_PER_PASS: u32 = 64;
/// How often a client is told that its session is over: one frame may be lost.
const FAREWELLS: u32 = 3;
/// How often it is shown how the ways of sessions are, at most.
const SHOW_NS: u64 = 100_000_000;

/// What a link of an IOhost is made of.
pub struct HostLinkSpec {
    /// Its socket.
    pub socket: LinkSocket,
    /// Bounds of its sessions.
    pub host: HostSpec,
    /// What looks at hellos.
    pub gate: Gate,
    /// For the gate's secrets.
    pub randomness: Box<dyn Randomness + Send>,
    /// How long the machine was suspended so far, nanoseconds: leases go on meanwhile, and a sidecore's clock does
    /// not.
    pub suspended_ns: fn() -> u64,
    /// Where its work is counted.
    pub counters: Arc<HostLinkCounters>,
    /// Where it is shown how the way of each session is, by the low half of the session's number.
    pub sessions: Arc<[SessionCounters]>,
}

/// A hello that passed the gate. One of few places is taken until it is dropped.
#[derive(Debug)]
pub struct Greeting {
    pub(super) bytes: Box<[u8]>,
    pub(super) place: Arc<AtomicBool>,
    /// Where it came from, and the answer goes.
    pub from: Address,
    /// The number of the session, reserved as long as this lives.
    pub number: u32,
    /// Frames that its client may have under way.
    pub credit: u32,
}

impl Greeting {
    /// The frame.
    pub fn hello(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        self.place.store(false, Ordering::Release);
    }
}

/// A device that control has opened for a client.
#[derive(Debug)]
pub struct Opened {
    /// What its storage is.
    pub verifier: Verifier,
    /// Which image it is ([`Host::identify`]).
    pub image: u64,
    /// As long as [`HostEvent::Open`] said.
    pub memory: AttachmentMemory,
    /// The queue that serves it, which stands on that memory and is attached to the link's sidecore, before or
    /// after this.
    pub key: QueueKey,
    /// Where its work is counted.
    pub counters: Arc<AttachmentCounters>,
}

/// The ring of one attachment.
struct Attachment {
    key: QueueKey,
    initiator: Initiator,
    /// What each slot's request is.
    works: Box<[Option<Work>]>,
    /// The slot of the request that came last.
    latest: u16,
    /// It is among those that have something in flight.
    is_busy: bool,
    /// What was in the ring then was taken back.
    is_withdrawn: bool,
    counters: Arc<AttachmentCounters>,
}

/// What comes of what control says.
pub(super) enum Told {
    Done,
    /// It feeds this queue from now on.
    Feeds(QueueKey),
    /// The hello has another number, and is control's again; none: there is no number, and the hello is dropped.
    Reserved(Option<(u32, Greeting)>),
    /// The link's end of a port, if it was here.
    PulledOut {
        export: u16,
        nic: Option<Box<LinkNic>>,
    },
}

/// The link.
pub struct HostLink {
    socket: LinkSocket,
    host: Host<AttachmentMemory>,
    /// Which of its link's it is; hellos come to the first.
    shard: usize,
    gate: Gate,
    randomness: Box<dyn Randomness + Send>,
    clock: Clock,
    /// By the low half of a session's number: the number, and where its client is.
    clients: Box<[Option<(u32, Address)>]>,
    /// By export.
    attachments: Vec<Option<Box<Attachment>>>,
    /// Exports with something in flight.
    busy: Vec<u16>,
    /// Exports whose queue is to be woken.
    pub(super) to_wake: Vec<QueueKey>,
    greets: Greets,
    nics: HostNics,
    due: Option<u64>,
    /// Memory that nobody needs any more, for control to give back to the kernel.
    spent: Vec<AttachmentMemory>,
    counters: Arc<HostLinkCounters>,
    sessions: Arc<[SessionCounters]>,
    /// When it was shown how the sessions' ways are.
    shown_at: u64,
    /// From when on control is told of a hello that cannot be read.
    unreadable_due: u64,
}

impl HostLink {
    /// Without devices or sessions. Takes the memory for all of them but their slots.
    pub fn new(spec: HostLinkSpec) -> HostLink {
        let HostLinkSpec { socket, host, gate, randomness, suspended_ns, counters, sessions } =
            spec;
        let (sessions_max, shard) = (host.sessions_max.min(1 << 16), usize::from(host.shard));
        HostLink {
            socket,
            host: Host::new(host),
            shard,
            gate,
            randomness,
            clock: Clock::new(suspended_ns),
            clients: vec![None; sessions_max].into(),
            attachments: Vec::new(),
            busy: Vec::new(),
            to_wake: Vec::new(),
            greets: Greets::new(),
            nics: HostNics::default(),
            due: None,
            spent: Vec::new(),
            counters,
            sessions,
            shown_at: 0,
            unreadable_due: 0,
        }
    }

    /// When something is to be done although nothing comes.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.due.map(|due| self.clock.sidecores(due))
    }

    /// Whether something is here that its descriptor says nothing of.
    pub(super) fn has_some(&self) -> bool {
        let has_used = |export: &u16| {
            self.attachment(*export).is_some_and(|attachment| attachment.initiator.has_used())
        };
        self.socket.has_some() || self.nics.have_some() || self.busy.iter().any(has_used)
    }

    /// Whether it feeds that queue.
    pub(super) fn feeds(&self, key: QueueKey) -> bool {
        self.attachments.iter().flatten().any(|attachment| attachment.key == key)
    }

    fn attachment(&self, export: u16) -> Option<&Attachment> {
        self.attachments.get(usize::from(export))?.as_deref()
    }

    /// Takes what came, and puts requests into their rings. What it did, in frames and requests.
    pub(super) fn feed(&mut self, now: Nanos, tell: &mut dyn FnMut(FromHost)) -> u32 {
        let is_due = self.due().is_some_and(|due| due <= now) || !self.busy.is_empty();
        let mut time = is_due.then(|| self.clock.read(now));
        let frames = self.receive(now, &mut time, tell);
        let Some(now) = time else { return 0 };
        self.nics.tell(&self.host);
        if is_due {
            self.host.tick(now);
            self.withdraw(now);
        }
        self.gate.tick(now, self.randomness.as_mut());
        let mut asked = 0;
        while let Some(work) = self.host.next_work(now) {
            asked += 1;
            self.ask(work);
        }
        if asked > 0 {
            self.counters.requests.add(asked.into());
            self.publish();
        }
        if frames > 0 {
            self.count(now);
        }
        frames + asked
    }

    /// Frames that came, at most so many. What time it is, is asked when there is one.
    fn receive(
        &mut self,
        now: Nanos,
        time: &mut Option<u64>,
        tell: &mut dyn FnMut(FromHost),
    ) -> u32 {
        let HostLink { socket, host, gate, greets, nics, clock, counters, shard, .. } = self;
        let unreadable_due = &mut self.unreadable_due;
        for came in 0..FRAMES_PER_PASS {
            let Some((from, frame)) = socket.receive() else { return came };
            let now = *time.get_or_insert_with(|| clock.read(now));
            counters.frames_in.add(1);
            match Header::parse(frame).map(|header| (header.kind, shard_of(header.session))) {
                // The kernel steers by the same bits: it was told something else, or joined frames of two sessions.
                Ok((_, of)) if of != *shard => counters.frames_misplaced.add(1),
                Ok((Kind::Sealed, _)) => {
                    host.receive(now, frame, &mut |export, net| nics.hear(export, net));
                }
                Ok((Kind::Hello, _)) => {
                    counters.hellos.add(1);
                    match gate.look(frame, from.as_bytes()) {
                        Verdict::Drop => {
                            counters.hellos_strange.add(1);
                            if now >= *unreadable_due {
                                *unreadable_due = now + UNREADABLE_INTERVAL_NS;
                                tell(FromHost::Unreadable(from));
                            }
                        }
                        // A stranger may be anywhere, also where nobody is: what waits for such neighbours takes the
                        // room of all.
                        Verdict::Cookie(cookie) => match socket.is_congested() {
                            true => counters.greets_dropped.add(1),
                            false => {
                                counters.cookies.add(1);
                                send(socket, &cookie, from);
                            }
                        },
                        Verdict::Pass => match greets.greet(host, now, frame, from) {
                            Some(greeting) => tell(FromHost::Hello(greeting)),
                            None => counters.greets_dropped.add(1),
                        },
                    }
                }
                _ => counters.frames_dropped.add(1),
            }
        }
        FRAMES_PER_PASS
    }

    /// A request goes into its ring, or is answered when no disk can do it.
    fn ask(&mut self, work: Work) {
        let (export, slot) = (work.export, work.slot());
        let Some(attachment) =
            self.attachments.get_mut(usize::from(export)).and_then(Option::as_mut)
        else {
            return self.host.finish(work, Status::IoError);
        };
        let Some(place) = attachment.works.get_mut(usize::from(slot)) else {
            return self.host.finish(work, Status::IoError);
        };
        if !attachment.initiator.add(slot, work.op, work.offset, work.len) {
            self.counters.refused.add(1);
            return self.host.finish(work, Status::IoError);
        }
        *place = Some(work);
        (attachment.latest, attachment.is_withdrawn) = (slot, false);
        if !std::mem::replace(&mut attachment.is_busy, true) {
            self.busy.push(export);
        }
    }

    /// Shows their queues what was put into rings.
    fn publish(&mut self) {
        for export in &self.busy {
            let attachment =
                self.attachments.get_mut(usize::from(*export)).and_then(Option::as_mut);
            if let Some(attachment) = attachment
                && attachment.initiator.publish()
            {
                self.to_wake.push(attachment.key);
            }
        }
    }

    /// Takes what ended out of the rings, and sends what is to be said. What it did, in requests and frames.
    pub(super) fn harvest(&mut self, now: Nanos, tell: &mut dyn FnMut(FromHost)) -> u32 {
        let now = self.clock.known(now);
        let ended = self.take_used();
        while let Some(memory) = self.spent.pop() {
            tell(FromHost::Spent(memory));
        }
        while let Some(event) = self.host.next_event() {
            self.note(event);
            tell(FromHost::Clients(event));
        }
        let taken = self.nics.take(&mut self.host);
        let sent = self.transmit(now);
        self.socket.flush();
        // What was withdrawn may be there to be asked for again.
        self.due = if ended > 0 { Some(now) } else { self.host.due() };
        if ended + sent > 0 {
            self.count(now);
        }
        ended + sent + taken
    }

    fn take_used(&mut self) -> u32 {
        let HostLink { busy, attachments, host, to_wake, .. } = self;
        let mut ended = 0;
        busy.retain(|export| {
            let Some(attachment) =
                attachments.get_mut(usize::from(*export)).and_then(Option::as_mut)
            else {
                return false;
            };
            ended += attachment.harvest(host);
            // A stable write goes on with its flush.
            if attachment.initiator.publish() {
                to_wake.push(attachment.key);
            }
            attachment.is_busy = attachment.initiator.in_flight() > 0;
            attachment.is_busy
        });
        ended
    }

    /// Frames that are to go, at most so many.
    fn transmit(&mut self, now: u64) -> u32 {
        let HostLink { socket, host, clients, .. } = self;
        for sent in 0..FRAMES_PER_PASS {
            let is_sent = socket.send(|buffer| {
                // A frame for nobody is as good as lost.
                loop {
                    let (session, len) = host.poll_transmit(now, buffer)?;
                    let client = clients.get((session & 0xffff) as usize).copied().flatten();
                    if let Some((_, to)) = client.filter(|(number, _)| *number == session) {
                        return Some((len, to));
                    }
                }
            });
            if !is_sent {
                return sent;
            }
            self.counters.frames_out.add(1);
        }
        FRAMES_PER_PASS
    }

    /// What is in a ring, and its client's lease is over: it must not go to the disk any more.
    fn withdraw(&mut self, now: u64) {
        let HostLink { busy, attachments, host, counters, .. } = self;
        for export in &*busy {
            let attachment = attachments.get_mut(usize::from(*export)).and_then(Option::as_mut);
            let Some(attachment) = attachment.filter(|one| !one.is_withdrawn) else { continue };
            if attachment.any_work().is_some_and(|work| !host.may_go(work, now)) {
                attachment.is_withdrawn = true;
                attachment.initiator.withdraw();
                counters.withdrawals.add(1);
            }
        }
    }

    /// What an event means for the link itself.
    fn note(&mut self, event: HostEvent) {
        match event {
            HostEvent::SessionBegan { session, .. } => {
                self.greets.proven(session);
                self.counters.sessions.add(1);
            }
            HostEvent::SessionEnded { session } => {
                self.counters.sessions.set(self.counters.sessions.get().saturating_sub(1));
                let client = self.clients.get_mut((session & 0xffff) as usize);
                if let Some(client) = client.filter(|one| one.is_some_and(|(n, _)| n == session)) {
                    *client = None;
                }
            }
            HostEvent::Open { .. } | HostEvent::LetGo { .. } => {}
        }
    }

    /// Does what control says.
    pub(super) fn told(&mut self, told: ToHost, now: Nanos) -> Told {
        let now = self.clock.read(now);
        // What is said has consequences at once, whether or not a frame comes.
        self.due = Some(now);
        match told {
            ToHost::Export(spec) => {
                if self.host.export(spec).is_some() {
                    self.attachments.push(None);
                    self.busy.reserve(self.attachments.len() - self.busy.len());
                    self.to_wake.reserve(self.attachments.len() - self.to_wake.len());
                }
            }
            ToHost::Update { export, size, features } => {
                self.host.update(export, size, features);
            }
            ToHost::SetClients { export, clients } => self.host.set_clients(export, clients),
            ToHost::Remove { export } => self.host.remove(export),
            ToHost::Answer { greeting, made, answer } => {
                let number = made.mine;
                let place = self.clients.get_mut((number & 0xffff) as usize);
                if let Some(place) = place
                    && self.greets.establish(&mut self.host, now, *made)
                {
                    *place = Some((number, greeting.from));
                    send(&mut self.socket, &answer, greeting.from);
                }
            }
            ToHost::Opened { export, opened: Some(opened), .. } => {
                return self.opened(export, *opened).map_or(Told::Done, Told::Feeds);
            }
            ToHost::Reserve { greeting, client } => {
                return Told::Reserved(self.greets.reserve(&mut self.host, now, greeting, &client));
            }
            ToHost::Busy { export } => self.host.busy(export),
            ToHost::Elsewhere { export, generation, is_answer } => match is_answer {
                true => self.host.refer(export, generation),
                false => self.host.elsewhere(export, generation),
            },
            ToHost::ComesFree { export } => self.host.comes_free(export),
            ToHost::PullOut { export } => {
                return Told::PulledOut { export, nic: self.nics.pull_out(export) };
            }
            ToHost::Opened { export, generation, opened: None } => {
                self.host.raise(export, generation);
                self.host.opened(export, Err(()));
            }
            ToHost::NicOpened { export, memory } => {
                self.nics.opened(export);
                // It never changes, and nothing of it can be lost.
                self.host.opened(export, Ok((Verifier::default(), memory)));
            }
            ToHost::PlugIn { export, nic } => self.nics.plug_in(export, nic),
            ToHost::Unplug { export } => self.nics.unplug(export),
            ToHost::TakeOver { export, saved, for_ns } => {
                self.take_over(export, &saved, now.saturating_add(for_ns));
            }
            ToHost::LetGo { export, is_synced } => self.let_go(export, is_synced),
        }
        Told::Done
    }

    fn take_over(&mut self, export: u16, saved: &[u8], until: u64) {
        // Control has looked at it before, and else the client begins with nothing.
        let _ = self.host.take_over(export, &mut Reader(saved), until);
    }

    fn let_go(&mut self, export: u16, is_synced: bool) {
        if let Some(place) = self.attachments.get_mut(usize::from(export)) {
            *place = None;
        }
        self.spent.extend(self.host.let_go(export, is_synced));
    }

    fn opened(&mut self, export: u16, opened: Opened) -> Option<QueueKey> {
        let place = self.attachments.get_mut(usize::from(export))?;
        let Opened { verifier, image, memory, key, counters } = opened;
        *place = Some(Box::new(Attachment {
            key,
            initiator: Initiator::new(&memory),
            works: (0..memory.slots()).map(|_| None).collect(),
            latest: 0,
            is_busy: false,
            is_withdrawn: false,
            counters,
        }));
        self.host.identify(export, image);
        self.host.opened(export, Ok((verifier, memory)));
        Some(key)
    }

    /// Its socket, for whoever is to have it next.
    pub fn socket(&self) -> &LinkSocket {
        &self.socket
    }

    /// Takes what ended out of the rings, their queues being elsewhere. [`HostLink::save`] says of the rest that it was not
    /// executed, which is true then.
    pub fn come_to_rest(&mut self) {
        self.take_used();
    }

    /// What another process is to know of a device, after [`HostLink::come_to_rest`]; if anything.
    pub fn save(&self, export: u16) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.host.save(export, &mut Writer(&mut bytes)).then_some(bytes)
    }

    /// Tells all clients that their sessions are over: they begin others at once, with whoever has its address then.
    pub fn farewell(&mut self) {
        let HostLink { socket, host, clients, .. } = self;
        for (session, to) in clients.iter().flatten() {
            for _ in 0..FAREWELLS {
                socket.send(|place| host.farewell(*session, place).map(|len| (len, *to)));
            }
        }
        socket.flush();
    }

    /// What is readable (level) while frames wait: its socket, and the bells of its NICs. A bell is its port's, too, and
    /// may ring for as long as that one lives.
    pub(super) fn bells(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone {
        std::iter::once(self.socket.poll_fd()).chain(self.nics.bells())
    }

    /// That of one of its NICs.
    pub(super) fn bell(&self, export: u16) -> Option<BorrowedFd<'_>> {
        self.nics.bell(export)
    }

    fn count(&mut self, now: u64) {
        if now.saturating_sub(self.shown_at) >= SHOW_NS {
            self.shown_at = now;
            let losses = self.socket.losses();
            self.counters.lost_in.set(losses.received + losses.overrun);
            self.counters.lost_out.set(losses.sent);
            for (number, stats) in self.host.stats() {
                if let Some(place) = self.sessions.get((number & 0xffff) as usize) {
                    place.show(number, &stats);
                }
            }
        }
        let (counters, seen) = (&self.counters, self.host.counts());
        counters.frames_unknown.set(seen.frames_dropped);
        counters.records_stale.set(seen.records_stale);
        counters.conflicts.set(seen.conflicts);
        counters.mismatches.set(seen.mismatches);
        counters.violations.set(seen.violations);
        counters.leases_over.set(seen.leases_over);
    }
}

impl Attachment {
    /// One that is under way: all of them are of one session.
    #[inline]
    fn any_work(&self) -> Option<&Work> {
        let latest = self.works.get(usize::from(self.latest)).and_then(Option::as_ref);
        latest.or_else(|| self.works.iter().flatten().next())
    }

    /// Tells how requests ended that the ring gives back; how many there were.
    #[inline]
    fn harvest(&mut self, host: &mut Host<AttachmentMemory>) -> u32 {
        let (mut ended, mut bytes, mut errors) = (0, 0, 0);
        while let Some((slot, how)) = self.initiator.take_used() {
            let Some(work) = self.works.get_mut(usize::from(slot)).and_then(Option::take) else {
                continue;
            };
            ended += 1;
            match how {
                Ended::With(status) => {
                    bytes += u64::from(work.len);
                    errors += u64::from(status != Status::Ok);
                    host.finish(work, status);
                }
                Ended::Untouched => host.withdraw(work),
            }
        }
        if ended > 0 {
            let counters = &self.counters;
            counters.requests.add(ended.into());
            counters.bytes.add(bytes);
            counters.errors.add(errors);
            counters.in_flight.set(self.initiator.in_flight().into());
            counters.faults.set(self.initiator.faults());
        }
        ended
    }
}

/// Sends a frame that is no session's.
fn send(socket: &mut LinkSocket, frame: &[u8], to: Address) {
    socket.send(|place| {
        place.get_mut(..frame.len())?.copy_from_slice(frame);
        Some((frame.len(), to))
    });
}

impl fmt::Debug for HostLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostLink").field("socket", &self.socket).finish_non_exhaustive()
    }
}
