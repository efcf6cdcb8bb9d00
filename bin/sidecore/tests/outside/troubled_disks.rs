//! Disks that cannot be opened, sockets that cannot be made, and what a reload does about them
//! (reliability O1, O3, O5, O8, O10, O11, O13, O14, E39).

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::{Daemon, PROGRAM, json, run};
use rustix::process::Signal;

fn image(folder: &Path, name: &str) -> String {
    fs::File::create(folder.join(name)).unwrap().set_len(1 << 20).unwrap();
    disk(name, &format!("path = \"{name}\"\n"))
}

fn disk(id: &str, what: &str) -> String {
    format!("[[disk]]\nid = \"{id}\"\n{what}")
}

fn null(id: &str) -> String {
    disk(id, "backend = \"null\"\nsize = \"1G\"\n")
}

fn shown(daemon: &Daemon, id: &str) -> (String, String) {
    let disk = json(&daemon.run(&format!("show {id} --json")).1);
    let word = |name: &str| disk[name].as_str().unwrap_or_default().to_string();
    (word("state"), word("problem"))
}

/// O3, and a restart after a crash: one image that is missing takes nobody else down.
#[test]
fn a_missing_image_fails_alone_until_it_is_there() {
    let missing = disk("gone", "path = \"gone.img\"\n");
    let daemon = Daemon::start(&format!("{}{missing}", null("good")));
    assert!(daemon.folder.path().join("good.sock").exists());
    assert!(!daemon.folder.path().join("gone.sock").exists(), "nobody would answer there");
    let (state, problem) = shown(&daemon, "gone");
    assert_eq!(state, "failed");
    assert!(problem.contains("gone.img") && problem.contains("correct `path`"), "{problem}");
    assert_eq!(json(&daemon.run("ls --json").1)["disks"].as_array().unwrap().len(), 2);
    // It was not new, so it stops no reload; but whoever reloads learns of it.
    let (code, told, error) = daemon.run("reload");
    assert_eq!(code, 1);
    assert!(
        told.contains("nothing changed\ndisk gone is not open: ") && told.contains("gone.img"),
        "{told}"
    );
    assert!(error.starts_with("sidecore: 1 device is not open\n"), "{error}");
    let view = json(&daemon.run("reload --dry-run --json").1);
    assert_eq!(
        (&view["not_open"][0]["id"], &view["not_open"][0]["retried"]),
        (&"gone".into(), &false.into())
    );
    let doctor = daemon.run("doctor").1;
    assert!(doctor.contains("gone is failed: cannot open "), "{doctor}");
    let listed = daemon.run("ls").1;
    assert!(listed.contains("failed") && listed.contains("gone: cannot open "), "{listed}");

    let made = daemon.folder.path().join("gone.img");
    fs::File::create(made).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(daemon.run("reload").1, "opened disk gone\n");
    assert_eq!(shown(&daemon, "gone"), ("waiting".to_string(), String::new()));
    assert!(daemon.folder.path().join("gone.sock").exists());
}

