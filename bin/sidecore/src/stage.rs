//! `disk stage`: what is done to requests of a disk on their way.

use config::api::{ApiError, ErrorKind, StageList, StageView, StagedBy};
use config::routes::Method;
use config::spec::{StageChange, StageKind};

use crate::cli::StageCommand;
use crate::client::{Client, path_of};
use crate::failure::Failure;
use crate::output::Output;
use crate::table::{Align, Room, Table, known};

/// `disk stage ...`
pub(crate) fn run(command: StageCommand, client: &Client, output: &Output) -> Result<(), Failure> {
    match command {
        StageCommand::Ls { id } => {
            output.show(&list(client, &id)?, |it| list_text(it, output.room))
        }
        StageCommand::Add { id, kind, change } => {
            let there = list(client, &id)?.stages.into_iter().find(|stage| stage.kind == kind);
            if let Some(there) = there {
                let error = format!("disk {id:?} has a stage {:?} already", kind.word());
                let hint = match there.declared {
                    StagedBy::Command => {
                        format!("`sidecore disk stage set {id} {kind}` changes it")
                    }
                    StagedBy::File => {
                        "the file has it: change it there, then `sidecore reload`".to_string()
                    }
                };
                return Err(refused(ErrorKind::Conflict, error, hint));
            }
            let added = put(client, &id, kind, &change)?;
            output.show(&added, |it| has_now(it, kind))
        }
        StageCommand::Set { id, kind, change } => {
            if change.is_empty() {
                let hint =
                    format!("`sidecore disk stage set {id} {kind} --help` lists what can be");
                return Err(Failure::usage("nothing is to be changed", hint));
            }
            if !has(&list(client, &id)?, kind) {
                let error = format!("disk {id:?} has no stage {:?}", kind.word());
                let hint = format!("`sidecore disk stage add {id} {kind}` adds one");
                return Err(refused(ErrorKind::NotFound, error, hint));
            }
            let set = put(client, &id, kind, &change)?;
            output.show(&set, |it| has_now(it, kind))
        }
        StageCommand::Rm { id, kind } => {
            let path = path_of("disks", &id, &format!("/stages/{kind}"));
            let left: StageList = client.ask(Method::Delete, &path)?;
            output.show(&left, |it| format!("disk {} has no stage {kind} any more\n", it.disk))
        }
    }
}

fn list(client: &Client, id: &str) -> Result<StageList, Failure> {
    client.ask(Method::Get, &path_of("disks", id, "/stages"))
}

fn put(
    client: &Client,
    id: &str,
    kind: StageKind,
    change: &StageChange,
) -> Result<StageList, Failure> {
    client.send(Method::Put, &path_of("disks", id, &format!("/stages/{kind}")), change)
}

/// What has come of a stage, and what it is.
fn has_now(list: &StageList, kind: StageKind) -> String {
    match list.stages.iter().find(|stage| stage.kind == kind).map(what) {
        Some(what) => format!("disk {} has the stage {kind} now: {what}\n", list.disk),
        None => format!("the stage {kind} of disk {} was removed meanwhile\n", list.disk),
    }
}

fn has(list: &StageList, kind: StageKind) -> bool {
    list.stages.iter().any(|stage| stage.kind == kind)
}

fn refused(kind: ErrorKind, error: String, hint: String) -> Failure {
    Failure::Refused(ApiError::new(kind, error, hint))
}

fn list_text(list: &StageList, room: Room) -> String {
    if list.stages.is_empty() && list.late.is_empty() {
        let add = format!("`sidecore disk stage add {} KIND` adds one", list.disk);
        return format!("disk {} has no stages; {add}\n", list.disk);
    }
    let columns = [
        ("KIND", Align::Left),
        ("DECLARED", Align::Left),
        ("WHAT", Align::Left),
        ("DID", Align::Left),
    ];
    let mut table = Table::new(&columns, &["DID", "WHAT"]);
    for stage in &list.stages {
        let declared = declared(stage.declared).to_string();
        table.row(vec![stage.kind.to_string(), declared, what(stage), known(did(stage))]);
    }
    let mut text = table.text(room);
    let in_order = list.stages.first().map(|stage| stage.in_order.as_slice()).unwrap_or_default();
    if !in_order.is_empty() {
        let queues: Vec<String> = in_order.iter().map(u16::to_string).collect();
        text += &format!(
            "nothing is done to queue {}: its driver asks that requests end in their order\n",
            queues.join(", ")
        );
    }
    if !list.late.is_empty() {
        let queues: Vec<String> = list.late.iter().map(u16::to_string).collect();
        let plural = if queues.len() == 1 { " has" } else { "s have" };
        let queues = queues.join(", ");
        text +=
            &format!("queue{plural} not come to that yet, whose requests do not end: {queues}\n");
    }
    text
}

