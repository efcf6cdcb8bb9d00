//! A line with a length and a width, whose ends are woken by what comes and by their own times only.

use std::collections::VecDeque;

use random::often;

use super::*;

/// Frames one at a time; each end is polled after each.
struct Line {
    pair: Pair,
    /// To the host, to the client: when they come.
    ways: [VecDeque<(u64, Vec<u8>)>; 2],
    delay: u64,
    free_at: [u64; 2],
    /// Of a hundred frames so many are lost.
    loss: u64,
    luck: Random,
}

/// Of a frame on the line.
const GAP_NS: u64 = 1200;

impl Line {
    fn new(pair: Pair, delay: u64) -> Line {
        let (ways, luck) = ([VecDeque::new(), VecDeque::new()], Random::new(7, 7));
        Line { pair, ways, delay, free_at: [0; 2], loss: 0, luck }
    }

    fn put(&mut self, way: usize, frame: &[u8]) {
        self.free_at[way] = self.free_at[way].max(self.pair.now) + GAP_NS;
        if self.luck.next() % 100 < self.loss {
            return;
        }
        self.ways[way].push_back((self.free_at[way] + self.delay, frame.to_vec()));
    }

    fn poll(&mut self) {
        let now = self.pair.now;
        let mut buffer = [0; 9000];
        self.pair.client.tick(now);
        self.pair.work();
        while let Some(len) = self.pair.client.poll_transmit(now, &mut buffer) {
            self.put(0, &buffer[..len]);
        }
        while let Some((_, len)) = self.pair.host.poll_transmit(now, &mut buffer) {
            self.put(1, &buffer[..len]);
        }
        while self.pair.client.next_event().is_some() {}
    }

    fn step(&mut self, until: u64) {
        let due = [self.pair.client.due(), self.pair.host.due()];
        let due = due.into_iter().chain(self.ways.each_ref().map(|way| Some(way.front()?.0)));
        let due = due.flatten().min().unwrap_or(until);
        self.pair.now = due.max(self.pair.now + 1).min(until);
        let now = self.pair.now;
        let came = self.ways.each_ref().map(|way| way.front().is_some_and(|one| one.0 <= now));
        if came[0] {
            let frame = self.ways[0].pop_front().expect("a frame").1;
            self.pair.give_host(&frame);
        } else if came[1] {
            let frame = self.ways[1].pop_front().expect("a frame").1;
            self.pair.give_client(&frame);
        }
        self.poll();
    }

    fn run(&mut self, ns: u64) {
        let until = self.pair.now + ns;
        while self.pair.now < until {
            self.step(until);
        }
    }
}

/// A way that loses frames at random does less, and goes on: nobody waits for timers as on a way that is gone, and none of
/// them takes the other end's timers for the way's length.
#[test]
fn a_way_that_loses_a_third_of_all_frames_is_of_use() {
    for (loss, depth, at_least) in
        [(0, 1, 3_500), (10, 1, 1_000), (20, 1, 400), (20, 8, 1_200), (30, 1, 100), (30, 8, 300)]
    {
        let (pair, one) = Pair::bound(10_000);
        let mut line = Line::new(pair, 50_000);
        line.loss = loss;
        let (begin, mut done) = (line.pair.now, 0);
        // Without losses there is nothing of chance, and most to do.
        let seconds = if loss == 0 { 2 } else { 10 };
        let end = begin + seconds * SECOND;
        (0..depth).for_each(|_| line.pair.ask(one, Op::Read, 0, 4096));
        while line.pair.now < end {
            line.step(end);
            for _ in line.pair.finished() {
                done += 1;
                line.pair.ask(one, Op::Read, 0, 4096);
            }
            line.poll();
        }
        let round_trip = line.pair.client.stats().round_trip_ns;
        let told = format!(
            "{loss} of 100 lost, {depth} at a time: {done} in {seconds} s, {round_trip} ns"
        );
        assert!(done > seconds * at_least && round_trip < 2 * MS, "{told}");
        assert_eq!(line.pair.sessions, [vec![true], vec![true]], "{told}");
    }
}

