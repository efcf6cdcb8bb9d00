//! What is promised of a file that is read again: all of it is done or nothing, and no guest loses unawares.

use std::io::Write;
use std::time::Duration;

use config::api::{ActionView, Call, DiskState, EffectView, ErrorKind, ReloadView};
use config::spec::{BackendKind, DiskResize, StageChange, StageKind};
use config::{DiskSpec, Size};
use control::mode::Mode;

use super::effects::{refuse_losses, say_made, say_refused};
use super::*;
use crate::manager::Manager;
use crate::opening::apart::LOOKS;
use crate::poll::Token;
use crate::rights::READS;
use crate::simulated::Heard;
use crate::sizes::misfit::Misfit;
use crate::trial::vmm::{FLUSH, Guest, READ, Vmm, WRITE, dial};
use crate::trial::{Trial, refused};

const MIB: u64 = 1 << 20;
const MEMORY: &str = "[[disk]]\nid = \"m\"\nbackend = \"memory\"\nsize = \"1M\"\n";

/// A disk of a file; `more` is what else is said of it.
fn disk(id: &str, path: &str, more: &str) -> String {
    format!("[[disk]]\nid = \"{id}\"\npath = \"{{}}/{path}\"\n{more}")
}

fn file(id: &str) -> String {
    disk(id, &format!("{id}.img"), "size = \"1M\"\n")
}

fn both(first: &str, second: &str) -> String {
    format!("{first}{second}")
}

