//! Frames for a guest whose vCPUs lose their cores: in order whatever happens, and to one that runs if it may be.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use random::Random;
use runstate::{Activity, Table};
use virtqueue::Format;

use super::bed::*;
use crate::{Command, Lanes, Redirect, RoleSpec, Served};

/// The guest, and who sends to it.
const GUEST: u8 = 9;
const SENDER: u8 = 1;

/// A guest of several vCPUs, each with a pair of queues, at one port.
struct Guest {
    lan: Lan,
    sender: Nic,
    pairs: Vec<Nic>,
    table: Arc<Table>,
    port: u16,
    now: u64,
    /// What its stack got of each flow, last.
    seen: HashMap<u8, u32>,
    sent: HashMap<u8, u32>,
    got: u64,
}

impl Guest {
    fn new(vcpus: usize, format: Format, event_index: bool, redirect: Option<Redirect>) -> Guest {
        let mut lan = Lan::switch();
        let spec = virtqueue::driver::RingSpec { event_index, ..ring(format, 64) };
        let mut sender = Nic::usual();
        let mut pairs: Vec<Nic> = (0..vcpus).map(|_| Nic::new(spec, USUAL)).collect();
        lan.plug(&sender);
        let port = lan.port();
        let table = Arc::new(Table::simulated());
        lan.lanes[usize::from(port)] = redirect.map(|redirect| {
            let rows = std::array::from_fn(|pair| {
                (pair < vcpus).then(|| Table::simulated_row(pair as u16))
            });
            Arc::new(Lanes { table: Arc::clone(&table), rows, redirect })
        });
        lan.set(port);
        for (pair, nic) in (0..).zip(&mut pairs) {
            for is_receive in [true, false] {
                let mut served = nic.spec(port, is_receive, None);
                served.key.queue = 2 * pair + u16::from(!is_receive);
                if let RoleSpec::Receive(nic) | RoleSpec::Transmit(nic) = &mut served.role {
                    nic.pair = pair;
                }
                lan.core.send(Command::Attach(Served::new(served)));
                lan.core.pass();
            }
            nic.post(60, 300);
        }
        // The switch learns where both are; the guest from its first queue.
        pairs[0].send(&frame(ALL, mac(GUEST), 60));
        sender.send(&frame(ALL, mac(SENDER), 60));
        lan.passes(2);
        let (seen, sent) = (HashMap::new(), HashMap::new());
        let mut guest = Guest { lan, sender, pairs, table, port, now: 1, seen, sent, got: 0 };
        (0..vcpus).for_each(|vcpu| {
            guest.set(vcpu, Activity::Runs);
            guest.work(vcpu, usize::MAX);
        });
        guest.got = 0;
        guest.seen.clear();
        guest
    }

    fn set(&mut self, vcpu: usize, activity: Activity) {
        self.now += 1000;
        self.table.simulate(Table::simulated_row(vcpu as u16), activity, 0, self.now);
    }

    /// Lets time pass, for the host's scheduler and for the sidecore.
    fn wait(&mut self, ns: u64) {
        self.now += ns;
        self.lan.core.now = schedule::Nanos(self.lan.core.now.0.max(self.now));
        self.now = self.lan.core.now.0;
    }

    /// The processor goes from one vCPU to the next, as if all were busy and shared it.
    fn switch_over(&mut self, from: usize, to: usize) {
        self.set(from, Activity::Waits);
        self.set(to, Activity::Runs);
    }

    /// The next frame of a UDP flow.
    fn send(&mut self, flow: u8) {
        let number = self.sent.entry(flow).or_insert(0);
        *number += 1;
        let mut bytes = frame_of(flow);
        bytes[42] = flow;
        bytes[43..47].copy_from_slice(&number.to_le_bytes());
        self.sender.send(&bytes);
        self.lan.passes(1);
        self.sender.sent();
    }

    /// A vCPU that runs takes so many frames, in their order; if that was all, it asks for a call.
    fn work(&mut self, vcpu: usize, most: usize) {
        let nic = &mut self.pairs[vcpu];
        nic.receive.driver.disarm_calls();
        let mut frames = Vec::new();
        while frames.len() < most {
            let Some(bytes) = nic.take_one() else { break };
            frames.push(bytes);
        }
        for bytes in &frames {
            if bytes[12..14] != [8, 0] {
                continue;
            }
            self.got += 1;
            let number = u32::from_le_bytes([bytes[43], bytes[44], bytes[45], bytes[46]]);
            let last = self.seen.insert(bytes[42], number).unwrap_or(0);
            assert!(number > last, "flow {}: {number} came after {last}", bytes[42]);
        }
        if frames.len() < most {
            nic.receive.driver.arm_calls();
        }
        nic.post(frames.len(), 300);
    }

