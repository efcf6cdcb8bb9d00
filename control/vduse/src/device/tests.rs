//! Each word of the kernel has its answer in time, whatever the daemon does. The kernel of these tests is a socket: it
//! reads and is read, and knows none of the calls.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::front_end::tests::{Place, Told, connected};
use crate::spec::Kind;

/// The other end of a bridge's device.
struct Kernel(File);

impl Kernel {
    fn says(&mut self, kind: u32, id: u32, body: &[u8]) {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&id.to_ne_bytes());
        bytes[24..24 + body.len()].copy_from_slice(body);
        self.0.write_all(&bytes).unwrap();
    }

    /// What was answered: to which word, and whether that was done. `None`: nothing.
    fn hears(&mut self) -> Option<(u32, bool)> {
        let mut bytes = [0; MESSAGE_BYTES];
        match self.0.read(&mut bytes) {
            Ok(length) => assert_eq!(length, MESSAGE_BYTES, "a whole answer"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return None;
            }
        }
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert!(bytes[8..24].iter().all(|byte| *byte == 0), "reserved");
        Some((word(0), word(4) == 0))
    }
}

fn bridge(place: &Place, front: Option<FrontEnd>) -> (Kernel, Bridge) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (kernel, device) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let spec = Spec {
        name: "db".to_string(),
        socket: place.socket(),
        kind: Kind::Disk,
        folder: place.folder(),
        program: PathBuf::from("/nowhere"),
    };
    std::fs::write(spec.mark(), [1; 64]).unwrap();
    let signal = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let bridge = Bridge {
        spec,
        control: File::open("/dev/null").unwrap(),
        device: device.into(),
        queues: (0..2).map(|_| Queue { kick: signal(), call: signal() }).collect(),
        is_running: false,
        front,
        is_started: false,
        said: String::new(),
    };
    (Kernel(kernel.into()), bridge)
}

/// A bridge whose rings are the daemon's.
fn started() -> (Place, std::thread::JoinHandle<Told>, Kernel, Bridge) {
    let (place, daemon, front) = connected(0);
    let (kernel, mut bridge) = bridge(&place, Some(front));
    (bridge.is_running, bridge.is_started) = (true, true);
    (place, daemon, kernel, bridge)
}

const QUEUE_STATE: u32 = 0;
const STATUS: u32 = 1;
const IOTLB: u32 = 2;

#[test]
fn every_word_of_the_kernel_is_answered_once_with_a_daemon_or_without() {
    for with_daemon in [true, false] {
        let (place, daemon, front) = connected(0);
        let front = Some(front).filter(|_| with_daemon);
        let (mut kernel, mut bridge) = bridge(&place, front);
        let words = [
            (STATUS, vec![0], true),
            (STATUS, vec![1], true),
            (STATUS, vec![3], true),
            (STATUS, vec![0xf], true),
            (IOTLB, vec![0xff; 16], true),
            (STATUS, vec![0], true),
            // The kernel of these tests does not say where a queue is, so nobody knows where it stands.
            (QUEUE_STATE, vec![1, 0, 0, 0], false),
            (QUEUE_STATE, vec![0xff; 4], false),
            // Of a version that is not spoken here.
            (3, vec![], false),
            (u32::MAX, vec![7; 100], false),
        ];
        for (id, (kind, body, done)) in (70..).zip(words) {
            kernel.says(kind, id, &body);
            bridge.hear_kernel().unwrap();
            assert_eq!(kernel.hears(), Some((id, done)), "{kind} {body:?}");
            assert_eq!(kernel.hears(), None, "once");
        }
        // Nothing was said: nothing is answered.
        bridge.hear_kernel().unwrap();
        assert_eq!(kernel.hears(), None);
        drop(bridge);
        daemon.join().unwrap();
    }
}

