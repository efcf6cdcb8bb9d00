//! What is promised of front-ends: none keeps another from its disk, none waits for ever, and a queue is never served for
//! two of them.

use std::os::fd::OwnedFd;
use std::time::Duration;

use config::api::{Call, DiskState};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vhost_user::message::{ConfigSpan, RingFd, RingState};
use vhost_user::{MemoryRegion, Message};

use crate::trial::Trial;
use crate::trial::vmm::{FLUSH, Guest, MEMORY, READ, RING, Vmm, WRITE, dial, memory_file, region};

const DISK: &str =
    "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\nqueues = 2\ndrain_timeout = 3\n";
const TWO: &str = "[[disk]]\nid = \"b\"\nbackend = \"memory\"\nsize = \"1M\"\n";

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn connected(trial: &mut Trial, rings: u16) -> Vmm {
    let vmm = Vmm::connect(trial, "a", Guest::new(rings)).expect("it listens");
    trial.rest();
    vmm
}

fn problem(trial: &mut Trial) -> String {
    trial.disk("a").problem.unwrap_or_default()
}

fn connections(trial: &mut Trial) -> usize {
    trial.rooms().devices.values().map(|device| device.connections().len()).sum()
}

/// Who connects and says nothing must not keep a VMM out, and goes by himself.
#[test]
fn who_says_nothing_is_told_of_and_ended() {
    let mut trial = Trial::of(DISK);
    let mut silent = connected(&mut trial, 0);
    trial.pass(secs(5));
    assert!(problem(&mut trial).starts_with("its front-end has connected and says nothing"));
    assert!(!silent.is_cut_off(&mut trial));
    trial.pass(Duration::from_millis(4_900));
    assert!(!silent.is_cut_off(&mut trial), "it has 10 s");
    trial.pass(Duration::from_millis(200));
    assert!(silent.is_cut_off(&mut trial));
    assert_eq!(connections(&mut trial), 0);
}

#[test]
fn who_stops_within_a_message_is_ended_and_who_waits_between_messages_is_not() {
    let mut trial = Trial::of(DISK);
    let mut waits = connected(&mut trial, 1);
    waits.introduce(&mut trial);
    let mut stalls = connected(&mut trial, 1);
    stalls.introduce(&mut trial);
    stalls.send_bytes(&Message::GetFeatures.emit(false)[..7], &[]);
    trial.pass(Duration::from_millis(4_900));
    assert!(!stalls.is_cut_off(&mut trial), "it has 5 s");
    trial.pass(Duration::from_millis(200));
    assert!(stalls.is_cut_off(&mut trial));
    trial.pass(secs(3_600));
    assert!(!waits.is_cut_off(&mut trial), "its guest may stand in its firmware's menu");
    waits.bring_memory(&mut trial);
    waits.start(&mut trial, 0);
    assert_eq!(waits.does(&mut trial, WRITE, 0, 1), Some(0));
}

/// The fifth has the place of the one that has been silent for longest, and nobody's who speaks.
#[test]
fn silent_connections_give_way_and_speaking_ones_do_not() {
    let mut trial = Trial::of(DISK);
    let mut silent: Vec<Vmm> = Vec::new();
    for _ in 0..4 {
        silent.push(connected(&mut trial, 1));
        trial.pass(Duration::from_millis(10));
    }
    let mut fifth = connected(&mut trial, 1);
    assert!(silent[0].is_cut_off(&mut trial));
    assert!(silent[1..].iter_mut().all(|one| !one.is_cut_off(&mut trial)));
    fifth.begin(&mut trial);
    for one in &mut silent[1..] {
        one.introduce(&mut trial);
    }
    let mut late = connected(&mut trial, 1);
    assert!(late.is_cut_off(&mut trial), "four are there, and all have said what they are");
    assert_eq!(connections(&mut trial), 4);
    assert_eq!(fifth.does(&mut trial, WRITE, 0, 1), Some(0));
    // One that has brought no memory and is silent for long gives way after all; who runs the device never does.
    trial.pass(secs(11));
    let mut late = connected(&mut trial, 1);
    assert!(!late.is_cut_off(&mut trial) && !fifth.is_cut_off(&mut trial));
}

