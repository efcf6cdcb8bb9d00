//! A visit of a host port: frames from the host, each brought where it goes.
//!
//! A frame that has to wait, or whose flood is not finished, is kept, and nothing is read behind it.

use backend::net::Rest;
use frame::{FRAME_MAX, FRAME_MIN, HEAD_MAX, Header, Offload, Offloads};
use schedule::{Budget, Nanos, Visited};
use switch::DropReason;

use crate::net::Net;
use crate::net::desk::{Desk, Ended, RETRY_NS};
use crate::net::frames::{FRONT, Frame, ROOM, Room};
use crate::net::host::HostServed;
use crate::net::port::{Replica, Sink};
use crate::net::route::{Routed, Way};
use crate::net::transmit::Tally;
use crate::places::{Place, receive_at};

/// Between two questions for what a host port lost on its own, each a system call.
const LOSSES_NS: u64 = 1_000_000_000;
/// How often a port that makes frames looks whether somebody would have them.
const NOBODY_NS: u64 = 10_000_000;

/// Copies of the last frame at most: as many as ports of a bridge.
const LAST: Budget = Budget { requests: u32::MAX, bytes: u64::MAX, nanos: u64::MAX };

/// What the frames of a visit have in common.
struct Bench<'a> {
    desk: &'a mut Desk,
    places: &'a mut [Place],
    replica: &'a mut Replica,
    way: Way,
    pair: u16,
    now: Nanos,
    tally: Tally,
}

impl Net {
    /// Until when a port that makes its frames itself is left alone: nobody is at the other end of its wire, and
    /// frames without end for nobody would take a whole core.
    pub(crate) fn rests_until(&self, host: &HostServed, now: Nanos) -> Option<Nanos> {
        if !host.spec.port.is_clocked() {
            return None;
        }
        let key = host.spec.key;
        let replica = self.replicas.get(usize::from(key.bridge.0)).and_then(Option::as_deref)?;
        let other = replica.ports.other(key.port).and_then(|other| replica.ports.get(other));
        let is_there = other.is_some_and(|port| port.is_up && port.sink != Sink::Nobody);
        (replica.is_wire && !is_there).then(|| now.after(NOBODY_NS))
    }

    /// Receives frames until there is none, the budget is used, or one has to wait.
    pub(crate) fn receive(
        &mut self,
        places: &mut [Place],
        host: &mut HostServed,
        budget: Budget,
        now: Nanos,
    ) -> Visited {
        let Net { replicas, desk, .. } = self;
        desk.begin(budget);
        if now < host.retry_at {
            return desk.visited(Ended::Later);
        }
        let key = host.spec.key;
        let replica = replicas.get_mut(usize::from(key.bridge.0)).and_then(Option::as_deref_mut);
        let Some(replica) = replica else { return desk.visited(Ended::Empty) };
        let way = Way::new(replica, key.port);
        if let Some(by) = host.held_by {
            // Until the kick nothing is to be done, however often others are visited.
            let receiver = receive_at(places, by);
            if way.is_open() && receiver.is_some_and(|(ring, receive)| receive.still_awaits(ring)) {
                return desk.visited(Ended::Held);
            }
            host.held_by = None;
        }
        let (pair, tally) = (key.queue, Tally::default());
        let mut bench = Bench { desk, places, replica, way, pair, now, tally };
        let ended = bench.visit(host);
        if ended == Ended::Later {
            host.retry_at = now.after(RETRY_NS);
        }
        let Bench { desk, replica, tally, .. } = bench;
        if let Some(port) = replica.ports.get(key.port) {
            port.counters.took(&tally);
            if now >= host.losses_at {
                host.losses_at = now.after(LOSSES_NS);
                let lost = host.spec.port.losses();
                port.counters.dropped_many(DropReason::HostMissed, lost.received);
                port.counters.dropped_many(DropReason::HostError, lost.sent);
            }
        }
        host.spec.counters.requests.add(tally.frames);
        desk.visited(ended)
    }
}

impl Net {
    /// Brings a frame that was kept where it goes, before its port leaves. True when it has to wait; `is_last`: it
    /// does not, and what cannot be delivered is counted as dropped.
    #[cold]
    pub(crate) fn receive_last(
        &mut self,
        places: &mut [Place],
        host: &mut HostServed,
        place: u16,
        is_last: bool,
        now: Nanos,
    ) -> bool {
        let Net { replicas, desk, .. } = self;
        let key = host.spec.key;
        let replica = replicas.get_mut(usize::from(key.bridge.0)).and_then(Option::as_deref_mut);
        let Some(replica) = replica.filter(|_| host.kept.len > 0) else { return false };
        desk.begin(LAST);
        desk.roads.visit(place);
        let way = Way::new(replica, key.port);
        let (pair, tally) = (key.queue, Tally::default());
        let mut bench = Bench { desk, places, replica, way, pair, now, tally };
        let is_lost = bench.finish(host, is_last);
        let Bench { replica, tally, .. } = bench;
        if let Some(port) = replica.ports.get(key.port) {
            port.counters.took(&tally);
        }
        if is_lost {
            replica.dropped(key.port, DropReason::NoBuffer);
        }
        host.spec.counters.requests.add(tally.frames);
        host.kept.len > 0
    }