/// What is shown of the plan in force: names, sizes, and what is wrong.
fn seen(trial: &mut Trial) -> Vec<(String, Option<u64>, Option<String>)> {
    match trial.ask(Call::ListDisks) {
        Ok(Answer::Disks(list)) => {
            list.disks.into_iter().map(|it| (it.id, it.size_bytes, it.problem)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn names(trial: &mut Trial) -> Vec<String> {
    seen(trial).into_iter().map(|(id, ..)| id).collect()
}

fn image(trial: &Trial, name: &str, len: u64, fill: u8) {
    std::fs::write(trial.path(name), vec![fill; len as usize]).expect("an image");
}

/// Whoever is connected goes on; nobody else could come.
#[test]
fn a_socket_whose_file_was_removed_is_made_again() {
    let text = both(&file("a"), MEMORY);
    let mut trial = Trial::of(&text);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    for id in ["a", "m"] {
        std::fs::remove_file(trial.socket(id)).expect("it is removed");
        assert!(dial(&trial.socket(id)).is_none());
    }
    let told = ["a", "m"].map(|id| format!("the socket of disk {id} again, which was removed"));
    let dry = trial.dry(&text).expect("it could be done");
    let what: Vec<&str> = dry.iter().map(|effect| effect.what.as_str()).collect();
    assert_eq!(what, told.each_ref().map(|told| format!("make {told}")));
    assert!(dry.iter().all(|it| it.action == ActionView::Changed && !it.guest_loses));
    assert!(dial(&trial.socket("a")).is_none(), "a dry run makes nothing");
    let done = trial.reload(&text, false).expect("it is done");
    assert_eq!(done.changes, told.map(|told| format!("made {told}")));
    assert!(dial(&trial.socket("a")).is_some());
    assert_eq!(vmm.does(&mut trial, READ, 1, 0), Some(0), "its guest goes on");
    Vmm::served(&mut trial, "m", 1);
    assert_eq!(trial.reload(&text, false).expect("it is done").changes, [""; 0]);
    // Another one's name is not taken away.
    std::fs::remove_file(trial.socket("m")).expect("it is removed");
    std::fs::write(trial.socket("m"), "mine").expect("a file");
    assert_eq!(trial.reload(&text, false).expect("it is done").changes, [""; 0]);
}

/// Nobody could ask for anything else: so it is made before the file is read.
#[test]
fn the_api_s_sockets_are_made_again_whatever_is_wrong_in_the_file() {
    let mut trial = Trial::of(MEMORY);
    let path = trial.path("api.sock");
    let told = format!("the API's socket {} again, which was removed", path.display());
    std::fs::remove_file(&path).expect("it is removed");
    let dry = trial.dry(MEMORY).expect("it could be done");
    let what: Vec<&str> = dry.iter().map(|effect| effect.what.as_str()).collect();
    assert_eq!(what, [format!("make {told}")]);
    assert!(!path.exists(), "a dry run makes nothing");
    trial.write("nonsense");
    trial.manager().reload_on_signal();
    assert!(dial(&path).is_some());
    // One that nobody listens at is another one.
    std::fs::remove_file(&path).expect("it is removed");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    assert!(dial(&path).is_none());
    let done = trial.reload(MEMORY, false).expect("it is done");
    assert_eq!(done.changes, [format!("made {told}")]);
    assert!(dial(&path).is_some());
    assert_eq!(trial.reload(MEMORY, false).expect("it is done").changes, [""; 0]);
    // What is no socket is not taken away, and all else is done.
    std::fs::remove_file(&path).expect("it is removed");
    std::fs::write(&path, "mine").expect("a file");
    let (_, why) = refused(trial.ask(Call::Reload { force: false }));
    assert!(why.contains("cannot be made again: something that is not a socket is in its place"));
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "mine");
}

/// It is as gone as one whose file was removed.
#[test]
fn a_device_s_socket_that_nobody_listens_at_is_made_again() {
    let mut trial = Trial::of(MEMORY);
    std::fs::remove_file(trial.socket("m")).expect("it is removed");
    drop(std::os::unix::net::UnixListener::bind(trial.socket("m")).expect("a socket"));
    let done = trial.reload(MEMORY, false).expect("it is done");
    assert_eq!(done.changes, ["made the socket of disk m again, which was removed"]);
    Vmm::served(&mut trial, "m", 1);
}

#[test]
fn what_is_different_is_done_and_told_in_order() {
    let mut trial = Trial::of(&both(&file("a"), &file("b")));
    let text = "[[group]]\nid = \"g\"\nlimit_iops = 9\n[[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\n";
    let wanted = [text, &disk("b", "b.img", "size = \"2M\"\nshare = 7\n"), &file("c")].concat();
    let done = trial.reload(&wanted, false).expect("it is done");
    let words = [
        "removed disk a",
        "added group g: at most 9 requests/s, bursts of 100 ms",
        "set disk b: share 100 becomes 7",
        "resized disk b to 2M",
        "added disk c",
        "added switch s",
        "added nic n",
    ];
    let is_told = |(told, word): (&String, &&str)| told.starts_with(*word);
    let told = done.changes.iter().collect::<Vec<_>>();
    for word in words {
        assert!(told.iter().any(|one| is_told((one, &word))), "{word}: {told:?}");
    }
    assert_eq!(told.len(), words.len(), "{told:?}");
    assert!(!done.dry_run && done.restart_needed.is_empty());
    assert_eq!(names(&mut trial), ["b", "c"]);
    assert_eq!(trial.disk("b").size_bytes, Some(2 * MIB));
    assert!(dial(&trial.socket("a")).is_none());
    assert!(dial(&trial.socket("c")).is_some() && dial(&trial.socket("n")).is_some());
    // Read once more, nothing is different.
    assert_eq!(trial.reload(&wanted, false).expect("it is done").changes, [""; 0]);
}

#[test]
fn lines_that_moved_are_no_change_and_are_shown_where_they_are() {
    let mut trial = Trial::of(&both(MEMORY, &file("a")));
    let moved = format!("# a comment\n\n{}{MEMORY}", file("a"));
    assert_eq!(trial.reload(&moved, false).expect("it is done").changes, [""; 0]);
    assert_eq!(trial.disk("a").declared, "sidecore.toml:10");
    assert_eq!(trial.disk("m").declared, "sidecore.toml:14");
}

/// One entry that cannot be opened refuses all of them, before anything is changed.
#[test]
fn a_reload_that_cannot_be_done_whole_changes_nothing() {
    let mut trial = Trial::of(&both(MEMORY, &file("a")));
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    std::fs::create_dir(trial.path("folder.img")).expect("a folder");
    std::fs::write(trial.path("a-file"), "text").expect("a file");
    let before = seen(&mut trial);
    let bounds = trial.daemon.bounds();
    // `a` would go, and `new` would come.
    let new = file("new");
    let cases: [(String, &str); 7] = [
        (disk("x", "none.img", ""), "cannot open "),
        (disk("x", "folder.img", ""), "is neither a regular file nor a block device"),
        (disk("x", "x.img", "size = \"1M\"\nsocket = \"{}/a-file/x.sock\"\n"), "its socket "),
        ("[[nic]]\nid = \"n\"\ninterface = \"no-such-if\"\nvia = \"packet\"\n".to_string(), "no-such-if"),
        ("[[switch]]\nid = \"s\"\n[[switch.uplink]]\ninterface = \"no-such-if\"\nvia = \"packet\"\n".to_string(), "no-such-if"),
        ("[[disk]]\nid = \"x\"\n".to_string(), "the disk has no back-end"),
        ("[[disk\n".to_string(), "sidecore.toml"),
    ];
    for (wrong, words) in cases {
        let text = [MEMORY, &new, &wrong].concat();
        // Whatever its guest would lose.
        let (_, why) = refused(trial.reload(&text, true));
        assert!(why.contains(words), "{words}: {why}");
        assert_eq!(seen(&mut trial), before, "{why}");
        assert!(dial(&trial.socket("new")).is_none() && !trial.socket("x").exists());
        assert_eq!(trial.daemon.bounds().descriptors.promised, bounds.descriptors.promised);
    }
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    trial.reload(&both(MEMORY, &new), true).expect("it can be done");
    assert_eq!(names(&mut trial), ["m", "new"]);
}

#[test]
fn a_nic_that_did_not_open_before_is_opened_when_its_socket_can_be_made() {
    let nic = "[[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\n";
    let text = [MEMORY, nic].concat();
    let folder = crate::trial::folder();
    let in_its_way = folder.path().join("run/n.sock");
    std::fs::write(&in_its_way, "text").expect("a file");
    let mut trial = Trial::start(&text, folder).unwrap_or_else(|why| panic!("{why}"));
    let done = trial.reload(&text, false).expect("it is no mistake of the file");
    let [ref not_open] = done.not_open[..] else { panic!("{:?}", done.not_open) };
    assert_eq!((not_open.kind, not_open.id.as_str()), (config::api::ThingView::Nic, "n"));
    assert!(not_open.problem.contains("is not a socket: move it away"), "{not_open:?}");
    std::fs::remove_file(&in_its_way).expect("moved away");
    let done = trial.reload(&text, false).expect("it can be made");
    assert_eq!((done.changes, done.not_open), (vec!["opened nic n".to_string()], Vec::new()));
    assert!(dial(&trial.socket("n")).is_some());
    assert_eq!(trial.nic("n").problem, None);
}

#[test]
fn an_image_that_was_made_in_vain_is_not_left_behind() {
    let mut trial = Trial::of(MEMORY);
    image(&trial, "odd.img", MIB + 512, 1);
    let odd = disk("odd", "odd.img", "block_size = 4096\n");
    let text = [MEMORY, &file("new"), &odd].concat();
    let (kind, why) = refused(trial.reload(&text, false));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.contains("which are not whole blocks of 4096"), "{why}");
    assert!(why.ends_with("nothing was changed"), "{why}");
    trial.rest();
    assert!(!trial.path("new.img").exists() && trial.path("odd.img").exists());
    assert_eq!(names(&mut trial), ["m"]);
}

/// The name of a thing, what is done to it, and whether its guest loses.
type Row = (&'static str, ActionView, bool);

#[test]
fn what_would_be_done_is_shown_and_is_not_done() {
    let nic = "[[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\n";
    let base = [MEMORY, &file("a"), &file("b"), nic].concat();
    let mut trial = Trial::of(&base);
    let _a = Vmm::served(&mut trial, "a", 1);
    let _n = Vmm::of_nic(&mut trial, "n");
    use ActionView::{Added, Changed, Remade, Removed};
    let cases: Vec<(String, Vec<Row>)> = vec![
        (base.clone(), vec![]),
        (
            base.replace("[[switch]]", "[[group]]\nid = \"g\"\n[[switch]]"),
            vec![("g", Added, false)],
        ),
        ([MEMORY, &file("b"), nic].concat(), vec![("a", Removed, true)]),
        ([MEMORY, &file("a"), nic].concat(), vec![("b", Removed, false)]),
        (
            [MEMORY, &file("a"), &file("b")].concat(),
            vec![("n", Removed, true), ("s", Removed, false)],
        ),
        (base.replace("a.img\"\n", "a.img\"\nserial = \"x\"\n"), vec![("a", Remade, true)]),
        (base.replace("b.img\"\n", "b.img\"\nserial = \"x\"\n"), vec![("b", Remade, false)]),
        (
            base.replace("a.img\"\nsize = \"1M\"", "a.img\"\nsize = \"512K\""),
            vec![("a", Changed, true)],
        ),
        (
            base.replace("a.img\"\nsize = \"1M\"", "a.img\"\nsize = \"2M\""),
            vec![("a", Changed, false)],
        ),
        (base.replace("a.img\"\n", "a.img\"\nshare = 3\n"), vec![("a", Changed, false)]),
        (
            base.replace("switch = \"s\"\n", "switch = \"s\"\nmtu = 1400\n"),
            vec![("n", Remade, true)],
        ),
        (
            base.replace("switch = \"s\"\n", "switch = \"s\"\nvlan = 5\n"),
            vec![("n", Changed, false)],
        ),
        (base.replace("id = \"s\"\n", "id = \"s\"\nmacs_max = 99\n"), vec![("s", Changed, false)]),
        (both(&base, &file("c")), vec![("c", Added, false)]),
    ];
    let before = seen(&mut trial);
    for (text, expected) in cases {
        let effects = trial.dry(&text).expect("it could be done");
        let found: Vec<_> =
            effects.iter().map(|it| (it.id.as_str(), it.action, it.guest_loses)).collect();
        assert_eq!(found, expected, "{text}");
        assert!(effects.iter().all(|it| it.needs_force == it.guest_loses), "{effects:?}");
        assert_eq!(seen(&mut trial), before);
        // And so it is, with the same judgement.
        let is_refused = expected.iter().any(|(.., loses)| *loses);
        if is_refused {
            let (kind, why) = refused(trial.reload(&text, false));
            assert_eq!(kind, ErrorKind::Conflict, "{why}");
            assert!(why.starts_with("it would take from guests what they use: "), "{why}");
            assert_eq!(seen(&mut trial), before);
        }
        // An upgrade takes no more; here it has no launcher.
        trial.write(&text);
        let (_, why) = refused(trial.ask(Call::Upgrade { force: false }));
        let takes = why
            .starts_with("the daemon was not replaced: it would take from guests what they use: ");
        assert_eq!(takes, is_refused, "{why}");
        assert_eq!(seen(&mut trial), before);
    }
    assert!(!trial.path("c.img").exists(), "a look has made it");
}

#[test]
fn what_is_remade_is_told_in_the_words_of_the_file() {
    let mut trial = Trial::of(&both(MEMORY, &file("a")));
    let _vmm = Vmm::served(&mut trial, "a", 1);
    let text = both(MEMORY, &disk("a", "a.img", "size = \"1M\"\ncache = \"page\"\nqueues = 2\n"));
    let (_, why) = refused(trial.reload(&text, false));
    let told = "disk \"a\" (remade: ";
    assert!(why.contains(told) && why.contains("cache \"auto\" becomes \"page\""), "{why}");
    assert!(why.contains("queues \"1\" becomes \"2\""), "{why}");
}

#[test]
fn an_operator_who_insists_has_it_done() {
    let mut trial = Trial::of(&[MEMORY, &file("a"), &file("b")].concat());
    let mut a = Vmm::served(&mut trial, "a", 1);
    let mut b = Vmm::served(&mut trial, "b", 1);
    let text = both(MEMORY, &file("b"));
    assert_eq!(refused(trial.reload(&text, false)).0, ErrorKind::Conflict);
    assert!(!a.is_cut_off(&mut trial));
    trial.reload(&text, true).expect("he insists");
    assert!(a.is_cut_off(&mut trial));
    assert!(!b.is_cut_off(&mut trial), "it is not different");
    assert_eq!(b.does(&mut trial, WRITE, 0, 1), Some(0));
    // A signal has nobody who insists.
    trial.write(MEMORY);
    trial.signal(Token::Reload);
    assert_eq!(names(&mut trial), ["m", "b"]);
    drop(b.hang_up());
    trial.rest();
    trial.signal(Token::Reload);
    assert_eq!(names(&mut trial), ["m"]);
}

#[test]
fn guests_are_not_disturbed_by_what_changes_in_place() {
    let base =
        [MEMORY, &file("a"), "[[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\n"]
            .concat();
    let mut trial = Trial::of(&base);
    let (mut a, mut n) = (Vmm::served(&mut trial, "a", 1), Vmm::of_nic(&mut trial, "n"));
    for (from, to) in [
        ("a.img\"\n", "a.img\"\nshare = 3\n"),
        ("a.img\"\n", "a.img\"\nlimit_iops = 1000\n"),
        ("a.img\"\n", "a.img\"\non_full = \"error\"\n"),
        ("switch = \"s\"\n", "switch = \"s\"\nvlan = 7\n"),
        ("switch = \"s\"\n", "switch = \"s\"\nlimit_packets = 1000\n"),
        ("id = \"s\"\n", "id = \"s\"\nageing_s = 60\n"),
        ("a.img\"\nsize = \"1M\"", "a.img\"\nsize = \"3M\""),
    ] {
        let done = trial.reload(&base.replace(from, to), false);
        let done = done.unwrap_or_else(|why| panic!("{to}: {why}; {}", why.hint));
        assert!(!done.changes.is_empty(), "{to}");
        trial.pass(Duration::from_millis(20));
        assert!(!a.is_cut_off(&mut trial) && !n.is_cut_off(&mut trial), "{to}");
        assert_eq!(a.does(&mut trial, WRITE, 0, 1), Some(0), "{to}");
        assert_eq!(trial.nic("n").queues_attached, 2, "{to}");
    }
}

/// A VMM that is about to connect finds somebody at all times.
#[test]
fn a_socket_that_another_disk_takes_over_is_passed_on_with_who_waits_there() {
    let at = "socket = \"{}/run/guest.sock\"\n";
    let one =
        |id: &str| both(MEMORY, &disk(id, &format!("{id}.img"), &format!("size = \"1M\"\n{at}")));
    let mut trial = Trial::of(&one("a"));
    let path = trial.path("run/guest.sock");
    let inode = |path: &std::path::Path| {
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).expect("a socket"))
    };
    let before = inode(&path);
    // It is there before the daemon hears of the new file.
    let waits = dial(&path).expect("it listens");
    trial.write(&one("b"));
    let number = trial.manager().rooms.devices.number_of("a").expect("a device");
    let manager = trial.manager();
    manager.reloading.begin(
        (None, false),
        &mut manager.listening,
        &mut manager.rooms,
        Mode::Serving,
    );
    trial.rest();
    assert_eq!(names(&mut trial), ["m", "b"]);
    assert_eq!(inode(&path), before, "it was made anew");
    let mut vmm = Vmm::at(waits, Guest::new(1));
    vmm.begin(&mut trial);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    assert!(trial.rooms().devices.get(number).is_none());
}

/// Two disks that change their images: each has the one lock of its image when the other has let go.
#[test]
fn disks_swap_their_images_when_neither_has_a_guest() {
    let pair = |a: &str, b: &str| {
        [MEMORY, &disk("a", a, "size = \"1M\"\n"), &disk("b", b, "size = \"1M\"\n")].concat()
    };
    let mut trial = Trial::of(&pair("one.img", "two.img"));
    image(&trial, "one.img", MIB, 1);
    image(&trial, "two.img", MIB, 2);
    for slow in [0, 400] {
        trial.slow(Duration::from_millis(slow));
        trial.reload(&pair("two.img", "one.img"), false).expect("they are swapped");
        assert_eq!(seen(&mut trial).iter().filter(|it| it.2.is_some()).count(), 0);
        for (id, fill) in [("a", 2), ("b", 1)] {
            let mut vmm = Vmm::served(&mut trial, id, 1);
            assert_eq!(vmm.does(&mut trial, READ, 0, 0), Some(0));
            assert_eq!(vmm.guest.data(0)[..], vec![fill; 512][..], "disk {id}");
            // One that stops in order leaves its disk to another guest.
            vmm.stop(&mut trial, 0).expect("it stops");
            drop(vmm.hang_up());
            trial.rest();
        }
        trial.reload(&pair("one.img", "two.img"), false).expect("and back");
    }
}

/// It could be opened only after what was there had gone, and must not leave its tenant without a disk.
#[test]
fn what_cannot_take_over_gives_back_what_was_there_before() {
    let mut trial = Trial::of(&both(MEMORY, &file("a")));
    std::fs::OpenOptions::new()
        .write(true)
        .open(trial.path("a.img"))
        .expect("an image")
        .set_len(MIB + 512)
        .expect("longer");
    let wrong = both(MEMORY, &disk("a", "a.img", "block_size = 4096\n"));
    let (kind, why) = refused(trial.reload(&wrong, false));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.contains("which are not whole blocks of 4096"), "{why}");
    assert!(why.ends_with(", and served again as before: disk a"), "{why}");
    let shown = trial.disk("a");
    assert_eq!((shown.block_size_bytes, shown.problem), (Some(512), None));
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
}

