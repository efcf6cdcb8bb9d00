//! Fields of disks, NICs and groups: in how many files each is named. What is told once is named in few.
//!
//! Decision 26 has why. Names of one word are words of other things, too, and are not counted.

use std::collections::BTreeMap;

use crate::tidy::Finding;
use crate::tidy::code::has_word;
use crate::tidy::source::Source;

/// Where fields are declared: the tables, and what they have alike.
const TABLES: [&str; 4] = [
    "control/config/src/spec/disk.rs",
    "control/config/src/spec/limit.rs",
    "control/config/src/spec/nic.rs",
    "control/config/src/spec/told.rs",
];

/// Files that may name a field that is not below: its table, its plan, its view, who does it, who says it.
const NEW_MAX: usize = 5;

/// Files that name those that are older. A number here may only go down.
const NAMED: [(&str, usize); 17] = [
    ("allow_unsealed_memory", 22),
    ("allow_user_folder", 9),
    ("block_size", 14),
    ("by_link", 8),
    ("guest_offloads", 9),
    ("latency_target_us", 6),
    ("limit_burst_ms", 13),
    ("limit_bytes", 12),
    ("limit_iops", 9),
    ("limit_packets", 9),
    ("macs_max", 19),
    ("moderate_us", 8),
    ("on_error", 8),
    ("on_full", 8),
    ("socket_group", 8),
    ("socket_mode", 6),
    ("socket_owner", 10),
];

/// That no field is named in more files than it may be, and that what became less stays so.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    check_with(sources, &NAMED)
}

fn check_with(sources: &[Source], named: &[(&str, usize)]) -> Vec<Finding> {
    let mut declared: BTreeMap<&str, (&Source, usize)> = BTreeMap::new();
    for source in sources.iter().filter(|source| TABLES.contains(&source.path.as_str())) {
        for (number, line) in source.code() {
            if let Some(field) = field_of(&line.code) {
                declared.entry(field).or_insert((source, number));
            }
        }
    }
    let mut findings = Vec::new();
    for (field, (table, line)) in &declared {
        let files = sources.iter().filter(|source| names(source, field)).count();
        let allowed = named.iter().find(|(name, _)| name == field).map(|(_, most)| *most);
        let most = allowed.unwrap_or(NEW_MAX);
        let what = match allowed {
            _ if files > most => "have it made of its table (decision 26)",
            Some(_) if files < most => "write the lower number into xtask/src/tidy/told.rs",
            _ => continue,
        };
        let message =
            format!("`{field}` is named in {files} files that are no tests, not {most}: {what}");
        findings.push(table.finding("told", *line, message));
    }
    let gone = named.iter().filter(|(name, _)| !declared.contains_key(name));
    findings.extend(gone.filter(|_| !declared.is_empty()).map(|(name, _)| Finding {
        path: "xtask/src/tidy/told.rs".to_string(),
        line: 1,
        rule: "told",
        message: format!("no table has `{name}` any more: take it out"),
    }));
    findings
}

/// The field that an entry of a table declares, if its name is of several words.
fn field_of(code: &str) -> Option<&str> {
    let (name, form) = code.trim_start().split_once(": ")?;
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_form = form.starts_with("Option<")
        || form.starts_with("bool")
        || form.starts_with('(')
        || form.contains(" (\"\"");
    (is_form && name.contains('_') && name.chars().all(is_name)).then_some(name)
}

/// Whether a file that is no test names the field: in code, a text or a comment.
/// What is simulated are tests, too: they write specifications.
fn names(source: &Source, field: &str) -> bool {
    let is_counted = source.is_rust() && !source.is_test && !source.is_in(&["xtask", "sim"]);
    let mut lines = source.text.lines().zip(&source.lines);
    is_counted && lines.any(|(text, line)| !line.unshipped && has_word(text, field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_named_in_few_files_and_in_no_more() {
        let table = "told! {\n    /// Waits.\n    wait_us: Option<u32> (\"US\", 1..=9) anew;\n    \
                     on_full: bool;\n    path: Option<String> (\"PATH\");\n}\n";
        let in_test = "#[cfg(test)]\nmod tests {\n    const A: &str = \"wait_us\";\n}\n";
        let mut sources = vec![
            Source::new(TABLES[0], table),
            Source::new("a.rs", "// Of `wait_us`."),
            Source::new("b.rs", "let on_full_too = a.wait_us;"),
            Source::new("c.rs", in_test),
            Source::new("a/tests/d.rs", "wait_us"),
        ];
        let said = |sources: &[Source], named: &[(&str, usize)]| {
            let findings = check_with(sources, named);
            findings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(said(&sources, &[("wait_us", 3)]), Vec::<String>::new());
        assert_eq!(
            said(&sources, &[("wait_us", 2), ("on_full", 2), ("gone_ms", 9)]),
            [
                "control/config/src/spec/disk.rs:4: `on_full` is named in 1 files that are no tests, \
                 not 2: write the lower number into xtask/src/tidy/told.rs [told]",
                "control/config/src/spec/disk.rs:3: `wait_us` is named in 3 files that are no tests, \
                 not 2: have it made of its table (decision 26) [told]",
                "xtask/src/tidy/told.rs:1: no table has `gone_ms` any more: take it out [told]",
            ]
        );
        sources.extend(["d.rs", "e.rs", "f.rs"].map(|path| Source::new(path, "wait_us")));
        let message = said(&sources, &[]).join("\n");
        assert!(
            message.contains("`wait_us` is named in 6 files that are no tests, not 5"),
            "{message}"
        );
    }
}