    /// The place of the queue that a frame of this flow waits for.
    fn waited_for(&mut self, flow: u8) -> Option<u16> {
        let head = frame_of(flow);
        let sidecore = &mut self.lan.core.sidecore;
        let replica = sidecore.net.replica(BRIDGE)?;
        replica.ports.get(switch::PortId(self.port))?.queue_of(
            &head,
            &sidecore.places,
            schedule::Nanos(0),
        )
    }

    fn counters(&self) -> (u64, u64) {
        let counters = self.lan.counters(self.port);
        (counters.redirected, counters.stayed)
    }
}

#[test]
fn a_frame_for_a_vcpu_without_a_core_goes_to_one_that_runs() {
    for format in [Format::Split, Format::Packed] {
        let mut guest = Guest::new(2, format, true, Some(Redirect::Waiting));
        // A first one says where the flow is at home.
        guest.send(7);
        let home = (0..2).find(|vcpu| guest.pairs[*vcpu].calls().0 > 0).expect("somewhere");
        guest.work(home, 10);
        guest.set(home, Activity::Waits);
        guest.send(7);
        guest.work(1 - home, 10);
        assert_eq!((guest.got, guest.counters()), (2, (1, 0)), "{format:?}");
        assert!(guest.lan.counters(guest.port).avoided_ns < 1000);
        // And home again, when that one runs.
        guest.set(home, Activity::Runs);
        guest.send(7);
        guest.work(home, 10);
        assert_eq!((guest.got, guest.counters()), (3, (1, 0)));
        // One that its guest has halted is called where it is.
        guest.set(home, Activity::Sleeps);
        guest.send(7);
        guest.work(home, 10);
        assert_eq!((guest.got, guest.counters()), (4, (1, 0)));
    }
}

#[test]
fn a_flow_with_something_outstanding_stays() {
    let mut guest = Guest::new(2, Format::Split, true, Some(Redirect::Always));
    guest.send(7);
    let home = (0..2).find(|vcpu| guest.pairs[*vcpu].calls().0 > 0).expect("somewhere");
    guest.set(home, Activity::Waits);
    guest.send(7);
    assert_eq!(guest.counters(), (0, 1), "the first one is not taken yet");
    guest.work(1 - home, 10);
    assert_eq!(guest.got, 0);
    guest.work(home, 10);
    assert_eq!(guest.got, 2);
    guest.send(7);
    assert_eq!(guest.counters(), (1, 1));
}

/// A queue that a guest does not use has a vCPU that runs, and no buffer.
#[test]
fn what_another_queue_has_no_buffer_for_goes_home() {
    for format in [Format::Split, Format::Packed] {
        let mut guest = Guest::new(2, format, true, Some(Redirect::Always));
        (7..9).for_each(|flow| answer(&mut guest, 0, flow));
        guest.set(0, Activity::Waits);
        (0..60).for_each(|_| guest.send(7));
        assert_eq!(guest.counters(), (1, 0), "the first one, and the others after it");
        guest.send(8);
        guest.work(0, 10);
        assert_eq!((guest.got, guest.counters()), (1, (1, 1)), "{format:?}");
        // Where neither has one it is its own that is waited for: another one may never have any.
        assert_eq!(guest.waited_for(8), guest.waited_for(7).map(|place| place - 2));
        guest.work(1, 100);
        assert_eq!(guest.got, 61);
    }
}

#[test]
fn a_driver_that_does_not_say_how_far_it_is_keeps_its_flows() {
    let mut guest = Guest::new(2, Format::Split, false, Some(Redirect::Always));
    for vcpu in 0..2 {
        guest.set(vcpu, Activity::Waits);
        (0..8).for_each(|flow| guest.send(flow));
    }
    assert_eq!(guest.counters(), (0, 0));
    (0..2).for_each(|vcpu| guest.work(vcpu, 100));
    assert_eq!(guest.got, 16);
}

#[test]
fn without_run_state_all_is_as_it_was() {
    let mut guest = Guest::new(4, Format::Split, true, None);
    (0..4).for_each(|vcpu| guest.set(vcpu, Activity::Waits));
    (0..8).for_each(|flow| guest.send(flow));
    (0..4).for_each(|vcpu| guest.work(vcpu, 100));
    assert_eq!((guest.got, guest.counters()), (8, (0, 0)));
}