/// A volume that is not active: a file at its name would be in memory, and gone with the next boot.
#[test]
fn a_volume_that_is_not_there_is_never_made_as_a_file() {
    let name = format!("sidecore-test-{}", std::process::id());
    let volume = format!("/dev/{name}");
    let in_group = format!("{volume}/vm1");
    let daemon = Daemon::start(&format!(
        "{}{}",
        null("good"),
        disk("late", &format!("path = \"{volume}-late\"\nsize = \"1M\"\n"))
    ));
    let folder = daemon.folder.path();
    symlink(&in_group, folder.join("link")).unwrap();
    let (state, problem) = shown(&daemon, "late");
    assert_eq!(state, "failed");
    assert!(problem.contains("no file is made in /dev"), "{problem}");
    assert!(problem.contains("activate its volume"), "{problem}");
    // By command, with a size or without.
    for path in [&volume, &in_group, "link"] {
        for size in ["", " --size 1M"] {
            let (code, _, error) = daemon.run(&format!("disk add u --path {path}{size}"));
            assert_eq!(code, 1, "{error}");
            assert!(error.contains("activate its volume") && !error.contains("--size"), "{error}");
            assert!(!error.contains("`size`"), "{error}");
        }
    }
    // As a check says it, of each way to write it.
    for (path, size) in [(&*volume, true), (&volume, false), (&in_group, true), ("link", true)] {
        let size = if size { "size = \"1M\"\n" } else { "" };
        let text = format!(
            "[daemon]\nstate_dir = \"other\"\n[[disk]]\nid = \"a\"\npath = \"{path}\"\n{size}"
        );
        fs::write(folder.join("f.toml"), text).unwrap();
        let words = ["serve", "--check", "--config", "f.toml"];
        let (code, _, error) = run(Command::new(PROGRAM).args(words).current_dir(folder));
        assert_eq!(code, 1, "{error}");
        assert!(error.contains("\n  activate its volume"), "{error}");
    }
    assert!(!Path::new(&volume).exists() && !Path::new(&format!("{volume}-late")).exists());
}

#[test]
fn a_disk_that_is_shorter_than_its_image_is_said_to_be() {
    let daemon = Daemon::start(&null("good"));
    image(daemon.folder.path(), "whole.img");
    let line = "disk add a --path whole.img --size 512K";
    let (code, _, error) = daemon.run(line);
    assert_eq!(code, 1);
    assert!(error.contains("disk \"a\" would have 512K, and its image has 1M\n"), "{error}");
    assert!(error.contains("leave `--size` out for all of it; `--force`"), "{error}");
    let (code, out, error) = daemon.run(&format!("{line} --force"));
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(out.contains("file 512K (the first of the 1M of its image), socket "), "{out}");
    let shown = daemon.run("show a").1;
    assert!(shown.contains("524288 bytes) (the first of the 1M of its image)"), "{shown}");
    let log = fs::read_to_string(daemon.folder.path().join("log")).unwrap();
    assert!(log.contains("it has 512K, and its image has 1M"), "{log}");
}

/// A file system that is mounted late leaves no host without its API, whether it is that of one disk or of all.
#[test]
fn a_daemon_without_one_disk_that_opens_serves_them_when_they_do() {
    let bad = [disk("a", "path = \"a.img\"\n"), disk("b", "path = \"state\"\n")];
    for disks in [bad[0].clone(), bad.concat()] {
        let daemon = Daemon::start(&disks);
        assert_eq!(shown(&daemon, "a").0, "failed");
        let log = daemon.log();
        assert!(log.contains("a.img") && log.contains("cannot be served: "), "{log}");
        // The check of that file says so before.
        let checked = daemon.run("serve --check --config sidecore.toml");
        assert_eq!(checked.0, 1, "{}", checked.2);
        image(daemon.folder.path(), "a.img");
        let (_, told, _) = daemon.run("reload");
        assert!(told.contains("opened disk a\n"), "{told}");
        assert_eq!(shown(&daemon, "a"), ("waiting".to_string(), String::new()));
    }
}

