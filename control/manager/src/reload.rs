//! The configuration file, read again while running: what is different is done in order.
//!
//! What is to be added is opened before anything is changed, and one that does not open refuses the reload whole; so
//! does a guest that would lose by it. Only what has an image in common with a disk that goes is checked before and
//! opened afterwards: until then it stands among the disks that are not open (`opening::shut`), and if it cannot be
//! opened all the same, the disk before it is served again.
//!
//! | module | |
//! |---|---|
//! | `wanted` | the file read and compared, and judged |
//! | `additions` | whether what is added could be opened |
//! | `growing` | what devices that stay come to need |
//! | `effects` | what guests lose |
//! | `prepare` | opening, before anything is changed |
//! | `apply` | changing |
//! | `late` | what is opened afterwards, and what is served again |

use std::time::Instant;

use config::api::{Answer, ApiError, ErrorKind, NotOpenView, ReloadView};
use config::{Difference, Plan};
use control::mode::Mode;
use control::reload::{Next, Outcome, Reload};
use sidecore::{instant_of, nanos_of};
use tracing::{info, warn};

use crate::api::again::Lost;
use crate::api::{Listening, Reply};
use crate::calls::STOPPING;
use crate::calls::resizing::{self, Undone};
use crate::opening::shut::{Shut, ShutDevices};
use crate::options::Unread;
use crate::rooms::Rooms;
use apply::Applied;
use late::{Late, Restored, restore};
use wanted::Wanted;

mod additions;
mod apply;
mod effects;
mod growing;
mod late;
mod prepare;
mod wanted;

pub(crate) use wanted::check_file;

/// The reload that is under way after its changes, if one is.
#[derive(Default)]
pub(crate) struct Reloading(Reload<Late, Done>);

/// What a reload has done.
struct Done {
    view: ReloadView,
    /// What else was done when all of it is open, in words.
    reopened: Vec<String>,
    /// What could not be done though the rest was, in words.
    undone: Vec<String>,
    reply: Option<Reply>,
}

/// A reload that is to be answered, and what is to be served again.
struct Ended {
    failed: Vec<Late>,
    answer: Option<(Result<(), ApiError>, Done)>,
}

