//! The client's end: one session with an IOhost, and the attachments that outlive it.
//!
//! Not where requests come from. One thread has it. Nothing is allocated for a request once its attachment was made.
//!
//! ```text
//! attach(..)           a device is wanted            next_event()     what became of it, and of sessions
//! submit(..)           a request, with its bytes     next_finished()  how it ended; data(..), then free(..)
//! establish(..)        a handshake has ended         wants_session()  another one is to begin
//! receive(now, frame)  what came                     poll_transmit()  what goes
//! tick(now)            time has passed               due()            until when it may
//! ```

use crate::SessionStats;
use crate::handshake::Established;
use crate::net::NetQueue;
use crate::seal::Seal;
use crate::session::{FIRST_LEASES, Session};
use crate::wire::{HEADER_BYTES, Header, Intent, Net};

mod attachment;
mod handing;
mod held;
mod kinds;
mod slot;

use attachment::Attachment;
use held::{Hearing, Held};
pub use kinds::{
    AttachSpec, ClientSpec, Counts, Event, Finished, Over, Refusal, Rejected, Request, Standing,
};

/// Timers that ran out, one after the other, before a session is asked for while an old one is there.
const BACKOFF_PATIENCE: u32 = 6;
const SILENCE_PATIENCE_NS: u64 = 500_000_000;
/// Keys are made anew after this time.
const SESSION_NS_MAX: u64 = 3_600_000_000_000;

/// The client's end.
#[derive(Debug)]
pub struct Client {
    spec: ClientSpec,
    session: Option<Session>,
    held: Held,
    net: NetQueue,
    is_net_next: bool,
    ticked_at: u64,
    /// When anything was last heard, and until when some session may live at an IOhost and execute something.
    heard_at: u64,
    fenced_at: u64,
    /// No attachment has heard nothing since before this.
    quiet_from: u64,
    /// After something was heard in this session: for how long the IOhost may execute something.
    fence_ns: u64,
    counts: Counts,
}

impl Client {
    /// Without a session yet.
    pub fn new(spec: ClientSpec, now: u64) -> Client {
        Client {
            spec,
            session: None,
            held: Held::new(),
            net: NetQueue::default(),
            is_net_next: false,
            ticked_at: now,
            heard_at: now,
            fenced_at: now,
            quiet_from: now,
            fence_ns: 0,
            counts: Counts::default(),
        }
    }

    /// Asks for a device, from whoever has it. `None`: there are [`crate::ATTACHMENTS_MAX`] already, or the
    /// numbers do not fit.
    pub fn attach(&mut self, spec: AttachSpec) -> Option<u16> {
        self.attach_again(spec, None)
    }

    /// The same, of a device that this client, or an earlier one of its guest, had before: with other contents it is
    /// not served ([`Refusal::Changed`]), and if what was not flushed may be gone, no flush ends well.
    pub fn attach_again(&mut self, spec: AttachSpec, standing: Option<Standing>) -> Option<u16> {
        self.add(spec, Intent::Take, standing)
    }

    /// Asks what a device is.
    pub fn look(&mut self, device: u64) -> Option<u16> {
        self.add(
            AttachSpec { device, slots: 1, slot_bytes: 512, keep_bytes: 0 },
            Intent::Look,
            None,
        )
    }

    fn add(&mut self, spec: AttachSpec, intent: Intent, standing: Option<Standing>) -> Option<u16> {
        if self.held.used() == 0 {
            self.quiet_from = self.ticked_at;
        }
        let (instance, since) = (self.spec.instance, self.ticked_at);
        self.held.add(|index| {
            let made = Attachment::new(index, instance, since, spec, intent)?;
            Some(made.after(standing))
        })
    }

    /// Gives a device back: [`Event::Over`] says when nothing of it can be executed any more.
    pub fn release(&mut self, attachment: u16) {
        self.held.release(attachment);
    }

