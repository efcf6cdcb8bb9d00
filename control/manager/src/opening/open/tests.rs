//! What is promised of opening: what passes by itself is waited for, and nothing is opened twice.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use config::api::{Call, DiskState};
use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::trial::vmm::dial;
use crate::trial::{Trial, folder, refused};

const MEMORY: &str = "[[disk]]\nid = \"m\"\nbackend = \"memory\"\nsize = \"1M\"\n";
const FILE: &str = "[[disk]]\nid = \"a\"\npath = \"{}/a.img\"\nsize = \"1M\"\n";

/// Another process that has the image, until it is killed.
struct Elsewhere(Child);

impl Elsewhere {
    fn of(path: &Path) -> Elsewhere {
        std::fs::write(path, vec![0; 1 << 20]).expect("an image");
        let mut child = Command::new("flock");
        child.args(["-F", "-x"]).arg(path).args(["sleep", "1000"]);
        let child = child.stdin(Stdio::null()).spawn().expect("a process");
        let image = std::fs::File::open(path).expect("an image");
        while flock(&image, FlockOperation::NonBlockingLockExclusive).is_ok() {
            flock(&image, FlockOperation::Unlock).expect("let go");
            std::thread::yield_now();
        }
        Elsewhere(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn one_disk_that_is_missing_takes_no_other_tenant_down() {
    let lost = "[[disk]]\nid = \"lost\"\npath = \"{}/lost.img\"\n";
    let mut trial = Trial::of(&format!("{lost}{FILE}"));
    assert!(dial(&trial.socket("a")).is_some());
    // A VMM is refused and comes again, rather than wait for an answer that nobody gives.
    assert!(dial(&trial.socket("lost")).is_none());
    let shown = trial.disk("lost");
    assert_eq!(shown.state, DiskState::Failed);
    let problem = shown.problem.expect("it is told");
    assert!(problem.contains("put the image back"), "{problem}");
    assert!(problem.ends_with("; when that is right, `sidecore reload`"), "{problem}");
    // It is not tried again by itself: an image that comes and goes is no disk.
    std::fs::write(trial.path("lost.img"), vec![0; 4096]).expect("an image");
    trial.pass(Duration::from_secs(60));
    assert_eq!(trial.disk("lost").state, DiskState::Failed);
}

#[test]
fn an_image_that_another_process_has_is_waited_for_a_moment_and_then_told_of() {
    for is_let_go in [true, false] {
        let folder = folder();
        let elsewhere = Elsewhere::of(&folder.path().join("a.img"));
        let pid = elsewhere.0.id();
        let mut trial = Trial::start(&format!("{MEMORY}{FILE}"), folder);
        let trial = trial.as_mut().unwrap_or_else(|why| panic!("{why}"));
        let shown = trial.disk("a");
        assert_eq!(shown.state, DiskState::Waiting);
        let problem = shown.problem.expect("it is told");
        assert!(problem.contains(&format!("process {pid}")), "{problem}");
        let elsewhere = (!is_let_go).then_some(elsewhere);
        trial.pass(Duration::from_secs(3));
        let state = if is_let_go { DiskState::Waiting } else { DiskState::Failed };
        let shown = trial.disk("a");
        assert_eq!((shown.state, shown.problem.is_none()), (state, is_let_go));
        assert_eq!(dial(&trial.socket("a")).is_some(), is_let_go);
        drop(elsewhere);
        trial.reload(&format!("{MEMORY}{FILE}"), false).expect("it is free");
        assert!(dial(&trial.socket("a")).is_some());
    }
}

#[test]
fn an_operator_is_told_at_once_who_has_an_image() {
    let mut trial = Trial::of(MEMORY);
    let elsewhere = Elsewhere::of(&trial.path("b.img"));
    let path = trial.path("b.img").display().to_string();
    let spec = format!(r#"{{"id":"b","path":"{path}"}}"#);
    let add = || Call::AddDisk(serde_json::from_str(&spec).expect("a disk"));
    let began = trial.now();
    let (_, why) = refused(trial.ask(add()));
    assert!(why.contains(&format!("process {}", elsewhere.0.id())), "{why}");
    assert!(trial.now().since(began) < 1_000_000_000);
    drop(elsewhere);
    trial.ask(add()).expect("it is free");
}

/// Two guests on one image would destroy it, whatever name each has for it.
#[test]
fn one_image_is_one_disk_whatever_its_names_are() {
    let mut trial = Trial::of(&format!("{MEMORY}{FILE}"));
    std::os::unix::fs::symlink(trial.path("a.img"), trial.path("link.img")).expect("a link");
    std::fs::hard_link(trial.path("a.img"), trial.path("hard.img")).expect("a link");
    let at = |trial: &Trial, name: &str| trial.path(name).display().to_string();
    for name in ["a.img", "link.img", "hard.img", "run/../a.img"] {
        let path = at(&trial, name);
        for more in ["", r#","migratable":true"#, r#","readonly":true"#] {
            let spec = format!(r#"{{"id":"b","path":"{path}"{more}}}"#);
            let call = Call::AddDisk(serde_json::from_str(&spec).expect("a disk"));
            let (_, why) = refused(trial.ask(call));
            assert!(why.contains("disk \"a\""), "{name}{more}: {why}");
        }
    }
    // Both of them may read what nobody writes.
    let read =
        |id: &str| format!("[[disk]]\nid = \"{id}\"\npath = \"{{}}/a.img\"\nreadonly = true\n");
    let text = [MEMORY, &read("a"), &read("b")].concat();
    let done = trial.reload(&text, true);
    let told = done.map(|view| view.changes).map_err(|why| format!("{why}; {}", why.hint));
    // Whether a plan may name one image twice is the plan's to say.
    if let Ok(changes) = told {
        assert!(changes.contains(&"added disk b".to_string()), "{changes:?}");
    }
}

/// A number that came again would have an old device's late words.
#[test]
fn a_number_is_never_used_again() {
    let mut trial = Trial::of(MEMORY);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let spec = r#"{"id":"b","backend":"memory","size":"1M"}"#;
        trial.ask(Call::AddDisk(serde_json::from_str(spec).expect("a disk"))).expect("added");
        seen.push(trial.rooms().devices.number_of("b").expect("a device"));
        let gone = Call::RemoveDisk { id: "b".to_string(), force: false };
        trial.ask(gone).expect("it goes");
    }
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
}

#[test]
fn images_are_one_by_their_paths_and_disks_of_links_by_their_names() {
    let file = |path: &str| Source::File {
        path: path.to_string(),
        size_bytes: None,
        cache: config::spec::Cache::Auto,
    };
    let remote = |link: &str, name: &str| Source::Remote { link: link.into(), name: name.into() };
    let memory = Source::Memory { size_bytes: 512 };
    assert!(is_same_image(&file("/a"), &file("/a")) && !is_same_image(&file("/a"), &file("/b")));
    assert!(is_same_image(&remote("l", "a"), &remote("l", "a")));
    assert!(!is_same_image(&remote("l", "a"), &remote("m", "a")));
    assert!(!is_same_image(&remote("l", "a"), &file("a")));
    assert!(!is_same_image(&memory, &memory), "each is its own");
}
