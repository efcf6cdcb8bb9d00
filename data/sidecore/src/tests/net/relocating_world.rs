//! Sidecores on one thread, NICs of one switch that send one another numbered frames, and control: one
//! step at a time, in an order that a seed gives, while the NICs move.
//!
//! Of all frames that a NIC sends, any other one gets those that are for it once and in order, or its port
//! has counted a drop.

use std::sync::Arc;

use random::often;
use switch::{Limits, PortId, Rules};
use virtqueue::Format;

use super::super::bed::Core;
use super::bed::{ALL, BRIDGE, Nic, USUAL, key, mac, ring};
use crate::{
    BridgeKind, Command, Event, MoveId, PortCounters, PortSpec, QueueKey, Served, build_road,
    relocation,
};

/// Bytes of a receive buffer: any frame of these tests is in one.
const BUFFER: u32 = 16_384;
/// Chains of a ring that are used, of 256.
const CHAINS: usize = 200;

/// Numbers from a seed (xorshift).
struct Seed(u64);

impl Seed {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// One queue, as control knows it.
#[derive(Default)]
struct Known {
    attached: bool,
    leaving: bool,
    base: Option<u32>,
}

/// One NIC.
struct Station {
    nic: Nic,
    home: usize,
    /// Of the receive queue and the transmit queue.
    queues: [Known; 2],
    moving: Option<(u64, usize)>,
    /// What is said to the home when the move is over.
    held: Vec<Command>,
    /// Frames and buffers in its rings.
    sending: usize,
    posted: usize,
    /// The number of its next frame, and those that were for each station.
    next: u64,
    sent_to: Vec<u64>,
    /// By sender: the number that came last, and how many came that were for this one.
    last: Vec<Option<u64>>,
    came: Vec<u64>,
    /// Its transmit queue was stopped: a flood in its midst begins again.
    was_stopped: bool,
    counters: Arc<PortCounters>,
}

/// What may happen besides frames and moves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// Queues are stopped, rings are full, ports are said again, sidecores stand still.
    All,
}

pub(super) struct World {
    pub(super) cores: Vec<Core>,
    stations: Vec<Station>,
    seed: Seed,
    trouble: Trouble,
    next_move: u64,
    pub(super) moved: u64,
    pub(super) stayed: u64,
    pub(super) frames: u64,
}

impl World {
    pub(super) fn new(cores: u16, stations: usize, seed: u64, trouble: Trouble) -> World {
        let mut cores: Vec<Core> = (0..cores).map(|index| Core::numbered(index, 40)).collect();
        let kind = BridgeKind::Switch { limits: Limits::default(), seed: 1 };
        cores.iter_mut().for_each(|core| core.send(Command::SetBridge(BRIDGE, Some(kind))));
        for from in 0..cores.len() {
            for to in (0..cores.len()).filter(|to| *to != from) {
                let (out, back) = build_road(&cores[from].handle, &cores[to].handle, to as u16);
                cores[from].send(out);
                cores[to].send(back);
            }
        }
        let count = cores.len();
        let station = |at: usize| Station {
            nic: Nic::new(ring([Format::Split, Format::Packed][at % 2], 256), USUAL),
            home: at % count,
            queues: Default::default(),
            moving: None,
            held: Vec::new(),
            sending: 0,
            posted: 0,
            next: 0,
            sent_to: vec![0; stations],
            last: vec![None; stations],
            came: vec![0; stations],
            was_stopped: false,
            counters: Arc::default(),
        };
        let mut world = World {
            cores,
            stations: (0..stations).map(station).collect(),
            seed: Seed(seed),
            trouble,
            next_move: 0,
            moved: 0,
            stayed: 0,
            frames: 0,
        };
        for at in 0..stations {
            world.say_port(at, None);
            world.attach(at, 0);
            world.attach(at, 1);
            world.cores.iter_mut().for_each(|core| _ = core.passes(8));
            world.post(at);
        }
        world
    }

    /// Tells all sidecores of a port; of one that is there with whatever home.
    fn say_port(&mut self, at: usize, home: Option<u16>) {
        let station = &self.stations[at];
        let home = home.unwrap_or(station.home as u16);
        for core in &mut self.cores {
            let (rules, counters) = (Rules::default(), Arc::clone(&station.counters));
            let spec = PortSpec { rules, home, mtu: 100_000, counters, lanes: None };
            core.send(Command::SetPort(BRIDGE, PortId(at as u16), Some(Box::new(spec))));
        }
    }

    fn key(at: usize, queue: usize) -> QueueKey {
        key(at as u16, queue == 0)
    }

