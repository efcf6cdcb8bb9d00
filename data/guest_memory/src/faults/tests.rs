//! Memory taken away under every kind of access, and faults that are our own.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::*;
use crate::{Area, DirtyLog, GuestMap, MapError, Mapping, Region, Seal, Span};

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;

fn memfd(len: u64, flags: MemfdFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("lent", flags | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    fd
}

/// A file that its owner can cut off, mapped whole, and whose it is.
struct Lent {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    health: Health,
}

fn lent(len: u64) -> Lent {
    recover_from_sigbus().unwrap();
    let (fd, health) = (memfd(len, MemfdFlags::empty()), Health::default());
    let mapping = Mapping::shared(&fd, 0, len, Seal::Any, &health).unwrap();
    Lent { fd, mapping, health }
}

impl Lent {
    fn cut_off(&self, len: u64) {
        rustix::fs::ftruncate(&self.fd, len).unwrap();
    }
}

fn map_of(mapping: &Arc<Mapping>) -> GuestMap {
    GuestMap::new(vec![Region { gpa: 0, user: 0, mapping: Arc::clone(mapping) }]).unwrap()
}

/// Lines of this process's list of mappings.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn every_access_to_an_area_that_was_cut_off_goes_on_with_zeroes() {
    type Access = fn(&Area);
    let accesses: [(&str, Access); 9] = [
        ("load", |area| assert_eq!(area.load_u64(0), 0)),
        ("pair", |area| assert_eq!(area.load_u64_pair(16), (0, 0))),
        ("acquire", |area| assert_eq!(area.load_acquire_u16(2), 0)),
        ("store", |area| area.store_u32(8, 7)),
        ("release", |area| area.store_release_u16(2, 7)),
        ("read", |area| {
            let mut bytes = [1; 100];
            assert!(area.read(3, &mut bytes));
            assert_eq!(bytes, [0; 100]);
        }),
        ("write", |area| assert!(area.write(5, &[1; 9000]))),
        ("zero", |area| assert!(area.zero(5, 9000))),
        ("prefetch", |area| {
            area.prefetch(0);
            assert_eq!(area.load_u8(0), 0);
        }),
    ];
    for (name, access) in accesses {
        let lent = lent(4 * PAGE);
        let area = Area::whole(Arc::clone(&lent.mapping));
        area.store_u64(0, u64::MAX);
        assert!(!lent.health.is_lost(), "{name}");
        lent.cut_off(0);
        access(&area);
        assert_eq!(lent.health.loss(), Some(Loss::Memory), "{name}");
    }
}

#[test]
fn a_copy_to_and_from_a_guest_that_took_its_memory_away_goes_on() {
    let lent = lent(8 * PAGE);
    let map = map_of(&lent.mapping);
    assert!(!map.health().is_lost());
    let span = map.span(0, 8 * PAGE as u32).unwrap();
    let disk = Area::anonymous(8 * PAGE).unwrap();
    assert!(disk.write(0, &[9; 8 * PAGE as usize]));
    // The second half is gone: what is left of the file is still the guest's.
    lent.cut_off(4 * PAGE);
    assert!(disk.copy_to_guest(0, &map, span));
    assert!(map.health().is_lost());
    let mut byte = [0];
    assert!(map.read(span, 7 * PAGE as u32, &mut byte) && byte == [9]);
    assert!(map.write(span, 0, &[1; 3]) && map.zero(span));
    assert!(disk.copy_from_guest(0, &map, span));
}

