//! `serve --check`: what a start would stumble over beside the file itself.

use std::fs::{File, Permissions, create_dir, set_permissions, write};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use rustix::fs::{FlockOperation, fcntl_lock, flock};

use crate::harness::{Daemon, PROGRAM, addresses_of_its_own, iohost, json, run};

const CLIENT: &str =
    "[[link]]\nid = \"rack\"\nrole = \"client\"\nkey_file = \"key\"\niohost_key = ";

/// A file of that text in a folder of its own, with its state there, too, checked.
fn checked(folder: &tempfile::TempDir, text: &str) -> (i32, String, String) {
    let daemon = if text.contains("[daemon]") { "" } else { "[daemon]\nstate_dir = \"state\"\n" };
    write(folder.path().join("f.toml"), format!("{text}\n{daemon}")).unwrap();
    let words = ["serve", "--check", "--config", "f.toml"];
    run(Command::new(PROGRAM).args(words).current_dir(folder.path()))
}

#[test]
fn keys_and_interfaces_of_links_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let text = format!("{CLIENT}\"{}\"\niohosts = [\"10.0.0.1:7447\"]\n", "ab".repeat(32));
    let hint = "correct it; `sidecore link key FILE` makes a key, and prints its public half";
    let refused = |what: &str| {
        let (code, _, error) = checked(&folder, &text);
        let expected = format!("f.toml:1: link \"rack\": its key file {}: {what}", key.display());
        assert_eq!(code, 1);
        assert!(error.contains(&expected) && error.contains(hint), "{error}");
    };
    refused("No such file or directory");
    write(&key, "cd".repeat(32)).unwrap();
    set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    refused("others than user");
    set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let (code, out, error) = checked(&folder, &text);
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(out.starts_with("f.toml: right; 0 disks, 1 link, "), "{out}");

    // The key of the wrong machine.
    let (_, own, _) = run(Command::new(PROGRAM).args(["link", "key"]).arg(&key));
    let (code, _, error) = checked(&folder, &text.replace(&"ab".repeat(32), own.trim()));
    assert_eq!(code, 1);
    assert!(error.contains("its `iohost_key` is this machine's own: it is to be"), "{error}");

    let station = "interface = \"nosuch0\"\niohosts = [\"52:54:00:00:00:01\"]";
    let text = text.replace("iohosts = [\"10.0.0.1:7447\"]", station);
    let (code, _, error) = checked(&folder, &text);
    assert_eq!(code, 1);
    let expected = "f.toml:1: link \"rack\": there is no interface \"nosuch0\"";
    assert!(error.contains(expected), "{error}");
    assert!(error.contains("correct `interface` (`ip link` lists those there are)"), "{error}");
    // What a reload says of an interface that is no tap.
    let tap = "[[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\n[[switch.uplink]]\ntap = \"lo\"\n";
    let (code, _, error) = checked(&folder, tap);
    assert_eq!(code, 1);
    assert!(
        error.contains("switch \"s\": cannot open tap lo: the interface of this name is not a tap"),
        "{error}"
    );
    assert!(error.contains("correct `tap`"), "{error}");
    // The one that is always there.
    assert_eq!(checked(&folder, &text.replace("nosuch0", "lo")).0, 0);
}

/// A file of that text, checked and started: both end with the same status and words.
fn refused(folder: &tempfile::TempDir, text: &str) -> (i32, String) {
    let (code, _, error) = checked(folder, text);
    let (started, _, at_the_start) =
        run(Command::new(PROGRAM).args(["serve", "--config", "f.toml"]).current_dir(folder));
    assert_eq!(started, code, "{error}{at_the_start}");
    let what = error.lines().next().unwrap_or_default();
    let what = what.trim_start_matches("sidecore: ");
    // Where something is declared is said of a daemon's file by its whole name.
    let folder = format!("{}/", folder.path().display());
    let bare = |text: &str| text.replace(&folder, "");
    assert!(code == 1 || bare(&at_the_start).contains(&bare(what)), "{error}{at_the_start}");
    // What ends says nothing of how it would go on.
    assert!(!at_the_start.contains("devices made by command are refused"), "{at_the_start}");
    assert!(!at_the_start.contains("another daemon may use"), "{at_the_start}");
    (code, error)
}

