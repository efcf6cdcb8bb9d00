//! Functions that a page quotes: as the sources have them, line by line.

use crate::tidy::Finding;
use crate::tidy::source::Source;

/// Quotes functions of the tests.
const PAGE: &str = "CONTRIBUTING.md";
const QUOTED: &str = "tests/src/";

/// Finds quoted functions that no file has so.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return Vec::new() };
    let tests: Vec<&Source> =
        sources.iter().filter(|source| source.path.starts_with(QUOTED)).collect();
    let is_there =
        |quoted: &str| tests.iter().any(|source| source.text.contains(&format!("\n{quoted}")));
    let mut findings = Vec::new();
    let mut rest = page.text.as_str();
    while let Some((_, block)) = rest.split_once("\n```rust\n") {
        let (quoted, after) = block.split_once("```").unwrap_or((block, ""));
        rest = after;
        if quoted.starts_with("fn ") && !is_there(quoted) {
            let line = page.text[..page.text.len() - block.len()].lines().count() + 1;
            let name = quoted.lines().next().unwrap_or_default();
            let message = format!("`{name}` is not so in {QUOTED}: quote it as it is");
            findings.push(page.finding("quote", line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> usize {
        let page = Source::new(PAGE, page);
        let case =
            Source::new("tests/src/suite/cases/guest.rs", "//! A.\n\nfn a() {\n    b();\n}\n");
        check(&[page, case]).len()
    }

    #[test]
    fn a_function_is_quoted_as_it_is() {
        assert_eq!(found("A case:\n\n```rust\nfn a() {\n    b();\n}\n```\n"), 0);
        assert_eq!(found("A case:\n\n```rust\nfn a() {\n    c();\n}\n```\n"), 1);
        assert_eq!(found("Not one:\n\n```rust\nlet a = b;\n```\n\n```rust\nfn c() {}\n```\n"), 1);
    }
}