#[test]
fn one_reload_at_a_time_and_none_while_another_process_takes_over() {
    let mut trial = Trial::of(&both(MEMORY, &file("a")));
    trial.slow(Duration::from_secs(2));
    trial.write(&both(MEMORY, &disk("a", "a.img", "size = \"1M\"\nserial = \"x\"\n")));
    let first = trial.asks(Call::Reload { force: false });
    trial.rest();
    let (kind, why) = refused(trial.ask(Call::Reload { force: false }));
    assert_eq!(kind, ErrorKind::Busy);
    assert_eq!(why, "the configuration file is being read again already; try again in a moment");
    assert_eq!(refused(trial.ask(Call::ShowReload)).0, ErrorKind::Busy);
    trial.answer(first).expect("it is done");
    for mode in [Mode::HeirExpected, Mode::HeirWaits, Mode::Frozen] {
        let Manager { listening, rooms, .. } = trial.manager();
        let dry = Reloading::default().dry(mode, listening, rooms);
        let why = dry.expect_err("it reads it itself");
        assert_eq!(why.kind, ErrorKind::Busy);
        assert_eq!(why.error, "another process is taking over, and reads the file itself");
    }
}

#[test]
fn a_daemon_that_stops_reads_nothing_again_and_serves_nothing_more() {
    let mut trial = Trial::of(MEMORY);
    let mut vmm = Vmm::served(&mut trial, "m", 1);
    // It has not ended when the signal comes.
    trial.stall(true);
    vmm.guest.request(0, WRITE, 0, 1);
    trial.rest();
    trial.signal(Token::Stop);
    trial.write(&both(MEMORY, &file("late")));
    trial.signal(Token::Reload);
    assert!(!trial.has_ended() && !trial.socket("late").exists());
    assert_eq!((trial.rooms().plan.disks.len(), trial.rooms().shut.len()), (1, 0));
    let asks = [Call::Reload { force: true }, Call::Reload { force: false }, Call::ShowReload];
    for call in asks {
        let (kind, why) = refused(trial.ask(call));
        assert_eq!((kind, &why[..27]), (ErrorKind::Busy, "the daemon is being stopped"));
    }
    trial.stall(false);
    trial.rest();
    assert!(trial.has_ended() && !trial.socket("late").exists());
}

