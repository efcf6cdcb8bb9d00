//! A port that leads to the host: of a switch, or one end of a NIC's wire.
//!
//! While its interface cannot be opened frames for it are dropped, and it is tried again; whoever has the other
//! ports goes on. Whether it is open is [`Life`]'s to say. Not here: how frames come and go (`backend::net`), opening
//! (`host_ports`), and what concerns several ports (`uplinks`).

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::link::LinkNic;
use backend::net::{HostOpenError, HostPort};
use config::plan::{HostPlan, NicPlan, UplinkPlan, VlanPlan};
use config::spec::Spoof;
use control::mode::Mode;
use control::uplink::{Back, Life, Next, Wanted};
use sidecore::{
    BridgeId, Command, HostKey, HostServed, HostSpec, PortCounters, PortSpec, QueueCounters,
    instant_of, nanos_of,
};
use switch::Rules;
use tracing::{info, warn};

use crate::defects::Defects;
use crate::devices::start::policy_of;
use crate::sidecores::Cores;

use super::another_tap::TapIs;
use super::host_ports::{self, Guest, HostPorts, TapQueue};
use super::place::{Place, vlan_of};
use super::taps::MadeTaps;
use crate::problems::together;

/// Between two attempts to open one.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Nothing is too long for a host port by our word: it says itself what it cannot carry.
const MTU: u32 = u16::MAX as u32;

/// What the port of an uplink has counted, and its descriptors.
pub(crate) type Counted = [BTreeMap<String, u64>; 2];

/// A port that leads to the host.
pub(crate) struct Uplink {
    plan: UplinkPlan,
    place: Place,
    /// The sidecore that has its descriptors.
    home: usize,
    wired: Option<Wired>,
    counters: Arc<PortCounters>,
    work: Arc<QueueCounters>,
    served_as: &'static str,
    life: Life<HostPort, BridgeId>,
    tap: TapIs,
}

/// The NIC whose wire an uplink is an end of.
pub(crate) struct Wired {
    id: String,
    device: u32,
    guest: Guest,
}

impl Wired {
    /// NIC `device` of that plan, and its uplink to `host`.
    pub(crate) fn new(device: u32, nic: &NicPlan, host: HostPlan) -> (Wired, UplinkPlan) {
        let (share, policy) = (nic.service.share, nic.service.policy);
        let (vlan, macs_max, mac, spoof) = (VlanPlan::None, 1, None, Spoof::Allow);
        let plan = UplinkPlan { host, vlan, macs_max, mac, spoof, share, policy };
        (Wired { id: nic.id.clone(), device, guest: Guest::from(nic) }, plan)
    }
}

impl Uplink {
    /// One that is to be opened now.
    pub(crate) fn new(
        plan: UplinkPlan,
        place: Place,
        home: usize,
        wired: Option<Wired>,
        now: Instant,
    ) -> Uplink {
        let (counters, work, life) = (Arc::default(), Arc::default(), Life::new(nanos_of(now)));
        let tap = TapIs::default();
        Uplink { plan, place, home, wired, counters, work, served_as: "", life, tap }
    }

    pub(crate) fn plan(&self) -> &UplinkPlan {
        &self.plan
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The sidecore that has its descriptors.
    pub(crate) fn home(&self) -> usize {
        self.home
    }

    /// The device whose wire it is an end of.
    pub(crate) fn device(&self) -> Option<u32> {
        self.wired.as_ref().map(|wired| wired.device)
    }

    /// The name of its NIC, or its own.
    pub(crate) fn id(&self) -> &str {
        self.wired.as_ref().map_or(self.plan.name(), |wired| &wired.id)
    }

    pub(crate) fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// How it is served, for people, if it is.
    pub(crate) fn served_as(&self) -> Option<&'static str> {
        self.is_attached().then_some(self.served_as)
    }

    /// Why no frames pass, if none do; or only some.
    pub(crate) fn problem(&self) -> Option<String> {
        let problems = [self.life.problem(), self.tap.problem()];
        together(problems.map(|problem| problem.map(str::to_string)))
    }

    /// Why no frames pass though it is open, as it is now. Asks the kernel.
    pub(super) fn silent_because(&self) -> Option<String> {
        self.is_attached().then(|| host_ports::silent_because(&self.plan.host)).flatten()
    }

    /// An operator has seen to what is shown of a new tap.
    pub(crate) fn is_seen_to(&mut self) {
        self.tap.is_seen_to();
    }

