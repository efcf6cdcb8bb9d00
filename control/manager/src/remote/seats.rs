//! An IOhost's link on several sidecores: which client is at which of its seats, and at which seat each device is.
//!
//! A seat is a socket and an end of the protocol of its own. A client stays at its seat while it has anything there; a
//! device is at one seat at a time, and the others hear of it. Not here: what opening a device takes (`serving`, `nics`),
//! nor how frames find their seat (`backend::link::LinkSeats`). Called by `remote`, `serving`, `nics`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::link::{Address, LinkKey};
use config::plan::LinkEnd;
use remote::handshake::{Established, Greeted, PublicKey};
use remote::iohost::seat_of;
use schedule::{LOAD_FULL, Use};
use sidecore::{Command, Greeting, HostLinkCounters, SessionCounters, ToHost};
use tracing::{info, warn};

use super::error::Crowded;
use super::greeter::Task;
use super::serving::{SESSIONS_MAX, Serving};
use super::{Manager, Stage};
use crate::defects::{found, late};

/// Clients that are known at a time, with a session or in a handshake.
const CLIENTS_MAX: usize = 4096;
/// Numbers that are remembered of one client: sessions, and those that may begin yet.
const NUMBERS_MAX: usize = 16;
/// Hellos that wait for a number of another seat; a link has places for no more.
const HELLOS_MAX: usize = 8;

/// Who a client is: its key; where security is `none`, where it is.
pub(super) type Who = (PublicKey, Option<Address>);

/// What is shown of one seat.
pub(super) struct SeatParts {
    pub(super) counters: Arc<HostLinkCounters>,
    /// How the ways of its sessions are, by the low half of their numbers.
    pub(super) sessions: Arc<[SessionCounters]>,
}

impl SeatParts {
    pub(super) fn new() -> SeatParts {
        let sessions = (0..SESSIONS_MAX).map(|_| SessionCounters::default()).collect();
        SeatParts { counters: Arc::default(), sessions }
    }
}

/// Where a device is, or was when its lease ended and nobody has had it since.
pub(super) struct Had {
    pub(super) seat: usize,
    who: Option<Who>,
    bytes: usize,
    /// It is open, or being let go of.
    pub(super) is_here: bool,
    /// Nothing of it is remembered at its seat when it was let go of.
    pub(super) is_released: bool,
}

impl Had {
    /// What is known of it from a process before this one.
    pub(super) fn before(seat: usize, who: Option<Who>, is_here: bool) -> Had {
        // Its memory is made when its client is back.
        Had { seat, who, bytes: 0, is_here, is_released: false }
    }

    pub(super) fn who(&self) -> Option<&Who> {
        self.who.as_ref()
    }
}

/// A client, and its seat.
struct Client {
    who: Who,
    seat: usize,
    /// Its sessions, the latest last, and whether they have begun.
    sessions: Vec<(u32, bool)>,
    asked_at: Instant,
}

impl Client {
    fn has_session(&self) -> bool {
        self.sessions.iter().any(|(_, has_begun)| *has_begun)
    }
}

/// The clients of a link.
#[derive(Default)]
pub(super) struct Clients {
    known: Vec<Client>,
    /// Hellos that were read, by the number that they had.
    read: Vec<(u32, Box<Greeted>)>,
}

/// What a seat's sidecore is like.
#[derive(Clone, Copy, Default)]
struct Place {
    is_parked: bool,
    /// Thousandths of its time.
    load: u32,
}

impl Clients {
    /// The seat of a client that says hello. `patience` is how long a session may begin after its answer, `has` who has a
    /// device, or had it last.
    ///
    /// # Errors
    /// There are too many.
    fn seat(
        &mut self,
        who: Who,
        places: &[Place],
        (now, patience): (Instant, Duration),
        has: impl Fn(&Who) -> bool,
    ) -> Result<usize, Crowded> {
        let stays = |one: &Client| {
            one.has_session()
                || now.saturating_duration_since(one.asked_at) < patience
                || has(&one.who)
        };
        self.known.retain(stays);
        if let Some(client) = self.known.iter_mut().find(|one| one.who == who) {
            client.asked_at = now;
            return Ok(client.seat);
        }
        let sessions = self.known.iter().filter(|one| one.has_session()).count();
        if self.known.len() >= CLIENTS_MAX {
            return Err(Crowded::Clients(CLIENTS_MAX));
        }
        if sessions >= SESSIONS_MAX {
            return Err(Crowded::Sessions(SESSIONS_MAX));
        }
        let seat = self.best(places);
        self.known.push(Client { who, seat, sessions: Vec::new(), asked_at: now });
        Ok(seat)
    }