    /// Gives up a frame that was kept, and counts it as dropped.
    #[cold]
    pub(crate) fn lose_kept(&self, host: &mut HostServed) {
        host.held_by = None;
        if std::mem::take(&mut host.kept.len) > 0 {
            let key = host.spec.key;
            let replica = self.replicas.get(usize::from(key.bridge.0)).and_then(Option::as_deref);
            if let Some(replica) = replica {
                replica.dropped(key.port, DropReason::NoBuffer);
            }
        }
    }
}

impl Bench<'_> {
    /// The frame that was kept, of a port that leaves. True when some whom it is for do not get it.
    #[cold]
    fn finish(&mut self, host: &mut HostServed, is_last: bool) -> bool {
        let (mut room, mut is_lost) = (ROOM, false);
        host.held_by = None;
        let kept = &mut host.kept;
        loop {
            match self.bring(&kept.header, kept.bytes(), kept.cursor, &mut room) {
                Routed::Done | Routed::Lost => break,
                Routed::Later | Routed::Held(_) if is_last => {
                    is_lost = true;
                    break;
                }
                Routed::Later | Routed::Held(_) => return false,
                // There is no room on the way to that one.
                Routed::Unfinished(at) if is_last => {
                    is_lost = true;
                    kept.cursor = at.saturating_add(1);
                }
                Routed::Unfinished(at) => {
                    kept.cursor = at;
                    return false;
                }
            }
        }
        kept.len = 0;
        is_lost
    }

    #[inline]
    fn visit(&mut self, host: &mut HostServed) -> Ended {
        let mut room = ROOM;
        if host.kept.len > 0
            && let Some(ended) = self.go_on(host, &mut room)
        {
            return ended;
        }
        while self.desk.may_go_on() {
            let Some(received) = host.spec.port.receive(self.now.0) else { return Ended::Empty };
            let (ended, cursor) = match self.bring(&received.header, received.bytes, 0, &mut room) {
                Routed::Done | Routed::Lost => continue,
                Routed::Later => (Ended::Later, 0),
                Routed::Held(by) => {
                    host.held_by = Some(by);
                    (Ended::Held, 0)
                }
                Routed::Unfinished(cursor) => (Ended::Budget, cursor),
            };
            host.kept.keep(received.header, received.bytes, cursor);
            return ended;
        }
        Ended::Budget
    }

    /// The frame that was kept. `None`: it is over, and others may follow.
    #[cold]
    fn go_on(&mut self, host: &mut HostServed, room: &mut Room) -> Option<Ended> {
        let kept = &mut host.kept;
        let (header, cursor) = (kept.header, kept.cursor);
        match self.bring(&header, kept.bytes(), cursor, room) {
            Routed::Done | Routed::Lost => {
                kept.len = 0;
                None
            }
            Routed::Later => Some(Ended::Later),
            Routed::Held(by) => {
                host.held_by = Some(by);
                Some(Ended::Held)
            }
            Routed::Unfinished(cursor) => {
                kept.cursor = cursor;
                Some(Ended::Budget)
            }
        }
    }

    /// Brings a frame in which nothing is left undone to the guest at the other end of a wire, without a
    /// copy in between. False, with nothing changed, when that is not all there is to it.
    #[inline(always)]
    fn bring_straight(&mut self, bytes: &[u8]) -> bool {
        let len = bytes.len() as u32;
        let Some((place, port)) = self.way.straight(self.replica) else { return false };
        if len < FRAME_MIN || len > port.surely_fits.min(FRAME_MAX) {
            return false;
        }
        let Some((ring, receive)) = receive_at(self.places, place) else { return false };
        let is_put = self.desk.put_plain(ring, receive, place, port, bytes, None);
        if is_put {
            self.tally.count(len, bytes.first().is_some_and(|first| first & 1 != 0));
        }
        is_put
    }

    /// Brings one frame where it goes.
    #[inline(always)]
    fn bring(&mut self, header: &Header, bytes: &[u8], cursor: u16, room: &mut Room) -> Routed {
        if header.is_plain() && self.bring_straight(bytes) {
            return Routed::Done;
        }
        let before = self.desk.cost.requests;
        let (head, rest) = bytes.split_at_checked(HEAD_MAX).unwrap_or((bytes, &[]));
        let len = bytes.len() as u32;
        // The kernel is believed to have made a whole frame, not that it fits our places.
        let offload = match Offload::check_host(header, head, len, Offloads::ALL) {
            _ if len < FRAME_MIN => Err(DropReason::Runt),
            _ if len > FRAME_MAX => Err(DropReason::TooLong),
            Err(_) => Err(DropReason::BadOffload),
            Ok(offload) => Ok(offload),
        };
        let offload = match offload {
            Ok(offload) => offload,
            Err(reason) => {
                self.desk.charge_frame(before);
                if let Some(port) = self.replica.ports.get(self.way.from) {
                    port.counters.dropped(reason);
                }
                return Routed::Done;
            }
        };
        if let Some(place) = room.get_mut(FRONT..FRONT + head.len()) {
            place.copy_from_slice(head);
        }
        let (head_len, pair) = (head.len(), self.pair);
        let rest = Rest::Private(rest);
        let (health, memory) = (None, None);
        let mut frame = Frame { room, head_len, len, rest, offload, health, memory, pair };
        let is_multicast = frame.is_multicast();
        let Bench { desk, places, replica, way, .. } = self;
        let routed = desk.route(places, replica, way, &mut frame, cursor, self.now);
        if routed == Routed::Done {
            self.desk.charge_frame(before);
            self.tally.count(len, is_multicast);
        }
        routed
    }
}
