//! NICs at their ports: given one, and taken from it. How one goes from one sidecore to another is `travel`'s.

use config::plan::NicPeer;
use control::moves::NotMoved;
use sidecore::{BridgeKind, Command};
use switch::PortId;

use crate::defects::found;

use super::nic::Way;
use super::place::Place;
use super::switches::Holder;
use super::{Around, Network, NetworkError};

/// The ends of a wire.
const GUEST_END: PortId = PortId(0);
const HOST_END: PortId = PortId(1);

/// Which sidecore a NIC is to be at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) core: usize,
    /// An operator brought it there.
    pub(crate) by_hand: bool,
}

impl Network {
    /// Gives a NIC its port, where it was `before` or where that suits, and the host's end of its wire. Of any other
    /// device: nothing.
    ///
    /// # Errors
    /// No number is left, or its switch is gone.
    pub(crate) fn plug_in(
        &mut self,
        number: u32,
        before: Option<Home>,
        around: &mut Around<'_>,
    ) -> Result<(), NetworkError> {
        let Some(device) = around.devices.get_mut(number) else {
            around.turn.defects.note("device to plug in");
            return Ok(());
        };
        let Some(nic) = device.nic() else { return Ok(()) };
        let (plan, rings) = (nic.plan().clone(), usize::from(device.facts().rings));
        let Home { core: home, by_hand } = match before {
            Some(before) => {
                around.cores.wake(before.core);
                before
            }
            None => {
                let core = match &plan.peer {
                    NicPeer::Switch(_) => {
                        let node = || device.memory_node(around.turn.now());
                        around.cores.place_movable(rings, node)
                    }
                    NicPeer::Host(_) => around.cores.place_fixed(),
                };
                Home { core: core.unwrap_or_default(), by_hand: false }
            }
        };
        let place = match &plan.peer {
            NicPeer::Switch(id) => {
                let gone = || NetworkError::NoSwitch(id.clone());
                let bridge = self.switch(id).ok_or_else(gone)?.bridge();
                self.connect_homes(bridge, home, around);
                let port = self.switch_mut(id).and_then(|it| it.take_port(Holder::Nic(number)));
                port.ok_or_else(|| NetworkError::Ports(id.clone()))?
            }
            NicPeer::Host(_) => {
                let bridge = self.name_bridge()?;
                around.cores.send(home, Command::SetBridge(bridge, Some(BridgeKind::Wire)));
                Place { bridge, port: GUEST_END, is_wire: true }
            }
        };
        around.cores.take_load(home, rings);
        let Some(nic) = around.devices.nic_mut(number) else { return Ok(()) };
        if !nic.plug(Way::at(place), home, by_hand) {
            around.turn.defects.note("port of a NIC that is plugged in");
        }
        nic.say_port(around.cores);
        if let NicPeer::Host(host) = &plan.peer {
            let (opened, end) = (nic.take_opened(), Place { port: HOST_END, ..place });
            let wire = (number, &plan, host.clone());
            let uplink = self.wire_up(wire, (end, home), opened, around);
            if let Some(nic) = around.devices.nic_mut(number) {
                nic.wire_to(uplink);
            }
        }
        Ok(())
    }

    /// Moves a NIC whose queues are all here to the switch that has its switch's name now.
    pub(crate) fn plug_in_anew(&mut self, number: u32, around: &mut Around<'_>) {
        self.unplug(number, around);
        if let Err(error) = self.plug_in(number, None, around)
            && let Some(device) = around.devices.get_mut(number)
        {
            device.say_problem(error.to_string());
        }
    }

    /// Takes a NIC's port away. False: the host's end of its wire is still with its sidecore, and the
    /// device is settled again when it is back.
    pub(crate) fn unplug(&mut self, number: u32, around: &mut Around<'_>) -> bool {
        let Some(device) = around.devices.get_mut(number) else {
            around.turn.defects.note("device to unplug");
            return true;
        };
        let rings = usize::from(device.facts().rings);
        let Some(nic) = device.nic_mut() else { return true };
        // Whatever its sidecores come to, it is not there any more.
        if let Some(id) = nic.call_off_travel() {
            around.turn.call_off(id, NotMoved::Removed);
        }
        let Some(at) = nic.at() else { return true };
        if let Some(uplink) = at.way.uplink {
            self.remove_uplink(uplink, around);
            if self.uplinks.contains_key(&uplink) {
                return false;
            }
        }
        let place = at.way.place;
        place.tell(at.home, None, around.cores);
        if place.is_wire {
            around.cores.send(at.home, Command::SetBridge(place.bridge, None));
            self.bridges.give_back(place.bridge.0);
        }
        around.cores.give_load(at.home, rings);
        let nic = around.devices.nic_mut(number);
        found!(around.turn.defects, nic, "NIC to unplug").unplug();
        self.leave_switch(place, around);
        true
    }
}
