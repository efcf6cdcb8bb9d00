//! Links of this daemon from control's side: their sockets and keys, and what their sidecores say of them.
//!
//! Disks of other machines are in `using`, disks for other machines in `serving`, handshakes in `greeter`. Not here:
//! the protocol (`remote`), nor a link's work (`backend::link`, `sidecore::link`).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use backend::link::{LinkKey, LinkSeats, LinkSocket, LinkSource};
use config::plan::{LinkAt, LinkEnd, LinkPeer, LinkPlan};
use config::spec::Via;
use remote::device_of;
use remote::handshake::{Identity, Offer, PublicKey, public_key};
use remote::iohost::HostEvent;
use sidecore::{Command, FromLink, Link, ToClient};
use tracing::{info, warn};

use crate::defects::{found, late};
use crate::log_rate::LogRate;
use crate::manager::Manager;
use crate::poll::Token;

mod clients;
mod error;
mod generations;
mod greeter;
pub(crate) mod handing;
mod kept;
mod keys;
mod nics;
mod seats;
mod serving;
mod standings;
mod status;
mod told;
mod using;
mod waits;

pub(crate) use error::{HandingError, InheritError, LinkError, LinkKeyError};
use generations::Generations;
use greeter::{Greeter, Party, Task, Word, random};
use handing::Transit;
pub use keys::read as read_key;
use nics::LinkedNic;
use serving::{Export, Serving};
use standings::Standings;
pub(crate) use using::RemoteParts;
use using::Using;

/// Frames that the other end may have under way to one of our sockets, whose buffers hold as many.
const RING_FRAMES: u32 = 512;
/// Headers of IP and UDP, bytes: of version 4, and of version 6.
const HEADERS_BYTES: [u16; 2] = [28, 48];
/// What goes before a frame where there is no IP: its length.
const ETHERNET_BYTES: u16 = 2;
/// Between two attempts to open a socket.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long one request may be with a disk, as clients are told that fail requests.
const WORK_MS: u32 = 60_000;

/// All links, and the thread that shakes hands for them.
pub(crate) struct Remote {
    /// By key.
    links: Vec<OneLink>,
    greeter: Option<Greeter>,
    generations: Generations,
    /// How often each disk that clients may have could not be made stable.
    losses: Generations,
    standings: Standings,
    /// By the number of the port.
    nics: BTreeMap<u32, LinkedNic>,
    /// This boot of the machine, and the run of the daemon that RAM disks are of.
    boot: u64,
    pub(crate) run: u64,
    /// On their way from one owner to another, when there is an upgrade.
    transit: Transit,
}

/// One link.
pub(crate) struct OneLink {
    plan: LinkPlan,
    /// The sidecores that have it, by seat: a client's has one.
    seats: Vec<usize>,
    /// How frames come and go, by seat, since it was opened.
    sockets: Vec<&'static str>,
    stage: Stage,
    end: End,
    log: LogRate,
}

/// Whether it works.
enum Stage {
    /// Its socket could not be opened; it is tried again.
    Shut { problem: String, retry_at: Instant },
    /// A sidecore has it.
    Open,
}

/// What only one of the two ends has.
enum End {
    Client(Using),
    Iohost(Serving),
}

impl OneLink {
    /// The sidecore of its first seat.
    fn core(&self) -> usize {
        self.seats.first().copied().unwrap_or(0)
    }

    fn using(&mut self) -> Option<&mut Using> {
        match &mut self.end {
            End::Client(using) => Some(using),
            End::Iohost(_) => None,
        }
    }

    fn serving(&mut self) -> Option<&mut Serving> {
        match &mut self.end {
            End::Iohost(serving) => Some(serving),
            End::Client(_) => None,
        }
    }

    /// Where its socket is: a client's of UDP at any port, of the kind that its IOhosts have.
    fn source(&self) -> LinkSource {
        if let Some(on) = self.plan.interface() {
            let name = on.name.clone();
            return match on.via {
                Via::Packet => LinkSource::Interface { name },
                Via::Xdp => LinkSource::Xdp { name },
            };
        }
        let has_v6 = |iohosts: &[LinkPeer]| {
            iohosts.iter().any(|peer| matches!(peer, LinkPeer::Udp(at) if at.is_ipv6()))
        };
        let bind = match &self.plan.end {
            LinkEnd::Iohost { listen: LinkAt::Udp(address), .. } => *address,
            LinkEnd::Client { iohosts, .. } if has_v6(iohosts) => {
                SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)
            }
            _ => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        };
        LinkSource::Udp { bind }
    }
}