    /// Whoever uses it knows that writes may be gone: flushes may end well again.
    pub fn forgive(&mut self, attachment: u16) {
        if let Some(one) = self.held.attachment(attachment) {
            one.forgive();
        }
    }

    /// Whoever uses it knows that it may be another one, with other contents: it is served as it is when it is bound next,
    /// or is bound now.
    pub fn accept(&mut self, attachment: u16) {
        self.held.accept(attachment);
    }

    /// Its guest is on that image, as an IOhost said before.
    pub fn remember_image(&mut self, attachment: u16, image: u64) {
        if let Some(one) = self.held.attachment(attachment) {
            one.remember_image(image);
        }
    }

    /// Forgets an attachment that is over, or is not wanted any more: an IOhost that has it lets go of it.
    pub fn detach(&mut self, attachment: u16) {
        self.held.detach(attachment);
    }

    /// Takes a request over, which waits as long as it must. Of a write `fill` puts all bytes into the slot's own
    /// memory; when it says false, nothing has changed. For other requests it is not called.
    pub fn submit(
        &mut self,
        attachment: u16,
        request: Request,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<(), Rejected> {
        let part_bytes = self.session.as_ref().map_or(512, |session| session.part_bytes);
        let one = self.held.attachment(attachment).ok_or(Rejected::Over)?;
        one.submit(request, fill, part_bytes)?;
        self.held.touch(attachment);
        Ok(())
    }

    /// Whether a request may come now. It would be taken otherwise, too, but then nothing may be left of what is kept
    /// of writes ([`AttachSpec::keep_bytes`]). `promised`: bytes of writes that were begun and have not ended.
    pub fn may_submit(&self, attachment: u16, promised: u64) -> bool {
        self.held.get(attachment).is_none_or(|one| one.may_submit(promised))
    }

    /// What [`Event::Stands`] said last of the device is kept. Until then nothing of it is sent again that a machine
    /// has lost, nor any request behind that.
    pub fn stands(&mut self, attachment: u16) {
        if let Some(one) = self.held.attachment(attachment) {
            one.stands();
            self.held.touch(attachment);
        }
    }

    /// A request that ended.
    pub fn next_finished(&mut self) -> Option<Finished> {
        self.held.next_finished()
    }

    /// What was read.
    pub fn data(&self, finished: &Finished) -> &[u8] {
        self.held.get(finished.attachment).map_or(&[], |one| one.data(finished.slot))
    }

    /// Gives the slot back.
    pub fn free(&mut self, finished: Finished) {
        if let Some(one) = self.held.attachment(finished.attachment) {
            one.free(finished.slot);
        }
    }

    /// What became of attachments and sessions.
    pub fn next_event(&mut self) -> Option<Event> {
        self.held.events.pop_front()
    }

    /// Requests of an attachment that have not ended.
    pub fn outstanding(&self, attachment: u16) -> usize {
        self.held.get(attachment).map_or(0, Attachment::outstanding)
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
    pub fn establish(&mut self, made: Established, now: u64) -> bool {
        let (keys, agreed) = made.split();
        let session = Seal::new(keys)
            .and_then(|seal| Session::new(seal, &agreed, u64::from(self.spec.ring_frames), now));
        let Some(session) = session else { return false };
        // What is heard was sent before: from then the IOhost counts the lease, and at its end a request may
        // just have gone to the disk. An eighth is for clocks that do not run alike.
        let work_ns = u64::from(agreed.terms.work_ms) * 1_000_000;
        let fence_ns = |leases| {
            let fence_ns = session.lease_ns.saturating_mul(leases).saturating_add(work_ns);
            fence_ns.saturating_add(fence_ns / 8)
        };
        self.fenced_at = self.fenced_at.max(now.saturating_add(fence_ns(FIRST_LEASES)));
        self.fence_ns = fence_ns(1);
        self.net = NetQueue::default();
        self.session = Some(session);
        self.heard(now);
        self.held.lost_session();
        self.held.events.push_back(Event::SessionBegan);
        true
    }

    fn heard(&mut self, now: u64) {
        self.heard_at = self.heard_at.max(now);
        self.quiet_from = self.heard_at;
        // Never less: an older session with a longer lease may still live.
        self.fenced_at = self.fenced_at.max(now.saturating_add(self.fence_ns));
    }

    fn end_session(&mut self) {
        if self.session.take().is_some() {
            self.held.lost_session();
            self.held.events.push_back(Event::SessionEnded);
        }
    }

    /// A frame that came, which is opened in place. `net` gets frames for NICs, in
    /// pieces. False when it was dropped.
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
        let session = self.session.as_mut().filter(|session| session.mine == header.session)?;
        let end = session.open(now, &header, frame)?;
        self.heard(now);
        let session = self.session.as_mut()?;
        let (held, counts, part_bytes) = (&mut self.held, &mut self.counts, session.part_bytes);
        let mut hearing = Hearing { held, counts, part_bytes, now, net };
        let is_borne =
            session.hear(now, header.counter, frame.get(HEADER_BYTES..end)?, &mut hearing);
        self.counts.violations += u64::from(!is_borne);
        is_borne.then_some(())
    }

    /// The next frame to send, into `buffer`: its length. `None`: nothing now. At most 32 at one `now`.
    pub fn poll_transmit(&mut self, now: u64, buffer: &mut [u8]) -> Option<usize> {
        let session = self.session.as_mut()?;
        let mut out = session.begin(now, buffer)?;
        if out.may_ask {
            self.held.ask(now);
            self.held.outbox.fill(&mut out);
            let may_net = !self.held.has_queued() || session.has_room_for_net();
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

    /// A frame that says that this end is done with its session, so that the IOhost need not wait for the end of its
    /// lease. Nothing more is to be sent.
    pub fn farewell(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.session.as_mut()?.farewell(buffer)
    }

    /// Whether [`Client::send_net`] has a place for any frame.
    pub fn has_net_room(&self) -> bool {
        self.net.has_room()
    }

    /// Whether an attachment is bound in this session.
    pub fn is_bound(&self, attachment: u16) -> bool {
        self.held.get(attachment).is_some_and(|one| one.bound_handle().is_some())
    }

    /// A frame of a NIC, which is sent once or dropped. False when it was dropped.
    pub fn send_net(&mut self, attachment: u16, data: &[u8]) -> bool {
        let handle = self.held.get(attachment).and_then(Attachment::bound_handle);
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
                self.end_session();
            }
        }
        if let Some(after_ns) = self.spec.fail_after_ns
            && self.fails_at().is_some_and(|at| at <= now)
        {
            // From now on nothing of the old session may be sent or taken.
            self.end_session();
            let quiet = self.held.fail_silent(self.heard_at, now.saturating_sub(after_ns));
            self.quiet_from = quiet.unwrap_or(now);
        }
    }

    /// When [`Client::tick`] or [`Client::poll_transmit`] is due, if nothing happens before.
    pub fn due(&self) -> Option<u64> {
        let session = self.session.as_ref().map(Session::due);
        // What is due already goes with the next frame.
        let retry = self.held.asks_at().filter(|at| *at > self.ticked_at && session.is_some());
        [session, retry, self.fails_at()].into_iter().flatten().min()
    }

    /// What was dropped.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How the way to the IOhost is; zeroes without a session.
    pub fn stats(&self) -> SessionStats {
        self.session.as_ref().map(Session::stats).unwrap_or_default()
    }

    /// When an attachment may have heard nothing for too long.
    fn fails_at(&self) -> Option<u64> {
        let after_ns = self.spec.fail_after_ns.filter(|_| self.held.used() > 0)?;
        Some(self.quiet_from.saturating_add(after_ns).max(self.fenced_at))
    }
}
