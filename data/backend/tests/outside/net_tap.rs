//! Taps: made, found, kept, taken away; frames of all sizes with their offloads; and a tap that goes
//! down or away while it is used.

use crate::network::*;
use backend::net::{HostPort, HostSource, Rest, Sent};
use frame::{Header, Offloads};
use guest_memory::{GuestMap, Health, Mapping, Region, Seal, Span};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

fn made(name: &str, mtu: u16) -> HostSource {
    HostSource::Tap { name: name.to_owned(), queue: 0, mtu: Some(mtu), ours: false }
}

/// A guest's memory with `bytes` in it, in pieces of `piece` bytes that do not touch.
fn in_guest(bytes: &[u8], piece: usize) -> (GuestMap, Vec<Span>) {
    let map = GuestMap::anonymous(1 << 20).expect("memory");
    let mut spans = Vec::new();
    for (number, bytes) in bytes.chunks(piece).enumerate() {
        let at = (number * (piece + 3)) as u64;
        let span = map.span(at, bytes.len() as u32).expect("within");
        assert!(map.write(span, 0, bytes));
        spans.push(span);
    }
    (map, spans)
}

#[test]
fn a_tap_is_made_kept_found_and_taken_away_only_by_who_made_it() {
    in_namespace("a_tap_is_made_kept_found_and_taken_away_only_by_who_made_it", || {
        let port = open(&made("t0", 9_000));
        assert!(port.was_made());
        assert_eq!(port.mtu(), Some(9_000));
        let line = ip_says("-o link show t0");
        assert!(line.contains("UP") && line.contains("mtu 9000"), "{line}");
        drop(port);
        ip("link show t0");

        // The next daemon, which does not know that it is its own; an MTU is for one that is made.
        let port = open(&made("t0", 1_500));
        assert!(!port.was_made());
        assert_eq!(port.mtu(), Some(9_000));
        port.remove();
        ip("link show t0");

        let name = "t0".to_owned();
        let port = open(&HostSource::Tap { name, queue: 0, mtu: Some(4_000), ours: true });
        assert!(port.was_made());
        assert_eq!(port.mtu(), Some(4_000), "it is ours to change");
        port.remove();
        assert!(!try_ip("link show t0"), "it is still there");
    });
}

#[test]
fn what_cannot_be_opened_says_why() {
    in_namespace("what_cannot_be_opened_says_why", || {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", ".", "..", "tap%d", "a:b", "a\0b"] {
            let error = refusal(&tap(name));
            assert!(error.contains("1 to 15 bytes"), "{name}: {error}");
            let error = refusal(&HostSource::Packet { interface: name.to_owned() });
            assert!(error.contains("1 to 15 bytes"), "{name}: {error}");
        }
        open(&tap("exactly-fifteen")).remove();
        for mtu in [0, 67, 65_522, 65_535] {
            let error = refusal(&made("t0", mtu));
            assert_eq!(
                error,
                format!(
                    "cannot open tap t0: an MTU of {mtu} is not possible: a tap's is 68 to 65521"
                )
            );
        }
        for mtu in [68, 65_521] {
            let port = open(&made("t0", mtu));
            assert_eq!(port.mtu(), Some(mtu.into()));
            port.remove();
        }
        veth();
        assert!(refusal(&tap("v0")).contains("not a tap"));
        let held = open(&tap("t0"));
        assert_eq!(
            refusal(&tap("t0")),
            "cannot open tap t0: another process has it open (a VMM, or another daemon): end that, \
             or use another tap"
        );
        drop(held);
        drop(open(&tap("t0")));
        assert!(!try_ip("link show t9"), "what is refused is not made");
        let error = refusal(&HostSource::Packet { interface: "t9".to_owned() });
        assert_eq!(
            error,
            "cannot open interface t9: there is no interface of this name in the daemon's network \
             namespace (see `ip link`)"
        );
    });
}

/// What a process without these capabilities is told.
#[track_caller]
fn check_without(name: &str, capability: &str, source: &HostSource) {
    if !is_bounded() {
        let whole = whole(name);
        return in_namespace(name, || {
            ip("link add v0 type veth peer name v1");
            let bounded = format!("--bounding-set=-{capability}");
            let mut command = run_by("setpriv", &[&bounded], &whole);
            assert!(command.env(BOUNDED, "1").status().expect("setpriv").success());
        });
    }
    let error = refusal(source);
    let wanted = capability.to_uppercase();
    assert!(error.contains("the daemon may not ") && error.contains(&wanted), "{error}");
}

#[test]
fn a_tap_needs_net_admin() {
    check_without("a_tap_needs_net_admin", "net_admin", &tap("t0"));
}

#[test]
fn a_packet_socket_needs_net_raw() {
    let source = HostSource::Packet { interface: "v0".to_owned() };
    check_without("a_packet_socket_needs_net_raw", "net_raw", &source);
}

