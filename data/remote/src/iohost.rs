//! The IOhost's end: sessions of many clients, and the devices that they are served.
//!
//! Not what executes requests, and not what opens storage. One thread has it. Nothing is allocated for a request
//! once its attachment was bound. A session that has nothing to say costs nothing but when its time has come.
//!
//! ```text
//! reserve(), establish(..)     a handshake has ended      next_event()    a device is to be opened, or let go
//! receive(now, frame)          what came                  opened(..), let_go(..)             it was
//! poll_transmit(now)           what goes, and to whom     next_work(now)  a request; may_go(..), finish(..)
//! tick(now), due()             time                       update(..), remove(..)  a device changes
//! ```
//!
//! # The fence
//!
//! A session ends when its client has acknowledged nothing that was sent within the lease. Its attachments then
//! execute nothing more: what is executing ends, the device is synced and let go, and only then may another client
//! have it. A client fails requests only after it has heard nothing for longer than the lease and the longest time
//! that a request is executed. What it heard last was sent before, and only what was sent so late can prolong the
//! lease: so nothing goes to the disk after the lease, however late frames come, if it is asked once more there
//! ([`Host::may_go`]), and nothing is executed when the client has failed it.

use std::collections::VecDeque;

use crate::SessionStats;
use crate::round::Round;
use crate::session::Hears;
use crate::times::Times;
use crate::wire::{Bind, End, HEADER_BYTES, Header, Malformed, Net, News, Record, Status};

mod about;
mod binding;
mod export;
mod handing;
mod kinds;
mod opens;
mod sessions;

use crate::loss::{Fate, Mark};
use about::{About, Fates};
use export::Export;
pub use handing::check_saved;
pub use kinds::{ExportSpec, HostCounts, HostEvent, HostSpec, SlotMemory, Work};
use opens::Opens;
use sessions::{Peer, Place, Tenant};
pub use sessions::{SHARDS_MAX, shard_of};

/// Messages that stay free for what a session must be told.
const MESSAGES_SPARE: usize = 16;

/// The IOhost's end.
#[derive(Debug)]
pub struct Host<M> {
    spec: HostSpec,
    places: Vec<Place>,
    /// Sessions that have begun, and what each of their clients may have under way.
    proven: usize,
    credit_share: u64,
    exports: Vec<Export<M>>,
    events: VecDeque<HostEvent>,
    memory_used: usize,
    /// Places with something to say; when each may have something to do next; exports with something to execute.
    round: Round,
    times: Times,
    working: Round,
    /// Devices that are kept for clients of a process before this one, and until when.
    reserved: Vec<(u64, u16)>,
    /// Of the frame that is being heard.
    binds: Vec<Bind>,
    opens: Opens,
    names: u64,
    /// The latest time that was told.
    told_at: u64,
    counts: HostCounts,
}

impl<M: SlotMemory> Host<M> {
    /// Without devices or sessions.
    pub fn new(spec: HostSpec) -> Host<M> {
        Host {
            places: Vec::new(),
            proven: 0,
            credit_share: u64::from(spec.ring_frames),
            exports: Vec::new(),
            events: VecDeque::with_capacity(64),
            memory_used: 0,
            round: Round::default(),
            times: Times::default(),
            working: Round::default(),
            reserved: Vec::new(),
            binds: Vec::new(),
            opens: Opens::of_all(),
            names: spec.instance,
            told_at: 0,
            counts: HostCounts::default(),
            spec,
        }
    }

    /// Serves a device from now on: its number. `None`: there are 65,535.
    pub fn export(&mut self, spec: ExportSpec) -> Option<u16> {
        let number = u16::try_from(self.exports.len()).ok().filter(|number| *number < u16::MAX)?;
        self.exports.push(Export::new(number, spec));
        self.working.fit(self.exports.len());
        Some(number)
    }

    /// A name that no other one has, here or at another IOhost; not 0.
    fn next_name(&mut self) -> u64 {
        self.names = self.names.wrapping_add(1).max(1);
        self.names
    }

