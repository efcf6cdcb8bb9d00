//! What is under way and what became of it: round trips, losses, the window. The sending half of a session.
//!
//! A frame is never sent twice: what a lost one carried is told to its owner ([`Fate`]), who puts what still
//! matters into a new one. RFC 6298 for the timer, RFC 9002 for losses. All memory is taken at the start. Called by `session`.

use crate::wire::Malformed;

/// Frames that may be under way; their records are kept for as long.
pub(crate) const FRAMES: usize = 512;
/// Counters that are remembered. Twice as many, since pure acknowledgements spend counters, too.
const PLACES: usize = 2 * FRAMES;
/// Records of one frame whose fate somebody wants to know.
pub(crate) const MARKS: usize = 12;
/// Acknowledgements of later frames after which one is lost.
const LATER: u64 = 3;
/// The timer before there is an estimate.
const FIRST_NS: u64 = 10_000_000;
const TIMER_MIN_NS: u64 = 2_000_000;
/// The timer doubles with every second ring until here: when a partition ends, somebody asks within this time.
const TIMER_MAX_NS: u64 = 1_000_000_000;
/// An acknowledgement waits at most so long for a frame to go along with.
pub(crate) const ACK_DELAY_NS: u64 = 500_000;
/// Timers that ring one after the other until all that is under way counts as lost.
const SILENT: u32 = 4;
const WINDOW_FIRST: u64 = 10;
const WINDOW_MIN: u64 = 2;

/// A record, as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) kind: MarkKind,
    /// Which part of the slot's data.
    pub(crate) part: u8,
    /// A slot, or a place of the outbox.
    pub(crate) slot: u16,
    /// The attachment's handle.
    pub(crate) handle: u32,
    /// The slot's turn, or the message's number.
    pub(crate) turn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkKind {
    /// A message of the outbox.
    Control,
    /// A fragment of a request, or of an answer.
    Part,
    /// A recall.
    Recall,
}

const NO_MARK: Mark = Mark { kind: MarkKind::Control, part: 0, slot: 0, handle: 0, turn: 0 };

/// Who wants to know what became of records.
pub(crate) trait Fate {
    /// The peer has it.
    fn taken(&mut self, mark: Mark);
    /// It is to be sent again, if it still matters.
    fn lost(&mut self, mark: Mark);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Flying,
    /// Given up; a late acknowledgement still says that its records were taken.
    Lost,
}

#[derive(Clone, Debug)]
struct Sent {
    /// Nothing but a ping: it takes no credit from those who have something to say.
    is_ping: bool,
    counter: u64,
    at: u64,
    bytes: u32,
    net_bytes: u32,
    state: State,
    marks_len: u8,
    marks: [Mark; MARKS],
}

/// A frame that goes out, as it is noted.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) bytes: u32,
    pub(crate) net_bytes: u32,
    pub(crate) marks_len: u8,
    pub(crate) marks: [Mark; MARKS],
}

impl Note {
    pub(crate) fn new() -> Note {
        Note { bytes: 0, net_bytes: 0, marks_len: 0, marks: [NO_MARK; MARKS] }
    }

    pub(crate) fn has_room(&self) -> bool {
        usize::from(self.marks_len) < MARKS
    }

    /// Only where [`Note::has_room`].
    pub(crate) fn add(&mut self, mark: Mark) {
        if let Some(place) = self.marks.get_mut(usize::from(self.marks_len)) {
            *place = mark;
            self.marks_len += 1;
        }
    }
}

/// Frames under way.
#[derive(Debug)]
pub(crate) struct Flight {
    sent: Vec<Sent>,
    /// By place: flying or lost, so that an acknowledgement looks only at what it may change.
    open: [u64; PLACES / 64],
    next: u64,
    /// No frame below flies.
    oldest: u64,
    /// One more than the highest counter that was acknowledged.
    acked_next: u64,
    /// When the newest frame was sent that an acknowledgement being heard is the first to name.
    newest_sent_at: Option<u64>,
    flying: u32,
    /// Of those that fly.
    pings: u32,
    bytes: u64,
    net_bytes: u64,
    frame_bytes: u64,
    window: u64,
    threshold: u64,
    /// Losses of frames below this one have been paid for.
    recovered_at: u64,
    paid: Paid,
    smoothed_ns: u64,
    variance_ns: u64,
    has_sample: bool,
    /// Timers that ran out since something was acknowledged.
    backoff: u32,
    /// From when the timer runs: the last frame sent, or the last news.
    armed_at: u64,
    is_probed: bool,
    /// When the oldest frame is lost, if frames sent later were acknowledged.
    lost_at: Option<u64>,
    /// When the newest acknowledged frame was sent.
    answered_at: u64,
    seen: Seen,
}

