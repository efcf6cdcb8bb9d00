//! What is promised of an image that is given up for a process that died: nothing is forgotten of it, nobody else has it
//! meanwhile, and nobody waits for its file system.

use std::fs::File;
use std::os::fd::OwnedFd;

use backend::Source;
use config::api::{Call, ErrorKind};
use config::spec::DiskResize;
use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::manager::Manager;
use crate::trial::vmm::{FLUSH, READ, Vmm, WRITE};
use crate::trial::{Trial, refused};

const MIB: u64 = 1 << 20;
const PLAIN: &str = "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nsize = \"1M\"\n";

fn number(trial: &mut Trial) -> u32 {
    trial.rooms().devices.number_of("a").expect("a device")
}

fn parts(trial: &mut Trial) -> &mut DiskParts {
    let number = number(trial);
    trial.rooms().devices.disk_mut(number).expect("a disk")
}

fn problem(trial: &mut Trial) -> String {
    trial.disk("a").problem.unwrap_or_default()
}

fn clear() -> Call {
    Call::ClearDisk { id: "a".to_string() }
}

/// What a process that died has of the image, as its requests have it.
fn requests(trial: &mut Trial) -> Vec<OwnedFd> {
    let backend::Handles::File { cached, direct } = parts(trial).disk.handles() else {
        panic!("it is not open")
    };
    let all = [Some(cached), direct].into_iter().flatten();
    all.map(|fd| fd.try_clone_to_owned().expect("a copy")).collect()
}

/// The kernel tells of a lost page once: here to who is frozen then, and hears nobody.
#[test]
fn lost_data_is_not_forgotten_with_an_image_that_is_given_up() {
    for is_kept in [true, false] {
        let mut trial = Trial::of(PLAIN);
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
        let requests = requests(&mut trial);
        trial.amid(|manager| {
            let number = manager.rooms.devices.number_of("a").expect("a device");
            manager.rooms.devices.disk(number).expect("a disk").disk.assume_sync_failed();
            manager.hand_over_in_vain();
        });
        trial.rest();
        let told = "when its image is here, check its data and say `sidecore disk clear a`";
        assert!(problem(&mut trial).contains(told), "{}", problem(&mut trial));
        let (kind, why) = refused(trial.ask(clear()));
        assert_eq!(kind, ErrorKind::Conflict);
        assert!(why.ends_with("; what was lost stands on it: clear it when it is here"), "{why}");
        let mark = trial.path("state/unsynced/a");
        assert!(mark.exists(), "it is kept");
        if !is_kept {
            // As where it could not be.
            std::fs::remove_file(mark).expect("removed");
        }
        drop(requests);
        trial.pass(Duration::from_secs(2));
        assert_ne!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0), "it lies");
        trial.ask(clear()).expect("it is here");
        assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
    }
}

/// The last thing that was in flight may tell of it, and nobody hears that before the image is closed.
#[test]
fn lost_data_is_not_forgotten_with_an_image_that_is_closed() {
    for is_stop in [true, false] {
        let mut trial = Trial::of(PLAIN);
        drop(Vmm::served(&mut trial, "a", 1).hang_up());
        parts(&mut trial).disk.assume_sync_failed();
        let text = match is_stop {
            true => {
                trial.signal(Token::Stop);
                assert!(trial.has_ended());
                PLAIN.to_string()
            }
            false => format!("{PLAIN}serial = \"x\"\n"),
        };
        trial = match is_stop {
            true => Trial::start(&text, trial.die()).unwrap_or_else(|why| panic!("{why}")),
            false => {
                trial.reload(&text, false).expect("it is made anew");
                trial
            }
        };
        // Of itself, and not only by the image, where that takes attributes.
        let plan = parts(&mut trial).plan.clone();
        assert!(trial.rooms().unsynced.is_lost(&plan), "it lies");
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        assert_ne!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0), "it lies");
    }
}

/// Its daemon forgets a disk that is removed: what it has lost stands on its image then.
#[test]
fn what_a_removed_disk_has_lost_stands_on_its_image() {
    let mut trial = Trial::of("[[disk]]\nid = \"m\"\nbackend = \"memory\"\nsize = \"1M\"\n");
    let path = trial.path("a.img").display().to_string();
    std::fs::write(&path, [0; MIB as usize]).expect("an image");
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(path.as_str(), c"user.sidecore.probe", b"x", flags).is_err() {
        let said = b"skipped: files in memory have no attributes here\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), said);
        return;
    }
    let spec =
        || serde_json::from_str(&format!(r#"{{"id":"a","path":"{path}"}}"#)).expect("a disk");
    trial.ask(Call::AddDisk { spec: spec(), force: false }).expect("it is added");
    drop(Vmm::served(&mut trial, "a", 1).hang_up());
    parts(&mut trial).disk.assume_sync_failed();
    trial.ask(Call::RemoveDisk { id: "a".to_string(), force: true }).expect("it is removed");
    trial.ask(Call::AddDisk { spec: spec(), force: false }).expect("it is added again");
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_ne!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0), "it lies");
    trial.ask(Call::ClearDisk { id: "a".to_string() }).expect("an operator knows");
    assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
}

