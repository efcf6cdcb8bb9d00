//! The sockets of a link with several shards, in the kernel: each frame comes to the shard that its session's number
//! names, whatever is no frame of a session comes to the first, and nobody else gets in.

use crate::network::{in_namespace, ip, ip_says, veth, when_free};
use backend::link::{LinkShards, LinkSocket, LinkSource};
use remote::iohost::shard_of;
use remote::wire::{Header, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const SHARDS: usize = 3;
/// How long a frame that must come may take: a machine that stands still is no failure.
const PATIENCE_S: i64 = 60;

fn open(source: &LinkSource, shards: usize) -> LinkShards {
    let opened = when_free(|| LinkShards::open(source, shards));
    assert_eq!(opened.refused, None);
    assert_eq!(opened.sockets.len(), shards);
    opened
}

/// A frame of that kind, with more bytes than its header, and the number of its session.
fn frame(kind: Kind, session: u32, len: usize) -> Vec<u8> {
    let mut frame = Header { kind, session, counter: 7 }.bytes().to_vec();
    frame.resize(len, 0xff);
    frame
}

/// What is sent, and the shard that is to have it.
fn frames() -> Vec<(Vec<u8>, usize)> {
    let mut frames = Vec::new();
    for len in [40, 700, 1400] {
        for shard in (0..SHARDS as u32).rev() {
            for low in [0, 1, 0x0fff_ffff, 0x0123_4567] {
                let session = shard << 28 | low;
                assert_eq!(shard_of(session), shard as usize);
                frames.push((frame(Kind::Sealed, session, len), shard as usize));
            }
        }
        // Shards that there are not; and what is not sealed, whatever number it has.
        frames.push((frame(Kind::Sealed, 3 << 28, len), 0));
        frames.push((frame(Kind::Sealed, u32::MAX, len), 0));
        for kind in [Kind::Hello, Kind::Cookie, Kind::Answer] {
            frames.push((frame(kind, 0, len), 0));
            frames.push((frame(kind, 2 << 28, len), 0));
        }
    }
    // Too short to tell.
    frames.extend([1, 2, 7].map(|len| (frame(Kind::Sealed, 2 << 28, 16)[..len].to_vec(), 0)));
    frames
}

/// The next frame, if one comes within so many seconds.
fn receive(socket: &mut LinkSocket, limit_s: i64) -> Option<Vec<u8>> {
    // One look is what `has_some` brings about.
    for _ in 0..4 {
        if let Some((_, bytes)) = socket.receive() {
            return Some(bytes.to_vec());
        }
        if socket.has_some() {
            continue;
        }
        let fd = socket.poll_fd();
        let limit = Timespec { tv_sec: limit_s, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("poll") == 0 {
            return None;
        }
    }
    None
}

/// Sends each frame alone, and looks who has it.
fn check(sockets: &mut [LinkSocket], mut send: impl FnMut(&[u8])) {
    for (bytes, shard) in frames() {
        send(&bytes);
        let head = &bytes[..bytes.len().min(16)];
        assert_eq!(
            receive(&mut sockets[shard], PATIENCE_S).as_ref(),
            Some(&bytes),
            "{head:?}: {shard}"
        );
        for (other, socket) in sockets.iter_mut().enumerate() {
            assert_eq!(receive(socket, 0), None, "{head:?} at {other}, too");
        }
    }
}

#[test]
fn datagrams_come_to_the_shard_that_made_their_session() {
    for text in ["127.0.0.1:0", "[::1]:0"] {
        let source = LinkSource::Udp { bind: text.parse().expect("an address") };
        let mut link = open(&source, SHARDS).sockets;
        let at = link[0].local().expect("a port");
        assert!(link.iter().all(|socket| socket.local() == Some(at)), "one address for all");
        let sender = std::net::UdpSocket::bind(text).expect("a socket");
        check(&mut link, |bytes| {
            sender.send_to(bytes, at).expect("sent");
        });
        // Nobody gets in, with several shards or one; when all are closed the address is free.
        let source = LinkSource::Udp { bind: at };
        for shards in [1, SHARDS] {
            let refused = LinkShards::open(&source, shards).expect_err("it has joined them");
            assert!(
                refused.to_string().contains("another process, or another link, has this port")
            );
        }
        drop(link);
        // A process that another test is just making may have copies of them for a moment.
        let reopened = (0..6_000).find_map(|_| {
            let opened = LinkShards::open(&source, SHARDS).ok();
            if opened.is_none() {
                poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })).expect("poll");
            }
            opened
        });
        let mut again = reopened.expect("it stays taken").sockets;
        assert_eq!(again.len(), SHARDS);
        check(&mut again, |bytes| {
            sender.send_to(bytes, at).expect("sent");
        });
    }
}

