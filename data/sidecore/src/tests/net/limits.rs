//! NICs with limits, in made-up time: what a guest sends waits in its ring, what is sent to it beyond the
//! limit is dropped there and counted, and nobody else notices.

use std::sync::Arc;

use frame::Header;
use schedule::{Gate, Limited, Meter, Meters, Policy, Rate, SHARE_USUAL};
use switch::DropReason;

use super::super::bed::PASS_NS;
use super::bed::*;
use crate::{Command, Served, ServedSpec, Service};

const MS: u64 = 1_000_000;
/// Bytes of most frames.
const LEN: usize = 1000;

fn rate(per_s: u64) -> Rate {
    Rate { per_s, burst_ns: 4 * MS }
}

fn packets(per_s: u64) -> Option<Arc<Meters>> {
    Meters::new(Some(rate(per_s)), None)
}

fn bytes(per_s: u64) -> Option<Arc<Meters>> {
    Meters::new(None, Some(rate(per_s)))
}

fn gate(device: Option<Arc<Meters>>, group: Option<Arc<Meters>>) -> Option<Box<Gate>> {
    Gate::new(Limited { device, group }).map(Box::new)
}

/// Changes the limit of a queue that is served.
fn limit(lan: &mut Lan, port: u16, is_receive: bool, device: Option<Arc<Meters>>) {
    let gate = gate(device, None);
    let service = Service {
        target_ns: None,
        moderate_ns: 0,
        share: SHARE_USUAL,
        policy: Policy::Adaptive,
        gate,
    };
    lan.core.send(Command::SetService(key(port, is_receive), service));
    lan.core.pass();
}

/// A switch with guests of which all know each other, with buffers.
fn lan(guests: u8) -> (Lan, Vec<Nic>) {
    let mut lan = Lan::switch();
    let mut nics: Vec<Nic> = (0..guests).map(|_| Nic::usual()).collect();
    for nic in &mut nics {
        lan.plug(nic);
        nic.post(128, 2048);
    }
    for (number, nic) in (0..).zip(&mut nics) {
        nic.send(&frame(ALL, mac(number), 60));
    }
    lan.passes(2);
    for nic in &mut nics {
        refill(nic, 0);
    }
    (lan, nics)
}

/// Takes what came, gives as many buffers back, forgets what was sent; adds how many came.
fn refill(nic: &mut Nic, had: usize) -> usize {
    let came = nic.take().len();
    nic.post(came, 2048);
    nic.sent();
    had + came
}

/// So many milliseconds in which guest 0 always has `depth` frames of `len` bytes in its ring, for each of
/// `to` in turn. How many it got rid of, and how many came to each.
fn flood(
    lan: &mut Lan,
    nics: &mut [Nic],
    to: &[u8],
    (depth, len): (usize, usize),
    ms: u64,
) -> (usize, Vec<usize>) {
    let (mut waiting, mut sent, mut turn) = (0, 0, 0);
    let mut came = vec![0; nics.len()];
    for _ in 0..ms * MS / PASS_NS {
        while waiting < depth {
            nics[0].send(&frame(mac(to[turn % to.len()]), mac(0), len));
            (waiting, turn) = (waiting + 1, turn + 1);
        }
        lan.core.pass();
        let over = nics[0].sent();
        (waiting, sent) = (waiting - over, sent + over);
        for (nic, came) in nics.iter_mut().zip(&mut came).skip(1) {
            *came = refill(nic, *came);
        }
    }
    // What is left in the ring is for whoever asks next.
    for _ in 0..1000 * MS / PASS_NS {
        if waiting == 0 {
            break;
        }
        lan.core.now = lan.core.now.after(MS / 10);
        lan.core.pass();
        waiting -= nics[0].sent();
        nics.iter_mut().skip(1).for_each(|nic| assert!(refill(nic, 0) <= depth));
    }
    (sent, came)
}

