//! What may be in the daemon, and why each dependency is there. Which crate may name which is `layers`.

use std::collections::HashSet;

use anyhow::Context;
use toml::Table;

use crate::tidy::source::Source;
use crate::tidy::{Finding, layers};

/// Rooms whose crates are in the daemon, and features that must not be: what they add is a test's.
const SHIPPED: [&str; 5] = ["data/", "control/", "host/", "bin/", "guest/"];
const UNSHIPPED: [&str; 4] = ["simulated", "model", "rogue", "fuzzed"];

/// What is compiled with a shipped crate, so that benches and the daemon have one build of it, and that only tests and
/// benches use: the linker leaves it out of the daemon.
const UNUSED: [&str; 2] = ["virtqueue::driver", "Tracker::start_empty"];

/// Where the versions are, and where the reasons.
const VERSIONS: &str = "Cargo.toml";
const REASONS: &str = "docs/decisions/0002-dependencies.md";

/// The tables that a manifest names dependencies in.
const TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

pub(crate) fn check(sources: &[Source]) -> anyhow::Result<Vec<Finding>> {
    let mut manifests = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with("/Cargo.toml")) {
        let table: Table = source.text.parse().with_context(|| source.path.clone())?;
        manifests.push((source, table));
    }
    let mut findings = layers::check(&manifests, sources);
    let shipped = shipped(&manifests);
    for (source, table) in manifests.iter().filter(|(source, _)| shipped.contains(&source.path)) {
        findings.extend(unshipped(source, table));
    }
    findings.extend(sources.iter().flat_map(names_unused));
    let used: HashSet<String> =
        manifests.iter().flat_map(|(_, table)| dependencies(table)).collect();
    findings.extend(reasons(sources, &used)?);
    Ok(findings)
}

/// The manifests of all crates that are in the daemon: those of its rooms, and whatever these depend on.
fn shipped(manifests: &[(&Source, Table)]) -> HashSet<String> {
    let is_of_room = |path: &str| SHIPPED.iter().any(|room| path.starts_with(room));
    let mut found: HashSet<String> = HashSet::new();
    let mut next: Vec<&(&Source, Table)> =
        manifests.iter().filter(|(source, _)| is_of_room(&source.path)).collect();
    while let Some((source, table)) = next.pop() {
        if found.insert(source.path.clone()) {
            let used = table.get("dependencies").and_then(|used| used.as_table());
            let used: HashSet<&String> = used.into_iter().flat_map(|used| used.keys()).collect();
            let is_used =
                |table: &Table| name_of(table).is_some_and(|name| used.contains(&name.to_owned()));
            next.extend(manifests.iter().filter(|(_, table)| is_used(table)));
        }
    }
    found
}

/// A shipped crate asks for a feature that is not to be shipped: for itself, or by default. Its tests may.
fn unshipped(source: &Source, manifest: &Table) -> Option<Finding> {
    let listed = |value: &toml::Value, key: &str| -> Vec<String> {
        let list = value.get(key).and_then(|list| list.as_array());
        list.into_iter().flatten().filter_map(|one| one.as_str()).map(str::to_owned).collect()
    };
    let tables = ["dependencies", "build-dependencies"].map(|name| manifest.get(name));
    let asked = tables.into_iter().flatten().filter_map(|table| table.as_table());
    let mut asked: Vec<String> =
        asked.flat_map(|table| table.values()).flat_map(|one| listed(one, "features")).collect();
    let features = manifest.get("features");
    asked.extend(features.into_iter().flat_map(|features| listed(features, "default")));
    let feature = asked.iter().find(|one| UNSHIPPED.contains(&one.as_str()))?;
    let message = format!(
        "a shipped crate asks for the feature `{feature}`, which is for tests and simulations: ask \
         for it in [dev-dependencies]"
    );
    let quoted = format!("\"{feature}\"");
    let line = source.text.lines().position(|line| line.contains(&quoted)).map_or(1, |at| at + 1);
    Some(source.finding("unshipped", line, message))
}

/// Shipped code that names one of [`UNUSED`].
fn names_unused(source: &Source) -> Vec<Finding> {
    if !SHIPPED.iter().any(|room| source.path.starts_with(room)) {
        return Vec::new();
    }
    let named = |line: &str| UNUSED.iter().find(|name| line.contains(*name));
    let found = source.shipped().filter_map(|(number, line)| Some((number, named(line)?)));
    let finding = |(number, name): (usize, &&str)| {
        let message = format!("a shipped crate uses `{name}`, which is for tests and benches");
        source.finding("unshipped", number, message)
    };
    found.map(finding).collect()
}