/// One rule of statuses: 2 where the file is wrong, and 1 where this host is not as the file has it.
#[test]
fn a_check_and_a_start_end_alike() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_path_buf();
    write(root.join("mine"), "mine").unwrap();
    create_dir(root.join("open")).unwrap();
    set_permissions(root.join("open"), Permissions::from_mode(0o777)).unwrap();
    let daemon = |state: &str| {
        format!("[daemon]\napi = \"api.sock\"\nrun_dir = \".\"\nstate_dir = \"{state}\"\n")
    };
    let images = |folder: &str| {
        let line = format!("image_folders = [\"{folder}\"]\n");
        daemon("state") + &line
    };
    for (text, code, what) in [
        (daemon("state") + "[[disk]]\nid = \"A\"\n", 2, "the name \"A\""),
        ("[[disk\n".to_string(), 2, "not TOML"),
        (daemon("mine"), 1, "Not a directory"),
        (daemon("open"), 1, "has mode 0777"),
        (images("none"), 1, "image_folders"),
        (images("."), 2, "has "),
    ] {
        let (ended, error) = refused(&folder, &text);
        assert_eq!(ended, code, "{error}");
        assert!(error.contains(what), "{error}");
        assert!(!root.join("api.sock").exists(), "{error}");
    }
    // What is missing is made, by the start and by nobody else.
    assert_eq!(checked(&folder, &daemon("new/state")).0, 0);
    assert!(!root.join("new").exists());
}

/// With `image_folders` the daemon's own folders are made before it is confined: as carefully as afterwards.
#[test]
fn no_folder_is_made_in_dev_or_along_a_link_of_another_user() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    create_dir(root.join("images")).unwrap();
    let daemon = |api: &str, state: &str| {
        format!(
            "[daemon]\napi = \"{api}\"\nrun_dir = \".\"\nstate_dir = \"{state}\"\nimage_folders = [\"images\"]\n"
        )
    };
    let started = |text: &str| {
        write(root.join("f.toml"), text).unwrap();
        run(Command::new(PROGRAM).args(["serve", "--config", "f.toml"]).current_dir(root))
    };
    let missing = format!("/dev/sidecore-test-{}", std::process::id());
    let (code, _, error) = started(&daemon("api.sock", &format!("{missing}/state")));
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("no file is made in /dev"), "{error}");
    assert!(!std::path::Path::new(&missing).exists());

    symlink(root.join("elsewhere"), root.join("link")).unwrap();
    create_dir(root.join("elsewhere")).unwrap();
    if lchown(root.join("link"), Some(65_534), Some(65_534)).is_err() {
        let why = b"skipped: to be another user takes root\n";
        return std::io::stderr().write_all(why).unwrap();
    }
    let (code, _, error) = started(&daemon("link/made/api.sock", "state"));
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("is a link of user 65534"), "{error}");
    assert!(!root.join("elsewhere/made").exists());
}

