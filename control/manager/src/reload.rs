//! The configuration file, read again while running: what is different is done in order.
//!
//! What is to be added is opened before anything is changed, and one that does not open refuses the
//! reload whole. Only what an addition has to take over from a disk that goes (its image, its
//! socket) is opened afterwards: until then it stands among the disks that are not open (`shut`).

use std::time::{Duration, Instant};

use config::api::{Answer, ApiError, ErrorKind, ReloadView};
use config::plan::{DiskPlan, LinkPlan};
use config::{Change, Plan, Size};
use tracing::{info, warn};

use crate::api::Reply;
use crate::device::Device;
use crate::kind::DevicePlan;
use crate::manager::{Manager, now};
use crate::reload_net::Hosts;
use crate::remote::check_key;
use crate::shut::{NotOpen, Shut, is_same_image};

/// How long the answer waits for disks that take over from others.
const TAKE_OVER_TIME_MAX: Duration = Duration::from_secs(10);

/// A reload that waits for disks that take over from others.
pub(crate) struct Reloading {
    /// Their names.
    late: Vec<String>,
    done: ReloadView,
    reply: Option<Reply>,
    answer_by: Instant,
}

impl Reloading {
    /// When the answer is given at the latest.
    pub(crate) fn due_at(&self) -> Instant {
        self.answer_by
    }
}

/// What a reload is about to do.
#[derive(Default)]
struct Prepared {
    opened: Vec<Device>,
    /// To be opened when other disks are gone, or other processes' requests are.
    later: Vec<(DevicePlan, String)>,
    /// Could not be opened before, and cannot be now.
    still_shut: Vec<(DevicePlan, NotOpen)>,
    /// What new uplinks are on, and new NICs wired to.
    hosts: Hosts,
}

/// A link that is different comes with an upgrade or a restart, which must not fail then.
fn check_links(running: &Plan, wanted: &Plan) -> Result<(), ApiError> {
    for link in wanted.links.iter().filter(|link| !running.links.contains(link)) {
        check_key(link).map_err(|error| {
            let error = format!("{}: link {:?}: {error}", link.origin, link.id);
            let hint = "correct the file and reload again; nothing was changed";
            ApiError::new(ErrorKind::Refused, error, hint)
        })?;
    }
    Ok(())
}

impl Manager {
    /// Reads the file and does what is different. Nothing is done when the file is wrong or one of
    /// its new disks cannot be opened.
    pub(crate) fn reload(&mut self, reply: Option<Reply>) {
        if self.upgrade.is_some() {
            let error = "another process is taking over, and reads the file itself";
            let error = ApiError::new(ErrorKind::Busy, error, "ask again in a moment");
            return finish(reply, Err(error));
        }
        if self.reloading.is_some() {
            let error = "the configuration file is being read again already";
            let error = ApiError::new(ErrorKind::Busy, error, "try again in a moment");
            return finish(reply, Err(error));
        }
        match self.begin_reload() {
            Ok((late, done)) => {
                if !done.restart_needed.is_empty() {
                    let fields = done.restart_needed.join(", ");
                    warn!(
                        "different in {}, and put into force by an upgrade or a restart: {fields}",
                        done.file
                    );
                }
                let answer_by = now() + TAKE_OVER_TIME_MAX;
                self.reloading = Some(Reloading { late, done, reply, answer_by });
                // A disk without queues is gone at once, and nothing would wake us for that.
                self.settle();
                self.open_shut();
                self.go_on_reloading();
            }
            Err(error) => finish(reply, Err(error)),
        }
    }

