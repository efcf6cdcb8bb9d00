//! What is promised of disks whose locks follow their rings: one daemon uses the image at a time, and no guest is told
//! that its ring has stopped before another daemon can have it.

use std::fs::File;
use std::time::Duration;

use backend::Vet;
use config::api::{Call, DiskState, ErrorKind};
use config::plan::DevicePlan;
use control::mode::Mode;
use rustix::fs::{FlockOperation, flock};
use vhost_user::Message;
use vhost_user::message::{ConfigSpan, RingFd, RingState};

use super::*;
use crate::disk::images::{ImageNames, source_of};
use crate::manager::Manager;
use crate::trial::vmm::{FLUSH, Guest, READ, RING_PACKED, Vmm, WRITE};
use crate::trial::{Trial, refused};

const MIB: u64 = 1 << 20;
const FILE: &str = "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nsize = \"1M\"\nqueues = 2\nmigratable = true\n\
                    drain_timeout = 3\n";
const PLAIN: &str = "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nsize = \"1M\"\n";
const SIZELESS: &str = "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nmigratable = true\n";

/// Whether somebody has the image.
fn is_locked(trial: &Trial) -> bool {
    let image = File::open(trial.path("a.img")).expect("an image");
    flock(&image, FlockOperation::NonBlockingLockExclusive).is_err()
}

/// Has it as another daemon has.
fn lock(trial: &Trial) -> File {
    let image = File::open(trial.path("a.img")).expect("an image");
    flock(&image, FlockOperation::NonBlockingLockExclusive).expect("nobody has it");
    image
}

fn problem(trial: &mut Trial) -> String {
    trial.disk("a").problem.unwrap_or_default()
}

#[test]
fn the_image_is_locked_from_the_first_ring_to_the_last() {
    let mut trial = Trial::of(FILE);
    assert_eq!((trial.disk("a").locked, is_locked(&trial)), (Some(false), false));
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    assert_eq!(vmm.does(&mut trial, WRITE, 7, 7), Some(0));
    assert_eq!((trial.disk("a").locked, is_locked(&trial)), (Some(true), true));
    vmm.stop(&mut trial, 1).expect("it stops");
    assert!(is_locked(&trial), "a ring is left");
    vmm.stop(&mut trial, 0).expect("it stops");
    assert!(!is_locked(&trial), "whoever reads this answer may start the guest elsewhere");
    assert_eq!(trial.disk("a").locked, Some(false));
    // What was written is there for whoever has it next.
    assert_eq!(std::fs::read(trial.path("a.img")).expect("an image")[7 * 512..8 * 512], [7; 512]);
    vmm.start(&mut trial, 0);
    assert!(is_locked(&trial));
    assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
    // One that hangs up leaves it, too.
    drop(vmm.hang_up());
    trial.rest();
    assert!(!is_locked(&trial));
}

#[test]
fn the_answer_waits_until_the_disk_was_let_go() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    trial.slow(Duration::from_secs(2));
    assert_eq!(vmm.stop(&mut trial, 0), None);
    trial.pass(Duration::from_millis(1_900));
    assert_eq!(vmm.base_of(&mut trial, 0), None);
    assert!(is_locked(&trial));
    // Operators are answered meanwhile.
    assert!(trial.ask(Call::ListDisks).is_ok());
    trial.pass(Duration::from_millis(200));
    assert_eq!(vmm.base_of(&mut trial, 0), Some(0));
    assert!(!is_locked(&trial));
}

/// Whoever has it next would not know of it. When an operator does, nothing keeps it any more, and nobody else asks.
#[test]
fn a_disk_that_has_lost_data_stays_until_an_operator_knows_and_is_let_go_then() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    let number = trial.rooms().devices.number_of("a").expect("a device");
    trial.rooms().devices.disk(number).expect("a disk").disk.assume_sync_failed();
    trial.rooms().note_unsynced(number);
    trial.rest();
    vmm.stop(&mut trial, 0).expect("it stops");
    drop(vmm.hang_up());
    trial.pass(Duration::from_secs(10));
    assert!(is_locked(&trial), "another daemon would have it, and not know");
    trial.ask(Call::ClearDisk { id: "a".to_string() }).expect("it is cleared");
    trial.rest();
    assert!(!is_locked(&trial));
    assert_eq!(trial.disk("a").locked, Some(false));
}