#[test]
fn what_a_guest_sends_waits_in_its_ring_and_nothing_is_lost() {
    for (device, each) in [(packets(10_000), LEN), (bytes(10_000 * LEN as u64), LEN)] {
        let (mut lan, mut nics) = lan(2);
        limit(&mut lan, 0, false, device);
        // The burst is had in the first milliseconds.
        flood(&mut lan, &mut nics, &[1], (8, each), 10);
        let (sent, came) = flood(&mut lan, &mut nics, &[1], (8, each), 100);
        assert!((990..=1010).contains(&sent), "{sent} in 100 ms of 10,000 a second");
        // What is on its way at the end of the count.
        assert!(came[1].abs_diff(sent) <= 1, "{sent} sent, {came:?} came");
        assert_eq!(lan.counters(0).drops.total() + lan.counters(1).drops.total(), 0);
    }
}

#[test]
fn what_waits_with_its_sender_is_counted_and_what_is_dropped_at_its_receiver_does_not_wait() {
    let (mut lan, mut nics) = lan(3);
    limit(&mut lan, 0, false, packets(1000));
    limit(&mut lan, 1, true, packets(500));
    flood(&mut lan, &mut nics, &[1], (8, LEN), 100);
    assert!(lan.counters(1).drops.of(DropReason::OverLimit) > 0);
    let mut held = |port, is_receive| {
        let counters = lan.detach(port, is_receive).into_spec().counters.snapshot();
        (counters.held, counters.held_ns, counters.group_held)
    };
    let (times, ns, of_group) = held(0, false);
    // And until the last of them is sent.
    assert!((90..=120).contains(&times) && of_group == 0, "{times} times, {of_group}");
    assert!((98 * MS..=112 * MS).contains(&ns), "{ns} ns");
    for (port, is_receive) in [(0, true), (1, true), (1, false), (2, true), (2, false)] {
        assert_eq!(held(port, is_receive), (0, 0, 0), "{port} {is_receive}");
    }
}

#[test]
fn it_sleeps_until_frames_may_be_sent_and_the_limit_can_go_meanwhile() {
    let (mut lan, mut nics) = lan(2);
    limit(&mut lan, 0, false, packets(1000));
    lan.core.now = lan.core.now.after(1000 * MS);
    (0..8).for_each(|_| nics[0].send(&frame(mac(1), mac(0), LEN)));
    assert_eq!(lan.passes(100), 4, "a burst of 4 ms");
    assert!(lan.core.rest(), "the only queue with work waits for its limit");
    assert_eq!(lan.passes(100), 0, "the time is made up: nothing is due");
    lan.core.now = lan.core.now.after(2 * MS);
    assert!(!lan.core.rest(), "it is due");
    assert!(lan.passes(1) > 0);
    limit(&mut lan, 0, false, packets(1));
    lan.passes(10);
    nics[0].sent();
    limit(&mut lan, 0, false, None);
    lan.passes(2);
    assert_eq!(nics[1].take().len(), 8);
    // One that waits can leave.
    limit(&mut lan, 0, false, packets(1));
    (0..8).for_each(|_| nics[0].send(&frame(mac(1), mac(0), LEN)));
    assert_eq!(lan.passes(100), 1);
    lan.detach(0, false);
    lan.core.now = lan.core.now.after(10_000 * MS);
    assert_eq!(lan.passes(100), 0);
}

#[test]
fn what_is_sent_to_a_guest_beyond_its_limit_is_dropped_there_alone() {
    for device in [packets(10_000), bytes(10_000 * LEN as u64)] {
        let (mut lan, mut nics) = lan(3);
        limit(&mut lan, 1, true, device);
        flood(&mut lan, &mut nics, &[1, 2], (8, LEN), 2);
        let before = lan.only_dropped(1, DropReason::OverLimit);
        let (sent, came) = flood(&mut lan, &mut nics, &[1, 2], (8, LEN), 20);
        assert!(sent > 4_000, "its sender waits for nobody: {sent}");
        assert!((198..=202).contains(&came[1]), "{} came in 20 ms of 10,000 a second", came[1]);
        assert!(came[2].abs_diff(sent / 2) <= 8, "{} of {} came to the other", came[2], sent / 2);
        let dropped = lan.only_dropped(1, DropReason::OverLimit) - before;
        assert!(dropped.abs_diff((sent / 2 - came[1]) as u64) <= 16, "{dropped} were dropped");
        assert_eq!(lan.counters(0).drops.total() + lan.counters(2).drops.total(), 0);
        // Without the limit all of it comes.
        limit(&mut lan, 1, true, None);
        let (sent, came) = flood(&mut lan, &mut nics, &[1], (8, LEN), 1);
        assert!(came[1].abs_diff(sent) <= 8 && came[1] > 500, "{sent} {came:?}");
    }
}

