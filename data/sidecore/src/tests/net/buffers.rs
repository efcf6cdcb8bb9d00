//! Receive buffers of every size: merged, in pieces, too few, too small.

use frame::{FRAME_MAX, Header};
use guest_memory::{Area, DirtyLog, GuestMap, Health, LOG_PAGE_SIZE, Mapping, Seal};
use rustix::fs::{MemfdFlags, memfd_create};
use switch::DropReason;
use virtqueue::{Format, Violation};

use super::bed::*;
use crate::Event;

/// A sender and a receiver on a wire.
fn pair(format: Format, size: u16, features: u64) -> (Lan, Nic, Nic) {
    let mut lan = Lan::wire();
    let (a, b) = (Nic::new(ring(format, size), features), Nic::new(ring(format, size), features));
    lan.plug(&a);
    lan.plug(&b);
    (lan, a, b)
}

#[test]
fn frames_are_put_together_from_buffers_of_any_size() {
    for format in [Format::Split, Format::Packed] {
        for buffer in [12, 13, 100, 1024, 1526, 4096, 70_000] {
            let (mut lan, mut a, mut b) = pair(format, 256, USUAL);
            for len in [14, 60, 64, 127, 128, 129, 1000, 1514, 9014, 65_550, FRAME_MAX as usize] {
                let buffers = (len + 12).div_ceil(buffer);
                if buffers > 80 {
                    continue;
                }
                b.post(buffers, buffer as u32);
                let sent = frame(mac(2), mac(1), len);
                a.send(&sent);
                lan.passes(1);
                let got = b.take();
                assert_eq!(got.len(), 1, "{format:?}: {len} bytes in buffers of {buffer}");
                assert_eq!(usize::from(got[0].0.buffers), buffers);
                assert!(got[0].1 == sent, "{format:?}: {len} bytes in buffers of {buffer}");
                assert_eq!((a.sent(), b.receive.driver.in_flight()), (1, 0));
            }
        }
    }
}

#[test]
fn without_merging_one_chain_holds_all_in_pieces_of_any_size() {
    for format in [Format::Split, Format::Packed] {
        for features in [PLAIN, 0] {
            let (mut lan, mut a, mut b) = pair(format, 256, features);
            let size = b.header_size() as u32;
            for pieces in
                [&[size, 1514][..], &[size + 1514], &[3, size - 3, 5, 1, 4000], &[1526; 44]]
            {
                for len in [60, 128, 131, 1514] {
                    b.post_pieces(pieces);
                    b.publish_buffers();
                    let sent = frame(mac(2), mac(1), len);
                    a.send(&sent);
                    lan.passes(1);
                    let got = b.take();
                    assert_eq!(got.len(), 1, "{format:?} {features:x} {len} in {pieces:?}");
                    assert!(got[0].1 == sent && got[0].0.buffers == 1);
                }
            }
        }
    }
}

#[test]
fn frames_in_many_pieces_are_taken_whole() {
    let pieces: [&[usize]; 5] = [
        &[12, usize::MAX],
        &[1, 1, 10, 1, 13, usize::MAX],
        &[11, 1, usize::MAX],
        &[140, 1, 1, usize::MAX],
        &[5; 100],
    ];
    for format in [Format::Split, Format::Packed] {
        for pieces in pieces {
            let (mut lan, mut a, mut b) = pair(format, 256, USUAL);
            b.post(20, 100);
            let sent = frame(mac(2), mac(1), 450);
            a.send_pieces(Header::default(), &sent, pieces);
            lan.passes(1);
            assert_eq!((a.sent(), b.take_frames()), (1, vec![sent]), "{format:?} {pieces:?}");
        }
    }
}

#[test]
fn a_frame_waits_for_the_last_of_its_buffers_and_none_is_lost_meanwhile() {
    for format in [Format::Split, Format::Packed] {
        let (mut lan, mut a, mut b) = pair(format, 64, USUAL);
        let sent = frame(mac(2), mac(1), 60_000);
        a.send(&sent);
        for count in [10, 10, 10, 10] {
            b.post(count, 1500);
            lan.passes(5);
            assert!(b.take().is_empty());
        }
        assert_eq!(a.sent(), 0);
        b.post(1, 1500);
        lan.passes(1);
        let got = b.take();
        assert_eq!((a.sent(), got.len(), got[0].0.buffers), (1, 1, 41));
        assert!(got[0].1 == sent, "{format:?}");
    }
}

#[test]
fn buffers_that_do_not_suffice_are_used_for_the_next_frame() {
    for format in [Format::Split, Format::Packed] {
        let mut lan = Lan::switch();
        let (mut a, mut b) = (Nic::new(ring(format, 64), USUAL), Nic::new(ring(format, 64), USUAL));
        let to = {
            lan.plug(&a);
            lan.plug(&b)
        };
        b.send(&frame(ALL, mac(2), 60));
        lan.passes(1);
        b.post(3, 1000);
        let small = frame(mac(2), mac(1), 1500);
        a.send(&frame(mac(2), mac(1), 9000));
        a.send(&small);
        lan.passes(1);
        assert_eq!((a.sent(), b.take_frames()), (2, vec![small]), "{format:?}");
        assert_eq!(lan.only_dropped(to, DropReason::NoBuffer), 1);
    }
}

