//! What operators ask of switches: add, remove, and who was heard where.
//!
//! Every sidecore has learned something of its own, so all are asked and their answers put together.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use config::SwitchSpec;
use config::api::{Answer, ApiError, ErrorKind, MacView, SwitchList};
use config::plan::{SwitchPlan, UplinkPlan};
use sidecore::{BridgeId, Command, MacTable};
use tracing::{info, warn};

use crate::api::Reply;
use crate::calls::{Answered, UNDONE, check_origin, not_kept};
use crate::defects::late;
use crate::manager::Manager;
use crate::network::host_ports::HostPorts;
use crate::network::views;
use crate::network::{NetworkError, Switch};

/// How long sidecores are waited for; one that is busy answers within a millisecond.
const MACS_TIME_MAX: Duration = Duration::from_secs(2);
/// Addresses that a table may hold beyond those that are learned: of the NICs themselves.
const MACS_OF_PORTS: usize = switch::PORTS_MAX as usize;

/// An operator who waits for the addresses of a switch.
pub(crate) struct MacQuery {
    token: u64,
    bridge: BridgeId,
    /// Sidecores that have not answered.
    missing: usize,
    /// Where each address was heard last: port and age.
    heard: BTreeMap<([u8; 6], u16), (u16, u64)>,
    reply: Reply,
    answer_by: Instant,
}

impl MacQuery {
    pub(crate) fn due_at(&self) -> Instant {
        self.answer_by
    }
}

impl Manager {
    pub(crate) fn list_switches(&self) -> Answer {
        let view =
            |plan: &SwitchPlan| self.rooms.network.switch(&plan.id).map(|s| self.switch_view(s));
        Answer::Switches(SwitchList {
            switches: self.rooms.plan.switches.iter().filter_map(view).collect(),
        })
    }

    /// Answers when every sidecore has said whom it heard, or time is up.
    pub(crate) fn show_switch(&mut self, id: &str, reply: Reply) {
        let Some(Switch { bridge, plan, .. }) = self.rooms.network.switch(id) else {
            return reply.answer(Err(ApiError::no_such_switch(id)));
        };
        let (bridge, room) = (*bridge, usize::from(plan.macs_max) + MACS_OF_PORTS);
        let token = self.next_query;
        self.next_query += 1;
        let missing = self.rooms.cores.count();
        for core in 0..missing {
            self.rooms.cores.send(core, Command::ShowMacs(MacTable::new(bridge, token, room)));
        }
        let (heard, answer_by) = (BTreeMap::new(), self.rooms.turn.tick() + MACS_TIME_MAX);
        self.queries.push(MacQuery { token, bridge, missing, heard, reply, answer_by });
    }

    /// A sidecore's part of an answer.
    pub(crate) fn hear_macs(&mut self, table: &MacTable) {
        let its = |(_, query): &(usize, &mut MacQuery)| query.token == table.token;
        let query = self.queries.iter_mut().enumerate().find(its);
        let Some((at, query)) = query else { return late("operator who waits") };
        for entry in table.entries() {
            let last = query.heard.entry((entry.address, entry.vlan));
            let last = last.or_insert((entry.port.0, entry.age_ns));
            if entry.age_ns < last.1 {
                *last = (entry.port.0, entry.age_ns);
            }
        }
        query.missing = query.missing.saturating_sub(1);
        if query.missing == 0 {
            self.answer_query(at);
        }
    }

    /// Answers with what is known when a sidecore does not.
    pub(crate) fn answer_queries(&mut self, now: Instant) {
        while let Some(at) = self.queries.iter().position(|query| query.answer_by <= now) {
            warn!("a sidecore does not say what addresses it knows");
            self.answer_query(at);
        }
    }

    fn answer_query(&mut self, at: usize) {
        let MacQuery { bridge, heard, reply, .. } = self.queries.remove(at);
        let its = |switch: &&Switch| switch.bridge == bridge;
        let Some(switch) = self.rooms.network.switches.iter().find(its) else {
            let gone = ApiError::new(ErrorKind::NotFound, "the switch is gone", "");
            return reply.answer(Err(gone));
        };
        let view = |((mac, vlan), (port, age_ns))| {
            let port = self.port_name(switch, port)?;
            Some(views::mac(mac, vlan, port, age_ns))
        };
        let macs: Vec<MacView> = heard.into_iter().filter_map(view).collect();
        let mut shown = self.switch_view(switch);
        shown.macs = Some(macs);
        reply.answer(Ok(Answer::Switch(Box::new(shown))));
    }

