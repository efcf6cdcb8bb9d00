//! What a case has found: the outcomes that it recorded, or what its program printed and how it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitStatus;

use testing::bed::{Kind, Outcome};

/// What the harness says of something that did not come in time. Only that is ever tried again: a failure of any other
/// kind may be about bytes.
const OF_TIME: [&str; 5] = [
    " gave no ",
    " still runs after ",
    " in vain for ",
    ": its time was over",
    " did not come to its end",
];
/// Most names of failed tests that are told.
const NAMES_MAX: usize = 8;
/// Most characters that are told of why a test failed, at its beginning and at its end.
const WHY_MAX: usize = 800;

/// Reads the file of outcomes. A line that is none is a failure: its writer died in the midst of it.
pub fn recorded(text: &str) -> Vec<Outcome> {
    let lines = text.lines().filter(|line| !line.is_empty());
    let read = |line: &str| {
        serde_json::from_str(line).unwrap_or_else(|error| {
            Outcome::new(Kind::Fail, "", format_args!("no outcome: {line:?} ({error})"))
        })
    };
    lines.map(read).collect()
}

/// Reads what a case in shell has recorded: kind, name and detail with tabs between them, the case's own name
/// before a check's.
pub fn recorded_by_shell(case: &str, text: &str) -> Vec<Outcome> {
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, '\t');
        let kind = match fields.next()? {
            "pass" => Kind::Pass,
            "fail" => Kind::Fail,
            "skip" => Kind::Skip,
            _ => return None,
        };
        let name = fields.next()?;
        let check = match name.strip_prefix(case) {
            Some("") => "",
            Some(rest) if !case.is_empty() => rest.strip_prefix('/').unwrap_or(name),
            _ => name,
        };
        Some(Outcome::new(kind, check, fields.next().unwrap_or_default()))
    });
    lines.collect()
}

/// Adds what the end of a case says beside its outcomes: it died, was ended, or has recorded nothing.
pub fn with_its_end(mut outcomes: Vec<Outcome>, end: &End) -> Vec<Outcome> {
    let has_failed = outcomes.iter().any(|outcome| outcome.kind() == Kind::Fail);
    match end.failure() {
        Some(why) if !has_failed || end.was_ended => {
            outcomes.push(Outcome::new(Kind::Fail, "", why));
        }
        None if outcomes.is_empty() => {
            outcomes.push(Outcome::new(Kind::Fail, "", "no check ran"));
        }
        _ => {}
    }
    outcomes
}

/// How a case's process ended.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Its status.
    pub status: ExitStatus,
    /// Whether it was ended, since its time was over.
    pub was_ended: bool,
    /// For how many seconds it ran.
    pub seconds: f64,
    /// For how many seconds processors worked for it.
    pub worked_seconds: f64,
}

impl End {
    /// What was wrong with it.
    fn failure(&self) -> Option<String> {
        if self.was_ended {
            return Some(format!("it was ended after {:.0} s: its time was over", self.seconds));
        }
        (!self.status.success()).then(|| self.status.to_string())
    }
}

/// What a command came to: one outcome, and one for each reason for which something was left out.
pub fn of_command(log: &str, end: &End) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> =
        left_out(log).into_iter().map(|why| Outcome::new(Kind::Skip, "", why)).collect();
    match end.failure() {
        Some(why) => outcomes.push(Outcome::new(Kind::Fail, "", why)),
        None => outcomes.push(Outcome::new(Kind::Pass, "", format_args!("{:.1} s", end.seconds))),
    }
    outcomes
}

/// What a program of tests came to. It is skipped if each of its tests has left out what it is about.
pub fn of_tests(log: &str, end: &End) -> Vec<Outcome> {
    let reasons = left_out(log);
    let left_out = tests_left_out(log);
    let mut outcomes: Vec<Outcome> =
        reasons.into_iter().map(|why| Outcome::new(Kind::Skip, "", why)).collect();
    let passed = tests_passed(log);
    match end.failure() {
        Some(why) => {
            let names = tests_failed(log);
            let why = if names.is_empty() { why } else { names };
            outcomes.push(Outcome::new(Kind::Fail, "", why));
        }
        None if passed == 0 => {
            outcomes.push(Outcome::new(Kind::Fail, "", "no test of that name ran"));
        }
        None if left_out >= passed => {}
        None => {
            let detail = format!("{passed} tests, {:.1} s", end.seconds);
            outcomes.push(Outcome::new(Kind::Pass, "", detail));
        }
    }
    outcomes
}

