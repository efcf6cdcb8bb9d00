//! A link's sockets: UDP on the loopback interface, and an EtherType of a pair of interfaces. Frames come as they
//! went, of whatever lengths, and from whom they are said to come; strangers' do not; what cannot be opened is told.

use std::net::{SocketAddr, UdpSocket};

use crate::network::{self, PATIENCE_MS, in_namespace, ip, ip_says, packet, veth};
use backend::link::{
    Address, ETHER_TYPE, FRAME_BYTES_MAX, LinkLosses, LinkShards, LinkSocket, LinkSource,
};
use backend::net::{Rest, Sent};
use frame::Header;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn udp(at: &str) -> LinkSource {
    LinkSource::Udp { bind: at.parse().expect("an address") }
}

fn station(name: &str) -> LinkSource {
    LinkSource::Interface { name: name.to_owned() }
}

fn xdp(name: &str) -> LinkSource {
    LinkSource::Xdp { name: name.to_owned() }
}

fn open(source: &LinkSource) -> LinkSocket {
    network::when_free(|| LinkSocket::open(source))
}

fn refusal(source: &LinkSource) -> String {
    match LinkSocket::open(source) {
        Ok(socket) => panic!("opened: {}", socket.describe()),
        Err(error) => error.to_string(),
    }
}

fn at(socket: &LinkSocket) -> Address {
    Address::udp(socket.local().expect("a port"))
}

fn mac(name: &str) -> Address {
    let text = ip_says(&format!("-o link show {name}"));
    let mac = text.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
    let bytes: Vec<u8> = mac
        .expect("a MAC address")
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"))
        .collect();
    Address::station(bytes.try_into().expect("six"))
}

fn frame(len: usize, number: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 13 + (at >> 8)) as u8).collect()
}

fn send(from: &mut LinkSocket, to: Address, bytes: &[u8]) {
    assert!(from.send(|place| {
        place[..bytes.len()].copy_from_slice(bytes);
        Some((bytes.len(), to))
    }));
}

/// Whether it is readable within so many milliseconds.
fn waits(socket: &LinkSocket, limit_ms: i64) -> bool {
    if socket.has_some() {
        return true;
    }
    let fd = socket.poll_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let limit = Timespec { tv_sec: limit_ms / 1000, tv_nsec: limit_ms % 1000 * 1_000_000 };
    poll(&mut fds, Some(&limit)).expect("poll") > 0
}

/// The next frame, which must come.
fn receive(socket: &mut LinkSocket) -> Option<(Address, Vec<u8>)> {
    receive_in(socket, PATIENCE_MS)
}

/// The next frame, if one comes within so many milliseconds.
fn receive_in(socket: &mut LinkSocket, limit_ms: i64) -> Option<(Address, Vec<u8>)> {
    for _ in 0..100 {
        if let Some((from, bytes)) = socket.receive() {
            return Some((from, bytes.to_vec()));
        }
        if !socket.has_some() && !waits(socket, limit_ms) {
            return None;
        }
    }
    None
}

/// Frames of these lengths come out as they went in, in order, and are changed in place.
fn check(one: &mut LinkSocket, other: &mut LinkSocket, to: Address, from: Address, lens: &[usize]) {
    let mut next = 0;
    for (number, len) in lens.iter().enumerate() {
        send(one, to, &frame(*len, number));
        // Few enough for the socket, and no multiple of any batch.
        if number % 90 == 89 || number + 1 == lens.len() {
            one.flush();
            while next <= number {
                let (who, bytes) = receive(other).unwrap_or_else(|| panic!("frame {next} is lost"));
                assert_eq!(who, from);
                assert!(bytes == frame(lens[next], next), "frame {next} of {}", lens[next]);
                next += 1;
            }
        }
    }
    assert!(other.receive().is_none());
}

/// Lengths with runs of one length, shorter ends, and no order at all.
fn lengths(longest: usize, count: usize) -> Vec<usize> {
    let run = |number: usize| match number % 200 {
        0..100 => longest.min(1472),
        100..103 => 700,
        103..140 => longest,
        at => 1 + (number * 797 + at) % longest,
    };
    (0..count).map(run).collect()
}

