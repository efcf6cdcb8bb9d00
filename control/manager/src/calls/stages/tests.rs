//! What operators and guests are promised of stages of disks.

use std::time::Duration;

use config::api::{Call, StageView, TraceCursor, TraceView, TracedOp, TracedView};
use sidecore::{MoveId, Refusal, Stay};

use super::*;
use crate::simulated::{Asked, Heard};
use crate::trial::vmm::{FLUSH, Guest, READ, Vmm, WRITE};
use crate::trial::{Trial, refused};

const DISK: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\nqueues = 2\n";
const TRACE: &str = "[[disk.stage]]\nkind = \"trace\"\nentries = 2048\n";

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn set(id: &str, entries: Option<u32>) -> Call {
    let change = StageChange { entries, ..StageChange::default() };
    Call::SetStage { id: id.to_string(), kind: StageKind::Trace, change }
}

fn remove(id: &str) -> Call {
    Call::RemoveStage { id: id.to_string(), kind: StageKind::Trace }
}

fn list_in(answer: Answered) -> StageList {
    match answer {
        Ok(Answer::Stages(list)) => list,
        other => panic!("{other:?} is no list of stages"),
    }
}

fn read(trial: &mut Trial, from: TraceFrom) -> Result<TraceView, ApiError> {
    match trial.ask(Call::ReadTrace { id: "a".to_string(), from })? {
        Answer::Trace(reader) => Ok(reader.read()),
        other => panic!("{other:?} is no trace"),
    }
}

fn after(view: &TraceView) -> TraceFrom {
    view.cursor.parse().expect("a cursor")
}

fn what(view: &TraceView) -> Vec<(u16, TracedOp, u64, u64)> {
    let of = |it: &TracedView| (it.queue, it.op, it.offset, it.bytes);
    view.entries.iter().map(of).collect()
}

fn trace(declared: StagedBy, entries: u32, recorded: u64) -> StageView {
    let (entries, recorded) = (Some(entries), Some(recorded));
    StageView { entries, recorded, ..StageView::new(StageKind::Trace, declared) }
}

fn answered(asked: &mut Asked) -> Option<Answered> {
    match asked.hear() {
        Heard::Answer(answer) => Some(*answer),
        Heard::Nothing => None,
        Heard::Nobody => panic!("nobody answers"),
    }
}

/// Has the queues' requests done, one each.
#[track_caller]
fn do_one_each(trial: &mut Trial, vmm: &mut Vmm, kind: u32, sector: u64) {
    (0..2).for_each(|queue| vmm.guest.request(queue, kind, sector, 7));
    trial.pass(ms(1));
    assert_eq!([0, 1].map(|queue| vmm.guest.status(queue)), [Some(0); 2]);
}

