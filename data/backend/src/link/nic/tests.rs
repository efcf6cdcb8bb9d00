//! Both ends of a NIC, without a link and a bridge.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::net::{Rest, Sent};
use frame::Header;

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&no_time)) == Ok(1)
}

fn send(port: &mut HostPort, frame: &[u8]) -> Sent {
    let (head, rest) = frame.split_at(frame.len().min(128));
    port.send(&Header::default(), head, Rest::Private(rest))
}

fn piece<'a>(number: u32, len: usize, place: usize, data: &'a [u8]) -> Net<'a> {
    Net { handle: 1, number, len: len as u16, place: place as u16, data }
}

#[test]
fn frames_go_through_in_order_and_whoever_waits_is_woken() {
    let (mut nic, mut port) = LinkNic::new().expect("two eventfds");
    assert_eq!(send(&mut port, &[1; 60]), Sent::Down, "nobody has it");
    assert!(nic.next(Way::Open).is_none());
    for round in 0..2_000usize {
        let frame = |at: usize| vec![(round + at) as u8; 14 + (round * 37 + at * 91) % 9_000];
        assert!(!is_readable(nic.poll_fd()), "{round}");
        (0..3).for_each(|at| assert_eq!(send(&mut port, &frame(at)), Sent::Done));
        assert!(!is_readable(nic.poll_fd()), "told of at the end of the visit");
        port.flush();
        assert!(is_readable(nic.poll_fd()) && nic.has_some());
        (0..3).for_each(|at| assert_eq!(nic.next(Way::Open), Some(&frame(at)[..])));
        assert!(!nic.is_quiet() && nic.next(Way::Open).is_none() && nic.is_quiet());

        let bytes = frame(5);
        assert!(port.receive(0).is_none());
        nic.hear(&piece(round as u32, bytes.len(), 7, &bytes[7..]));
        nic.hear(&piece(round as u32, bytes.len(), 0, &bytes[..7]));
        nic.tell();
        assert!(port.poll_fd().is_some_and(is_readable));
        assert_eq!(port.receive(0).map(|came| came.bytes.to_vec()), Some(bytes));
        assert!(port.receive(0).is_none() && !port.poll_fd().is_some_and(is_readable));
    }
    let seen = nic.counters().snapshot();
    assert_eq!((seen.sent, seen.came, seen.dropped, seen.is_up), (6_000, 2_000, 0, true));
}

#[test]
fn what_waits_is_bounded_and_what_has_nowhere_to_go_is_counted() {
    let (mut nic, mut port) = LinkNic::new().expect("two eventfds");
    assert!(nic.next(Way::Full).is_none());
    let kept = (0..1_000).take_while(|_| send(&mut port, &[1; 9_000]) == Sent::Done).count();
    assert_eq!(kept, (256 << 10) / 9_002);
    assert_eq!(send(&mut port, &[1; 9_025]), Sent::TooLong);
    assert!(nic.next(Way::Full).is_none());
    assert!(!nic.has_some() && !nic.is_quiet(), "the link has no room, and says when it has");
    (0..10).for_each(|_| assert!(nic.next(Way::Open).is_some()));
    assert!(nic.next(Way::Nowhere).is_none() && nic.is_quiet());
    let seen = nic.counters().snapshot();
    assert_eq!((seen.sent, seen.dropped, seen.is_up), (10, kept as u64 - 10, false));
    // The port takes nothing out.
    (0..1_000).for_each(|number| nic.hear(&piece(number, 9_000, 0, &[1; 9_000])));
    let seen = nic.counters().snapshot();
    assert_eq!((seen.came, seen.dropped), (kept as u64, kept as u64 - 10 + 1_000 - kept as u64));
}

#[test]
fn an_end_that_is_dropped_is_missed_by_the_other() {
    let (mut nic, port) = LinkNic::new().expect("two eventfds");
    assert!(nic.next(Way::Open).is_none());
    assert!(!is_readable(nic.poll_fd()) && !nic.is_abandoned());
    drop(port);
    assert!(is_readable(nic.poll_fd()) && nic.is_abandoned());

    let (mut nic, mut port) = LinkNic::new().expect("two eventfds");
    assert!(nic.next(Way::Open).is_none());
    assert!(port.receive(0).is_none() && !port.is_gone());
    drop(nic);
    assert!(port.poll_fd().is_some_and(is_readable));
    assert!(port.receive(0).is_none() && port.is_gone());
    assert_eq!(send(&mut port, &[1; 60]), Sent::Gone);
}

/// The two ends on threads of their own, each of which sleeps when it finds nothing: no ring of the bell is missed.
#[test]
fn nobody_sleeps_while_a_frame_waits() {
    const FRAMES: u32 = 30_000;
    let wait = |fd: BorrowedFd<'_>| {
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)), Ok(1));
    };
    let (mut nic, mut port) = LinkNic::new().expect("two eventfds");
    nic.set_up(true);
    // What goes out comes back: at most so many are under way.
    let there = std::thread::spawn(move || {
        let (mut sent, mut came) = (0u32, 0u32);
        while came < FRAMES {
            while sent < FRAMES && sent - came < 1 + came % 7 {
                assert_eq!(
                    send(&mut port, &[&sent.to_le_bytes()[..], &[7; 56]].concat()),
                    Sent::Done
                );
                sent += 1;
            }
            port.flush();
            match port.receive(0) {
                Some(got) => {
                    assert_eq!(got.bytes[..4], came.to_le_bytes());
                    came += 1;
                }
                None => wait(port.poll_fd().expect("a bell")),
            }
        }
    });
    let (mut number, mut copy) = (0, Vec::new());
    while number < FRAMES {
        copy.clear();
        copy.extend_from_slice(nic.next(Way::Open).unwrap_or_default());
        if copy.is_empty() {
            nic.tell();
            wait(nic.poll_fd());
            continue;
        }
        nic.hear(&piece(number, copy.len(), 0, &copy));
        number += 1;
    }
    nic.tell();
    there.join().expect("the other end");
}