#[test]
fn a_mark_in_a_log_that_was_cut_off_costs_only_the_mark() {
    recover_from_sigbus().unwrap();
    let (fd, health) = (memfd(PAGE, MemfdFlags::empty()), Health::default());
    let log = DirtyLog::map(&fd, 0, PAGE, Seal::Any, &health).unwrap();
    let memory = Mapping::shared(memfd(PAGE, MemfdFlags::empty()), 0, PAGE, Seal::Any, &health);
    let map = map_of(&memory.unwrap()).with_log(Some(log)).unwrap();
    rustix::fs::ftruncate(&fd, 0).unwrap();
    let span: Span = map.span(0, 8).unwrap();
    assert!(map.write(span, 0, &[1; 8]));
    // The log and the memory are of one connection, so the map knows.
    assert!(map.health().is_lost());
    let mut back = [0; 8];
    assert!(map.read(span, 0, &mut back));
    assert_eq!(back, [1; 8], "the guest's memory is not disturbed");
}

#[test]
fn a_hole_in_a_sealed_file_of_huge_pages_without_a_page_left_is_a_loss() {
    recover_from_sigbus().unwrap();
    let fd = memfd(HUGE, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let health = Health::default();
    // The mapping reserves nothing, so that this is the same with and without huge pages free: where
    // there is one, it is taken by another file first.
    let mapping = Mapping::shared(&fd, 8, PAGE, Seal::Required, &health).unwrap();
    let _hold = take_all_huge_pages();
    rustix::fs::fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, HUGE)
        .unwrap();
    let area = Area::whole(mapping);
    assert_eq!(area.load_u64(0), 0);
    assert!(health.is_lost(), "there was no page, but also no fault");
    area.store_u64(0, 5);
    assert_eq!(area.load_u64(0), 5);
}

