//! Files of one job, functions of one screen.

use crate::tidy::Finding;
use crate::tidy::code::{has_word, item_end};
use crate::tidy::source::Source;

/// Lines of code (not blank, not comment) of a file.
const FILE_LINES_MAX: usize = 500;
/// The same of a file of tests.
const TEST_FILE_LINES_MAX: usize = 900;
/// Lines of a function, from `fn` to its last brace.
const FUNCTION_LINES_MAX: usize = 70;

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = source.lines.iter().filter(|line| !line.code.trim().is_empty()).count();
    let most = if source.is_test { TEST_FILE_LINES_MAX } else { FILE_LINES_MAX };
    if lines > most {
        let message = format!(
            "{lines} lines of code, at most {most}: give a part that has one job its own file"
        );
        findings.push(source.finding("file-length", 1, message));
    }
    for (number, line) in source.code() {
        if !starts_function(&line.code) {
            continue;
        }
        let length = item_end(&source.lines, number - 1) + 2 - number;
        if length > FUNCTION_LINES_MAX {
            let message = format!(
                "a function of {length} lines, at most {FUNCTION_LINES_MAX}: move a step of it \
                 into a function of its own"
            );
            findings.push(source.finding("function-length", number, message));
        }
    }
    findings
}

/// How large the parts are that pages speak of: here alone, since a page's number is old the day after.
pub(crate) fn parts(sources: &[Source]) -> Vec<String> {
    let code = |rooms: &[&str]| -> usize {
        let of = sources.iter().filter(|source| source.is_rust() && source.is_in(rooms));
        of.map(|it| it.shipped().filter(|(_, line)| !line.trim().is_empty()).count()).sum()
    };
    let text = |rooms: &[&str]| -> usize {
        let is_program = |source: &&Source| source.is_rust() || source.path.ends_with(".sh");
        let of = sources.iter().filter(|source| source.is_in(rooms)).filter(is_program);
        of.map(|source| source.text.lines().count()).sum()
    };
    vec![format!(
        "lines of code: {} in control/manager and control/core without tests, {} in control; with comments: {} in tests, \
         testing, bench, lab, sim and x.d, of which {} in x.d",
        code(&["control/manager", "control/core"]),
        code(&["control"]),
        text(&["tests", "testing", "bench", "lab", "sim", "x.d"]),
        text(&["x.d"]),
    )]
}

/// Whether a function's signature starts on the line; `fn(` is a type.
fn starts_function(code: &str) -> bool {
    has_word(code, "fn") && !code.contains("fn(") && !code.trim_start().starts_with("macro_rules")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn long_files_are_found() {
        let code = "const A: u8 = 1;\n// not code\n\n";
        assert_eq!(messages("data/a/src/b.rs", &code.repeat(500)), [""; 0]);
        assert_eq!(
            messages("data/a/src/b.rs", &code.repeat(501)),
            [
                "data/a/src/b.rs:1: 501 lines of code, at most 500: give a part that has one job its \
              own file [file-length]"
            ]
        );
        assert_eq!(messages("data/a/src/b/tests.rs", &code.repeat(900)), [""; 0]);
        assert_eq!(messages("data/a/src/b/tests.rs", &code.repeat(901)).len(), 1);
    }

    #[test]
    fn lines_are_counted_by_part() {
        let sources = [
            Source::new("control/core/src/a.rs", "//! a\nconst A: u8 = 1; // a\n\n"),
            Source::new("control/config/src/b.rs", "const B: u8 = 1;\n"),
            Source::new("control/core/src/a/tests.rs", "const T: u8 = 1;\n"),
            Source::new("testing/src/c.rs", "const C: u8 = 1;\n"),
            Source::new("x.d/d.sh", "# d\n\nd\n"),
            Source::new("tests/mutants/e.patch", "e\n"),
        ];
        let wanted = "lines of code: 1 in control/manager and control/core without tests, 2 in control; with comments: 4 \
                      in tests, testing, bench, lab, sim and x.d, of which 3 in x.d";
        assert_eq!(parts(&sources), [wanted]);
    }

    #[test]
    fn long_functions_are_found() {
        let function = |lines: usize| {
            format!(
                "impl A {{\n    pub fn f(\n        x: fn(u8),\n    ) {{\n{}    }}\n}}\n",
                "        x();\n".repeat(lines - 4)
            )
        };
        assert_eq!(messages("x.rs", &function(70)), [""; 0]);
        assert_eq!(
            messages("x.rs", &function(71)),
            [
                "x.rs:2: a function of 71 lines, at most 70: move a step of it into a function of its \
              own [function-length]"
            ]
        );
    }
}
