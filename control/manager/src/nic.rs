//! What only a NIC has: its plan, its address and MTU, its link, and where it is plugged in.
//!
//! Not here: its socket, front-ends and queues (`device`), bridges and what sidecores are told of them
//! (`network`).

use std::sync::Arc;
use std::time::Instant;

use config::plan::NicPlan;
use config::spec::LinkState;
use device::net::{Live, Shape};
use schedule::Nanos;
use sidecore::{Lanes, PortCounters, PortSpec};
use switch::{Rules, Spoof};

use crate::arrival::Arrival;
use crate::host_ports::HostPorts;
use crate::network::{Place, vlan_of};
use crate::nic_moves::Travel;

/// A NIC that is open.
pub(crate) struct NicParts {
    pub(crate) plan: NicPlan,
    pub(crate) shape: Shape,
    pub(crate) live: Arc<Live>,
    /// What its port did; it outlives front-ends.
    pub(crate) counters: Arc<PortCounters>,
    /// What it is wired to, opened and not yet plugged in.
    pub(crate) opened: Option<HostPorts>,
    pub(crate) plug: Option<Plug>,
    /// Its switch was made anew: it is plugged in there when its queues are back.
    pub(crate) moving: bool,
    /// It goes to another sidecore.
    pub(crate) travel: Option<Travel>,
    /// Whether its guest is here, and what is left to be announced of that.
    pub(crate) arrival: Arrival,
    /// When its guest was announced last.
    pub(crate) announced_at: Option<Instant>,
    /// Which vCPUs its queues call, if frames go by what these do.
    pub(crate) lanes: Option<Arc<Lanes>>,
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
    pub(crate) fn new(place: Place) -> Plug {
        Plug { place, uplink: None, by_hand: false, moved: None }
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
        let (plug, moving, travel, announced_at) = (None, false, None, None);
        let arrival = Arrival::default();
        NicParts {
            plan,
            shape,
            live,
            counters,
            opened,
            plug,
            moving,
            travel,
            arrival,
            announced_at,
            lanes: None,
        }
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
