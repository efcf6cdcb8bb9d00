//! What a case of `./x test` is given: a folder of its own, and a place for what it finds.
//!
//! In the folder the runner (`suite`, crate `tests`) reads the file `outcomes`, one line of JSON a check, and
//! the file `word`, what the case is at. Not here: which cases there are, and how they are run.

use std::fmt::{Debug, Display};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::timing;

/// Name of the file of outcomes in a case's folder.
pub const OUTCOMES: &str = "outcomes";
/// Name of the file with the word that a case said last.
pub const WORD: &str = "word";
/// Most bytes of what is said of one check; the rest is cut off.
const DETAIL_BYTES_MAX: usize = 4 << 10;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It held.
    Pass,
    /// It did not.
    Fail,
    /// It was not done here.
    Skip,
}

/// One check, as it stands in the file of outcomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    kind: Kind,
    check: String,
    detail: String,
}

impl Outcome {
    /// An outcome of `check`; an empty name is the case itself.
    pub fn new(kind: Kind, check: impl Into<String>, detail: impl Display) -> Outcome {
        let mut detail = detail.to_string();
        if detail.len() > DETAIL_BYTES_MAX {
            detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
            detail.push_str(" [..]");
        }
        Outcome { kind, check: check.into(), detail }
    }

    /// How it ended.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its name; empty for the case itself.
    pub fn check(&self) -> &str {
        &self.check
    }

    /// What there is to say of it.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// What a case needs of the machine that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To be root.
    Root,
    /// To be root, with `/dev/fuse`.
    Fuse,
    /// A `/dev/kvm` that may be written.
    Kvm,
    /// A program that is in none of the packages that `./x test` installs.
    Program(&'static str),
}

impl Need {
    /// Why it is not there; nothing if it is.
    pub fn missing(self) -> Option<String> {
        let is_root = rustix::process::geteuid().is_root();
        match self {
            Need::Root => (!is_root).then(|| "needs root".to_owned()),
            Need::Fuse => (!is_root || !Path::new("/dev/fuse").exists())
                .then(|| "needs root and /dev/fuse: its disk is a FUSE file".to_owned()),
            Need::Kvm => rustix::fs::access("/dev/kvm", rustix::fs::Access::WRITE_OK)
                .is_err()
                .then(|| "no /dev/kvm that may be written".to_owned()),
            Need::Program(name) => {
                let folders = std::env::var_os("PATH").unwrap_or_default();
                let is_there = std::env::split_paths(&folders).any(|at| at.join(name).is_file());
                (!is_there).then(|| format!("{name} is not installed"))
            }
        }
    }
}

/// What a case is given: a folder of its own, and where its outcomes go.
///
/// What it records is written at once, so that nothing is lost when the case dies. Threads of a case share it.
#[derive(Debug)]
pub struct Bed {
    folder: PathBuf,
    outcomes: File,
    wanted: Vec<String>,
    /// What comes before the names of checks: of a part, its name and a slash.
    part: String,
    has_failed: AtomicBool,
    has_recorded: AtomicBool,
}

impl Bed {
    /// A bed in `folder`, which exists; `wanted` are the checks that were asked for, none for all.
    ///
    /// # Errors
    /// The file of outcomes cannot be made.
    pub fn new(folder: &Path, wanted: Vec<String>) -> Result<Bed> {
        let path = folder.join(OUTCOMES);
        let outcomes = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("making {}", path.display()))?;
        Ok(Bed {
            folder: folder.to_owned(),
            outcomes,
            wanted,
            part: String::new(),
            has_failed: AtomicBool::default(),
            has_recorded: AtomicBool::default(),
        })
    }

    /// The bed of one part of a case: its checks have the part's name before theirs.
    ///
    /// # Errors
    /// The file of outcomes cannot be opened once more.
    pub fn part(&self, name: &str) -> Result<Bed> {
        let outcomes = self.outcomes.try_clone()?;
        let (folder, part) = (self.folder.clone(), format!("{}{name}/", self.part));
        let [has_failed, has_recorded] = [AtomicBool::default(), AtomicBool::default()];
        Ok(Bed { folder, outcomes, wanted: Vec::new(), part, has_failed, has_recorded })
    }

    /// The case's folder, for images, sockets and logs. It is removed when the case has passed.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Records that `check` held.
    pub fn passed(&self, check: &str, detail: impl Display) {
        self.record(Kind::Pass, check, &detail);
    }

    /// Records that `check` did not hold.
    pub fn failed(&self, check: &str, detail: impl Display) {
        self.record(Kind::Fail, check, &detail);
    }

    /// Records that `check` was not done, and why.
    pub fn skipped(&self, check: &str, why: impl Display) {
        self.record(Kind::Skip, check, &why);
    }

    /// Records what `check` came to: its detail, or the words of its error. Whether it held.
    pub fn check<T: Display>(&self, check: &str, result: Result<T>) -> bool {
        match &result {
            Ok(detail) => self.passed(check, detail),
            Err(error) => self.failed(check, format_args!("{error:#}")),
        }
        result.is_ok()
    }