/// However it is spelled: by `..`, by a link of either kind, and where none is there yet.
#[test]
fn one_image_of_two_disks_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    create_dir(root.join("img")).unwrap();
    File::create(root.join("img/a.img")).unwrap().set_len(1 << 20).unwrap();
    symlink("img/a.img", root.join("soft.img")).unwrap();
    std::fs::hard_link(root.join("img/a.img"), root.join("hard.img")).unwrap();
    symlink("img", root.join("other")).unwrap();
    let both = |one: &str, other: &str, more: &str| {
        let disk = |id: &str, path: &str| {
            format!("[[disk]]\nid = \"{id}\"\npath = \"{path}\"\nsize = \"1M\"\n{more}")
        };
        checked(&folder, &(disk("one", one) + &disk("two", other)))
    };
    for (one, other) in [
        ("img/a.img", "img/../img/a.img"),
        ("img/a.img", "soft.img"),
        ("hard.img", "img/a.img"),
        ("img/new.img", "other/new.img"),
    ] {
        let (code, _, error) = both(one, other, "");
        assert_eq!(code, 1, "{one} {other}: {error}");
        let said = "disk \"two\": its image ";
        assert!(error.contains(said) && error.contains("by another name"), "{error}");
        assert!(error.contains("disk \"one\" ("), "{error}");
    }
    let (code, _, error) = both("img/a.img", "soft.img", "readonly = true\n");
    assert_eq!(code, 0, "{error}");
    let (code, _, error) = both("img/a.img", "img/b.img", "");
    assert_eq!(code, 0, "{error}");
}

/// However it is spelled, and whoever listens there.
#[test]
fn one_socket_of_two_devices_is_a_mistake_and_nobody_is_disturbed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    create_dir(root.join("run")).unwrap();
    symlink("run", root.join("link")).unwrap();
    let listens = UnixListener::bind(root.join("run/s")).unwrap();
    listens.set_nonblocking(true).unwrap();
    let two = |second: &str| {
        format!(
            "[daemon]\napi = \"api.sock\"\nrun_dir = \"run\"\nstate_dir = \"state\"\n[[disk]]\nid = \
             \"a\"\nbackend = \"null\"\nsize = \"1M\"\nsocket = \"run/s\"\n[[switch]]\nid = \
             \"lan\"\n[[nic]]\nid = \"n\"\nswitch = \"lan\"\nsocket = \"{second}\"\n"
        )
    };
    for second in ["run/s", "run//s", "./run/./s", "run/../run/s", "link/s", "none/../run/s"] {
        let (code, error) = refused(&folder, &two(second));
        assert_eq!(code, 2, "{second}: {error}");
        assert!(error.contains("is that of disk \"a\" (f.toml:5)"), "{second}: {error}");
        assert!(error.contains("give each"), "{second}: {error}");
    }
    let (code, error) = refused(&folder, &two("link/../api.sock"));
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("is the socket of the API"), "{error}");
    let nobody = listens.accept().unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
    // A start would serve the NIC.
    let (code, _, error) = checked(&folder, &two("run/t"));
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("run/s: another process listens there"), "{error}");
    drop(listens);
    assert_eq!(checked(&folder, &two("run/t")).0, 0);
}

#[test]
fn a_device_made_by_command_has_no_socket_of_another_one() {
    let daemon = Daemon::start("[[disk]]\nid = \"a\"\nbackend = \"null\"\nsize = \"1M\"\n");
    let folder = daemon.folder.path();
    assert_eq!(daemon.run("switch add lan").0, 0);
    for line in [
        "disk add b --backend null --size 1M --socket run/../a.sock",
        "nic add n --switch lan --socket ./state/../a.sock",
    ] {
        let (code, _, error) = daemon.run(line);
        assert_eq!(code, 1, "{line}");
        let expected =
            format!("is that of disk \"a\" ({}/sidecore.toml:7)\n  give each ", folder.display());
        assert!(error.contains(&expected), "{line}: {error}");
    }
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    assert!(!log.contains("a front-end connected"), "{log}");
    // Spelled otherwise it is the same socket, which a reload passes on.
    let file = folder.join("sidecore.toml");
    let text = std::fs::read_to_string(&file).unwrap() + "socket = \"run/../a.sock\"\n";
    write(&file, text).unwrap();
    let (code, done, error) = daemon.run("reload");
    assert_eq!((code, error.as_str()), (0, ""), "{done}");
    UnixStream::connect(folder.join("a.sock")).unwrap();
}

