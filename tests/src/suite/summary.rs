//! What a run came to: the table of groups, and the words of all that did not pass.

use std::fmt::Write;

use serde_json::json;
use testing::bed::{Kind, Outcome};

/// A case that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its group.
    pub group: String,
    /// Its name in the group; empty if it is all of it.
    pub case: String,
    /// What it found.
    pub outcomes: Vec<Outcome>,
    /// For how many seconds it ran.
    pub seconds: f64,
    /// For how many seconds processors worked for it.
    pub worked_seconds: f64,
    /// How many times and rates did not hold and were not judged.
    pub not_judged: usize,
    /// Whether it was run once more, since an emulated machine stood still.
    pub was_run_again: bool,
    /// How many of its guests were booted once more, since they never reached their kernel.
    pub booted_again: usize,
}

impl Ended {
    /// A case that has found `outcomes`, and nothing more.
    pub fn new(group: &str, case: &str, outcomes: Vec<Outcome>) -> Ended {
        let (group, case) = (group.to_owned(), case.to_owned());
        Ended {
            group,
            case,
            outcomes,
            seconds: 0.0,
            worked_seconds: 0.0,
            not_judged: 0,
            was_run_again: false,
            booted_again: 0,
        }
    }

    /// `GROUP/CASE`.
    pub fn name(&self) -> String {
        joined(&[&self.group, &self.case])
    }

    /// How many of its checks ended so.
    pub fn count(&self, kind: Kind) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.kind() == kind).count()
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Its cases.
    pub ended: Vec<Ended>,
    /// For how many seconds something was being built.
    pub build_seconds: f64,
    /// How long it took altogether.
    pub seconds: f64,
}

impl Summary {
    /// How many checks ended so.
    pub fn count(&self, kind: Kind) -> usize {
        self.ended.iter().map(|ended| ended.count(kind)).sum()
    }

    /// Whether all was well: something passed, and nothing failed.
    pub fn is_good(&self) -> bool {
        self.count(Kind::Fail) == 0 && self.count(Kind::Pass) > 0
    }

    /// The table, and what did not pass.
    pub fn text(&self) -> String {
        let mut text =
            format!("{}\n", row("group", "passed", "failed", "skipped", "seconds", "worked"));
        let mut groups: Vec<&str> = Vec::new();
        for ended in &self.ended {
            if !groups.contains(&&*ended.group) {
                groups.push(&ended.group);
            }
        }
        for group in groups {
            let of_group: Vec<&Ended> =
                self.ended.iter().filter(|ended| ended.group == group).collect();
            let count = |kind| of_group.iter().map(|ended| ended.count(kind)).sum::<usize>();
            text += &numbers(group, count, times(of_group.iter().copied()));
        }
        text += &numbers("all", |kind| self.count(kind), times(&self.ended));
        for kind in [Kind::Skip, Kind::Fail] {
            text += &self.words_of(kind);
        }
        text += &self.notes();
        let _ = writeln!(
            text,
            "{} s altogether, building included: {} s",
            self.seconds.round(),
            self.build_seconds.round()
        );
        text
    }

    /// One JSON object a check, and one for the run.
    pub fn json(&self) -> String {
        let mut lines = String::new();
        for ended in &self.ended {
            for outcome in &ended.outcomes {
                let name = joined(&[&ended.group, &ended.case, outcome.check()]);
                let (kind, detail) = (outcome.kind(), outcome.detail());
                let _ = writeln!(
                    lines,
                    "{}",
                    json!({ "name": name, "outcome": kind, "detail": detail })
                );
            }
        }
        let run = json!({
            "passed": self.count(Kind::Pass), "failed": self.count(Kind::Fail),
            "skipped": self.count(Kind::Skip), "seconds": self.seconds,
            "build_seconds": self.build_seconds, "worked_seconds": times(&self.ended).1,
            "not_judged": self.ended.iter().map(|ended| ended.not_judged).sum::<usize>(),
        });
        let _ = writeln!(lines, "{run}");
        lines
    }

    fn words_of(&self, wanted: Kind) -> String {
        let word = if wanted == Kind::Fail { "fail" } else { "skip" };
        let mut text = String::new();
        for ended in &self.ended {
            for outcome in ended.outcomes.iter().filter(|outcome| outcome.kind() == wanted) {
                let name = joined(&[&ended.group, &ended.case, outcome.check()]);
                let detail = outcome.detail().trim_end().replace('\n', "\n      ");
                let _ = writeln!(text, "{word}  {name}: {detail}");
            }
        }
        text
    }

