//! Who gets a frame, and getting it there: to the other end of a wire, to one port of a switch, or to
//! all of them.
//!
//! Not the copies themselves (`deliver`). Called for each frame by `transmit` and `receive`.

use frame::tag::{self, Tag};
use frame::{FRAME_MIN, swap_addresses};
use schedule::Nanos;
use switch::{DropReason, Egress, PortId, Verdict, VlanId};

use crate::net::deliver::Delivered;
use crate::net::desk::{Desk, WALK_BYTES};
use crate::net::frames::{FRONT, Frame, ROOM};
use crate::net::parcel::To;
use crate::net::port::{Port, Replica, Sink};
use crate::net::transmit::Tally;
use crate::places::{Place, receive_at};
use crate::served::Awaited;

/// How long a frame on a wire waits for its receiver, from the first try: about as long as a guest
/// that is not scheduled needs, and short enough that nobody misses a dead one.
const WAIT_NS: u64 = 1_000_000;
/// How long buffers for a frame of the host's are looked for before the driver is asked to kick: as long
/// as a queue without work is polled.
const LOOK_NS: u64 = 50_000;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routed {
    /// It is over: delivered or dropped, and counted.
    Done,
    /// It waits where it is; nothing of it was delivered.
    Later,
    /// It waits where it is until the driver of the receive queue at this place kicks.
    Held(u16),
    /// The visit ended within its flood, which goes on from this port number.
    Unfinished(u16),
    /// Its sender's memory is lost.
    Lost,
}

/// How far a flood goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// To all ports, and to other sidecores for theirs.
    Everywhere,
    /// To the ports that are at home here.
    Here,
}

/// Where the frames of a visit go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) from: PortId,
    /// On a wire: the other end, unless there is none or a link is down.
    peer: Option<Result<PortId, DropReason>>,
    /// Several pairs: flows are noted.
    has_pairs: bool,
    last: Option<Last>,
}

/// Where the last frame of a visit went on a switch whose ports have no VLAN rules: the next one from and to
/// the same addresses goes there too, since nobody else's frames come between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    addresses: [u8; ADDRESSES],
    port: PortId,
    vlan: VlanId,
}

/// Bytes of both addresses, with which each frame begins.
const ADDRESSES: usize = 12;

impl Way {
    /// Known once a visit.
    pub(crate) fn new(replica: &Replica, from: PortId) -> Way {
        let has_pairs = replica.ports.get(from).is_some_and(Port::has_pairs);
        let peer = replica.is_wire.then(|| {
            let peer = replica.ports.other(from).ok_or(DropReason::NoPort)?;
            let is_up = |port| replica.ports.get(port).is_some_and(|port| port.is_up);
            if is_up(from) && is_up(peer) { Ok(peer) } else { Err(DropReason::CarrierDown) }
        });
        Way { from, peer, has_pairs, last: None }
    }

    /// Whether it leads to a port that is up.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.peer, Some(Ok(_)))
    }

    /// On a wire, the one receive queue at the other end, and its port, if frames need no look at what
    /// they are to get there.
    #[inline(always)]
    pub(crate) fn straight<'a>(&self, replica: &'a Replica) -> Option<(u16, &'a Port)> {
        let Some(Ok(peer)) = self.peer else { return None };
        let port = replica.ports.get(peer).filter(|_| !self.has_pairs)?;
        match port.sink {
            Sink::Queue(place) => Some((place, port)),
            _ => None,
        }
    }
}

impl Desk {
    /// Brings `frame` to whoever gets it. `cursor`: the port from which its flood goes on, when an
    /// earlier visit began one.
    #[inline(always)]
    pub(crate) fn route(
        &mut self,
        places: &mut [Place],
        replica: &mut Replica,
        way: &mut Way,
        frame: &mut Frame<'_>,
        cursor: u16,
        now: Nanos,
    ) -> Routed {
        if way.has_pairs
            && let Some(port) = replica.ports.get_mut(way.from)
        {
            port.note_flow(frame.head(), frame.pair, now);
        }
        match way.peer {
            Some(Ok(peer)) => self.across(places, replica, way.from, peer, frame, now),
            Some(Err(reason)) => dropped(replica, way.from, reason),
            None => match way.last {
                Some(last)
                    if cursor == 0 && frame.head().first_chunk() == Some(&last.addresses) =>
                {
                    self.unicast(places, replica, way.from, last.port, last.vlan, frame, now)
                }
                _ => self.switch(places, replica, way, frame, cursor, now),
            },
        }
    }

