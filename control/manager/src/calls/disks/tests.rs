//! What operators are promised of disks: made whole or not at all, kept or taken back.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use backend::link::{LinkOpenError, LinkShards, LinkSource};
use config::api::{Call, DiskState, DiskView, ErrorKind};
use config::spec::{BackendKind, DiskChange, DiskMove, DiskResize};
use config::{DiskSpec, Size, Target};
use rustix::io::Errno;

use crate::simulated::{Machine, be_on};
use crate::trial::vmm::{FLUSH, Vmm, WRITE, dial};
use crate::trial::{Trial, disk_in, refused};

const FILE: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n";

fn memory(id: &str) -> DiskSpec {
    DiskSpec { backend: Some(BackendKind::Memory), size: Some(Size(1 << 20)), ..DiskSpec::new(id) }
}

/// An image in the trial's folder.
fn image(trial: &Trial, id: &str) -> DiskSpec {
    let path = trial.path(&format!("{id}.img")).display().to_string();
    DiskSpec { path: Some(path), size: Some(Size(1 << 20)), ..DiskSpec::new(id) }
}

fn add(trial: &mut Trial, spec: DiskSpec) -> Result<DiskView, (ErrorKind, String)> {
    trial
        .ask(Call::AddDisk { spec, force: false })
        .map(disk_in)
        .map_err(|why| (why.kind, why.error))
}

fn names(trial: &mut Trial) -> Vec<String> {
    match trial.ask(Call::ListDisks) {
        Ok(config::api::Answer::Disks(list)) => list.disks.into_iter().map(|it| it.id).collect(),
        other => panic!("{other:?}"),
    }
}

fn ids(id: &str) -> String {
    id.to_string()
}

#[test]
fn a_disk_that_is_added_is_served_and_there_after_a_restart() {
    let mut trial = Trial::of(FILE);
    let spec = image(&trial, "b");
    let added = add(&mut trial, spec).expect("it is added");
    assert_eq!((added.state, added.declared.as_str()), (DiskState::Waiting, "api"));
    assert!(added.was_empty, "its image was made");
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 1, 1), Some(0));
    assert!(!trial.disk("b").was_empty, "a guest has used it");
    let folder = trial.die();
    let mut again = Trial::start(FILE, folder).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(names(&mut again), ["a", "b"]);
    assert!(dial(&again.socket("b")).is_some());
}

