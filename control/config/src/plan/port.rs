//! What ports of a bridge have in common: what is behind a host port, and the rule about VLANs.

use super::link::LinkPlan;
use super::names::{check_bounds, check_interface};
use crate::mistake::{Mistake, Path};
use crate::spec::{NullKind, VLAN_MAX, Via};

/// What is behind a port of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPlan {
    /// A tap interface, made if it is not there.
    Tap {
        /// Its name: one that Linux takes.
        name: String,
    },
    /// An interface of this host.
    Interface {
        /// Its name: one that Linux takes.
        name: String,
        /// How frames come and go.
        via: Via,
    },
    /// A port of a switch of another machine, by a link. Only behind a NIC.
    Remote {
        /// The link: one of this plan, and a client's.
        link: String,
        /// Its name there.
        name: String,
    },
    /// A NIC of another machine's guest. Only of a switch.
    Lent {
        /// The name by which clients have it.
        name: String,
    },
    /// Nothing: for measuring. Only behind a NIC.
    Null(NullPlan),
}

/// What a NIC that is connected to nothing does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullPlan {
    /// Drops what it gets.
    Drop,
    /// Gives it back with its addresses swapped.
    Echo,
    /// Makes frames.
    Generate {
        /// Bytes of each, with its Ethernet header: 60 to the NIC's MTU and 14.
        size: u32,
        /// Frames a second; 0: as many as are taken.
        rate: u32,
    },
}

impl NullPlan {
    /// As it is written.
    pub fn kind(self) -> NullKind {
        match self {
            NullPlan::Drop => NullKind::Drop,
            NullPlan::Echo => NullKind::Echo,
            NullPlan::Generate { .. } => NullKind::Generate,
        }
    }
}

impl HostPlan {
    /// The interface that nobody else may use then.
    pub fn interface(&self) -> Option<&str> {
        match self {
            HostPlan::Tap { name } | HostPlan::Interface { name, .. } => Some(name),
            HostPlan::Remote { .. } | HostPlan::Lent { .. } | HostPlan::Null(_) => None,
        }
    }

    /// The name by which clients of links have it.
    pub fn lent(&self) -> Option<&str> {
        match self {
            HostPlan::Lent { name } => Some(name),
            _ => None,
        }
    }

    /// The field that names it.
    pub(super) fn field(&self) -> &'static str {
        match self {
            HostPlan::Tap { .. } => "tap",
            HostPlan::Interface { .. } => "interface",
            HostPlan::Remote { .. } => "by_link",
            HostPlan::Lent { .. } => "remote",
            HostPlan::Null(_) => "null",
        }
    }
}

/// Which frames a port of a switch has, and whether they carry a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VlanPlan {
    /// No rule: tags pass as they are.
    #[default]
    None,
    /// Without a tag, of this VLAN, 1 to 4094.
    Access(u16),
    /// With a tag.
    Trunk {
        /// The VLAN of frames without a tag; it need not be among `allowed`. None: there are none.
        native: Option<u16>,
        /// The VLANs, 1 to 4094, in ascending order, each once; at least one.
        allowed: Vec<u16>,
    },
}

/// What was written about VLANs.
pub(super) struct VlanSpec<'a> {
    pub(super) vlan: Option<u16>,
    pub(super) trunk: Option<&'a Vec<u16>>,
    pub(super) native: Option<u16>,
}

impl VlanSpec<'_> {
    /// The rule, or what is wrong.
    pub(super) fn resolve(&self, at: &Path, mistakes: &mut Vec<Mistake>) -> VlanPlan {
        let before = mistakes.len();
        for (index, vlan) in self.trunk.into_iter().flatten().enumerate() {
            let at = at.key("trunk").index(index);
            check_bounds((*vlan).into(), (1, VLAN_MAX.into()), &at, mistakes);
        }
        if mistakes.len() != before {
            return VlanPlan::None;
        }
        let Some(trunk) = self.trunk else {
            if self.native.is_some() {
                let right = "add `trunk`: the VLANs whose frames carry a tag; or write `vlan` for a \
                             port whose frames have none";
                let wrong = "there is `native`, but no `trunk`";
                mistakes.push(Mistake::new(at.key("native"), wrong, right));
            }
            return self.vlan.map_or(VlanPlan::None, VlanPlan::Access);
        };
        if self.vlan.is_some() {
            let right = "take one of them out: `vlan` is for a port whose frames have no tag, `trunk` \
                         for one whose frames have";
            mistakes.push(Mistake::new(at.key("vlan"), "there are both `vlan` and `trunk`", right));
        }
        let mut allowed = trunk.clone();
        allowed.sort_unstable();
        if let Some([twice, _]) = allowed.array_windows().find(|[a, b]| a == b) {
            let wrong = format!("VLAN {twice} is named twice");
            mistakes.push(Mistake::new(at.key("trunk"), wrong, "name each VLAN once"));
        }
        if allowed.is_empty() {
            let right = "name the VLANs, such as [10, 20]; without a rule, leave it out";
            mistakes.push(Mistake::new(at.key("trunk"), "a trunk without a VLAN", right));
        }
        VlanPlan::Trunk { native: self.native, allowed }
    }
}

/// Refuses an XDP port where a link is: its program would take all of the link's frames.
pub(super) fn check_link(
    host: Option<&HostPlan>,
    links: &[LinkPlan],
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) {
    let Some(HostPlan::Interface { name, via: Via::Xdp }) = host else { return };
    let is_there = |link: &&LinkPlan| link.interface().is_some_and(|on| on.name == *name);
    if let Some(link) = links.iter().find(is_there) {
        let wrong = format!("link {:?} is on {name:?}, and would get no frames", link.id);
        let right = "give each an interface of its own, or let this one go via \"packet\"";
        mistakes.push(Mistake::new(at.key("via"), wrong, right));
    }
}

/// The host port that `tap`, or `interface` and `via`, name. Whether one of them is there is the
/// caller's matter.
pub(super) fn resolve_interface(
    (tap, interface, via): (Option<&str>, Option<&str>, Option<Via>),
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<HostPlan> {
    for (field, name) in [("tap", tap), ("interface", interface)] {
        name.into_iter().for_each(|name| check_interface(name, &at.key(field), mistakes));
    }
    if via.is_some() && interface.is_none() {
        let right = "take `via` out, or name an `interface`";
        let wrong = "there is `via`, but no `interface`";
        mistakes.push(Mistake::new(at.key("via"), wrong, right));
    }
    let name = |name: &str| name.to_string();
    match (tap, interface) {
        (Some(tap), _) => Some(HostPlan::Tap { name: name(tap) }),
        (None, Some(interface)) => {
            Some(HostPlan::Interface { name: name(interface), via: via.unwrap_or_default() })
        }
        (None, None) => None,
    }
}