/// O8: what is new is opened before anything is changed.
#[test]
fn a_reload_with_one_bad_disk_changes_nothing() {
    let daemon = Daemon::start(&format!("{}{}", null("stays"), null("goes")));
    let folder = daemon.folder.path();
    let file = folder.join("sidecore.toml");
    let before = fs::read_to_string(&file).unwrap();
    let (first, last) = (image(folder, "new.img"), disk("bad", "path = \"bad.img\"\n"));
    let wanted = before.replace(&null("goes"), "").replace("1G", "2G") + &first + &last;
    fs::write(&file, &wanted).unwrap();
    let (code, _, error) = daemon.run("reload");
    assert_eq!(code, 1);
    assert!(error.contains("disk \"bad\"") && error.contains("nothing was changed"), "{error}");
    let asked = daemon.run("ls --json");
    let log = fs::read_to_string(daemon.folder.path().join("log"));
    assert_eq!(asked.0, 0, "{}\n{log:?}", asked.2);
    let list = json(&asked.1);
    let ids: Vec<&str> =
        list["disks"].as_array().unwrap().iter().map(|d| d["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["stays", "goes"]);
    assert_eq!(list["disks"][0]["size_bytes"], 1 << 30);
    assert!(!folder.join("new.img.sock").exists(), "what was opened is closed again");

    fs::write(&file, wanted.replace(&last, "")).unwrap();
    let (code, done, error) = daemon.run("reload");
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(done, "removed disk goes\nresized disk stays to 2G\nadded disk new.img\n");
}

/// A disk that takes over another's image is opened when that one is gone.
#[test]
fn a_reload_hands_an_image_from_one_disk_to_another() {
    let daemon = Daemon::start(&null("other"));
    let folder = daemon.folder.path();
    let file = folder.join("sidecore.toml");
    let before = fs::read_to_string(&file).unwrap();
    fs::write(&file, before.clone() + &image(folder, "x.img")).unwrap();
    assert_eq!(daemon.run("reload").1, "added disk x.img\n");
    fs::hard_link(folder.join("x.img"), folder.join("y.img")).unwrap();
    fs::write(&file, before + &disk("y", "path = \"y.img\"\n")).unwrap();
    let (code, done, error) = daemon.run("reload");
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(done, "removed disk x.img\nadded disk y\n");
    assert_eq!(shown(&daemon, "y"), ("waiting".to_string(), String::new()));
}

/// O1: one image by several names.
#[test]
fn an_image_by_another_name_is_refused_and_its_disk_named() {
    let daemon = Daemon::start(&null("other"));
    let folder = daemon.folder.path();
    image(folder, "x.img");
    symlink("x.img", folder.join("soft.img")).unwrap();
    fs::hard_link(folder.join("x.img"), folder.join("hard.img")).unwrap();
    assert_eq!(daemon.run("disk add first --path x.img").0, 0);
    for name in ["soft.img", "hard.img"] {
        let (code, _, error) = daemon.run(&format!("disk add second --path {name}"));
        assert_eq!(code, 1);
        assert!(error.contains("it is disk \"first\"") && error.contains("x.img"), "{error}");
    }
    assert_eq!(daemon.run("disk rm first").0, 0);
    assert_eq!(daemon.run("disk add second --path hard.img").0, 0);
}

/// O10: a second daemon on the same image, and one on the same socket.
#[test]
fn what_another_process_holds_is_refused_with_its_name() {
    let daemon = Daemon::start(&null("other"));
    let folder = daemon.folder.path();
    image(folder, "x.img");
    assert_eq!(daemon.run("disk add first --path x.img").0, 0);
    let text = fs::read_to_string(folder.join("sidecore.toml")).unwrap();
    let mine = text.replace(&null("other"), &disk("mine", "path = \"x.img\"\n"));
    let mine = mine.replace("run/api.sock", "second.sock").replace("\"state\"", "\"second\"");
    fs::write(folder.join("second.toml"), &mine).unwrap();
    let serve = ["serve", "--config", "second.toml"];
    let second = || run(Command::new(PROGRAM).args(serve).current_dir(folder));
    let check = ["serve", "--check", "--config", "second.toml"];
    let (code, _, error) = run(Command::new(PROGRAM).args(check).current_dir(folder));
    assert_ne!(code, 0);
    assert!(error.contains("x.img") && error.contains(&daemon.child.id().to_string()), "{error}");
    fs::write(folder.join("second.toml"), mine.replace("second.sock", "run/api.sock")).unwrap();
    let (code, _, error) = second();
    assert_ne!(code, 0);
    let own =
        format!("another daemon serves it, process {}\n  stop who has it, or ", daemon.child.id());
    assert!(error.contains(&own), "{error}");
    // Two that keep their state in one folder would overwrite each other's.
    let third = text.replace("run/api.sock", "third.sock").replace("other", "another");
    fs::write(folder.join("second.toml"), third).unwrap();
    let (code, _, error) = second();
    assert_eq!(code, 1);
    let holder = format!(
        "state is kept by another daemon, process {}, whose `api` is {}/run/api.sock\n  stop that one, or give \
         this one its own `api`, `run_dir` and `state_dir` in [daemon]\n",
        daemon.child.id(),
        folder.display()
    );
    assert!(error.contains(&holder), "{error}");
    assert!(!folder.join("third.sock").exists(), "nothing is left behind");
    assert_eq!(shown(&daemon, "first").0, "waiting", "the first is as it was");
}

/// E39: places where no socket can be made.
#[test]
fn a_socket_that_cannot_be_made_is_refused_and_nothing_is_followed() {
    let daemon = Daemon::start(&null("other"));
    let folder = daemon.folder.path();
    fs::create_dir(folder.join("folder.sock")).unwrap();
    fs::write(folder.join("file.sock"), "precious").unwrap();
    symlink("file.sock", folder.join("link.sock")).unwrap();
    symlink("nowhere", folder.join("dangling.sock")).unwrap();
    let _taken = UnixListener::bind(folder.join("taken.sock")).unwrap();
    let long = format!("{}.sock", "l".repeat(120));
    for (socket, why) in [
        ("folder.sock", "is not a socket"),
        ("file.sock", "is not a socket"),
        ("link.sock", "is not a socket"),
        ("dangling.sock", "is not a socket"),
        ("taken.sock", "another process listens"),
        ("/proc/here.sock", "/proc/here.sock"),
        (long.as_str(), "at most 107 bytes"),
    ] {
        let line = format!("disk add new --backend null --size 1M --socket {socket}");
        let (code, _, error) = daemon.run(&line);
        assert_eq!(code, 1, "{socket}");
        assert!(error.contains(why), "{socket}: {error}");
        assert_eq!(daemon.run("show new").0, 1, "{socket}: it is not kept");
    }
    assert_eq!(fs::read_to_string(folder.join("file.sock")).unwrap(), "precious");
    assert!(fs::symlink_metadata(folder.join("dangling.sock")).unwrap().is_symlink());
    // What a daemon that was killed left behind is replaced.
    drop(UnixListener::bind(folder.join("stale.sock")).unwrap());
    assert_eq!(daemon.run("disk add new --backend null --size 1M --socket stale.sock").0, 0);
}

/// O5: in any order, as often as one likes.
#[test]
fn disks_are_removed_once() {
    let daemon = Daemon::start(&null("other"));
    assert_eq!(daemon.run("disk add a --backend null --size 1M").0, 0);
    assert_eq!(daemon.run("disk add a --backend null --size 1M").0, 1);
    let _front_end = UnixStream::connect(daemon.folder.path().join("a.sock")).unwrap();
    assert_eq!(daemon.run("disk rm a").0, 0);
    let (code, _, error) = daemon.run("disk rm a");
    assert_eq!(code, 1);
    assert!(error.contains("there is no disk \"a\""), "{error}");
    assert!(!daemon.folder.path().join("a.sock").exists());
}

/// O11: what cannot be kept is not done, and what is damaged or newer is not guessed at.
#[test]
fn state_that_cannot_be_kept_or_read_is_told() {
    let mut daemon = Daemon::start(&null("other"));
    let folder = daemon.folder.path().to_path_buf();
    fs::remove_dir_all(folder.join("state")).unwrap();
    fs::write(folder.join("state"), "a file").unwrap();
    let (code, _, error) = daemon.run("disk add a --backend null --size 1M");
    assert_eq!(code, 1);
    assert!(error.contains("cannot be kept") && error.contains("nothing was changed"), "{error}");
    assert!(error.contains(&*folder.join("state").to_string_lossy()), "{error}");
    assert_eq!(daemon.run("show a").0, 1);
    fs::remove_file(folder.join("state")).unwrap();
    assert_eq!(daemon.run("disk add a --backend null --size 1M").0, 0, "it goes on");

    let kept = folder.join("state/disks.json");
    let text = fs::read_to_string(&kept).unwrap();
    // A power cut while it was written leaves the new file half and the old one whole.
    fs::write(folder.join("state/disks.json.new"), &text[..text.len() / 2]).unwrap();
    daemon.signal(Signal::KILL);
    daemon.child.wait().unwrap();
    for damaged in [&text[..text.len() / 2], "", "{\"version\":99,\"disks\":[]}"] {
        fs::write(&kept, damaged).unwrap();
        let serve = ["serve", "--config", "sidecore.toml"];
        let (code, _, error) = run(Command::new(PROGRAM).args(serve).current_dir(&folder));
        assert_ne!(code, 0, "{damaged}");
        assert!(error.contains("disks.json"), "{damaged}: {error}");
        assert_eq!(fs::read_to_string(&kept).unwrap(), damaged, "it is left as it is");
    }
    fs::write(&kept, &text).unwrap();
    daemon.again();
    daemon.expect_notice("READY=1\n");
    assert_eq!(shown(&daemon, "a").0, "waiting");
}

/// O13: signals by the hundred, and a stop of the whole process.
#[test]
fn signals_by_the_hundred_and_a_pause_change_nothing() {
    let daemon = Daemon::start(&null("a"));
    let front_end = UnixStream::connect(daemon.folder.path().join("a.sock")).unwrap();
    for _ in 0..300 {
        for signal in [Signal::HUP, Signal::PIPE, Signal::URG, Signal::WINCH, Signal::CHILD] {
            daemon.signal(signal);
        }
    }
    daemon.signal(Signal::STOP);
    std::thread::park_timeout(Duration::from_millis(200));
    daemon.signal(Signal::CONT);
    let asked = daemon.run("ls --json");
    let log = fs::read_to_string(daemon.folder.path().join("log"));
    assert_eq!(asked.0, 0, "{}\n{log:?}", asked.2);
    let list = json(&asked.1);
    assert_eq!(list["disks"][0]["state"], "connected");
    drop(front_end);
}

/// O14, E35: without descriptors a connection is refused, not left waiting, and served later.
#[test]
fn without_descriptors_connections_are_refused_and_service_resumes() {
    let daemon = Daemon::start(&(0..16).map(|disk| null(&format!("d{disk}"))).collect::<String>());
    let folder = daemon.folder.path();
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().count() as u64;
    let limit = rustix::process::Rlimit { current: Some(open + 8), maximum: Some(open + 8) };
    let pid = rustix::process::Pid::from_child(&daemon.child);
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
    let connect = |disk: usize| UnixStream::connect(folder.join(format!("d{disk}.sock"))).unwrap();
    let crowd: Vec<UnixStream> = (0..48).map(|n| connect(n % 16)).collect();
    let refused = |stream: &UnixStream| {
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        std::io::Read::read(&mut &*stream, &mut [0]).is_ok_and(|read| read == 0)
    };
    assert!(crowd.iter().any(refused), "nobody was refused");
    drop(crowd);
    // GET_FEATURES: request 1, version 1, no payload.
    let ask: Vec<u8> = [1u32, 1, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let is_answered = || {
        let mut late = connect(3);
        // While those of the crowd wait to be closed there may be none for it.
        late.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        std::io::Write::write_all(&mut late, &ask).is_ok()
            && std::io::Read::read_exact(&mut late, &mut [0; 20]).is_ok()
    };
    assert!((0..900).any(|_| is_answered()), "service is not resumed");
}

/// A log that takes no more lines is lost, and nothing else is.
#[test]
fn a_full_log_ends_nobody() {
    let mut daemon = Daemon::start(&null("good"));
    daemon.signal(Signal::KILL);
    daemon.child.wait().unwrap();
    let log = daemon.folder.path().join("log");
    fs::remove_file(&log).unwrap();
    symlink("/dev/full", &log).unwrap();
    daemon.again();
    daemon.expect_notice("READY=1\n");
    assert_eq!(daemon.run("disk add more --backend null --size 1G").0, 0);
    assert_eq!(daemon.run("reload").0, 0);
    assert_eq!(daemon.child.try_wait().unwrap(), None, "it serves");
}
