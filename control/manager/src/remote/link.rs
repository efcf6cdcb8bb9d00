//! One link: its plan, the sidecores that have its shards, and the end that this daemon has of it.
//!
//! Not here: what the two ends do (`client`, `host`), nor sockets (`backend::link`).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::link::{LinkKey, LinkShards, LinkSocket};
use config::plan::{LinkEnd, LinkPlan};
use control::shard::Shard as Life;
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
    shards: Vec<Shard>,
    stage: Stage,
    log: LogRate,
}

/// A shard, and the sidecore that has it.
struct Shard {
    core: usize,
    life: Life<Link, Command>,
}

/// Whether it works.
enum Stage {
    /// Its socket could not be opened; it is tried again.
    Shut { problem: String, retry_at: Instant },
    /// Sidecores have it; how frames come and go, by shard.
    Open { sockets: Vec<&'static str> },
}

impl OneLink {
    /// One that is to be opened, with a shard at each of these sidecores.
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
        let mut end = match &plan.end {
            LinkEnd::Client { .. } => End::Client(Using::new(), Ports::default()),
            LinkEnd::Iohost { .. } => End::Iohost(Serving::new(&identity, cores.len())?),
        };
        let shards = cores.into_iter().map(|core| Shard { core, life: Life::default() });
        let (shards, plan) = (shards.collect(), plan.clone());
        let party = party_of(&plan, identity)?;
        if let (End::Iohost(serving), Party::Iohost { refused, .. }) = (&mut end, &party) {
            serving.strangers.counted_by(Arc::clone(refused));
        }
        let stage = Stage::Shut { problem: "is not open yet".to_string(), retry_at: now };
        let line = Line { key, plan, shards, stage, log: LogRate::default() };
        Ok((OneLink { line, end }, party))
    }

    /// So many shards a link of that plan has at most.
    pub(super) fn shards_of(plan: &LinkPlan) -> usize {
        match &plan.end {
            LinkEnd::Client { .. } => 1,
            LinkEnd::Iohost { sidecores, .. } => *sidecores,
        }
    }

    /// It is as that of a process that has just begun.
    #[cfg(test)]
    pub(super) fn begin_anew(&mut self) {
        self.end = match self.end {
            End::Client(..) => End::Client(Using::new(), Ports::default()),
            End::Iohost(_) => {
                let shards = self.line.shards.len();
                End::Iohost(
                    Serving::new(&remote::handshake::Identity::None, shards).expect("no key"),
                )
            }
        };
        self.line.shards.iter_mut().for_each(|shard| shard.life.shut());
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

    /// Why frames of the NIC at a client's port are lost, as far as its IOhost goes.
    pub(super) fn nic_hindered(&self, port: u32, now: Instant) -> Option<String> {
        match &self.end {
            End::Client(_, ports) => ports.hindered(port, now),
            End::Iohost(_) => None,
        }
    }

    /// When its socket is tried again, or a device asked for.
    pub(super) fn due_at(&self) -> Option<Instant> {
        match (&self.line.stage, &self.end) {
            (Stage::Shut { retry_at, .. }, _) => Some(*retry_at),
            (Stage::Open { .. }, End::Client(using, _)) => using.due_at(),
            (Stage::Open { .. }, End::Iohost(serving)) => serving.due_at(),
        }
    }

    /// Begins with these sockets: shards for which there is none are given up.
    pub(super) fn open(&mut self, opened: LinkShards, turn: &mut Turn, cores: &mut Cores) {
        let LinkShards { sockets, refused } = opened;
        let line = &mut self.line;
        if let Some(why) = refused {
            warn!(link = line.plan.id, "it is served by one sidecore: {why}");
        }
        let unused = line.shards.split_off(sockets.len().clamp(1, line.shards.len().max(1)));
        line.stage = Stage::Open { sockets: sockets.iter().map(LinkSocket::describe).collect() };
        for (shard, socket) in sockets.into_iter().enumerate() {
            let made = match &mut self.end {
                End::Client(using, _) => using.make(&line.plan, socket),
                End::Iohost(serving) => serving.make(&line.plan, shard, socket),
            };
            line.shard_begins(shard, made, &mut turn.defects, cores);
        }
        unused.into_iter().for_each(|shard| cores.give_load(shard.core, 1));
    }
}

/// Its shards.
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

