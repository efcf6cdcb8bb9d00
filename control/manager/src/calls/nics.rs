//! What operators ask of NICs: add, change, move, take the cable out. Shown by `network::nic_views`.
//!
//! What one that is added is wired to is opened first, and closed when it is not to be. Not here: what is the same for
//! all devices (`changes`, `removal`).

use config::api::ApiError;
use config::plan::{DeviceKind, DevicePlan, NicPlan, Origin};
use config::spec::{Carrier, NicChange, NicMove};
use config::{NicSpec, Plan};
use control::mode::Mode;
use tracing::info;

use super::{Answered, changes, check_origin};
use crate::api::Reply;
use crate::defects::found;
use crate::devices::device::Device;
use crate::network::Network;
use crate::network::host_ports::{Guest, HostPorts};
use crate::network::travel::Begun;
use crate::opening::apart;
use crate::opening::not_open::{NotOpen, refused_with};
use crate::opening::open::{self, Socket};
use crate::rooms::Rooms;

/// Adds a NIC.
pub(super) fn add_now(spec: &NicSpec, reply: Reply, rooms: &mut Rooms, mode: Mode) {
    match add(spec, rooms, mode) {
        Ok(id) => changes::keep_added((DeviceKind::Nic, &id), reply, rooms, mode),
        Err(refused) => reply.answer(Err(refused)),
    }
}

/// Serves a NIC more, which is not kept yet: its name.
fn add(spec: &NicSpec, rooms: &mut Rooms, mode: Mode) -> Result<String, ApiError> {
    let added = Addition::begin(spec, &rooms.plan, &rooms.network)?;
    let plan = added.plan.clone();
    let id = plan.id.clone();
    let opened = added.open(rooms, mode);
    let served = opened.and_then(|device| open::serve(device, rooms, mode));
    served.map_err(|error| not_added(&id, &error))?;
    rooms.plan.nics.push(plan);
    Ok(id)
}

/// Changes a NIC that was made through the API.
///
/// # Errors
/// Why not; it is as it was.
pub(super) fn change(id: &str, change: &NicChange, rooms: &mut Rooms) -> Answered {
    check_made_by_api(id, &rooms.plan)?;
    let after = rooms.plan.nic_changed(id, change)?;
    let before = rooms.plan.nic(id).cloned().ok_or_else(|| rooms.plan.no_such_nic(id))?;
    let plans = [&before, &after].map(|plan| DevicePlan::Nic(plan.clone()));
    let [of_before, of_after] = plans;
    changes::change(of_before, of_after, rooms)?;
    follow_from(&before, &after, rooms);
    info!(nic = id, "set");
    rooms.nic_views().show(id, true)
}

/// Refuses to change what the file declares.
///
/// # Errors
/// It does, or there is no such NIC.
pub(super) fn check_made_by_api(id: &str, plan: &Plan) -> Result<(), ApiError> {
    let nic = plan.nic(id).ok_or_else(|| plan.no_such_nic(id))?;
    check_origin(&format!("nic {id:?}"), &nic.origin)
}

/// Has a NIC follow another plan, if there is one of that name.
pub(crate) fn follow(plan: &NicPlan, rooms: &mut Rooms) {
    if let Some(before) = rooms.plan.nic(&plan.id).cloned() {
        rooms.set_plan(DevicePlan::Nic(plan.clone()));
        follow_from(&before, plan, rooms);
    }
}

/// Has a NIC that runs follow its plan, which was `before`.
fn follow_from(before: &NicPlan, after: &NicPlan, rooms: &mut Rooms) {
    // One that is not open is opened as its plan is then.
    if let Some(number) = rooms.devices.number_of(&after.id) {
        have_followed(number, before, after, rooms);
    }
}

fn have_followed(number: u32, before: &NicPlan, after: &NicPlan, rooms: &mut Rooms) {
    if before.carrier != after.carrier {
        turn_carrier(number, after.carrier, rooms);
    }
    let Rooms { turn, devices, cores, .. } = &mut *rooms;
    let device = found!(turn.defects, devices.get_mut(number), "NIC that is changed");
    device.follow_mut().look_again(turn.now());
    let nic = found!(turn.defects, device.nic(), "NIC to change");
    nic.say_port(cores);
    if before.service == after.service {
        return;
    }
    let uplink = nic.uplink();
    let (network, mut around) = rooms.network();
    if let Some(uplink) = uplink
        && let Some(mut plan) = network.uplink(uplink).map(|it| it.plan().clone())
    {
        (plan.share, plan.policy) = (after.service.share, after.service.policy);
        network.change_uplink(uplink, plan, &mut around);
    }
    rooms.services().set(number);
}