    /// The seat with the least to do. One that sleeps is left asleep until the others work half of their time.
    fn best(&self, places: &[Place]) -> usize {
        let is_crowded = places.iter().all(|one| one.is_parked || one.load >= LOAD_FULL / 2);
        let key = |(at, place): &(usize, &Place)| {
            let clients = self.known.iter().filter(|one| one.seat == *at).count();
            (place.is_parked && !is_crowded, clients, place.load)
        };
        places.iter().enumerate().min_by_key(key).map_or(0, |(at, _)| at)
    }

    /// A session of a client may begin.
    fn answered(&mut self, who: Who, number: u32) {
        let client = self.known.iter_mut().find(|one| one.who == who);
        let Some(client) = client else { return late("client that said hello") };
        if client.sessions.len() >= NUMBERS_MAX
            && let Some(at) = client.sessions.iter().position(|(_, has_begun)| !has_begun)
        {
            client.sessions.remove(at);
        }
        client.sessions.push((number, false));
    }

    /// A session has begun, or (`false`) is over.
    pub(super) fn note(&mut self, number: u32, has_begun: bool) {
        for client in &mut self.known {
            let its = client.sessions.iter().position(|(known, _)| *known == number);
            match its {
                Some(at) if has_begun => client.sessions[at].1 = true,
                Some(at) => drop(client.sessions.remove(at)),
                None => {}
            }
        }
    }

    /// Everybody who is at home at a seat.
    pub(super) fn at(&self, seat: usize) -> impl Iterator<Item = &Who> {
        self.known.iter().filter(move |one| one.seat == seat).map(|one| &one.who)
    }

    /// One that was at home there in a process before this one, and comes back.
    pub(super) fn comes_back(&mut self, who: Who, seat: usize, now: Instant) {
        if self.known.len() < CLIENTS_MAX && self.known.iter().all(|one| one.who != who) {
            self.known.push(Client { who, seat, sessions: Vec::new(), asked_at: now });
        }
    }

    fn of_session(&self, number: u32) -> Option<Who> {
        let has = |one: &&Client| one.sessions.iter().any(|(known, _)| *known == number);
        self.known.iter().find(has).map(|one| one.who)
    }

    fn keep(&mut self, number: u32, greeted: Box<Greeted>) {
        if self.read.len() >= HELLOS_MAX {
            // Its seat had no number for it.
            self.read.remove(0);
        }
        self.read.push((number, greeted));
    }

    fn take(&mut self, number: u32) -> Option<Box<Greeted>> {
        let at = self.read.iter().position(|(known, _)| *known == number)?;
        Some(self.read.remove(at).1)
    }
}

fn who(client: PublicKey, from: Address) -> Who {
    (client, (client == [0; 32]).then_some(from))
}

impl Serving {
    /// Whether a client has a device, or its slots are remembered at its seat.
    fn is_had_by(&self, who: &Who) -> bool {
        self.exports
            .iter()
            .any(|export| export.had.as_ref().is_some_and(|had| had.who.as_ref() == Some(who)))
    }

    /// Where a device is that a seat wants to have opened. `Err`: what that seat is told instead.
    pub(super) fn judge(
        &mut self,
        export: u16,
        (seat, session): (usize, u32),
        bytes: usize,
    ) -> Result<Option<Had>, ToHost> {
        let used = |export: &super::serving::Export| {
            export.had.as_ref().filter(|had| had.is_here).map_or(0, |had| had.bytes)
        };
        let sum: usize = self.exports.iter().map(used).sum();
        let memory_bytes = self.memory_bytes;
        let who = self.seated.of_session(session);
        let Some(place) = self.exports.get_mut(usize::from(export)) else {
            return Ok(None);
        };
        if place.had.as_ref().is_some_and(|had| had.is_here && had.seat != seat) {
            let generation = place.generation;
            return Err(ToHost::Elsewhere { export, generation, is_answer: true });
        }
        if bytes > memory_bytes.saturating_sub(sum) {
            return Err(ToHost::Busy { export });
        }
        let had = Had { seat, who, bytes, is_here: true, is_released: false };
        Ok(place.had.replace(had))
    }
}

impl Manager {
    /// Says something to one seat of an IOhost's link that is open.
    pub(super) fn tell_seat(&mut self, key: LinkKey, seat: usize, told: ToHost) {
        self.command_seat(key, seat, Command::ToHost(key, Box::new(told)));
    }

    /// What a seat is told, to whoever has it, or will.
    pub(super) fn command_seat(&mut self, key: LinkKey, seat: usize, told: Command) {
        if self.rooms.remote.transit.is_away(key, seat) {
            return self.rooms.remote.transit.untold.push((key, seat, told));
        }
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        if matches!(link.stage, Stage::Open) {
            let core = *found!(self.rooms.turn.defects, link.seats.get(seat), "sidecore of a seat");
            self.rooms.cores.send(core, told);
        }
    }

