//! The client's end: one session with an IOhost, and the attachments that outlive it.
//!
//! Not where requests come from. One thread has it. Nothing is allocated for a request once its attachment was made.
//!
//! ```text
//! attach(..)           a device is wanted            next_event()     what became of it
//! submit(..)           a request; its data is copied next_finished()  how it ended; data(..), then free(..)
//! establish(..)        a handshake has ended         wants_session()  another one is to begin
//! receive(now, frame)  what came                     poll_transmit()  what goes
//! tick(now)            time has passed               due()            until when it may
//! ```

use crate::handshake::Established;
use crate::loss::{Fate, Mark, MarkKind};
use crate::net::NetQueue;
use crate::outbox::Outbox;
use crate::session::Session;
use crate::wire::{Header, Intent, Malformed, News, Op, Record, Records, Status};

mod attachment;
mod slot;

use attachment::Attachment;
pub use attachment::{Over, Refusal};

/// Timers that ran out, one after the other, before a session is asked for while an old one is there.
const BACKOFF_PATIENCE: u32 = 6;
const SILENCE_PATIENCE_NS: u64 = 500_000_000;
/// Keys are made anew after this time.
const SESSION_NS_MAX: u64 = 3_600_000_000_000;

/// What a client is.
#[derive(Clone, Copy, Debug)]
pub struct ClientSpec {
    /// Random: no other client, and no earlier one, is the same.
    pub instance: u64,
    /// Frames that its socket's ring holds.
    pub ring_frames: u32,
    /// T2: requests fail after this time without a word from the IOhost. `None`: they wait. It is never less
    /// than the IOhost's lease and an eighth of it.
    pub fail_after_ns: Option<u64>,
}

/// A device that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct AttachSpec {
    /// Which one.
    pub device: u64,
    /// Outstanding requests at most, up to [`crate::SLOTS_MAX`].
    pub slots: u16,
    /// Bytes of the longest request, up to [`crate::wire::REQUEST_BYTES_MAX`].
    pub slot_bytes: u32,
}

/// What becomes of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is served (again).
    Bound {
        /// Which one.
        attachment: u16,
        /// The device as it is.
        news: News,
        /// Grows when the device goes to another client, or anew to this one.
        generation: u64,
    },
    /// What a device is that was only looked at. Its attachment is gone.
    Looked {
        /// Which one.
        attachment: u16,
        /// `None`: there is no such device for this client.
        news: Option<News>,
    },
    /// The device has changed.
    News {
        /// Which one.
        attachment: u16,
        /// As it is now.
        news: News,
    },
    /// It cannot be had now. It is asked for again by and by.
    Refused {
        /// Which one.
        attachment: u16,
        /// Why.
        why: Refusal,
    },
    /// It is over for good, and so is each request of it. [`Client::detach`] gives the place back.
    Over {
        /// Which one.
        attachment: u16,
        /// Why.
        why: Over,
    },
}

/// A request that ended. Its slot is used until [`Client::free`].
#[derive(Debug)]
pub struct Finished {
    /// Which attachment.
    pub attachment: u16,
    /// As it was submitted with.
    pub tag: u64,
    /// What was asked for.
    pub op: Op,
    /// How it ended: never [`Status::NeverSeen`].
    pub status: Status,
    slot: u16,
}

/// A request, but for its data.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes of the device.
    pub len: u32,
    /// What [`Finished`] says.
    pub tag: u64,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// No slot is free: it is to be submitted again when one is.
    #[error("no slot is free")]
    Full,
    /// Longer than a slot, or the data is not as long as it says.
    #[error("a length that does not fit")]
    Length,
    /// There is no such attachment, or it is over, or its device has shrunk.
    #[error("the attachment is over")]
    Over,
}

/// What was dropped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that were not for this session, not authentic, or seen before.
    pub frames_dropped: u64,
    /// Records of what is over: of an older turn or binding.
    pub records_stale: u64,
    /// What was read is not what its checksum says.
    pub mismatches: u64,
    /// Sessions that ended because the IOhost said what it must not.
    pub violations: u64,
    /// Frames of NICs that found no room.
    pub net_dropped: u64,
}