/// Takes the cable of any NIC out, or puts it in. One of the file follows the file again when the
/// daemon is started, or when the file says something else.
///
/// # Errors
/// There is no such NIC, or it cannot be kept; nothing is changed.
pub(super) fn set_carrier(id: &str, carrier: Carrier, rooms: &mut Rooms) -> Answered {
    let before = rooms.plan.nic(id).cloned().ok_or_else(|| rooms.plan.no_such_nic(id))?;
    if before.origin == Origin::Api {
        let mut after = before.clone();
        (after.carrier, after.spec.link) = (carrier, carrier);
        let (before, after) = (DevicePlan::Nic(before), DevicePlan::Nic(after));
        changes::plan_otherwise(after, &before, rooms)?;
    }
    if let Some(number) = rooms.devices.number_of(id) {
        turn_carrier(number, carrier, rooms);
        if let Some(nic) = rooms.devices.nic_mut(number) {
            nic.say_port(&mut rooms.cores);
        }
    }
    info!(nic = id, link = %carrier, "link");
    rooms.nic_views().show(id, true)
}

/// The guest sees a carrier or none because its front-end is connected or not: without a cable,
/// it is not (QEMU asks nobody for the carrier).
fn turn_carrier(number: u32, carrier: Carrier, rooms: &mut Rooms) {
    let Rooms { turn, devices, .. } = rooms;
    let device = found!(turn.defects, devices.get_mut(number), "device whose carrier is turned");
    let nic = found!(turn.defects, device.nic(), "NIC whose carrier is turned");
    nic.live().set_up(carrier == Carrier::Up);
    turn.touch(number);
    device.plan_connect(turn.now());
}

/// Moves a NIC. The operator is answered when it is where it was to be, or is not going there.
pub(super) fn go(id: &str, wish: &NicMove, reply: Reply, rooms: &mut Rooms) {
    match rooms.travel().ask(id, wish) {
        Ok(Begun::LetGo) => reply.answer(rooms.nic_views().show(id, true)),
        Ok(Begun::Goes(number, begun)) => {
            rooms.moves.wait(number, begun.into_iter().collect(), reply);
        }
        Err(error) => reply.answer(Err(error)),
    }
}

/// A NIC that an operator adds, with what it is wired to.
struct Addition {
    plan: NicPlan,
    opened: Option<HostPorts>,
}

/// Why a NIC is not added, for the operator.
fn not_added(id: &str, error: &NotOpen) -> ApiError {
    refused_with(&format!("nic {id:?}"), error, "put that right, or name something else")
}

impl Addition {
    /// Opens what the NIC is wired to, if it is wired.
    ///
    /// # Errors
    /// Why it cannot be opened, or be a NIC of this daemon.
    fn begin(spec: &NicSpec, plan: &Plan, network: &Network) -> Result<Addition, ApiError> {
        let in_force = plan;
        let plan = in_force.nic_from_api(spec)?;
        apart::check(in_force, Some(&DevicePlan::Nic(plan.clone())))?;
        let host = plan.host().map(|host| network.open_host(host, Some(Guest::from(&plan))));
        match host.transpose() {
            Ok(opened) => Ok(Addition { plan, opened }),
            Err(error) => Err(not_added(&plan.id, &NotOpen::Wrong(error.to_string()))),
        }
    }

    /// The NIC on what was opened for it.
    ///
    /// # Errors
    /// As [`open::open`]; what was opened is closed then.
    fn open(self, rooms: &mut Rooms, mode: Mode) -> Result<Device, NotOpen> {
        let Addition { plan, opened } = self;
        let host = plan.host().cloned();
        match open::open(DevicePlan::Nic(plan), Socket::Own, rooms, mode) {
            Ok(mut device) => {
                if let Some(nic) = device.nic_mut() {
                    nic.bring(opened);
                }
                Ok(device)
            }
            Err(error) => {
                if let (Some(ports), Some(host)) = (opened, host) {
                    rooms.network.take_away(&host, ports);
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
