//! The configuration file, read again while running: what is different is done in order.
//!
//! Additions wait until what is removed is gone, because they may be for the same image or socket.

use std::collections::VecDeque;

use config::api::{Answer, ApiError, ErrorKind, ReloadView};
use config::{Change, Plan, Size};
use tracing::{info, warn};

use crate::api::Reply;
use crate::manager::Manager;

/// A reload under way.
pub(crate) struct Reloading {
    changes: VecDeque<Change>,
    done: ReloadView,
    wanted: Plan,
    reply: Option<Reply>,
}

impl Manager {
    /// Reads the file and begins to do what is different. Nothing is done when the file is wrong.
    pub(crate) fn reload(&mut self, reply: Option<Reply>) {
        if self.reloading.is_some() {
            let error = "the configuration file is being read again already";
            let error = ApiError::new(ErrorKind::Busy, error, "try again in a moment");
            return finish(reply, Err(error));
        }
        match (self.options.load)(&self.plan) {
            Ok(wanted) => {
                let difference = config::diff(&self.plan, &wanted);
                let done = ReloadView {
                    file: self.options.file.clone(),
                    changes: Vec::new(),
                    restart_needed: difference.restart_needed,
                };
                let changes = difference.changes.into();
                self.reloading = Some(Reloading { changes, done, wanted, reply });
            }
            Err(error) => finish(reply, Err(error)),
        }
    }

    /// Does what can be done now. An addition that fails ends the reload; what stands before it was
    /// done, and the answer says so.
    pub(crate) fn go_on_reloading(&mut self) {
        let Some(mut reloading) = self.reloading.take() else { return };
        while let Some(change) = reloading.changes.pop_front() {
            if self.waits_for_a_removal(&change) {
                // A disk without queues is gone at once, and nothing would wake us for that.
                self.settle();
            }
            if self.waits_for_a_removal(&change) {
                reloading.changes.push_front(change);
                self.reloading = Some(reloading);
                return;
            }
            if let Err(error) = self.apply_change(&change) {
                let done = match reloading.done.changes.as_slice() {
                    [] => "nothing was changed".to_string(),
                    changes => format!("before it: {}", changes.join(", ")),
                };
                let hint = format!("{}; {done}", error.hint);
                self.settle();
                return finish(reloading.reply, Err(ApiError { hint, ..error }));
            }
            reloading.done.changes.push(change.to_string());
        }
        // Lines may have moved without any change.
        for plan in &reloading.wanted.disks {
            if let Some(number) = self.number_of(&plan.id) {
                self.set_plan(number, plan.clone());
            }
        }
        self.plan.disks = reloading.wanted.disks;
        self.plan.sidecores.policy = reloading.wanted.sidecores.policy;
        self.settle();
        finish(reloading.reply, Ok(reloading.done));
    }

    fn waits_for_a_removal(&self, change: &Change) -> bool {
        matches!(change, Change::Add(_)) && self.devices.values().any(|device| device.removing)
    }

    fn apply_change(&mut self, change: &Change) -> Result<(), ApiError> {
        match change {
            Change::Remove { id } => {
                if let Some(number) = self.number_of(id) {
                    self.begin_removal(number, None);
                }
            }
            Change::Set { id, share, policy } => {
                if let Some(number) = self.number_of(id)
                    && let Some(device) = self.devices.get_mut(&number)
                {
                    (device.plan.share, device.plan.policy) = (*share, *policy);
                    self.restart(number);
                }
            }
            Change::Resize { id, size_bytes } => {
                if let Some(number) = self.number_of(id) {
                    self.begin_resize(number, Size(*size_bytes))?;
                    self.touched.insert(number);
                }
            }
            Change::Add(plan) => {
                self.add_device((**plan).clone()).map_err(|error| {
                    let what = format!("disk {:?} ({}): {error}", plan.id, plan.origin);
                    ApiError::new(ErrorKind::Refused, what, "put that right and reload again")
                })?;
            }
        }
        Ok(())
    }
}

fn finish(reply: Option<Reply>, answer: Result<ReloadView, ApiError>) {
    match &answer {
        Ok(view) => info!(changes = ?view.changes, "read {} again", view.file),
        Err(error) => warn!("the reload stopped: {}; {}", error.error, error.hint),
    }
    if let Some(reply) = reply {
        reply.answer(answer.map(Answer::Reloaded));
    }
}
