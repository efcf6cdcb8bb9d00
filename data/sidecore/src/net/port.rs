//! Bridges and their ports as one sidecore knows them: names, facts, and where a port's frames go.
//!
//! Not who gets a frame (`switch`), nor how it gets there (`deliver`). Made by `commands`.

use std::sync::Arc;

use frame::flow_hash;
use runstate::Activity;
use schedule::Nanos;
use switch::{Bridge, DropReason, Limits, PortId, Rules};

use crate::counters::PortCounters;
use crate::net::parcel::To;
use crate::net::steer::{Lane, Lanes, Puts, Steering, Why};
use crate::places::Place;

/// Bridges of a daemon at most: a name is a place in a table.
pub const BRIDGES_MAX: u16 = 4_096;
/// Pairs of queues of one port at most.
pub const PAIRS_MAX: usize = device::net::PAIRS_MAX as usize;
/// Flows told apart at a port of several pairs, as many as a tun device has at first.
pub(crate) const FLOWS: usize = 256;
/// No place of a sidecore, and no pair.
const NOWHERE: u16 = u16::MAX;

/// The name of a bridge, below [`BRIDGES_MAX`], as control numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BridgeId(pub u16);

/// What a bridge is.
#[derive(Clone, Copy, Debug)]
pub enum BridgeKind {
    /// A learning switch.
    Switch {
        /// How large it may become.
        limits: Limits,
        /// Keys the hash of its addresses: random, and told to nobody.
        seed: u64,
    },
    /// Two ports, each of which gets what the other one sends. Both have the same home.
    Wire,
}

/// What control says of a port, to every sidecore. Said again, it changes the port in place.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// What may go in and out.
    pub rules: Rules,
    /// The sidecore that has all its queues and descriptors: the index of its `SidecoreSpec`. Of a port
    /// that is there it is not believed: [`relocation`](crate::relocation) changes it.
    pub home: u16,
    /// The largest IP packet that is delivered there, bytes.
    pub mtu: u32,
    /// Where its frames are counted; written by its home alone.
    pub counters: Arc<PortCounters>,
    /// Which vCPUs its queues call, where frames go by what these do.
    pub lanes: Option<Arc<Lanes>>,
}

/// A bridge as this sidecore has it.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) id: BridgeId,
    pub(crate) bridge: Bridge,
    pub(crate) is_wire: bool,
    pub(crate) ports: Ports,
    /// Ports that move to another sidecore: no flood is begun meanwhile.
    pub(crate) holds: u16,
}

impl Replica {
    pub(crate) fn new(id: BridgeId, kind: &BridgeKind) -> Replica {
        let (bridge, is_wire) = match kind {
            BridgeKind::Switch { limits, seed } => (Bridge::switch(*limits, *seed), false),
            BridgeKind::Wire => (Bridge::wire(), true),
        };
        Replica { id, bridge, is_wire, ports: Ports::default(), holds: 0 }
    }

    /// Whether what is for it waits until it has its new home.
    #[cold]
    pub(crate) fn is_held(&self, to: To) -> bool {
        match to {
            To::Port(port) => self.ports.get(port).is_some_and(|port| port.holds > 0),
            // A flood that has begun, which is waited for.
            To::All => false,
        }
    }

    /// A frame that its sender, whose home is here, loses.
    #[cold]
    pub(crate) fn dropped(&self, from: PortId, reason: DropReason) {
        if let Some(port) = self.ports.get(from) {
            port.counters.dropped(reason);
        }
    }
}

/// The ports of one bridge, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Ports(Vec<Option<Box<Port>>>);

impl Ports {
    #[inline]
    pub(crate) fn get(&self, port: PortId) -> Option<&Port> {
        self.0.get(usize::from(port.0))?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, port: PortId) -> Option<&mut Port> {
        self.0.get_mut(usize::from(port.0))?.as_deref_mut()
    }

    /// The first port from number `from` on.
    #[inline]
    pub(crate) fn next(&self, from: u16) -> Option<PortId> {
        let ports = self.0.get(usize::from(from)..)?;
        let at = ports.iter().position(Option::is_some)?;
        Some(PortId(from + at as u16))
    }

    /// The other port of a wire.
    pub(crate) fn other(&self, port: PortId) -> Option<PortId> {
        let first = self.next(0)?;
        if first == port { self.next(first.0 + 1) } else { Some(first) }
    }

