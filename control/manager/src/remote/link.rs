//! One link: its plan, the sidecores that have its seats, and the end that this daemon has of it.
//!
//! Not here: what the two ends do (`client`, `host`), nor sockets (`backend::link`).

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use backend::link::{LinkKey, LinkSeats, LinkSocket};
use config::plan::{LinkEnd, LinkPlan};
use control::shard::Shard;
use sidecore::{Command, Link, ToClient, ToHost};
use tracing::warn;

use super::error::{InheritError, LinkKeyError, SocketError};
use super::greeter::Party;
use super::party::{identity_of, party_of};
use super::ports::Ports;
use super::serving::Serving;
use super::sockets;
use super::using::Using;
use crate::defects::{Defects, found};
use crate::devices::log_rate::LogRate;
use crate::sidecores::Cores;
use crate::turn::Turn;

/// Between two attempts to open a socket.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The same when no sidecore has a place for it.
const NO_PLACE_INTERVAL: Duration = Duration::from_secs(60);

/// It.
pub(super) struct OneLink {
    pub(super) line: Line,
    pub(super) end: End,
}

/// What only one of the two ends has.
pub(super) enum End {
    Client(Using, Ports),
    Iohost(Serving),
}

/// What both ends have.
pub(super) struct Line {
    key: LinkKey,
    plan: LinkPlan,
    /// By number: a client's has one.
    seats: Vec<Seat>,
    stage: Stage,
    log: LogRate,
}

/// A seat, and the sidecore that has it.
struct Seat {
    core: usize,
    shard: Shard<Link, Command>,
}

/// Whether it works.
enum Stage {
    /// Its socket could not be opened; it is tried again.
    Shut { problem: String, retry_at: Instant },
    /// Sidecores have it; how frames come and go, by seat.
    Open { sockets: Vec<&'static str> },
}

impl OneLink {
    /// One that is to be opened, with a seat at each of these sidecores.
    ///
    /// # Errors
    /// Its key is of no use.
    pub(super) fn new(
        key: LinkKey,
        plan: &LinkPlan,
        cores: Vec<usize>,
        now: Instant,
    ) -> Result<(OneLink, Party), LinkKeyError> {
        let identity = identity_of(plan)?;
        let end = match &plan.end {
            LinkEnd::Client { .. } => End::Client(Using::new(), Ports::default()),
            LinkEnd::Iohost { .. } => End::Iohost(Serving::new(&identity, cores.len())?),
        };
        let seats = cores.into_iter().map(|core| Seat { core, shard: Shard::default() });
        let (seats, plan) = (seats.collect(), plan.clone());
        let party = party_of(&plan, identity)?;
        let stage = Stage::Shut { problem: "is not open yet".to_string(), retry_at: now };
        let line = Line { key, plan, seats, stage, log: LogRate::default() };
        Ok((OneLink { line, end }, party))
    }

    /// So many seats a link of that plan has at most.
    pub(super) fn seats_of(plan: &LinkPlan) -> usize {
        match &plan.end {
            LinkEnd::Client { .. } => 1,
            LinkEnd::Iohost { sidecores, .. } => *sidecores,
        }
    }

    pub(super) fn using(&mut self) -> Option<&mut Using> {
        match &mut self.end {
            End::Client(using, _) => Some(using),
            End::Iohost(_) => None,
        }
    }

    pub(super) fn serving(&self) -> Option<&Serving> {
        match &self.end {
            End::Iohost(serving) => Some(serving),
            End::Client(..) => None,
        }
    }

    /// Whether a port of a client's goes by it.
    pub(super) fn has_port(&self, port: u32) -> bool {
        matches!(&self.end, End::Client(_, ports) if ports.has(port))
    }

    /// What the NIC at a client's port waits for, if that is another machine.
    pub(super) fn nic_waits_for(&self, port: u32, now: Instant) -> Option<String> {
        match &self.end {
            End::Client(_, ports) => ports.waits_for(port, now),
            End::Iohost(_) => None,
        }
    }

    /// When its socket is tried again, or a device asked for.
    pub(super) fn due_at(&self) -> Option<Instant> {
        match (&self.line.stage, &self.end) {
            (Stage::Shut { retry_at, .. }, _) => Some(*retry_at),
            (Stage::Open { .. }, End::Client(using, _)) => using.due_at(),
            (Stage::Open { .. }, End::Iohost(_)) => None,
        }
    }

