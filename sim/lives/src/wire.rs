//! The network between hosts, and what links of a daemon find of the host that it is on.
//!
//! What is sent comes later, in another order, twice, or not at all, as the seed says. Hosts are cut off from one another,
//! in one direction or both, and the cuts heal. Not here: what goes wrong when (`life::links`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use backend::link::{
    Address, LinkOpenError, LinkShards, LinkSocket, LinkSource, LinkWhy, LinkWire,
};
use backend::net::{HostOpenError, HostPort, HostSource};
use guests::Trace;
use manager::simulated::Machine;
use random::Random;
use remote::iohost::shard_of;
use remote::wire::{Header, Kind};
use rustix::io::Errno;

use crate::interfaces::Interfaces;

/// What every frame takes.
const FLIGHT_NS: u64 = 5_000;
/// The first port of a socket that may have any.
const PORT: u16 = 40_000;

/// How bad it is. Of a thousand frames so many are lost, and so many come twice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// Each frame takes up to so long more than the shortest, so that they overtake one another.
    pub(crate) jitter_ns: u64,
}

/// The network.
pub(crate) struct Wire(Mutex<State>);

struct State {
    now: u64,
    weather: Weather,
    random: Random,
    /// By time of arrival, and by number.
    air: BTreeMap<(u64, u64), Frame>,
    count: u64,
    ends: BTreeMap<Place, End>,
    /// From one host to another: until when nothing arrives.
    cuts: BTreeMap<(u8, u8), u64>,
    port: u16,
    trace: Trace,
}

/// A shard of the socket at that address.
type Place = (Vec<u8>, usize);

/// What came there. A process and its heir have one.
#[derive(Default)]
struct End {
    somebody: Vec<Weak<OwnedFd>>,
    came: VecDeque<(Address, Vec<u8>)>,
}

struct Frame {
    from: Address,
    to: Address,
    bytes: Vec<u8>,
}

/// One shard's end of the network.
struct ShardWire(Arc<Wire>, usize);

impl fmt::Debug for ShardWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShardWire").field(&self.1).finish()
    }
}

impl End {
    fn is_open(&self) -> bool {
        self.somebody.iter().any(|some| some.strong_count() > 0)
    }

    fn wake(&self) {
        for some in self.somebody.iter().filter_map(Weak::upgrade) {
            // Only fails when it is readable as it can be.
            let _ = rustix::io::write(&*some, &1_u64.to_ne_bytes());
        }
    }
}

