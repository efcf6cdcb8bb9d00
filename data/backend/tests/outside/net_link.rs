//! Packet and AF_XDP sockets on a pair of interfaces: contents, tags, losses, other users, and
//! interfaces that go away. And the kernel's own TCP through a tap and a packet socket.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::network::*;
use backend::net::{HostPort, HostSource, Losses, Rest, Sent};
use frame::{Header, Offloads};
use guest_memory::GuestMap;

const NONE: Rest<'static> = Rest::Private(&[]);

fn xdp_queue(queue: u32) -> HostSource {
    HostSource::Xdp { interface: "v0".to_owned(), queue }
}

/// Each of so many frames, of lengths from 60 to `longest`, comes out as it went in, in order.
fn check_stream(from: &mut HostPort, to: &mut HostPort, longest: usize, count: usize) {
    let header = Header::default();
    let mut turns = Turns::default();
    let len = |number: usize| 60 + number * 97 % (longest - 59);
    let map = GuestMap::anonymous(1 << 16).expect("memory");
    let span = map.span(0x100, 4_096).expect("within");
    let mut next = 0;
    for number in 0..count {
        let bytes = frame(len(number), number);
        // Every other one from a guest's memory, which is overwritten as soon as it is sent.
        let sent = if number % 2 == 0 {
            from.send(&header, &bytes[..14], Rest::Private(&bytes[14..]))
        } else {
            let span = span.first(bytes.len() as u32 - 14);
            assert!(map.write(span, 0, &bytes[14..]));
            let sent = from.send(&header, &bytes[..14], Rest::Guest(&map, &[span]));
            assert!(map.zero(span));
            sent
        };
        assert_eq!(sent, Sent::Done, "frame {number}");
        // Few enough for the smallest ring, and not a multiple of any batch.
        if number % 70 == 69 || number + 1 == count {
            from.flush();
            while next <= number {
                let (header, got) = turns.receive(to, is_mine).expect("a frame");
                assert_eq!(header, Header::default());
                assert!(got == frame(len(next), next), "frame {next}");
                next += 1;
            }
        }
    }
}

#[test]
fn packet_sockets_carry_frames_in_order() {
    in_namespace("packet_sockets_carry_frames_in_order", || {
        veth();
        let (mut one, mut other) = (packet("v0"), packet("v1"));
        assert_eq!(one.mtu(), Some(1_500));
        assert!(one.has().contains(Offloads::CSUM | Offloads::TSO4));
        // Several times around the ring.
        check_stream(&mut one, &mut other, 1_514, 2_000);
        check_stream(&mut other, &mut one, 1_514, 500);
        assert_eq!(one.losses(), Losses::default());
        assert_eq!(other.losses(), Losses::default());
        // Its own frames do not come back.
        while wait(&other, 200) {
            let came = other.receive(0);
            assert!(!came.is_some_and(|came| is_mine(&came)), "its own frame came back");
        }
    });
}

#[test]
fn a_packet_socket_puts_tags_back() {
    in_namespace("a_packet_socket_puts_tags_back", || {
        veth();
        let (mut one, mut other) = (packet("v0"), packet("v1"));
        let mut turns = Turns::default();
        for (kind, value) in [([0x81, 0x00], [0x20, 0x0a]), ([0x88, 0xa8], [0x0f, 0xff])] {
            let (header, plain) = tcp(1_000, 0);
            let mut tagged = plain.clone();
            tagged.splice(12..12, [kind[0], kind[1], value[0], value[1]]);
            let header = Header { csum_start: header.csum_start + 4, ..header };
            assert_eq!(one.send(&header, &tagged, NONE), Sent::Done);
            one.flush();
            let is_it = |r: &backend::net::Received<'_>| r.bytes.len() == tagged.len();
            let (got_header, got) = turns.receive(&mut other, is_it).expect("a frame");
            assert!(got == tagged);
            assert_eq!(got_header.flags, Header::NEEDS_CSUM);
            assert_eq!((got_header.csum_start, got_header.csum_offset), (38, 16));
        }
    });
}

#[test]
fn what_a_packet_socket_loses_is_counted() {
    in_namespace("what_a_packet_socket_loses_is_counted", || {
        veth();
        let (mut one, mut other) = (packet("v0"), packet("v1"));
        let header = Header::default();
        for number in 0..1_000 {
            assert_eq!(one.send(&header, &frame(60, number), NONE), Sent::Done);
        }
        one.flush();
        let mut came = 0;
        while let Some(received) = other.receive(0) {
            came += u64::from(is_mine(&received));
        }
        assert!((64..1_000).contains(&came), "{came}");
        let lost = other.losses();
        assert!(came + lost.received >= 1_000, "{came} came, {lost:?}");
        assert_eq!(other.losses(), Losses::default(), "told once");
        // Longer than the MTU: at once when it is long, at the end of the visit when it is not.
        assert_eq!(one.send(&header, &frame(1_800, 1), NONE), Sent::TooLong);
        ip("link set v0 mtu 1000");
        assert_eq!(one.send(&header, &frame(1_200, 1), NONE), Sent::Done);
        assert_eq!(one.send(&header, &frame(900, 2), NONE), Sent::Done);
        one.flush();
        assert_eq!(one.losses().sent, 1);
        let (_, got) = Turns::default().receive(&mut other, is_mine).expect("the other frame");
        assert_eq!(got, frame(900, 2));
        ip("link set v0 down");
        assert_eq!(one.send(&header, &frame(900, 2), NONE), Sent::Done);
        one.flush();
        assert_eq!(one.losses().sent, 1);
        assert!(!one.is_gone());
    });
}