#[test]
fn of_two_front_ends_one_runs_the_device_and_the_other_only_asks() {
    let mut trial = Trial::of(DISK);
    let mut first = Vmm::served(&mut trial, "a", 1);
    let mut second = connected(&mut trial, 1);
    second.introduce(&mut trial);
    second.send(&Message::SetMemTable(vec![region()]), &[&memory_file(true)]);
    assert_eq!(second.hear(&mut trial), Some(Ok(1)), "it is refused, and may go on");
    assert!(
        problem(&mut trial).contains("another front-end runs this device"),
        "{}",
        problem(&mut trial)
    );
    let span = ConfigSpan { offset: 0, size: 8, flags: 0, bytes: vec![0; 8] };
    second.send(&Message::GetConfig(span), &[]);
    let Some(Err(Message::GetConfig(span))) = second.hear(&mut trial) else { panic!("no answer") };
    assert_eq!(span.bytes, (1u64 << 20 >> 9).to_le_bytes());
    assert_eq!(first.does(&mut trial, WRITE, 0, 1), Some(0));
    // When the first is gone the second may run it.
    drop(first.hang_up());
    trial.rest();
    second.bring_memory(&mut trial);
    second.start(&mut trial, 0);
    assert_eq!(second.does(&mut trial, READ, 0, 0), Some(0));
    assert_eq!(second.guest.data(0), [1; 512]);
}

/// What stops a ring is answered when nothing of it is in flight, and nobody else waits for that.
#[test]
fn a_ring_that_stops_is_waited_for_without_anybody_else() {
    let mut trial = Trial::of(&format!("{DISK}{TWO}"));
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    for fill in 0..3 {
        assert_eq!(vmm.does(&mut trial, WRITE, fill.into(), fill), Some(0));
    }
    trial.stall(true);
    assert_eq!(vmm.stop(&mut trial, 0), None, "a sidecore still has it");
    // What it says meanwhile is heard afterwards, in order.
    vmm.send(&Message::GetVringBase(RingState { queue: 1, value: 0 }), &[]);
    let mut other = Vmm::connect(&trial, "b", Guest::new(1)).expect("it listens");
    other.introduce(&mut trial);
    assert!(trial.ask(Call::ListDisks).is_ok());
    trial.pass(secs(2));
    trial.stall(false);
    trial.rest();
    assert_eq!(vmm.base_of(&mut trial, 0), Some(3), "where it stands");
    assert_eq!(vmm.base_of(&mut trial, 1), Some(0));
    assert_eq!(trial.disk("a").queues_attached, 0);
    // And it goes on there.
    vmm.start(&mut trial, 0);
    assert_eq!(vmm.does(&mut trial, READ, 2, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [2; 512]);
}

#[test]
fn a_front_end_waits_as_long_as_its_operator_allows_and_the_next_one_starts_when_all_is_back() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    trial.stall(true);
    assert_eq!(vmm.stop(&mut trial, 0), None);
    trial.pass(Duration::from_millis(2_900));
    assert!(!vmm.is_cut_off(&mut trial));
    trial.pass(Duration::from_millis(200));
    assert!(vmm.is_cut_off(&mut trial), "without the answer that would say that it is over");
    assert_eq!(vmm.base_of(&mut trial, 0), None);
    let mut next = Vmm::served(&mut trial, "a", 1);
    next.guest.request(0, WRITE, 0, 1);
    trial.pass(secs(1));
    assert_eq!(trial.disk("a").queues_attached, 1, "the one before");
    assert!(problem(&mut trial).starts_with("waits for 0 requests"), "{}", problem(&mut trial));
    trial.stall(false);
    trial.pass(Duration::from_millis(10));
    assert_eq!(next.guest.status(0), Some(0));
    assert_eq!(trial.daemon.loads().iter().sum::<usize>(), 1);
}

