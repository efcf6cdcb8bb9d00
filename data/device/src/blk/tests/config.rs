//! The config space, the feature bits and the numbers on the wire, against Linux's headers.

use std::mem::offset_of;

use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_config::*;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use super::*;
use crate::features as bit;

fn space(shape: &Shape, live: &Live) -> Vec<u8> {
    let mut space = vec![0xee; 256];
    assert!(read_config(shape, live, 0, &mut space));
    space
}

fn number(space: &[u8], at: usize, size: usize) -> u64 {
    space[at..at + size].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

macro_rules! field {
    ($space:expr, $field:ident) => {{
        let at = offset_of!(virtio_blk_config, $field);
        // The structure is packed: its fields are copied, not borrowed.
        let value = virtio_blk_config::default().$field;
        number($space, at, size_of_val(&value))
    }};
}

#[test]
fn every_field_is_where_linux_reads_it() {
    let shape = Shape { block_size: 4096, ..shape() };
    let live = Live::new((1 << 40) + 700);
    let space = space(&shape, &live);
    assert_eq!(field!(&space, capacity), (1 << 31) + 1, "part of a sector does not count");
    assert_eq!(field!(&space, size_max), 128 << 10);
    assert_eq!(field!(&space, seg_max), 126);
    assert_eq!(number(&space, offset_of!(virtio_blk_config, geometry), 4), 0);
    assert_eq!(field!(&space, blk_size), 4096);
    assert_eq!(field!(&space, physical_block_exp), 3);
    assert_eq!(field!(&space, alignment_offset), 0);
    assert_eq!(field!(&space, min_io_size), 8);
    assert_eq!(field!(&space, opt_io_size), 0);
    assert_eq!(field!(&space, wce), 1, "write back until the driver says otherwise");
    assert_eq!(field!(&space, num_queues), 4);
    assert_eq!(field!(&space, max_discard_sectors), 2048);
    assert_eq!(field!(&space, max_discard_seg), 1);
    assert_eq!(field!(&space, discard_sector_alignment), 8);
    assert_eq!(field!(&space, max_write_zeroes_sectors), 1024);
    assert_eq!(field!(&space, max_write_zeroes_seg), 1);
    assert_eq!(field!(&space, write_zeroes_may_unmap), 1);
    assert_eq!(CONFIG_SPACE_SIZE, offset_of!(virtio_blk_config, max_secure_erase_sectors));
    assert_eq!(space[CONFIG_SPACE_SIZE..], [0; 256 - CONFIG_SPACE_SIZE]);
    let padding = [space[33], space[57], space[58], space[59]];
    assert_eq!(padding, [0; 4]);
}

/// A 512e disk behind a partition that begins in the midst of a block, and discards of 64 KiB.
#[test]
fn the_topology_is_told_as_linux_reads_it() {
    let topology = Topology { alignment_offset: 7, io_min: 16, io_best: 128, discard_sectors: 128 };
    let space = space(&Shape { topology, ..shape() }, &Live::new(1 << 20));
    assert_eq!(field!(&space, blk_size), 512);
    assert_eq!(field!(&space, physical_block_exp), 3);
    assert_eq!(field!(&space, alignment_offset), 7);
    assert_eq!(field!(&space, min_io_size), 16);
    assert_eq!(field!(&space, opt_io_size), 128);
    assert_eq!(field!(&space, discard_sector_alignment), 128);
}

#[test]
fn what_changes_is_read_anew() {
    let live = Live::new(512);
    live.set_capacity(1 << 30);
    live.set_writeback(false);
    let space = space(&shape(), &live);
    assert_eq!(field!(&space, capacity), 1 << 21);
    assert_eq!(field!(&space, wce), 0);
    let bare = Shape { limits: Limits::default(), ..shape() };
    let space = super::config::space(&bare, &live);
    assert_eq!(field!(&space, max_discard_seg), 0);
    assert_eq!(field!(&space, max_write_zeroes_seg), 0);
}

#[test]
fn any_part_of_256_bytes_can_be_read_and_nothing_beyond() {
    let live = Live::new(1 << 20);
    let whole = space(&shape(), &live);
    for (offset, len) in [(0u32, 8usize), (20, 4), (32, 1), (58, 10), (255, 1), (256, 0), (3, 0)] {
        let mut part = vec![0xee; len];
        assert!(read_config(&shape(), &live, offset, &mut part));
        assert_eq!(part, whole[offset as usize..offset as usize + len]);
    }
    for (offset, len) in [(0u32, 257usize), (256, 1), (255, 2), (u32::MAX, 1), (u32::MAX, 257)] {
        let mut part = vec![0xee; len];
        assert!(!read_config(&shape(), &live, offset, &mut part), "{offset} {len}");
        assert!(part.iter().all(|byte| *byte == 0xee), "nothing read");
    }
}

#[test]
fn feature_bits_have_linux_numbers() {
    let numbers = [
        (bit::BLK_SIZE_MAX, VIRTIO_BLK_F_SIZE_MAX),
        (bit::BLK_SEG_MAX, VIRTIO_BLK_F_SEG_MAX),
        (bit::BLK_RO, VIRTIO_BLK_F_RO),
        (bit::BLK_BLK_SIZE, VIRTIO_BLK_F_BLK_SIZE),
        (bit::BLK_FLUSH, VIRTIO_BLK_F_FLUSH),
        (bit::BLK_TOPOLOGY, VIRTIO_BLK_F_TOPOLOGY),
        (bit::BLK_CONFIG_WCE, VIRTIO_BLK_F_CONFIG_WCE),
        (bit::BLK_MQ, VIRTIO_BLK_F_MQ),
        (bit::BLK_DISCARD, VIRTIO_BLK_F_DISCARD),
        (bit::BLK_WRITE_ZEROES, VIRTIO_BLK_F_WRITE_ZEROES),
        (bit::ANY_LAYOUT, VIRTIO_F_ANY_LAYOUT),
        (bit::INDIRECT_DESC, VIRTIO_RING_F_INDIRECT_DESC),
        (bit::EVENT_IDX, VIRTIO_RING_F_EVENT_IDX),
        (bit::VERSION_1, VIRTIO_F_VERSION_1),
        (bit::RING_PACKED, VIRTIO_F_RING_PACKED),
        (bit::IN_ORDER, VIRTIO_F_IN_ORDER),
        (bit::RING_RESET, VIRTIO_F_RING_RESET),
    ];
    for (mask, number) in numbers {
        assert_eq!(mask, 1 << number);
    }
}

#[test]
fn commands_and_statuses_have_linux_numbers() {
    let commands = [
        (IN, VIRTIO_BLK_T_IN),
        (OUT, VIRTIO_BLK_T_OUT),
        (FLUSH, VIRTIO_BLK_T_FLUSH),
        (GET_ID, VIRTIO_BLK_T_GET_ID),
        (DISCARD, VIRTIO_BLK_T_DISCARD),
        (WRITE_ZEROES, VIRTIO_BLK_T_WRITE_ZEROES),
    ];
    for (ours, linux) in commands {
        assert_eq!(ours, linux);
    }
    let statuses = [
        (Status::Ok, VIRTIO_BLK_S_OK),
        (Status::IoError, VIRTIO_BLK_S_IOERR),
        (Status::Unsupported, VIRTIO_BLK_S_UNSUPP),
    ];
    for (ours, linux) in statuses {
        assert_eq!(ours as u32, linux);
    }
    assert_eq!(SERIAL_SIZE as u32, VIRTIO_BLK_ID_BYTES);
}

#[test]
fn what_is_offered_follows_the_shape() {
    let whole = offered(&shape());
    for always in [bit::VERSION_1, bit::BLK_FLUSH, bit::BLK_CONFIG_WCE, bit::RING_PACKED] {
        assert_ne!(whole & always, 0);
    }
    assert_eq!(whole & (bit::BLK_RO | bit::IN_ORDER), 0);
    assert_ne!(whole & bit::BLK_DISCARD, 0);
    let readonly = offered(&Shape { readonly: true, ..shape() });
    assert_ne!(readonly & bit::BLK_RO, 0);
    assert_eq!(readonly & (bit::BLK_DISCARD | bit::BLK_WRITE_ZEROES), 0);
    let bare = offered(&Shape { limits: Limits::default(), ..shape() });
    assert_eq!(bare & (bit::BLK_DISCARD | bit::BLK_WRITE_ZEROES), 0);
    assert_ne!(offered(&Shape { in_order: true, ..shape() }) & bit::IN_ORDER, 0);
}

/// vhost-user has no message by which a front-end tells of these (0023).
#[test]
fn nothing_is_offered_that_no_front_end_can_carry() {
    let all = [shape(), Shape { readonly: true, ..shape() }, Shape { in_order: true, ..shape() }];
    let carried = offered(&all[0]) | offered(&all[1]) | offered(&all[2]);
    for absent in [VIRTIO_F_RING_RESET, VIRTIO_F_NOTIFICATION_DATA, VIRTIO_F_SR_IOV] {
        assert_eq!(carried & 1 << absent, 0, "bit {absent} is not offered");
    }
}
