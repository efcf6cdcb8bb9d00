//! What operators ask for: each call answered at once, or when the queues it concerns are back.

use std::time::Instant;

use config::NicSpec;
use config::api::{Answer, ApiError, Call, DiskList, ErrorKind, SidecoreList, VersionView};
use config::plan::DiskPlan;
use config::spec::{DiskMove, NicMove};
use control::moves::{Problems, Waited};
use sidecore::{Handle, Stay};
use tracing::{info, warn};

use crate::api::{Reply, Request};
use crate::calls::nics::{Addition, not_added};
use crate::calls::waiting::Next;
use crate::calls::{Answered, UNDONE, check_origin, not_kept};
use crate::defects::{found, late};
use crate::device::Device;
use crate::in_use::InUse;
use crate::kind::Kind;
use crate::manager::Manager;

use crate::network::travel::Begun;
use crate::remote::Remote;
use crate::rooms::Rooms;
use crate::sidecores::moves::NotMoved;
use crate::views;

impl Manager {
    /// Answers an operator.
    pub(crate) fn answer(&mut self, request: Request) {
        request.log_change();
        let (call, reply) = request.into_parts();
        self.links(Remote::note_heard);
        self.settle_before(&call);
        match call {
            Call::ListDisks => reply.answer(Ok(self.list())),
            Call::ShowDisk { id } => reply.answer(self.show(&id, true)),
            Call::ListSidecores => reply.answer(Ok(self.sidecores())),
            Call::ShowDaemon => reply.answer(Ok(self.daemon_view())),
            Call::Version => reply.answer(Ok(self.version())),
            Call::Reload { force } => self.reload(Some(reply), force),
            Call::ShowReload => {
                let view = self.reloading.dry(self.mode(), &mut self.rooms);
                reply.answer(view.map(Answer::Reloaded));
            }
            Call::Upgrade => self.begin_upgrade(reply),
            Call::AddDisk(spec) => self.add_when_open(spec, reply),
            Call::ChangeDisk { id, change } => {
                let answer = self.change(&id, &change);
                reply.answer(answer);
            }
            Call::ResizeDisk { id, resize, force } => self.resize(&id, &resize, force, reply),
            Call::RemoveDisk { id, force } => {
                let may = self.check_made_by_api(&id);
                match may.and_then(|()| in_use(&self.rooms).check_unused("disk", &id, force)) {
                    Ok(()) => self.remove(&id, reply),
                    Err(error) => reply.answer(Err(error)),
                }
            }
            Call::ClearDisk { id } => reply.answer(self.clear(&id)),
            Call::AcceptDisk { id } => reply.answer(self.accept_image(&id)),
            Call::MoveDisk { id, wish } => self.move_disk(&id, &wish, reply),
            Call::ListGroups
            | Call::ShowGroup { .. }
            | Call::AddGroup(_)
            | Call::ChangeGroup { .. }
            | Call::RemoveGroup { .. } => {
                let answer = self.answer_group(call);
                reply.answer(answer);
            }
            Call::ListLinks => reply.answer(Ok(self.rooms.show_links())),
            call => self.answer_net(call, reply),
        }
    }

    /// Has queues of a disk go elsewhere, or stay nowhere any more.
    fn move_disk(&mut self, id: &str, wish: &DiskMove, reply: Reply) {
        match self.rooms.move_queues(id, wish) {
            Ok(Some((device, moves))) => self.rooms.moves.wait(device, moves, reply),
            Ok(None) => reply.answer(self.show(id, true)),
            Err(error) => reply.answer(Err(error)),
        }
    }

    /// Moves a NIC. The operator is answered when it is where it was to be, or is not going there.
    fn move_nic(&mut self, id: &str, wish: &NicMove, reply: Reply) {
        match self.rooms.travel().ask(id, wish) {
            Ok(Begun::LetGo) => reply.answer(self.rooms.nic_views().show(id, true)),
            Ok(Begun::Goes(number, begun)) => {
                self.rooms.moves.wait(number, begun.into_iter().collect(), reply);
            }
            Err(error) => reply.answer(Err(error)),
        }
    }

