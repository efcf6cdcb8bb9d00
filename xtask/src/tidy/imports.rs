//! Which file of a crate imports which: a name is followed through re-exports to the file that has it.
//!
//! That a file re-exports what its children have is no import. Whether there may be circles is `control`'s to say.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::source::Source;

/// Re-exports of re-exports that are followed.
const DEPTH_MAX: usize = 8;

/// The files of a crate, by their modules, and what each imports.
pub(crate) struct Imports(BTreeMap<String, BTreeSet<String>>);

/// A path that a file names.
struct Named {
    /// From the crate's root, with `::`.
    path: String,
    /// What it is called in that file, where `use` names it.
    alias: Option<String>,
    is_exported: bool,
}

impl Imports {
    /// Of the files below a folder, the crate's `src/`.
    pub(crate) fn of(sources: &[&Source], folder: &str) -> Imports {
        let ours = sources.iter().filter(|source| source.path.starts_with(folder));
        let texts: BTreeMap<String, String> =
            ours.map(|source| (module_of(&source.path, folder), text_of(source))).collect();
        let modules: BTreeSet<&str> = texts.keys().map(String::as_str).collect();
        let named: BTreeMap<&str, Vec<Named>> = texts
            .iter()
            .map(|(name, text)| (name.as_str(), named_in(name, text, &modules)))
            .collect();
        let crate_ = Crate { modules: &modules, named: &named };
        let imports = |(name, paths): (&&str, &Vec<Named>)| {
            let uses = paths.iter().filter(|path| !path.is_exported);
            let found = uses.filter_map(|path| crate_.home_of(&path.path, DEPTH_MAX));
            let others = found.filter(|other| other != name);
            ((*name).to_owned(), others.map(str::to_owned).collect())
        };
        Imports(named.iter().map(imports).collect())
    }

    /// The most files that each import all others, by way of others or not.
    pub(crate) fn largest_circle(&self) -> BTreeSet<&str> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.0.keys().map(|name| (name.as_str(), self.reach(name))).collect();
        let circle = |name: &&str| -> BTreeSet<&str> {
            let to = reached[*name].iter();
            to.filter(|other| reached[**other].contains(*name)).copied().collect()
        };
        reached.keys().map(circle).max_by_key(BTreeSet::len).unwrap_or_default()
    }

    fn reach(&self, from: &str) -> BTreeSet<&str> {
        let (mut reached, mut waiting) = (BTreeSet::new(), vec![from]);
        while let Some(next) = waiting.pop() {
            let others = self.0.get(next).into_iter().flatten().map(String::as_str);
            waiting.extend(others.filter(|other| reached.insert(*other)).collect::<Vec<_>>());
        }
        reached
    }
}

struct Crate<'a> {
    modules: &'a BTreeSet<&'a str>,
    named: &'a BTreeMap<&'a str, Vec<Named>>,
}

impl<'a> Crate<'a> {
    /// The file that has what a path names.
    fn home_of(&self, path: &str, depth: usize) -> Option<&'a str> {
        let module = self.longest(path)?;
        let rest = path[module.len()..].trim_start_matches("::");
        let (first, more) = rest.split_once("::").unwrap_or((rest, ""));
        let is_it = |named: &&Named| named.alias.as_deref() == Some(first);
        match self.named[module].iter().find(is_it) {
            Some(named) if depth > 0 && named.path != path => {
                self.home_of(&joined(&named.path, more), depth - 1)
            }
            _ => Some(module),
        }
    }

    /// The longest module that begins a path; the root's name is empty.
    fn longest(&self, path: &str) -> Option<&'a str> {
        let mut path = path;
        loop {
            if let Some(name) = self.modules.get(path) {
                return Some(name);
            }
            path = path.rsplit_once("::").map_or("", |(above, _)| above);
            if path.is_empty() {
                return self.modules.get("").copied();
            }
        }
    }
}

/// `remote::shards` of `control/manager/src/remote/shards.rs`; nothing of the root.
fn module_of(path: &str, folder: &str) -> String {
    let inner = path.trim_start_matches(folder).trim_end_matches(".rs");
    if inner == "lib" { String::new() } else { inner.replace('/', "::") }
}

fn text_of(source: &Source) -> String {
    source.shipped().map(|(_, code)| code).collect::<Vec<_>>().join("\n")
}

/// The paths of a file within its crate: of its `use`s, and those that its code names in full.
fn named_in(name: &str, text: &str, modules: &BTreeSet<&str>) -> Vec<Named> {
    let base = |first: &str| match first {
        "crate" => Some(String::new()),
        "self" => Some(name.to_owned()),
        "super" => Some(parent(name).to_owned()),
        child => Some(joined(name, child)).filter(|path| modules.contains(path.as_str())),
    };
    let (mut named, mut code) = (Vec::new(), String::new());
    let mut rest = text;
    while let Some((before, is_exported, used, after)) = next_use(rest) {
        code += before;
        rest = after;
        let used = used.trim_start();
        let (first, more) = used.split_at(used.find(|c| !is_of_name(c)).unwrap_or(used.len()));
        let mut paths = Vec::new();
        if let (Some(base), Some(more)) = (base(first), more.strip_prefix("::")) {
            tree(more, &base, &mut paths);
        }
        named.extend(paths.into_iter().map(|(path, alias)| Named {
            path,
            alias: Some(alias),
            is_exported,
        }));
    }
    code += rest;
    for (at, _) in code.match_indices("::") {
        let first = code[..at].rsplit(|c: char| !is_of_name(c)).next().unwrap_or_default();
        let is_first = !code[..at - first.len()].ends_with("::");
        let mut paths = Vec::new();
        if let Some(base) = base(first).filter(|_| is_first) {
            tree(&code[at + 2..], &base, &mut paths);
        }
        let of_code = |(path, _)| Named { path, alias: None, is_exported: false };
        named.extend(paths.into_iter().map(of_code));
    }
    named
}

