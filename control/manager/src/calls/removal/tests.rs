//! What is promised of devices that go: nothing is taken from a guest unawares, and what is answered is done.

use std::time::Duration;

use config::api::{Answer, Call, DiskState, ErrorKind};
use config::spec::{BackendKind, NicSpec, NullKind};
use config::{DiskSpec, Size};
use rustix::fs::{FlockOperation, flock};
use serde_json::{from_str, json};

use crate::simulated::Heard;
use crate::trial::vmm::{Guest, Vmm, WRITE, dial};
use crate::trial::{Trial, disk_in, refused};

const FILE: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n";

fn remove(force: bool) -> Call {
    Call::RemoveDisk { id: "b".to_string(), force }
}

/// One with a disk `b` that was made through the API.
fn with_disk(is_file: bool) -> Trial {
    let mut trial = Trial::of(FILE);
    let path = is_file.then(|| trial.path("b.img").display().to_string());
    let backend = if is_file { BackendKind::File } else { BackendKind::Memory };
    let size = Some(Size(1 << 20));
    let spec = DiskSpec { backend: Some(backend), path, size, ..DiskSpec::new("b") };
    trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
    trial
}

fn has_b(trial: &mut Trial) -> bool {
    trial.ask(Call::ShowDisk { id: "b".to_string() }).is_ok()
}

#[test]
fn a_disk_without_a_guest_goes_with_all_that_it_had() {
    for is_file in [true, false] {
        let mut trial = with_disk(is_file);
        let promised = |trial: &Trial| trial.daemon.bounds().descriptors.promised;
        let before = promised(&trial);
        let shown = trial.ask(remove(false)).map(disk_in).expect("it goes");
        assert_eq!((shown.id.as_str(), shown.state), ("b", DiskState::Waiting));
        assert!(!has_b(&mut trial) && !trial.socket("b").exists());
        assert_eq!((promised(&trial) * 2, trial.daemon.devices()), (before, 1));
        let mut again = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
        assert!(!has_b(&mut again), "it came back with a restart");
    }
}

#[test]
fn what_a_guest_uses_goes_only_when_its_operator_insists() {
    let mut trial = with_disk(true);
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    let (kind, why) = refused(trial.ask(remove(false)));
    assert_eq!(kind, ErrorKind::Conflict);
    assert_eq!(
        why,
        "a guest uses disk \"b\"; stop that guest or take the device from it first; `--force` (`force=true` \
         in the API) removes it under the guest"
    );
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0), "it was disturbed");
    trial.ask(remove(true)).expect("he insists");
    assert!(vmm.is_cut_off(&mut trial));
    assert!(!has_b(&mut trial));
    assert_eq!(trial.daemon.loads(), [0, 0]);
}

/// A VMM that has said that it is one may be about to start its guest.
#[test]
fn a_front_end_that_has_begun_counts_as_a_guest_and_one_that_says_nothing_does_not() {
    let mut trial = with_disk(false);
    let mut silent = Vmm::connect(&trial, "b", Guest::new(1)).expect("it listens");
    trial.rest();
    let mut begun = Vmm::connect(&trial, "b", Guest::new(1)).expect("it listens");
    begun.introduce(&mut trial);
    assert_eq!(refused(trial.ask(remove(false))).0, ErrorKind::Conflict);
    drop(begun.hang_up());
    trial.rest();
    trial.ask(remove(false)).expect("it goes");
    assert!(silent.is_cut_off(&mut trial));
}

/// With the answer the image is another process's to open.
#[test]
fn the_answer_comes_when_the_image_is_closed() {
    let mut trial = with_disk(true);
    trial.slow(Duration::from_secs(3));
    let began = trial.now();
    let asked = trial.asks(remove(false));
    trial.rest();
    assert!(!has_b(&mut trial), "it is there no more");
    let lock = std::fs::File::open(trial.path("b.img")).expect("an image");
    let take = || flock(&lock, FlockOperation::NonBlockingLockExclusive);
    assert!(take().is_err(), "its lock went before it was closed");
    trial.answer(asked).expect("it goes");
    assert!(trial.now().since(began) >= 3_000_000_000);
    take().expect("it is free");
}

