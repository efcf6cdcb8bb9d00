//! A session: keys, one counter, one window, what came and what is under way. One thread has it.
//!
//! Not what records mean, but for acknowledgements. Called by `client` and `iohost`, which differ in the rest.

use crate::handshake::Established;
use crate::loss::{ACK_DELAY_NS, Fate, Flight, Mark, Note, Rang};
use crate::received::Received;
use crate::seal::Seal;
use crate::wire::{
    ACK_BLOCKS_MAX, AckBlocks, Builder, HEADER_BYTES, Header, Kind, Malformed, PART_BYTES,
    RECORD_HEAD_BYTES, Record,
};

/// Frames sent at one time; the caller comes again with a later one.
const BURST_MAX: u32 = 32;
/// An acknowledgement of one block, which goes along with a fragment.
const SHORT_ACK_BYTES: usize = RECORD_HEAD_BYTES + 8 + 16;
/// Frames that ask after which an acknowledgement is sent at once.
const ACK_AFTER: u32 = 2;
/// Frames of one key: their 2^39 blocks are far from what AES-GCM bears. New keys are asked for then.
const COUNTER_WORN: u64 = 1 << 32;
/// No frame is sent beyond.
const COUNTER_END: u64 = 1 << 34;
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
    owed: u32,
    /// The peer may use counters below; and how far ahead of what came that is.
    credit_told: u64,
    pub(crate) credit_share: u64,
    /// Counters below this one may be used.
    credit: u64,
    is_probing: bool,
    burst_at: u64,
    burst: u32,
    pub(crate) is_over: bool,
}

/// A frame being filled.
pub(crate) struct Out<'a> {
    builder: Builder<'a>,
    note: Note,
    blocks: [(u64, u64); ACK_BLOCKS_MAX],
    blocks_len: usize,
    credit: u64,
    /// Whether records may go along, as far as window and credit are concerned.
    pub(crate) may_ask: bool,
    asks: bool,
    /// Something did not fit.
    is_full: bool,
}

impl Out<'_> {
    /// Puts a record in, whose fate its owner wants to know; false when it must wait for the next frame.
    pub(crate) fn push(&mut self, record: &Record<'_>, mark: Option<Mark>) -> bool {
        if mark.is_some() && !self.note.has_room() || !self.builder.push(record) {
            self.is_full = true;
            return false;
        }
        self.asks = true;
        if let Some(mark) = mark {
            self.note.add(mark);
        }
        true
    }

    /// Puts a frame of a NIC in, which nobody asks about.
    pub(crate) fn push_net(&mut self, handle: u32, data: &[u8]) -> bool {
        let fits = self.push(&Record::Net { handle, data }, None);
        if fits {
            self.note.net_bytes += data.len() as u32;
        }
        fits
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }
}

impl Session {
    pub(crate) fn new(made: &Established, share: u64, now: u64) -> Option<Session> {
        let seal = Seal::new(&made.keys)?;
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
            owed: 0,
            credit_told: share,
            credit_share: share.max(1),
            credit: made.credit,
            is_probing: false,
            burst_at: now,
            burst: 0,
            is_over: false,
        })
    }

    /// Opens a frame in place: its counter, and where its records end. `None`: it is dropped.
    pub(crate) fn open(&mut self, now: u64, header: &Header, frame: &mut [u8]) -> Option<usize> {
        if self.is_over || header.kind != Kind::Sealed || !self.received.is_fresh(header.counter) {
            return None;
        }
        let end = self.seal.open(header.counter, frame)?;
        // Out of order is told at once: somebody waits to know what was lost.
        if header.counter != self.received.next() {
            self.ack_at = Some(now);
        }
        self.received.see(header.counter);
        self.heard_at = now;
        Some(end)
    }

    /// All records of the frame were taken; `asks` when one was more than an acknowledgement.
    pub(crate) fn take(&mut self, counter: u64, asks: bool, now: u64) {
        self.received.take(counter, asks);
        if asks {
            self.owed += 1;
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
        self.credit = self.credit.max(credit);
        for (block, mask) in blocks {
            self.flight.acked(block, mask, now, fate)?;
        }
        self.flight.give_up_overtaken(now, fate);
        Ok(())
    }

    /// Begins a frame in `buffer`. `None`: nothing may be sent now.
    pub(crate) fn begin<'a>(&mut self, now: u64, buffer: &'a mut [u8]) -> Option<Out<'a>> {
        if now != self.burst_at {
            (self.burst_at, self.burst) = (now, 0);
        }
        if self.is_over || self.burst >= BURST_MAX || self.flight.next() >= COUNTER_END {
            return None;
        }
        let len = buffer.len().min(self.frame_bytes);
        let mut builder = Builder::new(&mut buffer[..len], self.seal.tag_bytes());
        let mut blocks = [(0, 0); ACK_BLOCKS_MAX];
        let blocks_len = self.received.owed(ACK_BLOCKS_MAX, &mut blocks);
        let credit = self.received.next().saturating_add(self.credit_share).max(self.credit_told);
        if blocks_len > 0 {
            builder.push_ack(credit, &blocks[..blocks_len]);
        }
        let may_ask =
            self.flight.has_room(self.credit) || self.is_probing && self.flight.has_place();
        let (note, asks, is_full) = (Note::new(), false, false);
        Some(Out { builder, note, blocks, blocks_len, credit, may_ask, asks, is_full })
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
        let counter = self.flight.next();
        let len = out.builder.len();
        let buffer = out.builder.into_buffer();
        let header = Header { kind: Kind::Sealed, session: self.theirs, counter };
        buffer.get_mut(..HEADER_BYTES)?.copy_from_slice(&header.bytes());
        let end = self.seal.seal(counter, buffer, len)?;
        out.note.bytes = end as u32;
        self.flight.spend(now, out.asks.then_some(&out.note));
        self.burst += 1;
        if out.asks {
            (self.asked_at, self.is_probing) = (now, false);
        }
        if out.blocks_len > 0 {
            self.received.told(&out.blocks[..out.blocks_len]);
            self.credit_told = out.credit;
            (self.owed, self.ack_at) = (0, self.received.owes().then_some(now));
        }
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
        let ping_at = self.asked_at.saturating_add(self.lease_ns / PINGS);
        let ack_at = self.ack_at.filter(|_| self.received.owes()).unwrap_or(u64::MAX);
        let timer_at = self.flight.due().unwrap_or(u64::MAX);
        let over_at = self.flight.answered_at().saturating_add(self.lease_ns);
        ping_at.min(ack_at).min(timer_at).min(over_at)
    }

    /// Whether the peer may no longer count on this session: it has acknowledged nothing that was sent within
    /// the lease. Counted from when it was *sent*: what is late by any time prolongs nothing.
    pub(crate) fn is_dead(&self, now: u64) -> bool {
        self.is_over || now >= self.flight.answered_at().saturating_add(self.lease_ns)
    }

    /// Whether new keys are wanted.
    pub(crate) fn is_worn(&self) -> bool {
        self.flight.next() >= COUNTER_WORN || self.received.next() >= COUNTER_WORN
    }
}
