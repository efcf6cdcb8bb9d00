//! NICs that go from one sidecore to another, each case by itself; all of them at random:
//! `relocating_world`.

use std::sync::Arc;

use schedule::{Policy, SHARE_USUAL};
use switch::{DropReason, Limits, PortId, Rules};
use virtqueue::Format;

use super::super::bed::{Core, count};
use super::bed::{ALL, BRIDGE, Nic, USUAL, frame, key, mac, ring};
use crate::net::relocate::HOLD_NS_MAX;
use crate::{
    BridgeKind, Command, Event, MoveId, PortCounters, PortSpec, Refusal, Relocation, RoleSpec,
    Served, Service, Stay, build_road, relocation,
};

/// Sidecores with a switch, all of them linked.
struct Lans {
    cores: Vec<Core>,
    counters: Vec<Arc<PortCounters>>,
    relocations: Vec<Option<Box<Relocation>>>,
}

impl Lans {
    fn new(cores: u16, places: u16) -> Lans {
        let mut cores: Vec<Core> = (0..cores).map(|index| Core::numbered(index, places)).collect();
        let kind = BridgeKind::Switch { limits: Limits::default(), seed: 1 };
        for from in 0..cores.len() {
            cores[from].send(Command::SetBridge(BRIDGE, Some(kind)));
            for to in (0..cores.len()).filter(|to| *to != from) {
                let (out, back) = build_road(&cores[from].handle, &cores[to].handle, to as u16);
                cores[from].send(out);
                cores[to].send(back);
            }
        }
        cores.iter_mut().for_each(|core| _ = core.passes(2));
        Lans { cores, counters: Vec::new(), relocations: Vec::new() }
    }

    /// Two sidecores, and a NIC on each, which know of each other.
    fn pair() -> (Lans, Nic, Nic) {
        let mut lans = Lans::new(2, 64);
        let (mut one, mut other) = (Nic::usual(), Nic::usual());
        lans.plug(&mut one, 0);
        lans.plug(&mut other, 1);
        for (nic, from) in [(&mut one, 1), (&mut other, 2)] {
            nic.send(&frame(mac(3 - from), mac(from), 60));
            lans.passes(10);
        }
        assert_eq!((one.take_frames().len(), other.take_frames().len()), (1, 1));
        assert_eq!((one.sent(), other.sent()), (1, 1));
        (lans, one, other)
    }

    fn say(&mut self, port: u16, home: u16, is_up: bool) {
        for core in &mut self.cores {
            let (rules, counters) = (
                Rules { is_up, ..Rules::default() },
                Arc::clone(&self.counters[usize::from(port)]),
            );
            let spec = PortSpec { rules, home, mtu: 100_000, counters, lanes: None };
            core.send(Command::SetPort(BRIDGE, PortId(port), Some(Box::new(spec))));
            core.pass();
        }
    }

    /// A NIC on sidecore `home`, with buffers.
    fn plug(&mut self, nic: &mut Nic, home: u16) -> u16 {
        let port = self.counters.len() as u16;
        self.counters.push(Arc::default());
        self.say(port, home, true);
        for is_receive in [true, false] {
            self.attach(nic, port, home, is_receive, None);
        }
        nic.post(200, 4096);
        nic.calls();
        port
    }

    fn attach(&mut self, nic: &Nic, port: u16, home: u16, is_receive: bool, base: Option<u32>) {
        let core = &mut self.cores[usize::from(home)];
        core.send(Command::Attach(Served::new(nic.spec(port, is_receive, base))));
        core.pass();
    }

    /// Makes the relocations of move `id`.
    fn begin(&mut self, id: u64, port: u16, from: u16, to: u16) {
        let cores = self.cores.len() as u16;
        let relocations = relocation(MoveId(id), (BRIDGE, PortId(port)), 4, (from, to), cores);
        self.relocations = relocations.into_iter().map(Some).collect();
    }

    /// Tells a sidecore of its part.
    fn tell(&mut self, core: usize) {
        if let Some(part) = self.relocations[core].take() {
            self.cores[core].send(Command::Relocate(part));
        }
    }

