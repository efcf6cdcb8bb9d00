//! What operators are promised of groups, and what members share.

use std::time::Duration;

use config::api::{Answer, Call, ErrorKind, GroupView};
use config::spec::{DiskChange, GroupChange, GroupSpec};

use crate::calls::UNDONE;
use crate::trial::vmm::{Vmm, WRITE};
use crate::trial::{Trial, refused};

const FILE: &str = "[[group]]\nid = \"f\"\nlimit_iops = 1000\n[[disk]]\nid = \"a\"\nbackend = \"memory\"\n\
                    size = \"1M\"\ngroup = \"f\"\n";

fn ids(id: &str) -> String {
    id.to_string()
}

fn group(answer: Answer) -> GroupView {
    match answer {
        Answer::Group(group) => *group,
        other => panic!("{other:?}"),
    }
}

fn iops(limit: u32) -> GroupChange {
    GroupChange { limit_iops: Some(limit), ..GroupChange::default() }
}

fn add(id: &str) -> Call {
    Call::AddGroup(GroupSpec { limit_iops: Some(100), ..GroupSpec::new(id) })
}

fn names(trial: &mut Trial) -> Vec<String> {
    match trial.ask(Call::ListGroups) {
        Ok(Answer::Groups(list)) => list.groups.into_iter().map(|it| it.id).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_group_is_added_changed_removed_and_kept() {
    let mut trial = Trial::of(FILE);
    let added = trial.ask(add("g")).map(group).expect("it is added");
    assert_eq!((added.declared.as_str(), added.limit_iops), ("api", Some(100)));
    let changed = trial.ask(Call::ChangeGroup { id: ids("g"), change: iops(7) });
    assert_eq!(changed.map(group).expect("it is changed").limit_iops, Some(7));
    let mut trial = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
    let shown = trial.ask(Call::ShowGroup { id: ids("g") }).map(group).expect("it was kept");
    assert_eq!(shown.limit_iops, Some(7));
    let gone = trial.ask(Call::RemoveGroup { id: ids("g") }).map(group).expect("it goes");
    assert_eq!(gone.limit_iops, Some(7), "as it last was");
    let mut trial = Trial::start(FILE, trial.die()).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(names(&mut trial), ["f"]);
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut trial = Trial::of(FILE);
    trial.ask(add("g")).expect("it is added");
    let change = |id, change| Call::ChangeGroup { id: ids(id), change };
    let remove = |id| Call::RemoveGroup { id: ids(id) };
    let of_file = "group \"f\" is declared in sidecore.toml, line 8";
    let cases = [
        (add("g"), ErrorKind::Conflict, "id: the name \"g\" is taken by group \"g\" (api)"),
        (
            add("F"),
            ErrorKind::Refused,
            "id: the name \"F\" has 'F', which is not possible in a name",
        ),
        (change("f", iops(1)), ErrorKind::Conflict, of_file),
        (change("h", iops(1)), ErrorKind::NotFound, "there is no group \"h\""),
        (change("g", GroupChange::default()), ErrorKind::Refused, "nothing is to be changed"),
        (remove("f"), ErrorKind::Conflict, of_file),
        (remove("h"), ErrorKind::NotFound, "there is no group \"h\""),
        (Call::ShowGroup { id: ids("h") }, ErrorKind::NotFound, "there is no group \"h\""),
    ];
    for (call, kind, error) in cases {
        let why = trial.ask(call.clone()).expect_err("it is refused");
        assert_eq!((why.kind, why.error.as_str()), (kind, error), "{call:?}");
        assert_eq!(names(&mut trial), ["f", "g"]);
    }
}

#[test]
fn a_group_with_members_stays_until_the_last_is_out() {
    let mut trial = Trial::of(FILE);
    trial.ask(add("g")).expect("it is added");
    let spec = config::DiskSpec {
        backend: Some(config::spec::BackendKind::Memory),
        size: Some(config::Size(1 << 20)),
        group: Some(ids("g")),
        ..config::DiskSpec::new("b")
    };
    trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
    let (kind, why) = refused(trial.ask(Call::RemoveGroup { id: ids("g") }));
    assert_eq!(kind, ErrorKind::Conflict);
    assert_eq!(
        why,
        "group \"g\" has members: b; take them out first, such as: `sidecore disk set b --group=`"
    );
    let change = DiskChange { group: Some(String::new()), ..DiskChange::default() };
    trial.ask(Call::ChangeDisk { id: ids("b"), change }).expect("it is out");
    trial.ask(Call::RemoveGroup { id: ids("g") }).expect("it goes");
}

#[test]
fn what_cannot_be_kept_is_as_it_was() {
    let mut trial = Trial::of(FILE);
    trial.ask(add("g")).expect("it is added");
    trial.break_state(true);
    let calls = [
        add("h"),
        Call::ChangeGroup { id: ids("g"), change: iops(1) },
        Call::RemoveGroup { id: ids("g") },
    ];
    for call in calls {
        let (kind, why) = refused(trial.ask(call));
        assert_eq!(kind, ErrorKind::Internal);
        assert!(why.ends_with(UNDONE), "{why}");
        assert_eq!(names(&mut trial), ["f", "g"]);
        let shown = trial.ask(Call::ShowGroup { id: ids("g") }).map(group).expect("it is there");
        assert_eq!(shown.limit_iops, Some(100));
    }
}

/// How many requests of each of two disks are done within a second.
fn done_in_a_second(trial: &mut Trial, vmms: &mut [Vmm; 2]) -> [u32; 2] {
    let mut done = [0; 2];
    let mut waits = [false; 2];
    for _ in 0..1000 {
        for (at, vmm) in vmms.iter_mut().enumerate() {
            if !waits[at] {
                vmm.guest.request(0, WRITE, 0, 1);
                waits[at] = true;
            }
        }
        trial.pass(Duration::from_millis(1));
        for (at, vmm) in vmms.iter_mut().enumerate() {
            if vmm.guest.status(0) == Some(0) {
                done[at] += 1;
                waits[at] = false;
            }
        }
    }
    done
}

/// Two disks of one tenant have what he may, together and no more; and another limit holds at once.
#[test]
fn members_share_the_limit_of_their_group_which_can_be_changed_while_they_run() {
    let disks = ["a", "b"]
        .map(|id| format!("[[disk]]\nid = \"{id}\"\nbackend = \"memory\"\nsize = \"1M\"\n"));
    let mut trial = Trial::of(&disks.concat());
    trial.ask(add("g")).expect("it is added");
    let put = disks.map(|disk| format!("{disk}group = \"g\"\n")).concat();
    // Of the file, but in a group of the API: that is refused, so the file has its own.
    assert_eq!(refused(trial.reload(&put, false)).0, ErrorKind::Refused);
    let own = |limit: u32| {
        format!(
            "[[group]]\nid = \"own\"\nlimit_iops = {limit}\n{}",
            put.replace("\"g\"", "\"own\"")
        )
    };
    trial.reload(&own(100), false).expect("they are in it");
    let mut vmms = [Vmm::served(&mut trial, "a", 1), Vmm::served(&mut trial, "b", 1)];
    let [a, b] = done_in_a_second(&mut trial, &mut vmms);
    assert!((80..=120).contains(&(a + b)), "{a} and {b} of 100 a second");
    assert!(a >= 30 && b >= 30, "{a} and {b}: one had it all");
    trial.reload(&own(400), false).expect("it is changed");
    let [a, b] = done_in_a_second(&mut trial, &mut vmms);
    assert!((340..=460).contains(&(a + b)), "{a} and {b} of 400 a second");
    let shown = trial.ask(Call::ShowGroup { id: ids("own") }).map(group).expect("it is there");
    assert_eq!(shown.disks, ["a", "b"]);
    assert!(shown.used.requests > 400 && shown.used.held > 0, "{:?}", shown.used);
}
