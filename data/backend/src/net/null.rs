//! A port that leads nowhere, for measuring: drops, echoes, or makes frames.
//!
//! Called by [`super::HostPort`].

use frame::Header;

use super::{FRAME_MIN, Received};

/// Frames that were not asked for in time and are made nevertheless, at most so many nanoseconds'
/// worth: who comes late gets no burst that he would not have had.
const LATE_MAX_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Where the number of the frame is, 8 bytes, big endian.
const NUMBER_AT: std::ops::Range<usize> = 14..22;
/// Copies of a frame, and how many frames before it is given its number is written: a copy of bytes of
/// which a part has just been written waits until that and all stores before it are done, which in
/// lines of another core takes as long as a frame.
const COPIES: u64 = 8;
const AHEAD: u64 = COPIES / 2;
/// IEEE's EtherType for experiments within one network.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Locally administered.
const SOURCE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// What a null port does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullMode {
    /// What is sent is gone; nothing comes.
    Drop,
    /// What is sent goes back to its sender, MAC addresses swapped ([`HostPort::echoes`](super::HostPort::echoes)).
    Echo,
    /// What is sent is gone; frames of one size come.
    Generate {
        /// Bytes of each, taken within 14 to [`frame::FRAME_MAX`]. From 22 bytes on, bytes 14 to 21
        /// are the frame's number, from 0.
        size: u32,
        /// Frames a second; 0: as many as are taken.
        rate: u32,
        /// Where they go.
        destination: [u8; 6],
    },
}

/// A port that leads nowhere.
#[derive(Debug)]
pub struct Null {
    mode: NullMode,
    /// [`COPIES`] of the frame that is made, each with a number of its own.
    frames: Box<[u8]>,
    /// Bytes of one.
    size: usize,
    number: u64,
    pace: Pace,
}

impl Null {
    /// A port that does this.
    pub(crate) fn new(mode: NullMode) -> Null {
        let mut frame = Vec::new();
        if let NullMode::Generate { size, destination, .. } = mode {
            let size = (size as usize).clamp(FRAME_MIN, frame::FRAME_MAX as usize);
            frame = [&destination[..], &SOURCE, &ETHERTYPE].concat();
            frame.resize(size, 0);
        }
        let (size, frames) = (frame.len(), frame.repeat(COPIES as usize).into());
        let mut null = Null { mode, frames, size, number: 0, pace: Pace::default() };
        (0..AHEAD).for_each(|number| null.write_number(number));
        null
    }

    #[inline]
    pub(crate) fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        let NullMode::Generate { rate, .. } = self.mode else {
            return None;
        };
        if rate > 0 && !self.pace.take(u64::from(rate), now_ns) {
            return None;
        }
        let number = self.number;
        self.number = number.wrapping_add(1);
        self.write_number(number.wrapping_add(AHEAD));
        let start = self.start(number);
        let bytes = self.frames.get(start..start + self.size)?;
        Some(Received { header: Header::default(), bytes })
    }

    /// Where the copy with this number begins.
    #[inline]
    fn start(&self, number: u64) -> usize {
        (number % COPIES) as usize * self.size
    }

    #[inline]
    fn write_number(&mut self, number: u64) {
        let start = self.start(number);
        let frame = self.frames.get_mut(start..start + self.size);
        if let Some(place) = frame.and_then(|frame| frame.get_mut(NUMBER_AT)) {
            place.copy_from_slice(&number.to_be_bytes());
        }
    }

    #[inline]
    pub(crate) fn echoes(&self) -> bool {
        matches!(self.mode, NullMode::Echo)
    }

    pub(crate) fn is_clocked(&self) -> bool {
        matches!(self.mode, NullMode::Generate { .. })
    }

    pub(crate) fn describe(&self) -> &'static str {
        match self.mode {
            NullMode::Drop => "null, drop",
            NullMode::Echo => "null, echo",
            NullMode::Generate { .. } => "null, generate",
        }
    }
}

/// Frames made beside those that were due: exact over any length of time, since it counts from a
/// moment in the past and not from the last frame.
#[derive(Debug, Default)]
struct Pace {
    /// When counting began; `None` before the first call.
    since_ns: Option<u64>,
    /// Frames made since; below zero when some of the time before are still due.
    made: i64,
}