    /// A frame that came, which is opened in place. `net` gets frames for NICs, in pieces: export, and piece. False when it
    /// was dropped.
    pub fn receive(
        &mut self,
        now: u64,
        frame: &mut [u8],
        net: &mut dyn FnMut(u16, &Net<'_>),
    ) -> bool {
        let is_taken = self.receive_checked(now, frame, net).is_some();
        self.counts.frames_dropped += u64::from(!is_taken);
        is_taken
    }

    fn receive_checked(
        &mut self,
        now: u64,
        frame: &mut [u8],
        net: &mut dyn FnMut(u16, &Net<'_>),
    ) -> Option<()> {
        let header = Header::parse(frame).ok()?;
        let at = self.place_of(header.session)?;
        let end = match self.places.get_mut(at)?.peer_mut() {
            Some(peer) if peer.session.is_dead(now) => None,
            Some(peer) => peer.session.open(now, &header, frame),
            None => self.prove(at, now, &header, frame),
        }?;
        let body = frame.get(HEADER_BYTES..end)?;
        let Tenant::Proven(mut peer) = std::mem::take(&mut self.places.get_mut(at)?.tenant) else {
            return None;
        };
        let mut binds = std::mem::take(&mut self.binds);
        let Peer { session, about, .. } = &mut *peer;
        let mut hearing = Hearing { host: self, about, binds: &mut binds, net };
        let is_borne = session.hear(now, header.counter, body, &mut hearing);
        let is_over = session.is_over;
        self.places[at].tenant = Tenant::Proven(peer);
        self.counts.violations += u64::from(!is_borne);
        if is_over {
            self.end_session(at);
        }
        for bind in &binds {
            self.bind(header.session, bind, now);
        }
        binds.clear();
        self.binds = binds;
        self.round.add(at);
        // What is due already is not put off by what comes.
        self.set_time(at, 0);
        is_borne.then_some(())
    }

    /// What the caller is to do.
    pub fn next_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// A request to be executed, of each device in turn. To be ended by [`Host::finish`]. If it does not go to the
    /// disk at once: [`Host::may_go`].
    pub fn next_work(&mut self, now: u64) -> Option<Work> {
        while let Some(at) = self.working.first() {
            let Some(export) = self.exports.get_mut(at).filter(|one| one.has_work()) else {
                self.working.remove_first();
                continue;
            };
            let session = export.bound().map_or(0, |(number, _)| number);
            if !self.lives(session, now) {
                // The lease is over: not even what has come whole is executed.
                self.working.remove_first();
                if let Some(place) = self.place_of(session) {
                    self.end_dead(place);
                }
                self.exports[at].lose_session(session, &mut self.events);
                continue;
            }
            let work = self.exports[at].next_work();
            self.working.rotate();
            self.stir(at);
            if work.is_some() {
                return work;
            }
        }
        None
    }

    /// Asked right before a request goes to the disk: whether its client may still count on it. Else it must not
    /// go, and is given back by [`Host::withdraw`].
    pub fn may_go(&self, work: &Work, now: u64) -> bool {
        self.exports.get(usize::from(work.export)).is_some_and(|export| {
            let session = export.bound().map_or(0, |(number, _)| number);
            export.may_go(work) && self.lives(session, now)
        })
    }

    fn lives(&self, session: u32, now: u64) -> bool {
        let peer = self.place_of(session).and_then(|at| self.places.get(at)?.peer());
        peer.is_some_and(|peer| peer.about.number == session && !peer.session.is_dead(now))
    }

    /// A request has ended. [`Status::NeverSeen`] and [`Status::Mismatch`] are not for the caller.
    pub fn finish(&mut self, work: Work, status: Status) {
        self.ended(&work, Some(status));
    }

    /// A request was not executed, and will not be: it comes again, or its client is told so.
    pub fn withdraw(&mut self, work: Work) {
        self.ended(&work, None);
    }

    fn ended(&mut self, work: &Work, status: Option<Status>) {
        let at = usize::from(work.export);
        if let Some(one) = self.exports.get_mut(at) {
            one.finish(work, status, &mut self.events);
            self.stir(at);
        }
    }

    /// After a change of a device: its session may have something to say, and it something to execute.
    fn stir(&mut self, at: usize) {
        let Some(export) = self.exports.get(at) else { return };
        if export.has_work() {
            self.working.add(at);
        }
        let (has_answers, bound) = (export.has_answers(), export.bound());
        if let Some((number, handle)) = bound.filter(|_| has_answers)
            && let Some(peer) = self.peer(number)
        {
            peer.about.answering.add(usize::from(crate::index_of(handle)));
            self.wake_peer(number);
        }
    }

    /// A device has another size, or other features. Its revision grows.
    pub fn update(&mut self, export: u16, size: u64, features: u32) {
        let Some(one) = self.exports.get_mut(usize::from(export)) else { return };
        one.news = News { revision: one.news.revision + 1, size, features, ..one.news };
        one.owes_news = one.bound().is_some();
        if let Some((number, _)) = one.bound()
            && let Some(peer) = self.peer(number)
        {
            peer.about.owes_news = true;
            self.wake_peer(number);
        }
    }

    /// Whether a client has this device, and [`Host::send_net`] a place for any frame: `None` when nobody has it.
    pub fn net_room(&self, export: u16) -> Option<bool> {
        let (number, _) = self.exports.get(usize::from(export))?.bound()?;
        let peer = self.places.get(self.place_of(number)?)?.peer()?;
        Some(peer.net.has_room())
    }

    /// A frame of a NIC, to the client that has it; sent once or dropped. False when it was dropped.
    pub fn send_net(&mut self, export: u16, data: &[u8]) -> bool {
        let bound = self.exports.get(usize::from(export)).and_then(Export::bound);
        let is_kept = bound.is_some_and(|(number, handle)| {
            self.peer(number).is_some_and(|peer| peer.net.push(handle, data))
        });
        if let Some((number, _)) = bound.filter(|_| is_kept) {
            self.wake_peer(number);
        }
        self.counts.net_dropped += u64::from(!is_kept);
        is_kept
    }

    /// The next frame to send, into `buffer`: the session, whose client gets it, and its length. `None`: nothing
    /// now. At most 32 of a session at one `now`.
    pub fn poll_transmit(&mut self, now: u64, buffer: &mut [u8]) -> Option<(u32, usize)> {
        self.tick(now);
        while let Some(at) = self.round.first() {
            self.counts.looks += 1;
            let share = self.credit_share;
            let peer = self.places.get_mut(at).and_then(Place::peer_mut);
            let sent = peer.filter(|peer| !peer.session.is_dead(now)).and_then(|peer| {
                peer.session.credit_share = share;
                Some((peer.about.number, transmit(peer, &mut self.exports, now, buffer)?))
            });
            self.set_time(at, now.saturating_add(1));
            if sent.is_some() {
                self.round.rotate();
                return sent;
            }
            self.round.remove_first();
        }
        None
    }

    /// Does what is due by now.
    pub fn tick(&mut self, now: u64) {
        self.told_at = self.told_at.max(now);
        if !self.reserved.is_empty() {
            self.give_away(now);
        }
        while let Some((_, at)) = self.times.first().filter(|(due, _)| *due <= now) {
            self.counts.looks += 1;
            let Some(peer) = self.places.get_mut(at).and_then(Place::peer_mut) else {
                self.times.remove(at);
                continue;
            };
            let mut fates = Fates { about: &mut peer.about, exports: &mut self.exports };
            peer.session.tick(now, &mut fates);
            if peer.session.is_dead(now) {
                self.end_dead(at);
            } else {
                self.round.add(at);
                self.set_time(at, now.saturating_add(1));
            }
        }
    }

    fn end_dead(&mut self, at: usize) {
        let peer = self.places.get(at).and_then(Place::peer);
        let is_silent = peer.is_some_and(|peer| !peer.session.is_over);
        self.counts.leases_over += u64::from(is_silent);
        self.end_session(at);
    }

    /// Notes when this session has something to do next: not before `least`, when all that was due is done.
    fn set_time(&mut self, at: usize, least: u64) {
        match self.places.get(at).and_then(Place::peer) {
            Some(peer) => self.times.set(at, peer.session.due().max(least)),
            None => self.times.remove(at),
        }
    }

    /// A session has something to say, or is over.
    fn wake_peer(&mut self, number: u32) {
        let Some(at) = self.place_of(number) else { return };
        let Some(peer) = self.places.get(at).and_then(Place::peer) else { return };
        if peer.session.is_over {
            self.times.set(at, 0);
        }
        self.round.add(at);
    }

    /// When [`Host::tick`] or [`Host::poll_transmit`] is due, if nothing happens before.
    pub fn due(&self) -> Option<u64> {
        let kept_until = self.reserved.iter().map(|(until, _)| *until).min();
        let next = match self.round.first() {
            Some(_) => Some(self.told_at),
            None => self.times.first().map(|(at, _)| at),
        };
        [kept_until, next].into_iter().flatten().min()
    }

    /// What was dropped.
    pub fn counts(&self) -> HostCounts {
        self.counts
    }

    /// How the way to the client of each session is: of those that have begun, with their numbers.
    pub fn stats(&self) -> impl Iterator<Item = (u32, SessionStats)> {
        let peers = self.places.iter().filter_map(Place::peer);
        peers.map(|peer| (peer.about.number, peer.session.stats()))
    }

    /// Bytes of all attachments' memory.
    pub fn memory_used(&self) -> usize {
        self.memory_used
    }
}

/// Fills a frame of one session.
fn transmit<M: SlotMemory>(
    peer: &mut Peer,
    exports: &mut [Export<M>],
    now: u64,
    buffer: &mut [u8],
) -> Option<usize> {
    let mut out = peer.session.begin(now, buffer)?;
    if out.may_ask {
        let about = &mut peer.about;
        about.say_waiting();
        about.tell_news(exports);
        about.outbox.fill(&mut out);
        let wants = about.answering.first().is_some();
        let may_net = !wants || peer.session.has_room_for_net();
        if may_net && peer.is_net_next {
            peer.net.fill(&mut out);
        }
        about.fill(exports, &mut out);
        if may_net && !peer.is_net_next {
            peer.net.fill(&mut out);
        }
        peer.is_net_next = !peer.is_net_next;
    }
    peer.session.commit(now, out)
}

/// A frame of one session that is being heard.
struct Hearing<'a, M> {
    host: &'a mut Host<M>,
    about: &'a mut About,
    /// Those that the session asks for: done when all of the frame was heard.
    binds: &'a mut Vec<Bind>,
    net: &'a mut dyn FnMut(u16, &Net<'_>),
}

