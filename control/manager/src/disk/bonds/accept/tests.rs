//! What a guest is promised of its image: it is served from that alone, whatever lies there, until an operator says
//! otherwise or it starts anew.

use std::rc::Rc;
use std::time::Duration;

use config::api::{Answer, Call, DiskState, ErrorKind, StateView};

use crate::trial::vmm::{Guest, READ, Vmm, WRITE};
use crate::trial::{Trial, refused};

const MIB: u64 = 1 << 20;
const FILE: &str = "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nsize = \"1M\"\n";
const MEMORY: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n";

/// A guest that has written, and whose daemon has died: what is in the folder, and its rings as they stand.
fn after_a_death(text: &str) -> (Rc<tempfile::TempDir>, Guest) {
    let mut trial = Trial::of(text);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    for sector in 0..3 {
        assert_eq!(vmm.does(&mut trial, WRITE, sector, 7), Some(0));
    }
    vmm.guest.rings[0].base = 3;
    let folder = trial.die();
    (folder, vmm.hang_up())
}

fn start(text: &str, folder: Rc<tempfile::TempDir>) -> Trial {
    Trial::start(text, folder).unwrap_or_else(|why| panic!("{why}"))
}

/// The same guest, at the daemon after the one that died.
fn back(trial: &mut Trial, guest: Guest) -> Vmm {
    let mut vmm = Vmm::connect(trial, "a", guest).expect("it listens");
    vmm.begin(trial);
    vmm
}

fn another_image(trial: &Rc<tempfile::TempDir>, fill: u8) {
    let path = trial.path().join("a.img");
    std::fs::rename(&path, trial.path().join("aside")).expect("moved");
    std::fs::write(path, vec![fill; MIB as usize]).expect("another image");
}

fn accept() -> Call {
    Call::AcceptDisk { id: "a".to_string() }
}

/// What the daemon says of its own state.
fn state(trial: &mut Trial) -> StateView {
    match trial.ask(Call::ShowDaemon) {
        Ok(Answer::Daemon(view)) => view.state,
        other => panic!("{other:?}"),
    }
}

/// A state folder that takes no more keeps no guest from its disk; what may come of that is said until it is kept.
#[test]
fn a_guest_whose_image_cannot_be_kept_is_served_and_told_of() {
    let mut trial = Trial::of(FILE);
    let images = trial.path("state/images");
    std::fs::remove_dir_all(&images).expect("nothing is in it");
    std::fs::write(&images, "mine").expect("a file in its place");
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 7), Some(0));
    let problem = trial.disk("a").problem.expect("it is told");
    assert!(problem.contains("it would be served from another image, too"), "{problem}");
    let told = state(&mut trial);
    assert_eq!(told.unkept, ["a"]);
    assert!(told.problem.is_some_and(|why| why.contains("Not a directory")));
    std::fs::remove_file(&images).expect("it goes");
    trial.pass(Duration::from_secs(2));
    assert_eq!((state(&mut trial).unkept, trial.disk("a").problem), (vec![], None));
    assert_eq!(state(&mut trial).problem, None);
    vmm.guest.rings[0].base = 1;
    let (folder, guest) = (trial.die(), vmm.hang_up());
    another_image(&folder, 9);
    let mut trial = start(FILE, folder);
    let _vmm = back(&mut trial, guest);
    assert_eq!(trial.disk("a").state, DiskState::Waiting);
}

