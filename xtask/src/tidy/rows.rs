//! The tables of the pages that promise something are true: what they name is there, and each row has its place.
//!
//! Not whether a test asserts what its row says; that takes a reader. Three columns are understood:
//! - `tests` beside `rows`: files (`hostile_split` for a module of a group of `tests/tests`, `recover.sh` for
//!   `x.d/test/recover.sh`, `guest/fio` for a case of `./x test`, or a path), each followed by tests in it. Of a file that stands alone each row
//!   must be a test's name (`a09_..` for A9). `-` for none; then the next column says why.
//! - `tests` or `test` in other tables: files, tests anywhere, beginnings of their names (`a12`, `p23_*`), packages, and
//!   commands of `./x`.
//! - `mutants` or `mutant`: of `tests/mutants`.
//!
//! A heading such as `### Split rings (A1-A34)` promises that each of these rows is in a table below it.

use std::collections::{BTreeSet, HashMap};

use crate::tidy::Finding;
use crate::tidy::source::Source;

const PAGES: [&str; 3] = ["docs/durability.md", "docs/migration.md", "docs/security.md"];
const RULE: &str = "row";
/// The table of groups of `./x test`: a file, and a folder, for each.
const TABLE: &str = "tests/src/suite/cases/";
/// Names of tests that a macro makes, by the list that they are in, and how a file asks for a list.
const LIST: &str = "tests/src/misdeeds/rows.rs";
const ASKED: &str = "tests::misdeeds!(";
/// How the outcome of a row begins that has no test.
const WHY_NONE: [&str; 3] = ["not built", "not offered", "not tested"];

/// One row of the page.
type Id = (char, u32);

/// Names of tests and of shell functions, by file.
struct Known<'a> {
    files: HashMap<&'a str, Vec<&'a str>>,
}

/// What a column of the table that is being read means.
#[derive(Clone, Copy, PartialEq)]
enum Column {
    Rows,
    TestsOfRows,
    Tests,
    Mutants,
    Other,
}

/// Finds what the tables name and is not there, and rows that a heading promises and no table has.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let known = Known::of(sources);
    let pages = sources.iter().filter(|source| PAGES.contains(&source.path.as_str()));
    pages.flat_map(|page| check_page(&known, page)).collect()
}

fn check_page(known: &Known<'_>, page: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut columns: Vec<Column> = Vec::new();
    let mut missing: (usize, BTreeSet<Id>) = (0, BTreeSet::new());
    for (number, line) in (1..).zip(page.text.lines()) {
        if line.starts_with('#') {
            findings.extend(left_out(page, &missing));
            let promised = line.rsplit_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
            missing = (number, promised.and_then(ids).unwrap_or_default());
        }
        let Some(inner) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
            columns.clear();
            continue;
        };
        let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
        if columns.is_empty() {
            columns = meanings(&cells);
        } else if !inner.starts_with("--") && !inner.starts_with(" -") {
            let mut wrong = Vec::new();
            let rows = row(known, &columns, &cells, &mut wrong);
            for id in rows {
                missing.1.remove(&id);
            }
            findings.extend(wrong.into_iter().map(|text| page.finding(RULE, number, text)));
        }
    }
    findings.extend(left_out(page, &missing));
    findings
}

fn left_out(page: &Source, (number, ids): &(usize, BTreeSet<Id>)) -> Option<Finding> {
    let names: Vec<String> = ids.iter().map(|(letter, n)| format!("{letter}{n}")).collect();
    let message =
        format!("no table has {}: say which test shows it, or why none", names.join(", "));
    (!names.is_empty()).then(|| page.finding(RULE, *number, message))
}

fn meanings(header: &[&str]) -> Vec<Column> {
    let of_rows = header.first() == Some(&"rows");
    let column = |cell: &&str| match *cell {
        "rows" => Column::Rows,
        "tests" if of_rows => Column::TestsOfRows,
        "test" | "tests" => Column::Tests,
        "mutant" | "mutants" => Column::Mutants,
        _ => Column::Other,
    };
    header.iter().map(column).collect()
}