impl Pace {
    /// Whether a frame is due at `now_ns`, which then counts as made.
    #[inline]
    fn take(&mut self, rate: u64, now_ns: u64) -> bool {
        let mut since_ns = *self.since_ns.get_or_insert(now_ns);
        // The count starts anew with each second, so that the product below fits.
        let seconds = now_ns.saturating_sub(since_ns) / SECOND_NS;
        if seconds > 0 {
            since_ns += seconds * SECOND_NS;
            self.since_ns = Some(since_ns);
            let before = i64::try_from(seconds.saturating_mul(rate)).unwrap_or(i64::MAX);
            self.made = self.made.saturating_sub(before);
        }
        let due = (now_ns.saturating_sub(since_ns) * rate / SECOND_NS) as i64;
        let late_max = (rate * LATE_MAX_NS / SECOND_NS).max(1) as i64;
        self.made = self.made.max(due - late_max);
        let is_due = self.made < due;
        self.made += i64::from(is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{HostPort, HostSource, Rest, Sent};

    const TO: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

    fn null(mode: NullMode) -> HostPort {
        HostPort::open(&HostSource::Null { mode }).expect("null")
    }

    fn generator(size: u32, rate: u32) -> HostPort {
        null(NullMode::Generate { size, rate, destination: TO })
    }

    /// Frames that come when the port is asked every `step_ns` within `start_ns..end_ns`.
    fn count(port: &mut HostPort, start_ns: u64, end_ns: u64, step_ns: u64) -> u64 {
        let mut frames = 0;
        for now_ns in (start_ns..end_ns).step_by(step_ns as usize) {
            while port.receive(now_ns).is_some() {
                frames += 1;
            }
        }
        frames
    }

    #[test]
    fn the_rate_is_exact_however_often_it_is_asked() {
        for (rate, step_ns) in [(1_000_000, 1_000), (333_333, 7_777), (7, 999_983), (1, 10_000_000)]
        {
            let start = 123_456_789_u64;
            let mut port = generator(64, rate);
            // The first look starts the count.
            assert!(port.receive(start).is_none());
            let frames = count(&mut port, start, start + 3 * SECOND_NS + step_ns, step_ns);
            let due = 3 * u64::from(rate);
            // What falls due within the last step may come already.
            let more = step_ns * u64::from(rate) / SECOND_NS + 1;
            assert!((due..=due + more).contains(&frames), "{frames} at {rate} a second");
        }
    }

    #[test]
    fn a_second_that_is_jumped_over_loses_only_what_is_late() {
        let mut port = generator(64, 1_000_000);
        assert!(port.receive(0).is_none());
        // Half a millisecond before the second ends, and half of one after it.
        let before = count(&mut port, SECOND_NS - 500_000, SECOND_NS - 499_999, 1);
        assert_eq!(before, 1_000, "a millisecond's worth, not a second's");
        let after = count(&mut port, SECOND_NS + 500_000, SECOND_NS + 500_001, 1);
        assert_eq!(after, 1_000, "none was lost where the count starts anew");
        let much_later = count(&mut port, 1 << 62, (1 << 62) + 1, 1);
        assert_eq!(much_later, 1_000);
    }

    #[test]
    fn without_a_rate_there_is_always_a_frame_and_each_has_its_number() {
        let mut port = generator(64, 0);
        for number in 0..1_000_u64 {
            let frame = port.receive(5).expect("a frame");
            assert_eq!(frame.header, Header::default());
            assert_eq!(frame.bytes.len(), 64);
            assert_eq!(&frame.bytes[..6], &TO);
            assert_eq!(&frame.bytes[12..14], &ETHERTYPE);
            assert_eq!(frame.bytes[NUMBER_AT], number.to_be_bytes());
        }
    }

    #[test]
    fn sizes_are_those_of_frames() {
        for (asked, size) in [(0, 14), (14, 14), (21, 21), (1_518, 1_518), (u32::MAX, 65_557)] {
            let mut port = generator(asked, 0);
            assert_eq!(port.receive(0).expect("a frame").bytes.len(), size, "{asked}");
        }
    }

    #[test]
    fn only_an_echo_gives_back_and_only_a_generator_has_to_be_visited() {
        let mut ports = [null(NullMode::Drop), null(NullMode::Echo), generator(64, 1)];
        let sent: Vec<Sent> = ports
            .iter_mut()
            .map(|port| port.send(&Header::default(), &[0; 14], Rest::Private(&[])))
            .collect();
        assert_eq!(sent, [Sent::Done; 3]);
        assert_eq!(ports.each_ref().map(HostPort::echoes), [false, true, false]);
        assert_eq!(ports.each_ref().map(HostPort::is_clocked), [false, false, true]);
        assert!(ports[0].receive(0).is_none() && ports[1].receive(0).is_none());
        assert!(ports.iter().all(|port| port.poll_fd().is_none() && !port.is_gone()));
    }
}
