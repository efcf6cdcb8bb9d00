//! Which client is at which shard of an IOhost's link.
//!
//! A shard is a socket and an end of the protocol of its own. A client stays at its shard while it has anything there. Not
//! here: at which shard each device is (`export`), nor how frames find their shard (`backend::link::LinkShards`).

use std::time::{Duration, Instant};

use backend::link::Address;
use remote::handshake::{Greeted, PublicKey};
use schedule::LOAD_FULL;

use super::error::Crowded;
use crate::defects::late;

/// Sessions of one link at a time.
pub(super) const SESSIONS_MAX: usize = 1024;
/// Clients that are known at a time, with a session or in a handshake.
const CLIENTS_MAX: usize = 4096;
/// Numbers that are remembered of one client: sessions, and those that may begin yet.
const NUMBERS_MAX: usize = 16;
/// Hellos that wait for a number of another shard; a link has places for no more.
const HELLOS_MAX: usize = 8;

/// Who a client is: its key; where security is `none`, where it is.
pub(super) type Who = (PublicKey, Option<Address>);

/// A client, and its shard.
struct Assigned {
    who: Who,
    shard: usize,
    /// Its sessions, the latest last.
    sessions: Vec<Session>,
    asked_at: Instant,
}

/// A session that a client has, or may begin.
struct Session {
    number: u32,
    /// Where its hello came from.
    from: Address,
    begun_at: Option<Instant>,
}

impl Assigned {
    fn has_session(&self) -> bool {
        self.sessions.iter().any(|session| session.begun_at.is_some())
    }
}

/// The clients of a link.
#[derive(Default)]
pub(super) struct Clients {
    known: Vec<Assigned>,
    /// Hellos that were read, by the number that they had.
    read: Vec<(u32, Box<Greeted>)>,
}

/// What a shard's sidecore is like.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) is_parked: bool,
    /// Thousandths of its time.
    pub(super) load: u32,
}

impl Clients {
    /// The shard of a client that says hello. `patience` is how long a session may begin after its answer, `has` who has a
    /// device, or had it last.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn assign(
        &mut self,
        who: Who,
        places: &[Place],
        (now, patience): (Instant, Duration),
        has: impl Fn(&Who) -> bool,
    ) -> Result<usize, Crowded> {
        let stays = |one: &Assigned| {
            one.has_session()
                || now.saturating_duration_since(one.asked_at) < patience
                || has(&one.who)
        };
        self.known.retain(stays);
        if let Some(client) = self.known.iter_mut().find(|one| one.who == who) {
            client.asked_at = now;
            return Ok(client.shard);
        }
        let sessions = self.known.iter().filter(|one| one.has_session()).count();
        if self.known.len() >= CLIENTS_MAX {
            return Err(Crowded::Clients(CLIENTS_MAX));
        }
        if sessions >= SESSIONS_MAX {
            return Err(Crowded::Sessions(SESSIONS_MAX));
        }
        let shard = self.best(places);
        self.known.push(Assigned { who, shard, sessions: Vec::new(), asked_at: now });
        Ok(shard)
    }

    /// The shard with the least to do. One that sleeps is left asleep until the others work half of their time.
    fn best(&self, places: &[Place]) -> usize {
        let is_crowded = places.iter().all(|one| one.is_parked || one.load >= LOAD_FULL / 2);
        let key = |(at, place): &(usize, &Place)| {
            let clients = self.known.iter().filter(|one| one.shard == *at).count();
            (place.is_parked && !is_crowded, clients, place.load)
        };
        places.iter().enumerate().min_by_key(key).map_or(0, |(at, _)| at)
    }

    /// A session of a client may begin.
    pub(super) fn answered(&mut self, who: Who, number: u32, from: Address) {
        let client = self.known.iter_mut().find(|one| one.who == who);
        let Some(client) = client else { return late("client that said hello") };
        if client.sessions.len() >= NUMBERS_MAX {
            // The oldest that has not begun, or else the oldest.
            let at = client.sessions.iter().position(|session| session.begun_at.is_none());
            client.sessions.remove(at.unwrap_or(0));
        }
        client.sessions.push(Session { number, from, begun_at: None });
    }

    /// A session has begun at that time, or (`None`) is over.
    pub(super) fn note(&mut self, number: u32, begun_at: Option<Instant>) {
        for client in &mut self.known {
            let its = client.sessions.iter().position(|session| session.number == number);
            match its {
                Some(at) if begun_at.is_some() => client.sessions[at].begun_at = begun_at,
                Some(at) => drop(client.sessions.remove(at)),
                None => {}
            }
        }
    }

    /// Clients that are two machines with one key, and where these are: a session goes on for longer than `patience`
    /// after another one has begun, of which one machine has forgotten the first.
    pub(super) fn twins(
        &self,
        now: Instant,
        patience: Duration,
    ) -> impl Iterator<Item = (u32, [Address; 2])> {
        self.known.iter().filter_map(move |client| {
            let begun = client.sessions.iter().filter_map(|one| Some((one.begun_at?, one)));
            let mut begun: Vec<_> = begun.collect();
            begun.sort_by_key(|(at, _)| *at);
            let [(_, first), (at, second), ..] = &begun[..] else { return None };
            let is_long = now.saturating_duration_since(*at) > patience;
            is_long.then_some((second.number, [first.from, second.from]))
        })
    }

    /// Whether the client of that session has another one.
    pub(super) fn has_another(&self, number: u32) -> bool {
        let is_it = |one: &Session| one.number == number;
        let client = self.known.iter().find(|client| client.sessions.iter().any(is_it));
        client.is_some_and(|client| {
            client.sessions.iter().any(|one| !is_it(one) && one.begun_at.is_some())
        })
    }

    /// Everybody who is at home at a shard.
    pub(super) fn at(&self, shard: usize) -> impl Iterator<Item = &Who> {
        self.known.iter().filter(move |one| one.shard == shard).map(|one| &one.who)
    }

    /// One that was at home there in a process before this one, and comes back.
    pub(super) fn comes_back(&mut self, who: Who, shard: usize, now: Instant) {
        if self.known.len() < CLIENTS_MAX && self.known.iter().all(|one| one.who != who) {
            self.known.push(Assigned { who, shard, sessions: Vec::new(), asked_at: now });
        }
    }

    pub(super) fn of_session(&self, number: u32) -> Option<Who> {
        let has = |one: &&Assigned| one.sessions.iter().any(|its| its.number == number);
        self.known.iter().find(has).map(|one| one.who)
    }

    pub(super) fn keep(&mut self, number: u32, greeted: Box<Greeted>) {
        if self.read.len() >= HELLOS_MAX {
            // Its shard had no number for it.
            self.read.remove(0);
        }
        self.read.push((number, greeted));
    }

    pub(super) fn take(&mut self, number: u32) -> Option<Box<Greeted>> {
        let at = self.read.iter().position(|(known, _)| *known == number)?;
        Some(self.read.remove(at).1)
    }
}

