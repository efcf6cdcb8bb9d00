//! What operators ask of NICs: add, change, take the cable out, remove. Shown by `views`.

use config::NicSpec;
use config::api::{Answer, ApiError, NicList, NicView};
use config::plan::{NicPlan, Origin};
use config::spec::{LinkState, NicChange};
use tracing::info;

use crate::calls::{Answered, UNDONE, UNTIL_RESTART, check_origin, not_kept};
use crate::defects::found;
use crate::device::Device;
use crate::kind::{DevicePlan, Facts, Kind};
use crate::manager::Manager;
use crate::network::host_ports::{Guest, HostPorts};
use crate::network::views;
use crate::opening::not_open::{NotOpen, refused_with};
use crate::rights::{Rights, refused_rights};

impl Manager {
    pub(crate) fn list_nics(&self) -> Answer {
        let view = |plan: &NicPlan| self.nic_shown(&plan.id, false);
        Answer::Nics(NicList { nics: self.rooms.plan.nics.iter().filter_map(view).collect() })
    }

    pub(crate) fn show_nic(&self, id: &str, queues: bool) -> Answered {
        let view = self.nic_shown(id, queues).ok_or_else(|| self.rooms.plan.no_such_nic(id))?;
        Ok(Answer::Nic(Box::new(view)))
    }

    fn nic_shown(&self, id: &str, queues: bool) -> Option<NicView> {
        if let Some(device) =
            self.rooms.devices.number_of(id).and_then(|number| self.rooms.devices.get(number))
        {
            return device.kind.nic().map(|parts| self.nic_view(device, parts, queues));
        }
        let shut = self.rooms.shut.named(id)?;
        shut.plan().nic().map(|plan| views::shut_nic(shut, plan))
    }

