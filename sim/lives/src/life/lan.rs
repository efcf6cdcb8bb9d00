//! The switches and wires of a host, as its guests and whoever is behind its interfaces may see them: in which domain each
//! station may be, and since when all sidecores know where a NIC is.

use std::collections::BTreeMap;

use config::Plan;
use config::api::Call;
use config::plan::{HostPlan, NicPeer, UplinkPlan, VlanPlan};
use config::spec::{LinkRole, NicSpec};
use manager::simulated::Simulated;

use super::host::{Daemon, Host};
use super::{Course, Life};
use crate::core::Core;
use crate::file;
use crate::rack;

/// So many passes after something was said to it a sidecore has heard that.
pub(super) const HEARD_AFTER: u64 = 64;
/// Frames of one station that are on their way through a sidecore at most.
const UNDER_WAY: u64 = 32;

/// What is planned of a port, `S` being what its plan says, and where that is.
#[derive(Clone, Debug)]
struct Seen<S> {
    station: u64,
    domain: u32,
    is_nic: bool,
    spec: S,
    place: Option<(u16, u16)>,
}

/// What a plan says of a port, in the plan: turns are many, and plans change seldom.
#[derive(Clone, Copy)]
enum Says<'a> {
    Nic(&'a NicSpec),
    Uplink(&'a UplinkPlan),
}

/// The same, kept.
#[derive(Debug)]
enum Said {
    Nic(Box<NicSpec>),
    Uplink(UplinkPlan),
}

/// A port that was as it is since each sidecore had so many passes.
#[derive(Debug)]
pub(super) struct Port {
    seen: Seen<Said>,
    passes: Vec<u64>,
    is_known: bool,
}

/// By NIC or interface.
pub(super) type Ports = BTreeMap<String, Port>;

impl Host {
    /// A guest begins, whose station may send again whatever one before it has sent.
    pub(super) fn begin_station(&self, id: &str, is_hostile: bool, course: &Course) {
        let nic = self.plan().and_then(|plan| plan.nic(id));
        let Some(domain) = nic.map(|nic| self.domain_of(&nic.id, &nic.peer, &nic.vlan)) else {
            return;
        };
        let (station, mut lan) = (file::station(id).into(), course.lan.borrow_mut());
        lan.join(station, domain, is_hostile);
        lan.interrupted(station, Some(0));
        if id.starts_with("nr") {
            lan.link(station);
        }
    }

    /// Where frames of a NIC come to: a VLAN of a switch, or the other end of a wire.
    fn domain_of(&self, id: &str, peer: &NicPeer, vlan: &VlanPlan) -> u32 {
        match peer {
            NicPeer::Switch(switch) => self.domain(switch, vlan),
            // It is a port of its IOhost's first switch.
            NicPeer::Host(HostPlan::Remote { .. }) => 0,
            NicPeer::Host(_) => 1 << 30 | file::station(id),
        }
    }

    fn domain(&self, switch: &str, vlan: &VlanPlan) -> u32 {
        let lends = self.file.borrow().spec.link.iter().any(|link| link.role == LinkRole::Iohost);
        let host = if lends { 0 } else { u32::from(self.number) };
        let vlan = if let VlanPlan::Access(vlan) = vlan { *vlan } else { 0 };
        host << 20 | file::number(switch) << 12 | u32::from(vlan)
    }

    /// All ports that are planned here.
    fn planned<'a>(
        &self,
        plan: &'a Plan,
        control: Option<&Simulated>,
        course: &Course,
    ) -> BTreeMap<&'a str, Seen<Says<'a>>> {
        let station = |name: &str| course.ground.interfaces.station(self.number, name);
        let mut all = BTreeMap::new();
        for nic in plan.nics.iter().filter(|nic| !rack::is_borrowed(&nic.id)) {
            let domain = self.domain_of(&nic.id, &nic.peer, &nic.vlan);
            let (spec, place) = (Says::Nic(&nic.spec), control.and_then(|it| it.port_of(&nic.id)));
            let (number, is_nic) = (file::station(&nic.id).into(), true);
            let seen = Seen { station: number, domain, is_nic, spec, place };
            if let Some(name) = nic.host().and_then(HostPlan::interface) {
                let there = Seen { station: station(name), is_nic: false, ..seen.clone() };
                all.insert(name, there);
            }
            all.insert(&nic.id, seen);
        }
        for switch in &plan.switches {
            for uplink in &switch.uplinks {
                // A NIC of a client's guest is where its port is.
                let (name, is_nic) = (uplink.name(), uplink.host.lent().is_some());
                let station =
                    if is_nic { file::station(&rack::nic_of(name)).into() } else { station(name) };
                let domain = self.domain(&switch.id, &uplink.vlan);
                let (spec, place) = (Says::Uplink(uplink), control.and_then(|it| it.port_of(name)));
                all.insert(name, Seen { station, domain, is_nic, spec, place });
            }
        }
        all
    }

    /// Whoever reads the file from now on has its ports so: an heir too, whose plan is nobody's to see while it waits.
    pub(super) fn expect_ports(&self, course: &Course) {
        let plan = self.file.borrow().load(None).ok();
        let ports = plan.iter().flat_map(|plan| self.planned(plan, None, course));
        ports.for_each(|(_, it)| course.lan.borrow_mut().join(it.station, it.domain, false));
    }

    /// Whoever hears of a change of a NIC has its port so from then on, also while it waits within that turn.
    pub(super) fn expect_changes(&self, course: &Course) {
        let Some(plan) = self.plan() else { return };
        self.operator.is_asked(|call| {
            if let Call::ChangeNic { id, change } = call
                && let Ok(nic) = plan.nic_changed(id, change)
            {
                let domain = self.domain_of(&nic.id, &nic.peer, &nic.vlan);
                course.lan.borrow_mut().join(file::station(id).into(), domain, false);
            }
            false
        });
    }

    /// Ports are as they were, or have been touched since.
    pub(super) fn follow_ports(&mut self, course: &Course) {
        self.expect_changes(course);
        // Frames pass whatever else is under way.
        for control in self.daemons.iter().filter_map(|daemon| daemon.control.as_ref()) {
            for seen in self.planned(control.plan(), Some(control), course).into_values() {
                course.lan.borrow_mut().join(seen.station, seen.domain, false);
            }
        }
        if !self.newcomers.is_empty() || self.daemons.len() > 1 {
            // All queues may be taken back and given to others.
            return self.lose_ports(course);
        }
        let Some(Daemon { control: Some(control), cores, .. }) = self.daemons.first() else {
            return;
        };
        let passes: Vec<u64> = cores.iter().map(|core| core.passes() + HEARD_AFTER).collect();
        let planned = self.planned(control.plan(), Some(control), course);
        let mut lan = course.lan.borrow_mut();
        let is_planned = |id: &String| planned.contains_key(id.as_str());
        self.ports.retain(|id, port| is_planned(id) || lan.disturb(port.seen.station));
        for (id, seen) in planned {
            let touches = |call: &Call| is_touched(call, id);
            let is_as_before = self.ports.get(id).is_some_and(|port| port.seen.is(&seen));
            if !is_as_before || self.operator.is_asked(touches) {
                lan.disturb(seen.station);
                if !is_as_before && !seen.is_nic {
                    lan.stranded(seen.station, UNDER_WAY);
                }
                let (seen, passes) = (seen.kept(), passes.clone());
                self.ports.insert(id.to_string(), Port { seen, passes, is_known: false });
            }
        }
    }

    /// Whatever each sidecore has heard of is known from now on.
    pub(super) fn know_ports(&mut self, course: &Course) {
        let (now_ns, mut lan) = (course.now().0, course.lan.borrow_mut());
        let Some(Daemon { control: Some(_), cores, .. }) = self.daemons.first() else { return };
        if !self.newcomers.is_empty() {
            // One of them may have read what has ports elsewhere.
            return;
        }
        let ports = self.ports.values_mut();
        for port in ports.filter(|port| !port.is_known && port.seen.place.is_some()) {
            let has_heard = |(core, passes): (&Core, &u64)| core.passes() >= *passes;
            if cores.iter().zip(&port.passes).all(has_heard) {
                port.is_known = true;
                lan.settle(port.seen.station, port.seen.domain, now_ns);
                if port.seen.is_nic {
                    lan.know(port.seen.station, now_ns);
                }
            }
        }
    }

    /// Nobody knows any port, and what was on its way may come again.
    pub(super) fn lose_ports(&mut self, course: &Course) {
        let mut lan = course.lan.borrow_mut();
        for port in std::mem::take(&mut self.ports).into_values() {
            lan.disturb(port.seen.station);
            lan.stranded(port.seen.station, UNDER_WAY);
        }
        for (id, vmm) in self.vmms.iter().filter(|(id, _)| file::is_nic(id)) {
            let station = file::station(id).into();
            lan.disturb(station);
            lan.interrupted(station, vmm.tenant.oldest_frame());
        }
    }

    /// Whoever is behind an interface takes a frame, or sends one.
    pub(super) fn go_elsewhere(&mut self, course: &mut Course) -> Result<bool, String> {
        let interfaces = std::sync::Arc::clone(&course.ground.interfaces);
        let names = interfaces.names(self.number);
        let at = course.any(names.len());
        let Some(name) = names.get(at) else { return Ok(false) };
        let (now_ns, station) = (course.now().0, interfaces.station(self.number, name));
        let lan = std::rc::Rc::clone(&course.lan);
        let mut lan = lan.borrow_mut();
        let mut did = false;
        while let Some(frame) = interfaces.take(self.number, name) {
            course.note("went", [station, frame.len() as u64, 0]);
            lan.arrived(station, &frame)?;
            did = true;
        }
        if !lan.has(station) {
            return Ok(did);
        }
        if course.is_silent() || !course.random.one_in(2) || !interfaces.has_room(self.number, name)
        {
            return Ok(did);
        }
        let (number, frame) = lan.compose(station, now_ns, &mut course.random);
        course.note("comes", [station, number, frame.len() as u64]);
        // What the wire loses was sent all the same.
        if !course.random.one_in(10) {
            interfaces.bring(self.number, name, frame);
        }
        Ok(true)
    }

    /// An interface goes, comes back, or cannot be opened for a while.
    pub(super) fn trouble_interfaces(&mut self, course: &mut Course) {
        let interfaces = std::sync::Arc::clone(&course.ground.interfaces);
        let names = interfaces.names(self.number);
        let (at, what) = (course.any(names.len()), course.random.below(4));
        let Some(name) = names.get(at) else { return };
        course.note("interface", [interfaces.station(self.number, name), what, 0]);
        match what {
            0 => interfaces.delete(self.number, name),
            1 => interfaces.refuse(self.number, name, true),
            _ => interfaces.restore(self.number),
        }
    }

    /// Stations that are there, each with its domain.
    fn stations(&self) -> Vec<(u64, u32)> {
        let is_there = |id: &String, port: &&Port| match port.seen.is_nic {
            true => self.vmms.get(id).is_some_and(|vmm| !vmm.tenant.is_hostile()),
            false => true,
        };
        let there = self.ports.iter().filter(|(id, port)| is_there(id, port));
        let there = there.map(|(_, port)| (port.seen.station, port.seen.domain));
        let is_planned = |id: &&String| self.plan().is_some_and(|plan| plan.nic(id).is_some());
        let borrowed = self.vmms.keys().filter(is_planned).filter(|id| rack::is_borrowed(id));
        there.chain(borrowed.map(|id| (file::station(id).into(), 0))).collect()
    }
}

