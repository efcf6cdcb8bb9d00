//! The last judgement of a life: what is planned and kept is what was asked for, and when nothing is, nothing is left.

use config::api::{Call, DiskView};
use config::spec::DiskSpec;
use config::{Origin, Plan, saved};
use manager::simulated::Simulated;

use super::host::Host;
use super::{Course, Life};
use crate::operator::Operator;
use crate::rack;
use crate::vmm;

impl Life {
    /// What is left when nothing is planned any more.
    pub(super) fn remove_all(&mut self) -> Result<(), String> {
        self.course.note("removed", [0; 3]);
        let now = self.course.now().0;
        for host in &mut self.hosts {
            host.unmake(now);
        }
        self.until_answered()?;
        for host in &mut self.hosts {
            host.unmake_switches(now);
        }
        self.until_answered()?;
        for host in 0..self.hosts.len() {
            self.hosts[host].empty_file(now);
            self.reload_for_good(host)?;
            // What a client has asked an IOhost for waits for that one, even if nobody wants it any more.
            let number = self.hosts[host].number;
            self.until("all is removed", |host| {
                let is_empty =
                    host.control().is_some_and(|it| it.devices() == 0) && host.left() == 0;
                host.operator.waiting() == 0 && (host.number != number || is_empty)
            })?;
        }
        for host in &mut self.hosts {
            host.ask(Call::ListLinks, self.course.now().0);
        }
        self.until_answered()?;
        for host in &mut self.hosts {
            host.judge_left(&self.course)?;
            host.stop(&self.course);
        }
        // A client gives its IOhost back what it has.
        self.until("all have stopped", |host| host.daemons.is_empty())
    }
}

impl Host {
    /// What is planned is what the file says and what operators were told.
    pub(super) fn judge_plan(&self) -> Result<(), String> {
        let Some(plan) = self.plan() else { return Err("nobody serves".into()) };
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
        // All that a plan says of a NIC and a switch; of what operators made that is what they have said.
        let of = |plan: &Plan| {
            let nics = plan.nics.iter().filter(|nic| nic.origin != Origin::Api).cloned();
            let switches = plan.switches.iter().filter(|it| it.origin != Origin::Api).cloned();
            (nics.collect::<Vec<_>>(), switches.collect::<Vec<_>>())
        };
        if of(plan) != of(&wanted) {
            let (has, should) = (of(plan), of(&wanted));
            return Err(format!("after a reload there is {has:?}, and the file says {should:?}"));
        }
        let nics = plan.nics.iter().filter(|nic| nic.origin == Origin::Api);
        let nics = nics.map(|nic| (nic.id.clone(), nic.spec.clone())).collect();
        let switches = plan.switches.iter().filter(|switch| switch.origin == Origin::Api);
        let switches = switches.map(|it| (it.id.clone(), it.spec.clone())).collect();
        let Operator { made_nics, made_switches, .. } = &self.operator;
        if (made_nics, made_switches) != (&nics, &switches) {
            let made = (made_nics, made_switches);
            return Err(format!(
                "operators were told of {made:?}, and there is {nics:?}, {switches:?}"
            ));
        }
        if let Some(nic) = plan.nics.iter().find(|nic| nic.carrier != nic.spec.link) {
            return Err(format!(
                "{} has its cable {:?}, and is to have it {:?}",
                nic.id, nic.carrier, nic.spec.link
            ));
        }
        let count = made.len() + nics.len() + switches.len();
        let kept = std::fs::read_to_string(self.folder().join("state/disks.json"));
        let kept = kept.map(|text| {
            saved::read(&text).map(|it| it.disks.len() + it.nics.len() + it.switches.len())
        });
        match kept {
            Ok(Ok(kept)) if kept == count => Ok(()),
            Err(_) if count == 0 => Ok(()),
            kept => Err(format!("{kept:?} devices are kept, and there are {count}")),
        }
    }

