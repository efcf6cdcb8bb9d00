//! Requests as fio's version 3 of an iolog has them: `TIME FILE ACTION [OFFSET LENGTH]`, by the microsecond.
//!
//! The file is the disk's name, and not its image: whoever replays it names where to (`--replay_redirect`), and does not
//! write over the image by having forgotten that.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use config::api::{TracedOp, TracedView};

use crate::failure::Failure;

/// How iologs of all versions begin.
const START: &[u8] = b"fio version ";
/// Longest line of a transfer, bytes: fio reads 32 bits.
const LEN_MAX: u64 = 1 << 30;

pub(super) struct Iolog {
    path: PathBuf,
    out: File,
    name: String,
    /// Bytes that are in it, and requests.
    len: u64,
    written: u64,
    /// When the first one was taken, nanoseconds.
    start_ns: Option<u64>,
    /// Of the last line, microseconds.
    last_us: u64,
}

impl Iolog {
    /// Makes the file.
    ///
    /// # Errors
    /// It cannot be made, or is there and not to be written over.
    pub(super) fn create(path: &Path, disk: &str, force: bool) -> Result<Iolog, Failure> {
        let made = File::create_new(path);
        let file = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && force => emptied(path)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Failure::usage(
                    format!("{} is there already", path.display()),
                    "name another file, or have it written over with --force",
                ));
            }
            made => made.map_err(|error| failed(path, &error))?,
        };
        let (path, name) = (path.to_path_buf(), disk.to_string());
        let mut log =
            Iolog { path, out: file, name, len: 0, written: 0, start_ns: None, last_us: 0 };
        let head = head(&log.name);
        log.put(&head, &[])?;
        Ok(log)
    }

    /// Writes them, so that they are in the file whatever becomes of the command.
    ///
    /// # Errors
    /// The file takes no more. What is in it then is whole.
    pub(super) fn write(&mut self, entries: &[TracedView]) -> Result<(), Failure> {
        let (mut text, mut ends) = (String::new(), Vec::with_capacity(entries.len()));
        for entry in entries {
            let start_ns = *self.start_ns.get_or_insert(entry.at_ns);
            // To fio a time of 0 is none, and behind a time that went back it would wait for that long again.
            let at_us = entry.at_ns.saturating_sub(start_ns) / 1_000 + 1;
            self.last_us = self.last_us.max(at_us);
            text += &lines(&self.name, self.last_us, entry);
            ends.push(text.len() as u64);
        }
        self.put(&text, &ends)
    }

    /// Closes it.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        let text = format!("{} {} close\n", self.last_us + 1, self.name);
        self.put(&text, &[])
    }

    /// Writes a text with requests that end there in it, or as many whole ones as the file takes.
    fn put(&mut self, text: &str, ends: &[u64]) -> Result<(), Failure> {
        let Err(error) = self.out.write_all(text.as_bytes()) else {
            self.len += text.len() as u64;
            self.written += ends.len() as u64;
            return Ok(());
        };
        let went = self.out.stream_position().map_or(0, |at| at.saturating_sub(self.len));
        let whole = ends.partition_point(|end| *end <= went);
        self.len += whole.checked_sub(1).and_then(|last| ends.get(last)).copied().unwrap_or(0);
        self.written += whole as u64;
        // If that fails, too, fio says which line is none.
        let _ = self.out.set_len(self.len);
        let written = super::lines::requests(self.written);
        Err(Failure::host(
            format!("{}: {error}; {written} went into it before", self.path.display()),
            "make room there, or name a file elsewhere",
        ))
    }
}

/// An iolog that is there, emptied. Nothing else is: a name may lead to an image, also through links.
fn emptied(path: &Path) -> Result<File, Failure> {
    let emptied = || -> io::Result<Option<File>> {
        // Nobody waits for the other end of a pipe, and a device is not so much as opened.
        if !std::fs::metadata(path)?.is_file() {
            return Ok(None);
        }
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut start = Vec::new();
        (&file).take(START.len() as u64).read_to_end(&mut start)?;
        if !file.metadata()?.is_file() || !(start.is_empty() || start == START) {
            return Ok(None);
        }
        file.set_len(0)?;
        file.rewind()?;
        Ok(Some(file))
    };
    emptied().map_err(|error| failed(path, &error))?.ok_or_else(|| {
        let error = format!("{} is no iolog, and is left as it is", path.display());
        Failure::usage(error, "name another file, or take that one away first")
    })
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()), "name a file that can be written")
}