/// Sends until a frame comes through: the kernel connects the ends in its own time.
fn await_link(from: &mut HostPort, to: &mut HostPort) {
    let mut turns = Turns::default();
    let probe = |bytes: &[u8]| bytes.get(12..14) == Some(&[0x88, 0xb7]);
    for _ in 0..200 {
        let mut bytes = frame(60, 0);
        bytes[12..14].copy_from_slice(&[0x88, 0xb7]);
        let _ = from.send(&Header::default(), &bytes, NONE);
        from.flush();
        let _ = wait(to, 20);
        while let Some(received) = to.receive(turns.now_ns()) {
            if probe(received.bytes) {
                return;
            }
        }
    }
    panic!("nothing comes through");
}

/// Deletes `v0` while `port` on it sends and receives; it must find out, and not stay readable
/// without saying so.
fn check_deletion(mut port: HostPort) {
    let mut turns = Turns::default();
    let header = Header::default();
    let deleter = std::thread::spawn(|| ip("link del v0"));
    for number in 0..1_000_000 {
        let sent = port.send(&header, &frame(200, number), NONE);
        assert_ne!(sent, Sent::Fault);
        port.flush();
        while port.receive(turns.now_ns()).is_some() {}
        if port.is_gone() {
            break;
        }
    }
    deleter.join().expect("deleted");
    assert!(port.is_gone());
}

#[test]
fn an_interface_that_is_deleted_is_gone() {
    in_namespace("an_interface_that_is_deleted_is_gone", || {
        veth();
        check_deletion(packet("v0"));
        veth();
        check_deletion(xdp("v0"));
        for open in [packet, xdp] {
            veth();
            let mut idle = open("v0");
            let mut turns = Turns::default();
            while idle.receive(turns.now_ns()).is_some() {}
            ip("link del v1");
            assert!(wait(&idle, PATIENCE_MS), "nobody is woken");
            while idle.receive(turns.now_ns()).is_some() {}
            assert!(idle.is_gone());
        }
    });
}

#[test]
fn an_interface_that_goes_down_comes_up_again() {
    in_namespace("an_interface_that_goes_down_comes_up_again", || {
        for open in [packet, xdp] {
            veth();
            let (mut port, mut other) = (open("v0"), packet("v1"));
            ip("link set v0 down");
            let mut turns = Turns::default();
            while port.receive(turns.now_ns()).is_some() {}
            assert!(!port.is_gone());
            // A few messages about it may follow; then there is silence.
            let mut wakes = 0;
            while wakes < 20 && wait(&port, 100) {
                while port.receive(turns.now_ns()).is_some() {}
                wakes += 1;
            }
            assert!(wakes < 20, "it stays readable: who waits on it spins");
            // More than its ring takes: nothing of it may be in the way later.
            let sent: Vec<Sent> = (0..5_000)
                .map(|number| port.send(&Header::default(), &frame(60, number), NONE))
                .collect();
            port.flush();
            assert!(sent.iter().all(|sent| [Sent::Done, Sent::Full].contains(sent)));
            ip("link set v0 up");
            // What was kept goes out late, as probes do.
            await_link(&mut port, &mut other);
            await_link(&mut other, &mut port);
            check_stream(&mut port, &mut other, 1_514, 100);
            check_stream(&mut other, &mut port, 1_514, 100);
            ip("link del v0");
        }
    });
}

#[test]
fn xdp_sockets_carry_frames_in_order() {
    in_namespace("xdp_sockets_carry_frames_in_order", || {
        veth();
        let (mut one, mut other) = (xdp("v0"), packet("v1"));
        assert!(one.describe().starts_with("xdp, "), "{}", one.describe());
        assert!(one.has().is_empty());
        // More than there are places in any ring, so that all come round.
        check_stream(&mut other, &mut one, 1_514, 6_000);
        check_stream(&mut one, &mut other, 1_514, 6_000);
        assert_eq!(one.losses(), Losses::default());
        assert_eq!(one.send(&Header::default(), &frame(3_841, 1), NONE), Sent::TooLong);
        let (map, foreign) =
            (GuestMap::anonymous(4_096).expect("map"), GuestMap::anonymous(4_096).expect("map"));
        let span = foreign.span(0, 100).expect("within");
        let sent = one.send(&Header::default(), &frame(14, 1), Rest::Guest(&map, &[span]));
        assert_eq!(sent, Sent::Fault);
        check_stream(&mut one, &mut other, 1_514, 100);
    });
}

