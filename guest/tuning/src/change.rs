//! Changes made and taken back, by way of the journal.
//!
//! Order of a change: old value on disk, write, read back, done. Order of taking back: the last one first; undoing on
//! disk, write, what is beside it, undone. Whatever is interrupted is understood from what there is then:
//!
//! | record | value | so |
//! |---|---|---|
//! | begun, done | new | put back |
//! | begun, done | old | nothing to do: not yet written, or put back by somebody |
//! | undoing | old | the write was done; what is beside it is put back again |
//! | any | another | somebody else's: left, unless forced |

use serde::Serialize;

use crate::check::{Change, changes, check_rule, read};
use crate::guest::Guest;
use crate::journal::{Entry, Journal, Refusal, Stage, Write};
use crate::place::Place;
use crate::system::{System, Trouble};
use crate::table;
use crate::value::Form;

/// What became of one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The rule.
    pub rule: String,
    /// Where.
    pub place: Place,
    /// What was there.
    pub old: String,
    /// What was to be there.
    pub new: String,
    /// What became of it.
    pub end: End,
    /// More words, where there is more to say.
    pub say: String,
}

/// How a change, or taking it back, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// It is written.
    Applied,
    /// It came with another setting.
    Came,
    /// It could not be written, and is as it was.
    Failed,
    /// Its rule failed elsewhere, so it was taken back.
    TakenBack,
    /// The old value is back.
    Restored,
    /// The old value was there.
    AsBefore,
    /// The device, or the setting, is gone: with it went what was set.
    Gone,
    /// Somebody else has set something else: it is left.
    Others,
}

impl End {
    /// Whether nothing is left to do or to look into.
    pub fn is_good(self) -> bool {
        !matches!(self, End::Failed | End::TakenBack | End::Others)
    }
}

/// Makes the changes that rules ask for: those of `apply`, or of the rules that are named. Each rule is looked at just
/// before, since what another one set may have changed what it finds.
///
/// # Errors
/// As [`apply`].
pub fn apply_rules(
    system: &mut dyn System,
    journal: &mut Journal,
    guest: &Guest,
    named: &[String],
) -> Result<Vec<Outcome>, Refusal> {
    let mut outcomes = Vec::new();
    for rule in table::rules() {
        let changes = changes(&check_rule(system, guest, rule), named);
        outcomes.extend(apply(system, journal, guest, &changes)?);
    }
    Ok(outcomes)
}

/// Makes changes, in order. Those of one rule and device are made together or not at all.
///
/// # Errors
/// The journal cannot be written: what is in it so far can be undone, and nothing else was changed.
pub fn apply(
    system: &mut dyn System,
    journal: &mut Journal,
    guest: &Guest,
    changes: &[Change],
) -> Result<Vec<Outcome>, Refusal> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    let together = |a: &Change, b: &Change| (a.rule, &a.device) == (b.rule, &b.device);
    for group in changes.chunk_by(together) {
        let (first, start) = (journal.next(), outcomes.len());
        for change in group {
            let (end, say) = make(system, journal, change)?;
            let (old, new) = (change.old.clone(), change.new.clone());
            let (rule, place) = (change.rule.to_owned(), change.place.clone());
            outcomes.push(Outcome { rule, place, old, new, end, say });
            if end == End::Failed {
                break;
            }
        }
        if outcomes.last().is_some_and(|last| last.end == End::Failed) {
            undo(system, journal, guest, first, false)?;
            for outcome in outcomes[start..].iter_mut().filter(|it| it.end == End::Applied) {
                outcome.end = End::TakenBack;
                outcome.say = "another setting of the rule could not be made".to_owned();
            }
        }
    }
    Ok(outcomes)
}

/// Makes one change: how that ended, and why so if it is not made.
fn make(
    system: &mut dyn System,
    journal: &mut Journal,
    change: &Change,
) -> Result<(End, String), Refusal> {
    let failed = |say: &str| Ok((End::Failed, say.to_owned()));
    let Some(setting) = table::setting(&change.place) else { return failed("no rule sets it") };
    let form = setting.form;
    match now(system, &change.place, form) {
        Some(is) if is == change.new => return Ok((End::Came, String::new())),
        Some(is) if is == change.old => {}
        _ => return failed("it was changed since it was looked at"),
    }
    let beside = change.beside.iter();
    let beside = beside.map(|place| (place.clone(), now(system, place, Form::Line))).collect();
    let write = Write {
        number: journal.next(),
        rule: change.rule.to_owned(),
        device: change.device.clone().map(|device| (device.name, device.is)),
        place: change.place.clone(),
        old: change.old.clone(),
        new: change.new.clone(),
        beside,
    };
    let number = journal.begin(system, write)?;
    let written = system.write(&change.place, &change.new);
    let got = now(system, &change.place, form);
    match (written, got) {
        (Ok(()), Some(got)) if got == change.new => {
            let beside = change.beside.iter();
            let beside = beside.map(|place| now(system, place, Form::Line)).collect();
            journal.done(system, number, got, beside)?;
            Ok((End::Applied, String::new()))
        }
        (written, got) => {
            let say = match (&written, &got) {
                (Err(trouble), _) => format!("it cannot be written: {trouble}"),
                (_, Some(got)) => format!("the kernel made {got} of it"),
                (_, None) => "it cannot be read any more".to_owned(),
            };
            match got {
                // Nothing came of it.
                Some(got) if got == change.old => journal.undone(system, number)?,
                // Something else than was wished: it is known as ours, and so is taken back.
                Some(got) if written.is_ok() => journal.done(system, number, got, Vec::new())?,
                _ => {}
            }
            Ok((End::Failed, say))
        }
    }
}