/// The next `use` of a text: what is before it, whether it exports, what it names, and what follows.
fn next_use(text: &str) -> Option<(&str, bool, &str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find("use ")?;
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let before = text[line..at].trim();
        let is_use = before.is_empty() || before.starts_with("pub") && !before.contains(' ');
        if let Some(end) = text[at..].find(';').filter(|_| is_use) {
            let used = &text[at + "use ".len()..at + end];
            return Some((&text[..line], !before.is_empty(), used, &text[at + end + 1..]));
        }
        from = at + 1;
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn parent(name: &str) -> &str {
    name.rsplit_once("::").map_or("", |(above, _)| above)
}

fn joined(above: &str, name: &str) -> String {
    match (above, name) {
        ("", _) => name.to_owned(),
        (_, "") => above.to_owned(),
        _ => format!("{above}::{name}"),
    }
}

/// Adds the paths of a use tree, `a::{b, c::d as e}`, below `base`, with what each is called; what follows it.
fn tree<'t>(text: &'t str, base: &str, paths: &mut Vec<(String, String)>) -> &'t str {
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
    let path = match name {
        "super" => parent(base).to_owned(),
        "self" => base.to_owned(),
        _ => joined(base, name),
    };
    if let Some(more) = rest.strip_prefix("::") {
        return tree(more, &path, paths);
    }
    let (alias, rest) = match rest.trim_start().strip_prefix("as ") {
        Some(other) => other.split_at(other.find(|c| !is_of_name(c)).unwrap_or(other.len())),
        None => (path.rsplit("::").next().unwrap_or_default(), rest),
    };
    let alias = alias.to_owned();
    if !name.is_empty() {
        paths.push((path, alias));
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "control/manager/src/";

    fn imports(files: &[(&str, &str)]) -> Imports {
        let files: Vec<Source> = files
            .iter()
            .map(|(file, text)| Source::new(&format!("{FOLDER}{file}"), text))
            .collect();
        Imports::of(&files.iter().collect::<Vec<_>>(), FOLDER)
    }

    #[test]
    fn groups_and_paths_in_the_code_are_imports() {
        let found = imports(&[
            ("a.rs", "mod f;\nuse super::{b::C, d as e};\nfn g() { f::h(); }\n"),
            ("b.rs", "use crate::{\n    a::X,\n    d::{self, Y, Z},\n};\nuse std::fmt;\n"),
            ("d.rs", "fn f(b: &crate::b::B) {}\n"),
            ("a/f.rs", "use super::super::d;\nuse super::g;\n"),
        ]);
        for (name, imported) in
            [("a", vec!["a::f", "b", "d"]), ("b", vec!["a", "d"]), ("d", vec!["b"])]
        {
            assert_eq!(found.0[name].iter().collect::<Vec<_>>(), imported, "{name}");
        }
        assert_eq!(found.0["a::f"].iter().collect::<Vec<_>>(), ["a", "d"]);
    }

    #[test]
    fn a_name_is_its_own_files_however_it_comes() {
        let found = imports(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::Deep as Known;\n"),
            ("a.rs", "mod deep;\npub(crate) use deep::Deep;\nuse crate::b::B;\npub struct A;\n"),
            ("a/deep.rs", "use super::B;\npub struct Deep;\n"),
            ("b.rs", "use crate::Known;\nuse crate::a::A;\n"),
        ]);
        assert_eq!(found.0["b"].iter().collect::<Vec<_>>(), ["a", "a::deep"]);
        // By way of what its parent imports, and not of that parent.
        assert_eq!(found.0["a::deep"].iter().collect::<Vec<_>>(), ["b"]);
        assert!(found.0[""].is_empty(), "to export is not to import");
    }

    #[test]
    fn circles_are_found_by_way_of_others() {
        let files = [
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "fn f() -> crate::c::d::D {}\n"),
            ("c/d.rs", "use super::E;\n"),
            ("c/e.rs", "use crate::a;\n"),
            ("f.rs", "use crate::a;\n"),
            ("c.rs", "mod d;\nmod e;\npub use e::E;\n"),
        ];
        let all = imports(&files);
        assert_eq!(
            all.largest_circle().into_iter().collect::<Vec<_>>(),
            ["a", "b", "c::d", "c::e"]
        );
        assert!(imports(&files[1..]).largest_circle().is_empty());
    }

    #[test]
    fn a_parent_and_its_child_are_a_circle_where_each_uses_the_other() {
        let all = imports(&[
            ("a.rs", "mod b;\nfn f() { b::g(); }\npub struct A;\n"),
            ("a/b.rs", "use super::A;\n"),
        ]);
        assert_eq!(all.largest_circle().len(), 2);
    }
}
