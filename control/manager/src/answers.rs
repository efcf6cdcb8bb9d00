//! What operators ask for: each call answered at once, or when the queues it concerns are back.

use std::time::{Duration, Instant};

use config::api::{Answer, ApiError, Call, DiskList, ErrorKind, SidecoreList, VersionView};
use config::plan::{DiskPlan, Origin};
use config::spec::{DiskChange, DiskResize};
use config::{DiskSpec, Size};
use tracing::{info, warn};

use crate::api::{Reply, Request};
use crate::manager::{Manager, Waiting, now};
use crate::shut::{NotOpen, Shut};
use crate::views;

/// How long a call waits for queues that do not come back; less than the API's own patience.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

type Answered = Result<Answer, ApiError>;

impl Manager {
    /// Answers an operator.
    pub(crate) fn answer(&mut self, request: Request) {
        let (call, reply) = request.into_parts();
        match call {
            Call::ListDisks => reply.answer(Ok(self.list())),
            Call::ShowDisk { id } => reply.answer(self.show(&id, true)),
            Call::ListSidecores => reply.answer(Ok(self.sidecores())),
            Call::Version => reply.answer(Ok(self.version())),
            Call::Reload => self.reload(Some(reply)),
            Call::AddDisk(spec) => {
                let answer = self.add(&spec);
                reply.answer(answer);
            }
            Call::ChangeDisk { id, change } => {
                let answer = self.change(&id, &change);
                reply.answer(answer);
            }
            Call::ResizeDisk { id, resize } => self.resize(&id, &resize, reply),
            Call::RemoveDisk { id } => self.remove(&id, reply),
            Call::ClearDisk { id } => reply.answer(self.clear(&id)),
        }
    }

    fn list(&self) -> Answer {
        let view = |plan: &DiskPlan| self.view(&plan.id, false);
        Answer::Disks(DiskList { disks: self.plan.disks.iter().filter_map(view).collect() })
    }

    pub(crate) fn show(&self, id: &str, queues: bool) -> Answered {
        let view = self.view(id, queues).ok_or_else(|| ApiError::no_such_disk(id))?;
        Ok(Answer::Disk(Box::new(view)))
    }

    fn view(&self, id: &str, queues: bool) -> Option<config::api::DiskView> {
        match self.number_of(id).and_then(|number| self.devices.get(&number)) {
            Some(device) => Some(views::disk(device, queues)),
            None => self.shut.iter().find(|shut| shut.plan.id == id).map(views::shut),
        }
    }

    fn sidecores(&self) -> Answer {
        let view = |(index, core)| views::sidecore(index as u16, core);
        Answer::Sidecores(SidecoreList {
            sidecores: self.cores.all.iter().enumerate().map(view).collect(),
        })
    }

    fn version(&self) -> Answer {
        Answer::Version(VersionView {
            program: "sidecore".to_string(),
            version: self.options.version.to_string(),
            api: "v1".to_string(),
        })
    }

    fn add(&mut self, spec: &DiskSpec) -> Answered {
        let plan = self.plan.disk_from_api(spec)?;
        let id = plan.id.clone();
        let refused = |error: NotOpen| {
            let hint = "put that right, or name another image or socket";
            ApiError::new(ErrorKind::Refused, format!("disk {id:?}: {error}"), hint)
        };
        match self.open_device(plan.clone()) {
            Ok(device) => {
                self.serve_device(device).map_err(refused)?;
            }
            Err(NotOpen::Ended(why)) => self.shut.push(Shut::waiting(plan.clone(), why, now())),
            Err(error) => return Err(refused(error)),
        }
        self.plan.disks.push(plan);
        if let Err(error) = self.keep() {
            match self.number_of(&id) {
                Some(number) => self.begin_removal(number, None),
                None => self.drop_shut(&id),
            }
            self.settle();
            return Err(not_kept(&error, UNDONE));
        }
        info!(disk = id, "added");
        self.show(&id, true)
    }

    fn change(&mut self, id: &str, change: &DiskChange) -> Answered {
        self.check_made_by_api(id)?;
        let default = self.plan.sidecores.policy;
        let before = self.plan.disk(id).cloned().ok_or_else(|| ApiError::no_such_disk(id))?;
        let mut after = before.clone();
        if let Some(share) = change.share {
            (after.share, after.spec.share) = (share, share);
        }
        if let Some(policy) = change.policy {
            after.spec.policy = Some(policy);
        }
        after.policy = after.spec.policy.unwrap_or(default);
        let (share, policy) = (after.share, after.policy);
        self.set_plan(after);
        if let Err(error) = self.keep() {
            self.set_plan(before);
            return Err(not_kept(&error, UNDONE));
        }
        if let Some(number) = self.number_of(id) {
            self.restart(number);
        }
        info!(disk = id, share, %policy, "set");
        self.show(id, true)
    }

