//! The sidecores' loads, looked at now and then, and what follows from them.
//!
//! What follows is `schedule::Placement`'s to say, of queues of disks and of NICs with all of theirs
//! alike; here is what it is told, and that it is done. How they travel is `moves`' and `network::travel`, how
//! loads are counted the sidecores'.
//! Called by `manager` when a look is due, and by whoever needs a sidecore for something.

use std::time::{Duration, Instant};

use schedule::{CoreLoad, Decision, LOAD_FULL, Nanos, Placement, QueueLoad, Use};
use tracing::{debug, info};

use crate::cores::{Cores, QUEUES_MAX};
use crate::defects::found;
use crate::device::Device;
use crate::kind::Kind;
use crate::manager::Manager;
use crate::queue::{Found, Place, Queue, Weighed, part};

/// What may go elsewhere: a queue of a device, or (`None`) a NIC with all of its.
type Name = (u32, Option<u16>);

/// Between two looks while there is load, or a sidecore that may be parked.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// And otherwise: a look at a thousand queues takes 0.1 ms.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Counts of a sidecore at the last look.
#[derive(Clone, Copy, Default)]
struct Seen {
    busy_ns: u64,
    idle_ns: u64,
    looks_ns: u64,
    work_ns: u64,
    /// What it worked between the last two looks, thousandths of the time.
    load: u32,
    /// What it was awake for without work, of the same.
    polled: u32,
}

/// What is known of the sidecores' loads.
pub(crate) struct Balance {
    placement: Placement,
    /// The NUMA node of each sidecore; empty on a host that has one only.
    nodes: Vec<u32>,
    start: Instant,
    last: Instant,
    next: Instant,
    seen: Vec<Seen>,
}

/// The NUMA node of each cpu; nothing where all are on one.
pub(crate) fn nodes_of(cpus: &[u32], topology: &host::Topology) -> Vec<u32> {
    if topology.nodes().len() < 2 {
        return Vec::new();
    }
    let node = |cpu: &u32| topology.cpus.iter().find(|c| c.cpu == *cpu).map_or(0, |c| c.node);
    cpus.iter().map(node).collect()
}

impl Balance {
    /// `count` sidecores on `nodes`, as [`nodes_of`] says; at least `min` are to be in use.
    pub(crate) fn new(count: usize, nodes: Vec<u32>, min: usize, now: Instant) -> Balance {
        let placement = match nodes.len() == count {
            true => Placement::new(&nodes, min),
            false => Placement::new(&vec![0; count], min),
        };
        let (next, seen) = (now + IDLE_INTERVAL, vec![Seen::default(); count]);
        Balance { placement, nodes, start: now, last: now, next, seen }
    }

    /// Its NUMA node, if there are several.
    pub(crate) fn node(&self, core: usize) -> Option<u32> {
        self.nodes.get(core).copied()
    }

    pub(crate) fn state(&self, core: usize) -> Use {
        self.placement.state(core)
    }

    /// What it worked at the last look, thousandths of its time.
    pub(crate) fn load(&self, core: usize) -> u32 {
        self.seen.get(core).map_or(0, |seen| seen.load)
    }

    /// What it was awake for without work at the last look, thousandths of its time.
    pub(crate) fn polled(&self, core: usize) -> u32 {
        self.seen.get(core).map_or(0, |seen| seen.polled)
    }

    /// Something comes to that sidecore, whatever its load.
    pub(crate) fn wake(&mut self, core: usize) {
        if self.placement.state(core) == Use::Parked {
            info!(sidecore = core, "it is in use");
        }
        self.placement.wake(core);
    }

    /// Whether nodes are worth asking for.
    pub(crate) fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// When the next look is due; never, when nothing is attached and nothing can be parked.
    pub(crate) fn due_at(&self, cores: &Cores) -> Option<Instant> {
        let is_quiet = !cores.has_queues() && !self.placement.is_restless();
        let is_least = self.placement.in_use() <= self.placement.min();
        (!is_quiet || !is_least).then_some(self.next)
    }

    fn nanos(&self, now: Instant) -> Nanos {
        Nanos(now.saturating_duration_since(self.start).as_nanos() as u64)
    }

