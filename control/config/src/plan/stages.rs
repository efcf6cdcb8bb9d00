//! What is done to requests of a disk on their way: one place for each kind, in the order of decision 31.
//!
//! A struct and no list, so that an order that means nothing cannot be planned. A kind more is a field more, and its arm
//! wherever [`StageKind`] is matched.

use super::names::{Origin, check_bounds};
use crate::api::StagedBy;
use crate::mistake::{Mistake, Path};
use crate::size::Size;
use crate::spec::{StageChange, StageKind, StageSpec};
use crate::word::Word;

/// A record of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracePlan {
    /// Requests that are kept for each queue: a power of two.
    pub entries: u32,
}

/// Delays and failures that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// Microseconds by which each request is answered later.
    pub delay_us: u32,
    /// And of up to which besides.
    pub jitter_us: u32,
    /// Of a million requests so many fail.
    pub errors_per_million: u32,
    /// What chooses.
    pub seed: u32,
    /// Which requests are meant.
    pub ops: FaultOps,
    /// Which bytes of the disk: from the first to before the second.
    pub range: (u64, u64),
}

/// Which requests a fault is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultOps {
    /// Disk to guest.
    pub read: bool,
    /// Guest to disk.
    pub write: bool,
    /// What was written is made stable.
    pub flush: bool,
    /// Discards and write-zeroes.
    pub discard: bool,
}

/// A stage, and what was written of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagePlan<T> {
    /// Who has it be there.
    pub by: StagedBy,
    /// What it is.
    pub is: T,
    /// What was written; with it the stage is kept, and planned again.
    pub spec: Box<StageSpec>,
}

/// What is done, from the guest to the medium.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagesPlan {
    /// Whether requests are recorded.
    pub trace: Option<StagePlan<TracePlan>>,
    /// Whether some are delayed, or fail.
    pub fault: Option<StagePlan<FaultPlan>>,
}

impl From<&Origin> for StagedBy {
    fn from(origin: &Origin) -> StagedBy {
        match origin {
            Origin::File { .. } => StagedBy::File,
            Origin::Api => StagedBy::Command,
        }
    }
}

impl StagesPlan {
    /// Whether nothing is done.
    pub fn is_none(&self) -> bool {
        self.trace.is_none() && self.fault.is_none()
    }

    /// What is there, in its order: who has it be so, and what was written.
    pub fn all(&self) -> Vec<(StagedBy, &StageSpec)> {
        let StagesPlan { trace, fault } = self;
        let trace = trace.iter().map(|stage| (stage.by, &*stage.spec));
        trace.chain(fault.iter().map(|stage| (stage.by, &*stage.spec))).collect()
    }

    /// Who has a stage of that kind be there.
    pub fn by(&self, kind: StageKind) -> Option<StagedBy> {
        self.all().into_iter().find(|(_, spec)| spec.kind == kind).map(|(by, _)| by)
    }

    /// What commands have added, as it is kept.
    pub fn by_command(&self) -> Vec<StageSpec> {
        let all = self.all().into_iter();
        all.filter(|(by, _)| *by == StagedBy::Command).map(|(_, spec)| spec.clone()).collect()
    }

    /// Whether the same is done to requests, whoever has it be so.
    pub fn do_the_same(&self, other: &StagesPlan) -> bool {
        let trace = |stages: &StagesPlan| stages.trace.as_ref().map(|stage| stage.is);
        let fault = |stages: &StagesPlan| stages.fault.as_ref().map(|stage| stage.is);
        trace(self) == trace(other) && fault(self) == fault(other)
    }

    /// The stage of that kind with what is to be different, by a command.
    pub(super) fn changed(&self, kind: StageKind, change: &StageChange) -> StageSpec {
        let written = self.all().into_iter().find(|(_, spec)| spec.kind == kind);
        written.map_or_else(|| StageSpec::new(kind), |(_, spec)| spec.clone()).changed(change)
    }

    /// Puts a stage in its place, by its texts as they are usually written.
    pub(super) fn put(&mut self, spec: &StageSpec, by: StagedBy) {
        let (ops, range) =
            (spec.ops.as_deref().map(plain_ops), spec.range.as_deref().map(plain_range));
        let (ops, range) = (ops.unwrap_or_default(), range.unwrap_or_default());
        let spec = Box::new(StageSpec { ops, range, ..spec.clone() });
        match spec.kind {
            StageKind::Trace => {
                let entries = number_of(&spec, "entries").next_power_of_two();
                self.trace = Some(StagePlan { by, is: TracePlan { entries }, spec });
            }
            StageKind::Fault => {
                let number = |name| number_of(&spec, name);
                let is = FaultPlan {
                    delay_us: number("delay_us"),
                    jitter_us: number("jitter_us"),
                    errors_per_million: number("errors_per_million"),
                    seed: number("seed"),
                    ops: spec.ops.as_deref().and_then(ops_of).unwrap_or(FaultOps::ALL),
                    range: spec.range.as_deref().and_then(range_of).unwrap_or((0, u64::MAX)),
                };
                self.fault = Some(StagePlan { by, is, spec });
            }
        }
    }

