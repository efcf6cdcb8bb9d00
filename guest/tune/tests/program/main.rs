//! The program on made-up trees: what it says and changes, and what is left of it when it is killed at any write.

mod killed;
mod tree;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use sidecore_tune::tree::Tree;
use tuning::{System, Trouble};

/// The program, which cargo builds beside its tests. The variable by which cargo tells has a hyphen in its name, and no
/// shell hands that on to the compiler.
fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().with_file_name("sidecore-tune")
}

fn ran(root: &Path, words: &[&str]) -> Output {
    Command::new(program()).args(words).arg("--root").arg(root).output().unwrap()
}

fn status(root: &Path, words: &[&str]) -> i32 {
    ran(root, words).status.code().unwrap()
}

fn said(root: &Path, words: &[&str]) -> Value {
    let output = ran(root, &[words, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

#[test]
fn check_apply_ls_undo() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    tree::make(root);
    let before = tree::kept(root);
    assert_eq!(status(root, &["check"]), 1);
    assert_eq!(tree::kept(root), before);
    assert!(!root.join("var").exists(), "check makes nothing");
    let findings = said(root, &["check", "--rule", "block-scheduler"])["findings"].clone();
    assert_eq!(findings.as_array().unwrap().len(), 3);
    assert_eq!(findings[0]["place"], "/sys/block/vda/queue/scheduler");
    assert_eq!((&findings[0]["is"], &findings[0]["wish"]), (&"mq-deadline".into(), &"none".into()));
    assert_eq!(status(root, &["apply"]), 0);
    assert_eq!(status(root, &["check"]), 0);
    let scheduler = fs::read_to_string(root.join("sys/block/vdb/queue/scheduler")).unwrap();
    assert_eq!(scheduler, "mq-deadline [none]\n");
    assert_eq!(said(root, &["ls"])["changes"].as_array().unwrap().len(), 7);
    let applied = text(&ran(root, &["apply"]).stdout);
    assert_eq!(applied, "nothing is left for `apply` to set; nothing was changed\n");
    assert_eq!(status(root, &["undo"]), 0);
    assert_eq!(tree::kept(root), before);
    assert_eq!(tree::journal(root), b"");
    let undone = text(&ran(root, &["undo"]).stdout);
    assert_eq!(undone, "nothing was changed since the guest started; nothing was put back\n");
}

#[test]
fn check_says_what_where_and_why() {
    let folder = tempfile::tempdir().unwrap();
    tree::make(folder.path());
    let words =
        ["check", "--rule", "nmi-watchdog", "--rule", "gro-timers", "--rule", "disk-queues"];
    let said = text(&ran(folder.path(), &words).stdout);
    let lines: Vec<&str> = said.lines().collect();
    let wanted = [
        "kernel 6.1.0, 2 vCPUs, 3 virtio disks, 1 virtio NIC",
        "",
        "not as it should be: `apply` sets it",
        "  nmi-watchdog: /proc/sys/kernel/nmi_watchdog is 1, wished 0",
        "      it keeps a counter of the virtual PMU running on each vCPU: its registers and its interrupts",
        "      exit, also in an idle guest",
        "",
        "depends on the load: `try`, or `apply --rule NAME`",
        "  gro-timers: /sys/class/net/eth0/gro_flush_timeout is 0, wished 20000",
    ];
    assert_eq!(lines[..wanted.len()], wanted);
    assert!(said.contains("\nnot as it should be, and not this guest's to set\n  disk-queues: /sys/block/vda/mq is 1\n"));
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let none = ran(root, &["apply"]);
    assert_eq!(none.status.code(), Some(3));
    assert_eq!(
        text(&none.stderr),
        "sidecore-tune: this machine is no guest: it has no virtio device, and its processor names \
         no hypervisor; run this in the guest; nothing was changed\n"
    );
    assert_eq!(status(root, &["check"]), 0);
    tree::make(root);
    let unknown = ran(root, &["apply", "--rule", "magic", "--json"]);
    assert_eq!(unknown.status.code(), Some(2));
    let error: Value = serde_json::from_slice(&unknown.stderr).unwrap();
    assert!(error["error"].as_str().unwrap().starts_with("there is no rule \"magic\"; there are "));
    assert_eq!(status(&root.join("nowhere"), &["check"]), 2);
    let journal = root.join("var/lib/sidecore-tune/journal");
    fs::create_dir_all(journal.parent().unwrap()).unwrap();
    fs::write(&journal, "what is this\n").unwrap();
    let broken = ran(root, &["undo"]);
    assert_eq!(broken.status.code(), Some(2));
    assert!(text(&broken.stderr).contains("line 1 of the journal is not understood"));
}

#[test]
fn a_second_process_waits_for_nobody() {
    let folder = tempfile::tempdir().unwrap();
    tree::make(folder.path());
    let mut first = Tree::open(folder.path(), None).unwrap();
    first.lock().unwrap();
    let second = ran(folder.path(), &["apply"]);
    assert_eq!(second.status.code(), Some(3));
    assert!(text(&second.stderr).contains("another sidecore-tune is at work"));
}

#[test]
fn a_hostile_tree_is_read_bounded_and_never_left() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    tree::make(&root);
    fs::write(folder.path().join("outside"), "[mq-deadline] none\n").unwrap();
    let queue = root.join("sys/block/vda/queue");
    let place = |name: &str| queue.join(name);
    for name in ["scheduler", "nr_requests", "wbt_lat_usec", "rq_affinity"] {
        fs::remove_file(place(name)).unwrap();
    }
    symlink(folder.path().join("outside"), place("scheduler")).unwrap();
    symlink("wbt_lat_usec", place("wbt_lat_usec")).unwrap();
    fs::write(place("nr_requests"), vec![b'1'; 1 << 20]).unwrap();
    let pipe = Command::new("mkfifo").arg(place("rq_affinity")).status().unwrap();
    assert!(pipe.success());
    fs::write(root.join("proc/sys/kernel/nmi_watchdog"), [0xff, 0, b'\n']).unwrap();
    fs::write(root.join("proc/sys/kernel/soft_watchdog"), "").unwrap();
    symlink("loop", root.join("sys/block/loop")).unwrap();
    let mut tree = Tree::open(&root, None).unwrap();
    let mut read = |name: &str| tree.bytes(&format!("sys/block/vda/queue/{name}"), 4096);
    assert_eq!(read("scheduler"), Err(Trouble::Absent));
    assert_eq!(read("nr_requests"), Err(Trouble::TooLong));
    assert_eq!(read("rq_affinity"), Err(Trouble::Refused("is no regular file".to_owned())));
    assert!(matches!(read("wbt_lat_usec"), Err(Trouble::Refused(_))));
    let before = tree::kept(&root);
    let all = ["--rule", "soft-watchdog", "--rule", "block-scheduler", "--rule", "nmi-watchdog"];
    assert_eq!(status(&root, &[&["apply"], &all[..]].concat()), 0);
    assert_eq!(status(&root, &["undo"]), 0);
    assert_eq!(tree::kept(&root), before);
    let outside = fs::read_to_string(folder.path().join("outside")).unwrap();
    assert_eq!(outside, "[mq-deadline] none\n");
}

#[test]
fn what_is_tried_ends_as_it_began_or_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    tree::make(root);
    let before = tree::kept(root);
    let words = ["try", "--rule", "clocksource", "--measure", "timer", "--rounds", "4"];
    let trials = said(root, &[&words[..], &["--seconds", "1"]].concat())["trials"].clone();
    assert_eq!(trials[0]["a"].as_array().unwrap().len(), 4);
    assert_eq!(trials[0]["b"].as_array().unwrap().len(), 4);
    // A made-up clock changes nothing, but this machine's own load may: the end is one of both.
    let is_kept = trials[0]["kept"].as_bool().unwrap();
    assert_eq!(tree::kept(root) == before, !is_kept);
    assert_eq!(status(root, &["undo"]), 0);
    assert_eq!(tree::kept(root), before);
    assert_eq!(status(root, &["try", "--measure", "block:vdz"]), 2);
    assert_eq!(status(root, &["try", "--measure", "weather"]), 2);
}
