//! What programs of others said before something went wrong: the ends of their logs, for who reads it.
//!
//! Not how they are started (`children`). Used by `place`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Lines of a log, and no more of it than so many bytes.
const LINES: usize = 8;
const BYTES: u64 = 4096;

/// The ends of all logs of a folder, each below its name. Letters that would steer a terminal are left out: consoles of
/// guests are among them.
pub(crate) fn ends(dir: &Path) -> String {
    let mut said = String::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        let text = if is_log { end(&path).unwrap_or_default() } else { Vec::new() };
        if !text.is_empty() {
            let text = harmless(&String::from_utf8_lossy(&text));
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
            said += &format!("\n{}:\n  {}", path.display(), last.join("\n  "));
        }
    }
    said
}

fn end(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.take(BYTES).read_to_end(&mut text)?;
    Ok(text)
}

fn harmless(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control() || *letter == '\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_logs_are_told_and_steer_no_terminal() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        let console = dir.path().join("console0.log");
        let lines: String = (0..100_000).map(|line| format!("line {line}\r\n")).collect();
        std::fs::write(&console, lines + "\x1b]0;title\x07\x1b[2Jlast \u{9b}5n\u{e4}")?;
        std::fs::write(dir.path().join("server.log"), "")?;
        std::fs::write(dir.path().join("socket"), "no log")?;
        let first = format!("\n{}:\n  line 99993\n", console.display());
        let said = ends(dir.path());
        assert!(said.starts_with(&first), "{said:?}");
        assert!(said.ends_with("\n  line 99999\n  ]0;title[2Jlast 5n\u{e4}"), "{said:?}");
        std::fs::write(&console, "x".repeat(10_000))?;
        let said = ends(dir.path());
        assert_eq!(
            said.rsplit(' ').next().map(str::len),
            Some(4096),
            "the path above it may have any letter"
        );
        Ok(())
    }
}
