//! What only a NIC has: its plan, its address and MTU, its link, and where it is plugged in.
//!
//! Not here: its socket, front-ends and queues (`device`), bridges and what sidecores are told of them
//! (`network`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::plan::NicPlan;
use config::spec::Carrier;
use control::port::{Arrived, At, Outcome, Wish};
use device::net::{Live, Shape};
use schedule::Nanos;
use sidecore::{Command, Lanes, MoveId, PortCounters, PortSpec};
use switch::{Rules, Spoof, Vlan};

use crate::devices::queue::Daemon;
use crate::sidecores::Cores;

use super::arrival::Arrival;
use super::host_ports::HostPorts;
use super::place::{Place, vlan_of};

/// Between two announcements of a guest: VMMs leave 50 ms and more.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(20);

/// A NIC that is open.
pub(crate) struct NicParts {
    plan: NicPlan,
    shape: Shape,
    live: Arc<Live>,
    /// What its port did; it outlives front-ends.
    counters: Arc<PortCounters>,
    /// What it is wired to, opened and not yet plugged in.
    opened: Option<HostPorts>,
    port: Port,
    /// Its switch was made anew: it is plugged in there when its queues are back.
    goes_to_new_switch: bool,
    /// Whether its guest is here, and what is left to be announced of that.
    arrival: Arrival,
    /// When its guest was announced last.
    announced_at: Option<Instant>,
    /// Which vCPUs its queues call, if frames go by what these do.
    lanes: Option<Arc<Lanes>>,
}

/// A NIC's port in this daemon: where it is plugged in, and where it is going.
type Port = control::port::Port<Daemon, Way>;

/// How a NIC is plugged in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) place: Place,
    /// The other end of its wire.
    pub(crate) uplink: Option<u32>,
    /// When it was moved by its load last, or was to be.
    pub(crate) moved: Option<Nanos>,
}

impl Way {
    /// Plugged in there, just now.
    pub(crate) fn at(place: Place) -> Way {
        Way { place, uplink: None, moved: None }
    }
}

impl NicParts {
    pub(crate) fn new(plan: NicPlan, opened: Option<HostPorts>) -> NicParts {
        let NicPlan { mtu, queues: pairs, guest_offloads, .. } = plan;
        let shape = Shape { mac: plan.mac.0, mtu, pairs, guest_offloads };
        let live = Live::new(&shape);
        live.set_up(plan.carrier == Carrier::Up);
        NicParts {
            plan,
            shape,
            live,
            counters: Arc::default(),
            opened,
            port: Port::default(),
            goes_to_new_switch: false,
            arrival: Arrival::default(),
            announced_at: None,
            lanes: None,
        }
    }

    pub(crate) fn plan(&self) -> &NicPlan {
        &self.plan
    }

    /// It is to be another one; what of that is not its plan alone is the caller's.
    pub(crate) fn set_plan(&mut self, plan: &NicPlan) {
        self.plan.clone_from(plan);
    }

    /// What its guest is shown of it for good.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The address that its guest is shown.
    pub(super) fn mac(&self) -> [u8; 6] {
        self.shape.mac
    }

    /// What its guest sees, and may change.
    pub(crate) fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// What its port did; it outlives front-ends.
    pub(crate) fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// Where it is plugged in; on its way, where it was.
    pub(crate) fn at(&self) -> Option<At<Way>> {
        self.port.at()
    }

    /// The sidecore that it is at, or was when it set out.
    pub(crate) fn home(&self) -> Option<usize> {
        self.at().map(|at| at.home)
    }

    /// The host's end of its wire.
    pub(crate) fn uplink(&self) -> Option<u32> {
        self.at()?.way.uplink
    }

    /// The sidecore that it is on its way to.
    pub(crate) fn going_to(&self) -> Option<usize> {
        self.port.going_to()
    }

    /// Whether it is on its way to another sidecore.
    pub(crate) fn travels(&self) -> bool {
        self.port.travels()
    }

    /// Whether it may be moved for its load. The other end of a wire is a descriptor of the host, with a
    /// place in a kernel queue.
    pub(crate) fn can_move(&self) -> bool {
        self.at().is_some_and(|at| !at.way.place.is_wire && !at.by_hand)
    }

    /// Something was moved for its load, or was to be.
    pub(crate) fn note_moved(&mut self, at: Nanos) {
        if let Some(way) = self.port.way_mut() {
            way.moved = Some(at);
        }
    }

    /// It is plugged in at its home. False: it is already.
    #[must_use]
    pub(crate) fn plug(&mut self, way: Way, home: usize, by_hand: bool) -> bool {
        self.port.plug(At { way, home, by_hand })
    }

