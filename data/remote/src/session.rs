//! A session: keys, one counter, one window, what came and what is under way. One thread has it.
//!
//! Not what records mean, but for acknowledgements. Called by `client` and `iohost`, which differ in the rest.

use crate::handshake::Agreed;
use crate::loss::{ACK_DELAY_NS, Fate, Flight, Mark, Note, Rang, SessionStats};
use crate::received::Received;
use crate::seal::Seal;
use crate::wire::{
    ACK_BLOCKS_MAX, AckBlocks, Builder, HEADER_BYTES, Header, Kind, Malformed, NET_BYTES, Net,
    PART_BYTES, Piece, RECORD_HEAD_BYTES, Record, Records,
};

/// Frames sent at one time; the caller comes again with a later one.
const BURST_MAX: u32 = 32;
/// An acknowledgement of one block, which goes along with a fragment.
const SHORT_ACK_BYTES: usize = RECORD_HEAD_BYTES + 8 + 16;
/// An acknowledgement is sent at once when what frames ask for comes to this much: two that have more than NICs' frames, or
/// eight that have nothing else, since these are never sent again.
const ACK_AFTER: u32 = 8;
pub(crate) const ACK_REQUESTS: u32 = 4;
const ACK_NET: u32 = 1;
/// Every frame counts as one with requests for so many frames after one came out of order: somebody finds out by them what
/// was lost. And with a peer that may have fewer than so many under way: it would wait for each acknowledgement.
const HURRIED: u32 = 64;
const CREDIT_SMALL: u64 = 16;
/// Frames of one key: their 2^39 blocks are far from what AES-GCM bears. New keys are asked for then.
const COUNTER_WORN: u64 = 1 << 32;
/// No frame is sent beyond.
const COUNTER_END: u64 = 1 << 34;
/// From a session's beginning until something must have been acknowledged.
pub(crate) const FIRST_LEASES: u64 = 2;
/// Of a lease, between two frames that ask.
const PINGS: u64 = 8;

/// One end of one session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) mine: u32,
    theirs: u32,
    seal: Seal,
    received: Received,
    pub(crate) flight: Flight,
    frame_bytes: usize,
    /// Of each fragment but a request's last one.
    pub(crate) part_bytes: usize,
    pub(crate) lease_ns: u64,
    /// When a frame of the peer's was last heard.
    pub(crate) heard_at: u64,
    pub(crate) made_at: u64,
    asked_at: u64,
    ack_at: Option<u64>,
    /// The frame that was opened last came right after the one before: what it acknowledges was not told before by one
    /// that was lost, so that its time is a round trip, and not one with the other end's timers in it.
    is_next: bool,
    /// How much frames that came ask for an acknowledgement.
    owed: u32,
    /// Frames that are still to be acknowledged soon, whatever is in them.
    hurried: u32,
    /// Frames that the peer may have under way to this end, and this end to the peer.
    pub(crate) credit_share: u64,
    credit: u64,
    is_probing: bool,
    burst_at: u64,
    burst: u32,
    /// A burst ended before all was said: it goes on at any later time.
    is_cut_short: bool,
    pub(crate) is_over: bool,
}

/// What an end does with the records of its peer.
pub(crate) trait Hears: Fate {
    /// Whether it was taken; an error when the peer must not say that. Acknowledgements, pings and closes do not
    /// come here.
    fn record(&mut self, record: &Record<'_>) -> Result<bool, Malformed>;
}

/// A frame being filled.
pub(crate) struct Out<'a> {
    builder: Builder<'a>,
    note: Note,
    blocks: [(u64, u64); ACK_BLOCKS_MAX],
    blocks_len: usize,
    /// Whether records may go along, as far as window and credit are concerned.
    pub(crate) may_ask: bool,
    asks: bool,
    count: u32,
    /// Something did not fit.
    is_full: bool,
}

