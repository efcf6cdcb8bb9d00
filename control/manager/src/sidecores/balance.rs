//! The sidecores' loads, looked at now and then, and what follows from them.
//!
//! What follows is `schedule::Placement`'s to say, of queues of disks and of NICs with all of theirs
//! alike; here is what it is told. How they travel is `moves`' and the network's, how loads are counted the sidecores'.
//! Called by `manager` when a look is due.

use std::time::Instant;

use schedule::{Decision, Nanos, QueueLoad};
use sidecore::nanos_of;
use tracing::{debug, info};

use crate::devices::Devices;
use crate::devices::device::Device;
use crate::devices::kind::Kind;
use crate::devices::queue::{Found, Place, Queue, Weighed};
use crate::network::nic::NicParts;
use crate::sidecores::Cores;

/// What may go elsewhere: a queue of a device, or (`None`) a NIC with all of its.
type Name = (u32, Option<u16>);

/// What goes elsewhere for its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relief {
    pub(crate) device: u32,
    /// Which of its queues; `None` is a NIC with all of them.
    pub(crate) queue: Option<u16>,
    pub(crate) to: usize,
}

/// Looks at the loads of sidecores and queues: what goes elsewhere. Of each sidecore it is told what others `lost` it,
/// and where uplinks are.
pub(crate) fn look(
    cores: &mut Cores,
    devices: &mut Devices,
    lost: impl Fn(usize) -> u32,
    uplinks: impl Iterator<Item = usize>,
    now: Instant,
) -> Vec<Relief> {
    let found = cores.measure(now);
    let has_nodes = cores.has_nodes();
    let weigh_one = |device: &mut Device| {
        let node = has_nodes.then(|| device.memory_node(now)).flatten();
        weigh(device, &found, nanos_of(now), node)
    };
    let (names, queues): (Vec<Name>, Vec<QueueLoad>) =
        devices.values_mut().flat_map(weigh_one).unzip();
    let at_home: Vec<usize> = devices.values().flat_map(goals).chain(uplinks).collect();
    let moves = match cores.decide(&found, &queues, (lost, at_home), now) {
        Decision::Stay => Vec::new(),
        Decision::Move { queue, to } => vec![(queue, to)],
        Decision::Empty { core, moves } => {
            debug!(sidecore = core, queues = moves.len(), "being emptied");
            moves
        }
        Decision::Park { core } => {
            info!(sidecore = core, "it is parked");
            Vec::new()
        }
    };
    let relief = |(at, to): (usize, usize)| {
        let (device, queue) = *names.get(at)?;
        Some(Relief { device, queue, to })
    };
    moves.into_iter().filter_map(relief).collect()
}

/// The sidecores that something of a device is on its way to.
fn goals(device: &Device) -> impl Iterator<Item = usize> {
    let travel = device.nic().and_then(NicParts::going_to);
    device.queues().iter().filter_map(Queue::moving_to).chain(travel)
}

/// What of it may go elsewhere as a whole: each queue of a disk; a NIC, with or without a guest.
fn weigh(
    device: &mut Device,
    found: &[Found],
    at: Nanos,
    node: Option<u32>,
) -> Vec<(Name, QueueLoad)> {
    let (number, mut rests) = (device.number(), device.is_held_back());
    let (mut weighed, mut sum) = (Vec::new(), 0);
    let is_fixed = device.is_fixed();
    for (index, queue) in (0..).zip(device.queues_mut()) {
        let Some(Place { core, by_hand, .. }) = queue.place() else { continue };
        let its = found.get(core).copied().unwrap_or_default();
        // To where it is nothing goes for its load.
        let is_restaged = queue.is_restaged();
        let is_underway = queue.is_underway() && !is_restaged;
        let work_ns = queue.counters().work_ns();
        let weighed_one = queue.weighed_mut();
        weighed_one.look(work_ns, its);
        if is_underway {
            weighed_one.moved = Some(at);
            rests = true;
        }
        let Weighed { load, moved, .. } = *weighed_one;
        sum += load;
        let can_move = !by_hand && !is_fixed && !is_restaged;
        let queue = QueueLoad { core, load, can_move, node, moved };
        weighed.push(((number, Some(index)), queue));
    }
    let Kind::Nic(nic) = device.kind_mut() else { return weighed };
    let travels = nic.travels();
    if rests || travels {
        nic.note_moved(at);
    }
    let Some(its) = nic.at() else { return Vec::new() };
    let (core, can_move, moved) = (its.home, nic.can_move(), its.way.moved);
    vec![((number, None), QueueLoad { core, load: sum, can_move, node, moved })]
}

