//! Targets in a core of made-up time: streams that always want more, and clients that ask and wait.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::{Budget, INTERRUPTION, Limits, Piece, Policy, Schedule, Visited};

/// Nanoseconds for one request, and bytes in one of them.
const REQUEST_NS: u64 = 300;
const BYTES_PER_NS: u64 = 8;
/// Looking, calling, reading the clock, for each interruption.
const AROUND_NS: u64 = 400;

/// Whose guest asks again so long after each answer.
#[derive(Debug)]
struct Client {
    think_ns: u64,
    bytes: u64,
    /// What it asked, when, in order of time; some of it may be in the future.
    asked: VecDeque<u64>,
    served_ns: u64,
    requests: u64,
    /// As the schedule says, and as it was.
    missed: u64,
    truly_missed: u64,
    late_changes: u32,
}

impl Client {
    fn new(depth: usize, bytes: u64, think_ns: u64) -> Client {
        let asked = VecDeque::from(vec![0; depth]);
        let (served_ns, requests, missed, truly_missed, late_changes) = (0, 0, 0, 0, 0);
        Client { think_ns, bytes, asked, served_ns, requests, missed, truly_missed, late_changes }
    }
}

/// How visits are cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// As the schedule says.
    Told,
    Always(Piece),
}

struct Core {
    schedule: Schedule,
    cut: Cut,
    clients: Vec<Client>,
    targets: Vec<Option<u64>>,
    now: u64,
    /// Between two turns of the first client, at most.
    longest_turn_ns: u64,
}

impl Core {
    fn new(clients: Vec<(Client, u32, Option<u64>)>) -> Core {
        let mut schedule = Schedule::new(Limits::default(), 64);
        let mut targets = Vec::new();
        for (queue, (_, share, target_ns)) in clients.iter().enumerate() {
            schedule.add(queue as u16, *share, Policy::Poll, Nanos(0));
            schedule.set_target(queue as u16, *target_ns);
            targets.push(*target_ns);
        }
        let clients = clients.into_iter().map(|(client, ..)| client).collect();
        let cut = Cut::Always(Piece::WATCHFUL);
        Core { schedule, cut, clients, targets, now: 1, longest_turn_ns: 0 }
    }

    fn has_new(&self, queue: u16) -> bool {
        self.clients[usize::from(queue)].asked.front().is_some_and(|at| *at <= self.now)
    }

    fn serve(&mut self, queue: u16, budget: Budget) -> Visited {
        let target_ns = self.targets[usize::from(queue)].unwrap_or(u64::MAX);
        let mut visited = Visited { more: true, ..Visited::default() };
        while visited.requests < budget.requests && visited.bytes < budget.bytes {
            if !self.has_new(queue) {
                visited.more = false;
                break;
            }
            let client = &mut self.clients[usize::from(queue)];
            let asked = client.asked.pop_front().unwrap_or(0);
            client.truly_missed += u64::from(self.now.saturating_sub(asked) > target_ns);
            let took = REQUEST_NS + client.bytes / BYTES_PER_NS;
            (self.now, client.served_ns) = (self.now + took, client.served_ns + took);
            client.requests += 1;
            client.asked.push_back(self.now + client.think_ns);
            visited.requests += 1;
            visited.bytes += client.bytes;
        }
        visited
    }

    /// The next piece of a visit.
    fn piece(&self, is_watchful: bool) -> Piece {
        match self.cut {
            Cut::Told => self.schedule.piece(is_watchful, Nanos(self.now)),
            Cut::Always(piece) => piece,
        }
    }

    fn is_late(&self, queue: u16) -> bool {
        self.schedule.aim(queue).is_late()
    }

    fn note(&mut self, queue: u16, missed: u32, was_late: bool) {
        let is_late = self.is_late(queue);
        let client = &mut self.clients[usize::from(queue)];
        client.missed += u64::from(missed);
        client.late_changes += u32::from(was_late != is_late);
    }

    fn between(&mut self, queue: u16) -> u64 {
        let began = self.now;
        for at in 0..self.schedule.watched().len() {
            let Some(urgent) = self.schedule.watched().get(at).copied() else { break };
            if urgent == queue {
                continue;
            }
            if !self.has_new(urgent) {
                self.schedule.found_empty(urgent, Nanos(self.now));
                continue;
            }
            if !self.schedule.may_interrupt(urgent, Nanos(self.now)) {
                if self.schedule.may_ask_for_others() {
                    continue;
                }
                break;
            }
            let (since, was_late) = (self.now, self.is_late(urgent));
            self.now += AROUND_NS;
            let visited = self.serve(urgent, INTERRUPTION);
            let visited = Visited { nanos: self.now - since, ..visited };
            let missed = self.schedule.interrupted(urgent, visited);
            self.note(urgent, missed, was_late);
        }
        self.now - began
    }