    pub(crate) fn add_nic(&mut self, spec: &NicSpec) -> Answered {
        let plan = self.rooms.plan.nic_from_api(spec)?;
        let id = plan.id.clone();
        let refused = |error: NotOpen| {
            refused_with(&format!("nic {id:?}"), &error, "put that right, or name something else")
        };
        let opened = self.open_host_of(&plan).map_err(refused)?;
        let device = self.open_nic_on(plan.clone(), opened).map_err(refused)?;
        let number = self.serve_device(device).map_err(refused)?;
        self.rooms.plan.nics.push(plan);
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            self.begin_removal(number, None);
            self.settle();
            return Err(not_kept(&error, UNDONE));
        }
        info!(nic = id, "added");
        self.show_nic(&id, true)
    }

    /// Opens what a NIC is wired to, if it is wired.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(crate) fn open_host_of(&self, plan: &NicPlan) -> Result<Option<HostPorts>, NotOpen> {
        let Some(host) = plan.host() else { return Ok(None) };
        let opened = HostPorts::open(host, Some(Guest::from(plan)), &self.rooms.taps);
        opened.map(Some).map_err(|error| NotOpen::Wrong(error.to_string()))
    }

    /// A NIC on what was opened for it.
    ///
    /// # Errors
    /// As [`Self::open_device`]; what was opened is closed then.
    pub(crate) fn open_nic_on(
        &mut self,
        plan: NicPlan,
        opened: Option<HostPorts>,
    ) -> Result<Device, NotOpen> {
        let host = plan.host().cloned();
        match self.open_device(DevicePlan::Nic(plan)) {
            Ok(mut device) => {
                if let Kind::Nic(nic) = &mut device.kind {
                    nic.opened = opened;
                }
                Ok(device)
            }
            Err(error) => {
                if let (Some(port), Some(host)) = (opened, host) {
                    port.take_away(&host, &self.rooms.taps);
                }
                Err(error)
            }
        }
    }

    pub(crate) fn change_nic(&mut self, id: &str, change: &NicChange) -> Answered {
        self.check_nic_made_by_api(id)?;
        let after = self.rooms.plan.nic_changed(id, change)?;
        let before =
            self.rooms.plan.nic(id).cloned().ok_or_else(|| self.rooms.plan.no_such_nic(id))?;
        Rights::of(&after.rights).map_err(refused_rights)?;
        self.set_nic_plan(after.clone());
        if let Err(error) = self.rooms.state.keep(&self.rooms.plan) {
            self.set_nic_plan(before);
            return Err(not_kept(&error, UNDONE));
        }
        let has_others = before.rights != after.rights;
        if has_others
            && let Some(Err(error)) = self.rooms.devices.number_of(id).map(|it| self.put_rights(it))
        {
            self.set_nic_plan(before);
            self.rooms
                .state
                .keep(&self.rooms.plan)
                .map_err(|error| not_kept(&error, UNTIL_RESTART))?;
            return Err(refused_rights(error));
        }
        self.apply_nic(&before, &after);
        info!(nic = id, "set");
        self.show_nic(id, true)
    }

    /// Has a NIC that runs follow its plan, which was `before`.
    pub(crate) fn apply_nic(&mut self, before: &NicPlan, after: &NicPlan) {
        // One that is not open is opened as its plan is then.
        let Some(number) = self.rooms.devices.number_of(&after.id) else { return };
        if before.link != after.link {
            self.turn_link(number, after.link);
        }
        let device = self.rooms.devices.get_mut(number);
        found!(self.rooms.turn.defects, device, "NIC that is changed")
            .follow
            .look_again(self.rooms.turn.now());
        self.say_port(number);
        if before.service == after.service {
            return;
        }
        let plug = self.rooms.devices.nic_mut(number).and_then(|nic| nic.plug());
        let uplink = plug.and_then(|plug| plug.uplink);
        let its_plan =
            uplink.and_then(|uplink| Some(self.rooms.network.uplinks.get(&uplink)?.plan.clone()));
        if let (Some(uplink), Some(mut plan)) = (uplink, its_plan) {
            (plan.share, plan.policy) = (after.service.share, after.service.policy);
            self.change_uplink(uplink, plan);
        }
        self.rooms.services().set(number);
    }

    /// Takes the cable of any NIC out, or puts it in. One of the file follows the file again when the
    /// daemon is started, or when the file says something else.
    pub(crate) fn set_link(&mut self, id: &str, link: LinkState) -> Answered {
        let before =
            self.rooms.plan.nic(id).cloned().ok_or_else(|| self.rooms.plan.no_such_nic(id))?;
        let is_of_api = before.origin == Origin::Api;
        if is_of_api {
            let mut after = before;
            (after.link, after.spec.link) = (link, link);
            self.set_nic_plan(after);
        }
        if let Some(number) = self.rooms.devices.number_of(id) {
            self.turn_link(number, link);
            self.say_port(number);
        }
        info!(nic = id, %link, "link");
        if is_of_api {
            self.rooms
                .state
                .keep(&self.rooms.plan)
                .map_err(|error| not_kept(&error, UNTIL_RESTART))?;
        }
        self.show_nic(id, true)
    }

    /// The guest sees a carrier or none because its front-end is connected or not: without a cable,
    /// it is not (QEMU asks nobody for the state of the link).
    fn turn_link(&mut self, number: u32, link: LinkState) {
        let nic = found!(
            self.rooms.turn.defects,
            self.rooms.devices.nic_mut(number),
            "NIC whose link is turned"
        );
        nic.live.set_up(link == LinkState::Up);
        self.rooms.turn.touch(number);
        let now = self.rooms.turn.now();
        let device = self.rooms.devices.get_mut(number);
        found!(self.rooms.turn.defects, device, "NIC whose link is turned").plan_connect(now);
    }

    pub(crate) fn check_nic_made_by_api(&self, id: &str) -> Result<(), ApiError> {
        let plan = self.rooms.plan.nic(id).ok_or_else(|| self.rooms.plan.no_such_nic(id))?;
        check_origin(&format!("nic {id:?}"), &plan.origin)
    }

    /// Puts another plan in the place of the NIC's of that name.
    pub(crate) fn set_nic_plan(&mut self, plan: NicPlan) {
        if let Some(device) = self
            .rooms
            .devices
            .number_of(&plan.id)
            .and_then(|number| self.rooms.devices.get_mut(number))
            && let Kind::Nic(nic) = &mut device.kind
        {
            nic.plan.clone_from(&plan);
            device.facts = Facts::from(&plan);
        }
        self.rooms.shut.set_plan(&DevicePlan::Nic(plan.clone()));
        if let Some(mine) = self.rooms.plan.nics.iter_mut().find(|mine| mine.id == plan.id) {
            *mine = plan;
        }
    }
}