impl Life {
    /// When nothing goes wrong any more each station hears from each other one of its domain.
    pub(super) fn prove_frames(&mut self) -> Result<(), String> {
        self.have_stations_send(true);
        let (since_ns, lan) = (self.course.now().0, std::rc::Rc::clone(&self.course.lan));
        let all: Vec<_> = self.hosts.iter().flat_map(Host::stations).collect();
        let pairs = all.iter().flat_map(|to| all.iter().map(move |from| (to, from)));
        let pairs = pairs.filter(|(to, from)| to.0 != from.0 && to.1 == from.1);
        let pairs: Vec<(u64, u64)> = pairs.map(|(to, from)| (to.0, from.0)).collect();
        self.course.note("pairs", [pairs.len() as u64, 0, 0]);
        let has_come = |(to, from): &(u64, u64)| lan.borrow().has_come(*to, *from, since_ns);
        let proved = self.until("frames come to all", |_| pairs.iter().all(has_come));
        let missing = pairs.iter().find(|pair| !has_come(pair));
        proved.map_err(|why| format!("{why}; to and from {missing:?}"))?;
        self.have_stations_send(false);
        Ok(())
    }

    fn have_stations_send(&mut self, sends: bool) {
        self.course.is_proving.set(sends);
        let vmms = self.hosts.iter_mut().flat_map(|host| &mut host.vmms);
        let nics = vmms.filter(|(id, _)| file::is_nic(id));
        nics.for_each(|(_, vmm)| vmm.tenant.set_quiet(!sends));
    }
}