/// The client's end.
#[derive(Debug)]
pub struct Client {
    spec: ClientSpec,
    session: Option<Session>,
    held: Held,
    net: NetQueue,
    is_net_next: bool,
    heard_at: u64,
    ticked_at: u64,
    lease_ns: u64,
    counts: Counts,
}

/// All that marks can lead to.
#[derive(Debug)]
struct Held {
    attachments: Vec<Option<Attachment>>,
    outbox: Outbox,
    events: std::collections::VecDeque<Event>,
    /// Which attachment is first in the next frame.
    turn: usize,
    /// Binds of all attachments: no two have one number, so what is said of one never means another.
    bindings: u64,
}

impl Client {
    /// Without a session yet.
    pub fn new(spec: ClientSpec, now: u64) -> Client {
        let events = std::collections::VecDeque::with_capacity(64);
        let (attachments, outbox) = (Vec::new(), Outbox::new());
        let held = Held { attachments, outbox, events, turn: 0, bindings: 0 };
        let counts = Counts::default();
        let net = NetQueue::new(0);
        Client {
            spec,
            session: None,
            held,
            net,
            is_net_next: false,
            heard_at: now,
            ticked_at: now,
            lease_ns: 0,
            counts,
        }
    }

    /// Asks for a device, from whoever has it. `None`: there are [`crate::ATTACHMENTS_MAX`] already, or the
    /// numbers do not fit.
    pub fn attach(&mut self, spec: AttachSpec) -> Option<u16> {
        self.add(spec, Intent::Take)
    }

    /// Asks what a device is.
    pub fn look(&mut self, device: u64) -> Option<u16> {
        self.add(AttachSpec { device, slots: 1, slot_bytes: 512 }, Intent::Look)
    }

    fn add(&mut self, spec: AttachSpec, intent: Intent) -> Option<u16> {
        let free = self.held.attachments.iter().position(Option::is_none);
        let at = free.unwrap_or(self.held.attachments.len());
        let index = u16::try_from(at).ok().filter(|index| *index < crate::ATTACHMENTS_MAX)?;
        let made = Attachment::new(index, self.spec.instance, spec, intent)?;
        match self.held.attachments.get_mut(at) {
            Some(place) => *place = Some(made),
            None => self.held.attachments.push(Some(made)),
        }
        Some(index)
    }

    /// Gives a device back: [`Event::Over`] says when nothing of it can be executed any more.
    pub fn release(&mut self, attachment: u16) {
        if let Some(one) = self.held.attachment(attachment) {
            one.release();
        }
    }

    /// Forgets an attachment that is over, or was never bound.
    pub fn detach(&mut self, attachment: u16) {
        if let Some(place) = self.held.attachments.get_mut(usize::from(attachment)) {
            *place = None;
        }
    }

    /// Takes a request over; `data` of a write is copied. It waits as long as it must.
    pub fn submit(
        &mut self,
        attachment: u16,
        request: Request,
        data: &[u8],
    ) -> Result<(), Rejected> {
        let part_bytes = self.session.as_ref().map_or(512, |session| session.part_bytes);
        let one = self.held.attachment(attachment).ok_or(Rejected::Over)?;
        one.submit(request, data, part_bytes)
    }

    /// A request that ended.
    pub fn next_finished(&mut self) -> Option<Finished> {
        self.held.attachments.iter_mut().flatten().find_map(Attachment::next_finished)
    }

    /// What was read.
    pub fn data(&self, finished: &Finished) -> &[u8] {
        let one = self.held.attachments.get(usize::from(finished.attachment));
        one.and_then(Option::as_ref).map_or(&[], |one| one.data(finished.slot))
    }

    /// Gives the slot back.
    pub fn free(&mut self, finished: Finished) {
        if let Some(one) = self.held.attachment(finished.attachment) {
            one.free(finished.slot);
        }
    }

    /// What became of attachments.
    pub fn next_event(&mut self) -> Option<Event> {
        self.held.events.pop_front()
    }

    /// Requests of an attachment that have not ended.
    pub fn outstanding(&self, attachment: u16) -> usize {
        let one = self.held.attachments.get(usize::from(attachment)).and_then(Option::as_ref);
        one.map_or(0, Attachment::outstanding)
    }