    fn attach(&mut self, at: usize, queue: usize) {
        let station = &mut self.stations[at];
        let known = &mut station.queues[queue];
        if known.attached || station.moving.is_some() {
            return;
        }
        known.attached = true;
        let spec = station.nic.spec(at as u16, queue == 0, known.base);
        self.cores[station.home].send(Command::Attach(Served::new(spec)));
    }

    fn detach(&mut self, at: usize, queue: usize) {
        let station = &mut self.stations[at];
        let known = &mut station.queues[queue];
        if !known.attached || std::mem::replace(&mut known.leaving, true) {
            return;
        }
        station.was_stopped |= queue == 1;
        let command = Command::Detach(World::key(at, queue));
        match station.moving {
            Some(_) => station.held.push(command),
            None => self.cores[station.home].send(command),
        }
    }

    pub(super) fn move_to(&mut self, at: usize, to: usize) {
        let cores = self.cores.len() as u16;
        let station = &mut self.stations[at];
        let is_leaving = station.queues.iter().any(|known| known.leaving);
        if station.home == to || station.moving.is_some() || is_leaving {
            return;
        }
        self.next_move += 1;
        station.moving = Some((self.next_move, to));
        let queues = station.queues.iter().filter(|known| known.attached).count();
        let (id, port) = (MoveId(self.next_move), (BRIDGE, PortId(at as u16)));
        let parts = relocation(id, port, queues, (station.home as u16, to as u16), cores);
        for (core, part) in self.cores.iter_mut().zip(parts) {
            core.send(Command::Relocate(part));
        }
    }

    fn post(&mut self, at: usize) {
        let station = &mut self.stations[at];
        station.nic.post(CHAINS - station.posted, BUFFER);
        station.posted = CHAINS;
    }

    /// Sends a numbered frame to one station, or to all.
    fn send(&mut self, at: usize) {
        let to = self.seed.below(self.stations.len() + 1);
        let len = [60, 60, 200, 1514, 3000, 9000][self.seed.below(6)];
        let to = if to == at { self.stations.len() } else { to };
        let station = &mut self.stations[at];
        station.sending -= station.nic.sent();
        if station.sending >= CHAINS {
            return;
        }
        let address = if to < station.sent_to.len() { mac(to as u8 + 1) } else { ALL };
        let mut bytes = [&address[..], &mac(at as u8 + 1), &[0x88, 0xb5]].concat();
        bytes.extend(station.next.to_le_bytes());
        bytes.extend((22..len).map(|byte| (byte as u64 * 7 + station.next) as u8));
        station.nic.send(&bytes);
        station.sending += 1;
        station.next += 1;
        let its = |number: &usize| *number != at && (to >= station.last.len() || *number == to);
        let for_whom: Vec<usize> = (0..station.last.len()).filter(its).collect();
        for_whom.into_iter().for_each(|number| station.sent_to[number] += 1);
        self.frames += 1;
    }

    /// Takes what came, and looks that it is whole, once, and in order.
    fn take(&mut self, at: usize) {
        let is_long = self.trouble == Trouble::None;
        let stopped: Vec<bool> = self.stations.iter().map(|station| station.was_stopped).collect();
        let station = &mut self.stations[at];
        for frame in station.nic.take_frames() {
            station.posted -= 1;
            let from = usize::from(frame[11]) - 1;
            let number = u64::from_le_bytes(*frame[14..].first_chunk().unwrap());
            let is_for_all = frame[..6] == ALL;
            assert!(from != at, "its own");
            let body = (22..frame.len()).map(|byte| (byte as u64 * 7 + number) as u8);
            assert!(body.eq(frame[22..].iter().copied()), "frame {number} of {from}");
            let last = station.last[from].replace(number);
            let is_again = last == Some(number) && is_for_all && stopped[from];
            assert!(last.is_none_or(|last| last < number) || is_again, "{last:?} then {number}");
            if is_for_all || frame[..6] == mac(at as u8 + 1) {
                station.came[from] += u64::from(!is_again);
            }
        }
        if is_long || self.seed.below(3) > 0 {
            self.post(at);
        }
    }

