//! How disks are shown, and what is said of changes.

use config::api::{DiskServiceView, HeldView, StageView, StagedBy};
use config::spec::StageKind;

use super::*;

#[test]
fn queues_that_stay_by_hand_are_seen_and_so_is_how_to_let_go() {
    let queue = |index: u16| {
        serde_json::json!({
            "index": index, "sidecore": 1, "by_hand": index == 0, "size": 256,
            "busy_percent": 30 + index,
            "format": "split", "counters": CountersView::default(),
        })
    };
    let disk: DiskView = serde_json::from_value(serde_json::json!({
        "id": "a", "declared": "api", "state": "running", "socket": "/s", "mode": "listen",
        "backend": "null", "size_bytes": 512, "block_size_bytes": 512, "readonly": false,
        "serial": "", "queues_max": 2, "queues_attached": 2, "queues_by_hand": 1, "share": 7,
        "policy": "poll", "allow_unsealed_memory": false, "counters": CountersView::default(),
        "queues": [queue(0), queue(1)],
    }))
    .unwrap();
    let text = disk_text(&disk, Room::Whole);
    let said = "placed      1 stay by hand; `sidecore disk move a --to auto` lets them go\n";
    assert!(text.contains(said), "{text}");
    let column: Vec<Option<&str>> =
        text.lines().rev().take(4).map(|line| line.split_whitespace().last()).collect();
    assert_eq!(column, [Some("-"), Some("auto"), Some("hand"), Some("PLACED")], "{text}");
    let busy: Vec<Option<&str>> = text
        .lines()
        .rev()
        .take(4)
        .map(|line| line.split_whitespace().find(|w| w.ends_with('%')))
        .collect();
    assert_eq!(busy, [Some("61%"), Some("31%"), Some("30%"), None], "{text}");
    // Who is told of a guest that is not there has asked the wrong daemon.
    assert!(accepted_text(&disk).starts_with("the guest of disk a goes on"));
    let nobody = DiskView { state: DiskState::Waiting, queues_attached: 0, ..disk.clone() };
    assert!(accepted_text(&nobody).starts_with("no guest is connected to disk a here"));
    let whole = DiskView { queues_by_hand: 2, ..disk.clone() };
    let none = DiskView { queues_by_hand: 0, ..disk.clone() };
    let list = table(&[disk, whole, none], Room::Whole);
    for placed in ["  PLACED    DECLARED", "  hand 1/2  api", "  hand      api", "  auto      api"]
    {
        assert!(list.contains(placed), "{placed}: {list}");
    }
}

#[test]
fn a_list_fits_the_terminal_and_says_what_is_not_known() {
    let disk = DiskView { size_bytes: None, ..crate::vmm::tests::disk() };
    let long = DiskView { id: "tenant-42-of-rack-7-vm-17-root".to_string(), ..disk.clone() };
    let list = [disk, long];
    assert_eq!(
        table(&list, Room::Columns(80)),
        "ID                              STATE    SIZE  QUEUES  REQUESTS  ERRORS  P99\n\
         vm1                             waiting     -     0/4         0       0    -\n\
         tenant-42-of-rack-7-vm-17-root  waiting     -     0/4         0       0    -\n\
         and 3 columns more: --wide\n"
    );
    assert_eq!(
        table(&list, Room::Columns(40)),
        "ID                              STATE\n\
         vm1                             waiting\n\
         tenant-42-of-rack-7-vm-17-root  waiting\n\
         and 8 columns more: --wide\n"
    );
    assert!(table(&list, Room::Columns(120)).contains("/run/s/vm1.sock"));
    let whole = disk_text(&list[0], Room::Whole);
    assert!(whole.contains("size        -\n"), "{whole}");
}

#[test]
fn a_disk_of_another_machine_names_the_link_and_what_it_is_there() {
    let (link, remote) = (Some("rack".to_string()), Some("db".to_string()));
    let text = disk_text(&DiskView { link, remote, ..crate::vmm::tests::disk() }, Room::Whole);
    let line = text.lines().find(|line| line.starts_with("link")).unwrap();
    assert_eq!(line.split_once(' ').unwrap().1.trim(), "rack, db there");
}

