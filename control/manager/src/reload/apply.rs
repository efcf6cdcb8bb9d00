//! A reload's changes, in their order: all of them in one event, since what differs was judged just before.
//!
//! Not here: what is waited for afterwards (`super`).

use std::time::Duration;

use config::api::{ApiError, ReloadView};
use config::{Change, Size};
use sidecore::nanos_of;
use tracing::warn;

use super::late::Late;
use super::prepare::Prepared;
use super::wanted::{Judged, Wanted};
use super::{Done, finish, warn_of_restart};
use crate::api::Reply;
use crate::manager::Manager;
use crate::network::reload::Hosts;
use crate::opening::shut::Shut;
use crate::poll::Token;
use crate::rights::given;
use crate::rooms::Rooms;

/// How long the answer waits for disks that take over from others.
const TAKE_OVER_TIME_MAX: Duration = Duration::from_secs(10);

impl Manager {
    /// Reads the file and does what is different. Nothing is done when the file is wrong or one of
    /// its new disks cannot be opened.
    /// With `force` also where a guest loses by it.
    pub(crate) fn reload(&mut self, reply: Option<Reply>, force: bool) {
        let prepared = self.reloading.may_begin(self.mode()).and_then(|()| self.prepare(force));
        match prepared {
            Ok((wanted, judged, prepared)) => self.apply(wanted, judged, prepared, reply),
            Err(refused) => finish(reply, Err(refused)),
        }
    }

    /// A signal asks for a reload.
    pub(crate) fn reload_on_signal(&mut self) {
        self.rooms.poll.clear_signals(Token::Reload);
        self.settle_for_good();
        // Nobody is there to insist.
        self.reload(None, false);
    }

    fn prepare(&mut self, force: bool) -> Result<(Wanted, Judged, Prepared), ApiError> {
        let mut wanted = Wanted::read(&mut self.rooms)?;
        let judged = wanted.judge(&mut self.rooms, !force)?;
        // What is opened is opened for who may have it then.
        let links = std::mem::take(&mut wanted.links);
        let before = std::mem::replace(&mut self.rooms.plan.links, links);
        let prepared = Prepared::open(&wanted, &judged.made, &mut self.rooms);
        let prepared = prepared.inspect_err(|_| self.rooms.plan.links = before)?;
        Ok((wanted, judged, prepared))
    }

    fn apply(
        &mut self,
        wanted: Wanted,
        judged: Judged,
        mut prepared: Prepared,
        reply: Option<Reply>,
    ) {
        let Wanted { plan: wanted, changes, restart_needed, .. } = wanted;
        let mut view = ReloadView {
            file: self.rooms.options.file.clone(),
            changes: Vec::new(),
            restart_needed,
            effects: judged.effects,
            dry_run: false,
        };
        prepared.take_sockets(&mut self.rooms.devices, &self.rooms.poll);
        for change in &changes {
            self.apply_change(change, &mut prepared.hosts);
            view.changes.push(change.to_string());
        }
        // Lines may have moved without any change.
        for plan in &wanted.disks {
            self.set_plan(plan.clone());
        }
        for plan in &wanted.switches {
            self.rooms.switch_calls().set_plan(plan.clone());
        }
        for plan in &wanted.nics {
            self.rooms.nic_calls().set_plan(plan.clone());
        }
        self.rooms.plan.disks = wanted.disks;
        self.rooms.plan.switches = wanted.switches;
        self.rooms.plan.nics = wanted.nics;
        self.rooms.plan.groups = wanted.groups;
        self.rooms.plan.sidecores.policies = wanted.sidecores.policies;
        self.rooms.plan.daemon.follow_rights(&wanted.daemon);
        self.rooms.services().set_changed(&changes);
        let Rooms { devices, plan, .. } = &mut self.rooms;
        let mut undone = given::apply(&changes, &mut self.listening, devices, plan);
        let late = self.serve_prepared(prepared, &mut view, &mut undone);
        warn_of_restart(&view);
        // From when its images were waited for.
        let until = nanos_of(self.rooms.turn.tick() + TAKE_OVER_TIME_MAX);
        let resizing = self.resizing(&changes);
        let numbers = resizing.iter().map(|(number, _)| *number).collect();
        self.reloading.0.begin(late, numbers, Done { view, undone, reply }, until);
        for (number, size) in resizing {
            self.resize_to_plan(number, size);
        }
    }