    /// What the sidecores did since the last look.
    fn measure(&mut self, cores: &Cores, now: Instant) -> Vec<Found> {
        let time_ns = now.saturating_duration_since(self.last).as_nanos().max(1) as u64;
        self.last = now;
        let found = cores.all.iter().zip(&mut self.seen).map(|(core, seen)| {
            let counters = core.handle.counters();
            let now = Seen {
                busy_ns: counters.busy_ns,
                idle_ns: counters.idle_ns,
                looks_ns: counters.looks_ns,
                work_ns: counters.work_ns,
                load: 0,
                polled: 0,
            };
            seen.follow(now, time_ns)
        });
        found.collect()
    }
}

impl Seen {
    /// The counts are `now` after so long: what was done since the last look.
    fn follow(&mut self, now: Seen, time_ns: u64) -> Found {
        let before = std::mem::replace(self, now);
        let since = |of: fn(&Seen) -> u64| of(&now).saturating_sub(of(&before));
        let awake_ns = since(|seen| seen.busy_ns);
        // From samples: now and then a little more than all of it.
        let looks_ns = since(|seen| seen.looks_ns).min(awake_ns);
        let load = part(awake_ns - looks_ns, time_ns, LOAD_FULL);
        let polled_ns = since(|seen| seen.idle_ns).saturating_add(looks_ns);
        self.load = load;
        self.polled = part(polled_ns, time_ns, LOAD_FULL).min(LOAD_FULL - load);
        Found { load, work_ns: since(|seen| seen.work_ns) }
    }
}

impl Device {
    /// What of it may go elsewhere as a whole: each queue of a disk; a NIC, with or without a guest.
    fn weigh(&mut self, found: &[Found], at: Nanos, node: Option<u32>) -> Vec<(Name, QueueLoad)> {
        let (number, mut rests) = (self.number, self.is_held_back());
        let (mut weighed, mut sum) = (Vec::new(), 0);
        let is_fixed = self.is_fixed();
        for (index, queue) in (0..).zip(&mut self.queues) {
            let Some(Place { core, by_hand, .. }) = queue.place() else { continue };
            let its = found.get(core).copied().unwrap_or_default();
            let (work_ns, is_underway) = (queue.counters().work_ns(), queue.is_underway());
            let weighed_one = queue.weighed_mut();
            weighed_one.look(work_ns, its);
            if is_underway {
                weighed_one.moved = Some(at);
                rests = true;
            }
            let Weighed { load, moved, .. } = *weighed_one;
            sum += load;
            let can_move = !by_hand && !is_fixed;
            let queue = QueueLoad { core, load, can_move, node, moved };
            weighed.push(((number, Some(index)), queue));
        }
        let Kind::Nic(nic) = &mut self.kind else { return weighed };
        let travels = nic.travels();
        if let Some(way) = nic.port.way_mut().filter(|_| rests || travels) {
            way.moved = Some(at);
        }
        let Some(plug) = nic.plug() else { return Vec::new() };
        let (core, can_move, moved) = (plug.place.home, plug.can_move(), plug.moved);
        vec![((number, None), QueueLoad { core, load: sum, can_move, node, moved })]
    }
}

impl Manager {
    /// The sidecore for so many queues of a device that start now, together. They may be moved later.
    pub(crate) fn place_movable(&mut self, number: u32, queues: usize) -> Option<usize> {
        let node = self.memory_node(number);
        let place = self.rooms.balance.placement.place(node, |core| self.rooms.cores.queues(core));
        let has_room = |core: &usize| self.rooms.cores.queues(*core) + queues <= QUEUES_MAX.into();
        place.filter(has_room).or_else(|| self.place_fixed())
    }

    /// The sidecore for what stays there: that with the fewest queues, in use or not.
    pub(crate) fn place_fixed(&mut self) -> Option<usize> {
        let core = found!(self.rooms.turn.defects, self.rooms.cores.place(), "sidecore");
        self.rooms.balance.wake(core);
        Some(core)
    }

