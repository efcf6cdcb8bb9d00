//! One switch and its uplinks: resolved from their specs.

use super::defaults::Defaults;
use super::names::{self, Named, Origin, check_bounds};
use super::policy::PolicyPlan;
use super::port::{self, HostPlan, VlanPlan, VlanSpec};
use crate::mac::{MAC_HINT, Mac};
use crate::mistake::{Mistake, Path};
use crate::spec::{
    AGEING_MAX_S, MACS_MAX, NIC_MACS_DEFAULT, PORTS_MAX, SHARE_MAX, Spoof, SwitchSpec, UPLINKS_MAX,
    UplinkSpec, VLAN_MAX,
};

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
    /// A tap, an interface, or a NIC of another machine; never null.
    pub host: HostPlan,
    /// Which frames it has.
    pub vlan: VlanPlan,
    /// Addresses learned at it, 1 to 32,768.
    pub macs_max: u16,
    /// The address of the one station behind it; `None` but of a NIC of another machine.
    pub mac: Option<Mac>,
    /// Whether frames from others may come.
    pub spoof: Spoof,
    /// 1 to 10,000.
    pub share: u32,
    /// When it is polled.
    pub policy: PolicyPlan,
}

impl UplinkPlan {
    /// The interface's name, or the NIC's: what the uplink is known by.
    pub fn name(&self) -> &str {
        self.host.interface().or(self.host.lent()).unwrap_or_default()
    }
}

impl SwitchPlan {
    /// It keeps the limits that it had before.
    pub fn keep_limits(&mut self, before: &SwitchPlan) {
        (self.ageing_s, self.macs_max) = (before.ageing_s, before.macs_max);
    }

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
    let of_host = spec.uplink.iter().filter(|uplink| uplink.remote.is_none()).count();
    if of_host > UPLINKS_MAX {
        let wrong = format!("{of_host} uplinks are too many");
        let right = format!("a switch has at most {UPLINKS_MAX}");
        mistakes.push(Mistake::new(at.key("uplink").index(UPLINKS_MAX), wrong, right));
        return None;
    }
    if spec.uplink.len() > PORTS_MAX {
        let wrong = format!("{} ports are too many", spec.uplink.len());
        let right = format!("a switch has at most {PORTS_MAX}");
        mistakes.push(Mistake::new(at.key("uplink").index(PORTS_MAX), wrong, right));
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
    let lent = spec.remote.as_ref().map(|name| HostPlan::Lent { name: name.clone() });
    if let Some(name) = &spec.remote {
        names::check_id(name, &at.key("remote"), mistakes);
    }
    let of_remote = [("mac", spec.mac.is_some()), ("spoof", spec.spoof.is_some())];
    for (field, _) in of_remote.iter().filter(|(_, is_given)| *is_given && lent.is_none()) {
        let wrong = format!("only an uplink with `remote` has `{field}`");
        mistakes.push(Mistake::new(at.key(field), wrong, format!("take `{field}` out")));
    }
    if let Some(Err(error)) = spec.mac.map(Mac::check) {
        mistakes.push(Mistake::new(at.key("mac"), error.to_string(), MAC_HINT));
    }
    let host = port::resolve_interface(named, at, mistakes);
    port::check_link(host.as_ref(), defaults.links, at, mistakes);
    if host.is_some() && lent.is_some() {
        let right = "take one of them out; each is an uplink of its own";
        let wrong = "there is `remote` beside `tap` or `interface`";
        mistakes.push(Mistake::new(at.key("remote"), wrong, right));
    }
    let host = host.or(lent);
    if host.is_none() {
        let right =
            "name a `tap`, which is made if it is not there, or an `interface` of this host";
        mistakes.push(Mistake::new(at.clone(), "the uplink leads nowhere", right));
    } else if spec.tap.is_some() && spec.interface.is_some() {
        let right = "take one of them out; each is an uplink of its own";
        let wrong = "there are both `tap` and `interface`";
        mistakes.push(Mistake::new(at.key("interface"), wrong, right));
    }
    for (name, vlan) in [("vlan", spec.vlan), ("native", spec.native)] {
        check_bounds(vlan.unwrap_or(1).into(), (1, VLAN_MAX.into()), &at.key(name), mistakes);
    }
    let vlan = VlanSpec { vlan: spec.vlan, trunk: spec.trunk.as_ref(), native: spec.native };
    let vlan = vlan.resolve(at, mistakes);
    let macs_max = spec.macs_max.unwrap_or(match &spec.remote {
        Some(_) => NIC_MACS_DEFAULT.min(macs_of_switch.max(1)),
        None => macs_of_switch.max(1),
    });
    check_bounds(macs_max.into(), (1, MACS_MAX.into()), &at.key("macs_max"), mistakes);
    check_bounds(spec.share, (1, SHARE_MAX), &at.key("share"), mistakes);
    let policy = defaults.policies.of_nic(spec.policy);
    let mac = spec.remote.as_ref().map(|name| spec.mac.unwrap_or_else(|| Mac::of_name(name)));
    let spoof = spec.spoof.unwrap_or_default();
    Some(UplinkPlan { host: host?, vlan, macs_max, mac, spoof, share: spec.share, policy })
}