#[test]
fn a_file_system_that_does_not_let_it_be_closed_keeps_nobody_waiting_for_ever() {
    let mut trial = with_disk(true);
    trial.slow(Duration::from_secs(60));
    let began = trial.now();
    let asked = [trial.asks(remove(false)), trial.asks(remove(false))];
    let [first, second] = asked;
    trial.answer(first).map(disk_in).expect("it goes");
    assert!((10_000_000_000..11_000_000_000).contains(&trial.now().since(began)));
    assert_eq!(refused(trial.answer(second)).0, ErrorKind::NotFound);
}

#[test]
fn a_disk_that_does_not_answer_goes_by_itself_after_the_answer() {
    let mut trial = with_disk(true);
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    trial.stall(true);
    let shown = trial.ask(remove(true)).map(disk_in).expect("it goes");
    assert_eq!(shown.queues_attached, 1, "it is still served somewhere");
    assert!(vmm.is_cut_off(&mut trial), "its guest waited for that");
    assert!(!has_b(&mut trial));
    assert_eq!(trial.daemon.devices(), 2, "what a sidecore has is not dropped");
    // One of its name would have the same image.
    let path = Some(trial.path("b.img").display().to_string());
    let spec = DiskSpec { path, ..DiskSpec::new("b") };
    let (_, why) = refused(trial.ask(Call::AddDisk { spec: spec.clone(), force: false }));
    assert!(why.contains("it is disk \"b\"") && why.contains("which is being removed"), "{why}");
    trial.stall(false);
    trial.pass(Duration::from_secs(1));
    assert_eq!(trial.daemon.devices(), 1);
    trial.ask(Call::AddDisk { spec, force: false }).expect("its image is free");
}

#[test]
fn what_cannot_be_kept_does_not_go() {
    let mut trial = with_disk(true);
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    trial.break_state(true);
    let (kind, why) = refused(trial.ask(remove(true)));
    assert_eq!(kind, ErrorKind::Internal);
    assert!(why.ends_with(crate::calls::UNDONE), "{why}");
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    assert!(has_b(&mut trial));
    trial.break_state(false);
    trial.ask(remove(true)).expect("it goes");
}

#[test]
fn what_the_file_declares_goes_with_the_file() {
    let mut trial = Trial::of(FILE);
    let (kind, why) = refused(trial.ask(Call::RemoveDisk { id: "a".to_string(), force: true }));
    assert_eq!(kind, ErrorKind::Conflict);
    assert_eq!(
        why,
        "disk \"a\" is declared in sidecore.toml, line 8; change it there, then run `sidecore reload`"
    );
    assert_eq!(refused(trial.ask(remove(true))).0, ErrorKind::NotFound);
}

#[test]
fn a_disk_that_is_not_open_goes_like_any_other() {
    let trial = with_disk(true);
    std::fs::remove_file(trial.path("b.img")).expect("removed");
    let folder = trial.die();
    let mut trial = Trial::start(FILE, folder).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(trial.disk("b").state, DiskState::Failed);
    let shown = trial.ask(remove(false)).map(disk_in).expect("it goes");
    assert_eq!(shown.state, DiskState::Failed);
    assert!(!has_b(&mut trial));
    let mut again = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
    assert!(!has_b(&mut again));
}

/// What waited for its socket or image has it then, without being asked for.
#[test]
fn who_waited_for_what_goes_has_it() {
    let mut trial = with_disk(true);
    // A disk of the file with the same image: it cannot be opened, and is tried again.
    let other = "[[disk]]\nid = \"c\"\npath = \"{}/c.img\"\n";
    std::os::unix::fs::symlink(trial.path("b.img"), trial.path("c.img")).expect("a link");
    let (_, why) = refused(trial.reload(&format!("{FILE}{other}"), false));
    assert!(why.contains("is in use: it is disk \"b\""), "{why}");
    let removed = trial.asks(remove(false));
    trial.answer(removed).expect("it goes");
    trial.reload(&format!("{FILE}{other}"), false).expect("its image is free");
    assert!(dial(&trial.socket("c")).is_some());
}

