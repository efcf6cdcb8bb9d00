//! Where a port is: its bridge, its number there, and who knows it. Not here: what is at it.

use config::plan::VlanPlan;
use sidecore::{BridgeId, Command, PortSpec};
use switch::{PortId, Vlan, Vlans};

use crate::sidecores::Cores;

/// Where a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) bridge: BridgeId,
    pub(crate) port: PortId,
    /// Only its home knows a wire.
    pub(crate) is_wire: bool,
}

impl Place {
    /// Tells sidecores what the port is now, whose home is `home`; nothing, when it is none any more.
    pub(crate) fn tell(self, home: usize, spec: Option<PortSpec>, cores: &mut Cores) {
        let command = || Command::SetPort(self.bridge, self.port, spec.clone().map(Box::new));
        match self.is_wire {
            true => cores.send(home, command()),
            false => cores.send_all(command),
        }
    }
}

/// The rule about VLANs, as a switch takes it.
pub(crate) fn vlan_of(plan: &VlanPlan) -> Vlan {
    match plan {
        VlanPlan::None => Vlan::None,
        VlanPlan::Access(vlan) => Vlan::Access(*vlan),
        VlanPlan::Trunk { native, allowed } => match Vlans::new(allowed) {
            Ok(allowed) => Vlan::Trunk { native: *native, allowed },
            // The plan has only VLANs that can be used.
            Err(_) => Vlan::None,
        },
    }
}