    fn run(&mut self, until: u64) {
        let mut turned = self.now;
        while self.now < until {
            self.schedule.begin(Nanos(self.now));
            self.now += 100;
            while let Some(visit) = self.schedule.next() {
                if visit.queue == 0 {
                    self.longest_turn_ns = self.longest_turn_ns.max(self.now - turned);
                    turned = self.now;
                }
                let was_late = self.is_late(visit.queue);
                let is_watchful = self.schedule.watches_others(visit.queue);
                let (mut total, mut others_ns, began) = (Visited::default(), 0, self.now);
                loop {
                    let piece = self.piece(is_watchful).of(visit.budget, total);
                    let visited = self.serve(visit.queue, piece);
                    total.requests += visited.requests;
                    total.bytes += visited.bytes;
                    total.more = visited.more;
                    total.nanos = self.now - began - others_ns;
                    let Budget { requests, bytes, nanos } = visit.budget;
                    let is_within =
                        total.requests < requests && total.bytes < bytes && total.nanos < nanos;
                    if !total.more || !is_within {
                        break;
                    }
                    if is_watchful {
                        self.schedule.cut(Nanos(self.now));
                    }
                    others_ns += self.between(visit.queue);
                }
                self.now += 50;
                self.schedule.advance(Nanos(self.now));
                let missed = self.schedule.visited(visit.queue, total);
                self.note(visit.queue, missed, was_late);
            }
        }
    }
}

fn stream() -> (Client, u32, Option<u64>) {
    (Client::new(128, 64 << 10, 0), 100, None)
}

/// Eight requests of 4 KiB at once: more than a light queue.
fn asker(target_us: Option<u64>) -> (Client, u32, Option<u64>) {
    (Client::new(8, 4 << 10, 60_000), 100, target_us.map(|us| us * 1000))
}

const MS: u64 = 1_000_000;

fn beside_streams(target_us: Option<u64>, watch: bool) -> Core {
    let mut clients = vec![asker(target_us)];
    clients.extend((0..6).map(|_| stream()));
    let mut core = Core::new(clients);
    core.schedule.watch(watch);
    core
}

#[test]
fn a_queue_with_a_target_misses_it_much_less() {
    let missed = |watch| {
        let mut core = beside_streams(Some(50), watch);
        core.run(200 * MS);
        let Client { missed, truly_missed, requests, .. } = core.clients[0];
        assert!(missed >= truly_missed, "{missed} and {truly_missed}: no upper bound");
        (missed, truly_missed, requests)
    };
    let (without, with) = (missed(false), missed(true));
    assert!(without.0 > 5_000 && without.1 > 5_000, "{without:?}");
    assert!(with.0 * 50 < without.0 && with.2 > 2 * without.2, "{with:?}, without {without:?}");
}

#[test]
fn it_is_late_without_a_break_while_streams_are_there_and_not_for_ever() {
    let mut core = beside_streams(Some(50), true);
    core.run(500 * MS);
    assert!(core.is_late(0) && core.schedule.watched().contains(&0));
    assert_eq!(core.clients[0].late_changes, 1, "it flaps");
    // The streams stop.
    core.clients[1..].iter_mut().for_each(|client| client.asked.clear());
    core.run(530 * MS);
    assert!(!core.is_late(0), "its turns alone would do");
    assert_eq!(core.clients[0].late_changes, 2);
    core.run(600 * MS);
    assert_eq!((core.clients[0].late_changes, core.is_late(0)), (2, false));
}

#[test]
fn a_pause_changes_nothing() {
    let mut aim = Aim::new(1000, Nanos(0));
    let mut at = 0;
    let mut turn = |aim: &mut Aim, gap_ns, requests| {
        at += gap_ns;
        aim.turn(requests, Nanos(at), Nanos(at));
        aim.is_late()
    };
    assert!(!turn(&mut aim, 2000, 1) && !turn(&mut aim, 2000, 1) && turn(&mut aim, 2000, 1));
    assert!((0..1000).all(|_| turn(&mut aim, 100, 0)), "nobody used it");
    let left = (0..1000).position(|_| !turn(&mut aim, 100, 1));
    assert!(left.is_some_and(|turns| (64..300).contains(&turns)), "{left:?}");
    assert!((0..1000).all(|_| !turn(&mut aim, 100, 1)));
}

#[test]
fn a_target_that_turns_keep_changes_nothing() {
    let mut core = beside_streams(Some(1000), true);
    core.run(200 * MS);
    assert_eq!((core.clients[0].late_changes, core.clients[0].missed), (0, 0));
    assert!(!core.schedule.watched().contains(&0));
}

