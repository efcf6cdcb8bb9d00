//! Each mutant of `tests/mutants` applies to the sources as they are: one that does not is found out by `--all` alone.
//!
//! Not whether a test catches it, which is `x.d/test/mutants.sh`'s.

use crate::tidy::Finding;
use crate::tidy::source::Source;

const RULE: &str = "mutant";
const FOLDER: &str = "tests/mutants/";

/// Finds patches of which a hunk is not where it says.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let patches = sources
        .iter()
        .filter(|source| source.path.starts_with(FOLDER) && source.path.ends_with(".patch"));
    patches.filter_map(|patch| stale(patch, sources)).collect()
}

/// The first line of a patch that is not as the source has it.
fn stale(patch: &Source, sources: &[Source]) -> Option<Finding> {
    let (mut target, mut at, mut left): (Option<&Source>, usize, usize) = (None, 0, 0);
    let mut hunks = 0;
    for (number, line) in (1..).zip(patch.text.lines()) {
        let wrong = |why: String| Some(patch.finding(RULE, number, why));
        if left == 0
            && let Some(path) = line.strip_prefix("--- ")
        {
            target = sources.iter().find(|source| source.path == path);
            if target.is_none() {
                return wrong(format!("there is no {path}: make the mutant anew"));
            }
        } else if left == 0
            && let Some((start, count)) = begins(line)
        {
            (at, left, hunks) = (start, count, hunks + 1);
        } else if left > 0 && !line.starts_with('+') {
            let text = line.get(1..).unwrap_or_default();
            let source = target?;
            if source.text.lines().nth(at - 1) != Some(text) {
                let why = format!("line {at} of {} is another: make the mutant anew", source.path);
                return wrong(why);
            }
            (at, left) = (at + 1, left - 1);
        }
    }
    (hunks == 0).then(|| patch.finding(RULE, 1, "it changes nothing".to_owned()))
}

/// Where a hunk begins in the source, and how many of its lines it names: `@@ -START,COUNT +.. @@`.
fn begins(line: &str) -> Option<(usize, usize)> {
    let (old, _) = line.strip_prefix("@@ -")?.split_once(' ')?;
    let (start, count) = old.split_once(',').unwrap_or((old, "1"));
    Some((start.parse().ok().filter(|start| *start > 0)?, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str = "# rule: a\n--- data/a.rs\n+++ data/a.rs\n@@ -2,2 +2,1 @@\n two\n-three\n";

    fn found(text: &str) -> Vec<String> {
        let sources = [Source::new("data/a.rs", text), Source::new("tests/mutants/m.patch", PATCH)];
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_mutant_of_the_sources_as_they_are_is_none() {
        assert!(found("one\ntwo\nthree\nfour\n").is_empty());
    }

    #[test]
    fn a_mutant_of_other_sources_is_told() {
        let why = "tests/mutants/m.patch:6: line 3 of data/a.rs is another: make the mutant anew \
                   [mutant]";
        assert_eq!(found("one\ntwo\nfour\n"), [why]);
        assert_eq!(found("one\ntwo\n"), [why]);
    }

    #[test]
    fn a_mutant_without_a_source_or_a_change_is_told() {
        let alone = [Source::new("tests/mutants/m.patch", PATCH)];
        assert_eq!(check(&alone).len(), 1);
        assert_eq!(check(&[Source::new("tests/mutants/m.patch", "# rule: a\n")]).len(), 1);
    }
}
