//! What operators ask of NICs that are there: change, take the cable out. Shown by `nic_views`.
//!
//! Not here: how one is added (`calls::nics`), what is the same for all devices (`calls`), and moves (`travel`).

use config::Plan;
use config::api::ApiError;
use config::plan::{NicPlan, Origin};
use config::spec::{Carrier, NicChange};
use tracing::info;

use crate::calls::{UNDONE, UNTIL_RESTART, check_origin, not_kept};
use crate::defects::found;
use crate::devices::device_plan::Facts;
use crate::devices::kind::Kind;
use crate::opening::shut::ShutDevices;
use crate::rights::{Rights, given, refused_rights};
use crate::service::{Groups, Services};
use crate::state::StateFile;
use config::plan::DevicePlan;

use super::{Around, Network};

/// Changes of NICs, and what they concern.
pub(crate) struct NicCalls<'a> {
    pub(crate) network: &'a mut Network,
    pub(crate) plan: &'a mut Plan,
    pub(crate) shut: &'a mut ShutDevices,
    pub(crate) groups: &'a mut Groups,
    pub(crate) state: &'a StateFile,
    pub(crate) around: Around<'a>,
}

impl NicCalls<'_> {
    /// Changes a NIC that was made through the API.
    ///
    /// # Errors
    /// Why not; it is as it was.
    pub(crate) fn change(&mut self, id: &str, change: &NicChange) -> Result<(), ApiError> {
        self.check_made_by_api(id)?;
        let after = self.plan.nic_changed(id, change)?;
        let before = self.plan.nic(id).cloned().ok_or_else(|| self.plan.no_such_nic(id))?;
        Rights::of(&after.rights).map_err(refused_rights)?;
        self.set_plan(after.clone());
        if let Err(error) = self.state.keep(self.plan) {
            self.set_plan(before);
            return Err(not_kept(&error, UNDONE));
        }
        let has_others = before.rights != after.rights;
        let device = self.around.devices.named_mut(id).filter(|_| has_others);
        if let Some(Err(error)) = device.map(given::put) {
            self.set_plan(before);
            self.keep_until_restart()?;
            return Err(refused_rights(error));
        }
        self.apply(&before, &after);
        info!(nic = id, "set");
        Ok(())
    }

    /// Refuses to change what the file declares.
    ///
    /// # Errors
    /// It does, or there is no such NIC.
    pub(crate) fn check_made_by_api(&self, id: &str) -> Result<(), ApiError> {
        let plan = self.plan.nic(id).ok_or_else(|| self.plan.no_such_nic(id))?;
        check_origin(&format!("nic {id:?}"), &plan.origin)
    }

    fn keep_until_restart(&self) -> Result<(), ApiError> {
        self.state.keep(self.plan).map_err(|error| not_kept(&error, UNTIL_RESTART))
    }

    /// Has a NIC follow another plan, if there is one of that name.
    pub(crate) fn follow(&mut self, plan: &NicPlan) {
        if let Some(before) = self.plan.nic(&plan.id).cloned() {
            self.set_plan(plan.clone());
            self.apply(&before, plan);
        }
    }

    /// Puts another plan in the place of the NIC's of that name.
    pub(crate) fn set_plan(&mut self, plan: NicPlan) {
        let devices = &mut self.around.devices;
        if let Some(device) = devices.number_of(&plan.id).and_then(|number| devices.get_mut(number))
            && let Kind::Nic(nic) = device.kind_mut()
        {
            nic.set_plan(&plan);
            device.set_facts(Facts::from(&plan));
        }
        self.shut.set_plan(&DevicePlan::Nic(plan.clone()));
        if let Some(mine) = self.plan.nics.iter_mut().find(|mine| mine.id == plan.id) {
            *mine = plan;
        }
    }

    /// Has a NIC that runs follow its plan, which was `before`.
    fn apply(&mut self, before: &NicPlan, after: &NicPlan) {
        // One that is not open is opened as its plan is then.
        let Some(number) = self.around.devices.number_of(&after.id) else { return };
        if before.carrier != after.carrier {
            self.turn_carrier(number, after.carrier);
        }
        let Around { turn, devices, cores, .. } = &mut self.around;
        let device = found!(turn.defects, devices.get_mut(number), "NIC that is changed");
        device.follow_mut().look_again(turn.now());
        let nic = found!(turn.defects, device.nic(), "NIC to change");
        nic.say_port(cores);
        if before.service == after.service {
            return;
        }
        if let Some(uplink) = nic.uplink()
            && let Some(mut plan) = self.network.uplink(uplink).map(|it| it.plan().clone())
        {
            (plan.share, plan.policy) = (after.service.share, after.service.policy);
            self.network.change_uplink(uplink, plan, &mut self.around);
        }
        let (groups, plan) = (&mut *self.groups, &*self.plan);
        let Around { turn, devices, cores } = &mut self.around;
        Services { groups, plan, devices, turn, cores }.set(number);
    }

    /// Takes the cable of any NIC out, or puts it in. One of the file follows the file again when the
    /// daemon is started, or when the file says something else.
    ///
    /// # Errors
    /// There is no such NIC; or it holds until a restart alone, since it cannot be kept.
    pub(crate) fn set_carrier(&mut self, id: &str, carrier: Carrier) -> Result<(), ApiError> {
        let before = self.plan.nic(id).cloned().ok_or_else(|| self.plan.no_such_nic(id))?;
        let is_of_api = before.origin == Origin::Api;
        if is_of_api {
            let mut after = before;
            (after.carrier, after.spec.link) = (carrier, carrier);
            self.set_plan(after);
        }
        if let Some(number) = self.around.devices.number_of(id) {
            self.turn_carrier(number, carrier);
            if let Some(nic) = self.around.devices.nic_mut(number) {
                nic.say_port(self.around.cores);
            }
        }
        info!(nic = id, link = %carrier, "link");
        if is_of_api { self.keep_until_restart() } else { Ok(()) }
    }

    /// The guest sees a carrier or none because its front-end is connected or not: without a cable,
    /// it is not (QEMU asks nobody for the carrier).
    fn turn_carrier(&mut self, number: u32, carrier: Carrier) {
        let Around { turn, devices, .. } = &mut self.around;
        let device =
            found!(turn.defects, devices.get_mut(number), "device whose carrier is turned");
        let nic = found!(turn.defects, device.nic(), "NIC whose carrier is turned");
        nic.live().set_up(carrier == Carrier::Up);
        turn.touch(number);
        device.plan_connect(turn.now());
    }
}