#[test]
fn frames_come_through_udp_as_they_went() {
    for text in ["127.0.0.1:0", "[::1]:0"] {
        let (mut one, mut other) = (open(&udp(text)), open(&udp(text)));
        let (first, second) = (at(&one), at(&other));
        check(&mut one, &mut other, second, first, &lengths(FRAME_BYTES_MAX, 1500));
        check(&mut other, &mut one, first, second, &lengths(1472, 700));
        assert_eq!((one.losses(), other.losses()), Default::default());
    }
}

#[test]
fn an_ipv6_socket_speaks_to_ipv4_and_knows_it_by_one_name() {
    let mut all = open(&udp("[::]:0"));
    let mut four = open(&udp("127.0.0.1:0"));
    let port = all.local().expect("a port").port();
    let to_all = Address::udp(SocketAddr::from(([127, 0, 0, 1], port)));
    let from = at(&four);
    check(&mut four, &mut all, to_all, from, &[100, 1472, 1472, 3]);
    check(&mut all, &mut four, from, to_all, &[100, 1472, 1472, 3]);
    // And not the other way round.
    let nowhere = Address::udp("[::1]:9".parse().expect("an address"));
    send(&mut four, nowhere, &[1]);
    four.flush();
    assert_eq!(four.losses(), LinkLosses { sent: 1, ..LinkLosses::default() });
}

#[test]
fn one_burst_goes_to_several_and_each_gets_its_own() {
    let mut one = open(&udp("127.0.0.1:0"));
    let mut others = [0; 3].map(|_| open(&udp("127.0.0.1:0")));
    let ends = others.each_ref().map(at);
    for number in 0..60 {
        send(&mut one, ends[number / 2 % 3], &frame(1000, number));
    }
    one.flush();
    for (who, other) in others.iter_mut().enumerate() {
        let mut got = Vec::new();
        while got.len() < 20
            && let Some((_, bytes)) = receive(other)
        {
            got.push(bytes);
        }
        let mine: Vec<_> =
            (0..60).filter(|number| number / 2 % 3 == who).map(|n| frame(1000, n)).collect();
        assert!(got == mine, "{who}: {} of {}", got.len(), mine.len());
    }
}

fn receive_now(socket: &mut LinkSocket) -> Option<(Address, Vec<u8>)> {
    // Empty once means no more of this batch.
    for _ in 0..2 {
        if let Some((from, bytes)) = socket.receive() {
            return Some((from, bytes.to_vec()));
        }
    }
    None
}

#[test]
fn a_foreign_sender_without_offload_is_heard_too() {
    let mut link = open(&udp("127.0.0.1:0"));
    let foreign = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to = link.local().expect("a port");
    for number in 0..200 {
        foreign.send_to(&frame(1 + number * 7, number), to).expect("sent");
    }
    let from = Address::udp(foreign.local_addr().expect("a port"));
    for number in 0..200 {
        assert_eq!(receive(&mut link), Some((from, frame(1 + number * 7, number))));
    }
    assert!(!waits(&link, 0));
}

#[test]
fn udp_that_cannot_be_opened_says_what_to_do() {
    let taken = open(&udp("127.0.0.1:0"));
    let text = format!("127.0.0.1:{}", taken.local().expect("a port").port());
    assert_eq!(
        refusal(&udp(&text)),
        format!(
            "cannot open a link at udp {text}: another process, or another link, has this port: end that, \
             or use another port"
        )
    );
    assert_eq!(
        refusal(&udp("192.0.2.1:7447")),
        "cannot open a link at udp 192.0.2.1:7447: no interface has this address in the daemon's network \
         namespace: see `ip address`, or use 0.0.0.0 or [::]"
    );
    for name in ["", "a/b", "sixteen_bytes_is"] {
        assert!(refusal(&station(name)).contains("no interface can have this name"), "{name}");
    }
}

