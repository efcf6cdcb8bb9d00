//! The frames of one simulated switch: who sent what to whom, and what may arrive.
//!
//! A frame is numbered by its sender, and says who that is and how long it is. A receiver gets those for it
//! and for all, of its own VLAN, whole, each once and in the order in which they were sent. What was on its
//! way when its sender's queue was taken back may come again: a NIC has no record of what is in flight.

use std::collections::BTreeMap;

use random::Random;

/// Bytes before the number: addresses and a type.
const HEAD: usize = 14;
const NUMBERED: usize = HEAD + 8;
/// Whether its receiver was known to the switch when it was sent.
const IS_KNOWN_AT: usize = NUMBERED;
/// So long after a port was made every core has heard of it, nanoseconds.
const HEARD_AFTER_NS: u64 = 300_000;
const ALL: [u8; 6] = [0xff; 6];

#[derive(Debug)]
struct Station {
    vlan: u16,
    is_hostile: bool,
    next: u64,
    /// When its port was made.
    plugged_ns: u64,
    /// Frames that may come again: from and up to.
    again: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Lan {
    stations: BTreeMap<u64, Station>,
    /// By receiver, sender, and whether it is for all: the number that came last.
    last: BTreeMap<(u64, u64, bool), u64>,
    pub(crate) came: u64,
}

/// The address of a station.
pub(crate) fn mac(number: u64) -> [u8; 6] {
    [0x02, 0, 0, 0, 0, number as u8 + 1]
}

impl Lan {
    pub(crate) fn join(&mut self, number: u64, vlan: u16, is_hostile: bool) {
        let (next, plugged_ns, again) = (1, u64::MAX, Vec::new());
        self.stations.insert(number, Station { vlan, is_hostile, next, plugged_ns, again });
    }

    /// Its switch has a port for it from now on: what is for it goes nowhere else, once all know.
    pub(crate) fn plugged(&mut self, number: u64, now_ns: u64) {
        if let Some(station) = self.stations.get_mut(&number) {
            station.plugged_ns = now_ns;
        }
    }

    /// A frame to one of the others, or to all: its number and its bytes.
    pub(crate) fn compose(
        &mut self,
        from: u64,
        now_ns: u64,
        random: &mut Random,
    ) -> (u64, Vec<u8>) {
        let others: Vec<u64> =
            self.stations.keys().copied().filter(|other| *other != from).collect();
        let to = match others.is_empty() || random.one_in(5) {
            true => ALL,
            false => mac(random.of(&others)),
        };
        let len = random.of(&[60, 60, 200, 900, 1514, 4000]);
        let number = self.stations.get_mut(&from).map_or(0, |station| {
            station.next += 1;
            station.next - 1
        });
        let mut bytes = [&to[..], &mac(from), &[0x88, 0xb5]].concat();
        bytes.extend(number.to_le_bytes());
        bytes.push(self.is_known(&to, from, now_ns).into());
        bytes.extend((IS_KNOWN_AT + 1..len).map(|at| byte(at, number)));
        (number, bytes)
    }

    /// Whether a receiver is in the VLAN of its sender, and all cores have heard of it.
    fn is_known(&self, to: &[u8; 6], from: u64, now_ns: u64) -> bool {
        let to = self.stations.get(&u64::from(to[5]).wrapping_sub(1));
        to.is_some_and(|to| {
            let has_same = self.stations.get(&from).is_some_and(|from| from.vlan == to.vlan);
            has_same && now_ns > to.plugged_ns.saturating_add(HEARD_AFTER_NS)
        })
    }

    /// The queue of a sender was taken back; the oldest of its frames whose end it does not know.
    pub(crate) fn interrupted(&mut self, from: u64, oldest: Option<u64>) {
        if let (Some(station), Some(oldest)) = (self.stations.get_mut(&from), oldest) {
            station.again.push((oldest, station.next));
        }
    }

    /// The last frames of a sender are on their way through a daemon that is no more.
    pub(crate) fn stranded(&mut self, from: u64, frames: u64) {
        let oldest = self.stations.get(&from).map(|station| station.next.saturating_sub(frames));
        self.interrupted(from, oldest);
    }

    /// A frame came to `at`.
    ///
    /// # Errors
    /// It should not have.
    pub(crate) fn arrived(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.came += 1;
        let wrong = |what: String| Err(format!("station {at} got a frame {what}"));
        if bytes.len() <= IS_KNOWN_AT {
            return wrong(format!("of {} bytes", bytes.len()));
        }
        let from = u64::from(bytes[11]).wrapping_sub(1);
        let Some(station) = self.stations.get(&from).filter(|_| bytes[6..12] == mac(from)) else {
            return wrong(format!("of nobody: {:?}", &bytes[..HEAD]));
        };
        if station.vlan != self.stations.get(&at).map_or(0, |station| station.vlan) {
            return wrong(format!("of another VLAN, from {from}"));
        }
        if station.is_hostile {
            return Ok(());
        }
        let number =
            bytes[HEAD..NUMBERED].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let mut places = IS_KNOWN_AT + 1..bytes.len();
        if let Some(place) = places.find(|at| bytes[*at] != byte(*at, number)) {
            let len = bytes.len();
            return wrong(format!("whose byte {place} of {len} is wrong, {number} of {from}"));
        }
        let is_again = |(first, end): &(u64, u64)| (*first..*end).contains(&number);
        let may_come_again = station.again.iter().any(is_again);
        // What is for one that the switch does not know yet goes to all, as a flow of its own.
        let (is_mine, is_for_all) = (bytes[..6] == mac(at), bytes[..6] == ALL);
        let is_known = bytes[IS_KNOWN_AT] == 1 && !may_come_again;
        if from == at || !is_mine && !is_for_all && is_known {
            return wrong(format!("that is for another, from {from} to {:?}", &bytes[..6]));
        }
        let last = self.last.entry((at, from, !is_mine)).or_default();
        if number <= *last && !may_come_again {
            return wrong(format!("{number} of {from} after {last}"));
        }
        *last = number.max(*last);
        Ok(())
    }
}

fn byte(at: usize, number: u64) -> u8 {
    (at as u64 * 7 + number) as u8
}
