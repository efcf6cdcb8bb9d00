//! Frames that tests send, and what a receiver would get.

use frame::tag::{self, Tag};

use crate::{Bridge, Egress, Limits, PortId, Rules, Verdict, Vlan};

pub(super) const BROADCAST: [u8; 6] = [0xff; 6];
pub(super) const MS: u64 = 1 << 20;

/// A station's address.
pub(super) fn station(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// A head with these tags: type and value each.
pub(super) fn frame(to: [u8; 6], from: [u8; 6], tags: &[(u16, u16)]) -> Vec<u8> {
    let mut bytes = [to, from].concat();
    for (kind, value) in tags {
        bytes.extend(kind.to_be_bytes());
        bytes.extend(value.to_be_bytes());
    }
    bytes.extend([0x08, 0x00, 1, 2, 3, 4]);
    bytes
}

/// The frame as it leaves a port, if it does.
pub(super) fn left(egress: Egress, head: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = head.to_vec();
    let len = bytes.len();
    bytes.resize(len + tag::SIZE, 0);
    let len = match egress {
        Egress::Refuse(_) => return None,
        Egress::Keep => len,
        Egress::Push(vlan) => tag::push(&mut bytes, len, Tag(vlan)).expect("room"),
        Egress::Pop => tag::pop(&mut bytes, len).expect("a tag to pop"),
        Egress::Retag(vlan) => {
            assert_eq!(tag::read(&bytes).map(Tag::vlan), Some(0), "only a priority tag is changed");
            tag::set_vlan(&mut bytes, vlan);
            len
        }
    };
    assert_eq!(len as i64, head.len() as i64 + i64::from(egress.shift()));
    bytes.truncate(len);
    Some(bytes)
}

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