    /// When it is tried again.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.life.due_at().map(instant_of)
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.life.due_at().is_some_and(|at| at <= nanos_of(now))
    }

    /// Whether its descriptors are all here.
    pub(crate) fn is_kept(&self) -> bool {
        self.life.kept().is_some()
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.life.is_out()
    }

    /// Whether its sidecore was asked for it, and has some of it still.
    pub(crate) fn is_asked_back(&self) -> bool {
        self.life.is_asked()
    }

    /// Whether it goes for good.
    pub(crate) fn is_leaving(&self) -> bool {
        self.life.is_leaving()
    }

    /// The switch's that it is at, or comes to when its descriptors are back.
    pub(crate) fn bridge(&self) -> BridgeId {
        self.life.moving_to().unwrap_or(self.place.bridge)
    }

    /// Whether that is a descriptor of it.
    pub(crate) fn has(&self, key: HostKey) -> bool {
        self.key(key.queue) == key
    }

    fn key(&self, queue: u16) -> HostKey {
        HostKey { bridge: self.place.bridge, port: self.place.port, queue }
    }

    /// That it is open, for the log.
    pub(crate) fn say_open(&self) {
        match &self.wired {
            Some(wired) => match self.plan.host.interface() {
                Some(interface) => info!(nic = wired.id, interface, "open"),
                // By a link, or to nothing.
                None => info!(nic = wired.id, "open"),
            },
            None => info!(uplink = self.name(), "open"),
        }
    }

    fn warn(&self, what: fmt::Arguments<'_>) {
        match &self.wired {
            Some(wired) => match self.plan.host.interface() {
                Some(interface) => warn!(nic = wired.id, interface, "{what}"),
                None => warn!(nic = wired.id, "{what}"),
            },
            None => warn!(uplink = self.name(), "{what}"),
        }
    }

    /// For the log.
    pub(crate) fn name(&self) -> String {
        match (&self.wired, self.plan.host.interface()) {
            (_, Some(interface)) => interface.to_string(),
            (None, None) if self.plan.host.lent().is_some() => self.plan.name().to_string(),
            (Some(wired), None) => wired.id.clone(),
            (None, None) => String::new(),
        }
    }

    /// What it has counted, by the name that it has in any process that serves the same.
    pub(crate) fn counted(&self) -> (String, Counted) {
        let counts = [self.counters.snapshot().named(), self.work.snapshot().named()];
        (self.lasting_name(), counts)
    }

    pub(crate) fn lasting_name(&self) -> String {
        let nic = self.wired.as_ref().map_or("", |wired| &wired.id);
        format!("{nic} {:?}", self.plan.host)
    }

    /// Goes on from what another process has counted.
    pub(crate) fn count_on(&self, [frames, work]: &Counted) {
        self.counters.go_on_from(frames);
        self.work.go_on_from(work);
    }

    /// Tells sidecores what its port is now.
    pub(crate) fn say_port(&self, cores: &mut Cores) {
        let spec = PortSpec {
            rules: Rules {
                vlan: vlan_of(&self.plan.vlan, &mut cores.defects),
                macs_max: self.plan.macs_max,
                mac: self.plan.mac.map(|mac| mac.0),
                spoof: match self.plan.spoof {
                    Spoof::Allow => switch::Spoof::Allow,
                    Spoof::Deny => switch::Spoof::Deny,
                },
                is_up: true,
            },
            home: self.home as u16,
            mtu: MTU,
            counters: Arc::clone(&self.counters),
            lanes: None,
        };
        self.place.tell(self.home, Some(spec), cores);
    }

    /// Opens what its plan names. May make a tap.
    ///
    /// # Errors
    /// Why not; nothing is left open then.
    pub(crate) fn open(&self, taps: &MadeTaps) -> Result<HostPorts, HostOpenError> {
        HostPorts::open(&self.plan.host, self.wired.as_ref().map(|wired| wired.guest), taps)
    }

    /// What was opened for it, while it was closed, is here. Gives what is its link's.
    pub(crate) fn come(
        &mut self,
        mut ports: HostPorts,
        defects: &mut Defects,
    ) -> Option<Box<LinkNic>> {
        let end = ports.take_end();
        if self.life.come(ports.into_ports()).is_err() {
            defects.note("closed uplink to open");
            return None;
        }
        if let Some(told) = self.tap.find() {
            self.warn(format_args!("{told}"));
        }
        end
    }

    /// Its sidecore gets its descriptors.
    pub(crate) fn serve(&mut self, ports: Vec<(u16, HostPort)>, cores: &mut Cores) {
        self.served_as = ports.first().map_or("", |(_, port)| port.describe());
        for (queue, port) in ports {
            let spec = HostSpec {
                key: self.key(queue),
                port,
                share: self.plan.share,
                policy: policy_of(self.plan.policy),
                counters: Arc::clone(&self.work),
            };
            cores.send(self.home, Command::AttachHost(HostServed::new(spec)));
        }
    }

    /// Has its descriptors come back, once.
    pub(crate) fn ask_back(&mut self, cores: &mut Cores) {
        let queues = self.life.ask().unwrap_or(0);
        self.ask_for(queues, cores);
    }

    fn ask_for(&self, queues: u16, cores: &mut Cores) {
        for queue in 0..queues {
            // One that is back already is not known there any more.
            cores.send(self.home, Command::DetachHost(self.key(queue)));
        }
    }

    /// It is to go for good. True: it can now; otherwise when its descriptors are back.
    pub(crate) fn leave(&mut self, cores: &mut Cores) -> bool {
        let wanted = self.life.leave();
        self.ask_first(wanted, cores)
    }

    /// It is to go to another bridge. True: it can now; otherwise when its descriptors are back.
    pub(crate) fn move_to(&mut self, bridge: BridgeId, cores: &mut Cores) -> bool {
        let wanted = self.life.move_to(bridge);
        self.ask_first(wanted, cores)
    }

    fn ask_first(&self, wanted: Wanted, cores: &mut Cores) -> bool {
        if let Wanted::Ask(queues) = wanted {
            self.ask_for(queues, cores);
        }
        wanted == Wanted::Now
    }

    /// Changes it in place: its VLANs, limits, share.
    pub(crate) fn change(&mut self, plan: UplinkPlan, cores: &mut Cores) {
        let is_served_otherwise = (self.plan.share, self.plan.policy) != (plan.share, plan.policy);
        self.plan = plan;
        self.say_port(cores);
        if is_served_otherwise {
            // It comes back, and goes again with its new share.
            self.ask_back(cores);
        }
    }

    /// Its sidecore gave a descriptor back, for `problem` if there was one. True: it was the last.
    ///
    /// # Errors
    /// No sidecore had it.
    pub(crate) fn come_back(
        &mut self,
        queue: u16,
        port: HostPort,
        problem: Option<String>,
        cores: &mut Cores,
    ) -> Result<bool, HostPort> {
        let gone = match self.plan.host {
            HostPlan::Remote { .. } | HostPlan::Lent { .. } => "its link has let it go",
            _ => "its interface is gone",
        };
        let is_gone = port.is_gone();
        if is_gone && self.tap().is_some() {
            self.tap.lose();
        }
        let problem = problem.or_else(|| is_gone.then(|| gone.into()));
        match self.life.come_back(queue, port, problem) {
            Back::Stray(port) => Err(port),
            Back::Partly(asked) => {
                self.ask_for(asked.unwrap_or(0), cores);
                Ok(false)
            }
            Back::Whole => Ok(true),
        }
    }

    /// What is to be done with descriptors that are here; see [`Life::go_on`].
    pub(crate) fn go_on(&mut self, mode: Mode, now: Instant) -> Next<HostPort> {
        let next = self.life.go_on(mode, nanos_of(now), nanos_of(now + RETRY_INTERVAL));
        if let Next::Close(_, Some(problem)) | Next::Leave(_, Some(problem)) = &next {
            self.warn(format_args!("is not served: {problem}"));
        }
        next
    }

    /// It cannot be opened, or not yet: why, and when it is tried again.
    pub(crate) fn close(&mut self, verb: &str, problem: &str, retry_at: Instant) {
        let (is_new, ports) = self.life.close(problem, nanos_of(retry_at));
        drop(ports);
        if is_new {
            self.warn(format_args!("{verb}: {problem}"));
        }
    }

    /// It is tried again at once, if it is not open.
    pub(crate) fn hasten(&mut self, now: Instant) {
        self.life.hasten(nanos_of(now));
    }

    /// The bridge that it is to be plugged in at.
    pub(crate) fn moving_to(&self) -> Option<BridgeId> {
        self.life.moving_to()
    }

    /// It is plugged in there.
    pub(crate) fn moved(&mut self, place: Place, home: usize, cores: &mut Cores) {
        (self.place, self.home) = (place, home);
        self.life.moved();
        self.say_port(cores);
    }

    /// Takes over the queues of its tap from another process.
    ///
    /// # Errors
    /// A descriptor is of something else.
    pub(crate) fn inherit(
        &mut self,
        queues: Vec<(u16, TapQueue)>,
        defects: &mut Defects,
    ) -> Result<(), HostOpenError> {
        if let HostPlan::Tap { name } = &self.plan.host
            && !queues.is_empty()
        {
            let ports = HostPorts::inherit(name, queues.into_iter())?;
            self.come(ports, defects);
        }
        Ok(())
    }

    /// The tap whose queues are here, for another process to go on with.
    pub(crate) fn tap(&self) -> Option<&str> {
        match &self.plan.host {
            HostPlan::Tap { name } => Some(name),
            _ => None,
        }
    }

    /// Those that are here: number, whether a daemon made the tap, descriptor.
    pub(crate) fn tap_queues(&self) -> impl Iterator<Item = (u16, bool, BorrowedFd<'_>)> {
        self.life.kept().into_iter().flatten().filter_map(|(queue, port)| {
            let (fd, made) = port.tap()?;
            Some((*queue, made, fd))
        })
    }

    /// Closes what no other process can go on with, all being here.
    pub(crate) fn close_all_but_taps(&mut self) {
        drop(self.life.part_with(|port| port.tap().is_none()));
    }
}
