//! What control says of bridges and ports, and what comes and goes at them.

use backend::net::Rest;
use frame::{Offload, RARP_SIZE, rarp};
use schedule::{Budget, Nanos, Policy};
use switch::PortId;

use crate::inbox::{Event, Refusal};
use crate::net::Net;
use crate::net::frames::{FRONT, Frame, ROOM};
use crate::net::host::{HostKey, HostServed};
use crate::net::macs::MacTable;
use crate::net::port::{BRIDGES_MAX, BridgeId, BridgeKind, End, Port, PortSpec, Replica};
use crate::net::route::Way;
use crate::places::{Place, Tenant};
use crate::served::{NicQueue, Role};
use crate::sidecore::Sidecore;

/// Copies of an announcement at most: as many as ports of a bridge. Each is a header and 60 bytes.
const ANNOUNCE: Budget = Budget { requests: u32::MAX, bytes: u64::MAX, nanos: u64::MAX };

impl Net {
    /// There is such a bridge from now on, or no longer.
    pub(crate) fn set_bridge(&mut self, bridge: BridgeId, kind: Option<&BridgeKind>) {
        let at = usize::from(bridge.0);
        if bridge.0 >= BRIDGES_MAX {
            return;
        }
        if self.replicas.len() <= at {
            self.replicas.resize_with(at + 1, || None);
        }
        let Some(place) = self.replicas.get_mut(at) else { return };
        match kind {
            None => *place = None,
            Some(kind) if place.is_none() => *place = Some(Box::new(Replica::new(bridge, kind))),
            Some(_) => {}
        }
    }

    /// There is such a port from now on, or it is another one, or gone.
    pub(crate) fn set_port(
        &mut self,
        bridge: BridgeId,
        port: PortId,
        spec: Option<Box<PortSpec>>,
        places: &[Place],
    ) {
        let here = self.here;
        let Some(replica) = self.replica(bridge) else { return };
        let Some(spec) = spec else {
            replica.bridge.remove_port(port);
            replica.ports.remove(port);
            return;
        };
        // What control sends was checked by it, so a refusal leaves a port that is not there.
        if replica.bridge.set_port(port, spec.rules.clone()).is_err() {
            return;
        }
        if replica.ports.set(port, *spec, here) {
            for (place, tenant) in (0..).zip(places) {
                self.put_in(&tenant.tenant, place, bridge, port);
            }
        }
    }

    /// Tells a port that was made again what of it is at `place`.
    fn put_in(&mut self, tenant: &Tenant, place: u16, bridge: BridgeId, port: PortId) {
        let (at, pair, end) = match tenant {
            Tenant::Queue(served) => match &served.role {
                Role::Receive(receive) => {
                    ((receive.nic.bridge, receive.nic.port), receive.nic.pair, End::Queue)
                }
                Role::Disk(_) | Role::Transmit(_) => return,
            },
            Tenant::Host(host) => {
                let key = host.key();
                ((key.bridge, key.port), key.queue, end_of(host))
            }
            Tenant::Road(_) | Tenant::Empty => return,
        };
        if at == (bridge, port) {
            self.put(bridge, port, pair, place, end);
            if let Tenant::Queue(served) = tenant {
                self.set_limited(&served.role, served.ring.gate.is_some());
            }
        }
    }

    /// The receive queue of `pair`, or that descriptor of a host port, is at `place` from now on. False
    /// when there is no such port.
    fn put(&mut self, bridge: BridgeId, port: PortId, pair: u16, place: u16, end: End) -> bool {
        let port = self.replica(bridge).and_then(|replica| replica.ports.get_mut(port));
        port.is_some_and(|port| port.is_here() && port.put(pair, place, end))
    }

    fn clear(&mut self, bridge: BridgeId, port: PortId, pair: u16, place: u16) {
        if let Some(port) = self.replica(bridge).and_then(|replica| replica.ports.get_mut(port)) {
            port.clear(pair, place);
        }
    }

    /// A queue is attached at `place`, with a limit or without.
    pub(crate) fn attach(
        &mut self,
        role: &Role,
        place: u16,
        is_limited: bool,
    ) -> Result<(), Refusal> {
        let is_known = match role {
            Role::Disk(_) => true,
            Role::Transmit(transmit) => {
                let NicQueue { bridge, port, .. } = transmit.nic;
                let port = self.replica(bridge).and_then(|replica| replica.ports.get(port));
                port.is_some_and(Port::is_here)
            }
            Role::Receive(receive) => {
                let NicQueue { bridge, port, pair, .. } = receive.nic;
                self.put(bridge, port, pair, place, End::Queue)
            }
        };
        self.set_limited(role, is_limited);
        if is_known { Ok(()) } else { Err(Refusal::NoPort) }
    }

    /// A queue has a limit from now on, or none: a port looks at what is delivered where one has.
    pub(crate) fn set_limited(&mut self, role: &Role, is_limited: bool) {
        let Role::Receive(receive) = role else { return };
        let NicQueue { bridge, port, pair, .. } = receive.nic;
        let port = self.replica(bridge).and_then(|replica| replica.ports.get_mut(port));
        if let Some(port) = port.filter(|port| port.is_here()) {
            port.set_limited(pair, is_limited);
        }
    }

    /// The queue at `place` leaves: nothing more is delivered to it.
    pub(crate) fn detach(&mut self, role: &Role, place: u16) {
        if let Role::Receive(receive) = role {
            let NicQueue { bridge, port, pair, .. } = receive.nic;
            self.clear(bridge, port, pair, place);
        }
    }
}

