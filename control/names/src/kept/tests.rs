//! What is kept is read whole or not at all, whatever was left behind and whoever reads meanwhile.
//!
//! Not here: what other users could do (`crate::tests`).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn kept(folder: &tempfile::TempDir, bytes_max: u64) -> Kept {
    Kept::in_folder(folder.path().join("state"), bytes_max)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn sorted(kept: &Kept) -> Vec<String> {
    let mut names: Vec<String> =
        kept.names().expect("its names").into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_folder_that_is_not_there_holds_nothing_and_is_made_by_what_is_kept() {
    let folder = folder();
    let kept = kept(&folder, 100);
    assert_eq!((kept.names().expect("none"), kept.read("a").expect("none")), (vec![], None));
    assert!(kept.is_closed(), "nothing can be kept in what is not there");
    kept.remove("a").expect("nothing to remove");
    assert!(!folder.path().join("state").exists(), "whoever only looks makes nothing");
    kept.replace("a", "text").expect("kept");
    assert!(!kept.is_closed());
    assert_eq!(sorted(&kept), ["a"]);
    // Nobody else reads it.
    assert_eq!(fs::metadata(kept.path("a")).expect("facts").mode() & 0o777, 0o600);
    let above = fs::metadata(folder.path().join("state")).expect("facts").mode();
    assert_eq!(above & 0o022, 0, "others may put files there: {above:o}");
}

/// A daemon that was killed within a write leaves a file of another name; the next one is not kept from writing.
#[test]
fn what_an_earlier_process_left_half_written_is_neither_read_nor_in_the_way() {
    let folder = folder();
    let kept = kept(&folder, 100);
    kept.replace("a", "first").expect("kept");
    fs::write(folder.path().join("state/.a.new"), "half of it").expect("written");
    assert_eq!(kept.read("a").expect("read").as_deref(), Some("first"));
    kept.replace_for_good("a", "second").expect("kept");
    assert_eq!(kept.read("a").expect("read").as_deref(), Some("second"));
    assert_eq!(sorted(&kept), ["a"], "what was left has gone");
}

/// What is kept is as it was where the new one cannot be.
#[test]
fn what_cannot_be_replaced_is_as_it_was_and_leaves_nothing_behind() {
    let folder = folder();
    let kept = kept(&folder, 100);
    kept.replace("a", "first").expect("kept");
    // A folder where the next text is written, and one where it is to be.
    fs::create_dir(folder.path().join("state/.a.new")).expect("a folder");
    for for_good in [true, false] {
        let put = if for_good { kept.replace_for_good("a", "x") } else { kept.replace("a", "x") };
        put.expect_err("a folder is in its place");
        assert_eq!(kept.read("a").expect("read").as_deref(), Some("first"));
    }
    fs::remove_dir(folder.path().join("state/.a.new")).expect("removed");
    fs::create_dir(folder.path().join("state/b")).expect("a folder");
    kept.replace("b", "x").expect_err("a folder is in its place");
    assert!(!folder.path().join("state/.b.new").exists(), "it is left behind");
    kept.remove("b").expect_err("a folder is no file");
    assert!(folder.path().join("state/b").is_dir());
    for name in ["", ".", "..", "x/y", "../x"] {
        kept.replace(name, "x").expect_err(name);
        kept.overwrite(name, "x").expect_err(name);
        kept.lock(name, "x").expect_err(name);
    }
    assert_eq!(sorted(&kept), ["a", "b"]);
    assert!(!folder.path().join("x").exists());
}

/// Readers of other processes have no lock.
#[test]
fn whoever_reads_while_it_is_replaced_has_the_one_or_the_other_whole() {
    const LEN: usize = 64 << 10;
    let folder = folder();
    let kept = kept(&folder, LEN as u64);
    let text = |letter: &str| letter.repeat(LEN);
    kept.replace("a", &text("x")).expect("kept");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = [false; 2];
            while !(is_over.load(Ordering::Relaxed) && seen == [true; 2]) {
                let read = kept.read("a").expect("it is always there").expect("it is always there");
                assert_eq!(read.len(), LEN, "a part of it");
                let first = read.as_bytes()[0];
                assert!(read.bytes().all(|byte| byte == first), "parts of both");
                seen[usize::from(first == b'y')] = true;
            }
        });
        // Until the reader has seen both.
        while !reader.is_finished() {
            for letter in ["y", "x"] {
                kept.replace("a", &text(letter)).expect("kept");
            }
            is_over.store(true, Ordering::Relaxed);
        }
        reader.join().expect("it is always whole");
    });
}

