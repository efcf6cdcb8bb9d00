//! Upgrades to programs that are none: what operators are told, and what is left.

use std::fs::{Permissions, rename, set_permissions, write};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Daemon, Heir, PROGRAM, addresses_of_its_own, iohost, json};

/// Puts a script in the place of the program that a daemon was started as.
fn install(program: &Path, script: &str) {
    let next = program.with_extension("next");
    write(&next, script).unwrap();
    set_permissions(&next, Permissions::from_mode(0o755)).unwrap();
    rename(&next, program).unwrap();
}

/// Processes of that name which have ended, and for which nobody has waited.
fn unwaited(name: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter(|stat| stat.contains(&format!("({name}) Z"))).count()
}

/// Which exit status a new process had is what its operator looks for first.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "nobody is told when a launcher has waited for a child"
)]
fn how_an_heir_has_ended_is_told_and_nothing_is_left_of_it() {
    let folder = tempfile::tempdir().unwrap();
    // The kernel keeps 15 bytes of a name.
    let name = format!("heir{}", std::process::id());
    let program = folder.path().join(&name);
    symlink(PROGRAM, &program).unwrap();
    let daemon = Daemon::of_program(&program);
    let log = "; what the new process said is in the daemon's log";
    for (script, why, more) in [
        ("#!/bin/sh\nexit 7\n", "the new process has ended (exit status: 7)", log),
        ("#!/bin/sh\nkill -9 $$\n", "the new process has ended (signal: 9 (SIGKILL))", log),
        ("no program", "cannot be started: Exec format error (os error 8)", ""),
    ] {
        install(&program, script);
        let expected = format!("{why}\n  it goes on as it is{more}\n");
        let tells = || {
            let (code, _, error) = daemon.run("upgrade");
            assert_eq!(code, 1, "{error}");
            error.ends_with(&expected)
        };
        // Control waits a moment only for the launcher's word, which comes late on a busy machine.
        assert!((0..50).any(|_| tells()), "never {why}");
        let is_gone = || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            unwaited(&name) == 0
        };
        assert!((0..600).any(|_| is_gone()), "{script}");
    }
    let text = std::fs::read_to_string(daemon.folder.path().join("log")).unwrap();
    assert!(text.contains("given up: the new process has ended (exit status: 7)"), "{text}");
}

/// What an upgrade would be refused for is known before.
#[test]
fn a_doctor_says_whether_the_program_in_place_would_take_over() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sidecore");
    symlink(PROGRAM, &program).unwrap();
    let daemon = Daemon::of_program(&program);
    let check = || {
        let told = json(&daemon.run("doctor --json").1);
        let checks = told["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == "upgrade").expect("a check").clone()
    };
    assert_eq!(check()["state"], "ok");
    install(&program, "#!/bin/sh\nexit 1\n");
    let told = check();
    assert_eq!(told["state"], "warn", "{told}");
    let found = told["found"].as_str().unwrap();
    assert!(found.contains("2 of 2 launchers; ") && found.contains("is no sidecore"), "{found}");
    assert_eq!(told["todo"], format!("install sidecore as {}", program.display()));
    assert_eq!(daemon.run("upgrade").0, 1);
}