/// Has the disk lose data, and time for its image to say so. False: images have no attributes here, which is said.
fn loses(trial: &mut Trial) -> bool {
    let number = trial.rooms().devices.number_of("a").expect("a device");
    trial.rooms().devices.disk(number).expect("a disk").disk.assume_sync_failed();
    trial.rooms().note_unsynced(number);
    trial.pass(Duration::from_secs(2));
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(trial.path("a.img"), c"user.sidecore.probe", b"x", flags).is_err() {
        let said = b"skipped: files in memory have no attributes here\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), said);
        return false;
    }
    let disk = &trial.rooms().devices.disk(number).expect("a disk").disk;
    assert!(disk.is_marked(), "that data was lost stands on the image");
    true
}

/// Whoever opens it next would find that its flushes end well: a destination, or this daemon with another `state_dir`.
#[test]
fn lost_data_stands_on_the_image_and_is_known_before_a_guest_comes() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 7, 7), Some(0));
    if !loses(&mut trial) {
        return;
    }
    let told = "its image stays locked here until then";
    assert!(problem(&mut trial).contains(told), "{}", problem(&mut trial));
    let folder = trial.die();
    std::fs::remove_dir_all(folder.path().join("state")).expect("a folder");
    std::fs::create_dir(folder.path().join("state")).expect("a folder");
    let mut trial = Trial::start(FILE, folder).unwrap_or_else(|why| panic!("{why}"));
    assert!(problem(&mut trial).contains("sidecore disk clear a"), "{}", problem(&mut trial));
    assert_eq!((trial.disk("a").locked, is_locked(&trial)), (Some(true), true));
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_ne!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0), "it lies");
    drop(vmm.hang_up());
    trial.pass(Duration::from_secs(10));
    assert!(is_locked(&trial), "it stays");
    trial.ask(Call::ClearDisk { id: "a".to_string() }).expect("it is cleared");
    trial.rest();
    assert!(!is_locked(&trial));
    // Nor does its image say so any more.
    let folder = trial.die();
    let mut trial = Trial::start(FILE, folder).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!((problem(&mut trial).as_str(), is_locked(&trial)), ("", false));
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
}

/// The owner of an image may write what he likes there: it hides nothing of what this daemon knows.
#[test]
fn lost_data_is_known_after_a_restart_whatever_the_image_says() {
    let mut trial = Trial::of(FILE);
    let vmm = Vmm::served(&mut trial, "a", 1);
    if !loses(&mut trial) {
        return;
    }
    drop(vmm.hang_up());
    let folder = trial.die();
    let image = folder.path().join("a.img");
    let write = |byte: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&image, c"user.sidecore.unsynced", byte, flags).expect("an attribute");
    };
    write(b"0");
    let mut trial = Trial::start(FILE, folder).unwrap_or_else(|why| panic!("{why}"));
    assert!(problem(&mut trial).contains("could not make data stable"), "{}", problem(&mut trial));
    assert!(is_locked(&trial), "as before the restart");
    trial.ask(Call::ClearDisk { id: "a".to_string() }).expect("it is cleared");
    trial.rest();
    assert!(!is_locked(&trial) && problem(&mut trial).is_empty());
    // What he may do with it is to have flushes refused, until an operator says that he knows.
    write(b"x");
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_ne!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
    trial.ask(Call::ClearDisk { id: "a".to_string() }).expect("it is cleared");
    assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
}

/// It is tried again each second, and nobody need touch the disk for that.
#[test]
fn a_disk_for_which_no_thread_is_left_is_let_go_when_there_is_one_and_says_why_it_is_not() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 7, 7), Some(0));
    trial.spend_threads(true);
    drop(vmm.hang_up());
    trial.pass(Duration::from_secs(5));
    assert!(is_locked(&trial));
    let why = "what was written cannot be made stable now: ";
    assert!(problem(&mut trial).starts_with(why), "{}", problem(&mut trial));
    let before = trial.turns;
    trial.pass(Duration::from_secs(10));
    assert!(trial.turns - before < 100, "it is tried all the time");
    trial.spend_threads(false);
    trial.pass(Duration::from_secs(2));
    assert!(!is_locked(&trial));
    assert_eq!((trial.disk("a").locked, trial.disk("a").problem), (Some(false), None));
    // Whoever comes back meanwhile has it, and nothing is tried any more.
    let vmm = Vmm::served(&mut trial, "a", 1);
    trial.spend_threads(true);
    drop(vmm.hang_up());
    trial.rest();
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    trial.pass(Duration::from_secs(5));
    assert_eq!(vmm.does(&mut trial, READ, 7, 0), Some(0));
    assert_eq!(problem(&mut trial), "");
}