#[test]
fn frames_come_through_an_ethertype_as_they_went() {
    in_namespace("frames_come_through_an_ethertype_as_they_went", || {
        veth();
        let (mut one, mut other) = (open(&station("v0")), open(&station("v1")));
        let (first, second) = (mac("v0"), mac("v1"));
        assert_eq!(one.frame_bytes(), 1498);
        check(&mut one, &mut other, second, first, &lengths(1498, 700));
        check(&mut other, &mut one, first, second, &lengths(1498, 300));
        assert_eq!((one.losses(), other.losses()), Default::default());
        for name in ["v0", "v1"] {
            ip(&format!("link set {name} mtu 9000"));
        }
        let (mut one, mut other) = (open(&station("v0")), open(&station("v1")));
        check(&mut one, &mut other, second, first, &lengths(8998, 300));
    });
}

/// Either end by AF_XDP, or both; whatever is not a link's goes on to the host.
#[test]
fn frames_come_through_af_xdp_as_they_went() {
    in_namespace("frames_come_through_af_xdp_as_they_went", || {
        veth();
        let (first, second) = (mac("v0"), mac("v1"));
        let kinds: [fn(&str) -> LinkSource; 2] = [xdp, station];
        for (near, far) in [(0, 0), (0, 1), (1, 0)] {
            let (mut one, mut other) = (open(&kinds[near]("v0")), open(&kinds[far]("v1")));
            let words = [one.describe(), other.describe()];
            let wanted = ["xdp, native, copy", "packet"];
            assert_eq!(words, [wanted[near], wanted[far]]);
            assert_eq!((one.frame_bytes(), other.frame_bytes()), (1498, 1498));
            check(&mut one, &mut other, second, first, &lengths(1498, 700));
            check(&mut other, &mut one, first, second, &lengths(1498, 700));
            assert_eq!((one.losses(), other.losses()), Default::default());
        }
        let (mut one, mut other) = (open(&xdp("v0")), open(&xdp("v1")));
        let (mut raw, mut host) = (packet("v0"), packet("v1"));
        let kinds = [[0x88, 0xb6], [0x08, 0x06], [0x81, 0x00]];
        let frames = kinds.map(|kind| {
            let mut frame = frame_of(second, first, &[0; 46]);
            frame[12..14].copy_from_slice(&kind);
            frame
        });
        for frame in &frames {
            assert_eq!(raw.send(&Header::default(), frame, Rest::Private(&[])), Sent::Done);
            raw.flush();
            let mut turns = network::Turns::default();
            let got = turns.receive(&mut host, |found| found.bytes.get(6..12) == frame.get(6..12));
            assert!(got.is_some_and(|(_, bytes)| bytes.get(..14) == frame.get(..14)));
            assert!(receive_now(&mut other).is_none());
        }
        check(&mut one, &mut other, second, first, &lengths(1498, 200));
        // What is a link's the host no longer sees.
        let mut turns = network::Turns::default();
        let is_ours =
            |found: &backend::net::Received<'_>| found.bytes.get(12..14) == Some(&[0x88, 0xb5]);
        while network::wait(&host, 100) {
            if let Some(found) = host.receive(turns.now_ns()) {
                assert!(!is_ours(&found));
            }
        }
        // All of it is given back when they have gone.
        drop((one, other));
        assert!(!ip_says("-d link show v1").contains("xdp"));
        assert_eq!(open(&xdp("v1")).describe(), "xdp, native, copy");
    });
}