#[test]
fn d8_many_tiny_buffers_cost_a_bounded_walk_and_only_what_does_not_fit() {
    for format in [Format::Split, Format::Packed] {
        let (mut lan, mut a, mut b) = pair(format, 256, USUAL);
        let to = 1;
        b.post(200, 16);
        a.send(&frame(mac(2), mac(1), 1500));
        lan.passes(1);
        assert_eq!((a.sent(), lan.only_dropped(to, DropReason::SmallBuffers)), (1, 1));
        // Not even looked at any more, until a frame that fits takes some of them away.
        (0..20).for_each(|_| a.send(&frame(mac(2), mac(1), 1500)));
        let small = frame(mac(2), mac(1), 100);
        a.send(&small);
        lan.passes(1);
        assert_eq!((a.sent(), b.take_frames()), (21, vec![small]), "{format:?}");
        assert_eq!(lan.only_dropped(to, DropReason::SmallBuffers), 21);
        assert_eq!(lan.core.events().len(), 0, "it is no violation");
    }
}

#[test]
fn without_merging_a_chain_that_is_too_small_stays_for_a_smaller_frame() {
    let (mut lan, mut a, mut b) = pair(Format::Split, 64, PLAIN);
    b.post(1, 600);
    let small = frame(mac(2), mac(1), 500);
    a.send(&frame(mac(2), mac(1), 1500));
    a.send(&small);
    lan.passes(1);
    assert_eq!((a.sent(), b.take_frames()), (2, vec![small]));
    assert_eq!(lan.only_dropped(1, DropReason::SmallBuffers), 1);
}

#[test]
fn d9_a_buffer_without_room_for_the_header_breaks_the_queue_alone() {
    let (mut lan, mut a, mut b) = pair(Format::Split, 64, USUAL);
    b.post(1, 11);
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    let events = lan.core.events();
    let violation = Violation::NoRoom { need: "frame header" };
    assert!(
        matches!(events[..], [Event::Failed { key: failed, violation: found }]
            if failed == key(1, true) && found == violation),
        "{events:?}"
    );
    // It reads as empty; its sender goes on.
    b.post(5, 2048);
    (0..40).for_each(|_| a.send(&frame(mac(2), mac(1), 60)));
    lan.passes(3);
    assert_eq!((a.sent(), b.take().len(), lan.core.events().len()), (41, 0, 0));
    assert_eq!(lan.detach(1, true).queue().violation(), Some(violation));
}

#[test]
fn a_chain_of_nothing_but_readable_buffers_is_no_receive_buffer() {
    let (mut lan, mut a, mut b) = pair(Format::Split, 64, USUAL);
    let buffer = virtqueue::driver::Buffer { gpa: RECEIVE_AT, len: 4096, device_writes: false };
    b.receive.driver.add(&[buffer], 0).unwrap();
    b.publish_buffers();
    a.send(&frame(mac(2), mac(1), 60));
    lan.passes(1);
    assert!(matches!(lan.core.events()[..], [Event::Failed { .. }]));
}

#[test]
fn every_page_that_a_frame_is_written_to_is_marked() {
    let log = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    let size = MEMORY / LOG_PAGE_SIZE / 8;
    rustix::fs::ftruncate(&log, size).unwrap();
    let shared = || Mapping::shared(&log, 0, size, Seal::Any, &Health::default()).unwrap();
    let marks = Area::whole(shared());
    let log = DirtyLog::map(&log, 0, size, Seal::Any, &Health::default()).unwrap();
    let map = GuestMap::anonymous(MEMORY).unwrap().with_log(Some(log)).unwrap();
    let mut lan = Lan::wire();
    let (mut a, mut b) = (Nic::usual(), Nic::over(map, ring(Format::Split, 256), USUAL));
    lan.plug(&a);
    lan.plug(&b);
    for (len, buffer) in [(60, 2048), (3000, 4096), (65_000, 1500), (20_000, 30_000)] {
        b.post((len + 12usize).div_ceil(buffer as usize), buffer);
        let mut before = vec![0; MEMORY as usize];
        b.area.read(0, &mut before);
        assert!(marks.zero(0, marks.len()));
        a.send(&frame(mac(2), mac(1), len));
        lan.passes(1);
        let mut after = vec![0; MEMORY as usize];
        b.area.read(0, &mut after);
        assert_eq!(b.take().len(), 1);
        let page = LOG_PAGE_SIZE as usize;
        for (number, (was, is)) in before.chunks(page).zip(after.chunks(page)).enumerate() {
            let is_marked = marks.load_u8(number / 8) & 1 << (number % 8) != 0;
            assert!(was == is || is_marked, "page {number} after a frame of {len}");
        }
    }
}