#[test]
fn what_comes_seldom_is_delivered_whenever_it_comes() {
    let (mut lan, mut nics) = lan(2);
    limit(&mut lan, 1, true, packets(1000));
    let mut came = 0;
    for pause_us in [100, 5000, 1100, 1_000_000, 1100, 20_000] {
        lan.core.now = lan.core.now.after(pause_us * 1000);
        nics[0].send(&frame(mac(1), mac(0), LEN));
        lan.passes(2);
        came = refill(&mut nics[1], came);
    }
    assert_eq!(came, 6);
}

#[test]
fn floods_and_wires_keep_to_a_limit_too() {
    let (mut lan, mut nics) = lan(3);
    limit(&mut lan, 1, true, packets(1000));
    for _ in 0..100 {
        nics[0].send(&frame(ALL, mac(0), 60));
    }
    lan.passes(10);
    assert_eq!((nics[1].take().len(), nics[2].take().len()), (4, 100));
    assert_eq!(lan.only_dropped(1, DropReason::OverLimit), 96);
    let mut lan = Lan::wire();
    let (mut a, mut b) = (Nic::usual(), Nic::usual());
    lan.plug(&a);
    let to = lan.plug(&b);
    b.post(100, 2048);
    limit(&mut lan, to, true, packets(1000));
    for _ in 0..50 {
        a.send(&frame(mac(1), mac(0), LEN));
    }
    lan.passes(10);
    assert_eq!(
        (a.sent(), b.take().len(), lan.only_dropped(to, DropReason::OverLimit)),
        (50, 4, 46)
    );
}

