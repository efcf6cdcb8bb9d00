//! One device more, or another, as an operator of the API asks for it; and what may not go.

use super::limit::LimitSpec;
use super::{Defaults, DiskPlan, NicPlan, Origin, Plan, SwitchPlan, api_error, disk, nic, switch};
use crate::api::{ApiError, ErrorKind};
use crate::mistake::{Mistake, Path};
use crate::number::of_a_change;
use crate::spec::{
    DISKS_MAX, DiskChange, DiskSpec, NICS_MAX, NicChange, NicSpec, SWITCHES_MAX, SwitchSpec,
};

impl Plan {
    /// What a disk asked for through the API would be, beside those of this plan.
    pub fn disk_from_api(&self, spec: &DiskSpec) -> Result<DiskPlan, ApiError> {
        check_burst(spec)?;
        self.disk_kept(spec)
    }

    /// The same for one that was made so before, and saved.
    pub fn disk_kept(&self, spec: &DiskSpec) -> Result<DiskPlan, ApiError> {
        check_room("disk", "disks", self.disks.len(), DISKS_MAX)?;
        let mut mistakes = Vec::new();
        let (defaults, at) = (self.defaults(), Path::root());
        let made = disk::resolve(spec, &defaults, Origin::Api, None, &at, &mut mistakes);
        let made = sound(made, &mistakes)?;
        let disks: Vec<&DiskPlan> = self.disks.iter().collect();
        let named = disks.iter().map(|disk| disk.named());
        let named: Vec<_> = named.chain(self.nics.iter().map(NicPlan::named)).collect();
        made.named().clashes(&named, Some(&self.daemon), &at, &mut mistakes);
        made.clashes(&disks, &at, &mut mistakes);
        fitting(made, &mistakes)
    }

    /// What a disk made through the API would be with that change: its share, policy, limit, group and what
    /// becomes of failures may differ from what it is, and nothing else.
    pub fn disk_changed(&self, id: &str, change: &DiskChange) -> Result<DiskPlan, ApiError> {
        let old = self.disk(id).ok_or_else(|| self.no_such_disk(id))?;
        if *change == DiskChange::default() {
            let hint = "name one of share, policy, latency_target_us, moderate_us, limit_iops, \
                 limit_bytes, limit_burst_ms, group, on_full, on_error, socket_owner, \
                 socket_group and socket_mode";
            return Err(ApiError::new(ErrorKind::Refused, "nothing is to be changed", hint));
        }
        let mut spec = old.spec.clone();
        spec.on_full = change.on_full.or(spec.on_full);
        spec.on_error = change.on_error.or(spec.on_error);
        spec.share = change.share.unwrap_or(spec.share);
        spec.policy = change.policy.or(spec.policy);
        let target_us = change.latency_target_us.or(spec.latency_target_us);
        spec.latency_target_us = target_us.filter(|target_us| *target_us != 0);
        let wait_us = change.moderate_us.or(spec.moderate_us);
        spec.moderate_us = wait_us.filter(|wait_us| *wait_us != 0);
        let limit = LimitSpec::from(&spec).changed(LimitSpec::from(change));
        (spec.limit_iops, spec.limit_bytes) = (limit.iops, limit.bytes);
        spec.limit_burst_ms = limit.burst_ms;
        if change.limit_burst_ms.is_some() {
            check_burst(&spec)?;
        }
        spec.group = change.group.clone().or(spec.group).filter(|group| !group.is_empty());
        let named = |change: &Option<String>, before: Option<String>| {
            change.clone().or(before).filter(|name| !name.is_empty())
        };
        spec.socket_owner = named(&change.socket_owner, spec.socket_owner);
        spec.socket_group = named(&change.socket_group, spec.socket_group);
        spec.socket_mode = change.socket_mode.or(spec.socket_mode);
        let mut mistakes = Vec::new();
        let (defaults, at) = (self.defaults(), Path::root());
        let origin = old.origin.clone();
        let made = disk::resolve(&spec, &defaults, origin, None, &at, &mut mistakes);
        of_a_change(&mut mistakes);
        sound(made, &mistakes)
    }