#[test]
fn xdp_ports_say_who_is_in_the_way_and_leave_nothing_behind() {
    in_namespace("xdp_ports_say_who_is_in_the_way_and_leave_nothing_behind", || {
        veth();
        for _ in 0..3 {
            let held = xdp("v0");
            assert!(ip_says("-d link show v0").contains("xdp"), "no program");
            let error = refusal(&xdp_queue(0));
            assert!(error.starts_with("cannot open interface v0: another XDP program"), "{error}");
            drop(held);
            assert!(!ip_says("-d link show v0").contains("prog/xdp"), "the program is still there");
        }
        let error = refusal(&xdp_queue(7));
        assert_eq!(error, "cannot open interface v0: it has no queue 7: see `ethtool -l`");
        assert!(!ip_says("-d link show v0").contains("prog/xdp"), "a program was left");
        assert!(refusal(&xdp_queue(1 << 20)).contains("no queue"));
        // A packet socket is not in the way: so an interface goes from one way to the other.
        let beside = packet("v0");
        drop(xdp("v0"));
        drop(beside);
    });
}

#[test]
fn queues_of_an_interface_share_its_program() {
    in_namespace("queues_of_an_interface_share_its_program", || {
        ip(
            "link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1 numrxqueues 2 numtxqueues 2",
        );
        ip("link set v0 up");
        ip("link set v1 up");
        let first = xdp("v0");
        let mut second = first.open_beside(&xdp_queue(1)).expect("the second queue");
        let error = first.open_beside(&xdp_queue(1)).expect_err("twice").to_string();
        assert!(error.contains("another AF_XDP socket has its queue 1"), "{error}");
        // Each goes out on its own queue, and comes in on that of the same number.
        let mut third = xdp("v1");
        let mut fourth = third
            .open_beside(&HostSource::Xdp { interface: "v1".to_owned(), queue: 1 })
            .expect("4");
        check_stream(&mut second, &mut fourth, 1_514, 200);
        assert!(third.receive(0).is_none());
        drop(first);
        check_stream(&mut second, &mut fourth, 1_514, 200);
        drop(second);
        assert!(!ip_says("-d link show v0").contains("prog/xdp"), "the program is still there");
    });
}

/// The far end of `the_kernels_tcp_crosses_a_tap_and_a_packet_socket`: a host that sends back what it
/// gets.
#[test]
fn far_end() {
    if !is_inside("far_end") {
        return;
    }
    writeln!(std::io::stdout(), "\nready").expect("stdout");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    ip("addr add 10.99.0.2/24 dev v1");
    ip("link set v1 up");
    let listener = TcpListener::bind("10.99.0.2:7").expect("bind");
    writeln!(std::io::stdout(), "\nlistening").expect("stdout");
    let (mut stream, _) = listener.accept().expect("accept");
    let mut reader = stream.try_clone().expect("clone");
    std::io::copy(&mut reader, &mut stream).expect("echo");
}

#[test]
fn the_kernels_tcp_crosses_a_tap_and_a_packet_socket() {
    in_namespace("the_kernels_tcp_crosses_a_tap_and_a_packet_socket", || {
        let mut peer = Peer::start("far_end");
        peer.await_line("ready");
        ip("link add v0 type veth peer name v1");
        ip(&format!("link set v1 netns {}", peer.pid()));
        ip("link set v0 up");
        peer.say("go");
        peer.await_line("listening");

        let mut near = open(&tap("t0"));
        ip("addr add 10.99.0.1/24 dev t0");
        let mut far = packet("v0");
        let size = 20 << 20;
        let data: Vec<u8> = (0..size).map(|at: usize| (at ^ at >> 9 ^ at >> 17) as u8).collect();
        let user = std::thread::spawn(move || {
            let mut stream = TcpStream::connect("10.99.0.2:7").expect("connect");
            let mut back = vec![0; size];
            let mut writer = stream.try_clone().expect("clone");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    writer.write_all(&data).expect("write");
                    writer.shutdown(std::net::Shutdown::Write).expect("shutdown");
                });
                stream.read_exact(&mut back).expect("read");
            });
            assert!(back == data, "it came back changed");
        });
        let mut turns = Turns::default();
        let mut longest = [0; 2];
        while !user.is_finished() {
            let moved = forward(&mut near, &mut far, &mut turns, &mut longest[0])
                + forward(&mut far, &mut near, &mut turns, &mut longest[1]);
            if moved == 0 {
                wait_either(&near, &far);
            }
        }
        user.join().expect("what came back is what was sent");
        assert!(longest.iter().all(|longest| *longest > 10_000), "no long frames: {longest:?}");
    });
}

/// Passes on what is there, at most 64 frames: how many.
fn forward(from: &mut HostPort, to: &mut HostPort, turns: &mut Turns, longest: &mut usize) -> u32 {
    let mut frames = 0;
    while frames < 64 {
        let Some(received) = from.receive(turns.now_ns()) else { break };
        *longest = (*longest).max(received.bytes.len());
        // What does not go is lost, as on any wire; TCP sends it again.
        let (head, rest) = received.bytes.split_at(received.bytes.len().min(128));
        let _ = to.send(&received.header, head, Rest::Private(rest));
        frames += 1;
    }
    to.flush();
    frames
}