#[test]
fn a_text_is_read_to_the_last_byte_that_it_may_have_and_no_further() {
    let folder = folder();
    let kept = kept(&folder, 4);
    kept.replace("full", "1234").expect("kept");
    assert_eq!(kept.read("full").expect("read").as_deref(), Some("1234"));
    kept.replace("more", "12345").expect("whoever writes may write more");
    let why = kept.read("more").expect_err("it is longer");
    assert_eq!(why.kind(), io::ErrorKind::InvalidData);
    assert!(
        why.to_string().ends_with("has more than 4 bytes: it is not what it should be"),
        "{why}"
    );
    fs::write(kept.path("no-text"), [0xff, 0xfe]).expect("written");
    assert!(kept.read("no-text").expect_err("no text").to_string().ends_with("is not UTF-8"));
    kept.replace("empty", "").expect("kept");
    assert_eq!(kept.read("empty").expect("read").as_deref(), Some(""));
}

/// For a folder in which nothing may be renamed.
#[test]
fn what_is_overwritten_keeps_its_file_and_what_follows() {
    let folder = folder();
    let kept = kept(&folder, 100);
    kept.overwrite("a", "123456").expect("made");
    let inode = || fs::metadata(kept.path("a")).expect("facts").ino();
    let before = inode();
    kept.overwrite("a", "abc").expect("written");
    assert_eq!(kept.read("a").expect("read").as_deref(), Some("abc456"));
    assert_eq!(inode(), before);
    kept.replace("a", "abc").expect("kept");
    assert_ne!(inode(), before, "another file has its name");
}

#[test]
fn a_lock_is_free_when_its_last_descriptor_is_closed_and_not_before() {
    let folder = folder();
    let kept = kept(&folder, 100);
    let take = |text: &str| match kept.lock("lock", text).expect("a lock") {
        Locking::Taken(fd) => Ok(fd),
        Locking::Held(who) => Err(who),
    };
    let first = take("process 1\n").expect("nobody has it");
    let heirs = first.try_clone().expect("a descriptor");
    drop(first);
    assert_eq!(take("process 2\n").expect_err("an heir has it"), "process 1");
    drop(heirs);
    let second = take("process 2\n").expect("it is free");
    assert_eq!(kept.read("lock").expect("read").as_deref(), Some("process 2\n"));
    // A lock whose file was taken away is another file's: the one that is there is free.
    kept.remove("lock").expect("removed");
    take("process 3\n").expect("another file");
    drop(second);
}

#[test]
fn the_names_are_those_of_files_with_when_they_were_written() {
    let folder = folder();
    let kept = kept(&folder, 100);
    for name in ["b", "a", "c"] {
        kept.replace(name, name).expect("kept");
    }
    fs::write(folder.path().join("state").join(OsStr::new("\u{fffd}")), "x").expect("written");
    let times: Vec<i64> = kept.names().expect("names").into_iter().map(|(_, at)| at).collect();
    assert!(times.iter().all(|at| *at > 1_600_000_000), "{times:?}");
    assert_eq!(sorted(&kept), ["a", "b", "c", "\u{fffd}"]);
    fs::set_permissions(folder.path().join("state"), fs::Permissions::from_mode(0o777))
        .expect("set");
    kept.names().expect_err("others may put files there");
}

/// Whoever only looks learns what a write would say, and writes nothing.
#[test]
fn a_look_tells_where_nothing_can_be_kept() {
    let folder = folder();
    let kept = kept(&folder, 100);
    kept.look().expect("it can be made");
    assert!(!folder.path().join("state").exists(), "whoever only looks makes nothing");
    let said = |kept: &Kept| kept.look().expect_err("nothing can be kept").to_string();
    fs::write(folder.path().join("state"), "mine").expect("written");
    assert!(said(&kept).contains("Not a directory"), "{}", said(&kept));
    fs::remove_file(folder.path().join("state")).expect("removed");
    fs::create_dir(folder.path().join("state")).expect("made");
    kept.look().expect("it is there");
    let mode = |mode| {
        let path = folder.path().join("state");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    };
    mode(0o777);
    assert!(said(&kept).contains("has mode 0777"), "{}", said(&kept));
    mode(0o500);
    // Root may write where nobody may.
    match rustix::process::geteuid().is_root() {
        true => kept.look().expect("root may write there"),
        false => assert!(said(&kept).contains("Permission denied"), "{}", said(&kept)),
    }
}