#[test]
fn a_daemon_says_where_nothing_can_be_kept() {
    let daemon = Daemon::start("");
    let check = || {
        let told = json(&daemon.run("doctor --json").1);
        let checks = told["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == "state").expect("a check").clone()
    };
    assert_eq!(check()["state"], "ok");
    let state = daemon.folder.path().join("state");
    std::fs::rename(&state, daemon.folder.path().join("away")).unwrap();
    write(&state, "mine").unwrap();
    let found = check();
    assert_eq!(found["state"], "warn");
    assert!(found["found"].as_str().unwrap().contains("Not a directory"), "{found}");
    let (code, _, error) = daemon.run("disk add b --backend null --size 1M");
    assert_eq!(code, 1);
    assert!(error.contains("Not a directory"), "{error}");
}

/// What never answers, and what never ends, in the file's place.
#[test]
fn a_configuration_is_a_file_of_some_length() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo.toml");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    symlink("/dev/zero", folder.path().join("zero.toml")).unwrap();
    write(folder.path().join("long.toml"), "# ".repeat(3 << 20)).unwrap();
    for (name, why) in [
        ("fifo.toml", "it is no regular file"),
        ("zero.toml", "it is no regular file"),
        (".", "it is no regular file"),
        ("long.toml", "it has more than 4194304 bytes"),
    ] {
        let words = ["serve", "--check", "--config", name];
        let (code, _, error) = run(Command::new(PROGRAM).args(words).current_dir(&folder));
        assert_eq!(code, 2);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn what_devices_are_promised_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let disk = |id: &str| format!("[[disk]]\nid = {id:?}\nbackend = \"null\"\nsize = \"1M\"\n");
    let text = format!("[sidecores]\nmax = 1\n{}{}", disk("a"), disk("b") + "queues = 64\n");
    assert_eq!(checked(&folder, &text).0, 0);
    let line = format!("ulimit -n 200; exec {PROGRAM} serve --check --config f.toml");
    let (code, _, error) =
        run(Command::new("sh").args(["-c", line.as_str()]).current_dir(folder.path()));
    assert_eq!(code, 1);
    let expected = "f.toml:7: disk \"b\": it may take 269 descriptors, and of 200 only ";
    assert!(error.contains(expected), "{error}");
    let expected = " are left beside what 1 device and the daemon itself may take: raise LimitNOFILE in the unit \
                    (`ulimit -Hn`), or give devices fewer queues";
    assert!(error.contains(expected), "{error}");
    let hint = "the limits are those of the process that checks; under systemd the unit sets a daemon's own";
    assert!(error.contains(hint), "{error}");
}

/// The check knows how much a daemon takes itself: what it adds up is what the daemon says of itself then.
#[test]
fn a_check_counts_as_the_start_does() {
    let disks = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n[[switch]]\nid = \"s\"\n[[nic]]\nid = \
                 \"n\"\nswitch = \"s\"\n";
    let processors = std::thread::available_parallelism().unwrap().get();
    for sidecores in ["max = 1", "cpus = \"0-1\"\nmax = 2"].into_iter().take(processors) {
        let daemon = Daemon::with_sidecores(sidecores, disks);
        let line = "--json serve --check --config sidecore.toml";
        let (code, out, error) = daemon.run(line);
        assert_eq!((code, error.as_str()), (0, ""));
        let checked = json(&out);
        let running = daemon_view(&daemon);
        for what in ["descriptors", "mappings", "memory_bytes"] {
            for part in ["own", "promised"] {
                let (check, start) =
                    (&checked["bounds"][what][part], &running["bounds"][what][part]);
                assert_eq!(check, start, "{sidecores}: {what}: {part}");
            }
        }
        assert_eq!(checked["bounds"]["devices"], 2);
    }
}

fn daemon_view(daemon: &Daemon) -> serde_json::Value {
    let mut stream = UnixStream::connect(daemon.folder.path().join("run/api.sock")).unwrap();
    stream.write_all(b"GET /v1/daemon HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").expect(&text);
    json(body)
}

/// What was made by command, and what the file has since.
#[test]
fn a_file_is_checked_beside_what_was_made_by_command() {
    let daemon = Daemon::start("[[disk]]\nid = \"a\"\nbackend = \"null\"\nsize = \"1M\"\n");
    assert_eq!(daemon.run("disk add b --backend null --size 1M").0, 0);
    let folder = daemon.folder.path().to_path_buf();
    let text = std::fs::read_to_string(folder.join("sidecore.toml")).unwrap();
    let check = |text: &str| {
        write(folder.join("next.toml"), text).unwrap();
        let words = ["serve", "--check", "--config", "next.toml"];
        run(Command::new(PROGRAM).args(words).current_dir(&folder))
    };
    assert_eq!(check(&text).0, 0);
    let (code, _, error) = check(&text.replace("id = \"a\"", "id = \"b\""));
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("disk \"b\" of ") && error.contains("state/disks.json"), "{error}");
    write(folder.join("state/disks.json"), "{ damaged").unwrap();
    let (code, _, error) = check(&text);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("state/disks.json"), "{error}");
    let hint = "\n  put a copy of it back, or move the file away and add the disks";
    assert!(error.contains(hint) && !error.contains("remove that device"), "{error}");
}