/// What has gone for a disk that cannot be opened would be served again by a daemon that goes on.
#[test]
fn a_reload_under_way_is_answered_by_a_stop_and_nothing_is_opened_for_it_any_more() {
    for wrong in ["size = \"1M\"\nserial = \"x\"\n", "block_size = 4096\n"] {
        let mut trial = Trial::of(&both(MEMORY, &file("a")));
        let longer = std::fs::OpenOptions::new().write(true).open(trial.path("a.img"));
        longer.and_then(|image| image.set_len(MIB + 512)).expect("longer");
        let mut vmm = Vmm::served(&mut trial, "m", 1);
        trial.slow(Duration::from_millis(200));
        trial.write(&both(MEMORY, &disk("a", "a.img", wrong)));
        let asked = trial.asks(Call::Reload { force: false });
        trial.rest();
        assert!(trial.manager().reloading.is_asked());
        trial.stall(true);
        vmm.guest.request(0, WRITE, 0, 1);
        trial.rest();
        trial.signal(Token::Stop);
        let (kind, why) = refused(trial.answer(asked));
        assert_eq!((kind, &why[..27]), (ErrorKind::Busy, "the daemon is being stopped"));
        trial.pass(Duration::from_millis(1_000));
        assert!(!trial.has_ended() && !trial.socket("a").exists());
        assert_eq!(trial.rooms().devices.number_of("a"), None);
        trial.stall(false);
        trial.rest();
        assert!(trial.has_ended());
    }
}