    /// Begins with these sockets: seats for which there is none are given up.
    pub(super) fn open(&mut self, opened: LinkSeats, turn: &mut Turn, cores: &mut Cores) {
        let LinkSeats { sockets, refused } = opened;
        let line = &mut self.line;
        if let Some(why) = refused {
            warn!(link = line.plan.id, "it is served by one sidecore: {why}");
        }
        let unused = line.seats.split_off(sockets.len().clamp(1, line.seats.len().max(1)));
        line.stage = Stage::Open { sockets: sockets.iter().map(LinkSocket::describe).collect() };
        for (seat, socket) in sockets.into_iter().enumerate() {
            let made = match &mut self.end {
                End::Client(using, _) => using.make(&line.plan, socket),
                End::Iohost(serving) => serving.make(&line.plan, seat, socket),
            };
            line.seat_begins(seat, made, &mut turn.defects, cores);
        }
        unused.into_iter().for_each(|seat| cores.give_load(seat.core, 1));
    }
}

/// Its seats.
impl Line {
    pub(super) fn key(&self) -> LinkKey {
        self.key
    }

    pub(super) fn id(&self) -> &str {
        &self.plan.id
    }

    pub(super) fn plan(&self) -> &LinkPlan {
        &self.plan
    }

    /// Others may have what it lends.
    pub(super) fn set_plan(&mut self, plan: LinkPlan) {
        self.plan = plan;
    }

    /// How long a client may be silent, of an IOhost's.
    pub(super) fn lease_s(&self) -> u32 {
        match &self.plan.end {
            LinkEnd::Iohost { lease_s, .. } => *lease_s,
            LinkEnd::Client { .. } => 0,
        }
    }

    /// The sidecores of its seats.
    pub(super) fn cores(&self) -> impl Iterator<Item = usize> {
        self.seats.iter().map(|seat| seat.core)
    }

    /// The sidecore of a seat.
    pub(super) fn core(&self, seat: usize) -> Option<usize> {
        self.seats.get(seat).map(|seat| seat.core)
    }

    /// The seat of that sidecore: none of one that was refused, and was opened again with fewer.
    pub(super) fn seat_of(&self, core: usize) -> Option<usize> {
        self.seats.iter().position(|seat| seat.core == core)
    }

    /// Whether a line about it may be written: peers can cause many.
    pub(super) fn may_log(&mut self, now: Instant) -> bool {
        self.log.allows(now)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open { .. })
    }

