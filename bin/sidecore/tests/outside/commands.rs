//! The program as operators run it: a daemon of its own, the commands, and their exit statuses.

use std::process::Command;

use crate::harness::{Daemon, PROGRAM, json, run};
use rustix::process::Signal;

#[test]
fn a_disk_is_made_changed_and_removed_and_survives_a_kill() {
    let mut daemon = Daemon::start("[[disk]]\nid = \"fixed\"\nbackend = \"null\"\nsize = \"1G\"\n");
    let (code, _, error) = daemon.run("disk add vm1 --path vm1.img --size 10M --queues 4");
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(daemon.run("disk resize vm1 20M").0, 0);
    assert_eq!(daemon.run("disk set vm1 --share 7 --policy notify").0, 0);
    assert_eq!(daemon.run("disk set vm1 --limit-iops 9 --limit-burst-ms 20").0, 0);
    let (_, said, _) = daemon.run("disk set vm1 --limit-iops 0");
    assert!(said.contains("no limit of its own"), "{said}");

    daemon.signal(Signal::KILL);
    daemon.child.wait().unwrap();
    daemon.again();
    daemon.expect_notice("READY=1\n");

    let list = json(&daemon.run("ls --json").1);
    let ids: Vec<&str> =
        list["disks"].as_array().unwrap().iter().map(|d| d["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["fixed", "vm1"]);
    let disk = json(&daemon.run("show vm1 --json").1);
    assert_eq!(disk["size_bytes"], 20 << 20);
    assert_eq!((&disk["share"], &disk["policy"]), (&7.into(), &"notify".into()));
    assert_eq!((&disk["state"], &disk["declared"]), (&"waiting".into(), &"api".into()));
    // The burst waited for a limit.
    assert!(disk["limit_burst_ms"].is_null(), "{disk}");
    let (_, said, _) = daemon.run("disk set vm1 --limit-iops 7");
    assert!(said.contains("at most 7 requests/s, bursts of 20 ms"), "{said}");
    assert_eq!(daemon.run("disk rm vm1").0, 0);
    let (code, _, error) = daemon.run("show vm1");
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "sidecore: there is no disk and no nic \"vm1\"\n  `sidecore ls` lists what there is\n"
    );
    assert!(daemon.folder.path().join("vm1.img").exists(), "the image stays");
}

#[test]
fn a_disk_of_the_file_is_changed_in_the_file() {
    let daemon = Daemon::start("[[disk]]\nid = \"fixed\"\nbackend = \"null\"\nsize = \"1G\"\n");
    for line in ["disk rm fixed", "disk resize fixed 2G", "disk set fixed --share 2"] {
        let (code, _, error) = daemon.run(line);
        assert_eq!(code, 1, "{line}");
        assert!(error.contains("sidecore.toml") && error.contains("sidecore reload"), "{error}");
    }
    let file = daemon.folder.path().join("sidecore.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("1G", "2X")).unwrap();
    let (code, _, error) = daemon.run("reload");
    assert_eq!(code, 1);
    assert!(error.contains("sidecore.toml:10:8: disk[1].size: \"X\" is not a unit"), "{error}");
    std::fs::write(&file, text.replace("1G", "2G")).unwrap();
    assert_eq!(daemon.run("reload").1, "resized disk fixed to 2G\n");
    assert_eq!(json(&daemon.run("show fixed --json").1)["size_bytes"], 2u64 << 30);
    // Taken away and made anew, with nothing attached that would have to come back first.
    std::fs::write(&file, text.replace("1G", "2G") + "queues = 2\n").unwrap();
    let (code, done, error) = daemon.run("reload");
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(done, "removed disk fixed\nadded disk fixed\n");
}

#[test]
fn a_disk_s_command_for_a_nic_names_the_nic_s_and_the_other_way_round() {
    let daemon = Daemon::start(
        "[[disk]]\nid = \"d\"\nbackend = \"null\"\nsize = \"1G\"\n\
         [[nic]]\nid = \"n\"\nnull = \"drop\"\n",
    );
    for (lines, said) in [
        (
            "rm n;set n --share 2;resize n 1G;clear n;move n --to 0;move n --to auto",
            "sidecore: \"n\" is a nic; use `sidecore nic ",
        ),
        (
            "rm d;set d --share 2;link d down;move d --to 0;move d --to auto;show d",
            "sidecore: \"d\" is a disk; use `sidecore disk ",
        ),
    ] {
        let kind = if said.contains("is a nic") { "disk" } else { "nic" };
        for line in lines.split(';') {
            let (code, _, error) = daemon.run(&format!("{kind} {line}"));
            assert_eq!(code, 1, "{line}");
            assert!(error.starts_with(said), "{kind} {line}: {error}");
        }
    }
    assert_eq!((daemon.run("show n").0, daemon.run("show d").0), (0, 0));
}

#[test]
fn what_a_reload_leaves_to_a_restart_is_named_and_logged_once() {
    let daemon = Daemon::start("policy = \"notify\"\n");
    let file = daemon.folder.path().join("sidecore.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("max = 1\n", "max = 1\nurgency = \"off\"\n");
    std::fs::write(&file, text.replace("\"state\"", "\"other\"")).unwrap();
    let (code, done, _) = daemon.run("reload");
    assert_eq!(code, 0);
    let named = "daemon.state_dir is different: a restart of the daemon puts it into force, and `sidecore upgrade` \
                 refuses it\nsidecores.urgency is different: `sidecore upgrade`, or a restart, puts it into force\n";
    assert!(done.ends_with(named), "{done}");
    let log = std::fs::read_to_string(daemon.folder.path().join("log")).unwrap();
    let said = "put into force by an upgrade (not `state_dir`, nor `api` and `api_read` in place of others) or a restart: \
                daemon.state_dir, sidecores.urgency\n";
    assert_eq!(log.matches(said).count(), 1, "{log}");
    assert_eq!(log.matches("or a restart").count(), 1, "{log}");
}

#[test]
fn a_stop_is_orderly_and_takes_the_sockets_away() {
    let mut daemon = Daemon::start("[[disk]]\nid = \"a\"\nbackend = \"null\"\nsize = \"1G\"\n");
    assert!(daemon.folder.path().join("a.sock").exists());
    daemon.signal(Signal::TERM);
    daemon.expect_notice("STOPPING=1\n");
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    for socket in ["a.sock", "run/api.sock"] {
        assert!(!daemon.folder.path().join(socket).exists(), "{socket}");
    }
    let (code, _, error) = daemon.run("ls --json");
    assert_eq!(code, 3);
    assert!(json(&error)["hint"].as_str().unwrap().starts_with("start the daemon"), "{error}");
}

#[test]
fn mistakes_end_with_2_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.toml"), "[[disk]]\nid = \"a\"\n").unwrap();
    let run =
        |line: &str| run(Command::new(PROGRAM).args(line.split(' ')).current_dir(folder.path()));
    for line in ["serve --config bad.toml --check", "serve --config bad.toml"] {
        let (code, out, error) = run(line);
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(error.starts_with("bad.toml:1:1: disk[1]: the disk has no back-end\n"), "{error}");
    }
    let (code, _, error) = run("--json serve --check --config bad.toml");
    assert_eq!((code, &json(&error)["mistakes"][0]["line"]), (2, &1.into()));
    assert_eq!(run("serve --config missing.toml").0, 2);
    assert_eq!(run("disk add a --queues 65").0, 2);
    // What the file names is not there, which is no mistake of the file.
    let daemon = "[daemon]\nstate_dir = \"state\"\n";
    let absent = format!("{daemon}[[disk]]\nid = \"a\"\npath = \"no.img\"\n");
    std::fs::write(folder.path().join("absent.toml"), &absent).unwrap();
    let (code, _, error) = run("serve --config absent.toml --check");
    assert_eq!(code, 1);
    assert!(error.contains("absent.toml:3: disk \"a\": there is no /"), "{error}");
    std::fs::write(folder.path().join("absent.toml"), format!("{absent}size = \"1M\"\n")).unwrap();
    assert_eq!(run("serve --config absent.toml --check").0, 0);
    std::fs::write(folder.path().join("good.toml"), daemon).unwrap();
    assert_eq!(run("serve --config good.toml --check").0, 0);
}

