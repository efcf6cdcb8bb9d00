//! Two processes that want one file: each test starts this program again as the other one.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::{asks_another, lock_bytes};
use crate::disk::Anchored;
use crate::file::Opened;
use crate::{Anchor, Cache, Holder, OpenError, Vet, sys};

const SIZE: u64 = 1 << 20;

fn folders() -> [tempfile::TempDir; 2] {
    // The build's folder is on a file system with a device below, as a rule.
    let build = std::env::current_exe().expect("this program");
    let build = build.parent().expect("a folder");
    [
        tempfile::tempdir_in(build).expect("a directory"),
        tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm"),
    ]
}

fn open(path: &Path, readonly: bool, cache: Cache) -> Result<Opened, OpenError> {
    let size_bytes = (!readonly).then_some(SIZE);
    Opened::open(&crate::KernelNames, path, size_bytes, readonly, cache, Vet::Raw)
        .map(|(opened, _)| opened)
}

/// Opens what nobody holds any more. Another test may just be starting a process, which has a copy of
/// every descriptor until it is another program.
fn open_freed(path: &Path, readonly: bool, cache: Cache) -> Opened {
    let begun = now();
    loop {
        match open(path, readonly, cache) {
            Ok(opened) => return opened,
            Err(OpenError::Held { .. }) if begun.elapsed() < Duration::from_secs(90) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn holder(opened: Result<Opened, OpenError>) -> Holder {
    match opened {
        Err(OpenError::Held { holder, .. }) => holder,
        other => panic!("not refused as held: {other:?}"),
    }
}

/// The refusal that names a process that lives. Another holder for a moment is a descriptor's copy in a
/// process that another test is just starting: who ended is to be tried again.
fn refused(open: impl Fn() -> Result<Opened, OpenError>) -> (u32, String) {
    let begun = now();
    loop {
        match open() {
            Err(error @ OpenError::Held { holder: Holder::Living(pid), .. }) => {
                return (pid, error.to_string());
            }
            other => assert!(matches!(holder(other), Holder::Ended(_))),
        }
        assert!(begun.elapsed() < Duration::from_secs(90), "nobody that lives");
    }
}

fn living(open: impl Fn() -> Result<Opened, OpenError>) -> u32 {
    refused(open).0
}

/// A process that holds a file in one of the ways of [`inside_another_process`].
struct Other {
    child: Child,
    _stdin: ChildStdin,
}

impl Other {
    fn new(how: &str, path: &Path) -> Other {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "file::lock::tests::inside_another_process", "--ignored"])
            .env("SIDECORE_FENCE_HOW", how)
            .env("SIDECORE_FENCE_PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program again");
        let stdin = child.stdin.take().expect("its input");
        let stdout = BufReader::new(child.stdout.take().expect("its output"));
        let held = stdout.lines().map_while(Result::ok).any(|line| line.contains("it is held"));
        assert!(held, "the other process did not get {path:?} as {how}");
        Other { child, _stdin: stdin }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "run by the other tests of this file, as the process that holds a file"]
fn inside_another_process() {
    let how = std::env::var("SIDECORE_FENCE_HOW").expect("how to hold it");
    let path = PathBuf::from(std::env::var_os("SIDECORE_FENCE_PATH").expect("what to hold"));
    let file = || fs::File::options().read(true).write(true).open(&path).expect("the file");
    let (mut disk, mut plain) = (None, None);
    let lock = |file: &fs::File, exclusive, len| {
        let begun = now();
        while let Err(error) = sys::lock_bytes(file.as_fd(), exclusive, (0, len)) {
            assert!(begun.elapsed() < Duration::from_secs(90), "{error}");
        }
    };
    match how.as_str() {
        "auto" => disk = Some(open_freed(&path, false, Cache::Auto)),
        "page" => disk = Some(open_freed(&path, false, Cache::Page)),
        "readonly" => disk = Some(open_freed(&path, true, Cache::Auto)),
        // As Cloud Hypervisor locks an image.
        "all bytes" => {
            lock(plain.insert(file()), true, 0);
        }
        // As QEMU does: shared, on single bytes.
        "some bytes" => {
            lock(plain.insert(file()), false, 1);
        }
        // As whoever may read it has one.
        how => {
            let byte = how.strip_prefix("byte ").and_then(|byte| byte.parse().ok());
            let byte = byte.unwrap_or_else(|| panic!("{how}?"));
            let file = plain.insert(fs::File::open(&path).expect("the file"));
            sys::lock_bytes(file.as_fd(), false, (byte, 1)).expect("a lock");
        }
    }
    assert!(disk.is_some() || plain.is_some());
    std::io::stdout().write_all(b"it is held\n").expect("told");
    // Until the other end goes, or a signal comes.
    let _ = std::io::stdin().lines().count();
}

#[test]
fn a_second_daemon_is_told_who_holds_the_file() {
    for (folder, (theirs, ours)) in folders().iter().flat_map(|folder| {
        let ways = [("auto", Cache::Page), ("page", Cache::Auto), ("auto", Cache::Auto)];
        ways.map(|way| (folder, way))
    }) {
        let path = folder.path().join("disk");
        let other = Other::new(theirs, &path);
        let before = fs::metadata(&path).expect("facts");
        // A size that would make it grow: nothing must happen before the lock.
        let longer = || {
            Opened::open(&crate::KernelNames, &path, Some(2 * SIZE), false, ours, Vet::Raw)
                .map(|(opened, _)| opened)
        };
        let (pid, text) = refused(longer);
        assert_eq!(pid, other.pid(), "{theirs}");
        let name = fs::read_to_string(format!("/proc/{}/comm", other.pid())).expect("a name");
        // It has this program's own name, as the daemon has from which a guest moves.
        let todo = "; for a guest that moves here from that daemon say `migratable` of the disk at both, otherwise \
                    stop that process or give another image";
        let expected = format!(
            "{} is in use: process {} ({}) holds it{todo}",
            path.display(),
            other.pid(),
            name.trim_end()
        );
        assert_eq!(text, expected);
        assert_eq!(fs::metadata(&path).expect("facts").len(), before.len());
        // Under other names, too.
        let (link, alias) = (folder.path().join("symlink"), folder.path().join("hardlink"));
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        fs::hard_link(&path, &alias).expect("a link");
        for name in [&link, &alias] {
            assert_eq!(living(|| open(name, false, ours)), other.pid());
            assert_eq!(living(|| open(name, true, ours)), other.pid());
            fs::remove_file(name).expect("removed");
        }
    }
}

#[test]
fn after_kill_9_the_file_is_free() {
    for folder in folders() {
        let path = folder.path().join("disk");
        for _ in 0..10 {
            let mut other = Other::new("auto", &path);
            assert_eq!(living(|| open(&path, false, Cache::Auto)), other.pid());
            other.child.kill().expect("killed");
            other.child.wait().expect("ended");
            let begun = now();
            let opened = loop {
                match open(&path, false, Cache::Auto) {
                    Ok(opened) => break opened,
                    refused => assert!(matches!(holder(refused), Holder::Ended(_))),
                }
                assert!(begun.elapsed() < Duration::from_secs(90), "still locked");
            };
            drop(opened);
        }
    }
}

#[test]
fn who_locks_bytes_is_found_too() {
    for (folder, how, cache) in folders().iter().flat_map(|folder| {
        [("all bytes", Cache::Auto), ("some bytes", Cache::Page)].map(|(how, c)| (folder, how, c))
    }) {
        let path = folder.path().join("disk");
        fs::write(&path, [0; 4096]).expect("a file");
        let other = Other::new(how, &path);
        assert_eq!(living(|| open(&path, false, cache)), other.pid(), "{how}");
        if how == "some bytes" {
            open_freed(&path, true, cache);
        } else {
            assert_eq!(living(|| open(&path, true, cache)), other.pid());
        }
    }
}

#[test]
fn many_may_read_or_one_may_write() {
    for folder in folders() {
        let path = folder.path().join("disk");
        fs::write(&path, [7; 4096]).expect("a file");
        let other = Other::new("readonly", &path);
        let ours = open_freed(&path, true, Cache::Auto);
        living(|| open(&path, false, Cache::Auto));
        drop(ours);
        assert_eq!(living(|| open(&path, false, Cache::Page)), other.pid());
        drop(other);
        open_freed(&path, false, Cache::Auto);
    }
}

/// For who wants to know before, and is to be in nobody's way meanwhile.
#[test]
fn who_would_refuse_a_lock_is_known_without_asking_for_one() {
    let is_free =
        |path: &Path, readonly: bool| Opened::is_free(&crate::KernelNames, path, readonly);
    for (folder, (how, for_reading)) in folders().iter().flat_map(|folder| {
        let ways = [
            ("auto", false),
            ("page", false),
            ("readonly", true),
            ("all bytes", false),
            ("some bytes", true),
        ];
        ways.map(|way| (folder, way))
    }) {
        let path = folder.path().join("disk");
        let _ = fs::remove_file(&path);
        is_free(&path, false).expect("what is not there has nobody");
        fs::write(&path, [7; 4096]).expect("a file");
        is_free(&path, false).expect("nobody has it");
        let other = Other::new(how, &path);
        for readonly in [false, true].into_iter().filter(|readonly| !(*readonly && for_reading)) {
            let refused = is_free(&path, readonly);
            let Err(OpenError::Held { holder, .. }) = refused else { panic!("{how}: {refused:?}") };
            assert_eq!(holder, Holder::Living(other.pid()), "{how}");
        }
        if for_reading {
            is_free(&path, true).expect("many may read");
        }
    }
    // Nothing is taken by it.
    let [folder, _] = folders();
    let path = folder.path().join("disk");
    fs::write(&path, [7; 4096]).expect("a file");
    is_free(&path, false).expect("nobody has it");
    open(&path, false, Cache::Auto).expect("nobody has it");
}

#[test]
fn the_same_file_twice_in_one_daemon_is_refused() {
    for folder in folders() {
        let path = folder.path().join("disk");
        let first = open_freed(&path, false, Cache::Auto);
        let (pid, text) = refused(|| open(&path, false, Cache::Auto));
        assert_eq!(pid, std::process::id());
        assert!(text.contains("this daemon serves it already"), "{text}");
        drop(first);
        open_freed(&path, false, Cache::Auto);
    }
}

/// Of two sidecores the first holds both kinds; a lock that is left of a dead one may be the second
/// alone, and then no process is named.
#[test]
fn the_second_lock_alone_is_that_of_an_ended_process() {
    let [folder, _] = folders();
    let path = folder.path().join("disk");
    fs::write(&path, [0; 4096]).expect("a file");
    let file = fs::File::options().read(true).write(true).open(&path).expect("the file");
    lock_bytes(file.as_fd(), true).expect("a lock");
    assert_eq!(holder(open(&path, false, Cache::Auto)), Holder::Ended(None));
    drop(file);
    open_freed(&path, false, Cache::Auto);
}

/// Whoever may read a file can have the first lock between two tries of its heir.
#[test]
fn a_first_lock_of_somebody_who_lives_does_not_end_the_wait_for_direct_requests() {
    let may_land = |path: &Path| match open(path, false, Cache::Auto) {
        Err(OpenError::Held { holder: Holder::Living(_), may_land, .. }) => may_land,
        other => panic!("not refused as held: {other:?}"),
    };
    for folder in folders() {
        let path = folder.path().join("disk");
        fs::write(&path, [0; 4096]).expect("a file");
        let reader = fs::File::open(&path).expect("the file");
        flock(&reader, FlockOperation::NonBlockingLockExclusive).expect("a lock");
        assert!(!may_land(&path), "nobody has the second");
        // As requests under way have it: no process that is seen to have the first.
        let requests = Other::new("all bytes", &path);
        assert!(may_land(&path));
        drop(requests);
        drop(reader);
        // Who has both is past them.
        let _other = Other::new("auto", &path);
        assert!(!may_land(&path));
        // Many may have a shared one, and those that are under way have another.
        let path = folder.path().join("shared");
        fs::write(&path, [0; 4096]).expect("a file");
        let [reader, bytes] = [(); 2].map(|()| fs::File::open(&path).expect("the file"));
        flock(&reader, FlockOperation::NonBlockingLockShared).expect("a lock");
        sys::lock_bytes(bytes.as_fd(), false, (0, 1)).expect("a lock");
        assert!(!may_land(&path));
    }
}

/// Who has given it up for a process that died is about to have it again: it stays whose it was.
#[test]
fn an_image_that_was_given_up_is_nobody_elses_meanwhile() {
    for folder in folders() {
        let path = folder.path().join("disk");
        let before = open_freed(&path, false, Cache::Auto);
        let anchor = before.anchor().expect("it is given up");
        let names = Anchored { anchor: &anchor, names: &crate::KernelNames };
        let again = || {
            let what = (path.as_path(), Some(SIZE), false, Cache::Auto, Vet::Raw);
            Opened::open_by_anchor(&names, what).map(|(opened, _)| opened)
        };
        // As requests of that process have them.
        let requests = [before.cached().try_clone_to_owned().expect("a copy")];
        drop(before);
        assert!(matches!(again(), Err(OpenError::Held { .. })), "they are under way");
        drop(requests);
        for readonly in [false, true] {
            assert_eq!(living(|| open(&path, readonly, Cache::Page)), std::process::id());
            let free = Opened::is_free(&crate::KernelNames, &path, readonly);
            assert!(matches!(free, Err(OpenError::Held { .. })), "{free:?}");
        }
        let own = fs::metadata(&path).expect("facts").ino();
        fs::remove_file(&path).expect("removed");
        fs::write(&path, [9; 4096]).expect("another file");
        let begun = now();
        let opened = loop {
            match again() {
                Ok(opened) => break opened,
                refused => assert!(matches!(holder(refused), Holder::Ended(_))),
            }
            assert!(begun.elapsed() < Duration::from_secs(90), "still locked");
        };
        assert_eq!(opened.file_id().expect("an open file").1, own, "what has its name now");
        drop((opened, anchor));
        open_freed(&path, false, Cache::Auto);
    }
}

/// Their locks refuse no other reader, so one byte is theirs.
#[test]
fn what_is_only_read_is_opened_again_when_requests_by_the_old_descriptions_are_over() {
    for (folder, cache) in
        folders().iter().flat_map(|folder| [(folder, Cache::Auto), (folder, Cache::Page)])
    {
        let path = folder.path().join("disk");
        fs::write(&path, [7; 4096]).expect("a file");
        let before = open_freed(&path, true, cache);
        let another = open_freed(&path, true, cache);
        let anchor = before.anchor().expect("it is given up");
        let names = Anchored { anchor: &anchor, names: &crate::KernelNames };
        let again = || {
            let what = (path.as_path(), None, true, cache, Vet::Raw);
            Opened::open_by_anchor(&names, what).map(|(opened, _)| opened)
        };
        let [cached, direct] = [Some(before.cached()), before.direct()]
            .map(|fd| fd.map(|fd| fd.try_clone_to_owned().expect("a copy")));
        drop(before);
        for requests in [cached, direct].into_iter().flatten() {
            assert_eq!(holder(again()), Holder::Ended(None), "they are under way");
            assert!(matches!(open(&path, false, cache), Err(OpenError::Held { .. })));
            open_freed(&path, true, cache);
            drop(requests);
        }
        let begun = now();
        while let Err(refused) = again() {
            assert!(matches!(refused, OpenError::Held { .. }));
            assert!(begun.elapsed() < Duration::from_secs(90), "still marked");
        }
        drop(another);
    }
}

/// Opens by an anchor, as who has given the image up.
fn again(anchor: &Anchor, path: &Path, readonly: bool, cache: Cache) -> Result<Opened, OpenError> {
    let names = Anchored { anchor, names: &crate::KernelNames };
    let what = (path, (!readonly).then_some(SIZE), readonly, cache, Vet::Raw);
    Opened::open_by_anchor(&names, what).map(|(opened, _)| opened)
}

/// Whoever may read an image can sleep for its first lock, and would have it when nobody has it for a moment.
#[test]
fn who_sleeps_for_an_image_that_is_given_up_does_not_get_it_from_under_its_guest() {
    let folders = folders();
    for (folder, readonly, cache) in folders.iter().flat_map(|folder| {
        [(false, Cache::Auto), (false, Cache::Page), (true, Cache::Auto), (true, Cache::Page)]
            .map(|(readonly, cache)| (folder, readonly, cache))
    }) {
        let path = folder.path().join("disk");
        fs::write(&path, [7; 4096]).expect("a file");
        let before = open_freed(&path, readonly, cache);
        let asleep = fs::File::open(&path).expect("the file");
        let has_it = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&has_it);
        let sleeper = std::thread::spawn(move || {
            flock(&asleep, FlockOperation::LockExclusive).expect("a lock");
            told.store(true, Ordering::SeqCst);
        });
        let inode = format!(":{} ", fs::metadata(&path).expect("facts").ino());
        let sleeps = || {
            let table = fs::read_to_string("/proc/locks").expect("the table");
            table.lines().any(|line| line.contains("->") && line.contains(&inode))
        };
        let sleep = || {
            let begun = now();
            while !sleeps() {
                assert!(!has_it.load(Ordering::SeqCst), "readonly: {readonly}, {cache:?}");
                assert!(begun.elapsed() < Duration::from_secs(90), "it does not sleep");
            }
        };
        sleep();
        let anchor = before.anchor().expect("it is given up");
        assert!(anchor.unkept().is_none(), "{:?}", anchor.unkept());
        let copies = [before.direct(), Some(before.cached())]
            .map(|fd| fd.map(|fd| fd.try_clone_to_owned().expect("a copy")));
        drop(before);
        // Those of the last description are waited for, though the first lock is shared.
        for requests in copies.into_iter().flatten() {
            assert!(matches!(again(&anchor, &path, readonly, cache), Err(OpenError::Held { .. })));
            drop(requests);
        }
        let begun = now();
        let opened = loop {
            match again(&anchor, &path, readonly, cache) {
                Ok(opened) => break opened,
                refused => assert!(matches!(refused, Err(OpenError::Held { .. })), "{refused:?}"),
            }
            assert!(begun.elapsed() < Duration::from_secs(90), "still locked");
        };
        drop(anchor);
        // It is woken whenever somebody lets it go.
        sleep();
        if !readonly {
            living(|| open(&path, true, Cache::Page));
        }
        drop(opened);
        sleeper.join().expect("it has it then");
        fs::remove_file(&path).expect("removed");
    }
}

/// Many may have a shared lock, and what is under way has another.
#[test]
fn a_shared_lock_of_somebody_who_lives_does_not_end_the_wait_for_an_image_that_was_given_up() {
    for (folder, of_direct) in folders().iter().flat_map(|it| [(it, false), (it, true)]) {
        let path = folder.path().join("disk");
        let before = open_freed(&path, false, Cache::Auto);
        let anchor = before.anchor().expect("it is given up");
        let requests = before.direct().filter(|_| of_direct).unwrap_or(before.cached());
        let requests = requests.try_clone_to_owned().expect("a copy");
        drop(before);
        let reader = fs::File::open(&path).expect("the file");
        flock(&reader, FlockOperation::NonBlockingLockShared).expect("a lock");
        let refused = || match again(&anchor, &path, false, Cache::Auto) {
            Err(OpenError::Held { holder, may_land, .. }) => (holder, may_land),
            other => panic!("not refused as held: {other:?}"),
        };
        let settled = (Holder::Living(std::process::id()), false);
        assert_ne!(refused(), settled, "requests of a process that has ended are under way");
        drop(requests);
        let begun = now();
        while refused() != settled {
            assert!(begun.elapsed() < Duration::from_secs(90), "they have landed");
        }
        fs::remove_file(&path).expect("removed");
    }
}

/// Nor does somebody who has it some other way hide what is under way, and who has the mark is named.
#[test]
fn reads_under_way_are_told_of_whoever_has_other_locks() {
    let [folder, _] = folders();
    let path = folder.path().join("disk");
    fs::write(&path, [7; 4096]).expect("a file");
    let before = open_freed(&path, true, Cache::Auto);
    let anchor = before.anchor().expect("it is given up");
    let requests = before.direct().unwrap_or(before.cached()).try_clone_to_owned();
    drop(before);
    let kept = anchor.file().expect("a descriptor");
    flock(kept, FlockOperation::Unlock).expect("unlocked");
    let stranger = fs::File::open(&path).expect("the file");
    let begun = now();
    while flock(&stranger, FlockOperation::NonBlockingLockExclusive).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(90), "still locked");
    }
    let refused = |anchor: &Anchor| match again(anchor, &path, true, Cache::Auto) {
        Err(OpenError::Held { holder, may_land, .. }) => (holder, may_land),
        other => panic!("not refused as held: {other:?}"),
    };
    assert_eq!(refused(&anchor), (Holder::Ended(None), true));
    drop((stranger, requests));
    let byte = i64::try_from(anchor.mark().expect("a mark")).expect("a byte");
    let has_landed = || again(&anchor, &path, true, Cache::Auto).is_ok();
    let begun = now();
    while !has_landed() {
        assert!(begun.elapsed() < Duration::from_secs(90), "still marked");
    }
    let stranger = Other::new(&format!("byte {byte}"), &path);
    assert_eq!(refused(&anchor), (Holder::Living(stranger.pid()), true));
}