/// An interface whose driver runs no program, frames as long as there is room for, and more of them at once than there
/// are places.
#[test]
fn af_xdp_works_in_the_stack_too_and_a_burst_is_bounded() {
    in_namespace("af_xdp_works_in_the_stack_too_and_a_burst_is_bounded", || {
        veth();
        let (first, second) = (mac("v0"), mac("v1"));
        // Of frames this long veth's driver takes no program.
        for name in ["v0", "v1"] {
            ip(&format!("link set {name} mtu 9000"));
        }
        let (mut one, mut other) = (open(&xdp("v0")), open(&xdp("v1")));
        assert_eq!(other.describe(), "xdp, generic, copy");
        // A page without room for what the kernel puts before, and a frame's head.
        assert_eq!(other.frame_bytes(), 4096 - 256 - 16);
        check(&mut one, &mut other, second, first, &lengths(3824, 700));
        check(&mut other, &mut one, first, second, &lengths(3824, 700));
        assert_eq!((one.losses(), other.losses()), Default::default());
        ip("link set v0 down");
        for number in 0..5000 {
            send(&mut one, second, &frame(100, number));
            one.flush();
        }
        let lost = one.losses().sent;
        assert_eq!(lost, 5000 - 2048, "what the kernel does not take is lost, and nothing else");
        ip("link set v0 up");
        // Those that waited come then, and later ones behind them.
        send(&mut one, second, b"the last");
        one.flush();
        let mut came = 0;
        while let Some((from, bytes)) = receive_in(&mut other, 1_000) {
            assert_eq!(from, first);
            came += 1;
            if bytes == b"the last" {
                break;
            }
            // The kernel sends some of what waits in each call.
            one.flush();
        }
        assert!((1..=2048).contains(&came), "{came}");
    });
}

fn frame_of(to: Address, from: Address, body: &[u8]) -> Vec<u8> {
    let [to, from] = [to, from].map(|end| end.as_station().expect("a station"));
    [&to[..], &from, &ETHER_TYPE.to_be_bytes(), body].concat()
}

/// What comes by another queue than the socket's, and what is for an address that the interface has got since.
#[test]
fn frames_that_af_xdp_does_not_get_come_all_the_same() {
    in_namespace("frames_that_af_xdp_does_not_get_come_all_the_same", || {
        ip(
            "link add v0 numtxqueues 2 numrxqueues 2 type veth peer name v1 numrxqueues 2 numtxqueues 2",
        );
        ip("link set v0 up");
        ip("link set v1 up");
        let (mut first, second) = (mac("v0"), mac("v1"));
        let mut other = open(&xdp("v1"));
        assert_eq!(other.describe(), "xdp, native, copy");
        // An AF_XDP socket sends on the queue that it is bound to: that is the other end's queue, too.
        let source = LinkSource::Xdp { name: "v0".to_owned() };
        let mut two =
            LinkShards::open(&source, 2).unwrap_or_else(|error| panic!("{error}")).sockets;
        for (shard, one) in two.iter_mut().enumerate() {
            assert_eq!(one.describe(), "xdp, native, copy", "{shard}");
            check(one, &mut other, second, first, &lengths(1498, 300));
        }
        assert_eq!(other.losses(), LinkLosses::default());
        drop(two);
        ip("link set v0 address 02:00:00:00:00:77");
        ip("link set v1 address 02:00:00:00:00:78");
        first = mac("v0");
        let mut one = open(&station("v0"));
        check(&mut one, &mut other, mac("v1"), first, &lengths(1498, 100));
        assert_eq!(other.losses(), LinkLosses::default());
    });
}

#[test]
fn an_interface_that_has_a_program_or_no_such_queue_says_what_to_do() {
    in_namespace("an_interface_that_has_a_program_or_no_such_queue_says_what_to_do", || {
        veth();
        let taken = open(&xdp("v0"));
        assert_eq!(
            refusal(&xdp("v0")),
            "cannot open a link at interface v0: another XDP program is attached to it: detach that (`ip link set \
             dev NAME xdp off`), or use via = \"packet\""
        );
        drop(taken);
        assert!(refusal(&xdp("v7")).contains("there is no interface of this name"));
        assert!(refusal(&xdp("a/b")).contains("no interface can have this name"));
        assert!(refusal(&xdp("lo")).contains("it is no Ethernet"), "{}", refusal(&xdp("lo")));
    });
}

#[test]
fn frames_for_others_and_frames_that_lie_are_left_out() {
    in_namespace("frames_for_others_and_frames_that_lie_are_left_out", || {
        veth();
        left_out(&station("v1"));
        left_out(&xdp("v1"));
    });
}