/// A disk that does not answer keeps the reload from its end for so long and no longer; the file is right next time.
#[test]
fn a_size_that_cannot_be_had_is_told_of_and_tried_by_the_next_reload() {
    let mut trial = Trial::of(&both(MEMORY, &file("a")));
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    trial.stall(true);
    let text = both(MEMORY, &disk("a", "a.img", "size = \"2M\"\n"));
    let began = trial.now();
    let (kind, why) = refused(trial.reload(&text, false));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(why.starts_with("disk \"a\": it has 1M and not 2M: it waits for "), "{why}");
    assert!(why.ends_with(
        "everything else was done; put that right and reload again, which tries it once more"
    ));
    assert!((10_000_000_000..11_000_000_000).contains(&trial.now().since(began)));
    let problem = trial.disk("a").problem.expect("it is shown");
    assert!(problem.contains("it has 1M and not 2M") || problem.contains("waits for"), "{problem}");
    trial.stall(false);
    trial.pass(Duration::from_secs(1));
    let done = trial.reload(&text, false).expect("it answers");
    assert_eq!(
        (done.changes, trial.disk("a").size_bytes),
        (vec!["resized disk a to 2M".to_string()], Some(2 * MIB))
    );
    assert_eq!(vmm.does(&mut trial, WRITE, 2047, 1), Some(0));
}

#[test]
fn a_disk_that_is_being_resized_is_not_resized_by_a_file() {
    let mut trial = Trial::of(MEMORY);
    let spec = DiskSpec {
        backend: Some(BackendKind::Memory),
        size: Some(Size(MIB)),
        ..DiskSpec::new("b")
    };
    trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
    let _vmm = Vmm::served(&mut trial, "m", 1);
    trial.stall(true);
    trial.write(&MEMORY.replace("1M", "2M"));
    let first = trial.asks(Call::Reload { force: false });
    trial.rest();
    // While it waits, neither the file nor an operator begins another one.
    assert_eq!(refused(trial.ask(Call::Reload { force: false })).0, ErrorKind::Busy);
    let resize = DiskResize { size: Size(4 * MIB) };
    let (kind, _) =
        refused(trial.ask(Call::ResizeDisk { id: "m".to_string(), resize, force: false }));
    assert_eq!(kind, ErrorKind::Conflict, "it is the file's");
    trial.stall(false);
    trial.answer(first).expect("it is done");
    assert_eq!(trial.disk("m").size_bytes, Some(2 * MIB));
}

#[test]
fn what_did_not_open_before_and_does_not_now_keeps_nothing_from_being_done() {
    let lost = disk("lost", "lost.img", "");
    let mut trial = Trial::of(&both(MEMORY, &lost));
    let done = trial.reload(&[MEMORY, &lost, &file("a")].concat(), false).expect("it is done");
    assert_eq!(done.changes[0], "added disk a");
    assert!(
        done.not_open[0].id == "lost" && done.not_open[0].problem.starts_with("cannot open "),
        "{:?}",
        done.not_open
    );
    assert_eq!(trial.disk("lost").state, DiskState::Failed);
    assert!(dial(&trial.socket("a")).is_some());
}

/// A RAM disk that the API made is no business of the file's, but names are.
#[test]
fn what_the_api_made_stays_and_its_name_is_taken() {
    let mut trial = Trial::of(MEMORY);
    let spec = DiskSpec {
        backend: Some(BackendKind::Memory),
        size: Some(Size(MIB)),
        ..DiskSpec::new("b")
    };
    trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
    trial.reload(&file("a"), false).expect("it is done");
    assert_eq!(names(&mut trial), ["a", "b"]);
    let (_, why) = refused(trial.reload(&both(&file("a"), &file("b")), true));
    assert!(why.contains("the name \"b\" is taken by disk \"b\" (api)"), "{why}");
}

#[test]
fn what_takes_a_restart_is_named_and_the_rest_is_done() {
    let mut trial = Trial::of(MEMORY);
    trial.write(&both(MEMORY, &file("a")));
    let text = trial.file().replace("cpus = \"0-1\"\nmin = 2\n", "cpus = \"0-2\"\nmin = 1\n");
    trial.write_whole(text.replace("/run\"", "/elsewhere\""));
    let done = match trial.ask(Call::Reload { force: true }) {
        Ok(Answer::Reloaded(view)) => view,
        other => panic!("{other:?}"),
    };
    assert_eq!(done.restart_needed, ["daemon.run_dir", "sidecores.cpus", "sidecores.min"]);
    assert!(names(&mut trial).contains(&"a".to_string()));
}