/// Whoever has the answer may start the disk elsewhere, where locks do not reach. It comes when what was written is
/// stable, or not at all.
#[test]
fn the_last_ring_has_not_stopped_before_a_sync_could_begin() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 7, 7), Some(0));
    trial.spend_threads(true);
    assert_eq!(vmm.stop(&mut trial, 0), None);
    trial.pass(Duration::from_millis(1_500));
    let why = "what was written cannot be made stable now: ";
    assert!(problem(&mut trial).starts_with(why), "{}", problem(&mut trial));
    let before = trial.turns;
    trial.pass(Duration::from_millis(400));
    assert!(trial.turns - before < 20, "it is tried all the time");
    assert!(is_locked(&trial) && !vmm.is_cut_off(&mut trial));
    trial.spend_threads(false);
    trial.pass(Duration::from_millis(900));
    assert!(!is_locked(&trial));
    assert_eq!(vmm.base_of(&mut trial, 0), Some(1));
    assert_eq!(trial.disk("a").problem, None);
    // Where it does not come in time nobody is told where the ring stands.
    vmm.start(&mut trial, 0);
    assert_eq!(vmm.does(&mut trial, WRITE, 7, 8), Some(0));
    trial.spend_threads(true);
    assert_eq!(vmm.stop(&mut trial, 0), None);
    trial.pass(Duration::from_millis(2_900));
    assert!(!vmm.is_cut_off(&mut trial));
    trial.pass(Duration::from_millis(200));
    assert!(vmm.is_cut_off(&mut trial));
    assert_eq!(vmm.base_of(&mut trial, 0), None);
    trial.spend_threads(false);
    trial.pass(Duration::from_secs(2));
    assert!(!is_locked(&trial), "it is let go all the same");
}

/// Without the answer its VMM does not start the guest elsewhere, on a disk that is still being written.
#[test]
fn a_disk_that_is_not_let_go_in_time_ends_the_connection_without_an_answer() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    trial.slow(Duration::from_secs(30));
    assert_eq!(vmm.stop(&mut trial, 0), None);
    trial.pass(Duration::from_millis(2_900));
    assert!(!vmm.is_cut_off(&mut trial));
    trial.pass(Duration::from_millis(200));
    assert!(vmm.is_cut_off(&mut trial));
    assert_eq!(vmm.base_of(&mut trial, 0), None);
    // A guest that comes meanwhile waits until it was let go, and has it then.
    let mut next = Vmm::served(&mut trial, "a", 1);
    next.guest.request(0, WRITE, 0, 1);
    trial.pass(Duration::from_secs(10));
    assert_eq!(next.guest.status(0), None);
    trial.slow(Duration::ZERO);
    trial.pass(Duration::from_secs(30));
    assert_eq!(next.guest.status(0), Some(0));
}

#[test]
fn an_image_that_another_process_has_is_waited_for_and_nothing_of_it_is_read() {
    let mut trial = Trial::of(FILE);
    let elsewhere = lock(&trial);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    vmm.guest.request(0, READ, 0, 0);
    trial.pass(Duration::from_secs(100));
    let shown = trial.disk("a");
    assert_eq!(
        (shown.state, shown.queues_attached, shown.locked),
        (DiskState::Waiting, 0, Some(false))
    );
    assert!(problem(&mut trial).starts_with("it waits for its image: "));
    assert_eq!(vmm.guest.status(0), None);
    drop(elsewhere);
    trial.pass(Duration::from_secs(2));
    assert_eq!(vmm.guest.status(0), Some(0));
    assert_eq!(problem(&mut trial), "");
}

/// While it is asked for again nothing new is known of it.
#[test]
fn who_has_an_image_stays_said_while_it_is_asked_for_again() {
    let mut trial = Trial::of(FILE);
    let elsewhere = lock(&trial);
    let vmm = Vmm::served(&mut trial, "a", 1);
    assert!(problem(&mut trial).contains(" is in use: "), "{}", problem(&mut trial));
    trial.slow(Duration::from_secs(3));
    for _ in 0..100 {
        trial.pass(Duration::from_millis(100));
        assert!(problem(&mut trial).contains(" is in use: "), "{}", problem(&mut trial));
    }
    trial.slow(Duration::ZERO);
    drop((elsewhere, vmm.hang_up()));
    // Of one of which nothing was known before, that is said.
    trial.slow(Duration::from_secs(3));
    let _vmm = Vmm::served(&mut trial, "a", 1);
    assert!(problem(&mut trial).contains("has not answered yet"), "{}", problem(&mut trial));
}