    /// Looks at the loads, if that is due.
    pub(crate) fn balance(&mut self, now: Instant) {
        let is_due = self.rooms.balance.due_at(&self.rooms.cores).is_some_and(|due| due <= now);
        // Nobody is to be on the way when another process takes over.
        if !is_due || !self.mode().may_move() {
            return;
        }
        let found = self.rooms.balance.measure(&self.rooms.cores, now);
        let at = self.rooms.balance.nanos(now);
        let (names, queues) = self.weigh(&found, at, now);
        let needed = self.needed();
        let (turn, devices) = (&mut self.rooms.turn, &mut self.rooms.devices);
        self.rooms.guests.see_rivals(turn, devices);
        let load = |(core, (found, is_needed)): (usize, (&Found, &bool))| {
            let lost = self.rooms.guests.lost(core);
            // Passes are counted by the clock: what was lost within those that worked is in their time.
            let worked = found.load.saturating_add(self.rooms.balance.polled(core));
            let load = found.load.saturating_sub(part(found.load.into(), worked.into(), lost));
            CoreLoad { load, lost, is_needed: *is_needed }
        };
        let loads: Vec<CoreLoad> = found.iter().zip(&needed).enumerate().map(load).collect();
        match self.rooms.balance.placement.decide(at, &loads, &queues) {
            Decision::Stay => {}
            Decision::Move { queue, to } => self.relieve(names.get(queue), to, at),
            Decision::Empty { core, moves } => {
                debug!(sidecore = core, queues = moves.len(), "being emptied");
                moves.into_iter().for_each(|(queue, to)| self.relieve(names.get(queue), to, at));
            }
            Decision::Park { core } => info!(sidecore = core, "it is parked"),
        }
        let is_restless = self.rooms.balance.placement.is_restless();
        self.rooms.balance.next = now + if is_restless { LOOK_INTERVAL } else { IDLE_INTERVAL };
    }

    /// All that a sidecore has, and what it weighs.
    fn weigh(&mut self, found: &[Found], at: Nanos, now: Instant) -> (Vec<Name>, Vec<QueueLoad>) {
        let has_nodes = self.rooms.balance.has_nodes();
        let weigh = |device: &mut Device| {
            let node = has_nodes.then(|| device.memory_node(now)).flatten();
            device.weigh(found, at, node)
        };
        self.rooms.devices.values_mut().flat_map(weigh).unzip()
    }

    /// The sidecores that are not to be parked though nothing that was weighed says so: homes of uplinks,
    /// those to which something is on its way; all of them, when the others could not hold the queues.
    fn needed(&self) -> Vec<bool> {
        let count = self.rooms.cores.all.len();
        let queues: usize = (0..count).map(|core| self.rooms.cores.queues(core)).sum();
        let rest = self.rooms.balance.placement.in_use().saturating_sub(1);
        let is_crowded = queues > rest * usize::from(QUEUES_MAX) / 2;
        let mut needed = vec![is_crowded; count];
        let to = |device| {
            let Device { queues, kind, .. }: &Device = device;
            let travel = kind.nic().and_then(|nic| nic.port.moving()).map(|moving| moving.to);
            queues.iter().filter_map(Queue::moving_to).chain(travel)
        };
        let uplinks = self.rooms.network.uplinks.values().map(|uplink| uplink.place.home);
        for core in self.rooms.devices.values().flat_map(to).chain(uplinks) {
            if let Some(needed) = needed.get_mut(core) {
                *needed = true;
            }
        }
        needed
    }

    /// Moves a queue, or a NIC, to where there is more room for it.
    fn relieve(&mut self, name: Option<&Name>, to: usize, at: Nanos) {
        let &(number, index) = found!(self.rooms.turn.defects, name, "queue that was weighed");
        let Some(index) = index else { return self.relieve_of_nic(number, to, at) };
        let queue = found!(
            self.rooms.turn.defects,
            self.rooms.devices.queue_mut(number, index),
            "queue to move for its load"
        );
        queue.weighed_mut().moved = Some(at);
        let (from, load) = (queue.place().map(|place| place.core), queue.weighed().load);
        let moved = self.begin_move(number, index, to, false);
        debug!(device = number, queue = index, from, to, load, begun = moved.is_some(), "balance");
    }

    /// A NIC that cannot go just now, or stays, is looked at again after a pause.
    fn relieve_of_nic(&mut self, number: u32, to: usize, at: Nanos) {
        let from = self.rooms.devices.nic_mut(number).and_then(|nic| {
            nic.port.way_mut()?.moved = Some(at);
            Some(nic.plug()?.place.home)
        });
        let device = self.rooms.devices.get(number);
        let id =
            found!(self.rooms.turn.defects, device, "NIC to move for its load").facts.id.clone();
        let may = self.nic_may_move(&id, to).is_ok_and(|found| found == number);
        let moved = if may { self.begin_nic_move(number, to, false) } else { None };
        debug!(device = number, from, to, begun = moved.is_some(), "balance");
    }

