//! The devices of a configuration file, beside those that the API made before.

use std::collections::HashMap;

use super::defaults::Defaults;
use super::names::Named;
use super::rights::Written;
use super::{DiskPlan, NicPlan, Origin, Plan, SwitchPlan, disk, nic, switch};
use crate::mistake::{Mistake, Path};
use crate::read::Document;
use crate::spec::{DISKS_MAX, NICS_MAX, SWITCHES_MAX};

/// What the devices of one file are resolved with.
pub(super) struct Reading<'a> {
    pub(super) document: &'a Document,
    pub(super) folder: &'a str,
    pub(super) defaults: Defaults<'a>,
    /// The plan in force, at a reload.
    pub(super) running: Option<&'a Plan>,
}

/// The devices of a plan: those of the file in its order, then those made through the API.
pub(super) struct Devices {
    pub(super) disks: Vec<DiskPlan>,
    pub(super) switches: Vec<SwitchPlan>,
    pub(super) nics: Vec<NicPlan>,
}

impl Reading<'_> {
    /// All of them. Nothing when there are too many to look at each.
    pub(super) fn devices(&self, mistakes: &mut Vec<Mistake>) -> Option<Devices> {
        let spec = &self.document.spec;
        let counts = [
            ("disk", "disks", spec.disk.len(), DISKS_MAX),
            ("switch", "switches", spec.switch.len(), SWITCHES_MAX),
            ("nic", "nics", spec.nic.len(), NICS_MAX),
        ];
        let before = mistakes.len();
        for (list, name, count, most) in counts {
            if count > most {
                let (wrong, right) =
                    (format!("{count} {name} are too many"), format!("at most {most}"));
                mistakes.push(Mistake::new(Path::item(list, most), wrong, right));
            }
        }
        if mistakes.len() != before {
            return None;
        }
        let kept = self.kept();
        let mut disks = self.disks(&kept, mistakes);
        let mut switches = self.switches(&kept, mistakes);
        let mut nics = self.nics(&disks, &switches, &kept, mistakes);
        let taken = self.kept();
        self.check_kept(&taken, mistakes);
        disks.extend(taken.disks);
        switches.extend(taken.switches);
        nics.extend(taken.nics);
        Some(Devices { disks, switches, nics })
    }

    /// What the API made, as it will be: a policy that was inherited follows the file's,
    /// and so do its numbers.
    fn kept(&self) -> Devices {
        let of_api = |origin: &Origin| *origin == Origin::Api;
        let policies = self.defaults.policies;
        let mut kept = Devices { disks: Vec::new(), switches: Vec::new(), nics: Vec::new() };
        let Some(running) = self.running else { return kept };
        kept.disks.extend(running.disks.iter().filter(|disk| of_api(&disk.origin)).cloned());
        kept.nics.extend(running.nics.iter().filter(|nic| of_api(&nic.origin)).cloned());
        kept.switches.extend(running.switches.iter().filter(|it| of_api(&it.origin)).cloned());
        kept.disks
            .iter_mut()
            .for_each(|disk| disk.service.policy = policies.of_disk(disk.spec.policy));
        kept.nics.iter_mut().for_each(|nic| nic.service.policy = policies.of_nic(nic.spec.policy));
        let daemon = self.defaults.daemon;
        for disk in &mut kept.disks {
            // It was sound before.
            let written = Written::from(&disk.spec);
            disk.rights = written.resolve(daemon, &Path::root(), &mut Vec::new());
        }
        for nic in &mut kept.nics {
            let written = Written::from(&nic.spec);
            nic.rights = written.resolve(daemon, &Path::root(), &mut Vec::new());
        }
        for switch in &mut kept.switches {
            for (uplink, spec) in switch.uplinks.iter_mut().zip(&switch.spec.uplink) {
                uplink.policy = policies.of_nic(spec.policy);
            }
        }
        kept
    }

    fn origin(&self, at: &Path) -> Origin {
        Origin::File { file: self.document.file().to_string(), line: self.document.line_of(at) }
    }

    fn disks(&self, kept: &Devices, mistakes: &mut Vec<Mistake>) -> Vec<DiskPlan> {
        let mut made: Vec<DiskPlan> = Vec::new();
        // By serial number, the first that has it.
        let mut serials: HashMap<String, DiskPlan> = HashMap::new();
        for disk in &kept.disks {
            serials.entry(disk.serial.clone()).or_insert_with(|| disk.clone());
        }
        for (index, spec) in self.document.spec.disk.iter().enumerate() {
            let at = Path::disk(index);
            let (origin, folder) = (self.origin(&at), Some(self.folder));
            let plan = disk::resolve(spec, &self.defaults, origin, folder, &at, mistakes);
            let Some(mut plan) = plan else { continue };
            if let Some(before) = self.running.and_then(|running| running.disk(&plan.id)) {
                plan.stages.keep_of(&before.stages);
            }
            let others: Vec<&DiskPlan> = made.iter().chain(&kept.disks).collect();
            let disks = others.iter().map(|disk| disk.named());
            let named: Vec<Named<'_>> = disks.chain(kept.nics.iter().map(NicPlan::named)).collect();
            plan.named().clashes(&named, Some(self.defaults.daemon), &at, mistakes);
            plan.clashes(&others, &at, mistakes);
            match serials.get(&plan.serial) {
                // Of one name it was said.
                Some(other) if other.id == plan.id => {}
                Some(other) => plan.check_serial(other, &at, mistakes),
                None => drop(serials.insert(plan.serial.clone(), plan.clone())),
            }
            made.push(plan);
        }
        made
    }

    fn switches(&self, kept: &Devices, mistakes: &mut Vec<Mistake>) -> Vec<SwitchPlan> {
        let mut made: Vec<SwitchPlan> = Vec::new();
        let nics: Vec<&NicPlan> = kept.nics.iter().collect();
        for (index, spec) in self.document.spec.switch.iter().enumerate() {
            let at = Path::item("switch", index);
            let plan = switch::resolve(spec, &self.defaults, self.origin(&at), &at, mistakes);
            let Some(plan) = plan else { continue };
            let others: Vec<&SwitchPlan> = made.iter().chain(&kept.switches).collect();
            let named: Vec<Named<'_>> = others.iter().map(|other| other.named()).collect();
            plan.named().clashes(&named, Some(self.defaults.daemon), &at, mistakes);
            plan.clashes(&nics, &others, &at, mistakes);
            made.push(plan);
        }
        made
    }

    fn nics(
        &self,
        disks: &[DiskPlan],
        switches: &[SwitchPlan],
        kept: &Devices,
        mistakes: &mut Vec<Mistake>,
    ) -> Vec<NicPlan> {
        let mut made: Vec<NicPlan> = Vec::new();
        let switches: Vec<&SwitchPlan> = switches.iter().chain(&kept.switches).collect();
        for (index, spec) in self.document.spec.nic.iter().enumerate() {
            let at = Path::item("nic", index);
            let (origin, folder) = (self.origin(&at), Some(self.folder));
            let plan = nic::resolve(spec, &self.defaults, origin, folder, &at, mistakes);
            let Some(plan) = plan else { continue };
            let others: Vec<&NicPlan> = made.iter().chain(&kept.nics).collect();
            let disks = disks.iter().chain(&kept.disks).map(DiskPlan::named);
            let named: Vec<Named<'_>> =
                disks.chain(others.iter().map(|other| other.named())).collect();
            plan.named().clashes(&named, Some(self.defaults.daemon), &at, mistakes);
            // Whoever is on a switch with mistakes of its own has made none.
            let is_known = |id: &str| switches.iter().any(|switch| switch.id == id);
            if plan.switch().is_none_or(|id| is_known(id) || !self.declares(id)) {
                plan.clashes(&others, &switches, &at, mistakes);
            }
            made.push(plan);
        }
        made
    }

    fn declares(&self, switch: &str) -> bool {
        self.document.spec.switch.iter().any(|spec| spec.id == switch)
    }

    /// What the API made may be on a switch of the file, and in a group, which then may not go.
    fn check_kept(&self, kept: &Devices, mistakes: &mut Vec<Mistake>) {
        let has_group = |id: &str| self.defaults.groups.iter().any(|group| group.id == id);
        let disks = kept.disks.iter().map(|disk| (disk.named(), disk.service.group.as_deref()));
        let nics = kept.nics.iter().map(|nic| (nic.named(), nic.service.group.as_deref()));
        for (named, group) in disks.chain(nics) {
            let Some(group) = group.filter(|id| !has_group(id)) else { continue };
            let wrong = format!("{} is in group {group:?}, which is gone", named.text());
            let Named { kind, id, .. } = named;
            let right = format!(
                "keep the group, or take the {kind} out first: `sidecore {kind} set {id} --group=`"
            );
            mistakes.push(Mistake::new(Path::root(), wrong, right));
        }
        let switches = &kept.switches;
        let is_there = |id: &str| self.declares(id) || switches.iter().any(|it| it.id == id);
        for nic in &kept.nics {
            let Some(id) = nic.switch().filter(|id| !is_there(id)) else { continue };
            let wrong = format!("{} is on switch {id:?}, which is gone", nic.named().text());
            let right =
                format!("keep the switch, or remove the nic first: `sidecore nic rm {}`", nic.id);
            mistakes.push(Mistake::new(Path::root(), wrong, right));
        }
    }
}