    pub(crate) fn add_switch(&mut self, spec: &SwitchSpec) -> Answered {
        let plan = self.rooms.plan.switch_from_api(spec)?;
        let id = plan.id.clone();
        let refused = |error: &dyn std::fmt::Display| {
            let hint = "put that right, or name another interface";
            ApiError::new(ErrorKind::Refused, format!("switch {id:?}: {error}"), hint)
        };
        let opened = self.open_uplinks(&plan).map_err(|error| refused(&error))?;
        let opened = opened.into_iter().map(Some).collect();
        self.serve_switch(plan.clone(), opened).map_err(|error| refused(&error))?;
        self.rooms.plan.switches.push(plan);
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            self.begin_switch_removal(&id, None);
            return Err(not_kept(&error, UNDONE));
        }
        info!(switch = id, "added");
        let shown = self.rooms.network.switch(&id).map(|switch| self.switch_view(switch));
        let shown = shown.ok_or_else(|| ApiError::no_such_switch(&id))?;
        Ok(Answer::Switch(Box::new(shown)))
    }

    /// Makes a switch with its uplinks, opened before or to be opened.
    ///
    /// # Errors
    /// There are as many bridges as there can be.
    pub(crate) fn serve_switch(
        &mut self,
        plan: SwitchPlan,
        opened: Vec<Option<HostPorts>>,
    ) -> Result<(), NetworkError> {
        let bridge = self.make_switch(&plan)?;
        let opened = opened.into_iter().chain(std::iter::repeat_with(|| None));
        for (uplink, opened) in plan.uplinks.into_iter().zip(opened) {
            self.uplink_of_switch(bridge, uplink, opened);
        }
        Ok(())
    }

    pub(crate) fn remove_switch(&mut self, id: &str, reply: Reply) {
        let plan = self.rooms.plan.switch(id).ok_or_else(|| ApiError::no_such_switch(id));
        let may = plan
            .and_then(|plan| check_origin(&format!("switch {id:?}"), &plan.origin))
            .and_then(|()| self.rooms.plan.check_switch_is_free(id));
        if let Err(error) = may {
            return reply.answer(Err(error));
        }
        self.begin_switch_removal(id, Some(reply));
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            warn!(switch = id, %error, "it is removed, but that could not be kept");
        }
    }

    /// Puts another plan in the place of the switch's of that name.
    pub(crate) fn set_switch_plan(&mut self, plan: SwitchPlan) {
        if let Some(switch) = self.rooms.network.switch_mut(&plan.id) {
            switch.plan.clone_from(&plan);
        }
        if let Some(mine) = self.rooms.plan.switches.iter_mut().find(|mine| mine.id == plan.id) {
            *mine = plan;
        }
    }

    /// The uplink of a switch that is on that interface.
    pub(crate) fn uplink_on(&self, switch: &str, name: &str) -> Option<u32> {
        let bridge = self.rooms.network.switch(switch)?.bridge;
        let mut its = self.rooms.network.uplinks_of(bridge).into_iter();
        its.find(|number| {
            let uplink = self.rooms.network.uplinks.get(number);
            uplink.is_some_and(|uplink| uplink.plan.name() == name && !uplink.is_leaving())
        })
    }

    /// An uplink more, for a switch that is there.
    pub(crate) fn add_uplink_to(
        &mut self,
        switch: &str,
        uplink: UplinkPlan,
        opened: Option<HostPorts>,
    ) {
        match self.rooms.network.switch(switch).map(|switch| switch.bridge) {
            Some(bridge) => self.uplink_of_switch(bridge, uplink, opened),
            // The reload that added it said so.
            None => {
                warn!(uplink = uplink.name(), switch, "is not opened: its switch is not served")
            }
        }
    }
}