/// A disk that is asked for, of what kind its refusal is, and what it says; `{}` is the trial's folder.
type Refusal = (DiskSpec, ErrorKind, &'static str);

/// What the plan has against it, in which `first` has an image.
fn refused_by_the_plan(trial: &Trial, first: &DiskSpec) -> Vec<Refusal> {
    use ErrorKind::{Conflict, Refused};
    let socket = |name: &str| DiskSpec {
        socket: Some(trial.path(name).display().to_string()),
        ..memory("b")
    };
    let same_image = DiskSpec { path: first.path.clone(), size: None, ..DiskSpec::new("b") };
    let in_a_group = DiskSpec { group: Some(ids("g")), ..memory("b") };
    let with_a_burst = DiskSpec { limit_burst_ms: Some(9), ..memory("b") };
    vec![
        (memory("a"), Conflict, "id: the name \"a\" is taken by disk \"a\" (sidecore.toml:8)"),
        (memory("B"), Refused, "id: the name \"B\" has 'B', which is not possible in a name"),
        (memory(""), Refused, "id: a name cannot be empty"),
        (
            same_image,
            Conflict,
            "path: the image \"{}/first.img\" is already that of disk \"first\" (api)",
        ),
        (in_a_group, Refused, "group: there is no group \"g\""),
        (with_a_burst, Refused, "limit_burst_ms: there is a burst, and no limit"),
        (
            socket("run/a.sock"),
            Conflict,
            "socket: the socket \"{}/run/a.sock\" is that of disk \"a\" (sidecore.toml:8)",
        ),
        (
            socket("run/../run/a.sock"),
            Conflict,
            "socket: the socket \"{}/run/../run/a.sock\" is that of disk \"a\" (sidecore.toml:8)",
        ),
        (socket("api.sock"), Conflict, "socket: \"{}/api.sock\" is the socket of the API"),
    ]
}

/// What the machine has against it.
fn refused_by_the_machine(trial: &Trial) -> Vec<Refusal> {
    let path = |name: &str| Some(trial.path(name).display().to_string());
    let of = |name: &str| DiskSpec { path: path(name), size: None, ..DiskSpec::new("b") };
    let at = |name: &str| DiskSpec { socket: path(name), ..image(trial, "b") };
    let all = [
        (of("none.img"), "cannot open {}/none.img: No such file or directory (os error 2)"),
        (of("a-folder.img"), "{}/a-folder.img is neither a regular file nor a block device"),
        (at("a-file"), "its socket {}/a-file: what is there is not a socket: move it away"),
        (
            at("a-file/b.sock"),
            "its socket {}/a-file/b.sock: {}/a-file: Not a directory (os error 20)",
        ),
    ];
    all.into_iter().map(|(spec, why)| (spec, ErrorKind::Refused, why)).collect()
}

#[test]
fn what_cannot_be_added_is_refused_and_leaves_nothing_behind() {
    let mut trial = Trial::of(FILE);
    std::fs::write(trial.path("a-file"), "text").expect("a file");
    std::fs::create_dir(trial.path("a-folder.img")).expect("a folder");
    let first = image(&trial, "first");
    add(&mut trial, first.clone()).expect("it is added");
    let bounds = trial.daemon.bounds();
    let folder = trial.path("").display().to_string();
    let folder = folder.trim_end_matches('/');
    let all = [refused_by_the_plan(&trial, &first), refused_by_the_machine(&trial)].concat();
    for (spec, kind, error) in all {
        let why = add(&mut trial, spec.clone()).expect_err("it is refused");
        let error = error.replace("{}", folder);
        let said = why.1.trim_start_matches("disk \"b\": ").to_string();
        assert_eq!((why.0, said), (kind, error), "{spec:?}");
        assert_eq!(names(&mut trial), ["a", "first"]);
        assert!(!trial.path("b.img").exists(), "an image was made for nothing");
        assert!(!trial.socket("b").exists());
        assert_eq!(trial.daemon.bounds(), bounds);
    }
}

/// Who waits for a slow file system keeps nobody else from being answered.
#[test]
fn a_slow_image_is_waited_for_without_anybody_else() {
    let mut trial = Trial::of(FILE);
    trial.slow(Duration::from_secs(5));
    let spec = image(&trial, "b");
    let asked = trial.asks(Call::AddDisk { spec, force: false });
    trial.rest();
    let began = trial.now();
    assert_eq!(names(&mut trial), ["a"]);
    assert_eq!(trial.now().since(began), 0, "who asked for a list waited");
    let added = trial.answer(asked).map(disk_in).expect("it is added");
    assert_eq!((added.state, added.problem), (DiskState::Waiting, None));
    assert!((5_000_000_000..6_000_000_000).contains(&trial.now().since(began)));
}

#[test]
fn an_image_that_is_too_late_is_opened_by_itself_afterwards() {
    let mut trial = Trial::of(FILE);
    trial.slow(Duration::from_secs(13));
    let spec = image(&trial, "b");
    let added = add(&mut trial, spec).expect("it is added");
    assert_eq!(added.state, DiskState::Waiting);
    let problem = added.problem.expect("it is not open");
    assert!(problem.ends_with("b.img is still being opened: its file system has not answered yet"));
    assert!(dial(&trial.socket("b")).is_none(), "a VMM would wait for an answer");
    trial.pass(Duration::from_secs(10));
    assert_eq!(trial.disk("b").problem, None);
    assert!(dial(&trial.socket("b")).is_some());
}

/// Its image is late, then it cannot be kept, and then its image is not closed in time: still there is an answer, well
/// before its caller gives up.
#[test]
fn an_addition_that_is_undone_is_answered_within_its_caller_s_time() {
    let mut trial = Trial::of(FILE);
    trial.slow(Duration::from_secs(9));
    trial.break_state(true);
    let spec = image(&trial, "b");
    let began = trial.now();
    let (kind, why) = add(&mut trial, spec).expect_err("it cannot be kept");
    assert_eq!(kind, ErrorKind::Internal, "{why}");
    assert!(why.starts_with("the change cannot be kept: "), "{why}");
    let took_ns = trial.now().since(began);
    assert!((11_000_000_000..15_000_000_000).contains(&took_ns), "{took_ns}");
    trial.break_state(false);
    trial.pass(Duration::from_secs(20));
    assert_eq!(names(&mut trial), ["a"]);
}

/// Whoever waits is told why there will be nothing; what is being closed may take longer than the daemon does.
#[test]
fn who_waits_while_the_daemon_stops_is_answered() {
    let mut trial = Trial::of(FILE);
    let spec = image(&trial, "c");
    add(&mut trial, spec).expect("it is added");
    trial.slow(Duration::from_secs(9));
    let spec = image(&trial, "b");
    let adds = trial.asks(Call::AddDisk { spec, force: false });
    let removes = trial.asks(Call::RemoveDisk { id: ids("c"), force: false });
    trial.pass(Duration::from_secs(1));
    trial.signal(crate::poll::Token::Stop);
    assert!(trial.has_ended());
    for asked in [adds, removes] {
        let (kind, why) = refused(trial.answer(asked));
        assert_eq!(kind, ErrorKind::Busy);
        assert!(why.starts_with("the daemon is being stopped; "), "{why}");
    }
}

#[test]
fn of_two_who_add_one_name_at_once_one_has_it() {
    let mut trial = Trial::of(FILE);
    trial.slow(Duration::from_secs(1));
    let spec = image(&trial, "b");
    let first = trial.asks(Call::AddDisk { spec: spec.clone(), force: false });
    let second = trial.asks(Call::AddDisk { spec, force: false });
    let answers = [trial.answer(first), trial.answer(second)];
    let refusals = answers.iter().filter_map(|answer| answer.as_ref().err());
    let refusals: Vec<_> = refusals.map(|why| (why.kind, why.error.as_str())).collect();
    assert_eq!(
        refusals,
        [(ErrorKind::Conflict, "id: the name \"b\" is taken by disk \"b\" (api)")]
    );
    assert_eq!(names(&mut trial), ["a", "b"]);
}

#[test]
fn what_cannot_be_kept_is_not_added_and_can_be_added_later() {
    let mut trial = Trial::of(FILE);
    let bounds = trial.daemon.bounds();
    trial.break_state(true);
    for spec in [memory("b"), image(&trial, "b")] {
        let (kind, why) = refused(trial.ask(Call::AddDisk { spec, force: false }));
        assert_eq!(kind, ErrorKind::Internal);
        assert!(why.starts_with("the change cannot be kept: "), "{why}");
        assert!(why.ends_with(crate::calls::UNDONE), "{why}");
        trial.rest();
        assert_eq!(names(&mut trial), ["a"]);
        assert!(dial(&trial.socket("b")).is_none());
        assert_eq!(trial.daemon.bounds(), bounds);
        assert!(!trial.path("b.img").exists(), "it was made in vain");
    }
    // Nor one whose image is late.
    trial.slow(Duration::from_secs(13));
    let spec = image(&trial, "b");
    let (kind, _) = refused(trial.ask(Call::AddDisk { spec: spec.clone(), force: false }));
    assert_eq!(kind, ErrorKind::Internal);
    trial.pass(Duration::from_secs(40));
    assert_eq!(names(&mut trial), ["a"]);
    assert!(!trial.path("b.img").exists(), "it was made in vain");
    trial.slow(Duration::ZERO);
    trial.break_state(false);
    add(&mut trial, spec).expect("it is added");
    assert_eq!(trial.daemon.bounds().devices, 2);
}

/// Whatever has its name was somebody's.
#[test]
fn an_image_that_was_there_stays_though_its_disk_is_not_added() {
    let mut trial = Trial::of(FILE);
    trial.break_state(true);
    for len in [0, 1 << 19, 1 << 20] {
        let spec = image(&trial, "b");
        std::fs::write(trial.path("b.img"), vec![0; len]).expect("an image");
        refused(trial.ask(Call::AddDisk { spec, force: false }));
        trial.pass(Duration::from_secs(1));
        assert!(trial.path("b.img").exists(), "{len}");
    }
}

/// A volume that is not active is no reason to make a file in memory, by whoever asks.
#[test]
fn no_image_is_made_among_devices_by_command_file_or_restart() {
    let volume = "/dev/sidecore-test-volume/vm1";
    let mut trial = Trial::of(FILE);
    let link = trial.path("vm1");
    std::os::unix::fs::symlink(volume, &link).expect("a link");
    let link = link.display().to_string();
    let in_dev = "/dev/sidecore-test-vm1";
    for path in [volume, in_dev, &link] {
        for size in [None, Some(Size(1 << 20))] {
            let spec = DiskSpec { path: Some(path.to_string()), size, ..DiskSpec::new("b") };
            let why = trial.ask(Call::AddDisk { spec, force: true }).expect_err("it is added");
            assert!(why.error.contains("no file is made in /dev"), "{}", why.error);
            assert!(why.hint.starts_with("activate its volume"), "{}", why.hint);
        }
        let wanted = format!("{FILE}[[disk]]\nid = \"b\"\npath = {path:?}\nsize = \"1M\"\n");
        let why = trial.reload(&wanted, false).expect_err("it is reloaded").error;
        assert!(why.contains("no file is made in /dev"), "{why}");
    }
    let mut folder = trial.die();
    for path in [volume, in_dev, &link] {
        let text = format!("{FILE}[[disk]]\nid = \"b\"\npath = {path:?}\nsize = \"1M\"\n");
        let mut trial = Trial::start(&text, folder).unwrap_or_else(|why| panic!("{why}"));
        let disk = trial.disk("b");
        assert_eq!(disk.state, DiskState::Failed);
        assert!(disk.problem.is_some_and(|why| why.contains("activate its volume")));
        assert!(!Path::new(path).exists());
        folder = trial.die();
    }
}

/// As on ext4, whose files have 16 TiB at most.
#[test]
fn an_image_that_cannot_be_as_long_as_it_is_to_be_is_not_left_behind() {
    let (mut trial, elsewhere) = (Trial::of(FILE), tempfile::tempdir().expect("a folder"));
    let path = elsewhere.path().join("b.img");
    let most = i64::MAX as u64 / 512 * 512;
    if std::fs::File::create(&path).and_then(|file| file.set_len(most)).is_ok() {
        return say_skipped("skipped: files of the usual folder may be as long as any\n");
    }
    std::fs::remove_file(&path).expect("an image");
    let path = path.display().to_string();
    let spec = DiskSpec { path: Some(path), size: Some(Size(most)), ..DiskSpec::new("b") };
    let (_, why) = refused(trial.ask(Call::AddDisk { spec, force: true }));
    assert!(why.contains("File too large"), "{why}");
    assert_eq!(std::fs::read_dir(elsewhere.path()).expect("a folder").count(), 0);
}

/// A guest that saw the first part of an image alone would take what it holds for damaged.
#[test]
fn a_disk_that_is_shorter_than_its_image_is_made_for_who_insists_alone() {
    let mut trial = Trial::of(FILE);
    let spec = image(&trial, "b");
    std::fs::write(trial.path("b.img"), vec![7; 2 << 20]).expect("an image");
    let (kind, why) = refused(trial.ask(Call::AddDisk { spec: spec.clone(), force: false }));
    assert_eq!(kind, ErrorKind::Conflict);
    let expected = "disk \"b\" would have 1M, and its image has 2M; its guest would see the first 1M of it alone";
    assert!(why.starts_with(expected), "{why}");
    assert_eq!(names(&mut trial), ["a"]);
    trial.ask(Call::AddDisk { spec, force: true }).expect("he insists");
    let sizes = |trial: &mut Trial| {
        let disk = trial.disk("b");
        (disk.problem, disk.size_bytes, disk.image_bytes)
    };
    assert_eq!(sizes(&mut trial), (None, Some(1 << 20), Some(2 << 20)));
    // A start has nobody to ask.
    let folder = trial.die();
    let mut trial = Trial::start(FILE, folder).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(sizes(&mut trial), (None, Some(1 << 20), Some(2 << 20)));
    assert_eq!(std::fs::read(trial.path("b.img")).expect("it"), vec![7; 2 << 20]);
    let resize = DiskResize { size: Size(2 << 20) };
    trial.ask(Call::ResizeDisk { id: ids("b"), resize, force: false }).expect("it is longer");
    assert_eq!(sizes(&mut trial), (None, Some(2 << 20), None));
}

/// It could never be filled, as a resize that is refused.
#[test]
fn a_disk_that_is_longer_than_its_file_system_is_made_for_who_insists_alone() {
    let mut trial = Trial::of(FILE);
    let medium = rustix::fs::statvfs(&*trial.path("")).expect("a file system");
    let size = Size(((medium.f_blocks * medium.f_frsize) >> 20 << 20) + (1 << 30));
    let spec = DiskSpec { size: Some(size), ..image(&trial, "b") };
    for len in [None, Some(1 << 20)] {
        if let Some(len) = len {
            std::fs::write(trial.path("b.img"), vec![7; len]).expect("an image");
        }
        let add = |force: bool| Call::AddDisk { spec: spec.clone(), force };
        let (kind, why) = refused(trial.ask(add(false)));
        assert_eq!(kind, ErrorKind::Conflict, "{why}");
        assert!(why.contains(", and the whole file system of its image has "), "{why}");
        // Neither made nor made longer.
        let has = std::fs::metadata(trial.path("b.img")).map(|it| it.len()).ok();
        assert_eq!(has, len.map(|len| len as u64));
        assert_eq!(names(&mut trial), ["a"]);
    }
    match trial.ask(Call::AddDisk { spec, force: true }) {
        Ok(_) => assert_eq!(trial.disk("b").size_bytes, Some(size.0)),
        Err(why) => assert!(why.error.contains("File too large"), "{why:?}"),
    }
}

fn say_skipped(why: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), why.as_bytes());
}