#[test]
fn a_nic_goes_as_a_disk_does() {
    let mut trial = Trial::of(FILE);
    let bounds = trial.daemon.bounds();
    let spec = NicSpec { null: Some(NullKind::Drop), ..NicSpec::new("n") };
    trial.ask(Call::AddNic(spec)).expect("it is added");
    let mut vmm = Vmm::of_nic(&mut trial, "n");
    let remove = |force| Call::RemoveNic { id: "n".to_string(), force };
    let (kind, why) = refused(trial.ask(remove(false)));
    assert_eq!(kind, ErrorKind::Conflict);
    assert!(why.starts_with("a guest uses nic \"n\"; "), "{why}");
    let (kind, why) = refused(trial.ask(Call::RemoveDisk { id: "n".to_string(), force: true }));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(why.starts_with("\"n\" is a nic; use `sidecore nic ...`; "), "{why}");
    trial.ask(remove(true)).expect("it goes");
    assert!(vmm.is_cut_off(&mut trial));
    assert_eq!(trial.daemon.bounds(), bounds);
}

const SWITCH: &str = "[[switch]]\nid = \"lan\"\n";

/// An operator who was refused may ask for the same in the next moment: whatever it needs is free by then.
#[test]
fn who_adds_a_disk_that_cannot_be_kept_is_told_when_it_is_gone() {
    let mut trial = Trial::of("");
    let (image, socket) = (trial.path("a.img"), trial.socket("a"));
    std::fs::write(&image, [0; 4096]).expect("an image");
    let spec = json!({ "id": "a", "path": image, "size": "4K" }).to_string();
    let add = || Call::AddDisk { spec: from_str(&spec).expect("a disk"), force: false };
    trial.break_state(true);
    trial.slow(Duration::from_millis(300));
    let mut asked = trial.asks(add());
    trial.pass(Duration::from_millis(400));
    // It was opened, and is being closed.
    assert!(matches!(asked.hear(), Heard::Nothing), "it is told too early");
    let (kind, why) = refused(trial.answer(asked));
    assert_eq!(kind, ErrorKind::Internal);
    assert!(why.contains("the change cannot be kept: "), "{why}");
    assert!(why.contains("; nothing was changed; make room in the state directory"), "{why}");
    assert_eq!((trial.daemon.devices(), trial.daemon.plan().disks.len()), (0, 0));
    assert!(!socket.exists(), "its socket is left");
    let image = std::fs::File::open(&image).expect("the image");
    flock(&image, FlockOperation::NonBlockingLockExclusive).expect("nobody has it");
    drop(image);
    trial.break_state(false);
    assert!(matches!(trial.ask(add()), Ok(Answer::Disk(_))));
}

/// The same of what has no image.
#[test]
fn a_nic_or_switch_that_cannot_be_kept_is_gone_when_that_is_told() {
    let mut trial = Trial::of(SWITCH);
    trial.break_state(true);
    let nic = r#"{"id":"eth","switch":"lan"}"#;
    let add = || Call::AddNic(from_str(nic).expect("a NIC"));
    let (_, why) = refused(trial.ask(add()));
    assert!(why.contains("the change cannot be kept: "), "{why}");
    assert_eq!((trial.daemon.devices(), trial.daemon.plan().nics.len()), (0, 0));
    let switch = || Call::AddSwitch(from_str(r#"{"id":"new"}"#).expect("a switch"));
    let (_, why) = refused(trial.ask(switch()));
    assert!(why.contains("the change cannot be kept: "), "{why}");
    assert_eq!(trial.daemon.plan().switches.len(), 1);
    assert!(!trial.rooms().network.is_losing_a_switch(), "it still goes");
    trial.break_state(false);
    assert!(matches!(trial.ask(switch()), Ok(Answer::Switch(_))));
    assert!(matches!(trial.ask(add()), Ok(Answer::Nic(_))));
}