#[test]
fn a_trace_comes_and_goes_amid_requests_and_records_each_of_them_once() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    do_one_each(&mut trial, &mut vmm, WRITE, 1);
    let (kind, why) = refused(read(&mut trial, TraceFrom::Kept));
    assert_eq!(kind, ErrorKind::Conflict);
    assert_eq!(
        why,
        "disk \"a\" has no stage \"trace\"; `sidecore disk stage add a trace` adds one"
    );
    // Requests lie in the rings meanwhile.
    (0..2).for_each(|queue| vmm.guest.request(queue, WRITE, 2, 8));
    let list = list_in(trial.ask(set("a", None)));
    assert_eq!((list.disk.as_str(), list.late.len()), ("a", 0));
    trial.pass(ms(1));
    (0..2).for_each(|queue| assert_eq!(vmm.guest.status(queue), Some(0)));
    let begin = read(&mut trial, TraceFrom::Now).expect("a place");
    assert_eq!((begin.entries.len(), begin.more, begin.lost), (0, false, 0));
    let recorded = trial.disk("a").stages[0].recorded.expect("a number");
    assert!(recorded <= 2, "of those that were in the rings");
    do_one_each(&mut trial, &mut vmm, READ, 3);
    assert_eq!(vmm.does(&mut trial, FLUSH, 0, 0), Some(0));
    assert_eq!(trial.disk("a").stages, [trace(StagedBy::Command, 4096, recorded + 3)]);
    let seen = read(&mut trial, after(&begin)).expect("what came");
    let reads = [(0, TracedOp::Read, 1536, 512), (0, TracedOp::Flush, 0, 0)];
    assert_eq!(what(&seen), [&reads[..], &[(1, TracedOp::Read, 1536, 512)]].concat());
    assert!(!seen.anew && seen.lost == 0 && !seen.more);
    assert_eq!(read(&mut trial, after(&seen)).expect("nothing").entries, []);
    assert_eq!(read(&mut trial, TraceFrom::Kept).expect("all").entries.len() as u64, recorded + 3);
    // Where queues are and what they cost is as it was.
    let disk = trial.disk("a");
    assert_eq!((disk.queues_attached, disk.queues_by_hand), (2, 0));
    assert_eq!(trial.daemon.loads().iter().sum::<usize>(), 2);
    // The same once more changes nothing, another size begins anew.
    let list = list_in(trial.ask(set("a", Some(4096))));
    assert_eq!(list.stages, [trace(StagedBy::Command, 4096, recorded + 3)]);
    let list = list_in(trial.ask(set("a", Some(1024))));
    assert_eq!(list.stages, [trace(StagedBy::Command, 1024, 0)]);
    do_one_each(&mut trial, &mut vmm, READ, 4);
    let anew = read(&mut trial, after(&seen)).expect("the other one");
    assert!(anew.anew && anew.entries.len() == 2 && anew.lost == 0);
    let list = list_in(trial.ask(remove("a")));
    assert_eq!((list.stages, list.late), (vec![], vec![]));
    do_one_each(&mut trial, &mut vmm, READ, 2);
    assert_eq!(vmm.guest.data(0), [8; 512]);
    let (kind, why) = refused(trial.ask(remove("a")));
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(why.starts_with("disk \"a\" has no stage \"trace\"; "), "{why}");
}

#[test]
fn what_is_lost_is_counted_and_an_answer_has_its_bound() {
    let mut trial = Trial::of(
        &DISK.replace("queues = 2", "queues = 2\nstage = [{ kind = \"trace\", entries = 1024 }]"),
    );
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    let begin = read(&mut trial, TraceFrom::Now).expect("a place");
    for sector in 0..1030 {
        vmm.guest.request(0, READ, sector % 8, 0);
        trial.pass(Duration::from_micros(100));
        assert_eq!(vmm.guest.status(0), Some(0));
    }
    let view = read(&mut trial, after(&begin)).expect("what is kept");
    assert_eq!((view.entries.len(), view.lost, view.more), (1024, 6, false));
    assert_eq!(view.entries[0].offset, 512 * 6);
    // A cursor of nowhere reads nothing, and one of another disk begins anew.
    let TraceFrom::Cursor(mut cursor) = after(&view) else { panic!("a cursor") };
    cursor.read = vec![u64::MAX, u64::MAX];
    let far = read(&mut trial, TraceFrom::Cursor(cursor)).expect("nothing");
    assert_eq!((far.entries.len(), far.lost), (0, 0));
    let other = TraceFrom::Cursor(TraceCursor { of: 1, read: vec![] });
    let other = read(&mut trial, other).expect("all");
    assert_eq!((other.entries.len(), other.lost, other.anew), (1024, 0, true));
}

#[test]
fn a_queue_whose_requests_do_not_end_gets_it_later_and_its_operator_is_told() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    do_one_each(&mut trial, &mut vmm, WRITE, 1);
    trial.stall(true);
    let (kind, why) = refused(trial.ask(set("a", None)));
    assert_eq!(kind, ErrorKind::Busy);
    assert!(why.starts_with("queues 0, 1 of disk \"a\": 0 requests that the disk"), "{why}");
    assert!(why.contains("; it is kept, and each queue gets it when"), "{why}");
    let disk = trial.disk("a");
    assert_eq!(disk.stages[0].late, [0, 1]);
    trial.stall(false);
    trial.pass(ms(200));
    assert_eq!(trial.disk("a").stages, [trace(StagedBy::Command, 4096, 0)]);
    do_one_each(&mut trial, &mut vmm, WRITE, 1);
    assert_eq!(trial.disk("a").stages[0].recorded, Some(2));
}