    fn tell_all(&mut self) {
        (0..self.cores.len()).for_each(|core| self.tell(core));
    }

    fn passes(&mut self, rounds: u32) {
        for _ in 0..rounds {
            self.cores.iter_mut().for_each(|core| _ = core.pass());
        }
    }

    /// The one answer there is: from which sidecore, and why it stayed.
    fn answer(&mut self, id: u64) -> (usize, Option<Stay>) {
        let events = self.cores.iter_mut().enumerate();
        let mut events: Vec<(usize, Event)> =
            events.flat_map(|(at, core)| core.events().into_iter().map(move |e| (at, e))).collect();
        assert_eq!(events.len(), 1, "{events:?}");
        match events.pop() {
            Some((at, Event::Moved(MoveId(answered)))) if answered == id => (at, None),
            Some((at, Event::Stayed(MoveId(answered), why))) if answered == id => (at, Some(why)),
            other => panic!("{other:?}"),
        }
    }

    /// Nobody holds, and no place is kept.
    fn is_over(&self) {
        for core in &self.cores {
            assert!(!core.sidecore.moves.awaits());
            assert!(core.sidecore.places.iter().all(|place| !place.reserved));
        }
    }

    fn move_it(&mut self, id: u64, port: u16, from: u16, to: u16) {
        self.begin(id, port, from, to);
        self.tell_all();
        self.passes(8);
        assert_eq!(self.answer(id).0, usize::from(to));
        self.is_over();
    }
}

#[test]
fn a_nic_goes_on_at_its_new_home() {
    let (mut lans, mut one, mut other) = Lans::pair();
    lans.move_it(7, 0, 0, 1);
    let (from, to) = (lans.cores[0].handle.counters(), lans.cores[1].handle.counters());
    assert_eq!((from.moves_out, from.moves_in, from.queues), (2, 0, 0));
    assert_eq!((to.moves_out, to.moves_in, to.queues), (0, 2, 2));
    assert_eq!((to.pauses.count(), from.pauses.count()), (2, 0));
    // Both are on one sidecore now: the other one may stand still.
    one.send(&frame(mac(2), mac(1), 3000));
    other.send(&frame(mac(1), mac(2), 3000));
    lans.cores[1].passes(4);
    assert_eq!((one.take_frames().len(), other.take_frames().len()), (1, 1));
    assert_eq!((one.sent(), other.sent()), (1, 1));
    // And back, with frames under way.
    for _ in 0..50 {
        one.send(&frame(mac(2), mac(1), 3000));
        other.send(&frame(mac(1), mac(2), 60));
    }
    lans.cores[1].pass();
    lans.move_it(8, 0, 1, 0);
    lans.passes(200);
    assert_eq!((one.take_frames().len(), other.take_frames().len()), (50, 50));
    assert_eq!((one.sent(), other.sent()), (50, 50));
}

#[test]
fn a_call_that_waits_is_made_when_its_nic_moves() {
    let (mut lans, mut one, _other) = Lans::pair();
    let (share, policy) = (SHARE_USUAL, Policy::Poll);
    let service = Service { share, policy, target_ns: None, moderate_ns: 1_000_000, gate: None };
    lans.cores[0].send(Command::SetService(key(0, false), service));
    lans.passes(4);
    one.calls();
    for _ in 0..2 {
        while one.transmit.driver.arm_calls() {
            one.sent();
        }
        one.send(&frame(ALL, mac(1), 60));
        lans.passes(10);
        one.sent();
    }
    assert_eq!(one.calls().1, 1, "that for the second waits");
    assert!(!lans.cores[0].rest());
    lans.move_it(7, 0, 0, 1);
    assert_eq!(one.calls().1, 1);
    assert!(lans.cores[0].sidecore.calls.delayed().is_empty());
}

#[test]
fn a_port_keeps_its_home_whatever_is_said_of_it() {
    let (mut lans, mut one, mut other) = Lans::pair();
    lans.begin(1, 0, 0, 1);
    lans.tell(0);
    lans.passes(2);
    lans.say(0, 0, true);
    lans.tell(1);
    lans.passes(8);
    assert!(lans.answer(1).1.is_none());
    lans.say(0, 0, false);
    lans.say(0, 0, true);
    one.send(&frame(mac(2), mac(1), 60));
    other.send(&frame(mac(1), mac(2), 60));
    lans.cores[1].passes(4);
    assert_eq!((one.take_frames().len(), other.take_frames().len()), (1, 1));
}

