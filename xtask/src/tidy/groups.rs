//! Each test of the daemon runs, and alone: a module of `tests/tests` is named by a group of `./x test`, and
//! its name chooses it and no other.
//!
//! Not whether the group runs by default. A module that no group names is compiled, and never run.

use crate::tidy::Finding;
use crate::tidy::source::Source;

const RULE: &str = "unrun";

/// The table of groups.
const TABLE: &str = "tests/src/suite/cases/";

/// Finds modules of `tests/tests` that no group's table names, or that are run when another is asked for.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let groups: Vec<&str> = sources
        .iter()
        .filter(|source| source.path.starts_with(TABLE))
        .map(|source| source.text.as_str())
        .collect();
    let is_named = |name: &str| groups.iter().any(|text| text.contains(&format!("\"{name}\"")));
    let modules: Vec<(&Source, &str, &str)> = sources.iter().filter_map(module).collect();
    let unrun = modules.iter().filter(|(_, _, name)| !is_named(name)).map(|(source, _, name)| {
        let message = format!("no group in {TABLE} names {name:?}: nobody runs it");
        source.finding(RULE, 1, message)
    });
    let chosen = modules.iter().filter_map(|(source, group, name)| {
        // `moves::` chooses what has that in its name: what `nic_moves::` has too.
        let (_, _, other) = modules
            .iter()
            .find(|(_, of, other)| of == group && other != name && name.ends_with(other))?;
        let message =
            format!("{name} is run with {other}, whose name it ends in: name it otherwise");
        Some(source.finding(RULE, 1, message))
    });
    unrun.chain(chosen).collect()
}

/// A module of a group, which has a process of its own: its file, the group, its name.
fn module(source: &Source) -> Option<(&Source, &str, &str)> {
    let (group, name) = source.path.strip_prefix("tests/tests/")?.split_once('/')?;
    let name = name.strip_suffix(".rs")?;
    (name != "main" && !name.contains('/')).then_some((source, group, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_no_group_names_is_found() {
        let sources = [
            Source::new("tests/tests/frontend/main.rs", "//! a"),
            Source::new("tests/tests/frontend/idle.rs", "//! a"),
            Source::new("tests/tests/frontend/idl.rs", "//! b"),
            Source::new("tests/tests/frontend/idle/part.rs", "//! c"),
            Source::new("tests/src/suite/cases/frontend.rs", "raw(\"front_end\") raw(\"idle\")"),
        ];
        let found: Vec<String> = check(&sources).iter().map(ToString::to_string).collect();
        let wanted = "no group in tests/src/suite/cases/ names \"idl\": nobody runs it";
        assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
    }

    #[test]
    fn a_module_that_is_run_with_another_is_found() {
        let sources = [
            Source::new("tests/tests/frontend/moves.rs", "//! a"),
            Source::new("tests/tests/frontend/nic_moves.rs", "//! b"),
            Source::new("tests/tests/frontend/moves_nic.rs", "//! c"),
            Source::new("tests/tests/recover/old_moves_nic.rs", "//! d"),
            Source::new(
                "tests/src/suite/cases/all.rs",
                r#""moves" "nic_moves" "moves_nic" "old_moves_nic""#,
            ),
        ];
        let found: Vec<String> = check(&sources).iter().map(ToString::to_string).collect();
        let wanted = "nic_moves is run with moves, whose name it ends in";
        assert!(found.len() == 1 && found[0].contains(wanted), "{found:?}");
    }
}
