//! Orders, and threads that are held up.

use std::sync::mpsc::sync_channel;

use config::plan::load;
use cpus::HostCpus;

use super::*;

fn plan(folder: &std::path::Path, size: &str) -> DiskPlan {
    let path = folder.join("a.raw");
    let text = format!("[[disk]]\nid = \"a\"\npath = {path:?}\nsize = \"{size}\"\n");
    let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
    load(&text, "f", "/", &host, None).expect("a plan").disks.remove(0)
}

/// Asks until it is known what became of it.
fn ask(openers: &mut Openers, plan: &DiskPlan, is_kept: bool) -> Outcome {
    loop {
        match openers.open(plan, (Purpose::Have, is_kept), Vetting::none(), Patience::Again) {
            Outcome::NotYet(_) => std::thread::yield_now(),
            over => return over,
        }
    }
}

#[test]
fn an_image_that_is_late_is_taken_later_whatever_has_become_known_since() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = plan(folder.path(), "1M");
    let mut openers = Openers::default();
    assert!(matches!(ask(&mut openers, &plan, true), Outcome::Missing { is_device: false }));
    // Asked for as a new one, and again as one that is kept.
    let first = openers.open(&plan, (Purpose::Have, false), Vetting::none(), Patience::Again);
    let over = match first {
        Outcome::NotYet(_) => ask(&mut openers, &plan, true),
        over => over,
    };
    let Outcome::Over(Ok(opened), Some(file)) = over else { panic!("it is not open") };
    assert_eq!(opened.disk.file_id(), Some(file));
    assert!(openers.jobs.is_empty() && openers.leaving.is_empty());
}

#[test]
fn what_nobody_wants_any_more_is_closed_before_it_is_opened_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) = (plan(folder.path(), "1M"), plan(folder.path(), "2M"));
    let mut openers = Openers::default();
    for turn in 0..20 {
        let _ = openers.open(&one, (Purpose::Have, false), Vetting::none(), Patience::Again);
        if turn % 2 == 0 {
            openers.keep_only(|_| false);
        }
        let Outcome::Over(opened, _) = ask(&mut openers, &other, false) else {
            panic!("it is not open")
        };
        // Its lock is not that of the thread before.
        let disk = opened.expect("it is open").disk;
        assert_eq!(disk.size_bytes(), 2 << 20);
    }
}

/// Holds a thread up as a dead file system does, until it is dropped.
fn held(openers: &mut Openers, image: &str) -> std::sync::mpsc::SyncSender<()> {
    let (until, wait) = sync_channel::<()>(0);
    // No time is left in this turn.
    openers.waited = FIRST_WAIT;
    let path = std::path::PathBuf::from(image);
    let image = Image::File {
        waits: backend::Waits::default(),
        path,
        size_bytes: None,
        readonly: false,
        cache: backend::Cache::Auto,
    };
    let said = openers.aside(image, move || wait.recv().is_ok());
    assert_eq!(said, Err(NotYet::Late));
    until
}

#[test]
fn threads_that_one_file_system_keeps_are_none_of_others() {
    let mut openers = Openers::default();
    let places: Vec<String> = (0..).map(|n| format!("/dev/no-such{n}")).take(OPENERS_MAX).collect();
    let held: Vec<_> =
        (0..EACH_MAX).map(|n| held(&mut openers, &format!("/proc/dead{n}"))).collect();
    let image = |path: &str| Image::File {
        waits: backend::Waits::default(),
        path: path.into(),
        size_bytes: None,
        readonly: false,
        cache: backend::Cache::Auto,
    };
    let room = |openers: &mut Openers, path: &str| openers.has_room(&image(path)).map(drop);
    assert_eq!(room(&mut openers, "/proc/one-more"), Err(NotYet::Late));
    assert_eq!(room(&mut openers, "/dev/no-such"), Ok(()));
    let more: Vec<_> =
        places[EACH_MAX..].iter().map(|place| self::held(&mut openers, place)).collect();
    assert_eq!(room(&mut openers, "/dev/no-such"), Err(NotYet::NoThread));
    drop((held, more));
    while room(&mut openers, "/proc/one-more").is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn control_waits_no_longer_in_one_turn_than_once() {
    let mut openers = Openers::default();
    let medium = openers.media.of("/proc/dead".as_ref(), now());
    assert_eq!(openers.patience_for(&medium, Patience::First), FIRST_WAIT);
    openers.waited = FIRST_WAIT - LATE_WAIT;
    assert_eq!(openers.patience_for(&medium, Patience::First), LATE_WAIT);
    openers.waited = FIRST_WAIT * 2;
    assert_eq!(openers.patience_for(&medium, Patience::First), SHORT_WAIT);
    openers.begin_turn();
    assert_eq!(openers.patience_for(&medium, Patience::First), FIRST_WAIT);
    // What nobody waits for any more is late, too.
    let held = held(&mut openers, "/proc/dead");
    openers.begin_turn();
    for leaving in &mut openers.leaving {
        leaving.begun = now() - LATE_AFTER;
    }
    assert_eq!(openers.patience_for(&medium, Patience::First), LATE_WAIT);
    let other = openers.media.of("/dev/no-such".as_ref(), now());
    assert_eq!(openers.patience_for(&other, Patience::First), FIRST_WAIT);
    drop(held);
}

#[test]
fn an_image_is_closed_by_a_thread_of_its_own_before_it_is_opened_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = plan(folder.path(), "1M");
    let mut openers = Openers::new().expect("a descriptor");
    // Each has the lock of the one before, or fails.
    for number in 0..20 {
        let Outcome::Over(Ok(opened), _) = ask(&mut openers, &plan, false) else {
            panic!("it is not open")
        };
        assert!(openers.let_go(&plan, opened.disk, Some(number)));
    }
    let mut closed = Vec::new();
    while closed.len() < 20 {
        closed.extend(openers.closed());
        std::thread::yield_now();
    }
    assert_eq!(closed, (0..20).collect::<Vec<_>>());
    assert!(!openers.is_closing());
}

#[test]
fn what_came_of_an_image_is_no_answer_to_one_who_says_what_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut header = b"QFI\xfb\0\0\0\x03".to_vec();
    header.resize(1 << 20, 0);
    std::fs::write(folder.path().join("a.raw"), header).expect("an image");
    let plan = plan(folder.path(), "1M");
    let bonds = Bonds::in_folder("/nowhere");
    let mut openers = Openers::default();
    let vetting = |plan: &DiskPlan| Vetting::of(plan, &bonds, false);
    assert!(openers.begin(&plan, (Purpose::Have, false, false), vetting(&plan)).is_some());
    while !openers.has_answered("a") {
        std::thread::yield_now();
    }
    // It is refused, and nobody has asked yet.
    let mut said = plan.clone();
    said.format = Some(config::spec::Format::Raw);
    loop {
        let vetting = vetting(&said);
        match openers.open(&said, (Purpose::Have, false), vetting, Patience::Again) {
            Outcome::NotYet(_) => std::thread::yield_now(),
            Outcome::Over(opened, _) => return drop(opened.expect("it is raw")),
            _ => panic!("it is there"),
        }
    }
}