    fn begin_reload(&mut self) -> Result<(Vec<String>, ReloadView), ApiError> {
        let wanted = (self.options.load)(&self.plan)?;
        let difference = config::diff(&self.plan, &wanted);
        check_links(&self.plan, &wanted)?;
        // What is opened is opened for who may have it then.
        let links = config::links_after(&self.plan, &wanted);
        let before = std::mem::replace(&mut self.plan.links, links);
        let prepared = self.prepare(&difference.changes, &wanted, &before);
        let mut prepared = match prepared {
            Ok(prepared) => prepared,
            Err(refused) => {
                self.plan.links = before;
                return Err(refused);
            }
        };
        let mut done = ReloadView {
            file: self.options.file.clone(),
            changes: Vec::new(),
            restart_needed: difference.restart_needed,
        };
        for change in &difference.changes {
            self.apply_change(change, &mut prepared.hosts);
            done.changes.push(change.to_string());
        }
        // Lines may have moved without any change.
        for plan in &wanted.disks {
            self.set_plan(plan.clone());
        }
        for plan in &wanted.switches {
            self.set_switch_plan(plan.clone());
        }
        for plan in &wanted.nics {
            self.set_nic_plan(plan.clone());
        }
        self.plan.disks = wanted.disks;
        self.plan.switches = wanted.switches;
        self.plan.nics = wanted.nics;
        self.plan.groups = wanted.groups;
        self.plan.sidecores.policies = wanted.sidecores.policies;
        self.set_services(&difference.changes);
        let mut late = Vec::new();
        for mut device in prepared.opened {
            prepared.hosts.wire(&mut device);
            let plan = device.kind.plan();
            // One that could not be opened before is open now.
            let was_shut = self.shut.iter().any(|shut| shut.plan.id() == plan.id());
            self.shut.retain(|shut| shut.plan.id() != plan.id());
            if was_shut {
                done.changes.push(format!("opened {}", plan.title()));
            }
            if let Err(error) = self.serve_device(device) {
                warn!(device = plan.id(), "cannot be served: {error}");
                self.shut.push(Shut::failed(plan, error.to_string()));
            }
        }
        for (plan, why) in prepared.still_shut {
            done.changes.push(format!("{} still cannot be opened: {why}", plan.title()));
            self.shut.retain(|shut| shut.plan.id() != plan.id());
            self.shut.push(Shut::failed(plan, why.to_string()));
        }
        for (plan, why) in prepared.later {
            late.push(plan.id().to_string());
            self.shut.retain(|shut| shut.plan.id() != plan.id());
            self.shut.push(Shut::waiting(plan, why, now()));
        }
        self.give_back(prepared.hosts);
        Ok((late, done))
    }

    /// Opens what is to be added, and again what is not open though it could be by now.
    ///
    /// # Errors
    /// The first that cannot be; what was opened before it is closed.
    fn prepare(
        &mut self,
        changes: &[Change],
        wanted: &Plan,
        links: &[LinkPlan],
    ) -> Result<Prepared, ApiError> {
        let mut prepared = Prepared::default();
        let disks = self.prepare_disks(changes, wanted, links, &mut prepared);
        if let Err(refused) = disks.and_then(|()| self.prepare_net(changes, &mut prepared)) {
            prepared.opened.iter_mut().for_each(Device::close_socket);
            self.give_back(prepared.hosts);
            return Err(refused);
        }
        Ok(prepared)
    }

    fn prepare_disks(
        &mut self,
        changes: &[Change],
        wanted: &Plan,
        links: &[LinkPlan],
        prepared: &mut Prepared,
    ) -> Result<(), ApiError> {
        let removed = |change: &Change| match change {
            Change::Remove { id } if self.number_of(id).is_some() => self.plan.disk(id).cloned(),
            _ => None,
        };
        let removed: Vec<DiskPlan> = changes.iter().filter_map(removed).collect();
        let was_exported = |id: &String| {
            links.iter().flat_map(LinkPlan::clients).any(|client| client.disks.contains(id))
        };
        let stays = |disk: &&DiskPlan| was_exported(&disk.id) && self.is_exported(&disk.id);
        if let Some(disk) = removed.iter().find(stays) {
            let what = format!("disk {:?} is one that clients of a link may have", disk.id);
            let hint = "restart the daemon with the new file; nothing was changed";
            return Err(ApiError::new(ErrorKind::Refused, what, hint));
        }
        let is_failed =
            |id: &str| self.shut.iter().any(|shut| shut.plan.id() == id && shut.retry.is_none());
        let is_new = |id: &str| {
            changes.iter().any(|change| matches!(change, Change::Add(added) if added.id == id))
        };
        let added = |plan: &&DiskPlan| is_new(&plan.id) || is_failed(&plan.id);
        let added: Vec<DiskPlan> = wanted.disks.iter().filter(added).cloned().collect();
        for plan in added {
            let (origin, id) = (plan.origin.clone(), plan.id.clone());
            let old = removed.iter().find(|old| takes_over(&plan, old));
            let plan = DevicePlan::Disk(plan);
            if let Some(old) = old {
                prepared.later.push((plan, format!("waits until disk {:?} is gone", old.id)));
                continue;
            }
            match self.open_device(plan.clone()) {
                Ok(device) => prepared.opened.push(device),
                Err(NotOpen::Ended(why)) => prepared.later.push((plan, why)),
                // The same image by another name.
                Err(NotOpen::Ours(why)) if !removed.is_empty() => prepared.later.push((plan, why)),
                // One of the API that still does not open is no mistake of the file.
                Err(_) if origin == config::plan::Origin::Api => {}
                // Nor is one that did not open before: it stays as it is, and the rest is done.
                Err(why) if !is_new(&id) => prepared.still_shut.push((plan, why)),
                Err(why) => {
                    let what = format!("{} ({origin}): {why}", plan.name());
                    let hint = "put that right and reload again; nothing was changed";
                    return Err(ApiError::new(ErrorKind::Refused, what, hint));
                }
            }
        }
        Ok(())
    }