fn left_out(source: &LinkSource) {
    {
        let (mut one, mut other) = (open(&station("v0")), open(source));
        let (first, second) = (mac("v0"), mac("v1"));
        // Somebody else has set it promiscuous.
        ip("link set v1 promisc on");
        send(&mut one, Address::station([2, 0, 0, 0, 0, 0x77]), b"to another");
        send(&mut one, Address::station([0xff; 6]), b"to all");
        send(&mut one, second, b"to it");
        one.flush();
        assert_eq!(receive(&mut other), Some((first, b"to it".to_vec())));
        assert!(receive_now(&mut other).is_none());
        assert_eq!(other.losses().received, 2);
        // A length that is more than there is, or nothing; and one with padding behind it.
        let mut raw = packet("v0");
        for (body, is_good) in
            [(&[0xff, 0xff, 1, 2][..], false), (&[0, 0, 1], false), (&[0, 1, 9, 0, 0, 0], true)]
        {
            let [to, from] = [second, first].map(|end| end.as_station().expect("a station"));
            let frame = [&to[..], &from, &ETHER_TYPE.to_be_bytes(), body].concat();
            assert_eq!(raw.send(&Header::default(), &frame, Rest::Private(&[])), Sent::Done);
            raw.flush();
            assert!(waits(&other, PATIENCE_MS), "something came");
            let got = receive_now(&mut other);
            assert_eq!(got, is_good.then(|| (first, vec![9])), "{body:?}");
        }
        assert_eq!(other.losses().received, 4);
    }
}

/// N17: to all, to many, in its own name, tagged, too long, too short, of another kind.
#[test]
fn n17_frames_of_a_wire_that_are_none_of_a_link_are_dropped() {
    in_namespace("n17_frames_of_a_wire_that_are_none_of_a_link_are_dropped", || {
        veth();
        for name in ["v0", "v1"] {
            ip(&format!("link set {name} mtu 20000"));
        }
        n17(&station("v1"));
        n17(&xdp("v1"));
    });
}

fn n17(source: &LinkSource) {
    {
        let mut link = open(source);
        let mut raw = packet("v0");
        let [to, from] = ["v1", "v0"].map(|name| mac(name).as_station().expect("a station"));
        let ether = ETHER_TYPE.to_be_bytes();
        let good = [&[0, 3][..], b"abc"].concat();
        let (all, many) = ([0xff; 6], [0x33, 0x33, 0, 0, 0, 1]);
        let frame = |to: [u8; 6], from: [u8; 6], kind: &[u8], body: &[u8]| {
            [&to[..], &from, kind, body].concat()
        };
        let tagged = [&[0x81, 0, 0, 5][..], &ether].concat();
        let bad = [
            frame(all, from, &ether, &good),
            frame(many, from, &ether, &good),
            frame(to, to, &ether, &good),
            frame(to, from, &tagged, &good),
            frame(to, from, &ether, &[&[0x2a, 0xf8][..], &[1; 11_000]].concat()),
            frame(to, from, &ether, &[0]),
            frame(to, from, &[0x88, 0xb6], &good),
        ];
        for (number, bad) in bad.iter().enumerate() {
            assert_eq!(raw.send(&Header::default(), bad, Rest::Private(&[])), Sent::Done);
            let last = frame(to, from, &ether, &good);
            assert_eq!(raw.send(&Header::default(), &last, Rest::Private(&[])), Sent::Done);
            raw.flush();
            assert_eq!(receive(&mut link), Some((mac("v0"), b"abc".to_vec())), "{number}");
            assert!(receive_now(&mut link).is_none(), "{number}");
            // Of another kind is not even shown.
            let lost = link.losses();
            assert_eq!(
                lost.received + lost.overrun,
                number.min(5) as u64 + 1,
                "{number}: {lost:?}"
            );
        }
    }
}

#[test]
fn an_interface_that_cannot_be_used_says_what_to_do() {
    in_namespace("an_interface_that_cannot_be_used_says_what_to_do", || {
        assert_eq!(
            refusal(&station("v0")),
            "cannot open a link at interface v0: there is no interface of this name in the daemon's network \
             namespace (see `ip link`)"
        );
        veth();
        ip("link set v0 mtu 600");
        assert_eq!(
            refusal(&station("v0")),
            "cannot open a link at interface v0: its MTU of 600 is too small: a link needs 642 at least \
             (`ip link set dev NAME mtu 1500`)"
        );
    });
}
