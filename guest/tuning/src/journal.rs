//! What was changed: one record a line, on disk before the change, so that a crash between any two writes is undone.
//!
//! A last line that is not whole is a crash's, of a change that had not begun. It is cut off before the next record.
//! Anything else that is not understood is refused: nobody guesses what was changed.

use serde::{Deserialize, Serialize};

use crate::place::Place;
use crate::system::{System, Trouble};

/// The format's number: another one is another program's.
pub const VERSION: u32 = 1;
/// Bytes of a value at most.
const VALUE_BYTES_MAX: usize = 256;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
enum Record {
    /// The first one.
    Journal { version: u32, boot: String },
    /// A value is about to be written.
    Write(Write),
    /// It is written.
    Done { number: u64, got: String, beside: Vec<Option<String>> },
    /// The old value is about to be put back.
    Undoing { number: u64 },
    /// Nothing is left to put back.
    Undone { number: u64 },
}

/// A value that is written, and what was there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Its number, from 1.
    pub number: u64,
    /// The rule.
    pub rule: String,
    /// The device's name and which one it is, if the setting is a device's.
    pub device: Option<(String, String)>,
    /// Where.
    pub place: Place,
    /// What was there.
    pub old: String,
    /// What is written.
    pub new: String,
    /// What the kernel may change with it, and what that was; nothing for what was not there.
    pub beside: Vec<(Place, Option<String>)>,
}

/// How far a write is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It may be done or not.
    Begun,
    /// It is done: what was read then.
    Done {
        /// The value.
        got: String,
        /// What was beside it.
        beside: Vec<Option<String>>,
    },
    /// It may be taken back or not.
    Undoing {
        /// What was read when it was done, if it was.
        got: Option<String>,
    },
    /// It is taken back, or was never done.
    Undone,
}

impl Stage {
    /// The value that was read when it was done.
    pub fn got(&self) -> Option<&str> {
        match self {
            Stage::Done { got, .. } => Some(got),
            Stage::Undoing { got } => got.as_deref(),
            Stage::Begun | Stage::Undone => None,
        }
    }
}

/// A write and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The write.
    pub write: Write,
    /// How far.
    pub stage: Stage,
}

/// Why a journal cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A line is not understood.
    #[error(
        "line {0} of the journal is not understood, so it is not known what was changed; nothing \
         was done. Move the file away to give up what it says"
    )]
    Line(usize),
    /// Another version.
    #[error(
        "the journal has version {0}, and this program writes {VERSION}; nothing was done. Undo \
         with the program that wrote it"
    )]
    Version(u32),
    /// It cannot be read or written.
    #[error("the journal {0}; what it says so far can be undone")]
    Trouble(#[from] Trouble),
}

/// The journal, as it is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// Its first record is on disk.
    has_begun: bool,
    /// The start of the guest that it is of.
    pub boot: String,
    /// Writes, in order.
    pub entries: Vec<Entry>,
    /// Bytes of whole lines, where a torn one follows.
    torn_after: Option<usize>,
}

impl Journal {
    /// Reads it. One of an earlier start of the guest says what is no longer so: it is removed, and `true` comes with
    /// a fresh one.
    ///
    /// # Errors
    /// It is not understood, or cannot be read.
    pub fn open(system: &mut dyn System, boot: &str) -> Result<(Journal, bool), Refusal> {
        let bytes = system.journal()?;
        let journal = Journal::parse(&bytes)?;
        if journal.has_begun && journal.boot != boot {
            system.forget()?;
            return Ok((Journal { boot: boot.to_owned(), ..Journal::default() }, true));
        }
        Ok((Journal { boot: boot.to_owned(), ..journal }, false))
    }