    /// Takes one away.
    pub(super) fn take(&mut self, kind: StageKind) {
        match kind {
            StageKind::Trace => self.trace = None,
            StageKind::Fault => self.fault = None,
        }
    }

    /// Has what commands added `before`, where the file says nothing of its kind.
    pub(super) fn keep_of(&mut self, before: &StagesPlan) {
        self.keep(&before.by_command());
    }

    /// Has what commands have made of another plan of the same disk since, where the file says nothing of its kind in
    /// either.
    pub(super) fn follow(&mut self, other: &StagesPlan) {
        for kind in [StageKind::Trace, StageKind::Fault] {
            let is_file = |by| by == Some(StagedBy::File);
            if !is_file(self.by(kind)) && !is_file(other.by(kind)) {
                self.take(kind);
            }
        }
        self.keep_of(other);
    }

    /// The same of what was kept.
    pub(super) fn keep(&mut self, kept: &[StageSpec]) {
        for spec in kept {
            if self.by(spec.kind).is_none() {
                self.put(spec, StagedBy::Command);
            }
        }
    }

    /// Each kind with what it is, as a list of changes says it.
    pub(crate) fn in_words(&self) -> Vec<(&'static str, Word)> {
        let word = |kind: StageKind| {
            let by = |by| if by == StagedBy::Command { " by a command" } else { "" };
            let (name, text) = match kind {
                StageKind::Trace => {
                    let words = |it: &StagePlan<TracePlan>| {
                        format!("of {} entries{}", it.is.entries, by(it.by))
                    };
                    ("stage trace", self.trace.as_ref().map(words))
                }
                StageKind::Fault => {
                    let words = |it: &StagePlan<FaultPlan>| {
                        format!("of {}{}", fault_in_words(it), by(it.by))
                    };
                    ("stage fault", self.fault.as_ref().map(words))
                }
            };
            (name, Word::or(text, "none"))
        };
        StageKind::ALL.into_iter().map(word).collect()
    }
}

