//! Disks that fail: full, shrunk, lying; guests whose memory is gone.

use std::process::Command;
use std::sync::Arc;

use crate::harness::{Asked, Bed, file, in_memory, on_disk};
use backend::{Cache, Disk, FaultSnapshot, Progress, Started};
use guest_memory::{GuestMap, Health, Loss, Mapping, Region, Seal};
use request::{Op, Status, Tag};

#[test]
fn a_file_that_was_cut_off_is_an_error_and_no_zeroes() {
    for dir in [on_disk(), in_memory()] {
        for cache in [Cache::Auto, Cache::Page] {
            let path = dir.path().join("disk");
            let mut bed = Bed::new(&file(&path, Some(1 << 20), cache));
            assert_eq!(bed.write(0, &[1; 8192]), Status::Ok);
            std::fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(4096))
                .expect("cut off");
            assert_eq!(bed.read(0, 4096), Ok(vec![1; 4096]));
            assert_eq!(bed.read(4096, 4096), Err(Status::IoError));
            // Half of it is there: the rest is asked for, and then it is an error.
            assert_eq!(bed.read(0, 8192), Err(Status::IoError));
            let faults = bed.disk.faults();
            assert!(faults.short >= 2 && faults.eio == 0, "{faults:?}");
        }
    }
}

#[test]
fn memory_that_the_guest_gave_away_is_an_error_and_no_signal() {
    for dir in [on_disk(), in_memory()] {
        for cache in [Cache::Auto, Cache::Page] {
            let mut bed = Bed::new(&file(&dir.path().join("disk"), Some(1 << 20), cache));
            let memfd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC)
                .expect("a memfd");
            rustix::fs::ftruncate(&memfd, 1 << 20).expect("a size");
            let mapping =
                Mapping::shared(&memfd, 0, 1 << 20, Seal::Any, &Health::default()).expect("mapped");
            bed.memory = GuestMap::new(vec![Region { gpa: 0, user: 0, mapping }]).expect("a map");
            rustix::fs::ftruncate(&memfd, 4096).expect("cut off");
            let gone = bed.span(64 << 10, 4096);
            for op in [Op::Read, Op::Write { sync: false }] {
                assert_eq!(bed.run(op, 0, 4096, &[gone]), Status::IoError, "{op:?}");
            }
            assert_eq!(
                bed.disk.faults(),
                FaultSnapshot {
                    other: 2,
                    other_code: rustix::io::Errno::FAULT.raw_os_error(),
                    ..FaultSnapshot::default()
                }
            );
            let there = bed.span(0, 4096);
            assert_eq!(bed.run(Op::Read, 0, 4096, &[there]), Status::Ok);
        }
    }
}

/// Each step of a request is a command of its own; none is begun for a guest whose memory was lost,
/// and its turn goes to the next in the list.
#[test]
fn a_request_of_a_lost_guest_goes_no_further_and_others_of_its_disk_go_on() {
    for dir in [on_disk(), in_memory()] {
        let disk = Disk::open(&file(&dir.path().join("disk"), Some(1 << 20), Cache::Page));
        let mut bed = Bed::on(disk.expect("a disk"));
        let mut other = Bed::on(Arc::clone(&bed.disk));
        let span = bed.span(0, 4096);
        let asked = Asked::new(Op::Write { sync: true }, 0, 4096, &[span]);
        let tag = Tag { queue: 7, slot: 0, generation: 99 };
        let lost = Started::Done(Status::IoError);
        if bed.backend.submit(&mut bed.io, &asked.request(), &bed.memory, tag) == Started::Pending {
            let (tag, result) = std::iter::repeat_with(|| {
                bed.io.enter().expect("enter");
                bed.io.reap_one()
            })
            .find_map(|reaped| reaped)
            .expect("a completion");
            let before = bed.disk.faults().syncs;
            bed.memory.health().lose(Loss::Memory);
            let (request, mut progress) = (asked.request(), Progress::default());
            let Bed { backend, io, memory, .. } = &mut bed;
            let outcome = backend.completed(io, &request, memory, tag, result, &mut progress);
            let lost = (lost.into(), before);
            assert_eq!((outcome, bed.disk.faults().syncs), lost, "it is not synced");
        }
        bed.memory.health().lose(Loss::Memory);
        for op in [Op::Write { sync: false }, Op::Read, Op::Flush] {
            let asked = Asked::new(op, 8192, if op == Op::Flush { 0 } else { 4096 }, &[span]);
            let request = asked.request();
            assert_eq!(bed.backend.submit(&mut bed.io, &request, &bed.memory, tag), lost, "{op:?}");
        }
        let span = other.span(0, 4096);
        assert_eq!(other.run(Op::Write { sync: true }, 0, 4096, &[span]), Status::Ok);
        assert_eq!(other.run(Op::Flush, 0, 0, &[]), Status::Ok);
    }
}

