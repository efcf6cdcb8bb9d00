//! Stages of disks of the file and of the API: in which order, and what a command has added.

use super::*;
use crate::plan::{Plan, load};
use crate::saved::DiskStages;
use cpus::HostCpus;

fn plan(text: &str, running: Option<&Plan>) -> Plan {
    let host = HostCpus { online: vec![0, 1], auto: vec![1], auto_count: 1 };
    load(text, "f", "/etc", &host, running).unwrap_or_else(|refusal| panic!("{refusal}"))
}

const PLAIN: &str = "[[disk]]\nid = \"a\"\npath = \"/a\"\n";

fn staged(entries: u32) -> String {
    format!("{PLAIN}[[disk.stage]]\nkind = \"trace\"\nentries = {entries}\n")
}

fn by_command(plan: &Plan, id: &str, entries: Option<u32>) -> Plan {
    let mut after = plan.clone();
    let disk = plan
        .disk_staged(id, StageKind::Trace, &StageChange { entries, ..StageChange::default() })
        .unwrap();
    after.replace(crate::plan::DevicePlan::Disk(disk));
    after
}

fn entries(plan: &Plan) -> Option<(StagedBy, u32)> {
    let trace = plan.disk("a").unwrap().stages.trace.as_ref();
    trace.map(|trace| (trace.by, trace.is.entries))
}

fn changes(from: &Plan, to: &Plan) -> Vec<String> {
    crate::diff(from, to).changes.iter().map(ToString::to_string).collect()
}

#[test]
fn the_only_order_is_that_of_the_kinds_and_none_is_there_twice() {
    let names = ["trace", "fault", "encrypt"];
    let said = |kinds: &[usize]| {
        let mut mistakes = Vec::new();
        check_order(kinds, &names, &Path::root().key("stage"), &mut mistakes);
        mistakes.iter().map(|it| format!("{it}: {}", it.right)).collect::<Vec<_>>()
    };
    for kinds in [&[][..], &[1], &[0, 1, 2], &[0, 2]] {
        assert_eq!(said(kinds), Vec::<String>::new(), "{kinds:?}");
    }
    let order = "write stages in this order: trace, fault, encrypt";
    assert_eq!(
        said(&[1, 0]),
        [format!("stage[2].kind: \"trace\" comes before \"fault\": {order}")]
    );
    assert_eq!(
        said(&[2, 0, 1]),
        ["trace", "fault"]
            .iter()
            .zip([2, 3])
            .map(|(kind, at)| format!(
                "stage[{at}].kind: {kind:?} comes before \"encrypt\": {order}"
            ))
            .collect::<Vec<_>>()
    );
    let twice = "is there twice: a disk has one stage of each kind";
    assert_eq!(said(&[0, 2, 0]), [format!("stage[3].kind: \"trace\" {twice}")]);
}

#[test]
fn a_number_of_no_stage_is_refused_and_one_of_entries_is_a_power_of_two() {
    let plan = plan(PLAIN, None);
    for (written, entries) in [(None, 4096), (Some(1024), 1024), (Some(1025), 2048)] {
        assert_eq!(self::entries(&by_command(&plan, "a", written)).unwrap().1, entries);
    }
    let refused = plan
        .disk_staged(
            "a",
            StageKind::Trace,
            &StageChange { entries: Some(1), ..StageChange::default() },
        )
        .unwrap_err();
    assert_eq!(refused.error, "entries: 1 is out of bounds");
    assert_eq!(refused.hint, "write a number from 1024 to 65536, such as 4096");
    let refused = plan.disk_unstaged("b", StageKind::Trace).unwrap_err();
    assert_eq!(refused.error, "there is no disk \"b\"");
}

