//! What a start refuses, in words that say what to do, and what it leaves behind.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use config::api::{Call, DiskState};
use rustix::fs::{FlockOperation, flock};

use crate::trial::vmm::dial;
use crate::trial::{Trial, folder};

const MEMORY: &str = "[[disk]]\nid = \"m\"\nbackend = \"memory\"\nsize = \"1M\"\n";

fn refusal(text: &str, folder: std::rc::Rc<tempfile::TempDir>) -> String {
    let path = folder.path().display().to_string();
    match Trial::start(text, folder) {
        Ok(_) => panic!("it starts"),
        Err(why) => why.to_string().replace(&path, "{}"),
    }
}

/// A file system that is mounted late leaves no host without its API: each disk says why it is not open.
#[test]
fn a_daemon_that_can_serve_nothing_starts_and_says_why_of_each() {
    let lost = |id: &str| format!("[[disk]]\nid = \"{id}\"\npath = \"{{}}/{id}.img\"\n");
    let folder = folder();
    std::fs::create_dir(folder.path().join("f.img")).expect("a folder");
    let text = ["a", "f"].map(lost).concat();
    let mut trial = Trial::start(&text, folder).unwrap_or_else(|why| panic!("{why}"));
    for (id, why) in [("a", "No such file or directory"), ("f", "is neither a regular file")] {
        let disk = trial.disk(id);
        assert_eq!(disk.state, DiskState::Failed);
        assert!(disk.problem.is_some_and(|problem| problem.contains(why)), "{id}");
        assert!(dial(&trial.socket(id)).is_none(), "{id}: nobody would answer there");
    }
    std::fs::write(trial.path("a.img"), vec![0; 4096]).expect("an image");
    trial.reload(&text, false).expect("it is read again");
    assert!(dial(&trial.socket("a")).is_some());
}

#[test]
fn a_daemon_without_devices_starts() {
    let mut trial = Trial::of("");
    assert!(trial.ask(Call::ListDisks).is_ok());
}

#[test]
fn the_folder_and_the_socket_of_another_daemon_are_left_alone() {
    let folder = folder();
    let api = folder.path().join("api.sock");
    let living = UnixListener::bind(&api).expect("a socket");
    let why = refusal(MEMORY, folder.clone());
    assert!(why.starts_with("the API socket {}/api.sock: "), "{why}");
    assert!(api.exists(), "it is the other one's");
    drop(living);
    // One that a dead daemon has left is replaced.
    drop(Trial::start(MEMORY, folder.clone()).unwrap_or_else(|why| panic!("{why}")));
    let lock = folder.path().join("state/lock");
    let _ = std::fs::remove_file(&api);
    let held = std::fs::File::options().read(true).write(true).open(&lock).expect("a lock");
    flock(&held, FlockOperation::NonBlockingLockExclusive).expect("nobody has it");
    let why = refusal(MEMORY, folder.clone());
    assert!(why.starts_with("state_dir {}/state is kept by another daemon, process "), "{why}");
    assert!(!why.contains("stop that one"), "the hint says it: {why}");
    assert!(!api.exists(), "nobody answers there");
    drop(held);
    drop(Trial::start(MEMORY, folder).unwrap_or_else(|why| panic!("{why}")));
}

/// What is kept is read before anything is opened, and never overwritten by a daemon that cannot read it.
#[test]
fn kept_devices_that_cannot_be_read_refuse_the_start_and_stay_as_they_are() {
    let kept = |text: &str| {
        let folder = folder();
        std::fs::write(folder.path().join("state/disks.json"), text).expect("written");
        folder
    };
    let newer = r#"{"format":"sidecore-state","version":999}"#;
    for text in ["{", "[]", newer] {
        let folder = kept(text);
        let why = refusal(MEMORY, folder.clone());
        assert!(why.starts_with("{}/state/disks.json: "), "{text}: {why}");
        let path = folder.path().join("state/disks.json");
        assert_eq!(std::fs::read_to_string(path).expect("it is there"), text);
    }
}

#[test]
fn a_kept_device_that_does_not_go_with_the_file_is_named() {
    let mut trial = Trial::of(MEMORY);
    let spec = r#"{"id":"b","backend":"memory","size":"1M"}"#;
    trial
        .ask(Call::AddDisk { spec: serde_json::from_str(spec).expect("a disk"), force: false })
        .expect("it is added");
    let folder = trial.die();
    let taken = MEMORY.replace("\"m\"", "\"b\"");
    let why = refusal(&taken, folder.clone());
    assert!(why.starts_with("disk \"b\" of {}/state/disks.json: id: the name \"b\" is taken by disk \"b\" (sidecore.toml:8)"), "{why}");
    let mut trial = Trial::start(MEMORY, folder).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(trial.disk("b").declared, "api");
}

/// A slow file system at the start is no reason to be without a daemon.
#[test]
fn a_start_waits_for_slow_images_as_long_as_one_turn_may_and_goes_on() {
    let file =
        |id: &str| format!("[[disk]]\nid = \"{id}\"\npath = \"{{}}/{id}.img\"\nsize = \"1M\"\n");
    let text = ["a", "b", "c"].map(file).concat();
    let mut trial = Trial::start_slowly(&text, folder(), Duration::from_secs(8));
    let late = |trial: &mut Trial| ["a", "b", "c"].map(|id| trial.disk(id).problem.is_some());
    assert_eq!(late(&mut trial), [false, true, true], "10 s for all of them together");
    trial.slow(Duration::ZERO);
    trial.pass(Duration::from_secs(10));
    assert_eq!(late(&mut trial), [false; 3]);
    assert!(dial(&trial.socket("c")).is_some());
}