fn head(name: &str) -> String {
    format!("fio version 3 iolog\n0 {name} add\n0 {name} open\n")
}

/// A request, in as many lines as it takes.
fn lines(name: &str, at_us: u64, entry: &TracedView) -> String {
    let action = match entry.op {
        TracedOp::Read => "read",
        TracedOp::Write => "write",
        TracedOp::Flush => return format!("{at_us} {name} sync 0 0\n"),
        TracedOp::Discard | TracedOp::WriteZeroes => "trim",
    };
    let (mut text, mut done) = (String::new(), 0);
    while done < entry.bytes {
        let len = (entry.bytes - done).min(LEN_MAX);
        text += &format!("{at_us} {name} {action} {} {len}\n", entry.offset.saturating_add(done));
        done += len;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::entry;
    use super::*;

    #[test]
    fn each_request_is_a_line_of_its_action_and_no_file_is_written_over_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.iolog");
        let mut log = Iolog::create(&path, "vm1", false).unwrap();
        log.write(&[
            entry(5_000_000, TracedOp::Write, 4096, 512),
            entry(5_001_999, TracedOp::Read, 0, 1 << 20),
        ])
        .unwrap();
        log.write(&[
            entry(6_000_000, TracedOp::Flush, 0, 0),
            entry(6_000_000, TracedOp::Discard, 512, (1 << 30) + 512),
            entry(7_000_000, TracedOp::WriteZeroes, 0, 4096),
            // It took so long that it comes late.
            entry(4_000_000, TracedOp::Read, 0, 512),
        ])
        .unwrap();
        log.end().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "fio version 3 iolog\n0 vm1 add\n0 vm1 open\n1 vm1 write 4096 512\n2 vm1 read 0 1048576\n\
             1001 vm1 sync 0 0\n1001 vm1 trim 512 1073741824\n1001 vm1 trim 1073742336 512\n\
             2001 vm1 trim 0 4096\n2001 vm1 read 0 512\n2002 vm1 close\n"
        );
        let again = Iolog::create(&path, "vm1", false).map(drop).unwrap_err();
        assert!(again.text().contains("is there already"), "{}", again.text());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        Iolog::create(&path, "vm1", true).unwrap().end().unwrap();
        let head = "fio version 3 iolog\n0 vm1 add\n0 vm1 open\n1 vm1 close\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), head);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Iolog::create(&link, "vm2", true).unwrap().end().unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("0 vm2 open"));
        let nowhere = Iolog::create(&folder.path().join("no/where"), "vm1", false).map(drop);
        assert!(nowhere.unwrap_err().text().contains("no/where: "));
    }

    #[test]
    fn what_is_no_iolog_is_not_written_over_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let (image, link) = (folder.path().join("a.img"), folder.path().join("link"));
        std::os::unix::fs::symlink(&image, &link).unwrap();
        // A sparse image begins with zeroes, another one with whatever its guest wrote.
        for bytes in [&[0; 4096][..], b"fio versio", b"QFI\xfb fio version 3 iolog\n"] {
            std::fs::write(&image, bytes).unwrap();
            for path in [&image, &link] {
                let refused = Iolog::create(path, "vm1", true).map(drop).unwrap_err();
                let expected = format!("{} is no iolog, and is left as it is", path.display());
                assert_eq!(refused.parts().0, expected);
            }
            assert_eq!(std::fs::read(&image).unwrap(), bytes);
        }
        for path in [folder.path(), Path::new("/dev/null")] {
            let refused = Iolog::create(path, "vm1", true).map(drop).unwrap_err();
            assert!(refused.text().contains("is no iolog"), "{}", refused.text());
        }
        std::fs::write(&image, "").unwrap();
        Iolog::create(&image, "vm1", true).unwrap().end().unwrap();
        assert!(std::fs::read(&image).unwrap().starts_with(START));
    }
}