    fn resize(&mut self, id: &str, resize: &DiskResize, reply: Reply) {
        let begun = self.made_by_api(id).and_then(|number| self.begin_resize(number, resize.size));
        match begun {
            Ok(number) => {
                self.wait_for(number, Some(reply));
                self.touched.insert(number);
            }
            Err(error) => reply.answer(Err(error)),
        }
    }

    /// Notes a new size; it is given when the queues are back.
    pub(crate) fn begin_resize(&mut self, number: u32, size: Size) -> Result<u32, ApiError> {
        let Some(device) = self.devices.get_mut(&number) else {
            return Err(ApiError::new(ErrorKind::NotFound, "there is no such disk", ""));
        };
        if device.resizing.is_some() {
            let hint = "try again in a moment";
            return Err(ApiError::new(ErrorKind::Busy, "it is being resized already", hint));
        }
        if size.0 == 0 || !size.0.is_multiple_of(512) {
            let error = format!("a size of {} bytes is not whole sectors", size.0);
            let hint = "give a multiple of 512 bytes, such as 10G";
            return Err(ApiError::new(ErrorKind::Refused, error, hint));
        }
        device.resizing = Some(size.0);
        Ok(number)
    }

    fn remove(&mut self, id: &str, reply: Reply) {
        match self.check_made_by_api(id).map(|()| self.number_of(id)) {
            Ok(None) => {
                let answer = self.show(id, false);
                self.drop_shut(id);
                let kept = self.keep().map_err(|error| not_kept(&error, UNTIL_RESTART));
                reply.answer(kept.and(answer));
            }
            Ok(Some(number)) => {
                self.begin_removal(number, Some(reply));
                if let Err(error) = self.keep() {
                    warn!(disk = id, %error, "it is removed, but that could not be kept");
                }
            }
            Err(error) => reply.answer(Err(error)),
        }
    }

    /// Forgets a disk that is not open.
    pub(crate) fn drop_shut(&mut self, id: &str) {
        self.shut.retain(|shut| shut.plan.id != id);
        self.plan.disks.retain(|plan| plan.id != id);
        self.forget_unsynced(id);
    }

    /// Closes a device's socket and front-ends; it is gone when its queues are back.
    pub(crate) fn begin_removal(&mut self, number: u32, reply: Option<Reply>) {
        let Some(device) = self.devices.get_mut(&number) else { return };
        device.removing = true;
        device.close_socket();
        let (id, links) =
            (device.plan.id.clone(), device.links.keys().copied().collect::<Vec<_>>());
        self.plan.disks.retain(|plan| plan.id != id);
        for link in links {
            self.close_link(number, link, "the disk is removed");
        }
        self.wait_for(number, reply);
        self.touched.insert(number);
    }

    /// Every queue of a device that was held back is here: what waited for that is done.
    pub(crate) fn all_are_back(&mut self, number: u32) {
        let Some(device) = self.devices.get_mut(&number) else { return };
        device.restarting = false;
        if device.removing {
            let view = views::disk(device, false);
            if self.devices.remove(&number).is_some_and(|device| device.resizing.is_some()) {
                self.answer_waiting(number, Err(ApiError::no_such_disk(&view.id)));
            }
            info!(disk = view.id, "removed");
            self.forget_unsynced(&view.id);
            self.retry_shut();
            return self.answer_waiting(number, Ok(Answer::Disk(Box::new(view))));
        }
        if let Some(size) = device.resizing.take() {
            let answer = self.finish_resize(number, size);
            if let Err(error) = &answer {
                warn!("a resize was refused: {}", error.error);
            }
            self.answer_waiting(number, answer);
        }
        self.touched.insert(number);
    }

    fn wait_for(&mut self, device: u32, reply: Option<Reply>) {
        let answer_by = now() + ANSWER_TIME_MAX;
        self.waiting.push(Waiting { device, reply, answer_by });
    }

