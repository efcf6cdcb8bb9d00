//! Any sequence of steps, through a switch and through the model.

use proptest::prelude::*;

use crate::model::{Step, run, station};
use crate::{Limits, Rules, Spoof, Vlan, Vlans};

const PORTS: u16 = 5;
const VLANS: [u16; 3] = [1, 2, 4094];

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
    let mac = prop::option::weighted(0.3, (1u8..5).prop_map(station));
    let rules = (vlan, macs_max, mac, prop::bool::weighted(0.3), prop::bool::weighted(0.9))
        .prop_map(|(vlan, macs_max, mac, denies, is_up)| {
            let spoof = if denies { Spoof::Deny } else { Spoof::Allow };
            Rules { vlan, macs_max, mac, spoof, is_up }
        });
    let number = prop_oneof![Just(0u16), prop::sample::select(VLANS.to_vec()), Just(4095)];
    let tag = (number, 0u16..16).prop_map(|(vlan, priority)| priority << 12 | vlan);
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
        prop::collection::vec(any_step(with_vlans), 1..150).prop_map(|steps| {
            let first = (0..PORTS).map(|port| Step::Set(port, Rules::default()));
            first.chain(steps).collect()
        })
    })
}

proptest! {
    #[test]
    fn a_switch_does_what_the_model_does(
        steps in any_steps(),
        macs_max in prop_oneof![Just(4u32), Just(96)],
        ageing in prop_oneof![Just(20u64), Just(1000)],
    ) {
        run(Limits { ports_max: PORTS, macs_max, ageing_ns: ageing << 20 }, steps);
    }
}