#[test]
fn one_that_wants_more_than_its_share_waits_for_it() {
    // A stream with a target that it cannot have takes no place among those that are watched.
    let mut clients = vec![(stream().0, 100, Some(10_000))];
    clients.extend((0..6).map(|_| stream()));
    let mut core = Core::new(clients);
    core.run(200 * MS);
    assert!(core.is_late(0) && core.schedule.watched().is_empty());
    let served = |at: usize| core.clients[at].served_ns as f64;
    assert!((served(0) / served(1) - 1.0).abs() < 0.02, "{} {}", served(0), served(1));
}

#[test]
fn what_it_is_served_early_is_of_its_own_share() {
    let mut clients = vec![(Client::new(8, 4 << 10, 5_000), 100, Some(10_000))];
    clients.extend((0..6).map(|_| stream()));
    let mut core = Core::new(clients);
    core.run(200 * MS);
    let served = |at: usize| core.clients[at].served_ns as f64;
    assert!(core.is_late(0) && served(0) > 0.8 * served(1), "{} {}", served(0), served(1));
    assert!(served(0) < 1.02 * served(1), "{} {}", served(0), served(1));
}

#[test]
fn those_that_are_late_come_before_those_that_are_only_light() {
    let mut clients: Vec<_> = (0..8).map(|_| (Client::new(1, 512, 20_000), 100, None)).collect();
    clients.extend((0..4).map(|_| stream()));
    clients.push(asker(Some(20)));
    let mut core = Core::new(clients);
    core.run(100 * MS);
    assert!(core.is_late(12) && core.schedule.watched().contains(&12), "{:?}", core.schedule);
    assert_eq!(core.schedule.watched().len(), crate::WATCHED_MAX);
}

#[test]
fn what_a_queue_waits_for_by_itself_is_not_missed() {
    let mut aim = Aim::new(1000, Nanos(0));
    aim.restart(Nanos(5000));
    assert_eq!(aim.turn(4, Nanos(5100), Nanos(5200)), 0, "it was armed, or limited");
    assert_eq!(aim.turn(0, Nanos(9000), Nanos(9000)), 0, "there was nothing");
    assert_eq!(aim.turn(3, Nanos(9900), Nanos(9900)), 0);
    assert_eq!(aim.turn(3, Nanos(10_901), Nanos(10_901)), 3);
    aim.found_empty(Nanos(12_000));
    assert_eq!(aim.turn(2, Nanos(12_900), Nanos(12_900)), 0);
}

fn client() -> impl Strategy<Value = (usize, u64, u64, u32, Option<u64>)> {
    let target_ns = prop_oneof![Just(None), (1_000..100_000u64).prop_map(Some)];
    (1..40usize, 512..32_768u64, 0..40_000u64, 100..=1000u32, target_ns)
}

fn cut() -> impl Strategy<Value = Cut> {
    let always = [Piece::NEAR, Piece::WATCHFUL, Piece::QUIET, Piece::ALONE].map(Cut::Always);
    prop_oneof![Just(Cut::Told), prop::sample::select(always.to_vec())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever targets are set by anybody, and however visits are cut: streams get their shares, nobody gets more than his, and the
    /// wait for a turn is bounded.
    #[test]
    fn nobody_loses_a_share_by_targets(
        others in prop::collection::vec(client(), 1..5),
        shares in prop::collection::vec((100..=1000u32, prop::option::of(1_000..500_000u64)), 2..5),
        cut in cut(),
    ) {
        let mut clients: Vec<_> = shares
            .iter()
            .map(|(share, target_ns)| (stream().0, *share, *target_ns))
            .collect();
        clients.extend(others.iter().map(|(depth, bytes, think_ns, share, target_ns)| {
            (Client::new(*depth, *bytes, *think_ns), *share, *target_ns)
        }));
        let count = clients.len() as u64;
        let mut core = Core::new(clients);
        core.cut = cut;
        core.run(200 * MS);
        let served = |at: usize| core.clients[at].served_ns as f64;
        let first = served(0) / f64::from(shares[0].0);
        for (at, (share, _)) in shares.iter().enumerate() {
            let ratio = served(at) / f64::from(*share) / first;
            prop_assert!((ratio - 1.0).abs() < 0.05, "stream {at}: {ratio}");
        }
        // Those that are light have 9% of the time beside their shares.
        let urgent_ns = 0.09 * 200.0 * MS as f64;
        for (at, (.., share, _)) in others.iter().enumerate() {
            let at = at + shares.len();
            let most = 1.05 * first * f64::from(*share) + urgent_ns;
            prop_assert!(served(at) <= most, "client {at}: {} of {most}", served(at));
        }
        // A visit and a request, twice for those that were late; and what light ones are given.
        let visit_ns = 25_000 + REQUEST_NS + (64 << 10) / BYTES_PER_NS + AROUND_NS;
        let debts = 10 * u64::from(shares.iter().map(|(share, _)| 1000 / share).max().unwrap_or(1));
        let wait_ns = core.longest_turn_ns;
        prop_assert!(wait_ns <= debts * 3 * count * visit_ns, "{wait_ns}");
    }
}
