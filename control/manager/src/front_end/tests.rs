//! What a hostile front-end lends.

use super::*;

const LEN: u64 = 1 << 20;

fn front_end(seal: Seal) -> FrontEnd {
    let shape = Shape {
        block_size: 512,
        physical_block_exp: 0,
        readonly: false,
        queues: 1,
        serial: [0; 20],
        limits: blk::Limits::default(),
        in_order: true,
    };
    FrontEnd::new(shape, Live::new(LEN), seal)
}

fn unsealed() -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, LEN).unwrap();
    fd
}

fn sealed() -> OwnedFd {
    let fd = unsealed();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}

fn lend_all(front_end: &mut FrontEnd, fd: impl Fn() -> OwnedFd) -> [Result<(), String>; 3] {
    let region = MemoryRegion { gpa: 0, size: LEN, user: 0, offset: 0 };
    let inflight = InflightArea { size: LEN, offset: 0, queues: 1, queue_size: 128, padded: false };
    [
        front_end.set_memory(&[region], vec![fd()]),
        front_end.set_log(LogArea { size: LEN, offset: 0 }, fd()),
        front_end.set_inflight(&inflight, fd()),
    ]
}

/// Whoever can cut off a file that we have mapped ends the daemon of all tenants (E17, E21, E24).
#[test]
fn nothing_that_can_be_cut_off_is_mapped_unless_allowed() {
    let mut strict = front_end(Seal::Required);
    for refused in lend_all(&mut strict, unsealed) {
        let text = refused.expect_err("the file can be cut off");
        assert!(text.contains("sealed"), "{text}");
    }
    assert!(strict.log.is_none() && strict.inflight.is_none());
    assert_eq!(lend_all(&mut strict, sealed), [const { Ok(()) }; 3]);
    assert_eq!(lend_all(&mut front_end(Seal::Any), unsealed), [const { Ok(()) }; 3]);
}

#[test]
fn our_own_record_is_one_that_we_take() {
    let mut strict = front_end(Seal::Required);
    let fd = strict.make_inflight(LEN).unwrap();
    let area = InflightArea { size: LEN, offset: 0, queues: 1, queue_size: 128, padded: false };
    assert_eq!(strict.set_inflight(&area, fd), Ok(()));
}

/// The cache of the running driver is off: what it was told is written must stay stable (P2).
#[test]
fn a_second_front_end_leaves_the_cache_mode_alone() {
    const WRITEBACK: u32 = 32;
    let wce = device::features::BLK_CONFIG_WCE;
    let mut second = front_end(Seal::Required);
    assert!(second.write_config(wce, WRITEBACK, &[0]), "alone, it is obeyed");
    second.may_run = false;
    assert!(!second.write_config(wce, WRITEBACK, &[1]));
    second.reset();
    assert!(!second.live.writeback());
    second.may_run = true;
    second.reset();
    assert!(second.live.writeback());
}
