//! Pieces that come in any order, are lost, and lie.

use random::Random;

use super::*;

fn net<'a>(number: u32, len: usize, place: usize, data: &'a [u8]) -> Net<'a> {
    Net { handle: 1, number, len: len as u16, place: place as u16, data }
}

fn frame(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 ^ number.wrapping_mul(31)) as u8).collect()
}

/// Pieces of random sizes in any order within a frame, frames interleaved: each is whole once.
#[test]
fn pieces_come_in_any_order_and_make_the_frame_that_was_sent() {
    for seed in 0..200 {
        let mut random = Random::new(seed, 0);
        let mut assembly = Assembly::default();
        for round in 0..20u32 {
            let mut pieces = Vec::new();
            for number in [3 * round, 3 * round + 1, 3 * round + 2] {
                let len = 1 + random.below(NET_FRAME_BYTES_MAX as u64) as usize;
                let bytes = frame(number, len);
                let step = len.div_ceil(1 + random.below(PIECES_MAX as u64) as usize);
                for at in (0..len).step_by(step) {
                    pieces.push((number, len, at, bytes[at..len.min(at + step)].to_vec()));
                }
            }
            for last in (1..pieces.len()).rev() {
                pieces.swap(last, random.below(last as u64 + 1) as usize);
            }
            let mut whole = Vec::new();
            for (number, len, at, data) in &pieces {
                if let Some(bytes) = assembly.take(&net(*number, *len, *at, data)) {
                    assert_eq!(bytes, frame(*number, *len), "seed {seed}, frame {number}");
                    whole.push(*number);
                }
            }
            whole.sort_unstable();
            assert_eq!(whole, [3 * round, 3 * round + 1, 3 * round + 2], "seed {seed}");
        }
        assert_eq!(assembly.lost(), 0);
    }
}

#[test]
fn a_frame_of_which_a_piece_is_lost_is_lost_and_makes_room() {
    let mut assembly = Assembly::default();
    for number in 0..100 {
        let bytes = frame(number, 1514);
        assert!(assembly.take(&net(number, 1514, 0, &bytes[..1000])).is_none());
        if number % 3 == 0 {
            assert_eq!(assembly.take(&net(number, 1514, 1000, &bytes[1000..])), Some(&bytes[..]));
        }
    }
    // 66 were not whole; those of the last places still wait.
    assert!((58..=66).contains(&assembly.lost()), "{}", assembly.lost());
    // The number wraps.
    let bytes = frame(0, 600);
    let mut assembly = Assembly::default();
    assert!(assembly.take(&net(u32::MAX - 7, 600, 0, &bytes[..300])).is_none());
    assert!(assembly.take(&net(0, 600, 0, &bytes[..300])).is_none());
    assert!(assembly.take(&net(u32::MAX - 7, 600, 300, &bytes[300..])).is_none(), "late");
    assert_eq!(assembly.take(&net(0, 600, 300, &bytes[300..])), Some(&bytes[..]));
}

/// What a peer says of pieces is not believed: no byte of another frame ever comes out.
#[test]
fn pieces_that_lie_show_nothing_of_other_frames() {
    let mut assembly = Assembly::default();
    // Secrets in all places.
    for number in 0..PLACES as u32 {
        assert!(assembly.take(&net(number, 9000, 0, &[0x5e; 8999])).is_none());
    }
    assembly.forget();
    for seed in 0..2_000 {
        let mut random = Random::new(seed, 0);
        for _ in 0..50 {
            let len = 1 + random.below(2 * NET_FRAME_BYTES_MAX as u64) as usize;
            let place = random.below(NET_FRAME_BYTES_MAX as u64) as usize;
            let data = vec![0xaa; random.below(1_400) as usize];
            let number = random.below(8) as u32;
            let piece = Net {
                handle: random.below(2) as u32,
                ..net(number, len, if random.one_in(3) { 0 } else { place }, &data)
            };
            if let Some(bytes) = assembly.take(&piece) {
                assert!(bytes.iter().all(|byte| *byte == 0xaa), "seed {seed}");
                assert_eq!(bytes.len(), len);
            }
        }
    }
    // Overlapping ones, and more than there may be, lose their frame.
    let mut assembly = Assembly::default();
    assert!(assembly.take(&net(1, 100, 0, &[1; 60])).is_none());
    assert!(assembly.take(&net(1, 100, 59, &[1; 41])).is_none());
    assert_eq!(assembly.lost(), 1);
    for at in 0..=PIECES_MAX {
        assert!(assembly.take(&net(2, 1_000, at, &[1])).is_none());
    }
    assert_eq!(assembly.lost(), 2);
    // Another binding begins with nothing.
    assert!(assembly.take(&net(3, 100, 0, &[1; 50])).is_none());
    let other = Net { handle: 2, ..net(3, 100, 50, &[1; 50]) };
    assert!(assembly.take(&other).is_none());
}

#[test]
fn the_queue_is_bounded_in_frames_and_bytes() {
    let mut queue = NetQueue::default();
    assert!(queue.has_room());
    let kept = (0..1_000).filter(|_| queue.push(1, &[1; 60])).count();
    assert_eq!((kept, queue.dropped, queue.has_room()), (FRAMES, 1_000 - FRAMES as u64, false));
    let mut queue = NetQueue::default();
    let kept = (0..1_000).filter(|_| queue.push(1, &[1; 9_000])).count();
    assert_eq!(kept, BYTES / 9_000);
    assert!(!queue.push(1, &[]) && !queue.push(1, &[1; NET_FRAME_BYTES_MAX + 1]));
}
