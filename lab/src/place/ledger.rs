//! The file of rows, and which stands are done in it: a place that is started anew, because it died, goes on with
//! the first that is not.
//!
//! Not what a row is (`rows`), nor who starts a place anew (`host::emulated`). Used by `place`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::rows::{Done, Line, Row};

/// The file, open behind the last stand that is done.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
    done: Vec<Done>,
}

impl Ledger {
    /// Takes what a place left in the file, or makes it. What lies behind the last stand that is done is cut off: its
    /// stand is measured again.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub(crate) fn open(path: &Path) -> Result<Ledger> {
        let mut open = OpenOptions::new();
        let open = open.read(true).write(true).create(true).truncate(false);
        let mut file = open.open(path).with_context(|| format!("{}", path.display()))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let (end, done) = done_in(&text);
        file.set_len(end).with_context(|| format!("{}", path.display()))?;
        file.seek(SeekFrom::Start(end))?;
        Ok(Ledger { file, done })
    }

    /// How a stand ended that needs not be measured any more.
    pub(crate) fn done(&self, stand: &str) -> Option<&Done> {
        self.done.iter().find(|done| done.stand_done == stand)
    }

    /// A stand's rows, and that it is done.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&mut self, rows: Vec<Row>, done: Done) -> Result<()> {
        let mut text = String::new();
        for line in rows.into_iter().map(Line::Row).chain([Line::Done(done)]) {
            text += &serde_json::to_string(&line)?;
            text.push('\n');
        }
        self.file.write_all(text.as_bytes()).context("rows")
    }
}

/// Where the last stand ends that is done, and all that are. What comes behind a line that is none of ours is not read.
fn done_in(text: &[u8]) -> (u64, Vec<Done>) {
    let (mut at, mut end, mut found) = (0, 0, Vec::new());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        at += line.len() as u64;
        match serde_json::from_slice(line) {
            Ok(Line::Done(done)) if line.ends_with(b"\n") => {
                end = at;
                found.push(done);
            }
            Ok(Line::Row(_)) => {}
            _ => break,
        }
    }
    (end, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(who: &str) -> Row {
        Row::new("lab.net.udp_rr.ops_per_s".into(), who, 1.5, "1/s")
    }

    fn done(stand: &str, failed: bool) -> Done {
        Done { stand_done: stand.into(), failed }
    }

    /// Two stands, the second of which failed.
    fn written(path: &Path) -> Result<String> {
        let mut ledger = Ledger::open(path)?;
        ledger.write(vec![row("qemu"), row("qemu")], done("one", false))?;
        ledger.write(vec![row("vhost-net")], done("two", true))?;
        Ok(std::fs::read_to_string(path)?)
    }

    #[test]
    fn wherever_a_place_dies_each_stand_is_in_the_file_once_at_the_end() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("rows.json");
        let whole = written(&path)?;
        assert_eq!(whole.lines().count(), 5);
        for died_at in 0..=whole.len() {
            std::fs::write(&path, &whole[..died_at])?;
            let mut ledger = Ledger::open(&path)?;
            for (stand, failed, rows) in
                [("one", false, vec![row("qemu"); 2]), ("two", true, vec![row("vhost-net")])]
            {
                match ledger.done(stand) {
                    Some(before) => assert_eq!(before.failed, failed),
                    None => ledger.write(rows, done(stand, failed))?,
                }
            }
            assert_eq!(std::fs::read_to_string(&path)?, whole, "died at {died_at}");
        }
        Ok(())
    }

    #[test]
    fn what_was_done_is_kept_and_what_is_no_line_of_ours_is_cut_off() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("rows.json");
        let whole = written(&path)?;
        let kept = |text: &str| -> Result<(usize, usize)> {
            std::fs::write(&path, text)?;
            let ledger = Ledger::open(&path)?;
            Ok((ledger.done.len(), std::fs::read(&path)?.len()))
        };
        assert_eq!(kept(&whole)?, (2, whole.len()));
        let first: usize = whole.split_inclusive('\n').take(3).map(str::len).sum();
        let (one, rest) = whole.split_at(first);
        // The second stand's end without its line's.
        assert_eq!(kept(whole.trim_end())?, (1, first));
        assert_eq!(kept(&format!("{one}\0\0\0\n{rest}"))?, (1, first));
        assert_eq!(kept("what is this?\n")?, (0, 0));
        Ok(())
    }
}
