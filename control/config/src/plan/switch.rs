//! One switch and its uplinks: resolved from their specs.

use super::names::{self, Named, Origin, check_bounds};
use super::port::{self, HostPlan, VlanPlan, VlanSpec};
use super::{Defaults, Mistake, Path, PolicyPlan};
use crate::spec::{AGEING_MAX_S, MACS_MAX, SHARE_MAX, SwitchSpec, UPLINKS_MAX, UplinkSpec};

/// One switch, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPlan {
    /// Its name. A disk or NIC may have the same.
    pub id: String,
    /// Where it was declared.
    pub origin: Origin,
    /// Seconds for which an address is remembered, 1 to 86,400.
    pub ageing_s: u32,
    /// Addresses that are remembered, 1 to 32,768.
    pub macs_max: u16,
    /// Its ports of this host, at most 16, each on an interface of its own.
    pub uplinks: Vec<UplinkPlan>,
    /// What was written; with it the switch is saved, and planned again.
    pub spec: SwitchSpec,
}

/// One port of a switch that belongs to this host, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkPlan {
    /// A tap or an interface, never null.
    pub host: HostPlan,
    /// Which frames it has.
    pub vlan: VlanPlan,
    /// Addresses learned at it, 1 to 32,768.
    pub macs_max: u16,
    /// 1 to 10,000.
    pub share: u32,
    /// When it is polled.
    pub policy: PolicyPlan,
}

impl UplinkPlan {
    /// The interface's name: what the uplink is known by.
    pub fn name(&self) -> &str {
        self.host.interface().unwrap_or_default()
    }
}

impl SwitchPlan {
    /// As its neighbours see it.
    pub(super) fn named(&self) -> Named<'_> {
        Named { kind: "switch", id: &self.id, origin: &self.origin, socket: None }
    }

    /// The uplink on that interface.
    pub fn uplink(&self, name: &str) -> Option<&UplinkPlan> {
        self.uplinks.iter().find(|uplink| uplink.name() == name)
    }
}

/// Fills in the defaults of one switch and checks each value.
pub(super) fn resolve(
    spec: &SwitchSpec,
    defaults: &Defaults<'_>,
    origin: Origin,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<SwitchPlan> {
    let before = mistakes.len();
    names::check_id(&spec.id, &at.key("id"), mistakes);
    check_bounds(spec.ageing_s, (1, AGEING_MAX_S), &at.key("ageing_s"), mistakes);
    check_bounds(spec.macs_max.into(), (1, MACS_MAX.into()), &at.key("macs_max"), mistakes);
    if spec.uplink.len() > UPLINKS_MAX {
        let wrong = format!("{} uplinks are too many", spec.uplink.len());
        let right = format!("a switch has at most {UPLINKS_MAX}");
        mistakes.push(Mistake::new(at.key("uplink").index(UPLINKS_MAX), wrong, right));
        return None;
    }
    let mut uplinks = Vec::new();
    for (index, uplink) in spec.uplink.iter().enumerate() {
        let at = at.key("uplink").index(index);
        uplinks.extend(resolve_uplink(uplink, spec.macs_max, defaults, &at, mistakes));
    }
    (mistakes.len() == before).then(|| SwitchPlan {
        id: spec.id.clone(),
        origin,
        ageing_s: spec.ageing_s,
        macs_max: spec.macs_max,
        uplinks,
        spec: spec.clone(),
    })
}

fn resolve_uplink(
    spec: &UplinkSpec,
    macs_of_switch: u16,
    defaults: &Defaults<'_>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<UplinkPlan> {
    let named = (spec.tap.as_deref(), spec.interface.as_deref(), spec.via);
    let host = port::resolve_interface(named, at, mistakes);
    if host.is_none() {
        let right =
            "name a `tap`, which is made if it is not there, or an `interface` of this host";
        mistakes.push(Mistake::new(at.clone(), "the uplink leads nowhere", right));
    } else if spec.tap.is_some() && spec.interface.is_some() {
        let right = "take one of them out; each is an uplink of its own";
        let wrong = "there are both `tap` and `interface`";
        mistakes.push(Mistake::new(at.key("interface"), wrong, right));
    }
    let vlan = VlanSpec { vlan: spec.vlan, trunk: spec.trunk.as_ref(), native: spec.native };
    let vlan = vlan.resolve(at, mistakes);
    let macs_max = spec.macs_max.unwrap_or(macs_of_switch.max(1));
    check_bounds(macs_max.into(), (1, MACS_MAX.into()), &at.key("macs_max"), mistakes);
    check_bounds(spec.share, (1, SHARE_MAX), &at.key("share"), mistakes);
    let policy = defaults.policies.of_nic(spec.policy);
    Some(UplinkPlan { host: host?, vlan, macs_max, share: spec.share, policy })
}