    /// Whether a handshake should begin.
    pub fn wants_session(&self, now: u64) -> bool {
        self.session.as_ref().is_none_or(|session| {
            let silence_ns = now.saturating_sub(session.heard_at);
            let is_stuck =
                session.flight.backoff() >= BACKOFF_PATIENCE && silence_ns >= SILENCE_PATIENCE_NS;
            let is_old = now.saturating_sub(session.made_at) >= SESSION_NS_MAX;
            is_stuck || is_old || session.is_worn() || session.is_dead(now)
        })
    }

    /// A handshake has ended: all attachments are bound in its session from now on. False when its keys are none.
    pub fn establish(&mut self, made: &Established, now: u64) -> bool {
        let Some(session) = Session::new(made, u64::from(self.spec.ring_frames), now) else {
            return false;
        };
        self.lease_ns = session.lease_ns;
        self.heard_at = now;
        self.net = NetQueue::new(session.part_bytes);
        self.session = Some(session);
        self.held.outbox = Outbox::new();
        self.held.attachments.iter_mut().flatten().for_each(Attachment::lost_session);
        true
    }

    /// A frame that came, which is opened in place. `net` gets frames for NICs. False when it was dropped.
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
        let session = self.session.as_mut().filter(|session| session.mine == header.session)?;
        let end = session.open(now, &header, frame)?;
        self.heard_at = now;
        let mut asks = false;
        for record in Records::new(frame.get(crate::wire::HEADER_BYTES..end)?) {
            asks |= !matches!(record, Ok(Record::Ack { .. }));
            let done = match record {
                Ok(Record::Ack { credit, blocks }) => {
                    session.acked(credit, blocks, now, &mut self.held)
                }
                Ok(Record::Close) => {
                    session.is_over = true;
                    Ok(())
                }
                Ok(Record::Net { handle, data }) => {
                    if let Some(one) = self.held.by_handle(handle) {
                        net(one.index(), data);
                    }
                    Ok(())
                }
                Ok(record) => self.held.record(&record, session.part_bytes, now, &mut self.counts),
                Err(malformed) => Err(malformed),
            };
            if done.is_err() {
                session.is_over = true;
                self.counts.violations += 1;
                return None;
            }
        }
        session.take(header.counter, asks, now);
        Some(())
    }

    /// The next frame to send, into `buffer`: its length. `None`: nothing now. At most 32 at one `now`.
    pub fn poll_transmit(&mut self, now: u64, buffer: &mut [u8]) -> Option<usize> {
        let session = self.session.as_mut()?;
        let mut out = session.begin(now, buffer)?;
        if out.may_ask {
            self.held.ask(now);
            self.held.outbox.fill(&mut out);
            let wants = self.held.attachments.iter().flatten().any(Attachment::has_queued);
            let may_net = !wants || session.flight.has_room_for_net();
            if may_net && self.is_net_next {
                self.net.fill(&mut out);
            }
            self.held.fill(&mut out, session.part_bytes);
            if may_net && !self.is_net_next {
                self.net.fill(&mut out);
            }
            self.is_net_next = !self.is_net_next;
        }
        session.commit(now, out)
    }

    /// A frame of a NIC, which is sent once or dropped. False when it was dropped.
    pub fn send_net(&mut self, attachment: u16, data: &[u8]) -> bool {
        let handle = self.held.attachment(attachment).and_then(|one| one.bound_handle());
        let is_kept = handle.is_some_and(|handle| self.net.push(handle, data));
        self.counts.net_dropped += u64::from(!is_kept);
        is_kept
    }

    /// Does what is due by now.
    pub fn tick(&mut self, now: u64) {
        self.ticked_at = now;
        if let Some(session) = &mut self.session {
            session.tick(now, &mut self.held);
            if session.is_dead(now) {
                self.session = None;
                self.held.attachments.iter_mut().flatten().for_each(Attachment::lost_session);
            }
        }
        if self.fails_at().is_some_and(|at| at <= now) {
            // From now on nothing of the old session may be sent or taken.
            self.session = None;
            for one in self.held.attachments.iter_mut().flatten().filter(|one| one.is_used()) {
                one.end(Over::Silent, &mut self.held.events);
            }
        }
    }

    /// When [`Client::tick`] or [`Client::poll_transmit`] is due, if nothing happens before.
    pub fn due(&self) -> Option<u64> {
        let session = self.session.as_ref().map(Session::due);
        // What is due already goes with the next frame.
        let retries = self.held.attachments.iter().flatten().filter_map(Attachment::retry_at);
        let retry = retries.filter(|at| *at > self.ticked_at && session.is_some()).min();
        [session, retry, self.fails_at()].into_iter().flatten().min()
    }

    /// What was dropped.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The smoothed round trip, 0 before the first.
    pub fn round_trip_ns(&self) -> u64 {
        self.session.as_ref().map_or(0, |session| session.flight.round_trip_ns())
    }

    fn fails_at(&self) -> Option<u64> {
        let is_used = self.held.attachments.iter().flatten().any(Attachment::is_used);
        let after = self.spec.fail_after_ns.filter(|_| is_used)?;
        let least = self.lease_ns + self.lease_ns / 8;
        Some(self.heard_at.saturating_add(after.max(least)))
    }
}

