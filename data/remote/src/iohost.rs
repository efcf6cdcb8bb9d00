//! The IOhost's end: sessions of many clients, and the devices that they are served.
//!
//! Not what executes requests, and not what opens storage. One thread has it. Nothing is allocated for a request
//! once its attachment was bound.
//!
//! ```text
//! reserve(), establish(..)     a handshake has ended      next_event()    a device is to be opened, or let go
//! receive(now, frame)          what came                  opened(..), let_go(..)             it was
//! poll_transmit(now)           what goes, and to whom     next_work(now)  a request; buffer(..), finish(..)
//! tick(now), due()             time                       update(..), remove(..)  a device changes
//! ```
//!
//! # The fence
//!
//! A session ends when its client has acknowledged nothing that was sent within the lease. Its attachments then
//! execute nothing more: what is executing ends, the device is synced and let go, and only then may another client
//! have it. A client fails requests only after it has heard nothing for longer than the lease. What it heard last
//! was sent before, and only what was sent so late can prolong the lease: so nothing is executed after that, however
//! late frames come.

use std::collections::VecDeque;

use crate::handshake::{Established, PublicKey};
use crate::loss::{Fate, Mark, MarkKind};
use crate::net::NetQueue;
use crate::session::Session;
use crate::wire::{End, Header, Malformed, News, Op, Record, Records, Status};

mod about;
mod binding;
mod export;
mod slot;

use about::About;
use export::Export;

/// Sessions of one client at a time.
const SESSIONS_OF_CLIENT_MAX: usize = 4;
/// A session whose first frame has not come by then may be forgotten for another one.
const CONFIRM_NS: u64 = 2_000_000_000;
/// Frames that a client may have under way, however many clients there are.
const SHARE_MIN: u32 = 4;
/// Messages that stay free for what a session must be told.
const MESSAGES_SPARE: usize = 16;

/// What an IOhost is.
#[derive(Clone, Copy, Debug)]
pub struct HostSpec {
    /// Sessions at a time, at most 65,536.
    pub sessions_max: usize,
    /// Frames that its socket's ring holds; divided among its clients.
    pub ring_frames: u32,
    /// Bytes of all attachments' memory.
    pub memory_max: usize,
    /// Random: where session numbers begin, so that those of an earlier IOhost are not met.
    pub number_first: u16,
}

/// A device that is served.
#[derive(Clone, Debug)]
pub struct ExportSpec {
    /// As clients name it.
    pub device: u64,
    /// Who may have it; nobody named: everybody.
    pub clients: Vec<PublicKey>,
    /// Size and features. The revision counts from here.
    pub news: News,
    /// The generation that was last told to be kept ([`HostEvent::Open`]); 0: none.
    pub generation: u64,
}

/// What the caller is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// Open the device's storage, with its locks, and keep `generation` where a crash does not take it. Then
    /// [`Host::opened`].
    Open {
        /// Which one.
        export: u16,
        /// Older ones are refused from now on, by later IOhosts too.
        generation: u64,
    },
    /// Nothing of the device is executing: sync and let go of it. Then [`Host::let_go`].
    LetGo {
        /// Which one.
        export: u16,
    },
}

/// A request to be executed.
#[derive(Debug)]
pub struct Work {
    /// Of which device.
    pub export: u16,
    /// What to do.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes of the device: within its size.
    pub len: u32,
    slot: u16,
    serial: u64,
}

/// What was dropped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Frames of no session, not authentic, or seen before.
    pub frames_dropped: u64,
    /// Records of an older turn, or of an attachment that this session does not have.
    pub records_stale: u64,
    /// Fragments that say something else than the first one of their request: somebody is broken, or worse.
    pub conflicts: u64,
    /// Requests whose bytes are not what their checksum says.
    pub mismatches: u64,
    /// Sessions that ended because the client said what it must not.
    pub violations: u64,
    /// Sessions whose lease ran out.
    pub leases_over: u64,
    /// Frames of NICs that found no room.
    pub net_dropped: u64,
}

#[derive(Debug)]
struct Peer {
    session: Session,
    client: PublicKey,
    is_confirmed: bool,
    about: About,
    net: NetQueue,
    is_net_next: bool,
}

#[derive(Debug, Default)]
struct Place {
    generation: u16,
    reserved_at: Option<u64>,
    peer: Option<Box<Peer>>,
}

/// The IOhost's end.
#[derive(Debug)]
pub struct Host {
    spec: HostSpec,
    places: Vec<Place>,
    exports: Vec<Export>,
    events: VecDeque<HostEvent>,
    memory_used: usize,
    send_turn: usize,
    work_turn: usize,
    counts: HostCounts,
}