#[test]
fn a_change_says_what_is_so_and_what_is_so_no_longer() {
    let disk: DiskView = serde_json::from_value(serde_json::json!({
        "id": "a", "declared": "api", "state": "running", "socket": "/s", "mode": "listen",
        "backend": "null", "size_bytes": 512, "block_size_bytes": 512, "readonly": false,
        "serial": "", "queues_max": 1, "queues_attached": 0, "share": 7, "policy": "es2",
        "policy_as": "es2 (quota 3)", "latency_target_us": 200, "allow_unsealed_memory": false,
        "counters": CountersView::default(),
    }))
    .unwrap();
    let share = DiskChange { share: Some(7), ..DiskChange::default() };
    let now = "disk a has share 7 and policy es2 (quota 3) now, latency target 200 us";
    assert_eq!(set_text(&disk, &share), format!("{now}\n"));
    let limit = DiskChange { limit_iops: Some(0), group: Some(String::new()), ..share };
    assert_eq!(set_text(&disk, &limit), format!("{now}, no limit of its own, in no group\n"));
    let mut disk = disk;
    disk.service.latency_target_us = None;
    let target = DiskChange { latency_target_us: Some(0), ..DiskChange::default() };
    assert!(set_text(&disk, &target).ends_with(" now, no latency target\n"));
    let owner = DiskChange { socket_owner: Some(String::new()), ..DiskChange::default() };
    let whose = ", its socket for the daemon's user alone\n";
    assert!(set_text(&disk, &owner).ends_with(whose), "{}", set_text(&disk, &owner));
    let mut given = disk.clone();
    given.access.socket_owner = Some("vm1".to_string());
    assert!(set_text(&given, &owner).ends_with(", its socket for user vm1, mode 0600\n"));
    assert!(disk_text(&disk, Room::Whole).contains("policy      es2 (quota 3)\n"));
    // Groups and limits are columns where somebody has one.
    assert!(!table(std::slice::from_ref(&disk), Room::Whole).contains("GROUP"));
    let held = HeldView { held: 3, held_ns: 2_500_000, ..HeldView::default() };
    let counters = CountersView { held, ..CountersView::default() };
    let limited = DiskView {
        id: "b".to_string(),
        service: DiskServiceView {
            limit_iops: Some(2000),
            limit_bytes: Some(1 << 20),
            limit_burst_ms: Some(100),
            group: Some("tenant".to_string()),
            ..disk.service.clone()
        },
        counters,
        ..disk.clone()
    };
    let text = disk_text(&limited, Room::Whole);
    assert!(text.contains("held        3 times by its limits, 2.5 ms in all\n"), "{text}");
    assert!(text.contains("P99    HELD\n") && text.ends_with("2.5 ms\n"), "{text}");
    assert!(!table(&[disk.clone(), limited.clone()], Room::Whole).contains("PLACED"));
    assert_eq!(
        table(&[disk, limited], Room::Whole),
        "ID  STATE    BACKEND  SIZE  QUEUES  REQUESTS  ERRORS  P99  GROUP   \
         LIMIT                        DECLARED  SOCKET\n\
         a   running  null      512     0/1         0       0    -  -       \
         -                            api       /s\n\
         b   running  null      512     0/1         0       0    -  tenant  \
         2000 requests/s, 1M bytes/s  api       /s\n"
    );
}

#[test]
fn the_first_line_of_a_disk_says_that_its_requests_are_made_to_fail() {
    let with = |kind| DiskView {
        stages: vec![StageView {
            delay_us: Some(500),
            errors_per_million: Some(100),
            ..StageView::new(kind, StagedBy::File)
        }],
        ..crate::vmm::tests::disk()
    };
    let text = disk_text(&with(StageKind::Fault), Room::Whole);
    let said = "vm1, with the stage `fault`: 500 us later, 100 errors a million";
    assert_eq!(text.lines().next(), Some(&*format!("id          {said}")), "{text}");
    let text = disk_text(&with(StageKind::Trace), Room::Whole);
    assert_eq!(text.lines().next(), Some("id          vm1"), "{text}");
}
