//! Bridges against a model that keeps everything in a map and looks at all of it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::frames::{MS, frame, left, station};
use crate::{Bridge, DropReason, Limits, PortId, Rules, Verdict, Vlan, Vlans};

const PORTS: u16 = 5;
const VLANS: [u16; 3] = [1, 2, 4094];

#[derive(Clone, Debug)]
enum Step {
    Set(u16, Rules),
    Remove(u16),
    Send { port: u16, from: u8, to: u8, tags: Vec<(u16, u16)> },
    Wait(u64),
}

/// Ports and stations as they should be. Stations that have aged stay until they are known to be
/// gone, since the bridge may count them until then.
struct Model {
    ports: BTreeMap<u16, Rules>,
    stations: BTreeMap<([u8; 6], u16), (u16, u64)>,
    ageing: u64,
    macs_max: usize,
    now: u64,
}

impl Model {
    fn is_ruled(&self) -> bool {
        self.ports.values().any(|rules| rules.vlan != Vlan::None)
    }

    fn is_young(&self, seen: u64) -> bool {
        self.now - seen <= self.ageing
    }

    fn young(&self) -> BTreeSet<([u8; 6], u16, u16)> {
        let known = self.stations.iter().filter(|(_, (_, seen))| self.is_young(*seen));
        known.map(|((address, vlan), (port, _))| (*address, *vlan, *port)).collect()
    }