/// What a second daemon would be refused, and what the one that runs would not.
#[test]
fn what_another_daemon_has_is_found_and_a_file_for_that_one_is_right() {
    let daemon = Daemon::start("[[disk]]\nid = \"a\"\nbackend = \"null\"\nsize = \"1M\"\n");
    let folder = daemon.folder.path();
    let pid = daemon.child.id();
    let text = std::fs::read_to_string(folder.join("sidecore.toml")).unwrap();
    let started = |text: &str, words: &[&str]| {
        write(folder.join("next.toml"), text).unwrap();
        let words = [&["serve", "--config", "next.toml"], words].concat();
        run(Command::new(PROGRAM).args(words).current_dir(folder))
    };
    let other = text.replace("run/api.sock", "other.sock").replace("\".\"", "\"other\"");
    let held = format!("state is kept by another daemon, process {pid}, whose `api` is ");
    let apart = text.replace("\"state\"", "\"other\"").replace("\".\"", "\"other\"");
    let served = format!("run/api.sock: another daemon serves it, process {pid}\n");
    for (text, words) in [(other, held), (apart.clone(), served)] {
        for (code, _, error) in [started(&text, &["--check"]), started(&text, &[])] {
            assert_eq!(code, 1, "{error}");
            assert!(error.contains(&words), "{error}");
        }
    }
    let (code, out, error) = started(&text, &["--check"]);
    assert_eq!((code, error.as_str()), (0, ""));
    let beside =
        format!("process {pid} runs with another file, and has this `api` and `state_dir`");
    assert!(out.contains(&beside), "{out}");
    // The sockets of its devices are its own; one that somebody else has is nobody's.
    let apart = apart.replace("run/api.sock", "other.sock");
    assert_eq!(started(&apart, &["--check"]).0, 0);
    let taken = format!("{apart}socket = \"a.sock\"\n");
    let (code, _, error) = started(&taken, &["--check"]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("a.sock: another process listens there"), "{error}");
}