/// The stages of a disk in a line, if it has some.
pub(crate) fn in_words(stages: &[StageView]) -> Option<String> {
    let word = |stage: &StageView| {
        let by = match stage.declared {
            StagedBy::File => "",
            StagedBy::Command => ", by a command",
        };
        let did = did(stage).map(|did| format!(", {did}"));
        format!("{} ({}{}{by})", stage.kind, what(stage), did.unwrap_or_default())
    };
    (!stages.is_empty()).then(|| stages.iter().map(word).collect::<Vec<_>>().join("; "))
}

/// What the stage `fault` of a disk does to its requests, if it has that.
pub(crate) fn fault_of(stages: &[StageView]) -> Option<String> {
    stages.iter().find(|stage| stage.kind == StageKind::Fault).map(fault)
}

fn declared(by: StagedBy) -> &'static str {
    match by {
        StagedBy::File => "file",
        StagedBy::Command => "command",
    }
}

/// What a stage is.
fn what(stage: &StageView) -> String {
    match stage.kind {
        StageKind::Trace => format!("{} entries a queue", known(stage.entries)),
        StageKind::Fault => fault(stage),
    }
}

/// What a fault does.
fn fault(stage: &StageView) -> String {
    let above = |number: Option<u32>| number.filter(|number| *number > 0);
    let delay = above(stage.delay_us).map(|us| format!("{us} us later"));
    let jitter = above(stage.jitter_us).map(|us| format!("up to {us} us later besides"));
    let errors = above(stage.errors_per_million).map(|n| format!("{n} errors a million"));
    let ops = stage.ops.as_ref().map(|ops| format!("of {ops}"));
    let range = stage.range.as_ref().map(|range| format!("in {range}"));
    let seed = stage.seed.map(|seed| format!("seed {seed}"));
    let all = [delay, jitter, errors, ops, range, seed];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What a stage did.
fn did(stage: &StageView) -> Option<String> {
    match stage.kind {
        StageKind::Trace => stage.recorded.map(|count| format!("{count} recorded")),
        StageKind::Fault => {
            let (delayed, failed) = stage.delayed.zip(stage.failed)?;
            Some(format!("{delayed} delayed, {failed} failed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_listed_with_what_they_did_and_who_is_late() {
        let trace = StageView {
            entries: Some(4096),
            recorded: Some(7),
            late: vec![3],
            ..StageView::new(StageKind::Trace, StagedBy::Command)
        };
        let fault = StageView {
            delay_us: Some(500),
            jitter_us: Some(0),
            errors_per_million: Some(100),
            ops: Some("read".to_string()),
            delayed: Some(9),
            failed: Some(1),
            in_order: vec![2],
            ..StageView::new(StageKind::Fault, StagedBy::File)
        };
        assert_eq!(
            in_words(std::slice::from_ref(&trace)).unwrap(),
            "trace (4096 entries a queue, 7 recorded, by a command)"
        );
        assert_eq!(in_words(&[]), None);
        let list = |stages, late| StageList { disk: "a".to_string(), stages, late };
        assert_eq!(
            list_text(&list(vec![trace.clone()], vec![]), Room::Whole),
            "KIND   DECLARED  WHAT                  DID\n\
             trace  command   4096 entries a queue  7 recorded\n"
        );
        assert_eq!(
            list_text(&list(vec![fault], vec![]), Room::Whole),
            "KIND   DECLARED  WHAT                                         DID\n\
             fault  file      500 us later, 100 errors a million, of read  9 delayed, 1 failed\n\
             nothing is done to queue 2: its driver asks that requests end in their order\n"
        );
        let late = list_text(&list(vec![trace], vec![1, 3]), Room::Whole);
        assert!(
            late.ends_with("\nqueues have not come to that yet, whose requests do not end: 1, 3\n"),
            "{late}"
        );
        assert!(
            list_text(&list(vec![], vec![]), Room::Whole).starts_with("disk a has no stages; ")
        );
    }
}
