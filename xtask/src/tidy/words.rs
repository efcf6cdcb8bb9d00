//! Words that have a place, or none: clocks, sleeps, prints, locks, panics, `unsafe`.
//!
//! Words in comments and literals do not count. Clippy forbids some of these calls too, where it can
//! see through a name; here each has the folders where it is at home.

use crate::tidy::Finding;
use crate::tidy::code::has_word;
use crate::tidy::source::Source;

/// A rule about words.
struct Rule {
    name: &'static str,
    words: &'static [&'static str],
    /// Where the rule holds; empty: everywhere.
    within: &'static [&'static str],
    /// Where it does not.
    except: &'static [&'static str],
    /// Whether tests must keep it too.
    tests_too: bool,
    /// What to do instead.
    instead: &'static str,
}

/// Programs and proofs: they may print, wait, and look at the clock.
const PROGRAMS: [&str; 7] = ["bin", "bench", "fuzz", "lab", "testing", "tests", "xtask"];

/// What opens, makes, moves or removes by a path, or follows it to look.
const BY_NAME: [&str; 32] = [
    "File::open",
    "File::create",
    "OpenOptions",
    "fs::open",
    "fs::openat",
    "fs::openat2",
    "fs::read",
    "fs::read_to_string",
    "fs::write",
    "fs::copy",
    "fs::create_dir",
    "fs::create_dir_all",
    "fs::remove_file",
    "fs::remove_dir",
    "fs::remove_dir_all",
    "fs::rename",
    "fs::metadata",
    "fs::symlink_metadata",
    "fs::canonicalize",
    "fs::hard_link",
    "fs::set_permissions",
    "fs::stat",
    "fs::lstat",
    "fs::unlink",
    "fs::mkdir",
    "os::unix::fs::symlink",
    ".exists()",
    ".is_file()",
    ".is_dir()",
    ".canonicalize()",
    "Disk::open",
    "UnixListener::bind",
];

const RULES: [Rule; 8] = [
    Rule {
        name: "names",
        words: &BY_NAME,
        within: &["control", "host/confine"],
        except: &["control/names"],
        tests_too: false,
        instead: "a path may lead through folders of others: `names` opens what it leads to, step by step",
    },
    Rule {
        name: "clock",
        words: &["Instant::now", "SystemTime::now", "clock_gettime"],
        within: &[],
        except: &[
            "data/sidecore/src/thread.rs",
            "control/manager/src/clock.rs",
            "guest/tune/src/clock.rs",
            "guest/tune/src/load.rs",
            "bin",
            "bench",
            "lab",
            "testing",
            "tests",
            "xtask",
        ],
        tests_too: false,
        instead: "take the time as an argument; the two loops read the clock (sidecore/src/thread.rs, \
                  manager/src/clock.rs)",
    },
    Rule {
        name: "sleep",
        words: &["thread::sleep", "time::sleep"],
        within: &[],
        except: &["bench", "lab", "testing", "tests"],
        tests_too: false,
        instead: "wait for the thing itself (a descriptor, a channel, a deadline)",
    },
    Rule {
        name: "print",
        words: &["println!", "print!", "eprintln!", "eprint!", "dbg!"],
        within: &[],
        except: &PROGRAMS,
        tests_too: true,
        instead: "return it, or use `tracing` in control/",
    },
    Rule {
        name: "lock",
        words: &["Mutex", "RwLock", "Condvar", "parking_lot"],
        within: &["data"],
        except: &[],
        tests_too: false,
        instead: "move what is shared to its one owner, or count in atomics with one writer",
    },
    Rule {
        name: "panic",
        words: &[
            ".unwrap()",
            ".unwrap_err()",
            ".expect(",
            "panic!",
            "unreachable!",
            "unimplemented!",
            "todo!",
        ],
        within: &["data", "control/vhost_user"],
        except: &[],
        tests_too: false,
        instead: "a guest or front-end may reach it: return an error, or write `let .. else`",
    },
    Rule {
        name: "unsafe",
        words: &["unsafe"],
        within: &[],
        except: &["data/guest_memory/src", "data/backend/src/sys", "data/backend/src/sys.rs"],
        tests_too: true,
        instead: "unsafe code lives in data/guest_memory and data/backend/src/sys",
    },
    Rule {
        name: "path-attribute",
        words: &["#[path"],
        within: &[],
        except: &[],
        tests_too: true,
        instead: "a module's file is where its name says",
    },
];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let rules = RULES.iter().filter(|rule| {
        (rule.within.is_empty() || source.is_in(rule.within)) && !source.is_in(rule.except)
    });
    rules.flat_map(|rule| broken(source, rule)).collect()
}