/// What was different in the file, as a reload says it.
#[test]
fn an_upgrade_says_what_was_different_in_the_file() {
    let disk = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n";
    let daemon = Daemon::start(&format!("{disk}limit_iops = 5000\n"));
    let file = daemon.folder.path().join("sidecore.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let shared = text.replace("limit_iops = 5000", "share = 7");
    write(&file, shared.replace("max = 1", "max = 1\nurgency = \"off\"")).unwrap();
    let (code, told, error) = daemon.run("upgrade --json");
    assert_eq!((code, error.as_str()), (0, ""));
    let done = json(&told);
    let _first = Heir::of(&done["pid"].to_string());
    let taken = &done["configuration"];
    let changes = ["set disk a: share 100 becomes 7, limit_iops 5000 becomes no limit"];
    assert_eq!(taken["changes"], serde_json::json!(changes), "{told}");
    assert_eq!(taken["put_into_force"], serde_json::json!(["sidecores.urgency"]), "{told}");
    // Nothing is different any more.
    let (code, told, _) = daemon.run("upgrade");
    let _second = Heir::of(told.split(' ').nth(1).unwrap());
    assert_eq!(code, 0);
    assert!(told.ends_with("sidecore.toml: nothing changed\n"), "{told}");
}

/// Whoever is told has no word by which another file would be named.
#[test]
fn a_file_that_is_gone_is_to_be_put_back() {
    let daemon = Daemon::start("");
    std::fs::remove_file(daemon.folder.path().join("sidecore.toml")).unwrap();
    for line in ["reload", "reload --dry-run", "upgrade"] {
        let (code, _, error) = daemon.run(line);
        assert_eq!(code, 1, "{line}: {error}");
        assert!(
            error.contains("put it back: it is the one that the daemon was"),
            "{line}: {error}"
        );
        assert!(!error.contains("--config"), "{line}: {error}");
    }
}

/// The daemon has that port, at another address.
#[test]
fn a_link_whose_address_another_process_has_is_not_right_and_an_upgrade_says_so() {
    let [own, of_another] = addresses_of_its_own(7448);
    let _socket = UdpSocket::bind(of_another).unwrap();
    let daemon = Daemon::start(&iohost(&own));
    let file = daemon.folder.path().join("sidecore.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    write(&file, text.replace(&own.to_string(), &of_another.to_string())).unwrap();
    let (code, _, error) = daemon.run("serve --check --config sidecore.toml");
    assert_eq!(code, 1, "{error}");
    let taken = format!("link \"rack\": cannot open a link at udp {of_another}: another process");
    assert!(error.contains(&taken), "{error}");
    assert!(error.contains(&format!("process {} (", std::process::id())), "{error}");
    assert!(!error.contains(&format!("process {} (", daemon.child.id())), "{error}");
    let (code, told, error) = daemon.run("upgrade");
    assert_eq!(code, 0, "{error}");
    let _heir = Heir::of(told.split(' ').nth(1).unwrap());
    assert!(told.contains("link rack is different, and in force now\n"), "{told}");
    assert!(error.starts_with("link rack: "), "{error}");
    let hint = "; `sidecore remote status` says whether it is open since\n";
    assert!(error.ends_with(hint), "{error}");
}

/// Of an IOhost that is silent the link is open all the same.
#[test]
fn a_client_s_link_has_the_sockets_after_an_upgrade_that_it_had_before() {
    let [iohost, _] = addresses_of_its_own(7451);
    let _silent = UdpSocket::bind(iohost).unwrap();
    let daemon = Daemon::start(&format!(
        "[[link]]\nid = \"rack\"\nrole = \"client\"\niohosts = [\"{iohost}\"]\nsecurity = \"none\"\n"
    ));
    let sockets = || json(&daemon.run("remote status --json").1)["links"][0]["sockets"].clone();
    assert_eq!(sockets(), serde_json::json!(["udp"]));
    let (code, told, error) = daemon.run("upgrade");
    let _heir = Heir::of(told.split(' ').nth(1).unwrap());
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(sockets(), serde_json::json!(["udp"]));
}

/// Nobody is left behind who would go on with rights of a daemon that has ended.
#[test]
#[expect(clippy::disallowed_methods, reason = "nobody is told when a process has ended")]
fn a_launcher_that_is_stopped_ends_with_its_daemon_and_why_it_took_long_is_said() {
    let daemon = Daemon::start("");
    let launchers = || children_of(daemon.child.id());
    let first = *launchers().iter().min().expect("launchers");
    let pid = Pid::from_raw(first.try_into().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let (code, told, error) = daemon.run("upgrade");
    assert_eq!((code, error.as_str()), (0, ""));
    let _heir = Heir::of(told.split(' ').nth(1).unwrap());
    assert!(
        told.contains("\nit took 5 s longer, since a launcher of the process before"),
        "{told}"
    );
    let is_gone = || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let stat = std::fs::read_to_string(format!("/proc/{first}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z")
    };
    assert!((0..3000).any(|_| is_gone()), "it is there");
}

/// The processes whose parent that one is.
fn children_of(pid: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |of: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    all.filter(|of| parent(*of) == Some(pid)).collect()
}

/// Who inherits the API's socket is named as who listens there, and not who made it.
#[test]
#[expect(clippy::disallowed_methods, reason = "nobody is told when a process has stopped")]
fn who_serves_and_is_stopped_is_named_before_an_upgrade_and_after_it() {
    let daemon = Daemon::start("");
    let stopped = |pid: Pid| {
        kill_process(pid, Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        let is_stopped = || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            std::fs::read_to_string(&stat).unwrap().contains(") T ")
        };
        assert!((0..6000).any(|_| is_stopped()));
        let (code, _, error) = daemon.run("--timeout 1s ls");
        kill_process(pid, Signal::CONT).unwrap();
        let pid = pid.as_raw_nonzero();
        assert_eq!(code, 3, "{error}");
        let hint = format!("process {pid} is stopped: `kill -CONT {pid}` lets it go on");
        assert!(error.contains(&hint), "{error}");
    };
    stopped(Pid::from_child(&daemon.child));
    let (code, told, error) = daemon.run("upgrade");
    assert_eq!(code, 0, "{error}");
    let heir = Heir::of(told.split(' ').nth(1).unwrap());
    stopped(heir.0);
}

/// Of a socket that was inherited it is known whether its name leads to it, and it is made again like another one.
#[test]
#[expect(clippy::disallowed_methods, reason = "nobody is told when a socket is made again")]
fn an_inherited_socket_of_the_api_that_was_removed_is_made_again_and_the_old_one_is_closed() {
    let daemon = Daemon::start("");
    let (code, told, error) = daemon.run("upgrade");
    assert_eq!(code, 0, "{error}");
    let heir = Heir::of(told.split(' ').nth(1).unwrap());
    let (code, told, _) = daemon.run("reload");
    assert_eq!(code, 0);
    assert!(told.ends_with("sidecore.toml: nothing changed\n"), "{told}");
    let run_dir = daemon.folder.path().join("run");
    rename(run_dir.join("api.sock"), run_dir.join("old.sock")).unwrap();
    kill_process(heir.0, Signal::HUP).unwrap();
    let comes = |is_so: &dyn Fn() -> bool| {
        let looks = || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_so()
        };
        (0..6000).any(|_| looks())
    };
    assert!(comes(&|| daemon.run("ls").0 == 0));
    // The process before has it until it has ended.
    let old = || UnixStream::connect(run_dir.join("old.sock")).map_err(|error| error.kind());
    assert!(comes(&|| matches!(old(), Err(ErrorKind::ConnectionRefused))));
}