#[test]
fn a_queue_that_stays_is_told_again_until_it_has_what_the_plan_says() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    let mut asked = trial.asks(set("a", None));
    // The sidecores are not asked, who would have it done at once.
    let turns = |trial: &mut Trial| {
        for _ in 0..8 {
            trial.daemon.turn(&mut |count| (0..count).collect());
        }
    };
    let is_told = |trial: &mut Trial| {
        let device = trial.rooms().devices.named_mut("a").expect("a device");
        device.queue(0).expect("a queue").is_restaged()
    };
    // Each after twice as long as the one before.
    for (id, interval) in [(1, 50), (2, 100), (3, 200), (4, 400), (5, 800), (6, 1600), (7, 3200)] {
        turns(&mut trial);
        assert!(is_told(&mut trial), "try {id}");
        trial.rooms().move_is_over(MoveId(id), Some(Stay::Busy));
        assert!(answered(&mut asked).is_none(), "try {id}");
        trial.skip(ms(interval - 10));
        turns(&mut trial);
        assert!(!is_told(&mut trial), "after try {id}");
        trial.skip(ms(20));
    }
    // And of another stage at once.
    let mut others = trial.asks(set("a", Some(2048)));
    trial.pass(ms(1));
    assert!(list_in(answered(&mut others).expect("it is through")).late.is_empty());
    let list = list_in(answered(&mut asked).expect("it is through"));
    assert_eq!((list.late, trial.daemon.loads().iter().sum::<usize>()), (vec![], 1));
    assert_eq!(vmm.does(&mut trial, WRITE, 1, 1), Some(0));
    assert_eq!(trial.disk("a").stages[0].recorded, Some(1));
}

/// Where there is no place for it on its sidecore, say, its requests have nothing to do with it.
#[test]
fn who_waits_is_told_why_a_queue_stays() {
    let mut trial = Trial::of(DISK);
    let _vmm = Vmm::served(&mut trial, "a", 2);
    let mut asked = trial.asks(set("a", None));
    for _ in 0..8 {
        trial.daemon.turn(&mut |count| (0..count).collect());
    }
    trial.stall(true);
    trial.rooms().move_is_over(MoveId(1), Some(Stay::Refused(Refusal::NoPlace)));
    trial.rooms().move_is_over(MoveId(2), Some(Stay::Busy));
    trial.pass(Duration::from_secs(11));
    let why = answered(&mut asked).expect("it is late").expect_err("it is late");
    let expected = format!(
        "queues 0, 1 of disk \"a\": {}; queue 0 stays as it is: {}",
        views::unanswered(0),
        Refusal::NoPlace
    );
    assert_eq!(why.error, expected);
}

/// What it has is what counts, not how often that was another.
#[test]
fn a_queue_that_has_never_got_a_stage_has_all_it_should_when_that_is_removed() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    // The sidecores are not asked, who would have it done at once.
    let turns = |trial: &mut Trial| {
        for _ in 0..8 {
            trial.daemon.turn(&mut |count| (0..count).collect());
        }
    };
    let mut asked = vec![trial.asks(set("a", None))];
    turns(&mut trial);
    asked.push(trial.asks(remove("a")));
    turns(&mut trial);
    let is_over = |asked: &mut Asked| answered(asked).is_some();
    assert!(!asked.iter_mut().any(is_over), "it may yet come through the stage that was");
    trial.rooms().move_is_over(MoveId(1), Some(Stay::Busy));
    turns(&mut trial);
    for mut asked in asked {
        let list = list_in(answered(&mut asked).expect("it has what it should"));
        assert_eq!((list.stages, list.late), (vec![], vec![]));
    }
    assert_eq!(vmm.does(&mut trial, WRITE, 1, 1), Some(0));
}