#[test]
fn frames_wait_while_a_port_moves_and_none_longer_than_a_millisecond() {
    let mut lans = Lans::new(3, 64);
    let mut nics: Vec<Nic> = (0..3).map(|_| Nic::usual()).collect();
    for (home, nic) in (0..).zip(&mut nics) {
        lans.plug(nic, home);
    }
    for (home, nic) in (0..).zip(&mut nics) {
        nic.send(&frame(ALL, mac(home + 1), 60));
        lans.passes(10);
    }
    nics.iter_mut().for_each(|nic| _ = (nic.take_frames(), nic.sent()));
    // The third sidecore stands still.
    lans.begin(1, 0, 0, 1);
    lans.tell_all();
    lans.cores[0].pass();
    lans.cores[1].pass();
    for (nic, number) in nics.iter_mut().zip([1, 2]) {
        nic.send(&frame(mac(3 - number), mac(number), 60));
    }
    nics[1].send(&frame(ALL, mac(2), 60));
    for _ in 0..20 {
        lans.cores[0].pass();
        lans.cores[1].pass();
    }
    assert_eq!((nics[0].sent(), nics[1].sent()), (0, 0), "they are in their rings");
    assert!(!lans.cores[0].rest() && !lans.cores[1].rest());
    // Nothing else waits: what is at home there goes on.
    lans.cores[1].now = lans.cores[1].now.after(HOLD_NS_MAX);
    for _ in 0..8 {
        lans.cores[1].pass();
        lans.cores[0].pass();
    }
    assert!(matches!(lans.answer(1), (0, Some(Stay::Unsettled))));
    assert_eq!((nics[0].sent(), nics[1].sent()), (1, 2));
    assert_eq!(lans.cores[0].handle.counters().moves_stayed, 1);
    lans.passes(8);
    let came: Vec<usize> = nics.iter_mut().map(|nic| nic.take_frames().len()).collect();
    assert_eq!(came, [2, 1, 1]);
    lans.is_over();
    // The third one heard of it when it was over.
    lans.move_it(2, 0, 0, 2);
}

#[test]
fn a_sidecore_without_places_keeps_the_nic_where_it_is() {
    let mut lans = Lans::new(2, 3);
    let (mut one, mut other) = (Nic::usual(), Nic::usual());
    lans.plug(&mut one, 0);
    lans.plug(&mut other, 1);
    lans.begin(1, 0, 0, 1);
    lans.tell_all();
    lans.passes(8);
    assert!(matches!(lans.answer(1), (0, Some(Stay::Refused(Refusal::NoPlace)))));
    lans.is_over();
    one.send(&frame(mac(2), mac(1), 60));
    lans.passes(8);
    assert_eq!(other.take_frames().len(), 1);
}

#[test]
fn a_part_that_is_dropped_calls_the_move_off() {
    for dropped in 0..2 {
        let (mut lans, mut one, mut other) = Lans::pair();
        lans.begin(1, 0, 0, 1);
        lans.relocations[dropped] = None;
        lans.tell(1 - dropped);
        lans.passes(4);
        lans.is_over();
        let answers = lans.cores[0].events();
        match dropped {
            1 => assert!(matches!(answers[..], [Event::Stayed(MoveId(1), Stay::Leaving)])),
            _ => assert!(answers.is_empty(), "the old home has ended"),
        }
        one.send(&frame(mac(2), mac(1), 60));
        other.send(&frame(mac(1), mac(2), 60));
        lans.passes(8);
        assert_eq!((one.take_frames().len(), other.take_frames().len()), (1, 1));
    }
}

