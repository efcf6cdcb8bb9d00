//! Control's inner order: who reads the clock, circles of imports, types that are spread over files, and counts that
//! may only fall (decision 0025).
//!
//! Not here: the graph of crates (`layers`), and what must name no operating system (`pure`).

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::Finding;
use crate::tidy::imports::Imports;
use crate::tidy::source::Source;

const MANAGER: &str = "control/manager/src/";
/// The shell's files that read the clock. All else goes by the time of its turn, or is told the time.
const CLOCK_READERS: [&str; 7] = [
    "control/manager/src/api/http.rs",
    "control/manager/src/begin.rs",
    "control/manager/src/clock.rs",
    "control/manager/src/opening/openers.rs",
    "control/manager/src/remote/greeter.rs",
    "control/manager/src/turn.rs",
    "control/manager/src/upgrade/channel.rs",
];
/// Most files that import each other in a circle.
const CIRCLE_MAX: usize = 3;
/// Most files with an `impl` of one type.
const IMPL_FILES_MAX: usize = 4;
/// What is counted, and how much there may be of it. Whoever gets it lower writes the new number here.
const CEILINGS: [(&str, Count, usize); 2] = [
    ("look-ups in control/manager that end in `else { return }`", silent_returns, 34),
    ("`Result<_, String>` in control", texts_as_errors, 0),
];

type Count = fn(&[&Source]) -> usize;

/// All rules about control.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let control: Vec<&Source> =
        sources.iter().filter(|it| it.is_rust() && it.is_in(&["control"]) && !it.is_test).collect();
    if control.is_empty() {
        return Vec::new();
    }
    let mut findings: Vec<Finding> = control.iter().filter_map(|source| clock(source)).collect();
    findings.extend(circles(&control));
    findings.extend(spread_types(&control));
    for (what, count, ceiling) in CEILINGS {
        findings.extend(above(what, count(&control), ceiling));
    }
    findings
}

fn clock(source: &Source) -> Option<Finding> {
    let reads = |(_, line): &(usize, &str)| {
        let names = ["clock::now", "clock::{now", ", now}", "Instant::now", "SystemTime::now"];
        names.iter().any(|name| line.contains(name)) && !line.contains("(now,")
    };
    let may_read = CLOCK_READERS.contains(&source.path.as_str());
    match source.shipped().find(reads) {
        Some((line, _)) if !may_read => {
            let message =
                "the clock is the shell's to read: go by `Turn::now`, or be told the time";
            Some(source.finding("clock", line, message.to_owned()))
        }
        None if may_read => {
            let message = "it does not read the clock any more: take it from `CLOCK_READERS`";
            Some(source.finding("clock", 1, message.to_owned()))
        }
        _ => None,
    }
}

fn above(what: &str, count: usize, ceiling: usize) -> Option<Finding> {
    let message = match count.cmp(&ceiling) {
        std::cmp::Ordering::Equal => return None,
        std::cmp::Ordering::Greater => {
            format!("{count} {what}: {ceiling} is the most there may be")
        }
        std::cmp::Ordering::Less => {
            format!("{count} {what}, fewer than before: write it down instead of {ceiling}")
        }
    };
    let path = "xtask/src/tidy/control.rs".to_owned();
    Some(Finding { path, line: 1, rule: "ceiling", message })
}

fn matching(sources: &[&Source], folder: &str, pattern: impl Fn(&str) -> bool) -> Vec<String> {
    let in_folder = sources.iter().filter(|source| source.path.starts_with(folder));
    let lines = in_folder.flat_map(|source| source.shipped().map(move |(_, code)| (source, code)));
    lines.filter(|(_, code)| pattern(code)).map(|(source, _)| source.path.clone()).collect()
}

fn silent_returns(sources: &[&Source]) -> usize {
    matching(sources, MANAGER, |code| code.contains("else { return };")).len()
}

fn texts_as_errors(sources: &[&Source]) -> usize {
    matching(sources, "control/", |code| code.contains("Result<") && code.contains(", String>"))
        .len()
}

/// The folder of a crate's sources, of a file in it.
fn crate_of(path: &str) -> Option<&str> {
    path.find("/src/").map(|at| &path[..at + "/src/".len()])
}

