//! The frames of simulated switches: who sent what to whom, and what may arrive.
//!
//! A frame is numbered by its sender, and says who that is and how long it is. A receiver gets those for it
//! and for all, of its own domain (a VLAN of one switch, or a wire), whole, each once and in the order in which they were
//! sent. What was on its way when its sender's queue was taken back may come again: a NIC has no record of what is in
//! flight. One that was sent when all knew where its receiver is comes to nobody else. A station that goes from one domain
//! to another may be in both until all know, and has what was sent before.

use std::collections::{BTreeMap, BTreeSet};

use random::Random;

/// Bytes before the number: addresses and a type.
const HEAD: usize = 14;
const NUMBERED: usize = HEAD + 8;
/// When it was sent is behind the number.
const FILLED_AT: usize = NUMBERED + 8;
/// The type of RARP.
const ANNOUNCED: [u8; 2] = [0x80, 0x35];
const ALL: [u8; 6] = [0xff; 6];

#[derive(Debug)]
struct Station {
    /// Domains that it may be in or was in, and until when.
    domains: BTreeMap<u32, u64>,
    is_hostile: bool,
    /// Its frames go by a link, which keeps no order.
    is_linked: bool,
    next: u64,
    /// Since when all cores know of its port.
    known_ns: u64,
    /// Frames that may come again: from and up to.
    again: Vec<(u64, u64)>,
}

/// All stations.
#[derive(Debug, Default)]
pub struct Lan {
    stations: BTreeMap<u64, Station>,
    /// By receiver, sender, and whether it is for all: the number that came last.
    last: BTreeMap<(u64, u64, bool), u64>,
    /// The same, and the numbers that came by a link.
    linked: BTreeSet<(u64, u64, bool, u64)>,
    /// By receiver and sender: when the latest that came was sent.
    sent: BTreeMap<(u64, u64), u64>,
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
    /// A station more, which is in that domain, or may be; one that is there may be where it was, too.
    pub fn join(&mut self, number: u64, domain: u32, is_hostile: bool) {
        let (next, known_ns, again) = (1, u64::MAX, Vec::new());
        let (domains, is_linked) = (BTreeMap::new(), false);
        let station = Station { domains, is_hostile, is_linked, next, known_ns, again };
        let station = self.stations.entry(number).or_insert(station);
        station.domains.insert(domain, u64::MAX);
        // What it was once keeps no rule for long.
        station.is_hostile |= is_hostile;
    }

    /// Whether there is a station of that number.
    pub fn has(&self, number: u64) -> bool {
        self.stations.contains_key(&number)
    }

    /// What it sends and gets goes by a link.
    pub fn link(&mut self, number: u64) {
        self.stations.entry(number).and_modify(|station| station.is_linked = true);
    }

    /// From now on it is in that domain alone.
    pub fn settle(&mut self, number: u64, domain: u32, now_ns: u64) {
        let Some(station) = self.stations.get_mut(&number) else { return };
        let others = station.domains.iter_mut().filter(|(other, _)| **other != domain);
        others.for_each(|(_, until_ns)| *until_ns = now_ns.min(*until_ns));
    }

    /// Whether something came from one to another that was sent since then. When those that were hostile once sent a
    /// frame nobody can say.
    pub fn has_come(&self, to: u64, from: u64, since_ns: u64) -> bool {
        self.stations.get(&from).is_some_and(|station| station.is_hostile)
            || self.sent.get(&(to, from)).is_some_and(|sent_ns| *sent_ns >= since_ns)
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

    /// A frame to one of the others, or to all: its number and its bytes.
    pub fn compose(&mut self, from: u64, now_ns: u64, random: &mut Random) -> (u64, Vec<u8>) {
        let is_near = !random.one_in(4);
        let others = self.stations.keys().copied().filter(|other| *other != from);
        let others: Vec<u64> =
            others.filter(|other| !is_near || self.meet(*other, from, now_ns)).collect();
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

    /// Whether two stations may have been in one domain at some time since `sent_ns`.
    fn meet(&self, one: u64, other: u64, sent_ns: u64) -> bool {
        let (one, other) = (self.stations.get(&one), self.stations.get(&other));
        one.zip(other).is_some_and(|(one, other)| {
            let mut ones = one.domains_since(sent_ns);
            ones.any(|domain| other.domains_since(sent_ns).any(|it| it == domain))
        })
    }

    /// Whether all cores have known since `sent_ns` where a receiver is that is in the domain of its sender.
    fn is_known(&self, to: u64, from: u64, sent_ns: u64) -> bool {
        let (to, from) = (self.stations.get(&to), self.stations.get(&from));
        let only = |it: &Station| {
            let mut domains = it.domains_since(sent_ns);
            domains.next().filter(|_| domains.next().is_none())
        };
        to.zip(from).is_some_and(|(to, from)| {
            only(to).is_some_and(|domain| only(from) == Some(domain)) && to.known_ns < sent_ns
        })
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
    pub fn stranded(&mut self, from: u64, frames: u64) {
        let oldest = self.stations.get(&from).map(|station| station.next.saturating_sub(frames));
        self.interrupted(from, oldest);
    }

    /// A frame came to `at`.
    ///
    /// # Errors
    /// It should not have.
    pub fn arrived(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        if bytes.get(12..HEAD) == Some(&ANNOUNCED) {
            // The switch's own word of where a station is.
            return Ok(());
        }
        let wrong = |what: String| Err(format!("station {at} got a frame {what}"));
        if bytes.len() < HEAD {
            return wrong(format!("of {} bytes", bytes.len()));
        }
        let from = station(&bytes[6..12]);
        let Some(sender) = self.stations.get(&from).filter(|_| bytes[6..12] == mac(from)) else {
            return wrong(format!("of nobody: {:?}", &bytes[..HEAD]));
        };
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let is_short = bytes.len() < FILLED_AT;
        if sender.is_hostile || is_short {
            // When it was sent only the honest say.
            return match self.meet(at, from, 0) {
                _ if is_short && !sender.is_hostile => wrong(format!("of {} bytes", bytes.len())),
                true => Ok(()),
                false => wrong(format!("of another VLAN, from {from}")),
            };
        }
        let (number, sent_ns) = (word(&bytes[HEAD..NUMBERED]), word(&bytes[NUMBERED..FILLED_AT]));
        if !self.meet(at, from, sent_ns) {
            return wrong(format!("of another VLAN, from {from}"));
        }
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
        let is_linked = sender.is_linked || self.stations.get(&at).is_some_and(|it| it.is_linked);
        let last = self.last.entry((at, from, !is_mine)).or_default();
        let is_twice = is_linked && !self.linked.insert((at, from, !is_mine, number));
        if !may_come_again && (is_twice || number <= *last && !is_linked) {
            return wrong(format!("{number} of {from} after {last}"));
        }
        *last = number.max(*last);
        let sent = self.sent.entry((at, from)).or_default();
        *sent = sent_ns.max(*sent);
        Ok(())
    }
}

impl Station {
    fn domains_since(&self, sent_ns: u64) -> impl Iterator<Item = u32> {
        let since = self.domains.iter().filter(move |(_, until_ns)| **until_ns >= sent_ns);
        since.map(|(domain, _)| *domain)
    }
}

fn byte(at: usize, number: u64) -> u8 {
    (at as u64 * 7 + number) as u8
}