    #[inline(always)]
    fn across(
        &mut self,
        places: &mut [Place],
        replica: &Replica,
        from: PortId,
        peer: PortId,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Routed {
        let Some(port) = replica.ports.get(peer) else {
            return dropped(replica, from, DropReason::NoPort);
        };
        match self.deliver(places, port, frame, now) {
            Delivered::Done | Delivered::Dropped => Routed::Done,
            Delivered::Full(reason) => self.waits(places, port, frame, reason, now),
            Delivered::Echo => self.echo(places, replica, from, frame, now),
            Delivered::Lost => Routed::Lost,
        }
    }

    /// On a wire nobody else is behind, so a frame waits. A guest's not for ever. The host's until there
    /// is a buffer, for the host has a queue of its own behind it, and drops what does not fit for less
    /// than it would cost to take it and drop it here.
    #[cold]
    fn waits(
        &self,
        places: &mut [Place],
        port: &Port,
        frame: &Frame<'_>,
        reason: DropReason,
        now: Nanos,
    ) -> Routed {
        // Nobody is there who could be waited for.
        let Some(since) = self.full_since else { return lost(port, reason) };
        let waited = now.since(since);
        if frame.is_of_host()
            && waited >= LOOK_NS
            && let Some(place) = port.queue_of(frame.head(), places, now)
            && let Some((ring, receive)) = receive_at(places, place)
        {
            match receive.await_buffers(ring) {
                Awaited::Kick => return Routed::Held(place),
                Awaited::More => return Routed::Later,
                Awaited::Never => {}
            }
        }
        match waited < WAIT_NS {
            true => Routed::Later,
            false => lost(port, reason),
        }
    }

    /// Back to where it came from.
    #[inline]
    fn echo(
        &mut self,
        places: &mut [Place],
        replica: &Replica,
        from: PortId,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Routed {
        let Some(port) = replica.ports.get(from) else { return Routed::Done };
        swap_addresses(frame.head_mut());
        match self.deliver(places, port, frame, now) {
            Delivered::Done | Delivered::Dropped | Delivered::Echo => Routed::Done,
            Delivered::Full(reason) => self.waits(places, port, frame, reason, now),
            Delivered::Lost => Routed::Lost,
        }
    }

    #[inline(never)]
    fn switch(
        &mut self,
        places: &mut [Place],
        replica: &mut Replica,
        way: &mut Way,
        frame: &mut Frame<'_>,
        cursor: u16,
        now: Nanos,
    ) -> Routed {
        let from = way.from;
        way.last = None;
        let unlearned = replica.bridge.unlearned();
        match replica.bridge.decide(from, frame.head(), now.0) {
            // Its receiver was learned meanwhile, and may have had it already: what was begun is ended.
            Verdict::To { vlan, .. } | Verdict::Flood { vlan } if cursor > 0 => {
                let whole = (from, Scope::Everywhere);
                self.flood(places, replica, whole, vlan, frame, cursor, now)
            }
            Verdict::To { port, vlan } => {
                // Of a sender that cannot be learned each frame is counted.
                if !replica.bridge.has_vlan_rules() && replica.bridge.unlearned() == unlearned {
                    let addresses = frame.head().first_chunk().copied();
                    way.last = addresses.map(|addresses| Last { addresses, port, vlan });
                }
                self.unicast(places, replica, from, port, vlan, frame, now)
            }
            Verdict::Flood { vlan } => {
                let whole = (from, Scope::Everywhere);
                self.flood(places, replica, whole, vlan, frame, cursor, now)
            }
            Verdict::Drop(reason) => dropped(replica, from, reason),
        }
    }

    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "each is one of the frame's circumstances")]
    fn unicast(
        &mut self,
        places: &mut [Place],
        replica: &Replica,
        from: PortId,
        to: PortId,
        vlan: VlanId,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Routed {
        let Some(port) = replica.ports.get(to) else {
            return dropped(replica, from, DropReason::NoPort);
        };
        // Its home applies the port's rules, and counts.
        if port.sink == Sink::Elsewhere {
            return self.hand_over(replica, from, (To::Port(to), port.home), vlan, frame);
        }
        match self.leave_by(places, replica, (to, port), vlan, frame, now) {
            Delivered::Done | Delivered::Dropped => Routed::Done,
            // Nobody waits for another guest.
            Delivered::Full(reason) => {
                port.counters.dropped(reason);
                Routed::Done
            }
            Delivered::Echo => self.echo_on_switch(places, replica, from, to, frame, now),
            Delivered::Lost => Routed::Lost,
        }
    }

    /// Delivers a frame of `vlan` to a port that is at home here, tagged as that port's rules say.
    #[inline(always)]
    pub(crate) fn leave_by(
        &mut self,
        places: &mut [Place],
        replica: &Replica,
        to: (PortId, &Port),
        vlan: VlanId,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Delivered {
        let (to, port) = to;
        match replica.bridge.egress(to, vlan) {
            Egress::Keep => self.deliver(places, port, frame, now),
            Egress::Refuse(reason) => {
                port.counters.dropped(reason);
                Delivered::Dropped
            }
            egress => self.deliver_retagged(places, port, frame, egress, now),
        }
    }

    /// A port that echoes is a station that answers: the answer goes to the port of whoever asked.
    #[cold]
    fn echo_on_switch(
        &mut self,
        places: &mut [Place],
        replica: &Replica,
        from: PortId,
        echoes: PortId,
        frame: &mut Frame<'_>,
        now: Nanos,
    ) -> Routed {
        if let Some(port) = replica.ports.get(echoes) {
            let mut tally = Tally::default();
            tally.count(frame.len, frame.is_multicast());
            port.counters.took(&tally);
        }
        match self.echo(places, replica, from, frame, now) {
            // Its wait is a wire's; here it is dropped.
            Routed::Later | Routed::Held(_) => dropped(replica, from, DropReason::NoBuffer),
            routed => routed,
        }
    }

    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "each is one of the frame's circumstances")]
    pub(crate) fn flood(
        &mut self,
        places: &mut [Place],
        replica: &Replica,
        (from, scope): (PortId, Scope),
        vlan: VlanId,
        frame: &mut Frame<'_>,
        cursor: u16,
        now: Nanos,
    ) -> Routed {
        if replica.holds > 0 && cursor == 0 && scope == Scope::Everywhere {
            // A port moves: a flood reaches all of them before that or after it.
            return Routed::Later;
        }
        let mut next = cursor;
        while let Some(to) = replica.ports.next(next) {
            // A flood that was begun before goes on with at least one port.
            if next > cursor && !self.may_go_on() {
                return Routed::Unfinished(next);
            }
            next = to.0.saturating_add(1);
            let Some(port) = replica.ports.get(to).filter(|_| to != from) else { continue };
            // Looking at a port costs something, even if nobody is there.
            self.cost.bytes += WALK_BYTES;
            if port.sink == Sink::Elsewhere {
                if scope == Scope::Here || !port.is_first {
                    continue;
                }
                let home = (To::All, port.home);
                match self.hand_over(replica, from, home, vlan, frame) {
                    Routed::Done => continue,
                    Routed::Later => return Routed::Unfinished(to.0),
                    other => return other,
                }
            }
            let delivered = match replica.bridge.egress(to, vlan) {
                Egress::Keep => self.deliver_to(places, port, frame, now),
                Egress::Refuse(_) => continue,
                egress => self.deliver_retagged(places, port, frame, egress, now),
            };
            match delivered {
                Delivered::Full(reason) => {
                    self.cost.bytes += u64::from(FRAME_MIN);
                    port.counters.dropped(reason);
                }
                Delivered::Lost => return Routed::Lost,
                // What is for all is not answered: two such ports would never end.
                Delivered::Done | Delivered::Dropped | Delivered::Echo => {}
            }
        }
        Routed::Done
    }

