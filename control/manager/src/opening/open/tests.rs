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
    let add = || Call::AddDisk { spec: serde_json::from_str(&spec).expect("a disk"), force: false };
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
            let call =
                Call::AddDisk { spec: serde_json::from_str(&spec).expect("a disk"), force: false };
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

/// A daemon in that folder, and what is wrong with its disk `a`. A process that another test is just starting has a copy of
/// the sockets of the one before.
fn started(text: &str, folder: &std::rc::Rc<tempfile::TempDir>) -> (Trial, Option<String>) {
    let mut trial = loop {
        match Trial::start(text, std::rc::Rc::clone(folder)) {
            Ok(trial) => break trial,
            Err(why) if why.to_string().contains("another daemon") => std::thread::yield_now(),
            Err(why) => panic!("{why}"),
        }
    };
    let disks = trial.rooms().plan.disks.iter().any(|disk| disk.id == "a");
    let problem = if disks { trial.disk("a").problem } else { None };
    (trial, problem)
}

/// Its file system may not be mounted yet, and an empty one would be all that its guest is shown.
#[test]
fn an_image_that_was_there_once_is_not_made_anew() {
    let text = [MEMORY, FILE].concat();
    let folder = folder();
    let (trial, problem) = started(&text, &folder);
    assert_eq!(problem, None, "a new disk gets a new image");
    let image = trial.path("a.img");
    trial.die();
    std::fs::remove_file(&image).expect("an image");
    let (mut trial, problem) = started(&text, &folder);
    let path = image.display();
    let expected = format!(
        "its image {path} is missing, and was there before; put it back, or mount its file system \
         (or `touch {path}`, for an empty one); when that is right, `sidecore reload`"
    );
    assert_eq!((problem, trial.disk("a").state), (Some(expected), DiskState::Failed));
    // Nor by a reload, whatever else is different.
    let done = trial.reload(&text, false).expect("nothing is different");
    assert_eq!((done.changes, image.exists()), (Vec::<String>::new(), false));
    let [ref not_open] = done.not_open[..] else { panic!("{:?}", done.not_open) };
    assert_eq!((not_open.id.as_str(), not_open.retried), ("a", false));
    assert!(not_open.problem.contains("was there before"), "{not_open:?}");
    for other in ["serial = \"x\"\n", "size = \"2M\"\n"] {
        let file = FILE.replace("size = \"1M\"\n", "");
        let size = if other.starts_with("size") { "" } else { "size = \"1M\"\n" };
        let answer = trial.reload(&[MEMORY, &file, size, other].concat(), false);
        assert!(!image.exists(), "{answer:?}");
        trial.reload(&text, false).expect("as before");
    }
    // He says that he wants it so.
    std::fs::write(&image, "").expect("touched");
    trial.reload(&text, false).expect("it is there");
    let shown = trial.disk("a");
    assert_eq!((shown.problem, shown.was_empty), (None, true));
    // As one that is taken out of the file, and put in again later.
    trial.reload(MEMORY, false).expect("it goes");
    trial.pass(Duration::from_secs(1));
    std::fs::remove_file(&image).expect("an image");
    trial.reload(&text, false).expect("it is new");
    assert_eq!((trial.disk("a").problem, image.exists()), (None, true));
}

/// Whatever ends the daemon, and whenever.
#[test]
fn a_disk_that_is_added_slowly_has_its_image_made_once() {
    let spec = |trial: &Trial| {
        let path = trial.path("a.img").display().to_string();
        serde_json::from_str(&format!(r#"{{"id":"a","path":"{path}","size":"1M"}}"#))
    };
    let slow = Duration::from_secs(13);
    for killed_after in [5, 11, 12, 14, 16] {
        let folder = folder();
        let (mut trial, _) = started(MEMORY, &folder);
        trial.slow(slow);
        let added = spec(&trial).expect("a disk");
        let asked = trial.asks(Call::AddDisk { spec: added, force: false });
        trial.pass(Duration::from_secs(killed_after));
        let (image, is_made) = (trial.path("a.img"), killed_after > slow.as_secs());
        assert_eq!(image.exists(), is_made);
        drop(asked);
        trial.die();
        // Nobody was answered yet.
        if killed_after < 10 {
            continue;
        }
        let (trial, problem) = started(MEMORY, &folder);
        assert_eq!((problem, image.exists()), (None, true), "{killed_after}");
        trial.die();
        std::fs::remove_file(&image).expect("an image");
        let (_, problem) = started(MEMORY, &folder);
        assert!(problem.is_some_and(|why| why.contains("was there before")), "{killed_after}");
    }
}

/// Where a program kept devices that kept no images, its disks had theirs.
#[test]
fn a_disk_of_an_earlier_program_had_its_image() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let kept = format!(
        r#"{{"format":"sidecore-state","version":1,"disks":[{{"id":"a","path":"{}","size":"1M"}}]}}"#,
        at("a.img")
    );
    std::fs::write(at("state/disks.json"), kept).expect("a state");
    let (trial, problem) = started(MEMORY, &folder);
    assert!(problem.is_some_and(|why| why.contains("was there before")));
    assert!(!trial.path("a.img").exists());
}

/// The next start would make one anew that is not mounted by then.
#[test]
fn that_an_image_is_there_is_kept_as_soon_as_it_can_be() {
    let text = [MEMORY, FILE].concat();
    let folder = folder();
    std::fs::create_dir(folder.path().join("state/disks.json")).expect("in its way");
    // What cannot be read refuses the start.
    assert!(Trial::start(&text, std::rc::Rc::clone(&folder)).is_err());
    std::fs::remove_dir(folder.path().join("state/disks.json")).expect("out of its way");
    let (mut trial, _) = started(MEMORY, &folder);
    trial.break_state(true);
    trial.reload(&text, false).expect("it is added");
    trial.pass(Duration::from_secs(3));
    trial.break_state(false);
    trial.pass(Duration::from_secs(2));
    let image = trial.path("a.img");
    trial.die();
    std::fs::remove_file(&image).expect("an image");
    let (_, problem) = started(&text, &folder);
    assert!(problem.is_some_and(|why| why.contains("was there before")));
}

/// A number that came again would have an old device's late words.
#[test]
fn a_number_is_never_used_again() {
    let mut trial = Trial::of(MEMORY);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let spec = r#"{"id":"b","backend":"memory","size":"1M"}"#;
        trial
            .ask(Call::AddDisk { spec: serde_json::from_str(spec).expect("a disk"), force: false })
            .expect("added");
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
    let same = |a: &Source, b: &Source| {
        ImageName::of(a).is_some_and(|image| Some(image) == ImageName::of(b))
    };
    assert!(same(&file("/a"), &file("/a")) && !same(&file("/a"), &file("/b")));
    assert!(same(&remote("l", "a"), &remote("l", "a")));
    assert!(!same(&remote("l", "a"), &remote("m", "a")));
    assert!(!same(&remote("l", "a"), &file("a")));
    assert!(!same(&memory, &memory), "each is its own");
}
