//! What a hostile front-end lends.

use device::blk::{self, Live, Shape};

use super::*;

const LEN: u64 = 1 << 20;

fn personality() -> Personality {
    let shape = Shape {
        block_size: 512,
        physical_block_exp: 0,
        topology: Default::default(),
        readonly: false,
        queues: 1,
        serial: [0; 20],
        limits: blk::Limits::default(),
        in_order: true,
    };
    Personality::Disk(shape, Live::new(LEN))
}

fn front_end(seal: Seal) -> FrontEnd {
    FrontEnd::new(personality(), seal, &Bounds::without_limits(), &Closer::default())
}

fn writeback(front_end: &FrontEnd) -> bool {
    matches!(&front_end.personality, Personality::Disk(_, live) if live.writeback())
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

fn lent(fd: OwnedFd) -> Lent {
    Lent::new(fd, &Closer::default())
}

fn lend_all(front_end: &mut FrontEnd, fd: impl Fn() -> OwnedFd) -> [Result<(), FrontEndError>; 3] {
    let region = MemoryRegion { gpa: 0, size: LEN, user: 0, offset: 0 };
    let inflight = InflightArea { size: LEN, offset: 0, queues: 1, queue_size: 128, padded: false };
    [
        front_end.set_memory(&[region], vec![lent(fd())]),
        front_end.set_log(LogArea { size: LEN, offset: 0 }, lent(fd())),
        front_end.set_inflight(&inflight, lent(fd())),
    ]
}

/// Whoever can cut off a file that we have mapped ends the daemon of all tenants (E17, E21, E24).
#[test]
fn nothing_that_can_be_cut_off_is_mapped_unless_allowed() {
    let mut strict = front_end(Seal::Required);
    for refused in lend_all(&mut strict, unsealed) {
        let text = refused.expect_err("the file can be cut off").to_string();
        assert!(text.contains("sealed"), "{text}");
    }
    assert!(strict.log.is_none() && strict.inflight.is_none());
    lend_all(&mut strict, sealed).into_iter().for_each(|taken| taken.expect("it is sealed"));
    let lax = lend_all(&mut front_end(Seal::Any), unsealed);
    lax.into_iter().for_each(|taken| taken.expect("any file is allowed"));
}

#[test]
fn our_own_record_is_one_that_we_take() {
    let mut strict = front_end(Seal::Required);
    let fd = strict.make_inflight(LEN).unwrap();
    let area = InflightArea { size: LEN, offset: 0, queues: 1, queue_size: 128, padded: false };
    strict.set_inflight(&area, fd).expect("taken");
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
    assert!(!writeback(&second));
    second.may_run = true;
    second.reset();
    assert!(writeback(&second));
}

/// E19, E21: a refusal gives back what it had taken of our addresses, and so does the end.
#[test]
fn addresses_are_counted_whatever_fails() {
    let bounds = Bounds::without_limits();
    let mut front_end = FrontEnd::new(personality(), Seal::Required, &bounds, &Closer::default());
    let region = |size| MemoryRegion { gpa: 0, size, user: 0, offset: 0 };
    front_end.set_memory(&[region(LEN)], vec![lent(sealed())]).expect("taken");
    assert_eq!(front_end.claim.bytes(), LEN);
    for size in [LEN + 1, (16 << 40) + 1, u64::MAX] {
        let refused = front_end.set_memory(&[region(size)], vec![lent(sealed())]);
        refused.expect_err("the file is shorter");
        assert_eq!(front_end.memory_bytes(), LEN);
    }
    let huge = front_end.set_log(LogArea { size: 1 << 40, offset: 0 }, lent(sealed()));
    huge.expect_err("no memory has so many pages");
    front_end.set_log(LogArea { size: LEN, offset: 0 }, lent(sealed())).expect("taken");
    assert_eq!(front_end.claim.bytes(), 2 * LEN);
    front_end.set_log(LogArea { size: LEN / 2, offset: 0 }, lent(sealed())).expect("taken");
    assert_eq!(front_end.claim.bytes(), LEN + LEN / 2);
    front_end.remove_region(&region(LEN)).expect("it is there");
    assert_eq!(front_end.claim.bytes(), LEN / 2);
}

/// What another tenant takes, or is slow to close, does not refuse what needs no more regions (E19, E21).
#[test]
fn only_more_regions_than_before_can_be_refused() {
    let bounds = Bounds::with_descriptors(1000);
    let mut front_end = FrontEnd::new(personality(), Seal::Required, &bounds, &Closer::default());
    let region = |n: u64| MemoryRegion { gpa: n * LEN, size: LEN, user: n * LEN, offset: 0 };
    let table = |count: u64| (0..count).map(region).collect::<Vec<_>>();
    let fds = |count: usize| (0..count).map(|_| lent(sealed())).collect::<Vec<_>>();
    let extra = || bounds.view().descriptors.extra;
    front_end.set_memory(&table(5), fds(5)).expect("taken");
    front_end.add_region(&region(5), lent(sealed())).expect("taken");
    // Others have more than there is.
    bounds.be_lenient(true);
    let others = bounds.claim_message(4 + 2000, 0).unwrap();
    bounds.be_lenient(false);
    assert_eq!(extra(), 2 + 2000);
    front_end.set_log(LogArea { size: LEN, offset: 0 }, lent(sealed())).expect("taken");
    let area = InflightArea { size: LEN, offset: 0, queues: 1, queue_size: 128, padded: false };
    front_end.set_inflight(&area, lent(sealed())).expect("taken");
    front_end.set_memory(&table(6), fds(6)).expect("taken");
    front_end.set_memory(&table(7), fds(7)).expect_err("nothing is free");
    // A smaller table that fails keeps what the old one takes.
    let unsealed = || (0..3).map(|_| lent(unsealed())).collect::<Vec<_>>();
    front_end.set_memory(&table(3), unsealed()).expect_err("they can be cut off");
    assert_eq!((front_end.regions.len(), extra()), (6, 2 + 2000));
    front_end.remove_region(&region(0)).expect("taken");
    assert_eq!(extra(), 1 + 2000, "a region less takes less");
    front_end.add_region(&region(0), lent(sealed())).expect_err("it is another's now");
    drop(others);
    // A change that fails after it was granted more.
    front_end.add_region(&region(0), lent(self::unsealed())).expect_err("it can be cut off");
    assert_eq!((front_end.regions.len(), extra()), (5, 1));
    drop(front_end);
    assert_eq!(extra(), 0);
}

/// E7: kinds that a front-end may send instead of an eventfd, and instead of its channel.
#[test]
fn only_eventfds_signal_and_only_unix_streams_carry_requests() {
    let mut strict = front_end(Seal::Required);
    let tcp = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        lent(std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap().into())
    };
    let text = strict.check_signal(&tcp()).expect_err("a socket").to_string();
    assert!(text.contains("socket:["), "{text}");
    assert!(strict.check_signal(&lent(sealed())).is_err());
    let text = strict.set_channel(tcp()).expect_err("not a Unix socket").to_string();
    assert!(text.contains("not a Unix stream socket"), "{text}");
    assert!(strict.set_channel(lent(sealed())).is_err());
    let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    strict.set_channel(lent(end.into())).expect("taken");
    // The front-end's own end of a link, and one that holds something.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let connected = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    for end in [connected, accepted] {
        let text = strict.set_channel(lent(end.into())).expect_err("a link").to_string();
        assert!(text.contains("a socket with a name"), "{text}");
    }
    let (end, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut other, b"x").unwrap();
    let text = strict.set_channel(lent(end.into())).expect_err("something in it").to_string();
    assert!(text.contains("something lies in the channel"), "{text}");
}

/// What a front-end did since its words were accepted is no reason to refuse them to whoever takes over.
#[test]
fn what_was_accepted_before_is_not_refused_for_a_name_or_a_seal_since() {
    let mut heir = front_end(Seal::Required);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let named = || lent(std::os::unix::net::UnixStream::connect(&path).unwrap().into());
    assert!(heir.set_channel(named()).is_err());
    heir.is_replayed = true;
    heir.set_channel(named()).expect("taken");
    let region = MemoryRegion { gpa: 0, size: LEN, user: 0, offset: 0 };
    assert!(heir.set_memory(&[region], vec![lent(unsealed())]).is_err());
    assert!(!heir.has_sealed.get(), "it may be cut off, which is another matter");
    let fd = sealed();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).unwrap();
    assert!(heir.set_memory(&[region], vec![lent(fd)]).is_err());
    assert!(heir.has_sealed.get());
}