/// Looks at one line of a table; gives the rows that it is about.
fn row(known: &Known<'_>, columns: &[Column], cells: &[&str], wrong: &mut Vec<String>) -> Vec<Id> {
    let mut rows = Vec::new();
    for (at, (column, cell)) in columns.iter().zip(cells).enumerate() {
        match column {
            Column::Other => {}
            Column::Rows => match ids(cell) {
                Some(of_cell) => rows.extend(of_cell),
                None => wrong.push(format!("{cell:?} are no rows: write them as A1-A6, A9")),
            },
            Column::TestsOfRows if *cell == "-" => {
                let why = cells.get(at + 1).copied().unwrap_or_default();
                if !WHY_NONE.iter().any(|word| why.starts_with(word)) {
                    wrong.push(format!(
                        "no test, and why not does not begin with one of {WHY_NONE:?}"
                    ));
                }
            }
            Column::TestsOfRows => wrong.extend(known.of_rows(cell, &rows)),
            Column::Tests => wrong.extend(quoted(cell).filter_map(|word| known.anywhere(word))),
            Column::Mutants => {
                let path = |word: &str| format!("tests/mutants/{word}.patch");
                let gone = quoted(cell).filter(|word| !known.files.contains_key(&*path(word)));
                wrong.extend(gone.map(|word| format!("there is no {}", path(word))));
            }
        }
    }
    rows
}

/// `A1-A6, A9`: a letter and a number each; `None` if it is anything else.
fn ids(text: &str) -> Option<BTreeSet<Id>> {
    let mut all = BTreeSet::new();
    for part in text.split(',').map(str::trim) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (letter, from) = id(from)?;
        let (same, to) = id(to)?;
        if letter != same || from > to || to > 99 {
            return None;
        }
        all.extend((from..=to).map(|number| (letter, number)));
    }
    Some(all)
}

fn id(text: &str) -> Option<Id> {
    let letter = text.chars().next().filter(char::is_ascii_uppercase)?;
    Some((letter, text[1..].parse().ok()?))
}

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

impl<'a> Known<'a> {
    fn of(sources: &'a [Source]) -> Known<'a> {
        let listed = sources.iter().find(|source| source.path == LIST).map(listed);
        let listed = listed.unwrap_or_default();
        let files = sources.iter().map(|source| {
            let mut names = match source {
                of if of.path.starts_with(TABLE) => words_of(of),
                of if of.is_rust() => tests_of(of),
                of => functions_of(of),
            };
            let asked = source.text.lines().filter_map(|line| line.strip_prefix(ASKED));
            for list in asked.filter_map(|rest| rest.strip_suffix(" tests);")) {
                names.extend(listed.get(list).into_iter().flatten());
            }
            (source.path.as_str(), names)
        });
        Known { files: files.collect() }
    }

    /// The path of what a table calls a file.
    fn file(&self, word: &str) -> Option<&'a str> {
        let paths = [word.to_owned(), format!("x.d/test/{word}")];
        let named = paths.iter().find_map(|path| self.files.get_key_value(&**path));
        let of_group = || {
            let is_module = |path: &str| {
                let (_, file) = path.strip_prefix("tests/tests/")?.split_once('/')?;
                (file.strip_suffix(".rs")? == word).then_some(())
            };
            self.files.keys().find(|path| is_module(path).is_some())
        };
        named.map(|(path, _)| *path).or_else(|| of_group().copied()).or_else(|| self.case(word))
    }