impl Held {
    fn attachment(&mut self, index: u16) -> Option<&mut Attachment> {
        self.attachments.get_mut(usize::from(index))?.as_mut()
    }

    fn by_handle(&mut self, handle: u32) -> Option<&mut Attachment> {
        let index = usize::from(crate::index_of(handle));
        let one = self.attachments.get_mut(index)?.as_mut()?;
        (one.handle() == handle).then_some(one)
    }

    /// Puts what attachments want to say into the outbox.
    fn ask(&mut self, now: u64) {
        for one in self.attachments.iter_mut().flatten() {
            let binding = self.bindings + 1;
            if let Some(record) = one.wants_to_say(now, binding)
                && self.outbox.put(record)
            {
                self.bindings += u64::from(one.said(binding));
            }
        }
    }

    /// Puts requests into a frame, each attachment in turn.
    fn fill(&mut self, out: &mut crate::session::Out<'_>, part_bytes: usize) {
        let count = self.attachments.len();
        for step in 0..count {
            let at = (self.turn + step) % count;
            if let Some(one) = self.attachments.get_mut(at).and_then(Option::as_mut) {
                one.fill(out, part_bytes);
            }
            if out.is_full() {
                self.turn = (at + 1) % count;
                return;
            }
        }
    }

    /// What the IOhost says. An error when it must not say that.
    fn record(
        &mut self,
        record: &Record<'_>,
        part_bytes: usize,
        now: u64,
        counts: &mut Counts,
    ) -> Result<(), Malformed> {
        let handle = match record {
            Record::Ping => return Ok(()),
            Record::Bound(bound) => {
                let mut events = std::mem::take(&mut self.events);
                let is_gone = self
                    .attachment(bound.index)
                    .is_some_and(|one| one.bound(bound, part_bytes, now, &mut events));
                self.events = events;
                if is_gone {
                    self.detach(bound.index);
                }
                return Ok(());
            }
            Record::Ended { handle, .. }
            | Record::News { handle, .. }
            | Record::Done { handle, .. } => *handle,
            Record::Piece(piece) => piece.handle,
            _ => return Err(Malformed::Field),
        };
        let mut events = std::mem::take(&mut self.events);
        let done = match self.by_handle(handle) {
            Some(one) => one.record(record, part_bytes, counts, &mut events),
            None => {
                counts.records_stale += 1;
                Ok(())
            }
        };
        self.events = events;
        done
    }

    fn detach(&mut self, index: u16) {
        if let Some(place) = self.attachments.get_mut(usize::from(index)) {
            *place = None;
        }
    }
}

impl Fate for Held {
    fn taken(&mut self, mark: Mark) {
        match mark.kind {
            MarkKind::Control => self.outbox.taken(mark),
            _ => {
                if let Some(one) = self.by_handle(mark.handle) {
                    one.mark_taken(mark);
                }
            }
        }
    }

    fn lost(&mut self, mark: Mark) {
        match mark.kind {
            MarkKind::Control => self.outbox.lost(mark),
            _ => {
                if let Some(one) = self.by_handle(mark.handle) {
                    one.mark_lost(mark);
                }
            }
        }
    }
}