impl Remote {
    /// Whether a client has a disk, or it is kept for one.
    pub(crate) fn is_clients(&self, device: u32) -> bool {
        let is_it =
            |one: &Export| one.device == device && one.had.as_ref().is_some_and(|had| had.is_here);
        self.links.iter().any(|link| match &link.end {
            End::Iohost(serving) => serving.exports.iter().any(is_it),
            End::Client(_) => false,
        })
    }

    /// Whether a disk is on its way back from a client that may have it no more.
    pub(crate) fn is_taking(&self) -> bool {
        let is_it =
            |one: &Export| one.is_removed && one.had.as_ref().is_some_and(|had| had.is_here);
        self.links.iter().any(|link| match &link.end {
            End::Iohost(serving) => serving.exports.iter().any(is_it),
            End::Client(_) => false,
        })
    }

    /// Without links.
    pub(crate) fn new(state_dir: &str) -> Remote {
        let generations = Generations::in_folder(state_dir, "generations");
        let losses = Generations::in_folder(state_dir, "losses");
        // Read now: later on there may be no such file for this process. Without it nothing outlives the run.
        let boot = names::kernel_text("/proc/sys/kernel/random/boot_id");
        let boot = boot.map_or_else(|_| random(), |boot| device_of(boot.trim()));
        let standings = Standings::in_folder(state_dir, boot);
        let (links, greeter, nics, run) = (Vec::new(), None, BTreeMap::new(), random());
        let transit = Transit::default();
        Remote { links, greeter, generations, losses, standings, nics, boot, run, transit }
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    fn link(&mut self, key: LinkKey) -> Option<&mut OneLink> {
        self.links.get_mut(usize::from(key.0))
    }

    /// The client's end of a link, if that is one.
    fn using(&mut self, key: LinkKey) -> Option<&mut Using> {
        self.link(key)?.using()
    }

    /// The IOhost's end of a link, if that is one.
    fn serving(&mut self, key: LinkKey) -> Option<&mut Serving> {
        self.link(key)?.serving()
    }

    fn key_of(&self, id: &str) -> Option<LinkKey> {
        let at = self.links.iter().position(|link| link.plan.id == id)?;
        Some(LinkKey(at as u16))
    }

    /// Whether disks were given back to an IOhost that is there, and has not let go of them yet.
    pub(crate) fn is_giving_back(&self) -> bool {
        self.links.iter().any(|link| match &link.end {
            End::Client(using) => using.is_giving_back(),
            End::Iohost(_) => false,
        })
    }

    /// When a socket is tried again, or a device asked for.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let each = self.links.iter().filter_map(|link| match (&link.stage, &link.end) {
            (Stage::Shut { retry_at, .. }, _) => Some(*retry_at),
            (Stage::Open, End::Client(using)) => using.due_at(),
            (Stage::Open, End::Iohost(_)) => None,
        });
        each.min()
    }
}

impl Manager {
    /// Takes the links of the plan in, with their keys; their sockets are opened then, or as soon as they can be.
    ///
    /// # Errors
    /// A key cannot be read, or no thread is left: an operator has to act first.
    pub(crate) fn begin_links(&mut self, plans: &[LinkPlan]) -> Result<(), LinkError> {
        let mut parties = BTreeMap::new();
        for (at, plan) in plans.iter().enumerate() {
            let wrong = |source| LinkError::Key { id: plan.id.clone(), source };
            let identity = identity_of(plan).map_err(wrong)?;
            let seats = self.rooms.cores.places_fixed(match &plan.end {
                LinkEnd::Client { .. } => 1,
                LinkEnd::Iohost { sidecores, .. } => *sidecores,
            });
            seats.iter().for_each(|core| self.rooms.cores.take_load(*core, 1));
            let key = LinkKey(at as u16);
            let end = match &plan.end {
                LinkEnd::Client { .. } => End::Client(Using::new()),
                LinkEnd::Iohost { .. } => {
                    End::Iohost(Serving::new(&identity, seats.len()).map_err(wrong)?)
                }
            };
            let link = OneLink {
                plan: plan.clone(),
                seats,
                sockets: Vec::new(),
                stage: Stage::Shut {
                    problem: "is not open yet".to_string(),
                    retry_at: self.rooms.turn.now(),
                },
                end,
                log: LogRate::default(),
            };
            let party = party_of(plan, identity).map_err(wrong)?;
            parties.insert(key, party);
            self.rooms.remote.links.push(link);
        }
        if parties.is_empty() {
            return Ok(());
        }
        let greeter = Greeter::start(parties).map_err(LinkError::Thread)?;
        self.rooms.poll.add(&greeter, Token::Greeter).map_err(LinkError::Watch)?;
        self.rooms.remote.greeter = Some(greeter);
        match self.rooms.estate.is_some() {
            // Another process has them until this one serves.
            true => self.know_as_before(),
            false => self.open_links(self.rooms.turn.now()),
        }
        Ok(())
    }