    /// What a switch asked for through the API would be, beside those of this plan.
    pub fn switch_from_api(&self, spec: &SwitchSpec) -> Result<SwitchPlan, ApiError> {
        check_room("switch", "switches", self.switches.len(), SWITCHES_MAX)?;
        let mut mistakes = Vec::new();
        let (defaults, at) = (self.defaults(), Path::root());
        let made = switch::resolve(spec, &defaults, Origin::Api, &at, &mut mistakes);
        let made = sound(made, &mistakes)?;
        let (nics, switches) = (self.nics.iter().collect::<Vec<_>>(), self.all_switches());
        let named: Vec<_> = switches.iter().map(|switch| switch.named()).collect();
        made.named().clashes(&named, Some(&self.daemon), &at, &mut mistakes);
        made.clashes(&nics, &switches, &at, &mut mistakes);
        fitting(made, &mistakes)
    }

    /// What a NIC asked for through the API would be, beside those of this plan.
    pub fn nic_from_api(&self, spec: &NicSpec) -> Result<NicPlan, ApiError> {
        check_burst(spec)?;
        self.nic_kept(spec)
    }

    /// The same for one that was made so before, and saved.
    pub fn nic_kept(&self, spec: &NicSpec) -> Result<NicPlan, ApiError> {
        check_room("nic", "nics", self.nics.len(), NICS_MAX)?;
        let mut mistakes = Vec::new();
        let (defaults, at) = (self.defaults(), Path::root());
        let made = nic::resolve(spec, &defaults, Origin::Api, None, &at, &mut mistakes);
        let made = sound(made, &mistakes)?;
        let nics: Vec<&NicPlan> = self.nics.iter().collect();
        let named = nics.iter().map(|nic| nic.named());
        let named: Vec<_> = named.chain(self.disks.iter().map(DiskPlan::named)).collect();
        made.named().clashes(&named, Some(&self.daemon), &at, &mut mistakes);
        made.clashes(&nics, &self.all_switches(), &at, &mut mistakes);
        fitting(made, &mistakes)
    }

    /// What a NIC made through the API would be with that change: its share, policy, target, moderation, redirection,
    /// limit, group, VLANs and addresses may differ from what it is, and nothing else.
    pub fn nic_changed(&self, id: &str, change: &NicChange) -> Result<NicPlan, ApiError> {
        let old = self.nic(id).ok_or_else(|| self.no_such_nic(id))?;
        if *change == NicChange::default() {
            let hint = "name one of share, policy, latency_target_us, moderate_us, redirect, vcpus, \
                        limit_packets, limit_bytes, limit_burst_ms, group, vlan, trunk, native, macs_max, spoof, \
                        socket_owner, socket_group and socket_mode";
            return Err(ApiError::new(ErrorKind::Refused, "nothing is to be changed", hint));
        }
        if change.native.is_some() && change.trunk.is_none() && change.vlan.is_some() {
            let hint = "name `trunk` and `native`, or `vlan`";
            let error = "`native` goes with `trunk`, and `vlan` takes that away";
            return Err(ApiError::new(ErrorKind::Refused, error, hint));
        }
        let mut spec = old.spec.clone();
        spec.share = change.share.unwrap_or(spec.share);
        spec.policy = change.policy.or(spec.policy);
        let target_us = change.latency_target_us.or(spec.latency_target_us);
        spec.latency_target_us = target_us.filter(|target_us| *target_us != 0);
        // 0 stays 0: without one it would be the default.
        spec.moderate_us = change.moderate_us.or(spec.moderate_us);
        spec.redirect = change.redirect.or(spec.redirect);
        let vcpus = change.vcpus.clone().or(spec.vcpus);
        spec.vcpus = vcpus.filter(|vcpus| !vcpus.is_empty());
        let limit = LimitSpec::from(&spec).changed(LimitSpec::from(change));
        (spec.limit_packets, spec.limit_bytes) = (limit.packets, limit.bytes);
        spec.limit_burst_ms = limit.burst_ms;
        if change.limit_burst_ms.is_some() {
            check_burst(&spec)?;
        }
        spec.group = change.group.clone().or(spec.group).filter(|group| !group.is_empty());
        let named = |change: &Option<String>, before: Option<String>| {
            change.clone().or(before).filter(|name| !name.is_empty())
        };
        spec.socket_owner = named(&change.socket_owner, spec.socket_owner);
        spec.socket_group = named(&change.socket_group, spec.socket_group);
        spec.socket_mode = change.socket_mode.or(spec.socket_mode);
        spec.macs_max = change.macs_max.or(spec.macs_max);
        spec.spoof = change.spoof.or(spec.spoof);
        match (change.vlan, &change.trunk) {
            (Some(vlan), None) => {
                (spec.vlan, spec.trunk, spec.native) = ((vlan != 0).then_some(vlan), None, None);
            }
            (vlan, Some(trunk)) => {
                let vlan = vlan.filter(|vlan| *vlan != 0);
                (spec.vlan, spec.trunk, spec.native) = (vlan, Some(trunk.clone()), change.native);
            }
            (None, None) => spec.native = change.native.or(spec.native),
        }
        let mut mistakes = Vec::new();
        let (defaults, at) = (self.defaults(), Path::root());
        let origin = old.origin.clone();
        let made = nic::resolve(&spec, &defaults, origin, None, &at, &mut mistakes);
        of_a_change(&mut mistakes);
        sound(made, &mistakes)
    }