/// Acknowledgements of what a client reads spend counters, and none of its credit: with the share of one among a
/// hundred, the next request still goes at once.
#[test]
fn reads_do_not_use_up_the_credit_of_requests() {
    for ring_frames in [1, 8, 24, 256] {
        let mut pair = Pair::new(10_000);
        pair.host = host_of(HostSpec {
            ring_frames,
            memory_max: 4 << 20,
            client_memory_max: 4 << 20,
            ..HOST
        });
        pair.host.update(0, 4 << 20, 3);
        pair.disk = vec![0; 4 << 20];
        let spec = AttachSpec { slot_bytes: 128 << 10, ..SPEC };
        let one = pair.client.attach(spec).expect("a place");
        pair.greet();
        let mut line = Line::new(pair, 20_000);
        line.run(10 * MS);
        let start = line.pair.now;
        for round in 0..20 {
            line.pair.ask(one, Op::Read, 0, 128 << 10);
            line.poll();
            while line.pair.finished().is_empty() {
                let until = line.pair.now + SECOND;
                line.step(until);
                assert!(line.pair.now < start + SECOND, "round {round} of {ring_frames} frames");
            }
        }
        let taken = (line.pair.now - start) / MS;
        assert!(taken < 40, "{taken} ms for twenty reads, {ring_frames} frames");
    }
}

/// With a lease that is hardly longer than a round trip there is always a ping under way, and another one: they
/// take nothing of a small credit (seed 186).
#[test]
fn pings_leave_the_credit_to_requests() {
    let mut pair = Pair::new(100);
    pair.host = host_of(HostSpec { ring_frames: 1, ..HOST });
    let one = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    let mut line = Line::new(pair, 30 * MS);
    line.run(SECOND);
    for round in 0..10 {
        line.pair.write(one, 0, round, 512);
        line.poll();
        line.run(300 * MS);
        assert_eq!(line.pair.finished().len(), 1, "round {round}");
    }
}

/// Two disks and a NIC that never has enough: both disks get the same.
#[test]
fn a_flood_of_frames_beside_two_disks_starves_neither() {
    for is_write in [true, false] {
        for delay in [5_000, 50_000, 500_000] {
            let mut pair = Pair::new(10_000);
            [6, 7].into_iter().for_each(|device| {
                pair.host.export(export(device, 0));
            });
            let attach = |pair: &mut Pair, device| {
                pair.client.attach(AttachSpec { device, ..SPEC }).expect("a place")
            };
            let disks = [attach(&mut pair, DEVICE), attach(&mut pair, 6)];
            let nic = attach(&mut pair, 7);
            pair.greet();
            let mut line = Line::new(pair, delay);
            line.run(20 * MS);
            let submit = |pair: &mut Pair, one| match is_write {
                true => pair.write(one, 0, 1, 16 << 10),
                false => pair.ask(one, Op::Read, 0, 16 << 10),
            };
            for one in disks {
                (0..8).for_each(|_| submit(&mut line.pair, one));
            }
            let until = line.pair.now + u64::from(often(30, 100)) * MS;
            let mut done = [0u64; 2];
            while line.pair.now < until {
                if is_write {
                    while line.pair.client.send_net(nic, &[2; 1330]) {}
                } else {
                    while line.pair.host.send_net(2, &[2; 1330]) {}
                }
                line.step(until);
                while let Some(finished) = line.pair.client.next_finished() {
                    let one = finished.attachment;
                    done[usize::from(one == disks[1])] += 1;
                    line.pair.client.free(finished);
                    submit(&mut line.pair, one);
                }
            }
            let told = format!("writes {is_write}, delay {delay}: {done:?}");
            assert!(done[0] > 8 && done[0].abs_diff(done[1]) * 5 < done[0], "{told}");
        }
    }
}