impl Seen<Says<'_>> {
    fn kept(self) -> Seen<Said> {
        let Seen { station, domain, is_nic, spec, place } = self;
        let spec = match spec {
            Says::Nic(nic) => Said::Nic(Box::new(nic.clone())),
            Says::Uplink(uplink) => Said::Uplink(uplink.clone()),
        };
        Seen { station, domain, is_nic, spec, place }
    }
}

impl Seen<Said> {
    /// Whether that is what was seen before.
    fn is(&self, now: &Seen<Says<'_>>) -> bool {
        let is_there = (self.station, self.domain, self.is_nic, self.place)
            == (now.station, now.domain, now.is_nic, now.place);
        let is_same = match (&self.spec, now.spec) {
            (Said::Nic(before), Says::Nic(now)) => **before == *now,
            (Said::Uplink(before), Says::Uplink(now)) => before == now,
            _ => false,
        };
        is_there && is_same
    }
}

/// Whether a call that is not answered may have the port of that NIC changed, or of an uplink.
fn is_touched(call: &Call, name: &str) -> bool {
    match call {
        Call::Reload { .. } => true,
        Call::AddSwitch(_) | Call::RemoveSwitch { .. } => !file::is_nic(name),
        Call::AddNic(spec) => spec.id == name || !file::is_nic(name),
        Call::RemoveNic { id, .. } | Call::ChangeNic { id, .. } | Call::SetCarrier { id, .. } => {
            id == name
        }
        _ => false,
    }
}