/// Who says hello from there.
pub(super) fn who(client: PublicKey, from: Address) -> Who {
    (client, (client == [0; 32]).then_some(from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    const PATIENCE: Duration = Duration::from_secs(21);
    const IDLE: Place = Place { is_parked: false, load: 0 };
    const PARKED: Place = Place { is_parked: true, load: 0 };

    fn key(number: u8) -> Who {
        ([number; 32], None)
    }

    fn there(host: u8) -> Address {
        Address::udp(([10, 0, 0, host], 7447).into())
    }

    fn assign(clients: &mut Clients, who: Who, places: &[Place], at: Instant) -> usize {
        clients.assign(who, places, (at, PATIENCE), |_| false).expect("a shard")
    }

    #[test]
    fn clients_go_where_the_least_is_to_be_done_and_stay_while_they_have_something() {
        let (mut clients, start) = (Clients::default(), now());
        let places = [IDLE; 3];
        let shards: Vec<usize> =
            (1..=7).map(|number| assign(&mut clients, key(number), &places, start)).collect();
        assert_eq!(shards, [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(assign(&mut clients, key(5), &places, start), 1, "it is the same one");
        // Its session is at its shard; two others never proved theirs; of one slots are remembered.
        clients.answered(key(5), 1 << 28, there(1));
        clients.note(1 << 28, Some(start));
        assert_eq!(clients.of_session(1 << 28), Some(key(5)));
        let later = start + PATIENCE;
        let has = |who: &Who| *who == key(6);
        assert_eq!(clients.assign(key(8), &places, (later, PATIENCE), has), Ok(0));
        let left: Vec<Who> = clients.known.iter().map(|one| one.who).collect();
        assert_eq!(left, [key(5), key(6), key(8)]);
        // Whose session is over may go elsewhere.
        clients.note(1 << 28, None);
        let much_later = later + PATIENCE;
        assert_eq!(assign(&mut clients, key(9), &places, much_later), 0);
        assert_eq!(clients.known.len(), 1);
    }

    #[test]
    fn who_sleeps_is_left_asleep_while_others_have_time() {
        let at = |load| Place { is_parked: false, load };
        let mut clients = Clients::default();
        for number in 1..=4 {
            assert_eq!(assign(&mut clients, key(number), &[PARKED, at(400)], now()), 1);
        }
        assert_eq!(assign(&mut clients, key(5), &[PARKED, at(500)], now()), 0);
        // Of those with as many clients, the one that works least.
        let mut clients = Clients::default();
        assert_eq!(assign(&mut clients, key(1), &[at(300), at(20), at(100)], now()), 1);
    }

    #[test]
    fn a_client_without_a_key_is_known_by_its_address() {
        let (mut clients, start) = (Clients::default(), now());
        let at = |port| who([0; 32], Address::udp(([10, 0, 0, 1], port).into()));
        let places = [IDLE; 2];
        assert_eq!(assign(&mut clients, at(1), &places, start), 0);
        assert_eq!(assign(&mut clients, at(2), &places, start), 1);
        assert_eq!(assign(&mut clients, at(1), &places, start), 0);
        assert_eq!(who([7; 32], Address::udp(([10, 0, 0, 1], 1).into())), key(7));
    }

    #[test]
    fn two_machines_with_one_key_are_told_from_one_that_came_again() {
        let (mut clients, start) = (Clients::default(), now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let twins = |clients: &Clients, ms| clients.twins(at(ms), PATIENCE).collect::<Vec<_>>();
        assign(&mut clients, key(5), &[IDLE], start);
        clients.answered(key(5), 1, there(1));
        clients.note(1, Some(at(0)));
        clients.answered(key(5), 2, there(2));
        assert!(!clients.has_another(1), "an answer is no session yet");
        clients.note(2, Some(at(5)));
        assert!(clients.has_another(2) && clients.has_another(1));
        // The first one may be over by its lease.
        assert_eq!(twins(&clients, 21_005), []);
        assert_eq!(twins(&clients, 21_006), [(2, [there(1), there(2)])]);
        // Others come and go; the first two tell.
        clients.answered(key(5), 3, there(1));
        clients.note(3, Some(at(30_000)));
        assert_eq!(twins(&clients, 30_000).len(), 1);
        clients.note(1, None);
        assert_eq!(twins(&clients, 30_000), []);
        assert_eq!(twins(&clients, 60_000), [(3, [there(2), there(1)])]);
    }

    #[test]
    fn there_are_bounds() {
        let (mut clients, start) = (Clients::default(), now());
        let at = |number: usize| {
            let [high, low] = (number as u16).to_be_bytes();
            who([0; 32], Address::udp(([10, 0, high, low], 1).into()))
        };
        for number in 0..CLIENTS_MAX {
            assign(&mut clients, at(number), &[IDLE], start);
        }
        let times = (start, PATIENCE);
        let crowded =
            clients.assign(at(CLIENTS_MAX), &[IDLE], times, |_| false).expect_err("no shard");
        let expected = "there are 4096 clients already, with a session or in a handshake";
        assert_eq!(crowded.to_string(), expected);
        assert_eq!(clients.assign(at(7), &[IDLE], times, |_| false), Ok(0));
        // Who repeats its hello is remembered with few numbers, and those that have begun.
        clients.answered(at(7), 1, there(1));
        clients.note(1, Some(start));
        (2..100).for_each(|number| clients.answered(at(7), number, there(1)));
        assert_eq!(clients.known[7].sessions.len(), NUMBERS_MAX);
        assert_eq!(clients.of_session(1), Some(at(7)));
        assert_eq!(clients.of_session(2), None);
        // Nor does one whose sessions all begin.
        for number in 0..100 {
            clients.answered(at(7), (2 << 28) + number, there(1));
            clients.note((2 << 28) + number, Some(start));
        }
        assert_eq!(clients.known[7].sessions.len(), NUMBERS_MAX);
        assert_eq!(clients.of_session((2 << 28) + 99), Some(at(7)));
        let mut clients = Clients::default();
        for number in 0..SESSIONS_MAX {
            assign(&mut clients, at(number), &[IDLE], start);
            clients.answered(at(number), number as u32, there(1));
            clients.note(number as u32, Some(start));
        }
        let crowded = clients.assign(at(SESSIONS_MAX), &[IDLE], times, |_| false);
        let crowded = crowded.expect_err("no shard");
        assert_eq!(crowded.to_string(), "its clients have 1024 sessions already");
    }
}