    /// Opens what is not open and due, and asks for what is due.
    pub(crate) fn open_links(&mut self, now: Instant) {
        self.tell_of_silence(now);
        for at in 0..self.rooms.remote.links.len() {
            let key = LinkKey(at as u16);
            let link =
                found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
            let is_due = matches!(&link.stage, Stage::Shut { retry_at, .. } if *retry_at <= now);
            if !is_due {
                if matches!(link.stage, Stage::Open) {
                    self.ask_again(key, now);
                }
                continue;
            }
            let frame_bytes = frame_bytes(&link.plan);
            match LinkSeats::open(&link.source(), link.seats.len()) {
                Ok(opened) if longest(&opened) < usize::from(frame_bytes) => {
                    let carries = longest(&opened) + usize::from(ETHERNET_BYTES);
                    let problem = format!(
                        "its interface carries packets of {carries} bytes, and its `mtu` is {}: make them equal",
                        link.plan.mtu
                    );
                    self.link_is_shut(key, problem, now);
                }
                Ok(opened) => self.link_is_open(key, opened),
                Err(error) => self.link_is_shut(key, error.to_string(), now),
            }
        }
    }

    fn link_is_shut(&mut self, key: LinkKey, problem: String, now: Instant) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let is_news =
            !matches!(&link.stage, Stage::Shut { problem: before, .. } if *before == problem);
        if is_news {
            warn!(link = link.plan.id, "{problem}; it is tried again every second");
        }
        link.stage = Stage::Shut { problem, retry_at: now + RETRY_INTERVAL };
    }

    fn link_is_open(&mut self, key: LinkKey, opened: LinkSeats) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let LinkSeats { sockets, refused } = opened;
        if let Some(why) = refused {
            warn!(link = link.plan.id, "it is served by one sidecore: {why}");
        }
        let unused = link.seats.split_off(sockets.len().clamp(1, link.seats.len().max(1)));
        link.stage = Stage::Open;
        link.sockets = sockets.iter().map(LinkSocket::describe).collect();
        let how = link.sockets.clone();
        let (seats, id) = (link.seats.clone(), link.plan.id.clone());
        let make = |(seat, socket)| match &mut link.end {
            End::Client(using) => using.make(&link.plan, socket),
            End::Iohost(serving) => serving.make(&link.plan, seat, socket),
        };
        let made: Vec<Link> = sockets.into_iter().enumerate().map(make).collect();
        self.begin_seats(key, made);
        unused.into_iter().for_each(|core| self.rooms.cores.give_load(core, 1));
        info!(link = id, sidecores = ?seats, sockets = ?how, "open");
        self.export_disks(key);
        self.export_nics(key);
        self.ask_again(key, self.rooms.turn.now());
    }

    /// Gives a link to the sidecores that are to have its seats.
    fn begin_seats(&mut self, key: LinkKey, made: Vec<Link>) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        for (core, made) in link.seats.iter().zip(made) {
            self.rooms.cores.send(*core, Command::AttachLink(key, made));
        }
    }

    /// Says something to a client's link that is open; it has one seat.
    fn tell_client(&mut self, key: LinkKey, told: ToClient) {
        self.command_seat(key, 0, Command::ToClient(key, Box::new(told)));
    }

    /// A sidecore gave a link back, which it could not take.
    pub(crate) fn link_is_refused(&mut self, key: LinkKey) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let problem = "its sidecore has no place for it: make fewer links".to_string();
        warn!(link = link.plan.id, "{problem}");
        link.stage = Stage::Shut { problem, retry_at: self.rooms.turn.now() + 60 * RETRY_INTERVAL };
        // Its other seats go, too: without one of them its clients would say hello to nobody.
        for core in link.seats.clone() {
            self.rooms.cores.send(core, Command::DetachLink(key));
        }
    }

    /// What a link says, at the seat of that sidecore.
    pub(crate) fn hear_link(&mut self, core: usize, key: LinkKey, said: FromLink) {
        if let FromLink::Host(event) = &said {
            // What it asks for would begin what another process is told has ended, or what that one would wait for the end
            // of; and what comes behind that waits, too.
            let begins = match event {
                HostEvent::Open { .. } => true,
                // One that is removed is gone for an heir.
                HostEvent::LetGo { export, .. } => {
                    self.export(key, *export).is_none_or(|export| !export.is_removed)
                }
                HostEvent::SessionBegan { .. } | HostEvent::SessionEnded { .. } => false,
            };
            let is_soon = self.mode().heir_waits() && begins;
            if self.mode().is_frozen() || is_soon || !self.rooms.remote.transit.later.is_empty() {
                return self.rooms.remote.transit.later.push((core, key, said));
            }
        }
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        // One that was refused, and was opened again with fewer.
        let seat = link.seats.iter().position(|one| *one == core);
        let Some(seat) = seat else { return late("seat of a link") };
        match said {
            FromLink::Greet { frame, from } => self.ask_greeter(Task::Heard(key, from, frame)),
            FromLink::WantsSession(_) => {
                self.note_silence(key);
                self.begin_session(key);
            }
            FromLink::Client(event) => self.hear_iohost(key, event),
            FromLink::Freed(disk) => self.is_free(key, disk),
            FromLink::Unattached(disk) => self.is_unattached(key, disk),
            FromLink::Hello(greeting) => self.ask_greeter(Task::Greet(key, greeting)),
            FromLink::Spent(memory) => drop(memory),
            FromLink::Reserved { before, greeting } => self.hello_is_seated(key, before, greeting),
            FromLink::PulledOut { export, nic } => self.is_pulled_out(key, export, nic),
            FromLink::Host(event) => self.hear_clients(key, seat, event),
        }
    }

    fn ask_greeter(&mut self, task: Task) {
        let greeter = self.rooms.remote.greeter.as_ref();
        found!(self.rooms.turn.defects, greeter, "thread for handshakes of links").ask(task);
    }

    fn begin_session(&mut self, key: LinkKey) {
        let using = self.rooms.remote.using(key);
        let number =
            found!(self.rooms.turn.defects, using, "client's end of that link").next_session();
        self.ask_greeter(Task::Begin(key, number));
    }

    /// The greeter has something to say.
    pub(crate) fn hear_greeter(&mut self) {
        let greeter = self.rooms.remote.greeter.as_ref();
        found!(self.rooms.turn.defects, greeter, "thread for handshakes of links").hear();
        while let Some(word) = self.rooms.remote.greeter.as_ref().and_then(Greeter::word) {
            match word {
                Word::Hello(key, hello) => self.tell_client(key, ToClient::Hello(hello)),
                Word::Client(key, peer, made) => {
                    match self.rooms.remote.using(key) {
                        Some(using) => using.established(peer),
                        None => self.rooms.turn.defects.note("client's end of that link"),
                    }
                    self.tell_client(key, ToClient::Establish { made, peer });
                }
                Word::Read(key, greeting, greeted) => self.seat_client(key, greeting, greeted),
                Word::Refused(key, from, why) => self.log_of_link(key, |link| {
                    warn!(
                        link = link.plan.id,
                        "a hello from {from} is refused: {why}; the public key of a client is to be the `key` of \
                         a [[link.client]] here, and this IOhost's is to be its `iohost_key`"
                    );
                }),
                Word::NoParty(expected) => self.rooms.turn.defects.note(expected),
                Word::Iohost(key, greeting, made, answer) => {
                    self.hello_is_answered(key, greeting, made, answer);
                }
            }
        }
    }
}