/// The image that a disk's path names is another one by now; its guest goes on with the old one until it is opened anew.
#[test]
fn a_replaced_image_is_opened_by_a_reload_when_no_guest_is_on_the_old_one() {
    let mut trial = Trial::of(&both(MEMORY, &file("a")));
    image(&trial, "new.img", MIB, 9);
    std::fs::rename(trial.path("new.img"), trial.path("a.img")).expect("replaced");
    trial.pass(Duration::from_secs(3));
    let problem = trial.disk("a").problem.expect("it is seen");
    assert!(problem.contains("is another image than the one that the disk is on"), "{problem}");
    let text = both(MEMORY, &file("a"));
    let done = trial.reload(&text, false).expect("nobody is on it");
    assert_eq!(done.changes, ["removed disk a", "added disk a"]);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, READ, 5, 0), Some(0));
    assert_eq!(vmm.guest.data(0), [9; 512]);
}

fn effect(id: &str, action: ActionView, loses: bool, what: &str) -> EffectView {
    EffectView {
        kind: config::api::ThingView::Disk,
        id: id.to_string(),
        action,
        guest: loses,
        guest_loses: loses,
        needs_force: false,
        what: what.to_string(),
    }
}

#[test]
fn a_refusal_names_eight_and_counts_the_others() {
    let many: Vec<_> =
        (0..11).map(|n| effect(&format!("d{n}"), ActionView::Removed, n != 3, "")).collect();
    let why = refuse_losses(&many).expect_err("guests lose").error;
    assert!(why.ends_with("disk \"d8\" (removed), and 2 more"), "{why}");
    assert!(!why.contains("\"d3\""), "{why}");
    refuse_losses(&many[3..4]).expect("nobody loses");
    refuse_losses(&[]).expect("nothing is done");
}

#[test]
fn rows_say_what_is_made_and_what_needs_an_operator_who_insists() {
    let rows = [
        effect("a", ActionView::Added, false, "add disk a"),
        effect("b", ActionView::Changed, true, "resize disk b to 1M"),
    ];
    let made = ["a".to_string(), "x".to_string()];
    let told = |misfits: &[Misfit]| {
        let rows = rows.iter().cloned().map(|row| say_refused(row, true, misfits));
        say_made(rows.collect(), &made)
    };
    let plain = told(&[]);
    assert_eq!(plain[0].what, "add disk a; its image is missing: an empty one is made");
    assert_eq!((plain[0].needs_force, plain[1].needs_force), (false, true));
    let misfit = Misfit::of("a", 2 * MIB, 0, Some(MIB)).expect("it is longer");
    let besides = say_refused(rows[0].clone(), false, std::slice::from_ref(&misfit));
    assert_eq!((besides.what.as_str(), besides.needs_force), ("add disk a", false));
    let rows = told(&[misfit]);
    let expected = "add disk a; the whole file system of its image has 1M; its image is missing: an empty one is made";
    assert_eq!((rows[0].what.as_str(), rows[0].needs_force), (expected, true));
}

/// What is new is refused, and what was so before is not asked about again.
#[test]
fn a_new_disk_that_is_shorter_than_its_image_needs_an_operator_who_insists() {
    let mut trial = Trial::of(MEMORY);
    image(&trial, "a.img", 2 * MIB, 7);
    let text = both(MEMORY, &file("a"));
    let (kind, why) = refused(trial.reload(&text, false));
    assert_eq!(kind, ErrorKind::Conflict);
    assert!(why.starts_with("disk \"a\" would have 1M, and its image has 2M; "), "{why}");
    assert_eq!(names(&mut trial), ["m"]);
    let row = trial.dry(&text).expect("it is told").remove(0);
    assert_eq!((row.needs_force, row.guest_loses), (true, false));
    assert_eq!(row.what, "add disk a; its image has 2M");
    trial.reload(&text, true).expect("he insists");
    assert_eq!(trial.disk("a").image_bytes, Some(2 * MIB));
    let remade = both(MEMORY, &disk("a", "a.img", "size = \"1M\"\nserial = \"x\"\n"));
    let done = trial.reload(&remade, false).expect("it is as short as before");
    assert_eq!(done.changes, ["removed disk a", "added disk a"]);
    let shorter = both(MEMORY, &disk("a", "a.img", "size = \"512K\"\nserial = \"y\"\n"));
    assert_eq!(refused(trial.reload(&shorter, false)).0, ErrorKind::Conflict);
}

/// The answer to nobody is none, and nobody's reload waits for it.
#[test]
fn a_reload_that_is_forgotten_is_not_answered() {
    let mut trial = Trial::of(&both(MEMORY, &file("a")));
    trial.slow(Duration::from_secs(2));
    trial.write(&both(MEMORY, &disk("a", "a.img", "size = \"1M\"\nserial = \"x\"\n")));
    let mut asked = trial.asks(Call::Reload { force: false });
    trial.rest();
    assert!(trial.manager().reloading.is_asked());
    trial.manager().reloading.forget();
    assert!(!trial.manager().reloading.is_asked());
    trial.pass(Duration::from_secs(5));
    assert!(matches!(asked.hear(), crate::simulated::Heard::Nobody));
    assert_eq!(trial.disk("a").problem, None, "it is done all the same");
    let _: ReloadView = trial.reload(&both(MEMORY, &file("a")), false).expect("the next one");
}

/// A disk `a` whose image is one that a block size of 4,096 bytes does not fit, and a file that says so.
fn with_odd_image(more: &str) -> (Trial, String) {
    let before = [more, MEMORY, &disk("a", "a.img", "size = \"1M\"\n")].concat();
    let trial = Trial::of(&before);
    make_odd(&trial, "a.img");
    (trial, both(MEMORY, &disk("a", "a.img", "block_size = 4096\n")))
}

fn make_odd(trial: &Trial, name: &str) {
    let image = std::fs::OpenOptions::new().write(true).open(trial.path(name));
    image.and_then(|image| image.set_len(MIB + 512)).expect("longer");
}