    /// The file of a case of `./x test`, `group/case` or `group/case/check`: all parts are words of the group's files.
    fn case(&self, word: &str) -> Option<&'a str> {
        let (group, rest) = word.split_once('/')?;
        let (file, folder) = (format!("{TABLE}{group}.rs"), format!("{TABLE}{group}/"));
        let is_of_group = |path: &str| path == file || path.starts_with(&folder);
        let of_group: Vec<&&str> = self.files.keys().filter(|path| is_of_group(path)).collect();
        let is_there = |part: &str| of_group.iter().any(|path| self.has(path, part));
        rest.split('/')
            .all(is_there)
            .then(|| self.files.get_key_value(&*file))?
            .map(|(path, _)| *path)
    }

    fn has(&self, file: &str, name: &str) -> bool {
        self.files.get(file).is_some_and(|names| has_name(names, name))
    }

    /// What is wrong with the tests named for these rows.
    fn of_rows(&self, cell: &str, rows: &[Id]) -> Vec<String> {
        let mut wrong = Vec::new();
        // Files, and whether tests of them are named.
        let mut files: Vec<(&str, bool)> = Vec::new();
        for word in quoted(cell) {
            if let Some(file) = self.file(word) {
                files.push((file, false));
            } else if let Some((file, is_named)) = files.last_mut() {
                *is_named = true;
                if !self.has(file, word) {
                    wrong.push(format!("`{word}` is no test in {file}"));
                }
            } else {
                wrong.push(format!("there is no file `{word}`"));
            }
        }
        let alone: Vec<&str> = files.iter().filter(|(_, named)| !named).map(|(f, _)| *f).collect();
        // A fuzz target, a group and a case of `./x test` are one test as a whole.
        let is_one = |file: &&str| {
            file.starts_with("fuzz/src/bin/") || file.starts_with(TABLE) || file.ends_with(".sh")
        };
        if files.is_empty() {
            wrong.push("no file is named: write `-` and why there is no test".to_owned());
        } else if !alone.is_empty() && !alone.iter().any(is_one) {
            for (letter, number) in rows {
                let letter = letter.to_ascii_lowercase();
                let names = [format!("{letter}{number}_*"), format!("{letter}{number:02}_*")];
                let found = alone.iter().any(|file| names.iter().any(|name| self.has(file, name)));
                if !found {
                    wrong.push(format!(
                        "no test in {} begins with {letter}{number}_",
                        alone.join(", ")
                    ));
                }
            }
        }
        wrong
    }

    /// Why there is nothing of that name anywhere.
    fn anywhere(&self, word: &str) -> Option<String> {
        let target = format!("fuzz/src/bin/{word}.rs");
        let is_row = id(&word.to_ascii_uppercase()).is_some();
        let name = if is_row { format!("{word}_*") } else { word.to_owned() };
        let found = self.file(word).is_some()
            || self.files.contains_key(&*target)
            || self.files.values().any(|names| has_name(names, &name))
            || self.takes(word)
            // A folder, or a package.
            || self.files.keys().any(|path| path.starts_with(&format!("{word}/")))
            || self.files.keys().any(|path| path.ends_with(&format!("/{word}/Cargo.toml")));
        (!found).then(|| format!("`{word}` is no test, and no file that has some"))
    }
}

impl Known<'_> {
    /// Whether it is a command: of `./x`, such as it takes.
    fn takes(&self, command: &str) -> bool {
        let mut words = command.split(' ').skip_while(|word| *word != "./x").skip(1);
        let is_test = |word: &str| {
            word.starts_with('-')
                || self.files.contains_key(&*format!("{TABLE}{word}.rs"))
                || self.files.contains_key(&*format!("tests/{word}.patch"))
                || self.case(word).is_some()
        };
        match words.next() {
            None => command.contains(' ') && !command.starts_with("./x"),
            Some("test") => words.all(is_test),
            Some("sim") => {
                words.next().is_some_and(|word| word == "schedule" || word.starts_with('-'))
            }
            Some(_) => true,
        }
    }
}

/// Whether one is of that name, or begins so if it ends in `*`.
fn has_name(names: &[&str], wanted: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(beginning) => names.iter().any(|name| name.starts_with(beginning)),
        None => names.contains(&wanted),
    }
}

/// Functions below `#[test]`.
fn tests_of(source: &Source) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_test = false;
    for (line, (_, code)) in source.text.lines().zip(source.code()) {
        let code = code.code.trim();
        if code == "#[test]" {
            is_test = true;
        } else if let Some(name) = function_name(line.trim()) {
            if is_test {
                names.push(name);
            }
            is_test = false;
        }
    }
    names
}

/// The names in each list, `(list $form:ident) => { ... }`.
fn listed(source: &Source) -> HashMap<&str, Vec<&str>> {
    let mut lists: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut list = "";
    for line in source.text.lines().map(str::trim) {
        let is_name = |c: char| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit();
        if let Some((name, _)) = line.strip_prefix('(').and_then(|l| l.split_once(" $form:ident)"))
        {
            list = name;
        } else if !line.is_empty() && line.chars().all(is_name) {
            lists.entry(list).or_default().push(line);
        }
    }
    lists
}

fn function_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn "))?;
    rest.split(['(', '<']).next()
}

/// What stands between quotes and has no space.
fn words_of(source: &Source) -> Vec<&str> {
    let quoted = source.text.split('"').skip(1).step_by(2);
    quoted.filter(|word| !word.is_empty() && !word.contains(char::is_whitespace)).collect()
}