fn now(system: &mut dyn System, place: &Place, form: Form) -> Option<String> {
    read(system, place, form).ok().flatten()
}

/// Takes back what was changed from that number on, the last first; what others have changed since is left, unless it is
/// forced. A journal that has nothing left is removed.
///
/// # Errors
/// The journal cannot be written.
pub fn undo(
    system: &mut dyn System,
    journal: &mut Journal,
    guest: &Guest,
    from: u64,
    is_forced: bool,
) -> Result<Vec<Outcome>, Refusal> {
    let mut outcomes = Vec::new();
    let open = |entry: &&Entry| entry.stage != Stage::Undone && entry.write.number >= from;
    let entries: Vec<Entry> = journal.entries.iter().filter(open).cloned().collect();
    for entry in entries.into_iter().rev() {
        let (end, say) = take_back(system, journal, guest, &entry, is_forced)?;
        let Write { rule, place, old, new, .. } = entry.write;
        outcomes.push(Outcome { rule, place, old, new, end, say });
    }
    journal.close(system)?;
    Ok(outcomes)
}

fn take_back(
    system: &mut dyn System,
    journal: &mut Journal,
    guest: &Guest,
    entry: &Entry,
    is_forced: bool,
) -> Result<(End, String), Refusal> {
    let write = &entry.write;
    let Some(setting) = table::setting(&write.place) else {
        return Ok((End::Failed, "no rule of this program sets it: it is left".to_owned()));
    };
    if let Some((name, is)) = &write.device
        && guest.device(name).is_none_or(|device| device.is != *is)
    {
        journal.undone(system, write.number)?;
        return Ok((End::Gone, format!("{name} is gone, or is another device now")));
    }
    let value = match read(system, &write.place, setting.form) {
        Ok(Some(value)) => value,
        Err(Trouble::Absent) => {
            journal.undone(system, write.number)?;
            return Ok((End::Gone, "the setting is gone".to_owned()));
        }
        Err(trouble) => return Ok((End::Failed, format!("it {trouble}: it is left"))),
        Ok(None) => return Ok((End::Others, "its text is not understood: it is left".to_owned())),
    };
    let is_ours = value == entry.stage.got().unwrap_or(&write.new);
    if value == write.old {
        // Only what is under way may have left something beside it.
        let others = match entry.stage {
            Stage::Undoing { .. } => put_beside(system, write, None),
            _ => Vec::new(),
        };
        return ended(system, journal, write, End::AsBefore, &others);
    }
    if !is_ours && !is_forced {
        let say =
            format!("somebody has set {value} since: it is left (--force puts {} back)", write.old);
        return Ok((End::Others, say));
    }
    // What is beside it and was changed by others since is theirs; without that record, all of it is ours.
    let others = match &entry.stage {
        Stage::Done { beside, .. } if !is_forced => changed_beside(system, write, beside),
        _ => Vec::new(),
    };
    journal.undoing(system, write.number)?;
    if let Err(trouble) = system.write(&write.place, &write.old) {
        return Ok((End::Failed, format!("{} cannot be put back: {trouble}", write.old)));
    }
    let back = now(system, &write.place, setting.form);
    if back.as_ref() != Some(&write.old) {
        let back = back.unwrap_or_default();
        return Ok((End::Failed, format!("the kernel made {back:?} of {}", write.old)));
    }
    let mut left = put_beside(system, write, Some(&others));
    left.extend(others);
    ended(system, journal, write, End::Restored, &left)
}

fn ended(
    system: &mut dyn System,
    journal: &mut Journal,
    write: &Write,
    end: End,
    left: &[Place],
) -> Result<(End, String), Refusal> {
    journal.undone(system, write.number)?;
    let left: Vec<String> = left.iter().map(ToString::to_string).collect();
    let say = match left.is_empty() {
        true => String::new(),
        false => format!("beside it these are not as they were: {}", left.join(", ")),
    };
    Ok((end, say))
}

/// What is beside a write and is not as it was just after it.
fn changed_beside(system: &mut dyn System, write: &Write, after: &[Option<String>]) -> Vec<Place> {
    let both = write.beside.iter().zip(after);
    let changed = both.filter(|((place, _), after)| now(system, place, Form::Line) != **after);
    changed.map(|((place, _), _)| place.clone()).collect()
}

/// Puts back what is beside a write, but for what others changed: what could not be.
fn put_beside(system: &mut dyn System, write: &Write, others: Option<&[Place]>) -> Vec<Place> {
    let is_known = |place: &Place| {
        table::setting(&write.place).is_some_and(|setting| table::is_beside(setting, place))
    };
    let mut left = Vec::new();
    for (place, old) in &write.beside {
        let Some(old) = old else { continue };
        if others.is_some_and(|others| others.contains(place)) || !is_known(place) {
            continue;
        }
        if now(system, place, Form::Line).as_ref() == Some(old) {
            continue;
        }
        let is_back = system.write(place, old).is_ok();
        if !is_back || now(system, place, Form::Line).as_ref() != Some(old) {
            left.push(place.clone());
        }
    }
    left
}