/// How many times or rates did not hold that this run does not judge.
pub fn not_judged(log: &str) -> usize {
    log.lines().filter(|line| line.contains("not judged here")).count()
}

/// Whether a case that an emulated machine stood still in may be run once more: some of it failed, and all that failed
/// did not come in time.
pub fn may_be_tried_again(outcomes: &[Outcome]) -> bool {
    let mut failed = outcomes.iter().filter(|outcome| outcome.kind() == Kind::Fail).peekable();
    let is_of_time = |outcome: &Outcome| OF_TIME.iter().any(|word| outcome.detail().contains(word));
    failed.peek().is_some() && failed.all(is_of_time)
}

/// Whether an emulated guest's kernel says that a processor of it had no timer interrupts for 21 s, which QEMU 7.2 does
/// now and then to a machine that it emulates (docs/decisions/0008-lab.md).
pub fn stood_still(console: &str) -> bool {
    let is_so =
        |line: &str| line.contains("rcu: ") && line.contains(" kthread timer wakeup didn't happen");
    console.lines().any(is_so)
}

/// Reasons of tests for what they have left out (`testing::lacking`), each once, with how many say so.
fn left_out(log: &str) -> Vec<String> {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, why) in skips(log) {
        *reasons.entry(why).or_default() += 1;
    }
    let said = reasons.into_iter().map(|(why, count)| match count {
        1 => why.to_owned(),
        _ => format!("{why} ({count} tests)"),
    });
    said.collect()
}

/// What was left out, and by which test where that is known: one at a time, a test's name is printed before what it
/// says, and the first thing that it says is on the same line.
fn skips(log: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    let mut test = None;
    log.lines().filter_map(move |line| {
        let line = match line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            Some((name, rest)) => {
                test = Some(name).filter(|_| !matches!(rest, "ok" | "FAILED"));
                rest
            }
            None => line,
        };
        if matches!(line, "ok" | "FAILED") {
            test = None;
        }
        Some((test, line.strip_prefix("skipped: ")?))
    })
}

/// How many tests have left something out, each once.
fn tests_left_out(log: &str) -> usize {
    let (known, unknown): (Vec<_>, Vec<_>) = skips(log).partition(|(test, _)| test.is_some());
    known.into_iter().map(|(test, _)| test).collect::<BTreeSet<_>>().len() + unknown.len()
}

/// How many tests passed, over all programs whose lines are there.
fn tests_passed(log: &str) -> usize {
    let passed = log.lines().filter_map(|line| {
        let (_, rest) = line.split_once("test result: ")?;
        let (_, rest) = rest.split_once(". ")?;
        rest.split_once(" passed")?.0.parse::<usize>().ok()
    });
    passed.sum()
}

/// The names of tests that failed, which are the last list that libtest made of them, and why the first one did: a log
/// may be gone when the summary is read.
fn tests_failed(log: &str) -> String {
    let Some((before, list)) = log.rsplit_once("\nfailures:\n") else { return String::new() };
    let names: Vec<&str> =
        list.lines().map_while(|line| line.strip_prefix("    ")).map(str::trim).collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    let mut text = names[..names.len() - more].join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    if let Some(why) = names.first().and_then(|name| why_it_failed(before, name)) {
        text += &format!(": {why}");
    }
    text
}

/// What a test said that failed, on one line: behind its name, where what it printed was kept for the end.
fn why_it_failed(log: &str, name: &str) -> Option<String> {
    let kept = log.rsplit_once(&format!("---- {name} stdout ----\n"));
    let said = match kept {
        Some((_, said)) => said.split("\n---- ").next()?,
        None => said_by(log, name)?,
    };
    let told = |line: &&str| !(line.is_empty() || line.starts_with("note: run with"));
    let lines: Vec<&str> = said.lines().map(str::trim).filter(told).collect();
    let why = both_ends(&lines.join(" | "));
    (!why.is_empty()).then_some(why)
}

