//! The frames of one simulated switch: who sent what to whom, and what may arrive.
//!
//! A frame is numbered by its sender, and says who that is and how long it is. A receiver gets those for it
//! and for all, of its own VLAN, whole, each once and in the order in which they were sent. What was on its
//! way when its sender's queue was taken back may come again: a NIC has no record of what is in flight. One that was sent
//! when all knew where its receiver is comes to nobody else.

use std::collections::BTreeMap;

use random::Random;

/// Bytes before the number: addresses and a type.
const HEAD: usize = 14;
const NUMBERED: usize = HEAD + 8;
/// When it was sent is behind the number.
const FILLED_AT: usize = NUMBERED + 8;
/// So long after a port was made every core has heard of it, nanoseconds.
const HEARD_AFTER_NS: u64 = 300_000;
/// The type of RARP.
const ANNOUNCED: [u8; 2] = [0x80, 0x35];
const ALL: [u8; 6] = [0xff; 6];

#[derive(Debug)]
struct Station {
    vlan: u16,
    is_hostile: bool,
    next: u64,
    /// Since when all cores know of its port.
    known_ns: u64,
    /// Frames that may come again: from and up to.
    again: Vec<(u64, u64)>,
}

/// All stations of one switch.
#[derive(Debug, Default)]
pub struct Lan {
    stations: BTreeMap<u64, Station>,
    /// By receiver, sender, and whether it is for all: the number that came last.
    last: BTreeMap<(u64, u64, bool), u64>,
    pub(crate) came: u64,
}

/// The address of a station.
pub fn mac(number: u64) -> [u8; 6] {
    let [high, low] = (number as u16 + 1).to_be_bytes();
    [0x02, 0, 0, 0, high, low]
}

/// The station that has an address.
fn station(mac: &[u8]) -> u64 {
    u64::from(u16::from_be_bytes([mac[4], mac[5]])).wrapping_sub(1)
}

impl Lan {
    /// A station more, in that VLAN; one that is there stays.
    pub fn join(&mut self, number: u64, vlan: u16, is_hostile: bool) {
        let (next, known_ns, again) = (1, u64::MAX, Vec::new());
        let station = Station { vlan, is_hostile, next, known_ns, again };
        self.stations.entry(number).or_insert(station);
    }

    /// From now on all know where it is, until [`Self::disturb`].
    pub fn know(&mut self, number: u64, now_ns: u64) {
        if let Some(station) = self.stations.get_mut(&number) {
            station.known_ns = station.known_ns.min(now_ns);
        }
    }

    /// Its port may be on its way, or gone. False.
    pub fn disturb(&mut self, number: u64) -> bool {
        if let Some(station) = self.stations.get_mut(&number) {
            station.known_ns = u64::MAX;
        }
        false
    }

    /// Its switch has a port for it from now on: what is for it goes nowhere else, once all know.
    pub(crate) fn plugged(&mut self, number: u64, now_ns: u64) {
        if let Some(station) = self.stations.get_mut(&number) {
            station.known_ns = now_ns.saturating_add(HEARD_AFTER_NS);
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
        bytes.extend(now_ns.to_le_bytes());
        bytes.extend((FILLED_AT..len).map(|at| byte(at, number)));
        (number, bytes)
    }

    /// Whether all cores have known since `sent_ns` where a receiver is that is in the VLAN of its sender.
    fn is_known(&self, to: u64, from: u64, sent_ns: u64) -> bool {
        let (to, from) = (self.stations.get(&to), self.stations.get(&from));
        to.zip(from).is_some_and(|(to, from)| to.vlan == from.vlan && to.known_ns < sent_ns)
    }

    /// The queue of a sender was taken back; the oldest of its frames whose end it does not know.
    pub fn interrupted(&mut self, from: u64, oldest: Option<u64>) {
        if let (Some(station), Some(oldest)) = (self.stations.get_mut(&from), oldest) {
            match station.again.last_mut() {
                Some((first, end)) if *end >= oldest => {
                    (*first, *end) = ((*first).min(oldest), station.next);
                }
                _ => station.again.push((oldest, station.next)),
            }
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
        if bytes.get(12..HEAD) == Some(&ANNOUNCED) {
            // The switch's own word of where a station is.
            return Ok(());
        }
        let wrong = |what: String| Err(format!("station {at} got a frame {what}"));
        if bytes.len() < FILLED_AT {
            return wrong(format!("of {} bytes", bytes.len()));
        }
        let from = station(&bytes[6..12]);
        let Some(sender) = self.stations.get(&from).filter(|_| bytes[6..12] == mac(from)) else {
            return wrong(format!("of nobody: {:?}", &bytes[..HEAD]));
        };
        if sender.vlan != self.stations.get(&at).map_or(0, |station| station.vlan) {
            return wrong(format!("of another VLAN, from {from}"));
        }
        if sender.is_hostile {
            return Ok(());
        }
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let (number, sent_ns) = (word(&bytes[HEAD..NUMBERED]), word(&bytes[NUMBERED..FILLED_AT]));
        let mut places = FILLED_AT..bytes.len();
        if let Some(place) = places.find(|at| bytes[*at] != byte(*at, number)) {
            let len = bytes.len();
            return wrong(format!("whose byte {place} of {len} is wrong, {number} of {from}"));
        }
        let is_again = |(first, end): &(u64, u64)| (*first..*end).contains(&number);
        let may_come_again = sender.again.iter().any(is_again);
        // What is for one that the switch does not know yet goes to all, as a flow of its own.
        let (is_mine, is_for_all) = (bytes[..6] == mac(at), bytes[..6] == ALL);
        let is_known = self.is_known(station(&bytes[..6]), from, sent_ns) && !may_come_again;
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