    /// The VLAN of a frame that comes in, and the bytes of it that others get without a tag.
    fn ingress(&self, port: u16, tags: &[(u16, u16)]) -> Option<u16> {
        let vlan = &self.ports[&port].vlan;
        let untagged = match vlan {
            Vlan::None => Some(0),
            Vlan::Access(vlan) => Some(*vlan),
            Vlan::Trunk { native, .. } => *native,
        };
        match tags {
            _ if !self.is_ruled() => Some(0),
            [] | [(0x8100, 0)] => untagged,
            [(0x8100, 0), ..] => None,
            [(0x8100, tag), ..] => match vlan {
                Vlan::Trunk { native, allowed } => {
                    (allowed.contains(*tag) || *native == Some(*tag)).then_some(*tag)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The tags that a receiver gets; None when it gets nothing.
    fn egress(&self, port: u16, vlan: u16, tags: &[(u16, u16)]) -> Option<Vec<(u16, u16)>> {
        let rules = self.ports.get(&port).filter(|rules| rules.is_up)?;
        if !self.is_ruled() {
            return Some(tags.to_vec());
        }
        let inner = tags.get(1..).unwrap_or(&[]).to_vec();
        let (is_member, is_tagged) = match &rules.vlan {
            Vlan::None => (vlan == 0, false),
            Vlan::Access(one) => (vlan == *one, false),
            Vlan::Trunk { native, allowed } => {
                (*native == Some(vlan) || allowed.contains(vlan), *native != Some(vlan))
            }
        };
        match (is_member, is_tagged) {
            (false, _) => None,
            (true, true) => Some([vec![(0x8100, vlan)], inner].concat()),
            // A tag is never uncovered.
            (true, false) => inner.is_empty().then_some(inner),
        }
    }
}

/// Runs the steps against both.
fn run(steps: Vec<Step>, macs_max: u32, ageing: u64) {
    let limits = Limits { ports_max: PORTS, macs_max, ageing_ns: ageing * MS };
    let mut bridge = Bridge::switch(limits, 1);
    let mut model = Model {
        ports: BTreeMap::new(),
        stations: BTreeMap::new(),
        ageing,
        macs_max: macs_max as usize,
        now: 0,
    };
    for step in steps {
        match step {
            Step::Wait(ticks) => model.now += ticks,
            Step::Set(port, rules) => {
                bridge.set_port(PortId(port), rules.clone()).expect("a port");
                let before = model.ports.insert(port, rules.clone());
                if before.is_none_or(|before| before.vlan != rules.vlan) || !rules.is_up {
                    model.stations.retain(|_, (at, _)| *at != port);
                }
            }
            Step::Remove(port) => {
                bridge.remove_port(PortId(port));
                model.ports.remove(&port);
                model.stations.retain(|_, (at, _)| *at != port);
            }
            Step::Send { port, from, to, tags } => {
                send(&mut bridge, &mut model, port, from, to, &tags)
            }
        }
        check(&bridge, &model);
    }
}

/// What is known is the same, and counts are between those that are young and all.
fn check(bridge: &Bridge, model: &Model) {
    let known = bridge.macs(model.now * MS).map(|mac| (mac.address, mac.vlan, mac.port.0));
    assert_eq!(known.collect::<BTreeSet<_>>(), model.young());
    let ports: Vec<u16> = bridge.ports().map(|port| port.0).collect();
    assert!(ports.iter().eq(model.ports.keys()));
    for port in 0..PORTS {
        let kept = bridge.learned(PortId(port)) as usize;
        let all = model.stations.values().filter(|(at, _)| *at == port).count();
        let young = model.young().iter().filter(|(_, _, at)| *at == port).count();
        assert!((young..=all).contains(&kept), "port {port}: {young} <= {kept} <= {all}");
    }
}

fn send(bridge: &mut Bridge, model: &mut Model, port: u16, from: u8, to: u8, tags: &[(u16, u16)]) {
    let (source, target) = (station(from), station(to));
    let head = frame(target, source, tags);
    let kept = |bridge: &Bridge| (0..PORTS).map(|port| bridge.learned(PortId(port))).sum::<u32>();
    let before = (bridge.learned(PortId(port)), kept(bridge) as usize, bridge.unlearned());
    let verdict = bridge.decide(PortId(port), &head, model.now * MS);
    let dropped = match model.ports.get(&port) {
        None => Some(DropReason::NoPort),
        Some(rules) if !rules.is_up => Some(DropReason::LinkDown),
        Some(_) if model.ingress(port, tags).is_none() => Some(DropReason::Vlan),
        Some(_) => None,
    };
    if let Some(reason) = dropped {
        return assert_eq!(verdict, Verdict::Drop(reason));
    }
    let vlan = model.ingress(port, tags).expect("seen above");
    let key = (source, vlan);
    let known = model.stations.get(&key).copied().filter(|(_, seen)| model.is_young(*seen));
    if known.is_none_or(|(at, _)| at != port) {
        let macs_max = u32::from(model.ports[&port].macs_max);
        let young = model.young();
        let young_here = young.iter().filter(|(_, _, at)| *at == port).count() as u32;
        let is_limited = verdict == Verdict::Drop(DropReason::MacLimit);
        assert!(is_limited || young_here < macs_max, "more stations than the limit");
        assert!(!is_limited || before.0 >= macs_max, "a place was free");
        if is_limited {
            return;
        }
        let is_full = bridge.unlearned() > before.2;
        assert!(is_full || known.is_some() || young.len() < model.macs_max);
        assert!(!is_full || before.1 >= model.macs_max, "the table had room");
        if !is_full {
            model.stations.insert(key, (port, model.now));
        }
    } else {
        model.stations.insert(key, (port, model.now));
    }
    let found = model.stations.get(&(target, vlan)).filter(|(_, seen)| model.is_young(*seen));
    let receivers: Vec<u16> = match (verdict, found) {
        (Verdict::Drop(DropReason::Same), Some((at, _))) if *at == port => return,
        (Verdict::To { port: to, .. }, Some((at, _))) if *at != port && to.0 == *at => vec![*at],
        (Verdict::Flood { .. }, None) => (0..PORTS).filter(|at| *at != port).collect(),
        other => panic!("{other:?}"),
    };
    let id = match verdict {
        Verdict::To { vlan, .. } | Verdict::Flood { vlan } => vlan,
        Verdict::Drop(reason) => panic!("{reason:?}"),
    };
    assert_eq!(id.number(), vlan);
    for receiver in receivers {
        let expected = model.egress(receiver, vlan, tags).map(|tags| frame(target, source, &tags));
        assert_eq!(left(bridge.egress(PortId(receiver), id), &head), expected, "at {receiver}");
    }
}

fn any_vlan() -> impl Strategy<Value = Vlan> {
    let number = prop::sample::select(VLANS.to_vec());
    let trunk =
        (prop::option::of(number.clone()), prop::sample::subsequence(VLANS.to_vec(), 0..=3));
    prop_oneof![
        2 => Just(Vlan::None),
        2 => number.prop_map(Vlan::Access),
        2 => trunk.prop_map(|(native, allowed)| {
            Vlan::Trunk { native, allowed: Vlans::new(&allowed).expect("VLANs") }
        }),
    ]
}

fn any_step(with_vlans: bool) -> impl Strategy<Value = Step> {
    let vlan = if with_vlans { any_vlan().boxed() } else { Just(Vlan::None).boxed() };
    let macs_max = prop_oneof![Just(0u16), Just(1), Just(3), Just(1024)];
    let rules = (vlan, macs_max, prop::bool::weighted(0.9))
        .prop_map(|(vlan, macs_max, is_up)| Rules { vlan, macs_max, is_up });
    let tag = prop_oneof![Just(0u16), prop::sample::select(VLANS.to_vec()), Just(4095)];
    let kind = prop_oneof![9 => Just(0x8100u16), 1 => Just(0x88a8)];
    let tags = prop_oneof![
        3 => Just(Vec::new()),
        3 => (kind.clone(), tag.clone()).prop_map(|tag| vec![tag]),
        1 => prop::collection::vec((kind, tag), 2),
    ];
    let wait = prop_oneof![Just(1u64), 1u64..30, 50u64..5000];
    prop_oneof![
        3 => (0..PORTS, rules).prop_map(|(port, rules)| Step::Set(port, rules)),
        1 => (0..PORTS).prop_map(Step::Remove),
        24 => (0..PORTS, 1u8..9, 1u8..9, tags)
            .prop_map(|(port, from, to, tags)| Step::Send { port, from, to, tags }),
        3 => wait.prop_map(Step::Wait),
    ]
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    any::<bool>().prop_flat_map(|with_vlans| {
        let ports = prop::collection::vec(any_step(with_vlans), 1..150);
        ports.prop_map(|steps| {
            let first = (0..PORTS).map(|port| Step::Set(port, Rules::default()));
            first.chain(steps).collect()
        })
    })
}

proptest! {
    #[test]
    fn a_switch_does_what_the_model_does(
        steps in any_steps(),
        macs_max in prop_oneof![Just(4u32), Just(8192)],
        ageing in prop_oneof![Just(20u64), Just(1000)],
    ) {
        run(steps, macs_max, ageing);
    }
}