/// Made anew because its part of the file was changed, it is in no plan for a while.
#[test]
fn a_mark_of_lost_data_stays_while_the_file_has_its_disk() {
    let folder = crate::trial::folder();
    let image = folder.path().join("a.img");
    std::fs::create_dir(&image).expect("a folder in its place");
    let mark = folder.path().join("state/unsynced/a");
    std::fs::create_dir(folder.path().join("state/unsynced")).expect("a folder");
    std::fs::write(&mark, format!("{}\n", image.display())).expect("a mark");
    let text = |more: &str| both(MEMORY, &disk("a", "a.img", more));
    let mut trial = Trial::start(&text(""), folder).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(trial.disk("a").state, DiskState::Failed);
    std::fs::remove_dir(&image).expect("moved away");
    std::fs::write(&image, vec![0; MIB as usize]).expect("put right");
    let anew = text("serial = \"x\"\n");
    let done = trial.reload(&anew, false).expect("it is right now");
    assert_eq!(done.changes, ["removed disk a", "added disk a"]);
    let mut trial = Trial::start(&anew, trial.die()).unwrap_or_else(|why| panic!("{why}"));
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_ne!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0), "that data was lost is known");
    drop(vmm);
    // With its disk the mark goes, also of one that is not open.
    std::fs::rename(&image, trial.path("away")).expect("moved away");
    std::fs::create_dir(&image).expect("a folder in its place");
    let mut trial = Trial::start(&anew, trial.die()).unwrap_or_else(|why| panic!("{why}"));
    assert!(mark.exists());
    trial.reload(MEMORY, false).expect("nobody has it");
    assert!(!mark.exists());
}

/// Of the image that went nothing is where it was: whoever served an empty one there would hide that.
#[test]
fn what_is_served_again_as_before_has_the_image_that_it_had() {
    for slow in [0, 5] {
        let mut trial = Trial::of(&both(MEMORY, &file("a")));
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        assert_eq!(vmm.does(&mut trial, WRITE, 0, 7), Some(0));
        vmm.stop(&mut trial, 0);
        drop(vmm.hang_up());
        trial.pass(Duration::from_secs(3));
        std::fs::rename(trial.path("a.img"), trial.path("moved.img")).expect("moved");
        make_odd(&trial, "moved.img");
        let wrong = both(MEMORY, &disk("a", "moved.img", "block_size = 4096\n"));
        trial.slow(Duration::from_secs(slow));
        let refused = trial.reload(&wrong, false).expect_err("it does not fit");
        assert!(!refused.hint.contains("served again as before: "), "{refused:?}");
        for time in [1, 100] {
            trial.pass(Duration::from_secs(time));
            assert!(!trial.path("a.img").exists(), "{slow}: an empty image");
        }
        let shown = trial.disk("a");
        assert_eq!(shown.state, DiskState::Failed, "{slow}: {:?}", shown.problem);
        // What was put back is served.
        trial.slow(Duration::ZERO);
        std::fs::rename(trial.path("moved.img"), trial.path("a.img")).expect("moved back");
        trial.reload(&both(MEMORY, &file("a")), false).expect("it is as it was");
        let mut vmm = Vmm::served(&mut trial, "a", 1);
        assert_eq!((vmm.does(&mut trial, READ, 0, 0), vmm.guest.data(0)[0]), (Some(0), 7));
    }
}

#[test]
fn what_is_served_again_as_before_has_the_limit_that_it_had() {
    for is_slow in [false, true] {
        let group = "[[group]]\nid = \"g\"\nlimit_iops = 10\nlimit_burst_ms = 4\n";
        let its = "size = \"1M\"\ngroup = \"g\"\n";
        let before = [group, MEMORY, &disk("a", "a.img", its)].concat();
        let mut trial = Trial::of(&before);
        make_odd(&trial, "a.img");
        let wrong = both(MEMORY, &disk("a", "a.img", "block_size = 4096\n"));
        trial.slow(Duration::from_secs(if is_slow { 5 } else { 0 }));
        let (kind, why) = refused(trial.reload(&wrong, false));
        assert_eq!(kind, ErrorKind::Refused);
        assert!(why.contains(", and served again as before"), "{why}");
        trial.pass(Duration::from_secs(100));
        let number = trial.rooms().devices.number_of("a").expect("it is open");
        let device = trial.rooms().devices.get(number).expect("it is open");
        assert!(device.gate(0, None).is_some(), "it is limited as before");
        match trial.ask(Call::ListGroups) {
            Ok(Answer::Groups(list)) => assert_eq!(list.groups[0].disks, ["a"]),
            other => panic!("{other:?}"),
        }
        // The next file has neither.
        trial.slow(Duration::ZERO);
        let right = both(MEMORY, &disk("a", "a.img", "block_size = 512\n"));
        let done = trial.reload(&right, false).expect("it fits");
        assert!(done.changes.contains(&"removed group g".to_string()), "{:?}", done.changes);
        let number = trial.rooms().devices.number_of("a").expect("it is open");
        let device = trial.rooms().devices.get(number).expect("it is open");
        assert!(device.gate(0, None).is_none());
        assert!(trial.rooms().plan.groups.is_empty());
    }
}

#[test]
fn what_is_served_again_as_before_has_the_stage_that_a_command_added_meanwhile() {
    let before = both(MEMORY, &file("a"));
    let mut trial = Trial::of(&before);
    make_odd(&trial, "a.img");
    trial.slow(Duration::from_secs(5));
    trial.write(&both(MEMORY, &disk("a", "a.img", "block_size = 4096\n")));
    let mut asked = trial.asks(Call::Reload { force: false });
    trial.pass(Duration::from_secs(1));
    let (kind, change) = (StageKind::Trace, StageChange::default());
    trial.ask(Call::SetStage { id: "a".to_string(), kind, change }).expect("it is kept");
    trial.pass(Duration::from_secs(100));
    let Heard::Answer(answer) = asked.hear() else { panic!("it does not fit") };
    let (_, why) = refused(*answer);
    assert!(why.contains(", and served again as before"), "{why}");
    assert_eq!(trial.disk("a").stages.len(), 1);
    let mut trial = Trial::start(&before, trial.die()).expect("it starts");
    assert_eq!(trial.disk("a").stages.len(), 1);
}