#[test]
fn a_detach_or_an_attach_calls_the_move_off_in_time() {
    for is_receive in [true, false] {
        let (mut lans, mut one, mut other) = Lans::pair();
        lans.begin(1, 0, 0, 1);
        lans.tell(0);
        lans.passes(2);
        lans.cores[0].send(Command::Detach(key(0, is_receive)));
        lans.cores[0].pass();
        lans.tell(1);
        lans.passes(8);
        let events = lans.cores[0].events();
        assert!(
            matches!(
                &events[..],
                [Event::Detached(_), Event::Stayed(_, Stay::Leaving)]
                    | [Event::Stayed(_, Stay::Leaving), Event::Detached(_)]
            ),
            "{events:?}"
        );
        lans.is_over();
        // One that began before the queue had left is too late, too.
        for event in events {
            let Event::Detached(served) = event else { continue };
            lans.begin(2, 0, 0, 1);
            lans.tell(0);
            lans.cores[0].pass();
            lans.attach(&one, 0, 0, is_receive, Some(served.queue().base()));
            lans.tell(1);
            lans.passes(8);
            assert!(matches!(lans.answer(2), (0, Some(Stay::Leaving))));
        }
        one.send(&frame(mac(2), mac(1), 60));
        other.send(&frame(mac(1), mac(2), 60));
        lans.passes(8);
        assert_eq!((one.take_frames().len(), other.take_frames().len()), (1, 1));
        lans.move_it(3, 0, 0, 1);
    }
}

#[test]
fn a_second_move_is_refused_and_the_first_goes_on() {
    let (mut lans, ..) = Lans::pair();
    lans.begin(1, 0, 0, 1);
    lans.tell(0);
    lans.passes(2);
    let first = std::mem::take(&mut lans.relocations);
    lans.begin(2, 0, 0, 1);
    lans.tell_all();
    lans.passes(2);
    assert!(matches!(lans.answer(2), (0, Some(Stay::Moving))));
    lans.relocations = first;
    lans.tell(1);
    lans.passes(8);
    assert!(matches!(lans.answer(1), (1, None)));
    lans.is_over();
}

#[test]
fn stop_finds_the_queues_wherever_they_are() {
    for step in 0..8 {
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let mut lans = Lans::new(3, 64);
            let mut nic = Nic::usual();
            lans.plug(&mut nic, 0);
            lans.begin(1, 0, 0, 1);
            for core in 0..3.min(step) {
                lans.tell(core);
                lans.cores[core].pass();
            }
            lans.passes(step.saturating_sub(3) as u32);
            // As control does at the end: what was not sent is called off.
            lans.relocations.clear();
            for core in order {
                lans.cores[core].send(Command::Stop);
                lans.cores[core].pass();
            }
            lans.passes(1_100);
            let has_ended = |core: &Core| core.sidecore.has_ended();
            assert!(lans.cores.iter().all(has_ended), "step {step}, {order:?}");
            let events = lans.cores.iter_mut().flat_map(Core::events);
            let back = events.filter(|event| matches!(event, Event::Detached(_))).count();
            assert_eq!(back, 2, "step {step}, {order:?}");
        }
    }
}

#[test]
fn a_port_that_is_gone_before_its_move_ends_is_no_harm() {
    let (mut lans, _one, mut other) = Lans::pair();
    lans.begin(1, 0, 0, 1);
    lans.tell(0);
    lans.passes(2);
    for core in &mut lans.cores {
        core.send(Command::SetPort(BRIDGE, PortId(0), None));
    }
    lans.tell(1);
    lans.passes(8);
    assert!(matches!(lans.answer(1), (1, None)));
    lans.is_over();
    other.send(&frame(ALL, mac(2), 60));
    lans.passes(4);
    assert_eq!(other.sent(), 1, "floods are not held");
    lans.begin(2, 1, 1, 0);
    lans.tell(1);
    for core in &mut lans.cores {
        core.send(Command::SetBridge(BRIDGE, None));
    }
    lans.tell(0);
    lans.passes(8);
    lans.is_over();
}

