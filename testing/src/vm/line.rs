//! The two serial ports on which a guest takes orders and says what came of them (`tests/guest/init`).
//!
//! Results are lines of a file: a guest that moves to another QEMU goes on in the same file. Orders go
//! by a pair of FIFOs, which each QEMU has of its own.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bed::Bed;

/// One guest's line.
#[derive(Debug)]
pub(super) struct Line {
    results: PathBuf,
    console: PathBuf,
    /// Kept open both ways: without a reader, as when QEMU has ended, nobody waits for ever.
    orders: File,
}

impl Line {
    /// The files of VM `name` in `folder`; of one that goes on where `after` ends, these are the same.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn lay(folder: &Path, name: &str, after: Option<&str>) -> Result<Line> {
        let file = |what: &str| folder.join(format!("{name}.{what}"));
        for what in ["console", "results", "orders.in", "orders.out"] {
            let _ = std::fs::remove_file(file(what));
        }
        let fifos = [file("orders.in"), file("orders.out")];
        let made = Command::new("mkfifo").args(&fifos).status().context("starting mkfifo")?;
        ensure!(made.success(), "no FIFOs for the guest's orders in {}", folder.display());
        if let Some(after) = after {
            for what in ["console", "results"] {
                let before = folder.join(format!("{after}.{what}"));
                // To the file itself: a chain of forty links is too long for the kernel.
                symlink(std::fs::canonicalize(before)?, file(what))?;
            }
        }
        let orders = File::options().read(true).write(true).open(&fifos[0])?;
        Ok(Line { results: file("results"), console: file("console"), orders })
    }

    /// Sends one line.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        Ok(self.orders.write_all(format!("{line}\n").as_bytes())?)
    }

    /// The whole lines that the guest has said so far.
    pub(super) fn said(&self) -> Vec<String> {
        let text = std::fs::read(&self.results).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| line.trim_end_matches('\r').to_string()).collect()
    }

    /// What its kernel has said.
    pub(super) fn console(&self) -> String {
        let text = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&text).replace('\r', "")
    }
}

/// An answer to an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: i32,
    /// Its output, its last 16,000 bytes at most.
    pub(super) output: String,
}

/// The answer to order `number`, if it is among the lines.
pub(super) fn answer(lines: &[String], number: u64) -> Option<Answer> {
    let status = format!("STATUS {number} ");
    let out = format!("OUT {number} ");
    let status = lines.iter().find_map(|line| line.strip_prefix(&status))?.trim().parse().ok()?;
    let output: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix(&out)).collect();
    Some(Answer { status, output: output.join("\n") })
}

/// Records the checks among the lines, `RESULT name ok|FAIL detail`: whether all of them passed, and how many
/// there are.
pub fn record(lines: &[String], bed: &Bed, prefix: &str) -> (bool, usize) {
    let (mut all, mut count) = (true, 0);
    for line in lines.iter().filter_map(|line| line.strip_prefix("RESULT ")) {
        let (name, said) = line.split_once(' ').unwrap_or((line, ""));
        let name = format!("{prefix}{name}");
        count += 1;
        match said.strip_prefix("ok") {
            Some(detail) => bed.passed(&name, detail.trim()),
            None => {
                all = false;
                bed.failed(&name, said.trim_start_matches("FAIL").trim());
            }
        }
    }
    (all, count)
}

/// What the kernel complained of: of a wait less than two minutes are no complaint.
pub(super) fn complaint(console: &str) -> Option<&str> {
    let is_long = |line: &str| {
        let after = line.split_once("blocked for more than ").map(|(_, rest)| rest);
        let seconds = after.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        seconds.is_some_and(|seconds| seconds >= 120)
    };
    let words = ["I/O error", "Kernel panic", "Oops", "BUG:"];
    console.lines().find(|line| words.iter().any(|word| line.contains(word)) || is_long(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(ToString::to_string).collect()
    }

    #[test]
    fn an_answer_is_its_own_numbers_lines() {
        let said = lines("OUT 7 a\nOUT 71 x\nOUT 7 b\nSTATUS 71 1\nSTATUS 7 3");
        let wanted = Answer { status: 3, output: "a\nb".to_string() };
        assert_eq!(answer(&said, 7), Some(wanted));
        assert_eq!(answer(&said, 1), None);
    }

    #[test]
    fn a_kernel_complains_by_its_words_and_of_long_waits_alone() {
        let short = "task fio:1 blocked for more than 40 seconds.";
        assert_eq!(complaint(short), None);
        let long = "task fio:1 blocked for more than 122 seconds.";
        assert_eq!(complaint(long), Some(long));
        assert!(complaint("a\nblk_update_request: I/O error, dev vda\n").is_some());
    }
}