    /// Says something to all seats but one.
    pub(super) fn tell_seats(
        &mut self,
        key: LinkKey,
        but: Option<usize>,
        told: impl Fn() -> ToHost,
    ) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        for seat in (0..link.seats.len()).filter(|seat| Some(*seat) != but) {
            self.tell_seat(key, seat, told());
        }
    }

    /// A device is open at a seat: the others hear of that.
    pub(super) fn is_at(&mut self, key: LinkKey, seat: usize, (export, generation): (u16, u64)) {
        let one =
            found!(self.rooms.turn.defects, self.export(key, export), "export of that number");
        one.generation = one.generation.max(generation);
        let told = || ToHost::Elsewhere { export, generation, is_answer: false };
        self.tell_seats(key, Some(seat), told);
    }

    /// A device was let go of: its seat, and then the others, hear of that.
    pub(super) fn is_nowhere(&mut self, key: LinkKey, export: u16, is_synced: bool) {
        let one =
            found!(self.rooms.turn.defects, self.export(key, export), "export of that number");
        let had = found!(self.rooms.turn.defects, &mut one.had, "seat where a device is let go of");
        had.is_here = false;
        let (seat, is_released) = (had.seat, had.is_released);
        if is_released {
            one.had = None;
        }
        self.tell_seat(key, seat, ToHost::LetGo { export, is_synced });
        self.tell_seats(key, Some(seat), || ToHost::ComesFree { export });
    }

    /// A client has a session, or has it no more.
    pub(super) fn note_client(&mut self, key: LinkKey, session: u32, came: Option<PublicKey>) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let mut all = link.plan.clients().iter();
        let client = came.map(|key| {
            let found = all.find(|client| client.key.is_none_or(|known| known == key));
            found.map(|client| client.name.clone()).unwrap_or_default()
        });
        let serving = found!(self.rooms.turn.defects, link.serving(), "IOhost's end of that link");
        serving.seated.note(session, client.is_some());
        match &client {
            Some(name) => serving.clients.insert(session, name.clone()),
            None => serving.clients.remove(&session),
        };
        self.log_of_link(key, |link| {
            let link = &link.plan.id;
            match client {
                Some(client) => info!(link, session, client, "a session began"),
                None => info!(link, session, "a session ended"),
            }
        });
    }

    /// A hello was read: its client has a seat, or gets one, and that has a number for the session.
    pub(super) fn seat_client(&mut self, key: LinkKey, greeting: Greeting, greeted: Box<Greeted>) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let cores = link.seats.clone();
        let lease_s = match &link.plan.end {
            LinkEnd::Iohost { lease_s, .. } => *lease_s,
            LinkEnd::Client { .. } => 0,
        };
        let places: Vec<Place> = cores
            .iter()
            .map(|core| Place {
                is_parked: self.rooms.cores.state(*core) == Use::Parked,
                load: self.rooms.cores.load(*core),
            })
            .collect();
        let client = *greeted.peer();
        let who = who(client, greeting.from);
        // A session's first lease is twice as long.
        let times = (self.rooms.turn.now(), Duration::from_secs(2 * u64::from(lease_s) + 1));
        let serving = found!(
            self.rooms.turn.defects,
            self.rooms.remote.serving(key),
            "IOhost's end of that link"
        );
        let mut seated = std::mem::take(&mut serving.seated);
        let seat = seated.seat(who, &places, times, |who| serving.is_had_by(who));
        serving.seated = seated;
        let seat = match seat {
            Ok(seat) => seat,
            Err(why) => {
                let from = greeting.from;
                return self.log_of_link(key, |link| {
                    warn!(link = link.plan.id, "a hello from {from} is not answered: {why}");
                });
            }
        };
        self.rooms.cores.wake(*found!(
            self.rooms.turn.defects,
            cores.get(seat),
            "sidecore of a seat"
        ));
        if seat == seat_of(greeting.number) {
            return self.ask_greeter(Task::Answer(key, greeting, greeted));
        }
        let serving = found!(
            self.rooms.turn.defects,
            self.rooms.remote.serving(key),
            "IOhost's end of that link"
        );
        serving.seated.keep(greeting.number, greeted);
        self.tell_seat(key, seat, ToHost::Reserve { greeting, client });
    }

    /// A seat has a number for a hello that another one has heard.
    pub(super) fn hello_is_seated(&mut self, key: LinkKey, before: u32, greeting: Greeting) {
        let serving = found!(
            self.rooms.turn.defects,
            self.rooms.remote.serving(key),
            "IOhost's end of that link"
        );
        // Others were read since, and there is no room for all.
        let Some(greeted) = serving.seated.take(before) else { return late("hello") };
        self.ask_greeter(Task::Answer(key, greeting, greeted));
    }

    /// A hello has an answer, which its seat is to send.
    pub(super) fn hello_is_answered(
        &mut self,
        key: LinkKey,
        greeting: Greeting,
        made: Box<Established>,
        answer: Vec<u8>,
    ) {
        let number = greeting.number;
        let who = who(made.peer, greeting.from);
        let serving = found!(
            self.rooms.turn.defects,
            self.rooms.remote.serving(key),
            "IOhost's end of that link"
        );
        serving.seated.answered(who, number);
        self.tell_seat(key, seat_of(number), ToHost::Answer { greeting, made, answer });
    }
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

    fn seat(clients: &mut Clients, who: Who, places: &[Place], at: Instant) -> usize {
        clients.seat(who, places, (at, PATIENCE), |_| false).expect("a seat")
    }

    #[test]
    fn clients_go_where_the_least_is_to_be_done_and_stay_while_they_have_something() {
        let (mut clients, start) = (Clients::default(), now());
        let places = [IDLE; 3];
        let seats: Vec<usize> =
            (1..=7).map(|number| seat(&mut clients, key(number), &places, start)).collect();
        assert_eq!(seats, [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(seat(&mut clients, key(5), &places, start), 1, "it is the same one");
        // Its session is at its seat; two others never proved theirs; of one slots are remembered.
        clients.answered(key(5), 1 << 28);
        clients.note(1 << 28, true);
        assert_eq!(clients.of_session(1 << 28), Some(key(5)));
        let later = start + PATIENCE;
        let has = |who: &Who| *who == key(6);
        assert_eq!(clients.seat(key(8), &places, (later, PATIENCE), has), Ok(0));
        let left: Vec<Who> = clients.known.iter().map(|one| one.who).collect();
        assert_eq!(left, [key(5), key(6), key(8)]);
        // Whose session is over may go elsewhere.
        clients.note(1 << 28, false);
        let much_later = later + PATIENCE;
        assert_eq!(seat(&mut clients, key(9), &places, much_later), 0);
        assert_eq!(clients.known.len(), 1);
    }

    #[test]
    fn who_sleeps_is_left_asleep_while_others_have_time() {
        let at = |load| Place { is_parked: false, load };
        let mut clients = Clients::default();
        for number in 1..=4 {
            assert_eq!(seat(&mut clients, key(number), &[PARKED, at(400)], now()), 1);
        }
        assert_eq!(seat(&mut clients, key(5), &[PARKED, at(500)], now()), 0);
        // Of those with as many clients, the one that works least.
        let mut clients = Clients::default();
        assert_eq!(seat(&mut clients, key(1), &[at(300), at(20), at(100)], now()), 1);
    }

    #[test]
    fn a_client_without_a_key_is_known_by_its_address() {
        let (mut clients, start) = (Clients::default(), now());
        let at = |port| who([0; 32], Address::udp(([10, 0, 0, 1], port).into()));
        let places = [IDLE; 2];
        assert_eq!(seat(&mut clients, at(1), &places, start), 0);
        assert_eq!(seat(&mut clients, at(2), &places, start), 1);
        assert_eq!(seat(&mut clients, at(1), &places, start), 0);
        assert_eq!(who([7; 32], Address::udp(([10, 0, 0, 1], 1).into())), key(7));
    }

    #[test]
    fn there_are_bounds() {
        let (mut clients, start) = (Clients::default(), now());
        let at = |number: usize| {
            let [high, low] = (number as u16).to_be_bytes();
            who([0; 32], Address::udp(([10, 0, high, low], 1).into()))
        };
        for number in 0..CLIENTS_MAX {
            seat(&mut clients, at(number), &[IDLE], start);
        }
        let times = (start, PATIENCE);
        let crowded =
            clients.seat(at(CLIENTS_MAX), &[IDLE], times, |_| false).expect_err("no seat");
        let expected = "there are 4096 clients already, with a session or in a handshake";
        assert_eq!(crowded.to_string(), expected);
        assert_eq!(clients.seat(at(7), &[IDLE], times, |_| false), Ok(0));
        // Who repeats its hello is remembered with few numbers, and those that have begun.
        clients.answered(at(7), 1);
        clients.note(1, true);
        (2..100).for_each(|number| clients.answered(at(7), number));
        assert_eq!(clients.known[7].sessions.len(), NUMBERS_MAX);
        assert_eq!(clients.of_session(1), Some(at(7)));
        assert_eq!(clients.of_session(2), None);
        let mut clients = Clients::default();
        for number in 0..SESSIONS_MAX {
            seat(&mut clients, at(number), &[IDLE], start);
            clients.answered(at(number), number as u32);
            clients.note(number as u32, true);
        }
        let crowded = clients.seat(at(SESSIONS_MAX), &[IDLE], times, |_| false);
        let crowded = crowded.expect_err("no seat");
        assert_eq!(crowded.to_string(), "its clients have 1024 sessions already");
    }
}