impl Out<'_> {
    /// Puts a record in, whose fate its owner wants to know; false when it must wait for the next frame.
    pub(crate) fn push(&mut self, record: &Record<'_>, mark: Option<Mark>) -> bool {
        let fits = (mark.is_none() || self.note.has_room()) && self.builder.push(record);
        self.pushed(fits, mark)
    }

    /// The same with a piece, whose `len` bytes `load` writes where they are sent from.
    pub(crate) fn push_piece(
        &mut self,
        piece: &Piece<'_>,
        len: usize,
        mark: Mark,
        load: impl FnOnce(&mut [u8]),
    ) -> bool {
        let fits = self.note.has_room() && self.builder.push_piece(piece, len, load);
        self.pushed(fits, Some(mark))
    }

    fn pushed(&mut self, fits: bool, mark: Option<Mark>) -> bool {
        if !fits {
            self.is_full = true;
            return false;
        }
        self.asks = true;
        self.count += 1;
        if let Some(mark) = mark {
            self.note.add(mark);
        }
        true
    }

    /// Records that were put in.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of a NIC's frame that still fit.
    pub(crate) fn net_room(&self) -> usize {
        self.builder.room().saturating_sub(RECORD_HEAD_BYTES + NET_BYTES)
    }

    /// More is to be said than fits.
    pub(crate) fn is_full(&mut self) {
        self.is_full = true;
    }

    /// Puts a piece of a NIC's frame in, which nobody asks about; `load` writes its `len` bytes.
    pub(crate) fn push_net(
        &mut self,
        net: &Net<'_>,
        len: usize,
        load: impl FnOnce(&mut [u8]),
    ) -> bool {
        let fits = self.builder.push_net(net, len, load);
        if self.pushed(fits, None) {
            self.note.net_bytes += len as u32;
        }
        fits
    }
}

impl Session {
    /// Begun at `begun`: its lease counts from then. `None` when its frames are too short.
    pub(crate) fn new(seal: Seal, made: &Agreed, share: u64, begun: u64) -> Option<Session> {
        let now = begun;
        let frame_bytes = usize::from(made.terms.frame_bytes);
        let used = HEADER_BYTES + seal.tag_bytes() + SHORT_ACK_BYTES;
        let part_bytes = frame_bytes.checked_sub(used + RECORD_HEAD_BYTES + PART_BYTES)? & !7;
        Some(Session {
            mine: made.mine,
            theirs: made.theirs,
            seal,
            received: Received::new(),
            flight: Flight::new(frame_bytes, now),
            frame_bytes,
            part_bytes,
            lease_ns: u64::from(made.terms.lease_ms) * 1_000_000,
            heard_at: now,
            made_at: now,
            asked_at: now,
            ack_at: None,
            is_next: false,
            owed: 0,
            hurried: HURRIED,
            credit_share: share.max(1),
            credit: made.credit,
            is_probing: false,
            burst_at: now,
            burst: 0,
            is_cut_short: false,
            is_over: false,
        })
    }

    /// Whether frames of NICs may use more of window and credit, when requests want them, too.
    pub(crate) fn has_room_for_net(&self) -> bool {
        self.flight.has_room_for_net(self.credit)
    }

    /// How the way to the other end is.
    pub(crate) fn stats(&self) -> SessionStats {
        self.flight.stats(self.credit)
    }

    /// Opens a frame in place: its counter, and where its records end. `None`: it is dropped.
    pub(crate) fn open(&mut self, now: u64, header: &Header, frame: &mut [u8]) -> Option<usize> {
        if self.is_over || header.kind != Kind::Sealed || !self.received.is_fresh(header.counter) {
            return None;
        }
        let end = self.seal.open(header.counter, frame)?;
        self.see(now, header.counter);
        Some(end)
    }

    /// A frame with this counter was opened.
    pub(crate) fn see(&mut self, now: u64, counter: u64) {
        // Out of order is told at once: somebody waits to know what was lost.
        self.is_next = counter == self.received.next();
        if !self.is_next {
            self.ack_at = Some(now);
            self.hurried = HURRIED;
        }
        self.received.see(counter);
        self.heard_at = self.heard_at.max(now);
    }

