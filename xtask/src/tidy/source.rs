//! The repository's files, and what kind of code each is.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::tidy::Finding;
use crate::tidy::code::{self, Line};

/// Folders that hold no files of ours.
const SKIPPED: [&str; 4] = [".git", "target", "build", "proptest-regressions"];

/// One text file.
#[derive(Debug)]
pub(crate) struct Source {
    /// From the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Of a Rust file: its lines without comments and literals. Empty of others.
    pub(crate) lines: Vec<Line>,
    /// Compiled for tests only, all of it.
    pub(crate) is_test: bool,
}

impl Source {
    /// A file with this content. Rust files are recognised by name.
    pub(crate) fn new(path: &str, text: &str) -> Source {
        let is_rust = path.ends_with(".rs");
        let lines = if is_rust { code::lines(text) } else { Vec::new() };
        let is_test = path.starts_with("tests/")
            || path.contains("/tests/")
            || path.ends_with("/tests.rs")
            || path.contains("/benches/");
        Source { path: path.to_owned(), text: text.to_owned(), lines, is_test }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the file is within one of the folders (or is the file) that `places` name.
    pub(crate) fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| {
            self.path.strip_prefix(place).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('/') || place.ends_with('/')
            })
        })
    }

    /// Lines of code that are shipped: number from 1, and text.
    pub(crate) fn shipped(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code().filter(|(_, line)| !self.is_test && !line.unshipped).map(|(n, l)| (n, &*l.code))
    }

    /// All lines of code.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().map(|(index, line)| (index + 1, line))
    }

    pub(crate) fn finding(&self, rule: &'static str, line: usize, message: String) -> Finding {
        Finding { path: self.path.clone(), line, rule, message }
    }
}

/// Every text file below `root`, by path. Modules that are declared for tests only are marked so.
pub(crate) fn load(root: &Path) -> anyhow::Result<Vec<Source>> {
    let mut sources = Vec::new();
    walk(root, "", &mut sources)?;
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    // What such a module declares is for tests, too.
    loop {
        let for_tests: HashSet<String> =
            sources.iter().flat_map(crate::tidy::modules::declared_for_tests).collect();
        let is_news = |source: &&mut Source| !source.is_test && for_tests.contains(&source.path);
        let mut more = sources.iter_mut().filter(is_news).peekable();
        if more.peek().is_none() {
            break;
        }
        more.for_each(|source| source.is_test = true);
    }
    Ok(sources)
}

fn walk(folder: &Path, prefix: &str, sources: &mut Vec<Source>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
            walk(&entry.path(), &format!("{path}/"), sources)?;
        } else if kind.is_file() {
            // What is not text (an image) has no style.
            match fs::read_to_string(entry.path()) {
                Ok(text) => sources.push(Source::new(&path, &text)),
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {}
                // Others work in the same tree: a file may be gone since it was listed.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).context(path),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_folder_or_a_file() {
        let source = Source::new("data/backend/src/sys/ring.rs", "");
        assert!(source.is_in(&["data/backend/src/sys"]));
        assert!(source.is_in(&["data/backend/src/sys/ring.rs"]));
        assert!(!source.is_in(&["data/back", "control"]));
    }
}
