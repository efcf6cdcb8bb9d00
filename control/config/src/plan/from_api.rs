//! One device more, or another, as an operator of the API asks for it; and what may not go.

mod groups;

use std::collections::HashSet;

use super::defaults::Defaults;
use super::limit::LimitSpec;
use super::names::shorten;
use super::{DiskPlan, NicPlan, Origin, Plan, SwitchPlan, api_error, disk, nic, stages, switch};
use crate::api::{ApiError, ErrorKind, StagedBy};
use crate::mistake::{Mistake, Path};
use crate::number::of_a_change;
use crate::saved::DiskStages;
use crate::spec::told::Change;
use crate::spec::{
    DISKS_MAX, DiskChange, DiskSpec, NICS_MAX, NicChange, NicSpec, SWITCHES_MAX, StageChange,
    StageKind, SwitchSpec,
};

impl Plan {
    /// What a disk asked for through the API would be, beside those of this plan.
    pub fn disk_from_api(&self, spec: &DiskSpec) -> Result<DiskPlan, ApiError> {
        check_burst(spec)?;
        let made = self.disk_kept(spec)?;
        // Not of one that was kept, which a start must not refuse.
        let mut mistakes = Vec::new();
        let with_it = self.disks.iter().find(|other| other.serial == made.serial);
        with_it.into_iter().for_each(|it| made.check_serial(it, &Path::root(), &mut mistakes));
        fitting(made, &mistakes)
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
        let spec = changed(&old.spec, change)?;
        if change.limit_burst_ms.is_some() {
            check_burst(&spec)?;
        }
        let mut mistakes = Vec::new();
        let (defaults, at) = (self.defaults(), Path::root());
        let origin = old.origin.clone();
        let made = disk::resolve(&spec, &defaults, origin, None, &at, &mut mistakes);
        of_a_change(&mut mistakes);
        sound(made, &mistakes)
    }

    /// What a disk, wherever it was declared, would be with a stage that a command adds or changes.
    pub fn disk_staged(
        &self,
        id: &str,
        kind: StageKind,
        change: &StageChange,
    ) -> Result<DiskPlan, ApiError> {
        let mut disk = self.disk(id).cloned().ok_or_else(|| self.no_such_disk(id))?;
        let (spec, mut mistakes) = (disk.stages.changed(kind, change), Vec::new());
        stages::check_fields(&spec, &Path::root(), &mut mistakes);
        sound(Some(()), &mistakes)?;
        disk.stages.put(&spec, StagedBy::Command);
        disk.keep_stages();
        Ok(disk)
    }

    /// The same without a stage that a command has added.
    pub fn disk_unstaged(&self, id: &str, kind: StageKind) -> Result<DiskPlan, ApiError> {
        let mut disk = self.disk(id).cloned().ok_or_else(|| self.no_such_disk(id))?;
        disk.stages.take(kind);
        disk.keep_stages();
        Ok(disk)
    }

    /// Has commands have added these to a disk of the file, before the daemon was started. What the file says goes
    /// before, and of a disk that is not there any more nothing is kept.
    pub fn keep_staged(&mut self, kept: &[DiskStages]) {
        for DiskStages { disk: id, stage } in kept {
            let disk = self.disks.iter_mut().find(|disk| disk.id == *id);
            disk.into_iter().for_each(|disk| disk.stages.keep(stage));
        }
    }

    /// What is to be kept of that: what commands have added to disks of the file.
    pub fn staged(&self) -> Vec<DiskStages> {
        let of_file = self.disks.iter().filter(|disk| disk.origin != Origin::Api);
        let its = of_file
            .map(|disk| DiskStages { disk: disk.id.clone(), stage: disk.stages.by_command() });
        its.filter(|its| !its.stage.is_empty()).collect()
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
        let mut spec = changed(&old.spec, change)?;
        if change.native.is_some() && change.trunk.is_none() && change.vlan.is_some() {
            let hint = "name `trunk` and `native`, or `vlan`";
            let error = "`native` goes with `trunk`, and `vlan` takes that away";
            return Err(ApiError::new(ErrorKind::Refused, error, hint));
        }
        if change.limit_burst_ms.is_some() {
            check_burst(&spec)?;
        }
        match (change.vlan, &change.trunk) {
            (Some(vlan), None) => {
                (spec.vlan, spec.trunk, spec.native) = ((vlan != 0).then_some(vlan), None, None);
            }
            (vlan, Some(trunk)) => {
                let vlan = vlan.filter(|vlan| *vlan != 0);
                (spec.vlan, spec.trunk, spec.native) = (vlan, Some(trunk.clone()), change.native);
            }
            (None, None) => {}
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
        let of_daemon = (&self.daemon, self.sidecores.policies);
        Defaults::of(of_daemon, &self.groups, (&self.links, HashSet::new()))
    }

    fn all_switches(&self) -> Vec<&SwitchPlan> {
        self.switches.iter().collect()
    }
}

/// What was written, with what a change names in its place.
fn changed<C: Change>(written: &C::Spec, change: &C) -> Result<C::Spec, ApiError> {
    if let Some((last, names)) = C::NAMES.split_last()
        && *change == C::default()
    {
        let hint = format!("name one of {} and {last}", names.join(", "));
        return Err(ApiError::new(ErrorKind::Refused, "nothing is to be changed", hint));
    }
    let mut spec = written.clone();
    change.apply(&mut spec);
    Ok(spec)
}

/// Refuses a burst without a limit.
fn check_burst<'a, T>(spec: &'a T) -> Result<(), ApiError>
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

fn check_room(kind: &str, kinds: &str, count: usize, most: usize) -> Result<(), ApiError> {
    if count < most {
        return Ok(());
    }
    let hint = format!("remove {kinds} that are no longer needed: `sidecore {kind} rm ID`");
    let error = format!("there are {most} {kinds} already, the most one daemon serves");
    Err(ApiError::new(ErrorKind::Conflict, error, hint))
}

fn sound<T>(made: Option<T>, mistakes: &[Mistake]) -> Result<T, ApiError> {
    made.filter(|_| mistakes.is_empty()).ok_or_else(|| api_error(ErrorKind::Refused, mistakes))
}

fn fitting<T>(made: T, mistakes: &[Mistake]) -> Result<T, ApiError> {
    match mistakes.is_empty() {
        true => Ok(made),
        false => Err(api_error(ErrorKind::Conflict, mistakes)),
    }
}