    /// Goes through the records of a frame that was opened. False when the peer must not say that: the session
    /// is over then.
    pub(crate) fn hear(
        &mut self,
        now: u64,
        counter: u64,
        body: &[u8],
        end: &mut impl Hears,
    ) -> bool {
        let (mut asks, mut is_whole) = (0, true);
        for record in Records::new(body) {
            asks = asks.max(match record {
                Ok(Record::Ack { .. } | Record::Pad) => 0,
                Ok(Record::Net(_)) => ACK_NET,
                _ => ACK_REQUESTS,
            });
            let taken = match record {
                Ok(Record::Ack { credit, blocks }) => {
                    self.acked(credit, blocks, now, end).map(|()| true)
                }
                Ok(Record::Ping | Record::Pad) => Ok(true),
                Ok(Record::Close) => {
                    self.is_over = true;
                    Ok(true)
                }
                Ok(record) => end.record(&record),
                Err(malformed) => Err(malformed),
            };
            match taken {
                Ok(is_taken) => is_whole &= is_taken,
                Err(_) => {
                    self.is_over = true;
                    return false;
                }
            }
        }
        if is_whole {
            self.take(counter, asks, now);
        }
        true
    }

    /// All records of the frame were taken; `asks` is how much for an acknowledgement, 0 when it was nothing but one.
    pub(crate) fn take(&mut self, counter: u64, asks: u32, now: u64) {
        self.received.take(counter, asks > 0);
        if asks > 0 {
            let is_soon = self.hurried > 0 || self.credit_share < CREDIT_SMALL;
            self.hurried = self.hurried.saturating_sub(1);
            self.owed = self.owed.saturating_add(if is_soon { ACK_REQUESTS } else { asks });
            let at = if self.owed >= ACK_AFTER { now } else { now + ACK_DELAY_NS };
            self.ack_at = Some(self.ack_at.map_or(at, |before| before.min(at)));
        } else if self.owed == 0 {
            self.ack_at = None;
        }
    }

    pub(crate) fn acked(
        &mut self,
        credit: u64,
        blocks: AckBlocks<'_>,
        now: u64,
        fate: &mut impl Fate,
    ) -> Result<(), Malformed> {
        self.credit = credit;
        for (block, mask) in blocks {
            self.flight.acked(block, mask, now, fate)?;
        }
        self.flight.settle(self.is_next, now, fate);
        Ok(())
    }