    /// Whether its sockets are to be tried now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        matches!(&self.stage, Stage::Shut { retry_at, .. } if *retry_at <= now)
    }

    /// Why it does not work.
    pub(super) fn problem(&self) -> Option<&str> {
        match &self.stage {
            Stage::Shut { problem, .. } => Some(problem),
            Stage::Open { .. } => None,
        }
    }

    /// How frames come and go, by seat, while it is open.
    pub(super) fn sockets(&self) -> &[&'static str] {
        match &self.stage {
            Stage::Open { sockets } => sockets,
            Stage::Shut { .. } => &[],
        }
    }

    /// Opens its sockets.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn open_sockets(&self) -> Result<LinkSeats, SocketError> {
        sockets::open(&self.plan, self.seats.len())
    }

    /// The same with what another process had.
    ///
    /// # Errors
    /// As [`sockets::inherit`].
    pub(super) fn inherit_sockets(
        &self,
        sockets: Vec<OwnedFd>,
    ) -> Result<Option<LinkSeats>, InheritError> {
        sockets::inherit(&self.plan, self.seats.len(), sockets)
    }

    /// It cannot be opened, and is tried again.
    pub(super) fn shut(&mut self, problem: String, now: Instant) {
        let is_news =
            !matches!(&self.stage, Stage::Shut { problem: before, .. } if *before == problem);
        if is_news {
            warn!(link = self.plan.id, "{problem}; it is tried again every second");
        }
        self.stage = Stage::Shut { problem, retry_at: now + RETRY_INTERVAL };
    }

    /// A sidecore gave it back, which could not take it. Its other seats go, too: without one of them its clients would
    /// say hello to nobody.
    pub(super) fn is_refused(&mut self, now: Instant, cores: &mut Cores) {
        let problem = "its sidecore has no place for it: make fewer links".to_string();
        warn!(link = self.plan.id, "{problem}");
        self.stage = Stage::Shut { problem, retry_at: now + NO_PLACE_INTERVAL };
        for seat in &mut self.seats {
            seat.shard.shut();
            cores.send(seat.core, Command::DetachLink(self.key));
        }
    }

    /// A sidecore is to have a seat.
    fn seat_begins(&mut self, seat: usize, made: Link, defects: &mut Defects, cores: &mut Cores) {
        let seat = found!(defects, self.seats.get_mut(seat), "seat of a socket");
        if !seat.shard.open() {
            return defects.note("seat that no sidecore has");
        }
        cores.send(seat.core, Command::AttachLink(self.key, made));
    }

    /// Goes on with what another process had of a client's.
    pub(super) fn go_on(&mut self, made: Link, defects: &mut Defects, cores: &mut Cores) {
        self.stage = Stage::Open { sockets: Vec::new() };
        self.seat_begins(0, made, defects, cores);
    }

    /// Says something to a client's link that is open; it has one seat.
    pub(super) fn tell_client(&mut self, told: ToClient, turn: &mut Turn, cores: &mut Cores) {
        self.tell(0, Command::ToClient(self.key, Box::new(told)), turn, cores);
    }

    /// Says something to one seat of an IOhost's link that is open.
    pub(super) fn tell_seat(
        &mut self,
        seat: usize,
        told: ToHost,
        turn: &mut Turn,
        cores: &mut Cores,
    ) {
        self.tell(seat, Command::ToHost(self.key, Box::new(told)), turn, cores);
    }

    /// What a seat is told, by whoever has it, or will.
    fn tell(&mut self, seat: usize, told: Command, turn: &mut Turn, cores: &mut Cores) {
        if !self.is_open() {
            return;
        }
        let seat = found!(turn.defects, self.seats.get_mut(seat), "sidecore of a seat");
        if let Some(told) = seat.shard.tell(told) {
            cores.send(seat.core, told);
        }
    }

    /// Says something to all seats but one.
    pub(super) fn tell_seats(
        &mut self,
        but: Option<usize>,
        told: impl Fn() -> ToHost,
        turn: &mut Turn,
        cores: &mut Cores,
    ) {
        for seat in (0..self.seats.len()).filter(|seat| Some(*seat) != but) {
            self.tell_seat(seat, told(), turn, cores);
        }
    }
}

/// Its seats on their way from one process to another.
impl Line {
    /// Asks sidecores for those that they have.
    pub(super) fn ask_for_seats(&mut self, cores: &mut Cores) {
        for seat in &mut self.seats {
            if seat.shard.ask() {
                cores.send(seat.core, Command::DetachLink(self.key));
            }
        }
    }

    /// A sidecore gave a seat back. False: it is late, and was not asked for to be kept.
    pub(super) fn is_home(&mut self, core: usize, link: Link) -> bool {
        let seat = self.seats.iter_mut().find(|seat| seat.core == core);
        seat.is_some_and(|seat| seat.shard.come_home(link).is_ok())
    }

    /// Whether all that were asked for are here.
    pub(super) fn are_home(&self) -> bool {
        !self.seats.iter().any(|seat| seat.shard.is_awaited())
    }

    /// Whether a seat was asked for: no sidecore hears what it is told.
    pub(super) fn is_away(&self, seat: usize) -> bool {
        self.seats.get(seat).is_some_and(|seat| seat.shard.is_away())
    }

    /// Gives sidecores the seats that are here, as they are.
    pub(super) fn send_out(&mut self, cores: &mut Cores) {
        for seat in &mut self.seats {
            if let Some((link, untold)) = seat.shard.send_out() {
                cores.send(seat.core, Command::AttachLink(self.key, link));
                untold.into_iter().for_each(|told| cores.send(seat.core, told));
            }
        }
    }

    /// Seats that are here, by number.
    pub(super) fn home(&self) -> impl Iterator<Item = (usize, &Link)> {
        let its = self.seats.iter().enumerate();
        its.filter_map(|(at, seat)| Some((at, seat.shard.home()?)))
    }

    pub(super) fn home_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.seats.iter_mut().filter_map(|seat| seat.shard.home_mut())
    }
}
