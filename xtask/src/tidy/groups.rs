//! Each test of the daemon runs: a file of `tests/tests` is named by a group of `./x test`.
//!
//! Not whether the group runs by default. A file that no group names is compiled, and never run.

use crate::tidy::Finding;
use crate::tidy::source::Source;

const RULE: &str = "unrun";

/// Finds files of `tests/tests` that no file of `x.d/test` names.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let groups: Vec<&str> = sources
        .iter()
        .filter(|source| source.path.starts_with("x.d/test/"))
        .map(|source| source.text.as_str())
        .collect();
    let is_named = |name: &str| {
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        groups.iter().any(|text| text.split(|letter| !is_part(letter)).any(|word| word == name))
    };
    let tests = sources.iter().filter_map(|source| {
        let name = source.path.strip_prefix("tests/tests/")?.strip_suffix(".rs")?;
        (!name.contains('/')).then_some((source, name))
    });
    tests
        .filter(|(_, name)| !is_named(name))
        .map(|(source, name)| {
            let message = format!("no group of x.d/test names {name}: nobody runs it");
            source.finding(RULE, 1, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_no_group_names_is_found() {
        let sources = [
            Source::new("tests/tests/idle.rs", "//! a"),
            Source::new("tests/tests/idl.rs", "//! b"),
            Source::new("tests/tests/deep/part.rs", "//! c"),
            Source::new("x.d/test/frontend.sh", "CASES=(front_end idle)"),
        ];
        let found: Vec<String> = check(&sources).iter().map(ToString::to_string).collect();
        let wanted = "no group of x.d/test names idl: nobody runs it";
        assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
    }
}