#[test]
fn a_record_stays_while_queues_move_stop_and_start() {
    let mut trial = Trial::of(DISK);
    list_in(trial.ask(set("a", None)));
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    do_one_each(&mut trial, &mut vmm, WRITE, 1);
    let wish = config::spec::DiskMove { to: config::Target::Sidecore(1), queue: None };
    trial.ask(Call::MoveDisk { id: "a".to_string(), wish }).expect("it moves");
    do_one_each(&mut trial, &mut vmm, WRITE, 2);
    assert_eq!(vmm.stop(&mut trial, 0), Some(2));
    vmm.start(&mut trial, 0);
    do_one_each(&mut trial, &mut vmm, WRITE, 3);
    assert_eq!(trial.disk("a").stages, [trace(StagedBy::Command, 4096, 6)]);
    let view = read(&mut trial, TraceFrom::Kept).expect("all");
    let offsets: Vec<u64> = view.entries.iter().map(|entry| entry.offset).collect();
    assert_eq!(offsets, [512, 1024, 1536, 512, 1024, 1536]);
}

#[test]
fn what_the_file_has_is_changed_there_and_goes_before_what_a_command_had() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    list_in(trial.ask(set("a", Some(8192))));
    // A reload leaves it.
    let view = trial.reload(&format!("# moved\n{DISK}"), false).expect("it is read");
    assert_eq!(view.changes, Vec::<String>::new());
    do_one_each(&mut trial, &mut vmm, WRITE, 1);
    assert_eq!(trial.disk("a").stages, [trace(StagedBy::Command, 8192, 2)]);
    let view = trial.reload(&format!("{DISK}{TRACE}"), false).expect("it is read");
    let becomes = "stage trace of 8192 entries by a command becomes of 2048 entries";
    assert_eq!(view.changes, [format!("set disk a: {becomes}")]);
    trial.pass(ms(100));
    do_one_each(&mut trial, &mut vmm, WRITE, 1);
    assert_eq!(trial.disk("a").stages, [trace(StagedBy::File, 2048, 2)]);
    for call in [set("a", None), remove("a")] {
        let (kind, why) = refused(trial.ask(call));
        assert_eq!(kind, ErrorKind::Conflict);
        let said = "the stage \"trace\" of disk \"a\" is declared in sidecore.toml, line";
        assert!(why.starts_with(said), "{why}");
        assert!(why.ends_with("; change it there, then run `sidecore reload`"), "{why}");
    }
    let view = trial.reload(DISK, false).expect("it is read");
    assert_eq!(view.changes, ["set disk a: stage trace of 2048 entries becomes none"]);
    trial.pass(ms(100));
    do_one_each(&mut trial, &mut vmm, WRITE, 1);
    assert_eq!(trial.disk("a").stages, []);
    for call in [set("x", None), remove("x"), Call::ListStages { id: "x".to_string() }] {
        assert_eq!(refused(trial.ask(call)).1.split(';').next(), Some("there is no disk \"x\""));
    }
}