#[test]
fn a_guest_goes_on_with_its_own_image_after_a_crash() {
    let (folder, guest) = after_a_death(FILE);
    let mut trial = start(FILE, folder);
    let mut vmm = back(&mut trial, guest);
    assert_eq!(vmm.does(&mut trial, READ, 2, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [7; 512]);
}

#[test]
fn a_guest_waits_for_its_image_where_another_one_lies() {
    let (folder, guest) = after_a_death(FILE);
    another_image(&folder, 9);
    let mut trial = start(FILE, folder);
    let mut vmm = back(&mut trial, guest);
    vmm.guest.request(0, READ, 2, 0);
    trial.pass(Duration::from_secs(10));
    assert_eq!(vmm.guest.status(0), None, "it was served from another image");
    let shown = trial.disk("a");
    assert_eq!((shown.state, shown.queues_attached), (DiskState::Waiting, 0));
    assert!(shown.refusals > 0);
    let problem = shown.problem.expect("it is told");
    assert!(problem.contains("is another image: its requests wait"), "{problem}");
    // Put back, its path names another one than is open: a reload takes nothing from a guest that waits.
    let (image, aside) = (trial.path("a.img"), trial.path("aside"));
    std::fs::rename(aside, image).expect("put back");
    let done = trial.reload(FILE, false).expect("nobody loses by it");
    assert_eq!(done.changes, ["removed disk a", "added disk a"]);
    let mut vmm = back(&mut trial, vmm.hang_up());
    trial.pass(Duration::from_millis(10));
    assert_eq!(vmm.guest.status(0), Some(0));
    assert_eq!(vmm.guest.data(0), [7; 512]);
}

#[test]
fn an_operator_has_it_go_on_with_what_is_there() {
    let (folder, guest) = after_a_death(FILE);
    another_image(&folder, 9);
    let mut trial = start(FILE, folder);
    let mut vmm = back(&mut trial, guest);
    vmm.guest.request(0, READ, 2, 0);
    trial.ask(accept()).expect("he knows what he does");
    trial.pass(Duration::from_millis(10));
    assert_eq!(vmm.guest.status(0), Some(0));
    assert_eq!(vmm.guest.data(0), [9; 512]);
    let (kind, _) = refused(trial.ask(accept()));
    assert_eq!(kind, ErrorKind::Conflict, "there is nothing to accept any more");
    // From here on that is its image.
    vmm.guest.rings[0].base = 4;
    let folder = trial.die();
    let mut trial = start(FILE, folder);
    let mut vmm = back(&mut trial, vmm.hang_up());
    assert_eq!(vmm.does(&mut trial, READ, 0, 0), Some(0));
}

/// It would go on with a file that has no name, and be lost with the daemon.
#[test]
fn what_the_path_does_not_name_is_not_accepted() {
    let (folder, guest) = after_a_death(FILE);
    another_image(&folder, 9);
    let mut trial = start(FILE, folder);
    let _vmm = back(&mut trial, guest);
    std::fs::rename(trial.path("aside"), trial.path("a.img")).expect("put back");
    let (kind, why) = refused(trial.ask(accept()));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(
        why.starts_with("what the path of disk \"a\" names now is not the image that is open; "),
        "{why}"
    );
    std::fs::remove_file(trial.path("a.img")).expect("removed");
    let (kind, why) = refused(trial.ask(accept()));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.starts_with("the path of disk \"a\" names nothing now: "), "{why}");
    trial.slow(Duration::from_secs(60));
    let (kind, why) = refused(trial.ask(accept()));
    assert_eq!(kind, ErrorKind::Busy);
    assert!(why.ends_with("; try again when its file system answers"), "{why}");
    assert_eq!(trial.disk("a").queues_attached, 0);
}