    fn hear(&mut self, core: usize) {
        for event in self.cores[core].events() {
            match event {
                Event::Moved(MoveId(id)) => self.answered(id, Some(core)),
                Event::Stayed(MoveId(id), _) => self.answered(id, None),
                Event::Detached(served) => {
                    let QueueKey { device, queue } = served.key();
                    let station = &mut self.stations[device as usize];
                    assert_eq!(station.home, core, "it is given back by its home");
                    let base = Some(served.queue().base());
                    station.queues[usize::from(queue)] = Known { base, ..Known::default() };
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn answered(&mut self, id: u64, at: Option<usize>) {
        let its = |station: &&mut Station| station.moving.is_some_and(|moving| moving.0 == id);
        let station = self.stations.iter_mut().find(its).expect("a move that nobody asked for");
        let (_, to) = station.moving.take().expect("it moves");
        if let Some(at) = at {
            assert_eq!(at, to);
            station.home = to;
            self.moved += 1;
        } else {
            self.stayed += 1;
        }
        for command in station.held.drain(..) {
            self.cores[station.home].send(command);
        }
    }

    pub(super) fn step(&mut self) {
        let (at, core) = (self.seed.below(self.stations.len()), self.seed.below(self.cores.len()));
        match self.seed.below(60) {
            0 | 1 => {
                let to = self.seed.below(self.cores.len());
                self.move_to(at, to);
            }
            2..12 => self.send(at),
            12..16 => self.take(at),
            16..20 => self.hear(core),
            20 if self.trouble == Trouble::All => {
                let queue = self.seed.below(2);
                self.detach(at, queue);
            }
            21 | 22 => (0..2).for_each(|queue| self.attach(at, queue)),
            23 if self.trouble == Trouble::All => {
                let by_ns = [60_000, 1_100_000][self.seed.below(2)];
                self.cores[core].now = self.cores[core].now.after(by_ns);
            }
            24 if self.trouble == Trouble::All => {
                let home = self.seed.below(self.cores.len());
                self.say_port(at, Some(home as u16));
            }
            _ => _ = self.cores[core].pass(),
        }
    }

    /// Lets all end, and looks that nothing is left over.
    pub(super) fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 5_000, "something waits for ever");
            for core in 0..self.cores.len() {
                self.cores[core].pass();
                self.hear(core);
            }
            let mut is_calm = true;
            for at in 0..self.stations.len() {
                (0..2).for_each(|queue| self.attach(at, queue));
                self.take(at);
                let station = &mut self.stations[at];
                station.sending -= station.nic.sent();
                is_calm &= station.sending == 0 && station.moving.is_none();
                is_calm &= station.queues.iter().all(|known| known.attached && !known.leaving);
            }
            is_calm &= self.cores.iter().all(has_all_parcels);
            if is_calm && round > 10 {
                break;
            }
        }
        for core in &self.cores {
            assert!(!core.sidecore.moves.awaits());
            assert!(core.sidecore.places.iter().all(|place| !place.reserved), "a place is held");
        }
        self.look_for_losses();
    }

    fn look_for_losses(&mut self) {
        for at in 0..self.stations.len() {
            self.take(at);
            let drops = self.stations[at].counters.snapshot().drops;
            let mut missing = 0;
            for from in (0..self.stations.len()).filter(|from| *from != at) {
                let (sent, came) = (self.stations[from].sent_to[at], self.stations[at].came[from]);
                assert!(came <= sent, "{came} of {sent}");
                missing += sent - came;
            }
            assert!(missing <= drops.total(), "{missing} missing at {at}: {drops:?}");
            assert!(self.trouble == Trouble::All || drops.total() == 0, "{drops:?}");
        }
    }
}

fn has_all_parcels(core: &Core) -> bool {
    let mut marks = Vec::new();
    core.sidecore.net.desk.roads.mark(&mut marks);
    core.sidecore.net.desk.roads.have_passed(&marks)
}

#[test]
fn frames_of_nics_that_move_come_once_in_order_and_none_is_lost() {
    let (mut moved, mut frames) = (0, 0);
    let seeds: u64 = often(8, 30).into();
    for seed in 1..=seeds {
        let cores = 2 + (seed % 2) as u16;
        let mut world =
            World::new(cores, 5, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), Trouble::None);
        for _ in 0..6_000 {
            world.step();
        }
        world.settle();
        (moved, frames) = (moved + world.moved, frames + world.frames);
    }
    assert!(moved > 33 * seeds && frames > 660 * seeds, "{moved} moves, {frames} frames");
}

#[test]
fn nics_move_among_stops_full_rings_and_sidecores_that_stand_still() {
    let (mut moved, mut stayed, mut frames) = (0, 0, 0);
    let seeds: u64 = often(8, 30).into();
    for seed in 1..=seeds {
        let cores = 2 + (seed % 2) as u16;
        let mut world =
            World::new(cores, 5, seed.wrapping_mul(0xd134_2543_de82_ef95), Trouble::All);
        for _ in 0..6_000 {
            world.step();
        }
        world.settle();
        (moved, stayed) = (moved + world.moved, stayed + world.stayed);
        frames += world.frames;
    }
    let are_enough = moved > 33 * seeds && stayed > 3 * seeds / 2 && frames > 660 * seeds;
    assert!(are_enough, "{moved} {stayed} {frames}");
}