/// A guest that has gone elsewhere by then needs it no more.
#[test]
fn who_waits_no_longer_is_not_given_the_image() {
    let mut trial = Trial::of(FILE);
    let elsewhere = lock(&trial);
    let vmm = Vmm::served(&mut trial, "a", 1);
    trial.pass(Duration::from_secs(1));
    drop(vmm.hang_up());
    trial.rest();
    drop(elsewhere);
    trial.pass(Duration::from_secs(10));
    assert!(!is_locked(&trial), "it was taken for nobody");
    let before = trial.turns;
    trial.pass(Duration::from_secs(10));
    assert!(trial.turns - before < 20, "it is still asked for");
}

#[test]
fn an_image_that_is_gone_is_not_made_anew_and_is_found_when_it_is_back() {
    let mut trial = Trial::of(FILE);
    std::fs::rename(trial.path("a.img"), trial.path("aside")).expect("moved");
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    trial.pass(Duration::from_secs(5));
    assert!(!trial.path("a.img").exists(), "an empty disk for a guest that had one");
    assert!(
        problem(&mut trial).contains("a.img is missing: put it back"),
        "{}",
        problem(&mut trial)
    );
    std::fs::rename(trial.path("aside"), trial.path("a.img")).expect("moved");
    trial.pass(Duration::from_secs(2));
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
}

/// What another daemon did to it meanwhile is what its guest finds, and is told.
#[test]
fn a_disk_that_has_grown_elsewhere_has_grown_here() {
    let folder = crate::trial::folder();
    std::fs::write(folder.path().join("a.img"), vec![0; MIB as usize]).expect("an image");
    let mut trial = Trial::start(SIZELESS, folder).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(trial.disk("a").size_bytes, Some(MIB));
    let image = File::options().write(true).open(trial.path("a.img")).expect("an image");
    image.set_len(2 * MIB).expect("it grows");
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(trial.disk("a").size_bytes, Some(2 * MIB));
    let span = ConfigSpan { offset: 0, size: 8, flags: 0, bytes: vec![0; 8] };
    vmm.send(&Message::GetConfig(span), &[]);
    let Some(Err(Message::GetConfig(span))) = vmm.hear(&mut trial) else { panic!("no answer") };
    assert_eq!(span.bytes, (2 * MIB / 512).to_le_bytes());
    assert_eq!(vmm.does(&mut trial, WRITE, 2 * MIB / 512 - 1, 1), Some(0));
}

/// An heir finds it where it was told that it is.
#[test]
fn locks_stay_where_they_are_while_another_process_is_to_take_over() {
    let mut trial = Trial::of(FILE);
    let number = trial.rooms().devices.number_of("a").expect("a device");
    for mode in [Mode::HeirExpected, Mode::HeirWaits, Mode::Frozen] {
        assert_eq!(trial.rooms().locks().follow(number, false, mode), 0, "they are not here");
    }
    let vmm = Vmm::served(&mut trial, "a", 2);
    for mode in [Mode::HeirExpected, Mode::HeirWaits, Mode::Frozen] {
        assert_eq!(trial.rooms().locks().follow(number, false, mode), 2);
    }
    // Its guest goes, and the disk stays until it is known who serves.
    assert!(trial.manager().drain.freeze());
    drop(vmm.hang_up());
    assert_eq!(trial.rooms().locks().follow(number, false, Mode::HeirWaits), 2);
    assert!(is_locked(&trial));
    // A client of a link that has not come back yet has it, too.
    assert_eq!(trial.rooms().locks().follow(number, true, Mode::Serving), 2);
}