    /// The disks whose plans have other sizes now. One that is not open is opened with that size.
    fn resizing(&self, changes: &[Change]) -> Vec<(u32, Size)> {
        let resized = |change: &Change| match change {
            Change::Resize { id, size_bytes } => {
                self.rooms.devices.number_of(id).map(|number| (number, Size(*size_bytes)))
            }
            _ => None,
        };
        changes.iter().filter_map(resized).collect()
    }

    /// Gives a disk the size of its plan when its queues are back, which is waited for as for an operator.
    pub(crate) fn resize_to_plan(&mut self, number: u32, size: Size) {
        match self.begin_resize(number, size) {
            Ok(number) => self.rooms.waiting.resize(number, None, &mut self.rooms.turn),
            Err(error) => {
                warn!("a disk is not resized: {}; {}", error.error, error.hint);
                self.is_not_resized(number, size.0, &error.error);
            }
        }
        self.rooms.turn.touch(number);
    }

    /// Serves what was opened; what is opened later stands among what is not open until then.
    fn serve_prepared(
        &mut self,
        mut prepared: Prepared,
        done: &mut ReloadView,
        undone: &mut Vec<String>,
    ) -> Vec<Late> {
        for mut device in prepared.opened {
            prepared.hosts.wire(&mut device);
            let plan = device.kind.plan();
            // One that could not be opened before is open now.
            if self.rooms.shut.remove(plan.id()).is_some() {
                done.changes.push(format!("opened {}", plan.title()));
            }
            match self.serve_device(device) {
                // It listens where another one did that had no socket, or with the listener of the one before.
                Ok(number) => {
                    let put = self.rooms.devices.get_mut(number).map(given::put_or_show);
                    undone.extend(put.and_then(Result::err).map(|error| error.to_string()));
                    self.rooms.turn.touch(number);
                }
                Err(error) => {
                    warn!(device = plan.id(), "cannot be served: {error}");
                    undone.push(format!("{} cannot be served: {error}", plan.name()));
                    self.rooms.shut.insert(Shut::failed(plan, error.to_string()));
                }
            }
        }
        for (plan, why) in prepared.still_shut {
            done.changes.push(format!("{} still cannot be opened: {why}", plan.title()));
            self.rooms.shut.insert(Shut::failed(plan, why.to_string()));
        }
        for Late { plan, why, .. } in &prepared.later {
            self.rooms.shut.insert(Shut::waiting(plan.clone(), why.clone(), self.rooms.turn.now()));
        }
        prepared.hosts.give_back(&self.rooms.network);
        prepared.later
    }

    fn apply_change(&mut self, change: &Change, hosts: &mut Hosts) {
        match change {
            Change::SetClients { link } => {
                self.links(|remote, around| remote.set_link_clients(link, around));
                // Ports that waited for the right to have them.
                self.rooms.network.hasten(self.rooms.turn.now());
            }
            Change::Remove { id } => match self.rooms.devices.number_of(id) {
                // It goes when its client has it no more.
                Some(number)
                    if self.links(|remote, around| remote.take_from_clients(number, around)) => {}
                Some(number) => self.begin_removal(number, None),
                None => self.drop_shut(id),
            },
            Change::RemoveNic { id } => match self.rooms.devices.number_of(id) {
                Some(number) => self.begin_removal(number, None),
                None => self.drop_shut(id),
            },
            Change::SetNic(plan) => self.rooms.nic_calls().follow(plan),
            // Done when all plans are in force.
            Change::Set(_)
            | Change::SetRights { .. }
            | Change::SetApiRights
            | Change::AddGroup(_)
            | Change::SetGroup(_)
            | Change::RemoveGroup { .. }
            | Change::Resize { .. } => {}
            // Opened before, or shut until others are gone.
            Change::Add(_) => {}
            change => self.rooms.switch_calls().apply(change, hosts),
        }
    }

    /// Answers a reload that is over, and serves again what was there before what could not be opened.
    pub(crate) fn go_on_reloading(&mut self) {
        let Some(ended) = self.reloading.look(&self.rooms) else { return };
        let restored = self.restore(ended.failed());
        ended.answer(&restored);
    }
}