impl<M: SlotMemory> Fate for Hearing<'_, M> {
    fn taken(&mut self, mark: Mark) {
        Fates { about: self.about, exports: &mut self.host.exports }.taken(mark);
    }

    fn lost(&mut self, mark: Mark) {
        Fates { about: self.about, exports: &mut self.host.exports }.lost(mark);
    }
}

impl<M: SlotMemory> Hears for Hearing<'_, M> {
    fn record(&mut self, record: &Record<'_>) -> Result<bool, Malformed> {
        match record {
            Record::Bind(bind) => {
                if self.about.outbox.room() <= MESSAGES_SPARE + self.binds.len() {
                    return Ok(false);
                }
                self.binds.push(*bind);
                Ok(true)
            }
            Record::Release { handle } => {
                self.release(*handle);
                Ok(true)
            }
            Record::Part(part) => {
                self.request(part.handle, |export, counts| export.part(part, counts))
            }
            Record::Recall { handle, slot, turn } => {
                self.request(*handle, |export, _| export.recall(*slot, *turn))
            }
            Record::Net(net) => {
                match self.about.export(&mut self.host.exports, net.handle) {
                    Some(export) => (self.net)(export.number, net),
                    None => self.host.counts.records_stale += 1,
                }
                Ok(true)
            }
            _ => Err(Malformed::Field),
        }
    }
}