    /// How long a client's session may begin after its answer, or go on when the client has forgotten it: the first
    /// lease is twice as long.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(2 * u64::from(self.lease_s()) + 1)
    }

    /// The sidecores of its shards.
    pub(super) fn cores(&self) -> impl Iterator<Item = usize> {
        self.shards.iter().map(|shard| shard.core)
    }

    /// The sidecore of a shard.
    pub(super) fn core(&self, shard: usize) -> Option<usize> {
        self.shards.get(shard).map(|shard| shard.core)
    }

    /// The shard of that sidecore: none of one that was refused, and was opened again with fewer.
    pub(super) fn shard_of(&self, core: usize) -> Option<usize> {
        self.shards.iter().position(|shard| shard.core == core)
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

    /// How frames come and go, by shard, while it is open.
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
    pub(super) fn open_sockets(&self) -> Result<LinkShards, SocketError> {
        sockets::open(&self.plan, self.shards.len())
    }

    /// The same with what another process had.
    ///
    /// # Errors
    /// As [`sockets::inherit`].
    pub(super) fn inherit_sockets(
        &self,
        sockets: Vec<OwnedFd>,
    ) -> Result<Option<LinkShards>, InheritError> {
        sockets::inherit(&self.plan, self.shards.len(), sockets)
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

    /// A sidecore gave it back, which could not take it. Its other shards go, too: without one of them its clients would
    /// say hello to nobody.
    pub(super) fn is_refused(&mut self, now: Instant, cores: &mut Cores) {
        let problem = "its sidecore has no place for it: make fewer links".to_string();
        warn!(link = self.plan.id, "{problem}");
        self.stage = Stage::Shut { problem, retry_at: now + NO_PLACE_INTERVAL };
        for shard in &mut self.shards {
            shard.life.shut();
            cores.send(shard.core, Command::DetachLink(self.key));
        }
    }

    /// A sidecore is to have a shard.
    fn shard_begins(&mut self, shard: usize, made: Link, defects: &mut Defects, cores: &mut Cores) {
        let shard = found!(defects, self.shards.get_mut(shard), "shard of a socket");
        if !shard.life.open() {
            return defects.note("shard that no sidecore has");
        }
        cores.send(shard.core, Command::AttachLink(self.key, made));
    }

    /// Goes on with what another process had of a client's, and with its socket.
    pub(super) fn go_on(
        &mut self,
        made: Link,
        socket: &'static str,
        defects: &mut Defects,
        cores: &mut Cores,
    ) {
        self.stage = Stage::Open { sockets: vec![socket] };
        self.shard_begins(0, made, defects, cores);
    }

    /// Says something to a client's link that is open; it has one shard.
    pub(super) fn tell_client(&mut self, told: ToClient, turn: &mut Turn, cores: &mut Cores) {
        self.tell(0, Command::ToClient(self.key, Box::new(told)), turn, cores);
    }

    /// Says something to one shard of an IOhost's link that is open.
    pub(super) fn tell_shard(
        &mut self,
        shard: usize,
        told: ToHost,
        turn: &mut Turn,
        cores: &mut Cores,
    ) {
        self.tell(shard, Command::ToHost(self.key, Box::new(told)), turn, cores);
    }

    /// What a shard is told, by whoever has it, or will.
    fn tell(&mut self, shard: usize, told: Command, turn: &mut Turn, cores: &mut Cores) {
        if !self.is_open() {
            return;
        }
        let shard = found!(turn.defects, self.shards.get_mut(shard), "sidecore of a shard");
        if let Some(told) = shard.life.tell(told) {
            cores.send(shard.core, told);
        }
    }

    /// Says something to all shards but one.
    pub(super) fn tell_shards(
        &mut self,
        but: Option<usize>,
        told: impl Fn() -> ToHost,
        turn: &mut Turn,
        cores: &mut Cores,
    ) {
        for shard in (0..self.shards.len()).filter(|shard| Some(*shard) != but) {
            self.tell_shard(shard, told(), turn, cores);
        }
    }
}

/// Its shards on their way from one process to another.
impl Line {
    /// Asks sidecores for those that they have.
    pub(super) fn ask_for_shards(&mut self, cores: &mut Cores) {
        for shard in &mut self.shards {
            if shard.life.ask() {
                cores.send(shard.core, Command::DetachLink(self.key));
            }
        }
    }

    /// A sidecore gave a shard back. False: it is late, and was not asked for to be kept.
    pub(super) fn is_home(&mut self, core: usize, link: Link) -> bool {
        let shard = self.shards.iter_mut().find(|shard| shard.core == core);
        shard.is_some_and(|shard| shard.life.come_home(link).is_ok())
    }

    /// Whether all that were asked for are here.
    pub(super) fn are_home(&self) -> bool {
        !self.shards.iter().any(|shard| shard.life.is_awaited())
    }

    /// Whether a shard was asked for: no sidecore hears what it is told.
    pub(super) fn is_away(&self, shard: usize) -> bool {
        self.shards.get(shard).is_some_and(|shard| shard.life.is_away())
    }

    /// Gives sidecores the shards that are here, as they are.
    pub(super) fn send_out(&mut self, cores: &mut Cores) {
        for shard in &mut self.shards {
            if let Some((link, untold)) = shard.life.send_out() {
                cores.send(shard.core, Command::AttachLink(self.key, link));
                untold.into_iter().for_each(|told| cores.send(shard.core, told));
            }
        }
    }

    /// Shards that are here, by number.
    pub(super) fn home(&self) -> impl Iterator<Item = (usize, &Link)> {
        let its = self.shards.iter().enumerate();
        its.filter_map(|(at, shard)| Some((at, shard.life.home()?)))
    }

    pub(super) fn home_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.shards.iter_mut().filter_map(|shard| shard.life.home_mut())
    }
}
