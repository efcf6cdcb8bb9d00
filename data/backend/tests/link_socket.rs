//! A link's sockets: UDP on the loopback interface, and an EtherType of a pair of interfaces. Frames come as they
//! went, of whatever lengths, and from whom they are said to come; strangers' do not; what cannot be opened is told.

mod network;

use std::net::{SocketAddr, UdpSocket};

use backend::link::{Address, ETHER_TYPE, FRAME_BYTES_MAX, LinkLosses, LinkSocket, LinkSource};
use backend::net::{Rest, Sent};
use frame::Header;
use network::{in_namespace, ip, ip_says, packet, veth};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn udp(at: &str) -> LinkSource {
    LinkSource::Udp { bind: at.parse().expect("an address") }
}

fn station(name: &str) -> LinkSource {
    LinkSource::Interface { name: name.to_owned() }
}

fn open(source: &LinkSource) -> LinkSocket {
    LinkSocket::open(source).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(source: &LinkSource) -> String {
    LinkSocket::open(source).expect_err("opened").to_string()
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
    let fd = socket.poll_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let limit = Timespec { tv_sec: limit_ms / 1000, tv_nsec: limit_ms % 1000 * 1_000_000 };
    poll(&mut fds, Some(&limit)).expect("poll") > 0
}

fn receive(socket: &mut LinkSocket) -> Option<(Address, Vec<u8>)> {
    for _ in 0..100 {
        if let Some((from, bytes)) = socket.receive() {
            return Some((from, bytes.to_vec()));
        }
        if !socket.has_some() && !waits(socket, 1000) {
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
        while let Some((_, bytes)) = receive_now(other) {
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

#[test]
fn frames_for_others_and_frames_that_lie_are_left_out() {
    in_namespace("frames_for_others_and_frames_that_lie_are_left_out", || {
        veth();
        let (mut one, mut other) = (open(&station("v0")), open(&station("v1")));
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
            let got = receive_within(&mut other, 200);
            assert_eq!(got, is_good.then(|| (first, vec![9])), "{body:?}");
        }
        assert_eq!(other.losses().received, 4);
    });
}

/// N17: to all, to many, in its own name, tagged, too long, too short, of another kind.
#[test]
fn n17_frames_of_a_wire_that_are_none_of_a_link_are_dropped() {
    in_namespace("n17_frames_of_a_wire_that_are_none_of_a_link_are_dropped", || {
        veth();
        for name in ["v0", "v1"] {
            ip(&format!("link set {name} mtu 20000"));
        }
        let mut link = open(&station("v1"));
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
            assert_eq!(link.losses().received, number.min(5) as u64 + 1);
        }
    });
}

fn receive_within(socket: &mut LinkSocket, limit_ms: i64) -> Option<(Address, Vec<u8>)> {
    assert!(waits(socket, limit_ms), "something came");
    receive_now(socket)
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
