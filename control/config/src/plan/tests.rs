//! Files and what comes of them, to the letter.

use super::*;
use crate::mistake::Repeated;
use crate::near::COMPARED;
use crate::spec::{Cache, DISKS_MAX, DiskSpec, NICS_MAX};
use cpus::HostCpus;

fn host() -> HostCpus {
    HostCpus { online: vec![0, 1, 2, 3], auto: vec![3, 2, 1], auto_count: 1 }
}

fn plan(text: &str) -> Plan {
    load(text, "sidecore.toml", "/etc/sidecore", &host(), None)
        .unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn refusal(text: &str) -> String {
    load(text, "sidecore.toml", "/etc/sidecore", &host(), None).unwrap_err().to_string()
}

/// The first line of each mistake, without the file's name.
fn lines(text: &str) -> Vec<String> {
    let refusal = load(text, "f", "/etc/sidecore", &host(), None).unwrap_err();
    let line = |m: &crate::mistake::Located| format!("{}:{}: {}", m.line, m.column, m.mistake);
    refusal.mistakes.iter().map(|kind| line(&kind.first)).collect()
}

#[test]
fn an_empty_file_is_a_daemon_with_one_sidecore_and_no_disk() {
    let plan = plan("");
    assert_eq!(plan.daemon, DaemonSpec::default());
    assert_eq!(
        plan.sidecores,
        SidecoresPlan {
            cpus: vec![3],
            candidates: vec![3, 2, 1],
            max: None,
            min: 1,
            policies: Policies::default(),
            urgency: Urgency::Watch,
        }
    );
    assert_eq!(plan.disks, []);
}

#[test]
fn defaults_are_filled_in() {
    let plan = plan(
        "[daemon]\nrun_dir = \"/r//./s/\"\n[sidecores]\npolicy = \"poll\"\n\n[[disk]]\n\
         id = \"a-rather-long-name-of-a-disk\"\npath = \"images/./a.img\"\n",
    );
    let disk = &plan.disks[0];
    assert_eq!(disk.socket, "/r/s/a-rather-long-name-of-a-disk.sock");
    let path = "/etc/sidecore/images/a.img".to_string();
    assert_eq!(disk.source, Source::File { path, size_bytes: None, cache: Cache::Auto });
    assert_eq!(disk.serial, "a-rather-long-name-o");
    assert_eq!(&disk.serial_bytes(), b"a-rather-long-name-o");
    assert_eq!((disk.queues, disk.service.share, disk.service.policy), (1, 100, PolicyPlan::Poll));
    assert_eq!(disk.origin, Origin::File { file: "sidecore.toml".into(), line: 6 });
}

#[test]
fn cpus_are_chosen_as_written() {
    for (text, cpus, min) in [
        ("cpus = \"2,1\"", vec![2, 1], 1),
        ("cpus = \"1-3\"\nmax = 2", vec![1, 2], 1),
        ("cpus = \"1-3\"\nmin = 2", vec![1, 2, 3], 2),
        ("max = 2", vec![3, 2], 1),
        ("min = 2", vec![3, 2], 2),
        ("min = 2\nmax = 3", vec![3, 2, 1], 2),
    ] {
        let sidecores = plan(&format!("[sidecores]\n{text}")).sidecores;
        assert_eq!((sidecores.cpus, sidecores.min), (cpus, min), "{text}");
    }
}

#[test]
fn a_mistake_is_shown_with_its_place_and_what_would_be_right() {
    assert_eq!(
        refusal("[[disk]]\nid = \"a\"\npath = \"/a\"\nsiz = \"1G\"\n"),
        "sidecore.toml:4:1: `siz` is not a field of disk[1]\n\
         \x20 |\n\
         4 | siz = \"1G\"\n\
         \x20 | ^^^\n\
         \x20 = did you mean `size`?"
    );
    assert_eq!(
        refusal("[sidecores]\ncpus = \"2-5\"\n"),
        "sidecore.toml:2:8: sidecores.cpus: this host does not run cpu 4-5\n\
         \x20 |\n\
         2 | cpus = \"2-5\"\n\
         \x20 |        ^^^^^\n\
         \x20 = its cpus are 0-3"
    );
    assert_eq!(
        refusal("[[disk]\n"),
        "sidecore.toml:1:8: not TOML: unclosed array table, expected `]`\n\
         \x20 |\n\
         1 | [[disk]\n\
         \x20 |        ^\n\
         \x20 = write [[disk]]"
    );
}

/// A journal takes each line for a message of its own.
#[test]
fn mistakes_are_one_line_of_a_log() {
    let text = refusal("[[disk]]\nid = \"a\"\npath = \"/a\"\nsiz = \"1G\"\nqeues = 1\n");
    assert!(text.lines().count() > 5, "{text}");
    let refused = crate::api::ApiError::new(crate::api::ErrorKind::Refused, text, "correct it");
    assert_eq!(
        refused.in_a_line(),
        "sidecore.toml:4:1: `siz` is not a field of disk[1]; did you mean `size`?; \
         sidecore.toml:5:1: `qeues` is not a field of disk[1]; did you mean `queues`?"
    );
}

#[test]
fn every_mistake_is_reported_at_once() {
    assert_eq!(
        lines(
            "[[disk]]\nid = \"A\"\nbackend = \"memory\"\npath = \"/x\"\n\n\
             [[disk]]\nid = \"b\"\nsize = 1000\npath = \"/b\"\nserial = \"über\"\n\n\
             [[disk]]\nid = \"c\"\n\n[sidecores]\ncpus = \"1,1\"\n"
        ),
        [
            "1:1: disk[1]: a memory back-end needs a `size`",
            "2:6: disk[1].id: the name \"A\" has 'A', which is not possible in a name",
            "4:8: disk[1].path: a memory back-end takes no `path`",
            "8:8: disk[2].size: 1000 bytes are not whole sectors",
            "10:10: disk[2].serial: \"über\" is not a serial number",
            "12:1: disk[3]: the disk has no back-end",
            "16:8: sidecores.cpus: cpu 1 is named twice",
        ]
    );
    assert_eq!(
        lines(
            "disk = [{ id = 1, queues = 65, share = 0.5, readonly = \"yes\" }, 7]\nx = 1\n\
             sidecores = []\n[daemon]\napi = 0x7fffffffffffffff\nrun_dir = 99999999999999999999\n"
        ),
        [
            "1:16: disk[1].id: a text is needed here, not a number",
            "1:28: disk[1].queues: 65 is out of bounds",
            "1:40: disk[1].share: 0.5 is not a whole number",
            "1:56: disk[1].readonly: true or false is needed here, not a text",
            "1:65: disk[2]: a table is needed here, not a number",
            "2:1: `x` is not a field here",
            "3:13: sidecores: a table is needed here, not a list",
            "5:7: daemon.api: a text is needed here, not a number",
            "6:11: daemon.run_dir: 99999999999999999999 is too large a number",
        ]
    );
}

/// TOML has words for what is no number, and for what has no end.
#[test]
fn what_is_no_number_is_refused_in_the_words_of_the_file() {
    let text = "disk = [{ id = \"a\", share = nan, queues = inf, limit_iops = -inf, target_us = 1e999 }]\n";
    let said = lines(text);
    for word in ["share: nan", "queues: inf", "limit_iops: -inf"] {
        let expected = format!("disk[1].{word} is no number that can be had");
        assert!(said.iter().any(|line| line.ends_with(&expected)), "{expected}: {said:?}");
    }
    assert!(
        said.iter().any(|line| line.ends_with("1e999 is no number that can be had")),
        "{said:?}"
    );
    assert!(said.iter().all(|line| !line.contains("e308")), "{said:?}");
}

#[test]
fn disks_may_not_clash() {
    let text = "[[disk]]\nid = \"a\"\npath = \"/i\"\nsocket = \"/s\"\n\
                [[disk]]\nid = \"a\"\npath = \"/j\"\n\
                [[disk]]\nid = \"c\"\npath = \"//i\"\nreadonly = true\nsocket = \"/./s\"\n\
                [[disk]]\nid = \"d\"\npath = \"/d\"\nsocket = \"/run/sidecore/api.sock\"\n";
    assert_eq!(
        lines(text),
        [
            "6:6: disk[2].id: the name \"a\" is taken by disk \"a\" (f:1)",
            "10:8: disk[3].path: the image \"/i\" is already that of disk \"a\" (f:1)",
            "12:10: disk[3].socket: the socket \"/s\" is that of disk \"a\" (f:1)",
            "16:10: disk[4].socket: \"/run/sidecore/api.sock\" is the socket of the API",
        ]
    );
    let readers = "[[disk]]\nid = \"a\"\npath = \"/i\"\nreadonly = true\n\
                   [[disk]]\nid = \"b\"\npath = \"/i\"\nreadonly = true\n";
    assert_eq!(plan(readers).disks.len(), 2);
}

#[test]
fn bounds_of_names_and_paths_are_kept_to_the_byte() {
    let disk = |id: &str, socket: &str| {
        let text = format!("[[disk]]\nid = \"{id}\"\npath = \"/i\"\nsocket = \"{socket}\"\n");
        load(&text, "f", "/e", &host(), None).map(|_| ()).map_err(|refusal| {
            refusal.mistakes.iter().map(|m| m.first.mistake.to_string()).collect::<Vec<_>>()
        })
    };
    let long = |length: usize| "/".to_string() + &"s".repeat(length - 1);
    assert_eq!(disk(&"a".repeat(64), &long(107)), Ok(()));
    assert_eq!(
        disk(&"a".repeat(65), "/s"),
        Err(vec!["disk[1].id: a name of 65 bytes is too long".to_string()])
    );
    let refused = disk("a", &long(108)).unwrap_err();
    assert!(refused[0].ends_with("has 108 bytes"), "{refused:?}");
    for id in ["", ".a", "-a", "a/b", "ä", "a b", "a\\u0000"] {
        assert!(disk(id, "/s").is_err(), "{id}");
    }
    for socket in ["", "/", "/a\\u0000b"] {
        assert!(disk("a", socket).is_err(), "{socket}");
    }
}

/// O5: of devices there are only so many.
#[test]
fn o05_no_more_disks_than_there_may_be() {
    let disks = |count: usize| -> String {
        (0..count).map(|n| format!("[[disk]]\nid = \"d{n}\"\npath = \"/d{n}\"\n")).collect()
    };
    let mut full = plan(&disks(DISKS_MAX));
    assert_eq!(full.disks.len(), DISKS_MAX);
    for count in [DISKS_MAX + 1, 10_000] {
        let said = lines(&disks(count));
        assert_eq!(said.len(), 1, "{count}: {said:?}");
        assert!(said[0].contains(&format!("{count} disks")), "{said:?}");
    }
    let one_more = DiskSpec { path: Some("/more".into()), ..DiskSpec::new("more") };
    let error = full.disk_from_api(&one_more).unwrap_err();
    assert!(error.error.contains(&DISKS_MAX.to_string()), "{}", error.error);
    full.disks.pop();
    full.disk_from_api(&one_more).unwrap();
}

#[test]
fn sidecores_that_cannot_be_are_refused() {
    for (text, line) in [
        ("cpus = \"\"", "2:8: sidecores.cpus: \"\" names no cpu"),
        ("cpus = \"x\"", "2:8: sidecores.cpus: \"x\" is neither a cpu nor a range of cpus"),
        ("min = 3\nmax = 2", "2:7: sidecores.min: min is 3, but max is 2"),
        ("min = 4", "2:7: sidecores.min: min is 4, but there are 3 cpus to use"),
        ("max = 4", "2:7: sidecores.max: max is 4, but there are 3 cpus to use"),
        ("cpus = \"2\"\nmax = 2", "3:7: sidecores.max: max is 2, but there is 1 cpu to use"),
        ("max = 0", "2:7: sidecores.max: 0 is out of bounds"),
    ] {
        assert_eq!(lines(&format!("[sidecores]\n{text}")), [line]);
    }
}

#[test]
fn the_name_of_a_folder_is_none_of_a_file() {
    for (field, text) in [
        ("disk[1].path", "path = \"i.img/\""),
        ("disk[1].path", "path = \"/i.img/.\""),
        ("disk[1].socket", "path = \"i\"\nsocket = \"a/\""),
    ] {
        let said = lines(&format!("[[disk]]\nid = \"a\"\n{text}\n"));
        let is_it =
            |line: &String| line.contains(field) && line.ends_with("is the name of a folder");
        assert!(said.iter().any(is_it), "{text}: {said:?}");
    }
    assert!(lines("[daemon]\napi = \"a/\"")[0].ends_with("\"a/\" is the name of a folder"));
    let folders = plan("[daemon]\nrun_dir = \"a/\"\nimage_folders = [\"i/\"]").daemon;
    assert_eq!(folders.image_folders, ["/etc/sidecore/i"]);
}

#[test]
fn a_disk_of_the_api_needs_whole_paths_and_free_names() {
    let running = plan("[[disk]]\nid = \"a\"\npath = \"/i\"\n");
    let relative = DiskSpec { path: Some("x.img".into()), ..DiskSpec::new("b") };
    let error = running.disk_from_api(&relative).unwrap_err();
    assert_eq!(
        (error.kind.status(), error.error.as_str()),
        (422, "path: \"x.img\" is not an absolute path")
    );
    let taken = DiskSpec { path: Some("/x.img".into()), ..DiskSpec::new("a") };
    let error = running.disk_from_api(&taken).unwrap_err();
    assert_eq!(
        (error.kind.status(), error.error.as_str(), error.hint.as_str()),
        (
            409,
            "id: the name \"a\" is taken by disk \"a\" (sidecore.toml:1)",
            "give each disk a name of its own"
        )
    );
    let free = DiskSpec { path: Some("/x.img".into()), ..DiskSpec::new("b") };
    let made = running.disk_from_api(&free).unwrap();
    assert_eq!((made.origin, made.socket.as_str()), (Origin::Api, "/run/sidecore/b.sock"));
    let wild = DiskSpec { queues: 0, share: 0, ..free };
    let error = running.disk_from_api(&wild).unwrap_err();
    assert_eq!(error.error, "queues: 0 is out of bounds; share: 0 is out of bounds");
}

#[test]
fn a_reload_may_not_take_what_the_api_made() {
    let mut running = plan("");
    let spec = DiskSpec { path: Some("/x.img".into()), ..DiskSpec::new("b") };
    running.disks.push(running.disk_from_api(&spec).unwrap());
    let text = "[[disk]]\nid = \"b\"\npath = \"/y\"\n";
    let refusal = load(text, "f", "/e", &host(), Some(&running)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "f:2:6: disk[1].id: the name \"b\" is taken by disk \"b\" (api)\n\
         \x20 |\n\
         2 | id = \"b\"\n\
         \x20 |      ^^^\n\
         \x20 = give each disk a name of its own, or remove the other one first: `sidecore disk rm \
         b`\n  |\n"
            .trim_end_matches("\n  |\n")
    );
    let kept = load("", "f", "/e", &host(), Some(&running)).unwrap();
    assert_eq!(kept.disks, running.disks);
}

/// A file of 20,000 mistakes takes no longer than its length asks for, whichever way they are written, and neither is
/// what is said of it longer than a page or two.
#[test]
fn a_file_with_tens_of_thousands_of_mistakes_is_refused_in_a_few_lines() {
    const COUNT: usize = 20_000;
    let each_its_own = (0..COUNT).map(|n| format!("key{n} = 1\n")).collect::<String>();
    let on_one_line = format!("[sidecores]\nes2 = [{}]\n", "{ a = 1 },".repeat(COUNT / 4));
    let devices = "[[disk]]\nid = \"a\"\npath = \"/a\"\nqueue = 1\n".repeat(2727);
    let names = "[[disk]]\nid = \"a\"\npath = \"/a\"\n".repeat(2727);
    for (text, kinds_max) in [(&each_its_own, 50), (&on_one_line, 50), (&devices, 1), (&names, 50)]
    {
        let refusal = load(text, "f", "/e", &host(), None).unwrap_err();
        assert!(!refusal.mistakes.is_empty() && refusal.mistakes.len() <= kinds_max);
        let said = refusal.to_string();
        assert!(said.len() < 50_000, "{} bytes", said.len());
    }
    let refusal = load(&each_its_own, "f", "/e", &host(), None).unwrap_err();
    assert_eq!(refusal.hidden, COUNT - 50);
    assert!(refusal.to_string().ends_with("\n\nand 19950 mistakes more"));
}

/// Names that are not there are compared with those that are for as many as are shown, not for each: both may be
/// thousands.
#[test]
fn what_is_near_to_a_wrong_name_is_asked_for_as_many_as_are_shown() {
    const COUNT: usize = 400;
    let names = |begin: &str| (0..COUNT).map(|n| format!("\"{begin}{n}\"")).collect::<Vec<_>>();
    let each = |count: usize, text: &str| -> String {
        (0..count).map(|n| text.replace('#', &n.to_string())).collect()
    };
    let disks = |more: &str| each(COUNT, &format!("[[disk]]\nid = \"d#\"\npath = \"/d#\"\n{more}"));
    let groups = each(COUNT, "[[group]]\nid = \"g#\"\n") + &disks("group = \"h#\"\n");
    let lent = each(200, "[[switch]]\nid = \"s#\"\n[[switch.uplink]]\nremote = \"n#\"\n");
    let (its_disks, nics) = (names("e").join(", "), names("m").join(", "));
    let client = format!("[[link.client]]\nname = \"c\"\ndisks = [{its_disks}]\nnics = [{nics}]\n");
    let links = disks("")
        + &lent
        + "[[link]]\nid = \"l\"\nrole = \"iohost\"\nudp = \"0.0.0.0:7447\"\nsecurity = \"none\"\n"
        + &client;
    for (text, lists) in [(groups, 1), (links, 2)] {
        let before = COMPARED.get();
        let refusal = load(&text, "f", "/e", &host(), None).unwrap_err();
        assert_eq!(refusal.hidden, lists * COUNT - 50, "{refusal}");
        let near = |kind: &Repeated| kind.first.mistake.right.starts_with("did you mean");
        assert!(refusal.mistakes.iter().all(near), "{refusal}");
        let compared = COMPARED.get() - before;
        assert!((1..=lists * 50 * COUNT).contains(&compared), "{compared}");
    }
}

/// What a client may have is no more than there can be.
#[test]
fn a_client_has_no_more_disks_and_nics_than_a_daemon() {
    for (what, most) in [("disks", DISKS_MAX), ("nics", NICS_MAX)] {
        let names = (0..=most).map(|n| format!("\"d{n}\"")).collect::<Vec<_>>().join(", ");
        let text = format!(
            "[[link]]\nid = \"l\"\nrole = \"iohost\"\nudp = \"0.0.0.0:7447\"\nsecurity = \"none\"\n\
             [[link.client]]\nname = \"c\"\ndisks = []\n{what} = [{names}]\n"
        );
        let text = if what == "disks" { text.replace("disks = []\n", "") } else { text };
        let refusal = load(&text, "f", "/e", &host(), None).unwrap_err();
        let [only] = &refusal.mistakes[..] else { panic!("{refusal}") };
        assert_eq!(only.first.mistake.wrong, format!("{} {what} are too many", most + 1));
        assert_eq!(only.first.mistake.right, format!("at most {most}"));
    }
}

/// A guest finds its disks by their serial numbers: what nobody chose is one disk's.
#[test]
fn a_serial_number_that_nobody_chose_is_of_one_disk() {
    let twenty = "tenant-a-production-";
    let disk = |id: &str, more: &str| format!("[[disk]]\nid = \"{id}\"\npath = \"/{id}\"\n{more}");
    let (db, log) = (format!("{twenty}db"), format!("{twenty}log"));
    let mine = format!("serial = \"{twenty}\"\n");
    for (first, second) in [
        (disk(&db, ""), disk(&log, "")),
        (disk(&db, ""), disk("other", &mine)),
        (disk("other", &mine), disk(&db, "")),
    ] {
        let [line] = &lines(&(first.clone() + &second))[..] else { panic!("{first}{second}") };
        assert!(
            line.contains("without `serial`, \"tenant-a-production-\" is that of disk "),
            "{line}"
        );
    }
    // Whoever writes one twice means it, and a name that is not cut is one disk's.
    assert_eq!(plan(&(disk("a", &mine) + &disk("b", &mine))).disks.len(), 2);
    assert_eq!(plan(&(disk(&db, "serial = \"db\"\n") + &disk(&log, ""))).disks.len(), 2);
    // Through the API too, but not of what was kept before.
    let running = plan(&disk(&db, ""));
    let spec = DiskSpec { path: Some("/log".to_string()), ..DiskSpec::new(&log) };
    let refused = running.disk_from_api(&spec).unwrap_err();
    let wrong = "serial: without `serial`, \"tenant-a-production-\" is that of disk \"tenant-a-production-db\"";
    assert!(refused.error.starts_with(wrong), "{}", refused.error);
    running.disk_kept(&spec).expect("as it was before");
    running.disk_from_api(&DiskSpec { serial: Some("log".to_string()), ..spec }).expect("its own");
}

/// One mistake that was copied is one mistake.
#[test]
fn a_mistake_that_is_repeated_is_told_once_with_its_lines() {
    let disk = |id: &str| format!("[[disk]]\nid = \"{id}\"\npath = \"/{id}\"\nqueue = 1\n");
    let text: String = (0..2727).map(|n| disk(&format!("vm{n}"))).collect();
    assert_eq!(
        refusal(&text),
        "sidecore.toml:4:1: `queue` is not a field of disk[1]\n  |\n4 | queue = 1\n  | ^^^^^\n  = did you \
         mean `queues`?\n  = the same 2726 times more, on lines 8, 12, 16, 20, 24, ..."
    );
    let two = refusal(&(disk("a") + &disk("b")));
    assert!(two.ends_with("\n  = the same once more, on line 8"), "{two}");
    // What is not the same is told apart.
    let other = disk("a").replace("queue", "serie") + &disk("b");
    assert_eq!(lines(&other).len(), 2);
}

/// A reload that gives back what went may give a disk back for a NIC.
#[test]
fn a_plan_takes_the_place_of_that_of_its_name_whatever_either_is() {
    let disk = plan("[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n");
    let nic = plan("[[switch]]\nid = \"s\"\n[[nic]]\nid = \"a\"\nswitch = \"s\"\n");
    for (mut before, after) in [(disk.clone(), &nic), (nic.clone(), &disk)] {
        let device = after.device("a").expect("it is planned");
        before.replace(device.clone());
        assert_eq!((before.disks.len(), before.nics.len()), (after.disks.len(), after.nics.len()));
        assert_eq!(before.device("a"), Some(device));
        before.replace(plan("[[disk]]\nid = \"b\"\npath = \"/b\"\n").device("b").expect("b"));
        assert_eq!(before.device("b"), None, "what is not planned is not replaced");
    }
}
