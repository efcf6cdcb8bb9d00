//! A client's link: a socket, the client's end of the protocol, and its IOhosts. One for each link of a sidecore,
//! which has it in its `Io`.
//!
//! Not handshakes, whose frames it hands up ([`LinkEvent::Greet`]), and not the requests' memory (`remote`, its
//! back-end). Allocates for what is rare: a disk that comes, a handshake. Time is an argument.
//!
//! ```text
//! receive(now)   frames -> the client -> what ended waits to be reaped     first in a pass
//! submit(..)     a chunk of a request into a slot                           visits
//! reap_one()     a chunk that ended; data(..), then free(..)                after them
//! send(now)      frames of the client, hellos                              last
//! ```

use std::collections::VecDeque;
use std::iter::once;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use remote::client::{
    AttachSpec, Client, ClientSpec, Event, Finished, Rejected, Request as Chunk, Standing,
};
use remote::handshake::{self, Established};
use remote::wire::{Header, Kind};
use request::{Op, Status, Tag};

use super::attached_disk::{AttachedDisk, State};
use super::counters::LinkCounters;
use super::greeting::{Greeting, Step};
use super::nics::Nics;
use super::{Address, LinkNic, LinkSocket};

mod handing;
mod told;

/// Frames received, and sent, in one pass.
const FRAMES_PER_PASS: usize = 64;
/// The client gives no more at one time: there may be others.
const BURST: usize = 32;
/// Frames of handshakes that wait for control; the others are dropped, and come again.
const GREETS_MAX: usize = 8;
/// How often the kernel is asked what it has lost, and the session how its way is, at most.
const COUNT_NS: u64 = 100_000_000;

/// What is told to control. All of it is rare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// A frame of a handshake came.
    Greet {
        /// It.
        frame: Vec<u8>,
        /// Who sent it: the IOhost that a hello goes to.
        from: Address,
    },
    /// A hello is wanted for this IOhost ([`ClientLink::hello`]).
    WantsSession(Address),
    /// What became of a disk. Its `attachment` is the link's number of that disk.
    Client(Event),
    /// A disk that was given back is over, and nothing of it is here any more: its number is free.
    Freed(u16),
}

/// A client's link.
#[derive(Debug)]
pub struct ClientLink {
    socket: LinkSocket,
    client: Client,
    greeting: Greeting,
    /// By the link's number.
    disks: Vec<Option<AttachedDisk>>,
    nics: Nics,
    /// Chunks that ended, and whose they are.
    ready: VecDeque<(u16, Finished)>,
    events: VecDeque<LinkEvent>,
    /// Disks with something to say.
    telling: VecDeque<u16>,
    greets: usize,
    /// Chunks under way or ready, but orphans.
    in_flight: usize,
    users: u32,
    joined: usize,
    due_at: u64,
    /// Something happened since the last sending.
    is_stirred: bool,
    is_hello_due: bool,
    /// Disks whose requests failed in silence are to be asked for anew.
    renews: bool,
    /// A sidecore has had it.
    has_begun: bool,
    counters: Arc<LinkCounters>,
    counted_at: u64,
}

impl ClientLink {
    /// Speaks to the first of `iohosts` that answers.
    pub fn new(socket: LinkSocket, iohosts: Vec<Address>, spec: ClientSpec) -> ClientLink {
        ClientLink {
            socket,
            client: Client::new(spec, 0),
            greeting: Greeting::new(iohosts),
            disks: Vec::new(),
            nics: Nics::default(),
            ready: VecDeque::new(),
            events: VecDeque::with_capacity(2 * GREETS_MAX),
            telling: VecDeque::new(),
            greets: 0,
            in_flight: 0,
            users: 0,
            joined: 0,
            due_at: 0,
            is_stirred: true,
            is_hello_due: false,
            renews: false,
            has_begun: false,
            counters: Arc::default(),
            counted_at: 0,
        }
    }

