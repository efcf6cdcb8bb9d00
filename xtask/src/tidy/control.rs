//! Control's inner order: who reads the clock, circles of imports, types that are spread over files, and counts that
//! may only fall (decision 0025).
//!
//! Not here: the graph of crates (`layers`), and what must name no operating system (`pure`).

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::Finding;
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
        let circle = largest_circle(sources, folder);
        let message = format!(
            "{} files import each other in a circle, at most {CIRCLE_MAX}: {}",
            circle.len(),
            circle.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
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

fn largest_circle(sources: &[&Source], folder: &str) -> BTreeSet<String> {
    let ours = sources.iter().filter(|source| source.path.starts_with(folder));
    let modules: BTreeMap<String, &Source> =
        ours.map(|source| (module_of(&source.path, folder), *source)).collect();
    let imports: BTreeMap<&str, BTreeSet<&str>> = modules
        .iter()
        .map(|(name, source)| (name.as_str(), imports_of(name, source, &modules)))
        .collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|name| (*name, reach(name, &imports))).collect();
    let circle = |name: &&str| -> BTreeSet<String> {
        let to = reached[*name].iter();
        let both = to.filter(|other| reached[**other].contains(*name));
        both.map(|other| (*other).to_owned()).collect()
    };
    reached.keys().map(circle).max_by_key(BTreeSet::len).unwrap_or_default()
}

/// `remote::shards` of `control/manager/src/remote/shards.rs`; nothing of the root.
fn module_of(path: &str, folder: &str) -> String {
    let inner = path.trim_start_matches(folder).trim_end_matches(".rs");
    if inner == "lib" { String::new() } else { inner.replace('/', "::") }
}

fn reach<'a>(from: &'a str, imports: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut reached, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(next) = waiting.pop() {
        let new = imports[next].iter().filter(|other| reached.insert(**other));
        waiting.extend(new.copied().collect::<Vec<_>>());
    }
    reached
}

/// The modules that a file names by `crate::` or `super::`, in groups too. Its children, which it names by their own
/// names, are parts of it.
fn imports_of<'a>(
    name: &str,
    source: &Source,
    modules: &'a BTreeMap<String, &Source>,
) -> BTreeSet<&'a str> {
    let lines: Vec<&str> = source.shipped().map(|(_, code)| code).collect();
    let text = lines.join("\n");
    let mut paths = Vec::new();
    for (at, _) in text.match_indices("::") {
        let first = text[..at].rsplit(|c: char| !is_of_name(c)).next().unwrap_or_default();
        let is_first = !text[..at - first.len()].ends_with("::");
        let base = match first {
            "crate" => "",
            "super" => parent(name),
            _ => continue,
        };
        if is_first {
            tree(&text[at + 2..], base, &mut paths);
        }
    }
    let found = paths.iter().filter_map(|path| module_named(path, modules));
    found.filter(|other| *other != name).collect()
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn parent(name: &str) -> &str {
    name.rsplit_once("::").map_or("", |(above, _)| above)
}

fn joined(above: &str, name: &str) -> String {
    if above.is_empty() { name.to_owned() } else { format!("{above}::{name}") }
}

/// Adds the paths of a use tree, `a::{b, c::d}`, below `base`; what follows it.
fn tree<'t>(text: &'t str, base: &str, paths: &mut Vec<String>) -> &'t str {
    let text = text.trim_start();
    if let Some(mut group) = text.strip_prefix('{') {
        loop {
            group = tree(group, base, paths).trim_start();
            match group.strip_prefix(',') {
                Some(more) => group = more,
                None => return group.strip_prefix('}').unwrap_or(group),
            }
        }
    }
    let (name, rest) = text.split_at(text.find(|c| !is_of_name(c)).unwrap_or(text.len()));
    let path = if name == "super" { parent(base).to_owned() } else { joined(base, name) };
    if let Some(more) = rest.strip_prefix("::") {
        return tree(more, &path, paths);
    }
    paths.push(path);
    rest.trim_start().strip_prefix("as ").map_or(rest, |other| other.trim_start_matches(is_of_name))
}

/// The longest module that begins a path.
fn module_named<'a>(path: &str, modules: &'a BTreeMap<String, &Source>) -> Option<&'a str> {
    let mut path = path.trim_end_matches(':');
    while !path.is_empty() {
        if let Some((name, _)) = modules.get_key_value(path) {
            return Some(name);
        }
        path = path.rsplit_once("::").map_or("", |(above, _)| above);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_imports_too() {
        let files = [
            ("a.rs", "use super::{b::C, d as e};\nmod f;\nfn g() { f::h(); }\n"),
            ("b.rs", "use crate::{\n    a::X,\n    d::{Y, Z},\n};\n"),
            ("d.rs", ""),
            ("a/f.rs", "use super::super::d;\nuse super::g;\n"),
        ]
        .map(|(file, text)| source(file, text));
        let modules: BTreeMap<String, &Source> =
            ["a", "b", "d", "a::f"].map(str::to_owned).into_iter().zip(&files).collect();
        for (at, (name, imported)) in
            [("a", vec!["b", "d"]), ("b", vec!["a", "d"]), ("d", vec![]), ("a::f", vec!["a", "d"])]
                .into_iter()
                .enumerate()
        {
            let found = imports_of(name, &files[at], &modules);
            assert_eq!(found.into_iter().collect::<Vec<_>>(), imported, "{name}");
        }
    }

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
    fn circles_are_found_by_way_of_others() {
        let files = [
            source("a.rs", "use crate::b::B;\n"),
            source("b.rs", "fn f() -> crate::c::d::D {}\n"),
            source("c/d.rs", "use super::e::E;\n"),
            source("c/e.rs", "use crate::a;\n"),
            source("f.rs", "use crate::a;\n"),
            source("c.rs", "mod d;\nmod e;\n"),
        ];
        let all: Vec<&Source> = files.iter().collect();
        let circle = largest_circle(&all, MANAGER);
        assert_eq!(circle.into_iter().collect::<Vec<_>>(), ["a", "b", "c::d", "c::e"]);
        assert_eq!(circles(&all).len(), 1);
        assert!(largest_circle(&all[1..], MANAGER).is_empty());
        assert!(circles(&all[1..]).is_empty());
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