    /// What operators are shown is what is planned, and all queues run.
    pub(super) fn judge_shown(&self) -> Result<(), String> {
        for disk in self.plan().into_iter().flat_map(|plan| &plan.disks) {
            let spec = &disk.spec;
            let view = self.shown.iter().find(|view| view.id == spec.id);
            // Of a disk of another host that one says its size.
            let is_size =
                |view: &DiskView| spec.size.is_none_or(|size| Some(size.0) == view.size_bytes);
            let honest = self.vmms.get(&spec.id).filter(|vmm| !vmm.tenant.is_hostile());
            let queues = honest.map_or(0, |vmm| vmm.tenant.queues());
            let has_queues = |view: &DiskView| view.queues_attached == queues;
            let is_lent = rack::is_lent(&spec.id);
            // Whoever was told that it has changed has read it again.
            let is_told = |view: &DiskView| {
                honest.is_none_or(|vmm| Some(vmm.tenant.told_bytes()) == view.size_bytes)
            };
            let is_staged = |view: &DiskView| {
                let has_come = view.stages.iter().all(|stage| stage.late.is_empty());
                view.stages.len() == disk.stages.all().len() && (has_come || is_lent)
            };
            let is_so = |view: &&DiskView| {
                let is_served = is_lent || has_queues(view) && is_told(view);
                is_size(view) && is_served && is_staged(view)
            };
            if view.filter(is_so).is_none() {
                let bytes = honest.map(|vmm| vmm.tenant.told_bytes());
                let spec = told(std::slice::from_ref(spec));
                return Err(format!("{spec} is shown as {view:?}, and its guest sees {bytes:?}"));
            }
        }
        Ok(())
    }

    /// Has all removed that was made through the API.
    fn unmake(&mut self, now_ns: u64) {
        let ids: Vec<String> = self.operator.made.keys().cloned().collect();
        for id in ids {
            self.ask(Call::RemoveDisk { id, force: true }, now_ns);
        }
        let ids: Vec<String> = self.operator.made_nics.keys().cloned().collect();
        for id in ids {
            self.ask(Call::RemoveNic { id, force: true }, now_ns);
        }
    }

    /// And switches, which have no NIC any more.
    fn unmake_switches(&mut self, now_ns: u64) {
        let ids: Vec<String> = self.operator.made_switches.keys().cloned().collect();
        for id in ids {
            self.ask(Call::RemoveSwitch { id }, now_ns);
        }
    }

    /// Leaves nothing in the file.
    fn empty_file(&mut self, now_ns: u64) {
        let mut file = self.file.borrow_mut();
        file.spec.switch.clear();
        for client in file.spec.link.iter_mut().flat_map(|link| &mut link.client) {
            (client.disks, client.nics) = (Vec::new(), Vec::new());
        }
        let nics = std::mem::take(&mut file.spec.nic).into_iter().map(|nic| nic.id);
        let disks = std::mem::take(&mut file.spec.disk).into_iter().map(|disk| disk.id);
        self.dirty.extend(nics.chain(disks).map(|id| (id, now_ns)));
    }

    /// What sidecores are thought to have but shards of links, which stay.
    fn left(&self) -> usize {
        let loads = self.control().map(Simulated::loads).unwrap_or_default();
        let shards = rack::shards(&self.file.borrow().spec, loads.len());
        loads.iter().sum::<usize>().saturating_sub(shards)
    }

    /// Nothing is open, and nothing is promised.
    fn judge_left(&self, course: &Course) -> Result<(), String> {
        let Some(control) = self.control() else { return Err("nobody serves".into()) };
        let (loads, bounds) = (control.loads(), control.bounds());
        let promised =
            [&bounds.descriptors, &bounds.mappings, &bounds.memory_bytes].map(|it| it.promised);
        if self.left() != 0 || bounds.devices > 0 || promised != [0; 3] {
            return Err(format!("nothing is open, and there is left: {loads:?}, {bounds:?}"));
        }
        if let Some(name) = course.ground.interfaces.made(self.number) {
            return Err(format!("nothing is open, and there is the tap {name}, which was made"));
        }
        if let Some(name) = course.ground.interfaces.robbed(self.number) {
            return Err(format!("the tap {name} was somebody else's, and was taken away"));
        }
        if let Some(vmm) = self.vmms.values().find(|vmm| vmm.stage == vmm::Stage::There) {
            course.note("left", [vmm.number.into(), 0, 0]);
        }
        Ok(())
    }

    fn stop(&mut self, course: &Course) {
        self.is_stopping = true;
        for control in self.daemons.iter_mut().filter_map(|daemon| daemon.control.as_mut()) {
            control.stop();
        }
        self.newcomers.drain(..).for_each(|newcomer| newcomer.die(course));
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