/// A frame with a rest that is to be cut by whoever cannot take it whole.
fn large(payload: usize) -> (Header, Vec<u8>) {
    let mut bytes = frame(mac(1), mac(0), 54 + payload);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let length = (40 + payload) as u16;
    bytes[14..34]
        .copy_from_slice(&[0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[16..18].copy_from_slice(&length.to_be_bytes());
    bytes[34..54]
        .copy_from_slice(&[0, 80, 1, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    let header = Header {
        flags: Header::NEEDS_CSUM,
        gso_type: Header::GSO_TCP4,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
        ..Header::default()
    };
    (header, bytes)
}

#[test]
fn a_large_frame_is_one_packet_and_what_it_is_cut_into_as_many() {
    let mut lan = Lan::switch();
    let mut nics =
        [Nic::usual(), Nic::usual(), Nic::new(ring(virtqueue::Format::Split, 256), PLAIN)];
    for nic in &mut nics {
        lan.plug(nic);
        nic.post(200, 2048);
    }
    for (number, nic) in (0..).zip(&mut nics) {
        nic.send(&frame(ALL, mac(number), 60));
    }
    lan.passes(2);
    for nic in &mut nics {
        refill(nic, 0);
    }
    lan.core.now = lan.core.now.after(1000 * MS);
    // One a second: one at a time, whatever it carries.
    for port in [1, 2] {
        limit(&mut lan, port, true, packets(1000));
    }
    let (header, mut bytes) = large(20_000);
    for _ in 0..8 {
        nics[0].send_with(header, &bytes);
    }
    lan.passes(10);
    assert_eq!(nics[1].take().len(), 4, "in rings each is one");
    bytes[..6].copy_from_slice(&mac(2));
    for _ in 0..8 {
        nics[0].send_with(header, &bytes);
    }
    lan.passes(10);
    assert_eq!(nics[2].take().len(), 20, "the burst was less than what was cut of the first");
    lan.core.now = lan.core.now.after(10 * MS);
    nics[0].send_with(header, &bytes);
    lan.passes(10);
    assert_eq!(nics[2].take().len(), 0, "and is repaid first");
}

#[test]
fn a_group_counts_bytes_of_a_disk_and_a_nic_together() {
    use super::super::bed as disks;
    let (mut lan, mut nics) = lan(2);
    let shared = Arc::new(Meter::new(rate(20_000 * 512)));
    let sent = Meters::with_bytes(None, Some(Arc::clone(&shared)));
    let service = Service {
        target_ns: None,
        moderate_ns: 0,
        share: SHARE_USUAL,
        policy: Policy::Adaptive,
        gate: gate(None, sent),
    };
    lan.core.send(Command::SetService(key(0, false), service));
    lan.core.pass();
    let mut guest = disks::Guest::new(disks::ring(64));
    let of_disk = Meters::with_bytes(None, Some(shared));
    let spec = guest.spec(77, &disks::null());
    lan.core.attach(&guest, ServedSpec { gate: gate(None, of_disk), ..spec });
    guest.ask(8, disks::READ);
    let (mut waiting, mut bytes) = (0, [0, 0]);
    for pass in 0..110 * MS / PASS_NS {
        if pass == 10 * MS / PASS_NS {
            bytes = [0, 0];
        }
        while waiting < 16 {
            nics[0].send(&frame(mac(1), mac(0), 512));
            waiting += 1;
        }
        lan.core.pass();
        let over = nics[0].sent();
        (waiting, bytes[0]) = (waiting - over, bytes[0] + 512 * over);
        refill(&mut nics[1], 0);
        let answered = guest.take();
        for (number, status) in &answered {
            assert_eq!(*status, 0);
            guest.add(*number, disks::READ, disks::sector(*number), 1);
            bytes[1] += disks::BLOCK;
        }
        if !answered.is_empty() && guest.driver.publish() {
            guest.kick();
        }
    }
    let sum = bytes[0] + bytes[1];
    assert!(sum.abs_diff(1_024_000) <= 10_240 + disks::BLOCK, "{bytes:?}");
    assert!(bytes.iter().all(|bytes| (300_000..=720_000).contains(bytes)), "{bytes:?}");
}

#[test]
fn a_queue_that_comes_back_with_its_gate_has_no_new_burst_and_no_new_place() {
    let group = packets(1000);
    let (mut lan, mut nics) = lan(3);
    lan.core.now = lan.core.now.after(1000 * MS);
    let mut served = lan.detach(0, false);
    let mut held = gate(None, group.clone());
    let mut sent = 0;
    for round in 0..1000 {
        let spec = served.into_spec();
        let gate = if round == 0 { held.take() } else { spec.gate };
        assert!(gate.is_some());
        lan.core.send(Command::Attach(Served::new(ServedSpec { gate, ..spec })));
        lan.core.pass();
        if round < 8 {
            nics[0].send(&frame(mac(1), mac(0), LEN));
        }
        lan.passes(2);
        sent += nics[0].sent();
        served = lan.detach(0, false);
    }
    // 4 and what is earned in 3 to 5 ms; each that came anew would have had one, of its group's next second.
    assert!((5..=9).contains(&sent), "{sent}");
    limit_group(&mut lan, 2, group);
    for _ in 0..2 {
        nics[2].send(&frame(mac(1), mac(2), LEN));
    }
    lan.core.now = lan.core.now.after(8 * MS);
    lan.passes(10);
    assert_eq!(nics[2].sent(), 2, "its neighbour waits for no ghost");
}

/// The group's limit for what a NIC sends.
fn limit_group(lan: &mut Lan, port: u16, group: Option<Arc<Meters>>) {
    let gate = gate(None, group);
    let service = Service {
        target_ns: None,
        moderate_ns: 0,
        share: SHARE_USUAL,
        policy: Policy::Adaptive,
        gate,
    };
    lan.core.send(Command::SetService(key(port, false), service));
    lan.core.pass();
}