/// What the last losses have cost. It is given back when all of those frames turn out to have come: then it was a
/// stall of either end, or frames that overtook one another.
#[derive(Clone, Copy, Debug, Default)]
struct Paid {
    /// The first frame that they may be of.
    first: u64,
    lost: u64,
    late: u64,
    window: u64,
    threshold: u64,
}

/// What was counted since the session began.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    sent: u64,
    lost: u64,
    again: u64,
}

/// How the way to the other end is, as one session finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// The smoothed round trip; 0 before the first.
    pub round_trip_ns: u64,
    /// Frames sent that the other end acknowledges.
    pub frames_sent: u64,
    /// Of them: taken for lost, and not acknowledged later.
    pub frames_lost: u64,
    /// Records of such frames, and of those that a probe repeats, that go once more if they still matter.
    pub records_again: u64,
    /// Frames under way now.
    pub frames_under_way: u64,
    /// Frames that may be under way, as far as what was lost tells.
    pub window_frames: u64,
    /// Frames that may be under way, as far as the other end has memory for them.
    pub credit_frames: u64,
}

/// What a timer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rang {
    Nothing,
    /// One frame may go beyond window and credit.
    Probe,
}

impl Flight {
    pub(crate) fn new(frame_bytes: usize, now: u64) -> Flight {
        let free = Sent {
            is_ping: false,
            counter: 0,
            at: 0,
            bytes: 0,
            net_bytes: 0,
            state: State::Free,
            marks_len: 0,
            marks: [NO_MARK; MARKS],
        };
        let frame_bytes = frame_bytes as u64;
        Flight {
            sent: vec![free; PLACES],
            open: [0; PLACES / 64],
            next: 0,
            oldest: 0,
            acked_next: 0,
            newest_sent_at: None,
            flying: 0,
            pings: 0,
            bytes: 0,
            net_bytes: 0,
            frame_bytes,
            window: WINDOW_FIRST * frame_bytes,
            threshold: u64::MAX,
            recovered_at: 0,
            paid: Paid::default(),
            smoothed_ns: 0,
            variance_ns: 0,
            has_sample: false,
            backoff: 0,
            armed_at: now,
            is_probed: false,
            lost_at: None,
            answered_at: now,
            seen: Seen::default(),
        }
    }

    /// How the way is; the peer bears `credit` frames.
    pub(crate) fn stats(&self, credit: u64) -> SessionStats {
        SessionStats {
            round_trip_ns: self.smoothed_ns,
            frames_sent: self.seen.sent,
            frames_lost: self.seen.lost,
            records_again: self.seen.again,
            frames_under_way: self.flying.into(),
            window_frames: self.window / self.frame_bytes.max(1),
            credit_frames: credit,
        }
    }

    /// The next counter; whoever uses it calls [`Flight::spend`], whatever became of sending.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether one more frame may be under way, when the peer bears `credit` of them: one at least, or nobody
    /// would ever hear of more.
    pub(crate) fn has_room(&self, credit: u64) -> bool {
        self.bytes < self.window
            && self.has_place()
            && u64::from(self.flying - self.pings) < credit.max(1)
    }

    /// Whether one more may, window and credit aside.
    pub(crate) fn has_place(&self) -> bool {
        (self.flying as usize) < FRAMES
            && self.sent.get(place(self.next)).is_some_and(|sent| sent.state != State::Flying)
    }

    /// Whether frames of NICs may use more of the window, or of the peer's credit, when requests want it, too: half.
    pub(crate) fn has_room_for_net(&self, credit: u64) -> bool {
        let all = self.window.min(credit.max(1).saturating_mul(self.frame_bytes));
        self.net_bytes < all / 2
    }

    /// Spends the next counter. With a note the frame is to be acknowledged: only where [`Flight::has_place`].
    pub(crate) fn spend(&mut self, now: u64, note: Option<&Note>) {
        let counter = self.next;
        self.next += 1;
        let at = place(counter);
        if let (Some(note), Some(sent)) = (note, self.sent.get_mut(at)) {
            let is_ping = note.marks_len == 0 && note.net_bytes == 0;
            self.pings += u32::from(is_ping);
            *sent = Sent {
                is_ping,
                counter,
                at: now,
                bytes: note.bytes,
                net_bytes: note.net_bytes,
                state: State::Flying,
                marks_len: note.marks_len,
                marks: note.marks,
            };
            self.open[at / 64] |= 1 << (at % 64);
            if self.flying == 0 {
                self.oldest = counter;
            }
            self.flying += 1;
            self.seen.sent += 1;
            self.bytes += u64::from(note.bytes);
            self.net_bytes += u64::from(note.net_bytes);
            self.armed_at = now;
        }
        // The place that comes next may be taken by a frame that is long under way: its counter is never used.
        let mut skipped = 0;
        while skipped < PLACES && !self.has_place() && (self.flying as usize) < FRAMES {
            self.next += 1;
            skipped += 1;
        }
    }

