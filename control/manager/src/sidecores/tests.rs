//! What operators and guests are promised of sidecores: where queues are, how they get elsewhere, and who waits for that.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use config::Target;
use config::api::{Answer, ApiError, Call, DiskView, ErrorKind, SidecoreState};
use config::spec::DiskMove;
use sidecore::QueueKey;
use vhost_user::Message;
use vhost_user::message::{RingFd, RingState};

use super::*;
use crate::simulated::{Asked, Heard, Stage, take_cores};
use crate::trial::vmm::{READ, Vmm, WRITE};
use crate::trial::{Trial, disk_in, refused};

const DISK: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\nqueues = 2\n";

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn nodes_matter_where_there_are_several() {
    let cpu = |cpu: u32, node: u32| host::topology::Cpu { cpu, core: cpu, node, isolated: false };
    let one = host::Topology { cpus: vec![cpu(0, 0), cpu(1, 0)] };
    assert_eq!(nodes_of(&[0, 1], &one), [0; 0]);
    let two = host::Topology { cpus: vec![cpu(0, 0), cpu(1, 0), cpu(2, 1), cpu(3, 1)] };
    assert_eq!(nodes_of(&[3, 1], &two), [1, 0]);
}

fn to(id: &str, to: Target, queue: Option<u16>) -> Call {
    Call::MoveDisk { id: id.to_string(), wish: DiskMove { to, queue } }
}

/// The sidecore of each queue, and whether it stays there by an operator's hand.
fn places(disk: &DiskView) -> Vec<(u16, bool)> {
    let place = |queue: &config::api::QueueView| Some((queue.sidecore?, queue.by_hand));
    disk.queues.iter().filter_map(place).collect()
}

fn answered(asked: &mut Asked) -> Option<Result<Answer, ApiError>> {
    match asked.hear() {
        Heard::Answer(answer) => Some(*answer),
        Heard::Nothing => None,
        Heard::Nobody => panic!("nobody answers"),
    }
}

/// One turn of control, in which no sidecore does anything.
fn turn(trial: &mut Trial) {
    trial.daemon.turn(&mut |count| (0..count).collect());
}

#[test]
fn queues_go_where_an_operator_wants_them_and_stay_there() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    assert_eq!(vmm.does(&mut trial, WRITE, 3, 9), Some(0));
    for goal in [1, 0, 0, 1] {
        let moved = disk_in(trial.ask(to("a", Target::Sidecore(goal), None)).expect("it moves"));
        assert_eq!(places(&moved), [(goal, true); 2]);
        let mut loads = [0, 0];
        loads[usize::from(goal)] = 2;
        assert_eq!(trial.daemon.loads(), loads);
        assert_eq!(vmm.does(&mut trial, READ, 3, 0), Some(0));
        assert_eq!(vmm.guest.data(0), [9; 512]);
    }
    // One alone, and then nobody holds the other one.
    let one = disk_in(trial.ask(to("a", Target::Sidecore(0), Some(1))).expect("it moves"));
    assert_eq!(places(&one), [(1, true), (0, true)]);
    let one = disk_in(trial.ask(to("a", Target::Auto, Some(0))).expect("it is let go"));
    assert_eq!(places(&one), [(1, false), (0, true)]);
    let none = disk_in(trial.ask(to("a", Target::Auto, None)).expect("it is let go"));
    assert_eq!(places(&none), [(1, false), (0, false)]);
}