#[test]
fn who_is_at_work_is_shown_as_often_as_is_said() {
    let daemon = Daemon::start(
        "[[disk]]\nid = \"d\"\nbackend = \"null\"\nsize = \"1G\"\n\
         [[nic]]\nid = \"n\"\nnull = \"drop\"\n",
    );
    let (code, said, error) = daemon.run("top --interval 0.1 --count 3 --json");
    assert_eq!((code, error.as_str()), (0, ""));
    let looks: Vec<_> = said.lines().map(json).collect();
    assert_eq!(looks.len(), 3, "{said}");
    for look in &looks {
        let seconds = look["seconds"].as_f64().unwrap();
        assert!((0.1..30.0).contains(&seconds), "{look}");
        assert_eq!((&look["disks"][0]["id"], &look["nics"][0]["id"]), (&"d".into(), &"n".into()));
        assert_eq!(look["disks"][0]["reads_per_s"], 0.0);
        assert!(look["sidecores"][0]["busy_percent"].as_f64().is_some(), "{look}");
    }
    // Nobody looks at a screen: once.
    let (code, said, _) = daemon.run("top --interval 0.1");
    assert_eq!(code, 0);
    assert_eq!(said.matches("SIDECORE").count(), 1, "{said}");
    for interval in ["0", "nan", "-1", "4000", "x"] {
        let (code, _, error) = daemon.run(&format!("top --interval {interval}"));
        assert_eq!(code, 2, "{interval}");
        assert!(error.contains("from 0.1 to 3600"), "{error}");
    }
}