impl<M: SlotMemory> Hearing<'_, M> {
    /// What concerns slots of an attachment.
    fn request(
        &mut self,
        handle: u32,
        take: impl FnOnce(&mut Export<M>, &mut HostCounts) -> Result<(), Malformed>,
    ) -> Result<bool, Malformed> {
        let host = &mut *self.host;
        let Some(export) = self.about.export(&mut host.exports, handle) else {
            // It was told why, or will be.
            host.counts.records_stale += 1;
            return Ok(self.about.tell_end(handle, End::Unbound));
        };
        take(export, &mut host.counts)?;
        if export.has_work() {
            host.working.add(usize::from(export.number));
        }
        if export.has_answers() {
            self.about.answering.add(usize::from(crate::index_of(handle)));
        }
        Ok(true)
    }

    /// The client gives it back, or does not wait for it any more.
    fn release(&mut self, handle: u32) {
        let (host, index) = (&mut *self.host, crate::index_of(handle));
        if let Some(export) = self.about.export(&mut host.exports, handle) {
            return export.leave(&mut host.events);
        }
        // It may have been released already: the end was said, or is being said.
        host.counts.records_stale += 1;
        self.binds.retain(|bind| crate::handle(bind.index, bind.binding) != handle);
        if let Some(number) = self.about.waits_for(index)
            && let Some(export) = host.exports.get_mut(usize::from(number))
        {
            export.cancel(self.about.number, handle);
        }
    }
}
