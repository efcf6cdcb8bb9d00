//! The configuration file, read again while running: what is different is done in order.
//!
//! What is to be added is opened before anything is changed (`reload_open`), and one that does not open refuses the
//! reload whole; so does a guest that would lose by it (`effects`). Only what has an image in common with a disk that
//! goes is checked before and opened afterwards: until then it stands among the disks that are not open (`shut`), and
//! if it cannot be opened all the same, the disk before it is served again.

use std::time::{Duration, Instant};

use config::api::{Answer, ApiError, ErrorKind, ReloadView};
use config::{Change, Plan, Size};
use tracing::{info, warn};

use crate::api::Reply;
use crate::defects::found;
use crate::effects::{refuse_beyond, refuse_losses, say_made, say_refused};
use crate::manager::Manager;
use crate::network::reload::Hosts;
use crate::opening::shut::Shut;
use crate::poll::Token;
use crate::reload_open::{Late, Prepared};
use crate::remote::party::check_key;
use crate::rights::given;
use crate::rooms::Rooms;

/// How long the answer waits for disks that take over from others.
const TAKE_OVER_TIME_MAX: Duration = Duration::from_secs(10);

/// A reload that waits for disks that take over from others, and for those that are resized.
pub(crate) struct Reloading {
    late: Vec<Late>,
    /// Disks that get another size when their queues are back.
    resizing: Vec<u32>,
    /// What could not be done though the rest was, in words.
    undone: Vec<String>,
    done: ReloadView,
    reply: Option<Reply>,
    /// Nothing: it is answered, and what is not open yet is still to be opened or restored.
    answer_by: Option<Instant>,
}