/// Bytes of the longest frame that a link's sockets carry.
fn longest(opened: &LinkSeats) -> usize {
    opened.sockets.first().map_or(0, LinkSocket::frame_bytes)
}

/// That the link's key is there and of use.
///
/// # Errors
/// What a start would say.
pub(crate) fn check_key(plan: &LinkPlan) -> Result<(), LinkKeyError> {
    party_of(plan, identity_of(plan)?).map(drop)
}

fn identity_of(plan: &LinkPlan) -> Result<Identity, LinkKeyError> {
    let Some(file) = &plan.key_file else { return Ok(Identity::None) };
    read_key(Path::new(file)).map(Identity::Key).map_err(LinkKeyError::File)
}

/// Bytes of the longest frame that fits into a packet on a link's way.
fn frame_bytes(plan: &LinkPlan) -> u16 {
    let is_v4 = match &plan.end {
        LinkEnd::Iohost { listen, .. } => matches!(listen, LinkAt::Udp(SocketAddr::V4(_))),
        LinkEnd::Client { iohosts, .. } => {
            iohosts.iter().all(|peer| matches!(peer, LinkPeer::Udp(SocketAddr::V4(_))))
        }
    };
    let before = match plan.interface() {
        Some(_) => ETHERNET_BYTES,
        None => HEADERS_BYTES[usize::from(!is_v4)],
    };
    plan.mtu.saturating_sub(before)
}