/// It comes back with its locks, and another daemon never sees it without.
#[test]
fn a_resize_of_an_image_that_was_given_up_gives_it_to_nobody_else() {
    let mut trial = Trial::of("[[disk]]\nid = \"m\"\nbackend = \"memory\"\nsize = \"1M\"\n");
    let path = trial.path("a.img");
    let text = path.display().to_string();
    let spec = format!(r#"{{"id":"a","path":"{text}","size":"1M","migratable":true}}"#);
    let spec = serde_json::from_str(&spec).expect("a disk");
    trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    let resize = |size: u64| Call::ResizeDisk {
        id: "a".to_string(),
        resize: DiskResize { size: config::Size(size) },
        force: false,
    };
    let requests = requests(&mut trial);
    trial.amid(Manager::hand_over_in_vain);
    // Long enough for a pause of a second between two tries.
    trial.pass(Duration::from_secs(30));
    let (kind, why) = refused(trial.ask(resize(2 * MIB)));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.contains(" is in use: "), "{why}");
    assert_eq!(std::fs::metadata(&path).expect("an image").len(), MIB);
    trial.rest();
    drop(requests);
    let asked = trial.asks(resize(2 * MIB));
    trial.signal(Token::Calls);
    trial.answer(asked).expect("it is resized");
    assert!(parts(&mut trial).locks.is_here(), "anybody may take it");
    let source = Source::File {
        path,
        size_bytes: None,
        readonly: false,
        cache: Default::default(),
        waits: Default::default(),
    };
    let theirs = Disk::open(&source).map(|_| ());
    assert!(matches!(theirs, Err(backend::OpenError::Held { .. })), "{theirs:?}");
    assert_eq!(trial.disk("a").size_bytes, Some(2 * MIB));
    assert_eq!(vmm.does(&mut trial, WRITE, 2 * MIB / 512 - 1, 1), Some(0));
}

/// One may not answer, and all others are served meanwhile.
#[test]
fn a_file_system_that_does_not_answer_holds_up_nobody_who_gives_an_image_up() {
    let mut trial = Trial::of(PLAIN);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    trial.slow(Duration::from_secs(20));
    let before = trial.now();
    trial.amid(Manager::hand_over_in_vain);
    assert!(trial.now().0 - before.0 < 1_000_000_000, "control waits for it");
    assert!(!parts(&mut trial).disk.is_away(), "its file system was asked by control");
    trial.slow(Duration::ZERO);
    trial.pass(Duration::from_secs(5));
    let late = "has not answered yet";
    assert!(problem(&mut trial).contains(late), "{}", problem(&mut trial));
    trial.pass(Duration::from_secs(16));
    assert_eq!(problem(&mut trial), "");
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
}

#[test]
fn what_a_dead_process_had_in_flight_is_over_for_sure_when_somebody_has_all_locks() {
    let text = || "the image".to_string();
    for (why, is_unsettled) in [
        (NotOpen::Ended(text()), true),
        (NotOpen::Late(text()), true),
        (NotOpen::Landing(text()), true),
        (NotOpen::Wrong(text()), true),
        (NotOpen::Living(text()), false),
        (NotOpen::Ours(text()), false),
    ] {
        let mut trial = Trial::of(PLAIN);
        let _requests = requests(&mut trial);
        trial.amid(Manager::hand_over_in_vain);
        let now = nanos_of(trial.rooms().turn.now());
        let disk = parts(&mut trial);
        assert!(disk.is_unsettled() && disk.locks.refused(why.clone(), now));
        assert_eq!(disk.is_unsettled(), is_unsettled, "{why:?}");
    }
}

/// Who has an image was found before that process had it.
#[test]
fn what_was_known_before_another_process_had_an_image_is_not_believed_when_that_has_died() {
    let mut trial = Trial::of(PLAIN);
    let _requests = requests(&mut trial);
    trial.amid(Manager::hand_over_in_vain);
    trial.rest();
    let now = nanos_of(trial.rooms().turn.now());
    let disk = parts(&mut trial);
    assert!(disk.locks.refused(NotOpen::Living("somebody has it".to_string()), now));
    assert!(!disk.is_unsettled());
    trial.slow(Duration::from_secs(5));
    trial.amid(Manager::hand_over_in_vain);
    assert!(parts(&mut trial).is_unsettled(), "that one may have requests under way");
}

#[test]
fn that_an_image_has_its_name_no_more_is_said_while_it_is_given_up() {
    let mut trial = Trial::of(PLAIN);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 7, 7), Some(0));
    let requests = requests(&mut trial);
    trial.amid(Manager::hand_over_in_vain);
    std::fs::remove_file(trial.path("a.img")).expect("removed");
    trial.pass(Duration::from_secs(4));
    let told = problem(&mut trial);
    let id = std::process::id();
    let save = told.find(&format!("`cp --sparse=always /proc/{id}/fd/")).expect("how to save it");
    assert!(told.contains("a.img was removed or renamed: the disk waits for a file"), "{told}");
    // By what is said there it is to be had.
    let from = told[save..].split(' ').nth(2).expect("a descriptor");
    assert_eq!(std::fs::read(from).expect("it is read")[7 * 512..8 * 512], [7; 512]);
    drop(requests);
    trial.pass(Duration::from_secs(3));
    let told = problem(&mut trial);
    assert!(told.contains("a.img was removed or renamed: the disk goes on with a file"), "{told}");
    assert_eq!(vmm.does(&mut trial, READ, 7, 0), Some(0));
}

/// Whoever may read an image may sleep for its first lock.
#[test]
fn who_sleeps_for_the_lock_of_an_image_does_not_get_it_while_it_is_given_up() {
    let mut trial = Trial::of(PLAIN);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 7, 7), Some(0));
    let image = File::open(trial.path("a.img")).expect("an image");
    let requests = requests(&mut trial);
    trial.amid(Manager::hand_over_in_vain);
    trial.pass(Duration::from_secs(1));
    let free = || flock(&image, FlockOperation::NonBlockingLockExclusive).is_ok();
    assert!(!free(), "it is under way");
    drop(requests);
    assert!(!free(), "it waits to be opened again");
    trial.pass(Duration::from_secs(2));
    assert!(!free(), "its guest has it");
    assert_eq!(vmm.does(&mut trial, READ, 7, 0), Some(0));
}