#[test]
fn what_any_process_has_is_refused_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("a.img");
    write(&image, [0; 1 << 20]).unwrap();
    let disk = "[[disk]]\nid = \"a\"\npath = \"a.img\"\n";
    assert_eq!(checked(&folder, disk).0, 0);
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let own = std::process::id();
    let refused = || {
        let (code, out, error) = checked(&folder, disk);
        assert_eq!((code, out.as_str()), (1, ""), "{error}");
        let expected =
            format!("f.toml:1: disk \"a\": {} is in use: process {own} (", image.display());
        assert!(error.contains(&expected), "{error}");
        assert!(error.contains("\n  stop that process or give another image"), "{error}");
    };
    flock(&file, FlockOperation::NonBlockingLockShared).unwrap();
    refused();
    let readonly = format!("{disk}readonly = true\n");
    assert_eq!(checked(&folder, &readonly).0, 0, "many may read");
    flock(&file, FlockOperation::Unlock).unwrap();
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    refused();
    assert_eq!(checked(&folder, &format!("{disk}migratable = true\n")).0, 0, "it is waited for");
    fcntl_lock(&file, FlockOperation::Unlock).unwrap();
    assert_eq!(checked(&folder, disk).0, 0, "it asks for no lock");
    // The port of a link.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let (code, out, error) = checked(&folder, &iohost(&address));
    assert_eq!((code, out.as_str()), (1, ""), "{error}");
    assert!(error.contains(&format!("link \"rack\": cannot open a link at udp {address}: ")));
    // Who was forked beside has it, too, until its exec.
    let (_, hint) = error.split_once("\n  it is held by process ").expect(&error);
    assert!(format!("process {hint}").contains(&format!("process {own} (")), "{error}");
}

/// This process has the port, at an address that is in nobody's way.
#[test]
fn an_address_that_no_interface_has_is_held_by_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let [own, _] = addresses_of_its_own(7450);
    let _socket = UdpSocket::bind(own).unwrap();
    let (code, _, error) = checked(&folder, &iohost(&"192.0.2.1:7450".parse().unwrap()));
    assert_eq!(code, 1);
    assert!(error.contains("no interface has this address"), "{error}");
    assert!(error.ends_with("\n  correct this link\n") && !error.contains("process "), "{error}");
}

#[test]
fn what_the_daemon_of_the_file_has_is_right_and_it_is_named() {
    let [address, _] = addresses_of_its_own(7447);
    let image = "[[disk]]\nid = \"a\"\npath = \"a.img\"\nsize = \"1M\"\n";
    let daemon = Daemon::start(&format!("{image}{}", iohost(&address)));
    let (code, out, error) = daemon.run("serve --check --config sidecore.toml");
    assert_eq!((code, error.as_str()), (0, ""));
    let runs = format!("process {} runs with it. ", daemon.child.id());
    assert!(out.contains(&runs), "{out}");
    // One that may not look into a daemon which has kept rights, as where `User=` has ambient capabilities.
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", "--bounding-set=-all", PROGRAM]);
    command.args(["serve", "--check", "--config", "sidecore.toml"]);
    let (code, out, error) = run(command.current_dir(daemon.folder.path()));
    if error.starts_with("setpriv: ") {
        let why = b"skipped: to give up rights for a program takes root\n";
        return std::io::stderr().write_all(why).unwrap();
    }
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(out.contains(&runs), "{out}");
}

/// An empty image that a start would make, in a folder where none can be.
#[test]
fn an_image_that_cannot_be_made_is_told_with_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let fixed = folder.path().join("fixed");
    create_dir(&fixed).unwrap();
    let chattr = |word: &str| {
        Command::new("chattr").arg(word).arg(&fixed).status().is_ok_and(|ended| ended.success())
    };
    if !chattr("+i") {
        let why = b"skipped: a folder that nobody may change takes root and a file system that has them\n";
        return std::io::stderr().write_all(why).unwrap();
    }
    let daemon = "[daemon]\napi = \"api.sock\"\nrun_dir = \".\"\nstate_dir = \"state\"\n";
    let disk = "[[disk]]\nid = \"a\"\npath = \"fixed/new.img\"\nsize = \"1M\"\n";
    let checked = checked(&folder, &[daemon, disk].concat());
    assert!(chattr("-i"));
    let (code, _, error) = checked;
    assert_eq!(code, 1, "{error}");
    let what =
        "fixed/new.img is missing, and its folder takes no new file: Operation not permitted";
    assert!(error.contains(what), "{error}");
    assert!(error.contains("let the daemon's user write to that folder"), "{error}");
    assert!(!error.contains("readonly"), "{error}");
}