    /// There is no disk of that name; if there is a NIC, that is said.
    pub fn no_such_disk(&self, id: &str) -> ApiError {
        match self.nic(id) {
            Some(_) => is_other(id, "nic", "disk"),
            None => ApiError::no_such_disk(id),
        }
    }

    /// There is no NIC of that name; if there is a disk, that is said.
    pub fn no_such_nic(&self, id: &str) -> ApiError {
        match self.disk(id) {
            Some(_) => is_other(id, "disk", "nic"),
            None => ApiError::no_such_nic(id),
        }
    }

    /// Refuses to let a switch go that still has NICs. Its uplinks go with it.
    pub fn check_switch_is_free(&self, id: &str) -> Result<(), ApiError> {
        let on_it = self.nics.iter().filter(|nic| nic.switch() == Some(id));
        let names: Vec<&str> = on_it.map(|nic| nic.id.as_str()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let count = names.len();
        let plural = if count == 1 { "" } else { "s" };
        let error = format!("switch {id:?} has {count} nic{plural}: {}", shorten(&names));
        let hint = "remove them first: `sidecore nic rm ID`, or take those of the file out of it";
        Err(ApiError::new(ErrorKind::Conflict, error, hint))
    }

    fn defaults(&self) -> Defaults<'_> {
        Defaults {
            daemon: &self.daemon,
            policies: self.sidecores.policies,
            groups: &self.groups,
            links: &self.links,
            mistaken_links: Vec::new(),
        }
    }

    fn all_switches(&self) -> Vec<&SwitchPlan> {
        self.switches.iter().collect()
    }
}

/// Refuses a burst without a limit.
pub(super) fn check_burst<'a, T>(spec: &'a T) -> Result<(), ApiError>
where
    LimitSpec: From<&'a T>,
{
    let mut mistakes = Vec::new();
    LimitSpec::from(spec).check_burst(&Path::root(), &mut mistakes);
    sound(Some(()), &mistakes)
}

/// What has that name is a `found`, and a `wanted` was asked for.
fn is_other(id: &str, found: &str, wanted: &str) -> ApiError {
    let error = format!("{id:?} is a {found}; use `sidecore {found} ...`");
    let hint =
        format!("it is no {wanted}; `sidecore {found} --help` lists what it can be asked for");
    ApiError::new(ErrorKind::NotFound, error, hint)
}

/// A line that a terminal can show, however many names there are.
pub(super) fn shorten(names: &[&str]) -> String {
    let shown = names.iter().take(8).copied().collect::<Vec<_>>().join(", ");
    if names.len() > 8 { format!("{shown}, ...") } else { shown }
}

pub(super) fn check_room(
    kind: &str,
    kinds: &str,
    count: usize,
    most: usize,
) -> Result<(), ApiError> {
    if count < most {
        return Ok(());
    }
    let hint = format!("remove {kinds} that are no longer needed: `sidecore {kind} rm ID`");
    let error = format!("there are {most} {kinds} already, the most one daemon serves");
    Err(ApiError::new(ErrorKind::Conflict, error, hint))
}

pub(super) fn sound<T>(made: Option<T>, mistakes: &[Mistake]) -> Result<T, ApiError> {
    made.filter(|_| mistakes.is_empty()).ok_or_else(|| api_error(ErrorKind::Refused, mistakes))
}

pub(super) fn fitting<T>(made: T, mistakes: &[Mistake]) -> Result<T, ApiError> {
    match mistakes.is_empty() {
        true => Ok(made),
        false => Err(api_error(ErrorKind::Conflict, mistakes)),
    }
}