#[cfg(test)]
mod tests {
    use cpus::HostCpus;
    use sidecore::{BridgeId, MoveId};
    use switch::PortId;

    use super::*;
    use crate::devices::device_plan::Facts;
    use crate::devices::queue::Owner;
    use crate::network::nic::Way;
    use crate::network::place::Place;

    #[test]
    fn a_queue_has_its_part_of_the_load_and_half_of_it_at_once() {
        let core = Found { load: 800, work_ns: 1_000_000 };
        let mut queue = Weighed::default();
        queue.look(250_000, core);
        assert_eq!(queue.load, 100);
        queue.look(500_000, core);
        assert_eq!(queue.load, 150);
        queue.look(500_000, core);
        assert_eq!(queue.load, 75);
        // Read after the sidecore's: more than all.
        queue.look(u64::MAX, core);
        assert_eq!(queue.load, (75 + 800) / 2);
        queue.look(u64::MAX, Found::default());
        assert_eq!(queue.load, 218);
    }

    fn nic() -> Device {
        let text = "[daemon]\nrun_dir = \"/run\"\n[sidecores]\ncpus = \"0\"\n[[switch]]\nid = \"lan\"\n\
                    [[nic]]\nid = \"a\"\nswitch = \"lan\"\nqueues = 2\n";
        let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
        let plan = config::plan::load(text, "file", "/", &host, None).expect("a plan");
        let plan = plan.nic("a").expect("a NIC").clone();
        Device::new(7, Facts::from(&plan), Kind::Nic(NicParts::new(plan, None)))
    }

    fn parts(device: &mut Device) -> &mut NicParts {
        match device.kind_mut() {
            Kind::Nic(nic) => nic,
            Kind::Disk(_) => unreachable!("it is a NIC"),
        }
    }

    #[test]
    fn a_nic_is_weighed_as_a_whole_and_rests_while_it_is_on_its_way() {
        let (mut device, at) = (nic(), Nanos(5));
        assert_eq!(weigh(&mut device, &[], at, None), [], "it is nowhere");
        let place = Place { bridge: BridgeId(0), port: PortId(0), is_wire: false };
        assert!(parts(&mut device).plug(Way::at(place), 1, false));
        let of = |load, can_move, moved| {
            vec![((7, None), QueueLoad { core: 1, load, can_move, node: None, moved })]
        };
        assert_eq!(weigh(&mut device, &[], at, None), of(0, true, None), "without a guest");
        for queue in &mut device.queues_mut()[..3] {
            let owner = Owner::Connection(0);
            assert!(queue.attach(crate::devices::queue::Place { core: 1, owner, by_hand: false }));
            queue.weighed_mut().load = 200;
        }
        assert_eq!(weigh(&mut device, &[], at, None), of(300, true, None));
        let wish = control::port::Wish::new(0, true);
        assert!(parts(&mut device).depart(MoveId(1), wish));
        assert_eq!(weigh(&mut device, &[], at, None), of(150, true, Some(at)));
        assert_eq!(parts(&mut device).call_off_travel(), Some(MoveId(1)));
        assert_eq!(weigh(&mut device, &[], Nanos(9), None), of(75, true, Some(at)));
        let _ = device.queues_mut()[2].ask(false, crate::clock::now());
        assert_eq!(weigh(&mut device, &[], Nanos(9), None), of(36, true, Some(Nanos(9))));
    }

    #[test]
    fn a_nic_that_an_operator_moved_stays_until_its_front_end_goes_and_a_wire_always() {
        let mut device = nic();
        let place = Place { bridge: BridgeId(0), port: PortId(0), is_wire: false };
        let can_move = |device: &mut Device| weigh(device, &[], Nanos(5), None)[0].1.can_move;
        assert!(parts(&mut device).plug(Way::at(place), 1, true));
        assert!(!can_move(&mut device));
        device.kind_mut().reset();
        assert!(can_move(&mut device));
        parts(&mut device).unplug();
        let wire = Place { is_wire: true, ..place };
        assert!(parts(&mut device).plug(Way::at(wire), 1, false));
        device.kind_mut().reset();
        assert!(!can_move(&mut device));
    }
}