/// What an operator was told of is his, also when nothing has come of it since.
#[test]
fn an_image_that_was_made_stays_when_its_disk_is_removed() {
    let mut trial = Trial::of(FILE);
    let spec = image(&trial, "b");
    add(&mut trial, spec.clone()).expect("it is added");
    let gone = Call::RemoveDisk { id: ids("b"), force: false };
    trial.ask(gone).expect("it goes");
    trial.pass(Duration::from_secs(1));
    assert!(trial.path("b.img").exists());
    // Whoever adds it once more may have it anew.
    std::fs::remove_file(trial.path("b.img")).expect("removed");
    let again = add(&mut trial, spec).expect("it is added");
    assert!(again.was_empty && trial.path("b.img").exists());
}

/// That it was made may be told late, as while another process is to take over; what is on it is a guest's by then.
#[test]
fn an_image_that_was_made_stays_when_a_guest_has_used_it() {
    for is_used in [true, false] {
        let mut trial = Trial::of(FILE);
        let spec = image(&trial, "b");
        add(&mut trial, spec).expect("it is added");
        let vmm = is_used.then(|| Vmm::served(&mut trial, "b", 1));
        let number = trial.rooms().devices.number_of("b").expect("a device");
        let parts = trial.rooms().devices.disk_mut(number).expect("a disk");
        parts.made = parts.file;
        drop(vmm.map(Vmm::hang_up));
        trial.ask(Call::RemoveDisk { id: ids("b"), force: true }).expect("it goes");
        trial.pass(Duration::from_secs(1));
        assert_eq!(trial.path("b.img").exists(), is_used);
    }
}