/// Of a disk of the file, and of one of the API.
#[test]
fn what_commands_add_survives_a_kill_until_its_disk_goes_and_what_cannot_be_kept_is_not_done() {
    let mut trial = Trial::of(DISK);
    let spec = serde_json::json!({"id": "b", "backend": "memory", "size": "1M"});
    let spec = serde_json::from_value(spec).expect("a disk");
    trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
    trial.break_state(true);
    for id in ["a", "b"] {
        let (kind, why) = refused(trial.ask(set(id, None)));
        assert_eq!(kind, ErrorKind::Internal);
        assert!(why.starts_with("the change cannot be kept: "), "{why}");
        assert_eq!(trial.disk(id).stages, []);
    }
    trial.break_state(false);
    for (id, entries) in [("a", 1024), ("b", 2048)] {
        let list = list_in(trial.ask(set(id, Some(entries))));
        assert_eq!(list.stages, [trace(StagedBy::Command, entries, 0)]);
    }
    let mut trial = Trial::start(DISK, trial.die()).expect("it starts");
    for (id, entries) in [("a", 1024), ("b", 2048)] {
        assert_eq!(trial.disk(id).stages, [trace(StagedBy::Command, entries, 0)]);
    }
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    assert_eq!(vmm.does(&mut trial, WRITE, 1, 1), Some(0));
    assert_eq!(trial.disk("a").stages[0].recorded, Some(1));
    drop(vmm);
    // It goes with its disk, also where that comes again in another life.
    trial.reload("", true).expect("it is read");
    trial.pass(ms(2000));
    let mut trial = Trial::start(DISK, trial.die()).expect("it starts");
    assert_eq!(trial.disk("a").stages, []);
    assert_eq!(trial.disk("b").stages, [trace(StagedBy::Command, 2048, 0)]);
    list_in(trial.ask(remove("b")));
    let mut trial = Trial::start(DISK, trial.die()).expect("it starts");
    assert_eq!(trial.disk("b").stages, []);
}

#[test]
fn a_disk_that_goes_takes_those_along_who_wait_for_its_stages() {
    let mut trial = Trial::of("");
    let spec = serde_json::json!({"id": "b", "backend": "memory", "size": "1M"});
    let spec = serde_json::from_value(spec).expect("a disk");
    trial.ask(Call::AddDisk { spec, force: false }).expect("it is added");
    let _vmm = Vmm::served(&mut trial, "b", 1);
    trial.stall(true);
    let mut asked = trial.asks(set("b", None));
    trial.rest();
    assert!(answered(&mut asked).is_none());
    let mut removes = trial.asks(Call::RemoveDisk { id: "b".to_string(), force: true });
    trial.rest();
    trial.stall(false);
    trial.pass(ms(50));
    let why = answered(&mut asked).expect("it is over").expect_err("it is gone");
    let gone = "disk \"b\" was removed, or is made anew, before all its queues had them";
    assert_eq!((why.kind, why.error.as_str()), (ErrorKind::Conflict, gone));
    assert_eq!(why.hint, "`sidecore disk stage ls b` says what came of it");
    assert!(answered(&mut removes).expect("it is gone").is_ok());
}

#[test]
fn what_a_trace_takes_is_promised_or_it_is_refused() {
    let huge = DISK.replace("queues = 2", "queues = 64").replace("1M", "1G");
    let mut trial = Trial::of(&huge);
    let plan = trial.rooms().plan.device("a").expect("a disk");
    let free = |trial: &mut Trial| trial.rooms().bounds.view().memory_bytes.promised;
    let before = free(&mut trial);
    list_in(trial.ask(set("a", Some(65_536))));
    let taken = 64 * (65_536 * 64 + (32 << 10));
    assert_eq!(free(&mut trial) - before, taken);
    list_in(trial.ask(remove("a")));
    assert_eq!(free(&mut trial), before);
    let trace = TRACE.replace("2048", "65536");
    trial.reload(&format!("{huge}{trace}"), false).expect("it is read");
    assert_eq!(free(&mut trial) - before, taken);
    trial.reload(&huge, false).expect("it is read");
    assert_eq!((free(&mut trial), plan.id()), (before, "a"));
}