/// What a test came to, where nothing was kept: its error, or where it panicked. One at a time, a test's name is
/// printed before what it says; of several at once, with its result. The first result tells: a test in a namespace is
/// this program once more, and the outer one says only that the inner one failed.
fn said_by<'a>(log: &'a str, name: &str) -> Option<&'a str> {
    const WORDS: [&str; 2] = ["Error: ", "thread '"];
    let (before, own) = log.split_once(&format!("test {name} ... "))?;
    let is_over = own.starts_with("FAILED");
    let own = own.split("\ntest ").next().filter(|_| !is_over).unwrap_or_default();
    if let Some(start) = WORDS.into_iter().filter_map(|word| own.find(word)).min() {
        return Some(&own[start..]);
    }
    let line_with = |word: &str| before.rfind(&format!("\n{word}")).map(|at| at + 1);
    let panicked = line_with(&format!("thread '{name}'"));
    let start = panicked.or_else(|| WORDS.into_iter().filter_map(line_with).max())?;
    Some(&before[start..])
}

/// The text itself, or its beginning and its end: what was compared is in the first, what a daemon said in the last.
fn both_ends(text: &str) -> String {
    let text: Vec<char> = text.chars().filter(|c| !c.is_control()).collect();
    if text.len() <= 2 * WHY_MAX {
        return text.into_iter().collect();
    }
    let (start, end) = (&text[..WHY_MAX], &text[text.len() - WHY_MAX..]);
    start.iter().chain(&[' ', '\u{2026}', ' ']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Duration;

    use testing::daemon::await_within;
    use testing::lacking::left_out;
    use testing::scratch::Scratch;

    use super::*;

    const NAMES: &str = "suite::found::tests::";

    fn end(status: i32) -> End {
        End {
            status: ExitStatus::from_raw(status),
            was_ended: false,
            seconds: 2.04,
            worked_seconds: 0.0,
        }
    }

    fn outcome(kind: Kind, check: &str, detail: &str) -> Outcome {
        Outcome::new(kind, check, detail)
    }

    #[test]
    fn a_line_that_was_cut_off_is_a_failure() {
        let text = "{\"kind\":\"pass\",\"check\":\"a\",\"detail\":\"\"}\n{\"kind\":\"pa";
        let found = recorded(text);
        assert_eq!(found[0], outcome(Kind::Pass, "a", ""));
        assert_eq!((found.len(), found[1].kind()), (2, Kind::Fail));
    }

    #[test]
    fn what_shell_records_has_the_name_of_its_case_no_more() {
        let text = "pass\tfio/verify\t3 jobs\nskip\tfio\tno fio\t here\nfail\tgroup\tstatus 1\n";
        let wanted = [
            outcome(Kind::Pass, "verify", "3 jobs"),
            outcome(Kind::Skip, "", "no fio\t here"),
            outcome(Kind::Fail, "group", "status 1"),
        ];
        assert_eq!(recorded_by_shell("fio", text), wanted);
        let whole = recorded_by_shell("", "pass\tstart\t\npass\tdied/twice\t\n");
        assert_eq!(
            whole,
            [outcome(Kind::Pass, "start", ""), outcome(Kind::Pass, "died/twice", "")]
        );
    }

    #[test]
    fn the_end_of_a_case_is_a_failure_only_where_it_tells_something() {
        let (pass, fail) = (outcome(Kind::Pass, "a", ""), outcome(Kind::Fail, "a", ""));
        let last = |outcomes: &[Outcome], end: &End| {
            with_its_end(outcomes.to_vec(), end).last().unwrap().detail().to_owned()
        };
        assert_eq!(last(&[], &end(0)), "no check ran");
        assert_eq!(last(std::slice::from_ref(&pass), &end(0)), "");
        assert_eq!(last(std::slice::from_ref(&pass), &end(9)), "signal: 9 (SIGKILL)");
        assert_eq!(last(std::slice::from_ref(&fail), &end(1 << 8)), "");
        let ended = End { was_ended: true, ..end(9) };
        assert_eq!(last(&[fail], &ended), "it was ended after 2 s: its time was over");
    }

    #[test]
    fn what_tests_leave_out_is_skipped_with_its_reasons() {
        let log = "test a ... skipped: no loop device\nok\ntest b ... ok\nskipped: no loop device\n\
                   skipped: no vsock\n\
                   test result: ok. 4 passed; 0 failed; 0 ignored; finished in 0.00s\n";
        let skip = |why: &str| outcome(Kind::Skip, "", why);
        let wanted = [
            skip("no loop device (2 tests)"),
            skip("no vsock"),
            outcome(Kind::Pass, "", "4 tests, 2.0 s"),
        ];
        assert_eq!(of_tests(log, &end(0)), wanted);
        let all = log.replace("4 passed", "3 passed");
        assert_eq!(of_tests(&all, &end(0)), wanted[..2]);
        let twice = "test a ... skipped: no loop device\nskipped: no vsock\nok\ntest b ... ok\n\
                     test result: ok. 2 passed; 0 failed; 0 ignored; finished in 0.00s\n";
        let wanted =
            [skip("no loop device"), skip("no vsock"), outcome(Kind::Pass, "", "2 tests, 2.0 s")];
        assert_eq!(of_tests(twice, &end(0)), wanted);
    }

    #[test]
    #[ignore = "run by what_a_real_program_of_tests_says_is_understood"]
    fn one_that_fails() -> Result<(), String> {
        Err("5 to 2".to_owned())
    }

    #[test]
    #[ignore = "run by what_a_real_program_of_tests_says_is_understood"]
    fn one_that_panics() {
        panic!("no bytes");
    }

    #[test]
    #[ignore = "run by what_a_real_program_of_tests_says_is_understood"]
    fn one_that_leaves_something_out() {
        left_out("no loop device");
        left_out("no vsock");
    }

    /// Another toolchain may print otherwise.
    #[test]
    fn what_a_real_program_of_tests_says_is_understood() {
        let folder = Scratch::new(&std::env::temp_dir(), "found").unwrap();
        let ran = |tests: &[&str], threads: u32| {
            let path = folder.path().join("log");
            let log = std::fs::File::create(&path).unwrap();
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(tests.iter().map(|test| format!("{NAMES}{test}")));
            command.args(["--exact", "--ignored", "--nocapture"]);
            command.arg(format!("--test-threads={threads}"));
            let status = command.stdout(log.try_clone().unwrap()).stderr(log).status().unwrap();
            of_tests(&std::fs::read_to_string(path).unwrap(), &End { status, ..end(0) })
        };
        for threads in [1, 4] {
            let said = |tests: &[&str]| {
                let found = ran(tests, threads);
                let [.., last] = &found[..] else { panic!("nothing was found") };
                assert_eq!(last.kind(), Kind::Fail);
                last.detail().to_owned()
            };
            let fails = said(&["one_that_fails"]);
            assert!(
                fails.starts_with(&format!("{NAMES}one_that_fails: Error: \"5 to 2\"")),
                "{fails}"
            );
            let panics = said(&["one_that_panics", "one_that_leaves_something_out"]);
            assert!(
                panics.contains("one_that_panics: thread") && panics.contains("no bytes"),
                "{panics}"
            );
            let both = said(&["one_that_fails", "one_that_panics"]);
            assert!(
                both.starts_with(&format!("{NAMES}one_that_fails, {NAMES}one_that_panics: ")),
                "{both}"
            );
            assert_eq!(said(&["none_of_that_name"]), "no test of that name ran");
        }
        let skip = |why: &str| outcome(Kind::Skip, "", why);
        let wanted = [skip("no loop device"), skip("no vsock")];
        assert_eq!(ran(&["one_that_leaves_something_out"], 1), wanted);
    }

    #[test]
    fn what_did_not_come_in_time_may_be_tried_again() {
        let late = await_within(Duration::ZERO, "a thing", || Ok(false)).unwrap_err();
        assert!(may_be_tried_again(&[outcome(Kind::Fail, "", &late.to_string())]));
    }

    #[test]
    fn tests_that_fail_are_named_and_none_at_all_is_a_failure() {
        let log = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nno\n\nfailures:\n    a\n    \
                   rows::b\n\ntest result: FAILED. 3 passed; 2 failed; 0 ignored\n";
        assert_eq!(of_tests(log, &end(101 << 8)), [outcome(Kind::Fail, "", "a, rows::b: no")]);
        let compared = log.replace("no\n", "\nthread 'a' panicked at a.rs:1:2:\n  left: 0\n right: 2\n\
                                           note: run with `RUST_BACKTRACE=1`\n\n---- rows::b stdout ----\nb\n");
        let why = "a, rows::b: thread 'a' panicked at a.rs:1:2: | left: 0 | right: 2";
        assert_eq!(of_tests(&compared, &end(101 << 8)), [outcome(Kind::Fail, "", why)]);
        let printed = "test b ... ok\ntest rows::a ... a: 3\nError: 5 to 2\nFAILED\ntest c ... Error: none\nok\n\
                       \nfailures:\n\nfailures:\n    rows::a\n";
        let why = "rows::a: Error: 5 to 2 | FAILED";
        assert_eq!(of_tests(printed, &end(101 << 8)), [outcome(Kind::Fail, "", why)]);
        let at_once = "test b ... ok\nError: 5 to 2\n\nCaused by:\n    late\ntest a ... FAILED\n\nfailures:\n\n\
                       failures:\n    a\n";
        let why = "a: Error: 5 to 2 | Caused by: | late";
        assert_eq!(of_tests(at_once, &end(101 << 8)), [outcome(Kind::Fail, "", why)]);
        let outer = "\nError: a, in its namespace: exit status: 101\ntest a ... FAILED\n\nfailures:\n\nfailures:\n    a\n";
        let in_namespace = format!("{at_once}{outer}");
        assert_eq!(of_tests(&in_namespace, &end(101 << 8)), [outcome(Kind::Fail, "", why)]);
        assert_eq!(of_tests("", &end(101 << 8)), [outcome(Kind::Fail, "", "exit status: 101")]);
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 9 filtered out\n";
        assert_eq!(of_tests(none, &end(0)), [outcome(Kind::Fail, "", "no test of that name ran")]);
    }

    #[test]
    fn of_a_long_reason_the_beginning_and_the_end_are_told() {
        let long = format!("{}{}{}", "a".repeat(WHY_MAX), "b".repeat(9), "c".repeat(WHY_MAX));
        let wanted = format!("{} \u{2026} {}", "a".repeat(WHY_MAX), "c".repeat(WHY_MAX));
        assert_eq!((both_ends(&long), both_ends("a\tb")), (wanted, "ab".to_owned()));
    }

    #[test]
    fn a_command_passes_by_its_status() {
        assert_eq!(of_command("", &end(0)), [outcome(Kind::Pass, "", "2.0 s")]);
        assert_eq!(of_command("", &end(1 << 8)), [outcome(Kind::Fail, "", "exit status: 1")]);
    }

    #[test]
    fn wrong_bytes_are_never_tried_again() {
        let fail = |detail| outcome(Kind::Fail, "fio", detail);
        let late = "guest one gave no READY fio in 240 s: its processors ..";
        assert!(may_be_tried_again(&[fail(late), outcome(Kind::Pass, "verify", "")]));
        assert!(!may_be_tried_again(&[fail(late), fail("verify: bad header")]));
        assert!(!may_be_tried_again(&[fail("")]));
        assert!(!may_be_tried_again(&[outcome(Kind::Pass, "ready", "")]));
    }

    #[test]
    fn a_kernel_without_timer_interrupts_stands_still() {
        let console =
            "a\r\n[   21.0] rcu: rcu_preempt kthread timer wakeup didn't happen for 5252 jiffies!";
        assert!(stood_still(console));
        assert!(!stood_still("[ 21.0] rcu: INFO: rcu_preempt self-detected stall on CPU"));
    }

    #[test]
    fn times_that_were_not_judged_are_counted() {
        assert_eq!(not_judged("a\nnot judged here: 3 s\ntest b ... not judged here: 1 s\n"), 2);
    }
}