impl Wire {
    pub(crate) fn new(random: Random, trace: &Trace) -> Arc<Wire> {
        Arc::new(Wire(Mutex::new(State {
            now: 0,
            weather: Weather::default(),
            random,
            air: BTreeMap::new(),
            count: 0,
            ends: BTreeMap::new(),
            cuts: BTreeMap::new(),
            port: PORT,
            trace: trace.clone(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is that late: what has arrived by now is there.
    pub(crate) fn set_now(&self, now: u64) {
        let mut state = self.state();
        state.now = state.now.max(now);
        while let Some(frame) = state.air.first_entry().filter(|frame| frame.key().0 <= now) {
            let frame = frame.remove();
            state.arrive(frame);
        }
    }

    /// When the next frame arrives.
    pub(crate) fn due(&self) -> Option<u64> {
        self.state().air.keys().next().map(|(at, _)| *at)
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Nothing from one host arrives at another until then.
    pub(crate) fn cut(&self, from: u8, to: u8, until_ns: u64) {
        self.state().cuts.insert((from, to), until_ns);
    }

    /// All is well, but what is under way.
    pub(crate) fn calm_down(&self) {
        let mut state = self.state();
        state.weather = Weather::default();
        state.cuts.clear();
    }

    fn open(
        self: &Arc<Wire>,
        host: u8,
        source: &LinkSource,
        shards: usize,
    ) -> Result<LinkShards, LinkOpenError> {
        let bind = port_of(source)?;
        let at = self.address(host, bind);
        let is_used = {
            let state = self.state();
            state.ends.iter().any(|((place, _), end)| place == at.as_bytes() && end.is_open())
        };
        match is_used {
            true => Err(failed(bind, LinkWhy::InUse)),
            false => self.join(bind, at, shards),
        }
    }

    /// The same of what another process has open: it is where that one has bound it.
    fn inherit(
        self: &Arc<Wire>,
        source: &LinkSource,
        sockets: &[OwnedFd],
    ) -> Result<LinkShards, LinkOpenError> {
        let bind = port_of(source)?;
        let at = sockets.first().and_then(LinkSocket::simulated_at);
        let is_its = |at: &Address| {
            at.as_udp().is_some_and(|at| bind.port() == 0 || at.port() == bind.port())
        };
        let at = at.filter(is_its).ok_or_else(|| failed(bind, LinkWhy::Elsewhere))?;
        self.join(bind, at, sockets.len())
    }

    fn join(
        self: &Arc<Wire>,
        bind: SocketAddr,
        at: Address,
        shards: usize,
    ) -> Result<LinkShards, LinkOpenError> {
        let socket = |shard| {
            let socket = LinkSocket::simulated(Arc::new(ShardWire(Arc::clone(self), shard)), at);
            socket.map_err(|_| failed(bind, LinkWhy::Os { what: "open", source: Errno::MFILE }))
        };
        let sockets: Result<Vec<LinkSocket>, LinkOpenError> = (0..shards).map(socket).collect();
        Ok(LinkShards { sockets: sockets?, refused: None })
    }

    /// Where a new socket is.
    fn address(&self, host: u8, bind: SocketAddr) -> Address {
        let mut state = self.state();
        let port = match bind.port() {
            0 => {
                state.port += 1;
                state.port
            }
            port => port,
        };
        Address::udp(SocketAddr::new(address_of(host).into(), port))
    }
}

fn port_of(source: &LinkSource) -> Result<SocketAddr, LinkOpenError> {
    match source {
        LinkSource::Udp { bind } => Ok(*bind),
        _ => Err(LinkOpenError { at: "no port".into(), why: LinkWhy::Missing }),
    }
}

fn failed(bind: SocketAddr, why: LinkWhy) -> LinkOpenError {
    LinkOpenError { at: format!("udp {bind}"), why }
}

/// A host's address.
pub(crate) fn address_of(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host)
}

fn host_at(address: Address) -> u8 {
    match address.as_udp() {
        Some(SocketAddr::V4(at)) => at.ip().octets()[3],
        _ => 0,
    }
}

impl State {
    /// The kernel gives a frame to the shard of its session, and to the first one if it has none.
    fn arrive(&mut self, frame: Frame) {
        let Frame { from, to, bytes } = frame;
        let shards = self.ends.keys().filter(|(place, _)| place == to.as_bytes()).count();
        let shard = match Header::parse(&bytes) {
            Ok(header) if header.kind == Kind::Sealed => shard_of(header.session),
            _ => 0,
        };
        let shard = if shard < shards { shard } else { 0 };
        let Some(end) = self.ends.get_mut(&(to.as_bytes().to_vec(), shard)) else { return };
        if end.is_open() {
            end.came.push_back((from, bytes));
            end.wake();
        }
    }

    fn send(&mut self, from: Address, to: Address, bytes: &[u8]) {
        let way = (host_at(from), host_at(to));
        let Weather { lost, doubled, jitter_ns } = self.weather;
        let is_cut = self.cuts.get(&way).is_some_and(|until_ns| self.now < *until_ns);
        let copies = match self.random.below(1000) {
            _ if is_cut => 0,
            roll if roll < lost => 0,
            roll if roll < lost + doubled => 2,
            _ => 1,
        };
        let numbers = [u64::from(way.0) << 8 | u64::from(way.1), bytes.len() as u64, copies];
        self.trace.note(self.now, "frame", numbers);
        for _ in 0..copies {
            let at = self.now + FLIGHT_NS + self.random.below(jitter_ns + 1);
            self.count += 1;
            self.air.insert((at, self.count), Frame { from, to, bytes: bytes.to_vec() });
        }
    }
}

impl LinkWire for ShardWire {
    fn joined(&self, at: Address, some: Arc<OwnedFd>) {
        let mut state = self.0.state();
        let end = state.ends.entry((at.as_bytes().to_vec(), self.1)).or_default();
        if !end.is_open() {
            // What came for a socket that is gone went with it.
            *end = End::default();
        }
        end.somebody.push(Arc::downgrade(&some));
        drop(state);
        let _ = rustix::io::write(&*some, &1_u64.to_ne_bytes());
    }

    fn receive(&self, at: Address, into: &mut Vec<u8>) -> Option<Address> {
        let mut state = self.0.state();
        let end = state.ends.get_mut(&(at.as_bytes().to_vec(), self.1))?;
        let (from, bytes) = end.came.pop_front()?;
        into.extend_from_slice(&bytes);
        Some(from)
    }

    fn send(&self, from: Address, to: Address, frame: &[u8]) {
        self.0.state().send(from, to, frame);
    }
}

/// What daemons find of the host that has its turn.
pub(crate) struct Ground {
    pub(crate) wire: Arc<Wire>,
    pub(crate) interfaces: Arc<Interfaces>,
    host: Cell<u8>,
    /// Power cuts of each host so far.
    cuts: RefCell<BTreeMap<u8, u64>>,
    random: RefCell<Random>,
}

impl Ground {
    pub(crate) fn new(wire: Arc<Wire>, random: Random) -> Ground {
        let (interfaces, host, cuts) = (Arc::default(), Cell::new(0), RefCell::default());
        Ground { wire, interfaces, host, cuts, random: RefCell::new(random) }
    }

    /// The power of a host has failed.
    pub(crate) fn lose_power(&self, host: u8) {
        *self.cuts.borrow_mut().entry(host).or_default() += 1;
        self.interfaces.boot(host);
    }

    /// The host that has its turn.
    pub(crate) fn host(&self) -> u8 {
        self.host.get()
    }

    /// That host has its turn.
    pub(crate) fn be_at(&self, host: u8) {
        self.host.set(host);
    }
}

impl Machine for Ground {
    fn open_link(&self, source: &LinkSource, shards: usize) -> Result<LinkShards, LinkOpenError> {
        self.wire.open(self.host.get(), source, shards)
    }

    fn inherit_link(
        &self,
        source: &LinkSource,
        sockets: Vec<OwnedFd>,
    ) -> Result<LinkShards, LinkOpenError> {
        self.wire.inherit(source, &sockets)
    }

    fn open_port(&self, source: &HostSource) -> Result<HostPort, HostOpenError> {
        self.interfaces.open(self.host.get(), source)
    }

    fn index_of(&self, interface: &str) -> Result<Option<u32>, HostOpenError> {
        Ok(self.interfaces.index(self.host.get(), interface))
    }

    fn inherit_tap(&self, name: &str, fd: OwnedFd, made: bool) -> Result<HostPort, HostOpenError> {
        self.interfaces.inherit(self.host.get(), name, fd, made)
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut random = self.random.borrow_mut();
        bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
    }

    fn boot(&self) -> u64 {
        let host = self.host.get();
        let cuts = self.cuts.borrow().get(&host).copied().unwrap_or(0);
        1000 * (cuts + 1) + u64::from(host)
    }
}