#[test]
fn what_is_changed_is_shown_served_and_kept() {
    let mut trial = Trial::of(FILE);
    add(&mut trial, memory("b")).expect("it is added");
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    let change = DiskChange { share: Some(7), limit_iops: Some(10), ..DiskChange::default() };
    let changed = trial.ask(Call::ChangeDisk { id: ids("b"), change }).map(disk_in);
    let changed = changed.expect("it is changed");
    assert_eq!((changed.service.share, changed.service.limit_iops), (7, Some(10)));
    // A burst of 100 ms is one request; the next has to wait for its turn.
    let mut done = 0;
    for _ in 0..3 {
        vmm.guest.request(0, WRITE, 0, 1);
        trial.pass(Duration::from_millis(1));
        if vmm.guest.status(0).is_some() {
            done += 1;
        } else {
            break;
        }
    }
    assert!(done < 3, "no limit was kept");
    let folder = trial.die();
    let mut again = Trial::start(FILE, folder).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(again.disk("b").service.share, 7);
}

#[test]
fn what_cannot_be_changed_is_as_it_was() {
    let mut trial = Trial::of(FILE);
    add(&mut trial, memory("b")).expect("it is added");
    let share = || DiskChange { share: Some(7), ..DiskChange::default() };
    let zero = DiskChange { share: Some(0), ..DiskChange::default() };
    let cases = [
        ("a", share(), ErrorKind::Conflict, "disk \"a\" is declared in sidecore.toml, line 8"),
        ("c", share(), ErrorKind::NotFound, "there is no disk \"c\""),
        ("b", DiskChange::default(), ErrorKind::Refused, "nothing is to be changed"),
        ("b", zero, ErrorKind::Refused, "share: 0 is out of bounds"),
    ];
    for (id, change, kind, error) in cases {
        let why = trial.ask(Call::ChangeDisk { id: ids(id), change }).expect_err("it is refused");
        assert_eq!((why.kind, why.error.as_str()), (kind, error));
    }
    trial.break_state(true);
    let (kind, _) = refused(trial.ask(Call::ChangeDisk { id: ids("b"), change: share() }));
    assert_eq!((kind, trial.disk("b").service.share), (ErrorKind::Internal, 100));
    trial.break_state(false);
    trial.ask(Call::ChangeDisk { id: ids("b"), change: share() }).expect("it is changed");
}