    /// Puts a port there, or changes the one that is. True when it is a new one.
    pub(crate) fn set(&mut self, port: PortId, spec: PortSpec, here: u16) -> bool {
        let at = usize::from(port.0);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        let Some(place) = self.0.get_mut(at) else { return false };
        let is_new = place.is_none();
        match place {
            Some(port) => port.set(spec),
            None => *place = Some(Box::new(Port::new(spec, here))),
        }
        self.find_first();
        is_new
    }

    /// The port is at home elsewhere from now on.
    pub(crate) fn set_home(&mut self, port: PortId, home: u16, here: u16) {
        if let Some(port) = self.get_mut(port) {
            (port.home, port.is_here) = (home, home == here);
            port.settle();
        }
        self.find_first();
    }

    pub(crate) fn remove(&mut self, port: PortId) {
        if let Some(place) = self.0.get_mut(usize::from(port.0)) {
            *place = None;
        }
        self.find_first();
    }

    /// Marks the first port of each home.
    fn find_first(&mut self) {
        // A bit for each home that there can be: this is done in passes, too, where a port moves.
        let mut seen = [0u64; (u16::MAX as usize + 1) / 64];
        for port in self.0.iter_mut().flatten() {
            let bit = 1 << (port.home % 64);
            port.is_first = seen.get_mut(usize::from(port.home / 64)).is_some_and(|seen| {
                let is_first = *seen & bit == 0;
                *seen |= bit;
                is_first
            });
        }
    }
}

/// What a port's places are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Receive queues of a guest.
    Queue,
    /// Descriptors of the host.
    Host,
    /// The same, of a port that gives back what it gets.
    Echo,
}

/// Where frames for a port go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    /// Nobody is there.
    Nobody,
    /// The one receive queue, at this place.
    Queue(u16),
    /// One of several receive queues.
    Queues,
    /// The same, by what their vCPUs do.
    Steered,
    /// The one descriptor of a host port, at this place.
    Host(u16),
    /// One of several descriptors.
    Hosts,
    /// Back to where they came from: a host port that is there for measuring.
    Echo,
    /// Another sidecore has it.
    Elsewhere,
}

const _: () = assert!(PAIRS_MAX <= u16::BITS as usize);

/// A port of a bridge.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) sink: Sink,
    is_here: bool,
    pub(crate) is_up: bool,
    /// Frames up to this length are delivered without another look: within the MTU whatever they are.
    /// 0 while some queue has a limit.
    pub(crate) surely_fits: u32,
    /// The pairs whose receive queue has a limit, one bit each.
    limited: u16,
    mtu: u32,
    pub(crate) home: u16,
    /// Moves of it that are not over.
    holds: u8,
    /// The first of those that have this home: a flood is handed over at this one, once for all.
    pub(crate) is_first: bool,
    pub(crate) counters: Arc<PortCounters>,
    /// The place of each pair's receive queue, or of each descriptor of a host port.
    places: [u16; PAIRS_MAX],
    end: End,
    /// The pair on which a flow was last taken.
    flows: Box<[u8; FLOWS]>,
    steering: Steering,
}

/// Where a frame goes, of several queues, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) place: u16,
    pair: usize,
    flow: usize,
    own: usize,
    why: Why,
    /// Its vCPU runs.
    runs: bool,
    /// The place of the flow's own queue, if that is another one and it may go there.
    home: Option<u16>,
}

impl Choice {
    /// The flow's own queue instead, where that may be: that one has no buffer, and this one may have.
    pub(crate) fn back_home(&self) -> Option<Choice> {
        let place = self.home?;
        Some(Choice { place, pair: self.own, why: Why::Stayed, runs: false, home: None, ..*self })
    }
}

impl Port {
    fn new(spec: PortSpec, here: u16) -> Port {
        let mut port = Port {
            sink: Sink::Nobody,
            is_here: spec.home == here,
            is_up: true,
            surely_fits: 0,
            limited: 0,
            mtu: 0,
            home: spec.home,
            holds: 0,
            is_first: false,
            counters: Arc::clone(&spec.counters),
            places: [NOWHERE; PAIRS_MAX],
            end: End::Queue,
            flows: Box::new([u8::MAX; FLOWS]),
            steering: Steering::new(spec.lanes.clone()),
        };
        port.set(spec);
        port
    }

    fn set(&mut self, spec: PortSpec) {
        self.is_up = spec.rules.is_up;
        self.mtu = spec.mtu;
        self.counters = spec.counters;
        self.steering.lanes = spec.lanes;
        self.settle();
    }