/// What a fault is: what it does, what chooses, and what is meant, if not all.
fn fault_in_words(stage: &StagePlan<FaultPlan>) -> String {
    let FaultPlan { delay_us, jitter_us, errors_per_million, seed, .. } = stage.is;
    let some = |number: u32, words: &str| (number > 0).then(|| format!("{number}{words}"));
    let all = [
        some(delay_us, " us later"),
        some(jitter_us, " us at most besides"),
        some(errors_per_million, " errors a million"),
        Some(format!("seed {seed}")),
        stage.spec.ops.as_ref().map(|ops| format!("ops {ops}")),
        stage.spec.range.as_ref().map(|range| format!("range {range}")),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Each request, or all bytes, where one says which.
const ALL: &str = "all";

impl FaultOps {
    /// Each request.
    pub const ALL: FaultOps = FaultOps { read: true, write: true, flush: true, discard: true };
}

/// Which requests a text names, such as `read+write`.
fn ops_of(text: &str) -> Option<FaultOps> {
    if text.trim() == ALL {
        return Some(FaultOps::ALL);
    }
    let mut ops = FaultOps { read: false, write: false, flush: false, discard: false };
    for word in text.split('+') {
        let op = match word.trim() {
            "read" => &mut ops.read,
            "write" => &mut ops.write,
            "flush" => &mut ops.flush,
            "discard" => &mut ops.discard,
            _ => return None,
        };
        *op = true;
    }
    Some(ops)
}

/// Which bytes a text names, such as `1G..2G` or `1G..`: from the first to before the second.
fn range_of(text: &str) -> Option<(u64, u64)> {
    if text.trim() == ALL {
        return Some((0, u64::MAX));
    }
    let (from, to) = text.split_once("..")?;
    let size = |text: &str| text.parse::<Size>().ok().map(|size| size.0);
    let from = if from.trim().is_empty() { 0 } else { size(from)? };
    let to = if to.trim().is_empty() { u64::MAX } else { size(to)? };
    (from < to).then_some((from, to))
}

/// The same requests, each named once; nothing, where those are all. What names none is as it was written.
fn plain_ops(text: &str) -> Option<String> {
    let Some(ops) = ops_of(text) else { return Some(text.to_string()) };
    let FaultOps { read, write, flush, discard } = ops;
    let all = [(read, "read"), (write, "write"), (flush, "flush"), (discard, "discard")];
    let names: Vec<&str> =
        all.into_iter().filter(|(is_meant, _)| *is_meant).map(|it| it.1).collect();
    (ops != FaultOps::ALL).then(|| names.join("+"))
}

/// The same bytes, without blanks; nothing, where those are all. What names none is as it was written.
fn plain_range(text: &str) -> Option<String> {
    match range_of(text) {
        None => Some(text.to_string()),
        Some((0, u64::MAX)) => None,
        Some(_) => Some(text.split_whitespace().collect()),
    }
}

/// A number of a stage: what was written, or the usual one.
fn number_of(spec: &StageSpec, name: &str) -> u32 {
    let mut all = StageSpec::NUMBERS.iter().zip(spec.numbers());
    let found = all.find(|(number, _)| number.name == name && number.kind == spec.kind);
    found.map_or(0, |(number, written)| written.unwrap_or(number.usual))
}

/// What is done by stages that were written in that order.
pub(super) fn resolve(
    specs: &[StageSpec],
    by: StagedBy,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> StagesPlan {
    let kinds: Vec<usize> = specs.iter().map(|spec| spec.kind as usize).collect();
    let names = StageKind::ALL.map(StageKind::word);
    check_order(&kinds, &names, at, mistakes);
    let mut plan = StagesPlan::default();
    for (index, spec) in specs.iter().enumerate() {
        check_fields(spec, &at.index(index), mistakes);
        plan.put(spec, by);
    }
    plan
}

/// What is wrong with stages that commands have added, and that were kept.
pub(crate) fn wrong_with_kept(specs: &[StageSpec], at: &Path) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    resolve(specs, StagedBy::Command, at, &mut mistakes);
    mistakes
}

/// That each kind, a place in `names`, is there once, and before those that come behind it.
fn check_order(kinds: &[usize], names: &[&str], at: &Path, mistakes: &mut Vec<Mistake>) {
    let name = |kind: usize| names.get(kind).copied().unwrap_or_default();
    let mut last = None;
    for (index, kind) in kinds.iter().copied().enumerate() {
        let at = at.index(index).key("kind");
        match last {
            _ if kinds.iter().take(index).any(|before| *before == kind) => {
                let wrong = format!("{:?} is there twice", name(kind));
                mistakes.push(Mistake::new(at, wrong, "a disk has one stage of each kind"));
            }
            Some(last) if kind < last => {
                let wrong = format!("{:?} comes before {:?}", name(kind), name(last));
                let right = format!("write stages in this order: {}", names.join(", "));
                mistakes.push(Mistake::new(at, wrong, right));
            }
            _ => last = Some(kind),
        }
    }
}

/// That a stage has what its kind has, within bounds.
pub(super) fn check_fields(spec: &StageSpec, at: &Path, mistakes: &mut Vec<Mistake>) {
    for (own, written) in StageSpec::NUMBERS.iter().zip(spec.numbers()) {
        let Some(written) = written else { continue };
        if own.kind != spec.kind {
            not_its(spec, (own.name, own.kind), at, mistakes);
        } else {
            check_bounds(written, own.bounds, &at.key(own.name), mistakes);
        }
    }
    for (own, written) in StageSpec::TEXTS.iter().zip(spec.texts()) {
        if written.is_some() && own.kind != spec.kind {
            not_its(spec, (own.name, own.kind), at, mistakes);
        }
    }
    if spec.kind == StageKind::Fault {
        check_fault(spec, at, mistakes);
    }
}

/// A field of another kind is written.
fn not_its(
    spec: &StageSpec,
    (name, kind): (&str, StageKind),
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) {
    let wrong = format!("a stage {:?} has no `{name}`", spec.kind.word());
    let right = format!("take `{name}` out: it is of a stage {:?}", kind.word());
    mistakes.push(Mistake::new(at.key(name), wrong, right));
}

/// That a fault says what is meant, and does something.
fn check_fault(spec: &StageSpec, at: &Path, mistakes: &mut Vec<Mistake>) {
    if let Some(ops) = spec.ops.as_deref().filter(|ops| ops_of(ops).is_none()) {
        let right =
            "write some of read, write, flush and discard, such as \"read+write\", or \"all\"";
        mistakes.push(Mistake::new(at.key("ops"), format!("{ops:?} names no requests"), right));
    }
    if let Some(range) = spec.range.as_deref().filter(|range| range_of(range).is_none()) {
        let right =
            "write the first byte and the one behind the last, such as \"1G..2G\", or \"all\"";
        mistakes.push(Mistake::new(at.key("range"), format!("{range:?} names no bytes"), right));
    }
    let does = ["delay_us", "jitter_us", "errors_per_million"];
    if does.iter().all(|name| number_of(spec, name) == 0) {
        let right = "give it `delay_us`, `jitter_us` or `errors_per_million`, or take it out";
        mistakes.push(Mistake::new(at.clone(), "this stage \"fault\" does nothing", right));
    }
}

#[cfg(test)]
mod tests;