#[test]
fn lost_data_is_remembered_until_an_operator_says_that_he_knows() {
    let mut trial = Trial::of(FILE);
    let spec = image(&trial, "b");
    add(&mut trial, spec).expect("it is added");
    let (kind, why) = refused(trial.ask(Call::ClearDisk { id: ids("b") }));
    assert_eq!(kind, ErrorKind::Conflict);
    assert_eq!(why, "disk \"b\" has lost no data that it knows of; there is nothing to clear");
    let number = trial.rooms().devices.number_of("b").expect("a device");
    let lost = |trial: &mut Trial| {
        trial.rooms().devices.disk(number).expect("a disk").disk.assume_sync_failed();
        trial.rooms().note_unsynced(number);
    };
    lost(&mut trial);
    let is_told = |trial: &mut Trial| {
        let problem = trial.disk("b").problem;
        problem.is_some_and(|why| why.contains("sidecore disk clear b"))
    };
    assert!(is_told(&mut trial));
    // A daemon after this one knows it, too.
    let folder = trial.die();
    let mut trial = Trial::start(FILE, folder).unwrap_or_else(|why| panic!("{why}"));
    assert!(is_told(&mut trial));
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    assert_ne!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0), "it lies");
    trial.ask(Call::ClearDisk { id: ids("b") }).expect("it is cleared");
    assert!(!is_told(&mut trial));
    assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
    assert_eq!(std::fs::read_dir(trial.path("state/unsynced")).expect("a folder").count(), 0);
}