#[test]
fn a_guest_that_starts_anew_has_what_is_there() {
    let (folder, _) = after_a_death(FILE);
    another_image(&folder, 9);
    let mut trial = start(FILE, folder);
    let mut vmm = back(&mut trial, Guest::new(1));
    assert_eq!(vmm.does(&mut trial, READ, 0, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [9; 512]);
}

/// Zeroes in the place of what a guest wrote are worse than no disk.
#[test]
fn a_guest_whose_data_is_gone_is_not_served_from_an_empty_disk() {
    let (folder, guest) = after_a_death(FILE);
    // As an operator makes one who wants an empty disk; a daemon makes none where one was.
    std::fs::write(folder.path().join("a.img"), "").expect("emptied");
    let mut trial = start(FILE, folder);
    let mut vmm = back(&mut trial, guest);
    vmm.guest.request(0, READ, 0, 0);
    trial.pass(Duration::from_secs(1));
    assert_eq!(vmm.guest.status(0), None);
    let problem = trial.disk("a").problem.expect("it is told");
    assert!(problem.contains("was missing or empty then"), "{problem}");
    let (folder, guest) = after_a_death(MEMORY);
    let mut trial = start(MEMORY, folder);
    let mut vmm = back(&mut trial, guest);
    vmm.guest.request(0, READ, 0, 0);
    trial.pass(Duration::from_secs(1));
    assert_eq!(vmm.guest.status(0), None);
    let problem = trial.disk("a").problem.expect("it is told");
    assert!(problem.contains("what it wrote is not here: restart the guest"), "{problem}");
    assert_eq!(trial.disk("a").state, DiskState::Failed);
    // It is gone, and another one is served whatever that wrote.
    let guest = vmm.hang_up();
    trial.pass(Duration::from_secs(1));
    assert_eq!((trial.disk("a").state, trial.disk("a").problem), (DiskState::Waiting, None));
    let mut vmm = back(&mut trial, guest);
    vmm.guest.request(0, READ, 0, 0);
    trial.pass(Duration::from_secs(1));
    assert_eq!((vmm.guest.status(0), trial.disk("a").state), (None, DiskState::Failed));
    trial.ask(accept()).expect("he knows what he does");
    trial.pass(Duration::from_millis(10));
    assert_eq!(vmm.guest.status(0), Some(0));
}

/// An answer that something was accepted would be untrue.
#[test]
fn where_no_guest_was_on_anything_else_there_is_nothing_to_accept() {
    for text in [FILE, MEMORY] {
        let mut trial = Trial::of(text);
        let (kind, why) = refused(trial.ask(accept()));
        assert_eq!(kind, ErrorKind::Conflict);
        assert!(why.starts_with("no guest of disk \"a\" was on another image; "), "{why}");
        let _vmm = Vmm::served(&mut trial, "a", 1);
        let (_, why) = refused(trial.ask(accept()));
        assert!(why.starts_with("the guest of disk \"a\" is on the image that is there"), "{why}");
    }
    // Before its guest comes back.
    let (folder, guest) = after_a_death(MEMORY);
    let mut trial = start(MEMORY, folder);
    trial.ask(accept()).expect("he knows what he does");
    let mut vmm = back(&mut trial, guest);
    assert_eq!(vmm.does(&mut trial, READ, 0, 0), Some(0));
}

#[test]
fn an_image_that_was_cut_under_its_guest_is_not_served_until_an_operator_says_so() {
    let (folder, guest) = after_a_death(FILE);
    let image = std::fs::File::options().write(true).open(folder.path().join("a.img"));
    image.expect("an image").set_len(MIB / 2).expect("cut");
    let mut trial = start(FILE, folder);
    assert_eq!(trial.disk("a").size_bytes, Some(MIB), "it was made as long as it is to be");
    let mut vmm = back(&mut trial, guest);
    vmm.guest.request(0, READ, 0, 0);
    trial.pass(Duration::from_secs(1));
    assert_eq!(vmm.guest.status(0), None);
    let problem = trial.disk("a").problem.expect("it is told");
    assert!(problem.contains("which was cut to 512K"), "{problem}");
    // A restart would find nothing wrong, and remembers it.
    let mut trial = start(FILE, trial.die());
    let mut vmm = back(&mut trial, vmm.hang_up());
    trial.pass(Duration::from_secs(1));
    assert_eq!(vmm.guest.status(0), None);
    trial.ask(accept()).expect("he knows what he does");
    trial.pass(Duration::from_millis(10));
    assert_eq!(vmm.guest.status(0), Some(0));
}

/// What is kept in the state folder is text that anybody may have written.
#[test]
fn what_cannot_be_read_of_its_image_makes_a_guest_wait_and_nothing_else() {
    for text in [
        "",
        "{",
        "{\"format\":\"x\"}",
        "{\"format\":\"sidecore-image\",\"version\":9,\"image\":{}}",
    ] {
        let (folder, guest) = after_a_death(FILE);
        std::fs::write(folder.path().join("state/images/a"), text).expect("written");
        let mut trial = start(FILE, folder);
        let mut vmm = back(&mut trial, guest);
        vmm.guest.request(0, READ, 2, 0);
        trial.pass(Duration::from_secs(1));
        assert_eq!(vmm.guest.status(0), None, "{text}");
        let problem = trial.disk("a").problem.expect("it is told");
        assert!(
            problem.starts_with("which image its guest was on cannot be read"),
            "{text}: {problem}"
        );
        trial.ask(accept()).expect("this is its image");
        trial.pass(Duration::from_millis(10));
        assert_eq!(vmm.guest.status(0), Some(0), "{text}");
        assert_eq!(vmm.guest.data(0), [7; 512]);
    }
}