/// A file that holds every huge page this machine still has.
fn take_all_huge_pages() -> OwnedFd {
    let hold = memfd(0, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
    let mut len = 0;
    while rustix::fs::fallocate(&hold, FallocateFlags::empty(), len, HUGE).is_ok() {
        len += HUGE;
    }
    hold
}

#[test]
fn only_the_page_that_was_touched_is_replaced() {
    // Cut off and made larger again: what was not replaced shows the file's new pages.
    let lent = lent(4 * PAGE);
    let area = Area::whole(Arc::clone(&lent.mapping));
    lent.cut_off(PAGE);
    assert_eq!(area.load_u64(2 * PAGE as usize), 0);
    assert!(lent.health.is_lost());
    lent.cut_off(4 * PAGE);
    let other = Mapping::shared(&lent.fd, 0, 4 * PAGE, Seal::Any, &Health::default()).unwrap();
    let other = Area::whole(other);
    for page in 0..4 {
        other.store_u64(page * PAGE as usize, 9);
        let seen = area.load_u64(page * PAGE as usize);
        assert_eq!(seen, if page == 2 { 0 } else { 9 }, "page {page}");
    }
}

#[test]
fn the_scratch_file_takes_the_place_where_no_private_memory_is_granted() {
    let lent = lent(4 * PAGE);
    let start = lent.mapping.base().as_ptr() as usize;
    assert!(put_scratch(start, 4 * PAGE as usize));
    let area = Area::whole(Arc::clone(&lent.mapping));
    area.store_u64(0, 3);
    lent.cut_off(0);
    assert_eq!(area.load_u64(0), 3);
    assert!(!lent.health.is_lost());
}

#[test]
fn a_neighbour_of_the_same_process_is_not_disturbed() {
    let (bad, good) = (lent(4 * PAGE), lent(4 * PAGE));
    let area = Area::whole(Arc::clone(&good.mapping));
    area.store_u64(8, 77);
    bad.cut_off(0);
    Area::whole(Arc::clone(&bad.mapping)).store_u64(0, 1);
    assert!(bad.health.is_lost() && !good.health.is_lost());
    assert_eq!(area.load_u64(8), 77);
}

#[test]
fn ten_thousand_pages_taken_away_leave_few_mappings() {
    let lent = lent(20_000 * PAGE);
    let area = Area::whole(Arc::clone(&lent.mapping));
    let before = mappings();
    lent.cut_off(0);
    // Every second page, so that neighbours do not become one mapping.
    for page in (0..20_000).step_by(2) {
        area.store_u8(page * PAGE as usize, 1);
    }
    // Other tests of this process map and unmap meanwhile: some tens. Of 64 faults each replace 1,
    // 2, 4, ... pages: 8 sizes until 20,000 pages are replaced.
    let after = mappings();
    assert!(after < before + 2 * 64 * 9, "{before} mappings became {after}");
    assert!(lent.health.is_lost());
}

#[test]
fn pieces_grow_until_they_are_larger_than_any_mapping_and_not_beyond_a_word() {
    assert_eq!(piece_bytes(FAULTS_PER_SIZE - 1, 4096), 4096);
    assert_eq!(piece_bytes(FAULTS_PER_SIZE, 4096), 8192);
    assert_eq!(piece_bytes(0, 1 << 30), 1 << 30);
    assert!(piece_bytes(32 * FAULTS_PER_SIZE, 4096) >= 16 << 40);
    assert_eq!(piece_bytes(u32::MAX, 4096), 1 << 62);
}

#[test]
fn places_in_the_list_are_used_again_and_an_old_one_holds_nothing() {
    // A page that the kernel gives to nobody, so that no other test has it.
    let found = || nodes().any(|node| node.holds(4096 + 5));
    let first = Watched::new(4096, 4096, 4096, &Health::default());
    assert!(found());
    drop(first);
    assert!(!found());
    // Mapped and unmapped from several threads: the list grows to what is there at one time.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                for _ in 0..500 {
                    let lent = lent(2 * PAGE);
                    lent.cut_off(PAGE);
                    let area = Area::whole(Arc::clone(&lent.mapping));
                    area.store_u8(0, 1);
                    assert!(!lent.health.is_lost());
                    area.store_u8(PAGE as usize, 1);
                    assert!(lent.health.is_lost());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(nodes().count() < 64, "{}", nodes().count());
}

#[test]
fn a_fault_that_is_not_a_front_ends_still_ends_the_process() {
    const WHICH: &str = "GUEST_MEMORY_TEST_FAULT";
    let name = "faults::tests::a_fault_that_is_not_a_front_ends_still_ends_the_process";
    if let Ok(which) = std::env::var(WHICH) {
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(rustix::process::Resource::Core, none).unwrap();
        let bystander = lent(PAGE);
        match which.as_str() {
            "ours" => fault_of_our_own(),
            _ => {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::BUS).unwrap();
            }
        }
        // Whichever thread takes the signal ends the process; this one waits for that in vain when it
        // does not.
        let minute = rustix::fs::Timespec { tv_sec: 60, tv_nsec: 0 };
        let _ = rustix::event::poll(&mut [], Some(&minute));
        drop(bystander);
        std::process::exit(0);
    }
    for which in ["ours", "sent"] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", name]).env(WHICH, which).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{which}: {output:?}");
    }
}

/// Touches a file mapping that is in no list, beyond the file's end.
fn fault_of_our_own() {
    let fd = memfd(PAGE, MemfdFlags::empty());
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh range chosen by the kernel.
    let start = unsafe {
        rustix::mm::mmap(ptr::null_mut(), 4096, protection, MapFlags::SHARED, &fd, 0).unwrap()
    };
    rustix::fs::ftruncate(&fd, 0).unwrap();
    // SAFETY: mapped, readable; the fault is what is wanted.
    let _ = unsafe { start.cast::<u8>().read_volatile() };
}

#[test]
fn a_file_whose_pages_others_must_bring_is_refused() {
    let exe = std::fs::File::open("/proc/self/exe").unwrap();
    let (ours, theirs) = rustix::pipe::pipe().unwrap();
    // That has no path, as the memory of VDUSE has none.
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    for fd in [OwnedFd::from(exe), ours, theirs, event] {
        let refused = Mapping::shared(&fd, 0, PAGE, Seal::Any, &Health::default());
        assert!(matches!(refused, Err(MapError::NotMemory)), "{refused:?}");
    }
}