/// Who puts the first right would meet the second.
#[test]
fn no_problem_of_a_disk_hides_another_one() {
    let mut trial = Trial::of(FILE);
    let spec = image(&trial, "b");
    add(&mut trial, spec).expect("it is added");
    let _vmm = Vmm::served(&mut trial, "b", 1);
    let number = trial.rooms().devices.number_of("b").expect("a device");
    trial.rooms().devices.disk(number).expect("a disk").disk.assume_sync_failed();
    std::fs::remove_file(trial.path("b.img")).expect("an image");
    trial.pass(Duration::from_secs(3));
    let problem = trial.disk("b").problem.expect("some");
    let parts = ["could not make data stable", "; besides, ", "was removed or renamed"];
    let at = parts.map(|part| problem.find(part));
    assert!(at[0] < at[1] && at[1] < at[2] && at[0].is_some(), "{problem}");
}

/// The mark would say it again after a restart, and nobody would know why.
#[test]
fn lost_data_whose_mark_stays_is_not_cleared() {
    let mut trial = Trial::of(FILE);
    let spec = image(&trial, "b");
    add(&mut trial, spec).expect("it is added");
    let number = trial.rooms().devices.number_of("b").expect("a device");
    trial.rooms().devices.disk(number).expect("a disk").disk.assume_sync_failed();
    std::fs::create_dir_all(trial.path("state/unsynced/b/x")).expect("a folder in its place");
    let (kind, why) = refused(trial.ask(Call::ClearDisk { id: ids("b") }));
    assert_eq!(kind, ErrorKind::Internal);
    assert!(why.starts_with("the mark of disk \"b\" cannot be removed: "), "{why}");
    assert!(trial.disk("b").problem.is_some());
}

#[test]
fn there_is_nothing_to_accept_of_a_guest_on_its_own_image() {
    let mut trial =
        Trial::of(&format!("{FILE}[[disk]]\nid = \"shut\"\npath = \"{{}}/none.img\"\n"));
    std::fs::write(trial.path("b.img"), vec![1; 1 << 20]).expect("an image");
    let spec = image(&trial, "b");
    add(&mut trial, spec).expect("it is added");
    let _vmm = Vmm::served(&mut trial, "b", 1);
    let cases = [
        ("b", ErrorKind::Conflict, "the guest of disk \"b\" is on the image that is there"),
        ("shut", ErrorKind::Refused, "disk \"shut\" is not open"),
        ("c", ErrorKind::NotFound, "there is no disk \"c\""),
    ];
    for (id, kind, error) in cases {
        let why = trial.ask(Call::AcceptDisk { id: ids(id) }).expect_err("it is refused");
        assert_eq!((why.kind, why.error.as_str()), (kind, error));
    }
}