/// The one who took a lock has ended; its descriptor lives on in a process of our name, as after an
/// upgrade of a daemon.
#[test]
fn a_lock_whose_taker_is_gone_is_that_of_who_has_its_descriptor() {
    let [folder, _] = folders();
    let path = folder.path().join("disk");
    fs::write(&path, [0; 4096]).expect("a file");
    let file = fs::File::options().read(true).write(true).open(&path).expect("the file");
    let taken = Command::new("flock")
        .args(["--exclusive", "--nonblock", "0"])
        .stdin(file.try_clone().expect("a copy"))
        .status()
        .expect("flock (util-linux) runs");
    assert!(taken.success());
    assert_eq!(holder(open(&path, false, Cache::Auto)), Holder::Living(std::process::id()));
    flock(&file, FlockOperation::Unlock).expect("unlocked");
    open_freed(&path, false, Cache::Auto);
}

#[test]
fn a_file_put_in_the_place_of_a_locked_one_is_another_file() {
    let [folder, _] = folders();
    let path = folder.path().join("disk");
    let _first = open_freed(&path, false, Cache::Auto);
    let new = folder.path().join("new");
    fs::write(&new, [9; 4096]).expect("a file");
    fs::rename(&new, &path).expect("put in its place");
    open_freed(&path, false, Cache::Auto);
}

