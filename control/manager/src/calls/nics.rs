//! A NIC that an operator adds: what it is wired to is opened first, and closed when it is not to be.

use config::api::ApiError;
use config::plan::NicPlan;
use config::{NicSpec, Plan};

use crate::device::Device;
use crate::kind::DevicePlan;
use crate::network::Network;
use crate::network::host_ports::{Guest, HostPorts};
use crate::opening::not_open::{NotOpen, refused_with};
use crate::opening::open::Socket;
use crate::rooms::Rooms;

/// A NIC that an operator adds, with what it is wired to.
pub(crate) struct Addition {
    pub(crate) plan: NicPlan,
    opened: Option<HostPorts>,
}

/// Why a NIC is not added, for the operator.
pub(crate) fn not_added(id: &str, error: &NotOpen) -> ApiError {
    refused_with(&format!("nic {id:?}"), error, "put that right, or name something else")
}

impl Addition {
    /// Opens what the NIC is wired to, if it is wired.
    ///
    /// # Errors
    /// Why it cannot be opened, or be a NIC of this daemon.
    pub(crate) fn begin(
        spec: &NicSpec,
        plan: &Plan,
        network: &Network,
    ) -> Result<Addition, ApiError> {
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
    /// As [`DevicePlan::open`]; what was opened is closed then.
    pub(crate) fn open(self, rooms: &mut Rooms) -> Result<Device, NotOpen> {
        let Addition { plan, opened } = self;
        let host = plan.host().cloned();
        match DevicePlan::Nic(plan).open(Socket::Own, rooms) {
            Ok(mut device) => {
                if let Some(nic) = device.kind.nic_mut() {
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