impl Host {
    /// Without devices or sessions.
    pub fn new(spec: HostSpec) -> Host {
        Host {
            spec,
            places: Vec::new(),
            exports: Vec::new(),
            events: VecDeque::with_capacity(64),
            memory_used: 0,
            send_turn: 0,
            work_turn: 0,
            counts: HostCounts::default(),
        }
    }

    /// Serves a device from now on: its number. `None`: there are 65,535.
    pub fn export(&mut self, spec: ExportSpec) -> Option<u16> {
        let number = u16::try_from(self.exports.len()).ok().filter(|number| *number < u16::MAX)?;
        self.exports.push(Export::new(number, spec));
        Some(number)
    }

    /// A number for a session whose handshake is about to be answered. `None`: there are too many, and each is
    /// somebody's.
    pub fn reserve(&mut self, now: u64) -> Option<u32> {
        let is_idle = |place: &Place| {
            let waits = |at: u64| now.saturating_sub(at) < CONFIRM_NS;
            let is_confirmed = place.peer.as_ref().is_some_and(|peer| peer.is_confirmed);
            !is_confirmed && !place.reserved_at.is_some_and(waits)
        };
        let at = match self.places.iter().position(is_idle) {
            Some(at) => at,
            None if self.places.len() < self.spec.sessions_max.min(1 << 16) => {
                let generation = self.spec.number_first;
                self.places.push(Place { generation, reserved_at: None, peer: None });
                self.places.len() - 1
            }
            None => return None,
        };
        self.end_session(at);
        let place = self.places.get_mut(at)?;
        place.generation = place.generation.wrapping_add(1);
        place.reserved_at = Some(now);
        Some(at as u32 | u32::from(place.generation) << 16)
    }

    /// Frames that a client may have under way, as it is told in a handshake.
    pub fn share(&self) -> u32 {
        let living = self.places.iter().filter(|place| place.peer.is_some()).count();
        (self.spec.ring_frames / (living as u32 + 1)).max(SHARE_MIN)
    }

    /// A handshake was answered at `now`, with a number that was reserved. False when it is not (any more).
    pub fn establish(&mut self, made: &Established, now: u64) -> bool {
        let share = self.share();
        let at = (made.mine & 0xffff) as usize;
        let generation = (made.mine >> 16) as u16;
        let is_reserved = self
            .places
            .get(at)
            .is_some_and(|place| place.generation == generation && place.reserved_at.is_some());
        let Some(session) = Session::new(made, u64::from(share), now).filter(|_| is_reserved)
        else {
            return false;
        };
        self.make_room_for(&made.peer);
        let net = NetQueue::new(session.part_bytes);
        let about = About::new(made.mine);
        let client = made.peer;
        let is_net_next = false;
        let peer = Peer { session, client, is_confirmed: false, about, net, is_net_next };
        self.places[at].peer = Some(Box::new(peer));
        for peer in self.places.iter_mut().filter_map(|place| place.peer.as_mut()) {
            peer.session.credit_share = u64::from(share);
        }
        true
    }

    /// A client with a key has so many sessions at most; of none it is not known whose they are.
    fn make_room_for(&mut self, client: &PublicKey) {
        if *client == [0; 32] {
            return;
        }
        let of_client = self.places.iter().enumerate().filter_map(|(at, place)| {
            let peer = place.peer.as_ref().filter(|peer| peer.client == *client)?;
            Some((peer.session.heard_at, at))
        });
        let (count, oldest) = of_client.fold((0, None), |(count, oldest), one| {
            (count + 1, Some(oldest.map_or(one, |before: (u64, usize)| before.min(one))))
        });
        if count >= SESSIONS_OF_CLIENT_MAX
            && let Some((_, at)) = oldest
        {
            self.end_session(at);
        }
    }

    /// A frame that came, which is opened in place. `net` gets frames for NICs: export, and bytes. False when it
    /// was dropped.
    pub fn receive(&mut self, now: u64, frame: &mut [u8], net: &mut dyn FnMut(u16, &[u8])) -> bool {
        let is_taken = self.receive_checked(now, frame, net).is_some();
        self.counts.frames_dropped += u64::from(!is_taken);
        is_taken
    }