#[test]
fn a_disk_is_resized_while_its_locks_are_away_and_not_while_another_has_them() {
    let mut trial = Trial::of("[[disk]]\nid = \"m\"\nbackend = \"memory\"\nsize = \"1M\"\n");
    let path = trial.path("a.img").display().to_string();
    let spec = format!(r#"{{"id":"a","path":"{path}","size":"1M","migratable":true}}"#);
    trial
        .ask(Call::AddDisk { spec: serde_json::from_str(&spec).expect("a disk"), force: false })
        .expect("it is added");
    let resize = |size: u64| Call::ResizeDisk {
        id: "a".to_string(),
        resize: config::spec::DiskResize { size: config::Size(size) },
        force: false,
    };
    let len = |trial: &Trial| std::fs::metadata(trial.path("a.img")).expect("an image").len();
    trial.ask(resize(2 * MIB)).expect("it is resized");
    assert_eq!(
        (len(&trial), trial.disk("a").size_bytes, is_locked(&trial)),
        (2 * MIB, Some(2 * MIB), false)
    );
    let elsewhere = lock(&trial);
    let (kind, why) = refused(trial.ask(resize(4 * MIB)));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.ends_with("; the disk is as it was"), "{why}");
    assert_eq!((len(&trial), trial.disk("a").size_bytes), (2 * MIB, Some(2 * MIB)));
    drop(elsewhere);
    trial.ask(resize(4 * MIB)).expect("it is resized");
}

/// A client may want a disk in the moment in which it is let go: what becomes of the data that is being made stable is
/// heard first.
#[test]
fn locks_that_are_being_let_go_are_not_asked_for() {
    let mut trial = Trial::of(FILE);
    trial.pass(Duration::from_secs(1));
    let number = trial.rooms().devices.number_of("a").expect("the disk");
    assert_eq!(trial.rooms().locks().take(number), Taken::Here);
    assert_eq!(trial.rooms().locks().take(number), Taken::Here, "they are here");
    trial.slow(Duration::from_millis(300));
    trial.rooms().turn.touch(number);
    trial.rest();
    let is_parting = |trial: &mut Trial| {
        let disk = trial.rooms().devices.disk(number).expect("the disk");
        disk.locks.parting().is_some()
    };
    assert!(is_parting(&mut trial), "nobody has it");
    assert_eq!(trial.rooms().locks().take(number), Taken::Not);
    assert!(is_parting(&mut trial), "it is forgotten");
    trial.pass(Duration::from_millis(400));
    let disk = trial.rooms().devices.disk(number).expect("the disk");
    assert!(disk.locks.is_away() && disk.disk.is_away());
    trial.slow(Duration::ZERO);
    assert_eq!(trial.rooms().locks().take(number), Taken::Here);
}

/// What a process that died had in flight may still land in the guest's memory, which its VMM is about to move.
#[test]
fn a_ring_has_stopped_when_what_a_dead_process_had_in_flight_is_over() {
    for migratable in ["", "migratable = true\n"] {
        let mut trial = Trial::of(&format!("{PLAIN}{migratable}"));
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
        trial.slow(Duration::from_secs(13));
        trial.amid(Manager::hand_over_in_vain);
        trial.slow(Duration::ZERO);
        assert_eq!(vmm.stop(&mut trial, 0), None, "it may still write");
        trial.pass(Duration::from_secs(14));
        assert_eq!(vmm.base_of(&mut trial, 0), Some(1));
    }
}

/// Nobody would wait for these by their locks, which refuse no reader.
#[test]
fn a_ring_of_what_is_only_read_has_stopped_when_what_a_dead_process_had_in_flight_is_over() {
    let folder = crate::trial::folder();
    std::fs::write(folder.path().join("a.img"), vec![5; MIB as usize]).expect("an image");
    let text = "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nreadonly = true\n";
    let mut trial = Trial::start(text, folder).unwrap_or_else(|why| panic!("{why}"));
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, READ, 0, 0), Some(0));
    trial.slow(Duration::from_secs(13));
    trial.amid(Manager::hand_over_in_vain);
    trial.slow(Duration::ZERO);
    vmm.guest.request(0, READ, 1, 0);
    trial.rest();
    assert_eq!(vmm.guest.status(0), None, "an earlier one may still write into its buffer");
    assert_eq!(vmm.stop(&mut trial, 0), None, "it may still write");
    trial.pass(Duration::from_secs(14));
    assert_eq!(vmm.base_of(&mut trial, 0), Some(1));
    vmm.start(&mut trial, 0);
    assert_eq!(vmm.guest.status(0), Some(0));
    assert_eq!(vmm.guest.data(0), [5; 512]);
}