const ONE_OF_EACH: &str = "[[disk]]\nid = \"d1\"\nbackend = \"null\"\nsize = \"1G\"\n[[switch]]\nid = \"s1\"\n\
    [[nic]]\nid = \"n1\"\nswitch = \"s1\"\n[[group]]\nid = \"g1\"\n";

#[test]
fn what_is_typed_first_elsewhere_is_there_too() {
    let daemon = Daemon::start(ONE_OF_EACH);
    for (line, said) in [
        ("status", "d1"),
        ("list", "n1"),
        ("disk ls", "d1"),
        ("disk list", "d1"),
        ("disk show d1", "d1"),
        ("nic ls", "n1"),
        ("switch ls", "s1"),
        ("group ls", "g1"),
    ] {
        let (code, told, error) = daemon.run(line);
        assert_eq!((code, error.as_str()), (0, ""), "{line}");
        assert!(told.contains(said), "{line}: {told}");
    }
    assert_eq!(json(&daemon.run("disk ls --json").1)["disks"][0]["id"], "d1");
}

#[test]
fn names_are_completed_by_asking_the_daemon_and_silence_is_kept_without_one() {
    let mut daemon = Daemon::start(ONE_OF_EACH);
    for (words, names) in [
        ("disk rm", "d1\n"),
        ("--json show", "d1\nn1\n"),
        ("nic link", "n1\n"),
        ("switch rm", "s1\n"),
        ("group set --limit-iops 5", "g1\n"),
        ("disk rm d1", ""),
        ("serve", ""),
    ] {
        assert_eq!(daemon.run(&format!("complete -- {words}")), (0, names.into(), String::new()));
    }
    let script = "source <(\"$0\" completions bash); sidecore() { \"$program\" \"$@\"; }; program=$0\n\
                  COMP_WORDS=(sidecore disk rm ''); COMP_CWORD=3\n\
                  _sidecore_with_names sidecore '' rm; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let api = daemon.folder.path().join("run/api.sock");
    bash.args(["-c", script, PROGRAM]).env("SIDECORE_API", api);
    let (code, told, error) = run(&mut bash);
    assert_eq!((code, error.as_str()), (0, ""), "{told}");
    assert!(told.lines().any(|line| line == "d1"), "{told}");
    assert!(!told.contains("launcher"), "{told}");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    assert_eq!(daemon.run("complete -- disk rm"), (0, String::new(), String::new()));
}

#[test]
fn a_check_says_what_a_reload_of_the_daemon_with_that_file_would_do() {
    let daemon = Daemon::start(ONE_OF_EACH);
    let file = daemon.folder.path().join("sidecore.toml");
    let check = || {
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--check", "--config"]).arg(&file);
        run(&mut command)
    };
    let (code, told, error) = check();
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(told.contains("a reload would change nothing"), "{told}");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("1G", "2G")).unwrap();
    let (code, told, _) = check();
    assert_eq!(code, 0);
    assert!(told.contains("change  disk d1"), "{told}");
    assert_eq!(json(&daemon.run("show d1 --json").1)["size_bytes"], 1u64 << 30);
    // Of another file nothing is said.
    let other = daemon.folder.path().join("other.toml");
    std::fs::copy(&file, &other).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--check", "--config"]).arg(&other);
    let (code, told, _) = run(&mut command);
    assert_eq!((code, told.contains("reload")), (0, false), "{told}");
}

#[test]
fn hints_are_in_the_words_of_the_command_line_and_there_is_one() {
    let daemon = Daemon::start("");
    let (code, _, error) = daemon.run("disk add a --path no.img");
    assert_eq!(code, 1);
    assert!(error.contains("correct `--path`") && error.contains("add a `--size`"), "{error}");
    assert_eq!(error.trim_end().lines().count(), 2, "{error}");
    assert!(!error.contains("put that right"), "{error}");
}