    fn add_nic(&mut self, spec: &NicSpec) -> Answered {
        let added = Addition::begin(spec, &self.rooms.plan, &self.rooms.network)?;
        let plan = added.plan.clone();
        let id = plan.id.clone();
        let opened = added.open(&mut self.rooms);
        let served = opened.and_then(|device| self.serve_device(device));
        let number = served.map_err(|error| not_added(&id, &error))?;
        self.rooms.plan.nics.push(plan);
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            self.begin_removal(number, None);
            self.settle();
            return Err(not_kept(&error, UNDONE));
        }
        info!(nic = id, "added");
        self.rooms.nic_views().show(&id, true)
    }

    /// Answers those whose moves are all over.
    pub(crate) fn answer_moved(&mut self) {
        while let Some(Waited { device, problems, who: reply }) = self.rooms.moves.take_answerable()
        {
            let Some(device) = self.rooms.devices.get(device) else {
                reply.answer(Err(ApiError::new(ErrorKind::NotFound, "the device is gone", "")));
                continue;
            };
            let (id, is_nic) = (&device.facts.id, device.kind.nic().is_some());
            let answer = match not_moved(&problems) {
                None if is_nic => self.rooms.nic_views().show(id, true),
                None => self.show(id, true),
                Some(why) => {
                    let kind = if is_nic { "nic" } else { "disk" };
                    let error = format!("{kind} {id:?} was not moved: {why}");
                    let hint = "what stayed is served where it was; try again in a moment";
                    Err(ApiError::new(ErrorKind::Busy, error, hint))
                }
            };
            reply.answer(answer);
        }
    }

    /// The same for NICs and switches.
    fn answer_net(&mut self, call: Call, reply: Reply) {
        let answer = match call {
            Call::ListNics => Ok(self.rooms.nic_views().list()),
            Call::ShowNic { id } => self.rooms.nic_views().show(&id, true),
            Call::AddNic(spec) => self.add_nic(&spec),
            Call::ChangeNic { id, change } => {
                let changed = self.rooms.nic_calls().change(&id, &change);
                changed.and_then(|()| self.rooms.nic_views().show(&id, true))
            }
            Call::MoveNic { id, wish } => return self.move_nic(&id, &wish, reply),
            Call::SetLink { id, link } => {
                let set = self.rooms.nic_calls().set_link(&id, link);
                set.and_then(|()| self.rooms.nic_views().show(&id, true))
            }
            Call::ListSwitches => Ok(self.rooms.switch_calls().list()),
            Call::AddSwitch(spec) => self.rooms.switch_calls().add(&spec),
            Call::RemoveNic { id, force } => {
                let may = self.rooms.nic_calls().check_made_by_api(&id);
                match may.and_then(|()| in_use(&self.rooms).check_unused("nic", &id, force)) {
                    Ok(()) => return self.remove(&id, reply),
                    Err(error) => Err(error),
                }
            }
            Call::ShowSwitch { id } => return self.rooms.switch_calls().show(&id, reply),
            Call::RemoveSwitch { id } => return self.rooms.switch_calls().remove(&id, reply),
            // Answered before.
            _ => Err(ApiError::new(ErrorKind::Internal, "no answer to that", "")),
        };
        reply.answer(answer);
    }

    fn list(&self) -> Answer {
        let view = |plan: &DiskPlan| self.view(&plan.id, false);
        Answer::Disks(DiskList { disks: self.rooms.plan.disks.iter().filter_map(view).collect() })
    }

    pub(crate) fn show(&self, id: &str, queues: bool) -> Answered {
        let view = self.view(id, queues).ok_or_else(|| self.rooms.plan.no_such_disk(id))?;
        Ok(Answer::Disk(Box::new(view)))
    }

    fn view(&self, id: &str, queues: bool) -> Option<config::api::DiskView> {
        if let Some(device) =
            self.rooms.devices.number_of(id).and_then(|number| self.rooms.devices.get(number))
        {
            let now = self.rooms.turn.now();
            return device.kind.disk().map(|parts| views::disk(device, parts, (queues, now)));
        }
        let shut = self.rooms.shut.named(id)?;
        shut.plan().disk().map(|plan| views::shut(shut, plan))
    }

    /// A device as its kind is shown, without its queues.
    fn shown(&self, device: &Device) -> Answer {
        match &device.kind {
            Kind::Disk(parts) => {
                Answer::Disk(Box::new(views::disk(device, parts, (false, self.rooms.turn.now()))))
            }
            Kind::Nic(parts) => {
                Answer::Nic(Box::new(self.rooms.nic_views().view(device, parts, false)))
            }
        }
    }

    fn sidecores(&self) -> Answer {
        let view = |(index, core): (usize, &Handle)| {
            let lost = self.rooms.guests.lost(index);
            views::sidecore(index, &core.counters(), &self.rooms.cores, lost)
        };
        Answer::Sidecores(SidecoreList {
            sidecores: self.rooms.cores.handles().enumerate().map(view).collect(),
        })
    }

    fn version(&self) -> Answer {
        Answer::Version(VersionView {
            program: "sidecore".to_string(),
            version: self.rooms.options.version.to_string(),
            commit: self.rooms.options.commit.map(str::to_string),
            api: "v1".to_string(),
        })
    }

    fn remove(&mut self, id: &str, reply: Reply) {
        match self.rooms.devices.number_of(id) {
            None => {
                let is_nic = self.rooms.plan.nic(id).is_some();
                let answer = if is_nic {
                    self.rooms.nic_views().show(id, false)
                } else {
                    self.show(id, false)
                };
                if let Err(error) = self.keep_without(id) {
                    return reply.answer(Err(error));
                }
                self.drop_shut(id);
                reply.answer(answer);
            }
            Some(number) => match self.keep_without(id) {
                Ok(()) => self.begin_removal(number, Some(reply)),
                Err(error) => reply.answer(Err(error)),
            },
        }
    }

    /// Keeps that a device is planned no more, before it is removed, since that could not be taken back.
    ///
    /// # Errors
    /// It could not be kept, and is planned as before.
    fn keep_without(&mut self, id: &str) -> Result<(), ApiError> {
        let before = (self.rooms.plan.disks.clone(), self.rooms.plan.nics.clone());
        self.forget_plan(id);
        self.rooms.state.keep(&self.rooms.plan).map_err(|error| {
            (self.rooms.plan.disks, self.rooms.plan.nics) = before;
            not_kept(&error, UNDONE)
        })
    }

    /// Forgets a device that is not open.
    pub(crate) fn drop_shut(&mut self, id: &str) {
        self.rooms.shut.remove(id);
        self.forget_plan(id);
        self.rooms.unsynced.forget_gone(id, &self.rooms.plan);
    }

    /// Nothing is planned of that name any more.
    fn forget_plan(&mut self, id: &str) {
        self.rooms.plan.disks.retain(|plan| plan.id != id);
        self.rooms.plan.nics.retain(|plan| plan.id != id);
    }

    /// Closes a device's socket and front-ends; it is gone when its queues are back.
    pub(crate) fn begin_removal(&mut self, number: u32, reply: Option<Reply>) {
        let device = self.rooms.devices.get(number);
        let id = found!(self.rooms.turn.defects, device, "device to remove").facts.id.clone();
        self.forget_plan(&id);
        self.remove_device(number, reply);
    }

    /// The same of one of whose name another one may be planned.
    pub(crate) fn remove_device(&mut self, number: u32, reply: Option<Reply>) {
        // While the daemon stops it may go before a client has let go of it.
        let Some(device) = self.rooms.devices.get_mut(number) else { return late("device") };
        device.go();
        device.close_socket();
        let connections = device.connections.keys().copied().collect::<Vec<_>>();
        for connection in connections {
            self.front_ends().close(number, connection, "the device is removed");
        }
        self.rooms.waiting.remove(number, reply, &mut self.rooms.turn);
        self.rooms.turn.touch(number);
    }

    /// Every queue of a device that was held back is here: what waited for that is done.
    pub(crate) fn all_are_back(&mut self, number: u32) {
        let device = self.rooms.devices.get_mut(number);
        let device = found!(self.rooms.turn.defects, device, "device whose queues are all back");
        if device.are_back() {
            return self.is_gone(number);
        }
        if let Kind::Nic(nic) = &mut device.kind
            && nic.take_new_switch()
        {
            let (network, mut around) = self.rooms.network();
            network.plug_in_anew(number, &mut around);
        }
        if let Some(size) =
            self.rooms.devices.disk_mut(number).and_then(|disk| disk.resizing.take())
        {
            let answer = self.finish_resize(number, size);
            if let Err(error) = &answer {
                warn!("a resize was refused: {}", error.error);
                self.is_not_resized(number, size, &error.error);
            }
            self.rooms.waiting.resized(number, answer);
        }
        self.rooms.turn.touch(number);
    }

    /// Forgets a device that was removed and has no queue away.
    fn is_gone(&mut self, number: u32) {
        let (network, mut around) = self.rooms.network();
        if !network.unplug(number, &mut around) {
            return;
        }
        self.links(|remote, around| remote.release_remote(number, around));
        let mut device = found!(
            self.rooms.turn.defects,
            self.rooms.devices.remove(number),
            "device that is gone"
        );
        self.rooms.guests.forget(&mut device, self.rooms.turn.now());
        let (id, view) = (device.facts.id.clone(), self.shown(&device));
        info!(device = id, "removed");
        self.rooms.unsynced.forget_gone(&id, &self.rooms.plan);
        let is_closing = device.close_image(&mut self.rooms.openers, Some(number));
        // Its socket is free.
        self.rooms.shut.retry_all(self.rooms.turn.now());
        self.rooms.waiting.gone(number, &id, view, is_closing);
    }

    /// With the image of a device that was removed its locks have gone.
    pub(crate) fn image_is_closed(&mut self, number: u32) {
        self.rooms.shut.retry_all(self.rooms.turn.now());
        self.rooms.waiting.closed(number);
    }

    /// Goes on with calls that wait no longer: of whose disks' images it is known what became of them, or whose time is
    /// up.
    pub(crate) fn go_on_with_calls(&mut self, now: Instant) {
        loop {
            let Rooms { waiting, openers, .. } = &mut self.rooms;
            match waiting.next(now, |id| openers.has_answered(id)) {
                Some(Next::Add(spec, reply)) => self.add_now(&spec, reply),
                Some(Next::Overdue(device, reply)) => self.answer_overdue(device, reply),
                None => return,
            }
        }
    }

    /// Answers a call that waits for too long for a disk that does not answer. A removal goes on by itself; a resize is
    /// given up.
    fn answer_overdue(&mut self, number: u32, reply: Option<Reply>) {
        let device = self.rooms.devices.get(number);
        let device = found!(self.rooms.turn.defects, device, "device that is waited for");
        let (id, requests) = (device.facts.id.clone(), device.unanswered_requests());
        let answer = if device.is_going() {
            Ok(self.shown(device))
        } else {
            let waits = format!("waits for {}", views::unanswered(requests));
            let size = self.rooms.devices.disk_mut(number).and_then(|disk| disk.resizing.take());
            let why = format!("it {waits}");
            size.into_iter().for_each(|size| self.is_not_resized(number, size, &why));
            // Those of its queues that are back go on.
            self.rooms.turn.touch(number);
            let hint = "its size is as it was; try again when it answers";
            Err(ApiError::new(ErrorKind::Busy, format!("disk {id:?} {waits}"), hint))
        };
        warn!(device = id, "an operator waits for {}", views::unanswered(requests));
        reply.into_iter().for_each(|reply| reply.answer(answer.clone()));
    }

    pub(crate) fn check_made_by_api(&self, id: &str) -> Result<(), ApiError> {
        let plan = self.rooms.plan.disk(id).ok_or_else(|| self.rooms.plan.no_such_disk(id))?;
        check_origin(&format!("disk {id:?}"), &plan.origin)
    }
}

/// What did not move, and why; `None` when all did.
fn not_moved(problems: &Problems<Stay>) -> Option<String> {
    let text = |(queue, why): &(Option<u16>, NotMoved)| match queue {
        Some(queue) => format!("queue {queue}: {why}"),
        None => why.to_string(),
    };
    let texts: Vec<String> = problems.iter().map(text).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn in_use(rooms: &Rooms) -> InUse<'_> {
    InUse { devices: &rooms.devices, remote: &rooms.remote }
}