    /// Records whether `got` is what was `wanted`.
    pub fn same<T: PartialEq + Debug>(&self, check: &str, got: T, wanted: T) -> bool {
        let is_same = got == wanted;
        if is_same {
            self.passed(check, "");
        } else {
            self.failed(check, format_args!("wanted {wanted:?}, got {got:?}"));
        }
        is_same
    }

    /// Whether anything was recorded of this bed, apart from its parts: what checks nothing is no part.
    pub fn has_recorded(&self) -> bool {
        self.has_recorded.load(Ordering::Relaxed)
    }

    /// Whether a check of this bed, apart from its parts', has failed.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Says a word for the line of progress and for the log.
    pub fn say(&self, words: impl Display) {
        let words = words.to_string();
        let _ = writeln!(std::io::stderr(), "{words}");
        let _ = std::fs::write(self.folder.join(WORD), words);
    }

    /// Whether this run judges times and rates.
    pub fn judges_times(&self) -> bool {
        timing::are_judged()
    }

    /// How often to do something: `all` with `--all`, otherwise `default`.
    pub fn often(&self, default: u64, all: u64) -> u64 {
        if tests_all() { all } else { default }
    }

    /// Whether `check` was asked for; all are if none was named.
    pub fn wants(&self, check: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|name| name == check)
    }

    /// Whether the machine has what is needed; if not, the case is recorded as skipped.
    pub fn needs(&self, need: Need) -> bool {
        let missing = need.missing();
        if let Some(why) = &missing {
            self.skipped("", why);
        }
        missing.is_none()
    }

    fn record(&self, kind: Kind, check: &str, detail: &dyn Display) {
        self.has_recorded.store(true, Ordering::Relaxed);
        if kind == Kind::Fail {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        // A part as a whole has its name alone.
        let check = format!("{}{check}", self.part);
        let check = check.trim_end_matches('/');
        let outcome = Outcome::new(kind, check, detail);
        let word = match kind {
            Kind::Pass => "ok",
            Kind::Fail => "FAIL",
            Kind::Skip => "skip",
        };
        let _ = writeln!(std::io::stderr(), "{word} {check} {}", outcome.detail);
        // In one write, so that lines of several threads stay apart.
        let line = serde_json::to_string(&outcome).map(|line| line + "\n");
        let is_written = line.is_ok_and(|line| (&self.outcomes).write_all(line.as_bytes()).is_ok());
        assert!(is_written, "an outcome cannot be written to {}", self.folder.display());
    }
}

/// Whether `--all` was asked for (`TEST_ALL`).
pub fn tests_all() -> bool {
    std::env::var_os("TEST_ALL").is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn outcomes(bed: &Bed) -> Vec<Outcome> {
        let text = std::fs::read_to_string(bed.folder().join(OUTCOMES)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn what_is_recorded_stands_in_the_file() {
        let scratch = Scratch::new(&std::env::temp_dir(), "bed-records").unwrap();
        let bed = Bed::new(scratch.path(), Vec::new()).unwrap();
        assert!(bed.check("size", Ok("40 MiB")));
        assert!(!bed.check("load", Err::<&str, _>(anyhow::anyhow!("no fio").context("load"))));
        assert!(bed.same("count", 3, 3));
        assert!(!bed.same("queues", 3, 4));
        bed.skipped("", "no loop device\nhere");
        let outcome = |kind, check: &str, detail: &str| Outcome::new(kind, check, detail);
        assert_eq!(
            outcomes(&bed),
            [
                outcome(Kind::Pass, "size", "40 MiB"),
                outcome(Kind::Fail, "load", "load: no fio"),
                outcome(Kind::Pass, "count", ""),
                outcome(Kind::Fail, "queues", "wanted 4, got 3"),
                outcome(Kind::Skip, "", "no loop device\nhere"),
            ]
        );
    }

    #[test]
    fn a_long_detail_is_cut_between_two_letters() {
        let outcome = Outcome::new(Kind::Fail, "a", "ä".repeat(DETAIL_BYTES_MAX));
        assert!(outcome.detail().len() <= DETAIL_BYTES_MAX + 5, "{}", outcome.detail().len());
        assert!(outcome.detail().ends_with("ä [..]"));
    }

    #[test]
    fn the_checks_that_were_asked_for_are_wanted() {
        let scratch = Scratch::new(&std::env::temp_dir(), "bed-wants").unwrap();
        let all = Bed::new(scratch.path(), Vec::new()).unwrap();
        let one = Bed::new(scratch.path(), vec!["fio".to_owned()]).unwrap();
        assert!(all.wants("fio") && all.wants("ext4"));
        assert!(one.wants("fio") && !one.wants("ext4"));
    }

    #[test]
    fn a_program_that_is_not_there_is_missed() {
        assert_eq!(Need::Program("sh").missing(), None);
        let missing = Need::Program("no-such-program-here").missing();
        assert_eq!(missing.as_deref(), Some("no-such-program-here is not installed"));
    }
}