    /// Answers calls that wait for too long for a disk that does not answer. A removal goes on by
    /// itself; a resize is given up.
    pub(crate) fn answer_overdue(&mut self, now: Instant) {
        while let Some(at) = self.waiting.iter().position(|waiting| waiting.answer_by <= now) {
            let Waiting { device, reply, .. } = self.waiting.remove(at);
            let Some(device) = self.devices.get_mut(&device) else { continue };
            let (id, requests) = (device.plan.id.clone(), device.unanswered_requests());
            let answer = if device.removing {
                Ok(Answer::Disk(Box::new(views::disk(device, false))))
            } else {
                device.resizing = None;
                let error = format!("disk {id:?} waits for {}", views::unanswered(requests));
                let hint = "its size is as it was; try again when it answers";
                Err(ApiError::new(ErrorKind::Busy, error, hint))
            };
            warn!(disk = id, "an operator waits for {}", views::unanswered(requests));
            if let Some(reply) = reply {
                reply.answer(answer);
            }
        }
    }

    /// Answers who has waited longest for this device, if somebody does.
    fn answer_waiting(&mut self, number: u32, answer: Answered) {
        let at = self.waiting.iter().position(|waiting| waiting.device == number);
        if let Some(reply) = at.and_then(|at| self.waiting.remove(at).reply) {
            reply.answer(answer);
        }
    }

    fn finish_resize(&mut self, number: u32, size: u64) -> Answered {
        let Some(device) = self.devices.get_mut(&number) else {
            return Err(ApiError::new(ErrorKind::NotFound, "the disk is gone", ""));
        };
        let id = device.plan.id.clone();
        backend::Disk::resize(&mut device.disk, size).map_err(|error| {
            let hint = "the disk is as it was";
            ApiError::new(ErrorKind::Refused, format!("disk {id:?}: {error}"), hint)
        })?;
        device.live.set_capacity(device.disk.size_bytes());
        let mut plan = device.plan.clone();
        plan.resized(size);
        for link in device.links.values_mut() {
            let told = link.session.config_changed().map(|bytes| link.front_end.tell(bytes));
            if let Some(Err(error)) = told {
                warn!(disk = id, %error, "its front-end could not be told of the new size");
            }
        }
        let origin = plan.origin.clone();
        self.set_plan(plan);
        info!(disk = id, size, "resized");
        if origin == Origin::Api {
            self.keep().map_err(|error| not_kept(&error, UNTIL_RESTART))?;
        }
        self.show(&id, true)
    }

    /// Has the device's queues start anew, with what its plan says now.
    pub(crate) fn restart(&mut self, number: u32) {
        if let Some(device) = self.devices.get_mut(&number) {
            device.restarting = true;
            self.touched.insert(number);
        }
    }

    /// The device of that name, which is to be changed through the API and open.
    fn made_by_api(&self, id: &str) -> Result<u32, ApiError> {
        self.check_made_by_api(id)?;
        self.number_of(id).ok_or_else(|| {
            let hint = "`sidecore show` says why; remove it, or put that right";
            ApiError::new(ErrorKind::Refused, format!("disk {id:?} is not open"), hint)
        })
    }

    fn check_made_by_api(&self, id: &str) -> Result<(), ApiError> {
        let plan = self.plan.disk(id).ok_or_else(|| ApiError::no_such_disk(id))?;
        match &plan.origin {
            Origin::File { file, line } => Err(ApiError::new(
                ErrorKind::Conflict,
                format!("disk {id:?} is declared in {file}, line {line}"),
                "change it there, then run `sidecore reload`",
            )),
            Origin::Api => Ok(()),
        }
    }

    pub(crate) fn number_of(&self, id: &str) -> Option<u32> {
        let named = |device: &&crate::device::Device| device.plan.id == id && !device.removing;
        self.devices.values().find(named).map(|device| device.number)
    }

    /// Puts another plan in the place of the disk's of that name.
    pub(crate) fn set_plan(&mut self, plan: DiskPlan) {
        if let Some(device) =
            self.number_of(&plan.id).and_then(|number| self.devices.get_mut(&number))
        {
            device.plan.clone_from(&plan);
        }
        if let Some(shut) = self.shut_disk(&plan.id) {
            shut.plan.clone_from(&plan);
        }
        if let Some(mine) = self.plan.disks.iter_mut().find(|mine| mine.id == plan.id) {
            *mine = plan;
        }
    }
}

/// What to do when a change was taken back.
const UNDONE: &str = "nothing was changed; make the state directory writable";
/// What to do when a change could not be taken back.
const UNTIL_RESTART: &str = "it holds until the daemon is started again; make the state directory \
                             writable, then make any change of a disk, which keeps all of them";

fn not_kept(error: &std::io::Error, hint: &str) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("the change cannot be kept: {error}"), hint)
}