/// Its VMM may give memory to another as soon as it has heard that the disk has it no more, also when it has connected
/// anew since the disk was given its requests.
#[test]
fn memory_is_taken_away_when_no_queue_of_an_earlier_connection_has_it() {
    let elsewhere = MemoryRegion { gpa: MEMORY, user: MEMORY, ..region() };
    let changes = [
        ("a region goes", Message::RemMemReg(region()), true),
        ("all are others", Message::SetMemTable(vec![elsewhere]), true),
        ("one is added", Message::AddMemReg(elsewhere), false),
    ];
    for (what, message, waits) in changes {
        let mut trial = Trial::of(DISK);
        let vmm = Vmm::served(&mut trial, "a", 1);
        trial.stall(true);
        let guest = vmm.hang_up();
        trial.rest();
        let mut next = Vmm::connect(&trial, "a", guest).expect("it listens");
        next.introduce(&mut trial);
        // What it brings first is nothing that it takes away.
        next.bring_memory(&mut trial);
        let file = memory_file(true);
        let fds = if matches!(message, Message::RemMemReg(_)) { vec![] } else { vec![&file] };
        next.send(&message, &fds);
        assert_eq!(next.hear(&mut trial), (!waits).then_some(Ok(0)), "{what}");
        trial.stall(false);
        trial.pass(Duration::from_millis(1));
        assert_eq!(next.hear(&mut trial), waits.then_some(Ok(0)), "{what}, afterwards");
        assert_eq!(trial.disk("a").queues_attached, 0);
    }
}

/// A guest that breaks the rules of one ring is not served by it, and by the others it is.
#[test]
fn a_ring_whose_driver_breaks_the_rules_is_stopped_until_it_is_started_anew() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    let error = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
    vmm.send(&Message::SetVringErr(RingFd { queue: 1, has_fd: true }), &[&error]);
    assert_eq!(vmm.hear(&mut trial), Some(Ok(0)));
    let raw = vmm.guest.rings[1].driver.raw();
    raw.set_avail_index(RING + 1);
    rustix::io::write(&vmm.guest.rings[1].kick, &1u64.to_ne_bytes()).expect("a kick");
    trial.rest();
    trial.pass(Duration::from_millis(1));
    let shown = trial.disk("a");
    assert_eq!(shown.state, DiskState::Failed);
    let problem = shown.problem.expect("it is told");
    assert!(problem.starts_with("queue 1 is stopped: "), "{problem}");
    assert!(problem.ends_with("; it serves again after its guest resets it"), "{problem}");
    let mut told = [0; 8];
    assert_eq!(rustix::io::read(&error, &mut told), Ok(8), "its VMM is told");
    assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0), "the other one goes on");
    vmm.stop(&mut trial, 1).expect("it stops");
    let raw = vmm.guest.rings[1].driver.raw();
    raw.set_avail_index(0);
    vmm.guest.rings[1].base = 0;
    vmm.start(&mut trial, 1);
    let shown = trial.disk("a");
    assert_eq!((shown.state, shown.problem), (DiskState::Running, None));
}

#[test]
fn a_ring_that_is_nowhere_is_told_of_and_starts_when_it_is_somewhere() {
    let mut trial = Trial::of(DISK);
    let mut vmm = connected(&mut trial, 1);
    vmm.introduce(&mut trial);
    vmm.bring_memory(&mut trial);
    vmm.set_up(&mut trial, 0);
    let beyond = vhost_user::RingAddresses {
        descriptors: 1 << 40,
        driver: 1 << 41,
        device: 1 << 42,
        log: 0,
        logged: false,
    };
    vmm.told(&mut trial, Message::SetVringAddr((0, beyond)));
    vmm.told(&mut trial, Message::SetVringEnable(RingState { queue: 0, value: 1 }));
    let shown = trial.disk("a");
    assert_eq!((shown.state, shown.queues_attached), (DiskState::Failed, 0));
    let problem = shown.problem.expect("it is told");
    assert!(problem.starts_with("queue 0 cannot be served: the "), "{problem}");
    vmm.start(&mut trial, 0);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    assert_eq!(trial.disk("a").problem, None);
}