    /// Understands a journal's bytes.
    ///
    /// # Errors
    /// A line is not what this program writes.
    pub fn parse(bytes: &[u8]) -> Result<Journal, Refusal> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let torn_after = (whole < bytes.len()).then_some(whole);
        let mut journal = Journal { torn_after, ..Journal::default() };
        let lines = bytes[..whole].split(|byte| *byte == b'\n');
        // The last one is empty: it is behind the last line's end.
        let count = lines.clone().count().saturating_sub(1);
        for (line, number) in lines.take(count).zip(1..) {
            journal.hear(line).map_err(|version| match version {
                Some(version) => Refusal::Version(version),
                None => Refusal::Line(number),
            })?;
        }
        Ok(journal)
    }

    fn hear(&mut self, line: &[u8]) -> Result<(), Option<u32>> {
        let record: Record = serde_json::from_slice(line).map_err(|_| None)?;
        match record {
            Record::Journal { version, .. } if version != VERSION => return Err(Some(version)),
            Record::Journal { boot, .. } if !self.has_begun => {
                (self.has_begun, self.boot) = (true, boot);
            }
            Record::Write(write) if self.has_begun && write.number == self.next() => {
                self.entries.push(Entry { write, stage: Stage::Begun });
            }
            Record::Done { number, got, beside } => {
                self.entry(number)?.stage = Stage::Done { got, beside };
            }
            Record::Undoing { number } => {
                let entry = self.entry(number)?;
                let got = entry.stage.got().map(str::to_owned);
                entry.stage = Stage::Undoing { got };
            }
            Record::Undone { number } => self.entry(number)?.stage = Stage::Undone,
            _ => return Err(None),
        }
        Ok(())
    }

    fn entry(&mut self, number: u64) -> Result<&mut Entry, Option<u32>> {
        let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        at.and_then(|at| self.entries.get_mut(at)).ok_or(None)
    }

    /// The number of the next write.
    pub fn next(&self) -> u64 {
        self.entries.len() as u64 + 1
    }

    /// Whether something is left to be put back.
    pub fn is_open(&self) -> bool {
        self.entries.iter().any(|entry| entry.stage != Stage::Undone)
    }

    /// Says that a value is about to be written: its number.
    ///
    /// # Errors
    /// The journal cannot be written; then nothing may be changed.
    pub fn begin(&mut self, system: &mut dyn System, write: Write) -> Result<u64, Refusal> {
        if write.old.len().max(write.new.len()) > VALUE_BYTES_MAX {
            return Err(Trouble::TooLong.into());
        }
        if let Some(length) = self.torn_after.take() {
            system.cut(length)?;
        }
        if !self.has_begun {
            let record = Record::Journal { version: VERSION, boot: self.boot.clone() };
            system.note(&line(&record))?;
            self.has_begun = true;
        }
        let number = write.number;
        self.say(system, Record::Write(write))?;
        Ok(number)
    }

    /// Says that it is written.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn done(
        &mut self,
        system: &mut dyn System,
        number: u64,
        got: String,
        beside: Vec<Option<String>>,
    ) -> Result<(), Refusal> {
        self.say(system, Record::Done { number, got, beside })
    }

    /// Says that the old value is about to be put back.
    ///
    /// # Errors
    /// The journal cannot be written; then nothing may be changed.
    pub fn undoing(&mut self, system: &mut dyn System, number: u64) -> Result<(), Refusal> {
        self.say(system, Record::Undoing { number })
    }

    /// Says that nothing of it is left to put back.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn undone(&mut self, system: &mut dyn System, number: u64) -> Result<(), Refusal> {
        self.say(system, Record::Undone { number })
    }

    /// Removes a journal by which nothing is left to be put back.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn close(&mut self, system: &mut dyn System) -> Result<(), Refusal> {
        if !self.is_open() && (self.has_begun || self.torn_after.is_some()) {
            system.forget()?;
            *self = Journal { boot: std::mem::take(&mut self.boot), ..Journal::default() };
        }
        Ok(())
    }

    fn say(&mut self, system: &mut dyn System, record: Record) -> Result<(), Refusal> {
        if let Some(length) = self.torn_after.take() {
            system.cut(length)?;
        }
        let line = line(&record);
        system.note(&line)?;
        // As a reader of the file would understand it, so that both are always the same.
        let heard = self.hear(line.trim_end().as_bytes());
        heard.map_err(|_| Refusal::Line(self.entries.len()))
    }
}

fn line(record: &Record) -> String {
    // A record is made of texts and numbers: it has always a form in JSON.
    serde_json::to_string(record).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "{\"record\":\"journal\",\"version\":1,\"boot\":\"b\"}\n";

    #[test]
    fn a_torn_line_is_a_crash_and_a_broken_one_is_not_guessed_at() {
        let torn = Journal::parse(format!("{FIRST}{{\"record\":\"wri").as_bytes()).unwrap();
        assert_eq!(torn.torn_after, Some(FIRST.len()));
        assert!(!torn.is_open());
        let broken = format!("{FIRST}{{\"record\":\"wri\n");
        assert_eq!(Journal::parse(broken.as_bytes()), Err(Refusal::Line(2)));
        let headless = "{\"record\":\"undone\",\"number\":1}\n";
        assert_eq!(Journal::parse(headless.as_bytes()), Err(Refusal::Line(1)));
        assert_eq!(Journal::parse(b"").unwrap(), Journal::default());
        assert_eq!(Journal::parse(b"\n"), Err(Refusal::Line(1)));
    }

    #[test]
    fn another_version_is_refused() {
        let text = FIRST.replace(":1,", ":2,");
        assert_eq!(Journal::parse(text.as_bytes()), Err(Refusal::Version(2)));
    }
}