impl Reloading {
    /// When the answer is given at the latest.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.0.due_at().map(instant_of)
    }

    /// Whether its answer is waited for.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.is_asked()
    }

    /// Nobody is answered any more.
    pub(crate) fn forget(&mut self) {
        drop(self.0.end());
    }

    /// The daemon stops: nothing of it is opened or served again any more, and whoever asked is told.
    pub(crate) fn stop(&mut self) {
        if let Some(done) = self.0.end() {
            let hint = "the next one reads the file when it starts";
            finish(done.reply, Err(ApiError::new(ErrorKind::Busy, STOPPING, hint)));
        }
    }

    /// A disk has not got the size of its plan: the reload that waits for it is answered so.
    pub(crate) fn note(&mut self, undone: Undone) {
        if let Some(done) = self.0.not_resized(undone.device) {
            done.undone.push(undone.what);
        }
    }

    fn may_begin(&self, mode: Mode) -> Result<(), ApiError> {
        let busy = |error: &str, hint: &str| Err(ApiError::new(ErrorKind::Busy, error, hint));
        if mode.has_heir() {
            return busy(
                "another process is taking over, and reads the file itself",
                "ask again in a moment",
            );
        }
        if mode.is_stopping() {
            // Its devices go already, and none may come.
            return busy(STOPPING, "the next one reads the file when it starts");
        }
        if self.is_asked() {
            return busy(
                "the configuration file is being read again already",
                "try again in a moment",
            );
        }
        Ok(())
    }

    /// What a reload would do. Nothing is changed, and nothing is opened for good.
    ///
    /// # Errors
    /// Why it would be refused, whatever guests lose.
    pub(crate) fn dry(
        &self,
        mode: Mode,
        listening: &Listening,
        rooms: &mut Rooms,
    ) -> Result<ReloadView, ApiError> {
        self.may_begin(mode)?;
        let wanted = match (rooms.options.load)(&rooms.plan) {
            Ok(plan) => Wanted::of(plan, rooms)?,
            Err(Unread { refused, of_an_heir: Some(plan) }) => {
                return Ok(of_an_upgrade(rooms, refused, &plan));
            }
            Err(Unread { refused, .. }) => return Err(refused),
        };
        let mut effects = wanted.judge(rooms, false)?;
        let lost = listening.lost(&rooms.plan.daemon);
        effects.extend(lost.iter().map(effects::of_api));
        let lost = lost.iter().map(Lost::to_do);
        Ok(ReloadView {
            file: rooms.options.file.clone(),
            changes: lost
                .chain(wanted.changes.iter().map(|change| change.to_do().to_string()))
                .collect(),
            effects,
            restart_needed: wanted.restart_needed,
            not_open: not_open(&rooms.shut),
            dry_run: true,
            ..ReloadView::default()
        })
    }

    /// Reads the file and does what is different. Nothing is done when the file is wrong or one of its new disks cannot be
    /// opened. With `force` also where a guest loses by it.
    pub(crate) fn begin(
        &mut self,
        (reply, force): (Option<Reply>, bool),
        listening: &mut Listening,
        rooms: &mut Rooms,
        mode: Mode,
    ) {
        if let Err(refused) = self.may_begin(mode) {
            return finish(reply, Err(refused));
        }
        // Whatever the file says: nobody could ask for anything else.
        let Rooms { plan, turn, .. } = &mut *rooms;
        let (mut made, not_made) = listening.make_again(&plan.daemon, &mut turn.accounts);
        let prepared = match apply::prepare(force, rooms, mode) {
            Ok(prepared) => prepared,
            Err(refused) => return finish(reply, Err(refused)),
        };
        let Applied { mut late, removed, resizing, mut view, reopened, mut undone, until } =
            apply::apply(prepared, listening, rooms, mode);
        view.changes.splice(0..0, made.drain(..));
        undone.splice(0..0, not_made);
        let replaced = self.0.replace(|late| removed.contains(late.plan.id()));
        late.iter_mut().for_each(|late| late.come_for(&replaced));
        let numbers = resizing.iter().map(|(number, _)| *number).collect();
        self.0.begin(late, numbers, Done { view, reopened, undone, reply }, until);
        for (number, size) in resizing {
            let undone = resizing::to_plan(number, size, rooms);
            undone.into_iter().for_each(|undone| self.note(undone));
        }
    }

    /// Answers a reload that is over, and serves again what was there before what could not be opened.
    pub(crate) fn go_on(&mut self, rooms: &mut Rooms, mode: Mode) {
        if let Some(Ended { failed, answer }) = self.look(rooms) {
            let restored = restore(&failed, rooms, mode);
            answer
                .into_iter()
                .for_each(|(answer, done)| done.answer(answer, &restored, &rooms.shut));
        }
    }

    /// Looks whether what took over from others is open and what is resized has its size, or cannot be or have it, or
    /// takes too long.
    fn look(&mut self, rooms: &Rooms) -> Option<Ended> {
        let resizes = |number| {
            let device = rooms.devices.get(number).filter(|device| !device.is_going());
            device.is_some_and(|device| device.is_resizing())
        };
        // A resize is given up in time by whoever waits for its queues.
        let now = nanos_of(rooms.turn.now());
        let Next { failed, answer } = self.0.look(now, |late| late.stands(&rooms.shut), resizes)?;
        let answer = answer.map(|(outcome, mut done)| {
            let answer = self.answer(&outcome, &failed, &mut done, rooms);
            (answer, done)
        });
        Some(Ended { failed, answer })
    }

    fn answer(
        &self,
        outcome: &Outcome,
        failed: &[Late],
        done: &mut Done,
        rooms: &Rooms,
    ) -> Result<(), ApiError> {
        let undone = std::mem::take(&mut done.undone);
        let one = match outcome {
            Outcome::Done => {
                done.view.changes.append(&mut done.reopened);
                None
            }
            Outcome::Refused => failed.first(),
            Outcome::NotYet => self.0.late().first(),
        };
        let Some(shut) = one.and_then(|late| rooms.shut.named(late.plan.id())) else {
            if undone.is_empty() {
                return Ok(());
            }
            let hint = "everything else was done; put that right and reload again, which tries it once more";
            return Err(ApiError::new(ErrorKind::Refused, undone.join("; "), hint));
        };
        let (name, origin, problem) = (shut.plan().name(), shut.plan().origin(), shut.problem());
        if *outcome == Outcome::NotYet {
            let what = format!("{name} is not open yet: {problem}");
            let hint = "everything else was done, and it is opened as soon as that can be; \
                        `sidecore ls` shows it";
            return Err(ApiError::new(ErrorKind::Busy, all_of(what, undone), hint));
        }
        let what = format!("{name} ({origin}): {problem}");
        let others = match done.view.changes.is_empty() {
            true => String::new(),
            false => format!(": {}", done.view.changes.join(", ")),
        };
        let hint = format!(
            "put that right and reload again; it could be opened only after all else was done{others}"
        );
        Err(ApiError::new(ErrorKind::Refused, all_of(what, undone), hint))
    }
}

