//! Which crate may name which: rooms lie one above the other, and a page shows all that their crates name.

use std::collections::{BTreeMap, BTreeSet};

use toml::Table;

use crate::tidy::Finding;
use crate::tidy::manifests::{dependencies, line_of, name_of};
use crate::tidy::source::Source;

/// The rooms of what is shipped, the lowest first. A crate names crates of its own room and of those below.
/// Those for guests are apart: they name none of the daemon's, nor these them.
const LAYERS: [&str; 5] = [APART, "data/", "host/", "control/", "bin/"];
const APART: &str = "guest/";

/// The page, and what its line begins with that is before the crates and what they name.
const PAGE: &str = "ARCHITECTURE.md";
const BEFORE: &str = "Dependencies point one way";
/// What a crate names that names no other.
const NOTHING: &str = "nothing";

/// A crate of a room.
struct Member<'a> {
    source: &'a Source,
    name: &'a str,
    layer: usize,
    /// All that it names, for its tests too.
    names: Vec<String>,
    /// Crates of rooms that it is made of.
    made_of: BTreeSet<String>,
}

pub(super) fn check(manifests: &[(&Source, Table)], sources: &[Source]) -> Vec<Finding> {
    let layer_of = |path: &str| LAYERS.iter().position(|layer| path.starts_with(layer));
    let layers: BTreeMap<&str, (usize, &str)> = manifests
        .iter()
        .filter_map(|(source, table)| {
            Some((name_of(table)?, (layer_of(&source.path)?, &*source.path)))
        })
        .collect();
    let mut members = Vec::new();
    for (source, table) in manifests {
        let (Some(name), Some(layer)) = (name_of(table), layer_of(&source.path)) else { continue };
        let made_of = table.get("dependencies").and_then(|of| of.as_table());
        let made_of = made_of.into_iter().flat_map(|of| of.keys());
        let made_of = made_of.filter(|of| layers.contains_key(of.as_str())).cloned().collect();
        members.push(Member { source, name, layer, names: dependencies(table), made_of });
    }
    let mut findings: Vec<Finding> =
        members.iter().flat_map(|member| upwards(member, &layers)).collect();
    findings.extend(
        sources
            .iter()
            .find(|source| source.path == PAGE)
            .into_iter()
            .flat_map(|page| on_the_page(page, &members)),
    );
    findings
}

/// What a crate names that lies above it, or apart.
fn upwards(member: &Member<'_>, layers: &BTreeMap<&str, (usize, &str)>) -> Vec<Finding> {
    let apart = |name: &String| {
        let (_, path) = layers.get(name.as_str()).filter(|(layer, _)| *layer != member.layer)?;
        let message = format!(
            "{} names `{name}` ({path}), which is for guests: nothing of the daemon is, nor it of the daemon",
            LAYERS[member.layer]
        );
        let is_apart = path.starts_with(APART);
        is_apart.then(|| {
            member.source.finding("direction", line_of(&member.source.text, name), message)
        })
    };
    let above = |name: &String| {
        let (_, path) = layers.get(name.as_str()).filter(|(layer, _)| *layer > member.layer)?;
        let message = format!(
            "{} names `{name}` ({path}), which lies above: move the shared type down, or pass what it \
             knows as an argument",
            LAYERS[member.layer]
        );
        Some(member.source.finding("direction", line_of(&member.source.text, name), message))
    };
    let names = member.names.iter();
    names.clone().filter_map(above).chain(names.filter_map(apart)).collect()
}

