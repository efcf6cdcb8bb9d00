//! What operators ask of NICs: change, take the cable out. Shown by `nic_views`.
//!
//! Not here: opening them (`opening`), and what is the same for all devices (`calls`).

use config::Plan;
use config::api::ApiError;
use config::plan::{NicPlan, Origin};
use config::spec::LinkState;
use tracing::info;

use crate::defects::found;
use crate::kind::{DevicePlan, Facts, Kind};
use crate::opening::shut::ShutDevices;

use super::{Around, Network};

/// Changes of NICs, and what they concern.
pub(crate) struct NicCalls<'a> {
    pub(crate) network: &'a mut Network,
    pub(crate) plan: &'a mut Plan,
    pub(crate) shut: &'a mut ShutDevices,
    pub(crate) around: Around<'a>,
}

impl NicCalls<'_> {
    /// Puts another plan in the place of the NIC's of that name.
    pub(crate) fn set_plan(&mut self, plan: NicPlan) {
        let devices = &mut self.around.devices;
        if let Some(device) = devices.number_of(&plan.id).and_then(|number| devices.get_mut(number))
            && let Kind::Nic(nic) = &mut device.kind
        {
            nic.plan.clone_from(&plan);
            device.facts = Facts::from(&plan);
        }
        self.shut.set_plan(&DevicePlan::Nic(plan.clone()));
        if let Some(mine) = self.plan.nics.iter_mut().find(|mine| mine.id == plan.id) {
            *mine = plan;
        }
    }

    /// Has a NIC that runs follow its plan, which was `before`. Gives the device whose queues are to be served
    /// otherwise.
    pub(crate) fn apply(&mut self, before: &NicPlan, after: &NicPlan) -> Option<u32> {
        // One that is not open is opened as its plan is then.
        let number = self.around.devices.number_of(&after.id)?;
        if before.link != after.link {
            self.turn_link(number, after.link);
        }
        let Around { turn, devices, cores, .. } = &mut self.around;
        let device = found!(turn.defects, devices.get_mut(number), "NIC that is changed");
        device.follow.look_again(turn.now());
        let nic = found!(turn.defects, device.kind.nic(), "NIC to change");
        nic.say_port(cores);
        if before.service == after.service {
            return None;
        }
        if let Some(uplink) = nic.uplink()
            && let Some(mut plan) = self.network.uplink(uplink).map(|it| it.plan().clone())
        {
            (plan.share, plan.policy) = (after.service.share, after.service.policy);
            self.network.change_uplink(uplink, plan, &mut self.around);
        }
        Some(number)
    }

    /// Takes the cable of any NIC out, or puts it in. One of the file follows the file again when the
    /// daemon is started, or when the file says something else. Gives whether that is to be kept.
    ///
    /// # Errors
    /// There is no such NIC.
    pub(crate) fn set_link(&mut self, id: &str, link: LinkState) -> Result<bool, ApiError> {
        let before = self.plan.nic(id).cloned().ok_or_else(|| self.plan.no_such_nic(id))?;
        let is_of_api = before.origin == Origin::Api;
        if is_of_api {
            let mut after = before;
            (after.link, after.spec.link) = (link, link);
            self.set_plan(after);
        }
        if let Some(number) = self.around.devices.number_of(id) {
            self.turn_link(number, link);
            if let Some(nic) = self.around.devices.nic_mut(number) {
                nic.say_port(self.around.cores);
            }
        }
        info!(nic = id, %link, "link");
        Ok(is_of_api)
    }

    /// The guest sees a carrier or none because its front-end is connected or not: without a cable,
    /// it is not (QEMU asks nobody for the state of the link).
    fn turn_link(&mut self, number: u32, link: LinkState) {
        let Around { turn, devices, .. } = &mut self.around;
        let device = found!(turn.defects, devices.get_mut(number), "device whose link is turned");
        let nic = found!(turn.defects, device.kind.nic(), "NIC whose link is turned");
        nic.live.set_up(link == LinkState::Up);
        turn.touch(number);
        device.plan_connect(turn.now());
    }
}