#[test]
fn a_fault_has_requests_fail_or_wait_and_counts_them_until_it_is_another() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 2);
    let fault = |trial: &mut Trial, change: StageChange| {
        let (id, kind) = ("a".to_string(), StageKind::Fault);
        list_in(trial.ask(Call::SetStage { id, kind, change })).stages
    };
    let none = StageChange::default();
    let all = StageChange { errors_per_million: Some(1_000_000), ..none.clone() };
    let on = StageChange { ops: Some("write".into()), range: Some("512..1K".into()), ..all };
    let stages = fault(&mut trial, on);
    assert_eq!((stages.len(), stages[0].failed, stages[0].delayed), (1, Some(0), Some(0)));
    for (kind, sector, status) in [(WRITE, 1, 1), (READ, 1, 0), (WRITE, 2, 0), (WRITE, 0, 0)] {
        assert_eq!(vmm.does(&mut trial, kind, sector, 5), Some(status), "{kind} {sector}");
    }
    let shown = &trial.disk("a").stages[0];
    assert_eq!((shown.failed, shown.delayed), (Some(1), Some(0)));
    assert_eq!((shown.range.as_deref(), shown.ops.as_deref()), (Some("512..1K"), Some("write")));
    // What is not named stays.
    let later = StageChange { errors_per_million: Some(0), delay_us: Some(30_000), ..none.clone() };
    let stages = fault(&mut trial, later);
    assert_eq!((stages[0].failed, stages[0].delayed), (Some(0), Some(0)), "it is another one");
    vmm.guest.request(0, WRITE, 1, 9);
    trial.pass(ms(20));
    assert_eq!(vmm.guest.status(0), None, "it is not answered yet");
    trial.pass(ms(20));
    assert_eq!(vmm.guest.status(0), Some(0));
    assert_eq!(trial.disk("a").stages[0].delayed, Some(1));
    // What waits for its time is answered when the stage goes.
    vmm.guest.request(0, WRITE, 1, 9);
    trial.pass(ms(1));
    assert_eq!(vmm.guest.status(0), None);
    let id = "a".to_string();
    let left = list_in(trial.ask(Call::RemoveStage { id, kind: StageKind::Fault }));
    assert_eq!((left.stages, left.late), (vec![], vec![]));
    assert_eq!(vmm.guest.status(0), Some(0));
    let (kind, id) = (StageKind::Fault, "a".to_string());
    let (_, why) = refused(trial.ask(Call::SetStage { id, kind, change: none }));
    assert!(why.contains("this stage \"fault\" does nothing"), "{why}");
}

/// As nobody asks for anything there, that stage would do nothing, and in silence.
#[test]
fn a_range_that_begins_behind_the_end_of_its_disk_is_refused() {
    let mut trial = Trial::of(DISK);
    let set = |range: &str| {
        let change = StageChange {
            errors_per_million: Some(1),
            range: Some(range.into()),
            ..StageChange::default()
        };
        Call::SetStage { id: "a".to_string(), kind: StageKind::Fault, change }
    };
    for range in ["1M..2M", "1M..", "4G..5G"] {
        let (kind, why) = refused(trial.ask(set(range)));
        assert_eq!(kind, ErrorKind::Refused);
        assert!(why.contains("and disk \"a\" ends at 1M"), "{why}");
    }
    for range in ["1048575..2M", "..4G"] {
        let range = Some(range.to_string());
        let list = list_in(trial.ask(set(range.as_deref().expect("one"))));
        assert_eq!(list.stages[0].range, range);
    }
}

#[test]
fn nothing_is_done_to_requests_that_were_promised_to_end_in_their_order() {
    let mut trial = Trial::of(&format!("{DISK}{TRACE}"));
    let mut vmm = Vmm::connect(&trial, "a", Guest::new(2)).expect("somebody listens");
    vmm.features |= device::features::IN_ORDER;
    vmm.begin(&mut trial);
    do_one_each(&mut trial, &mut vmm, WRITE, 1);
    let stage = trial.disk("a").stages.remove(0);
    assert_eq!((stage.recorded, stage.in_order, stage.late), (Some(0), vec![0, 1], vec![]));
    let (id, kind) = ("a".to_string(), StageKind::Fault);
    let change = StageChange { delay_us: Some(9), ..StageChange::default() };
    let list = list_in(trial.ask(Call::SetStage { id, kind, change }));
    assert_eq!((list.stages[1].in_order.len(), list.late.len()), (2, 0), "nobody waits for them");
    do_one_each(&mut trial, &mut vmm, READ, 1);
    assert_eq!(trial.disk("a").stages[1].delayed, Some(0));
}