#[test]
fn what_cannot_be_moved_says_why_and_stays() {
    let nic = "[[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\n";
    let idle = DISK.replace("\"a\"", "\"b\"");
    let mut trial = Trial::of(&format!("{DISK}{idle}{nic}"));
    // One of its two queues is served.
    let _vmm = Vmm::served(&mut trial, "a", 1);
    let before = trial.disk("a");
    let here = Target::Sidecore(0);
    let cases = [
        ("x", here, None, ErrorKind::NotFound, "there is no disk \"x\""),
        ("n", here, None, ErrorKind::Refused, "\"n\" is a nic; use `sidecore nic move`"),
        ("n", Target::Auto, None, ErrorKind::Refused, "\"n\" is a nic; use `sidecore nic move`"),
        ("a", Target::Sidecore(2), None, ErrorKind::Refused, "there is no sidecore 2: there are 2"),
        ("b", here, None, ErrorKind::Refused, "no guest runs disk \"b\"; there is nothing to move"),
        ("a", here, Some(1), ErrorKind::Refused, "queue 1 of disk \"a\" is not served now"),
        ("a", here, Some(9), ErrorKind::Refused, "queue 9 of disk \"a\" is not served now"),
        (
            "a",
            Target::Auto,
            Some(2),
            ErrorKind::Refused,
            "there is no queue 2 of disk \"a\": it has 2",
        ),
    ];
    for (id, goal, queue, expected, begins) in cases {
        let (kind, why) = refused(trial.ask(to(id, goal, queue)));
        assert_eq!(kind, expected, "{why}");
        assert!(why.starts_with(begins), "{why}");
        assert!(!why.ends_with("; "), "what to do: {why}");
    }
    assert_eq!(places(&trial.disk("a")), places(&before));
    // Of one that nobody runs, nobody holds anything.
    assert!(trial.ask(to("b", Target::Auto, None)).is_ok());
}

/// While a queue is handed over it is not known who has it; what is said of it is not lost.
#[test]
fn a_queue_on_its_way_is_busy_and_hears_on_its_arrival_what_was_said_meanwhile() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    let goal = 1 - places(&trial.disk("a"))[0].0;
    let mut moves = trial.asks(to("a", Target::Sidecore(goal), Some(0)));
    turn(&mut trial);
    let mut again = trial.asks(to("a", Target::Sidecore(1 - goal), Some(0)));
    let mut other = trial.asks(to("a", Target::Auto, Some(1)));
    // Its VMM has calls go elsewhere, and a request comes.
    let call =
        rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
    let fd = RingFd { queue: 0, has_fd: true };
    vmm.send(&Message::SetVringCall(fd), &[&call]);
    vmm.guest.request(0, WRITE, 5, 8);
    (0..4).for_each(|_| turn(&mut trial));
    let (kind, why) = refused(answered(&mut again).expect("at once"));
    assert_eq!(kind, ErrorKind::Busy);
    assert!(why.starts_with("queue 0 of disk \"a\" is being moved or stopped; try again"), "{why}");
    assert!(answered(&mut other).expect("at once").is_ok(), "it is no matter of the other one");
    assert_eq!(answered(&mut moves).map(|answer| answer.is_ok()), None);
    trial.pass(ms(5));
    assert_eq!(vmm.hear(&mut trial), Some(Ok(0)));
    let moved = disk_in(answered(&mut moves).expect("it is over").expect("it is there"));
    assert_eq!(places(&moved)[0], (goal, true));
    assert_eq!(vmm.guest.status(0), Some(0), "the request was done");
    let called = rustix::io::read(&call, &mut [0; 8]);
    assert_eq!(called, Ok(8), "through the new descriptor");
}

#[test]
fn a_queue_that_its_front_end_stops_goes_nowhere_and_the_operator_hears_so() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    let (here, _) = places(&trial.disk("a"))[0];
    let mut moves = trial.asks(to("a", Target::Sidecore(1 - here), None));
    turn(&mut trial);
    // The new owner is not ready yet, so the move is called off.
    vmm.send(&Message::GetVringBase(RingState { queue: 0, value: 0 }), &[]);
    trial.rest();
    let why = answered(&mut moves).expect("it is over");
    let (kind, why) = refused(why);
    assert_eq!(kind, ErrorKind::Busy, "{why}");
    assert_eq!(vmm.base_of(&mut trial, 0), Some(0));
    assert_eq!(trial.daemon.loads(), [0, 0]);
    // Nothing of the move is left: it starts, and moves.
    vmm.start(&mut trial, 0);
    assert_eq!(vmm.does(&mut trial, WRITE, 1, 1), Some(0));
    let there = disk_in(trial.ask(to("a", Target::Sidecore(1), None)).expect("it moves"));
    assert_eq!(places(&there), [(1, true)]);
}

