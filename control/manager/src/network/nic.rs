//! What only a NIC has: its plan, its address and MTU, its link, and where it is plugged in.
//!
//! Not here: its socket, front-ends and queues (`device`), bridges and what sidecores are told of them
//! (`network`).

use std::sync::Arc;
use std::time::Instant;

use config::plan::NicPlan;
use config::spec::LinkState;
use control::port::At;
use device::net::{Live, Shape};
use schedule::Nanos;
use sidecore::{BridgeId, Command, Lanes, PortCounters, PortSpec};
use switch::{PortId, Rules, Spoof};

use crate::network::arrival::Arrival;
use crate::network::host_ports::HostPorts;
use crate::network::{Place, vlan_of};
use crate::queue::Daemon;
use crate::sidecores::Cores;

/// A NIC that is open.
pub(crate) struct NicParts {
    pub(crate) plan: NicPlan,
    pub(crate) shape: Shape,
    pub(crate) live: Arc<Live>,
    /// What its port did; it outlives front-ends.
    pub(crate) counters: Arc<PortCounters>,
    /// What it is wired to, opened and not yet plugged in.
    pub(crate) opened: Option<HostPorts>,
    /// Where it is plugged in, and where it is going.
    pub(crate) port: Port,
    /// Its switch was made anew: it is plugged in there when its queues are back.
    pub(crate) moving: bool,
    /// Whether its guest is here, and what is left to be announced of that.
    pub(crate) arrival: Arrival,
    /// When its guest was announced last.
    pub(crate) announced_at: Option<Instant>,
    /// Which vCPUs its queues call, if frames go by what these do.
    pub(crate) lanes: Option<Arc<Lanes>>,
}

/// A NIC's port in this daemon.
pub(crate) type Port = control::port::Port<Daemon, Way>;

/// How a NIC is plugged in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) bridge: BridgeId,
    pub(crate) port: PortId,
    pub(crate) is_wire: bool,
    /// The other end of its wire.
    pub(crate) uplink: Option<u32>,
    /// When it was moved by its load last, or was to be.
    pub(crate) moved: Option<Nanos>,
}

/// Where a NIC is plugged in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plug {
    pub(crate) place: Place,
    /// The other end of its wire.
    pub(crate) uplink: Option<u32>,
    /// An operator brought it there, and there it stays as long as its front-end does.
    pub(crate) by_hand: bool,
    /// When it was moved by its load last, or was to be.
    pub(crate) moved: Option<Nanos>,
}

impl Plug {
    /// Plugged in now, wherever that suits.
    pub(crate) fn at(place: Place, by_hand: bool) -> At<Way> {
        let Place { bridge, port, home, is_wire } = place;
        At { way: Way { bridge, port, is_wire, uplink: None, moved: None }, home, by_hand }
    }

    fn of(At { way, home, by_hand }: At<Way>) -> Plug {
        let Way { bridge, port, is_wire, uplink, moved } = way;
        Plug { place: Place { bridge, port, home, is_wire }, uplink, by_hand, moved }
    }

    /// Whether it may be moved for its load. The other end of a wire is a descriptor of the host, with a
    /// place in a kernel queue.
    pub(crate) fn can_move(&self) -> bool {
        !self.place.is_wire && !self.by_hand
    }
}

impl NicParts {
    pub(crate) fn new(plan: NicPlan, opened: Option<HostPorts>) -> NicParts {
        let NicPlan { mtu, queues: pairs, guest_offloads, .. } = plan;
        let shape = Shape { mac: plan.mac.0, mtu, pairs, guest_offloads };
        let live = Live::new(&shape);
        live.set_up(plan.link == LinkState::Up);
        let counters = Arc::default();
        let (port, moving, announced_at) = (Port::default(), false, None);
        let arrival = Arrival::default();
        NicParts {
            plan,
            shape,
            live,
            counters,
            opened,
            port,
            moving,
            arrival,
            announced_at,
            lanes: None,
        }
    }

    /// Where it is plugged in; on its way, where it was.
    pub(crate) fn plug(&self) -> Option<Plug> {
        self.port.at().map(Plug::of)
    }

    /// Whether it is on its way to another sidecore.
    pub(crate) fn travels(&self) -> bool {
        self.port.moving().is_some()
    }

    /// Whether its cable is in.
    pub(crate) fn is_up(&self) -> bool {
        self.live.is_up()
    }

    pub(crate) fn link(&self) -> LinkState {
        if self.is_up() { LinkState::Up } else { LinkState::Down }
    }

    /// Whether its guest may say that a station of this address is here.
    pub(crate) fn may_announce(&self, mac: [u8; 6]) -> bool {
        self.plan.spoof == config::spec::Spoof::Allow || mac == self.plan.mac.0
    }

    /// Has its network learn where that address is: now, or when it is known where the NIC is.
    pub(crate) fn say_announcement(&mut self, mac: [u8; 6], cores: &mut Cores) {
        if let Some(At { way, home, .. }) = self.port.announce(mac) {
            cores.send(home, Command::Announce(way.bridge, way.port, mac));
        }
    }

    /// What sidecores are told of its port.
    pub(crate) fn port_spec(&self, home: usize) -> PortSpec {
        PortSpec {
            rules: Rules {
                vlan: vlan_of(&self.plan.vlan),
                macs_max: self.plan.macs_max,
                mac: Some(self.shape.mac),
                spoof: match self.plan.spoof {
                    config::spec::Spoof::Allow => Spoof::Allow,
                    config::spec::Spoof::Deny => Spoof::Deny,
                },
                is_up: self.is_up(),
            },
            home: home as u16,
            mtu: self.plan.mtu.into(),
            counters: Arc::clone(&self.counters),
            lanes: self.lanes.clone(),
        }
    }
}
