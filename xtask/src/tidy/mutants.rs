//! Each mutant of `tests/mutants` applies to the sources as they are, and its head names its rule, its test and what that
//! says when it fails: what is missing is found out by `--all` alone.
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
    patches.filter_map(|patch| headless(patch).or_else(|| stale(patch, sources))).collect()
}

/// What the head of a patch does not say.
fn headless(patch: &Source) -> Option<Finding> {
    let has = |words: &[&str]| {
        let mut lines = patch.text.lines().take_while(|line| line.starts_with("# "));
        lines.any(|line| words.iter().any(|word| line.starts_with(&format!("# {word}: "))))
    };
    let missing = [&["rule"] as &[&str], &["test", "unit"], &["says"]];
    let missing = missing.into_iter().find(|words| !has(words))?;
    let why =
        format!("its head has no line `# {}: ` (x.d/test/mutants.sh)", missing.join("` or `# "));
    Some(patch.finding(RULE, 1, why))
}

/// What is wrong with a patch: its first hunk that is nowhere in its source, however far it has moved.
fn stale(patch: &Source, sources: &[Source]) -> Option<Finding> {
    let mut target: Option<&Source> = None;
    let (mut hunks, mut left) = (0, 0);
    let mut wanted: Vec<&str> = Vec::new();
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
            && let Some(count) = old_lines(line)
        {
            (left, hunks) = (count, hunks + 1);
            wanted.clear();
        } else if left > 0 && !line.starts_with('+') {
            wanted.push(line.get(1..).unwrap_or_default());
            left -= 1;
            let source = target?;
            if left == 0 && !has(&source.text, &wanted) {
                let why =
                    format!("{} has no such lines any more: make the mutant anew", source.path);
                return wrong(why);
            }
        }
    }
    (hunks == 0).then(|| patch.finding(RULE, 1, "it changes nothing".to_owned()))
}

/// How many lines of the source a hunk names: `@@ -START,COUNT +.. @@`.
fn old_lines(line: &str) -> Option<usize> {
    let (old, _) = line.strip_prefix("@@ -")?.split_once(' ')?;
    old.split_once(',').map_or(Some(1), |(_, count)| count.parse().ok())
}

/// Whether these lines are there, one behind the other.
fn has(text: &str, wanted: &[&str]) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    lines.windows(wanted.len().max(1)).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# rule: a\n# unit: b\n# says: c\n";
    const PATCH: &str = "# rule: a\n# unit: b\n# says: c\n--- data/a.rs\n+++ data/a.rs\n@@ -2,2 +2,1 @@\n two\n-three\n";

    fn found(text: &str) -> Vec<String> {
        let sources = [Source::new("data/a.rs", text), Source::new("tests/mutants/m.patch", PATCH)];
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_mutant_of_the_sources_as_they_are_is_none() {
        assert!(found("one\ntwo\nthree\nfour\n").is_empty());
        assert!(found("none\none\ntwo\nthree\n").is_empty());
    }

    #[test]
    fn a_mutant_of_other_sources_is_told() {
        let why = "tests/mutants/m.patch:8: data/a.rs has no such lines any more: make the mutant anew \
                   [mutant]";
        assert_eq!(found("one\ntwo\nfour\n"), [why]);
        assert_eq!(found("one\ntwo\n"), [why]);
    }

    #[test]
    fn a_mutant_without_a_source_or_a_change_is_told() {
        let alone = [Source::new("tests/mutants/m.patch", PATCH)];
        assert_eq!(check(&alone).len(), 1);
        assert_eq!(check(&[Source::new("tests/mutants/m.patch", HEAD)]).len(), 1);
    }

    #[test]
    fn a_mutant_whose_head_is_not_whole_is_told() {
        for line in HEAD.lines() {
            let text = PATCH.replace(&format!("{line}\n"), "");
            let sources = [
                Source::new("data/a.rs", "two\nthree\n"),
                Source::new("tests/mutants/m.patch", &text),
            ];
            let found: Vec<String> = check(&sources).iter().map(ToString::to_string).collect();
            assert!(found.len() == 1 && found[0].contains("its head has no line"), "{found:?}");
        }
    }
}