#[test]
fn queues_go_where_an_operator_wants_them_and_stay_there() {
    let text = FILE.replace("size", "queues = 2\nsize");
    let mut trial = Trial::of(&text);
    let go = |to: &str, queue: Option<u16>| Call::MoveDisk {
        id: ids("a"),
        wish: DiskMove { to: to.parse::<Target>().expect("a target"), queue },
    };
    let (kind, why) = refused(trial.ask(go("1", None)));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.starts_with("no guest runs disk \"a\"; there is nothing to move; "), "{why}");
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    for to in [1, 0] {
        let moved = trial.ask(go(&to.to_string(), None)).map(disk_in).expect("they are moved");
        let cores: Vec<_> = moved.queues.iter().map(|queue| queue.sidecore).collect();
        assert_eq!((cores, moved.queues_by_hand), (vec![Some(to); 2], 2));
        assert_eq!(vmm.does(&mut trial, WRITE, 2, 5), Some(0), "at sidecore {to}");
    }
    let (_, why) = refused(trial.ask(go("2", None)));
    assert_eq!(
        why,
        "there is no sidecore 2: there are 2, from 0 on; `sidecore sidecores` lists them"
    );
    let (_, why) = refused(trial.ask(go("1", Some(2))));
    assert!(why.starts_with("queue 2 of disk \"a\" is not served now; "), "{why}");
    let freed = trial.ask(go("auto", None)).map(disk_in).expect("they are let go");
    assert_eq!(freed.queues_by_hand, 0);
}

/// `ls` lists it: that there is none would send its operator elsewhere.
#[test]
fn what_is_listed_and_not_open_is_never_said_to_be_none() {
    let mut trial = Trial::of(FILE);
    let spec = image(&trial, "b");
    add(&mut trial, spec).expect("it is added");
    let folder = trial.die();
    std::fs::remove_file(folder.path().join("b.img")).expect("an image");
    std::fs::write(folder.path().join("a-file"), "mine").expect("a file");
    let text = format!(
        "{FILE}[[disk]]\nid = \"shut\"\npath = \"{{}}/none.img\"\n[[switch]]\nid = \"lan\"\n[[nic]]\nid = \"n\"\n\
         switch = \"lan\"\nsocket = \"{{}}/a-file\"\n"
    );
    let mut trial = Trial::start(&text, folder).unwrap_or_else(|why| panic!("{why}"));
    let moved = || DiskMove { to: Target::Sidecore(0), queue: None };
    let resize = || DiskResize { size: Size(2 << 20) };
    for id in ["b", "shut"] {
        assert_eq!(trial.disk(id).state, DiskState::Failed);
        for call in [
            Call::AcceptDisk { id: ids(id) },
            Call::ClearDisk { id: ids(id) },
            Call::ResizeDisk { id: ids(id), resize: resize(), force: true },
            Call::MoveDisk { id: ids(id), wish: moved() },
            Call::ChangeDisk {
                id: ids(id),
                change: DiskChange { share: Some(50), ..DiskChange::default() },
            },
        ] {
            let name = format!("{call:?}");
            let Err(why) = trial.ask(call) else { continue };
            assert_ne!(why.kind, ErrorKind::NotFound, "{name}: {}", why.error);
            assert!(why.error.contains(&format!("disk {id:?}")), "{name}: {}", why.error);
        }
        let why = trial.ask(Call::ClearDisk { id: ids(id) }).expect_err("it is cleared");
        assert_eq!(why.error, format!("disk {id:?} is not open"));
    }
    let wish = config::spec::NicMove { to: Target::Sidecore(0) };
    let carrier = config::spec::Carrier::Down;
    for call in [
        Call::ShowNic { id: ids("n") },
        Call::SetCarrier { id: ids("n"), carrier },
        Call::MoveNic { id: ids("n"), wish },
        Call::ShowSwitch { id: ids("lan") },
    ] {
        let name = format!("{call:?}");
        let Err(why) = trial.ask(call) else { continue };
        assert_ne!(why.kind, ErrorKind::NotFound, "{name}: {}", why.error);
    }
    // Of another kind, that is said.
    for call in [Call::ClearDisk { id: ids("n") }, Call::AcceptDisk { id: ids("n") }] {
        let why = trial.ask(call).expect_err("it is none");
        assert!(why.error.contains("is a nic"), "{}", why.error);
    }
}