#[test]
fn a_disk_that_goes_takes_its_moves_along() {
    for turns in 1..5 {
        let mut trial = Trial::of("");
        let spec = serde_json::json!({"id": "a", "backend": "memory", "size": "1M"});
        let spec = serde_json::from_value(spec).expect("a disk");
        trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
        let vmm = Vmm::served(&mut trial, "a", 1);
        let (here, _) = places(&trial.disk("a"))[0];
        let mut moves = trial.asks(to("a", Target::Sidecore(1 - here), None));
        // It is removed at any point of the move.
        for _ in 0..turns {
            turn(&mut trial);
            trial.pass_cores();
        }
        let mut removes = trial.asks(Call::RemoveDisk { id: "a".to_string(), force: true });
        trial.pass(ms(50));
        assert!(answered(&mut moves).is_some(), "after {turns} turns");
        assert!(answered(&mut removes).expect("it is gone").is_ok());
        assert_eq!(trial.daemon.loads(), [0, 0], "after {turns} turns");
        drop(vmm);
    }
}

#[test]
fn what_is_by_hand_stays_until_its_front_end_starts_it_anew() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    let goal = 1 - places(&trial.disk("a"))[0].0;
    trial.ask(to("a", Target::Sidecore(goal), None)).expect("it moves");
    trial.pass(ms(10_000));
    assert_eq!(places(&trial.disk("a")), [(goal, true)]);
    // Any message that needs it back, and not only a stop.
    vmm.bring_memory(&mut trial);
    assert!(!places(&trial.disk("a"))[0].1);
    trial.ask(to("a", Target::Sidecore(goal), None)).expect("it moves");
    let _ = vmm.stop(&mut trial, 0);
    vmm.start(&mut trial, 0);
    assert!(!places(&trial.disk("a"))[0].1);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
}