    fn receive_checked(
        &mut self,
        now: u64,
        frame: &mut [u8],
        net: &mut dyn FnMut(u16, &[u8]),
    ) -> Option<()> {
        let header = Header::parse(frame).ok()?;
        let at = self.place_of(header.session)?;
        let mut peer = self.places.get_mut(at)?.peer.take()?;
        let end = match peer.session.is_dead(now) {
            true => None,
            false => peer.session.open(now, &header, frame),
        };
        let Some(body) = end.and_then(|end| frame.get(crate::wire::HEADER_BYTES..end)) else {
            self.places[at].peer = Some(peer);
            return None;
        };
        peer.is_confirmed = true;
        let (mut asks, mut is_whole, mut is_broken) = (false, true, false);
        for record in Records::new(body) {
            asks |= !matches!(record, Ok(Record::Ack { .. }));
            match record.and_then(|record| self.record(&mut peer, &record, now, net)) {
                Ok(is_taken) => is_whole &= is_taken,
                Err(_) => is_broken = true,
            }
        }
        if is_broken {
            peer.session.is_over = true;
            self.counts.violations += 1;
        } else if is_whole {
            peer.session.take(header.counter, asks, now);
        }
        let is_over = peer.session.is_over;
        self.places[at].peer = Some(peer);
        if is_over {
            self.end_session(at);
        }
        (!is_broken).then_some(())
    }

    fn place_of(&self, number: u32) -> Option<usize> {
        let at = (number & 0xffff) as usize;
        let place = self.places.get(at)?;
        (place.generation == (number >> 16) as u16).then_some(at)
    }

    fn peer(&mut self, number: u32) -> Option<&mut Peer> {
        let at = self.place_of(number)?;
        self.places.get_mut(at)?.peer.as_deref_mut()
    }

    /// What a client says: whether it was taken, or an error when it must not say that.
    fn record(
        &mut self,
        peer: &mut Peer,
        record: &Record<'_>,
        now: u64,
        net: &mut dyn FnMut(u16, &[u8]),
    ) -> Result<bool, Malformed> {
        match record {
            Record::Ack { credit, blocks } => {
                let mut fates = Fates { about: &mut peer.about, exports: &mut self.exports };
                peer.session.acked(*credit, *blocks, now, &mut fates)?;
                Ok(true)
            }
            Record::Ping => Ok(true),
            Record::Close => {
                peer.session.is_over = true;
                Ok(true)
            }
            Record::Bind(bind) => Ok(self.bind(peer, bind, now)),
            Record::Release { handle } => {
                match peer.about.export(&mut self.exports, *handle) {
                    Some(export) => export.leave(&mut self.events),
                    // It may have been released already: the end was said, or is being said.
                    None => self.counts.records_stale += 1,
                }
                Ok(true)
            }
            Record::Part(part) => match peer.about.export(&mut self.exports, part.handle) {
                Some(export) => export.part(part, &mut self.counts).map(|()| true),
                None => Ok(self.unbound(peer, part.handle)),
            },
            Record::Recall { handle, slot, turn } => {
                match peer.about.export(&mut self.exports, *handle) {
                    Some(export) => export.recall(*slot, *turn).map(|()| true),
                    None => Ok(self.unbound(peer, *handle)),
                }
            }
            Record::Net { handle, data } => {
                match peer.about.export(&mut self.exports, *handle) {
                    Some(export) => net(export.number, data),
                    None => self.counts.records_stale += 1,
                }
                Ok(true)
            }
            _ => Err(Malformed::Field),
        }
    }

    /// A request for what this session does not have. It was told why, or will be.
    fn unbound(&mut self, peer: &mut Peer, handle: u32) -> bool {
        self.counts.records_stale += 1;
        peer.about.tell_end(handle, End::Unbound)
    }

    /// What the caller is to do.
    pub fn next_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// A request to be executed, of each device in turn. To be ended by [`Host::finish`].
    pub fn next_work(&mut self, now: u64) -> Option<Work> {
        let count = self.exports.len();
        for step in 0..count {
            let at = (self.work_turn + step) % count;
            if !self.exports[at].has_work() {
                continue;
            }
            let session = self.exports[at].bound().map_or(0, |(number, _)| number);
            let place = self.place_of(session);
            let peer = place.and_then(|place| self.places[place].peer.as_ref());
            if peer.is_none_or(|peer| peer.session.is_dead(now)) {
                // The lease is over: not even what has come whole is executed.
                match place {
                    Some(place) => self.end_session(place),
                    None => self.exports[at].lose_session(session, &mut self.events),
                }
                continue;
            }
            self.work_turn = (at + 1) % count;
            return self.exports[at].next_work();
        }
        None
    }

    /// The bytes of a write, and the place for those of a read.
    pub fn buffer(&mut self, work: &Work) -> &mut [u8] {
        self.exports.get_mut(usize::from(work.export)).map_or(&mut [], |one| one.buffer(work))
    }

