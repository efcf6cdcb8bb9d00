//! What each command does: looks, asks `tuning`, prints.

mod words;

use serde_json::json;
use tuning::change::{Outcome, apply_rules, undo};
use tuning::check::{Change, Finding, State, changes, check, read};
use tuning::guest::{Guest, Scope};
use tuning::journal::{Journal, Stage};
use tuning::table;
use tuning::trial::{self, Stop, Trial};
use tuning::{Place, System};

use crate::cli::{Cli, Command, RulesArgs, TryArgs};
use crate::documents;
use crate::load::Load;
use crate::output::{Failure, Output};
use crate::tree::Tree;

/// Statuses of a command that did its work.
const DONE: u8 = 0;
const LEFT: u8 = 1;

/// Does what was asked: the program's status.
///
/// # Errors
/// Nothing was done, and why.
pub fn run(cli: Cli, output: &Output) -> Result<u8, Failure> {
    let mut tree = Tree::open(&cli.root, cli.journal.as_deref()).map_err(Failure::usage)?;
    let scope = if tree.is_here() { Scope::Here } else { Scope::Tree };
    let guest = Guest::look(&mut tree, scope);
    match &cli.command {
        Command::Check(args) => show(&mut tree, &guest, args, output),
        Command::Apply(args) => set(&mut tree, &guest, args, output),
        Command::Try(args) => try_out(&mut tree, &guest, args, output),
        Command::Undo(args) => put_back(&mut tree, &guest, args.force, output),
        Command::Ls => list(&mut tree, &guest, output),
        Command::Docs { folder } => documents::write(folder).map(|()| DONE),
    }
}

/// Fails for a rule that there is none of.
fn known(args: &RulesArgs) -> Result<(), Failure> {
    let unknown = args.rules.iter().find(|name| table::rule(name).is_none());
    match unknown {
        None => Ok(()),
        Some(name) => {
            let all: Vec<&str> = table::rules().map(|rule| rule.name).collect();
            let error = format!("there is no rule {name:?}; there are {}", all.join(", "));
            Err(Failure::usage(error))
        }
    }
}

/// Fails where nothing may be changed, and has the journal to itself.
fn begun(tree: &mut Tree, guest: &Guest) -> Result<Journal, Failure> {
    if let Some(obstacle) = guest.obstacles.first() {
        return Err(Failure::here(format!("{obstacle}; nothing was changed")));
    }
    tree.lock().map_err(Failure::here)?;
    // One of an earlier start is gone with this: the kernel's own values are back since then.
    let (journal, _) = Journal::open(tree, &guest.boot).map_err(Failure::usage)?;
    Ok(journal)
}

fn found(tree: &mut Tree, guest: &Guest, args: &RulesArgs) -> Vec<Finding> {
    let mut findings = check(tree, guest);
    let is_asked = |finding: &Finding| {
        args.rules.is_empty() || args.rules.iter().any(|rule| rule == finding.rule)
    };
    findings.retain(is_asked);
    findings
}

/// `check`
fn show(tree: &mut Tree, guest: &Guest, args: &RulesArgs, output: &Output) -> Result<u8, Failure> {
    known(args)?;
    let findings = found(tree, guest, args);
    let obstacles: Vec<String> = guest.obstacles.iter().map(ToString::to_string).collect();
    let value = json!({
        "version": 1, "guest": guest, "findings": findings, "obstacles": obstacles,
    });
    output.show(&value, |_| words::findings(guest, &findings))?;
    let is_left = findings.iter().any(|finding| finding.state == State::Settable);
    Ok(if is_left { LEFT } else { DONE })
}

/// `apply`
fn set(tree: &mut Tree, guest: &Guest, args: &RulesArgs, output: &Output) -> Result<u8, Failure> {
    known(args)?;
    let mut journal = begun(tree, guest)?;
    let outcomes = apply_rules(tree, &mut journal, guest, &args.rules).map_err(Failure::usage)?;
    ended(&outcomes, "nothing is left for `apply` to set; nothing was changed", output)
}

/// `undo`
fn put_back(
    tree: &mut Tree,
    guest: &Guest,
    is_forced: bool,
    output: &Output,
) -> Result<u8, Failure> {
    let mut journal = begun(tree, guest)?;
    let outcomes = undo(tree, &mut journal, guest, 1, is_forced).map_err(Failure::usage)?;
    ended(&outcomes, "nothing was changed since the guest started; nothing was put back", output)
}

fn ended(outcomes: &[Outcome], nothing: &str, output: &Output) -> Result<u8, Failure> {
    let value = json!({ "version": 1, "outcomes": outcomes });
    output.show(&value, |_| words::outcomes(outcomes, nothing))?;
    Ok(if outcomes.iter().all(|outcome| outcome.end.is_good()) { DONE } else { LEFT })
}

/// `try`
fn try_out(tree: &mut Tree, guest: &Guest, args: &TryArgs, output: &Output) -> Result<u8, Failure> {
    known(&args.rules)?;
    let mut journal = begun(tree, guest)?;
    let mut load = Load::new(&args.measure, args.seed, tree, guest).map_err(Failure::usage)?;
    let mut named = args.rules.rules.clone();
    if named.is_empty() {
        named = table::rules().map(|rule| rule.name.to_owned()).collect();
    }
    let all: Vec<Change> = changes(&check(tree, guest), &named);
    let mut trials: Vec<Trial> = Vec::new();
    for of_rule in all.chunk_by(|a, b| a.rule == b.rule) {
        let how = (usize::from(args.rounds), args.seed);
        let mut measure = |system: &mut dyn System| load.measure(system, args.seconds);
        let trial = trial::run(tree, &mut journal, guest, of_rule, how, &mut measure);
        trials.push(trial.map_err(|stop| match stop {
            Stop::Journal(refusal) => Failure::usage(refusal),
            stop => Failure::usage(stop),
        })?);
    }
    let value = json!({ "version": 1, "measure": args.measure, "trials": trials });
    output.show(&value, |_| words::trials(&trials))?;
    let is_good = |trial: &Trial| trial.outcomes.iter().all(|outcome| outcome.end.is_good());
    Ok(if trials.iter().all(is_good) { DONE } else { LEFT })
}

/// `ls`
fn list(tree: &mut Tree, guest: &Guest, output: &Output) -> Result<u8, Failure> {
    let bytes =
        tree.journal().map_err(|trouble| Failure::usage(format!("the journal {trouble}")))?;
    let journal = Journal::parse(&bytes).map_err(Failure::usage)?;
    let is_of_now = journal.boot == guest.boot;
    let open = journal.entries.iter().filter(|entry| is_of_now && entry.stage != Stage::Undone);
    let mut listed = Vec::new();
    for entry in open {
        let write = &entry.write;
        let is = now(tree, &write.place);
        listed.push(json!({
            "number": write.number, "rule": write.rule, "place": write.place,
            "old": write.old, "new": write.new, "is": is,
        }));
    }
    let value = json!({ "version": 1, "changes": listed });
    output.show(&value, |_| words::listed(&listed))?;
    Ok(DONE)
}

fn now(tree: &mut Tree, place: &Place) -> Option<String> {
    let form = table::setting(place)?.form;
    read(tree, place, form).ok()?
}