/// What handshakes of a link are made with.
fn party_of(plan: &LinkPlan, identity: Identity) -> Result<Party, LinkKeyError> {
    let is_secret = plan.key_file.is_some();
    let offer = Offer::new(is_secret, frame_bytes(plan), RING_FRAMES);
    Ok(match &plan.end {
        LinkEnd::Client { iohost_key, .. } => {
            // A stranger is not answered, so nobody else would say it.
            if let (Identity::Key(own), Some(iohost)) = (&identity, iohost_key)
                && public_key(own).is_ok_and(|own| own == *iohost)
            {
                return Err(LinkKeyError::Own);
            }
            Party::Client { identity, iohost: iohost_key.unwrap_or([0; 32]), offer }
        }
        LinkEnd::Iohost { lease_s, clients, .. } => {
            let responder =
                remote::handshake::Greeter::new(identity, offer, lease_s * 1000, WORK_MS);
            let clients: Vec<PublicKey> = clients.iter().filter_map(|client| client.key).collect();
            let responder = Box::new(responder.map_err(LinkKeyError::Responder)?);
            Party::Iohost { responder, clients }
        }
    })
}

#[cfg(test)]
mod tests {
    use config::plan::{LinkInterface, Origin};

    use super::*;

    /// Of an Ethernet frame IPv4 leaves 1,472 bytes, of which three have 4 KiB; of IPv6's 1,452 it takes four.
    #[test]
    fn frames_are_as_long_as_the_links_addresses_leave_room_for() {
        let with = |end| {
            frame_bytes(&LinkPlan {
                id: "rack".to_string(),
                origin: Origin::File { file: "sidecore.toml".to_string(), line: 1 },
                mtu: 1500,
                key_file: None,
                end,
            })
        };
        let client = |iohosts: &[&str]| {
            let peers = iohosts.iter().map(|at| LinkPeer::Udp(at.parse().expect("an address")));
            with(LinkEnd::Client {
                interface: None,
                iohosts: peers.collect(),
                iohost_key: None,
                fail_after_s: None,
                keep_bytes: 0,
            })
        };
        assert_eq!(client(&["10.0.0.1:7447", "10.0.0.2:7447"]), 1472);
        assert_eq!(client(&["[fd00::1]:7447"]), 1452);
        assert_eq!(client(&["10.0.0.1:7447", "[fd00::2]:7447"]), 1452);
        let iohost = |listen| {
            with(LinkEnd::Iohost {
                listen,
                lease_s: 10,
                memory_bytes: 0,
                sidecores: 1,
                clients: Vec::new(),
            })
        };
        let udp = |at: &str| LinkAt::Udp(at.parse().expect("an address"));
        assert_eq!(iohost(udp("0.0.0.0:7447")), 1472);
        assert_eq!(iohost(udp("[::]:7447")), 1452);
        let on = LinkInterface { name: "eth1".to_string(), via: Via::Packet };
        assert_eq!(iohost(LinkAt::Interface(on)), 1498);
    }
}