#[test]
fn a_flood_in_its_midst_reaches_every_port_once() {
    // More ports than a visit brings a frame to, on three sidecores.
    for moving in [0, 3, 50, 89] {
        let mut lans = Lans::new(3, 128);
        let small = ring(Format::Split, 256);
        let mut nics: Vec<Nic> = (0..90).map(|_| Nic::new(small, USUAL)).collect();
        for (at, nic) in nics.iter_mut().enumerate() {
            lans.plug(nic, (at % 3) as u16);
        }
        let home = (moving % 3) as u16;
        let senders = [1, 40, moving];
        for round in 0..6u16 {
            for sender in senders {
                nics[sender].send(&frame(ALL, mac(sender as u8 + 1), 60 + usize::from(round)));
            }
            lans.cores.iter_mut().for_each(|core| _ = core.pass());
            let (from, to) = ((home + round) % 3, (home + round + 1) % 3);
            lans.begin(u64::from(round), moving as u16, from, to);
            lans.tell_all();
            lans.passes(60);
            assert!(lans.answer(round.into()).1.is_none());
        }
        lans.passes(60);
        for (at, nic) in nics.iter_mut().enumerate() {
            let wanted: usize = senders.iter().filter(|sender| **sender != at).count() * 6;
            let came = nic.take_frames();
            assert_eq!(came.len(), wanted, "at {at}, {moving} moves");
            assert_eq!(lans.counters[at].snapshot().drops.of(DropReason::NoBuffer), 0);
        }
    }
}

#[test]
fn an_announcement_waits_for_the_end_of_a_move() {
    let (mut lans, mut one, mut other) = Lans::pair();
    lans.begin(1, 0, 0, 1);
    lans.tell_all();
    lans.cores[1].pass();
    lans.cores[1].send(Command::Announce(BRIDGE, PortId(1), mac(2)));
    lans.cores[1].pass();
    lans.passes(8);
    assert!(lans.answer(1).1.is_none());
    assert_eq!(one.take_frames().len(), 1);
    assert!(other.take_frames().is_empty());
}

#[test]
fn a_kick_between_two_homes_is_not_lost_and_who_sleeps_is_woken() {
    let (mut lans, mut one, mut other) = Lans::pair();
    lans.cores.iter_mut().for_each(Core::idle);
    lans.cores.iter().for_each(|core| _ = count(&core.handle.command_fd));
    lans.begin(1, 0, 0, 1);
    lans.tell_all();
    assert!(lans.cores.iter().all(Core::rest_would_end));
    one.send(&frame(mac(2), mac(1), 60));
    lans.passes(8);
    assert!(lans.answer(1).1.is_none());
    assert_eq!(other.take_frames().len(), 1);
    lans.cores.iter_mut().for_each(Core::idle);
    one.send(&frame(mac(2), mac(1), 60));
    assert!(lans.cores[1].rest(), "its guest's kick ends it");
    lans.cores[1].passes(2);
    assert_eq!(other.take_frames().len(), 1);
    assert_eq!(lans.cores[0].pass().kicks, 0, "it is not watched there any more");
}

#[test]
fn a_flow_comes_on_the_pair_on_which_it_went_also_at_the_new_home() {
    let mut lans = Lans::new(2, 64);
    let mut pairs = [Nic::usual(), Nic::usual()];
    let mut other = Nic::usual();
    lans.counters.push(Arc::default());
    lans.say(0, 0, true);
    for (pair, nic) in (0..).zip(&mut pairs) {
        for is_receive in [true, false] {
            let mut spec = nic.spec(0, is_receive, None);
            spec.key.queue += 2 * pair;
            match &mut spec.role {
                RoleSpec::Transmit(nic) | RoleSpec::Receive(nic) => nic.pair = pair,
                RoleSpec::Disk { .. } => {}
            }
            lans.cores[0].send(Command::Attach(Served::new(spec)));
            lans.cores[0].pass();
        }
        nic.post(100, 4096);
    }
    lans.plug(&mut other, 1);
    for station in 10..26 {
        pairs[1].send(&frame(mac(station), mac(1), 60));
        lans.passes(4);
    }
    lans.move_it(1, 0, 0, 1);
    for station in 10..26 {
        other.send(&frame(mac(1), mac(station), 60));
        lans.passes(4);
    }
    assert_eq!(pairs.map(|mut pair| pair.take_frames().len()), [0, 16]);
}
