//! The last judgement of a life: what is planned and kept is what was asked for, and when nothing is, nothing is left.

use config::api::{Call, DiskView};
use config::spec::{DiskSpec, NicSpec};
use config::{Origin, Plan, saved};

use super::{Life, STEPS_AFTER_MAX};
use crate::vmm;

impl Life {
    /// What is planned is what the file says and what operators were told.
    pub(super) fn judge_plan(&self) -> Result<(), String> {
        let plan = self.daemon.plan();
        let wanted = self.file.borrow().load(Some(plan)).map_err(|e| e.error)?;
        let of = |plan: &Plan, is_api: bool| -> Vec<_> {
            let of = |disk: &&config::DiskPlan| (disk.origin == Origin::Api) == is_api;
            plan.disks.iter().filter(of).map(|disk| disk.spec.clone()).collect()
        };
        if of(plan, false) != of(&wanted, false) {
            let (has, should) = (told(&of(plan, false)), told(&of(&wanted, false)));
            return Err(format!("after a reload there is {has}, and the file says {should}"));
        }
        let mut api = of(plan, true);
        api.sort_by(|one, other| one.id.cmp(&other.id));
        let made: Vec<_> = self.operator.made.values().cloned().collect();
        if api != made {
            let (api, made) = (told(&api), told(&made));
            return Err(format!("operators were told of {made}, and there is {api}"));
        }
        let of = |plan: &Plan, is_api: bool| -> Vec<_> {
            let of = |nic: &&config::NicPlan| (nic.origin == Origin::Api) == is_api;
            let spec = |nic: &config::NicPlan| (nic.id.clone(), nic.spec.share, nic.spec.mtu);
            plan.nics.iter().filter(of).map(spec).collect()
        };
        let told = |nic: &NicSpec| (nic.id.clone(), nic.share, nic.mtu);
        let made_nics: Vec<_> = self.operator.made_nics.values().map(told).collect();
        let mut api = of(plan, true);
        api.sort();
        if of(plan, false) != of(&wanted, false) || api != made_nics {
            let (has, should) = (of(plan, false), of(&wanted, false));
            return Err(format!(
                "there are NICs {has:?} and {api:?}, and should be {should:?} and {made_nics:?}"
            ));
        }
        let count = made.len() + made_nics.len();
        let kept = std::fs::read_to_string(self.folder.path().join("state/disks.json"));
        let kept =
            kept.map(|text| saved::read(&text).map(|kept| kept.disks.len() + kept.nics.len()));
        match kept {
            Ok(Ok(kept)) if kept == count => Ok(()),
            Err(_) if count == 0 => Ok(()),
            kept => Err(format!("{kept:?} devices are kept, and there are {count}")),
        }
    }

    /// What operators are shown is what is planned, and all queues run.
    pub(super) fn judge_shown(&self) -> Result<(), String> {
        for disk in &self.daemon.plan().disks {
            let spec = &disk.spec;
            let view = self.shown.iter().find(|view| view.id == spec.id);
            let is_size = |view: &DiskView| spec.size.is_some_and(|size| size.0 == view.size_bytes);
            let queues = self.vmms.get(&spec.id).map_or(0, |vmm| vmm.tenant.queues());
            let is_so = |view: &&DiskView| is_size(view) && view.queues_attached == queues;
            if view.filter(is_so).is_none() {
                return Err(format!("{} is shown as {view:?}", told(std::slice::from_ref(spec))));
            }
        }
        Ok(())
    }

    /// What is left when nothing is planned any more.
    pub(super) fn remove_all(&mut self) -> Result<(), String> {
        self.note("removed", [0; 3]);
        let ids: Vec<String> = self.operator.made.keys().cloned().collect();
        for id in ids {
            self.operator.ask(&self.daemon, Call::RemoveDisk { id, force: true }, self.now().0);
        }
        let ids: Vec<String> = self.operator.made_nics.keys().cloned().collect();
        for id in ids {
            self.operator.ask(&self.daemon, Call::RemoveNic { id, force: true }, self.now().0);
        }
        self.until("operators are answered", |life| life.operator.waiting() == 0)?;
        let nics = std::mem::take(&mut self.file.borrow_mut().spec.nic);
        let now = self.now().0;
        self.dirty.extend(nics.into_iter().map(|nic| (nic.id, now)));
        self.file.borrow_mut().spec.switch.clear();
        let of_file = std::mem::take(&mut self.file.borrow_mut().spec.disk);
        self.dirty.extend(of_file.into_iter().map(|disk| (disk.id, now)));
        self.reload_for_good()?;
        self.until("all is removed", |life| {
            life.operator.waiting() == 0 && life.daemon.devices() == 0
        })?;
        let loads = self.daemon.loads();
        let bounds = self.daemon.bounds();
        let promised =
            [&bounds.descriptors, &bounds.mappings, &bounds.memory_bytes].map(|it| it.promised);
        if loads.iter().any(|load| *load > 0) || bounds.devices > 0 || promised != [0; 3] {
            return Err(format!("nothing is open, and there is left: {loads:?}, {bounds:?}"));
        }
        if let Some(vmm) = self.vmms.values().find(|vmm| vmm.stage == vmm::Stage::There) {
            self.note("left", [vmm.number.into(), 0, 0]);
        }
        self.stop()
    }

    fn stop(&mut self) -> Result<(), String> {
        self.daemon.stop();
        for _ in 0..STEPS_AFTER_MAX {
            if self.daemon.turn(&mut |count| (0..count).collect()) {
                return Ok(());
            }
            self.pass();
        }
        Err("it does not stop".into())
    }
}

/// Disks in short.
fn told(disks: &[DiskSpec]) -> String {
    let told = |disk: &DiskSpec| {
        let DiskSpec { id, size, share, serial, .. } = disk;
        format!("{id} {} {share} {serial:?}", size.map_or(0, |size| size.0))
    };
    disks.iter().map(told).collect::<Vec<_>>().join("; ")
}