fn broken(source: &Source, rule: &Rule) -> Vec<Finding> {
    let lines: Vec<(usize, &str)> = if rule.tests_too {
        source.code().map(|(number, line)| (number, &*line.code)).collect()
    } else {
        source.shipped().collect()
    };
    let found = |code: &str| rule.words.iter().find(|word| has_word(code, word));
    lines
        .into_iter()
        .filter_map(|(number, code)| {
            let message = format!("`{}`: {}", found(code)?, rule.instead);
            Some(source.finding(rule.name, number, message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_clock_has_one_place() {
        assert_eq!(
            messages("control/manager/src/a.rs", "let t = Instant::now();"),
            ["control/manager/src/a.rs:1: `Instant::now`: take the time as an argument; the two \
              loops read the clock (sidecore/src/thread.rs, manager/src/clock.rs) [clock]"]
        );
        assert_eq!(messages("data/sidecore/src/thread.rs", "Instant::now();"), [""; 0]);
    }

    #[test]
    fn control_opens_by_name_in_one_place() {
        let text = "fs::write(path, text)?;\n#[cfg(test)]\nmod tests {\n fs::write(a, b);\n}";
        assert_eq!(
            messages("control/manager/src/a.rs", text),
            [
                "control/manager/src/a.rs:1: `fs::write`: a path may lead through folders of others: \
              `names` opens what it leads to, step by step [names]"
            ]
        );
        assert_eq!(messages("control/names/src/a.rs", text), [""; 0]);
        assert_eq!(messages("data/backend/src/a.rs", text), [""; 0]);
        for other in ["Disk::open_by(&a)", "fs::read_dir(a)", "names::kernel_text(a)"] {
            assert_eq!(messages("control/manager/src/a.rs", other), [""; 0]);
        }
    }

    #[test]
    fn sleeping_is_for_tests() {
        let text = "fn a() { thread::sleep(x); }\n#[cfg(test)]\nmod tests {\n thread::sleep(x);\n}";
        assert_eq!(
            messages("host/src/a.rs", text),
            [
                "host/src/a.rs:1: `thread::sleep`: wait for the thing itself (a descriptor, a channel, \
              a deadline) [sleep]"
            ]
        );
    }

    #[test]
    fn libraries_do_not_print() {
        assert_eq!(
            messages("host/src/a.rs", "// println!\nprintln!(\"x\");"),
            ["host/src/a.rs:2: `println!`: return it, or use `tracing` in control/ [print]"]
        );
        assert_eq!(messages("bin/sidecore/src/main.rs", "println!(\"x\");"), [""; 0]);
    }

    #[test]
    fn the_data_path_takes_no_lock() {
        assert_eq!(
            messages("data/a/src/a.rs", "use std::sync::Mutex;"),
            [
                "data/a/src/a.rs:1: `Mutex`: move what is shared to its one owner, or count in atomics \
              with one writer [lock]"
            ]
        );
        assert_eq!(messages("control/a/src/a.rs", "use std::sync::Mutex;"), [""; 0]);
    }

    #[test]
    fn hostile_input_meets_no_panic() {
        let text = "a.unwrap_or(1);\na\n    .unwrap();\n#[cfg(test)]\nfn t() { a.unwrap() }";
        assert_eq!(
            messages("control/vhost_user/src/a.rs", text),
            [
                "control/vhost_user/src/a.rs:3: `.unwrap()`: a guest or front-end may reach it: return \
              an error, or write `let .. else` [panic]"
            ]
        );
        assert_eq!(messages("data/a/src/b/tests.rs", "a.unwrap();"), [""; 0]);
    }

    #[test]
    fn unsafe_has_an_address() {
        assert_eq!(
            messages("host/src/a.rs", "#![forbid(unsafe_code)]\nunsafe { f() };"),
            ["host/src/a.rs:2: `unsafe`: unsafe code lives in data/guest_memory and \
              data/backend/src/sys [unsafe]"]
        );
        assert_eq!(messages("data/backend/src/sys/uring.rs", "unsafe { f() };"), [""; 0]);
    }

    #[test]
    fn paths_are_not_bent() {
        assert_eq!(
            messages("host/src/a.rs", "#[path = \"b.rs\"]\nmod c;"),
            ["host/src/a.rs:1: `#[path`: a module's file is where its name says [path-attribute]"]
        );
    }
}