/// A burst that was cut short goes on at the next moment, and says so.
#[test]
fn a_burst_that_was_cut_short_is_due_at_once() {
    let (mut pair, one) = Pair::bound(10_000);
    for round in 0..100 {
        pair.write(one, 0, round, 16 << 10);
        pair.ask(one, Op::Read, 0, 16 << 10);
        pair.run(10 * MS);
        pair.finished();
    }
    (0..8).for_each(|byte| pair.write(one, 0, byte, 16 << 10));
    pair.now += MS;
    let now = pair.now;
    let mut buffer = [0; 2000];
    while pair.client.poll_transmit(now, &mut buffer).is_some() {}
    assert_eq!(pair.client.due(), Some(now + 1), "the client has more to say");
    pair.run(100 * MS);
    assert_eq!(pair.finished().len(), 8);
    (0..8).for_each(|_| pair.ask(one, Op::Read, 0, 16 << 10));
    // All requests come at once, and so does the end of all of them.
    pair.is_cut[1] = true;
    pair.now += MS;
    let now = pair.now;
    while let Some(len) = pair.client.poll_transmit(now, &mut buffer) {
        pair.give_host(&buffer[..len]);
    }
    pair.work();
    let mut sent = 0;
    while pair.host.poll_transmit(now, &mut buffer).is_some() {
        sent += 1;
    }
    assert_eq!((sent, pair.host.due()), (32, Some(now + 1)), "the host has more to say");
    assert!(pair.host.poll_transmit(now + 1, &mut buffer).is_some());
}

/// A client that says something at each moment does not keep the host from looking at its timers.
#[test]
fn a_stream_of_frames_does_not_stop_the_timers() {
    let mut pair = Pair::new(10_000);
    let mut rogue = Rogue::new(&mut pair);
    let mut frame = rogue.frame(pair.now, &[Record::Bind(bind(1))]);
    assert!(pair.host.receive(pair.now, &mut frame, &mut |_, _| {}));
    pair.work();
    let mut lost = 0;
    while pair.host.poll_transmit(pair.now, &mut [0; 2000]).is_some() {
        lost += 1;
    }
    assert!(lost > 0 && rogue.heard.is_empty());
    (0..20).for_each(|_| assert!(rogue.say(&mut pair, &[Record::Ping])));
    assert!(rogue.heard.iter().any(|told| told.contains("Fresh")), "{:?}", rogue.heard);
}

/// What a thousand sessions that say nothing cost those that do: nothing. Counted, not timed.
#[test]
fn a_thousand_quiet_sessions_cost_nothing() {
    let mut pair = Pair::new(600_000);
    let spec = HostSpec { sessions_max: 4096, memory_max: 1 << 30, ring_frames: 1 << 20, ..HOST };
    pair.host = Host::new(HostSpec { client_memory_max: 1 << 30, ..spec });
    let mut rogues = Vec::new();
    for device in 0..1000 {
        pair.host.export(export(device, 0));
        let mut rogue = Rogue::new(&mut pair);
        let bind = Bind { device, instance: device + 1, ..bind(1) };
        let mut frame = rogue.frame(pair.now, &[Record::Bind(bind)]);
        assert!(pair.host.receive(pair.now, &mut frame, &mut |_, _| {}));
        pair.work();
        rogues.push(rogue);
    }
    // All that they are told is acknowledged, so that nothing is under way.
    let mut buffer = [0; 2000];
    for _ in 0..3 {
        pair.now += MS;
        while let Some((_, len)) = pair.host.poll_transmit(pair.now, &mut buffer) {
            let header = Header::parse(&buffer).expect("a header");
            let rogue = rogues.iter_mut().find(|one| one.session.mine == header.session);
            rogue.expect("its session").hear_frame(pair.now, &header, &mut buffer[..len]);
        }
        for rogue in &mut rogues {
            let mut frame = rogue.frame(pair.now, &[Record::Ping]);
            assert!(pair.host.receive(pair.now, &mut frame, &mut |_, _| {}));
        }
    }
    pair.now += MS;
    while pair.host.poll_transmit(pair.now, &mut buffer).is_some() {}
    let before = pair.host.counts().looks;
    for _ in 0..100 {
        pair.now += 1000;
        pair.host.tick(pair.now);
        assert_eq!(pair.host.poll_transmit(pair.now, &mut buffer), None);
        assert!(pair.host.due() > Some(pair.now) && pair.host.next_work(pair.now).is_none());
    }
    assert_eq!(pair.host.counts().looks, before, "nobody has anything to say");
    let mut frame = rogues[500].frame(pair.now, &[Record::Ping]);
    assert!(pair.host.receive(pair.now, &mut frame, &mut |_, _| {}));
    pair.now += MS;
    while pair.host.poll_transmit(pair.now, &mut buffer).is_some() {}
    let looks = pair.host.counts().looks - before;
    assert!((1..8).contains(&looks), "{looks} looks for one session");
}

