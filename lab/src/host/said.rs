//! What the host says while the lab runs: its own progress, and what the lab writes to a file, line by line.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use crate::waiting;

/// Lines on standard error with the seconds since the beginning.
#[derive(Debug)]
pub(super) struct Progress {
    began: Instant,
    is_bold: bool,
}

impl Progress {
    pub(super) fn begin() -> Progress {
        let is_bold = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Progress { began: waiting::now(), is_bold }
    }

    pub(super) fn say(&self, words: &str) {
        let seconds = waiting::now().duration_since(self.began).as_secs();
        let [bold, plain] = if self.is_bold { ["\x1b[1m", "\x1b[0m"] } else { [""; 2] };
        // A reader that hangs up is no reason to end what is measured.
        let _ = writeln!(std::io::stderr(), "{bold}{seconds:4}s{plain}  {words}");
    }
}

/// A file that grows.
#[derive(Debug)]
pub(super) struct Said {
    path: PathBuf,
    shown: usize,
}

impl Said {
    pub(super) fn of(path: PathBuf) -> Said {
        Said { path, shown: 0 }
    }

    /// Its whole lines that were not shown yet, as progress.
    pub(super) fn show(&mut self, progress: &Progress) {
        let text = self.text();
        let new = text.split_inclusive('\n').skip(self.shown).filter(|line| line.ends_with('\n'));
        for line in new {
            progress.say(&printable(line.trim_end()));
            self.shown += 1;
        }
    }

    /// How often a configuration was started once more, as it says.
    pub(super) fn retries(&self) -> u32 {
        retries(&self.text())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.path).unwrap_or_default()).into_owned()
    }
}

/// Without what would steer a terminal: some logs are consoles of guests.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|letter| matches!(letter, '\t' | '\n' | ' '..='~')).collect()
}

/// In lines of `(time N of M)` those that are not the last time.
fn retries(text: &str) -> u32 {
    let of_line = |line: &str| {
        let (_, rest) = line.rsplit_once("(time ")?;
        let (number, rest) = rest.split_once(" of ")?;
        let (all, _) = rest.split_once(')')?;
        Some(number.parse::<u32>().ok()? < all.parse().ok()?)
    };
    text.lines().filter(|line| of_line(line) == Some(true)).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_time_is_no_retry() {
        let text = "1 of 9: smoke, qemu (time 1 of 3): no answer\n1 of 9: smoke, qemu (time 2 of 3): (a)\n\
                    1 of 9: smoke, qemu (time 3 of 3): no\n2 of 9: starting 1 guest\n";
        assert_eq!(retries(text), 2);
    }

    #[test]
    fn whole_lines_are_shown_once() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("said");
        let mut said = Said::of(path.clone());
        let progress = Progress::begin();
        for (text, shown) in [("", 0), ("one\ntw", 1), ("one\ntwo\nthree\n", 3)] {
            std::fs::write(&path, text)?;
            said.show(&progress);
            assert_eq!(said.shown, shown);
        }
        assert_eq!(printable("\x1b[2Ja\tb\u{7f}"), "[2Ja\tb");
        Ok(())
    }
}