/// A burst that the kernel cuts up and joins again stays together.
#[test]
fn bursts_come_to_the_shard_that_made_their_session() {
    let source = LinkSource::Udp { bind: "127.0.0.1:0".parse().expect("an address") };
    let mut link = open(&source, SHARDS).sockets;
    let to = backend::link::Address::udp(link[0].local().expect("a port"));
    let mut sender = LinkSocket::open(&source).unwrap_or_else(|error| panic!("{error}"));
    for shard in (0..SHARDS).cycle().take(30) {
        let bytes = frame(Kind::Sealed, (shard as u32) << 28 | 5, 1400);
        for _ in 0..40 {
            assert!(sender.send(|place| {
                place[..bytes.len()].copy_from_slice(&bytes);
                Some((bytes.len(), to))
            }));
        }
        sender.flush();
        for number in 0..40 {
            assert_eq!(
                receive(&mut link[shard], PATIENCE_S).as_ref(),
                Some(&bytes),
                "{shard}: {number}"
            );
        }
    }
    assert!(link.iter_mut().all(|socket| receive(socket, 0).is_none()));
}

#[test]
fn frames_of_a_wire_come_to_the_shard_that_made_their_session() {
    in_namespace("frames_of_a_wire_come_to_the_shard_that_made_their_session", || {
        veth();
        // Two groups on one interface would both have all frames; two after one another have nothing in common.
        for _ in 0..2 {
            check_wire(&LinkSource::Interface { name: "v1".to_string() }, &["packet"; SHARDS]);
        }
    });
}

/// One queue is the first shard's, and the others have what the program lets through.
#[test]
fn frames_of_af_xdp_come_to_their_shard_with_a_queue_and_without() {
    in_namespace("frames_of_af_xdp_come_to_their_shard_with_a_queue_and_without", || {
        veth();
        let source = LinkSource::Xdp { name: "v1".to_string() };
        let mut words = ["packet"; SHARDS];
        words[0] = "xdp, native, copy";
        check_wire(&source, &words);
        ip("link del v0");
        let queues = format!("numrxqueues {SHARDS} numtxqueues {SHARDS}");
        ip(&format!("link add v0 {queues} type veth peer name v1 {queues}"));
        ip("link set v0 up");
        ip("link set v1 up");
        for _ in 0..2 {
            check_wire(&source, &["xdp, native, copy"; SHARDS]);
        }
    });
}

fn check_wire(source: &LinkSource, words: &[&str; SHARDS]) {
    let mut link = open(source, SHARDS).sockets;
    assert!(link.iter().map(LinkSocket::describe).eq(words.iter().copied()));
    let text = ip_says("-o link show v1");
    let mac = text.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
    let bytes = mac
        .expect("an address")
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
    let to: Vec<u8> = bytes.collect();
    let to = backend::link::Address::station(to.try_into().expect("six"));
    let from = LinkSource::Interface { name: "v0".to_string() };
    let mut sender = LinkSocket::open(&from).unwrap_or_else(|error| panic!("{error}"));
    check(&mut link, |bytes| {
        assert!(sender.send(|place| {
            place[..bytes.len()].copy_from_slice(bytes);
            Some((bytes.len(), to))
        }));
        sender.flush();
    });
}
