//! What operators ask of switches: add, remove, and who was heard where (`mac_queries`).

use config::api::{Answer, ApiError, ErrorKind};
use config::plan::SwitchPlan;
use config::{Plan, SwitchSpec};
use sidecore::MacTable;
use tracing::{info, warn};

use crate::api::Reply;
use crate::calls::{UNDONE, check_origin, not_kept};
use crate::state::StateFile;

use super::mac_queries::Found;
use super::{Around, Network};

/// Operators' calls of switches, and what they concern.
pub(crate) struct SwitchCalls<'a> {
    pub(crate) network: &'a mut Network,
    pub(crate) plan: &'a mut Plan,
    pub(crate) state: &'a mut StateFile,
    pub(crate) around: Around<'a>,
}

impl SwitchCalls<'_> {
    /// The switches of the plan.
    pub(crate) fn list(&self) -> Answer {
        self.network.list_switches(&self.plan.switches, self.around.devices)
    }

    /// Answers when every sidecore has said whom it heard, or time is up.
    pub(crate) fn show(&mut self, id: &str, reply: Reply) {
        let Some(switch) = self.network.switch(id) else {
            return reply.answer(Err(ApiError::no_such_switch(id)));
        };
        let (bridge, room, now) = (switch.bridge(), switch.table_max(), self.around.turn.tick());
        self.network.queries.ask(bridge, room, reply, (self.around.cores, now));
    }

    /// Adds a switch with its uplinks, all of them open.
    pub(crate) fn add(&mut self, spec: &SwitchSpec, reply: Reply) {
        let id = match self.serve(spec) {
            Ok(id) => id,
            Err(refused) => return reply.answer(Err(refused)),
        };
        if let Err(error) = self.keep() {
            return self.begin_removal(&id, Some(reply.refusing(not_kept(&error, UNDONE))));
        }
        info!(switch = id, "added");
        let shown = self.network.view(&id, self.around.devices);
        let shown = shown.map(|view| Answer::Switch(Box::new(view)));
        reply.answer(shown.ok_or_else(|| ApiError::no_such_switch(&id)));
    }

    fn keep(&mut self) -> std::io::Result<()> {
        self.state.keep(self.plan, &self.around.devices.images())
    }

    /// Serves a switch more, which is not kept yet: its name.
    fn serve(&mut self, spec: &SwitchSpec) -> Result<String, ApiError> {
        let plan = self.plan.switch_from_api(spec)?;
        let id = plan.id.clone();
        let refused = |error: &dyn std::fmt::Display| {
            let hint = "put that right, or name another interface";
            ApiError::new(ErrorKind::Refused, format!("switch {id:?}: {error}"), hint)
        };
        let opened = self.network.open_uplinks(&plan).map_err(|error| refused(&error))?;
        let opened = opened.into_iter().map(Some).collect();
        let served = self.network.serve_switch(plan.clone(), opened, &mut self.around);
        served.map_err(|error| refused(&error))?;
        self.plan.switches.push(plan);
        Ok(id)
    }

    /// Removes a switch without NICs; the operator is answered when it is gone.
    pub(crate) fn remove(&mut self, id: &str, reply: Reply) {
        let plan = self.plan.switch(id).ok_or_else(|| ApiError::no_such_switch(id));
        let may = plan
            .and_then(|plan| check_origin(&format!("switch {id:?}"), &plan.origin))
            .and_then(|()| self.plan.check_switch_is_free(id));
        if let Err(error) = may {
            return reply.answer(Err(error));
        }
        let before = self.plan.switches.clone();
        self.plan.switches.retain(|plan| plan.id != id);
        // Kept first: a switch that is gone cannot be taken back.
        if let Err(error) = self.keep() {
            self.plan.switches = before;
            return reply.answer(Err(not_kept(&error, UNDONE)));
        }
        self.begin_removal(id, Some(reply));
    }

    /// Has a switch go when its ports have gone; it is planned no more.
    pub(super) fn begin_removal(&mut self, id: &str, reply: Option<Reply>) {
        self.plan.switches.retain(|plan| plan.id != id);
        if let Err(reply) = self.network.begin_switch_removal(id, reply, &mut self.around) {
            // The reload that added it could not have it served, and said so.
            let gone = || Err(ApiError::no_such_switch(id));
            reply.into_iter().for_each(|reply| reply.answer(gone()));
        }
    }

    /// Puts another plan in the place of the switch's of that name.
    pub(crate) fn set_plan(&mut self, plan: SwitchPlan) {
        self.network.set_switch_plan(&plan);
        if let Some(mine) = self.plan.switches.iter_mut().find(|mine| mine.id == plan.id) {
            *mine = plan;
        }
    }

    /// A sidecore's part of an answer.
    pub(crate) fn hear_macs(&mut self, core: usize, table: Box<MacTable>) {
        let around = (&mut *self.around.cores, self.around.turn.now());
        if let Some(found) = self.network.queries.hear(core, table, around) {
            self.answer(found);
        }
    }

    /// Answers with what is known when a sidecore does not.
    pub(crate) fn answer_overdue(&mut self) {
        let now = self.around.turn.now();
        while let Some(found) = self.network.queries.take_overdue((self.around.cores, now)) {
            warn!("a sidecore does not say what addresses it knows");
            self.answer(found);
        }
    }

    fn answer(&self, found: Found) {
        let Found { bridge, heard, replies } = found;
        let shown = self.network.view_with_macs(bridge, heard, self.around.devices);
        let shown = shown.map(|view| Answer::Switch(Box::new(view)));
        let shown = shown.ok_or_else(|| ApiError::gone("switch"));
        replies.into_iter().for_each(|reply| reply.answer(shown.clone()));
    }
}
