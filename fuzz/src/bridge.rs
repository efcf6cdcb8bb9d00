//! Ports that come, change and go, stations that send and move, time that passes: a switch, and the
//! model of one (`switch::model`), which asserts that both do the same. Heads of any bytes besides.
//!
//! What must hold: nothing panics; the verdict, the tags that each receiver gets and the stations that
//! are known are those of the model; what any bytes lead to names a port that exists.

use switch::model::{Step, run as run_model, station};
use switch::{Bridge, Egress, Limits, PortId, Rules, Spoof, Verdict, Vlan, Vlans};

use crate::bytes::Bytes;

const PORTS: u16 = 4;
const VLANS: [u16; 3] = [1, 2, 4094];
/// Steps of one input: each is checked against the whole of the model.
const STEPS_MAX: usize = 64;

/// Makes one input happen.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes(input);
    let shape = bytes.u8();
    let limits = Limits {
        ports_max: PORTS,
        macs_max: if shape & 1 != 0 { 3 } else { 96 },
        ageing_ns: u64::from(bytes.u8()) << 20,
    };
    if shape & 2 != 0 {
        return heads(limits, shape & 4 != 0, bytes);
    }
    let mut steps = Vec::new();
    // Stations and VLANs are few, so that no eight of them meet in one place of the table by chance.
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        let kind = bytes.u8();
        let port = u16::from(kind >> 4) % PORTS;
        steps.push(match kind % 16 {
            0..=2 => Step::Set(port, rules(&mut bytes)),
            3 => Step::Remove(port),
            4 => Step::Wait(u64::from(bytes.u8())),
            5 => Step::Wait(u64::from(bytes.u16())),
            _ => {
                let stations = bytes.u8();
                let (from, to) = (1 + stations % 8, 1 + (stations >> 4) % 8);
                Step::Send { port, from, to, tags: tags(&mut bytes) }
            }
        });
    }
    run_model(limits, steps);
}

fn rules(bytes: &mut Bytes<'_>) -> Rules {
    let kind = bytes.u8();
    let one = VLANS[usize::from(kind >> 2) % VLANS.len()];
    let vlan = match kind & 3 {
        0 | 1 => Vlan::None,
        2 => Vlan::Access(one),
        _ => {
            let which = bytes.u8();
            let chosen = VLANS.iter().enumerate().filter(|(at, _)| which >> at & 1 != 0);
            let chosen: Vec<u16> = chosen.map(|(_, vlan)| *vlan).collect();
            let allowed = Vlans::new(&chosen).expect("VLANs that can be used");
            Vlan::Trunk { native: (which & 8 != 0).then_some(one), allowed }
        }
    };
    let limits = [0, 1, 2, 1024];
    let own = bytes.u8();
    Rules {
        vlan,
        macs_max: limits[usize::from(kind >> 4) & 3],
        mac: (own & 16 != 0).then(|| station(1 + own % 8)),
        spoof: if own & 32 != 0 { Spoof::Deny } else { Spoof::Allow },
        is_up: kind & 0xc0 != 0xc0,
    }
}

fn tags(bytes: &mut Bytes<'_>) -> Vec<(u16, u16)> {
    let kind = bytes.u8();
    let mut tag = |which: u8| {
        let value = match which & 7 {
            0 => bytes.u16(),
            1 => 0x6000,
            2 => 4095,
            other => 0xe000 | VLANS[usize::from(other) % VLANS.len()],
        };
        (if which & 8 != 0 { 0x88a8 } else { 0x8100 }, value)
    };
    match kind & 3 {
        0 => Vec::new(),
        1 | 2 => vec![tag(kind >> 4)],
        _ => vec![tag(kind >> 4), tag(kind >> 2)],
    }
}

/// Any bytes as heads, at a switch or a wire.
fn heads(limits: Limits, is_wire: bool, mut bytes: Bytes<'_>) {
    let mut bridge = if is_wire { Bridge::wire() } else { Bridge::switch(limits, 1) };
    let mut now = 0;
    while !bytes.is_empty() {
        let kind = bytes.u8();
        let port = PortId(u16::from(kind >> 4) % PORTS);
        now += u64::from(bytes.u8()) << 18;
        match kind % 8 {
            // A third end of a wire is refused, and that is all.
            0 => drop(bridge.set_port(port, rules(&mut bytes))),
            1 => bridge.remove_port(port),
            _ => {
                let len = usize::from(bytes.u8());
                let head = bytes.take(len);
                let verdict = bridge.decide(port, head, now);
                let vlan = match verdict {
                    Verdict::To { vlan, .. } | Verdict::Flood { vlan } => vlan,
                    Verdict::Drop(_) => continue,
                };
                assert!(head.len() >= 14);
                if let Verdict::To { port: to, .. } = verdict {
                    assert!(to != port && bridge.ports().any(|one| one == to));
                }
                for to in bridge.ports() {
                    let is_popped = bridge.egress(to, vlan) == Egress::Pop;
                    assert!(!is_popped || frame::tag::read(head).is_some(), "no tag to pop");
                }
            }
        }
    }
}