/// Each version in the root manifest is used by a crate and has its reason on the page.
fn reasons(sources: &[Source], used: &HashSet<String>) -> anyhow::Result<Vec<Finding>> {
    let Some(versions) = sources.iter().find(|source| source.path == VERSIONS) else {
        return Ok(Vec::new());
    };
    let page = sources.iter().find(|source| source.path == REASONS).map_or("", |s| &s.text);
    let table: Table = versions.text.parse().context(VERSIONS)?;
    let listed = table.get("workspace").and_then(|w| w.get("dependencies")?.as_table());
    let mut findings = Vec::new();
    for (name, value) in listed.into_iter().flatten() {
        let line = line_of(&versions.text, name);
        if !used.contains(name) {
            let message = format!("no crate uses `{name}`: take the line out");
            findings.push(versions.finding("dependency", line, message));
        }
        let ours = value.get("path").is_some();
        if !ours && !page.contains(&format!("| `{name}` |")) {
            let message = format!("`{name}` has no row in {REASONS}: say there why it is needed");
            findings.push(versions.finding("dependency", line, message));
        }
    }
    Ok(findings)
}

/// The name of a manifest's package.
pub(super) fn name_of(manifest: &Table) -> Option<&str> {
    manifest.get("package")?.get("name")?.as_str()
}

/// Packages that a manifest names, by their package's name.
pub(super) fn dependencies(manifest: &Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(|targets| targets.as_table());
    let per_target = targets.into_iter().flat_map(|t| t.values()).filter_map(|t| t.as_table());
    std::iter::once(manifest)
        .chain(per_target)
        .flat_map(|table| TABLES.iter().filter_map(|name| table.get(*name)?.as_table()))
        .flatten()
        .map(|(name, value)| {
            let package = value.get("package").and_then(|package| package.as_str());
            package.unwrap_or(name).to_owned()
        })
        .collect()
}

/// The first line that names a dependency, from 1.
pub(super) fn line_of(manifest: &str, name: &str) -> usize {
    let starts = |line: &str| {
        let rest = line.trim_start().strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with([' ', '.', '=']))
    };
    manifest.lines().position(starts).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_simulations_is_not_shipped() -> anyhow::Result<()> {
        let text = "[package]\nname = \"a\"\n[features]\nsimulated = [\"backend/simulated\"]\n\
                    [dependencies]\nbackend = { workspace = true, features = [\"simulated\"] }\n";
        let tested = text.replace("[dependencies]", "[dev-dependencies]");
        let sources = [
            Source::new("bin/a/Cargo.toml", text),
            Source::new("sim/lives/Cargo.toml", text),
            Source::new("data/b/Cargo.toml", &tested),
        ];
        let found: Vec<String> = check(&sources)?.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["bin/a/Cargo.toml:6: a shipped crate asks for the feature `simulated`, which is for \
              tests and simulations: ask for it in [dev-dependencies] [unshipped]"]
        );
        Ok(())
    }

    #[test]
    fn what_is_for_benches_is_not_used_by_the_daemon() {
        let text = "use virtqueue::driver::Driver;\n#[cfg(test)]\nmod tests {\n    use virtqueue::driver;\n}\n";
        let found = |path: &str| names_unused(&Source::new(path, text));
        let said: Vec<String> =
            found("data/a/src/lib.rs").iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "data/a/src/lib.rs:1: a shipped crate uses `virtqueue::driver`, which is for tests and \
              benches [unshipped]"
            ]
        );
        assert!(found("bench/src/a.rs").is_empty() && found("data/a/src/tests/b.rs").is_empty());
    }

    #[test]
    fn each_dependency_is_used_and_has_a_reason() -> anyhow::Result<()> {
        let versions =
            "[workspace.dependencies]\nours = { path = \"o\" }\nserde = \"1\"\nlibc = \"0\"\n";
        let member = "[package]\nname = \"ours\"\n[dependencies]\nserde.workspace = true\n\
                      ours = { path = \".\" }\n";
        let sources = [
            Source::new(VERSIONS, versions),
            Source::new(REASONS, "| `libc` | constants |\n"),
            Source::new("data/ours/Cargo.toml", member),
        ];
        let found: Vec<String> = check(&sources)?.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "Cargo.toml:4: no crate uses `libc`: take the line out [dependency]",
                "Cargo.toml:3: `serde` has no row in docs/decisions/0002-dependencies.md: say there \
                 why it is needed [dependency]",
            ]
        );
        Ok(())
    }
}