#[test]
fn what_is_not_needed_is_parked_and_comes_back_when_somebody_comes() {
    let disks: String = (0..4).map(|at| DISK.replace("\"a\"", &format!("\"d{at}\""))).collect();
    let mut trial = Trial::of(&format!("[sidecores]\ncpus = \"0-1\"\nmin = 1\n{disks}"));
    let states = |trial: &mut Trial| match trial.ask(Call::ListSidecores) {
        Ok(Answer::Sidecores(all)) => {
            all.sidecores.iter().map(|core| (core.state, core.queues)).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let mut vmms: Vec<Vmm> =
        (0..4).map(|at| Vmm::served(&mut trial, &format!("d{at}"), 2)).collect();
    assert_eq!(states(&mut trial).iter().map(|(_, queues)| queues).sum::<u16>(), 8);
    // An operator's wish wakes one, whatever the load, and what he holds there is not moved away.
    let moved = disk_in(trial.ask(to("d0", Target::Sidecore(1), None)).expect("it moves"));
    assert_eq!(places(&moved), [(1, true); 2]);
    trial.pass(ms(60_000));
    assert_eq!(states(&mut trial), [(SidecoreState::Parked, 0), (SidecoreState::InUse, 8)]);
    trial.ask(to("d0", Target::Sidecore(0), None)).expect("it moves");
    assert_eq!(states(&mut trial)[0], (SidecoreState::InUse, 2));
    trial.ask(to("d0", Target::Auto, None)).expect("it is let go");
    trial.pass(ms(60_000));
    let parked = states(&mut trial);
    assert_eq!(parked.iter().filter(|state| **state == (SidecoreState::Parked, 0)).count(), 1);
    let before = trial.turns;
    for _ in 0..60 {
        assert_eq!(states(&mut trial), parked, "and it stays so");
        trial.pass(ms(1_000));
    }
    // Each of which is a call, a look and a knock.
    assert!(trial.turns - before < 60 * 8, "{} turns", trial.turns - before);
    // Nobody lost anything by it.
    for (at, vmm) in (0..).zip(&mut vmms) {
        assert_eq!(vmm.does(&mut trial, WRITE, at, 1), Some(0));
    }
    // Guests that go leave nothing behind.
    drop(vmms);
    trial.pass(ms(100));
    assert_eq!(trial.daemon.loads(), [0, 0]);
}

/// Sidecores that nobody steps, so that their inboxes fill.
fn cores(count: u32) -> (Stage, Cores) {
    let stage = Stage::set(|_| Duration::ZERO);
    let host = cpus::HostCpus { online: (0..8).collect(), auto: Vec::new(), auto_count: 1 };
    let text = format!("[sidecores]\ncpus = \"0-{}\"\n", count - 1);
    let plan = config::plan::load(&text, "f", "/etc", &host, None).expect("a plan");
    let now = crate::clock::now();
    (stage, Cores::launch(&plan.sidecores, None, now).expect("they start"))
}

const KEY: QueueKey = QueueKey { device: 7, queue: 1 };

#[test]
fn a_command_for_which_there_is_no_room_waits_and_is_sent_when_there_is() {
    let (_stage, mut cores) = cores(1);
    let mut sidecores = take_cores(0);
    let mut sent = 0;
    while !cores.is_backed_up() {
        cores.send(0, Command::Detach(KEY));
        sent += 1;
    }
    assert!(sent > 1000);
    // Behind those that wait, whatever it is.
    cores.fence();
    assert!(!cores.are_fenced() && cores.is_backed_up());
    cores.flush();
    assert!(cores.is_backed_up(), "there is no room");
    let at = nanos_of(crate::clock::now());
    let mut passes = 0;
    while !cores.are_fenced() {
        sidecores[0].pass(at, &at);
        cores.flush();
        while let Some(event) = cores.take_event(0) {
            assert!(matches!(event, Event::Fenced), "{event:?}");
            cores.is_fenced();
        }
        passes += 1;
        assert!(passes < 10_000, "it is never said");
    }
    assert!(!cores.is_backed_up());
    // Once more than was asked is no reason to think that all have answered the next time.
    cores.is_fenced();
    cores.fence();
    assert!(!cores.are_fenced());
    sidecores.into_iter().for_each(sidecore::Sidecore::die);
}

/// A front-end may send one call descriptor after the other, and must not use up ours.
#[test]
fn a_call_descriptor_that_waits_is_closed_when_another_one_takes_its_place() {
    let (_stage, mut cores) = cores(1);
    let sidecores = take_cores(0);
    while !cores.is_backed_up() {
        cores.send(0, Command::Detach(KEY));
    }
    let mut ends = Vec::new();
    for other in [KEY, KEY, QueueKey { queue: 2, ..KEY }, KEY] {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set");
        cores.send(0, Command::SetCall(other, Some(OwnedFd::from(theirs))));
        ends.push(ours);
    }
    let closed: Vec<bool> =
        ends.iter_mut().map(|end| end.read(&mut [0; 1]).is_ok_and(|read| read == 0)).collect();
    assert_eq!(closed, [true, true, false, false], "the last one of each queue is kept");
    sidecores.into_iter().for_each(sidecore::Sidecore::die);
}

#[test]
fn what_is_said_of_a_sidecore_that_is_not_there_is_a_defect_and_does_nothing() {
    let (_stage, mut cores) = cores(2);
    let sidecores = take_cores(0);
    cores.send(2, Command::Fence);
    cores.take_load(2, 1);
    cores.give_load(0, 1);
    cores.connect(0, 5);
    assert!(cores.take_event(2).is_none() && cores.handle(2).is_none() && cores.cpu(2).is_none());
    let expected = [
        "queues that go from a sidecore",
        "sidecore at an end of a road",
        "sidecore that a command is for",
        "sidecore that queues come to",
    ];
    let mut seen: Vec<String> = cores.defects.views().into_iter().map(|it| it.expected).collect();
    seen.sort();
    assert_eq!(seen, expected);
    assert_eq!(cores.queues(), [0, 0]);
    sidecores.into_iter().for_each(sidecore::Sidecore::die);
}

#[test]
fn what_cannot_be_moved_later_goes_where_the_fewest_queues_are() {
    let (_stage, mut cores) = cores(3);
    let sidecores = take_cores(0);
    for (expected, load) in [(0, 5), (1, 3), (2, 4), (1, 9), (2, 1)] {
        let core = cores.place_fixed().expect("a sidecore");
        assert_eq!(core, expected);
        cores.take_load(core, load);
    }
    assert_eq!(cores.queues(), [5, 12, 5]);
    assert_eq!(cores.places_fixed(2), [0, 2]);
    assert_eq!(cores.places_fixed(9), [0, 2, 1], "as many as there are");
    // One that starts again goes where it was, and another one, whose sidecore is no more, where it suits.
    assert_eq!(cores.place_again(Some((1, true)), || None), Some((1, true)));
    assert_eq!(cores.place_again(Some((3, true)), || None), Some((0, false)));
    sidecores.into_iter().for_each(sidecore::Sidecore::die);
}