#[test]
fn what_a_command_added_to_a_disk_of_the_file_stays_until_the_file_has_it() {
    let before = plan(PLAIN, None);
    let added = by_command(&before, "a", Some(8192));
    assert_eq!(entries(&added), Some((StagedBy::Command, 8192)));
    assert_eq!(
        changes(&before, &added),
        ["set disk a: stage trace none becomes of 8192 entries by a command"]
    );
    // A reload leaves it, and so does a start.
    let again = plan(&format!("# moved\n{PLAIN}"), Some(&added));
    assert_eq!(changes(&added, &again), Vec::<String>::new());
    let mut started = plan(PLAIN, None);
    started.keep_staged(&again.staged());
    assert_eq!(entries(&started), Some((StagedBy::Command, 8192)));
    // The file's goes before it, also where it is the same.
    for entries_of_file in [2048, 8192] {
        let text = staged(entries_of_file);
        let of_file = plan(&text, Some(&added));
        assert_eq!(entries(&of_file), Some((StagedBy::File, entries_of_file)));
        assert_eq!(of_file.staged(), []);
        let becomes = format!("becomes of {entries_of_file} entries");
        assert_eq!(
            changes(&added, &of_file),
            [format!("set disk a: stage trace of 8192 entries by a command {becomes}")]
        );
        let mut started = plan(&text, None);
        started.keep_staged(&added.staged());
        assert_eq!(started, of_file);
    }
    // And one that is taken out of the file is gone, and so is all of a disk that is.
    let of_file = plan(&staged(2048), Some(&added));
    assert_eq!(entries(&plan(PLAIN, Some(&of_file))), None);
    let other = "[[disk]]\nid = \"b\"\npath = \"/a\"\n";
    let mut started = plan(other, None);
    started.keep_staged(&added.staged());
    assert_eq!(started, plan(other, Some(&added)));
    assert_eq!(started.staged(), []);
}

/// What is put back when a reload's disk cannot be opened has what commands did meanwhile.
#[test]
fn a_plan_that_is_put_back_follows_commands_and_not_the_file_that_failed() {
    let (none, of_file) = (plan(PLAIN, None), plan(&staged(2048), None));
    let (some, other) = (by_command(&none, "a", Some(8192)), by_command(&none, "a", Some(1024)));
    let followed = |before: &Plan, failed: &Plan| {
        let mut before = before.clone();
        before.disks[0].follow_stages(&failed.disks[0]);
        entries(&before)
    };
    let (ours, theirs) = (StagedBy::Command, StagedBy::File);
    for (before, failed, expected) in [
        (&none, &some, Some((ours, 8192))),
        (&some, &other, Some((ours, 1024))),
        (&some, &none, None),
        (&some, &of_file, Some((ours, 8192))),
        (&of_file, &some, Some((theirs, 2048))),
        (&of_file, &none, Some((theirs, 2048))),
        (&none, &of_file, None),
    ] {
        assert_eq!(followed(before, failed), expected);
    }
}

#[test]
fn stages_of_a_disk_of_the_api_are_in_its_spec() {
    let mut plan = plan("", None);
    let spec = crate::DiskSpec {
        path: Some("/a".into()),
        stage: vec!["trace".parse().unwrap()],
        ..crate::DiskSpec::new("a")
    };
    plan.disks.push(plan.disk_from_api(&spec).unwrap());
    assert_eq!(entries(&plan), Some((StagedBy::Command, 4096)));
    let more = by_command(&plan, "a", Some(2048));
    let disk = more.disk("a").unwrap();
    assert_eq!(disk.spec.stage, ["trace,entries=2048".parse().unwrap()]);
    assert_eq!(
        (more.staged(), entries(&more)),
        (Vec::<DiskStages>::new(), Some((StagedBy::Command, 2048)))
    );
    let none = more.disk_unstaged("a", StageKind::Trace).unwrap();
    assert!(none.stages.is_none() && none.spec.stage.is_empty());
    assert!(!none.stages.do_the_same(&disk.stages) && disk.stages.do_the_same(&disk.stages));
}

#[test]
fn what_a_fault_means_is_written_plainly_and_goes_back_to_all() {
    let mut now = plan(PLAIN, None);
    let mut set = |change: StageChange| {
        let disk = now.disk_staged("a", StageKind::Fault, &change).unwrap();
        let before = now.clone();
        now.replace(crate::plan::DevicePlan::Disk(disk));
        let fault = now.disk("a").unwrap().stages.fault.clone().unwrap();
        (fault.spec.ops, fault.spec.range, changes(&before, &now).join("; "))
    };
    let text = |text: &str| Some(text.to_string());
    let (delay_us, none) = (Some(100), StageChange::default());
    let (ops, range) = (text("write + read+read"), text(" 1M .. 2M "));
    assert_eq!(
        set(StageChange { delay_us, ops, range, ..none.clone() }),
        (
            text("read+write"),
            text("1M..2M"),
            "set disk a: stage fault none becomes of 100 us later, seed 1, ops read+write, range 1M..2M by a command"
                .to_string()
        )
    );
    let (ops, range, said) =
        set(StageChange { ops: text("all"), range: text("all"), ..none.clone() });
    assert_eq!((ops, range), (None, None));
    assert!(said.ends_with(" becomes of 100 us later, seed 1 by a command"), "{said}");
    let (ops, range) = (text("discard+flush+write+read"), text("0.."));
    assert_eq!(set(StageChange { ops, range, ..none }), (None, None, String::new()));
}