/// Whether the page says of each crate what it is made of, and nothing else.
fn on_the_page(page: &Source, members: &[Member<'_>]) -> Vec<Finding> {
    let lines = page.text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let mut block = lines.skip_while(|(_, line)| !line.starts_with(BEFORE));
    let start = block.next().map_or(1, |(at, _)| at);
    let block = block.skip_while(|(_, line)| !line.starts_with("```")).skip(1);
    let told: BTreeMap<&str, (usize, BTreeSet<String>)> = block
        .take_while(|(_, line)| !line.starts_with("```"))
        .filter_map(|(at, line)| {
            let (name, of) = line.split_once(':')?;
            let of = of.split_whitespace().filter(|of| *of != NOTHING).map(str::to_owned);
            Some((name.trim(), (at, of.collect())))
        })
        .collect();
    let mut findings = Vec::new();
    for member in members {
        let wanted = Vec::from_iter(member.made_of.iter().map(String::as_str)).join(" ");
        let wanted = if wanted.is_empty() { NOTHING } else { &wanted };
        let (line, is_told) = told
            .get(member.name)
            .map_or((start, false), |(line, of)| (*line, *of == member.made_of));
        if !is_told {
            let message = format!("`{}: {wanted}` is what its manifest says", member.name);
            findings.push(page.finding("graph", line, message));
        }
    }
    for (name, (line, _)) in told {
        if !members.iter().any(|member| member.name == name) {
            findings.push(page.finding(
                "graph",
                line,
                format!("there is no crate `{name}` in a room"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let manifests: Vec<(&Source, Table)> = sources
            .iter()
            .filter(|source| source.path.ends_with(".toml"))
            .map(|source| (source, source.text.parse().unwrap()))
            .collect();
        check(&manifests, &sources).iter().map(ToString::to_string).collect()
    }

    const CONFIG: (&str, &str) = ("control/config/Cargo.toml", "[package]\nname = \"config\"\n");

    #[test]
    fn no_room_names_one_above_it() {
        let text = "[package]\nname = \"a\"\n[dev-dependencies]\nconfig = { workspace = true }\n";
        let why = "(control/config/Cargo.toml), which lies above: move the shared type down, or pass what it \
                   knows as an argument [direction]";
        for room in ["data", "host"] {
            let path = format!("{room}/a/Cargo.toml");
            let wanted = format!("{path}:4: {room}/ names `config` {why}");
            assert_eq!(found(&[CONFIG, (&path, text)]), [wanted]);
        }
        for room in ["control", "bin", "tests"] {
            assert_eq!(found(&[CONFIG, (&format!("{room}/a/Cargo.toml"), text)]), [""; 0]);
        }
    }

    #[test]
    fn what_is_for_guests_is_apart() {
        let tuning = ("guest/tuning/Cargo.toml", "[package]\nname = \"tuning\"\n");
        let names = |name: &str| {
            format!("[package]\nname = \"a\"\n[dependencies]\n{name} = {{ workspace = true }}\n")
        };
        let of = |path: &str, name: &str| {
            let found = found(&[CONFIG, tuning, (path, &names(name))]);
            found.iter().filter(|it| it.contains("[direction]")).count()
        };
        assert_eq!(of("guest/tune/Cargo.toml", "tuning"), 0);
        assert_eq!(of("guest/tune/Cargo.toml", "config"), 1);
        assert_eq!(of("bin/a/Cargo.toml", "tuning"), 1);
    }

    #[test]
    fn the_page_says_what_each_crate_is_made_of() {
        let text = "[package]\nname = \"a\"\n[dependencies]\nconfig = { workspace = true }\nserde = \"1\"\n";
        let page = |lines: &str| {
            format!("# A\n\nDependencies point one way.\n\n```\n{lines}\n```\n\nb: c\n")
        };
        let with = |lines: &str| found(&[CONFIG, ("bin/a/Cargo.toml", text), (PAGE, &page(lines))]);
        assert_eq!(with("config: nothing\na:      config"), [""; 0]);
        assert_eq!(
            with("config: nothing\na: nothing\nb: config"),
            [
                "ARCHITECTURE.md:7: `a: config` is what its manifest says [graph]",
                "ARCHITECTURE.md:8: there is no crate `b` in a room [graph]",
            ]
        );
        assert_eq!(
            with("a: config"),
            ["ARCHITECTURE.md:3: `config: nothing` is what its manifest says [graph]"]
        );
    }
}