    /// Opens what switches and NICs are added on, then the sockets of the NICs.
    fn prepare_net(&mut self, changes: &[Change], prepared: &mut Prepared) -> Result<(), ApiError> {
        prepared.hosts = self.open_hosts(changes)?;
        let removed = |change: &Change| match change {
            Change::RemoveNic { id } => self.plan.nic(id).map(|plan| plan.socket.clone()),
            Change::Remove { id } => self.plan.disk(id).map(|plan| plan.socket.clone()),
            _ => None,
        };
        let freed: Vec<String> = changes.iter().filter_map(removed).collect();
        for change in changes {
            let Change::AddNic(plan) = change else { continue };
            if freed.contains(&plan.socket) {
                let why = "waits until the device is gone whose socket it takes over".to_string();
                prepared.later.push((DevicePlan::Nic((**plan).clone()), why));
                continue;
            }
            let opened = self.open_nic_on((**plan).clone(), None).map_err(|why| {
                let what = format!("nic {:?} ({}): {why}", plan.id, plan.origin);
                let hint = "put that right and reload again; nothing was changed";
                ApiError::new(ErrorKind::Refused, what, hint)
            })?;
            prepared.opened.push(opened);
        }
        Ok(())
    }

    fn apply_change(&mut self, change: &Change, hosts: &mut Hosts) {
        match change {
            Change::SetClients { link } => self.set_link_clients(link),
            Change::Remove { id } => match self.number_of(id) {
                // It goes when its client has it no more.
                Some(number) if self.take_from_clients(number) => {}
                Some(number) => self.begin_removal(number, None),
                None => self.drop_shut(id),
            },
            // Done when all plans are in force.
            Change::Set { .. }
            | Change::AddGroup(_)
            | Change::SetGroup(_)
            | Change::RemoveGroup { .. } => {}
            Change::Resize { id, size_bytes } => {
                let Some(number) = self.number_of(id) else { return };
                if let Err(error) = self.begin_resize(number, Size(*size_bytes)) {
                    warn!(disk = id, "is not resized: {}; {}", error.error, error.hint);
                }
                self.touched.insert(number);
            }
            // Opened before, or shut until others are gone.
            Change::Add(_) => {}
            change => self.apply_net_change(change, hosts),
        }
    }

    /// Answers a reload when what took over from others is open, or cannot be, or takes too long.
    pub(crate) fn go_on_reloading(&mut self) {
        let Some(reloading) = self.reloading.take() else { return };
        let late = |shut: &&Shut| reloading.late.iter().any(|id| id == shut.plan.id());
        let waiting = self.shut.iter().filter(late).find(|shut| shut.retry.is_some());
        if waiting.is_some() && now() < reloading.answer_by {
            self.reloading = Some(reloading);
            return;
        }
        let failed = self.shut.iter().filter(late).find(|shut| shut.retry.is_none());
        let Reloading { done, reply, .. } = reloading;
        let answer = match (failed, waiting) {
            (Some(shut), _) => {
                let what =
                    format!("{} ({}): {}", shut.plan.name(), shut.plan.origin(), shut.problem);
                let hint = format!(
                    "put that right and reload again; it could be opened only after the others \
                     were changed: {}",
                    done.changes.join(", ")
                );
                Err(ApiError::new(ErrorKind::Refused, what, hint))
            }
            (None, Some(shut)) => {
                let what = format!("{} is not open yet: {}", shut.plan.name(), shut.problem);
                let hint = "everything else was done, and it is opened as soon as that can be; \
                            `sidecore ls` shows it";
                Err(ApiError::new(ErrorKind::Busy, what, hint))
            }
            (None, None) => Ok(done),
        };
        finish(reply, answer);
    }
}

/// Whether `new` needs what `old` has until it is gone.
fn takes_over(new: &DiskPlan, old: &DiskPlan) -> bool {
    new.socket == old.socket || is_same_image(&new.source, &old.source)
}

fn finish(reply: Option<Reply>, answer: Result<ReloadView, ApiError>) {
    match &answer {
        Ok(view) => info!(changes = ?view.changes, "read {} again", view.file),
        Err(error) => warn!("the reload: {}; {}", error.error, error.hint),
    }
    if let Some(reply) = reply {
        reply.answer(answer.map(Answer::Reloaded));
    }
}