#[test]
fn a_word_of_another_length_is_none_and_one_that_cannot_be_read_is_the_device_s_end() {
    let (place, listener) = Place::new();
    drop(listener);
    let (mut kernel, mut bridge) = bridge(&place, None);
    kernel.0.write_all(&[1; MESSAGE_BYTES - 1]).unwrap();
    bridge.hear_kernel().unwrap();
    assert_eq!(kernel.hears(), None);
    // Its end is read as no bytes, which are no word either; an answer then has nobody.
    kernel.says(STATUS, 1, &[0]);
    drop(kernel);
    let said = bridge.hear_kernel().unwrap_err().to_string();
    assert!(said.starts_with("an answer to the kernel: "), "{said}");
    bridge.device = File::create(place.folder().join("unreadable")).unwrap();
    let said = bridge.hear_kernel().unwrap_err().to_string();
    assert!(said.starts_with("the kernel's words (the device is broken): "), "{said}");
}

/// A reset, or other memory: the daemon has let go of the rings, and of what it was lent, when the kernel is answered.
#[test]
fn rings_are_stopped_before_the_kernel_is_told_so() {
    for (kind, body, still_runs) in [(STATUS, vec![0], false), (IOTLB, vec![0; 16], true)] {
        let (_place, daemon, mut kernel, mut bridge) = started();
        kernel.says(kind, 5, &body);
        bridge.hear_kernel().unwrap();
        assert!(bridge.front.is_none(), "the connection is over");
        let told = daemon.join().unwrap();
        let stops = told.names.iter().filter(|name| **name == "GET_VRING_BASE").count();
        assert_eq!((stops, told.runs), (2, vec![]), "each queue");
        assert_eq!((bridge.is_started, bridge.is_running), (false, still_runs));
        assert_eq!(kernel.hears(), Some((5, true)));
    }
}

#[test]
fn a_daemon_that_has_none_of_the_rings_keeps_its_connection() {
    let (place, daemon, front) = connected(0);
    let (mut kernel, mut bridge) = bridge(&place, Some(front));
    bridge.is_running = true;
    kernel.says(STATUS, 5, &[0]);
    bridge.hear_kernel().unwrap();
    assert!(bridge.front.is_some() && !bridge.is_running);
    assert_eq!(kernel.hears(), Some((5, true)));
    drop(bridge);
    assert!(!daemon.join().unwrap().names.contains(&"GET_VRING_BASE"));
}

#[test]
fn a_daemon_that_dies_while_its_rings_are_stopped_keeps_nobody_waiting() {
    let (_place, daemon, mut kernel, mut bridge) = started();
    // It hears no more.
    let [stream, ..] = bridge.front.as_ref().unwrap().descriptors().collect::<Vec<_>>()[..] else {
        panic!("a socket")
    };
    rustix::net::shutdown(stream, rustix::net::Shutdown::Both).unwrap();
    daemon.join().unwrap();
    kernel.says(STATUS, 6, &[0]);
    bridge.hear_kernel().unwrap();
    assert_eq!(kernel.hears(), Some((6, true)));
    assert!(bridge.front.is_none(), "what it was lent goes with the connection");
}

/// The record has what was in flight when a daemon died. A driver that starts has nothing in flight; one that runs on has.
#[test]
fn the_record_is_emptied_when_a_driver_starts_and_kept_while_it_runs() {
    let (place, listener) = Place::new();
    drop(listener);
    let (mut kernel, mut bridge) = bridge(&place, None);
    let mark = bridge.spec.mark();
    let length = || std::fs::metadata(&mark).unwrap().len();
    let mut say = |bridge: &mut Bridge, status: u8| {
        kernel.says(STATUS, 1, &[status]);
        bridge.hear_kernel().unwrap();
        assert_eq!(kernel.hears(), Some((1, true)));
    };
    for status in [1, 3, 11] {
        say(&mut bridge, status);
        assert_eq!((length(), bridge.is_running), (64, false), "status {status}");
    }
    say(&mut bridge, 15);
    assert_eq!((length(), bridge.is_running), (0, true));
    // What the daemon made of it since, and a word that says nothing new.
    std::fs::write(&mark, [1; 32]).unwrap();
    say(&mut bridge, 15);
    say(&mut bridge, 0x4f);
    assert_eq!((length(), bridge.is_running), (32, true));
    say(&mut bridge, 0);
    assert_eq!((length(), bridge.is_running), (32, false));
    say(&mut bridge, 15);
    assert_eq!(length(), 0);
}