/// What a front-end may not lend is refused, and nothing of it is mapped.
#[test]
fn memory_that_can_be_cut_off_is_taken_only_where_its_operator_allows_that() {
    for (more, is_taken) in [("", false), ("allow_unsealed_memory = true\n", true)] {
        let mut trial = Trial::of(&format!("{DISK}{more}"));
        let mut vmm = connected(&mut trial, 1);
        vmm.introduce(&mut trial);
        vmm.send(&Message::SetMemTable(vec![region()]), &[&memory_file(false)]);
        let answer = vmm.hear(&mut trial);
        assert_eq!(answer, Some(Ok(u64::from(!is_taken))));
        assert_eq!(problem(&mut trial).contains("sealed"), !is_taken, "{}", problem(&mut trial));
    }
}

/// (bytes, whether the connection ends)
#[test]
fn who_talks_nonsense_is_ended_and_nobody_else() {
    let mut trial = Trial::of(&format!("{DISK}{TWO}"));
    let mut other = Vmm::served(&mut trial, "b", 1);
    let header = |id: u32, flags: u32, len: u32| {
        [id, flags, len].iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>()
    };
    let with = |mut head: Vec<u8>, body: &[u8]| {
        head.extend_from_slice(body);
        head
    };
    let cases = [
        ("text", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("a version that does not exist", header(1, 2, 0)),
        ("an endless message", header(5, 1, u32::MAX)),
        ("no message", header(99, 1, 0)),
        ("a payload too many", with(header(3, 1, 8), &[0; 8])),
        ("a payload too few", with(header(2, 1, 4), &[0; 4])),
    ];
    for (what, bytes) in cases {
        let mut vmm = connected(&mut trial, 1);
        vmm.send_bytes(&bytes, &[]);
        assert!(vmm.is_cut_off(&mut trial), "{what}");
        assert!(
            problem(&mut trial).contains("refused") || problem(&mut trial).is_empty(),
            "{what}"
        );
    }
    assert_eq!(other.does(&mut trial, WRITE, 0, 1), Some(0));
    assert_eq!(connections(&mut trial), 1);
}

#[test]
fn descriptors_that_nobody_asked_for_are_given_back() {
    let mut trial = Trial::of(DISK);
    let mut vmm = connected(&mut trial, 1);
    vmm.introduce(&mut trial);
    let fds: Vec<OwnedFd> = (0..8).map(|_| memory_file(true)).collect();
    let all: Vec<&OwnedFd> = fds.iter().collect();
    let before = trial.daemon.bounds().descriptors;
    for _ in 0..20 {
        // A ring's kick takes one.
        vmm.send(&Message::SetVringKick(RingFd { queue: 0, has_fd: true }), &all);
        if vmm.is_cut_off(&mut trial) {
            vmm = connected(&mut trial, 1);
            vmm.introduce(&mut trial);
        } else {
            vmm.hear(&mut trial);
        }
    }
    assert_eq!(trial.daemon.bounds().descriptors, before);
}

/// Whoever makes a sidecore wait makes all its tenants wait.
#[test]
fn who_makes_a_call_descriptor_block_is_shut_out_for_a_while() {
    let mut trial = Trial::of(&format!("{DISK}{TWO}"));
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    let call = &vmm.guest.rings[0].call;
    let _ = rustix::io::read(call, &mut [0; 8]);
    rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).expect("it is full");
    let flags = fcntl_getfl(call).expect("flags");
    fcntl_setfl(call, flags - OFlags::NONBLOCK).expect("it blocks");
    vmm.guest.request(0, WRITE, 0, 1);
    trial.rest();
    trial.pass(Duration::from_millis(10));
    assert!(vmm.is_cut_off(&mut trial));
    assert!(
        problem(&mut trial).contains("no front-end is taken for 10 s"),
        "{}",
        problem(&mut trial)
    );
    let mut early = connected(&mut trial, 1);
    assert!(early.is_cut_off(&mut trial));
    let mut other = Vmm::served(&mut trial, "b", 1);
    assert_eq!(other.does(&mut trial, WRITE, 0, 1), Some(0));
    trial.pass(secs(10));
    let mut next = Vmm::served(&mut trial, "a", 1);
    assert_eq!(next.does(&mut trial, READ, 0, 0), Some(0));
}

