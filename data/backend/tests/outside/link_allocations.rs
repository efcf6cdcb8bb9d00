//! A frame that comes and goes by AF_XDP allocates nothing, whichever way it comes.
//!
//! In a process of its own, since another test beside it would be counted, too.

use crate::ALLOCATOR;
use crate::network::{in_namespace, ip};
use backend::link::{Address, LinkSocket, LinkSource};

const FRAMES: usize = 20_000;
const BURST: usize = 40;

fn allocations() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

fn open(name: &str) -> LinkSocket {
    let source = LinkSource::Xdp { name: name.to_string() };
    LinkSocket::open(&source).unwrap_or_else(|error| panic!("{error}"))
}

/// Frames there, each of which is sent back: how many came home.
fn rounds(one: &mut LinkSocket, other: &mut LinkSocket, to: Address) -> usize {
    let (mut sent, mut home) = (0, 0);
    for _ in 0..100_000_000_u64 {
        if sent == home && sent < FRAMES {
            for number in sent..sent + BURST {
                assert!(one.send(|place| {
                    place[..1400].fill(number as u8);
                    Some((1400 - number % 3, to))
                }));
            }
            one.flush();
            sent += BURST;
        }
        while let Some((from, frame)) = other.receive() {
            let (byte, len) = (frame[0], frame.len());
            assert!(other.send(|place| {
                place[..len].fill(byte);
                Some((len, from))
            }));
        }
        other.flush();
        while one.receive().is_some() {
            home += 1;
        }
        if home == FRAMES {
            break;
        }
    }
    home
}

#[test]
fn frames_of_af_xdp_allocate_nothing() {
    in_namespace("frames_of_af_xdp_allocate_nothing", || {
        ip(
            "link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:00:02",
        );
        ip("link set v0 up");
        ip("link set v1 up");
        let (mut one, mut other) = (open("v0"), open("v1"));
        let before = allocations();
        assert_eq!(rounds(&mut one, &mut other, Address::station([2, 0, 0, 0, 0, 2])), FRAMES);
        assert_eq!(allocations() - before, 0);
        // To an address that the program does not know: by the packet socket beside, and back by the queue.
        ip("link set v1 address 02:00:00:00:00:12");
        let before = allocations();
        assert_eq!(rounds(&mut one, &mut other, Address::station([2, 0, 0, 0, 0, 0x12])), FRAMES);
        assert_eq!(allocations() - before, 0);
    });
}