    /// The frame with its tag pushed, popped or changed; as it was for the next receiver.
    #[inline(never)]
    fn deliver_retagged(
        &mut self,
        places: &mut [Place],
        port: &Port,
        frame: &mut Frame<'_>,
        egress: Egress,
        now: Nanos,
    ) -> Delivered {
        let mut room = ROOM;
        room.copy_from_slice(&frame.room[..]);
        let shift = egress.shift();
        let before = frame.head_len;
        let head = room.get_mut(FRONT..).unwrap_or_default();
        let after = match egress {
            Egress::Push(vlan) => tag::push(head, before, Tag(vlan)),
            Egress::Pop => tag::pop(head, before),
            Egress::Retag(vlan) => {
                tag::set_vlan(head, vlan);
                Some(before)
            }
            Egress::Keep | Egress::Refuse(_) => Some(before),
        };
        let (Some(head_len), Some(offload)) = (after, frame.offload.shifted(shift)) else {
            port.counters.dropped(DropReason::Vlan);
            return Delivered::Dropped;
        };
        let mut other = Frame {
            room: &mut room,
            head_len,
            len: frame.len.saturating_add_signed(shift.into()),
            rest: frame.rest,
            offload,
            health: frame.health,
            memory: frame.memory,
            pair: frame.pair,
        };
        self.deliver_to(places, port, &mut other, now)
    }
}

/// A frame that its receiver loses.
fn lost(port: &Port, reason: DropReason) -> Routed {
    port.counters.dropped(reason);
    Routed::Done
}

/// A frame that its sender loses.
#[cold]
fn dropped(replica: &Replica, from: PortId, reason: DropReason) -> Routed {
    replica.dropped(from, reason);
    Routed::Done
}