/// A loop device that ends with the test.
struct Loop(String);

impl Loop {
    fn new(image: &Path) -> Loop {
        fs::File::create(image).and_then(|file| file.set_len(8 << 20)).expect("an image");
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let output = output.expect("losetup runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
#[ignore = "needs root and a loop device: cargo test -p backend --lib -- --ignored block_device"]
fn a_block_device_is_held_under_all_its_names() {
    let [folder, _] = folders();
    let device = Loop::new(&folder.path().join("image"));
    let path = Path::new(&device.0);
    let alias = folder.path().join("alias");
    let number = rustix::fs::stat(path).expect("facts").st_rdev;
    let (kind, mode) = (rustix::fs::FileType::BlockDevice, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &alias, kind, mode, number).expect("another name");
    for (theirs, ours) in [("auto", Cache::Page), ("page", Cache::Auto), ("page", Cache::Page)] {
        let mut other = Other::new(theirs, path);
        for name in [path, &alias] {
            let pid = living(|| open(name, false, ours));
            assert_eq!(pid, other.pid(), "{name:?} {theirs} {ours:?}");
        }
        other.child.kill().expect("killed");
        let begun = now();
        while let Err(error) = open(&alias, false, ours) {
            let ended = matches!(error, OpenError::Held { holder: Holder::Ended(_), .. });
            assert!(ended && begun.elapsed() < Duration::from_secs(90), "{error}");
        }
    }
    let made = Command::new("mkfs.ext4").args(["-q", &device.0]).status().expect("mkfs.ext4 runs");
    assert!(made.success());
    let mount = folder.path().join("mount");
    fs::create_dir(&mount).expect("a directory");
    let mounted = Command::new("mount").arg(path).arg(&mount).status().expect("mount runs");
    assert!(mounted.success());
    for cache in [Cache::Auto, Cache::Page] {
        let refused = open(path, false, cache).map(|_| ());
        assert!(matches!(refused, Err(OpenError::UsedByHost(_))), "{refused:?}");
    }
    let unmounted = Command::new("umount").arg(&mount).status().expect("umount runs");
    assert!(unmounted.success());
    open_freed(path, false, Cache::Auto);
}

#[test]
#[ignore = "needs root and a loop device: cargo test -p backend --lib -- --ignored block_device"]
fn a_block_device_that_goes_with_its_last_user_stays_while_it_is_given_up() {
    let [folder, _] = folders();
    let image = folder.path().join("image");
    let device = Loop::new(&image);
    let path = Path::new(&device.0);
    let open = || Opened::open(&crate::KernelNames, path, None, false, Cache::Auto, Vet::Raw);
    let (before, _) = open().expect("nobody has it");
    // Busy, so it is to go when nobody has it.
    let detached = Command::new("losetup").args(["--detach", &device.0]).status();
    assert!(detached.expect("losetup runs").success());
    let anchor = before.anchor().expect("it is given up");
    let requests = before.cached().try_clone_to_owned().expect("a copy");
    drop(before);
    let again = || again(&anchor, path, false, Cache::Auto);
    assert!(matches!(again(), Err(OpenError::Held { .. })), "they are under way");
    drop(requests);
    assert!(matches!(open(), Err(OpenError::Held { .. })), "it is whose it was");
    let begun = now();
    let opened = loop {
        match again() {
            Ok(opened) => break opened,
            refused => assert!(matches!(refused, Err(OpenError::Held { .. })), "{refused:?}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(90), "still locked");
    };
    drop(anchor);
    assert_eq!(opened.end().expect("a size"), 8 << 20, "it is gone");
}

#[test]
fn file_systems_with_one_kind_of_lock() {
    for magic in [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x517b, 0x6573_5546] {
        assert!(asks_another(magic), "{magic:#x}");
    }
    // ext4, xfs, btrfs, tmpfs.
    for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994] {
        assert!(!asks_another(magic), "{magic:#x}");
    }
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test that is stuck must end")]
    Instant::now()
}
