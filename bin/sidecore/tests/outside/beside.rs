//! `serve --check` beside daemons: its own, in each state that one may be in, and others.

use std::fs::{File, Permissions, create_dir, remove_file, set_permissions, write};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use crate::harness::{Daemon, Heir, PROGRAM, run};

const NOBODY: u32 = 65534;
const CHECK: &str = "serve --check --config sidecore.toml";

fn text_of(daemon: &Daemon) -> String {
    std::fs::read_to_string(daemon.folder.path().join("sidecore.toml")).unwrap()
}

fn rewrite(daemon: &Daemon, text: &str) {
    write(daemon.folder.path().join("sidecore.toml"), text).unwrap();
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let why = b"skipped: to be another user takes root\n";
        std::io::stderr().write_all(why).unwrap();
    }
    is_root
}

fn folder_with(image: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    File::create(folder.path().join(image)).unwrap().set_len(1 << 20).unwrap();
    folder
}

#[test]
fn its_own_daemon_that_is_stopped_is_named_as_by_any_command() {
    let daemon = Daemon::start("[[disk]]\nid = \"a\"\nbackend = \"null\"\nsize = \"1M\"\n");
    let pid = daemon.child.id();
    daemon.signal(Signal::STOP);
    waitpid(Some(Pid::from_child(&daemon.child)), WaitOptions::UNTRACED).unwrap();
    let (code, out, error) = daemon.run(&format!("--timeout 50ms {CHECK}"));
    assert_eq!(code, 3, "{error}");
    assert!(out.starts_with("sidecore.toml: right; 1 disk"), "{out}");
    assert!(error.contains("gave no answer to GET /v1/daemon within 50ms\n"), "{error}");
    let todo = format!("process {pid} is stopped: `kill -CONT {pid}` lets it go on");
    assert!(error.contains(&todo) && !error.contains("stop that one"), "{error}");
    // It is its own also where the file has another place to keep state, or to answer at.
    for (from, to) in [("\"state\"", "\"other\""), ("run/api.sock", "run/other.sock")] {
        rewrite(&daemon, &text_of(&daemon).replace(from, to));
        let (code, _, error) = daemon.run(&format!("--timeout 50ms {CHECK}"));
        assert_eq!(code, 3, "{to}: {error}");
        assert!(error.contains(&todo), "{to}: {error}");
        rewrite(&daemon, &text_of(&daemon).replace(to, from));
    }
    // What is not so on this host is told all the same.
    let disk = "[[disk]]\nid = \"b\"\npath = \"none.img\"\n";
    rewrite(&daemon, &(text_of(&daemon) + disk));
    let (code, _, error) = daemon.run(&format!("--timeout 50ms {CHECK}"));
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("there is no "), "{error}");
    daemon.signal(Signal::CONT);
}

#[test]
fn its_own_daemon_whose_api_socket_was_removed_is_told_how_to_make_it_again() {
    let daemon = Daemon::start("[[disk]]\nid = \"a\"\nbackend = \"null\"\nsize = \"1M\"\n");
    remove_file(daemon.folder.path().join("run/api.sock")).unwrap();
    let (code, out, error) = daemon.run(CHECK);
    assert_eq!(code, 3, "{error}");
    assert!(out.contains(": right; "), "{out}");
    let pid = daemon.child.id();
    assert!(error.contains(&format!("`kill -HUP {pid}`")), "{error}");
    assert!(!error.contains("stop that one"), "{error}");
}