    /// Begins a frame in `buffer`. `None`: nothing may be sent now.
    pub(crate) fn begin<'a>(&mut self, now: u64, buffer: &'a mut [u8]) -> Option<Out<'a>> {
        if now != self.burst_at {
            (self.burst_at, self.burst, self.is_cut_short) = (now, 0, false);
        }
        if self.is_over || self.flight.next() >= COUNTER_END {
            return None;
        }
        if self.burst >= BURST_MAX {
            self.is_cut_short = true;
            return None;
        }
        let len = buffer.len().min(self.frame_bytes);
        let mut builder = Builder::new(&mut buffer[..len], self.seal.tag_bytes());
        let mut blocks = [(0, 0); ACK_BLOCKS_MAX];
        let blocks_len = self.received.owed(ACK_BLOCKS_MAX, &mut blocks);
        if blocks_len > 0 {
            builder.push_ack(self.credit_share, &blocks[..blocks_len]);
        }
        let may_ask =
            self.flight.has_room(self.credit) || self.is_probing && self.flight.has_place();
        let (note, asks, count, is_full) = (Note::new(), false, 0, false);
        Some(Out { builder, note, blocks, blocks_len, may_ask, asks, count, is_full })
    }

    /// Seals a frame, if there is a reason to send it: its bytes at the start of the buffer.
    pub(crate) fn commit(&mut self, now: u64, mut out: Out<'_>) -> Option<usize> {
        let is_quiet = now.saturating_sub(self.asked_at) >= self.lease_ns / PINGS;
        if !out.asks && (is_quiet || self.is_probing) && self.flight.has_place() {
            out.asks = out.builder.push(&Record::Ping);
        }
        let is_due = self.ack_at.is_some_and(|at| at <= now) || out.is_full;
        let tells = out.blocks_len > 0 && is_due;
        if !out.asks && !tells {
            return None;
        }
        // Another one follows. Of one length the kernel takes them as one message, which is worth some bytes.
        if out.is_full && out.builder.room() <= self.frame_bytes / 4 {
            out.builder.pad();
        }
        let end = self.seal(out.builder)?;
        out.note.bytes = end as u32;
        self.flight.spend(now, out.asks.then_some(&out.note));
        self.burst += 1;
        if out.asks {
            (self.asked_at, self.is_probing) = (now, false);
        }
        if out.blocks_len > 0 {
            self.received.told(&out.blocks[..out.blocks_len]);
            (self.owed, self.ack_at) = (0, self.received.owes().then_some(now));
        }
        Some(end)
    }

    /// Seals what was put together, under the next counter, which the caller spends: its bytes.
    fn seal(&mut self, builder: Builder<'_>) -> Option<usize> {
        let counter = self.flight.next();
        let len = builder.len();
        let buffer = builder.into_buffer();
        let header = Header { kind: Kind::Sealed, session: self.theirs, counter };
        buffer.get_mut(..HEADER_BYTES)?.copy_from_slice(&header.bytes());
        self.seal.seal(counter, buffer, len)
    }

    /// A frame that says that the session is over, whatever window and credit are. Nobody asks whether it came: who
    /// wants to be surer says it more than once.
    pub(crate) fn farewell(&mut self, buffer: &mut [u8]) -> Option<usize> {
        if self.is_over || self.flight.next() >= COUNTER_END {
            return None;
        }
        let len = buffer.len().min(self.frame_bytes);
        let mut builder = Builder::new(&mut buffer[..len], self.seal.tag_bytes());
        if !builder.push(&Record::Close) {
            return None;
        }
        let end = self.seal(builder)?;
        self.flight.spend(self.asked_at, None);
        Some(end)
    }

    /// Does what is due by now.
    pub(crate) fn tick(&mut self, now: u64, fate: &mut impl Fate) {
        if self.flight.rang(now, fate) == Rang::Probe {
            self.is_probing = true;
        }
    }

    /// When [`Session::tick`], or sending, is due.
    pub(crate) fn due(&self) -> u64 {
        let over_at = self.over_at();
        if self.is_over || self.flight.next() >= COUNTER_END {
            return if self.is_over { 0 } else { over_at };
        }
        let mut ping_at = self.asked_at.saturating_add(self.lease_ns / PINGS);
        if !self.flight.has_place() {
            ping_at = u64::MAX;
        }
        if self.is_cut_short {
            ping_at = ping_at.min(self.burst_at + 1);
        }
        let ack_at = self.ack_at.filter(|_| self.received.owes()).unwrap_or(u64::MAX);
        let timer_at = self.flight.due().unwrap_or(u64::MAX);
        ping_at.min(ack_at).min(timer_at).min(over_at)
    }

    /// Whether the peer may no longer count on this session: it has acknowledged nothing that was sent within
    /// the lease. Counted from when it was *sent*: what is late by any time prolongs nothing.
    pub(crate) fn is_dead(&self, now: u64) -> bool {
        self.is_over || now >= self.over_at()
    }

    /// The handshake is a round trip in which no frame is acknowledged yet: the first lease is twice as long.
    fn over_at(&self) -> u64 {
        let leases = if self.flight.is_answered() { 1 } else { FIRST_LEASES };
        self.flight.answered_at().saturating_add(leases * self.lease_ns)
    }

    /// Whether new keys are wanted.
    pub(crate) fn is_worn(&self) -> bool {
        self.flight.next() >= COUNTER_WORN || self.received.next() >= COUNTER_WORN
    }
}