/// What the client has goes to the host: how many frames that answers at once.
fn answers(pair: &mut Pair) -> usize {
    let mut buffer = [0; 9000];
    let now = pair.now;
    while let Some(len) = pair.client.poll_transmit(now, &mut buffer) {
        pair.give_host(&buffer[..len]);
    }
    let mut count = 0;
    while let Some((_, len)) = pair.host.poll_transmit(now, &mut buffer) {
        pair.give_client(&buffer[..len]);
        count += 1;
    }
    count
}

/// Sends so many frames of a NIC, each in a datagram of its own.
fn net(pair: &mut Pair, one: u16, frames: usize) -> usize {
    let sent = (0..frames).map(|_| {
        assert!(pair.client.send_net(one, &[7; 1400]));
        pair.now += 1000;
        answers(pair)
    });
    sent.sum()
}

/// As [`Pair::bound`], some time ago: what is new is acknowledged soon.
fn settled() -> (Pair, u16) {
    let (mut pair, one) = Pair::bound(10_000);
    net(&mut pair, one, 100);
    pair.run(10 * MS);
    pair.now += MS;
    (pair, one)
}

/// Two datagrams with nothing but a NIC's frames bring no acknowledgement of their own, as those of requests do: eight
/// do, or time.
#[test]
fn frames_of_nics_are_acknowledged_together() {
    let (mut pair, one) = settled();
    assert_eq!(net(&mut pair, one, 7), 0);
    assert_eq!(net(&mut pair, one, 1), 1);
    assert_eq!(net(&mut pair, one, 1), 0);
    pair.now += MS / 2;
    pair.host.tick(pair.now);
    assert_eq!(answers(&mut pair), 1);
}

#[test]
fn requests_are_acknowledged_by_two_whatever_else_comes() {
    let (mut pair, one) = settled();
    pair.executes = false;
    pair.write(one, 0, 1, 512);
    assert_eq!(answers(&mut pair), 0);
    pair.now += 1000;
    pair.write(one, 512, 2, 512);
    assert_eq!(answers(&mut pair), 1);
    // One request and four of a NIC's.
    pair.now += 1000;
    pair.write(one, 1024, 3, 512);
    assert_eq!(answers(&mut pair), 0);
    assert_eq!(net(&mut pair, one, 3), 0);
    assert_eq!(net(&mut pair, one, 1), 1);
}

/// What was lost is known by what comes after it, so that is told soon, whatever is in it.
#[test]
fn after_a_gap_frames_of_nics_are_acknowledged_as_requests_are() {
    let (mut pair, one) = settled();
    pair.is_cut[0] = true;
    net(&mut pair, one, 1);
    pair.is_cut[0] = false;
    assert_eq!(net(&mut pair, one, 1), 1);
    assert_eq!(net(&mut pair, one, 6), 3);
}

/// With a share of a few frames a NIC's sender does not wait half a millisecond for each handful.
#[test]
fn a_small_share_of_credit_is_no_reason_to_wait() {
    let mut pair = Pair::new(10_000);
    pair.host = host_of(HostSpec { ring_frames: 4, ..HOST });
    let one = pair.client.attach(SPEC).expect("a place");
    pair.greet();
    pair.run(10 * MS);
    net(&mut pair, one, 100);
    assert_eq!(net(&mut pair, one, 6), 3);
}