/// A restart would not start, whatever the daemon that runs says.
#[test]
fn what_another_daemon_has_is_refused_beside_its_own_as_without_it() {
    let disk = "[[disk]]\nid = \"a\"\nbackend = \"null\"\nsize = \"1M\"\n";
    let (mut own, other) = (Daemon::start(disk), Daemon::start(disk));
    let its = other.folder.path().display().to_string();
    let text = text_of(&own);
    let whose = format!("process {}", other.child.id());
    let wrong = [
        (text.replace("\"state\"", &format!("\"{its}/state\"")), whose.clone()),
        (text.replace("run/api.sock", &format!("{its}/run/api.sock")), whose.clone()),
        (text.replace("[daemon]", &format!("[daemon]\napi_read = \"{its}/run/api.sock\"")), whose),
        (
            text.replace("run_dir = \".\"", &format!("run_dir = \"{its}\"")),
            "a.sock: another".into(),
        ),
    ];
    let found = |own: &Daemon, text: &str, words: &str| {
        rewrite(own, text);
        let (code, out, error) = own.run(CHECK);
        assert_eq!((code, out.as_str()), (1, ""), "{text}: {error}");
        assert!(error.contains(words), "{text}: {error}");
        // The same thing is not said twice.
        assert!(error.matches("stop that one").count() <= 1, "{error}");
        error
    };
    for (text, words) in &wrong {
        found(&own, text, words);
    }
    own.signal(Signal::KILL);
    own.child.wait().unwrap();
    for (text, words) in &wrong {
        found(&own, text, words);
    }
    rewrite(&own, &text);
    assert_eq!(own.run(CHECK).0, 0);
}

#[test]
fn what_an_upgrade_puts_into_force_and_no_reload_is_right_and_said() {
    let (one, two) = (folder_with("a.img"), folder_with("b.img"));
    let [one, two] = [&one, &two].map(|folder| folder.path().display().to_string());
    let disk =
        |id: &str, folder: &str| format!("[[disk]]\nid = \"{id}\"\npath = \"{folder}/{id}.img\"\n");
    let daemon = Daemon::start(&disk("a", &one));
    let text = text_of(&daemon);
    let folders =
        |all: &str| text.replace("[daemon]\n", &format!("[daemon]\nimage_folders = [{all}]\n"));
    rewrite(&daemon, &folders(&format!("\"{one}\"")));
    let heir = |told: &str| Heir::of(told.split(' ').nth(1).unwrap());
    let (code, told, error) = daemon.run("upgrade");
    assert_eq!((code, error.as_str()), (0, ""));
    let _first = heir(&told);
    let next = folders(&format!("\"{one}\", \"{two}\"")) + &disk("b", &two);
    rewrite(&daemon, &next);
    let (code, told, error) = daemon.run(CHECK);
    assert_eq!((code, error.as_str()), (0, ""), "{told}");
    assert!(told.contains("`sidecore upgrade`, or a restart, puts it into force"), "{told}");
    assert!(told.contains("add disk b\n"), "{told}");
    let (code, dry, error) = daemon.run("reload --dry-run");
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(told.contains(&dry), "{dry}");
    let (code, _, error) = daemon.run("reload");
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("\n  `sidecore upgrade`, or a restart, puts this file into force"),
        "{error}"
    );
    assert!(!error.contains("add its folder"), "{error}");
    // In none of the folders of the file either: that is a mistake.
    rewrite(&daemon, &(folders(&format!("\"{one}\"")) + &disk("b", &two)));
    let (code, _, error) = daemon.run(CHECK);
    assert_eq!(code, 2, "{error}");
    rewrite(&daemon, &next);
    let (code, told, error) = daemon.run("upgrade");
    assert_eq!((code, error.as_str()), (0, ""));
    let _second = heir(&told);
    assert!(told.contains("\nadded disk b\n"), "{told}");
    assert!(told.ends_with("daemon.image_folders is different, and in force now\n"), "{told}");
}

#[test]
fn what_was_made_by_command_is_looked_at_as_what_the_file_has() {
    let mut daemon = Daemon::start("");
    let image = daemon.folder.path().join("m.img");
    let (code, _, error) = daemon.run("disk add m --path m.img --size 1M");
    assert_eq!(code, 0, "{error}");
    let (code, out, _) = daemon.run(CHECK);
    assert_eq!(code, 0);
    assert!(out.contains("; and 1 device made by command\n"), "{out}");
    // As what it is made of, and as one that was there.
    daemon.keeps_image("m.img\"\n");
    daemon.signal(Signal::KILL);
    daemon.child.wait().unwrap();
    remove_file(&image).unwrap();
    let (code, _, error) = daemon.run(CHECK);
    assert_eq!(code, 1, "{error}");
    let what =
        format!("disk \"m\", which was made by command: its image {} is missing", image.display());
    assert!(error.contains(&what), "{error}");
    daemon.again();
    daemon.expect_notice("READY=1\n");
    let (code, _, error) = daemon.run(CHECK);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains(&what), "{error}");
}