/// Runs the ignored test `name` of this program as root of new user and mount namespaces, with a
/// small tmpfs at `dir`.
fn in_small_tmpfs(name: &str, dir: &std::path::Path) {
    let program = std::env::current_exe().expect("this program");
    let script = r#"mount -t tmpfs -o size=256k none "$1" && exec "$2" --exact "$3" --ignored"#;
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(dir)
        .arg(program)
        .arg(name)
        .env("SIDECORE_SMALL_TMPFS", dir)
        .output()
        .expect("unshare (util-linux) runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{error}");
}

#[test]
fn a_full_file_system_is_an_error_that_is_counted() {
    let dir = on_disk();
    in_small_tmpfs("faults::inside_a_small_tmpfs", dir.path());
}

#[test]
#[ignore = "run by a_full_file_system_is_an_error_that_is_counted, in its small file system"]
fn inside_a_small_tmpfs() {
    let dir = std::env::var("SIDECORE_SMALL_TMPFS").expect("where the small tmpfs is");
    let path = std::path::Path::new(&dir).join("disk");
    let mut bed = Bed::new(&file(&path, Some(1 << 20), Cache::Auto));
    assert_eq!(bed.write(0, &[1; 128 << 10]), Status::Ok);
    // Less than asked, then nothing.
    assert_eq!(bed.write(128 << 10, &[2; 512 << 10]), Status::IoError);
    let faults = bed.disk.faults();
    assert_eq!((faults.enospc, faults.eio, faults.other), (1, 0, 0), "{faults:?}");
    // What was there is there, and it is not a lost flush.
    assert_eq!(bed.read(0, 4096), Ok(vec![1; 4096]));
    assert!(!bed.disk.sync_failed());
    assert_eq!(bed.run(Op::Flush, 0, 0, &[]), Status::Ok);
    // A discard makes room.
    assert_eq!(bed.run(Op::Discard, 0, 512 << 10, &[]), Status::Ok);
    assert_eq!(bed.write(768 << 10, &[3; 128 << 10]), Status::Ok);
}

/// A block device whose medium is full: what the page cache took cannot be written back.
#[test]
#[ignore = "needs root and a loop device: cargo test -p backend --test outside -- --ignored lost"]
fn a_lost_flush_is_never_followed_by_a_good_one() {
    let dir = on_disk();
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().expect("runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {error}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let mount = dir.path().to_str().expect("a name");
    run("mount", &["-t", "tmpfs", "-o", "size=1m", "none", mount]);
    let image = dir.path().join("image");
    std::fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("a sparse file");
    let device = run("losetup", &["--find", "--show", image.to_str().expect("a name")]);
    let result = std::panic::catch_unwind(|| {
        let mut bed = Bed::new(&file(std::path::Path::new(&device), None, Cache::Page));
        assert_eq!(bed.disk.size_bytes(), 8 << 20);
        // Four megabytes into one: the writes end well, the flush cannot.
        assert_eq!(bed.write(0, &[1; 4 << 20]), Status::Ok);
        assert_eq!(bed.run(Op::Flush, 0, 0, &[]), Status::IoError);
        assert!(bed.disk.sync_failed());
        for _ in 0..10 {
            assert_eq!(bed.run(Op::Flush, 0, 0, &[]), Status::IoError);
        }
        let span = bed.span(0, 512);
        assert_eq!(bed.run(Op::Write { sync: true }, 0, 512, &[span]), Status::IoError);
        assert!(bed.disk.faults().eio > 0, "{:?}", bed.disk.faults());
    });
    run("losetup", &["--detach", &device]);
    // The device lets its file go a little later.
    run("umount", &["--lazy", mount]);
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}