/// What one lacks that looks well from its VMM.
#[test]
fn a_front_end_that_gets_no_further_is_told_what_it_lacks() {
    let mut trial = Trial::of(DISK);
    let mut vmm = connected(&mut trial, 1);
    vmm.introduce(&mut trial);
    trial.pass(secs(5));
    assert!(problem(&mut trial).contains("has brought no guest memory"), "{}", problem(&mut trial));
    vmm.bring_memory(&mut trial);
    trial.pass(secs(5));
    assert!(problem(&mut trial).contains("starts no ring"), "{}", problem(&mut trial));
    vmm.start(&mut trial, 0);
    trial.pass(secs(5));
    assert_eq!(problem(&mut trial), "", "its guest may have nothing to ask for");
    for _ in 0..3 {
        rustix::io::write(&vmm.guest.rings[0].kick, &1u64.to_ne_bytes()).expect("a kick");
        trial.pass(secs(2));
    }
    assert!(
        problem(&mut trial).contains("nothing is ever in its rings"),
        "{}",
        problem(&mut trial)
    );
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    trial.pass(secs(2));
    assert_eq!(problem(&mut trial), "");
}

/// Mode `connect`: the daemon goes to the VMM, again and again, and not in a loop.
#[test]
fn a_front_end_that_is_called_is_called_once_a_second_until_it_is_there() {
    let text = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\nmode = \"connect\"\n\
                socket = \"{}/run/vmm.sock\"\n";
    let mut trial = Trial::of(text);
    trial.pass(secs(3));
    assert!(problem(&mut trial).starts_with("nobody answers at "), "{}", problem(&mut trial));
    let listener = std::os::unix::net::UnixListener::bind(trial.path("run/vmm.sock"));
    let listener = listener.expect("a socket");
    listener.set_nonblocking(true).expect("it does not block");
    trial.pass(secs(1));
    let accept = || listener.accept().ok().map(|(socket, _)| OwnedFd::from(socket));
    let mut vmm = Vmm::at(accept().expect("it is called"), Guest::new(1));
    vmm.begin(&mut trial);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    trial.pass(secs(5));
    assert!(accept().is_none(), "one is there");
    drop(vmm.hang_up());
    let mut calls = 0;
    for _ in 0..50 {
        trial.pass(Duration::from_millis(100));
        // One that hangs up at once is not called in a loop.
        calls += u32::from(accept().is_some());
    }
    assert!((4..=6).contains(&calls), "{calls} calls in 5 s");
}

/// While another process is told what there is, and may have it, nothing is heard: it is that one's.
#[test]
fn what_is_held_while_all_stands_still_is_done_afterwards() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    trial.stall(true);
    assert_eq!(vmm.stop(&mut trial, 0), None);
    assert!(trial.manager().drain.freeze());
    trial.stall(false);
    trial.rest();
    assert_eq!(vmm.base_of(&mut trial, 0), None, "it was answered by one that lets go");
    trial.manager().send_all_out();
    trial.manager().front_ends().release_all();
    assert_eq!(vmm.base_of(&mut trial, 0), Some(0));
}

#[test]
fn a_front_end_that_goes_leaves_a_device_that_anybody_can_have() {
    let mut trial = Trial::of(DISK);
    for round in 0..20 {
        let mut vmm = Vmm::served(&mut trial, "a", 2);
        assert_eq!(vmm.does(&mut trial, WRITE, round, round as u8), Some(0));
        drop(vmm.hang_up());
        trial.rest();
        assert_eq!((connections(&mut trial), trial.disk("a").queues_attached), (0, 0));
    }
    assert_eq!(trial.daemon.loads(), [0, 0]);
    let waits = (0..3).map(|_| dial(&trial.socket("a")).expect("it listens")).collect::<Vec<_>>();
    drop(waits);
    trial.rest();
    assert_eq!(connections(&mut trial), 0);
}