/// Gives it up for a process that died, and knows it by its name alone, as one that is no file; `change` says what has that
/// name by then.
fn give_up_by_name(trial: &mut Trial, change: impl Fn(&Trial)) {
    let number = trial.rooms().devices.number_of("a").expect("a device");
    let plan = trial.rooms().devices.disk(number).expect("a disk").plan.clone();
    let by_name = Disk::look(&source_of(&plan), &ImageNames::of(&plan), Vet::Raw).expect("seen");
    change(trial);
    trial.slow(Duration::from_millis(200));
    trial.amid(Manager::hand_over_in_vain);
    trial.slow(Duration::ZERO);
    let disk = trial.rooms().devices.disk_mut(number).expect("a disk");
    assert!(disk.locks.is_fenced());
    disk.disk = by_name;
}

/// What was open here and in that process may be all that leads to it.
#[test]
fn an_image_that_has_its_name_no_more_is_served_on_after_a_process_died() {
    for (is_replaced, migratable) in
        [(false, ""), (true, ""), (false, "migratable = true\n"), (true, "migratable = true\n")]
    {
        let mut trial = Trial::of(&format!("{PLAIN}{migratable}"));
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        assert_eq!(vmm.does(&mut trial, WRITE, 7, 7), Some(0));
        std::fs::remove_file(trial.path("a.img")).expect("removed");
        if is_replaced {
            std::fs::write(trial.path("a.img"), vec![9; MIB as usize]).expect("another image");
        }
        for fill in 1..3 {
            trial.amid(Manager::hand_over_in_vain);
            trial.rest();
            assert_eq!(vmm.does(&mut trial, READ, 7, 0), Some(0), "replaced: {is_replaced}");
            assert_eq!(vmm.guest.data(0), [7; 512]);
            assert_eq!(vmm.does(&mut trial, WRITE, 8, fill), Some(0));
        }
        let there = std::fs::read(trial.path("a.img")).unwrap_or_default();
        assert!(there.iter().all(|byte| *byte == 9), "it is another's");
        // Nor is the last that leads to it closed by whoever serves.
        trial.slow(Duration::from_secs(2));
        trial.amid(Manager::hand_over_in_vain);
        drop(vmm.hang_up());
        trial.slow(Duration::ZERO);
        trial.pass(Duration::from_secs(10));
    }
}

/// What is in flight lands in the image that was given up, and its guest is not to find another one.
#[test]
fn another_image_in_the_place_of_one_that_was_given_up_is_waited_out_as_none_is() {
    for is_put_back in [true, false] {
        let mut trial = Trial::of(&format!("{PLAIN}drain_timeout = 3\n"));
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
        give_up_by_name(&mut trial, |trial| {
            std::fs::rename(trial.path("a.img"), trial.path("aside")).expect("moved");
            std::fs::write(trial.path("a.img"), vec![9; MIB as usize]).expect("another image");
        });
        assert_eq!(vmm.stop(&mut trial, 0), None, "it may still write");
        trial.pass(Duration::from_millis(2_900));
        assert!(!vmm.is_cut_off(&mut trial));
        let image = trial.path("a.img").display().to_string();
        let expected = format!(
            "it waits for its image: {image} is another image than the one that was served: put that one back, or \
             restart the daemon"
        );
        assert_eq!(problem(&mut trial), expected);
        if is_put_back {
            std::fs::rename(trial.path("aside"), trial.path("a.img")).expect("moved");
        }
        trial.pass(Duration::from_secs(1));
        assert_eq!(vmm.is_cut_off(&mut trial), !is_put_back);
        assert_eq!(vmm.base_of(&mut trial, 0), is_put_back.then_some(1));
    }
}

/// Nobody begins that before the image is here.
#[test]
fn a_sync_that_could_not_begin_is_not_tried_while_the_image_is_given_up() {
    let mut trial = Trial::of(FILE);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 7, 7), Some(0));
    trial.spend_threads(true);
    drop(vmm.hang_up());
    trial.pass(Duration::from_secs(2));
    assert!(problem(&mut trial).starts_with("what was written cannot be made stable now: "));
    trial.amid(Manager::hand_over_in_vain);
    let before = trial.turns;
    trial.pass(Duration::from_secs(10));
    assert!(trial.turns - before < 100, "it is tried all the time: {}", trial.turns - before);
    trial.spend_threads(false);
    trial.pass(Duration::from_secs(3));
    assert!(!is_locked(&trial), "it is let go when it is here");
}