/// Sidecores that do not answer call a move off, and the operator is told that nothing has moved.
#[test]
fn a_front_end_that_goes_while_its_queue_moves_ends_the_call() {
    let mut trial = Trial::of(FILE);
    let vmm = Vmm::served(&mut trial, "a", 1);
    let from = trial.disk("a").queues[0].sidecore.expect("a sidecore");
    trial.stall(true);
    let wish = DiskMove { to: Target::Sidecore(1 - from), queue: None };
    let asked = trial.asks(Call::MoveDisk { id: ids("a"), wish });
    trial.rest();
    drop(vmm.hang_up());
    trial.rest();
    trial.stall(false);
    let (kind, why) = refused(trial.answer(asked));
    assert_eq!(kind, ErrorKind::Busy);
    assert!(why.starts_with("disk \"a\" was not moved: queue 0: "), "{why}");
    trial.pass(Duration::from_millis(10));
    assert_eq!(trial.disk("a").queues_attached, 0);
    assert_eq!(trial.daemon.loads(), [0, 0]);
}

/// A machine whose disk takes syncs, or fails them: what was synced.
#[derive(Default)]
struct Syncs {
    done: RefCell<Vec<PathBuf>>,
    fails: Cell<bool>,
}

impl Machine for Syncs {
    fn open_link(&self, _: &LinkSource, _: usize) -> Result<LinkShards, LinkOpenError> {
        unreachable!("there are no links")
    }

    fn sync_made(&self, path: &Path) -> Result<(), Errno> {
        if self.fails.get() {
            return Err(Errno::IO);
        }
        self.done.borrow_mut().push(path.to_path_buf());
        Ok(())
    }

    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }

    fn boot(&self) -> u64 {
        1
    }
}

/// A power cut after the answer finds the image that the answer was about.
#[test]
fn an_image_that_is_made_is_stable_before_its_disk_is_said_to_be_there() {
    let syncs = Rc::new(Syncs::default());
    be_on(Some(Rc::clone(&syncs) as Rc<dyn Machine>));
    let mut trial = Trial::of(FILE);
    let (spec, path) = (image(&trial, "b"), trial.path("b.img"));
    syncs.fails.set(true);
    let (kind, why) = add(&mut trial, spec.clone()).expect_err("it may be gone after a power cut");
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.contains(&format!("cannot sync {}", path.display())), "{why}");
    trial.pass(Duration::from_secs(1));
    assert!(!path.exists(), "what was made in vain goes");
    syncs.fails.set(false);
    add(&mut trial, spec.clone()).expect("it is added");
    assert_eq!(*syncs.done.borrow(), std::slice::from_ref(&path));
    // One that is there already is not made.
    trial.ask(Call::RemoveDisk { id: ids("b"), force: false }).expect("it is removed");
    add(&mut trial, spec).expect("it is added");
    assert_eq!(syncs.done.borrow().len(), 1);
    drop(trial);
    be_on(None);
}

/// Which socket its guest comes to is known before the disk is planned: what is kept of the image is kept of that guest.
#[test]
fn a_cut_image_that_is_added_again_is_refused_by_the_next_daemon_too() {
    const SERVED: u8 = 0;
    let mut trial = Trial::of(FILE);
    let disk = image(&trial, "b");
    add(&mut trial, disk.clone()).expect("it is added");
    let mut vmm = Vmm::served(&mut trial, "b", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 2_047, 7), Some(SERVED));
    vmm.guest.rings[0].base = 1;
    trial.ask(Call::RemoveDisk { id: "b".to_string(), force: true }).expect("he insists");
    let mut guest = vmm.hang_up();
    trial.rest();
    let cut = std::fs::File::options().write(true).open(trial.path("b.img"));
    cut.and_then(|image| image.set_len(1 << 19)).expect("cut");
    add(&mut trial, disk).expect("it is added");
    for daemon in ["the same", "the next"] {
        let mut vmm = Vmm::connect(&trial, "b", guest).expect("it listens");
        vmm.begin(&mut trial);
        trial.pass(Duration::from_secs(1));
        let why = trial.disk("b").problem.unwrap_or_default();
        assert!(why.contains("which was cut to 512K"), "{daemon} daemon: {why:?}");
        guest = vmm.hang_up();
        trial = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
    }
}