#[test]
fn an_xdp_socket_needs_net_raw() {
    let source = HostSource::Xdp { interface: "v0".to_owned(), queue: 0 };
    check_without("an_xdp_socket_needs_net_raw", "net_raw", &source);
}

#[test]
fn memory_that_a_guest_cuts_off_is_its_own_loss() {
    in_namespace("memory_that_a_guest_cuts_off_is_its_own_loss", || {
        let mut port = open(&made("t0", 65_521));
        let mut host = packet("t0");
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("file");
        ftruncate(&file, 1 << 20).expect("size");
        let mapping = Mapping::shared(&file, 0, 1 << 20, Seal::Any, &Health::default());
        let mapping = mapping.expect("mapped");
        let map = GuestMap::new(vec![Region { gpa: 0, user: 0, mapping }]).expect("map");
        let spans = [map.span(0, 4_096).expect("a"), map.span(1 << 19, 4_096).expect("b")];
        ftruncate(&file, 1 << 16).expect("cut off");
        for port in [&mut port, &mut host] {
            let sent = port.send(&Header::default(), &frame(14, 1), Rest::Guest(&map, &spans));
            assert_eq!(sent, Sent::Fault);
            assert!(!port.is_gone());
        }
        let sent = port.send(&Header::default(), &frame(14, 1), Rest::Guest(&map, &spans[..1]));
        assert_eq!(sent, Sent::Done);
        let (_, got) = Turns::default().receive(&mut host, is_mine).expect("a frame");
        assert_eq!(got.len(), 14 + 4_096);
    });
}

#[test]
fn a_tap_for_one_descriptor_serves_one_queue() {
    in_namespace("a_tap_for_one_descriptor_serves_one_queue", || {
        ip("tuntap add single mode tap");
        ip("link set single up");
        let first = open(&tap("single"));
        assert!(!first.was_made());
        let error = refusal(&tap_queue("single", 1));
        assert!(error.contains("multi_queue") && error.contains("queues = 1"), "{error}");
        let error = refusal(&tap("single"));
        assert!(error.contains("another process has it open"), "{error}");
        drop(first);
        let error = refusal(&tap_queue("single", 1));
        assert!(error.contains("multi_queue"), "{error}");
        ip("link show single");
    });
}

#[test]
fn each_queue_is_a_port_and_what_one_sends_is_seen_once() {
    in_namespace("each_queue_is_a_port_and_what_one_sends_is_seen_once", || {
        let mut queues: Vec<HostPort> = (0..2).map(|queue| open(&tap_queue("t0", queue))).collect();
        let mut host = packet("t0");
        let mut turns = Turns::default();
        let header = Header::default();
        for (seed, queue) in queues.iter_mut().enumerate() {
            let bytes = frame(100, seed);
            assert_eq!(queue.send(&header, &bytes, Rest::Private(&[])), Sent::Done);
            let (_, got) = turns.receive(&mut host, is_mine).expect("a frame");
            assert_eq!(got, bytes);
        }
        // The kernel chooses the queue by the flow; between them they have each frame once.
        for seed in 0..20 {
            assert_eq!(host.send(&header, &frame(100, seed), Rest::Private(&[])), Sent::Done);
        }
        host.flush();
        let mut seen = Vec::new();
        for queue in &mut queues {
            while let Some(received) = queue.receive(0) {
                if is_mine(&received) {
                    seen.push(received.bytes.to_vec());
                }
            }
        }
        let mut expected: Vec<Vec<u8>> = (0..20).map(|seed| frame(100, seed)).collect();
        seen.sort();
        expected.sort();
        assert_eq!(seen, expected);
        // Removed with its last queue.
        queues.remove(0).remove();
        ip("link show t0");
        drop(queues);
        assert!(!try_ip("link show t0"));
    });
}