    /// Its wire has its other end.
    pub(super) fn wire_to(&mut self, uplink: u32) {
        if let Some(way) = self.port.way_mut() {
            way.uplink = Some(uplink);
        }
    }

    pub(crate) fn unplug(&mut self) {
        self.port.unplug();
    }

    /// What was opened for its wire, until it is plugged in.
    pub(crate) fn bring(&mut self, opened: Option<HostPorts>) {
        self.opened = opened;
    }

    pub(super) fn take_opened(&mut self) -> Option<HostPorts> {
        self.opened.take()
    }

    /// Its switch was made anew: it is to be plugged in there when its queues are back.
    pub(super) fn follow_switch(&mut self) {
        self.goes_to_new_switch = true;
    }

    pub(crate) fn goes_to_new_switch(&self) -> bool {
        self.goes_to_new_switch
    }

    /// Whether it is to be plugged in at its new switch; that is done now.
    pub(crate) fn take_new_switch(&mut self) -> bool {
        std::mem::take(&mut self.goes_to_new_switch)
    }

    /// An operator wants it at that sidecore, or a load does. False: it is elsewhere.
    pub(super) fn stays_at(&mut self, core: usize, by_hand: bool) -> bool {
        self.port.stays_at(core, by_hand)
    }

    /// It goes to another sidecore. False: it is out, there, or goes already.
    #[must_use]
    pub(crate) fn depart(&mut self, id: MoveId, wish: Wish) -> bool {
        self.port.depart(id, wish)
    }

    /// A move is over. `None`: there is no such move.
    pub(super) fn arrive(&mut self, id: MoveId, outcome: Outcome) -> Option<Arrived<Command>> {
        self.port.arrive(id, outcome)
    }

    /// No operator wants it anywhere.
    pub(crate) fn let_go(&mut self) {
        self.port.let_go();
    }

    /// A move does not come about, since its port goes.
    pub(crate) fn call_off_travel(&mut self) -> Option<MoveId> {
        self.port.call_off()
    }

    /// Something is to be said of one of its queues: now, or it is kept until it is known where that is.
    pub(crate) fn tell(&mut self, queue: u16, command: Command) -> Option<Command> {
        self.port.tell(queue, command)
    }

    /// Its frames go by what vCPUs do, or no longer. Gives whether that is news.
    pub(crate) fn set_lanes(&mut self, lanes: Option<Arc<Lanes>>) -> bool {
        let slots =
            |lanes: &Option<Arc<Lanes>>| lanes.as_ref().map(|lanes| (lanes.rows, lanes.redirect));
        let is_news = slots(&lanes) != slots(&self.lanes);
        self.lanes = lanes;
        is_news
    }

    /// Tells sidecores what its port is now, if it is plugged in.
    pub(crate) fn say_port(&self, cores: &mut Cores) {
        if let Some(At { way, home, .. }) = self.at() {
            let vlan = vlan_of(&self.plan.vlan, &mut cores.defects);
            way.place.tell(home, Some(self.port_spec(home, vlan)), cores);
        }
    }

    /// Whether its guest may be announced, which was not just now; that is noted.
    pub(super) fn begin_announcement(&mut self, now: Instant) -> bool {
        let is_soon = self.announced_at.is_some_and(|at| now < at + ANNOUNCE_INTERVAL);
        if !is_soon {
            self.announced_at = Some(now);
        }
        !is_soon
    }

    /// Announces its guest: now, or when it is known where it is.
    pub(super) fn say_announcement(&mut self, mac: [u8; 6], cores: &mut Cores) {
        if let Some(At { way: Way { place, .. }, home, .. }) = self.port.announce(mac) {
            cores.send(home, Command::Announce(place.bridge, place.port, mac));
        }
    }

    /// Whether its guest is here, and what is left to be announced of that.
    pub(crate) fn arrival(&self) -> Arrival {
        self.arrival
    }

    pub(super) fn arrival_mut(&mut self) -> &mut Arrival {
        &mut self.arrival
    }

    /// Whether its cable is in.
    pub(crate) fn is_up(&self) -> bool {
        self.live.is_up()
    }

    pub(crate) fn carrier(&self) -> Carrier {
        if self.is_up() { Carrier::Up } else { Carrier::Down }
    }

    /// Whether its guest may say that a station of this address is here.
    pub(crate) fn may_announce(&self, mac: [u8; 6]) -> bool {
        self.plan.spoof == config::spec::Spoof::Allow || mac == self.plan.mac.0
    }

    /// What sidecores are told of its port.
    fn port_spec(&self, home: usize, vlan: Vlan) -> PortSpec {
        PortSpec {
            rules: Rules {
                vlan,
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
