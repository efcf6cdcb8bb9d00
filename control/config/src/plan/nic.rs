//! One NIC: resolved from its spec.

use super::defaults::{Defaults, check_link};
use super::names::{self, Named, Origin, check_bounds};
use super::port::{self, HostPlan, NullPlan, VlanPlan, VlanSpec};
use super::rights::Written;
use super::service::ServicePlan;
use crate::mac::{MAC_HINT, Mac};
use crate::mistake::{Mistake, Path};
use crate::spec::{
    Carrier, ETHERNET_HEADER, FRAME_MIN, MTU_MIN, Mode, NIC_MACS_DEFAULT, NicSpec, NullKind,
    REMOTE_MTU_MAX, Redirect, SocketRights, Spoof,
};

/// One NIC, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicPlan {
    /// Its name. No disk has the same.
    pub id: String,
    /// Where it was declared.
    pub origin: Origin,
    /// Its socket: an absolute path of at most [`super::SOCKET_PATH_MAX`] bytes.
    pub socket: String,
    /// Who opens the socket.
    pub mode: Mode,
    /// Who may open it, in mode `listen`.
    pub rights: SocketRights,
    /// Its address: of one station. No other port of its switch has the same.
    pub mac: Mac,
    /// What it is connected to.
    pub peer: NicPeer,
    /// Which frames it has; no rule unless it is on a switch.
    pub vlan: VlanPlan,
    /// Addresses that its guest may use, 1 to 32,768.
    pub macs_max: u16,
    /// Whether its guest may use others than its own.
    pub spoof: Spoof,
    /// Queue pairs, 1 to 16.
    pub queues: u16,
    /// Largest IP packet, 68 to 65,535 bytes.
    pub mtu: u16,
    /// Whether its cable is in, as it was declared; an operator may have changed it since.
    pub carrier: Carrier,
    /// Whether its guest is offered frames that are not finished.
    pub guest_offloads: bool,
    /// How its queues are served.
    pub service: ServicePlan,
    /// When a frame goes to another queue than its flow's own.
    pub redirect: Redirect,
    /// The vCPU that each pair interrupts; those that are not named have their own number.
    pub vcpus: Vec<u16>,
    /// Where its VMM says which threads are vCPUs: an absolute path of at most [`super::SOCKET_PATH_MAX`] bytes.
    pub qmp: Option<String>,
    /// Memory that is not sealed against shrinking is accepted.
    pub allow_unsealed_memory: bool,
    /// What was written; with it the NIC is saved, and planned again.
    pub spec: NicSpec,
}

/// What a NIC is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicPeer {
    /// It is a port of this switch, which is in the same plan.
    Switch(String),
    /// It is one end of a wire; this is the other.
    Host(HostPlan),
}

impl NicPlan {
    /// The switch that it is a port of.
    pub fn switch(&self) -> Option<&str> {
        match &self.peer {
            NicPeer::Switch(id) => Some(id),
            NicPeer::Host(_) => None,
        }
    }

    /// What is at the other end of its wire.
    pub fn host(&self) -> Option<&HostPlan> {
        match &self.peer {
            NicPeer::Switch(_) => None,
            NicPeer::Host(host) => Some(host),
        }
    }

    /// As its neighbours see it.
    pub(super) fn named(&self) -> Named<'_> {
        let (id, origin) = (self.id.as_str(), &self.origin);
        Named { kind: "nic", id, origin, socket: Some(&self.socket) }
    }
}

