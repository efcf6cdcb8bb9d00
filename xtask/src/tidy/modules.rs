//! Files and modules: each file says what it is, belongs to a crate, and has a name that means
//! something.

use std::collections::{HashMap, HashSet};

use crate::tidy::Finding;
use crate::tidy::source::Source;

/// Names that say nothing of what is inside.
const EMPTY_NAMES: [&str; 8] =
    ["util", "utils", "common", "base", "helper", "helpers", "misc", "stuff"];

/// All rules about files as modules.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let rust: Vec<&Source> = sources.iter().filter(|source| source.is_rust()).collect();
    let mut findings = orphans(&rust);
    for source in rust {
        findings.extend(opening(source));
        findings.extend(name(source));
    }
    findings
}

/// A file opens with what it is.
fn opening(source: &Source) -> Option<Finding> {
    if source.text.starts_with("//! ") {
        return None;
    }
    let message = "the file does not open with `//!`: say what it is, what it is not, who calls it";
    Some(source.finding("opening", 1, message.to_owned()))
}

/// The folder of a crate, the file, and every folder below `src` have names that mean something.
fn name(source: &Source) -> Option<Finding> {
    let parts = source.path.split('/').map(|part| part.trim_end_matches(".rs"));
    let empty = parts.into_iter().find(|part| EMPTY_NAMES.contains(part))?;
    let message = format!("`{empty}` says nothing: name the file for the job it does");
    Some(source.finding("empty-name", 1, message))
}

/// Files that no crate compiles.
fn orphans(rust: &[&Source]) -> Vec<Finding> {
    let by_path: HashMap<&str, &Source> =
        rust.iter().map(|source| (source.path.as_str(), *source)).collect();
    let mut reached: HashSet<String> = HashSet::new();
    let mut waiting: Vec<String> =
        rust.iter().filter(|source| is_root(&source.path)).map(|s| s.path.clone()).collect();
    while let Some(path) = waiting.pop() {
        if !reached.insert(path.clone()) {
            continue;
        }
        if let Some(source) = by_path.get(path.as_str()) {
            waiting.extend(declared(source).into_iter().flat_map(|module| module.files));
        }
    }
    let lost = rust.iter().filter(|source| !reached.contains(&source.path));
    lost.map(|source| {
        let message = "no `mod` declares the file, so nothing compiles it: declare or delete it";
        source.finding("orphan", 1, message.to_owned())
    })
    .collect()
}

/// Whether cargo compiles the file without being told.
fn is_root(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let (file, folder) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let above = parts.next().unwrap_or("");
    match folder {
        "src" => file == "lib.rs" || file == "main.rs",
        "bin" => above == "src",
        // `x/tests/a.rs`, but not `x/src/a/tests/b.rs`.
        "tests" | "benches" | "examples" | "fuzz_targets" => !path.contains("/src/"),
        // `x/tests/group/main.rs`.
        _ if above == "tests" && file == "main.rs" => !path.contains("/src/"),
        _ => file == "build.rs",
    }
}

/// A `mod name;`.
struct Module {
    /// Where its file may be: exactly one of these exists, or rustc complains.
    files: [String; 2],
    unshipped: bool,
}

/// The modules that `source` declares in files of their own.
fn declared(source: &Source) -> Vec<Module> {
    let folder = module_folder(&source.path);
    let mut modules = Vec::new();
    // Names of the inline modules around the line, with the depth at which each ends.
    let mut around: Vec<(usize, String)> = Vec::new();
    let mut depth = 0;
    for (_, line) in source.code() {
        let words = line.code.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        let named =
            words.strip_prefix("mod ").map(|rest| rest.trim_end_matches([';', '{', ' ', '}']));
        if let Some(name) = named.filter(|_| words.ends_with(';')) {
            let inner: String = around.iter().map(|(_, name)| format!("{name}/")).collect();
            let files =
                [format!("{folder}{inner}{name}.rs"), format!("{folder}{inner}{name}/mod.rs")];
            modules.push(Module { files, unshipped: line.unshipped });
        } else if let Some(name) = named.filter(|_| words.ends_with('{')) {
            around.push((depth, name.to_owned()));
        }
        depth += line.code.matches('{').count();
        depth = depth.saturating_sub(line.code.matches('}').count());
        around.retain(|(outer, _)| *outer < depth);
    }
    modules
}

/// Files that `source` declares under `#[cfg(test)]`.
pub(crate) fn declared_for_tests(source: &Source) -> Vec<String> {
    let for_tests = |module: &Module| module.unshipped || source.is_test;
    declared(source).into_iter().filter(for_tests).flat_map(|module| module.files).collect()
}

/// Where the modules of a file are, ending in `/`.
fn module_folder(path: &str) -> String {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.trim_end_matches(".rs");
    let slash = if folder.is_empty() { "" } else { "/" };
    if matches!(stem, "lib" | "main" | "mod") || is_root(path) {
        format!("{folder}{slash}")
    } else {
        format!("{folder}{slash}{stem}/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path, text)).collect();
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_says_what_it_is() {
        assert_eq!(
            messages(&[("data/a/src/lib.rs", "// a\n")]),
            ["data/a/src/lib.rs:1: the file does not open with `//!`: say what it is, what it is \
              not, who calls it [opening]"]
        );
    }

    #[test]
    fn names_say_something() {
        assert_eq!(
            messages(&[("data/util/src/lib.rs", "//! a\n")]),
            ["data/util/src/lib.rs:1: `util` says nothing: name the file for the job it does \
              [empty-name]"]
        );
    }

    #[test]
    fn orphans_are_found_at_any_depth() {
        let files = [
            (
                "data/a/src/lib.rs",
                "//! a\npub mod b;\n#[cfg(test)]\nmod tests;\nmod d {\n mod e;\n}\n",
            ),
            ("data/a/src/b.rs", "//! b\npub(crate) mod c;\n// mod lost;\n"),
            ("data/a/src/b/c.rs", "//! c\n"),
            ("data/a/src/d/e.rs", "//! e\n"),
            ("data/a/src/tests.rs", "//! t\n"),
            ("data/a/src/b/lost.rs", "//! l\n"),
            ("data/a/tests/whole.rs", "//! w\n"),
            ("data/a/tests/group/main.rs", "//! g\nmod part;\n"),
            ("data/a/tests/group/part.rs", "//! p\n"),
            ("data/a/tests/group/other.rs", "//! o\n"),
        ];
        assert_eq!(
            messages(&files),
            [
                "data/a/src/b/lost.rs:1: no `mod` declares the file, so nothing compiles it: declare \
              or delete it [orphan]",
                "data/a/tests/group/other.rs:1: no `mod` declares the file, so nothing compiles it: \
              declare or delete it [orphan]"
            ]
        );
    }

    #[test]
    fn modules_for_tests_are_known() {
        let source = Source::new("a/src/lib.rs", "#[cfg(test)]\nmod proof;\nmod real;\n");
        assert_eq!(declared_for_tests(&source), ["a/src/proof.rs", "a/src/proof/mod.rs"]);
    }
}
