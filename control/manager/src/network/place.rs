//! Where a port is: its bridge, its number there, and who knows it. Not here: what is at it.

use config::plan::VlanPlan;
use sidecore::{BridgeId, Command, PortSpec};
use switch::{PortId, Vlan, Vlans};

use crate::defects::Defects;
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

/// The rule about VLANs, as a switch takes it. One that cannot be made lets nothing through.
pub(crate) fn vlan_of(plan: &VlanPlan, defects: &mut Defects) -> Vlan {
    match plan {
        VlanPlan::None => Vlan::None,
        VlanPlan::Access(vlan) => Vlan::Access(*vlan),
        VlanPlan::Trunk { native, allowed } => match Vlans::new(allowed) {
            Ok(allowed) => Vlan::Trunk { native: *native, allowed },
            Err(_) => {
                defects.note("trunk of VLANs that can be used");
                Vlan::Trunk { native: None, allowed: Vlans::none() }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port that is to be kept apart from others is not opened to them by a fault of the daemon's.
    #[test]
    fn a_trunk_that_cannot_be_made_carries_nothing_and_is_a_defect() {
        let mut defects = Defects::default();
        let trunk =
            |allowed: &[u16]| VlanPlan::Trunk { native: Some(3), allowed: allowed.to_vec() };
        let sound = Vlan::Trunk { native: Some(3), allowed: Vlans::new(&[5]).expect("a VLAN") };
        assert_eq!(vlan_of(&trunk(&[5]), &mut defects), sound);
        assert!(defects.views().is_empty());
        let closed = Vlan::Trunk { native: None, allowed: Vlans::none() };
        assert_eq!(vlan_of(&trunk(&[5, 4095]), &mut defects), closed);
        assert_eq!(defects.views().len(), 1);
    }
}