impl Reloading {
    /// When the answer is given at the latest.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.answer_by
    }

    /// Whether its answer is waited for.
    pub(crate) fn is_asked(&self) -> bool {
        self.answer_by.is_some()
    }

    fn warn_of_restart(&self) {
        let ReloadView { restart_needed, file, .. } = &self.done;
        if !restart_needed.is_empty() {
            let fields = restart_needed.join(", ");
            warn!(
                "different in {file}, and put into force by an upgrade (not `api`, `api_read` and `state_dir`) or a \
                 restart: {fields}"
            );
        }
    }
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
    /// With `force` also where a guest loses by it.
    pub(crate) fn reload(&mut self, reply: Option<Reply>, force: bool) {
        match self.may_reload().and_then(|()| self.begin_reload(force)) {
            Ok(()) => {
                let begun = self.reloading.as_mut();
                let begun = found!(self.rooms.turn.defects, begun, "reload that has begun");
                begun.reply = reply;
                begun.warn_of_restart();
                // A disk without queues is gone at once, and nothing would wake us for that.
                self.settle();
                self.open_shut();
                self.go_on_reloading();
            }
            Err(error) => finish(reply, Err(error)),
        }
    }

    /// A signal asks for a reload.
    pub(crate) fn reload_on_signal(&mut self) {
        self.rooms.poll.clear_signals(Token::Reload);
        self.settle_for_good();
        // Nobody is there to insist.
        self.reload(None, false);
    }

    fn may_reload(&self) -> Result<(), ApiError> {
        let busy = |error: &str, hint: &str| Err(ApiError::new(ErrorKind::Busy, error, hint));
        match (self.succession.upgrade(), &self.reloading) {
            (Some(_), _) => busy(
                "another process is taking over, and reads the file itself",
                "ask again in a moment",
            ),
            (None, Some(reloading)) if reloading.is_asked() => {
                busy("the configuration file is being read again already", "try again in a moment")
            }
            (None, _) => Ok(()),
        }
    }

    /// What a reload would do. Nothing is changed, and nothing is opened for good.
    ///
    /// # Errors
    /// Why it would be refused, whatever guests lose.
    pub(crate) fn reload_dry(&mut self) -> Result<ReloadView, ApiError> {
        self.may_reload()?;
        let wanted = (self.rooms.options.load)(&self.rooms.plan)?;
        let mut difference = config::diff(&self.rooms.plan, &wanted);
        self.add_reopenings(&mut difference.changes, &wanted);
        check_links(&self.rooms.plan, &wanted)?;
        given::check(&difference.changes, &wanted, &self.rooms.devices)?;
        let links = config::links_after(&self.rooms.plan, &wanted);
        self.check_exports(&difference.changes, &self.rooms.plan.links, &links)?;
        let beyond = self.check_resizes(&difference.changes)?;
        let made = self.check_additions(&difference.changes)?;
        let effects = self.effects(&difference.changes, &wanted, &self.rooms.plan.links);
        Ok(ReloadView {
            file: self.rooms.options.file.clone(),
            changes: difference.changes.iter().map(ToString::to_string).collect(),
            effects: say_refused(say_made(effects, &made), &beyond),
            restart_needed: difference.restart_needed,
            dry_run: true,
        })
    }

    /// That what is new in the file could be opened, as at a reload: an heir opens it when there is no way back. Where
    /// it puts something into force that no reload does, or knows words that this program does not, it is judged there.
    ///
    /// # Errors
    /// What a reload would be refused for.
    pub(crate) fn check_file(&mut self) -> Result<(), ApiError> {
        let Ok(wanted) = (self.rooms.options.load)(&self.rooms.plan) else { return Ok(()) };
        let difference = config::diff(&self.rooms.plan, &wanted);
        if !difference.restart_needed.is_empty() {
            return Ok(());
        }
        let checked = self.check_resizes(&difference.changes).map(drop);
        checked.and_then(|()| self.check_additions(&difference.changes)).map_err(|why| {
            let error = format!("the daemon was not replaced: {}", why.error);
            ApiError::new(why.kind, error, "correct the file, or put it back; it goes on as it is")
        })?;
        Ok(())
    }

    /// Disks that are no different, and are to be opened anew.
    fn add_reopenings(&mut self, changes: &mut Vec<Change>, wanted: &Plan) {
        let goes = |id: &String, changes: &[Change]| {
            changes.iter().any(|change| matches!(change, Change::Remove { id: gone } if gone == id))
        };
        let anew = self.rooms.images().opened_anew(wanted);
        for pair in anew.chunks_exact(2) {
            let [Change::Remove { id }, _] = pair else {
                return self.rooms.turn.defects.note("disk that goes and is opened anew");
            };
            if !goes(id, changes) {
                changes.extend(pair.iter().cloned());
            }
        }
    }

    fn begin_reload(&mut self, force: bool) -> Result<(), ApiError> {
        let wanted = (self.rooms.options.load)(&self.rooms.plan)?;
        let mut difference = config::diff(&self.rooms.plan, &wanted);
        self.add_reopenings(&mut difference.changes, &wanted);
        check_links(&self.rooms.plan, &wanted)?;
        given::check(&difference.changes, &wanted, &self.rooms.devices)?;
        let links = config::links_after(&self.rooms.plan, &wanted);
        self.check_exports(&difference.changes, &self.rooms.plan.links, &links)?;
        let beyond = self.check_resizes(&difference.changes)?;
        if !force {
            refuse_beyond(&beyond)?;
        }
        let effects = self.effects(&difference.changes, &wanted, &self.rooms.plan.links);
        // First, since what is opened may be made by that.
        let made = self.check_additions(&difference.changes)?;
        let effects = say_refused(say_made(effects, &made), &beyond);
        if !force {
            refuse_losses(&effects)?;
        }
        // What is opened is opened for who may have it then.
        let before = std::mem::replace(&mut self.rooms.plan.links, links);
        let prepared = self.prepare(&difference.changes, &wanted, &made);
        let mut prepared = prepared.inspect_err(|_| self.rooms.plan.links = before)?;
        let mut done = ReloadView {
            file: self.rooms.options.file.clone(),
            changes: Vec::new(),
            restart_needed: difference.restart_needed,
            effects,
            dry_run: false,
        };
        self.pass_sockets_on(&mut prepared);
        for change in &difference.changes {
            self.apply_change(change, &mut prepared.hosts);
            done.changes.push(change.to_string());
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
        self.rooms.services().set_changed(&difference.changes);
        let Rooms { devices, plan, .. } = &mut self.rooms;
        let mut undone = given::apply(&difference.changes, &mut self.listening, devices, plan);
        let late = self.serve_prepared(prepared, &mut done, &mut undone);
        // From when its images were waited for.
        let answer_by = Some(self.rooms.turn.tick() + TAKE_OVER_TIME_MAX);
        self.reloading =
            Some(Reloading { late, resizing: Vec::new(), undone, done, reply: None, answer_by });
        self.begin_resizes(&difference.changes);
        Ok(())
    }

    /// Begins to resize the disks whose plans have other sizes now.
    fn begin_resizes(&mut self, changes: &[Change]) {
        for change in changes {
            let Change::Resize { id, size_bytes } = change else { continue };
            // One that is not open is opened with that size.
            let Some(number) = self.rooms.devices.number_of(id) else { continue };
            let begun = self.reloading.as_mut();
            found!(self.rooms.turn.defects, begun, "reload that has begun").resizing.push(number);
            self.resize_to_plan(number, Size(*size_bytes));
        }
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

    /// A disk has not got the size of its plan: the reload that waits for it is answered so.
    pub(crate) fn is_undone(&mut self, number: u32, what: String) {
        let reloading = self.reloading.as_mut();
        if let Some(reloading) = reloading.filter(|it| it.resizing.contains(&number)) {
            reloading.undone.push(what);
        }
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
            change => self.apply_net_change(change, hosts),
        }
    }

    /// Answers a reload when what took over from others is open and what is resized has its size, or cannot be or have
    /// it, or takes too long.
    pub(crate) fn go_on_reloading(&mut self) {
        let Some(reloading) = self.reloading.take() else { return };
        let late = |shut: &&Shut| reloading.late.iter().any(|late| late.is(shut));
        let waiting = self.rooms.shut.iter().filter(late).find(|shut| shut.is_waiting());
        let is_resizing = |number: &u32| {
            let device = self.rooms.devices.get(*number).filter(|device| !device.is_going());
            device.is_some_and(|device| device.kind.is_resizing())
        };
        // A resize is given up in time by whoever waits for its queues (`answer_overdue`).
        let resizes = reloading.resizing.iter().any(is_resizing);
        let has_time = reloading.answer_by.is_some_and(|by| self.rooms.turn.now() < by);
        if resizes || waiting.is_some() && has_time {
            self.reloading = Some(reloading);
            return;
        }
        let failed = self.rooms.shut.iter().filter(late).find(|shut| !shut.is_waiting()).cloned();
        let waiting = waiting.cloned();
        let Reloading { done, reply, late, undone, answer_by, .. } = reloading;
        let late = self.keep_waiting(late);
        if answer_by.is_none() {
            self.restore(&late);
            return;
        }
        let answer = match (failed, waiting) {
            (Some(shut), _) => Err(self.refuse_late(&shut, &late, undone, &done)),
            (None, Some(shut)) => {
                let what = format!("{} is not open yet: {}", shut.plan().name(), shut.problem());
                let hint = "everything else was done, and it is opened as soon as that can be; \
                            `sidecore ls` shows it";
                Err(ApiError::new(ErrorKind::Busy, all_of(what, undone), hint))
            }
            (None, None) if undone.is_empty() => Ok(done),
            (None, None) => {
                let hint = "everything else was done; put that right and reload again, which tries it once more";
                Err(ApiError::new(ErrorKind::Refused, undone.join("; "), hint))
            }
        };
        finish(reply, answer);
    }

    /// Goes on waiting for what is not open yet: it may still turn out that one of them cannot be opened. Gives the
    /// others.
    fn keep_waiting(&mut self, late: Vec<Late>) -> Vec<Late> {
        let is_waiting =
            |late: &Late| self.rooms.shut.iter().any(|shut| late.is(shut) && shut.is_waiting());
        let (late, over): (Vec<Late>, Vec<Late>) = late.into_iter().partition(is_waiting);
        if !late.is_empty() {
            let (resizing, undone, done) = (Vec::new(), Vec::new(), ReloadView::default());
            self.reloading =
                Some(Reloading { late, resizing, undone, done, reply: None, answer_by: None });
        }
        over
    }

    fn refuse_late(
        &mut self,
        shut: &Shut,
        late: &[Late],
        undone: Vec<String>,
        done: &ReloadView,
    ) -> ApiError {
        let what = format!("{} ({}): {}", shut.plan().name(), shut.plan().origin(), shut.problem());
        let restored = self.restore(late);
        let others = match done.changes.is_empty() {
            true => String::new(),
            false => format!(": {}", done.changes.join(", ")),
        };
        let hint = format!(
            "put that right and reload again; it could be opened only after all else was done{others}{restored}"
        );
        ApiError::new(ErrorKind::Refused, all_of(what, undone), hint)
    }
}

fn all_of(first: String, more: Vec<String>) -> String {
    std::iter::once(first).chain(more).collect::<Vec<_>>().join("; ")
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
