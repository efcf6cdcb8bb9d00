//! Bridges that tests start from, and the frames that they send.

pub(super) use crate::model::{frame, left, station};
use crate::{Bridge, Limits, PortId, Rules, Verdict, Vlan};

pub(super) const BROADCAST: [u8; 6] = [0xff; 6];
pub(super) const MS: u64 = 1 << 20;

/// A switch with these ports, from number 0.
pub(super) fn switch(limits: Limits, ports: &[Vlan]) -> Bridge {
    let mut bridge = Bridge::switch(limits, 77);
    for (number, vlan) in (0..).zip(ports) {
        let rules = Rules { vlan: vlan.clone(), ..Rules::default() };
        bridge.set_port(PortId(number), rules).expect("room");
    }
    bridge
}

/// A switch with so many ports and no VLANs.
pub(super) fn plain(ports: usize) -> Bridge {
    switch(Limits::default(), &vec![Vlan::None; ports])
}

/// Which port gets it; None for a flood.
pub(super) fn to(verdict: Verdict) -> Option<u16> {
    match verdict {
        Verdict::To { port, .. } => Some(port.0),
        Verdict::Flood { .. } => None,
        Verdict::Drop(reason) => panic!("dropped: {reason:?}"),
    }
}