    /// What is no failure and yet to be known.
    fn notes(&self) -> String {
        let mut text = String::new();
        let again: Vec<String> =
            self.ended.iter().filter(|ended| ended.was_run_again).map(Ended::name).collect();
        if !again.is_empty() {
            let _ = writeln!(
                text,
                "run again, since an emulated machine stood still: {} ({})",
                again.len(),
                again.join(", ")
            );
        }
        let booted = self.ended.iter().filter(|ended| ended.booted_again > 0);
        let booted: Vec<String> = booted.map(Ended::name).collect();
        if !booted.is_empty() {
            let guests: usize = self.ended.iter().map(|ended| ended.booted_again).sum();
            let _ = writeln!(
                text,
                "guests booted again, since they never reached their kernel: {guests} ({})",
                booted.join(", ")
            );
        }
        let not_judged: usize = self.ended.iter().map(|ended| ended.not_judged).sum();
        let _ =
            writeln!(text, "times and rates that did not hold, and were not judged: {not_judged}");
        text
    }
}

/// Parts of a name, without those that are empty.
fn joined(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().filter(|part| !part.is_empty()).copied().collect();
    parts.join("/")
}

/// For how many seconds cases ran, and for how many processors worked for them.
fn times<'a>(ended: impl IntoIterator<Item = &'a Ended>) -> (f64, f64) {
    let add = |sum: (f64, f64), of: &Ended| (sum.0 + of.seconds, sum.1 + of.worked_seconds);
    ended.into_iter().fold((0.0, 0.0), add)
}

fn row(
    name: &str,
    passed: &str,
    failed: &str,
    skipped: &str,
    seconds: &str,
    worked: &str,
) -> String {
    format!("{name:<10} {passed:>8} {failed:>8} {skipped:>8} {seconds:>9} {worked:>9}")
}

fn numbers(name: &str, count: impl Fn(Kind) -> usize, (seconds, worked): (f64, f64)) -> String {
    let of = |kind| count(kind).to_string();
    let (seconds, worked) = (format!("{seconds:.1}"), format!("{worked:.1}"));
    row(name, &of(Kind::Pass), &of(Kind::Fail), &of(Kind::Skip), &seconds, &worked) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let outcome = |kind, check: &str, detail: &str| Outcome::new(kind, check, detail);
        let fio = Ended {
            seconds: 7.25,
            worked_seconds: 5.0,
            not_judged: 2,
            was_run_again: true,
            booted_again: 1,
            ..Ended::new(
                "guest",
                "fio",
                vec![
                    outcome(Kind::Pass, "verify", ""),
                    outcome(Kind::Fail, "trim", "no blocks\nat all\n"),
                ],
            )
        };
        let kvm = Ended::new("foreign", "kvm", vec![outcome(Kind::Skip, "", "no /dev/kvm")]);
        let ext4 = Ended {
            seconds: 2.0,
            worked_seconds: 1.0,
            ..Ended::new("guest", "ext4", vec![outcome(Kind::Pass, "fsck", "clean")])
        };
        Summary { ended: vec![fio, kvm, ext4], build_seconds: 100.4, seconds: 105.0 }
    }

    #[test]
    fn the_table_counts_by_group_and_says_what_did_not_pass() {
        let wanted = "\
group        passed   failed  skipped   seconds    worked
guest             2        1        0       9.2       6.0
foreign           0        0        1       0.0       0.0
all               2        1        1       9.2       6.0
skip  foreign/kvm: no /dev/kvm
fail  guest/fio/trim: no blocks
      at all
run again, since an emulated machine stood still: 1 (guest/fio)
guests booted again, since they never reached their kernel: 1 (guest/fio)
times and rates that did not hold, and were not judged: 2
105 s altogether, building included: 100 s
";
        assert_eq!(summary().text(), wanted);
    }

    #[test]
    fn json_has_a_line_for_each_check_and_one_for_the_run() {
        let json = summary().json();
        let lines: Vec<serde_json::Value> =
            json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[1]["name"], "guest/fio/trim");
        assert_eq!(lines[2]["outcome"], "skip");
        assert_eq!((&lines[4]["failed"], &lines[4]["not_judged"]), (&json!(1), &json!(2)));
    }

    #[test]
    fn a_run_is_good_if_something_passed_and_nothing_failed() {
        let mut summary = summary();
        assert!(!summary.is_good());
        summary.ended.remove(0);
        assert!(summary.is_good());
        summary.ended.remove(1);
        assert!(!summary.is_good(), "nothing ran");
    }
}