/// Functions of a shell's file.
fn functions_of(source: &Source) -> Vec<&str> {
    if !source.path.ends_with(".sh") {
        return Vec::new();
    }
    source.text.lines().filter_map(|line| line.strip_suffix("() {")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "//! t\n#[test]\n#[ignore]\nfn a01_loop() {}\n#[test]\nfn a2_other() -> u8 {}\nfn a3_helper() {}\n";

    fn messages(page: &str) -> Vec<String> {
        let sources = [
            Source::new("docs/security.md", page),
            Source::new("tests/tests/rings/hostile.rs", TEST),
            Source::new(
                LIST,
                "(split $form:ident) => {\n$crate::each_row! { $form\na07_left_out\n}\n};\n\
                 (blk $form:ident) => {\nc01_short\n};\n",
            ),
            Source::new("tests/tests/rings/listed.rs", "//! t\ntests::misdeeds!(blk tests);\n"),
            Source::new("x.d/test/recover.sh", "case_killed() {\n"),
            Source::new("tests/src/suite/cases/guest.rs", "Case::run(\"fio\", fio)"),
            Source::new("tests/src/suite/cases/guest/parts.rs", "bed.passed(\"verify\")"),
            Source::new("fuzz/src/bin/session.rs", "//! f\n"),
            Source::new("tests/mutants/no-sync.patch", ""),
            Source::new("data/backend/Cargo.toml", ""),
        ];
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_page_whose_names_are_there_is_true() {
        let page = "### Rings (A1-A4)\n\n| rows | tests | outcome |\n|---|---|---|\n\
                    | A1-A2 | `hostile` | stopped |\n| A3 | `hostile`: `a01_loop`; `recover.sh`: `case_killed` | x |\n\
                    | A2 | `guest/fio`; `guest/fio/verify` | x |\n\
                    | A4 | - | not built |\n| C1 | `listed` | x |\n\n| promise | tests | mutants |\n|---|---|---|\n\
                    | p | `a1`, `a01`, `a2_*`, `hostile`, `session`, `recover.sh`, `cargo test` | `no-sync` |\n\n\
                    | test | mutant |\n|---|---|\n| `a01_loop` in `backend`; `./x sim --seeds 1000`; \
                    `./x test guest guest/fio mutants/no-sync` | `no-sync` |\n";
        assert_eq!(messages(&page.replace("`a1`, ", "")), [""; 0]);
    }

    #[test]
    fn what_is_not_there_is_found() {
        let head = "| rows | tests | outcome |\n|---|---|---|\n";
        for (line, says) in [
            ("| A3 | `hostile` | x |", "no test in tests/tests/rings/hostile.rs begins with a3_"),
            ("| C2 | `listed` | x |", "no test in tests/tests/rings/listed.rs begins with c2_"),
            (
                "| A1 | `hostile`: `a09_no` | x |",
                "`a09_no` is no test in tests/tests/rings/hostile.rs",
            ),
            (
                "| A1 | `hostile`: `a3_helper` | x |",
                "`a3_helper` is no test in tests/tests/rings/hostile.rs",
            ),
            ("| A1 | `gone` | x |", "there is no file `gone`"),
            ("| A1 | `guest/trim` | x |", "there is no file `guest/trim`"),
            ("| A1 | soon | x |", "no file is named: write `-` and why there is no test"),
            ("| A1 | - | x |", "no test, and why not does not begin"),
            ("| 1A | `recover.sh` | x |", "\"1A\" are no rows"),
        ] {
            let found = messages(&format!("{head}{line}\n"));
            assert!(found.iter().any(|text| text.contains(says)), "{line}: {found:?}");
        }
        for command in ["./x sim lives", "./x test guest/trim", "./x test sim", "./x"] {
            let found = messages(&format!("| test |\n|---|\n| `{command}` |\n"));
            let says = format!(
                "docs/security.md:3: `{command}` is no test, and no file that has some [row]"
            );
            assert_eq!(found, [says]);
        }
        let loose = "| tests | mutants |\n|---|---|\n| `a07`, `nothing` | `gone` |\n";
        assert_eq!(
            messages(loose),
            [
                "docs/security.md:3: `a07` is no test, and no file that has some [row]",
                "docs/security.md:3: `nothing` is no test, and no file that has some [row]",
                "docs/security.md:3: there is no tests/mutants/gone.patch [row]",
            ]
        );
    }

    #[test]
    fn a_row_that_is_left_out_is_found() {
        let page = "### Rings (A1-A3, B2)\n| rows | tests | outcome |\n|---|---|---|\n\
                    | A1, A2 | `hostile` | x |\n## Next\n";
        assert_eq!(
            messages(page),
            ["docs/security.md:1: no table has A3, B2: say which test shows it, or why none [row]"]
        );
    }
}