#[test]
fn a_daemon_that_cannot_serve_the_rings_is_left_and_asked_again() {
    let (place, daemon, front) = connected(0);
    let (_kernel, mut bridge) = bridge(&place, Some(front));
    // The driver runs no rings: nothing is to be started.
    bridge.start_rings();
    assert!(bridge.front.is_some() && bridge.said.is_empty());
    bridge.is_running = true;
    bridge.start_rings();
    assert!(bridge.front.is_none() && !bridge.is_started);
    assert!(bridge.said.starts_with("the driver's features: "), "{}", bridge.said);
    daemon.join().unwrap();
    // Its listener has gone with it: whoever comes next is waited for.
    bridge.start_rings();
    assert!(bridge.said.starts_with("the daemon's socket: "), "{}", bridge.said);
    assert!(bridge.front.is_none() && bridge.is_running);
}

#[test]
fn calls_that_the_daemon_makes_are_taken_and_its_end_is_seen() {
    let (_place, daemon, mut kernel, mut bridge) = started();
    rustix::io::write(&bridge.queues[1].call, &1u64.to_ne_bytes()).unwrap();
    bridge.wait().unwrap();
    let again = rustix::io::read(&bridge.queues[1].call, &mut [0; 8]);
    assert_eq!(again, Err(rustix::io::Errno::AGAIN), "once each");
    assert!(bridge.is_started);
    let [stream, ..] = bridge.front.as_ref().unwrap().descriptors().collect::<Vec<_>>()[..] else {
        panic!("a socket")
    };
    rustix::net::shutdown(stream, rustix::net::Shutdown::Write).unwrap();
    daemon.join().unwrap();
    // In the same turn the kernel is heard.
    kernel.says(STATUS, 8, &[15]);
    bridge.wait().unwrap();
    assert!(bridge.front.is_none() && !bridge.is_started && bridge.is_running);
    assert_eq!(bridge.said, "the daemon has closed its socket");
    assert_eq!(kernel.hears(), Some((8, true)));
}

#[test]
fn a_channel_that_ends_is_no_reason_to_look_for_ever() {
    let (place, daemon, front) = connected(1);
    let (_kernel, mut bridge) = bridge(&place, Some(front));
    let ends = |bridge: &Bridge| bridge.front.as_ref().map(|front| front.descriptors().count());
    let looks = (0..100).take_while(|_| ends(&bridge) == Some(2) && bridge.wait().is_ok()).count();
    assert!(looks < 100 && ends(&bridge) == Some(1), "the connection is as it was, without one");
    drop(bridge);
    let told = daemon.join().unwrap();
    assert!(told.names.contains(&"GET_CONFIG"), "and the change was looked at");
}

#[test]
fn what_the_bus_says_is_said() {
    let run = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.wait().unwrap();
        over(&mut child).expect("it is over").map_err(|error| error.to_string())
    };
    assert_eq!(run("exit 0"), Ok(()));
    assert_eq!(run("echo no such device >&2; exit 1"), Err("vDPA: no such device".to_string()));
    assert_eq!(run("exit 3"), Err("vDPA: ".to_string()));
    let long = run("head -c 100000 /dev/zero | tr '\\0' x >&2 & sleep 0; exit 1").unwrap_err();
    assert!(long.len() <= "vDPA: ".len() + 4096, "no more of it than a line");
    let mut sleeps = Command::new("sleep").arg("60").spawn().unwrap();
    assert!(over(&mut sleeps).is_none(), "it is still asked");
    sleeps.kill().unwrap();
    sleeps.wait().unwrap();
}