    /// A block of an acknowledgement; after the last one comes [`Flight::settle`]. An error when it names a frame that
    /// was never sent.
    pub(crate) fn acked(
        &mut self,
        block: u64,
        mask: u64,
        now: u64,
        fate: &mut impl Fate,
    ) -> Result<(), Malformed> {
        let first = block.checked_mul(64).ok_or(Malformed::Field)?;
        if mask == 0 {
            return Ok(());
        }
        let last =
            first.checked_add(63 - u64::from(mask.leading_zeros())).ok_or(Malformed::Field)?;
        if last >= self.next {
            return Err(Malformed::Field);
        }
        let mut rest = mask & self.open[place(first) / 64];
        while rest != 0 {
            let counter = first + u64::from(rest.trailing_zeros());
            rest &= rest - 1;
            self.acked_one(counter, now, fate);
        }
        Ok(())
    }

    fn acked_one(&mut self, counter: u64, now: u64, fate: &mut impl Fate) {
        let at = place(counter);
        let Some(sent) = self.sent.get_mut(at).filter(|sent| sent.counter == counter) else {
            return;
        };
        let (was, sent_at, bytes) = (sent.state, sent.at, u64::from(sent.bytes));
        sent.state = State::Free;
        let marks = sent.marks;
        let marks_len = usize::from(sent.marks_len);
        let (net_bytes, is_ping) = (u64::from(sent.net_bytes), sent.is_ping);
        self.open[at / 64] &= !(1 << (at % 64));
        if was == State::Flying {
            self.flying -= 1;
            self.pings -= u32::from(is_ping);
            self.bytes -= bytes;
            self.net_bytes -= net_bytes;
            self.grow(bytes);
        } else if was == State::Lost {
            self.came_late(counter);
        }
        marks.iter().take(marks_len).for_each(|mark| fate.taken(*mark));
        if counter >= self.acked_next {
            self.acked_next = counter + 1;
            self.newest_sent_at = Some(sent_at);
        }
        self.answered_at = self.answered_at.max(sent_at);
        (self.backoff, self.is_probed, self.armed_at) = (0, false, now);
    }

    /// All blocks of an acknowledgement were heard. The newest frame of them tells how long the way takes, if `is_first`:
    /// no acknowledgement before this one was lost. Otherwise this one came when a timer of the other end rang.
    pub(crate) fn settle(&mut self, is_first: bool, now: u64, fate: &mut impl Fate) {
        if let Some(sent_at) = self.newest_sent_at.take().filter(|_| is_first) {
            self.sample(now.saturating_sub(sent_at));
        }
        self.give_up_overtaken(now, fate);
    }

    /// A frame that was taken for lost has come.
    fn came_late(&mut self, counter: u64) {
        self.seen.lost = self.seen.lost.saturating_sub(1);
        if counter < self.paid.first {
            return;
        }
        self.paid.late += 1;
        if self.paid.late == self.paid.lost {
            self.window = self.window.max(self.paid.window);
            self.threshold = self.threshold.max(self.paid.threshold);
        }
    }

    /// Slow start, then one frame more in a round trip.
    fn grow(&mut self, bytes: u64) {
        let more = if self.window < self.threshold {
            bytes
        } else {
            self.frame_bytes * bytes / self.window
        };
        self.window = (self.window + more).min(FRAMES as u64 * self.frame_bytes);
    }

