//! NICs and switches as operators make them: no guest, and no right that a user lacks.

use crate::harness::{Daemon, json};
use rustix::process::Signal;

const FILE: &str = "[[disk]]\nid = \"d\"\nbackend = \"null\"\nsize = \"1G\"\n\
                    [[switch]]\nid = \"lan\"\n[[nic]]\nid = \"fixed\"\nswitch = \"lan\"\n";

#[test]
fn what_was_made_is_changed_removed_and_survives_a_kill() {
    let mut daemon = Daemon::start(FILE);
    for line in [
        "switch add wan --ageing-s 60 --macs-max 100",
        "nic add a --switch wan --vlan 10 --mac 02:00:00:00:00:01",
        "nic add b --switch lan --queues 4 --mtu 9000",
        "nic add meter --null generate --size 64 --rate 10",
        "nic set a --trunk 10,20 --native 1 --share 7 --policy notify --macs-max 3 --moderate-us 50",
        "nic set b --moderate-us 0",
        "nic link b down",
        "nic link fixed down",
    ] {
        let (code, _, error) = daemon.run(line);
        assert_eq!((code, error.as_str()), (0, ""), "{line}");
    }
    assert_eq!(json(&daemon.run("nic show fixed --json").1)["link"], "down");

    daemon.signal(Signal::KILL);
    daemon.child.wait().unwrap();
    daemon.again();
    daemon.expect_notice("READY=1\n");

    let list = json(&daemon.run("ls --json").1);
    let names = |kinds: &str| -> Vec<String> {
        let all = list[kinds].as_array().unwrap().iter();
        all.map(|one| one["id"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(
        (names("disks"), names("nics")),
        (vec!["d".to_string()], ["fixed", "a", "b", "meter"].map(str::to_string).to_vec())
    );
    let a = json(&daemon.run("nic show a --json").1);
    assert_eq!((&a["mac"], &a["switch"]), (&"02:00:00:00:00:01".into(), &"wan".into()));
    assert_eq!((&a["trunk"], &a["native"]), (&serde_json::json!([10, 20]), &1.into()));
    assert_eq!(
        (&a["share"], &a["policy"], &a["macs_max"]),
        (&7.into(), &"notify".into(), &3.into())
    );
    assert_eq!(a["moderate_us"], 50);
    assert_eq!(json(&daemon.run("nic show meter --json").1)["moderate_us"], 64);
    let b = json(&daemon.run("show b --json").1);
    assert_eq!(
        (&b["link"], &b["mtu"], &b["queue_pairs_max"]),
        (&"down".into(), &9000.into(), &4.into())
    );
    assert_eq!(b.get("moderate_us"), None, "none waits, as it was said before the kill");
    // What the file declares follows the file.
    assert_eq!(json(&daemon.run("nic show fixed --json").1)["link"], "up");
    let wan = json(&daemon.run("switch show wan --json").1);
    assert_eq!((&wan["ageing_s"], &wan["macs_max"]), (&60.into(), &100.into()));
    assert_eq!(wan["ports"][0]["name"], "a");
    // Its own address is known there before its guest has sent anything, in the native VLAN.
    let mac = &wan["macs"][0];
    assert_eq!((&mac["mac"], &mac["vlan"]), (&"02:00:00:00:00:01".into(), &1.into()));
    assert_eq!((&mac["port"], wan["macs"].as_array().unwrap().len()), (&"a".into(), 1));

    let (code, _, error) = daemon.run("switch rm wan");
    assert_eq!(code, 1);
    assert!(error.starts_with("sidecore: switch \"wan\" has 1 nic: a\n"), "{error}");
    for line in ["nic rm a", "switch rm wan", "nic rm b", "nic rm meter"] {
        assert_eq!(daemon.run(line).0, 0, "{line}");
    }
    let (_, out, _) = daemon.run("switch show --json");
    assert_eq!(json(&out)["switches"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let daemon = Daemon::start(FILE);
    for (line, code, words) in [
        ("nic add fixed --null drop", 1, "the name \"fixed\" is taken by nic \"fixed\""),
        ("nic add d --null drop", 1, "the name \"d\" is taken by disk \"d\""),
        ("disk add fixed --backend null --size 1G", 1, "is taken by nic \"fixed\""),
        ("nic add x --switch wan", 1, "there is no switch \"wan\""),
        ("nic add x", 1, "the nic is connected to nothing"),
        ("nic set fixed --share 2", 1, "sidecore.toml, line 13"),
        ("nic set fixed --mtu 9000", 2, "--mtu cannot be changed at run time"),
        ("nic rm fixed", 1, "/sidecore.toml, line "),
        ("switch rm lan", 1, "/sidecore.toml, line "),
        ("nic show d", 1, "\"d\" is a disk; use `sidecore disk ...`"),
        ("switch show wan", 1, "there is no switch \"wan\""),
        ("show nothing", 1, "there is no disk and no nic \"nothing\""),
    ] {
        let (found, out, error) = daemon.run(line);
        assert_eq!((found, out.as_str()), (code, ""), "{line}");
        assert!(error.contains(words), "{line}: {error}");
    }
    let api = daemon.folder.path().join("run/api.sock");
    assert!(api.exists(), "the daemon is still there");
}

#[test]
fn a_reload_changes_nics_and_switches_in_order() {
    let daemon = Daemon::start(FILE);
    assert_eq!(daemon.run("nic add guest --switch lan").0, 0);
    let file = daemon.folder.path().join("sidecore.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace("id = \"lan\"", "id = \"other\"").replace("\"lan\"", "\"other\""),
    )
    .unwrap();
    let (code, _, error) = daemon.run("reload");
    assert_eq!(code, 1);
    assert!(error.contains("nic \"guest\" (api) is on switch \"lan\", which is gone"), "{error}");
    assert_eq!(daemon.run("nic rm guest").0, 0);
    let (code, done, error) = daemon.run("reload");
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(
        done,
        "removed nic fixed\nremoved switch lan\nadded switch other\nadded nic fixed\n"
    );
    assert_eq!(json(&daemon.run("nic show fixed --json").1)["switch"], "other");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}share = 9\nvlan = 5\n")).unwrap();
    let expected = "set nic fixed: share 100 becomes 9, vlan none becomes 5\n";
    assert_eq!(daemon.run("reload").1, expected);
    let nic = json(&daemon.run("nic show fixed --json").1);
    assert_eq!((&nic["share"], &nic["vlan"]), (&9.into(), &5.into()));
}

#[test]
fn a_vmm_is_told_what_gives_it_the_nic() {
    let daemon = Daemon::start(FILE);
    let (code, out, error) = daemon.run("nic add q --switch lan --queues 2 --print qemu");
    assert_eq!(code, 0);
    let socket = daemon.folder.path().join("q.sock");
    assert!(out.contains(&format!("path={}", socket.display())), "{out}");
    // Without KVM QEMU crashes on the vectors of a NIC.
    let has_kvm = host::doctor::has_kvm(std::path::Path::new("/"));
    let vectors = if has_kvm { "mq=on,vectors=6" } else { "mq=on,vectors=0" };
    assert!(out.contains("queues=2 \\\n") && out.contains(vectors), "{out}");
    assert!(error.contains("note: a guest needs the first three lines once"), "{error}");
    assert!(socket.exists());
    let printed = json(&daemon.run("nic show q --print libvirt --json").1);
    assert!(printed["print"].as_str().unwrap().contains("<interface type='vhostuser'>"));
    assert_eq!(printed["nic"]["id"], "q");
}