/// It has the size that its guest was told until it is here, and says so.
#[test]
fn a_new_size_waits_for_an_image_that_was_given_up() {
    let mut trial = Trial::of(PLAIN);
    let number = trial.rooms().devices.number_of("a").expect("a device");
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    trial.slow(Duration::from_secs(13));
    trial.amid(Manager::hand_over_in_vain);
    trial.slow(Duration::ZERO);
    let disk = trial.rooms().devices.disk_mut(number).expect("a disk");
    disk.plan.resized(2 * MIB);
    assert_eq!(disk.plan_as_given_up().source.size_bytes(), Some(MIB));
    assert!(disk.resize_late(config::Size(2 * MIB)), "its image is not here");
    let waits = "it has 1M and not 2M: it waits for its image, and has that size then";
    assert_eq!(disk.unresized.as_deref(), Some(waits));
    // A reload of the same file says its plan once more.
    let same = DevicePlan::Disk(disk.plan.clone());
    trial.rooms().set_plan(same);
    let disk = trial.rooms().devices.disk_mut(number).expect("a disk");
    assert_eq!(disk.unresized.as_deref(), Some(waits));
    trial.pass(Duration::from_secs(15));
    assert_eq!(trial.disk("a").size_bytes, Some(2 * MIB));
    assert_eq!(std::fs::metadata(trial.path("a.img")).expect("an image").len(), 2 * MIB);
    assert_eq!(problem(&mut trial), "");
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
}

/// Nor has it when its image is not there any more, or cannot be opened: that says nothing of those requests.
#[test]
fn a_ring_has_not_stopped_because_the_image_of_a_dead_process_is_gone() {
    for is_put_back in [true, false] {
        let mut trial = Trial::of(&format!("{PLAIN}drain_timeout = 3\n"));
        let number = trial.rooms().devices.number_of("a").expect("a device");
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
        give_up_by_name(&mut trial, |trial| {
            std::fs::rename(trial.path("a.img"), trial.path("aside")).expect("moved");
        });
        assert_eq!(vmm.stop(&mut trial, 0), None, "it may still write");
        trial.pass(Duration::from_millis(2_900));
        assert!(!vmm.is_cut_off(&mut trial));
        let device = trial.rooms().devices.get(number).expect("a device");
        let id = device.runner().expect("its front-end");
        let image = trial.path("a.img").display().to_string();
        let now = trial.rooms().turn.now();
        let device = trial.rooms().devices.get(number).expect("a device");
        let expected = format!(
            "the image, of which a process that died had requests under way: {image} is missing: put it back"
        );
        assert_eq!(device.awaited(id, now), expected);
        if is_put_back {
            std::fs::rename(trial.path("aside"), trial.path("a.img")).expect("moved");
        }
        trial.pass(Duration::from_secs(1));
        assert_eq!(vmm.is_cut_off(&mut trial), !is_put_back);
        assert_eq!(vmm.base_of(&mut trial, 0), is_put_back.then_some(1));
    }
}

/// Where it stood before that process, another back-end would have its requests done once more.
#[test]
fn a_ring_that_a_dead_process_served_is_found_by_its_record() {
    let mut trial = Trial::of(PLAIN);
    let mut vmm = Vmm::connect(&trial, "a", Guest::new(1)).expect("somebody listens");
    vmm.introduce(&mut trial);
    vmm.bring_memory(&mut trial);
    vmm.bring_record(&mut trial);
    vmm.start(&mut trial, 0);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    trial.slow(Duration::from_secs(13));
    trial.amid(Manager::hand_over_in_vain);
    trial.slow(Duration::ZERO);
    let number = trial.rooms().devices.number_of("a").expect("a device");
    let device = trial.rooms().devices.get(number).expect("a device");
    let connection = device.connections().values().next().expect("its front-end");
    assert!(!connection.session.was_served(0), "where it stood before is believed");
    assert_eq!(vmm.stop(&mut trial, 0), None, "it is not known yet");
    trial.pass(Duration::from_secs(14));
    assert_eq!(vmm.base_of(&mut trial, 0), Some(1));
}

/// One whose first request was done, and was handed to a process that died.
fn lost(trial: &mut Trial, rings: u16) -> Vmm {
    let mut vmm = Vmm::connect(trial, "a", Guest::packed(rings)).expect("somebody listens");
    vmm.features |= RING_PACKED;
    vmm.introduce(trial);
    vmm.bring_memory(trial);
    vmm.start(trial, 0);
    assert_eq!(vmm.does(trial, WRITE, 0, 1), Some(0));
    (1..rings).for_each(|ring| vmm.set_up(trial, ring.into()));
    trial.amid(Manager::hand_over_in_vain);
    trial.rest();
    vmm
}