/// What a start serves, and may not be meant.
#[test]
fn sizes_that_do_not_fit_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::File::create(folder.path().join("a.img")).unwrap().set_len(8 << 20).unwrap();
    let disk = |id: &str, what: &str| format!("[[disk]]\nid = {id:?}\n{what}");
    let memory = disk("m", "backend = \"memory\"\nsize = \"20T\"\n");
    let text = disk("a", "path = \"a.img\"\nsize = \"1M\"\n") + &memory;
    let (code, out, error) = checked(&folder, &text);
    assert_eq!((code, error.as_str()), (0, ""));
    let note = "\nnote: f.toml:1: disk \"a\" would have 1M, and its image has 8M\n";
    assert!(out.contains(note), "{out}");
    assert!(out.contains("note: memory disks and the daemon may take 2097"), "{out}");
    let text = text.replace("\"1M\"", "\"8M\"").replace("20T", "1M");
    assert!(!checked(&folder, &text).1.contains("note"));
    let (code, _, error) = checked(&folder, &memory.replace("20T", "100T"));
    assert_eq!(code, 1);
    assert!(
        error.contains("KiB of addresses") && error.contains("make memory disks smaller"),
        "{error}"
    );
}

/// All that is in a folder, and when it was changed last.
fn listed(folder: &std::path::Path) -> Vec<(std::path::PathBuf, i64, i64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let facts = entry.metadata().unwrap();
        all.push((entry.path(), facts.mtime(), facts.mtime_nsec(), facts.len()));
        if facts.is_dir() {
            all.extend(listed(&entry.path()));
        }
    }
    all.sort();
    all
}

#[test]
fn a_check_writes_nothing_whether_a_daemon_runs_or_not() {
    let image = |id: &str| format!("[[disk]]\nid = \"{id}\"\npath = \"{id}.img\"\nsize = \"1M\"\n");
    let folder = tempfile::tempdir().unwrap();
    std::fs::File::create(folder.path().join("a.img")).unwrap().set_len(1 << 20).unwrap();
    let head = "[daemon]\nrun_dir = \"run\"\nstate_dir = \"state\"\napi = \"run/api.sock\"\n";
    let text = [head, &image("a"), &image("new")].concat();
    write(folder.path().join("f.toml"), &text).unwrap();
    let before = listed(folder.path());
    let words = ["serve", "--check", "--config", "f.toml"];
    let (code, _, error) = run(Command::new(PROGRAM).args(words).current_dir(folder.path()));
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(listed(folder.path()), before);

    let daemon = Daemon::start(&image("a"));
    daemon.keeps_image("a.img");
    let folder = daemon.folder.path();
    let before = listed(folder);
    let words = ["serve", "--check", "--config", "sidecore.toml"];
    let (code, _, error) = run(Command::new(PROGRAM).args(words).current_dir(folder));
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(listed(folder), before);
}

/// Its file system may not be mounted, and a start would not make it anew.
#[test]
fn an_image_that_was_there_once_is_missed() {
    let mut daemon = Daemon::start("[[disk]]\nid = \"a\"\npath = \"a.img\"\nsize = \"1M\"\n");
    daemon.keeps_image("a.img");
    daemon.signal(rustix::process::Signal::TERM);
    let status = daemon.child.wait().unwrap();
    assert!(status.success(), "{status}\n{}", daemon.log());
    let folder = daemon.folder.path();
    std::fs::remove_file(folder.join("a.img")).unwrap();
    let words = ["serve", "--check", "--config", "sidecore.toml"];
    let (code, _, error) = run(Command::new(PROGRAM).args(words).current_dir(folder));
    let log = daemon.log();
    assert!(
        error.contains("a.img is missing, and was there before\n  put it back"),
        "{error}\n{log}"
    );
    // Another time it may be there.
    assert_eq!(code, 1);
}