/// What comes at the end of a slice goes where the next one begins, as soon as it is known how long they are.
#[test]
fn a_frame_at_the_end_of_a_slice_goes_to_the_next_in_line() {
    const SLICE_NS: u64 = 4_000_000;
    for format in [Format::Split, Format::Packed] {
        let mut guest = Guest::new(3, format, true, Some(Redirect::Always));
        (1..3).for_each(|vcpu| guest.set(vcpu, Activity::Waits));
        let mut runs = 0;
        for _ in 0..6 {
            guest.wait(SLICE_NS);
            guest.switch_over(runs, (runs + 1) % 3);
            runs = (runs + 1) % 3;
        }
        assert_eq!(runs, 0);
        guest.wait(SLICE_NS / 2);
        guest.send(7);
        guest.work(0, 10);
        assert_eq!(guest.got, 1, "{format:?}: amidst a slice it is for whoever has it");
        guest.wait(SLICE_NS / 2 - 15_000);
        guest.send(7);
        guest.work(0, 10);
        assert_eq!(guest.got, 1, "{format:?}: it comes too late for this one");
        guest.wait(15_000);
        guest.switch_over(0, 1);
        guest.work(1, 10);
        assert_eq!(guest.got, 2, "{format:?}: and is there when the next one begins");
        // At its end, but nobody waits for its processor: it is as any that runs.
        let stayed = guest.counters().1;
        guest.set(2, Activity::Sleeps);
        guest.set(0, Activity::Sleeps);
        guest.wait(SLICE_NS - 10_000);
        guest.send(7);
        guest.work(1, 10);
        assert_eq!((guest.got, guest.counters().1), (3, stayed), "{format:?}");
        // And if somebody waits it was one that has to.
        guest.set(0, Activity::Waits);
        guest.send(7);
        guest.work(0, 10);
        assert_eq!((guest.got, guest.counters().1), (4, stayed + 1), "{format:?}");
    }
}

/// A guest on a host that gives and takes cores as it likes, and answers on whatever queue.
fn live(seed: u64, steps: u32) -> (u64, u64) {
    let mut random = Random::new(seed, 0);
    let vcpus = 2 + random.below(3) as usize;
    let format = if random.below(2) == 0 { Format::Split } else { Format::Packed };
    let rule = if random.below(2) == 0 { Redirect::Waiting } else { Redirect::Always };
    let mut guest = Guest::new(vcpus, format, true, Some(rule));
    let mut runs = vec![true; vcpus];
    // Some hosts have slices that are alike, others have none.
    let slice = if random.below(2) == 0 { 40_000 } else { 0 };
    for _ in 0..steps {
        guest.wait(slice + random.below(6_000));
        let vcpu = random.below(vcpus as u64) as usize;
        match random.below(10) {
            0..=2 => guest.send(random.below(6) as u8),
            3..=6 if runs[vcpu] => guest.work(vcpu, random.below(16) as usize),
            7 => {
                // What the guest sends on this queue makes it the flow's own.
                if runs[vcpu] {
                    answer(&mut guest, vcpu, random.below(6) as u8);
                }
            }
            _ => {
                runs[vcpu] = !runs[vcpu];
                let off = if random.below(2) == 0 { Activity::Waits } else { Activity::Sleeps };
                guest.set(vcpu, if runs[vcpu] { Activity::Runs } else { off });
            }
        }
    }
    (0..vcpus).for_each(|vcpu| guest.work(vcpu, usize::MAX));
    let dropped = guest.lan.counters(guest.port).drops.total();
    let sent: u32 = guest.sent.values().sum();
    assert_eq!(guest.got + dropped, u64::from(sent), "each came once, or was counted");
    guest.counters()
}

/// A UDP frame of a flow.
fn frame_of(flow: u8) -> Vec<u8> {
    let mut bytes = frame(mac(GUEST), mac(SENDER), 100);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..34]
        .copy_from_slice(&[0x45, 0, 0, 86, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 9]);
    bytes[34..38].copy_from_slice(&[4, flow, 8, 0]);
    bytes
}

fn answer(guest: &mut Guest, vcpu: usize, flow: u8) {
    let mut bytes = frame(mac(SENDER), mac(GUEST), 100);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..34]
        .copy_from_slice(&[0x45, 0, 0, 86, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]);
    bytes[34..38].copy_from_slice(&[8, 0, 4, flow]);
    guest.pairs[vcpu].send(&bytes);
    guest.lan.passes(1);
    guest.pairs[vcpu].sent();
    guest.sender.take();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn flows_stay_in_order_whatever_the_host_does(seed in any::<u64>()) {
        live(seed, 600);
    }
}

#[test]
fn a_life_redirects_and_keeps() {
    let lives: Vec<_> = (0..8).map(|seed| live(seed, 2000)).collect();
    let (redirected, stayed) = lives.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(redirected > 200 && stayed > 200, "{lives:?}");
}