/// From where it stood before, requests would be answered that the guest has no more.
#[test]
fn a_ring_whose_place_a_dead_process_took_along_is_idle_whatever_is_said_beside() {
    let mut trial = Trial::of(PLAIN);
    let mut vmm = lost(&mut trial, 1);
    let number = trial.rooms().devices.number_of("a").expect("a device");
    let is_lost = |trial: &mut Trial, after: &str| {
        let shown = trial.disk("a");
        assert_eq!(shown.queues_attached, 0, "after {after}");
        assert!(shown.problem.is_some_and(|why| why.contains("knows where the ring")), "{after}");
    };
    is_lost(&mut trial, "the end of that process");
    let fd = RingFd { queue: 0, has_fd: true };
    let call = vmm.guest.rings[0].call.try_clone().expect("a descriptor");
    assert!(vmm.send(&Message::SetVringCall(fd), &[&call]));
    assert_eq!(vmm.hear(&mut trial), Some(Ok(0)), "it is taken");
    is_lost(&mut trial, "another call descriptor");
    let rooms = trial.rooms();
    let device = rooms.devices.get_mut(number).expect("a device");
    device.judge_again(&mut rooms.turn);
    trial.rest();
    is_lost(&mut trial, "another look");
    vmm.told(&mut trial, Message::SetVringEnable(RingState { queue: 0, value: 0 }));
    vmm.told(&mut trial, Message::SetVringEnable(RingState { queue: 0, value: 1 }));
    is_lost(&mut trial, "a pause");
    // Its driver has put its request where it would be next: one place for each of its three parts.
    vmm.guest.request(0, WRITE, 0, 2);
    vmm.told(&mut trial, Message::SetVringBase(RingState { queue: 0, value: 0x8003_8003 }));
    trial.rest();
    assert_eq!((trial.disk("a").queues_attached, vmm.guest.status(0)), (1, Some(0)));
    assert_eq!(trial.disk("a").problem, None);
}

#[test]
fn nobody_is_told_where_a_ring_stands_whose_place_is_lost_nor_believed_to_know_it_since() {
    let mut trial = Trial::of(PLAIN);
    let mut vmm = lost(&mut trial, 1);
    assert_eq!(vmm.stop(&mut trial, 0), None);
    assert!(vmm.is_cut_off(&mut trial), "another back-end would go on from there");
    assert_eq!(trial.disk("a").problem, None, "its guest is gone");
    let mut again = Vmm::connect(&trial, "a", vmm.hang_up()).expect("somebody listens");
    again.features |= RING_PACKED;
    again.begin(&mut trial);
    assert_eq!(trial.disk("a").queues_attached, 0, "it says what it has said before");
    assert_eq!(again.stop(&mut trial, 0), None);
    // Nor who asks before a ring was to start.
    let mut paused = Vmm::connect(&trial, "a", again.hang_up()).expect("somebody listens");
    paused.features |= RING_PACKED;
    paused.introduce(&mut trial);
    paused.bring_memory(&mut trial);
    paused.set_up(&mut trial, 0);
    assert_eq!(paused.stop(&mut trial, 0), None);
    assert!(paused.is_cut_off(&mut trial), "it says what it has said before");
    drop(paused.hang_up());
    let mut anew = Vmm::connect(&trial, "a", Guest::packed(1)).expect("somebody listens");
    anew.features |= RING_PACKED;
    anew.begin(&mut trial);
    assert_eq!(anew.does(&mut trial, WRITE, 0, 1), Some(0), "its ring is another one");
}

/// That process could not have served it.
#[test]
fn a_ring_that_was_not_enabled_is_not_lost_with_the_process_that_died() {
    let mut trial = Trial::of(&format!("{PLAIN}queues = 2\n"));
    let mut vmm = lost(&mut trial, 2);
    vmm.told(&mut trial, Message::SetVringEnable(RingState { queue: 1, value: 1 }));
    assert_eq!(trial.disk("a").queues_attached, 1);
    vmm.guest.request(1, WRITE, 0, 1);
    trial.rest();
    assert_eq!(vmm.guest.status(1), Some(0));
    assert_eq!(vmm.stop(&mut trial, 1), Some(0x8003_8003));
}
