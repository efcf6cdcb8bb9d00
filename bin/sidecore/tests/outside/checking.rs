//! `serve --check`: what a start would stumble over beside the file itself.

use std::fs::{Permissions, set_permissions, write};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::process::Command;

use crate::harness::{Daemon, PROGRAM, json, run};

const CLIENT: &str =
    "[[link]]\nid = \"rack\"\nrole = \"client\"\nkey_file = \"key\"\niohost_key = ";

/// A file of that text in a folder of its own, checked.
fn checked(folder: &tempfile::TempDir, text: &str) -> (i32, String, String) {
    write(folder.path().join("f.toml"), text).unwrap();
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
        assert_eq!(code, 2);
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
    assert_eq!(code, 2);
    assert!(error.contains("its `iohost_key` is this machine's own: it is to be"), "{error}");

    let station = "interface = \"nosuch0\"\niohosts = [\"52:54:00:00:00:01\"]";
    let text = text.replace("iohosts = [\"10.0.0.1:7447\"]", station);
    let (code, _, error) = checked(&folder, &text);
    assert_eq!(code, 2);
    let expected = "f.toml:1: link \"rack\": there is no interface \"nosuch0\"";
    assert!(error.contains(expected), "{error}");
    assert!(error.contains("correct `interface` (`ip link` lists those there are)"), "{error}");
    // What a reload says of an interface that is no tap.
    let tap = "[[switch]]\nid = \"s\"\n[[nic]]\nid = \"n\"\nswitch = \"s\"\n[[switch.uplink]]\ntap = \"lo\"\n";
    let (code, _, error) = checked(&folder, tap);
    assert_eq!(code, 2);
    assert!(error.contains("switch \"s\": the interface \"lo\" is no tap"), "{error}");
    assert!(error.contains("correct `tap`"), "{error}");
    // The one that is always there.
    assert_eq!(checked(&folder, &text.replace("nosuch0", "lo")).0, 0);
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
    assert_eq!(code, 2);
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
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("disk \"b\" of ") && error.contains("state/disks.json"), "{error}");
    write(folder.join("state/disks.json"), "{ damaged").unwrap();
    let (code, _, error) = check(&text);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("state/disks.json"), "{error}");
}