/// One that nothing came of leaves nothing in the plan.
#[test]
fn what_cannot_be_served_as_before_either_is_planned_as_the_file_says() {
    let group = "[[group]]\nid = \"g\"\nlimit_iops = 10\n";
    let its = "size = \"1M\"\ngroup = \"g\"\n";
    let mut trial = Trial::of(&[group, MEMORY, &disk("a", "a.img", its)].concat());
    std::fs::rename(trial.path("a.img"), trial.path("moved.img")).expect("moved");
    make_odd(&trial, "moved.img");
    let wrong = both(MEMORY, &disk("a", "moved.img", "block_size = 4096\n"));
    let (kind, _) = refused(trial.reload(&wrong, false));
    assert_eq!(kind, ErrorKind::Refused);
    assert!(trial.rooms().plan.groups.is_empty());
    assert_eq!(trial.reload(&wrong, false).expect("it is in force").changes, [""; 0]);
}

/// The disk does not answer for so long that the first reload is answered, and another one begins.
#[test]
fn a_reload_of_something_else_forgets_nothing_that_is_late() {
    let (_, wrong) = with_odd_image("");
    let other = both(&wrong, &disk("b", "b.img", "size = \"1M\"\n"));
    let moved = both("# A line more.\n", &wrong);
    let anew = wrong.replace("4096\n", "4096\nserial = \"y\"\n");
    for second in [None, Some(&wrong), Some(&other), Some(&moved), Some(&anew)] {
        let (mut trial, wrong) = with_odd_image("");
        let vmm = Vmm::served(&mut trial, "a", 1);
        trial.stall(true);
        let (kind, why) = refused(trial.reload(&wrong, true));
        assert_eq!(kind, ErrorKind::Busy, "{why}");
        if let Some(second) = second {
            // Who changes it once more waits for it once more.
            let done = trial.reload(second, false);
            assert_eq!(done.is_ok(), second != &anew, "{done:?}");
        }
        trial.stall(false);
        trial.pass(Duration::from_secs(10));
        let shown = trial.disk("a");
        assert_eq!((shown.problem, shown.block_size_bytes), (None, Some(512)), "{second:?}");
        drop(vmm);
    }
}

/// What a reload asks of the file system grows with the devices that are made anew, and not with their square: it is
/// asked by the control loop, while no guest is heard.
#[test]
fn where_sockets_are_is_asked_a_few_times_for_each_device() {
    let looks = |devices: usize| {
        let of = |serial: &str| {
            let disk = |number| {
                let text = "backend = \"memory\"\nsize = \"1M\"\n";
                format!("[[disk]]\nid = \"d{number}\"\n{text}serial = \"{serial}{number}\"\n")
            };
            let nic = |number| {
                let mac = format!("52:54:00:00:00:{number:02x}");
                let mac = if serial == "one" { mac } else { mac.replace("52:", "56:") };
                format!("[[nic]]\nid = \"n{number}\"\nnull = \"drop\"\nmac = \"{mac}\"\n")
            };
            let disks = (0..devices / 2).map(disk).collect::<String>();
            disks + &(devices / 2..devices).map(nic).collect::<String>()
        };
        let mut trial = Trial::of(&of("one"));
        let before = LOOKS.get();
        let done = trial.reload(&of("two"), false).expect("all of them are made anew");
        assert_eq!(done.effects.len(), devices, "{:?}", done.effects);
        for number in 0..devices {
            let id = if number < devices / 2 { "d" } else { "n" };
            let socket = trial.socket(&format!("{id}{number}"));
            assert!(dial(&socket).is_some(), "{socket:?}");
        }
        LOOKS.get() - before
    };
    let [few, many] = [looks(8), looks(32)];
    assert!((8..=8 * 8).contains(&few) && many <= 4 * few, "{few}, then {many}");
}

/// A host may have thousands of users, and a file names some for each device: they are read once for a start, and a few
/// times for a reload.
#[test]
fn users_and_groups_are_read_once_however_many_devices_name_some() {
    if !rustix::process::geteuid().is_root() {
        // Past the harness, in one piece; `./x test` counts it.
        let _ = std::io::stderr().write_all(b"skipped: giving sockets away needs root\n");
        return;
    }
    let reads = |devices: usize| {
        let of = |owner: &str, serial: &str| {
            let disk = |number| {
                let who = format!("socket_owner = \"{owner}\"\nserial = \"{serial}{number}\"\n");
                let text = "backend = \"memory\"\nsize = \"1M\"\n";
                format!("[[disk]]\nid = \"d{number}\"\n{text}{who}")
            };
            (0..devices).map(disk).collect::<String>()
        };
        let before = READS.get();
        let mut trial = Trial::of(&of("root", "one"));
        let started = READS.get();
        trial.reload(&of("nobody", "one"), false).expect("others may open them");
        let given = READS.get();
        trial.reload(&of("root", "two"), false).expect("all are made anew");
        [started - before, given - started, READS.get() - given]
    };
    let [few, many] = [reads(2), reads(12)];
    assert_eq!(few, many);
    assert!(many.iter().all(|reads| (1..=3).contains(reads)), "{many:?}");
}

/// Whoever waits to be accepted came when others were let in: where he cannot be sent away, the socket is made anew.
#[test]
fn a_socket_of_which_it_is_not_known_who_waits_is_not_passed_on() {
    let group = rustix::process::getegid().as_raw();
    let of = |more: &str| format!("{MEMORY}{more}");
    let mut trial =
        Trial::of(&of(&format!("socket_group = \"{group}\"\nsocket_mode = \"0660\"\n")));
    let number = trial.rooms().devices.number_of("m").expect("it is there");
    let device = trial.rooms().devices.get_mut(number).expect("it is there");
    drop(device.take_listener());
    // One that cannot be accepted from, as when no descriptor is left for whoever waits.
    let (unix, stream) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
    device.listen_at(rustix::net::socket(unix, stream, None).expect("a socket"));
    trial.reload(&of("serial = \"two\"\n"), false).expect("it is made anew");
    // At the latest when it tries once more.
    trial.pass(Duration::from_secs(2));
    assert!(dial(&trial.socket("m")).is_some(), "it listens");
    assert_eq!(trial.disk("m").problem, None);
}