/// Fills in the defaults of one NIC and checks each value.
pub(super) fn resolve(
    spec: &NicSpec,
    defaults: &Defaults<'_>,
    origin: Origin,
    folder: Option<&str>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<NicPlan> {
    let mut found = Vec::new();
    names::check_id(&spec.id, &at.key("id"), &mut found);
    names::check_numbers(spec, at, &mut found);
    let vcpus = resolve_vcpus(spec, at, &mut found);
    let service = spec.service(defaults, &origin, at, &mut found);
    let peer = resolve_peer(spec, defaults, at, &mut found);
    let vlan = VlanSpec { vlan: spec.vlan, trunk: spec.trunk.as_ref(), native: spec.native };
    let vlan = vlan.resolve(at, &mut found);
    if let Some(Err(error)) = spec.mac.map(Mac::check) {
        found.push(Mistake::new(at.key("mac"), error.to_string(), MAC_HINT));
    }
    let (written, run_dir) = (spec.socket.as_deref(), &defaults.daemon.run_dir);
    let socket = names::resolve_socket((&spec.id, written), run_dir, folder, at, &mut found);
    let rights = Written::from(spec).resolve(defaults.daemon, at, &mut found);
    let qmp = names::resolve_qmp(spec.qmp.as_deref(), folder, at, &mut found);
    if !found.is_empty() {
        mistakes.append(&mut found);
        return None;
    }
    Some(NicPlan {
        id: spec.id.clone(),
        origin,
        socket: socket?,
        mode: spec.mode,
        rights,
        mac: spec.mac.unwrap_or_else(|| {
            let of_link = spec.remote.as_ref().filter(|_| spec.by_link.is_some());
            Mac::of_name(of_link.unwrap_or(&spec.id))
        }),
        peer: peer?,
        vlan,
        macs_max: spec.macs_max.unwrap_or(NIC_MACS_DEFAULT),
        spoof: spec.spoof.unwrap_or_default(),
        queues: spec.queues,
        mtu: spec.mtu,
        carrier: spec.link,
        guest_offloads: spec.guest_offloads,
        service,
        redirect: spec.redirect.unwrap_or_default(),
        vcpus,
        qmp,
        allow_unsealed_memory: spec.allow_unsealed_memory,
        spec: spec.clone(),
    })
}

/// Which vCPU each queue pair calls, as far as it is said.
fn resolve_vcpus(spec: &NicSpec, at: &Path, mistakes: &mut Vec<Mistake>) -> Vec<u16> {
    let vcpus = spec.vcpus.clone().unwrap_or_default();
    if vcpus.len() > usize::from(spec.queues) {
        let pairs = if spec.queues == 1 { "queue pair" } else { "queue pairs" };
        let wrong = format!("{} vCPUs for {} {pairs}", vcpus.len(), spec.queues);
        let right = "name one vCPU for each pair, or raise `queues`";
        mistakes.push(Mistake::new(at.key("vcpus"), wrong, right));
    }
    vcpus
}

fn resolve_peer(
    spec: &NicSpec,
    defaults: &Defaults<'_>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<NicPeer> {
    let given = [
        ("switch", spec.switch.is_some()),
        ("tap", spec.tap.is_some()),
        ("interface", spec.interface.is_some()),
        ("by_link", spec.by_link.is_some()),
        ("null", spec.null.is_some()),
    ];
    let mut given = given.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
    let Some(first) = given.next() else {
        let right = "name a `switch`, a `tap`, an `interface`, or with `by_link` the link by whose IOhost it is a port; or \
                     for measuring `null`: \"drop\", \"echo\" or \"generate\"";
        mistakes.push(Mistake::new(at.clone(), "the nic is connected to nothing", right));
        return None;
    };
    for more in given {
        let wrong = format!("there are both `{first}` and `{more}`");
        let right = "a nic has one of `switch`, `tap`, `interface`, `by_link` and `null`; take the others out";
        mistakes.push(Mistake::new(at.key(more), wrong, right));
    }
    let of_switch = [
        ("vlan", spec.vlan.is_some()),
        ("trunk", spec.trunk.is_some()),
        ("native", spec.native.is_some()),
        ("macs_max", spec.macs_max.is_some()),
        ("spoof", spec.spoof.is_some()),
    ];
    for (name, is_given) in of_switch {
        if is_given && spec.switch.is_none() {
            let wrong = format!("a nic with `{first}` has no `{name}`");
            let right = format!("take `{name}` out, or make the nic a port of a `switch`");
            mistakes.push(Mistake::new(at.key(name), wrong, right));
        }
    }
    let null = resolve_null(spec, at, mistakes);
    let named = (spec.tap.as_deref(), spec.interface.as_deref(), spec.via);
    let host = port::resolve_interface(named, at, mistakes);
    port::check_link(host.as_ref(), defaults.links, at, mistakes);
    let remote = resolve_remote(spec, defaults, at, mistakes);
    match &spec.switch {
        Some(switch) => Some(NicPeer::Switch(switch.clone())),
        None => host.or(remote).or(null.map(HostPlan::Null)).map(NicPeer::Host),
    }
}

/// A port of a switch at an IOhost.
fn resolve_remote(
    spec: &NicSpec,
    defaults: &Defaults<'_>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<HostPlan> {
    let Some(link) = &spec.by_link else {
        if spec.remote.is_some() {
            let right = "take `remote` out, or name a link with `by_link`";
            let wrong = "there is `remote`, but no `by_link`";
            mistakes.push(Mistake::new(at.key("remote"), wrong, right));
        }
        return None;
    };
    check_link(link, defaults, &at.key("by_link"), mistakes);
    if let Some(name) = &spec.remote {
        names::check_id(name, &at.key("remote"), mistakes);
    }
    check_bounds(
        spec.mtu.into(),
        (MTU_MIN.into(), REMOTE_MTU_MAX.into()),
        &at.key("mtu"),
        mistakes,
    );
    let name = spec.remote.as_ref().unwrap_or(&spec.id);
    Some(HostPlan::Remote { link: link.clone(), name: name.clone() })
}

fn resolve_null(spec: &NicSpec, at: &Path, mistakes: &mut Vec<Mistake>) -> Option<NullPlan> {
    let of_generate = [("size", spec.size.is_some()), ("rate", spec.rate.is_some())];
    if spec.null != Some(NullKind::Generate) {
        for (name, is_given) in of_generate {
            if is_given {
                let wrong = format!("only a nic with null = \"generate\" has `{name}`");
                let right = format!("take `{name}` out, or write null = \"generate\"");
                mistakes.push(Mistake::new(at.key(name), wrong, right));
            }
        }
    }
    Some(match spec.null? {
        NullKind::Drop => NullPlan::Drop,
        NullKind::Echo => NullPlan::Echo,
        NullKind::Generate => {
            let size = spec.size.unwrap_or(FRAME_MIN);
            let most = (u32::from(spec.mtu) + ETHERNET_HEADER).max(FRAME_MIN);
            check_bounds(size, (FRAME_MIN, most), &at.key("size"), mistakes);
            NullPlan::Generate { size, rate: spec.rate.unwrap_or(0) }
        }
    })
}