    /// The NUMA node of a device's guest, if there are several and it is known.
    fn memory_node(&mut self, number: u32) -> Option<u32> {
        if !self.rooms.balance.has_nodes() {
            return None;
        }
        let device = self.rooms.devices.get_mut(number);
        found!(self.rooms.turn.defects, device, "device to place")
            .memory_node(self.rooms.turn.now())
    }
}

#[cfg(test)]
mod tests {
    use cpus::HostCpus;
    use sidecore::{BridgeId, MoveId};
    use switch::PortId;

    use super::*;
    use crate::kind::Facts;
    use crate::network::Place;
    use crate::network::nic::{NicParts, Plug};
    use crate::queue::Owner;

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

    #[test]
    fn a_sidecore_works_or_polls_or_sleeps() {
        let mut seen = Seen::default();
        let at = |busy_ns, idle_ns, looks_ns| Seen { busy_ns, idle_ns, looks_ns, ..seen };
        let counts =
            [at(300, 500, 100), at(300, 1500, 100), at(300, 1500, 100), at(1400, 1500, 200)];
        let of = |now: &Seen| (seen.follow(*now, 1000).load, seen.polled);
        let found: Vec<(u32, u32)> = counts.iter().map(of).collect();
        // It slept for 200; polled; slept; was found busy for longer than the time that went by.
        assert_eq!(found, [(200, 600), (0, 1000), (0, 0), (1000, 0)]);
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
        match &mut device.kind {
            Kind::Nic(nic) => nic,
            Kind::Disk(_) => unreachable!("it is a NIC"),
        }
    }

    #[test]
    fn a_nic_is_weighed_as_a_whole_and_rests_while_it_is_on_its_way() {
        let (mut device, at) = (nic(), Nanos(5));
        assert_eq!(device.weigh(&[], at, None), [], "it is nowhere");
        let place = Place { bridge: BridgeId(0), port: PortId(0), home: 1, is_wire: false };
        assert!(parts(&mut device).port.plug(Plug::at(place, false)));
        let of = |load, can_move, moved| {
            vec![((7, None), QueueLoad { core: 1, load, can_move, node: None, moved })]
        };
        assert_eq!(device.weigh(&[], at, None), of(0, true, None), "without a guest");
        for queue in &mut device.queues[..3] {
            let owner = Owner::Connection(0);
            assert!(queue.attach(crate::queue::Place { core: 1, owner, by_hand: false }));
            queue.weighed_mut().load = 200;
        }
        assert_eq!(device.weigh(&[], at, None), of(300, true, None));
        let to = crate::queue::Move { id: MoveId(1), to: 0, by_hand: true };
        assert!(parts(&mut device).port.depart(to, 0));
        assert_eq!(device.weigh(&[], at, None), of(150, true, Some(at)));
        assert_eq!(parts(&mut device).port.call_off(), Some(MoveId(1)));
        assert_eq!(device.weigh(&[], Nanos(9), None), of(75, true, Some(at)));
        let _ = device.queues[2].ask(false, crate::clock::now());
        assert_eq!(device.weigh(&[], Nanos(9), None), of(36, true, Some(Nanos(9))));
    }

    #[test]
    fn a_nic_that_an_operator_moved_stays_until_its_front_end_goes_and_a_wire_always() {
        let mut device = nic();
        let place = Place { bridge: BridgeId(0), port: PortId(0), home: 1, is_wire: false };
        let can_move = |device: &mut Device| device.weigh(&[], Nanos(5), None)[0].1.can_move;
        assert!(parts(&mut device).port.plug(Plug::at(place, true)));
        assert!(!can_move(&mut device));
        device.kind.reset();
        assert!(can_move(&mut device));
        parts(&mut device).port.unplug();
        let wire = Place { is_wire: true, ..place };
        assert!(parts(&mut device).port.plug(Plug::at(wire, false)));
        device.kind.reset();
        assert!(!can_move(&mut device));
    }

    #[test]
    fn nodes_matter_where_there_are_several() {
        let cpu =
            |cpu: u32, node: u32| host::topology::Cpu { cpu, core: cpu, node, isolated: false };
        let one = host::Topology { cpus: vec![cpu(0, 0), cpu(1, 0)] };
        assert_eq!(nodes_of(&[0, 1], &one), [0; 0]);
        let two = host::Topology { cpus: vec![cpu(0, 0), cpu(1, 0), cpu(2, 1), cpu(3, 1)] };
        assert_eq!(nodes_of(&[3, 1], &two), [1, 0]);
    }
}