    fn sample(&mut self, taken_ns: u64) {
        if self.has_sample {
            let off = self.smoothed_ns.abs_diff(taken_ns);
            self.variance_ns = (3 * self.variance_ns + off) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + taken_ns) / 8;
        } else {
            (self.smoothed_ns, self.variance_ns) = (taken_ns, taken_ns / 2);
            self.has_sample = true;
        }
    }

    /// After an acknowledgement, and when a timer rang: gives up frames that others have overtaken.
    pub(crate) fn give_up_overtaken(&mut self, now: u64, fate: &mut impl Fate) {
        self.lost_at = None;
        let patience_ns = (self.smoothed_ns * 9 / 8).max(TIMER_MIN_NS / 2);
        let mut is_first = true;
        let mut counter = self.oldest;
        while counter < self.acked_next && self.flying > 0 {
            if let Some(sent_at) = self.flying_since(counter) {
                let dies_at = sent_at.saturating_add(patience_ns);
                if counter + LATER < self.acked_next || dies_at <= now {
                    self.lose(counter, fate);
                } else {
                    self.lost_at = Some(self.lost_at.map_or(dies_at, |at| at.min(dies_at)));
                    is_first = false;
                }
            }
            counter += 1;
            if is_first {
                self.oldest = counter;
            }
        }
        if self.flying == 0 {
            self.oldest = self.next;
        }
    }

    fn flying_since(&self, counter: u64) -> Option<u64> {
        let sent = self.sent.get(place(counter))?;
        (sent.counter == counter && sent.state == State::Flying).then_some(sent.at)
    }

    fn lose(&mut self, counter: u64, fate: &mut impl Fate) {
        let Some(sent) = self.sent.get_mut(place(counter)) else { return };
        sent.state = State::Lost;
        self.flying -= 1;
        self.pings -= u32::from(sent.is_ping);
        self.bytes -= u64::from(sent.bytes);
        self.net_bytes -= u64::from(sent.net_bytes);
        self.seen.lost += 1;
        self.seen.again += u64::from(sent.marks_len);
        sent.marks.iter().take(usize::from(sent.marks_len)).for_each(|mark| fate.lost(*mark));
        if counter >= self.recovered_at {
            let (window, threshold) = (self.window, self.threshold);
            self.paid = Paid { first: self.recovered_at, lost: 0, late: 0, window, threshold };
            self.threshold = (self.window / 2).max(WINDOW_MIN * self.frame_bytes);
            self.window = self.threshold;
            self.recovered_at = self.next;
        }
        self.paid.lost += 1;
    }

    /// The timer without probes.
    fn timer_ns(&self) -> u64 {
        let base = if self.has_sample {
            (self.smoothed_ns + 4 * self.variance_ns + ACK_DELAY_NS).max(TIMER_MIN_NS)
        } else {
            FIRST_NS
        };
        // A way that loses a third of all frames loses every second question with its answer, so that plain doubling
        // would end at the longest timer.
        let doubled = base.saturating_mul(1 << (self.backoff / 2).min(20));
        let backed_off =
            if self.backoff.is_multiple_of(2) { doubled } else { doubled + doubled / 2 };
        backed_off.min(TIMER_MAX_NS.max(base))
    }

    fn probe_ns(&self) -> u64 {
        (2 * self.smoothed_ns + ACK_DELAY_NS).max(TIMER_MIN_NS / 2)
    }

    /// When [`Flight::rang`] wants to be called.
    pub(crate) fn due(&self) -> Option<u64> {
        if self.flying == 0 {
            return None;
        }
        let may_probe = self.has_sample && !self.is_probed && self.backoff == 0;
        let wait_ns =
            if may_probe { self.probe_ns().min(self.timer_ns()) } else { self.timer_ns() };
        let at = self.armed_at.saturating_add(wait_ns);
        Some(self.lost_at.map_or(at, |lost_at| at.min(lost_at)))
    }

    /// Does what is due by now.
    pub(crate) fn rang(&mut self, now: u64, fate: &mut impl Fate) -> Rang {
        if self.due().is_none_or(|due| due > now) {
            return Rang::Nothing;
        }
        if self.lost_at.is_some_and(|at| at <= now) {
            self.give_up_overtaken(now, fate);
            return Rang::Nothing;
        }
        let is_whole = now >= self.armed_at.saturating_add(self.timer_ns());
        self.armed_at = now;
        if !is_whole {
            // The tail: one more frame with what the oldest carries. Its acknowledgement tells of the others.
            self.is_probed = true;
            self.repeat_oldest(fate);
            return Rang::Probe;
        }
        self.backoff += 1;
        if self.backoff < SILENT {
            // A stall of either end is more likely than that all is lost. If it is, what the oldest carries is enough
            // to hear of it.
            self.repeat_oldest(fate);
            return Rang::Probe;
        }
        for counter in self.oldest..self.next {
            if self.flying_since(counter).is_some() {
                self.lose(counter, fate);
            }
        }
        self.oldest = self.next;
        self.window = WINDOW_MIN * self.frame_bytes;
        self.lost_at = None;
        Rang::Probe
    }

    fn repeat_oldest(&mut self, fate: &mut impl Fate) {
        let oldest = (self.oldest..self.next).find(|one| self.flying_since(*one).is_some());
        let Some(sent) = oldest.and_then(|counter| self.sent.get(place(counter))) else { return };
        self.seen.again += u64::from(sent.marks_len);
        sent.marks.iter().take(usize::from(sent.marks_len)).for_each(|mark| fate.lost(*mark));
    }

    /// Timers that ran out since something was acknowledged.
    pub(crate) fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Whether the peer has acknowledged any.
    pub(crate) fn is_answered(&self) -> bool {
        self.acked_next > 0
    }

    /// When the newest frame was sent that the peer has acknowledged; at first, when the session began.
    pub(crate) fn answered_at(&self) -> u64 {
        self.answered_at
    }
}

fn place(counter: u64) -> usize {
    (counter % PLACES as u64) as usize
}

#[cfg(test)]
mod tests;
