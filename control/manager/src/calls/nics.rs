//! What operators ask of NICs that concerns other rooms, too: add, and move.
//!
//! What one that is added is wired to is opened first, and closed when it is not to be. Not here: what else is asked
//! (`network::nic_calls`), and `removal`.

use config::api::ApiError;
use config::plan::NicPlan;
use config::spec::NicMove;
use config::{NicSpec, Plan};
use control::mode::Mode;
use tracing::info;

use super::{UNDONE, not_kept, removal};
use crate::api::Reply;
use crate::devices::device::Device;
use crate::network::Network;
use crate::network::host_ports::{Guest, HostPorts};
use crate::network::travel::Begun;
use crate::opening::not_open::{NotOpen, refused_with};
use crate::opening::open::{self, Socket};
use crate::rooms::Rooms;
use config::plan::DevicePlan;

/// Adds a NIC.
pub(super) fn add_now(spec: &NicSpec, reply: Reply, rooms: &mut Rooms, mode: Mode) {
    let id = match add(spec, rooms, mode) {
        Ok(id) => id,
        Err(refused) => return reply.answer(Err(refused)),
    };
    match rooms.state.keep(&rooms.plan) {
        Ok(()) => {
            info!(nic = id, "added");
            reply.answer(rooms.nic_views().show(&id, true));
        }
        Err(error) => removal::undo(&id, not_kept(&error, UNDONE), reply, rooms, mode),
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
        let plan = plan.nic_from_api(spec)?;
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