impl Done {
    /// Answers whoever asked.
    fn answer(self, answer: Result<(), ApiError>, restored: &Restored, shut: &ShutDevices) {
        let not_open = not_open(shut);
        let told = answer.map(|()| ReloadView { not_open, ..self.view });
        let told = told.map_err(|mut refused| {
            refused.hint += &restored.to_string();
            refused
        });
        finish(self.reply, told);
    }
}

/// What is planned and not open.
fn not_open(shut: &ShutDevices) -> Vec<NotOpenView> {
    let view = |shut: &Shut| NotOpenView {
        kind: shut.plan().kind().into(),
        id: shut.plan().id().to_string(),
        retried: shut.is_waiting(),
        problem: shut.told(),
    };
    shut.iter().map(view).collect()
}

/// What is different in a file that an heir takes, and no reload.
fn of_an_upgrade(rooms: &Rooms, refused: ApiError, plan: &Plan) -> ReloadView {
    let Difference { changes, restart_needed } = config::diff(&rooms.plan, plan);
    ReloadView {
        file: rooms.options.file.clone(),
        changes: changes.iter().map(|change| change.to_do().to_string()).collect(),
        restart_needed,
        not_open: not_open(&rooms.shut),
        dry_run: true,
        upgrade_needed: Some(refused.error),
        ..ReloadView::default()
    }
}

fn warn_of_restart(view: &ReloadView) {
    let ReloadView { restart_needed, file, .. } = view;
    if !restart_needed.is_empty() {
        let fields = restart_needed.join(", ");
        warn!(
            "different in {file}, and put into force by an upgrade (not `state_dir`, nor `api` and `api_read` \
             in place of others) or a restart: {fields}"
        );
    }
}

fn all_of(first: String, more: Vec<String>) -> String {
    std::iter::once(first).chain(more).collect::<Vec<_>>().join("; ")
}

fn finish(reply: Option<Reply>, answer: Result<ReloadView, ApiError>) {
    match &answer {
        Ok(view) => {
            info!(changes = ?view.changes, "read {} again", view.file);
            for NotOpenView { id, problem, .. } in &view.not_open {
                warn!(device = id, "is still not open: {problem}");
            }
        }
        Err(error) => warn!("the reload: {}; {}", error.in_a_line(), error.hint),
    }
    if let Some(reply) = reply {
        reply.answer_logged(answer.map(Answer::Reloaded));
    }
}

#[cfg(test)]
mod tests;