fn end_of(host: &HostServed) -> End {
    if host.spec.port.echoes() { End::Echo } else { End::Host }
}

/// How long a frame of a host port that leaves may wait for room: less than an upgrade waits for the port.
const PARTING_NS: u64 = 20_000_000;

impl Sidecore {
    pub(crate) fn attach_host(&mut self, host: Box<HostServed>, now: Nanos) {
        let key = host.key();
        let free = self.places.iter().position(Place::is_empty);
        let Some((queue, place)) = free.and_then(|q| Some((q as u16, self.places.get_mut(q)?)))
        else {
            return self.send(Event::HostRefused(host, Refusal::NoPlace));
        };
        if !self.net.put(key.bridge, key.port, key.queue, queue, end_of(&host)) {
            return self.send(Event::HostRefused(host, Refusal::NoPort));
        }
        place.epoch = place.epoch.wrapping_add(1);
        if let Some(policy) = host.policy() {
            // Level-triggered: what came before it was watched, or armed, wakes all the same.
            let is_watched = match host.spec.port.poll_fd() {
                Some(fd) => self.rest.watch_host(fd, queue, place.epoch).is_ok(),
                None => false,
            };
            let policy = if is_watched { policy } else { Policy::Poll };
            self.schedule.add(queue, host.spec.share, policy, now);
            self.schedule.set_owner(queue, None);
        }
        place.tenant = Tenant::Host(host);
        self.count_queues();
    }

    /// A host port leaves, with the frame that it has read and that has to wait; for that it stays for
    /// [`PARTING_NS`] at most.
    pub(crate) fn detach_host(&mut self, key: HostKey, now: Nanos) {
        let is_it =
            |place: &Place| matches!(&place.tenant, Tenant::Host(host) if host.key() == key);
        let Some(at) = self.places.iter().position(is_it) else { return };
        if self.net.parting.iter().any(|(place, _)| usize::from(*place) == at) {
            return;
        }
        // Nothing more is read from it.
        self.schedule.remove(at as u16);
        if !self.part_with(at as u16, self.leaving.is_stopping(), now) {
            self.net.parting.push((at as u16, now.after(PARTING_NS)));
        }
    }

    /// Lets those host ports go whose frames have found their way, or have waited long enough.
    #[cold]
    pub(crate) fn part_with_hosts(&mut self, now: Nanos) {
        let mut at = 0;
        while let Some(&(place, until)) = self.net.parting.get(at) {
            match self.part_with(place, now >= until || self.leaving.is_stopping(), now) {
                true => drop(self.net.parting.swap_remove(at)),
                false => at += 1,
            }
        }
    }

    /// Gives the host port at `place` back, unless a frame of it has to wait and this is not the last try.
    fn part_with(&mut self, place: u16, is_last: bool, now: Nanos) -> bool {
        let there = self.places.get_mut(usize::from(place)).map(|it| &mut it.tenant);
        let tenant = there.filter(|it| matches!(it, Tenant::Host(_))).map(std::mem::take);
        let Some(Tenant::Host(mut host)) = tenant else { return true };
        let waits = self.net.receive_last(&mut self.places, &mut host, place, is_last, now);
        self.settle_frames();
        if waits {
            if let Some(it) = self.places.get_mut(usize::from(place)) {
                it.tenant = Tenant::Host(host);
            }
            return false;
        }
        let key = host.key();
        self.net.clear(key.bridge, key.port, key.queue, place);
        self.net.desk.roads.forget(place);
        if let Some(fd) = host.spec.port.poll_fd() {
            self.rest.forget(fd);
        }
        // No frame of it is in flight: what goes to other sidecores is a copy.
        self.send(Event::HostDetached(host));
        self.count_queues();
        true
    }

    /// Shows every bridge around that `mac` is at this port.
    pub(crate) fn announce(&mut self, bridge: BridgeId, port: PortId, mac: [u8; 6], now: Nanos) {
        let net = &mut self.net;
        let Some(replica) = net.replicas.get_mut(usize::from(bridge.0)) else { return };
        let Some(replica) = replica.as_deref_mut() else { return };
        if replica.holds > 0 {
            self.moves.unsaid.push((bridge, port, mac));
            return;
        }
        let mut way = Way::new(replica, port);
        let mut room = ROOM;
        if let Some(place) = room.get_mut(FRONT..FRONT + RARP_SIZE) {
            place.copy_from_slice(&rarp(mac));
        }
        let mut frame = Frame {
            room: &mut room,
            head_len: RARP_SIZE,
            len: RARP_SIZE as u32,
            rest: Rest::Private(&[]),
            offload: Offload::NONE,
            health: None,
            memory: None,
            pair: 0,
        };
        net.desk.begin(ANNOUNCE);
        net.desk.roads.visit(u16::MAX);
        // It is said once, and lost where there is no room: so are announcements on any network.
        let _ = net.desk.route(&mut self.places, replica, &mut way, &mut frame, 0, now);
        self.settle_frames();
    }

    pub(crate) fn show_macs(&mut self, mut table: Box<MacTable>, now: Nanos) {
        match self.net.replica(table.bridge) {
            Some(replica) => table.fill(&replica.bridge, now.0),
            None => table.end(),
        }
        self.send(Event::Macs(table));
    }
}