    /// It is with its sidecore from `now` on.
    pub(crate) fn begin(&mut self, now: u64) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.client.begin(now);
        }
        (self.due_at, self.is_stirred) = (now, true);
    }

    /// What is readable when it has something to do: its socket, and the bells of its NICs. A bell is its port's, too,
    /// and may ring for as long as that one lives.
    pub fn bells(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone {
        once(self.socket.poll_fd()).chain(self.nics.bells())
    }

    /// The socket, for what was lost.
    pub fn socket(&self) -> &LinkSocket {
        &self.socket
    }

    /// What it counts, from now on and wherever it is.
    pub fn counters(&self) -> Arc<LinkCounters> {
        Arc::clone(&self.counters)
    }

    /// A hello to be said to the IOhost that one was asked for, until it answers; or the same with a cookie.
    pub fn hello(&mut self, hello: Vec<u8>, now: u64) {
        self.greeting.say(hello, now);
        self.due_at = now;
    }

    /// A handshake with `peer` has ended. False when its keys are none.
    pub fn establish(&mut self, made: Established, peer: Address, now: u64) -> bool {
        let is_made = self.client.establish(made, now);
        if is_made {
            self.greeting.established(peer, now);
            self.counters.iohost.set(self.greeting.target() as u64);
            self.renews = true;
        }
        (self.due_at, self.is_stirred) = (now, true);
        is_made
    }

    /// Wants a device, from now on `disk`, which stood so when it was had last. False when that number is used, or the
    /// numbers do not fit. Its requests wait until control has heard how it stands ([`ClientLink::heard`]).
    pub fn attach(&mut self, disk: u16, spec: AttachSpec, standing: Option<Standing>) -> bool {
        self.add(disk, spec, State::Wanted, standing)
    }

    /// Wants to know what a device is: [`Event::Looked`] says it, and frees the number.
    pub fn look(&mut self, disk: u16, device: u64) -> bool {
        self.add(
            disk,
            AttachSpec { device, slots: 1, slot_bytes: 512, keep_bytes: 0 },
            State::Looked,
            None,
        )
    }

    fn add(
        &mut self,
        disk: u16,
        spec: AttachSpec,
        state: State,
        standing: Option<Standing>,
    ) -> bool {
        if disk >= remote::ATTACHMENTS_MAX || self.attached(disk).is_some() {
            return false;
        }
        // What is still being given back is over first: it says how the disk stands.
        let is_leaving = |attached: &AttachedDisk| {
            attached.state == State::Leaving && attached.spec.device == spec.device
        };
        let waits = state == State::Wanted && self.disks.iter().flatten().any(is_leaving);
        let attachment = match state {
            State::Looked => self.client.look(spec.device),
            _ if waits => None,
            _ => self.client.attach_again(spec, standing),
        };
        if attachment.is_none() && !waits {
            return false;
        }
        let at = usize::from(disk);
        if self.disks.len() <= at {
            self.disks.resize_with(at + 1, || None);
        }
        self.nics.renew(disk, attachment);
        let mut attached = AttachedDisk::new(spec, state);
        (attached.attachment, attached.standing) = (attachment, standing);
        if let Some(place) = self.disks.get_mut(at) {
            *place = Some(attached);
        }
        // All that can end at once waits here.
        let slots =
            self.disks.iter().flatten().map(|attached| usize::from(attached.spec.slots)).sum();
        self.ready.reserve(slots);
        self.is_stirred = true;
        true
    }

    /// Gives a disk back: [`Event::Over`] says when nothing of it can be executed any more, if that was not said, and
    /// [`LinkEvent::Freed`] when its number is free. What is plugged in stays, and has its frames dropped.
    pub fn release(&mut self, disk: u16) {
        self.nics.renew(disk, None);
        let Some(attached) = disk_at(&mut self.disks, disk) else { return };
        attached.state = State::Leaving;
        match attached.attachment {
            Some(attachment) if !attached.is_over => self.client.release(attachment),
            Some(_) => {}
            None => attached.is_over = true,
        }
        self.forget(disk);
        self.is_stirred = true;
    }

    /// Whether there is such a disk here.
    pub(crate) fn has(&self, disk: u16) -> bool {
        self.attached(disk).is_some()
    }

    /// A queue more: its number among the users.
    pub(crate) fn join(&mut self) -> u32 {
        self.users += 1;
        self.joined += 1;
        self.users
    }

    /// A queue less. Nobody is told of what it has under way.
    pub(crate) fn leave(&mut self, disk: u16, user: u32) {
        self.joined = self.joined.saturating_sub(1);
        if let Some(attached) = disk_at(&mut self.disks, disk) {
            self.in_flight = self.in_flight.saturating_sub(attached.leave(user));
        }
        for _ in 0..self.ready.len() {
            let Some((disk, finished)) = self.ready.pop_front() else { break };
            match self.attached(disk).and_then(|attached| attached.tag(&finished)) {
                Some(_) => self.ready.push_back((disk, finished)),
                None => self.give_back(disk, finished),
            }
        }
    }

    /// Whether a queue of it is here.
    pub(crate) fn is_joined(&self) -> bool {
        self.joined > 0
    }

    /// See [`crate::Backend::has_room`]. Of a disk that is not here: what is submitted fails.
    #[inline]
    pub(crate) fn has_room(&self, disk: u16) -> bool {
        self.attached(disk).is_none_or(|attached| {
            attached.has_room()
                && attached
                    .wanted()
                    .is_none_or(|one| self.client.may_submit(one, attached.promised))
        })
    }

    /// So many bytes more are on their way, in chunks to come, or (negative) no longer.
    pub(crate) fn promise(&mut self, disk: u16, bytes: i64) {
        if let Some(attached) = disk_at(&mut self.disks, disk) {
            attached.promised = attached.promised.saturating_add_signed(bytes);
        }
    }

    /// Bytes of the longest chunk with data.
    pub(crate) fn slot_bytes(&self, disk: u16) -> u32 {
        self.attached(disk).map_or(0, |attached| attached.spec.slot_bytes)
    }

    /// Takes over one chunk of a request, of the bytes behind the first `skip`; of a write `fill` gives them.
    pub(crate) fn submit(
        &mut self,
        (disk, user): (u16, u32),
        tag: Tag,
        (op, offset, len): (Op, u64, u32),
        skip: u64,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<(), Rejected> {
        let attached = disk_at(&mut self.disks, disk).ok_or(Rejected::Over)?;
        let attachment = attached.wanted().ok_or(Rejected::Over)?;
        let at = attached.begin(user, tag, skip).ok_or(Rejected::Full)?;
        let chunk = Chunk { op: wire_op(op), offset, len, tag: at };
        if let Err(rejected) = self.client.submit(attachment, chunk, fill) {
            attached.end(at);
            return Err(rejected);
        }
        self.in_flight += 1;
        self.is_stirred = true;
        Ok(())
    }

    /// Chunks under way or to be reaped, but those that nobody waits for.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// A chunk that ended, and its request's tag.
    #[inline]
    pub(crate) fn reap_one(&mut self) -> Option<(Tag, u16, Finished)> {
        let (disk, finished) = self.ready.pop_front()?;
        let tag = self.attached(disk).and_then(|attached| attached.tag(&finished));
        match tag {
            Some(tag) => Some((tag, disk, finished)),
            // Those of who left are not among the ready ones.
            None => {
                self.give_back(disk, finished);
                None
            }
        }
    }

    /// How a chunk ended: where it begins in its request, its status, and what was read.
    pub(crate) fn ended(&self, disk: u16, finished: &Finished) -> (u64, Status, &[u8]) {
        let chunk = self.attached(disk).and_then(|attached| attached.chunk(finished));
        let status = match finished.status {
            remote::wire::Status::Ok => Status::Ok,
            remote::wire::Status::Unsupported => Status::Unsupported,
            _ => Status::IoError,
        };
        match chunk {
            Some(chunk) => (chunk.skip, status, self.client.data(finished)),
            None => (0, Status::IoError, &[]),
        }
    }

    /// Gives the slot of a chunk that was reaped back.
    pub(crate) fn free(&mut self, disk: u16, finished: Finished) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.give_back(disk, finished);
    }

    fn give_back(&mut self, disk: u16, finished: Finished) {
        if let Some(attached) = disk_at(&mut self.disks, disk) {
            attached.end(finished.tag);
        }
        self.client.free(finished);
        if self.attached(disk).is_some_and(|attached| attached.state == State::Leaving) {
            self.forget(disk);
        }
    }

    /// The number is free again, once the attachment is over and nothing of it is under way.
    fn forget(&mut self, disk: u16) {
        let Some(attached) = disk_at(&mut self.disks, disk) else { return };
        if !attached.is_over || !attached.is_idle() {
            return;
        }
        let (attachment, device, standing) =
            (attached.attachment, attached.spec.device, attached.standing);
        if let Some(attachment) = attachment {
            self.client.detach(attachment);
        }
        if let Some(place) = self.disks.get_mut(usize::from(disk)) {
            *place = None;
        }
        self.events.push_back(LinkEvent::Freed(disk));
        self.is_stirred = true;
        let waits = |attached: &AttachedDisk| attached.waits() && attached.spec.device == device;
        let mut disks =
            (0..).zip(&mut self.disks).filter_map(|(at, attached)| Some((at, attached.as_mut()?)));
        if let Some((at, next)) = disks.find(|(_, attached)| waits(attached)) {
            if attachment.is_some() {
                next.standing = standing;
            }
            next.attachment = self.client.attach_again(next.spec, next.standing);
            if let Some(attachment) = next.attachment.filter(|_| next.accepts) {
                self.client.accept(attachment);
            }
            self.nics.renew(at, next.attachment);
            next.renew();
        }
    }

    /// Takes what came, and does what is due. How many frames came.
    pub(crate) fn receive(&mut self, now: u64) -> usize {
        let mut frames = 0;
        while frames < FRAMES_PER_PASS
            && let Some((from, frame)) = self.socket.receive()
        {
            frames += 1;
            let kind = Header::parse(frame).map(|header| header.kind);
            match kind {
                Ok(Kind::Sealed) if self.greeting.peer() == Some(from) => {
                    let nics = &mut self.nics;
                    self.client.receive(now, frame, &mut |attachment, net| {
                        nics.hear(attachment, net);
                    });
                }
                Ok(Kind::Cookie | Kind::Answer)
                    if self.greeting.awaits() == Some(from)
                        && self.greets < GREETS_MAX
                        && frame.len() <= handshake::FRAME_BYTES_MAX =>
                {
                    self.greets += 1;
                    let frame = frame.to_vec();
                    self.events.push_back(LinkEvent::Greet { frame, from });
                }
                _ => self.counters.strange.add(1),
            }
        }
        self.nics.tell();
        self.counters.frames_in.add(frames as u64);
        if frames > 0 || now >= self.due_at {
            self.is_stirred = true;
            self.client.tick(now);
            self.collect(now);
            if self.renews {
                self.renew_silent();
            }
            match self.greeting.step(self.client.wants_session(now), now) {
                Step::None => {}
                Step::Ask(iohost) => {
                    self.counters.handshakes.add(1);
                    self.events.push_back(LinkEvent::WantsSession(iohost));
                }
                Step::Say(_) => self.is_hello_due = true,
            }
        }
        frames
    }

    /// Once something is heard again, the same devices are asked for, when all that failed has been told.
    fn renew_silent(&mut self) {
        self.renews = false;
        for (disk, attached) in (0..).zip(&mut self.disks) {
            let Some(attached) =
                attached.as_mut().filter(|attached| attached.state == State::Silent)
            else {
                continue;
            };
            if !attached.is_idle() {
                self.renews = true;
                continue;
            }
            let before = attached.attachment.take();
            before.into_iter().for_each(|attachment| self.client.detach(attachment));
            attached.attachment = self.client.attach_again(attached.spec, attached.standing);
            if let Some(attachment) = attached.attachment.filter(|_| attached.accepts) {
                self.client.accept(attachment);
            }
            self.nics.renew(disk, attached.attachment);
            attached.renew();
        }
    }

    /// What ended, and what became of disks.
    fn collect(&mut self, now: u64) {
        while let Some(finished) = self.client.next_finished() {
            let is_it = |attached: &AttachedDisk| attached.attachment == Some(finished.attachment);
            let at = self.disks.iter().position(|attached| attached.as_ref().is_some_and(is_it));
            let Some(disk) = at.map(|at| at as u16) else {
                self.client.free(finished);
                continue;
            };
            match self.attached(disk).and_then(|attached| attached.tag(&finished)) {
                Some(_) => self.ready.push_back((disk, finished)),
                None => self.give_back(disk, finished),
            }
        }
        while let Some(event) = self.client.next_event() {
            self.hear(event, now);
        }
    }

    /// That device is a NIC: frames of a port go there and come from there while it is attached. It is given back when
    /// the port is no more, and its number is free then.
    pub fn plug_in(&mut self, disk: u16, nic: LinkNic) {
        let attachment = self.attached(disk).and_then(|attached| attached.wanted());
        self.nics.plug_in(disk, attachment, nic);
    }

    /// What is plugged in comes out: its port is gone then.
    pub fn unplug(&mut self, disk: u16) -> Option<LinkNic> {
        self.nics.unplug(disk)
    }

    /// Takes what ports have for the other end.
    fn take_from_ports(&mut self) {
        self.is_stirred |= self.nics.take(&mut self.client);
        while let Some(disk) = self.nics.abandoned() {
            match self.has(disk) {
                true => self.release(disk),
                false => self.events.push_back(LinkEvent::Freed(disk)),
            }
        }
    }

    /// Sends what there is to send, and finds out what is due next.
    pub(crate) fn send(&mut self, now: u64) {
        if !self.nics.is_empty() {
            self.take_from_ports();
        }
        if !self.is_stirred && now < self.due_at {
            return;
        }
        self.is_stirred = false;
        if std::mem::take(&mut self.is_hello_due)
            && let Some(to) = self.greeting.awaits()
        {
            let hello = self.greeting.hello();
            self.socket.send(|place| {
                place.get_mut(..hello.len())?.copy_from_slice(hello);
                Some((hello.len(), to))
            });
        }
        let mut sent = 0;
        if let Some(peer) = self.greeting.peer() {
            let client = &mut self.client;
            let mut next =
                |place: &mut [u8]| client.poll_transmit(now, place).map(|len| (len, peer));
            while sent < FRAMES_PER_PASS && self.socket.send(&mut next) {
                sent += 1;
            }
        }
        self.socket.flush();
        self.counters.frames_out.add(sent as u64);
        self.count(now);
        self.due_at = match sent {
            BURST.. => now,
            _ => self.client.due().unwrap_or(u64::MAX).min(self.greeting.due()),
        };
    }

    /// Shows what it has come to.
    fn count(&mut self, now: u64) {
        let (counters, counts) = (&self.counters, self.client.counts());
        counters.in_flight.set(self.in_flight as u64);
        counters.dropped.set(counts.frames_dropped);
        counters.mismatches.set(counts.mismatches);
        counters.violations.set(counts.violations);
        counters.writes_again.set(counts.writes_again);
        if now.saturating_sub(self.counted_at) >= COUNT_NS {
            self.counted_at = now;
            let losses = self.socket.losses();
            counters.lost_in.set(losses.received + losses.overrun);
            counters.lost_out.set(losses.sent);
            let stats = self.client.stats();
            counters.round_trip_ns.set(stats.round_trip_ns);
            counters.frames_sent.set(stats.frames_sent);
            counters.frames_lost.set(stats.frames_lost);
            counters.records_again.set(stats.records_again);
            counters.frames_under_way.set(stats.frames_under_way);
            counters.window_frames.set(stats.window_frames);
            counters.credit_frames.set(stats.credit_frames);
        }
    }

    /// When it is to be called again, if nothing comes.
    pub(crate) fn due(&self) -> u64 {
        self.due_at
    }

    /// Whether its sidecore may sleep, as far as what is here already goes.
    pub(crate) fn may_rest(&self) -> bool {
        self.ready.is_empty()
            && self.events.is_empty()
            && self.telling.is_empty()
            && !self.socket.has_some()
            && !self.is_stirred
            && !self.nics.have_some()
    }

    #[inline]
    fn attached(&self, disk: u16) -> Option<&AttachedDisk> {
        self.disks.get(usize::from(disk))?.as_ref()
    }
}

fn disk_at(disks: &mut [Option<AttachedDisk>], disk: u16) -> Option<&mut AttachedDisk> {
    disks.get_mut(usize::from(disk))?.as_mut()
}

fn wire_op(op: Op) -> remote::wire::Op {
    match op {
        Op::Read => remote::wire::Op::Read,
        Op::Write { sync } => remote::wire::Op::Write { sync },
        Op::Flush => remote::wire::Op::Flush,
        Op::Discard => remote::wire::Op::Discard,
        Op::WriteZeroes { unmap, sync } => remote::wire::Op::WriteZeroes { unmap, sync },
    }
}