    /// A request has ended. [`Status::NeverSeen`] and [`Status::Mismatch`] are not for the caller.
    pub fn finish(&mut self, work: Work, status: Status) {
        if let Some(one) = self.exports.get_mut(usize::from(work.export)) {
            one.finish(&work, status, &mut self.events);
        }
    }

    /// A device has another size, or other features. Its revision grows.
    pub fn update(&mut self, export: u16, size: u64, features: u32) {
        if let Some(one) = self.exports.get_mut(usize::from(export)) {
            one.update(News { revision: one.news.revision + 1, size, features, ..one.news });
        }
    }

    /// A device is served no more: what is executing ends, and its client hears of it.
    pub fn remove(&mut self, export: u16) {
        if let Some(one) = self.exports.get_mut(usize::from(export)) {
            one.remove(&mut self.events);
        }
    }

    /// A frame of a NIC, to the client that has it; sent once or dropped. False when it was dropped.
    pub fn send_net(&mut self, export: u16, data: &[u8]) -> bool {
        let bound = self.exports.get(usize::from(export)).and_then(Export::bound);
        let is_kept = bound.is_some_and(|(number, handle)| {
            self.peer(number).is_some_and(|peer| peer.net.push(handle, data))
        });
        self.counts.net_dropped += u64::from(!is_kept);
        is_kept
    }

    /// The next frame to send, into `buffer`: the session, whose client gets it, and its length. `None`: nothing
    /// now. At most 32 of a session at one `now`.
    pub fn poll_transmit(&mut self, now: u64, buffer: &mut [u8]) -> Option<(u32, usize)> {
        let count = self.places.len();
        for step in 0..count {
            let at = (self.send_turn + step) % count;
            let Some(peer) = self.places[at].peer.as_mut() else { continue };
            if peer.session.is_dead(now) {
                continue;
            }
            if let Some(len) = transmit(peer, &mut self.exports, now, buffer) {
                self.send_turn = (at + 1) % count;
                return Some((peer.about.number, len));
            }
        }
        None
    }

    /// Does what is due by now.
    pub fn tick(&mut self, now: u64) {
        for at in 0..self.places.len() {
            let Some(peer) = self.places[at].peer.as_mut() else { continue };
            let mut fates = Fates { about: &mut peer.about, exports: &mut self.exports };
            peer.session.tick(now, &mut fates);
            if peer.session.is_dead(now) {
                self.counts.leases_over += u64::from(!peer.session.is_over);
                self.end_session(at);
            }
        }
    }

    /// When [`Host::tick`] or [`Host::poll_transmit`] is due, if nothing happens before.
    pub fn due(&self) -> Option<u64> {
        self.places.iter().filter_map(|place| Some(place.peer.as_ref()?.session.due())).min()
    }

    /// What was dropped.
    pub fn counts(&self) -> HostCounts {
        self.counts
    }

    /// Who has a session, if it is one.
    pub fn client_of(&self, session: u32) -> Option<&PublicKey> {
        let at = self.place_of(session)?;
        self.places.get(at)?.peer.as_ref().map(|peer| &peer.client)
    }

    /// Bytes of all attachments' memory.
    pub fn memory_used(&self) -> usize {
        self.memory_used
    }

    /// The session is over: what it has is drained and let go.
    fn end_session(&mut self, at: usize) {
        let Some(peer) = self.places.get_mut(at).and_then(|place| place.peer.take()) else {
            return;
        };
        self.places[at].reserved_at = None;
        for export in &mut self.exports {
            export.lose_session(peer.about.number, &mut self.events);
        }
    }
}

/// Fills a frame of one session.
fn transmit(peer: &mut Peer, exports: &mut [Export], now: u64, buffer: &mut [u8]) -> Option<usize> {
    let mut out = peer.session.begin(now, buffer)?;
    if out.may_ask {
        let about = &mut peer.about;
        about.tell_news(exports);
        about.outbox.fill(&mut out);
        let wants = about.has_answers(exports);
        let may_net = !wants || peer.session.flight.has_room_for_net();
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

/// All that marks of one session can lead to.
struct Fates<'a> {
    about: &'a mut About,
    exports: &'a mut [Export],
}

impl Fate for Fates<'_> {
    fn taken(&mut self, mark: Mark) {
        if mark.kind == MarkKind::Control {
            self.about.outbox.taken(mark);
        } else if let Some(export) = self.about.export(self.exports, mark.handle) {
            export.mark_taken(mark);
        }
    }

    fn lost(&mut self, mark: Mark) {
        if mark.kind == MarkKind::Control {
            self.about.outbox.lost(mark);
        } else if let Some(export) = self.about.export(self.exports, mark.handle) {
            export.mark_lost(mark);
        }
    }
}