/// What it takes to open a port is a matter of rights, and those are of who starts the daemon.
#[test]
fn a_port_that_this_user_may_not_open_is_found() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    create_dir(folder.path().join("state")).unwrap();
    chown(folder.path().join("state"), Some(NOBODY), Some(NOBODY)).unwrap();
    let daemon = "[daemon]\napi = \"state/api.sock\"\nrun_dir = \"state\"\nstate_dir = \"state\"\n";
    for (port, what) in [
        (
            "tap = \"nosuch7\"",
            "cannot open tap nosuch7: the daemon may not open or make it: it needs CAP_NET_ADMIN",
        ),
        (
            "interface = \"lo\"",
            "cannot open interface lo: the daemon may not open it: it needs CAP_NET_RAW",
        ),
    ] {
        for text in [
            format!("[[nic]]\nid = \"n\"\n{port}\n"),
            format!("[[switch]]\nid = \"s\"\n[[switch.uplink]]\n{port}\n"),
        ] {
            write(folder.path().join("f.toml"), format!("{daemon}{text}")).unwrap();
            let mut command = Command::new(PROGRAM);
            command.args(["serve", "--check", "--config", "f.toml"]).current_dir(folder.path());
            let (code, _, error) = run(command.uid(NOBODY).gid(NOBODY));
            assert_eq!(code, 1, "{error}");
            if !Path::new("/dev/net/tun").exists() && port.starts_with("tap") {
                continue;
            }
            assert!(error.contains(what), "{error}");
            assert!(
                error.contains(&format!("the user that checks, which is {NOBODY} here")),
                "{error}"
            );
        }
    }
}

#[test]
fn the_daemon_of_another_user_is_to_be_checked_as_that_one() {
    if !is_root() {
        return;
    }
    let disk = "[[disk]]\nid = \"a\"\npath = \"a.img\"\nsize = \"1M\"\n";
    let daemon = Daemon::of_user(NOBODY, disk);
    let (code, _, error) = daemon.run(CHECK);
    assert_eq!(code, 1, "{error}");
    let pid = daemon.child.id();
    let hint = format!(
        "process {pid} runs with this file as that user, and it is looked at as user 0: check as user {NOBODY} ("
    );
    assert!(error.contains(&hint), "{error}");
    assert!(!error.contains("allow_user_folder") && !error.contains("chown"), "{error}");
    let as_user = |user: u32| {
        let mut command = Command::new(PROGRAM);
        command.args(CHECK.split(' ')).current_dir(daemon.folder.path()).uid(user).gid(user);
        run(&mut command)
    };
    let (code, out, error) = as_user(NOBODY);
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(out.contains(&format!("process {pid} runs with it. ")), "{out}");
    // One who may not ask it, either.
    set_permissions(daemon.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let (code, _, error) = as_user(1);
    assert_eq!(code, 1, "{error}");
    let hint = format!("it is looked at as user 1: check as user {NOBODY} (");
    assert!(error.contains(&hint) && !error.contains("chown"), "{error}");
}

/// Who took the lock has ended, as a daemon's predecessor has. That is no reason to take it for the daemon's.
#[test]
fn an_image_is_the_daemons_if_it_says_so() {
    let folder = folder_with("n.img");
    let image = folder.path().join("n.img");
    let daemon = Daemon::start("[[disk]]\nid = \"a\"\npath = \"a.img\"\nsize = \"1M\"\n");
    let mut command = Command::new("sh");
    command.args(["-c", "exec 9<\"$1\"; flock -x 9; echo; read end", "sh"]).arg(&image);
    let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    holder.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let disk = format!("[[disk]]\nid = \"n\"\npath = \"{}\"\n", image.display());
    rewrite(&daemon, &(text_of(&daemon) + &disk));
    let (code, _, error) = daemon.run(CHECK);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("disk \"n\": ") && error.contains(" is in use: "), "{error}");
    assert!(!error.contains("it is tried again"), "{error}");
    let (code, _, error) = daemon.run(CHECK);
    assert_eq!(code, 0, "{error}");
}