    /// Whether this sidecore is its home.
    pub(crate) fn is_here(&self) -> bool {
        self.is_here
    }

    /// It moves: nothing is handed over to it.
    pub(crate) fn hold(&mut self) {
        self.holds = self.holds.saturating_add(1);
    }

    /// A move of it is over.
    pub(crate) fn let_go(&mut self) {
        self.holds = self.holds.saturating_sub(1);
    }

    /// Which flow came on which pair, and where each went, for its next home.
    pub(crate) fn flows(&self) -> ([u8; FLOWS], Puts) {
        (*self.flows, self.steering.puts())
    }

    /// From its last home, after its queues.
    pub(crate) fn set_flows(&mut self, (flows, puts): &([u8; FLOWS], Puts)) {
        *self.flows = *flows;
        self.steering.set_puts(puts);
    }

    /// Whether the receive queue of `pair` has a limit.
    pub(crate) fn set_limited(&mut self, pair: u16, is_limited: bool) {
        let bit = bit_of(pair);
        self.limited = if is_limited { self.limited | bit } else { self.limited & !bit };
        self.settle();
    }

    /// Whether some of its receive queues has a limit.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.limited != 0
    }

    /// The queue or descriptor of `pair` is at `place` from now on.
    pub(crate) fn put(&mut self, pair: u16, place: u16, end: End) -> bool {
        let Some(at) = self.places.get_mut(usize::from(pair)) else { return false };
        *at = place;
        self.end = end;
        self.steering.forget(pair.into());
        self.settle();
        true
    }

    /// The queue or descriptor of `pair` leaves `place`.
    pub(crate) fn clear(&mut self, pair: u16, place: u16) {
        let at = self.places.get_mut(usize::from(pair)).filter(|at| **at == place);
        if let Some(at) = at {
            *at = NOWHERE;
            self.limited &= !bit_of(pair);
        }
        self.settle();
    }

    fn settle(&mut self) {
        let fits = self.mtu.saturating_add(frame::FRAME_MIN);
        self.surely_fits = if self.is_limited() { 0 } else { fits };
        let mut here = self.places.iter().filter(|place| **place != NOWHERE);
        self.sink = match (here.next(), here.next(), self.end) {
            _ if !self.is_here => Sink::Elsewhere,
            (None, ..) => Sink::Nobody,
            (Some(place), None, End::Queue) => Sink::Queue(*place),
            (Some(_), Some(_), End::Queue) if self.steering.lanes.is_some() => Sink::Steered,
            (Some(_), Some(_), End::Queue) => Sink::Queues,
            (Some(place), None, End::Host) => Sink::Host(*place),
            (Some(_), Some(_), End::Host) => Sink::Hosts,
            (Some(_), _, End::Echo) => Sink::Echo,
        };
    }

    /// Whether what comes from here is told apart by flows.
    #[inline]
    pub(crate) fn has_pairs(&self) -> bool {
        matches!(self.sink, Sink::Queues | Sink::Steered | Sink::Hosts)
    }

    /// Frames of this flow come on `pair`, so what answers them goes there.
    pub(crate) fn note_flow(&mut self, head: &[u8], pair: u16, now: Nanos) {
        let at = flow_hash(head) as usize % FLOWS;
        if let Some(flow) = self.flows.get_mut(at) {
            *flow = pair as u8;
        }
        if self.sink == Sink::Steered {
            self.steering.slices.answer(at, pair.into(), now);
        }
    }

    /// Where a frame of this flow goes, of several places: where it came from last, otherwise by its
    /// hash.
    pub(crate) fn place_of(&self, head: &[u8]) -> u16 {
        let pair = self.pair_of(flow_hash(head) as usize);
        self.places.get(pair).copied().unwrap_or(NOWHERE)
    }

    /// Of the pairs that are here, that of a flow with this hash.
    fn pair_of(&self, hash: usize) -> usize {
        let is_here = |pair: &usize| self.places.get(*pair).is_some_and(|place| *place != NOWHERE);
        let pair = self.flows.get(hash % FLOWS).copied().unwrap_or(u8::MAX).into();
        if is_here(&pair) {
            return pair;
        }
        let here = || (0..PAIRS_MAX).filter(is_here);
        // The table's part of the hash is the same for all that come here.
        let nth = (hash / FLOWS) % here().count().max(1);
        here().nth(nth).unwrap_or(PAIRS_MAX)
    }

    /// Where a frame of this flow goes by what the queues' vCPUs do now. Changes nothing.
    pub(crate) fn steer(&self, head: &[u8], places: &[Place], now: Nanos) -> Choice {
        let hash = flow_hash(head) as usize;
        let (own, flow) = (self.pair_of(hash), hash % FLOWS);
        let queue_at = |pair: usize| {
            let place = self.places.get(pair).filter(|place| **place != NOWHERE)?;
            Some(&places.get(usize::from(*place))?.served()?.ring.queue)
        };
        let lane = |pair: usize| {
            let (lanes, queue) = (self.steering.lanes.as_ref()?, queue_at(pair)?);
            let Some(row) = lanes.rows.get(pair).copied().flatten() else {
                let activity = Activity::Unknown;
                return Some(Lane { activity, since: 0, given: 0, is_owed: false });
            };
            let last = self.steering.last_of(pair);
            let turn = self.steering.turn(lanes, row, now);
            Some(Lane {
                activity: turn.activity,
                since: turn.since_ns,
                given: self.steering.given_to(pair),
                is_owed: last.is_some_and(|last| !queue.is_consumed(last)),
            })
        };
        // A flow leaves a queue when all that it has there is taken, so that it stays in order.
        let put = self.steering.put_of(flow);
        let kept = put
            .map(|put| (usize::from(put.pair), put.footprint))
            .filter(|(pair, last)| queue_at(*pair).is_some_and(|queue| !queue.is_consumed(*last)));
        // Where the driver does not say how far it is, nothing is known to be in order.
        let tells = queue_at(own).is_some_and(|queue| queue.footprint().is_some());
        let (pair, why) = match &self.steering.lanes {
            Some(lanes) if tells => {
                let (kept, sticky) = (kept.map(|(pair, _)| pair), self.steering.sticky());
                lanes.redirect.choose(own, kept, sticky, lane)
            }
            _ => (own, Why::Usual),
        };
        let place_at = |pair: usize| self.places.get(pair).copied().unwrap_or(NOWHERE);
        let home = (pair != own && kept.is_none()).then(|| place_at(own));
        let runs = match why {
            Why::Redirected => true,
            Why::Stayed => false,
            Why::Usual => lane(pair).is_some_and(|lane| lane.activity == Activity::Runs),
        };
        Choice { place: place_at(pair), pair, flow, own, why, runs, home }
    }

    /// A frame went where `choice` says.
    pub(crate) fn note_choice(&self, choice: &Choice, places: &[Place], now: Nanos) {
        let served = places.get(usize::from(choice.place)).and_then(Place::served);
        let Some(footprint) = served.and_then(|served| served.ring.queue.footprint()) else {
            return;
        };
        self.steering.note(choice.flow, choice.pair, footprint, choice.why);
        // How long an answer takes is learned where nothing had to wait for a processor.
        if choice.runs {
            self.steering.slices.ask(choice.flow, choice.pair, now);
        }
        match choice.why {
            Why::Usual => {}
            Why::Stayed => self.counters.stayed.add(1),
            Why::Redirected => self.count_redirected(choice.own),
        }
    }

    fn count_redirected(&self, own: usize) {
        self.counters.redirected.add(1);
        let Some(lanes) = &self.steering.lanes else { return };
        let Some(row) = lanes.rows.get(own).copied().flatten() else { return };
        // In the midst of a time that is as long as the last one was.
        self.counters.avoided_ns.add(lanes.table.off_since(row).1 / 2);
    }

    /// The receive queue that a frame of this flow waits for, if this is a guest's port: of one that may go to
    /// several, its own, since another one may never have a buffer.
    pub(crate) fn queue_of(&self, head: &[u8], places: &[Place], now: Nanos) -> Option<u16> {
        match self.sink {
            Sink::Queue(place) => Some(place),
            Sink::Queues => Some(self.place_of(head)),
            Sink::Steered => {
                let choice = self.steer(head, places, now);
                Some(choice.home.unwrap_or(choice.place))
            }
            Sink::Nobody | Sink::Host(_) | Sink::Hosts | Sink::Echo | Sink::Elsewhere => None,
        }
    }

    /// The largest IP packet, bytes.
    #[inline]
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu
    }
}

/// The bit of a pair; none for one that cannot be.
fn bit_of(pair: u16) -> u16 {
    1u16.checked_shl(pair.into()).unwrap_or(0)
}