/// Types with an `impl`, of their own or of a trait, in too many files of a crate.
fn spread_types(sources: &[&Source]) -> Vec<Finding> {
    let mut files: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        let Some(folder) = crate_of(&source.path) else { continue };
        for name in source.shipped().filter_map(|(_, code)| implemented(code)) {
            files.entry((folder, name)).or_default().insert(&source.path);
        }
    }
    let spread = files.into_iter().filter(|(_, files)| files.len() > IMPL_FILES_MAX);
    let finding = |((_, name), files): ((&str, String), BTreeSet<&str>)| Finding {
        path: files.first().copied().unwrap_or_default().to_owned(),
        line: 1,
        rule: "spread",
        message: format!(
            "{} files have an `impl` of `{name}`, at most {IMPL_FILES_MAX}: it is several types",
            files.len()
        ),
    };
    spread.map(finding).collect()
}

/// The type whose own `impl` begins in this line; of those of a trait, what they are for says little.
fn implemented(code: &str) -> Option<String> {
    let rest = code.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(rest) => rest.split_once("> ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    if rest.contains(" for ") {
        return None;
    }
    let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// Files of a crate that each import all others, by way of others or not, where they are too many.
fn circles(sources: &[&Source]) -> Vec<Finding> {
    let folders: BTreeSet<&str> =
        sources.iter().filter_map(|source| crate_of(&source.path)).collect();
    let found = folders.into_iter().filter_map(|folder| {
        let imports = Imports::of(sources, folder);
        let circle = imports.largest_circle();
        let message = format!(
            "{} files import each other in a circle, at most {CIRCLE_MAX}: {}",
            circle.len(),
            circle.iter().copied().collect::<Vec<_>>().join(", ")
        );
        let is_large = circle.len() > CIRCLE_MAX;
        is_large.then(|| Finding {
            path: format!("{folder}lib.rs"),
            line: 1,
            rule: "circle",
            message,
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: &str, text: &str) -> Source {
        Source::new(&format!("{MANAGER}{file}"), text)
    }

    #[test]
    fn the_clock_is_read_in_the_shell_alone() {
        let reads = "use crate::clock::now;\n";
        assert!(clock(&source("moves.rs", reads)).is_some());
        assert!(clock(&source("opening/openers.rs", reads)).is_none());
        assert!(clock(&source("moves.rs", "use crate::clock::machine_ns;\n")).is_none());
        assert!(
            clock(&source("a.rs", "#[cfg(test)]\nmod tests {\n use crate::clock::now;\n}\n"))
                .is_none()
        );
    }

    #[test]
    fn three_files_may_be_a_circle_and_no_more() {
        let file = |at: usize, next: usize| {
            source(&format!("m{at}.rs"), &format!("use crate::m{next}::M;\n"))
        };
        let circle_of = |count: usize| {
            let files: Vec<Source> = (0..count).map(|at| file(at, (at + 1) % count)).collect();
            circles(&files.iter().collect::<Vec<_>>()).len()
        };
        assert_eq!((circle_of(3), circle_of(4)), (0, 1));
    }

    #[test]
    fn a_count_may_only_fall() {
        assert_eq!(above("x", 3, 3), None);
        assert!(above("x", 4, 3).is_some());
        assert!(above("x", 2, 3).is_some());
    }

    #[test]
    fn counts_are_of_what_ships() {
        let text = "impl Manager {\nlet Some(a) = b else { return };\nfn f() -> Result<u8, String> {}\n}\n\
                    #[cfg(test)]\nmod tests {\nlet Some(a) = b else { return };\n}\n";
        let file = source("a.rs", text);
        assert_eq!((silent_returns(&[&file]), texts_as_errors(&[&file])), (1, 1));
    }

    #[test]
    fn a_type_is_in_four_files_at_most() {
        let texts =
            ["impl A {\n}\n", "impl<'a> A<'a> {\n}\n", "impl<T: B> A {\n}\n", "impl A {\n}\n"];
        let mut files: Vec<Source> =
            texts.iter().enumerate().map(|(at, text)| source(&format!("{at}.rs"), text)).collect();
        files.push(source("4.rs", "impl Drop for A {\n}\nimpl B {\n}\n"));
        let all = |files: &[Source]| spread_types(&files.iter().collect::<Vec<_>>()).len();
        assert_eq!(all(&files), 0);
        files.push(source("5.rs", "impl A {\n}\n"));
        assert_eq!(all(&files), 1);
    }
}
