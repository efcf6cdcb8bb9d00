//! What is kept of cases: their logs, what they leave in their folders when they fail, and how long they took.
//!
//! All of it is in `build/test`, which each run empties.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The file of what the compiler warns of.
pub const WARNINGS: &str = "warnings";
/// The file of times.
const TIMES: &str = "times";
/// Largest file that is kept of a case that failed: images are larger.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a log that are read: its end.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of a log that are looked at for its last lines.
const TAIL_BYTES_MAX: u64 = 64 << 10;

/// The folder.
#[derive(Debug)]
pub struct Shelf {
    folder: PathBuf,
    times: BTreeMap<String, f64>,
}

impl Shelf {
    /// Empties the folder, but for the times of runs before.
    ///
    /// # Errors
    /// It cannot be emptied or made.
    pub fn new(folder: &Path) -> Result<Shelf> {
        let file = folder.join(TIMES);
        let times = std::fs::read_to_string(&file).ok();
        let times = times.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        if folder.exists() {
            std::fs::remove_dir_all(folder)
                .with_context(|| format!("emptying {}", folder.display()))?;
        }
        std::fs::create_dir_all(folder)?;
        let shelf = Shelf { folder: folder.to_owned(), times };
        shelf.write_times()?;
        Ok(shelf)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps what the compiler warns of, for the case that looks at it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add_warnings(&self, warnings: &[String]) -> Result<()> {
        let mut file =
            std::fs::File::options().create(true).append(true).open(self.folder.join(WARNINGS))?;
        warnings.iter().try_for_each(|warning| writeln!(file, "{warning}\n"))?;
        Ok(())
    }

    /// How many seconds a case is expected to take: as long as the last time, or its `usual` ones.
    pub fn seconds(&self, name: &str, usual: u64) -> u64 {
        self.times.get(name).map_or(usual, |seconds| seconds.round() as u64)
    }

    /// Notes for how long a case ran.
    pub fn note_time(&mut self, name: &str, seconds: f64) {
        self.times.insert(name.to_owned(), (seconds * 10.0).round() / 10.0);
    }

    /// Writes all times, for the next run.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write_times(&self) -> Result<()> {
        Ok(std::fs::write(self.folder.join(TIMES), serde_json::to_string_pretty(&self.times)?)?)
    }

    /// The log of a case, in a folder of its own.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn log(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder.join("log"))
    }

    /// Keeps what a case has left in `scratch`, without images.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn keep(&self, name: &str, scratch: &Path) -> Result<()> {
        copy_small(scratch, &self.folder.join(name))
    }
}

/// Copies files that are not large, and folders that have some.
fn copy_small(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from)?.flatten() {
        // A file system that was mounted there may hang.
        let (Ok(kind), path) = (entry.file_type(), entry.path()) else { continue };
        let target = to.join(entry.file_name());
        if kind.is_dir() {
            copy_small(&path, &target)?;
        } else if kind.is_file() && entry.metadata().is_ok_and(|of| of.len() <= FILE_BYTES_MAX) {
            std::fs::create_dir_all(to)?;
            std::fs::copy(&path, &target).with_context(|| format!("keeping {}", path.display()))?;
        }
    }
    Ok(())
}

/// The files in a folder and the folders in it.
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_in(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

/// A log as text; of a large one the end.
pub fn text_of(log: &Path) -> String {
    end_of(log, LOG_BYTES_MAX).unwrap_or_default()
}

/// The last lines of a log that are not empty, without bytes that would steer a terminal: some logs are consoles of
/// guests.
pub fn tail(log: &Path, lines: usize) -> Vec<String> {
    let text = end_of(log, TAIL_BYTES_MAX).unwrap_or_default();
    let plain = |line: &str| line.chars().filter(|c| !c.is_control() || *c == '\t').collect();
    let all: Vec<String> =
        text.lines().map(plain).filter(|line: &String| !line.is_empty()).collect();
    all[all.len().saturating_sub(lines)..].to_vec()
}

fn end_of(path: &Path, bytes_max: u64) -> Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes_max)))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use testing::scratch::Scratch;

    #[test]
    fn times_outlive_a_run_and_logs_do_not() {
        let scratch = Scratch::new(&std::env::temp_dir(), "shelf-times").unwrap();
        let folder = scratch.path().join("test");
        let mut shelf = Shelf::new(&folder).unwrap();
        assert_eq!(shelf.seconds("guest/fio", 15), 15);
        shelf.note_time("guest/fio", 7.26);
        shelf.write_times().unwrap();
        let log = shelf.log("guest/fio").unwrap();
        std::fs::write(&log, "a").unwrap();
        let shelf = Shelf::new(&folder).unwrap();
        assert_eq!(shelf.seconds("guest/fio", 15), 7);
        assert!(!log.exists());
    }

    #[test]
    fn what_failed_leaves_its_small_files() {
        let scratch = Scratch::new(&std::env::temp_dir(), "shelf-keeps").unwrap();
        let case = scratch.path().join("case");
        std::fs::create_dir_all(case.join("images")).unwrap();
        std::fs::create_dir_all(case.join("run")).unwrap();
        let image = File::create(case.join("images/a.img")).unwrap();
        image.set_len(FILE_BYTES_MAX + 1).unwrap();
        std::fs::write(case.join("run/one.console"), "panic").unwrap();
        let shelf = Shelf::new(&scratch.path().join("test")).unwrap();
        shelf.keep("guest/fio", &case).unwrap();
        let kept = shelf.folder().join("guest/fio");
        assert_eq!(std::fs::read_to_string(kept.join("run/one.console")).unwrap(), "panic");
        assert!(!kept.join("images").exists());
    }

    #[test]
    fn the_end_of_a_log_steers_no_terminal() {
        let scratch = Scratch::new(&std::env::temp_dir(), "shelf-tail").unwrap();
        let log = scratch.path().join("log");
        std::fs::write(&log, b"one\n\x1b[2Jtwo\xff\r\n\n\tthree\n").unwrap();
        assert_eq!(tail(&log, 2), ["[2Jtwo\u{fffd}", "\tthree"]);
        assert_eq!(tail(&scratch.path().join("none"), 2), [""; 0]);
    }
}