#[test]
fn frames_cross_as_they_are_from_a_guests_memory() {
    in_namespace("frames_cross_as_they_are_from_a_guests_memory", || {
        let mut port = open(&made("t0", 65_521));
        let mut host = packet("t0");
        let mut turns = Turns::default();
        // One span for each byte of the longest list, and one longer than any page.
        for (len, piece) in [
            (14, 1),
            (60, 7),
            (384, 1),
            (1_514, 100),
            (20_000, 78),
            (20_000, 81),
            (65_535, 4_000),
            (65_535, 65_535),
        ] {
            let bytes = frame(len, len);
            let head = len.min(128);
            let (map, spans) = in_guest(&bytes[head..], piece);
            let rest = Rest::Guest(&map, &spans);
            assert_eq!(port.send(&Header::default(), &bytes[..head], rest), Sent::Done, "{len}");
            let (header, got) = turns.receive(&mut host, is_mine).expect("a frame");
            assert_eq!(header.gso_type, Header::GSO_NONE);
            assert!(got == bytes, "{len} bytes in pieces of {piece}");

            let rest = Rest::Guest(&map, &spans);
            assert_eq!(host.send(&Header::default(), &bytes[..head], rest), Sent::Done, "{len}");
            host.flush();
            let (_, got) = turns.receive(&mut port, is_mine).expect("a frame");
            assert!(got == bytes, "{len} bytes in pieces of {piece}, to the tap");
        }
        let (map, spans) = in_guest(&[0; 257 * 7], 7);
        let sent = port.send(&Header::default(), &frame(14, 0), Rest::Guest(&map, &spans));
        assert_eq!(sent, Sent::TooLong);
        // Spans of a guest that this map is not.
        let (_other, spans) = in_guest(&[0; 300], 100);
        for port in [&mut port, &mut host] {
            let sent = port.send(&Header::default(), &frame(14, 0), Rest::Guest(&map, &spans));
            assert_eq!(sent, Sent::Fault);
        }
        assert_eq!(port.send(&Header::default(), &frame(60, 1), Rest::Private(&[])), Sent::Done);
        let (_, got) = turns.receive(&mut host, is_mine).expect("a frame");
        assert_eq!(got, frame(60, 1), "nothing of what was refused came");
    });
}

#[test]
fn long_segments_and_open_checksums_cross_in_both_directions() {
    in_namespace("long_segments_and_open_checksums_cross_in_both_directions", || {
        let mut port = open(&tap("t0"));
        let mut host = packet("t0");
        let mut turns = Turns::default();
        assert!(port.has().contains(Offloads::CSUM | Offloads::TSO4 | Offloads::TSO6));
        for (payload, segment) in [(100, 0), (1_460, 0), (4_000, 1_460), (65_480, 1_448)] {
            let (header, bytes) = tcp(payload, segment);
            let is_it = |received: &backend::net::Received<'_>| received.bytes.len() == bytes.len();
            for to_host in [true, false] {
                let (from, to) =
                    if to_host { (&mut port, &mut host) } else { (&mut host, &mut port) };
                let sent = from.send(&header, &bytes[..54], Rest::Private(&bytes[54..]));
                assert_eq!(sent, Sent::Done);
                from.flush();
                let (got_header, got) = turns.receive(to, is_it).expect("a frame");
                assert!(got == bytes, "{payload} bytes, to the host: {to_host}");
                assert_eq!(got_header.flags, Header::NEEDS_CSUM);
                assert_eq!(got_header.gso_type, header.gso_type);
                assert_eq!(got_header.gso_size, segment);
                assert_eq!((got_header.csum_start, got_header.csum_offset), (34, 16));
            }
        }
        // A header that the kernel does not believe is that frame's loss.
        let (header, bytes) = tcp(100, 0);
        for bad in
            [Header { gso_type: 77, gso_size: 9, ..header }, Header { csum_start: 9_999, ..header }]
        {
            assert_eq!(port.send(&bad, &bytes, Rest::Private(&[])), Sent::Failed, "{bad:?}");
        }
        assert_eq!(port.send(&header, &bytes, Rest::Private(&[])), Sent::Done);
    });
}

#[test]
fn a_tap_that_is_down_fails_frames_and_one_that_is_deleted_is_gone() {
    in_namespace("a_tap_that_is_down_fails_frames_and_one_that_is_deleted_is_gone", || {
        let mut port = open(&tap("t0"));
        let mut other = open(&tap_queue("t0", 1));
        let header = Header::default();
        let bytes = frame(1_000, 1);
        assert_eq!(port.send(&header, &bytes, Rest::Private(&[])), Sent::Done);
        ip("link set t0 down");
        assert_eq!(port.send(&header, &bytes, Rest::Private(&[])), Sent::Failed);
        while port.receive(0).is_some() {}
        assert!(!port.is_gone());
        ip("link set t0 up");
        assert_eq!(port.send(&header, &bytes, Rest::Private(&[])), Sent::Done);

        // Deleted while frames flow.
        let deleter = std::thread::spawn(|| ip("link del t0"));
        let mut sent = Sent::Done;
        for _ in 0..10_000_000 {
            sent = port.send(&header, &bytes, Rest::Private(&[]));
            if sent == Sent::Gone {
                break;
            }
        }
        deleter.join().expect("deleted");
        assert_eq!(sent, Sent::Gone);
        assert!(port.is_gone());
        // One that only listens is woken, and finds out.
        assert!(wait(&other, PATIENCE_MS));
        for _ in 0..1_000 {
            if other.receive(0).is_none() {
                break;
            }
        }
        assert!(other.is_gone());
        let again = open(&tap("t0"));
        assert!(again.was_made() && !again.is_gone());
        // Of one that is gone there is nothing to take away, also when another has its name.
        port.remove();
        drop(other);
        drop(again);
        ip("link show t0");
    });
}
